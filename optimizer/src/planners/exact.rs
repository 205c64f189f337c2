//! The exact planner: a mixed-integer linear program over variants, numbers of workers, shares and routes together.
//!
//! Identical workers are aggregated, flows are shares of the keys by location, variants are the only binaries. Where
//! few joint variants are left after dominance, each is bounded by its relaxation and the promising ones are solved;
//! otherwise one program holds all, with an incumbent from the variants that its relaxation uses. Memory is looked at
//! after the fact and brought into the program only where the models of a plan do not fit. Every plan is checked by
//! [`crate::check`] before it is handed out.
mod accuracy_rows;
mod extract;
mod latency_rows;
mod model;
mod prepared;
mod program;
mod search;
#[cfg(test)]
mod tests;
mod variants;

use crate::check::check;
use crate::cost::cost;
use crate::planner::{Planner, PlannerError, SearchLimits};
use crate::problem::Problem;
use crate::realise::{RealiseError, realise};
use crate::search_time::SearchTime;
use crate::solution::{Outcome, Solution, Status};
use prepared::{MemoryRule, Prepared};
use search::{Found, Search};

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
        let time = SearchTime::begin();
        let mut search = Search::new(limits, time);
        let mut rules = vec![MemoryRule::Ignored; problem.worker_classes.len()];
        let mut bound = 0.0f64;
        loop {
            let prepared = Prepared::new(problem, &rules)?;
            let found = if prepared.is_servable() {
                search.best(&prepared, excluded)?
            } else {
                Found { best: None, bound: f64::INFINITY }
            };
            bound = bound.max(found.bound);
            let Some((model, point)) = found.best else {
                return Ok(without_plan(bound, &search));
            };
            let placement = extract::placement(&prepared, &model, &point.values);
            match realise(problem, &placement) {
                Ok(solution) => {
                    let planned = prepared.plans_routes.then_some(point.cost);
                    return finished(problem, limits, solution, planned, bound, &search);
                }
                Err(RealiseError::Memory { class, .. }) if rules[class] != MemoryRule::Single => {
                    // Counted rows settle most cases; a class of few workers is as quick with each by itself.
                    rules[class] = match rules[class] {
                        MemoryRule::Ignored if problem.worker_classes[class].count > 4 => MemoryRule::Counted,
                        _ => MemoryRule::Single,
                    };
                }
                Err(error) => return Err(fault(&error)),
            }
        }
    }
}

fn finished(
    problem: &Problem,
    limits: &SearchLimits,
    solution: Solution,
    planned: Option<f64>,
    bound: f64,
    search: &Search,
) -> Result<Outcome, PlannerError> {
    let violations = check(problem, &solution);
    if let Some(violation) = violations.first() {
        if planned.is_none() {
            // The routes made of flows do not keep every limit: there is no plan to show, only a bound.
            return Ok(without_plan(bound, search));
        }
        return Err(fault(&format!("the plan breaks {} limits; first: {violation}", violations.len())));
    }
    let total = cost(problem, &solution).map_err(|error| fault(&error))?.total();
    if let Some(planned) = planned.filter(|planned| (total - planned).abs() > 1e-5 * planned.abs().max(1.0)) {
        return Err(fault(&format!("the program's cost is {planned}, the plan's {total}")));
    }
    let bound = bound.min(total);
    let gap = Outcome::gap_between(total, bound);
    let status = if gap <= limits.gap + 1e-9 {
        Status::Optimal
    } else if search.by_time {
        Status::TimeLimited
    } else {
        Status::Feasible
    };
    Ok(Outcome {
        planner: NAME.to_owned(),
        status,
        solution: Some(solution),
        cost: Some(total),
        bound: Some(bound),
        gap: Some(gap),
        nodes: search.nodes,
        seconds: search.time.seconds(),
    })
}

/// No plan: none exists where the bound is infinite, otherwise none was found.
fn without_plan(bound: f64, search: &Search) -> Outcome {
    let is_proven = bound == f64::INFINITY;
    Outcome {
        status: if is_proven { Status::Infeasible } else { Status::TimeLimited },
        bound: Some(bound),
        nodes: search.nodes,
        seconds: search.time.seconds(),
        ..Outcome::infeasible(NAME, is_proven)
    }
}

pub(crate) fn fault(reason: &impl ToString) -> PlannerError {
    PlannerError::Fault { planner: NAME.to_owned(), reason: reason.to_string() }
}
