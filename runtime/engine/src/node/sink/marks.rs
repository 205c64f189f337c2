//! Committed state of a sink before each epoch of a possible checkpoint.
use crate::frame::Epoch;
use std::collections::VecDeque;

/// A sink after a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mark {
    /// Exactly the epochs before this one are committed.
    pub(super) epoch: Epoch,
    /// Number of rows, of all processes.
    pub(super) rows: u64,
    /// Token from which it continues.
    pub(super) token: Vec<u8>,
}

/// Marks, one per epoch with rows; as many as the run is ahead of the last checkpoint.
#[derive(Debug, Default)]
pub(super) struct Marks(VecDeque<Mark>);

impl Marks {
    /// Adds the present commit.
    pub(super) fn add(&mut self, mark: Mark) {
        match self.0.back_mut() {
            // An epoch without rows changes nothing.
            Some(last) if last.token == mark.token => {}
            Some(last) if last.epoch == mark.epoch => *last = mark,
            _ => self.0.push_back(mark),
        }
    }

    /// Returns the state of the sink with exactly the epochs before `epoch`.
    pub(super) fn at(&self, epoch: Epoch) -> Option<&Mark> {
        let behind = self.0.partition_point(|mark| mark.epoch <= epoch);
        self.0.get(behind.checked_sub(1)?)
    }

    /// Removes marks that no checkpoint of `epoch` or later needs.
    pub(super) fn forget(&mut self, epoch: Epoch) {
        while self.0.get(1).is_some_and(|next| next.epoch <= epoch) {
            self.0.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_holds_until_there_are_more_rows() {
        let mut marks = Marks::default();
        let mark = |epoch, rows| Mark { epoch, rows, token: vec![rows as u8] };
        assert_eq!(marks.at(7), None);
        for (epoch, rows) in [(2, 0), (4, 3), (5, 3), (9, 8), (9, 9)] {
            marks.add(mark(epoch, rows));
        }
        let rows = |marks: &Marks, epoch| marks.at(epoch).map(|mark| mark.rows);
        assert_eq!(
            [1, 2, 3, 4, 8, 9, Epoch::MAX].map(|epoch| rows(&marks, epoch)),
            [None, Some(0), Some(0), Some(3), Some(3), Some(9), Some(9)]
        );
        marks.forget(8);
        assert_eq!([rows(&marks, 3), rows(&marks, 8), rows(&marks, 9)], [None, Some(3), Some(9)]);
    }
}
