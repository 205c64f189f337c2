//! Times of calls in a simulation: the measured distribution of a variant's calls, by the number of records in a call.
//! A planner derives a worker's capacity from these distributions.
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]
mod distribution;
mod measured;

pub use distribution::{Distribution, Quantiles};

/// Quantiles at which two distributions are compared.
const PARTS: u32 = 200;

/// Detail of the service times of a stage, the least first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Knowledge {
    /// The mean only: every call takes equally long.
    Mean,
    /// Named percentiles only: linear between them, unknown above the last.
    Percentiles,
    /// The distribution: evenly spaced quantiles of measured calls.
    Distribution,
}

/// Service times of one stage: distributions by the records in a call.
#[derive(Debug, Clone, PartialEq)]
pub struct ServiceTimes {
    /// Records in a call and the time of the call, the smallest first; not empty.
    by_batch: Vec<(u32, Distribution)>,
    /// Calls with one record after a pause.
    after_pause: Option<Distribution>,
    /// The worker's share of a processor, where the times are those of a whole one.
    share: Option<f64>,
}

impl ServiceTimes {
    /// Creates times from distributions by batch; none without any.
    pub fn new(mut by_batch: Vec<(u32, Distribution)>) -> Option<Self> {
        by_batch.sort_by_key(|(batch, _)| *batch);
        by_batch.dedup_by_key(|(batch, _)| *batch);
        (!by_batch.is_empty()).then_some(Self { by_batch, after_pause: None, share: None })
    }

    /// Sets the times of calls after a pause: each call then takes longer by the difference between these and the
    /// others, with one record.
    pub fn with_pauses(self, after_pause: Option<Distribution>) -> Self {
        Self { after_pause, ..self }
    }

    /// Declares the times as processor time of a worker with this share of a processor: a quota of every 10 ms.
    pub fn of_share(self, share: Option<f64>) -> Self {
        Self { share, ..self }
    }

    /// Adapts to a worker where other programs slow everything down by `factor`.
    #[must_use]
    pub fn slowed(self, factor: f64) -> Self {
        let share = Some(self.share.unwrap_or(1.0) / factor);
        if factor > 1.0 { Self { share, ..self } } else { self }
    }

    /// Returns the worker's share of a processor, where the times are those of a whole one.
    pub fn share(&self) -> Option<f64> {
        self.share
    }

    /// Creates times with one distribution for calls of every batch size.
    pub fn of_any_batch(distribution: Distribution) -> Self {
        Self { by_batch: vec![(1, distribution)], after_pause: None, share: None }
    }

    /// Returns the seconds of a call with this number of records, at the quantile `part` (0 to 1): linear between two
    /// known sizes, beyond them that of the nearest.
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

    /// Returns the additional seconds of a call after a pause, compared with [`ServiceTimes::at`].
    pub fn longer_after_pause(&self, part: f64) -> f64 {
        self.after_pause.as_ref().map_or(0.0, |after| (after.at(part) - self.at(1, part)).max(0.0))
    }

    /// Returns the mean seconds of a call with this number of records, without a pause before it.
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

    /// Returns the mean seconds that a call with this number of records occupies a worker, after a pause; with a share
    /// of a processor, until its quota for the call is available again. No worker carries more calls than this allows.
    pub fn worker_seconds(&self, records: u32) -> f64 {
        let parts = (0..PARTS).map(|n| (f64::from(n) + 0.5) / f64::from(PARTS));
        let longer = parts.map(|part| self.longer_after_pause(part)).sum::<f64>() / f64::from(PARTS);
        (self.mean(records) + longer) / self.share.unwrap_or(1.0)
    }

    /// Returns the least detail of any size of call.
    pub fn knowledge(&self) -> Knowledge {
        let all = self.by_batch.iter().map(|(_, distribution)| distribution.knowledge());
        all.min().unwrap_or(Knowledge::Mean)
    }
}
