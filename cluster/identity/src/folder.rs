//! A folder of secrets: one process has it, no other user can read it, and each of its files is replaced all or
//! nothing.
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::error::StoreError;
use crate::files::{Disk, Files, parent};

const LOCK: &str = "lock";
const FOLDER_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

/// An open folder; dropping it lets others open it.
pub(crate) struct Folder {
    path: PathBuf,
    files: Box<dyn Files>,
    /// The system gives the lock back when the process ends, however it ends.
    _lock: Option<File>,
}

impl Folder {
    /// Opens a folder whose files have these names, and makes it if it does not exist.
    pub(crate) fn open(path: &Path, names: &[&str]) -> Result<Self, StoreError> {
        let path = std::path::absolute(path).map_err(StoreError::io("found", path))?;
        let mut files = Disk;
        create(&mut files, &path)?;
        let ours = |name: &str| {
            name == LOCK || names.iter().any(|file| name == *file || name.strip_suffix(".new") == Some(file))
        };
        let (mut is_empty, mut foreign) = (true, None);
        for entry in fs::read_dir(&path).map_err(StoreError::io("read", &path))? {
            let name = entry.map_err(StoreError::io("read", &path))?.file_name();
            let name = name.to_string_lossy().into_owned();
            is_empty = false;
            if !ours(&name) {
                foreign = Some(name);
            }
        }
        if let Some(file) = foreign.filter(|_| names.iter().all(|name| !path.join(name).exists())) {
            return Err(StoreError::Foreign { path, file });
        }
        if is_empty {
            let private = fs::Permissions::from_mode(FOLDER_MODE);
            fs::set_permissions(&path, private).map_err(StoreError::io("closed to others", &path))?;
        }
        let lock = lock(&path)?;
        check_private(&path, FOLDER_MODE)?;
        for name in names {
            check_private(&path.join(name), FILE_MODE)?;
        }
        let mut folder = Self { path, files: Box::new(files), _lock: Some(lock) };
        folder.settle(names)?;
        Ok(folder)
    }

    /// Opens a folder on other files, without a lock.
    #[cfg(test)]
    pub(crate) fn on(path: &Path, names: &[&str], files: Box<dyn Files>) -> Result<Self, StoreError> {
        let mut folder = Self { path: path.to_owned(), files, _lock: None };
        folder.files.create_folder(path).map_err(StoreError::io("made", path))?;
        folder.files.sync_folder(&parent(path)).map_err(StoreError::io("synced", path))?;
        folder.settle(names)?;
        Ok(folder)
    }

    /// Removes what was being written when a process ended, and makes sure that what is read now outlasts a loss of power: a name
    /// that was not on the disk yet could be gone later.
    fn settle(&mut self, names: &[&str]) -> Result<(), StoreError> {
        for name in names {
            let new = self.path.join(format!("{name}.new"));
            if self.files.read(&new).map_err(StoreError::io("read", &new))?.is_some() {
                self.files.remove(&new).map_err(StoreError::io("removed", &new))?;
            }
        }
        self.files.sync_folder(&self.path).map_err(StoreError::io("synced", &self.path))
    }

    /// The path of a file.
    pub(crate) fn path_of(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The folder itself.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The bytes of a file, none if there is no such file.
    pub(crate) fn read(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let path = self.path.join(name);
        self.files.read(&path).map_err(StoreError::io("read", &path))
    }

    /// Replaces a file, or makes it, all or nothing; it is on the disk on return.
    pub(crate) fn replace(&mut self, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        let (path, new) = (self.path.join(name), self.path.join(format!("{name}.new")));
        let written = self.files.write_synced(&new, bytes).and_then(|()| self.files.rename(&new, &path));
        if let Err(source) = written {
            // A part of it may be there: secrets, and space on a full disk.
            let _ = self.files.remove(&new);
            return Err(StoreError::Io { done: "written", path, source });
        }
        self.files.sync_folder(&self.path).map_err(StoreError::io("written", &path))
    }

    /// Removes a file; one that is not there is fine.
    pub(crate) fn remove(&mut self, name: &str) -> Result<(), StoreError> {
        let path = self.path.join(name);
        if self.read(name)?.is_some() {
            self.files.remove(&path).map_err(StoreError::io("removed", &path))?;
            self.files.sync_folder(&self.path).map_err(StoreError::io("removed", &path))?;
        }
        Ok(())
    }
}

/// Makes a folder and those above it, each with its name on the disk.
fn create(files: &mut Disk, path: &Path) -> Result<(), StoreError> {
    if path.is_dir() {
        return Ok(());
    }
    let above = parent(path);
    if above != path {
        create(files, &above)?;
    }
    files.create_folder(path).map_err(StoreError::io("made", path))?;
    files.sync_folder(&above).map_err(StoreError::io("synced", &above))
}

fn check_private(path: &Path, wanted: u32) -> Result<(), StoreError> {
    let Ok(metadata) = fs::metadata(path) else { return Ok(()) };
    let mode = metadata.permissions().mode() & 0o777;
    if mode & 0o077 == 0 {
        return Ok(());
    }
    Err(StoreError::Exposed { path: path.to_owned(), mode, wanted })
}

fn lock(folder: &Path) -> Result<File, StoreError> {
    let path = folder.join(LOCK);
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(FILE_MODE);
    let mut file = options.open(&path).map_err(StoreError::io("locked", &path))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            let read = file.read_to_string(&mut holder);
            let holder = holder.trim();
            let known = read.is_ok() && !holder.is_empty();
            let holder = if known { holder.to_owned() } else { "another process".to_owned() };
            return Err(StoreError::Locked { path: folder.to_owned(), holder });
        }
        Err(TryLockError::Error(source)) => return Err(StoreError::Io { done: "locked", path, source }),
    }
    let text = format!("process {}\n", std::process::id());
    let written = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(text.as_bytes()));
    written.map_err(StoreError::io("locked", &path))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: &[&str] = &["a.pem", "b.json"];

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("it is there").permissions().mode() & 0o777
    }

    #[test]
    fn nobody_else_can_read_it() {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path().join("x/y");
        let mut folder = Folder::open(&path, NAMES).unwrap();
        folder.replace("a.pem", b"1").unwrap();
        folder.replace("a.pem", b"2").unwrap();
        assert_eq!(folder.read("a.pem").unwrap().unwrap(), b"2");
        assert_eq!((mode(&path), mode(&path.join("a.pem")), mode(&path.join("lock"))), (0o700, 0o600, 0o600));
        folder.remove("a.pem").unwrap();
        folder.remove("a.pem").unwrap();
        assert_eq!(folder.read("a.pem").unwrap(), None);
        folder.replace("a.pem", b"3").unwrap();
        drop(folder);
        fs::set_permissions(path.join("a.pem"), fs::Permissions::from_mode(0o640)).unwrap();
        let error = Folder::open(&path, NAMES).err().unwrap().to_string();
        assert!(
            error.contains("a.pem is open to other users of this machine (mode 640): chmod 600"),
            "{error}"
        );
        fs::set_permissions(path.join("a.pem"), fs::Permissions::from_mode(0o600)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let error = Folder::open(&path, NAMES).err().unwrap().to_string();
        assert!(error.contains("(mode 755): chmod 700"), "{error}");
    }

    #[test]
    fn an_empty_folder_is_closed_and_a_foreign_one_left_alone() {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path().join("empty");
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        drop(Folder::open(&path, NAMES).unwrap());
        assert_eq!(mode(&path), 0o700);
        fs::write(path.join("letter.txt"), "x").unwrap();
        let error = Folder::open(&path, NAMES).err().unwrap().to_string();
        assert!(error.contains("contains \"letter.txt\", which does not belong there"), "{error}");
        fs::write(temporary.path().join("file"), "x").unwrap();
        assert!(matches!(Folder::open(&temporary.path().join("file"), NAMES), Err(StoreError::Io { .. })));
    }

    #[test]
    fn one_has_it_at_a_time() {
        let temporary = tempfile::tempdir().unwrap();
        let folder = Folder::open(temporary.path(), NAMES).unwrap();
        let error = Folder::open(temporary.path(), NAMES).err().unwrap().to_string();
        let holder = format!("is in use by process {}", std::process::id());
        assert!(error.contains(&holder), "{error}");
        drop(folder);
        fs::write(temporary.path().join("b.json.new"), "half").unwrap();
        drop(Folder::open(temporary.path(), NAMES).unwrap());
        assert!(!temporary.path().join("b.json.new").exists());
    }
}
