//! The Gittins index in two dimensions.
use super::{Policy, Urgency, View, by_score, in_queue, service_words};
use crate::{Account, Service};

/// Discretised 2D-Gittins (Gu, 2021, section 3.3.2): queues as with `2d-las`; within one, the job comes first that most likely completes
/// per service invested, judged by the services of past jobs. Without thresholds the index is continuous.
///
/// A job that runs is not preempted by one of its own queue with a better index, unlike in the paper: with the cost of preemptions in our
/// simulations of 480 jobs that made the mean completion time 1.2 to 1.4 times as long (docs/decisions/0089).
///
/// ```
/// use tidemill_jobs::{History, Machine, Queue, Resources, Settings, Service};
/// let settings = Settings { policy: "2d-gittins".into(), ..Settings::default() };
/// let machines = [Machine::new("a", Resources::of_slots(1))];
/// assert!(Queue::new(settings.clone(), machines.clone()).is_err(), "it needs a history");
/// let learning = Settings { remembered: 500, ..settings.clone() };
/// assert!(Queue::new(learning, machines.clone()).is_ok(), "it collects one; until then it is as `2d-las`");
/// let history = History::of([60.0, 90.0, 5000.0].map(Service::of_slot_seconds));
/// assert!(Queue::with_history(settings, machines, history).is_ok());
/// ```
#[derive(Debug)]
pub(super) struct TwoDimensionalGittins;

impl TwoDimensionalGittins {
    fn index(account: &Account, view: &View<'_>) -> f64 {
        let attained = account.recent_service;
        if view.settings.is_continuous() {
            return view.history.gittins_index(attained);
        }
        let queue = view.settings.queue_of(attained) as usize;
        // The quantum of a queue is its upper bound, and the last queue is first in, first out.
        let quantum = view.settings.thresholds.get(queue);
        quantum.map_or(0.0, |quantum| view.history.rate_within(attained, *quantum))
    }
}

impl Policy for TwoDimensionalGittins {
    fn name(&self) -> &'static str {
        "2d-gittins"
    }

    fn summary(&self) -> &'static str {
        "most likely to complete per service, by the services of past jobs, in queues; needs a history"
    }

    fn is_by_service(&self) -> bool {
        true
    }

    fn needs_history(&self) -> bool {
        true
    }

    fn urgency(&self, account: &Account, view: &View<'_>) -> Urgency {
        let score = -Self::index(account, view);
        match view.settings.is_continuous() {
            true => by_score(score, account),
            false => in_queue(score, account, view),
        }
    }

    fn words(&self, account: &Account, view: &View<'_>) -> String {
        let index = Self::index(account, view) * Service::of_slot_seconds(3600.0).slot_seconds();
        format!("{}, index {index:.3} per slot-hour", service_words(account, view))
    }
}
