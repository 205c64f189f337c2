//! Turns and memory of a session, by the daemon.
use super::FromChild;
use super::turn_flag::{Shared, Turns, now};
use crate::call::Hello;
use crate::device::{DeviceError, LOADING, Limits};
use crate::proxy::Admission;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time of runs that may be in the queue of the device while the session has a standing turn: another one waits so long at most.
const QUEUE: Duration = Duration::from_millis(20);
/// Bytes that must be freed before the daemon is told.
const WORTH: u64 = 16 << 20;

/// Asks the daemon.
pub(super) struct ByDaemon {
    shared: Arc<Shared>,
    begun: Option<Instant>,
}

impl ByDaemon {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, begun: None }
    }
}

impl Admission for ByDaemon {
    fn admit(&mut self, hello: &Hello) -> Result<Limits, String> {
        self.shared.say(&FromChild::Admit(hello.clone()));
        let mut state = self.shared.state();
        loop {
            match state.admitted.take() {
                Some(admitted) => return admitted,
                None if self.shared.is_over() => return Err("the session has ended".to_owned()),
                None => state = self.shared.wait_for_daemon(state),
            }
        }
    }

    fn turn(&mut self) {
        let asked = now();
        let mut state = self.shared.state();
        while !self.shared.ending().is_due() {
            let queue = state.busy_until.and_then(|until| until.checked_sub(QUEUE));
            let mut until = None;
            let is_granted = match state.turns {
                _ if state.turn => true,
                Turns::Standing if queue.is_none_or(|queue| queue <= now()) => true,
                Turns::Standing => {
                    until = queue;
                    false
                }
                Turns::Single | Turns::Recalled => {
                    if !state.waits {
                        state.waits = true;
                        self.shared.say(&FromChild::Want);
                    }
                    false
                }
            };
            if is_granted {
                let begun = now();
                (state.turn, state.runs, state.waits) =
                    (state.turn && state.turns == Turns::Single, true, false);
                state.figures.waited_us += micros(begun.saturating_duration_since(asked));
                self.begun = Some(begun);
                return;
            }
            state = match until {
                None => self.shared.wait_for_daemon(state),
                until => self.shared.wait(state, until),
            };
        }
    }

    fn ran(&mut self, computes: Option<Duration>) {
        let Some(begun) = self.begun.take() else { return };
        let mut state = self.shared.state();
        let begins = state.busy_until.map_or(begun, |until| until.max(begun));
        let ends = begins.checked_add(computes.unwrap_or_default()).unwrap_or(begins);
        state.busy_until = Some(ends.max(now()));
        state.figures.runs += 1;
        state.figures.failed += u64::from(computes.is_none());
        state.figures.computed_us += micros(computes.unwrap_or_default());
        state.runs = false;
        if std::mem::take(&mut state.turn) {
            self.shared.say(&FromChild::Ran { busy: state.busy() });
        }
        if state.turns == Turns::Recalled {
            self.shared.return_turn(&mut state);
        }
    }

    fn apart(&mut self, models: u64) {
        self.shared.state().figures.apart = models;
    }

    fn holds(&mut self, bytes: u64, models: u64) {
        let mut state = self.shared.state();
        (state.figures.memory, state.figures.models) = (bytes, models);
        if state.granted != u64::MAX && state.granted.saturating_sub(bytes) > WORTH.max(bytes) {
            state.granted = bytes;
            self.shared.say(&FromChild::Less { held: bytes });
        }
    }

    fn room(&mut self, held: u64, wanted: u64, _: &Limits) -> Result<(), DeviceError> {
        let needed = held.saturating_add(wanted);
        let mut state = self.shared.state();
        if needed <= state.granted {
            return Ok(());
        }
        state.room = None;
        self.shared.say(&FromChild::More { held, wanted });
        loop {
            match state.room.take() {
                // What the session holds is granted in any case: it is there. Above the limit, the call that made it fails.
                Some((granted, limit)) if needed <= granted && needed <= limit => return Ok(()),
                Some((_, limit)) => return Err(DeviceError::OutOfMemory { wanted, held, limit }),
                None if self.shared.is_over() => {
                    return Err(DeviceError::Device("the session has ended".to_owned()));
                }
                None => state = self.shared.wait_for_daemon(state),
            }
        }
    }
}

/// Admission of a session whose process computes runs of several sessions together: the process takes the turns, and has the models.
pub(super) struct OfMember {
    shared: Arc<Shared>,
    by_daemon: ByDaemon,
    asked: Option<Instant>,
}

impl OfMember {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { by_daemon: ByDaemon::new(Arc::clone(&shared)), shared, asked: None }
    }
}

impl Admission for OfMember {
    fn admit(&mut self, hello: &Hello) -> Result<Limits, String> {
        let limits = self.by_daemon.admit(hello)?;
        // The time of a run includes its wait for the process.
        Ok(Limits { longest_run: limits.longest_run.saturating_mul(LOADING), ..limits })
    }

    fn turn(&mut self) {
        self.asked = Some(now());
        self.shared.state().figures.is_waiting = true;
    }

    fn ran(&mut self, computes: Option<Duration>) {
        let Some(asked) = self.asked.take() else { return };
        let computed = computes.unwrap_or_default();
        let waited = now().saturating_duration_since(asked).saturating_sub(computed);
        let figures = &mut self.shared.state().figures;
        figures.is_waiting = false;
        figures.runs += 1;
        figures.failed += u64::from(computes.is_none());
        figures.computed_us += micros(computed);
        figures.waited_us += micros(waited);
    }

    fn holds(&mut self, bytes: u64, models: u64) {
        self.by_daemon.holds(bytes, models);
    }

    fn room_for_model(&mut self, _: u64, _: u64, _: &Limits) -> Result<(), DeviceError> {
        Ok(())
    }

    fn room(&mut self, held: u64, wanted: u64, limits: &Limits) -> Result<(), DeviceError> {
        self.by_daemon.room(held, wanted, limits)
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
