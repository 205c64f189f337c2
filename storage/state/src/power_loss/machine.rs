//! A file system that models the data on its disk and the data not yet there, and can lose its power.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::io::Errno;
use tidemill_random::Random;

use crate::files::Files;

/// A file's bytes as programs see them, and as they are on the disk.
#[derive(Clone, Default)]
struct Bytes {
    seen: Vec<u8>,
    on_disk: Vec<u8>,
    synced: bool,
}

/// A change of names that is not on the disk yet. A name stands for an index into `files`; none is a folder.
#[derive(Clone)]
enum Change {
    Link(PathBuf, Option<usize>),
    Rename(PathBuf, PathBuf),
    Unlink(PathBuf),
}

impl Change {
    fn folder(&self) -> Option<&Path> {
        match self {
            Self::Link(path, _) | Self::Rename(_, path) | Self::Unlink(path) => path.parent(),
        }
    }

    fn apply(&self, names: &mut BTreeMap<PathBuf, Option<usize>>, seen: Option<usize>) {
        match self {
            Self::Link(path, file) => {
                names.insert(path.clone(), *file);
            }
            Self::Rename(from, to) => {
                names.remove(from);
                names.insert(to.clone(), seen);
            }
            Self::Unlink(path) => {
                names.remove(path);
            }
        }
    }
}

/// The file system.
#[derive(Clone, Default)]
pub(super) struct Machine {
    files: Vec<Bytes>,
    names: BTreeMap<PathBuf, Option<usize>>,
    names_on_disk: BTreeMap<PathBuf, Option<usize>>,
    /// Each with the file or folder of a renamed name.
    changes: Vec<(Change, Option<usize>)>,
}

/// Number of possible outcomes for bytes that were not synced.
const FATES: usize = 6;

impl Machine {
    fn change(&mut self, change: Change, file: Option<usize>) {
        change.apply(&mut self.names, file);
        self.changes.push((change, file));
    }

    fn file(&self, path: &Path) -> io::Result<usize> {
        self.names.get(path).copied().flatten().ok_or_else(|| Errno::NOENT.into())
    }

    /// Number of possible outcomes of each unsynced item.
    fn fates(&self) -> Vec<usize> {
        let unsynced = self.files.iter().filter(|file| !file.synced);
        self.changes.iter().map(|_| 2).chain(unsynced.map(|_| FATES)).collect()
    }

    /// The contents after a loss of power, with the chosen outcome of each item.
    fn after(&self, chosen: &[usize]) -> Self {
        let (changes, fates) = chosen.split_at(self.changes.len());
        let mut names = self.names_on_disk.clone();
        for ((change, file), _) in self.changes.iter().zip(changes).filter(|(_, fate)| **fate == 1) {
            change.apply(&mut names, *file);
        }
        let all = names.clone();
        // The root always exists.
        names.retain(|path, _| {
            path.parent().is_none_or(|folder| folder.parent().is_none() || all.contains_key(folder))
        });
        let mut fates = fates.iter();
        let files = self.files.iter().map(|file| {
            let bytes = if file.synced { file.seen.clone() } else { file.after(*fates.next().unwrap_or(&0)) };
            Bytes { seen: bytes.clone(), on_disk: bytes, synced: true }
        });
        Self { files: files.collect(), names_on_disk: names.clone(), names, changes: Vec::new() }
    }

    /// Possible contents after a loss of power: all of them, if they are at most `most`, or else a sample.
    pub(super) fn after_power_loss(&self, most: usize, seed: u64) -> Vec<Self> {
        let fates = self.fates();
        let count = fates.iter().try_fold(1usize, |count, fate| count.checked_mul(*fate));
        if let Some(count) = count.filter(|count| *count <= most) {
            return (0..count)
                .map(|mut number| {
                    let digit = |fate: &usize| {
                        let digit = number % fate;
                        number /= fate;
                        digit
                    };
                    self.after(&fates.iter().map(digit).collect::<Vec<_>>())
                })
                .collect();
        }
        let mut random = Random::of_seed(seed);
        (0..most)
            .map(|index| {
                let choose = |fate: &usize| match index {
                    0 => 0,
                    1 => fate - 1,
                    _ => random.below(*fate),
                };
                self.after(&fates.iter().map(choose).collect::<Vec<_>>())
            })
            .collect()
    }
}

impl Bytes {
    fn after(&self, fate: usize) -> Vec<u8> {
        let half = self.seen.len() / 2;
        let (front, back) = self.seen.split_at(half);
        match fate {
            0 => Vec::new(),
            1 => self.on_disk.clone(),
            2 => front.to_vec(),
            3 => [front, &vec![0; back.len()]].concat(),
            4 => [&vec![0; front.len()], back].concat(),
            _ => self.seen.clone(),
        }
    }
}

/// A fault besides the loss of power.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    /// The operation of this number fails as if the disk were full.
    Full(usize),
    /// The process ends before the operation of this number: nothing more happens until it starts again.
    Killed(usize),
}

/// A program that forgets to sync, to prove that the test would notice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Forgets {
    ObjectBytes,
    ObjectNames,
    ManifestBytes,
    ManifestName,
}

/// The machine before each operation, with the test's expectation at that moment.
pub(super) struct Recording<Thought> {
    pub(super) machine: Machine,
    pub(super) thought: Thought,
    pub(super) history: Vec<(Machine, Thought)>,
    pub(super) fault: Option<Fault>,
    pub(super) forgets: Option<Forgets>,
    pub(super) operations: usize,
}

impl<Thought: Clone> Recording<Thought> {
    fn operation(&mut self) -> io::Result<()> {
        let number = self.operations;
        self.operations += 1;
        match self.fault {
            Some(Fault::Full(at)) if at == number => Err(Errno::NOSPC.into()),
            Some(Fault::Killed(at)) if at <= number => Err(Errno::IO.into()),
            _ => {
                self.history.push((self.machine.clone(), self.thought.clone()));
                Ok(())
            }
        }
    }
}

/// The recorded machine's files.
pub(super) struct Recorded<Thought>(pub(super) Arc<Mutex<Recording<Thought>>>);

impl<Thought> Recorded<Thought> {
    fn lock(&self) -> MutexGuard<'_, Recording<Thought>> {
        self.0.lock().expect("no test panics with it")
    }
}

impl<Thought: Clone + Send> Files for Recorded<Thought> {
    fn create_folder(&mut self, path: &Path) -> io::Result<()> {
        let mut it = self.lock();
        it.operation()?;
        if !it.machine.names.contains_key(path) {
            it.machine.change(Change::Link(path.to_owned(), None), None);
        }
        Ok(())
    }

    fn write(&mut self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut it = self.lock();
        let result = it.operation();
        if matches!(it.fault, Some(Fault::Killed(_))) {
            result.as_ref().map_err(|_| Errno::IO)?;
        }
        let file = it.machine.file(path).unwrap_or_else(|_| {
            it.machine.files.push(Bytes::default());
            let file = it.machine.files.len() - 1;
            it.machine.change(Change::Link(path.to_owned(), Some(file)), Some(file));
            file
        });
        let file = &mut it.machine.files[file];
        // On a full disk a part is written.
        file.seen = if result.is_ok() { bytes.to_vec() } else { bytes[..bytes.len() / 3].to_vec() };
        file.synced = false;
        result
    }

    fn sync(&mut self, path: &Path) -> io::Result<()> {
        let mut it = self.lock();
        it.operation()?;
        let is_object = path.extension().is_some_and(|extension| extension == "object");
        let forgotten = if is_object { Forgets::ObjectBytes } else { Forgets::ManifestBytes };
        let file = it.machine.file(path)?;
        if it.forgets != Some(forgotten) {
            let file = &mut it.machine.files[file];
            file.on_disk.clone_from(&file.seen);
            file.synced = true;
        }
        Ok(())
    }

    fn sync_folder(&mut self, path: &Path) -> io::Result<()> {
        let mut it = self.lock();
        it.operation()?;
        let is_objects = path.ends_with("objects");
        let forgotten = if is_objects { Forgets::ObjectNames } else { Forgets::ManifestName };
        if it.forgets != Some(forgotten) {
            let Machine { changes, names_on_disk, .. } = &mut it.machine;
            changes.retain(|(change, file)| {
                let is_here = change.folder() == Some(path);
                if is_here {
                    change.apply(names_on_disk, *file);
                }
                !is_here
            });
        }
        Ok(())
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let mut it = self.lock();
        it.operation()?;
        let file = it.machine.file(from)?;
        it.machine.change(Change::Rename(from.to_owned(), to.to_owned()), Some(file));
        Ok(())
    }

    fn remove(&mut self, path: &Path) -> io::Result<()> {
        let mut it = self.lock();
        it.operation()?;
        it.machine.file(path)?;
        it.machine.change(Change::Unlink(path.to_owned()), None);
        Ok(())
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let it = self.lock();
        it.machine.file(path).map(|file| it.machine.files[file].seen.clone())
    }

    fn names(&self, path: &Path) -> io::Result<Vec<String>> {
        let it = self.lock();
        let here = it.machine.names.keys().filter(|name| name.parent() == Some(path));
        Ok(here.filter_map(|name| Some(name.file_name()?.to_string_lossy().into_owned())).collect())
    }
}
