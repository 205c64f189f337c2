//! Broadcast by a binomial tree: as many steps as the number of ranks has binary digits. Each subtree is a run of neighbours.
use super::{Cut, Program, Seat};

/// Adds the steps for all elements of the rank at place `root`.
pub(super) fn program(seat: Seat<'_>, root: usize, cut: Cut, program: &mut Program) {
    let (count, hops) = (seat.count(), seat.behind(root));
    // Subtrees below this rank have less than this many ranks.
    let width = if hops == 0 { count.next_power_of_two() } else { 1 << hops.trailing_zeros() };
    let rank_at = |hops: usize| seat.order[(root + hops) % count];
    for (number, piece) in cut.pieces(&cut.all()).enumerate() {
        let after = if hops == 0 { 0 } else { number + 1 };
        if hops > 0 {
            program.receive(rank_at(hops - width), piece.clone(), false);
        }
        // The largest subtree first.
        let mut child = width / 2;
        while child > 0 {
            if hops + child < count {
                program.send(rank_at(hops + child), piece.clone(), after);
            }
            child /= 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rank_but_the_root_has_one_parent() {
        let order: Vec<u32> = (0..6).collect();
        let children = |rank: usize| {
            let mut program = Program::default();
            super::program(
                Seat { order: &order, at: rank },
                2,
                Cut { length: 1, element: 4, piece: 8 },
                &mut program,
            );
            let parents: Vec<_> = program.receives.iter().map(|receive| receive.from).collect();
            (parents, program.sends.iter().map(|send| send.to).collect::<Vec<_>>())
        };
        assert_eq!(children(2), (vec![], vec![0, 4, 3]));
        assert_eq!(children(4), (vec![2], vec![5]));
        assert_eq!(children(0), (vec![2], vec![1]));
        assert_eq!(children(1), (vec![0], vec![]));
    }
}
