//! Civil time, to the second, as in certificates and for people.
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use chrono::{DateTime, NaiveDate, Utc};
use rustls::pki_types::UnixTime;
use serde::{Deserialize, Serialize};

/// A second of civil time (UTC). Everything that depends on the time takes it as an argument, so that tests decide
/// what time it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(u64);

/// The last second of the year 9999, after which certificates have no dates.
const LAST: u64 = 253_402_300_799;

impl Timestamp {
    /// Returns the time this number of seconds after the beginning of 1970; a time after the year 9999 becomes its
    /// end.
    pub const fn from_unix(seconds: u64) -> Self {
        Self(if seconds > LAST { LAST } else { seconds })
    }

    /// Seconds since the beginning of 1970.
    pub const fn as_unix(self) -> u64 {
        self.0
    }

    /// Reads the clock of this machine. No function of this crate calls it: callers do, and pass it on.
    #[allow(
        clippy::disallowed_methods,
        reason = "certificates live in civil time, which engine clocks do not know"
    )]
    pub fn now() -> Self {
        Self::from(SystemTime::now())
    }

    /// Returns the time `duration` later, at most the end of the year 9999.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        Self::from_unix(self.0.saturating_add(duration.as_secs()))
    }

    /// Returns the time `duration` earlier, at least the beginning of 1970.
    #[must_use]
    pub fn before(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(duration.as_secs()))
    }

    /// Returns the time since an earlier time; zero when that is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_secs(self.0.saturating_sub(earlier.0))
    }

    /// The beginning of a second of the Gregorian calendar, if there is such a one since 1970.
    pub(crate) fn of_date(date: [u32; 3], time: [u32; 3]) -> Option<Self> {
        let [year, month, day] = date;
        let date = NaiveDate::from_ymd_opt(i32::try_from(year).ok()?, month, day)?;
        let moment = date.and_hms_opt(time[0], time[1], time[2])?.and_utc();
        Some(Self::from_unix(u64::try_from(moment.timestamp()).ok()?))
    }
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        Self::from_unix(time.duration_since(UNIX_EPOCH).map_or(0, |passed| passed.as_secs()))
    }
}

impl From<Timestamp> for UnixTime {
    fn from(time: Timestamp) -> Self {
        Self::since_unix_epoch(Duration::from_secs(time.0))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let date = i64::try_from(self.0).ok().and_then(|seconds| DateTime::<Utc>::from_timestamp(seconds, 0));
        match date {
            Some(date) => write!(f, "{}", date.format("%Y-%m-%d %H:%M:%S UTC")),
            None => write!(f, "second {} of 1970", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_dates() {
        assert_eq!(Timestamp::from_unix(951_782_401).to_string(), "2000-02-29 00:00:01 UTC");
        assert_eq!(Timestamp::from_unix(u64::MAX).to_string(), "9999-12-31 23:59:59 UTC");
        let date = Timestamp::of_date([2000, 2, 29], [0, 0, 1]);
        assert_eq!(date, Some(Timestamp::from_unix(951_782_401)));
        assert_eq!(Timestamp::of_date([2001, 2, 29], [0, 0, 1]), None);
        assert_eq!(Timestamp::of_date([1969, 12, 31], [0, 0, 1]), None);
    }

    #[test]
    fn times_stay_within_the_calendar() {
        let time = Timestamp::from_unix(100);
        assert_eq!(time.before(Duration::from_secs(200)).as_unix(), 0);
        assert_eq!(time.after(Duration::MAX).as_unix(), LAST);
        assert_eq!(time.since(Timestamp::from_unix(40)), Duration::from_secs(60));
        assert_eq!(time.since(Timestamp::from_unix(140)), Duration::ZERO);
    }
}
