//! Measurements so far, one file per task. An interrupted profile resumes from them, and a finished one becomes more
//! certain.
use crate::cache::write_whole;
use crate::error::ProfileError;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Extension of a task's file.
const TASK: &str = ".json";
/// Characters of the name before that: see [`crate::tasks::Task::key`].
const KEY_LENGTH: usize = 24;

/// Samples of one task.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TaskState {
    /// Description for people who look into the folder.
    pub what: String,
    /// Nanoseconds from process start to the first result, one per process.
    pub load: Vec<u64>,
    /// Most bytes of memory of any process.
    pub peak_memory: u64,
    /// Nanoseconds of each batch, by size of the batch.
    pub batches: BTreeMap<u32, Vec<u64>>,
    /// Nanoseconds of the model's own runs, and of the whole calls, by size of the batch; only of calls of which both are known.
    #[serde(default)]
    pub model: BTreeMap<u32, (u64, u64)>,
    /// Nanoseconds of calls with one record after a pause.
    #[serde(default)]
    pub after_pause: Vec<u64>,
    /// Fastest time of the fixed computation of [`crate::pace`] beside these samples, in nanoseconds; 0: unknown.
    #[serde(default)]
    pub quickest_pace: u64,
    /// Slowest time of the fixed computation; 0: unknown.
    #[serde(default)]
    pub slowest_pace: u64,
    /// Reason why it cannot be measured; tried again the next time.
    #[serde(skip)]
    pub failed: Option<String>,
}

impl TaskState {
    /// The model's own part of the times, at most 1: the mean over the sizes of batches; none: not measured.
    pub fn model_part(&self) -> Option<f64> {
        let known = self.model.values().filter(|(_, whole)| *whole > 0);
        let parts: Vec<f64> = known.map(|(model, whole)| *model as f64 / *whole as f64).collect();
        let mean = parts.iter().sum::<f64>() / parts.len() as f64;
        (!parts.is_empty()).then(|| mean.min(1.0))
    }
}

/// A folder of states.
#[derive(Debug, Clone)]
pub struct StateFolder {
    folder: PathBuf,
}

impl StateFolder {
    /// Opens the states in that folder.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// Returns the state of a task; empty if there is no readable file.
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

    /// Path of an operator's input for measuring processes.
    pub fn input(&self, operator: &str, port: usize) -> PathBuf {
        self.folder.join(format!("input-{operator}-{port}.arrow"))
    }

    /// Discards the measurements: removes its own files from this folder, and the folder if nothing else is in it. Returns
    /// the names of other files, which stay: a folder of this name may have existed before.
    ///
    /// # Errors
    /// When the folder cannot be read, or a file cannot be removed.
    pub fn forget(&self) -> Result<Vec<String>, ProfileError> {
        let failed = |error| ProfileError::file(&self.folder, error);
        let entries = match std::fs::read_dir(&self.folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(failed)?,
        };
        let mut others = Vec::new();
        for entry in entries {
            let entry = entry.map_err(failed)?;
            let (name, path) = (entry.file_name().to_string_lossy().into_owned(), entry.path());
            let is_file = entry.file_type().map_err(failed)?.is_file();
            match is_file && (has_own_name(&name) || is_task(&path)) {
                true => std::fs::remove_file(&path).map_err(|error| ProfileError::file(&path, error))?,
                false => others.push(name),
            }
        }
        others.sort();
        if others.is_empty() {
            // An empty folder holds no data, and a link to one may stay.
            let _ = std::fs::remove_dir(&self.folder);
        }
        Ok(others)
    }

    fn file(&self, key: &str) -> PathBuf {
        self.folder.join(format!("{key}{TASK}"))
    }
}

/// Whether a file is one of a state by its name, including one of a killed process's unfinished write.
fn has_own_name(name: &str) -> bool {
    let whole = name.strip_suffix(".partial").and_then(|rest| rest.rsplit_once('.'));
    let name = whole.map_or(name, |(whole, _process)| whole);
    let is_input = name.starts_with("input-") && name.ends_with(".arrow");
    let is_key = |key: &str| key.len() == KEY_LENGTH && key.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_input || name.strip_suffix(TASK).is_some_and(is_key)
}

/// Whether a file is the state of a task by its content.
fn is_task(path: &Path) -> bool {
    path.to_string_lossy().ends_with(TASK)
        && std::fs::read(path).is_ok_and(|bytes| serde_json::from_slice::<TaskState>(&bytes).is_ok())
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
            model: BTreeMap::from([(1, (5, 6))]),
            after_pause: vec![4],
            quickest_pace: 0,
            slowest_pace: 0,
            failed: None,
        };
        states.save("a", &state).unwrap();
        assert_eq!(states.load("a"), state);
        std::fs::write(folder.path().join("state/a.json"), "{").unwrap();
        assert_eq!(states.load("a"), TaskState::default());
    }

    #[test]
    fn each_size_of_batches_counts_alike_in_the_part_of_a_model() {
        let of = |model: &[(u32, (u64, u64))]| {
            TaskState { model: model.iter().copied().collect(), ..TaskState::default() }.model_part()
        };
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[(1, (60, 100)), (8, (8000, 10_000)), (16, (0, 0))]), Some(0.7));
        assert_eq!(of(&[(1, (101, 100))]), Some(1.0), "two clocks");
    }

    #[test]
    fn only_its_own_files_are_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let states = StateFolder::new(folder.path().join("measured"));
        assert_eq!(states.forget().unwrap(), Vec::<String>::new(), "nothing was measured yet");
        let key = "0123456789abcdef01234567";
        let write = |name: &str, text: &str| std::fs::write(states.folder.join(name), text).unwrap();
        let measured = || {
            states.save(key, &TaskState::default()).unwrap();
            states.save("b", &TaskState::default()).unwrap();
            write("89abcdef0123456701234567.json", "{\"what\": "); // damaged
            write(&format!("{key}.json.71.partial"), "{");
            write("input-speech-0.arrow", "");
        };
        measured();
        assert_eq!(states.forget().unwrap(), Vec::<String>::new());
        assert!(!states.folder.exists());

        measured();
        std::fs::create_dir(states.folder.join("series")).unwrap();
        write("notes.txt", "of somebody");
        write("figures.json", "{\"volts\": 3}");
        write("old.partial", "");
        assert_eq!(states.forget().unwrap(), ["figures.json", "notes.txt", "old.partial", "series"]);
        let left = std::fs::read_dir(&states.folder).unwrap().count();
        assert_eq!(left, 4, "what is of somebody else stays");
    }
}
