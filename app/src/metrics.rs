//! Metrics for Prometheus while a run goes on, at `http://ADDR/metrics` in the OpenMetrics text form.
use crate::failure::{Failure, Kind};
use crate::slo_watch::Violations;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::fmt;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::Duration;
use tidemill_engine::{BatchSizes, Latencies, Observer, RunReport, StageReport};
use tidemill_spec::plan::Plan;

/// Upper ends of the histograms' buckets, seconds.
const BOUNDS: [f64; 16] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0];

/// A port that is ours already, so that a taken one is told before anything is read.
pub struct MetricsPort {
    listener: TcpListener,
}

impl MetricsPort {
    /// Takes the port.
    ///
    /// # Errors
    /// When the text is no address, or the port cannot be had.
    pub fn open(address: &str) -> Result<Self, Failure> {
        let not_one = || {
            Failure::new(Kind::Usage, format!("`{address}` is no address to serve metrics at"))
                .with_help("write an address and a port, such as `127.0.0.1:9464`")
        };
        let addresses: Vec<SocketAddr> = address.to_socket_addrs().map_err(|_| not_one())?.collect();
        let listener = TcpListener::bind(addresses.as_slice()).map_err(|error| {
            Failure::new(Kind::Unavailable, format!("metrics cannot be served at {address}: {error}"))
                .with_help("choose another port, or 0 for any free one")
        })?;
        Ok(Self { listener })
    }

    /// Where it is.
    pub fn address(&self) -> Option<SocketAddr> {
        self.listener.local_addr().ok()
    }

    /// Answers requests until the process ends.
    ///
    /// # Errors
    /// When no thread can be had.
    pub fn serve(
        self,
        workflow: String,
        plan: Plan,
        observer: Observer,
        violations: Violations,
    ) -> std::io::Result<()> {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(RunCollector { workflow, plan, observer, violations }));
        std::thread::Builder::new().name("metrics".into()).spawn(move || {
            for stream in self.listener.incoming().flatten() {
                // A client that goes away is its own affair.
                let _ = answer(stream, &registry);
            }
        })?;
        Ok(())
    }
}

/// Reads of a request, each of a quarter of a second at most: slow clients are cut off, because others wait.
const READS: usize = 8;

/// Reads one request, gives one answer, closes.
fn answer(mut stream: TcpStream, registry: &Registry) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_millis(250)))?;
    stream.set_write_timeout(Some(Duration::from_secs(1)))?;
    let mut request = Vec::new();
    let mut part = [0u8; 1024];
    for _ in 0..READS {
        match stream.read(&mut part)? {
            0 => break,
            n => request.extend_from_slice(&part[..n]),
        }
        if request.windows(4).any(|end| end == b"\r\n\r\n") {
            break;
        }
    }
    let line = String::from_utf8_lossy(&request);
    let mut words = line.split_ascii_whitespace();
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (status, body) = match (method, path.split('?').next().unwrap_or_default()) {
        ("GET" | "HEAD", "/metrics") => {
            let mut body = String::new();
            match text::encode(&mut body, registry) {
                Ok(()) => ("200 OK", body),
                Err(error) => ("500 Internal Server Error", error.to_string()),
            }
        }
        ("GET" | "HEAD", _) => ("404 Not Found", "metrics are at /metrics\n".to_owned()),
        _ => ("405 Method Not Allowed", "only GET\n".to_owned()),
    };
    let kind = match status {
        "200 OK" => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        _ => "text/plain; charset=utf-8",
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    if method != "HEAD" {
        stream.write_all(body.as_bytes())?;
    }
    Ok(())
}

struct RunCollector {
    workflow: String,
    plan: Plan,
    observer: Observer,
    violations: Violations,
}

impl fmt::Debug for RunCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunCollector").field("workflow", &self.workflow).finish_non_exhaustive()
    }
}

type Labels = Vec<(&'static str, String)>;

impl Collector for RunCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let report = self.observer.report();
        self.stages(&report, &mut encoder)?;
        self.batch_sizes(&report, &mut encoder)?;
        self.edges(&report, &mut encoder)?;
        self.losses(&report, &mut encoder)?;
        self.sinks(&report, &mut encoder)?;
        self.levels(&mut encoder)
    }
}

impl RunCollector {
    fn labels(&self, stage: &StageReport) -> Labels {
        let mut labels = vec![
            ("workflow", self.workflow.clone()),
            ("operator", stage.operator.clone()),
            ("stage", stage.stage.clone()),
            ("worker", stage.worker.clone()),
        ];
        labels.extend(stage.variant.clone().map(|variant| ("variant", variant)));
        labels
    }

    fn stages(&self, report: &RunReport, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut records =
            Family::counter(encoder, "tidemill_operator_records", "Records in and out of a stage")?;
        for stage in &report.stages {
            for (direction, value) in [("in", stage.records_in), ("out", stage.records_out)] {
                let mut labels = self.labels(stage);
                labels.push(("direction", direction.to_owned()));
                records.count(&labels, value)?;
            }
        }
        let mut batches =
            Family::counter(encoder, "tidemill_operator_batches", "Batches that a stage computed")?;
        for stage in &report.stages {
            batches.count(&self.labels(stage), stage.batches)?;
        }
        let mut restarts =
            Family::counter(encoder, "tidemill_operator_restarts", "Restarts of a stage after a panic")?;
        for stage in &report.stages {
            restarts.count(&self.labels(stage), stage.restarts)?;
        }
        let mut state = Family::gauge(encoder, "tidemill_operator_state_bytes", "Bytes of state of a stage")?;
        for stage in &report.stages {
            state.gauge_value(&self.labels(stage), stage.state_bytes as f64)?;
        }
        let mut lag = Family::gauge(
            encoder,
            "tidemill_source_schedule_lag_seconds",
            "Largest lag of a source behind its open-loop schedule",
        )?;
        for stage in report.stages.iter().filter(|stage| stage.records_in == 0 && stage.schedule_lag_ms > 0.0)
        {
            lag.gauge_value(&self.labels(stage), stage.schedule_lag_ms / 1e3)?;
        }
        let mut queue = Family::histogram_family(
            encoder,
            "tidemill_operator_queue_seconds",
            "Time that a record waits in a stage before it is computed",
        )?;
        for stage in &report.stages {
            if let Some(metrics) = self.observer.stage(&stage.stage) {
                queue.latencies(&self.labels(stage), &metrics.queue)?;
            }
        }
        let mut compute = Family::histogram_family(
            encoder,
            "tidemill_operator_compute_seconds",
            "Time that the batch of a record is computed",
        )?;
        for stage in &report.stages {
            if let Some(metrics) = self.observer.stage(&stage.stage) {
                compute.latencies(&self.labels(stage), &metrics.compute)?;
            }
        }
        Ok(())
    }

    fn batch_sizes(&self, report: &RunReport, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut sizes = Family::histogram_family(
            encoder,
            "tidemill_model_batch_size",
            "Records that a model computed at once",
        )?;
        for stage in report.stages.iter().filter(|stage| stage.variant.is_some()) {
            if let Some(metrics) = self.observer.stage(&stage.stage) {
                let (cumulative, sum, count) = metrics.batch_sizes.buckets();
                let labels = self.labels(stage);
                sizes.histogram(&labels, &BatchSizes::BOUNDS, cumulative, sum as f64, count)?;
            }
        }
        Ok(())
    }

    fn levels(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut missed = Family::counter(
            encoder,
            "tidemill_slo_violations",
            "Windows (one second, or ten records of a slow rate) in which a service level was missed",
        )?;
        for (slo, windows) in self.violations.iter() {
            let labels = vec![("workflow", self.workflow.clone()), ("slo", (*slo).to_owned())];
            missed.count(&labels, windows.counts().1)?;
        }
        Ok(())
    }

    fn edge_labels(&self, from: &str, to: &str) -> Labels {
        vec![("workflow", self.workflow.clone()), ("edge", format!("{from}->{to}"))]
    }

    fn edges(&self, report: &RunReport, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut bytes = Family::counter(encoder, "tidemill_edge_bytes", "Bytes sent between slots")?;
        for edge in report.edges.iter().filter(|edge| edge.records > 0) {
            bytes.count(&self.edge_labels(&edge.from, &edge.to), edge.bytes)?;
        }
        let mut transfer = Family::histogram_family(
            encoder,
            "tidemill_edge_transfer_seconds",
            "Time from the output of a stage to the input of the next",
        )?;
        for edge in &self.plan.edges {
            if let Some(metrics) = self.observer.edge(&edge.from, &edge.to, edge.input) {
                transfer.latencies(&self.edge_labels(&edge.from, &edge.to), &metrics.transfer)?;
            }
        }
        Ok(())
    }

    fn losses(&self, report: &RunReport, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let with_reason = |mut labels: Labels, reason: &str| {
            labels.push(("reason", reason.to_owned()));
            labels
        };
        let mut dropped = Family::counter(encoder, "tidemill_records_dropped", "Records lost on purpose")?;
        for stage in &report.stages {
            for (reason, value) in &stage.drops {
                dropped.count(&with_reason(self.labels(stage), reason), *value)?;
            }
        }
        for edge in &report.edges {
            for (reason, value) in &edge.drops {
                dropped.count(&with_reason(self.edge_labels(&edge.from, &edge.to), reason), *value)?;
            }
        }
        let mut notes = Family::counter(
            encoder,
            "tidemill_record_notes",
            "Records that went on, with something to know",
        )?;
        for stage in &report.stages {
            for (reason, value) in &stage.notes {
                notes.count(&with_reason(self.labels(stage), reason), *value)?;
            }
        }
        let mut letters =
            Family::counter(encoder, "tidemill_dead_letters", "Records that could not be processed")?;
        for stage in &report.stages {
            for (reason, value) in &stage.dead_letters {
                letters.count(&with_reason(self.labels(stage), reason), *value)?;
            }
        }
        Ok(())
    }

    fn sinks(&self, report: &RunReport, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut latency = Family::histogram_family(
            encoder,
            "tidemill_end_to_end_latency_seconds",
            "Time from the intended emission at the source until readers of a sink can see the record",
        )?;
        for sink in &report.sinks {
            let labels = vec![("workflow", self.workflow.clone()), ("sink", sink.sink.clone())];
            if let Some(metrics) = self.observer.sink(&sink.sink) {
                latency.latencies(&labels, &metrics.latency)?;
            }
        }
        let mut arrival = Family::histogram_family(
            encoder,
            "tidemill_sink_arrival_seconds",
            "Time from the intended emission at the source to the arrival at a sink, before it is published",
        )?;
        for sink in &report.sinks {
            let labels = vec![("workflow", self.workflow.clone()), ("sink", sink.sink.clone())];
            if let Some(metrics) = self.observer.sink(&sink.sink) {
                arrival.latencies(&labels, &metrics.arrival)?;
            }
        }
        Ok(())
    }
}

/// One metric with all its label sets.
struct Family<'a>(MetricEncoder<'a>);

impl<'a> Family<'a> {
    fn new(
        encoder: &'a mut DescriptorEncoder<'_>,
        name: &'a str,
        help: &str,
        kind: MetricType,
    ) -> Result<Self, fmt::Error> {
        encoder.encode_descriptor(name, help, None, kind).map(Self)
    }

    fn counter(
        encoder: &'a mut DescriptorEncoder<'_>,
        name: &'a str,
        help: &str,
    ) -> Result<Self, fmt::Error> {
        Self::new(encoder, name, help, MetricType::Counter)
    }

    fn gauge(encoder: &'a mut DescriptorEncoder<'_>, name: &'a str, help: &str) -> Result<Self, fmt::Error> {
        Self::new(encoder, name, help, MetricType::Gauge)
    }

    fn histogram_family(
        encoder: &'a mut DescriptorEncoder<'_>,
        name: &'a str,
        help: &str,
    ) -> Result<Self, fmt::Error> {
        Self::new(encoder, name, help, MetricType::Histogram)
    }

    fn count(&mut self, labels: &Labels, value: u64) -> fmt::Result {
        ConstCounter::new(value).encode(self.0.encode_family(labels)?)
    }

    fn gauge_value(&mut self, labels: &Labels, value: f64) -> fmt::Result {
        ConstGauge::new(value).encode(self.0.encode_family(labels)?)
    }

    fn latencies(&mut self, labels: &Labels, latencies: &Latencies) -> fmt::Result {
        let (cumulative, sum, count) = latencies.buckets(&BOUNDS);
        self.histogram(labels, &BOUNDS, cumulative, sum, count)
    }

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
