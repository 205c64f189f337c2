//! Policies: the order in which jobs get machines. A policy is one file and one line in [`ALL`].
mod best_effort;
mod fifo;
mod gittins;
mod las;
mod srsf;
mod srtf;

use crate::{Account, History, Settings, Time};
use std::cmp::Ordering;

/// Name of the default policy.
pub const DEFAULT: &str = "2d-las";

/// All policies.
pub const ALL: &[&dyn Policy] = &[
    &las::TwoDimensionalLas,
    &gittins::TwoDimensionalGittins,
    &fifo::Fifo,
    &best_effort::BestEffort,
    &srtf::ShortestRemainingTime,
    &srsf::ShortestRemainingService,
];

/// Returns the policy with this name.
///
/// ```
/// use tidemill_jobs::policy::find;
/// assert!(find("fifo").is_some_and(|policy| !policy.preempts()));
/// assert!(find("lifo").is_none());
/// ```
pub fn find(name: &str) -> Option<&'static dyn Policy> {
    ALL.iter().find(|policy| policy.name() == name).copied()
}

/// Facts that a policy may use besides the job's account.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// The present.
    pub now: Time,
    /// Settings of the queue.
    pub settings: &'a Settings,
    /// Services of past jobs.
    pub history: &'a History,
}

/// Order of jobs: the first is served first. Jobs of equal urgency are ordered by their submission.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Urgency {
    /// Queue, from 0 on.
    pub queue: u32,
    /// Turn among those of the queue.
    pub turn: Turn,
    /// Score; the least is first.
    pub score: f64,
    /// Place among equals of one turn; the earliest is first.
    pub place: Time,
}

/// Turn of a job among those of its queue: jobs that run are not preempted by their equals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Turn {
    /// It waited for too long and was promoted.
    Starves,
    /// It holds machines.
    Holds,
    /// It ran before.
    Ran,
    /// It has not run yet.
    New,
}

impl Turn {
    fn of(account: &Account) -> Self {
        match account.starts {
            _ if account.is_starving => Self::Starves,
            _ if account.holds() => Self::Holds,
            0 => Self::New,
            _ => Self::Ran,
        }
    }
}

impl Urgency {
    /// Compares two.
    pub(crate) fn compare(&self, other: &Self) -> Ordering {
        let turns = self.queue.cmp(&other.queue).then(self.turn.cmp(&other.turn));
        turns.then(self.score.total_cmp(&other.score)).then(self.place.cmp(&other.place))
    }
}

/// The order in which jobs get machines. Pure: equal accounts give equal answers.
pub trait Policy: Sync {
    /// Returns the name in settings and on the command line.
    fn name(&self) -> &'static str;

    /// Returns a line for people.
    fn summary(&self) -> &'static str;

    /// Whether jobs are preempted for others with a better rank.
    fn preempts(&self) -> bool {
        true
    }

    /// Whether a job that does not fit keeps those after it from starting.
    fn blocks(&self) -> bool {
        false
    }

    /// Whether its ranks come from attained service: then thresholds apply, and a promoted job begins again in the first queue. With
    /// other policies a promoted job ranks before those that were not promoted, until it ends.
    fn is_by_service(&self) -> bool {
        false
    }

    /// Whether it needs the durations of jobs; a job without one is served last.
    fn needs_durations(&self) -> bool {
        false
    }

    /// Whether it needs the services of past jobs.
    fn needs_history(&self) -> bool {
        false
    }

    /// Returns how urgent a job is.
    fn urgency(&self, account: &Account, view: &View<'_>) -> Urgency;

    /// Returns the urgency in words.
    fn words(&self, account: &Account, view: &View<'_>) -> String;
}

/// Urgency by a score alone, then by the submission.
fn by_score(score: f64, account: &Account) -> Urgency {
    Urgency { queue: 0, score, turn: Turn::Holds, place: account.job.submitted }
}

/// Urgency in a queue that is first in, first out by the last start (Gu, 2021, pseudocode 2, line 32).
fn in_queue(score: f64, account: &Account, view: &View<'_>) -> Urgency {
    let queue = view.settings.queue_of(account.recent_service);
    Urgency { queue, score, turn: Turn::of(account), place: account.place.unwrap_or(account.job.submitted) }
}

/// Words for a job's queue and service.
fn service_words(account: &Account, view: &View<'_>) -> String {
    let service = account.recent_service;
    match view.settings.is_continuous() {
        true => service.to_string(),
        false => format!("queue {} with {service}", view.settings.queue_of(service) + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_the_default_exists() {
        let mut names: Vec<_> = ALL.iter().map(|policy| policy.name()).collect();
        assert!(names.contains(&DEFAULT));
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
    }
}
