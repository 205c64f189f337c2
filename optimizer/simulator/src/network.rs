//! The simulated network, built once from a problem and a solution: stages, links, sources, classes.
use crate::SimulationError;
use crate::options::Options;
use crate::times::{EngineTimes, ServiceTimes, Times, slot_of};
use std::collections::BTreeMap;
use tidemill_optimizer::cost::cost;
use tidemill_optimizer::problem::{Problem, Producer};
use tidemill_optimizer::solution::Solution;
use tidemill_random::mixed;
use tidemill_spec::routing::{ClassTable, position_after};

/// Nanoseconds of plan time.
pub(crate) type Nanoseconds = u64;

/// The fixed part of a simulation.
#[derive(Debug)]
pub(crate) struct Network<'a> {
    pub(crate) stages: Vec<Stage<'a>>,
    /// Number of workers.
    pub(crate) workers: usize,
    pub(crate) links: Vec<Link>,
    pub(crate) sources: Vec<Source>,
    /// Sources by group; sources whose records meet in joins are one group.
    pub(crate) groups: Vec<Vec<usize>>,
    classes: ClassTable,
    pub(crate) operators: usize,
    /// Stage by class and operator: `routes[class * operators + operator]`.
    routes: Vec<u32>,
    /// Location by class and source.
    origins: Vec<u32>,
    locations: usize,
    /// Connection between two locations.
    ways: Vec<LocationLink>,
}

/// One operator on one worker.
#[derive(Debug)]
pub(crate) struct Stage<'a> {
    pub(crate) worker: Option<usize>,
    /// Its thread.
    pub(crate) slot: Slot,
    /// The engine's overhead until it has a record; none: zero.
    pub(crate) engine: Option<&'a EngineTimes>,
    /// None: it takes no time.
    pub(crate) times: Option<&'a ServiceTimes>,
    /// The device that runs its model; none: the worker does.
    pub(crate) remote: Option<RemoteStage<'a>>,
    pub(crate) max_batch: usize,
    pub(crate) budget: Nanoseconds,
    /// Records wait until their epoch is complete.
    pub(crate) is_stateful: bool,
    /// They also wait for the last record of their event time.
    pub(crate) follows_event_time: bool,
    /// Number of inputs of a join; 0 for others.
    pub(crate) joins: usize,
    /// Records served per arriving record (for a join: per group of partners).
    pub(crate) gain: f64,
    pub(crate) outs: Vec<Out>,
    /// Position in [`Options::sinks`] of the sinks it feeds, with the records per record.
    pub(crate) sinks: Vec<(usize, f64)>,
}

/// The device of a stage.
#[derive(Debug)]
pub(crate) struct RemoteStage<'a> {
    /// Position among the workers.
    pub(crate) device: usize,
    /// None: it takes no time.
    pub(crate) times: Option<&'a ServiceTimes>,
    pub(crate) there: LocationLink,
    pub(crate) back: LocationLink,
    /// Bytes of a record, there and back.
    pub(crate) sent: f64,
    pub(crate) received: f64,
}

/// A thread: a worker at a location; none: a device of sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) location: usize,
    pub(crate) worker: Option<usize>,
}

/// An edge that leaves a source or an operator.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Out {
    pub(crate) edge: usize,
    pub(crate) to: usize,
    pub(crate) input: u8,
    /// Records per record.
    pub(crate) ratio: f64,
    pub(crate) bytes: f64,
}

/// A connection between two locations that takes time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Link {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) bytes_per_second: Option<f64>,
    pub(crate) delay: Nanoseconds,
}

/// The connection between locations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LocationLink {
    /// At once.
    Free,
    /// Over a link.
    Link(usize),
}

#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) rate: f64,
    /// Records with the same event time.
    pub(crate) at_one_time: u32,
    pub(crate) outs: Vec<Out>,
}

pub(crate) fn nanoseconds(seconds: f64) -> Nanoseconds {
    (seconds * 1e9).round().max(0.0) as Nanoseconds
}

impl<'a> Network<'a> {
    pub(crate) fn new(
        problem: &Problem,
        solution: &Solution,
        times: &'a Times,
        options: &Options,
    ) -> Result<Self, SimulationError> {
        // Positions and routes are valid where there is a cost.
        cost(problem, solution)?;
        check(problem, solution)?;
        let locations = problem.locations.len();
        let mut links = Vec::new();
        let mut ways = vec![LocationLink::Free; locations * locations];
        for from in 0..locations {
            for to in 0..locations {
                let Some(route) = problem.route(from, to) else { continue };
                if route.bandwidth.is_some() || route.delay > 0.0 {
                    ways[from * locations + to] = LocationLink::Link(links.len());
                    let delay = nanoseconds(route.delay);
                    links.push(Link { from, to, bytes_per_second: route.bandwidth, delay });
                }
            }
        }
        let outs_of = |producer: Producer, rate: f64, variant: usize| -> Vec<Out> {
            let leaving = problem.edges.iter().enumerate().filter(|(_, edge)| edge.from == producer);
            let out = |(index, edge): (usize, &tidemill_optimizer::problem::Edge)| Out {
                edge: index,
                to: edge.to,
                input: u8::try_from(edge.input).unwrap_or(u8::MAX),
                ratio: if rate > 0.0 { edge.rate / rate } else { 0.0 },
                bytes: edge.bytes.get(variant).copied().unwrap_or_default(),
            };
            leaving.map(out).collect()
        };
        let outs: Vec<Vec<Out>> = problem
            .operators
            .iter()
            .enumerate()
            .map(|(index, operator)| {
                outs_of(Producer::Operator(index), operator.rate, solution.variants[index])
            })
            .collect();
        let stages = solution.hostings.iter().enumerate().map(|(index, hosting)| {
            let operator = &problem.operators[hosting.operator];
            let inputs: Vec<f64> = problem
                .inputs_of(hosting.operator)
                .into_iter()
                .map(|edge| problem.edges[edge].rate)
                .collect();
            let is_join = is_join(problem, hosting.operator);
            let arriving: f64 = match is_join {
                true => inputs.iter().copied().fold(f64::INFINITY, f64::min),
                false => inputs.iter().sum(),
            };
            let mode = hosting.worker.and_then(|worker| {
                let variant = &operator.variants[solution.variants[hosting.operator]];
                variant.modes.get(solution.workers[worker].class)?.get(hosting.mode)
            });
            let sinks =
                options.sinks.iter().enumerate().filter(|(_, sink)| sink.operator == hosting.operator);
            let own = times.of(index).filter(|_| mode.is_some());
            let remote = mode.and_then(|mode| mode.remote.as_ref()).zip(hosting.device);
            let remote = remote.map(|(remote, device)| {
                let (here, at) = (hosting.location, problem.worker_classes[remote.class].location);
                RemoteStage {
                    device: device.worker,
                    times: times.device(index),
                    there: ways[here * locations + at],
                    back: ways[at * locations + here],
                    sent: remote.sent_bytes,
                    received: remote.received_bytes,
                }
            });
            Stage {
                worker: hosting.worker.filter(|_| own.is_some()),
                slot: Slot { location: hosting.location, worker: slot_of(problem, solution, hosting) },
                engine: times.engine(index),
                times: own,
                remote,
                max_batch: mode.map_or(1, |mode| mode.batch.max(1) as usize),
                budget: mode.map_or(0, |mode| nanoseconds(mode.fill_seconds)),
                is_stateful: operator.stateful || is_join,
                follows_event_time: operator.follows_event_time && !is_join,
                joins: if is_join { inputs.len() } else { 0 },
                gain: if arriving > 0.0 { operator.rate / arriving } else { 1.0 },
                outs: outs[hosting.operator].clone(),
                sinks: sinks.map(|(index, sink)| (index, sink.ratio)).collect(),
            }
        });
        let sources: Vec<Source> = problem
            .sources
            .iter()
            .enumerate()
            .map(|(index, source)| Source {
                rate: source.rate,
                at_one_time: source.at_one_time.max(1),
                outs: outs_of(Producer::Source(index), source.rate, 0),
            })
            .collect();
        let classes = solution.classes.iter();
        let shares: Vec<f64> = classes.clone().map(|class| class.share).collect();
        let routes = classes.clone().flat_map(|class| class.hostings.iter().map(|hosting| *hosting as u32));
        let origins = classes.flat_map(|class| class.sources.iter().map(|location| *location as u32));
        Ok(Self {
            stages: stages.collect(),
            workers: solution.workers.len(),
            links,
            groups: groups(problem),
            sources,
            classes: ClassTable::new(&shares),
            operators: problem.operators.len(),
            routes: routes.collect(),
            origins: origins.collect(),
            locations,
            ways,
        })
    }

    /// Stage of an operator in a class.
    pub(crate) fn stage(&self, class: u32, operator: usize) -> usize {
        self.routes[class as usize * self.operators + operator] as usize
    }

    /// Location of a source's records of a class.
    pub(crate) fn origin(&self, class: u32, source: usize) -> usize {
        self.origins[class as usize * self.sources.len() + source] as usize
    }

    pub(crate) fn way(&self, from: usize, to: usize) -> LocationLink {
        self.ways[from * self.locations + to]
    }

    /// Class of the key `number` of a group.
    pub(crate) fn class_of(&self, group: usize, number: u64) -> u32 {
        self.classes.class_at(position_after(mixed(group as u64 + 1), number)) as u32
    }

    /// Number of classes.
    pub(crate) fn classes(&self) -> usize {
        self.classes.classes()
    }

    /// Location of a source's records of each class, and the stage of the operator that receives them.
    pub(crate) fn ways_from(&self, source: usize, operator: usize) -> impl Iterator<Item = (usize, usize)> {
        let classes = 0..self.classes() as u32;
        classes.map(move |class| (self.origin(class, source), self.stage(class, operator)))
    }
}

/// Checks the parts that [`cost`] does not.
fn check(problem: &Problem, solution: &Solution) -> Result<(), SimulationError> {
    let position = |what| Err(SimulationError::Position(what));
    if solution.classes.is_empty() {
        return position("the list of route classes");
    }
    for class in &solution.classes {
        if class.hostings.len() != problem.operators.len() || class.sources.len() != problem.sources.len() {
            return position("a route class");
        }
        let right = |(operator, &hosting): (usize, &usize)| solution.hostings[hosting].operator == operator;
        if !class.hostings.iter().enumerate().all(right) {
            return position("a hosting of a route class");
        }
    }
    for hosting in &solution.hostings {
        if hosting.worker.is_some_and(|worker| worker >= solution.workers.len()) {
            return position("the worker of a hosting");
        }
        if hosting.device.is_some_and(|device| device.worker >= solution.workers.len()) {
            return position("the device of a hosting");
        }
    }
    if problem.sources.iter().any(|source| !(source.rate > 0.0 && source.rate.is_finite())) {
        return Err(SimulationError::Rate);
    }
    Ok(())
}

/// Whether an operator makes one record from one of each of its inputs: it has several, and holds them for its ticks or
/// serves fewer records than arrive. Others with several inputs take every record by itself.
pub(crate) fn is_join(problem: &Problem, operator: usize) -> bool {
    let inputs = problem.inputs_of(operator);
    let arriving: f64 = inputs.iter().map(|edge| problem.edges[*edge].rate).sum();
    let of = &problem.operators[operator];
    inputs.len() > 1 && (of.stateful || of.rate < 0.999 * arriving)
}

/// Groups sources whose records meet in a join, over any number of operators.
fn groups(problem: &Problem) -> Vec<Vec<usize>> {
    let mut group: Vec<usize> = (0..problem.sources.len()).collect();
    let mut before: Vec<Vec<usize>> = vec![Vec::new(); problem.operators.len()];
    for index in 0..problem.operators.len() {
        let inputs = problem.inputs_of(index);
        let mut reaching: Vec<usize> = Vec::new();
        for edge in &inputs {
            match problem.edges[*edge].from {
                Producer::Source(source) => reaching.push(source),
                Producer::Operator(producer) => reaching.extend(&before[producer]),
            }
        }
        reaching.sort_unstable();
        reaching.dedup();
        if is_join(problem, index) {
            // The lowest number becomes that of the group.
            let least = reaching.iter().map(|source| group[*source]).min().unwrap_or_default();
            let joined: Vec<usize> = reaching.iter().map(|source| group[*source]).collect();
            for of in &mut group {
                if joined.contains(of) {
                    *of = least;
                }
            }
        }
        before[index] = reaching;
    }
    let mut groups: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (source, of) in group.into_iter().enumerate() {
        groups.entry(of).or_default().push(source);
    }
    groups.into_values().collect()
}
