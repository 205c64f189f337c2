//! The exact planner: a mixed-integer linear program over variants, numbers of workers, shares and routes together.
//!
//! Identical workers are aggregated, flows are shares of the keys by location, variants are the only binaries. Where
//! few joint variants are left after dominance, each is bounded by its relaxation and the promising ones are solved;
//! otherwise one program holds all, with an incumbent from the variants that its relaxation uses. Memory is looked at
//! after the fact and brought into the program only where the models of a plan do not fit. Every plan is checked by
//! [`crate::check`] before it is handed out; where a point cannot be realised, the program is made stricter, and at last
//! the cheapest plan of the heuristics counts.
//!
//! Under latency limits plans are made of whole routes, each of which ends in time, so a plan may pair a slow worker of
//! one operator with a fast one of the next (`exact/routes.rs`); which variants are worth it, their relaxation says
//! (`exact/joints.rs`). Budgets by operator are searched where that finds nothing. The bound comes from a program in which
//! every share of the keys ends in time, with times rounded down (`exact/latency_times.rs`): [`Status::Optimal`] says
//! that the plan meets it, and [`Status::Infeasible`] is proven only where that program has no plan.
mod accuracy_rows;
mod budgets;
mod cuts;
mod dive;
mod extract;
mod incumbent;
mod joints;
mod latency_rows;
mod latency_search;
mod latency_times;
mod live;
mod model;
mod prepared;
mod program;
mod reduced;
mod route_plans;
mod routes;
mod search;
#[cfg(test)]
mod tests;
mod variants;

use crate::check::check;
use crate::cost::cost;
use crate::planner::{Planner, PlannerError, SearchLimits};
use crate::problem::Problem;
use crate::realise::{Placement, RealiseError, WorkerGroup, realise};
use crate::search_time::SearchTime;
use crate::solution::{Outcome, Solution, Status};
use budgets::Budgets;
use joints::{Joints, by_routes};
use model::Model;
use prepared::{LatencyRule, MemoryRule, Prepared};
use program::Point;
use search::{Found, Search};

pub(crate) const NAME: &str = "exact";

/// Nodes of one program under latency limits, as a part of all: there are many programs, and bounds move little.
const LATENCY_PART: u64 = 200;

/// Parts of the time that is left, for plans of whole routes and then for a better bound.
const PART_OF_ROUTES: f64 = 0.6;
const PART_OF_BOUND: f64 = 0.8;

/// Steps into which the longest limit is cut for the bound, and operators times locations up to which it is.
const STEPS_OF_TIME: usize = 16;
const MOST_TIMED: usize = 40;

/// By how much all loads are raised, one after the other, where a point's plan does not fit.
const STRICTER: [f64; 3] = [1.0 + 1e-5, 1.0 + 1e-3, 1.02];

/// The exact planner.
#[derive(Debug, Clone, Copy, Default)]
pub struct Exact;

impl Planner for Exact {
    fn name(&self) -> &'static str {
        NAME
    }

    fn plan(&self, problem: &Problem, limits: &SearchLimits) -> Result<Outcome, PlannerError> {
        self.plan_without(problem, limits, &[])
    }
}

impl Exact {
    /// The best plan with none of these joint variants (one variant per operator each).
    ///
    /// # Errors
    /// See [`Planner::plan`].
    pub fn plan_without(
        &self,
        problem: &Problem,
        limits: &SearchLimits,
        excluded: &[Vec<usize>],
    ) -> Result<Outcome, PlannerError> {
        problem.check()?;
        let mut search = Search::new(limits, SearchTime::begin());
        let mut found = Best { plan: None, bound: 0.0, is_refused: false };
        if problem.limits.latency.is_empty() {
            plans(problem, excluded, &mut search, &mut found)?;
        } else {
            under_latency(problem, excluded, &mut search, &mut found)?;
        }
        if !found.is_close(limits.gap) {
            let known = search.incumbent(problem, excluded)?.clone();
            if let Some((cost, solution)) = known {
                found.offer(cost, solution);
            }
        }
        Ok(found.outcome(limits, &search))
    }
}

/// Plans and a bound under latency limits.
fn under_latency(
    problem: &Problem,
    excluded: &[Vec<usize>],
    search: &mut Search,
    found: &mut Best,
) -> Result<(), PlannerError> {
    let gap = search.limits.gap;
    search.limits.nodes = (search.limits.nodes / LATENCY_PART).max(1);
    let mut free = problem.clone();
    free.limits.latency.clear();
    let variants = without_latency(&free, excluded, search, found)?;
    search.forget(); // those plans need not keep the limits
    let mut joints = Joints::default();
    // Plans before a better bound: a limit by the clock may come first.
    if let Some(variants) = variants {
        within(search, PART_OF_ROUTES, |search| {
            by_routes(problem, excluded, variants, &mut joints, search, found)
        })?;
    }
    if !found.is_close(gap)
        && let Some((cost, solution)) = search.incumbent(problem, excluded)?.clone()
    {
        found.offer(cost, solution);
    }
    // Plans of whole routes are not all plans: of few operators the others are looked at too.
    let budgets_too = joints.planned.is_empty() || problem.operators.len() <= FEW_OPERATORS;
    if !found.is_close(gap) && budgets_too {
        within_budgets(problem, excluded, search, found)?;
    }
    if !found.is_close(gap) {
        let relaxed = within(search, PART_OF_BOUND, |search| keys_in_time(problem, excluded, search, found))?;
        if let Some(variants) = relaxed.filter(|_| !found.is_close(gap)) {
            by_routes(problem, excluded, variants, &mut joints, search, found)?;
        }
    }
    if found.plan.is_none() && found.bound < f64::INFINITY {
        if !budgets_too {
            within_budgets(problem, excluded, search, found)?;
        }
        plans(problem, excluded, search, found)?;
    }
    Ok(())
}

/// Operators of problems that are quick to search by budgets as well.
const FEW_OPERATORS: usize = 4;

/// Does a part of the search within a part of the time that is left.
fn within<T>(
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

/// What is known after the parts of a search.
#[derive(Debug)]
struct Best {
    /// The cheapest plan that the checker accepts, with its cost in $/h.
    plan: Option<(f64, Solution)>,
    /// No plan costs less; infinite: there is none.
    bound: f64,
    /// Whether the program with latency budgets has no point, which proves nothing.
    is_refused: bool,
}

impl Best {
    /// Whether there is nothing left to search.
    fn is_close(&self, gap: f64) -> bool {
        let is_near =
            |(cost, _): &(f64, Solution)| Outcome::gap_between(*cost, self.bound.min(*cost)) <= gap + 1e-9;
        self.plan.as_ref().map_or(self.bound == f64::INFINITY, is_near)
    }

    fn offer(&mut self, cost: f64, solution: Solution) {
        if self.plan.as_ref().is_none_or(|(least, _)| cost < *least) {
            self.plan = Some((cost, solution));
        }
    }

    fn outcome(self, limits: &SearchLimits, search: &Search) -> Outcome {
        let is_close = self.is_close(limits.gap);
        let Some((total, solution)) = self.plan else {
            return without_plan(self.bound, self.is_refused, search);
        };
        let bound = self.bound.min(total);
        let status = if is_close {
            Status::Optimal
        } else if search.by_time {
            Status::TimeLimited
        } else {
            Status::Feasible
        };
        Outcome {
            planner: NAME.to_owned(),
            status,
            solution: Some(solution),
            cost: Some(total),
            bound: Some(bound),
            gap: Some(Outcome::gap_between(total, bound)),
            nodes: search.nodes,
            seconds: search.time.seconds(),
        }
    }
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
            None => search.within_budgets(&prepared, excluded, found.bound)?,
            Some((variants, budgets)) => search.within(&prepared, excluded, variants, budgets)?,
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

/// A bound under latency limits, and the variants of its point; sometimes its plan keeps the limits, which settles all.
fn keys_in_time(
    problem: &Problem,
    excluded: &[Vec<usize>],
    search: &mut Search,
    found: &mut Best,
) -> Result<Option<Vec<usize>>, PlannerError> {
    let rules = vec![MemoryRule::Ignored; problem.worker_classes.len()];
    let is_small = problem.operators.len() * problem.locations.len() <= MOST_TIMED;
    let rule = if is_small { LatencyRule::Times(STEPS_OF_TIME) } else { LatencyRule::Means };
    let prepared = Prepared::new(problem, &rules, rule, 1.0)?;
    if !prepared.is_servable() {
        found.bound = f64::INFINITY;
        return Ok(None);
    }
    let relaxed = search.best(&prepared, excluded)?;
    found.bound = found.bound.max(relaxed.bound);
    let Some((model, point)) = relaxed.best else { return Ok(None) };
    if let Ok(solution) = realise(problem, &extract::placement(&prepared, &model, &point.values))
        && check(problem, &solution).is_empty()
    {
        found.offer(cost(problem, &solution).map_err(|error| fault(&error))?.total(), solution);
    }
    Ok(Some(model.joint(&point.values)))
}

/// The cheapest plan of the program; its bound holds where there are no latency limits.
fn plans(
    problem: &Problem,
    excluded: &[Vec<usize>],
    search: &mut Search,
    found: &mut Best,
) -> Result<(), PlannerError> {
    let has_latency = !problem.limits.latency.is_empty();
    let mut rules = vec![MemoryRule::Ignored; problem.worker_classes.len()];
    let mut stricter = STRICTER.iter();
    let mut strictness = 1.0;
    loop {
        let prepared = Prepared::new(problem, &rules, LatencyRule::Budgets, strictness)?;
        let next = if prepared.is_servable() {
            search.best(&prepared, excluded)?
        } else {
            Found { best: None, bound: f64::INFINITY }
        };
        if !has_latency && strictness == 1.0 {
            found.bound = found.bound.max(next.bound);
        }
        let Some((model, point)) = next.best else {
            found.is_refused = next.bound == f64::INFINITY && strictness == 1.0;
            return Ok(());
        };
        match realise(problem, &extract::placement(&prepared, &model, &point.values)) {
            Ok(solution) if check(problem, &solution).is_empty() => {
                let total = cost(problem, &solution).map_err(|error| fault(&error))?.total();
                let differs = (total - point.cost).abs() > 1e-5 * point.cost.abs().max(1.0);
                if differs && prepared.plans_routes && !has_latency {
                    let planned = point.cost;
                    return Err(fault(&format!("the program's cost is {planned}, the plan's {total}")));
                }
                found.offer(total, solution);
                return Ok(());
            }
            // The routes made of flows do not keep every limit.
            Ok(_) if !prepared.plans_routes => return Ok(()),
            Err(RealiseError::Memory { class, .. }) if rules[class] != MemoryRule::Single => {
                if let Ok(solution) = realised(problem, &prepared, &model, &point)
                    && check(problem, &solution).is_empty()
                {
                    let total = cost(problem, &solution).map_err(|error| fault(&error))?.total();
                    found.offer(total, solution);
                    if found.is_close(search.limits.gap) {
                        return Ok(());
                    }
                }
                // Often the same variants fit with another worker or none more, at a cost within the gap.
                let variants = model.joint(&point.values);
                let small = too_small(problem, &extract::placement(&prepared, &model, &point.values));
                if let Some((total, solution)) = fitted(problem, &rules, &variants, small, search)? {
                    found.offer(total, solution);
                    if found.is_close(search.limits.gap) {
                        return Ok(());
                    }
                }
                if let Some(known) = &found.plan {
                    search.know(known);
                }
                // Counted rows settle most cases; a class of few workers is as quick with each by itself.
                rules[class] = match rules[class] {
                    MemoryRule::Ignored if problem.worker_classes[class].count > 4 => MemoryRule::Counted,
                    _ => MemoryRule::Single,
                };
            }
            // A rounded point: workers a little over their cap.
            Ok(_) | Err(_) => match stricter.next() {
                Some(next) => strictness = *next,
                None => return Ok(()),
            },
        }
    }
}

/// The plan that a point means, with up to two more workers of a class whose models do not fit. Its cost counts them.
fn realised(
    problem: &Problem,
    prepared: &Prepared<'_>,
    model: &Model,
    point: &Point,
) -> Result<Solution, RealiseError> {
    realised_placement(problem, extract::placement(prepared, model, &point.values))
}

/// The same for a placement.
fn realised_placement(problem: &Problem, mut placement: Placement) -> Result<Solution, RealiseError> {
    let first = realise(problem, &placement);
    let mut last = first.clone();
    for _ in 0..2 * problem.worker_classes.len() {
        let Err(RealiseError::Memory { class, count }) = last else { break };
        let taken: u32 = placement.groups.iter().filter(|g| g.class == class).map(|g| g.count).sum();
        let is_full = taken >= problem.worker_classes[class].count;
        let group = placement.groups.iter_mut().find(|group| group.class == class && group.count == count);
        let Some(group) = group.filter(|_| !is_full) else { break };
        group.count += 1;
        last = realise(problem, &placement);
    }
    if last.is_ok() { last } else { first }
}

/// A plan with those variants whose models fit, where those of a plan do not fit on so many workers of a class.
fn fitted(
    problem: &Problem,
    rules: &[MemoryRule],
    variants: &[usize],
    mut small: Vec<(usize, u32)>,
    search: &mut Search,
) -> Result<Option<(f64, Solution)>, PlannerError> {
    let mut rules = rules.to_vec();
    let mut best: Option<(f64, Solution)> = None;
    for _ in 0..problem.worker_classes.len() {
        for (class, count) in small {
            rules[class] = MemoryRule::SingleOf(count + 1);
        }
        let prepared = Prepared::new(problem, &rules, LatencyRule::Budgets, 1.0)?;
        if !prepared.is_servable() {
            break;
        }
        let Some((model, point)) = search.with_variants(&prepared, variants)? else { break };
        if let Ok(solution) = realised(problem, &prepared, &model, &point)
            && check(problem, &solution).is_empty()
        {
            let total = cost(problem, &solution).map_err(|error| fault(&error))?.total();
            if best.as_ref().is_none_or(|(least, _)| total < *least) {
                best = Some((total, solution));
            }
        }
        small = too_small(problem, &extract::placement(&prepared, &model, &point.values));
        small.retain(|(class, _)| !matches!(rules[*class], MemoryRule::Single | MemoryRule::SingleOf(_)));
        if small.is_empty() {
            break;
        }
    }
    Ok(best)
}

/// Worker classes, with numbers of workers, into whose memory the models do not fit.
fn too_small(problem: &Problem, placement: &Placement) -> Vec<(usize, u32)> {
    let alone = |group: &WorkerGroup| {
        let of_group = Placement { groups: vec![group.clone()], ..placement.clone() };
        matches!(realise(problem, &of_group), Err(RealiseError::Memory { .. }))
    };
    let groups = placement.groups.iter().filter(|group| alone(group));
    groups.map(|group| (group.class, group.count)).collect()
}

/// No plan: none exists where the bound is infinite, otherwise none was found.
fn without_plan(bound: f64, is_refused: bool, search: &Search) -> Outcome {
    let is_proven = bound == f64::INFINITY;
    let is_infeasible = is_proven || (is_refused && !search.by_time);
    Outcome {
        status: if is_infeasible { Status::Infeasible } else { Status::TimeLimited },
        bound: (is_proven || !is_infeasible).then_some(bound),
        nodes: search.nodes,
        seconds: search.time.seconds(),
        ..Outcome::infeasible(NAME, is_proven)
    }
}

pub(crate) fn fault(reason: &impl ToString) -> PlannerError {
    PlannerError::Fault { planner: NAME.to_owned(), reason: reason.to_string() }
}
