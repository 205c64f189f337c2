//! Tensors or rows where both cost the same: the form with which a batch takes less time.
use crate::check::check;
use crate::cost::cost;
use crate::problem::{Problem, Remote};
use crate::solution::Solution;

/// Costs that differ by no more than this share are equal.
const SAME_COST: f64 = 1e-9;

/// Returns the plan with the quicker form of each model's records on a device, where that costs no more and keeps all limits.
pub(super) fn quicker(problem: &Problem, mut solution: Solution) -> Solution {
    for operator in 0..problem.operators.len() {
        let Some(other) = in_other_form(problem, &solution, operator) else { continue };
        let costs_no_more = || {
            let both = cost(problem, &other).ok().zip(cost(problem, &solution).ok());
            both.is_some_and(|(new, old)| new.total() <= old.total() + SAME_COST * old.total().max(1.0))
        };
        let is_quicker = seconds(problem, &other, operator) < seconds(problem, &solution, operator);
        if is_quicker && costs_no_more() && check(problem, &other).is_empty() {
            solution = other;
        }
    }
    solution
}

/// The plan with the other form of an operator's records, if all of its stages have it.
fn in_other_form(problem: &Problem, solution: &Solution, operator: usize) -> Option<Solution> {
    let first = solution.hostings.iter().find(|hosting| hosting.operator == operator)?;
    let form: &Remote = problem.other_form(solution, first)?;
    let variant = &problem.operators[operator].variants[solution.variants[operator]];
    let mut other = solution.clone();
    for hosting in other.hostings.iter_mut().filter(|hosting| hosting.operator == operator) {
        let modes = &variant.modes[solution.workers[hosting.worker?].class];
        hosting.mode = modes.iter().position(|mode| mode.remote.as_ref() == Some(form))?;
    }
    Some(other)
}

/// Seconds of a batch in the stages of an operator, on the way and on their devices, weighted by their shares.
fn seconds(problem: &Problem, solution: &Solution, operator: usize) -> f64 {
    let own = solution.hostings.iter().filter(|hosting| hosting.operator == operator);
    let of = own.map(|hosting| {
        let Some(mode) = problem.mode_of(solution, hosting) else { return 0.0 };
        let away = mode.remote.as_ref().map_or(0.0, |remote| {
            let way = problem.way(hosting.location, remote).unwrap_or_default();
            way.round_trip + way.transfer + remote.run.call_seconds
        });
        hosting.share * (mode.call_seconds + away)
    });
    of.sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generator::small_problem_with_devices;
    use crate::planner::{Planner, SearchLimits};
    use crate::planners::exact::Exact;

    #[test]
    fn the_quicker_form_costs_the_same_and_keeps_all_limits() {
        let (mut changed, mut cheaper_slower) = (0, 0);
        for problem in (1..=60).map(small_problem_with_devices) {
            let Some(plan) = Exact.plan(&problem, &SearchLimits::default()).expect("plans").solution else {
                continue;
            };
            let cost_of = |plan: &Solution| cost(&problem, plan).expect("has a cost").total();
            for operator in 0..problem.operators.len() {
                let Some(other) = in_other_form(&problem, &plan, operator) else { continue };
                let again = quicker(&problem, other.clone());
                if check(&problem, &other).is_empty() {
                    assert!(cost_of(&again) <= cost_of(&other) + 1e-9 * cost_of(&other).max(1.0));
                    assert_eq!(check(&problem, &again), []);
                }
                let (before, after) =
                    (seconds(&problem, &other, operator), seconds(&problem, &again, operator));
                assert!(after <= before, "{}: {after} s after {before} s", problem.name);
                changed += usize::from(after < before);
                cheaper_slower += usize::from(seconds(&problem, &plan, operator) > before);
            }
        }
        assert!(changed > 0 && cheaper_slower > 0, "{changed}, {cheaper_slower}");
    }
}
