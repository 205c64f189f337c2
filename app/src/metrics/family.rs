//! One metric with all its label sets, as it is written.
use super::inventory::{Kind, Metric};
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use std::fmt;
use tidemill_engine::Latencies;

/// Upper ends of the buckets of times, seconds.
const BOUNDS: [f64; 16] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0];

/// Names and values of labels.
pub type Labels = Vec<(&'static str, String)>;

/// One metric with all its label sets.
pub struct Family<'a>(MetricEncoder<'a>);

impl<'a> Family<'a> {
    /// Begins a metric: its name, what it is and what it tells.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn begin(encoder: &'a mut DescriptorEncoder<'_>, metric: &'a Metric) -> Result<Self, fmt::Error> {
        let kind = match metric.kind {
            Kind::Counter => MetricType::Counter,
            Kind::Gauge => MetricType::Gauge,
            Kind::Histogram => MetricType::Histogram,
        };
        encoder.encode_descriptor(metric.name, metric.help, None, kind).map(Self)
    }

    /// A counter's value.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn count(&mut self, labels: &Labels, value: u64) -> fmt::Result {
        ConstCounter::new(value).encode(self.0.encode_family(labels)?)
    }

    /// The value of a counter of something that has parts: seconds.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn sum(&mut self, labels: &Labels, value: f64) -> fmt::Result {
        ConstCounter::new(value).encode(self.0.encode_family(labels)?)
    }

    /// A gauge's value.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn value(&mut self, labels: &Labels, value: f64) -> fmt::Result {
        ConstGauge::new(value).encode(self.0.encode_family(labels)?)
    }

    /// A histogram of times.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn times(&mut self, labels: &Labels, times: &Latencies) -> fmt::Result {
        self.times_of(labels, [times])
    }

    /// A histogram of the times of several together.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn times_of<'b>(
        &mut self,
        labels: &Labels,
        all: impl IntoIterator<Item = &'b Latencies>,
    ) -> fmt::Result {
        let (mut cumulative, mut sum, mut count) = (vec![0_u64; BOUNDS.len()], 0.0_f64, 0_u64);
        for (own, own_sum, own_count) in all.into_iter().map(|times| times.buckets(&BOUNDS)) {
            cumulative.iter_mut().zip(own).for_each(|(total, more)| *total += more);
            sum += own_sum;
            count += own_count;
        }
        self.histogram(labels, &BOUNDS, cumulative, sum, count)
    }

    /// A histogram: upper ends of buckets, how many values are at most so large, their sum and number.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn histogram(
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
