//! One call to a peer, from its headers to its status.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use h2::{Reason, RecvStream, SendStream};
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue, TE, USER_AGENT};
use http::uri::{PathAndQuery, Scheme, Uri};
use http::{Method, Request, Response, StatusCode};
use tokio::time::{Instant, Sleep, sleep_until};

use super::Inner;
use super::connection::Line;
use crate::calls::{Call, Item};
use crate::frame::{Broken, Frame, Messages, framed};
use crate::metadata::{
    self, APPLICATION_GRPC, GRPC_ACCEPT_ENCODING, GRPC_ENCODING, GRPC_STATUS, GRPC_TIMEOUT, IDENTITY,
    Metadata,
};
use crate::status::{Code, Status};
use crate::timeout;

/// Attempts of a call that no server has looked at.
const ATTEMPTS: u32 = 3;

/// A failed attempt of a call.
enum Failed {
    /// No server has looked at the call, so it may be tried again.
    Unseen(Status),
    /// The end of the call.
    Ended(Status),
}

/// The time that a call may take.
struct Deadline {
    at: Option<Instant>,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Deadline {
    fn new(timeout: Option<Duration>) -> Deadline {
        // A time beyond what the clock has is no limit.
        let at = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        Deadline { at, sleep: at.map(|at| Box::pin(sleep_until(at))) }
    }

    fn left(&self) -> Option<Duration> {
        self.at.map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// Waits for something, but not longer than the time of the call.
    async fn until<T>(&mut self, waited_for: impl Future<Output = T>) -> Result<T, Status> {
        let mut waited_for = std::pin::pin!(waited_for);
        poll_fn(|context| {
            if let Some(sleep) = &mut self.sleep
                && sleep.as_mut().poll(context).is_ready()
            {
                return Poll::Ready(Err(Status::late()));
            }
            waited_for.as_mut().poll(context).map(Ok)
        })
        .await
    }
}

/// Makes a call. Dropped before its end, it resets the stream, and the server sees that.
pub(super) async fn exchange(peer: Arc<Inner>, call: Call) -> Result<BoxStream<'static, Item>, Status> {
    let mut deadline = Deadline::new(call.timeout);
    let mut request = request(&peer, &call)?;
    let mut attempt = 1;
    let ((response, sent), line) = loop {
        let line = deadline.until(peer.connection.line(&peer.limits)).await??;
        if let Some(left) = deadline.left() {
            if left.is_zero() {
                return Err(Status::late());
            }
            let value = HeaderValue::from_str(&timeout::encoded(left));
            request.headers_mut().extend(value.ok().map(|value| (GRPC_TIMEOUT, value)));
        }
        match deadline.until(attempted(&peer, &line, request.clone(), &call)).await? {
            Ok(response) => break (response, line),
            Err(Failed::Unseen(_)) if attempt < ATTEMPTS => attempt += 1,
            Err(Failed::Unseen(status) | Failed::Ended(status)) => return Err(deadline.judged(status)),
        }
    };
    answer(peer, line, response, sent, deadline)
}

impl Deadline {
    /// A server may notice the end of the time first, and reset the call.
    fn judged(&self, status: Status) -> Status {
        match self.left() {
            Some(Duration::ZERO) if status.code == Code::Cancelled => Status::late(),
            _ => status,
        }
    }
}

fn request(peer: &Inner, call: &Call) -> Result<Request<()>, Status> {
    let path: PathAndQuery = match call.path.parse() {
        Ok(path) if call.path.starts_with('/') => path,
        _ => {
            return Err(Status::new(
                Code::Internal,
                format!("`{}` is no path of a method", call.path.escape_debug()),
            ));
        }
    };
    let uri =
        Uri::builder().scheme(Scheme::HTTP).authority(peer.authority.clone()).path_and_query(path).build();
    let mut request = Request::new(());
    *request.uri_mut() = uri.map_err(|error| Status::new(Code::Internal, error.to_string()))?;
    *request.method_mut() = Method::POST;
    *request.version_mut() = http::Version::HTTP_2;
    let headers = request.headers_mut();
    metadata::write(&call.metadata, headers)?;
    headers.insert(TE, HeaderValue::from_static("trailers"));
    headers.insert(CONTENT_TYPE, APPLICATION_GRPC);
    headers.insert(GRPC_ACCEPT_ENCODING, IDENTITY);
    headers
        .insert(USER_AGENT, HeaderValue::from_static(concat!("tidemill-grpc/", env!("CARGO_PKG_VERSION"))));
    Ok(request)
}

/// The request of a call. Dropped before the response has ended, it cancels the call, even if the server has no room for the message.
struct Sent(SendStream<Frame>);

impl Drop for Sent {
    fn drop(&mut self) {
        self.0.send_reset(Reason::CANCEL);
    }
}

/// Sends a call and waits for the headers of its response.
async fn attempted(
    peer: &Inner,
    line: &Line,
    request: Request<()>,
    call: &Call,
) -> Result<(Response<RecvStream>, Sent), Failed> {
    let frame = framed(call.message.clone()).map_err(Failed::Ended)?;
    let opened = async {
        let mut requests = line.requests.clone().ready().await?;
        requests.send_request(request, false)
    };
    let (response, mut sent) = match opened.await {
        Ok((response, body)) => (response, Sent(body)),
        // A connection that takes no call is closed or about to be.
        Err(error) => {
            peer.connection.lost(line, &peer.limits);
            return Err(Failed::Unseen(status_of(&error)));
        }
    };
    // The connection sends it as the server has room. If the server has answered already, the response says why.
    let _ = sent.0.send_data(frame, true);
    match response.await {
        Ok(response) => {
            line.answered.store(true, Ordering::Relaxed);
            Ok((response, sent))
        }
        Err(error) => {
            let status = status_of(&error);
            if !error.is_reset() {
                peer.connection.lost(line, &peer.limits);
            }
            // A server that goes away names the calls that it still answers, and this is none of them.
            let refused = error.reason() == Some(Reason::REFUSED_STREAM) && error.is_reset();
            let left_out =
                error.is_go_away() && error.is_remote() && error.reason() == Some(Reason::NO_ERROR);
            Err(if refused || left_out { Failed::Unseen(status) } else { Failed::Ended(status) })
        }
    }
}

/// The status of a call whose stream or connection failed.
fn status_of(error: &h2::Error) -> Status {
    let code = match error.reason() {
        Some(reason) if error.is_reset() => match reason {
            Reason::REFUSED_STREAM => Code::Unavailable,
            Reason::CANCEL => Code::Cancelled,
            Reason::ENHANCE_YOUR_CALM => Code::ResourceExhausted,
            Reason::INADEQUATE_SECURITY => Code::PermissionDenied,
            _ => Code::Internal,
        },
        _ => Code::Unavailable,
    };
    Status::new(code, error.to_string())
}

/// Reads a response after its headers.
fn answer(
    peer: Arc<Inner>,
    line: Line,
    response: Response<RecvStream>,
    sent: Sent,
    deadline: Deadline,
) -> Result<BoxStream<'static, Item>, Status> {
    let (head, body) = response.into_parts();
    if head.headers.contains_key(GRPC_STATUS) {
        let end = ended(Some(&head.headers));
        return Ok(stream::iter([end]).boxed());
    }
    no_grpc(head.status, &head.headers)?;
    if let Some(encoding) = head.headers.get(GRPC_ENCODING).filter(|encoding| **encoding != IDENTITY) {
        let why = format!("messages compressed by {encoding:?} were not asked for");
        return Err(Status::new(Code::Internal, why));
    }
    let leading = Item::Leading(metadata::read(&head.headers)?);
    let messages = Messages::new(body, peer.limits.message);
    let reading = Reading { peer, line, messages, _sent: sent, deadline };
    let rest = stream::unfold(Some(reading), |reading| async {
        let mut reading = reading?;
        let item = reading.next().await;
        let ended = matches!(item, Item::End { .. });
        Some((item, (!ended).then_some(reading)))
    });
    Ok(stream::iter([leading]).chain(rest).boxed())
}

/// Refuses a response that is no gRPC, with the code that the protocol gives for its status of HTTP.
fn no_grpc(status: StatusCode, headers: &HeaderMap) -> Result<(), Status> {
    let code = match status.as_u16() {
        200 => {
            let kind = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
            if kind.starts_with(b"application/grpc") && !kind.starts_with(b"application/grpc-web") {
                return Ok(());
            }
            Code::Unknown
        }
        400 => Code::Internal,
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        404 => Code::Unimplemented,
        429 | 502 | 503 | 504 => Code::Unavailable,
        _ => Code::Unknown,
    };
    Err(Status::new(code, format!("the server answered HTTP {status} and no gRPC")))
}

/// The end that trailers say.
fn ended(trailers: Option<&HeaderMap>) -> Item {
    let Some((status, trailers)) =
        trailers.and_then(|trailers| Some((metadata::read_status(trailers)?, trailers)))
    else {
        return failed(Status::new(Code::Unknown, "the server ended without a status"));
    };
    match metadata::read(trailers) {
        Ok(trailing) => Item::End { status, trailing },
        Err(refused) => failed(refused),
    }
}

fn failed(status: Status) -> Item {
    Item::End { status, trailing: Metadata::new() }
}

/// An answer that is being read.
struct Reading {
    peer: Arc<Inner>,
    line: Line,
    messages: Messages,
    _sent: Sent,
    deadline: Deadline,
}

impl Reading {
    async fn next(&mut self) -> Item {
        let Reading { messages, deadline, .. } = self;
        let read = deadline
            .until(async {
                match messages.next().await? {
                    Some(message) => Ok(Item::Message(message)),
                    None => Ok(ended(messages.trailers().await?.as_ref())),
                }
            })
            .await;
        match read {
            Ok(Ok(item)) => item,
            Err(late) => failed(late),
            Ok(Err(Broken::Refused(status))) => failed(status),
            Ok(Err(Broken::Stream(error))) => {
                if !error.is_reset() {
                    self.peer.connection.lost(&self.line, &self.peer.limits);
                }
                failed(self.deadline.judged(status_of(&error)))
            }
        }
    }
}
