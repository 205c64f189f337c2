//! Files by what is in them: fetched once, verified, and kept within a limit.
use crate::api::{Bundle, BundleFile};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Why a file is not kept or given.
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
    #[error("the bytes are not those of {wanted}: their digest is {found}")]
    Different {
        /// The digest that was wanted.
        wanted: String,
        /// That of the bytes.
        found: String,
    },
    /// A path that would leave its folder.
    #[error("`{0}` is no path for a file of a bundle: write a relative path without `..`")]
    Path(String),
    /// No digest.
    #[error("`{0}` is no digest: write 64 hexadecimal digits")]
    Name(String),
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

/// A folder of blobs.
pub struct Blobs {
    folder: PathBuf,
    /// Numbers files that are being written.
    written: AtomicU64,
}

impl Blobs {
    /// Makes the folder if it is not there, and removes what a process before left half written.
    ///
    /// # Errors
    /// The system refuses.
    pub fn open(folder: &Path) -> Result<Self, BlobError> {
        let failed = |source| BlobError::System { path: folder.to_owned(), source };
        fs::create_dir_all(folder).map_err(failed)?;
        for entry in fs::read_dir(folder).map_err(failed)?.flatten() {
            if entry.path().extension().is_some_and(|extension| extension == "part") {
                fs::remove_file(entry.path()).map_err(failed)?;
            }
        }
        Ok(Self { folder: folder.to_owned(), written: AtomicU64::new(0) })
    }

    fn path(&self, digest: &str) -> Result<PathBuf, BlobError> {
        let is_digest =
            digest.len() == 64 && digest.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        match is_digest {
            true => Ok(self.folder.join(digest)),
            false => Err(BlobError::Name(digest.chars().take(80).collect())),
        }
    }

    /// Whether it is there.
    pub fn has(&self, digest: &str) -> bool {
        self.path(digest).is_ok_and(|path| path.is_file())
    }

    /// Keeps the bytes that `from` gives, if they are those of the digest.
    ///
    /// # Errors
    /// They are not, or the system refuses. Nothing is kept then.
    pub fn put(&self, wanted: &str, mut from: impl Read) -> Result<(), BlobError> {
        let path = self.path(wanted)?;
        let part = path.with_extension(format!("{}.part", self.written.fetch_add(1, Ordering::Relaxed)));
        let failed = |source| BlobError::System { path: part.clone(), source };
        let written = (|| {
            let mut file = File::create(&part).map_err(failed)?;
            let (mut hasher, mut buffer) = (Sha256::new(), vec![0; 1 << 16]);
            loop {
                match from.read(&mut buffer).map_err(failed)? {
                    0 => break,
                    read => {
                        hasher.update(&buffer[..read]);
                        file.write_all(&buffer[..read]).map_err(failed)?;
                    }
                }
            }
            let found = hexadecimal(&hasher.finalize());
            if found != wanted {
                return Err(BlobError::Different { wanted: wanted.to_owned(), found });
            }
            file.sync_all().map_err(failed)?;
            fs::rename(&part, &path).map_err(failed)
        })();
        if written.is_err() {
            let _ = fs::remove_file(&part); // the error is told
        }
        written
    }

    /// Bytes of a blob from `offset` on, at most `most`, and its size; none: it is not there.
    ///
    /// # Errors
    /// The system refuses.
    pub fn read(&self, digest: &str, offset: u64, most: u64) -> Result<Option<(Vec<u8>, u64)>, BlobError> {
        let path = self.path(digest)?;
        let failed = |source| BlobError::System { path: path.clone(), source };
        let mut file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(failed(source)),
        };
        let size = file.metadata().map_err(failed)?.len();
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(offset)).map_err(failed)?;
        file.take(most).read_to_end(&mut bytes).map_err(failed)?;
        Ok(Some((bytes, size)))
    }

    /// Lays out copies of the files of a bundle in a folder. What is there already and has the same length stays.
    ///
    /// # Errors
    /// A path would leave the folder, a blob is missing, or the system refuses.
    pub fn lay_out(&self, bundle: &Bundle, folder: &Path) -> Result<(), BlobError> {
        for BundleFile { path, digest, bytes } in &bundle.files {
            let to = inside(folder, path)?;
            if fs::metadata(&to).is_ok_and(|found| found.len() == *bytes) {
                continue;
            }
            let failed = |source| BlobError::System { path: to.clone(), source };
            if let Some(parent) = to.parent() {
                fs::create_dir_all(parent).map_err(failed)?;
            }
            // A copy: who writes into the folder must not change what is kept.
            fs::copy(self.path(digest)?, &to).map_err(failed)?;
        }
        Ok(())
    }

    /// Removes what no bundle names, the oldest first, until no more than `most` bytes are kept.
    pub fn shrink(&self, most: u64, needed: &BTreeSet<String>) {
        let Ok(entries) = fs::read_dir(&self.folder) else { return };
        let mut files: Vec<_> = entries
            .flatten()
            .filter_map(|entry| {
                let metadata = entry.metadata().ok()?;
                Some((metadata.modified().ok()?, metadata.len(), entry))
            })
            .collect();
        files.sort_by_key(|(modified, ..)| *modified);
        let mut kept: u64 = files.iter().map(|(_, bytes, _)| bytes).sum();
        for (_, bytes, entry) in files {
            if kept <= most {
                return;
            }
            let name = entry.file_name().to_string_lossy().into_owned();
            if !needed.contains(&name) && fs::remove_file(entry.path()).is_ok() {
                kept -= bytes;
            }
        }
    }
}

/// A path within a folder.
fn inside(folder: &Path, path: &str) -> Result<PathBuf, BlobError> {
    let relative = Path::new(path);
    let is_plain = relative.components().all(|part| matches!(part, Component::Normal(_)));
    match is_plain && !path.is_empty() {
        true => Ok(folder.join(relative)),
        false => Err(BlobError::Path(path.chars().take(200).collect())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_digest_names_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let blobs = Blobs::open(folder.path()).unwrap();
        let name = digest(b"a wave");
        assert!(matches!(blobs.put(&name, &b"a storm"[..]), Err(BlobError::Different { .. })));
        assert!(!blobs.has(&name) && fs::read_dir(folder.path()).unwrap().next().is_none());
        blobs.put(&name, &b"a wave"[..]).unwrap();
        assert_eq!(blobs.read(&name, 2, 3).unwrap(), Some((b"wav".to_vec(), 6)));
        assert!(matches!(blobs.put("../x", &b""[..]), Err(BlobError::Name(_))));
    }

    #[test]
    fn a_bundle_stays_in_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        let blobs = Blobs::open(&folder.path().join("blobs")).unwrap();
        let name = digest(b"x");
        blobs.put(&name, &b"x"[..]).unwrap();
        let bundle = |path: &str| Bundle {
            workflow: path.to_owned(),
            files: vec![BundleFile { path: path.to_owned(), digest: name.clone(), bytes: 1 }],
        };
        let out = folder.path().join("out");
        for path in ["../x", "/etc/x", "", "a/../../x"] {
            assert!(matches!(blobs.lay_out(&bundle(path), &out), Err(BlobError::Path(_))), "{path}");
        }
        blobs.lay_out(&bundle("a/b.yaml"), &out).unwrap();
        assert_eq!(fs::read(out.join("a/b.yaml")).unwrap(), b"x");
    }

    #[test]
    fn the_oldest_that_nobody_needs_goes_first() {
        let folder = tempfile::tempdir().unwrap();
        let blobs = Blobs::open(folder.path()).unwrap();
        let names: Vec<String> = [b"aa", b"bb", b"cc"]
            .iter()
            .map(|bytes| {
                let name = digest(*bytes);
                blobs.put(&name, &bytes[..]).unwrap();
                name
            })
            .collect();
        blobs.shrink(4, &BTreeSet::from([names[0].clone()]));
        assert!(blobs.has(&names[0]));
        assert_eq!(names.iter().filter(|name| blobs.has(name)).count(), 2);
    }
}
