//! The side that is called.
use crate::endpoint::{Endpoint, Message};
use crate::{BoxFuture, Code, Metadata, Request, Response, Status};
use bytes::Bytes;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;
use tidemill_schema::{from_flat, to_segments};
use tokio::sync::Semaphore;

/// A service that is served. Stubs implement it.
pub trait Service: Send + Sync + 'static {
    /// Its full name: `shop.Prices`.
    fn name(&self) -> &str;
    /// Its schema: a set of file descriptors, as bytes of protobuf.
    fn descriptors(&self) -> &[u8];
    /// Works on a call of the method with this number. The future is dropped when nobody waits any more.
    fn call(&self, method: u32, call: Incoming) -> BoxFuture<'static, ()>;
}

/// A call as it came.
pub(crate) struct Served {
    pub(crate) tag: u64,
    pub(crate) message: Message,
    pub(crate) timeout: Option<Duration>,
    pub(crate) credit: Arc<Semaphore>,
}

/// The right to answer a call, which is used or reported as missing.
struct Answering {
    endpoint: Arc<Endpoint>,
    tag: u64,
    is_over: std::sync::atomic::AtomicBool,
}

impl Answering {
    fn end(&self, status: &Status) {
        if !self.is_over.swap(true, std::sync::atomic::Ordering::AcqRel) {
            self.endpoint.end(self.tag, status);
        }
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.end(&Status::internal("the method ended without an answer"));
    }
}

/// A call that came, with the right to answer it.
pub struct Incoming {
    answering: Arc<Answering>,
    message: Message,
    timeout: Option<Duration>,
    credit: Arc<Semaphore>,
}

impl Incoming {
    pub(crate) fn new(endpoint: Arc<Endpoint>, served: Served) -> Self {
        let Served { tag, message, timeout, credit } = served;
        let answering = Arc::new(Answering { endpoint, tag, is_over: false.into() });
        Self { answering, message, timeout, credit }
    }

    /// Reads the request. Its long `bytes` stay where they lie in shared memory.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] when it is no such message.
    pub fn request<T: tidemill_schema::Message>(&self) -> Result<Request<T>, Status> {
        let message = from_flat(&self.message.bytes)
            .map_err(|error| Status::invalid_argument(format!("the request: {error}")))?;
        let metadata = self.message.metadata.clone();
        Ok(Request { message, metadata, timeout: self.timeout })
    }

    /// Returns the request in flat form.
    pub fn flat(&self) -> Request<Bytes> {
        Request {
            message: self.message.bytes.clone(),
            metadata: self.message.metadata.clone(),
            timeout: self.timeout,
        }
    }

    /// Answers with one reply, or with the reason why there is none.
    pub async fn reply<T: tidemill_schema::Message>(self, reply: Result<Response<T>, Status>) {
        self.reply_flat(
            reply.map(|of| Response { message: to_segments(&of.message), metadata: of.metadata }),
        )
        .await;
    }

    /// Answers with one reply in flat form, in parts.
    pub async fn reply_flat(self, reply: Result<Response<Vec<Bytes>>, Status>) {
        let Self { answering, message, .. } = self;
        drop(message);
        let sent = match reply {
            Ok(Response { message, metadata }) => {
                answering.endpoint.reply(answering.tag, (&metadata, message), true).await
            }
            Err(status) => Err(status),
        };
        match sent {
            Ok(()) => answering.is_over.store(true, std::sync::atomic::Ordering::Release),
            Err(status) => answering.end(&status),
        }
    }

    /// Ends the call without a reply.
    pub fn fail(self, status: Status) {
        self.answering.end(&status);
    }

    /// The replies of a stream.
    pub fn replies<T>(&self) -> Replies<T> {
        Replies {
            answering: Arc::clone(&self.answering),
            credit: Arc::clone(&self.credit),
            message: PhantomData,
        }
    }

    /// Ends a stream.
    pub fn end(self, end: Result<(), Status>) {
        let status = end.err().unwrap_or_else(|| Status::new(Code::Ok, ""));
        self.answering.end(&status);
    }
}

/// Sends the replies of a stream.
pub struct Replies<T> {
    answering: Arc<Answering>,
    credit: Arc<Semaphore>,
    message: PhantomData<fn(T)>,
}

impl<T: tidemill_schema::Message> Replies<T> {
    /// Sends one; waits while the client has not read those before.
    ///
    /// # Errors
    /// [`Code::Cancelled`] when nobody waits any more.
    pub async fn send(&self, reply: T) -> Result<(), Status> {
        self.send_flat(&Metadata::default(), to_segments(&reply)).await
    }
}

impl<T> Replies<T> {
    /// Sends one in flat form, in parts.
    ///
    /// # Errors
    /// As [`Replies::send`].
    pub async fn send_flat(&self, metadata: &Metadata, parts: Vec<Bytes>) -> Result<(), Status> {
        match self.credit.acquire().await {
            Ok(permit) => permit.forget(),
            Err(_) => return Err(Status::new(Code::Cancelled, "the call is over")),
        }
        self.answering.endpoint.reply(self.answering.tag, (metadata, parts), false).await
    }
}

impl std::fmt::Debug for Incoming {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Incoming").field("call", &self.answering.tag).finish_non_exhaustive()
    }
}
