//! Formats numbers for people, with units.
pub use tidemill_profiler::statistics::{wilson_percent, wilson_percent_of};

/// Milliseconds with three digits and a unit: `0.12 ms`, `840 ms`, `12.4 s`.
pub fn milliseconds(value: f64) -> String {
    let shown = value + 0.0; // none of `-0.00`
    match if shown.abs() < 0.005 { 0.0 } else { shown } {
        v if v >= 10_000.0 => format!("{:.1} s", v / 1e3),
        v if v >= 100.0 => format!("{v:.0} ms"),
        v if v >= 10.0 => format!("{v:.1} ms"),
        v => format!("{v:.2} ms"),
    }
}

/// A short time in nanoseconds: `4.2 us`, `0.12 ms`, `840 ms`, `12.4 s`.
pub fn duration(nanoseconds: f64) -> String {
    if nanoseconds < 1e5 { format!("{:.1} us", nanoseconds / 1e3) } else { milliseconds(nanoseconds / 1e6) }
}

/// Formats records per second; below one with two digits, because even one record per minute counts.
pub fn rate(value: f64) -> String {
    match value {
        v if v >= 1000.0 => format!("{} /s", grouped(v.round() as u64)),
        v if v > 0.0 && v < 0.995 => format!("{} /s", two_digits(v)),
        v => format!("{v:.1} /s"),
    }
}

/// `0.5`, `0.25`, `0.017`: a number between 0 and 1.
fn two_digits(value: f64) -> String {
    let places = (1.0 - value.log10().floor()).clamp(2.0, 9.0) as usize;
    let text = format!("{value:.places$}");
    match text.trim_end_matches('0') {
        "0." => "0.0".to_owned(),
        digits => digits.to_owned(),
    }
}

/// A time in seconds: `23 ms`, `3.2 s`, `2 min 5 s`, `24 h`.
pub fn seconds(value: f64) -> String {
    if value < 0.95 {
        return format!("{:.0} ms", value * 1e3);
    }
    if value < 100.0 {
        return format!("{value:.1} s");
    }
    let whole = value.round() as u64;
    let parts = [(whole / 3600, "h"), (whole / 60 % 60, "min"), (whole % 60, "s")];
    let parts = parts.iter().filter(|(count, _)| *count > 0).map(|(count, unit)| format!("{count} {unit}"));
    parts.collect::<Vec<_>>().join(" ")
}

/// A count with a thin structure: `1 234 567`.
pub fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// A large count with a suffix: `452 k`, `136 M`.
pub fn short(value: u64) -> String {
    scaled(value as f64, 1000.0, &["", " k", " M", " G", " T"])
}

/// Bytes: `12 B`, `1.8 MiB`.
pub fn bytes(value: u64) -> String {
    scaled(value as f64, 1024.0, &[" B", " KiB", " MiB", " GiB", " TiB"])
}

/// Formats bytes per second that something carries, as [`bytes`] does: `196 KiB/s`.
pub fn traffic(value: f64) -> String {
    format!("{}/s", bytes(value.round().max(0.0) as u64))
}

/// Formats the speed of a transfer, bytes per second in decimal units as those of links: `0.84 kB/s`, `1.25 GB/s`.
pub fn speed(value: f64) -> String {
    let (scale, unit) = match value {
        v if v >= 1e9 => (1e9, "GB/s"),
        v if v >= 1e6 => (1e6, "MB/s"),
        _ => (1e3, "kB/s"),
    };
    format!("{:.2} {unit}", value / scale)
}

/// Formats the rate of a link, bits per second with up to three digits, as files have it: `1.25 Gbps`.
pub fn bandwidth(bits: f64) -> String {
    let units = [(1e12, "Tbps"), (1e9, "Gbps"), (1e6, "Mbps"), (1e3, "kbps")];
    let (value, unit) = units
        .iter()
        .find(|(unit, _)| bits >= unit * 0.9995)
        .map_or((bits, "bps"), |(unit, name)| (bits / unit, *name));
    let places = if value < 9.995 && unit != "bps" { 2 } else { usize::from(value < 99.95 && unit != "bps") };
    format!("{value:.places$} {unit}")
}

fn scaled(mut value: f64, step: f64, suffixes: &[&str]) -> String {
    let mut at = 0;
    while value >= step && at + 1 < suffixes.len() {
        value /= step;
        at += 1;
    }
    let places = usize::from(at > 0 && value < 10.0);
    format!("{value:.places$}{}", suffixes[at])
}

/// `7.4850 $/h`.
pub fn dollars(value: f64) -> String {
    format!("{:.4} $/h", if value.abs() < 5e-5 { 0.0 } else { value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!(milliseconds(0.1234), "0.12 ms");
        assert_eq!(milliseconds(45.67), "45.7 ms");
        assert_eq!(milliseconds(12_345.0), "12.3 s");
        assert_eq!(grouped(1_234_567), "1 234 567");
        assert_eq!(short(451_680), "452 k");
        assert_eq!(bytes(1_900_000), "1.8 MiB");
        assert_eq!(seconds(125.2), "2 min 5 s");
        assert_eq!([600.0, 5400.0, 86_400.0].map(seconds), ["10 min", "1 h 30 min", "24 h"]);
        assert_eq!(seconds(3601.0), "1 h 1 s");
    }

    #[test]
    fn speeds_of_slow_networks_are_no_zeros() {
        assert_eq!(
            [0.0, 840.0, 6.25e4, 1.5e6, 1.25e9].map(speed),
            ["0.00 kB/s", "0.84 kB/s", "62.50 kB/s", "1.50 MB/s", "1.25 GB/s"]
        );
        assert_eq!(
            [0.0, 999.0, 1e3, 12.34e6, 999.9e6, 1.25e9].map(bandwidth),
            ["0 bps", "999 bps", "1.00 kbps", "12.3 Mbps", "1.00 Gbps", "1.25 Gbps"]
        );
        assert_eq!([-1.0, 0.4, 2_500_000.0].map(traffic), ["0 B/s", "0 B/s", "2.4 MiB/s"]);
    }

    #[test]
    fn slow_rates_are_no_zeros() {
        let slow = [0.5, 0.0999, 0.0167, 1.0 / 86_400.0].map(rate);
        assert_eq!(slow, ["0.5 /s", "0.1 /s", "0.017 /s", "0.000012 /s"]);
        let edges = [0.0, 1e-12, 0.994, 0.996, 1.0, 999.9, 1000.0].map(rate);
        assert_eq!(edges, ["0.0 /s", "0.0 /s", "0.99 /s", "1.0 /s", "1.0 /s", "999.9 /s", "1 000 /s"]);
    }
}
