//! The time of sessions.
use std::sync::LazyLock;
use std::time::{Duration, Instant};

static BEGIN: LazyLock<Instant> = LazyLock::new(instant);

/// Returns the time since the first call. Patience with a path is real time, whatever the clock of a run is.
pub(crate) fn now() -> Duration {
    instant().saturating_duration_since(*BEGIN)
}

#[expect(
    clippy::disallowed_methods,
    reason = "patience with a path is real time, whatever the clock of the run is"
)]
fn instant() -> Instant {
    Instant::now()
}
