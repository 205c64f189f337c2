//! A folder as programs see it and as it is on the disk, and what a loss of power may leave of it.
//!
//! After ALICE (Pillai and others, "All file systems are not created equal", 2014): names that were not synced may have changed or not,
//! each for itself; of bytes that were not synced all may be there, none, some, or zeros in their place.
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;
use tidemill_random::Random;

/// A file, whatever its names are: numbers are given again, and not to two files of one moment.
pub(crate) type FileId = (u64, Option<SystemTime>);

/// The bytes of a file.
#[derive(Clone, Default)]
struct Bytes {
    seen: Arc<Vec<u8>>,
    on_disk: Arc<Vec<u8>>,
}

/// A change of names that is not on the disk yet. What a name stands for: a file, or a folder where there is none.
#[derive(Clone)]
enum Change {
    Link(PathBuf, Option<FileId>),
    Rename(PathBuf, PathBuf, Option<FileId>),
    Unlink(PathBuf),
}

type Names = BTreeMap<PathBuf, Option<FileId>>;

impl Change {
    fn folder(&self) -> Option<&Path> {
        match self {
            Self::Link(path, _) | Self::Rename(_, path, _) | Self::Unlink(path) => path.parent(),
        }
    }

    fn apply(&self, names: &mut Names) {
        match self {
            Self::Link(path, file) => drop(names.insert(path.clone(), *file)),
            Self::Rename(from, to, file) => {
                names.remove(from);
                names.insert(to.clone(), *file);
            }
            Self::Unlink(path) => drop(names.remove(path)),
        }
    }
}

/// See the module. Paths are relative to the folder.
#[derive(Clone, Default)]
pub(crate) struct Survivors {
    files: BTreeMap<FileId, Bytes>,
    names: Names,
    names_on_disk: Names,
    changes: Vec<Change>,
}

/// What may have become of bytes that were not synced.
const FATES: usize = 6;

impl Survivors {
    fn change(&mut self, change: Change) {
        change.apply(&mut self.names);
        self.changes.push(change);
    }

    /// What programs see now; what nobody told of has just been made, or is gone.
    pub(crate) fn see(&mut self, found: BTreeMap<PathBuf, Option<(FileId, Vec<u8>)>>) {
        let gone: Vec<PathBuf> =
            self.names.keys().filter(|name| !found.contains_key(*name)).cloned().collect();
        gone.into_iter().for_each(|name| self.change(Change::Unlink(name)));
        for (name, entry) in found {
            let file = entry.as_ref().map(|(file, _)| *file);
            if self.names.get(&name) != Some(&file) {
                self.change(Change::Link(name, file));
            }
            if let Some((file, bytes)) = entry {
                let known = self.files.entry(file).or_default();
                if *known.seen != bytes {
                    known.seen = Arc::new(bytes);
                }
            }
        }
    }

    pub(crate) fn sync_file(&mut self, file: FileId, bytes: Vec<u8>) {
        let bytes = Arc::new(bytes);
        self.files.insert(file, Bytes { seen: Arc::clone(&bytes), on_disk: bytes });
    }

    pub(crate) fn sync_folder(&mut self, path: &Path) {
        let Self { changes, names_on_disk, .. } = self;
        changes.retain(|change| {
            let is_here = change.folder() == Some(path);
            if is_here {
                change.apply(names_on_disk);
            }
            !is_here
        });
    }

    pub(crate) fn rename(&mut self, from: &Path, to: &Path) {
        let file = self.names.get(from).copied().flatten();
        self.change(Change::Rename(from.to_owned(), to.to_owned(), file));
    }

    pub(crate) fn remove(&mut self, path: &Path) {
        self.change(Change::Unlink(path.to_owned()));
    }

    /// Files that have a name or may have one, and are not on the disk as they are seen.
    fn unsynced(&self) -> Vec<FileId> {
        let named = self.names.values().chain(self.names_on_disk.values()).flatten();
        let mut files: Vec<FileId> = named.copied().collect();
        files.extend(self.changes.iter().filter_map(|change| match change {
            Change::Link(_, file) | Change::Rename(_, _, file) => *file,
            Change::Unlink(_) => None,
        }));
        files.sort_unstable();
        files.dedup();
        files.retain(|file| self.files.get(file).is_some_and(|bytes| bytes.seen != bytes.on_disk));
        files
    }

    /// What is there after a loss of power, if each of the things that are not on the disk ends as chosen.
    fn after(&self, unsynced: &[FileId], chosen: &[usize]) -> Image {
        let (changes, fates) = chosen.split_at(self.changes.len());
        let mut names = self.names_on_disk.clone();
        for (change, _) in self.changes.iter().zip(changes).filter(|(_, fate)| **fate == 1) {
            change.apply(&mut names);
        }
        let all = names.clone();
        // The folder itself is always there.
        names.retain(|path, _| {
            path.ancestors()
                .skip(1)
                .all(|above| above.as_os_str().is_empty() || all.get(above) == Some(&None))
        });
        let bytes_of = |file: &FileId| {
            let bytes = self.files.get(file).cloned().unwrap_or_default();
            match unsynced.iter().position(|other| other == file) {
                Some(at) => bytes.after(fates.get(at).copied().unwrap_or(0)),
                None => bytes.seen.to_vec(),
            }
        };
        Image(names.into_iter().map(|(path, file)| (path, file.map(|file| bytes_of(&file)))).collect())
    }

    /// What may be there after a loss of power: everything, if it is not more than `most`, or else a sample.
    pub(crate) fn images(&self, most: usize, seed: u64) -> Vec<Image> {
        let unsynced = self.unsynced();
        let fates: Vec<usize> =
            self.changes.iter().map(|_| 2).chain(unsynced.iter().map(|_| FATES)).collect();
        let count = fates.iter().try_fold(1usize, |count, fate| count.checked_mul(*fate));
        if let Some(count) = count.filter(|count| *count <= most) {
            let number = |mut number: usize| {
                let digit = |fate: &usize| {
                    let digit = number % fate;
                    number /= fate;
                    digit
                };
                self.after(&unsynced, &fates.iter().map(digit).collect::<Vec<_>>())
            };
            return (0..count).map(number).collect();
        }
        let mut random = Random::of_seed(seed);
        let sample = |index: usize| {
            let choose = |fate: &usize| match index {
                0 => 0,
                1 => fate - 1,
                _ => random.below(*fate),
            };
            let chosen: Vec<usize> = fates.iter().map(choose).collect();
            self.after(&unsynced, &chosen)
        };
        (0..most).map(sample).collect()
    }
}

impl Bytes {
    /// What both have in common at the beginning was synced and not touched since.
    fn after(&self, fate: usize) -> Vec<u8> {
        let (seen, on_disk) = (&self.seen[..], &self.on_disk[..]);
        let common = seen.iter().zip(on_disk).take_while(|(one, other)| one == other).count();
        let (kept, new) = seen.split_at(common);
        let (front, back) = new.split_at(new.len() / 2);
        match fate {
            0 => on_disk.to_vec(),
            1 => kept.to_vec(),
            2 => [kept, front].concat(),
            3 => [kept, front, &vec![0; back.len()]].concat(),
            4 => [kept, &vec![0; front.len()], back].concat(),
            _ => seen.to_vec(),
        }
    }
}

/// A loss of power.
pub struct Loss {
    /// What the test thought then ([`crate::Watch::think`]).
    pub thought: usize,
    /// Counts the operations before it.
    pub operation: usize,
    /// What is left of the folder.
    pub image: Image,
}

/// What a folder has after a loss of power: files with their bytes, and folders.
pub struct Image(BTreeMap<PathBuf, Option<Vec<u8>>>);

impl Image {
    /// Makes a folder as this is.
    ///
    /// # Errors
    /// Of the system.
    pub fn write_to(&self, folder: &Path) -> io::Result<()> {
        std::fs::create_dir_all(folder)?;
        // Folders come before what is in them.
        for (path, bytes) in &self.0 {
            match bytes {
                Some(bytes) => std::fs::write(folder.join(path), bytes)?,
                None => std::fs::create_dir_all(folder.join(path))?,
            }
        }
        Ok(())
    }

    /// Changes the bytes of each file, for what a boot of the machine changes.
    pub fn change(&mut self, mut change: impl FnMut(&Path, &mut Vec<u8>)) {
        for (path, bytes) in &mut self.0 {
            if let Some(bytes) = bytes {
                change(path, bytes);
            }
        }
    }

    /// Names and lengths, to be shown.
    pub fn listing(&self) -> Vec<String> {
        let entry = |(path, bytes): (&PathBuf, &Option<Vec<u8>>)| match bytes {
            Some(bytes) => format!("{} ({} bytes)", path.display(), bytes.len()),
            None => format!("{}/", path.display()),
        };
        self.0.iter().map(entry).collect()
    }
}
