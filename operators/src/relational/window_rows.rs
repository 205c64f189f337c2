//! Rows of windows, fixed or by session: results, and the groups of a snapshot.
use super::aggregate::{Accumulator, Aggregate};
use super::keys::{Key, KeyPart, Keys};
use super::window::LateRows;
use super::window_pane::Group;
use crate::api::{DeadLetter, OperatorError, Output};
use crate::columns::ScalarBuilder;
use crate::record::{EventTime, METADATA_COLUMNS, Metadata, RecordId, arrow_type};
use crate::values::Values;
use arrow_array::cast::AsArray;
use arrow_array::types::{Int64Type, UInt32Type, UInt64Type};
use arrow_array::{
    ArrayRef, BinaryArray, FixedSizeBinaryArray, Int8Array, Int64Array, RecordBatch, UInt32Array, UInt64Array,
};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use std::mem::size_of;
use std::ops::Range;
use std::sync::Arc;
use tidemill_spec::types::ColumnType;
use xxhash_rust::xxh3::Xxh3;

/// Rows of one output or snapshot batch, at most.
pub(super) const CHUNK_ROWS: usize = 4096;
/// Rows after which an epoch gets no more windows; the rest waits for the next epochs. Few in the tests of this
/// crate.
pub(super) const EPOCH_ROWS: usize = if cfg!(test) { 12 } else { 2 * CHUNK_ROWS };

/// Columns of a snapshot before those of the groups.
const COLUMNS: usize = 8;

/// Settings that all copies of one window operator share.
pub(super) struct Setup {
    pub(super) operator: u64,
    /// Payload positions.
    pub(super) group_by: Vec<usize>,
    pub(super) group_types: Vec<ColumnType>,
    pub(super) aggregates: Vec<Aggregate>,
    pub(super) late: LateRows,
    pub(super) output: SchemaRef,
}

/// A closed window of a group.
pub(super) struct Closed {
    /// From its start to its end.
    pub(super) times: Range<EventTime>,
    pub(super) key: Key,
    pub(super) group: Group,
}

impl Setup {
    /// Starts a group with the row of a batch at `first`.
    pub(super) fn group(&self, first: (EventTime, RecordId), origin: Origin) -> Group {
        let Origin { source, sequence, class, intended } = origin;
        let state = self.aggregates.iter().map(Aggregate::start).collect();
        Group { first, source, sequence, class, intended, state }
    }

    /// Adds a row of a batch to its group.
    pub(super) fn add(
        &self,
        group: &mut Group,
        first: (EventTime, RecordId),
        origin: Origin,
        (batch, row): (&RecordBatch, usize),
    ) {
        let Origin { source, sequence, class, intended } = origin;
        if first < group.first {
            (group.first, group.source, group.sequence, group.class) = (first, source, sequence, class);
        }
        group.intended = group.intended.max(intended);
        for (aggregate, state) in self.aggregates.iter().zip(&mut group.state) {
            aggregate.add(state, batch, row);
        }
    }

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
    fn values(&self, closed: &Closed) -> Values {
        let ends = [closed.times.start, closed.times.end].map(|time| time.div_euclid(1000).into());
        let names = self.output.fields().iter().skip(METADATA_COLUMNS).map(|field| field.name().clone());
        names.zip(ends.into_iter().chain(closed.key.iter().map(KeyPart::shown))).collect()
    }

    /// Emits result rows of closed windows.
    pub(super) fn emit(&self, rows: &[Closed], output: &mut Output) -> Result<(), OperatorError> {
        let mut kept: Vec<&Closed> = Vec::with_capacity(rows.len());
        let mut results: Vec<ScalarBuilder> =
            self.aggregates.iter().map(|a| ScalarBuilder::new(&a.result(), rows.len())).collect();
        for row in rows {
            let cells: Result<Vec<_>, String> =
                self.aggregates.iter().zip(&row.group.state).map(|(a, state)| a.finish(state)).collect();
            match cells {
                Ok(cells) => {
                    for (builder, cell) in results.iter_mut().zip(cells) {
                        builder.append_cell(cell).map_err(OperatorError::new)?;
                    }
                    kept.push(row);
                }
                Err(detail) => output.dead_letters.push(DeadLetter {
                    id: Some(self.id(row.times.start, &row.key)),
                    time: Some(row.times.end - 1),
                    reason: "sum_overflow".into(),
                    detail,
                    values: self.values(row),
                }),
            }
        }
        if kept.is_empty() {
            return Ok(());
        }
        let ids: Vec<u8> = kept.iter().flat_map(|row| self.id(row.times.start, &row.key)).collect();
        let each = |f: &dyn Fn(&Closed) -> i64| -> ArrayRef {
            Arc::new(Int64Array::from_iter_values(kept.iter().map(|row| f(row))))
        };
        let mut columns: Vec<ArrayRef> = vec![
            Arc::new(FixedSizeBinaryArray::new(16, ids.into(), None)),
            Arc::new(UInt32Array::from_iter_values(kept.iter().map(|row| row.group.source))),
            Arc::new(UInt64Array::from_iter_values(kept.iter().map(|row| row.group.sequence))),
            each(&|row| row.times.end - 1),
            each(&|row| row.group.intended),
            Arc::new(UInt32Array::from_iter_values(kept.iter().map(|row| row.group.class))),
            Arc::new(Int8Array::from(vec![1; kept.len()])),
            each(&|row| row.times.start.div_euclid(1000)),
            each(&|row| row.times.end.div_euclid(1000)),
        ];
        for (index, group_type) in self.group_types.iter().enumerate() {
            let mut builder = ScalarBuilder::new(group_type, kept.len());
            kept.iter().for_each(|row| row.key[index].append_to(&mut builder));
            columns.push(builder.finish());
        }
        columns.extend(results.iter_mut().map(ScalarBuilder::finish));
        output.push(RecordBatch::try_new(Arc::clone(&self.output), columns).map_err(broken)?);
        Ok(())
    }

    /// The schema of the groups in a snapshot.
    pub(super) fn snapshot_schema(&self) -> SchemaRef {
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

    /// Writes groups for a snapshot, each with the time that its operator keeps with it.
    pub(super) fn write(&self, all: &[(EventTime, &Key, &Group)]) -> Result<Vec<RecordBatch>, OperatorError> {
        let schema = self.snapshot_schema();
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
            for (index, group_type) in self.group_types.iter().enumerate() {
                let mut builder = ScalarBuilder::new(group_type, chunk.len());
                chunk.iter().for_each(|(_, key, _)| key[index].append_to(&mut builder));
                columns.push(builder.finish());
            }
            batches.push(RecordBatch::try_new(Arc::clone(&schema), columns).map_err(broken)?);
        }
        Ok(batches)
    }

    /// Reads groups of a snapshot: each with its time, hash and key.
    pub(super) fn read(
        &self,
        batch: &RecordBatch,
        mut take: impl FnMut(EventTime, u64, Key, Group),
    ) -> Result<(), OperatorError> {
        let damaged =
            || OperatorError::new("window: the snapshot is damaged: start the run from the beginning");
        let int = |index: usize| batch.column(index).as_primitive::<Int64Type>();
        let small = |index: usize| batch.column(index).as_primitive::<UInt32Type>();
        let keys = Keys::from_arrays(batch.columns()[COLUMNS..].iter());
        for row in 0..batch.num_rows() {
            let mut bytes = batch.column(7).as_binary::<i32>().value(row);
            let mut state = Vec::new();
            for aggregate in &self.aggregates {
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
            take(int(0).value(row), keys.hash(row), keys.get(row), group);
        }
        Ok(())
    }
}

/// Metadata of a row that its group keeps.
#[derive(Clone, Copy)]
pub(super) struct Origin {
    pub(super) source: u32,
    pub(super) sequence: u64,
    pub(super) class: u32,
    pub(super) intended: i64,
}

impl Origin {
    pub(super) fn of(metadata: &Metadata<'_>, row: usize) -> Self {
        Self {
            source: metadata.sources.value(row),
            sequence: metadata.sequences.value(row),
            class: metadata.classes.value(row),
            intended: metadata.intended.value(row),
        }
    }
}

/// Bytes of a group in memory.
pub(super) fn group_bytes(key: &Key, group: &Group) -> usize {
    size_of::<Group>()
        + size_of::<Key>()
        + key.iter().map(|part| size_of::<KeyPart>() + part.heap_bytes()).sum::<usize>()
        + group.state.iter().map(|a| size_of::<Accumulator>() + a.heap_bytes()).sum::<usize>()
}

pub(super) fn broken(error: arrow_schema::ArrowError) -> OperatorError {
    OperatorError::new(format!("window: {error}"))
}
