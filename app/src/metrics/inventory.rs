//! All metrics of runs: what they are called and what they tell.

/// What a metric is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only grows; its name ends with `_total` where it is served.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts of values by size; seconds where its name says so.
    Histogram,
}

/// A metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metric {
    /// Its name; a counter's without `_total`.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// Names of its labels; those that only some values have are in it.
    pub labels: &'static [&'static str],
    /// What it tells.
    pub help: &'static str,
}

/// Of stages, where `run` and `cluster_worker` are those of a cluster.
macro_rules! of_stage {
    ($($more:literal),*) => {
        &["workflow", "run", "operator", "stage", "worker", "cluster_worker", "variant" $(, $more)*]
    };
}

const fn metric(
    name: &'static str,
    kind: Kind,
    labels: &'static [&'static str],
    help: &'static str,
) -> Metric {
    Metric { name, kind, labels, help }
}

pub(super) const RECORDS: Metric = metric(
    "tidemill_operator_records",
    Kind::Counter,
    of_stage!("direction"),
    "Records in and out of a stage",
);
pub(super) const BATCHES: Metric =
    metric("tidemill_operator_batches", Kind::Counter, of_stage!(), "Batches that a stage computed");
pub(super) const RESTARTS: Metric =
    metric("tidemill_operator_restarts", Kind::Counter, of_stage!(), "Restarts of a stage after a panic");
pub(super) const STATE: Metric =
    metric("tidemill_operator_state_bytes", Kind::Gauge, of_stage!(), "Bytes of state of a stage");
pub(super) const WAITING: Metric = metric(
    "tidemill_operator_waiting_records",
    Kind::Gauge,
    of_stage!(),
    "Records that wait in the stage of a model or are being computed",
);
pub(super) const QUEUE: Metric = metric(
    "tidemill_operator_queue_seconds",
    Kind::Histogram,
    of_stage!(),
    "Time that a record waits in a stage before it is computed",
);
pub(super) const COMPUTE: Metric = metric(
    "tidemill_operator_compute_seconds",
    Kind::Histogram,
    of_stage!(),
    "Time that the batch of a record is computed",
);
pub(super) const COMPUTING: Metric = metric(
    "tidemill_operator_computing_seconds",
    Kind::Counter,
    of_stage!(),
    "Time that a stage computed: each batch once, those of several copies and partitions together",
);
pub(super) const PROCESSOR: Metric = metric(
    "tidemill_operator_processor_seconds",
    Kind::Counter,
    of_stage!(),
    "Processor time of threads that work for this stage alone: a model's, those that read a source",
);
pub(super) const BATCH_SIZE: Metric = metric(
    "tidemill_model_batch_size",
    Kind::Histogram,
    of_stage!(),
    "Records that a model computed at once",
);
pub(super) const SCHEDULE_LAG: Metric = metric(
    "tidemill_source_schedule_lag_seconds",
    Kind::Gauge,
    of_stage!(),
    "Largest lag of a source behind its open-loop schedule",
);
pub(super) const BEHIND: Metric = metric(
    "tidemill_source_behind_seconds",
    Kind::Gauge,
    of_stage!(),
    "How far a source is behind its open-loop schedule now",
);
pub(super) const WANTED_RATE: Metric = metric(
    "tidemill_source_wanted_records_per_second",
    Kind::Gauge,
    of_stage!(),
    "Records per second that a source is to give; absent: as many as are taken",
);
pub(super) const ENDED: Metric =
    metric("tidemill_source_ended", Kind::Gauge, of_stage!(), "1: the source has no more to give; else 0");
pub(super) const SLOT_PROCESSOR: Metric = metric(
    "tidemill_slot_processor_seconds",
    Kind::Counter,
    &["workflow", "run", "slot", "stages"],
    "Processor time of the thread of a slot, for all of its stages",
);
pub(super) const EDGE_RECORDS: Metric = metric(
    "tidemill_edge_records",
    Kind::Counter,
    &["workflow", "run", "edge"],
    "Records sent between slots, those that were sent again with them",
);
pub(super) const EDGE_BYTES: Metric =
    metric("tidemill_edge_bytes", Kind::Counter, &["workflow", "run", "edge"], "Bytes sent between slots");
pub(super) const EDGE_WAITING: Metric = metric(
    "tidemill_edge_waiting_records",
    Kind::Gauge,
    &["workflow", "run", "edge"],
    "Records that wait at the sender because the receiver has not taken earlier ones",
);
pub(super) const TRANSFER: Metric = metric(
    "tidemill_edge_transfer_seconds",
    Kind::Histogram,
    &["workflow", "run", "edge"],
    "Time from the output of a stage to the input of the next",
);
pub(super) const EDGE_CUT: Metric = metric(
    "tidemill_edge_cut",
    Kind::Gauge,
    &["workflow", "run", "edge"],
    "1: the edge is cut; else 0; of edges with `when_cut` between two workers",
);
pub(super) const EDGE_CUTS: Metric = metric(
    "tidemill_edge_cuts",
    Kind::Counter,
    &["workflow", "run", "edge"],
    "Times that an edge with `when_cut` was cut",
);
pub(super) const EDGE_CUT_SECONDS: Metric = metric(
    "tidemill_edge_cut_seconds",
    Kind::Counter,
    &["workflow", "run", "edge"],
    "How long an edge with `when_cut` was cut, with the cut that goes on",
);
pub(super) const EDGE_BUFFERED: Metric = metric(
    "tidemill_edge_buffered_bytes",
    Kind::Gauge,
    &["workflow", "run", "edge"],
    "Bytes that the sender keeps of an edge that is cut, or was and has not been delivered",
);
pub(super) const EDGE_DEGRADED: Metric = metric(
    "tidemill_edge_degraded",
    Kind::Gauge,
    &["workflow", "run", "edge"],
    "1: another variant answers on this side of an edge with `when_cut: degrade` that is cut; else 0",
);
pub(super) const EDGE_ANSWERED_HERE: Metric = metric(
    "tidemill_edge_answered_here_records",
    Kind::Counter,
    &["workflow", "run", "edge"],
    "Records that another variant was given to answer because an edge with `when_cut: degrade` was cut, repeated ones included",
);
pub(super) const EDGE_ANSWERED_THERE: Metric = metric(
    "tidemill_edge_answered_there_records",
    Kind::Counter,
    &["workflow", "run", "edge"],
    "Answers of the other side of an edge with `when_cut: degrade` that went on, repeated ones included",
);
pub(super) const DROPPED: Metric =
    metric("tidemill_records_dropped", Kind::Counter, of_stage!("edge", "reason"), "Records lost on purpose");
pub(super) const NOTES: Metric = metric(
    "tidemill_record_notes",
    Kind::Counter,
    of_stage!("reason"),
    "Records that went on, with something to know",
);
pub(super) const LETTERS: Metric = metric(
    "tidemill_dead_letters",
    Kind::Counter,
    of_stage!("reason"),
    "Records that could not be processed",
);
pub(super) const SINK_RECORDS: Metric = metric(
    "tidemill_sink_records",
    Kind::Counter,
    &["workflow", "run", "sink"],
    "Records that a sink has committed, each once",
);
pub(super) const SINK_SCORED: Metric = metric(
    "tidemill_sink_scored_records",
    Kind::Counter,
    &["workflow", "run", "sink", "is_right"],
    "Committed records with ground truth, by whether they are right",
);
pub(super) const LATENCY: Metric = metric(
    "tidemill_end_to_end_latency_seconds",
    Kind::Histogram,
    &["workflow", "run", "sink"],
    "Time from the intended emission at the source until readers of a sink can see the record",
);
pub(super) const ARRIVAL: Metric = metric(
    "tidemill_sink_arrival_seconds",
    Kind::Histogram,
    &["workflow", "run", "sink"],
    "Time from the intended emission at the source to the arrival at a sink, before it is published",
);
pub(super) const LEVEL: Metric = metric(
    "tidemill_slo_wanted",
    Kind::Gauge,
    &["workflow", "run", "slo", "percentile"],
    "What a service level asks for: records per second, percent, seconds",
);
pub(super) const WINDOWS: Metric = metric(
    "tidemill_slo_windows",
    Kind::Counter,
    &["workflow", "run", "slo"],
    "Windows (one second, or ten records of a slow rate) in which a service level was looked at",
);
pub(super) const VIOLATIONS: Metric = metric(
    "tidemill_slo_violations",
    Kind::Counter,
    &["workflow", "run", "slo"],
    "Windows (one second, or ten records of a slow rate) in which a service level was missed",
);
pub(super) const SECONDS: Metric =
    metric("tidemill_run_seconds", Kind::Gauge, &["workflow", "run"], "Engine time since the run began");
pub(super) const SLOT_RESTARTS: Metric =
    metric("tidemill_run_restarts", Kind::Counter, &["workflow", "run"], "Slots that were started again");

/// Of runs: in `tidemill run --metrics` and in a controller.
pub const RUNS: &[Metric] = &[
    RECORDS,
    BATCHES,
    RESTARTS,
    STATE,
    WAITING,
    QUEUE,
    COMPUTE,
    COMPUTING,
    PROCESSOR,
    BATCH_SIZE,
    SCHEDULE_LAG,
    BEHIND,
    WANTED_RATE,
    ENDED,
    SLOT_PROCESSOR,
    EDGE_RECORDS,
    EDGE_BYTES,
    EDGE_WAITING,
    TRANSFER,
    EDGE_CUT,
    EDGE_CUTS,
    EDGE_CUT_SECONDS,
    EDGE_BUFFERED,
    EDGE_DEGRADED,
    EDGE_ANSWERED_HERE,
    EDGE_ANSWERED_THERE,
    DROPPED,
    NOTES,
    LETTERS,
    SINK_RECORDS,
    SINK_SCORED,
    LATENCY,
    ARRIVAL,
    LEVEL,
    WINDOWS,
    VIOLATIONS,
    SECONDS,
    SLOT_RESTARTS,
];

pub(super) const MEMORY: Metric = metric(
    "process_resident_memory_bytes",
    Kind::Gauge,
    &[],
    "Memory of this process that is in the machine's",
);
pub(super) const PROCESSOR_TIME: Metric =
    metric("process_cpu_seconds", Kind::Counter, &[], "Processor time of this process");
pub(super) const DESCRIPTORS: Metric =
    metric("process_open_fds", Kind::Gauge, &[], "Open files and connections of this process");
pub(super) const THREADS: Metric = metric("process_threads", Kind::Gauge, &[], "Threads of this process");

/// Of the process that serves them: in controllers and agents.
pub const PROCESS: &[Metric] = &[MEMORY, PROCESSOR_TIME, DESCRIPTORS, THREADS];
