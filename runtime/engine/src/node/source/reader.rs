//! Reads a source ahead on a thread of its own, so that files never block a slot.
use super::{RECORDS_PER_EPOCH, bytes_per_record};
use crate::executor::Notifier;
use crate::failure::panic_text;
use crate::processor::{ProcessorTime, ThreadMeter};
use crate::store::Cut;
use arrow_array::RecordBatch;
use crossbeam_channel::{Receiver, TryRecvError, bounded};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use tidemill_operators::api::{BoundSource, DeadLetter, OperatorError, Source, SourcePosition, SourceRead};
use tidemill_operators::record::EventTime;

/// Records asked for at once: an epoch of a source without a rate, so that each operator gets it in one batch.
const RECORDS_PER_READ: usize = RECORDS_PER_EPOCH as usize;
/// Payload bytes asked for at once.
const BYTES_PER_READ: usize = 512 << 10;
/// Chunks read ahead.
const CHUNKS_AHEAD: usize = 2;

/// What one read gave.
pub(super) struct Chunk {
    /// Position of its first record.
    pub(super) position: SourcePosition,
    /// Records, dead letters included.
    pub(super) records: u64,
    /// Records at its beginning that were emitted before.
    pub(super) skip: u64,
    pub(super) payload: RecordBatch,
    pub(super) times: Option<Vec<EventTime>>,
    /// Record number within the chunk of each dead letter.
    pub(super) dead_letters: Vec<(u64, DeadLetter)>,
    /// Record number within the chunk of each row; none: all records are rows.
    offsets: Option<Vec<u64>>,
    pub(super) bytes_per_record: usize,
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
        // The record numbers that no row has are those of the dead letters, in order.
        let numbers: Vec<u64> = match &offsets {
            None => (payload.num_rows() as u64..records).collect(),
            Some(offsets) => (0..records).filter(|record| offsets.binary_search(record).is_err()).collect(),
        };
        let dead_letters = numbers.into_iter().zip(letters).collect();
        let bytes_per_record = bytes_per_record(&payload);
        Self { position, records, skip: 0, payload, times, dead_letters, offsets, bytes_per_record }
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
    /// Only this is the end: a reader that is gone without it has died.
    End,
}

pub(super) struct Reader {
    messages: Receiver<Message>,
    has_times: bool,
}

fn read_all(
    source: &mut dyn Source,
    mut skip: u64,
    mut send: impl FnMut(Chunk) -> bool,
) -> Result<(), OperatorError> {
    loop {
        let position = source.position();
        let SourceRead::Rows { payload, times, dead_letters, offsets } =
            source.read(RECORDS_PER_READ, BYTES_PER_READ)?
        else {
            return Ok(());
        };
        let mut chunk = Chunk::new(position, payload, times, dead_letters, offsets);
        if chunk.records == 0 {
            continue;
        }
        chunk.skip = skip.min(chunk.records);
        skip -= chunk.skip;
        if chunk.skip < chunk.records && !send(chunk) {
            return Ok(());
        }
    }
}

impl Reader {
    /// Starts reading at a cut, or at the beginning; what that takes is added to `processor`.
    pub(super) fn start(
        source: &BoundSource,
        cut: Option<&Cut>,
        notifier: Notifier,
        processor: Arc<ProcessorTime>,
    ) -> Self {
        let (sender, messages) = bounded(CHUNKS_AHEAD);
        let make = source.make.clone();
        let cut = cut.cloned();
        let thread_notifier = notifier.clone();
        let failed = sender.clone();
        let spawned = std::thread::Builder::new().name(format!("tm-read-{}", source.id)).spawn(move || {
            let mut meter = ThreadMeter::begin(processor);
            let read = || {
                let mut source = make()?;
                if let Some(cut) = &cut {
                    source.seek(&cut.position)?;
                }
                read_all(&mut *source, cut.as_ref().map_or(0, |cut| cut.skip), |chunk| {
                    meter.look();
                    let sent = sender.send(Message::Chunk(Box::new(chunk))).is_ok();
                    thread_notifier.notify();
                    sent
                })
            };
            let last = match catch_unwind(AssertUnwindSafe(read)) {
                Ok(Ok(())) => Message::End,
                Ok(Err(error)) => Message::Failed(error),
                Err(payload) => Message::Failed(OperatorError::new(format!(
                    "it panicked: {}",
                    panic_text(payload.as_ref())
                ))),
            };
            drop(meter);
            let _ = sender.send(last);
            thread_notifier.notify();
        });
        if let Err(error) = spawned {
            let _ =
                failed.send(Message::Failed(OperatorError::new(format!("no thread to read with: {error}"))));
            notifier.notify();
        }
        Self { messages, has_times: false }
    }

    /// Whether the records carry event times of their own.
    pub(super) fn has_times(&self) -> bool {
        self.has_times
    }

    /// The next chunk; `Ok(None)`: not read yet; `Err(None)`: the end; `Err(Some(_))`: a failure.
    pub(super) fn next(&mut self) -> Result<Option<Chunk>, Option<OperatorError>> {
        match self.messages.try_recv() {
            Ok(Message::Chunk(chunk)) => {
                self.has_times |= chunk.times.is_some();
                Ok(Some(*chunk))
            }
            Ok(Message::Failed(error)) => Err(Some(error)),
            Err(TryRecvError::Empty) => Ok(None),
            Ok(Message::End) => Err(None),
            Err(TryRecvError::Disconnected) => Err(Some(OperatorError::new("its reader died"))),
        }
    }
}
