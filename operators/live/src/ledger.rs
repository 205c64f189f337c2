//! Account of the frames of a camera, and the newest ones that wait: one picture, or some seconds of sound.
//!
//! At all times, received = emitted + drops + waiting.
//!
//! ```
//! use tidemill_live::ledger::Ledger;
//! let mut ledger = Ledger::default();
//! ledger.offer("old");
//! ledger.offer("new");
//! assert_eq!(ledger.take(), Some("new"));
//! assert_eq!((ledger.received(), ledger.emitted(), ledger.drops()["superseded"]), (2, 1, 1));
//! ```
use std::collections::{BTreeMap, VecDeque};

/// Reason of a frame for which a newer one came before it was read.
pub const SUPERSEDED: &str = "superseded";
/// Reason of a frame that came sooner than `most` allows.
pub const RATE: &str = "rate";
/// Reason of a frame that waited when its camera was paused.
pub const PAUSED: &str = "paused";
/// Reason of a frame that the decoder had no time for.
pub const BEHIND: &str = "behind";

/// See the module.
#[derive(Debug)]
pub struct Ledger<T> {
    received: u64,
    emitted: u64,
    drops: BTreeMap<&'static str, u64>,
    waiting: VecDeque<T>,
    /// Most frames that wait.
    most: usize,
}

impl<T> Default for Ledger<T> {
    fn default() -> Self {
        Self::keeping(1)
    }
}

impl<T> Ledger<T> {
    /// An account of a camera of which this many frames may wait.
    pub fn keeping(most: usize) -> Self {
        Self { received: 0, emitted: 0, drops: BTreeMap::new(), waiting: VecDeque::new(), most: most.max(1) }
    }

    /// Receives a frame that waits from now on. Returns the oldest one if there are too many, which is dropped.
    pub fn offer(&mut self, frame: T) -> Option<T> {
        self.received += 1;
        let oldest = if self.waiting.len() < self.most { None } else { self.waiting.pop_front() };
        if oldest.is_some() {
            self.count(SUPERSEDED, 1);
        }
        self.waiting.push_back(frame);
        oldest
    }

    /// Receives a frame that is dropped at once.
    pub fn skip(&mut self, reason: &'static str) {
        self.received += 1;
        self.count(reason, 1);
    }

    /// Takes the oldest waiting frame to emit it.
    pub fn take(&mut self) -> Option<T> {
        let taken = self.waiting.pop_front();
        self.emitted += u64::from(taken.is_some());
        taken
    }

    /// Drops the waiting frames.
    pub fn discard(&mut self, reason: &'static str) {
        let waiting = self.waiting.len() as u64;
        self.waiting.clear();
        if waiting > 0 {
            self.count(reason, waiting);
        }
    }

    fn count(&mut self, reason: &'static str, frames: u64) {
        *self.drops.entry(reason).or_default() += frames;
    }

    /// Frames that came.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Frames given to the run.
    pub fn emitted(&self) -> u64 {
        self.emitted
    }

    /// Frames dropped, by reason.
    pub fn drops(&self) -> &BTreeMap<&'static str, u64> {
        &self.drops
    }

    /// The oldest frame that waits.
    pub fn waiting(&self) -> Option<&T> {
        self.waiting.front()
    }

    /// Frames that wait.
    pub fn waiting_frames(&self) -> u64 {
        self.waiting.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn every_frame_is_accounted_for(most in 1..4usize, orders in prop::collection::vec(0..6u8, 0..200)) {
            let mut ledger = Ledger::keeping(most);
            let (mut given, mut queue) = (0u64, VecDeque::new());
            for order in orders {
                match order {
                    0..=2 => {
                        let oldest = if queue.len() == most { queue.pop_front() } else { None };
                        prop_assert_eq!(ledger.offer(given), oldest);
                        queue.push_back(given);
                        given += 1;
                    }
                    3 => {
                        ledger.skip(RATE);
                        given += 1;
                    }
                    4 => prop_assert_eq!(ledger.take(), queue.pop_front()),
                    _ => {
                        ledger.discard(PAUSED);
                        queue.clear();
                    }
                }
                prop_assert_eq!(ledger.received(), given);
                prop_assert_eq!(ledger.waiting_frames(), queue.len() as u64);
                let accounted = ledger.emitted() + ledger.drops().values().sum::<u64>();
                prop_assert_eq!(given, accounted + ledger.waiting_frames());
            }
        }
    }
}
