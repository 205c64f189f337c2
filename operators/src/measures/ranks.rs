//! Area under the ROC curve (AUC) of scores of a truth that is true or false.
//!
//! It is the share of pairs, one row of each kind, in which the true one has the higher score; a tie counts
//! half. It is computed from ranks, exactly. A row without a score (empty or NaN) loses all its pairs.
use serde::{Deserialize, Serialize};

/// How well scores tell true from false.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RankMeasures {
    /// Area under the ROC curve, 50 for scores that say nothing.
    pub auc_percent: f64,
    /// True rows.
    pub positives: u64,
    /// False rows.
    pub negatives: u64,
    /// Rows without a score.
    pub without_score: u64,
}

/// The scores so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RankTally {
    /// Bits of each score in an order that is that of the numbers, and whether the row is true.
    scores: Vec<(u64, bool)>,
    without_score: [u64; 2],
}

/// Maps finite and infinite numbers to whole ones of the same order; both zeros are one.
fn ordered(score: f64) -> u64 {
    let bits = (score + 0.0).to_bits();
    if bits >> 63 == 1 { !bits } else { bits | (1 << 63) }
}

impl RankTally {
    /// Counts a row.
    pub(crate) fn count(&mut self, truth: bool, score: Option<f64>) {
        match score.filter(|score| !score.is_nan()) {
            Some(score) => self.scores.push((ordered(score), truth)),
            None => self.without_score[usize::from(truth)] += 1,
        }
    }

    pub(crate) fn add(&mut self, later: Self) {
        self.scores.extend(later.scores);
        self.without_score[0] += later.without_score[0];
        self.without_score[1] += later.without_score[1];
    }

    /// Half pairs in the right order, and all half pairs.
    pub(crate) fn half_pairs(&self) -> (u64, u64) {
        let mut scores = self.scores.clone();
        scores.sort_unstable();
        let (mut lower, mut right) = (0u64, 0u64);
        for same in scores.chunk_by(|a, b| a.0 == b.0) {
            let positives = same.iter().filter(|(_, truth)| *truth).count() as u64;
            let negatives = same.len() as u64 - positives;
            right = right.saturating_add(positives.saturating_mul(2 * lower + negatives));
            lower += negatives;
        }
        let positives = self.scores.len() as u64 - lower + self.without_score[1];
        (right, positives.saturating_mul(lower + self.without_score[0]).saturating_mul(2))
    }

    pub(crate) fn measures(&self) -> Option<RankMeasures> {
        let (right, all) = self.half_pairs();
        let positives = self.scores.iter().filter(|(_, truth)| *truth).count() as u64;
        (all > 0).then(|| RankMeasures {
            auc_percent: 100.0 * right as f64 / all as f64,
            positives: positives + self.without_score[1],
            negatives: self.scores.len() as u64 - positives + self.without_score[0],
            without_score: self.without_score.iter().sum(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Values of scikit-learn 1.9: `roc_auc_score(truth, scores)`.
    #[test]
    fn as_scikit_learn() {
        let mut tally = RankTally::default();
        let rows =
            [(true, 0.9), (false, 0.4), (true, 0.4), (false, 0.35), (true, 0.8), (false, 0.8), (true, 0.1)];
        rows.into_iter().for_each(|(truth, score)| tally.count(truth, Some(score)));
        let measures = tally.measures().unwrap();
        assert!((measures.auc_percent - 58.333_333_333_333_336).abs() < 1e-12, "{measures:?}");
        assert_eq!((measures.positives, measures.negatives), (4, 3));
        assert_eq!(RankTally::default().measures(), None);
    }

    proptest! {
        #[test]
        fn as_counted_pair_by_pair(
            rows in prop::collection::vec(
                (any::<bool>(), prop::option::of(prop::sample::select(vec![-1.5, -0.0, 0.0, 0.25, 7.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN]))),
                0..40,
            ),
            cut in 0usize..40,
        ) {
            let (mut first, mut later) = (RankTally::default(), RankTally::default());
            for (row, (truth, score)) in rows.iter().enumerate() {
                if row < cut { &mut first } else { &mut later }.count(*truth, *score);
            }
            first.add(later);
            let (mut right, mut all) = (0u64, 0u64);
            for (_, high) in rows.iter().filter(|(truth, _)| *truth) {
                for (_, low) in rows.iter().filter(|(truth, _)| !*truth) {
                    all += 2;
                    if let (Some(high), Some(low)) = (high, low) {
                        right += if high > low { 2 } else { u64::from(high == low) };
                    }
                }
            }
            prop_assert_eq!(first.half_pairs(), (right, all));
        }
    }
}
