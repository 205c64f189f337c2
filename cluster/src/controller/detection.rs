//! Decides when a silent worker is lost.
//!
//! *Fixed*: after a stated time of silence.
//!
//! *Phi accrual* (Hayashibara, Défago, Yared, Katayama: The phi accrual failure detector, SRDS 2004): by how unlikely the silence is given
//! earlier heartbeats. With the mean `m` and the standard deviation `s` of recent intervals, taken as normally distributed, a heartbeat
//! comes later than `t` with the probability `P(t)`, and
//!
//! `phi(t) = -log10(P(t))`.
//!
//! A worker is lost when phi reaches the threshold: at 8 one heartbeat in 10^8 would be later. This takes longer on a link with varying
//! delays than on a regular one, so a bad link causes no false losses and a good one no long waits.
use std::collections::VecDeque;
use std::time::Duration;

/// Default interval between heartbeats, and the least wait for two of them.
const HEARTBEAT: Duration = Duration::from_millis(crate::api::HEARTBEAT_MILLISECONDS);
/// Number of intervals kept: about the last minute and a half.
const MOST_TIMES: usize = 200;
/// With fewer intervals the fixed time applies.
const LEAST_TIMES: usize = 10;
/// Least standard deviation in seconds: a process that is briefly not scheduled is not lost.
const LEAST_DEVIATION: f64 = 0.1;
/// Multiple of the fixed time after which a worker is lost in any case.
const LONGEST: u32 = 10;

/// Rule by which silence means that a worker is lost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Detection {
    /// The fixed time. By phi: used until enough intervals are known.
    pub time: Duration,
    /// Phi at which a worker is lost; `None`: it is lost after the fixed time.
    pub phi: Option<f64>,
}

impl Default for Detection {
    fn default() -> Self {
        Self { time: Duration::from_millis(crate::api::DETECTION_MILLISECONDS), phi: None }
    }
}

/// Recent heartbeat intervals of a worker.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Rhythm {
    /// Intervals in seconds, oldest first.
    times: VecDeque<f64>,
}

impl Rhythm {
    /// Records the interval since the previous heartbeat. Not called after a loss: that interval does not describe a live worker.
    pub(crate) fn beats(&mut self, after: Duration) {
        if self.times.len() == MOST_TIMES {
            self.times.pop_front();
        }
        self.times.push_back(after.as_secs_f64());
    }

    /// Phi of a silence; `None` with too few intervals.
    pub(crate) fn phi(&self, silent: Duration) -> Option<f64> {
        if self.times.len() < LEAST_TIMES {
            return None;
        }
        let count = self.times.len() as f64;
        let mean = self.times.iter().sum::<f64>() / count;
        let variance = self.times.iter().map(|time| (time - mean).powi(2)).sum::<f64>() / count;
        let deviation = variance.sqrt().max(LEAST_DEVIATION);
        Some(-later((silent.as_secs_f64() - mean) / deviation).log10())
    }

    /// Whether a worker is lost after this silence.
    pub(crate) fn is_lost(&self, silent: Duration, detection: &Detection) -> bool {
        match detection.phi.zip(self.phi(silent)) {
            None => silent >= detection.time,
            Some((most, phi)) => {
                silent >= detection.time * LONGEST || (silent >= 2 * HEARTBEAT && phi >= most)
            }
        }
    }
}

/// Probability that a standard normal value exceeds `y`, by the logistic approximation of Bowling, Khasawneh, Kaewkuekool and Cho (A
/// logistic approximation to the cumulative normal distribution, 2009); error at most 0.00014. In the tail it is too small, so phi reaches
/// a threshold somewhat early.
fn later(y: f64) -> f64 {
    let e = (-y * (1.5976 + 0.070566 * y * y)).exp();
    // Equivalent form that avoids cancellation.
    if e.is_infinite() { 1.0 } else { (e / (1.0 + e)).max(f64::MIN_POSITIVE) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn milliseconds(time: u64) -> Duration {
        Duration::from_millis(time)
    }

    /// Repeats these intervals.
    fn rhythm(times: &[u64]) -> Rhythm {
        let mut rhythm = Rhythm::default();
        (0..50).for_each(|_| times.iter().for_each(|time| rhythm.beats(milliseconds(*time))));
        rhythm
    }

    /// Milliseconds after which a worker is lost, on a manual clock.
    fn lost_after(rhythm: &Rhythm, detection: &Detection) -> u64 {
        (0..100_000).step_by(10).find(|time| rhythm.is_lost(milliseconds(*time), detection)).unwrap()
    }

    fn phi() -> Detection {
        Detection { phi: Some(8.0), ..Detection::default() }
    }

    #[test]
    fn a_fixed_time_is_the_same_for_all() {
        let fixed = Detection { time: milliseconds(3_000), phi: None };
        for rhythm in [Rhythm::default(), rhythm(&[500]), rhythm(&[100, 2_900])] {
            assert_eq!(lost_after(&rhythm, &fixed), 3_000);
        }
        assert_eq!(lost_after(&rhythm(&[500]), &Detection::default()), 2_000);
    }

    #[test]
    fn by_phi_a_good_link_is_judged_sooner_than_a_bad_one() {
        let good = lost_after(&rhythm(&[500, 505, 495]), &phi());
        assert!((1_000..1_300).contains(&good), "{good}");
        let bad = lost_after(&rhythm(&[100, 900, 200, 1_800, 50, 1_500, 300]), &phi());
        assert!((3_000..8_000).contains(&bad), "{bad}");
        // Occasional late heartbeats are no reason.
        assert!(!rhythm(&[100, 900, 200, 1_800, 50, 1_500, 300]).is_lost(milliseconds(2_500), &phi()));
        assert!(rhythm(&[500, 505, 495]).is_lost(milliseconds(2_500), &phi()));
    }

    #[test]
    fn nobody_is_waited_for_for_ever() {
        let terrible = rhythm(&[100, 19_000, 100]);
        assert_eq!(lost_after(&terrible, &phi()), 20_000, "ten times the stated time");
    }

    #[test]
    fn by_phi_the_stated_time_counts_until_enough_is_known() {
        let mut rhythm = Rhythm::default();
        (1..LEAST_TIMES).for_each(|_| rhythm.beats(milliseconds(500)));
        assert_eq!((rhythm.phi(milliseconds(1_900)), lost_after(&rhythm, &phi())), (None, 2_000));
        rhythm.beats(milliseconds(500));
        assert!(rhythm.phi(milliseconds(1_900)).is_some_and(|phi| phi > 8.0));
        (0..1_000).for_each(|_| rhythm.beats(milliseconds(500)));
        assert_eq!(rhythm.times.len(), MOST_TIMES);
    }

    #[test]
    fn phi_grows_with_the_silence_and_is_known_at_some_points() {
        let rhythm = rhythm(&[400, 600]);
        let phi = |time: u64| rhythm.phi(milliseconds(time)).unwrap();
        let all: Vec<f64> = (0..60).map(|step| phi(step * 100)).collect();
        assert!(all.windows(2).all(|pair| pair[0] <= pair[1]), "{all:?}");
        assert!(all.iter().all(|phi| phi.is_finite()), "{all:?}");
        // Half of all come later than the mean, and 2.3 % later than two standard deviations beyond it.
        assert!((phi(500) - 0.301).abs() < 0.001, "{}", phi(500));
        assert!((phi(700) + 0.0228_f64.log10()).abs() < 0.01, "{}", phi(700));
    }
}
