//! The counted time, for long and very short runs.
use crate::plans::{chain, pair};
use tidemill_optimizer::problem::Route;
use tidemill_simulator::{Arrivals, Distribution, Ended, ServiceTimes, Times, Trace};

fn with_trace(text: &str, nominal: f64) -> Arrivals {
    Arrivals { trace: Some(Trace::parse(text, nominal).unwrap()), ..Arrivals::constant() }
}

/// Nothing for 300 s, then more than the worker's capacity: only records due in the counted time count.
#[test]
fn a_quiet_beginning_does_not_hide_a_miss() {
    let case = chain(110.0, &[Distribution::Mean(0.015)]);
    let arrivals = with_trace("time,factor\n0s,0\n300s,1\n", 110.0);
    let simulation = case.simulate(&arrivals, |options| options.seconds = 600.0);
    let capacity = 1.0 / 0.015;
    assert!((simulation.achieved() - capacity / 110.0).abs() < 0.002, "{}", simulation.achieved());
    let sink = &simulation.sinks[0];
    assert!((sink.due_rate - 55.0).abs() < 0.01 && (sink.rate - capacity / 2.0).abs() < 0.1, "{sink:?}");
    // With a warm-up that ends when the records start, it is the whole rate.
    let simulation = case.simulate(&arrivals, |o| (o.seconds, o.warm_up) = (600.0, 300.0));
    let sink = &simulation.sinks[0];
    assert!((sink.due_rate - 110.0).abs() < 0.01 && (sink.rate - capacity).abs() < 0.2, "{sink:?}");
}

/// Records on a long link at the end are not missing.
#[test]
fn records_that_are_naturally_on_the_way_do_not_miss() {
    let mut case = chain(40.0, &[Distribution::Mean(0.001), Distribution::Mean(0.001)]);
    case = case.with_route(Route { price: 0.0, bandwidth: None, delay: 3.0 });
    for (seconds, warm_up) in [(10.0, 0.0), (60.0, 0.0), (20.0, 10.0)] {
        let simulation = case.simulate(&Arrivals::constant(), |options| {
            (options.seconds, options.warm_up, options.lead_ticks) = (seconds, warm_up, u32::MAX);
        });
        assert!((simulation.achieved() - 1.0).abs() < 0.005, "{seconds}: {}", simulation.achieved());
        assert!((simulation.sinks[0].rate - 40.0).abs() < 0.2, "{}", simulation.sinks[0].rate);
    }
    // Joins wait for earlier ticks.
    let case = pair([40.0, 40.0], [0.002, 0.004, 0.001]);
    let simulation = case.simulate(&Arrivals::constant(), |options| options.seconds = 10.0);
    assert!(simulation.achieved() > 0.99, "{}", simulation.achieved());
}

#[test]
fn it_says_that_it_was_too_short() {
    let case = chain(40.0, &[Distribution::Mean(0.015)]);
    let run = |seconds: f64| case.simulate(&Arrivals::constant(), |options| options.seconds = seconds);
    assert!(run(0.001).is_too_short() && run(0.014).is_too_short());
    assert!(!run(0.1).is_too_short() && run(0.1).achieved() > 0.9);
    // Sources had to wait: that is a miss, not a lack of time.
    let slow = chain(40.0, &[Distribution::Mean(60.0)]);
    let simulation = slow.simulate(&Arrivals::constant(), |options| options.seconds = 10.0);
    assert!(!simulation.is_too_short() && simulation.achieved() < 0.25);
}

#[test]
fn nobody_is_busy_for_more_than_all_the_time() {
    let whole = ServiceTimes::of_any_batch(Distribution::Mean(0.011));
    for times in [whole.clone(), whole.clone().of_share(Some(0.3))] {
        let mut case = chain(200.0, &[Distribution::Mean(0.011)]);
        case.times = Times::new(vec![Some(times)]);
        for (seconds, warm_up) in [(0.001, 0.0), (0.02, 0.0), (0.5, 0.0), (60.0, 0.0), (3.01, 3.0)] {
            let simulation =
                case.simulate(&Arrivals::constant(), |o| (o.seconds, o.warm_up) = (seconds, warm_up));
            let busy = simulation.workers[0].utilization;
            assert!((0.999..=1.0).contains(&busy), "{seconds}: {busy}");
            assert_eq!(simulation.stages[0].utilization, busy);
        }
    }
}

/// Records that still wait at the end belong to no call.
#[test]
fn a_batch_is_no_larger_than_the_largest() {
    let mut case = chain(600.0, &[Distribution::Mean(0.010)]);
    for modes in &mut case.problem.operators[0].variants[0].modes {
        (modes[0].batch, modes[0].fill_seconds) = (8, 0.02);
    }
    let call = |batch: u32| (batch, Distribution::Mean(0.009 + 0.001 * f64::from(batch)));
    case.times = Times::new(vec![ServiceTimes::new([1, 8].map(call).to_vec())]);
    for seconds in [0.05, 0.5, 1.5] {
        let simulation = case.simulate(&Arrivals::constant(), |options| options.seconds = seconds);
        let stage = simulation.stages[0];
        assert!((1.0..=8.0).contains(&stage.batch()) && stage.called < stage.records, "{stage:?}");
    }
}

/// At extreme rates the limits end the simulation, even where time never advances.
#[test]
fn limits_hold_where_all_is_due_at_once() {
    let case = chain(40.0, &[Distribution::Mean(0.01)]);
    let arrivals = with_trace("time,factor\n0,1e9\n", 40.0);
    let simulation = case.simulate(&arrivals, |options| options.most_records = 100_000);
    assert_eq!((simulation.ended, simulation.on_the_way), (Ended::Records, 100_000));
    let mut case = case;
    // Operators that cost nothing: no record is ever in flight.
    case.solution.hostings[0].worker = None;
    case.solution.workers.clear();
    case.problem.operators[0].weightless = true;
    let mut looks = 0;
    let options = tidemill_simulator::Options::of(&case.problem);
    let times = Times::new(vec![None]);
    let simulation = tidemill_simulator::simulate_watched(
        &case.problem,
        &case.solution,
        &times,
        &arrivals,
        &options,
        &mut |_| {
            looks += 1;
            looks < 20
        },
    );
    assert_eq!(simulation.unwrap().ended, Ended::Interrupted);
}

/// A record due on a tick belongs to it at any time: the 99th percentile of a join does not depend on the simulated
/// time.
#[test]
fn the_99th_percentile_does_not_depend_on_the_length() {
    for rate in [39.9, 40.0, 41.0] {
        let case = pair([rate, rate], [0.002, 0.004, 0.001]);
        let of = |seconds: f64| {
            let simulation = case.simulate(&Arrivals::constant(), |options| options.seconds = seconds);
            simulation.sinks[0].arrival.p99
        };
        let all = [60.0, 125.0, 300.0, 600.0, 3600.0].map(of);
        let (least, most) = all.iter().fold((f64::MAX, 0.0f64), |(a, b), p99| (a.min(*p99), b.max(*p99)));
        assert!(most - least < 0.001, "{rate}/s: {all:?}");
    }
}
