//! Precision, recall and F1 of each class, and their means over the classes.
//!
//! A class is a value of the truth that was judged. Precision is the share of the right ones among the
//! answers that name the class, recall that among the rows of the class, F1 their harmonic mean; each is 0
//! where it would divide by 0. An answer that is no class of the truth, or empty, is wrong for the class of
//! its row only. The means (macro) count each class once.
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Most classes that are listed, those with the most rows.
const LISTED: usize = 1000;
/// Most different wrong answers that are remembered; answers beyond them name no class.
const REMEMBERED: usize = 100_000;

/// Measures of all classes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClassMeasures {
    /// Mean precision of the classes.
    pub macro_precision_percent: f64,
    /// Mean recall of the classes.
    pub macro_recall_percent: f64,
    /// Mean F1 of the classes.
    pub macro_f1_percent: f64,
    /// The classes with the most rows, at most 1000, by their names.
    pub classes: Vec<ClassRow>,
    /// Further classes, which the means include.
    pub more_classes: u64,
}

/// Measures of one class.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClassRow {
    /// The class, as in the truth.
    pub class: String,
    /// Share of right ones among the answers that name it.
    pub precision_percent: f64,
    /// Share of right ones among its rows.
    pub recall_percent: f64,
    /// Their harmonic mean.
    pub f1_percent: f64,
    /// Its rows.
    pub support: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counts {
    /// Rows of the class.
    truth: u64,
    /// Answers that name it.
    found: u64,
    right: u64,
}

/// Counts of each class.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ClassTally(BTreeMap<String, Counts>);

impl ClassTally {
    /// Counts a row.
    pub(crate) fn count(&mut self, truth: &str, found: Option<&str>) {
        let class = self.0.entry(truth.to_owned()).or_default();
        class.truth += 1;
        if found == Some(truth) {
            class.found += 1;
            class.right += 1;
        } else if let Some(found) = found
            && (self.0.len() < REMEMBERED || self.0.contains_key(found))
        {
            self.0.entry(found.to_owned()).or_default().found += 1;
        }
    }

    pub(crate) fn add(&mut self, later: Self) {
        for (class, more) in later.0 {
            let counts = self.0.entry(class).or_default();
            counts.truth += more.truth;
            counts.found += more.found;
            counts.right += more.right;
        }
    }

    pub(crate) fn measures(&self) -> Option<ClassMeasures> {
        let share = |part: u64, all: u64| if all == 0 { 0.0 } else { 100.0 * part as f64 / all as f64 };
        let mut rows: Vec<ClassRow> = self
            .0
            .iter()
            .filter(|(_, counts)| counts.truth > 0)
            .map(|(class, counts)| ClassRow {
                class: class.clone(),
                precision_percent: share(counts.right, counts.found),
                recall_percent: share(counts.right, counts.truth),
                f1_percent: share(2 * counts.right, counts.found + counts.truth),
                support: counts.truth,
            })
            .collect();
        if rows.is_empty() {
            return None;
        }
        let mean = |value: fn(&ClassRow) -> f64| rows.iter().map(value).sum::<f64>() / rows.len() as f64;
        let (precision, recall) = (mean(|row| row.precision_percent), mean(|row| row.recall_percent));
        let f1 = mean(|row| row.f1_percent);
        let more_classes = rows.len().saturating_sub(LISTED) as u64;
        rows.sort_by_key(|row| std::cmp::Reverse(row.support));
        rows.truncate(LISTED);
        rows.sort_by(|a, b| a.class.cmp(&b.class));
        Some(ClassMeasures {
            macro_precision_percent: precision,
            macro_recall_percent: recall,
            macro_f1_percent: f1,
            classes: rows,
            more_classes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of scikit-learn 1.9: `precision_recall_fscore_support(truth, found, labels=["cat", "cow",
    /// "dog"], zero_division=0)` and the same with `average="macro"`.
    #[test]
    fn as_scikit_learn() {
        let truth = ["cat", "cat", "cat", "dog", "dog", "cow", "cow", "dog"];
        let found = ["cat", "dog", "cat", "dog", "cat", "dog", "fox", "dog"];
        let (mut first, mut second) = (ClassTally::default(), ClassTally::default());
        for (row, (truth, found)) in truth.iter().zip(found).enumerate() {
            if row % 2 == 0 { &mut first } else { &mut second }.count(truth, Some(found));
        }
        first.add(second);
        let measures = first.measures().unwrap();
        let third = 100.0 / 3.0;
        let expected = [
            ("cat", 2.0 * third, 2.0 * third, 2.0 * third, 3),
            ("cow", 0.0, 0.0, 0.0, 2),
            ("dog", 50.0, 2.0 * third, 400.0 / 7.0, 3),
        ];
        for (row, (class, precision, recall, f1, support)) in measures.classes.iter().zip(expected) {
            assert_eq!((row.class.as_str(), row.support), (class, support));
            for (found, expected) in
                [(row.precision_percent, precision), (row.recall_percent, recall), (row.f1_percent, f1)]
            {
                assert!((found - expected).abs() < 1e-12, "{row:?}");
            }
        }
        assert_eq!((measures.classes.len(), measures.more_classes), (3, 0));
        assert!((measures.macro_f1_percent - 41.269_841_269_841_27).abs() < 1e-12, "{measures:?}");
        assert!((measures.macro_precision_percent - 38.888_888_888_888_89).abs() < 1e-12);
        assert!((measures.macro_recall_percent - 44.444_444_444_444_44).abs() < 1e-12);
        let mut empty = ClassTally::default();
        assert_eq!(empty.measures(), None);
        empty.count("a", None);
        assert_eq!(empty.measures().unwrap().macro_f1_percent, 0.0);
    }
}
