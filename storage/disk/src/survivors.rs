//! A folder as programs see it and as it is on the disk, and its possible contents after a loss of power.
//!
//! After ALICE (Pillai and others, "All file systems are not created equal", 2014): names that were not synced may have
//! changed or not, each independently; of bytes that were not synced all may be there, none, some, or zeros in their
//! place.
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;
use tidemill_random::Random;

/// Identity of a file independent of its names: inode numbers are reused, but never by two files at once.
pub(crate) type FileId = (u64, Option<SystemTime>);

/// The bytes of a file.
#[derive(Clone, Default)]
struct Bytes {
    seen: Arc<Vec<u8>>,
    on_disk: Arc<Vec<u8>>,
}

/// A change of names that is not on the disk yet. A name stands for a file, or for a folder where there is none.
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

/// The state of a folder, see the module. Paths are relative to the folder.
#[derive(Clone, Default)]
pub(crate) struct Survivors {
    files: BTreeMap<FileId, Bytes>,
    names: Names,
    names_on_disk: Names,
    changes: Vec<Change>,
}

/// Number of possible outcomes for bytes that were not synced.
const FATES: usize = 6;

impl Survivors {
    fn change(&mut self, change: Change) {
        change.apply(&mut self.names);
        self.changes.push(change);
    }

    /// Records the present view of programs; unreported names have just been created or removed.
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

    /// Files that have a name or may have one, and differ between view and disk.
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

    /// The contents after a loss of power, with the chosen outcome of each unsynced item.
    fn after(&self, unsynced: &[FileId], chosen: &[usize]) -> Image {
        let (changes, fates) = chosen.split_at(self.changes.len());
        let mut names = self.names_on_disk.clone();
        for (change, _) in self.changes.iter().zip(changes).filter(|(_, fate)| **fate == 1) {
            change.apply(&mut names);
        }
        let all = names.clone();
        // The folder itself always exists.
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

    /// Possible contents after a loss of power: all of them, if they are at most `most`, or else a sample.
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
    /// The common beginning of both was synced and not touched since.
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
    /// The test's expectation at that moment ([`crate::Watch::think`]).
    pub thought: usize,
    /// Number of the operations before it.
    pub operation: usize,
    /// The remaining contents of the folder.
    pub image: Image,
}

/// Contents of a folder after a loss of power: files with their bytes, and folders.
pub struct Image(BTreeMap<PathBuf, Option<Vec<u8>>>);

impl Image {
    /// Creates a folder with these contents.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn write_to(&self, folder: &Path) -> io::Result<()> {
        std::fs::create_dir_all(folder)?;
        // Folders come before their contents.
        for (path, bytes) in &self.0 {
            match bytes {
                Some(bytes) => std::fs::write(folder.join(path), bytes)?,
                None => std::fs::create_dir_all(folder.join(path))?,
            }
        }
        Ok(())
    }

    /// Changes the bytes of each file, for changes by a reboot of the machine.
    pub fn change(&mut self, mut change: impl FnMut(&Path, &mut Vec<u8>)) {
        for (path, bytes) in &mut self.0 {
            if let Some(bytes) = bytes {
                change(path, bytes);
            }
        }
    }

    /// Returns names and lengths, for display.
    pub fn listing(&self) -> Vec<String> {
        let entry = |(path, bytes): (&PathBuf, &Option<Vec<u8>>)| match bytes {
            Some(bytes) => format!("{} ({} bytes)", path.display(), bytes.len()),
            None => format!("{}/", path.display()),
        };
        self.0.iter().map(entry).collect()
    }
}
