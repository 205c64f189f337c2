//! Exact decimal numbers: `0.3` times 2^30 must not depend on how floats round.

/// A non-negative decimal number: `digits` / 10^`places`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Amount {
    digits: u128,
    places: u32,
}

impl Amount {
    /// Reads digits with at most one point; none if it is anything else or has more than 27 digits.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let all_digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
        if whole.is_empty() || !all_digits(whole) || !all_digits(fraction) || text.ends_with('.') {
            return None;
        }
        let fraction = fraction.trim_end_matches('0');
        if whole.len() + fraction.len() > 27 {
            return None;
        }
        let digits = format!("{whole}{fraction}").parse().ok()?;
        Some(Self { digits, places: u32::try_from(fraction.len()).ok()? })
    }

    /// This amount of `unit`s, rounded to a whole number; none if it does not fit.
    pub(super) fn times(self, unit: u64) -> Option<u64> {
        let divisor = 10u128.checked_pow(self.places)?;
        let product = self.digits.checked_mul(u128::from(unit))?;
        u64::try_from((product + divisor / 2) / divisor).ok()
    }

    /// `value` in units of `unit`, if that is at least 1 and has at most 9 places.
    pub(super) fn of(value: u64, unit: u64) -> Option<String> {
        if value < unit {
            return None;
        }
        let whole = value / unit;
        let rest = u128::from(value % unit);
        if rest == 0 {
            return Some(whole.to_string());
        }
        (1..=9).find_map(|places| {
            let scaled = rest * 10u128.pow(places);
            scaled
                .is_multiple_of(u128::from(unit))
                .then(|| format!("{whole}.{:0width$}", scaled / u128::from(unit), width = places as usize))
        })
    }
}
