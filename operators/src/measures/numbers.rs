//! Mean absolute error and root mean square error of numbers.
//!
//! Sums are exact, whatever the order of the rows. A prediction that is empty, NaN or infinite has no error;
//! such rows are counted beside the others.
use crate::relational::exact_sum::ExactSum;
use serde::{Deserialize, Serialize};

/// Errors of numbers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct NumberMeasures {
    /// Mean of the distances from the true numbers; 0 if no row was judged.
    pub mean_absolute_error: f64,
    /// Square root of the mean of their squares.
    pub root_mean_square_error: f64,
    /// Judged rows.
    pub judged: u64,
    /// Rows without a number, which are not judged.
    pub without_number: u64,
}

/// The errors so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NumberTally {
    distances: ExactSum,
    squares: ExactSum,
    judged: u64,
    without_number: u64,
}

impl NumberTally {
    /// Counts a row.
    pub(crate) fn count(&mut self, truth: f64, found: Option<f64>) {
        match found.filter(|found| found.is_finite()) {
            Some(found) => {
                let distance = (found - truth).abs();
                self.distances.add(distance);
                self.squares.add(distance * distance);
                self.judged += 1;
            }
            None => self.without_number += 1,
        }
    }

    pub(crate) fn add(&mut self, later: &Self) {
        self.distances.merge(&later.distances);
        self.squares.merge(&later.squares);
        self.judged += later.judged;
        self.without_number += later.without_number;
    }

    pub(crate) fn measures(&self) -> Option<NumberMeasures> {
        (self.judged + self.without_number > 0).then(|| {
            let mean = |sum: &ExactSum| if self.judged == 0 { 0.0 } else { sum.mean(self.judged) };
            NumberMeasures {
                mean_absolute_error: mean(&self.distances),
                root_mean_square_error: mean(&self.squares).sqrt(),
                judged: self.judged,
                without_number: self.without_number,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of scikit-learn 1.9: `mean_absolute_error`, `root_mean_squared_error`.
    #[test]
    fn as_scikit_learn() {
        let truth = [3.0, -0.5, 2.0, 7.0, 1e6];
        let found = [2.5, 0.0, 2.0, 8.0, 1e6 - 3.25];
        let (mut first, mut second) = (NumberTally::default(), NumberTally::default());
        for (row, (truth, found)) in truth.into_iter().zip(found).enumerate() {
            if row % 2 == 0 { &mut first } else { &mut second }.count(truth, Some(found));
        }
        second.count(1.0, None);
        second.count(1.0, Some(f64::NAN));
        first.add(&second);
        let measures = first.measures().unwrap();
        assert!((measures.mean_absolute_error - 1.05).abs() < 1e-12, "{measures:?}");
        assert!((measures.root_mean_square_error - 1.553_222_456_700_906_8).abs() < 1e-12, "{measures:?}");
        assert_eq!((measures.judged, measures.without_number), (5, 2));
        assert_eq!(NumberTally::default().measures(), None);
    }
}
