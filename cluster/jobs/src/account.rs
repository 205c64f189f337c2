//! The queue's account of one job: its phase, its machines, its service.
use crate::{Job, Reason, Service, Share, Time};
use serde::{Deserialize, Serialize};

/// State of a job in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// It has no machines.
    Waiting,
    /// It has machines, and its tasks are being started.
    Starting,
    /// Its tasks compute.
    Running,
    /// It was preempted and holds its machines until it has left them.
    Releasing,
}

impl Phase {
    /// Returns the word for people.
    pub fn word(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Releasing => "releasing",
        }
    }
}

/// The queue's account of one job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Account {
    /// The job.
    pub job: Job,
    /// Number of the submission, from 0 on; decides between equal ranks.
    pub order: u64,
    /// Its state.
    pub phase: Phase,
    /// Time until which service, running and waiting are counted.
    pub counted: Time,
    /// Tasks by machine; empty while it waits.
    pub shares: Vec<Share>,
    /// Thousandths of a slot that it holds while it runs.
    pub weight: u64,
    /// Service since the submission.
    pub service: Service,
    /// Service since the last promotion: decides the queue.
    pub recent_service: Service,
    /// Running time since the last promotion: `t` of Tiresias.
    pub recent_run: Time,
    /// Waiting time since the last promotion: `delta` of Tiresias.
    pub recent_wait: Time,
    /// Waiting time since the submission.
    pub waited: Time,
    /// Time in which it held machines without computing: to start, to resume, to write checkpoints.
    #[serde(default)]
    pub overhead: Time,
    /// Time of the first start.
    pub first_start: Option<Time>,
    /// Its place in a queue that is first in, first out: the last start, or a later promotion.
    pub place: Option<Time>,
    /// Point of time since which it computes.
    pub running_since: Time,
    /// Running time that counts for its result: less than all, if it fell back to a checkpoint.
    pub progress: Time,
    /// Progress at its last checkpoint.
    pub checkpoint: Time,
    /// Number of starts.
    pub starts: u32,
    /// Number of preemptions.
    pub preemptions: u32,
    /// Number of promotions.
    pub promotions: u32,
    /// Whether it was promoted and did not start since.
    pub is_starving: bool,
    /// Reason for its state.
    pub reason: Reason,
}

impl Account {
    /// Opens the account of a submitted job.
    pub(crate) fn new(job: Job, order: u64, weight: u64, now: Time) -> Self {
        Self {
            job,
            order,
            phase: Phase::Waiting,
            counted: now,
            shares: Vec::new(),
            weight,
            service: Service::ZERO,
            recent_service: Service::ZERO,
            recent_run: Time::ZERO,
            recent_wait: Time::ZERO,
            waited: Time::ZERO,
            overhead: Time::ZERO,
            first_start: None,
            place: None,
            running_since: now,
            progress: Time::ZERO,
            checkpoint: Time::ZERO,
            starts: 0,
            preemptions: 0,
            promotions: 0,
            is_starving: false,
            reason: Reason::New,
        }
    }

    /// Returns the running time that is left, if the duration is known.
    pub fn remaining(&self) -> Option<Time> {
        Some(self.job.duration? - self.progress)
    }

    /// Whether it holds machines.
    pub fn holds(&self) -> bool {
        self.phase != Phase::Waiting
    }

    /// Counts the time until now.
    pub(crate) fn count(&mut self, now: Time) {
        let passed = now - self.counted;
        self.counted = now;
        match self.phase {
            Phase::Running => {
                let service = Service::of(self.weight_now(), passed);
                self.service += service;
                self.recent_service += service;
                self.recent_run = self.recent_run + passed;
                self.progress = self.progress + passed;
            }
            Phase::Waiting => {
                self.waited = self.waited + passed;
                self.recent_wait = self.recent_wait + passed;
            }
            Phase::Starting | Phase::Releasing => self.overhead = self.overhead + passed,
        }
    }

    /// Returns to waiting, without machines.
    pub(crate) fn wait(&mut self, reason: Reason) {
        self.phase = Phase::Waiting;
        self.shares.clear();
        self.reason = reason;
    }

    /// Has fewer tasks on a machine. Its service counts for those that are left.
    pub(crate) fn shrink(&mut self, machine: &str, tasks: u32) {
        for share in self.shares.iter_mut().filter(|share| share.machine == machine) {
            share.tasks = share.tasks.saturating_sub(tasks);
        }
        self.shares.retain(|share| share.tasks > 0);
    }

    /// Returns the weight of the tasks that it has now.
    fn weight_now(&self) -> u64 {
        let tasks: u64 = self.shares.iter().map(|share| u64::from(share.tasks)).sum();
        self.weight * tasks / u64::from(self.job.tasks.max(1))
    }

    /// Moves to the first queue, with nothing attained (Tiresias, section 3.3.2.3).
    pub(crate) fn promote(&mut self, now: Time) {
        self.recent_service = Service::ZERO;
        self.recent_run = Time::ZERO;
        self.recent_wait = Time::ZERO;
        self.place = Some(now);
        self.promotions += 1;
        self.is_starving = true;
    }
}
