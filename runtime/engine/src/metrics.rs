//! Counters and times of a run. Written by the slots, read at any time.
mod cells;
mod counters;
mod figures;
mod served;
mod table;

pub use counters::{EdgeMetrics, SinkMetrics, StageMetrics};
pub(crate) use figures::{Figures, Own};
pub use served::{Metric, MetricKind, MetricOf, MetricValue, Served};

use crate::clock::Nanoseconds;
use crate::histogram::Histogram;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use tidemill_operators::api::Reason;

/// A latency distribution from 1 us to 1 h: percentiles with three digits (at most a thousandth too large; to the
/// microsecond below 2 ms), count, mean and largest value exact.
#[derive(Debug, Default)]
pub struct Latencies(Mutex<Histogram>);

/// Figures of a distribution, milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Default)]
pub struct LatencySummary {
    /// Number of records.
    pub count: u64,
    /// Arithmetic mean.
    pub mean_ms: f64,
    /// Median.
    pub p50_ms: f64,
    /// 90th percentile.
    pub p90_ms: f64,
    /// 95th percentile.
    pub p95_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
    /// Largest.
    pub max_ms: f64,
}

impl Latencies {
    /// Adds `rows` records that took `elapsed` each.
    pub fn record(&self, elapsed: Nanoseconds, rows: u64) {
        self.record_all([(elapsed, rows)]);
    }

    /// Adds several at once: times and the number of records of each.
    pub fn record_all(&self, all: impl IntoIterator<Item = (Nanoseconds, u64)>) {
        let mut latencies = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.into_iter().for_each(|(elapsed, rows)| latencies.add(elapsed.max(0) as u64 / 1000, rows));
    }

    /// The value that a share `percentile` (0..100) of the records did not exceed, milliseconds.
    pub fn percentile_ms(&self, percentile: f64) -> f64 {
        let histogram = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        histogram.percentile(percentile) as f64 / 1e3
    }

    /// The usual figures.
    pub fn summary(&self) -> LatencySummary {
        let histogram = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let ms = |percentile: f64| histogram.percentile(percentile) as f64 / 1e3;
        LatencySummary {
            count: histogram.count(),
            mean_ms: histogram.mean() / 1e3,
            p50_ms: ms(50.0),
            p90_ms: ms(90.0),
            p95_ms: ms(95.0),
            p99_ms: ms(99.0),
            max_ms: histogram.max() as f64 / 1e3,
        }
    }

    /// Adds all of another one.
    fn add_all(&self, other: &Self) {
        let more = other.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).add_all(&more);
    }

    /// Cumulative counts at these bounds (seconds, ascending), the sum (seconds) and the count; for Prometheus.
    pub fn buckets(&self, bounds: &[f64]) -> (Vec<u64>, f64, u64) {
        let histogram = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let counts = bounds.iter().map(|bound| histogram.count_to((bound * 1e6) as u64)).collect();
        (counts, histogram.sum() / 1e6, histogram.count())
    }
}

/// Values that were added to a distribution since the last look.
#[derive(Debug, Clone, Default)]
pub struct LatencyWindow {
    seen: Histogram,
}

impl LatencyWindow {
    /// Returns milliseconds and the number of records, ascending, since the last call.
    pub fn advance(&mut self, latencies: &Latencies) -> Vec<(f64, u64)> {
        let now = latencies.0.lock().unwrap_or_else(PoisonError::into_inner);
        if now.count() == self.seen.count() {
            return Vec::new();
        }
        let now = now.clone();
        let added = now.since(&self.seen);
        self.seen = now;
        added.into_iter().map(|(micros, n)| (micros as f64 / 1e3, n)).collect()
    }
}

/// Counts of batches by number of records.
#[derive(Debug, Default)]
pub struct BatchSizes {
    /// Counts of batches by the limits of [`BatchSizes::BOUNDS`], then of larger ones.
    counts: [AtomicU64; 10],
    records: AtomicU64,
}

impl BatchSizes {
    /// Upper ends of the buckets.
    pub const BOUNDS: [f64; 9] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0];

    /// Adds a batch.
    pub fn record(&self, records: u64) {
        let bucket = Self::BOUNDS.iter().position(|bound| records as f64 <= *bound);
        count(&self.counts[bucket.unwrap_or(Self::BOUNDS.len())], 1);
        count(&self.records, records);
    }
}

/// Counts by reason.
#[derive(Debug, Default)]
pub struct ByReason(Mutex<BTreeMap<Reason, u64>>);

impl ByReason {
    /// Adds `n`.
    pub fn add(&self, reason: impl Into<Reason>, n: u64) {
        if n > 0 {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(reason.into()).or_default() += n;
        }
    }

    /// All counts.
    pub fn counts(&self) -> BTreeMap<String, u64> {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.iter().map(|(reason, n)| (reason.to_string(), *n)).collect()
    }
}

/// A present amount that several parts of a stage or an edge have together: each reports its own share.
#[derive(Debug, Default)]
pub struct Amount(AtomicI64);

impl Amount {
    /// All shares together.
    pub fn get(&self) -> u64 {
        u64::try_from(self.0.load(Ordering::Relaxed)).unwrap_or(0)
    }

    /// Changes a part's share from `told` to `now`.
    pub(crate) fn change(&self, told: &mut i64, now: i64) {
        if *told != now {
            self.0.fetch_add(now - *told, Ordering::Relaxed);
            *told = now;
        }
    }

    fn set(&self, all: i64) {
        self.0.store(all, Ordering::Relaxed);
    }
}

/// Adds to a counter.
pub(crate) fn count(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_holds_what_is_new() {
        let (latencies, mut window) = (Latencies::default(), LatencyWindow::default());
        latencies.record(2_000_000, 3);
        assert_eq!(window.advance(&latencies), [(2.0, 3)]);
        assert_eq!(window.advance(&latencies), []);
        latencies.record(2_000_000, 1);
        latencies.record(1_000, 2);
        assert_eq!(window.advance(&latencies), [(0.001, 2), (2.0, 1)]);
    }

    #[test]
    fn shares_of_an_amount_come_and_go() {
        let amount = Amount::default();
        let (mut first, mut second) = (0, 0);
        amount.change(&mut first, 5);
        amount.change(&mut second, 2);
        assert_eq!(amount.get(), 7);
        amount.change(&mut first, 0);
        assert_eq!((amount.get(), first, second), (2, 0, 2));
    }

    #[test]
    fn summaries_are_in_milliseconds() {
        let latencies = Latencies::default();
        latencies.record(2_000_000, 99);
        latencies.record(500_000_000, 1);
        let summary = latencies.summary();
        assert_eq!(summary.count, 100);
        assert!((summary.p50_ms - 2.0).abs() < 0.01 && (summary.max_ms - 500.0).abs() < 1.0, "{summary:?}");
        let (buckets, _, count) = latencies.buckets(&[0.001, 0.01, 1.0]);
        assert_eq!((buckets, count), (vec![0, 99, 100], 100));
    }
}
