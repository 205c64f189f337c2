//! File operations of a [`Folder`](crate::Folder), abstracted so that a test can record them and replay a loss of power
//! after each.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A file system. Only synced data is sure to survive a loss of power: the bytes of a file by `sync`, its name by
/// `sync_folder`.
pub(crate) trait Files: Send {
    /// Creates a folder; an existing one is fine.
    fn create_folder(&mut self, path: &Path) -> io::Result<()>;
    /// Creates a file with these bytes; truncates an existing one.
    fn write(&mut self, path: &Path, bytes: &[u8]) -> io::Result<()>;
    /// Waits until the bytes of the last `write` are on the disk. Once for each `write`: data that could not be synced
    /// must be written again, because the system forgets the failure.
    fn sync(&mut self, path: &Path) -> io::Result<()>;
    /// Waits until the names in a folder are on the disk.
    fn sync_folder(&mut self, path: &Path) -> io::Result<()>;
    /// Renames a file, replacing one with the new name.
    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&mut self, path: &Path) -> io::Result<()>;
    /// Reads the bytes of a file.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
    /// Lists the names in a folder; names that are not text in their closest readable form.
    fn names(&self, path: &Path) -> io::Result<Vec<String>>;
}

/// The file system of this machine.
#[derive(Default)]
pub(crate) struct Disk {
    /// Written, not synced: only a file held open since the write reports an error of the disk.
    open: BTreeMap<PathBuf, File>,
}

impl Files for Disk {
    fn create_folder(&mut self, path: &Path) -> io::Result<()> {
        match fs::create_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
            other => other,
        }
    }

    fn write(&mut self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.open.remove(path);
        let mut file = File::create(path)?;
        file.write_all(bytes)?;
        self.open.insert(path.to_owned(), file);
        Ok(())
    }

    fn sync(&mut self, path: &Path) -> io::Result<()> {
        let file = self.open.remove(path);
        file.ok_or_else(|| io::Error::other("it could not be synced before, and was not written again"))?
            .sync_all()
    }

    fn sync_folder(&mut self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&mut self, path: &Path) -> io::Result<()> {
        self.open.remove(path);
        fs::remove_file(path)
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        fs::read(path)
    }

    fn names(&self, path: &Path) -> io::Result<Vec<String>> {
        fs::read_dir(path)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }
}
