//! Shortest remaining time first.
use super::{Policy, Urgency, View, by_score};
use crate::Account;

/// The job with the least remaining running time is first. It needs durations: an oracle to compare with, or jobs that state theirs.
///
/// ```
/// use tidemill_jobs::{Event, Job, Machine, Queue, Resources, Settings, Time};
/// let settings = Settings { policy: "srtf".into(), ..Settings::default() };
/// let mut queue = Queue::new(settings, [Machine::new("a", Resources::of_slots(1))])?;
/// let job = |id, seconds| {
///     let job = Job::new(id, 1, Resources::of_slots(1), Time::ZERO);
///     Event::Submitted { job: Job { duration: Some(Time::of_seconds(seconds)), ..job } }
/// };
/// let decisions = queue.apply_all(Time::ZERO, [job("long", 90), job("short", 5)])?;
/// assert_eq!(decisions[0].job, "short");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub(super) struct ShortestRemainingTime;

impl Policy for ShortestRemainingTime {
    fn name(&self) -> &'static str {
        "srtf"
    }

    fn summary(&self) -> &'static str {
        "shortest remaining time first; needs durations"
    }

    fn needs_durations(&self) -> bool {
        true
    }

    fn urgency(&self, account: &Account, _: &View<'_>) -> Urgency {
        let score = account.remaining().map_or(f64::INFINITY, |left| left.seconds());
        by_score(score, account)
    }

    fn words(&self, account: &Account, _: &View<'_>) -> String {
        account.remaining().map_or_else(|| "duration unknown".to_owned(), |left| format!("{left} left"))
    }
}
