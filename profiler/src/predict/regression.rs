//! The two small fits that predictions need.

/// Returns the coefficients, none below 0, with the least sum of squares of `1 - row * coefficients / value`: relative
/// errors count, so that short times are fitted as well as long ones. Cyclic coordinate descent finds the minimum because
/// the problem is convex.
///
/// ```
/// use tidemill_profiler::predict::regression::nonnegative_relative_fit;
/// let rows = [vec![1.0, 10.0], vec![1.0, 20.0], vec![1.0, 40.0]];
/// let fit = nonnegative_relative_fit(&rows, &[7.0, 12.0, 22.0]);
/// assert!((fit[0] - 2.0).abs() < 1e-6 && (fit[1] - 0.5).abs() < 1e-6);
/// ```
pub fn nonnegative_relative_fit(rows: &[Vec<f64>], values: &[f64]) -> Vec<f64> {
    let columns = rows.first().map_or(0, Vec::len);
    let divided = |(row, value): (&Vec<f64>, &f64)| row.iter().map(|x| x / value).collect();
    let relative: Vec<Vec<f64>> = rows.iter().zip(values).map(divided).collect();
    let product = |a: usize, b: usize| relative.iter().map(|row| row[a] * row[b]).sum::<f64>();
    let gram: Vec<Vec<f64>> = (0..columns).map(|a| (0..columns).map(|b| product(a, b)).collect()).collect();
    let target: Vec<f64> = (0..columns).map(|a| relative.iter().map(|row| row[a]).sum()).collect();
    let mut fit = vec![0.0; columns];
    for _ in 0..20_000 {
        let mut moved = 0.0f64;
        for a in 0..columns {
            if gram[a][a] <= 0.0 {
                continue;
            }
            let others: f64 = (0..columns).filter(|b| *b != a).map(|b| gram[a][b] * fit[b]).sum();
            let next = ((target[a] - others) / gram[a][a]).max(0.0);
            moved = moved.max((next - fit[a]).abs() * gram[a][a].sqrt());
            fit[a] = next;
        }
        if moved < 1e-12 {
            break;
        }
    }
    fit
}

/// Returns the slope with the least sum of squares of `value - slope * row`; `None` if the rows do not determine it.
pub fn slope(rows: &[f64], values: &[f64]) -> Option<f64> {
    let squares: f64 = rows.iter().map(|row| row * row).sum();
    let products: f64 = rows.iter().zip(values).map(|(row, value)| row * value).sum();
    const SOME: f64 = 1e-9;
    (squares > SOME).then(|| products / squares)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_slope_of_rows_that_say_something() {
        assert_eq!(slope(&[2.0, -2.0], &[1.0, -1.0]), Some(0.5));
        assert_eq!((slope(&[0.0, 0.0], &[1.0, 2.0]), slope(&[], &[])), (None, None));
    }

    proptest! {
        /// No coefficient below 0, and no small step along a coefficient is better.
        #[test]
        fn nothing_near_is_better(
            rows in prop::collection::vec(prop::collection::vec(0.1..10.0f64, 3), 4..12),
            truth in [0.0..3.0f64, 0.0..3.0, 0.0..3.0],
            noise in prop::collection::vec(0.5..2.0f64, 12),
        ) {
            let values: Vec<f64> = rows
                .iter()
                .zip(&noise)
                .map(|(row, noise)| (0.1 + row.iter().zip(truth).map(|(x, c)| x * c).sum::<f64>()) * noise)
                .collect();
            let loss = |fit: &[f64]| -> f64 {
                let of = |(row, value): (&Vec<f64>, &f64)| {
                    (1.0 - row.iter().zip(fit).map(|(x, c)| x * c).sum::<f64>() / value).powi(2)
                };
                rows.iter().zip(&values).map(of).sum()
            };
            let fit = nonnegative_relative_fit(&rows, &values);
            let least = loss(&fit);
            for place in 0..3 {
                prop_assert!(fit[place] >= 0.0);
                for step in [-1e-3, 1e-3] {
                    let mut other = fit.clone();
                    other[place] = (other[place] + step).max(0.0);
                    prop_assert!(loss(&other) >= least - 1e-9, "{fit:?} {other:?}");
                }
            }
        }
    }
}
