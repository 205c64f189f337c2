//! One call from its headers to its status.

use std::future::{Future, poll_fn};
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{FutureExt, StreamExt};
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::header::{ALLOW, CONTENT_TYPE, HeaderMap};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use tokio::time::{Instant, Sleep, sleep_until, timeout};

use super::{Limits, health};
use crate::calls::{Call, Calls, Item};
use crate::frame::{Broken, Frame, Messages, framed};
use crate::metadata::{
    self, APPLICATION_GRPC, GRPC_ACCEPT_ENCODING, GRPC_ENCODING, GRPC_TIMEOUT, IDENTITY, Metadata,
};
use crate::status::{Code, Status};
use crate::timeout;

/// A call that ends before its callee does.
enum Cut {
    /// The client gets this status.
    Failed(Status),
    /// The client has cancelled the call or is gone.
    Gone,
}

impl From<Status> for Cut {
    fn from(status: Status) -> Cut {
        Cut::Failed(status)
    }
}

impl From<h2::Error> for Cut {
    fn from(_: h2::Error) -> Cut {
        Cut::Gone
    }
}

/// Answers one request.
pub(super) async fn answer(
    request: Request<RecvStream>,
    respond: SendResponse<Frame>,
    calls: Arc<dyn Calls>,
    limits: Arc<Limits>,
) {
    let mut reply = Reply { respond, body: None, leading: HeaderMap::new(), deadline: None };
    // An error of the reply itself is one of a client that is gone.
    if let Some(refusal) = no_grpc(&request) {
        let _ = reply.respond.send_response(refusal, true);
        return;
    }
    let cut = match exchange(request, &mut reply, calls, &limits).await {
        Ok((status, trailing)) => reply.end(status, trailing),
        Err(Cut::Failed(status)) => reply.end(status, Metadata::new()),
        Err(Cut::Gone) => return,
    };
    if cut.is_err() {
        tracing::debug!("a gRPC client left before the end of its call");
    }
}

/// Response to a request that is no gRPC.
fn no_grpc(request: &Request<RecvStream>) -> Option<Response<()>> {
    let mut refusal = Response::new(());
    if request.method() != Method::POST {
        *refusal.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
        refusal.headers_mut().insert(ALLOW, HeaderValue::from_static("POST"));
        return Some(refusal);
    }
    let content = request.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let kind = content.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    if kind.eq_ignore_ascii_case(b"application/grpc") || kind.eq_ignore_ascii_case(b"application/grpc+proto")
    {
        return None;
    }
    *refusal.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    Some(refusal)
}

async fn exchange(
    request: Request<RecvStream>,
    reply: &mut Reply,
    calls: Arc<dyn Calls>,
    limits: &Limits,
) -> Result<(Status, Metadata), Cut> {
    let (head, body) = request.into_parts();
    let timeout =
        match head.headers.get(GRPC_TIMEOUT) {
            None => None,
            Some(value) => Some(timeout::decoded(value.as_bytes()).ok_or_else(|| {
                Status::new(Code::Internal, format!("grpc-timeout {value:?} is no timeout"))
            })?),
        };
    if timeout.is_some_and(|timeout| timeout.is_zero()) {
        return Err(Status::late().into());
    }
    // A time beyond what the clock has is no limit.
    let started = Instant::now();
    reply.deadline =
        timeout.and_then(|timeout| started.checked_add(timeout)).map(|at| Box::pin(sleep_until(at)));
    if let Some(encoding) = head.headers.get(GRPC_ENCODING).filter(|encoding| **encoding != IDENTITY) {
        let why = format!("messages compressed by {encoding:?} are not supported, only identity");
        return Err(Status::new(Code::Unimplemented, why).into());
    }
    let metadata = metadata::read(&head.headers)?;
    let message = reply.until(one_message(body, limits.message, limits.arrival)).await??;

    let path = head.uri.path();
    if path == health::PATH {
        let message = health::check(&message, &*calls)?;
        reply.send(message).await?;
        return Ok((Status::ok(), Metadata::new()));
    }
    let timeout = timeout.map(|timeout| timeout.saturating_sub(started.elapsed()));
    let call = Call { path: path.to_owned(), metadata, timeout, message };
    // A panic of the callee is its own; the caller gets a status for it, and other calls continue.
    let starting = std::panic::catch_unwind(AssertUnwindSafe(|| calls.call(call))).map_err(|_| panicked())?;
    let items = reply.until(AssertUnwindSafe(starting).catch_unwind()).await?.map_err(|_| panicked())??;
    let mut items = AssertUnwindSafe(items).catch_unwind();
    loop {
        match reply.until(items.next()).await?.transpose().map_err(|_| panicked())? {
            Some(Item::Leading(leading)) => reply.lead(&leading)?,
            Some(Item::Message(message)) => reply.send(message).await?,
            Some(Item::End { status, trailing }) => return Ok((status, trailing)),
            None => return Err(Status::new(Code::Internal, "the callee ended without a status").into()),
        }
    }
}

fn panicked() -> Status {
    Status::new(Code::Internal, "the callee panicked")
}

/// Reads a request up to its end: that it has one message is certain only there.
async fn one_message(body: RecvStream, most: usize, time: Duration) -> Result<Bytes, Cut> {
    let mut messages = Messages::new(body, most);
    let cut = |broken| match broken {
        Broken::Refused(status) => Cut::Failed(status),
        Broken::Stream(_) => Cut::Gone,
    };
    let reading = async {
        let Some(message) = messages.next().await.map_err(cut)? else {
            return Err(Status::new(Code::Unimplemented, "a request needs one message and has none").into());
        };
        match messages.next().await.map_err(cut)? {
            None => Ok(message),
            Some(_) => {
                Err(Status::new(Code::Unimplemented, "requests of several messages are not supported").into())
            }
        }
    };
    match timeout(time, reading).await {
        Ok(read) => read,
        Err(_) => {
            let why = format!("the request did not arrive within {time:?}");
            Err(Status::new(Code::DeadlineExceeded, why).into())
        }
    }
}

/// The response to the client.
struct Reply {
    respond: SendResponse<Frame>,
    /// Where messages go, once the headers are sent.
    body: Option<SendStream<Frame>>,
    /// Metadata for the headers.
    leading: HeaderMap,
    deadline: Option<Pin<Box<Sleep>>>,
}

impl Reply {
    /// Waits for something, but no longer than the client does.
    async fn until<T>(&mut self, waited_for: impl Future<Output = T>) -> Result<T, Cut> {
        let mut waited_for = std::pin::pin!(waited_for);
        poll_fn(|context| {
            if let Poll::Ready(cut) = self.poll_cut(context) {
                return Poll::Ready(Err(cut));
            }
            waited_for.as_mut().poll(context).map(Ok)
        })
        .await
    }

    /// Says whether the client has cancelled the call or its time is over.
    fn poll_cut(&mut self, context: &mut Context<'_>) -> Poll<Cut> {
        let reset = match &mut self.body {
            Some(body) => body.poll_reset(context),
            None => self.respond.poll_reset(context),
        };
        if reset.is_ready() {
            return Poll::Ready(Cut::Gone);
        }
        match &mut self.deadline {
            Some(deadline) => deadline.as_mut().poll(context).map(|()| Cut::Failed(Status::late())),
            None => Poll::Pending,
        }
    }

    /// Sends leading metadata at once: a client may wait for it.
    fn lead(&mut self, leading: &Metadata) -> Result<(), Cut> {
        if self.body.is_some() {
            return Err(Status::new(Code::Internal, "the callee sent leading metadata too late").into());
        }
        metadata::write(leading, &mut self.leading)?;
        self.open()?;
        Ok(())
    }

    /// The body of the response, whose headers are sent before.
    fn open(&mut self) -> Result<&mut SendStream<Frame>, h2::Error> {
        let body = match self.body.take() {
            Some(body) => body,
            None => self.respond.send_response(headers(std::mem::take(&mut self.leading)), false)?,
        };
        Ok(self.body.insert(body))
    }

    /// Sends a message when there is room for it.
    async fn send(&mut self, message: Bytes) -> Result<(), Cut> {
        let frame = framed(message)?;
        // The connection keeps a message that is longer than the room, and sends it as room comes; the next message waits for that.
        self.open()?.reserve_capacity(1);
        poll_fn(|context| {
            if let Poll::Ready(cut) = self.poll_cut(context) {
                return Poll::Ready(Err(cut));
            }
            match &mut self.body {
                Some(body) if body.capacity() == 0 => match body.poll_capacity(context) {
                    Poll::Ready(Some(Ok(_))) => Poll::Ready(Ok(())),
                    Poll::Ready(_) => Poll::Ready(Err(Cut::Gone)),
                    Poll::Pending => Poll::Pending,
                },
                _ => Poll::Ready(Ok(())),
            }
        })
        .await?;
        Ok(self.open()?.send_data(frame, false)?)
    }

    /// Sends the status. An error without a message before it goes into the headers.
    fn end(mut self, status: Status, trailing: Metadata) -> Result<(), h2::Error> {
        let mut trailers = HeaderMap::new();
        match metadata::write(&trailing, &mut trailers) {
            Ok(()) => metadata::write_status(&status, &mut trailers),
            Err(refused) => {
                trailers.clear();
                metadata::write_status(&refused, &mut trailers);
            }
        }
        if self.body.is_none() && status.code != Code::Ok {
            self.respond.send_response(headers(trailers), true)?;
            return Ok(());
        }
        self.open()?.send_trailers(trailers)
    }
}

/// The headers of a response.
fn headers(mut headers: HeaderMap) -> Response<()> {
    headers.insert(CONTENT_TYPE, APPLICATION_GRPC);
    headers.insert(GRPC_ACCEPT_ENCODING, IDENTITY);
    let mut response = Response::new(());
    *response.headers_mut() = headers;
    response
}
