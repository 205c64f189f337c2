//! Deadlines.
use std::time::{Duration, Instant};

/// A moment by which something must be done.
#[derive(Clone, Copy)]
pub(crate) struct Deadline(Instant);

impl Deadline {
    /// Returns the deadline `timeout` from now.
    pub(crate) fn after(timeout: Duration) -> Self {
        Self(now() + timeout)
    }

    /// Returns the time that is left.
    pub(crate) fn left(self) -> Duration {
        self.0.saturating_duration_since(now())
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "patience with a peer is real time, whatever the clock of the run is"
)]
fn now() -> Instant {
    Instant::now()
}
