//! Calls to one place, over a connection that stays open between them.
use std::io::{ErrorKind, Read};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustls::ClientConfig;

use crate::call::{Answer, Call, CallError, Failed, Line, broken, dial, instant};

/// Longest time without use of a connection that is used again: routers forget idle ones without a word.
const LONGEST_IDLE: Duration = Duration::from_secs(30);
/// Age after which a new connection is made, so that a name that means another machine by then is looked up again.
const LONGEST_LIFE: Duration = Duration::from_secs(600);

/// Whether a call may be repeated when a connection that was open before turns out to be gone: the peer may have
/// received it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeat {
    /// Twice is like once.
    Allowed,
    /// Twice is not like once.
    Refused,
}

/// Sends calls to `HOST:PORT`. One connection is kept open between calls; calls at the same time have connections of their own. A
/// connection on which anything failed is given up.
pub struct Caller {
    place: String,
    config: Arc<ClientConfig>,
    idle: Mutex<Option<Idle>>,
    /// Connections that were given up by [`Caller::reconnect`] are of an older age.
    age: AtomicU64,
    made: AtomicU64,
    /// Timeout of a connection; none: that of the answer.
    connecting: Option<Duration>,
}

struct Idle {
    line: Line,
    made: Instant,
    used: Instant,
    age: u64,
}

impl std::fmt::Debug for Caller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Caller").field("place", &self.place).finish_non_exhaustive()
    }
}

impl Caller {
    /// Makes a caller without a connection. The configuration has the trusted authorities and the own certificate.
    pub fn new(place: String, config: Arc<ClientConfig>) -> Self {
        Self {
            place,
            config,
            idle: Mutex::default(),
            age: AtomicU64::new(0),
            made: AtomicU64::new(0),
            connecting: None,
        }
    }

    /// Sets a timeout for a connection, so that another peer can be asked.
    #[must_use]
    pub fn connecting_within(self, limit: Duration) -> Self {
        Self { connecting: Some(limit), ..self }
    }

    /// `HOST:PORT`.
    pub fn place(&self) -> &str {
        &self.place
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

    /// Sends a call and waits for the answer, at most `timeout` for all of it.
    ///
    /// # Errors
    /// See [`CallError`]. An answer that says no is an answer.
    pub fn send(&self, call: &Call<'_>, timeout: Duration, repeat: Repeat) -> Result<Answer, CallError> {
        call.check(&self.place)?;
        let deadline = instant() + timeout;
        if let Some(mut idle) = self.take() {
            idle.line.sock.deadline = deadline;
            match call.over(&mut idle.line, &self.place, true) {
                Ok((answer, stays)) => {
                    self.keep(idle, stays);
                    return Ok(answer);
                }
                Err(failed) if repeat == Repeat::Allowed && was_gone(&failed) => {}
                Err(failed) => return Err(failed.error),
            }
        }
        let mut idle = self.connect(deadline)?;
        let (answer, stays) = call.over(&mut idle.line, &self.place, true).map_err(|failed| failed.error)?;
        self.keep(idle, stays);
        Ok(answer)
    }

    /// Sends a call, followed by `length` bytes in place of its body, which are read as they are sent.
    ///
    /// # Errors
    /// As [`Caller::send`]; fewer bytes are one, too.
    pub fn send_all_of(
        &self,
        call: &Call<'_>,
        body: &mut dyn Read,
        length: u64,
        timeout: Duration,
    ) -> Result<Answer, CallError> {
        call.check(&self.place)?;
        let deadline = instant() + timeout;
        let mut idle = match self.take() {
            Some(idle) => idle,
            None => self.connect(deadline)?,
        };
        idle.line.sock.deadline = deadline;
        let sent = call.over_with(&mut idle.line, &self.place, true, (body, length));
        let (answer, stays) = sent.map_err(|failed| failed.error)?;
        self.keep(idle, stays);
        Ok(answer)
    }

    fn connect(&self, deadline: Instant) -> Result<Idle, CallError> {
        let age = self.age.load(Ordering::Acquire);
        let made = instant();
        let limit = self.connecting.map_or(deadline, |limit| deadline.min(made + limit));
        let mut line = dial(&self.place, &self.config, limit)?;
        if self.connecting.is_some() {
            // A peer that accepts the connection but sends nothing counts as absent: its process stands still.
            while line.conn.is_handshaking() {
                line.conn.complete_io(&mut line.sock).map_err(|error| match error.kind() {
                    ErrorKind::TimedOut => {
                        CallError::Unreachable { place: self.place.clone(), source: error }
                    }
                    _ => broken(&self.place, error),
                })?;
            }
        }
        line.sock.deadline = deadline;
        self.made.fetch_add(1, Ordering::Relaxed);
        Ok(Idle { line, made, used: made, age })
    }

    /// The connection that is open, if it can still be used.
    fn take(&self) -> Option<Idle> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        let is_young = idle.made.elapsed() < LONGEST_LIFE && idle.used.elapsed() < LONGEST_IDLE;
        (is_young && is_silent(&idle.line)).then_some(idle)
    }

    fn keep(&self, mut idle: Idle, stays: bool) {
        if !stays || idle.age != self.age.load(Ordering::Acquire) {
            return;
        }
        idle.used = instant();
        *self.idle.lock().unwrap_or_else(PoisonError::into_inner) = Some(idle);
    }
}

/// Returns whether nothing came between two calls; otherwise the other side has ended the connection, or sends
/// unasked.
fn is_silent(line: &Line) -> bool {
    let stream = &line.sock.stream;
    if stream.set_nonblocking(true).is_err() {
        return false;
    }
    let waits = matches!(stream.peek(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock);
    stream.set_nonblocking(false).is_ok() && waits
}

/// Returns whether the other side had ended the connection before it read the call, as far as this side can know.
fn was_gone(failed: &Failed) -> bool {
    let is_late =
        matches!(&failed.error, CallError::Broken { source, .. } if source.kind() == ErrorKind::TimedOut);
    failed.is_unanswered && !is_late
}
