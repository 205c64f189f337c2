//! Measures the time of simulations: plans with a growing number of sources and workers, one minute of plan time each.
//! The simulator uses one thread; its processor time is measured.
use crate::parts::cpu_microseconds;
use crate::plot::{Curve, Plot};
use crate::result::{Answer, Measurement};
use clap::Args;
use std::path::Path;
use tidemill_optimizer::problem::{
    AccuracyModel, Edge, Limits, Location, Operator, Problem, Producer, Route, ServiceMode, Source, Variant,
    WorkerClass,
};
use tidemill_optimizer::solution::{Hosting, RouteClass, Solution, UsedWorker};
use tidemill_simulator::{Arrivals, Options as Settings, Times, simulate};

/// Options of `simulation-time`.
#[derive(Debug, Clone, Args)]
#[group(id = "simulation_time")]
pub(crate) struct Options {
    /// Seconds of plan time that are simulated.
    #[arg(long = "plan-seconds", default_value_t = 60.0)]
    plan_seconds: f64,
    /// The largest number of sources.
    #[arg(long = "most-sources", default_value_t = 10_000)]
    most_sources: usize,
    /// Times that each size is simulated, with seeds from 1.
    #[arg(long = "simulations", default_value_t = 3)]
    simulations: u64,
}

/// Sources per worker.
const SOURCES_PER_WORKER: usize = 50;
/// Records per second of a source.
const RATE: f64 = 10.0;
/// The size and the seconds of the goal.
const GOAL: (usize, f64) = (10_000, 60.0);

/// Builds a plan with cameras at the edge. Half of the workers detect there; the other half classify half of the
/// records in the cloud, over a link. Every worker is busy for 70 % of its time.
fn plan(sources: usize) -> (Problem, Solution) {
    let half = (sources / SOURCES_PER_WORKER / 2).max(1);
    let (edge, cloud, workers) = (half, half, 2 * half);
    let rate = sources as f64 * RATE;
    // Service times from half to one and a half of their mean, evenly spread.
    let mode = |location: usize, seconds: f64| {
        let samples: Vec<f64> = (0..=100).map(|n| seconds * (0.5 + f64::from(n) / 100.0)).collect();
        let mut modes = vec![Vec::new(), Vec::new()];
        modes[location] = vec![ServiceMode { samples, ..ServiceMode::constant(seconds) }];
        modes
    };
    let operator = |id: &str, rate: f64, location: usize, count: usize| Operator {
        id: id.to_owned(),
        rate,
        variants: vec![Variant { id: id.to_owned(), modes: mode(location, 0.7 * count as f64 / rate) }],
        weightless: false,
        stateful: false,
        follows_event_time: false,
        on_one_worker: false,
        survive: 0,
        fused: Vec::new(),
    };
    let class = |location, count: usize| WorkerClass {
        location,
        worker_type: "worker".to_owned(),
        count: count as u32,
        price: 0.1,
        memory_bytes: None,
    };
    let link = Route { price: 0.0, bandwidth: Some(rate * 10_000.0), delay: 0.02 };
    let free = Some(Route::default());
    let mut edges: Vec<Edge> = (0..sources)
        .map(|input| Edge { from: Producer::Source(input), to: 0, input, rate: RATE, bytes: vec![100_000.0] })
        .collect();
    edges.push(Edge {
        from: Producer::Operator(0),
        to: 1,
        input: 0,
        rate: rate / 2.0,
        bytes: vec![10_000.0],
    });
    let source = |number: usize| Source {
        id: format!("camera-{number}"),
        rate: RATE,
        locations: vec![(0, 1.0)],
        at_one_time: 1,
        replies: false,
    };
    let problem = Problem {
        name: format!("{sources} sources, {workers} workers"),
        operators: vec![operator("detect", rate, 0, edge), operator("classify", rate / 2.0, 1, cloud)],
        edges,
        sources: (0..sources).map(source).collect(),
        locations: [("edge", 0), ("cloud", 1)]
            .map(|(name, tier)| Location { name: name.to_owned(), tier })
            .to_vec(),
        worker_classes: vec![class(0, edge), class(1, cloud)],
        routes: vec![vec![free, Some(link)], vec![None, free]],
        rates: None,
        sizes: Vec::new(),
        accuracy: AccuracyModel::None,
        limits: Limits::default(),
    };
    let used = |class: usize, count: usize| (0..count as u32).map(move |index| UsedWorker { class, index });
    let hosting = |operator: usize, first: usize, count: usize| {
        (0..count).map(move |index| Hosting {
            operator,
            worker: Some(first + index),
            location: operator,
            mode: 0,
            share: 1.0 / count as f64,
            wait_seconds: None,
            device: None,
        })
    };
    // One class for each pair of a worker at the edge and one in the cloud.
    let classes = (0..edge).map(|index| RouteClass {
        share: 1.0 / edge as f64,
        sources: vec![0; sources],
        hostings: vec![index, edge + index],
    });
    let solution = Solution {
        variants: vec![0, 0],
        workers: used(0, edge).chain(used(1, cloud)).collect(),
        hostings: hosting(0, 0, edge).chain(hosting(1, edge, cloud)).collect(),
        classes: classes.collect(),
        fallbacks: Vec::new(),
    };
    (problem, solution)
}

pub(crate) fn run(options: &Options, folder: &Path) -> anyhow::Result<Answer> {
    let mut measurements = Vec::new();
    let mut plot = Plot {
        title: format!("Time to simulate {} s, {RATE} records/s a source", options.plan_seconds),
        across: format!("sources (one worker for {SOURCES_PER_WORKER})"),
        upwards: "s CPU".into(),
        curves: ["constant arrivals", "Poisson arrivals"].map(Curve::named).to_vec(),
    };
    let mut sizes: Vec<usize> =
        std::iter::successors(Some(GOAL.0), |size| (*size > 100).then_some(size / 2)).collect();
    sizes.reverse();
    for sources in sizes.into_iter().filter(|size| *size <= options.most_sources) {
        let (problem, solution) = plan(sources);
        let times = Times::of_modes(&problem, &solution);
        for (curve, (name, arrivals)) in
            plot.curves.iter_mut().zip([("constant", Arrivals::constant()), ("Poisson", Arrivals::poisson())])
        {
            let (mut seconds, mut rates) = (Vec::new(), Vec::new());
            for seed in 1..=options.simulations.max(1) {
                let settings = Settings {
                    seconds: options.plan_seconds,
                    seed,
                    // Thousands of cameras do not all start in the same instant.
                    aligned: false,
                    ..Settings::of(&problem)
                };
                let before = cpu_microseconds();
                let simulation = simulate(&problem, &solution, &times, &arrivals, &settings)?;
                let taken = (cpu_microseconds() - before) / 1e6;
                anyhow::ensure!(simulation.achieved() > 0.95, "{}: the plan does not keep up", problem.name);
                seconds.push(taken);
                rates.push(simulation.events as f64 / taken);
            }
            let name = format!("{}, {} s, {name} arrivals", problem.name, options.plan_seconds);
            let time = Measurement::new(name.clone(), "s CPU", seconds);
            curve.points.push((sources as f64, time.median()));
            let is_goal = sources == GOAL.0 && options.plan_seconds == 60.0;
            measurements.push(if is_goal { time.goal(GOAL.1) } else { time });
            measurements.push(Measurement::new(format!("{name}: events"), "events/s CPU", rates));
        }
    }
    plot.write(&folder.join("simulation-time.svg"))?;
    Ok(Answer::new("simulation-time", "How long does it take to simulate a plan?", measurements))
}
