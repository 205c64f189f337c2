//! What a plan that is there already keeps: how long records wait for its workers at most, and which limits it breaks.
use crate::planned::Planned;
use tidemill_optimizer::check::{Violation, check};
use tidemill_optimizer::problem::Problem;
use tidemill_optimizer::queueing::{decay_rate, effective_seconds};
use tidemill_optimizer::solution::Solution;

/// Seconds between which a wait is looked for.
const WAITS: (f64, f64) = (1e-6, 1e5);
/// Halvings of the range of their logarithms: far below a microsecond of a second.
const HALVINGS: usize = 50;

/// The plan with the least wait of each worker that is guaranteed at the percentile of the latency limits, where there are
/// such limits. A planner chooses among a few allowances; what the workers keep is often much less. Of a worker for which
/// nothing is guaranteed, none.
pub fn with_least_waits(problem: &Problem, solution: &Solution) -> Solution {
    let mut changed = solution.clone();
    let percentile = problem.limits.latency.iter().map(|limit| limit.percentile).reduce(f64::max);
    let Some(percentile) = percentile else { return changed };
    for worker in 0..solution.workers.len() {
        let wait = least_wait(problem, solution, worker, percentile);
        let here = changed.hostings.iter_mut().filter(|hosting| hosting.worker == Some(worker));
        here.for_each(|hosting| hosting.wait_seconds = wait);
    }
    changed
}

fn least_wait(problem: &Problem, solution: &Solution, worker: usize, percentile: f64) -> Option<f64> {
    let problem = &*problem.at(&solution.variants);
    let class = solution.workers[worker].class;
    let is_kept = |wait: f64| {
        let theta = decay_rate(wait, percentile);
        let loads =
            solution.hostings.iter().filter(|hosting| hosting.worker == Some(worker)).map(|hosting| {
                let operator = &problem.operators[hosting.operator];
                let variant = &operator.variants[solution.variants[hosting.operator]];
                match variant.modes.get(class).and_then(|modes| modes.get(hosting.mode)) {
                    Some(mode) if !operator.weightless => effective_seconds(mode, theta)
                        .map_or(f64::INFINITY, |seconds| operator.rate * hosting.share * seconds),
                    _ => 0.0,
                }
            });
        loads.sum::<f64>() <= 1.0
    };
    let (mut low, mut high) = WAITS;
    if !is_kept(high) {
        return None;
    }
    for _ in 0..HALVINGS {
        let middle = (low * high).sqrt();
        if is_kept(middle) { high = middle } else { low = middle }
    }
    Some(high)
}

/// What a plan does not keep. A wait that nothing bounds says nothing more than the load that is the reason for it.
pub fn violations(problem: &Problem, planned: &Planned) -> Vec<Violation> {
    let mut found = check(problem, &planned.solution);
    if let Some(worker) = planned.solution.workers.iter().enumerate().position(|(worker, _)| {
        let mut here = planned.solution.hostings.iter().filter(|hosting| hosting.worker == Some(worker));
        !problem.limits.latency.is_empty() && here.any(|hosting| hosting.wait_seconds.is_none())
    }) {
        found.retain(
            |violation| !matches!(violation, Violation::Shape(text) if text.ends_with("has no bounded wait")),
        );
        found.push(Violation::Wait { worker, load: planned.summary.workers[worker].utilization });
    }
    found
}

/// Whether a bound on latency is not kept, or there is none.
pub fn is_of_latency(violation: &Violation) -> bool {
    match violation {
        Violation::Latency { .. } | Violation::Wait { .. } => true,
        Violation::Shape(text) => text.ends_with("has no bounded wait"),
        _ => false,
    }
}
