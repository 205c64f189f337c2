//! A file that appears at once, whole, when it is finished; until then an older one stays as it is.
//!
//! Data goes to a nameless file on the same disk, so that a killed run leaves nothing. (A file system without such files
//! gets a hidden one, which the next run takes over.) The lock against other runs is on the older file, or else on a hidden
//! empty file, `.NAME.lock`. A killed run can leave only that, which does not look like a result. The next run takes it
//! over and removes it.
use super::lock::lock;
use super::staging::{is_same_file, sync_name, write_error};
use crate::api::OperatorError;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// The file; see the module.
pub struct WholeFile {
    target: PathBuf,
    content: File,
    /// Name of the content, if the file system needs one.
    named: Option<PathBuf>,
    /// First name of a nameless file.
    step: PathBuf,
    /// Keeps the lock.
    _lock: Lock,
}

impl WholeFile {
    /// Creates the file (parent folders too). An existing one will be replaced if `overwrite`, else it is an error.
    ///
    /// # Errors
    /// The file cannot be written, is no file, or another run is writing it; the text names it and gives advice.
    pub fn create(path: &Path, overwrite: bool) -> Result<Self, OperatorError> {
        let failed = |e: io::Error| write_error(path, &e);
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder).map_err(failed)?;
        // Renaming onto a link would replace the link.
        let target = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        if target.metadata().is_ok_and(|found| !found.is_file() && !found.is_dir()) {
            return Err(OperatorError::new(format!(
                "`{}` is a device or a pipe, but this format needs a file: choose another path",
                path.display()
            )));
        }
        let name = target.file_name().unwrap_or_default().to_string_lossy();
        let hidden = target.with_file_name(format!(".{name}.lock"));
        let lock = match target.try_exists().map_err(failed)? {
            true if !overwrite => return Err(failed(ErrorKind::AlreadyExists.into())),
            true => {
                let lock = Lock::of_file(&target, path)?;
                // Left by a run that was killed when the file existed already, or that is about to finish.
                if hidden.exists() {
                    drop(Lock::beside(hidden, path)?);
                }
                lock
            }
            false => Lock::beside(hidden, path)?,
        };
        let step = target.with_file_name(format!(".{name}.partial"));
        let folder = target.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let (content, named) = match nameless(folder) {
            Some(file) => (file, None),
            None => (File::create(&step).map_err(|e| write_error(&step, &e))?, Some(step.clone())),
        };
        Ok(Self { target, content, named, step, _lock: lock })
    }

    /// Returns the file for the content.
    ///
    /// # Errors
    /// The process has too many files open.
    pub fn content(&self) -> io::Result<File> {
        self.content.try_clone()
    }

    /// Final location of the file: the path with links resolved.
    pub(super) fn target(&self) -> &Path {
        &self.target
    }

    /// Makes the content durable and replaces the older file; when this returns, the new one survives a power loss.
    ///
    /// # Errors
    /// The disk is full or fails; then the older file stays.
    pub fn finish(mut self) -> Result<(), OperatorError> {
        let placed = self.place();
        placed.map_err(|e| write_error(&self.target, &e))?;
        sync_name(&self.target)
    }

    fn place(&mut self) -> io::Result<()> {
        tidemill_disk::sync_all(&self.content)?;
        if self.named.is_none() {
            // Left by a run that was killed between its last two steps.
            if let Err(error) = tidemill_disk::remove(&self.step)
                && error.kind() != ErrorKind::NotFound
            {
                return Err(error);
            }
            give_name(&self.content, &self.step)?;
            self.named = Some(self.step.clone());
        }
        tidemill_disk::rename(&self.step, &self.target)?;
        self.named = None;
        Ok(())
    }
}

impl Drop for WholeFile {
    fn drop(&mut self) {
        // No caller can get an error here; the next run cleans up.
        if let Some(path) = &self.named {
            let _ = tidemill_disk::remove(path);
        }
    }
}

/// Lets one run at a time write the file.
struct Lock {
    _file: File,
    /// The hidden file, if there was no other to lock.
    hidden: Option<PathBuf>,
}

impl Lock {
    fn of_file(target: &Path, path: &Path) -> Result<Self, OperatorError> {
        let file = OpenOptions::new().write(true).open(target).map_err(|e| write_error(path, &e))?;
        lock(&file, path)?;
        Ok(Self { _file: file, hidden: None })
    }

    fn beside(hidden: PathBuf, path: &Path) -> Result<Self, OperatorError> {
        loop {
            let file = OpenOptions::new().write(true).create(true).truncate(false).open(&hidden);
            let file = file.map_err(|e| write_error(path, &e))?;
            lock(&file, path)?;
            // The previous holder may have removed it in between; then the lock is on a file that no other run will find.
            if is_same_file(&file, &hidden) {
                return Ok(Self { _file: file, hidden: Some(hidden) });
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if let Some(hidden) = &self.hidden {
            let _ = tidemill_disk::remove(hidden);
        }
    }
}

/// Creates a nameless file in a folder, if the file system supports it.
#[cfg(target_os = "linux")]
fn nameless(folder: &Path) -> Option<File> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    rustix::fs::open(folder, flags, Mode::from_raw_mode(0o666)).ok().map(File::from)
}

#[cfg(target_os = "linux")]
fn give_name(file: &File, path: &Path) -> io::Result<()> {
    use rustix::fs::{AtFlags, CWD};
    use std::os::fd::AsRawFd;
    let descriptor = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::linkat(CWD, descriptor, CWD, path, AtFlags::SYMLINK_FOLLOW).map_err(io::Error::from)
}

#[cfg(not(target_os = "linux"))]
fn nameless(_: &Path) -> Option<File> {
    None
}

#[cfg(not(target_os = "linux"))]
fn give_name(_: &File, _: &Path) -> io::Result<()> {
    unreachable!("only nameless files get a name")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn names(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn the_old_file_stays_until_the_new_one_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/out.bin");
        for content in ["first", "second, longer"] {
            let before = std::fs::read(&path).ok();
            let file = WholeFile::create(&path, true).unwrap();
            file.content().unwrap().write_all(content.as_bytes()).unwrap();
            assert_eq!(std::fs::read(&path).ok(), before);
            file.finish().unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), content.as_bytes());
        }
        let unfinished = WholeFile::create(&path, true).unwrap();
        unfinished.content().unwrap().write_all(b"third").unwrap();
        assert!(WholeFile::create(&path, true).err().unwrap().message.contains("is being written by"));
        drop(unfinished);
        assert_eq!(std::fs::read(&path).unwrap(), b"second, longer");
        assert!(WholeFile::create(&path, false).err().unwrap().message.contains("overwrite: true"));
        assert_eq!(names(&folder.path().join("new")), ["out.bin"]);
    }

    #[test]
    fn nothing_is_left_of_a_first_run_that_does_not_finish() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.bin");
        let file = WholeFile::create(&path, true).unwrap();
        assert!(!path.exists(), "nothing looks like a result");
        let error = WholeFile::create(&path, true).err().unwrap();
        assert!(error.message.contains("out.bin` is being written by"), "{error}");
        drop(file);
        assert!(names(folder.path()).is_empty());
    }

    #[test]
    fn what_a_killed_run_left_is_taken_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.bin");
        for left in [".out.bin.lock", ".out.bin.partial"] {
            std::fs::write(folder.path().join(left), "").unwrap();
        }
        let file = WholeFile::create(&path, true).unwrap();
        file.content().unwrap().write_all(b"new").unwrap();
        file.finish().unwrap();
        assert_eq!(names(folder.path()), ["out.bin"]);
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
    }

    #[test]
    fn what_is_no_file_is_refused_and_a_link_stays_one() {
        let folder = tempfile::tempdir().unwrap();
        assert!(WholeFile::create(Path::new("/dev/null"), true).err().unwrap().message.contains("device"));
        assert!(WholeFile::create(folder.path(), true).err().unwrap().message.contains("folder"));
        let (real, link) = (folder.path().join("real"), folder.path().join("link"));
        std::fs::write(&real, "old").unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let file = WholeFile::create(&link, true).unwrap();
        file.content().unwrap().write_all(b"new").unwrap();
        file.finish().unwrap();
        assert!(link.is_symlink());
        assert_eq!(std::fs::read(&real).unwrap(), b"new");
    }
}
