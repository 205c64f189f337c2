//! Rules of the cluster's HTTPS servers in addition to [`tidemill_http::server`], which limits connections and bodies. Limits the bytes of
//! an unknown peer, and the number of its wrong tokens.
//!
//! | action of a peer | limit |
//! |---|---|
//! | sends a long body before it is authenticated | [`STRANGER_BYTES`]: 413 |
//! | is known, but may not send anything | the same: 403 |
//! | shows one wrong token after the other | [`Attempts`]: 429 |
//! | is a page of another site in a person's browser | 403; there are no cookies and no permission for other pages to ask |
mod attempts;

use crate::api::Refused;
use attempts::Attempts;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::header::{self, HeaderName};
use axum::http::{HeaderMap, HeaderValue, Request, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use hyper::body::Incoming;
use serde::Deserialize;
use std::io::Read;
use std::sync::Arc;
use tidemill_http::range;
use tidemill_http::server::{self, Answers, Peer, PeerActivity, TlsListener, paced, streamed};
use tower_service::Service;

/// Bytes of the body of an unauthenticated peer: enough to join. Requests of a person who may only look are shorter, too.
const STRANGER_BYTES: u64 = 64 << 10;

/// The known identity of a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallerKind {
    /// Nothing.
    Nobody,
    /// A person who may look, and has nothing long to send.
    Viewer,
    /// A peer that may send a long body.
    Sender,
}

/// Identifies the peers of a server.
pub(crate) trait Doorkeeper: Send + Sync + 'static {
    /// Returns the identity, where the peer has proved it or the request has a valid token. Called before any of the body is read.
    fn knows(&self, peer: &Peer, headers: &HeaderMap) -> CallerKind;
}

/// Serves until it is dropped.
pub(crate) async fn serve(listener: TlsListener, app: Router, doorkeeper: Arc<dyn Doorkeeper>) {
    server::serve(listener, Arc::new(Desk { app, doorkeeper, attempts: Attempts::default() })).await;
}

/// Which bytes of a file a request wants: those from `Range` on. Versions before 0063 named only the first one in the query, and take
/// no more than [`BEFORE`] at once.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(crate) struct Offset {
    offset: Option<u64>,
}

/// See [`Offset`].
const BEFORE: u64 = 3 << 20;

impl Offset {
    /// The first byte, and the limit.
    pub(crate) fn wanted(self, headers: &HeaderMap) -> (u64, u64) {
        match (range::first_wanted(headers), self.offset) {
            (None, Some(offset)) => (offset, BEFORE),
            (first, _) => (first.unwrap_or(0), u64::MAX),
        }
    }
}

/// An answer with what `from` gives: bytes of something that has `size`, from the first one that is wanted on.
pub(crate) fn content(from: impl Read + Send + 'static, (first, most): (u64, u64), size: u64) -> Response {
    let length = size.saturating_sub(first).min(most);
    let mut answer = Body::new(streamed(from.take(length))).into_response();
    *answer.status_mut() = range::mark(answer.headers_mut(), first, length, Some(size));
    answer
}

/// Answers requests with a router.
struct Desk {
    app: Router,
    doorkeeper: Arc<dyn Doorkeeper>,
    attempts: Attempts,
}

impl Answers for Desk {
    type Body = Body;

    async fn answer(&self, request: Request<Incoming>, peer: &Peer, heard: &PeerActivity) -> Response {
        let mut answer = match self.refusal(&request, peer) {
            Some(refusal) => refusal,
            None => self.let_in(request, peer, heard).await,
        };
        protect(answer.headers_mut());
        answer
    }
}

impl Desk {
    /// Returns the answer to a request that is rejected without a look at it.
    fn refusal(&self, request: &Request<Incoming>, peer: &Peer) -> Option<Response> {
        let headers = request.headers();
        if is_of_another_page(request.uri().path(), headers) {
            let text = "another page may not make this request: open the page of the controller itself";
            return Some(refused(StatusCode::FORBIDDEN, text.to_owned()));
        }
        if is_attempt(request.uri().path(), headers)
            && let Some(wait) = self.attempts.is_over(peer.address.ip())
        {
            let seconds = wait.as_secs() + 1;
            let text = format!("too many wrong tokens from this address: wait {seconds} s");
            let mut answer = refused(StatusCode::TOO_MANY_REQUESTS, text);
            answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
            return Some(answer);
        }
        let length =
            headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        if length.is_none_or(|length| length <= STRANGER_BYTES) {
            return None;
        }
        let (status, who) = match self.doorkeeper.knows(peer, headers) {
            CallerKind::Sender => return None,
            CallerKind::Viewer => {
                (StatusCode::FORBIDDEN, "who may only read: show the access token of an operator or an admin")
            }
            CallerKind::Nobody => {
                (StatusCode::PAYLOAD_TOO_LARGE, "who is not known: show a valid access token")
            }
        };
        let mut answer = refused(status, format!("more than {STRANGER_BYTES} bytes, from a client {who}"));
        answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        Some(answer)
    }

    async fn let_in(&self, request: Request<Incoming>, peer: &Peer, heard: &PeerActivity) -> Response {
        let is_attempt = is_attempt(request.uri().path(), request.headers());
        let known = self.doorkeeper.knows(peer, request.headers());
        let is_known = known != CallerKind::Nobody;
        if is_known {
            heard.prove();
        }
        let most = (known != CallerKind::Sender).then_some(STRANGER_BYTES);
        let mut request = request.map(|body| Body::new(paced(body, most, heard.clone())));
        request.extensions_mut().insert(ConnectInfo(peer.clone()));
        let answer = match self.app.clone().call(request).await {
            Ok(answer) => answer,
            Err(never) => match never {},
        };
        let is_wrong = matches!(answer.status(), StatusCode::UNAUTHORIZED | StatusCode::BAD_REQUEST);
        if is_attempt && !is_known && is_wrong {
            self.attempts.failed(peer.address.ip());
        }
        answer
    }
}

fn refused(status: StatusCode, text: String) -> Response {
    (status, Json(Refused { error: text })).into_response()
}

/// Whether a token is tried.
fn is_attempt(path: &str, headers: &HeaderMap) -> bool {
    headers.contains_key(header::AUTHORIZATION) || path == "/v1/join"
}

/// Browsers name the page that asks. A page of another site could at worst have a browser show a certificate that its person has installed:
/// only the page of the controller stores tokens in a browser.
fn is_of_another_page(path: &str, headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
    let is_other = site.is_some_and(|site| site != b"same-origin" && site != b"none");
    is_other && (path.starts_with("/v1/") || path == "/metrics")
}

/// Headers of every answer that does not set others.
const PROTECTION: [(HeaderName, &str); 7] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
];

fn protect(headers: &mut HeaderMap) {
    for (name, value) in PROTECTION {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect()
    }

    #[test]
    fn pages_of_others_may_not_ask() {
        let of = |site| headers(&[("sec-fetch-site", site)]);
        assert!(is_of_another_page("/v1/runs", &of("cross-site")));
        assert!(is_of_another_page("/metrics", &of("same-site")));
        for site in ["same-origin", "none"] {
            assert!(!is_of_another_page("/v1/runs", &of(site)));
        }
        // A link to the page is no question.
        assert!(!is_of_another_page("/", &of("cross-site")));
        assert!(!is_of_another_page("/v1/runs", &HeaderMap::new()));
    }

    #[test]
    fn what_an_answer_says_of_itself_stays() {
        let mut answer =
            headers(&[("cache-control", "no-cache"), ("content-security-policy", "default-src 'self'")]);
        protect(&mut answer);
        assert_eq!(answer["cache-control"], "no-cache");
        assert_eq!(answer["content-security-policy"], "default-src 'self'");
        assert_eq!(answer["x-frame-options"], "DENY");
        assert_eq!(answer.len(), PROTECTION.len());
    }

    #[test]
    fn older_versions_get_as_much_as_they_take() {
        let wanted = |offset, pairs: &[_]| Offset { offset }.wanted(&headers(pairs));
        assert_eq!(wanted(None, &[]), (0, u64::MAX));
        assert_eq!(wanted(Some(0), &[]), (0, BEFORE));
        assert_eq!(wanted(Some(7), &[]), (7, BEFORE));
        assert_eq!(wanted(Some(7), &[("range", "bytes=7-")]), (7, u64::MAX));
    }
}
