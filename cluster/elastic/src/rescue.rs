//! Handling of memory that runs out: the group gets unassigned memory, or memory that others do not use. When nothing is
//! left under the cap, the kernel kills a process, as it would have done before.
//!
//! In version 1 the processes of the group wait meanwhile (`oom_kill_disable`) and an event signals it at once. Version 2
//! has no such mechanism: the kernel slows processes down at `memory.high`, and the next look, at most a period later,
//! notices it.
use crate::allocator::{Allocator, Order};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Action for a group that runs out of memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rescue {
    /// Raise this limit.
    Granted(Order),
    /// Lower the limits of others first, then retry.
    Reclaim(Vec<Order>),
    /// The cap is used up: the kernel kills a process.
    Exhausted,
}

/// Decides for `name`, which uses or wants `used` bytes, and waits for more if `is_stuck`. `others` returns the use of the
/// others, and is called only if too little is free.
pub fn rescue(
    allocator: &mut Allocator,
    name: &str,
    used: u64,
    is_stuck: bool,
    others: impl FnOnce() -> BTreeMap<String, u64>,
) -> Rescue {
    let wanted = allocator.wanted_memory(name, used);
    if allocator.free_memory() < wanted {
        let mut used = others();
        used.remove(name);
        let orders = allocator.reclaim(&used);
        if !orders.is_empty() {
            return Rescue::Reclaim(orders);
        }
        // Little memory for all is better than a kill.
        if is_stuck && allocator.free_memory() < wanted / 4 {
            let orders = allocator.squeeze(&used);
            if !orders.is_empty() {
                return Rescue::Reclaim(orders);
            }
        }
    }
    allocator.grant(name, used).map_or(Rescue::Exhausted, Rescue::Granted)
}

/// Waits until a group runs out of memory, or for `time`; returns the indices of such groups and consumes their events.
///
/// # Errors
/// The system refuses to wait.
pub fn wait(traps: &[&OwnedFd], time: Duration) -> std::io::Result<Vec<usize>> {
    let mut waiting: Vec<PollFd<'_>> = traps.iter().map(|trap| PollFd::new(*trap, PollFlags::IN)).collect();
    let time = Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(time.subsec_nanos()),
    };
    match poll(&mut waiting, Some(&time)) {
        Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(Vec::new()),
        Ok(_) => {}
        Err(error) => return Err(error.into()),
    }
    let fired = waiting.iter().enumerate().filter(|(_, one)| !one.revents().is_empty());
    let fired: Vec<usize> = fired.map(|(index, _)| index).collect();
    for index in &fired {
        let _ = rustix::io::read(traps[*index], &mut [0u8; 8]); // one that is empty by now is as well
    }
    Ok(fired)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocator::{Caps, Change};
    use crate::rules::{CpuRules, MemoryRules};

    #[test]
    fn memory_comes_from_the_pool_then_from_others_then_not_at_all() {
        let rules = MemoryRules { margin: 40 << 20, grant: 20 << 20, ahead: 0, handed_out: 70 };
        let caps = Caps { quota: 100_000, memory: 400 << 20 };
        let mut allocator = Allocator::new(caps, 100_000, CpuRules::default(), rules);
        let newcomers = [("a".to_owned(), 10 << 20), ("b".to_owned(), 10 << 20)];
        allocator.join(&newcomers, &BTreeMap::new()).unwrap();
        let uses_of_b = 10u64 << 20;
        for (is_stuck, least_of_b) in [(false, 50u64), (true, 15)] {
            let mut lowered = 0;
            for turn in 0.. {
                assert!(turn < 100);
                let (_, limit) = allocator.limits("a").unwrap();
                let others = || BTreeMap::from([("b".to_owned(), uses_of_b), ("a".to_owned(), 0)]);
                match rescue(&mut allocator, "a", limit, is_stuck, others) {
                    Rescue::Granted(order) => assert!(!order.is_less()),
                    Rescue::Reclaim(orders) => {
                        assert_eq!(orders.len(), 1, "not from the one that needs it");
                        assert_eq!(orders[0].what, Change::Memory(least_of_b << 20));
                        lowered += 1;
                    }
                    Rescue::Exhausted => break,
                }
            }
            assert_eq!((lowered, allocator.free_memory()), (1, 0));
            assert_eq!(allocator.limits("a").unwrap().1, (400 - least_of_b) << 20, "all but what b has");
        }
    }

    #[test]
    fn events_are_told_and_taken() {
        let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
        let quiet = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
        assert!(wait(&[&quiet, &event], Duration::from_millis(1)).unwrap().is_empty());
        rustix::io::write(&event, &1u64.to_ne_bytes()).unwrap();
        assert_eq!(wait(&[&quiet, &event], Duration::from_secs(10)).unwrap(), [1]);
        assert!(wait(&[&quiet, &event], Duration::from_millis(1)).unwrap().is_empty());
    }
}
