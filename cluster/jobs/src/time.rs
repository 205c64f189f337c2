//! Points and lengths of time, in whole milliseconds, so that sums are exact.
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::{Add, Sub};
use tidemill_spec::units::TimeSpan;

/// A length of time, or a point of time after an origin that the caller chooses: the start of a simulation, or of a controller's epoch.
/// Milliseconds. Subtraction stops at zero.
///
/// ```
/// use tidemill_jobs::Time;
/// assert_eq!((Time::of_seconds(150) + Time(500)).to_string(), "150.5s");
/// assert_eq!(Time(1) - Time(2), Time::ZERO);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Time(pub u64);

impl Time {
    /// No time, or the origin.
    pub const ZERO: Self = Self(0);

    /// Converts whole seconds.
    pub const fn of_seconds(seconds: u64) -> Self {
        Self(seconds.saturating_mul(1000))
    }

    /// Returns the seconds.
    pub fn seconds(self) -> f64 {
        self.0 as f64 / 1e3
    }
}

impl Add for Time {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl Sub for Time {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

/// Parts of a millisecond are rounded up.
impl From<TimeSpan> for Time {
    fn from(span: TimeSpan) -> Self {
        Self(span.0.div_ceil(1_000_000))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        TimeSpan(self.0.saturating_mul(1_000_000)).fmt(f)
    }
}
