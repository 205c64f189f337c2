//! What a run counts and times. Written by the slots, read at any time.
mod figures;

pub(crate) use figures::{Figures, Own};

use crate::clock::Nanoseconds;
use crate::histogram::Histogram;
use crate::processor::ProcessorTime;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use tidemill_operators::api::Reason;
use tidemill_operators::track_truth::TrackMeasures;
use tidemill_spec::publication::Publication;

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

    /// Adds several at once: times and how many records took each.
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

    /// Cumulative counts at these bounds (seconds, ascending), the sum (seconds) and the count; for Prometheus.
    pub fn buckets(&self, bounds: &[f64]) -> (Vec<u64>, f64, u64) {
        let histogram = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let counts = bounds.iter().map(|bound| histogram.count_to((bound * 1e6) as u64)).collect();
        (counts, histogram.sum() / 1e6, histogram.count())
    }
}

/// What was added to a distribution since the last look.
#[derive(Debug, Clone, Default)]
pub struct LatencyWindow {
    seen: Histogram,
}

impl LatencyWindow {
    /// Milliseconds and how many records, ascending, since this was called last.
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

/// How many records batches had.
#[derive(Debug, Default)]
pub struct BatchSizes {
    /// Batches of at most as many records as [`BatchSizes::BOUNDS`] say, then larger ones.
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

    /// Cumulative counts at the bounds, the sum of all sizes and the number of batches; for Prometheus.
    pub fn buckets(&self) -> (Vec<u64>, u64, u64) {
        let mut total = 0;
        let counts = self.counts.iter().map(|bucket| {
            total += bucket.load(Ordering::Relaxed);
            total
        });
        let mut cumulative: Vec<u64> = counts.collect();
        let batches = cumulative.pop().unwrap_or(0);
        (cumulative, self.records.load(Ordering::Relaxed), batches)
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

/// How many there are now of something that several parts of a stage or an edge have together: each tells its own share.
#[derive(Debug, Default)]
pub struct Amount(AtomicI64);

impl Amount {
    /// All shares together.
    pub fn get(&self) -> u64 {
        u64::try_from(self.0.load(Ordering::Relaxed)).unwrap_or(0)
    }

    /// A part that had told `told` has `now`.
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

/// Counters of one stage (all its partitions and incarnations).
#[derive(Debug, Default)]
pub struct StageMetrics {
    /// Records that came in (replays included).
    pub records_in: AtomicU64,
    /// Records that went out (replays included).
    pub records_out: AtomicU64,
    /// Batches computed.
    pub batches: AtomicU64,
    /// How long they took, nanoseconds: each batch once, those of several copies and partitions together.
    pub computing: AtomicU64,
    /// How large they were; models only.
    pub batch_sizes: BatchSizes,
    /// Waiting in the stage before the computation.
    pub queue: Latencies,
    /// The computation (of the whole batch, once for each of its records).
    pub compute: Latencies,
    /// Records lost on purpose.
    pub drops: ByReason,
    /// Records that went on and of which there is something to know.
    pub notes: ByReason,
    /// Records that could not be processed.
    pub dead_letters: ByReason,
    /// Bytes of state.
    pub state_bytes: AtomicU64,
    /// For open-loop sources: the furthest that emission lagged behind the schedule, nanoseconds.
    pub schedule_lag: AtomicI64,
    /// Newest event time of a source's records in microseconds, plus 1; 0: none is known in this process.
    pub newest_time: AtomicI64,
    /// For open-loop sources: how far emission is behind the schedule now, nanoseconds.
    pub behind: AtomicI64,
    /// Records that wait in the stage or are being computed; models only.
    pub waiting: Amount,
    /// Times that the stage was restarted.
    pub restarts: AtomicU64,
    /// Of other threads, for this stage alone: a model's, those that read a source.
    pub processor: Arc<ProcessorTime>,
    /// Copies of the model that were added while the run went on.
    pub copies_added: AtomicU64,
    /// What computes the model, as its executor says; models only.
    pub device: OnceLock<String>,
    /// Sources only: there is no more, or the run was told to end.
    pub ended: AtomicBool,
}

impl StageMetrics {
    /// A batch of so many records was computed.
    pub(crate) fn computed(&self, elapsed: Nanoseconds, rows: u64) {
        self.compute.record(elapsed, rows);
        count(&self.batches, 1);
        count(&self.computing, u64::try_from(elapsed).unwrap_or(0));
    }
}

/// Counters of one plan edge.
#[derive(Debug, Default)]
pub struct EdgeMetrics {
    /// Records sent (replays included).
    pub records: AtomicU64,
    /// Bytes sent (replays included).
    pub bytes: AtomicU64,
    /// From the sending stage's output to the receiving stage's input.
    pub transfer: Latencies,
    /// Records lost on purpose.
    pub drops: ByReason,
    /// Records that wait at the sender because the receiver has not taken earlier ones.
    pub waiting: Amount,
    /// Channels that are cut; only where the workflow says what happens then (`when_cut`), as with all that follows.
    pub cut: Amount,
    /// Channels that deliver what was kept while they were cut.
    pub delivers: Amount,
    /// Bytes that are kept for a receiver that is cut, or was and has not got all of it.
    pub buffered: Amount,
    /// Engine time since when it is cut, nanoseconds; 0 where it is not.
    pub cut_since: AtomicI64,
    /// Times that it was cut.
    pub cuts: AtomicU64,
    /// How long it was cut altogether, nanoseconds, without the cut that goes on.
    pub cut_nanoseconds: AtomicU64,
    /// Stand-ins on this side that answer now because it is cut (`when_cut: degrade`), as with what follows.
    pub degraded: Amount,
    /// Records that they were given to answer (replays included).
    pub answered_here: AtomicU64,
    /// Answers of the other side that have left (replays included).
    pub answered_there: AtomicU64,
}

impl EdgeMetrics {
    /// A channel of it is cut since then.
    pub(crate) fn cut_begins(&self, since: Nanoseconds) {
        if self.cut_since.compare_exchange(0, since, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            count(&self.cuts, 1);
        }
    }

    /// A channel of it is back, or its receiver has ended.
    pub(crate) fn cut_over(&self, now: Nanoseconds) {
        if self.cut.get() > 1 {
            return;
        }
        let since = self.cut_since.swap(0, Ordering::AcqRel);
        if since != 0 {
            count(&self.cut_nanoseconds, u64::try_from(now - since).unwrap_or(0));
        }
    }
}

/// Counters of one sink.
#[derive(Debug, Default)]
pub struct SinkMetrics {
    /// Records that arrived.
    pub records: AtomicU64,
    /// From the intended emission at the source until readers of the sink can see the record: the commit that publishes it
    /// has returned. Each record once, however often it was replayed.
    pub latency: Latencies,
    /// From the intended emission to the arrival in the sink's memory (replays included).
    pub arrival: Latencies,
    /// When readers can see what arrived; known once the sink is open.
    pub publication: OnceLock<Publication>,
    /// Engine time of the first arrival, nanoseconds; 0 before.
    pub first_arrival: AtomicI64,
    /// Engine time of the last arrival, nanoseconds.
    pub last_arrival: AtomicI64,
    /// Records committed (each once), those left out that nobody took.
    pub committed: AtomicU64,
    /// Committed records with ground truth. While the sink is open: of texts the characters of those that have come, of tracks 0.
    pub scored: AtomicU64,
    /// Those of them that are right.
    pub correct: AtomicU64,
    /// How many independent samples are as uncertain as the share of those that are right.
    pub independent: AtomicU64,
    /// Of tracks: what is measured beside IDF1, once the sink is closed.
    pub tracks: OnceLock<TrackMeasures>,
    /// Its rows are judged together: what two processes found is not added.
    pub judged_whole: AtomicBool,
    /// Committed records whose key has no ground truth.
    pub without_truth: AtomicU64,
    /// Nobody takes what the sink writes any more.
    pub closed: AtomicBool,
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

    /// Large batches take longer: weighted by their records, a stage would seem to compute more of its time than it does.
    #[test]
    fn a_batch_takes_its_time_once_however_large_it_is() {
        let stage = StageMetrics::default();
        stage.computed(2_000_000, 1);
        stage.computed(10_000_000, 9);
        let told = (stage.batches.load(Ordering::Relaxed), stage.computing.load(Ordering::Relaxed));
        assert_eq!(told, (2, 12_000_000));
        assert_eq!(stage.compute.summary().count, 10);
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
    fn batch_sizes_are_cumulative() {
        let sizes = BatchSizes::default();
        for size in [1, 2, 3, 8, 9, 1000] {
            sizes.record(size);
        }
        assert_eq!(sizes.buckets(), (vec![1, 2, 3, 4, 5, 5, 5, 5, 5], 1023, 6));
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
