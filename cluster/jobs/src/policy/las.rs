//! Least attained service in two dimensions.
use super::{Policy, Urgency, View, by_score, in_queue, service_words};
use crate::Account;

/// Discretised 2D-LAS (Gu, 2021, section 3.3.2): jobs are demoted by service, slots times time; in a queue the job that started first
/// is first, and a preempted job comes after those that run. Without thresholds it is continuous: least service first.
///
/// ```
/// use tidemill_jobs::{Event, Job, Machine, Queue, Resources, Settings, Time};
/// let mut queue = Queue::new(Settings::default(), [Machine::new("a", Resources::of_slots(1))])?;
/// let job = |id, at| Event::Submitted { job: Job::new(id, 1, Resources::of_slots(1), Time::of_seconds(at)) };
/// queue.apply(Time::ZERO, job("long", 0))?;
/// queue.apply(Time::ZERO, Event::Started { job: "long".into() })?;
/// // Both are in the first queue, and `long` started first.
/// assert!(queue.apply(Time::of_seconds(600), job("new", 600))?.is_empty());
/// // At 3200 slot-seconds `long` is demoted, and preempted for `new`.
/// assert_eq!(queue.next_wake(), Some(Time::of_seconds(3200)));
/// let decisions = queue.apply(Time::of_seconds(3200), Event::Tick)?;
/// assert_eq!(decisions[0].job, "long");
/// assert!(decisions[0].reason.to_string().starts_with("new (queue 1 with 0 slot-seconds) ranks before it"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub(super) struct TwoDimensionalLas;

impl Policy for TwoDimensionalLas {
    fn name(&self) -> &'static str {
        "2d-las"
    }

    fn summary(&self) -> &'static str {
        "least attained service (slots x time) first, in queues; needs no durations"
    }

    fn is_by_service(&self) -> bool {
        true
    }

    fn urgency(&self, account: &Account, view: &View<'_>) -> Urgency {
        match view.settings.is_continuous() {
            true => by_score(account.recent_service.slot_seconds(), account),
            false => in_queue(0.0, account, view),
        }
    }

    fn words(&self, account: &Account, view: &View<'_>) -> String {
        service_words(account, view)
    }
}
