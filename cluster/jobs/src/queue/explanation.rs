//! The state of a job in words, for `explain`.
use super::Queue;
use crate::{Phase, Reason, Service, Share, Time};
use serde::Serialize;
use std::fmt;

/// Facts about a job, for people and programs. `Display` gives some lines.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Explanation {
    /// Id of the job.
    pub job: String,
    /// Its phase.
    pub phase: Phase,
    /// Its rank in words.
    pub rank: String,
    /// Number of jobs that are served before it.
    pub ahead: usize,
    /// Service since its submission.
    pub service: Service,
    /// Waiting time since its submission.
    pub waited: Time,
    /// Number of times that it was preempted.
    pub preemptions: u32,
    /// Tasks by machine.
    pub shares: Vec<Share>,
    /// Reason for its state.
    pub reason: Reason,
}

impl Queue {
    /// Explains the state of a job, as of the last event.
    ///
    /// ```
    /// use tidemill_jobs::{Event, Job, Machine, Queue, Resources, Settings, Time};
    /// let mut queue = Queue::new(Settings::default(), [Machine::new("a", Resources::of_slots(4))])?;
    /// let job = Job::new("wide", 8, Resources::of_slots(1), Time::ZERO);
    /// queue.apply(Time::ZERO, Event::Submitted { job })?;
    /// let text = queue.explain("wide").ok_or("is there")?.to_string();
    /// assert!(text.contains("needs 8 tasks at once; without other jobs 4 would fit"), "{text}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn explain(&self, job: &str) -> Option<Explanation> {
        let account = self.accounts.get(job)?;
        let ahead = self.ranked().iter().position(|other| other.job.id == job)?;
        Some(Explanation {
            job: job.to_owned(),
            phase: account.phase,
            rank: self.words(account),
            ahead,
            service: account.service,
            waited: account.waited,
            preemptions: account.preemptions,
            shares: account.shares.clone(),
            reason: account.reason.clone(),
        })
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.job, self.phase.word())?;
        writeln!(f, "  reason       {}", self.reason)?;
        let plural = if self.ahead == 1 { "" } else { "s" };
        writeln!(f, "  rank         {} ({} job{plural} before it)", self.rank, self.ahead)?;
        writeln!(f, "  service      {}", self.service)?;
        writeln!(f, "  waited       {}", self.waited)?;
        write!(f, "  preemptions  {}", self.preemptions)?;
        if !self.shares.is_empty() {
            let shares = self.shares.iter().map(|share| format!("{} x{}", share.machine, share.tasks));
            write!(f, "\n  machines     {}", shares.collect::<Vec<_>>().join(", "))?;
        }
        Ok(())
    }
}
