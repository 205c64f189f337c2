//! The file of records that could not be processed: one JSON object per line,
//! `{operator, reason, detail, id, time, values}`.
//!
//! `id` is hexadecimal, `time` is the event time in microseconds; both are null if the record has none. `values` are the
//! columns of the record, long ones shortened (see [`crate::values`]). Letters become part of the file at checkpoints,
//! where the file is synced, and survive a kill of the process. Another process continues the file with the token of its
//! last recorded commit: everything after it is cut off. The caller leaves out letters that a restart repeats.
//!
//! ```
//! use tidemill_operators::{api::DeadLetter, dead_letters::DeadLetterWriter};
//! let folder = tempfile::tempdir().unwrap();
//! let path = folder.path().join("dead.jsonl");
//! let mut writer = DeadLetterWriter::create(&path).unwrap();
//! let values = serde_json::Map::from_iter([("key".to_owned(), "a".into())]);
//! let (id, time) = (Some([1; 16]), Some(5));
//! let letter = DeadLetter { id, time, reason: "image_truncated".into(), detail: "a.jpg".into(), values };
//! writer.write("detect", &letter, 3).unwrap();
//! writer.commit(4).unwrap();
//! assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 1);
//! ```
use crate::api::{DeadLetter, OperatorError};
use crate::sinks::lock::check_free;
use crate::sinks::rows::hexadecimal;
use crate::sinks::staging::Staging;
use crate::values::Values;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;

/// The event time of a record and its line.
type Timed = (Option<i64>, Vec<u8>);

/// Writes dead letters; see the module.
pub struct DeadLetterWriter {
    staging: Staging,
    /// Uncommitted lines by epoch.
    waiting: BTreeMap<u64, Vec<Timed>>,
    /// Id of the current letter.
    id: Vec<u8>,
}

#[derive(Serialize)]
struct Line<'a> {
    operator: &'a str,
    reason: &'a str,
    detail: &'a str,
    id: Option<&'a str>,
    time: Option<i64>,
    values: &'a Values,
}

impl DeadLetterWriter {
    /// Creates the file and missing folders; the file of an earlier run is replaced.
    ///
    /// # Errors
    /// The file cannot be written; the text names it and gives advice.
    pub fn create(path: &Path) -> Result<Self, OperatorError> {
        Ok(Self { staging: Staging::create(path, true)?, waiting: BTreeMap::new(), id: Vec::new() })
    }

    /// Continues the file of another process after its committed part, which `token` gives; the rest is cut off.
    ///
    /// # Errors
    /// The file is missing or shorter, or another run is writing it; the text names it and gives advice.
    pub fn resume(path: &Path, token: &[u8]) -> Result<Self, OperatorError> {
        Ok(Self { staging: Staging::resume(path, token)?, waiting: BTreeMap::new(), id: Vec::new() })
    }

    /// Checks whether the file could be created, or with a token continued; changes nothing.
    ///
    /// # Errors
    /// Another run writes it, or it has lost letters; the text names it and gives advice.
    pub fn check(path: &Path, token: Option<&[u8]>) -> Result<(), OperatorError> {
        match token {
            Some(token) => Staging::check(path, token),
            None => check_free(path, path),
        }
    }

    /// Makes the last commit durable and returns the token with which [`DeadLetterWriter::resume`] continues after it.
    /// `None` if the path is a pipe or a device, which cannot be continued.
    ///
    /// # Errors
    /// The file or its folder cannot be synced; the text names it and gives advice.
    pub fn token(&mut self) -> Result<Option<Vec<u8>>, OperatorError> {
        self.staging.sync()?;
        self.staging.token()
    }

    /// Adds a letter of an operator (or source) from `epoch`.
    ///
    /// # Errors
    /// The letter cannot be encoded as JSON; never for letters of the built-in operators.
    pub fn write(&mut self, operator: &str, letter: &DeadLetter, epoch: u64) -> Result<(), OperatorError> {
        self.id.clear();
        if let Some(id) = &letter.id {
            hexadecimal(id, &mut self.id);
        }
        let id = letter.id.and(std::str::from_utf8(&self.id).ok());
        let DeadLetter { time, reason, detail, values, .. } = letter;
        let line = Line { operator, reason, detail, id, time: *time, values };
        let mut text =
            serde_json::to_vec(&line).map_err(|e| OperatorError::new(format!("dead letters: {e}")))?;
        text.push(b'\n');
        self.waiting.entry(epoch).or_default().push((*time, text));
        Ok(())
    }

    /// Makes the letters of all epochs before `epoch` durable; later ones wait for their own commit.
    ///
    /// # Errors
    /// The file cannot be written; the text names it and gives advice.
    pub fn commit(&mut self, epoch: u64) -> Result<(), OperatorError> {
        let later = self.waiting.split_off(&epoch);
        for mut lines in std::mem::replace(&mut self.waiting, later).into_values() {
            // Letters arrive in any order; the file is identical in every run.
            lines.sort_unstable();
            lines.iter().for_each(|(_, line)| self.staging.buffer().extend_from_slice(line));
        }
        self.staging.commit()?;
        self.staging.sync()
    }

    /// Last call instead of `close` if another process will continue: discards uncommitted letters, keeps the state of the
    /// token.
    ///
    /// # Errors
    /// See `close`.
    pub fn suspend(&mut self) -> Result<(), OperatorError> {
        self.close()
    }

    /// Last call: discards uncommitted letters.
    ///
    /// # Errors
    /// A temporary file cannot be removed.
    pub fn close(&mut self) -> Result<(), OperatorError> {
        self.waiting.clear();
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
            reason: "bad_value".into(),
            detail: "a \"quote\"".into(),
            values: Values::from_iter([("n".to_owned(), 1.into())]),
        }
    }

    #[test]
    fn letters_come_from_other_processes_too() {
        let sent = serde_json::to_vec(&letter(Some(3))).unwrap();
        let received: DeadLetter = serde_json::from_reader(sent.as_slice()).unwrap();
        assert_eq!(received, letter(Some(3)));
    }

    #[test]
    fn another_process_continues_behind_what_was_recorded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out/dead.jsonl");
        let operators = || -> Vec<String> {
            let text = std::fs::read_to_string(&path).unwrap();
            let value = |line| serde_json::from_str::<serde_json::Value>(line).unwrap();
            text.lines().map(|line| value(line)["operator"].as_str().unwrap().to_owned()).collect()
        };
        let mut writer = DeadLetterWriter::create(&path).unwrap();
        writer.write("a", &letter(Some(1)), 0).unwrap();
        writer.write("c", &letter(Some(3)), 1).unwrap();
        writer.commit(1).unwrap();
        let token = writer.token().unwrap().unwrap();
        writer.commit(2).unwrap();
        assert_eq!(operators(), ["a", "c"]);
        assert!(
            DeadLetterWriter::resume(&path, &token).err().unwrap().message.contains("is being written by")
        );
        drop(writer);
        let mut writer = DeadLetterWriter::resume(&path, &token).unwrap();
        assert_eq!(operators(), ["a"]);
        writer.write("b", &letter(None), 1).unwrap();
        writer.commit(2).unwrap();
        let token = writer.token().unwrap().unwrap();
        writer.write("d", &letter(None), 2).unwrap();
        writer.suspend().unwrap();
        DeadLetterWriter::resume(&path, &token).unwrap().close().unwrap();
        assert_eq!(operators(), ["a", "b"]);
        std::fs::write(&path, "").unwrap();
        let error = DeadLetterWriter::resume(&path, &token).err().unwrap();
        assert!(error.message.contains("dead.jsonl") && error.message.contains("only 0"), "{error}");
        assert!(DeadLetterWriter::create(Path::new("/dev/null")).unwrap().token().unwrap().is_none());
    }

    #[test]
    fn letters_of_committed_epochs_are_in_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out/dead.jsonl");
        let mut writer = DeadLetterWriter::create(&path).unwrap();
        let lines = || std::fs::read_to_string(&path).unwrap().lines().count();
        writer.write("a", &letter(Some(2)), 5).unwrap();
        writer.write("a", &letter(Some(1)), 0).unwrap();
        writer.write("b", &letter(None), 1).unwrap();
        assert_eq!(lines(), 0);
        writer.commit(5).unwrap();
        assert_eq!(lines(), 2);
        writer.commit(6).unwrap();
        assert!(writer.waiting.is_empty(), "nothing is kept of what is in the file");
        let text = std::fs::read_to_string(&path).unwrap();
        let line = |operator: &str, id: &str| {
            format!(
                "{{\"operator\":\"{operator}\",\"reason\":\"bad_value\",\"detail\":\"a \\\"quote\\\"\",\"id\":{id},\"time\":null,\"values\":{{\"n\":1}}}}"
            )
        };
        let id = |byte: &str| format!("\"{}\"", byte.repeat(16));
        assert_eq!(
            text.lines().collect::<Vec<_>>(),
            [line("a", &id("01")), line("b", "null"), line("a", &id("02"))]
        );
        writer.write("a", &letter(Some(9)), 7).unwrap();
        writer.close().unwrap();
        assert_eq!(lines(), 3);
    }
}
