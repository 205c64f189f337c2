//! Folders of runs on this machine: which run each is of, how large it is, and when it goes.
use crate::api::RunFolder;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Says which run of its name a folder is of.
const MARK: &str = ".run";
const NEXT_MARK: &str = ".run.next";
/// Begins the name of a folder that is being removed.
const GOING: &str = ".removed-";

/// See the module.
pub(super) struct Folders {
    root: PathBuf,
    known: Mutex<BTreeMap<String, Known>>,
    /// The run of each name that has or may have a process here: late files for another run are not laid out.
    wanted: Mutex<BTreeMap<String, String>>,
}

#[derive(Clone, Default)]
struct Known {
    id: String,
    bytes: u64,
    is_measured: bool,
}

impl Folders {
    /// The folders that lie in `root`. What a process before left half removed is removed.
    pub(super) fn open(root: PathBuf) -> Arc<Self> {
        let mut known = BTreeMap::new();
        for entry in fs::read_dir(&root).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(GOING) {
                remove_all(&entry.path());
                continue;
            }
            // A folder without a mark belongs to no known run and stays.
            if let Ok(id) = fs::read_to_string(entry.path().join(MARK)) {
                let name = entry.file_name().to_string_lossy().into_owned();
                known.insert(name, Known { id: id.trim().to_owned(), ..Known::default() });
            }
        }
        Arc::new(Self { root, known: Mutex::new(known), wanted: Mutex::default() })
    }

    /// These runs have processes here, by name and id, and those of the names in `kept` that had before.
    pub(super) fn follow(&self, wanted: BTreeMap<String, String>, kept: &[String]) {
        let mut known = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|run, _| kept.contains(run));
        known.extend(wanted);
    }

    fn is_wanted(&self, run: &str, id: &str) -> bool {
        let wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        wanted.get(run).is_some_and(|wanted| wanted == id)
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<String, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The folder of a role of a run that is wanted, made where it is not there. What a run left that had the same name before is removed.
    pub(super) fn prepare(&self, run: &str, id: &str, role: &str) -> Result<PathBuf, String> {
        let (run_folder, folder) = (plain(&self.root, run)?, plain(&plain(&self.root, run)?, role)?);
        let mut aside = None;
        let made = {
            let mut known = self.known();
            // Fetching its files took long, and it was cancelled meanwhile: another one may have the name.
            if !self.is_wanted(run, id) {
                return Err(format!("this worker no longer runs a part of run {run}"));
            }
            let made = (|| {
                match fs::read_to_string(run_folder.join(MARK)) {
                    Ok(mark) if mark.trim() != id => aside = Some(self.put_aside(run, mark.trim())?),
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::NotFound => {}
                    Err(error) => return Err(error),
                }
                fs::create_dir_all(&folder)?;
                let next = run_folder.join(NEXT_MARK);
                writeln!(File::create(&next)?, "{id}")?;
                fs::rename(next, run_folder.join(MARK))
            })();
            known.insert(run.to_owned(), Known { id: id.to_owned(), ..Known::default() });
            made
        };
        if let Some(aside) = aside {
            remove_all(&aside);
        }
        made.map_err(|error: io::Error| format!("{}: {error}", folder.display()))?;
        Ok(folder)
    }

    /// The folder has no reachable name any more.
    fn put_aside(&self, run: &str, id: &str) -> io::Result<PathBuf> {
        let plain_id: String = id.chars().filter(char::is_ascii_alphanumeric).take(64).collect();
        let aside = self.root.join(format!("{GOING}{plain_id}"));
        remove_all(&aside);
        match fs::rename(self.root.join(run), &aside) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(aside), // somebody else may have removed it
        }
    }

    /// The folder of a role, if the run of this id is here.
    pub(super) fn find(&self, run: &str, id: &str, role: &str) -> Result<PathBuf, String> {
        let is_here = self.known().get(run).is_some_and(|known| known.id == id);
        match is_here {
            true => plain(&plain(&self.root, run)?, role),
            false => Err(format!("this worker has no files of run {run}")),
        }
    }

    /// Returns the folders. Folders of runs without a process are measured once, on their own thread.
    pub(super) fn told(self: &Arc<Self>, active: &BTreeSet<String>) -> Vec<RunFolder> {
        let mut known = self.known();
        for (run, of) in known.iter_mut() {
            if active.contains(run) {
                of.is_measured = false;
            } else if !std::mem::replace(&mut of.is_measured, true) {
                let (folders, run) = (Arc::clone(self), run.clone());
                let measure = move || {
                    let bytes = bytes_in(&folders.root.join(&run));
                    if let Some(of) = folders.known().get_mut(&run) {
                        of.bytes = bytes;
                    }
                };
                let thread = std::thread::Builder::new().name("tm-measure".into()).spawn(measure);
                of.is_measured = thread.is_ok();
            }
        }
        let told = known.iter();
        told.map(|(run, of)| RunFolder { run: run.clone(), id: of.id.clone(), bytes: of.bytes }).collect()
    }

    /// Removes what is to go, on a thread of its own; not what a process of a run is in.
    pub(super) fn remove(self: &Arc<Self>, going: &[RunFolder], active: &BTreeSet<String>) {
        for RunFolder { run, id, .. } in going.iter().filter(|one| !active.contains(&one.run)) {
            let aside = {
                let mut known = self.known();
                if known.get(run).is_none_or(|of| of.id != *id) {
                    continue;
                }
                let aside = self.put_aside(run, id);
                if aside.is_ok() {
                    known.remove(run);
                }
                aside
            };
            let run = run.clone();
            let work = move || match aside {
                Ok(aside) => {
                    remove_all(&aside);
                    tracing::info!("removed the files of run {run}");
                }
                Err(error) => tracing::warn!("cannot remove the files of run {run}: {error}"),
            };
            if let Err(error) = std::thread::Builder::new().name("tm-remove".into()).spawn(work) {
                tracing::error!("cannot start the thread that removes files: {error}");
            }
        }
    }
}

/// A failure is logged; the next process tries again.
fn remove_all(folder: &Path) {
    if let Err(error) = fs::remove_dir_all(folder)
        && error.kind() != ErrorKind::NotFound
    {
        tracing::warn!("cannot remove {}: {error}", folder.display());
    }
}

/// Bytes of all files in a folder, links not followed.
pub(crate) fn bytes_in(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let bytes = entries.map(|entry| match entry.metadata() {
        Ok(found) if found.is_dir() => bytes_in(&entry.path()),
        Ok(found) if found.is_file() => found.len(),
        _ => 0,
    });
    bytes.sum()
}

/// A folder that is directly in another one.
fn plain(folder: &Path, name: &str) -> Result<PathBuf, String> {
    let mut parts = Path::new(name).components();
    match (parts.next(), parts.next()) {
        (Some(Component::Normal(part)), None) if part == name => Ok(folder.join(name)),
        _ => Err(format!("`{}` is not the name of a folder", name.chars().take(80).collect::<String>())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn until(is_so: impl Fn() -> bool) {
        while !is_so() {
            std::thread::yield_now();
        }
    }

    fn night(id: &str) -> BTreeMap<String, String> {
        [("night".to_owned(), id.to_owned())].into()
    }

    /// Its files came after it was cancelled, removed and submitted again.
    #[test]
    fn files_that_come_late_leave_the_run_of_that_name_alone() {
        let root = tempfile::tempdir().unwrap();
        let folders = Folders::open(root.path().join("runs"));
        folders.follow(night("1"), &[]);
        folders.follow(night("2"), &[]);
        let folder = folders.prepare("night", "2", "edge").unwrap();
        fs::write(folder.join("out.csv"), "new").unwrap();
        assert!(folders.prepare("night", "1", "edge").is_err());
        assert!(folder.join("out.csv").exists());
        folders.follow(BTreeMap::new(), &["night".to_owned()]);
        assert!(folders.prepare("night", "2", "edge").is_ok(), "it is not settled");
        folders.follow(BTreeMap::new(), &[]);
        assert!(folders.prepare("night", "2", "edge").is_err(), "nobody would remove it");
    }

    #[test]
    fn a_run_of_the_same_name_begins_with_nothing() {
        let root = tempfile::tempdir().unwrap();
        let folders = Folders::open(root.path().join("runs"));
        folders.follow(night("1"), &[]);
        let folder = folders.prepare("night", "1", "edge").unwrap();
        fs::write(folder.join("out.csv"), "old").unwrap();
        assert_eq!(folders.prepare("night", "1", "edge").unwrap(), folder);
        assert!(folder.join("out.csv").exists(), "it is the same run");
        folders.follow(night("2"), &[]);
        folders.prepare("night", "2", "edge").unwrap();
        assert!(!folder.join("out.csv").exists());
        assert!(folders.find("night", "1", "edge").is_err());
        assert_eq!(folders.find("night", "2", "edge").unwrap(), folder);
        for name in ["..", "a/b", "", "/etc", ".", "a/"] {
            assert!(folders.prepare(name, "1", "edge").is_err(), "{name}");
            assert!(folders.prepare("night", "2", name).is_err(), "{name}");
        }
    }

    #[test]
    fn only_the_run_that_is_meant_goes() {
        let root = tempfile::tempdir().unwrap();
        let folders = Folders::open(root.path().join("runs"));
        folders.follow(night("2"), &[]);
        let folder = folders.prepare("night", "2", "edge").unwrap();
        fs::write(folder.join("out.csv"), "12345").unwrap();
        let meant = |id: &str| [RunFolder { run: "night".into(), id: id.into(), bytes: 0 }];
        let (nobody, night) = (BTreeSet::new(), BTreeSet::from(["night".to_owned()]));
        folders.remove(&meant("1"), &nobody);
        folders.remove(&meant("2"), &night);
        let bytes = || folders.told(&nobody).first().map(|one| one.bytes);
        until(|| bytes() == Some(5 + 2));
        assert!(folder.join("out.csv").exists(), "it is another run, or one that has a process");
        // The next process of the agent knows it as well.
        let folders = Folders::open(root.path().join("runs"));
        folders.remove(&meant("2"), &nobody);
        assert!(!root.path().join("runs/night").exists() && folders.told(&nobody).is_empty());
        until(|| fs::read_dir(root.path().join("runs")).unwrap().next().is_none());
    }
}
