//! Plans and a bound under latency limits: first without the limits, then one joint variant after the other.
use super::best::Best;
use super::prepared::{LatencyRule, MemoryRule, Prepared};
use super::screening::one_by_one;
use super::search::Search;
use crate::planner::PlannerError;
use crate::problem::Problem;

/// Plans and a bound under latency limits.
pub(super) fn under_latency(
    problem: &Problem,
    excluded: &[Vec<usize>],
    search: &mut Search,
    found: &mut Best,
) -> Result<(), PlannerError> {
    let mut free = problem.clone();
    free.limits.latency.clear();
    let first = without_latency(&free, excluded, search, found)?;
    search.forget(); // those plans need not keep the limits
    if found.is_done(search.limits.gap) {
        return Ok(());
    }
    // Where the search without limits found nothing in time, the heuristics may provide initial variants.
    let first = match first {
        Some(first) => Some(first),
        None => search.incumbent(problem, excluded)?.as_ref().map(|(_, solution)| solution.variants.clone()),
    };
    let first = first.unwrap_or_else(|| vec![0; problem.operators.len()]);
    one_by_one(problem, excluded, &first, search, found)
}

/// Bounds the cost by that of a plan without the latency limits; returns the variants of such a plan.
fn without_latency(
    free: &Problem,
    excluded: &[Vec<usize>],
    search: &mut Search,
    found: &mut Best,
) -> Result<Option<Vec<usize>>, PlannerError> {
    let rules = vec![MemoryRule::Ignored; free.worker_classes.len()];
    let prepared = Prepared::new(free, &rules, LatencyRule::Plan, 1.0)?;
    if !prepared.is_servable() {
        found.bound = f64::INFINITY;
        return Ok(None);
    }
    let relaxed = search.best(&prepared, excluded)?;
    found.bound = found.bound.max(relaxed.bound);
    Ok(relaxed.best.map(|(model, point)| model.joint(&point.values)))
}
