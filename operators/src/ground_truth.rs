//! Correct answers by key, from a CSV file (with a header line) or a JSONL file (one object per line).
//!
//! ```
//! let folder = tempfile::tempdir().unwrap();
//! let path = folder.path().join("truth.csv");
//! std::fs::write(&path, "key,answer\na,red\nb,blue\n").unwrap();
//! let answers = tidemill_operators::ground_truth::load(&path, "key", "answer").unwrap();
//! assert_eq!(answers["b"], "blue");
//! ```
use crate::api::GroundTruth;
use crate::record;
use crate::text_truth::{CharacterErrors, TextTally};
use crate::track_truth::{TrackMeasures, TrackTally};
use arrow_array::{Array, RecordBatch};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// Longest accepted line; ground truth is a table of short values.
const LINE_LIMIT: u64 = 1 << 20;

/// Error of reading ground truth.
#[derive(Debug, thiserror::Error)]
pub enum GroundTruthError {
    /// The file cannot be opened or read.
    #[error("`{}` cannot be read: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Cause.
        error: std::io::Error,
    },
    /// The name ends neither in `.csv` nor in `.jsonl`.
    #[error("`{}` is neither a .csv nor a .jsonl file", path.display())]
    Format {
        /// The file.
        path: PathBuf,
    },
    /// A column is missing.
    #[error("`{}` has no column `{column}`, it has: {found}", path.display())]
    Column {
        /// The file.
        path: PathBuf,
        /// The column.
        column: String,
        /// Existing columns.
        found: String,
    },
    /// A line is invalid.
    #[error("`{}`, line {line}: {what}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Line number, counted from 1.
        line: u64,
        /// Description.
        what: String,
    },
    /// A key has two answers.
    #[error("`{}`, line {line}: key `{key}` has two answers, `{first}` and `{second}`", path.display())]
    Twice {
        /// The file.
        path: PathBuf,
        /// Line number of the second one, counted from 1.
        line: u64,
        /// The key.
        key: String,
        /// The answer before.
        first: String,
        /// The answer on this line.
        second: String,
    },
    /// No rows.
    #[error("`{}` has no rows", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

impl GroundTruthError {
    /// Returns advice.
    pub fn help(&self) -> &'static str {
        match self {
            Self::File { .. } => {
                "write a path relative to the workflow file and check that the file can be read"
            }
            Self::Format { .. } => {
                "use a .csv file with a header line, or a .jsonl file with one object per line"
            }
            Self::Column { .. } => "`key` and `truth` name columns of the file",
            Self::Line { .. } => "correct the line or remove it",
            Self::Twice { .. } => "keep one of the two lines",
            Self::Empty { .. } => "write one row for each record with a known answer",
        }
    }
}

/// Reads the answers: column `truth` by column `key`. Numbers and bools are compared as written. A repeated line with an
/// equal answer is accepted.
///
/// # Errors
/// See [`GroundTruthError`].
pub fn load(path: &Path, key: &str, truth: &str) -> Result<HashMap<String, String>, GroundTruthError> {
    let file = File::open(path).map_err(|error| GroundTruthError::File { path: path.into(), error })?;
    let mut answers = Answers { path, map: HashMap::new() };
    match path.extension().and_then(|e| e.to_str()).map(str::to_ascii_lowercase).as_deref() {
        Some("csv") => answers.csv(file, key, truth)?,
        Some("jsonl" | "ndjson") => answers.jsonl(file, key, truth)?,
        _ => return Err(GroundTruthError::Format { path: path.into() }),
    }
    if answers.map.is_empty() {
        return Err(GroundTruthError::Empty { path: path.into() });
    }
    Ok(answers.map)
}

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
    /// Whether all rows are judged together, as tracks and texts are. They cannot be judged in parts whose results are
    /// added, since each is compared with the whole truth.
    pub fn is_whole(&self) -> bool {
        self.tracks.is_some() || self.texts.is_some()
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
    let right = cell_text(batch, prediction, row).is_some_and(|found| found == *expected);
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
    /// Number of independent samples with the uncertainty of this share: the scored ones, but fewer for tracks and texts,
    /// whose boxes and characters depend on each other.
    pub independent: u64,
    /// Scored keys, if each counts once; at most the number of answers.
    keys: HashSet<String>,
    /// Set if tracks are judged.
    tracks: Option<TrackTally>,
    /// Set if texts are judged by their characters.
    texts: Option<TextTally>,
}

impl Score {
    /// Judges the rows of a batch; with [`GroundTruth::once`] without keys already scored here or in `before`.
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
        let key_column = batch.schema_ref().index_of(&truth.key).ok();
        for row in 0..batch.num_rows() {
            let verdict = match judge(truth, batch, row) {
                Some(Verdict::Unknown) => {
                    self.unknown += 1;
                    continue;
                }
                Some(verdict) => verdict,
                None => continue,
            };
            if truth.once
                && let Some(key) = key_column.and_then(|column| cell_text(batch, column, row))
                && (before.keys.contains(&key) || !self.keys.insert(key))
            {
                continue;
            }
            self.scored += 1;
            self.independent += 1;
            self.correct += u64::from(verdict == Verdict::Right);
        }
    }

    /// Adds a later score. Texts count once they have arrived. Tracks count at the end, by [`Score::settle`]: truth still
    /// to come is no mistake, and comparing all tracks each time would take ever longer.
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

    /// Returns the measures of tracks beside IDF1. Slow, so only for the end.
    pub fn track_measures(&self) -> Option<TrackMeasures> {
        self.tracks.as_ref().map(TrackTally::measures)
    }

    /// Compares with the whole truth, once no more rows come. Tracks can be judged only together: `correct` of `scored` is
    /// then IDF1, in boxes (twice the agreeing ones, of the true and the found ones). For texts, `correct` are the
    /// characters without the errors; a missing text is empty.
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
    }

    /// Settles a run that was cut short: the truth of each camera ends with the last frame with a box of a track, and only
    /// texts that arrived count. Missing cameras and texts may belong to input that was not read.
    pub fn settle_so_far(&mut self) {
        self.tracks.iter_mut().for_each(TrackTally::end_with_rows);
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

fn cell_text(batch: &RecordBatch, column: usize, row: usize) -> Option<String> {
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

/// Columns and values of some keys, in the order of the file.
pub type TruthRows = BTreeMap<String, Vec<(String, String)>>;

/// Returns all columns of the rows with these keys, for display. It reads the files that [`load`] accepts; values other
/// than texts, numbers and bools are left out.
///
/// # Errors
/// See [`GroundTruthError`].
///
/// ```
/// let folder = tempfile::tempdir().unwrap();
/// let path = folder.path().join("truth.csv");
/// std::fs::write(&path, "key,question,answer\na,which colour,red\nb,how many,2\n").unwrap();
/// let keys = ["b".to_owned()].into();
/// let rows = tidemill_operators::ground_truth::rows(&path, "key", &keys).unwrap();
/// assert_eq!(rows["b"][1], ("question".to_owned(), "how many".to_owned()));
/// assert_eq!(rows.len(), 1);
/// ```
pub fn rows(path: &Path, key: &str, wanted: &BTreeSet<String>) -> Result<TruthRows, GroundTruthError> {
    let failed = |error| GroundTruthError::File { path: path.into(), error };
    let file = File::open(path).map_err(failed)?;
    let mut rows = TruthRows::new();
    let mut add = |row: Vec<(String, String)>| {
        let found = row.iter().find(|(name, _)| name == key).map(|(_, value)| value.clone());
        if let Some(found) = found.filter(|found| wanted.contains(found)) {
            rows.entry(found).or_insert(row);
        }
    };
    if path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("csv")) {
        let mut reader = csv::Reader::from_reader(BufReader::new(file));
        let names = reader.headers().map_err(|e| failed(std::io::Error::other(e)))?.clone();
        let names: Vec<String> =
            names.iter().map(|n| n.trim_start_matches('\u{feff}').trim().into()).collect();
        for record in reader.records() {
            let record = record.map_err(|e| failed(std::io::Error::other(e)))?;
            add(names.iter().cloned().zip(record.iter().map(str::to_owned)).collect());
        }
    } else {
        for line in BufReader::new(file).lines() {
            let line = line.map_err(failed)?;
            // Only a first line may start with a byte order mark.
            let line = line.trim_start_matches('\u{feff}');
            let Ok(object) = serde_json::from_str::<serde_json::Map<_, _>>(line) else { continue };
            let fields = object.into_iter().filter_map(|(name, value)| match value {
                serde_json::Value::String(text) => Some((name, text)),
                serde_json::Value::Number(_) | serde_json::Value::Bool(_) => Some((name, value.to_string())),
                _ => None,
            });
            add(fields.collect());
        }
    }
    Ok(rows)
}

struct Answers<'a> {
    path: &'a Path,
    map: HashMap<String, String>,
}

impl Answers<'_> {
    fn insert(&mut self, line: u64, key: &str, answer: &str) -> Result<(), GroundTruthError> {
        match self.map.entry(key.to_owned()) {
            Entry::Vacant(entry) => drop(entry.insert(answer.to_owned())),
            Entry::Occupied(entry) if entry.get() != answer => {
                return Err(GroundTruthError::Twice {
                    path: self.path.into(),
                    line,
                    key: key.to_owned(),
                    first: entry.get().clone(),
                    second: answer.to_owned(),
                });
            }
            Entry::Occupied(_) => {}
        }
        Ok(())
    }

    fn line(&self, line: u64, what: impl Into<String>) -> GroundTruthError {
        GroundTruthError::Line { path: self.path.into(), line, what: what.into() }
    }

    fn csv(&mut self, file: File, key: &str, truth: &str) -> Result<(), GroundTruthError> {
        let mut reader = csv::Reader::from_reader(BufReader::new(file));
        let header = reader.headers().map_err(|e| self.line(1, e.to_string()))?.clone();
        let column = |name: &str| {
            // Spreadsheets write a byte order mark before the first name.
            header.iter().position(|h| h.trim_start_matches('\u{feff}').trim() == name).ok_or_else(|| {
                let found: Vec<String> = header.iter().take(40).map(|h| format!("`{h}`")).collect();
                GroundTruthError::Column {
                    path: self.path.into(),
                    column: name.into(),
                    found: if found.is_empty() { "nothing".into() } else { found.join(", ") },
                }
            })
        };
        let (key, truth) = (column(key)?, column(truth)?);
        let mut record = csv::StringRecord::new();
        loop {
            let more = reader.read_record(&mut record).map_err(|e| {
                let line = e.position().map_or(0, csv::Position::line);
                self.line(line, e.to_string())
            })?;
            if !more {
                return Ok(());
            }
            let line = record.position().map_or(0, csv::Position::line);
            // The reader refuses records of another length than the header, so both exist.
            self.insert(line, record.get(key).unwrap_or_default(), record.get(truth).unwrap_or_default())?;
        }
    }

    fn jsonl(&mut self, file: File, key: &str, truth: &str) -> Result<(), GroundTruthError> {
        let mut reader = BufReader::new(file);
        let mut text = Vec::new();
        for line in 1.. {
            text.clear();
            let read = (&mut reader)
                .take(LINE_LIMIT)
                .read_until(b'\n', &mut text)
                .map_err(|error| GroundTruthError::File { path: self.path.into(), error })?;
            if read == 0 {
                break;
            }
            if read as u64 == LINE_LIMIT {
                return Err(self.line(line, "longer than 1 MiB"));
            }
            // Programs on Windows write a byte order mark before the first line.
            let text = text.strip_prefix(b"\xef\xbb\xbf").filter(|_| line == 1).unwrap_or(&text);
            if text.trim_ascii().is_empty() {
                continue;
            }
            let object: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(text)
                .map_err(|e| self.line(line, format!("not a JSON object: {e}")))?;
            let field = |name: &str| match object.get(name) {
                Some(serde_json::Value::String(text)) => Ok(text.clone()),
                Some(value @ (serde_json::Value::Number(_) | serde_json::Value::Bool(_))) => {
                    Ok(value.to_string())
                }
                Some(_) => Err(self.line(line, format!("field `{name}` is not a text, number or bool"))),
                None => Err(self.line(line, format!("there is no field `{name}`"))),
            };
            let (key, answer) = (field(key)?, field(truth)?);
            self.insert(line, &key, &answer)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load_text(name: &str, text: &str) -> Result<HashMap<String, String>, GroundTruthError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        load(&path, "key", "answer")
    }

    #[test]
    fn both_formats() {
        let csv = load_text("t.csv", "\u{feff}key,x,answer\na,1,\"red, dark\"\nb,2,7\na,3,\"red, dark\"\n")
            .unwrap();
        let jsonl =
            load_text("t.jsonl", "{\"key\":\"a\",\"answer\":\"red, dark\"}\n\n{\"key\":\"b\",\"answer\":7}")
                .unwrap();
        assert_eq!(csv, jsonl);
        let marked = load_text(
            "t.jsonl",
            "\u{feff}{\"key\":\"a\",\"answer\":\"red, dark\"}\r\n{\"key\":\"b\",\"answer\":7}\r\n",
        );
        assert_eq!(marked.unwrap(), jsonl);
        assert_eq!(csv["a"], "red, dark");
    }

    #[test]
    fn errors_say_where() {
        for (name, text, expected) in [
            ("t.csv", "key,b\na,1\n", "has no column `answer`"),
            ("t.csv", "key,answer\na,1\nb\n", "line 3"),
            ("t.csv", "key,answer\na,1\na,2\n", "line 3: key `a` has two answers, `1` and `2`"),
            ("t.csv", "key,answer\n", "has no rows"),
            ("t.jsonl", "{\"key\":\"a\"}", "line 1: there is no field `answer`"),
            ("t.jsonl", "[]", "line 1: not a JSON object"),
            ("t.txt", "", "neither"),
        ] {
            let error = load_text(name, text).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
            assert!(!error.help().is_empty());
        }
        assert!(
            load(Path::new("/nowhere/t.csv"), "key", "answer")
                .unwrap_err()
                .to_string()
                .contains("cannot be read")
        );
    }
}
