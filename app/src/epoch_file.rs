//! The epoch log of a run as a file: a line of JSON for its sources, then one per epoch when it starts.
//!
//! A line is written at once, so that the log of a killed process is there as far as it came. Its last line may be torn;
//! readers skip it.
use crate::failure::{Failure, Kind};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tidemill_engine::{EpochEntry, EpochLog, EpochWriter, Program};
use tidemill_operators::api::OperatorError;
use tidemill_operators::sinks::log_file::LogFile;

/// The first line.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    /// Version of the format.
    epoch_log: u32,
    /// Stages of sources.
    sources: Vec<String>,
}

/// Any other line.
#[derive(Serialize, Deserialize)]
struct Line<T> {
    source: String,
    #[serde(flatten)]
    entry: T,
}

/// A log being written. Clones write the same file.
#[derive(Clone)]
pub struct EpochFile(Arc<Mutex<Writing>>);

struct Writing {
    path: PathBuf,
    /// The first line.
    header: Vec<u8>,
    /// `None` until something is written.
    file: Option<LogFile>,
    /// Reason why nothing more is written.
    failure: Option<OperatorError>,
}

impl Writing {
    /// Starts the log, replacing that of an earlier run.
    fn begin(&mut self) -> Result<&mut LogFile, OperatorError> {
        let file = match self.file.take() {
            Some(file) => file,
            None => {
                let mut file = LogFile::create(&self.path)?;
                file.append(&self.header)?;
                file
            }
        };
        Ok(self.file.insert(file))
    }
}

impl EpochFile {
    /// Prepares the log of a run; one of an earlier run stays until the first epoch starts, so that a run that does not
    /// start leaves it.
    ///
    /// # Errors
    /// When nothing can be written there, or another run is writing it.
    pub fn create(path: &Path, program: &Program) -> Result<Self, Failure> {
        Self::of_sources(path, sources(program))
    }

    fn of_sources(path: &Path, sources: Vec<String>) -> Result<Self, Failure> {
        let failed = |error: OperatorError| Failure::new(Kind::Configuration, error.to_string());
        let header = line(&Header { epoch_log: 1, sources });
        let mut writing = Writing { path: path.to_owned(), header, file: None, failure: None };
        if !can_wait(path) {
            writing.begin().map_err(failed)?;
        }
        Ok(Self(Arc::new(Mutex::new(writing))))
    }

    fn add(&self, entry: &impl Serialize) {
        let mut writing = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if writing.failure.is_none() {
            writing.failure = writing.begin().and_then(|file| file.append(&line(entry))).err();
        }
    }

    /// Finishes the log; returns the reason if it is incomplete. One without an epoch gets its first line now.
    pub fn finish(&self) -> Option<Failure> {
        let mut writing = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if writing.failure.is_none() {
            writing.failure = writing.begin().err();
        }
        writing.failure.as_ref().map(|error| {
            Failure::new(Kind::Unavailable, error.to_string())
                .with_help("this does not affect the committed rows of the sinks")
        })
    }
}

impl EpochWriter for EpochFile {
    fn write(&mut self, source: &str, entry: &EpochEntry) {
        self.add(&Line { source: source.to_owned(), entry });
    }
}

fn line(of: &impl Serialize) -> Vec<u8> {
    let mut text = serde_json::to_vec(of).expect("texts and numbers are always JSON");
    text.push(b'\n');
    text
}

/// Whether there is a writable file without a writer: then the first line can wait. Otherwise starting it gives the error.
/// A pipe has nothing to lose, and its reader would take a second opening for the end.
fn can_wait(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| found.is_file())
        && OpenOptions::new()
            .append(true)
            .open(path)
            .is_ok_and(|file| !matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

/// Stages of sources.
fn sources(program: &Program) -> Vec<String> {
    let stages = program.plan.stages.iter().filter(|stage| program.sources.contains_key(&stage.operator));
    stages.map(|stage| stage.id.clone()).collect()
}

/// Reads the log of a run of this program, also of an incomplete one.
///
/// # Errors
/// The file is no epoch log, or one of another workflow or plan.
pub fn read(path: &Path, program: &Program) -> Result<BTreeMap<String, EpochLog>, Failure> {
    let wrong = |error: String| {
        Failure::new(Kind::Configuration, format!("{} is not an epoch log: {error}", path.display()))
            .with_help("`tidemill run --epoch-log FILE` writes one")
    };
    let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    let logs = parse(&text).map_err(wrong)?;
    if !sources(program).iter().all(|stage| logs.contains_key(stage)) {
        let found: Vec<&str> = logs.keys().map(String::as_str).collect();
        let message = format!(
            "{} is the epoch log of another workflow or plan: its sources are `{}`",
            path.display(),
            found.join("`, `")
        );
        return Err(Failure::new(Kind::Configuration, message)
            .with_help("replay a log that `tidemill run --epoch-log FILE` wrote for this workflow"));
    }
    Ok(logs)
}

fn parse(text: &str) -> Result<BTreeMap<String, EpochLog>, String> {
    // The rest after the last line break was being written when the process was killed.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let mut lines = whole.lines().enumerate();
    let at = |number: usize, error: serde_json::Error| format!("line {}: {error}", number + 1);
    let (_, first) = lines.next().ok_or("it is empty")?;
    let header: Header = serde_json::from_str(first).map_err(|error| at(0, error))?;
    if header.epoch_log != 1 {
        return Err(format!("its version is {}, this program reads 1", header.epoch_log));
    }
    let mut logs: BTreeMap<String, EpochLog> =
        header.sources.into_iter().map(|source| (source, EpochLog::default())).collect();
    for (number, line) in lines {
        let line: Line<EpochEntry> = serde_json::from_str(line).map_err(|error| at(number, error))?;
        logs.entry(line.source).or_default().add(line.entry);
    }
    Ok(logs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_engine::{Cut, End};

    fn log() -> String {
        let cut = Cut { position: Default::default(), skip: 3, sequence: 10, newest: 7, watermark: i64::MIN };
        let entries = [
            EpochEntry::Cut { epoch: 2, cut: cut.clone() },
            EpochEntry::Cut { epoch: 4, cut: Cut { sequence: 20, ..cut } },
            EpochEntry::Emitted(24),
            EpochEntry::End(End { sequence: 24, epoch: 5, limit: false }),
        ];
        let mut text = serde_json::to_string(&Header { epoch_log: 1, sources: vec!["a".into(), "b".into()] });
        for entry in entries {
            let line = serde_json::to_string(&Line { source: "a".into(), entry }).unwrap();
            text = text.map(|text| format!("{text}\n{line}"));
        }
        format!("{}\n", text.unwrap())
    }

    #[test]
    fn a_log_is_read_as_far_as_it_was_written() {
        let text = log();
        let whole = parse(&text).unwrap();
        assert_eq!(whole["a"].cuts.len(), 2);
        assert_eq!(
            (whole["a"].emitted, whole["a"].stop()),
            (24, End { sequence: 24, epoch: 5, limit: false })
        );
        assert_eq!(whole["b"], EpochLog::default());
        let first = text.find('\n').unwrap();
        for end in 0..text.len() {
            let torn = parse(&text[..end]);
            match end {
                end if end <= first => assert_eq!(torn.unwrap_err(), "it is empty"),
                _ => assert!(torn.unwrap()["a"].cuts.len() <= 2, "{end}"),
            }
        }
    }

    #[test]
    fn an_older_log_stays_until_the_first_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/epochs.jsonl");
        let of = || EpochFile::of_sources(&path, vec!["a".into()]);
        let read = || std::fs::read_to_string(&path).unwrap();
        let header = "{\"epoch_log\":1,\"sources\":[\"a\"]}\n";
        // A missing one is started at once: nothing is lost.
        drop(of().unwrap());
        assert_eq!(read(), header);
        std::fs::write(&path, "of an earlier run\n").unwrap();
        drop(of().unwrap());
        assert_eq!(read(), "of an earlier run\n", "the run did not start");

        let mut log = of().unwrap();
        EpochWriter::write(&mut log, "a", &EpochEntry::Emitted(3));
        assert!(log.finish().is_none());
        let written = read();
        assert!(written.starts_with(header) && written.lines().count() == 2, "{written}");
        let refused = of().err().unwrap();
        assert!(refused.to_string().contains("is being written by"), "{refused}");
        drop(log);

        assert!(of().unwrap().finish().is_none());
        assert_eq!(read(), header, "a run without an epoch");
    }

    #[test]
    fn a_wrong_line_is_named() {
        let text = log().replacen("\"skip\":3", "\"skip\":-3", 1);
        assert!(parse(&text).unwrap_err().starts_with("line 2: "));
        assert!(parse("{\"epoch_log\":2,\"sources\":[]}\n").unwrap_err().contains("version is 2"));
        assert!(parse("name: x\n").unwrap_err().starts_with("line 1: "));
    }
}
