//! Correct answers by key, from a CSV file (with a header line) or a JSONL file (one object per line).
//!
//! ```
//! let folder = tempfile::tempdir().unwrap();
//! let path = folder.path().join("truth.csv");
//! std::fs::write(&path, "key,answer\na,red\nb,blue\n").unwrap();
//! let answers = tidemill_operators::ground_truth::load(&path, "key", "answer").unwrap();
//! assert_eq!(answers["b"], "blue");
//! ```
mod score;

pub use score::{Score, Verdict, judge};
pub(crate) use score::{cell_text, is_true};

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
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
        Some("jsonl" | "ndjson") => answers.jsonl(key, truth)?,
        _ => return Err(GroundTruthError::Format { path: path.into() }),
    }
    if answers.map.is_empty() {
        return Err(GroundTruthError::Empty { path: path.into() });
    }
    Ok(answers.map)
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

    fn jsonl(&mut self, key: &str, truth: &str) -> Result<(), GroundTruthError> {
        objects_of(self.path, |line, object| {
            let field = |name: &str| match object.get(name) {
                Some(serde_json::Value::String(text)) => Ok(text.clone()),
                Some(value @ (serde_json::Value::Number(_) | serde_json::Value::Bool(_))) => {
                    Ok(value.to_string())
                }
                Some(_) => Err(self.line(line, format!("field `{name}` is not a text, number or bool"))),
                None => Err(self.line(line, format!("there is no field `{name}`"))),
            };
            let (key, answer) = (field(key)?, field(truth)?);
            self.insert(line, &key, &answer)
        })
    }
}

/// Reads the JSON objects of a file, one a line, with the number of the line.
pub(crate) fn objects_of(
    path: &Path,
    mut each: impl FnMut(u64, &serde_json::Map<String, serde_json::Value>) -> Result<(), GroundTruthError>,
) -> Result<(), GroundTruthError> {
    let failed = |error| GroundTruthError::File { path: path.into(), error };
    let wrong = |line: u64, what: String| GroundTruthError::Line { path: path.into(), line, what };
    let mut reader = BufReader::new(File::open(path).map_err(failed)?);
    let mut text = Vec::new();
    for line in 1.. {
        text.clear();
        let read = (&mut reader).take(LINE_LIMIT).read_until(b'\n', &mut text).map_err(failed)?;
        if read == 0 {
            break;
        }
        if read as u64 == LINE_LIMIT {
            return Err(wrong(line, "longer than 1 MiB".into()));
        }
        // Programs on Windows write a byte order mark before the first line.
        let text = text.strip_prefix(b"\xef\xbb\xbf").filter(|_| line == 1).unwrap_or(&text);
        if text.trim_ascii().is_empty() {
            continue;
        }
        let object =
            serde_json::from_slice(text).map_err(|e| wrong(line, format!("not a JSON object: {e}")))?;
        each(line, &object)?;
    }
    Ok(())
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
