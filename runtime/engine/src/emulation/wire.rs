//! One direction between two places: a server that sends one frame after the other, first come, first served, at its
//! bandwidth, and a delay that every frame then has. All edges between the two places share it.
use super::WireSpec;
use crate::clock::{Clock, Nanoseconds};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// See the module.
#[derive(Debug)]
pub(crate) struct Wire {
    spec: WireSpec,
    /// When it has sent everything that was given to it.
    free_at: Mutex<Nanoseconds>,
    pub(super) data_bytes: AtomicU64,
    pub(super) progress_bytes: AtomicU64,
    /// Nanoseconds in which it sent.
    pub(super) busy: AtomicU64,
}

impl Wire {
    pub(crate) fn new(spec: WireSpec) -> Self {
        Self {
            spec,
            free_at: Mutex::new(Nanoseconds::MIN),
            data_bytes: AtomicU64::new(0),
            progress_bytes: AtomicU64::new(0),
            busy: AtomicU64::new(0),
        }
    }

    pub(super) fn spec(&self) -> &WireSpec {
        &self.spec
    }

    /// Takes a frame of so many bytes now; when it arrives. Frames arrive in the order in which they were taken.
    pub(super) fn take(&self, bytes: u64, clock: &dyn Clock) -> Nanoseconds {
        let sending = self.sending(bytes);
        let mut free_at = self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
        // Inside the lock: the order of the times is that of the frames.
        *free_at = clock.now().max(*free_at).saturating_add(sending);
        self.busy.fetch_add(sending as u64, Ordering::Relaxed);
        free_at.saturating_add(Nanoseconds::try_from(self.spec.delay).unwrap_or(Nanoseconds::MAX))
    }

    /// How long so many bytes take to send, rounded up to a nanosecond.
    fn sending(&self, bytes: u64) -> Nanoseconds {
        let Some(bandwidth) = self.spec.bandwidth.filter(|bandwidth| *bandwidth > 0) else { return 0 };
        let nanoseconds = (u128::from(bytes) * 8 * 1_000_000_000).div_ceil(u128::from(bandwidth));
        Nanoseconds::try_from(nanoseconds).unwrap_or(Nanoseconds::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    fn wire(bandwidth: Option<u64>, delay: u64) -> Wire {
        Wire::new(WireSpec { from: "edge".into(), to: "cloud".into(), bandwidth, delay })
    }

    #[test]
    fn frames_wait_for_each_other_and_then_for_the_delay() {
        // 8 Mbit/s: a byte is a microsecond.
        let (wire, clock) = (wire(Some(8_000_000), 5_000_000), ManualClock::new());
        clock.advance(1_000);
        assert_eq!(wire.take(100, &clock), 1_000 + 100_000 + 5_000_000);
        assert_eq!(wire.take(50, &clock), 1_000 + 150_000 + 5_000_000, "behind the first, whoever sent it");
        clock.advance(149_999);
        assert_eq!(wire.take(1, &clock), 1_000 + 151_000 + 5_000_000, "one nanosecond of the second is left");
        clock.advance(10_000_000);
        assert_eq!(wire.take(1, &clock), 10_151_000 - 1 + 1_000 + 5_000_000, "idle meanwhile");
        assert_eq!(wire.busy.load(Ordering::Relaxed), 152_000);
    }

    #[test]
    fn parts_of_nanoseconds_are_rounded_up() {
        let (wire, clock) = (wire(Some(3_000_000_000), 0), ManualClock::new());
        assert_eq!(wire.take(1, &clock), 3, "8 bits at 3 Gbit/s are 2.67 ns");
    }

    #[test]
    fn without_bandwidth_only_the_delay_counts() {
        let (wire, clock) = (wire(None, 7), ManualClock::new());
        assert_eq!((wire.take(1 << 40, &clock), wire.take(1, &clock)), (7, 7));
        assert_eq!(wire.busy.load(Ordering::Relaxed), 0);
    }
}
