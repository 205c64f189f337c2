//! Metrics of the groups of programs that a transport service serves.
use super::inventory::counter;
use tidemill_engine::Metric;

/// Operations.
pub const OPERATIONS: Metric = counter(
    "tidemill_group_operations",
    &["group", "user", "operation"],
    "Operations of a group that ended on this machine",
);
/// Bytes.
pub const BYTES: Metric = counter(
    "tidemill_group_bytes",
    &["group", "user", "operation"],
    "Bytes of the buffers of those operations, each counted once for the machine",
);
/// Time.
pub const BUSY: Metric = counter(
    "tidemill_group_busy_seconds",
    &["group", "user", "operation"],
    "Time in which operations were carried out; divided by their number, the mean of one",
);
/// Changes.
pub const CHANGES: Metric =
    counter("tidemill_group_changes", &["group", "user"], "Changes of the strategy while the group ran");
/// Stalls of changes.
pub const STALLED: Metric = counter(
    "tidemill_group_stalled_seconds",
    &["group", "user"],
    "Time in which no operation could run because the strategy changed",
);
/// Bytes that waited.
pub const HELD: Metric = counter(
    "tidemill_group_held_seconds",
    &["group", "user"],
    "Time in which bytes for other machines waited for groups that go first (strategy `ts`)",
);
/// Lost ranks.
pub const LOST: Metric = counter(
    "tidemill_group_lost_ranks",
    &["group", "user"],
    "Ranks of the group that were lost, on any machine",
);

/// All of them.
pub const ALL: &[Metric] = &[OPERATIONS, BYTES, BUSY, CHANGES, STALLED, HELD, LOST];
