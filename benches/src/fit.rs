//! Least-squares lines.

/// Fits a line to points: intercept, slope, and the explained share of the variance.
pub(crate) fn line(points: &[(f64, f64)]) -> (f64, f64, f64) {
    let count = points.len().max(1) as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let sum = |of: &dyn Fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>();
    let spread = sum(&|point| (point.0 - x).powi(2));
    if spread <= 0.0 {
        return (y, 0.0, 1.0);
    }
    let slope = sum(&|point| (point.0 - x) * (point.1 - y)) / spread;
    let begin = y - slope * x;
    let all = sum(&|point| (point.1 - y).powi(2));
    let left = sum(&|point| (point.1 - begin - slope * point.0).powi(2));
    (begin, slope, if all > 0.0 { 1.0 - left / all } else { 1.0 })
}

#[cfg(test)]
mod tests {
    use super::line;

    #[test]
    fn a_line_is_found_again() {
        let (begin, slope, explained) = line(&[(10.0, 25.0), (50.0, 105.0), (100.0, 205.0)]);
        assert!((begin - 5.0).abs() < 1e-9 && (slope - 2.0).abs() < 1e-9 && explained > 0.999_999);
        let (_, _, explained) = line(&[(1.0, 1.0), (2.0, 4.0), (3.0, 9.0), (4.0, 16.0)]);
        assert!(explained < 0.99, "{explained}");
        assert_eq!(line(&[(3.0, 7.0)]), (7.0, 0.0, 1.0));
    }
}
