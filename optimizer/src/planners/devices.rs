//! Models on devices: branch and bound around a planner that knows only workers.
//!
//! Every operator has options: all of its records run where their stages are, or all run on devices of one class, with
//! one variant in one mode. A part of the problem ([`part::Part`]) leaves each operator some of its options. It is
//! planned as a problem without devices (`devices/plain.rs`), in which an operator with one option is exact, and what
//! is open costs no more than any of its options. So the optimum of a part is a bound, and the plan of a part in which
//! nothing is open is a plan of the whole. A part is divided by the first operator whose plan uses an open option.
//!
//! Under latency limits a record waits for the device. As for workers, the plan chooses from [`Limits::waits`]: a device
//! keeps a wait if its effective load is at most 1 (`queueing`).
//!
//! [`Limits::waits`]: crate::problem::Limits::waits
mod part;
mod plain;

use super::exact::{concluded, is_better};
use crate::check::check;
use crate::cost::cost;
use crate::planner::{PlannerError, SearchLimits};
use crate::problem::Problem;
use crate::search_time::SearchTime;
use crate::solution::{Outcome, Status};
use part::Part;
use plain::Plain;

/// Whether some model can run on a device.
pub(super) fn are_offered(problem: &Problem) -> bool {
    problem.has_remotes()
}

/// Most parts of a problem that are planned; unplanned ones keep their bound.
const MOST_PARTS: usize = 4096;

/// Plans with a planner that knows no devices; `plan` gets joint variants that no plan may have.
///
/// # Errors
/// Errors of the planner.
pub(super) fn planned(
    problem: &Problem,
    limits: &SearchLimits,
    excluded: &[Vec<usize>],
    planner: &str,
    plan: impl Fn(&Problem, &SearchLimits, &[Vec<usize>]) -> Result<Outcome, PlannerError>,
) -> Result<Outcome, PlannerError> {
    let time = SearchTime::begin();
    let mut all = Outcome { bound: Some(f64::INFINITY), ..Outcome::infeasible(planner, true) };
    // Without devices first: that plan bounds the search.
    let whole = Part::whole(problem);
    let mut open: Vec<(f64, Part)> = vec![(0.0, whole.clone()), (f64::NEG_INFINITY, whole.local(problem))];
    let (mut looked_at, mut is_out_of_time, mut is_limited) = (0, false, false);
    let prove = |all: &mut Outcome, bound: f64| all.bound = all.bound.map(|least: f64| least.min(bound));
    while let Some(next) = (0..open.len()).min_by(|a, b| open[*a].0.total_cmp(&open[*b].0)) {
        let (known, part) = open.remove(next);
        let left = limits.wall_seconds.map(|_| time.left_of(limits.wall_seconds));
        is_out_of_time |= looked_at > 1 && left.is_some_and(|left| left <= 0.0);
        let is_dearer = all.cost.is_some_and(|cost| known >= cost * (1.0 - limits.gap));
        if is_dearer || is_out_of_time || looked_at == MOST_PARTS {
            prove(&mut all, known.max(0.0));
            continue;
        }
        looked_at += 1;
        let Some(plain) = Plain::new(problem, &part) else { continue };
        let own = SearchLimits {
            wall_seconds: left.map(|left| left.max(0.0) / (open.len() + 1) as f64),
            ..*limits
        };
        let found = plan(&plain.problem, &own, &plain.excluded(excluded))?;
        all.nodes += found.nodes;
        all.has_asked_highs |= found.has_asked_highs;
        is_limited |= found.status == Status::TimeLimited;
        let bound = found.bound.unwrap_or(0.0).max(known);
        let Some(solution) = found.solution else {
            prove(&mut all, bound);
            continue;
        };
        let divided = part.divided(problem, &plain.used(&solution));
        if divided.is_empty() {
            let solution = plain.of_whole(problem, solution);
            let fault = |reason: String| PlannerError::Fault { planner: planner.to_owned(), reason };
            if let Some(violation) = check(problem, &solution).first() {
                return Err(fault(format!("a plan with devices: {violation}")));
            }
            let total = cost(problem, &solution).map_err(|error| fault(error.to_string()))?.total();
            prove(&mut all, bound.min(total));
            if is_better(problem, (total, &solution), all.cost.zip(all.solution.as_ref())) {
                (all.cost, all.solution) = (Some(total), Some(solution));
            }
        }
        open.extend(divided.into_iter().map(|part| (bound, part)));
    }
    all.seconds = time.seconds();
    Ok(concluded(all, limits, is_out_of_time || is_limited))
}

/// Plans every choice of one option for each operator by a planner that knows no devices: without bounds, for problems
/// that are small enough.
///
/// # Errors
/// Errors of the planner.
pub(super) fn each(
    problem: &Problem,
    limits: &SearchLimits,
    planner: &str,
    plan: impl Fn(&Problem, &SearchLimits) -> Result<Outcome, PlannerError>,
) -> Result<Outcome, PlannerError> {
    let time = SearchTime::begin();
    let mut all = Outcome { bound: Some(f64::INFINITY), ..Outcome::infeasible(planner, true) };
    for part in Part::whole(problem).every_choice(problem) {
        let Some(plain) = Plain::new(problem, &part) else { continue };
        let found = plan(&plain.problem, limits)?;
        all.nodes += found.nodes;
        all.bound = all.bound.zip(found.bound).map(|(least, bound)| least.min(bound));
        if let (Some(total), Some(solution)) = (found.cost, found.solution) {
            let solution = plain.of_whole(problem, solution);
            if is_better(problem, (total, &solution), all.cost.zip(all.solution.as_ref())) {
                (all.cost, all.solution) = (Some(total), Some(solution));
            }
        }
    }
    all.seconds = time.seconds();
    Ok(concluded(all, limits, false))
}
