//! The clock of this machine: timeouts of programs and machines are real time.
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

#[expect(clippy::disallowed_methods, reason = "patience with other programs is real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Time since the start of 1970.
#[expect(clippy::disallowed_methods, reason = "the clocks of machines are compared")]
pub(crate) fn civil() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
