//! Waits at the workers of an existing plan.
use crate::problem::Problem;
use crate::queueing::{decay_rate, effective_seconds};
use crate::solution::{Fallback, Solution};

/// Searched range of waits in seconds.
const WAITS: (f64, f64) = (1e-6, 1e5);
/// Bisection steps on the logarithm of the range: far below a microsecond.
const HALVINGS: usize = 50;
/// Tolerated excess in the checker.
const ROUNDING: f64 = 1e-6;

/// Returns the plan with the least wait of each worker that is guaranteed at the percentile of the latency limits,
/// where there are such limits. A planner chooses among a few waits; the guaranteed ones are often much shorter. A
/// worker without a guarantee gets none. A wait holds after every loss that the plan has a fallback for, too.
///
/// ```
/// use tidemill_optimizer::planner::{Planner, SearchLimits};
/// use tidemill_optimizer::planners::exact::Exact;
/// use tidemill_optimizer::waits::with_least_waits;
/// use tidemill_problems::small_problem_with_latency;
///
/// for problem in (1..9).map(small_problem_with_latency) {
///     let outcome = Exact.plan(&problem, &SearchLimits::default())?;
///     let Some(chosen) = outcome.solution else { continue };
///     let least = with_least_waits(&problem, &chosen);
///     for (least, chosen) in least.hostings.iter().zip(&chosen.hostings) {
///         assert!(least.wait_seconds <= chosen.wait_seconds);
///     }
/// }
/// # Ok::<(), tidemill_optimizer::planner::PlannerError>(())
/// ```
pub fn with_least_waits(problem: &Problem, solution: &Solution) -> Solution {
    let mut changed = solution.clone();
    let percentile = problem.limits.latency.iter().map(|limit| limit.percentile).reduce(f64::max);
    let Some(percentile) = percentile else { return changed };
    let at = &*problem.at(&solution.variants);
    let after: Vec<(&Fallback, Solution)> = solution
        .fallbacks
        .iter()
        .filter_map(|fallback| Some((fallback, solution.after(fallback)?)))
        .collect();
    for worker in 0..solution.workers.len() {
        // Of all loads, before and after losses, the largest counts.
        let left =
            after.iter().filter(|(fallback, _)| !fallback.lost.contains(&worker)).map(|(fallback, left)| {
                let gone = fallback.lost.iter().filter(|lost| **lost < worker).count();
                (left, worker - gone)
            });
        let states: Vec<(&Solution, usize)> = std::iter::once((solution, worker)).chain(left).collect();
        let load = |wait: f64| {
            let loads =
                states.iter().map(|(plan, worker)| load_of_waiting(at, plan, *worker, wait, percentile));
            loads.fold(0.0, f64::max)
        };
        let least = least_wait(|wait| load(wait) <= 1.0);
        let chosen = solution.hostings.iter().find_map(|hosting| {
            let device = hosting.device.filter(|device| device.worker == worker);
            let own = hosting.wait_seconds.filter(|_| hosting.worker == Some(worker));
            device.map_or(own, |device| device.wait_seconds)
        });
        // A wait that is kept only up to rounding is not found, or a slightly longer one is. A wait that is not kept is
        // dropped: the worker may have more work than it was chosen for.
        let chosen = chosen.filter(|wait| load(*wait) <= 1.0 + ROUNDING);
        let wait = match (least, chosen) {
            (Some(least), Some(chosen)) => Some(least.min(chosen)),
            (least, chosen) => least.or(chosen),
        };
        let here = changed.hostings.iter_mut().filter(|hosting| hosting.worker == Some(worker));
        here.for_each(|hosting| hosting.wait_seconds = wait);
        let devices = changed.hostings.iter_mut().filter_map(|hosting| hosting.device.as_mut());
        devices.filter(|device| device.worker == worker).for_each(|device| device.wait_seconds = wait);
        let starts = changed.fallbacks.iter_mut().flat_map(|fallback| &mut fallback.starts);
        starts.filter(|start| start.worker == Some(worker)).for_each(|start| start.wait_seconds = wait);
    }
    changed
}

fn least_wait(is_kept: impl Fn(f64) -> bool) -> Option<f64> {
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

/// Whether a worker's load keeps a wait at a percentile. The rates of the problem are those of the variants of the
/// plan.
pub(crate) fn keeps(
    problem: &Problem,
    solution: &Solution,
    worker: usize,
    wait: f64,
    percentile: f64,
) -> bool {
    load_of_waiting(problem, solution, worker, wait, percentile) <= 1.0
}

/// Load of a worker as a share of its capacity with that wait.
fn load_of_waiting(problem: &Problem, solution: &Solution, worker: usize, wait: f64, percentile: f64) -> f64 {
    let theta = decay_rate(wait, percentile);
    let loads = solution.hostings.iter().map(|hosting| {
        let operator = &problem.operators[hosting.operator];
        let Some(mode) = problem.mode_of(solution, hosting).filter(|_| !operator.weightless) else {
            return 0.0;
        };
        let is_device = hosting.device.is_some_and(|device| device.worker == worker);
        let modes = [
            (hosting.worker == Some(worker)).then_some(mode),
            mode.remote.as_ref().filter(|_| is_device).map(|remote| &*remote.run),
        ];
        let seconds = modes.into_iter().flatten().map(|mode| {
            let seconds = effective_seconds(mode, theta);
            seconds.map_or(f64::INFINITY, |seconds| operator.rate * hosting.share * seconds)
        });
        seconds.sum()
    });
    loads.sum::<f64>()
}
