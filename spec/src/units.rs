//! Values with units, as users write them: `40/s`, `250ms`, `0.096 $/h`, `0.1 $/GiB`, `10Mbps`, `0.3GiB`, `56.0%`,
//! `p99`.
//!
//! `GB` is 10^9 bytes, `GiB` is 2^30. A number without a unit is rejected, with a correction. `Display` gives the
//! shortest exact form; parsing it gives an equal value.
//!
//! ```
//! use tidemill_spec::units::{Bytes, Rate, SoundLength, TimeSpan};
//! assert_eq!("0.25s".parse(), Ok(TimeSpan(250_000_000)));
//! assert_eq!(TimeSpan(250_000_000).to_string(), "250ms");
//! assert_eq!("30fps".parse(), Ok(Rate(30.0)));
//! assert_eq!("64MiB".parse(), Ok(Bytes(64 << 20)));
//! assert_eq!("512 samples".parse(), Ok(SoundLength::Samples(512)));
//! let error = "40".parse::<Rate>().unwrap_err();
//! assert_eq!(error.to_string(), "`40` has no unit");
//! assert_eq!(error.help, "write `40/s`");
//! ```
mod amount;
mod codec;
mod parse;
mod print;

pub(crate) use parse::shown;
use serde::{Deserialize, Serialize};

/// A quantity of data in bytes. Written `64MiB`, `1.5GB`, `300kB`, `12B`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bytes(pub u64);

/// A length of time in nanoseconds. Written `250ms`, `10s`, `1.5min`, `20us`, `0s`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct TimeSpan(pub u64);

/// A length of sound: a time, or a number of samples. Written `80ms`, `1280 samples`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SoundLength {
    /// This long, at any rate.
    Time(TimeSpan),
    /// So many samples.
    Samples(u64),
}

/// Events per second. Written `40/s`, `30fps`, `1200/min`, `10/h`.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Default)]
pub struct Rate(pub f64);

/// A percentage, 0 to 100. Written `56.0%`.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Default)]
pub struct Percent(pub f64);

/// Dollars per hour. Written `0.096 $/h` or `$0.096/h`.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Default)]
pub struct HourlyPrice(pub f64);

/// Dollars per byte. Written `0.1 $/GiB`, `$0.09/GB`.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Default)]
pub struct TransferPrice(pub f64);

/// Bits per second. Written `10Mbps`, `1Gbps`, `56kbps`, `12.5MB/s`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bandwidth(pub u64);

/// A percentile of a distribution, 0 < p < 100. Written `p99`, `p99.9`.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Default)]
pub struct Percentile(pub f64);

/// A text that is no value of the unit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct UnitError {
    /// The problem.
    pub message: String,
    /// The correction.
    pub help: String,
}
