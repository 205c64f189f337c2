//! Greedy assignment of operators to workers, shared by the heuristic planners: an operator takes worker after worker
//! until its rate is carried, and the records of a worker become route classes at once.
use crate::problem::{Problem, Producer, ServiceMode};
use crate::queueing::{decay_rate, effective_seconds};
use crate::solution::{Hosting, RouteClass, Solution, UsedWorker};

/// Shares of the key space below this count as zero.
const SHARE_TOLERANCE: f64 = 1e-11;
const SECONDS_PER_HOUR: f64 = 3600.0;
/// Most portions for proportional mixing; beyond, records are dealt out without splitting.
const MOST_PORTIONS: usize = 512;

/// The order in which workers are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Preference {
    /// Least cost of computing and of the traffic from the inputs (equation 5.2 of JellyBean).
    Cost,
    /// Least cost of computing, at any location.
    Compute,
    /// Least cost of the traffic from the inputs, then of computing.
    Traffic,
}

/// Routing of records from the workers of an operator to those of the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Routing {
    /// Every record may reach every location of the next operator, in proportion to the workers there, as JellyBean
    /// mixes them: so a location must be reachable from all.
    Proportional,
    /// Every worker takes the records that reach it at the least price.
    Cheapest,
}

/// The rule by which an operator gets its workers.
#[derive(Debug, Clone)]
pub(super) struct Rule {
    pub(super) preference: Preference,
    pub(super) routing: Routing,
    /// After every step, also try to finish with the one worker that carries the whole rest at the least added cost.
    pub(super) finishing: bool,
    /// Bound on the wait at a worker, where latency is bounded.
    pub(super) wait: Option<Wait>,
    /// Seconds that each operator may take for a record, excluding waits, so that the fastest path through it keeps the
    /// latency limits.
    pub(super) longest: Vec<f64>,
}

/// A bound on the waiting time at every worker.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Wait {
    /// Seconds of waiting.
    pub(super) seconds: f64,
    /// Percentile, in percent, for which it holds.
    pub(super) percentile: f64,
}

/// Operators assigned so far.
#[derive(Debug, Clone)]
pub(super) struct Assignment<'a> {
    problem: &'a Problem,
    variants: &'a [usize],
    workers: Vec<Worker>,
    hostings: Vec<Draft>,
    portions: Vec<Portion>,
    compute: f64,
    network: f64,
}

#[derive(Debug, Clone)]
struct Worker {
    used: UsedWorker,
    /// Free share of its time.
    free: f64,
    /// Share of its time that is free under the waiting-time bound, by effective seconds.
    free_of_waiting: f64,
    /// Free bytes.
    memory: f64,
}

#[derive(Debug, Clone)]
struct Draft {
    operator: usize,
    worker: Option<usize>,
    location: usize,
    mode: usize,
}

/// A share of the keys with one route so far.
#[derive(Debug, Clone)]
struct Portion {
    share: f64,
    sources: Vec<usize>,
    /// Hosting by operator; none: not assigned yet.
    hostings: Vec<Option<usize>>,
}

/// A worker that could run an operator.
#[derive(Debug, Clone)]
struct Candidate {
    worker: Option<usize>,
    class: usize,
    mode: usize,
    /// Share of the operator's records that it can carry.
    capacity: f64,
    /// Cost of computing all records of the operator on such workers, in $/h; 0 on one that is already paid.
    compute: f64,
    /// Price of the worker if it is not in use yet.
    added: f64,
    /// Price of the traffic from the inputs, for all records of the operator, in $/h.
    traffic: f64,
}

impl<'a> Assignment<'a> {
    /// Creates an empty assignment.
    pub(super) fn empty(problem: &'a Problem, variants: &'a [usize]) -> Self {
        let mut portions = vec![Portion {
            share: 1.0,
            sources: vec![0; problem.sources.len()],
            hostings: vec![None; problem.operators.len()],
        }];
        for origin in problem.origins() {
            portions = portions
                .iter()
                .flat_map(|portion| {
                    origin.locations.iter().filter(|(_, share)| *share > 0.0).map(|&(location, share)| {
                        let mut portion = portion.clone();
                        portion.share *= share;
                        origin.sources.iter().for_each(|&source| portion.sources[source] = location);
                        portion
                    })
                })
                .collect();
        }
        Self {
            problem,
            variants,
            workers: Vec::new(),
            hostings: Vec::new(),
            portions,
            compute: 0.0,
            network: 0.0,
        }
    }

    /// Cost so far, in $/h.
    pub(super) fn cost(&self) -> f64 {
        self.compute + self.network
    }

    /// Whether this costs the same as another and has the same workers in use.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let used = |assignment: &Self| {
            let mut used: Vec<(UsedWorker, Vec<usize>)> = assignment
                .workers
                .iter()
                .enumerate()
                .map(|(at, worker)| {
                    let hosted = assignment.hostings.iter().filter(|draft| draft.worker == Some(at));
                    (worker.used, hosted.map(|draft| draft.operator).collect())
                })
                .collect();
            used.sort_unstable();
            used
        };
        (self.cost() - other.cost()).abs() <= 1e-9 * self.cost() && used(self) == used(other)
    }

    /// Assigns an operator to workers of the allowed classes (`allowed[class]`), in every variation of the rule, while
    /// that costs less than `most`; `steps` counts the workers considered. Empty where its rate cannot be carried.
    pub(super) fn assign(
        &self,
        operator: usize,
        allowed: &[bool],
        rule: &Rule,
        most: f64,
        steps: &mut u64,
    ) -> Vec<Self> {
        if self.problem.operators[operator].weightless {
            return self.place_weightless(operator, allowed);
        }
        let mut found = Vec::new();
        let mut state = self.clone();
        let mut quotas: Vec<(usize, f64)> = Vec::new();
        let mut rest = 1.0;
        while rest > SHARE_TOLERANCE && state.cost() < most {
            *steps += 1;
            let candidates = state.candidates(operator, allowed, rule, &quotas);
            if rule.finishing {
                let covering = candidates.iter().filter(|candidate| candidate.capacity >= rest);
                let added = |candidate: &Candidate| candidate.added + rest * candidate.traffic;
                if let Some(last) = covering.min_by(|a, b| added(a).total_cmp(&added(b))) {
                    let (mut state, mut quotas) = (state.clone(), quotas.clone());
                    if state.take(operator, last, rest, rule, &mut quotas) >= rest - SHARE_TOLERANCE {
                        state.settle(operator, rule, &quotas);
                        found.push(state);
                    }
                }
            }
            let Some(next) = candidates.into_iter().min_by(|a, b| {
                let (a, b) = (a.rank(rule.preference), b.rank(rule.preference));
                a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1))
            }) else {
                break;
            };
            let taken = state.take(operator, &next, rest, rule, &mut quotas);
            if taken <= 0.0 {
                break;
            }
            rest -= taken;
        }
        if rest <= SHARE_TOLERANCE {
            state.settle(operator, rule, &quotas);
            found.push(state);
        }
        found
    }

    /// Workers that could run the operator: those in use with time left, and one new worker of each class.
    fn candidates(
        &self,
        operator: usize,
        allowed: &[bool],
        rule: &Rule,
        quotas: &[(usize, f64)],
    ) -> Vec<Candidate> {
        let mut fresh_index = vec![0u32; self.problem.worker_classes.len()];
        for worker in &self.workers {
            fresh_index[worker.used.class] += 1;
        }
        let traffic: Vec<Option<f64>> = (0..self.problem.locations.len())
            .map(|location| self.traffic_to(operator, location, rule.routing))
            .collect();
        let used = (0..self.workers.len())
            .filter(|_| !self.problem.limits.one_operator_per_worker)
            .filter(|&worker| {
                !quotas.iter().any(|(hosting, _)| self.hostings[*hosting].worker == Some(worker))
            })
            .map(|worker| (Some(worker), self.workers[worker].used.class));
        let fresh = (0..self.problem.worker_classes.len())
            .filter(|&class| fresh_index[class] < self.problem.worker_classes[class].count)
            .map(|class| (None, class));
        used.chain(fresh)
            .filter(|(_, class)| allowed[*class])
            .filter_map(|(worker, class)| {
                let traffic = traffic[self.problem.worker_classes[class].location]?;
                self.candidate(operator, worker, class, traffic, rule)
            })
            .collect()
    }

    fn candidate(
        &self,
        operator: usize,
        worker: Option<usize>,
        class: usize,
        traffic: f64,
        rule: &Rule,
    ) -> Option<Candidate> {
        let fresh;
        let state = match worker {
            Some(worker) => &self.workers[worker],
            None => {
                fresh = self.fresh(class);
                &fresh
            }
        };
        let rate = self.problem.operators[operator].rate;
        let modes = &self.problem.operators[operator].variants[self.variants[operator]].modes[class];
        let price = self.problem.worker_classes[class].price;
        let best = modes
            .iter()
            .enumerate()
            .filter(|(_, mode)| mode.memory_bytes <= state.memory)
            .filter(|(_, mode)| mode.fill_seconds + mode.call_seconds <= rule.longest[operator])
            .filter_map(|(index, mode)| {
                let (load, load_of_waiting) = loads(mode, rate, rule.wait)?;
                let share = |free: f64, load: f64| if load > 0.0 { free / load } else { f64::INFINITY };
                Some((index, share(state.free, load).min(share(state.free_of_waiting, load_of_waiting))))
            })
            .max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0)));
        let (mode, capacity) = best.filter(|(_, capacity)| *capacity > SHARE_TOLERANCE)?;
        let (compute, added) = if worker.is_some() { (0.0, 0.0) } else { (price / capacity, price) };
        Some(Candidate { worker, class, mode, capacity, compute, added, traffic })
    }

    fn fresh(&self, class: usize) -> Worker {
        let index = self.workers.iter().filter(|worker| worker.used.class == class).count() as u32;
        Worker {
            used: UsedWorker { class, index },
            free: self.problem.limits.max_utilization,
            free_of_waiting: 1.0,
            memory: self.problem.worker_classes[class].memory_bytes.unwrap_or(f64::INFINITY),
        }
    }

    /// Price of the traffic if all open records went to a location, in $/h for all records of the operator; none where
    /// the location cannot be used.
    fn traffic_to(&self, operator: usize, location: usize, routing: Routing) -> Option<f64> {
        let open = self.portions.iter().filter(|portion| portion.hostings[operator].is_none());
        match routing {
            Routing::Proportional => open
                .map(|portion| Some(portion.share * self.traffic_of(portion, operator, location)?))
                .sum::<Option<f64>>(),
            Routing::Cheapest => {
                // The average over the portions that reach it, among them those that the next worker there would take.
                let (mut share, mut cost) = (0.0, 0.0);
                for portion in open {
                    if let Some(traffic) = self.traffic_of(portion, operator, location) {
                        share += portion.share;
                        cost += portion.share * traffic;
                    }
                }
                (share > 0.0).then(|| cost / share)
            }
        }
    }

    /// Price of the traffic if all records of the operator took the route of this portion, in $/h.
    fn traffic_of(&self, portion: &Portion, operator: usize, to: usize) -> Option<f64> {
        let inputs = self.problem.edges.iter().enumerate().filter(|(_, edge)| edge.to == operator);
        inputs
            .map(|(index, edge)| {
                let from = match edge.from {
                    Producer::Source(source) => portion.sources[source],
                    // Operators are assigned in topological order.
                    Producer::Operator(producer) => self.hostings[portion.hostings[producer]?].location,
                };
                let bytes = self.problem.edge_bytes_per_second(index, self.variants);
                Some(self.problem.route(from, to)?.price * bytes * SECONDS_PER_HOUR)
            })
            .sum()
    }

    /// Assigns as much of the rest as a worker can carry; returns its share.
    fn take(
        &mut self,
        operator: usize,
        candidate: &Candidate,
        rest: f64,
        rule: &Rule,
        quotas: &mut Vec<(usize, f64)>,
    ) -> f64 {
        let quota = candidate.capacity.min(rest);
        let location = self.problem.worker_classes[candidate.class].location;
        let hosting = self.hostings.len();
        let taken = match rule.routing {
            Routing::Proportional => quota,
            Routing::Cheapest => self.deal(operator, hosting, location, quota),
        };
        if taken <= 0.0 {
            return 0.0;
        }
        let worker = candidate.worker.unwrap_or_else(|| {
            self.workers.push(self.fresh(candidate.class));
            self.compute += candidate.added;
            self.workers.len() - 1
        });
        let modes = &self.problem.operators[operator].variants[self.variants[operator]].modes;
        let mode = &modes[candidate.class][candidate.mode];
        if let Some((load, load_of_waiting)) = loads(mode, self.problem.operators[operator].rate, rule.wait) {
            let worker = &mut self.workers[worker];
            worker.free = (worker.free - taken * load).max(0.0);
            worker.free_of_waiting = (worker.free_of_waiting - taken * load_of_waiting).max(0.0);
            worker.memory -= mode.memory_bytes;
        }
        self.hostings.push(Draft { operator, worker: Some(worker), location, mode: candidate.mode });
        quotas.push((hosting, taken));
        taken
    }

    /// Routes open portions to a hosting at a location, cheapest first, up to a quota; returns the share routed.
    fn deal(&mut self, operator: usize, hosting: usize, location: usize, quota: f64) -> f64 {
        let mut open: Vec<(f64, usize)> = (0..self.portions.len())
            .filter(|&index| self.portions[index].hostings[operator].is_none())
            .filter_map(|index| Some((self.traffic_of(&self.portions[index], operator, location)?, index)))
            .collect();
        open.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let mut dealt = 0.0;
        for (traffic, index) in open {
            let room = quota - dealt;
            if room <= SHARE_TOLERANCE {
                break;
            }
            if self.portions[index].share > room + SHARE_TOLERANCE {
                let mut left = self.portions[index].clone();
                left.share -= room;
                self.portions.push(left);
                self.portions[index].share = room;
            }
            let portion = &mut self.portions[index];
            portion.hostings[operator] = Some(hosting);
            dealt += portion.share;
            self.network += portion.share * traffic;
        }
        dealt
    }

    /// Routes records to the workers taken, where that did not happen at once.
    fn settle(&mut self, operator: usize, rule: &Rule, quotas: &[(usize, f64)]) {
        if rule.routing == Routing::Cheapest {
            // Shares below the tolerance may still be open: they follow the last one that can take them.
            let last = quotas.last().map(|(hosting, _)| *hosting);
            self.portions
                .retain(|portion| portion.hostings[operator].is_some() || portion.share > SHARE_TOLERANCE);
            for portion in self.portions.iter_mut().filter(|portion| portion.hostings[operator].is_none()) {
                portion.hostings[operator] = last;
            }
            return;
        }
        let mut locations: Vec<usize> =
            quotas.iter().map(|(hosting, _)| self.hostings[*hosting].location).collect();
        locations.sort_unstable();
        locations.dedup();
        let share_of = |location: usize| -> f64 {
            let here = quotas.iter().filter(|(hosting, _)| self.hostings[*hosting].location == location);
            here.map(|(_, quota)| quota).sum()
        };
        let shares: Vec<f64> = locations.iter().map(|&location| share_of(location)).collect();
        if self.portions.len() * locations.len() <= MOST_PORTIONS {
            self.portions = self
                .portions
                .iter()
                .flat_map(|portion| {
                    shares.iter().map(|share| Portion { share: portion.share * share, ..portion.clone() })
                })
                .collect();
            // Portions alternate between the locations.
            let count = locations.len();
            for (at, &location) in locations.iter().enumerate() {
                let mine: Vec<usize> = (0..self.portions.len()).filter(|index| index % count == at).collect();
                self.deal_in_order(operator, mine, &self.hostings_at(location, quotas));
            }
        } else {
            let all: Vec<usize> = (0..self.portions.len()).collect();
            self.deal_in_order(operator, all, quotas);
        }
        let network: f64 = (0..self.portions.len())
            .filter_map(|index| {
                let portion = &self.portions[index];
                let location = self.hostings[portion.hostings[operator]?].location;
                Some(portion.share * self.traffic_of(portion, operator, location)?)
            })
            .sum();
        self.network += network;
    }

    fn hostings_at(&self, location: usize, quotas: &[(usize, f64)]) -> Vec<(usize, f64)> {
        quotas.iter().copied().filter(|(hosting, _)| self.hostings[*hosting].location == location).collect()
    }

    /// Assigns portions to hostings one after the other, splitting portions at the borders.
    fn deal_in_order(&mut self, operator: usize, portions: Vec<usize>, quotas: &[(usize, f64)]) {
        let mut quotas = quotas.iter().copied();
        let Some((mut hosting, mut room)) = quotas.next() else { return };
        let mut waiting: Vec<usize> = portions.into_iter().rev().collect();
        while let Some(index) = waiting.pop() {
            if room <= SHARE_TOLERANCE
                && let Some((next, quota)) = quotas.next()
            {
                (hosting, room) = (next, quota);
            }
            let has_next = quotas.len() > 0;
            let share = self.portions[index].share;
            if share > room + SHARE_TOLERANCE && has_next {
                let mut left = self.portions[index].clone();
                left.share -= room;
                self.portions[index].share = room;
                self.portions.push(left);
                waiting.push(self.portions.len() - 1);
            }
            room -= self.portions[index].share;
            self.portions[index].hostings[operator] = Some(hosting);
        }
    }

    /// Places a weightless operator: all of it at one location, or each portion where its inputs reach it at the least
    /// price.
    fn place_weightless(&self, operator: usize, allowed: &[bool]) -> Vec<Self> {
        let locations = self.problem.locations.len();
        let classes = &self.problem.worker_classes;
        let usable: Vec<usize> = (0..locations)
            .filter(|&location| {
                let mut here = classes.iter().zip(allowed).filter(|(class, _)| class.location == location);
                here.any(|(_, allowed)| *allowed) || !classes.iter().any(|class| class.location == location)
            })
            .collect();
        let choices = usable.iter().map(|&location| vec![location]);
        let choices: Vec<Vec<usize>> = choices.chain(std::iter::once(usable.clone())).collect();
        choices.iter().filter_map(|choice| self.place_at(operator, choice)).collect()
    }

    fn place_at(&self, operator: usize, locations: &[usize]) -> Option<Self> {
        let mut state = self.clone();
        let first = state.hostings.len();
        state.hostings.extend(locations.iter().map(|&location| Draft {
            operator,
            worker: None,
            location,
            mode: 0,
        }));
        for index in 0..state.portions.len() {
            let portion = &state.portions[index];
            let (traffic, at) = locations
                .iter()
                .enumerate()
                .filter_map(|(at, &location)| Some((self.traffic_of(portion, operator, location)?, at)))
                .min_by(|a, b| a.0.total_cmp(&b.0))?;
            state.network += portion.share * traffic;
            state.portions[index].hostings[operator] = Some(first + at);
        }
        Some(state)
    }

    /// Returns the plan, once every operator is assigned.
    pub(super) fn solution(&self, wait: Option<Wait>) -> Option<Solution> {
        let mut workers = Vec::new();
        let mut hostings: Vec<Hosting> = Vec::new();
        let mut new_worker: Vec<Option<usize>> = vec![None; self.workers.len()];
        let mut new_hosting: Vec<Option<usize>> = vec![None; self.hostings.len()];
        let mut classes: Vec<RouteClass> = Vec::new();
        for portion in self.portions.iter().filter(|portion| portion.share > SHARE_TOLERANCE) {
            let mut named = Vec::with_capacity(portion.hostings.len());
            for hosting in &portion.hostings {
                let old = (*hosting)?;
                let draft = &self.hostings[old];
                let new = *new_hosting[old].get_or_insert_with(|| {
                    let worker = draft.worker.map(|worker| {
                        *new_worker[worker].get_or_insert_with(|| {
                            workers.push(self.workers[worker].used);
                            workers.len() - 1
                        })
                    });
                    hostings.push(Hosting {
                        operator: draft.operator,
                        worker,
                        location: draft.location,
                        mode: draft.mode,
                        share: 0.0,
                        wait_seconds: wait.filter(|_| worker.is_some()).map(|wait| wait.seconds),
                        device: None,
                    });
                    hostings.len() - 1
                });
                named.push(new);
            }
            let known = |class: &&mut RouteClass| class.hostings == named && class.sources == portion.sources;
            match classes.iter_mut().find(known) {
                Some(class) => class.share += portion.share,
                None => classes.push(RouteClass {
                    share: portion.share,
                    sources: portion.sources.clone(),
                    hostings: named,
                }),
            }
        }
        let sum: f64 = classes.iter().map(|class| class.share).sum();
        for class in &mut classes {
            class.share /= sum;
            class.hostings.iter().for_each(|&hosting| hostings[hosting].share += class.share);
        }
        Some(Solution {
            variants: self.variants.to_vec(),
            workers: renumbered(workers),
            hostings,
            classes,
            fallbacks: Vec::new(),
        })
    }
}

/// Numbers workers of a class from 0, even where one of them was not needed in the end.
fn renumbered(mut workers: Vec<UsedWorker>) -> Vec<UsedWorker> {
    for at in 0..workers.len() {
        let class = workers[at].class;
        workers[at].index = workers[..at].iter().filter(|worker| worker.class == class).count() as u32;
    }
    workers
}

impl Candidate {
    fn rank(&self, preference: Preference) -> (f64, f64) {
        match preference {
            Preference::Cost => (self.compute + self.traffic, self.added),
            Preference::Compute => (self.compute, self.traffic),
            Preference::Traffic => (self.traffic, self.compute),
        }
    }
}

/// Load of all records of an operator in workers, by seconds per record and by the effective seconds of the
/// waiting-time bound; none where the bound cannot be kept.
fn loads(mode: &ServiceMode, rate: f64, wait: Option<Wait>) -> Option<(f64, f64)> {
    let load = rate * mode.seconds_per_record;
    match wait {
        None => Some((load, 0.0)),
        Some(wait) => {
            let effective = effective_seconds(mode, decay_rate(wait.seconds, wait.percentile))?;
            Some((load, rate * effective))
        }
    }
}
