//! Explains a plan: the limits that bind it, the cost of each service level, the rejected plans with reasons, and,
//! where there is no plan, the least change that makes one possible.
//!
//! Every result comes from planning again with one change, so it holds exactly as the planner's proofs do: with proven
//! intervals `[lo, hi]` of the cost before and after, the price of the change is in `[lo' - hi, hi' - lo]`. Cost is a
//! step function of a service level, so the slope of a relaxation would be no price. Searches begin from the plans and
//! bounds of those before (`explain/asked.rs`).
mod asked;
mod combined;
mod devices;
mod front;
mod percentiles;
mod questions;
mod relax;
mod scale;
#[cfg(test)]
mod tests;

pub use asked::{Effort, PRINTED};
pub use combined::combination;
pub use devices::{DeviceReason, OtherKind};
pub use front::{FrontPoint, Surface, SurfacePoint, accuracy_front, latency_front};
pub use percentiles::{OtherPercentile, PercentileCost};
pub use relax::{MissingWorkers, Relaxation, Relaxed, relaxations};
pub use scale::{with_accuracy, with_latency, with_losses, with_rate};

use crate::planner::{PlannerError, SearchLimits};
use crate::problem::Problem;
use crate::solution::{Outcome, Solution};
use crate::summary::Summary;
use questions::Questions;

/// A limit binds from this used share on.
const BINDING: f64 = 0.99;

/// The explanation of a plan, as far as its questions are answered.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Explanation {
    /// Limits that bind the plan.
    pub binding: Vec<Binding>,
    /// Price of a small increase of each service level.
    pub prices: Vec<LevelPrice>,
    /// Price of surviving losses, compared with surviving fewer.
    pub losses: Vec<LossPrice>,
    /// The best rejected plans.
    pub rejected: Vec<Rejected>,
    /// How each operator with both possibilities runs: on a device, or on the worker of its stage.
    pub devices: Vec<DeviceReason>,
    /// Cost at other percentiles.
    pub percentiles: Vec<PercentileCost>,
    /// Questions whose search ended without an answer.
    pub open: Vec<Open>,
    /// Number of questions, an estimate until all are answered.
    pub questions: usize,
    /// Effort so far.
    pub effort: Effort,
}

/// A question without an answer: the search found nothing in time, and did not prove that there is nothing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Open {
    /// Whether a plan below the level on accuracy is cheaper.
    WithoutAccuracy,
    /// Whether a plan above the levels on latency is cheaper.
    WithoutLatency,
    /// The cheapest plan with other variants; it costs at least this, in $/h.
    OtherVariants(f64),
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
    /// Whether the time limit ended the search.
    pub is_cut: bool,
}

/// The price of surviving losses of workers.
#[derive(Debug, Clone, PartialEq)]
pub struct LossPrice {
    /// Workers that may be lost at a time.
    pub survived: u32,
    /// Workers that may be lost in the plan that it is compared with.
    pub instead: u32,
    /// Additional $/h, proven least and most; none: the search was cut short.
    pub price: Option<(f64, f64)>,
    /// The cheaper plan.
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
    /// No plan of its kind costs less, in $/h.
    pub least: f64,
    /// Whether the time limit ended the search.
    pub is_cut: bool,
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

/// Explains the plan of an outcome, with one record per second more than `rate`, and at other percentiles. The time
/// limit is one for all searches. `seen` gets the explanation so far after each answer.
///
/// # Errors
/// Errors of the planner.
pub fn explain(
    problem: &Problem,
    outcome: &Outcome,
    rate: f64,
    percentiles: &[OtherPercentile],
    limits: &SearchLimits,
    seen: &mut dyn FnMut(&Explanation),
) -> Result<Explanation, PlannerError> {
    let (Some(solution), Some(cost)) = (&outcome.solution, outcome.cost) else {
        return Ok(Explanation::default());
    };
    let bound = outcome.bound.unwrap_or(0.0).min(cost);
    Questions::new(problem, (cost, bound, solution), limits, seen).answered(rate, percentiles)
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
