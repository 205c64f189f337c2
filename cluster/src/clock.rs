//! The clock of this crate: patience, ages and rates of a cluster are real time.
use std::time::Instant;

#[expect(clippy::disallowed_methods, reason = "peers are waited for in real time")]
pub(crate) fn instant() -> Instant {
    Instant::now()
}

/// Nanoseconds since the machine was started, the time of suspension included: a lease runs while a machine is suspended.
pub(crate) fn boot_nanoseconds() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(time.tv_nsec).unwrap_or(0))
}
