//! Schedules: what each rank sends and receives in an operation, and in which order.
//!
//! A rank has a [`Program`] for each lane that takes part: each channel of the strategy for large operations, or each tree for those
//! that go by trees, the [`MESH`] for small ones and for all-to-all. Programs of different lanes touch different bytes and know nothing of each other.
//!
//! The rules of a program, for whoever executes it:
//! - Sends start in their order, each when as many receives as it says were applied. A send has left when its bytes were copied.
//! - Receives are applied in their order, each when as many sends as it says have left.
//! - Bytes of a send that is `staged` leave even where the receiver is not ready to apply them. For others that is optional.
//!
//! With these rules no order of events leads to a deadlock, however little the wires hold: sends and receives of all ranks have one
//! order in which each waits only for earlier ones.
use crate::operation::{Numbered, Operation};
use crate::strategy::{Strategy, Tree};
use std::ops::Range;

mod dissemination;
mod doubling;
mod pairwise;
mod ring_all_gather;
mod ring_broadcast;
mod ring_reduce_scatter;
mod spanning;
#[cfg(test)]
pub(crate) mod tests;
mod tree_broadcast;

/// The lane of wires from each member to each other one. Channels have the lanes from 0 on, trees those after them.
pub const MESH: u16 = u16::MAX;

/// The steps of a rank on one lane in an operation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Program {
    /// The lane.
    pub lane: u16,
    /// Its sends, in order.
    pub sends: Vec<Send>,
    /// Its receives, in order.
    pub receives: Vec<Receive>,
}

/// Bytes that go to another rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Send {
    /// That rank.
    pub to: u32,
    /// Range of the buffer, in bytes.
    pub bytes: Range<u64>,
    /// Receives that must have been applied before.
    pub after: usize,
    /// A receive of the same bytes waits for this send at both ranks, so the bytes must leave before the other rank applies them.
    pub staged: bool,
}

/// Bytes that come from another rank, for the same range of the own buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receive {
    /// That rank.
    pub from: u32,
    /// Range of the buffer, in bytes.
    pub bytes: Range<u64>,
    /// They are combined with those of the buffer, which they replace otherwise.
    pub combined: bool,
    /// Sends that must have left before they are applied.
    pub after: usize,
}

impl Program {
    fn send(&mut self, to: u32, bytes: Range<u64>, after: usize) {
        self.sends.push(Send { to, bytes, after, staged: false });
    }

    fn receive(&mut self, from: u32, bytes: Range<u64>, combined: bool) {
        self.receives.push(Receive { from, bytes, combined, after: 0 });
    }

    /// Swaps a range of the own buffer with one of another rank: what leaves is copied before what comes is applied.
    fn exchange(&mut self, with: u32, bytes: Range<u64>, combined: bool, after: usize) {
        self.sends.push(Send { to: with, bytes: bytes.clone(), after, staged: true });
        self.receives.push(Receive { from: with, bytes, combined, after: self.sends.len() });
    }

    fn is_empty(&self) -> bool {
        self.sends.is_empty() && self.receives.is_empty()
    }
}

/// A rank in an order of all ranks.
#[derive(Debug, Clone, Copy)]
struct Seat<'a> {
    order: &'a [u32],
    at: usize,
}

impl<'a> Seat<'a> {
    fn new(order: &'a [u32], rank: u32) -> Option<Self> {
        Some(Self { order, at: order.iter().position(|other| *other == rank)? })
    }

    fn count(self) -> usize {
        self.order.len()
    }

    /// The place that is this far ahead.
    fn ahead(self, by: usize) -> usize {
        (self.at + by) % self.count()
    }

    /// The place that is this far behind, at most once around.
    fn behind(self, by: usize) -> usize {
        (self.at + self.count() - by) % self.count()
    }

    fn next(self) -> u32 {
        self.order[self.ahead(1)]
    }

    fn previous(self) -> u32 {
        self.order[self.behind(1)]
    }
}

/// Where the bytes of a buffer are cut.
#[derive(Debug, Clone, Copy)]
struct Cut {
    /// Elements of the buffer, and bytes of each.
    length: u64,
    element: u64,
    /// Bytes of a piece.
    piece: u64,
}

impl Cut {
    /// Returns elements of part `part` of `parts` of a range.
    fn part(range: &Range<u64>, part: usize, parts: usize) -> Range<u64> {
        Self::parts(range, part as u64..part as u64 + 1, parts as u64)
    }

    /// Returns elements of the parts from `parts.start` to `parts.end` of `of` parts of a range.
    fn parts(range: &Range<u64>, parts: Range<u64>, of: u64) -> Range<u64> {
        let length = u128::from(range.end - range.start);
        // Not above the length, so it fits.
        let at = |part: u64| range.start + (length * u128::from(part) / u128::from(of.max(1))) as u64;
        at(parts.start)..at(parts.end)
    }

    fn all(self) -> Range<u64> {
        0..self.length
    }

    fn bytes(self, elements: &Range<u64>) -> Range<u64> {
        elements.start * self.element..elements.end * self.element
    }

    /// Returns the pieces of a range of elements, in bytes. An empty range has none.
    fn pieces(self, elements: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
        let bytes = self.bytes(elements);
        let count = (bytes.end - bytes.start).div_ceil(self.piece);
        (0..count).map(move |number| {
            let start = bytes.start + number * self.piece;
            start..bytes.end.min(start + self.piece)
        })
    }
}

/// Returns bytes of a piece: whole elements of each type.
pub fn piece_of(strategy: &Strategy) -> u64 {
    u64::from(strategy.piece).max(8) & !7
}

/// Returns what a rank does in an operation. Nothing for a rank that does not take part, and where there is nothing to send.
///
/// The strategy must be valid: see [`Strategy::check`].
pub fn programs(strategy: &Strategy, numbered: &Numbered, rank: u32) -> Vec<Program> {
    let Some(seat) = Seat::new(&strategy.members, rank) else { return Vec::new() };
    let element = numbered.element.bytes() as u64;
    let cut = Cut { length: numbered.length, element, piece: piece_of(strategy) };
    let bytes = numbered.length.saturating_mul(element);
    let programs = if bytes <= strategy.small || numbered.operation == Operation::AllToAll {
        small(strategy, numbered.operation, seat, cut).into_iter().collect()
    } else if let Some((lane, trees)) = strategy.trees_of(numbered.operation, bytes) {
        by_trees((lane, trees), numbered.operation, rank, cut)
    } else {
        large(strategy, numbered.operation, seat, cut)
    };
    programs.into_iter().filter(|program| !program.is_empty()).collect()
}

/// Few steps, by the mesh. Trees follow the first ring, whose neighbours are near each other.
fn small(strategy: &Strategy, operation: Operation, seat: Seat<'_>, cut: Cut) -> Option<Program> {
    let mut program = Program { lane: MESH, ..Program::default() };
    let order = strategy.channels.first().map_or(&strategy.members, |channel| &channel.ring);
    let near = Seat::new(order, seat.order[seat.at])?;
    match operation {
        Operation::Broadcast { root } => {
            tree_broadcast::program(near, Seat::new(order, root)?.at, cut, &mut program);
        }
        // A scatter would take as many steps, and bytes do not count here.
        Operation::AllReduce { .. } | Operation::ReduceScatter { .. } => {
            doubling::program(near, cut, &mut program);
        }
        Operation::AllGather => dissemination::program(seat, cut, &mut program),
        Operation::AllToAll => pairwise::program(seat, cut, &mut program),
    }
    Some(program)
}

/// By all trees at once, each with as much of the buffer as its weight says.
fn by_trees((lane, trees): (usize, &[Tree]), operation: Operation, rank: u32, cut: Cut) -> Vec<Program> {
    let all: u64 = trees.iter().map(|tree| u64::from(tree.weight)).sum();
    let (mut before, mut programs) = (0, Vec::new());
    for (lane, tree) in (lane..).zip(trees) {
        let mut program = Program { lane: lane as u16, ..Program::default() };
        let until = before + u64::from(tree.weight);
        let elements = Cut::parts(&cut.all(), before..until, all);
        match operation {
            Operation::Broadcast { root } => {
                spanning::broadcast(tree, root, rank, cut, &elements, &mut program);
            }
            _ => spanning::all_reduce(tree, rank, cut, &elements, &mut program),
        }
        before = until;
        programs.push(program);
    }
    programs
}

/// Few bytes, by all rings at once.
fn large(strategy: &Strategy, operation: Operation, seat: Seat<'_>, cut: Cut) -> Vec<Program> {
    let channels = strategy.channels.len();
    let mut programs = Vec::new();
    for (number, channel) in strategy.channels.iter().enumerate() {
        let mut program = Program { lane: number as u16, ..Program::default() };
        let Some(ring) = Seat::new(&channel.ring, seat.order[seat.at]) else { continue };
        // The part of the member at each place of the ring, as far as this channel has it.
        let blocks: Vec<Range<u64>> = channel
            .ring
            .iter()
            .filter_map(|rank| {
                let position = Seat::new(seat.order, *rank)?.at;
                Some(Cut::part(&Cut::part(&cut.all(), position, seat.count()), number, channels))
            })
            .collect();
        let mut arrived = vec![None; blocks.len()];
        match operation {
            Operation::Broadcast { root } => {
                let Some(root) = Seat::new(&channel.ring, root) else { continue };
                let all = Cut::part(&cut.all(), number, channels);
                ring_broadcast::program(ring, root.at, cut, &all, &mut program);
            }
            Operation::AllReduce { .. } => {
                ring_reduce_scatter::extend(ring, cut, &blocks, &mut arrived, &mut program);
                ring_all_gather::extend(ring, cut, &blocks, &mut arrived, &mut program);
            }
            Operation::ReduceScatter { .. } => {
                ring_reduce_scatter::extend(ring, cut, &blocks, &mut arrived, &mut program);
            }
            Operation::AllGather => {
                ring_all_gather::extend(ring, cut, &blocks, &mut arrived, &mut program);
            }
            Operation::AllToAll => {}
        }
        programs.push(program);
    }
    programs
}
