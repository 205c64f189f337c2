//! Estimates another clock from timed questions and answers.
//!
//! At some moment between question and answer the other clock had the answered time: this much is certain, for any
//! asymmetry of the path. The shortest exchange of each window is kept. Both clocks run evenly for a while, so their
//! difference is a line through all of these intervals: the least and the largest slope of such lines bound the drift, and
//! all of them together bound the present difference. If no line passes through all, a clock has changed its pace, and the
//! oldest are dropped.
use super::Nanoseconds;
use std::collections::VecDeque;

/// Length of a window.
const WINDOW: Nanoseconds = 1_000_000_000;
/// Number of windows kept.
const WINDOWS: usize = 32;
/// Largest drift of two clocks per second: that of crystals and clock adjustment is less than half.
const LARGEST_DRIFT: f64 = 2e-3;

/// A question and its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Answer {
    /// Time of the question, by the own clock; that of the answer follows.
    pub(crate) asked: Nanoseconds,
    pub(crate) came: Nanoseconds,
    /// Time of the other clock in between.
    pub(crate) theirs: Nanoseconds,
}

impl Answer {
    /// Duration of the exchange.
    pub(crate) fn round_trip(&self) -> Nanoseconds {
        self.came - self.asked
    }

    /// Middle of the exchange, by the own clock.
    pub(crate) fn middle(&self) -> Nanoseconds {
        self.asked + self.round_trip() / 2
    }

    /// Offset of the other clock, within [`Answer::half`].
    fn offset(&self) -> f64 {
        (self.theirs - self.middle()) as f64
    }

    /// Includes half a nanosecond for each time that was rounded down.
    fn half(&self) -> f64 {
        self.round_trip() as f64 / 2.0 + 1.5
    }
}

/// Estimate of the other clock.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Estimate {
    /// Nanoseconds by which the other clock is ahead.
    pub(crate) offset: f64,
    /// Bound of its error.
    pub(crate) plus_minus: f64,
    /// Drift relative to the own clock: 0.0001 are 100 ppm.
    pub(crate) drift: f64,
}

/// Collects answers. See the module.
#[derive(Debug, Default)]
pub(crate) struct Estimator {
    /// The shortest of each window, the last one still open; and its start.
    best: VecDeque<Answer>,
    began: Nanoseconds,
}

impl Estimator {
    /// Adds an answer, later than those before. Returns the shortest of a window that has ended, if one has.
    pub(crate) fn heard(&mut self, answer: Answer) -> Option<Answer> {
        if answer.round_trip() < 0 {
            return None; // no clock that goes back is asked
        }
        let closed = self.best.back().copied().filter(|_| answer.came - self.began >= WINDOW);
        match self.best.back_mut() {
            Some(best) if closed.is_none() => {
                if answer.round_trip() < best.round_trip() {
                    *best = answer;
                }
            }
            _ => {
                self.began = answer.came;
                self.best.push_back(answer);
                if self.best.len() > WINDOWS {
                    self.best.pop_front();
                }
            }
        }
        while self.best.len() > 1 && self.line(answer.came).is_none() {
            self.best.pop_front();
        }
        closed
    }

    /// Estimates at a time of the own clock not before the last answer; `None` before the first answer.
    pub(crate) fn estimate(&self, now: Nanoseconds) -> Option<Estimate> {
        self.line(now)
    }

    fn line(&self, now: Nanoseconds) -> Option<Estimate> {
        let (mut slowest, mut fastest) = (-LARGEST_DRIFT, LARGEST_DRIFT);
        for (position, early) in self.best.iter().enumerate() {
            for late in self.best.iter().skip(position + 1) {
                let between = (late.middle() - early.middle()) as f64;
                // The time of the answer is that of its middle within the half; so are the times between two of them.
                if between <= 0.0 {
                    continue;
                }
                let (moved, both) = (late.offset() - early.offset(), late.half() + early.half());
                slowest = slowest.max((moved - both) / between);
                fastest = fastest.min((moved + both) / between);
            }
        }
        if slowest > fastest {
            return None;
        }
        let (mut least, mut most) = (f64::NEG_INFINITY, f64::INFINITY);
        for answer in &self.best {
            let since = (now - answer.middle()) as f64;
            least = least.max(answer.offset() - answer.half() + (slowest * since).min(fastest * since));
            most = most.min(answer.offset() + answer.half() + (slowest * since).max(fastest * since));
        }
        (least <= most && least.is_finite()).then(|| Estimate {
            offset: f64::midpoint(least, most),
            plus_minus: (most - least) / 2.0,
            drift: f64::midpoint(slowest, fastest),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tidemill_random::Random;

    /// A clock with offset and drift.
    struct Other {
        ahead: i64,
        drift: f64,
    }

    impl Other {
        fn at(&self, own: Nanoseconds) -> Nanoseconds {
            own + self.ahead + (own as f64 * self.drift) as Nanoseconds
        }
    }

    /// An exchange over a path of at least 20 us in each direction, and occasionally long in one direction only.
    fn ask(other: &Other, own: Nanoseconds, random: &mut Random) -> Answer {
        let mut way = || {
            let jitter = random.below(100_000) as i64 * random.below(2) as i64;
            20_000 + jitter + if random.below(10) == 0 { random.below(50_000_000) as i64 } else { 0 }
        };
        let (there, back) = (way(), way());
        Answer { asked: own, came: own + there + back, theirs: other.at(own + there) }
    }

    proptest! {
        #[test]
        fn the_truth_is_within_what_is_said_and_that_is_not_much(
            seed in 0u64..1000,
            ahead in -3_600_000_000_000i64..3_600_000_000_000,
            parts_per_million in -200.0f64..200.0,
        ) {
            let other = Other { ahead, drift: parts_per_million * 1e-6 };
            let (mut estimator, mut random) = (Estimator::default(), Random::of_seed(seed));
            let mut own = 5_000_000;
            for question in 0..250 {
                let answer = ask(&other, own, &mut random);
                estimator.heard(answer);
                own = answer.came + if question < 16 { 0 } else { 200_000_000 };
                let estimate = estimator.estimate(own).expect("something was heard");
                let truth = (other.at(own) - own) as f64;
                prop_assert!((estimate.offset - truth).abs() <= estimate.plus_minus + 2.0, "{estimate:?} {truth}");
            }
            let estimate = estimator.estimate(own).expect("something was heard");
            // Half of the shortest round trip, the jitter of a window, and the uncertainty of the drift.
            prop_assert!(estimate.plus_minus < 100_000.0, "{estimate:?}");
            let wrong = (estimate.drift - other.drift).abs();
            prop_assert!(wrong < 10e-6, "{estimate:?} instead of {}", other.drift);
        }

        /// Slower answers never worsen the estimate.
        #[test]
        fn long_ways_do_no_harm(seed in 0u64..1000) {
            let other = Other { ahead: 7_000_000, drift: 50e-6 };
            let mut random = Random::of_seed(seed);
            let (mut with, mut without) = (Estimator::default(), Estimator::default());
            for second in 0..20 {
                let own = second * 1_100_000_000;
                let short = Answer { asked: own, came: own + 40_000, theirs: other.at(own + 20_000) };
                with.heard(short);
                without.heard(short);
                for _ in 0..3 {
                    let late = own + 100_000 + random.below(100_000_000) as i64;
                    let long = 1_000_000 + random.below(50_000_000) as i64;
                    with.heard(Answer { asked: late, came: late + long, theirs: other.at(late + long) });
                }
            }
            let now = 22_000_000_000;
            let (with, without) = (with.estimate(now).expect("heard"), without.estimate(now).expect("heard"));
            prop_assert!((with.offset - without.offset).abs() < 1.0, "{with:?} {without:?}");
        }
    }

    /// A clock that changes its pace, and later jumps: earlier answers no longer count.
    #[test]
    fn a_clock_that_changes_is_followed() {
        let mut estimator = Estimator::default();
        let mut ask = |own: Nanoseconds, theirs: Nanoseconds| {
            estimator.heard(Answer { asked: own, came: own + 60_000, theirs });
            estimator.estimate(own + 60_000).expect("something was heard")
        };
        let second = 1_000_000_000;
        for n in 0..10 {
            ask(n * second, n * second + 30_000 + n * 100_000);
        }
        let mut last = None;
        for n in 10..20 {
            last = Some(ask(n * second, n * second + 30_000 + 900_000 - (n - 9) * 100_000));
        }
        let last = last.expect("it was asked");
        assert!((last.drift + 100e-6).abs() < 30e-6, "{last:?}");
        let ahead = 3_600 * second;
        for n in 20..24 {
            ask(n * second, n * second + 30_000 + ahead);
        }
        let last = ask(24 * second, 24 * second + 30_000 + ahead);
        assert!(
            (last.offset - ahead as f64).abs() <= last.plus_minus + 1.0 && last.plus_minus < 100_000.0,
            "{last:?}"
        );
    }

    #[test]
    fn windows_keep_their_shortest_and_give_it_when_they_are_over() {
        let mut estimator = Estimator::default();
        assert_eq!(estimator.estimate(0), None);
        let answer =
            |asked: Nanoseconds, took: Nanoseconds| Answer { asked, came: asked + took, theirs: asked };
        assert_eq!(estimator.heard(answer(0, 100)), None);
        assert_eq!(estimator.heard(answer(1_000, 50)), None);
        assert_eq!(estimator.heard(answer(2_000, 70)), None);
        assert_eq!(estimator.heard(answer(2 * WINDOW, 200)), Some(answer(1_000, 50)));
        assert_eq!(estimator.heard(answer(2 * WINDOW, -5)), None);
        assert_eq!(estimator.best.len(), 2);
    }
}
