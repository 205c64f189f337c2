//! What a clock elsewhere says, from questions and answers that take their time.
//!
//! Somewhere between question and answer the other clock was where its answer says: so far each answer is sure, however unevenly
//! its way there and back took. The shortest of each window is kept. Both clocks run evenly for a while, so the difference between
//! them is a line that goes through all of these windows: the least and the largest slope of such lines bound the drift, and what
//! all of them allow bounds the difference now. Where no line goes through all, a clock has changed its pace, and the
//! oldest are forgotten.
use super::Nanoseconds;
use std::collections::VecDeque;

/// A window is so long.
const WINDOW: Nanoseconds = 1_000_000_000;
/// So many windows count.
const WINDOWS: usize = 32;
/// Two clocks never drift faster, per second: what crystals and those who set them do is less than half.
const LARGEST_DRIFT: f64 = 2e-3;

/// A question and its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Answer {
    /// When it was asked and when the answer came, by the own clock.
    pub(crate) asked: Nanoseconds,
    pub(crate) came: Nanoseconds,
    /// By the other clock, some time between.
    pub(crate) theirs: Nanoseconds,
}

impl Answer {
    /// How long it took.
    pub(crate) fn round_trip(&self) -> Nanoseconds {
        self.came - self.asked
    }

    /// In the middle, by the own clock.
    pub(crate) fn middle(&self) -> Nanoseconds {
        self.asked + self.round_trip() / 2
    }

    /// How much the other clock was ahead, give or take [`Answer::half`].
    fn offset(&self) -> f64 {
        (self.theirs - self.middle()) as f64
    }

    /// With half a nanosecond for each time that was cut off to whole ones.
    fn half(&self) -> f64 {
        self.round_trip() as f64 / 2.0 + 1.5
    }
}

/// What is known of the other clock.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Estimate {
    /// Nanoseconds that the other clock is ahead.
    pub(crate) offset: f64,
    /// Give or take so many.
    pub(crate) plus_minus: f64,
    /// How much faster it runs than the own clock: 0.0001 are 100 ppm.
    pub(crate) drift: f64,
}

/// Collects answers. See the module.
#[derive(Debug, Default)]
pub(crate) struct Estimator {
    /// The shortest of each window, the last one still open; and when it began.
    best: VecDeque<Answer>,
    began: Nanoseconds,
}

impl Estimator {
    /// An answer has come, after those before. The shortest of a window that is over, if one is.
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

    /// What is known at a time of the own clock that is not before the last answer; none: nothing was heard yet.
    pub(crate) fn estimate(&self, now: Nanoseconds) -> Option<Estimate> {
        self.line(now)
    }

    fn line(&self, now: Nanoseconds) -> Option<Estimate> {
        let (mut slowest, mut fastest) = (-LARGEST_DRIFT, LARGEST_DRIFT);
        for (position, early) in self.best.iter().enumerate() {
            for late in self.best.iter().skip(position + 1) {
                let between = (late.middle() - early.middle()) as f64;
                // The clock of the answer is that of its middle give or take the half; so are the times between two of them.
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

    /// A clock that is ahead and drifts.
    struct Other {
        ahead: i64,
        drift: f64,
    }

    impl Other {
        fn at(&self, own: Nanoseconds) -> Nanoseconds {
            own + self.ahead + (own as f64 * self.drift) as Nanoseconds
        }
    }

    /// An answer over a way that takes 20 us in each direction at least, and now and then long, in one direction only.
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
            // Half of the shortest way there and back, the jitter of a window, and what is not known of the drift.
            prop_assert!(estimate.plus_minus < 100_000.0, "{estimate:?}");
            let wrong = (estimate.drift - other.drift).abs();
            prop_assert!(wrong < 10e-6, "{estimate:?} instead of {}", other.drift);
        }

        /// Answers that took longer never make it worse.
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

    /// A clock that is set to another pace, and later put elsewhere at once: what was known before does not count any more.
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
