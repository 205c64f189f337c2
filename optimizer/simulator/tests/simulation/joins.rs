//! Joins, epochs and route classes.
use crate::plans::{pair, shared};
use tidemill_optimizer::problem::Route;
use tidemill_simulator::Arrivals;

/// At 32/s and ticks of 62.5 ms (both exact in binary) an epoch has two records of each source: neither pair waits for the
/// other.
#[test]
fn a_pair_leaves_before_its_epoch_is_complete() {
    let mut case = pair([32.0, 32.0], [0.002, 0.004, 0.001]);
    case.problem.limits.tick_seconds = 0.0625;
    let simulation = case.simulate(&Arrivals::constant(), |options| options.seconds = 60.0);
    let latency = simulation.sinks[0].arrival;
    assert_eq!(latency.count, 1920);
    // 4 ms speech, 1 ms in the join.
    assert!((latency.max - 0.005).abs() < 1e-6, "{}", latency.max);
    assert!((latency.mean - 0.005).abs() < 1e-6, "{}", latency.mean);
    assert_eq!(simulation.unmatched, 0);
}

/// Ticks as long as the interval of records: features has the next record while speech processes the previous one. It
/// waits until that one has arrived, not for the rest of its own tick.
#[test]
fn an_epoch_waits_for_those_before_it() {
    let mut case = pair([32.0, 32.0], [0.002, 0.004, 0.001]);
    case.problem.limits.tick_seconds = 0.03125;
    case.problem.worker_classes[0].count = 9;
    case.solution.workers[1].class = 1;
    case.solution.hostings[1].location = 1;
    let route = Route { price: 0.0, bandwidth: None, delay: 0.05 };
    case.problem.routes[1][0] = Some(route);
    let case = case.with_route(route);
    let simulation = case.simulate(&Arrivals::constant(), |options| options.seconds = 60.0);
    assert_eq!(simulation.unmatched, 0);
    // Speech arrives 50 + 4 + 50 ms after its record was due; the three epochs before are complete by then.
    let latency = simulation.sinks[0].arrival;
    assert!((latency.max - 0.105).abs() < 1e-6, "{}", latency.max);
    // Features waits 102 ms minus a period of 31.25 ms until it is taken, speech not at all.
    let held = simulation.stages[2].held;
    assert!((held - 0.035375).abs() < 0.001, "{held}");
}

#[test]
fn sources_of_different_rates_pair_at_the_slower_one() {
    let case = pair([30.0, 20.0], [0.002, 0.004, 0.001]);
    for arrivals in [Arrivals::constant(), Arrivals::poisson()] {
        let simulation = case.simulate(&arrivals, |options| options.seconds = 60.0);
        let due = simulation.sources[1].due;
        assert!(simulation.sinks[0].records.abs_diff(due) < 20, "{} of {due}", simulation.sinks[0].records);
        assert_eq!(simulation.on_the_way, 0);
    }
}

#[test]
fn partners_come_together_under_poisson_arrivals() {
    let case = pair([40.0, 40.0], [0.002, 0.004, 0.001]);
    let simulation = case.simulate(&Arrivals::poisson(), |options| options.seconds = 300.0);
    assert_eq!(simulation.sinks[0].records, simulation.sources[0].records);
    assert_eq!(simulation.unmatched, 0);
    // Only where speech still processes records of the tick before.
    let held = simulation.stages[2].held;
    assert!(held > 0.0 && held < 0.005, "{held}");
}

/// Operators that keep half of the records of one source keep the same half.
#[test]
fn filtered_records_meet_again() {
    let mut case = pair([40.0, 40.0], [0.002, 0.004, 0.001]);
    case.problem.edges[2].rate = 20.0;
    case.problem.edges[3].rate = 20.0;
    case.problem.operators[2].rate = 20.0;
    let simulation = case.simulate(&Arrivals::constant(), |options| options.seconds = 600.0);
    assert!((simulation.sinks[0].rate - 20.0).abs() < 1.0, "{}", simulation.sinks[0].rate);
    assert_eq!(simulation.unmatched, 0);
}

/// Records that an operator drops leave their partners alone, which are dropped and counted, not kept.
#[test]
fn partners_that_never_come_are_counted() {
    let mut case = pair([40.0, 40.0], [0.002, 0.004, 0.001]);
    case.problem.edges[2].rate = 10.0;
    case.problem.operators[2].rate = 10.0;
    let simulation = case.simulate(&Arrivals::constant(), |options| options.seconds = 600.0);
    assert!((simulation.sinks[0].rate - 10.0).abs() < 0.7, "{}", simulation.sinks[0].rate);
    assert_eq!(simulation.unmatched + simulation.sinks[0].records, 24_000);
    assert!(simulation.most_on_the_way < 50);
}

#[test]
fn keys_follow_the_shares_of_classes() {
    let case = shared(100.0, 0.001, &[0.2, 0.3, 0.5]);
    let simulation = case.simulate(&Arrivals::constant(), |options| options.seconds = 100.0);
    let counts: Vec<u64> = simulation.stages.iter().map(|stage| stage.records).collect();
    for (count, share) in counts.iter().zip([0.2, 0.3, 0.5]) {
        assert!((*count as f64 / 10_000.0 - share).abs() < 0.002, "{counts:?}");
    }
    let classes = &simulation.sinks[0].classes;
    assert_eq!(
        classes.iter().map(|(class, latency)| (*class, latency.count)).collect::<Vec<_>>(),
        [(0, counts[0]), (1, counts[1]), (2, counts[2])]
    );
}

/// Records on a link delay the join at its end as much as records in a stage.
#[test]
fn a_join_waits_for_what_is_on_a_link() {
    let mut case = pair([40.0, 40.0], [0.002, 0.004, 0.001]);
    case.problem.worker_classes[0].count = 9;
    case.solution.workers[2].class = 1;
    case.solution.hostings[2].location = 1;
    let route = Route { price: 0.0, bandwidth: None, delay: 3.0 };
    let case = case.with_route(route);
    let simulation = case.simulate(&Arrivals::constant(), |options| options.seconds = 60.0);
    assert_eq!((simulation.on_the_way, simulation.unmatched), (0, 0));
    assert_eq!(simulation.sinks[0].records, simulation.sources[0].records);
    assert!(simulation.sinks[0].arrival.p50 > 3.0);
}
