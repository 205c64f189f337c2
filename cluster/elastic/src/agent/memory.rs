//! Handling of groups that run out of memory.
use super::{Agent, instant};
use crate::rescue::{self, Rescue};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::Instant;

impl Agent {
    /// Returns the readable working sets of all groups.
    pub(super) fn working_sets(&mut self) -> BTreeMap<String, u64> {
        let mut used = BTreeMap::new();
        for (name, member) in &mut self.members {
            if let Ok(bytes) = member.group.working_set() {
                member.working_set = bytes;
                used.insert(name.clone(), bytes);
            }
        }
        used
    }

    /// Waits for the next look, and helps groups that run out of memory before it at once.
    pub(super) fn wait(&mut self, until: Instant) {
        loop {
            let left = until.saturating_duration_since(instant());
            if left.is_zero() {
                return;
            }
            let trapped: Vec<(&String, &OwnedFd)> = {
                let members = self.members.iter();
                members.filter_map(|(name, member)| Some((name, member.trap.as_ref()?))).collect()
            };
            let traps: Vec<&OwnedFd> = trapped.iter().map(|(_, trap)| *trap).collect();
            let fired = match rescue::wait(&traps, left) {
                Ok(fired) => fired,
                Err(error) => {
                    tracing::warn!("checking memory only once per period: {error}");
                    std::thread::sleep(left);
                    return;
                }
            };
            let names: Vec<String> = fired.iter().map(|index| trapped[*index].0.clone()).collect();
            let cpu = tidemill_machine::thread_time();
            for name in names {
                self.relieve(&name);
            }
            self.cost += tidemill_machine::thread_time().saturating_sub(cpu);
        }
    }

    /// Handles a group that is or was near its limit. Cached files may be the cause, which the kernel reclaims by itself.
    pub(super) fn look_at_memory(&mut self, name: &str) {
        let ahead = self.options.memory_rules.ahead;
        let Some(member) = self.members.get_mut(name) else { return };
        let Ok(used) = member.group.working_set() else { return };
        member.working_set = used;
        let (_, limit) = self.allocator.limits(name).unwrap_or_default();
        let is_stuck = member.group.is_stuck().unwrap_or(false);
        if member.may_kill && !is_stuck {
            // The group continues: the next time it waits for a grant again.
            member.may_kill = false;
            if let Err(error) = member.group.let_kill(false) {
                tracing::debug!("{name}: {error}");
            }
        }
        if is_stuck && used >= limit.saturating_sub(ahead) || used.saturating_add(ahead) > limit {
            self.relieve(name);
        }
    }

    /// Grants a group more memory, or lets the kernel kill one of its processes.
    fn relieve(&mut self, name: &str) {
        for _ in 0..4 {
            let others: BTreeMap<String, u64> =
                match self.allocator.free_memory() >= self.options.memory_rules.grant {
                    true => BTreeMap::new(),
                    false => self.working_sets(),
                };
            let Some(member) = self.members.get_mut(name) else { return };
            let Ok(used) = member.group.working_set() else { return };
            member.working_set = used;
            let is_stuck = member.group.is_stuck().unwrap_or(false);
            match rescue::rescue(&mut self.allocator, name, used, is_stuck, || others) {
                Rescue::Granted(order) => {
                    member.grants += 1;
                    if std::mem::replace(&mut member.may_kill, false) && !self.options.dry_run {
                        let _ = member.group.let_kill(false);
                    }
                    return self.apply(vec![order]);
                }
                Rescue::Reclaim(orders) => self.apply(orders),
                Rescue::Exhausted => {
                    if !self.options.dry_run && is_stuck && !member.may_kill {
                        member.may_kill = true;
                        tracing::warn!(
                            "{name} uses {} MiB and needs more, but the total is used up: the kernel kills one of its processes",
                            used >> 20
                        );
                        if let Err(error) = member.group.let_kill(true) {
                            tracing::warn!("{name}: {error}");
                        }
                    }
                    return;
                }
            }
        }
    }
}
