//! The file of records that could not be processed: one JSON object a line, `{operator, reason, detail, id,
//! time, values}`.
//!
//! `id` is hexadecimal, `time` is the event time in microseconds; both are null where the record has none. `values` are
//! the columns of the record, cut where they are long (see [`crate::values`]). A record that fails again in the same operator after a restart is written once. Letters become part of the file at
//! checkpoints, like the rows of a file sink.
//!
//! ```
//! use tidemill_operators::{api::DeadLetter, dead_letters::DeadLetterWriter};
//! let folder = tempfile::tempdir().unwrap();
//! let path = folder.path().join("dead.jsonl");
//! let mut writer = DeadLetterWriter::create(&path).unwrap();
//! let values = serde_json::Map::from_iter([("key".to_owned(), "a".into())]);
//! let (id, time) = (Some([1; 16]), Some(5));
//! let letter = DeadLetter { id, time, reason: "image_truncated", detail: "a.jpg".into(), values };
//! writer.write("detect", &letter, 3).unwrap();
//! writer.write("detect", &letter, 3).unwrap();
//! writer.commit(4).unwrap();
//! assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 1);
//! ```
use crate::api::{DeadLetter, OperatorError};
use crate::record::{RecordId, operator_number};
use crate::sinks::staging::Staging;
use crate::values::Values;
use serde::Serialize;
use std::collections::HashSet;
use std::path::Path;

/// Writes dead letters; see the module.
pub struct DeadLetterWriter {
    staging: Staging,
    /// Operator and record of every letter in the file: 24 bytes each.
    committed: HashSet<(u64, RecordId)>,
    staged: Vec<(u64, Staged)>,
    seen: HashSet<(u64, RecordId)>,
}

/// A letter that is not committed yet.
struct Staged {
    key: Option<(u64, RecordId)>,
    line: Vec<u8>,
}

#[derive(Serialize)]
struct Line<'a> {
    operator: &'a str,
    reason: &'a str,
    detail: &'a str,
    id: Option<String>,
    time: Option<i64>,
    values: &'a Values,
}

impl DeadLetterWriter {
    /// Creates the file and missing folders; the file of an earlier run is replaced.
    ///
    /// # Errors
    /// The file cannot be written; the text names it and says what to do.
    pub fn create(path: &Path) -> Result<Self, OperatorError> {
        let staging = Staging::create(path, true)?;
        Ok(Self { staging, committed: HashSet::new(), staged: Vec::new(), seen: HashSet::new() })
    }

    /// Takes a letter of an operator (or source) from `epoch`; one of the same operator and record is left out.
    ///
    /// # Errors
    /// The letter cannot be put into JSON; never for letters of the built-in operators.
    pub fn write(&mut self, operator: &str, letter: &DeadLetter, epoch: u64) -> Result<(), OperatorError> {
        let key = letter.id.map(|id| (operator_number(operator), id));
        if let Some(key) = key
            && (self.committed.contains(&key) || !self.seen.insert(key))
        {
            return Ok(());
        }
        let id = letter.id.map(|id| id.iter().map(|byte| format!("{byte:02x}")).collect());
        let DeadLetter { time, reason, detail, values, .. } = letter;
        let line = Line { operator, reason, detail, id, time: *time, values };
        let mut line =
            serde_json::to_vec(&line).map_err(|e| OperatorError::new(format!("dead letters: {e}")))?;
        line.push(b'\n');
        self.staged.push((epoch, Staged { key, line }));
        Ok(())
    }

    /// Makes the letters of all epochs before `epoch` durable; later ones wait for their own commit.
    ///
    /// # Errors
    /// The file cannot be written; the text names it and says what to do.
    pub fn commit(&mut self, epoch: u64) -> Result<(), OperatorError> {
        let (ready, later): (Vec<_>, Vec<_>) = self.staged.drain(..).partition(|(e, _)| *e < epoch);
        self.staged = later;
        for (_, letter) in &ready {
            self.staging.buffer().extend_from_slice(&letter.line);
        }
        self.staging.commit()?;
        for key in ready.into_iter().filter_map(|(_, letter)| letter.key) {
            self.seen.remove(&key);
            self.committed.insert(key);
        }
        Ok(())
    }

    /// Forgets everything that is not committed; a restart will write it again.
    pub fn rollback(&mut self) {
        self.staged.clear();
        self.seen.clear();
        self.staging.buffer().clear();
    }

    /// Last call: what was not committed is not kept.
    ///
    /// # Errors
    /// A temporary file cannot be removed.
    pub fn close(&mut self) -> Result<(), OperatorError> {
        self.rollback();
        self.staging.close()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn letter(id: Option<u8>) -> DeadLetter {
        DeadLetter {
            id: id.map(|id| [id; 16]),
            time: None,
            reason: "bad_value",
            detail: "a \"quote\"".into(),
            values: Values::from_iter([("n".to_owned(), 1.into())]),
        }
    }

    #[test]
    fn once_for_each_operator_and_record_over_restarts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out/dead.jsonl");
        let mut writer = DeadLetterWriter::create(&path).unwrap();
        let lines = || std::fs::read_to_string(&path).unwrap().lines().count();
        writer.write("a", &letter(Some(1)), 0).unwrap();
        writer.write("b", &letter(Some(1)), 0).unwrap();
        writer.write("a", &letter(Some(2)), 5).unwrap();
        writer.write("a", &letter(None), 1).unwrap();
        writer.write("a", &letter(None), 1).unwrap();
        assert_eq!(lines(), 0);
        writer.commit(5).unwrap();
        assert_eq!(lines(), 4);
        writer.rollback();
        writer.write("a", &letter(Some(1)), 4).unwrap();
        writer.write("a", &letter(Some(2)), 5).unwrap();
        writer.commit(6).unwrap();
        assert_eq!(lines(), 5);
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(
            text.lines().last().unwrap(),
            format!(
                "{{\"operator\":\"a\",\"reason\":\"bad_value\",\"detail\":\"a \\\"quote\\\"\",\"id\":\"{}\",\"time\":null,\"values\":{{\"n\":1}}}}",
                "02".repeat(16)
            )
        );
        writer.write("a", &letter(Some(9)), 7).unwrap();
        writer.close().unwrap();
        assert_eq!(lines(), 5);
    }
}
