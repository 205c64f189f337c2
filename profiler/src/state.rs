//! What was measured so far, a file for each task, so that an interrupted profile goes on where it was and a finished
//! one is only made more certain.
use crate::cache::write_whole;
use crate::error::ProfileError;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Samples of one task.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TaskState {
    /// What it is, for people who look into the folder.
    pub what: String,
    /// Nanoseconds from nothing to the first result, one a process.
    pub load: Vec<u64>,
    /// Most bytes of memory of any process.
    pub peak_memory: u64,
    /// Nanoseconds of each batch, by size of the batch.
    pub batches: BTreeMap<u32, Vec<u64>>,
    /// Nanoseconds of calls with one record after a pause.
    #[serde(default)]
    pub after_pause: Vec<u64>,
    /// Why it cannot be measured; tried again the next time.
    #[serde(skip)]
    pub failed: Option<String>,
}

/// A folder of states.
#[derive(Debug, Clone)]
pub struct StateFolder {
    folder: PathBuf,
}

impl StateFolder {
    /// The states in that folder.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// The state of a task; nothing yet where there is no readable file.
    pub fn load(&self, key: &str) -> TaskState {
        let bytes = std::fs::read(self.file(key)).unwrap_or_default();
        serde_json::from_slice(&bytes).unwrap_or_default()
    }

    /// Writes the state of a task, whole or not at all.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn save(&self, key: &str, state: &TaskState) -> Result<(), ProfileError> {
        let path = self.file(key);
        let bytes = serde_json::to_vec(state).map_err(|error| ProfileError::file(&path, error))?;
        write_whole(&path, &bytes)
    }

    /// Where the input of an operator stands for the processes that measure it.
    pub fn input(&self, operator: &str, port: usize) -> PathBuf {
        self.folder.join(format!("input-{operator}-{port}.arrow"))
    }

    fn file(&self, key: &str) -> PathBuf {
        self.folder.join(format!("{key}.json"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_survive() {
        let folder = tempfile::tempdir().unwrap();
        let states = StateFolder::new(folder.path().join("state"));
        assert_eq!(states.load("a"), TaskState::default());
        let state = TaskState {
            what: "o".to_owned(),
            load: vec![5],
            peak_memory: 7,
            batches: BTreeMap::from([(1, vec![1, 2, 3])]),
            after_pause: vec![4],
            failed: None,
        };
        states.save("a", &state).unwrap();
        assert_eq!(states.load("a"), state);
        std::fs::write(folder.path().join("state/a.json"), "{").unwrap();
        assert_eq!(states.load("a"), TaskState::default());
    }
}
