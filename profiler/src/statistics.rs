//! Statistics of samples.
use tidemill_spec::profile::BatchTime;
use tidemill_spec::units::TimeSpan;

/// Two-sided 95 % quantile of the normal distribution.
const Z: f64 = 1.959_963_984_540_054;
/// Points of a distribution in a profile: every 5 %.
const POINTS: usize = 21;
/// Least samples of a distribution, a rough one: slow models get no more.
const LEAST_FOR_POINTS: usize = 5;

/// The mean.
pub fn mean(samples: &[u64]) -> f64 {
    if samples.is_empty() {
        return 0.0;
    }
    samples.iter().map(|sample| *sample as f64).sum::<f64>() / samples.len() as f64
}

/// The standard deviation, with n-1 in the denominator; 0 for fewer than two samples.
pub fn deviation(samples: &[u64]) -> f64 {
    if samples.len() < 2 {
        return 0.0;
    }
    let mean = mean(samples);
    let squares: f64 = samples.iter().map(|sample| (*sample as f64 - mean).powi(2)).sum();
    (squares / (samples.len() - 1) as f64).sqrt()
}

/// Returns half the width of the 95 % confidence interval of the mean, as a share of the mean: `1.96 s / (sqrt(n) mean)`.
/// Samples are assumed independent. Infinite for fewer than five samples: their deviation is meaningless.
///
/// ```
/// use tidemill_profiler::statistics::half_width;
/// assert!((half_width(&[9, 11, 9, 11, 10, 10, 10, 10]) - 0.0524).abs() < 1e-4);
/// assert!(half_width(&[1, 1]).is_infinite());
/// ```
pub fn half_width(samples: &[u64]) -> f64 {
    if samples.len() < 5 {
        return f64::INFINITY;
    }
    let mean = mean(samples);
    if mean == 0.0 { 0.0 } else { Z * deviation(samples) / (samples.len() as f64).sqrt() / mean }
}

/// Estimates the samples for a half-width of `wanted` (a share of the mean) from these samples.
pub fn samples_for(samples: &[u64], wanted: f64) -> f64 {
    let mean = mean(samples);
    if mean == 0.0 || samples.len() < 2 {
        return 5.0;
    }
    (Z * deviation(samples) / (wanted * mean)).powi(2).max(5.0)
}

/// Returns the quantile `q` (0 to 1) of sorted samples, interpolated linearly (type 7 of Hyndman and Fan 1996).
pub fn quantile(sorted: &[u64], q: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let place = q.clamp(0.0, 1.0) * last as f64;
    let low = place.floor() as usize;
    let (from, to) = (sorted[low] as f64, sorted[(low + 1).min(last)] as f64);
    from + (place - low as f64) * (to - from)
}

/// The Wilson 95 % interval of a share, in percent.
///
/// Unlike the textbook interval it stays within 0 to 100 and is not empty when all or none are right.
pub fn wilson_percent(right: u64, all: u64) -> Option<(f64, f64)> {
    if all == 0 {
        return None;
    }
    Some(wilson(right as f64 / all as f64, all as f64))
}

fn wilson(share: f64, n: f64) -> (f64, f64) {
    let middle = share + Z * Z / (2.0 * n);
    let half = Z * (share * (1.0 - share) / n + Z * Z / (4.0 * n * n)).sqrt();
    let scale = 100.0 / (1.0 + Z * Z / n);
    (((middle - half) * scale).max(0.0), ((middle + half) * scale).min(100.0))
}

/// Returns this interval for dependent samples, such as the boxes of a track, whose share is as uncertain as that of
/// `independent` samples.
pub fn wilson_percent_of(right: u64, all: u64, independent: u64) -> Option<(f64, f64)> {
    if all == 0 || independent >= all {
        return wilson_percent(right, all);
    }
    Some(wilson(right as f64 / all as f64, independent.max(1) as f64))
}

/// Rounds nanoseconds to four digits: more are noise and make files hard to read.
pub fn rounded(nanoseconds: f64) -> TimeSpan {
    if nanoseconds <= 0.0 {
        return TimeSpan(0);
    }
    let step = 10f64.powi((nanoseconds.log10().floor() as i32 - 3).max(0));
    TimeSpan(((nanoseconds / step).round() * step) as u64)
}

/// Returns the row of a profile for times of batches of one size, all multiplied by `factor`. `None` without samples.
pub fn batch_time(batch: u32, nanoseconds: &[u64], factor: f64) -> Option<BatchTime> {
    if nanoseconds.is_empty() {
        return None;
    }
    let mut sorted = nanoseconds.to_vec();
    sorted.sort_unstable();
    let at = |q: f64| rounded(quantile(&sorted, q) * factor);
    let points = match sorted.len() >= LEAST_FOR_POINTS {
        true => (0..POINTS).map(|point| at(point as f64 / (POINTS - 1) as f64)).collect(),
        false => Vec::new(),
    };
    Some(BatchTime {
        batch,
        samples: Some(sorted.len() as u64),
        mean: Some(rounded(mean(&sorted) * factor)),
        deviation: Some(rounded(deviation(&sorted) * factor)),
        p50: Some(at(0.50)),
        p75: Some(at(0.75)),
        p90: Some(at(0.90)),
        p99: Some(at(0.99)),
        points,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn figures_of_a_known_sample() {
        let samples: Vec<u64> = (1..=100).collect();
        assert_eq!(mean(&samples), 50.5);
        assert!((deviation(&samples) - 29.011).abs() < 1e-3);
        assert_eq!(
            (quantile(&samples, 0.0), quantile(&samples, 0.5), quantile(&samples, 1.0)),
            (1.0, 50.5, 100.0)
        );
        assert!((half_width(&samples) - Z * 29.011 / 10.0 / 50.5).abs() < 1e-5);
        assert!((samples_for(&samples, half_width(&samples)) - 100.0).abs() < 1e-6);
        assert_eq!(batch_time(1, &[], 1.0), None);
    }

    #[test]
    fn four_digits_are_kept() {
        assert_eq!(rounded(1_234_567.0), TimeSpan(1_235_000));
        assert_eq!(rounded(999_960.0), TimeSpan(1_000_000));
        assert_eq!((rounded(12.0), rounded(0.0)), (TimeSpan(12), TimeSpan(0)));
    }

    #[test]
    fn wilson_intervals_are_those_of_the_books() {
        // 81 of 263: 25.5 % to 36.6 % (Newcombe 1998, table I).
        let (low, high) = wilson_percent(81, 263).unwrap();
        assert!((low - 25.53).abs() < 0.01 && (high - 36.62).abs() < 0.01, "{low} {high}");
        assert_eq!(wilson_percent(0, 0), None);
        let (_, high) = wilson_percent(20, 20).unwrap();
        assert!((high - 100.0).abs() < 1e-9);
    }

    proptest! {
        /// A profile accepts the rows that are written into it.
        #[test]
        fn rows_are_sound(samples in prop::collection::vec(1..u64::MAX / 1000, 1..80), factor in 0.5..4.0f64) {
            let row = batch_time(1, &samples, factor).unwrap();
            let named: Vec<_> = row.percentiles().into_iter().filter_map(|(_, time)| time).collect();
            prop_assert!(named.is_sorted() && row.points.is_sorted());
            prop_assert_eq!(row.points.is_empty(), samples.len() < LEAST_FOR_POINTS);
        }
    }
}
