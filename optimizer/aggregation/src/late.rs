//! Requests that miss their slots.
use std::collections::BTreeMap;
use std::time::Duration;

/// When a late request is carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slot {
    /// In this cycle: there is time beside what is scheduled.
    Now,
    /// In the next cycle: the job is one iteration late, and others are not affected.
    Next,
}

/// One turn of an aggregator's cycle: the requests that are scheduled, and the time that is left for late ones (AutoPS, section 4.3.3.2).
///
/// ```
/// use std::time::Duration;
/// use tidemill_aggregation::late::{Slot, Turn};
/// let seconds = Duration::from_secs;
/// let mut turn = Turn::new(seconds(12), [("a", seconds(2)), ("b", seconds(3))]);
/// turn.miss("a");
/// // 9 of 12 s are gone, and "b" still needs 3: "a" must wait.
/// assert_eq!(turn.late("a", seconds(2), seconds(9)), Slot::Next);
/// turn.done("b");
/// assert_eq!(turn.late("a", seconds(2), seconds(10)), Slot::Now);
/// ```
#[derive(Debug, Clone)]
pub struct Turn<Request> {
    cycle: Duration,
    scheduled: BTreeMap<Request, Duration>,
}

impl<Request: Ord> Turn<Request> {
    /// Begins a cycle with these requests, and the processor time of each.
    pub fn new(cycle: Duration, scheduled: impl IntoIterator<Item = (Request, Duration)>) -> Self {
        Self { cycle, scheduled: scheduled.into_iter().collect() }
    }

    /// Notes that a request has been carried out.
    pub fn done(&mut self, request: Request) {
        self.scheduled.remove(&request);
    }

    /// Notes that a request has not come by the time of its slot, which becomes free.
    pub fn miss(&mut self, request: Request) {
        self.scheduled.remove(&request);
    }

    /// Decides when a late request of this processor time is carried out that comes `elapsed` after the cycle began. If it is carried out
    /// in this cycle, its time is reserved until [`Turn::done`].
    pub fn late(&mut self, request: Request, work: Duration, elapsed: Duration) -> Slot {
        let reserved: Duration = self.scheduled.values().sum();
        if elapsed + reserved + work > self.cycle {
            return Slot::Next;
        }
        self.scheduled.insert(request, work);
        Slot::Now
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// A7: requests of others that come in time are done in time, whatever others miss.
        #[test]
        fn scheduled_requests_are_not_affected(
            works in proptest::collection::vec(1u64..10, 1..12),
            idle in 0u64..20,
            missed in proptest::collection::vec(any::<bool>(), 12),
        ) {
            let millis = Duration::from_millis;
            let cycle = millis(works.iter().sum::<u64>() + idle);
            let all = works.iter().enumerate().map(|(request, work)| (request, millis(*work)));
            let mut turn = Turn::new(cycle, all);
            let (mut elapsed, mut waiting, mut now) = (Duration::ZERO, Vec::new(), 0);
            for (request, work) in works.iter().enumerate() {
                if missed[request] {
                    turn.miss(request);
                    waiting.push((request, millis(*work)));
                } else {
                    elapsed += millis(*work);
                    turn.done(request);
                }
                // Late requests come at once, in the order of their slots.
                for (request, work) in std::mem::take(&mut waiting) {
                    match turn.late(request, work, elapsed) {
                        Slot::Now => {
                            now += 1;
                            elapsed += work;
                            turn.done(request);
                        }
                        Slot::Next => waiting.push((request, work)),
                    }
                }
            }
            prop_assert!(elapsed <= cycle);
            // As nothing else takes the time of a missed slot, each of them fits later.
            prop_assert_eq!(now, missed[..works.len()].iter().filter(|missed| **missed).count());
        }
    }

    #[test]
    fn time_that_is_gone_is_not_given_twice() {
        let second = Duration::from_secs(1);
        let mut turn = Turn::new(3 * second, [(1, second)]);
        assert_eq!(turn.late(2, second, second), Slot::Now);
        assert_eq!(turn.late(3, second, second), Slot::Next);
    }
}
