//! All-gather by dissemination (Bruck and others, 1997): in each step a rank has twice as many parts, and hands all of them to one
//! that is as far behind as it has parts.
use super::{Cut, Program, Seat};
use std::ops::Range;

/// Adds the steps, in the order of the members: neighbouring parts are neighbouring bytes.
pub(super) fn program(seat: Seat<'_>, cut: Cut, program: &mut Program) {
    let count = seat.count();
    let mut distance = 1;
    while distance < count {
        let parts = distance.min(count - distance);
        let after = program.receives.len();
        for run in runs(seat.at, parts, count) {
            for piece in cut.pieces(&elements(cut, run, count)) {
                program.send(seat.order[seat.behind(distance)], piece, after);
            }
        }
        for run in runs(seat.ahead(distance), parts, count) {
            for piece in cut.pieces(&elements(cut, run, count)) {
                program.receive(seat.order[seat.ahead(distance)], piece, false);
            }
        }
        distance *= 2;
    }
}

/// Returns places from `first` on, around the end.
fn runs(first: usize, parts: usize, count: usize) -> [Range<usize>; 2] {
    let end = first + parts;
    [first..end.min(count), 0..end.saturating_sub(count)]
}

fn elements(cut: Cut, parts: Range<usize>, count: usize) -> Range<u64> {
    let start = Cut::part(&cut.all(), parts.start, count).start;
    // An empty run is an empty range.
    if parts.is_empty() { start..start } else { start..Cut::part(&cut.all(), parts.end - 1, count).end }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_few_and_runs_go_around_the_end() {
        let order = [10, 11, 12, 13, 14];
        let mut program = Program::default();
        super::program(Seat { order: &order, at: 3 }, Cut { length: 5, element: 4, piece: 64 }, &mut program);
        let sends: Vec<_> =
            program.sends.iter().map(|send| (send.to, send.bytes.clone(), send.after)).collect();
        // Part 3; then parts 3 and 4; then one part, the last that is missing there.
        assert_eq!(sends, [(12, 12..16, 0), (11, 12..20, 1), (14, 12..16, 2)]);
        let receives: Vec<_> = program.receives.iter().map(|one| (one.from, one.bytes.clone())).collect();
        assert_eq!(receives, [(14, 16..20), (10, 0..8), (12, 8..12)]);
    }
}
