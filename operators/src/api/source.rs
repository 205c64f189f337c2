//! Sources: reading records, and what a reader promises of them.
use super::{DeadLetter, OperatorError};
use crate::feeds::Feeds;
use crate::record::EventTime;
use arrow_array::RecordBatch;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use tidemill_journal::Journal;
use tidemill_spec::types::StreamType;
use tidemill_spec::workflow::Journal as JournalOptions;

/// Result of one read of a source.
#[derive(Debug)]
pub enum SourceRead {
    /// Rows: payload columns only (no metadata), at most as many as asked for; zero rows are allowed
    /// (for instance when all rows read were dead letters).
    Rows {
        /// The payload.
        payload: RecordBatch,
        /// Event times in microseconds, one per row, if the source has them.
        times: Option<Vec<EventTime>>,
        /// Records that could not be read; each consumed one sequence number.
        dead_letters: Vec<DeadLetter>,
        /// Row number of each payload row within this read, counting dead letters too, strictly increasing;
        /// `None` if there were no dead letters. So that sequence numbers do not depend on what failed.
        offsets: Option<Vec<u64>>,
    },
    /// Nothing came for a while: a live source states it at least once a second, so that what is cut off holds up nobody.
    Idle {
        /// No record with an earlier event time will come, microseconds; [`EventTime::MIN`] if nothing is known: then the
        /// source is only read again. Later records that are older count as late. Of a source that can be read again from a
        /// position it is a record without a row, with a position and a sequence number, so that the watermark follows at the
        /// same record each time.
        watermark: EventTime,
    },
    /// The end.
    End,
}

/// Position of a source: opaque to the engine, small, comparable only by its own source.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourcePosition(pub String);

/// Reads records. Runs on changing reader threads, and may block on files; one that may wait for longer has a thread of its
/// own ([`BoundSource::stream`]).
pub trait Source: Send {
    /// Reads up to `rows` records, fewer when their payload passes `bytes` (but at least one).
    /// Two reads from the same position with the same number of records give the same records.
    fn read(&mut self, rows: usize, bytes: usize) -> Result<SourceRead, OperatorError>;
    /// Position of the next record.
    fn position(&self) -> SourcePosition;
    /// Continues at a position that `position` returned.
    fn seek(&mut self, position: &SourcePosition) -> Result<(), OperatorError>;
    /// Whether `seek` works. A source that cannot be replayed is at most once, and reports that.
    fn replayable(&self) -> bool {
        true
    }
    /// Bytes of each record of the last read, dead letters included, if epochs are cut by these: they depend on the record
    /// alone, and not on the size of a read. `None`: epochs are cut by the mean size of the records of a read.
    fn sizes(&self) -> Option<&[u32]> {
        None
    }
    /// Whether the last read ended because more records would have required waiting for another program.
    fn has_caught_up(&self) -> bool {
        false
    }
    /// The journal that it reads through, if any.
    fn journal(&self) -> Option<Arc<Journal>> {
        None
    }
    /// Number of records in one pass, if known (for progress).
    fn len_hint(&self) -> Option<u64> {
        None
    }
}

/// Makes readers of a bound source.
pub type MakeSource = Arc<dyn Fn() -> Result<Box<dyn Source>, OperatorError> + Send + Sync>;

/// Guarantee of a source for emitted records, if the process that read them is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SourcePromise {
    /// It emits them again itself, from any position: files.
    Replayable,
    /// A journal emits them again, if the run keeps a state.
    Journalled,
    /// They are lost.
    AtMostOnce,
}

/// Reading of a source through a journal.
#[derive(Clone)]
pub struct JournalledReading {
    /// Makes readers that share a journal; each reads it from its position on, and then the stream through it.
    pub make: Arc<dyn Fn(Arc<Journal>) -> MakeSource + Send + Sync>,
    /// The position within the journal; `None` if it is no position of this source.
    pub place: fn(&SourcePosition) -> Option<u64>,
    /// The fate of data that was sent and is not in the journal yet.
    pub unread: Unread,
}

/// The fate of data that was sent and is not in a journal yet, if the process dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unread {
    /// It stays where it is, such as in a pipe.
    Stays,
    /// It is lost: its sender has got an acknowledgement.
    IsLost,
    /// Its sender sends it again, and some of what is in the journal too.
    IsSentAgain,
}

/// Returns the names of a folder's files in reading order.
pub type ListFiles = Arc<dyn Fn() -> std::io::Result<Vec<OsString>> + Send + Sync>;

/// Input of a source that can be compared with an earlier one without the source.
#[derive(Clone)]
pub enum SourceInput {
    /// One file.
    File {
        /// Its path, relative to this process.
        path: PathBuf,
        /// Whether records appended later are read as if they had always been there.
        may_grow: bool,
    },
    /// Files of a folder; each is a record.
    Folder {
        /// Its path, relative to this process.
        path: PathBuf,
        /// Its present files.
        names: ListFiles,
        /// Whether files added after the last one are read as if they had always been there.
        may_grow: bool,
    },
}

impl SourceInput {
    /// Converts to a repeated input: additions are in the middle of the records.
    #[must_use]
    pub fn repeated(self) -> Self {
        match self {
            Self::File { path, .. } => Self::File { path, may_grow: false },
            Self::Folder { path, names, .. } => Self::Folder { path, names, may_grow: false },
        }
    }
}

/// A source with checked options.
#[derive(Clone)]
pub struct BoundSource {
    /// Source id in the workflow.
    pub id: String,
    /// Source kind.
    pub kind: String,
    /// Type of the output.
    pub output: StreamType,
    /// Column that determines the route class; `None`: the sequence number does.
    pub key: Option<String>,
    /// Records per second of the open-loop schedule; `None`: as fast as downstream takes them.
    pub rate_per_second: Option<f64>,
    /// Largest lateness of a record relative to the newest event time, microseconds.
    pub out_of_order_microseconds: i64,
    /// Whether it is a live source (its edges default to `latest`).
    pub live: bool,
    /// Whether a live source keeps what waits for the run, in bounds, so that its edges default to `block`: sounds.
    pub waits_for_all: bool,
    /// Whether a live source can be read again from a position, at which it states it while nothing comes: a file that grows.
    pub rereads: bool,
    /// Whether its records have event times of their own that increase to its end: not those of a source that repeats.
    /// Sources without a rate that meet are read together by these times.
    pub has_event_times: bool,
    /// Consecutive records with one event time, such as the frames of several cameras; 1 if unknown. Operators on event
    /// time process them when the last of them has arrived.
    pub at_one_time: u32,
    /// Description of its input, if that can be read only once (standard input, a pipe, a device); equal for two sources
    /// that would take each other's records. `None`: every reader starts at the beginning.
    pub stream: Option<String>,
    /// Reading of `stream` through a journal, if supported.
    pub journalled: Option<JournalledReading>,
    /// The files that it reads; `None` if there are none, or they cannot be inspected separately.
    pub input: Option<SourceInput>,
    /// Its journal in the workflow.
    pub journal: Option<JournalOptions>,
    /// Its feeds, if it is live: cameras, devices, subscriptions.
    pub feeds: Option<Arc<dyn Feeds>>,
    /// Callers that wait for results of its records, if there are any.
    pub requests: Option<Arc<dyn Requests>>,
    /// Makes one reader.
    pub make: MakeSource,
}

impl BoundSource {
    /// Whether records come at any time: the time of the next one is unknown.
    pub fn is_stream(&self) -> bool {
        self.live || self.stream.is_some()
    }

    /// Whether records come at any time, without a schedule: they are the load then.
    pub fn gives_what_comes(&self) -> bool {
        self.rate_per_second.is_none() && self.is_stream()
    }

    /// Its guarantee.
    pub fn promise(&self) -> SourcePromise {
        if self.stream.is_none() && (!self.live || self.rereads) {
            SourcePromise::Replayable
        } else if self.journal.is_some() && self.journalled.is_some() {
            SourcePromise::Journalled
        } else {
            SourcePromise::AtMostOnce
        }
    }
}

/// Callers that wait for the results of a source's records; shared by the source, the run and a sink.
pub trait Requests: Send + Sync {
    /// The next record that a new reader reads is this one of the source with this number.
    fn begin_reading(&self, source: u32, sequence: u64);
    /// Records before `sequence` are of epochs before `epoch`.
    fn begin_epoch(&self, epoch: u64, sequence: u64);
    /// A record has become a dead letter.
    fn bury(&self, letter: &DeadLetter);
    /// A sink of this process, or of another one, gives the answers.
    fn expect_answers(&self);
    /// The run does not read any further: there are no new requests, and those that wait are told. Returns when they have
    /// their answers, or after a few seconds.
    fn end_reading(&self);
}
