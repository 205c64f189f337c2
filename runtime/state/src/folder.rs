//! Files of a state: what is durable when, and who has the folder open.
use crate::manifest::{FORMAT, Manifest, ObjectReference};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_128;

const MANIFEST: &str = "manifest.json";
const NEXT_MANIFEST: &str = "manifest.json.next";
const OBJECTS: &str = "objects";
const LOCK: &str = "lock";

/// What is wrong with a state. The texts say what to do.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// A file cannot be read or written.
    #[error("`{path}` cannot be {what}: {error}")]
    File {
        /// The file.
        path: PathBuf,
        /// `read` or `written`.
        what: &'static str,
        /// Why.
        error: io::Error,
    },
    /// Another process has it.
    #[error("the state `{path}` is in use by {holder}: wait for its end, or choose another folder")]
    InUse {
        /// The folder.
        path: PathBuf,
        /// Who has it.
        holder: String,
    },
    /// It is of another version.
    #[error(
        "the state `{path}` has format {found}, and this program reads format {FORMAT}: continue it with version {written_by} \
         of tidemill, or begin anew with `tidemill state reset {path}`"
    )]
    Format {
        /// The folder.
        path: PathBuf,
        /// Its format.
        found: u64,
        /// The program that wrote it.
        written_by: String,
    },
    /// The folder has something else in it.
    #[error(
        "`{path}` is no state: there is `{found}` in it; name an empty folder, or one that is not there yet"
    )]
    Foreign {
        /// The folder.
        path: PathBuf,
        /// What is there.
        found: String,
    },
    /// There is none.
    #[error("there is no state in `{path}`: `tidemill run WORKFLOW --state {path}` begins one")]
    Missing {
        /// The folder.
        path: PathBuf,
    },
    /// A file is not what was written.
    #[error(
        "`{path}` is damaged ({what}): restore it from a copy, or begin anew with `tidemill state reset`"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// How.
        what: String,
    },
}

/// Who has a state open.
#[derive(Debug, Serialize, Deserialize)]
struct Holder {
    process: u32,
    host: String,
    since: String,
}

/// The folder; see the crate.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    /// Keeps the lock; none: only to look at.
    _lock: Option<File>,
}

impl Folder {
    /// Opens the folder, which is made where it is missing, for this process alone.
    pub(crate) fn open(path: &Path, now: &str) -> Result<Self, StateError> {
        let written = |path: &Path| failed(path, "written");
        match std::fs::read_dir(path) {
            Ok(entries) => {
                let known = [MANIFEST, NEXT_MANIFEST, OBJECTS, LOCK];
                let names = entries.filter_map(Result::ok).map(|entry| entry.file_name());
                let mut names = names.map(|name| name.to_string_lossy().into_owned());
                if let Some(found) = names.find(|name| !known.contains(&name.as_str())) {
                    return Err(StateError::Foreign { path: path.to_owned(), found });
                }
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(failed(path, "read")(error)),
        }
        let objects = path.join(OBJECTS);
        std::fs::create_dir_all(&objects).map_err(written(&objects))?;
        let file = path.join(LOCK);
        let mut lock = OpenOptions::new();
        let lock = lock.read(true).write(true).create(true).truncate(false).open(&file);
        let mut lock = lock.map_err(written(&file))?;
        match lock.try_lock() {
            Err(TryLockError::WouldBlock) => {
                return Err(StateError::InUse { path: path.to_owned(), holder: holder(&mut lock) });
            }
            // Some network file systems know no locks; then there is only care.
            Ok(()) | Err(TryLockError::Error(_)) => {}
        }
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let (process, host) = (std::process::id(), host.trim().to_owned());
        let text =
            serde_json::to_string(&Holder { process, host, since: now.to_owned() }).unwrap_or_default();
        lock.set_len(0).and_then(|()| lock.seek(SeekFrom::Start(0))).map_err(written(&file))?;
        lock.write_all(text.as_bytes()).map_err(written(&file))?;
        let folder = Self { path: path.to_owned(), _lock: Some(lock) };
        if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            sync_folder(parent)?;
        }
        sync_folder(path)?;
        Ok(folder)
    }

    /// A folder to look at, whoever has it.
    pub(crate) fn look(path: &Path) -> Self {
        Self { path: path.to_owned(), _lock: None }
    }

    /// The manifest, where there is one.
    pub(crate) fn manifest(&self) -> Result<Option<Manifest>, StateError> {
        let path = self.path.join(MANIFEST);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(&path, "read")(error)),
        };
        let damaged =
            |error: serde_json::Error| StateError::Damaged { path: path.clone(), what: error.to_string() };
        let value: serde_json::Value = serde_json::from_slice(&bytes).map_err(damaged)?;
        let found = value["format"].as_u64().unwrap_or(0);
        if found != u64::from(FORMAT) {
            let written_by = value["written_by"].as_str().unwrap_or("unknown").to_owned();
            return Err(StateError::Format { path: self.path.clone(), found, written_by });
        }
        serde_json::from_value(value).map(Some).map_err(damaged)
    }

    /// Writes an object, durable but for its name: see [`Folder::replace_manifest`].
    pub(crate) fn put(&self, name: &str, bytes: &[u8]) -> Result<(), StateError> {
        let path = self.path.join(OBJECTS).join(name);
        write_synced(&path, bytes)
    }

    /// Makes the names of all objects durable, then replaces the manifest.
    pub(crate) fn replace_manifest(&self, manifest: &Manifest) -> Result<(), StateError> {
        sync_folder(&self.path.join(OBJECTS))?;
        let (next, path) = (self.path.join(NEXT_MANIFEST), self.path.join(MANIFEST));
        let text = serde_json::to_vec_pretty(manifest)
            .map_err(io::Error::other)
            .map_err(failed(&next, "written"))?;
        write_synced(&next, &text)?;
        std::fs::rename(&next, &path).map_err(failed(&path, "written"))?;
        sync_folder(&self.path)
    }

    /// An object as it was written.
    pub(crate) fn object(&self, reference: &ObjectReference) -> Result<Vec<u8>, StateError> {
        let path = self.path.join(OBJECTS).join(&reference.name);
        let bytes = std::fs::read(&path).map_err(failed(&path, "read"))?;
        let damaged = |what: String| StateError::Damaged { path: path.clone(), what };
        if bytes.len() as u64 != reference.bytes {
            return Err(damaged(format!("{} bytes instead of {}", bytes.len(), reference.bytes)));
        }
        match checksum(&bytes) == reference.checksum {
            true => Ok(bytes),
            false => Err(damaged("its checksum is another one".to_owned())),
        }
    }

    /// Names of all objects.
    pub(crate) fn names(&self) -> Result<Vec<String>, StateError> {
        let path = self.path.join(OBJECTS);
        let entries = std::fs::read_dir(&path).map_err(failed(&path, "read"))?;
        Ok(entries
            .filter_map(Result::ok)
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect())
    }

    /// Removes an object, if it is there.
    pub(crate) fn remove(&self, name: &str) -> Result<(), StateError> {
        remove(&self.path.join(OBJECTS).join(name))
    }

    /// Removes the manifest: there is no checkpoint any more.
    pub(crate) fn forget(&self) -> Result<(), StateError> {
        remove(&self.path.join(MANIFEST))?;
        remove(&self.path.join(NEXT_MANIFEST))?;
        sync_folder(&self.path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// The checksum of an object.
pub(crate) fn checksum(bytes: &[u8]) -> String {
    format!("{:032x}", xxh3_128(bytes))
}

fn failed(path: &Path, what: &'static str) -> impl Fn(io::Error) -> StateError + use<> {
    let path = path.to_owned();
    move |error| StateError::File { path: path.clone(), what, error }
}

fn write_synced(path: &Path, bytes: &[u8]) -> Result<(), StateError> {
    let written = File::create(path).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    written.map_err(failed(path, "written"))
}

fn sync_folder(path: &Path) -> Result<(), StateError> {
    File::open(path).and_then(|folder| folder.sync_all()).map_err(failed(path, "written"))
}

fn remove(path: &Path) -> Result<(), StateError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(failed(path, "written")(error)),
        _ => Ok(()),
    }
}

fn holder(lock: &mut File) -> String {
    let mut text = String::new();
    let read = lock.read_to_string(&mut text).ok();
    match read.and_then(|_| serde_json::from_str::<Holder>(&text).ok()) {
        Some(Holder { process, host, since }) => {
            let command = tidemill_machine::Process::of(process).command();
            let command = if command.is_empty() { String::new() } else { format!(" ({command})") };
            format!("process {process}{command} on {host} since {since}")
        }
        None => "another process".to_owned(),
    }
}
