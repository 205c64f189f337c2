//! The end of a program: its rings, its heap, and the calls that wait.
use crate::protocol::{self, HEAP, MOST_BYTES, MOST_PARTS, PLACES, RING, ToProgram, ToService, kind};
use crate::server::{Served, Service};
use crate::{Code, Metadata, Status, packets};
use bytes::Bytes;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::collections::{HashMap, VecDeque};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tidemill_shm::descriptor::{Descriptor, DescriptorError};
use tidemill_shm::heap::{Block, Buffer, Heap};
use tidemill_shm::lease::{HoldingError, Holdings, Returning};
use tidemill_shm::region::{ReadRegion, Region, SharedRegion};
use tidemill_shm::ring::{Consumer, Producer};
use tidemill_shm::wake::{Bell, Receiver, Sender, Spin, Woken};
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::AbortHandle;

/// Time until the service answers a packet.
const PATIENCE: Duration = Duration::from_secs(5);
/// Pause before descriptors that found no place are tried again.
const FULL: Duration = Duration::from_micros(200);
/// Payloads that were read and are given back together, and their bytes: what is more is given back at once.
const RETURNS: usize = 32;
const RETURNED_BYTES: u64 = 1 << 20;

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
    is_gone: AtomicBool,
    gone: watch::Sender<bool>,
}

/// Blocks of the own heap that nobody reads any more.
#[derive(Default)]
struct Freed {
    blocks: Mutex<Vec<Block>>,
    some: Notify,
}

/// A block of the own heap, as long as somebody reads it.
struct Frozen {
    buffer: Option<Buffer>,
    freed: Arc<Freed>,
}

impl AsRef<[u8]> for Frozen {
    fn as_ref(&self) -> &[u8] {
        self.buffer.as_deref().unwrap_or_default()
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            locked(&self.freed.blocks).push(buffer.into_block());
            self.freed.some.notify_waiters();
        }
    }
}

/// Payloads of the service that nobody reads any more.
#[derive(Default)]
struct Returns {
    waiting: Mutex<(Vec<Descriptor>, u64)>,
    endpoint: Mutex<Weak<Endpoint>>,
}

/// The part that leases have, which are dropped anywhere.
struct ToReturns(Arc<Returns>);

impl Returning for ToReturns {
    fn give(&mut self, message: Descriptor) {
        let is_enough = {
            let mut waiting = locked(&self.0.waiting);
            waiting.1 += u64::from(message.length);
            waiting.0.push(message);
            waiting.0.len() >= RETURNS || waiting.1 >= RETURNED_BYTES
        };
        let endpoint = is_enough.then(|| locked(&self.0.endpoint).upgrade()).flatten();
        if let Some(endpoint) = endpoint {
            match endpoint.state.try_lock() {
                Ok(mut state) => endpoint.flush(&mut state),
                // Who has it may be this thread.
                Err(_) => endpoint.look.notify_one(),
            }
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Memory for the value of a `bytes` field, which reaches the other program without a copy in this one.
pub struct Room(Frozen);

impl Room {
    /// Returns the bytes, to put them into messages. They are not written any more.
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self.0)
    }
}

impl std::ops::Deref for Room {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.as_ref()
    }
}

impl std::ops::DerefMut for Room {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.0.buffer.as_deref_mut().unwrap_or_default()
    }
}

impl std::fmt::Debug for Room {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Room").field("bytes", &self.len()).finish()
    }
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
        match welcome {
            ToProgram::Welcome { version: protocol::VERSION } => {}
            ToProgram::Refused { reason, .. } => {
                return Err(io::Error::new(ErrorKind::PermissionDenied, reason));
            }
            _ => return Err(damaged("the transport service speaks another version")),
        }
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

    /// Sends what is waiting, as far as there are places.
    fn flush(&self, state: &mut State) {
        if state.outbox.is_empty() {
            let mut waiting = locked(&self.returns.waiting);
            if waiting.0.is_empty() {
                return;
            }
            waiting.1 = 0;
            let returns = waiting.0.drain(..).filter(|message| message.lease != 0);
            state.outbox.extend(returns);
        }
        while let Some(descriptor) = state.outbox.front() {
            match state.to.send(descriptor) {
                Ok(true) => drop(state.outbox.pop_front()),
                Ok(false) => return self.look.notify_one(),
                // The ring is damaged: the service is left by who receives.
                Err(_) => return state.outbox.clear(),
            }
        }
    }

    /// Sends a message: its metadata, its parts, and the descriptor that says what it is.
    fn post(&self, state: &mut State, last: Descriptor, metadata: Option<&Bytes>, parts: &[Bytes]) {
        // Payloads that were read go with it, before it.
        let mut waiting = locked(&self.returns.waiting);
        waiting.1 = 0;
        state.outbox.extend(waiting.0.drain(..).filter(|message| message.lease != 0));
        drop(waiting);
        let describe = |heap: &Heap<Region>, bytes: &Bytes, kind| {
            if bytes.is_empty() { Some(Descriptor { kind, ..last }) } else { heap.describe(bytes, kind) }
        };
        if let Some(metadata) = metadata {
            state.outbox.extend(describe(&state.heap, metadata, kind::METADATA));
        }
        let Some((root, rest)) = parts.split_first() else {
            state.outbox.push_back(last);
            return self.flush(state);
        };
        for part in rest {
            state.outbox.extend(describe(&state.heap, part, kind::PART));
        }
        let at = describe(&state.heap, root, last.kind).unwrap_or_default();
        state.outbox.push_back(Descriptor {
            region: at.region,
            offset: at.offset,
            length: at.length,
            ..last
        });
        self.flush(state);
    }

    /// Makes memory in the own heap; waits where all is in use.
    pub(crate) async fn room(&self, length: usize) -> Result<Room, Status> {
        if length > MOST_BYTES as usize {
            let text = format!("{length} bytes, where a message has at most {MOST_BYTES}");
            return Err(Status::new(Code::ResourceExhausted, text));
        }
        loop {
            let freed = self.freed.some.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            if self.is_gone() {
                return Err(lost());
            }
            {
                let mut state = self.lock();
                if let Some(buffer) = self.alloc(&mut state, length) {
                    return Ok(self.frozen(buffer));
                }
            }
            tokio::select! {
                () = freed => {}
                () = self.gone() => {}
            }
        }
    }

    fn frozen(&self, buffer: Buffer) -> Room {
        Room(Frozen { buffer: Some(buffer), freed: Arc::clone(&self.freed) })
    }

    fn alloc(&self, state: &mut State, length: usize) -> Option<Buffer> {
        let freed = std::mem::take(&mut *locked(&self.freed.blocks));
        for block in freed {
            // Blocks of this heap only are in the list.
            let _ = state.heap.free(block);
        }
        if let Some(buffer) = state.heap.buffer(length) {
            return Some(buffer);
        }
        match self.grow(state) {
            Ok(true) => state.heap.buffer(length),
            Ok(false) => None,
            Err(error) => {
                tracing::warn!("no more memory for calls: {error}");
                // The service knows regions by their order, which is lost.
                let _ = rustix::net::shutdown(&self.setup, rustix::net::Shutdown::Both);
                None
            }
        }
    }

    /// Adds a region to the own heap and shows it to the service.
    fn grow(&self, state: &mut State) -> io::Result<bool> {
        let Some(number) = state.heap.grow().map_err(io::Error::other)? else { return Ok(false) };
        let Some(region) = state.heap.region(number) else { return Ok(false) };
        let file = region.seal().map_err(io::Error::other)?;
        packets::send(&self.setup, &ToService::Region, &[file.as_fd()])?;
        Ok(true)
    }

    /// Puts bytes into the own heap, where they are not there already.
    pub(crate) async fn place(&self, bytes: Bytes) -> Result<Bytes, Status> {
        if self.is_placed(&bytes) {
            return Ok(bytes);
        }
        let mut room = self.room(bytes.len()).await?;
        room.copy_from_slice(&bytes);
        Ok(room.freeze())
    }

    /// Puts all parts of a message there.
    async fn place_all(&self, mut parts: Vec<Bytes>) -> Result<Vec<Bytes>, Status> {
        let ends = |at: usize, part: &Bytes| at.next_multiple_of(8) + part.len();
        let length = parts.iter().fold(0, ends);
        if length > MOST_BYTES as usize {
            let text = format!("a message of {length} bytes, {MOST_BYTES} are the most");
            return Err(Status::new(Code::ResourceExhausted, text));
        }
        // More than one piece of memory at once would be waited for with another one in hand.
        let to_place = parts.iter().filter(|part| !self.is_placed(part)).count();
        if parts.len() > MOST_PARTS || to_place > 1 {
            let mut whole = self.room(length).await?;
            let mut at: usize = 0;
            for part in &parts {
                let begin = at.next_multiple_of(8);
                whole[at..begin].fill(0);
                at = begin + part.len();
                whole[begin..at].copy_from_slice(part);
            }
            return Ok(vec![whole.freeze()]);
        }
        for part in &mut parts {
            *part = self.place(std::mem::take(part)).await?;
        }
        Ok(parts)
    }

    /// Returns whether bytes lie in the own heap.
    fn is_placed(&self, bytes: &Bytes) -> bool {
        bytes.is_empty() || self.lock().heap.describe(bytes, kind::PART).is_some()
    }

    async fn place_metadata(&self, metadata: &Metadata) -> Result<Option<Bytes>, Status> {
        if metadata.is_empty() {
            return Ok(None);
        }
        let bytes = metadata.to_bytes();
        if bytes.len() > crate::message::MOST_METADATA {
            return Err(Status::new(Code::ResourceExhausted, format!("metadata of {} bytes", bytes.len())));
        }
        self.place(bytes.into()).await.map(Some)
    }

    /// Makes a call. Returns its number.
    pub(crate) async fn call(
        &self,
        (lane, method): (u32, u32),
        (metadata, parts): (&Metadata, Vec<Bytes>),
        deadline: u64,
        waiting: Waiting,
    ) -> Result<u64, Status> {
        let metadata = self.place_metadata(metadata).await?;
        let mut parts = self.place_all(parts).await?;
        let mut state = self.lock();
        if self.is_gone() {
            return Err(lost());
        }
        let tag = state.next;
        state.next += 1;
        let last = Descriptor {
            kind: kind::CALL,
            lane,
            sequence: u64::from(method),
            tag,
            deadline,
            ..Descriptor::default()
        };
        self.post(&mut state, last, metadata.as_ref(), &parts);
        parts.extend(metadata);
        state.calls.insert(tag, (waiting, parts));
        Ok(tag)
    }

    /// Nobody waits for a call any more.
    pub(crate) fn cancel(&self, tag: u64) {
        let mut state = self.lock();
        let Some(call) = state.calls.remove(&tag) else { return };
        // The service may still read the payload: it is kept as a reply that is not taken yet.
        let number = state.next;
        state.next += 1;
        let last = Descriptor { kind: kind::CANCEL, tag, lease: number, ..Descriptor::default() };
        self.post(&mut state, last, None, &[]);
        state.replies.insert(number, call.1);
        drop(state);
        drop(call.0);
    }

    /// More replies of a stream may come.
    pub(crate) fn more(&self, tag: u64, count: u32) {
        let last = Descriptor { kind: kind::MORE, tag, sequence: u64::from(count), ..Descriptor::default() };
        self.post(&mut self.lock(), last, None, &[]);
    }

    /// Sends a reply to a call; `is_last`: it is the only one.
    pub(crate) async fn reply(
        &self,
        tag: u64,
        (metadata, parts): (&Metadata, Vec<Bytes>),
        is_last: bool,
    ) -> Result<(), Status> {
        let metadata = self.place_metadata(metadata).await?;
        let mut parts = self.place_all(parts).await?;
        let mut state = self.lock();
        if !state.working.contains_key(&tag) {
            return Err(Status::new(Code::Cancelled, "nobody waits for this call any more"));
        }
        if is_last {
            state.working.remove(&tag);
        }
        let number = state.next;
        state.next += 1;
        let kind = if is_last { kind::REPLY } else { kind::ITEM };
        let last = Descriptor { kind, tag, lease: number, ..Descriptor::default() };
        self.post(&mut state, last, metadata.as_ref(), &parts);
        parts.extend(metadata);
        state.replies.insert(number, parts);
        Ok(())
    }

    /// Ends a call. Its text goes as far as there is room at once.
    pub(crate) fn end(&self, tag: u64, status: &Status) {
        let mut state = self.lock();
        state.working.remove(&tag);
        let number = state.next;
        state.next += 1;
        let mut keep = |bytes: &[u8]| {
            let mut buffer = self.alloc(&mut state, bytes.len())?;
            buffer.copy_from_slice(bytes);
            Some(self.frozen(buffer).freeze())
        };
        let mut text = status.message.as_str();
        if text.len() > crate::message::MOST_METADATA {
            text = &text[..text.floor_char_boundary(crate::message::MOST_METADATA)];
        }
        let text = if text.is_empty() { None } else { keep(text.as_bytes()) };
        let metadata = if status.metadata.is_empty() { None } else { keep(&status.metadata.to_bytes()) };
        let last = Descriptor {
            kind: kind::END,
            class: status.code as u8,
            tag,
            lease: number,
            ..Descriptor::default()
        };
        let parts: Vec<Bytes> = text.into_iter().collect();
        self.post(&mut state, last, metadata.as_ref(), &parts);
        state.replies.insert(number, parts.into_iter().chain(metadata).collect());
    }

    async fn question(&self, make: impl Fn(u64) -> ToService) -> Result<ToProgram, Status> {
        let (send, answer) = oneshot::channel();
        let id = {
            let mut state = self.lock();
            state.next += 1;
            let id = state.next;
            state.asked.insert(id, send);
            id
        };
        packets::send(&self.setup, &make(id), &[])
            .map_err(|error| Status::unavailable(format!("the transport service: {error}")))?;
        let answer = tokio::time::timeout(PATIENCE, answer).await.map_err(|_| {
            Status::unavailable("the transport service does not answer whether the service is there")
        })?;
        answer.map_err(|_| lost())
    }

    /// Returns the schema of a service that is served on this host.
    pub(crate) async fn describe(&self, service: &str) -> Result<Bytes, Status> {
        let answer = self.question(|id| ToService::Describe { id, service: service.to_owned() }).await?;
        match answer {
            ToProgram::Described { region, offset, length, lease, .. } => {
                let descriptor =
                    Descriptor { kind: kind::PART, region, offset, length, lease, ..Descriptor::default() };
                let lease = self.payload(&mut self.lock(), &descriptor);
                let lease = lease.map_err(|error| Status::internal(error.to_string()))?;
                Ok(Bytes::copy_from_slice(&lease))
            }
            ToProgram::Refused { code, reason, .. } => Err(Status::new(Code::from_number(code), reason)),
            _ => Err(Status::unavailable("the transport service answers something else")),
        }
    }

    /// Asks for a binding; shows the schema where the service does not know it.
    pub(crate) async fn ask(
        &self,
        make: impl Fn(u64) -> ToService,
        schema: &Bytes,
        serve: Option<Arc<dyn Service>>,
    ) -> Result<u32, Status> {
        let mut shown = Bytes::new();
        for attempt in 0..2 {
            match self.question(&make).await? {
                ToProgram::Bound { lane, .. } => {
                    if let Some(service) = serve {
                        self.lock().served.insert(lane, service);
                    }
                    return Ok(lane);
                }
                ToProgram::Unknown { .. } if attempt == 0 => {
                    // Packets are read in their order: the next answer says that it was read.
                    shown = self.place(schema.clone()).await?;
                    let at = self.lock().heap.describe(&shown, kind::PART).unwrap_or_default();
                    let packet =
                        ToService::Schema { region: at.region, offset: at.offset, length: at.length };
                    packets::send(&self.setup, &packet, &[])
                        .map_err(|error| Status::unavailable(format!("the transport service: {error}")))?;
                }
                ToProgram::Refused { code, reason, .. } => {
                    return Err(Status::new(Code::from_number(code), reason));
                }
                _ => break,
            }
        }
        drop(shown);
        Err(Status::unavailable("the transport service does not take the schema"))
    }

    /// Calls a binding no more.
    pub(crate) fn unbind(&self, lane: u32) {
        let service = self.lock().served.remove(&lane);
        drop(service);
        // One that does not read is gone soon.
        let _ = packets::send(&self.setup, &ToService::Leave { lane }, &[]);
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
