//! Calls after a pause, and workers with a share of a processor.
use crate::plans::{Case, chain};
use tidemill_simulator::{Arrivals, Distribution, ServiceTimes, Spacing, Times};

fn case(rate: f64, times: ServiceTimes) -> Case {
    let mut case = chain(rate, &[Distribution::Mean(0.01)]);
    case.times = Times::new(vec![Some(times)]);
    case
}

/// A call takes 10 ms, after a pause 15 ms.
fn with_pauses() -> ServiceTimes {
    ServiceTimes::of_any_batch(Distribution::Mean(0.01)).with_pauses(Some(Distribution::Mean(0.015)))
}

#[test]
fn a_call_after_a_pause_takes_longer() {
    let simulation =
        case(10.0, with_pauses()).simulate(&Arrivals::constant(), |options| options.seconds = 60.0);
    let latency = &simulation.sinks[0].arrival;
    assert!((latency.p50 - 0.015).abs() < 1e-4 && (latency.max - 0.015).abs() < 1e-4, "{latency:?}");
    assert!((simulation.workers[0].utilization - 0.15).abs() < 1e-3);
}

/// Welch 1964, a queue whose first customer after an idle time has another service time: the idle share is `(1 - rate *
/// next) / (1 + rate * (first - next))`.
#[test]
fn only_the_first_call_of_a_busy_time_takes_longer() {
    let arrivals = Arrivals { spacing: Spacing::Poisson, ..Arrivals::constant() };
    let simulation = case(50.0, with_pauses()).simulate(&arrivals, |options| options.seconds = 2000.0);
    let idle = (1.0 - 50.0 * 0.01) / (1.0 + 50.0 * 0.005);
    let found = 1.0 - simulation.workers[0].utilization;
    assert!((found - idle).abs() < 0.01, "{found} of {idle}");
}

#[test]
fn a_share_of_a_processor_serves_so_much_of_every_period() {
    let half = |seconds| ServiceTimes::of_any_batch(Distribution::Mean(seconds)).of_share(Some(0.5));
    // Records arrive at the start of periods: 5 ms there, the rest in the next one.
    for (needed, takes, busy) in [(0.004, 0.004, 0.08), (0.008, 0.013, 0.16)] {
        let simulation =
            case(10.0, half(needed)).simulate(&Arrivals::constant(), |options| options.seconds = 60.0);
        let latency = simulation.sinks[0].arrival.p50;
        assert!((latency - takes).abs() < 1e-4, "{needed}: {latency}");
        assert!((simulation.workers[0].utilization - busy).abs() < 1e-3);
    }
}
