//! A detector whose models find different numbers of objects: the rate of the next operators follows its model.
use crate::plans::chain;
use tidemill_optimizer::problem::{RateCase, Rates, Route, Sizes};
use tidemill_simulator::{Arrivals, Distribution};

/// Objects per frame, by model of the detector.
const OBJECTS: [f64; 3] = [0.4, 1.0, 3.2];
const FRAMES: f64 = 20.0;

#[test]
fn what_follows_a_detector_follows_its_model() {
    let case = chain(FRAMES, &[Distribution::Mean(0.004), Distribution::Mean(0.002)]);
    let mut case = case.with_route(Route { price: 1e-9, bandwidth: Some(1e7), delay: 0.0 });
    let detector = &mut case.problem.operators[0];
    detector.variants = vec![detector.variants[0].clone(); OBJECTS.len()];
    case.problem.edges[1].bytes = vec![1000.0; OBJECTS.len()];
    let rates = Rates::of(&[OBJECTS.len(), 1], &[0], |variants| {
        let objects = FRAMES * OBJECTS[variants[0]];
        RateCase { operators: vec![FRAMES, objects], edges: vec![FRAMES, objects] }
    });
    case.problem = case.problem.with_variant_rates(rates);
    case.problem.check().unwrap();
    for (model, objects) in OBJECTS.into_iter().enumerate() {
        case.solution.variants[0] = model;
        let simulation = case.simulate(&Arrivals::constant(), |options| options.seconds = 500.0);
        let near = |found: f64, expected: f64| {
            assert!((found / expected - 1.0).abs() < 0.03, "model {model}: {found} instead of {expected}");
        };
        let second = |records: u64| records as f64 / simulation.counted_seconds;
        near(second(simulation.stages[0].records), FRAMES);
        near(second(simulation.stages[1].records), FRAMES * objects);
        near(simulation.sinks[0].rate, FRAMES * objects);
        near(simulation.workers[1].utilization, FRAMES * objects * 0.002);
        near(simulation.links[0].bytes_per_second, FRAMES * objects * 1000.0);
        near(simulation.cost.network, FRAMES * objects * 1000.0 * 3600.0 * 1e-9);
    }
}

/// The detector before a tracker determines the size of the tracker's records.
#[test]
fn a_link_carries_what_the_models_before_its_sender_make_of_it() {
    let case =
        chain(FRAMES, &[Distribution::Mean(0.004), Distribution::Mean(0.002), Distribution::Mean(0.001)]);
    let mut case = case.with_route(Route { price: 1e-9, bandwidth: Some(1e7), delay: 0.0 });
    let detector = &mut case.problem.operators[0];
    detector.variants = vec![detector.variants[0].clone(); OBJECTS.len()];
    case.problem.edges[1].bytes = vec![1000.0; OBJECTS.len()];
    let bytes = |model: usize| 1000.0 * OBJECTS[model];
    let sizes = Sizes::of(2, vec![0], &[OBJECTS.len(), 1, 1], |joint| bytes(joint[0]));
    case.problem = case.problem.with_sizes(vec![sizes]);
    case.problem.check().unwrap();
    // The tracker is with the detector.
    (case.solution.workers[1].class, case.solution.hostings[1].location) = (0, 0);
    for model in 0..OBJECTS.len() {
        case.solution.variants[0] = model;
        let simulation = case.simulate(&Arrivals::constant(), |options| options.seconds = 100.0);
        let (carried, expected) = (simulation.links[0].bytes_per_second, FRAMES * bytes(model));
        assert!((carried / expected - 1.0).abs() < 0.03, "model {model}: {carried} instead of {expected}");
        assert!((simulation.cost.network - 3600e-9 * expected).abs() < 1e-9, "model {model}");
    }
}

#[test]
fn a_sink_has_what_the_last_operator_gives() {
    for (ratio, least) in [(3.0, 20_000), (0.25, 2000), (0.0005, 0)] {
        let case = chain(FRAMES, &[Distribution::Mean(0.004)]);
        let simulation = case.simulate(&Arrivals::constant(), |options| {
            options.seconds = 500.0;
            options.sinks[0].ratio = ratio;
        });
        let sink = &simulation.sinks[0];
        assert!((sink.due_rate / (FRAMES * ratio) - 1.0).abs() < 1e-6, "{sink:?}");
        assert!(sink.records >= least, "{sink:?}");
        let expected = FRAMES * ratio * simulation.counted_seconds;
        assert!((sink.records as f64 - expected).abs() <= 4.0 * expected.sqrt() + 1e-6, "{sink:?}");
        assert!(simulation.achieved() > 0.999, "{ratio}: {sink:?}");
        assert_eq!(simulation.stages[0].records, 10_000);
    }
}
