//! Reading of a live source through a journal: its records, as lines, come through a pipe, and so a fault loses none that
//! the run has seen.
//!
//! A line is a record, encoded so that it has no line break within (COBS): a journal cuts an incomplete line off. Beside
//! records there are statements that nothing came, so that the watermark follows at the same record whenever the journal is
//! read.
//!
//! The run reads the pipe when it has time. While it has none, the pipe is full, and of each camera the newest frames wait on
//! the [board](crate::board) as without a journal: what is dropped there is counted and never in the journal.
use crate::board::Waiting;
use crate::hub::Hub;
use crate::reader::{READ_LIMIT, columns};
use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::File;
use std::io::{self, PipeWriter, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use tidemill_journal::{Cursor, Journal};
use tidemill_operators::api::{
    JournalledReading, MakeSource, OperatorError, Source, SourcePosition, SourceRead, Unread,
};
use tidemill_operators::record::EventTime;

/// Times of a live source: how long nothing comes before it states so, and most by which a record may be older than the
/// newest one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    pub(crate) idle: Duration,
    pub(crate) lateness: Duration,
}

impl Patience {
    /// The watermark when nothing came for a while.
    pub(crate) fn watermark(&self, now: EventTime) -> EventTime {
        let silence = i64::try_from((self.idle + self.lateness).as_micros()).unwrap_or(i64::MAX);
        now.saturating_sub(silence)
    }
}

/// Most bytes of a line: the largest picture, its name and what the encoding adds.
const LONGEST: usize = 1 << 30;
/// Bytes per read.
const CHUNK: usize = 256 << 10;

/// Returns how a live source is read through a journal.
pub(crate) fn reading(hub: &Arc<Hub>, patience: Patience, schema: &SchemaRef) -> JournalledReading {
    let (hub, schema) = (Arc::clone(hub), Arc::clone(schema));
    let make = move |journal: Arc<Journal>| {
        let (hub, schema) = (Arc::clone(&hub), Arc::clone(&schema));
        let make: MakeSource = Arc::new(move || {
            let failed = |error: String| OperatorError::new(error);
            let cut =
                journal.attach_any(|| open(&hub, patience)).map_err(|error| failed(error.to_string()))?;
            if cut.is_some() {
                tracing::debug!("a record that an earlier process had not written to its end is left out");
            }
            Ok(Box::new(Reader::new(Arc::clone(&journal), Arc::clone(&schema))))
        });
        make
    };
    JournalledReading {
        make: Arc::new(make),
        place: |position| position.0.parse().ok(),
        unread: Unread::IsLost,
    }
}

/// Starts the feeds; returns the pipe with their lines. They end when it is closed.
fn open(hub: &Arc<Hub>, patience: Patience) -> io::Result<File> {
    let run = hub.start()?;
    let (reader, writer) = io::pipe()?;
    let hub = Arc::clone(hub);
    let write = move || {
        // Ends the feeds with the thread.
        let _run = run;
        if let Err(error) = write_all(&hub, patience, writer)
            && error.kind() != io::ErrorKind::BrokenPipe
        {
            tracing::warn!("a live source cannot be written to its journal: {error}");
        }
    };
    std::thread::Builder::new().name("live-journal".into()).spawn(write)?;
    Ok(File::from(OwnedFd::from(reader)))
}

fn write_all(hub: &Hub, patience: Patience, mut pipe: PipeWriter) -> io::Result<()> {
    let (mut plain, mut line) = (Vec::new(), Vec::new());
    loop {
        // A frame is taken from the board when there is room for it, so that it is not older than need be.
        while poll(&mut [PollFd::new(&pipe, PollFlags::OUT)], None::<&Timespec>)
            == Err(rustix::io::Errno::INTR)
        {}
        let taken = hub.board().take(1, 1, patience.idle);
        let entry = match &taken[..] {
            [] => Entry::Silence { watermark: patience.watermark(hub.board().now()) },
            [(feed, row), ..] => {
                Entry::Record { feed, frame: row.frame, time: row.time, content: &row.picture }
            }
        };
        entry.write(&mut plain);
        encode(&plain, &mut line);
        pipe.write_all(&line)?;
        for (_, row) in taken {
            // Its buffer is used again.
            drop(hub.board().pool().share(row.picture));
        }
    }
}

/// Content of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entry<'a> {
    Record {
        feed: &'a str,
        frame: i64,
        time: EventTime,
        content: &'a [u8],
    },
    /// Nothing came, and nothing older will.
    Silence {
        watermark: EventTime,
    },
}

impl<'a> Entry<'a> {
    fn write(&self, into: &mut Vec<u8>) {
        into.clear();
        match self {
            Self::Silence { watermark } => into.extend_from_slice(&watermark.to_le_bytes()),
            Self::Record { feed, frame, time, content } => {
                into.extend_from_slice(&time.to_le_bytes());
                into.extend_from_slice(&frame.to_le_bytes());
                let length = u32::try_from(feed.len()).unwrap_or(u32::MAX);
                into.extend_from_slice(&length.to_le_bytes());
                into.extend_from_slice(feed.as_bytes());
                into.extend_from_slice(content);
            }
        }
    }

    fn read(bytes: &'a [u8]) -> Option<Self> {
        let (time, rest) = bytes.split_first_chunk()?;
        let time = EventTime::from_le_bytes(*time);
        if rest.is_empty() {
            return Some(Self::Silence { watermark: time });
        }
        let (frame, rest) = rest.split_first_chunk()?;
        let (length, rest) = rest.split_first_chunk()?;
        let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
        let (feed, content) = rest.split_at_checked(length)?;
        let feed = std::str::from_utf8(feed).ok()?;
        Some(Self::Record { feed, frame: i64::from_le_bytes(*frame), time, content })
    }
}

/// Makes a line, with its line break.
fn encode(plain: &[u8], line: &mut Vec<u8>) {
    line.clear();
    line.resize(cobs::max_encoding_length(plain.len()) + 1, 0);
    let length = cobs::encode_with_sentinel(plain, line, b'\n');
    line[length] = b'\n';
    line.truncate(length + 1);
}

/// Reads the records of a journal.
struct Reader {
    journal: Arc<Journal>,
    cursor: Cursor,
    schema: SchemaRef,
    /// Bytes read from the journal; those before `begin` are used.
    buffer: Vec<u8>,
    begin: usize,
    /// Bytes after `begin` that have no line break.
    searched: usize,
    sizes: Vec<u32>,
    has_caught_up: bool,
}

impl Reader {
    fn new(journal: Arc<Journal>, schema: SchemaRef) -> Self {
        Self {
            journal,
            cursor: Cursor::default(),
            schema,
            buffer: Vec::new(),
            begin: 0,
            searched: 0,
            sizes: Vec::new(),
            has_caught_up: false,
        }
    }

    /// Returns the length of the next line without its break; `None` at the end of the stream, or where it would have to
    /// wait and may not.
    fn next_line(&mut self, may_wait: bool) -> Result<Option<usize>, OperatorError> {
        loop {
            let rest = &self.buffer[self.begin + self.searched..];
            if let Some(at) = memchr::memchr(b'\n', rest) {
                return Ok(Some(self.searched + at));
            }
            self.searched += rest.len();
            if self.searched > LONGEST {
                return Err(OperatorError::new(
                    "the journal has a record that is longer than any: is it of this source?",
                ));
            }
            if !may_wait && !self.cursor.is_ready(&self.journal) {
                return Ok(None);
            }
            self.buffer.drain(..std::mem::take(&mut self.begin));
            let filled = self.buffer.len();
            self.buffer.resize(filled + CHUNK, 0);
            let read = self.cursor.read(&self.journal, &mut self.buffer[filled..]);
            self.buffer.truncate(filled + read.as_ref().copied().unwrap_or(0));
            if read.map_err(|error| OperatorError::new(error.to_string()))? == 0 {
                return Ok(None);
            }
        }
    }

    fn take_line(&mut self, length: usize) -> Result<Vec<u8>, OperatorError> {
        let line = &self.buffer[self.begin..self.begin + length];
        let mut plain = vec![0; length];
        let decoded = cobs::decode_with_sentinel(line, &mut plain, b'\n');
        let length_of_plain = decoded.map_err(|_| damaged(self.offset()))?;
        plain.truncate(length_of_plain);
        self.begin += length + 1;
        self.searched = 0;
        Ok(plain)
    }

    /// Offset of the next line.
    fn offset(&self) -> u64 {
        self.cursor.offset() - (self.buffer.len() - self.begin) as u64
    }
}

fn damaged(offset: u64) -> OperatorError {
    OperatorError::new(format!("the journal has no record of this source at byte {offset}"))
}

impl Source for Reader {
    fn read(&mut self, rows: usize, bytes: usize) -> Result<SourceRead, OperatorError> {
        let (mut taken, mut length) = (Vec::new(), 0);
        self.sizes.clear();
        while taken.len() < rows.max(1) && (taken.is_empty() || length < bytes.min(READ_LIMIT)) {
            let Some(end) = self.next_line(taken.is_empty())? else {
                if taken.is_empty() {
                    return Ok(SourceRead::End);
                }
                break;
            };
            let (offset, begin) = (self.offset(), self.begin);
            let plain = self.take_line(end)?;
            match Entry::read(&plain).ok_or_else(|| damaged(offset))? {
                Entry::Silence { watermark } if taken.is_empty() => {
                    self.has_caught_up = self.next_line(false)?.is_none();
                    return Ok(SourceRead::Idle { watermark });
                }
                Entry::Silence { .. } => {
                    // It is the next one.
                    self.begin = begin;
                    break;
                }
                Entry::Record { feed, frame, time, content } => {
                    length += content.len();
                    self.sizes.push(u32::try_from(plain.len()).unwrap_or(u32::MAX));
                    taken.push((feed.to_owned(), Waiting::new(frame, time, content.to_vec())));
                }
            }
        }
        self.has_caught_up = self.next_line(false)?.is_none();
        let times: Vec<EventTime> = taken.iter().map(|(_, row)| row.time).collect();
        let all = columns(taken, None);
        let payload = RecordBatch::try_new(Arc::clone(&self.schema), all)
            .map_err(|error| OperatorError::new(error.to_string()))?;
        Ok(SourceRead::Rows { payload, times: Some(times), dead_letters: Vec::new(), offsets: None })
    }

    fn position(&self) -> SourcePosition {
        SourcePosition(self.offset().to_string())
    }

    fn seek(&mut self, position: &SourcePosition) -> Result<(), OperatorError> {
        let wrong = || OperatorError::new(format!("`{}` is no position in a journal", position.0));
        let offset = position.0.parse().map_err(|_| wrong())?;
        self.cursor.seek(&self.journal, offset).map_err(|error| OperatorError::new(error.to_string()))?;
        self.buffer.clear();
        (self.begin, self.searched) = (0, 0);
        Ok(())
    }

    fn sizes(&self) -> Option<&[u32]> {
        Some(&self.sizes)
    }

    fn has_caught_up(&self) -> bool {
        self.has_caught_up
    }

    fn journal(&self) -> Option<Arc<Journal>> {
        Some(Arc::clone(&self.journal))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn lines_have_no_break_and_give_what_was_written(
            feed in "[a-z\n]{0,9}", frame: i64, time: i64,
            content in prop::collection::vec(prop_oneof![Just(b'\n'), any::<u8>()], 0..2000),
        ) {
            let (mut plain, mut line) = (Vec::new(), Vec::new());
            for entry in [
                Entry::Record { feed: &feed, frame, time, content: &content },
                Entry::Silence { watermark: time },
            ] {
                entry.write(&mut plain);
                encode(&plain, &mut line);
                prop_assert_eq!(memchr::memchr(b'\n', &line), Some(line.len() - 1));
                let mut decoded = vec![0; line.len()];
                let length = cobs::decode_with_sentinel(&line[..line.len() - 1], &mut decoded, b'\n').unwrap();
                prop_assert_eq!(Entry::read(&decoded[..length]), Some(entry));
            }
        }

        #[test]
        fn other_bytes_are_no_record(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let _ = Entry::read(&bytes);
        }
    }
}
