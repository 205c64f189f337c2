//! `grpc-timeout`: at most eight digits and a unit.

use std::time::Duration;

const UNITS: &[(char, u128)] = &[
    ('n', 1),
    ('u', 1_000),
    ('m', 1_000_000),
    ('S', 1_000_000_000),
    ('M', 60_000_000_000),
    ('H', 3_600_000_000_000),
];

const MOST: u128 = 99_999_999;

/// Text of a timeout in the finest unit that has room for it, rounded up.
pub(crate) fn encoded(timeout: Duration) -> String {
    for (unit, nanoseconds) in UNITS {
        let number = timeout.as_nanos().div_ceil(*nanoseconds);
        if number <= MOST {
            return format!("{number}{unit}");
        }
    }
    format!("{MOST}H")
}

/// Reads a timeout; none if the text is not one.
pub(crate) fn decoded(text: &[u8]) -> Option<Duration> {
    let (unit, digits) = text.split_last()?;
    let (_, nanoseconds) = UNITS.iter().find(|(name, _)| *name == char::from(*unit))?;
    if !(1..=8).contains(&digits.len()) || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    let total = u128::from(number) * nanoseconds;
    Some(Duration::new(u64::try_from(total / 1_000_000_000).ok()?, (total % 1_000_000_000) as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_survive_their_encoding() {
        let known = [
            (Duration::ZERO, "0n"),
            (Duration::from_millis(99), "99000000n"),
            (Duration::from_secs(1), "1000000u"),
        ];
        for (timeout, text) in known {
            assert_eq!(encoded(timeout), text);
            assert_eq!(decoded(text.as_bytes()), Some(timeout));
        }
        assert_eq!(encoded(Duration::new(100, 1)), "100001m");
        assert_eq!(encoded(Duration::MAX), "99999999H");
        assert_eq!(decoded(b"99999999H"), Some(Duration::from_secs(99_999_999 * 3_600)));
    }

    proptest::proptest! {
        #![proptest_config(proptest::test_runner::Config { failure_persistence: None, ..Default::default() })]

        #[test]
        fn any_timeout_is_written_a_little_longer_at_most(seconds: u64, nanoseconds in 0..1_000_000_000_u32) {
            let timeout = Duration::new(seconds % 100_000_000 * 3_600, nanoseconds);
            let text = encoded(timeout);
            let read = decoded(text.as_bytes()).unwrap();
            let most = UNITS.iter().find(|(name, _)| text.ends_with(*name)).unwrap().1;
            assert!(text.len() <= 9 && (text.ends_with('H') || read >= timeout));
            assert!(read.as_nanos() < timeout.as_nanos() + most, "{timeout:?} as {text}");
        }

        #[test]
        fn any_bytes_are_a_timeout_or_none(bytes: Vec<u8>, text in "[0-9]{0,9}[numSMH]?") {
            decoded(&bytes);
            let is_one = (2..=9).contains(&text.len()) && !text.ends_with(|end: char| end.is_ascii_digit());
            assert_eq!(decoded(text.as_bytes()).is_some(), is_one, "{text}");
        }
    }

    #[test]
    fn other_texts_are_no_timeouts() {
        for text in ["", "1", "S", "+1S", "-1S", "1.5S", "123456789n", "1s", "1 S", "½S"] {
            assert_eq!(decoded(text.as_bytes()), None, "{text}");
        }
    }
}
