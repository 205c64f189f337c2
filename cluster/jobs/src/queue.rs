//! The queue: a pure function of its state, the time and an event.
mod explanation;
mod obstacle;
mod walk;

pub use explanation::Explanation;
pub use obstacle::obstacle;

use crate::account::{Account, Phase};
use crate::policy::{self, Policy, Turn, Urgency, View};
use crate::{
    Action, Cause, Decision, Event, History, Job, Machine, Reason, Resources, Service, Settings,
    SettingsError, Time,
};
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::collections::BTreeMap;

/// The queue of jobs. It has no clock and does nothing by itself: the caller reports events, carries out decisions, and calls again at
/// [`Queue::next_wake`]. Equal calls give equal decisions. Its state is plain data (serde).
///
/// ```
/// use tidemill_jobs::{Action, Event, Job, Machine, Queue, Resources, Settings, Time};
/// let mut queue = Queue::new(Settings::default(), [Machine::new("a", Resources::of_slots(4))])?;
/// let job = Job::new("train", 2, Resources::of_slots(1), Time::ZERO);
/// let decisions = queue.apply(Time::ZERO, Event::Submitted { job })?;
/// assert!(matches!(&decisions[0].action, Action::Start { shares, is_resumed: false } if shares[0].tasks == 2));
/// queue.apply(Time(500), Event::Started { job: "train".into() })?;
/// queue.apply(Time::of_seconds(60), Event::Ended { job: "train".into() })?;
/// assert!(queue.accounts().next().is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Queue {
    settings: Settings,
    #[serde(default)]
    history: History,
    machines: BTreeMap<String, Machine>,
    accounts: BTreeMap<String, Account>,
    submissions: u64,
    now: Time,
}

/// An event that does not go with the state. The queue is as if it had not been reported.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// A job with this id is in the queue.
    #[error("a job `{0}` is in the queue already")]
    Duplicate(String),
    /// No such job.
    #[error("no job `{0}` is in the queue")]
    Unknown(String),
    /// A gang without tasks.
    #[error("the job `{0}` has no tasks; write 1 or more")]
    Empty(String),
    /// The job's phase does not allow the event.
    #[error("the job `{job}` is {phase}: it cannot be {event}")]
    Phase {
        /// Id of the job.
        job: String,
        /// Its phase.
        phase: &'static str,
        /// The event, as a participle.
        event: &'static str,
    },
}

/// A job's rank: the order of service.
#[derive(Debug, Clone, Copy)]
struct Rank {
    /// 0 for a job promoted under a policy without queues.
    level: u8,
    urgency: Urgency,
    order: u64,
}

impl Rank {
    fn compare(&self, other: &Self) -> Ordering {
        let levels = self.level.cmp(&other.level);
        levels.then(self.urgency.compare(&other.urgency)).then(self.order.cmp(&other.order))
    }
}

impl Queue {
    /// Creates an empty queue.
    ///
    /// # Errors
    /// A wrong setting, or a policy that needs a history.
    pub fn new(
        settings: Settings,
        machines: impl IntoIterator<Item = Machine>,
    ) -> Result<Self, SettingsError> {
        Self::with_history(settings, machines, History::default())
    }

    /// Creates an empty queue that knows the services of past jobs.
    ///
    /// # Errors
    /// A wrong setting, or a policy that needs a history and gets an empty one.
    pub fn with_history(
        settings: Settings,
        machines: impl IntoIterator<Item = Machine>,
        history: History,
    ) -> Result<Self, SettingsError> {
        let mut queue = Self {
            settings: Settings::default(),
            history,
            machines: machines.into_iter().map(|machine| (machine.name.clone(), machine)).collect(),
            accounts: BTreeMap::new(),
            submissions: 0,
            now: Time::ZERO,
        };
        queue.configure(settings)?;
        Ok(queue)
    }

    /// Changes the settings; they apply from the next event on. Jobs keep their accounts.
    ///
    /// # Errors
    /// A wrong setting, or a policy that needs a history; the old settings stay.
    pub fn configure(&mut self, settings: Settings) -> Result<(), SettingsError> {
        settings.check()?;
        if let Some(policy) = policy::find(&settings.policy)
            && policy.needs_history()
            && self.history.is_empty()
            && settings.remembered == 0
        {
            return Err(SettingsError::History(policy.name()));
        }
        self.settings = settings;
        for account in self.accounts.values_mut() {
            account.weight = self.settings.rates.weight(&account.job.demand, account.job.tasks);
        }
        Ok(())
    }

    /// Returns the settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the services of past jobs.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Whether its policy ranks by the services of past jobs.
    pub fn uses_history(&self) -> bool {
        self.policy().needs_history()
    }

    /// Returns the time of the last event.
    pub fn now(&self) -> Time {
        self.now
    }

    /// Iterates over the machines by name.
    pub fn machines(&self) -> impl Iterator<Item = &Machine> {
        self.machines.values()
    }

    /// Iterates over the accounts of all jobs by id. A job that is over has none.
    pub fn accounts(&self) -> impl Iterator<Item = &Account> {
        self.accounts.values()
    }

    /// Returns the account of a job.
    pub fn account(&self, job: &str) -> Option<&Account> {
        self.accounts.get(job)
    }

    /// Returns the accounts in the order in which they are served.
    pub fn ranked(&self) -> Vec<&Account> {
        let mut ranked: Vec<(Rank, &Account)> =
            self.accounts.values().map(|account| (self.rank(account), account)).collect();
        ranked.sort_by(|(one, _), (other, _)| one.compare(other));
        ranked.into_iter().map(|(_, account)| account).collect()
    }

    /// Applies one event and decides.
    ///
    /// # Errors
    /// The event does not go with the state, which stays as it was.
    pub fn apply(&mut self, now: Time, event: Event) -> Result<Vec<Decision>, QueueError> {
        self.apply_all(now, [event])
    }

    /// Applies all events of one moment, then decides once. A time before that of an earlier event counts as that.
    ///
    /// # Errors
    /// An event does not go with the state: the state has the events before it, and nothing is decided until the next call.
    pub fn apply_all(
        &mut self,
        now: Time,
        events: impl IntoIterator<Item = Event>,
    ) -> Result<Vec<Decision>, QueueError> {
        self.now = self.now.max(now);
        for account in self.accounts.values_mut() {
            account.count(self.now);
        }
        let mut changed: BTreeMap<String, (Time, Cause)> = BTreeMap::new();
        for event in events {
            if let Event::Capacity { machine, within, cause, .. } = &event {
                changed.insert(machine.clone(), (*within, *cause));
            }
            self.take(event)?;
        }
        self.promote();
        let mut decisions = Vec::new();
        for (machine, (within, cause)) in changed {
            self.take_back(&machine, within, cause, &mut decisions);
        }
        decisions.extend(self.walk());
        Ok(decisions)
    }

    fn known(&mut self, job: &str) -> Result<&mut Account, QueueError> {
        self.accounts.get_mut(job).ok_or_else(|| QueueError::Unknown(job.to_owned()))
    }

    fn take(&mut self, event: Event) -> Result<(), QueueError> {
        let now = self.now;
        let misplaced = |account: &Account, event| QueueError::Phase {
            job: account.job.id.clone(),
            phase: account.phase.word(),
            event,
        };
        match event {
            Event::Tick => {}
            Event::Submitted { job } => return self.submit(job),
            Event::Started { job } => {
                let account = self.known(&job)?;
                if account.phase != Phase::Starting {
                    return Err(misplaced(account, "started"));
                }
                account.phase = Phase::Running;
                account.running_since = now;
            }
            Event::Checkpointed { job } => {
                let account = self.known(&job)?;
                account.checkpoint = account.progress;
            }
            Event::Progressed { job, share } => {
                let account = self.known(&job)?;
                if let Some(duration) = account.job.duration {
                    account.progress = Time((duration.0 as f64 * share.clamp(0.0, 1.0)) as u64);
                }
            }
            Event::Measured { job, skew } => self.known(&job)?.job.skew = Some(skew),
            Event::Ended { job } => {
                let service = self.known(&job)?.service;
                self.accounts.remove(&job);
                if self.settings.remembered > 0 {
                    self.history.add(service, self.settings.remembered);
                }
            }
            Event::Failed { job } | Event::Cancelled { job } => {
                self.known(&job)?;
                self.accounts.remove(&job);
            }
            Event::Released { job, is_kept } => {
                let account = self.known(&job)?;
                if account.phase != Phase::Releasing {
                    return Err(misplaced(account, "released"));
                }
                match is_kept {
                    true => account.checkpoint = account.progress,
                    false => account.progress = account.checkpoint,
                }
                let reason = account.reason.clone();
                account.wait(reason);
            }
            Event::Lost { job } => {
                let account = self.known(&job)?;
                if account.phase == Phase::Waiting {
                    return Err(misplaced(account, "lost"));
                }
                account.progress = account.checkpoint;
                account.wait(Reason::Lost);
            }
            Event::Shrunk { job, machine, tasks } => self.known(&job)?.shrink(&machine, tasks),
            Event::Silent { machine } => {
                match self.is_used(&machine) {
                    true => {
                        if let Some(machine) = self.machines.get_mut(&machine) {
                            machine.is_silent = true;
                        }
                    }
                    false => drop(self.machines.remove(&machine)),
                };
            }
            Event::Capacity { machine, capacity, .. } => {
                let is_gone = capacity == Resources::default() && !self.is_used(&machine);
                match is_gone {
                    true => self.machines.remove(&machine),
                    false => self.machines.insert(machine.clone(), Machine::new(machine, capacity)),
                };
            }
        }
        Ok(())
    }

    /// Whether a job holds something of a machine.
    pub fn is_used(&self, machine: &str) -> bool {
        let mut shares = self.accounts.values().flat_map(|account| &account.shares);
        shares.any(|share| share.machine == machine)
    }

    fn submit(&mut self, job: Job) -> Result<(), QueueError> {
        if self.accounts.contains_key(&job.id) {
            return Err(QueueError::Duplicate(job.id));
        }
        if job.tasks == 0 {
            return Err(QueueError::Empty(job.id));
        }
        let weight = self.settings.rates.weight(&job.demand, job.tasks);
        let account = Account::new(job, self.submissions, weight, self.now);
        self.submissions += 1;
        self.accounts.insert(account.job.id.clone(), account);
        Ok(())
    }

    /// Returns the policy; settings were checked, so that the default is never needed.
    fn policy(&self) -> &'static dyn Policy {
        policy::find(&self.settings.policy).unwrap_or(policy::ALL[0])
    }

    fn view(&self) -> View<'_> {
        View { now: self.now, settings: &self.settings, history: &self.history }
    }

    fn rank(&self, account: &Account) -> Rank {
        let policy = self.policy();
        let urgency = policy.urgency(account, &self.view());
        let order = account.order;
        match policy.is_by_service() || account.promotions == 0 {
            true => Rank { level: 1, urgency, order },
            false => {
                let place = account.place.unwrap_or(self.now);
                let urgency = Urgency { queue: 0, score: 0.0, turn: Turn::Holds, place };
                Rank { level: 0, urgency, order }
            }
        }
    }

    /// Returns a job's rank in words.
    fn words(&self, account: &Account) -> String {
        let words = self.policy().words(account, &self.view());
        match account.promotions {
            0 => words,
            _ => format!("{words}, promoted after a long wait"),
        }
    }

    /// Returns how long a job has to wait, since its last promotion, until it is promoted.
    fn patience(&self, account: &Account) -> Option<Time> {
        let knob = self.settings.promote_knob?;
        let is_promoted = match self.policy().is_by_service() {
            true => account.is_starving,
            false => account.promotions > 0,
        };
        if account.phase != Phase::Waiting || is_promoted {
            return None;
        }
        // A job that hardly ran has not waited for long because of that: it counts as one that got a first queue's service in one slot.
        let first = self.settings.thresholds.first().copied().unwrap_or(Service::of_slot_seconds(3200.0));
        let ran = account.recent_run.max(first.time_at(1000));
        Some(Time((knob * ran.0 as f64).ceil() as u64))
    }

    fn promote(&mut self) {
        let now = self.now;
        let due = |account: &Account| self.patience(account).is_some_and(|most| account.recent_wait >= most);
        let starving: Vec<String> = self
            .accounts
            .values()
            .filter(|account| due(account))
            .map(|account| account.job.id.clone())
            .collect();
        for job in starving {
            if let Some(account) = self.accounts.get_mut(&job) {
                account.promote(now);
            }
        }
    }

    /// Returns the earliest time at which [`Event::Tick`] may lead to decisions; none: only another event can.
    pub fn next_wake(&self) -> Option<Time> {
        let policy = self.policy();
        let mut waiting = self.accounts.values().filter(|account| account.phase == Phase::Waiting).peekable();
        waiting.peek()?;
        let promotions = waiting.filter_map(|account| {
            let left = self.patience(account)? - account.recent_wait;
            Some(self.now + left)
        });
        let mut wakes: Vec<Time> = promotions.collect();
        if policy.preempts() {
            let running = self.accounts.values().filter(|account| account.phase == Phase::Running);
            for account in running {
                wakes.push(self.protected_until(account));
                if policy.is_by_service() {
                    let queue = self.settings.queue_of(account.recent_service) as usize;
                    let threshold = self.settings.thresholds.get(queue);
                    wakes.extend(threshold.map(|threshold| {
                        self.now + (*threshold - account.recent_service).time_at(account.weight)
                    }));
                }
            }
            if policy.is_by_service() && self.settings.is_continuous() {
                let interval = self.settings.interval.0;
                wakes.push(Time((self.now.0 / interval + 1) * interval));
            }
        }
        wakes.into_iter().filter(|wake| *wake > self.now).min()
    }

    /// Returns the time from which on a running job may be preempted for another. It has computed by then, so that no two jobs preempt
    /// each other without progress.
    fn protected_until(&self, account: &Account) -> Time {
        account.running_since + self.settings.least_run.max(Time(1))
    }

    /// Preempts jobs on a machine that has less than the jobs there hold: those that may be preempted first, of these the last in rank.
    fn take_back(&mut self, machine: &str, within: Time, cause: Cause, decisions: &mut Vec<Decision>) {
        let Some(capacity) = self.machines.get(machine).map(|machine| machine.capacity.clone()) else {
            return;
        };
        let mut held = self.held(machine);
        let mut order: Vec<(bool, Rank, String, u32)> = Vec::new();
        for account in self.accounts.values().filter(|account| account.phase != Phase::Releasing) {
            let share = account.shares.iter().find(|share| share.machine == machine);
            let rank = self.rank(account);
            let job = &account.job;
            order.extend(share.map(|share| (job.is_preemptible, rank, job.id.clone(), share.tasks)));
        }
        order.sort_by(|one, other| other.0.cmp(&one.0).then(other.1.compare(&one.1)));
        for (_, _, job, tasks) in order {
            if capacity.covers(&held) {
                return;
            }
            let Some(account) = self.accounts.get_mut(&job) else { continue };
            held.take(&account.job.demand, u64::from(tasks));
            let reason = Reason::CapacityTaken { machine: machine.to_owned(), cause };
            let limit = within.min(account.job.checkpoint_within);
            decisions.push(preempt(account, self.now + limit, reason));
        }
    }

    /// Sums what jobs that are not leaving hold on a machine.
    fn held(&self, machine: &str) -> Resources {
        let mut held = Resources::default();
        let staying = self.accounts.values().filter(|account| account.phase != Phase::Releasing);
        for account in staying {
            for share in account.shares.iter().filter(|share| share.machine == machine) {
                held.give(&account.job.demand, u64::from(share.tasks));
            }
        }
        held
    }
}

/// Preempts a job that holds machines.
fn preempt(account: &mut Account, deadline: Time, reason: Reason) -> Decision {
    account.phase = Phase::Releasing;
    account.preemptions += 1;
    account.reason = reason.clone();
    Decision { job: account.job.id.clone(), action: Action::Preempt { deadline }, reason }
}
