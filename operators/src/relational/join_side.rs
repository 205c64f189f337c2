//! The rows of one side of a join that may still find partners.
use super::join_state::broken;
use crate::api::OperatorError;
use crate::record::{EventTime, RecordId, batch_bytes};
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, BooleanArray, RecordBatch};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use arrow_select::interleave::interleave;
use hashbrown::HashTable;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::mem::size_of;
use std::sync::Arc;

/// Rows of one snapshot batch, at most.
const CHUNK_ROWS: usize = 4096;
/// Bytes of one assembled batch, about; far below the 2 GiB limit of offsets in text and image columns. Few in the
/// tests of this crate.
pub(super) const CHUNK_BYTES: usize = if cfg!(test) { 64 << 10 } else { 64 << 20 };
/// Rows of one batch after compaction; few, so that they expire together.
const COMPACT_ROWS: usize = 256;
/// Average length of contiguous runs above which a snapshot writes the batches as they are.
const RUN_ROWS: usize = 8;
/// Rows kept beyond twice those in state before compaction, so that small states stay as they are.
const SPARE_ROWS: usize = 64;
/// Average rows per batch below which batches are merged. Each batch takes about two kilobytes beside its rows, and a
/// paced source sends rows one by one. A row is then copied up to this number of times while it is in state.
const LEAST_ROWS: usize = 4;
/// Keys without rows that keep their memory for reuse, in addition to as many as have rows.
const SPARE_GROUPS: usize = 64;

/// One row in state.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row {
    pub(super) time: EventTime,
    pub(super) id: RecordId,
    /// Number of its batch; the row's index there follows.
    pub(super) batch: u32,
    pub(super) row: u32,
    /// Bytes of its columns, see [`Sizes`].
    pub(super) bytes: u32,
    pub(super) matched: bool,
}

/// Bytes of each row of a batch: one picture may be much larger than the next.
pub(super) struct Sizes<'a> {
    /// Bytes per row of the fixed-width columns.
    fixed: usize,
    /// Offsets of the values of each other column.
    offsets: Vec<&'a [i32]>,
}

impl<'a> Sizes<'a> {
    pub(super) fn of(batch: &'a RecordBatch) -> Self {
        let (mut fixed, mut offsets) = (0, Vec::new());
        for column in batch.columns() {
            match column.data_type() {
                DataType::Utf8 => offsets.push(column.as_string::<i32>().value_offsets()),
                DataType::Binary => offsets.push(column.as_binary::<i32>().value_offsets()),
                other => fixed += width(other),
            }
        }
        Self { fixed, offsets }
    }

    pub(super) fn of_row(&self, row: usize) -> u32 {
        let values = self.offsets.iter().map(|offsets| (offsets[row + 1] - offsets[row]) as usize);
        u32::try_from(self.fixed + values.sum::<usize>()).unwrap_or(u32::MAX)
    }
}

/// Bytes of a value of a fixed-width type.
fn width(of: &DataType) -> usize {
    match of {
        DataType::FixedSizeBinary(bytes) => *bytes as usize,
        DataType::FixedSizeList(item, length) => *length as usize * width(item.data_type()),
        other => other.primitive_width().unwrap_or(1),
    }
}

/// Returns how many consecutive rows go into each batch: at most `most`, and a batch ends once its rows reach
/// `CHUNK_BYTES`.
fn lengths<'a>(rows: impl Iterator<Item = &'a Row>, most: usize) -> Vec<usize> {
    let mut lengths = Vec::new();
    let (mut length, mut bytes) = (0, 0);
    for row in rows {
        (length, bytes) = (length + 1, bytes + row.bytes as usize);
        if length == most || bytes >= CHUNK_BYTES {
            lengths.push(length);
            (length, bytes) = (0, 0);
        }
    }
    lengths.extend((length > 0).then_some(length));
    lengths
}

/// The rows of one key, in the order of (time, id). A group without rows is reused for the next key.
#[derive(Default)]
struct Group {
    hash: u64,
    key: Vec<u8>,
    rows: VecDeque<Row>,
}

/// A batch with rows in state.
struct Stored {
    batch: RecordBatch,
    live: usize,
    bytes: usize,
}

#[derive(Default)]
pub(super) struct Side {
    /// Indices of the groups that have rows, by key.
    keys: HashTable<u32>,
    groups: Vec<Group>,
    /// Groups without rows.
    free: Vec<u32>,
    /// Time and group of every row, the earliest on top, which expires next.
    times: BinaryHeap<Reverse<(EventTime, u32)>>,
    /// Batches from number `first` on; `None` where no row is left.
    batches: VecDeque<Option<Stored>>,
    first: u32,
    bytes: usize,
    /// Rows in state; rows that `batches` hold for them.
    live: usize,
    held: usize,
}

/// Returns the bytes of one row beside its columns.
fn row_bytes(key: &[u8]) -> usize {
    size_of::<Row>() + size_of::<(EventTime, u32)>() + key.len()
}

impl Side {
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Number of the next stored batch. It wraps after 2^32 batches; by then the first ones have long expired.
    pub(super) fn next(&self) -> u32 {
        self.first.wrapping_add(self.batches.len() as u32)
    }

    /// A batch by its number.
    pub(super) fn batch(&self, number: u32) -> &RecordBatch {
        let stored = self.batches[number.wrapping_sub(self.first) as usize].as_ref();
        &stored.expect("rows in state keep their batch").batch
    }

    /// Returns the rows with a key, in the order of (time, id).
    pub(super) fn rows_mut(&mut self, hash: u64, key: &[u8]) -> Option<&mut VecDeque<Row>> {
        let number = *self.keys.find(hash, |number| self.groups[*number as usize].key == key)?;
        Some(&mut self.groups[number as usize].rows)
    }

    pub(super) fn insert(&mut self, hash: u64, key: &[u8], row: Row) {
        self.bytes += row_bytes(key);
        let found = self.keys.find(hash, |number| self.groups[*number as usize].key == key).copied();
        let number = found.unwrap_or_else(|| self.new_group(hash, key));
        self.times.push(Reverse((row.time, number)));
        let rows = &mut self.groups[number as usize].rows;
        match rows.back().is_none_or(|last| (last.time, last.id) <= (row.time, row.id)) {
            true => rows.push_back(row),
            false => {
                let place = rows.partition_point(|other| (other.time, other.id) < (row.time, row.id));
                rows.insert(place, row);
            }
        }
    }

    fn new_group(&mut self, hash: u64, key: &[u8]) -> u32 {
        let number = self.free.pop().unwrap_or_else(|| {
            self.groups.push(Group::default());
            // Each group has a row in memory, so 2^32 do not fit.
            (self.groups.len() - 1) as u32
        });
        let group = &mut self.groups[number as usize];
        group.hash = hash;
        group.key.clear();
        group.key.extend_from_slice(key);
        let groups = &self.groups;
        self.keys.insert_unique(hash, number, |number| groups[*number as usize].hash);
        number
    }

    /// Stores a batch whose `live` rows were inserted with the number [`Side::next`].
    pub(super) fn store(&mut self, batch: RecordBatch, live: usize) {
        if live > 0 {
            let bytes = batch_bytes(&batch);
            self.bytes += bytes;
            self.live += live;
            self.held += batch.num_rows();
            self.batches.push_back(Some(Stored { batch, live, bytes }));
        }
    }

    /// Removes rows for which `time + within < watermark`; returns how many had no partner.
    pub(super) fn expire(&mut self, watermark: EventTime, within: i64) -> u64 {
        let mut unmatched = 0;
        while let Some(Reverse((time, number))) = self.times.peek().copied() {
            // At the end of all streams no partner can come, at any time.
            if watermark != EventTime::MAX && watermark <= time.saturating_add(within) {
                break;
            }
            self.times.pop();
            let group = &mut self.groups[number as usize];
            // A group has one entry per row, so this entry is that of its first row.
            let row = group.rows.pop_front().expect("every entry has a row");
            unmatched += u64::from(!row.matched);
            self.bytes -= row_bytes(&group.key);
            if group.rows.is_empty() {
                self.free_group(number);
            }
            self.release(row.batch);
        }
        unmatched
    }

    fn free_group(&mut self, number: u32) {
        let group = &mut self.groups[number as usize];
        if let Ok(entry) = self.keys.find_entry(group.hash, |other| *other == number) {
            entry.remove();
        }
        if self.free.len() > self.keys.len() + SPARE_GROUPS {
            *group = Group::default();
        }
        self.free.push(number);
    }

    /// Records that a row of a batch is no longer in state.
    fn release(&mut self, number: u32) {
        let slot = &mut self.batches[number.wrapping_sub(self.first) as usize];
        let stored = slot.as_mut().expect("rows in state keep their batch");
        stored.live -= 1;
        self.live -= 1;
        if stored.live == 0 {
            self.bytes -= stored.bytes;
            self.held -= stored.batch.num_rows();
            *slot = None;
            while let Some(None) = self.batches.front() {
                self.batches.pop_front();
                self.first = self.first.wrapping_add(1);
            }
        }
    }

    /// Copies the rows in state into batches of their own if most rows of the batches are no longer in state, or if
    /// batches are small. One late row must not keep a thousand pictures in memory; the copy costs less than the
    /// expiry of those rows did.
    pub(super) fn compact(&mut self) -> Result<(), OperatorError> {
        // Large batches have few rows and stay as they are.
        let is_scattered =
            self.batches.len() > (self.live + SPARE_ROWS) / LEAST_ROWS + self.bytes / CHUNK_BYTES;
        if self.held <= 2 * self.live + SPARE_ROWS && !is_scattered {
            return Ok(());
        }
        let mut rows: Vec<&mut Row> = self.groups.iter_mut().flat_map(|group| &mut group.rows).collect();
        rows.sort_unstable_by_key(|row| (row.time, row.id));
        let mut batches = VecDeque::new();
        let lengths = lengths(rows.iter().map(|row| &**row), COMPACT_ROWS);
        let mut rest = rows.as_mut_slice();
        for (number, length) in (0..).zip(lengths) {
            let (chunk, later) = rest.split_at_mut(length);
            rest = later;
            let places = chunk.iter().map(|row| (row.batch, row.row));
            let places = Places::of(places, |number| {
                let stored = self.batches[number.wrapping_sub(self.first) as usize].as_ref();
                &stored.expect("rows in state keep their batch").batch
            });
            let batch =
                RecordBatch::try_new(places.batches[0].schema(), places.columns()?).map_err(broken)?;
            for (place, row) in (0..).zip(chunk.iter_mut()) {
                (row.batch, row.row) = (number, place);
            }
            let bytes = batch_bytes(&batch);
            batches.push_back(Some(Stored { batch, live: chunk.len(), bytes }));
        }
        let bytes =
            |batches: &VecDeque<Option<Stored>>| batches.iter().flatten().map(|s| s.bytes).sum::<usize>();
        self.bytes -= bytes(&self.batches);
        self.bytes += bytes(&batches);
        (self.batches, self.first, self.held) = (batches, 0, self.live);
        Ok(())
    }

    /// Returns the current rows: a list of them, and the batches they are in, which never change.
    pub(super) fn rows(&self) -> Rows {
        Rows {
            rows: self.groups.iter().flat_map(|group| &group.rows).copied().collect(),
            batches: self
                .batches
                .iter()
                .map(|slot| slot.as_ref().map(|stored| stored.batch.clone()))
                .collect(),
            first: self.first,
        }
    }
}

/// The rows of a side at one moment.
pub(super) struct Rows {
    rows: Vec<Row>,
    /// From number `first` on, as in [`Side`].
    batches: Vec<Option<RecordBatch>>,
    first: u32,
}

impl Rows {
    fn batch(&self, number: u32) -> &RecordBatch {
        let batch = self.batches[number.wrapping_sub(self.first) as usize].as_ref();
        batch.expect("rows in state keep their batch")
    }

    /// Returns batches in the order of (time, id), with the partner flag as an additional column.
    pub(super) fn into_batches(
        mut self,
        schema: &SchemaRef,
    ) -> Result<(SchemaRef, Vec<RecordBatch>), OperatorError> {
        let mut rows = std::mem::take(&mut self.rows);
        rows.sort_unstable_by_key(|row| (row.time, row.id));
        let schema = flagged(schema);
        let mut batches = Vec::new();
        let mut add = |mut columns: Vec<ArrayRef>, rows: &[Row]| {
            columns.push(Arc::new(BooleanArray::from_iter(rows.iter().map(|row| Some(row.matched)))));
            RecordBatch::try_new(Arc::clone(&schema), columns)
                .map(|batch| batches.push(batch))
                .map_err(broken)
        };
        // Usually whole epochs are in state: they are written without being copied.
        let beside = |a: &Row, b: &Row| a.batch == b.batch && a.row + 1 == b.row;
        if rows.chunk_by(beside).count() * RUN_ROWS <= rows.len() {
            for run in rows.chunk_by(beside) {
                let batch = self.batch(run[0].batch);
                add(batch.slice(run[0].row as usize, run.len()).columns().to_vec(), run)?;
            }
        } else {
            let mut rest = rows.as_slice();
            for length in lengths(rest.iter(), CHUNK_ROWS) {
                let (chunk, later) = rest.split_at(length);
                rest = later;
                let places = chunk.iter().map(|row| (row.batch, row.row));
                add(Places::of(places, |number| self.batch(number)).columns()?, chunk)?;
            }
        }
        Ok((schema, batches))
    }
}

/// The schema of a side with the partner flag.
pub(super) fn flagged(schema: &SchemaRef) -> SchemaRef {
    let flag = Arc::new(Field::new("_matched", DataType::Boolean, true));
    let fields: Vec<_> = schema.fields().iter().cloned().chain([flag]).collect();
    Arc::new(Schema::new(fields))
}

/// Rows of several batches, in any order.
pub(super) struct Places<'a> {
    /// The batches with these rows.
    pub(super) batches: Vec<&'a RecordBatch>,
    /// Index in `batches`, and row.
    pub(super) rows: Vec<(usize, usize)>,
}

impl<'a> Places<'a> {
    /// Collects the rows at these places (batch number, row).
    pub(super) fn of(
        places: impl Iterator<Item = (u32, u32)>,
        batch: impl Fn(u32) -> &'a RecordBatch,
    ) -> Self {
        let mut batches = Vec::new();
        let mut numbers: HashMap<u32, usize> = HashMap::new();
        // Neighbours are mostly in one batch.
        let mut last = None;
        let rows = places
            .map(|(number, row)| {
                let at = match last {
                    Some((known, at)) if known == number => at,
                    _ => *numbers.entry(number).or_insert_with(|| {
                        batches.push(batch(number));
                        batches.len() - 1
                    }),
                };
                last = Some((number, at));
                (at, row as usize)
            })
            .collect();
        Self { batches, rows }
    }

    /// One column of the rows.
    pub(super) fn column(&self, index: usize) -> Result<ArrayRef, OperatorError> {
        let arrays: Vec<&dyn Array> = self.batches.iter().map(|batch| batch.column(index).as_ref()).collect();
        interleave(&arrays, &self.rows).map_err(broken)
    }

    /// All columns of the rows.
    fn columns(&self) -> Result<Vec<ArrayRef>, OperatorError> {
        (0..self.batches.first().map_or(0, |batch| batch.num_columns()))
            .map(|index| self.column(index))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{METADATA_COLUMNS, Metadata};
    use crate::testing::{Record, records};
    use serde_json::json;
    use tidemill_spec::types::{Column, ColumnType, StreamType};

    /// The time of a row that its picture encodes.
    fn shown(batch: &RecordBatch, row: usize) -> i64 {
        let picture = batch.column(METADATA_COLUMNS).as_binary::<i32>().value(row);
        std::str::from_utf8(&picture[..4]).unwrap().parse().unwrap()
    }

    #[test]
    fn batches_that_are_put_together_are_bounded_by_their_bytes() {
        let stream = StreamType::new([Column::new("picture", ColumnType::Image)]);
        let mut side = Side::default();
        // Neighbours in time are in different batches; some pictures are much larger than others.
        for half in 0..2 {
            let times = (0..200u64).map(|i| 2 * i + half);
            let rows: Vec<Record> = times
                .map(|time| {
                    let parts = if time.is_multiple_of(50) { 5000 } else { 500 };
                    let payload = json!({"picture": format!("{time:04}").repeat(parts)});
                    Record { source: 0, sequence: time, time: time as i64, payload }
                })
                .collect();
            let batch = records(&stream, &rows);
            let (sizes, metadata) = (Sizes::of(&batch), Metadata::of(&batch));
            for row in 0..200 {
                let stored = Row {
                    time: metadata.times.value(row),
                    id: metadata.id(row),
                    batch: side.next(),
                    row: row as u32,
                    bytes: sizes.of_row(row),
                    matched: false,
                };
                assert!((1996..20_200).contains(&stored.bytes), "{}", stored.bytes);
                side.insert(1, b"key", stored);
            }
            side.store(batch.clone(), 200);
        }
        let small = |batch: &RecordBatch| batch_bytes(batch) < CHUNK_BYTES + 21_000;
        let schema = side.batch(0).schema();
        let check = |side: &Side, first: i64| {
            let (_, batches) = side.rows().into_batches(&schema).unwrap();
            assert!(batches.len() > 2 && batches.iter().all(small));
            let rows = batches.iter().flat_map(|batch| (0..batch.num_rows()).map(|row| shown(batch, row)));
            assert!(rows.eq(first..400));
        };
        check(&side, 0);
        assert_eq!(side.expire(300, 0), 300);
        side.compact().unwrap();
        let stored: Vec<&RecordBatch> = side.batches.iter().flatten().map(|stored| &stored.batch).collect();
        assert!(stored.len() > 2 && stored.iter().all(|batch| small(batch)));
        assert_eq!(stored.iter().map(|batch| batch.num_rows()).sum::<usize>(), 100);
        for row in side.groups.iter().flat_map(|group| &group.rows) {
            assert_eq!(shown(side.batch(row.batch), row.row as usize), row.time);
        }
        check(&side, 300);
        // A second compaction changes nothing.
        let before = side.next();
        side.compact().unwrap();
        assert_eq!(side.next(), before);
    }
}
