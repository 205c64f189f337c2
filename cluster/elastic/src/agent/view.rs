//! The reported state of an agent and its groups.
use super::Member;
use crate::allocator::Observation;
use crate::cgroup::Counters;
use serde::{Deserialize, Serialize};

/// Limits and usage of all groups of an agent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Seconds since its start.
    pub seconds: f64,
    /// Processors for all groups together.
    pub processors: f64,
    /// Bytes of memory for all groups together.
    pub memory_bytes: u64,
    /// Processors not assigned.
    pub free_processors: f64,
    /// Bytes of memory not assigned.
    pub free_memory_bytes: u64,
    /// Length of a period.
    pub period_seconds: f64,
    /// Whether it decides without writing.
    pub is_dry_run: bool,
    /// Looks so far.
    pub periods: u64,
    /// Limits that the system refused so far.
    pub refused: u64,
    /// Processor time used so far.
    pub cost_seconds: f64,
    /// Total duration of its looks.
    pub working_seconds: f64,
    /// Its groups.
    pub members: Vec<MemberView>,
}

/// Limits and usage of one group.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct MemberView {
    /// Its name.
    pub name: String,
    /// Its folder.
    pub folder: String,
    /// Its processor limit.
    pub processors: f64,
    /// Processors used since the previous report.
    pub used_processors: f64,
    /// Unused part of its processors since the previous report.
    pub slack_processors: f64,
    /// Share of its periods since the previous report in which it had to wait.
    pub throttled: f64,
    /// Its memory limit, bytes.
    pub memory_bytes: u64,
    /// Bytes of memory in use, without unused cached files.
    pub used_memory_bytes: u64,
    /// Number of grants because it ran out of memory, or was about to.
    pub grants: u64,
    /// Processes that the kernel killed for lack of memory.
    pub killed: u64,
}

/// Observations of a group since the last report.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen {
    looks: u64,
    used: u64,
    slack: u64,
    periods: u64,
    throttled: u64,
}

impl Seen {
    pub(super) fn add(&mut self, seen: &Observation, quota: u64, before: &Counters, now: &Counters) {
        self.looks += 1;
        self.used += seen.used;
        self.slack += quota.saturating_sub(seen.used);
        self.periods += now.periods.saturating_sub(before.periods);
        self.throttled += now.throttled.saturating_sub(before.throttled);
    }

    pub(super) fn begin_anew(&mut self) {
        *self = Self::default();
    }

    pub(super) fn view(
        &self,
        name: &str,
        member: &Member,
        quota: u64,
        limit: u64,
        period: u64,
    ) -> MemberView {
        let mean = |sum: u64| sum as f64 / (self.looks.max(1) * period) as f64;
        MemberView {
            name: name.to_owned(),
            folder: member.group.folder().display().to_string(),
            processors: quota as f64 / period as f64,
            used_processors: mean(self.used),
            slack_processors: mean(self.slack),
            throttled: if self.periods == 0 { 0.0 } else { self.throttled as f64 / self.periods as f64 },
            memory_bytes: limit,
            used_memory_bytes: member.working_set,
            grants: member.grants,
            killed: member.killed,
        }
    }
}
