//! Checkpoints and results of tasks: kept here for other workers, and sent to the controller.
//!
//! A task writes any files into its folder for checkpoints, and `READY` after them: a new `READY` is a new checkpoint. One that changes its
//! files removes `READY` first. A task that ends with success and leaves `RESUME` there wants to continue later from what it wrote.
use super::preparing::Folders;
use crate::api::{BundleFile, Checkpoint, TaskEnd};
use crate::blobs::{Blobs, LAID_OUT, digest_of_file};
use crate::client::{Client, ClientError};
use crate::task_process::ProcessEnd;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Seek};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
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
/// Characters of the words of a `READY` that are kept.
const MOST_WORDS: usize = 200;
/// Largest number of reasons for files that are left out.
const MOST_LEFT_OUT: usize = 20;
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
    /// Writes a line into the log of the task.
    pub(super) say: Box<dyn Fn(&str) + Send>,
}

impl Saver {
    /// Keeps the files of the folder and sends them. `None`: the task has begun another checkpoint meanwhile.
    pub(super) fn checkpoint(&self, folder: &Path, number: u64) -> Result<Option<Checkpoint>, String> {
        let before = Mark::of(folder);
        let kept = self.keep_all(folder, number);
        if before.is_none() || Mark::of(folder) != before {
            return Ok(None); // files may be missing, too
        }
        let checkpoint = kept?;
        self.send(&checkpoint.files)?;
        Ok(Some(checkpoint))
    }

    /// Saves what an ended task leaves, and judges its end.
    pub(super) fn finish(
        &self,
        folders: &Folders,
        kind: JobKind,
        seen: Option<&Mark>,
        number: u64,
        results: &[String],
        end: Result<ProcessEnd, String>,
    ) -> (Option<Checkpoint>, TaskEnd) {
        let end = match end {
            Ok(end) => end,
            Err(why) => return (None, TaskEnd::Failed { why }),
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
            // One rank of a training writes the results.
            let may_lack = kind == JobKind::Train;
            return match self.results(&folders.work, results, may_lack) {
                Ok(results) => (None, TaskEnd::Done { results }),
                Err(why) => (None, TaskEnd::Failed { why }),
            };
        }
        if !is_released {
            return (None, TaskEnd::Failed { why: end.why });
        }
        let mark = Mark::of(&folders.checkpoint);
        let is_new = wants_more || kind.keeps_folder() || (mark.is_some() && mark.as_ref() != seen);
        let why = if wants_more { "it wrote a checkpoint".to_owned() } else { end.why };
        let is_unasked = !end.was_asked;
        if !is_new {
            return (None, TaskEnd::Released { why, is_unasked });
        }
        // Nothing of the task runs any more: all files belong to the checkpoint.
        let saved = self.keep_all(&folders.checkpoint, number).and_then(|checkpoint| {
            self.send(&checkpoint.files)?;
            Ok(checkpoint)
        });
        match saved {
            Ok(checkpoint) => (Some(checkpoint), TaskEnd::Released { why, is_unasked }),
            Err(reason) => {
                let why = format!("{why}; its checkpoint is lost: {reason}");
                (None, TaskEnd::Released { why, is_unasked })
            }
        }
    }

    fn results(&self, folder: &Path, wanted: &[String], may_lack: bool) -> Result<Vec<BundleFile>, String> {
        let mut files = Vec::new();
        for path in wanted {
            if !folder.join(path).exists() {
                if may_lack {
                    continue;
                }
                return Err(format!("its result `{path}` does not exist"));
            }
            let mut found = Found::default();
            found.walk(folder, Path::new(path))?;
            if let Some(reason) = found.left_out.iter().find(|reason| reason.path == *path) {
                return Err(format!("its result {reason}"));
            }
            found.left_out.iter().for_each(|reason| (self.say)(&format!("a result is left out: {reason}")));
            files.extend(found.files);
        }
        let files = files.iter().map(|path| self.keep(folder, path)).collect::<Result<Vec<_>, _>>()?;
        self.send(&files)?;
        Ok(files)
    }

    /// Keeps all files of a folder, without sending them.
    fn keep_all(&self, folder: &Path, number: u64) -> Result<Checkpoint, String> {
        let mut found = Found::default();
        found.walk(folder, Path::new(""))?;
        for reason in &found.left_out {
            (self.say)(&format!("a checkpoint is kept without a file: {reason}"));
        }
        let Found { mut files, folders, .. } = found;
        files.retain(|path| ![READY, RESUME, LAID_OUT].contains(&path.as_str()));
        let files = files.iter().map(|path| self.keep(folder, path)).collect::<Result<_, _>>()?;
        let (progress, words) = described(&fs::read_to_string(folder.join(READY)).unwrap_or_default());
        Ok(Checkpoint { number, files, folders, progress, words })
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

/// The share of the work that is done, and words about it: the first line of a `READY`, and the second one.
fn described(ready: &str) -> (Option<f64>, Option<String>) {
    let mut lines = ready.lines().map(str::trim);
    let share = lines.next().and_then(|line| line.parse::<f64>().ok());
    let words = lines.next().map(|line| line.chars().take(MOST_WORDS).collect::<String>());
    (share.filter(|share| (0.0..=1.0).contains(share)), words.filter(|words| !words.is_empty()))
}

/// A path that is not kept, and why.
#[derive(Debug, PartialEq, Eq)]
struct LeftOut {
    path: String,
    why: String,
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` {}", self.path, self.why)
    }
}

/// Files in a folder. Symbolic links inside of it are followed: what is kept has no links.
#[derive(Debug, Default)]
struct Found {
    files: Vec<String>,
    /// Folders without anything in them.
    folders: Vec<String>,
    left_out: Vec<LeftOut>,
    /// Real paths of the folders around the present path.
    within: Vec<PathBuf>,
}

impl Found {
    /// Adds the regular files at a path in a folder, with `/` between parts, and the folders without anything in them.
    fn walk(&mut self, folder: &Path, path: &Path) -> Result<(), String> {
        let at = folder.join(path);
        let failed = |error: io::Error| format!("`{}`: {error}", path.display());
        let name = path.to_str().ok_or_else(|| format!("`{}` is not UTF-8", path.display()))?.to_owned();
        let mut found = fs::symlink_metadata(&at).map_err(failed)?;
        if found.is_symlink() {
            let real = match fs::canonicalize(&at) {
                Ok(real) => real,
                Err(error) => {
                    self.leave_out(name, format!("is a link to nothing: {error}"));
                    return Ok(());
                }
            };
            if !real.starts_with(fs::canonicalize(folder).map_err(failed)?) {
                let why =
                    format!("is a link to {}, which is outside of the folder of the task", real.display());
                self.leave_out(name, why);
                return Ok(());
            }
            found = fs::metadata(&real).map_err(failed)?;
        }
        if found.is_file() {
            self.files.push(name);
        } else if found.is_dir() {
            let real = fs::canonicalize(&at).map_err(failed)?;
            if self.within.contains(&real) {
                self.leave_out(name, "is a link to a folder that it is in".to_owned());
                return Ok(());
            }
            let mut entries: Vec<_> = fs::read_dir(&at).map_err(failed)?.flatten().collect();
            if entries.is_empty() && !name.is_empty() {
                self.folders.push(name);
            }
            entries.sort_by_key(fs::DirEntry::file_name);
            self.within.push(real);
            for entry in entries {
                self.walk(folder, &path.join(entry.file_name()))?;
            }
            self.within.pop();
        } else {
            self.leave_out(name, "is no regular file".to_owned());
        }
        match self.files.len() + self.folders.len() > MOST_FILES {
            true => Err(format!("there are more than {MOST_FILES} files: pack them")),
            false => Ok(()),
        }
    }

    fn leave_out(&mut self, path: String, why: String) {
        if self.left_out.len() < MOST_LEFT_OUT {
            self.left_out.push(LeftOut { path, why });
        }
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
    fn a_mark_says_how_much_is_done() {
        assert_eq!(described("0.25\n"), (Some(0.25), None));
        assert_eq!(described("0.5\nstep 5 of 10\nmore"), (Some(0.5), Some("step 5 of 10".to_owned())));
        assert_eq!(described("7\n"), (None, None));
        assert_eq!(described(""), (None, None));
    }

    #[test]
    fn regular_files_and_empty_folders_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("deep/er")).unwrap();
        fs::create_dir(folder.path().join("empty")).unwrap();
        for file in ["b", "a", "deep/er/c"] {
            fs::write(folder.path().join(file), file).unwrap();
        }
        let mut found = Found::default();
        found.walk(folder.path(), Path::new("")).unwrap();
        assert_eq!(found.files, ["a", "b", "deep/er/c"]);
        assert_eq!(found.folders, ["empty"]);
        assert!(found.walk(folder.path(), Path::new("none")).is_err());
    }

    #[test]
    fn links_are_followed_within_the_folder_and_others_are_left_out_with_a_reason() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("step-2")).unwrap();
        fs::write(folder.path().join("step-2/model"), "two").unwrap();
        for (target, link) in [
            ("step-2", "latest"),
            ("step-2/model", "model"),
            ("/etc/hosts", "outside"),
            ("..", "step-2/up"),
            (".", "self"),
            ("nothing", "broken"),
        ] {
            std::os::unix::fs::symlink(target, folder.path().join(link)).unwrap();
        }
        let mut found = Found::default();
        found.walk(folder.path(), Path::new("")).unwrap();
        assert_eq!(found.files, ["latest/model", "model", "step-2/model"]);
        let left_out: Vec<String> = found.left_out.iter().map(ToString::to_string).collect();
        for words in [
            "`outside` is a link to /etc/hosts, which is outside",
            "`self` is a link to a folder that it is in",
            "`step-2/up` is a link",
            "`broken` is a link to nothing",
        ] {
            assert!(left_out.iter().any(|reason| reason.starts_with(words)), "{words}: {left_out:?}");
        }
        let mut found = Found::default();
        found.walk(folder.path(), Path::new("outside")).unwrap();
        assert!(found.files.is_empty() && found.left_out[0].path == "outside");
    }
}
