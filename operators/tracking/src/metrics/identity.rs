//! IDF1, IDP, IDR: Ristani, Solera, Zou, Cucchiara, Tomasi, "Performance Measures and a Data Set for Multi-Target,
//! Multi-Camera Tracking" (2016). True and found identities are paired one to one so that as many boxes as possible
//! agree, over all cameras together.
use super::{Frame, Numbers, ROUNDING, ratio};
use crate::assignment::assign;

/// Counts of agreeing and other boxes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// True boxes that their found partner covers (IDTP).
    pub agreeing: u64,
    /// True boxes (IDTP + IDFN).
    pub truth: u64,
    /// Found boxes (IDTP + IDFP).
    pub found: u64,
}

impl Counts {
    /// Returns the harmonic mean of [`Counts::precision`] and [`Counts::recall`], 0 to 1.
    pub fn f1(&self) -> f64 {
        ratio(2.0 * self.agreeing as f64, (self.truth + self.found) as f64)
    }

    /// Returns IDP: the share of the found boxes that agree.
    pub fn precision(&self) -> f64 {
        ratio(self.agreeing as f64, self.found as f64)
    }

    /// Returns IDR: the share of the true boxes that agree.
    pub fn recall(&self) -> f64 {
        ratio(self.agreeing as f64, self.truth as f64)
    }
}

/// The best pairing of identities, pair by pair.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Identities {
    /// Pairs of a true identity and its partner, and single ones of either kind.
    pub units: Vec<Counts>,
}

/// Compares all frames of all cameras. `overlap`: the least for agreement, 0.5 by the definition.
pub fn identities(frames: &[Frame], overlap: f64) -> Identities {
    let (mut truth, mut found) = Numbers::both(frames);
    let (rows, columns) = (truth.0.len(), found.0.len());
    let (mut truths, mut founds) = (vec![0u64; rows], vec![0u64; columns]);
    let mut common = vec![0u64; rows * columns];
    for frame in frames {
        let overlaps = frame.overlaps();
        let places: Vec<usize> = frame.found.iter().map(|placed| found.of(placed.identity)).collect();
        places.iter().for_each(|column| founds[*column] += 1);
        for (index, placed) in frame.truth.iter().enumerate() {
            let row = truth.of(placed.identity);
            truths[row] += 1;
            for (at, column) in places.iter().enumerate() {
                let agrees = overlaps[index * places.len() + at] >= overlap - ROUNDING;
                common[row * columns + column] += u64::from(agrees);
            }
        }
    }
    let costs: Vec<f64> = common.iter().map(|count| -(*count as f64)).collect();
    let mut units = Vec::new();
    let mut is_alone = vec![true; columns];
    for (row, column) in assign(rows, columns, &costs).into_iter().enumerate() {
        let partner = column.filter(|column| common[row * columns + column] > 0);
        let mut unit = Counts { truth: truths[row], ..Counts::default() };
        if let Some(column) = partner {
            is_alone[column] = false;
            (unit.agreeing, unit.found) = (common[row * columns + column], founds[column]);
        }
        units.push(unit);
    }
    let alone = (0..columns).filter(|column| is_alone[*column]);
    units.extend(alone.map(|column| Counts { found: founds[column], ..Counts::default() }));
    Identities { units }
}

impl Identities {
    /// Returns the sum over all pairs.
    pub fn total(&self) -> Counts {
        let add = |sum: Counts, unit: &Counts| Counts {
            agreeing: sum.agreeing + unit.agreeing,
            truth: sum.truth + unit.truth,
            found: sum.found + unit.found,
        };
        self.units.iter().fold(Counts::default(), add)
    }

    /// Returns the bounds of IDF1 at about 95 % confidence for other objects of this kind: the pairs are resampled with
    /// replacement, with a fixed seed (percentile bootstrap, Efron 1979). The frames of one object depend on each
    /// other, so objects are resampled and not frames.
    pub fn interval(&self) -> (f64, f64) {
        const DRAWS: usize = 2000;
        if self.units.is_empty() {
            return (0.0, 1.0);
        }
        let mut state = 0x5DEE_CE66_D1CE_4E5Bu64;
        let mut draw = || {
            // SplitMix64 (Steele, Lea, Flood 2014).
            state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut bits = state;
            bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            bits ^= bits >> 31;
            ((u128::from(bits) * self.units.len() as u128) >> 64) as usize
        };
        let mut scores: Vec<f64> = (0..DRAWS)
            .map(|_| Self { units: (0..self.units.len()).map(|_| self.units[draw()]).collect() }.total().f1())
            .collect();
        scores.sort_by(f64::total_cmp);
        (scores[DRAWS / 40], scores[DRAWS - 1 - DRAWS / 40])
    }
}

#[cfg(test)]
mod tests {
    use super::super::Placed;
    use super::*;
    use crate::bounding_box::BoundingBox;

    fn at(identity: u64, left: f64) -> Placed {
        Placed { identity, area: BoundingBox { left, top: 0.0, width: 10.0, height: 10.0 } }
    }

    #[test]
    fn an_identity_that_changes_halfway_counts_half() {
        let frame = |found| Frame { truth: vec![at(1, 0.0)], found: vec![at(found, 1.0)] };
        let frames: Vec<Frame> = (0..10).map(|index| frame(if index < 6 { 7 } else { 8 })).collect();
        let found = identities(&frames, 0.5);
        assert_eq!(found.total(), Counts { agreeing: 6, truth: 10, found: 10 });
        assert_eq!(found.units.len(), 2);
        assert!((found.total().f1() - 0.6).abs() < 1e-15);
    }

    #[test]
    fn the_interval_holds_the_score_and_narrows() {
        let frames = |objects: u64| -> Vec<Frame> {
            (0..10)
                .map(|index| Frame {
                    truth: (0..objects).map(|id| at(id, 100.0 * id as f64)).collect(),
                    // A third of them is lost halfway.
                    found: (0..objects)
                        .filter(|id| id % 3 > 0 || index < 5)
                        .map(|id| at(id, 100.0 * id as f64))
                        .collect(),
                })
                .collect()
        };
        let widths = [6, 60].map(|objects| {
            let found = identities(&frames(objects), 0.5);
            let (low, high) = found.interval();
            assert!(low <= found.total().f1() && found.total().f1() <= high);
            high - low
        });
        assert!(widths[1] < widths[0] / 2.0 && widths[1] > 0.0, "{widths:?}");
        assert_eq!(identities(&[], 0.5).interval(), (0.0, 1.0));
    }
}
