//! Models on devices: branch and bound around a planner that knows only workers.
//!
//! Every operator has options: all of its records run where their stages are, or all run on devices of one class, with
//! one variant in one mode. A part of the problem ([`part::Part`]) leaves each operator some of its options. It is
//! planned as a problem without devices (`devices/plain.rs`), in which an operator with one option is exact, and what
//! is open costs no more than any of its options. So the optimum of a part is a bound, and the plan of a part in which
//! nothing is open is a plan of the whole. A part is divided by the first operator whose plan uses an open option, by
//! the class of its devices first.
//!
//! Under latency limits a record waits for the device. As for workers, the plan chooses from [`Limits::waits`]: a device
//! keeps a wait if its effective load is at most 1 (`queueing`). The wait of a class is chosen as soon as some operator
//! surely uses it: it limits the models that the class takes, and so the variants and modes to try.
//!
//! At the same cost, models stay with their stages where they can.
//!
//! [`Limits::waits`]: crate::problem::Limits::waits
mod dominated;
mod forms;
mod part;
mod plain;

use super::exact::{concluded, is_better};
use crate::check::check;
use crate::cost::cost;
use crate::planner::{PlannerError, SearchLimits};
use crate::problem::Problem;
use crate::search_time::SearchTime;
use crate::solution::{Outcome, Solution, Status};
use part::Part;
use plain::Plain;
use std::collections::BTreeSet;

/// Whether some model can run on a device.
pub(super) fn are_offered(problem: &Problem) -> bool {
    problem.has_remotes()
}

/// Most parts of a problem that are planned; unplanned ones keep their bound.
const MOST_PARTS: usize = 4096;

/// Share of the remaining time for a plan of equal cost with one model less on devices.
const PART_FOR_FEWER: f64 = 0.1;

/// Plans with a planner that knows no devices; `plan` gets joint variants that no plan may have. `known` may be a plan of
/// the problem.
///
/// # Errors
/// Errors of the planner.
pub(super) fn planned(
    problem: &Problem,
    limits: &SearchLimits,
    excluded: &[Vec<usize>],
    known: Option<&Solution>,
    planner: &str,
    plan: impl Fn(&Problem, &SearchLimits, &[Vec<usize>]) -> Result<Outcome, PlannerError>,
) -> Result<Outcome, PlannerError> {
    let time = SearchTime::begin();
    let mut all = Outcome { bound: Some(f64::INFINITY), ..Outcome::infeasible(planner, true) };
    let fault = |reason: String| PlannerError::Fault { planner: planner.to_owned(), reason };
    let total = |solution: &Solution| match cost(problem, solution) {
        Ok(cost) => Ok(cost.total()),
        Err(error) => Err(fault(error.to_string())),
    };
    if let Some(known) =
        known.filter(|known| !excluded.contains(&known.variants) && check(problem, known).is_empty())
    {
        (all.cost, all.solution) = (Some(total(known)?), Some(known.clone()));
    }
    let whole = Part::whole(problem);
    let mut open: Vec<(f64, Part)> = vec![(limits.floor, whole.clone())];
    // Without devices first: that plan bounds the search. Where a bound is known already, a plan that reaches it is
    // found sooner along the plans of parts.
    let is_local_first = limits.floor <= 0.0;
    if is_local_first {
        open.push((f64::NEG_INFINITY, whole.local(problem)));
    }
    let (mut looked_at, mut is_out_of_time, mut is_limited) = (0, false, false);
    let mut best: Option<Part> = None;
    let prove = |all: &mut Outcome, bound: f64| all.bound = all.bound.map(|least: f64| least.min(bound));
    // Of parts with equal bounds the newest: it is the nearest to a plan of the whole.
    while let Some(next) = (0..open.len()).rev().min_by(|a, b| open[*a].0.total_cmp(&open[*b].0)) {
        let (known, part) = open.remove(next);
        if part.is_local() && is_local_first && looked_at > 0 {
            continue; // it was the first
        }
        let left = limits.wall_seconds.map(|_| time.left_of(limits.wall_seconds));
        is_out_of_time |= looked_at > 1 && left.is_some_and(|left| left <= 0.0);
        if known >= limits.cutoff(all.cost) || is_out_of_time || looked_at == MOST_PARTS {
            prove(&mut all, known.max(0.0));
            continue;
        }
        looked_at += 1;
        let Some(plain) = Plain::new(problem, &part) else { continue };
        let own = SearchLimits {
            wall_seconds: left.map(|left| left.max(0.0) / (open.len() + 1) as f64),
            ..limits.of_part(known, all.cost)
        };
        let found = plan(&plain.problem, &own, &plain.excluded(excluded))?;
        all.nodes += found.nodes;
        all.has_asked_highs |= found.has_asked_highs;
        is_limited |= found.status == Status::TimeLimited;
        // A part is as expensive as the whole at least.
        let bound = found.bound.unwrap_or(0.0).max(known).max(limits.floor);
        let used = found.solution.as_ref().map_or_else(
            // No plan below the ceiling was found, but one may exist: smaller parts have better bounds.
            || if bound < own.ceiling && own.ceiling.is_finite() { part.options.clone() } else { Vec::new() },
            |solution| plain.used(solution),
        );
        let divided = if used.is_empty() { Vec::new() } else { part.divided(problem, &used) };
        let Some(solution) = found.solution else {
            if divided.is_empty() {
                prove(&mut all, bound);
            }
            open.extend(divided.into_iter().map(|part| (bound, part)));
            continue;
        };
        if divided.is_empty() {
            let solution = plain.of_whole(problem, solution);
            if let Some(violation) = check(problem, &solution).first() {
                return Err(fault(format!("a plan with devices: {violation}")));
            }
            let total = total(&solution)?;
            prove(&mut all, bound.min(total));
            if is_better(problem, (total, &solution), all.cost.zip(all.solution.as_ref())) {
                (all.cost, all.solution) = (Some(total), Some(solution));
                best = Some(part);
            }
        }
        open.extend(divided.into_iter().map(|part| (bound, part)));
    }
    let remote = all.solution.as_ref().map(remote_operators).unwrap_or_default();
    for operator in remote.into_iter().filter(|_| limits.more_accurate && !is_out_of_time) {
        let (Some(part), Some(least), Some(known)) = (&best, all.cost, &all.solution) else { break };
        let part = part.with(operator, BTreeSet::from([None]));
        let Some(plain) = Plain::new(problem, &part) else { continue };
        let left = limits.wall_seconds.map(|_| PART_FOR_FEWER * time.left_of(limits.wall_seconds));
        let own = SearchLimits { wall_seconds: left, floor: least, ..limits.of_part(least, Some(least)) };
        let found = plan(&plain.problem, &own, &plain.excluded(excluded))?;
        all.nodes += found.nodes;
        let Some(solution) = found.solution.map(|solution| plain.of_whole(problem, solution)) else {
            continue;
        };
        let accuracy = |solution: &Solution| problem.accuracy_of(&solution.variants).unwrap_or(0.0);
        if check(problem, &solution).is_empty()
            && total(&solution)? <= own.ceiling
            && accuracy(&solution) >= accuracy(known)
        {
            (all.cost, all.solution, best) = (Some(total(&solution)?), Some(solution), Some(part));
        }
    }
    all.solution = all.solution.map(|solution| forms::quicker(problem, solution));
    all.seconds = time.seconds();
    Ok(concluded(all, limits, is_out_of_time || is_limited))
}

/// Operators of a plan whose models run on devices.
fn remote_operators(solution: &Solution) -> BTreeSet<usize> {
    let on_devices = solution.hostings.iter().filter(|hosting| hosting.device.is_some());
    on_devices.map(|hosting| hosting.operator).collect()
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
    for part in Part::every(problem).every_choice(problem) {
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
