//! Sends files of runs that the controller wants, each as one body from the byte on that is wanted.
use super::folders::Folders;
use crate::api::{FilePart, FilePartRefused};
use crate::client::{Client, ClientError};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Number of sent files that are remembered, so that they are not sent again when requested again.
const KNOWN: usize = 256;

/// See the module.
pub(super) struct Parts(Arc<Shared>);

struct Shared {
    client: Client,
    folders: Arc<Folders>,
    results: Vec<PathBuf>,
    /// Numbers of what is being sent or was, the last one last.
    known: Mutex<VecDeque<u64>>,
}

impl Parts {
    /// Sends requested files over own connections. Absolute paths resolve to files in `results`.
    pub(super) fn new(client: Client, folders: &Arc<Folders>, results: &[PathBuf]) -> Self {
        let (folders, results) = (Arc::clone(folders), results.to_owned());
        Self(Arc::new(Shared { client, folders, results, known: Mutex::default() }))
    }

    /// Sends each on a thread of its own: one that is taken slowly holds up no other one. The controller wants a few at a time.
    pub(super) fn give(&self, parts: Vec<FilePart>) {
        for part in parts {
            let shared = Arc::clone(&self.0);
            let send = move || shared.send_all(part);
            if let Err(error) = std::thread::Builder::new().name("tm-parts".into()).spawn(send) {
                tracing::error!("cannot start the thread that sends a file: {error}");
            }
        }
    }
}

impl Shared {
    fn known(&self) -> MutexGuard<'_, VecDeque<u64>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is neither being sent nor was.
    fn begins(&self, number: u64) -> bool {
        let mut known = self.known();
        let is_new = !known.contains(&number);
        if is_new {
            known.push_back(number);
            if known.len() > KNOWN {
                known.pop_front();
            }
        }
        is_new
    }

    fn send_all(&self, first: FilePart) {
        // The answer to one names the next ones.
        let mut open = VecDeque::from([first]);
        while let Some(part) = open.pop_front() {
            if !self.begins(part.number) {
                continue; // it was on its way when it was asked for again
            }
            match self.send(&part) {
                Ok(next) => open.extend(next),
                Err(error) => {
                    self.known().retain(|number| *number != part.number);
                    tracing::debug!("the controller did not accept a file: {error}");
                }
            }
        }
    }

    fn send(&self, part: &FilePart) -> Result<Vec<FilePart>, ClientError> {
        let path = format!("/v1/file-parts/{}", part.number);
        let folder = self.folders.find(&part.run, &part.id, &part.role);
        let open = || open(&folder.clone()?, &self.results, &part.path, part.offset);
        match open().and_then(|(_, left)| length(part, left)) {
            Ok(length) => {
                let again = || open().map(|(file, _)| file).map_err(std::io::Error::other);
                self.client.upload(&path, length, again)
            }
            Err(error) => self.client.post(&path, &FilePartRefused { error }),
        }
    }
}

/// Returns the number of bytes to send of a file that has `left` of them from the offset on.
///
/// # Errors
/// The file has less than is committed: a short answer would be taken for all of it.
fn length(part: &FilePart, left: u64) -> Result<u64, String> {
    if part.bytes != u64::MAX && left < part.bytes {
        return Err(format!(
            "`{}` has {left} bytes after byte {}, but {} are committed there: it was made shorter after the commit",
            part.path, part.offset, part.bytes
        ));
    }
    Ok(left.min(part.bytes))
}

/// A file that is within a folder, or, by an absolute path, within one of those for results, whatever links there are; it is read from
/// `offset` on, where there are so many bytes.
fn open(folder: &Path, results: &[PathBuf], path: &str, offset: u64) -> Result<(File, u64), String> {
    let refused = |error: std::io::Error| format!("`{path}`: {error}");
    let folder = folder.canonicalize().map_err(refused)?;
    let file = folder.join(path).canonicalize().map_err(refused)?;
    let is_result = || results.iter().any(|of| of.canonicalize().is_ok_and(|of| file.starts_with(of)));
    let is_given = file.starts_with(&folder) || (Path::new(path).is_absolute() && is_result());
    if !is_given {
        return Err(format!(
            "`{path}` is not in the folder of the run: only files with relative paths in the workflow can \
             be fetched, and files in the folders of the worker's option `--results`"
        ));
    }
    let mut file = File::open(&file).map_err(refused)?;
    let metadata = file.metadata().map_err(refused)?;
    if !metadata.is_file() {
        return Err(format!("`{path}` is not a file"));
    }
    file.seek(SeekFrom::Start(offset)).map_err(refused)?;
    Ok((file, metadata.len().saturating_sub(offset)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    /// Bytes of a file, as many as are wanted.
    fn read(
        folder: &Path,
        results: &[PathBuf],
        path: &str,
        offset: u64,
        bytes: u64,
    ) -> Result<Vec<u8>, String> {
        let (file, left) = open(folder, results, path, offset)?;
        let mut content = Vec::new();
        file.take(left.min(bytes)).read_to_end(&mut content).map_err(|error| error.to_string())?;
        Ok(content)
    }

    #[test]
    fn nothing_outside_of_the_folder_is_given() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("run/edge");
        std::fs::create_dir_all(folder.join("out")).unwrap();
        std::fs::write(folder.join("out/rows.csv"), "0123456789").unwrap();
        std::fs::write(root.path().join("run/secret"), "secret").unwrap();
        std::os::unix::fs::symlink("../secret", folder.join("link")).unwrap();
        std::os::unix::fs::symlink("..", folder.join("up")).unwrap();
        assert_eq!(read(&folder, &[], "out/rows.csv", 2, 3).unwrap(), b"234");
        assert_eq!(read(&folder, &[], "./out/../out/rows.csv", 8, 100).unwrap(), b"89");
        assert_eq!(read(&folder, &[], "out/rows.csv", 10, 100).unwrap(), b"");
        let absolute = root.path().join("run/secret");
        for path in ["../secret", "link", "up/secret", "/etc/hosts", absolute.to_str().unwrap()] {
            let message = read(&folder, &[], path, 0, 100).unwrap_err();
            assert!(message.contains("is not in the folder of the run"), "{path}: {message}");
        }
        assert!(read(&folder, &[], "out", 0, 1).is_err() && read(&folder, &[], "none", 0, 1).is_err());
    }

    #[test]
    fn a_file_that_lost_committed_bytes_is_not_sent() {
        let (run, id, role, path) = ("night".into(), "1".into(), "edge".into(), "rows.csv".into());
        let mut part = FilePart { number: 1, run, id, role, path, offset: 40, bytes: 10 };
        assert_eq!((length(&part, 10), length(&part, 900)), (Ok(10), Ok(10)));
        let message = length(&part, 9).unwrap_err();
        assert!(message.contains("`rows.csv` has 9 bytes after byte 40, but 10 are committed"), "{message}");
        part.bytes = u64::MAX; // all of a complete file
        assert_eq!(length(&part, 9), Ok(9));
    }

    #[test]
    fn folders_for_results_are_given_by_absolute_paths() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        for folder in ["run/edge", "results/deep", "other"] {
            std::fs::create_dir_all(at(folder)).unwrap();
        }
        std::fs::write(at("results/deep/rows.csv"), "0123456789").unwrap();
        std::fs::write(at("other/key.pem"), "secret").unwrap();
        std::os::unix::fs::symlink(at("other"), at("results/link")).unwrap();
        let (folder, results) = (at("run/edge"), [at("none"), at("results")]);
        let given = |path: &str| read(&folder, &results, path, 3, 4);
        assert_eq!(given(at("results/deep/rows.csv").to_str().unwrap()).unwrap(), b"3456");
        let refused = [at("other/key.pem"), at("results/link/key.pem"), at("results/../other/key.pem")];
        for path in refused.iter().map(|path| path.to_str().unwrap()).chain(["../../results/deep/rows.csv"]) {
            let message = given(path).unwrap_err();
            assert!(message.contains("is not in the folder of the run"), "{path}: {message}");
        }
    }
}
