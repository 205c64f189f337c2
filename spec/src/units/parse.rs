//! Text to values.
use super::amount::Amount;
use super::{
    Bandwidth, Bytes, HourlyPrice, Percent, Percentile, Rate, SoundLength, TimeSpan, TransferPrice, UnitError,
};
use crate::diagnostic::nearest;
use std::str::FromStr;

/// Names of units with their size in base units.
pub(super) type Units = &'static [(&'static str, u64)];

/// Units of data, in bytes.
pub(super) const BYTES: Units = &[
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("B", 1),
];

/// Units of time, in nanoseconds.
pub(super) const TIME: Units = &[
    ("h", 3_600_000_000_000),
    ("min", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

/// Days, accepted but not printed.
const DAYS: Units = &[("d", 86_400_000_000_000)];

/// Units of bandwidth, in bits per second.
pub(super) const BANDWIDTH: Units =
    &[("Tbps", 1_000_000_000_000), ("Gbps", 1_000_000_000), ("Mbps", 1_000_000), ("kbps", 1_000), ("bps", 1)];

/// Bandwidth in bytes, accepted but not printed.
const BYTE_BANDWIDTH: Units = &[
    ("GiB/s", 8 << 30),
    ("MiB/s", 8 << 20),
    ("KiB/s", 8 << 10),
    ("GB/s", 8_000_000_000),
    ("MB/s", 8_000_000),
    ("kB/s", 8_000),
    ("B/s", 8),
];

/// Units of rate, in seconds.
const RATE: &[(&str, f64)] = &[("/s", 1.0), ("fps", 1.0), ("/min", 60.0), ("/h", 3600.0)];

fn error<T>(message: String, help: impl Into<String>) -> Result<T, UnitError> {
    Err(UnitError { message, help: help.into() })
}

/// Common spellings of units elsewhere.
const OTHER_NAMES: &[(&str, &str)] = &[
    ("sec", "s"),
    ("secs", "s"),
    ("second", "s"),
    ("seconds", "s"),
    ("msec", "ms"),
    ("msecs", "ms"),
    ("millis", "ms"),
    ("milliseconds", "ms"),
    ("usec", "us"),
    ("\u{b5}s", "us"),
    ("\u{3bc}s", "us"),
    ("m", "min"),
    ("mins", "min"),
    ("minute", "min"),
    ("minutes", "min"),
    ("hr", "h"),
    ("hour", "h"),
    ("hours", "h"),
    ("day", "d"),
    ("days", "d"),
    ("Hz", "/s"),
    ("hz", "/s"),
    ("/sec", "/s"),
    ("/second", "/s"),
    ("per second", "/s"),
    ("rps", "/s"),
    ("qps", "/s"),
    ("/m", "/min"),
    ("/minute", "/min"),
    ("/hour", "/h"),
    ("Ki", "KiB"),
    ("Mi", "MiB"),
    ("Gi", "GiB"),
    ("K", "kB"),
    ("k", "kB"),
    ("M", "MB"),
    ("G", "GB"),
    ("Mbit/s", "Mbps"),
    ("Gbit/s", "Gbps"),
    ("percent", "%"),
];

/// Shortens `text` for messages.
pub(crate) fn shown(text: &str) -> String {
    if text.chars().count() <= 60 {
        text.to_string()
    } else {
        text.chars().take(60).chain("...".chars()).collect()
    }
}

/// Splits into the number and the rest.
fn split<'a>(text: &'a str, what: &str, example: &str) -> Result<(&'a str, &'a str), UnitError> {
    let text = text.trim();
    if text.starts_with('-') {
        return error(
            format!("`{}` is negative", shown(text)),
            format!("write {what} of 0 or more, such as `{example}`"),
        );
    }
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    if end == 0 {
        return error(
            format!("`{}` is not {what}", shown(text)),
            format!("write a number and a unit, such as `{example}`"),
        );
    }
    if let Some(length) = exponent(&text[end..]) {
        let number = &text[..end + length];
        // In full where that is readable.
        let full = number.parse::<f64>().ok().map(|value| value.to_string()).filter(|full| full.len() <= 20);
        return error(
            format!("`{}` has an exponent, which numbers with a unit cannot have", shown(text)),
            match full {
                Some(full) => format!("write `{full}` for `{number}`"),
                None => format!("write all digits, as in `{example}`"),
            },
        );
    }
    Ok((&text[..end], text[end..].trim_start()))
}

/// Bytes of the exponent (`e6`, `E-3`) at the start of `text`; no unit looks like one.
fn exponent(text: &str) -> Option<usize> {
    let rest = text.strip_prefix(['e', 'E'])?;
    let digits = rest.strip_prefix(['+', '-']).unwrap_or(rest);
    let count = digits.bytes().take_while(u8::is_ascii_digit).count();
    (count > 0).then_some(text.len() - digits.len() + count)
}

/// A whole number of base units.
fn quantity(
    text: &str,
    units: &[Units],
    what: &str,
    likely: &[&str],
    example: &str,
) -> Result<u64, UnitError> {
    let (number, unit) = split(text, what, example)?;
    let all = || units.iter().flat_map(|part| part.iter());
    if unit.is_empty() {
        let number = shown(number);
        let written: Vec<String> = likely.iter().map(|unit| format!("`{number}{unit}`")).collect();
        return error(format!("`{number}` has no unit"), format!("write {}", written.join(" or ")));
    }
    let Some((_, size)) = all().find(|(name, _)| *name == unit) else {
        return unknown_unit(number, unit, all().map(|(name, _)| *name));
    };
    match Amount::parse(number).and_then(|amount| amount.times(*size)) {
        Some(value) => Ok(value),
        None => error(
            format!("`{}` is not a number that fits", shown(number)),
            format!("write fewer digits, such as `{example}`"),
        ),
    }
}

fn unknown_unit<'a, T>(
    number: &str,
    unit: &str,
    units: impl Iterator<Item = &'a str> + Clone,
) -> Result<T, UnitError> {
    // Upper and lower case differ in meaning (`MB`, `mb`), so a wrong case is not corrected silently.
    let other_case = units.clone().find(|name| name.eq_ignore_ascii_case(unit));
    let number = shown(number);
    let meant = OTHER_NAMES.iter().find(|(name, _)| *name == unit).map(|(_, name)| *name);
    let meant = meant.filter(|meant| units.clone().any(|name| name == *meant));
    if unit == "m" && meant == Some("min") {
        let help = format!("write `{number}min` for minutes, `{number}ms` for milliseconds");
        return error("unknown unit `m`".to_owned(), help);
    }
    let help = match meant.or(other_case).or_else(|| nearest(unit, units.clone())) {
        Some(found) => format!("did you mean `{number}{found}`?"),
        None => format!("possible units: {}", units.collect::<Vec<_>>().join(", ")),
    };
    error(format!("unknown unit `{}`", shown(unit)), help)
}

/// A float with the number's checks.
fn real(number: &str, example: &str) -> Result<f64, UnitError> {
    match number.parse::<f64>() {
        Ok(value) if value.is_finite() && number.len() <= 400 => Ok(value),
        _ => error(format!("`{}` is not a number", shown(number)), format!("write it as in `{example}`")),
    }
}

impl FromStr for Bytes {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        quantity(text, &[BYTES], "a quantity of data", &["MiB"], "64MiB").map(Bytes)
    }
}

impl FromStr for TimeSpan {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        quantity(text, &[TIME, DAYS], "a length of time", &["ms", "s"], "250ms").map(TimeSpan)
    }
}

impl FromStr for SoundLength {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let (number, unit) = split(text, "a length of sound", "1280 samples")?;
        match unit {
            "samples" | "sample" => match number.parse() {
                Ok(count) => Ok(Self::Samples(count)),
                Err(_) => error(
                    format!("`{}` is not a whole number of samples", shown(number)),
                    "write it as in `1280 samples`",
                ),
            },
            "" => {
                let number = shown(number);
                error(
                    format!("`{number}` has no unit"),
                    format!("write `{number} samples`, or a time such as `{number}ms`"),
                )
            }
            _ => text.parse().map(Self::Time).map_err(|found: UnitError| match nearest(unit, ["samples"]) {
                Some(_) => UnitError { help: format!("did you mean `{} samples`?", shown(number)), ..found },
                None => found,
            }),
        }
    }
}

impl FromStr for Bandwidth {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        quantity(text, &[BANDWIDTH, BYTE_BANDWIDTH], "a bandwidth", &["Mbps"], "10Mbps").map(Bandwidth)
    }
}

impl FromStr for Rate {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let (number, unit) = split(text, "a rate", "40/s")?;
        if unit.is_empty() {
            return error(format!("`{}` has no unit", shown(number)), format!("write `{}/s`", shown(number)));
        }
        match RATE.iter().find(|(name, _)| *name == unit) {
            Some((_, seconds)) => Ok(Rate(real(number, "40/s")? / seconds)),
            None => unknown_unit(number, unit, RATE.iter().map(|(name, _)| *name)),
        }
    }
}

impl FromStr for Percent {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let (number, unit) = split(text, "a percentage", "56.0%")?;
        match unit {
            "%" => match real(number, "56.0%")? {
                value if value <= 100.0 => Ok(Percent(value)),
                _ => error(
                    format!("`{}` is more than 100%", shown(text)),
                    "write a percentage from `0%` to `100%`",
                ),
            },
            "" => {
                let meant = match number.parse::<f64>() {
                    // A fraction is the usual mistake: 0.56 for 56%.
                    Ok(value) if number.contains('.') && value <= 1.0 => {
                        format!("`{}%`", (value * 1e11).round() / 1e9)
                    }
                    _ => format!("`{}%`", shown(number)),
                };
                error(format!("`{}` has no unit", shown(number)), format!("write {meant}"))
            }
            other => unknown_unit(number, other, ["%"].into_iter()),
        }
    }
}

impl FromStr for Percentile {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let Some(number) = text.trim().strip_prefix('p') else {
            return error(
                format!("`{}` is not a percentile", shown(text)),
                "write `p` and a number, such as `p99`",
            );
        };
        let plain = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        match number.parse::<f64>() {
            Ok(value) if plain && value > 0.0 && value < 100.0 => Ok(Percentile(value)),
            _ => error(
                format!("`{}` is not a percentile", shown(text)),
                "write a percentile between `p0` and `p100`, such as `p99` or `p99.9`",
            ),
        }
    }
}

/// The number of dollars and the unit that they pay for: `0.1 $/GiB` and `$0.1/GiB` give `(0.1, "GiB")`.
fn dollars<'a>(text: &'a str, what: &str, per: &str, example: &str) -> Result<(f64, &'a str), UnitError> {
    let text = text.trim();
    let (number, unit) = match text.strip_prefix('$') {
        Some(rest) => {
            let (number, unit) = split(rest, what, example)?;
            (number, unit.strip_prefix('/'))
        }
        None => {
            let (number, unit) = split(text, what, example)?;
            (number, unit.strip_prefix("$/"))
        }
    };
    match unit {
        Some(unit) => Ok((real(number, example)?, unit.trim())),
        None => {
            error(format!("`{}` is not {what}", shown(text)), format!("write `{} $/{per}`", shown(number)))
        }
    }
}

impl FromStr for HourlyPrice {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        match dollars(text, "a price per hour", "h", "0.096 $/h")? {
            (price, "h") => Ok(HourlyPrice(price)),
            (price, other) => error(
                format!("`{}` is not an hour", shown(other)),
                format!("write `{price} $/h`; prices of machines are per hour"),
            ),
        }
    }
}

impl FromStr for TransferPrice {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let (price, unit) = dollars(text, "a price of traffic", "GiB", "0.1 $/GiB")?;
        match BYTES.iter().find(|(name, _)| *name == unit) {
            Some((_, bytes)) => Ok(TransferPrice(price / *bytes as f64)),
            None => unknown_unit(&format!("{price} $/"), unit, BYTES.iter().map(|(name, _)| *name)),
        }
    }
}
