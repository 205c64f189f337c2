//! HTTP over TLS connections, for untrusted peers. Limits the number of connections, the silence and the slowness of each, the bytes of an
//! unknown peer, and the number of its wrong tokens.
//!
//! | action of a peer | limit |
//! |---|---|
//! | does not finish a handshake | [`tls`](crate::controller::tls) |
//! | does not finish the head of a request, or asks nothing | [`HEAD`] |
//! | sends a head that is too long | [`HEAD_BYTES`]: 431 |
//! | sends a body by drops | [`SILENCE`], [`SLOWEST`] |
//! | sends a long body before it is authenticated | [`STRANGER_BYTES`]: 413 |
//! | is known, but may not send anything | the same: 403 |
//! | opens very many connections | the most silent one makes room, those of unauthenticated peers first |
//! | shows one wrong token after the other | [`Attempts`]: 429 |
//! | is a page of another site in a person's browser | 403; there are no cookies and no permission for other pages to ask |
mod attempts;
mod body;
mod connections;

use crate::api::Refused;
use crate::controller::tls::{Peer, TlsListener};
use attempts::Attempts;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::header::{self, HeaderName};
use axum::http::{HeaderMap, HeaderValue, Request, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::serve::Listener;
use axum::{Json, Router};
use connections::{Connections, Heard};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tower_service::Service;

/// Time limit of the head of a request, from the end of the answer before it. A connection idle for longer ends, and the client makes a new
/// one.
const HEAD: Duration = Duration::from_secs(20);
/// Bytes of the head of a request.
const HEAD_BYTES: usize = 32 << 10;
/// Fields of the head of a request.
const HEAD_FIELDS: usize = 64;
/// Longest pause of a body.
pub(crate) const SILENCE: Duration = Duration::from_secs(15);
/// Bytes per second of a body, on average, once it has taken longer than [`SILENCE`].
pub(crate) const SLOWEST: u64 = 1 << 10;
/// Bytes of the body of an unauthenticated peer: enough to join. Requests of a person who may only look are shorter, too.
const STRANGER_BYTES: u64 = 64 << 10;

/// The known identity of a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
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
    fn knows(&self, peer: &Peer, headers: &HeaderMap) -> Known;
}

/// Serves until it is dropped.
pub(crate) async fn serve(mut listener: TlsListener, app: Router, doorkeeper: Arc<dyn Doorkeeper>) {
    let connections = Arc::new(Connections::for_this_process());
    let attempts = Arc::new(Attempts::default());
    loop {
        let (stream, peer) = listener.accept().await;
        let (app, doorkeeper, attempts) = (app.clone(), Arc::clone(&doorkeeper), Arc::clone(&attempts));
        connections.hold(|heard| {
            if !peer.chain.is_empty() {
                heard.prove();
            }
            let desk = Desk { app, peer, doorkeeper, attempts, heard };
            async move {
                let service = service_fn(move |request: Request<Incoming>| {
                    desk.heard.now();
                    let desk = desk.clone();
                    async move { Ok::<_, Infallible>(desk.answer(request).await) }
                });
                let served = http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(HEAD)
                    .max_buf_size(HEAD_BYTES)
                    .max_headers(HEAD_FIELDS)
                    .serve_connection(TokioIo::new(stream), service);
                if let Err(error) = served.await {
                    tracing::debug!("a connection ends: {error}");
                }
            }
        });
    }
}

/// Answers a connection.
#[derive(Clone)]
struct Desk {
    app: Router,
    peer: Peer,
    doorkeeper: Arc<dyn Doorkeeper>,
    attempts: Arc<Attempts>,
    heard: Heard,
}

impl Desk {
    async fn answer(mut self, request: Request<Incoming>) -> Response {
        let mut answer = match self.refusal(&request) {
            Some(refusal) => refusal,
            None => self.let_in(request).await,
        };
        // The body may have been waited for, and is under way from now on.
        self.heard.now();
        protect(answer.headers_mut());
        answer
    }

    /// Returns the answer to a request that is rejected without a look at it.
    fn refusal(&self, request: &Request<Incoming>) -> Option<Response> {
        let headers = request.headers();
        if is_of_another_page(request.uri().path(), headers) {
            let text = "a page of somebody else may not ask this: open the page of the controller itself";
            return Some(refused(StatusCode::FORBIDDEN, text.to_owned()));
        }
        if is_attempt(request.uri().path(), headers)
            && let Some(wait) = self.attempts.is_over(self.peer.address.ip())
        {
            let seconds = wait.as_secs() + 1;
            let text = format!("too many wrong tokens came from this address: wait {seconds} s");
            let mut answer = refused(StatusCode::TOO_MANY_REQUESTS, text);
            answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
            return Some(answer);
        }
        let length =
            headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        if length.is_none_or(|length| length <= STRANGER_BYTES) {
            return None;
        }
        let (status, who) = match self.doorkeeper.knows(&self.peer, headers) {
            Known::Sender => return None,
            Known::Viewer => {
                (StatusCode::FORBIDDEN, "who may only look: show the access token of an operator or an admin")
            }
            Known::Nobody => {
                (StatusCode::PAYLOAD_TOO_LARGE, "who is not known: show an access token that counts")
            }
        };
        let mut answer = refused(status, format!("more than {STRANGER_BYTES} bytes, of somebody {who}"));
        answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        Some(answer)
    }

    async fn let_in(&mut self, request: Request<Incoming>) -> Response {
        let is_attempt = is_attempt(request.uri().path(), request.headers());
        let known = self.doorkeeper.knows(&self.peer, request.headers());
        let is_known = known != Known::Nobody;
        if is_known {
            self.heard.prove();
        }
        let most = (known != Known::Sender).then_some(STRANGER_BYTES);
        let heard = self.heard.clone();
        let mut request = request.map(|body| body::paced(Body::new(body), most, heard));
        request.extensions_mut().insert(ConnectInfo(self.peer.clone()));
        let answer = match self.app.call(request).await {
            Ok(answer) => answer,
            Err(never) => match never {},
        };
        let is_wrong = matches!(answer.status(), StatusCode::UNAUTHORIZED | StatusCode::BAD_REQUEST);
        if is_attempt && !is_known && is_wrong {
            self.attempts.failed(self.peer.address.ip());
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
}
