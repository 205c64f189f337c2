//! Steps on vectors of scores.

/// The logistic function `1 / (1 + exp(-x))`.
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// Turns each vector of `width` values into probabilities.
pub fn softmax(values: &mut [f32], width: usize) {
    for row in values.chunks_exact_mut(width.max(1)) {
        // The largest is subtracted first so that no exponential overflows.
        let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut sum = 0.0;
        for value in row.iter_mut() {
            *value = (*value - largest).exp();
            sum += *value;
        }
        for value in row {
            *value /= sum;
        }
    }
}

/// Divides each vector of `width` values by its Euclidean length; a vector of zeros stays.
pub fn l2_norm(values: &mut [f32], width: usize) {
    for row in values.chunks_exact_mut(width.max(1)) {
        let length = row.iter().map(|value| value * value).sum::<f32>().sqrt();
        if length > 0.0 {
            row.iter_mut().for_each(|value| *value /= length);
        }
    }
}

/// Index of the largest value, the first of equal ones; NaN is never the largest. 0 for no values.
pub fn argmax(values: &[f32]) -> usize {
    let mut best = 0;
    let mut largest = f32::NEG_INFINITY;
    for (i, value) in values.iter().enumerate() {
        if *value > largest {
            (best, largest) = (i, *value);
        }
    }
    best
}

/// Positions of the `k` largest values, largest first, of equal ones the first; NaN comes last.
pub fn top(values: &[f32], k: usize) -> Vec<usize> {
    let mut positions: Vec<usize> = (0..values.len()).collect();
    let order = |a: &usize, b: &usize| {
        let key = |at: usize| if values[at].is_nan() { f32::NEG_INFINITY } else { values[at] };
        key(*b).total_cmp(&key(*a)).then(a.cmp(b))
    };
    if k > 0 && k < positions.len() {
        positions.select_nth_unstable_by(k - 1, order);
        positions.truncate(k);
    }
    positions.sort_unstable_by(order);
    positions.truncate(k);
    positions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_add_up() {
        let mut values = [1.0, 1.0, 1000.0, 0.0];
        softmax(&mut values, 2);
        assert_eq!(values, [0.5, 0.5, 1.0, 0.0]);
    }

    #[test]
    fn lengths_become_one() {
        let mut values = [3.0, 4.0, 0.0, 0.0];
        l2_norm(&mut values, 2);
        assert_eq!(values, [0.6, 0.8, 0.0, 0.0]);
    }

    #[test]
    fn the_first_largest_wins() {
        assert_eq!(argmax(&[1.0, 3.0, 3.0]), 1);
        assert_eq!(argmax(&[f32::NAN, -1.0]), 1);
        assert_eq!(argmax(&[]), 0);
    }

    #[test]
    fn the_best_come_first() {
        assert_eq!(top(&[0.1, 0.5, f32::NAN, 0.5, 0.3], 3), [1, 3, 4]);
        assert_eq!(top(&[0.1, f32::NAN], 5), [0, 1]);
        assert!(top(&[1.0], 0).is_empty());
    }
}
