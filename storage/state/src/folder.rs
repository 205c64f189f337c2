//! A store in a folder of this machine.

use std::io;
use std::path::{Path, PathBuf};

use crate::error::StoreError;
use crate::files::{Disk, Files};
use crate::lock::Lock;
use crate::manifest::is_object_name;

/// Storage of a state: immutable objects and one manifest that is replaced atomically.
///
/// The opener of a store has exclusive access until it is dropped.
pub trait Store: Send {
    /// Returns its name for messages: a path, an address.
    fn place(&self) -> String;
    /// Stores an object under a name that [`is_object_name`] accepts, replacing one with that name. It is durable at
    /// the latest when the next [`Store::replace_manifest`] returns.
    ///
    /// # Errors
    ///
    /// It may be partly there; the caller deletes it or puts it again.
    fn put(&mut self, name: &str, bytes: &[u8]) -> Result<(), StoreError>;
    /// Returns the bytes of an object.
    ///
    /// # Errors
    ///
    /// [`StoreError::Missing`] if there is none with that name.
    fn get(&self, name: &str) -> Result<Vec<u8>, StoreError>;
    /// Deletes an object; a missing one is fine. A loss of power may restore it.
    ///
    /// # Errors
    ///
    /// It may still be there.
    fn delete(&mut self, name: &str) -> Result<(), StoreError>;
    /// Lists the names of all objects, unordered.
    ///
    /// # Errors
    ///
    /// They cannot be read.
    fn list(&self) -> Result<Vec<String>, StoreError>;
    /// Returns the manifest, if there is one yet. A manifest that was read survives a loss of power.
    ///
    /// # Errors
    ///
    /// It cannot be read.
    fn manifest(&self) -> Result<Option<Vec<u8>>, StoreError>;
    /// Replaces the manifest atomically, after all objects put before are durable; durable itself on return.
    ///
    /// # Errors
    ///
    /// The previous one is still there, except where it [`is unconfirmed`](StoreError::is_unconfirmed): then it is one
    /// of the two.
    fn replace_manifest(&mut self, bytes: &[u8]) -> Result<(), StoreError>;
    /// Removes the manifest atomically; durable on return.
    ///
    /// # Errors
    ///
    /// As [`Store::replace_manifest`].
    fn remove_manifest(&mut self) -> Result<(), StoreError>;
}

const MANIFEST: &str = "manifest.json";
const NEW_MANIFEST: &str = "manifest.json.new";
const OBJECTS: &str = "objects";
const LOCK: &str = "lock";
/// A file in the folder that the processes writing the outputs of its run lock while they live.
pub const WORKERS_LOCK: &str = "workers.lock";
/// A subfolder for stream data that no checkpoint has yet. It is not touched here.
pub const JOURNALS: &str = "journals";
/// Its name while it is being deleted. It is not touched here, either.
pub const FORMER_JOURNALS: &str = "journals.gone";
/// File systems create this in their root.
const LOST_AND_FOUND: &str = "lost+found";

/// Most objects that wait for the disk together, each with its file open.
const UNSYNCED_AT_MOST: usize = 64;

/// A [`Store`] in a folder: `manifest.json`, `objects/` and `lock`.
pub struct Folder {
    path: PathBuf,
    files: Box<dyn Files>,
    /// Objects whose bytes may not be on the disk yet.
    unsynced: Vec<PathBuf>,
    /// Whether names of objects may not be on the disk yet.
    names_unsynced: bool,
    access: Access,
}

enum Access {
    Alone { _lock: Option<Lock> },
    Looking,
}

impl Folder {
    /// Opens the store in this folder, which is created if it does not exist, and takes the lock.
    ///
    /// # Errors
    ///
    /// [`StoreError::Locked`] where another process has it open, [`StoreError::Foreign`] where the folder holds other
    /// files, or errors of the disk.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let path = std::path::absolute(path).map_err(|error| StoreError::new("found", path, error))?;
        let mut files = Disk::default();
        create_with_parents(&mut files, &path)?;
        let mut folder = Self::prepare(path, Box::new(files))?;
        let lock = Lock::take(&folder.path.join(LOCK), &folder.place())?;
        folder.access = Access::Alone { _lock: Some(lock) };
        folder.settle()?;
        Ok(folder)
    }

    /// Opens the store on other files, without a lock.
    #[cfg(test)]
    pub(crate) fn on(path: &Path, files: Box<dyn Files>) -> Result<Self, StoreError> {
        let mut folder = Self::prepare(path.to_owned(), files)?;
        folder.settle()?;
        Ok(folder)
    }

    /// Opens the store for reading, also while a process has it open: writes nothing, and objects written concurrently
    /// may be gone when read.
    ///
    /// # Errors
    ///
    /// [`StoreError::NoState`] where there is none.
    pub fn look(path: &Path) -> Result<Self, StoreError> {
        let folder = Self {
            path: path.to_owned(),
            files: Box::new(Disk::default()),
            unsynced: Vec::new(),
            names_unsynced: false,
            access: Access::Looking,
        };
        match folder.is_ours() {
            Ok(true) => Ok(folder),
            Ok(false) => Err(StoreError::NoState { place: folder.place() }),
            Err(StoreError::Io { source, .. })
                if matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
            {
                Err(StoreError::NoState { place: folder.place() })
            }
            Err(error) => Err(error),
        }
    }

    /// Checks that the folder is ours or empty, and creates its entries.
    fn prepare(path: PathBuf, files: Box<dyn Files>) -> Result<Self, StoreError> {
        let mut folder = Self {
            path,
            files,
            unsynced: Vec::new(),
            names_unsynced: false,
            access: Access::Alone { _lock: None },
        };
        if !folder.is_ours()? {
            let objects = folder.path.join(OBJECTS);
            let made = folder.files.create_folder(&objects);
            made.map_err(|error| StoreError::new("made", &objects, error))?;
            // Before the lock: this entry identifies our folder.
            folder.sync_folder(&folder.path.clone())?;
        }
        Ok(folder)
    }

    /// Whether there is a state, with or without a manifest. An empty folder has none, which is no error.
    fn is_ours(&self) -> Result<bool, StoreError> {
        let foreign = |found: String| Err(StoreError::Foreign { place: self.place(), found });
        let names = self.names(&self.path)?;
        let has = |name| names.iter().any(|found| found == name);
        if !has(OBJECTS) {
            return match names.into_iter().find(|name| name != LOST_AND_FOUND) {
                Some(found) => foreign(found),
                None => Ok(false),
            };
        }
        let objects = self.names(&self.path.join(OBJECTS))?;
        if !has(MANIFEST) {
            let parts =
                [OBJECTS, LOCK, WORKERS_LOCK, NEW_MANIFEST, JOURNALS, FORMER_JOURNALS, LOST_AND_FOUND];
            if let Some(found) = names.iter().find(|name| !parts.contains(&name.as_str())) {
                return foreign(found.clone());
            }
            // Without a manifest all objects are deleted as leftovers, so there must be no foreign files.
            if let Some(found) = objects.iter().find(|name| !is_object_name(name)) {
                return foreign(format!("{OBJECTS}/{found}"));
            }
        }
        Ok(true)
    }

    /// Makes the unfinished work of an earlier process durable before anything is built on it.
    fn settle(&mut self) -> Result<(), StoreError> {
        self.sync_folder(&self.path.clone())?;
        self.remove(&self.path.join(NEW_MANIFEST))
    }

    fn object(&self, name: &str) -> Result<PathBuf, StoreError> {
        if !is_object_name(name) {
            return Err(StoreError::Name { name: name.to_owned() });
        }
        Ok(self.path.join(OBJECTS).join(name))
    }

    fn may_write(&self) -> Result<(), StoreError> {
        match self.access {
            Access::Alone { .. } => Ok(()),
            Access::Looking => Err(StoreError::OnlyLooking { place: self.place() }),
        }
    }

    fn names(&self, path: &Path) -> Result<Vec<String>, StoreError> {
        self.files.names(path).map_err(|error| StoreError::new("read", path, error))
    }

    fn sync_folder(&mut self, path: &Path) -> Result<(), StoreError> {
        self.files.sync_folder(path).map_err(|error| StoreError::new("synced", path, error))
    }

    fn write(&mut self, path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
        self.files.write(path, bytes).map_err(|error| StoreError::new("written", path, error))
    }

    fn remove(&mut self, path: &Path) -> Result<(), StoreError> {
        match self.files.remove(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(StoreError::new("removed", path, error))
            }
            _ => Ok(()),
        }
    }

    /// Syncs the bytes of the objects.
    fn sync_objects(&mut self) -> Result<(), StoreError> {
        while let Some(path) = self.unsynced.last() {
            // A failed one stays in the list, so that no manifest is written before it is put again or deleted.
            self.files.sync(path).map_err(|error| StoreError::new("synced", path, error))?;
            self.unsynced.pop();
        }
        Ok(())
    }

    /// Writes the manifest under its temporary name.
    fn write_new_manifest(&mut self, new: &Path, bytes: &[u8]) -> Result<(), StoreError> {
        self.write(new, bytes)?;
        self.files.sync(new).map_err(|error| StoreError::new("synced", new, error))
    }
}

/// Creates a folder and its ancestors, each durable.
fn create_with_parents(files: &mut dyn Files, path: &Path) -> Result<(), StoreError> {
    let missing: Vec<_> = path.ancestors().take_while(|path| !path.exists()).collect();
    for path in missing.into_iter().rev() {
        files.create_folder(path).map_err(|error| StoreError::new("made", path, error))?;
        if let Some(parent) = path.parent() {
            files.sync_folder(parent).map_err(|error| StoreError::new("synced", parent, error))?;
        }
    }
    Ok(())
}

impl Store for Folder {
    fn place(&self) -> String {
        self.path.display().to_string()
    }

    fn put(&mut self, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        self.may_write()?;
        let path = self.object(name)?;
        if self.unsynced.len() >= UNSYNCED_AT_MOST {
            self.sync_objects()?;
        }
        self.names_unsynced = true;
        self.unsynced.retain(|other| *other != path);
        // An object that could not be written is in no manifest, so it is not waited for.
        self.write(&path, bytes)?;
        self.unsynced.push(path);
        Ok(())
    }

    fn get(&self, name: &str) -> Result<Vec<u8>, StoreError> {
        let path = self.object(name)?;
        self.files.read(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => StoreError::Missing { place: self.place(), name: name.to_owned() },
            _ => StoreError::new("read", &path, error),
        })
    }

    fn delete(&mut self, name: &str) -> Result<(), StoreError> {
        self.may_write()?;
        let path = self.object(name)?;
        self.remove(&path)?;
        self.unsynced.retain(|other| *other != path);
        Ok(())
    }

    fn list(&self) -> Result<Vec<String>, StoreError> {
        let names = self.names(&self.path.join(OBJECTS))?;
        Ok(names.into_iter().filter(|name| is_object_name(name)).collect())
    }

    fn manifest(&self) -> Result<Option<Vec<u8>>, StoreError> {
        let path = self.path.join(MANIFEST);
        match self.files.read(&path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StoreError::new("read", &path, error)),
        }
    }

    fn replace_manifest(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.may_write()?;
        self.sync_objects()?;
        if self.names_unsynced {
            self.sync_folder(&self.path.join(OBJECTS))?;
            self.names_unsynced = false;
        }
        let (path, new) = (self.path.join(MANIFEST), self.path.join(NEW_MANIFEST));
        let written = self.write_new_manifest(&new, bytes).and_then(|()| {
            self.files.rename(&new, &path).map_err(|error| StoreError::new("replaced", &path, error))
        });
        if let Err(error) = written {
            // It may be the file that fills the disk. If it cannot be removed, the next one overwrites it.
            let _ = self.files.remove(&new);
            return Err(error);
        }
        self.files.sync_folder(&self.path).map_err(|source| StoreError::Unconfirmed { path, source })
    }

    fn remove_manifest(&mut self) -> Result<(), StoreError> {
        self.may_write()?;
        let path = self.path.join(MANIFEST);
        self.remove(&path)?;
        self.files.sync_folder(&self.path).map_err(|source| StoreError::Unconfirmed { path, source })
    }
}
