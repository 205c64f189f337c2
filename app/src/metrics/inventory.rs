//! Metrics of runs that are no counters of a stage, an edge or a sink, and those of a process.
use std::collections::BTreeSet;
use std::sync::LazyLock;
use tidemill_engine::{EdgeMetrics, Metric, MetricKind, Served, SinkMetrics, StageMetrics};

/// A gauge.
pub const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
    Metric { name, kind: MetricKind::Gauge, labels, help }
}

/// A counter.
pub const fn counter(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
    Metric { name, kind: MetricKind::Counter, labels, help }
}

pub(super) const WANTED_RATE: Metric = gauge(
    "tidemill_source_wanted_records_per_second",
    &["workflow", "run", "operator", "stage", "worker", "cluster_worker", "variant"],
    "Required records per second of a source; absent: as many as possible",
);
pub(super) const FEED_STATE: Metric = gauge(
    "tidemill_feed_state",
    &["workflow", "run", "source", "feed", "state"],
    "1 for the state of a feed of a live source: connecting, live, stalled, failed or paused; 0 for the others",
);
pub(super) const FEED_CONNECTS: Metric = counter(
    "tidemill_feed_connects",
    &["workflow", "run", "source", "feed"],
    "Successful connections of a feed",
);
pub(super) const FEED_RECEIVED: Metric = counter(
    "tidemill_feed_received_records",
    &["workflow", "run", "source", "feed"],
    "Records of a feed that came: those emitted, dropped and waiting",
);
pub(super) const FEED_EMITTED: Metric = counter(
    "tidemill_feed_emitted_records",
    &["workflow", "run", "source", "feed"],
    "Records of a feed that were given to the run",
);
pub(super) const FEED_DROPS: Metric = counter(
    "tidemill_feed_dropped_records",
    &["workflow", "run", "source", "feed", "reason"],
    "Records of a feed that were dropped before the run, by reason",
);
pub(super) const SLOT_PROCESSOR: Metric = counter(
    "tidemill_slot_processor_seconds",
    &["workflow", "run", "slot", "stages"],
    "Processor time of the thread of a slot, for all of its stages",
);
pub(super) const LEVEL: Metric = gauge(
    "tidemill_slo_wanted",
    &["workflow", "run", "slo", "percentile"],
    "Required value of a service level: records per second, percent, seconds",
);
pub(super) const WINDOWS: Metric = counter(
    "tidemill_slo_windows",
    &["workflow", "run", "slo"],
    "Windows (one second, or ten records of a slow rate) in which a service level was checked",
);
pub(super) const VIOLATIONS: Metric = counter(
    "tidemill_slo_violations",
    &["workflow", "run", "slo"],
    "Windows (one second, or ten records of a slow rate) in which a service level was missed",
);
pub(super) const SECONDS: Metric =
    gauge("tidemill_run_seconds", &["workflow", "run"], "Engine time since the start of the run");
pub(super) const SLOT_RESTARTS: Metric =
    counter("tidemill_run_restarts", &["workflow", "run"], "Restarts of slots");

/// Metrics of runs: in `tidemill run --metrics` and in a controller.
pub fn runs() -> &'static [Metric] {
    static ALL: LazyLock<Vec<Metric>> = LazyLock::new(|| {
        let of_stages = [of(StageMetrics::SERVED), vec![WANTED_RATE, SLOT_PROCESSOR]];
        let of_others = [of(EdgeMetrics::SERVED), of(SinkMetrics::SERVED)];
        let feeds = vec![FEED_STATE, FEED_CONNECTS, FEED_RECEIVED, FEED_EMITTED, FEED_DROPS];
        let whole = vec![LEVEL, WINDOWS, VIOLATIONS, SECONDS, SLOT_RESTARTS];
        let all = of_stages.into_iter().chain(of_others).chain([feeds, whole]).flatten();
        let mut names = BTreeSet::new();
        all.filter(|metric| names.insert(metric.name)).collect()
    });
    &ALL
}

fn of<M>(served: &[Served<M>]) -> Vec<Metric> {
    served.iter().map(|served| served.metric).collect()
}

pub(super) const MEMORY: Metric =
    gauge("process_resident_memory_bytes", &[], "Resident memory of this process");
pub(super) const PROCESSOR_TIME: Metric =
    counter("process_cpu_seconds", &[], "Processor time of this process");
pub(super) const DESCRIPTORS: Metric =
    gauge("process_open_fds", &[], "Open files and connections of this process");
pub(super) const THREADS: Metric = gauge("process_threads", &[], "Threads of this process");

/// Metrics of the serving process: in controllers and agents.
pub const PROCESS: &[Metric] = &[MEMORY, PROCESSOR_TIME, DESCRIPTORS, THREADS];
