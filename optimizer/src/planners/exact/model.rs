//! The integer program of a prepared problem.
//!
//! Columns: shares of every operator's records per choice, counts of workers per class, a binary per variant, shares of
//! the keys per link and pair of locations, and per clique of the junction tree and tuple of locations. All flows are
//! shares, so that coefficients stay near 1. Workers of a class are identical and records divisible, so the optimum
//! over counts is the optimum over single workers.
use super::prepared::{Choice, Link, Prepared};
use super::program::{Column, Program, Terms};
use super::time_grid::TimeColumns;
use super::{accuracy_rows, latency_rows};
use crate::solution::Solution;
use std::collections::{BTreeMap, BTreeSet};

/// Joint variants that a program may choose from.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Allowed {
    /// By operator and variant.
    pub(super) variants: Vec<Vec<bool>>,
    /// Excluded joint variants.
    pub(super) excluded: Vec<Vec<usize>>,
    /// All joint variants that may be chosen, where they are listed; then no other accuracy row is needed.
    pub(super) list: Option<Vec<Vec<usize>>>,
}

impl Allowed {
    /// Allows one joint variant only.
    pub(super) fn only(prepared: &Prepared<'_>, joint: &[usize]) -> Self {
        let operators = prepared.problem.operators.iter().zip(joint);
        let variants =
            operators.map(|(o, &chosen)| (0..o.variants.len()).map(|m| m == chosen).collect()).collect();
        Self { variants, excluded: Vec::new(), list: None }
    }

    /// The only allowed variant of an operator, if there is one.
    pub(super) fn single(&self, operator: usize) -> Option<usize> {
        let mut allowed = self.of(operator);
        allowed.next().filter(|_| allowed.next().is_none())
    }

    pub(super) fn of(&self, operator: usize) -> impl Iterator<Item = usize> {
        self.variants[operator]
            .iter()
            .enumerate()
            .filter(|(_, allowed)| **allowed)
            .map(|(variant, _)| variant)
    }

    pub(super) fn is_one(&self) -> bool {
        (0..self.variants.len()).all(|operator| self.single(operator).is_some())
    }
}

/// Flow of a link between two locations: sender, receiver, and the column of each group of variants.
pub(super) type PairColumns = BTreeMap<(usize, usize), Vec<(usize, Column)>>;

/// The program with the meaning of its columns.
#[derive(Debug, Clone)]
pub(super) struct Model {
    pub(super) program: Program,
    /// Per operator: choice, column.
    pub(super) shares: Vec<Vec<(usize, Column)>>,
    /// Per search class: operator (none where shared), column.
    pub(super) counts: Vec<Vec<(Option<usize>, Column)>>,
    /// Workers that hold a model where memory is in the program: operator, choice, column.
    pub(super) hosts: Vec<(usize, usize, Column)>,
    /// Per operator and variant: its binary; none where the variant is given or not allowed.
    pub(super) binaries: Vec<Vec<Option<Column>>>,
    /// Per link.
    pub(super) flows: Vec<PairColumns>,
    /// Per large clique (in order of the tree): locations of its nodes, column.
    pub(super) tuples: Vec<Vec<(Vec<usize>, Column)>>,
    /// First column of the flows; earlier columns are equal with and without whole routes.
    pub(super) first_flow: Column,
    pub(super) allowed: Allowed,
    /// Flow over time, where the program has one.
    pub(super) times: TimeColumns,
}

impl Model {
    pub(super) fn new(prepared: &Prepared<'_>, allowed: &Allowed) -> Self {
        let mut model = Self {
            program: Program::default(),
            shares: Vec::new(),
            counts: vec![Vec::new(); prepared.classes.len()],
            hosts: Vec::new(),
            binaries: Vec::new(),
            flows: Vec::new(),
            tuples: Vec::new(),
            first_flow: 0,
            allowed: allowed.clone(),
            times: TimeColumns::default(),
        };
        model.add_variants(prepared);
        model.add_workers(prepared);
        model.first_flow = model.program.len();
        model.add_links(prepared);
        if prepared.plans_routes {
            model.add_cliques(prepared);
        }
        model.add_bandwidths(prepared);
        accuracy_rows::add(&mut model, prepared, allowed);
        if let Some(grid) = &prepared.grid {
            latency_rows::add(&mut model, prepared, grid);
        }
        model
    }

    /// The binaries of all variants.
    pub(super) fn all_binaries(&self) -> impl Iterator<Item = Column> {
        self.binaries.iter().flatten().flatten().copied()
    }

    /// Chosen variant per operator in a point with integer binaries.
    pub(super) fn joint(&self, values: &[f64]) -> Vec<usize> {
        let operators = self.binaries.iter().enumerate();
        operators
            .map(|(operator, binaries)| {
                self.allowed.single(operator).unwrap_or_else(|| {
                    let value = |variant: &usize| binaries[*variant].map_or(0.0, |column| values[column]);
                    let better = |a: usize, b: usize| if value(&b) > value(&a) { b } else { a };
                    self.allowed.of(operator).reduce(better).unwrap_or(0)
                })
            })
            .collect()
    }

    /// Values of the binaries of variants and of the counts in a plan, NaN elsewhere; none where the program does not
    /// have the plan's variants.
    pub(super) fn integers_of(&self, prepared: &Prepared<'_>, solution: &Solution) -> Option<Vec<f64>> {
        let mut values = vec![f64::NAN; self.program.len()];
        for (operator, &variant) in solution.variants.iter().enumerate() {
            if !self.allowed.variants[operator][variant] {
                return None;
            }
            for (other, binary) in self.binaries[operator].iter().enumerate() {
                if let Some(binary) = binary {
                    values[*binary] = f64::from(other == variant);
                }
            }
        }
        for (class, counts) in self.counts.iter().enumerate() {
            for &(only, column) in counts {
                values[column] = f64::from(prepared.workers_of(class, only, solution));
            }
        }
        Some(values)
    }

    fn add_variants(&mut self, prepared: &Prepared<'_>) {
        for (operator, choices) in prepared.choices.iter().enumerate() {
            let single = self.allowed.single(operator);
            let program = &mut self.program;
            let variants = self.allowed.variants[operator].iter();
            let binaries: Vec<Option<Column>> =
                variants.map(|&is| (is && single.is_none()).then(|| program.integer(0.0, 0, 1))).collect();
            let columns: Vec<(usize, Column)> = choices
                .iter()
                .enumerate()
                .filter(|(_, choice)| self.allowed.variants[operator][choice.variant])
                .map(|(index, choice)| (index, program.real(choice.source_cost, 0.0, 1.0)))
                .collect();
            for variant in self.allowed.of(operator) {
                let mut terms: Terms = columns
                    .iter()
                    .filter(|(i, _)| choices[*i].variant == variant)
                    .map(|(_, c)| (*c, 1.0))
                    .collect();
                match binaries[variant] {
                    None => program.equal(terms, 1.0),
                    Some(binary) => {
                        terms.push((binary, -1.0));
                        program.equal(terms, 0.0);
                    }
                }
            }
            if single.is_none() {
                program.choice(binaries.iter().flatten().copied().collect());
                program.equal(binaries.iter().flatten().map(|binary| (*binary, 1.0)).collect(), 1.0);
            }
            self.binaries.push(binaries);
            self.shares.push(columns);
        }
        for joint in &self.allowed.excluded {
            // Forbids the combination. An operator whose variant is given counts as chosen.
            if joint.iter().enumerate().any(|(operator, &variant)| !self.allowed.variants[operator][variant])
            {
                continue;
            }
            let binaries: Vec<Column> = joint
                .iter()
                .enumerate()
                .filter_map(|(operator, &variant)| self.binaries[operator][variant])
                .collect();
            let most = binaries.len() as f64 - 1.0;
            self.program.at_most(binaries.into_iter().map(|binary| (binary, 1.0)).collect(), most);
        }
    }

    fn add_workers(&mut self, prepared: &Prepared<'_>) {
        let exclusive = prepared.problem.limits.one_operator_per_worker;
        let on = |class: usize, columns: &[(usize, Column)], choices: &[Choice]| -> Vec<(usize, Column)> {
            columns.iter().copied().filter(|(index, _)| choices[*index].class == Some(class)).collect()
        };
        for (class, facts) in prepared.classes.iter().enumerate() {
            // Groups of operators on this class that share workers.
            let parts: Vec<Vec<(usize, usize, Column)>> = {
                let of_operator = |operator: usize| -> Vec<(usize, usize, Column)> {
                    let columns = on(class, &self.shares[operator], &prepared.choices[operator]);
                    columns.into_iter().map(|(index, column)| (operator, index, column)).collect()
                };
                let all = (0..self.shares.len()).map(of_operator).filter(|part| !part.is_empty());
                if exclusive { all.collect() } else { vec![all.flatten().collect()] }
            };
            for part in parts.into_iter().filter(|part| !part.is_empty()) {
                let count = self.program.integer(facts.price, 0, facts.count);
                self.counts[class].push((exclusive.then_some(part[0].0), count));
                let choice = |operator: usize, index: usize| &prepared.choices[operator][index];
                let mut terms: Terms =
                    part.iter().map(|&(o, i, column)| (column, choice(o, i).load)).collect();
                terms.push((count, -1.0));
                self.program.at_most(terms, 0.0);
                if part.iter().any(|&(o, i, _)| choice(o, i).wait_load > choice(o, i).load) {
                    let mut terms: Terms =
                        part.iter().map(|&(o, i, column)| (column, choice(o, i).wait_load)).collect();
                    terms.push((count, -1.0));
                    self.program.at_most(terms, 0.0);
                }
                // Work that takes little time still needs a worker. (Shares are at most 1, so this always holds; it
                // matters where the load is lower.)
                let operators: BTreeSet<usize> = part.iter().map(|(operator, ..)| *operator).collect();
                for operator in operators {
                    let own = part.iter().filter(|(other, ..)| *other == operator);
                    if own.clone().any(|&(o, i, _)| choice(o, i).load < 1.0) {
                        let mut terms: Terms = own.map(|&(.., column)| (column, 1.0)).collect();
                        terms.push((count, -1.0));
                        self.program.at_most(terms, 0.0);
                    }
                }
                if let Some(memory) = facts.memory {
                    self.add_memory(prepared, &part, facts.count, count, memory);
                }
            }
        }
        self.add_counts(prepared);
        self.add_weightless(prepared);
    }

    /// Adds the number of workers that hold each model, and that these fit into the memory of the workers in use.
    fn add_memory(
        &mut self,
        prepared: &Prepared<'_>,
        part: &[(usize, usize, Column)],
        workers: u32,
        count: Column,
        memory: f64,
    ) {
        let mut total: Terms = vec![(count, -1.0)];
        for &(operator, index, column) in part {
            let choice = &prepared.choices[operator][index];
            if choice.memory == 0.0 {
                continue;
            }
            let hosts = self.program.integer(0.0, 0, workers);
            self.hosts.push((operator, index, hosts));
            self.program.at_most(vec![(column, choice.load.max(choice.wait_load)), (hosts, -1.0)], 0.0);
            self.program.at_most(vec![(column, 1.0), (hosts, -1.0)], 0.0);
            self.program.at_most(vec![(hosts, 1.0), (count, -1.0)], 0.0);
            total.push((hosts, choice.memory / memory));
        }
        self.program.at_most(total, 0.0);
    }

    /// Limits the workers of a class to those available, over waits and operators; orders single ones.
    fn add_counts(&mut self, prepared: &Prepared<'_>) {
        let mut groups: BTreeMap<(usize, Option<u32>), Vec<Column>> = BTreeMap::new();
        for (facts, counts) in prepared.classes.iter().zip(&self.counts) {
            let columns = counts.iter().map(|(_, column)| *column);
            groups.entry((facts.class, facts.single)).or_default().extend(columns);
        }
        let sum = |columns: &[Column], sign: f64| columns.iter().map(move |&c| (c, sign)).collect::<Terms>();
        for ((class, single), columns) in &groups {
            let most = if single.is_some() { 1 } else { prepared.problem.worker_classes[*class].count };
            if columns.len() > 1 {
                self.program.at_most(sum(columns, 1.0), f64::from(most));
            }
            if let Some(next) = single.and_then(|single| groups.get(&(*class, Some(single + 1)))) {
                let mut terms = sum(next, 1.0);
                terms.extend(sum(columns, -1.0));
                self.program.at_most(terms, 0.0);
            }
        }
    }

    /// Restricts weightless operators to locations with a worker in use.
    fn add_weightless(&mut self, prepared: &Prepared<'_>) {
        for (operator, columns) in self.shares.iter().enumerate() {
            if !prepared.problem.operators[operator].weightless {
                continue;
            }
            for &(index, column) in columns {
                let location = prepared.choices[operator][index].location;
                let mut terms: Terms = vec![(column, 1.0)];
                for (facts, counts) in prepared.classes.iter().zip(&self.counts) {
                    if facts.location == location {
                        terms.extend(counts.iter().map(|(_, count)| (*count, -1.0)));
                    }
                }
                self.program.at_most(terms, 0.0);
            }
        }
    }

    /// Columns of an operator's share at a location, of some variants or of all.
    fn at(
        &self,
        prepared: &Prepared<'_>,
        operator: usize,
        location: usize,
        variants: Option<&[usize]>,
    ) -> Terms {
        let choices = &prepared.choices[operator];
        let is_there = |choice: &Choice| {
            choice.location == location && variants.is_none_or(|variants| variants.contains(&choice.variant))
        };
        self.shares[operator].iter().filter(|(i, _)| is_there(&choices[*i])).map(|(_, c)| (*c, 1.0)).collect()
    }

    /// Equates a sum with the share of a node at a location (of those variants where it is an operator).
    fn equal_share(
        &mut self,
        prepared: &Prepared<'_>,
        mut terms: Terms,
        node: usize,
        location: usize,
        variants: Option<&[usize]>,
    ) {
        let operators = prepared.problem.operators.len();
        if node < operators {
            terms.extend(
                self.at(prepared, node, location, variants).into_iter().map(|(c, value)| (c, -value)),
            );
            self.program.equal(terms, 0.0);
        } else {
            let there = prepared.origins[node - operators].iter().find(|(other, _)| *other == location);
            self.program.equal(terms, there.map_or(0.0, |(_, share)| *share));
        }
    }

    fn add_links(&mut self, prepared: &Prepared<'_>) {
        for link in &prepared.links {
            let mut flows = PairColumns::new();
            let is_used = |group: &[usize]| {
                group.is_empty() || group.iter().any(|&variant| self.allowed.variants[link.from][variant])
            };
            let groups: Vec<usize> = (0..link.groups.len()).filter(|&g| is_used(&link.groups[g])).collect();
            for &from in &prepared.domains[link.from] {
                for &to in &prepared.domains[link.to] {
                    if prepared.problem.route(from, to).is_none() {
                        continue;
                    }
                    for &group in &groups {
                        let cost = prepared.link_cost(link, group, from, to);
                        let column = self.program.real(cost, 0.0, 1.0);
                        flows.entry((from, to)).or_default().push((group, column));
                    }
                }
            }
            for &group in &groups {
                for &from in &prepared.domains[link.from] {
                    let out =
                        flows.iter().filter(|(pair, _)| pair.0 == from).flat_map(|(_, columns)| columns);
                    let terms: Terms = out.filter(|(g, _)| *g == group).map(|(_, c)| (*c, 1.0)).collect();
                    let variants = (!link.groups[group].is_empty()).then_some(link.groups[group].as_slice());
                    self.equal_share(prepared, terms, link.from, from, variants);
                }
            }
            for &to in &prepared.domains[link.to] {
                let into = flows.iter().filter(|(pair, _)| pair.1 == to).flat_map(|(_, columns)| columns);
                let terms: Terms = into.map(|(_, c)| (*c, 1.0)).collect();
                self.equal_share(prepared, terms, link.to, to, None);
            }
            self.flows.push(flows);
        }
    }

    /// Adds distributions over cliques that agree with the links inside them and with each other.
    fn add_cliques(&mut self, prepared: &Prepared<'_>) {
        let mut columns_of: Vec<Option<usize>> = Vec::new();
        for clique in &prepared.tree.cliques {
            if clique.nodes.len() < 3 {
                columns_of.push(None);
                continue;
            }
            let nodes = &clique.nodes;
            let inside: Vec<usize> = (0..prepared.links.len())
                .filter(|&l| nodes.contains(&prepared.links[l].from) && nodes.contains(&prepared.links[l].to))
                .collect();
            let place = |node: usize| nodes.iter().position(|other| *other == node).unwrap_or(0);
            let mut tuples: Vec<(Vec<usize>, Column)> = Vec::new();
            for tuple in tuples_over(&prepared.domains, nodes) {
                let allowed = inside.iter().all(|&l| {
                    let link = &prepared.links[l];
                    prepared.problem.route(tuple[place(link.from)], tuple[place(link.to)]).is_some()
                });
                if allowed {
                    let column = self.program.real(0.0, 0.0, 1.0);
                    tuples.push((tuple, column));
                }
            }
            for &l in &inside {
                let link = &prepared.links[l];
                for (&(from, to), columns) in &self.flows[l] {
                    let is_pair =
                        |tuple: &[usize]| tuple[place(link.from)] == from && tuple[place(link.to)] == to;
                    let mut terms: Terms =
                        tuples.iter().filter(|(tuple, _)| is_pair(tuple)).map(|(_, c)| (*c, 1.0)).collect();
                    terms.extend(columns.iter().map(|(_, column)| (*column, -1.0)));
                    self.program.equal(terms, 0.0);
                }
            }
            for &node in nodes {
                let is_end = |&l: &usize| prepared.links[l].from == node || prepared.links[l].to == node;
                if inside.iter().any(is_end) {
                    continue;
                }
                for &location in &prepared.domains[node] {
                    let there = tuples.iter().filter(|(tuple, _)| tuple[place(node)] == location);
                    let terms: Terms = there.map(|(_, c)| (*c, 1.0)).collect();
                    self.equal_share(prepared, terms, node, location, None);
                }
            }
            let above = clique.parent.and_then(|parent| columns_of[parent].map(|index| (parent, index)));
            if let Some((parent, index)) = above.filter(|_| clique.separator.len() > 1) {
                let parent_nodes = &prepared.tree.cliques[parent].nodes;
                for key in tuples_over(&prepared.domains, &clique.separator) {
                    let fits = |tuple: &[usize], nodes: &[usize]| {
                        nodes.iter().zip(tuple).all(|(node, location)| {
                            clique
                                .separator
                                .iter()
                                .zip(&key)
                                .all(|(other, at)| other != node || at == location)
                        })
                    };
                    let mut terms: Terms = tuples
                        .iter()
                        .filter(|(tuple, _)| fits(tuple, nodes))
                        .map(|(_, c)| (*c, 1.0))
                        .collect();
                    let parents = self.tuples[index].iter().filter(|(tuple, _)| fits(tuple, parent_nodes));
                    terms.extend(parents.map(|(_, column)| (*column, -1.0)));
                    self.program.equal(terms, 0.0);
                }
            }
            columns_of.push(Some(self.tuples.len()));
            self.tuples.push(tuples);
        }
    }

    fn add_bandwidths(&mut self, prepared: &Prepared<'_>) {
        let problem = prepared.problem;
        let mut used: BTreeMap<(usize, usize), Terms> = BTreeMap::new();
        for (link, flows) in prepared.links.iter().zip(&self.flows) {
            for (&pair, columns) in flows {
                for &(group, column) in columns {
                    let bytes = prepared.link_bytes(link, group).iter().sum();
                    used.entry(pair).or_default().push((column, bytes));
                }
            }
        }
        for edge in &problem.edges {
            let crate::problem::Producer::Source(source) = edge.from else { continue };
            if prepared.source_node[source].is_some() {
                continue;
            }
            let from = problem.sources[source].locations[0].0;
            for &(index, column) in &self.shares[edge.to] {
                let to = prepared.choices[edge.to][index].location;
                used.entry((from, to)).or_default().push((column, edge.rate * edge.bytes[0]));
            }
        }
        for ((from, to), terms) in used {
            if let Some(bandwidth) = problem.route(from, to).and_then(|route| route.bandwidth) {
                // Shares of the bandwidth; for a link without bandwidth, bytes.
                let scale = if bandwidth > 0.0 { bandwidth } else { 1.0 };
                let right = if bandwidth > 0.0 { 1.0 } else { 0.0 };
                self.program.at_most(terms.into_iter().map(|(c, bytes)| (c, bytes / scale)).collect(), right);
            }
        }
    }

    /// Column of the workers of a search class, for one operator where they are not shared.
    pub(super) fn count(&self, (class, operator): (usize, Option<usize>)) -> Option<Column> {
        self.counts[class].iter().find(|(of, _)| *of == operator).map(|(_, column)| *column)
    }

    /// Number of workers of a slot in a point.
    pub(super) fn number(&self, values: &[f64], slot: (usize, Option<usize>)) -> f64 {
        self.count(slot).map_or(0.0, |column| values[column])
    }

    /// Flow columns of a link with their group and locations.
    pub(super) fn link_columns(&self, link: usize) -> impl Iterator<Item = (usize, usize, usize, Column)> {
        let pairs = self.flows[link].iter();
        pairs.flat_map(|(&(from, to), columns)| {
            columns.iter().map(move |&(group, column)| (group, from, to, column))
        })
    }

    /// Position of a link between two nodes.
    pub(super) fn link_between(prepared: &Prepared<'_>, a: usize, b: usize) -> Option<usize> {
        let joins = |link: &Link| (link.from, link.to) == (a, b) || (link.from, link.to) == (b, a);
        prepared.links.iter().position(joins)
    }
}

/// All tuples of locations of these nodes.
fn tuples_over(domains: &[Vec<usize>], nodes: &[usize]) -> Vec<Vec<usize>> {
    nodes.iter().fold(vec![Vec::new()], |tuples, &node| {
        let longer = tuples.iter().flat_map(|tuple: &Vec<usize>| {
            domains[node].iter().map(move |&location| [tuple.as_slice(), &[location]].concat())
        });
        longer.collect()
    })
}
