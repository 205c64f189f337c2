//! All-gather around a ring: each rank hands on what it got last. After a reduce-scatter the two are an all-reduce.
use super::{Cut, Program, Seat};
use std::ops::Range;

/// Adds the steps. `blocks`: elements of the block that begins at each place of the ring. `arrived`: the first receive of each block.
pub(super) fn extend(
    seat: Seat<'_>,
    cut: Cut,
    blocks: &[Range<u64>],
    arrived: &mut [Option<usize>],
    program: &mut Program,
) {
    for step in 1..seat.count() {
        let (out, into) = (seat.behind(step - 1), seat.behind(step));
        for (number, piece) in cut.pieces(&blocks[out]).enumerate() {
            program.send(seat.next(), piece, arrived[out].map_or(0, |first| first + number + 1));
        }
        arrived[into] = Some(program.receives.len());
        for piece in cut.pieces(&blocks[into]) {
            program.receive(seat.previous(), piece, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_block_leaves_first_and_the_others_as_they_come() {
        let cut = Cut { length: 3, element: 4, piece: 8 };
        let mut program = Program::default();
        extend(Seat { order: &[5, 6, 7], at: 1 }, cut, &[0..1, 1..2, 2..3], &mut [None; 3], &mut program);
        let sends: Vec<_> =
            program.sends.iter().map(|send| (send.to, send.bytes.clone(), send.after)).collect();
        assert_eq!(sends, [(7, 4..8, 0), (7, 0..4, 1)]);
        let receives: Vec<_> = program.receives.iter().map(|one| (one.from, one.bytes.clone())).collect();
        assert_eq!(receives, [(5, 0..4), (5, 8..12)]);
        assert!(program.receives.iter().all(|receive| !receive.combined));
    }

    #[test]
    fn an_all_reduce_sends_a_reduced_block_when_its_last_piece_of_the_first_half_came() {
        let (cut, blocks) = (Cut { length: 4, element: 4, piece: 4 }, [0..2, 2..4]);
        let (mut program, mut arrived) = (Program::default(), [None; 2]);
        let seat = Seat { order: &[0, 1], at: 0 };
        super::super::ring_reduce_scatter::extend(seat, cut, &blocks, &mut arrived, &mut program);
        extend(seat, cut, &blocks, &mut arrived, &mut program);
        let sends: Vec<_> = program.sends.iter().map(|send| (send.bytes.clone(), send.after)).collect();
        assert_eq!(sends, [(8..12, 0), (12..16, 0), (0..4, 1), (4..8, 2)]);
    }
}
