//! Files by what is in them: fetched once, verified, and kept within a limit.
mod arriving;
mod beyond;
mod record;

use crate::api::{Bundle, BundleFile};
use arriving::Arrivals;
pub(crate) use beyond::Beyond;
pub(crate) use record::RECORD as LAID_OUT;
use record::{RECORD, Record, Stamp, TICK};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use tidemill_identity::Timestamp;

/// The reason why a file is not kept or given.
#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    /// The system refuses.
    #[error("{path}: {source}")]
    System {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is not what its name says.
    #[error("the bytes do not match {wanted}: their digest is {found}")]
    Different {
        /// The digest that was wanted.
        wanted: String,
        /// Digest of the bytes.
        found: String,
    },
    /// A path that would leave its folder.
    #[error("`{0}` is not a path for a file of a bundle: write a relative path without `..`")]
    Path(String),
    /// A workflow that was not sent.
    #[error("the workflow `{0}` is not one of the sent files: name it by the path of one of them")]
    Workflow(String),
    /// No digest.
    #[error("`{0}` is not a digest: write 64 hexadecimal digits")]
    Name(String),
}

impl BlobError {
    /// Whether a source sent nothing in time.
    pub(crate) fn is_slow(&self) -> bool {
        matches!(self, Self::System { source, .. } if source.kind() == io::ErrorKind::TimedOut)
    }
}

/// The digest of these bytes.
pub fn digest(bytes: &[u8]) -> String {
    tidemill_spec::digest::sha256(bytes)
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(64), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // a String takes everything
        text
    })
}

/// The digest of a file, and its size.
///
/// # Errors
/// It cannot be read.
pub fn digest_of_file(path: &Path) -> Result<(String, u64), BlobError> {
    let failed = |source| BlobError::System { path: path.to_owned(), source };
    let mut file = File::open(path).map_err(failed)?;
    let (mut hasher, mut bytes, mut buffer) = (Sha256::new(), 0, vec![0; 1 << 16]);
    loop {
        match file.read(&mut buffer).map_err(failed)? {
            0 => return Ok((hexadecimal(&hasher.finalize()), bytes)),
            read => {
                hasher.update(&buffer[..read]);
                bytes += read as u64;
            }
        }
    }
}

/// A folder of blobs. Above the limit of bytes, blobs without a user are removed, the least recently used first; blobs in use stay, even
/// where they alone exceed the limit.
pub struct Blobs {
    folder: PathBuf,
    most: u64,
    /// Numbers files that are being written.
    written: AtomicU64,
    kept: Mutex<Kept>,
    /// Shared storage, where others find them, too.
    beyond: Option<Box<dyn Beyond>>,
    arrivals: Arrivals,
}

/// Contents of the folder.
#[derive(Default)]
struct Kept {
    all: BTreeMap<String, Entry>,
    bytes: u64,
    /// Counts uses.
    uses: u64,
    needed: BTreeSet<String>,
}

struct Entry {
    bytes: u64,
    used: u64,
}

impl Kept {
    fn add(&mut self, digest: &str, bytes: u64) {
        self.uses += 1;
        let entry = Entry { bytes, used: self.uses };
        self.bytes += bytes;
        if let Some(before) = self.all.insert(digest.to_owned(), entry) {
            self.bytes -= before.bytes;
        }
    }

    fn remove(&mut self, digest: &str) {
        if let Some(entry) = self.all.remove(digest) {
            self.bytes -= entry.bytes;
        }
    }

    fn use_it(&mut self, digest: &str) {
        self.uses += 1;
        if let Some(entry) = self.all.get_mut(digest) {
            entry.used = self.uses;
        }
    }
}

impl Blobs {
    /// Makes the folder if it is not there, and removes what a process before left half written. It may have any number of bytes.
    ///
    /// # Errors
    /// The system refuses.
    pub fn open(folder: &Path) -> Result<Self, BlobError> {
        Self::with_limit(folder, u64::MAX)
    }

    /// Opens the folder with a limit of bytes. Files that are being fetched count only when they are complete.
    ///
    /// # Errors
    /// The system refuses.
    pub fn with_limit(folder: &Path, most: u64) -> Result<Self, BlobError> {
        let failed = |source| BlobError::System { path: folder.to_owned(), source };
        fs::create_dir_all(folder).map_err(failed)?;
        let mut found = Vec::new();
        for entry in fs::read_dir(folder).map_err(failed)?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if entry.path().extension().is_some_and(|extension| extension == "part") {
                fs::remove_file(entry.path()).map_err(failed)?;
            } else if is_digest(&name)
                && let Ok(metadata) = entry.metadata()
            {
                found.push((metadata.modified().ok(), name, metadata.len()));
            }
        }
        found.sort();
        let mut kept = Kept::default();
        found.iter().for_each(|(_, name, bytes)| kept.add(name, *bytes));
        let (written, kept) = (AtomicU64::new(0), Mutex::new(kept));
        let arrivals = Arrivals::default();
        Ok(Self { folder: folder.to_owned(), most, written, kept, beyond: None, arrivals })
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says which blobs are needed; what is not may go.
    pub fn need(&self, digests: BTreeSet<String>) {
        let mut kept = self.kept();
        if kept.needed != digests {
            self.drop_parts(&digests);
            kept.needed = digests;
            self.make_room(&mut kept, 0);
        }
    }

    /// Removes unused blobs until `more` bytes fit.
    fn make_room(&self, kept: &mut Kept, more: u64) {
        if kept.bytes.saturating_add(more) <= self.most {
            return;
        }
        let free = kept.all.iter().filter(|(digest, _)| !kept.needed.contains(*digest));
        let mut free: Vec<(u64, String)> = free.map(|(digest, of)| (of.used, digest.clone())).collect();
        free.sort();
        for (_, digest) in free {
            if kept.bytes.saturating_add(more) <= self.most {
                return;
            }
            match fs::remove_file(self.folder.join(&digest)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!("cannot remove {digest}: {error}");
                }
                _ => kept.remove(&digest),
            }
        }
    }

    /// Removes blobs not in `wanted` and not touched for `age`; returns their number.
    pub fn sweep(&self, wanted: &BTreeSet<String>, age: Duration) -> usize {
        let mut kept = self.kept();
        let free: Vec<String> = kept.all.keys().filter(|digest| !wanted.contains(*digest)).cloned().collect();
        let mut removed = 0;
        for digest in free {
            let path = self.folder.join(&digest);
            let is_old = fs::metadata(&path)
                .and_then(|metadata| metadata.modified())
                .is_ok_and(|modified| modified.elapsed().is_ok_and(|passed| passed >= age));
            if is_old && fs::remove_file(&path).is_ok() {
                kept.remove(&digest);
                removed += 1;
            }
        }
        // That may take as long as a network does.
        drop(kept);
        if let Some(Err(error)) = self.beyond.as_ref().map(|beyond| beyond.sweep(wanted, age)) {
            tracing::warn!("cannot remove files that no run needs: {error}");
        }
        removed
    }

    /// Returns at most `most` digests, the most recently used first.
    pub fn held(&self, most: usize) -> Vec<String> {
        let kept = self.kept();
        let mut all: Vec<(u64, &String)> = kept.all.iter().map(|(digest, of)| (of.used, digest)).collect();
        all.sort_by(|a, b| b.cmp(a));
        all.into_iter().take(most).map(|(_, digest)| digest.clone()).collect()
    }

    /// Forgets blobs that were removed from outside, and makes the folder again if it is gone; returns their number. Otherwise others would
    /// request them in vain.
    pub fn forget_missing(&self) -> usize {
        let mut kept = self.kept();
        let there: BTreeSet<String> = match fs::read_dir(&self.folder) {
            Ok(entries) => {
                entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if let Err(error) = fs::create_dir_all(&self.folder) {
                    tracing::warn!("cannot create {} again: {error}", self.folder.display());
                }
                BTreeSet::new()
            }
            // An unreadable file may exist.
            Err(_) => return 0,
        };
        let missing: Vec<String> =
            kept.all.keys().filter(|digest| !there.contains(*digest)).cloned().collect();
        missing.iter().for_each(|digest| kept.remove(digest));
        missing.len()
    }

    /// Bytes of all blobs.
    pub fn bytes(&self) -> u64 {
        self.kept().bytes
    }

    fn path(&self, digest: &str) -> Result<PathBuf, BlobError> {
        match is_digest(digest) {
            true => Ok(self.folder.join(digest)),
            false => Err(BlobError::Name(digest.chars().take(80).collect())),
        }
    }

    /// Whether the blob is there. The caller then does not send it, so this counts as a touch, and a sweep leaves it for a while.
    pub fn has(&self, digest: &str) -> bool {
        // Locked against a concurrent sweep.
        let mut kept = self.kept();
        let path = self.path(digest).ok().filter(|path| path.is_file());
        match &path {
            Some(path) => {
                touch(path);
                kept.use_it(digest);
            }
            None => kept.remove(digest), // somebody else removed it
        }
        drop(kept);
        let is_there = path.is_some();
        match &self.beyond {
            Some(beyond) if beyond.is_relied_on() => beyond.has(digest),
            Some(beyond) => beyond.has(digest) || is_there,
            None => is_there,
        }
    }

    /// Keeps the bytes that `from` gives, if they are those of the digest.
    ///
    /// # Errors
    /// They are not, or the system refuses. Nothing is kept then.
    pub fn put(&self, wanted: &str, from: impl Read) -> Result<(), BlobError> {
        self.put_here(wanted, from)?;
        self.share(wanted)
    }

    fn put_here(&self, wanted: &str, mut from: impl Read) -> Result<(), BlobError> {
        let part = self
            .path(wanted)?
            .with_extension(format!("{}.part", self.written.fetch_add(1, Ordering::Relaxed)));
        let failed = |source| BlobError::System { path: part.clone(), source };
        let written = (|| {
            let mut file = File::create(&part).map_err(failed)?;
            let (found, bytes) = copy(&mut from, &mut file).map_err(failed)?;
            if found != wanted {
                return Err(BlobError::Different { wanted: wanted.to_owned(), found });
            }
            file.sync_all().map_err(failed)?;
            self.adopt(&part, wanted, bytes)
        })();
        if written.is_err() {
            let _ = fs::remove_file(&part); // the error is told
        }
        written
    }

    /// Gives a complete file the name of its digest.
    fn adopt(&self, part: &Path, digest: &str, bytes: u64) -> Result<(), BlobError> {
        let path = self.path(digest)?;
        let mut kept = self.kept();
        kept.remove(digest);
        self.make_room(&mut kept, bytes);
        fs::rename(part, &path).map_err(|source| BlobError::System { path: part.to_owned(), source })?;
        kept.add(digest, bytes);
        drop(kept);
        self.sync_names()
    }

    /// Waits until the names are on the disk: the sender then learns that the blobs are kept.
    fn sync_names(&self) -> Result<(), BlobError> {
        let synced = File::open(&self.folder).and_then(|folder| folder.sync_all());
        synced.map_err(|source| BlobError::System { path: self.folder.clone(), source })
    }

    /// Keeps many small files at once, all or none: the disk is waited for once.
    ///
    /// # Errors
    /// One of them is not what its digest says, or the system refuses.
    pub fn put_all(&self, files: &[(String, &[u8])]) -> Result<(), BlobError> {
        let mut parts: Vec<(PathBuf, PathBuf)> = Vec::new();
        let written = (|| {
            for (wanted, bytes) in files {
                let path = self.path(wanted)?;
                let found = digest(bytes);
                if found != *wanted {
                    return Err(BlobError::Different { wanted: wanted.clone(), found });
                }
                let part =
                    path.with_extension(format!("{}.part", self.written.fetch_add(1, Ordering::Relaxed)));
                parts.push((part.clone(), path));
                fs::write(&part, bytes).map_err(|source| BlobError::System { path: part, source })?;
            }
            let failed = |source: io::Error| BlobError::System { path: self.folder.clone(), source };
            let folder = File::open(&self.folder).map_err(failed)?;
            rustix::fs::syncfs(&folder).map_err(|error| failed(error.into()))?;
            let mut kept = self.kept();
            files.iter().for_each(|(wanted, _)| kept.remove(wanted));
            self.make_room(&mut kept, files.iter().map(|(_, bytes)| bytes.len() as u64).sum());
            for ((wanted, bytes), (part, path)) in files.iter().zip(&parts) {
                fs::rename(part, path).map_err(|source| BlobError::System { path: path.clone(), source })?;
                kept.add(wanted, bytes.len() as u64);
            }
            drop(kept);
            self.sync_names()
        })();
        if written.is_err() {
            for (part, _) in &parts {
                let _ = fs::remove_file(part); // the error is told
            }
        }
        written?;
        files.iter().try_for_each(|(wanted, _)| self.share(wanted))
    }

    /// A blob, to be read from `offset` on, and its size; none: it is not there.
    ///
    /// # Errors
    /// The system refuses.
    pub fn open_at(&self, digest: &str, offset: u64) -> Result<Option<(File, u64)>, BlobError> {
        self.have_here(digest)?;
        let path = self.path(digest)?;
        let opened = File::open(&path).and_then(|mut file| {
            file.seek(SeekFrom::Start(offset))?;
            let size = file.metadata()?.len();
            Ok((file, size))
        });
        match opened {
            Ok(opened) => Ok(Some(opened)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(BlobError::System { path, source }),
        }
    }

    /// Lays out copies of the files of a bundle in a folder. A file that was laid out before and has not changed since stays; any other is
    /// compared by its digest, and replaced where it differs.
    ///
    /// # Errors
    /// A path would leave the folder, a blob is missing or damaged, or the system refuses.
    pub fn lay_out(&self, bundle: &Bundle, folder: &Path) -> Result<(), BlobError> {
        let places: Vec<PathBuf> =
            bundle.files.iter().map(|file| inside(folder, &file.path)).collect::<Result<_, _>>()?;
        fs::create_dir_all(folder).map_err(|source| BlobError::System { path: folder.to_owned(), source })?;
        let mut record = Record::read(folder);
        let mut laid = Vec::new();
        for (BundleFile { path, digest, bytes }, to) in bundle.files.iter().zip(&places) {
            if record.knows(path, digest, to) {
                continue;
            }
            let before = Stamp::of(to);
            let is_same = before.is_some_and(|stamp| stamp.bytes == *bytes)
                && digest_of_file(to).is_ok_and(|(found, _)| found == *digest);
            let stamp = match is_same {
                true => before,
                false => {
                    self.place(digest, to)?;
                    Stamp::of(to)
                }
            };
            laid.push((path, digest, to, stamp));
        }
        if laid.is_empty() {
            return Ok(());
        }
        // The system's clock for files stands still for some milliseconds: a later change has another time from here on.
        std::thread::sleep(TICK);
        for (path, digest, to, stamp) in laid {
            record.keep(path, digest, stamp.filter(|stamp| Stamp::of(to).as_ref() == Some(stamp)));
        }
        record.retain(&bundle.files);
        record.write(folder)
    }

    /// A copy of a blob, verified: who writes into it must not change what is kept.
    fn place(&self, digest: &str, to: &Path) -> Result<(), BlobError> {
        let failed = |source| BlobError::System { path: to.to_owned(), source };
        self.have_here(digest)?;
        let blob = self.path(digest)?;
        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent).map_err(failed)?;
        }
        let name = to.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let number = self.written.fetch_add(1, Ordering::Relaxed);
        let part = to.with_file_name(format!(".{name}.{number}.part"));
        let placed = (|| {
            let mut from =
                File::open(&blob).map_err(|source| BlobError::System { path: blob.clone(), source })?;
            let mut file = File::create(&part).map_err(failed)?;
            let (found, _) = copy(&mut from, &mut file).map_err(failed)?;
            if found != digest {
                // It is damaged: the next one fetches it again.
                let _ = fs::remove_file(&blob);
                self.kept().remove(digest);
                return Err(BlobError::Different { wanted: digest.to_owned(), found });
            }
            fs::rename(&part, to).map_err(failed)
        })();
        if placed.is_err() {
            let _ = fs::remove_file(&part); // the error is told
        }
        placed
    }
}

/// Says of a file that it was touched just now.
fn touch(path: &Path) {
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(Timestamp::now().as_unix());
    if let Err(error) = File::open(path).and_then(|file| file.set_modified(now)) {
        tracing::debug!("cannot update the time of {}: {error}", path.display());
    }
}

/// Copies all; the digest and the number of bytes.
fn copy(from: &mut impl Read, to: &mut File) -> io::Result<(String, u64)> {
    let (mut hasher, mut bytes, mut buffer) = (Sha256::new(), 0, vec![0; 1 << 16]);
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok((hexadecimal(&hasher.finalize()), bytes)),
            Ok(read) => {
                hasher.update(&buffer[..read]);
                to.write_all(&buffer[..read])?;
                bytes += read as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

pub(crate) fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The workflow of a bundle that is laid out in a folder: one of its files.
pub(crate) fn workflow_in(folder: &Path, bundle: &Bundle) -> Result<PathBuf, BlobError> {
    match bundle.files.iter().any(|file| file.path == bundle.workflow) {
        true => inside(folder, &bundle.workflow),
        false => Err(BlobError::Workflow(bundle.workflow.chars().take(200).collect())),
    }
}

/// A path within a folder.
pub(crate) fn inside(folder: &Path, path: &str) -> Result<PathBuf, BlobError> {
    let relative = Path::new(path);
    let is_plain = relative.components().all(|part| matches!(part, Component::Normal(_)));
    match is_plain && !path.is_empty() && path != RECORD {
        true => Ok(folder.join(relative)),
        false => Err(BlobError::Path(path.chars().take(200).collect())),
    }
}

#[cfg(test)]
mod tests;
