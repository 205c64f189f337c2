//! Prints values as the shortest text that parses back to an equal value.
use super::amount::Amount;
use super::parse::{BANDWIDTH, BYTES, TIME, Units};
use super::{Bandwidth, Bytes, HourlyPrice, Percent, Percentile, Rate, SoundLength, TimeSpan, TransferPrice};
use std::fmt;

/// The shortest exact form; the larger unit if two are equally short.
fn quantity(f: &mut fmt::Formatter<'_>, value: u64, units: Units, zero: &str) -> fmt::Result {
    let forms = units.iter().filter_map(|(name, size)| Some(format!("{}{name}", Amount::of(value, *size)?)));
    // Only zero is less than one of the smallest unit.
    f.pad(&forms.min_by_key(String::len).unwrap_or_else(|| format!("0{zero}")))
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        quantity(f, self.0, BYTES, "B")
    }
}

impl fmt::Display for TimeSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        quantity(f, self.0, TIME, "s")
    }
}

impl fmt::Display for SoundLength {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Time(time) => time.fmt(f),
            Self::Samples(1) => f.pad("1 sample"),
            Self::Samples(count) => f.pad(&format!("{count} samples")),
        }
    }
}

impl fmt::Display for Bandwidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        quantity(f, self.0, BANDWIDTH, "bps")
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}/s", self.0))
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}%", self.0))
    }
}

impl fmt::Display for HourlyPrice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{} $/h", self.0))
    }
}

impl fmt::Display for Percentile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("p{}", self.0))
    }
}

impl fmt::Display for TransferPrice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Scaling by 2^30 is exact, so the second form always parses back; the first does for prices per GB.
        let per_gb = format!("{} $/GB", self.0 * 1e9);
        let per_gib = format!("{} $/GiB", self.0 * f64::from(1 << 30));
        let exact = per_gb.parse() == Ok(*self);
        f.pad(if exact && per_gb.len() <= per_gib.len() { &per_gb } else { &per_gib })
    }
}
