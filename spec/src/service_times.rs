//! How long calls take, as a simulation draws it: the measured distribution of a variant's calls, by the number of
//! records in a call. A planner takes from the same distributions what a worker can carry at most.
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]
mod distribution;
mod measured;

pub use distribution::{Distribution, Quantiles};

/// Quantiles at which two distributions are compared.
const PARTS: u32 = 200;

/// How much is known of the service times of a stage, the least first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Knowledge {
    /// The mean only: every call takes as long.
    Mean,
    /// Named percentiles only: times between them lie on a straight line, and what is above the last is not known.
    Percentiles,
    /// The distribution: evenly spaced quantiles of measured calls.
    Distribution,
}

/// Service times of one stage: distributions by the records in a call.
#[derive(Debug, Clone, PartialEq)]
pub struct ServiceTimes {
    /// Records in a call and the time of the call, the smallest first; not empty.
    by_batch: Vec<(u32, Distribution)>,
    /// Calls with one record that do not follow upon another of the same stage.
    after_pause: Option<Distribution>,
    /// The part of a processor that the worker has, where the times are those of a whole one.
    share: Option<f64>,
}

impl ServiceTimes {
    /// Of distributions by batch; none where there are none.
    pub fn new(mut by_batch: Vec<(u32, Distribution)>) -> Option<Self> {
        by_batch.sort_by_key(|(batch, _)| *batch);
        by_batch.dedup_by_key(|(batch, _)| *batch);
        (!by_batch.is_empty()).then_some(Self { by_batch, after_pause: None, share: None })
    }

    /// Calls that do not follow at once upon another of the same stage take longer: by as much as these, with one record,
    /// take longer than those.
    pub fn with_pauses(self, after_pause: Option<Distribution>) -> Self {
        Self { after_pause, ..self }
    }

    /// The times are processor time of a worker that has this part of a processor: so much of every 10 ms.
    pub fn of_share(self, share: Option<f64>) -> Self {
        Self { share, ..self }
    }

    /// On a worker of which something else takes so much that everything takes `factor` times as long.
    #[must_use]
    pub fn slowed(self, factor: f64) -> Self {
        let share = Some(self.share.unwrap_or(1.0) / factor);
        if factor > 1.0 { Self { share, ..self } } else { self }
    }

    /// The part of a processor that the worker has, where the times are those of a whole one.
    pub fn share(&self) -> Option<f64> {
        self.share
    }

    /// One distribution for calls of every batch size.
    pub fn of_any_batch(distribution: Distribution) -> Self {
        Self { by_batch: vec![(1, distribution)], after_pause: None, share: None }
    }

    /// Seconds of a call with so many records, at the quantile `part` (0 to 1). Between two sizes that are known, on a
    /// straight line; beyond them, that of the nearest.
    pub fn at(&self, records: u32, part: f64) -> f64 {
        let after = self.by_batch.partition_point(|(batch, _)| *batch < records);
        let Some((upper_batch, upper)) = self.by_batch.get(after) else {
            return self.by_batch[after - 1].1.at(part);
        };
        if *upper_batch == records || after == 0 {
            return upper.at(part);
        }
        let (lower_batch, lower) = &self.by_batch[after - 1];
        let weight = f64::from(records - lower_batch) / f64::from(upper_batch - lower_batch);
        (1.0 - weight) * lower.at(part) + weight * upper.at(part)
    }

    /// How much longer than [`ServiceTimes::at`] says a call takes that does not follow upon another, in seconds.
    pub fn longer_after_pause(&self, part: f64) -> f64 {
        self.after_pause.as_ref().map_or(0.0, |after| (after.at(part) - self.at(1, part)).max(0.0))
    }

    /// Mean seconds of a call with so many records, of those that follow upon another.
    pub fn mean(&self, records: u32) -> f64 {
        let after = self.by_batch.partition_point(|(batch, _)| *batch < records);
        let Some((upper_batch, upper)) = self.by_batch.get(after) else {
            return self.by_batch[after - 1].1.mean();
        };
        if *upper_batch == records || after == 0 {
            return upper.mean();
        }
        let (lower_batch, lower) = &self.by_batch[after - 1];
        let weight = f64::from(records - lower_batch) / f64::from(upper_batch - lower_batch);
        (1.0 - weight) * lower.mean() + weight * upper.mean()
    }

    /// Mean seconds that a worker is taken by a call with so many records, where none follows upon another of the same
    /// stage: of a share of a processor, until its quota for the call is there again. No worker carries more calls than
    /// this allows.
    pub fn worker_seconds(&self, records: u32) -> f64 {
        let parts = (0..PARTS).map(|n| (f64::from(n) + 0.5) / f64::from(PARTS));
        let longer = parts.map(|part| self.longer_after_pause(part)).sum::<f64>() / f64::from(PARTS);
        (self.mean(records) + longer) / self.share.unwrap_or(1.0)
    }

    /// The least that is known of any size of call.
    pub fn knowledge(&self) -> Knowledge {
        let all = self.by_batch.iter().map(|(_, distribution)| distribution.knowledge());
        all.min().unwrap_or(Knowledge::Mean)
    }
}
