//! Predicts boxes: a Kalman filter whose state is the centre, width and height of the box and their velocities
//! (constant velocity), with the noise of BoT-SORT (Aharon, Orfaig, Bobrovsky 2022, section 3.1): standard deviations
//! in proportion to the box's width (for horizontal numbers) and height (for vertical ones).
//!
//! None of the matrices of that filter connects two of the four numbers, so it is four filters of a number and its
//! velocity each, with equal results and without matrices.
use crate::bounding_box::BoundingBox;
use serde::{Deserialize, Serialize};

/// Standard deviation of a place, as a share of the box's side: process and measurement.
const PLACE: f64 = 1.0 / 20.0;
/// Standard deviation of a velocity per frame, as a share of the box's side: process and measurement.
const VELOCITY: f64 = 1.0 / 160.0;

/// A number with its velocity, and their variances.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Moving {
    value: f64,
    /// Per frame.
    velocity: f64,
    /// Variance of the value, their covariance, variance of the velocity.
    variance: [f64; 3],
}

impl Moving {
    fn new(value: f64, side: f64) -> Self {
        let (place, velocity) = (2.0 * PLACE * side, 10.0 * VELOCITY * side);
        Self { value, velocity: 0.0, variance: [place * place, 0.0, velocity * velocity] }
    }

    fn predict(&mut self, side: f64) {
        let (place, velocity) = (PLACE * side, VELOCITY * side);
        let [value, both, rate] = self.variance;
        self.value += self.velocity;
        self.variance = [value + 2.0 * both + rate + place * place, both + rate, rate + velocity * velocity];
    }

    fn correct(&mut self, measured: f64, side: f64) {
        let [value, both, rate] = self.variance;
        let noise = PLACE * side;
        let total = value + noise * noise;
        if total <= 0.0 {
            // A box without width: no uncertainty is left.
            (self.value, self.velocity) = (measured, 0.0);
            return;
        }
        let gains = (value / total, both / total);
        let surprise = measured - self.value;
        self.value += gains.0 * surprise;
        self.velocity += gains.1 * surprise;
        self.variance = [value - gains.0 * value, both - gains.0 * both, rate - gains.1 * both];
    }
}

/// The filter of one box.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BoxFilter {
    x: Moving,
    y: Moving,
    width: Moving,
    height: Moving,
}

impl BoxFilter {
    /// Creates a filter from one box, assumed to stand still.
    pub fn new(first: &BoundingBox) -> Self {
        let ((x, y), (width, height)) = (first.centre(), (first.width, first.height));
        Self {
            x: Moving::new(x, width),
            y: Moving::new(y, height),
            width: Moving::new(width, width),
            height: Moving::new(height, height),
        }
    }

    /// Advances one frame. An unseen box keeps its size (`keeps_size`), as nothing shows its change.
    pub fn predict(&mut self, keeps_size: bool) {
        if keeps_size {
            (self.width.velocity, self.height.velocity) = (0.0, 0.0);
        }
        let (width, height) = (self.width.value.abs(), self.height.value.abs());
        self.x.predict(width);
        self.y.predict(height);
        self.width.predict(width);
        self.height.predict(height);
    }

    /// Corrects the filter by the box seen in this frame.
    pub fn correct(&mut self, seen: &BoundingBox) {
        let (x, y) = seen.centre();
        let (width, height) = (self.width.value.abs(), self.height.value.abs());
        self.x.correct(x, width);
        self.y.correct(y, height);
        self.width.correct(seen.width, width);
        self.height.correct(seen.height, height);
    }

    /// Returns the estimated box.
    pub fn estimate(&self) -> BoundingBox {
        BoundingBox::around(self.x.value, self.y.value, self.width.value.max(0.0), self.height.value.max(0.0))
    }

    /// Returns the velocity in pixels per frame, to the right and downwards.
    pub fn velocity(&self) -> (f64, f64) {
        (self.x.velocity, self.y.velocity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_velocity_is_learnt() {
        let at = |frame: u32| {
            BoundingBox::around(10.0 + 3.0 * f64::from(frame), 50.0 - f64::from(frame), 20.0, 10.0)
        };
        let mut filter = BoxFilter::new(&at(0));
        for frame in 1..60 {
            filter.predict(false);
            filter.correct(&at(frame));
        }
        let (x, y) = filter.velocity();
        assert!((x - 3.0).abs() < 1e-3 && (y + 1.0).abs() < 1e-3, "{x} {y}");
        for _ in 0..5 {
            filter.predict(true);
        }
        assert!(filter.estimate().overlap(&at(64)) > 0.95);
    }

    /// Compares with one filter of eight numbers with full matrices.
    #[test]
    fn four_filters_are_the_one_of_the_paper() {
        type Matrix = [[f64; 8]; 8];
        let product = |a: &Matrix, b: &Matrix| {
            let mut c = [[0.0; 8]; 8];
            for i in 0..8 {
                for j in 0..8 {
                    for k in 0..8 {
                        c[i][j] += a[i][k] * b[k][j];
                    }
                }
            }
            c
        };
        let transposed = |a: &Matrix| {
            let mut c = [[0.0; 8]; 8];
            for i in 0..8 {
                for j in 0..8 {
                    c[i][j] = a[j][i];
                }
            }
            c
        };
        let boxes =
            [(10.0, 20.0, 8.0, 4.0), (11.0, 20.5, 8.2, 4.1), (13.0, 20.0, 7.9, 4.4), (14.0, 19.0, 8.4, 4.0)];
        let mut filter = BoxFilter::new(&BoundingBox::around(10.0, 20.0, 8.0, 4.0));
        let mut state = [10.0, 20.0, 8.0, 4.0, 0.0, 0.0, 0.0, 0.0];
        let mut covariance = [[0.0; 8]; 8];
        for i in 0..4 {
            let side = [8.0, 4.0, 8.0, 4.0][i];
            covariance[i][i] = (2.0 * PLACE * side) * (2.0 * PLACE * side);
            covariance[i + 4][i + 4] = (10.0 * VELOCITY * side) * (10.0 * VELOCITY * side);
        }
        let mut motion = [[0.0; 8]; 8];
        for i in 0..8 {
            motion[i][i] = 1.0;
            if i < 4 {
                motion[i][i + 4] = 1.0;
            }
        }
        for (x, y, width, height) in &boxes[1..] {
            let sides = [state[2], state[3], state[2], state[3]];
            let mut next = [0.0; 8];
            for i in 0..8 {
                for j in 0..8 {
                    next[i] += motion[i][j] * state[j];
                }
            }
            state = next;
            covariance = product(&product(&motion, &covariance), &transposed(&motion));
            for i in 0..4 {
                covariance[i][i] += (PLACE * sides[i]).powi(2);
                covariance[i + 4][i + 4] += (VELOCITY * sides[i]).powi(2);
            }
            let sides = [state[2], state[3], state[2], state[3]];
            // Measurements of single numbers with independent noise may be taken one after another.
            for (i, seen) in [*x, *y, *width, *height].into_iter().enumerate() {
                let total = covariance[i][i] + (PLACE * sides[i]).powi(2);
                let gain: Vec<f64> = (0..8).map(|j| covariance[j][i] / total).collect();
                let surprise = seen - state[i];
                let row = covariance[i];
                for j in 0..8 {
                    state[j] += gain[j] * surprise;
                    for k in 0..8 {
                        covariance[j][k] -= gain[j] * row[k];
                    }
                }
            }
            filter.predict(false);
            filter.correct(&BoundingBox::around(*x, *y, *width, *height));
            let found = [filter.x, filter.y, filter.width, filter.height];
            for i in 0..4 {
                assert!((found[i].value - state[i]).abs() < 1e-9);
                assert!((found[i].velocity - state[i + 4]).abs() < 1e-9);
                let expected = [covariance[i][i], covariance[i][i + 4], covariance[i + 4][i + 4]];
                assert!(found[i].variance.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-9));
            }
        }
    }
}
