//! Quality of detection, tracking and recognition, by the definitions of the field.
//!
//! | measure | compares | file |
//! |---|---|---|
//! | IDF1, IDP, IDR | identities, over all frames of all cameras | [`identity`] |
//! | MOTA, MOTP | boxes frame by frame, and switches of identities | [`clear`] |
//! | HOTA, DetA, AssA | detection and association, equally weighted | [`hota`] |
//! | average precision | boxes by their scores | [`detection`] |
//! | rank-1, mAP | embeddings: the most similar are of one object | [`retrieval`] |
pub mod clear;
pub mod detection;
pub mod hota;
pub mod identity;
pub mod retrieval;

use crate::assignment::assign_below;
use crate::bounding_box::BoundingBox;
use std::collections::BTreeMap;

/// A box of an object in a frame.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Placed {
    /// The object; equal numbers in several frames (and cameras) are one object.
    pub identity: u64,
    /// Its box.
    pub area: BoundingBox,
}

/// One picture of one camera.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Frame {
    /// True boxes, each object once.
    pub truth: Vec<Placed>,
    /// Found boxes, each identity once.
    pub found: Vec<Placed>,
}

impl Frame {
    /// Creates a frame whose truth has boxes to ignore: each removes the found box that overlaps it most, if the
    /// overlap is at least `overlap` and no counted box is a better partner, as MOTChallenge does with its distractors.
    pub fn without_ignored(
        truth: Vec<Placed>,
        ignored: &[BoundingBox],
        found: Vec<Placed>,
        overlap: f64,
    ) -> Self {
        if ignored.is_empty() {
            return Self { truth, found };
        }
        let areas: Vec<&BoundingBox> = truth.iter().map(|placed| &placed.area).chain(ignored).collect();
        let overlaps = areas.iter().flat_map(|area| found.iter().map(|placed| area.overlap(&placed.area)));
        let costs: Vec<f64> =
            overlaps.map(|common| if common >= overlap - ROUNDING { -common } else { 0.0 }).collect();
        let pairs = assign_below(areas.len(), found.len(), &costs, -ROUNDING);
        let mut is_kept = vec![true; found.len()];
        pairs.iter().filter(|(row, _)| *row >= truth.len()).for_each(|(_, column)| is_kept[*column] = false);
        let found = found
            .into_iter()
            .zip(is_kept)
            .filter_map(|(placed, is_kept)| is_kept.then_some(placed))
            .collect();
        Self { truth, found }
    }

    /// Overlap of each true box (row) with each found one (column), row after row.
    fn overlaps(&self) -> Vec<f64> {
        let row = |truth: &Placed| -> Vec<f64> {
            self.found.iter().map(|found| truth.area.overlap(&found.area)).collect()
        };
        self.truth.iter().flat_map(row).collect()
    }
}

/// Tolerance for overlaps that miss a limit only by rounding.
const ROUNDING: f64 = f64::EPSILON;

/// Numbers identities from 0.
#[derive(Default)]
struct Numbers(BTreeMap<u64, usize>);

impl Numbers {
    fn of(&mut self, identity: u64) -> usize {
        let next = self.0.len();
        *self.0.entry(identity).or_insert(next)
    }

    /// Numbers all true and all found identities.
    fn both(frames: &[Frame]) -> (Self, Self) {
        let (mut truth, mut found) = (Self::default(), Self::default());
        for frame in frames {
            frame.truth.iter().for_each(|placed| {
                truth.of(placed.identity);
            });
            frame.found.iter().for_each(|placed| {
                found.of(placed.identity);
            });
        }
        (truth, found)
    }
}

/// A share; 0 for an empty whole.
fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_overlaps_an_ignored_box_is_no_false_alarm() {
        let at = |left: f64| BoundingBox { left, top: 0.0, width: 10.0, height: 10.0 };
        let placed = |identity, left| Placed { identity, area: at(left) };
        let found = vec![placed(1, 0.0), placed(2, 50.0), placed(3, 52.0), placed(4, 90.0)];
        let frame = Frame::without_ignored(vec![placed(9, 51.0)], &[at(1.0), at(53.0)], found, 0.5);
        // One of the two at 50 counts, the other is removed with the ignored one.
        assert_eq!(frame.found.iter().map(|placed| placed.identity).collect::<Vec<_>>(), [2, 4]);
    }
}
