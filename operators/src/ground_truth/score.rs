//! Judges the rows of a sink by their ground truth, and counts.
use crate::api::GroundTruth;
use crate::measures::{Measure, Measures, Tally, leading};
use crate::record;
use crate::text_truth::{CharacterErrors, TextTally};
use crate::track_truth::{TrackMeasures, TrackTally};
use arrow_array::{Array, RecordBatch};
use std::collections::HashSet;

/// Verdict of ground truth on a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The answer equals the truth.
    Right,
    /// The answer differs from the truth.
    Wrong,
    /// The key has no ground truth.
    Unknown,
}

impl GroundTruth {
    /// Whether all rows are judged together, as tracks, texts and boxes are. They cannot be judged in parts
    /// whose results are added, since each is compared with the whole truth.
    pub fn is_whole(&self) -> bool {
        self.tracks.is_some() || self.texts.is_some() || self.measure.is_whole()
    }

    /// The accuracy in words.
    pub fn accuracy_name(&self) -> &'static str {
        match (&self.tracks, &self.texts) {
            (Some(_), _) => "IDF1 over all cameras",
            (None, Some(texts)) => texts.accuracy_name(),
            (None, None) => self.measure.name().unwrap_or("share of answers that equal the truth"),
        }
    }
}

/// Compares a row with ground truth; `None` if it has no key.
pub fn judge(truth: &GroundTruth, batch: &RecordBatch, row: usize) -> Option<Verdict> {
    if truth.is_whole() {
        return None; // a track or a line of a text alone is neither right nor wrong
    }
    let schema = batch.schema_ref();
    let (key, prediction) = (schema.index_of(&truth.key).ok()?, schema.index_of(&truth.prediction).ok()?);
    let key = cell_text(batch, key, row)?;
    let Some(expected) = truth.answers.get(&key) else { return Some(Verdict::Unknown) };
    let right = match truth.measure {
        Measure::Leading(k) => leading::is_among(batch.column(prediction), row, k, expected),
        _ => cell_text(batch, prediction, row).is_some_and(|found| found == *expected),
    };
    Some(if right { Verdict::Right } else { Verdict::Wrong })
}

/// Counts of exact matches.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Score {
    /// Records whose answer equals the truth.
    pub correct: u64,
    /// Records with ground truth.
    pub scored: u64,
    /// Records whose key has no ground truth.
    pub unknown: u64,
    /// Number of independent samples with the uncertainty of this share: the scored ones, but fewer for
    /// tracks and texts, whose boxes and characters depend on each other; 0 if its uncertainty is not known.
    pub independent: u64,
    /// Scored keys, if each counts once; at most the number of answers.
    keys: HashSet<String>,
    /// Set if tracks are judged.
    tracks: Option<TrackTally>,
    /// Set if texts are judged by their characters.
    texts: Option<TextTally>,
    /// Set if there is a further measure.
    tally: Option<Tally>,
}

impl Score {
    /// Judges the rows of a batch; with [`GroundTruth::once`] without keys already scored here or in
    /// `before`.
    pub fn judge(&mut self, truth: &GroundTruth, batch: &RecordBatch, before: &Self) {
        if let Some(tracks) = &truth.tracks {
            let tally = self.tracks.get_or_insert_with(|| TrackTally::new(tracks));
            self.unknown += tally.read(batch, &truth.key, &truth.prediction);
            return;
        }
        if let Some(texts) = &truth.texts {
            let tally = self.texts.get_or_insert_with(|| TextTally::new(texts));
            self.unknown += tally.read(batch, &truth.key, &truth.prediction);
            return;
        }
        let schema = batch.schema_ref();
        let (Ok(key_column), Ok(prediction)) =
            (schema.index_of(&truth.key), schema.index_of(&truth.prediction))
        else {
            return;
        };
        let mut tally = self.tally.take().or_else(|| Tally::of(&truth.measure));
        for row in 0..batch.num_rows() {
            let Some(key) = cell_text(batch, key_column, row) else { continue };
            let expected = match &tally {
                Some(Tally::Boxes(boxes)) => boxes.knows(&key).then_some(""),
                _ => truth.answers.get(&key).map(String::as_str),
            };
            let Some(expected) = expected else {
                self.unknown += 1;
                continue;
            };
            if truth.once && (before.keys.contains(&key) || !self.keys.insert(key.clone())) {
                continue;
            }
            match &mut tally {
                Some(Tally::Boxes(boxes)) => boxes.read(&key, batch.column(prediction), row),
                Some(Tally::Numbers(numbers)) => {
                    let expected = expected.trim().parse().unwrap_or(f64::NAN);
                    numbers.count(expected, cell_number(batch, prediction, row));
                }
                Some(Tally::Ranks(ranks)) => {
                    ranks.count(is_true(expected) == Some(true), cell_number(batch, prediction, row));
                }
                Some(Tally::Classes(_)) | None => {
                    self.scored += 1;
                    self.independent += 1;
                    self.correct += u64::from(judge(truth, batch, row) == Some(Verdict::Right));
                    if let Some(Tally::Classes(classes)) = &mut tally {
                        classes.count(expected, cell_text(batch, prediction, row).as_deref());
                    }
                }
            }
        }
        self.tally = tally;
    }

    /// Adds a later score. Texts count once they have arrived. Tracks count at the end, by [`Score::settle`]:
    /// truth still to come is no mistake, and comparing all tracks each time would take ever longer.
    pub fn add(&mut self, later: Self) {
        self.correct += later.correct;
        self.scored += later.scored;
        self.independent += later.independent;
        self.unknown += later.unknown;
        self.keys.extend(later.keys);
        if let Some(later) = later.tracks {
            match &mut self.tracks {
                Some(tally) => tally.add(later),
                None => self.tracks = Some(later),
            }
        }
        if let Some(later) = later.tally {
            match &mut self.tally {
                Some(tally) => tally.add(later),
                None => self.tally = Some(later),
            }
        }
        if let Some(later) = later.texts {
            match &mut self.texts {
                Some(tally) => tally.add(later),
                None => self.texts = Some(later),
            }
            if let Some(found) = self.texts.as_mut().map(TextTally::so_far) {
                self.count_texts(found);
            }
        }
    }

    /// The accuracy in percent, once it is settled; `None`: nothing was judged, or the measure is no share.
    pub fn percent(&self) -> Option<f64> {
        let measured = self.tally.as_ref().and_then(Tally::measures).and_then(|measures| measures.percent());
        measured.or_else(|| (self.scored > 0).then(|| 100.0 * self.correct as f64 / self.scored as f64))
    }

    /// Returns the measures beside the share of right answers. Slow, so only for the end.
    pub fn measures(&self) -> Option<Measures> {
        self.tally.as_ref().and_then(Tally::measures)
    }

    /// Returns the measures of tracks beside IDF1. Slow, so only for the end.
    pub fn track_measures(&self) -> Option<TrackMeasures> {
        self.tracks.as_ref().map(TrackTally::measures)
    }

    /// Compares with the whole truth, once no more rows come. Tracks can be judged only together: `correct`
    /// of `scored` is then IDF1, in boxes (twice the agreeing ones, of the true and the found ones). For
    /// texts, `correct` are the characters or words without the errors; a missing text is empty. Of scores,
    /// `correct` are the half pairs in the right order, of boxes the mean average precision times the true
    /// boxes. Numbers have no share.
    pub fn settle(&mut self) {
        if let Some(tally) = &self.tracks {
            let found = tally.identities();
            let total = found.total();
            (self.correct, self.scored) = (2 * total.agreeing, total.truth + total.found);
            self.independent = crate::track_truth::independent(&found);
        }
        if let Some(found) = self.texts.as_mut().map(TextTally::errors) {
            self.count_texts(found);
        }
        match &self.tally {
            Some(Tally::Ranks(ranks)) => {
                (self.correct, self.scored) = ranks.half_pairs();
                self.independent = 0;
            }
            Some(Tally::Boxes(boxes)) => {
                let found = boxes.measures();
                self.scored = found.as_ref().map_or(0, |found| found.boxes);
                let share = found.map_or(0.0, |found| found.map_percent / 100.0);
                self.correct = (share * self.scored as f64).round() as u64;
                self.independent = 0;
            }
            Some(Tally::Classes(_) | Tally::Numbers(_)) | None => {}
        }
    }

    /// Settles a run that was cut short: the truth of each camera ends with the last frame with a box of a
    /// track, and only texts and pictures that arrived count. Missing ones may belong to input that was not
    /// read.
    pub fn settle_so_far(&mut self) {
        self.tracks.iter_mut().for_each(TrackTally::end_with_rows);
        if let Some(Tally::Boxes(boxes)) = &mut self.tally {
            boxes.end_with_rows();
        }
        match self.texts.as_mut().map(TextTally::so_far) {
            Some(found) => self.count_texts(found),
            None => self.settle(),
        }
    }

    fn count_texts(&mut self, found: CharacterErrors) {
        (self.correct, self.scored) = (found.characters.saturating_sub(found.errors), found.characters);
        self.independent = found.independent;
    }
}

/// Returns a text, number or truth value of a row as text, as ground truth has it.
pub(crate) fn cell_text(batch: &RecordBatch, column: usize, row: usize) -> Option<String> {
    let column = batch.column(column);
    if column.is_null(row) {
        return None;
    }
    if let Some(text) = record::text(column) {
        return Some(text.value(row).to_owned());
    }
    if let Some(numbers) = record::int64(column) {
        return Some(numbers.value(row).to_string());
    }
    if let Some(flags) = record::boolean(column) {
        return Some(flags.value(row).to_string());
    }
    record::float64(column).map(|numbers| numbers.value(row).to_string())
}

/// A number of a row.
fn cell_number(batch: &RecordBatch, column: usize, row: usize) -> Option<f64> {
    let column = batch.column(column);
    if column.is_null(row) {
        return None;
    }
    let whole = record::int64(column).map(|numbers| numbers.value(row) as f64);
    whole.or_else(|| record::float64(column).map(|numbers| numbers.value(row)))
}

/// Reads an answer that is true or false.
pub(crate) fn is_true(answer: &str) -> Option<bool> {
    match answer.trim() {
        "true" | "True" | "TRUE" | "1" => Some(true),
        "false" | "False" | "FALSE" | "0" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `operators/testdata/make_measures.py` says how the numbers were made.
    #[test]
    fn measures_as_scikit_learn() {
        use crate::testing::batch;
        use serde_json::{Value, json};
        use tidemill_spec::types::{Column, ColumnType, StreamType};
        let parts: Value = serde_json::from_str(include_str!("../../testdata/measures.json")).unwrap();
        let near = |found: f64, expected: &Value| {
            let expected = expected.as_f64().unwrap();
            assert!(
                (found - expected).abs() < 1e-9 * expected.abs().max(1.0),
                "{found}, expected {expected}"
            );
        };
        let judged = |part: &Value, measure: Measure, column_type: ColumnType| {
            let pairs = part["truth"].as_array().unwrap().iter().zip(part["found"].as_array().unwrap());
            let written = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let answers =
                pairs.clone().enumerate().map(|(row, (truth, _))| (format!("k{row}"), written(truth)));
            let truth = GroundTruth {
                key: "key".into(),
                prediction: "found".into(),
                answers: std::sync::Arc::new(answers.collect()),
                once: true,
                tracks: None,
                texts: None,
                measure,
            };
            let columns = [Column::new("key", ColumnType::Text), Column::new("found", column_type)];
            let rows: Vec<Value> = pairs
                .enumerate()
                .map(|(row, (_, found))| json!({"key": format!("k{row}"), "found": found}))
                .chain([json!({"key": "k0", "found": null}), json!({"key": "other", "found": null})])
                .collect();
            let rows = batch(&StreamType::new(columns), &rows);
            let mut all = Score::default();
            for start in (0..rows.num_rows()).step_by(7) {
                let mut staged = Score::default();
                staged.judge(&truth, &rows.slice(start, 7.min(rows.num_rows() - start)), &all);
                all.add(staged);
            }
            all.settle();
            assert_eq!(all.unknown, 1);
            all
        };
        let score = judged(&parts["scores"], Measure::Ranks, ColumnType::Float64);
        near(score.percent().unwrap(), &parts["scores"]["auc_percent"]);
        assert_eq!(score.independent, 0, "no interval");
        let numbers = judged(&parts["numbers"], Measure::Numbers, ColumnType::Float64);
        assert_eq!((numbers.percent(), numbers.scored), (None, 0));
        let Some(Measures::Numbers(errors)) = numbers.measures() else { panic!("errors of numbers") };
        near(errors.mean_absolute_error, &parts["numbers"]["mean_absolute_error"]);
        near(errors.root_mean_square_error, &parts["numbers"]["root_mean_square_error"]);
        let classes = judged(&parts["classes"], Measure::Classes, ColumnType::Text);
        let Some(Measures::Classes(each)) = classes.measures() else { panic!("measures of classes") };
        for (row, expected) in each.classes.iter().zip(parts["classes"]["classes"].as_array().unwrap()) {
            assert_eq!(
                (Some(row.class.as_str()), Some(row.support)),
                (expected[0].as_str(), expected[4].as_u64())
            );
            near(row.precision_percent, &expected[1]);
            near(row.recall_percent, &expected[2]);
            near(row.f1_percent, &expected[3]);
        }
        near(each.macro_precision_percent, &parts["classes"]["macro"][0]);
        near(each.macro_recall_percent, &parts["classes"]["macro"][1]);
        near(each.macro_f1_percent, &parts["classes"]["macro"][2]);
        assert_eq!(classes.scored, 200);
    }
}
