//! When a stage gives its model a batch, and of what size: shared by runs and simulations.
//!
//! A free model takes the waiting records as soon as they are as many as arrive during one call, so a light load is
//! never delayed and a heavy one fills its batches. It waits for more at most the batching budget of the plan. All
//! times are nanoseconds of one clock.

/// Weight of a new value in a smoothed one.
const SMOOTHING: f64 = 0.2;

/// Work of full batches that may be ahead of a model, nanoseconds: one wake-up of the stage serves this much.
const WORK_AHEAD: f64 = 1e6;

/// A stage's estimate of its load.
#[derive(Debug, Clone, Copy)]
pub struct Batching {
    max_batch: usize,
    budget: i64,
    /// Smoothed time between arriving records; infinite before the first ones.
    interval: f64,
    /// Smoothed time of a call; 0 before the first one.
    service: f64,
    arrival: Arrival,
}

/// Records that arrived at one time.
#[derive(Debug, Clone, Copy)]
struct Arrival {
    at: i64,
    records: usize,
    /// Time since the previous ones.
    gap: f64,
    /// The smoothed interval without them.
    before: f64,
}

/// The queue of a stage and the work of its model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Waiting records.
    pub waiting: usize,
    /// Arrival of the first of them.
    pub since: i64,
    /// Batches without a known result.
    pub running: usize,
    /// Batches given to the model and not finished: running ones, and results that wait for earlier ones.
    pub in_flight: usize,
    /// Concurrent calls of the model.
    pub copies: usize,
}

/// The next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Give the model this number of records.
    Start(usize),
    /// Look again at this time.
    Wait(i64),
    /// Wait for an event.
    Nothing,
}

impl Batching {
    /// Creates the state of a stage with batches of at most `max_batch` records that wait at most `budget` nanoseconds
    /// for more.
    pub fn new(max_batch: usize, budget: i64) -> Self {
        let arrival = Arrival { at: 0, records: 0, gap: 0.0, before: f64::INFINITY };
        Self { max_batch: max_batch.max(1), budget, interval: f64::INFINITY, service: 0.0, arrival }
    }

    /// Creates the state for a known load: time between records and of a call, nanoseconds.
    #[must_use]
    pub fn under_load(self, interval: f64, service: f64) -> Self {
        Self { interval, service, ..self }
    }

    /// Returns the largest batch.
    pub fn max_batch(&self) -> usize {
        self.max_batch
    }

    /// Records arrivals. Records of one time are one arrival, whether reported together or singly.
    pub fn arrived(&mut self, now: i64, records: usize) {
        if self.arrival.records == 0 || now > self.arrival.at {
            let gap = (now - self.arrival.at).max(1) as f64;
            self.arrival = Arrival { at: now, records: 0, gap, before: self.interval };
        }
        self.arrival.records += records;
        let each = self.arrival.gap / self.arrival.records as f64;
        let before = self.arrival.before;
        self.interval = if before.is_finite() { (1.0 - SMOOTHING) * before + SMOOTHING * each } else { each };
    }

    /// Records the time of a call, nanoseconds.
    pub fn served(&mut self, call: i64) {
        let smooth = if self.service == 0.0 { 1.0 } else { SMOOTHING };
        self.service += smooth * (call as f64 - self.service);
    }

    /// Number of waiting records that justify starting a batch now.
    fn target(&self, copies: usize) -> usize {
        if self.budget == 0 {
            return 1;
        }
        ((self.service / self.interval / copies as f64) as usize).clamp(1, self.max_batch)
    }

    /// Returns the number of full batches that may be with the model: one next to the running one of each copy, and
    /// more for a quick model.
    pub fn ahead(&self, copies: usize) -> usize {
        let ahead = if self.service == 0.0 { 2 } else { ((WORK_AHEAD / self.service) as usize).clamp(2, 64) };
        ahead * copies.max(1)
    }

    /// Returns the next step under a load.
    pub fn step(&self, load: Load, now: i64) -> Step {
        let copies = load.copies.max(1);
        if load.waiting == 0 {
            return Step::Nothing;
        }
        if load.running < copies {
            let due = load.since + self.budget;
            return match load.waiting >= self.target(copies) || now >= due {
                true => Step::Start(load.waiting.min(self.max_batch)),
                false => Step::Wait(due),
            };
        }
        // Only full batches wait with the model: waiting longer would gain nothing, and the model never idles while the
        // stage wakes up.
        match load.waiting >= self.max_batch && load.in_flight < self.ahead(copies) {
            true => Step::Start(self.max_batch),
            false => Step::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: i64 = 1_000_000;

    fn step(batching: &Batching, waiting: usize, since: i64, running: usize, now: i64) -> Step {
        batching.step(Load { waiting, since, running, in_flight: running, copies: 1 }, now)
    }

    #[test]
    fn a_light_load_is_not_delayed() {
        let mut batching = Batching::new(8, 20 * MS);
        batching.arrived(0, 1);
        assert_eq!(step(&batching, 1, 0, 0, 0), Step::Start(1));
        batching.served(5 * MS);
        for n in 1..50 {
            batching.arrived(n * 100 * MS, 1);
        }
        assert_eq!(step(&batching, 1, 4900 * MS, 0, 4900 * MS), Step::Start(1));
    }

    #[test]
    fn a_heavy_load_fills_batches_within_the_budget() {
        let mut batching = Batching::new(8, 20 * MS);
        for n in 0..100 {
            batching.arrived(n * MS, 1);
        }
        batching.served(50 * MS);
        assert_eq!(step(&batching, 3, 98 * MS, 0, 100 * MS), Step::Wait(118 * MS));
        assert_eq!(step(&batching, 3, 98 * MS, 0, 118 * MS), Step::Start(3));
        assert_eq!(step(&batching, 20, 98 * MS, 0, 100 * MS), Step::Start(8));
        assert_eq!(step(&batching, 20, 98 * MS, 1, 100 * MS), Step::Start(8));
        assert_eq!(step(&batching, 7, 98 * MS, 1, 100 * MS), Step::Nothing);
        assert_eq!(step(&batching, 20, 98 * MS, 2, 100 * MS), Step::Nothing);
    }

    #[test]
    fn copies_share_what_arrives() {
        let batching = Batching::new(64, 20 * MS).under_load(MS as f64, 40.0 * MS as f64);
        let load = Load { waiting: 20, since: 0, running: 1, in_flight: 1, copies: 2 };
        assert_eq!(batching.step(load, MS), Step::Start(20));
        assert_eq!(batching.step(Load { waiting: 19, ..load }, MS), Step::Wait(20 * MS));
        // A result that waits for an earlier one leaves its copy free and still counts as work ahead.
        let full = Load { waiting: 64, running: 2, in_flight: 4, ..load };
        assert_eq!(batching.step(full, MS), Step::Nothing);
        assert_eq!(batching.step(Load { in_flight: 3, ..full }, MS), Step::Start(64));
    }

    #[test]
    fn without_a_budget_nothing_waits() {
        let mut batching = Batching::new(4, 0);
        (0..100).for_each(|n| batching.arrived(n * MS, 1));
        batching.served(50 * MS);
        assert_eq!(step(&batching, 1, 99 * MS, 0, 99 * MS), Step::Start(1));
    }

    proptest! {
        /// Eight records that arrive at once each count with an eighth of the gap before them, in any portions.
        #[test]
        fn records_of_one_time_are_one_arrival(
            arrivals in prop::collection::vec((1i64..100, 1usize..9), 1..40),
            calls in prop::collection::vec(1i64..500, 1..5),
        ) {
            let (mut together, mut singly) = (Batching::new(16, 20 * MS), Batching::new(16, 20 * MS));
            let mut now = 0;
            for (gap, records) in arrivals {
                now += gap * MS;
                together.arrived(now, records);
                (0..records).for_each(|_| singly.arrived(now, 1));
                prop_assert!((together.interval / singly.interval - 1.0).abs() < 1e-12);
            }
            for call in calls {
                together.served(call * MS);
                singly.served(call * MS);
            }
            for waiting in 1..20 {
                prop_assert_eq!(step(&together, waiting, now, 0, now), step(&singly, waiting, now, 0, now));
            }
        }
    }
}
