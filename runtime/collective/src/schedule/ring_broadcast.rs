//! Broadcast along a ring: each rank hands a piece on while the following one comes. The last one hands nothing on.
use super::{Cut, Program, Seat};
use std::ops::Range;

/// Adds the steps for a range of elements of the rank at place `root`.
pub(super) fn program(seat: Seat<'_>, root: usize, cut: Cut, elements: &Range<u64>, program: &mut Program) {
    let hops = seat.behind(root);
    for (number, piece) in cut.pieces(elements).enumerate() {
        let after = if hops == 0 { 0 } else { number + 1 };
        if hops > 0 {
            program.receive(seat.previous(), piece.clone(), false);
        }
        if hops + 1 < seat.count() {
            program.send(seat.next(), piece, after);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_go_along_the_ring_from_the_root() {
        let cut = Cut { length: 3, element: 4, piece: 8 };
        let of = |at| {
            let mut program = Program::default();
            super::program(Seat { order: &[4, 2, 9], at }, 1, cut, &(0..3), &mut program);
            let sends: Vec<_> =
                program.sends.iter().map(|send| (send.to, send.bytes.clone(), send.after)).collect();
            let receives: Vec<_> = program.receives.iter().map(|one| (one.from, one.bytes.clone())).collect();
            (sends, receives)
        };
        assert_eq!(of(1), (vec![(9, 0..8, 0), (9, 8..12, 0)], vec![]), "the root");
        assert_eq!(of(2), (vec![(4, 0..8, 1), (4, 8..12, 2)], vec![(2, 0..8), (2, 8..12)]));
        assert_eq!(of(0), (vec![], vec![(9, 0..8), (9, 8..12)]), "the last one");
    }
}
