//! Metrics of a cell for monitoring systems: the metric, the stages or edges that have it, and the value.
use super::Latencies;
use super::cells::{Reasons, Sizes};
use crate::clock::Nanoseconds;
use crate::histogram::Histogram;
use std::sync::Mutex;

/// The kind of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// Only grows; its name ends with `_total` where it is served.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts of values by size; in seconds if its name has that unit.
    Histogram,
}

/// A metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metric {
    /// Its name; a counter's without `_total`.
    pub name: &'static str,
    /// The kind.
    pub kind: MetricKind,
    /// Names of its labels, including those that only some values have.
    pub labels: &'static [&'static str],
    /// The help text.
    pub help: &'static str,
}

/// Selection of stages, edges and sinks for which a metric is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricOf {
    /// All.
    All,
    /// Stages with a model.
    Models,
    /// Stages with a model that another device than the processors of the worker computes.
    Devices,
    /// Stages of sources.
    Sources,
    /// Edges between slots that have sent something.
    Sent,
    /// Edges with a policy for cuts.
    WhenCut,
    /// Edges whose records another variant answers while they are cut.
    StandIns,
}

/// A value that is served.
#[derive(Debug)]
pub enum MetricValue {
    /// Of a counter.
    Count(u64),
    /// Of a counter of something that has parts: seconds.
    Sum(f64),
    /// Of a gauge.
    Gauge(f64),
    /// Of a gauge: whether something is so.
    Is(bool),
    /// A distribution of times.
    Times(Latencies),
    /// A distribution of batches by their size: cumulative counts at [`super::BatchSizes::BOUNDS`], all records, all batches.
    Sizes(Vec<u64>, u64, u64),
    /// Of a counter, by reason.
    ByReason(Reasons),
}

impl MetricValue {
    /// Combines both, of edges between the same two stages.
    pub fn add(&mut self, more: Self) {
        match (self, more) {
            (Self::Count(own), Self::Count(more)) => *own += more,
            (Self::Sum(own), Self::Sum(more)) | (Self::Gauge(own), Self::Gauge(more)) => *own += more,
            (Self::Is(own), Self::Is(more)) => *own |= more,
            (Self::Times(own), Self::Times(more)) => own.add_all(&more),
            (Self::ByReason(own), Self::ByReason(more)) => {
                more.into_iter().for_each(|(reason, n)| *own.entry(reason).or_default() += n);
            }
            // Others are of stages, and no two stages have the same labels.
            _ => {}
        }
    }
}

/// A metric of a table of counters, with its value in a table.
pub struct Served<M> {
    /// The metric.
    pub metric: Metric,
    /// The selection for which it is served.
    pub of: MetricOf,
    /// A label that distinguishes this value from others of the same metric.
    pub label: Option<(&'static str, &'static str)>,
    /// The value at this engine time; none: there is no value.
    pub value: fn(&M, Nanoseconds) -> Option<MetricValue>,
}

/// The form in which a value is served.
pub(crate) struct Form<T> {
    pub(crate) kind: MetricKind,
    pub(crate) value: fn(T) -> Option<MetricValue>,
}

/// A counter.
pub(crate) const COUNT: Form<u64> =
    Form { kind: MetricKind::Counter, value: |n| Some(MetricValue::Count(n)) };
/// A counter of nanoseconds, served as seconds.
pub(crate) const SECONDS: Form<u64> =
    Form { kind: MetricKind::Counter, value: |n| Some(MetricValue::Sum(n as f64 / 1e9)) };
/// A present number.
pub(crate) const NOW: Form<u64> =
    Form { kind: MetricKind::Gauge, value: |n| Some(MetricValue::Gauge(n as f64)) };
/// Nanoseconds now, served as seconds.
pub(crate) const SECONDS_NOW: Form<i64> =
    Form { kind: MetricKind::Gauge, value: |n| Some(MetricValue::Gauge(n as f64 / 1e9)) };
/// Nanoseconds at most so far, served as seconds where there were any.
pub(crate) const MOST_SECONDS: Form<i64> =
    Form { kind: MetricKind::Gauge, value: |n| (n > 0).then_some(MetricValue::Gauge(n as f64 / 1e9)) };
/// Whether something is so.
pub(crate) const IS: Form<bool> = Form { kind: MetricKind::Gauge, value: |is| Some(MetricValue::Is(is)) };
/// Whether there is any.
pub(crate) const ANY: Form<u64> = Form { kind: MetricKind::Gauge, value: |n| Some(MetricValue::Is(n > 0)) };
/// A distribution of times.
pub(crate) const TIMES: Form<Histogram> = Form {
    kind: MetricKind::Histogram,
    value: |times| Some(MetricValue::Times(Latencies(Mutex::new(times)))),
};
/// A distribution of sizes of batches.
pub(crate) const SIZES: Form<Sizes> = Form {
    kind: MetricKind::Histogram,
    value: |sizes| {
        let (cumulative, records, batches) = cumulative(sizes);
        Some(MetricValue::Sizes(cumulative, records, batches))
    },
};
/// A counter by reason.
pub(crate) const REASONS: Form<Reasons> =
    Form { kind: MetricKind::Counter, value: |counts| Some(MetricValue::ByReason(counts)) };

/// Cumulative counts at the bounds, the sum of all sizes and the number of batches.
fn cumulative((counts, records): Sizes) -> (Vec<u64>, u64, u64) {
    let mut total = 0;
    let counts = counts.into_iter().map(|count| {
        total += count;
        total
    });
    let mut cumulative: Vec<u64> = counts.collect();
    let batches = cumulative.pop().unwrap_or(0);
    (cumulative, records, batches)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::BatchSizes;
    use crate::metrics::cells::Cell;

    #[test]
    fn batch_sizes_are_cumulative() {
        let sizes = BatchSizes::default();
        for size in [1, 2, 3, 8, 9, 1000] {
            sizes.record(size);
        }
        assert_eq!(cumulative(sizes.read()), (vec![1, 2, 3, 4, 5, 5, 5, 5, 5], 1023, 6));
    }
}
