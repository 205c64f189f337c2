//! Trees out of shares.
//!
//! The buffer is a line from 0 to 1. Along it each rack has one hub after the other, each as long as its share is, and one machine
//! after the other that holds its edges to other racks; and one rack after the other is the hub of all. Wherever one of them changes,
//! another part begins.
use super::weights::{Fixed, Shares};
use super::{Goal, Part};
use crate::tree::Tree;

/// Lengths below this are rounding.
const NEGLIGIBLE: f64 = 1e-7;

/// One after the other, each as long as its share.
struct Turns {
    left: Vec<(usize, f64)>,
    at: usize,
}

impl Turns {
    /// Whoever has the longest turn begins.
    fn of(shares: impl Iterator<Item = (usize, f64)>) -> Self {
        let mut left: Vec<(usize, f64)> = shares.collect();
        left.sort_by(|(a, one), (b, other)| other.total_cmp(one).then(a.cmp(b)));
        Self { left, at: 0 }
    }

    fn now(&self) -> usize {
        self.left[self.at].0
    }

    /// The length that is left of this turn, where a unit of it uses `density`.
    fn lasts(&self, density: f64) -> f64 {
        let is_last = self.at + 1 == self.left.len();
        if is_last || density <= 0.0 { f64::INFINITY } else { self.left[self.at].1 / density }
    }

    fn pass(&mut self, used: f64) {
        self.left[self.at].1 -= used;
        while self.left[self.at].1 < NEGLIGIBLE && self.at + 1 < self.left.len() {
            self.at += 1;
        }
    }
}

/// Cuts the buffer into parts, each with its tree.
pub(super) fn parts(tree: &Tree, shares: &Shares, goal: Goal) -> Vec<Part> {
    let fixed = Fixed::of(tree, goal);
    let turns = |values: &[f64]| -> Vec<Turns> {
        let of_rack =
            |members: &Vec<usize>| Turns::of(members.iter().map(|machine| (*machine, values[*machine])));
        tree.racks().iter().map(of_rack).collect()
    };
    let (mut hubs, mut gates) = (turns(&shares.hubs), turns(&shares.crossings));
    let mut all = Turns::of(shares.racks.iter().copied().enumerate());
    let (mut parts, mut done) = (Vec::<Part>::new(), 0.0);
    while done < 1.0 - NEGLIGIBLE {
        let hub_rack = all.now();
        let edges_of =
            |rack: usize| fixed.rack_base(rack) + if rack == hub_rack { fixed.of_hub_rack() } else { 0.0 };
        let racks = 0..tree.racks().len();
        let length = racks
            .clone()
            .map(|rack| hubs[rack].lasts(1.0).min(gates[rack].lasts(edges_of(rack))))
            .fold((1.0 - done).min(all.lasts(1.0)), f64::min);
        if length >= NEGLIGIBLE {
            let now = |turns: &[Turns]| turns.iter().map(Turns::now).collect::<Vec<_>>();
            let (root, edges) = edges(tree, goal, hub_rack, &now(&hubs), &now(&gates));
            match parts.last_mut() {
                Some(last) if last.root == root && last.edges == edges => last.weight += length,
                _ => parts.push(Part { weight: length, root, edges }),
            }
        }
        for rack in racks {
            hubs[rack].pass(length);
            gates[rack].pass(length * edges_of(rack));
        }
        all.pass(length);
        done += length;
    }
    let sum: f64 = parts.iter().map(|part| part.weight).sum();
    parts.iter_mut().for_each(|part| part.weight /= sum);
    parts
}

/// The tree of one part: racks hang on the hub of all, machines on the hub of their rack. Its root and its edges, nearer ones first.
fn edges(
    tree: &Tree,
    goal: Goal,
    hub_rack: usize,
    hubs: &[usize],
    gates: &[usize],
) -> (usize, Vec<(usize, usize)>) {
    let root = match goal {
        Goal::Broadcast { root } => root,
        Goal::AllReduce => gates[hub_rack],
    };
    // A broadcast enters a rack at its hub. An edge of an all-reduce goes both ways: it ends at the gate.
    let entry = |rack: usize| if goal == Goal::AllReduce { gates[rack] } else { hubs[rack] };
    let mut edges = Vec::with_capacity(tree.machines());
    let within = |rack: usize, first: usize, edges: &mut Vec<(usize, usize)>| {
        let hub = hubs[rack];
        edges.extend((first != hub).then_some((first, hub)));
        let others = tree.racks()[rack].iter().filter(|machine| **machine != first && **machine != hub);
        edges.extend(others.map(|machine| (hub, *machine)));
    };
    let home = tree.rack_of(root);
    within(home, root, &mut edges);
    let mut rest: Vec<usize> = (0..tree.racks().len()).filter(|rack| *rack != home).collect();
    rest.sort_by_key(|rack| *rack != hub_rack);
    for rack in rest {
        let from = if rack == hub_rack { home } else { hub_rack };
        edges.push((gates[from], entry(rack)));
        within(rack, entry(rack), &mut edges);
    }
    (root, edges)
}
