//! A detector whose models find different numbers of objects: what follows has as much to do as its model says.
use crate::plans::chain;
use tidemill_optimizer::problem::{RateCase, Rates, Route};
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
