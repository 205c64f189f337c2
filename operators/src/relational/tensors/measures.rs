//! Numbers computed from the values of one tensor or of two.
//!
//! All sums are of float64, in the order of the values. A NaN makes `sum`, `mean`, `norm`, `dot`, `cosine`
//! and
//! `distance` NaN, as in IEEE 754; it has no place in an order, so `max`, `min`, `argmax`, `argmin`, `top_k` and
//! `top_positions` fail.
use crate::relational::typing::Kind;
use tidemill_spec::types::ElementType;

/// A number computed from one tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reduction {
    Max,
    Min,
    Sum,
    Mean,
    Norm,
    ArgMax,
    ArgMin,
}

impl Reduction {
    const ALL: [Self; 7] =
        [Self::Max, Self::Min, Self::Sum, Self::Mean, Self::Norm, Self::ArgMax, Self::ArgMin];

    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reduction| reduction.name() == name)
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Max => "max",
            Self::Min => "min",
            Self::Sum => "sum",
            Self::Mean => "mean",
            Self::Norm => "norm",
            Self::ArgMax => "argmax",
            Self::ArgMin => "argmin",
        }
    }

    /// Whether it is a position in a tensor of one dimension.
    pub(super) const fn is_position(self) -> bool {
        matches!(self, Self::ArgMax | Self::ArgMin)
    }

    /// Whether it needs a value.
    pub(super) const fn needs_values(self) -> bool {
        !matches!(self, Self::Sum | Self::Norm)
    }

    /// Type of the result. Largest, least and sum of whole numbers are whole.
    pub(super) fn kind(self, element: ElementType) -> Kind {
        match self {
            Self::ArgMax | Self::ArgMin => Kind::Int,
            Self::Max | Self::Min | Self::Sum if element.is_integer() => Kind::Int,
            _ => Kind::Float,
        }
    }

    /// Returns a result that is a float.
    pub(super) fn of_floats(self, values: &[f64], shown: &str) -> Result<f64, String> {
        Ok(match self {
            Self::Max | Self::Min | Self::ArgMax | Self::ArgMin => {
                let position = self.position(values, shown)?;
                values.get(position as usize).copied().ok_or("the tensor has no values")?
            }
            Self::Sum => total(values.iter().copied()),
            Self::Mean => total(values.iter().copied()) / values.len() as f64,
            Self::Norm => norm(values),
        })
    }

    /// Returns a result of whole numbers that is one.
    pub(super) fn of_ints(self, values: &[i64]) -> Result<i64, String> {
        let position = |best: Option<&i64>| values.iter().position(|value| Some(value) == best);
        let found = match self {
            Self::Max => values.iter().max().copied(),
            Self::Min => values.iter().min().copied(),
            Self::ArgMax => position(values.iter().max()).map(|at| at as i64),
            Self::ArgMin => position(values.iter().min()).map(|at| at as i64),
            Self::Sum | Self::Mean | Self::Norm => {
                let sum: i128 = values.iter().copied().map(i128::from).sum();
                return i64::try_from(sum).map_err(|_| "the result does not fit into int64".to_owned());
            }
        };
        found.ok_or_else(|| "the tensor has no values".to_owned())
    }

    /// The position of the largest (for `min` and `argmin`: least) float; the first of equal ones.
    pub(super) fn position(self, values: &[f64], shown: &str) -> Result<i64, String> {
        let least = matches!(self, Self::Min | Self::ArgMin);
        let mut best = 0;
        for (at, value) in values.iter().enumerate() {
            if value.is_nan() {
                return Err(not_ordered(at, shown));
            }
            if if least { *value < values[best] } else { *value > values[best] } {
                best = at;
            }
        }
        Ok(best as i64)
    }
}

/// The reason of a row whose values have no order.
pub(super) fn not_ordered(at: usize, shown: &str) -> String {
    format!("value {at} of `{shown}` is NaN, which is neither larger nor smaller than another")
}

/// The positions of the `k` largest values, the largest first; of equal ones the first.
pub(super) fn largest(values: &[f64], k: usize, shown: &str) -> Result<Vec<usize>, String> {
    if let Some(at) = values.iter().position(|value| value.is_nan()) {
        return Err(not_ordered(at, shown));
    }
    Ok(largest_by(values.len(), k, |a, b| {
        values[b].partial_cmp(&values[a]).unwrap_or(std::cmp::Ordering::Equal)
    }))
}

/// As [`largest`], of whole numbers, which a float could not tell apart.
pub(super) fn largest_whole(values: &[i64], k: usize) -> Vec<usize> {
    largest_by(values.len(), k, |a, b| values[b].cmp(&values[a]))
}

fn largest_by(count: usize, k: usize, order: impl Fn(usize, usize) -> std::cmp::Ordering) -> Vec<usize> {
    let mut places: Vec<usize> = (0..count).collect();
    let order = |a: &usize, b: &usize| order(*a, *b).then(a.cmp(b));
    if k < count {
        places.select_nth_unstable_by(k, order);
        places.truncate(k);
    }
    places.sort_unstable_by(order);
    places
}

/// A number computed from two tensors of one shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pair {
    Dot,
    Cosine,
    Distance,
}

impl Pair {
    const ALL: [Self; 3] = [Self::Dot, Self::Cosine, Self::Distance];

    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|pair| pair.name() == name)
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Dot => "dot",
            Self::Cosine => "cosine",
            Self::Distance => "distance",
        }
    }

    pub(super) fn of(self, a: &[f64], b: &[f64]) -> Result<f64, String> {
        match self {
            Self::Dot => Ok(dot(a, b)),
            Self::Cosine => {
                let lengths = (norm(a), norm(b));
                if lengths.0 == 0.0 || lengths.1 == 0.0 {
                    return Err("`cosine` of a tensor of zeros, which has no direction".to_owned());
                }
                // Rounding must not make an angle of nothing.
                Ok((dot(a, b) / lengths.0 / lengths.1).clamp(-1.0, 1.0))
            }
            Self::Distance => Ok(total(a.iter().zip(b).map(|(a, b)| (a - b) * (a - b))).sqrt()),
        }
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    total(a.iter().zip(b).map(|(a, b)| a * b))
}

/// The sum; `Iterator::sum` of nothing is -0.0.
fn total(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(0.0, |sum, value| sum + value)
}

fn norm(values: &[f64]) -> f64 {
    dot(values, values).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of NumPy 2.4: `v.max()`, `v.sum()`, `v.mean()`, `np.linalg.norm(v)`, `v.argmax()`,
    /// `v.argmin()`.
    #[test]
    fn one_tensor_as_numpy() {
        let values = [0.25, -1.5, 3.0, 0.125, 3.0, -1.5];
        for (name, expected) in [
            ("max", 3.0),
            ("min", -1.5),
            ("sum", 3.375),
            ("mean", 0.5625),
            ("norm", 4.751644452187053),
            ("argmax", 3.0),
            ("argmin", -1.5),
        ] {
            let found = Reduction::named(name).unwrap().of_floats(&values, "v").unwrap();
            assert!((found - expected).abs() < 1e-14, "{name}: {found}");
        }
        assert_eq!(Reduction::ArgMax.position(&values, "v"), Ok(2));
        assert_eq!(Reduction::ArgMin.position(&values, "v"), Ok(1));
        assert_eq!(Reduction::ArgMax.of_ints(&[1, i64::MAX, i64::MAX - 1]), Ok(1));
        assert_eq!(Reduction::Sum.of_ints(&[i64::MAX, 1, -1]), Ok(i64::MAX));
        assert!(Reduction::Sum.of_ints(&[i64::MAX, 1]).is_err());
    }

    /// Values of NumPy 2.4: `a @ b`, `a @ b / norm(a) / norm(b)`, `np.linalg.norm(a - b)`.
    #[test]
    fn two_tensors_as_numpy() {
        let (a, b) = ([0.5, -2.0, 1.0], [3.0, 0.25, -1.5]);
        for (name, expected) in
            [("dot", -0.5), ("cosine", -0.06488003216752793), ("distance", 4.190763653560053)]
        {
            let found = Pair::named(name).unwrap().of(&a, &b).unwrap();
            assert!((found - expected).abs() < 1e-14, "{name}: {found}");
        }
        assert_eq!(Pair::Cosine.of(&a, &a), Ok(1.0));
        assert!(Pair::Cosine.of(&a, &[0.0; 3]).unwrap_err().contains("no direction"));
    }

    #[test]
    fn nan_has_no_place_in_an_order() {
        let values = [0.5, f64::NAN, 1.0];
        for order in [Reduction::Max, Reduction::Min, Reduction::ArgMax] {
            assert!(order.position(&values, "v").unwrap_err().contains("value 1 of `v` is NaN"));
        }
        assert!(largest(&values, 1, "v").is_err());
        assert!(Reduction::Mean.of_floats(&values, "v").unwrap().is_nan());
    }

    #[test]
    fn the_largest_come_in_order_and_equal_ones_by_position() {
        let values = [0.1, 0.7, 0.7, -3.0, 0.9, 0.0, -0.0];
        assert_eq!(largest(&values, 3, "v"), Ok(vec![4, 1, 2]));
        assert_eq!(largest(&values, 7, "v"), Ok(vec![4, 1, 2, 0, 5, 6, 3]));
        assert_eq!(largest_whole(&[1, (1 << 53) + 1, 1 << 53], 2), [1, 2]);
    }
}
