//! First in, first out.
use super::{Policy, Urgency, View, by_score};
use crate::Account;

/// Jobs start in the order of their submission and run to their end; a job that does not fit blocks those after it, as in the capacity
/// scheduler of YARN (Gu, 2021, section 3.5.1).
///
/// ```
/// use tidemill_jobs::{Event, Job, Machine, Queue, Resources, Settings, Time};
/// let settings = Settings { policy: "fifo".into(), ..Settings::default() };
/// let mut queue = Queue::new(settings, [Machine::new("a", Resources::of_slots(2))])?;
/// let job = |id, tasks| Event::Submitted { job: Job::new(id, tasks, Resources::of_slots(1), Time::ZERO) };
/// let all = [job("narrow", 1), job("wide", 2), job("small", 1)];
/// let decisions = queue.apply_all(Time::ZERO, all)?;
/// assert_eq!(decisions.len(), 1, "`small` would fit, but `wide` is before it");
/// assert_eq!(queue.account("small").ok_or("is there")?.reason.to_string(), "wide was submitted earlier and does not fit");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub(super) struct Fifo;

impl Policy for Fifo {
    fn name(&self) -> &'static str {
        "fifo"
    }

    fn summary(&self) -> &'static str {
        "in the order of submission; a job that does not fit blocks those after it; no preemption"
    }

    fn preempts(&self) -> bool {
        false
    }

    fn blocks(&self) -> bool {
        true
    }

    fn urgency(&self, account: &Account, _: &View<'_>) -> Urgency {
        by_score(0.0, account)
    }

    fn words(&self, account: &Account, _: &View<'_>) -> String {
        format!("number {}", account.order + 1)
    }
}
