//! The cost of guaranteeing another percentile of service times.
use crate::problem::{Operator, Problem, ServiceMode};

/// The problem with the service times at another percentile.
#[derive(Debug, Clone, PartialEq)]
pub struct OtherPercentile {
    /// The percentile, in percent.
    pub percentile: f64,
    /// The problem; none: figures are missing.
    pub problem: Option<Problem>,
}

/// The cost of the best plan at another percentile.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PercentileCost {
    /// The percentile, in percent.
    pub percentile: f64,
    /// Cost of the best plan found in $/h; none: no plan, or figures are missing.
    pub cost: Option<f64>,
    /// No plan costs less, in $/h.
    pub least: f64,
    /// Whether the time limit ended the search.
    pub is_cut: bool,
}

/// Whether no service time of a problem is shorter than in another, all else equal: then every plan of it is one of the
/// other.
pub(super) fn is_slower(problem: &Problem, than: &Problem) -> bool {
    let mut same = problem.clone();
    same.operators.clone_from(&than.operators);
    same.limits.percentile = than.limits.percentile;
    same == *than
        && problem.operators.len() == than.operators.len()
        && problem.operators.iter().zip(&than.operators).all(|(own, other)| is_slower_operator(own, other))
}

fn is_slower_operator(operator: &Operator, than: &Operator) -> bool {
    let mut same = operator.clone();
    same.variants.clone_from(&than.variants);
    let modes = |operator: &Operator| -> Vec<Vec<Vec<ServiceMode>>> {
        operator.variants.iter().map(|variant| variant.modes.clone()).collect()
    };
    let ids = |operator: &Operator| -> Vec<String> {
        operator.variants.iter().map(|variant| variant.id.clone()).collect()
    };
    let (own, other) = (modes(operator), modes(than));
    let shape = |modes: &[Vec<Vec<ServiceMode>>]| -> Vec<Vec<usize>> {
        modes.iter().map(|classes| classes.iter().map(Vec::len).collect()).collect()
    };
    same == *than
        && ids(operator) == ids(than)
        && shape(&own) == shape(&other)
        && own
            .iter()
            .flatten()
            .flatten()
            .zip(other.iter().flatten().flatten())
            .all(|(a, b)| is_slower_mode(a, b))
}

fn is_slower_mode(mode: &ServiceMode, than: &ServiceMode) -> bool {
    let is_remote_slower = match (&mode.remote, &than.remote) {
        (None, None) => true,
        (Some(own), Some(other)) => {
            let mut same = own.clone();
            same.run.clone_from(&other.run);
            same == *other && is_slower_mode(&own.run, &other.run)
        }
        _ => false,
    };
    let with_times = ServiceMode {
        seconds_per_record: than.seconds_per_record,
        call_seconds: than.call_seconds,
        remote: than.remote.clone(),
        ..mode.clone()
    };
    is_remote_slower
        && with_times == *than
        && mode.seconds_per_record >= than.seconds_per_record
        && mode.call_seconds >= than.call_seconds
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generator::small_problem_with_devices;

    #[test]
    fn longer_times_are_slower_and_other_changes_are_not() {
        let problem = small_problem_with_devices(1);
        assert!(is_slower(&problem, &problem));
        let mut slower = problem.clone();
        for mode in slower.operators.iter_mut().flat_map(|operator| &mut operator.variants) {
            mode.modes.iter_mut().flatten().for_each(|mode| mode.seconds_per_record *= 2.0);
        }
        slower.limits.percentile = 99.0;
        assert!(is_slower(&slower, &problem) && !is_slower(&problem, &slower));
        let mut cheaper = slower.clone();
        cheaper.worker_classes[0].price *= 0.5;
        assert!(!is_slower(&cheaper, &problem));
    }
}
