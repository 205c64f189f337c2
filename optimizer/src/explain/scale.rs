//! Copies of a problem with another service level.
use crate::problem::Problem;

/// Multiplies all rates by a factor.
pub fn with_rate(problem: &Problem, factor: f64) -> Problem {
    let mut scaled = problem.clone();
    scaled.sources.iter_mut().for_each(|source| source.rate *= factor);
    scaled.operators.iter_mut().for_each(|operator| operator.rate *= factor);
    scaled.edges.iter_mut().for_each(|edge| edge.rate *= factor);
    scaled.rates.iter_mut().for_each(|rates| rates.scale(factor));
    scaled
}

/// Sets the least accuracy in percent, or none.
pub fn with_accuracy(problem: &Problem, accuracy: Option<f64>) -> Problem {
    let mut changed = problem.clone();
    changed.limits.accuracy = accuracy;
    changed
}

/// Changes each bound on latency; seconds.
pub fn with_latency(problem: &Problem, change: impl Fn(f64) -> f64) -> Problem {
    let mut changed = problem.clone();
    changed.limits.latency.iter_mut().for_each(|limit| limit.seconds = change(limit.seconds));
    changed
}

/// Sets the number of losses that plans survive to at most this.
pub fn with_losses(problem: &Problem, most: u32) -> Problem {
    let mut changed = problem.clone();
    changed.limits.survive = changed.limits.survive.min(most);
    changed.operators.iter_mut().for_each(|operator| operator.survive = operator.survive.min(most));
    changed
}

/// Multiplies all bandwidths by a factor; infinity removes them.
pub(super) fn with_bandwidth(problem: &Problem, factor: f64) -> Problem {
    let mut changed = problem.clone();
    for route in changed.routes.iter_mut().flatten().flatten() {
        route.bandwidth = route.bandwidth.map(|bandwidth| bandwidth * factor).filter(|b| b.is_finite());
    }
    changed
}
