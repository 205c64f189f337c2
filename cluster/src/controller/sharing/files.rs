//! Files of workflows: the folder of a controller is a cache of them.
use crate::blobs::Beyond;
use crate::clock::instant;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tidemill_identity::Timestamp;
use tidemill_postgres::{Change, Lead, PostgresError};

/// Kind of the rows for complete files.
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
    known: Mutex<SharedFileList>,
    /// Held while a file is stored or removed.
    changing: Mutex<()>,
}

/// Known files in the store.
#[derive(Default)]
struct SharedFileList {
    /// Only the leader adds files.
    digests: BTreeSet<String>,
    /// Time of the last positive answer about a file: it then stays for a while, even if no run needs it yet.
    told: BTreeMap<String, Instant>,
}

impl SharedFileList {
    /// Whether the file is stored. Records a positive answer.
    fn tell(&mut self, digest: &str) -> bool {
        let has = self.digests.contains(digest);
        if has {
            self.told.insert(digest.to_owned(), instant());
        }
        has
    }

    fn add(&mut self, digest: &str) {
        self.digests.insert(digest.to_owned());
        self.tell(digest);
    }

    /// Drops a file, unless there was a positive answer since.
    fn forget(&mut self, digest: &str, age: Duration) -> bool {
        let is_told = self.told.get(digest).is_some_and(|told| told.elapsed() < age);
        if !is_told {
            self.digests.remove(digest);
            self.told.remove(digest);
        }
        !is_told
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SharedFiles {
    pub(in super::super) fn open(lead: &Arc<Lead>) -> Result<Self, PostgresError> {
        let digests = lead.names(WHOLE)?.into_iter().collect();
        let known = Mutex::new(SharedFileList { digests, told: BTreeMap::new() });
        Ok(Self { lead: Arc::clone(lead), known, changing: Mutex::default() })
    }

    /// Removes a file and its parts in one transaction, so that no part is orphaned.
    fn remove(&self, digest: &str) -> Result<(), PostgresError> {
        let kind = parts(digest);
        let names = self.lead.names(&kind)?;
        let parts = names.iter().map(|name| Change::delete(&kind, name));
        let changes: Vec<Change<'_>> = parts.chain([Change::delete(WHOLE, digest)]).collect();
        self.lead.write(&changes)
    }
}

impl Beyond for SharedFiles {
    fn has(&self, digest: &str) -> bool {
        locked(&self.known).tell(digest)
    }

    fn put(&self, digest: &str, path: &Path) -> io::Result<()> {
        let _alone = locked(&self.changing);
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
        // Written last: only complete files are listed.
        let whole = format!("{bytes} {}", Timestamp::now().as_unix());
        self.lead.write(&[Change::put(WHOLE, digest, whole.as_bytes())]).map_err(failed)?;
        locked(&self.known).add(digest);
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
            let _alone = locked(&self.changing);
            if locked(&self.known).forget(&digest, age) {
                self.remove(&digest).map_err(failed)?;
            }
        }
        // Parts of incomplete files, whose writer has ended.
        let _alone = locked(&self.changing);
        let whole: BTreeSet<String> = self.lead.names(WHOLE).map_err(failed)?.into_iter().collect();
        for kind in self.lead.kinds(&parts("")).map_err(failed)? {
            let digest = kind.strip_prefix(&parts("")).unwrap_or_default();
            if !whole.contains(digest) {
                self.lead.clear(&kind).map_err(failed)?;
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_somebody_was_told_of_stays_for_a_while() {
        let mut known = SharedFileList::default();
        let hour = Duration::from_secs(3600);
        assert!(!known.tell("one") && known.forget("one", hour));
        known.digests.insert("one".to_owned());
        assert!(known.tell("one") && !known.forget("one", hour) && known.tell("one"));
        known.add("two");
        assert!(!known.forget("two", hour) && known.forget("two", Duration::ZERO) && !known.tell("two"));
    }
}
