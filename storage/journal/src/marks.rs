//! Numbers that readers of a journal find again: durable before they count.
//!
//! A reader has its own file, `marks-NAME`: `TMJM`, the version 1, and after these 8 bytes a mark of 20 bytes each: a
//! number, its position in the reader's data (8 bytes each, little endian), and the crc32c of both. Marks no longer
//! needed are dropped when the file has become long.
use crate::error::JournalError;
use crate::journal::{Journal, lock};
use crate::segments;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const HEAD: &[u8; 8] = b"TMJM\x01\0\0\0";
const MARK: usize = 20;
/// A file of this length, and of twice its length when it was last written, is rewritten with the marks still needed.
const LONG: u64 = 64 << 10;

/// The marks of one reader.
pub(crate) struct Marks {
    path: PathBuf,
    /// The position of each number.
    pub(crate) known: BTreeMap<u64, u64>,
    /// Open for writing; none: not written since it was opened, or the last write failed.
    file: Option<Written>,
}

/// A file to append marks to.
struct Written {
    file: File,
    length: u64,
    /// Length beyond which it is rewritten.
    most: u64,
}

fn path_of(folder: &Path, reader: &str) -> PathBuf {
    folder.join(format!("marks-{reader}"))
}

fn bytes_of((number, at): (&u64, &u64)) -> [u8; MARK] {
    let mut bytes = [0; MARK];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes[8..16].copy_from_slice(&at.to_le_bytes());
    let checksum = crc32c::crc32c(&bytes[..16]);
    bytes[16..].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

fn mark_of(bytes: &[u8]) -> Option<(u64, u64)> {
    let (number, rest) = bytes.split_first_chunk::<8>()?;
    let (at, checksum) = rest.split_first_chunk::<8>()?;
    let is_right = crc32c::crc32c(&bytes[..16]).to_le_bytes() == *checksum;
    is_right.then(|| (u64::from_le_bytes(*number), u64::from_le_bytes(*at)))
}

/// Parses the marks of a file; an error describes the problem.
pub(crate) fn read(bytes: &[u8]) -> Result<BTreeMap<u64, u64>, String> {
    let marks = bytes.strip_prefix(HEAD).ok_or("it does not begin as a file of marks does")?;
    let found: Vec<_> = marks.chunks(MARK).map(mark_of).collect();
    let whole = found.iter().take_while(|mark| mark.is_some()).count();
    if found[whole..].iter().any(Option::is_some) {
        return Err(format!("what is behind byte {} is wrong", HEAD.len() + whole * MARK));
    }
    Ok(found.into_iter().flatten().collect())
}

/// Returns a file with these marks.
pub(crate) fn written(marks: &BTreeMap<u64, u64>) -> Vec<u8> {
    HEAD.iter().copied().chain(marks.iter().flat_map(bytes_of)).collect()
}

impl Marks {
    /// Reads the marks of a reader. Bytes after the last complete mark were being written when a process or the machine
    /// ended: no reader has relied on them. The last complete one may be in memory only, if the process was killed
    /// while it waited for the disk.
    pub(crate) fn open(folder: &Path, reader: &str) -> Result<Self, JournalError> {
        let path = path_of(folder, reader);
        let bytes = match File::open(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => HEAD.to_vec(),
            Err(error) => return Err(JournalError::io("read", &path, error)),
            Ok(mut file) => {
                tidemill_disk::sync_data(&file).map_err(|error| JournalError::io("synced", &path, error))?;
                let mut bytes = Vec::new();
                file.read_to_end(&mut bytes).map_err(|error| JournalError::io("read", &path, error))?;
                bytes
            }
        };
        let known = read(&bytes).map_err(|why| JournalError::damaged(&path, why))?;
        Ok(Self { path, known, file: None })
    }

    /// Adds a mark, durably. Numbers before `from` are no longer needed.
    pub(crate) fn add(&mut self, folder: &Path, number: u64, at: u64, from: u64) -> Result<(), JournalError> {
        self.known = self.known.split_off(&from);
        let written = match self.file.take() {
            Some(Written { file, length, most }) if length < most => {
                let appended = file
                    .write_all_at(&bytes_of((&number, &at)), length)
                    .and_then(|()| tidemill_disk::sync_data(&file));
                if let Err(error) = appended {
                    // The next process would find it, and the disk may not have it.
                    let _ = file.set_len(length);
                    return Err(JournalError::io("written", &self.path, error));
                }
                Written { file, length: length + MARK as u64, most }
            }
            // The first write rewrites the file, so that no mark follows half a mark, or an extra one.
            _ => {
                let mut all = written(&self.known);
                all.extend(bytes_of((&number, &at)));
                let file = segments::place(folder, &self.path, segments::NEW_MARKS, |file| {
                    file.write_all_at(&all, 0)
                })?;
                let length = all.len() as u64;
                Written { file, length, most: LONG.max(2 * length) }
            }
        };
        // Only now is it visible.
        self.known.insert(number, at);
        self.file = Some(written);
        Ok(())
    }
}

impl Journal {
    /// Returns the marks of a reader, given its name, a word without slashes: the position of each number.
    ///
    /// # Errors
    /// They cannot be read or are damaged.
    pub fn marks(&self, reader: &str) -> Result<BTreeMap<u64, u64>, JournalError> {
        self.with_marks(reader, |marks| Ok(marks.known.clone()))
    }

    /// Marks `number` at a position with a meaning to the reader: on the disk when this returns. Numbers before `from`
    /// are forgotten.
    ///
    /// # Errors
    /// Errors of the disk.
    pub fn mark(&self, reader: &str, number: u64, at: u64, from: u64) -> Result<(), JournalError> {
        self.with_marks(reader, |marks| marks.add(self.folder(), number, at, from))
    }

    fn with_marks<T>(
        &self,
        reader: &str,
        then: impl FnOnce(&mut Marks) -> Result<T, JournalError>,
    ) -> Result<T, JournalError> {
        let mut all = lock(&self.marks);
        if !all.contains_key(reader) {
            all.insert(reader.to_owned(), Marks::open(self.folder(), reader)?);
        }
        then(all.get_mut(reader).expect("put there above"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_marked_is_found_again() {
        let folder = tempfile::tempdir().unwrap();
        let mut marks = Marks::open(folder.path(), "s").unwrap();
        for number in 1..100 {
            marks.add(folder.path(), number, 10 * number, number.saturating_sub(50)).unwrap();
        }
        let again = Marks::open(folder.path(), "s").unwrap();
        assert_eq!(again.known.last_key_value(), Some((&99, &990)));
        assert!(
            again.known.contains_key(&49),
            "and more than are still wanted, until the file is written again"
        );
        assert!(Marks::open(folder.path(), "other").unwrap().known.is_empty());
        let names: Vec<_> =
            std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["marks-s"]);
    }

    #[test]
    fn the_file_has_a_bound() {
        let folder = tempfile::tempdir().unwrap();
        let mut marks = Marks::open(folder.path(), "s").unwrap();
        let mut longest = 0;
        for number in 1..10_000u64 {
            marks.add(folder.path(), number, number, number.saturating_sub(10)).unwrap();
            longest = longest.max(std::fs::metadata(path_of(folder.path(), "s")).unwrap().len());
        }
        assert!(longest > LONG && longest < LONG + 100, "{longest}");
        assert!(marks.known.len() == 11);
    }

    /// While no checkpoint can be written all marks are needed: the file grows, and is not rewritten for each of them.
    #[test]
    fn many_marks_that_are_wanted_are_not_written_again_and_again() {
        use std::os::unix::fs::MetadataExt;
        let folder = tempfile::tempdir().unwrap();
        let mut marks = Marks::open(folder.path(), "s").unwrap();
        let mut files = std::collections::BTreeSet::new();
        for number in 1..20_000u64 {
            marks.add(folder.path(), number, number, 0).unwrap();
            files.insert(std::fs::metadata(path_of(folder.path(), "s")).unwrap().ino());
        }
        let written = marks.file.as_ref().unwrap();
        assert_eq!(written.length, HEAD.len() as u64 + 19_999 * MARK as u64);
        assert!(files.len() < 8, "{} files", files.len());
        assert_eq!(Marks::open(folder.path(), "s").unwrap().known.len(), 19_999);
    }

    #[test]
    fn half_a_mark_does_not_count_and_is_not_written_behind() {
        let folder = tempfile::tempdir().unwrap();
        let path = path_of(folder.path(), "s");
        Marks::open(folder.path(), "s").unwrap().add(folder.path(), 1, 5, 0).unwrap();
        let whole = std::fs::read(&path).unwrap();
        for torn in 1..MARK {
            std::fs::write(&path, [&whole[..], &bytes_of((&2, &9))[..torn]].concat()).unwrap();
            let mut marks = Marks::open(folder.path(), "s").unwrap();
            assert_eq!(marks.known, [(1, 5)].into());
            marks.add(folder.path(), 3, 7, 0).unwrap();
            assert_eq!(Marks::open(folder.path(), "s").unwrap().known, [(1, 5), (3, 7)].into());
        }
    }

    #[test]
    fn damage_in_the_middle_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = path_of(folder.path(), "s");
        let mut marks = Marks::open(folder.path(), "s").unwrap();
        for number in 1..5 {
            marks.add(folder.path(), number, number, 0).unwrap();
        }
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[HEAD.len() + MARK] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        let message = Marks::open(folder.path(), "s").err().unwrap().to_string();
        assert!(message.contains("behind byte 28"), "{message}");
        std::fs::write(&path, b"else").unwrap();
        assert!(matches!(Marks::open(folder.path(), "s"), Err(JournalError::Damaged { .. })));
    }
}
