//! Files of workflows: the folder of a controller is a cache of them.
use crate::blobs::Beyond;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tidemill_identity::Timestamp;
use tidemill_postgres::{Change, Lead, PostgresError};

/// Of the rows that say that a file is whole.
const WHOLE: &str = "blob";
/// Bytes of a row.
const PART: usize = 1 << 20;

fn parts(digest: &str) -> String {
    format!("{WHOLE}:{digest}")
}

fn failed(error: PostgresError) -> io::Error {
    io::Error::other(error)
}

/// See the module.
pub(in super::super) struct SharedFiles {
    lead: Arc<Lead>,
    /// Only the one that leads adds any.
    known: Mutex<BTreeSet<String>>,
}

impl SharedFiles {
    pub(in super::super) fn open(lead: &Arc<Lead>) -> Result<Self, PostgresError> {
        let known = lead.names(WHOLE)?.into_iter().collect();
        Ok(Self { lead: Arc::clone(lead), known: Mutex::new(known) })
    }

    fn known(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Beyond for SharedFiles {
    fn has(&self, digest: &str) -> bool {
        self.known().contains(digest)
    }

    fn put(&self, digest: &str, path: &Path) -> io::Result<()> {
        if self.has(digest) {
            return Ok(());
        }
        let (kind, mut file, mut bytes) = (parts(digest), File::open(path)?, 0);
        for number in 0.. {
            let mut part = Vec::with_capacity(PART);
            (&mut file).take(PART as u64).read_to_end(&mut part)?;
            if part.is_empty() {
                break;
            }
            bytes += part.len();
            self.lead.write(&[Change::put(&kind, &format!("{number:08}"), &part)]).map_err(failed)?;
        }
        // Whoever has less than all of it has nothing.
        let whole = format!("{bytes} {}", Timestamp::now().as_unix());
        self.lead.write(&[Change::put(WHOLE, digest, whole.as_bytes())]).map_err(failed)?;
        self.known().insert(digest.to_owned());
        Ok(())
    }

    fn get(&self, digest: &str) -> io::Result<Option<Box<dyn Read>>> {
        if !self.has(digest) {
            return Ok(None);
        }
        let (lead, kind) = (Arc::clone(&self.lead), parts(digest));
        let names = lead.names(&kind).map_err(failed)?;
        Ok(Some(Box::new(Parts { lead, kind, names: names.into_iter(), part: io::Cursor::default() })))
    }

    fn sweep(&self, wanted: &BTreeSet<String>, age: Duration) -> io::Result<()> {
        let now = Timestamp::now().as_unix();
        for (digest, said) in self.lead.all(WHOLE).map_err(failed)? {
            let since = String::from_utf8_lossy(&said);
            let since = since.split_once(' ').and_then(|(_, since)| since.parse::<u64>().ok()).unwrap_or(0);
            if wanted.contains(&digest) || now.saturating_sub(since) < age.as_secs() {
                continue;
            }
            self.known().remove(&digest);
            self.lead.write(&[Change::delete(WHOLE, &digest)]).map_err(failed)?;
            self.lead.clear(&parts(&digest)).map_err(failed)?;
        }
        Ok(())
    }
}

/// A file, read part by part.
struct Parts {
    lead: Arc<Lead>,
    kind: String,
    names: std::vec::IntoIter<String>,
    part: io::Cursor<Vec<u8>>,
}

impl Read for Parts {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            let count = self.part.read(into)?;
            if count > 0 || into.is_empty() {
                return Ok(count);
            }
            let Some(name) = self.names.next() else { return Ok(0) };
            let part = self.lead.get(&self.kind, &name).map_err(failed)?;
            self.part = io::Cursor::new(part.ok_or(io::ErrorKind::UnexpectedEof)?);
        }
    }
}
