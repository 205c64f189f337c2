//! The links over which a run costs at most a budget, in closed form.
use crate::link::Link;
use crate::run::Run;

/// A budget for remoting.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bound {
    /// Part of the local time that may be added: 0.05 for 5 %.
    pub budget: f64,
    /// Outstanding runs: with 1 the budget holds for each run, with more for the time between the ends of two runs.
    pub window: u32,
}

impl Bound {
    /// Returns the seconds that may be added to a run.
    pub fn allowed(&self, run: &Run) -> f64 {
        self.budget * run.local
    }

    /// Whether a run over the link keeps the budget.
    pub fn fits(&self, run: &Run, link: &Link) -> bool {
        run.slow_down(link, self.window) <= self.budget * (1.0 + 1e-9) + 1e-12
    }

    /// Seconds between the ends of two runs at most.
    fn interval(&self, run: &Run) -> f64 {
        (1.0 + self.budget) * run.local
    }

    /// Seconds that are left for round trips and bytes of each run; negative if software and queue exceed the budget.
    fn left(&self, run: &Run) -> f64 {
        let busy = if self.window > 1 && run.software > self.interval(run) { f64::INFINITY } else { 0.0 };
        f64::from(self.window) * self.interval(run) - run.local - run.software - run.queue - busy
    }

    /// Returns the least payload bandwidth of each direction at this round trip, in bytes per second; none if no bandwidth
    /// is enough.
    pub fn least_bandwidth(&self, run: &Run, round_trip: f64) -> Option<f64> {
        let left = self.left(run) - f64::from(run.round_trips) * round_trip;
        let bytes = run.up + run.down;
        if left < 0.0 || (left == 0.0 && bytes > 0.0) {
            return None;
        }
        let alone = if bytes > 0.0 { bytes / left } else { 0.0 };
        Some(alone.max(run.up.max(run.down) / self.interval(run)))
    }

    /// Returns the longest round trip over links of these payload bandwidths; none if even none at all is too long.
    pub fn longest_round_trip(&self, run: &Run, up: f64, down: f64) -> Option<f64> {
        let link = Link { round_trip: 0.0, up, down };
        let (upward, downward) = (link.upward(run.up), link.downward(run.down));
        let left = self.left(run) - upward - downward;
        let keeps_pace = upward.max(downward) <= self.interval(run);
        (left >= 0.0 && keeps_pace).then(|| left / f64::from(run.round_trips.max(1)))
    }

    /// Returns the smallest window that keeps the budget over a link; none if bytes or processors alone exceed it.
    pub fn window_needed(&self, run: &Run, link: &Link) -> Option<u32> {
        let needed = (run.remote(link) / self.interval(run) * (1.0 - 1e-12)).ceil().max(1.0);
        // A float to an integer saturates.
        let window = needed as u32;
        Bound { window, ..*self }.fits(run, link).then_some(window)
    }
}

/// Returns up to `most` round trips below the longest one, in the series 1, 2, 5, 10, ... of seconds.
///
/// ```
/// let round = |seconds: f64| (seconds * 1e6).round();
/// let found: Vec<f64> = tidemill_replay::frontier::round_trips(0.030, 4).into_iter().map(round).collect();
/// assert_eq!(found, [2000.0, 5000.0, 10_000.0, 20_000.0]);
/// ```
pub fn round_trips(longest: f64, most: usize) -> Vec<f64> {
    if !longest.is_finite() || longest <= 0.0 {
        return Vec::new();
    }
    let top = longest.log10().floor() as i32;
    let series = (top - 3..=top).flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10_f64.powi(power)));
    let below: Vec<f64> = series.filter(|round_trip| *round_trip < longest).collect();
    below[below.len().saturating_sub(most)..].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::tests::{any_link, any_run};
    use proptest::prelude::*;

    fn bound() -> impl Strategy<Value = Bound> {
        (0.01..3.0, prop_oneof![Just(1_u32), 2_u32..9]).prop_map(|(budget, window)| Bound { budget, window })
    }

    proptest! {
        #[test]
        fn the_least_bandwidth_is_enough_and_less_is_not(
            run in any_run(), bound in bound(), round_trip in 0.0..0.05,
        ) {
            let over = |bandwidth| Link { round_trip, up: bandwidth, down: bandwidth };
            match bound.least_bandwidth(&run, round_trip) {
                Some(least) => {
                    prop_assert!(bound.fits(&run, &over(least * (1.0 + 1e-9))));
                    prop_assert!(!bound.fits(&run, &over(least * 0.99)));
                }
                None => prop_assert!(!bound.fits(&run, &over(1e18))),
            }
        }

        #[test]
        fn the_longest_round_trip_is_kept_and_a_longer_one_is_not(
            run in any_run(), bound in bound(), link in any_link(),
        ) {
            let over = |round_trip| Link { round_trip, ..link };
            match bound.longest_round_trip(&run, link.up, link.down) {
                Some(longest) => {
                    prop_assert!(bound.fits(&run, &over(longest)));
                    prop_assert!(!bound.fits(&run, &over(longest * 1.01 + 1e-6)));
                }
                None => prop_assert!(!bound.fits(&run, &over(0.0))),
            }
        }

        #[test]
        fn the_needed_window_keeps_the_budget_and_a_smaller_one_does_not(
            run in any_run(), bound in bound(), link in any_link(),
        ) {
            match bound.window_needed(&run, &link) {
                Some(window) => {
                    let exactly = Bound { window, ..bound };
                    prop_assert!(exactly.fits(&run, &link));
                    let less = Bound { window: window - 1, ..bound };
                    prop_assert!(window == 1 || !less.fits(&run, &link));
                }
                None => {
                    let wide = Bound { window: 100_000, ..bound };
                    prop_assert!(!wide.fits(&run, &link));
                }
            }
        }

        #[test]
        fn what_fits_is_told_by_both_forms(run in any_run(), bound in bound(), link in any_link()) {
            let longest = bound.longest_round_trip(&run, link.up, link.down);
            prop_assert_eq!(bound.fits(&run, &link), longest.is_some_and(|longest| longest >= link.round_trip));
        }
    }

    #[test]
    fn published_round_trips_are_too_strict() {
        // ResNET on the V100: 4 answers an inference. The published model allows 1.1 us.
        let resnet = Run { up: 0.0, down: 0.0, round_trips: 4, local: 5.8e-3, software: 0.0, queue: 0.0 };
        let bound = Bound { budget: 0.05, window: 1 };
        let longest = bound.longest_round_trip(&resnet, f64::INFINITY, f64::INFINITY).unwrap();
        assert!((longest * 1e6 - 72.5).abs() < 0.1, "{longest}");
    }

    #[test]
    fn series_end_below_the_longest() {
        assert_eq!(round_trips(0.0, 5), Vec::<f64>::new());
        let found = round_trips(1.0, 6);
        assert_eq!(found.len(), 6);
        assert!(
            found.is_sorted() && found.last().is_some_and(|last| (last - 0.5).abs() < 1e-12),
            "{found:?}"
        );
    }
}
