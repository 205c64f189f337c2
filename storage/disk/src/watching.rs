//! Watching of a folder by a test.
use crate::Operation;
use crate::survivors::{FileId, Loss, Survivors};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

thread_local! {
    static WATCHED: RefCell<Option<Rc<RefCell<Watched>>>> = const { RefCell::new(None) };
}

struct Watched {
    folder: PathBuf,
    now: Survivors,
    thought: usize,
    history: Vec<(Survivors, usize)>,
    /// The kind of sync that is skipped.
    forgets: Option<Forgets>,
}

/// The kind of sync that a test makes a program forget.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Forgets {
    Files,
    Folders,
}

/// Watches this thread's use of a folder through this crate, for its own lifetime. Only one at a time per thread.
pub struct Watch(Rc<RefCell<Watched>>);

impl Watch {
    /// Starts; the present contents of the folder are on the disk.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn begin(folder: &Path) -> io::Result<Self> {
        let folder = folder.canonicalize()?;
        let mut now = Survivors::default();
        let found = contents(&folder)?;
        let files: Vec<_> = found.values().flatten().cloned().collect();
        let mut folders: Vec<PathBuf> =
            found.keys().filter_map(|name| name.parent().map(Path::to_owned)).collect();
        now.see(found);
        files.into_iter().for_each(|(file, bytes)| now.sync_file(file, bytes));
        folders.dedup();
        folders.iter().for_each(|folder| now.sync_folder(folder));
        let watched = Watched { folder, now, thought: 0, history: Vec::new(), forgets: None };
        let watched = Rc::new(RefCell::new(watched));
        WATCHED.with(|of_thread| *of_thread.borrow_mut() = Some(Rc::clone(&watched)));
        Ok(Self(watched))
    }

    /// Skips syncs of files from now on: a test that does not notice is worthless.
    pub fn forget_files(&self) {
        self.0.borrow_mut().forgets = Some(Forgets::Files);
    }

    /// Skips syncs of folders from now on.
    pub fn forget_folders(&self) {
        self.0.borrow_mut().forgets = Some(Forgets::Folders);
    }

    /// Sets the test's expectation from now on; a number of the test's own.
    pub fn think(&self, thought: usize) {
        let mut watched = self.0.borrow_mut();
        watched.look();
        watched.thought = thought;
        watched.look();
    }

    /// Returns the possible losses of power, before each operation and after it: at each moment all of them, if they
    /// are at most `most`, or else a sample.
    pub fn losses(&self, most: usize) -> Vec<Loss> {
        let mut watched = self.0.borrow_mut();
        watched.look();
        let mut losses = Vec::new();
        for (operation, (now, thought)) in watched.history.iter().enumerate() {
            let images = now.images(most, operation as u64).into_iter();
            losses.extend(images.map(|image| Loss { thought: *thought, operation, image }));
        }
        losses
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        WATCHED.with(|of_thread| of_thread.borrow_mut().take());
    }
}

impl Watched {
    /// Records the present state.
    fn look(&mut self) {
        // A file removed concurrently is gone.
        if let Ok(found) = contents(&self.folder) {
            self.now.see(found);
        }
        self.history.push((self.now.clone(), self.thought));
    }

    fn relative(&self, path: &Path) -> Option<PathBuf> {
        let (parent, name) = (path.parent()?, path.file_name()?);
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        let real = parent.canonicalize().ok()?.join(name);
        real.strip_prefix(&self.folder).ok().map(Path::to_owned)
    }

    fn done(&mut self, operation: Operation<'_>) {
        match operation {
            Operation::SyncFile(file) if self.forgets != Some(Forgets::Files) => {
                // This also reads a descriptor that is write-only or has no name.
                let bytes = std::fs::read(format!("/proc/self/fd/{}", file.as_raw_fd()));
                if let (Ok(found), Ok(bytes)) = (file.metadata(), bytes) {
                    self.now.sync_file(id(&found), bytes);
                }
            }
            Operation::SyncFolder(path) if self.forgets != Some(Forgets::Folders) => {
                let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
                if let Ok(relative) = real.strip_prefix(&self.folder) {
                    let relative = relative.to_owned();
                    self.now.sync_folder(&relative);
                }
            }
            Operation::SyncFile(_) | Operation::SyncFolder(_) => {}
            Operation::Rename(from, to) => {
                if let (Some(from), Some(to)) = (self.relative(from), self.relative(to)) {
                    self.now.rename(&from, &to);
                }
            }
            Operation::Remove(path) => {
                if let Some(path) = self.relative(path) {
                    self.now.remove(&path);
                }
            }
        }
        self.look();
    }
}

fn id(found: &Metadata) -> FileId {
    (found.ino(), found.created().ok())
}

/// Contents of a folder, by relative path; none for folders.
type Contents = BTreeMap<PathBuf, Option<(FileId, Vec<u8>)>>;

/// Reads the contents of a folder.
fn contents(folder: &Path) -> io::Result<Contents> {
    let mut found = BTreeMap::new();
    let mut open = vec![PathBuf::new()];
    while let Some(relative) = open.pop() {
        for entry in std::fs::read_dir(folder.join(&relative))? {
            let entry = entry?;
            let path = relative.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                open.push(path.clone());
                found.insert(path, None);
            } else {
                let file = File::open(entry.path())?;
                found.insert(path, Some((id(&file.metadata()?), std::fs::read(entry.path())?)));
            }
        }
    }
    Ok(found)
}

/// Performs an operation that may be watched.
pub(crate) fn watched<T>(operation: Operation<'_>, act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let watched = WATCHED.with(|of_thread| of_thread.borrow().clone());
    let Some(watched) = watched else { return act() };
    watched.borrow_mut().look();
    let result = act();
    if result.is_ok() {
        watched.borrow_mut().done(operation);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{remove, rename, sync_all, sync_folder};
    use std::collections::BTreeSet;
    use std::io::Write;

    /// All possible contents at the end, as text.
    fn left(watch: &Watch) -> BTreeSet<String> {
        let losses = watch.losses(10_000);
        let last = losses.iter().map(|loss| loss.operation).max().unwrap();
        losses
            .iter()
            .filter(|loss| loss.operation == last)
            .map(|loss| loss.image.listing().join(", "))
            .collect()
    }

    fn set(expected: &[&str]) -> BTreeSet<String> {
        expected.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn what_was_synced_is_left_and_of_the_rest_anything() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("old"), "1").unwrap();
        let watch = Watch::begin(folder.path()).unwrap();
        assert_eq!(left(&watch), set(&["old (1 bytes)"]));
        let new = folder.path().join("new");
        let mut file = File::create(&new).unwrap();
        file.write_all(b"1234").unwrap();
        assert_eq!(
            left(&watch),
            set(&[
                "old (1 bytes)",
                "new (0 bytes), old (1 bytes)",
                "new (2 bytes), old (1 bytes)",
                "new (4 bytes), old (1 bytes)"
            ])
        );
        sync_all(&file).unwrap();
        assert_eq!(left(&watch), set(&["old (1 bytes)", "new (4 bytes), old (1 bytes)"]));
        sync_folder(folder.path()).unwrap();
        assert_eq!(left(&watch), set(&["new (4 bytes), old (1 bytes)"]));
        rename(&new, &folder.path().join("old")).unwrap();
        assert_eq!(left(&watch), set(&["new (4 bytes), old (1 bytes)", "old (4 bytes)"]));
        sync_folder(folder.path()).unwrap();
        remove(&folder.path().join("old")).unwrap();
        assert_eq!(left(&watch), set(&["", "old (4 bytes)"]));
    }

    #[test]
    fn a_file_that_grows_keeps_what_was_synced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let mut file = File::create(&path).unwrap();
        file.write_all(b"kept").unwrap();
        let watch = Watch::begin(folder.path()).unwrap();
        file.write_all(b"more").unwrap();
        let place = tempfile::tempdir().unwrap();
        let mut found = BTreeSet::new();
        for (number, loss) in watch.losses(100).iter().enumerate() {
            let into = place.path().join(number.to_string());
            loss.image.write_to(&into).unwrap();
            found.insert(std::fs::read(into.join("a")).unwrap());
        }
        let expected = [&b"kept"[..], b"keptmo", b"keptmo\0\0", b"kept\0\0re", b"keptmore"];
        assert_eq!(found, expected.iter().map(|bytes| bytes.to_vec()).collect());
    }
}
