//! One metric with all its label sets, as it is written.
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use std::fmt;
use tidemill_engine::{BatchSizes, Metric, MetricKind, MetricValue};

/// Upper ends of the buckets of times, seconds.
const BOUNDS: [f64; 16] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0];

/// Names and values of labels.
pub type Labels = Vec<(&'static str, String)>;

/// One metric with all its label sets.
pub(super) struct Family<'a>(MetricEncoder<'a>);

impl<'a> Family<'a> {
    /// Begins a metric: its name, type and meaning.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn begin(
        encoder: &'a mut DescriptorEncoder<'_>,
        metric: &'a Metric,
    ) -> Result<Self, fmt::Error> {
        let kind = match metric.kind {
            MetricKind::Counter => MetricType::Counter,
            MetricKind::Gauge => MetricType::Gauge,
            MetricKind::Histogram => MetricType::Histogram,
        };
        encoder.encode_descriptor(metric.name, metric.help, None, kind).map(Self)
    }

    /// A value; one by reason is one for each reason.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn show(&mut self, labels: &Labels, value: &MetricValue) -> fmt::Result {
        match value {
            MetricValue::Count(n) => ConstCounter::new(*n).encode(self.0.encode_family(labels)?),
            MetricValue::Sum(sum) => ConstCounter::new(*sum).encode(self.0.encode_family(labels)?),
            MetricValue::Gauge(value) => ConstGauge::new(*value).encode(self.0.encode_family(labels)?),
            MetricValue::Is(is) => {
                ConstGauge::new(f64::from(u8::from(*is))).encode(self.0.encode_family(labels)?)
            }
            MetricValue::Times(times) => {
                let (cumulative, sum, count) = times.buckets(&BOUNDS);
                self.histogram(labels, &BOUNDS, cumulative, sum, count)
            }
            MetricValue::Sizes(cumulative, records, batches) => {
                self.histogram(labels, &BatchSizes::BOUNDS, cumulative.clone(), *records as f64, *batches)
            }
            MetricValue::ByReason(counts) => counts.iter().try_for_each(|(reason, n)| {
                let mut labels = labels.clone();
                labels.push(("reason", reason.clone()));
                ConstCounter::new(*n).encode(self.0.encode_family(&labels)?)
            }),
        }
    }

    /// A histogram: upper ends of buckets, how many values are at most so large, their sum and number.
    fn histogram(
        &mut self,
        labels: &Labels,
        bounds: &[f64],
        cumulative: Vec<u64>,
        sum: f64,
        count: u64,
    ) -> fmt::Result {
        let mut before = 0;
        let mut buckets = Vec::with_capacity(bounds.len() + 1);
        for (bound, total) in bounds.iter().zip(cumulative) {
            buckets.push((*bound, total.saturating_sub(before)));
            before = total;
        }
        buckets.push((f64::INFINITY, count.saturating_sub(before)));
        self.0.encode_family(labels)?.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }
}
