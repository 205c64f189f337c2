//! Plans of whole routes under latency limits, for given variants: which choice a key takes at each operator, so that a
//! slow worker of one operator may be paired with a fast one of the next.
//!
//! Every tuple of choices that ends in time is a column; workers carry the sum of the routes. So nothing is relaxed and
//! nothing is stricter than the checker. The tuples are too many to be listed: those that the relaxation wants are found
//! one by one (column generation), as rows of its dual, which stays in the solver. Which route the dual lacks is a
//! cheapest path with a deadline, searched depth first among the choices that no other at the same place beats in
//! both price and time.
use super::live::Live;
use super::prepared::{Choice, Link, Prepared, SECONDS_PER_HOUR};
use super::program::{Column, Point, Program, SolverForm, Terms};
use crate::problem::Producer;
use crate::realise::{Lane, Part, Pattern, Placement, SMALL_SHARE, WorkerGroup};
use std::collections::{BTreeMap, BTreeSet};

/// Most rounds of looking for routes, and steps of one look.
const ROUNDS: usize = 300;
const MOST_STEPS: usize = 10_000;
/// Routes that are taken of one look.
const TAKEN: usize = 4;
/// A share of the keys that is not served costs so much, in $/h: more than any plan.
const UNSERVED: f64 = 1e6;

/// A way of keys through the plan: a location for each origin, a choice for each operator.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Route {
    origins: Vec<usize>,
    choices: Vec<usize>,
}

/// Workers that are rented together: of a search class, for one operator where workers are not shared.
pub(super) type Slot = (usize, Option<usize>);

/// All routes with given variants.
#[derive(Debug)]
pub(super) struct Routes<'a, 'b> {
    prepared: &'a Prepared<'b>,
    variants: Vec<usize>,
    /// Choices of the variant, by operator.
    open: Vec<Vec<usize>>,
    /// Links into each operator, with the group of the sender's variant.
    inputs: Vec<Vec<(usize, usize)>>,
    is_fed: Vec<bool>,
    pub(super) slots: Vec<Slot>,
    /// Those that were wanted so far.
    pub(super) known: BTreeSet<Route>,
}

/// What a route has to pay for.
#[derive(Debug)]
struct Prices {
    /// By slot: load, load of waiting.
    slots: Vec<[f64; 2]>,
    /// By pair of locations with a bandwidth.
    pairs: BTreeMap<(usize, usize), f64>,
    /// By origin and location.
    origins: Vec<BTreeMap<usize, f64>>,
    /// What a route may cost at most.
    most: f64,
}

/// A look for cheap routes.
struct Look<'r> {
    prices: &'r Prices,
    /// By operator: choices that nothing beats, cheapest first, with their price.
    choices: Vec<Vec<(f64, usize)>>,
    /// What operators from here on pay at least.
    least: Vec<f64>,
    found: Vec<(f64, Route)>,
    best: f64,
    steps: usize,
}

impl<'a, 'b> Routes<'a, 'b> {
    pub(super) fn new(prepared: &'a Prepared<'b>, variants: &[usize]) -> Self {
        let operators = 0..prepared.problem.operators.len();
        let group_of = |link: &Link| match variants.get(link.from) {
            Some(variant) => link.groups.iter().position(|group| group.contains(variant)).unwrap_or(0),
            None => 0,
        };
        let mut inputs: Vec<Vec<(usize, usize)>> = vec![Vec::new(); operators.len()];
        for (index, link) in prepared.links.iter().enumerate() {
            inputs[link.to].push((index, group_of(link)));
        }
        let is_fed = |operator: usize| {
            prepared.problem.inputs_of(operator).into_iter().any(|edge| {
                let from = prepared.problem.edges[edge].from;
                matches!(from, Producer::Source(source) if prepared.source_node[source].is_none())
            })
        };
        let open = |operator: usize| -> Vec<usize> {
            let choices = prepared.choices[operator].iter().enumerate();
            choices.filter(|(_, choice)| choice.variant == variants[operator]).map(|(i, _)| i).collect()
        };
        let open: Vec<Vec<usize>> = operators.clone().map(open).collect();
        let exclusive = prepared.problem.limits.one_operator_per_worker;
        let mut slots: Vec<Slot> = Vec::new();
        for (operator, choices) in open.iter().enumerate() {
            for class in choices.iter().filter_map(|&index| prepared.choices[operator][index].class) {
                let slot = (class, exclusive.then_some(operator));
                if !slots.contains(&slot) {
                    slots.push(slot);
                }
            }
        }
        slots.sort_unstable();
        let is_fed = operators.map(is_fed).collect();
        Self { prepared, variants: variants.to_vec(), open, inputs, is_fed, slots, known: BTreeSet::new() }
    }

    fn choice(&self, route: &Route, operator: usize) -> &'a Choice {
        let prepared: &'a Prepared<'b> = self.prepared;
        &prepared.choices[operator][route.choices[operator]]
    }

    fn slot(&self, operator: usize, choice: &Choice) -> Option<usize> {
        let exclusive = self.prepared.problem.limits.one_operator_per_worker;
        let slot = (choice.class?, exclusive.then_some(operator));
        self.slots.binary_search(&slot).ok()
    }

    /// Bytes per second of all keys on a link, and from sources to an operator.
    fn sent(&self, route: &Route) -> BTreeMap<(usize, usize), f64> {
        let problem = self.prepared.problem;
        let mut sent = BTreeMap::new();
        for (operator, inputs) in self.inputs.iter().enumerate() {
            let to = self.choice(route, operator).location;
            for &(link, group) in inputs {
                let facts = &self.prepared.links[link];
                let from = self.sender(facts, &route.origins, |before| self.choice(route, before).location);
                let bytes: f64 = self.prepared.link_bytes(facts, group).iter().sum();
                *sent.entry((from, to)).or_default() += bytes;
            }
            for edge in problem.inputs_of(operator) {
                let edge = &problem.edges[edge];
                if let Producer::Source(source) = edge.from
                    && self.prepared.source_node[source].is_none()
                {
                    let from = problem.sources[source].locations[0].0;
                    *sent.entry((from, to)).or_default() += edge.rate * edge.bytes[0];
                }
            }
        }
        sent
    }

    fn sender(&self, link: &Link, origins: &[usize], location: impl Fn(usize) -> usize) -> usize {
        match link.from.checked_sub(self.open.len()) {
            Some(origin) => origins[origin],
            None => location(link.from),
        }
    }

    /// Cost of the traffic if all keys went this way, in $/h.
    fn cost(&self, route: &Route) -> f64 {
        let price = |(from, to)| self.prepared.problem.route(from, to).map_or(0.0, |route| route.price);
        self.sent(route).into_iter().map(|(pair, bytes)| bytes * SECONDS_PER_HOUR * price(pair)).sum()
    }

    /// Loads of each slot if all keys went this way.
    fn loads(&self, route: &Route) -> Vec<[f64; 2]> {
        let mut loads = vec![[0.0; 2]; self.slots.len()];
        for operator in 0..self.open.len() {
            let choice = self.choice(route, operator);
            if let Some(slot) = self.slot(operator, choice) {
                loads[slot][0] += choice.load;
                loads[slot][1] += choice.wait_load;
            }
        }
        loads
    }

    /// Share of the bandwidth that a byte per second takes, and the pairs that have one.
    fn of_bandwidth(&self, from: usize, to: usize) -> Option<f64> {
        let bandwidth = self.prepared.problem.route(from, to)?.bandwidth?;
        Some(if bandwidth > 0.0 { 1.0 / bandwidth } else { 1.0 })
    }

    /// Routes that cost less than they may, the cheapest last; whether there is no cheaper one.
    fn look(&self, prices: &Prices) -> (Vec<(f64, Route)>, bool) {
        let price = |operator: usize, choice: &Choice| {
            let slot = self.slot(operator, choice).map_or([0.0; 2], |slot| prices.slots[slot]);
            slot[0] * choice.load + slot[1] * choice.wait_load
        };
        let mut choices: Vec<Vec<(f64, usize)>> = Vec::new();
        for (operator, open) in self.open.iter().enumerate() {
            let mut all: Vec<(f64, usize)> =
                open.iter().map(|&i| (price(operator, &self.prepared.choices[operator][i]), i)).collect();
            all.sort_by(|a, b| a.0.total_cmp(&b.0));
            let mut kept: Vec<(f64, usize)> = Vec::new();
            for (price, index) in all {
                let own = &self.prepared.choices[operator][index];
                let beats = |other: &(f64, usize)| {
                    let other = &self.prepared.choices[operator][other.1];
                    other.location == own.location && other.latency <= own.latency
                };
                if !kept.iter().any(beats) {
                    kept.push((price, index));
                }
            }
            choices.push(kept);
        }
        let mut least = vec![0.0; choices.len() + 1];
        for operator in (0..choices.len()).rev() {
            least[operator] =
                least[operator + 1] + choices[operator].first().map_or(0.0, |(price, _)| *price);
        }
        let mut look = Look { prices, choices, least, found: Vec::new(), best: prices.most, steps: 0 };
        self.descend(&mut look, &mut Vec::new(), &mut Vec::new(), &mut Vec::new(), 0.0);
        (look.found, look.steps <= MOST_STEPS)
    }

    fn descend(
        &self,
        look: &mut Look<'_>,
        origins: &mut Vec<usize>,
        choices: &mut Vec<usize>,
        ends: &mut Vec<f64>,
        paid: f64,
    ) {
        look.steps += 1;
        if look.steps > MOST_STEPS {
            return;
        }
        if origins.len() < self.prepared.origins.len() {
            let locations = look.prices.origins[origins.len()].clone();
            for (location, price) in locations {
                origins.push(location);
                self.descend(look, origins, choices, ends, paid - price);
                origins.pop();
            }
            return;
        }
        let operator = choices.len();
        if operator == self.open.len() {
            if paid < look.best {
                look.best = paid;
                look.found.push((paid, Route { origins: origins.clone(), choices: choices.clone() }));
            }
            return;
        }
        for at in 0..look.choices[operator].len() {
            let (price, index) = look.choices[operator][at];
            if paid + price + look.least[operator + 1] >= look.best {
                break; // all after it are dearer
            }
            let choice = &self.prepared.choices[operator][index];
            let Some((begin, traffic)) = self.arrival(look.prices, operator, choice, origins, choices, ends)
            else {
                continue;
            };
            let end = begin + choice.latency;
            if self.prepared.deadline[operator].is_some_and(|deadline| end > deadline + 1e-9)
                || paid + price + traffic + look.least[operator + 1] >= look.best
            {
                continue;
            }
            choices.push(index);
            ends.push(end);
            self.descend(look, origins, choices, ends, paid + price + traffic);
            choices.pop();
            ends.pop();
        }
    }

    /// When the last input of an operator has come to a choice, and what that traffic pays; none where no route leads.
    fn arrival(
        &self,
        prices: &Prices,
        operator: usize,
        choice: &Choice,
        origins: &[usize],
        choices: &[usize],
        ends: &[f64],
    ) -> Option<(f64, f64)> {
        let mut begin = if self.is_fed[operator] { choice.source_latency } else { 0.0 };
        let mut paid = choice.source_cost;
        let scarce = |from: usize, bytes: f64| {
            let price = prices.pairs.get(&(from, choice.location)).copied().unwrap_or(0.0);
            if price == 0.0 {
                return 0.0;
            }
            price * bytes * self.of_bandwidth(from, choice.location).unwrap_or(0.0)
        };
        for &(link, group) in &self.inputs[operator] {
            let facts = &self.prepared.links[link];
            let from =
                self.sender(facts, origins, |before| self.prepared.choices[before][choices[before]].location);
            self.prepared.problem.route(from, choice.location)?;
            let before = if facts.from < ends.len() { ends[facts.from] } else { 0.0 };
            begin = begin.max(before + self.prepared.link_seconds(facts, group, from, choice.location));
            paid += self.prepared.link_cost(facts, group, from, choice.location);
            if !prices.pairs.is_empty() {
                paid += scarce(from, self.prepared.link_bytes(facts, group).iter().sum());
            }
        }
        if !prices.pairs.is_empty() && self.is_fed[operator] {
            let problem = self.prepared.problem;
            for edge in problem.inputs_of(operator).into_iter().map(|edge| &problem.edges[edge]) {
                if let Producer::Source(source) = edge.from
                    && self.prepared.source_node[source].is_none()
                {
                    paid += scarce(problem.sources[source].locations[0].0, edge.rate * edge.bytes[0]);
                }
            }
        }
        Some((begin, paid))
    }

    /// The dual of the relaxation without any route, with so many workers by slot: what its columns mean, and the program.
    fn dual(&self, workers: &Workers) -> (Program, DualColumns) {
        let problem = self.prepared.problem;
        let mut program = Program::default();
        let key = program.real(-1.0, 0.0, UNSERVED);
        let slots: Vec<[Column; 2]> =
            self.slots.iter().map(|_| [0, 1].map(|_| program.real(0.0, 0.0, UNSERVED))).collect();
        let classes: Vec<Column> =
            problem.worker_classes.iter().map(|c| program.real(f64::from(c.count), 0.0, UNSERVED)).collect();
        let locations = 0..problem.locations.len();
        let mut pairs = BTreeMap::new();
        for (from, to) in locations.clone().flat_map(|from| locations.clone().map(move |to| (from, to))) {
            if let Some(bandwidth) = problem.route(from, to).and_then(|route| route.bandwidth) {
                let most = if bandwidth > 0.0 { 1.0 } else { 0.0 };
                pairs.insert((from, to), program.real(most, 0.0, UNSERVED));
            }
        }
        let origins = self.prepared.origins.iter();
        let mut origin = |of: &Vec<(usize, f64)>| -> BTreeMap<usize, Column> {
            of.iter().map(|&(at, share)| (at, program.real(-share, -UNSERVED, UNSERVED))).collect()
        };
        let origins: Vec<BTreeMap<usize, Column>> = origins.map(&mut origin).collect();
        for (index, &(class, _)) in self.slots.iter().enumerate() {
            let facts = &self.prepared.classes[class];
            let [load, wait] = slots[index];
            let most = program.real(f64::from(workers.high[index]), 0.0, UNSERVED);
            let least = program.real(-f64::from(workers.low[index]), 0.0, UNSERVED);
            let terms =
                vec![(load, 1.0), (wait, 1.0), (classes[facts.class], -1.0), (most, -1.0), (least, 1.0)];
            program.at_most(terms, facts.price);
        }
        (program, DualColumns { key, slots, pairs, origins })
    }

    /// Any number of workers that there are.
    pub(super) fn all_workers(&self) -> Workers {
        let high = self.slots.iter().map(|&(class, _)| self.prepared.classes[class].count).collect();
        Workers { low: vec![0; self.slots.len()], high }
    }

    /// Looks for the routes that the relaxation wants with so many workers; what it costs, infinite where the rates cannot
    /// be served; none where that is not known in time. Where it is at least `enough`, that or a little less will do.
    pub(super) fn generate(
        &mut self,
        workers: &Workers,
        enough: f64,
        seconds: &impl Fn() -> f64,
    ) -> Option<f64> {
        let (mut program, columns) = self.dual(workers);
        for route in &self.known {
            program.at_least(self.row(&columns, route), -self.cost(route));
        }
        let form = SolverForm::of(&program, true)?;
        let mut live = Live::new(&form, seconds()).ok()?;
        let mut waiting: Vec<Route> = Vec::new();
        for _ in 0..ROUNDS {
            for route in waiting.drain(..) {
                live = live.with_row(&form, &self.row(&columns, &route), -self.cost(&route)).ok()?;
                self.known.insert(route);
            }
            if seconds() <= 0.0 {
                return None;
            }
            let value = |column: Column| live.value(&form, column).unwrap_or(form.given(column));
            let prices = Prices {
                slots: columns.slots.iter().map(|of| of.map(|column| value(column).max(0.0))).collect(),
                pairs: columns.pairs.iter().map(|(&pair, &column)| (pair, value(column).max(0.0))).collect(),
                origins: columns
                    .origins
                    .iter()
                    .map(|of| of.iter().map(|(&at, &column)| (at, value(column))).collect())
                    .collect(),
                most: value(columns.key) - 1e-7 * value(columns.key).abs().max(1.0),
            };
            let (found, is_whole) = self.look(&prices);
            // All keys together gain at most what the cheapest route gains.
            let gained = found.last().map_or(0.0, |(paid, _)| value(columns.key) - paid);
            let least = -live.cost(&form) - gained;
            if is_whole && least >= enough && !found.is_empty() {
                return Some(least);
            }
            if found.is_empty() {
                let cost = -live.cost(&form);
                return Some(if value(columns.key) > 0.5 * UNSERVED { f64::INFINITY } else { cost });
            }
            let last = found.len().saturating_sub(TAKEN);
            waiting.extend(found.into_iter().skip(last).map(|(_, route)| route));
            waiting.retain(|route| !self.known.contains(route));
            if waiting.is_empty() {
                return None; // rounding: it is there already
            }
        }
        None
    }

    /// `prices of the route - key >= -cost`.
    fn row(&self, columns: &DualColumns, route: &Route) -> Terms {
        let mut terms: Terms = vec![(columns.key, -1.0)];
        for (of_slot, loads) in columns.slots.iter().zip(self.loads(route)) {
            terms.extend(
                of_slot.iter().zip(loads).filter(|(_, load)| *load > 0.0).map(|(c, load)| (*c, load)),
            );
        }
        for ((from, to), bytes) in self.sent(route) {
            if let Some(column) = columns.pairs.get(&(from, to)) {
                terms.push((*column, bytes * self.of_bandwidth(from, to).unwrap_or(0.0)));
            }
        }
        for (of_origin, at) in columns.origins.iter().zip(&route.origins) {
            terms.extend(of_origin.get(at).map(|column| (*column, -1.0)));
        }
        terms
    }

    /// The program over the routes that are known: a column for each, in their order, then workers by slot.
    pub(super) fn program(&self, workers: &Workers) -> (Program, Vec<Column>, Vec<Column>) {
        let problem = self.prepared.problem;
        let mut program = Program::default();
        let columns: Vec<Column> =
            self.known.iter().map(|route| program.real(self.cost(route), 0.0, 1.0)).collect();
        program.equal(columns.iter().map(|column| (*column, 1.0)).collect(), 1.0);
        for (origin, locations) in self.prepared.origins.iter().enumerate() {
            for &(location, share) in locations {
                let there = self.known.iter().zip(&columns).filter(|(r, _)| r.origins[origin] == location);
                program.equal(there.map(|(_, column)| (*column, 1.0)).collect(), share);
            }
        }
        let mut of_slot: Vec<[Terms; 3]> = vec![Default::default(); self.slots.len()];
        let mut of_pair: BTreeMap<(usize, usize), Terms> = BTreeMap::new();
        for (route, &column) in self.known.iter().zip(&columns) {
            for (terms, loads) in of_slot.iter_mut().zip(self.loads(route)) {
                terms[0].push((column, loads[0]));
                terms[1].push((column, loads[1]));
            }
            for operator in 0..self.open.len() {
                if let Some(slot) = self.slot(operator, self.choice(route, operator)) {
                    of_slot[slot][2].push((column, 1.0));
                }
            }
            for ((from, to), bytes) in self.sent(route) {
                if let Some(part) = self.of_bandwidth(from, to) {
                    of_pair.entry((from, to)).or_default().push((column, bytes * part));
                }
            }
        }
        for ((from, to), terms) in of_pair {
            let is_open = problem.route(from, to).and_then(|route| route.bandwidth).is_some_and(|b| b > 0.0);
            program.at_most(terms, if is_open { 1.0 } else { 0.0 });
        }
        let mut counts = Vec::new();
        let mut of_class: BTreeMap<usize, Terms> = BTreeMap::new();
        for (slot, (&(class, _), [loads, waits, uses])) in self.slots.iter().zip(of_slot).enumerate() {
            let facts = &self.prepared.classes[class];
            let count = program.integer(facts.price, workers.low[slot], workers.high[slot]);
            counts.push(count);
            of_class.entry(facts.class).or_default().push((count, 1.0));
            let rows = [(loads, 1.0), (waits, 1.0), (uses, self.open.len() as f64)];
            for (mut terms, factor) in rows {
                terms.push((count, -factor));
                program.at_most(terms, 0.0);
            }
        }
        for (class, terms) in of_class {
            program.at_most(terms, f64::from(problem.worker_classes[class].count));
        }
        (program, columns, counts)
    }

    /// The placement that a point of that program means.
    pub(super) fn placement(&self, columns: &[Column], counts: &[Column], point: &Point) -> Placement {
        let routes = self.known.iter().zip(columns).map(|(route, column)| (route, point.values[*column]));
        let routes: Vec<(&Route, f64)> = routes.filter(|(_, share)| *share > SMALL_SHARE).collect();
        let mut groups = Vec::new();
        let mut group_of = vec![0; self.slots.len()];
        for (slot, (&(class, _), count)) in self.slots.iter().zip(counts).enumerate() {
            let facts = &self.prepared.classes[class];
            let mut parts: BTreeMap<(usize, usize), f64> = BTreeMap::new();
            for (route, share) in &routes {
                for operator in 0..self.open.len() {
                    let choice = self.choice(route, operator);
                    if self.slot(operator, choice) == Some(slot) {
                        *parts.entry((operator, choice.mode)).or_default() += share;
                    }
                }
            }
            let parts: Vec<Part> =
                parts.into_iter().map(|((operator, mode), share)| Part { operator, mode, share }).collect();
            if !parts.is_empty() {
                group_of[slot] = groups.len();
                let count = point.values[*count].round() as u32;
                groups.push(WorkerGroup { class: facts.class, count, wait_seconds: facts.wait, parts });
            }
        }
        let pattern = |(route, share): (&Route, f64)| {
            let lane = |operator: usize| {
                let choice = self.choice(route, operator);
                self.slot(operator, choice).map(|slot| Lane { group: group_of[slot], mode: choice.mode })
            };
            let source = |source: usize| match self.prepared.source_node[source] {
                Some(node) => route.origins[node - self.open.len()],
                None => self.prepared.problem.sources[source].locations[0].0,
            };
            Pattern {
                share,
                sources: (0..self.prepared.problem.sources.len()).map(source).collect(),
                operators: (0..self.open.len()).map(|v| self.choice(route, v).location).collect(),
                lanes: (0..self.open.len()).map(lane).collect(),
            }
        };
        let patterns = routes.iter().copied().map(pattern).collect();
        Placement { variants: self.variants.clone(), groups, patterns }
    }
}

/// What the columns of the dual are prices of.
#[derive(Debug)]
struct DualColumns {
    key: Column,
    slots: Vec<[Column; 2]>,
    pairs: BTreeMap<(usize, usize), Column>,
    origins: Vec<BTreeMap<usize, Column>>,
}

/// Fewest and most workers by slot.
#[derive(Debug, Clone)]
pub(super) struct Workers {
    pub(super) low: Vec<u32>,
    pub(super) high: Vec<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generator::small_problem_with_latency;
    use crate::planner::{Planner, SearchLimits};
    use crate::planners::exact::prepared::{LatencyRule, MemoryRule};
    use crate::planners::exhaustive::Exhaustive;

    /// What no plan undercuts with the variants of the cheapest plan, and that routes with them are found.
    #[test]
    fn the_relaxation_over_routes_is_below_the_cheapest_plan() {
        let mut compared = 0;
        for seed in 1..=60 {
            let problem = small_problem_with_latency(seed);
            let outcome = Exhaustive.plan(&problem, &SearchLimits::default()).expect("it takes the problem");
            let (Some(cost), Some(solution)) = (outcome.cost, outcome.solution) else { continue };
            let rules = vec![MemoryRule::Ignored; problem.worker_classes.len()];
            let Ok(prepared) = Prepared::new(&problem, &rules, LatencyRule::Budgets, 1.0) else { continue };
            let mut routes = Routes::new(&prepared, &solution.variants);
            let Some(least) = routes.generate(&routes.all_workers(), f64::INFINITY, &|| f64::INFINITY) else {
                continue;
            };
            assert!(least <= cost + 1e-6 * cost.max(1.0), "seed {seed}: {least} above {cost}");
            assert!(!routes.known.is_empty());
            compared += 1;
        }
        assert!(compared > 10, "{compared} compared");
    }
}
