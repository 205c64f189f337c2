//! The clock of this crate: patience, ages and rates of a cluster are real time.
use std::time::Instant;

#[expect(clippy::disallowed_methods, reason = "peers are waited for in real time")]
pub(crate) fn instant() -> Instant {
    Instant::now()
}
