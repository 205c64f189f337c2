//! Best fit, a baseline: the most accurate variants, and for each operator the cheapest workers where its inputs are.
use super::assignment::{Preference, Routing};
use super::worker_search::{Search, everywhere, with_most_accurate};
use crate::planner::{Planner, PlannerError, SearchLimits};
use crate::problem::Problem;
use crate::solution::Outcome;

/// Most accurate variants; operators in topological order take the workers that their inputs reach at the least price,
/// then those with the least cost per record (baseline BF of JellyBean, after the data placement of geo-distributed
/// databases).
///
/// It proves nothing: a failed search does not mean that there is no plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BestFit;

impl Planner for BestFit {
    fn name(&self) -> &'static str {
        "best-fit"
    }

    fn plan(&self, problem: &Problem, limits: &SearchLimits) -> Result<Outcome, PlannerError> {
        let settings = Search {
            pools: Vec::new(),
            width: 1,
            orders: 1,
            preference: Preference::Traffic,
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
        let problem = published_vqa_problem(rate, 56.0, PublishedSetting::Shared);
        BestFit.plan(&problem, &SearchLimits::default()).expect("it takes the problem")
    }

    #[test]
    fn operators_stay_where_their_inputs_are_as_long_as_they_can() {
        let solution = plan(2.0).solution.expect("a plan");
        assert_eq!(solution.variants, [4, 1, 0], "the most accurate");
        assert!(solution.hostings.iter().all(|hosting| hosting.location == 0));
        let solution = plan(20.0).solution.expect("a plan");
        assert!(solution.hostings.iter().any(|hosting| hosting.location == 1), "the edge is full");
        let outcome = plan(2000.0);
        assert_eq!(
            (outcome.status, outcome.bound),
            (crate::solution::Status::Infeasible, None),
            "not proven"
        );
    }
}
