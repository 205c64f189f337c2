//! A program that is a rank of a group: its socket, its memory and its calls.
use super::budget::{Granted, Share};
use super::descriptors;
use crate::memory::Shared;
use crate::operation::Numbered;
use crate::protocol::{Call, Failure, FailureKind, MOST_BYTES, ToProgram, ToService};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidemill_rpc::packets;
use tidemill_shm::region::{GRANULE, SharedRegion};

/// Calls of a program that wait; it has to wait itself before it calls more.
const MOST_CALLS: usize = 256;
/// Buffers of a program.
const MOST_BUFFERS: usize = 1024;
/// Answers that a program does not read.
const MOST_ANSWERS: usize = 4 * MOST_CALLS;

/// Why a descriptor is not taken.
const NO_EVENT: &str =
    "the descriptor of a call is an eventfd, a pipe or a Unix socket: to close another one may take long";

/// A buffer, which counts until the last call with it has ended.
#[derive(Debug)]
struct Lent {
    region: Arc<SharedRegion>,
    _granted: Granted,
}

/// The thing that a program waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// All other ranks, until then.
    Waits {
        until: Instant,
        /// It was a rank of the group before.
        again: bool,
    },
    /// It takes part.
    Member,
}

/// A call that waits or is carried out.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) call: Call,
    pub(super) until: Instant,
    /// It may not begin before this is readable.
    after: Option<OwnedFd>,
    /// Closed at the end.
    ended: Option<OwnedFd>,
    memory: Shared,
    _lent: Arc<Lent>,
}

/// A program.
#[derive(Debug)]
pub(super) struct Local {
    socket: OwnedFd,
    share: Share,
    buffers: BTreeMap<u64, Arc<Lent>>,
    pub(super) calls: VecDeque<Waiting>,
    answers: VecDeque<(ToProgram, Option<OwnedFd>)>,
    pub(super) standing: Standing,
    /// Why the calls of this program fail from now on: it has made one that is wrong.
    pub(super) failure: Option<Failure>,
    /// When it called something last.
    pub(super) called: Instant,
}

/// A request of a program to the group.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// Something of its own, which is done.
    Nothing,
    /// A call has come.
    Called,
    /// It wants to continue.
    Shrink {
        /// Time until the others must be there.
        deadline: Duration,
        /// All of the group, not only those that are left.
        whole: bool,
    },
}

impl Local {
    pub(super) fn new(socket: OwnedFd, share: Share, until: Instant, now: Instant) -> Self {
        Self {
            socket,
            share,
            buffers: BTreeMap::new(),
            calls: VecDeque::new(),
            answers: VecDeque::new(),
            standing: Standing::Waits { until, again: false },
            failure: None,
            called: now,
        }
    }

    pub(super) fn is_member(&self) -> bool {
        self.standing == Standing::Member
    }

    /// The descriptor to wait for, and for what.
    pub(super) fn wanted(&self) -> PollFd<'_> {
        let mut flags = PollFlags::empty();
        if self.calls.len() < MOST_CALLS {
            flags |= PollFlags::IN;
        }
        if !self.answers.is_empty() {
            flags |= PollFlags::OUT;
        }
        PollFd::new(&self.socket, flags)
    }

    /// The descriptor that the next operation waits for.
    pub(super) fn after(&self) -> Option<BorrowedFd<'_>> {
        self.calls.front().and_then(|call| call.after.as_ref()).map(AsFd::as_fd)
    }

    /// Returns whether the next operation may begin as far as this program goes.
    pub(super) fn has_arrived(&mut self) -> bool {
        let Some(first) = self.calls.front_mut() else { return false };
        if let Some(after) = &first.after {
            let is_ready =
                poll(&mut [PollFd::new(after, PollFlags::IN)], Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
            if !is_ready.is_ok_and(|count| count > 0) {
                return false;
            }
            first.after = None;
        }
        true
    }

    /// The next operation as that of this number, with its memory.
    pub(super) fn next(&self, number: u64) -> Option<(Numbered, Shared)> {
        let Waiting { call, memory, .. } = self.calls.front()?;
        let Call { operation, element, length, type_name, .. } = *call;
        Some((Numbered { number, operation, element, length, type_name }, memory.clone()))
    }

    /// The next operation has ended.
    pub(super) fn end(&mut self, failure: Option<Failure>) {
        if let Some(Waiting { call, ended, .. }) = self.calls.pop_front() {
            self.say(ToProgram::Ended { number: call.number, failure }, None);
            drop(ended);
        }
    }

    /// All operations have ended.
    pub(super) fn fail(&mut self, failure: &Failure) {
        while !self.calls.is_empty() {
            self.end(Some(failure.clone()));
        }
    }

    /// Tells the program something, now or when it reads.
    pub(super) fn say(&mut self, packet: ToProgram, descriptor: Option<OwnedFd>) {
        self.answers.push_back((packet, descriptor));
        self.write();
    }

    /// Writes what waits. A program that is gone is noticed when it is read.
    pub(super) fn write(&mut self) {
        while let Some((packet, descriptor)) = self.answers.front() {
            let descriptors: Vec<BorrowedFd<'_>> = descriptor.iter().map(AsFd::as_fd).collect();
            match packets::send(&self.socket, packet, &descriptors) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                _ => drop(self.answers.pop_front()),
            }
        }
    }

    /// Reads a packet; none: there is none now.
    ///
    /// # Errors
    /// The program is gone, or does what it must not.
    pub(super) fn read(&mut self, now: Instant) -> io::Result<Option<Wish>> {
        if self.answers.len() > MOST_ANSWERS {
            return Err(io::Error::new(ErrorKind::InvalidData, "it does not read its answers"));
        }
        if self.calls.len() >= MOST_CALLS {
            // It is not read, and its end is seen.
            let mut ends = [PollFd::new(&self.socket, PollFlags::empty())];
            let _ = poll(&mut ends, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
            return match ends[0].revents().contains(PollFlags::HUP) {
                true => Err(io::Error::new(ErrorKind::ConnectionReset, "its program has ended")),
                false => Ok(None),
            };
        }
        let (packet, descriptors) = match packets::receive::<ToService>(&self.socket) {
            Ok(Some(packet)) => packet,
            Ok(None) => return Err(io::Error::new(ErrorKind::ConnectionReset, "its program has ended")),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        };
        let end_at_once = descriptors.iter().all(descriptors::ends_at_once);
        let descriptors = match end_at_once {
            true => descriptors,
            false => {
                descriptors::close(descriptors);
                Vec::new()
            }
        };
        match packet {
            ToService::Buffer { id, bytes } => {
                match self.make(id, bytes) {
                    Ok(file) => self.say(ToProgram::Buffer { id }, Some(file)),
                    Err(reason) => self.say(ToProgram::NoBuffer { id, reason }, None),
                }
                Ok(Some(Wish::Nothing))
            }
            ToService::Free { id } => {
                self.buffers.remove(&id);
                Ok(Some(Wish::Nothing))
            }
            ToService::Call(call) => {
                self.called = now;
                self.take(call, (descriptors, end_at_once), now);
                Ok(Some(Wish::Called))
            }
            ToService::Shrink { deadline_ms, whole } => {
                Ok(Some(Wish::Shrink { deadline: Duration::from_millis(deadline_ms), whole }))
            }
            ToService::Join { .. } | ToService::Ask { .. } => {
                Err(io::Error::new(ErrorKind::InvalidData, "it has joined already"))
            }
        }
    }

    fn make(&mut self, id: u64, bytes: u64) -> Result<OwnedFd, String> {
        if bytes == 0 || !bytes.is_multiple_of(GRANULE) || bytes > MOST_BYTES {
            return Err(format!("a buffer has a multiple of {GRANULE} bytes, at most {MOST_BYTES}"));
        }
        if self.buffers.len() >= MOST_BUFFERS || self.buffers.contains_key(&id) {
            return Err(format!("a program has {MOST_BUFFERS} buffers at most, each with its own number"));
        }
        let granted = self.share.take(bytes)?;
        let region = SharedRegion::create(bytes).map_err(|error| error.to_string())?;
        let file = rustix::io::fcntl_dupfd_cloexec(&region, 0).map_err(|error| error.to_string())?;
        self.buffers.insert(id, Arc::new(Lent { region: Arc::new(region), _granted: granted }));
        Ok(file)
    }

    fn take(&mut self, call: Call, (descriptors, end_at_once): (Vec<OwnedFd>, bool), now: Instant) {
        let mut descriptors = descriptors.into_iter();
        let after = call.after.then(|| descriptors.next()).flatten();
        let ended = call.ended.then(|| descriptors.next()).flatten();
        let wrong =
            |text: String| Failure { kind: FailureKind::Wrong, rank: None, host: String::new(), text };
        let bytes = call.length.saturating_mul(call.element.bytes() as u64);
        let memory = match self.buffers.get(&call.buffer) {
            Some(lent) => Shared::new(Arc::clone(&lent.region), call.offset, bytes)
                .map(|memory| (memory, Arc::clone(lent)))
                .map_err(|error| wrong(error.to_string())),
            None => Err(wrong(format!("there is no buffer {}", call.buffer))),
        };
        let failed = match (&self.failure, &memory) {
            (Some(failure), _) => Some(failure.clone()),
            (None, Err(failure)) => Some(failure.clone()),
            (None, Ok(_)) if !end_at_once => Some(wrong(NO_EVENT.to_owned())),
            (None, Ok(_)) if call.after && after.is_none() => Some(wrong("no descriptor came".to_owned())),
            (None, Ok(_)) => None,
        };
        match (failed, memory) {
            (None, Ok((memory, lent))) => {
                let until = now.checked_add(Duration::from_millis(call.deadline_ms));
                let until = until.unwrap_or(now + Duration::from_secs(86_400 * 365));
                self.calls.push_back(Waiting { call, until, after, ended, memory, _lent: lent });
            }
            (failed, _) => {
                // Later ones fail, too: the others would take the next one for this one.
                self.failure = self.failure.take().or_else(|| failed.clone());
                self.say(ToProgram::Ended { number: call.number, failure: failed }, None);
                drop(ended);
            }
        }
    }
}
