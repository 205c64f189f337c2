//! The exact planner: a mixed-integer linear program over variants, numbers of workers, shares and routes together.
//!
//! Identical workers are aggregated, flows are shares of the keys by location, variants are the only binaries. Where
//! few joint variants are left after dominance, each is bounded by its relaxation and the promising ones are solved;
//! otherwise one program holds all, with an incumbent from the variants that its relaxation uses, and soon without those
//! that can be part of no cheaper plan (`exact/probing.rs`). Memory is looked at
//! after the fact and brought into the program only where the models of a plan do not fit. Every plan is checked by
//! [`crate::check`] before it is handed out; where a point cannot be realised, the program is made stricter, and at last
//! the cheapest plan of the heuristics counts.
//!
//! Of plans that cost the same, a more accurate one on the same workers is taken (`exact/equal_cost.rs`).
//!
//! Under latency limits plans are made of whole routes, each of which ends in time, so a plan may pair a slow worker of
//! one operator with a fast one of the next (`exact/routes.rs`). Where the joint variants can be listed, each is bounded by
//! its relaxation over routes, or by the prices of another's (`exact/screening.rs`); the few that are left are searched
//! through with one variant of each operator (`exact/one_joint.rs`), in a flow whose times are rounded down
//! (`exact/latency_times.rs`). Otherwise variants near good ones are planned (`exact/joints.rs`), and one such flow with all
//! variants is the bound (`exact/keys_in_time.rs`). [`Status::Optimal`] says that the plan meets the bound, and
//! [`Status::Infeasible`] is proven only where the relaxations have no plan.
mod accuracy_rows;
mod budgets;
mod cuts;
mod dive;
mod equal_cost;
mod extract;
mod first_point;
mod highs;
mod incumbent;
mod joints;
mod keys_in_time;
mod latency_rows;
mod latency_search;
mod latency_times;
mod live;
mod model;
mod modes;
mod one_joint;
mod prepared;
mod probing;
mod program;
mod reduced;
mod route_plans;
mod route_search;
mod routes;
mod screening;
mod search;
#[cfg(test)]
mod tests;
mod time_grid;
mod under_latency;
mod variants;

use crate::check::check;
use crate::cost::cost;
use crate::planner::{Planner, PlannerError, SearchLimits};
use crate::problem::Problem;
use crate::realise::{Placement, RealiseError, WorkerGroup, realise};
use crate::search_time::SearchTime;
use crate::solution::{Outcome, Solution, Status};
use equal_cost::more_accurate;
use model::Model;
use prepared::{LatencyRule, MemoryRule, Prepared};
use program::Point;
use search::{Found, Search};
use under_latency::under_latency;

pub(crate) const NAME: &str = "exact";

/// By how much all loads are raised, one after the other, where a point's plan does not fit.
const STRICTER: [f64; 3] = [1.0 + 1e-5, 1.0 + 1e-3, 1.02];

/// Worker classes whose memory is in the program from which on searches take long.
const LONG: usize = 2;

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
        more_accurate(problem, excluded, &mut search, &mut found)?;
        found.plan = found.plan.map(|(cost, solution)| (cost, modes::one_mode_each(problem, solution)));
        Ok(found.outcome(limits, &search))
    }
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

    /// What does not cost less than this is not looked for; without a plan infinite.
    fn cutoff(&self, gap: f64) -> f64 {
        self.plan.as_ref().map_or(f64::INFINITY, |(cost, _)| cost * (1.0 - gap))
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
                // Where a limit ended the search, its point may have workers without work, which the plan does not rent.
                let near = 1e-5 * point.cost.abs().max(1.0);
                let differs = total > point.cost + near || (strictness == 1.0 && total < next.bound - near);
                if differs && prepared.plans_routes && !has_latency {
                    let (planned, bound) = (point.cost, next.bound);
                    return Err(fault(&format!(
                        "the program's cost is {planned}, at least {bound}, the plan's {total}"
                    )));
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
                let enough = found.bound / (1.0 - search.limits.gap);
                let variants = model.joint(&point.values);
                let small = too_small(problem, &extract::placement(&prepared, &model, &point.values));
                if let Some((total, solution)) = fitted(problem, &rules, &variants, small, enough, search)? {
                    found.offer(total, solution);
                    if found.is_close(search.limits.gap) {
                        return Ok(());
                    }
                }
                if let Some(known) = &found.plan {
                    search.know(known);
                }
                // Counted rows settle most cases; a class of few workers is as quick with each by itself.
                let is_counted =
                    rules[class] == MemoryRule::Ignored && problem.worker_classes[class].count > 4;
                rules[class] = if is_counted { MemoryRule::Counted } else { MemoryRule::Single };
                // What follows may end at a limit, and a heuristic's plan be better than all that was found.
                let with_memory = rules.iter().filter(|rule| **rule != MemoryRule::Ignored).count();
                let is_long = found.plan.is_none() || with_memory >= LONG;
                if is_long
                    && !has_latency
                    && let Some((total, solution)) = search.incumbent(problem, excluded)?.clone()
                {
                    found.offer(total, solution);
                    if found.is_close(search.limits.gap) {
                        return Ok(());
                    }
                }
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
    enough: f64,
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
        let Some((model, point)) = search.with_variants(&prepared, variants, enough) else { break };
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
