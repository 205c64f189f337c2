//! Everything at the sources, a baseline.
use super::assignment::{Preference, Routing};
use super::worker_search::{Search, with_most_accurate};
use crate::planner::{Planner, PlannerError, SearchLimits};
use crate::problem::{Problem, WorkerClass};
use crate::solution::Outcome;

/// All operators in the tiers of the sources, with the most accurate variants that run there, on the cheapest workers
/// found that carry the rate.
///
/// It proves nothing: a failed search does not mean that there is no plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EdgeOnly;

impl Planner for EdgeOnly {
    fn name(&self) -> &'static str {
        "edge-only"
    }

    fn plan(&self, problem: &Problem, limits: &SearchLimits) -> Result<Outcome, PlannerError> {
        let settings = Search {
            pools: Vec::new(),
            width: 16,
            orders: 8,
            preference: Preference::Cost,
            routing: Routing::Cheapest,
            finishing: true,
        };
        with_most_accurate(problem, limits, &settings, tiers_of_sources, self.name())
    }
}

/// Classes in the tiers of the sources.
pub(super) fn tiers_of_sources(problem: &Problem) -> Vec<bool> {
    let locations = problem.sources.iter().flat_map(|source| &source.locations);
    let tiers: Vec<usize> = locations.map(|(location, _)| problem.locations[*location].tier).collect();
    let tier = |class: &WorkerClass| problem.locations[class.location].tier;
    problem.worker_classes.iter().map(|class| tiers.contains(&tier(class))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generator::{PublishedSetting, published_vqa_problem};

    fn plan(rate: f64) -> Outcome {
        let problem = published_vqa_problem(rate, 56.0, PublishedSetting::Shared);
        EdgeOnly.plan(&problem, &SearchLimits::default()).expect("it takes the problem")
    }

    #[test]
    fn everything_is_where_the_sources_are() {
        let cost = |rate: f64| plan(rate).cost.expect("a plan");
        let solution = plan(2.0).solution.expect("a plan");
        assert!(solution.hostings.iter().all(|hosting| hosting.location == 0));
        assert!(cost(1.0) <= cost(2.0) && cost(2.0) <= cost(4.0));
        assert_eq!(plan(40.0).solution, None);
    }
}
