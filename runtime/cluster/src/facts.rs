//! What the controller must not forget: one document in its folder, replaced as a whole with every change.
use crate::api::{Bundle, Event, RunState};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tidemill_spec::plan::Plan;

const FILE: &str = "cluster.json";
const NEXT: &str = "cluster.json.next";
/// Of the document.
const VERSION: u32 = 1;
/// Events that are kept.
const MOST_EVENTS: usize = 2_000;

/// Why the facts cannot be read or kept.
#[derive(Debug, thiserror::Error)]
pub enum FactsError {
    /// The system refuses.
    #[error("{path}: {source}")]
    System {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is not what this program writes.
    #[error("{path} is damaged: {reason}; put back a copy of it, or move it away to begin with no runs")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// Another version wrote it.
    #[error("{path} has version {found}, and this program writes {VERSION}: use the program that wrote it")]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
}

/// A run as it was submitted, and what became of it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct RunFacts {
    pub(crate) workflow: String,
    pub(crate) bundle: Bundle,
    pub(crate) plan: Plan,
    pub(crate) records: Option<u64>,
    /// Digest of the submission: the same again is no other run.
    pub(crate) digest: String,
    /// Secret number, hexadecimal.
    pub(crate) secret: String,
    pub(crate) submitted: String,
    pub(crate) submitted_by: String,
    pub(crate) state: RunState,
    pub(crate) reason: Option<String>,
    /// By worker of the plan.
    pub(crate) roles: BTreeMap<String, Role>,
    /// Records that arrived, dead letters and seconds, once it is over.
    pub(crate) last: Option<LastFigures>,
}

#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct LastFigures {
    pub(crate) emitted: u64,
    pub(crate) arrived: u64,
    pub(crate) dead_letters: u64,
    pub(crate) restarts: u64,
    pub(crate) seconds: f64,
}

/// A worker of a plan: where its process is.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Role {
    /// The worker of the cluster.
    pub(crate) worker: Option<String>,
    /// Counts its processes.
    pub(crate) generation: u64,
    /// It has files that are nowhere else, so it stays where it is.
    pub(crate) is_bound: bool,
}

/// A worker of the cluster.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct WorkerFacts {
    pub(crate) is_drained: bool,
    pub(crate) location: Option<String>,
    pub(crate) tier: Option<String>,
}

/// See the module.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Document {
    pub(crate) version: u32,
    pub(crate) runs: BTreeMap<String, RunFacts>,
    pub(crate) workers: BTreeMap<String, WorkerFacts>,
    pub(crate) events: Vec<Event>,
    /// Of the last event.
    pub(crate) event_number: u64,
}

pub(crate) struct Facts {
    folder: PathBuf,
    document: Mutex<Document>,
}

impl Facts {
    pub(crate) fn open(folder: &Path) -> Result<Self, FactsError> {
        let path = folder.join(FILE);
        let document = match fs::read(&path) {
            Ok(bytes) => {
                let damaged = |error: serde_json::Error| FactsError::Damaged {
                    path: path.clone(),
                    reason: error.to_string(),
                };
                let value: serde_json::Value = serde_json::from_slice(&bytes).map_err(damaged)?;
                let found = value.get("version").and_then(serde_json::Value::as_u64).unwrap_or_default();
                if found != u64::from(VERSION) {
                    let found = u32::try_from(found).unwrap_or(u32::MAX);
                    return Err(FactsError::Version { path, found });
                }
                serde_json::from_value(value).map_err(damaged)?
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Document { version: VERSION, ..Document::default() }
            }
            Err(source) => return Err(FactsError::System { path, source }),
        };
        Ok(Self { folder: folder.to_owned(), document: Mutex::new(document) })
    }

    fn lock(&self) -> MutexGuard<'_, Document> {
        self.document.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn look<T>(&self, look: impl FnOnce(&Document) -> T) -> T {
        look(&self.lock())
    }

    /// Changes the document; it is on the disk when this returns, or nothing is changed.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Document) -> T) -> Result<T, FactsError> {
        let mut held = self.lock();
        let mut next = held.clone();
        let result = change(&mut next);
        let surplus = next.events.len().saturating_sub(MOST_EVENTS);
        next.events.drain(..surplus);
        self.write(&next)?;
        *held = next;
        Ok(result)
    }

    fn write(&self, document: &Document) -> Result<(), FactsError> {
        let (path, next) = (self.folder.join(FILE), self.folder.join(NEXT));
        let bytes = serde_json::to_vec_pretty(document)
            .map_err(|error| FactsError::Damaged { path: path.clone(), reason: error.to_string() })?;
        let written = File::create(&next).and_then(|mut file| {
            file.write_all(&bytes)?;
            file.sync_all()
        });
        written
            .and_then(|()| fs::rename(&next, &path))
            .and_then(|()| File::open(&self.folder)?.sync_all())
            .map_err(|source| FactsError::System { path, source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_changed_is_there_for_the_next_process() {
        let folder = tempfile::tempdir().unwrap();
        let facts = Facts::open(folder.path()).unwrap();
        facts.change(|document| document.workers.insert("edge".into(), WorkerFacts::default())).unwrap();
        drop(facts);
        let facts = Facts::open(folder.path()).unwrap();
        assert!(facts.look(|document| document.workers.contains_key("edge")));
        assert!(!folder.path().join(NEXT).exists());
    }

    #[test]
    fn what_others_wrote_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let tell = |text: &str| {
            fs::write(folder.path().join(FILE), text).unwrap();
            Facts::open(folder.path()).err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert!(tell("{").contains("is damaged"));
        assert!(tell(r#"{"version": 9}"#).contains("has version 9"));
    }
}
