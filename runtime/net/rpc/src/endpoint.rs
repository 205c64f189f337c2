//! The end of a program: its rings, its heap, and the calls that wait.
mod asking;
mod memory;
mod sending;

pub use memory::Room;

use crate::protocol::{self, HEAP, MOST_BYTES, PLACES, RING, ToProgram, ToService, kind};
use crate::server::{Served, Service};
use crate::{Code, Metadata, Status, packets};
use bytes::Bytes;
use memory::{Freed, Returns, ToReturns};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::collections::{HashMap, VecDeque};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tidemill_shm::descriptor::{Descriptor, DescriptorError};
use tidemill_shm::heap::Heap;
use tidemill_shm::lease::{HoldingError, Holdings};
use tidemill_shm::region::{ReadRegion, Region, SharedRegion};
use tidemill_shm::ring::{Consumer, Producer};
use tidemill_shm::wake::{Bell, Receiver, Sender, Spin, Woken};
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::AbortHandle;

/// Time until the service answers a packet.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time after the start of a service in which programs that serve come back.
const SETTLING: Duration = Duration::from_secs(2);
/// Pause before descriptors that found no place are tried again.
const FULL: Duration = Duration::from_micros(200);

/// A message that came: a reply, or a call.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) metadata: Metadata,
    pub(crate) bytes: Bytes,
}

/// Something that came for a call.
#[derive(Debug)]
pub(crate) enum Event {
    Message(Message),
    End(Status),
}

/// A call of this program that waits for its end.
pub(crate) enum Waiting {
    One(oneshot::Sender<Event>),
    Many(mpsc::UnboundedSender<Event>),
}

/// A call to this program that is being worked on.
struct Working {
    abort: Option<AbortHandle>,
    credit: Arc<tokio::sync::Semaphore>,
}

struct State {
    to: Sender,
    from: Receiver,
    heap: Heap<Region>,
    holdings: Holdings,
    outbox: VecDeque<Descriptor>,
    /// Metadata of the message whose last descriptor has not come yet.
    metadata: Metadata,
    calls: HashMap<u64, (Waiting, Vec<Bytes>)>,
    working: HashMap<u64, Working>,
    /// Replies that the service has not taken yet.
    replies: HashMap<u64, Vec<Bytes>>,
    served: HashMap<u32, Arc<dyn Service>>,
    asked: HashMap<u64, oneshot::Sender<ToProgram>>,
    next: u64,
}

/// The end of a program. It lives until the service is gone.
pub(crate) struct Endpoint {
    pub(crate) id: u64,
    setup: AsyncFd<OwnedFd>,
    bell: AsyncFd<OwnedFd>,
    state: Mutex<State>,
    freed: Arc<Freed>,
    returns: Arc<Returns>,
    /// Wakes who receives: descriptors found no place, or it is over.
    look: Notify,
    /// The time from which on who serves is back after a new start of the service.
    settled: u64,
    is_gone: AtomicBool,
    gone: watch::Sender<bool>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Work that is done without the lock.
enum Deferred {
    One(oneshot::Sender<Event>, Event, Vec<Bytes>),
    Many(mpsc::UnboundedSender<Event>, Event, Vec<Bytes>),
    Start(Arc<dyn Service>, u32, Served),
    Abort(AbortHandle),
    Forget(Vec<Bytes>),
    Refuse(u64, Status, Message),
}

/// Connects without waiting for somebody who reads.
fn dial(socket: &Path) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let end = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    connect(&end, &SocketAddrUnix::new(socket)?)?;
    Ok(end)
}

/// Registers a descriptor with the runtime.
#[expect(deprecated, reason = "what is unsound for other types is sound for a descriptor that is owned")]
fn watched(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::new(descriptor)
}

fn damaged(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what.to_owned())
}

async fn packet(socket: &AsyncFd<OwnedFd>) -> io::Result<Option<(ToProgram, Vec<OwnedFd>)>> {
    loop {
        let mut ready = socket.readable().await?;
        match ready.try_io(|socket| packets::receive(socket.get_ref())) {
            Ok(received) => return received,
            Err(_) => continue,
        }
    }
}

impl Endpoint {
    /// Connects to the service whose calls are at this socket, and begins to receive.
    pub(crate) async fn connect(socket: &Path, program: &str) -> io::Result<Arc<Self>> {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        let setup = watched(dial(socket)?)?;
        let hello = ToService::Hello { version: protocol::VERSION, program: program.to_owned() };
        packets::send(&setup, &hello, &[])?;
        let welcome = tokio::time::timeout(PATIENCE, packet(&setup)).await;
        let (welcome, descriptors) = welcome
            .map_err(|_| io::Error::new(ErrorKind::TimedOut, "the transport service does not answer"))??
            .ok_or_else(|| io::Error::new(ErrorKind::ConnectionReset, "the transport service is gone"))?;
        let age_ms = match welcome {
            ToProgram::Welcome { version: protocol::VERSION, age_ms } => age_ms,
            ToProgram::Refused { reason, .. } => {
                return Err(io::Error::new(ErrorKind::PermissionDenied, reason));
            }
            _ => return Err(damaged("the transport service speaks another version")),
        };
        let [rings, bell]: [OwnedFd; 2] =
            descriptors.try_into().map_err(|_| damaged("the transport service shares no memory"))?;
        let rings = SharedRegion::adopt(rings, protocol::rings_bytes()).map_err(io::Error::other)?;
        let rings = Arc::new(rings);
        let bell = Arc::new(Bell::adopt(bell).map_err(io::Error::other)?);
        let window = |number: usize| rings.window(number * RING, RING).ok_or_else(|| damaged("too small"));
        let to = Producer::new(window(0)?, PLACES).map_err(io::Error::other)?;
        let from = Consumer::new(window(1)?, PLACES).map_err(io::Error::other)?;
        let returns = Arc::new(Returns::default());
        let holdings =
            Holdings::returning(kind::COUNT, MOST_BYTES, Box::new(ToReturns(Arc::clone(&returns))));
        let waker = watched(rustix::io::fcntl_dupfd_cloexec(&*bell, 0)?)?;
        let state = State {
            to: Sender::new(to, Arc::clone(&bell)),
            from: Receiver::new(from, bell, Spin::up_to(0)),
            heap: Heap::new(HEAP).map_err(io::Error::other)?,
            holdings,
            outbox: VecDeque::new(),
            metadata: Metadata::default(),
            calls: HashMap::new(),
            working: HashMap::new(),
            replies: HashMap::new(),
            served: HashMap::new(),
            asked: HashMap::new(),
            next: 1,
        };
        let endpoint = Arc::new(Self {
            id: NUMBERS.fetch_add(1, Ordering::Relaxed),
            setup,
            bell: waker,
            state: Mutex::new(state),
            freed: Arc::default(),
            returns,
            look: Notify::new(),
            settled: monotonic() + SETTLING.saturating_sub(Duration::from_millis(age_ms)).as_nanos() as u64,
            is_gone: AtomicBool::new(false),
            gone: watch::channel(false).0,
        });
        *locked(&endpoint.returns.endpoint) = Arc::downgrade(&endpoint);
        endpoint.grow(&mut endpoint.lock())?;
        tokio::spawn(Self::packets(Arc::clone(&endpoint)));
        tokio::spawn(Self::descriptors(Arc::clone(&endpoint)));
        Ok(endpoint)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    /// Returns whether who serves may not be back yet, as the service was started a moment ago.
    pub(crate) fn is_young(&self) -> bool {
        monotonic() < self.settled
    }

    /// Returns whether the service is gone.
    pub(crate) fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Acquire)
    }

    /// Waits until the service is gone.
    pub(crate) async fn gone(&self) {
        // The sender lives as long as this.
        let _ = self.gone.subscribe().wait_for(|gone| *gone).await;
    }

    /// Hangs up: everything that waits ends.
    pub(crate) fn leave(&self) {
        if self.is_gone.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut state = self.lock();
        let calls = std::mem::take(&mut state.calls);
        let working = std::mem::take(&mut state.working);
        let rest = (std::mem::take(&mut state.replies), std::mem::take(&mut state.asked));
        drop(state);
        for of in working.into_values() {
            of.credit.close();
            of.abort.into_iter().for_each(|abort| abort.abort());
        }
        drop((calls, rest));
        let _ = rustix::net::shutdown(&self.setup, rustix::net::Shutdown::Both);
        self.look.notify_one();
        self.gone.send_replace(true);
    }

    async fn packets(self: Arc<Self>) {
        loop {
            let ready = tokio::select! {
                ready = self.setup.readable() => ready,
                () = self.gone() => return,
            };
            let Ok(mut ready) = ready else { break };
            let received = self.read_packets(&mut self.lock());
            match received {
                Ok(()) => ready.clear_ready(),
                Err(error) => {
                    tracing::debug!("the transport service is lost: {error}");
                    break;
                }
            }
        }
        self.leave();
    }

    /// Reads the packets that are there.
    fn read_packets(&self, state: &mut State) -> io::Result<()> {
        loop {
            let (answer, files) = match packets::receive(&self.setup) {
                Ok(Some(packet)) => packet,
                Ok(None) => return Err(ErrorKind::ConnectionReset.into()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            let id = match &answer {
                ToProgram::Region => {
                    let file = files.into_iter().next().ok_or_else(|| damaged("a region without memory"))?;
                    state.holdings.add(ReadRegion::adopt(file, HEAP.region).map_err(io::Error::other)?);
                    continue;
                }
                ToProgram::Bound { id, .. } | ToProgram::Unknown { id } | ToProgram::Described { id, .. } => {
                    Some(*id)
                }
                ToProgram::Refused { id, .. } => *id,
                ToProgram::Welcome { .. } => None,
            };
            if let Some(asked) = id.and_then(|id| state.asked.remove(&id)) {
                // Who asked may have given up.
                let _ = asked.send(answer);
            }
        }
    }

    /// Takes a payload. The packet of its region may come after it.
    fn payload(&self, state: &mut State, descriptor: &Descriptor) -> io::Result<Bytes> {
        let lease = match state.holdings.take(descriptor) {
            Err(HoldingError::Descriptor(DescriptorError::Region(_))) => {
                self.read_packets(state)?;
                state.holdings.take(descriptor)
            }
            taken => taken,
        };
        Ok(Bytes::from_owner(lease.map_err(io::Error::other)?))
    }

    async fn descriptors(self: Arc<Self>) {
        let mut work = Vec::new();
        while !self.is_gone() {
            let received = self.receive(&mut self.lock(), &mut work);
            let has_work = !work.is_empty();
            for deferred in work.drain(..) {
                self.run(deferred);
            }
            if let Err(error) = received {
                tracing::error!("the transport service is left: {error}");
                break;
            }
            if has_work {
                // Calls that were started have their turn, if there are others.
                tokio::task::consume_budget().await;
                continue;
            }
            let is_full = {
                let mut state = self.lock();
                self.flush(&mut state);
                match state.from.may_sleep() {
                    Ok(true) => !state.outbox.is_empty(),
                    Ok(false) => continue,
                    Err(_) => break,
                }
            };
            tokio::select! {
                ready = self.bell.readable() => {
                    let Ok(mut ready) = ready else { break };
                    match self.lock().from.woke() {
                        Ok(Woken::Gone) | Err(_) => break,
                        Ok(_) => ready.clear_ready(),
                    }
                }
                () = self.look.notified() => {}
                () = tokio::time::sleep(FULL), if is_full => {}
            }
        }
        self.leave();
    }

    /// Takes everything that came.
    fn receive(&self, state: &mut State, work: &mut Vec<Deferred>) -> io::Result<()> {
        // As many as fit, so that others have their turn.
        for _ in 0..PLACES {
            let Some(descriptor) = state.from.receive().map_err(io::Error::other)? else { break };
            if let Some(deferred) = self.take(state, &descriptor)? {
                work.push(deferred);
            }
        }
        Ok(())
    }

    fn take(&self, state: &mut State, descriptor: &Descriptor) -> io::Result<Option<Deferred>> {
        let has_payload =
            matches!(descriptor.kind, kind::METADATA | kind::CALL | kind::ITEM | kind::REPLY | kind::END);
        let bytes = match has_payload && (descriptor.lease, descriptor.length) != (0, 0) {
            true => self.payload(state, descriptor)?,
            false => Bytes::new(),
        };
        let tag = descriptor.tag;
        if descriptor.kind == kind::METADATA {
            state.metadata = Metadata::from_bytes(&bytes).unwrap_or_default();
            return Ok(Some(Deferred::Forget(vec![bytes])));
        }
        let metadata = if has_payload { std::mem::take(&mut state.metadata) } else { Metadata::default() };
        let event = match descriptor.kind {
            kind::CALL => {
                let timeout = (descriptor.deadline != 0)
                    .then(|| Duration::from_nanos(descriptor.deadline.saturating_sub(monotonic())));
                let message = Message { metadata, bytes };
                let Some(service) = state.served.get(&descriptor.lane).map(Arc::clone) else {
                    let status = Status::unavailable("the service is not served here any more");
                    return Ok(Some(Deferred::Refuse(tag, status, message)));
                };
                let credit = Arc::new(tokio::sync::Semaphore::new(protocol::CREDIT as usize));
                state.working.insert(tag, Working { abort: None, credit: Arc::clone(&credit) });
                let served = Served { tag, message, timeout, credit };
                let method = u32::try_from(descriptor.sequence).unwrap_or(u32::MAX);
                return Ok(Some(Deferred::Start(service, method, served)));
            }
            kind::CANCEL => {
                let working = state.working.remove(&tag);
                let abort = working.and_then(|of| {
                    // Who waits for credit in a task of its own learns it, too.
                    of.credit.close();
                    of.abort
                });
                return Ok(abort.map(Deferred::Abort));
            }
            kind::MORE => {
                if let Some(of) = state.working.get(&tag) {
                    of.credit.add_permits(descriptor.sequence.min(u64::from(protocol::CREDIT)) as usize);
                }
                return Ok(None);
            }
            kind::TAKEN => return Ok(state.replies.remove(&tag).map(Deferred::Forget)),
            kind::ITEM | kind::REPLY => Event::Message(Message { metadata, bytes }),
            kind::END => {
                let message = String::from_utf8_lossy(&bytes).into_owned();
                let status = Status { code: Code::from_number(descriptor.class), message, metadata };
                let (waiting, mut kept) = match state.calls.remove(&tag) {
                    Some(of) => of,
                    None => return Ok(Some(Deferred::Forget(vec![bytes]))),
                };
                kept.push(bytes);
                return Ok(Some(match waiting {
                    Waiting::One(one) => Deferred::One(one, Event::End(status), kept),
                    Waiting::Many(many) => Deferred::Many(many, Event::End(status), kept),
                }));
            }
            other => return Err(damaged(&format!("a descriptor of kind {other}"))),
        };
        let is_last = descriptor.kind == kind::REPLY;
        let deferred = match state.calls.get(&tag) {
            Some((Waiting::Many(many), _)) => Deferred::Many(many.clone(), event, Vec::new()),
            Some((Waiting::One(_), _)) if is_last => match state.calls.remove(&tag) {
                Some((Waiting::One(one), kept)) => Deferred::One(one, event, kept),
                _ => return Ok(None),
            },
            // Nobody waits any more.
            _ => match event {
                Event::Message(message) => Deferred::Forget(vec![message.bytes]),
                Event::End(_) => return Ok(None),
            },
        };
        if is_last && matches!(deferred, Deferred::Many(..)) {
            state.calls.remove(&tag);
        }
        Ok(Some(deferred))
    }

    fn run(self: &Arc<Self>, deferred: Deferred) {
        match deferred {
            Deferred::One(one, event, kept) => {
                // Who does not wait any more has sent a cancel.
                let _ = one.send(event);
                drop(kept);
            }
            Deferred::Many(many, event, kept) => {
                let _ = many.send(event);
                drop(kept);
            }
            Deferred::Start(service, method, served) => {
                let tag = served.tag;
                let call = crate::server::Incoming::new(Arc::clone(self), served);
                let task = tokio::spawn(service.call(method, call));
                if let Some(of) = self.lock().working.get_mut(&tag) {
                    of.abort = Some(task.abort_handle());
                }
            }
            Deferred::Abort(handle) => handle.abort(),
            Deferred::Forget(bytes) => drop(bytes),
            Deferred::Refuse(tag, status, message) => {
                drop(message);
                self.end(tag, &status);
            }
        }
    }
}

/// The status of calls whose service went away.
pub(crate) fn lost() -> Status {
    Status::unavailable("the transport service went away; the call may have been made")
}

/// The time of the deadlines, nanoseconds: the same for all processes of a host.
pub(crate) fn monotonic() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}
