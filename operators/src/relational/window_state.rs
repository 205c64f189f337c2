//! State of running windows: the aggregates of every group in every pane that an open window still needs (see
//! `panes.rs`). Panes are merged when a window closes and dropped with the last window that contains them.
use super::aggregate::{Accumulator, Aggregate};
use super::keys::{Key, KeyPart, Keys};
use super::panes::Windows;
use super::snapshot;
use super::window_pane::{Group, Groups, Pane};
use crate::api::{DeadLetter, OperatorError, Output, StateKeys, Stateful, TakesKeys, WriteSnapshot};
use crate::columns::ScalarBuilder;
use crate::record::{EventTime, METADATA_COLUMNS, Metadata, RecordId, arrow_type};
use crate::values::Values;
use arrow_array::cast::AsArray;
use arrow_array::types::{Int64Type, UInt32Type, UInt64Type};
use arrow_array::{
    ArrayRef, BinaryArray, FixedSizeBinaryArray, Int8Array, Int64Array, RecordBatch, UInt32Array, UInt64Array,
};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use arrow_select::filter::filter_record_batch;
use std::collections::BTreeMap;
use std::mem::size_of;
use std::sync::Arc;
use tidemill_spec::types::ColumnType;
use xxhash_rust::xxh3::Xxh3;

/// Rows of one output or snapshot batch, at most.
const CHUNK_ROWS: usize = 4096;
/// Rows after which an epoch gets no more windows; the rest waits for the next epochs. Few in the tests of this
/// crate.
pub(super) const EPOCH_ROWS: usize = if cfg!(test) { 12 } else { 2 * CHUNK_ROWS };
/// Format of the snapshots.
const TAG: [u8; 8] = *b"WINDOW02";

/// Settings that all copies of one window operator share.
pub(super) struct Setup {
    pub(super) operator: u64,
    /// Size and slide are multiples of 1000.
    pub(super) windows: Windows,
    /// Payload positions.
    pub(super) group_by: Vec<usize>,
    pub(super) group_types: Vec<ColumnType>,
    pub(super) aggregates: Vec<Aggregate>,
    pub(super) output: SchemaRef,
}

impl Setup {
    /// Identity of the result of a window and group; stable across replays.
    fn id(&self, start: EventTime, key: &Key) -> RecordId {
        let mut bytes = b"window".to_vec();
        bytes.extend(self.operator.to_le_bytes());
        bytes.extend(start.to_le_bytes());
        key.iter().for_each(|part| part.encode(&mut bytes));
        let mut hasher = Xxh3::new();
        hasher.update(&bytes);
        hasher.digest128().to_le_bytes()
    }

    /// Window and group, as in the result.
    fn values(&self, start: EventTime, key: &Key) -> Values {
        let ends = [start, start + self.windows.size].map(|time| time.div_euclid(1000).into());
        let names = self.output.fields().iter().skip(METADATA_COLUMNS).map(|field| field.name().clone());
        names.zip(ends.into_iter().chain(key.iter().map(KeyPart::shown))).collect()
    }

    fn snapshot_schema(&self) -> SchemaRef {
        let mut fields = vec![
            Field::new("start", DataType::Int64, false),
            Field::new("first_time", DataType::Int64, false),
            Field::new("first_id", DataType::FixedSizeBinary(16), false),
            Field::new("source", DataType::UInt32, false),
            Field::new("sequence", DataType::UInt64, false),
            Field::new("class", DataType::UInt32, false),
            Field::new("intended", DataType::Int64, false),
            Field::new("state", DataType::Binary, false),
        ];
        for (index, group) in self.group_types.iter().enumerate() {
            fields.push(Field::new(format!("group{index}"), arrow_type(group), true));
        }
        Arc::new(Schema::new(fields))
    }
}

/// Running windows.
pub(super) struct Running {
    setup: Arc<Setup>,
    /// Panes by start.
    panes: BTreeMap<EventTime, Pane>,
    watermark: EventTime,
    /// Start of the first closed window that did not fit into the epochs so far.
    waiting: Option<EventTime>,
    bytes: usize,
}

fn group_bytes(key: &Key, group: &Group) -> usize {
    size_of::<Group>()
        + size_of::<Key>()
        + key.iter().map(|part| size_of::<KeyPart>() + part.heap_bytes()).sum::<usize>()
        + group.state.iter().map(|a| size_of::<Accumulator>() + a.heap_bytes()).sum::<usize>()
}

fn broken(error: arrow_schema::ArrowError) -> OperatorError {
    OperatorError::new(format!("window: {error}"))
}

impl Running {
    pub(super) fn new(setup: Arc<Setup>) -> Self {
        Self { setup, panes: BTreeMap::new(), watermark: EventTime::MIN, waiting: None, bytes: 0 }
    }

    /// Emits the results of the closed windows that start at `next` or later; after `most` rows the others wait.
    fn give(&mut self, mut next: EventTime, most: usize, output: &mut Output) -> Result<(), OperatorError> {
        let windows = self.setup.windows;
        self.waiting = None;
        let (mut rows, mut given) = (Vec::new(), 0);
        while let Some((pane, _)) = self.panes.first_key_value() {
            let start = windows.first(*pane).max(next);
            if !windows.is_closed(start, self.watermark) {
                break;
            }
            if given >= most {
                self.waiting = Some(start);
                break;
            }
            next = start + windows.slide;
            let groups = self.close(start);
            given += groups.len();
            rows.extend(groups.into_iter().map(|(key, group)| (start, key, group)));
            if rows.len() >= CHUNK_ROWS {
                for chunk in rows.chunks(CHUNK_ROWS) {
                    self.emit(chunk, output)?;
                }
                rows.clear();
            }
        }
        self.emit(&rows, output)
    }

    /// Returns the groups of a closing window by key; all earlier windows are closed. Removes panes that no later
    /// window needs.
    fn close(&mut self, start: EventTime) -> Vec<(Key, Group)> {
        let Windows { size, slide, .. } = self.setup.windows;
        let aggregates = &self.setup.aggregates;
        let mut merged = Groups::default();
        while let Some(entry) = self.panes.first_entry().filter(|entry| *entry.key() < start + slide) {
            let groups = entry.remove().into_groups();
            self.bytes -= groups.all.iter().map(|(_, key, group)| group_bytes(key, group)).sum::<usize>();
            if merged.all.is_empty() {
                merged = groups;
                continue;
            }
            for (hash, key, group) in groups.all {
                let mut new = Some(group);
                let make = || (Arc::clone(&key), new.take().expect("made at most once"));
                let (_, window, _) = merged.find(hash, |it| *it == key, make);
                if let Some(group) = new {
                    window.merge(&group, aggregates);
                }
            }
        }
        for (_, pane) in self.panes.range(start + slide..start + size) {
            for (hash, key, group) in &pane.groups().all {
                let make = || (Arc::clone(key), group.clone());
                let (_, window, is_new) = merged.find(*hash, |it| it == key, make);
                if !is_new {
                    window.merge(group, aggregates);
                }
            }
        }
        merged.into_sorted()
    }

    /// Emits result rows of closed windows.
    fn emit(&self, rows: &[(EventTime, Key, Group)], output: &mut Output) -> Result<(), OperatorError> {
        let setup = &self.setup;
        let mut kept: Vec<&(EventTime, Key, Group)> = Vec::with_capacity(rows.len());
        let mut results: Vec<ScalarBuilder> =
            setup.aggregates.iter().map(|a| ScalarBuilder::new(&a.result(), rows.len())).collect();
        for row in rows {
            let (start, key, group) = row;
            let cells: Result<Vec<_>, String> =
                setup.aggregates.iter().zip(&group.state).map(|(a, state)| a.finish(state)).collect();
            match cells {
                Ok(cells) => {
                    for (builder, cell) in results.iter_mut().zip(cells) {
                        builder.append_cell(cell).map_err(OperatorError::new)?;
                    }
                    kept.push(row);
                }
                Err(detail) => output.dead_letters.push(DeadLetter {
                    id: Some(setup.id(*start, key)),
                    time: Some(start + setup.windows.size - 1),
                    reason: "sum_overflow".into(),
                    detail,
                    values: setup.values(*start, key),
                }),
            }
        }
        if kept.is_empty() {
            return Ok(());
        }
        let ids: Vec<u8> = kept.iter().flat_map(|(start, key, _)| setup.id(*start, key)).collect();
        let each = |f: &dyn Fn(&(EventTime, Key, Group)) -> i64| -> ArrayRef {
            Arc::new(Int64Array::from_iter_values(kept.iter().map(|row| f(row))))
        };
        let mut columns: Vec<ArrayRef> = vec![
            Arc::new(FixedSizeBinaryArray::new(16, ids.into(), None)),
            Arc::new(UInt32Array::from_iter_values(kept.iter().map(|(.., group)| group.source))),
            Arc::new(UInt64Array::from_iter_values(kept.iter().map(|(.., group)| group.sequence))),
            each(&|(start, ..)| start + setup.windows.size - 1),
            each(&|(.., group)| group.intended),
            Arc::new(UInt32Array::from_iter_values(kept.iter().map(|(.., group)| group.class))),
            Arc::new(Int8Array::from(vec![1; kept.len()])),
            each(&|(start, ..)| start.div_euclid(1000)),
            each(&|(start, ..)| (start + setup.windows.size).div_euclid(1000)),
        ];
        for (index, group_type) in setup.group_types.iter().enumerate() {
            let mut builder = ScalarBuilder::new(group_type, kept.len());
            kept.iter().for_each(|(_, key, _)| key[index].append_to(&mut builder));
            columns.push(builder.finish());
        }
        columns.extend(results.iter_mut().map(ScalarBuilder::finish));
        output.push(RecordBatch::try_new(Arc::clone(&setup.output), columns).map_err(broken)?);
        Ok(())
    }
}

/// Writes a snapshot of these panes. `place`: watermark, and the first window that waits.
fn write<'a>(
    setup: &Setup,
    place: (EventTime, Option<EventTime>),
    panes: impl Iterator<Item = (EventTime, &'a Groups)>,
) -> Result<Vec<u8>, OperatorError> {
    let schema = setup.snapshot_schema();
    let all: Vec<(EventTime, &Key, &Group)> =
        panes.flat_map(|(s, groups)| groups.sorted().into_iter().map(move |(k, g)| (s, k, g))).collect();
    let mut batches = Vec::new();
    for chunk in all.chunks(CHUNK_ROWS) {
        let ids: Vec<u8> = chunk.iter().flat_map(|(.., g)| g.first.1).collect();
        let states: Vec<Vec<u8>> = chunk
            .iter()
            .map(|(.., g)| {
                let mut bytes = Vec::new();
                g.state.iter().for_each(|a| a.encode(&mut bytes));
                bytes
            })
            .collect();
        let mut columns: Vec<ArrayRef> = vec![
            Arc::new(Int64Array::from_iter_values(chunk.iter().map(|(s, ..)| *s))),
            Arc::new(Int64Array::from_iter_values(chunk.iter().map(|(.., g)| g.first.0))),
            Arc::new(FixedSizeBinaryArray::new(16, ids.into(), None)),
            Arc::new(UInt32Array::from_iter_values(chunk.iter().map(|(.., g)| g.source))),
            Arc::new(UInt64Array::from_iter_values(chunk.iter().map(|(.., g)| g.sequence))),
            Arc::new(UInt32Array::from_iter_values(chunk.iter().map(|(.., g)| g.class))),
            Arc::new(Int64Array::from_iter_values(chunk.iter().map(|(.., g)| g.intended))),
            Arc::new(BinaryArray::from_iter_values(states)),
        ];
        for (index, group_type) in setup.group_types.iter().enumerate() {
            let mut builder = ScalarBuilder::new(group_type, chunk.len());
            chunk.iter().for_each(|(_, key, _)| key[index].append_to(&mut builder));
            columns.push(builder.finish());
        }
        batches.push(RecordBatch::try_new(Arc::clone(&schema), columns).map_err(broken)?);
    }
    snapshot::write(TAG, &place, &[(schema, batches)])
}

impl Stateful for Running {
    fn apply(&mut self, _port: usize, batch: &RecordBatch, output: &mut Output) -> Result<(), OperatorError> {
        let setup = Arc::clone(&self.setup);
        let metadata = Metadata::of(batch);
        let keys = Keys::of(batch, &setup.group_by);
        let mut late = 0;
        // The pane of the previous row, and whether all its windows are closed: the next row is mostly in the same.
        let mut current = (0..0, false);
        for row in 0..batch.num_rows() {
            let time = metadata.times.value(row);
            if !current.0.contains(&time) {
                let Some(pane) = setup.windows.pane(time) else {
                    let detail = format!("the event time {time} us is out of range");
                    output.dead_letters.push(super::dead_row(batch, row, "bad_time", detail));
                    continue;
                };
                // The row counts as long as one of its windows is open.
                let is_closed = setup.windows.is_closed(setup.windows.last(pane.start), self.watermark);
                current = (pane, is_closed);
            }
            let (pane, is_closed) = (current.0.start, current.1);
            if is_closed {
                late += 1;
                continue;
            }
            // A closed window must not get rows that arrive after its close, so its results are emitted now.
            if let Some(waiting) = self.waiting
                && setup.windows.first(pane) < setup.windows.first_open(self.watermark)
            {
                self.give(waiting, usize::MAX, output)?;
            }
            let first = (time, metadata.id(row));
            let (source, sequence) = (metadata.sources.value(row), metadata.sequences.value(row));
            let (class, intended) = (metadata.classes.value(row), metadata.intended.value(row));
            let make = || {
                let state = setup.aggregates.iter().map(Aggregate::start).collect();
                (keys.get(row), Group { first, source, sequence, class, intended, state })
            };
            let groups = self.panes.entry(pane).or_default().groups_mut();
            let (key, group, is_new) = groups.find(keys.hash(row), |key| keys.is_at(row, key), make);
            if is_new {
                self.bytes += group_bytes(key, group);
            }
            if first < group.first {
                (group.first, group.source, group.sequence, group.class) = (first, source, sequence, class);
            }
            group.intended = group.intended.max(intended);
            for (aggregate, state) in setup.aggregates.iter().zip(&mut group.state) {
                aggregate.add(state, batch, row);
            }
        }
        output.drop_rows("late", late);
        Ok(())
    }

    fn advance(&mut self, watermark: EventTime, output: &mut Output) -> Result<(), OperatorError> {
        // Windows closed earlier gave their results then; rows that came later are in other windows only.
        let next = self.waiting.unwrap_or_else(|| self.setup.windows.first_open(self.watermark));
        self.watermark = self.watermark.max(watermark);
        self.give(next, EPOCH_ROWS, output)
    }

    fn has_more(&self) -> bool {
        self.waiting.is_some()
    }

    fn output_watermark(&self, watermark: EventTime) -> EventTime {
        let windows = self.setup.windows;
        let watermark = windows.output_watermark(watermark);
        self.waiting.map_or(watermark, |start| watermark.min(start + windows.size - 1))
    }

    fn snapshot(&self) -> Result<Vec<u8>, OperatorError> {
        let panes = self.panes.iter().map(|(start, pane)| (*start, pane.groups()));
        write(&self.setup, (self.watermark, self.waiting), panes)
    }

    fn capture(&mut self) -> Result<WriteSnapshot, OperatorError> {
        let panes: Vec<_> = self.panes.iter_mut().map(|(start, pane)| (*start, pane.share())).collect();
        let (setup, place) = (Arc::clone(&self.setup), (self.watermark, self.waiting));
        Ok(Box::new(move || write(&setup, place, panes.iter().map(|(start, pane)| (*start, &**pane)))))
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), OperatorError> {
        let ((watermark, waiting), sections) = snapshot::read(TAG, &[self.setup.snapshot_schema()], bytes)?;
        let mut restored = Self::new(Arc::clone(&self.setup));
        (restored.watermark, restored.waiting) = (watermark, waiting);
        sections.iter().flatten().try_for_each(|batch| restored.add(batch))?;
        *self = restored;
        Ok(())
    }

    fn is_divisible(&self) -> bool {
        true
    }

    fn take_in(&mut self, bytes: &[u8], takes: &TakesKeys<'_>) -> Result<(), OperatorError> {
        let (place, sections): ((EventTime, Option<EventTime>), _) =
            snapshot::read(TAG, &[self.setup.snapshot_schema()], bytes)?;
        if self.watermark == EventTime::MIN && self.panes.is_empty() {
            (self.watermark, self.waiting) = place;
        } else if (self.watermark, self.waiting) != place {
            return Err(OperatorError::new(
                "window: the stages with the state have not closed the same windows, so other stages cannot \
                 take it over now: run the old plan briefly, then try again",
            ));
        }
        for batch in sections.iter().flatten() {
            let keys = StateKeys {
                classes: batch.column(5).as_primitive::<UInt32Type>(),
                first: batch.columns().get(8),
            };
            self.add(&filter_record_batch(batch, &takes(&keys)).map_err(broken)?)?;
        }
        Ok(())
    }

    fn state_bytes(&self) -> usize {
        self.bytes
    }
}

impl Running {
    /// Adds groups of a snapshot, each of them new.
    fn add(&mut self, batch: &RecordBatch) -> Result<(), OperatorError> {
        let damaged =
            || OperatorError::new("window: the snapshot is damaged: start the run from the beginning");
        let int = |index: usize| batch.column(index).as_primitive::<Int64Type>();
        let small = |index: usize| batch.column(index).as_primitive::<UInt32Type>();
        let keys = Keys::from_arrays(batch.columns()[8..].iter());
        for row in 0..batch.num_rows() {
            let mut bytes = batch.column(7).as_binary::<i32>().value(row);
            let mut state = Vec::new();
            for aggregate in &self.setup.aggregates {
                state.push(aggregate.start().decode(&mut bytes).ok_or_else(damaged)?);
            }
            let id = batch.column(2).as_fixed_size_binary().value(row);
            let group = Group {
                first: (int(1).value(row), id.try_into().map_err(|_| damaged())?),
                source: small(3).value(row),
                sequence: batch.column(4).as_primitive::<UInt64Type>().value(row),
                class: small(5).value(row),
                intended: int(6).value(row),
                state,
            };
            let key = keys.get(row);
            self.bytes += group_bytes(&key, &group);
            let groups = self.panes.entry(int(0).value(row)).or_default().groups_mut();
            groups.find(keys.hash(row), |it| *it == key, || (Arc::clone(&key), group));
        }
        Ok(())
    }
}
