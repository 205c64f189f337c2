//! Cost against accuracy, with a curve per selected limit on latency.
use crate::plan::steps::{self, Curve, MOST_CURVES};
use tidemill_app::figures::milliseconds;
use tidemill_optimizer::explain::{Surface, SurfacePoint};

/// The cheapest plan of each accuracy within a limit on latency.
struct Within<'a> {
    limit: f64,
    /// The least accurate first; each is the cheapest of its accuracy.
    points: Vec<&'a SurfacePoint>,
}

/// Returns the distinct curves, the tightest limit first.
fn curves(surface: &Surface) -> Vec<Within<'_>> {
    let mut bounds: Vec<f64> = surface.points.iter().map(|point| point.latency).collect();
    bounds.sort_by(f64::total_cmp);
    bounds.dedup_by(|a, b| (*a - *b).abs() < 1e-9);
    let chosen = spread(&bounds);
    let mut all: Vec<Within<'_>> = Vec::new();
    for limit in chosen {
        let within = surface.points.iter().filter(|point| point.latency <= limit + 1e-9);
        let mut points: Vec<&SurfacePoint> = within.collect();
        // From the most accurate down, keeps only those cheaper than all of higher accuracy.
        points.sort_by(|a, b| b.accuracy.total_cmp(&a.accuracy).then(a.cost.total_cmp(&b.cost)));
        let mut least = f64::INFINITY;
        points.retain(|point| {
            let is_cheaper = point.cost < least * (1.0 - 1e-9);
            least = least.min(point.cost);
            is_cheaper
        });
        points.reverse();
        let is_same = all.last().is_some_and(|before| {
            before.points.len() == points.len()
                && before.points.iter().zip(&points).all(|(a, b)| std::ptr::eq(*a, *b))
        });
        if !is_same {
            all.push(Within { limit, points });
        }
    }
    all
}

/// Returns of rising values the first, the last and those between at about a constant factor.
fn spread(values: &[f64]) -> Vec<f64> {
    let (Some(first), Some(last)) = (values.first(), values.last()) else { return Vec::new() };
    let count = MOST_CURVES.min(values.len());
    let steps = (count.max(2) - 1) as f64;
    let mut chosen: Vec<f64> = Vec::new();
    for step in 0..count {
        let wanted = first * (last / first).powf(step as f64 / steps);
        let near = values.iter().copied().filter(|value| chosen.last().is_none_or(|before| value > before));
        chosen.extend(near.min_by(|a, b| (a / wanted).ln().abs().total_cmp(&(b / wanted).ln().abs())));
    }
    if chosen.last() != Some(last) {
        chosen.pop();
        chosen.push(*last);
    }
    chosen
}

/// The drawing.
pub(super) fn drawn(title: &str, surface: &Surface, percentile: f64) -> String {
    let curve = |within: Within<'_>| Curve {
        name: milliseconds(within.limit * 1e3),
        points: within.points.iter().map(|point| (point.accuracy, point.cost)).collect(),
    };
    let curves: Vec<Curve> = curves(surface).into_iter().map(curve).collect();
    let heading = format!("{title}: cost against accuracy, by the bound on p{percentile} latency");
    steps::drawn(&heading, Some("latency within"), &curves)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_are_spread_over_the_limits() {
        assert_eq!(spread(&[1.0, 2.0]), [1.0, 2.0]);
        assert_eq!(spread(&[5.0]), [5.0]);
        let values: Vec<f64> = (1..=32).map(f64::from).collect();
        assert_eq!(spread(&values), [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]);
    }
}
