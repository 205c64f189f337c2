//! How long a device may give no sign of life while somebody waits for it.
use std::time::{Duration, Instant};

/// After this silence a device is lost. It gives a sign of life each second, see `proxy/beats.rs`; a call that computes for longer is
/// cut by the device itself.
pub(super) const SILENCE: Duration = Duration::from_secs(5);
/// Interval of looks while somebody waits.
pub(super) const LOOK: Duration = Duration::from_secs(1);
/// Without a look for so long, this process itself stood still, and signs of life may wait to be read.
const OWN: Duration = Duration::from_secs(3);

/// The silence of a device, as seen by looks at the number of bytes that have moved.
#[derive(Debug)]
pub(super) struct Patience {
    /// Threads that wait for the device.
    waiting: usize,
    moved: u64,
    /// Since when nothing moves.
    since: Instant,
    looked: Instant,
}

impl Patience {
    pub(super) fn new(now: Instant) -> Self {
        Self { waiting: 0, moved: 0, since: now, looked: now }
    }

    /// A thread begins to wait. A device that nobody waits for may be silent.
    pub(super) fn begin(&mut self, now: impl FnOnce() -> Instant) {
        self.waiting += 1;
        if self.waiting == 1 {
            let now = now();
            (self.since, self.looked) = (now, now);
        }
    }

    /// A thread waits no longer.
    pub(super) fn end(&mut self) {
        self.waiting -= 1;
    }

    /// Returns whether the device was silent for too long. `moved`: bytes that went both ways until now.
    pub(super) fn is_over(&mut self, moved: u64, now: Instant) -> bool {
        if self.waiting == 0 {
            return false;
        }
        let stood = now.saturating_duration_since(self.looked) >= OWN;
        self.looked = now;
        if stood || std::mem::replace(&mut self.moved, moved) != moved {
            self.since = now;
        }
        now.saturating_duration_since(self.since) >= SILENCE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks each second until some second, with this number of bytes; returns the second at which patience ended.
    fn ended(
        patience: &mut Patience,
        begun: Instant,
        seconds: std::ops::Range<u64>,
        moved: impl Fn(u64) -> u64,
    ) -> Option<u64> {
        seconds
            .into_iter()
            .find(|second| patience.is_over(moved(*second), begun + Duration::from_secs(*second)))
    }

    #[test]
    fn a_device_that_gives_signs_of_life_may_compute_for_hours() {
        let begun = super::super::now();
        let mut patience = Patience::new(begun);
        patience.begin(|| begun);
        // A sign each other second: some come late.
        assert_eq!(ended(&mut patience, begun, 0..10_000, |second| second / 2), None);
        assert_eq!(ended(&mut patience, begun, 10_000..20_000, |_| 7), Some(10_005));
    }

    #[test]
    fn the_silence_begins_with_the_wait() {
        let begun = super::super::now();
        let at = |second| begun + Duration::from_secs(second);
        let mut patience = Patience::new(begun);
        assert_eq!(ended(&mut patience, begun, 0..100, |_| 0), None, "nobody waits");
        patience.begin(|| at(100));
        // A second one does not make it longer.
        assert!(!patience.is_over(0, at(102)));
        patience.begin(|| at(103));
        assert!(!patience.is_over(0, at(104)));
        assert!(patience.is_over(0, at(105)));
        patience.end();
        patience.end();
        assert_eq!(ended(&mut patience, begun, 106..200, |_| 0), None);
    }

    #[test]
    fn a_client_that_stood_still_itself_looks_again_first() {
        let begun = super::super::now();
        let mut patience = Patience::new(begun);
        patience.begin(|| begun);
        assert!(!patience.is_over(0, begun + Duration::from_secs(1)));
        assert!(!patience.is_over(0, begun + Duration::from_secs(100)));
        assert_eq!(ended(&mut patience, begun, 101..200, |_| 0), Some(105));
    }
}
