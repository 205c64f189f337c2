//! A running `stack`: the last rows of each key.
use super::expression::Expression;
use super::keys::{KeyPart, Keys};
use super::{dead_row, snapshot};
use crate::api::{OperatorError, Output, StateKeys, Stateful, TakesKeys};
use crate::columns::ScalarBuilder;
use crate::record::{EventTime, METADATA_COLUMNS, Metadata, TIME, arrow_type, unfold_metadata};
use arrow_array::cast::AsArray;
use arrow_array::types::{Int64Type, UInt32Type, UInt64Type};
use arrow_array::{
    Array, ArrayRef, FixedSizeListArray, Int64Array, LargeListArray, RecordBatch, UInt32Array, UInt64Array,
    new_empty_array,
};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};
use arrow_select::concat::concat;
use arrow_select::filter::filter_record_batch;
use arrow_select::take::take;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use tidemill_spec::types::ColumnType;

/// Format of the snapshots.
const TAG: [u8; 8] = *b"STCK0001";
/// Values of windows after which a batch is full. Few in the tests of this crate.
const BATCH_VALUES: usize = if cfg!(test) { 60 } else { 4 << 20 };

/// Settings that all copies of one `stack` share. Lengths are in values.
pub(super) struct Setup {
    pub(super) operator: u64,
    /// Payload positions.
    pub(super) column: usize,
    pub(super) key: Option<usize>,
    pub(super) key_type: ColumnType,
    pub(super) kept: Vec<usize>,
    /// Of a window, from one to the next, and of a row.
    pub(super) length: usize,
    pub(super) step: usize,
    pub(super) width: usize,
    /// The values before the first tensor of a sequence.
    pub(super) fill: ArrayRef,
    /// Microseconds.
    pub(super) reset_after: i64,
    pub(super) reset_when: Option<Expression>,
    pub(super) output: SchemaRef,
}

impl Setup {
    fn key_schema(&self) -> SchemaRef {
        let item = Arc::new(Field::new("item", self.fill.data_type().clone(), false));
        Arc::new(Schema::new(vec![
            Field::new("key", arrow_type(&self.key_type), true),
            Field::new("last", DataType::Int64, false),
            Field::new("sent", DataType::Int64, false),
            Field::new("skip", DataType::UInt64, false),
            Field::new("class", DataType::UInt32, false),
            Field::new("values", DataType::LargeList(item), false),
        ]))
    }

    /// Joins values, in memory of their own.
    fn joined<'a>(&self, parts: impl Iterator<Item = &'a ArrayRef>) -> Result<ArrayRef, OperatorError> {
        // One array alone would be shared, with the batch that it is from.
        let empty = new_empty_array(self.fill.data_type());
        let mut all: Vec<&dyn Array> = vec![empty.as_ref()];
        for part in parts {
            all.push(part.as_ref());
        }
        concat(&all).map_err(broken)
    }
}

fn broken(error: ArrowError) -> OperatorError {
    OperatorError::new(format!("stack: {error}"))
}

fn damaged() -> OperatorError {
    OperatorError::new("stack: the snapshot is damaged: start the run from the beginning")
}

/// The rows of one key from the start of the next window on.
#[derive(Debug, Clone)]
struct Held {
    pieces: VecDeque<ArrayRef>,
    /// Values of all pieces.
    count: usize,
    /// Values to pass over before the next window starts, where there are rows between windows.
    skip: usize,
    /// Event time of the last record, and of the last window.
    last: EventTime,
    sent: EventTime,
    /// Route class of the last record, by which a state is divided.
    class: u32,
}

impl Held {
    fn new(setup: &Setup, last: EventTime) -> Self {
        let mut held =
            Self { pieces: VecDeque::new(), count: 0, skip: 0, last, sent: EventTime::MIN, class: 0 };
        held.restart(setup);
        held
    }

    /// Starts a sequence.
    fn restart(&mut self, setup: &Setup) {
        self.pieces.clear();
        (self.count, self.skip) = (0, 0);
        self.append(Arc::clone(&setup.fill));
    }

    fn append(&mut self, values: ArrayRef) {
        let passed = self.skip.min(values.len());
        self.skip -= passed;
        let rest = values.len() - passed;
        if rest > 0 {
            self.count += rest;
            self.pieces.push_back(if passed == 0 { values } else { values.slice(passed, rest) });
        }
    }

    /// Appends the parts of the next window if it is complete, and passes on to the one after it.
    fn cut(&mut self, setup: &Setup, parts: &mut Vec<ArrayRef>) -> bool {
        if self.count < setup.length {
            return false;
        }
        let mut missing = setup.length;
        for piece in &self.pieces {
            let taken = piece.len().min(missing);
            missing -= taken;
            if taken > 0 {
                parts.push(piece.slice(0, taken));
            }
        }
        self.pass(setup.step);
        true
    }

    fn pass(&mut self, mut values: usize) {
        while values > 0 {
            let Some(piece) = self.pieces.front_mut() else {
                self.skip += values;
                return;
            };
            let passed = piece.len().min(values);
            *piece = piece.slice(passed, piece.len() - passed);
            if piece.is_empty() {
                self.pieces.pop_front();
            }
            values -= passed;
            self.count -= passed;
        }
    }
}

/// Windows that leave together.
#[derive(Default)]
struct Windows {
    rows: Vec<u32>,
    /// Numbers of the windows of each row.
    indices: Vec<u32>,
    times: Vec<EventTime>,
    parts: Vec<ArrayRef>,
}

impl Windows {
    /// Makes records of them, from rows of this batch.
    fn send(&mut self, setup: &Setup, batch: &RecordBatch, output: &mut Output) -> Result<(), OperatorError> {
        let windows = std::mem::take(self);
        if windows.rows.is_empty() {
            return Ok(());
        }
        let mut columns =
            unfold_metadata(batch, &windows.rows, &windows.indices, setup.operator).map_err(broken)?;
        columns[TIME] = Arc::new(Int64Array::from(windows.times));
        let rows = UInt32Array::from(windows.rows);
        for column in &setup.kept {
            columns.push(take(batch.column(METADATA_COLUMNS + column), &rows, None).map_err(broken)?);
        }
        let last = setup.output.fields().len() - 1;
        let DataType::FixedSizeList(item, length) = setup.output.field(last).data_type() else {
            return Err(OperatorError::new("stack: the windows are no tensors"));
        };
        let values = setup.joined(windows.parts.iter())?;
        let tensors = FixedSizeListArray::try_new(Arc::clone(item), *length, values, None).map_err(broken)?;
        columns.push(Arc::new(tensors));
        output.push(RecordBatch::try_new(Arc::clone(&setup.output), columns).map_err(broken)?);
        Ok(())
    }
}

/// A running `stack`.
pub(super) struct Running {
    setup: Arc<Setup>,
    keys: BTreeMap<KeyPart, Held>,
}

impl Running {
    pub(super) fn new(setup: Arc<Setup>) -> Self {
        Self { setup, keys: BTreeMap::new() }
    }

    /// A record of a key is lost: no window runs across the place.
    fn lose(&mut self, key: &KeyPart) {
        if let Some(held) = self.keys.get_mut(key) {
            held.restart(&self.setup);
        }
    }

    /// The held rows as rows of a table.
    fn key_rows(&self) -> Result<RecordBatch, OperatorError> {
        let mut keys = ScalarBuilder::new(&self.setup.key_type, self.keys.len());
        self.keys.keys().for_each(|key| key.append_to(&mut keys));
        let held = || self.keys.values();
        let values = self.setup.joined(held().flat_map(|held| &held.pieces))?;
        let item = Arc::new(Field::new("item", self.setup.fill.data_type().clone(), false));
        let offsets = OffsetBuffer::<i64>::from_lengths(held().map(|held| held.count));
        let columns: Vec<ArrayRef> = vec![
            keys.finish(),
            Arc::new(Int64Array::from_iter_values(held().map(|held| held.last))),
            Arc::new(Int64Array::from_iter_values(held().map(|held| held.sent))),
            Arc::new(UInt64Array::from_iter_values(held().map(|held| held.skip as u64))),
            Arc::new(UInt32Array::from_iter_values(held().map(|held| held.class))),
            Arc::new(LargeListArray::try_new(item, offsets, values, None).map_err(broken)?),
        ];
        RecordBatch::try_new(self.setup.key_schema(), columns).map_err(broken)
    }

    /// Adds a snapshot's rows that `takes` selects, or all.
    fn add(&mut self, bytes: &[u8], takes: Option<&TakesKeys<'_>>) -> Result<(), OperatorError> {
        let ((), sections) = snapshot::read(TAG, &[self.setup.key_schema()], bytes)?;
        for batch in sections.iter().flatten() {
            let taken = match takes {
                Some(takes) => {
                    let classes = batch.column(4).as_primitive_opt::<UInt32Type>().ok_or_else(damaged)?;
                    let first = self.setup.key.map(|_| batch.column(0));
                    filter_record_batch(batch, &takes(&StateKeys { classes, first })).map_err(broken)?
                }
                None => batch.clone(),
            };
            self.add_rows(&taken)?;
        }
        Ok(())
    }

    fn add_rows(&mut self, batch: &RecordBatch) -> Result<(), OperatorError> {
        let keys = Keys::from_arrays(std::iter::once(batch.column(0)));
        let times = |at: usize| batch.column(at).as_primitive_opt::<Int64Type>();
        let (Some(last), Some(sent), Some(skips), Some(classes), Some(values)) = (
            times(1),
            times(2),
            batch.column(3).as_primitive_opt::<UInt64Type>(),
            batch.column(4).as_primitive_opt::<UInt32Type>(),
            batch.column(5).as_list_opt::<i64>(),
        ) else {
            return Err(damaged());
        };
        for row in 0..batch.num_rows() {
            let values = values.value(row);
            let skip = usize::try_from(skips.value(row)).map_err(|_| damaged())?;
            let width = self.setup.width;
            if !values.len().is_multiple_of(width) || !skip.is_multiple_of(width) || values.null_count() > 0 {
                return Err(damaged());
            }
            let mut held = Held {
                pieces: VecDeque::new(),
                count: 0,
                skip: 0,
                last: last.value(row),
                sent: sent.value(row),
                class: classes.value(row),
            };
            held.append(values);
            held.skip = skip;
            self.keys.insert(first(&keys, row), held);
        }
        Ok(())
    }
}

/// The key of a row that has one part.
fn first(keys: &Keys<'_>, row: usize) -> KeyPart {
    keys.get(row).first().cloned().unwrap_or(KeyPart::Null)
}

impl Stateful for Running {
    fn apply(&mut self, _port: usize, batch: &RecordBatch, output: &mut Output) -> Result<(), OperatorError> {
        let setup = Arc::clone(&self.setup);
        let metadata = Metadata::of(batch);
        let Some(tensors) = batch.column(METADATA_COLUMNS + setup.column).as_fixed_size_list_opt() else {
            return Err(OperatorError::new("stack: the column has no tensors"));
        };
        let keys = setup.key.map(|key| Keys::of(batch, &[key]));
        let (starts, failed) = setup.reset_when.as_ref().map(|condition| condition.holds(batch)).unzip();
        let mut failed: BTreeMap<usize, String> = failed.into_iter().flatten().collect();
        let mut windows = Windows::default();
        let mut changed = BTreeSet::new();
        for row in 0..batch.num_rows() {
            let key = keys.as_ref().map_or(KeyPart::Null, |keys| first(keys, row));
            if let Some(why) = failed.remove(&row) {
                let detail = format!("`reset_when` cannot be evaluated: {why}");
                output.dead_letters.push(dead_row(batch, row, "expression_failed", detail));
                self.lose(&key);
                continue;
            }
            if tensors.is_null(row) {
                let detail = "the column of the tensor is empty".to_owned();
                output.dead_letters.push(dead_row(batch, row, "missing_value", detail));
                self.lose(&key);
                continue;
            }
            let time = metadata.times.value(row);
            changed.insert(key.clone());
            let held = self.keys.entry(key).or_insert_with(|| Held::new(&setup, time));
            if time < held.last {
                output.drop_rows("late", 1);
                continue;
            }
            let starts = starts.as_ref().is_some_and(|starts| starts.value(row));
            if starts || time.saturating_sub(held.last) > setup.reset_after {
                held.restart(&setup);
            }
            (held.last, held.class) = (time, metadata.classes.value(row));
            held.append(tensors.value(row));
            let mut index = 0;
            while held.cut(&setup, &mut windows.parts) {
                held.sent = time.max(held.sent.saturating_add(1));
                windows.rows.push(row as u32);
                windows.indices.push(index);
                windows.times.push(held.sent);
                index += 1;
                if windows.rows.len().saturating_mul(setup.length) >= BATCH_VALUES {
                    windows.send(&setup, batch, output)?;
                }
            }
        }
        windows.send(&setup, batch, output)?;
        for key in changed {
            if let Some(held) = self.keys.get_mut(&key).filter(|held| held.count > 0) {
                held.pieces = VecDeque::from([setup.joined(held.pieces.iter())?]);
            }
        }
        Ok(())
    }

    fn advance(&mut self, watermark: EventTime, _output: &mut Output) -> Result<(), OperatorError> {
        if watermark == EventTime::MAX {
            self.keys.clear();
        }
        // A later record starts a sequence in any case.
        let reset_after = self.setup.reset_after;
        self.keys.retain(|_, held| watermark.saturating_sub(held.last) <= reset_after);
        Ok(())
    }

    fn snapshot(&self) -> Result<Vec<u8>, OperatorError> {
        snapshot::write(TAG, &(), &[(self.setup.key_schema(), vec![self.key_rows()?])])
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), OperatorError> {
        self.keys.clear();
        self.add(snapshot, None)
    }

    fn is_divisible(&self) -> bool {
        self.setup.key.is_some()
    }

    fn take_in(&mut self, snapshot: &[u8], takes: &TakesKeys<'_>) -> Result<(), OperatorError> {
        self.add(snapshot, Some(takes))
    }

    fn state_bytes(&self) -> usize {
        let bytes = |values: &ArrayRef| values.to_data().get_slice_memory_size().unwrap_or(0);
        let held = |held: &Held| size_of::<Held>() + held.pieces.iter().map(bytes).sum::<usize>();
        self.keys.iter().map(|(key, of)| size_of::<KeyPart>() + key.heap_bytes() + held(of)).sum()
    }
}
