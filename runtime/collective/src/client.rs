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
mod buffer;
mod connection;
mod environment;
mod hints;
mod in_place;
mod pending;
mod rejoining;

pub use buffer::Buffer;
pub use environment::EnvironmentError;
pub use pending::Pending;

use crate::element::{Element, Reduction};
use crate::operation::Operation;
use crate::protocol::{
    Answer, Call, Failure, FailureKind, MOST_BYTES, Question, ToProgram, ToService, VERSION,
};
use crate::topology::Priority;
use crate::type_name::TypeName;
use connection::Connection;
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidemill_rpc::usual_socket;
use tidemill_shm::region::{GRANULE, RegionError, SharedRegion};

/// Time until all ranks must have joined, and until an operation must have ended, where nothing else is said.
pub const DEADLINE: Duration = Duration::from_secs(300);
/// Time in which a service must be there, where nothing else is said: it may be about to start.
pub const WAIT: Duration = Duration::from_secs(5);
/// Pause before a service is looked for again: no event says that it is there.
const PAUSE: Duration = Duration::from_millis(50);

#[expect(clippy::disallowed_methods, reason = "a program waits in real time")]
fn now() -> Instant {
    Instant::now()
}

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The service cannot be reached.
    #[error(
        "no service for groups answers at {}: {reason}{}; `{}` starts one",
        crate::protocol::socket_of(service).display(),
        after(*waited),
        command(service)
    )]
    Unreachable {
        /// The socket of the transport service; that of groups is beside it.
        service: PathBuf,
        /// Time in which it was looked for.
        waited: Duration,
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

/// How long a service was waited for, to append.
fn after(waited: Duration) -> String {
    match waited.is_zero() {
        true => String::new(),
        false => format!(", also after {} s", waited.as_secs_f64()),
    }
}

/// The command that starts the service that was looked for.
fn command(service: &Path) -> String {
    match service == usual_socket() {
        true => "tidemill net serve".to_owned(),
        false => format!("tidemill net serve --socket {}", service.display()),
    }
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
    /// Time in which the service must be there, as a part of the deadline. Zero: it has to be there.
    pub wait: Duration,
    /// Time until all ranks must have joined.
    pub deadline: Duration,
    /// Which groups have paths first.
    pub priority: Priority,
}

impl JoinOptions {
    /// The usual ones.
    pub fn new(group: impl Into<String>, rank: u32, size: u32) -> Self {
        Self {
            group: group.into(),
            rank,
            size,
            service: usual_socket(),
            wait: WAIT,
            deadline: DEADLINE,
            priority: Priority::default(),
        }
    }
}

/// How an operation is called.
#[derive(Debug, Clone, Copy)]
pub struct CallOptions<'a> {
    /// Time until it must have ended, from the call on.
    pub deadline: Duration,
    /// Becomes readable when the operation may begin: an eventfd, a pipe or a Unix socket. None: at once.
    pub after: Option<BorrowedFd<'a>>,
    /// Whether [`Pending::readable`] is wanted.
    pub readable: bool,
    /// The type of elements that are only moved, where it is none of [`Element`]: all ranks have to name the same. Empty: that of the
    /// buffer.
    pub type_name: TypeName,
}

impl Default for CallOptions<'_> {
    fn default() -> Self {
        Self { deadline: DEADLINE, after: None, readable: false, type_name: TypeName::default() }
    }
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
    /// [`Error::Unreachable`] where no service is there in time. [`Error::Refused`] with the ranks that are missing at the deadline, or because the rank is taken; others.
    pub fn join(options: &JoinOptions) -> Result<Self, Error> {
        let begun = now();
        let connection = Connection::dial(&options.service, options.wait.min(options.deadline))?;
        let deadline = options.deadline.saturating_sub(now().saturating_duration_since(begun));
        let join = ToService::Join {
            version: VERSION,
            group: options.group.clone(),
            rank: options.rank,
            size: options.size,
            deadline_ms: milliseconds(deadline),
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
        let connection = Connection::over(socket);
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
            type_name: options.type_name,
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

/// Asks the service a question, as a person.
///
/// # Errors
/// It is not there, or does not answer in time.
pub fn ask(service: &Path, question: Question, patience: Duration) -> Result<Answer, Error> {
    let connection = Connection::dial(service, Duration::ZERO)?;
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
