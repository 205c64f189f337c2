//! Why a model runs on a device, or does not: the plan beside the cheapest one of the other kind.
use crate::cost::{Cost, cost};
use crate::planner::{Planner, PlannerError, SearchLimits};
use crate::planners::exact::Exact;
use crate::problem::{Problem, ServiceMode};
use crate::solution::{Outcome, Solution};

/// How an operator with both possibilities runs, and what the other one costs.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceReason {
    /// The operator.
    pub operator: usize,
    /// Places of its stages: location, and the device in the solution's workers that runs its model.
    pub places: Vec<(usize, Option<usize>)>,
    /// Cost of the plan.
    pub cost: Cost,
    /// The cheapest plan of the other kind; none: there is none, or none was found.
    pub other: Option<OtherKind>,
}

/// The cheapest plan in which an operator runs the other way.
#[derive(Debug, Clone, PartialEq)]
pub struct OtherKind {
    /// The plan; its modes are those of `problem`.
    pub solution: Solution,
    /// The problem without the modes of the chosen kind.
    pub problem: Problem,
    /// Its cost.
    pub cost: Cost,
    /// Places of the operator's stages in it.
    pub places: Vec<(usize, Option<usize>)>,
}

/// Explains every operator whose model could run on a device, and on the worker of its stage, or does so.
///
/// # Errors
/// Errors of the planner.
pub fn device_reasons(
    problem: &Problem,
    outcome: &Outcome,
    limits: &SearchLimits,
) -> Result<Vec<DeviceReason>, PlannerError> {
    let Some(solution) = &outcome.solution else { return Ok(Vec::new()) };
    let limits = &SearchLimits { every_wait: false, ..*limits };
    let mut reasons = Vec::new();
    for (operator, of) in problem.operators.iter().enumerate().filter(|(_, of)| !of.weightless) {
        let modes = || of.variants.iter().flat_map(|variant| variant.modes.iter().flatten());
        if !modes().any(|mode| mode.remote.is_some()) {
            continue;
        }
        let Ok(own) = cost(problem, solution) else { continue };
        let places = places(solution, operator);
        let is_remote = places.iter().any(|(_, device)| device.is_some());
        let may_stay = |mode: &ServiceMode| mode.remote.is_some() != is_remote;
        let mut other = None;
        if modes().any(may_stay) {
            let changed = problem.with_modes(operator, may_stay);
            if let Some(solution) = Exact.plan(&changed, limits)?.solution
                && let Ok(cost) = cost(&changed, &solution)
            {
                let places = self::places(&solution, operator);
                other = Some(OtherKind { solution, problem: changed, cost, places });
            }
        }
        reasons.push(DeviceReason { operator, places, cost: own, other });
    }
    Ok(reasons)
}

/// Where the stages of an operator are, and their devices; each once.
fn places(solution: &Solution, operator: usize) -> Vec<(usize, Option<usize>)> {
    let own = solution.hostings.iter().filter(|hosting| hosting.operator == operator);
    let mut places: Vec<_> =
        own.map(|hosting| (hosting.location, hosting.device.map(|device| device.worker))).collect();
    places.sort_unstable();
    places.dedup();
    places
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generator::small_problem_with_devices;

    #[test]
    fn the_other_kind_costs_no_less() {
        let (mut remote, mut local) = (0, 0);
        for problem in (1..=25).map(small_problem_with_devices) {
            let limits = SearchLimits::default();
            let outcome = Exact.plan(&problem, &limits).expect("plans");
            for reason in device_reasons(&problem, &outcome, &limits).expect("plans") {
                let is_remote = reason.places.iter().any(|(_, device)| device.is_some());
                assert_eq!(Some(reason.cost.total()), outcome.cost);
                let Some(other) = reason.other else { continue };
                assert!(other.cost.total() >= reason.cost.total() - 1e-6, "{}", problem.name);
                assert!(other.places.iter().all(|(_, device)| device.is_some() != is_remote));
                match is_remote {
                    true => remote += 1,
                    false => local += 1,
                }
            }
        }
        assert!(remote > 3 && local > 3, "{remote}, {local}");
    }
}
