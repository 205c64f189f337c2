//! Calls to one place, over a connection that stays open between them.
use std::io::{self, ErrorKind, Read};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::Response;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use crate::call::{Answer, Call, CallError, broken, failed, io_within, timed_out};
use crate::channel::{Channel, Sender};
use crate::line::Place;
use crate::reply::Reply;

/// Idle time after which a connection is not used again, because routers forget it silently.
const LONGEST_IDLE: Duration = Duration::from_secs(30);
/// Age after which a new connection replaces one, so that a name that changed its machine is resolved again.
const LONGEST_LIFE: Duration = Duration::from_secs(600);
/// Longest time that an answer is waited for, a year: a clock reaches it.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);
/// Bytes of the head of an answer, and of what is read at once.
const BUFFER: usize = 32 << 10;
/// Bytes of a body that are read at once to be sent.
const PART: usize = 64 << 10;

/// Whether a call may be sent once more when a connection that was open before turns out to be gone: it may have been received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeat {
    /// Twice is like once.
    Allowed,
    /// Twice is not like once.
    Refused,
}

/// A body that is read while it is sent.
pub struct Payload<'a> {
    /// Gives the bytes.
    pub from: &'a mut dyn Read,
    /// How many there are; fewer are an error.
    pub length: u64,
}

type Outgoing = UnsyncBoxBody<Bytes, io::Error>;

/// Drives all connections of this process.
static RUNTIME: LazyLock<io::Result<Runtime>> = LazyLock::new(|| {
    Builder::new_multi_thread().worker_threads(1).thread_name("tm-http-client").enable_all().build()
});

pub(crate) fn runtime() -> io::Result<&'static Runtime> {
    RUNTIME
        .as_ref()
        .map_err(|error| io::Error::new(error.kind(), format!("no thread for connections: {error}")))
}

/// Sends calls to one place. One connection is kept open between calls; calls at the same time have connections of their own. A
/// connection on which anything failed is given up.
pub struct Caller {
    place: Place,
    address: String,
    idle: Mutex<Option<Idle>>,
    /// Connections that were given up by [`Caller::reconnect`] are of an older age.
    age: AtomicU64,
    made: AtomicU64,
    /// Limits how long a connection is waited for; none: as long as for the answer.
    connecting: Option<Duration>,
}

pub(crate) struct Idle {
    sender: SendRequest<Outgoing>,
    /// Gives the error that ended the connection.
    fault: oneshot::Receiver<hyper::Error>,
    made: Instant,
    used: Instant,
    age: u64,
}

impl std::fmt::Debug for Caller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Caller").field("place", &self.address).finish_non_exhaustive()
    }
}

impl Caller {
    /// Connects nothing yet.
    pub fn new(place: Place) -> Self {
        let (idle, age, made) = (Mutex::default(), AtomicU64::new(0), AtomicU64::new(0));
        Self { address: place.address(), place, idle, age, made, connecting: None }
    }

    /// Limits how long a connection is waited for: another peer may be asked then.
    #[must_use]
    pub fn connecting_within(self, limit: Duration) -> Self {
        Self { connecting: Some(limit), ..self }
    }

    /// `HOST:PORT`, or the path of the socket.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Connections that were made so far.
    pub fn connections(&self) -> u64 {
        self.made.load(Ordering::Relaxed)
    }

    /// Has the next call make a connection: with a certificate that was renewed, for instance.
    pub fn reconnect(&self) {
        self.age.fetch_add(1, Ordering::AcqRel);
        *self.idle.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Sends a call and waits for the whole answer.
    ///
    /// # Errors
    /// See [`CallError`]. An answer that refuses is an answer.
    pub fn send(
        self: &Arc<Self>,
        call: &Call<'_>,
        timeout: Duration,
        repeat: Repeat,
    ) -> Result<Answer, CallError> {
        self.open(call, timeout, repeat)?.whole()
    }

    /// Sends a call and waits for the head of the answer; its body is read from the reply.
    ///
    /// # Errors
    /// See [`CallError`]. An answer that refuses is an answer.
    pub fn open(
        self: &Arc<Self>,
        call: &Call<'_>,
        timeout: Duration,
        repeat: Repeat,
    ) -> Result<Reply, CallError> {
        let timeout = timeout.min(LONGEST);
        self.block(timeout, async |begun, deadline| {
            let body = Bytes::copy_from_slice(call.body);
            let request = || {
                let body: Outgoing = Full::new(body.clone()).map_err(|never| match never {}).boxed_unsync();
                call.request(self.place.host(), body, call.body.len() as u64)
            };
            let first = request()?; // a call that cannot be written dials no one
            if let Some(mut idle) = self.take()
                && let Ok(Ok(())) = timeout_at(deadline, idle.sender.ready()).await
            {
                match timeout_at(deadline, idle.sender.send_request(request()?)).await {
                    Ok(Ok(response)) => return Ok(self.reply(idle, response, begun, timeout)),
                    // The peer had ended the connection before it received the call, as far as can be known.
                    Ok(Err(error)) if repeat == Repeat::Allowed || error.is_canceled() => {
                        tracing::trace!("{}: another connection is made: {error}", self.address);
                    }
                    Ok(Err(error)) => return Err(failed(&self.address, &error)),
                    Err(_) => return Err(broken(&self.address, timed_out())),
                }
            }
            let mut idle = self.connect(deadline).await?;
            let response = timeout_at(deadline, idle.sender.send_request(first)).await;
            self.answered(idle, response, begun, deadline, timeout).await
        })
    }

    /// Sends a call with a body that is read while it is sent: in place of its own. It gets a new connection, because a body is read once.
    ///
    /// # Errors
    /// As [`Caller::open`].
    pub fn upload(
        self: &Arc<Self>,
        call: &Call<'_>,
        body: Payload<'_>,
        timeout: Duration,
    ) -> Result<Answer, CallError> {
        let timeout = timeout.min(LONGEST);
        let reply = self.block(timeout, async |begun, deadline| {
            let (sender, channel) = Channel::new(2);
            let request = call.request(self.place.host(), channel.boxed_unsync(), body.length)?;
            let mut idle = self.connect(deadline).await?;
            let answer = idle.sender.send_request(request);
            let exchange = async {
                let mut answer = std::pin::pin!(answer);
                tokio::select! {
                    biased;
                    answer = &mut answer => answer,
                    () = feed(sender, body) => answer.await,
                }
            };
            let response = timeout_at(deadline, exchange).await;
            self.answered(idle, response, begun, deadline, timeout).await
        })?;
        reply.whole()
    }

    fn block<T>(
        &self,
        timeout: Duration,
        act: impl AsyncFnOnce(Instant, Instant) -> Result<T, CallError>,
    ) -> Result<T, CallError> {
        let runtime =
            runtime().map_err(|source| CallError::Unreachable { place: self.address.clone(), source })?;
        runtime.block_on(async {
            let begun = Instant::now();
            act(begun, begun + timeout).await
        })
    }

    async fn answered<E>(
        self: &Arc<Self>,
        idle: Idle,
        response: Result<Result<Response<Incoming>, hyper::Error>, E>,
        begun: Instant,
        deadline: Instant,
        timeout: Duration,
    ) -> Result<Reply, CallError> {
        match response {
            Ok(Ok(response)) => Ok(self.reply(idle, response, begun, timeout)),
            // A refusal of the certificate that was shown may arrive before the request is sent. Then only the connection knows why.
            Ok(Err(error)) if io_within(&error).is_none() => {
                let Idle { sender, fault, .. } = idle;
                drop(sender); // so that the connection ends
                let fault = timeout_at(deadline, fault).await;
                let known = fault.as_ref().ok().and_then(|fault| fault.as_ref().ok());
                Err(failed(&self.address, known.unwrap_or(&error)))
            }
            Ok(Err(error)) => Err(failed(&self.address, &error)),
            Err(_) => Err(broken(&self.address, timed_out())),
        }
    }

    fn reply(
        self: &Arc<Self>,
        idle: Idle,
        response: Response<Incoming>,
        begun: Instant,
        timeout: Duration,
    ) -> Reply {
        Reply::new(Arc::clone(self), idle, response, begun, timeout)
    }

    async fn connect(&self, deadline: Instant) -> Result<Idle, CallError> {
        let (age, made) = (self.age.load(Ordering::Acquire), Instant::now());
        let line = self.place.connect(deadline, self.connecting.map(|limit| made + limit)).await?;
        let shaken = http1::Builder::new()
            .title_case_headers(true)
            .max_buf_size(BUFFER)
            .handshake::<_, Outgoing>(TokioIo::new(line))
            .await;
        let (sender, connection) = shaken.map_err(|error| failed(&self.address, &error))?;
        let (report, fault) = oneshot::channel();
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                let _ = report.send(error); // the caller may be gone
            }
        });
        self.made.fetch_add(1, Ordering::Relaxed);
        Ok(Idle { sender, fault, made, used: made, age })
    }

    /// The connection that is open, if it can still be used.
    fn take(&self) -> Option<Idle> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        let is_young = idle.made.elapsed() < LONGEST_LIFE && idle.used.elapsed() < LONGEST_IDLE;
        (is_young && !idle.sender.is_closed()).then_some(idle)
    }

    /// Keeps a connection whose answer was read to its end, unless the peer ends it.
    pub(crate) fn keep(&self, mut idle: Idle) {
        if idle.age == self.age.load(Ordering::Acquire) && !idle.sender.is_closed() {
            idle.used = Instant::now();
            *self.idle.lock().unwrap_or_else(PoisonError::into_inner) = Some(idle);
        }
    }
}

/// Reads on the thread that called, and sends.
async fn feed(mut sender: Sender, body: Payload<'_>) {
    let mut left = body.length;
    while left > 0 {
        let mut part = vec![0; PART.min(usize::try_from(left).unwrap_or(PART))];
        let read = match body.from.read(&mut part) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            read => read,
        };
        match read {
            Ok(count) => {
                part.truncate(count);
                left -= count as u64;
                if sender.send_data(part.into()).await.is_err() {
                    return; // the peer has answered, or is gone
                }
            }
            Err(error) => return sender.abort(error),
        }
    }
}
