//! The walk: jobs in the order of their rank get machines, whole gangs only (Gu, 2021, pseudocode 2).
use super::{Queue, Rank, obstacle, preempt};
use crate::account::{Account, Phase};
use crate::placement::{Packing, place};
use crate::{Action, Decision, Machine, Reason, Resources, Share, Time};
use std::collections::BTreeMap;

/// Jobs that a reason names at most.
const NAMED: usize = 3;

/// Resources by machine while the walk goes down the ranks.
struct Ground {
    /// Capacity.
    whole: Vec<Resources>,
    /// Left for jobs further down: without jobs that stay and without gangs that are placed.
    left: Vec<Resources>,
    /// Free at this moment, too: without jobs that are leaving.
    now: Vec<Resources>,
}

/// Result for one waiting job.
enum Found {
    Start(Vec<(usize, u32)>),
    /// Machines are reserved; it starts when these jobs have left.
    Reserve {
        of: Vec<String>,
        preempted: Vec<usize>,
    },
    Wait(Reason),
}

struct Walk<'a> {
    queue: &'a Queue,
    /// By rank.
    ranked: Vec<(Rank, &'a Account)>,
    machines: BTreeMap<&'a str, usize>,
    ground: Ground,
    /// By rank: jobs that this walk preempts.
    preempted: Vec<bool>,
    /// Gangs that did not fit since the last preemption: their demand, tasks, and the reason. A gang of the same demand further down
    /// does not fit either.
    failed: Vec<(&'a Resources, u32, Reason)>,
}

impl Queue {
    /// Machines that tasks may start on. The shares of jobs on others do not count here: they can be given to no job.
    fn open_machines(&self) -> impl Iterator<Item = &Machine> {
        self.machines.values().filter(|machine| !machine.is_silent)
    }

    /// Decides about all jobs.
    pub(super) fn walk(&mut self) -> Vec<Decision> {
        if !self.accounts.values().any(|account| account.phase == Phase::Waiting) {
            return Vec::new();
        }
        let names: Vec<String> = self.open_machines().map(|machine| machine.name.clone()).collect();
        let mut found: Vec<(String, Found)> = Vec::new();
        let mut victims: Vec<(String, Reason)> = Vec::new();
        let mut walk = Walk::new(self);
        let (mut blocked, mut held) = (None, None);
        for index in 0..walk.ranked.len() {
            let account = walk.ranked[index].1;
            if account.phase != Phase::Waiting {
                continue;
            }
            let id = &account.job.id;
            let result = match (&blocked, &held) {
                (Some(by), _) => Found::Wait(Reason::Blocked { by: String::clone(by) }),
                (_, Some(by)) => Found::Wait(Reason::Held { by: String::clone(by) }),
                _ => walk.judge(index),
            };
            match &result {
                Found::Start(_) => {}
                Found::Reserve { preempted, .. } => {
                    let rank = walk.queue.words(account);
                    victims.extend(preempted.iter().map(|victim| {
                        let victim = walk.ranked[*victim].1;
                        let own_rank = walk.queue.words(victim);
                        (
                            victim.job.id.clone(),
                            Reason::Overtaken { by: id.clone(), rank: rank.clone(), own_rank },
                        )
                    }));
                }
                Found::Wait(Reason::TooWide { .. }) => {}
                Found::Wait(_) => {
                    if walk.queue.policy().blocks() {
                        blocked = blocked.or_else(|| Some(id.clone()));
                    }
                    if account.is_starving && held.is_none() && walk.is_drainable(index) {
                        held = Some(id.clone());
                    }
                }
            }
            found.push((id.clone(), result));
        }
        self.decide(&names, victims, found)
    }

    fn decide(
        &mut self,
        names: &[String],
        victims: Vec<(String, Reason)>,
        found: Vec<(String, Found)>,
    ) -> Vec<Decision> {
        let now = self.now;
        let is_by_service = self.policy().is_by_service();
        let mut decisions = Vec::new();
        for (id, reason) in victims {
            if let Some(account) = self.accounts.get_mut(&id) {
                let deadline = now + account.job.checkpoint_within;
                decisions.push(preempt(account, deadline, reason));
            }
        }
        for (id, found) in found {
            let rank = match &found {
                Found::Start(_) => {
                    self.accounts.get(&id).map(|account| self.words(account)).unwrap_or_default()
                }
                _ => String::new(),
            };
            let Some(account) = self.accounts.get_mut(&id) else { continue };
            match found {
                Found::Wait(reason) => account.reason = reason,
                Found::Reserve { of, .. } => account.reason = Reason::Release { of },
                Found::Start(machines) => {
                    let share = |(machine, tasks): &(usize, u32)| Share {
                        machine: names[*machine].clone(),
                        tasks: *tasks,
                    };
                    let shares: Vec<Share> = machines.iter().map(share).collect();
                    let placement = described(&shares);
                    let is_resumed = account.starts > 0;
                    account.starts += 1;
                    account.phase = Phase::Starting;
                    account.first_start.get_or_insert(now);
                    if is_by_service {
                        account.place = Some(now);
                    }
                    account.is_starving = false;
                    account.shares.clone_from(&shares);
                    account.reason = Reason::Fits { rank, placement };
                    let action = Action::Start { shares, is_resumed };
                    decisions.push(Decision { job: id, action, reason: account.reason.clone() });
                }
            }
        }
        decisions
    }
}

fn described(shares: &[Share]) -> String {
    let mut texts: Vec<String> =
        shares.iter().take(NAMED).map(|share| format!("{} on {}", share.tasks, share.machine)).collect();
    if shares.len() > NAMED {
        texts.push(format!("and {} more machines", shares.len() - NAMED));
    }
    texts.join(", ")
}

/// Number of tasks that fit in all machines together.
fn room(free: &[Resources], demand: &Resources) -> u64 {
    free.iter().fold(0u64, |sum, has| sum.saturating_add(has.tasks(demand)))
}

impl<'a> Walk<'a> {
    fn new(queue: &'a Queue) -> Self {
        let mut ranked: Vec<(Rank, &Account)> =
            queue.accounts.values().map(|account| (queue.rank(account), account)).collect();
        ranked.sort_by(|(one, _), (other, _)| one.compare(other));
        let open: Vec<&Machine> = queue.open_machines().collect();
        let machines: BTreeMap<&str, usize> =
            open.iter().enumerate().map(|(index, machine)| (machine.name.as_str(), index)).collect();
        let whole: Vec<Resources> = open.iter().map(|machine| machine.capacity.clone()).collect();
        let ground = Ground { left: whole.clone(), now: whole.clone(), whole };
        let preempted = vec![false; ranked.len()];
        let mut walk = Self { queue, ranked, machines, ground, preempted, failed: Vec::new() };
        for index in 0..walk.ranked.len() {
            let account = walk.ranked[index].1;
            let stays = account.phase != Phase::Releasing;
            for (machine, tasks) in walk.shares(account) {
                walk.ground.now[machine].take(&account.job.demand, tasks);
                if stays {
                    walk.ground.left[machine].take(&account.job.demand, tasks);
                }
            }
        }
        walk
    }

    /// Returns the tasks of a job by index of the machine.
    fn shares(&self, account: &Account) -> Vec<(usize, u64)> {
        let index = |share: &Share| {
            self.machines.get(share.machine.as_str()).map(|machine| (*machine, u64::from(share.tasks)))
        };
        account.shares.iter().filter_map(index).collect()
    }

    /// Gives a waiting job machines, if possible, and takes these from the jobs further down.
    fn judge(&mut self, index: usize) -> Found {
        let account = self.ranked[index].1;
        let (job, demand) = (&account.job, &account.job.demand);
        let tasks = u64::from(job.tasks);
        let most = room(&self.ground.whole, demand);
        if most < tasks {
            let obstacle = obstacle(&self.ground.whole, demand, job.tasks);
            return Found::Wait(Reason::TooWide { most, tasks: job.tasks, obstacle });
        }
        let known = self.failed.iter().find(|(failed, width, _)| *failed == demand && *width <= job.tasks);
        if let Some((_, _, reason)) = known {
            return Found::Wait(reason.for_gang(job.tasks));
        }
        let packing = Packing::of(job, self.queue.settings.pack_limit);
        let free: Vec<Resources> =
            self.ground.now.iter().zip(&self.ground.left).map(|(now, left)| now.least(left)).collect();
        if let Some(machines) = place(&free, demand, job.tasks, packing) {
            for (machine, tasks) in &machines {
                self.ground.now[*machine].take(demand, u64::from(*tasks));
                self.ground.left[*machine].take(demand, u64::from(*tasks));
            }
            return Found::Start(machines);
        }
        if let Some(machines) = place(&self.ground.left, demand, job.tasks, packing) {
            return self.reserve(index, &machines, Vec::new());
        }
        if let Some(found) = self.overtake(index, packing) {
            self.failed.clear();
            return found;
        }
        let reason = self.behind(index);
        self.failed.push((demand, job.tasks, reason.clone()));
        Found::Wait(reason)
    }

    /// Reserves machines that others are leaving.
    fn reserve(&mut self, index: usize, machines: &[(usize, u32)], preempted: Vec<usize>) -> Found {
        let demand = &self.ranked[index].1.job.demand;
        for (machine, tasks) in machines {
            self.ground.left[*machine].take(demand, u64::from(*tasks));
        }
        let is_there = |account: &Account| {
            self.shares(account)
                .iter()
                .any(|(machine, _)| machines.iter().any(|(chosen, _)| chosen == machine))
        };
        let leaving = self.ranked.iter().enumerate().filter(|(other, (_, account))| {
            (account.phase == Phase::Releasing || self.preempted[*other]) && is_there(account)
        });
        let of: Vec<String> = leaving.map(|(_, (_, account))| account.job.id.clone()).take(NAMED).collect();
        Found::Reserve { of, preempted }
    }

    /// Jobs further down that may be preempted, the last first.
    fn victims(&self, index: usize) -> impl Iterator<Item = usize> + '_ {
        (index + 1..self.ranked.len()).rev().filter(|other| {
            let account = self.ranked[*other].1;
            account.phase == Phase::Running
                && account.job.is_preemptible
                && !self.preempted[*other]
                && self.queue.protected_until(account) <= self.queue.now
        })
    }

    /// Returns the resources of a job to `left`, or takes them again.
    fn returned(&self, left: &mut [Resources], other: usize, is_back: bool) {
        let account = self.ranked[other].1;
        for (machine, tasks) in self.shares(account) {
            match is_back {
                true => left[machine].give(&account.job.demand, tasks),
                false => left[machine].take(&account.job.demand, tasks),
            }
        }
    }

    /// Preempts as few of the last jobs as make room for the gang.
    fn overtake(&mut self, index: usize, packing: Packing) -> Option<Found> {
        if !self.queue.policy().preempts() {
            return None;
        }
        let account = self.ranked[index].1;
        let (demand, tasks) = (&account.job.demand, u64::from(account.job.tasks));
        let mut left = self.ground.left.clone();
        let mut chosen = Vec::new();
        for victim in self.victims(index) {
            self.returned(&mut left, victim, true);
            chosen.push(victim);
            if room(&left, demand) >= tasks {
                break;
            }
        }
        if room(&left, demand) < tasks {
            return None;
        }
        // Jobs with the best rank stay, if the gang fits without their machines.
        for victim in std::mem::take(&mut chosen).into_iter().rev() {
            let mut without = left.clone();
            self.returned(&mut without, victim, false);
            match room(&without, demand) >= tasks {
                true => left = without,
                false => chosen.push(victim),
            }
        }
        let machines = place(&left, demand, account.job.tasks, packing)?;
        for (machine, tasks) in &machines {
            left[*machine].take(demand, u64::from(*tasks));
        }
        // Jobs whose machines are not needed stay as well.
        chosen.retain(|victim| {
            let held = self.ranked[*victim].1;
            let fits = self
                .shares(held)
                .iter()
                .all(|(machine, tasks)| left[*machine].tasks(&held.job.demand) >= *tasks);
            if fits {
                self.returned(&mut left, *victim, false);
            }
            !fits
        });
        for victim in &chosen {
            self.preempted[*victim] = true;
        }
        for (machine, tasks) in &machines {
            left[*machine].give(demand, u64::from(*tasks));
        }
        self.ground.left = left;
        Some(self.reserve(index, &machines, chosen))
    }

    /// Explains why a gang does not fit.
    fn behind(&self, index: usize) -> Reason {
        let account = self.ranked[index].1;
        let demand = &account.job.demand;
        let preempts = self.queue.policy().preempts();
        let mut with_young = self.ground.left.clone();
        let mut until: Option<Time> = None;
        for other in index + 1..self.ranked.len() {
            let one = self.ranked[other].1;
            let may_leave = preempts && one.job.is_preemptible && !self.preempted[other];
            if may_leave && matches!(one.phase, Phase::Starting | Phase::Running) {
                self.returned(&mut with_young, other, true);
                let end = Some(self.queue.protected_until(one)).filter(|end| *end > self.queue.now);
                until = [until, end].into_iter().flatten().min();
            }
        }
        if let Some(until) = until
            && room(&with_young, demand) >= u64::from(account.job.tasks)
        {
            return Reason::Protected { until };
        }
        let holders = self.ranked.iter().enumerate().filter(|(other, (_, one))| {
            one.holds() && (*other < index || !preempts || !one.job.is_preemptible)
        });
        Reason::Behind {
            fit: room(&self.ground.left, demand),
            tasks: account.job.tasks,
            ahead: holders.map(|(_, (_, one))| one.job.id.clone()).take(NAMED).collect(),
        }
    }

    /// Whether a gang would fit if jobs further down were gone: those that have only just started, or are not preempted at all.
    fn is_drainable(&self, index: usize) -> bool {
        let account = self.ranked[index].1;
        let mut left = self.ground.left.clone();
        for other in index + 1..self.ranked.len() {
            let one = self.ranked[other].1;
            if one.phase != Phase::Releasing && !self.preempted[other] {
                self.returned(&mut left, other, true);
            }
        }
        room(&left, &account.job.demand) >= u64::from(account.job.tasks)
    }
}
