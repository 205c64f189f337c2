//! Plans and a bound under latency limits.
use super::budgets::Budgets;
use super::extract;
use super::joints::{Joints, by_routes};
use super::keys_in_time::keys_in_time;
use super::prepared::{LatencyRule, MemoryRule, Prepared};
use super::screening::one_by_one;
use super::search::Search;
use super::{Best, STRICTER, fault, plans, realised, too_small};
use crate::check::check;
use crate::cost::cost;
use crate::planner::{PlannerError, Solver};
use crate::problem::Problem;
use crate::realise::RealiseError;

/// Nodes of one program, as a part of all: there are many programs, and bounds move little.
const NODES_PART: u64 = 200;

/// Part of the time for joint variants one by one; the rest is for budgets, where that leaves a gap.
const PART_OF_LISTED: f64 = 0.95;

/// Part of the time for budgets where joint variants are too many to be listed.
const PART_OF_BUDGETS: f64 = 0.25;

/// Parts of the time that is left, for plans of whole routes and then for a better bound; the same where HiGHS finds
/// the bound, and with it most of the plans.
const PART_OF_ROUTES: f64 = 0.6;
const PART_OF_BOUND: f64 = 0.8;
const PART_OF_ROUTES_HIGHS: f64 = 0.25;
const PART_OF_BOUND_HIGHS: f64 = 0.9;

/// Plans and a bound under latency limits.
pub(super) fn under_latency(
    problem: &Problem,
    excluded: &[Vec<usize>],
    search: &mut Search,
    found: &mut Best,
) -> Result<(), PlannerError> {
    let gap = search.limits.gap;
    // HiGHS is for the bound only: it takes longer for the many small programs of the rest.
    let solver = std::mem::take(&mut search.limits.solver);
    search.limits.nodes = (search.limits.nodes / NODES_PART).max(1);
    let mut free = problem.clone();
    free.limits.latency.clear();
    let variants = without_latency(&free, excluded, search, found)?;
    search.forget(); // those plans need not keep the limits
    let mut joints = Joints::default();
    let is_listed = match &variants {
        Some(first) => within(search, PART_OF_LISTED, |search| {
            one_by_one(problem, excluded, solver, first, search, found)
        })?,
        None => false,
    };
    // Plans before a better bound: a limit by the clock may come first. Those within budgets are quick to find.
    if !is_listed && found.bound < f64::INFINITY {
        within(search, PART_OF_BUDGETS, |search| within_budgets(problem, excluded, search, found))?;
    }
    if let Some(variants) = variants.filter(|_| !is_listed && !found.is_close(gap)) {
        let part = if solver.is_highs() { PART_OF_ROUTES_HIGHS } else { PART_OF_ROUTES };
        within(search, part, |search| by_routes(problem, excluded, variants, &mut joints, search, found))?;
    }
    if !found.is_close(gap)
        && let Some((cost, solution)) = search.incumbent(problem, excluded)?.clone()
    {
        found.offer(cost, solution);
    }
    if !found.is_close(gap) && is_listed {
        within_budgets(problem, excluded, search, found)?;
    }
    if !found.is_close(gap) && !is_listed {
        let part = if solver.is_highs() { PART_OF_BOUND_HIGHS } else { PART_OF_BOUND };
        let relaxed = within(search, part, |search| {
            search.limits.solver = solver;
            let relaxed = keys_in_time(problem, excluded, &mut joints, search, found);
            search.limits.solver = Solver::default();
            relaxed
        })?;
        if let Some(variants) = relaxed.filter(|_| !found.is_close(gap)) {
            by_routes(problem, excluded, variants, &mut joints, search, found)?;
        }
    }
    if found.plan.is_none() && found.bound < f64::INFINITY {
        if !is_listed {
            within_budgets(problem, excluded, search, found)?;
        }
        plans(problem, excluded, search, found)?;
    }
    Ok(())
}

/// Does a part of the search within a part of the time that is left.
pub(super) fn within<T>(
    search: &mut Search,
    part: f64,
    of: impl FnOnce(&mut Search) -> Result<T, PlannerError>,
) -> Result<T, PlannerError> {
    let (guard, by_time) = (search.limits.wall_seconds, search.by_time);
    let left = search.time.left_of(guard);
    search.limits.wall_seconds = guard.map(|_| search.time.seconds() + part * left);
    let answer = of(search);
    search.limits.wall_seconds = guard;
    search.by_time |= by_time;
    answer
}

/// What a plan costs at least without the latency limits.
fn without_latency(
    free: &Problem,
    excluded: &[Vec<usize>],
    search: &mut Search,
    found: &mut Best,
) -> Result<Option<Vec<usize>>, PlannerError> {
    let rules = vec![MemoryRule::Ignored; free.worker_classes.len()];
    let prepared = Prepared::new(free, &rules, LatencyRule::Budgets, 1.0)?;
    if !prepared.is_servable() {
        found.bound = f64::INFINITY;
        return Ok(None);
    }
    let relaxed = search.best(&prepared, excluded)?;
    found.bound = relaxed.bound;
    Ok(relaxed.best.map(|(model, point)| model.joint(&point.values)))
}

/// A plan within latency budgets that are searched from outside.
fn within_budgets(
    problem: &Problem,
    excluded: &[Vec<usize>],
    search: &mut Search,
    found: &mut Best,
) -> Result<(), PlannerError> {
    let mut rules = vec![MemoryRule::Ignored; problem.worker_classes.len()];
    let mut known: Option<(Vec<usize>, Budgets)> = None;
    let mut stricter = STRICTER.iter();
    let mut strictness = 1.0;
    for _ in 0..=problem.worker_classes.len() + STRICTER.len() {
        let prepared = Prepared::new(problem, &rules, LatencyRule::Budgets, strictness)?;
        if !prepared.is_servable() {
            return Ok(());
        }
        let next = match &known {
            None => search.within_budgets(&prepared, excluded, found.bound),
            Some((variants, budgets)) => search.within(&prepared, excluded, variants, budgets),
        };
        let Some((model, point, budgets)) = next else { return Ok(()) };
        match realised(problem, &prepared, &model, &point) {
            Ok(solution) if check(problem, &solution).is_empty() => {
                let total = cost(problem, &solution).map_err(|error| fault(&error))?.total();
                found.offer(total, solution);
                if let Some(known) = &found.plan {
                    search.know(known);
                }
                return Ok(());
            }
            Err(RealiseError::Memory { class, .. }) if rules[class] == MemoryRule::Ignored => {
                for (class, count) in
                    too_small(problem, &extract::placement(&prepared, &model, &point.values))
                {
                    rules[class] = MemoryRule::SingleOf(count + 1);
                }
            }
            Ok(_) | Err(_) => match stricter.next() {
                Some(next) => strictness = *next,
                None => return Ok(()),
            },
        }
        known = Some((model.joint(&point.values), budgets));
    }
    Ok(())
}
