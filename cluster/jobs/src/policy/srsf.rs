//! Shortest remaining service first.
use super::{Policy, Urgency, View, by_score};
use crate::{Account, Service};

/// The job with the least remaining service, slots times time, is first (Gu, 2021, section 3.3.2.1). It needs durations.
///
/// ```
/// use tidemill_jobs::{Event, Job, Machine, Queue, Resources, Settings, Time};
/// let settings = Settings { policy: "srsf".into(), ..Settings::default() };
/// let mut queue = Queue::new(settings, [Machine::new("a", Resources::of_slots(4))])?;
/// let job = |id, tasks, seconds| {
///     let job = Job::new(id, tasks, Resources::of_slots(1), Time::ZERO);
///     Event::Submitted { job: Job { duration: Some(Time::of_seconds(seconds)), ..job } }
/// };
/// let decisions = queue.apply_all(Time::ZERO, [job("wide", 4, 10), job("narrow", 1, 30)])?;
/// assert_eq!(decisions[0].job, "narrow"); // 30 slot-seconds, before 40
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub(super) struct ShortestRemainingService;

impl ShortestRemainingService {
    fn left(account: &Account) -> Option<Service> {
        Some(Service::of(account.weight, account.remaining()?))
    }
}

impl Policy for ShortestRemainingService {
    fn name(&self) -> &'static str {
        "srsf"
    }

    fn summary(&self) -> &'static str {
        "shortest remaining service (slots x time) first; needs durations"
    }

    fn needs_durations(&self) -> bool {
        true
    }

    fn urgency(&self, account: &Account, _: &View<'_>) -> Urgency {
        let score = Self::left(account).map_or(f64::INFINITY, Service::slot_seconds);
        by_score(score, account)
    }

    fn words(&self, account: &Account, _: &View<'_>) -> String {
        Self::left(account).map_or_else(|| "duration unknown".to_owned(), |left| format!("{left} left"))
    }
}
