//! Values with units.
/// A quantity of data in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bytes(pub u64);
/// A length of time in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct TimeSpan(pub u64);
/// Events per second.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Default)]
pub struct Rate(pub f64);
/// A percentage, 0 to 100.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Default)]
pub struct Percent(pub f64);
/// Dollars per hour.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Default)]
pub struct HourlyPrice(pub f64);
/// A percentile of a distribution, 0 < p < 100; written `p99`.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Default)]
pub struct Percentile(pub f64);
