//! Models on devices: a record takes the time of its stage, of the link there, of the device, and of the link back.
use crate::plans::{Case, chain};
use tidemill_optimizer::check::check;
use tidemill_optimizer::problem::{Remote, Route, Sends, ServiceMode, WorkerClass};
use tidemill_optimizer::solution::{OnDevice, UsedWorker};
use tidemill_simulator::{Arrivals, Distribution, Times};

/// One stage of 10 ms at the edge, whose model runs 20 ms on a device in the cloud: 1000 bytes there, 500 back, over
/// a link of 10,000 bytes/s and 30 ms.
fn remoted(rate: f64) -> Case {
    let mut case = chain(rate, &[Distribution::Mean(0.01)]);
    let route = Route { price: 0.0, bandwidth: Some(10_000.0), delay: 0.03 };
    (case.problem.routes[0][1], case.problem.routes[1][0]) = (Some(route), Some(route));
    let device = WorkerClass { worker_type: "device".into(), ..case.problem.worker_classes[1].clone() };
    case.problem.worker_classes.push(device);
    let run = ServiceMode::constant(0.02);
    let sends = Sends::Tensors;
    let remote = Remote { class: 2, run: Box::new(run), sends, sent_bytes: 1000.0, received_bytes: 500.0 };
    let modes = &mut case.problem.operators[0].variants[0].modes;
    modes.push(Vec::new());
    modes[0][0].remote = Some(remote);
    case.solution.workers.push(UsedWorker { class: 2, index: 0 });
    case.solution.hostings[0].device = Some(OnDevice { worker: 1, wait_seconds: None });
    assert_eq!(check(&case.problem, &case.solution), []);
    case.times = Times::of_modes(&case.problem, &case.solution);
    case
}

#[test]
fn a_record_takes_both_ways_and_the_run() {
    let simulation = remoted(4.0).simulate(&Arrivals::constant(), |options| options.seconds = 60.0);
    let latency = simulation.sinks[0].arrival;
    // 10 + (100 + 30) + 20 + (50 + 30) ms.
    for found in [latency.mean, latency.p50, latency.p99] {
        assert!((found - 0.24).abs() < 2e-4, "{found}");
    }
    let bytes = |from: usize| simulation.links.iter().find(|link| link.from == from).unwrap().bytes;
    assert!((bytes(0) - 240_000.0).abs() <= 2_000.0 && (bytes(1) - 120_000.0).abs() <= 1_000.0);
    assert!((simulation.workers[1].utilization - 0.08).abs() < 1e-3, "{:?}", simulation.workers);
}

/// Modes with tensors and with rows have equal batches.
#[test]
fn each_form_of_records_has_its_own_times_and_bytes() {
    let mut case = remoted(4.0);
    let modes = &mut case.problem.operators[0].variants[0].modes[0];
    let mut rows = modes[0].clone();
    let remote = rows.remote.as_mut().unwrap();
    (remote.sends, remote.sent_bytes) = (Sends::Rows, 100.0);
    *remote.run = ServiceMode::constant(0.05);
    modes.push(rows);
    for (mode, seconds) in [(0, 0.24), (1, 0.18)] {
        case.solution.hostings[0].mode = mode;
        assert_eq!(check(&case.problem, &case.solution), []);
        case.times = Times::of_modes(&case.problem, &case.solution);
        let simulation = case.simulate(&Arrivals::constant(), |options| options.seconds = 60.0);
        // 10 + (100 or 10, + 30) + (20 or 50) + (50 + 30) ms.
        let found = simulation.sinks[0].arrival.mean;
        assert!((found - seconds).abs() < 2e-4, "{found}");
    }
}

/// The slowest part limits what the stage carries, and the stage does not wait for the device.
#[test]
fn a_device_that_is_too_slow_saturates() {
    let mut case = remoted(9.0);
    let most = |case: &Case| {
        let simulation = case.simulate(&Arrivals::constant(), |options| options.seconds = 60.0);
        simulation.sinks[0].arrival.p99
    };
    // Batches follow each other on the way: 9/s fill the link to nine tenths, and no record waits.
    assert!((most(&case) - 0.24).abs() < 2e-3, "{}", most(&case));
    let remote = case.problem.operators[0].variants[0].modes[0][0].remote.as_mut().unwrap();
    *remote.run = ServiceMode::constant(0.2);
    case.times = Times::of_modes(&case.problem, &case.solution);
    assert!(most(&case) > 10.0, "{}", most(&case));
}
