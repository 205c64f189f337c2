//! Measured quantiles: an even body, and a tail that follows the other known figures.
use super::{area, line};

/// Largest bend of a line, as a part of a full jump.
const MOST_BENT: f64 = 0.99;

/// Quantiles of measured times, linear between them. They are evenly spaced except for the last interval, the tail:
/// there the largest of some hundred times says little about the others, so named percentiles and the mean decide.
#[derive(Debug, Clone, PartialEq)]
pub struct Quantiles {
    /// Evenly spaced, from the least to the start of the tail; not empty.
    body: Vec<f64>,
    /// Intervals from 0 to 1, including the tail.
    intervals: f64,
    /// From the last of the body to the largest (part from 0 to 1, seconds), ascending, at least two.
    tail: Vec<(f64, f64)>,
}

impl Quantiles {
    /// Creates quantiles from evenly spaced ones from the least to the largest, and from named percentiles (part from 0
    /// to 1, seconds), which are kept exactly where they fit. The mean is reached by bending the tail, from its end,
    /// between its known points; where that does not suffice, by a factor on all times. None for fewer than two
    /// quantiles.
    pub fn new(points: &[f64], named: &[(f64, f64)], mean: Option<f64>) -> Option<Self> {
        let (&largest, body) = points.split_last()?;
        let (mut body, last) = (body.to_vec(), body.len().checked_sub(1)?);
        let intervals = body.len() as f64;
        for (part, time) in named {
            let place = part * intervals;
            let index = place.round() as usize;
            let is_between = || {
                let before = index.checked_sub(1).map_or(0.0, |before| body[before]);
                (before..=*points.get(index + 1).unwrap_or(&largest)).contains(time)
            };
            if (place - place.round()).abs() < 1e-9 && index <= last && is_between() {
                body[index] = *time;
            }
        }
        let mut tail = vec![(last as f64 / intervals, body[last])];
        for (part, time) in named {
            let (before, least) = tail[tail.len() - 1];
            if *part > before + 1e-9 && *part < 1.0 && (least..=largest).contains(time) {
                tail.push((*part, *time));
            }
        }
        tail.push((1.0, largest));
        let mut of = Self { body, intervals, tail };
        if let Some(mean) = mean.filter(|mean| mean.is_finite() && *mean > 0.0) {
            of.bend(mean);
            of = of.stretched(mean);
        }
        Some(of)
    }

    /// Scales all quantiles so that the mean becomes `mean`.
    pub fn stretched(&self, mean: f64) -> Self {
        let factor = Some(mean / self.mean()).filter(|factor| factor.is_finite()).unwrap_or(1.0);
        Self {
            body: self.body.iter().map(|time| time * factor).collect(),
            intervals: self.intervals,
            tail: self.tail.iter().map(|(part, time)| (*part, time * factor)).collect(),
        }
    }

    /// Bends the lines of the tail, the last one first, as far as the mean needs it: each gets a knee, and still leads
    /// monotonically between its ends.
    fn bend(&mut self, mean: f64) {
        let mut missing = mean - self.mean();
        for index in (1..self.tail.len()).rev() {
            let ((begin, low), (end, high)) = (self.tail[index - 1], self.tail[index]);
            let (width, rise) = (end - begin, high - low);
            // Slightly less than a full jump, which would move a named percentile.
            let most = 0.5 * width * rise * MOST_BENT;
            if missing == 0.0 || most <= 0.0 {
                continue;
            }
            let by = missing.clamp(-most, most);
            missing -= by;
            // Low until the knee, or high from the knee on.
            let away = by.abs() / most * width * MOST_BENT;
            let knee = if by < 0.0 { (begin + away, low) } else { (end - away, high) };
            self.tail.insert(index, knee);
        }
    }

    /// Seconds at a quantile from 0 to 1.
    pub(super) fn at(&self, part: f64) -> f64 {
        let place = part * self.intervals;
        let below = place as usize;
        match self.body.get(below + 1) {
            Some(above) => self.body[below] + (place - below as f64) * (above - self.body[below]),
            None => line(&self.tail, part),
        }
    }

    /// Mean seconds.
    pub(super) fn mean(&self) -> f64 {
        let ends = 0.5 * (self.body[0] + self.body[self.body.len() - 1]);
        (self.body.iter().sum::<f64>() - ends) / self.intervals + area(&self.tail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Describes sorted times as the profiler does: 21 quantiles, named percentiles, mean.
    fn described(times: &[f64]) -> (Vec<f64>, Vec<(f64, f64)>, f64) {
        let at = |part: f64| {
            let place = part * (times.len() - 1) as f64;
            let below = (place as usize).min(times.len() - 2);
            times[below] + (place - below as f64) * (times[below + 1] - times[below])
        };
        let points = (0..=20).map(|n| at(f64::from(n) / 20.0)).collect();
        let named = [0.5, 0.75, 0.9, 0.99].map(|part| (part, at(part))).to_vec();
        (points, named, times.iter().sum::<f64>() / times.len() as f64)
    }

    fn near(a: f64, b: f64) -> bool {
        (a / b - 1.0).abs() < 1e-9
    }

    /// One call in 500 took forty times as long: on a straight line from p95 to it p99 would be 33 ms, and the body
    /// would have to shrink for the mean.
    #[test]
    fn an_outlier_changes_neither_the_body_nor_the_99th_percentile() {
        let mut times: Vec<f64> = (0..499).map(|n| 0.010 + 0.000_002 * f64::from(n)).collect();
        times.push(0.4);
        let (points, named, mean) = described(&times);
        let of = Quantiles::new(&points, &named, Some(mean)).unwrap();
        assert!(near(of.mean(), mean) && near(of.at(1.0), 0.4));
        for (part, time) in named {
            assert!(near(of.at(part), time), "{part}: {} instead of {time}", of.at(part));
        }
        let drawn: Vec<f64> = (0..100_000).map(|n| of.at((f64::from(n) + 0.5) / 1e5)).collect();
        assert!((drawn.iter().sum::<f64>() / 1e5 / mean - 1.0).abs() < 1e-4);
        assert!(near(drawn[0], of.at(0.5e-5)) && drawn.is_sorted());
        assert!((drawn[98_999] / 0.010_988 - 1.0).abs() < 0.01, "{}", drawn[98_999]);
    }

    /// An unnamed 99th percentile follows from the mean.
    #[test]
    fn the_tail_alone_reaches_the_mean() {
        let mut points = vec![0.010; 20];
        points.push(0.1);
        let of = Quantiles::new(&points, &[], Some(0.0102)).unwrap();
        assert!(near(of.mean(), 0.0102) && near(of.at(0.5), 0.010) && near(of.at(1.0), 0.1));
        assert!(near(of.at(0.99), 0.010));
        let of = Quantiles::new(&points, &[], Some(0.0140)).unwrap();
        assert!(near(of.mean(), 0.0140) && near(of.at(0.95), 0.010) && near(of.at(0.99), 0.1));
    }

    #[test]
    fn what_the_tail_cannot_reach_is_stretched() {
        let of = Quantiles::new(&[1.0, 2.0, 6.0], &[], Some(8.0)).unwrap();
        assert!(near(of.mean(), 8.0) && of.at(0.5) > 2.0);
        let of = Quantiles::new(&[1.0, 1.0, 1.0], &[], Some(1.5)).unwrap();
        assert!(near(of.at(0.3), 1.5) && near(of.mean(), 1.5));
        assert!(Quantiles::new(&[1.0], &[], None).is_none() && Quantiles::new(&[], &[], None).is_none());
    }

    #[test]
    fn names_that_do_not_fit_in_do_not_count() {
        let points = [1.0, 2.0, 3.0];
        let plain = Quantiles::new(&points, &[], None).unwrap();
        for named in [(0.5, 0.5), (0.5, 7.0), (0.9, 1.5), (0.9, 4.0), (0.3, 1.1)] {
            assert_eq!(Quantiles::new(&points, &[named], None).unwrap(), plain, "{named:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// For any measured times, quantiles ascend, and have the mean and the percentiles of the row.
        #[test]
        fn measured_times_are_found_again(
            mut times in prop::collection::vec(0.001f64..0.02, 100..600),
            outlier in 0.02f64..2.0,
        ) {
            times.push(outlier);
            times.sort_by(f64::total_cmp);
            let (points, named, mean) = described(&times);
            let of = Quantiles::new(&points, &named, Some(mean)).unwrap();
            prop_assert!(near(of.mean(), mean));
            let all: Vec<f64> = (0..=1000).map(|n| of.at(f64::from(n) / 1000.0)).collect();
            prop_assert!(all.windows(2).all(|pair| pair[1] >= pair[0] * (1.0 - 1e-12)));
            // Interpolation between the points of the body differs slightly from the times: where the tail cannot
            // correct that, everything is stretched.
            for (part, time) in named {
                prop_assert!((of.at(part) / time - 1.0).abs() < 0.02, "{part}: {} instead of {time}", of.at(part));
            }
        }
    }
}
