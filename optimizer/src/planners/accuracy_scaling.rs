//! Accuracy scaling: a fleet of workers is bought once, and when the load rises, cheaper variants run on it instead of
//! more workers.
//!
//! The published systems for this are Loki (Ahmad, Guan and Sitaraman 2024, arXiv 2407.03583) and IPA (Ghafouri and
//! others 2023, arXiv 2308.12871). This planner solves the accuracy scaling step of Loki's resource manager (maximise
//! the accuracy of the answers, subject to the throughput of the replicas, a number of servers and a bound on latency)
//! with all records of an operator on one variant, as IPA has it (which with a fixed number of replicas and no weight
//! on resources and batches is its variant switching). `docs/changing-load.md` lists the differences.
use super::exact::Exact;
use crate::cost::cost;
use crate::explain::with_accuracy;
use crate::planner::{Planner, PlannerError, SearchLimits, without_losses};
use crate::problem::Problem;
use crate::search_time::SearchTime;
use crate::solution::{Outcome, Solution, Status};

/// Bisection steps for the load that a fleet carries: the last interval is below a thousandth.
const BISECTIONS: usize = 11;

/// The most accurate plan on existing, paid workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccuracyScaling {
    /// Number of workers of each class.
    fleet: Vec<u32>,
    goal: Goal,
}

/// The accuracy to aim for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Goal {
    /// As much as the fleet carries, as in Loki and IPA.
    #[default]
    Most,
    /// The accuracy limit and no more: where the fleet carries that, the least traffic cost decides.
    Level,
}

impl AccuracyScaling {
    /// Creates the planner for a fleet, by worker class.
    pub fn new(fleet: Vec<u32>) -> Self {
        Self { fleet, goal: Goal::Most }
    }

    /// Sets the goal.
    pub fn with_goal(self, goal: Goal) -> Self {
        Self { goal, ..self }
    }

    /// Creates the planner for the workers of a plan.
    pub fn of_plan(problem: &Problem, solution: &Solution) -> Self {
        let mut fleet = vec![0; problem.worker_classes.len()];
        for worker in &solution.workers {
            fleet[worker.class] += 1;
        }
        Self::new(fleet)
    }

    /// Returns the number of workers of each class.
    pub fn fleet(&self) -> &[u32] {
        &self.fleet
    }

    /// Returns the price of the whole fleet in $/h, busy or not.
    pub fn price(&self, problem: &Problem) -> f64 {
        self.fleet
            .iter()
            .zip(&problem.worker_classes)
            .map(|(count, class)| f64::from(*count) * class.price)
            .sum()
    }

    /// The problem with this fleet only, at no further cost.
    fn own(&self, problem: &Problem) -> Problem {
        let mut own = problem.clone();
        for (class, count) in own.worker_classes.iter_mut().zip(&self.fleet) {
            class.count = *count;
            class.price = 0.0;
        }
        own
    }

    /// Returns the largest load, at most `most`, that the fleet carries with variants of known accuracy, and its plan.
    /// `problem_at` defines the unit of load. None where the fleet does not carry a thousandth of `most`.
    ///
    /// # Errors
    /// Errors of the planner and of `problem_at`.
    pub fn largest_load<E: From<PlannerError>>(
        &self,
        most: f64,
        limits: &SearchLimits,
        mut problem_at: impl FnMut(f64) -> Result<Problem, E>,
    ) -> Result<Option<(f64, Outcome)>, E> {
        let mut carried = None;
        let (mut low, mut high) = (0.0, most);
        let mut load = most;
        for _ in 0..=BISECTIONS {
            let outcome = self.plan(&problem_at(load)?, limits)?;
            if outcome.solution.is_some() {
                low = load;
                carried = Some((load, outcome));
                if load >= most {
                    break;
                }
            } else {
                high = load;
            }
            load = (low + high) / 2.0;
        }
        Ok(carried)
    }
}

impl Planner for AccuracyScaling {
    fn name(&self) -> &'static str {
        "accuracy-scaling"
    }

    /// The accuracy limit may be missed, as accuracy is maximised, see [`Goal`]. [`Status::Optimal`] means that no plan
    /// on this fleet is more accurate (or, with [`Goal::Level`], that the limit is kept); nothing is proven about the
    /// cost.
    fn plan(&self, problem: &Problem, limits: &SearchLimits) -> Result<Outcome, PlannerError> {
        without_losses(self.name(), problem)?;
        let time = SearchTime::begin();
        let problem = &*problem.without_remotes();
        let unsupported = |reason: &str| {
            Err(PlannerError::Unsupported { planner: self.name().to_owned(), reason: reason.to_owned() })
        };
        if self.fleet.len() != problem.worker_classes.len() {
            return unsupported("its fleet has other kinds of workers");
        }
        let mut levels = problem.accuracy_levels();
        if levels.is_empty() {
            return unsupported("no accuracy is known");
        }
        if let (Goal::Level, Some(enough)) = (self.goal, problem.limits.accuracy) {
            levels.retain(|level| *level < enough);
            levels.insert(0, enough);
        }
        let own = self.own(problem);
        let limits = &SearchLimits { every_wait: false, ..*limits };
        let (mut nodes, mut has_asked_highs) = (0, false);
        let mut attempt = |accuracy: f64| {
            let outcome = Exact.plan(&with_accuracy(&own, Some(accuracy)), limits)?;
            nodes += outcome.nodes;
            has_asked_highs |= outcome.has_asked_highs;
            Ok::<_, PlannerError>(outcome)
        };
        // A fleet that carries an accuracy carries any lower one: finds the first level that it carries.
        let mut best: Option<Solution> = None;
        let (mut from, mut to) = (0, levels.len());
        let mut is_proven = true;
        let mut any_limit = false;
        while from < to {
            let middle = (from + to) / 2;
            let outcome = attempt(levels[middle])?;
            any_limit |= outcome.status == Status::TimeLimited;
            match outcome.solution {
                Some(solution) => {
                    to = middle;
                    best = Some(solution);
                }
                None => {
                    is_proven &= outcome.bound == Some(f64::INFINITY);
                    from = middle + 1;
                }
            }
        }
        let Some(solution) = best else {
            let mut outcome = Outcome::infeasible(self.name(), is_proven);
            if any_limit && !is_proven {
                outcome.status = Status::TimeLimited;
            }
            return Ok(Outcome { nodes, has_asked_highs, seconds: time.seconds(), ..outcome });
        };
        let total = cost(problem, &solution).map_err(|error| PlannerError::Fault {
            planner: self.name().to_owned(),
            reason: error.to_string(),
        })?;
        let status = match (is_proven, any_limit) {
            (true, _) => Status::Optimal,
            (false, true) => Status::TimeLimited,
            (false, false) => Status::Feasible,
        };
        Ok(Outcome {
            planner: self.name().to_owned(),
            status,
            solution: Some(solution),
            cost: Some(total.total()),
            bound: None,
            gap: None,
            nodes,
            has_asked_highs,
            seconds: time.seconds(),
        })
    }
}

/// Returns the plan for the largest load, at most `most`, whose workers cost no more than a budget in $/h. None where
/// even a thousandth of `most` costs more.
///
/// # Errors
/// Errors of the planner and of `problem_at`.
pub fn within_budget<E: From<PlannerError>>(
    planner: &dyn Planner,
    budget: f64,
    most: f64,
    limits: &SearchLimits,
    mut problem_at: impl FnMut(f64) -> Result<Problem, E>,
) -> Result<Option<(f64, Solution)>, E> {
    let mut affordable = None;
    let (mut low, mut high) = (0.0, most);
    let mut load = most;
    for _ in 0..=BISECTIONS {
        let problem = problem_at(load)?;
        let outcome = planner.plan(&problem, limits)?;
        let fits = |solution: &Solution| {
            AccuracyScaling::of_plan(&problem, solution).price(&problem) <= budget + 1e-9
        };
        match outcome.solution.filter(fits) {
            Some(solution) => {
                low = load;
                affordable = Some((load, solution));
                if load >= most {
                    break;
                }
            }
            None => high = load,
        }
        load = (low + high) / 2.0;
    }
    Ok(affordable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::check;
    use crate::explain::with_rate;
    use crate::generator::{PublishedSetting, published_vqa_problem, small_problem};
    use crate::planners::exhaustive::Exhaustive;
    use crate::problem::AccuracyModel;

    fn published(rate: f64) -> Problem {
        published_vqa_problem(rate, 56.0, PublishedSetting::Shared)
    }

    fn fleet_for(rate: f64) -> AccuracyScaling {
        let problem = published(rate);
        let outcome = Exact.plan(&problem, &SearchLimits::default()).expect("plans");
        AccuracyScaling::of_plan(&problem, &outcome.solution.expect("a plan"))
    }

    #[test]
    fn more_load_on_the_same_workers_is_less_accuracy() {
        let fleet = fleet_for(40.0);
        let mut last = 100.0;
        for rate in [10.0, 20.0, 30.0, 40.0, 44.0] {
            let problem = published(rate);
            let outcome = fleet.plan(&problem, &SearchLimits::default()).expect("plans");
            let solution = outcome.solution.expect("a plan");
            assert_eq!(outcome.status, Status::Optimal);
            let used = AccuracyScaling::of_plan(&problem, &solution);
            assert!(used.fleet().iter().zip(fleet.fleet()).all(|(used, bought)| used <= bought));
            let mut free = problem.clone();
            free.limits.accuracy = None;
            assert_eq!(check(&free, &solution), []);
            let accuracy = problem.accuracy_of(&solution.variants).expect("known");
            assert!(accuracy <= last, "{accuracy} after {last} at {rate}");
            last = accuracy;
        }
        assert!(last < 56.0, "at 44/s the level is given up: {last}");
        let beyond = fleet.plan(&published(400.0), &SearchLimits::default()).expect("plans");
        assert_eq!((beyond.status, beyond.solution), (Status::Infeasible, None));
    }

    #[test]
    fn more_than_the_level_is_not_paid_for_where_it_is_enough() {
        let fleet = fleet_for(20.0);
        let limits = SearchLimits::default();
        let enough = fleet.clone().with_goal(Goal::Level);
        let accuracy = |outcome: &Outcome, problem: &Problem| {
            problem.accuracy_of(&outcome.solution.as_ref().expect("a plan").variants).expect("known")
        };
        let problem = published(10.0);
        let (most, level) =
            (fleet.plan(&problem, &limits).expect("plans"), enough.plan(&problem, &limits).expect("plans"));
        assert!(accuracy(&most, &problem) > accuracy(&level, &problem));
        assert!(accuracy(&level, &problem) >= 56.0);
        let load = published(24.0);
        let (most, level) =
            (fleet.plan(&load, &limits).expect("plans"), enough.plan(&load, &limits).expect("plans"));
        assert!(accuracy(&level, &load) <= accuracy(&most, &load));
        assert_eq!(level.status, Status::Optimal);
    }

    #[test]
    fn no_variants_on_the_fleet_are_more_accurate() {
        let mut compared = 0;
        for seed in 1..=60 {
            let mut problem = small_problem(seed);
            if matches!(problem.accuracy, AccuracyModel::None) {
                continue;
            }
            problem.limits.accuracy = None;
            let fleet =
                AccuracyScaling::new(problem.worker_classes.iter().map(|class| class.count.min(2)).collect());
            let found = fleet.plan(&problem, &SearchLimits::default()).expect("plans");
            if !problem.limits.latency.is_empty() {
                continue;
            }
            let Some(accuracy) = found.solution.as_ref().and_then(|s| problem.accuracy_of(&s.variants))
            else {
                continue;
            };
            // A more accurate plan keeps a limit above this one's accuracy.
            let higher = with_accuracy(&fleet.own(&problem), Some(accuracy + 0.1001));
            let Ok(other) = Exhaustive.plan(&higher, &SearchLimits::default()) else { continue };
            assert_eq!(other.solution, None, "seed {seed}: more than {accuracy}");
            compared += 1;
        }
        assert!(compared >= 5, "{compared}");
    }

    #[test]
    fn a_fleet_carries_so_much_and_costs_so_much() {
        let fleet = fleet_for(20.0);
        let limits = SearchLimits::default();
        let at = |rate: f64| Ok::<_, PlannerError>(with_rate(&published(1.0), rate));
        let (load, outcome) = fleet.largest_load(400.0, &limits, at).expect("plans").expect("carries some");
        assert!(load > 20.0 && outcome.solution.is_some(), "{load}");
        let more = fleet.plan(&published(load * 1.03), &limits).expect("plans");
        assert_eq!(more.solution, None);
        let (rate, solution) = within_budget(&Exact, 4.2, 400.0, &limits, at).expect("plans").expect("some");
        let bought = AccuracyScaling::of_plan(&published(rate), &solution);
        assert!(bought.price(&published(rate)) <= 4.2 && rate > 20.0, "{rate}");
        assert_eq!(within_budget(&Exact, 0.0, 400.0, &limits, at).expect("plans"), None);
    }

    #[test]
    fn nothing_to_maximise_is_refused() {
        let mut problem = published(10.0);
        problem.accuracy = AccuracyModel::None;
        let fleet = fleet_for(20.0);
        assert!(matches!(
            fleet.plan(&problem, &SearchLimits::default()),
            Err(PlannerError::Unsupported { .. })
        ));
        let other = AccuracyScaling::new(vec![1]);
        assert!(other.plan(&published(10.0), &SearchLimits::default()).is_err());
    }
}
