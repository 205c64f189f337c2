//! A problem prepared for the integer program: classes with waits, possible columns, the graph of locations.
use super::fault::NAME;
use super::time_grid::TimeGrid;
use super::tuning::{LONGEST_WAIT, MOST_LOAD, MOST_ROUTE_COLUMNS};
use super::wait_levels::WaitLevels;
use crate::junction::JunctionTree;
use crate::planner::PlannerError;
use crate::problem::{Problem, Producer};
use crate::queueing::{decay_rate, effective_seconds, least_effective_seconds};
use crate::solution::{Hosting, Solution, UsedWorker};

pub(super) const SECONDS_PER_HOUR: f64 = 3600.0;

/// The purpose of preparing a problem with latency limits. Effective service times grow exponentially, so those of slow
/// workers cannot all be coefficients of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LatencyRule {
    /// Plans: workers that are too slow are left out.
    Plan,
    /// A bound: workers that are too slow count as faster than they are.
    Bound,
}

/// Treatment of memory in the program for one worker class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum MemoryRule {
    /// Not at all; checked afterwards.
    Ignored,
    /// Counted over all workers of the class together: necessary, not sufficient.
    Counted,
    /// Every worker by itself: exact.
    Single,
    /// Every worker by itself, and at most this number of them: plans, but no bound.
    SingleOf(u32),
}

/// Identical workers with one waiting time.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SearchClass {
    /// Worker class in the problem.
    pub(super) class: usize,
    pub(super) location: usize,
    /// Index within the class, for a single worker.
    pub(super) single: Option<u32>,
    /// Seconds of waiting; none without latency limits.
    pub(super) wait: Option<f64>,
    /// Wait that a bound counts in the time of a path: less where it covers all waits down to this one.
    pub(super) shortest: Option<f64>,
    pub(super) count: u32,
    pub(super) price: f64,
    /// Memory of one worker, where it enters the program.
    pub(super) memory: Option<f64>,
}

/// One possibility to serve an operator: a column of the program.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Choice {
    pub(super) variant: usize,
    /// Search class; none for a weightless operator.
    pub(super) class: Option<usize>,
    pub(super) location: usize,
    pub(super) mode: usize,
    /// Workers that all of the operator's records need under the utilisation cap.
    pub(super) load: f64,
    /// Workers needed under the waiting-time bound; 0 without.
    pub(super) wait_load: f64,
    /// Own latency in seconds: filling a batch, waiting, the call, a tick where stateful.
    pub(super) latency: f64,
    pub(super) memory: f64,
    /// Cost of the traffic from sources with one location, in $/h for all of the records.
    pub(super) source_cost: f64,
    /// Latency of that traffic in seconds.
    pub(super) source_latency: f64,
}

/// Streams between two nodes of the graph of locations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Link {
    /// Node that sends: an operator, or `operators + origin`.
    pub(super) from: usize,
    /// Operator that receives.
    pub(super) to: usize,
    pub(super) edges: Vec<usize>,
    /// Variants of the sender with equal bytes on all of the edges; one group without variants for an origin.
    pub(super) groups: Vec<Vec<usize>>,
}

/// A prepared problem.
#[derive(Debug, Clone)]
pub(super) struct Prepared<'a> {
    pub(super) problem: &'a Problem,
    pub(super) classes: Vec<SearchClass>,
    /// Choices of each operator.
    pub(super) choices: Vec<Vec<Choice>>,
    /// Origins with several locations, which are nodes; those with one are part of the choices.
    pub(super) origins: Vec<Vec<(usize, f64)>>,
    /// Node of a source: its origin's, or none with one location.
    pub(super) source_node: Vec<Option<usize>>,
    /// Locations of each node, ascending.
    pub(super) domains: Vec<Vec<usize>>,
    pub(super) links: Vec<Link>,
    pub(super) tree: JunctionTree,
    /// Whether the program plans whole routes; otherwise its optimum is a bound only.
    pub(super) plans_routes: bool,
    pub(super) latency: LatencyRule,
    /// Latest end of each operator in seconds, where a latency limit applies to it or after it.
    pub(super) deadline: Vec<Option<f64>>,
    /// Upper bound of the cost of any plan, in $/h: all workers, and all streams on their most expensive routes.
    pub(super) dearest: f64,
    /// Points of time, where the program is a flow over time (see [`Self::in_time`]).
    pub(super) grid: Option<TimeGrid>,
}

impl<'a> Prepared<'a> {
    /// Prepares a problem. All loads are multiplied by `strictness`, 1 or slightly more: where the plan of a solver's
    /// rounded point does not quite fit, that of a stricter program does.
    pub(super) fn new(
        problem: &'a Problem,
        rules: &[MemoryRule],
        latency: LatencyRule,
        strictness: f64,
    ) -> Result<Self, PlannerError> {
        Self::with_waits(problem, rules, latency, strictness, &WaitLevels::of(problem, false))
    }

    /// Prepares a problem with other waits to choose from.
    pub(super) fn with_waits(
        problem: &'a Problem,
        rules: &[MemoryRule],
        latency: LatencyRule,
        strictness: f64,
        waits: &WaitLevels,
    ) -> Result<Self, PlannerError> {
        let unsupported = |reason: String| PlannerError::Unsupported { planner: NAME.to_owned(), reason };
        if !problem.operators.is_empty() && problem.operators.iter().all(|operator| operator.weightless) {
            return Err(unsupported(
                "no operator needs a worker, so nothing decides the places of the others".to_owned(),
            ));
        }
        let classes = search_classes(problem, rules, waits);
        let mut prepared = Self {
            problem,
            choices: Vec::new(),
            classes,
            origins: Vec::new(),
            source_node: vec![None; problem.sources.len()],
            domains: Vec::new(),
            links: Vec::new(),
            tree: JunctionTree { cliques: Vec::new() },
            plans_routes: true,
            latency,
            deadline: own_deadlines(problem),
            grid: None,
            dearest: 0.0,
        };
        for origin in problem.origins().into_iter().filter(|origin| origin.locations.len() > 1) {
            for source in origin.sources {
                prepared.source_node[source] = Some(problem.operators.len() + prepared.origins.len());
            }
            prepared.origins.push(origin.locations);
        }
        prepared.choices = (0..problem.operators.len()).map(|v| prepared.choices_of(v)).collect();
        for choice in prepared.choices.iter_mut().flatten() {
            choice.load *= strictness;
            choice.wait_load *= strictness;
        }
        prepared.links = prepared.links();
        prepared.prune();
        let edges: Vec<(usize, usize)> = prepared.links.iter().map(|link| (link.from, link.to)).collect();
        prepared.tree = JunctionTree::new(prepared.nodes(), &edges);
        let size: f64 = prepared.large_cliques().map(|nodes| prepared.tuples_of(nodes)).sum();
        prepared.plans_routes = size <= MOST_ROUTE_COLUMNS;
        if !prepared.plans_routes && !prepared.origins.is_empty() {
            return Err(unsupported(format!(
                "streams from several locations meet so often that {size} route columns follow"
            )));
        }
        prepared.dearest = prepared.dearest();
        Ok(prepared)
    }

    pub(super) fn nodes(&self) -> usize {
        self.problem.operators.len() + self.origins.len()
    }

    /// Node that an edge comes from, unless it is a source with one location.
    pub(super) fn node_of(&self, producer: Producer) -> Option<usize> {
        match producer {
            Producer::Source(source) => self.source_node[source],
            Producer::Operator(operator) => Some(operator),
        }
    }

    /// Cliques of more than one link.
    pub(super) fn large_cliques(&self) -> impl Iterator<Item = &[usize]> {
        self.tree.cliques.iter().map(|clique| clique.nodes.as_slice()).filter(|nodes| nodes.len() > 2)
    }

    /// Whether memory is in the program.
    pub(super) fn has_memory(&self) -> bool {
        self.classes.iter().any(|class| class.memory.is_some())
    }

    /// Whether streams are split and joined again, so that flows per link need not combine into routes.
    pub(super) fn has_circles(&self) -> bool {
        self.large_cliques().next().is_some()
    }

    /// A copy with flows per link only: quicker, and a bound.
    pub(super) fn without_routes(&self) -> Self {
        Self { plans_routes: false, ..self.clone() }
    }

    fn tuples_of(&self, nodes: &[usize]) -> f64 {
        nodes.iter().map(|&node| self.domains[node].len() as f64).product()
    }

    /// Cost in $/h above that of any plan, even where all of them are free.
    pub(super) fn too_much(&self) -> f64 {
        self.dearest * (1.0 + 1e-6) + 1e-6
    }

    fn dearest(&self) -> f64 {
        let workers = self.problem.worker_classes.iter().map(|class| f64::from(class.count) * class.price);
        let streams = self.links.iter().map(|link| {
            let ways = self.domains[link.from].iter().flat_map(|from| {
                self.domains[link.to]
                    .iter()
                    .flat_map(move |to| (0..link.groups.len()).map(move |g| (g, *from, *to)))
            });
            ways.map(|(group, from, to)| self.link_cost(link, group, from, to)).fold(0.0, f64::max)
        });
        let sources = self.choices.iter().map(|of| of.iter().map(|c| c.source_cost).fold(0.0, f64::max));
        workers.sum::<f64>() + streams.sum::<f64>() + sources.sum::<f64>()
    }

    /// A copy with one variant of each operator.
    pub(super) fn only(&self, joint: &[usize]) -> Self {
        let mut one = self.clone();
        for (choices, variant) in one.choices.iter_mut().zip(joint) {
            choices.retain(|choice| choice.variant == *variant);
        }
        one.prune();
        one
    }

    /// Number of workers of a search class in a plan; with an operator, those for that one.
    pub(super) fn workers_of(&self, class: usize, operator: Option<usize>, plan: &Solution) -> u32 {
        let facts = &self.classes[class];
        let is_here = |(position, worker): (usize, &UsedWorker)| {
            let hosts = |hosting: &Hosting| {
                hosting.worker == Some(position)
                    && operator.is_none_or(|only| only == hosting.operator)
                    && (facts.wait.is_none() || hosting.wait_seconds == facts.wait)
            };
            worker.class == facts.class
                && facts.single.is_none_or(|single| single == worker.index)
                && plan.hostings.iter().any(hosts)
        };
        plan.workers.iter().enumerate().filter(|&worker| is_here(worker)).count() as u32
    }

    /// Whether an operator can be served at all.
    pub(super) fn is_servable(&self) -> bool {
        self.choices.iter().all(|choices| !choices.is_empty())
    }

    /// Price, in $/h, of all records of a link from one location to another with variants of that group.
    pub(super) fn link_cost(&self, link: &Link, group: usize, from: usize, to: usize) -> f64 {
        let route = self.problem.route(from, to).map_or(0.0, |route| route.price);
        self.link_bytes(link, group).iter().sum::<f64>() * SECONDS_PER_HOUR * route
    }

    /// Bytes per second of each edge of a link, with variants of that group.
    pub(super) fn link_bytes(&self, link: &Link, group: usize) -> Vec<f64> {
        let variant = link.groups[group].first().copied().unwrap_or(0);
        let edges = link.edges.iter().map(|&edge| &self.problem.edges[edge]);
        edges.map(|edge| edge.rate * edge.bytes[variant]).collect()
    }

    /// Seconds from one location to another for the slowest edge of a link: delay, and bytes over bandwidth.
    pub(super) fn link_seconds(&self, link: &Link, group: usize, from: usize, to: usize) -> f64 {
        let variant = link.groups[group].first().copied().unwrap_or(0);
        let bytes =
            link.edges.iter().map(|&edge| self.problem.edges[edge].bytes[variant]).fold(0.0, f64::max);
        transfer_seconds(self.problem, from, to, bytes)
    }

    fn choices_of(&self, operator: usize) -> Vec<Choice> {
        let problem = self.problem;
        let facts = &problem.operators[operator];
        let tick = problem.held_seconds(operator);
        let mut choices = Vec::new();
        let mut add = |choice: Choice| {
            if let Some((source_cost, source_latency)) = self.source_traffic(operator, choice.location) {
                choices.push(Choice { source_cost, source_latency, ..choice });
            }
        };
        let blank = |variant, class, location| Choice {
            variant,
            class,
            location,
            mode: 0,
            load: 0.0,
            wait_load: 0.0,
            latency: tick,
            memory: 0.0,
            source_cost: 0.0,
            source_latency: 0.0,
        };
        if facts.weightless {
            for variant in 0..facts.variants.len() {
                for location in 0..problem.locations.len() {
                    if self.classes.iter().any(|class| class.location == location) {
                        add(blank(variant, None, location));
                    }
                }
            }
            return choices;
        }
        let percentile = problem.limits.latency.iter().map(|limit| limit.percentile).fold(0.0, f64::max);
        for (variant, of_variant) in facts.variants.iter().enumerate() {
            for (class, search) in self.classes.iter().enumerate() {
                for (mode, service) in of_variant.modes[search.class].iter().enumerate() {
                    let capacity = problem.worker_classes[search.class].memory_bytes;
                    if capacity.is_some_and(|capacity| service.memory_bytes > capacity) {
                        continue;
                    }
                    let wait_seconds = match search.wait {
                        None => 0.0,
                        Some(wait) if self.is_bound_of(wait) => least_effective_seconds(service),
                        Some(wait) => match effective_seconds(service, decay_rate(wait, percentile)) {
                            None => continue,
                            Some(seconds) => seconds,
                        },
                    };
                    let counted_wait = match self.latency {
                        LatencyRule::Plan => search.wait,
                        LatencyRule::Bound => search.shortest,
                    };
                    let mut wait_load = facts.rate * wait_seconds;
                    let most_load = MOST_LOAD * f64::from(search.count);
                    if wait_load > most_load {
                        match self.latency {
                            LatencyRule::Plan => continue,
                            LatencyRule::Bound => wait_load = most_load, // less than it takes: still a bound
                        }
                    }
                    add(Choice {
                        mode,
                        load: facts.rate * service.seconds_per_record / problem.limits.max_utilization,
                        wait_load,
                        latency: tick
                            + service.fill_seconds
                            + service.call_seconds
                            + counted_wait.unwrap_or(0.0),
                        memory: service.memory_bytes,
                        ..blank(variant, Some(class), search.location)
                    });
                }
            }
        }
        choices
    }

    /// Whether a bound ignores this wait in the load, because it covers all longer ones.
    fn is_bound_of(&self, wait: f64) -> bool {
        self.latency == LatencyRule::Bound && wait >= LONGEST_WAIT
    }

    /// Cost and latency of the traffic from sources with one location; none without a route.
    fn source_traffic(&self, operator: usize, location: usize) -> Option<(f64, f64)> {
        let (mut cost, mut latency) = (0.0, 0.0f64);
        for edge in self.problem.edges.iter().filter(|edge| edge.to == operator) {
            let Producer::Source(source) = edge.from else { continue };
            if self.source_node[source].is_some() {
                continue;
            }
            let from = self.problem.sources[source].locations[0].0;
            let route = self.problem.route(from, location)?;
            cost += edge.rate * edge.bytes[0] * SECONDS_PER_HOUR * route.price;
            if !self.problem.is_reply(edge) {
                latency = latency.max(transfer_seconds(self.problem, from, location, edge.bytes[0]));
            }
        }
        Some((cost, latency))
    }

    fn links(&self) -> Vec<Link> {
        let mut links: Vec<Link> = Vec::new();
        for (index, edge) in self.problem.edges.iter().enumerate() {
            let Some(from) = self.node_of(edge.from) else { continue };
            match links.iter_mut().find(|link| (link.from, link.to) == (from, edge.to)) {
                Some(link) => link.edges.push(index),
                None => links.push(Link { from, to: edge.to, edges: vec![index], groups: Vec::new() }),
            }
        }
        for link in &mut links {
            let Some(operator) = self.problem.operators.get(link.from) else {
                link.groups.push(Vec::new());
                continue;
            };
            let sizes = |variant: usize| -> Vec<f64> {
                link.edges.iter().map(|&edge| self.problem.edges[edge].bytes[variant]).collect()
            };
            let mut groups: Vec<Vec<usize>> = Vec::new();
            for variant in 0..operator.variants.len() {
                match groups.iter_mut().find(|group| sizes(group[0]) == sizes(variant)) {
                    Some(group) => group.push(variant),
                    None => groups.push(vec![variant]),
                }
            }
            link.groups = groups;
        }
        links
    }

    /// Drops choices that cannot be part of a plan: no route in or out, or too slow even on the fastest path.
    fn prune(&mut self) {
        loop {
            self.domains = (0..self.nodes()).map(|node| self.locations_of(node)).collect();
            let before: usize = self.choices.iter().map(Vec::len).sum();
            let links = &self.links;
            let (problem, domains) = (self.problem, &self.domains);
            for (operator, choices) in self.choices.iter_mut().enumerate() {
                choices.retain(|choice| {
                    links.iter().all(|link| {
                        let reachable = |from: usize, to: usize| problem.route(from, to).is_some();
                        if link.to == operator {
                            domains[link.from].iter().any(|&from| reachable(from, choice.location))
                        } else if link.from == operator {
                            domains[link.to].iter().any(|&to| reachable(choice.location, to))
                        } else {
                            true
                        }
                    })
                });
            }
            self.prune_slow();
            if self.choices.iter().map(Vec::len).sum::<usize>() == before {
                return;
            }
        }
    }

    fn locations_of(&self, node: usize) -> Vec<usize> {
        let operators = self.problem.operators.len();
        let mut locations: Vec<usize> = if node < operators {
            self.choices[node].iter().map(|choice| choice.location).collect()
        } else {
            self.origins[node - operators].iter().map(|(location, _)| *location).collect()
        };
        locations.sort_unstable();
        locations.dedup();
        locations
    }

    fn prune_slow(&mut self) {
        if self.problem.limits.latency.is_empty() {
            return;
        }
        // Earliest start of each operator (transfers counted as 0), then latest end.
        let operators = self.problem.operators.len();
        let fastest =
            |choices: &[Choice]| choices.iter().map(|choice| choice.latency).fold(f64::INFINITY, f64::min);
        let mut begin = vec![0.0f64; operators];
        for operator in 0..operators {
            let end = begin[operator] + fastest(&self.choices[operator]);
            for edge in self.problem.outputs_of(operator) {
                let to = self.problem.edges[edge].to;
                begin[to] = begin[to].max(end);
            }
        }
        self.deadline = own_deadlines(self.problem);
        for operator in (0..operators).rev() {
            let Some(end) = self.deadline[operator] else { continue };
            let latest_begin = end - fastest(&self.choices[operator]);
            for edge in self.problem.inputs_of(operator) {
                if let Producer::Operator(producer) = self.problem.edges[edge].from {
                    let own = self.deadline[producer].unwrap_or(f64::INFINITY);
                    self.deadline[producer] = Some(own.min(latest_begin));
                }
            }
        }
        for (operator, choices) in self.choices.iter_mut().enumerate() {
            if let Some(deadline) = self.deadline[operator] {
                choices.retain(|choice| {
                    begin[operator].max(choice.source_latency) + choice.latency <= deadline + 1e-9
                });
            }
        }
    }
}

/// Transfer time of a record in seconds: the delay, plus bytes over bandwidth.
fn transfer_seconds(problem: &Problem, from: usize, to: usize, bytes: f64) -> f64 {
    problem.route(from, to).map_or(0.0, |route| {
        route.delay
            + route.bandwidth.map_or(0.0, |bandwidth| if bytes == 0.0 { 0.0 } else { bytes / bandwidth })
    })
}

/// The latency limits at each operator itself.
fn own_deadlines(problem: &Problem) -> Vec<Option<f64>> {
    let last = problem.last_operators();
    let operators = 0..problem.operators.len();
    operators
        .map(|operator| {
            let looks_at =
                |sink: Option<usize>| sink.map_or(last.contains(&operator), |sink| sink == operator);
            let limits = problem.limits.latency.iter().filter(|limit| looks_at(limit.sink));
            limits.map(|limit| problem.limits.path_seconds(limit)).reduce(f64::min)
        })
        .collect()
}

fn search_classes(problem: &Problem, rules: &[MemoryRule], waits: &WaitLevels) -> Vec<SearchClass> {
    let mut classes = Vec::new();
    for (class, facts) in problem.worker_classes.iter().enumerate().filter(|(_, facts)| facts.count > 0) {
        let rule = rules[class];
        let singles: Vec<Option<u32>> = match rule {
            MemoryRule::Single => (0..facts.count).map(Some).collect(),
            MemoryRule::SingleOf(most) => (0..facts.count.min(most)).map(Some).collect(),
            MemoryRule::Ignored | MemoryRule::Counted => vec![None],
        };
        for single in singles {
            for (wait, shortest) in waits.of_class(class) {
                classes.push(SearchClass {
                    class,
                    location: facts.location,
                    single,
                    wait,
                    shortest,
                    count: if single.is_some() { 1 } else { facts.count },
                    price: facts.price,
                    memory: if rule == MemoryRule::Ignored { None } else { facts.memory_bytes },
                });
            }
        }
    }
    classes
}
