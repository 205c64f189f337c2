//! The calls of a stage whose model computes on an emulated device.
//!
//! | part of a call | where its time goes |
//! |---|---|
//! | preparation of inputs and outputs, all before the model | the worker of the stage, as any call there |
//! | input tensors | the wire to the device, shared with the edges between the two places |
//! | wait | the queue of the device, shared with the other stages on it |
//! | model | the device |
//! | output tensors | the wire back |
//!
//! All these times are known, so they are not those of this machine: meanwhile the model computes here, for the records. That must be
//! done when the outputs are back; otherwise the call overran, as on a worker. The times pass on a thread of their own, so that a call
//! takes its turn on wires and devices when it gets there, however long this machine computes. Each copy of a model has one call on its
//! way, as with a real device.
use super::device::Device;
use super::sleepers::Sleepers;
use super::wire::Wire;
use super::worker::{Ended, Meter, Server, of};
use super::{CallTimes, OnDevice};
use crate::clock::{Clock, Nanoseconds};
use crate::executor::{CallGate, GatedCall, Span};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tidemill_operators::api::DeviceTimes;

impl CallTimes {
    /// Nanoseconds of a call with this number of records.
    fn lasts(&self, records: usize, follows: bool) -> Nanoseconds {
        let pause = if follows { 0.0 } else { self.after_pause };
        ((of(&self.seconds, records).unwrap_or(0.0) + pause) * 1e9) as Nanoseconds
    }
}

/// Worker, device and wires of a stage.
pub(super) struct Path {
    pub(super) server: Arc<Server>,
    pub(super) device: Arc<Device>,
    pub(super) there: Option<Arc<Wire>>,
    pub(super) back: Option<Arc<Wire>>,
}

/// See the module.
pub(crate) struct DeviceCalls {
    stage: String,
    times: OnDevice,
    path: Path,
    sleepers: Arc<Sleepers>,
    clock: Arc<dyn Clock>,
    /// When the last call of each copy of the model that has none now came back: a copy has one call on its way.
    idle: Mutex<Vec<Nanoseconds>>,
    /// Number of the stage on its worker.
    number: usize,
    meter: Arc<Meter>,
}

/// A call after its stage.
struct Passed {
    reached: Nanoseconds,
    computed: Span,
    returned: Nanoseconds,
}

/// Sends a number of bytes that are ready at this time; returns their arrival.
fn carry(wire: Option<&Arc<Wire>>, bytes: u64, ready: Nanoseconds) -> io::Result<Nanoseconds> {
    wire.map_or(Ok(ready), |wire| wire.take_tensors(bytes, ready))
}

impl DeviceCalls {
    pub(super) fn new(
        stage: &str,
        times: OnDevice,
        path: Path,
        sleepers: &Arc<Sleepers>,
        clock: &Arc<dyn Clock>,
    ) -> Self {
        Self {
            stage: stage.to_owned(),
            number: path.server.add_stage(),
            times,
            path,
            sleepers: Arc::clone(sleepers),
            clock: Arc::clone(clock),
            idle: Mutex::default(),
            meter: Arc::default(),
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Nanoseconds>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When the copy that has waited for longest came back; each call takes one.
    fn take_idle(&self) -> Nanoseconds {
        let mut idle = self.idle();
        let first = idle.iter().enumerate().min_by_key(|(_, since)| **since).map(|(at, _)| at);
        first.map_or(Nanoseconds::MIN, |at| idle.swap_remove(at))
    }

    /// Its counters.
    pub(super) fn meter(&self) -> Arc<Meter> {
        Arc::clone(&self.meter)
    }

    /// Lets the times of a call pass whose tensors are ready at this time. Each step is taken when it begins, because others share
    /// the wires and the device.
    fn pass(&self, records: usize, ready: Nanoseconds) -> io::Result<Passed> {
        let (times, path) = (&self.times, &self.path);
        let all = |bytes: u64| bytes.saturating_mul(records as u64);
        self.sleepers.sleep_until(ready)?;
        let reached = carry(path.there.as_ref(), all(times.sent), ready)?;
        self.sleepers.sleep_until(reached)?;
        let lasts = |follows| times.model.lasts(records, follows);
        let computed = path.device.take((&self.stage, records), reached, lasts)?;
        self.sleepers.sleep_until(computed.finished)?;
        let returned = carry(path.back.as_ref(), all(times.received), computed.finished)?;
        self.sleepers.sleep_until(returned)?;
        Ok(Passed { reached, computed, returned })
    }

    /// Lets the times pass while the model computes.
    fn beside<T>(
        &self,
        records: usize,
        ready: Nanoseconds,
        compute: impl FnOnce() -> T,
    ) -> (io::Result<Passed>, T) {
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("tm-device".to_owned());
            let passing = thread.spawn_scoped(scope, || self.pass(records, ready));
            let computed = compute();
            let passed = passing
                .and_then(|passing| passing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            (passed, computed)
        })
    }

    /// Where the time of a call went, in real time.
    fn split(&self, records: usize, ready: Nanoseconds, passed: &Passed) -> DeviceTimes {
        let Passed { reached, computed, returned } = passed;
        let real = |time: Nanoseconds| {
            Duration::from_nanos((time.max(0) as f64 * self.clock.dilation()).round() as u64)
        };
        DeviceTimes {
            network: real(reached - ready + returned - computed.finished),
            queue: real(computed.started - reached),
            compute: real(computed.finished - computed.started),
            round_trips: 1,
            sent: self.times.sent * records as u64,
            received: self.times.received * records as u64,
            ..DeviceTimes::default()
        }
    }
}

impl CallGate for DeviceCalls {
    fn call(
        &self,
        records: usize,
        submitted: Nanoseconds,
        compute: &mut dyn FnMut() -> Option<Duration>,
    ) -> Option<GatedCall> {
        let server = &self.path.server;
        if !server.take_turn() {
            return None;
        }
        let begun = self.clock.now();
        let lasts = |follows| self.times.stage.lasts(records, follows);
        let since = self.take_idle();
        let (own, needed) = server.reserve(self.number, submitted.min(begun).max(since), lasts);
        // The worker is free for others when its part is over, not when this machine has computed the model.
        server.end_turn();
        let (passed, (processor, computed)) =
            self.beside(records, own.finished, || (compute(), self.clock.now()));
        if let Ok(Passed { returned, .. }) = &passed {
            self.idle().push(*returned);
        }
        let Some(processor) = processor else {
            return Some(Span { started: begun, finished: self.clock.now() }.into());
        };
        let passed = match passed {
            Ok(passed) => passed,
            Err(error) => {
                tracing::error!(stage = self.stage, %error, "the call of an emulated device has no times");
                return None;
            }
        };
        self.meter.count(Ended {
            records,
            held: own.finished - own.started,
            needed,
            allowed: passed.returned - own.started,
            elapsed: computed - begun,
            processor,
        });
        // A thread that is woken late takes nothing from the call: otherwise that would count as time of the client.
        let finished = passed.returned.max(computed);
        let span = Span { started: own.started, finished };
        Some(GatedCall { span, device: Some(self.split(records, own.finished, &passed)) })
    }
}

#[cfg(test)]
mod tests;
