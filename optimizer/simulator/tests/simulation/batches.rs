//! Batching.
use crate::plans::{Case, chain};
use tidemill_simulator::{Arrivals, Distribution, ServiceTimes, Times};

/// One operator that takes batches of up to 8: a call takes 9 ms and 1 ms a record.
fn batched(rate: f64) -> Case {
    let mut case = chain(rate, &[Distribution::Mean(0.010)]);
    for modes in &mut case.problem.operators[0].variants[0].modes {
        (modes[0].batch, modes[0].fill_seconds) = (8, 0.02);
    }
    let call = |batch: u32| (batch, Distribution::Mean(0.009 + 0.001 * f64::from(batch)));
    let times = ServiceTimes::new([1, 8].map(call).to_vec());
    case.times = Times::new(vec![times]);
    case
}

#[test]
fn a_light_load_has_batches_of_one() {
    let simulation = batched(10.0).simulate(&Arrivals::constant(), |options| options.seconds = 60.0);
    assert_eq!(simulation.stages[0].batch(), 1.0);
    assert!((simulation.sinks[0].arrival.max - 0.010).abs() < 1e-6);
}

#[test]
fn a_load_beyond_single_calls_fills_batches_and_is_served() {
    // Single calls would reach 100/s.
    let simulation = batched(400.0).simulate(&Arrivals::constant(), |options| options.seconds = 60.0);
    assert!((simulation.sinks[0].rate - 400.0).abs() < 1.0);
    assert!(simulation.stages[0].batch() > 4.0, "{}", simulation.stages[0].batch());
    assert!(simulation.sinks[0].arrival.p99 < 0.04, "{}", simulation.sinks[0].arrival.p99);
    assert_eq!(simulation.late_seconds, 0.0);
}

#[test]
fn more_than_full_batches_give_is_not_served() {
    let simulation = batched(600.0).simulate(&Arrivals::constant(), |options| options.seconds = 60.0);
    let capacity = 8.0 / 0.017;
    assert!((simulation.sinks[0].rate / capacity - 1.0).abs() < 0.01, "{}", simulation.sinks[0].rate);
    assert!(simulation.stages[0].batch() > 7.9);
}
