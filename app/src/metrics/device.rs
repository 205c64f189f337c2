//! Metrics of a device that serves others.
use super::inventory::{counter, gauge};
use tidemill_engine::Metric;

/// Age of the device.
pub const SECONDS: Metric =
    gauge("tidemill_device_seconds", &["device"], "Time since the device began to serve");
/// Runs at once.
pub const SLOTS: Metric =
    gauge("tidemill_device_slots", &["device"], "Runs that the device computes at once");
/// Runs.
pub const RUNS: Metric = counter("tidemill_device_runs", &["device"], "Runs of models on the device");
/// Runs that failed.
pub const FAILED: Metric =
    counter("tidemill_device_failed_runs", &["device"], "Runs of models on the device that failed");
/// Time of computations.
pub const COMPUTED: Metric = counter(
    "tidemill_device_computed_seconds",
    &["device"],
    "Time that the device computed; its rate, divided by the slots, is the busy part of the device",
);
/// Time of waits.
pub const WAITED: Metric =
    counter("tidemill_device_waited_seconds", &["device"], "Time that runs waited for their turns");
/// Sessions that wait.
pub const WAITING: Metric =
    gauge("tidemill_device_waiting_sessions", &["device"], "Sessions that wait for a turn");
/// Sessions.
pub const SESSIONS: Metric = gauge("tidemill_device_sessions", &["device", "tenant"], "Sessions of a tenant");
/// Memory.
pub const MEMORY: Metric = gauge(
    "tidemill_device_memory_bytes",
    &["device", "tenant"],
    "Bytes of models and tensors of the sessions of a tenant",
);
/// Limit on memory.
pub const MEMORY_LIMIT: Metric = gauge(
    "tidemill_device_memory_limit_bytes",
    &["device", "tenant"],
    "Bytes that the sessions of a tenant may hold; absent: no limit",
);
/// Share.
pub const SHARE: Metric = gauge(
    "tidemill_device_share",
    &["device", "tenant"],
    "Part of the time of the device that a tenant has while others want it, 0 to 1",
);

/// All of them.
pub const ALL: &[Metric] =
    &[SECONDS, SLOTS, RUNS, FAILED, COMPUTED, WAITED, WAITING, SESSIONS, MEMORY, MEMORY_LIMIT, SHARE];
