//! Distribution of call times relative to their median, on whole processors and under a quota.
use crate::statistics::{deviation, quantile, rounded};
use tidemill_spec::profile::{BatchTime, Service};
use tidemill_spec::quota::{PERIOD, Quota};
use tidemill_spec::units::TimeSpan;

/// Periods of a quota that are simulated for percentiles, with a least and a largest number of calls.
const PERIODS: f64 = 20.0;
const CALLS: (f64, f64) = (500.0, 100_000.0);
/// Quotas used by one call from which it takes its processor time by the share: periods add nothing then.
const LONG: f64 = 100.0;
/// Steps of this size spread evenly over 0 to 1, for any number of steps.
const GOLDEN: f64 = 0.618_033_988_749_894_9;

/// Figures of a distribution relative to its median, as medians over some services.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Shape {
    mean: Option<f64>,
    deviation: Option<f64>,
    percentiles: [Option<f64>; 3],
}

impl Shape {
    pub(super) fn of<'a>(services: impl Iterator<Item = &'a Service>) -> Self {
        let rows: Vec<&BatchTime> = services.flat_map(|service| &service.batches).collect();
        let middle = |time: &dyn Fn(&BatchTime) -> Option<TimeSpan>| {
            let ratios = rows
                .iter()
                .filter_map(|row| Some((time(row)?.0 as f64, row.p50?.0 as f64)))
                .filter(|(_, median)| *median > 0.0)
                .map(|(time, median)| time / median);
            middle_of(ratios.collect())
        };
        // Not all rows have all percentiles: those of other rows must not break the order.
        let mut least = 1.0f64;
        let percentiles = [middle(&|row| row.p75), middle(&|row| row.p90), middle(&|row| row.p99)];
        let percentiles = percentiles.map(|ratio| {
            let ratio = ratio?.max(least);
            least = ratio;
            Some(ratio)
        });
        Self { mean: middle(&|row| row.mean), deviation: middle(&|row| row.deviation), percentiles }
    }

    /// Mean over median.
    pub(super) fn mean(&self) -> f64 {
        self.mean.unwrap_or(1.0)
    }

    /// Times of a batch with this median on a whole processor, or on a share of one.
    pub(super) fn row(&self, batch: u32, median: f64, share: Option<f64>) -> BatchTime {
        if let Some(share) = share {
            return self.under_quota(batch, median, share);
        }
        let of = |ratio: Option<f64>| ratio.map(|ratio| rounded(median * ratio));
        BatchTime {
            batch,
            samples: None,
            mean: of(self.mean),
            deviation: of(self.deviation),
            p50: Some(rounded(median)),
            p75: of(self.percentiles[0]),
            p90: of(self.percentiles[1]),
            p99: of(self.percentiles[2]),
            points: Vec::new(),
        }
    }

    /// Simulates consecutive calls, whose processor times have this shape, under a quota. Their mean is that of the
    /// processor times by the share.
    fn under_quota(&self, batch: u32, median: f64, share: f64) -> BatchTime {
        let budget = PERIOD as f64 * share;
        let calls = (PERIODS * budget / median.max(1.0)).clamp(CALLS.0, CALLS.1) as usize;
        let (mut quota, mut now) = (Quota::default(), 0);
        let mut times: Vec<u64> = (0..calls)
            .map(|call| {
                let processor = (median * self.at((call as f64 * GOLDEN).fract())).max(1.0);
                if processor > LONG * budget {
                    return (processor / share) as u64;
                }
                let start = now;
                now = quota.end(start, processor as i64, share);
                (now - start) as u64
            })
            .collect();
        times.sort_unstable();
        let at = |part: f64| Some(rounded(quantile(&times, part)));
        BatchTime {
            batch,
            samples: None,
            mean: Some(rounded(median * self.mean() / share)),
            deviation: Some(rounded(deviation(&times))),
            p50: at(0.5),
            p75: at(0.75),
            p90: at(0.9),
            p99: at(0.99),
            points: Vec::new(),
        }
    }

    /// Returns a quantile over the median: interpolated linearly, no less than the median below it.
    fn at(&self, part: f64) -> f64 {
        let named = [0.75, 0.9, 0.99].into_iter().zip(self.percentiles);
        let mut below = (0.5, 1.0);
        for (place, ratio) in named.filter_map(|(place, ratio)| Some((place, ratio?))) {
            if part <= place {
                return below.1 + (ratio - below.1) * ((part - below.0) / (place - below.0)).max(0.0);
            }
            below = (place, ratio);
        }
        below.1
    }
}

/// Returns the median.
pub(super) fn middle_of(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_calls_do_not_feel_a_quota_and_long_ones_do() {
        let shape = Shape::default();
        let short = shape.row(1, 1e5, Some(0.5));
        assert_eq!((short.p50, short.p90), (Some(TimeSpan(100_000)), Some(TimeSpan(100_000))));
        assert_eq!(short.mean, Some(TimeSpan(200_000)), "one in fifty waits 5 ms");
        let long = shape.row(1, 3e7, Some(0.25));
        assert_eq!(long.mean, Some(TimeSpan(120_000_000)));
        assert!((long.p50.unwrap().0 as f64 / 1.2e8 - 1.0).abs() < 0.1, "{long:?}");
        // A share so small that its periods cannot be counted.
        assert_eq!(shape.row(1, 1e10, Some(1e-6)).p50, Some(TimeSpan(10_000_000_000_000_000)));
        let wide = Shape { percentiles: [Some(1.2), None, Some(3.0)], ..Shape::default() };
        assert_eq!((wide.at(0.1), wide.at(0.75), wide.at(0.999)), (1.0, 1.2, 3.0));
        let row = wide.row(1, 1e6, Some(0.5));
        assert!(row.p50 <= row.p75 && row.p75 <= row.p90 && row.p90 <= row.p99, "{row:?}");
    }
}
