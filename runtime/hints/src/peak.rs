//! The rate of a link without a stated one, learned from what the link has carried.
//!
//! A link carries at least what it has carried in a second. The highest such mean is taken for its total. That is a lower bound: a
//! link that never had much to do looks slower than it is, until it has. Less than [`LEAST`] says nothing.
//!
//! ```
//! use std::time::Duration;
//! use tidemill_hints::peak::Peak;
//! let mut peak = Peak::default();
//! for tick in 0..20_u32 {
//!     // A transfer at 8 Mbit/s, after 800 ms without one.
//!     let used = if tick >= 8 { 1e6 } else { 0.0 };
//!     peak.observe(used, tick * Duration::from_millis(100));
//! }
//! assert_eq!(peak.learned(), Some(1e6));
//! ```
use std::collections::VecDeque;
use std::time::Duration;

/// Time of which the mean is taken.
pub const HELD: Duration = Duration::from_secs(1);
/// The least rate from which anything is learned, bytes per second: 1 Mbit/s. Messages of services among themselves are fewer.
pub const LEAST: f64 = 125e3;

/// Rates that a link has carried.
#[derive(Debug, Clone, Default)]
pub struct Peak {
    /// Rates of the last second, and when each was seen.
    recent: VecDeque<(Duration, f64)>,
    learned: f64,
}

impl Peak {
    /// Notes the rate at a time. After a gap of more than a half of [`HELD`] it begins to look anew.
    pub fn observe(&mut self, used: f64, now: Duration) {
        if self.recent.back().is_some_and(|(last, _)| now.saturating_sub(*last) > HELD / 2) {
            self.recent.clear();
        }
        self.recent.push_back((now, used));
        let is_over = |at: Duration| now.saturating_sub(at) >= HELD;
        while self.recent.get(1).is_some_and(|(at, _)| is_over(*at)) {
            self.recent.pop_front();
        }
        if self.recent.front().is_some_and(|(at, _)| is_over(*at)) {
            let mean = self.recent.iter().map(|(_, used)| *used).sum::<f64>() / self.recent.len() as f64;
            self.learned = self.learned.max(mean);
        }
    }

    /// Returns the highest mean; none: it has carried next to nothing, or not for that long.
    pub fn learned(&self) -> Option<f64> {
        (self.learned >= LEAST).then_some(self.learned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rates are megabytes per second.
    fn learned(rates: impl IntoIterator<Item = (u64, f64)>) -> Option<f64> {
        let mut peak = Peak::default();
        rates.into_iter().for_each(|(ms, used)| peak.observe(1e6 * used, Duration::from_millis(ms)));
        peak.learned().map(|rate| (rate / 1e5).round() / 10.0)
    }

    #[test]
    fn only_what_lasts_is_learned() {
        assert_eq!(learned((0..10).map(|tick| (100 * tick, 50.0))), None, "900 ms");
        assert_eq!(learned((0..11).map(|tick| (100 * tick, 50.0))), Some(50.0));
        // A program that computes and sends in turn.
        let bursts = |tick: u64| if tick.is_multiple_of(2) { 0.0 } else { 110.0 };
        assert_eq!(learned((0..50).map(|tick| (100 * tick, bursts(tick)))), Some(60.0), "6 of 11 looks");
        assert_eq!(learned((0..50).map(|tick| (100 * tick, 0.1))), None, "messages of services");
        // Slower later: what was kept up once is still possible.
        let falls = (0..40).map(|tick| (100 * tick, if tick < 15 { 80.0 } else { 20.0 }));
        assert_eq!(learned(falls), Some(80.0));
    }

    #[test]
    fn a_gap_is_not_bridged() {
        let halves = (0..20).filter(|tick| !(5..12).contains(tick)).map(|tick| (100 * tick, 70.0));
        assert_eq!(learned(halves), None, "500 ms, a gap of 700 ms, 800 ms");
    }
}
