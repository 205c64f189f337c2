//! Plans that survive the loss of workers: joint variants one by one, each by one program over all losses.
//!
//! After every loss of so many workers the others keep all levels ([`crate::problem::Limits::survive`]), with routes of their own.
//! `survive/case_program.rs` has the program; whole routes are listed (`survive/space.rs`), so large problems are refused.
//! Bounds hold for every plan. Under latency limits the bound is that without them.
mod capacity;
mod case_program;
pub(crate) mod losses;
mod realised;
mod space;
#[cfg(test)]
mod tests;

pub use capacity::{Capacity, capacity};

use super::best::Best;
use super::fault::{NAME, fault};
use super::prepared::{LatencyRule, MemoryRule, Prepared};
use super::program::{Answer, Effort};
use super::search::Search;
use super::tuning::{MOST_LISTED, MOST_LOSS_COLUMNS, MOST_LOSS_SETS, MOST_SINGLE_WORKERS, MOST_TUPLES};
use super::variants::{listed, product};
use crate::check::check;
use crate::planner::{PlannerError, SearchLimits};
use crate::problem::{Operator, Problem};
use crate::search_time::SearchTime;
use crate::solution::Outcome;
use case_program::{LossProgram, losses};
use realised::{NoPlan, realised};
use space::{Memory, Space};

/// Factors of all loads, where the plan of a rounded point does not quite fit.
const STRICTER: [f64; 3] = [1.0, 1.0 + 1e-6, 1.0 + 1e-4];

fn unsupported(reason: impl Into<String>) -> PlannerError {
    PlannerError::Unsupported { planner: NAME.to_owned(), reason: reason.into() }
}

/// The cheapest plan of a checked problem that survives the losses it asks for.
pub(super) fn planned(
    problem: &Problem,
    limits: &SearchLimits,
    excluded: &[Vec<usize>],
) -> Result<Outcome, PlannerError> {
    let met = problem.operators.iter().find(|operator| operator.on_one_worker && !operator.weightless);
    if let Some(operator) = met {
        return Err(unsupported(format!(
            "all records of `{}` meet on one worker, whose loss no plan survives yet: give its sources the column that it groups or \
             joins by as their `key`, so that several workers share it, or plan without `survive`",
            operator.id
        )));
    }
    if problem.operators.iter().all(|operator| operator.weightless) {
        return Err(unsupported("no operator needs a worker"));
    }
    let problem = &*problem.without_remotes();
    let time = SearchTime::begin();
    let mut search = Search::new(limits, time);
    let joints = joints(problem, excluded)?;
    let mut found = Best { plan: None, bound: limits.floor, ceiling: limits.ceiling };
    if problem.limits.latency.is_empty() {
        let open = opened(problem, &joints, &mut search)?;
        best_of(problem, &open, &mut search, &mut found)?;
    } else {
        // The bounds without the levels hold with them. A quarter of the time is for them.
        let mut free = problem.clone();
        free.limits.latency.clear();
        let part = search.limits_of_part(0.25);
        let mut without = Best { plan: None, bound: limits.floor, ceiling: limits.ceiling };
        let open = search.under(part, |search| -> Result<_, PlannerError> {
            let open = opened(&free, &joints, search)?;
            best_of(&free, &open, search, &mut without)?;
            Ok(open)
        })?;
        found.bound = without.bound;
        if found.bound < f64::INFINITY {
            let mut own = Best { plan: None, bound: found.bound, ceiling: limits.ceiling };
            best_of(problem, &open, &mut search, &mut own)?;
            found.plan = own.plan;
        }
    }
    Ok(found.outcome(limits, &search))
}

/// All joint variants that keep the level on accuracy, without those that others beat in everything.
fn joints(problem: &Problem, excluded: &[Vec<usize>]) -> Result<Vec<Vec<usize>>, PlannerError> {
    let too_many =
        || unsupported("too many joint variants to plan each for every loss; list fewer `variants`");
    if problem.rates.is_none() && problem.sizes.is_empty() {
        let rules = vec![MemoryRule::Ignored; problem.worker_classes.len()];
        let prepared = Prepared::new(problem, &rules, LatencyRule::Bound, 1.0)?;
        return listed(&prepared, excluded).ok_or_else(too_many);
    }
    if problem.joint_variants() > MOST_LISTED {
        return Err(too_many());
    }
    let all: Vec<Vec<bool>> =
        problem.operators.iter().map(|operator| vec![true; operator.variants.len()]).collect();
    let mut joints = product(&all);
    joints.retain(|joint| problem.accepts(joint) && !excluded.contains(joint));
    Ok(joints)
}

/// A joint variant with the bound that its relaxation proves.
#[derive(Debug, Clone, Copy)]
struct Open<'a> {
    joint: &'a [usize],
    least: f64,
}

/// The joint variants that may have a plan, with the bounds of their relaxations, the least first.
fn opened<'a>(
    problem: &Problem,
    joints: &'a [Vec<usize>],
    search: &mut Search,
) -> Result<Vec<Open<'a>>, PlannerError> {
    let mut open: Vec<Open<'_>> = Vec::new();
    for joint in joints {
        let at = problem.at(joint);
        let Some((_, model)) = made(&at, joint, &[], Memory::Ignored, 1.0)? else { continue };
        match search.relaxed(&model.program) {
            Answer::Found(point) => open.push(Open { joint, least: point.cost }),
            Answer::Nothing { .. } => open.push(Open { joint, least: 0.0 }),
            Answer::Infeasible => {}
        }
    }
    open.sort_by(|a, b| a.least.total_cmp(&b.least));
    Ok(open)
}

/// Finds the cheapest plan of all joint variants; the bound of `found` grows to what is proven for all of them.
fn best_of(
    problem: &Problem,
    open: &[Open<'_>],
    search: &mut Search,
    found: &mut Best,
) -> Result<(), PlannerError> {
    let waits = problem.limits.waits();
    let mut bound = f64::INFINITY;
    for &Open { joint, least } in open {
        let cutoff = found.cutoff(search.limits.gap);
        if least >= cutoff - 1e-12 {
            bound = bound.min(least);
            break; // the others cost no less
        }
        let at = problem.at(joint);
        let proven = one_joint((problem, &at), joint, &waits, search, found)?;
        bound = bound.min(proven.max(least));
    }
    if let Some((cost, _)) = &found.plan {
        bound = bound.min(*cost);
    }
    found.bound = found.bound.max(bound);
    Ok(())
}

/// Plans with one variant of each operator; returns the bound for them.
fn one_joint(
    (problem, at): (&Problem, &Problem),
    joint: &[usize],
    waits: &[f64],
    search: &mut Search,
    found: &mut Best,
) -> Result<f64, PlannerError> {
    let limited: Vec<u32> = at
        .worker_classes
        .iter()
        .filter(|class| class.memory_bytes.is_some())
        .map(|class| class.count)
        .collect();
    let is_single = limited.iter().sum::<u32>() <= MOST_SINGLE_WORKERS;
    let memory = if is_single { Memory::Single } else { Memory::Uniform };
    let mut bound = 0.0f64;
    for memory in [Memory::Ignored, memory] {
        let mut is_too_large = false;
        for strictness in STRICTER {
            let Some((space, model)) = made(at, joint, waits, memory, strictness)? else {
                return Ok(if memory == Memory::Uniform { bound } else { f64::INFINITY });
            };
            let mut program = model.program.clone();
            let most = found.cutoff(search.limits.gap);
            if most.is_finite() {
                program.cheaper_than(most);
            }
            let effort = Effort { highs: search.limits.solver.highs(), ..search.effort(0.5) };
            let is_proof = strictness == 1.0 && memory != Memory::Uniform;
            let point = match search.solve(&program, &effort) {
                Answer::Found(point) => point,
                Answer::Nothing { bound: proven, .. } => {
                    return Ok(if is_proof { bound.max(proven) } else { bound });
                }
                Answer::Infeasible => return Ok(if is_proof { most } else { bound }),
            };
            if is_proof {
                bound = bound.max(point.bound);
            }
            // Whole numbers exactly, and a vertex, so that few shares are above 0.
            let fixed = model.program.with_integers_of(&point.values);
            let values = match search.relaxed(&fixed) {
                Answer::Found(whole) => whole.values,
                _ => point.values,
            };
            let solution = match realised(&space, &model, &values) {
                Ok(solution) => solution,
                Err(NoPlan::Sets(sets)) => {
                    return Err(unsupported(format!(
                        "the plan would need a fallback for each of {sets} sets of lost workers, and a plan has at most \
                         {MOST_LOSS_SETS}: survive fewer losses"
                    )));
                }
                Err(NoPlan::Realise(_)) => continue,
            };
            let violations = check(problem, &solution);
            if violations.is_empty() {
                let total = crate::cost::cost(problem, &solution).map_err(|error| fault(&error))?.total();
                found.offer(total, solution);
                return Ok(bound);
            }
            if violations.iter().any(crate::check::Violation::is_of_memory) {
                is_too_large = true;
                break;
            }
        }
        if !is_too_large {
            return Ok(bound);
        }
    }
    Ok(bound)
}

/// The possibilities and the program; none where an operator has no place.
fn made<'a>(
    problem: &'a Problem,
    joint: &[usize],
    waits: &[f64],
    memory: Memory,
    strictness: f64,
) -> Result<Option<(Space<'a>, LossProgram)>, PlannerError> {
    // The fewer waits to choose from, the fewer routes.
    let fewer = [
        waits.to_vec(),
        waits.iter().copied().skip(1).step_by(2).collect(),
        waits.iter().copied().skip(2).take(1).collect(),
    ];
    let mut spaces = fewer.iter().filter(|waits| !waits.is_empty() || problem.limits.latency.is_empty());
    let space = spaces.find_map(|waits| Space::new(problem, joint, waits, memory, strictness).ok());
    let space = space.ok_or_else(|| {
        unsupported(format!(
            "more than {MOST_TUPLES} whole routes from operator to operator: with `survive`, drop the latency level \
             (`--slo latency=none`), list fewer `variants`, or plan fewer tiers at once"
        ))
    })?;
    let is_servable = space.places.iter().all(|places| !places.is_empty());
    if !is_servable || space.tuples.is_empty() {
        return Ok(None);
    }
    let losses = losses(&space);
    let choices: usize = space.choices.iter().map(Vec::len).sum();
    let columns = (space.tuples.len() + choices) * (losses.len() + 1);
    if columns > MOST_LOSS_COLUMNS {
        return Err(unsupported(format!(
            "{} losses of groups of alike workers and {} routes make a program of {columns} columns, and at most \
             {MOST_LOSS_COLUMNS} are planned: survive fewer losses, or use fewer types of workers",
            losses.len(),
            space.tuples.len()
        )));
    }
    let model = LossProgram::new(&space, &losses);
    Ok(Some((space, model)))
}

/// Whether an operator continues after a loss only with a restart: its state is in the checkpoint, or it costs nothing to start.
pub(crate) fn restarts(operator: &Operator) -> bool {
    operator.stateful || operator.weightless || operator.on_one_worker
}
