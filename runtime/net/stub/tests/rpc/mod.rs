//! Part of `tidemill_rpc` that the code needs, within one process.

use std::any::Any;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use tidemill_schema::{Message, from_flat, join, to_segments};

pub(crate) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Runs a future that never waits for anything else.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("nothing waits here"),
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Status {
    pub(crate) message: String,
}

impl Status {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into() }
    }

    pub(crate) fn unimplemented(message: impl Into<String>) -> Self {
        Self::new(message)
    }
}

#[derive(Debug)]
pub(crate) struct Request<T> {
    pub(crate) message: T,
}

impl<T> Request<T> {
    pub(crate) fn into_inner(self) -> T {
        self.message
    }
}

impl<T: Message> From<T> for Request<T> {
    fn from(message: T) -> Self {
        Self { message }
    }
}

#[derive(Debug)]
pub(crate) struct Response<T> {
    pub(crate) message: T,
}

#[derive(Debug)]
pub(crate) struct Streaming<T> {
    pub(crate) messages: Vec<T>,
}

pub(crate) trait Service: Any + Send + Sync {
    fn name(&self) -> &'static str;
    fn descriptors(&self) -> &'static [u8];
    fn call(&self, method: u32, call: Incoming) -> BoxFuture<'static, ()>;
}

#[derive(Default)]
struct Outcome {
    messages: Vec<Bytes>,
    end: Option<Result<(), Status>>,
}

pub(crate) struct Replies<T> {
    outcome: Arc<Mutex<Outcome>>,
    of: PhantomData<fn(T)>,
}

impl<T: Message> Replies<T> {
    pub(crate) fn send(&self, message: &T) {
        self.outcome.lock().unwrap().messages.push(join(&to_segments(message)));
    }
}

pub(crate) struct Incoming {
    request: Bytes,
    outcome: Arc<Mutex<Outcome>>,
}

impl Incoming {
    pub(crate) fn request<T: Message>(&self) -> Result<Request<T>, Status> {
        let message = from_flat(&self.request).map_err(|error| Status::new(error.to_string()))?;
        Ok(Request { message })
    }

    pub(crate) fn replies<T: Message>(&self) -> Replies<T> {
        Replies { outcome: Arc::clone(&self.outcome), of: PhantomData }
    }

    pub(crate) async fn reply<T: Message>(self, reply: Result<Response<T>, Status>) {
        let end = reply.map(|reply| self.replies::<T>().send(&reply.message));
        self.end(end);
    }

    pub(crate) fn end(self, end: Result<(), Status>) {
        self.outcome.lock().unwrap().end = Some(end);
    }

    pub(crate) fn fail(self, status: Status) {
        self.end(Err(status));
    }
}

#[derive(Clone)]
pub(crate) struct Channel(Arc<dyn Service>);

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.name())
    }
}

impl Channel {
    pub(crate) async fn unary<Q: Message, A: Message>(
        &self,
        method: u32,
        request: Request<Q>,
    ) -> Result<Response<A>, Status> {
        let message = self.streaming(method, request).await?.messages.pop().unwrap();
        Ok(Response { message })
    }

    pub(crate) async fn streaming<Q: Message, A: Message>(
        &self,
        method: u32,
        request: Request<Q>,
    ) -> Result<Streaming<A>, Status> {
        let outcome = Arc::new(Mutex::new(Outcome::default()));
        let request = join(&to_segments(&request.message));
        self.0.call(method, Incoming { request, outcome: Arc::clone(&outcome) }).await;
        let outcome = outcome.lock().unwrap();
        outcome.end.clone().unwrap()?;
        let messages = outcome.messages.iter().map(|flat| from_flat(flat).unwrap()).collect();
        Ok(Streaming { messages })
    }
}

pub(crate) struct Net {
    pub(crate) service: Arc<dyn Service>,
}

impl Net {
    pub(crate) async fn bind(&self, service: &str, descriptors: &[u8]) -> Result<Channel, Status> {
        assert_eq!((service, descriptors), (self.service.name(), self.service.descriptors()));
        Ok(Channel(Arc::clone(&self.service)))
    }

    pub(crate) async fn bind_at(
        &self,
        service: &str,
        descriptors: &[u8],
        at: &[&str],
    ) -> Result<Channel, Status> {
        assert_eq!(at, ["here"]);
        self.bind(service, descriptors).await
    }
}
