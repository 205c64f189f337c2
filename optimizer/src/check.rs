//! The independent checker: compares a plan with the problem, from the numbers alone.
//!
//! It shares no code with the planners, not even the queueing formula or the cost function, so that an error there is
//! found here.
mod keys;
mod latency;
mod survive;

use crate::problem::{AccuracyModel, Problem, Producer, Remote, ReturnTraffic};
use crate::solution::{Hosting, Solution};
use std::collections::{BTreeMap, BTreeSet};

pub use keys::{KeyReport, check_keys};

/// Relative tolerance for sums that a solver has computed.
const TOLERANCE: f64 = 1e-6;

/// A violated limit, or a contradiction in the plan.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Violation {
    /// The plan contradicts itself or names what does not exist.
    #[error("{0}")]
    Shape(String),
    /// A worker is busier than allowed.
    #[error("worker {worker} is busy {load:.6} of its time, more than {allowed:.6}")]
    Load {
        /// Position in the solution's workers.
        worker: usize,
        /// Share of its time.
        load: f64,
        /// Allowed share.
        allowed: f64,
    },
    /// A record may wait longer than the plan states: the sum of effective service times is above 1.
    #[error("worker {worker} does not keep its wait: effective load {load:.6}")]
    Wait {
        /// Position in the solution's workers.
        worker: usize,
        /// Sum of rate times effective service time.
        load: f64,
    },
    /// The models on a worker need more memory than it has.
    #[error("worker {worker} needs {needed:.0} bytes of memory, but has {available:.0}")]
    Memory {
        /// Position in the solution's workers.
        worker: usize,
        /// Bytes needed.
        needed: f64,
        /// Bytes available.
        available: f64,
    },
    /// More than one operator on a worker that may have one only.
    #[error("worker {worker} runs {count} operators, but may run only one")]
    Shared {
        /// Position in the solution's workers.
        worker: usize,
        /// Operators on it.
        count: usize,
    },
    /// Several workers run an operator whose records must all meet on one.
    #[error("{count} workers run {operator}, but all its records must meet on one")]
    Spread {
        /// The operator's id.
        operator: String,
        /// Workers that run it.
        count: usize,
    },
    /// Records would go where no route leads.
    #[error("no route leads from {from} to {to}")]
    Unreachable {
        /// Sending location.
        from: String,
        /// Receiving location.
        to: String,
    },
    /// A route carries more than its bandwidth.
    #[error("the route from {from} to {to} carries {bytes_per_second:.0} B/s of {bandwidth:.0}")]
    Bandwidth {
        /// Sending location.
        from: String,
        /// Receiving location.
        to: String,
        /// Bytes per second that it carries.
        bytes_per_second: f64,
        /// Bytes per second that it can carry.
        bandwidth: f64,
    },
    /// A path is slower than the limit.
    #[error("a path to {sink} takes {seconds:.4} s, more than {allowed:.4} s")]
    Latency {
        /// Operator that feeds the sink.
        sink: String,
        /// Seconds of the slowest path.
        seconds: f64,
        /// The limit.
        allowed: f64,
    },
    /// The chosen variants are not accurate enough, or their accuracy is not known.
    #[error("the accuracy is {}, but must be {needed} %", found.map_or_else(|| "not known".to_owned(), |found| format!("{found:.2} %")))]
    Accuracy {
        /// Accuracy in percent; none: not known.
        found: Option<f64>,
        /// Limit in percent.
        needed: f64,
    },
    /// After a loss of workers the others do not keep the levels.
    #[error("after the loss of {}: {violation}", lost_text(lost))]
    Loss {
        /// Positions of the lost workers in the solution.
        lost: Vec<usize>,
        /// The violation of the plan after that loss.
        violation: Box<Violation>,
    },
}

fn lost_text(lost: &[usize]) -> String {
    let named: Vec<String> = lost.iter().map(|worker| format!("worker {worker}")).collect();
    named.join(" and ")
}

impl Violation {
    /// Whether models do not fit into memory, before or after a loss.
    pub fn is_of_memory(&self) -> bool {
        match self {
            Self::Memory { .. } => true,
            Self::Loss { violation, .. } => violation.is_of_memory(),
            _ => false,
        }
    }
}

/// Returns all violations of a plan; empty for a correct one.
///
/// Checks shape, loads, waits, memory, one operator per worker, routes, bandwidths, latency of every path of every
/// route class, accuracy, and all of these but accuracy after every loss that the plan must survive.
pub fn check(problem: &Problem, solution: &Solution) -> Vec<Violation> {
    let mut found = shape(problem, solution);
    if !found.is_empty() {
        return found; // the rest needs positions that name something
    }
    let problem = &*problem.at(&solution.variants);
    workers(problem, solution, &mut found);
    routes(problem, solution, &mut found);
    latency::check(problem, solution, &mut found);
    if let Some(needed) = problem.limits.accuracy {
        let accuracy = accuracy(problem, &solution.variants);
        if accuracy.is_none_or(|accuracy| accuracy < needed - 1e-7) {
            found.push(Violation::Accuracy { found: accuracy, needed });
        }
    }
    survive::check(problem, solution, &mut found);
    found
}

/// All violations but those of accuracy and of losses.
fn levels(problem: &Problem, solution: &Solution) -> Vec<Violation> {
    let mut found = shape(problem, solution);
    if found.is_empty() {
        workers(problem, solution, &mut found);
        routes(problem, solution, &mut found);
        latency::check(problem, solution, &mut found);
    }
    found
}

/// Total cost in $/h, computed from the route classes edge by edge.
pub fn recomputed_cost(problem: &Problem, solution: &Solution) -> f64 {
    let problem = &*problem.at(&solution.variants);
    let compute: f64 = solution.workers.iter().map(|worker| problem.worker_classes[worker.class].price).sum();
    let mut network = 0.0;
    for edge in &problem.edges {
        for class in &solution.classes {
            let (from, bytes) = match edge.from {
                Producer::Source(source) => (class.sources[source], edge.bytes[0]),
                Producer::Operator(operator) => {
                    let hosting = &solution.hostings[class.hostings[operator]];
                    (hosting.location, edge.bytes[solution.variants[operator]])
                }
            };
            let to = solution.hostings[class.hostings[edge.to]].location;
            if let Some(route) = &problem.routes[from][to] {
                network += route.price * bytes * edge.rate * class.share * 60.0 * 60.0;
            }
        }
    }
    for run in runs(problem, solution) {
        let records = problem.operators[run.hosting.operator].rate * run.hosting.share * 60.0 * 60.0;
        for (from, to, bytes) in run.ways() {
            network += problem.routes[from][to].as_ref().map_or(0.0, |route| route.price * bytes * records);
        }
    }
    compute + network
}

/// A model that runs on a device for a stage.
struct Run<'a> {
    hosting: &'a Hosting,
    remote: &'a Remote,
    /// Location of the device.
    at: usize,
    /// Position of the device in the solution's workers.
    device: usize,
}

impl Run<'_> {
    /// Its traffic: sender, receiver, bytes of a record.
    fn ways(&self) -> [(usize, usize, f64); 2] {
        let here = self.hosting.location;
        [(here, self.at, self.remote.sent_bytes), (self.at, here, self.remote.received_bytes)]
    }
}

/// All models on devices, of a plan whose shape is right.
fn runs<'a>(problem: &'a Problem, solution: &'a Solution) -> impl Iterator<Item = Run<'a>> {
    solution.hostings.iter().filter_map(|hosting| {
        let class = solution.workers[hosting.worker?].class;
        let variant = &problem.operators[hosting.operator].variants[solution.variants[hosting.operator]];
        let remote = variant.modes.get(class)?.get(hosting.mode)?.remote.as_ref()?;
        let at = problem.worker_classes[remote.class].location;
        Some(Run { hosting, remote, at, device: hosting.device.as_ref()?.worker })
    })
}

fn shape(problem: &Problem, solution: &Solution) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut fault = |text: String| found.push(Violation::Shape(text));
    let operators = problem.operators.len();
    if solution.variants.len() != operators {
        fault(format!("{} variants for {operators} operators", solution.variants.len()));
        return found;
    }
    for (operator, &variant) in problem.operators.iter().zip(&solution.variants) {
        if variant >= operator.variants.len() {
            fault(format!("{} has no variant {variant}", operator.id));
            return found;
        }
    }
    let mut seen = BTreeSet::new();
    for worker in &solution.workers {
        match problem.worker_classes.get(worker.class) {
            None => fault(format!("there is no worker class {}", worker.class)),
            Some(class) if worker.index >= class.count => {
                fault(format!("there is no worker {} of {}", worker.index, class.worker_type));
            }
            Some(_) => {}
        }
        if !seen.insert(*worker) {
            fault(format!("worker {} of class {} is twice in the plan", worker.index, worker.class));
        }
    }
    for (index, hosting) in solution.hostings.iter().enumerate() {
        let Some(operator) = problem.operators.get(hosting.operator) else {
            fault(format!("hosting {index} names operator {}", hosting.operator));
            continue;
        };
        if hosting.location >= problem.locations.len() {
            fault(format!("hosting {index} of {} names location {}", operator.id, hosting.location));
        }
        if !(hosting.share > 0.0 && hosting.share <= 1.0 + TOLERANCE) {
            fault(format!("hosting {index} of {} has share {}", operator.id, hosting.share));
        }
        match hosting.worker {
            None if operator.weightless => {
                // It runs on a worker that the plan has for others.
                let is_there = |class: usize| {
                    problem.worker_classes.get(class).is_some_and(|class| class.location == hosting.location)
                };
                if !solution.workers.iter().any(|worker| is_there(worker.class)) {
                    fault(format!("{} runs where the plan has no worker", operator.id));
                }
            }
            None => fault(format!("hosting {index} of {} has no worker", operator.id)),
            Some(worker) => {
                let class = solution.workers.get(worker).map(|worker| worker.class);
                match class.and_then(|class| problem.worker_classes.get(class).map(|facts| (class, facts))) {
                    None => fault(format!("hosting {index} of {} names worker {worker}", operator.id)),
                    Some((_, facts)) if facts.location != hosting.location => {
                        fault(format!("hosting {index} of {} is not where its worker is", operator.id));
                    }
                    Some((class, _)) if !operator.weightless => {
                        let modes = &operator.variants[solution.variants[hosting.operator]].modes[class];
                        let Some(mode) = modes.get(hosting.mode) else {
                            fault(format!("{} does not run on worker {worker} in this form", operator.id));
                            continue;
                        };
                        let device = hosting
                            .device
                            .as_ref()
                            .map(|device| solution.workers.get(device.worker).map(|worker| worker.class));
                        if device != mode.remote.as_ref().map(|remote| Some(remote.class)) {
                            fault(format!("hosting {index} of {} has the wrong device", operator.id));
                        }
                    }
                    Some(_) => {}
                }
            }
        }
    }
    let mut shares = vec![0.0; solution.hostings.len()];
    let mut at_source: Vec<BTreeMap<usize, f64>> = vec![BTreeMap::new(); problem.sources.len()];
    for (index, class) in solution.classes.iter().enumerate() {
        if !(class.share > 0.0 && class.share <= 1.0 + TOLERANCE) {
            fault(format!("route class {index} has share {}", class.share));
        }
        if class.hostings.len() != operators || class.sources.len() != problem.sources.len() {
            fault(format!("route class {index} does not name every operator and source"));
            continue;
        }
        for (operator, &hosting) in class.hostings.iter().enumerate() {
            match solution.hostings.get(hosting) {
                Some(facts) if facts.operator == operator => shares[hosting] += class.share,
                _ => fault(format!("route class {index} names a wrong hosting for operator {operator}")),
            }
        }
        for (source, &location) in class.sources.iter().enumerate() {
            *at_source[source].entry(location).or_insert(0.0) += class.share;
        }
    }
    let total: f64 = solution.classes.iter().map(|class| class.share).sum();
    if (total - 1.0).abs() > TOLERANCE {
        fault(format!("the shares of the route classes add up to {total}"));
    }
    for (index, (hosting, share)) in solution.hostings.iter().zip(&shares).enumerate() {
        if (hosting.share - share).abs() > TOLERANCE {
            fault(format!("hosting {index} has share {} and its route classes {share}", hosting.share));
        }
    }
    for (source, by_class) in problem.sources.iter().zip(&at_source) {
        let mut locations: BTreeSet<usize> = by_class.keys().copied().collect();
        locations.extend(source.locations.iter().map(|(location, _)| *location));
        for location in locations {
            let given: f64 =
                source.locations.iter().filter(|(at, _)| *at == location).map(|(_, share)| share).sum();
            let planned = by_class.get(&location).copied().unwrap_or(0.0);
            if (given - planned).abs() > TOLERANCE {
                fault(format!(
                    "{} has {given} of its records at location {location}, and the route classes {planned}",
                    source.id
                ));
            }
        }
    }
    found
}

fn workers(problem: &Problem, solution: &Solution, found: &mut Vec<Violation>) {
    let count = solution.workers.len();
    let (mut loads, mut memory) = (vec![0.0; count], vec![0.0; count]);
    let mut operators: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); count];
    for hosting in &solution.hostings {
        let operator = &problem.operators[hosting.operator];
        let Some(worker) = hosting.worker.filter(|_| !operator.weightless) else { continue };
        let class = solution.workers[worker].class;
        let mode = &operator.variants[solution.variants[hosting.operator]].modes[class][hosting.mode];
        loads[worker] += operator.rate * hosting.share * mode.seconds_per_record;
        memory[worker] += mode.memory_bytes;
        operators[worker].insert(hosting.operator);
    }
    for (index, operator) in problem.operators.iter().enumerate() {
        let count = operators.iter().filter(|of| of.contains(&index)).count();
        if operator.on_one_worker && count > 1 {
            found.push(Violation::Spread { operator: operator.id.clone(), count });
        }
    }
    for run in runs(problem, solution) {
        let operator = run.hosting.operator;
        loads[run.device] +=
            problem.operators[operator].rate * run.hosting.share * run.remote.run.seconds_per_record;
        // A model is loaded once for all stages of its operator.
        if operators[run.device].insert(operator) {
            memory[run.device] += run.remote.run.memory_bytes;
        }
    }
    let allowed = problem.limits.max_utilization;
    for (worker, used) in solution.workers.iter().enumerate() {
        if loads[worker] > allowed * (1.0 + TOLERANCE) {
            found.push(Violation::Load { worker, load: loads[worker], allowed });
        }
        if let Some(available) = problem.worker_classes[used.class].memory_bytes
            && memory[worker] > available * (1.0 + 1e-9)
        {
            found.push(Violation::Memory { worker, needed: memory[worker], available });
        }
        if problem.limits.one_operator_per_worker && operators[worker].len() > 1 {
            found.push(Violation::Shared { worker, count: operators[worker].len() });
        }
    }
}

fn routes(problem: &Problem, solution: &Solution, found: &mut Vec<Violation>) {
    let mut carried: BTreeMap<(usize, usize), f64> = BTreeMap::new();
    for class in &solution.classes {
        for edge in &problem.edges {
            let to = solution.hostings[class.hostings[edge.to]].location;
            let (from, bytes) = match edge.from {
                Producer::Source(source) => (class.sources[source], edge.bytes[0]),
                Producer::Operator(operator) => (
                    solution.hostings[class.hostings[operator]].location,
                    edge.bytes[solution.variants[operator]],
                ),
            };
            *carried.entry((from, to)).or_insert(0.0) += class.share * edge.rate * bytes;
        }
    }
    for run in runs(problem, solution) {
        let rate = problem.operators[run.hosting.operator].rate * run.hosting.share;
        for (from, to, bytes) in run.ways() {
            *carried.entry((from, to)).or_insert(0.0) += rate * bytes;
        }
    }
    for ((from, to), bytes_per_second) in carried {
        let name = |location: usize| problem.locations[location].name.clone();
        let leads_down = problem.locations[to].tier < problem.locations[from].tier;
        let is_forbidden = leads_down && problem.limits.return_traffic == ReturnTraffic::Forbid;
        match &problem.routes[from][to] {
            Some(route) if !is_forbidden => {
                if let Some(bandwidth) = route.bandwidth
                    && bytes_per_second > bandwidth * (1.0 + TOLERANCE)
                {
                    found.push(Violation::Bandwidth {
                        from: name(from),
                        to: name(to),
                        bytes_per_second,
                        bandwidth,
                    });
                }
            }
            _ => found.push(Violation::Unreachable { from: name(from), to: name(to) }),
        }
    }
}

/// Accuracy of joint variants, computed independently.
fn accuracy(problem: &Problem, variants: &[usize]) -> Option<f64> {
    match &problem.accuracy {
        AccuracyModel::None => None,
        AccuracyModel::Table(rows) => {
            rows.iter().find(|row| row.variants == variants).map(|row| row.accuracy)
        }
        AccuracyModel::Additive { base, contributions } => Some(
            variants.iter().enumerate().fold(*base, |sum, (operator, &m)| sum + contributions[operator][m]),
        ),
        AccuracyModel::RowLookup(tables) => {
            let mut output: Vec<f64> = Vec::new();
            for (operator, &variant) in variants.iter().enumerate() {
                let mut ports: Vec<(usize, f64)> = problem
                    .edges
                    .iter()
                    .filter(|edge| edge.to == operator)
                    .map(|edge| match edge.from {
                        Producer::Source(_) => (edge.input, 100.0),
                        Producer::Operator(producer) => (edge.input, output[producer]),
                    })
                    .collect();
                ports.sort_by_key(|(input, _)| *input);
                let mut best: Option<f64> = None;
                for row in &tables[operator][variant] {
                    let is_covered =
                        row.inputs.iter().zip(&ports).all(|(asked, (_, has))| *asked <= has + 1e-9);
                    if is_covered && best.is_none_or(|best| row.output > best) {
                        best = Some(row.output);
                    }
                }
                if tables[operator][variant].is_empty() {
                    best = Some(ports.iter().fold(100.0, |least, (_, has)| has.min(least)));
                }
                output.push(best?);
            }
            let feeds =
                |operator: usize| problem.edges.iter().any(|edge| edge.from == Producer::Operator(operator));
            let ends = (0..variants.len()).filter(|&operator| !feeds(operator));
            ends.map(|operator| output[operator]).reduce(f64::min)
        }
    }
}
