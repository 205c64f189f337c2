//! Answers of a device. Who waits for one reads the connection, so that no other thread has to wake it; a thread of the session
//! reads while nobody waits. Whoever does not read looks whether the device gives signs of life.
use super::patience::{LOOK, Patience, SILENCE};
use super::{Answer, CallError, Times, now};
use crate::call::{BEAT, GOODBYE, LATE, RECEIPT, REPLY};
use crate::carrier::{HangUp, Message, Messages, Moved};
use crate::memory::{LEAST, Traffic};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long the thread leaves the connection to those who wait, after the last of them.
const PAUSE: Duration = Duration::from_millis(20);

type Outcome = Result<Answer, CallError>;

/// A call that has no answer yet, or whose answer nobody has taken.
pub(super) struct Waiting {
    begun: Instant,
    outcome: Option<Outcome>,
}

impl Waiting {
    pub(super) fn since(begun: Instant) -> Self {
        Self { begun, outcome: None }
    }
}

pub(super) struct State {
    pub(super) waiting: BTreeMap<u64, Waiting>,
    /// Calls whose answer is not wanted any more.
    unwanted: BTreeSet<u64>,
    /// Bytes of calls that the proxy has handled.
    pub(super) handled: u64,
    /// Bytes of calls that it receives or has received.
    pub(super) posted: u64,
    /// Sequence number of the last call that is written as a whole.
    pub(super) written: u64,
    pub(super) lost: Option<String>,
    /// The device itself ended the session.
    pub(super) dismissed: bool,
    /// It ended all of them.
    pub(super) drained: bool,
    /// The device gave no sign of life, or computed for too long.
    pub(super) stalled: bool,
    pub(super) patience: Patience,
    /// Whether the proxy shares memory, too.
    pub(super) has_memory: bool,
    /// Payloads that the proxy has copied out of the memory of this side, and this side out of that of the proxy.
    pub(super) returned: u64,
    pub(super) taken: u64,
    pub(super) traffic: Traffic,
    /// Whether a thread reads the connection.
    is_read: bool,
    /// Messages that were read by those who wait.
    read_by_waiters: u64,
    /// The session has ended the connection.
    closed: bool,
}

/// What the threads of a session share.
pub(super) struct Shared {
    state: Mutex<State>,
    messages: Mutex<Messages>,
    /// Bytes that came and went.
    moved: Moved,
    hang_up: HangUp,
    /// A message was read, or the session is lost.
    changed: Condvar,
    /// The connection ends.
    ends: Condvar,
}

impl Shared {
    pub(super) fn new(messages: Messages, hang_up: HangUp) -> Self {
        let state = State {
            waiting: BTreeMap::new(),
            unwanted: BTreeSet::new(),
            handled: 0,
            posted: 0,
            written: 0,
            lost: None,
            dismissed: false,
            drained: false,
            stalled: false,
            patience: Patience::new(now()),
            has_memory: false,
            returned: 0,
            taken: 0,
            traffic: Traffic::default(),
            is_read: false,
            read_by_waiters: 0,
            closed: false,
        };
        let (state, moved, (changed, ends)) = (Mutex::new(state), messages.moved(), Default::default());
        Self { state, messages: Mutex::new(messages), moved, hang_up, changed, ends }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn lose(&self, reason: String) {
        self.lose_with(&mut self.state(), reason);
    }

    fn lose_with(&self, state: &mut State, reason: String) {
        let (written, reason) = (state.written, state.lost.get_or_insert(reason).clone());
        for (sequence, waiting) in &mut state.waiting {
            let (sequence, may_have_run) = (*sequence, *sequence <= written);
            let lost = || Err(CallError::Lost { sequence, may_have_run, reason: reason.clone() });
            waiting.outcome.get_or_insert_with(lost);
        }
        self.changed.notify_all();
        self.ends.notify_all();
    }

    /// Ends the connection: a thread that reads or writes it returns.
    pub(super) fn hang_up(&self) {
        (self.hang_up)();
    }

    /// Loses a device that gave no sign of life while somebody waited for it.
    fn look(&self, state: &mut State) {
        let moved = self.moved.load(Ordering::Relaxed);
        if state.lost.is_some() || !state.patience.is_over(moved, now()) {
            return;
        }
        state.stalled = true;
        let silence = SILENCE.as_secs();
        self.lose_with(state, format!("it gave no sign of life for {silence} s"));
        self.hang_up();
    }

    /// As [`Self::look`], for a thread that writes: so many bytes went since the last look.
    pub(super) fn look_while_writing(&self, written: usize) -> io::Result<()> {
        self.moved.fetch_add(written as u64, Ordering::Relaxed);
        if written > 0 {
            return Ok(());
        }
        let mut state = self.state();
        self.look(&mut state);
        match &state.lost {
            Some(reason) => Err(io::Error::new(io::ErrorKind::TimedOut, reason.clone())),
            None => Ok(()),
        }
    }

    /// Tells the thread that the connection has ended.
    pub(super) fn close(&self) {
        self.state().closed = true;
        self.ends.notify_all();
    }

    /// Waits until this is so or the session is lost, and reads messages if no other thread does.
    pub(super) fn wait_until<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        is_so: impl Fn(&State) -> bool,
    ) -> MutexGuard<'a, State> {
        state.patience.begin(now);
        while state.lost.is_none() && !is_so(&state) {
            state = if state.is_read {
                let waited = self.changed.wait_timeout(state, LOOK);
                let (mut state, waited) = waited.unwrap_or_else(PoisonError::into_inner);
                if waited.timed_out() {
                    self.look(&mut state);
                }
                state
            } else {
                state.read_by_waiters += 1;
                self.read(state)
            };
        }
        state.patience.end();
        state
    }

    /// Reads until the session is lost, whenever nobody has waited for a while.
    pub(super) fn attend(&self) {
        let (mut state, mut is_quiet) = (self.state(), true);
        while state.lost.is_none() {
            if state.closed || is_quiet && !state.is_read {
                state = self.read(state);
                is_quiet = false;
            } else {
                let before = state.read_by_waiters;
                let ended = |state: &mut State| state.lost.is_none() && !state.closed;
                let waited = self.ends.wait_timeout_while(state, PAUSE, ended);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
                is_quiet = state.read_by_waiters == before;
                self.look(&mut state);
            }
        }
    }

    /// Reads one message, without the lock.
    fn read<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        state.is_read = true;
        drop(state);
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        let next = messages.next();
        let has_memory = messages.has_memory();
        drop(messages);
        let copied = next.map(|message| {
            message.map(|message| {
                let placed = message.placed.as_ref().map(|place| Bytes::from(place.to_vec()));
                (message, placed)
            })
        });
        let mut state = self.state();
        (state.is_read, state.has_memory) = (false, has_memory);
        if let Err(reason) = state.take(copied) {
            self.lose_with(&mut state, reason);
            // A device that computes for too long ends with the connection.
            self.hang_up();
        }
        self.changed.notify_all();
        state
    }
}

impl State {
    /// Takes a message, or returns why the session is lost.
    fn take(&mut self, next: io::Result<Option<(Message, Option<Bytes>)>>) -> Result<(), String> {
        let (Message { head, payload, .. }, placed) = match next {
            Ok(Some(message)) => message,
            Ok(None) => return Err("the other side ended the connection".to_owned()),
            Err(error) => return Err(error.to_string()),
        };
        let [handled, second, computed, returned] = head.numbers;
        if handled > self.posted {
            return Err(format!("the device handled {handled} bytes of {}", self.posted));
        }
        self.handled = self.handled.max(handled);
        self.returned = self.returned.max(returned);
        match &placed {
            Some(_) => {
                self.taken += 1;
                self.traffic.received_in_memory += 1;
            }
            None if payload.len() > LEAST => self.traffic.received_over_connection += 1,
            None => {}
        }
        match head.kind {
            RECEIPT | BEAT => Ok(()),
            LATE => {
                self.stalled = true;
                Err(String::from_utf8_lossy(&payload).into_owned())
            }
            GOODBYE => {
                (self.dismissed, self.drained) = (true, second == 1);
                Err(String::from_utf8_lossy(&payload).into_owned())
            }
            REPLY if self.unwanted.remove(&head.sequence) => Ok(()),
            REPLY => {
                let waiting = self.waiting.get_mut(&head.sequence).filter(|call| call.outcome.is_none());
                let waiting = waiting.ok_or_else(|| {
                    format!("the device answered call {}, which waits for nothing", head.sequence)
                })?;
                let times = Times {
                    total: now().saturating_duration_since(waiting.begun),
                    at_device: Duration::from_nanos(second),
                    computed: Duration::from_nanos(computed),
                };
                waiting.outcome = Some(if head.failed {
                    match serde_json::from_slice(&payload) {
                        Ok(failure) => Err(CallError::Failed(failure)),
                        Err(error) => Err(CallError::Value(format!("an error that cannot be read: {error}"))),
                    }
                } else {
                    Ok(Answer { payload, placed, times })
                });
                Ok(())
            }
            other => Err(format!("the device sent a message of the kind {other}")),
        }
    }

    fn is_answered(&self, sequence: u64) -> bool {
        self.waiting.get(&sequence).is_none_or(|waiting| waiting.outcome.is_some())
    }
}

/// A call that waits for its answer. Its lane must be dropped, or [sent](super::Lane::send), before a wait.
pub struct Pending {
    sequence: u64,
    shared: Arc<Shared>,
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("sequence", &self.sequence).finish_non_exhaustive()
    }
}

impl Pending {
    pub(super) fn new(sequence: u64, shared: &Arc<Shared>) -> Self {
        Self { sequence, shared: Arc::clone(shared) }
    }

    /// Its sequence number.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Waits for the answer.
    ///
    /// # Errors
    /// [`CallError::Failed`] with the first call of the lane that failed since the last call that waited, or
    /// [`CallError::Lost`].
    pub fn wait(self) -> Result<Answer, CallError> {
        let is_answered = |state: &State| state.is_answered(self.sequence);
        let mut state = self.shared.wait_until(self.shared.state(), is_answered);
        let outcome = state.waiting.remove(&self.sequence).and_then(|waiting| waiting.outcome);
        outcome.unwrap_or_else(|| Err(self.ended("the session has ended")))
    }

    /// As [`Self::wait`], while the thread of the session reads.
    pub(super) fn wait_at_most(self, limit: Duration) -> Result<Answer, CallError> {
        let is_open = |state: &mut State| !state.is_answered(self.sequence);
        let waited = self.shared.changed.wait_timeout_while(self.shared.state(), limit, is_open);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        let outcome = state.waiting.remove(&self.sequence).and_then(|waiting| waiting.outcome);
        let late = || Err(self.ended(&format!("it did not answer within {} s", limit.as_secs())));
        outcome.unwrap_or_else(late)
    }

    fn ended(&self, reason: &str) -> CallError {
        CallError::Lost { sequence: self.sequence, may_have_run: true, reason: reason.to_owned() }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        if state.waiting.remove(&self.sequence).is_some_and(|waiting| waiting.outcome.is_none()) {
            state.unwanted.insert(self.sequence);
        }
    }
}
