//! Figures of a simulation.
use crate::simulator::Outcome;
use serde::Serialize;

/// Mean and percentiles in seconds. A percentile is the least value with at least that part of all values at or below it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Spread {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 95th percentile.
    pub p95: f64,
    /// Largest value.
    pub max: f64,
}

impl Spread {
    /// Computes the figures of these values; all 0 for none.
    ///
    /// ```
    /// use tidemill_jobs::Spread;
    /// let spread = Spread::of([4.0, 1.0, 2.0, 3.0]);
    /// assert_eq!((spread.mean, spread.p50, spread.p95, spread.max), (2.5, 2.0, 4.0, 4.0));
    /// ```
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let Some(max) = values.last().copied() else { return Self::default() };
        let rank =
            |part: f64| values[((part * values.len() as f64).ceil() as usize).clamp(1, values.len()) - 1];
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        Self { mean, p50: rank(0.5), p95: rank(0.95), max }
    }
}

/// Figures of a simulation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Measures {
    /// Jobs that completed.
    pub completed: usize,
    /// Jobs that did not, because the simulation was interrupted.
    pub open: usize,
    /// From submission to completion, of completed jobs: JCT.
    pub completion: Spread,
    /// Waiting without machines, of completed jobs.
    pub queueing: Spread,
    /// Seconds from the first submission to the last completion.
    pub makespan: f64,
    /// Preemptions of all jobs.
    pub preemptions: u64,
    /// Promotions of all jobs.
    pub promotions: u64,
    /// Seconds that jobs held machines without computing, to write checkpoints and to resume.
    pub overhead: f64,
    /// Part of the capacity that computed, from the first submission to the last completion, 0 to 1.
    pub utilisation: f64,
}

impl Outcome {
    /// Computes the figures.
    pub fn measures(&self) -> Measures {
        let done: Vec<_> = self.jobs.iter().filter_map(|job| Some((job, job.ended?))).collect();
        let first = self.jobs.iter().map(|job| job.submitted).min().unwrap_or_default();
        let last = done.iter().map(|(_, ended)| *ended).max().unwrap_or(first);
        let makespan = (last - first).seconds();
        let capacity = self.capacity as f64 / 1e3 * makespan;
        let used: f64 = self.jobs.iter().map(|job| job.service.slot_seconds()).sum();
        Measures {
            completed: done.len(),
            open: self.jobs.len() - done.len(),
            completion: Spread::of(done.iter().map(|(job, ended)| (*ended - job.submitted).seconds())),
            queueing: Spread::of(done.iter().map(|(job, _)| job.waited.seconds())),
            makespan,
            preemptions: self.jobs.iter().map(|job| u64::from(job.preemptions)).sum(),
            promotions: self.jobs.iter().map(|job| u64::from(job.promotions)).sum(),
            overhead: self.jobs.iter().map(|job| job.overhead.seconds()).sum(),
            utilisation: if capacity > 0.0 { used / capacity } else { 0.0 },
        }
    }
}
