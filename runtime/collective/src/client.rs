//! The side of a program: joins a group, and calls operations.
//!
//! ```no_run
//! # use tidemill_collective::client::{Group, JoinOptions, Error};
//! # use tidemill_collective::element::{Element, Reduction};
//! # fn main() -> Result<(), Error> {
//! let group = Group::join(&JoinOptions::new("training", 0, 2))?;
//! let buffer = group.buffer(Element::F32, 1024)?;
//! buffer.write(0, &[1.0_f32; 1024])?;
//! group.all_reduce(&buffer, Reduction::Sum)?.wait()?;
//! # Ok(())
//! # }
//! ```
mod hints;

use crate::element::{Element, Reduction};
use crate::number::Number;
use crate::operation::Operation;
use crate::protocol::{
    self, Answer, Call, Failure, FailureKind, MOST_BYTES, Question, ToProgram, ToService, VERSION,
};
use crate::topology::Priority;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, connect, shutdown, socket_with,
    socketpair,
};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tidemill_rpc::packets;
use tidemill_shm::region::{GRANULE, RegionError, SharedRegion};

mod in_place;
mod pending;
mod rejoining;

pub use pending::Pending;

/// Time until all ranks must have joined, and until an operation must have ended, where nothing else is said.
pub const DEADLINE: Duration = Duration::from_secs(300);
/// Bytes that are converted at once.
const CHUNK: usize = 16 << 10;

#[expect(clippy::disallowed_methods, reason = "a program waits in real time")]
fn now() -> Instant {
    Instant::now()
}

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The service cannot be reached.
    #[error("no service for groups answers at {}: {reason}; `tidemill net serve` starts one", socket.display())]
    Unreachable {
        /// Where it was looked for.
        socket: PathBuf,
        /// Why.
        reason: io::Error,
    },
    /// It refused, and why.
    #[error("{0}")]
    Refused(String),
    /// An operation failed. The group does nothing more until [`Group::shrink`].
    #[error("{0}")]
    Failed(#[from] Failure),
    /// It went away, or speaks another language.
    #[error("the transport service {0}")]
    Broken(String),
    /// Memory that is not there.
    #[error("{0}")]
    Memory(#[from] RegionError),
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::Broken(match error.kind() {
            ErrorKind::WouldBlock => "does not read".to_owned(),
            _ => format!("is gone: {error}"),
        })
    }
}

/// How a program joins a group.
#[derive(Debug, Clone)]
pub struct JoinOptions {
    /// The name of the group, among those of the same user.
    pub group: String,
    /// The rank of this program, from 0.
    pub rank: u32,
    /// Ranks of the group.
    pub size: u32,
    /// The socket of the service.
    pub service: PathBuf,
    /// Time until all ranks must have joined.
    pub deadline: Duration,
    /// Which groups have paths first.
    pub priority: Priority,
}

impl JoinOptions {
    /// The usual ones.
    pub fn new(group: impl Into<String>, rank: u32, size: u32) -> Self {
        let service = tidemill_rpc::usual_socket();
        Self { group: group.into(), rank, size, service, deadline: DEADLINE, priority: Priority::default() }
    }
}

/// How an operation is called.
#[derive(Debug, Clone, Copy)]
pub struct CallOptions<'a> {
    /// Time until it must have ended, from the call on.
    pub deadline: Duration,
    /// Becomes readable when the operation may begin: an eventfd, a pipe or a socket. None: at once.
    pub after: Option<BorrowedFd<'a>>,
    /// Whether [`Pending::readable`] is wanted.
    pub readable: bool,
}

impl Default for CallOptions<'_> {
    fn default() -> Self {
        Self { deadline: DEADLINE, after: None, readable: false }
    }
}

#[derive(Debug, Default)]
struct State {
    /// Calls that have ended, and those for whose result nobody will ask.
    ended: BTreeMap<u64, Option<Failure>>,
    forgotten: BTreeSet<u64>,
    /// The buffers of calls that have not ended.
    running: BTreeMap<u64, u64>,
    /// Answers that are no ends of calls.
    answers: Vec<(ToProgram, Vec<OwnedFd>)>,
    /// One thread receives for all that wait.
    receives: bool,
    /// Why nothing comes any more.
    gone: Option<String>,
    next_call: u64,
    next_buffer: u64,
    members: Vec<u32>,
    epoch: u64,
}

#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    state: Mutex<State>,
    changed: Condvar,
}

impl Connection {
    fn dial(service: &Path) -> Result<Self, Error> {
        let path = protocol::socket_of(service);
        let dial = || -> io::Result<OwnedFd> {
            let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
            connect(&socket, &SocketAddrUnix::new(&path)?)?;
            Ok(socket)
        };
        let unreachable = |reason| Error::Unreachable { socket: path.clone(), reason };
        let socket = dial().map_err(unreachable)?;
        Ok(Self { socket, state: Mutex::default(), changed: Condvar::new() })
    }

    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, packet: &ToService, descriptors: &[BorrowedFd<'_>]) -> Result<(), Error> {
        self.put(packet, descriptors).map_err(|error| self.lost(error))
    }

    fn put(&self, packet: &ToService, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        loop {
            match packets::send(&self.socket, packet, descriptors) {
                // The service reads whatever comes, but not always at once.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let mut waits = [PollFd::new(&self.socket, PollFlags::OUT)];
                    poll(&mut waits, None).map(drop).or_else(interrupted)?;
                }
                result => return result,
            }
        }
    }

    /// Receives until the state has something.
    fn wait<T>(&self, wanted: impl FnMut(&mut State) -> Option<T>) -> Result<T, Error> {
        let found = self.wait_until(None, wanted)?;
        found.ok_or_else(|| Error::Broken("does not answer".to_owned()))
    }

    /// Receives until the state has something, or until then: none. One thread receives, the others wait for it.
    fn wait_until<T>(
        &self,
        until: Option<Instant>,
        mut wanted: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let mut state = self.locked();
        loop {
            if let Some(found) = wanted(&mut state) {
                return Ok(Some(found));
            }
            if let Some(reason) = &state.gone {
                return Err(Error::Broken(reason.clone()));
            }
            if state.receives {
                let left = until.map(|until| until.saturating_duration_since(now()));
                state = match left {
                    None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                    Some(Duration::ZERO) => return Ok(None),
                    Some(left) => {
                        self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                    }
                };
                continue;
            }
            state.receives = true;
            drop(state);
            let received = self.receive(until);
            state = self.locked();
            state.receives = false;
            // Another thread receives if this one returns.
            self.changed.notify_all();
            match received {
                Ok(Some((ToProgram::Bye { reason }, _))) => state.gone = Some(reason),
                Ok(Some((ToProgram::Ended { number, failure }, _))) => {
                    state.running.remove(&number);
                    if !state.forgotten.remove(&number) {
                        state.ended.insert(number, failure);
                    }
                }
                Ok(Some(other)) => state.answers.push(other),
                Ok(None) => return Ok(None),
                Err(reason) => {
                    state.gone.get_or_insert(reason);
                }
            }
        }
    }

    /// Receives a packet; none: there is none until then.
    fn receive(&self, until: Option<Instant>) -> Result<Option<(ToProgram, Vec<OwnedFd>)>, String> {
        loop {
            match packets::receive(&self.socket) {
                Ok(Some(packet)) => return Ok(Some(packet)),
                Ok(None) => return Err("is gone".to_owned()),
                // It closed its end before it read everything: its last words come after this, then the end.
                Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let left = until.map(|until| until.saturating_duration_since(now()));
                    if left == Some(Duration::ZERO) {
                        return Ok(None);
                    }
                    let left = left.and_then(|left| Timespec::try_from(left).ok());
                    let mut waits = [PollFd::new(&self.socket, PollFlags::IN)];
                    let waited = poll(&mut waits, left.as_ref()).map(drop).or_else(interrupted);
                    waited.map_err(|error| format!("cannot be waited for: {error}"))?;
                }
                Err(error) => return Err(format!("is gone: {error}")),
            }
        }
    }

    /// The first answer of a kind.
    fn answer<T>(&self, mut wanted: impl FnMut(&ToProgram) -> Option<T>) -> Result<(T, Vec<OwnedFd>), Error> {
        self.wait(|state| {
            for position in 0..state.answers.len() {
                if let Some(found) = wanted(&state.answers[position].0) {
                    return Some((found, state.answers.remove(position).1));
                }
            }
            None
        })
    }

    /// Waits until all ranks are there.
    fn joined(&self) -> Result<(), Error> {
        let (answer, _) = self.answer(|packet| match packet {
            ToProgram::Joined { members, epoch } => Some(Ok((members.clone(), *epoch))),
            ToProgram::Refused { reason } => Some(Err(reason.clone())),
            _ => None,
        })?;
        let (members, epoch) = answer.map_err(Error::Refused)?;
        let mut state = self.locked();
        (state.members, state.epoch) = (members, epoch);
        Ok(())
    }
}

fn interrupted(error: rustix::io::Errno) -> io::Result<()> {
    if error == rustix::io::Errno::INTR { Ok(()) } else { Err(error.into()) }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// A group that this program is a rank of. It leaves the group when this and all its buffers are dropped.
#[derive(Debug, Clone)]
pub struct Group {
    /// The service and the name of the group there; none: it is one of the service itself.
    place: Option<Arc<(PathBuf, String)>>,
    connection: Arc<Connection>,
    options: Arc<JoinOptions>,
}

impl Group {
    /// Joins, and waits until all ranks have.
    ///
    /// # Errors
    /// [`Error::Refused`] with the ranks that are missing at the deadline, or because the rank is taken; others.
    pub fn join(options: &JoinOptions) -> Result<Self, Error> {
        let connection = Connection::dial(&options.service)?;
        let join = ToService::Join {
            version: VERSION,
            group: options.group.clone(),
            rank: options.rank,
            size: options.size,
            deadline_ms: milliseconds(options.deadline),
            priority: options.priority,
        };
        connection.send(&join, &[])?;
        connection.joined()?;
        let user = rustix::process::geteuid().as_raw();
        let place = Some(Arc::new((options.service.clone(), format!("{user}/{}", options.group))));
        Ok(Self { place, connection: Arc::new(connection), options: Arc::new(options.clone()) })
    }

    /// Waits for all ranks over a socket whose other end has joined.
    pub(crate) fn over(socket: OwnedFd, rank: u32, size: u32) -> Result<Self, Error> {
        let connection = Connection { socket, state: Mutex::default(), changed: Condvar::new() };
        connection.joined()?;
        let options = Arc::new(JoinOptions::new("", rank, size));
        Ok(Self { place: None, connection: Arc::new(connection), options })
    }

    /// The rank of this program.
    pub fn rank(&self) -> u32 {
        self.options.rank
    }

    /// Ranks of the group when it was made.
    pub fn size(&self) -> u32 {
        self.options.size
    }

    /// Ranks that take part now, ascending. Parts of operations count by the position here.
    pub fn members(&self) -> Vec<u32> {
        self.connection.locked().members.clone()
    }

    /// Gets memory for elements, all zero. The service has made it: operations need no copy of it.
    ///
    /// # Errors
    /// [`Error::Refused`] where the service has not as much.
    pub fn buffer(&self, element: Element, length: usize) -> Result<Buffer, Error> {
        let bytes = (length as u64).saturating_mul(element.bytes() as u64);
        if bytes > MOST_BYTES {
            return Err(Error::Refused(format!("a buffer of {bytes} bytes, {MOST_BYTES} are the most")));
        }
        let bytes = bytes.max(1).next_multiple_of(GRANULE);
        let id = {
            let mut state = self.connection.locked();
            state.next_buffer += 1;
            state.next_buffer
        };
        self.connection.send(&ToService::Buffer { id, bytes }, &[])?;
        let (answer, mut descriptors) = self.connection.answer(|packet| match packet {
            ToProgram::Buffer { id: of } if *of == id => Some(Ok(())),
            ToProgram::NoBuffer { id: of, reason } if *of == id => Some(Err(reason.clone())),
            _ => None,
        })?;
        answer.map_err(Error::Refused)?;
        let file = descriptors.pop().ok_or_else(|| Error::Broken("shares no memory".to_owned()))?;
        let region = SharedRegion::adopt(file, bytes)?;
        if region.bytes() != bytes {
            return Err(Error::Broken("shares less memory than it says".to_owned()));
        }
        Ok(Buffer { connection: Arc::clone(&self.connection), region, id, element, length })
    }

    /// Combines the buffers of all ranks, and gives the result to all.
    ///
    /// # Errors
    /// The service is gone. That the operation failed is an error of [`Pending::wait`].
    pub fn all_reduce(&self, buffer: &Buffer, reduction: Reduction) -> Result<Pending, Error> {
        self.call(buffer, Operation::AllReduce { reduction }, &CallOptions::default())
    }

    /// Gives the buffer of one rank to all.
    ///
    /// # Errors
    /// As [`Group::all_reduce`].
    pub fn broadcast(&self, buffer: &Buffer, root: u32) -> Result<Pending, Error> {
        self.call(buffer, Operation::Broadcast { root }, &CallOptions::default())
    }

    /// Combines the buffers of all ranks, and gives each its part: see [`Operation::ReduceScatter`].
    ///
    /// # Errors
    /// As [`Group::all_reduce`].
    pub fn reduce_scatter(&self, buffer: &Buffer, reduction: Reduction) -> Result<Pending, Error> {
        self.call(buffer, Operation::ReduceScatter { reduction }, &CallOptions::default())
    }

    /// Gives the part of each rank to all: see [`Operation::AllGather`].
    ///
    /// # Errors
    /// As [`Group::all_reduce`].
    pub fn all_gather(&self, buffer: &Buffer) -> Result<Pending, Error> {
        self.call(buffer, Operation::AllGather, &CallOptions::default())
    }

    /// Exchanges parts between all ranks: see [`Operation::AllToAll`].
    ///
    /// # Errors
    /// As [`Group::all_reduce`].
    pub fn all_to_all(&self, buffer: &Buffer) -> Result<Pending, Error> {
        self.call(buffer, Operation::AllToAll, &CallOptions::default())
    }

    /// Calls an operation.
    ///
    /// # Errors
    /// As [`Group::all_reduce`].
    pub fn call(
        &self,
        buffer: &Buffer,
        operation: Operation,
        options: &CallOptions<'_>,
    ) -> Result<Pending, Error> {
        if !Arc::ptr_eq(&buffer.connection, &self.connection) {
            return Err(Error::Refused("the buffer is of another group".to_owned()));
        }
        let pair = options.readable.then(|| {
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                .map_err(io::Error::from)
        });
        let (readable, theirs) = pair.transpose()?.unzip();
        let mut descriptors = Vec::with_capacity(2);
        descriptors.extend(options.after);
        descriptors.extend(theirs.as_ref().map(AsFd::as_fd));
        // Numbers reach the service in order.
        let mut state = self.connection.locked();
        let number = state.next_call + 1;
        let call = Call {
            number,
            operation,
            element: buffer.element,
            length: buffer.length as u64,
            buffer: buffer.id,
            offset: 0,
            deadline_ms: milliseconds(options.deadline),
            after: options.after.is_some(),
            ended: options.readable,
        };
        let sent = self.connection.put(&ToService::Call(call), &descriptors);
        if sent.is_ok() {
            state.next_call = number;
            state.running.insert(number, buffer.id);
        }
        drop(state);
        sent.map_err(|error| self.connection.lost(error))?;
        Ok(Pending::new(Arc::clone(&self.connection), number, readable))
    }

    /// Continues with the ranks that are left, after some were lost: waits until all of them call this. Ranks keep their
    /// numbers. A program that joined in the place of a lost rank takes part, too.
    ///
    /// # Errors
    /// As [`Group::join`].
    pub fn shrink(&self, deadline: Duration) -> Result<(), Error> {
        self.continues(deadline, false)
    }

    /// The number of the strategy with which this formation of the group began.
    pub fn epoch(&self) -> u64 {
        self.connection.locked().epoch
    }

    /// Leaves the group now, although clones of this and its buffers are there: their calls fail, and their memory stays.
    pub fn leave(&self) {
        self.connection.locked().gone.get_or_insert_with(|| "was left by this program".to_owned());
        // It ends the wait of a thread that receives. An error: the service has hung up before.
        let _ = shutdown(&self.connection.socket, Shutdown::Both);
    }
}

/// Memory of a group. Only one thread should use a range at a time, and none while an operation works with it: it would see
/// or write some of the bytes.
#[derive(Debug)]
pub struct Buffer {
    connection: Arc<Connection>,
    region: SharedRegion,
    id: u64,
    element: Element,
    length: usize,
}

impl Buffer {
    /// The type of its elements.
    pub fn element(&self) -> Element {
        self.element
    }

    /// The number of its elements.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns whether it has no element.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    fn check<T: Number>(&self, at: usize, count: usize) -> Result<u64, Error> {
        if T::ELEMENT != self.element {
            let text = format!("the buffer has elements of type {:?}, not {:?}", self.element, T::ELEMENT);
            return Err(Error::Refused(text));
        }
        if at.checked_add(count).is_none_or(|end| end > self.length) {
            let text = format!("{count} elements from {at} are not in a buffer of {}", self.length);
            return Err(Error::Refused(text));
        }
        Ok((at * self.element.bytes()) as u64)
    }

    /// Copies elements into it, from element `at` on.
    ///
    /// # Errors
    /// [`Error::Refused`] where they are of another type or do not fit.
    pub fn write<T: Number>(&self, at: usize, from: &[T]) -> Result<(), Error> {
        let mut offset = self.check::<T>(at, from.len())?;
        let mut bytes = [0; CHUNK];
        for part in from.chunks(CHUNK / self.element.bytes()) {
            let bytes = &mut bytes[..part.len() * self.element.bytes()];
            T::to_bytes(part, bytes);
            self.region.copy_in(offset, bytes)?;
            offset += bytes.len() as u64;
        }
        Ok(())
    }

    /// Copies elements out of it, from element `at` on.
    ///
    /// # Errors
    /// As [`Buffer::write`].
    pub fn read<T: Number>(&self, at: usize, into: &mut [T]) -> Result<(), Error> {
        let mut offset = self.check::<T>(at, into.len())?;
        let mut bytes = [0; CHUNK];
        for part in into.chunks_mut(CHUNK / self.element.bytes()) {
            let bytes = &mut bytes[..part.len() * self.element.bytes()];
            self.region.copy_out(offset, bytes)?;
            T::from_bytes(bytes, part);
            offset += bytes.len() as u64;
        }
        Ok(())
    }

    /// All its elements.
    ///
    /// # Errors
    /// [`Error::Refused`] where they are of another type.
    pub fn to_vec<T: Number>(&self) -> Result<Vec<T>, Error> {
        let mut all = vec![T::default(); self.length];
        self.read(0, &mut all)?;
        Ok(all)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // A service that is gone has freed it.
        let _ = self.connection.send(&ToService::Free { id: self.id }, &[]);
    }
}

/// Asks the service a question, as a person.
///
/// # Errors
/// It is not there, or does not answer in time.
pub fn ask(service: &Path, question: Question, patience: Duration) -> Result<Answer, Error> {
    let connection = Connection::dial(service)?;
    connection.send(&ToService::Ask { version: VERSION, question }, &[])?;
    let mut all = String::new();
    loop {
        let received = connection.receive(now().checked_add(patience)).map_err(Error::Broken)?;
        let (packet, _) = received.ok_or_else(|| {
            Error::Broken("does not answer: the service that introduces ranks may be gone".to_owned())
        })?;
        match packet {
            ToProgram::Part { text, more } => {
                all.push_str(&text);
                if !more {
                    break;
                }
            }
            ToProgram::Refused { reason } => return Err(Error::Refused(reason)),
            _ => return Err(Error::Broken("answers something else".to_owned())),
        }
    }
    serde_json::from_str(&all).map_err(|error| Error::Broken(format!("speaks another language: {error}")))
}

/// Returns whether a failure is of this kind.
pub fn is_failure(error: &Error, kind: FailureKind) -> bool {
    matches!(error, Error::Failed(failure) if failure.kind == kind)
}
