//! The controller's planner with a cache: equal problems have equal plans.
use super::day::State;
use std::cell::RefCell;
use std::collections::BTreeMap;
use tidemill_app::expectation::Expectation;
use tidemill_app::listener::Silent;
use tidemill_app::planned::{JudgedPlan, Planned, guaranteed, planned};
use tidemill_app::planning::Case;
use tidemill_cluster::replanning::assessment::mark_of;
use tidemill_cluster::replanning::replanner::{Best, Search};
use tidemill_optimizer::planners::exact::Exact;
use tidemill_optimizer::solution::Solution;
use tidemill_optimizer::summary::Summary;
use tidemill_spec::plan::Plan;

/// A problem: the state of the world, the rate, the wanted accuracy and latency.
type Key = (State, u64, u64, u64);

/// A cached plan.
#[derive(Clone)]
struct Known {
    plan: Plan,
    solution: Solution,
    workers: Vec<String>,
    summary: Summary,
    expectation: Expectation,
}

/// All plans found, for all strategies of a workload on a day.
#[derive(Default)]
pub(super) struct Plans(RefCell<BTreeMap<Key, Option<Known>>>);

/// The planner in a state of the world.
pub(super) struct Planner<'a> {
    pub(super) plans: &'a Plans,
    pub(super) state: State,
}

impl Planner<'_> {
    fn find(case: &Case) -> Result<Option<Known>, String> {
        let mut assembly = case.assemble().map_err(|found| found.to_string())?;
        let outcome = planned(case, &mut assembly, &Exact, &Silent).map_err(|error| format!("{error:#}"))?;
        let found = guaranteed(case, &assembly, &outcome).map_err(|failure| failure.to_string())?;
        Ok(found.map(|JudgedPlan { planned, expectation }| {
            let Planned { solution, plan, workers, summary } = planned;
            Known { plan, solution, workers, summary, expectation }
        }))
    }
}

impl Search for Planner<'_> {
    fn best(&mut self, case: &Case, _: bool) -> Result<Best, String> {
        let rate = case.options.rate.map_or(0.0, |rate| rate.0);
        let accuracy = case.options.accuracy.map_or(0.0, |accuracy| accuracy.0);
        let latency = case.options.latency.as_ref().map_or(0, |latency| latency.below.0);
        let key = (self.state, rate.to_bits(), accuracy.to_bits(), latency);
        let known = self.plans.0.borrow().get(&key).cloned();
        let found = match known {
            Some(found) => found,
            None => {
                let found = Self::find(case)?;
                self.plans.0.borrow_mut().insert(key, found.clone());
                found
            }
        };
        let Some(Known { plan, solution, workers, summary, expectation }) = found else {
            return Err("no plan keeps the service levels".to_owned());
        };
        let planned = Planned { solution, plan: plan.clone(), workers, summary };
        Ok(Best { mark: mark_of(&plan), plan, planned, expectation, uses: BTreeMap::new() })
    }

    fn mark(&self, plan: &Plan) -> String {
        mark_of(plan)
    }
}
