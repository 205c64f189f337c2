//! Serves metrics of active runs for Prometheus at `http://ADDR/metrics` in the OpenMetrics text form, and the figures of runs for
//! `tidemill top` at `http://ADDR/figures`.
pub mod device;
mod family;
pub mod groups;
mod inventory;
#[cfg(feature = "metrics")]
mod port;
#[cfg(not(feature = "metrics"))]
#[path = "metrics/port_absent.rs"]
mod port;
mod runs;
mod values;

pub use family::Labels;
pub use inventory::{PROCESS, counter, gauge, runs};
pub use port::MetricsPort;
pub use prometheus_client::collector::Collector;
pub use runs::{ObservedRun, RunsCollector};
pub use tidemill_engine::{Metric, MetricKind};
pub use values::Values;

use prometheus_client::registry::Registry;
use std::fmt;

/// Content type of the text, for the header of an answer.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Returns the metrics of collectors as text.
///
/// # Errors
/// A collector fails.
pub fn text(collectors: impl IntoIterator<Item = Box<dyn Collector>>) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    collectors.into_iter().for_each(|collector| registry.register_collector(collector));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}
