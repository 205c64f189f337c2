//! A first plan, from the planners that prove nothing.
use super::tuning::{BEAM_SIZE, WIDE_BEAM_SIZE};
use crate::check::check;
use crate::planner::{Planner, PlannerError, SearchLimits};
use crate::planners::beam::Beam;
use crate::planners::{best_fit::BestFit, cloud_only::CloudOnly, edge_only::EdgeOnly, first_fit::FirstFit};
use crate::problem::Problem;
use crate::solution::Solution;

/// The cheapest plan of the heuristics with its cost in $/h, without the excluded joint variants. Beams run only on
/// problems of moderate size, the wide one on small ones and where the others find none.
///
/// # Errors
/// See [`Planner::plan`].
pub(super) fn incumbent(
    problem: &Problem,
    limits: &SearchLimits,
    excluded: &[Vec<usize>],
) -> Result<Option<(f64, Solution)>, PlannerError> {
    let workers: u64 = problem.worker_classes.iter().map(|class| u64::from(class.count)).sum();
    let is_small = problem.operators.len() as u64 * workers <= BEAM_SIZE;
    let narrow = Beam { variant_width: 4, worker_width: 4, orders: 2, ..Beam::default() };
    let mut quick: Vec<&dyn Planner> = vec![&BestFit, &FirstFit, &CloudOnly, &EdgeOnly];
    let wide = Beam::default();
    // The wide beam covers the narrow one.
    let has_wide = problem.operators.len() as u64 * workers <= WIDE_BEAM_SIZE;
    if has_wide {
        quick.push(&wide);
    } else if is_small {
        quick.push(&narrow);
    }
    let best = cheapest(&quick, problem, limits, excluded)?;
    if best.is_some() || !is_small || has_wide {
        return Ok(best);
    }
    cheapest(&[&wide], problem, limits, excluded)
}

fn cheapest(
    planners: &[&dyn Planner],
    problem: &Problem,
    limits: &SearchLimits,
    excluded: &[Vec<usize>],
) -> Result<Option<(f64, Solution)>, PlannerError> {
    let mut best: Option<(f64, Solution)> = None;
    for planner in planners {
        let outcome = match planner.plan(problem, limits) {
            Err(PlannerError::Unsupported { .. }) => continue,
            outcome => outcome?,
        };
        let (Some(cost), Some(solution)) = (outcome.cost, outcome.solution) else { continue };
        let is_better = best.as_ref().is_none_or(|(least, _)| cost < *least);
        if is_better && !excluded.contains(&solution.variants) && check(problem, &solution).is_empty() {
            best = Some((cost, solution));
        }
    }
    Ok(best)
}
