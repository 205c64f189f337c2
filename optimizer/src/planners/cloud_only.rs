//! Everything in the highest tier, a baseline.
use super::assignment::{Preference, Routing};
use super::worker_search::{Search, with_most_accurate};
use crate::planner::{Planner, PlannerError, SearchLimits};
use crate::problem::{Problem, WorkerClass};
use crate::solution::Outcome;

/// All operators in the highest tier with workers, with the most accurate variants that run there, on the cheapest
/// workers found that carry the rate (as baselines PTc and SPc of JellyBean, with as many workers as needed).
///
/// It proves nothing: a failed search does not mean that there is no plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CloudOnly;

impl Planner for CloudOnly {
    fn name(&self) -> &'static str {
        "cloud-only"
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
        with_most_accurate(problem, limits, &settings, highest_tier, self.name())
    }
}

/// Classes in the highest tier that has workers.
pub(super) fn highest_tier(problem: &Problem) -> Vec<bool> {
    let tier = |class: &WorkerClass| problem.locations[class.location].tier;
    let with_workers = problem.worker_classes.iter().filter(|class| class.count > 0);
    let highest = with_workers.map(tier).max();
    problem.worker_classes.iter().map(|class| Some(tier(class)) == highest).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generator::{PublishedSetting, published_vqa_problem};

    fn plan(rate: f64) -> Outcome {
        let problem = published_vqa_problem(rate, 56.0, PublishedSetting::Shared);
        CloudOnly.plan(&problem, &SearchLimits::default()).expect("it takes the problem")
    }

    #[test]
    fn everything_is_in_the_cloud() {
        for rate in [1.0, 20.0, 50.0] {
            let solution = plan(rate).solution.expect("a plan");
            assert_eq!(solution.variants, [4, 1, 0], "the most accurate");
            assert!(solution.hostings.iter().all(|hosting| hosting.location == 1));
        }
        assert_eq!(plan(2000.0).solution, None);
    }
}
