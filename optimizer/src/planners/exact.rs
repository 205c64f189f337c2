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
//! Plans that survive the loss of workers have a program of their own (`exact/survive.rs`).
//!
//! Under latency limits plans consist of whole routes, each of which ends in time, so a plan may pair a slow worker of
//! one operator with a fast one of the next (`exact/routes.rs`). Each joint variant is bounded by its relaxation over
//! routes, or by the prices of another's (`exact/screening.rs`); the few that remain are searched with one variant of
//! each operator (`exact/one_joint.rs`), in a flow whose times are rounded down (`exact/latency_times.rs`). Where joint
//! variants are too many to list, those near the best plan are searched, and the bound is that without the limits. The
//! limits and plans under looser ones determine the waits to choose from (`exact/waits.rs`). Bounds hold for every
//! wait: they count intervals of waits (`exact/wait_levels.rs`), which are split where the relaxation needs it
//! (`exact/narrow_waits.rs`). [`crate::solution::Status::Optimal`] means that the plan meets the bound; [`crate::solution::Status::Infeasible`] is proven
//! where the bound is infinite.
mod accuracy_rows;
mod best;
mod cases;
mod dive;
mod equal_cost;
mod extract;
mod fault;
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
pub(crate) mod survive;
#[cfg(test)]
mod tests;
mod time_grid;
mod tuning;
mod under_latency;
mod variants;
mod wait_levels;
mod waits;

use super::{devices, one_worker};
use crate::check::check;
use crate::cost::cost;
use crate::planner::{Planner, PlannerError, SearchLimits};
use crate::problem::Problem;
use crate::realise::{RealiseError, realise};
use crate::search_time::SearchTime;
use crate::solution::{Outcome, Solution};
use best::{Best, too_small};
pub(super) use cases::{concluded, is_better};
use equal_cost::more_accurate;
use extract::realised;
use fault::{NAME, fault};
use prepared::{LatencyRule, MemoryRule, Prepared};
use search::{Found, Search};
pub(crate) use survive::restarts;
pub use survive::{Capacity, capacity};
use tuning::{PROGRAMS_UNDER_LATENCY, STRICTER};
use under_latency::under_latency;

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
        if problem.limits.survive > 0 {
            return survive::planned(problem, limits, excluded);
        }
        if !problem.limits.latency.is_empty() && problem.limits.wait_levels.is_empty() {
            return waits::with_waits(problem, limits, |problem, limits, asked| {
                self.plan_with_devices(problem, limits, excluded, asked)
            });
        }
        self.plan_with_devices(problem, limits, excluded, Asked::default())
    }

    /// Plans a checked problem with the waits that it lists, models on devices or not.
    fn plan_with_devices(
        &self,
        problem: &Problem,
        limits: &SearchLimits,
        excluded: &[Vec<usize>],
        asked: Asked<'_>,
    ) -> Result<Outcome, PlannerError> {
        if !devices::are_offered(problem) {
            return self.plan_with_levels(problem, limits, excluded, asked);
        }
        let of_part = Asked { known: None, ..asked };
        devices::planned(problem, limits, excluded, asked.known, NAME, |part, limits, excluded| {
            self.plan_with_levels(part, limits, excluded, of_part)
        })
    }

    /// Plans a checked problem without devices, with the waits that it lists.
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
        let mut found = Best { plan: None, bound: limits.floor, ceiling: limits.ceiling };
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
        if !found.is_done(limits.gap) {
            let known = search.incumbent(problem, excluded)?.clone();
            if let Some((cost, solution)) = known {
                found.offer(cost, solution);
            }
        }
        if found.bound < found.ceiling {
            more_accurate(problem, excluded, &mut search, &mut found)?;
        }
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
                // A floor is that of the whole, of which this may be a relaxation.
                let is_proven = strictness == 1.0 && next.bound > search.limits.floor;
                let differs = total > point.cost + near || (is_proven && total < next.bound - near);
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
                    if found.is_done(search.limits.gap) {
                        return Ok(());
                    }
                }
                // These variants often fit with at most one more worker, at a cost within the gap.
                let enough = found.bound / (1.0 - search.limits.gap);
                let variants = model.joint(&point.values);
                let small = too_small(problem, &extract::placement(&prepared, &model, &point.values));
                if let Some((total, solution)) = fitted(problem, &rules, &variants, small, enough, search)? {
                    found.offer(total, solution);
                    if found.is_done(search.limits.gap) {
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
