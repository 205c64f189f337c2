//! Shared storage of blobs: the folder is then a cache of it.
use super::{BlobError, Blobs};
use std::collections::BTreeSet;
use std::io::{self, Read};
use std::path::Path;
use std::time::Duration;

/// See the module. What it has is verified when it comes from there.
pub(crate) trait Beyond: Send + Sync {
    /// Whether it has a blob.
    fn has(&self, digest: &str) -> bool;
    /// Keeps the blob in this file; one that it has stays.
    fn put(&self, digest: &str, path: &Path) -> io::Result<()>;
    /// Whether others rely on the copies there, so that a blob that cannot be put there fails.
    fn is_relied_on(&self) -> bool {
        true
    }
    /// The bytes of a blob; none: it has it not.
    fn get(&self, digest: &str) -> io::Result<Option<Box<dyn Read>>>;
    /// A link by which a worker can read a blob there, for some time; none: it cannot.
    fn link(&self, _digest: &str) -> Option<String> {
        None
    }
    /// Removes blobs that are none of these and were put before that time.
    fn sweep(&self, wanted: &BTreeSet<String>, age: Duration) -> io::Result<()>;
}

impl Blobs {
    /// Also keeps blobs in `beyond`, and gets missing blobs from there.
    pub(crate) fn beyond(self, beyond: Box<dyn Beyond>) -> Self {
        Self { beyond: Some(beyond), ..self }
    }

    /// See [`Beyond::link`].
    pub(crate) fn link(&self, digest: &str) -> Option<String> {
        self.beyond.as_ref()?.link(digest)
    }

    /// Keeps a blob of the folder beyond it.
    pub(super) fn share(&self, digest: &str) -> Result<(), BlobError> {
        let Some(beyond) = &self.beyond else { return Ok(()) };
        let path = self.path(digest)?;
        match beyond.put(digest, &path) {
            Err(source) if beyond.is_relied_on() => Err(BlobError::System { path, source }),
            Err(error) => {
                tracing::warn!("{digest} is stored only here: {error}");
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// Has a blob in the folder that is only beyond it.
    pub(super) fn have_here(&self, digest: &str) -> Result<(), BlobError> {
        let Some(beyond) = &self.beyond else { return Ok(()) };
        let path = self.path(digest)?;
        if path.is_file() {
            return Ok(());
        }
        match beyond.get(digest).map_err(|source| BlobError::System { path, source })? {
            Some(from) => self.put_here(digest, from),
            None => Ok(()),
        }
    }
}
