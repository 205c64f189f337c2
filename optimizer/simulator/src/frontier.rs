//! Epochs and frontiers: when a stateful stage may take an epoch and a sink may publish it, as in the engine.
//!
//! The frontier of a stage is the lowest epoch whose records may still leave it: the minimum over the records that it
//! holds, those in flight to it, and the reported frontiers of its predecessors. A source's frontier is the epoch of
//! its next record. Each reports its frontier to every stage that it sends records: at once without a link between
//! them, else in a message over the link, after the records sent before it. So a stage or sink completes an epoch only
//! when the last predecessor has reported it, even if none of its records came from there.
use crate::network::{LocationLink, Network, is_join};
use crate::options::Sink;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use tidemill_optimizer::problem::{Problem, Producer};
use tidemill_optimizer::solution::Solution;

/// A tick of the sources.
pub(crate) type Epoch = u64;

/// The frontier of an ended node.
pub(crate) const CLOSED: Epoch = Epoch::MAX;

/// Numbers of records by epoch.
#[derive(Debug, Clone, Default)]
pub(crate) struct EpochCounts(VecDeque<(Epoch, u32)>);

impl EpochCounts {
    pub(crate) fn add(&mut self, epoch: Epoch) {
        // New records belong to the newest epochs.
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

    /// Removes a record; true if that changes the lowest epoch.
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

/// A connection from a node to one that it sends records.
#[derive(Debug)]
struct Channel {
    to: u32,
    /// Its link.
    link: Option<u32>,
    /// The frontier of its sender, as the receiver knows it.
    known: Epoch,
}

/// A node's report of its frontier to another over a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Progress {
    pub(crate) channel: u32,
    pub(crate) epoch: Epoch,
    pub(crate) link: usize,
    /// The receiving stage.
    pub(crate) to: usize,
}

#[derive(Debug, Default)]
struct Node {
    /// Lowest epoch whose records may still leave it.
    out: Epoch,
    /// Lowest frontier of its predecessors, as known to it, and the number of its channels with it.
    before_out: Epoch,
    at_before_out: usize,
    /// Channels to it and from it.
    before: Vec<u32>,
    behind: Vec<u32>,
    /// Records in flight to it.
    coming: EpochCounts,
    /// Lowest epoch whose records may still arrive.
    input: Epoch,
    /// Records in it; for sources: their next records.
    held: EpochCounts,
    is_source: bool,
    is_tracked: bool,
    is_dirty: bool,
}

/// Frontiers of all stages that are stateful or precede a stateful stage or a sink. Stages come first, then the
/// sources: sources that feed the same stages over the same links are one node, whose messages count as one. The sinks
/// are last.
#[derive(Debug)]
pub(crate) struct Frontiers {
    nodes: Vec<Node>,
    channels: Vec<Channel>,
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
        let link = |from: usize, to: usize| match network.way(from, network.stages[to].slot.location) {
            LocationLink::Free => None,
            LocationLink::Link(link) => Some(link as u32),
        };
        // Sender, receiver and the link between them.
        let mut channels: BTreeSet<(usize, usize, Option<u32>)> = BTreeSet::new();
        for edge in problem.edges.iter().filter(|edge| tracked[edge.to]) {
            if let Producer::Operator(from) = edge.from {
                channels.extend(solution.classes.iter().map(|class| {
                    let (from, to) = (class.hostings[from], class.hostings[edge.to]);
                    (from, to, link(network.stages[from].slot.location, to))
                }));
            }
        }
        let mut nodes: Vec<Node> = solution
            .hostings
            .iter()
            .map(|hosting| Node { is_tracked: tracked[hosting.operator], ..Node::default() })
            .collect();
        let mut of_ways: BTreeMap<BTreeSet<(usize, Option<u32>)>, u32> = BTreeMap::new();
        let mut of_source = Vec::new();
        for (number, source) in network.sources.iter().enumerate() {
            let fed = source.outs.iter().map(|out| out.to).filter(|to| tracked[*to]);
            let ways: BTreeSet<(usize, Option<u32>)> = fed
                .flat_map(|operator| network.ways_from(number, operator))
                .map(|(location, stage)| (stage, link(location, stage)))
                .collect();
            if ways.is_empty() {
                of_source.push(None);
                continue;
            }
            let node = of_ways.entry(ways).or_insert_with_key(|ways| {
                let node = nodes.len();
                nodes.push(Node { is_source: true, is_tracked: true, ..Node::default() });
                channels.extend(ways.iter().map(|(stage, link)| (node, *stage, *link)));
                node as u32
            });
            of_source.push(Some(*node));
        }
        let first_sink = nodes.len();
        for (node, sink) in (first_sink..).zip(sinks) {
            nodes.push(Node { is_tracked: true, ..Node::default() });
            // Results stay where they are made: records for a sink cross no link.
            channels.extend(solution.classes.iter().map(|class| (class.hostings[sink.operator], node, None)));
        }
        let channels = channels.into_iter().zip(0u32..).map(|((from, to, link), number)| {
            nodes[from].behind.push(number);
            nodes[to].before.push(number);
            Channel { to: to as u32, link, known: 0 }
        });
        let channels = channels.collect();
        for node in &mut nodes {
            node.at_before_out = node.before.len();
        }
        Self { nodes, channels, of_source, first_sink, dirty: Vec::new() }
    }

    /// Position in the options of a node's sink.
    pub(crate) fn sink(&self, node: usize) -> Option<usize> {
        node.checked_sub(self.first_sink)
    }

    /// All earlier epochs are complete at the stage or sink.
    pub(crate) fn input(&self, stage: usize) -> Epoch {
        self.nodes[stage].input
    }

    /// A record is in flight to a stage.
    pub(crate) fn comes(&mut self, stage: usize, epoch: Epoch) {
        if self.nodes[stage].is_tracked {
            self.nodes[stage].coming.add(epoch);
        }
    }

    /// A record in flight arrives at a stage.
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

    /// Advances one frontier. Adds each stage or sink that thereby completes an epoch to `advanced`, and messages over
    /// links to `said`; false if nothing is left to do.
    pub(crate) fn step(&mut self, advanced: &mut Vec<usize>, said: &mut Vec<Progress>) -> bool {
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
        let now = node.held.first().unwrap_or(CLOSED).min(input);
        if now <= node.out {
            return true;
        }
        node.out = now;
        for position in 0..self.nodes[index as usize].behind.len() {
            let channel = self.nodes[index as usize].behind[position];
            let Channel { to, link, .. } = self.channels[channel as usize];
            match link {
                None => self.knows(channel, now),
                Some(link) => {
                    said.push(Progress { channel, epoch: now, link: link as usize, to: to as usize });
                }
            }
        }
        true
    }

    /// A message has left its link.
    pub(crate) fn comes_to_know(&mut self, progress: Progress) {
        self.knows(progress.channel, progress.epoch);
    }

    /// The receiver of a channel learns the frontier of its sender.
    fn knows(&mut self, channel: u32, epoch: Epoch) {
        let Channel { to, known, .. } = &mut self.channels[channel as usize];
        let (stage, old) = (*to, std::mem::replace(known, epoch));
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
            let known = self.channels[*before as usize].known;
            match known.cmp(&least) {
                std::cmp::Ordering::Less => (least, at) = (known, 1),
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
