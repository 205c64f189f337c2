//! Reduce-scatter around a ring: each block goes once around and grows on its way; the last rank that it reaches keeps it.
//!
//! Each rank sends all blocks but its own once, which is the least that is possible.
use super::{Cut, Program, Seat};
use std::ops::Range;

/// Adds the steps. `blocks`: elements of the block that stays at each place of the ring. `arrived`: the first receive of each block.
pub(super) fn extend(
    seat: Seat<'_>,
    cut: Cut,
    blocks: &[Range<u64>],
    arrived: &mut [Option<usize>],
    program: &mut Program,
) {
    for step in 1..seat.count() {
        let (out, into) = (seat.behind(step), seat.behind(step + 1));
        for (number, piece) in cut.pieces(&blocks[out]).enumerate() {
            program.send(seat.next(), piece, arrived[out].map_or(0, |first| first + number + 1));
        }
        arrived[into] = Some(program.receives.len());
        for piece in cut.pieces(&blocks[into]) {
            program.receive(seat.previous(), piece, true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_leaves_piece_by_piece_as_it_comes() {
        let cut = Cut { length: 12, element: 4, piece: 8 };
        let mut program = Program::default();
        let blocks = [0..4, 4..8, 8..12];
        extend(Seat { order: &[5, 6, 7], at: 0 }, cut, &blocks, &mut [None; 3], &mut program);
        let sends: Vec<_> =
            program.sends.iter().map(|send| (send.to, send.bytes.clone(), send.after)).collect();
        // The block of 7 without waiting, then that of 6, whose pieces came first.
        assert_eq!(sends, [(6, 32..40, 0), (6, 40..48, 0), (6, 16..24, 1), (6, 24..32, 2)]);
        let receives: Vec<_> = program.receives.iter().map(|one| (one.from, one.bytes.clone())).collect();
        assert_eq!(receives, [(7, 16..24), (7, 24..32), (7, 0..8), (7, 8..16)]);
        assert!(program.receives.iter().all(|receive| receive.combined));
    }
}
