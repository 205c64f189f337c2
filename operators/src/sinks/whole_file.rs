//! A file that appears at once, whole, when it is finished; until then an older one stays as it is.
//!
//! What is written goes to a file without a name on the same disk, so that nothing is left of a run that is killed.
//! (A file system without such files gets a hidden one, which the next run takes over.) The path itself is there from
//! the start, empty if it was not there before: it holds the lock against other runs.
use super::lock::lock;
use super::staging::write_error;
use crate::api::OperatorError;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// The file; see the module.
pub struct WholeFile {
    target: PathBuf,
    content: File,
    /// Name of the content, where the file system wants one.
    named: Option<PathBuf>,
    /// Where a nameless file gets its first name.
    step: PathBuf,
    /// Made by this run, so that it goes if the run does not finish.
    placeholder: bool,
    /// Keeps the lock.
    _locked: File,
}

impl WholeFile {
    /// Begins the file (parent folders too). An existing one will be replaced if `overwrite`, else it is an error.
    ///
    /// # Errors
    /// The file cannot be written, is no file, or another run is writing it; the text names it and says what to do.
    pub fn create(path: &Path, overwrite: bool) -> Result<Self, OperatorError> {
        let failed = |e: io::Error| write_error(path, &e);
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder).map_err(failed)?;
        // Renaming onto a link would replace the link.
        let target = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        if target.metadata().is_ok_and(|found| !found.is_file() && !found.is_dir()) {
            return Err(OperatorError::new(format!(
                "`{}` is a device or a pipe, and this format needs a file: choose another path",
                path.display()
            )));
        }
        let fresh = OpenOptions::new().write(true).create_new(true).open(&target);
        let (locked, placeholder) = match fresh {
            Ok(file) => (file, true),
            Err(error) if error.kind() == ErrorKind::AlreadyExists && overwrite => {
                (OpenOptions::new().write(true).open(&target).map_err(failed)?, false)
            }
            Err(error) => return Err(failed(error)),
        };
        lock(&locked, path)?;
        let name = target.file_name().unwrap_or_default().to_string_lossy();
        let step = target.with_file_name(format!(".{name}.partial"));
        let folder = target.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let (content, named) = match nameless(folder) {
            Some(file) => (file, None),
            None => (File::create(&step).map_err(|e| write_error(&step, &e))?, Some(step.clone())),
        };
        Ok(Self { target, content, named, step, placeholder, _locked: locked })
    }

    /// Where the content goes.
    ///
    /// # Errors
    /// The process has too many files open.
    pub fn content(&self) -> io::Result<File> {
        self.content.try_clone()
    }

    /// Makes the content durable and puts it in the place of what was there.
    ///
    /// # Errors
    /// The disk is full or fails; then what was there stays.
    pub fn finish(mut self) -> Result<(), OperatorError> {
        let placed = self.place();
        placed.map_err(|e| write_error(&self.target, &e))
    }

    fn place(&mut self) -> io::Result<()> {
        self.content.sync_all()?;
        if self.named.is_none() {
            // Left by a run that was killed between its last two steps.
            if let Err(error) = std::fs::remove_file(&self.step)
                && error.kind() != ErrorKind::NotFound
            {
                return Err(error);
            }
            give_name(&self.content, &self.step)?;
            self.named = Some(self.step.clone());
        }
        std::fs::rename(&self.step, &self.target)?;
        (self.named, self.placeholder) = (None, false);
        Ok(())
    }
}

impl Drop for WholeFile {
    fn drop(&mut self) {
        // Nobody can be told any more; the next run cleans up what stays here.
        if let Some(path) = &self.named {
            let _ = std::fs::remove_file(path);
        }
        if self.placeholder {
            let _ = std::fs::remove_file(&self.target);
        }
    }
}

/// A file without a name in a folder, where the file system can do that.
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
            let before = std::fs::read(&path).unwrap_or_default();
            let file = WholeFile::create(&path, true).unwrap();
            file.content().unwrap().write_all(content.as_bytes()).unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), before);
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
        drop(WholeFile::create(&folder.path().join("out.bin"), true).unwrap());
        assert!(names(folder.path()).is_empty());
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
