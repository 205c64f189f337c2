//! Jobs that come and go, and the aggregators that serve them.
use crate::cycle::{Part, cycle, effective, loss, slots, work};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The part of its speed that a job may lose, where nothing else is said: a tenth.
pub const LOSS_LIMIT: f64 = 0.1;
/// Iterations after which the speed of a job is compared with that of the job alone.
pub const MONITORED_ITERATIONS: u32 = 100;
/// A job that lost speed beside others accepts at most this part of the load at which it did.
const EASED: f64 = 0.8;

/// The name of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct JobId(pub u64);

/// The name of an aggregator; names are never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AggregatorId(pub u64);

/// A job, as profiled with aggregators of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// The duration of an iteration.
    pub iteration: Duration,
    /// The processor time to aggregate each tensor, in each iteration.
    pub tensors: Vec<Duration>,
    /// The least number of aggregators, for jobs whose gradients are too much for one link.
    pub spread: usize,
}

impl Job {
    /// Creates a job that one aggregator may serve.
    pub fn new(iteration: Duration, tensors: Vec<Duration>) -> Self {
        Self { iteration, tensors, spread: 1 }
    }
}

/// A tensor gets another aggregator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Move {
    /// The job.
    pub job: JobId,
    /// The tensor, from 0 on.
    pub tensor: usize,
    /// Where it was.
    pub from: AggregatorId,
    /// Where it will be.
    pub to: AggregatorId,
}

/// The numbers of an aggregator.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Load {
    /// Its name.
    pub aggregator: AggregatorId,
    /// Its cycle (C).
    pub cycle: Duration,
    /// The processor time of all slots of a cycle (W).
    pub work: Duration,
    /// The tensors by job.
    pub tensors: BTreeMap<JobId, Vec<usize>>,
}

impl Load {
    /// Returns the part of the cycle that has work, from 0 to 1.
    pub fn utilisation(&self) -> f64 {
        if self.cycle.is_zero() { 0.0 } else { self.work.as_secs_f64() / self.cycle.as_secs_f64() }
    }
}

/// The consequence of a measured iteration.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub enum Feedback {
    /// The job is as quick as it must be.
    Kept,
    /// It is too slow, and has no aggregator with another job: profile it again.
    Alone,
    /// It was too slow, and has got other aggregators: one more, and less loaded ones.
    Reassigned {
        /// The aggregators that were added.
        added: Vec<AggregatorId>,
        /// The tensors that move.
        moves: Vec<Move>,
    },
}

/// The reason to refuse a request.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ServiceError {
    /// The loss limit is out of range.
    #[error("a loss limit of {0}: it is above 0 and at most 0.5")]
    LossLimit(f64),
    /// The name of a job is taken.
    #[error("job {} is served already", .0.0)]
    Known(JobId),
    /// There is no such job.
    #[error("there is no job {}", .0.0)]
    Unknown(JobId),
    /// There is no such aggregator.
    #[error("there is no aggregator {}", .0.0)]
    NoAggregator(AggregatorId),
    /// A job without iterations or tensors.
    #[error("job {}: an iteration takes time, and has at least one tensor", .0.0)]
    Empty(JobId),
    /// A tensor takes longer than an iteration.
    #[error("job {}: tensor {tensor} takes {work:?} of an iteration of {iteration:?}: divide it", job.0)]
    TooLong {
        /// The job.
        job: JobId,
        /// The tensor, from 0 on.
        tensor: usize,
        /// The processor time of the tensor.
        work: Duration,
        /// The duration of an iteration.
        iteration: Duration,
    },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Served {
    job: Job,
    /// The aggregator of each tensor; none while it looks for one.
    places: Vec<Option<AggregatorId>>,
    /// The highest utilisation of an aggregator that it shares.
    ceiling: f64,
}

/// The tensors of an aggregator, and what they add up to by job.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Held {
    tensors: BTreeSet<(JobId, usize)>,
    parts: BTreeMap<JobId, Part>,
}

impl Held {
    fn all(&self) -> Vec<Part> {
        self.parts.values().copied().collect()
    }
}

/// A service of aggregators. Every change keeps two promises, by the model of [`cycle`](crate::cycle): no aggregator has more work than its
/// cycle, and no job loses [`LOSS_LIMIT`] of its speed or more.
///
/// An aggregator that becomes empty stays until [`Service::scale_in`]. It can be written to a file and read again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Service {
    loss_limit: f64,
    jobs: BTreeMap<JobId, Served>,
    aggregators: BTreeMap<AggregatorId, Held>,
    next: u64,
}

impl Default for Service {
    fn default() -> Self {
        Self { loss_limit: LOSS_LIMIT, jobs: BTreeMap::new(), aggregators: BTreeMap::new(), next: 0 }
    }
}

impl Service {
    /// Creates a service whose jobs lose less than this part of their speed.
    ///
    /// # Errors
    /// The limit is above 0 and at most 0.5: no job loses half of its speed in any cycle.
    pub fn with_loss_limit(loss_limit: f64) -> Result<Self, ServiceError> {
        if loss_limit > 0.0 && loss_limit <= 0.5 {
            Ok(Self { loss_limit, ..Self::default() })
        } else {
            Err(ServiceError::LossLimit(loss_limit))
        }
    }

    /// Assigns the tensors of a new job, the largest first: each goes to the aggregator with the least free time that suffices, where no job
    /// loses too much; else to a new one. Returns the aggregators that were added.
    ///
    /// # Errors
    /// The name is new, and each tensor fits into an iteration.
    pub fn admit(&mut self, id: JobId, job: Job) -> Result<Vec<AggregatorId>, ServiceError> {
        if self.jobs.contains_key(&id) {
            return Err(ServiceError::Known(id));
        }
        if job.iteration.is_zero() || job.tensors.is_empty() {
            return Err(ServiceError::Empty(id));
        }
        if let Some(tensor) = job.tensors.iter().position(|work| *work > job.iteration) {
            let (work, iteration) = (job.tensors[tensor], job.iteration);
            return Err(ServiceError::TooLong { job: id, tensor, work, iteration });
        }
        let tensors = (0..job.tensors.len()).map(|tensor| (id, tensor)).collect();
        let places = vec![None; job.tensors.len()];
        self.jobs.insert(id, Served { job, places, ceiling: 1.0 });
        Ok(self.assign(tensors))
    }

    /// Removes a job. Cycles become shorter where it had the longest iteration, so that others may have to move; returns how.
    ///
    /// # Errors
    /// The job exists.
    pub fn exit(&mut self, id: JobId) -> Result<Vec<Move>, ServiceError> {
        self.take(id)?;
        self.jobs.remove(&id);
        Ok(self.settle())
    }

    /// Releases aggregators without tensors, and those whose tensors others can take: the least loaded first. Returns what was released
    /// and what moves.
    pub fn scale_in(&mut self) -> (Vec<AggregatorId>, Vec<Move>) {
        let (mut released, mut moves) = (Vec::new(), Vec::new());
        while let Some((emptied, moved)) = self.without_one() {
            released.push(emptied);
            moves.extend(moved);
        }
        (released, net(moves))
    }

    /// Compares the measured duration of an iteration, over [`MONITORED_ITERATIONS`], with that of the job alone. If the job has lost too much
    /// speed, its assignment is taken back, an aggregator is added, and all its tensors are assigned again; from then on it has one more
    /// aggregator than before, and shares only those with a lower load. Repeat until it is quick enough.
    ///
    /// # Errors
    /// The job exists.
    pub fn feedback(&mut self, id: JobId, measured: Duration) -> Result<Feedback, ServiceError> {
        let served = self.jobs.get(&id).ok_or(ServiceError::Unknown(id))?;
        let alone = served.job.iteration.as_secs_f64();
        if 1.0 - alone / measured.as_secs_f64().max(alone) < self.loss_limit {
            return Ok(Feedback::Kept);
        }
        let loads = self.loads();
        let shared = loads.iter().filter(|load| load.tensors.len() > 1 && load.tensors.contains_key(&id));
        let Some(busiest) = shared.map(Load::utilisation).reduce(f64::max) else {
            return Ok(Feedback::Alone);
        };
        let before = served.places.clone();
        let tensors = self.take(id)?;
        if let Some(served) = self.jobs.get_mut(&id) {
            served.ceiling = EASED * busiest;
            let used = before.iter().flatten().collect::<BTreeSet<_>>().len();
            served.job.spread = served.job.spread.max(used + 1);
        }
        let mut added = vec![self.add()];
        added.extend(self.assign(tensors));
        let mut moves: Vec<Move> = (0..before.len())
            .filter_map(|tensor| {
                let (from, to) = (before[tensor]?, self.place(id, tensor)?);
                (from != to).then_some(Move { job: id, tensor, from, to })
            })
            .collect();
        moves.extend(self.settle());
        added.retain(|aggregator| {
            let is_used = self.aggregators.get(aggregator).is_some_and(|held| !held.tensors.is_empty());
            if !is_used {
                self.aggregators.remove(aggregator);
            }
            is_used
        });
        Ok(Feedback::Reassigned { added, moves: net(moves) })
    }

    /// Moves a tensor to an aggregator, whatever the model says; later changes may move it again. Returns where it was.
    ///
    /// # Errors
    /// The tensor and the aggregator exist.
    pub fn relocate(
        &mut self,
        id: JobId,
        tensor: usize,
        to: AggregatorId,
    ) -> Result<AggregatorId, ServiceError> {
        let from = self.place(id, tensor).ok_or(ServiceError::Unknown(id))?;
        if !self.aggregators.contains_key(&to) {
            return Err(ServiceError::NoAggregator(to));
        }
        self.put((id, tensor), Some(to));
        Ok(from)
    }

    /// Returns a job as it was admitted.
    pub fn job(&self, id: JobId) -> Option<&Job> {
        self.jobs.get(&id).map(|served| &served.job)
    }

    /// Returns the numbers of all aggregators, by name.
    pub fn loads(&self) -> Vec<Load> {
        let load = |(aggregator, held): (&AggregatorId, &Held)| {
            let mut tensors: BTreeMap<JobId, Vec<usize>> = BTreeMap::new();
            held.tensors.iter().for_each(|(job, tensor)| tensors.entry(*job).or_default().push(*tensor));
            let parts = held.all();
            Load { aggregator: *aggregator, cycle: cycle(&parts), work: work(&parts), tensors }
        };
        self.aggregators.iter().map(load).collect()
    }

    /// Returns the aggregator of a tensor.
    pub fn place(&self, job: JobId, tensor: usize) -> Option<AggregatorId> {
        self.jobs.get(&job).and_then(|served| served.places.get(tensor).copied().flatten())
    }

    /// Returns how long an iteration of the job takes in the cycles of its aggregators (d).
    pub fn iteration(&self, job: JobId) -> Option<Duration> {
        let served = self.jobs.get(&job)?;
        let cycles = served.places.iter().flatten().collect::<BTreeSet<_>>().into_iter();
        cycles.map(|aggregator| effective(self.cycle(*aggregator), served.job.iteration)).max()
    }

    /// Returns the part of its speed that the job loses (L), by the model.
    pub fn loss(&self, job: JobId) -> Option<f64> {
        let served = self.jobs.get(&job)?;
        let aggregators = served.places.iter().flatten();
        aggregators.map(|aggregator| loss(self.cycle(*aggregator), served.job.iteration)).reduce(f64::max)
    }

    /// Returns the number of aggregators, those without tensors included.
    pub fn aggregators(&self) -> usize {
        self.aggregators.len()
    }

    /// Returns the names of all jobs.
    pub fn jobs(&self) -> impl Iterator<Item = JobId> {
        self.jobs.keys().copied()
    }

    fn cycle(&self, aggregator: AggregatorId) -> Duration {
        self.aggregators.get(&aggregator).map_or(Duration::ZERO, |held| cycle(&held.all()))
    }

    /// Whether an aggregator with these parts keeps the promises.
    fn is_valid(&self, parts: &BTreeMap<JobId, Part>) -> bool {
        let all: Vec<Part> = parts.values().copied().collect();
        let (cycle, work) = (cycle(&all), work(&all));
        let is_shared = parts.len() > 1;
        work <= cycle
            && parts.iter().all(|(id, part)| {
                let ceiling = self.jobs.get(id).map_or(1.0, |served| served.ceiling);
                loss(cycle, part.iteration) < self.loss_limit
                    && (!is_shared || work.as_secs_f64() <= ceiling * cycle.as_secs_f64())
            })
    }

    fn add(&mut self) -> AggregatorId {
        let added = AggregatorId(self.next);
        self.next += 1;
        self.aggregators.insert(added, Held::default());
        added
    }

    fn put(&mut self, (id, tensor): (JobId, usize), aggregator: Option<AggregatorId>) {
        let own = self.of((id, tensor));
        let Some(served) = self.jobs.get_mut(&id) else { return };
        let before = std::mem::replace(&mut served.places[tensor], aggregator);
        if let Some(held) = before.and_then(|before| self.aggregators.get_mut(&before)) {
            held.tensors.remove(&(id, tensor));
            let rest = held.tensors.range((id, 0)..).next().is_some_and(|(job, _)| *job == id);
            match held.parts.get_mut(&id) {
                Some(part) if rest => part.work -= own.work,
                _ => drop(held.parts.remove(&id)),
            }
        }
        if let Some(held) = aggregator.and_then(|aggregator| self.aggregators.get_mut(&aggregator)) {
            held.tensors.insert((id, tensor));
            held.parts.entry(id).or_insert(Part { work: Duration::ZERO, ..own }).work += own.work;
        }
    }

    /// Takes all tensors of a job from their aggregators.
    fn take(&mut self, id: JobId) -> Result<Vec<(JobId, usize)>, ServiceError> {
        let count = self.jobs.get(&id).ok_or(ServiceError::Unknown(id))?.job.tensors.len();
        let tensors: Vec<(JobId, usize)> = (0..count).map(|tensor| (id, tensor)).collect();
        tensors.iter().for_each(|tensor| self.put(*tensor, None));
        Ok(tensors)
    }

    /// Assigns tensors, adding aggregators where none fits; returns these.
    fn assign(&mut self, mut tensors: Vec<(JobId, usize)>) -> Vec<AggregatorId> {
        tensors.sort_by_key(|tensor| (std::cmp::Reverse(self.of(*tensor).work), *tensor));
        let mut added = Vec::new();
        for tensor in tensors {
            let aggregator = self.best_fit(tensor).unwrap_or_else(|| {
                added.push(self.add());
                added[added.len() - 1]
            });
            self.put(tensor, Some(aggregator));
        }
        added
    }

    fn of(&self, (id, tensor): (JobId, usize)) -> Part {
        self.jobs.get(&id).map_or(Part { iteration: Duration::ZERO, work: Duration::ZERO }, |served| Part {
            iteration: served.job.iteration,
            work: served.job.tensors[tensor],
        })
    }

    /// The aggregator with the least free time that the tensor fits into.
    fn best_fit(&self, tensor: (JobId, usize)) -> Option<AggregatorId> {
        let own = self.of(tensor);
        let served = self.jobs.get(&tensor.0)?;
        let used: BTreeSet<AggregatorId> = served.places.iter().flatten().copied().collect();
        let must_spread = used.len() < served.job.spread;
        let fits = |(aggregator, held): (&AggregatorId, &Held)| {
            if must_spread && used.contains(aggregator) {
                return None;
            }
            let mut parts = held.parts.clone();
            let part = parts.entry(tensor.0).or_insert(Part { work: Duration::ZERO, ..own });
            part.work += own.work;
            let all: Vec<Part> = parts.values().copied().collect();
            let cycle = cycle(&all);
            // The free time without the tensor, in the cycle with it.
            let added = u128::from(slots(cycle, own.iteration)) * own.work.as_nanos();
            let free = (cycle.as_nanos() + added).saturating_sub(work(&all).as_nanos());
            self.is_valid(&parts).then_some((free, *aggregator))
        };
        self.aggregators.iter().filter_map(fits).min().map(|(_, aggregator)| aggregator)
    }

    /// Moves tensors from aggregators whose cycle has become too short. A job may also lose speed by a shorter cycle: two slots of 6 fit
    /// into 12, and only one into 11.
    fn settle(&mut self) -> Vec<Move> {
        let mut moves = Vec::new();
        let names: Vec<AggregatorId> = self.aggregators.keys().copied().collect();
        for aggregator in names {
            let mut taken = Vec::new();
            while let Some(held) = self.aggregators.get(&aggregator)
                && !self.is_valid(&held.parts)
            {
                taken.extend(self.shed(&held.clone()));
            }
            self.assign(taken.clone());
            moves.extend(taken.into_iter().filter_map(|(job, tensor)| {
                let to = self.place(job, tensor)?;
                (to != aggregator).then_some(Move { job, tensor, from: aggregator, to })
            }));
        }
        moves
    }

    /// Takes the least that could help from an aggregator: the job with the least work where a job loses too much, else a tensor.
    fn shed(&mut self, held: &Held) -> Vec<(JobId, usize)> {
        let all = held.all();
        let (cycle, excess) = (cycle(&all), work(&all).saturating_sub(cycle(&all)));
        let taken = if excess.is_zero() {
            let least = held.parts.iter().min_by_key(|(id, part)| (part.work, **id)).map(|(id, _)| *id);
            held.tensors.iter().copied().filter(|(id, _)| Some(*id) == least).collect()
        } else {
            let gain = |tensor: &(JobId, usize)| {
                let own = self.of(*tensor);
                own.work.as_nanos() * u128::from(slots(cycle, own.iteration))
            };
            let suffices = |tensor: &(JobId, usize)| gain(tensor) >= excess.as_nanos();
            let smallest = held.tensors.iter().copied().filter(suffices).min_by_key(gain);
            smallest.or_else(|| held.tensors.iter().copied().max_by_key(gain)).into_iter().collect::<Vec<_>>()
        };
        taken.iter().for_each(|tensor| self.put(*tensor, None));
        taken
    }

    /// Empties one aggregator without adding any. None where that works for none.
    fn without_one(&mut self) -> Option<(AggregatorId, Vec<Move>)> {
        let mut loads = self.loads();
        loads.sort_by(|one, other| {
            one.utilisation().total_cmp(&other.utilisation()).then(one.aggregator.cmp(&other.aggregator))
        });
        loads.into_iter().find_map(|load| {
            let mut trial = self.clone();
            let mut tensors: Vec<(JobId, usize)> =
                trial.aggregators.remove(&load.aggregator)?.tensors.into_iter().collect();
            tensors.sort_by_key(|tensor| (std::cmp::Reverse(trial.of(*tensor).work), *tensor));
            tensors.iter().for_each(|tensor| trial.put(*tensor, None));
            let mut moves = Vec::new();
            for (job, tensor) in tensors {
                let to = trial.best_fit((job, tensor))?;
                trial.put((job, tensor), Some(to));
                moves.push(Move { job, tensor, from: load.aggregator, to });
            }
            *self = trial;
            Some((load.aggregator, moves))
        })
    }
}

/// Joins moves of the same tensor.
fn net(moves: Vec<Move>) -> Vec<Move> {
    let mut joined: BTreeMap<(JobId, usize), Move> = BTreeMap::new();
    for step in moves {
        joined.entry((step.job, step.tensor)).and_modify(|first| first.to = step.to).or_insert(step);
    }
    joined.into_values().filter(|step| step.from != step.to).collect()
}

#[cfg(test)]
mod tests;
