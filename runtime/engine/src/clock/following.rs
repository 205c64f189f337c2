//! The clock of a run in another process than the one where the run started: it follows that process's clock.
//!
//! Errors are corrected by running slightly faster or slower for a while, so it never goes back and never jumps.
use super::estimate::{Answer, Estimate, Estimator};
use super::{Clock, Nanoseconds, WallClock};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

/// Time in which an error is corrected.
const SLEW: Nanoseconds = 2_000_000_000;
/// Largest change of its speed for that.
const LARGEST_SLEW: f64 = 0.05;
/// Most unanswered questions that are remembered.
const OPEN: usize = 64;

/// State of a host's clock relative to the coordinator's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ClockFigures {
    /// Largest difference, in nanoseconds, of engine time here from the coordinator's at any query since the host joined.
    pub(crate) plus_minus: Nanoseconds,
    /// Drift of the coordinator's clock relative to the host's own: 0.0001 are 100 ppm.
    pub(crate) drift: f64,
    /// Shortest round trip, nanoseconds.
    pub(crate) round_trip: Nanoseconds,
}

/// Engine time as a line over the time of the own clock, with a bend where the error is corrected.
#[derive(Debug, Clone, Copy)]
struct Line {
    /// One moment by the own clock and in the run.
    from: (Nanoseconds, Nanoseconds),
    /// Speed of engine time until the bend, its position, and the speed after it.
    slope: f64,
    bend: Nanoseconds,
    steady: f64,
}

impl Line {
    fn at(&self, own: Nanoseconds) -> Nanoseconds {
        let before = own.min(self.bend) - self.from.0;
        let after = (own - self.bend).max(0);
        self.from.1 + (before as f64 * self.slope + after as f64 * self.steady) as Nanoseconds
    }

    /// Returns the line from here on that reaches the estimate.
    fn towards(&self, own: Nanoseconds, estimate: &Estimate) -> Self {
        let now = self.at(own);
        let wrong = (own - now) as f64 + estimate.offset;
        let steady = 1.0 + estimate.drift;
        let correction = (wrong / SLEW as f64).clamp(-LARGEST_SLEW, LARGEST_SLEW);
        Self { from: (own, now), slope: steady + correction, bend: own + SLEW, steady }
    }
}

#[derive(Debug, Default)]
struct Questions {
    next: u64,
    /// Time of each question.
    open: BTreeMap<u64, Nanoseconds>,
    estimator: Estimator,
    figures: ClockFigures,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct SharedClock {
    wall: WallClock,
    factor: f64,
    line: RwLock<Line>,
    questions: Mutex<Questions>,
}

impl SharedClock {
    /// Creates a clock `factor` times slower than real time. Engine time is unknown before [`SharedClock::set`].
    pub(crate) fn new(wall: WallClock, factor: f64) -> Self {
        let line = Line { from: (0, 0), slope: 1.0, bend: 0, steady: 1.0 };
        Self { wall, factor, line: RwLock::new(line), questions: Mutex::default() }
    }

    /// Time of the own clock, slowed down as the run.
    fn own(&self) -> Nanoseconds {
        (self.wall.now() as f64 / self.factor) as Nanoseconds
    }

    fn questions(&self) -> MutexGuard<'_, Questions> {
        self.questions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of a question that is sent now.
    pub(crate) fn ask(&self) -> u64 {
        let own = self.own();
        let mut questions = self.questions();
        questions.next += 1;
        let number = questions.next;
        questions.open.insert(number, own);
        if questions.open.len() > OPEN {
            questions.open.pop_first();
        }
        number
    }

    /// Records the coordinator's answer to a question.
    pub(crate) fn heard(&self, number: u64, theirs: Nanoseconds) {
        let came = self.own();
        let mut questions = self.questions();
        let Some(asked) = questions.open.remove(&number) else { return };
        let answer = Answer { asked, came, theirs };
        let shortest = questions.figures.round_trip;
        if shortest == 0 || answer.round_trip() < shortest {
            questions.figures.round_trip = answer.round_trip();
        }
        if let Some(best) = questions.estimator.heard(answer) {
            let here = self.line.read().unwrap_or_else(PoisonError::into_inner).at(best.middle());
            let differed = (best.theirs - here).abs() + best.round_trip() / 2;
            questions.figures.plus_minus = questions.figures.plus_minus.max(differed);
        }
    }

    /// Starts from the answers so far, before the first use of this clock.
    pub(crate) fn set(&self) {
        let mut questions = self.questions();
        let own = self.own();
        let Some(estimate) = questions.estimator.estimate(own) else { return };
        questions.figures.plus_minus = estimate.plus_minus as Nanoseconds;
        // The drift is unknown after this short time.
        let now = own + estimate.offset as Nanoseconds;
        let line = Line { from: (own, now), slope: 1.0, bend: own, steady: 1.0 };
        *self.line.write().unwrap_or_else(PoisonError::into_inner) = line;
    }

    /// Follows the answers so far.
    pub(crate) fn follow(&self) {
        let mut questions = self.questions();
        let mut line = self.line.write().unwrap_or_else(PoisonError::into_inner);
        // Under the lock: earlier reads are not later than later ones.
        let own = self.own();
        if let Some(estimate) = questions.estimator.estimate(own) {
            *line = line.towards(own, &estimate);
            questions.figures.drift = estimate.drift;
        }
    }

    /// Resets the answers for a new coordinator.
    pub(crate) fn forget(&self) {
        let mut questions = self.questions();
        questions.open.clear();
        questions.estimator = Estimator::default();
    }

    pub(crate) fn figures(&self) -> ClockFigures {
        self.questions().figures
    }
}

impl Clock for SharedClock {
    fn now(&self) -> Nanoseconds {
        let line = self.line.read().unwrap_or_else(PoisonError::into_inner);
        line.at(self.own())
    }

    fn real_time_until(&self, deadline: Nanoseconds) -> Option<std::time::Duration> {
        let left = (deadline - self.now()).max(0) as f64;
        Some(std::time::Duration::from_nanos((left * self.factor) as u64))
    }

    fn dilation(&self) -> f64 {
        self.factor
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_shared_clock_continues_from_what_was_heard() {
        let clock = SharedClock::new(WallClock::new(), 100.0);
        for _ in 0..3 {
            let number = clock.ask();
            clock.heard(number, 5_000_000_000);
            clock.heard(number, 0); // answered already
        }
        clock.set();
        let now = clock.now();
        assert!((5_000_000_000..5_100_000_000).contains(&now), "{now}");
    }

    /// Never back, for any error of the other clock.
    #[test]
    fn it_never_goes_back() {
        let clock = SharedClock::new(WallClock::new(), 1.0);
        let mut last = clock.now();
        for round in 0..2000i64 {
            let number = clock.ask();
            clock.heard(number, if round % 3 == 0 { 0 } else { round * 7_000_000_000 });
            clock.follow();
            let now = clock.now();
            assert!(now >= last, "{now} after {last}");
            last = now;
        }
    }

    proptest! {
        /// Each step has the true time; it converges without a step back.
        #[test]
        fn it_comes_near_the_truth(ahead in -50_000_000i64..50_000_000, parts_per_million in -1000.0f64..1000.0) {
            let drift = parts_per_million * 1e-6;
            let mut line = Line { from: (0, 0), slope: 1.0, bend: 0, steady: 1.0 };
            let truth = |own: Nanoseconds| own + ahead + (own as f64 * drift) as Nanoseconds;
            let mut last = 0;
            for step in 0..1000 {
                let own = step * 10_000_000;
                let now = line.at(own);
                prop_assert!(now >= last);
                last = now;
                if step % 20 == 0 {
                    let offset = (truth(own) - own) as f64;
                    line = line.towards(own, &Estimate { offset, plus_minus: 0.0, drift });
                }
            }
            let own = 10_000_000_000;
            prop_assert!((line.at(own) - truth(own)).abs() < 500_000, "{} {}", line.at(own), truth(own));
            // Without further answers it runs at the right speed, and does not continue correcting.
            let later = own + 100_000_000_000;
            prop_assert!((line.at(later) - truth(later)).abs() < 500_000, "{} {}", line.at(later), truth(later));
        }
    }
}
