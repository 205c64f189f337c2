//! The journal of one stream.
use crate::again::{self, Again, HEAD, Verdict};
use crate::cursor::Cursor;
use crate::error::JournalError;
use crate::format::{Origin, RECORD_HEAD, RECORD_LIMIT, RecordHead, SegmentHead, record_end};
use crate::marks::Marks;
use crate::segments::{self, Active, Segment};
use crate::stream::{Stream, boot, read_exact_at};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Length from which a segment is followed by another.
pub const SEGMENT: u64 = 8 << 20;
/// Least size of a journal: a segment being written, one no longer needed, and room between them.
pub const LEAST_SIZE: u64 = 4 * SEGMENT;
/// Bytes to read at once from a stream that the system cannot move.
const CHUNK: usize = 64 << 10;
/// Interval of checking a full journal for space.
const LOOK: Duration = Duration::from_millis(5);
/// After this many checks, 10 s, the user is warned that the stream waits.
const TELL: u32 = 2000;

/// Content of a journal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Extent {
    /// Offset in the stream of its first byte.
    pub first: u64,
    /// Offset in the stream after its last byte.
    pub end: u64,
    /// Records of the journal, each one read of the stream, since the stream started.
    pub records: u64,
    /// Segments.
    pub segments: usize,
    /// Bytes of its files.
    pub bytes: u64,
}

/// The beginning of a line that was cut off, because its rest will not arrive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CutLine {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Its offset in the stream, where the next stream continues.
    pub at: u64,
}

/// Knowledge about the files.
#[derive(Default)]
pub(crate) struct Known {
    pub(crate) segments: Vec<Segment>,
    pub(crate) end: u64,
    sequence: u64,
    /// Origin of the bytes of the last segment.
    origin: Origin,
    /// See [`Journal::keep_beginning`].
    pub(crate) beginning: Option<Vec<u8>>,
}

impl Known {
    pub(crate) fn first(&self) -> u64 {
        self.segments.first().map_or(self.end, |segment| segment.first)
    }

    fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.bytes).sum()
    }
}

#[derive(Default)]
struct Writer {
    active: Option<Active>,
    ended: bool,
    /// The failure, returned again by later calls.
    failed: Option<String>,
    /// Set while the stream may be one that starts again.
    again: Option<Again>,
}

/// The journal of one stream; see the crate. Shared by its readers.
pub struct Journal {
    folder: PathBuf,
    owner: u64,
    size: u64,
    known: Mutex<Known>,
    /// Locked while waiting for the stream.
    writer: Mutex<Writer>,
    stream: Mutex<Option<Stream>>,
    /// Notified when there is more.
    grown: Condvar,
    ended: AtomicBool,
    /// No stream follows: it is only read.
    is_over: bool,
    held: AtomicBool,
    /// Locked while the beginning is written.
    keeping: Mutex<()>,
    pub(crate) marks: Mutex<BTreeMap<String, Marks>>,
}

pub(crate) fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Journal {
    /// Opens the journal in a folder, which is created if it does not exist. `owner`: identifies its source; `size`:
    /// limit on the bytes of its files, at least [`LEAST_SIZE`]. No other process may have it open.
    ///
    /// # Errors
    /// It is damaged or of another owner, or the disk fails.
    pub fn open(folder: &Path, owner: u64, size: u64) -> Result<Arc<Self>, JournalError> {
        let missing: Vec<_> = folder.ancestors().take_while(|path| !path.exists()).collect();
        for path in missing.into_iter().rev() {
            std::fs::create_dir(path).map_err(|error| JournalError::io("made", path, error))?;
            let above = path.parent().filter(|above| !above.as_os_str().is_empty());
            segments::sync_names(above.unwrap_or(Path::new(".")))?;
        }
        segments::tidy(folder)?;
        let found = segments::recover(folder, owner)?;
        segments::sync_found(folder, &found.segments)?;
        let known = Known {
            segments: found.segments,
            end: found.end,
            sequence: found.sequence,
            origin: found.origin,
            beginning: segments::read_beginning(folder)?,
        };
        let journal = Self::of(folder, owner, size.max(LEAST_SIZE), known);
        if !found.torn.is_empty() {
            // They were taken from the stream by a process that was killed before it had written the whole record.
            // Until they are in their own segment they count in place.
            let active = journal.begin_segment(found.origin, &found.torn)?;
            lock(&journal.writer).active = Some(active);
        }
        Ok(Arc::new(journal))
    }

    /// Opens a journal to read it from its beginning to its end, where its stream ends. Nothing in the folder changes, so
    /// several processes may do that at once.
    ///
    /// # Errors
    /// It is damaged, of another owner or not whole, or the disk fails.
    pub fn open_ended(folder: &Path, owner: u64) -> Result<Arc<Self>, JournalError> {
        let (found, restored) = segments::examine(folder, owner)?;
        let first = found.segments.first().map_or(0, |segment| segment.first);
        if first > 0 || !restored.is_empty() {
            return Err(JournalError::damaged(folder, "it does not begin at the beginning of its stream"));
        }
        // Bytes of an incomplete record were never read.
        let known = Known { segments: found.segments, end: found.end, ..Known::default() };
        let journal = Self { is_over: true, ..Self::of(folder, owner, 0, known) };
        journal.ended.store(true, Ordering::Release);
        Ok(Arc::new(journal))
    }

    fn of(folder: &Path, owner: u64, size: u64, known: Known) -> Self {
        Self {
            folder: folder.to_owned(),
            owner,
            size,
            known: Mutex::new(known),
            writer: Mutex::default(),
            stream: Mutex::default(),
            grown: Condvar::new(),
            ended: AtomicBool::new(false),
            is_over: false,
            held: AtomicBool::new(false),
            keeping: Mutex::default(),
            marks: Mutex::default(),
        }
    }

    /// Continues the journal with a stream, where it has none yet. An incomplete line at the end of the journal is cut
    /// off and returned if the stream is not the one that it came from: the rest of the line will not arrive.
    ///
    /// # Errors
    /// Errors of `open` and of the disk.
    pub fn attach(&self, open: impl FnOnce() -> io::Result<File>) -> Result<Option<CutLine>, JournalError> {
        self.attach_as(open, true)
    }

    /// As [`Journal::attach`] for a stream of many writers: one that starts like the previous stream is not considered
    /// a repetition.
    ///
    /// # Errors
    /// As [`Journal::attach`].
    pub fn attach_any(
        &self,
        open: impl FnOnce() -> io::Result<File>,
    ) -> Result<Option<CutLine>, JournalError> {
        self.attach_as(open, false)
    }

    fn attach_as(
        &self,
        open: impl FnOnce() -> io::Result<File>,
        may_begin_again: bool,
    ) -> Result<Option<CutLine>, JournalError> {
        let mut attached = lock(&self.stream);
        if attached.is_some() || self.is_over {
            return Ok(None);
        }
        let stream = open().and_then(Stream::new).map_err(JournalError::Stream)?;
        let is_other = {
            let known = lock(&self.known);
            known.end > known.first() && known.origin != stream.origin
        };
        if is_other {
            // New bytes do not belong to the segment's stream.
            lock(&self.writer).active = None;
        }
        let cut = if is_other { self.cut_unfinished_line(stream.origin)? } else { None };
        if may_begin_again && self.extent().end > 0 {
            lock(&self.writer).again = Again::of(again::beginning(&self.folder));
        }
        *attached = Some(stream);
        Ok(cut)
    }

    fn cut_unfinished_line(&self, origin: Origin) -> Result<Option<CutLine>, JournalError> {
        let line = self.unfinished_line()?;
        let Some(CutLine { at, .. }) = line else { return Ok(None) };
        let stays = lock(&self.known).segments.iter().rfind(|segment| segment.first <= at).copied();
        stays.map_or(Ok(()), |stays| segments::write_last(&self.folder, stays.first))?;
        loop {
            let last = lock(&self.known).segments.pop_if(|last| last.first > at);
            let Some(last) = last else { break };
            segments::remove(&segments::path_of(&self.folder, last.first))?;
        }
        segments::sync_names(&self.folder)?;
        lock(&self.known).end = at;
        let mut writer = lock(&self.writer);
        writer.active = Some(self.begin_segment(origin, &[])?);
        Ok(line)
    }

    /// The incomplete line at the end of the journal.
    fn unfinished_line(&self) -> Result<Option<CutLine>, JournalError> {
        let (first, end) = {
            let known = lock(&self.known);
            (known.first(), known.end)
        };
        let (mut from, mut line) = (end, Vec::new());
        while from > first {
            let begin = from.saturating_sub(CHUNK as u64).max(first);
            let mut part = vec![0; (from - begin) as usize];
            Cursor::at(begin).read_exact(self, &mut part)?;
            let rest = part.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            let is_found = rest > 0;
            line.splice(0..0, part.drain(rest..));
            from = begin;
            if is_found {
                break;
            }
        }
        let at = end - line.len() as u64;
        Ok((at < end).then_some(CutLine { bytes: line, at }))
    }

    /// Starts a segment at the end, with these bytes as its first record, if there are any: they are in it before it
    /// gets its name.
    fn begin_segment(&self, origin: Origin, bytes: &[u8]) -> Result<Active, JournalError> {
        let (first, sequence) = {
            let known = lock(&self.known);
            (known.end, known.sequence)
        };
        // Data of this boot is reliable while the machine runs.
        let origin = Origin { boot: boot(), ..origin };
        let head = SegmentHead { owner: self.owner, first, sequence, origin };
        let active = Active::create(&self.folder, head, bytes)?;
        segments::write_last(&self.folder, first)?;
        let mut known = lock(&self.known);
        known.segments.retain(|segment| segment.first != first);
        known.segments.push(Segment { first, bytes: active.length });
        known.origin = origin;
        known.end += bytes.len() as u64;
        known.sequence += u64::from(!bytes.is_empty());
        Ok(active)
    }

    /// The segment for writing.
    fn active<'a>(&self, writer: &'a mut Writer, origin: Origin) -> Result<&'a mut Active, JournalError> {
        if writer.active.as_ref().is_none_or(|active| active.length >= SEGMENT) {
            writer.active = Some(self.begin_segment(origin, &[])?);
        }
        Ok(writer.active.as_mut().expect("made above"))
    }

    /// Writes bytes as a record, durably.
    fn write(&self, writer: &mut Writer, origin: Origin, bytes: &[u8]) -> Result<(), JournalError> {
        let (sequence, offset) = self.next();
        let active = self.active(writer, origin)?;
        active.append(sequence, offset, bytes)?;
        let length = active.length;
        self.count(bytes.len(), length);
        Ok(())
    }

    /// Number and offset of the next record.
    fn next(&self) -> (u64, u64) {
        let known = lock(&self.known);
        (known.sequence, known.end)
    }

    /// Counts a written record.
    fn count(&self, bytes: usize, segment_bytes: u64) {
        let mut known = lock(&self.known);
        known.end += bytes as u64;
        known.sequence += 1;
        if let Some(last) = known.segments.last_mut() {
            last.bytes = segment_bytes;
        }
        drop(known);
        self.grown.notify_all();
    }

    /// Waits until everything before `offset` is in the journal, durably; `false` after `most`.
    pub fn wait_for(&self, offset: u64, most: Duration) -> bool {
        let known = lock(&self.known);
        let waited = self.grown.wait_timeout_while(known, most, |known| known.end < offset);
        waited.unwrap_or_else(PoisonError::into_inner).0.end >= offset
    }

    /// Takes the available bytes from the stream, durably, for a reader at `offset`. Waits until there are some, and
    /// until there is space. `false`: the stream has ended.
    ///
    /// # Errors
    /// Reading the stream or writing the journal fails; no more is taken then.
    pub(crate) fn pull(&self, offset: u64) -> Result<bool, JournalError> {
        if self.is_over {
            return Ok(lock(&self.known).end > offset);
        }
        let stream = lock(&self.stream).clone();
        let stream = stream.ok_or_else(|| JournalError::Stream(io::ErrorKind::NotConnected.into()))?;
        let mut writer = lock(&self.writer);
        if let Some(failure) = &writer.failed {
            return Err(JournalError::Stream(io::Error::other(failure.clone())));
        }
        // Another reader has waited for it.
        if lock(&self.known).end > offset {
            return Ok(true);
        }
        if writer.ended {
            return Ok(false);
        }
        stream.wait(true).map_err(JournalError::Stream)?;
        if let Err(error) = self.refuse_again(&writer, &stream) {
            writer.failed = Some(error.to_string());
            return Err(error);
        }
        let mut looks = 0u32;
        while !self.has_space() {
            looks += 1;
            if looks == TELL {
                let (journal, extent) = (self.folder.display(), self.extent());
                tracing::warn!(
                    "the journal `{journal}` has {} bytes of at most {}, or no checkpoint can be written: the stream waits \
                     for a checkpoint",
                    extent.bytes,
                    self.size
                );
            }
            std::thread::sleep(LOOK);
        }
        match self.take(&mut writer, &stream) {
            Ok(0) => {
                writer.ended = true;
                self.ended.store(true, Ordering::Release);
                Ok(lock(&self.known).end > offset)
            }
            Ok(_) => Ok(true),
            Err(error) => {
                writer.failed = Some(error.to_string());
                Err(error)
            }
        }
    }

    /// Rejects a stream that starts again, before any of it is taken.
    fn refuse_again(&self, writer: &Writer, stream: &Stream) -> Result<(), JournalError> {
        let Some(again) = writer.again.as_ref().filter(|again| again.is_certain()) else { return Ok(()) };
        let Some(waiting) = stream.peek(HEAD).map_err(JournalError::Stream)? else { return Ok(()) };
        match again.clone().look(&waiting) {
            Verdict::Same => Err(JournalError::Again { bytes: again.bytes(), end: lock(&self.known).end }),
            Verdict::Other | Verdict::Open => Ok(()),
        }
    }

    /// Checks taken bytes: a stream that arrived in small pieces could not be rejected.
    fn look_again(&self, writer: &mut Writer, bytes: &[u8]) {
        let Some(again) = &mut writer.again else { return };
        match again.look(bytes) {
            Verdict::Open => {}
            Verdict::Other => writer.again = None,
            Verdict::Same => {
                let same = again.bytes();
                writer.again = None;
                tracing::warn!(
                    "the stream of the journal `{}` begins with the {same} bytes that the first one began \
                     with: if its producer sends everything again, all of that counts twice; then stop the \
                     run, start from the beginning with `tidemill state reset`, or let the producer \
                     continue where it was",
                    self.folder.display()
                );
            }
        }
    }

    /// Takes the available bytes; 0: it has ended.
    fn take(&self, writer: &mut Writer, stream: &Stream) -> Result<usize, JournalError> {
        if let Some(waiting) = stream.movable().map_err(JournalError::Stream)? {
            if waiting == 0 {
                return self.end_line(writer, stream.origin).map(|()| 0);
            }
            let moved = self.move_record(writer, stream, waiting.min(RECORD_LIMIT))?;
            if moved > 0 {
                return Ok(moved);
            }
        }
        let mut bytes = vec![0; CHUNK];
        let read = stream.read(&mut bytes).map_err(JournalError::Stream)?;
        match read {
            0 => self.end_line(writer, stream.origin)?,
            _ => {
                self.write(writer, stream.origin, &bytes[..read])?;
                self.look_again(writer, &bytes[..read]);
            }
        }
        Ok(read)
    }

    /// Has the system move bytes into a record. The file only grows by that: if the process is killed at any moment, it
    /// leaves the beginning of a record.
    fn move_record(&self, writer: &mut Writer, stream: &Stream, bytes: usize) -> Result<usize, JournalError> {
        let (sequence, offset) = self.next();
        let active = self.active(writer, stream.origin)?;
        let (at, begin) = (active.length, active.length + RECORD_HEAD as u64);
        let head = RecordHead { length: bytes as u32, sequence, offset };
        active.file.write_all_at(&head.bytes(), at).map_err(active.failed("written"))?;
        let moved = stream.move_into(&active.file, begin, bytes).map_err(active.failed("written"))?;
        if moved == 0 {
            // The alternative does not overwrite it.
            active.file.set_len(at).map_err(active.failed("written"))?;
            return Ok(0);
        }
        let mut content = vec![0; moved];
        read_exact_at(&active.file, &mut content, begin).map_err(active.failed("read"))?;
        if moved < bytes {
            // Another process has read some of them. The head stays as a killed process would leave it, and the bytes
            // go into their own segment as they would then.
            writer.active = Some(self.begin_segment(stream.origin, &content)?);
        } else {
            let end = record_end(&content);
            active.file.write_all_at(&end, begin + moved as u64).map_err(active.failed("written"))?;
            active.finish(moved)?;
            let length = active.length;
            self.count(moved, length);
        }
        self.look_again(writer, &content);
        Ok(moved)
    }

    #[cfg(test)]
    pub(crate) fn move_record_of(&self, stream: &Stream, bytes: usize) -> Result<usize, JournalError> {
        self.move_record(&mut lock(&self.writer), stream, bytes)
    }

    /// Completes a line at the end of the stream, regardless of later data.
    fn end_line(&self, writer: &mut Writer, origin: Origin) -> Result<(), JournalError> {
        let Extent { first, end, .. } = self.extent();
        if end > first {
            let mut last = [0];
            Cursor::at(end - 1).read_exact(self, &mut last)?;
            if last != *b"\n" {
                return self.write(writer, origin, b"\n");
            }
        }
        Ok(())
    }

    /// Whether a record can be added.
    fn has_space(&self) -> bool {
        if self.is_held() {
            return false;
        }
        let is_full = || lock(&self.known).bytes() + 2 * RECORD_LIMIT as u64 > self.size;
        !is_full() || self.forget_released() && !is_full()
    }

    /// Forgets segments that another process has released; returns whether there are any.
    pub(crate) fn forget_released(&self) -> bool {
        let mut known = lock(&self.known);
        let before = known.segments.len();
        known.segments.retain(|segment| segments::path_of(&self.folder, segment.first).exists());
        known.segments.len() < before
    }

    /// Whether the bytes after `offset` are available without waiting for another program.
    pub(crate) fn is_ready(&self, offset: u64) -> bool {
        if lock(&self.known).end > offset || self.ended.load(Ordering::Acquire) {
            return true;
        }
        let stream = lock(&self.stream).clone();
        stream.is_some_and(|stream| stream.wait(false).unwrap_or(true)) && self.has_space()
    }

    pub(crate) fn known(&self) -> MutexGuard<'_, Known> {
        lock(&self.known)
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Keeps the beginning of the stream, up to `end`, for the life of the journal, for example a header line that
    /// describes everything after it. To be called before anything is released; once is enough.
    ///
    /// # Errors
    /// Errors of the disk.
    pub fn keep_beginning(&self, end: u64) -> Result<(), JournalError> {
        if self.is_over {
            return Ok(());
        }
        let _alone = lock(&self.keeping);
        if self.known().beginning.is_some() {
            return Ok(());
        }
        let mut bytes = vec![0; end as usize];
        Cursor::at(0).read_exact(self, &mut bytes)?;
        segments::write_beginning(&self.folder, &bytes)?;
        self.known().beginning = Some(bytes);
        Ok(())
    }

    /// Whether [`Journal::keep_beginning`] was called, by this process or an earlier one.
    pub fn has_kept_beginning(&self) -> bool {
        self.known().beginning.is_some()
    }

    /// Whether the stream is readable from its first byte, at least its [kept](Self::keep_beginning) part.
    pub fn has_beginning(&self) -> bool {
        let known = self.known();
        known.first() == 0 || known.beginning.as_ref().is_some_and(|bytes| !bytes.is_empty())
    }

    /// Releases everything before this offset in the stream.
    ///
    /// # Errors
    /// A segment cannot be deleted; the journal stays usable.
    pub fn release(&self, before: u64) -> Result<(), JournalError> {
        let gone: Vec<u64> = {
            let mut known = self.known();
            let count = known.segments.iter().skip(1).take_while(|next| next.first <= before).count();
            known.segments.drain(..count).map(|segment| segment.first).collect()
        };
        for first in gone {
            if first == 0 {
                again::keep_beginning(&self.folder);
            }
            segments::remove(&segments::path_of(&self.folder, first))?;
        }
        Ok(())
    }

    /// Stops or resumes taking from the stream.
    pub fn hold(&self, is_held: bool) {
        self.held.store(is_held, Ordering::Release);
    }

    /// Whether it is stopped, see [`Journal::hold`].
    pub fn is_held(&self) -> bool {
        self.held.load(Ordering::Acquire)
    }

    /// Returns its content.
    pub fn extent(&self) -> Extent {
        let known = self.known();
        Extent {
            first: known.first(),
            end: known.end,
            records: known.sequence,
            segments: known.segments.len(),
            bytes: known.bytes(),
        }
    }
}
