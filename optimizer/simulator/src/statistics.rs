//! Counters of a running simulation, in bounded memory.
use crate::network::Nanoseconds;
use hdrhistogram::Histogram;

/// Unit of the histograms, in nanoseconds.
const UNIT: u64 = 100;
/// Largest distinguishable latency: ten hours, in units.
const LARGEST: u64 = 360_000_000_000;

/// A distribution of times: a histogram, with the exact mean and largest value.
#[derive(Debug, Clone)]
pub(crate) struct Distributed {
    histogram: Histogram<u64>,
    sum: f64,
    smallest: Nanoseconds,
    largest: Nanoseconds,
}

impl Distributed {
    /// Creates one with this number of significant digits, 1 to 4.
    pub(crate) fn new(digits: u8) -> Self {
        let mut histogram = Histogram::new(digits).expect("the digits are in range");
        histogram.auto(true);
        Self { histogram, sum: 0.0, smallest: Nanoseconds::MAX, largest: 0 }
    }

    pub(crate) fn record(&mut self, time: Nanoseconds) {
        // It grows up to the largest value.
        let _ = self.histogram.record((time / UNIT).min(LARGEST));
        self.sum += time as f64;
        self.smallest = self.smallest.min(time);
        self.largest = self.largest.max(time);
    }

    pub(crate) fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// Mean in seconds.
    pub(crate) fn mean(&self) -> f64 {
        if self.count() == 0 { 0.0 } else { self.sum / self.count() as f64 / 1e9 }
    }

    /// Smallest in seconds.
    pub(crate) fn smallest(&self) -> f64 {
        if self.count() == 0 { 0.0 } else { self.smallest as f64 / 1e9 }
    }

    /// Largest in seconds.
    pub(crate) fn largest(&self) -> f64 {
        self.largest as f64 / 1e9
    }

    /// Seconds at a percentile.
    pub(crate) fn at(&self, percentile: f64) -> f64 {
        let value = self.histogram.value_at_percentile(percentile) * UNIT;
        (value as f64 / 1e9).min(self.largest())
    }

    /// Share of the times above this number of seconds.
    pub(crate) fn above(&self, seconds: f64) -> f64 {
        if self.count() == 0 {
            return 0.0;
        }
        let limit = (seconds * 1e9) as u64 / UNIT;
        let below = self.histogram.count_between(0, limit);
        (self.count() - below.min(self.count())) as f64 / self.count() as f64
    }
}

/// A number that changes over time: its mean and largest value between two times.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct OverTime {
    value: u64,
    since: Nanoseconds,
    area: f64,
    pub(crate) largest: u64,
}

impl OverTime {
    /// Changes the value at `now`; the time between `from` and `to` counts.
    pub(crate) fn change(&mut self, by: i64, now: Nanoseconds, (from, to): (Nanoseconds, Nanoseconds)) {
        let (begin, end) = (self.since.clamp(from, to), now.clamp(from, to));
        self.area += self.value as f64 * (end - begin) as f64;
        self.since = now;
        self.value = self.value.saturating_add_signed(by);
        if (from..=to).contains(&now) {
            self.largest = self.largest.max(self.value);
        }
    }

    /// Its mean between `from` and `to`, after the last change.
    pub(crate) fn mean(mut self, (from, to): (Nanoseconds, Nanoseconds)) -> f64 {
        self.change(0, to.max(self.since), (from, to));
        if to > from { self.area / (to - from) as f64 } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_within_the_digits() {
        let mut times = Distributed::new(3);
        (1..=100_000u64).for_each(|n| times.record(n * 1000));
        for percentile in [50.0, 90.0, 99.0] {
            let expected = percentile * 1e-6 * 1000.0;
            assert!((times.at(percentile) / expected - 1.0).abs() < 1e-3);
        }
        assert_eq!((times.smallest(), times.largest(), times.count()), (1e-6, 0.1, 100_000));
        assert!((times.mean() - 0.0500005).abs() < 1e-9);
    }

    #[test]
    fn means_over_time_count_between_two_times() {
        let window = (10, 30);
        let mut length = OverTime::default();
        length.change(2, 0, window);
        length.change(4, 20, window);
        length.change(-6, 40, window);
        assert_eq!(length.mean(window), 4.0);
        assert_eq!(length.largest, 6);
    }
}
