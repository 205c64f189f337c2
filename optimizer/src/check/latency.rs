//! Waits of workers and latencies of paths.
use super::{TOLERANCE, Violation};
use crate::problem::{Problem, Producer, ServiceMode};
use crate::solution::{Hosting, Solution};

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
            if !matches!(edge.from, Producer::Source(source) if problem.sources[source].replies) {
                begin = begin.max(before + transfer);
            }
        }
        let facts = &problem.operators[operator];
        let mut own = problem.held_seconds(operator);
        if let Some(worker) = hosting.worker.filter(|_| !facts.weightless) {
            let class = solution.workers[worker].class;
            let mode = &facts.variants[solution.variants[operator]].modes[class][hosting.mode];
            own += mode.fill_seconds + mode.call_seconds + hosting.wait_seconds.unwrap_or(0.0);
            if let (Some(remote), Some(device)) = (&mode.remote, &hosting.device) {
                let (here, there) = (hosting.location, problem.worker_classes[remote.class].location);
                let records = f64::from(mode.batch);
                let ways = [(here, there, remote.sent_bytes), (there, here, remote.received_bytes)];
                for (from, to, bytes) in ways {
                    let route = problem.routes[from][to].unwrap_or_default();
                    own += route.delay;
                    own += route
                        .bandwidth
                        .map_or(0.0, |most| if bytes > 0.0 { records * bytes / most } else { 0.0 });
                }
                own += remote.run.call_seconds + device.wait_seconds.unwrap_or(0.0);
            }
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
        // Its stages, and the models that it runs for stages elsewhere.
        let stages = solution.hostings.iter().filter_map(|hosting| {
            let is_here = hosting.worker == Some(worker) && !problem.operators[hosting.operator].weightless;
            is_here.then(|| Some((hosting, mode_of(problem, solution, hosting)?, hosting.wait_seconds)))?
        });
        let runs = solution.hostings.iter().filter_map(|hosting| {
            let device = hosting.device.as_ref().filter(|device| device.worker == worker)?;
            let run = &mode_of(problem, solution, hosting)?.remote.as_ref()?.run;
            Some((hosting, &**run, device.wait_seconds))
        });
        let mut wait: Option<f64> = None;
        let mut growth = 0.0;
        for (hosting, mode, own) in stages.chain(runs) {
            let Some(own) = own.filter(|own| *own > 0.0) else {
                found.push(Violation::Shape(format!("worker {worker} has no bounded wait")));
                return;
            };
            if wait.is_some_and(|wait| wait != own) {
                found.push(Violation::Shape(format!("worker {worker} has two different waits")));
            }
            wait = Some(own);
            let theta = -(1.0 - strictest).ln() / own;
            let operator = &problem.operators[hosting.operator];
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

/// The mode of a stage; none without a worker.
fn mode_of<'a>(problem: &'a Problem, solution: &Solution, hosting: &Hosting) -> Option<&'a ServiceMode> {
    let class = solution.workers[hosting.worker?].class;
    let variant = &problem.operators[hosting.operator].variants[solution.variants[hosting.operator]];
    variant.modes.get(class)?.get(hosting.mode)
}
