//! Cycles, slots, loss and work of an aggregator (AutoPS, section 4.3.3.2).
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The part of a job on an aggregator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The duration of an iteration of the job alone (D).
    pub iteration: Duration,
    /// The processor time that its tensors on this aggregator take in each iteration (the sum of e).
    pub work: Duration,
}

/// Returns the cycle of an aggregator (C): the longest iteration of its jobs.
///
/// ```
/// use std::time::Duration;
/// use tidemill_aggregation::cycle::{Part, cycle, work};
/// let part = |iteration, work| Part { iteration: Duration::from_secs(iteration), work: Duration::from_secs(work) };
/// let parts = [part(6, 2), part(12, 3)];
/// assert_eq!(cycle(&parts), Duration::from_secs(12));
/// assert_eq!(work(&parts), Duration::from_secs(7));
/// ```
pub fn cycle(parts: &[Part]) -> Duration {
    parts.iter().map(|part| part.iteration).max().unwrap_or_default()
}

/// Returns how many iterations of a job have slots in a cycle: the whole part of C / D.
pub fn slots(cycle: Duration, iteration: Duration) -> u64 {
    let slots = cycle.as_nanos().checked_div(iteration.as_nanos()).unwrap_or(0);
    u64::try_from(slots).unwrap_or(u64::MAX)
}

/// Returns how long an iteration takes in such a cycle (d): C / slots. On several aggregators, the longest one counts.
pub fn effective(cycle: Duration, iteration: Duration) -> Duration {
    let slots = u128::from(slots(cycle, iteration).max(1));
    nanoseconds(cycle.as_nanos() / slots)
}

/// Returns the part of its speed that a job loses (L): (d - D) / d.
///
/// ```
/// use std::time::Duration;
/// use tidemill_aggregation::cycle::loss;
/// let seconds = Duration::from_secs;
/// assert_eq!(loss(seconds(6), seconds(6)), 0.0);
/// assert!((loss(seconds(6), seconds(5)) - 1.0 / 6.0).abs() < 1e-12);
/// ```
pub fn loss(cycle: Duration, iteration: Duration) -> f64 {
    if cycle < iteration {
        return 0.0;
    }
    let busy = iteration.as_nanos() * u128::from(slots(cycle, iteration));
    1.0 - busy as f64 / cycle.as_nanos() as f64
}

/// Returns the processor time that the slots of a cycle take (W): the sum of e times slots. It must not exceed the cycle.
///
/// AutoPS counts the whole part of C / d, which is the same for a job on one aggregator. For a job that another aggregator slows down that
/// is less, even 0, and then an aggregator would accept any number of its tensors; slots that are reserved count here.
pub fn work(parts: &[Part]) -> Duration {
    let cycle = cycle(parts);
    let work = |part: &Part| u128::from(slots(cycle, part.iteration)) * part.work.as_nanos();
    nanoseconds(parts.iter().map(work).sum())
}

fn nanoseconds(count: u128) -> Duration {
    Duration::from_nanos(u64::try_from(count).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_shorter_job_has_several_slots() {
        let seconds = Duration::from_secs;
        assert_eq!(slots(seconds(12), seconds(5)), 2);
        assert_eq!(effective(seconds(12), seconds(5)), seconds(6));
        assert!((loss(seconds(12), seconds(5)) - 1.0 / 6.0).abs() < 1e-12);
        assert_eq!(cycle(&[]), Duration::ZERO);
        assert_eq!(work(&[]), Duration::ZERO);
    }

    proptest! {
        /// Slots that fit into the cycle mean that the processor keeps up: the sum of e / d is at most 1.
        #[test]
        fn work_within_the_cycle_is_feasible(parts in proptest::collection::vec((1u64..50, 0u64..20), 1..6)) {
            let parts: Vec<Part> = parts.into_iter().map(|(iteration, work)| Part {
                iteration: Duration::from_millis(iteration), work: Duration::from_millis(work) }).collect();
            let cycle = cycle(&parts);
            let utilisation: f64 = parts.iter()
                .map(|part| part.work.as_secs_f64() / effective(cycle, part.iteration).as_secs_f64()).sum();
            if work(&parts) <= cycle {
                prop_assert!(utilisation <= 1.0 + 1e-5, "{}", utilisation);
            }
            for part in &parts {
                let (own, pace) = (part.iteration, effective(cycle, part.iteration));
                let expected = (pace.as_secs_f64() - own.as_secs_f64()) / pace.as_secs_f64();
                prop_assert!((loss(cycle, own) - expected).abs() < 1e-5);
                prop_assert!(loss(cycle, own) < 0.5);
            }
        }
    }
}
