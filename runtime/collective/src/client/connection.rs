//! The connection of a program with the service of its host: one thread receives for all that wait.
use super::{Error, PAUSE, now};
use crate::protocol::{self, Failure, ToProgram, ToService};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tidemill_rpc::packets;

/// What has come, and what is wanted.
#[derive(Debug, Default)]
pub(super) struct State {
    /// Calls that have ended, and those for whose result nobody will ask.
    pub(super) ended: BTreeMap<u64, Option<Failure>>,
    pub(super) forgotten: BTreeSet<u64>,
    /// The buffers of calls that have not ended.
    pub(super) running: BTreeMap<u64, u64>,
    /// Answers that are no ends of calls.
    pub(super) answers: Vec<(ToProgram, Vec<OwnedFd>)>,
    /// One thread receives for all that wait.
    receives: bool,
    /// Why nothing comes any more.
    pub(super) gone: Option<String>,
    pub(super) next_call: u64,
    pub(super) next_buffer: u64,
    pub(super) members: Vec<u32>,
    pub(super) epoch: u64,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) socket: OwnedFd,
    state: Mutex<State>,
    changed: Condvar,
}

impl Connection {
    /// Makes one over a socket that is connected.
    pub(super) fn over(socket: OwnedFd) -> Self {
        Self { socket, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Connects to a service, and waits for one that is not there yet.
    pub(super) fn dial(service: &Path, wait: Duration) -> Result<Self, Error> {
        let path = protocol::socket_of(service);
        let dial = || -> io::Result<OwnedFd> {
            let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
            connect(&socket, &SocketAddrUnix::new(&path)?)?;
            Ok(socket)
        };
        let begun = now();
        loop {
            let left = wait.saturating_sub(now().saturating_duration_since(begun));
            match dial() {
                Ok(socket) => return Ok(Self::over(socket)),
                // No event says that a service has come.
                Err(reason) if is_absent(&reason) && !left.is_zero() => std::thread::sleep(left.min(PAUSE)),
                Err(reason) => {
                    let waited = if is_absent(&reason) { wait } else { Duration::ZERO };
                    return Err(Error::Unreachable { service: service.to_owned(), waited, reason });
                }
            }
        }
    }

    pub(super) fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn send(&self, packet: &ToService, descriptors: &[BorrowedFd<'_>]) -> Result<(), Error> {
        self.put(packet, descriptors).map_err(|error| self.lost(error))
    }

    pub(super) fn put(&self, packet: &ToService, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
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
    pub(super) fn wait<T>(&self, wanted: impl FnMut(&mut State) -> Option<T>) -> Result<T, Error> {
        let found = self.wait_until(None, wanted)?;
        found.ok_or_else(|| Error::Broken("does not answer".to_owned()))
    }

    /// Receives until the state has something, or until then: none. One thread receives, the others wait for it.
    pub(super) fn wait_until<T>(
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
    pub(super) fn receive(
        &self,
        until: Option<Instant>,
    ) -> Result<Option<(ToProgram, Vec<OwnedFd>)>, String> {
        loop {
            match packets::receive(&self.socket) {
                Ok(Some(packet)) => return Ok(Some(packet)),
                Ok(None) => return Err("is gone".to_owned()),
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
    pub(super) fn answer<T>(
        &self,
        mut wanted: impl FnMut(&ToProgram) -> Option<T>,
    ) -> Result<(T, Vec<OwnedFd>), Error> {
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
    pub(super) fn joined(&self) -> Result<(), Error> {
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

/// Returns whether no service is there, and may come: there is no socket, or it has no listener.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused)
}
