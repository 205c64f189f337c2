//! A file with the original limits and the state of an agent, from which the limits of a killed agent are restored.
//!
//! The file is written before the first limit of a container is changed, and removed once all limits are restored.
use crate::agent::Snapshot;
use crate::cgroup::Found;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use tidemill_machine::Process;

/// Version of the file format.
const VERSION: u32 = 1;
const ENDING: &str = ".json";

/// Error of reading or writing a record.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The system refuses access.
    #[error("{}: {source}", path.display())]
    System {
        /// The file.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// The file is damaged.
    #[error("{} is not a record of this version: {reason}; if no agent has these containers, remove it", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Description.
        reason: String,
    },
    /// Another agent has it.
    #[error("process {process} has `{name}` already; see `tidemill elastic show`")]
    Taken {
        /// Name of the attached set.
        name: String,
        /// Process id of that agent.
        process: u32,
    },
}

/// Original limits and state of one agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Version of the file format.
    pub version: u32,
    /// Name of the attached set: a label of containers, for instance.
    pub name: String,
    /// Process id of the agent.
    pub process: u32,
    /// Its program and arguments, which distinguish it from another process with that id.
    pub command: String,
    /// Original limits by group.
    pub found: BTreeMap<String, Found>,
    /// Original limits by group that an earlier agent could not restore.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub left: BTreeMap<String, Found>,
    /// The agent's last report.
    pub snapshot: Snapshot,
}

impl Record {
    /// Creates an empty record of the calling process.
    pub fn of_this(name: &str) -> Self {
        Self {
            version: VERSION,
            name: name.to_owned(),
            process: std::process::id(),
            command: Process::this().command(),
            found: BTreeMap::new(),
            left: BTreeMap::new(),
            snapshot: Snapshot::default(),
        }
    }

    /// Number of groups that [`Records::restore`] restores, including those of earlier agents.
    pub fn groups(&self) -> usize {
        self.found.len() + self.left.len()
    }

    /// Whether its agent is alive.
    pub fn is_alive(&self) -> bool {
        let process = Process::of(self.process);
        process.exists() && process.command() == self.command
    }
}

/// A folder with the records of agents on this machine.
#[derive(Debug, Clone)]
pub struct Records(PathBuf);

impl Records {
    /// Opens the records of this user: in `/run/tidemill/elastic` if it is writable, else in the user's own folder.
    pub fn of_user() -> Self {
        let own =
            || std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).unwrap_or_else(std::env::temp_dir);
        let is_root = rustix::process::geteuid().is_root();
        let base = if is_root { PathBuf::from("/run") } else { own() };
        Self(base.join("tidemill/elastic"))
    }

    /// Opens the records in this folder.
    pub fn at(folder: PathBuf) -> Self {
        Self(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' };
        self.0.join(name.chars().map(plain).take(120).collect::<String>() + ENDING)
    }

    /// Reads the record of this name, if it exists.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read(&self, name: &str) -> Result<Option<Record>, RecordError> {
        read(&self.path(name))
    }

    /// Reads all records; returns errors of unreadable ones separately.
    pub fn all(&self) -> (Vec<Record>, Vec<RecordError>) {
        let (mut records, mut errors) = (Vec::new(), Vec::new());
        for entry in fs::read_dir(&self.0).into_iter().flatten().flatten() {
            if !entry.file_name().to_string_lossy().ends_with(ENDING) {
                continue;
            }
            match read(&entry.path()) {
                Ok(record) => records.extend(record),
                Err(error) => errors.push(error),
            }
        }
        records.sort_by(|a, b| a.name.cmp(&b.name));
        (records, errors)
    }

    /// Replaces a record.
    ///
    /// # Errors
    /// The system refuses.
    pub fn write(&self, record: &Record) -> Result<(), RecordError> {
        let path = self.path(&record.name);
        let next = path.with_extension("next");
        let written = (|| {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.0)?;
            let mut file = fs::File::create(&next)?;
            file.write_all(&serde_json::to_vec(record)?)?;
            fs::rename(&next, &path)
        })();
        written.map_err(|source| RecordError::System { path, source })
    }

    /// Removes a record after all limits were restored.
    pub fn remove(&self, name: &str) {
        let _ = fs::remove_file(self.path(name)); // where there is none, all is well
    }

    /// Creates a record of the calling process. Restores first the limits of a killed agent of this name; returns the
    /// number of those groups.
    ///
    /// # Errors
    /// Another process has it, or the system refuses.
    pub fn begin(&self, name: &str) -> Result<(Record, usize), RecordError> {
        let mut new = Record::of_this(name);
        let restored = match self.read(name)? {
            Some(record) if record.is_alive() => {
                return Err(RecordError::Taken { name: name.to_owned(), process: record.process });
            }
            Some(record) => {
                let (restored, left) = put_back(&record);
                new.left = left;
                restored
            }
            None => 0,
        };
        self.write(&new)?;
        Ok((new, restored))
    }

    /// Restores the limits of a killed agent; returns the number of groups restored. The record is removed when all are
    /// restored; else it keeps the rest for another attempt.
    pub fn restore(&self, record: &Record) -> usize {
        let (restored, left) = put_back(record);
        let left = Record { found: BTreeMap::new(), left, ..record.clone() };
        match left.left.is_empty() {
            true => self.remove(&record.name),
            false => {
                if let Err(error) = self.write(&left) {
                    tracing::error!("{error}: the whole record stays");
                }
            }
        }
        restored
    }
}

/// Restores the limits of a record; returns the number of groups restored, and the original limits of the others. Limits of
/// the earliest agent are written last.
fn put_back(record: &Record) -> (usize, BTreeMap<String, Found>) {
    let (mut restored, mut left) = (0, BTreeMap::new());
    for (name, found) in record.found.iter().chain(&record.left) {
        match found.restore() {
            Ok(()) => restored += 1,
            Err(errors) => {
                for error in errors {
                    tracing::error!("{name}: what was found cannot be put back: {error}");
                }
                left.insert(name.clone(), found.clone());
            }
        }
    }
    (restored, left)
}

fn read(path: &Path) -> Result<Option<Record>, RecordError> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(RecordError::System { path: path.to_owned(), source }),
    };
    let damaged = |reason: String| RecordError::Damaged { path: path.to_owned(), reason };
    let record: Record = serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
    match record.version {
        VERSION => Ok(Some(record)),
        other => Err(damaged(format!("it has version {other}, but this program writes {VERSION}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder at the file's path makes the write fail.
    #[test]
    fn what_cannot_be_put_back_is_kept_for_another_try() {
        let folder = tempfile::tempdir().unwrap();
        let (records, limit) = (Records::at(folder.path().join("records")), folder.path().join("cpu.max"));
        fs::create_dir(&limit).unwrap();
        let (mut record, _) = records.begin("app=shop").unwrap();
        record.found.insert("a".into(), Found { files: vec![(limit.clone(), "max 100000".into())] });
        record.command = "another program".into();
        records.write(&record).unwrap();
        assert_eq!((records.restore(&record), record.groups()), (0, 1));
        // A failed one is no longer among the found ones, and fails again.
        let failed = records.read("app=shop").unwrap().unwrap();
        assert_eq!((records.restore(&failed), failed.groups()), (0, 1));
        let (mut next, restored) = records.begin("app=shop").unwrap();
        assert_eq!((restored, next.left.len()), (0, 1));
        fs::remove_dir(&limit).unwrap();
        fs::write(&limit, "20000 100000").unwrap();
        next.command = "another program".into();
        assert_eq!((records.restore(&next), next.groups()), (1, 1));
        assert_eq!(fs::read_to_string(&limit).unwrap(), "max 100000");
        assert_eq!(records.read("app=shop").unwrap(), None);
    }

    #[test]
    fn what_a_killed_agent_has_left_is_put_back() {
        let folder = tempfile::tempdir().unwrap();
        let (records, limit) = (Records::at(folder.path().join("records")), folder.path().join("cpu.max"));
        fs::write(&limit, "20000 100000").unwrap();
        let (mut record, left) = records.begin("app=shop").unwrap();
        assert_eq!(left, 0);
        let gone = (folder.path().join("none"), "1".to_owned());
        record.found.insert("a".into(), Found { files: vec![gone, (limit.clone(), "max 100000".into())] });
        records.write(&record).unwrap();
        let message = records.begin("app=shop").unwrap_err().to_string();
        assert!(message.contains("has `app=shop` already"), "{message}");
        record.command = "another program".into();
        records.write(&record).unwrap();
        assert!(!records.all().0[0].is_alive());
        let (record, left) = records.begin("app=shop").unwrap();
        assert_eq!((left, fs::read_to_string(&limit).unwrap().as_str()), (1, "max 100000"));
        assert!(record.found.is_empty() && record.is_alive());
        records.remove("app=shop");
        assert!(records.all().0.is_empty());
    }

    #[test]
    fn what_is_no_record_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let records = Records::at(folder.path().to_owned());
        fs::write(folder.path().join("x.json"), "{").unwrap();
        assert!(records.read("x").unwrap_err().to_string().contains("is not a record of this version"));
        assert_eq!(records.all().1.len(), 1);
        assert!(records.read("y").unwrap().is_none());
    }
}
