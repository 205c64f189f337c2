//! Publication time of a plan in which one route class crosses a slow link and another does not: the arrival of the
//! last progress message, computed by hand.
//!
//! A record comes every 25 ms, in an epoch of its own: it is due when its epoch starts, and its source then knows that
//! the next one is of the next epoch. A call takes 1 ms.
use crate::plans::{Case, chain};
use proptest::prelude::*;
use tidemill_optimizer::problem::Route;
use tidemill_optimizer::solution::RouteClass;
use tidemill_simulator::{Arrivals, Distribution, ServiceTimes, Times};

const CALL: f64 = 0.001;
/// Bytes of a record and of a progress message.
const RECORD: f64 = 1000.0;
const PROGRESS: f64 = 88.0;

/// A chain of operators with two classes of half of the records each, with these places (0: edge, 1: cloud) of each
/// operator. Where both classes have one place, they share the stage.
fn classes(places: &[[usize; 2]], there: Route, back: Route) -> Case {
    let mut case = chain(40.0, &vec![Distribution::Mean(CALL); places.len()]);
    case.problem.limits.tick_seconds = 0.025;
    (case.problem.routes[0][1], case.problem.routes[1][0]) = (Some(there), Some(back));
    let (worker, hosting) = (case.solution.workers[0], case.solution.hostings[0].clone());
    let (mut workers, mut hostings) = (Vec::new(), Vec::new());
    let mut of_class = [Vec::new(), Vec::new()];
    for (operator, of) in places.iter().enumerate() {
        for (class, location) in of.iter().enumerate() {
            if class == 0 || of[0] != of[1] {
                workers.push(worker);
                let last = workers.len() - 1;
                (workers[last].class, workers[last].index) = (*location, last as u32);
                let share = if of[0] == of[1] { 1.0 } else { 0.5 };
                let mut own = hosting.clone();
                (own.operator, own.worker, own.location, own.share) =
                    (operator, Some(last), *location, share);
                hostings.push(own);
            }
            of_class[class].push(hostings.len() - 1);
        }
    }
    let times = ServiceTimes::of_any_batch(Distribution::Mean(CALL));
    case.times = Times::new(vec![Some(times); hostings.len()]);
    let classes = of_class.map(|hostings| RouteClass { share: 0.5, sources: vec![0], hostings });
    (case.solution.workers, case.solution.hostings, case.solution.classes) =
        (workers, hostings, classes.to_vec());
    case
}

fn delay(seconds: f64) -> Route {
    Route { price: 0.0, bandwidth: None, delay: seconds }
}

/// Every record of a class takes this long until it is published and, in the mean of both, until it arrives.
fn assert_latencies(case: &Case, published: [f64; 2], arrived: [f64; 2]) {
    let simulation = case.simulate(&Arrivals::constant(), |options| options.seconds = 60.0);
    let sink = &simulation.sinks[0];
    assert_eq!((sink.latency.count, sink.arrival.count, simulation.on_the_way), (2400, 2400, 0));
    assert_eq!(sink.classes.len(), 2);
    for (class, latency) in &sink.classes {
        for found in [latency.mean, latency.max] {
            let expected = published[*class];
            // Histograms of classes are within 1 %.
            assert!((found - expected).abs() <= 0.011 * expected, "class {class}: {found}, not {expected}");
        }
    }
    let counts = [0, 1].map(|class| sink.classes[class].1.count as f64 / 2400.0);
    let mean = |of: [f64; 2]| counts[0] * of[0] + counts[1] * of[1];
    for (found, expected) in [(sink.latency.mean, mean(published)), (sink.arrival.mean, mean(arrived))] {
        assert!((found - expected).abs() <= 0.002 * expected, "{found}, not {expected}");
    }
}

#[test]
fn records_that_cross_no_link_wait_for_word_from_those_who_do() {
    for d in [0.002, 0.012, 0.060] {
        // Records outside the cloud are published when the cloud has reported that it expects none of the epoch.
        let case = classes(&[[0, 1]], delay(d), Route::default());
        assert_latencies(&case, [d, d + CALL], [CALL, d + CALL]);
    }
    // Without delay there is no waiting.
    let case = classes(&[[0, 1]], Route::default(), Route::default());
    assert_latencies(&case, [CALL, CALL], [CALL, CALL]);
}

#[test]
fn progress_is_sent_behind_the_records_at_the_bandwidth() {
    let (bandwidth, d) = (100_000.0, 0.012);
    let route = Route { price: 0.0, bandwidth: Some(bandwidth), delay: d };
    let case = classes(&[[0, 1]], route, Route::default());
    let (record, progress) = (RECORD / bandwidth, PROGRESS / bandwidth);
    // The message arrives 0.8 ms after the record, which is served in 1 ms.
    assert_latencies(&case, [progress + d, record + d + CALL], [CALL, record + d + CALL]);
    let simulation = case.simulate(&Arrivals::constant(), |options| options.seconds = 60.0);
    let link = &simulation.links[0];
    assert_eq!(link.bytes, RECORD * link.records as f64, "progress takes bandwidth and is not priced");
    let busy = (link.records as f64 * record + 2400.0 * progress) / 60.0;
    assert!((link.utilization.unwrap() - busy).abs() < 1e-3 * busy, "{:?}, not {busy}", link.utilization);
}

#[test]
fn progress_takes_every_hop_of_the_plan() {
    let d = 0.005;
    // Over the edge, then over both places, then back to the edge, where one stage takes both.
    let case = classes(&[[0, 0], [0, 1], [0, 0]], delay(d), delay(2.0 * d));
    let (here, there) = (3.0 * CALL, 3.0 * CALL + 3.0 * d);
    // The cloud has reported the epoch complete one call and both delays after the record is due.
    assert_latencies(&case, [(CALL + 3.0 * d).max(here), there], [here, there]);
    // A stage that waits for complete epochs waits for that, and then serves the record.
    let mut case = case;
    case.problem.operators[2].stateful = true;
    let waits = CALL + 3.0 * d + CALL;
    assert_latencies(&case, [waits, there], [waits, there]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// With any link, arrivals do not depend on progress; nothing is published before it arrived or before the link's
    /// delay.
    #[test]
    fn nothing_is_published_before_its_epoch_can_be_known(
        d in 0.0f64..0.1,
        bandwidth in prop::option::of(60_000.0f64..1e9),
        seed in any::<u64>(),
    ) {
        let route = Route { price: 0.0, bandwidth, delay: d };
        let case = classes(&[[0, 1]], route, Route::default());
        let simulation = case.simulate(&Arrivals::poisson(), |options| {
            (options.seconds, options.seed) = (20.0, seed);
        });
        let sink = &simulation.sinks[0];
        prop_assert_eq!(simulation.on_the_way, 0);
        prop_assert_eq!(sink.latency.count, sink.arrival.count);
        prop_assert!(sink.latency.mean >= sink.arrival.mean);
        let least = |latency: &tidemill_simulator::Latency| latency.p50.min(latency.middle.0);
        prop_assert!(least(&sink.latency) >= 0.999 * d);
    }
}
