//! A point of the program as single workers, with a fallback for each set of them.
use super::super::tuning::MOST_LOSS_SETS;
use super::case_program::{CaseColumns, LossProgram};
use super::losses::sets;
use super::space::Space;
use crate::realise::{Lane, Pattern, RealiseError, SMALL_SHARE, route};
use crate::solution::{Fallback, Hosting, RouteClass, Solution, UsedWorker};
use std::collections::BTreeMap;

/// Why a point is no plan.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum NoPlan {
    /// More sets of workers than a plan has fallbacks for.
    Sets(usize),
    /// Routes and workers contradict each other.
    Realise(RealiseError),
}

/// Workers of the groups in use: group, worker.
type Crew = Vec<(usize, UsedWorker)>;

/// Converts a point with whole numbers to a plan.
pub(super) fn realised(space: &Space<'_>, model: &LossProgram, values: &[f64]) -> Result<Solution, NoPlan> {
    let mut next: BTreeMap<usize, u32> = BTreeMap::new();
    let mut crew: Crew = Vec::new();
    let base = &model.cases[0];
    for (group, columns) in model.workers.iter().enumerate() {
        let count = columns.iter().map(|column| values[*column].round() as u32).sum::<u32>();
        if !is_busy(space, base, values, group) {
            continue; // rented for nothing, by a search that ended early
        }
        let class = space.groups[group].class;
        for _ in 0..count {
            let index = next.entry(class).or_insert(0);
            crew.push((group, UsedWorker { class, index: *index }));
            *index += 1;
        }
    }
    let mut solution = routed(space, base, values, &crew).map_err(NoPlan::Realise)?;
    // By its own order of workers, which `routed` may have changed.
    let group_of =
        |worker: &UsedWorker| crew.iter().find(|(_, other)| other == worker).map(|(group, _)| *group);
    let groups: Vec<usize> = solution.workers.iter().filter_map(group_of).collect();
    let most = space.problem.limits.survive;
    let sets = sets(solution.workers.len(), most);
    if sets.len() > MOST_LOSS_SETS {
        return Err(NoPlan::Sets(sets.len()));
    }
    for lost in sets {
        let mut by_group = vec![0u32; space.groups.len()];
        lost.iter().for_each(|worker| by_group[groups[*worker]] += 1);
        let left: Crew = (0..solution.workers.len())
            .filter(|worker| !lost.contains(worker))
            .map(|worker| (groups[worker], solution.workers[worker]))
            .collect();
        let case = case_for(space, model, &by_group, lost.len() as u32);
        let after = match case {
            Some(case) => routed(space, case, values, &left).map_err(NoPlan::Realise)?,
            None => continue, // the check finds that it is missing
        };
        let fallback = fallback_of(&solution, lost, after);
        solution.fallbacks.push(fallback);
    }
    Ok(solution)
}

/// The case whose routes hold after a loss: that loss, or one of more workers that includes it.
fn case_for<'a>(
    space: &Space<'_>,
    model: &'a LossProgram,
    lost: &[u32],
    size: u32,
) -> Option<&'a CaseColumns> {
    // An operator that survives this loss must survive that of the case.
    let needed = |total: u32| {
        let mut operators = space.problem.operators.iter();
        operators.all(|operator| operator.survive < size || operator.survive >= total)
    };
    let covers = |case: &&CaseColumns| {
        let total: u32 = case.lost.iter().sum();
        total > 0 && case.lost.iter().zip(lost).all(|(a, b)| a >= b) && needed(total)
    };
    // The nearest: where it takes more, from groups that lose workers anyway.
    let others = |case: &&CaseColumns| {
        let total: u32 = case.lost.iter().sum();
        let elsewhere = case.lost.iter().zip(lost).filter(|(a, b)| **a > 0 && **b == 0).count();
        (total, elsewhere)
    };
    model.cases.iter().filter(covers).min_by_key(others)
}

fn is_busy(space: &Space<'_>, case: &CaseColumns, values: &[f64], group: usize) -> bool {
    let all = space.choices.iter().zip(&case.shares);
    let mut here = all.flat_map(|(choices, shares)| choices.iter().zip(shares));
    here.any(|(choice, share)| choice.group == group && values[*share] > SMALL_SHARE)
}

/// Single workers and route classes of a case; every worker of a group gets an equal part of the group's work.
fn routed(
    space: &Space<'_>,
    case: &CaseColumns,
    values: &[f64],
    crew: &[(usize, UsedWorker)],
) -> Result<Solution, RealiseError> {
    let has_latency = !space.problem.limits.latency.is_empty();
    let (mut hostings, mut lanes) = (Vec::new(), Vec::new());
    for (operator, choices) in space.choices.iter().enumerate() {
        for (choice, share) in choices.iter().zip(&case.shares[operator]) {
            let share = values[*share];
            if share <= SMALL_SHARE {
                continue;
            }
            let there: Vec<usize> =
                (0..crew.len()).filter(|worker| crew[*worker].0 == choice.group).collect();
            for worker in &there {
                let lane = Lane { group: choice.group, mode: choice.mode };
                lanes.push(has_latency.then_some(lane));
                hostings.push(Hosting {
                    operator,
                    worker: Some(*worker),
                    location: space.groups[choice.group].location,
                    mode: choice.mode,
                    share: share / there.len() as f64,
                    wait_seconds: space.groups[choice.group].wait,
                    device: None,
                });
            }
        }
    }
    let patterns = space.tuples.iter().zip(&case.tuples).map(|(tuple, column)| {
        let places =
            || tuple.places.iter().enumerate().map(|(operator, place)| &space.places[operator][*place]);
        let lanes = places().map(|place| place.lane.map(|(group, mode)| Lane { group, mode }));
        Pattern {
            share: values[*column],
            sources: space.sources_of(&tuple.origins),
            operators: places().map(|place| place.location).collect(),
            lanes: if has_latency { lanes.collect() } else { Vec::new() },
        }
    });
    let patterns: Vec<Pattern> = patterns.collect();
    let workers = crew.iter().map(|(_, worker)| *worker).collect();
    route(space.problem, space.variants.clone(), workers, hostings, lanes, &patterns)
}

/// Expresses routes over single workers by the hostings of a plan, and those that start.
fn fallback_of(plan: &Solution, lost: Vec<usize>, after: Solution) -> Fallback {
    let mut starts: Vec<Hosting> = Vec::new();
    let mut place: Vec<usize> = Vec::new();
    for hosting in &after.hostings {
        let worker = hosting.worker.map(|worker| after.workers[worker]);
        let alike = |known: &Hosting| {
            (known.operator, known.mode, known.location) == (hosting.operator, hosting.mode, hosting.location)
                && known.worker.map(|worker| plan.workers[worker]) == worker
        };
        place.push(plan.hostings.iter().position(alike).unwrap_or_else(|| {
            let own = worker.and_then(|worker| plan.workers.iter().position(|other| *other == worker));
            starts.push(Hosting { worker: own, ..hosting.clone() });
            plan.hostings.len() + starts.len() - 1
        }));
    }
    let class = |class: RouteClass| RouteClass {
        hostings: class.hostings.iter().map(|hosting| place[*hosting]).collect(),
        ..class
    };
    Fallback { lost, starts, classes: after.classes.into_iter().map(class).collect() }
}
