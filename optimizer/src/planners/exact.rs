//! The exact planner: a mixed-integer linear program over variants, numbers of workers, shares and routes together.
//!
//! Identical workers are aggregated, flows are shares of the keys by location, variants are the only binaries. Where
//! few joint variants remain after dominance, each is bounded by its relaxation and the promising ones are solved.
//! Otherwise one program holds all, with a first point from its rounded relaxation; variants that cannot be part of a
//! cheaper plan are soon removed (`exact/probing.rs`). Memory is checked afterwards and enters the program only where
//! the models of a plan do not fit. Every plan is checked by [`crate::check`] before it is returned. Where a point
//! cannot be realised, the program is made stricter; the last resort is the cheapest plan of the heuristics.
//!
//! Of plans with equal cost, a more accurate one on the same workers is taken (`exact/equal_cost.rs`).
//!
//! Where rates depend on variants, parts of the problem with fixed rates are planned one by one (`exact/cases.rs`).
//! Where sizes depend on variants before the sender, parts are bounded by their smallest sizes (`exact/sizes.rs`).
//!
//! Under latency limits plans consist of whole routes, each of which ends in time, so a plan may pair a slow worker of
//! one operator with a fast one of the next (`exact/routes.rs`). Each joint variant is bounded by its relaxation over
//! routes, or by the prices of another's (`exact/screening.rs`); the few that remain are searched with one variant of
//! each operator (`exact/one_joint.rs`), in a flow whose times are rounded down (`exact/latency_times.rs`). Where joint
//! variants are too many to list, those near the best plan are searched, and the bound is that without the limits. The
//! limits and plans under looser ones determine the waits to choose from (`exact/waits.rs`). Bounds hold for every
//! wait: they count intervals of waits (`exact/wait_levels.rs`), which are split where the relaxation needs it
//! (`exact/narrow_waits.rs`). [`Status::Optimal`] means that the plan meets the bound; [`Status::Infeasible`] is proven
//! where the bound is infinite.
mod accuracy_rows;
mod cases;
mod dive;
mod equal_cost;
mod extract;
mod first_point;
mod highs;
mod incumbent;
mod latency_rows;
mod latency_times;
mod live;
mod model;
mod modes;
mod narrow_waits;
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
mod sizes;
#[cfg(test)]
mod tests;
mod time_grid;
mod tuning;
mod under_latency;
mod variants;
mod wait_levels;
mod waits;

use super::one_worker;
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
use tuning::{PROGRAMS_UNDER_LATENCY, STRICTER};
use under_latency::under_latency;

pub(crate) const NAME: &str = "exact";

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
    /// Returns the best plan with none of these joint variants (one variant per operator each).
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
        if !problem.limits.latency.is_empty() && problem.limits.wait_levels.is_empty() {
            return waits::with_waits(problem, limits, |problem, limits, asked| {
                self.plan_with_levels(problem, limits, excluded, asked)
            });
        }
        self.plan_with_levels(problem, limits, excluded, Asked::default())
    }

    /// Plans a checked problem with the waits that it lists.
    fn plan_with_levels(
        &self,
        problem: &Problem,
        limits: &SearchLimits,
        excluded: &[Vec<usize>],
        asked: Asked<'_>,
    ) -> Result<Outcome, PlannerError> {
        if one_worker::is_asked(problem) {
            return one_worker::planned(problem, limits, NAME, |part, limits| {
                self.plan_with_levels(part, limits, excluded, asked)
            });
        }
        match problem.rates {
            Some(_) => cases::by_cases(problem, limits, excluded, asked),
            None => self.plan_at_rates(problem, limits, excluded, asked),
        }
    }

    /// The best plan of a checked problem with fixed rates.
    fn plan_at_rates(
        &self,
        problem: &Problem,
        limits: &SearchLimits,
        excluded: &[Vec<usize>],
        asked: Asked<'_>,
    ) -> Result<Outcome, PlannerError> {
        match problem.sizes.is_empty() {
            true => self.plan_fixed(problem, limits, excluded, asked),
            false => sizes::by_sizes(problem, limits, excluded, asked),
        }
    }

    /// The best plan of a checked problem with fixed rates, and sizes that depend on their senders only.
    fn plan_fixed(
        &self,
        problem: &Problem,
        limits: &SearchLimits,
        excluded: &[Vec<usize>],
        asked: Asked<'_>,
    ) -> Result<Outcome, PlannerError> {
        let mut found = Best { plan: None, bound: 0.0 };
        if let Some(known) = asked
            .known
            .filter(|known| !excluded.contains(&known.variants) && check(problem, known).is_empty())
        {
            let total = cost(problem, known).map_err(|error| fault(&error))?.total();
            found.offer(total, known.clone());
        }
        let has_latency = !problem.limits.latency.is_empty();
        let nodes = if has_latency { (limits.nodes / PROGRAMS_UNDER_LATENCY).max(1) } else { limits.nodes };
        let mut search = Search::new(&SearchLimits { nodes, ..*limits }, SearchTime::begin());
        search.every_wait = asked.every_wait;
        if has_latency {
            under_latency(problem, excluded, &mut search, &mut found)?;
        } else {
            without_latency(problem, excluded, &mut search, &mut found)?;
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

/// Further demands on a search.
#[derive(Debug, Clone, Copy, Default)]
struct Asked<'a> {
    /// A known plan of the problem.
    known: Option<&'a Solution>,
    /// Whether bounds must hold for every wait, not only for those that plans choose from.
    every_wait: bool,
}

/// The best plan and bound so far.
#[derive(Debug)]
struct Best {
    /// The cheapest plan that passes the check, with its cost in $/h.
    plan: Option<(f64, Solution)>,
    /// No plan costs less; infinite: there is none.
    bound: f64,
}

impl Best {
    /// Whether the search is complete.
    fn is_close(&self, gap: f64) -> bool {
        let is_near =
            |(cost, _): &(f64, Solution)| Outcome::gap_between(*cost, self.bound.min(*cost)) <= gap + 1e-9;
        self.plan.as_ref().map_or(self.bound == f64::INFINITY, is_near)
    }

    /// Only plans below this cost are searched for; infinite without a plan.
    fn cutoff(&self, gap: f64) -> f64 {
        self.plan.as_ref().map_or(f64::INFINITY, |(cost, _)| cost * (1.0 - gap))
    }

    fn offer(&mut self, cost: f64, solution: Solution) {
        if self.plan.as_ref().is_none_or(|(least, _)| cost < *least) {
            self.plan = Some((cost, solution));
        }
    }

    /// Keeps the plan of a placement if it passes the check and is cheaper.
    fn offer_placement(
        &mut self,
        problem: &Problem,
        placement: Option<Placement>,
    ) -> Result<(), PlannerError> {
        match placement.and_then(|placement| realised_placement(problem, placement).ok()) {
            Some(solution) => self.offer_solution(problem, solution),
            None => Ok(()),
        }
    }

    /// Keeps a plan if it passes the check and is cheaper.
    fn offer_solution(&mut self, problem: &Problem, solution: Solution) -> Result<(), PlannerError> {
        if check(problem, &solution).is_empty() {
            let total = cost(problem, &solution).map_err(|error| fault(&error))?.total();
            self.offer(total, solution);
        }
        Ok(())
    }

    fn outcome(self, limits: &SearchLimits, search: &Search) -> Outcome {
        let is_close = self.is_close(limits.gap);
        let Some((total, solution)) = self.plan else {
            return without_plan(self.bound, search);
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
            has_asked_highs: search.has_asked_highs,
            seconds: search.time.seconds(),
        }
    }
}

/// Finds the cheapest plan and a bound without latency limits.
fn without_latency(
    problem: &Problem,
    excluded: &[Vec<usize>],
    search: &mut Search,
    found: &mut Best,
) -> Result<(), PlannerError> {
    let mut rules = vec![MemoryRule::Ignored; problem.worker_classes.len()];
    let mut stricter = STRICTER.iter();
    let mut strictness = 1.0;
    loop {
        let prepared = Prepared::new(problem, &rules, LatencyRule::Plan, strictness)?;
        let next = if prepared.is_servable() {
            search.best(&prepared, excluded)?
        } else {
            Found { best: None, bound: f64::INFINITY }
        };
        if strictness == 1.0 {
            found.bound = found.bound.max(next.bound);
        }
        let Some((model, point)) = next.best else { return Ok(()) };
        match realise(problem, &extract::placement(&prepared, &model, &point.values)) {
            Ok(solution) if check(problem, &solution).is_empty() => {
                let total = cost(problem, &solution).map_err(|error| fault(&error))?.total();
                // Where a limit ended the search, its point may have idle workers, which the plan does not rent.
                let near = 1e-5 * point.cost.abs().max(1.0);
                let differs = total > point.cost + near || (strictness == 1.0 && total < next.bound - near);
                if differs && prepared.plans_routes {
                    let (planned, bound) = (point.cost, next.bound);
                    return Err(fault(&format!(
                        "the program's cost is {planned}, at least {bound}, the plan's {total}"
                    )));
                }
                found.offer(total, solution);
                return Ok(());
            }
            // Routes made of flows do not keep every limit.
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
                // These variants often fit with at most one more worker, at a cost within the gap.
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
                // Counted rows settle most cases; a class of few workers is as quick with one row per worker.
                let is_counted =
                    rules[class] == MemoryRule::Ignored && problem.worker_classes[class].count > 4;
                rules[class] = if is_counted { MemoryRule::Counted } else { MemoryRule::Single };
            }
            // A rounded point: workers slightly over their cap.
            Ok(_) | Err(_) => match stricter.next() {
                Some(next) => strictness = *next,
                None => return Ok(()),
            },
        }
    }
}

/// Realises a point, with up to two more workers of a class whose models do not fit. Its cost counts them.
fn realised(
    problem: &Problem,
    prepared: &Prepared<'_>,
    model: &Model,
    point: &Point,
) -> Result<Solution, RealiseError> {
    realised_placement(problem, extract::placement(prepared, model, &point.values))
}

/// Realises a placement likewise.
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

/// Finds a plan with the given variants whose models fit, where they do not fit on that number of workers of a class.
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
        let prepared = Prepared::new(problem, &rules, LatencyRule::Plan, 1.0)?;
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

/// Worker classes, with numbers of workers, whose memory is too small for the models.
fn too_small(problem: &Problem, placement: &Placement) -> Vec<(usize, u32)> {
    let alone = |group: &WorkerGroup| {
        let of_group = Placement { groups: vec![group.clone()], ..placement.clone() };
        matches!(realise(problem, &of_group), Err(RealiseError::Memory { .. }))
    };
    let groups = placement.groups.iter().filter(|group| alone(group));
    groups.map(|group| (group.class, group.count)).collect()
}

/// The outcome without a plan: none exists where the bound is infinite, otherwise none was found.
fn without_plan(bound: f64, search: &Search) -> Outcome {
    let is_proven = bound == f64::INFINITY;
    Outcome {
        status: if is_proven || !search.by_time { Status::Infeasible } else { Status::TimeLimited },
        bound: Some(bound),
        nodes: search.nodes,
        has_asked_highs: search.has_asked_highs,
        seconds: search.time.seconds(),
        ..Outcome::infeasible(NAME, is_proven)
    }
}

pub(crate) fn fault(reason: &impl ToString) -> PlannerError {
    PlannerError::Fault { planner: NAME.to_owned(), reason: reason.to_string() }
}
