//! Record of the files laid out in a folder: the digest of each, and the properties by which a later change shows.
use super::BlobError;
use crate::api::BundleFile;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

/// Its file in the folder.
pub(crate) const RECORD: &str = ".laid-out.json";
const NEXT: &str = ".laid-out.json.next";
/// Two changes of a file this far apart have different times on every system that is in use.
pub(super) const TICK: Duration = Duration::from_millis(20);

/// Properties of a file from the system. A program that changes the file cannot set the time of its last change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Stamp {
    pub(super) bytes: u64,
    inode: u64,
    changed: (i64, i64),
    modified: (i64, i64),
}

impl Stamp {
    /// Reads the properties of an existing file; a link to a file is none.
    pub(super) fn of(path: &Path) -> Option<Self> {
        let found = fs::symlink_metadata(path).ok().filter(fs::Metadata::is_file)?;
        Some(Self {
            bytes: found.len(),
            inode: found.ino(),
            changed: (found.ctime(), found.ctime_nsec()),
            modified: (found.mtime(), found.mtime_nsec()),
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Laid {
    digest: String,
    stamp: Stamp,
}

/// See the module. One that is missing or damaged knows nothing.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Record {
    files: BTreeMap<String, Laid>,
}

impl Record {
    pub(super) fn read(folder: &Path) -> Self {
        let bytes = fs::read(folder.join(RECORD)).ok();
        bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
    }

    /// Whether the file is the one that was laid out with this digest.
    pub(super) fn knows(&self, path: &str, digest: &str, file: &Path) -> bool {
        let laid = self.files.get(path).filter(|laid| laid.digest == digest);
        laid.is_some_and(|laid| Stamp::of(file) == Some(laid.stamp))
    }

    /// Keeps what a file is; none: it was changed meanwhile.
    pub(super) fn keep(&mut self, path: &str, digest: &str, stamp: Option<Stamp>) {
        match stamp {
            Some(stamp) => {
                self.files.insert(path.to_owned(), Laid { digest: digest.to_owned(), stamp });
            }
            None => drop(self.files.remove(path)),
        }
    }

    /// Forgets what is none of these files.
    pub(super) fn retain(&mut self, files: &[BundleFile]) {
        let paths: BTreeSet<&str> = files.iter().map(|file| file.path.as_str()).collect();
        self.files.retain(|path, _| paths.contains(path.as_str()));
    }

    pub(super) fn write(&self, folder: &Path) -> Result<(), BlobError> {
        let (path, next) = (folder.join(RECORD), folder.join(NEXT));
        let written = File::create(&next).and_then(|mut file| {
            file.write_all(&serde_json::to_vec(self)?)?;
            fs::rename(&next, &path)
        });
        written.map_err(|source| BlobError::System { path, source })
    }
}
