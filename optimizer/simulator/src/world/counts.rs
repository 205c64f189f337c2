//! Counters of stages and sinks.
use crate::frontier::{CLOSED, Epoch};
use crate::network::Nanoseconds;
use crate::options::{Options, Sink};
use crate::statistics::{Distributed, OverTime};
use std::collections::BTreeMap;
use tidemill_spec::publication::Publication;

/// Route classes with a histogram of their own; the others share the last one.
const CLASSES: usize = 256;

/// Counters of a sink.
#[derive(Debug)]
pub(crate) struct SinkCounts {
    /// Latencies by route class, for classes with records.
    pub(crate) by_class: Vec<Option<Distributed>>,
    /// Until readers see a record.
    pub(crate) visible: Distributed,
    /// Until it arrives.
    pub(crate) arrival: Distributed,
    /// Records that arrived in the window.
    pub(crate) records: u64,
    /// Number of epochs that are published together; none: readers see nothing before the end of the run.
    together: Option<Epoch>,
    /// Records not yet visible, as due time and class, by the first of the epochs that are published together.
    waiting: BTreeMap<Epoch, Vec<(Nanoseconds, u32)>>,
}

impl SinkCounts {
    pub(crate) fn new(sink: &Sink, options: &Options, classes: usize) -> Self {
        Self {
            by_class: vec![None; classes.min(CLASSES)],
            visible: Distributed::new(3),
            arrival: Distributed::new(3),
            records: 0,
            together: match sink.publication {
                Publication::OnArrival => Some(0),
                Publication::EachEpoch => Some(1),
                Publication::EachCheckpoint => Some(Epoch::from(options.checkpoint_every.max(1))),
                Publication::AtEnd => None,
            },
            waiting: BTreeMap::new(),
        }
    }

    /// A record of an epoch, due at `born`, arrives at `now`.
    pub(crate) fn record(
        &mut self,
        (born, class, epoch): (Nanoseconds, u32, Epoch),
        now: Nanoseconds,
        (from, to): (Nanoseconds, Nanoseconds),
    ) {
        if born >= from {
            self.arrival.record(now - born);
            match self.together {
                Some(0) => self.see((born, class), now),
                Some(together) => self.waiting.entry(epoch / together).or_default().push((born, class)),
                None => {}
            }
        }
        self.records += u64::from((from..=to).contains(&now));
    }

    /// All epochs before the frontier are complete: like the engine's sinks, commits up to the last boundary that the
    /// frontier has reached.
    pub(crate) fn publish(&mut self, frontier: Epoch, now: Nanoseconds) {
        let Some(together) = self.together.filter(|together| *together > 0) else { return };
        let complete = if frontier == CLOSED { CLOSED } else { frontier / together };
        while let Some(first) = self.waiting.first_entry().filter(|first| *first.key() < complete) {
            for record in first.remove() {
                self.see(record, now);
            }
        }
    }

    /// A record is visible.
    fn see(&mut self, (born, class): (Nanoseconds, u32), now: Nanoseconds) {
        let place = (class as usize).min(self.by_class.len() - 1);
        self.visible.record(now - born);
        self.by_class[place].get_or_insert_with(|| Distributed::new(2)).record(now - born);
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

/// Counters of a stage.
#[derive(Debug, Default)]
pub(crate) struct StageCounts {
    pub(crate) taken: u64,
    pub(crate) served: u64,
    pub(crate) batches: u64,
    /// Records of these calls.
    pub(crate) called: u64,
    /// Records that wait to be served.
    pub(crate) queue: OverTime,
    /// Time from when a record could be served to the start of its call.
    pub(crate) waiting: Wait,
    /// Time that records waited for their epoch to be complete, including partners.
    pub(crate) held: Wait,
    /// Worker time.
    pub(crate) busy: Nanoseconds,
}
