//! The traits of operators, sources and sinks. The engine uses only these.
//!
//! An operator kind is an [`OperatorKind`]: it checks its options and input types once (`bind`) and then makes instances,
//! one for each stage that runs it. There are three forms of computation:
//!
//! | instance | gets data | state |
//! |---|---|---|
//! | [`Stateless`] | at once, batch by batch, on the slot's thread | none |
//! | [`Stateful`] | when the epoch is complete, rows in a fixed order; joins before | snapshot at checkpoints |
//! | [`Inference`] | in batches chosen by the engine, on an executor thread | none |
//!
//! All of them may emit any number of rows per row, including none: [`unfold_metadata`](crate::record::unfold_metadata)
//! makes their identities. A valid row without output is neither a drop nor a dead letter.
//!
//! See `filter.rs`, `join.rs` for small examples of the first two.
mod source;

pub use source::{
    BoundSource, JournalledReading, ListFiles, MakeSource, Requests, Source, SourceInput, SourcePosition,
    SourcePromise, SourceRead, Unread,
};

use crate::model::{ChosenBackend, ModelSpec};
use crate::record::{EventTime, Metadata, RecordId};
use crate::values::{Values, row_values};
use arrow_array::{ArrayRef, BooleanArray, RecordBatch, UInt32Array};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tidemill_spec::diagnostic::Diagnostics;
pub use tidemill_spec::kinds::{Computation, GroupColumn, Spread};
use tidemill_spec::publication::Publication;
use tidemill_spec::span::Located;
use tidemill_spec::types::StreamType;

/// A stable code, `snake_case`; an operator has few of them, because they become metrics labels. Owned if it comes from
/// another process.
pub type Reason = Cow<'static, str>;

/// A record that could not be processed, with the reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadLetter {
    /// Identity of the record, if it has one already.
    pub id: Option<RecordId>,
    /// Event time, microseconds.
    pub time: Option<EventTime>,
    /// Reason: `image_truncated`, `image_too_large`, `audio_empty`, `invalid_utf8`, ...
    pub reason: Reason,
    /// The finding in words, with the file name if there is one.
    pub detail: String,
    /// The record, as far as it is known, shortened by [`crate::values`].
    #[serde(default)]
    pub values: Values,
}

impl DeadLetter {
    /// Creates the letter of a row of a batch from an edge.
    pub fn of_row(batch: &RecordBatch, row: usize, reason: impl Into<Reason>, detail: String) -> Self {
        let metadata = Metadata::of(batch);
        let (id, time) = (Some(metadata.id(row)), Some(metadata.times.value(row)));
        Self { id, time, reason: reason.into(), detail, values: row_values(batch, row) }
    }
}

/// Output of one call of an operator.
#[derive(Debug, Default)]
pub struct Output {
    /// Result batches with metadata columns, in order.
    pub batches: Vec<RecordBatch>,
    /// Records that could not be processed.
    pub dead_letters: Vec<DeadLetter>,
    /// Records dropped on purpose, by stable reason (`late`, `unmatched`).
    pub drops: Vec<(Reason, u64)>,
    /// Records that were emitted with a remark, by stable reason (`text_cut_off`).
    pub notes: Vec<(Reason, u64)>,
    /// Where the time of the call went, if a device of another process computed, or this process instead of it.
    pub device: Option<DeviceTimes>,
}

/// Where the time of a call went that a device of another process computed. The rest of the call's time is the client's: pre-processing,
/// post-processing and copies. Without round trips no device has computed it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeviceTimes {
    /// On the way, both directions together.
    pub network: Duration,
    /// In queues of the device: there, but not computing.
    pub queue: Duration,
    /// The device computed.
    pub compute: Duration,
    /// Times that somebody waited for the device: round trips.
    pub round_trips: u64,
    /// Bytes to the device.
    pub sent: u64,
    /// Bytes from the device.
    pub received: u64,
    /// Sessions that were lost on the way; their runs were repeated.
    pub lost: u64,
    /// Of the lost ones, those whose device gave no sign of life or computed for too long.
    pub stalled: u64,
    /// Batches that this process computed instead of the device.
    pub here: u64,
    /// Batches that a spare computed instead of the device.
    pub on_spare: u64,
}

impl DeviceTimes {
    /// Adds those of another call.
    pub fn add(&mut self, other: &Self) {
        self.network += other.network;
        self.queue += other.queue;
        self.compute += other.compute;
        self.round_trips += other.round_trips;
        self.sent += other.sent;
        self.received += other.received;
        self.lost += other.lost;
        self.stalled += other.stalled;
        self.here += other.here;
        self.on_spare += other.on_spare;
    }
}

impl Output {
    /// Adds a batch unless it is empty.
    pub fn push(&mut self, batch: RecordBatch) {
        if batch.num_rows() > 0 {
            self.batches.push(batch);
        }
    }

    /// Counts records dropped on purpose.
    pub fn drop_rows(&mut self, reason: impl Into<Reason>, rows: u64) {
        add(&mut self.drops, reason.into(), rows);
    }

    /// Counts records that were emitted with a remark.
    pub fn note_rows(&mut self, reason: impl Into<Reason>, rows: u64) {
        add(&mut self.notes, reason.into(), rows);
    }
}

fn add(counts: &mut Vec<(Reason, u64)>, reason: Reason, rows: u64) {
    if rows == 0 {
        return;
    }
    match counts.iter_mut().find(|(known, _)| *known == reason) {
        Some((_, n)) => *n += rows,
        None => counts.push((reason, rows)),
    }
}

/// A failure of the operator itself (not of one record): the run stops.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct OperatorError {
    /// Failure and advice.
    pub message: String,
    /// The findings with places in files, where it has to do with files.
    pub findings: Diagnostics,
    /// Whether the process or host that computed is gone: the batch may be computed again elsewhere.
    pub lost: bool,
}

impl OperatorError {
    /// Creates an error with this text.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), findings: Diagnostics::new(), lost: false }
    }

    /// Creates the error of a process or host that is gone.
    pub fn lost(message: impl Into<String>) -> Self {
        Self { lost: true, ..Self::new(message) }
    }
}

impl From<Diagnostics> for OperatorError {
    fn from(findings: Diagnostics) -> Self {
        Self { message: findings.render(false), findings, lost: false }
    }
}

/// Computes row by row or batch by batch, without state, on the slot's thread. Must not block.
pub trait Stateless: Send {
    /// Processes one batch.
    fn process(&mut self, batch: &RecordBatch, output: &mut Output) -> Result<(), OperatorError>;
}

/// An operator with state. The engine applies an epoch only when it is complete, with the rows of each port sorted by
/// (event time, id), ports in order, then calls `advance` with the operator's watermark (the meet over its inputs);
/// operators that [take rows early](Stateful::takes_rows_early) get them before. So the result depends on the epochs only,
/// and the state is always "all of the epochs before e".
pub trait Stateful: Send {
    /// Applies the rows that arrived at input `port` in one epoch.
    fn apply(&mut self, port: usize, batch: &RecordBatch, output: &mut Output) -> Result<(), OperatorError>;
    /// Advances the watermark: no row with an earlier event time is expected any more. `EventTime::MAX` at the end.
    fn advance(&mut self, watermark: EventTime, output: &mut Output) -> Result<(), OperatorError>;
    /// Whether rows may be applied before all of their epoch are there: each port's in portions, ports in turns. For
    /// operators whose rows, drops and state of an epoch do not depend on that. Downstream stages get the rows of an epoch
    /// in an order that follows from the rows alone. `advance` still ends each epoch.
    fn takes_rows_early(&self) -> bool {
        false
    }
    /// Whether its state follows from what comes from outside of the streams ([`Stateful::take_news`]), and not from rows and
    /// watermarks. A restart then repeats the news alone, and the rows are not kept.
    fn follows_news(&self) -> bool {
        false
    }
    /// Takes what has come from outside since the last call, such as a file that was replaced, for [`Stateful::apply`] at the port
    /// [`NEWS`]. Asked of an operator that [follows news](Stateful::follows_news) before the first rows of an epoch, once in a
    /// process: a restart repeats the answer at the same epoch, as far as it was kept.
    fn take_news(&mut self) -> Option<RecordBatch> {
        None
    }
    /// Whether the last `advance` kept results back because one epoch would have had too many. The engine calls `advance`
    /// again at the end of each following epoch, also when the watermark stays and after the end of the stream, until
    /// nothing is left; so sinks can commit in between. It is part of the state.
    fn has_more(&self) -> bool {
        false
    }
    /// Returns the watermark of the output once the input's is `watermark`: no row with an earlier event time will be
    /// emitted any more. A window that is open for late rows holds it back.
    fn output_watermark(&self, watermark: EventTime) -> EventTime {
        watermark
    }
    /// Writes the whole state.
    fn snapshot(&self) -> Result<Vec<u8>, OperatorError>;
    /// Returns a function that writes the present state on another thread, while this operator continues. Its result equals
    /// that of [`Stateful::snapshot`] now. For operators with much state, which can share it faster than write it.
    ///
    /// # Errors
    /// Those of [`Stateful::snapshot`].
    fn capture(&mut self) -> Result<WriteSnapshot, OperatorError> {
        let bytes = self.snapshot()?;
        Ok(Box::new(move || Ok(bytes)))
    }
    /// Replaces the state by a snapshot of the same operator.
    fn restore(&mut self, snapshot: &[u8]) -> Result<(), OperatorError>;
    /// Whether its state can be divided by keys: see [`Stateful::take_in`].
    fn is_divisible(&self) -> bool {
        false
    }
    /// Adds the part of another instance's snapshot for some keys, which are new to this one. All snapshots taken in are of
    /// one epoch. So the state of several stages can be redistributed to more or fewer.
    ///
    /// # Errors
    /// The state cannot be divided, the snapshot cannot be read, or it is behind those taken in before.
    fn take_in(&mut self, snapshot: &[u8], takes: &TakesKeys<'_>) -> Result<(), OperatorError> {
        let _ = (snapshot, takes);
        Err(OperatorError::new("the state of this operator cannot be divided"))
    }
    /// Bytes of state, for accounting.
    fn state_bytes(&self) -> usize {
        0
    }
}

/// The port at which [`Stateful::apply`] gets what [`Stateful::take_news`] took; its batches have no metadata columns.
pub const NEWS: usize = u16::MAX as usize;

/// Writes a state that was captured: see [`Stateful::capture`].
pub type WriteSnapshot = Box<dyn FnOnce() -> Result<Vec<u8>, OperatorError> + Send>;

/// The keys of rows in a state.
pub struct StateKeys<'a> {
    /// The route class of each row at its source, with its lane.
    pub classes: &'a UInt32Array,
    /// The values of the column of [`Spread::Group`], if there is one.
    pub first: Option<&'a ArrayRef>,
}

/// Selects the rows of a state to take.
pub type TakesKeys<'a> = dyn Fn(&StateKeys<'_>) -> BooleanArray + 'a;

/// A model: a batch in, a batch out, on an executor thread of the engine. Each row of the outputs comes from one input row
/// and has its source and sequence; a row may give several or none. Stateless between calls.
pub trait Inference: Send {
    /// Runs the model on one batch (1 ..= max batch rows).
    fn infer(&mut self, batch: &RecordBatch, output: &mut Output) -> Result<(), OperatorError>;
    /// Runs the model on the rows of several batches of one schema together, so that pictures need not be copied into one
    /// batch first. A model that can should run them at once and return a batch for each.
    fn infer_parts(&mut self, parts: &[RecordBatch], output: &mut Output) -> Result<(), OperatorError> {
        match parts {
            [] => Ok(()),
            [batch] => self.infer(batch, output),
            [first, ..] => {
                let joined = arrow_select::concat::concat_batches(first.schema_ref(), parts)
                    .map_err(|error| OperatorError::new(error.to_string()))?;
                self.infer(&joined, output)
            }
        }
    }

    /// Processor time so far of threads other than the caller of [`Inference::infer`], if there are any.
    fn processor_time_elsewhere(&self) -> Duration {
        Duration::ZERO
    }

    /// Time so far of the model's own runs, without the preparation of inputs and outputs. `None`: not known.
    fn model_time(&self) -> Option<Duration> {
        None
    }

    /// The backend that computes it, where there is a choice.
    fn backend(&self) -> Option<ChosenBackend> {
        None
    }

    /// Returns how many of its batches are computed at once, if its options say so. `None`: one, and the engine adds copies when it
    /// delays the others.
    fn concurrency(&self) -> Option<Concurrency> {
        None
    }
}

/// Batches of a model that are computed at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Concurrency {
    /// Number of copies, from the start to the end.
    pub copies: usize,
    /// Most batches without a result that has left; `None`: as many as the engine finds useful.
    pub in_flight: Option<usize>,
    /// Whether results leave in the order of the records.
    pub is_ordered: bool,
}

/// One running copy of an operator.
pub enum Instance {
    /// See [`Stateless`].
    Stateless(Box<dyn Stateless>),
    /// See [`Stateful`].
    Stateful(Box<dyn Stateful>),
    /// See [`Inference`].
    Inference(Box<dyn Inference>),
}

/// Makes instances of a bound operator.
pub type MakeInstance = Arc<dyn Fn() -> Result<Instance, OperatorError> + Send + Sync>;

/// An operator with checked options and types, ready to be instantiated.
#[derive(Clone)]
pub struct BoundOperator {
    /// Operator id in the workflow.
    pub id: String,
    /// Operator kind.
    pub kind: String,
    /// Type of the output.
    pub output: StreamType,
    /// How it computes.
    pub computation: Computation,
    /// Permitted distribution over several stages.
    pub spread: Spread,
    /// The model, where it has one that another process can load.
    pub model: Option<ModelSpec>,
    /// Makes one instance; loads the model if there is one.
    pub make: MakeInstance,
}

/// Writes the results. Rows come in a fixed order: by epoch, then (event time, source, sequence, id).
pub trait Sink: Send {
    /// Tells the epoch of the rows of the next `write`: for sinks that store it with the rows.
    fn at_epoch(&mut self, epoch: u64) {
        let _ = epoch;
    }
    /// Writes rows (metadata columns included), which become permanent with the next `commit`.
    fn write(&mut self, batch: &RecordBatch) -> Result<(), OperatorError>;
    /// Commits everything written since the last commit, so that it stays if the slot restarts, and shows it to readers
    /// unless [`Sink::publication`] defers that; `epoch`: everything before it is included. Called when an epoch is
    /// complete, at checkpoints only unless the publication is [`Publication::EachEpoch`]. It need not survive a power
    /// loss: see [`Sink::flush`].
    fn commit(&mut self, epoch: u64) -> Result<(), OperatorError>;
    /// Returns the rows since the last call that a commit could not deliver, with the epochs of which [`Sink::at_epoch`] told.
    fn take_dead_letters(&mut self) -> Vec<(u64, DeadLetter)> {
        Vec::new()
    }
    /// Discards rows written since the last commit (a restart will write them again).
    fn rollback(&mut self) -> Result<(), OperatorError>;
    /// Last call: removes temporaries. Uncommitted rows are discarded; committed ones survive a power loss.
    fn close(&mut self) -> Result<(), OperatorError>;
    /// Returns the token with which another process continues after the last commit; `None`: this sink cannot be continued.
    /// A token from before the first commit continues at the start. It is recorded once [`Sink::flush`] is done.
    fn token(&mut self) -> Result<Option<Vec<u8>>, OperatorError> {
        Ok(None)
    }
    /// Returns a task that makes everything committed at this call survive a power loss, so that the last token holds there
    /// too. It runs on another thread, while rows are written and committed. `None`: there is nothing to do.
    fn flush(&self) -> Option<Flush> {
        None
    }
    /// Last call instead of `close` if another process will continue: discards uncommitted rows, keeps the state of the
    /// token.
    fn suspend(&mut self) -> Result<(), OperatorError> {
        self.close()
    }
    /// Whether `commit`/`rollback` give exactly once; otherwise at least once with the stable record id.
    fn exactly_once(&self) -> bool;
    /// When readers see rows, which also determines the frequency of commits. Default: an exactly-once sink
    /// commits per checkpoint, another one per epoch. An exactly-once sink that can undo commits after its last token
    /// returns [`Publication::EachEpoch`], one whose file appears when it is closed [`Publication::AtEnd`]. One that shows
    /// rows [on arrival](Publication::OnArrival) gets them then, in any order.
    fn publication(&self) -> Publication {
        if self.exactly_once() { Publication::EachCheckpoint } else { Publication::EachEpoch }
    }
    /// Whether its reader is gone (a closed pipe). A run ends when all its sinks are closed.
    fn is_closed(&self) -> bool {
        false
    }
    /// Rows of the last `write` that were not taken: the reader is gone, or writing was cancelled.
    fn refused(&self) -> u64 {
        0
    }
    /// Returns a function that cancels, from another thread, a `write` that waits for its reader, and all later ones.
    /// `None` if writes never wait.
    fn call_off(&self) -> Option<CallOff> {
        None
    }
}

/// See [`Sink::flush`].
pub type Flush = Box<dyn FnOnce() -> Result<(), OperatorError> + Send>;

/// See [`Sink::call_off`].
pub type CallOff = Arc<dyn Fn() + Send + Sync>;

/// Makes a sink.
pub type MakeSink = Arc<dyn Fn() -> Result<Box<dyn Sink>, OperatorError> + Send + Sync>;

/// Makes a sink whose commits survive the process. Without a token it starts from nothing as [`MakeSink`] does; with the
/// last recorded one it continues after the token's commit, and discards later commits.
pub type MakeDurableSink = Arc<dyn Fn(Option<&[u8]>) -> Result<Box<dyn Sink>, OperatorError> + Send + Sync>;

/// Exact-match scoring of a sink's rows against ground truth.
#[derive(Debug, Clone, PartialEq)]
pub struct GroundTruth {
    /// Column of the stream that identifies the record.
    pub key: String,
    /// Column of the stream with the prediction.
    pub prediction: String,
    /// Truth by key.
    pub answers: Arc<std::collections::HashMap<String, String>>,
    /// Whether each key counts once, at its first result: a source before the sink repeats, and a repeated record adds no
    /// information.
    pub once: bool,
    /// Truth of tracks: then `key` is the column of the camera, `prediction` that of the identity, and correct answers are
    /// counted in boxes, so that the share is IDF1.
    pub tracks: Option<Arc<crate::track_truth::TrackTruth>>,
    /// Correct texts, compared character by character or word by word: correct answers are counted in these.
    pub texts: Option<Arc<crate::text_truth::TextTruth>>,
    /// Measure of answers that are neither tracks nor texts.
    pub measure: crate::measures::Measure,
}

/// A sink with checked options.
#[derive(Clone)]
pub struct BoundSink {
    /// Sink id in the workflow.
    pub id: String,
    /// Sink kind.
    pub kind: String,
    /// Type of its input.
    pub input: StreamType,
    /// Scoring, if ground truth is given.
    pub ground_truth: Option<GroundTruth>,
    /// Files it will write, for checks before the run.
    pub files: Vec<PathBuf>,
    /// It writes to standard output, so that nothing else should.
    pub is_standard_output: bool,
    /// The source whose requests it answers.
    pub answers: Option<Located<String>>,
    /// Whether a process that continues it gives rows again, although it is durable: it takes nothing back.
    pub repeats: bool,
    /// Makes the sink.
    pub make: MakeSink,
    /// Makes a sink whose commits survive the process: without a token it starts from nothing as `make` does, with one it
    /// continues after the token's commit. `None`: no other process can continue this sink (standard output, a pipe). It is
    /// then at least once: a process that continues from a checkpoint writes the later rows again.
    pub durable: Option<MakeDurableSink>,
}
