//! The possibilities of a problem with one variant of each operator: groups of identical workers, and whole routes.
//!
//! Without latency limits a route names the location of each operator; with limits, the group of workers and the mode too, and
//! only routes that end in time are in the list.
use super::super::tuning::{LONGEST_WAIT, MOST_TUPLES};
use crate::problem::{Origin, Problem, Producer, ServiceMode};
use crate::queueing::{decay_rate, effective_seconds};
use crate::solution::Solution;

/// Identical workers: of one class and wait, for one operator where workers are not shared.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Group {
    pub(super) class: usize,
    pub(super) location: usize,
    pub(super) wait: Option<f64>,
    pub(super) operator: Option<usize>,
    pub(super) most: u32,
    pub(super) price: f64,
    /// Memory of one worker; none: not limited, or not in the program.
    pub(super) memory: Option<f64>,
}

/// One possibility to serve an operator.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Choice {
    pub(super) group: usize,
    pub(super) mode: usize,
    /// Workers of the group that all records of the operator need under the utilisation cap.
    pub(super) load: f64,
    /// Workers needed under the bound on waiting; 0 without latency limits.
    pub(super) wait_load: f64,
    pub(super) memory: f64,
    /// Position in [`Space::places`] of the operator.
    pub(super) place: usize,
}

/// Where a route passes an operator.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Place {
    pub(super) location: usize,
    /// Group and mode, under latency limits; none for a weightless operator.
    pub(super) lane: Option<(usize, usize)>,
    /// Seconds that the operator adds to a path here.
    seconds: f64,
}

/// A whole route.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Tuple {
    /// Position of the location in each origin's list.
    pub(super) origins: Vec<usize>,
    /// Position in [`Space::places`] of each operator.
    pub(super) places: Vec<usize>,
}

/// Treatment of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Memory {
    /// Not in the program: each worker of a group could hold every model.
    Ignored,
    /// All workers of a group hold the same models: plans, but no bound.
    Uniform,
    /// Each worker of a class with limited memory is a group of its own: exact.
    Single,
}

/// All possibilities.
#[derive(Debug, Clone)]
pub(super) struct Space<'a> {
    /// The problem at the rates and sizes of the variants.
    pub(super) problem: &'a Problem,
    pub(super) variants: Vec<usize>,
    pub(super) origins: Vec<Origin>,
    pub(super) groups: Vec<Group>,
    pub(super) choices: Vec<Vec<Choice>>,
    pub(super) places: Vec<Vec<Place>>,
    pub(super) tuples: Vec<Tuple>,
}

/// Routes that are too many to list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooManyRoutes;

impl<'a> Space<'a> {
    /// The possibilities to plan with `waits` (ignored without latency limits). `strictness` multiplies all loads.
    pub(super) fn new(
        problem: &'a Problem,
        variants: &[usize],
        waits: &[f64],
        memory: Memory,
        strictness: f64,
    ) -> Result<Self, TooManyRoutes> {
        let waits: Vec<Option<f64>> = match problem.limits.latency.is_empty() {
            true => vec![None],
            false => waits.iter().copied().map(Some).collect(),
        };
        let only: Vec<Option<usize>> = match problem.limits.one_operator_per_worker {
            true => (0..problem.operators.len()).map(Some).collect(),
            false => vec![None],
        };
        let mut groups = Vec::new();
        let runs = |class: usize| {
            let variants = problem.operators.iter().flat_map(|operator| &operator.variants);
            variants.flat_map(|variant| variant.modes.get(class)).any(|modes| !modes.is_empty())
        };
        // Classes on which nothing runs, such as devices, are not rented.
        for (class, facts) in problem.worker_classes.iter().enumerate().filter(|(class, _)| runs(*class)) {
            let limit = facts.memory_bytes.filter(|_| memory != Memory::Ignored);
            let (times, most) = match (limit, memory) {
                (Some(_), Memory::Single) => (facts.count, 1),
                _ => (u32::from(facts.count > 0), facts.count),
            };
            for (&wait, &operator) in waits.iter().flat_map(|wait| only.iter().map(move |only| (wait, only)))
            {
                for _ in 0..times {
                    groups.push(Group {
                        class,
                        location: facts.location,
                        wait,
                        operator,
                        most,
                        price: facts.price,
                        memory: limit,
                    });
                }
            }
        }
        Self::with_groups(problem, variants, groups, |_, _, _| true, (strictness, true))
    }

    /// The possibilities after a plan was made: every worker in use is a group. An operator that survives a loss of so many
    /// workers stays where it is hosted; another may start anywhere.
    pub(super) fn of_plan(
        problem: &'a Problem,
        solution: &Solution,
        stays: &[bool],
    ) -> Result<Self, TooManyRoutes> {
        let wait_of = |worker: usize| {
            let hosting = solution.hostings.iter().find(|hosting| hosting.worker == Some(worker));
            hosting.and_then(|hosting| hosting.wait_seconds)
        };
        let groups = solution.workers.iter().enumerate().map(|(index, worker)| {
            let facts = &problem.worker_classes[worker.class];
            Group {
                class: worker.class,
                location: facts.location,
                wait: wait_of(index),
                operator: None,
                most: 1,
                price: facts.price,
                memory: None,
            }
        });
        let groups = groups.collect();
        let is_hosted = |operator: usize, group: usize, mode: usize| {
            let mut hostings = solution.hostings.iter();
            !stays[operator]
                || hostings.any(|of| (of.operator, of.worker, of.mode) == (operator, Some(group), mode))
        };
        Self::with_groups(problem, &solution.variants, groups, is_hosted, (1.0, false))
    }

    fn with_groups(
        problem: &'a Problem,
        variants: &[usize],
        groups: Vec<Group>,
        is_possible: impl Fn(usize, usize, usize) -> bool,
        loads: (f64, bool),
    ) -> Result<Self, TooManyRoutes> {
        let mut space = Self {
            problem,
            variants: variants.to_vec(),
            origins: problem.origins(),
            groups,
            choices: Vec::new(),
            places: Vec::new(),
            tuples: Vec::new(),
        };
        for operator in 0..problem.operators.len() {
            let (choices, places) = space.choices_of(operator, &is_possible, loads);
            space.choices.push(choices);
            space.places.push(places);
        }
        space.tuples = space.all_tuples()?;
        Ok(space)
    }

    fn choices_of(
        &self,
        operator: usize,
        is_possible: impl Fn(usize, usize, usize) -> bool,
        (strictness, prunes): (f64, bool),
    ) -> (Vec<Choice>, Vec<Place>) {
        let problem = self.problem;
        let facts = &problem.operators[operator];
        let has_latency = !problem.limits.latency.is_empty();
        let held = problem.held_seconds(operator);
        let (mut choices, mut places): (Vec<Choice>, Vec<Place>) = Default::default();
        let mut place_of = |place: Place| match places.iter().position(|known| *known == place) {
            Some(position) => position,
            None => {
                places.push(place);
                places.len() - 1
            }
        };
        if facts.weightless {
            for location in 0..problem.locations.len() {
                if self.groups.iter().any(|group| group.location == location) {
                    place_of(Place { location, lane: None, seconds: held });
                }
            }
            return (choices, places);
        }
        // Load, load of waiting, memory and seconds of the possible modes.
        let is_beaten = |costs: &[(usize, [f64; 4])], mode: usize, own: &[f64; 4]| {
            costs.iter().any(|(other, costs)| {
                let no_more = costs.iter().zip(own).all(|(a, b)| a <= b);
                *other != mode && no_more && (costs != own || *other < mode)
            })
        };
        for (index, group) in self.groups.iter().enumerate() {
            if group.operator.is_some_and(|only| only != operator) {
                continue;
            }
            let modes = facts.variants[self.variants[operator]].modes.get(group.class);
            let mut costs: Vec<(usize, [f64; 4])> = Vec::new();
            for (mode, service) in modes.into_iter().flatten().enumerate() {
                let capacity = problem.worker_classes[group.class].memory_bytes;
                let fits = capacity.is_none_or(|capacity| service.memory_bytes <= capacity);
                if service.remote.is_some() || !fits || !is_possible(operator, index, mode) {
                    continue;
                }
                let Some(wait_load) = self.wait_load(group, service, facts.rate) else { continue };
                let own = service.fill_seconds + service.call_seconds + group.wait.unwrap_or(0.0);
                let load = facts.rate * service.seconds_per_record / problem.limits.max_utilization;
                let seconds = if has_latency { held + own } else { 0.0 };
                costs.push((
                    mode,
                    [
                        strictness * load,
                        strictness * wait_load,
                        group.memory.map_or(0.0, |_| service.memory_bytes),
                        seconds,
                    ],
                ));
            }
            for (mode, own) in &costs {
                // Of a plan that is given, every mode counts: another is not loaded.
                if prunes && is_beaten(&costs, *mode, own) {
                    continue;
                }
                let [load, wait_load, memory, seconds] = *own;
                let lane = has_latency.then_some((index, *mode));
                let place = place_of(Place { location: group.location, lane, seconds });
                choices.push(Choice { group: index, mode: *mode, load, wait_load, memory, place });
            }
        }
        (choices, places)
    }

    /// Workers needed for all records of an operator under the bound on waiting; none where no number is enough.
    fn wait_load(&self, group: &Group, service: &ServiceMode, rate: f64) -> Option<f64> {
        let Some(wait) = group.wait else { return Some(0.0) };
        let limits = self.problem.limits.latency.iter();
        let percentile = limits.map(|limit| limit.percentile).fold(0.0, f64::max);
        let seconds = effective_seconds(service, decay_rate(wait.min(LONGEST_WAIT), percentile))?;
        // A worker cannot keep the wait of a service that takes many times as long.
        (rate * seconds < 1e4).then_some(rate * seconds)
    }

    /// All routes that links allow and that end in time.
    fn all_tuples(&self) -> Result<Vec<Tuple>, TooManyRoutes> {
        let mut origins: Vec<Vec<usize>> = vec![Vec::new()];
        for origin in &self.origins {
            let longer = origins.iter().flat_map(|known| {
                (0..origin.locations.len()).map(move |next| [known.as_slice(), &[next]].concat())
            });
            origins = longer.collect();
        }
        let mut tuples = Vec::new();
        for origins in origins {
            let sources = self.sources_of(&origins);
            let mut partial = Partial { places: Vec::new(), ends: Vec::new() };
            self.extend(&origins, &sources, &mut partial, &mut tuples)?;
        }
        Ok(tuples)
    }

    /// The location of each source, given that of each origin.
    pub(super) fn sources_of(&self, origins: &[usize]) -> Vec<usize> {
        let mut sources = vec![0; self.problem.sources.len()];
        for (origin, at) in self.origins.iter().zip(origins) {
            for &source in &origin.sources {
                sources[source] = origin.locations[*at].0;
            }
        }
        sources
    }

    fn extend(
        &self,
        origins: &[usize],
        sources: &[usize],
        partial: &mut Partial,
        tuples: &mut Vec<Tuple>,
    ) -> Result<(), TooManyRoutes> {
        let operator = partial.places.len();
        if operator == self.problem.operators.len() {
            if tuples.len() >= MOST_TUPLES {
                return Err(TooManyRoutes);
            }
            tuples.push(Tuple { origins: origins.to_vec(), places: partial.places.clone() });
            return Ok(());
        }
        for (index, place) in self.places[operator].iter().enumerate() {
            let Some(begin) = self.arrival(operator, place.location, sources, partial) else { continue };
            let end = begin + place.seconds;
            if self.is_late(operator, end) {
                continue;
            }
            partial.places.push(index);
            partial.ends.push(end);
            self.extend(origins, sources, partial, tuples)?;
            partial.places.pop();
            partial.ends.pop();
        }
        Ok(())
    }

    /// The latest arrival of an operator's inputs at a location; none where no link leads there.
    fn arrival(&self, operator: usize, to: usize, sources: &[usize], partial: &Partial) -> Option<f64> {
        let mut latest = 0.0f64;
        for edge in self.problem.edges.iter().filter(|edge| edge.to == operator) {
            let (from, before, bytes) = self.sender(edge.from, edge, sources, &partial.places, &partial.ends);
            let route = self.problem.route(from, to)?;
            let transfer = match route.bandwidth {
                Some(bandwidth) if bytes > 0.0 => route.delay + bytes / bandwidth,
                _ => route.delay,
            };
            latest = latest.max(before + transfer);
        }
        Some(latest)
    }

    fn sender(
        &self,
        from: Producer,
        edge: &crate::problem::Edge,
        sources: &[usize],
        places: &[usize],
        ends: &[f64],
    ) -> (usize, f64, f64) {
        match from {
            Producer::Source(source) => (sources[source], 0.0, edge.bytes[0]),
            Producer::Operator(producer) => (
                self.places[producer][places[producer]].location,
                ends[producer],
                edge.bytes[self.variants[producer]],
            ),
        }
    }

    /// Whether a path that ends here breaks a limit.
    fn is_late(&self, operator: usize, end: f64) -> bool {
        let is_last = || self.problem.outputs_of(operator).is_empty();
        let limits = &self.problem.limits;
        limits.latency.iter().any(|limit| {
            let is_named = limit.sink.map_or_else(is_last, |sink| sink == operator);
            is_named && end > limits.path_seconds(limit) + 1e-9
        })
    }

    /// Bytes per second of a route that has all keys: sender, receiver, amount.
    pub(super) fn traffic<'b>(&'b self, tuple: &'b Tuple) -> impl Iterator<Item = (usize, usize, f64)> + 'b {
        let sources = self.sources_of(&tuple.origins);
        self.problem.edges.iter().map(move |edge| {
            let location = |operator: usize| self.places[operator][tuple.places[operator]].location;
            let (from, bytes) = match edge.from {
                Producer::Source(source) => (sources[source], edge.bytes[0]),
                Producer::Operator(producer) => (location(producer), edge.bytes[self.variants[producer]]),
            };
            (from, location(edge.to), edge.rate * bytes)
        })
    }
}

/// A route as far as it is built.
struct Partial {
    places: Vec<usize>,
    /// When each operator ends, in seconds.
    ends: Vec<f64>,
}
