//! Files of workflows in an object store: workers have them from there, by links that the controller signs.
use crate::blobs::{Beyond, is_digest};
use std::collections::BTreeSet;
use std::io::{self, Read};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tidemill_bucket::{Files, StoredFile};
use tidemill_identity::Timestamp;

/// How long a link can be used: for a file of some GiB over a slow way, and not for ever.
const LINK: Duration = Duration::from_secs(3600);

/// See the module.
pub(super) struct ObjectStore {
    files: Arc<Files>,
    /// Only the controller that leads adds any.
    known: Mutex<BTreeSet<String>>,
}

impl ObjectStore {
    /// With what lies there.
    pub(super) fn open(files: &Arc<Files>) -> io::Result<Self> {
        let known = ours(files)?.into_iter().map(|file| file.name).collect();
        Ok(Self { files: Arc::clone(files), known: Mutex::new(known) })
    }

    fn known(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is called by a digest: other files may lie beside, and are left alone.
fn ours(files: &Files) -> io::Result<Vec<StoredFile>> {
    let mut found = files.list()?;
    found.retain(|file| is_digest(&file.name));
    Ok(found)
}

impl Beyond for ObjectStore {
    fn has(&self, digest: &str) -> bool {
        self.known().contains(digest)
    }

    fn put(&self, digest: &str, path: &Path) -> io::Result<()> {
        if !self.has(digest) {
            self.files.put(digest, path)?;
            self.known().insert(digest.to_owned());
        }
        Ok(())
    }

    fn get(&self, digest: &str) -> io::Result<Option<Box<dyn Read>>> {
        let found = self.files.get(digest)?;
        if found.is_none() {
            // Somebody else has removed it.
            self.known().remove(digest);
        }
        Ok(found.map(|file| -> Box<dyn Read> { file }))
    }

    fn link(&self, digest: &str) -> Option<String> {
        if !self.has(digest) {
            return None;
        }
        let link = self.files.link(digest, LINK);
        link.inspect_err(|error| tracing::warn!("workers have files from the controller: {error}")).ok()
    }

    fn sweep(&self, wanted: &BTreeSet<String>, age: Duration) -> io::Result<()> {
        let now = Timestamp::now().as_unix();
        for file in ours(&self.files)? {
            if !wanted.contains(&file.name) && now.saturating_sub(file.since) >= age.as_secs() {
                self.known().remove(&file.name);
                self.files.remove(&file.name)?;
            }
        }
        Ok(())
    }
}
