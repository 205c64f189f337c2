//! Waiting time at a worker, linear in the flows.
//!
//! One server, first come first served, Poisson arrivals of calls at rate `f`, service time `S` of a call. If
//! `f (E exp(theta S) - 1) <= theta`, then `P(W > x) <= exp(-theta x)` (Lundberg's inequality; for queues Kingman 1964,
//! "A martingale inequality in the theory of queues"). With `theta = ln(1 / (1 - p)) / x` the wait stays below `x`
//! at percentile `p` whenever `sum f_v a_v <= 1` with `a_v = (E exp(theta S_v) - 1) / theta`: an effective service time
//! that adds up over the operators of a worker.
//!
//! The expectation is the mean over measured samples. Without samples the service time is assumed to be
//! gamma-distributed with the measured mean `m` and variance `s2`: `E exp(theta S) = (1 - theta s2 / m)^(-m^2 / s2)`,
//! infinite from `theta = m / s2` on; without variance it is `exp(theta m)`. Calls of batches are treated as Poisson
//! arrivals at the rate of full batches: collecting a batch makes arrivals more regular than that.
use crate::problem::ServiceMode;

/// Returns the rate `theta` that implies `P(W > wait) <= 1 - percentile`.
///
/// `wait` in seconds, above 0; `percentile` in percent, below 100.
pub fn decay_rate(wait: f64, percentile: f64) -> f64 {
    (1.0 / (1.0 - percentile / 100.0)).ln() / wait
}

/// Returns the effective seconds of a worker per record at that decay rate; none where the expectation is infinite.
pub fn effective_seconds(mode: &ServiceMode, theta: f64) -> Option<f64> {
    let growth = exponential_moment(mode, theta)? - 1.0;
    let seconds = growth / theta / f64::from(mode.batch);
    seconds.is_finite().then_some(seconds)
}

/// The limit of the effective seconds for long waits: the mean, per record.
pub(crate) fn least_effective_seconds(mode: &ServiceMode) -> f64 {
    let mean = match mode.samples.as_slice() {
        [] => mode.mean_call_seconds,
        samples => samples.iter().sum::<f64>() / samples.len() as f64,
    };
    mean / f64::from(mode.batch)
}

/// Whether effective seconds of `a` are at most those of `b` at every decay rate, as far as ordered samples show it, or
/// means and scales of gamma distributions, as the exponential moment grows with both. That of equal calls is at most the
/// moment of any calls with their mean.
pub(crate) fn is_never_longer(a: &ServiceMode, b: &ServiceMode) -> bool {
    let scale = |mode: &ServiceMode| match mode.mean_call_seconds {
        0.0 => 0.0,
        // Negligible variance counts as none.
        mean if mode.variance_call_seconds <= 1e-12 * mean * mean => 0.0,
        mean => mode.variance_call_seconds / mean,
    };
    if a.batch < b.batch {
        return false;
    }
    match (a.samples.as_slice(), b.samples.as_slice()) {
        ([], []) => return a.mean_call_seconds <= b.mean_call_seconds && scale(a) <= scale(b),
        ([], of_b) => {
            let mean = of_b.iter().sum::<f64>() / of_b.len() as f64;
            return scale(a) == 0.0 && a.mean_call_seconds <= mean;
        }
        (of_a, []) => return of_a.iter().all(|seconds| *seconds <= b.mean_call_seconds),
        (of_a, of_b) if of_a.len() != of_b.len() => return false,
        _ => {}
    }
    let sorted = |mode: &ServiceMode| {
        let mut samples = mode.samples.clone();
        samples.sort_by(f64::total_cmp);
        samples
    };
    sorted(a).iter().zip(sorted(b)).all(|(a, b)| *a <= b)
}

/// `E exp(theta S)` of the seconds of a call.
fn exponential_moment(mode: &ServiceMode, theta: f64) -> Option<f64> {
    if !mode.samples.is_empty() {
        let sum: f64 = mode.samples.iter().map(|seconds| (theta * seconds).exp()).sum();
        return Some(sum / mode.samples.len() as f64);
    }
    let (mean, variance) = (mode.mean_call_seconds, mode.variance_call_seconds);
    if mean == 0.0 {
        return Some(1.0);
    }
    if variance <= 1e-12 * mean * mean {
        return Some((theta * mean).exp());
    }
    let base = 1.0 - theta * variance / mean;
    (base > 0.0).then(|| base.powf(-mean * mean / variance))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_wait_costs_no_more_than_the_service_itself() {
        let mode = ServiceMode::constant(0.01);
        let seconds = effective_seconds(&mode, decay_rate(100.0, 95.0)).expect("finite");
        assert!((seconds - 0.01).abs() < 1e-5, "{seconds}");
        let short = effective_seconds(&mode, decay_rate(0.01, 95.0)).expect("finite");
        assert!(short > 0.05, "{short}");
    }

    #[test]
    fn what_is_never_longer_is_so_at_every_rate() {
        let with = |samples: &[f64]| ServiceMode { samples: samples.to_vec(), ..ServiceMode::constant(0.01) };
        let spread = ServiceMode { variance_call_seconds: 1e-6, ..ServiceMode::constant(0.01) };
        let modes = [
            ServiceMode::constant(0.0),
            ServiceMode::constant(0.009),
            ServiceMode::constant(0.011),
            spread,
            with(&[0.008, 0.012]),
            with(&[0.008, 0.009]),
            with(&[0.02, 0.001, 0.009]),
        ];
        let mut mixed = 0;
        for (a, b) in modes.iter().flat_map(|a| modes.iter().map(move |b| (a, b))) {
            if !is_never_longer(a, b) {
                continue;
            }
            mixed += usize::from(a.samples.len() != b.samples.len());
            for wait in [0.001, 0.01, 0.1, 1.0, 100.0] {
                let seconds = |mode| effective_seconds(mode, decay_rate(wait, 95.0)).unwrap_or(f64::INFINITY);
                assert!(seconds(a) <= seconds(b) * (1.0 + 1e-9), "{a:?} {b:?} {wait}");
            }
        }
        assert!(mixed >= 8, "{mixed}");
    }

    #[test]
    fn samples_and_moments_agree() {
        // An exponential service time of mean 10 ms is gamma with shape 1.
        let n = 200_000;
        let samples: Vec<f64> =
            (0..n).map(|i| -0.01 * (1.0 - (f64::from(i) + 0.5) / f64::from(n)).ln()).collect();
        let mut mode = ServiceMode { variance_call_seconds: 1e-4, ..ServiceMode::constant(0.01) };
        let theta = decay_rate(0.2, 95.0);
        let from_moments = effective_seconds(&mode, theta).expect("finite");
        mode.samples = samples;
        let from_samples = effective_seconds(&mode, theta).expect("finite");
        assert!((from_moments - from_samples).abs() < 1e-3 * from_moments, "{from_moments} {from_samples}");
        assert!((from_moments - 0.01 / (1.0 - theta * 0.01)).abs() < 1e-9, "M/M/1: mgf 1 / (1 - theta m)");
    }

    #[test]
    fn a_heavy_tail_has_no_short_wait() {
        let mode = ServiceMode { variance_call_seconds: 1e-4, ..ServiceMode::constant(0.01) };
        assert_eq!(effective_seconds(&mode, decay_rate(0.02, 95.0)), None);
    }

    /// The bound holds in a simulated queue with two operators on one worker.
    #[test]
    fn simulated_waits_keep_the_bound() {
        let (short, long) = (0.01, 0.03);
        let theta = decay_rate(0.2, 95.0);
        let effective =
            |seconds: f64| effective_seconds(&ServiceMode::constant(seconds), theta).expect("finite");
        let share_of_long = 0.5;
        let rate = 1.0 / (effective(short) * (1.0 - share_of_long) + effective(long) * share_of_long);
        let mut state = 7u64;
        let mut uniform = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 11) as f64 + 0.5) / (1u64 << 53) as f64
        };
        let (mut wait, mut late, calls) = (0.0f64, 0u32, 400_000u32);
        for _ in 0..calls {
            late += u32::from(wait > 0.2);
            let service = if uniform() < share_of_long { long } else { short };
            wait = (wait + service + uniform().ln() / rate).max(0.0); // Lindley's recursion
        }
        let part = f64::from(late) / f64::from(calls);
        assert!(part < 0.05 && part > 0.02, "{part}");
    }
}
