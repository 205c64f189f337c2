//! When a stage starts a batch, and with how many records: the rule of the engine's inference node. A free model takes
//! what waits as soon as it is as much as arrives during one call; it waits for more at most the batching budget.
use crate::network::Nanoseconds;

/// Work that full batches may be ahead of a model, nanoseconds.
const WORK_AHEAD: f64 = 1e6;

/// What a stage knows of its load.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Batching {
    /// Largest batch.
    most: usize,
    budget: Nanoseconds,
    /// Smoothed time between records that arrive, and of a call, nanoseconds.
    interval: f64,
    service: f64,
    last_arrival: Nanoseconds,
    /// When the stage looks again.
    pub(crate) wakes_at: Option<Nanoseconds>,
}

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Take so many records.
    Start(usize),
    /// Look again then.
    Wait(Nanoseconds),
    /// Nothing until something happens.
    Nothing,
}

impl Batching {
    pub(crate) fn new(most: usize, budget: Nanoseconds) -> Self {
        Self { most, budget, interval: f64::INFINITY, service: 0.0, last_arrival: 0, wakes_at: None }
    }

    pub(crate) fn arrived(&mut self, now: Nanoseconds) {
        let gap = (now - self.last_arrival).max(1) as f64;
        self.interval = if self.interval.is_finite() { 0.8 * self.interval + 0.2 * gap } else { gap };
        self.last_arrival = now;
    }

    pub(crate) fn served(&mut self, call: Nanoseconds) {
        let smooth = if self.service == 0.0 { 1.0 } else { 0.2 };
        self.service += smooth * (call as f64 - self.service);
    }

    /// How many waiting records make a batch worth starting now.
    fn target(&self) -> usize {
        if self.budget == 0 {
            return 1;
        }
        ((self.service / self.interval) as usize).clamp(1, self.most)
    }

    /// How many batches may be with the worker: one beside the one that runs, more of a quick model.
    fn ahead(&self) -> usize {
        if self.service == 0.0 { 2 } else { ((WORK_AHEAD / self.service) as usize).clamp(2, 64) }
    }

    /// What to do with `waiting` records, of which the oldest came at `oldest`, and `running` batches with the worker.
    pub(crate) fn step(&self, waiting: usize, oldest: Nanoseconds, running: usize, now: Nanoseconds) -> Step {
        match running {
            _ if waiting == 0 => Step::Nothing,
            0 => {
                let due = oldest + self.budget;
                let enough = waiting >= self.target() || now >= due;
                if enough { Step::Start(waiting.min(self.most)) } else { Step::Wait(due) }
            }
            // Full batches wait with the worker: nothing is lost by that.
            _ if waiting >= self.most && running < self.ahead() => Step::Start(self.most),
            _ => Step::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Nanoseconds = 1_000_000;

    #[test]
    fn a_light_load_is_not_delayed() {
        let mut batching = Batching::new(8, 20 * MS);
        batching.arrived(0);
        assert_eq!(batching.step(1, 0, 0, 0), Step::Start(1));
        batching.served(5 * MS);
        for n in 1..50 {
            batching.arrived(n * 100 * MS);
        }
        assert_eq!(batching.step(1, 4900 * MS, 0, 4900 * MS), Step::Start(1));
    }

    #[test]
    fn a_heavy_load_fills_batches_within_the_budget() {
        let mut batching = Batching::new(8, 20 * MS);
        for n in 0..100 {
            batching.arrived(n * MS);
        }
        batching.served(50 * MS);
        assert_eq!(batching.step(3, 98 * MS, 0, 100 * MS), Step::Wait(118 * MS));
        assert_eq!(batching.step(3, 98 * MS, 0, 118 * MS), Step::Start(3));
        assert_eq!(batching.step(20, 98 * MS, 0, 100 * MS), Step::Start(8));
        assert_eq!(batching.step(20, 98 * MS, 1, 100 * MS), Step::Start(8));
        assert_eq!(batching.step(7, 98 * MS, 1, 100 * MS), Step::Nothing);
        assert_eq!(batching.step(20, 98 * MS, 2, 100 * MS), Step::Nothing);
    }

    /// The arrivals of the engine's test of the same name, which starts the same batch at the same time.
    #[test]
    fn the_budget_counts_from_the_first_arrival_whatever_replaces_it() {
        let mut batching = Batching::new(64, 20 * MS);
        (batching.service, batching.interval) = (50.0 * MS as f64, MS as f64);
        let started = (1..200).find_map(|n| {
            batching.arrived(n * MS);
            match batching.step(n as usize, MS, 0, n * MS) {
                Step::Start(records) => Some((n, records)),
                _ => None,
            }
        });
        assert_eq!(started, Some((21, 21)));
    }

    #[test]
    fn without_a_budget_nothing_waits() {
        let mut batching = Batching::new(4, 0);
        (0..100).for_each(|n| batching.arrived(n * MS));
        batching.served(50 * MS);
        assert_eq!(batching.step(1, 99 * MS, 0, 99 * MS), Step::Start(1));
    }
}
