//! HOTA: Luiten et al., "HOTA: A Higher Order Metric for Evaluating Multi-Object Tracking" (2021): the geometric mean
//! of detection and association accuracy, over 19 limits of overlap, 0.05 to 0.95.
use super::{Frame, Numbers, ROUNDING, ratio};
use crate::assignment::assign;

/// Number of limits of overlap.
const LIMITS: usize = 19;

/// The limit number `index`.
fn limit(index: usize) -> f64 {
    0.05 * (index + 1) as f64
}

/// Counts of the frames of one camera; several may be [joined](Hota::joined).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hota {
    matched: [f64; LIMITS],
    missed: [f64; LIMITS],
    surplus: [f64; LIMITS],
    /// Association accuracy times matched boxes.
    association: [f64; LIMITS],
}

impl Default for Hota {
    fn default() -> Self {
        let none = [0.0; LIMITS];
        Self { matched: none, missed: none, surplus: none, association: none }
    }
}

impl Hota {
    fn mean(value: impl Fn(usize) -> f64) -> f64 {
        (0..LIMITS).map(value).sum::<f64>() / LIMITS as f64
    }

    fn detection_at(&self, index: usize) -> f64 {
        ratio(self.matched[index], self.matched[index] + self.missed[index] + self.surplus[index])
    }

    fn association_at(&self, index: usize) -> f64 {
        ratio(self.association[index], self.matched[index])
    }

    /// Returns HOTA, 0 to 1: the mean over the limits.
    pub fn score(&self) -> f64 {
        Self::mean(|index| (self.detection_at(index) * self.association_at(index)).sqrt())
    }

    /// Returns DetA, 0 to 1: the mean over the limits.
    pub fn detection(&self) -> f64 {
        Self::mean(|index| self.detection_at(index))
    }

    /// Returns AssA, 0 to 1: the mean over the limits.
    pub fn association(&self) -> f64 {
        Self::mean(|index| self.association_at(index))
    }

    /// Adds another camera: boxes are counted together, association is weighted by matched boxes.
    #[must_use]
    pub fn joined(mut self, other: &Self) -> Self {
        for index in 0..LIMITS {
            self.matched[index] += other.matched[index];
            self.missed[index] += other.missed[index];
            self.surplus[index] += other.surplus[index];
            self.association[index] += other.association[index];
        }
        self
    }
}

/// Compares the frames of one camera.
pub fn hota(frames: &[Frame]) -> Hota {
    let (mut truth, mut found) = Numbers::both(frames);
    let (objects, identities) = (truth.0.len(), found.0.len());
    let (mut truths, mut founds) = (vec![0.0; objects], vec![0.0; identities]);
    // The similarity of each object and each identity, by which boxes are then paired.
    let mut common = vec![0.0; objects * identities];
    let places: Vec<(Vec<usize>, Vec<usize>)> = frames
        .iter()
        .map(|frame| {
            let rows = frame.truth.iter().map(|placed| truth.of(placed.identity)).collect();
            (rows, frame.found.iter().map(|placed| found.of(placed.identity)).collect())
        })
        .collect();
    for (frame, (rows, columns)) in frames.iter().zip(&places) {
        let overlaps = frame.overlaps();
        let count = columns.len();
        let of_row: Vec<f64> =
            (0..rows.len()).map(|row| overlaps[row * count..(row + 1) * count].iter().sum()).collect();
        let of_column: Vec<f64> = (0..count)
            .map(|column| (0..rows.len()).map(|row| overlaps[row * count + column]).sum())
            .collect();
        rows.iter().for_each(|row| truths[*row] += 1.0);
        columns.iter().for_each(|column| founds[*column] += 1.0);
        for (row, object) in rows.iter().enumerate() {
            for (column, identity) in columns.iter().enumerate() {
                let overlap = overlaps[row * count + column];
                let whole = of_row[row] + of_column[column] - overlap;
                if whole > ROUNDING {
                    common[object * identities + identity] += overlap / whole;
                }
            }
        }
    }
    let alike = |object: usize, identity: usize| {
        let both = common[object * identities + identity];
        ratio(both, truths[object] + founds[identity] - both)
    };
    let mut result = Hota::default();
    let mut pairs = vec![vec![0.0; objects * identities]; LIMITS];
    for (frame, (rows, columns)) in frames.iter().zip(&places) {
        let overlaps = frame.overlaps();
        let count = columns.len();
        let cost = |index: usize| -alike(rows[index / count], columns[index % count]) * overlaps[index];
        let costs: Vec<f64> = (0..overlaps.len()).map(cost).collect();
        let mut matched = [0.0; LIMITS];
        for (row, column) in assign(rows.len(), count, &costs).into_iter().enumerate() {
            let Some(column) = column else { continue };
            let overlap = overlaps[row * count + column];
            for index in (0..LIMITS).filter(|index| overlap >= limit(*index) - ROUNDING) {
                matched[index] += 1.0;
                pairs[index][rows[row] * identities + columns[column]] += 1.0;
            }
        }
        for (index, matched) in matched.into_iter().enumerate() {
            result.matched[index] += matched;
            result.missed[index] += rows.len() as f64 - matched;
            result.surplus[index] += count as f64 - matched;
        }
    }
    for (index, pairs) in pairs.iter().enumerate() {
        for (at, both) in pairs.iter().enumerate().filter(|(_, both)| **both > 0.0) {
            let whole = truths[at / identities] + founds[at % identities] - both;
            result.association[index] += both * ratio(*both, whole.max(1.0));
        }
    }
    result
}
