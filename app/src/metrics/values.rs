//! Values of metrics that are gathered before they are written.
use super::family::{Family, Labels};
use super::inventory as of;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use std::fmt;
use tidemill_engine::{Metric, MetricKind, MetricValue};

/// Values of counters and gauges; a metric is written once, with all that it was given.
#[derive(Debug, Default)]
pub struct Values(Vec<(Metric, Vec<(Labels, f64)>)>);

impl Values {
    /// Reads the values of this process: memory, processor time, open files, threads.
    pub fn of_process() -> Self {
        let mut values = Self::default();
        let process = tidemill_machine::Process::this();
        let none = Labels::new;
        if let Some(bytes) = process.status().resident() {
            values.add(&of::MEMORY, none(), bytes as f64);
        }
        values.add(&of::PROCESSOR_TIME, none(), tidemill_machine::process_time().as_secs_f64());
        values.add(&of::DESCRIPTORS, none(), process.descriptors() as f64);
        values.add(&of::THREADS, none(), process.threads() as f64);
        values
    }

    /// Adds a value.
    pub fn add(&mut self, metric: &Metric, labels: Labels, value: f64) {
        match self.0.iter_mut().find(|(known, _)| known == metric) {
            Some((_, values)) => values.push((labels, value)),
            None => self.0.push((*metric, vec![(labels, value)])),
        }
    }
}

impl Collector for Values {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for (metric, values) in &self.0 {
            let mut family = Family::begin(&mut encoder, metric)?;
            for (labels, value) in values {
                let value = match metric.kind {
                    MetricKind::Counter => MetricValue::Sum(*value),
                    MetricKind::Gauge | MetricKind::Histogram => MetricValue::Gauge(*value),
                };
                family.show(labels, &value)?;
            }
        }
        Ok(())
    }
}
