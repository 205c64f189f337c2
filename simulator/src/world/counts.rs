//! What is counted of stages and sinks.
use crate::network::Nanoseconds;
use crate::statistics::{Distributed, OverTime};

/// Route classes with a histogram of their own; the others share the last one.
const CLASSES: usize = 256;

/// What is known of a sink.
#[derive(Debug)]
pub(crate) struct SinkCounts {
    /// Latencies by route class, where a record came.
    pub(crate) by_class: Vec<Option<Distributed>>,
    pub(crate) all: Distributed,
    /// Records that came in the window.
    pub(crate) records: u64,
}

impl SinkCounts {
    pub(crate) fn new(classes: usize) -> Self {
        Self { by_class: vec![None; classes.min(CLASSES)], all: Distributed::new(3), records: 0 }
    }

    /// A record came at `now` that was due at `born`.
    pub(crate) fn record(
        &mut self,
        born: Nanoseconds,
        class: u32,
        now: Nanoseconds,
        (from, to): (Nanoseconds, Nanoseconds),
    ) {
        if born >= from {
            let place = (class as usize).min(self.by_class.len() - 1);
            self.all.record(now - born);
            self.by_class[place].get_or_insert_with(|| Distributed::new(2)).record(now - born);
        }
        self.records += u64::from((from..=to).contains(&now));
    }
}

/// A sum of times.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Wait {
    pub(crate) count: u64,
    pub(crate) sum: f64,
}

impl Wait {
    pub(crate) fn add(&mut self, time: Nanoseconds) {
        self.count += 1;
        self.sum += time as f64;
    }

    /// Mean in seconds.
    pub(crate) fn mean(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum / self.count as f64 / 1e9 }
    }
}

/// What is known of a stage.
#[derive(Debug, Default)]
pub(crate) struct StageCounts {
    pub(crate) taken: u64,
    pub(crate) served: u64,
    pub(crate) batches: u64,
    /// Records of these calls.
    pub(crate) called: u64,
    /// Records that wait to be served.
    pub(crate) queue: OverTime,
    /// Time from when a record could be served to the begin of its call.
    pub(crate) waiting: Wait,
    /// Time that records waited for their epoch to be complete, partners included.
    pub(crate) held: Wait,
    /// Worker time.
    pub(crate) busy: Nanoseconds,
}
