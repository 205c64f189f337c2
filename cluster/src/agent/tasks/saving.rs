//! Checkpoints and results of tasks: kept here for other workers, and sent to the controller.
//!
//! A task writes any files into its folder for checkpoints, and `READY` after them: a new `READY` is a new checkpoint. One that changes its
//! files removes `READY` first. A task that ends with success and leaves `RESUME` there wants to continue later from what it wrote.
use super::preparing::Folders;
use crate::api::{BundleFile, Checkpoint, TaskEnd};
use crate::blobs::{Blobs, LAID_OUT, digest_of_file};
use crate::client::{Client, ClientError};
use crate::task_process::ProcessEnd;
use std::fs::{self, File};
use std::io::{self, Seek};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tidemill_spec::job::JobKind;

/// The file that makes the files beside it a checkpoint.
const READY: &str = "READY";
/// The file by which a task says that its work is not done.
const RESUME: &str = "RESUME";
/// Largest number of files of a checkpoint, or of results.
const MOST_FILES: usize = 10_000;
/// Pause before files are sent again.
const PAUSE: Duration = Duration::from_secs(1);

/// Identity of a checkpoint that is ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mark {
    inode: u64,
    changed: (i64, i64),
    bytes: u64,
}

impl Mark {
    /// `None`: there is none.
    pub(super) fn of(folder: &Path) -> Option<Self> {
        let found = fs::metadata(folder.join(READY)).ok()?;
        Some(Self { inode: found.ino(), changed: (found.ctime(), found.ctime_nsec()), bytes: found.len() })
    }
}

/// The reason why files are not sent.
#[derive(Debug, thiserror::Error)]
enum Unsent {
    #[error("its file {0} was removed from the cache")]
    Gone(String),
    #[error(transparent)]
    Client(#[from] ClientError),
}

/// Keeps and sends the files of one start of a task.
pub(super) struct Saver {
    pub(super) client: Arc<Client>,
    pub(super) blobs: Arc<Blobs>,
    /// Path of the task at the controller.
    pub(super) path: String,
    pub(super) is_unwanted: Arc<AtomicBool>,
}

impl Saver {
    /// Keeps the files of the folder and sends them, if they are a checkpoint from the first to the last.
    pub(super) fn checkpoint(&self, folder: &Path, number: u64) -> Result<Checkpoint, String> {
        let before = Mark::of(folder);
        let checkpoint = self.keep_all(folder, number)?;
        if before.is_none() || Mark::of(folder) != before {
            return Err("its files changed while they were read: remove `READY` before a change".to_owned());
        }
        self.send(&checkpoint.files)?;
        Ok(checkpoint)
    }

    /// Saves what an ended task leaves, and judges its end.
    pub(super) fn finish(
        &self,
        folders: &Folders,
        kind: JobKind,
        seen: Option<&Mark>,
        number: u64,
        results: &[String],
        end: Option<ProcessEnd>,
    ) -> (Option<Checkpoint>, TaskEnd) {
        let Some(end) = end else {
            return (None, TaskEnd::Failed { why: "the process that runs it was killed".to_owned() });
        };
        let wants_more = folders.checkpoint.join(RESUME).is_file();
        if end.is_not_started {
            return (None, TaskEnd::NotStarted { why: end.why });
        }
        let is_released = match end.code {
            Some(0) => wants_more,
            _ => end.was_asked,
        };
        if !is_released && end.code == Some(0) {
            return match self.results(&folders.work, results) {
                Ok(results) => (None, TaskEnd::Done { results }),
                Err(why) => (None, TaskEnd::Failed { why }),
            };
        }
        if !is_released {
            return (None, TaskEnd::Failed { why: end.why });
        }
        let mark = Mark::of(&folders.checkpoint);
        let is_new = wants_more || kind != JobKind::Command || (mark.is_some() && mark.as_ref() != seen);
        let why = if wants_more { "it wrote a checkpoint".to_owned() } else { end.why };
        if !is_new {
            return (None, TaskEnd::Released { why });
        }
        // Nothing of the task runs any more: all files belong to the checkpoint.
        let saved = self.keep_all(&folders.checkpoint, number).and_then(|checkpoint| {
            self.send(&checkpoint.files)?;
            Ok(checkpoint)
        });
        match saved {
            Ok(checkpoint) => (Some(checkpoint), TaskEnd::Released { why }),
            Err(reason) => {
                (None, TaskEnd::Released { why: format!("{why}; its checkpoint is lost: {reason}") })
            }
        }
    }

    fn results(&self, folder: &Path, wanted: &[String]) -> Result<Vec<BundleFile>, String> {
        let mut files = Vec::new();
        for path in wanted {
            let at = folder.join(path);
            if !at.exists() {
                return Err(format!("its result `{path}` does not exist"));
            }
            walk(folder, Path::new(path), &mut files, &mut Vec::new())?;
        }
        let files = files.iter().map(|path| self.keep(folder, path)).collect::<Result<Vec<_>, _>>()?;
        self.send(&files)?;
        Ok(files)
    }

    /// Keeps all files of a folder, without sending them.
    fn keep_all(&self, folder: &Path, number: u64) -> Result<Checkpoint, String> {
        let (mut files, mut folders) = (Vec::new(), Vec::new());
        walk(folder, Path::new(""), &mut files, &mut folders)?;
        files.retain(|path| ![READY, RESUME, LAID_OUT].contains(&path.as_str()));
        let files = files.iter().map(|path| self.keep(folder, path)).collect::<Result<_, _>>()?;
        let progress: Option<f64> =
            fs::read_to_string(folder.join(READY)).ok().and_then(|text| text.trim().parse().ok());
        let progress = progress.filter(|part| (0.0..=1.0).contains(part));
        Ok(Checkpoint { number, files, folders, progress })
    }

    fn keep(&self, folder: &Path, path: &str) -> Result<BundleFile, String> {
        let at = folder.join(path);
        let (digest, bytes) = digest_of_file(&at).map_err(|error| error.to_string())?;
        let file = File::open(&at).map_err(|error| format!("`{path}`: {error}"))?;
        // A file that changed meanwhile is refused.
        self.blobs.put(&digest, file).map_err(|error| format!("`{path}`: {error}"))?;
        Ok(BundleFile { path: path.to_owned(), digest, bytes })
    }

    /// Sends the files that the controller does not have, until it has them or the task is not wanted any more.
    fn send(&self, files: &[BundleFile]) -> Result<(), String> {
        loop {
            match self.try_to_send(files) {
                Ok(()) => return Ok(()),
                Err(_) if self.is_unwanted.load(Ordering::Acquire) => {
                    return Err("it is not wanted any more".to_owned());
                }
                Err(Unsent::Gone(digest)) => {
                    return Err(format!("its file {digest} was removed from the cache"));
                }
                Err(Unsent::Client(error)) => tracing::debug!("cannot send files of a task: {error}"),
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn try_to_send(&self, files: &[BundleFile]) -> Result<(), Unsent> {
        let digests: Vec<&String> = files.iter().map(|file| &file.digest).collect();
        let missing: Vec<String> = self.client.post_again(&format!("{}/missing", self.path), &digests)?;
        for digest in missing {
            let Ok(Some((file, bytes))) = self.blobs.open_at(&digest, 0) else {
                return Err(Unsent::Gone(digest));
            };
            let again = || -> io::Result<File> {
                let mut file = file.try_clone()?;
                file.rewind()?;
                Ok(file)
            };
            self.client.upload::<u64, _>(&format!("{}/files/{digest}", self.path), bytes, again)?;
        }
        Ok(())
    }
}

/// Adds the regular files at a path in a folder, with `/` between parts, and the folders without anything in them.
fn walk(folder: &Path, path: &Path, files: &mut Vec<String>, empty: &mut Vec<String>) -> Result<(), String> {
    let at = folder.join(path);
    let failed = |error: io::Error| format!("`{}`: {error}", path.display());
    let found = fs::symlink_metadata(&at).map_err(failed)?;
    if !found.is_dir() && !found.is_file() {
        return Ok(());
    }
    let name = path.to_str().ok_or_else(|| format!("`{}` is not UTF-8", path.display()))?;
    if found.is_file() {
        files.push(name.to_owned());
    } else {
        let mut entries: Vec<_> = fs::read_dir(&at).map_err(failed)?.flatten().collect();
        if entries.is_empty() && !name.is_empty() {
            empty.push(name.to_owned());
        }
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            walk(folder, &path.join(entry.file_name()), files, empty)?;
        }
    }
    match files.len() + empty.len() > MOST_FILES {
        true => Err(format!("there are more than {MOST_FILES} files: pack them")),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_is_new_when_its_mark_is() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Mark::of(folder.path()), None);
        let ready = folder.path().join(READY);
        fs::write(&ready, "").unwrap();
        let first = Mark::of(folder.path());
        assert!(first.is_some() && first == Mark::of(folder.path()));
        fs::write(&ready, "0.5").unwrap();
        assert_ne!(Mark::of(folder.path()), first);
    }

    #[test]
    fn regular_files_and_empty_folders_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("deep/er")).unwrap();
        fs::create_dir(folder.path().join("empty")).unwrap();
        for file in ["b", "a", "deep/er/c"] {
            fs::write(folder.path().join(file), file).unwrap();
        }
        std::os::unix::fs::symlink("/etc/hosts", folder.path().join("link")).unwrap();
        let (mut files, mut empty) = (Vec::new(), Vec::new());
        walk(folder.path(), Path::new(""), &mut files, &mut empty).unwrap();
        assert_eq!(
            (files.as_slice(), empty.as_slice()),
            (&["a", "b", "deep/er/c"].map(str::to_owned)[..], &["empty".to_owned()][..])
        );
        assert!(walk(folder.path(), Path::new("none"), &mut files, &mut empty).is_err());
    }
}
