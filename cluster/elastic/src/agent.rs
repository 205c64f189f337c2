//! The agent of a distributed container: once per period it reads the groups' counters, runs the allocator and writes the
//! new limits. At its end it restores the original limits.
//!
//! An agent that ends by itself, is dropped or panics restores all limits. A killed one cannot; see [`crate::record`] for
//! the recovery.
mod memory;
mod view;

pub use view::{MemberView, Snapshot};

use crate::allocator::{Allocator, CapError, Caps, Change, Observation, Order};
use crate::cgroup::{Counters, Found, Group, GroupError};
use crate::rules::{CpuRules, MemoryRules};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Most groups of one agent.
pub const MOST_MEMBERS: usize = 512;
/// Interval of reclaiming unused memory.
const RECLAIM_EVERY: Duration = Duration::from_secs(5);

/// Options of an agent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Options {
    /// Processors that all groups together may use.
    pub processors: f64,
    /// Bytes of memory that all groups together may use.
    pub memory: u64,
    /// Interval of decisions, and the length of the kernel's periods.
    pub period: Duration,
    /// Rules for processor time.
    pub cpu: CpuRules,
    /// Rules for memory.
    pub memory_rules: MemoryRules,
    /// Decide, but write nothing.
    pub dry_run: bool,
}

impl Options {
    /// Returns the default options.
    pub fn new(processors: f64, memory: u64) -> Self {
        Self {
            processors,
            memory,
            period: Duration::from_millis(100),
            cpu: CpuRules::default(),
            memory_rules: MemoryRules::default(),
            dry_run: false,
        }
    }
}

/// Error of attaching a group.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The caps are too small.
    #[error(transparent)]
    Cap(#[from] CapError),
    /// It cannot be read or written.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// There are too many.
    #[error(
        "an agent can have at most {MOST_MEMBERS} containers, but these are {0}: attach them in several sets, each with its own limits"
    )]
    TooMany(usize),
}

#[expect(clippy::disallowed_methods, reason = "limits follow the load in real time")]
fn instant() -> Instant {
    Instant::now()
}

/// A group that is attached.
struct Member {
    group: Box<dyn Group>,
    found: Found,
    last: Counters,
    trap: Option<OwnedFd>,
    /// Whether the kernel may kill one of its processes, because the cap is used up.
    may_kill: bool,
    /// Processes killed by the kernel while it was attached.
    killed: u64,
    /// The last known working set.
    working_set: u64,
    grants: u64,
    seen: view::Seen,
}

/// See the module.
pub struct Agent {
    options: Options,
    period: u64,
    allocator: Allocator,
    members: BTreeMap<String, Member>,
    begun: Instant,
    looked: Instant,
    reclaimed: Instant,
    periods: u64,
    /// Limits that the system refused.
    refused: u64,
    cost: Duration,
    working: Duration,
}

impl Agent {
    /// Creates an agent without groups.
    pub fn new(options: Options) -> Self {
        let period = u64::try_from(options.period.as_micros()).unwrap_or(u64::MAX).clamp(1_000, 1_000_000);
        let caps =
            Caps { quota: (options.processors.max(0.0) * period as f64) as u64, memory: options.memory };
        let now = instant();
        Self {
            options,
            period,
            allocator: Allocator::new(caps, period, options.cpu, options.memory_rules),
            members: BTreeMap::new(),
            begun: now,
            looked: now,
            reclaimed: now,
            periods: 0,
            refused: 0,
            cost: Duration::ZERO,
            working: Duration::ZERO,
        }
    }

    /// Names of the attached groups.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.members.keys().map(String::as_str)
    }

    /// Original limits of each group, from when it was attached.
    pub fn found(&self) -> BTreeMap<String, Found> {
        self.members.iter().map(|(name, member)| (name.clone(), member.found.clone())).collect()
    }

    /// Attaches groups; each starts with an even share. `record` gets their original limits before anything is changed.
    ///
    /// # Errors
    /// The caps are too small, a group cannot be read, or there are too many. Then none of these is attached. A group that
    /// has ended meanwhile is left out.
    pub fn attach(
        &mut self,
        groups: Vec<(String, Box<dyn Group>)>,
        record: &mut dyn FnMut(&BTreeMap<String, Found>),
    ) -> Result<(), AgentError> {
        let count = self.members.len() + groups.len();
        if count > MOST_MEMBERS {
            return Err(AgentError::TooMany(count));
        }
        let mut new = Vec::new();
        for (name, mut group) in groups {
            let looked = (|| Ok((group.found()?, group.counters()?, group.working_set()?)))();
            match looked {
                Ok((found, last, used)) if !self.members.contains_key(&name) => {
                    let seen = view::Seen::default();
                    let member = Member {
                        group,
                        found,
                        last,
                        trap: None,
                        may_kill: false,
                        killed: 0,
                        working_set: used,
                        grants: 0,
                        seen,
                    };
                    new.push((name, used, member));
                }
                Ok(_) => {}
                Err(error) if GroupError::is_gone(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let used = self.working_sets();
        let newcomers: Vec<(String, u64)> = new.iter().map(|(name, used, _)| (name.clone(), *used)).collect();
        let orders = self.allocator.join(&newcomers, &used)?;
        let names: Vec<String> = newcomers.into_iter().map(|(name, _)| name).collect();
        self.members.extend(new.into_iter().map(|(name, _, member)| (name, member)));
        record(&self.found());
        self.apply(orders);
        if !self.options.dry_run {
            for name in names {
                self.set_trap(&name);
            }
        }
        Ok(())
    }

    fn set_trap(&mut self, name: &str) {
        let Some(member) = self.members.get_mut(name) else { return };
        match member.group.trap() {
            Ok(trap) => member.trap = trap,
            // Its memory limit can be moved all the same; when it runs out, the kernel kills a process.
            Err(error) => tracing::warn!("{name}: cannot watch its memory: {error}"),
        }
    }

    /// Detaches a group and restores its limits.
    pub fn detach(&mut self, name: &str) {
        if let Some(member) = self.members.remove(name) {
            self.allocator.leave(name);
            if !self.options.dry_run {
                restore(name, &member);
            }
        }
    }

    /// Reads, decides and writes, once. To be called once per period; after a late call, usage is divided by the time
    /// passed.
    pub fn look(&mut self) {
        let (begun, cpu) = (instant(), tidemill_machine::thread_time());
        let passed = begun.duration_since(self.looked).as_micros().max(1) as f64;
        self.looked = begun;
        let (mut observed, mut gone, mut short) = (BTreeMap::new(), Vec::new(), Vec::new());
        for (name, member) in &mut self.members {
            let now = match member.group.counters() {
                Ok(now) => now,
                Err(error) if error.is_gone() => {
                    gone.push(name.clone());
                    continue;
                }
                Err(error) => {
                    tracing::warn!("{name}: {error}");
                    continue;
                }
            };
            let before = std::mem::replace(&mut member.last, now);
            let (quota, limit) = self.allocator.limits(name).unwrap_or_default();
            let mut seen = observation(&before, &now, passed, self.period);
            if self.options.dry_run && seen.used > quota {
                // In a dry run the quota is not enforced: under it, the group would have waited.
                seen = Observation { used: quota, throttled: 1.0 };
            }
            member.killed += now.killed.saturating_sub(before.killed);
            member.seen.add(&seen, quota, &before, &now);
            observed.insert(name.clone(), seen);
            let is_pressed = now.pressed > before.pressed;
            if is_pressed
                || now.memory.saturating_add(self.options.memory_rules.ahead) > limit
                || member.may_kill
            {
                short.push(name.clone());
            }
        }
        for name in gone {
            self.members.remove(&name);
            self.allocator.leave(&name);
        }
        let orders = self.allocator.step(&observed);
        self.apply(orders);
        for name in short {
            self.look_at_memory(&name);
        }
        if begun.duration_since(self.reclaimed) >= RECLAIM_EVERY {
            self.reclaimed = begun;
            let used = self.working_sets();
            let orders = self.allocator.reclaim(&used);
            self.apply(orders);
        }
        self.periods += 1;
        self.cost += tidemill_machine::thread_time().saturating_sub(cpu);
        self.working += instant().duration_since(begun);
    }

    /// Writes limits, reductions first. A refused one stays unchanged.
    fn apply(&mut self, mut orders: Vec<Order>) {
        orders.sort_by_key(|order| !order.is_less());
        if self.options.dry_run {
            return;
        }
        for order in orders {
            let Some(member) = self.members.get_mut(&order.member) else { continue };
            let written = match order.what {
                Change::Quota(quota) => member.group.set_quota(quota, self.period),
                Change::Memory(bytes) => member.group.set_memory(bytes),
            };
            match written {
                Ok(()) => {}
                Err(error) if error.is_gone() => {} // the next look sees it
                Err(error) => {
                    self.refused += 1;
                    // Memory that cannot be reclaimed at once is in use by now, which is no fault.
                    match order.what {
                        Change::Memory(_) if order.is_less() => tracing::debug!("{}: {error}", order.member),
                        _ => tracing::warn!("{}: {error}", order.member),
                    }
                    let holds = held(member.group.as_ref(), &order, self.period);
                    self.allocator.refused(&order, holds);
                }
            }
        }
    }

    /// Looks once per period until `is_over` returns true; calls `shown` after each look.
    pub fn run(&mut self, mut is_over: impl FnMut() -> bool, mut shown: impl FnMut(&mut Self)) {
        let period = Duration::from_micros(self.period);
        let mut next = instant() + period;
        while !is_over() {
            self.wait(next);
            self.look();
            shown(self);
            next += period;
            let now = instant();
            if next < now {
                next = now + period; // what was missed is not made up for
            }
        }
    }

    /// Returns the current state.
    pub fn snapshot(&self) -> Snapshot {
        let members = self.members.iter().map(|(name, member)| {
            let (quota, limit) = self.allocator.limits(name).unwrap_or_default();
            member.seen.view(name, member, quota, limit, self.period)
        });
        Snapshot {
            seconds: instant().duration_since(self.begun).as_secs_f64(),
            processors: self.options.processors,
            memory_bytes: self.options.memory,
            free_processors: self.allocator.free_quota() as f64 / self.period as f64,
            free_memory_bytes: self.allocator.free_memory(),
            period_seconds: self.period as f64 / 1e6,
            is_dry_run: self.options.dry_run,
            periods: self.periods,
            refused: self.refused,
            cost_seconds: self.cost.as_secs_f64(),
            working_seconds: self.working.as_secs_f64(),
            members: members.collect(),
        }
    }

    /// Resets the figures that [`Snapshot`] reports since the last one.
    pub fn begin_anew(&mut self) {
        self.members.values_mut().for_each(|member| member.seen.begin_anew());
    }

    /// Restores all original limits; returns the names of the groups for which the system refused. Nothing is attached
    /// afterwards.
    pub fn restore(&mut self) -> Vec<String> {
        let mut left = Vec::new();
        for (name, member) in std::mem::take(&mut self.members) {
            self.allocator.leave(&name);
            if !self.options.dry_run && !restore(&name, &member) {
                left.push(name);
            }
        }
        left
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.restore();
    }
}

/// Returns the actual limit of a group after a refused order, quotas for this period; `None` if it has no limit.
fn held(group: &dyn Group, order: &Order, period: u64) -> Option<u64> {
    // If it cannot be read it is probably unchanged.
    let Ok(limits) = group.limits() else { return Some(order.before) };
    match order.what {
        Change::Quota(_) => {
            let scaled = u128::from(limits.quota?) * u128::from(period) / u128::from(limits.period.max(1));
            Some(u64::try_from(scaled).unwrap_or(u64::MAX))
        }
        Change::Memory(_) => limits.memory,
    }
}

/// Restores the limits; returns whether that succeeded.
fn restore(name: &str, member: &Member) -> bool {
    let errors = member.found.restore().err().unwrap_or_default();
    for error in &errors {
        tracing::error!("{name}: cannot restore its old limits: {error}");
    }
    errors.is_empty()
}

/// Computes the observation between two looks, `passed` microseconds apart.
fn observation(before: &Counters, now: &Counters, passed: f64, period: u64) -> Observation {
    let used = now.used.saturating_sub(before.used) as f64 * period as f64 / passed;
    let periods = now.periods.saturating_sub(before.periods);
    let throttled = now.throttled.saturating_sub(before.throttled);
    // An idle group has no periods, and was not throttled.
    let throttled = if periods == 0 { 0.0 } else { (throttled as f64 / periods as f64).min(1.0) };
    Observation { used: used as u64, throttled }
}

#[cfg(test)]
mod tests;
