//! The integer program of plans that survive losses, for one variant of each operator.
//!
//! Columns: workers of each group, and for no loss and for every loss the shares of routes and of choices. Workers of a group
//! are alike: each hosts all parts of the group, so numbers of lost workers by group stand for all sets of workers, and the
//! optimum over numbers is that over single workers. The first workers of a group have binaries of their own, so that a
//! loss takes only workers that there are.
use super::super::prepared::SECONDS_PER_HOUR;
use super::super::program::{Column, Program, Terms};
use super::losses::by_group;
use super::space::Space;
use crate::problem::STANDBY_SHARE;
use std::collections::BTreeMap;

/// The shares without a loss, or after one.
#[derive(Debug, Clone)]
pub(super) struct CaseColumns {
    /// Lost workers by group.
    pub(super) lost: Vec<u32>,
    /// Per route.
    pub(super) tuples: Vec<Column>,
    /// Per operator and choice.
    pub(super) shares: Vec<Vec<Column>>,
}

/// The program with the meaning of its columns.
#[derive(Debug, Clone)]
pub(super) struct LossProgram {
    pub(super) program: Program,
    /// Per group: binaries of its first workers, then the number of the others.
    pub(super) workers: Vec<Vec<Column>>,
    /// Without a loss, then after each.
    pub(super) cases: Vec<CaseColumns>,
    /// Per operator and choice: whether each worker of the group holds the model, where memory is limited.
    hosts: Vec<Vec<Option<Column>>>,
}

/// The losses that a problem asks for, by group: those of the most workers, and those of fewer that an operator survives without
/// the restart that it needs after more.
pub(super) fn losses(space: &Space<'_>) -> Vec<Vec<u32>> {
    let problem = space.problem;
    let most = problem.limits.survive;
    let mut sizes: Vec<u32> = problem.operators.iter().map(|operator| operator.survive.min(most)).collect();
    sizes.push(most);
    sizes.retain(|size| *size > 0);
    sizes.sort_unstable();
    sizes.dedup();
    let mut all: Vec<Vec<u32>> = sizes.into_iter().flat_map(|size| by_group(&space.groups, size)).collect();
    all.sort();
    all.dedup();
    all
}

impl LossProgram {
    pub(super) fn new(space: &Space<'_>, losses: &[Vec<u32>]) -> Self {
        let mut made =
            Self { program: Program::default(), workers: Vec::new(), cases: Vec::new(), hosts: Vec::new() };
        made.add_workers(space);
        made.add_case(space, &vec![0; space.groups.len()]);
        made.add_hosts(space);
        for lost in losses {
            made.add_case(space, lost);
            made.add_standby(space);
        }
        made
    }

    fn add_workers(&mut self, space: &Space<'_>) {
        let first = space.problem.limits.survive;
        for group in &space.groups {
            let binaries = first.min(group.most);
            let mut own: Vec<Column> =
                (0..binaries).map(|_| self.program.integer(group.price, 0, 1)).collect();
            for pair in own.windows(2) {
                self.program.at_most(vec![(pair[1], 1.0), (pair[0], -1.0)], 0.0);
            }
            let rest = group.most - binaries;
            if rest > 0 {
                let others = self.program.integer(group.price, 0, rest);
                if let Some(&last) = own.last() {
                    self.program.at_most(vec![(others, 1.0), (last, -f64::from(rest))], 0.0);
                }
                own.push(others);
            }
            self.workers.push(own);
        }
        // Groups of a class share its workers; single workers of a class are used in order.
        let mut of_class: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (index, group) in space.groups.iter().enumerate() {
            of_class.entry(group.class).or_default().push(index);
        }
        for (class, groups) in of_class {
            let count = space.problem.worker_classes[class].count;
            let terms: Terms = groups.iter().flat_map(|group| self.used(*group, 0)).collect();
            self.program.at_most(terms, f64::from(count));
            for pair in groups.windows(2) {
                let (a, b) = (&space.groups[pair[0]], &space.groups[pair[1]]);
                if a.most == 1 && a == b {
                    let mut terms = self.used(pair[1], 0);
                    terms.extend(self.used(pair[0], 0).into_iter().map(|(column, value)| (column, -value)));
                    self.program.at_most(terms, 0.0);
                }
            }
        }
    }

    /// Workers of a group that are left after the loss of so many.
    fn used(&self, group: usize, lost: u32) -> Terms {
        self.workers[group].iter().skip(lost as usize).map(|column| (*column, 1.0)).collect()
    }

    fn add_case(&mut self, space: &Space<'_>, lost: &[u32]) {
        let problem = space.problem;
        let is_base = self.cases.is_empty();
        let price = |tuple| -> f64 {
            let ways = space.traffic(tuple);
            ways.map(|(from, to, bytes)| {
                bytes * SECONDS_PER_HOUR * problem.route(from, to).map_or(0.0, |route| route.price)
            })
            .sum()
        };
        let tuples: Vec<Column> = space
            .tuples
            .iter()
            .map(|tuple| self.program.real(if is_base { price(tuple) } else { 0.0 }, 0.0, 1.0))
            .collect();
        for (index, origin) in space.origins.iter().enumerate() {
            for (at, (_, share)) in origin.locations.iter().enumerate() {
                let of = space.tuples.iter().zip(&tuples).filter(|(tuple, _)| tuple.origins[index] == at);
                self.program.equal(of.map(|(_, column)| (*column, 1.0)).collect(), *share);
            }
        }
        let mut shares: Vec<Vec<Column>> = Vec::new();
        for (operator, choices) in space.choices.iter().enumerate() {
            let own: Vec<Column> = choices.iter().map(|_| self.program.real(0.0, 0.0, 1.0)).collect();
            for (place, facts) in space.places[operator].iter().enumerate() {
                let passing = space.tuples.iter().zip(&tuples).filter(|(t, _)| t.places[operator] == place);
                let mut terms: Terms = passing.map(|(_, column)| (*column, -1.0)).collect();
                if problem.operators[operator].weightless {
                    // It runs on a worker that is there for others.
                    let mut terms: Terms = terms.into_iter().map(|(column, _)| (column, 1.0)).collect();
                    for (group, of) in space.groups.iter().enumerate() {
                        if of.location == facts.location {
                            let left = self.used(group, lost[group]);
                            terms.extend(left.into_iter().map(|(column, _)| (column, -1.0)));
                        }
                    }
                    self.program.at_most(terms, 0.0);
                    continue;
                }
                let here = choices.iter().zip(&own).filter(|(choice, _)| choice.place == place);
                terms.extend(here.map(|(_, column)| (*column, 1.0)));
                self.program.equal(terms, 0.0);
            }
            shares.push(own);
        }
        self.add_loads(space, lost, &shares);
        self.add_bandwidths(space, &tuples);
        self.cases.push(CaseColumns { lost: lost.to_vec(), tuples, shares });
    }

    #[expect(clippy::needless_range_loop, reason = "groups number several lists")]
    fn add_loads(&mut self, space: &Space<'_>, lost: &[u32], shares: &[Vec<Column>]) {
        for group in 0..space.groups.len() {
            let minus = |terms: Terms| terms.into_iter().map(|(column, _)| (column, -1.0));
            let (mut load, mut wait): (Terms, Terms) = Default::default();
            for (operator, choices) in space.choices.iter().enumerate() {
                let here = choices.iter().zip(&shares[operator]).filter(|(choice, _)| choice.group == group);
                let mut all: Terms = Vec::new();
                for (choice, column) in here {
                    load.push((*column, choice.load));
                    wait.push((*column, choice.wait_load));
                    all.push((*column, 1.0));
                }
                if !all.is_empty() {
                    all.extend(minus(self.used(group, lost[group])));
                    self.program.at_most(all, 0.0);
                }
            }
            for mut terms in
                [load, wait].into_iter().filter(|terms| terms.iter().any(|(_, value)| *value > 0.0))
            {
                terms.extend(minus(self.used(group, lost[group])));
                self.program.at_most(terms, 0.0);
            }
        }
    }

    fn add_bandwidths(&mut self, space: &Space<'_>, tuples: &[Column]) {
        let mut used: BTreeMap<(usize, usize), Terms> = BTreeMap::new();
        for (tuple, column) in space.tuples.iter().zip(tuples) {
            for (from, to, bytes) in space.traffic(tuple) {
                used.entry((from, to)).or_default().push((*column, bytes));
            }
        }
        for ((from, to), terms) in used {
            if let Some(bandwidth) = space.problem.route(from, to).and_then(|route| route.bandwidth) {
                let (scale, right) = if bandwidth > 0.0 { (bandwidth, 1.0) } else { (1.0, 0.0) };
                self.program.at_most(terms.into_iter().map(|(c, bytes)| (c, bytes / scale)).collect(), right);
            }
        }
    }

    /// Every worker of a group with limited memory holds the models of the group.
    fn add_hosts(&mut self, space: &Space<'_>) {
        for (operator, choices) in space.choices.iter().enumerate() {
            let mut hosts = Vec::new();
            for (choice, share) in choices.iter().zip(self.cases[0].shares[operator].clone()) {
                let limited = space.groups[choice.group].memory.is_some() && choice.memory > 0.0;
                hosts.push(limited.then(|| {
                    let host = self.program.integer(0.0, 0, 1);
                    self.program.at_most(vec![(share, 1.0), (host, -1.0)], 0.0);
                    host
                }));
            }
            self.hosts.push(hosts);
        }
        self.add_memory(space, None);
    }

    /// Limits the memory of each worker: the models that it has, and those that start there after a loss.
    fn add_memory(&mut self, space: &Space<'_>, started: Option<&[Vec<Option<Column>>]>) {
        for (group, facts) in space.groups.iter().enumerate() {
            let Some(memory) = facts.memory.filter(|memory| *memory > 0.0) else { continue };
            let all = std::iter::once(self.hosts.as_slice()).chain(started);
            let mut terms: Terms = Vec::new();
            for hosts in all {
                for (choices, hosts) in space.choices.iter().zip(hosts) {
                    let here = choices.iter().zip(hosts).filter(|(choice, _)| choice.group == group);
                    terms.extend(here.filter_map(|(choice, host)| Some(((*host)?, choice.memory / memory))));
                }
            }
            if !terms.is_empty() {
                self.program.at_most(terms, 1.0);
            }
        }
    }

    /// After the last loss, operators that survive it have only the stages that they had; others may start.
    fn add_standby(&mut self, space: &Space<'_>) {
        let base = self.cases[0].shares.clone();
        let Some(case) = self.cases.last().cloned() else { return };
        let size: u32 = case.lost.iter().sum();
        let mut started: Vec<Vec<Option<Column>>> = Vec::new();
        for (operator, choices) in space.choices.iter().enumerate() {
            let survives = space.problem.operators[operator].survive >= size;
            let mut own = Vec::new();
            for (index, &after) in case.shares[operator].iter().enumerate() {
                let host = self.hosts[operator][index];
                if survives {
                    self.program.at_most(vec![(after, STANDBY_SHARE), (base[operator][index], -1.0)], 0.0);
                    own.push(None);
                } else {
                    own.push(host.map(|host| {
                        let start = self.program.integer(0.0, 0, 1);
                        self.program.at_most(vec![(after, 1.0), (host, -1.0), (start, -1.0)], 0.0);
                        start
                    }));
                }
            }
            debug_assert_eq!(own.len(), choices.len());
            started.push(own);
        }
        if started.iter().flatten().any(Option::is_some) {
            self.add_memory(space, Some(&started));
        }
    }
}
