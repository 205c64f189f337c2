//! Metrics of a controller and an agent, beside [`tidemill_app::metrics::runs`].
use tidemill_app::metrics::{Metric, counter, gauge};

/// Marks a controller.
pub const CONTROLLER_INFO: Metric =
    gauge("tidemill_controller_info", &["version"], "1, with the version of the program");
pub(crate) const WORKERS: Metric =
    gauge("tidemill_controller_workers", &["state"], "Workers of the cluster that are alive, drained, lost");
pub(crate) const WORKER_ALIVE: Metric = gauge(
    "tidemill_controller_worker_alive",
    &["cluster_worker", "tier"],
    "1: the heartbeats of the worker arrive in time; 0: it is lost",
);
pub(crate) const WORKER_SILENT: Metric = gauge(
    "tidemill_controller_worker_silent_seconds",
    &["cluster_worker", "tier"],
    "Time since the last heartbeat of the worker; absent: none since the start of the controller",
);
pub(crate) const WORKER_CERTIFICATE: Metric = gauge(
    "tidemill_controller_worker_certificate_seconds",
    &["cluster_worker", "tier"],
    "Remaining validity of the last certificate of the worker",
);
pub(crate) const CERTIFICATE: Metric = gauge(
    "tidemill_controller_certificate_seconds",
    &[],
    "Remaining validity of the certificate of the controller",
);
pub(crate) const HEARTBEATS: Metric =
    counter("tidemill_controller_heartbeats", &[], "Received heartbeats of workers");
pub(crate) const RUNS: Metric = gauge("tidemill_controller_runs", &["state"], "Runs by state");
pub(crate) const JOBS: Metric = gauge("tidemill_controller_jobs", &["state"], "Jobs of the queue by state");
pub(crate) const PREEMPTIONS: Metric = counter(
    "tidemill_controller_job_preemptions",
    &[],
    "Jobs that were ended early, for other jobs or for streams",
);
pub(crate) const EVENTS: Metric =
    counter("tidemill_controller_events", &["kind"], "Events since the start of the controller");
pub(crate) const FILES: Metric =
    gauge("tidemill_controller_files", &[], "Files of workflows that the controller has");
pub(crate) const FILE_BYTES: Metric =
    gauge("tidemill_controller_file_bytes", &[], "Bytes of files of workflows that the controller has");
pub(crate) const COST: Metric = gauge(
    "tidemill_run_cost_dollars_per_hour",
    &["workflow", "run", "basis"],
    "Cost of a run: as its plan expects (predicted), by its workers and its traffic of the last seconds (now)",
);
pub(crate) const MEASURED: Metric = gauge(
    "tidemill_slo_measured",
    &["workflow", "run", "slo", "percentile"],
    "Measured value of a service level: records per second, percent, seconds",
);
pub(crate) const MISSED: Metric = gauge(
    "tidemill_slo_missed",
    &["workflow", "run", "slo"],
    "1: the last window missed the service level; else 0",
);
pub(crate) const LOST_WORKERS: Metric = gauge(
    "tidemill_run_lost_workers",
    &["workflow", "run"],
    "Workers of a run that are lost and whose stages other stages replace (`survive`)",
);
pub(crate) const LOSSES_COVERED: Metric = gauge(
    "tidemill_run_losses_covered",
    &["workflow", "run"],
    "Further losses of workers that the plan of a run covers; absent: it covers none when it is whole, either",
);
pub(crate) const LOSS_SECONDS: Metric = gauge(
    "tidemill_run_loss_seconds",
    &["workflow", "run"],
    "Time from when the last loss of a worker was noticed to the first record at a sink without it; absent: all workers are there",
);
pub(crate) const BUSY: Metric = gauge(
    "tidemill_operator_busy_ratio",
    &["workflow", "run", "operator", "stage", "worker", "cluster_worker"],
    "Part of its time that a stage computes",
);

/// Metrics of a controller.
pub const CONTROLLER: &[Metric] = &[
    CONTROLLER_INFO,
    WORKERS,
    WORKER_ALIVE,
    WORKER_SILENT,
    WORKER_CERTIFICATE,
    CERTIFICATE,
    HEARTBEATS,
    RUNS,
    JOBS,
    PREEMPTIONS,
    EVENTS,
    FILES,
    FILE_BYTES,
    COST,
    MEASURED,
    MISSED,
    LOST_WORKERS,
    LOSSES_COVERED,
    LOSS_SECONDS,
    BUSY,
];

/// Marks an agent.
pub const AGENT_INFO: Metric =
    gauge("tidemill_agent_info", &["version"], "1, with the version of the program");
pub(crate) const AGENT_HEARTBEATS: Metric =
    counter("tidemill_agent_heartbeats", &["outcome"], "Heartbeats: answered by the controller, or failed");
/// Whether the controller answers an agent.
pub const AGENT_CONTROLLER: Metric =
    gauge("tidemill_agent_controller_reached", &[], "1: the last heartbeat was answered; else 0");
pub(crate) const AGENT_CERTIFICATE: Metric = gauge(
    "tidemill_agent_certificate_seconds",
    &[],
    "Remaining validity of the certificate of the worker, which renews it in time",
);
pub(crate) const AGENT_PROCESSES: Metric = gauge(
    "tidemill_agent_processes",
    &["run", "worker", "state"],
    "Processes of runs, by whether they run or have ended",
);
pub(crate) const AGENT_FILES: Metric =
    gauge("tidemill_agent_files", &[], "Files of workflows that the worker has kept");
pub(crate) const AGENT_FILE_BYTES: Metric =
    gauge("tidemill_agent_file_bytes", &[], "Bytes of files of workflows that the worker has kept");

pub(crate) const AGENT_SERVICE: Metric =
    gauge("tidemill_agent_service_works", &["service"], "1: the service of this host works; else 0");
pub(crate) const AGENT_SERVICE_RESTARTS: Metric = counter(
    "tidemill_agent_service_restarts",
    &["service"],
    "Restarts of a service of this host after it failed",
);

pub(crate) const NET_SERVES: Metric =
    gauge("tidemill_net_serves", &["service"], "1: the transport service of the machine serves; else 0");
pub(crate) const NET_RESTARTS: Metric = gauge(
    "tidemill_net_restarts",
    &["service"],
    "Times that the transport service was started again after it failed",
);

/// Metrics of an agent.
pub const AGENT: &[Metric] = &[
    NET_SERVES,
    NET_RESTARTS,
    AGENT_INFO,
    AGENT_HEARTBEATS,
    AGENT_CONTROLLER,
    AGENT_CERTIFICATE,
    AGENT_PROCESSES,
    AGENT_FILES,
    AGENT_FILE_BYTES,
    AGENT_SERVICE,
    AGENT_SERVICE_RESTARTS,
];

/// Files in a folder and their bytes.
pub(crate) fn files(folder: &std::path::Path) -> (f64, f64) {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let sizes = entries.filter_map(|entry| entry.metadata().ok()).filter(std::fs::Metadata::is_file);
    sizes.fold((0.0, 0.0), |(files, bytes), file| (files + 1.0, bytes + file.len() as f64))
}
