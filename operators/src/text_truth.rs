//! Ground truth of texts, compared character by character or word by word: the character error rate and the word error
//! rate.
//!
//! A key's text may come in parts, such as the lines of a page: an int64 column gives their order, and they are joined by
//! spaces. Retracted parts do not count. If there are several for one position, as from a source that repeats, the first in
//! the order of characters counts.
use crate::record::{Metadata, int64, text};
use arrow_array::{Array, RecordBatch};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Most characters or words of a compared text: the work grows with the square.
const MOST_PARTS: usize = 10_000;

/// What is compared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Unit {
    /// Characters.
    #[default]
    Characters,
    /// Words between white space.
    Words,
}

impl Unit {
    const fn name(self) -> &'static str {
        match self {
            Self::Characters => "characters",
            Self::Words => "words",
        }
    }
}

/// Error of a truth that cannot be compared.
#[derive(Debug, thiserror::Error)]
pub enum TextTruthError {
    /// One is too long.
    #[error("the text of `{key}` has {length} {}, more than {MOST_PARTS}", unit.name())]
    TooLong {
        /// Its key.
        key: String,
        /// Its length.
        length: usize,
        /// What was counted.
        unit: Unit,
    },
    /// There is no text to find.
    #[error("all texts are empty")]
    Empty,
}

impl TextTruthError {
    /// Returns advice.
    pub fn help(&self) -> &'static str {
        match self {
            Self::TooLong { .. } => "divide it among several keys",
            Self::Empty => "`truth` names the column with the right texts",
        }
    }
}

/// The correct texts. Two are equal if their texts are.
#[derive(Debug)]
pub struct TextTruth {
    order: Option<String>,
    unit: Unit,
    /// Numbers of the words of the truth; others are [`UNKNOWN`].
    words: HashMap<String, u32>,
    /// Characters or numbers of words.
    texts: BTreeMap<String, Vec<u32>>,
}

/// Number of words that no text of the truth has.
const UNKNOWN: u32 = u32::MAX;

impl PartialEq for TextTruth {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for TextTruth {}

impl TextTruth {
    /// Creates the truth from texts by key. `order`: the column with the position of a part.
    ///
    /// # Errors
    /// See [`TextTruthError`].
    pub fn new(
        texts: &HashMap<String, String>,
        order: Option<&str>,
        unit: Unit,
    ) -> Result<Self, TextTruthError> {
        let mut words: HashMap<String, u32> = HashMap::new();
        let mut parts = |text: &str| match unit {
            Unit::Characters => characters(text).map(u32::from).collect::<Vec<u32>>(),
            Unit::Words => text
                .split_whitespace()
                .map(|word| {
                    let next = words.len() as u32;
                    *words.entry(word.to_owned()).or_insert(next)
                })
                .collect(),
        };
        let texts: BTreeMap<String, Vec<u32>> =
            texts.iter().map(|(key, text)| (key.clone(), parts(text))).collect();
        if let Some((key, long)) = texts.iter().find(|(_, text)| text.len() > MOST_PARTS) {
            return Err(TextTruthError::TooLong { key: key.clone(), length: long.len(), unit });
        }
        if texts.values().all(Vec::is_empty) {
            return Err(TextTruthError::Empty);
        }
        Ok(Self { order: order.map(str::to_owned), unit, words, texts })
    }

    /// The accuracy in words.
    pub fn accuracy_name(&self) -> &'static str {
        match self.unit {
            Unit::Characters => "1 less the character error rate",
            Unit::Words => "1 less the word error rate",
        }
    }
}

/// Returns the characters of a text, with white space collapsed to one space and trimmed.
fn characters(text: &str) -> impl Iterator<Item = char> {
    text.split_whitespace().enumerate().flat_map(|(index, word)| {
        let space = (index > 0).then_some(' ');
        space.into_iter().chain(word.chars())
    })
}

/// Number of characters or words to insert, delete or replace to turn one text into the other (Levenshtein).
pub fn edits<T: PartialEq>(from: &[T], to: &[T]) -> usize {
    let mut costs: Vec<usize> = (0..=to.len()).collect();
    for (row, here) in from.iter().enumerate() {
        let mut diagonal = costs[0];
        costs[0] = row + 1;
        for (column, there) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(here != there);
            diagonal = costs[column + 1];
            costs[column + 1] = replaced.min(costs[column] + 1).min(diagonal + 1);
        }
    }
    costs.last().copied().unwrap_or_default()
}

/// The parts of a text by position, and their net count, never 0.
type Parts = BTreeMap<i64, BTreeMap<String, i64>>;

/// Errors of all texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CharacterErrors {
    pub(crate) errors: u64,
    /// Characters of the correct texts.
    pub(crate) characters: u64,
    /// Number of independent characters with the uncertainty of this error rate.
    pub(crate) independent: u64,
}

impl CharacterErrors {
    /// Sums errors and lengths of the correct texts.
    fn of(texts: &[(u64, u64)]) -> Self {
        let (errors, characters) = texts.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        Self { errors, characters, independent: independent(texts, errors, characters) }
    }
}

/// The texts received so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TextTally {
    truth: Arc<TextTruth>,
    said: BTreeMap<String, Parts>,
    /// Errors of the keys that were compared and unchanged since; the others are all in `changed`, or never arrived.
    errors: BTreeMap<String, u64>,
    changed: BTreeSet<String>,
}

impl TextTally {
    pub(crate) fn new(truth: &Arc<TextTruth>) -> Self {
        Self {
            truth: Arc::clone(truth),
            said: BTreeMap::new(),
            errors: BTreeMap::new(),
            changed: BTreeSet::new(),
        }
    }

    /// Adds rows; returns how many have a key without a correct text.
    pub(crate) fn read(&mut self, batch: &RecordBatch, key: &str, prediction: &str) -> u64 {
        let column = |name: &str| batch.column_by_name(name).and_then(text);
        let (Some(keys), Some(texts)) = (column(key), column(prediction)) else { return 0 };
        let order = self.truth.order.as_ref().and_then(|name| batch.column_by_name(name)).and_then(int64);
        let changes = Metadata::of(batch).changes;
        let mut unknown = 0;
        for row in 0..batch.num_rows() {
            if keys.is_null(row) {
                continue;
            }
            let key = keys.value(row);
            if !self.truth.texts.contains_key(key) {
                unknown += 1;
                continue;
            }
            let place = order.filter(|order| order.is_valid(row)).map_or(0, |order| order.value(row));
            let text = if texts.is_null(row) { "" } else { texts.value(row) };
            self.add_one(key, place, text, i64::from(changes.value(row)));
        }
        unknown
    }

    fn add_one(&mut self, key: &str, place: i64, text: &str, count: i64) {
        let parts = self.said.entry(key.to_owned()).or_default();
        let texts = parts.entry(place).or_default();
        let given = texts.entry(text.to_owned()).or_default();
        *given += count;
        if *given == 0 {
            // A text that is corrected repeatedly leaves no entries.
            texts.remove(text);
            if texts.is_empty() {
                parts.remove(&place);
            }
        }
        self.changed.insert(key.to_owned());
    }

    pub(crate) fn add(&mut self, later: Self) {
        for (key, places) in later.said {
            for (place, texts) in places {
                texts.into_iter().for_each(|(text, count)| self.add_one(&key, place, &text, count));
            }
        }
    }

    /// Compares with the whole truth: a missing text is wrong.
    pub(crate) fn errors(&mut self) -> CharacterErrors {
        self.compare();
        let all = self.truth.texts.iter().map(|(key, text)| {
            let length = text.len() as u64;
            (self.errors.get(key).copied().unwrap_or(length), length)
        });
        CharacterErrors::of(&all.collect::<Vec<_>>())
    }

    /// Compares with the truth of the keys that have arrived: the others may still come.
    pub(crate) fn so_far(&mut self) -> CharacterErrors {
        self.compare();
        let came = self.errors.iter().map(|(key, errors)| {
            let length = self.truth.texts.get(key).map_or(0, Vec::len);
            (*errors, length as u64)
        });
        CharacterErrors::of(&came.collect::<Vec<_>>())
    }

    /// Counts the errors of the keys that changed.
    fn compare(&mut self) {
        for key in std::mem::take(&mut self.changed) {
            let errors = self.errors_of(&key);
            self.errors.insert(key, errors);
        }
    }

    fn errors_of(&self, key: &str) -> u64 {
        let Some(truth) = self.truth.texts.get(key) else { return 0 };
        let parts = self.said.get(key).into_iter().flat_map(BTreeMap::values);
        let parts = parts.filter_map(|texts| texts.iter().find(|(_, count)| **count > 0));
        let mut found: Vec<u32> = Vec::new();
        for (text, _) in parts {
            if self.truth.unit == Unit::Words {
                let words = text.split_whitespace();
                found.extend(words.map(|word| self.truth.words.get(word).copied().unwrap_or(UNKNOWN)));
                continue;
            }
            for character in [' '].into_iter().chain(characters(text)) {
                let follows_space = found.last().is_none_or(|last| *last == u32::from(' '));
                if !(character == ' ' && follows_space) {
                    found.push(character.into());
                }
            }
        }
        if self.truth.unit == Unit::Characters && found.last() == Some(&u32::from(' ')) {
            found.pop();
        }
        // The rest of a text that is far too long is all wrong.
        let most = 2 * MOST_PARTS;
        let rest = found.len().saturating_sub(most);
        found.truncate(most);
        (edits(truth, &found) + rest) as u64
    }
}

/// Number of independent characters with the uncertainty of the error rate of these texts. The errors of one text depend on
/// each other, so the variance is that of a ratio of sums over texts (linearised). The number of texts if it is 0.
fn independent(texts: &[(u64, u64)], errors: u64, characters: u64) -> u64 {
    let count = texts.len() as f64;
    let rate = errors as f64 / (characters as f64).max(1.0);
    let squares: f64 =
        texts.iter().map(|(errors, length)| (*errors as f64 - rate * *length as f64).powi(2)).sum();
    let variance = squares * count / (count - 1.0).max(1.0) / (characters as f64).max(1.0).powi(2);
    let share = rate * (1.0 - rate);
    let same = if variance > 0.0 && share > 0.0 { share / variance } else { count };
    (same.round() as u64).clamp(1, characters.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::GroundTruth;
    use crate::ground_truth::Score;
    use crate::testing::batch;
    use arrow_array::Int8Array;
    use proptest::prelude::*;
    use serde_json::json;
    use tidemill_spec::types::{Column, ColumnType, StreamType};

    fn truth(texts: &[(&str, &str)], order: Option<&str>) -> Result<TextTruth, TextTruthError> {
        let texts = texts.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())).collect();
        TextTruth::new(&texts, order, Unit::Characters)
    }

    fn rows(said: &[(&str, i64, &str, i8)]) -> RecordBatch {
        let columns = [
            Column::new("key", ColumnType::Text),
            Column::new("box", ColumnType::Int64),
            Column::new("text", ColumnType::Text),
        ];
        let values: Vec<_> = said.iter().map(|s| json!({"key": s.0, "box": s.1, "text": s.2})).collect();
        let batch = batch(&StreamType::new(columns), &values);
        let mut columns = batch.columns().to_vec();
        columns[crate::record::CHANGE] = Arc::new(Int8Array::from_iter_values(said.iter().map(|s| s.3)));
        RecordBatch::try_new(batch.schema(), columns).unwrap()
    }

    fn judged(truth: TextTruth) -> GroundTruth {
        GroundTruth {
            key: "key".into(),
            prediction: "text".into(),
            answers: Arc::default(),
            once: false,
            tracks: None,
            texts: Some(Arc::new(truth)),
            measure: crate::measures::Measure::Equal,
        }
    }

    #[test]
    fn edits_are_counted() {
        let count =
            |from: &str, to: &str| edits(&from.chars().collect::<Vec<_>>(), &to.chars().collect::<Vec<_>>());
        assert_eq!(count("kitten", "sitting"), 3);
        assert_eq!((count("", "abc"), count("abc", ""), count("", "")), (3, 3, 0));
        assert_eq!(count("TOTAL 12.40", "T0TAL 12,4O"), 3);
    }

    /// Values of jiwer 4.0: `jiwer.wer(["milk 1.20 euro", "tea"], ["milk 1,20", "green tea"])` is 0.75.
    #[test]
    fn words_are_compared_as_jiwer_does() {
        let texts =
            [("a", "milk  1.20\neuro"), ("b", "tea")].map(|(key, text)| (key.to_owned(), text.to_owned()));
        let truth = judged(TextTruth::new(&texts.into(), Some("box"), Unit::Words).unwrap());
        let mut score = Score::default();
        let said = [("a", 1, "1,20", 1), ("a", 0, "milk", 1), ("b", 0, "green tea", 1)];
        score.judge(&truth, &rows(&said), &Score::default());
        score.settle();
        assert_eq!((score.correct, score.scored), (1, 4));
        assert_eq!(truth.accuracy_name(), "1 less the word error rate");
    }

    #[test]
    fn parts_are_put_together_by_their_place() {
        let truth = judged(truth(&[("a", "milk\n1.20"), ("b", "tea")], Some("box")).unwrap());
        let mut all = Score::default();
        let mut tell = |said: &[(&str, i64, &str, i8)]| {
            let mut staged = Score::default();
            staged.judge(&truth, &rows(said), &all);
            all.add(staged);
            (all.correct, all.scored, all.unknown)
        };
        // 9 and 3 characters: the second text has not arrived yet.
        assert_eq!(tell(&[("a", 1, "1.20", 1), ("x", 0, "?", 1)]), (4, 9, 1));
        assert_eq!(tell(&[("a", 0, " milk ", 1)]), (9, 9, 1));
        assert_eq!(tell(&[("b", 0, "tee", 1)]), (11, 12, 1));
        assert_eq!(
            tell(&[("b", 0, "tee", -1), ("b", 0, "tea", 1)]),
            (12, 12, 1),
            "what is taken back is gone"
        );
        assert_eq!(tell(&[("b", 0, "tea", 1)]), (12, 12, 1), "the same again says nothing new");
        assert_eq!(tell(&[("b", 1, "tea and much more", 1)]), (0, 12, 1), "never below 0");
    }

    #[test]
    fn what_is_taken_back_takes_no_memory() {
        let truth = Arc::new(truth(&[("a", "ab")], Some("box")).unwrap());
        let mut tally = TextTally::new(&truth);
        for number in 0..100 {
            let text = format!("guess {number}");
            // The correction may arrive before the row that it retracts.
            let (one, other) = if number % 2 == 0 { (1, -1) } else { (-1, 1) };
            for change in [one, other] {
                let mut later = TextTally::new(&truth);
                later.read(&rows(&[("a", number, text.as_str(), change)]), "key", "text");
                tally.add(later);
            }
        }
        assert!(tally.said["a"].is_empty(), "{:?}", tally.said);
        assert_eq!(tally.errors().errors, 2, "nothing stands, so both characters are missing");
        tally.read(&rows(&[("a", 0, "ab", 1)]), "key", "text");
        assert_eq!(tally.errors().errors, 0);
    }

    #[test]
    fn one_tally_is_settled_by_itself() {
        let truth = judged(truth(&[("a", "ab"), ("b", "cd")], None).unwrap());
        let mut score = Score::default();
        score.judge(&truth, &rows(&[("a", 0, "ab", 1), ("b", 0, "cx", 1)]), &Score::default());
        score.settle();
        assert_eq!((score.correct, score.scored), (3, 4));
        // Errors 0 and 1 around a rate of 1/4: variance (0.25 + 0.25) * 2 / 16, so 3/16 of it are 3 characters.
        assert_eq!(score.independent, 3);
    }

    /// A running job gets no errors for texts that are still to come; an ended one does.
    #[test]
    fn what_never_came_is_wrong_at_the_end_alone() {
        let truth = judged(truth(&[("a", "ab"), ("b", "cdef"), ("c", "gh")], None).unwrap());
        let (mut all, mut staged) = (Score::default(), Score::default());
        staged.judge(&truth, &rows(&[("x", 0, "?", 1)]), &all);
        all.add(staged);
        assert_eq!((all.correct, all.scored, all.unknown), (0, 0, 1), "nothing that could be judged");
        let mut staged = Score::default();
        staged.judge(&truth, &rows(&[("a", 0, "ab", 1), ("c", 0, "gx", 1)]), &all);
        all.add(staged);
        assert_eq!((all.correct, all.scored), (3, 4));
        all.settle();
        assert_eq!((all.correct, all.scored), (3, 8));
    }

    #[test]
    fn useless_truths_are_refused() {
        let long = "x".repeat(MOST_PARTS + 1);
        let error = truth(&[("a", &long)], None).unwrap_err();
        assert_eq!(error.to_string(), "the text of `a` has 10001 characters, more than 10000");
        assert!(matches!(truth(&[("a", " \n")], None), Err(TextTruthError::Empty)));
        assert!(!error.help().is_empty());
    }

    proptest! {
        #[test]
        fn edits_are_a_distance(a in "[ab ]{0,9}", b in "[ab ]{0,9}", c in "[ab ]{0,9}") {
            let [a, b, c]: [Vec<char>; 3] = [a, b, c].map(|text| text.chars().collect());
            prop_assert_eq!(edits(&a, &b), edits(&b, &a));
            prop_assert_eq!(edits(&a, &b) == 0, a == b);
            prop_assert!(edits(&a, &c) <= edits(&a, &b) + edits(&b, &c));
            prop_assert!(edits(&a, &b) >= a.len().abs_diff(b.len()));
        }
    }
}
