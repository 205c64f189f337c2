//! MOTA and MOTP: Bernardin and Stiefelhagen, "Evaluating Multiple Object Tracking Performance: The CLEAR MOT Metrics"
//! (2008). Boxes are paired frame by frame; pairs of the frame before are kept where they still overlap.
use super::{Frame, Numbers, ROUNDING, ratio};
use crate::assignment::assign;

/// Counts of the frames of one camera; several may be [joined](Clear::joined).
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Clear {
    /// Pairs.
    pub matched: u64,
    /// True boxes without a partner.
    pub missed: u64,
    /// Found boxes without a partner.
    pub surplus: u64,
    /// Pairs whose object had another identity when it was last found.
    pub switches: u64,
    /// Sum of the overlaps of the pairs.
    pub overlap: f64,
}

impl Clear {
    /// Returns 1 - (missed + surplus + switches) / true boxes; below 0 where there are more mistakes than boxes.
    pub fn mota(&self) -> f64 {
        let truth = (self.matched + self.missed).max(1) as f64;
        (self.matched as f64 - self.surplus as f64 - self.switches as f64) / truth
    }

    /// Returns the mean overlap of the pairs.
    pub fn motp(&self) -> f64 {
        ratio(self.overlap, self.matched as f64)
    }

    /// Adds another camera.
    #[must_use]
    pub fn joined(self, other: Self) -> Self {
        Self {
            matched: self.matched + other.matched,
            missed: self.missed + other.missed,
            surplus: self.surplus + other.surplus,
            switches: self.switches + other.switches,
            overlap: self.overlap + other.overlap,
        }
    }
}

/// Compares the frames of one camera, in order. `overlap`: the least for a pair, 0.5 by custom.
pub fn clear(frames: &[Frame], overlap: f64) -> Clear {
    let (mut truth, mut found) = Numbers::both(frames);
    // The identity of each object when it was last found, and in the last frame with both kinds of boxes.
    let mut last: Vec<Option<usize>> = vec![None; truth.0.len()];
    let mut before = last.clone();
    let mut result = Clear::default();
    for frame in frames {
        let (rows, columns) = (frame.truth.len(), frame.found.len());
        if rows == 0 || columns == 0 {
            result.missed += rows as u64;
            result.surplus += columns as u64;
            continue;
        }
        let objects: Vec<usize> = frame.truth.iter().map(|placed| truth.of(placed.identity)).collect();
        let identities: Vec<usize> = frame.found.iter().map(|placed| found.of(placed.identity)).collect();
        let overlaps = frame.overlaps();
        let cost = |index: usize| {
            let (row, column) = (index / columns, index % columns);
            let kept = before[objects[row]] == Some(identities[column]);
            // One kept pair outweighs any gain in overlaps.
            if overlaps[index] < overlap - ROUNDING {
                0.0
            } else {
                -(overlaps[index] + if kept { 1000.0 } else { 0.0 })
            }
        };
        let costs: Vec<f64> = (0..rows * columns).map(cost).collect();
        before.fill(None);
        let mut matched = 0;
        for (row, column) in assign(rows, columns, &costs).into_iter().enumerate() {
            let Some(column) = column.filter(|column| costs[row * columns + column] < -ROUNDING) else {
                continue;
            };
            let (object, identity) = (objects[row], identities[column]);
            result.switches += u64::from(last[object].is_some_and(|known| known != identity));
            (last[object], before[object]) = (Some(identity), Some(identity));
            result.overlap += overlaps[row * columns + column];
            matched += 1;
        }
        result.matched += matched as u64;
        result.missed += (rows - matched) as u64;
        result.surplus += (columns - matched) as u64;
    }
    result
}
