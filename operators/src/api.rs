//! What an operator, a source and a sink are. The engine knows only these traits.
//!
//! An operator kind is an [`OperatorKind`]: it checks its options and input types once (`bind`) and then makes
//! instances, one for each stage that runs it. There are three ways to compute:
//!
//! | instance | when it sees data | state |
//! |---|---|---|
//! | [`Stateless`] | at once, batch by batch, on the slot's thread | none |
//! | [`Stateful`] | when the epoch is complete, rows in a fixed order; joins before | snapshot at checkpoints |
//! | [`Inference`] | in batches chosen by the engine, on an executor thread | none |
//!
//! All of them may give any number of rows for a row, none too: [`unfold_metadata`](crate::record::unfold_metadata) makes
//! their identities. A row of which nothing comes although nothing is wrong with it is neither a drop nor a dead letter.
//!
//! See `filter.rs`, `join.rs` for small examples of the first two.
use crate::model::{ChosenBackend, ModelSpec};
use crate::record::{EventTime, Metadata, RecordId};
use crate::values::{Values, row_values};
use arrow_array::{ArrayRef, BooleanArray, RecordBatch, UInt32Array};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tidemill_journal::Journal;
use tidemill_spec::diagnostic::Diagnostics;
use tidemill_spec::publication::Publication;
use tidemill_spec::types::StreamType;
use tidemill_spec::workflow::Journal as JournalOptions;

/// A stable code, `snake_case`, of which an operator has few: it becomes a metrics label. Owned where it comes from
/// another process.
pub type Reason = Cow<'static, str>;

/// Why a record could not be processed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadLetter {
    /// Identity of the record, if it had one already.
    pub id: Option<RecordId>,
    /// Event time, microseconds.
    pub time: Option<EventTime>,
    /// Why: `image_truncated`, `image_too_large`, `audio_empty`, `invalid_utf8`, ...
    pub reason: Reason,
    /// What was found, in words, with the file name where there is one.
    pub detail: String,
    /// The record, as far as it is known and as small as [`crate::values`] makes it.
    #[serde(default)]
    pub values: Values,
}

impl DeadLetter {
    /// The letter of a row of a batch that came over an edge.
    pub fn of_row(batch: &RecordBatch, row: usize, reason: impl Into<Reason>, detail: String) -> Self {
        let metadata = Metadata::of(batch);
        let (id, time) = (Some(metadata.id(row)), Some(metadata.times.value(row)));
        Self { id, time, reason: reason.into(), detail, values: row_values(batch, row) }
    }
}

/// What one call of an operator gave.
#[derive(Debug, Default)]
pub struct Output {
    /// Result batches with metadata columns, in order.
    pub batches: Vec<RecordBatch>,
    /// Records that could not be processed.
    pub dead_letters: Vec<DeadLetter>,
    /// Records dropped on purpose, by stable reason (`late`, `unmatched`).
    pub drops: Vec<(Reason, u64)>,
    /// Records that went on and of which there is something to know, by stable reason (`text_cut_off`).
    pub notes: Vec<(Reason, u64)>,
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

    /// Counts records that went on and of which there is something to know.
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
    /// What failed and how to fix it.
    pub message: String,
    /// The same with places in files, where it has to do with files.
    pub findings: Diagnostics,
}

impl OperatorError {
    /// An error with this text.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), findings: Diagnostics::new() }
    }
}

impl From<Diagnostics> for OperatorError {
    fn from(findings: Diagnostics) -> Self {
        Self { message: findings.render(false), findings }
    }
}

/// Computes row by row or batch by batch, without state, on the slot's thread. Must not block.
pub trait Stateless: Send {
    /// Processes one batch.
    fn process(&mut self, batch: &RecordBatch, output: &mut Output) -> Result<(), OperatorError>;
}

/// Keeps state. The engine applies an epoch only when it is complete, with the rows of each port sorted by
/// (event time, id), ports in order, then calls `advance` with the operator's watermark (the meet over its
/// inputs); operators that [take rows early](Stateful::takes_rows_early) get them before. So the result depends on the
/// epochs only, and the state is always "all of the epochs before e".
pub trait Stateful: Send {
    /// Applies the rows that arrived at input `port` in one epoch.
    fn apply(&mut self, port: usize, batch: &RecordBatch, output: &mut Output) -> Result<(), OperatorError>;
    /// The watermark: no row with an earlier event time is expected any more. `EventTime::MAX` at the end.
    fn advance(&mut self, watermark: EventTime, output: &mut Output) -> Result<(), OperatorError>;
    /// Whether rows may be applied before all of their epoch are there: each port's in portions, ports in turns. For
    /// operators of which an epoch gives the same rows, drops and state however it is applied; they come to whoever reads
    /// them in the order of rows of one epoch, which follows from the rows alone. `advance` still ends each epoch.
    fn takes_rows_early(&self) -> bool {
        false
    }
    /// Whether the last `advance` left results out because one epoch would have had too many. The engine calls
    /// `advance` again at the end of each following epoch, also when the watermark stays and after the end of the
    /// stream, until nothing is left; so sinks can commit in between. It is part of the state.
    fn has_more(&self) -> bool {
        false
    }
    /// The watermark of the output once the input's is `watermark`: no row with an earlier event time will be
    /// emitted any more. A window that may stay open for late rows holds it back.
    fn output_watermark(&self, watermark: EventTime) -> EventTime {
        watermark
    }
    /// The whole state.
    fn snapshot(&self) -> Result<Vec<u8>, OperatorError>;
    /// What writes the whole state as it is now: on another thread, while this operator goes on. It gives what
    /// [`Stateful::snapshot`] would give now. For operators with much state, which can hand out what they keep sooner than write it.
    ///
    /// # Errors
    /// Those of [`Stateful::snapshot`].
    fn capture(&mut self) -> Result<WriteSnapshot, OperatorError> {
        let bytes = self.snapshot()?;
        Ok(Box::new(move || Ok(bytes)))
    }
    /// Replaces the state by a snapshot of the same operator.
    fn restore(&mut self, snapshot: &[u8]) -> Result<(), OperatorError>;
    /// Whether what it keeps can be divided by keys: see [`Stateful::take_in`].
    fn is_divisible(&self) -> bool {
        false
    }
    /// Adds what a snapshot of the same operator has of some keys, of which this one has nothing yet. All that are taken in are of
    /// the same epoch. So a state that several stages kept can be kept by more or fewer.
    ///
    /// # Errors
    /// It cannot be divided, the snapshot cannot be read, or it has not come as far as those that were taken in before.
    fn take_in(&mut self, snapshot: &[u8], takes: &TakesKeys<'_>) -> Result<(), OperatorError> {
        let _ = (snapshot, takes);
        Err(OperatorError::new("what this operator keeps cannot be divided"))
    }
    /// Bytes of state, for accounting.
    fn state_bytes(&self) -> usize {
        0
    }
}

/// Writes a state that was captured: see [`Stateful::capture`].
pub type WriteSnapshot = Box<dyn FnOnce() -> Result<Vec<u8>, OperatorError> + Send>;

/// The keys of rows in a state.
pub struct StateKeys<'a> {
    /// What the source said of each row: its class and its place in that.
    pub classes: &'a UInt32Array,
    /// The values of the column that [`Spread::Group`] names, where there is one.
    pub first: Option<&'a ArrayRef>,
}

/// Says which rows of a state are taken.
pub type TakesKeys<'a> = dyn Fn(&StateKeys<'_>) -> BooleanArray + 'a;

/// A model: a batch in, a batch out, on an executor thread of the engine. Each row of the outputs comes from one input row
/// and has its source and sequence; a row may give several or none. Stateless between calls.
pub trait Inference: Send {
    /// Runs the model on one batch (1 ..= max batch rows).
    fn infer(&mut self, batch: &RecordBatch, output: &mut Output) -> Result<(), OperatorError>;
    /// The same for the rows of several batches of one schema together, so that nobody has to copy pictures into one
    /// batch first. A model that can should run them at once and give a batch for each.
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

    /// Processor time so far of threads other than the one that calls [`Inference::infer`], where there are any.
    fn processor_time_elsewhere(&self) -> Duration {
        Duration::ZERO
    }

    /// The backend that computes it, where there is a choice.
    fn backend(&self) -> Option<ChosenBackend> {
        None
    }
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

/// How an operator computes; known before any instance is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Computation {
    /// See [`Stateless`].
    Stateless,
    /// See [`Stateful`].
    Stateful,
    /// See [`Inference`].
    Inference,
}

/// Makes instances of a bound operator.
pub type MakeInstance = Arc<dyn Fn() -> Result<Instance, OperatorError> + Send + Sync>;

/// How the records of an operator may be spread over several stages so that the result stays the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Spread {
    /// Any record may go to any stage.
    Any,
    /// Any record may go to any stage; these columns of the output are computed here, so the class that a record got by a
    /// column of that name at its source says nothing about them.
    Computes(Vec<String>),
    /// By the route key of the sources, which must be the join key: each entry names one column per input, and
    /// the sources behind the inputs must have one of the entries as their `key`.
    RouteKey(Vec<Vec<String>>),
    /// By group, wherever the records come from: rows with the same value in this column must meet. A row goes to the stage of the
    /// route class that a source would give to that value, and the rows of the output have that class.
    Group(GroupColumn),
    /// Not at all: all records must meet in one stage.
    One,
}

impl Spread {
    /// By the first of these columns, which an operator groups by and sends under the same names; without any, all records must meet.
    pub fn by_group<'a>(columns: impl IntoIterator<Item = &'a str>) -> Self {
        let first = columns.into_iter().next();
        first.map_or(Self::One, |name| Self::Group(GroupColumn { input: name.into(), output: name.into() }))
    }
}

/// A column by which an operator groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupColumn {
    /// Its name in the input.
    pub input: String,
    /// The column of the output that has the value of the group.
    pub output: String,
}

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
    /// How its records may be spread over several stages.
    pub spread: Spread,
    /// The model, where it has one that another process can load.
    pub model: Option<ModelSpec>,
    /// Makes one instance; loads the model where there is one.
    pub make: MakeInstance,
}

/// What one read of a source gave.
#[derive(Debug)]
pub enum SourceRead {
    /// Rows: payload columns only (no metadata), at most as many as asked for; zero rows are allowed
    /// (for instance when all rows read were dead letters).
    Rows {
        /// The payload.
        payload: RecordBatch,
        /// Event times in microseconds, one a row, where the source has them.
        times: Option<Vec<EventTime>>,
        /// Records that could not be read; each consumed one sequence number.
        dead_letters: Vec<DeadLetter>,
        /// Row number of each payload row within this read, counting dead letters too, strictly increasing;
        /// `None` if there were no dead letters. So that sequence numbers do not depend on what failed.
        offsets: Option<Vec<u64>>,
    },
    /// There is no more.
    End,
}

/// Where a source is: opaque to the engine, small, comparable only by its own source.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourcePosition(pub String);

/// Reads records. Runs on reader threads, now on this one and now on that, and may block on files; one that may wait for
/// longer has a thread of its own ([`BoundSource::stream`]).
pub trait Source: Send {
    /// Reads up to `rows` records, fewer when their payload passes `bytes` (but at least one).
    /// Two reads from the same position with the same number of records give the same records.
    fn read(&mut self, rows: usize, bytes: usize) -> Result<SourceRead, OperatorError>;
    /// Position of the next record.
    fn position(&self) -> SourcePosition;
    /// Continues at a position that `position` gave.
    fn seek(&mut self, position: &SourcePosition) -> Result<(), OperatorError>;
    /// Whether `seek` works. A source that cannot be replayed is at most once, and says so.
    fn replayable(&self) -> bool {
        true
    }
    /// Bytes of each record of the last read, dead letters included, where epochs are cut by these: they depend on the
    /// record alone, and not on how many came at once. None: epochs are cut by the mean size of what a read gave.
    fn sizes(&self) -> Option<&[u32]> {
        None
    }
    /// Whether the last read ended because more could not be had without waiting for another program.
    fn has_caught_up(&self) -> bool {
        false
    }
    /// The journal that it reads through, if it does.
    fn journal(&self) -> Option<Arc<Journal>> {
        None
    }
    /// Number of records in one pass, where known (for progress).
    fn len_hint(&self) -> Option<u64> {
        None
    }
}

/// Makes readers of a bound source.
pub type MakeSource = Arc<dyn Fn() -> Result<Box<dyn Source>, OperatorError> + Send + Sync>;

/// What a source promises of the records that it has given, should the process that read them be gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SourcePromise {
    /// It gives them again itself, from any position: files.
    Replayable,
    /// They are given again from a journal, where the run keeps a state.
    Journalled,
    /// They are gone.
    AtMostOnce,
}

/// How a source reads through a journal.
#[derive(Clone)]
pub struct JournalledReading {
    /// Makes readers that share a journal; each reads it from its position on, and then the stream through it.
    pub make: Arc<dyn Fn(Arc<Journal>) -> MakeSource + Send + Sync>,
    /// The place in the journal where a position is; none: it is no position of this source.
    pub place: fn(&SourcePosition) -> Option<u64>,
    /// Whether what others have sent is gone with the process while it is not in the journal: of connections, whose senders have
    /// been told that it came. What is in a pipe stays there.
    pub unread_is_lost: bool,
}

/// Gives the names of the files of a folder in the order in which they are read.
pub type ListFiles = Arc<dyn Fn() -> std::io::Result<Vec<OsString>> + Send + Sync>;

/// What a source reads that can be looked at without it: whether it is still the same.
#[derive(Clone)]
pub enum SourceInput {
    /// One file.
    File {
        /// Its path, relative to this process.
        path: PathBuf,
        /// Whether records that are added at its end are read as if they had always been there.
        may_grow: bool,
    },
    /// Files of a folder; each is a record.
    Folder {
        /// Its path, relative to this process.
        path: PathBuf,
        /// Those that are there now.
        names: ListFiles,
        /// Whether files that are added behind the last one are read as if they had always been there.
        may_grow: bool,
    },
}

impl SourceInput {
    /// The same, read again and again: what is added comes in the middle of what is read.
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
    /// Column that decides the route class; `None`: the sequence number does.
    pub key: Option<String>,
    /// Records per second of the open-loop schedule; `None`: as fast as downstream takes them.
    pub rate_per_second: Option<f64>,
    /// How much earlier than the newest event time seen a record may still come, microseconds.
    pub out_of_order_microseconds: i64,
    /// Whether it is a live source (its edges default to `latest`).
    pub live: bool,
    /// Whether its records have event times of their own that go on to its end: not those of a source that repeats. Sources
    /// without a rate that meet are read side by side by these times.
    pub has_event_times: bool,
    /// Records that follow each other with the same event time, such as the frames of several cameras; 1 where that is not
    /// known. What follows event time takes them when the last of them has come.
    pub at_one_time: u32,
    /// What it reads, in words, where that can be read only once (standard input, a pipe, a device); the same for two
    /// sources that would take each other's records. `None`: every reader that is made begins at the start.
    pub stream: Option<String>,
    /// How it can read what `stream` tells through a journal, if it can.
    pub journalled: Option<JournalledReading>,
    /// The files that it reads; none: it reads none, or what it reads cannot be looked at beside it.
    pub input: Option<SourceInput>,
    /// The journal that the workflow wants for it.
    pub journal: Option<JournalOptions>,
    /// Makes one reader.
    pub make: MakeSource,
}

impl BoundSource {
    /// Whether it gives records when they come: it cannot say when the next one does.
    pub fn is_stream(&self) -> bool {
        self.live || self.stream.is_some()
    }

    /// Whether it gives records when they come, and has no schedule: what it gives is the load then.
    pub fn gives_what_comes(&self) -> bool {
        self.rate_per_second.is_none() && self.is_stream()
    }

    /// What it promises.
    pub fn promise(&self) -> SourcePromise {
        if self.stream.is_none() && !self.live {
            SourcePromise::Replayable
        } else if self.journal.is_some() && self.journalled.is_some() {
            SourcePromise::Journalled
        } else {
            SourcePromise::AtMostOnce
        }
    }
}

/// Takes the results. Rows come in a fixed order: by epoch, then (event time, source, sequence, id).
pub trait Sink: Send {
    /// Takes rows (metadata columns included), which count as written with the next `commit`.
    fn write(&mut self, batch: &RecordBatch) -> Result<(), OperatorError>;
    /// Makes everything written since the last commit part of what stays if the slot restarts, and shows it to readers
    /// unless [`Sink::publication`] says that they see it later; `epoch`: everything before it is included. Called when
    /// an epoch is complete, at checkpoints only where that is not [`Publication::EachEpoch`]. It need not survive the
    /// machine: see [`Sink::flush`].
    fn commit(&mut self, epoch: u64) -> Result<(), OperatorError>;
    /// Forgets what was written since the last commit (a restart will write it again).
    fn rollback(&mut self) -> Result<(), OperatorError>;
    /// Last call: removes temporaries. What was not committed is not kept; what was survives the machine.
    fn close(&mut self) -> Result<(), OperatorError>;
    /// What another process needs to continue behind the last commit; none: this sink cannot be continued. A token that
    /// is taken before the first commit continues at the beginning. It is recorded once [`Sink::flush`] is done.
    fn token(&mut self) -> Result<Option<Vec<u8>>, OperatorError> {
        Ok(None)
    }
    /// Makes all that is committed when this is called survive the machine, so that the last token holds there too: what
    /// it gives is run on another thread, while rows are written and committed. None: there is nothing to do.
    fn flush(&self) -> Option<Flush> {
        None
    }
    /// Last call instead of `close` where another process will continue: forgets what is not committed, keeps what the
    /// token needs.
    fn suspend(&mut self) -> Result<(), OperatorError> {
        self.close()
    }
    /// Whether `commit`/`rollback` give exactly once; otherwise at least once with the stable record id.
    fn exactly_once(&self) -> bool;
    /// When readers see what was committed, and so how often it is. Default: an exactly-once sink commits per checkpoint,
    /// another one per epoch. An exactly-once sink that can take back what it committed after its last token says
    /// [`Publication::EachEpoch`], one whose file appears when it is closed [`Publication::AtEnd`].
    fn publication(&self) -> Publication {
        if self.exactly_once() { Publication::EachCheckpoint } else { Publication::EachEpoch }
    }
    /// Whether nobody takes what it writes any more (a closed pipe). A run all of whose sinks are closed ends.
    fn is_closed(&self) -> bool {
        false
    }
    /// Rows of the last `write` that nobody took: the reader went away, or writing was called off.
    fn refused(&self) -> u64 {
        0
    }
    /// Ends a `write` that waits for whoever reads, and all later ones, from another thread. None where writing waits
    /// for nobody.
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

/// Makes a sink whose commits survive the process: without a token it begins anew as [`MakeSink`] does, with the last one
/// that was recorded it continues behind what the token says is committed, and forgets what was committed after it.
pub type MakeDurableSink = Arc<dyn Fn(Option<&[u8]>) -> Result<Box<dyn Sink>, OperatorError> + Send + Sync>;

/// Exact-match scoring of a sink's rows against ground truth.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroundTruth {
    /// Column of the stream that identifies the record.
    pub key: String,
    /// Column of the stream that holds the prediction.
    pub prediction: String,
    /// Truth by key.
    pub answers: Arc<std::collections::HashMap<String, String>>,
    /// Whether each key counts once, at its first result: a source before the sink starts again at its end, and the
    /// same record again says nothing new.
    pub once: bool,
    /// Truth of tracks: then `key` is the column of the camera, `prediction` that of the identity, and what is right is
    /// counted in boxes, so that the share is IDF1.
    pub tracks: Option<Arc<crate::track_truth::TrackTruth>>,
    /// Right texts, compared character by character: what is right is counted in characters.
    pub texts: Option<Arc<crate::text_truth::TextTruth>>,
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
    /// Scoring, where ground truth is given.
    pub ground_truth: Option<GroundTruth>,
    /// Files it will write, for checks before the run.
    pub files: Vec<PathBuf>,
    /// It writes to standard output, so that nothing else should.
    pub is_standard_output: bool,
    /// Makes the sink.
    pub make: MakeSink,
    /// Makes a sink whose commits survive the process: without a token it begins anew as `make` does, with one it
    /// continues behind what the token says is committed. None: no other process can continue this sink (standard
    /// output, a pipe), which is at least once then: a process that goes on from a checkpoint writes the rows behind it
    /// again.
    pub durable: Option<MakeDurableSink>,
}
