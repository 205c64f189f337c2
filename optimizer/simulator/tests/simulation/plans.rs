//! Small problems with their plans.
use tidemill_optimizer::problem::{
    AccuracyModel, Edge, Limits, Location, Operator, Problem, Producer, Route, ServiceMode, Source, Variant,
    WorkerClass,
};
use tidemill_optimizer::solution::{Hosting, RouteClass, Solution, UsedWorker};
use tidemill_simulator::{Arrivals, Distribution, Options, ServiceTimes, Simulation, Times, simulate};

/// A problem and a plan for it.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) problem: Problem,
    pub(crate) solution: Solution,
    pub(crate) times: Times,
}

impl Case {
    pub(crate) fn simulate(&self, arrivals: &Arrivals, change: impl FnOnce(&mut Options)) -> Simulation {
        let mut options = Options::of(&self.problem);
        change(&mut options);
        simulate(&self.problem, &self.solution, &self.times, arrivals, &options).unwrap()
    }

    /// Replaces the route between the two locations.
    pub(crate) fn with_route(mut self, route: Route) -> Self {
        self.problem.routes[0][1] = Some(route);
        self
    }
}

fn free() -> Option<Route> {
    Some(Route::default())
}

fn mode(mean: f64) -> ServiceMode {
    ServiceMode::constant(mean)
}

fn operator(id: &str, rate: f64, times: f64, stateful: bool) -> Operator {
    let modes = vec![vec![mode(times)], vec![mode(times)]];
    Operator {
        id: id.to_owned(),
        rate,
        variants: vec![Variant { id: id.to_owned(), modes }],
        weightless: false,
        stateful,
        follows_event_time: false,
        on_one_worker: false,
        survive: 0,
        fused: Vec::new(),
    }
}

fn hosting(operator: usize, worker: usize, location: usize) -> Hosting {
    Hosting {
        operator,
        worker: Some(worker),
        location,
        mode: 0,
        share: 1.0,
        wait_seconds: None,
        device: None,
    }
}

fn problem(operators: Vec<Operator>, edges: Vec<Edge>, sources: Vec<Source>) -> Problem {
    let class = |location| WorkerClass {
        location,
        worker_type: "w".into(),
        count: 9,
        price: 1.0,
        memory_bytes: None,
    };
    let problem = Problem {
        name: "case".into(),
        operators,
        edges,
        sources,
        locations: vec![
            Location { name: "edge".into(), tier: 0 },
            Location { name: "cloud".into(), tier: 1 },
        ],
        worker_classes: vec![class(0), class(1)],
        routes: vec![vec![free(), free()], vec![free(), free()]],
        rates: None,
        sizes: Vec::new(),
        accuracy: AccuracyModel::None,
        limits: Limits::default(),
    };
    problem.check().unwrap();
    problem
}

/// Consecutive operators, each on its own worker: the first at the edge, the others in the cloud. Messages have 1000
/// bytes.
pub(crate) fn chain(rate: f64, distributions: &[Distribution]) -> Case {
    let mut edges = vec![Edge { from: Producer::Source(0), to: 0, input: 0, rate, bytes: vec![1000.0] }];
    edges.extend((1..distributions.len()).map(|to| Edge {
        from: Producer::Operator(to - 1),
        to,
        input: 0,
        rate,
        bytes: vec![1000.0],
    }));
    let operators = distributions.iter().enumerate();
    let operators =
        operators.map(|(index, of)| operator(&format!("stage-{index}"), rate, of.mean(), false)).collect();
    let source =
        Source { id: "source".into(), rate, locations: vec![(0, 1.0)], at_one_time: 1, replies: false };
    let problem = problem(operators, edges, vec![source]);
    let places = (0..distributions.len()).map(|index| usize::from(index > 0));
    let solution = Solution {
        variants: vec![0; distributions.len()],
        workers: places
            .clone()
            .enumerate()
            .map(|(index, class)| UsedWorker { class, index: index as u32 })
            .collect(),
        hostings: places.enumerate().map(|(index, location)| hosting(index, index, location)).collect(),
        classes: vec![RouteClass {
            share: 1.0,
            sources: vec![0],
            hostings: (0..distributions.len()).collect(),
        }],
        fallbacks: Vec::new(),
    };
    let times = distributions.iter().map(|of| Some(ServiceTimes::of_any_batch(of.clone()))).collect();
    Case { problem, solution, times: Times::new(times) }
}

/// Two sources, an operator after each, and a join of both with a service time, each on its own worker.
pub(crate) fn pair(rates: [f64; 2], seconds: [f64; 3]) -> Case {
    let sources = ["images", "questions"];
    let sources = sources.into_iter().zip(rates).map(|(id, rate)| Source {
        id: id.into(),
        rate,
        locations: vec![(0, 1.0)],
        at_one_time: 1,
        replies: false,
    });
    let join_rate = rates[0].min(rates[1]);
    let operators = vec![
        operator("features", rates[0], seconds[0], false),
        operator("speech", rates[1], seconds[1], false),
        operator("answer", join_rate, seconds[2], true),
    ];
    let edge = |from, to, input, rate| Edge { from, to, input, rate, bytes: vec![1000.0] };
    let edges = vec![
        edge(Producer::Source(0), 0, 0, rates[0]),
        edge(Producer::Source(1), 1, 0, rates[1]),
        edge(Producer::Operator(0), 2, 0, rates[0]),
        edge(Producer::Operator(1), 2, 1, rates[1]),
    ];
    let problem = problem(operators, edges, sources.collect());
    let solution = Solution {
        variants: vec![0; 3],
        workers: (0..3).map(|index| UsedWorker { class: 0, index }).collect(),
        hostings: (0..3).map(|index| hosting(index, index, 0)).collect(),
        classes: vec![RouteClass { share: 1.0, sources: vec![0, 0], hostings: vec![0, 1, 2] }],
        fallbacks: Vec::new(),
    };
    let times = seconds.map(|seconds| Some(ServiceTimes::of_any_batch(Distribution::Mean(seconds))));
    Case { problem, solution, times: Times::new(times.into()) }
}

/// One operator on several workers of one location, with these shares of the keys.
pub(crate) fn shared(rate: f64, seconds: f64, shares: &[f64]) -> Case {
    let mut case = chain(rate, &[Distribution::Mean(seconds)]);
    case.solution.workers = (0..shares.len() as u32).map(|index| UsedWorker { class: 0, index }).collect();
    let hostings = shares.iter().enumerate();
    case.solution.hostings =
        hostings.map(|(index, share)| Hosting { share: *share, ..hosting(0, index, 0) }).collect();
    let classes = shares.iter().enumerate();
    case.solution.classes = classes
        .map(|(index, share)| RouteClass { share: *share, sources: vec![0], hostings: vec![index] })
        .collect();
    let times = ServiceTimes::of_any_batch(Distribution::Mean(seconds));
    case.times = Times::new(vec![Some(times); shares.len()]);
    case
}
