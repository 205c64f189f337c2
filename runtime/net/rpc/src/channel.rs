//! The side that calls.
use crate::endpoint::{Endpoint, Event, Waiting, lost, monotonic};
use crate::net::PAUSE;
use crate::protocol::{CREDIT, ToService};
use crate::{Code, Metadata, Net, Request, Response, Room, Status};
use bytes::Bytes;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tidemill_schema::{Message, from_flat, to_segments};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

/// Replies that were read before more may come.
const BATCH: u32 = CREDIT / 2;

/// A service that is called.
#[derive(Clone)]
pub struct Channel(Arc<Inner>);

struct Inner {
    net: Net,
    service: String,
    schema: Bytes,
    digest: String,
    at: Vec<String>,
    /// Whether each method may be called again when it is not known whether it was called.
    idempotent: Vec<bool>,
    /// The binding, with the number of the endpoint that it belongs to.
    bound: Mutex<Option<(u64, u32)>>,
    binding: tokio::sync::Mutex<()>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        let bound = self.bound.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((id, lane)) = bound {
            self.net.leave(id, lane);
        }
    }
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Channel").field("service", &self.0.service).field("at", &self.0.at).finish()
    }
}

/// Cancels a call that is dropped before its end.
struct Cancel {
    endpoint: Arc<Endpoint>,
    tag: u64,
    is_armed: bool,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Cancel {
    fn drop(&mut self) {
        if self.is_armed {
            self.endpoint.cancel(self.tag);
        }
    }
}

/// Returns the deadline of a timeout that begins now; 0: none.
fn deadline(timeout: Option<Duration>) -> u64 {
    let nanoseconds = timeout.map(|timeout| u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX));
    nanoseconds.map_or(0, |nanoseconds| monotonic().saturating_add(nanoseconds))
}

async fn within<T>(deadline: u64, work: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    if deadline == 0 {
        return work.await;
    }
    let left = Duration::from_nanos(deadline.saturating_sub(monotonic()));
    tokio::time::timeout(left, work).await.unwrap_or_else(|_| Err(Status::too_late()))
}

impl Channel {
    pub(crate) async fn bind(net: Net, service: &str, schema: Bytes, at: &[&str]) -> Result<Self, Status> {
        let parsed = tidemill_schema::Schema::from_bytes(&schema)
            .map_err(|error| Status::internal(format!("the schema of {service}: {error}")))?;
        let found = parsed
            .service(service)
            .ok_or_else(|| Status::unimplemented(format!("the schema has no service {service}")))?;
        let idempotent = found.methods.iter().map(|method| method.is_idempotent).collect();
        let inner = Inner {
            net,
            service: service.to_owned(),
            schema: schema.clone(),
            digest: tidemill_schema::Hash::of(&schema).to_string(),
            at: at.iter().map(|&at| at.to_owned()).collect(),
            idempotent,
            bound: Mutex::default(),
            binding: tokio::sync::Mutex::default(),
        };
        let channel = Self(Arc::new(inner));
        channel.lane().await?;
        Ok(channel)
    }

    /// Returns memory for the value of a `bytes` field: what lies there is not copied when it is sent. Waits while all is in use.
    ///
    /// # Errors
    /// There is no service, or a message cannot be as long.
    pub async fn room(&self, length: usize) -> Result<Room, Status> {
        self.0.net.endpoint().await?.room(length).await
    }

    /// The endpoint and the number of the binding there.
    async fn lane(&self) -> Result<(Arc<Endpoint>, u32), Status> {
        let bound = |id: u64| {
            let bound = *self.0.bound.lock().unwrap_or_else(PoisonError::into_inner);
            bound.filter(|(of, _)| *of == id).map(|(_, lane)| lane)
        };
        let endpoint = self.0.net.endpoint().await?;
        if let Some(lane) = bound(endpoint.id) {
            return Ok((endpoint, lane));
        }
        let _one_at_a_time = self.0.binding.lock().await;
        if let Some(lane) = bound(endpoint.id) {
            return Ok((endpoint, lane));
        }
        let Inner { service, digest, at, schema, .. } = &*self.0;
        let make =
            |id| ToService::Bind { id, service: service.clone(), schema: digest.clone(), at: at.clone() };
        let lane = loop {
            match endpoint.ask(make, schema, None).await {
                Err(status)
                    if status.code == Code::Unavailable && endpoint.is_young() && !endpoint.is_gone() => {}
                asked => break asked?,
            }
            tokio::time::sleep(PAUSE).await;
        };
        *self.0.bound.lock().unwrap_or_else(PoisonError::into_inner) = Some((endpoint.id, lane));
        Ok((endpoint, lane))
    }

    /// Calls a method with one reply, by its number.
    ///
    /// # Errors
    /// The status that the service, a policy or the transport ended it with.
    pub async fn unary<Q: Message, R: Message>(
        &self,
        method: u32,
        request: Request<Q>,
    ) -> Result<Response<R>, Status> {
        let Request { message, metadata, timeout } = request;
        let request = Request { message: to_segments(&message), metadata, timeout };
        let Response { message, metadata } = self.unary_flat(method, request).await?;
        let message = from_flat(&message).map_err(|error| Status::internal(format!("the reply: {error}")))?;
        Ok(Response { message, metadata })
    }

    /// Calls a method with one reply, with messages in flat form; the request is in parts.
    ///
    /// # Errors
    /// As [`Channel::unary`].
    pub async fn unary_flat(
        &self,
        method: u32,
        request: Request<Vec<Bytes>>,
    ) -> Result<Response<Bytes>, Status> {
        let Request { message, metadata, timeout } = request;
        let deadline = deadline(timeout);
        let may_repeat = self.0.idempotent.get(method as usize).is_some_and(|of| *of);
        let work = async {
            loop {
                let is_young = self.0.net.is_young();
                match self.once(method, &metadata, message.clone(), deadline).await {
                    // Who serves it comes back in a moment.
                    Err(status) if may_repeat && status.code == Code::Unavailable && is_young => {
                        tokio::time::sleep(PAUSE).await;
                    }
                    // The service that had the call is gone; the next one, or a status, follows.
                    Ok(None) if may_repeat => {}
                    Ok(None) => return Err(lost()),
                    Ok(Some(reply)) => return Ok(reply),
                    Err(status) => return Err(status),
                }
            }
        };
        within(deadline, work).await
    }

    /// Makes a call. None: the service went away.
    async fn once(
        &self,
        method: u32,
        metadata: &Metadata,
        parts: Vec<Bytes>,
        deadline: u64,
    ) -> Result<Option<Response<Bytes>>, Status> {
        let (endpoint, lane) = self.lane().await?;
        let permit = self.0.net.permit().await?;
        let (send, receive) = oneshot::channel();
        let tag = endpoint.call((lane, method), (metadata, parts), deadline, Waiting::One(send)).await?;
        let mut cancel = Cancel { endpoint, tag, is_armed: true, _permit: permit };
        let event = receive.await;
        cancel.is_armed = false;
        match event {
            Ok(Event::Message(message)) => {
                Ok(Some(Response { message: message.bytes, metadata: message.metadata }))
            }
            Ok(Event::End(status)) if status.code == Code::Ok => {
                Err(Status::internal("the call ended without a reply"))
            }
            Ok(Event::End(status)) => Err(status),
            Err(_) => Ok(None),
        }
    }

    /// Calls a method with a stream of replies, by its number.
    ///
    /// # Errors
    /// The call cannot be made. Other ends come with the stream.
    pub async fn streaming<Q: Message, R: Message>(
        &self,
        method: u32,
        request: Request<Q>,
    ) -> Result<Streaming<R>, Status> {
        let Request { message, metadata, timeout } = request;
        let request = Request { message: to_segments(&message), metadata, timeout };
        Ok(Streaming(self.streaming_flat(method, request).await?, PhantomData))
    }

    /// As [`Channel::streaming`], with messages in flat form; the request is in parts.
    ///
    /// # Errors
    /// As [`Channel::streaming`].
    pub async fn streaming_flat(
        &self,
        method: u32,
        request: Request<Vec<Bytes>>,
    ) -> Result<FlatStreaming, Status> {
        let Request { message, metadata, timeout } = request;
        let deadline = deadline(timeout);
        let work = async {
            let (endpoint, lane) = self.lane().await?;
            let permit = self.0.net.permit().await?;
            let (send, receive) = mpsc::unbounded_channel();
            let waiting = Waiting::Many(send);
            let tag = endpoint.call((lane, method), (&metadata, message), deadline, waiting).await?;
            let cancel = Cancel { endpoint, tag, is_armed: true, _permit: permit };
            Ok(FlatStreaming { receive, cancel, deadline, read: 0, _channel: self.clone() })
        };
        within(deadline, work).await
    }
}

/// The replies of a call in flat form. Dropped before its end, it cancels the call.
pub struct FlatStreaming {
    receive: mpsc::UnboundedReceiver<Event>,
    cancel: Cancel,
    deadline: u64,
    read: u32,
    /// Its binding is left with the last of them.
    _channel: Channel,
}

impl FlatStreaming {
    /// The next reply; none: that was all.
    ///
    /// # Errors
    /// The status that the stream ended with.
    pub async fn next(&mut self) -> Result<Option<Response<Bytes>>, Status> {
        if !self.cancel.is_armed {
            return Ok(None);
        }
        let receive = &mut self.receive;
        let event = within(self.deadline, async { Ok(receive.recv().await) }).await?;
        match event {
            Some(Event::Message(message)) => {
                self.read += 1;
                if self.read >= BATCH {
                    self.cancel.endpoint.more(self.cancel.tag, self.read);
                    self.read = 0;
                }
                Ok(Some(Response { message: message.bytes, metadata: message.metadata }))
            }
            Some(Event::End(status)) => {
                self.cancel.is_armed = false;
                if status.code == Code::Ok { Ok(None) } else { Err(status) }
            }
            None => {
                self.cancel.is_armed = false;
                Err(lost())
            }
        }
    }
}

impl std::fmt::Debug for FlatStreaming {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FlatStreaming").finish_non_exhaustive()
    }
}

/// The replies of a call. Dropped before its end, it cancels the call.
#[derive(Debug)]
pub struct Streaming<R>(FlatStreaming, PhantomData<fn() -> R>);

impl<R: Message> Streaming<R> {
    /// The next reply; none: that was all.
    ///
    /// # Errors
    /// The status that the stream ended with.
    pub async fn next(&mut self) -> Result<Option<R>, Status> {
        match self.0.next().await? {
            Some(reply) => from_flat(&reply.message)
                .map(Some)
                .map_err(|error| Status::internal(format!("a reply: {error}"))),
            None => Ok(None),
        }
    }
}
