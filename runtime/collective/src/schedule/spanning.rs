//! All-reduce and broadcast along a tree that connects all members.
//!
//! A broadcast goes away from its root. An all-reduce goes up to the root of the tree, combined on the way, and down again, piece by
//! piece: while late pieces go up, early ones go down.
//!
//! **Order.** Each transfer has a tick. With `h` the depth of the deepest member, piece p goes over an edge whose lower end has depth d
//! up at tick p + [`SLACK`] (h - d) and down at tick p + [`SLACK`] (h + d). Each rank does its sends and its receives in the order of
//! ticks, ups before downs, edges by their places. A transfer needs only transfers of earlier ticks, and all ranks have the same order,
//! so the first transfer that is not done can always be done. A down replaces bytes of a rank only after its up has left: the result
//! contains them.
use super::{Cut, Program};
use crate::strategy::Tree;
use std::ops::Range;

/// Ticks for each level. With 1 all levels would have to be equally quick; with more a rank passes on more pieces before it waits for
/// results.
const SLACK: usize = 2;

/// A neighbour of a rank in the tree.
struct Neighbour {
    edge: usize,
    rank: u32,
    is_above: bool,
    /// Depth of the lower end of the edge.
    depth: usize,
}

/// Returns the neighbours of a rank in a tree that hangs on a root, by their edges, and the depth of the deepest member.
fn neighbours(tree: &Tree, root: u32, rank: u32) -> (Vec<Neighbour>, usize) {
    let (mut neighbours, mut deepest) = (Vec::new(), 0);
    for branch in tree.from(root) {
        deepest = deepest.max(branch.depth);
        let other = if branch.below == rank {
            Some((branch.above, true))
        } else {
            (branch.above == rank).then_some((branch.below, false))
        };
        if let Some((rank, is_above)) = other {
            neighbours.push(Neighbour { edge: branch.edge, rank, is_above, depth: branch.depth });
        }
    }
    neighbours.sort_by_key(|neighbour| neighbour.edge);
    (neighbours, deepest)
}

/// Adds the steps of a broadcast of a range of elements from `root`.
pub(super) fn broadcast(
    tree: &Tree,
    root: u32,
    rank: u32,
    cut: Cut,
    elements: &Range<u64>,
    program: &mut Program,
) {
    let (neighbours, _) = neighbours(tree, root, rank);
    for piece in cut.pieces(elements) {
        for above in neighbours.iter().filter(|neighbour| neighbour.is_above) {
            program.receive(above.rank, piece.clone(), false);
        }
        for below in neighbours.iter().filter(|neighbour| !neighbour.is_above) {
            program.send(below.rank, piece.clone(), program.receives.len());
        }
    }
}

/// Adds the steps of an all-reduce of a range of elements.
pub(super) fn all_reduce(tree: &Tree, rank: u32, cut: Cut, elements: &Range<u64>, program: &mut Program) {
    let Some(root) = tree.root() else { return };
    let (neighbours, deepest) = neighbours(tree, root, rank);
    let pieces: Vec<Range<u64>> = cut.pieces(elements).collect();
    // Receives after which the bytes of each piece may leave.
    let mut ready = vec![0; pieces.len()];
    for tick in 0..pieces.len() + 2 * SLACK * deepest {
        let due = |level: usize| tick.checked_sub(SLACK * level).filter(|piece| *piece < pieces.len());
        for neighbour in &neighbours {
            let Some(piece) = due(deepest - neighbour.depth) else { continue };
            if neighbour.is_above {
                program.send(neighbour.rank, pieces[piece].clone(), ready[piece]);
            } else {
                program.receive(neighbour.rank, pieces[piece].clone(), true);
                ready[piece] = program.receives.len();
            }
        }
        for neighbour in &neighbours {
            let Some(piece) = due(deepest + neighbour.depth) else { continue };
            if neighbour.is_above {
                program.receive(neighbour.rank, pieces[piece].clone(), false);
                ready[piece] = program.receives.len();
            } else {
                program.send(neighbour.rank, pieces[piece].clone(), ready[piece]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CUT: Cut = Cut { length: 3, element: 4, piece: 4 };

    /// Ranks 7 and 5 at the root 3, and 9 below 5.
    fn tree() -> Tree {
        Tree { edges: vec![(3, 7), (3, 5), (5, 9)], weight: 1 }
    }

    fn sends(program: &Program) -> Vec<(u32, u64, usize)> {
        program.sends.iter().map(|send| (send.to, send.bytes.start / 4, send.after)).collect()
    }

    fn receives(program: &Program) -> Vec<(u32, u64, bool)> {
        program.receives.iter().map(|one| (one.from, one.bytes.start / 4, one.combined)).collect()
    }

    #[test]
    fn a_broadcast_goes_away_from_any_root() {
        let of = |root, rank| {
            let mut program = Program::default();
            broadcast(&tree(), root, rank, CUT, &(1..3), &mut program);
            program
        };
        assert_eq!(sends(&of(3, 3)), [(7, 1, 0), (5, 1, 0), (7, 2, 0), (5, 2, 0)]);
        assert_eq!(sends(&of(9, 3)), [(7, 1, 1), (7, 2, 2)]);
        assert_eq!(receives(&of(9, 3)), [(5, 1, false), (5, 2, false)]);
        assert_eq!(sends(&of(9, 7)), []);
    }

    #[test]
    fn an_all_reduce_combines_upwards_and_passes_results_down_meanwhile() {
        let of = |rank, length| {
            let mut program = Program::default();
            all_reduce(&tree(), rank, Cut { length, ..CUT }, &(0..length), &mut program);
            program
        };
        let leaf = of(9, 3);
        assert_eq!(sends(&leaf), [(5, 0, 0), (5, 1, 0), (5, 2, 0)]);
        assert_eq!(receives(&leaf), [(5, 0, false), (5, 1, false), (5, 2, false)]);
        let root = of(3, 2);
        assert_eq!(sends(&root), [(7, 0, 2), (5, 0, 2), (7, 1, 4), (5, 1, 4)]);
        assert_eq!(receives(&root), [(7, 0, true), (5, 0, true), (7, 1, true), (5, 1, true)]);
        let inner = of(5, 20);
        // Seven pieces of 9 come before the first result of 3, and from then on they take turns.
        let first: Vec<_> =
            receives(&inner).into_iter().take(9).map(|(from, piece, _)| (from, piece)).collect();
        assert_eq!(first, [(9, 0), (9, 1), (9, 2), (9, 3), (9, 4), (9, 5), (9, 6), (3, 0), (9, 7)]);
        let last = sends(&inner).pop();
        assert_eq!(last, Some((9, 19, 40)));
    }

    #[test]
    fn one_member_does_nothing() {
        let (tree, mut program) = (Tree { edges: Vec::new(), weight: 1 }, Program::default());
        all_reduce(&tree, 4, CUT, &(0..3), &mut program);
        broadcast(&tree, 4, 4, CUT, &(0..3), &mut program);
        assert_eq!(program, Program::default());
    }
}
