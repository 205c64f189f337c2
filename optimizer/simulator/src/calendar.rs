//! The event queue.
use crate::network::Nanoseconds;
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// An event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// The next record of a group of sources is due.
    Due(u32),
    /// The next record or progress message leaves a link.
    Arrives(u32),
    /// A worker ends a call: worker, index of its call.
    Ends(u32, u32),
    /// A batch of a stage has waited for its whole budget.
    Fills(u32),
    /// A batch reaches its device; its place among those that are away.
    Reaches(u32),
    /// The results of a batch come back from its device.
    Returns(u32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    time: Nanoseconds,
    number: u64,
    event: Event,
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.time, self.number).cmp(&(other.time, other.number))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Events in order of time; at equal times in the order of entry.
#[derive(Debug, Default)]
pub(crate) struct Calendar {
    entries: BinaryHeap<Reverse<Entry>>,
    entered: u64,
}

impl Calendar {
    pub(crate) fn enter(&mut self, time: Nanoseconds, event: Event) {
        self.entries.push(Reverse(Entry { time, number: self.entered, event }));
        self.entered += 1;
    }

    /// Returns the time of the next event.
    pub(crate) fn time(&self) -> Option<Nanoseconds> {
        self.entries.peek().map(|Reverse(entry)| entry.time)
    }

    pub(crate) fn next(&mut self) -> Option<(Nanoseconds, Event)> {
        self.entries.pop().map(|Reverse(entry)| (entry.time, entry.event))
    }
}
