//! Account of the frames of a camera, and the newest one that waits.
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
use std::collections::BTreeMap;

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
    waiting: Option<T>,
}

impl<T> Default for Ledger<T> {
    fn default() -> Self {
        Self { received: 0, emitted: 0, drops: BTreeMap::new(), waiting: None }
    }
}

impl<T> Ledger<T> {
    /// Receives a frame that waits from now on. Returns the one that waited before, which is dropped.
    pub fn offer(&mut self, frame: T) -> Option<T> {
        self.received += 1;
        let before = self.waiting.replace(frame);
        if before.is_some() {
            self.count(SUPERSEDED);
        }
        before
    }

    /// Receives a frame that is dropped at once.
    pub fn skip(&mut self, reason: &'static str) {
        self.received += 1;
        self.count(reason);
    }

    /// Takes the waiting frame to emit it.
    pub fn take(&mut self) -> Option<T> {
        let taken = self.waiting.take();
        self.emitted += u64::from(taken.is_some());
        taken
    }

    /// Drops the waiting frame.
    pub fn discard(&mut self, reason: &'static str) {
        if self.waiting.take().is_some() {
            self.count(reason);
        }
    }

    fn count(&mut self, reason: &'static str) {
        *self.drops.entry(reason).or_default() += 1;
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

    /// The frame that waits.
    pub fn waiting(&self) -> Option<&T> {
        self.waiting.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn every_frame_is_accounted_for(orders in prop::collection::vec(0..5u8, 0..200)) {
            let mut ledger = Ledger::default();
            let (mut given, mut newest) = (0u64, None);
            for order in orders {
                match order {
                    0 | 1 => {
                        prop_assert_eq!(ledger.offer(given), newest.replace(given));
                        given += 1;
                    }
                    2 => {
                        ledger.skip(RATE);
                        given += 1;
                    }
                    3 => prop_assert_eq!(ledger.take(), newest.take()),
                    _ => {
                        ledger.discard(PAUSED);
                        newest = None;
                    }
                }
                prop_assert_eq!(ledger.received(), given);
                let waiting = u64::from(ledger.waiting().is_some());
                prop_assert_eq!(given, ledger.emitted() + ledger.drops().values().sum::<u64>() + waiting);
            }
        }
    }
}
