//! One direction between two places: a server that sends one frame after the other, first come, first served, at its
//! bandwidth, and a delay that applies to every frame. All edges between the two places share it, and so do the tensors of
//! models on devices.
use super::WireSpec;
use super::free_at::FreeAt;
use super::times::SharedTimes;
use crate::clock::{Clock, Nanoseconds};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// See the module.
#[derive(Debug)]
pub(crate) struct Wire {
    spec: WireSpec,
    /// When it has sent all its frames.
    free_at: FreeAt,
    pub(super) data_bytes: AtomicU64,
    pub(super) tensor_bytes: AtomicU64,
    pub(super) progress_bytes: AtomicU64,
    /// Nanoseconds spent sending.
    pub(super) busy: AtomicU64,
}

impl Wire {
    pub(crate) fn new(spec: WireSpec) -> Self {
        Self::with(spec, FreeAt::own())
    }

    /// Opens the shared wire of this number.
    pub(super) fn shared(spec: WireSpec, times: &Arc<SharedTimes>, number: usize) -> Self {
        Self::with(spec, FreeAt::shared(times, number))
    }

    fn with(spec: WireSpec, free_at: FreeAt) -> Self {
        Self {
            spec,
            free_at,
            data_bytes: AtomicU64::new(0),
            tensor_bytes: AtomicU64::new(0),
            progress_bytes: AtomicU64::new(0),
            busy: AtomicU64::new(0),
        }
    }

    pub(super) fn spec(&self) -> &WireSpec {
        &self.spec
    }

    /// Sends a frame of `bytes` bytes now; returns its arrival. Frames arrive in the order of the calls.
    ///
    /// # Errors
    /// The shared times cannot be read or written.
    pub(super) fn take(&self, bytes: u64, clock: &dyn Clock) -> io::Result<Nanoseconds> {
        self.send(bytes, || clock.now())
    }

    /// Sends the tensors of a call that are ready at this time, which is hardly past; returns their arrival.
    ///
    /// # Errors
    /// As [`Wire::take`].
    pub(super) fn take_tensors(&self, bytes: u64, ready: Nanoseconds) -> io::Result<Nanoseconds> {
        let arrival = self.send(bytes, || ready)?;
        // Those who see the bytes see the wire taken.
        self.tensor_bytes.fetch_add(bytes, Ordering::Release);
        Ok(arrival)
    }

    fn send(&self, bytes: u64, from: impl FnOnce() -> Nanoseconds) -> io::Result<Nanoseconds> {
        let sending = self.sending(bytes);
        // Called inside the lock: the order of the times is that of the frames.
        let sent = self.free_at.change(|free_at| from().max(free_at).saturating_add(sending))?;
        self.busy.fetch_add(sending as u64, Ordering::Relaxed);
        Ok(sent.saturating_add(Nanoseconds::try_from(self.spec.delay).unwrap_or(Nanoseconds::MAX)))
    }

    /// Returns the time to send `bytes` bytes, rounded up to a nanosecond.
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
        Wire::new(spec(bandwidth, delay))
    }

    fn spec(bandwidth: Option<u64>, delay: u64) -> WireSpec {
        WireSpec { from: "edge".into(), to: "cloud".into(), bandwidth, delay }
    }

    fn take(wire: &Wire, bytes: u64, clock: &ManualClock) -> Nanoseconds {
        wire.take(bytes, clock).expect("the times are there")
    }

    #[test]
    fn frames_wait_for_each_other_and_then_for_the_delay() {
        // 8 Mbit/s: a byte is a microsecond.
        let (wire, clock) = (wire(Some(8_000_000), 5_000_000), ManualClock::new());
        clock.advance(1_000);
        assert_eq!(take(&wire, 100, &clock), 1_000 + 100_000 + 5_000_000);
        assert_eq!(take(&wire, 50, &clock), 1_000 + 150_000 + 5_000_000, "behind the first, whoever sent it");
        clock.advance(149_999);
        assert_eq!(
            take(&wire, 1, &clock),
            1_000 + 151_000 + 5_000_000,
            "one nanosecond of the second is left"
        );
        clock.advance(10_000_000);
        assert_eq!(take(&wire, 1, &clock), 10_151_000 - 1 + 1_000 + 5_000_000, "idle meanwhile");
        assert_eq!(wire.busy.load(Ordering::Relaxed), 152_000);
    }

    #[test]
    fn parts_of_nanoseconds_are_rounded_up() {
        let (wire, clock) = (wire(Some(3_000_000_000), 0), ManualClock::new());
        assert_eq!(take(&wire, 1, &clock), 3, "8 bits at 3 Gbit/s are 2.67 ns");
    }

    #[test]
    fn without_bandwidth_only_the_delay_counts() {
        let (wire, clock) = (wire(None, 7), ManualClock::new());
        assert_eq!((take(&wire, 1 << 40, &clock), take(&wire, 1, &clock)), (7, 7));
        assert_eq!(wire.busy.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn tensors_share_the_bandwidth_with_frames() {
        let (wire, clock) = (wire(Some(8_000_000), 7), ManualClock::new());
        assert_eq!(wire.take_tensors(1_000, 2_000).expect("its own time"), 2_000 + 1_000_000 + 7);
        assert_eq!(take(&wire, 10, &clock), 1_002_000 + 10_000 + 7, "behind the tensors");
        let counted = [&wire.tensor_bytes, &wire.busy].map(|counter| counter.load(Ordering::Relaxed));
        assert_eq!(counted, [1_000, 1_010_000]);
    }

    #[test]
    fn frames_of_several_processes_wait_for_each_other() {
        let times = Arc::new(SharedTimes::create(2).expect("memory"));
        let opened = Arc::new(SharedTimes::open(&times.path()).expect("this process lives"));
        let [own, other] = [&times, &opened].map(|times| Wire::shared(spec(Some(8_000_000), 5), times, 1));
        let clock = ManualClock::new();
        assert_eq!(take(&own, 100, &clock), 100_005);
        assert_eq!(take(&other, 50, &clock), 150_005, "behind what another process has sent");
        assert_eq!(take(&own, 1, &clock), 151_005);
        assert_eq!((own.busy.load(Ordering::Relaxed), other.busy.load(Ordering::Relaxed)), (101_000, 50_000));
        let unused = Wire::shared(spec(Some(8_000_000), 5), &times, 0);
        assert_eq!(take(&unused, 1, &clock), 1_005, "the other wire is idle");
    }
}
