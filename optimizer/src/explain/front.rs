//! Pareto fronts: cost against accuracy, and cost against accuracy and latency.
use super::scale::{with_accuracy, with_latency};
use crate::planner::{Planner, PlannerError, SearchLimits};
use crate::problem::Problem;
use crate::solution::{Outcome, Solution, Status};
use crate::summary::{PathLatency, paths};
use crate::waits::with_least_waits;

/// Most plans in a front.
const MOST: usize = 200;
/// Least gain in accuracy from one plan to the next, in percentage points.
const STEP: f64 = 1e-6;

/// A plan that is both the cheapest of its accuracy and the most accurate of its cost, as far as the planner proves it.
#[derive(Debug, Clone, PartialEq)]
pub struct FrontPoint {
    /// Accuracy in percent.
    pub accuracy: f64,
    /// Cost in $/h.
    pub cost: f64,
    /// The plan.
    pub solution: Solution,
}

/// Returns the front, the cheapest first. Plans repeatedly, each time with a higher least accuracy (the
/// epsilon-constraint method, Haimes, Lasdon and Wismer 1971).
///
/// # Errors
/// Errors of the planner.
pub fn accuracy_front(
    problem: &Problem,
    planner: &dyn Planner,
    limits: &SearchLimits,
) -> Result<Vec<FrontPoint>, PlannerError> {
    let problem = with_few_waits(problem.clone());
    let mut points: Vec<FrontPoint> = Vec::new();
    let mut least = 0.0;
    while points.len() < MOST {
        let outcome = planner.plan(&with_accuracy(&problem, Some(least)), limits)?;
        let (Some(solution), Some(cost)) = (outcome.solution, outcome.cost) else { break };
        let Some(accuracy) = problem.accuracy_of(&solution.variants) else { break };
        // A more accurate plan at no higher cost replaces the last one.
        while points.last().is_some_and(|last| last.cost >= cost * (1.0 - 1e-9)) {
            points.pop();
        }
        points.push(FrontPoint { accuracy, cost, solution });
        least = accuracy + STEP;
    }
    Ok(points)
}

/// Most latency limits to plan with.
const MOST_LIMITS: usize = 24;
/// The first limit in seconds: no plan takes this long.
const LOOSEST: f64 = 3600.0;

/// A plan that no other beats in cost, accuracy and latency together, as far as the planner finds them.
#[derive(Debug, Clone, PartialEq)]
pub struct SurfacePoint {
    /// Accuracy in percent.
    pub accuracy: f64,
    /// Cost in $/h.
    pub cost: f64,
    /// The bound on its latency in seconds, at the percentile of the limit.
    pub latency: f64,
    /// The limit on latency that it was planned with, in seconds.
    pub limit: f64,
    /// Whether it is proven the cheapest with this accuracy and limit.
    pub status: Status,
    /// How much cheaper a plan with this accuracy and limit may be, as a share of its cost, where that is proven.
    pub gap: Option<f64>,
    /// The plan.
    pub solution: Solution,
}

/// Plans over accuracies and latencies.
#[derive(Debug, Clone, PartialEq)]
pub struct Surface {
    /// Plans that no other beats in all three, the least accurate first, then the slowest first.
    pub points: Vec<SurfacePoint>,
    /// Latency limits of the search in seconds, the loosest first; no plan was found below the last.
    pub limits: Vec<f64>,
    /// Number of plans made.
    pub plans: usize,
    /// The tightest limit in seconds, for which no plan was found, and whether it is proven that there is none; none
    /// where the number of limits ended the search.
    pub refused: Option<(f64, bool)>,
}

/// Finds the plans that no other beats in cost, accuracy and latency: by the epsilon-constraint method with a ladder of
/// limits on latency, and for each of them a ladder of least accuracies. The first limit is no limit in effect; each
/// further one is `ratio` times the largest bound of the plans under the one before, until no plan is found.
///
/// The problem has at least one latency limit, which states the percentile. `seen` is called after each plan with the
/// number of plans and the limit.
///
/// # Errors
/// Errors of the planner; a problem without a latency limit.
pub fn latency_front(
    problem: &Problem,
    planner: &dyn Planner,
    limits: &SearchLimits,
    ratio: f64,
    seen: &mut dyn FnMut(usize, f64),
) -> Result<Surface, PlannerError> {
    if problem.limits.latency.is_empty() {
        let reason = "it has no limit on latency, which would say the percentile".to_owned();
        return Err(PlannerError::Unsupported { planner: planner.name().to_owned(), reason });
    }
    // A more accurate plan of equal cost is often slower: both belong to the surface.
    let limits = &SearchLimits { more_accurate: false, ..*limits };
    let mut surface = Surface { points: Vec::new(), limits: Vec::new(), plans: 0, refused: None };
    let mut free = FreeBounds { problem, planner, limits, known: Vec::new() };
    let mut limit = LOOSEST;
    while surface.limits.len() < MOST_LIMITS {
        let bounded = with_few_waits(with_latency(problem, |_| limit));
        let mut largest: Option<f64> = None;
        let mut least = 0.0;
        loop {
            let outcome = planner.plan(&with_accuracy(&bounded, Some(least)), limits)?;
            surface.plans += 1;
            seen(surface.plans, limit);
            // Few waits prove nothing about the others. The proven bound is the cost of a plan without a latency level.
            let is_every_wait = bounded.limits.wait_levels == problem.limits.wait_levels;
            let (Some(solution), Some(cost)) = (outcome.solution, outcome.cost) else {
                if largest.is_none() {
                    let bound = if is_every_wait { outcome.bound } else { free.at(least)? };
                    surface.refused = Some((limit, bound == Some(f64::INFINITY)));
                }
                break;
            };
            let solution = with_least_waits(&bounded, &solution);
            let slowest = paths(&bounded, &solution).iter().map(PathLatency::total).reduce(f64::max);
            let (Some(accuracy), Some(latency)) = (bounded.accuracy_of(&solution.variants), slowest) else {
                break;
            };
            largest = Some(largest.map_or(latency, |most: f64| most.max(latency)));
            // Bounds the cost of the accuracy reached, not of the one required.
            let bound = if is_every_wait { outcome.bound } else { free.at(accuracy - STEP)? };
            let gap = bound.map(|bound| Outcome::gap_between(cost, bound.min(cost)));
            let status = match gap {
                Some(gap) if gap <= limits.gap + 1e-9 => Status::Optimal,
                _ if outcome.status == Status::Optimal => Status::Feasible,
                _ => outcome.status,
            };
            surface.points.push(SurfacePoint { accuracy, cost, latency, limit, status, gap, solution });
            least = accuracy + STEP;
        }
        let Some(largest) = largest else { break };
        surface.limits.push(limit);
        limit = largest * ratio;
    }
    surface.points = undominated(surface.points);
    Ok(surface)
}

/// Lower bounds of the cost without a latency level, by least accuracy.
struct FreeBounds<'a> {
    problem: &'a Problem,
    planner: &'a dyn Planner,
    limits: &'a SearchLimits,
    known: Vec<(f64, Option<f64>)>,
}

impl FreeBounds<'_> {
    fn at(&mut self, least: f64) -> Result<Option<f64>, PlannerError> {
        if let Some((_, bound)) = self.known.iter().find(|(known, _)| *known == least) {
            return Ok(*bound);
        }
        let mut free = with_accuracy(self.problem, Some(least));
        free.limits.latency.clear();
        let bound = self.planner.plan(&free, self.limits)?.bound;
        self.known.push((least, bound));
        Ok(bound)
    }
}

/// Restricts each point to the same few waits: a plan with waits of its own takes many times as long. Proofs then cover
/// these waits only, so no plan is called proven.
fn with_few_waits(mut problem: Problem) -> Problem {
    problem.limits.wait_levels = problem.limits.waits();
    problem
}

/// Drops points that another one beats in cost, accuracy or latency and equals in the rest, and all but the first of
/// equal ones.
fn undominated(points: Vec<SurfacePoint>) -> Vec<SurfacePoint> {
    let close = |a: f64, b: f64| (a - b).abs() <= 1e-6 * a.abs().max(b.abs());
    let no_worse = |a: &SurfacePoint, b: &SurfacePoint| {
        (a.cost < b.cost || close(a.cost, b.cost))
            && (a.accuracy > b.accuracy || close(a.accuracy, b.accuracy))
            && (a.latency < b.latency || close(a.latency, b.latency))
    };
    let mut kept: Vec<SurfacePoint> = Vec::new();
    for point in points {
        if kept.iter().any(|other| no_worse(other, &point)) {
            continue;
        }
        kept.retain(|other| !no_worse(&point, other));
        kept.push(point);
    }
    kept.sort_by(|a, b| a.accuracy.total_cmp(&b.accuracy).then(b.latency.total_cmp(&a.latency)));
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generator::{PublishedSetting, published_vqa_problem};
    use crate::planners::exact::Exact;
    use crate::problem::LatencyLimit;

    fn published() -> Problem {
        let mut problem = published_vqa_problem(20.0, 54.0, PublishedSetting::Shared);
        problem.limits.max_utilization = 0.85;
        problem.limits.latency = vec![LatencyLimit { percentile: 99.0, seconds: 1.0, sink: None }];
        problem
    }

    #[test]
    fn what_is_faster_or_more_accurate_costs_more() {
        let (mut largest, mut most_limits, mut refused) = (0, 0, 0);
        for seed in 1..=24 {
            let problem = crate::generator::small_problem_with_latency(seed);
            let limits = SearchLimits { wall_seconds: None, ..SearchLimits::default() };
            let mut seen = 0;
            let Ok(surface) = latency_front(&problem, &Exact, &limits, 0.6, &mut |_, _| seen += 1) else {
                continue;
            };
            assert_eq!(seen, surface.plans, "seed {seed}");
            for (at, a) in surface.points.iter().enumerate() {
                assert!(a.latency <= a.limit, "seed {seed}");
                for (other, b) in surface.points.iter().enumerate() {
                    let beats = a.cost <= b.cost && a.accuracy >= b.accuracy && a.latency <= b.latency;
                    assert!(at == other || !beats, "seed {seed}: {a:?} beats {b:?}");
                }
            }
            assert!(surface.limits.windows(2).all(|two| two[1] < two[0]), "seed {seed}");
            largest = largest.max(surface.points.len());
            most_limits = most_limits.max(surface.limits.len());
            refused += u32::from(surface.refused.is_some());
        }
        assert!(largest >= 4 && most_limits >= 2, "{largest} points, {most_limits} limits");
        assert!(refused > 0, "at last a limit is too tight");
    }

    #[test]
    fn a_percentile_is_needed() {
        let mut problem = published();
        problem.limits.latency.clear();
        let found = latency_front(&problem, &Exact, &SearchLimits::default(), 0.6, &mut |_, _| {});
        assert!(matches!(found, Err(PlannerError::Unsupported { .. })));
    }
}
