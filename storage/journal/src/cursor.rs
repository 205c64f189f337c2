//! A reader of a journal and, beyond its end, of the stream.
use crate::error::JournalError;
use crate::format::{RECORD_END, RECORD_HEAD, RecordHead, SEGMENT_HEAD};
use crate::journal::Journal;
use crate::segments::path_of;
use crate::stream::read_exact_at;
use std::fs::File;
use std::io::ErrorKind;
use std::path::PathBuf;

/// An open segment.
struct Open {
    first: u64,
    file: File,
    path: PathBuf,
    /// Position in the file of the next byte of the stream.
    position: u64,
    /// Bytes of the record from that one on.
    left: u64,
    /// Offset in the stream of that byte.
    offset: u64,
}

impl Open {
    /// Reads the head of the next record.
    fn next_record(&mut self) -> Result<(), JournalError> {
        let mut head = [0; RECORD_HEAD];
        let read = read_exact_at(&self.file, &mut head, self.position);
        read.map_err(|error| JournalError::io("read", &self.path, error))?;
        let record = RecordHead::of(&head).filter(|record| record.offset == self.offset);
        let record = record.ok_or_else(|| {
            JournalError::damaged(&self.path, format!("what is behind byte {} is wrong", self.position))
        })?;
        self.position += RECORD_HEAD as u64;
        self.left = u64::from(record.length);
        Ok(())
    }

    /// Advances within the record.
    fn advance(&mut self, bytes: u64) {
        self.position += bytes;
        self.offset += bytes;
        self.left -= bytes;
        if self.left == 0 {
            self.position += RECORD_END as u64;
        }
    }
}

/// A position in the stream for reading.
#[derive(Default)]
pub struct Cursor {
    offset: u64,
    open: Option<Open>,
}

impl Cursor {
    /// Creates a cursor at an offset of the stream.
    pub fn at(offset: u64) -> Self {
        Self { offset, open: None }
    }

    /// Returns the offset in the stream of the next byte.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Moves to an offset in the journal, or to its end.
    ///
    /// # Errors
    /// The journal does not have it.
    pub fn seek(&mut self, journal: &Journal, offset: u64) -> Result<(), JournalError> {
        let (first, end) = {
            let known = journal.known();
            let is_kept = known.beginning.as_ref().is_some_and(|bytes| offset < bytes.len() as u64);
            (if is_kept { 0 } else { known.first() }, known.end)
        };
        if !(first..=end).contains(&offset) {
            return Err(not_there(journal, offset));
        }
        *self = Self::at(offset);
        Ok(())
    }

    /// Whether [`Cursor::read`] would return without waiting for another program.
    pub fn is_ready(&self, journal: &Journal) -> bool {
        journal.is_ready(self.offset)
    }

    /// Reads some bytes: from the journal, and beyond its end from the stream through the journal. 0 only at the end.
    ///
    /// # Errors
    /// Reading the stream, or reading or writing the journal, fails.
    pub fn read(&mut self, journal: &Journal, buffer: &mut [u8]) -> Result<usize, JournalError> {
        loop {
            let read = self.read_journal(journal, buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            if !journal.pull(self.offset)? {
                return Ok(0);
            }
        }
    }

    /// Fills the buffer from the journal.
    pub(crate) fn read_exact(&mut self, journal: &Journal, buffer: &mut [u8]) -> Result<(), JournalError> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.read_journal(journal, &mut buffer[filled..])? {
                0 => return Err(not_there(journal, self.offset)),
                read => filled += read,
            }
        }
        Ok(())
    }

    /// Reads from the journal; 0: no more bytes.
    fn read_journal(&mut self, journal: &Journal, buffer: &mut [u8]) -> Result<usize, JournalError> {
        match self.read_known(journal, buffer) {
            // Another process may have released the segment meanwhile.
            Err(JournalError::Io { source, .. })
                if source.kind() == ErrorKind::NotFound && journal.forget_released() =>
            {
                self.read_known(journal, buffer)
            }
            read => read,
        }
    }

    fn read_known(&mut self, journal: &Journal, buffer: &mut [u8]) -> Result<usize, JournalError> {
        let (segment, limit) = {
            let known = journal.known();
            let offset = self.offset;
            if offset < known.first()
                && let Some(rest) = known.beginning.as_ref().and_then(|bytes| bytes.get(offset as usize..))
                && !rest.is_empty()
            {
                let read = rest.len().min(buffer.len());
                buffer[..read].copy_from_slice(&rest[..read]);
                self.offset += read as u64;
                return Ok(read);
            }
            if offset >= known.end {
                return Ok(0);
            }
            let next = known.segments.partition_point(|segment| segment.first <= offset);
            let limit = known.segments.get(next).map_or(known.end, |next| next.first);
            (next.checked_sub(1).map(|at| known.segments[at].first), limit)
        };
        let Some(first) = segment else { return Err(not_there(journal, self.offset)) };
        let wanted = (limit - self.offset).min(buffer.len() as u64);
        let open = self.segment(journal, first)?;
        let read = wanted.min(open.left);
        let filled = read_exact_at(&open.file, &mut buffer[..read as usize], open.position);
        filled.map_err(|error| JournalError::io("read", &open.path, error))?;
        open.advance(read);
        self.offset += read;
        Ok(read as usize)
    }

    /// The segment at the offset, in a record with a byte there.
    fn segment(&mut self, journal: &Journal, first: u64) -> Result<&mut Open, JournalError> {
        let offset = self.offset;
        let is_open = |open: &Open| open.first == first && open.offset == offset;
        let mut open = match self.open.take().filter(is_open) {
            Some(open) => open,
            None => {
                let path = path_of(journal.folder(), first);
                let file = File::open(&path).map_err(|error| JournalError::io("read", &path, error))?;
                Open { first, file, path, position: SEGMENT_HEAD as u64, left: 0, offset: first }
            }
        };
        loop {
            if open.left == 0 {
                open.next_record()?;
            }
            match offset - open.offset {
                0 => break,
                ahead => open.advance(ahead.min(open.left)),
            }
        }
        Ok(self.open.insert(open))
    }
}

fn not_there(journal: &Journal, wanted: u64) -> JournalError {
    let extent = journal.extent();
    JournalError::NotThere { path: journal.folder().to_owned(), first: extent.first, end: extent.end, wanted }
}
