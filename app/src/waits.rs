//! Checks which limits an existing plan breaks.
use crate::planned::Planned;
use tidemill_optimizer::check::{Violation, check};
use tidemill_optimizer::problem::Problem;

/// Returns the violations of a plan. An unbounded wait is left out beside the load that causes it.
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

/// Whether a bound on latency is violated, or missing.
pub fn is_of_latency(violation: &Violation) -> bool {
    match violation {
        Violation::Latency { .. } | Violation::Wait { .. } => true,
        Violation::Shape(text) => text.ends_with("has no bounded wait"),
        _ => false,
    }
}
