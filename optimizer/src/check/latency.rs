//! Waits of workers and latencies of paths.
use super::{TOLERANCE, Violation};
use crate::problem::{Problem, Producer};
use crate::solution::Solution;

pub(super) fn check(problem: &Problem, solution: &Solution, found: &mut Vec<Violation>) {
    if problem.limits.latency.is_empty() {
        return;
    }
    waits(problem, solution, found);
    for limit in &problem.limits.latency {
        for sink in 0..problem.operators.len() {
            let is_last = !problem.edges.iter().any(|edge| edge.from == Producer::Operator(sink));
            if limit.sink.map_or(!is_last, |named| named != sink) {
                continue;
            }
            let slowest = solution
                .classes
                .iter()
                .map(|class| ends(problem, solution, &class.sources, &class.hostings)[sink])
                .fold(0.0, f64::max)
                + problem.limits.publication_seconds;
            if slowest > limit.seconds + 1e-6 {
                found.push(Violation::Latency {
                    sink: problem.operators[sink].id.clone(),
                    seconds: slowest,
                    allowed: limit.seconds,
                });
            }
        }
    }
}

/// Latest end of each operator in seconds, on one route.
pub(super) fn ends(
    problem: &Problem,
    solution: &Solution,
    sources: &[usize],
    hostings: &[usize],
) -> Vec<f64> {
    let mut ends: Vec<f64> = Vec::new();
    for (operator, &index) in hostings.iter().enumerate() {
        let hosting = &solution.hostings[index];
        let mut begin = 0.0f64;
        for edge in problem.edges.iter().filter(|edge| edge.to == operator) {
            let (from, before, bytes) = match edge.from {
                Producer::Source(source) => (sources[source], 0.0, edge.bytes[0]),
                Producer::Operator(producer) => (
                    solution.hostings[hostings[producer]].location,
                    ends[producer],
                    edge.bytes[solution.variants[producer]],
                ),
            };
            let transfer =
                problem.routes[from][hosting.location].as_ref().map_or(0.0, |route| match route.bandwidth {
                    Some(bandwidth) if bytes > 0.0 => route.delay + bytes / bandwidth,
                    _ => route.delay,
                });
            begin = begin.max(before + transfer);
        }
        let facts = &problem.operators[operator];
        let mut own = problem.held_seconds(operator);
        if let Some(worker) = hosting.worker.filter(|_| !facts.weightless) {
            let class = solution.workers[worker].class;
            let mode = &facts.variants[solution.variants[operator]].modes[class][hosting.mode];
            own += mode.fill_seconds + mode.call_seconds + hosting.wait_seconds.unwrap_or(0.0);
        }
        ends.push(begin + own);
    }
    ends
}

/// With decay rate theta = -ln(1 - p) / x, the sum over hostings of calls/s x (E exp(theta S) - 1) must not exceed
/// theta; all hostings of a worker name the same wait.
fn waits(problem: &Problem, solution: &Solution, found: &mut Vec<Violation>) {
    let strictest = problem.limits.latency.iter().map(|limit| limit.percentile / 100.0).fold(0.0, f64::max);
    for worker in 0..solution.workers.len() {
        let class = solution.workers[worker].class;
        let here = solution.hostings.iter().filter(|hosting| {
            hosting.worker == Some(worker) && !problem.operators[hosting.operator].weightless
        });
        let mut wait: Option<f64> = None;
        let mut growth = 0.0;
        for hosting in here {
            let Some(own) = hosting.wait_seconds.filter(|own| *own > 0.0) else {
                found.push(Violation::Shape(format!("worker {worker} has no bounded wait")));
                return;
            };
            if wait.is_some_and(|wait| wait != own) {
                found.push(Violation::Shape(format!("worker {worker} has two different waits")));
            }
            wait = Some(own);
            let theta = -(1.0 - strictest).ln() / own;
            let operator = &problem.operators[hosting.operator];
            let mode = &operator.variants[solution.variants[hosting.operator]].modes[class][hosting.mode];
            let moment = if mode.samples.is_empty() {
                let (mean, variance) = (mode.mean_call_seconds, mode.variance_call_seconds);
                if mean == 0.0 || variance <= 1e-12 * mean * mean {
                    (theta * mean).exp()
                } else {
                    // Gamma with shape mean^2 / variance and scale variance / mean.
                    let (shape, scale) = (mean * mean / variance, variance / mean);
                    if theta * scale >= 1.0 { f64::INFINITY } else { (1.0 - theta * scale).powf(-shape) }
                }
            } else {
                mode.samples.iter().map(|s| (theta * s).exp()).sum::<f64>() / mode.samples.len() as f64
            };
            let calls = operator.rate * hosting.share / f64::from(mode.batch);
            growth += calls * (moment - 1.0) / theta;
        }
        if growth > 1.0 + TOLERANCE {
            found.push(Violation::Wait { worker, load: growth });
        }
    }
}
