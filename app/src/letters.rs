//! Dead letters of a run: the file named in the workflow, and their limit.
use crate::failure::{Failure, Kind};
use crate::figures::grouped;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use tidemill_engine::{LetterWriter, Program, RunReport};
use tidemill_operators::api::{DeadLetter, OperatorError};
use tidemill_operators::dead_letters::DeadLetterWriter;
use tidemill_operators::sinks::has_lost_rows;
use tidemill_spec::workflow::Workflow;

/// Opens the writer of the workflow's dead letters, if it names a file; with a token it continues another process's file.
///
/// # Errors
/// When the file cannot be written.
pub fn letter_writer(
    workflow: &Workflow,
    token: Option<&[u8]>,
) -> Result<Option<Box<dyn LetterWriter>>, Failure> {
    let Some(File { named, path, token }) = File::of(workflow, token)? else { return Ok(None) };
    let writer = match token {
        Some(token) => DeadLetterWriter::resume(&path, &token),
        None => DeadLetterWriter::create(&path),
    };
    Ok(Some(Box::new(FileLetters { writer: writer.map_err(failure)?, named })))
}

/// Checks whether the writer could be opened; changes nothing.
///
/// # Errors
/// Another run writes the file, it has lost letters, or it is not the one of the token.
pub(crate) fn check(workflow: &Workflow, token: Option<&[u8]>) -> Result<(), Failure> {
    let Some(File { path, token, .. }) = File::of(workflow, token)? else { return Ok(()) };
    DeadLetterWriter::check(&path, token.as_deref()).map_err(failure)
}

fn failure(error: OperatorError) -> Failure {
    // As for all other outputs.
    let kind = if has_lost_rows(&error.message) { Kind::Data } else { Kind::Configuration };
    Failure::new(kind, format!("dead letters: {error}"))
}

/// The file of a workflow's dead letters.
struct File {
    /// Its name in the workflow.
    named: String,
    path: PathBuf,
    /// The committed part, as a token of the writer.
    token: Option<Vec<u8>>,
}

impl File {
    fn of(workflow: &Workflow, token: Option<&[u8]>) -> Result<Option<Self>, Failure> {
        let named = workflow.run.dead_letters.as_ref().map(|path| path.value.clone());
        let kept = token.and_then(|token| serde_json::from_slice::<LetterFileState>(token).ok());
        if let Some(kept) = kept.as_ref().filter(|kept| named.as_ref() != Some(&kept.path)) {
            return Err(elsewhere(&kept.path, named.as_deref()));
        }
        let Some(named) = named else { return Ok(None) };
        let path = workflow.resolve(&named);
        // Earlier versions did not store the name of the file.
        let committed = kept.map(|kept| kept.committed.to_string().into_bytes());
        let token = committed.or_else(|| token.map(<[u8]>::to_vec));
        Ok(Some(Self { named, path, token }))
    }
}

/// Data of a state about the file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LetterFileState {
    /// Its name in the workflow.
    path: String,
    /// The committed part, as a token of the writer.
    committed: Value,
}

/// Extracts the writer's token from a token of a state.
pub(crate) fn of_file(token: &[u8]) -> Vec<u8> {
    match serde_json::from_slice::<LetterFileState>(token) {
        Ok(kept) => kept.committed.to_string().into_bytes(),
        Err(_) => token.to_vec(),
    }
}

/// Called when the letters before a checkpoint are in the file; its error becomes one of the letters.
pub type Share = Box<dyn FnMut() -> Result<(), String> + Send>;

/// Writes as `inner` does, and shares the committed letters with processes elsewhere, before the checkpoint that depends on
/// it.
pub fn shared(inner: Box<dyn LetterWriter>, share: Share) -> Box<dyn LetterWriter> {
    Box::new(SharedLetters { inner, share })
}

struct SharedLetters {
    inner: Box<dyn LetterWriter>,
    share: Share,
}

impl LetterWriter for SharedLetters {
    fn write(&mut self, operator: &str, letter: &DeadLetter, epoch: u64) -> Result<(), OperatorError> {
        self.inner.write(operator, letter, epoch)
    }

    fn commit(&mut self, epoch: u64) -> Result<(), OperatorError> {
        self.inner.commit(epoch)
    }

    fn token(&mut self) -> Result<Option<Vec<u8>>, OperatorError> {
        let token = self.inner.token()?;
        (self.share)().map_err(|reason| OperatorError::new(format!("dead letters: {reason}")))?;
        Ok(token)
    }

    fn suspend(&mut self) -> Result<(), OperatorError> {
        self.inner.suspend()
    }

    fn close(&mut self) -> Result<(), OperatorError> {
        self.inner.close()
    }
}

/// The error if the dead letters of a state are in another file than the workflow's: continuing would leave some in the one
/// and cut the other.
fn elsewhere(kept: &str, named: Option<&str>) -> Failure {
    let now = named.map_or_else(|| "names none".to_owned(), |named| format!("names `{named}`"));
    let text = format!(
        "the dead letters of this state are in `{kept}`, but the workflow {now} as `run: dead_letters`"
    );
    let help =
        format!("write `dead_letters: {kept}`, or start from the beginning with `tidemill state reset`");
    Failure::new(Kind::Configuration, text).with_help(help)
}

/// The engine's view of the file.
struct FileLetters {
    writer: DeadLetterWriter,
    named: String,
}

impl LetterWriter for FileLetters {
    fn write(&mut self, operator: &str, letter: &DeadLetter, epoch: u64) -> Result<(), OperatorError> {
        self.writer.write(operator, letter, epoch)
    }

    fn commit(&mut self, epoch: u64) -> Result<(), OperatorError> {
        self.writer.commit(epoch)
    }

    fn token(&mut self) -> Result<Option<Vec<u8>>, OperatorError> {
        let Some(token) = self.writer.token()? else { return Ok(None) };
        let message =
            |error: serde_json::Error| OperatorError::new(format!("the state of dead letters: {error}"));
        let committed = serde_json::from_slice(&token).map_err(message)?;
        serde_json::to_vec(&LetterFileState { path: self.named.clone(), committed })
            .map(Some)
            .map_err(message)
    }

    fn suspend(&mut self) -> Result<(), OperatorError> {
        self.writer.suspend()
    }

    fn close(&mut self) -> Result<(), OperatorError> {
        self.writer.close()
    }
}

/// Limit on a run's dead letters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LetterLimit {
    /// This number.
    Count(u64),
    /// Percent of the records read by the sources.
    Share(f64),
}

impl FromStr for LetterLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("`{text}` is neither a number such as `0` or `100` nor a share such as `0.5%`");
        let Some(share) = text.strip_suffix('%') else {
            return text.parse().map(LetterLimit::Count).map_err(|_| wrong());
        };
        let share: f64 = share.trim_end().parse().map_err(|_| wrong())?;
        match (0.0..=100.0).contains(&share) {
            true => Ok(LetterLimit::Share(share)),
            false => Err(format!("`{text}` is not a share from 0% to 100%")),
        }
    }
}

impl fmt::Display for LetterLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LetterLimit::Count(count) => f.write_str(&grouped(*count)),
            LetterLimit::Share(share) => write!(f, "{share} %"),
        }
    }
}

impl LetterLimit {
    /// Whether this number exceeds the limit for any further course of the run.
    pub fn is_passed_for_good(self, dead_letters: u64) -> bool {
        matches!(self, LetterLimit::Count(count) if dead_letters > count)
    }

    fn is_passed(self, dead_letters: u64, read: u64) -> bool {
        match self {
            LetterLimit::Count(count) => dead_letters > count,
            LetterLimit::Share(share) => dead_letters as f64 * 100.0 > share * read as f64,
        }
    }
}

/// Dead letters of a run, compared with their limit.
#[derive(Debug, Clone, Copy)]
pub struct LetterVerdict {
    limit: LetterLimit,
    dead_letters: u64,
    /// Records read by the sources, including unusable ones.
    read: u64,
    /// Whether there are too many.
    pub is_passed: bool,
}

impl LetterVerdict {
    /// Compares a run with its limit.
    pub fn of(limit: LetterLimit, report: &RunReport, program: &Program) -> Self {
        let stages = report.stages.iter().filter(|stage| program.sources.contains_key(&stage.operator));
        let read = stages.map(|stage| stage.records_out + stage.dead_letters.values().sum::<u64>()).sum();
        let dead_letters = report.dead_letters;
        Self { limit, dead_letters, read, is_passed: limit.is_passed(dead_letters, read) }
    }

    /// Compares a run with its limit by its checkpoint; `records`: those emitted by its sources. A checkpoint does not say
    /// which letters are unreadable records of a source; `None` if that decides it.
    pub fn of_totals(limit: LetterLimit, dead_letters: u64, records: u64) -> Option<Self> {
        let read = records + dead_letters;
        let is_passed = limit.is_passed(dead_letters, read);
        let is_certain = is_passed == limit.is_passed(dead_letters, records);
        is_certain.then_some(Self { limit, dead_letters, read, is_passed })
    }

    /// Formats for programs.
    pub fn json(&self) -> Value {
        json!({
            "limit": self.limit.to_string(), "dead_letters": self.dead_letters, "records_read": self.read,
            "passed": self.is_passed,
        })
    }

    /// Formats as a sentence.
    pub fn text(&self) -> String {
        let found = match self.limit {
            LetterLimit::Count(_) => grouped(self.dead_letters),
            LetterLimit::Share(_) => format!(
                "{} of {} records ({:.1} %)",
                grouped(self.dead_letters),
                grouped(self.read),
                self.dead_letters as f64 * 100.0 / self.read.max(1) as f64
            ),
        };
        format!("dead letters: {found}, more than the {} of `--max-dead-letters`", self.limit)
    }
}

/// Describes origins and reasons of the dead letters, with the first of each kind: `rows: bad_value: 12, such as ...`.
pub fn causes(report: &RunReport) -> String {
    let groups = report.dead_letter_groups.iter().map(|group| {
        let sample = group.samples.first().map_or_else(String::new, |s| format!(", such as: {}", s.detail));
        format!("{}: {}: {}{sample}", group.operator, group.reason, grouped(group.count))
    });
    groups.collect::<Vec<_>>().join("; ")
}

/// A source all of whose records are dead letters.
pub struct Spoilt<'a> {
    /// The source.
    pub id: &'a str,
    /// Number of its letters.
    pub letters: u64,
    /// Reasons, the most frequent first; at least one.
    pub reasons: Vec<&'a str>,
}

/// Sources all of whose records are dead letters, over all of their stages.
pub fn spoilt<'a>(report: &'a RunReport, program: &'a Program) -> Vec<Spoilt<'a>> {
    let spoilt = program.sources.keys().filter_map(|id| {
        let (mut good, mut by_reason) = (0, BTreeMap::<&str, u64>::new());
        for stage in report.stages.iter().filter(|stage| stage.operator == *id) {
            good += stage.records_out;
            for (reason, count) in &stage.dead_letters {
                *by_reason.entry(reason).or_default() += count;
            }
        }
        let letters = by_reason.values().sum();
        if good > 0 || letters == 0 {
            return None;
        }
        let mut reasons: Vec<(&str, u64)> = by_reason.into_iter().collect();
        reasons.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        Some(Spoilt { id, letters, reasons: reasons.into_iter().map(|(reason, _)| reason).collect() })
    });
    spoilt.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_numbers_or_shares() {
        for (text, limit) in [
            ("0", LetterLimit::Count(0)),
            ("17", LetterLimit::Count(17)),
            ("0.5%", LetterLimit::Share(0.5)),
            ("100 %", LetterLimit::Share(100.0)),
        ] {
            assert_eq!(text.parse(), Ok(limit));
        }
        for text in ["", "-1", "1.5", "%", "101%", "-1%", "nan%", "x%"] {
            assert!(text.parse::<LetterLimit>().is_err(), "{text}");
        }
    }

    #[test]
    fn more_than_the_limit_is_too_many() {
        let (none, share) = (LetterLimit::Count(0), LetterLimit::Share(10.0));
        assert!(!none.is_passed(0, 0) && none.is_passed(1, 100) && none.is_passed_for_good(1));
        assert!(!share.is_passed(10, 100) && share.is_passed(11, 100));
        assert!(!share.is_passed_for_good(11), "more good ones may come");
        assert!(!share.is_passed(0, 0));
    }

    #[test]
    fn a_checkpoint_says_whether_there_are_too_many() {
        let passed = |limit, letters, records| {
            LetterVerdict::of_totals(limit, letters, records).map(|verdict| verdict.is_passed)
        };
        assert_eq!(passed(LetterLimit::Count(10), 10, 0), Some(false));
        assert_eq!(passed(LetterLimit::Count(9), 10, 990), Some(true));
        // Of 100 or of 110 records: 10 % of the former is exceeded, of the latter not.
        assert_eq!(passed(LetterLimit::Share(9.5), 10, 100), None);
        assert_eq!(passed(LetterLimit::Share(10.0), 10, 100), Some(false));
        assert_eq!(passed(LetterLimit::Share(9.0), 10, 100), Some(true));
    }
}
