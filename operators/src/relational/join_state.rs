//! The state of a running join: the rows of both sides that may still find partners.
use super::keys::{Key, KeyPart, Keys};
use super::snapshot;
use crate::api::{OperatorError, Output, Stateful};
use crate::record::{EventTime, METADATA_COLUMNS, Metadata, RecordId, batch_bytes, derive_id};
use arrow_array::{
    Array, ArrayRef, BooleanArray, FixedSizeBinaryArray, Int8Array, Int64Array, RecordBatch, UInt32Array,
    UInt64Array,
};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use arrow_select::interleave::interleave;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::mem::size_of;
use std::sync::Arc;

/// Rows of one output or snapshot batch, at most.
const CHUNK_ROWS: usize = 4096;
/// Bytes of one output batch, about; far below the 2 GiB that offsets of texts and images can count.
const CHUNK_BYTES: usize = 64 << 20;
/// Rows of one batch after compaction: few, so that they expire together.
const COMPACT_ROWS: usize = 256;
/// Rows that lie side by side, on average, where a snapshot takes them as they lie.
const RUN_ROWS: usize = 8;
/// Rows that are kept beside twice those in state before compaction: small states are left alone.
const SPARE_ROWS: usize = 64;
/// Format of the snapshots.
const TAG: [u8; 8] = *b"JOIN0001";

/// What all copies of one join share.
pub(super) struct Setup {
    pub(super) operator: u64,
    /// Microseconds.
    pub(super) within: i64,
    /// Key columns of both sides, payload positions.
    pub(super) keys: [Vec<usize>; 2],
    pub(super) inputs: [SchemaRef; 2],
    pub(super) output: SchemaRef,
    /// Side and payload position of each output column.
    pub(super) origins: Vec<(usize, usize)>,
}

/// One row in state.
#[derive(Debug, Clone, Copy)]
struct Row {
    time: EventTime,
    id: RecordId,
    batch: u32,
    row: u32,
    matched: bool,
}

/// A batch of which rows are in state.
struct Stored {
    batch: RecordBatch,
    live: usize,
    bytes: usize,
}

#[derive(Default)]
struct Side {
    /// Rows by key, each list in the order of (time, id).
    rows: HashMap<Key, VecDeque<Row>>,
    /// Keys by the event time of their rows: what can expire together.
    times: BTreeMap<EventTime, Vec<Key>>,
    batches: HashMap<u32, Stored>,
    next: u32,
    bytes: usize,
    /// Rows in state, and rows that `batches` hold for them.
    live: usize,
    held: usize,
}

/// Bytes that one row takes beside its columns.
fn row_bytes(key: &Key) -> usize {
    size_of::<Row>()
        + 2 * size_of::<Key>()
        + key.iter().map(|p| size_of::<KeyPart>() + p.heap_bytes()).sum::<usize>()
}

impl Side {
    fn insert(&mut self, key: Key, row: Row) {
        self.bytes += row_bytes(&key);
        self.times.entry(row.time).or_default().push(Arc::clone(&key));
        let rows = self.rows.entry(key).or_default();
        let place = rows.partition_point(|other| (other.time, other.id) < (row.time, row.id));
        rows.insert(place, row);
    }

    /// Keeps a batch of which `live` rows are in state.
    fn store(&mut self, batch: RecordBatch, live: usize) {
        if live > 0 {
            let bytes = batch_bytes(&batch);
            self.bytes += bytes;
            self.live += live;
            self.held += batch.num_rows();
            self.batches.insert(self.next, Stored { batch, live, bytes });
            // Numbers may come round after 2^32 batches; by then the first ones have long expired.
            self.next = self.next.wrapping_add(1);
        }
    }

    /// Removes rows for which `time + within < watermark`; returns how many had no partner.
    fn expire(&mut self, watermark: EventTime, within: i64) -> u64 {
        let mut unmatched = 0;
        while let Some(entry) = self.times.first_entry() {
            let time = *entry.key();
            // At the end of all streams no partner can come, whatever the times are.
            if watermark != EventTime::MAX && watermark <= time.saturating_add(within) {
                break;
            }
            for key in entry.remove() {
                let Some(rows) = self.rows.get_mut(&key) else { continue };
                while let Some(row) = rows.front().copied().filter(|row| row.time <= time) {
                    rows.pop_front();
                    unmatched += u64::from(!row.matched);
                    self.bytes -= row_bytes(&key);
                    let stored = self.batches.get_mut(&row.batch).expect("rows in state keep their batch");
                    stored.live -= 1;
                    self.live -= 1;
                    if stored.live == 0 {
                        self.bytes -= stored.bytes;
                        self.held -= stored.batch.num_rows();
                        self.batches.remove(&row.batch);
                    }
                }
                if rows.is_empty() {
                    self.rows.remove(&key);
                }
            }
        }
        unmatched
    }

    /// Copies the rows in state into batches of their own where most rows of the batches are no longer in state: one
    /// late row must not keep a thousand pictures. Costs less than the expiry of those rows did.
    fn compact(&mut self) -> Result<(), OperatorError> {
        if self.held <= 2 * self.live + SPARE_ROWS {
            return Ok(());
        }
        let mut rows: Vec<&mut Row> = self.rows.values_mut().flatten().collect();
        rows.sort_unstable_by_key(|row| (row.time, row.id));
        let mut batches = HashMap::new();
        let mut next = 0;
        for chunk in rows.chunks_mut(COMPACT_ROWS) {
            let places: Vec<(u32, u32)> = chunk.iter().map(|row| (row.batch, row.row)).collect();
            let schema = self.batches[&places[0].0].batch.schema();
            let columns = (0..schema.fields().len())
                .map(|column| gather(|n| &self.batches[&n].batch, &places, column))
                .collect::<Result<Vec<_>, _>>()?;
            let batch = RecordBatch::try_new(schema, columns).map_err(broken)?;
            for (place, row) in (0..).zip(chunk.iter_mut()) {
                (row.batch, row.row) = (next, place);
            }
            let bytes = batch_bytes(&batch);
            batches.insert(next, Stored { batch, live: chunk.len(), bytes });
            next += 1;
        }
        self.bytes -= self.batches.values().map(|stored| stored.bytes).sum::<usize>();
        self.bytes += batches.values().map(|stored| stored.bytes).sum::<usize>();
        (self.batches, self.next, self.held) = (batches, next, self.live);
        Ok(())
    }

    /// All rows in the order of (time, id), with their partner flag as one more column.
    fn snapshot(&self, schema: &SchemaRef) -> Result<(SchemaRef, Vec<RecordBatch>), OperatorError> {
        let mut rows: Vec<&Row> = self.rows.values().flatten().collect();
        rows.sort_unstable_by_key(|row| (row.time, row.id));
        let schema = flagged(schema);
        let mut batches = Vec::new();
        let mut add = |mut columns: Vec<ArrayRef>, rows: &[&Row]| {
            columns.push(Arc::new(BooleanArray::from_iter(rows.iter().map(|row| Some(row.matched)))));
            RecordBatch::try_new(Arc::clone(&schema), columns)
                .map(|batch| batches.push(batch))
                .map_err(broken)
        };
        // Most often whole epochs are in state: they are written from where they lie.
        let beside = |a: &&Row, b: &&Row| a.batch == b.batch && a.row + 1 == b.row;
        if rows.chunk_by(beside).count() * RUN_ROWS <= rows.len() {
            for run in rows.chunk_by(beside) {
                let stored = &self.batches[&run[0].batch].batch;
                add(stored.slice(run[0].row as usize, run.len()).columns().to_vec(), run)?;
            }
        } else {
            for chunk in rows.chunks(CHUNK_ROWS) {
                let places: Vec<(u32, u32)> = chunk.iter().map(|row| (row.batch, row.row)).collect();
                let columns = (0..schema.fields().len() - 1)
                    .map(|column| gather(|n| &self.batches[&n].batch, &places, column))
                    .collect::<Result<Vec<_>, _>>()?;
                add(columns, chunk)?;
            }
        }
        Ok((schema, batches))
    }
}

fn broken(error: arrow_schema::ArrowError) -> OperatorError {
    OperatorError::new(format!("join: {error}"))
}

/// The schema of a side with the partner flag.
fn flagged(schema: &SchemaRef) -> SchemaRef {
    let flag = Arc::new(Field::new("_matched", DataType::Boolean, true));
    let fields: Vec<_> = schema.fields().iter().cloned().chain([flag]).collect();
    Arc::new(Schema::new(fields))
}

/// Column `column` of the rows at these places (batch number, row).
fn gather<'a>(
    batch: impl Fn(u32) -> &'a RecordBatch,
    places: &[(u32, u32)],
    column: usize,
) -> Result<ArrayRef, OperatorError> {
    let mut arrays: Vec<&dyn Array> = Vec::new();
    let mut numbers: HashMap<u32, usize> = HashMap::new();
    let indices: Vec<(usize, usize)> = places
        .iter()
        .map(|(number, row)| {
            let at = *numbers.entry(*number).or_insert_with(|| {
                arrays.push(batch(*number).column(column).as_ref());
                arrays.len() - 1
            });
            (at, *row as usize)
        })
        .collect();
    interleave(&arrays, &indices).map_err(broken)
}

/// A running join.
pub(super) struct Running {
    setup: Arc<Setup>,
    sides: [Side; 2],
    watermark: EventTime,
}

impl Running {
    pub(super) fn new(setup: Arc<Setup>) -> Self {
        Self { setup, sides: Default::default(), watermark: EventTime::MIN }
    }

    /// One output batch from pairs of (row of `batch`, row of the other side).
    fn emit(
        &self,
        port: usize,
        batch: &RecordBatch,
        pairs: &[(u32, Row)],
    ) -> Result<RecordBatch, OperatorError> {
        let own: Vec<(u32, u32)> = pairs.iter().map(|(row, _)| (0, *row)).collect();
        let other: Vec<(u32, u32)> = pairs.iter().map(|(_, row)| (row.batch, row.row)).collect();
        let column = |side: usize, index: usize| {
            if side == port {
                gather(|_| batch, &own, index)
            } else {
                gather(|n| &self.sides[side].batches[&n].batch, &other, index)
            }
        };
        let here = Metadata::of(batch);
        let (mut ids, mut times, mut intended) = (Vec::new(), Vec::new(), Vec::new());
        let (mut sources, mut sequences, mut classes) = (Vec::new(), Vec::new(), Vec::new());
        for (row, partner) in pairs {
            let row = *row as usize;
            let there = Metadata::of(&self.sides[1 - port].batches[&partner.batch].batch);
            let at = partner.row as usize;
            // Where a stream is joined with itself, (a, b) and (b, a) are two results of the same two inputs.
            let (left_id, right_id) =
                if port == 0 { (here.id(row), partner.id) } else { (partner.id, here.id(row)) };
            let swapped = u32::from(left_id > right_id);
            ids.extend(derive_id(self.setup.operator, &[left_id, right_id], swapped));
            times.push(here.times.value(row).max(partner.time));
            intended.push(here.intended.value(row).max(there.intended.value(at)));
            let (left, at) = if port == 0 { (&here, row) } else { (&there, at) };
            sources.push(left.sources.value(at));
            sequences.push(left.sequences.value(at));
            classes.push(left.classes.value(at));
        }
        let mut columns: Vec<ArrayRef> = vec![
            Arc::new(FixedSizeBinaryArray::new(16, ids.into(), None)),
            Arc::new(UInt32Array::from(sources)),
            Arc::new(UInt64Array::from(sequences)),
            Arc::new(Int64Array::from(times)),
            Arc::new(Int64Array::from(intended)),
            Arc::new(UInt32Array::from(classes)),
            Arc::new(Int8Array::from(vec![1; pairs.len()])),
        ];
        for (side, index) in &self.setup.origins {
            columns.push(column(*side, METADATA_COLUMNS + index)?);
        }
        RecordBatch::try_new(Arc::clone(&self.setup.output), columns).map_err(broken)
    }
}

impl Stateful for Running {
    fn apply(&mut self, port: usize, batch: &RecordBatch, output: &mut Output) -> Result<(), OperatorError> {
        let setup = Arc::clone(&self.setup);
        let metadata = Metadata::of(batch);
        let keys = Keys::of(batch, &setup.keys[port]);
        let (mut late, mut keyless, mut live) = (0, 0, 0);
        let mut pairs: Vec<(u32, Row)> = Vec::new();
        let own_bytes = batch_bytes(batch) / batch.num_rows().max(1);
        let mut bytes = 0;
        for row in 0..batch.num_rows() {
            let time = metadata.times.value(row);
            if time < self.watermark {
                late += 1;
                continue;
            }
            let key = keys.get(row);
            if key.contains(&KeyPart::Null) {
                keyless += 1;
                continue;
            }
            let mut matched = false;
            let (from, to) = (time.saturating_sub(setup.within), time.saturating_add(setup.within));
            let mut full = false;
            if let Some(partners) = self.sides[1 - port].rows.get_mut(&key) {
                let first = partners.partition_point(|partner| partner.time < from);
                for partner in partners.range_mut(first..).take_while(|partner| partner.time <= to) {
                    partner.matched = true;
                    matched = true;
                    pairs.push((row as u32, *partner));
                    bytes += own_bytes;
                }
                full = pairs.len() >= CHUNK_ROWS || bytes >= CHUNK_BYTES;
            }
            let id = metadata.id(row);
            let number = self.sides[port].next;
            self.sides[port].insert(key, Row { time, id, batch: number, row: row as u32, matched });
            live += 1;
            if full {
                for chunk in pairs.chunks(CHUNK_ROWS) {
                    output.push(self.emit(port, batch, chunk)?);
                }
                pairs.clear();
                bytes = 0;
            }
        }
        if !pairs.is_empty() {
            output.push(self.emit(port, batch, &pairs)?);
        }
        self.sides[port].store(batch.clone(), live);
        output.drop_rows("late", late);
        output.drop_rows("unmatched", keyless);
        Ok(())
    }

    fn advance(&mut self, watermark: EventTime, output: &mut Output) -> Result<(), OperatorError> {
        self.watermark = self.watermark.max(watermark);
        for side in &mut self.sides {
            output.drop_rows("unmatched", side.expire(self.watermark, self.setup.within));
            side.compact()?;
        }
        Ok(())
    }

    fn snapshot(&self) -> Result<Vec<u8>, OperatorError> {
        let [left, right] = &self.sides;
        let sections = [left.snapshot(&self.setup.inputs[0])?, right.snapshot(&self.setup.inputs[1])?];
        snapshot::write(TAG, &self.watermark, &sections)
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), OperatorError> {
        let schemas = self.setup.inputs.each_ref().map(flagged);
        let (watermark, sections) = snapshot::read(TAG, &schemas, bytes)?;
        let mut sides: [Side; 2] = Default::default();
        for (port, (side, batches)) in sides.iter_mut().zip(sections).enumerate() {
            for batch in batches {
                let mut columns = batch.columns().to_vec();
                let matched = columns.pop();
                let matched = matched.as_ref().and_then(|a| a.as_any().downcast_ref::<BooleanArray>());
                let Some(matched) = matched else {
                    return Err(OperatorError::new("join: the snapshot has no partner flags"));
                };
                let batch =
                    RecordBatch::try_new(Arc::clone(&self.setup.inputs[port]), columns).map_err(broken)?;
                let (metadata, keys) = (Metadata::of(&batch), Keys::of(&batch, &self.setup.keys[port]));
                for row in 0..batch.num_rows() {
                    let stored = Row {
                        time: metadata.times.value(row),
                        id: metadata.id(row),
                        batch: side.next,
                        row: row as u32,
                        matched: matched.value(row),
                    };
                    side.insert(keys.get(row), stored);
                }
                let live = batch.num_rows();
                side.store(batch, live);
            }
        }
        self.sides = sides;
        self.watermark = watermark;
        Ok(())
    }

    fn state_bytes(&self) -> usize {
        self.sides.iter().map(|side| side.bytes).sum()
    }
}
