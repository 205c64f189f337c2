//! Stages that take records when the last of their event time has arrived, as a tracker takes the frames of several
//! cameras.
use crate::plans::{Case, chain};
use tidemill_simulator::{Arrivals, Distribution};

const RATE: f64 = 40.0;

/// Frames of four cameras, a detector that takes next to no time, and a stateful operator after it.
fn cameras(follows_event_time: bool) -> Case {
    let mut case = chain(RATE, &[Distribution::Mean(1e-6), Distribution::Mean(1e-6)]);
    case.problem.sources[0].at_one_time = 4;
    case.problem.operators[1].stateful = true;
    case.problem.operators[1].follows_event_time = follows_event_time;
    case.problem.check().unwrap();
    case
}

/// Two frames are due in each tick of 50 ms, at its start and in its middle, and the tick is over when the second
/// arrives: they wait 25 and 0 ms. With the last of four frames it is 75, 50, 25 and 0 ms.
#[test]
fn frames_wait_for_the_last_camera() {
    let run = |follows| cameras(follows).simulate(&Arrivals::constant(), |options| options.seconds = 100.0);
    let (own_tick, own_time) = (run(false), run(true));
    let [tick, time] = [&own_tick, &own_time].map(|simulation| simulation.sinks[0].arrival);
    assert!((tick.mean - 0.0125).abs() < 1e-4 && (tick.max - 0.025).abs() < 1e-4, "{tick:?}");
    assert!((time.mean - 0.0375).abs() < 1e-4 && (time.max - 0.075).abs() < 1e-4, "{time:?}");
    assert!((time.p50 - 0.025).abs() < 1e-3 || (time.p50 - 0.05).abs() < 1e-3, "{time:?}");
    for simulation in [&own_tick, &own_time] {
        assert_eq!(
            simulation.sinks[0].records, 4000,
            "nothing is lost where the last of a time comes no more"
        );
        assert_eq!((simulation.on_the_way, simulation.unmatched), (0, 0));
        assert!((simulation.achieved() - 1.0).abs() < 1e-3, "{}", simulation.achieved());
    }
}

/// The bound of the planners holds for each record.
#[test]
fn no_frame_waits_longer_than_the_problem_says() {
    for arrivals in [Arrivals::constant(), Arrivals::poisson()] {
        let case = cameras(true);
        let simulation = case.simulate(&arrivals, |options| options.seconds = 50.0);
        let waits = simulation.sinks[0].arrival.max;
        let bound = case.problem.held_seconds(1);
        assert!((bound - (0.05 + 3.0 / RATE)).abs() < 1e-12);
        let is_constant = arrivals == Arrivals::constant();
        assert!(!is_constant || waits <= bound, "{waits} s, at most {bound} s");
        assert_eq!(case.problem.held_seconds(0), 0.0);
    }
}
