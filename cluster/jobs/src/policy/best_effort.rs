//! First in, first out, with the gaps filled.
use super::{Policy, Urgency, View, by_score};
use crate::Account;

/// As `fifo`, but a job that does not fit lets smaller ones start (Gu, 2021, section 3.5.3). A wide job may wait for ever, unless the
/// promote knob is finite.
///
/// ```
/// use tidemill_jobs::{Event, Job, Machine, Queue, Resources, Settings, Time};
/// let settings = Settings { policy: "best-effort".into(), ..Settings::default() };
/// let mut queue = Queue::new(settings, [Machine::new("a", Resources::of_slots(2))])?;
/// let job = |id, tasks| Event::Submitted { job: Job::new(id, tasks, Resources::of_slots(1), Time::ZERO) };
/// let decisions = queue.apply_all(Time::ZERO, [job("narrow", 1), job("wide", 2), job("small", 1)])?;
/// let started: Vec<_> = decisions.iter().map(|decision| decision.job.as_str()).collect();
/// assert_eq!(started, ["narrow", "small"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub(super) struct BestEffort;

impl Policy for BestEffort {
    fn name(&self) -> &'static str {
        "best-effort"
    }

    fn summary(&self) -> &'static str {
        "in the order of submission; smaller jobs fill the gaps; no preemption"
    }

    fn preempts(&self) -> bool {
        false
    }

    fn urgency(&self, account: &Account, _: &View<'_>) -> Urgency {
        by_score(0.0, account)
    }

    fn words(&self, account: &Account, _: &View<'_>) -> String {
        format!("number {}", account.order + 1)
    }
}
