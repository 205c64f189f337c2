//! Plans beyond their capacity, and other ends.
use crate::plans::{chain, pair, shared};
use tidemill_simulator::{Arrivals, Distribution, Ended, Trace};

#[test]
fn a_saturated_worker_gives_its_capacity() {
    let case = chain(100.0, &[Distribution::Mean(0.02)]);
    let simulation = case.simulate(&Arrivals::constant(), |options| options.seconds = 120.0);
    assert_eq!(simulation.ended, Ended::Complete);
    let sink = &simulation.sinks[0];
    assert!((sink.rate - 50.0).abs() < 0.5, "{}", sink.rate);
    assert!((sink.due_rate - 100.0).abs() < 0.1, "{}", sink.due_rate);
    assert!((simulation.achieved() - 0.5).abs() < 0.01);
    assert!(simulation.workers[0].utilization > 0.999);
    // Nearly all the time: no source is late until it reaches its lead limit.
    assert!(simulation.late_seconds > 110.0, "{}", simulation.late_seconds);
    let source = simulation.sources[0];
    assert_eq!(source.due, 12_000);
    assert!(source.records < 6_400);
    // The queue holds exactly the lead of the sources: 40 ticks of 50 ms at 100/s.
    let most = simulation.stages[0].queue_max;
    assert!((190..=215).contains(&most), "{most}");
    assert!(simulation.sinks[0].arrival.max > 50.0);
}

#[test]
fn memory_is_bounded_however_long_it_goes_on() {
    let most = [600.0, 6000.0].map(|seconds| {
        let case = chain(200.0, &[Distribution::Mean(0.01), Distribution::Mean(0.02)]);
        case.simulate(&Arrivals::poisson(), |options| options.seconds = seconds).most_on_the_way
    });
    assert!(most[0] > 200 && most[1] < 2 * most[0], "{most:?}");
}

#[test]
fn a_join_behind_a_slow_side_does_not_stop() {
    let case = pair([40.0, 40.0], [0.03, 0.001, 0.001]);
    let simulation = case.simulate(&Arrivals::constant(), |options| options.seconds = 60.0);
    assert_eq!((simulation.ended, simulation.on_the_way, simulation.unmatched), (Ended::Complete, 0, 0));
    assert!((simulation.sinks[0].rate - 1.0 / 0.03).abs() < 0.5, "{}", simulation.sinks[0].rate);
}

#[test]
fn a_burst_is_late_and_is_caught_up_with() {
    let trace = Trace::parse("time,factor\n0s,0.5\n30s,2.5\n40s,0.5\n60s,0.5\n", 50.0).unwrap();
    let case = chain(50.0, &[Distribution::Mean(0.01)]);
    let arrivals = Arrivals { trace: Some(trace), ..Arrivals::constant() };
    let simulation = case.simulate(&arrivals, |options| options.seconds = 80.0);
    let sink = &simulation.sinks[0];
    // 30 s at 25/s, 10 s at 125/s, 40 s at 25/s.
    assert_eq!((simulation.sources[0].records, simulation.sources[0].due), (3000, 3000));
    assert_eq!(sink.records, 3000);
    // For 10 s arrivals exceed the capacity by 25/s: the last ones wait for 2.5 s.
    assert!((sink.arrival.max - 2.5).abs() < 0.1, "{}", sink.arrival.max);
    assert!((0.1..6.0).contains(&simulation.late_seconds), "{}", simulation.late_seconds);
}

#[test]
fn limits_end_it_early_and_it_says_so() {
    let case = shared(100.0, 0.005, &[0.5, 0.5]);
    let simulation = case.simulate(&Arrivals::constant(), |options| options.most_events = Some(1000));
    assert_eq!(simulation.ended, Ended::Events);
    assert!((4.0..6.0).contains(&simulation.seconds), "{}", simulation.seconds);
    assert!((simulation.sinks[0].rate - 100.0).abs() < 1.0);
    let simulation = case.simulate(&Arrivals::constant(), |options| options.most_records = 1);
    assert_eq!(simulation.ended, Ended::Records);
}
