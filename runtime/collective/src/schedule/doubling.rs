//! All-reduce by recursive doubling: in each step a rank exchanges everything with one that is twice as far away.
//!
//! Where the number of ranks is no power of two, the first ones take their neighbour's buffer before and return the result after.
//! Both sides of an exchange combine the same two values, and which is which does not matter to [`crate::element::combine`], so all
//! ranks have the same bytes.
use super::{Cut, Program, Seat};

/// Adds the steps.
pub(super) fn program(seat: Seat<'_>, cut: Cut, program: &mut Program) {
    let count = seat.count();
    let power = if count.is_power_of_two() { count } else { count.next_power_of_two() / 2 };
    // Ranks at even places below this give theirs to the following one.
    let folded = 2 * (count - power);
    let pieces = || cut.pieces(&cut.all());
    if seat.at < folded && seat.at.is_multiple_of(2) {
        let neighbour = seat.order[seat.at + 1];
        for piece in pieces() {
            program.send(neighbour, piece.clone(), 0);
            program.receive(neighbour, piece, false);
        }
        return;
    }
    let mut first = None;
    if seat.at < folded {
        first = Some(0);
        for piece in pieces() {
            program.receive(seat.order[seat.at - 1], piece, true);
        }
    }
    let number = if seat.at < folded { seat.at / 2 } else { seat.at - folded / 2 };
    let place = |number: usize| if number < folded / 2 { 2 * number + 1 } else { number + folded / 2 };
    let after = |first: Option<usize>, piece: usize| first.map_or(0, |first| first + piece + 1);
    let mut distance = 1;
    while distance < power {
        let partner = seat.order[place(number ^ distance)];
        let before = first.replace(program.receives.len());
        for (n, piece) in pieces().enumerate() {
            program.exchange(partner, piece, true, after(before, n));
        }
        distance *= 2;
    }
    if seat.at < folded {
        for (n, piece) in pieces().enumerate() {
            program.send(seat.order[seat.at - 1], piece, after(first, n));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peers(count: u32, at: usize) -> (Vec<u32>, Vec<u32>) {
        let order: Vec<u32> = (0..count).collect();
        let mut program = Program::default();
        super::program(Seat { order: &order, at }, Cut { length: 1, element: 4, piece: 8 }, &mut program);
        let froms = program.receives.iter().map(|receive| receive.from).collect();
        (program.sends.iter().map(|send| send.to).collect(), froms)
    }

    #[test]
    fn a_power_of_two_takes_its_logarithm_of_steps() {
        assert_eq!(peers(8, 5), (vec![4, 7, 1], vec![4, 7, 1]));
        assert_eq!(peers(1, 0), (vec![], vec![]));
    }

    #[test]
    fn others_fold_the_first_ones() {
        // 1, 3 and 4 are the power of two.
        assert_eq!(peers(5, 0), (vec![1], vec![1]));
        assert_eq!(peers(5, 1), (vec![2, 3, 0], vec![0, 2, 3]));
        assert_eq!(peers(5, 2), (vec![1, 4], vec![1, 4]));
        assert_eq!(peers(3, 1), (vec![2, 0], vec![0, 2]));
    }
}
