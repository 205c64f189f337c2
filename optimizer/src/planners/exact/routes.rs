//! Plans of whole routes under latency limits, for given variants: a route is the choice of a key at each operator, so
//! a slow worker of one operator may be paired with a fast one of the next.
//!
//! Every tuple of choices that ends in time is a column; workers carry the sum of the routes. So the program is neither
//! looser nor stricter than the checker. The tuples are too many to list: those that the relaxation needs are found one
//! by one (column generation), as rows of its dual, which stays in the solver. The missing row is a cheapest path with
//! a deadline (`exact/route_search.rs`). The prices of the dual also bound other variants and flows
//! (`exact/routes/prices.rs`).
mod prices;

use super::live::Live;
use super::prepared::{Choice, Link, Prepared, SECONDS_PER_HOUR};
use super::program::{Column, Point, Program, SolverForm, Terms};
use super::route_search::RouteSearch;
use super::tuning::{
    FIRST_ROUTES, PRICING, PRICING_ROUNDS, PROBING_ROUNDS, UNSERVED, UNSERVED_OF_INCUMBENT,
    UNSERVED_OF_MOST_EXPENSIVE,
};
use crate::problem::Producer;
use crate::realise::{Lane, Part, Pattern, Placement, SMALL_SHARE, WorkerGroup};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

pub(super) use prices::Prices;

/// Routes with their rows in the dual and the cost of their traffic.
pub(super) type KnownRoutes = BTreeMap<Route, (Terms, f64)>;

/// The route of keys through the plan: a location for each origin, a choice for each operator.
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
    search: RouteSearch,
    pub(super) slots: Vec<Slot>,
    /// Routes generated so far.
    pub(super) known: KnownRoutes,
    /// The last point of the dual.
    last: Vec<f64>,
    /// Prices of the last relaxation, and whether they include every cheaper route.
    pub(super) prices: Option<Prices>,
    pub(super) is_bound: bool,
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
        let is_fed: Vec<bool> = operators.map(is_fed).collect();
        let fastest = |node: usize, location: usize| {
            let Some(open) = open.get(node) else { return Some(0.0) };
            let there = open.iter().map(|&index| &prepared.choices[node][index]);
            there.filter(|choice| choice.location == location).map(|choice| choice.latency).reduce(f64::min)
        };
        let search = RouteSearch::new(prepared, &inputs, fastest);
        Self {
            search,
            prepared,
            variants: variants.to_vec(),
            open,
            inputs,
            is_fed,
            slots,
            known: KnownRoutes::new(),
            last: Vec::new(),
            prices: None,
            is_bound: false,
        }
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

    /// Cost of the traffic if all keys took this route, in $/h.
    fn cost(&self, route: &Route) -> f64 {
        let price = |(from, to)| self.prepared.problem.route(from, to).map_or(0.0, |route| route.price);
        self.sent(route).into_iter().map(|(pair, bytes)| bytes * SECONDS_PER_HOUR * price(pair)).sum()
    }

    /// Loads of each slot if all keys took this route.
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

    /// Share of the bandwidth that a byte per second takes; none without a bandwidth.
    fn of_bandwidth(&self, from: usize, to: usize) -> Option<f64> {
        let bandwidth = self.prepared.problem.route(from, to)?.bandwidth?;
        Some(if bandwidth > 0.0 { 1.0 / bandwidth } else { 1.0 })
    }

    /// The dual of the relaxation without any route, with these workers by slot: the meaning of its columns, and the
    /// program.
    fn dual(&self, workers: &Workers) -> (Program, DualColumns) {
        let problem = self.prepared.problem;
        let mut program = Program::default();
        let unserved = self.unserved();
        let key = program.real(-1.0, 0.0, workers.unserved.min(unserved));
        let slots: Vec<[Column; 2]> =
            self.slots.iter().map(|_| [0, 1].map(|_| program.real(0.0, 0.0, unserved))).collect();
        let classes: Vec<Column> =
            problem.worker_classes.iter().map(|c| program.real(f64::from(c.count), 0.0, unserved)).collect();
        let locations = 0..problem.locations.len();
        let mut pairs = BTreeMap::new();
        for (from, to) in locations.clone().flat_map(|from| locations.clone().map(move |to| (from, to))) {
            if let Some(bandwidth) = problem.route(from, to).and_then(|route| route.bandwidth) {
                let most = if bandwidth > 0.0 { 1.0 } else { 0.0 };
                pairs.insert((from, to), program.real(most, 0.0, unserved));
            }
        }
        let origins = self.prepared.origins.iter();
        let mut origin = |of: &Vec<(usize, f64)>| -> BTreeMap<usize, Column> {
            // All of them and the key can rise together, so the first stays at 0.
            let most = |index: usize| if index == 0 { 0.0 } else { unserved };
            let column = |(index, &(at, share)): (usize, &(usize, f64))| {
                (at, program.real(-share, -most(index), most(index)))
            };
            of.iter().enumerate().map(column).collect()
        };
        let origins: Vec<BTreeMap<usize, Column>> = origins.map(&mut origin).collect();
        for (index, &(class, _)) in self.slots.iter().enumerate() {
            let facts = &self.prepared.classes[class];
            let [load, wait] = slots[index];
            let most = program.real(workers.high[index], 0.0, unserved);
            let least = program.real(-workers.low[index], 0.0, unserved);

            let terms =
                vec![(load, 1.0), (wait, 1.0), (classes[facts.class], -1.0), (most, -1.0), (least, 1.0)];
            program.at_most(terms, facts.price);
        }
        (program, DualColumns { key, slots, classes, pairs, origins })
    }

    fn unserved(&self) -> f64 {
        UNSERVED.max(UNSERVED_OF_MOST_EXPENSIVE * self.prepared.dearest)
    }

    /// Any number of workers up to those available.
    pub(super) fn all_workers(&self) -> Workers {
        let count = |&(class, _): &Slot| f64::from(self.prepared.classes[class].count);
        let high = self.slots.iter().map(count).collect();
        Workers { low: vec![0.0; self.slots.len()], high, unserved: self.unserved() }
    }

    /// Generates the routes that the relaxation needs with these workers. Returns its cost: infinite where the rates
    /// cannot be served, none where time ran out. Where it is at least `enough`, that or slightly less is returned.
    pub(super) fn generate(
        &mut self,
        workers: &Workers,
        enough: f64,
        seconds: &impl Fn() -> f64,
    ) -> Option<f64> {
        self.generate_until(workers, f64::NEG_INFINITY..enough, PRICING_ROUNDS, seconds)
    }

    /// Whether the relaxation with these workers costs at least `enough`; false where time ran out.
    pub(super) fn costs(&mut self, workers: &Workers, enough: f64, seconds: &impl Fn() -> f64) -> bool {
        let cost = self.generate_until(workers, enough..enough, PROBING_ROUNDS, seconds);
        self.is_bound && cost.is_some_and(|cost| cost >= enough)
    }

    /// See [`Self::generate`]; it ends where the relaxation costs at least the end of the range or, without a bound,
    /// less than its start.
    fn generate_until(
        &mut self,
        workers: &Workers,
        asked: Range<f64>,
        rounds: usize,
        seconds: &impl Fn() -> f64,
    ) -> Option<f64> {
        self.is_bound = false;
        if self.known.is_empty() {
            self.begin_with(None);
        }
        let (mut program, columns) = self.dual(workers);
        let mut inside: BTreeSet<Route> = BTreeSet::new();
        for route in self.nearest() {
            let (terms, cost) = &self.known[&route];
            program.at_least(terms.clone(), -cost);
            inside.insert(route);
        }
        let form = SolverForm::of(&program, true)?;
        let mut live = Live::new(&form, seconds()).ok()?;
        let mut waiting: Vec<Route> = Vec::new();
        for _ in 0..rounds {
            for route in waiting.drain(..) {
                let row = self.row(&columns, &route);
                live = live.with_row(&form, &row.0, -row.1).ok()?;
                self.known.insert(route.clone(), row);
                inside.insert(route);
            }
            if seconds() <= 0.0 {
                return None;
            }
            let value = |column: Column| live.value(&form, column).unwrap_or(form.given(column));
            let key = value(columns.key);
            let cost = -live.cost(&form);
            if cost < asked.start {
                return Some(cost); // it costs no more: there may be cheaper routes
            }
            let prices = self.prices_of(&columns, cost - key, value);
            let tolerance = 1e-7 * key.abs().max(1.0);
            let (found, is_whole) = self.look(&prices, key - tolerance, PRICING);
            self.prices = Some(prices);
            self.last = live.values(&form);
            // All keys together gain at most the gain of the cheapest route.
            let gained = found.last().map_or(0.0, |(paid, _)| key - paid);
            if is_whole && cost - gained >= asked.end && !found.is_empty() {
                self.is_bound = true;
                return Some(cost - gained);
            }
            if found.is_empty() {
                self.is_bound = is_whole;
                // Routes that are cheaper by less than the tolerance were not searched for.
                let least = cost - tolerance;
                if let Some(prices) = &mut self.prices {
                    prices.key -= tolerance;
                }
                let is_served = least <= self.prepared.too_much();
                return Some(if is_served { least } else { f64::INFINITY });
            }
            waiting.extend(found.into_iter().map(|(_, route)| route));
            waiting.retain(|route| !inside.contains(route));
            if waiting.is_empty() {
                return None; // rounding: it is there already
            }
        }
        None
    }

    /// Takes the cheapest routes at initial prices: those of other variants, or the prices of the workers.
    pub(super) fn begin_with(&mut self, prices: Option<&Prices>) {
        let origins = || -> Vec<BTreeMap<usize, f64>> {
            let origins = self.prepared.origins.iter();
            origins.map(|of| of.iter().map(|(at, _)| (*at, 0.0)).collect()).collect()
        };
        let own = || Prices {
            slots: BTreeMap::new(),
            surplus: BTreeMap::new(),
            pairs: BTreeMap::new(),
            origins: origins(),
            key: 0.0,
            rest: 0.0,
        };
        let (found, _) = match prices {
            Some(prices) => self.look(prices, f64::INFINITY, PRICING),
            None => self.look(&own(), f64::INFINITY, PRICING),
        };
        let (_, columns) = self.dual(&self.all_workers());
        for (_, route) in found {
            let row = self.row(&columns, &route);
            self.known.insert(route, row);
        }
    }

    /// Known routes that were nearly chosen at the last point: with all of them each relaxation takes longer.
    fn nearest(&self) -> Vec<Route> {
        if self.last.is_empty() || self.known.len() <= FIRST_ROUTES {
            return self.known.keys().cloned().collect();
        }
        let surplus = |(terms, cost): &(Terms, f64)| {
            cost + terms.iter().map(|(column, value)| value * self.last[*column]).sum::<f64>()
        };
        let mut all: Vec<(f64, &Route)> =
            self.known.iter().map(|(route, row)| (surplus(row), route)).collect();
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        all.into_iter().take(FIRST_ROUTES).map(|(_, route)| route.clone()).collect()
    }

    fn prices_of(&self, columns: &DualColumns, rest: f64, value: impl Fn(Column) -> f64) -> Prices {
        let by_slot = |of: [Column; 2]| of.map(|column| value(column).max(0.0));
        let slots = self.slots.iter().copied();
        let by_origin = |of: &BTreeMap<usize, Column>| of.iter().map(|(&at, &c)| (at, value(c))).collect();
        let surplus = |(slot, [load, wait]): (&Slot, &[Column; 2])| {
            let facts = &self.prepared.classes[slot.0];
            (*slot, facts.price + value(columns.classes[facts.class]) - value(*load) - value(*wait))
        };
        Prices {
            surplus: self.slots.iter().zip(&columns.slots).map(surplus).collect(),
            slots: slots.zip(columns.slots.iter().copied().map(by_slot)).collect(),
            pairs: columns.pairs.iter().map(|(&pair, &column)| (pair, value(column).max(0.0))).collect(),
            origins: columns.origins.iter().map(by_origin).collect(),
            key: value(columns.key),
            rest,
        }
    }

    /// `prices of the route - key >= -cost`.
    fn row(&self, columns: &DualColumns, route: &Route) -> (Terms, f64) {
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
        (terms, self.cost(route))
    }

    /// The program over the known routes: a column for each, in their order, then workers by slot.
    pub(super) fn program(&self, workers: &Workers) -> (Program, Vec<Column>, Vec<Column>) {
        let problem = self.prepared.problem;
        let mut program = Program::default();
        let columns: Vec<Column> =
            self.known.keys().map(|route| program.real(self.cost(route), 0.0, 1.0)).collect();
        program.equal(columns.iter().map(|column| (*column, 1.0)).collect(), 1.0);
        for (origin, locations) in self.prepared.origins.iter().enumerate() {
            for &(location, share) in locations {
                let there = self.known.keys().zip(&columns).filter(|(r, _)| r.origins[origin] == location);
                program.equal(there.map(|(_, column)| (*column, 1.0)).collect(), share);
            }
        }
        let mut of_slot: Vec<[Terms; 3]> = vec![Default::default(); self.slots.len()];
        let mut of_pair: BTreeMap<(usize, usize), Terms> = BTreeMap::new();
        for (route, &column) in self.known.keys().zip(&columns) {
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
            let (low, high) = (workers.low[slot].round() as u32, workers.high[slot].round() as u32);
            let count = program.integer(facts.price, low, high);
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

    /// The placement of a point of that program.
    pub(super) fn placement(&self, columns: &[Column], counts: &[Column], point: &Point) -> Placement {
        let routes = self.known.keys().zip(columns).map(|(route, column)| (route, point.values[*column]));
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

/// The columns of the dual, by the thing that each one prices.
#[derive(Debug)]
struct DualColumns {
    key: Column,
    slots: Vec<[Column; 2]>,
    classes: Vec<Column>,
    pairs: BTreeMap<(usize, usize), Column>,
    origins: Vec<BTreeMap<usize, Column>>,
}

/// Fewest and most workers by slot.
#[derive(Debug, Clone)]
pub(super) struct Workers {
    pub(super) low: Vec<f64>,
    pub(super) high: Vec<f64>,
    /// Cost of not serving any key, in $/h.
    pub(super) unserved: f64,
}

impl Workers {
    /// Exactly these numbers; where only plans cheaper than `most` are searched, unserved keys cost a multiple of that.
    pub(super) fn exactly(numbers: Vec<f64>, most: f64) -> Self {
        Self { low: numbers.clone(), high: numbers, unserved: UNSERVED_OF_INCUMBENT * most }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generator::small_problem_with_latency;
    use crate::planner::{Planner, SearchLimits};
    use crate::planners::exact::prepared::{LatencyRule, MemoryRule};
    use crate::planners::exhaustive::Exhaustive;

    /// With the variants of the cheapest plan, the relaxation costs no more than the plan, and routes are found.
    #[test]
    fn the_relaxation_over_routes_is_below_the_cheapest_plan() {
        let (mut compared, mut asked) = (0, 0);
        for seed in 1..=60 {
            let problem = small_problem_with_latency(seed);
            let outcome = Exhaustive.plan(&problem, &SearchLimits::default()).expect("it takes the problem");
            let (Some(cost), Some(solution)) = (outcome.cost, outcome.solution) else { continue };
            let rules = vec![MemoryRule::Ignored; problem.worker_classes.len()];
            let Ok(prepared) = Prepared::new(&problem, &rules, LatencyRule::Plan, 1.0) else { continue };
            let mut routes = Routes::new(&prepared, &solution.variants);
            let Some(least) = routes.generate(&routes.all_workers(), f64::INFINITY, &|| f64::INFINITY) else {
                continue;
            };
            assert!(least <= cost + 1e-6 * cost.max(1.0), "seed {seed}: {least} above {cost}");
            assert!(!routes.known.is_empty());
            // This relaxation, compared with a cost.
            let (all, more) = (routes.all_workers(), least * 1.001 + 1e-6);
            assert!(!routes.costs(&all, more, &|| f64::INFINITY), "seed {seed}: not {more}");
            asked += usize::from(routes.costs(&all, 0.999 * least, &|| f64::INFINITY));
            compared += 1;
        }
        assert!(compared > 10, "{compared} compared");
        assert!(asked * 10 > compared * 9, "{asked} of {compared} known to cost so much");
    }
}
