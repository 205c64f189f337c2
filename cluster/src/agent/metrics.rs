//! Metrics of an agent.
use crate::api::HostStatus;
use crate::metrics as of;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tidemill_app::metrics::{self, Collector, Labels, Metric, MetricKind, Values};
use tidemill_identity::Timestamp;
use tidemill_service::{Figure, Supervisor};

/// Counters of this agent.
pub(super) struct Counts {
    files: PathBuf,
    services: Weak<Supervisor>,
    seen: Mutex<ReportedMetrics>,
}

struct ReportedMetrics {
    answered: u64,
    failed: u64,
    is_reached: bool,
    hosts: Vec<HostStatus>,
    expires: Timestamp,
}

impl Counts {
    /// `files`: the folder with kept files; `expires`: until when its certificate is valid.
    pub(super) fn new(files: PathBuf, expires: Timestamp, services: &Arc<Supervisor>) -> Self {
        let seen = ReportedMetrics { answered: 0, failed: 0, is_reached: false, hosts: Vec::new(), expires };
        Self { files, services: Arc::downgrade(services), seen: Mutex::new(seen) }
    }

    /// A heartbeat was sent.
    pub(super) fn asked(&self, is_answered: bool, hosts: Vec<HostStatus>, expires: Option<Timestamp>) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        match is_answered {
            true => seen.answered += 1,
            false => seen.failed += 1,
        }
        seen.is_reached = is_answered;
        seen.hosts = hosts;
        seen.expires = expires.unwrap_or(seen.expires);
    }
}

/// All metrics, as text.
pub(super) fn text(counts: &Counts) -> Result<String, fmt::Error> {
    let mut values = Values::of_process();
    values.add(&of::AGENT_INFO, vec![("version", env!("CARGO_PKG_VERSION").to_owned())], 1.0);
    let (files, bytes) = of::files(&counts.files);
    values.add(&of::AGENT_FILES, Labels::new(), files);
    values.add(&of::AGENT_FILE_BYTES, Labels::new(), bytes);
    let seen = counts.seen.lock().unwrap_or_else(PoisonError::into_inner);
    for (outcome, count) in [("answered", seen.answered), ("failed", seen.failed)] {
        values.add(&of::AGENT_HEARTBEATS, vec![("outcome", outcome.to_owned())], count as f64);
    }
    values.add(&of::AGENT_CONTROLLER, Labels::new(), f64::from(u8::from(seen.is_reached)));
    let now = Timestamp::now();
    let left = seen.expires.since(now).as_secs_f64() - now.since(seen.expires).as_secs_f64();
    values.add(&of::AGENT_CERTIFICATE, Labels::new(), left);
    for host in &seen.hosts {
        let state = if host.ended.is_none() { "running" } else { "ended" };
        let labels =
            vec![("run", host.run.clone()), ("worker", host.role.clone()), ("state", state.to_owned())];
        values.add(&of::AGENT_PROCESSES, labels, 1.0);
    }
    drop(seen);
    if let Some(services) = counts.services.upgrade() {
        let of_service = |name: &str| vec![("service", name.to_owned())];
        for state in services.states() {
            let works = f64::from(u8::from(state.problem.is_none()));
            values.add(&of::AGENT_SERVICE, of_service(&state.name), works);
            values.add(&of::AGENT_SERVICE_RESTARTS, of_service(&state.name), state.restarts as f64);
        }
        for (service, figure) in services.figures() {
            let Figure { name, help, value } = figure;
            let metric = Metric { name, kind: MetricKind::Gauge, labels: &["service"], help };
            values.add(&metric, of_service(service), value);
        }
    }
    metrics::text([Box::new(values) as Box<dyn Collector>])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tidemill_identity::{Authority, Lifetimes};
    use tidemill_link::remote::Credentials;
    use tidemill_service::{Host, HostService};

    struct Kettle;

    impl HostService for Kettle {
        fn start(&mut self, _: &Host) -> Result<(), String> {
            Ok(())
        }

        fn metrics(&self) -> Vec<Figure> {
            vec![Figure { name: "tidemill_kettle_degrees", help: "How hot it is", value: 90.0 }]
        }
    }

    fn services(folder: &std::path::Path) -> Supervisor {
        let (now, identities) = (Timestamp::now(), folder.join("identities"));
        let authority = Authority::open_or_create(&identities, Lifetimes::default(), now).unwrap();
        let host = Host {
            folder: folder.join("services"),
            worker: "edge".into(),
            address: [127, 0, 0, 1].into(),
            only_dials: false,
            credentials: Credentials::new(&authority.issue_controller(&["localhost"], now).unwrap()).unwrap(),
        };
        let services = Supervisor::start(vec![("kettle", Box::new(Kettle))], &host).unwrap();
        while services.figures().is_empty() {
            std::thread::park_timeout(Duration::from_millis(5));
        }
        services
    }

    #[test]
    fn what_the_agent_did_is_told() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a"), "12345").unwrap();
        let now = Timestamp::now();
        let services = Arc::new(services(folder.path()));
        let counts = Counts::new(folder.path().to_owned(), now, &services);
        let host =
            HostStatus { run: "r".into(), role: "edge".into(), generation: 1, plan_version: 1, ended: None };
        counts.asked(true, vec![host], Some(now.after(std::time::Duration::from_secs(3600))));
        counts.asked(false, Vec::new(), None);
        counts.asked(true, vec![], None);
        let text = text(&counts).unwrap();
        for line in [
            "tidemill_agent_heartbeats_total{outcome=\"answered\"} 2.0",
            "tidemill_agent_heartbeats_total{outcome=\"failed\"} 1.0",
            "tidemill_agent_controller_reached{} 1.0",
            "tidemill_agent_file_bytes{} 5.0",
            "tidemill_agent_service_works{service=\"kettle\"} 1.0",
            "tidemill_kettle_degrees{service=\"kettle\"} 90.0",
            "# TYPE process_resident_memory_bytes gauge",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
        let left = text.lines().find_map(|line| line.strip_prefix("tidemill_agent_certificate_seconds{} "));
        let left: f64 = left.unwrap().parse().unwrap();
        assert!((3590.0..=3600.0).contains(&left), "{left}");
    }
}
