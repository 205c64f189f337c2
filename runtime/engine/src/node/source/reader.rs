//! Reads a source ahead on other threads, so that files never block a slot.
use super::clocked::Marks;
use super::pool::{ReaderPool, Turns};
use super::{RECORDS_PER_EPOCH, bytes_per_record};
use crate::executor::Notifier;
use crate::failure::panic_text;
use crate::processor::{ProcessorTime, ThreadMeter};
use crate::store::Cut;
use arrow_array::RecordBatch;
use arrow_schema::Schema;
use std::collections::VecDeque;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use tidemill_operators::api::{
    BoundSource, DeadLetter, MakeSource, OperatorError, Source, SourcePosition, SourceRead,
};
use tidemill_operators::record::EventTime;

/// Records per read: an epoch of a source without a rate, so that each operator gets it in one batch.
const RECORDS_PER_READ: usize = RECORDS_PER_EPOCH as usize;
/// Payload bytes per read.
const BYTES_PER_READ: usize = 512 << 10;
/// Chunks read ahead.
const CHUNKS_AHEAD: usize = 2;
/// Chunks read ahead of a live source: what waits here grows old, and the source has newer records instead.
const LIVE_CHUNKS_AHEAD: usize = 1;

/// Result of one read.
pub(super) struct Chunk {
    /// Position of its first record.
    pub(super) position: SourcePosition,
    /// Records, dead letters included.
    pub(super) records: u64,
    /// Records at its start that were emitted before.
    pub(super) skip: u64,
    pub(super) payload: RecordBatch,
    pub(super) times: Option<Vec<EventTime>>,
    /// Record number within the chunk of each dead letter.
    pub(super) dead_letters: Vec<(u64, DeadLetter)>,
    /// Record number within the chunk of each row; `None`: all records are rows.
    offsets: Option<Vec<u64>>,
    /// Bytes of each record, if epochs are cut by these.
    sizes: Option<Vec<u32>>,
    /// Bytes of a record on average.
    bytes_per_record: usize,
    /// Whether more records would have required waiting.
    pub(super) has_caught_up: bool,
    /// Marks of its journal: with the first chunk.
    pub(super) marks: Option<Marks>,
    /// Watermark that the source stated instead of records.
    pub(super) stated: Option<EventTime>,
}

impl Chunk {
    fn new(
        position: SourcePosition,
        payload: RecordBatch,
        times: Option<Vec<EventTime>>,
        letters: Vec<DeadLetter>,
        offsets: Option<Vec<u64>>,
    ) -> Self {
        let records = (payload.num_rows() + letters.len()) as u64;
        // The record numbers without a row are those of the dead letters, in order.
        let numbers: Vec<u64> = match &offsets {
            None => (payload.num_rows() as u64..records).collect(),
            Some(offsets) => (0..records).filter(|record| offsets.binary_search(record).is_err()).collect(),
        };
        let dead_letters = numbers.into_iter().zip(letters).collect();
        let bytes_per_record = bytes_per_record(&payload);
        Self {
            position,
            records,
            skip: 0,
            payload,
            times,
            dead_letters,
            offsets,
            sizes: None,
            bytes_per_record,
            has_caught_up: false,
            marks: None,
            stated: None,
        }
    }

    /// A statement of a source that is read again from its position: it has a place among the records, and a number, so that
    /// the watermark follows at the same record each time.
    fn of_statement(position: SourcePosition, watermark: EventTime) -> Self {
        let nothing = RecordBatch::new_empty(Arc::new(Schema::empty()));
        let times = Some(Vec::new());
        let chunk = Self::new(position, nothing, times, Vec::new(), Some(Vec::new()));
        Self { records: 1, stated: Some(watermark), ..chunk }
    }

    /// Bytes of a record that count for the end of an epoch.
    pub(super) fn bytes_of(&self, record: u64) -> usize {
        let size = self.sizes.as_ref().and_then(|sizes| sizes.get(record as usize));
        size.map_or(self.bytes_per_record, |size| *size as usize)
    }

    /// Record number of a row.
    pub(super) fn record_of(&self, row: usize) -> u64 {
        self.offsets.as_ref().map_or(row as u64, |offsets| offsets[row])
    }

    /// The rows among the records `first .. last`.
    pub(super) fn rows_between(&self, first: u64, last: u64) -> Range<usize> {
        match &self.offsets {
            None => {
                let rows = self.payload.num_rows();
                (first as usize).min(rows)..(last as usize).min(rows)
            }
            Some(offsets) => {
                offsets.partition_point(|record| *record < first)
                    ..offsets.partition_point(|record| *record < last)
            }
        }
    }
}

enum Message {
    Chunk(Box<Chunk>),
    Failed(OperatorError),
    End,
}

/// Chunks read and not taken yet.
#[derive(Default)]
struct Ahead {
    messages: VecDeque<Message>,
    /// Waits here while enough is read ahead, without occupying a thread.
    parked: Option<Box<Reading>>,
    /// Watermark that the source stated while nothing came, and its position then.
    stated: Option<(EventTime, SourcePosition)>,
}

#[derive(Default)]
struct Feed(Mutex<Ahead>);

impl Feed {
    fn lock(&self) -> MutexGuard<'_, Ahead> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A source being read, one chunk per turn.
struct Reading {
    /// Dropped when the chunks are no longer needed.
    feed: Weak<Feed>,
    make: MakeSource,
    /// Start position.
    position: Option<SourcePosition>,
    source: Option<Box<dyn Source>>,
    /// The stage, if the marks of a journal are requested.
    marked: Option<String>,
    marks: Option<Marks>,
    /// Records that were emitted before.
    skip: u64,
    is_live: bool,
    /// Chunks to read ahead.
    ahead: usize,
    notifier: Notifier,
    processor: Arc<ProcessorTime>,
}

impl Reading {
    /// Reads once. `None`: there was no new data.
    fn read(&mut self) -> Result<Option<Message>, OperatorError> {
        // Taken out meanwhile: its state after a panic is not used.
        let mut source = match self.source.take() {
            Some(source) => source,
            None => {
                let mut source = (self.make)()?;
                if let Some(position) = self.position.take() {
                    source.seek(&position)?;
                    if self.is_live && source.position() != position {
                        // What was there is gone, and so nothing of it is left out.
                        self.skip = 0;
                    }
                }
                if let (Some(reader), Some(journal)) = (self.marked.take(), source.journal()) {
                    self.marks = Some(Marks::of(journal, &reader).map_err(OperatorError::new)?);
                }
                source
            }
        };
        let position = source.position();
        let mut chunk = match source.read(RECORDS_PER_READ, BYTES_PER_READ)? {
            SourceRead::Rows { payload, times, dead_letters, offsets } => {
                Chunk::new(position, payload, times, dead_letters, offsets)
            }
            SourceRead::Idle { watermark } if self.is_live => {
                self.state(watermark, source.position());
                self.source = Some(source);
                return Ok(None);
            }
            // It states nothing, so it is no record: it would take a number.
            SourceRead::Idle { watermark: EventTime::MIN } => {
                self.source = Some(source);
                return Ok(None);
            }
            SourceRead::Idle { watermark } => Chunk::of_statement(position, watermark),
            SourceRead::End => return Ok(Some(Message::End)),
        };
        chunk.sizes = source.sizes().filter(|_| chunk.stated.is_none()).map(<[u32]>::to_vec);
        chunk.has_caught_up = source.has_caught_up();
        self.source = Some(source);
        chunk.skip = self.skip.min(chunk.records);
        self.skip -= chunk.skip;
        if chunk.skip == chunk.records {
            return Ok(None);
        }
        chunk.marks = self.marks.take();
        Ok(Some(Message::Chunk(Box::new(chunk))))
    }
}

impl Reading {
    /// Passes on a watermark of the source. Nobody waits for it: a live source is asked each tick.
    fn state(&self, watermark: EventTime, position: SourcePosition) {
        let Some(feed) = self.feed.upgrade() else { return };
        let stated = &mut feed.lock().stated;
        let watermark = stated.take().map_or(watermark, |(before, _)| before.max(watermark));
        *stated = Some((watermark, position));
    }
}

impl Turns for Reading {
    fn turn(mut self: Box<Self>) -> Option<Box<dyn Turns>> {
        if self.feed.strong_count() == 0 {
            return None;
        }
        let meter = ThreadMeter::begin(Arc::clone(&self.processor));
        let read = catch_unwind(AssertUnwindSafe(|| self.read()));
        drop(meter);
        let message = match read {
            Ok(Ok(None)) => return Some(self),
            Ok(Ok(Some(message))) => message,
            Ok(Err(error)) => Message::Failed(error),
            Err(payload) => {
                Message::Failed(OperatorError::new(format!("it panicked: {}", panic_text(payload.as_ref()))))
            }
        };
        let feed = self.feed.upgrade()?;
        let notifier = self.notifier.clone();
        let goes_on = matches!(message, Message::Chunk(_));
        let mut ahead = feed.lock();
        // The receiver waits for a notification only after it found nothing.
        let is_awaited = ahead.messages.is_empty();
        ahead.messages.push_back(message);
        let again: Option<Box<dyn Turns>> = match goes_on {
            false => None,
            true if ahead.messages.len() < self.ahead => Some(self),
            true => {
                ahead.parked = Some(self);
                None
            }
        };
        drop(ahead);
        if is_awaited {
            notifier.notify();
        }
        again
    }
}

/// Returns whether reading a source may block longer than a file, so that it needs its own thread.
fn wants_own_thread(source: &BoundSource) -> bool {
    source.is_stream()
}

pub(super) struct Reader {
    feed: Arc<Feed>,
    pool: Arc<ReaderPool>,
    has_times: bool,
}

fn no_thread(error: &std::io::Error) -> OperatorError {
    OperatorError::new(format!("no thread to read with: {error}"))
}

impl Reader {
    /// Starts reading at a cut, or at the start; its processor time is added to `processor`. Files are read by the threads
    /// of `pool`. `marked`: the stage, whose [marks](Marks) come with the first chunk.
    pub(super) fn start(
        source: &BoundSource,
        (cut, marked): (Option<&Cut>, Option<&str>),
        notifier: Notifier,
        processor: Arc<ProcessorTime>,
        pool: &Arc<ReaderPool>,
    ) -> Self {
        let pool = match wants_own_thread(source) {
            true => Arc::new(ReaderPool::of_one(&source.id)),
            false => Arc::clone(pool),
        };
        let feed = Arc::new(Feed::default());
        let reading = Reading {
            feed: Arc::downgrade(&feed),
            make: source.make.clone(),
            position: cut.map(|cut| cut.position.clone()),
            source: None,
            marked: marked.map(str::to_owned),
            marks: None,
            skip: cut.filter(|_| !source.live || source.rereads).map_or(0, |cut| cut.skip),
            is_live: source.live,
            ahead: if source.live { LIVE_CHUNKS_AHEAD } else { CHUNKS_AHEAD },
            notifier: notifier.clone(),
            processor,
        };
        if let Err(error) = pool.submit(Box::new(reading)) {
            feed.lock().messages.push_back(Message::Failed(no_thread(&error)));
            notifier.notify();
        }
        Self { feed, pool, has_times: false }
    }

    /// Returns whether the records carry event times of their own.
    pub(super) fn has_times(&self) -> bool {
        self.has_times
    }

    /// The watermark that the source stated since the last call, and its position then, if no chunk waits.
    pub(super) fn stated(&mut self) -> Option<(EventTime, SourcePosition)> {
        let mut ahead = self.feed.lock();
        ahead.stated.take().filter(|_| ahead.messages.is_empty())
    }

    /// The next chunk; `Ok(None)`: not read yet; `Err(None)`: the end; `Err(Some(_))`: a failure.
    pub(super) fn next(&mut self) -> Result<Option<Chunk>, Option<OperatorError>> {
        let mut ahead = self.feed.lock();
        let message = ahead.messages.pop_front();
        let parked = ahead.parked.take();
        drop(ahead);
        if let Some(parked) = parked {
            self.pool.submit(parked).map_err(|error| Some(no_thread(&error)))?;
        }
        match message {
            Some(Message::Chunk(chunk)) => {
                self.has_times |= chunk.times.is_some();
                Ok(Some(*chunk))
            }
            Some(Message::Failed(error)) => Err(Some(error)),
            Some(Message::End) => Err(None),
            None => Ok(None),
        }
    }
}
