//! The operations on files that a folder of secrets is made of, so that a test can end the process or the power after each.
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Operations of a file system. Only synced data is sure to outlast a loss of power: the bytes of a file by
/// `write_synced`, its name by `sync_folder`.
pub(crate) trait Files: Send {
    /// Makes a folder that only this user can use; one that is there already is fine.
    fn create_folder(&mut self, path: &Path) -> io::Result<()>;
    /// Makes a file of these bytes that only this user can read, in place of one that is there, and waits for the disk to have
    /// its bytes.
    fn write_synced(&mut self, path: &Path, bytes: &[u8]) -> io::Result<()>;
    /// Waits until the names in a folder are on the disk.
    fn sync_folder(&mut self, path: &Path) -> io::Result<()>;
    /// Gives a file another name, in place of a file that has it.
    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&mut self, path: &Path) -> io::Result<()>;
    /// The bytes of a file, none if there is no such file.
    fn read(&self, path: &Path) -> io::Result<Option<Vec<u8>>>;
}

/// The file system of this machine.
pub(crate) struct Disk;

impl Files for Disk {
    fn create_folder(&mut self, path: &Path) -> io::Result<()> {
        match DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
            other => other,
        }
    }

    fn write_synced(&mut self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        // A file of an earlier process may have other permissions, or be a link to somewhere else.
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    }

    fn sync_folder(&mut self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&mut self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn read(&self, path: &Path) -> io::Result<Option<Vec<u8>>> {
        match fs::read(path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The folder that a path is in.
pub(crate) fn parent(path: &Path) -> PathBuf {
    path.parent().map_or_else(|| path.to_owned(), Path::to_owned)
}
