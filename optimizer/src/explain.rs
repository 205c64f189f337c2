//! Explains a plan: the limits that bind it, the cost of each service level, the rejected plans with reasons, and,
//! where there is no plan, the least change that makes one possible.
//!
//! Every result comes from planning again with one change, so it holds exactly as the planner's proofs do: with proven
//! intervals `[lo, hi]` of the cost before and after, the price of the change is in `[lo' - hi, hi' - lo]`. Cost is a
//! step function of a service level, so the slope of a relaxation would be no price.
mod combined;
mod devices;
mod front;
mod relax;
mod scale;
#[cfg(test)]
mod tests;

pub use combined::combination;
pub use devices::{DeviceReason, OtherKind, device_reasons};
pub use front::{FrontPoint, Surface, SurfacePoint, accuracy_front, latency_front};
pub use relax::{MissingWorkers, Relaxation, Relaxed, relaxations};
pub use scale::{with_accuracy, with_latency, with_rate};

use crate::planner::{Planner, PlannerError, SearchLimits};
use crate::planners::exact::Exact;
use crate::problem::Problem;
use crate::solution::{Outcome, Solution};
use crate::summary::Summary;

/// A limit binds from this used share on.
const BINDING: f64 = 0.99;
/// Number of rejected plans shown.
const REJECTED: usize = 3;

/// The explanation of a plan.
#[derive(Debug, Clone, PartialEq)]
pub struct Explanation {
    /// Limits that bind the plan.
    pub binding: Vec<Binding>,
    /// Price of a small increase of each service level.
    pub prices: Vec<LevelPrice>,
    /// The best rejected plans.
    pub rejected: Vec<Rejected>,
}

/// A limit that binds.
#[derive(Debug, Clone, PartialEq)]
pub enum Binding {
    /// Workers of a class are as busy as allowed.
    Utilization {
        /// The worker class.
        class: usize,
        /// Workers of it in use.
        workers: usize,
        /// Load of the busiest of them, as a part of what is allowed.
        used: f64,
    },
    /// All workers of a class are in use.
    Count {
        /// The worker class.
        class: usize,
        /// Available workers.
        count: u32,
    },
    /// A link is at its bandwidth.
    Bandwidth {
        /// Sending location.
        from: usize,
        /// Receiving location.
        to: usize,
        /// Used share of the bandwidth.
        used: f64,
    },
    /// Cheaper plans are less accurate than required.
    Accuracy {
        /// Percentage points above the limit.
        slack: f64,
    },
    /// The slowest path takes as long as allowed.
    Latency {
        /// Seconds of the slowest path.
        seconds: f64,
        /// The limit.
        limit: f64,
    },
}

/// A change of a service level.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LevelChange {
    /// More records per second, at the slowest source.
    Rate(f64),
    /// More accuracy, in percentage points.
    Accuracy(f64),
    /// Less latency, in seconds.
    Latency(f64),
}

/// The price of a change of a service level.
#[derive(Debug, Clone, PartialEq)]
pub struct LevelPrice {
    /// The change.
    pub change: LevelChange,
    /// Additional $/h, proven least and most; none: no plan was found.
    pub price: Option<(f64, f64)>,
    /// Whether it is proven that there is no plan.
    pub is_impossible: bool,
    /// The plan after the change.
    pub after: Option<Solution>,
}

/// A rejected plan.
#[derive(Debug, Clone, PartialEq)]
pub struct Rejected {
    /// The plan.
    pub solution: Solution,
    /// Its cost in $/h.
    pub cost: f64,
    /// Why it was rejected.
    pub reason: Reason,
}

/// Why a plan was rejected.
#[derive(Debug, Clone, PartialEq)]
pub enum Reason {
    /// It costs this much more, in $/h.
    Dearer(f64),
    /// Its accuracy is too low: its accuracy in percent; none: not known.
    Accuracy(Option<f64>),
    /// Its latency is not below the limit: seconds of its slowest path with idle workers.
    Latency(f64),
}

/// Explains the plan of an outcome.
///
/// # Errors
/// Errors of the planner.
pub fn explain(
    problem: &Problem,
    outcome: &Outcome,
    rate: f64,
    limits: &SearchLimits,
) -> Result<Explanation, PlannerError> {
    let Some(solution) = &outcome.solution else {
        return Ok(Explanation { binding: Vec::new(), prices: Vec::new(), rejected: Vec::new() });
    };
    let limits = &SearchLimits { every_wait: false, ..*limits };
    let rejected = rejected(problem, outcome, limits)?;
    let mut binding = binding(problem, solution);
    let is_too_inaccurate = |rejected: &Rejected| matches!(rejected.reason, Reason::Accuracy(_));
    if rejected.iter().any(is_too_inaccurate)
        && let (Some(limit), Some(accuracy)) =
            (problem.limits.accuracy, problem.accuracy_of(&solution.variants))
    {
        binding.push(Binding::Accuracy { slack: accuracy - limit });
    }
    Ok(Explanation { binding, prices: prices(problem, outcome, rate, limits)?, rejected })
}

/// Returns the limits that bind a plan, except accuracy, which only cheaper plans without it can show.
pub fn binding(problem: &Problem, solution: &Solution) -> Vec<Binding> {
    let Ok(summary) = Summary::new(problem, solution) else { return Vec::new() };
    let mut found = Vec::new();
    for (class, facts) in problem.worker_classes.iter().enumerate() {
        let loads: Vec<f64> = summary
            .workers
            .iter()
            .filter(|load| load.class == class)
            .map(|load| load.utilization / problem.limits.max_utilization)
            .collect();
        let used = loads.iter().copied().fold(0.0, f64::max);
        if used >= BINDING {
            found.push(Binding::Utilization { class, workers: loads.len(), used });
        }
        if loads.len() == facts.count as usize && facts.count > 0 {
            found.push(Binding::Count { class, count: facts.count });
        }
    }
    for traffic in &summary.traffic {
        if let Some(used) = traffic.utilization.filter(|used| *used >= BINDING) {
            found.push(Binding::Bandwidth { from: traffic.from, to: traffic.to, used });
        }
    }
    let slowest = summary.slowest().map_or(0.0, |path| path.total());
    let limit = problem.limits.latency.iter().map(|limit| limit.seconds).reduce(f64::min);
    if let Some(limit) = limit.filter(|limit| slowest >= BINDING * limit) {
        found.push(Binding::Latency { seconds: slowest, limit });
    }
    found
}

/// Prices of one record per second, one point of accuracy and 10 ms, for the levels in force.
fn prices(
    problem: &Problem,
    outcome: &Outcome,
    rate: f64,
    limits: &SearchLimits,
) -> Result<Vec<LevelPrice>, PlannerError> {
    let mut changed = vec![(LevelChange::Rate(1.0), with_rate(problem, (rate + 1.0) / rate))];
    if let Some(accuracy) = problem.limits.accuracy {
        changed.push((LevelChange::Accuracy(1.0), with_accuracy(problem, Some(accuracy + 1.0))));
    }
    if problem.limits.latency.iter().any(|limit| limit.seconds > 0.01) {
        changed.push((LevelChange::Latency(0.01), with_latency(problem, |seconds| seconds - 0.01)));
    }
    let (before_high, before_low) = (outcome.cost.unwrap_or(0.0), outcome.bound.unwrap_or(0.0));
    let mut all = Vec::new();
    for (change, problem) in changed {
        let after = Exact.plan(&problem, limits)?;
        let price = after.cost.map(|cost| {
            let low = after.bound.unwrap_or(0.0) - before_high;
            // A stricter level is never cheaper.
            (low.max(0.0), (cost - before_low.min(before_high)).max(0.0))
        });
        let is_impossible = after.bound == Some(f64::INFINITY);
        all.push(LevelPrice { change, price, is_impossible, after: after.solution });
    }
    Ok(all)
}

/// The cheapest plans without one of the service levels, and the cheapest with other variants.
fn rejected(
    problem: &Problem,
    outcome: &Outcome,
    limits: &SearchLimits,
) -> Result<Vec<Rejected>, PlannerError> {
    let Some(chosen) = &outcome.solution else { return Ok(Vec::new()) };
    let own_cost = outcome.cost.unwrap_or(0.0);
    let mut all: Vec<Rejected> = Vec::new();
    let cheaper = |found: &Outcome| found.cost.is_some_and(|cost| cost < own_cost * (1.0 - 1e-9));
    if problem.limits.accuracy.is_some() {
        let found = Exact.plan(&with_accuracy(problem, None), limits)?;
        if let (true, Some(solution), Some(cost)) = (cheaper(&found), found.solution, found.cost) {
            let reason = Reason::Accuracy(problem.accuracy_of(&solution.variants));
            all.push(Rejected { solution, cost, reason });
        }
    }
    if !problem.limits.latency.is_empty() {
        let mut free = problem.clone();
        free.limits.latency.clear();
        let found = Exact.plan(&free, limits)?;
        if let (true, Some(solution), Some(cost)) = (cheaper(&found), found.solution, found.cost) {
            let summary = Summary::new(&free, &solution).ok();
            let slowest = summary.as_ref().and_then(Summary::slowest).map_or(0.0, |path| path.total());
            all.push(Rejected { solution, cost, reason: Reason::Latency(slowest) });
        }
    }
    let mut excluded = vec![chosen.variants.clone()];
    while all.len() < REJECTED {
        let found = Exact.plan_without(problem, limits, &excluded)?;
        let (Some(solution), Some(cost)) = (found.solution, found.cost) else { break };
        excluded.push(solution.variants.clone());
        all.push(Rejected { reason: Reason::Dearer(cost - own_cost), solution, cost });
    }
    Ok(all)
}
