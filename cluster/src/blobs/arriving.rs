//! Blobs that are arriving: others read the first part while the rest comes, and the part stays when a source fails.
//!
//! The bytes are in the file `DIGEST.arriving` of the folder, also after a restart of the process. Nothing else uses them before the
//! digest of all of them is right.
use super::{BlobError, Blobs, hexadecimal};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How files of such blobs end.
const EXTENSION: &str = "arriving";
/// Time without a byte after which readers give up; other workers do so earlier.
const SILENCE: Duration = Duration::from_secs(30);
/// Bytes that are taken at once.
const PART: usize = 64 << 10;

/// Blobs that are arriving now, by digest.
#[derive(Default)]
pub(super) struct Arrivals(Mutex<BTreeMap<String, Arc<Arrival>>>);

/// The bytes of a blob, and its size.
pub(crate) type Opened = (Box<dyn Read + Send>, u64);

impl Arrivals {
    fn all(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Arrival>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A blob, for its readers while it comes.
struct Arrival {
    file: File,
    size: u64,
    state: Mutex<ArrivalState>,
    more: Condvar,
}

#[derive(Default)]
struct ArrivalState {
    bytes: u64,
    from: Option<String>,
    /// A source sends it now.
    is_sent: bool,
    has_failed: bool,
}

impl Arrival {
    fn state(&self) -> MutexGuard<'_, ArrivalState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut ArrivalState)) {
        change(&mut self.state());
        self.more.notify_all();
    }
}

/// State of a blob that is arriving.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Arrived {
    pub(crate) digest: String,
    pub(crate) bytes: u64,
    pub(crate) size: u64,
    /// The present source, as its taker names it.
    pub(crate) from: Option<String>,
}

impl Blobs {
    /// Begins to take a blob, or continues one of which a part is here. One thread takes a blob at a time.
    ///
    /// # Errors
    /// The system refuses, or `digest` is none.
    pub(crate) fn arrive(&self, digest: &str, size: u64) -> Result<Arriving<'_>, BlobError> {
        let part = self.path(digest)?.with_extension(EXTENSION);
        let failed = |source| BlobError::System { path: part.clone(), source };
        let mut options = File::options();
        let mut file =
            options.read(true).write(true).create(true).truncate(false).open(&part).map_err(failed)?;
        let (mut hasher, mut bytes, mut buffer) = (Sha256::new(), 0, vec![0; PART]);
        if file.metadata().map_err(failed)?.len() > size {
            file.set_len(0).map_err(failed)?;
        }
        loop {
            match file.read(&mut buffer).map_err(failed)? {
                0 => break,
                count => {
                    hasher.update(&buffer[..count]);
                    bytes += count as u64;
                }
            }
        }
        let state = ArrivalState { bytes, ..ArrivalState::default() };
        let arrival = Arrival {
            file: file.try_clone().map_err(failed)?,
            size,
            state: Mutex::new(state),
            more: Condvar::new(),
        };
        let arrival = Arc::new(arrival);
        self.arrivals.all().insert(digest.to_owned(), Arc::clone(&arrival));
        Ok(Arriving { blobs: self, digest: digest.to_owned(), part, file, hasher, arrival })
    }

    /// Blobs that a source sends now.
    pub(crate) fn arriving(&self) -> Vec<Arrived> {
        let arrivals = self.arrivals.all();
        let arrived = |(digest, arrival): (&String, &Arc<Arrival>)| {
            let state = arrival.state();
            Arrived {
                digest: digest.clone(),
                bytes: state.bytes,
                size: arrival.size,
                from: state.from.clone(),
            }
        };
        let sent = arrivals.iter().filter(|(_, arrival)| arrival.state().is_sent);
        sent.map(arrived).collect()
    }

    /// A blob, to be read from `offset` on, and its size. Of one that is arriving the reader waits for what has not come. None: it is not
    /// there.
    ///
    /// # Errors
    /// The system refuses.
    pub(crate) fn open_or_follow(&self, digest: &str, offset: u64) -> Result<Option<Opened>, BlobError> {
        // In this order: it may arrive completely in between.
        let arrival = self.arrivals.all().get(digest).cloned();
        if let Some((file, size)) = self.open_at(digest, offset)? {
            return Ok(Some((Box::new(file), size)));
        }
        Ok(arrival.map(|arrival| {
            let size = arrival.size;
            (Box::new(Following { arrival, offset }) as Box<dyn Read + Send>, size)
        }))
    }

    /// Removes parts of blobs that are neither needed nor being taken.
    pub(super) fn drop_parts(&self, needed: &BTreeSet<String>) {
        let arrivals = self.arrivals.all();
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let path = entry.path();
            let digest = path.file_stem().unwrap_or_default().to_string_lossy();
            let is_part = path.extension().is_some_and(|extension| extension == EXTENSION);
            if is_part && !needed.contains(&*digest) && !arrivals.contains_key(&*digest) {
                let _ = fs::remove_file(&path); // the next look finds it again
            }
        }
    }
}

/// A blob that is being taken. Dropped before it is kept, its part stays in the folder, and its readers get an error.
pub(crate) struct Arriving<'a> {
    blobs: &'a Blobs,
    digest: String,
    part: PathBuf,
    file: File,
    hasher: Sha256,
    arrival: Arc<Arrival>,
}

impl Arriving<'_> {
    /// Bytes that are here.
    pub(crate) fn bytes(&self) -> u64 {
        self.arrival.state().bytes
    }

    /// Takes the rest from a source; where it fails, what has come stays.
    ///
    /// # Errors
    /// The source fails or ends too early, or the system refuses.
    pub(crate) fn take(&mut self, name: Option<&str>, from: impl Read) -> Result<(), BlobError> {
        self.arrival.change(|state| (state.from, state.is_sent) = (name.map(str::to_owned), true));
        let taken = self.take_rest(from);
        self.arrival.change(|state| state.is_sent = taken.is_ok());
        taken
    }

    fn take_rest(&mut self, mut from: impl Read) -> Result<(), BlobError> {
        let failed = |source| BlobError::System { path: self.part.clone(), source };
        let (mut bytes, mut buffer) = (self.bytes(), vec![0; PART]);
        while bytes < self.arrival.size {
            let left = usize::try_from(self.arrival.size - bytes).unwrap_or(PART).min(PART);
            match from.read(&mut buffer[..left]) {
                Ok(0) => return Err(failed(io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => {
                    self.file.write_all(&buffer[..count]).map_err(failed)?;
                    self.hasher.update(&buffer[..count]);
                    bytes += count as u64;
                    self.arrival.change(|state| state.bytes = bytes);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(())
    }

    /// Keeps the blob, if its digest is right. Otherwise nothing of it stays.
    ///
    /// # Errors
    /// The digest is another one, or the system refuses.
    pub(crate) fn keep(self) -> Result<(), BlobError> {
        let found = hexadecimal(&self.hasher.clone().finalize());
        if found != self.digest {
            let _ = fs::remove_file(&self.part); // the error is reported
            return Err(BlobError::Different { wanted: self.digest.clone(), found });
        }
        let (blobs, part) = (self.blobs, &self.part);
        let failed = |source| BlobError::System { path: part.clone(), source };
        self.file.sync_all().map_err(failed)?;
        blobs.adopt(part, &self.digest, self.arrival.size)?;
        blobs.share(&self.digest)
    }
}

impl Drop for Arriving<'_> {
    fn drop(&mut self) {
        self.blobs.arrivals.all().remove(&self.digest);
        let size = self.arrival.size;
        self.arrival.change(|state| state.has_failed = state.bytes < size);
    }
}

/// Reads a blob while it arrives.
struct Following {
    arrival: Arc<Arrival>,
    offset: u64,
}

impl Read for Following {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.offset >= self.arrival.size || into.is_empty() {
            return Ok(0);
        }
        let waits = |state: &mut ArrivalState| state.bytes <= self.offset && !state.has_failed;
        let waited = self.arrival.more.wait_timeout_while(self.arrival.state(), SILENCE, waits);
        let there = waited.unwrap_or_else(PoisonError::into_inner).0.bytes;
        let Some(left) = there.checked_sub(self.offset).filter(|left| *left > 0) else {
            return Err(io::Error::other("it does not arrive here any more"));
        };
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(into.len());
        let count = self.arrival.file.read_at(&mut into[..most], self.offset)?;
        self.offset += count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::super::digest;
    use super::*;

    /// Gives some bytes, and then an error.
    struct Breaks<'a>(&'a [u8]);

    impl Read for Breaks<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            match self.0.is_empty() {
                true => Err(io::ErrorKind::ConnectionReset.into()),
                false => self.0.read(into),
            }
        }
    }

    /// Sees what is arriving, and breaks.
    struct Looks<'a>(&'a Blobs, Vec<Arrived>);

    impl Read for Looks<'_> {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            self.1 = self.0.arriving();
            Err(io::ErrorKind::ConnectionReset.into())
        }
    }

    fn read(mut from: Box<dyn Read + Send>) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes).map(|_| bytes)
    }

    #[test]
    fn others_read_a_blob_while_it_arrives_from_one_source_after_another() {
        let folder = tempfile::tempdir().unwrap();
        let blobs = Blobs::open(folder.path()).unwrap();
        let all: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
        let (name, size) = (digest(&all), all.len() as u64);
        assert!(blobs.open_or_follow(&name, 0).unwrap().is_none());
        let mut arriving = blobs.arrive(&name, size).unwrap();
        std::thread::scope(|scope| {
            let follow = |offset| {
                let (from, found) = blobs.open_or_follow(&name, offset).unwrap().unwrap();
                assert_eq!(found, size);
                scope.spawn(move || read(from).unwrap())
            };
            let (whole, rest) = (follow(0), follow(700_000));
            assert!(arriving.take(Some("a:1"), Breaks(&all[..400_000])).is_err());
            assert!(blobs.arriving().is_empty(), "it has no source");
            let mut looks = Looks(&blobs, Vec::new());
            assert!(arriving.take(Some("b:1"), (&all[400_000..500_000]).chain(&mut looks)).is_err());
            let from = Some("b:1".to_owned());
            assert_eq!(looks.1, [Arrived { digest: name.clone(), bytes: 500_000, size, from }]);
            assert!(arriving.take(None, &all[500_000..900_000]).is_err(), "it ends too early");
            assert!(!whole.is_finished() && !rest.is_finished(), "they wait for another source");
            arriving.take(None, &all[900_000..]).unwrap();
            arriving.keep().unwrap();
            assert!(whole.join().unwrap() == all && rest.join().unwrap() == all[700_000..]);
        });
        assert!(blobs.has(&name) && blobs.arriving().is_empty());
        assert_eq!(read(blobs.open_or_follow(&name, 1_199_998).unwrap().unwrap().0).unwrap().len(), 2);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no part is left");
    }

    #[test]
    fn who_reads_what_does_not_arrive_gets_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let blobs = Blobs::open(folder.path()).unwrap();
        let mut arriving = blobs.arrive(&digest(b"a wave"), 6).unwrap();
        let from = blobs.open_or_follow(&digest(b"a wave"), 0).unwrap().unwrap().0;
        assert!(arriving.take(None, Breaks(b"a w")).is_err());
        drop(arriving);
        assert!(read(from).unwrap_err().to_string().contains("any more"));
        assert!(blobs.open_or_follow(&digest(b"a wave"), 0).unwrap().is_none());
    }

    #[test]
    fn a_part_is_continued_after_a_restart_and_one_that_is_wrong_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let name = digest(b"a wave");
        for (second, is_right) in [(&b"xxx"[..], false), (b"ave", true)] {
            let blobs = Blobs::open(folder.path()).unwrap();
            assert!(blobs.arrive(&name, 6).unwrap().take(None, Breaks(b"a w")).is_err());
            let blobs = Blobs::open(folder.path()).unwrap();
            let mut arriving = blobs.arrive(&name, 6).unwrap();
            assert_eq!(arriving.bytes(), 3);
            arriving.take(None, second).unwrap();
            match arriving.keep() {
                Ok(()) => assert!(is_right && blobs.has(&name)),
                Err(error) => {
                    assert!(!is_right && matches!(error, BlobError::Different { .. }), "{error}");
                    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
                }
            }
        }
    }

    #[test]
    fn parts_that_nobody_needs_go() {
        let folder = tempfile::tempdir().unwrap();
        let blobs = Blobs::open(folder.path()).unwrap();
        let parts = || fs::read_dir(folder.path()).unwrap().count();
        let needed = |names: &[&[u8]]| blobs.need(names.iter().map(|name| digest(name)).collect());
        for name in [b"one", b"two"] {
            assert!(blobs.arrive(&digest(name), 3).unwrap().take(None, Breaks(b"x")).is_err());
        }
        let taken = blobs.arrive(&digest(b"new"), 3).unwrap();
        needed(&[b"one"]);
        assert_eq!(parts(), 2, "one is needed, and one is being taken");
        drop(taken);
        needed(&[]);
        assert_eq!(parts(), 0);
    }
}
