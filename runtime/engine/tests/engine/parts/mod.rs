//! Small sources, operators and sinks with obvious behaviour, and a builder of plans.
mod builder;
mod faulty_link;
mod host_threads;
mod kills;
mod process;
mod time;

pub(crate) use builder::*;
#[allow(unused_imports, reason = "the tests of the whole process need sound links")]
pub(crate) use faulty_link::*;
#[allow(unused_imports, reason = "the tests of the whole process have no hosts")]
pub(crate) use host_threads::*;
#[allow(unused_imports, reason = "the tests of the whole process kill nothing")]
pub(crate) use kills::*;
pub(crate) use process::*;
pub(crate) use time::*;

use arrow_array::builder::FixedSizeBinaryBuilder;
use arrow_array::{
    Array, ArrayRef, Int8Array, Int64Array, RecordBatch, StringArray, UInt32Array, UInt64Array,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tidemill_engine::{Run, RunError, RunReport};
use tidemill_operators::api::*;
use tidemill_operators::record::*;
use tidemill_spec::publication::Publication;
use tidemill_spec::types::{Column, ColumnType, StreamType};

pub(crate) fn stream() -> StreamType {
    StreamType::new([Column::new("key", ColumnType::Text), Column::new("value", ColumnType::Int64)])
}

/// One input record.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) key: String,
    pub(crate) value: i64,
    /// Event time, microseconds.
    pub(crate) time: i64,
}

struct RowSource {
    rows: Arc<Vec<Row>>,
    next: usize,
    with_times: bool,
    chunk: usize,
}

impl Source for RowSource {
    fn read(&mut self, rows: usize, _bytes: usize) -> Result<SourceRead, OperatorError> {
        if self.next == self.rows.len() {
            return Ok(SourceRead::End);
        }
        let end = (self.next + rows.min(self.chunk)).min(self.rows.len());
        let part = &self.rows[self.next..end];
        self.next = end;
        let keys: StringArray = part.iter().map(|row| Some(row.key.as_str())).collect();
        let values: Int64Array = part.iter().map(|row| row.value).collect();
        let payload = RecordBatch::try_new(payload_schema(&stream()), vec![Arc::new(keys), Arc::new(values)])
            .expect("two columns");
        let times = self.with_times.then(|| part.iter().map(|row| row.time).collect());
        Ok(SourceRead::Rows { payload, times, dead_letters: vec![], offsets: None })
    }

    fn position(&self) -> SourcePosition {
        SourcePosition(self.next.to_string())
    }

    fn seek(&mut self, position: &SourcePosition) -> Result<(), OperatorError> {
        self.next = position.0.parse().map_err(|_| OperatorError::new("not a position"))?;
        Ok(())
    }
}

/// A source of these rows. `bound`: out-of-order bound in microseconds; `None`: synthetic event times.
pub(crate) fn rows_source(
    id: &str,
    rows: Vec<Row>,
    rate: Option<f64>,
    bound: Option<i64>,
    chunk: usize,
) -> BoundSource {
    let rows = Arc::new(rows);
    BoundSource {
        id: id.into(),
        kind: "rows".into(),
        output: stream(),
        key: Some("key".into()),
        rate_per_second: rate,
        out_of_order_microseconds: bound.unwrap_or(0),
        live: false,
        waits_for_all: false,
        rereads: false,
        has_event_times: bound.is_some(),
        at_one_time: 1,
        stream: None,
        journalled: None,
        input: None,
        journal: None,
        feeds: None,
        requests: None,
        make: Arc::new(move || {
            Ok(Box::new(RowSource { rows: Arc::clone(&rows), next: 0, with_times: bound.is_some(), chunk }))
        }),
    }
}

/// `n` rows with numbered keys, one millisecond apart.
pub(crate) fn numbered(n: usize) -> Vec<Row> {
    (0..n).map(|i| Row { key: format!("k{i:06}"), value: i as i64, time: i as i64 * 1000 }).collect()
}

pub(crate) fn operator(
    id: &str,
    computation: Computation,
    make: impl Fn() -> Instance + Send + Sync + 'static,
) -> BoundOperator {
    BoundOperator {
        id: id.into(),
        kind: "test".into(),
        output: stream(),
        computation,
        spread: Spread::Any,
        model: None,
        make: Arc::new(move || Ok(make())),
    }
}

type Function = Arc<dyn Fn(&RecordBatch) + Send + Sync>;

struct Each(Function);

impl Stateless for Each {
    fn process(&mut self, batch: &RecordBatch, output: &mut Output) -> Result<(), OperatorError> {
        (self.0)(batch);
        output.push(batch.clone());
        Ok(())
    }
}

impl Inference for Each {
    fn infer(&mut self, batch: &RecordBatch, output: &mut Output) -> Result<(), OperatorError> {
        (self.0)(batch);
        output.push(batch.clone());
        Ok(())
    }
}

/// Passes rows on after calling `act`.
pub(crate) fn pass(id: &str, act: impl Fn(&RecordBatch) + Send + Sync + 'static) -> BoundOperator {
    let act: Function = Arc::new(act);
    operator(id, Computation::Stateless, move || Instance::Stateless(Box::new(Each(Arc::clone(&act)))))
}

/// A model that passes rows on after calling `act`.
pub(crate) fn model(id: &str, act: impl Fn(&RecordBatch) + Send + Sync + 'static) -> BoundOperator {
    let act: Function = Arc::new(act);
    operator(id, Computation::Inference, move || Instance::Inference(Box::new(Each(Arc::clone(&act)))))
}

/// Keys of a batch.
pub(crate) fn keys(batch: &RecordBatch) -> Vec<String> {
    let keys = text(batch.column(METADATA_COLUMNS)).expect("text");
    (0..keys.len()).map(|row| keys.value(row).to_owned()).collect()
}

pub(crate) fn values(batch: &RecordBatch) -> Vec<i64> {
    int64(batch.column(METADATA_COLUMNS + 1)).expect("int64").values().to_vec()
}

/// A row to emit: identity, event time, class, key, value.
type Emitted = (RecordId, i64, u32, String, i64);

fn emit(rows: Vec<Emitted>, output: &mut Output) {
    if rows.is_empty() {
        return;
    }
    let n = rows.len();
    let mut ids = FixedSizeBinaryBuilder::new(16);
    rows.iter().for_each(|row| ids.append_value(row.0).expect("16 bytes"));
    let columns: Vec<ArrayRef> = vec![
        Arc::new(ids.finish()),
        Arc::new(UInt32Array::from(vec![0; n])),
        // Derived from the row alone, not from those that leave with it.
        Arc::new(UInt64Array::from_iter_values(rows.iter().map(|row| xxhash_rust::xxh3::xxh3_64(&row.0)))),
        Arc::new(Int64Array::from(rows.iter().map(|row| row.1).collect::<Vec<_>>())),
        Arc::new(Int64Array::from(vec![0i64; n])),
        Arc::new(UInt32Array::from(rows.iter().map(|row| row.2).collect::<Vec<_>>())),
        Arc::new(Int8Array::from(vec![1i8; n])),
        Arc::new(rows.iter().map(|row| Some(row.3.as_str())).collect::<StringArray>()),
        Arc::new(rows.iter().map(|row| row.4).collect::<Int64Array>()),
    ];
    output.push(
        RecordBatch::try_new(record_schema(&stream()), columns).expect("the schema of the test stream"),
    );
}

/// Joins on key, any time difference up to `within` microseconds; value = left * 1,000,000 + right.
struct PairJoin {
    within: i64,
    rows: Vec<(u8, RecordId, i64, u32, String, i64)>,
    watermark: i64,
}

impl Stateful for PairJoin {
    fn apply(&mut self, port: usize, batch: &RecordBatch, output: &mut Output) -> Result<(), OperatorError> {
        let metadata = Metadata::of(batch);
        let mut found = Vec::new();
        for (row, (key, value)) in keys(batch).into_iter().zip(values(batch)).enumerate() {
            let (id, time, class) =
                (metadata.id(row), metadata.times.value(row), metadata.classes.value(row));
            if time < self.watermark {
                output.drop_rows("late", 1);
                continue;
            }
            for (other_port, other, other_time, _, other_key, other_value) in &self.rows {
                if usize::from(*other_port) != port
                    && *other_key == key
                    && (time - other_time).abs() <= self.within
                {
                    let (left, right) = if port == 0 { (value, *other_value) } else { (*other_value, value) };
                    let (l, r) = if port == 0 { (id, *other) } else { (*other, id) };
                    found.push((
                        derive_id(7, &[l, r], u32::from(l > r)),
                        time.max(*other_time),
                        class,
                        key.clone(),
                        left * 1_000_000 + right,
                    ));
                }
            }
            self.rows.push((port as u8, id, time, class, key, value));
        }
        emit(found, output);
        Ok(())
    }

    fn advance(&mut self, watermark: i64, _output: &mut Output) -> Result<(), OperatorError> {
        self.watermark = watermark;
        self.rows.retain(|row| row.2.saturating_add(self.within) >= watermark);
        Ok(())
    }

    fn takes_rows_early(&self) -> bool {
        true
    }

    fn snapshot(&self) -> Result<Vec<u8>, OperatorError> {
        serde_json::to_vec(&(self.watermark, &self.rows)).map_err(|e| OperatorError::new(e.to_string()))
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), OperatorError> {
        (self.watermark, self.rows) =
            serde_json::from_slice(snapshot).map_err(|e| OperatorError::new(e.to_string()))?;
        Ok(())
    }
}

pub(crate) fn join(id: &str, within: i64) -> BoundOperator {
    let bound = operator(id, Computation::Stateful, move || {
        Instance::Stateful(Box::new(PairJoin { within, rows: vec![], watermark: i64::MIN }))
    });
    BoundOperator { spread: Spread::RouteKey(vec![vec!["key".into(), "key".into()]]), ..bound }
}

/// Watermark, whether closed ones wait, and open windows with (count, sum).
type WindowState = (i64, bool, Vec<(i64, (i64, i64))>);

/// Counts rows and sums values in tumbling windows of `size` microseconds; value = count * 1,000,000,000 + sum.
struct CountWindow {
    size: i64,
    open: BTreeMap<i64, (i64, i64)>,
    watermark: i64,
    /// Results of one epoch.
    most: usize,
    waiting: bool,
}

impl Stateful for CountWindow {
    fn apply(&mut self, _port: usize, batch: &RecordBatch, output: &mut Output) -> Result<(), OperatorError> {
        let metadata = Metadata::of(batch);
        for (row, value) in values(batch).into_iter().enumerate() {
            let time = metadata.times.value(row);
            if time < self.watermark {
                output.drop_rows("late", 1);
                continue;
            }
            let window = self.open.entry(time.div_euclid(self.size)).or_default();
            window.0 += 1;
            window.1 += value;
        }
        Ok(())
    }

    fn advance(&mut self, watermark: i64, output: &mut Output) -> Result<(), OperatorError> {
        self.watermark = watermark;
        let mut closed = Vec::new();
        self.waiting = false;
        while let Some(first) = self.open.first_entry() {
            let end = (first.key() + 1) * self.size;
            if end > watermark {
                break;
            }
            if closed.len() == self.most {
                self.waiting = true;
                break;
            }
            let (index, (count, sum)) = (*first.key(), *first.get());
            first.remove();
            let id = derive_id(9, &[(index as i128).to_le_bytes()], 0);
            closed.push((id, end - 1, 0, format!("w{index:06}"), count * 1_000_000_000 + sum));
        }
        emit(closed, output);
        Ok(())
    }

    fn has_more(&self) -> bool {
        self.waiting
    }

    fn output_watermark(&self, watermark: i64) -> i64 {
        let next = self.open.keys().next().filter(|_| self.waiting);
        next.map_or(watermark, |index| watermark.min((index + 1) * self.size - 1))
    }

    fn snapshot(&self) -> Result<Vec<u8>, OperatorError> {
        let open: Vec<_> = self.open.iter().collect();
        serde_json::to_vec(&(self.watermark, self.waiting, open))
            .map_err(|e| OperatorError::new(e.to_string()))
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), OperatorError> {
        let (watermark, waiting, open): WindowState =
            serde_json::from_slice(snapshot).map_err(|e| OperatorError::new(e.to_string()))?;
        (self.watermark, self.waiting) = (watermark, waiting);
        self.open = open.into_iter().collect();
        Ok(())
    }
}

pub(crate) fn window(id: &str, size: i64) -> BoundOperator {
    window_in_parts(id, size, usize::MAX)
}

/// A window with at most `most` results in an epoch.
pub(crate) fn window_in_parts(id: &str, size: i64, most: usize) -> BoundOperator {
    let bound = operator(id, Computation::Stateful, move || {
        let (open, watermark, waiting) = (BTreeMap::new(), i64::MIN, false);
        Instance::Stateful(Box::new(CountWindow { size, open, watermark, most, waiting }))
    });
    BoundOperator { spread: Spread::One, ..bound }
}

/// Committed content of a sink: "key=value" lines.
pub(crate) type Collected = Arc<Mutex<Vec<String>>>;

/// Called with the epoch before each commit.
type BeforeCommit = Arc<dyn Fn(u64) + Send + Sync>;

struct CollectSink {
    staged: Vec<String>,
    committed: Collected,
    before_commit: BeforeCommit,
    publication: Publication,
}

impl Sink for CollectSink {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), OperatorError> {
        let lines = keys(batch).into_iter().zip(values(batch)).map(|(key, value)| format!("{key}={value}"));
        self.staged.extend(lines);
        Ok(())
    }

    fn commit(&mut self, epoch: u64) -> Result<(), OperatorError> {
        (self.before_commit)(epoch);
        self.committed.lock().expect("not poisoned").append(&mut self.staged);
        Ok(())
    }

    fn rollback(&mut self) -> Result<(), OperatorError> {
        self.staged.clear();
        Ok(())
    }

    fn close(&mut self) -> Result<(), OperatorError> {
        Ok(())
    }

    fn token(&mut self) -> Result<Option<Vec<u8>>, OperatorError> {
        Ok(Some(self.committed.lock().expect("not poisoned").len().to_string().into_bytes()))
    }

    fn exactly_once(&self) -> bool {
        true
    }

    fn publication(&self) -> Publication {
        self.publication
    }
}

/// A sink like a text file: rows published with each epoch are undone when it continues from an earlier token.
pub(crate) fn sink(id: &str) -> (BoundSink, Collected) {
    sink_that_publishes(id, Publication::EachEpoch, |_| {})
}

/// A sink that commits at checkpoints or with each epoch; `before_commit` may delay its commits.
pub(crate) fn sink_with(
    id: &str,
    at_checkpoints: bool,
    before_commit: impl Fn(u64) + Send + Sync + 'static,
) -> (BoundSink, Collected) {
    let publication = if at_checkpoints { Publication::EachCheckpoint } else { Publication::EachEpoch };
    sink_that_publishes(id, publication, before_commit)
}

/// A sink whose rows are visible at these times.
pub(crate) fn sink_that_publishes(
    id: &str,
    publication: Publication,
    before_commit: impl Fn(u64) + Send + Sync + 'static,
) -> (BoundSink, Collected) {
    let collected = Collected::default();
    let committed = Arc::clone(&collected);
    let before_commit: BeforeCommit = Arc::new(before_commit);
    let make: MakeDurableSink = Arc::new(move |token| {
        let length = token.map(|token| str::from_utf8(token).expect("a text").parse().expect("a length"));
        committed.lock().expect("not poisoned").truncate(length.unwrap_or(0));
        Ok(Box::new(CollectSink {
            staged: vec![],
            committed: Arc::clone(&committed),
            before_commit: Arc::clone(&before_commit),
            publication,
        }))
    });
    let bound = BoundSink {
        id: id.into(),
        kind: "collect".into(),
        input: stream(),
        ground_truth: None,
        files: vec![],
        is_standard_output: false,
        answers: None,
        repeats: false,
        make: {
            let make = Arc::clone(&make);
            Arc::new(move || make(None))
        },
        durable: Some(make),
    };
    (bound, collected)
}

/// Keeps nothing.
struct Nothing;

impl Sink for Nothing {
    fn write(&mut self, _batch: &RecordBatch) -> Result<(), OperatorError> {
        Ok(())
    }
    fn commit(&mut self, _epoch: u64) -> Result<(), OperatorError> {
        Ok(())
    }
    fn rollback(&mut self) -> Result<(), OperatorError> {
        Ok(())
    }
    fn close(&mut self) -> Result<(), OperatorError> {
        Ok(())
    }
    fn exactly_once(&self) -> bool {
        true
    }
}

/// A sink that keeps nothing; the run counts its rows.
pub(crate) fn nowhere(id: &str) -> BoundSink {
    BoundSink { make: Arc::new(|| Ok(Box::new(Nothing))), ..sink(id).0 }
}

/// Committed lines of a sink so far, in order.
pub(crate) fn lines(collected: &Collected) -> Vec<String> {
    collected.lock().expect("not poisoned").clone()
}

/// Lines of a sink for the first of [`numbered`] rows.
pub(crate) fn row_lines(rows: usize) -> Vec<String> {
    (0..rows).map(|i| format!("k{i:06}={i}")).collect()
}

pub(crate) fn sorted(collected: &Collected) -> Vec<String> {
    let mut lines = collected.lock().expect("not poisoned").clone();
    lines.sort();
    lines
}

/// Slots of one worker, between which records pass as they are, and slots of several, between which they pass as bytes.
pub(crate) const APART: [bool; 2] = [false, true];

/// Ends a hanging test with a message, instead of blocking the suite.
pub(crate) fn wait(run: &tidemill_engine::Run) -> tidemill_engine::RunReport {
    match run.wait_for(Duration::from_secs(50)) {
        Some(result) => result.expect("the run succeeds"),
        None => panic!("the run hangs: {:#?}", run.report()),
    }
}

/// Waits at most `seconds`; a run that takes longer is reported as hanging and aborted.
pub(crate) fn result_within(run: &Run, seconds: u64) -> Result<RunReport, RunError> {
    match run.wait_for(Duration::from_secs(seconds)) {
        Some(result) => result,
        None => {
            let report = run.report();
            run.stopper().abort();
            panic!("the run hangs: {report:#?}")
        }
    }
}

pub(crate) fn ended(run: &Run, seconds: u64) -> RunReport {
    result_within(run, seconds).expect("the run succeeds")
}
