//! Summary of a solution for reports: load of each worker, traffic, latency by its parts, headroom to each limit.
//!
//! Everything here follows from the problem and the solution alone, so it holds for plans of any planner.
use crate::check::check;
use crate::cost::{Cost, CostError, cost, traffic};
use crate::explain::with_rate;
use crate::problem::{Problem, Producer};
use crate::solution::{RouteClass, Solution};
use crate::waits::with_least_waits;

/// Relative precision of the headroom.
const HEADROOM_EXACTNESS: f64 = 1e-3;

/// A solution as a report shows it.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// Compute and network, in $/h.
    pub cost: Cost,
    /// End-to-end accuracy in percent, where known.
    pub accuracy: Option<f64>,
    /// Workers in use, in the order of the solution.
    pub workers: Vec<WorkerLoad>,
    /// Traffic between locations, excluding traffic within one.
    pub traffic: Vec<Traffic>,
    /// The slowest path from every source to every operator without a consumer.
    pub paths: Vec<PathLatency>,
    /// Factor by which the rate may grow until a limit is reached; none without limits.
    pub headroom: Option<f64>,
}

/// Load of a worker.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerLoad {
    /// Worker class in the problem.
    pub class: usize,
    /// Index within the class.
    pub index: u32,
    /// Busy share of its time, by service times at the guaranteed percentile.
    pub utilization: f64,
    /// Operators on it: operator, share of its records, share of the worker's time.
    pub parts: Vec<(usize, f64, f64)>,
    /// Bytes of the models on it.
    pub memory_bytes: f64,
    /// Most seconds that a record waits for it, where latency is bounded.
    pub wait_seconds: Option<f64>,
}

/// Traffic between two locations.
#[derive(Debug, Clone, PartialEq)]
pub struct Traffic {
    /// Sending location.
    pub from: usize,
    /// Receiving location.
    pub to: usize,
    /// Bytes per second.
    pub bytes_per_second: f64,
    /// $/h.
    pub cost: f64,
    /// Used share of the link's bandwidth, where it has one.
    pub utilization: Option<f64>,
}

/// Latency along a path through the plan: a sum of percentiles of its stages, in seconds.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PathLatency {
    /// Source in the problem.
    pub source: usize,
    /// Operators on the path.
    pub operators: Vec<usize>,
    /// Route class whose slowest path this is.
    pub class: usize,
    /// Calls, at the guaranteed percentile.
    pub service: f64,
    /// Waiting for workers; only where latency is bounded, see [`PathLatency::is_bounded`].
    pub waiting: f64,
    /// Filling batches.
    pub batching: f64,
    /// Between locations: delay, and transmission time of a record at the bandwidth.
    pub transfer: f64,
    /// Ticks of stateful operators.
    pub ticks: f64,
    /// From the end of the path until readers of the sink see the record.
    pub publication: f64,
    /// Whether the waiting is known: if not, the sum holds for idle workers only.
    pub is_bounded: bool,
}

impl PathLatency {
    /// The sum of the parts.
    pub fn total(&self) -> f64 {
        self.service + self.waiting + self.batching + self.transfer + self.ticks + self.publication
    }
}

impl Summary {
    /// Summarises a solution.
    ///
    /// # Errors
    /// A solution that does not fit the problem.
    pub fn new(problem: &Problem, solution: &Solution) -> Result<Self, CostError> {
        let cost = cost(problem, solution)?;
        let mut all = Vec::new();
        for ((from, to), bytes_per_second) in traffic(problem, solution)? {
            let route = problem.route(from, to).copied().unwrap_or_default();
            if from != to || route.price > 0.0 {
                all.push(Traffic {
                    from,
                    to,
                    bytes_per_second,
                    cost: bytes_per_second * 3600.0 * route.price,
                    utilization: route.bandwidth.map(|bandwidth| bytes_per_second / bandwidth),
                });
            }
        }
        Ok(Self {
            cost,
            accuracy: problem.accuracy_of(&solution.variants),
            workers: workers(problem, solution),
            traffic: all,
            paths: paths(problem, solution),
            headroom: headroom(problem, solution),
        })
    }

    /// Returns the slowest path.
    pub fn slowest(&self) -> Option<&PathLatency> {
        self.paths.iter().max_by(|a, b| a.total().total_cmp(&b.total()))
    }
}

/// Load of every worker in use.
pub fn workers(problem: &Problem, solution: &Solution) -> Vec<WorkerLoad> {
    let problem = &*problem.at(&solution.variants);
    let loads = solution.workers.iter().enumerate().map(|(position, used)| {
        let mut load = WorkerLoad {
            class: used.class,
            index: used.index,
            utilization: 0.0,
            parts: Vec::new(),
            memory_bytes: 0.0,
            wait_seconds: None,
        };
        for hosting in solution.hostings.iter().filter(|hosting| hosting.worker == Some(position)) {
            let operator = &problem.operators[hosting.operator];
            let variant = &operator.variants[solution.variants[hosting.operator]];
            let Some(mode) = variant.modes.get(used.class).and_then(|modes| modes.get(hosting.mode)) else {
                continue;
            };
            let part = operator.rate * hosting.share * mode.seconds_per_record;
            load.parts.push((hosting.operator, hosting.share, part));
            load.utilization += part;
            load.memory_bytes += mode.memory_bytes;
            load.wait_seconds = load.wait_seconds.or(hosting.wait_seconds);
        }
        for hosting in &solution.hostings {
            let device = hosting.device.filter(|device| device.worker == position);
            let (Some(device), Some(remote)) = (device, problem.remote_of(solution, hosting)) else {
                continue;
            };
            let rate = problem.operators[hosting.operator].rate;
            let part = rate * hosting.share * remote.run.seconds_per_record;
            if !load.parts.iter().any(|(operator, ..)| *operator == hosting.operator) {
                load.memory_bytes += remote.run.memory_bytes;
            }
            load.parts.push((hosting.operator, hosting.share, part));
            load.utilization += part;
            load.wait_seconds = load.wait_seconds.or(device.wait_seconds);
        }
        load
    });
    loads.collect()
}

/// Returns the factor by which the rate may grow, with this plan, until a worker reaches the largest utilization, a
/// link its bandwidth, or a path its latency limit; none without limits.
pub fn headroom(problem: &Problem, solution: &Solution) -> Option<f64> {
    let most = load_headroom(problem, solution)?;
    let holds = |factor: f64| {
        let faster = with_rate(problem, factor);
        check(&faster, &with_least_waits(&faster, solution)).is_empty()
    };
    if problem.limits.latency.is_empty() || most <= 1.0 || holds(most) || !holds(1.0) {
        return Some(most);
    }
    let (mut low, mut high) = (1.0, most);
    while high - low > HEADROOM_EXACTNESS {
        let middle = 0.5 * (low + high);
        if holds(middle) { low = middle } else { high = middle }
    }
    Some(low)
}

/// The headroom without latency limits.
fn load_headroom(problem: &Problem, solution: &Solution) -> Option<f64> {
    let limit = problem.limits.max_utilization;
    let of_workers = workers(problem, solution).into_iter().map(|load| limit / load.utilization);
    let of_links =
        traffic(problem, solution).unwrap_or_default().into_iter().filter_map(|((from, to), bytes)| {
            problem.route(from, to).and_then(|route| route.bandwidth).map(|bandwidth| bandwidth / bytes)
        });
    of_workers.chain(of_links).filter(|factor| factor.is_finite()).reduce(f64::min)
}

/// Returns the slowest path from every source to every last operator, over all route classes.
pub fn paths(problem: &Problem, solution: &Solution) -> Vec<PathLatency> {
    let mut slowest: Vec<PathLatency> = Vec::new();
    for (index, class) in solution.classes.iter().enumerate() {
        for source in 0..problem.sources.len() {
            let at = from_source(problem, solution, class, source);
            for last in problem.last_operators() {
                let Some(mut path) = at[last].clone() else { continue };
                (path.source, path.class) = (source, index);
                path.publication = problem.limits.publication_seconds;
                let same = |other: &&mut PathLatency| {
                    other.source == source && other.operators.last() == Some(&last)
                };
                match slowest.iter_mut().find(same) {
                    Some(other) if other.total() >= path.total() => {}
                    Some(other) => *other = path,
                    None => slowest.push(path),
                }
            }
        }
    }
    slowest
}

/// The slowest path from one source to each operator in one route class: longest paths in topological order.
fn from_source(
    problem: &Problem,
    solution: &Solution,
    class: &RouteClass,
    source: usize,
) -> Vec<Option<PathLatency>> {
    let mut at: Vec<Option<PathLatency>> = vec![None; problem.operators.len()];
    for operator in 0..problem.operators.len() {
        let hosting = &solution.hostings[class.hostings[operator]];
        let arrivals = problem.inputs_of(operator).into_iter().filter_map(|index| {
            let edge = &problem.edges[index];
            let (mut path, from, variant) = match edge.from {
                Producer::Source(other) if other == source => {
                    (PathLatency { is_bounded: true, ..PathLatency::default() }, class.sources[source], 0)
                }
                Producer::Source(_) => return None,
                Producer::Operator(producer) => {
                    let location = solution.hostings[class.hostings[producer]].location;
                    (at[producer].clone()?, location, solution.variants[producer])
                }
            };
            if let Some(route) = problem.route(from, hosting.location) {
                let sending = route.bandwidth.map_or(0.0, |bandwidth| edge.bytes[variant] / bandwidth);
                path.transfer += route.delay + sending;
            }
            Some(path)
        });
        let latest = arrivals.max_by(|a, b| a.total().total_cmp(&b.total()));
        at[operator] = latest.map(|mut path| {
            let of = &problem.operators[operator];
            path.operators.push(operator);
            path.ticks += problem.held_seconds(operator);
            let mode = hosting.worker.and_then(|worker| {
                let modes =
                    of.variants[solution.variants[operator]].modes.get(solution.workers[worker].class)?;
                modes.get(hosting.mode)
            });
            if let Some(mode) = mode {
                path.service += mode.call_seconds;
                path.batching += mode.fill_seconds;
                path.waiting += hosting.wait_seconds.unwrap_or(0.0);
                path.is_bounded &= hosting.wait_seconds.is_some();
                if let (Some(remote), Some(device)) = (&mode.remote, hosting.device) {
                    let way = problem.way(hosting.location, remote).unwrap_or_default();
                    path.transfer += way.round_trip + way.transfer;
                    path.service += remote.run.call_seconds;
                    path.waiting += device.wait_seconds.unwrap_or(0.0);
                    path.is_bounded &= device.wait_seconds.is_some();
                }
            }
            path
        });
    }
    at
}
