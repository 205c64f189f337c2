//! Files of models on the host of a device, by their content.
use crate::device::{Artifact, Loadable, ModelFile};
use sha2::{Digest, Sha256};
use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

/// A folder of files, each under its hash. Several proxies of a host share one.
///
/// ```
/// # let folder = tempfile::tempdir()?;
/// use tidemill_device::store::{Store, hash_of};
/// let mut store = Store::open(folder.path(), 1 << 20)?;
/// let hash = hash_of(b"model");
/// assert_eq!(store.missing(&[hash.clone()]), [hash.clone()]);
/// store.write(&hash, 0, b"mo", false)?;
/// store.write(&hash, 2, b"del", true)?;
/// assert!(store.missing(&[hash]).is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Store {
    folder: PathBuf,
    /// Bytes that the files may have together.
    limit: u64,
    /// Files that arrive.
    arriving: HashMap<String, Arriving>,
    pins: Option<Pins>,
}

/// Files that have begun to arrive in this process.
static ARRIVED: AtomicU64 = AtomicU64::new(0);
/// Files that the session has offered and not loaded yet. A second name in the folder of the session keeps the content of one that makes
/// room for others meanwhile. With those that arrive they take as many bytes as all files may have together, at most.
#[derive(Debug)]
struct Pins {
    folder: PathBuf,
    offered: HashMap<String, Pin>,
}

#[derive(Debug, Default)]
struct Pin {
    offers: u32,
    /// Bytes of the file, if it has its second name.
    bytes: u64,
}

/// Files that a session may have offered and not loaded; it loads further ones as before, unless they have made room.
const MOST_PINS: usize = 4096;
/// Files of a session that may arrive at once.
const MOST_ARRIVING: usize = 256;

#[derive(Debug)]
struct Arriving {
    file: File,
    path: PathBuf,
    length: u64,
    digest: Sha256,
}

/// A file that cannot be kept.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The name is no SHA-256 in hexadecimal, or no name of a file.
    #[error("{0:?} names no file of a model")]
    Name(String),
    /// A piece does not follow the one before.
    #[error("a piece at {found} follows {expected} bytes")]
    Gap {
        /// Bytes that came before.
        expected: u64,
        /// Where the piece begins.
        found: u64,
    },
    /// The bytes are others than the hash says.
    #[error("the file {expected} arrived with the hash {found}")]
    Content {
        /// The hash that it should have.
        expected: String,
        /// The hash of what arrived.
        found: String,
    },
    /// With others of the session that are not loaded yet, it is larger than all files may be together.
    #[error(
        "the file, with others that the session has not loaded yet, would take more than the {limit} bytes that models may take here; start the device with a larger `--cache-limit`"
    )]
    TooLarge {
        /// The limit.
        limit: u64,
    },
    /// Too many files arrive.
    #[error("{MOST_ARRIVING} files of the session arrive already; send one after another")]
    TooMany,
    /// It is not here.
    #[error(
        "the file {0} is not here: others took its place; start the device with a larger `--cache-limit`"
    )]
    Missing(String),
    /// The system refused.
    #[error("{path}: {source}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.to_owned();
    move |source| StoreError::Io { path, source }
}

/// Returns the SHA-256 of bytes in hexadecimal.
pub fn hash_of(bytes: &[u8]) -> String {
    hexadecimal(Sha256::digest(bytes).as_slice())
}

/// Returns the hash and the size of a file.
///
/// # Errors
/// If it cannot be read.
pub fn hash_of_file(path: &Path) -> io::Result<(String, u64)> {
    let (mut file, mut digest, mut length) = (File::open(path)?, Sha256::new(), 0);
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok((hexadecimal(digest.finalize().as_slice()), length)),
            Ok(read) => {
                digest.update(&buffer[..read]);
                length += read as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn checked_hash(hash: &str) -> Result<&str, StoreError> {
    let is_hash = hash.len() == 64 && hash.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if is_hash { Ok(hash) } else { Err(StoreError::Name(hash.to_owned())) }
}

/// A path below a folder, such as `m.onnx` or `parts/m.data`.
fn checked_name(name: &str) -> Result<&str, StoreError> {
    let is_plain = |part: &str| !part.is_empty() && part != "." && part != "..";
    let is_below = name.len() <= 200 && name.split('/').all(is_plain) && !name.contains('\0');
    if is_below { Ok(name) } else { Err(StoreError::Name(name.to_owned())) }
}

impl Store {
    /// Opens a folder, which is made if need be. `limit`: bytes that the files may have together.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn open(folder: &Path, limit: u64) -> Result<Self, StoreError> {
        fs::create_dir_all(folder).map_err(at(folder))?;
        Ok(Self { folder: folder.to_owned(), limit, arriving: HashMap::new(), pins: None })
    }

    fn place(&self, hash: &str) -> PathBuf {
        self.folder.join(hash)
    }

    /// Returns those of the hashes that are not here.
    pub fn missing(&self, hashes: &[String]) -> Vec<String> {
        let is_missing = |hash: &&String| checked_hash(hash).is_err() || !self.place(hash).is_file();
        hashes.iter().filter(is_missing).cloned().collect()
    }

    /// Keeps what is [offered](Self::offer) from now on, by names in this folder, which belongs to the session.
    pub fn pin_in(&mut self, folder: &Path) {
        self.pins = Some(Pins { folder: folder.to_owned(), offered: HashMap::new() });
    }

    /// As [`Self::missing`]. The files that are here, or come, stay until they are [laid out](Self::lay_out) as often as they were offered.
    pub fn offer(&mut self, hashes: &[String]) -> Vec<String> {
        for hash in hashes.iter().filter(|hash| checked_hash(hash).is_ok()) {
            if let Some(pins) = &mut self.pins
                && (pins.offered.len() < MOST_PINS || pins.offered.contains_key(hash))
            {
                pins.offered.entry(hash.clone()).or_default().offers += 1;
                self.pin(hash);
            }
        }
        let is_missing = |hash: &&String| checked_hash(hash).is_err() || self.kept(hash).is_none();
        hashes.iter().filter(is_missing).cloned().collect()
    }

    /// Gives an offered file its second name, if it is here and the session may hold it.
    fn pin(&mut self, hash: &str) {
        let (place, held) = (self.place(hash), self.held());
        let Some(pins) = &mut self.pins else { return };
        let Some(offered) = pins.offered.get_mut(hash).filter(|offered| offered.bytes == 0) else { return };
        let Ok(bytes) = fs::metadata(&place).map(|facts| facts.len()) else { return };
        if held + bytes > self.limit {
            return;
        }
        // Without the second name, it may be missing when it is loaded, and the client is told.
        let _ = fs::create_dir_all(&pins.folder);
        let pin = pins.folder.join(hash);
        let linked = || fs::hard_link(&place, &pin).or_else(|_| fs::copy(&place, &pin).map(drop));
        if pin.exists() || linked().is_ok() {
            offered.bytes = bytes;
        }
    }

    /// Bytes of the session's files that arrive, and of those that stay until they are loaded.
    fn held(&self) -> u64 {
        let arriving: u64 = self.arriving.values().map(|arriving| arriving.length).sum();
        let offered = self.pins.iter().flat_map(|pins| pins.offered.values());
        arriving + offered.map(|offered| offered.bytes).sum::<u64>()
    }

    /// Takes back an offer.
    fn unpin(&mut self, hash: &str) {
        let Some(pins) = &mut self.pins else { return };
        match pins.offered.get_mut(hash) {
            Some(offered) if offered.offers > 1 => offered.offers -= 1,
            Some(_) => {
                pins.offered.remove(hash);
                let _ = fs::remove_file(pins.folder.join(hash));
            }
            None => {}
        }
    }

    /// The file of a hash: under its name, or its second one.
    fn kept(&self, hash: &str) -> Option<PathBuf> {
        let pin = self.pins.as_ref().map(|pins| pins.folder.join(hash));
        [Some(self.place(hash)), pin].into_iter().flatten().find(|path| path.is_file())
    }

    /// Writes the next piece of a file. With the last one it is checked, and older files make room for it.
    ///
    /// # Errors
    /// [`StoreError`]; the file must begin again.
    pub fn write(&mut self, hash: &str, offset: u64, piece: &[u8], is_last: bool) -> Result<(), StoreError> {
        let mut arriving = match self.arriving.remove(checked_hash(hash)?) {
            Some(arriving) => arriving,
            None if self.arriving.len() >= MOST_ARRIVING => return Err(StoreError::TooMany),
            None => {
                // Several sessions of a process may receive one file at once.
                let number = ARRIVED.fetch_add(1, Ordering::Relaxed);
                let path = self.folder.join(format!(".{hash}.{number}.{}", std::process::id()));
                let file = File::create(&path).map_err(at(&path))?;
                Arriving { file, path, length: 0, digest: Sha256::new() }
            }
        };
        if offset != arriving.length {
            return Err(StoreError::Gap { expected: arriving.length, found: offset });
        }
        arriving.length += piece.len() as u64;
        // Those that this session has begun, or not loaded yet, take their place, too.
        if self.held() + arriving.length > self.limit {
            return Err(StoreError::TooLarge { limit: self.limit });
        }
        arriving.digest.update(piece);
        arriving.file.write_all(piece).map_err(at(&arriving.path))?;
        if !is_last {
            self.arriving.insert(hash.to_owned(), arriving);
            return Ok(());
        }
        let found = hexadecimal(arriving.digest.clone().finalize().as_slice());
        if found != hash {
            return Err(StoreError::Content { expected: hash.to_owned(), found });
        }
        self.make_room(arriving.length)?;
        let place = self.place(hash);
        fs::rename(&arriving.path, &place).map_err(at(&place))?;
        self.pin(hash);
        Ok(())
    }

    /// Removes the files that were not used for longest until there is room. A proxy that has loaded one does not need it any more.
    fn make_room(&self, wanted: u64) -> Result<(), StoreError> {
        let mut files: Vec<(SystemTime, u64, PathBuf)> = Vec::new();
        for entry in fs::read_dir(&self.folder).map_err(at(&self.folder))?.flatten() {
            let is_kept = entry.file_name().to_str().is_some_and(|name| checked_hash(name).is_ok());
            if let (true, Ok(facts)) = (is_kept, entry.metadata()) {
                files.push((facts.modified().unwrap_or(SystemTime::UNIX_EPOCH), facts.len(), entry.path()));
            }
        }
        files.sort();
        let mut held: u64 = files.iter().map(|(_, length, _)| length).sum();
        for (_, length, path) in files {
            if held + wanted <= self.limit {
                break;
            }
            // Another proxy may have removed it.
            let _ = fs::remove_file(path);
            held -= length;
        }
        Ok(())
    }

    /// Puts the files of a model into a folder by their names. `into` belongs to the session, which removes it.
    ///
    /// # Errors
    /// [`StoreError::Missing`] if one was not offered and stored, [`StoreError::Name`], also if two have one name.
    pub fn lay_out(&mut self, artifact: &Artifact, into: &Path) -> Result<Loadable, StoreError> {
        let laid_out = self.laid_out(artifact, into);
        artifact.files.iter().for_each(|file| self.unpin(&file.hash));
        laid_out
    }

    fn laid_out(&self, artifact: &Artifact, into: &Path) -> Result<Loadable, StoreError> {
        fs::create_dir_all(into).map_err(at(into))?;
        let mut artifact = artifact.clone();
        let mut names = HashSet::new();
        for ModelFile { name, hash, bytes } in &mut artifact.files {
            let missing = || StoreError::Missing(hash.clone());
            let place = self.kept(checked_hash(hash)?).ok_or_else(missing)?;
            let path = into.join(checked_name(name)?);
            // A second one of the same name would be written into the first, which is the kept one itself.
            if !names.insert(name.clone()) {
                return Err(StoreError::Name(name.clone()));
            }
            let kept = File::open(&place).map_err(|_| missing())?;
            // Memory is limited by what is there, not by what the client says.
            *bytes = kept.metadata().map_err(at(&place))?.len();
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent).map_err(at(parent))?;
            }
            // It was used now.
            let _ = kept.set_modified(now());
            if fs::hard_link(&place, &path).is_err() {
                let (mut kept, mut copy) = (kept, File::create_new(&path).map_err(at(&path))?);
                io::copy(&mut kept, &mut copy).map_err(at(&path))?;
            }
        }
        let first = artifact.files.first().ok_or_else(|| StoreError::Name(String::new()))?;
        Ok(Loadable { path: into.join(&first.name), artifact })
    }
}

#[expect(clippy::disallowed_methods, reason = "the age of a cached file is real time")]
fn now() -> SystemTime {
    SystemTime::now()
}

impl Drop for Arriving {
    fn drop(&mut self) {
        // Not there any more if it was whole.
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(limit: u64) -> (tempfile::TempDir, Store) {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::open(folder.path(), limit).expect("it is new");
        (folder, store)
    }

    #[test]
    fn other_content_is_refused_and_leaves_nothing() {
        let (folder, mut store) = store(100);
        let hash = hash_of(b"good");
        assert!(matches!(store.write(&hash, 0, b"evil", true), Err(StoreError::Content { .. })));
        assert!(matches!(store.write(&hash, 3, b"d", true), Err(StoreError::Gap { expected: 0, found: 3 })));
        assert!(matches!(store.write("../x", 0, b"d", true), Err(StoreError::Name(_))));
        assert_eq!(fs::read_dir(folder.path()).expect("it is there").count(), 0);
    }

    #[test]
    fn the_oldest_makes_room() {
        let (_folder, mut store) = store(10);
        let hashes: Vec<String> = [b"aaaa", b"bbbb", b"cccc"].iter().map(|part| hash_of(*part)).collect();
        for (second, (hash, part)) in hashes.iter().zip([b"aaaa", b"bbbb", b"cccc"]).enumerate() {
            store.write(hash, 0, part, true).expect("it fits");
            let file = File::options().write(true).open(store.place(hash)).expect("it is kept");
            let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(second as u64);
            file.set_modified(time).expect("a time");
        }
        assert_eq!(store.missing(&hashes), hashes[..1]);
        assert!(matches!(
            store.write(&hash_of(&[0; 11]), 0, &[0; 11], true),
            Err(StoreError::TooLarge { .. })
        ));
        store.write(&hash_of(b"begun"), 0, &[0; 6], false).expect("it fits");
        let second = store.write(&hash_of(b"begun too"), 0, &[0; 6], false);
        assert!(matches!(second, Err(StoreError::TooLarge { .. })), "both are kept until they are whole");
    }

    #[test]
    fn an_offered_file_stays_until_it_is_loaded_though_another_one_takes_its_place() {
        let (folder, mut store) = store(12);
        store.pin_in(&folder.path().join("session"));
        let mut other = Store::open(folder.path(), 12).expect("it is there");
        let file =
            |bytes: &[u8]| ModelFile { name: "m".into(), hash: hash_of(bytes), bytes: bytes.len() as u64 };
        let artifact = |bytes: &[u8]| Artifact {
            name: "m".into(),
            backend: "auto".into(),
            files: vec![file(bytes)],
            inputs: vec![],
            outputs: vec![],
            options: serde_json::Value::Null,
        };
        let (present, comes) = (hash_of(b"present"), hash_of(b"comes"));
        store.write(&present, 0, b"present", true).expect("it fits");
        let offered = [present.clone(), comes.clone()];
        assert_eq!(store.offer(&offered), std::slice::from_ref(&comes));
        assert_eq!(store.offer(&offered), std::slice::from_ref(&comes), "two models have it");
        store.write(&comes, 0, b"comes", true).expect("it fits");
        other.write(&hash_of(b"0123456789"), 0, b"0123456789", true).expect("it fits");
        assert_eq!(other.missing(&offered), offered, "both made room");
        for at in ["first", "second"] {
            for content in [&b"present"[..], b"comes"] {
                let into = folder.path().join(at).join(content.len().to_string());
                let loadable = store.lay_out(&artifact(content), &into).expect("it is kept");
                assert_eq!(fs::read(&loadable.path).ok().as_deref(), Some(content));
            }
        }
        let into = folder.path().join("third");
        assert!(matches!(store.lay_out(&artifact(b"comes"), &into), Err(StoreError::Missing(_))));
        assert_eq!(fs::read_dir(folder.path().join("session")).expect("it was made").count(), 0);
    }

    #[test]
    fn files_that_a_session_offers_and_does_not_load_have_a_limit() {
        let (folder, mut store) = store(100);
        store.pin_in(&folder.path().join("session"));
        let files: Vec<Vec<u8>> = (0..4u8).map(|fill| vec![fill; 40]).collect();
        let hashes: Vec<String> = files.iter().map(|file| hash_of(file)).collect();
        assert_eq!(store.offer(&hashes).len(), 4);
        let mut write = |at: usize| store.write(&hashes[at], 0, &files[at], true);
        assert!(write(0).is_ok() && write(1).is_ok());
        assert!(matches!(write(2), Err(StoreError::TooLarge { limit: 100 })), "80 bytes wait to be loaded");
        // Others take the place of both, and the session offers what they have.
        let mut other = Store::open(folder.path(), 100).expect("it is there");
        other.write(&hashes[2], 0, &files[2], true).expect("it fits");
        other.write(&hashes[3], 0, &files[3], true).expect("it fits");
        assert_eq!(store.offer(&hashes), Vec::<String>::new());
        let pinned = || fs::read_dir(folder.path().join("session")).expect("it was made").count();
        assert_eq!((pinned(), store.held()), (2, 80), "no third one fits");
        store.unpin(&hashes[0]);
        store.unpin(&hashes[0]);
        assert_eq!((pinned(), store.held()), (1, 40));
        store.offer(&hashes[3..]);
        assert_eq!((pinned(), store.held()), (2, 80));
    }

    #[test]
    fn a_session_begins_no_files_without_an_end() {
        let (folder, mut store) = store(100);
        let begin = |store: &mut Store, at: usize| store.write(&hash_of(&at.to_le_bytes()), 0, b"", false);
        (0..MOST_ARRIVING).for_each(|at| begin(&mut store, at).expect("it begins"));
        assert!(matches!(begin(&mut store, MOST_ARRIVING), Err(StoreError::TooMany)));
        // One that has begun goes on.
        assert!(begin(&mut store, 0).is_ok());
        drop(store);
        assert_eq!(fs::read_dir(folder.path()).expect("it is there").count(), 0);
    }

    #[test]
    fn files_lie_beside_each_other_by_name() {
        let (folder, mut store) = store(100);
        let file = |name: &str, bytes: &[u8]| ModelFile {
            name: name.into(),
            hash: hash_of(bytes),
            bytes: bytes.len() as u64,
        };
        let files = vec![file("m.onnx", b"m"), file("m.data", b"d")];
        let artifact = Artifact {
            name: "m".into(),
            backend: "auto".into(),
            files: files.clone(),
            inputs: vec![],
            outputs: vec![],
            options: serde_json::Value::Null,
        };
        let into = folder.path().join("session");
        assert!(matches!(store.lay_out(&artifact, &into), Err(StoreError::Missing(_))));
        store.write(&files[0].hash, 0, b"m", true).expect("it fits");
        store.write(&files[1].hash, 0, b"d", true).expect("it fits");
        let loadable = store.lay_out(&artifact, &into).expect("both are there");
        assert_eq!(fs::read(&loadable.path).ok().as_deref(), Some(&b"m"[..]));
        assert_eq!(fs::read(into.join("m.data")).ok().as_deref(), Some(&b"d"[..]));
        let evil = Artifact {
            files: vec![ModelFile { name: "../m".into(), ..files[0].clone() }],
            ..artifact.clone()
        };
        assert!(matches!(store.lay_out(&evil, &into), Err(StoreError::Name(_))));
        let into = folder.path().join("other");
        let renamed = ModelFile { name: "m.onnx".into(), ..files[1].clone() };
        let twice = Artifact { files: vec![files[0].clone(), renamed], ..artifact.clone() };
        assert!(matches!(store.lay_out(&twice, &into), Err(StoreError::Name(_))));
        assert_eq!(fs::read(store.place(&files[0].hash)).ok().as_deref(), Some(&b"m"[..]), "it is unchanged");
        let into = folder.path().join("claimed");
        let claimed = files.iter().map(|file| ModelFile { bytes: u64::MAX, ..file.clone() }).collect();
        let loadable =
            store.lay_out(&Artifact { files: claimed, ..artifact }, &into).expect("both are there");
        let bytes: Vec<u64> = loadable.artifact.files.iter().map(|file| file.bytes).collect();
        assert_eq!(bytes, [1, 1], "the sizes are those of the files");
    }
}
