//! Plans problems whose sizes of records depend on variants before the sender: branch and bound over these variants.
//!
//! With the smallest possible sizes a problem costs no more: its optimum is a bound. The plan is priced and checked
//! with the sizes of its own variants; where it then costs more than the bound, the variants of one operator are
//! divided into that of the plan and the others. A part with one variant of each of these operators has exact sizes, so
//! its optimum is exact. The part with the least bound is the next.
use super::cases::{concluded, is_better};
use super::fault::{NAME, fault};
use super::{Asked, Exact};
use crate::check::check;
use crate::cost::cost;
use crate::planner::{PlannerError, SearchLimits};
use crate::problem::{Case, Problem};
use crate::search_time::SearchTime;
use crate::solution::{Outcome, Status};

/// The best plan of a problem with fixed rates and sizes that depend on variants, with none of the `excluded` joint
/// variants.
pub(super) fn by_sizes(
    problem: &Problem,
    limits: &SearchLimits,
    excluded: &[Vec<usize>],
    asked: Asked<'_>,
) -> Result<Outcome, PlannerError> {
    let time = SearchTime::begin();
    let mut all = Outcome { bound: Some(f64::INFINITY), ..Outcome::infeasible(NAME, true) };
    let mut open: Vec<(f64, Case)> = vec![(0.0, Case::whole(problem))];
    let (mut is_first, mut is_out_of_time, mut is_limited) = (true, false, false);
    let prove = |all: &mut Outcome, bound: f64| all.bound = all.bound.map(|least: f64| least.min(bound));
    while let Some(next) = (0..open.len()).min_by(|a, b| open[*a].0.total_cmp(&open[*b].0)) {
        let (known, part) = open.remove(next);
        let left = limits.wall_seconds.map(|_| time.left_of(limits.wall_seconds));
        // The first plan is always made.
        is_out_of_time |= !is_first && left.is_some_and(|left| left <= 0.0);
        is_first = false;
        if is_out_of_time || known.max(limits.floor) >= limits.cutoff(all.cost) {
            prove(&mut all, known);
            continue;
        }
        let parts = 1 + open.len() + usize::from(!part.problem.sizes.is_empty());
        let own = SearchLimits {
            wall_seconds: left.map(|left| left / parts as f64),
            ..limits.of_part(known, all.cost)
        };
        let without: Vec<Vec<usize>> = excluded.iter().filter_map(|joint| part.of_part(joint)).collect();
        let found = Exact.plan_fixed(&part.problem.with_least_sizes(), &own, &without, asked)?;
        all.nodes += found.nodes;
        all.has_asked_highs |= found.has_asked_highs;
        // A part that ended at its own time limit does not end the others.
        is_limited |= found.status == Status::TimeLimited;
        let bound = found.bound.unwrap_or(0.0).max(known);
        let Some(solution) = found.solution else {
            prove(&mut all, bound);
            continue;
        };
        let mut is_close = false;
        if check(&part.problem, &solution).is_empty() {
            let total = cost(&part.problem, &solution).map_err(|error| fault(&error))?.total();
            is_close = Outcome::gap_between(total, bound.min(total)) <= limits.gap + 1e-9;
            let whole = part.of_whole(solution.clone());
            if is_better(problem, (total, &whole), all.cost.zip(all.solution.as_ref())) {
                (all.cost, all.solution) = (Some(total), Some(whole));
            }
        }
        match part.problem.decides_sizes(&solution.variants).filter(|_| !is_close) {
            None => prove(&mut all, bound),
            Some(operator) => {
                let chosen = solution.variants[operator];
                open.push((bound, part.with(operator, |variant| variant == chosen)));
                open.push((bound, part.with(operator, |variant| variant != chosen)));
            }
        }
    }
    all.seconds = time.seconds();
    Ok(concluded(all, limits, is_out_of_time || is_limited))
}
