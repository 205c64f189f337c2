//! The files of a journal: segments, each named by its start offset in the stream, and the beginning of the stream.
//!
//! A segment counts up to the start of the next one: invalid data left by a process is cut off by a segment that starts
//! earlier. Written data is never changed.
use crate::error::JournalError;
use crate::format::{Origin, RECORD_END, RECORD_HEAD, RecordHead, Scanned, SegmentHead, record_end, scan};
use crate::stream::boot;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const ENDING: &str = ".journal";
/// A file that is renamed when it is complete.
pub(crate) const NEW: &str = "new";
/// Temporary names for marks, for the beginning and for the note of the last segment, which are written concurrently.
pub(crate) const NEW_MARKS: &str = "new.marks";
const NEW_BEGINNING: &str = "new.beginning";
const NEW_LAST: &str = "new.last";
/// Data before all records, such as a header line, for the life of the journal.
const BEGINNING: &str = "beginning";
/// Mark at its start; its checksum is at its end.
const BEGINNING_MARK: &[u8; 4] = b"TMJB";

/// The last segment; all before it may be released, and it is not.
const LAST: &str = "last";
/// Mark before its offset in the stream; the checksum follows.
const LAST_MARK: &[u8; 4] = b"TMJL";

/// An existing segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Start offset in the stream.
    pub(crate) first: u64,
    /// Bytes of its file.
    pub(crate) bytes: u64,
}

/// Path of a segment's file.
pub(crate) fn path_of(folder: &Path, first: u64) -> PathBuf {
    folder.join(format!("{first:020}{ENDING}"))
}

/// The segments of a folder, oldest first.
pub(crate) fn list(folder: &Path) -> Result<Vec<Segment>, JournalError> {
    let failed = |error| JournalError::io("read", folder, error);
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let first = name.to_str().and_then(|name| name.strip_suffix(ENDING)).and_then(|n| n.parse().ok());
        let Some(first) = first else { continue };
        match entry.metadata() {
            Ok(metadata) => found.push(Segment { first, bytes: metadata.len() }),
            Err(error) if error.kind() == ErrorKind::NotFound => {} // deleted in between
            Err(error) => return Err(failed(error)),
        }
    }
    found.sort_by_key(|segment| segment.first);
    Ok(found)
}

/// Reads a whole segment.
pub(crate) fn read(folder: &Path, first: u64) -> Result<(Vec<u8>, Scanned), JournalError> {
    let path = path_of(folder, first);
    let bytes = std::fs::read(&path).map_err(|error| JournalError::io("read", &path, error))?;
    let now = boot();
    let is_same_boot = SegmentHead::of(&bytes).is_some_and(|head| head.origin.boot == now && now != 0);
    let found = scan(&bytes, is_same_boot).filter(|found| found.head.first == first);
    let found = found.ok_or_else(|| JournalError::damaged(&path, "it does not begin as a segment does"))?;
    if found.is_damaged {
        return Err(JournalError::damaged(&path, format!("what is behind byte {} is wrong", found.whole)));
    }
    Ok((bytes, found))
}

/// The findings of a process that continues a journal.
#[derive(Debug, Default)]
pub(crate) struct Recovered {
    pub(crate) segments: Vec<Segment>,
    pub(crate) end: u64,
    pub(crate) sequence: u64,
    pub(crate) origin: Origin,
    /// Bytes of an incomplete record after `end`.
    pub(crate) torn: Vec<u8>,
}

/// Reads all segments; only complete records count. Deletes those that a loss of power has restored.
pub(crate) fn recover(folder: &Path, owner: u64) -> Result<Recovered, JournalError> {
    let (recovered, restored) = examine(folder, owner)?;
    for old in restored {
        remove(&path_of(folder, old.first))?;
    }
    Ok(recovered)
}

/// Reads all segments and changes nothing; returns also those that were deleted and are there again.
pub(crate) fn examine(folder: &Path, owner: u64) -> Result<(Recovered, Vec<Segment>), JournalError> {
    let mut recovered = Recovered::default();
    // In this order: a later segment is then in the list too.
    let last = read_last(folder)?;
    let listed = list(folder)?;
    if let Some(last) = last
        && listed.iter().all(|segment| segment.first != last)
    {
        return Err(JournalError::damaged(&path_of(folder, last), "it is not there any more"));
    }
    for (index, segment) in listed.iter().enumerate() {
        let (bytes, found) = match read(folder, segment.first) {
            // Another process has just released it, with all before it.
            Err(JournalError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {
                recovered.segments.clear();
                continue;
            }
            read => read?,
        };
        if found.head.owner != owner {
            return Err(JournalError::OfAnother { path: folder.to_owned() });
        }
        recovered.segments.push(*segment);
        (recovered.end, recovered.sequence) = (found.end, found.sequence);
        recovered.origin = found.head.origin;
        recovered.torn = bytes[found.torn.clone()].to_vec();
        let Some(next) = listed.get(index + 1) else { break };
        if found.end >= next.first {
            continue;
        }
        if found.whole < bytes.len() {
            let path = path_of(folder, segment.first);
            let reason = format!("what is behind byte {} is wrong", found.whole);
            return Err(JournalError::damaged(&path, reason));
        }
        // Some were deleted, and a loss of power has restored the first ones.
        recovered.segments.clear();
    }
    let restored = listed.into_iter().filter(|old| !recovered.segments.contains(old)).collect();
    Ok((recovered, restored))
}

/// Deletes a file; a missing one is fine.
pub(crate) fn remove(path: &Path) -> Result<(), JournalError> {
    match tidemill_disk::remove(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(JournalError::io("deleted", path, error)),
        _ => Ok(()),
    }
}

/// Syncs the data left by an earlier process. It may be in memory only, and no other process waits for it; no reader
/// may get it before. Segments before the last one were synced before that started.
pub(crate) fn sync_found(folder: &Path, segments: &[Segment]) -> Result<(), JournalError> {
    if let Some(last) = segments.last() {
        let path = path_of(folder, last.first);
        let synced = File::open(&path).and_then(|file| tidemill_disk::sync_data(&file));
        match synced {
            // Another process has just released it.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            synced => synced.map_err(|error| JournalError::io("synced", &path, error))?,
        }
    }
    sync_names(folder)
}

/// Notes the last segment: if it is missing later, it was deleted.
pub(crate) fn write_last(folder: &Path, first: u64) -> Result<(), JournalError> {
    let first = first.to_le_bytes();
    let all = [&LAST_MARK[..], &first, &crc32c::crc32c(&first).to_le_bytes()].concat();
    place(folder, &folder.join(LAST), NEW_LAST, |file| file.write_all_at(&all, 0)).map(drop)
}

/// Start of the last segment, as noted.
pub(crate) fn read_last(folder: &Path) -> Result<Option<u64>, JournalError> {
    let Some(noted) = read_noted(folder, LAST, LAST_MARK)? else { return Ok(None) };
    match <[u8; 8]>::try_from(noted) {
        Ok(first) => Ok(Some(u64::from_le_bytes(first))),
        Err(_) => Err(JournalError::damaged(&folder.join(LAST), "its length is wrong")),
    }
}

/// Bytes of a file between its mark and its checksum; none where the file is absent.
fn read_noted(folder: &Path, name: &str, mark: &[u8; 4]) -> Result<Option<Vec<u8>>, JournalError> {
    let path = folder.join(name);
    let bytes = match std::fs::read(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        bytes => bytes.map_err(|error| JournalError::io("read", &path, error))?,
    };
    let noted = bytes.strip_prefix(mark).and_then(|rest| rest.split_last_chunk::<4>());
    match noted {
        Some((noted, checksum)) if crc32c::crc32c(noted).to_le_bytes() == *checksum => {
            Ok(Some(noted.to_vec()))
        }
        _ => Err(JournalError::damaged(&path, "its checksum is wrong")),
    }
}

/// Makes the names in a folder durable.
pub(crate) fn sync_names(folder: &Path) -> Result<(), JournalError> {
    tidemill_disk::sync_folder(folder).map_err(|error| JournalError::io("synced", folder, error))
}

/// Puts a complete file in its place. `new`: its name until then.
pub(crate) fn place(
    folder: &Path,
    path: &Path,
    new: &str,
    write: impl FnOnce(&File) -> io::Result<()>,
) -> Result<File, JournalError> {
    let new = folder.join(new);
    let made = (|| {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&new)?;
        write(&file)?;
        tidemill_disk::sync_all(&file)?;
        tidemill_disk::rename(&new, path)?;
        Ok(file)
    })();
    match made {
        Ok(file) => sync_names(folder).map(|()| file),
        Err(error) => {
            // It may be the file that fills the disk.
            let _ = std::fs::remove_file(&new);
            Err(JournalError::io("written", path, error))
        }
    }
}

/// A complete record.
fn record(sequence: u64, offset: u64, bytes: &[u8]) -> Vec<u8> {
    let head = RecordHead { length: bytes.len() as u32, sequence, offset };
    [&head.bytes()[..], bytes, &record_end(bytes)].concat()
}

/// A segment being written.
pub(crate) struct Active {
    pub(crate) file: File,
    pub(crate) path: PathBuf,
    /// Valid bytes of the file.
    pub(crate) length: u64,
}

impl Active {
    /// Creates a segment, durably and atomically; replaces one with the same start. `bytes`: its first record; none if
    /// empty.
    pub(crate) fn create(folder: &Path, head: SegmentHead, bytes: &[u8]) -> Result<Self, JournalError> {
        let path = path_of(folder, head.first);
        let mut content = head.bytes().to_vec();
        if !bytes.is_empty() {
            content.extend(record(head.sequence, head.first, bytes));
        }
        let file = place(folder, &path, NEW, |file| file.write_all_at(&content, 0))?;
        Ok(Self { file, path, length: content.len() as u64 })
    }

    pub(crate) fn failed(&self, what: &'static str) -> impl FnOnce(io::Error) -> JournalError {
        let path = self.path.clone();
        move |error| JournalError::Io { what, path, source: error }
    }

    /// Writes a complete record, and waits until it is on the disk.
    pub(crate) fn append(&mut self, sequence: u64, offset: u64, bytes: &[u8]) -> Result<(), JournalError> {
        let record = record(sequence, offset, bytes);
        self.file.write_all_at(&record, self.length).map_err(self.failed("written"))?;
        self.finish(bytes.len())
    }

    /// Waits until a record with this many bytes, which is in the file, is on the disk.
    pub(crate) fn finish(&mut self, bytes: usize) -> Result<(), JournalError> {
        if let Err(error) = tidemill_disk::sync_data(&self.file) {
            self.disown(bytes);
            return Err(self.failed("synced")(error));
        }
        self.length += (RECORD_HEAD + bytes + RECORD_END) as u64;
        Ok(())
    }

    /// Removes the end of a record that could not be synced. The system forgets that failure, and shows the next
    /// process bytes that the disk may not have: an incomplete one is written again by that process, elsewhere.
    pub(crate) fn disown(&self, bytes: usize) {
        if let Err(error) = self.file.set_len(self.length + (RECORD_HEAD + bytes) as u64) {
            tracing::debug!("the last record of `{}` keeps its end: {error}", self.path.display());
        }
    }
}

/// Keeps the beginning of the stream.
pub(crate) fn write_beginning(folder: &Path, bytes: &[u8]) -> Result<(), JournalError> {
    let all = [BEGINNING_MARK, bytes, &crc32c::crc32c(bytes).to_le_bytes()].concat();
    place(folder, &folder.join(BEGINNING), NEW_BEGINNING, |file| file.write_all_at(&all, 0)).map(drop)
}

/// The beginning of the stream, if it is kept.
pub(crate) fn read_beginning(folder: &Path) -> Result<Option<Vec<u8>>, JournalError> {
    read_noted(folder, BEGINNING, BEGINNING_MARK)
}

/// Removes temporary files of a killed process.
pub(crate) fn tidy(folder: &Path) -> Result<(), JournalError> {
    [NEW, NEW_MARKS, NEW_BEGINNING, NEW_LAST].iter().try_for_each(|name| remove(&folder.join(name)))
}
