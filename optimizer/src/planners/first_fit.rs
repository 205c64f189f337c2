//! First fit, a baseline: the most accurate variants, and for each operator the cheapest workers at any location.
use super::assignment::{Preference, Routing};
use super::worker_search::{Search, everywhere, with_most_accurate};
use crate::planner::{Planner, PlannerError, SearchLimits};
use crate::problem::Problem;
use crate::solution::Outcome;

/// Most accurate variants; operators in topological order take the workers with the least cost per record, at any
/// location (baseline FF of JellyBean, after the placement of virtual machines). Unlike the original, it respects
/// missing routes and limits on traffic to lower tiers.
///
/// It proves nothing: a failed search does not mean that there is no plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FirstFit;

impl Planner for FirstFit {
    fn name(&self) -> &'static str {
        "first-fit"
    }

    fn plan(&self, problem: &Problem, limits: &SearchLimits) -> Result<Outcome, PlannerError> {
        let settings = Search {
            pools: Vec::new(),
            width: 1,
            orders: 1,
            preference: Preference::Compute,
            routing: Routing::Cheapest,
            finishing: false,
        };
        with_most_accurate(problem, limits, &settings, everywhere, self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generator::{PublishedSetting, published_vqa_problem};

    fn plan(rate: f64) -> Outcome {
        let problem = published_vqa_problem(rate, 56.0, PublishedSetting::OneOperatorPerWorker);
        FirstFit.plan(&problem, &SearchLimits::default()).expect("it takes the problem")
    }

    #[test]
    fn the_cheapest_computation_is_taken_wherever_it_is() {
        let solution = plan(2.0).solution.expect("a plan");
        assert_eq!(solution.variants, [4, 1, 0], "the most accurate");
        // Speech: 26.9 ms at 2.497 $/h on an accelerator in the cloud cost less than 773.5 ms at 0.096 $/h at the edge.
        let mut speech = solution.hostings.iter().filter(|hosting| hosting.operator == 1);
        assert!(speech.all(|hosting| hosting.location == 1));
        let outcome = plan(2000.0);
        assert_eq!(
            (outcome.status, outcome.bound),
            (crate::solution::Status::Infeasible, None),
            "not proven"
        );
    }
}
