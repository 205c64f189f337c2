//! Plans problems whose rates depend on variants: part by part, each with fixed rates.
//!
//! The parts hold every joint variant once, so the cheapest plan of all parts is the cheapest of the whole, and no plan
//! costs less than their least bound. Parts with few records come first, as their plans are usually the cheapest. Each
//! gets an equal share of the remaining time, so that easy parts leave time for the others.
use super::fault::NAME;
use super::{Asked, Exact};
use crate::planner::{PlannerError, SAME_COST, SearchLimits};
use crate::problem::Problem;
use crate::search_time::SearchTime;
use crate::solution::{Outcome, Solution, Status};

/// The best plan of a problem whose rates depend on variants, with none of the `excluded` joint variants.
pub(super) fn by_cases(
    problem: &Problem,
    limits: &SearchLimits,
    excluded: &[Vec<usize>],
    asked: Asked<'_>,
) -> Result<Outcome, PlannerError> {
    let time = SearchTime::begin();
    let cases = problem.cases();
    let mut all = Outcome { bound: Some(f64::INFINITY), ..Outcome::infeasible(NAME, true) };
    let mut is_out_of_time = false;
    for (index, case) in cases.iter().enumerate() {
        let left = limits.wall_seconds.map(|_| time.left_of(limits.wall_seconds).max(0.0));
        let own = SearchLimits {
            wall_seconds: left.map(|left| left / (cases.len() - index) as f64),
            ..limits.of_part(0.0, all.cost)
        };
        let excluded: Vec<Vec<usize>> = excluded.iter().filter_map(|joint| case.of_part(joint)).collect();
        let found = Exact.plan_at_rates(&case.problem, &own, &excluded, asked)?;
        all.nodes += found.nodes;
        all.has_asked_highs |= found.has_asked_highs;
        is_out_of_time |= found.status == Status::TimeLimited;
        all.bound = Some(all.bound.unwrap_or(0.0).min(found.bound.unwrap_or(0.0)));
        if let (Some(cost), Some(solution)) = (found.cost, found.solution) {
            let solution = case.of_whole(solution);
            if is_better(problem, (cost, &solution), all.cost.zip(all.solution.as_ref())) {
                (all.cost, all.solution) = (Some(cost), Some(solution));
            }
        }
    }
    all.seconds = time.seconds();
    Ok(concluded(all, limits, is_out_of_time))
}

/// Completes the outcome of the whole, given the cheapest plan and the least bound of the parts in `all`.
pub(in crate::planners) fn concluded(
    mut all: Outcome,
    limits: &SearchLimits,
    is_out_of_time: bool,
) -> Outcome {
    all.bound = all.bound.map(|bound| bound.max(limits.floor));
    all.status = match (all.cost, all.bound) {
        (None, Some(f64::INFINITY)) => Status::Infeasible,
        (None, _) if is_out_of_time => Status::TimeLimited,
        (None, _) => Status::Infeasible, // and not proven: the bound is finite
        (Some(cost), bound) => {
            let bound = bound.unwrap_or(0.0).min(cost);
            let gap = Outcome::gap_between(cost, bound);
            (all.bound, all.gap) = (Some(bound), Some(gap));
            match gap <= limits.gap + 1e-9 {
                true => Status::Optimal,
                false if is_out_of_time => Status::TimeLimited,
                false => Status::Feasible,
            }
        }
    };
    all
}

/// Whether a plan is cheaper than the best so far, or more accurate at equal cost.
pub(in crate::planners) fn is_better(
    problem: &Problem,
    (cost, solution): (f64, &Solution),
    best: Option<(f64, &Solution)>,
) -> bool {
    let Some((least, best)) = best else { return true };
    if (cost - least).abs() > SAME_COST * least.max(1.0) {
        return cost < least;
    }
    let accuracy = |solution: &Solution| problem.accuracy_of(&solution.variants).unwrap_or(0.0);
    accuracy(solution) > accuracy(best)
}
