//! A *distributed container*: several groups with one cap on processor time and one on memory. The allocation is a function
//! of the observations; nothing here reads a file or a clock, and the unassigned rest is never negative.
use crate::cgroup::LEAST_QUOTA;
use crate::rules::{CpuRules, MemoryRules, QuotaChange, Window, divide, wish};
use std::collections::BTreeMap;

/// Usage below this fraction of a period counts as inactive.
const STILL: u64 = 200;
/// Idle time in microseconds, long enough that a pause between two requests does not count.
const IDLE_AFTER: u64 = 2_000_000;

/// Limits for all groups together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caps {
    /// Processor time, microseconds per period.
    pub quota: u64,
    /// Bytes of memory.
    pub memory: u64,
}

/// Activity of a group since its last observation.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Observation {
    /// Processor time, microseconds per period.
    pub used: u64,
    /// Share of its periods in which it had to wait, 0 to 1.
    pub throttled: f64,
}

/// A limit to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// Name of the group.
    pub member: String,
    /// The limit.
    pub what: Change,
    /// The previous value.
    pub before: u64,
}

/// A new limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Processor time, microseconds per period.
    Quota(u64),
    /// Bytes of memory.
    Memory(u64),
}

impl Order {
    /// Whether it is a reduction: those are written first, so that the kernel never allows more than the cap either.
    pub fn is_less(&self) -> bool {
        match self.what {
            Change::Quota(now) | Change::Memory(now) => now < self.before,
        }
    }
}

/// Error of adding groups.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CapError {
    /// The caps have less memory than is in use.
    #[error(
        "the containers use {used} MiB of memory, but the total is {cap} MiB: give at least {needed} MiB, \
         so that each can grow"
    )]
    Memory {
        /// Memory in use, MiB.
        used: u64,
        /// The cap, MiB.
        cap: u64,
        /// Sufficient cap, MiB.
        needed: u64,
    },
    /// The cap has too little processor time for this number of groups.
    #[error("{members} containers need at least {needed} microseconds per period, but the total is {cap}")]
    Quota {
        /// Number of groups.
        members: usize,
        /// The least quota of all together.
        needed: u64,
        /// The cap.
        cap: u64,
    },
}

#[derive(Debug, Clone)]
struct Member {
    quota: u64,
    memory: u64,
    seen: Window,
    /// Periods without activity.
    still: u64,
}

/// See the module.
#[derive(Debug, Clone)]
pub struct Allocator {
    caps: Caps,
    period: u64,
    cpu: CpuRules,
    memory: MemoryRules,
    members: BTreeMap<String, Member>,
}

impl Allocator {
    /// Creates an allocator without groups, with periods of `period` microseconds.
    pub fn new(caps: Caps, period: u64, cpu: CpuRules, memory: MemoryRules) -> Self {
        Self { caps, period, cpu, memory, members: BTreeMap::new() }
    }

    /// The caps.
    pub fn caps(&self) -> Caps {
        self.caps
    }

    /// Unassigned processor time, microseconds per period.
    pub fn free_quota(&self) -> u64 {
        self.caps.quota.saturating_sub(self.members.values().map(|member| member.quota).sum())
    }

    /// Unassigned bytes of memory.
    pub fn free_memory(&self) -> u64 {
        self.caps.memory.saturating_sub(self.members.values().map(|member| member.memory).sum())
    }

    /// Quota and memory of one group.
    pub fn limits(&self, name: &str) -> Option<(u64, u64)> {
        self.members.get(name).map(|member| (member.quota, member.memory))
    }

    /// The even share of the cap.
    fn fair(&self, members: usize) -> u64 {
        self.caps.quota / members.max(1) as u64
    }

    /// Adds groups, each with the memory that it uses; `used` has that of the present ones. Returns the limits to write,
    /// reductions first. New groups start with an even share.
    ///
    /// # Errors
    /// The caps are too small for all groups, or for the memory that they use; then nothing has changed.
    pub fn join(
        &mut self,
        newcomers: &[(String, u64)],
        used: &BTreeMap<String, u64>,
    ) -> Result<Vec<Order>, CapError> {
        let newcomers: Vec<_> =
            newcomers.iter().filter(|(name, _)| !self.members.contains_key(name)).cloned().collect();
        if newcomers.is_empty() {
            return Ok(Vec::new());
        }
        let all = self.members.len() + newcomers.len();
        let fair = self.fair(all);
        if fair < LEAST_QUOTA {
            let needed = LEAST_QUOTA * all as u64;
            return Err(CapError::Quota { members: all, needed, cap: self.caps.quota });
        }
        let mut next = self.clone();
        let mut orders = next.reclaim_if_short(&newcomers, used)?;
        // Groups above the even share make room, as far as needed.
        let needed = (fair * newcomers.len() as u64).saturating_sub(next.free_quota());
        orders.extend(next.take_from_rich(needed, fair));
        let share = next.caps.memory / 100 * next.memory.handed_out / all as u64;
        let mut left: u64 = newcomers.iter().map(|(_, used)| *used).sum();
        for (name, used) in newcomers {
            // Each leaves enough for the memory in use by later ones.
            left -= used;
            let most = next.free_memory().saturating_sub(left);
            let memory = share.max(used.saturating_add(next.memory.margin)).min(most);
            let quota = fair.min(next.free_quota());
            let member = Member { quota, memory, seen: Window::default(), still: 0 };
            next.members.insert(name.clone(), member);
            orders.push(Order { member: name.clone(), what: Change::Quota(quota), before: 0 });
            orders.push(Order { member: name, what: Change::Memory(memory), before: 0 });
        }
        *self = next;
        Ok(orders)
    }

    fn reclaim_if_short(
        &mut self,
        newcomers: &[(String, u64)],
        used: &BTreeMap<String, u64>,
    ) -> Result<Vec<Order>, CapError> {
        let wanted: u64 = newcomers
            .iter()
            .map(|(_, used)| used.saturating_add(self.memory.margin))
            .fold(0, u64::saturating_add);
        let orders = if self.free_memory() < wanted { self.reclaim(used) } else { Vec::new() };
        let least: u64 = newcomers.iter().map(|(_, used)| *used).fold(0, u64::saturating_add);
        // Includes a reserve for each, for the memory that they take in the next moment.
        let little = self.memory.grant.min(self.memory.margin).saturating_mul(newcomers.len() as u64);
        if self.free_memory() < least.saturating_add(little) {
            let others: u64 = self.members.keys().filter_map(|name| used.get(name)).sum();
            let taken = self.caps.memory - self.free_memory();
            let mebibytes = |bytes: u64| bytes.div_ceil(1 << 20);
            return Err(CapError::Memory {
                used: mebibytes(others.saturating_add(least)),
                cap: self.caps.memory >> 20,
                needed: mebibytes(taken.saturating_add(wanted)),
            });
        }
        Ok(orders)
    }

    /// Removes an ended group: its limits become free.
    pub fn leave(&mut self, name: &str) {
        self.members.remove(name);
    }

    /// Advances one period. Returns the limits to write, reductions first.
    pub fn step(&mut self, observed: &BTreeMap<String, Observation>) -> Vec<Order> {
        let fair = self.fair(self.members.len());
        let unallocated = self.free_quota();
        let mut orders = Vec::new();
        let mut wishes: Vec<(String, u64, u64)> = Vec::new();
        let (period, rules) = (self.period, self.cpu);
        let floor = ((rules.floor * period as f64) as u64).min(fair).max(LEAST_QUOTA);
        let idle_after = (IDLE_AFTER / period.max(1)).max(1);
        for (name, member) in &mut self.members {
            let Some(seen) = observed.get(name) else { continue };
            member.seen.push(seen.throttled, seen.used, member.quota, &rules);
            let is_still = seen.used.saturating_mul(STILL) < period && seen.throttled == 0.0;
            let was_idle = member.still >= idle_after;
            member.still = if is_still { member.still.saturating_add(1) } else { 0 };
            let now = match wish(&rules, period, member.quota, fair, unallocated, &member.seen) {
                _ if member.still >= idle_after => QuotaChange::Less(floor),
                // A group that wakes up starts with one processor, more than it would get step by step.
                _ if was_idle => {
                    QuotaChange::More { wanted: period, claimed: fair.saturating_sub(member.quota) }
                }
                now => now,
            };
            match now {
                QuotaChange::Less(quota) if quota < member.quota => {
                    let before = std::mem::replace(&mut member.quota, quota);
                    member.seen.clear();
                    orders.push(Order { member: name.clone(), what: Change::Quota(quota), before });
                }
                QuotaChange::More { wanted, claimed } => wishes.push((name.clone(), wanted, claimed)),
                QuotaChange::Keep | QuotaChange::Less(_) => {}
            }
        }
        orders.extend(self.give(&wishes, fair));
        orders
    }

    /// Divides the free quota, and takes claimed quota from groups above the even share.
    fn give(&mut self, wishes: &[(String, u64, u64)], fair: u64) -> Vec<Order> {
        if wishes.is_empty() {
            return Vec::new();
        }
        let wanted: Vec<u64> = wishes.iter().map(|(_, wanted, _)| *wanted).collect();
        let mut given = divide(self.free_quota(), &wanted);
        let missing: Vec<u64> = wishes
            .iter()
            .zip(&given)
            .map(|((_, _, claimed), given)| claimed.saturating_sub(*given))
            .collect();
        let free_after = self.free_quota() - given.iter().sum::<u64>();
        let short = missing.iter().sum::<u64>().saturating_sub(free_after);
        let mut orders = self.take_from_rich(short, fair);
        let got = self.free_quota() - given.iter().sum::<u64>();
        for (given, more) in given.iter_mut().zip(divide(got, &missing)) {
            *given += more;
        }
        for ((name, ..), more) in wishes.iter().zip(given) {
            if let Some(member) = self.members.get_mut(name).filter(|_| more > 0) {
                // A group that had to give and got some of it back is written once.
                let lost = orders.iter().position(|order| order.member == *name);
                let before = lost.map_or(member.quota, |at| orders.swap_remove(at).before);
                member.quota += more;
                member.seen.clear();
                orders.push(Order { member: name.clone(), what: Change::Quota(member.quota), before });
            }
        }
        orders.sort_by_key(|order| !order.is_less());
        orders
    }

    /// Takes `wanted` from groups above the even share, in proportion to their excess.
    fn take_from_rich(&mut self, wanted: u64, fair: u64) -> Vec<Order> {
        let rich = self.members.iter().filter(|(_, member)| member.quota > fair);
        let (names, surplus): (Vec<String>, Vec<u64>) =
            rich.map(|(name, member)| (name.clone(), member.quota - fair)).unzip();
        let all: u64 = surplus.iter().sum();
        if all == 0 || wanted == 0 {
            return Vec::new();
        }
        let mut orders = Vec::new();
        let wanted = wanted.min(all);
        for (name, surplus) in names.into_iter().zip(surplus) {
            let part = (u128::from(surplus) * u128::from(wanted)).div_ceil(u128::from(all));
            let part = u64::try_from(part).unwrap_or(surplus).min(surplus);
            if let Some(member) = self.members.get_mut(&name).filter(|_| part > 0) {
                let before = member.quota;
                member.quota -= part;
                member.seen.clear();
                orders.push(Order { member: name, what: Change::Quota(member.quota), before });
            }
        }
        orders
    }

    /// Reclaims unused memory of all groups with known use.
    pub fn reclaim(&mut self, used: &BTreeMap<String, u64>) -> Vec<Order> {
        let rules = self.memory;
        self.lower(used, |limit, used| rules.reclaimed(limit, used))
    }

    /// Reclaims down to an eighth of the margin, when a group has run out.
    pub fn squeeze(&mut self, used: &BTreeMap<String, u64>) -> Vec<Order> {
        let rules = self.memory;
        self.lower(used, |limit, used| rules.squeezed(limit, used))
    }

    fn lower(&mut self, used: &BTreeMap<String, u64>, to: impl Fn(u64, u64) -> Option<u64>) -> Vec<Order> {
        let mut orders = Vec::new();
        for (name, member) in &mut self.members {
            let Some(less) = used.get(name).and_then(|used| to(member.memory, *used)) else {
                continue;
            };
            let before = std::mem::replace(&mut member.memory, less);
            orders.push(Order { member: name.clone(), what: Change::Memory(less), before });
        }
        orders
    }

    /// Returns the bytes that a group with this use should get.
    pub fn wanted_memory(&self, name: &str, used: u64) -> u64 {
        self.members.get(name).map_or(0, |member| self.memory.wanted(member.memory, used))
    }

    /// Grants memory to a group that runs out with `used` bytes: a whole grant, or the rest. `None`: nothing is left.
    pub fn grant(&mut self, name: &str, used: u64) -> Option<Order> {
        let free = self.free_memory();
        let member = self.members.get_mut(name)?;
        // At least a page.
        let more = self.memory.wanted(member.memory, used).min(free) & !4095;
        if more == 0 {
            return None;
        }
        let before = member.memory;
        member.memory += more;
        Some(Order { member: name.to_owned(), what: Change::Memory(member.memory), before })
    }

    /// Records a refused limit; `holds` is the actual one, `None` without a limit. If it exceeds the wanted one, all
    /// together may exceed the cap until a group uses less; no grants are made before.
    pub fn refused(&mut self, order: &Order, holds: Option<u64>) {
        if let Some(member) = self.members.get_mut(&order.member) {
            match order.what {
                Change::Quota(_) => member.quota = holds.unwrap_or(self.caps.quota),
                Change::Memory(_) => member.memory = holds.unwrap_or(self.caps.memory),
            }
        }
    }
}
