//! Why a model runs on a device, or does not: the plan beside the cheapest one of the other kind.
use super::questions::Questions;
use crate::cost::{Cost, cost};
use crate::planner::PlannerError;
use crate::problem::{Problem, ServiceMode, Variant};
use crate::solution::{Hosting, Solution};

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
    /// No plan of the other kind costs less, in $/h; infinite: there is none.
    pub least: f64,
    /// Whether the time limit ended the search for it.
    pub is_cut: bool,
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

/// Whether a model of an operator could run on a device.
pub(super) fn has_both_kinds(problem: &Problem, operator: usize) -> bool {
    let of = &problem.operators[operator];
    let mut modes = of.variants.iter().flat_map(|variant| variant.modes.iter().flatten());
    !of.weightless && modes.any(|mode| mode.remote.is_some())
}

/// Explains an operator whose model could run on a device, and on the worker of its stage, or does so.
pub(super) fn device_reason(
    questions: &mut Questions<'_>,
    operator: usize,
) -> Result<Option<DeviceReason>, PlannerError> {
    let problem = questions.problem;
    let Ok(own) = cost(problem, questions.solution) else { return Ok(None) };
    let places = places(questions.solution, operator);
    let is_remote = places.iter().any(|(_, device)| device.is_some());
    let may_stay = |mode: &ServiceMode| mode.remote.is_some() != is_remote;
    let kept = Kept::of(problem, operator, &may_stay);
    let changed = problem.with_modes(operator, may_stay);
    let known = questions.known.iter().filter_map(|plan| kept.of_part(plan)).collect();
    let answer = questions.stricter(&changed, known, false)?;
    let (least, is_cut) = (answer.least, answer.is_cut);
    let mut other = None;
    if let Some((_, solution)) = answer.found
        && let Ok(cost) = cost(&changed, &solution)
    {
        questions.known.push(kept.of_whole(&solution));
        let places = self::places(&solution, operator);
        other = Some(OtherKind { solution, problem: changed, cost, places });
    }
    Ok(Some(DeviceReason { operator, places, cost: own, other, least, is_cut }))
}

/// Modes of an operator that stay, by variant and class.
struct Kept(usize, Vec<Vec<Vec<usize>>>);

impl Kept {
    fn of(problem: &Problem, operator: usize, may_stay: &impl Fn(&ServiceMode) -> bool) -> Self {
        let kept = |modes: &Vec<ServiceMode>| {
            (0..modes.len()).filter(|mode| may_stay(&modes[*mode])).collect::<Vec<_>>()
        };
        let of = |variant: &Variant| variant.modes.iter().map(kept).collect();
        Self(operator, problem.operators[operator].variants.iter().map(of).collect())
    }

    /// The modes that stay for the operator in a plan, on the class of one of its hostings.
    fn at(&self, plan: &Solution, hosting: &Hosting) -> Option<&Vec<usize>> {
        let class = plan.workers[hosting.worker?].class;
        self.1[plan.variants[self.0]].get(class)
    }

    /// A plan of the whole, where it uses only modes that stay.
    fn of_part(&self, plan: &Solution) -> Option<Solution> {
        let mut part = plan.clone();
        for hosting in part.hostings.iter_mut().filter(|hosting| hosting.operator == self.0) {
            hosting.mode = self.at(plan, hosting)?.iter().position(|mode| *mode == hosting.mode)?;
        }
        Some(part)
    }

    /// A plan of the part, as one of the whole.
    fn of_whole(&self, plan: &Solution) -> Solution {
        let mut whole = plan.clone();
        for hosting in whole.hostings.iter_mut().filter(|hosting| hosting.operator == self.0) {
            let mode = self.at(plan, hosting).and_then(|modes| modes.get(hosting.mode));
            hosting.mode = mode.copied().unwrap_or(hosting.mode);
        }
        whole
    }
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
    use crate::explain::explain;
    use crate::generator::small_problem_with_devices;
    use crate::planner::{Planner, SearchLimits};
    use crate::planners::exact::Exact;

    #[test]
    fn the_other_kind_costs_no_less() {
        let (mut remote, mut local) = (0, 0);
        for problem in (1..=25).map(small_problem_with_devices) {
            let limits = SearchLimits::default();
            let outcome = Exact.plan(&problem, &limits).expect("plans");
            let explained = explain(&problem, &outcome, 40.0, &[], &limits, &mut |_| {}).expect("plans");
            for reason in explained.devices {
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
