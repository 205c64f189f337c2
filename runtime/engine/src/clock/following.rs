//! The clock of a run in a process that is not the one where the run began: follows that one's, as far as it is known.
//!
//! It is put right by running a little faster or slower for a while, so it never goes back and never jumps.
use super::estimate::{Answer, Estimate, Estimator};
use super::{Clock, Nanoseconds, WallClock};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

/// What is wrong is put right in so long.
const SLEW: Nanoseconds = 2_000_000_000;
/// By running faster or slower by no more than this.
const LARGEST_SLEW: f64 = 0.05;
/// Questions without an answer that are remembered.
const OPEN: usize = 64;

/// How a host's clock runs beside that of the coordinator.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ClockFigures {
    /// Nanoseconds that engine time here differed from the coordinator's at most, when it was asked last, since the host joined.
    pub(crate) plus_minus: Nanoseconds,
    /// How much faster the coordinator's clock runs than the host's own: 0.0001 are 100 ppm.
    pub(crate) drift: f64,
    /// The shortest time of an answer, nanoseconds.
    pub(crate) round_trip: Nanoseconds,
}

/// Engine time as a line over the time of the own clock, with a bend where what was wrong is right.
#[derive(Debug, Clone, Copy)]
struct Line {
    /// The same moment by the own clock and in the run.
    from: (Nanoseconds, Nanoseconds),
    /// How fast engine time runs until the bend, where that is, and how fast after it.
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

    /// From here on, so that it will be where the estimate says.
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
    /// When each was asked.
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
    /// Runs `factor` times slower than real time. Engine time is not known before [`SharedClock::set`].
    pub(crate) fn new(wall: WallClock, factor: f64) -> Self {
        let line = Line { from: (0, 0), slope: 1.0, bend: 0, steady: 1.0 };
        Self { wall, factor, line: RwLock::new(line), questions: Mutex::default() }
    }

    /// Time of the own clock, as slow as the run.
    fn own(&self) -> Nanoseconds {
        (self.wall.now() as f64 / self.factor) as Nanoseconds
    }

    fn questions(&self) -> MutexGuard<'_, Questions> {
        self.questions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of a question that is asked now.
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

    /// The coordinator answered a question with its time.
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

    /// Begins with what was heard, before anything has happened by this clock.
    pub(crate) fn set(&self) {
        let mut questions = self.questions();
        let own = self.own();
        let Some(estimate) = questions.estimator.estimate(own) else { return };
        questions.figures.plus_minus = estimate.plus_minus as Nanoseconds;
        // What is known of the drift after so short a time is nothing.
        let now = own + estimate.offset as Nanoseconds;
        let line = Line { from: (own, now), slope: 1.0, bend: own, steady: 1.0 };
        *self.line.write().unwrap_or_else(PoisonError::into_inner) = line;
    }

    /// Goes after what was heard.
    pub(crate) fn follow(&self) {
        let mut questions = self.questions();
        let mut line = self.line.write().unwrap_or_else(PoisonError::into_inner);
        // While nobody reads: what was read before is not later than what is read after.
        let own = self.own();
        if let Some(estimate) = questions.estimator.estimate(own) {
            *line = line.towards(own, &estimate);
            questions.figures.drift = estimate.drift;
        }
    }

    /// Another coordinator answers from now on.
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

    /// Against a clock that says what it wants: never back, however wrong it is.
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
        /// Each step is asked for what is true; it comes near without a step back.
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
            // Left alone it goes on as fast as it should, and does not go on correcting.
            let later = own + 100_000_000_000;
            prop_assert!((line.at(later) - truth(later)).abs() < 500_000, "{} {}", line.at(later), truth(later));
        }
    }
}
