//! Epochs and frontiers: when a stateful stage may take an epoch and a sink may publish it, as in the engine.
//!
//! The frontier of a stage is the lowest epoch of which records may still leave it: the lowest of what it holds, of what
//! is on the way to it, and of the frontiers of those before it. A source's is the epoch of its next record. That a
//! source or stage has passed an epoch is known at once behind it, however long the records take.
use crate::network::{Network, is_join};
use crate::options::Sink;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use tidemill_optimizer::problem::{Problem, Producer};
use tidemill_optimizer::solution::Solution;

/// A tick of the sources.
pub(crate) type Epoch = u64;

/// The frontier of what has ended.
pub(crate) const CLOSED: Epoch = Epoch::MAX;

/// How many records there are of each epoch.
#[derive(Debug, Clone, Default)]
pub(crate) struct EpochCounts(VecDeque<(Epoch, u32)>);

impl EpochCounts {
    pub(crate) fn add(&mut self, epoch: Epoch) {
        // New records are of the newest epochs.
        for (index, (of, count)) in self.0.iter_mut().enumerate().rev() {
            if *of == epoch {
                *count += 1;
                return;
            }
            if *of < epoch {
                self.0.insert(index + 1, (epoch, 1));
                return;
            }
        }
        self.0.push_front((epoch, 1));
    }

    /// Takes a record out; true if the lowest epoch changed by that.
    pub(crate) fn remove(&mut self, epoch: Epoch) -> bool {
        let Some(index) = self.0.iter().position(|(of, _)| *of == epoch) else { return false };
        self.0[index].1 -= 1;
        if self.0[index].1 > 0 {
            return false;
        }
        self.0.remove(index);
        index == 0
    }

    pub(crate) fn first(&self) -> Option<Epoch> {
        self.0.front().map(|(epoch, _)| *epoch)
    }
}

#[derive(Debug, Default)]
struct Node {
    /// Lowest epoch of which records may still leave it.
    out: Epoch,
    /// Lowest of those before it, and how many of them have it.
    before_out: Epoch,
    at_before_out: usize,
    before: Vec<u32>,
    behind: Vec<u32>,
    /// Records on the way to it.
    coming: EpochCounts,
    /// Lowest epoch of which records may still come to it.
    input: Epoch,
    /// Records in it; of sources: their next records.
    held: EpochCounts,
    is_source: bool,
    is_tracked: bool,
    is_dirty: bool,
}

/// Frontiers of all stages that stand before a stateful one or a sink, or are one. Stages come first, then the sources:
/// those that feed the same operators are one node. The sinks are last.
#[derive(Debug)]
pub(crate) struct Frontiers {
    nodes: Vec<Node>,
    of_source: Vec<Option<u32>>,
    /// Number of the first sink.
    first_sink: usize,
    dirty: Vec<u32>,
}

impl Frontiers {
    pub(crate) fn new(problem: &Problem, solution: &Solution, network: &Network<'_>, sinks: &[Sink]) -> Self {
        let waits = |operator: usize| {
            let has_sink = sinks.iter().any(|sink| sink.operator == operator);
            has_sink || problem.operators[operator].stateful || is_join(problem, operator)
        };
        let mut tracked: Vec<bool> = (0..problem.operators.len()).map(waits).collect();
        // Edges never lead back, so consumers are known before their producers.
        for operator in (0..problem.operators.len()).rev() {
            let follows = |edge: usize| tracked[problem.edges[edge].to];
            if problem.outputs_of(operator).into_iter().any(follows) {
                tracked[operator] = true;
            }
        }
        let mut pairs: BTreeSet<(usize, usize)> = BTreeSet::new();
        for edge in problem.edges.iter().filter(|edge| tracked[edge.to]) {
            if let Producer::Operator(from) = edge.from {
                pairs.extend(
                    solution.classes.iter().map(|class| (class.hostings[from], class.hostings[edge.to])),
                );
            }
        }
        let mut nodes: Vec<Node> = solution
            .hostings
            .iter()
            .map(|hosting| Node { is_tracked: tracked[hosting.operator], ..Node::default() })
            .collect();
        let mut of_operators: BTreeMap<Vec<usize>, u32> = BTreeMap::new();
        let mut of_source = Vec::new();
        for source in &network.sources {
            let mut fed: Vec<usize> =
                source.outs.iter().map(|out| out.to).filter(|to| tracked[*to]).collect();
            fed.sort_unstable();
            fed.dedup();
            if fed.is_empty() {
                of_source.push(None);
                continue;
            }
            let node = *of_operators.entry(fed.clone()).or_insert_with(|| {
                let node = nodes.len();
                nodes.push(Node { is_source: true, is_tracked: true, ..Node::default() });
                let behind: BTreeSet<usize> = fed.iter().flat_map(|to| network.stages_of(*to)).collect();
                pairs.extend(behind.into_iter().map(|stage| (node, stage)));
                node as u32
            });
            of_source.push(Some(node));
        }
        let first_sink = nodes.len();
        for (node, sink) in (first_sink..).zip(sinks) {
            nodes.push(Node { is_tracked: true, ..Node::default() });
            pairs.extend(solution.classes.iter().map(|class| (class.hostings[sink.operator], node)));
        }
        for (from, to) in pairs {
            nodes[from].behind.push(to as u32);
            nodes[to].before.push(from as u32);
        }
        for node in &mut nodes {
            node.at_before_out = node.before.len();
        }
        Self { nodes, of_source, first_sink, dirty: Vec::new() }
    }

    /// The sink that a node is, by its position in the options.
    pub(crate) fn sink(&self, node: usize) -> Option<usize> {
        node.checked_sub(self.first_sink)
    }

    /// All epochs before it are complete at the stage or sink.
    pub(crate) fn input(&self, stage: usize) -> Epoch {
        self.nodes[stage].input
    }

    /// A record is on the way to a stage.
    pub(crate) fn comes(&mut self, stage: usize, epoch: Epoch) {
        if self.nodes[stage].is_tracked {
            self.nodes[stage].coming.add(epoch);
        }
    }

    /// A record that was on the way to a stage is in it.
    pub(crate) fn arrives(&mut self, stage: usize, epoch: Epoch) {
        let node = &mut self.nodes[stage];
        if node.is_tracked {
            node.held.add(epoch);
            if node.coming.remove(epoch) {
                self.touch(stage as u32);
            }
        }
    }

    /// A record is in a stage.
    pub(crate) fn hold(&mut self, stage: usize, epoch: Epoch) {
        if self.nodes[stage].is_tracked {
            self.nodes[stage].held.add(epoch);
        }
    }

    /// A record has left a stage.
    pub(crate) fn release(&mut self, stage: usize, epoch: Epoch) {
        if self.nodes[stage].is_tracked && self.nodes[stage].held.remove(epoch) {
            self.touch(stage as u32);
        }
    }

    /// A source's next record moves from an epoch to another; none: there was, or is, no record.
    pub(crate) fn source_moves(&mut self, source: usize, from: Option<Epoch>, to: Option<Epoch>) {
        let Some(node) = self.of_source[source].filter(|_| from != to) else { return };
        let held = &mut self.nodes[node as usize].held;
        if let Some(to) = to {
            held.add(to);
        }
        if from.is_none_or(|from| held.remove(from)) {
            self.touch(node);
        }
    }

    fn touch(&mut self, node: u32) {
        let state = &mut self.nodes[node as usize];
        if !state.is_dirty {
            state.is_dirty = true;
            self.dirty.push(node);
        }
    }

    /// Moves one frontier on. A stage or sink to which no more records of an epoch will come by that is added to `advanced`;
    /// false if there is nothing to do any more.
    pub(crate) fn step(&mut self, advanced: &mut Vec<usize>) -> bool {
        let Some(index) = self.dirty.pop() else { return false };
        let node = &mut self.nodes[index as usize];
        node.is_dirty = false;
        let input = match node.is_source {
            true => CLOSED,
            false => node.before_out.min(node.coming.first().unwrap_or(CLOSED)),
        };
        if input > node.input {
            node.input = input;
            if !node.is_source {
                advanced.push(index as usize);
            }
        }
        let old = node.out;
        let now = node.held.first().unwrap_or(CLOSED).min(input);
        if now <= old {
            return true;
        }
        node.out = now;
        for position in 0..self.nodes[index as usize].behind.len() {
            let behind = self.nodes[index as usize].behind[position];
            self.one_before_moved(behind, old);
        }
        true
    }

    /// One before a stage has left the epoch `old`.
    fn one_before_moved(&mut self, stage: u32, old: Epoch) {
        let node = &mut self.nodes[stage as usize];
        if node.before_out != old {
            return;
        }
        if node.at_before_out > 1 {
            node.at_before_out -= 1;
            return;
        }
        let (mut least, mut at) = (CLOSED, 0);
        for before in &self.nodes[stage as usize].before {
            let out = self.nodes[*before as usize].out;
            match out.cmp(&least) {
                std::cmp::Ordering::Less => (least, at) = (out, 1),
                std::cmp::Ordering::Equal => at += 1,
                std::cmp::Ordering::Greater => {}
            }
        }
        let node = &mut self.nodes[stage as usize];
        (node.before_out, node.at_before_out) = (least, at);
        self.touch(stage);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_are_counted_in_order() {
        let mut counts = EpochCounts::default();
        for epoch in [5, 7, 5, 3, 6] {
            counts.add(epoch);
        }
        assert_eq!(counts.first(), Some(3));
        assert!(counts.remove(3));
        assert!(!counts.remove(5) && !counts.remove(7));
        assert!(counts.remove(5));
        assert_eq!(counts.first(), Some(6));
        assert!(counts.remove(6));
        assert_eq!((counts.first(), counts.remove(6)), (None, false));
    }
}
