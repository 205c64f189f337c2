//! Rates that the workers of a plan carry after a loss.
use super::super::program::{Answer, Effort, Program, Terms};
use super::losses::sets;
use super::space::Space;
use super::{STRICTER, restarts, unsupported};
use crate::planner::PlannerError;
use crate::problem::Problem;
use crate::solution::Solution;
use std::collections::BTreeMap;

/// Part of a plan after a loss of workers.
#[derive(Debug, Clone, PartialEq)]
pub struct Capacity {
    /// Positions of the lost workers in the solution.
    pub lost: Vec<usize>,
    /// Operators without a stage: their models are nowhere loaded any more.
    pub without_stage: Vec<usize>,
    /// Part of the rate that the others carry within all levels; 0 where an operator has no stage.
    pub carried: f64,
}

/// Returns what is left of a plan after every loss of exactly this number of workers, with the stages that it has: operators with
/// state, and those that cost nothing, may start again on other workers.
///
/// # Errors
/// Too many routes; a failure of the solver.
pub fn capacity(problem: &Problem, solution: &Solution, losses: u32) -> Result<Vec<Capacity>, PlannerError> {
    let problem = &*problem.at(&solution.variants);
    let stays: Vec<bool> = problem.operators.iter().map(|operator| !restarts(operator)).collect();
    let space = Space::of_plan(problem, solution, &stays)
        .map_err(|_| unsupported("the plan has too many routes to list for each loss"))?;
    let all = sets(solution.workers.len(), losses);
    let of_size = all.into_iter().filter(|set| set.len() == losses as usize);
    of_size.map(|lost| after(&space, solution, lost, &stays)).collect()
}

fn after(
    space: &Space<'_>,
    solution: &Solution,
    lost: Vec<usize>,
    stays: &[bool],
) -> Result<Capacity, PlannerError> {
    let has_stage = |operator: usize| {
        let mut hostings = solution.hostings.iter().filter(|hosting| hosting.operator == operator);
        hostings.any(|hosting| hosting.worker.is_none_or(|worker| !lost.contains(&worker)))
    };
    let without_stage: Vec<usize> =
        (0..stays.len()).filter(|operator| stays[*operator] && !has_stage(*operator)).collect();
    let carried = if without_stage.is_empty() { carried(space, &lost)? } else { 0.0 };
    Ok(Capacity { lost, without_stage, carried })
}

/// The largest part of the rate that routes over the surviving workers carry, by a linear program.
fn carried(space: &Space<'_>, lost: &[usize]) -> Result<f64, PlannerError> {
    let problem = space.problem;
    let mut program = Program::default();
    let dropped = program.real(1.0, 0.0, 1.0);
    let tuples: Vec<usize> = space.tuples.iter().map(|_| program.real(0.0, 0.0, 1.0)).collect();
    for (index, origin) in space.origins.iter().enumerate() {
        for (at, (_, share)) in origin.locations.iter().enumerate() {
            let of = space.tuples.iter().zip(&tuples).filter(|(tuple, _)| tuple.origins[index] == at);
            let mut terms: Terms = of.map(|(_, column)| (*column, 1.0)).collect();
            terms.push((dropped, *share));
            program.equal(terms, *share);
        }
    }
    let mut loads: BTreeMap<(usize, bool), Terms> = BTreeMap::new();
    for (operator, choices) in space.choices.iter().enumerate() {
        let most = |group| if lost.contains(&group) { 0.0 } else { 1.0 };
        let own: Vec<usize> =
            choices.iter().map(|choice| program.real(0.0, 0.0, most(choice.group))).collect();
        for place in 0..space.places[operator].len() {
            let passing = space.tuples.iter().zip(&tuples).filter(|(t, _)| t.places[operator] == place);
            let mut terms: Terms = passing.map(|(_, column)| (*column, -1.0)).collect();
            if problem.operators[operator].weightless {
                let location = space.places[operator][place].location;
                let is_left = |(group, of): (usize, &super::space::Group)| {
                    of.location == location && !lost.contains(&group)
                };
                if !space.groups.iter().enumerate().any(is_left) {
                    program.equal(terms, 0.0);
                }
                continue;
            }
            let here = choices.iter().zip(&own).filter(|(choice, _)| choice.place == place);
            terms.extend(here.map(|(_, column)| (*column, 1.0)));
            program.equal(terms, 0.0);
        }
        for (choice, column) in choices.iter().zip(&own) {
            loads.entry((choice.group, false)).or_default().push((*column, choice.load));
            loads.entry((choice.group, true)).or_default().push((*column, choice.wait_load));
        }
    }
    loads.into_values().for_each(|terms| program.at_most(terms, STRICTER[1]));
    let mut used: BTreeMap<(usize, usize), Terms> = BTreeMap::new();
    for (tuple, column) in space.tuples.iter().zip(&tuples) {
        for (from, to, bytes) in space.traffic(tuple) {
            used.entry((from, to)).or_default().push((*column, bytes));
        }
    }
    for ((from, to), terms) in used {
        if let Some(bandwidth) = problem.route(from, to).and_then(|route| route.bandwidth) {
            let scale = bandwidth.max(1.0);
            program.at_most(terms.into_iter().map(|(c, b)| (c, b / scale)).collect(), bandwidth / scale);
        }
    }
    match program.solve(&Effort { relaxed: true, seconds: f64::INFINITY, ..Effort::default() }) {
        Answer::Found(point) => Ok((1.0 - point.cost).clamp(0.0, 1.0)),
        Answer::Infeasible => Ok(0.0),
        Answer::Nothing { .. } => Err(super::fault(&"the solver failed for a loss")),
    }
}
