//! Updates of parameters by a mean gradient.
use crate::number::Real;
use serde::{Deserialize, Serialize};

/// An update. `g` is the sum of the gradients of all workers, divided by the divisor of the tensor.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Rule {
    /// The values become `g`: for losses, and sums of statistics.
    Sum,
    /// `v = momentum * v - rate * g; p = p + v`. Without momentum it is plain gradient descent.
    Momentum {
        /// The rate of learning.
        rate: f64,
        /// The part of the last change that is added, from 0 on and below 1.
        momentum: f64,
    },
    /// Adam (Kingma and Ba, 2015, algorithm 1).
    Adam {
        /// The rate of learning.
        rate: f64,
        /// Decay of the mean.
        beta1: f64,
        /// Decay of the mean square.
        beta2: f64,
        /// A small number against divisions by 0.
        epsilon: f64,
    },
}

impl Rule {
    /// Adam with the numbers that its authors give.
    pub fn adam(rate: f64) -> Self {
        Self::Adam { rate, beta1: 0.9, beta2: 0.999, epsilon: 1e-8 }
    }

    /// Returns the numbers beside each value that the next update needs.
    pub fn moments(self) -> usize {
        match self {
            Self::Sum => 0,
            Self::Momentum { .. } => 1,
            Self::Adam { .. } => 2,
        }
    }

    /// Returns what is wrong with it, if anything.
    pub fn fault(self) -> Option<&'static str> {
        let is_part = |part: f64| (0.0..1.0).contains(&part);
        match self {
            Self::Momentum { rate, .. } | Self::Adam { rate, .. } if !(rate > 0.0 && rate.is_finite()) => {
                Some("the rate is above 0")
            }
            Self::Momentum { momentum, .. } if !is_part(momentum) => {
                Some("the momentum is from 0 on and below 1")
            }
            Self::Adam { beta1, beta2, .. } if !is_part(beta1) || !is_part(beta2) => {
                Some("beta1 and beta2 are from 0 on and below 1")
            }
            Self::Adam { epsilon, .. } if !(epsilon > 0.0 && epsilon.is_finite()) => {
                Some("epsilon is above 0")
            }
            _ => None,
        }
    }

    /// Changes values by a mean gradient; `version` counts the updates before this one.
    ///
    /// ```
    /// use tidemill_aggregation_service::rule::Rule;
    /// let (mut values, mut moments) = ([1.0], vec![vec![0.0]]);
    /// let rule = Rule::Momentum { rate: 0.1, momentum: 0.9 };
    /// rule.update(0, &mut values, &mut moments, [1.0].into_iter());
    /// assert_eq!((values, moments), ([0.9], vec![vec![-0.1]]));
    /// ```
    pub fn update<T: Real>(
        self,
        version: u64,
        values: &mut [T],
        moments: &mut [Vec<T>],
        mean: impl Iterator<Item = T>,
    ) {
        match (self, moments) {
            (Self::Sum, _) => values.iter_mut().zip(mean).for_each(|(value, mean)| *value = mean),
            (Self::Momentum { rate, momentum }, [velocity, ..]) => {
                let (rate, momentum) = (T::of(rate), T::of(momentum));
                for ((value, velocity), mean) in values.iter_mut().zip(velocity).zip(mean) {
                    *velocity = momentum * *velocity - rate * mean;
                    *value = *value + *velocity;
                }
            }
            (Self::Adam { rate, beta1, beta2, epsilon }, [first, second, ..]) => {
                let step = i32::try_from(version + 1).unwrap_or(i32::MAX);
                let of_first = T::of(1.0 - beta1.powi(step));
                let of_second = T::of(1.0 - beta2.powi(step));
                let (rate, epsilon) = (T::of(rate), T::of(epsilon));
                let (own1, new1) = (T::of(beta1), T::of(1.0 - beta1));
                let (own2, new2) = (T::of(beta2), T::of(1.0 - beta2));
                let each = values.iter_mut().zip(first.iter_mut().zip(second)).zip(mean);
                for ((value, (first, second)), mean) in each {
                    *first = own1 * *first + new1 * mean;
                    *second = own2 * *second + new2 * mean * mean;
                    *value = *value - rate * (*first / of_first) / ((*second / of_second).root() + epsilon);
                }
            }
            // A tensor is made with the moments of its rule.
            (Self::Momentum { .. } | Self::Adam { .. }, _) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first step of Adam has the size of the rate, whatever the gradient is.
    #[test]
    fn adam_follows_its_authors() {
        let rule = Rule::adam(0.01);
        for gradient in [3.0, -0.002] {
            let (mut values, mut moments) = ([1.0], vec![vec![0.0], vec![0.0]]);
            rule.update(0, &mut values, &mut moments, [gradient].into_iter());
            assert!((values[0] - (1.0 - 0.01 * f64::signum(gradient))).abs() < 1e-6, "{values:?}");
            assert!((moments[0][0] - 0.1 * gradient).abs() < 1e-12);
            assert!((moments[1][0] - 0.001 * gradient * gradient).abs() < 1e-12);
        }
    }

    #[test]
    fn wrong_numbers_are_named() {
        assert_eq!(Rule::adam(0.1).fault(), None);
        assert!(Rule::adam(0.0).fault().unwrap().contains("rate"));
        assert!(Rule::Momentum { rate: 0.1, momentum: 1.0 }.fault().unwrap().contains("momentum"));
        assert!(Rule::Adam { rate: 0.1, beta1: 0.9, beta2: 2.0, epsilon: 1.0 }.fault().is_some());
    }
}
