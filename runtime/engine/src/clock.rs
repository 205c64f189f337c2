//! The one clock of a run: wall, dilated or manual. All engine time is nanoseconds since the clock was made.
//!
//! ```
//! use tidemill_engine::clock::{Clock, ManualClock};
//! let clock = ManualClock::new();
//! clock.advance(1_000);
//! assert_eq!(clock.now(), 1_000);
//! ```
mod estimate;
mod following;

pub(crate) use following::{ClockFigures, SharedClock};

use crate::wake::Waker;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

pub use crate::frame::Nanoseconds;

/// Source of a run's time.
pub trait Clock: Send + Sync + std::fmt::Debug {
    /// Returns the current time.
    fn now(&self) -> Nanoseconds;
    /// Returns the real time to sleep until `deadline`; `None`: only [`Waker`]s end the wait.
    fn real_time_until(&self, deadline: Nanoseconds) -> Option<Duration>;
    /// Factor by which it is slower than real time.
    fn dilation(&self) -> f64 {
        1.0
    }
    /// Registers `waker` for jumps of time; clocks that run by themselves need not.
    fn on_jump(&self, _waker: &Arc<Waker>) {}
}

/// Real time.
#[derive(Debug)]
pub struct WallClock {
    zero: Instant,
    wrong: ClockError,
}

/// Error of a clock, for tests.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[doc(hidden)]
pub struct ClockError {
    /// Offset at its start.
    pub ahead: Nanoseconds,
    /// Relative drift: 0.0001 are 100 ppm.
    pub drift: f64,
}

impl WallClock {
    /// Starts at zero now.
    #[expect(clippy::disallowed_methods, reason = "this is the one place that asks the system clock")]
    pub fn new() -> Self {
        Self { zero: Instant::now(), wrong: ClockError::default() }
    }

    /// Creates a clock with an error.
    pub(crate) fn wrong(wrong: ClockError) -> Self {
        Self { wrong, ..Self::new() }
    }
}

impl Default for WallClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for WallClock {
    fn now(&self) -> Nanoseconds {
        let elapsed = self.zero.elapsed().as_nanos() as Nanoseconds;
        elapsed + self.wrong.ahead + (elapsed as f64 * self.wrong.drift) as Nanoseconds
    }

    fn real_time_until(&self, deadline: Nanoseconds) -> Option<Duration> {
        Some(Duration::from_nanos((deadline - self.now()).max(0) as u64))
    }
}

/// Real time stretched by a factor: with factor 4, four real seconds are one second of the run.
#[derive(Debug)]
pub struct DilatedClock {
    wall: WallClock,
    factor: f64,
}

impl DilatedClock {
    /// A clock that runs `factor` times slower than real time; `factor` must be positive.
    pub fn new(factor: f64) -> Self {
        assert!(factor > 0.0, "a dilation factor is positive");
        Self { wall: WallClock::new(), factor }
    }
}

impl Clock for DilatedClock {
    fn now(&self) -> Nanoseconds {
        (self.wall.now() as f64 / self.factor) as Nanoseconds
    }

    fn real_time_until(&self, deadline: Nanoseconds) -> Option<Duration> {
        Some(Duration::from_nanos(((deadline - self.now()).max(0) as f64 * self.factor) as u64))
    }

    fn dilation(&self) -> f64 {
        self.factor
    }
}

/// A clock that can be set to the time of a continued run, once, before its first use.
#[derive(Debug)]
pub(crate) struct AdjustedClock {
    inner: Arc<dyn Clock>,
    /// Added to the time of `inner`.
    shift: AtomicI64,
}

impl AdjustedClock {
    pub(crate) fn new(inner: Arc<dyn Clock>) -> Self {
        Self { inner, shift: AtomicI64::new(0) }
    }

    /// Sets the run's time to `now`.
    pub(crate) fn set(&self, now: Nanoseconds) {
        self.shift.store(now - self.inner.now(), Ordering::Release);
    }
}

impl Clock for AdjustedClock {
    fn now(&self) -> Nanoseconds {
        self.inner.now() + self.shift.load(Ordering::Acquire)
    }

    fn real_time_until(&self, deadline: Nanoseconds) -> Option<Duration> {
        self.inner.real_time_until(deadline - self.shift.load(Ordering::Acquire))
    }

    fn on_jump(&self, waker: &Arc<Waker>) {
        self.inner.on_jump(waker);
    }

    fn dilation(&self) -> f64 {
        self.inner.dilation()
    }
}

/// Time that moves only on command; for tests.
#[derive(Debug, Default)]
pub struct ManualClock {
    now: Mutex<Nanoseconds>,
    wakers: Mutex<Vec<Weak<Waker>>>,
}

impl ManualClock {
    /// Starts at zero.
    pub fn new() -> Self {
        Self::default()
    }

    /// Moves time forward.
    pub fn advance(&self, by: Nanoseconds) {
        *self.now.lock().unwrap_or_else(PoisonError::into_inner) += by;
        self.wakers.lock().unwrap_or_else(PoisonError::into_inner).retain(|waker| match waker.upgrade() {
            Some(waker) => {
                waker.wake();
                true
            }
            None => false,
        });
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Nanoseconds {
        *self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn real_time_until(&self, deadline: Nanoseconds) -> Option<Duration> {
        (deadline <= self.now()).then_some(Duration::ZERO)
    }

    fn on_jump(&self, waker: &Arc<Waker>) {
        self.wakers.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(waker));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dilated_time_runs_slower_than_wall_time() {
        let clock = DilatedClock::new(1000.0);
        let real = clock.real_time_until(clock.now() + 1_000_000).expect("runs by itself");
        assert!(real > Duration::from_millis(900), "{real:?}");
    }

    #[test]
    fn manual_time_wakes_who_waits() {
        let clock = ManualClock::new();
        let waker = Arc::new(Waker::new().expect("eventfd"));
        clock.on_jump(&waker);
        assert_eq!(clock.real_time_until(10), None);
        clock.advance(10);
        assert!(waker.clear());
        assert_eq!(clock.real_time_until(10), Some(Duration::ZERO));
    }
}
