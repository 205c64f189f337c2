//! Maps values to places of a drawing, and selects the labelled values of an axis.

/// An axis: a range of values over a range of places.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Axis {
    values: (f64, f64),
    places: (f64, f64),
    is_logarithmic: bool,
}

impl Axis {
    /// Creates an axis with equal steps for equal differences.
    pub fn linear(values: (f64, f64), places: (f64, f64)) -> Self {
        Self { values, places, is_logarithmic: false }
    }

    /// Creates an axis with equal steps for equal factors; both ends of the values are above 0.
    pub fn logarithmic(values: (f64, f64), places: (f64, f64)) -> Self {
        Self { values, places, is_logarithmic: true }
    }

    /// Returns the place of a value; on a logarithmic axis, values below its start are at its start. The middle for a
    /// range without extent.
    pub fn place(&self, value: f64) -> f64 {
        let (low, high) = self.values;
        let part = match self.is_logarithmic {
            _ if high <= low => 0.5,
            true => (value.max(low) / low).ln() / (high / low).ln(),
            false => (value - low) / (high - low),
        };
        self.places.0 + part * (self.places.1 - self.places.0)
    }
}

/// Returns values at even, round steps within a range, at most `most` and one.
pub fn ticks(low: f64, high: f64, most: usize) -> Vec<f64> {
    let rough = (high - low).max(f64::MIN_POSITIVE) / most as f64;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0].map(|factor| factor * power);
    let step = step.into_iter().find(|step| *step >= rough * (1.0 - 1e-9)).unwrap_or(10.0 * power);
    let first = (low / step - 1e-9).ceil() as i64;
    let last = (high / step + 1e-9).floor() as i64;
    (first..=last).map(|count| count as f64 * step).collect()
}

/// Returns 1, 2 and 5 times the powers of ten within a range above 0.
pub fn decades(low: f64, high: f64) -> Vec<f64> {
    let powers = low.log10().floor() as i32..=high.log10().ceil() as i32;
    let all = powers.flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10f64.powi(power)));
    all.filter(|value| (low * 0.999..=high * 1.001).contains(value)).collect()
}

/// Returns the next 1, 2 or 5 times a power of ten.
pub fn round_up(value: f64) -> f64 {
    let decade = 10f64.powf(value.log10().floor());
    let factor = [1.0, 2.0, 5.0].into_iter().find(|factor| factor * decade >= value * 0.999_999);
    factor.unwrap_or(10.0) * decade
}

/// Formats a value of an axis with as few digits as it needs.
pub fn short(value: f64) -> String {
    let rounded = (value * 1e6).round() / 1e6;
    if rounded.abs() >= 10_000.0 { format!("{}k", rounded / 1000.0) } else { format!("{rounded}") }
}

/// Formats a value at a grid line with its digits: `0.02`, `-5`, `2e7`.
pub fn few_digits(value: f64) -> String {
    // Lines are even steps of one digit; further digits are rounding errors.
    let rounded = format!("{value:.8e}").parse::<f64>().unwrap_or(value);
    match rounded.abs() {
        0.0 => "0".to_owned(),
        size if (1e-4..1e7).contains(&size) => rounded.to_string(),
        _ => format!("{rounded:e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_within_the_range() {
        assert_eq!(ticks(0.0, 10.0, 5), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(ticks(54.0, 58.4, 5), [54.0, 55.0, 56.0, 57.0, 58.0]);
        assert_eq!(ticks(0.0, 0.7, 4), [0.0, 0.2, 0.4, 0.6000000000000001]);
        assert_eq!(decades(0.004, 0.975), [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5]);
        assert_eq!((round_up(0.3), round_up(0.5), round_up(51.0)), (0.5, 0.5, 100.0));
        assert_eq!([0.6000000000000001, 2400.0, 20_000.0].map(short), ["0.6", "2400", "20k"]);
    }

    #[test]
    fn lines_of_a_grid_are_told_by_their_digits() {
        let texts = [0.0, -0.0, 0.600_000_000_000_000_1, 0.002, -2500.0, 3e-6, 2e7].map(few_digits);
        assert_eq!(texts, ["0", "0", "0.6", "0.002", "-2500", "3e-6", "2e7"]);
    }

    #[test]
    fn values_have_their_places() {
        let even = Axis::linear((10.0, 20.0), (300.0, 100.0));
        assert_eq!([10.0, 15.0, 20.0].map(|value| even.place(value)), [300.0, 200.0, 100.0]);
        let factors = Axis::logarithmic((0.01, 100.0), (0.0, 4.0));
        assert!((factors.place(1.0) - 2.0).abs() < 1e-12);
        assert_eq!(factors.place(0.0), 0.0, "what costs nothing has a place too");
        assert_eq!(Axis::linear((3.0, 3.0), (0.0, 4.0)).place(3.0), 2.0);
    }
}
