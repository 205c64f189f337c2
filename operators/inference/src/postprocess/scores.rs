//! Steps on vectors of scores, with the precision of their type.
use std::ops::{Add, Div, Mul, Neg, Sub};

/// A floating-point type in which steps compute.
pub trait Real:
    Copy
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
{
    /// 0.
    const ZERO: Self;
    /// 1.
    const ONE: Self;
    /// Below all numbers.
    const LEAST: Self;
    /// The least number by which a mean divides.
    const TINY: Self;
    /// The exponential function.
    #[must_use]
    fn exp(self) -> Self;
    /// The square root.
    #[must_use]
    fn sqrt(self) -> Self;
}

macro_rules! real {
    ($real:ty) => {
        impl Real for $real {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const LEAST: Self = <$real>::NEG_INFINITY;
            const TINY: Self = 1e-9;
            fn exp(self) -> Self {
                <$real>::exp(self)
            }
            fn sqrt(self) -> Self {
                <$real>::sqrt(self)
            }
        }
    };
}

real!(f32);
real!(f64);

/// The logistic function `1 / (1 + exp(-x))`.
pub fn sigmoid<T: Real>(x: T) -> T {
    T::ONE / (T::ONE + (-x).exp())
}

/// Turns each vector of `width` values into probabilities.
pub fn softmax<T: Real>(values: &mut [T], width: usize) {
    for row in values.chunks_exact_mut(width.max(1)) {
        // The largest is subtracted first so that no exponential overflows.
        let largest =
            row.iter().copied().fold(T::LEAST, |most, value| if value > most { value } else { most });
        let mut sum = T::ZERO;
        for value in row.iter_mut() {
            *value = (*value - largest).exp();
            sum = sum + *value;
        }
        for value in row {
            *value = *value / sum;
        }
    }
}

/// Divides each vector of `width` values by its Euclidean length; a vector of zeros stays.
pub fn l2_norm<T: Real>(values: &mut [T], width: usize) {
    for row in values.chunks_exact_mut(width.max(1)) {
        let length = row.iter().fold(T::ZERO, |sum, value| sum + *value * *value).sqrt();
        if length > T::ZERO {
            row.iter_mut().for_each(|value| *value = *value / length);
        }
    }
}

/// Index of the largest value, the first of equal ones; NaN is never the largest. 0 for no values.
pub fn argmax<T: PartialOrd>(values: &[T]) -> usize {
    let mut best: Option<(usize, &T)> = None;
    for (at, value) in values.iter().enumerate() {
        if best.map_or_else(|| !is_nan(value), |(_, largest)| value > largest) {
            best = Some((at, value));
        }
    }
    best.map_or(0, |(at, _)| at)
}

/// Positions of the `k` largest values, largest first, of equal ones the first; NaN comes last.
pub fn top<T: PartialOrd>(values: &[T], k: usize) -> Vec<usize> {
    let mut positions: Vec<usize> = (0..values.len()).collect();
    let order = |a: &usize, b: &usize| {
        let (one, other) = (&values[*a], &values[*b]);
        let numbers = other.partial_cmp(one).unwrap_or_else(|| is_nan(one).cmp(&is_nan(other)));
        numbers.then(a.cmp(b))
    };
    if k > 0 && k < positions.len() {
        positions.select_nth_unstable_by(k - 1, order);
        positions.truncate(k);
    }
    positions.sort_unstable_by(order);
    positions.truncate(k);
    positions
}

fn is_nan<T: PartialOrd>(value: &T) -> bool {
    value.partial_cmp(value).is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_add_up() {
        let mut values = [1.0f32, 1.0, 1000.0, 0.0];
        softmax(&mut values, 2);
        assert_eq!(values, [0.5, 0.5, 1.0, 0.0]);
    }

    #[test]
    fn lengths_become_one() {
        let mut values = [3.0f32, 4.0, 0.0, 0.0];
        l2_norm(&mut values, 2);
        assert_eq!(values, [0.6, 0.8, 0.0, 0.0]);
    }

    #[test]
    fn the_first_largest_wins() {
        assert_eq!(argmax(&[1.0, 3.0, 3.0]), 1);
        assert_eq!(argmax(&[f32::NAN, -1.0]), 1);
        assert_eq!(argmax::<f32>(&[]), 0);
        assert_eq!(argmax(&[1.0, 1.000_000_000_1, 0.5]), 1, "64 bits");
        assert_eq!(argmax(&[16_777_216i64, 16_777_217, 0]), 1);
    }

    #[test]
    fn the_best_come_first() {
        assert_eq!(top(&[0.1, 0.5, f32::NAN, 0.5, 0.3], 3), [1, 3, 4]);
        assert_eq!(top(&[0.1, f32::NAN], 5), [0, 1]);
        assert!(top(&[1.0], 0).is_empty());
        assert_eq!(top(&[f64::NEG_INFINITY, f64::NAN, 1.0], 3), [2, 0, 1]);
    }
}
