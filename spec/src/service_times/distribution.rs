//! The distribution of one kind of call.
mod quantiles;

use super::Knowledge;
pub use quantiles::Quantiles;

/// Time of a call, in seconds.
#[derive(Debug, Clone, PartialEq)]
pub enum Distribution {
    /// Always the mean, because no more is known.
    Mean(f64),
    /// Measured quantiles.
    Quantiles(Quantiles),
    /// Named percentiles (part from 0 to 1, seconds), ascending, at least two; linear between them.
    Percentiles(Vec<(f64, f64)>),
    /// Exponentially distributed with this mean: for comparisons with queueing theory.
    Exponential(f64),
}

impl Distribution {
    /// Creates a distribution from evenly spaced quantiles from the least to the largest and from named percentiles
    /// (part from 0 to 1, seconds), with the measured mean: see [`Quantiles::new`]. None for fewer than two quantiles.
    pub fn of_points(points: &[f64], named: &[(f64, f64)], mean: Option<f64>) -> Option<Self> {
        Quantiles::new(points, named, mean).map(Self::Quantiles)
    }

    /// Creates a distribution from named percentiles (part from 0 to 1, seconds). Above the highest, times stay there.
    /// Below the lowest they fall linearly so that the mean is the measured one, as far as that is possible without
    /// negative times; a factor corrects the rest. Without a mean they stay at the lowest. None without a percentile.
    pub fn of_percentiles(known: &[(f64, f64)], mean: Option<f64>) -> Option<Self> {
        let (&(lowest, first), &(_, last)) = (known.first()?, known.last()?);
        let mut points = vec![(0.0, first)];
        points.extend(known.iter().copied().filter(|(part, _)| *part > 0.0));
        points.push((1.0, last));
        let mut of = Self::Percentiles(points);
        if let (Some(mean), Self::Percentiles(points)) = (mean, &mut of) {
            let without = area(&points[1..]);
            // The line from the least time to the lowest percentile has to supply the rest.
            let least = if lowest > 0.0 { 2.0 * (mean - without) / lowest - first } else { first };
            points[0].1 = least.clamp(0.0, first);
            let factor = mean / area(points);
            if factor.is_finite() {
                points.iter_mut().for_each(|(_, time)| *time *= factor);
            }
        }
        Some(of)
    }

    /// Returns the seconds at a quantile from 0 to 1.
    pub fn at(&self, part: f64) -> f64 {
        match self {
            Self::Mean(mean) => *mean,
            Self::Quantiles(quantiles) => quantiles.at(part),
            Self::Percentiles(points) => line(points, part),
            Self::Exponential(mean) => -mean * (1.0 - part).ln(),
        }
    }

    /// Returns the mean seconds.
    pub fn mean(&self) -> f64 {
        match self {
            Self::Mean(mean) | Self::Exponential(mean) => *mean,
            Self::Quantiles(quantiles) => quantiles.mean(),
            Self::Percentiles(points) => area(points),
        }
    }

    /// Returns the detail.
    pub fn knowledge(&self) -> Knowledge {
        match self {
            Self::Mean(_) => Knowledge::Mean,
            Self::Percentiles(_) => Knowledge::Percentiles,
            Self::Quantiles(_) | Self::Exponential(_) => Knowledge::Distribution,
        }
    }
}

/// The value of a piecewise linear function of parts, with at least two points.
fn line(points: &[(f64, f64)], part: f64) -> f64 {
    let after = points.partition_point(|(known, _)| *known <= part).clamp(1, points.len() - 1);
    let ((low, from), (high, to)) = (points[after - 1], points[after]);
    let weight = if high > low { (part - low) / (high - low) } else { 0.0 };
    from + weight * (to - from)
}

/// The integral of a piecewise linear function of parts.
fn area(points: &[(f64, f64)]) -> f64 {
    points.windows(2).map(|pair| (pair[1].0 - pair[0].0) * 0.5 * (pair[0].1 + pair[1].1)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-12
    }

    #[test]
    fn the_mean_is_kept() {
        let points = Distribution::of_points(&[1.0, 2.0, 6.0], &[], Some(3.3)).unwrap();
        assert!(close(points.mean(), 3.3) && close(points.at(0.5), 2.0) && close(points.at(1.0), 6.0));
        let known = [(0.5, 10.0), (0.75, 12.0), (0.9, 15.0)];
        let named = Distribution::of_percentiles(&known, Some(10.5)).unwrap();
        assert!(close(named.mean(), 10.5) && close(named.at(0.9), 15.0) && close(named.at(1.0), 15.0));
        assert!(named.at(0.0) < 10.0);
        // A larger mean than the percentiles allow stretches all of them.
        let stretched = Distribution::of_percentiles(&known, Some(20.0)).unwrap();
        assert!(close(stretched.mean(), 20.0) && stretched.at(0.5) > 10.0);
    }

    #[test]
    fn quantiles_lie_on_straight_lines() {
        let points = Distribution::of_points(&[1.0, 2.0, 6.0], &[], None).unwrap();
        assert_eq!([0.0, 0.25, 0.5, 0.75, 1.0].map(|part| points.at(part)), [1.0, 1.5, 2.0, 4.0, 6.0]);
        let named = Distribution::of_percentiles(&[(0.5, 10.0), (0.9, 18.0)], None).unwrap();
        assert_eq!(
            [0.0, 0.5, 0.7, 0.95].map(|part| (named.at(part) * 1e9).round() / 1e9),
            [10.0, 10.0, 14.0, 18.0]
        );
        assert!(Distribution::of_points(&[1.0], &[], None).is_none());
        assert!(Distribution::of_percentiles(&[], Some(1.0)).is_none());
    }

    #[test]
    fn the_exponential_has_its_median() {
        assert!(close(Distribution::Exponential(2.0).at(0.5), 2.0 * 2f64.ln()));
    }
}
