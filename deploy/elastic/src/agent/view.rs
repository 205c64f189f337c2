//! What an agent tells of itself and of the groups that it has.
use super::Member;
use crate::allocator::Observation;
use crate::cgroup::Counters;
use serde::{Deserialize, Serialize};

/// What all groups of an agent have and use.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Since it began.
    pub seconds: f64,
    /// Processors that all together may use.
    pub processors: f64,
    /// Bytes of memory that all together may use.
    pub memory_bytes: u64,
    /// Processors that nobody has.
    pub free_processors: f64,
    /// Bytes of memory that nobody has.
    pub free_memory_bytes: u64,
    /// Length of a period.
    pub period_seconds: f64,
    /// Whether it only says what it would do.
    pub is_dry_run: bool,
    /// Looks so far.
    pub periods: u64,
    /// Limits that the system refused so far.
    pub refused: u64,
    /// Processor time that it has used so far.
    pub cost_seconds: f64,
    /// Time that its looks have taken so far.
    pub working_seconds: f64,
    /// Its groups.
    pub members: Vec<MemberView>,
}

/// What one group has and uses.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct MemberView {
    /// Its name.
    pub name: String,
    /// Its folder.
    pub folder: String,
    /// Processors that it may use.
    pub processors: f64,
    /// Processors that it used, since the last time that this was told.
    pub used_processors: f64,
    /// Processors that it might have used and did not, in that time.
    pub slack_processors: f64,
    /// Part of its periods in which it had to wait, in that time.
    pub throttled: f64,
    /// Bytes of memory that it may have.
    pub memory_bytes: u64,
    /// Bytes of memory that it has, without cached files that nobody uses.
    pub used_memory_bytes: u64,
    /// How often it got memory because it ran out of it, or was about to.
    pub grants: u64,
    /// Processes of it that the kernel ended for lack of memory.
    pub killed: u64,
}

/// What was seen of a group since it was last told.
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
