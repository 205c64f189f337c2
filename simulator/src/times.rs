//! Service times: the measured distribution of each stage's calls, by the number of records in a call.
mod distribution;
mod measured;

pub use distribution::{Distribution, Quantiles};

use tidemill_optimizer::problem::{Problem, ServiceMode};
use tidemill_optimizer::solution::{Hosting, Solution};

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

    /// The part of a processor that the worker has, where the times are those of a whole one.
    pub fn share(&self) -> Option<f64> {
        self.share
    }

    /// The same distribution for calls of any size.
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

    /// The least that is known of any size of call.
    pub fn knowledge(&self) -> Knowledge {
        let all = self.by_batch.iter().map(|(_, distribution)| distribution.knowledge());
        all.min().unwrap_or(Knowledge::Mean)
    }
}

/// Service times of all stages of a solution, by position of its hostings; none for what costs no time.
#[derive(Debug, Clone, PartialEq)]
pub struct Times {
    by_hosting: Vec<Option<ServiceTimes>>,
}

impl Times {
    /// One for each hosting of the solution, in its order.
    pub fn new(by_hosting: Vec<Option<ServiceTimes>>) -> Self {
        Self { by_hosting }
    }

    /// From the problem alone: the samples of each mode, else its mean. Calls with fewer records than the mode's batch
    /// take what smaller modes of the same backend take; where there is none, as long as a full one.
    pub fn of_modes(problem: &Problem, solution: &Solution) -> Self {
        let of = |hosting: &Hosting| {
            let (modes, chosen) = modes_of(problem, solution, hosting)?;
            let same =
                modes.iter().filter(|mode| mode.backend == chosen.backend && mode.batch <= chosen.batch);
            ServiceTimes::new(same.map(|mode| (mode.batch, of_mode(mode))).collect())
        };
        Self { by_hosting: solution.hostings.iter().map(of).collect() }
    }

    /// That of a hosting.
    pub fn of(&self, hosting: usize) -> Option<&ServiceTimes> {
        self.by_hosting.get(hosting)?.as_ref()
    }

    /// What is known of each hosting that takes time.
    pub fn knowledge(&self) -> impl Iterator<Item = (usize, Knowledge)> {
        let all = self.by_hosting.iter().enumerate();
        all.filter_map(|(hosting, times)| Some((hosting, times.as_ref()?.knowledge())))
    }
}

fn of_mode(mode: &ServiceMode) -> Distribution {
    Distribution::of_points(&mode.samples, &[], Some(mode.mean_call_seconds))
        .unwrap_or(Distribution::Mean(mode.mean_call_seconds))
}

/// The ways in which a hosting could run its variant where it is, and the chosen one.
fn modes_of<'a>(
    problem: &'a Problem,
    solution: &Solution,
    hosting: &Hosting,
) -> Option<(&'a [ServiceMode], &'a ServiceMode)> {
    let worker = solution.workers.get(hosting.worker?)?;
    let operator = problem.operators.get(hosting.operator)?;
    let variant = operator.variants.get(*solution.variants.get(hosting.operator)?)?;
    let modes = variant.modes.get(worker.class)?;
    Some((modes, modes.get(hosting.mode)?))
}
