//! A text file that grows by commits: data written in between waits beside it and can be discarded.
//!
//! Staged bytes stay in memory up to a limit, then go to a nameless temporary file on the same disk, which vanishes however
//! the run ends. A commit appends them to the target, where readers see them at once. If a commit fails half-way (a full
//! disk), the target is cut back to the previous commit. While a run writes the file, no other one can.
//!
//! A commit does not wait for the disk: [`Staging::flush`] does, on any thread, and so does [`Staging::close`]. Another
//! process continues the file with a token, which has its length after a commit and its last bytes, and is recorded after a
//! flush. Data after that length is cut off: it may be whole or partial rows whose token was not recorded. A file with
//! other bytes before that length was written by another program meanwhile, and is refused.
use super::appending;
use super::ending::Ending;
use super::lock::{check_free, lock};
use crate::api::{Flush, OperatorError};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Most staged bytes in memory.
const MEMORY_LIMIT: usize = 8 << 20;

/// The file; see the module.
pub(crate) struct Staging {
    path: PathBuf,
    target: Arc<File>,
    /// Not a pipe or a device: those have no length and cannot be synced.
    is_file: bool,
    /// Committed length of the target.
    committed: u64,
    /// Ending of these bytes.
    ending: Ending,
    memory: Vec<u8>,
    spill_path: PathBuf,
    spill: Option<File>,
    disk: Arc<Mutex<Disk>>,
}

/// State of the disk. Locked while the file is synced, and not needed for commits.
#[derive(Default)]
struct Disk {
    /// Bytes that survive a power loss, with the name of the file; `None`: not even that it was emptied or cut back.
    synced: Option<u64>,
    /// A sync has failed: later ones give no guarantee for data written before it.
    failure: Option<String>,
}

impl Disk {
    /// Syncs a file with this number of committed bytes, unless that is done.
    fn sync(&mut self, path: &Path, target: &File, committed: u64) -> Result<(), OperatorError> {
        if let Some(failure) = &self.failure {
            return Err(OperatorError::new(failure.clone()));
        }
        let synced = match self.synced {
            Some(synced) if synced >= committed => return Ok(()),
            Some(_) => tidemill_disk::sync_data(target).map_err(|e| write_error(path, &e)),
            None => tidemill_disk::sync_all(target)
                .map_err(|e| write_error(path, &e))
                .and_then(|()| sync_name(path)),
        };
        match &synced {
            Ok(()) => self.synced = Some(committed),
            Err(error) => self.failure = Some(error.message.clone()),
        }
        synced
    }
}

/// Data that another process needs to continue the file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Token {
    /// Committed bytes.
    length: u64,
    /// Digest of their [ending](Ending). `None` in tokens of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ending: Option<String>,
}

impl Token {
    /// Refuses a file with other bytes before its committed end.
    fn compare(&self, path: &Path, found: &Ending) -> Result<(), OperatorError> {
        match &self.ending {
            Some(ending) if *ending != found.digest() => {
                Err(lost(path, self.length, "another program has changed the part that this run wrote"))
            }
            _ => Ok(()),
        }
    }
}

impl Staging {
    /// Creates the target (parent folders too). An existing file is emptied if `overwrite`, else it is an error unless it
    /// is empty.
    pub(crate) fn create(path: &Path, overwrite: bool) -> Result<Self, OperatorError> {
        Self::begin(path, overwrite, b"")
    }

    /// Creates a file that starts with `header`, which is not written. A file with only the header counts as empty: its run
    /// was killed before the first checkpoint.
    pub(super) fn begin(path: &Path, overwrite: bool, header: &[u8]) -> Result<Self, OperatorError> {
        let failed = |e: io::Error| write_error(path, &e);
        if let Some(parent) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
            std::fs::create_dir_all(parent).map_err(failed)?;
        }
        let mut options = OpenOptions::new();
        let target =
            options.read(!overwrite).write(true).create(true).truncate(false).open(path).map_err(failed)?;
        lock(&target, path)?;
        let is_file = target.metadata().is_ok_and(|found| found.is_file());
        let is_free = overwrite || is_file && has_no_more_than(&target, header).map_err(failed)?;
        if !is_free {
            return Err(failed(ErrorKind::AlreadyExists.into()));
        }
        // Only after the lock: the file of another run is left alone.
        if is_file {
            target.set_len(0).map_err(failed)?;
            appending::forget(path, &target)?;
        }
        Ok(Self::of(path, target, is_file, (0, Ending::default())))
    }

    /// Wraps an open file with this number of kept bytes and their ending.
    pub(super) fn of(path: &Path, target: File, is_file: bool, (committed, ending): (u64, Ending)) -> Self {
        let spill_path = spill_path(path);
        let (target, memory, path) = (Arc::new(target), Vec::new(), path.into());
        Self {
            path,
            target,
            is_file,
            committed,
            ending,
            memory,
            spill_path,
            spill: None,
            disk: Arc::default(),
        }
    }

    /// Continues the file of another process after its committed part, which `token` gives.
    ///
    /// # Errors
    /// The file is missing, shorter or another one, or another run is writing it; the text names it and gives advice.
    pub(crate) fn resume(path: &Path, token: &[u8]) -> Result<Self, OperatorError> {
        let token = read_token::<Token>(path, token)?;
        Self::open(path, token.length, |ending| token.compare(path, ending))
    }

    /// Checks whether [`Staging::resume`] would succeed; changes nothing.
    ///
    /// # Errors
    /// See [`Staging::resume`].
    pub(crate) fn check(path: &Path, token: &[u8]) -> Result<(), OperatorError> {
        let token = read_token::<Token>(path, token)?;
        let found = length_of_continued(path, token.length)?;
        check_free(path, path)?;
        if found < token.length {
            return Err(too_short(path, token.length, found));
        }
        let ending = File::open(path).and_then(|file| Ending::of(&file, token.length));
        token.compare(path, &ending.map_err(|e| write_error(path, &e))?)
    }

    /// Returns the committed bytes of a token.
    ///
    /// # Errors
    /// It belongs to another kind of file.
    pub(super) fn committed_of(path: &Path, token: &[u8]) -> Result<u64, OperatorError> {
        read_token::<Token>(path, token).map(|token| token.length)
    }

    /// Resumes as [`Staging::resume`] if only the number of committed bytes is known.
    pub(crate) fn resume_at(path: &Path, committed: u64) -> Result<Self, OperatorError> {
        Self::open(path, committed, |_| Ok(()))
    }

    /// Continues a file after `committed` bytes; changes nothing unless `is_it` accepts their ending.
    fn open(
        path: &Path,
        committed: u64,
        is_it: impl FnOnce(&Ending) -> Result<(), OperatorError>,
    ) -> Result<Self, OperatorError> {
        // Before it is opened: opening a pipe would wait for its reader.
        length_of_continued(path, committed)?;
        let failed = |e: io::Error| write_error(path, &e);
        let target = OpenOptions::new().read(true).write(true).open(path).map_err(failed)?;
        lock(&target, path)?;
        let found = target.metadata().map_err(failed)?.len();
        if found < committed {
            return Err(too_short(path, committed, found));
        }
        let ending = Ending::of(&target, committed).map_err(failed)?;
        is_it(&ending)?;
        if found > committed {
            target.set_len(committed).map_err(failed)?;
        }
        Ok(Self::of(path, target, true, (committed, ending)))
    }

    /// Returns the token with which [`Staging::resume`] continues after the last commit, valid once a flush is done. `None`
    /// if it is no file.
    pub(crate) fn token(&self) -> Result<Option<Vec<u8>>, OperatorError> {
        match self.is_file {
            true => {
                write_token(&Token { length: self.committed, ending: Some(self.ending.digest()) }).map(Some)
            }
            false => Ok(None),
        }
    }

    /// Returns a task that makes the current commit and the name of the file durable, on any thread.
    pub(crate) fn flush(&self) -> Option<Flush> {
        if !self.is_file {
            return None;
        }
        let (path, target, disk) = (self.path.clone(), Arc::clone(&self.target), Arc::clone(&self.disk));
        let committed = self.committed;
        Some(Box::new(move || {
            disk.lock().unwrap_or_else(PoisonError::into_inner).sync(&path, &target, committed)
        }))
    }

    /// Syncs on this thread.
    pub(crate) fn sync(&self) -> Result<(), OperatorError> {
        self.flush().map_or(Ok(()), |flush| flush())
    }

    /// Committed bytes.
    pub(crate) fn committed(&self) -> u64 {
        self.committed
    }

    /// Whether the path still names this file.
    pub(crate) fn is_in_place(&self) -> bool {
        is_same_file(&self.target, &self.path)
    }

    /// Staged bytes in memory; append here, then call [`Staging::spill`].
    pub(crate) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.memory
    }

    /// Moves staged bytes out of memory when there are many.
    pub(crate) fn spill(&mut self) -> Result<(), OperatorError> {
        if self.memory.len() < MEMORY_LIMIT {
            return Ok(());
        }
        let failed = |e: io::Error| write_error(&self.spill_path, &e);
        let mut file = match self.spill.take() {
            Some(file) => file,
            None => {
                let mut options = OpenOptions::new();
                let file = options.read(true).write(true).create(true).truncate(true).open(&self.spill_path);
                let file = file.map_err(failed)?;
                std::fs::remove_file(&self.spill_path).map_err(failed)?;
                file
            }
        };
        let written = file.write_all(&self.memory).map_err(failed);
        self.spill = Some(file);
        self.memory.clear();
        written
    }

    /// Appends everything staged to the target: readers see it, and it survives the process.
    pub(crate) fn commit(&mut self) -> Result<(), OperatorError> {
        if self.memory.is_empty() && self.spill.is_none() {
            return Ok(());
        }
        match self.append() {
            Ok((committed, ending)) => (self.committed, self.ending) = (committed, ending),
            Err(error) => {
                let failure = write_error(&self.path, &error);
                // Best effort: the caller needs the failure itself.
                let _ = self.target.set_len(self.committed);
                return Err(failure);
            }
        }
        self.forget();
        Ok(())
    }

    /// Returns the new length of the target, and its ending.
    fn append(&mut self) -> io::Result<(u64, Ending)> {
        let mut target = &*self.target;
        let mut ending = self.ending.clone();
        if self.is_file {
            target.seek(SeekFrom::Start(self.committed))?;
        }
        if let Some(spill) = &mut self.spill {
            spill.seek(SeekFrom::Start(0))?;
            let mut chunk = vec![0; 1 << 20];
            loop {
                let read = spill.read(&mut chunk)?;
                if read == 0 {
                    break;
                }
                target.write_all(&chunk[..read])?;
                ending.append(&chunk[..read]);
            }
        }
        target.write_all(&self.memory)?;
        if !self.is_file {
            return Ok((0, Ending::default()));
        }
        ending.append(&self.memory);
        Ok((target.stream_position()?, ending))
    }

    /// Discards everything staged.
    pub(crate) fn rollback(&mut self) -> Result<(), OperatorError> {
        self.forget();
        Ok(())
    }

    fn forget(&mut self) {
        self.memory.clear();
        self.spill = None;
    }

    /// Makes the committed part durable and keeps it for later runs, then does [`Staging::release`].
    pub(crate) fn close(&mut self) -> Result<(), OperatorError> {
        let is_file = self.is_file;
        // While the lock is held: the next holder would cut off the rows of a remaining mark.
        let closed = self.sync().and_then(|()| if is_file { appending::finish(&self.path) } else { Ok(()) });
        self.release()?;
        closed
    }

    /// Renames the file, replacing an existing one; the name is durable when this returns.
    pub(super) fn rename(&mut self, to: &Path) -> Result<(), OperatorError> {
        tidemill_disk::rename(&self.path, to).map_err(|e| write_error(to, &e))?;
        (self.path, self.spill_path) = (to.to_owned(), spill_path(to));
        sync_name(to)
    }

    /// Removes temporaries and lets other runs write the file.
    pub(crate) fn release(&mut self) -> Result<(), OperatorError> {
        // A file system without locks has none to release.
        let _ = self.target.unlock();
        self.rollback()
    }
}

/// Path for staged bytes that exceed the memory.
fn spill_path(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.staged"))
}

/// Whether a file contains nothing but a header, or the start of one.
fn has_no_more_than(file: &File, header: &[u8]) -> io::Result<bool> {
    let mut found = Vec::new();
    file.take(header.len() as u64 + 1).read_to_end(&mut found)?;
    Ok(header.starts_with(&found))
}

fn lost(path: &Path, committed: u64, what: &str) -> OperatorError {
    OperatorError::new(format!(
        "cannot continue `{}`: {committed} bytes of it are committed, but {what}: {LOST_HELP}",
        path.display()
    ))
}

fn too_short(path: &Path, committed: u64, found: u64) -> OperatorError {
    lost(path, committed, &format!("the file has only {found}"))
}

/// Returns the length of another process's file, which must exist.
fn length_of_continued(path: &Path, committed: u64) -> Result<u64, OperatorError> {
    let lost = |what: &str| Err(lost(path, committed, what));
    match path.metadata() {
        Err(error) if error.kind() == ErrorKind::NotFound => lost("the file is gone"),
        Err(error) => Err(write_error(path, &error)),
        Ok(found) if found.is_dir() => lost("there is a folder in its place"),
        Ok(found) if !found.is_file() => lost("there is a pipe or a device in its place"),
        Ok(found) => Ok(found.len()),
    }
}

/// Advice if committed data is missing.
pub(crate) const LOST_HELP: &str =
    "restore the file, or start from the beginning with `tidemill state reset`";

/// Encodes a token.
pub(super) fn write_token(token: &impl Serialize) -> Result<Vec<u8>, OperatorError> {
    serde_json::to_vec(token).map_err(|e| OperatorError::new(format!("the state of a file: {e}")))
}

/// Decodes a token of [`write_token`].
pub(super) fn read_token<'a, T: Deserialize<'a>>(path: &Path, token: &'a [u8]) -> Result<T, OperatorError> {
    serde_json::from_slice(token).map_err(|error| {
        OperatorError::new(format!(
            "cannot continue `{}`: its state is of another kind of file or of another version ({error}): \
             start from the beginning with `tidemill state reset`",
            path.display()
        ))
    })
}

/// Makes the name of a file durable, with the folders above it: they may be new too.
pub(super) fn sync_name(path: &Path) -> Result<(), OperatorError> {
    let real = path.canonicalize().map_err(|e| write_error(path, &e))?;
    for (above, folder) in real.ancestors().skip(1).enumerate() {
        match tidemill_disk::sync_folder(folder) {
            // Some file systems cannot sync folders, and folders further up may belong to other users.
            Err(error)
                if above == 0
                    && !matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) =>
            {
                return Err(OperatorError::new(format!(
                    "cannot sync the name of `{}`: {error}: make its folder readable, and check the disk",
                    path.display()
                )));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Whether a path names this open file.
pub(super) fn is_same_file(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let number = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    file.metadata().ok().map(number) == path.metadata().ok().map(number)
}

/// Describes a file that cannot be written, with advice.
pub(crate) fn write_error(path: &Path, error: &io::Error) -> OperatorError {
    let help = match error.kind() {
        _ if matches!(error.raw_os_error().map(Errno::from_raw_os_error), Some(Errno::MFILE)) => {
            "this process has reached its limit of open files: allow more, such as `ulimit -n 4096`"
        }
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "free some space or write to another disk",
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            "allow writing to the folder or choose another path"
        }
        ErrorKind::AlreadyExists => "choose another path, or set `overwrite: true`",
        ErrorKind::IsADirectory => "this is a folder: write the path of a file",
        ErrorKind::NotADirectory => "a part of the path is a file: choose another path",
        _ => "check the path and the disk",
    };
    OperatorError::new(format!("`{}` cannot be written: {error}: {help}", path.display()))
}

#[cfg(test)]
#[path = "staging_tests.rs"]
mod tests;
