use super::*;
use crate::arrivals::Arrivals;
use crate::calendar::Calendar;
use crate::network::Network;
use crate::options::Options;
use crate::times::{Distribution, Times};
use tidemill_optimizer::planner::{Planner, SearchLimits};
use tidemill_optimizer::planners::exact::Exact;
use tidemill_problems::small_problem;

/// Times in microseconds; a start is the start of a call, with its records.
#[derive(serde::Deserialize)]
struct BatchCase {
    name: String,
    max_batch: usize,
    budget: Nanoseconds,
    call: Nanoseconds,
    arrivals: Vec<(Nanoseconds, u64)>,
    starts: Vec<(Nanoseconds, usize)>,
}

const US: Nanoseconds = 1000;

/// Calls of one stage with these arrivals: the start of each, and its number of records.
fn starts(case: &BatchCase) -> Vec<(Nanoseconds, usize)> {
    let problem = small_problem(1);
    let solution = Exact.plan(&problem, &SearchLimits::default()).unwrap().solution.unwrap();
    let (times, options) = (Times::of_modes(&problem, &solution), Options::of(&problem));
    let mut network = Network::new(&problem, &solution, &times, &options).unwrap();
    let stage = network.stages.iter().position(|stage| stage.worker.is_some()).unwrap();
    let call = ServiceTimes::of_any_batch(Distribution::Mean((case.call * US) as f64 / 1e9));
    let alone = Stage {
        worker: network.stages[stage].worker,
        slot: network.stages[stage].slot,
        engine: None,
        times: Some(&call),
        remote: None,
        max_batch: case.max_batch,
        budget: case.budget * US,
        is_stateful: false,
        follows_event_time: false,
        joins: 0,
        gain: 1.0,
        outs: Vec::new(),
        sinks: Vec::new(),
    };
    network.stages[stage] = alone;
    let arrivals = Arrivals::constant();
    let mut world = World::new(&problem, &solution, &network, &arrivals, &options);
    // Only the records of the case arrive.
    world.calendar = Calendar::default();
    world.groups.iter_mut().flat_map(|group| &mut group.sources).for_each(|source| source.due = None);
    let mut starts = Vec::new();
    let mut arrivals = case.arrivals.iter().peekable();
    loop {
        let next = arrivals.peek().map(|(at, _)| at * US);
        let Some(now) = [next, world.calendar.time()].into_iter().flatten().min() else { return starts };
        let (batches, called) = (world.stages[stage].counts.batches, world.stages[stage].counts.called);
        while let Some((_, records)) = arrivals.next_if(|(at, _)| at * US == now) {
            world.now = now;
            for key in 0..*records {
                let record = Record { born: now, key, group: 0, class: 0, epoch: 0, chance: 0, ahead: 0 };
                world.hold(stage, &record);
                world.take(stage, record);
            }
        }
        while world.calendar.time() == Some(now) {
            world.step();
        }
        world.start_batches();
        let counts = &world.stages[stage].counts;
        match counts.batches - batches {
            0 => {}
            1 => starts.push((now / US, (counts.called - called) as usize)),
            several => panic!("{several} calls at once"),
        }
    }
}

/// The engine's test of this name reads the same file: both give the model equal batches at equal times.
#[test]
fn batches_start_alike_in_engine_and_simulator() {
    let text = include_str!("../../../../../tests/data/batches.json");
    let cases: Vec<BatchCase> = serde_json::from_str(text).unwrap();
    for case in cases {
        assert_eq!(starts(&case), case.starts, "{}", case.name);
    }
}
