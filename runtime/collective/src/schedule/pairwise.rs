//! All-to-all by pairs: in each step a rank swaps parts with another one. Each byte goes directly to where it belongs.
//!
//! Pieces of all pairs alternate, so that all wires are busy.
use super::{Cut, Program, Seat};

/// Adds the steps, in the order of the members.
pub(super) fn program(seat: Seat<'_>, cut: Cut, program: &mut Program) {
    let count = seat.count();
    let part = |place| Cut::part(&cut.all(), place, count);
    // Parts are equally long: the length is a multiple of the number of members.
    for number in 0..cut.pieces(&part(0)).count() {
        for step in 0..count {
            // Symmetric: that one meets this one in the same step.
            let partner = (step + count - seat.at) % count;
            if partner != seat.at
                && let Some(piece) = cut.pieces(&part(partner)).nth(number)
            {
                program.exchange(seat.order[partner], piece, false, 0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pair_meets_once_per_piece() {
        let order = [3, 4, 5, 6];
        let programs: Vec<Program> = (0..4)
            .map(|at| {
                let mut program = Program::default();
                super::program(
                    Seat { order: &order, at },
                    Cut { length: 8, element: 4, piece: 8 },
                    &mut program,
                );
                program
            })
            .collect();
        let partners: Vec<Vec<u32>> =
            programs.iter().map(|program| program.sends.iter().map(|send| send.to).collect()).collect();
        assert_eq!(partners, [[4, 5, 6], [6, 3, 5], [6, 3, 4], [4, 5, 3]]);
        let program = &programs[1];
        assert_eq!((program.sends[0].bytes.clone(), program.receives[0].bytes.clone()), (24..32, 24..32));
        assert!(program.sends.iter().all(|send| send.staged));
        assert!(program.receives.iter().enumerate().all(|(n, receive)| receive.after == n + 1));
    }
}
