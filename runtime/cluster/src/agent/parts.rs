//! Sends parts of files of runs that the controller wants.
use super::folders::Folders;
use crate::api::{CHUNK, FilePart, FilePartRefused};
use crate::client::{Client, ClientError};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Number of sent parts that are remembered, so that they are not sent again when requested again.
const KNOWN: usize = 64;

/// See the module.
pub(super) struct Parts(Sender<FilePart>);

impl Parts {
    /// Starts a thread that sends requested parts over its own connection. Absolute paths resolve to files in `results`.
    pub(super) fn start(
        client: Client,
        folders: &Arc<Folders>,
        results: &[PathBuf],
    ) -> std::io::Result<Self> {
        let (sender, wanted) = channel();
        let (folders, results) = (Arc::clone(folders), results.to_owned());
        let work = move || send_all(&client, &folders, &results, &wanted);
        std::thread::Builder::new().name("tm-parts".into()).spawn(work)?;
        Ok(Self(sender))
    }

    pub(super) fn give(&self, parts: Vec<FilePart>) {
        for part in parts {
            let _ = self.0.send(part); // the thread ends with the agent
        }
    }
}

fn send_all(client: &Client, folders: &Folders, results: &[PathBuf], wanted: &Receiver<FilePart>) {
    let mut sent = VecDeque::new();
    while let Ok(first) = wanted.recv() {
        // The answer to one part names the next ones.
        let mut open = VecDeque::from([first]);
        while let Some(part) = open.pop_front() {
            if sent.contains(&part.number) {
                continue; // it was on its way when it was asked for again
            }
            match send(client, folders, results, &part) {
                Ok(next) => {
                    open.extend(next);
                    sent.push_back(part.number);
                    if sent.len() > KNOWN {
                        sent.pop_front();
                    }
                }
                Err(error) => tracing::debug!("a part of a file was not taken: {error}"),
            }
        }
    }
}

fn send(
    client: &Client,
    folders: &Folders,
    results: &[PathBuf],
    part: &FilePart,
) -> Result<Vec<FilePart>, ClientError> {
    let path = format!("/v1/file-parts/{}", part.number);
    let folder = folders.find(&part.run, &part.id, &part.role);
    match folder.and_then(|folder| read(&folder, results, &part.path, part.offset, part.bytes)) {
        Ok(bytes) => client.put_for(&path, &bytes),
        Err(error) => client.post(&path, &FilePartRefused { error }),
    }
}

/// Bytes of a file that is within a folder, or, by an absolute path, within one of those for results, whatever links there are.
fn read(folder: &Path, results: &[PathBuf], path: &str, offset: u64, bytes: u64) -> Result<Vec<u8>, String> {
    let refused = |error: std::io::Error| format!("`{path}`: {error}");
    let folder = folder.canonicalize().map_err(refused)?;
    let file = folder.join(path).canonicalize().map_err(refused)?;
    let is_result = || results.iter().any(|of| of.canonicalize().is_ok_and(|of| file.starts_with(of)));
    let is_given = file.starts_with(&folder) || (Path::new(path).is_absolute() && is_result());
    if !is_given {
        return Err(format!(
            "`{path}` is not in the folder of the run: files that a workflow names by relative paths are given, and those in folders \
             that the worker was started with (`--results`)"
        ));
    }
    let mut file = File::open(&file).map_err(refused)?;
    if !file.metadata().map_err(refused)?.is_file() {
        return Err(format!("`{path}` is no file"));
    }
    file.seek(SeekFrom::Start(offset)).map_err(refused)?;
    let mut content = Vec::new();
    file.take(bytes.min(CHUNK)).read_to_end(&mut content).map_err(refused)?;
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let told = read(&folder, &[], path, 0, 100).unwrap_err();
            assert!(told.contains("is not in the folder of the run"), "{path}: {told}");
        }
        assert!(read(&folder, &[], "out", 0, 1).is_err() && read(&folder, &[], "none", 0, 1).is_err());
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
            let told = given(path).unwrap_err();
            assert!(told.contains("is not in the folder of the run"), "{path}: {told}");
        }
    }
}
