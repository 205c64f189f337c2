//! A running join: matches each row with rows of the other side.
use super::join_side::{CHUNK_BYTES, Places, Row, Rows, Side, Sizes, flagged};
use super::keys::Keys;
use super::snapshot;
use crate::api::{OperatorError, Output, StateKeys, Stateful, TakesKeys, WriteSnapshot};
use crate::record::{EventTime, METADATA_COLUMNS, Metadata, derive_id};
use arrow_array::{
    ArrayRef, BooleanArray, FixedSizeBinaryArray, Int8Array, Int64Array, RecordBatch, UInt32Array,
    UInt64Array,
};
use arrow_schema::SchemaRef;
use arrow_select::filter::filter_record_batch;
use arrow_select::take::take;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Rows of one output batch, at most.
const CHUNK_ROWS: usize = 4096;
/// Format of the snapshots.
const TAG: [u8; 8] = *b"JOIN0001";

/// Settings that all copies of one join share.
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

pub(super) fn broken(error: arrow_schema::ArrowError) -> OperatorError {
    OperatorError::new(format!("join: {error}"))
}

/// A running join.
pub(super) struct Running {
    setup: Arc<Setup>,
    sides: [Side; 2],
    watermark: EventTime,
    /// Seed of the key hashes, unknown to producers of records.
    seed: u64,
}

impl Running {
    pub(super) fn new(setup: Arc<Setup>) -> Self {
        let seed = RandomState::new().hash_one(setup.operator);
        Self { setup, sides: Default::default(), watermark: EventTime::MIN, seed }
    }

    /// Builds one output batch from pairs of (row of `batch`, row of the other side).
    fn emit(
        &self,
        port: usize,
        batch: &RecordBatch,
        pairs: &[(u32, Row)],
    ) -> Result<RecordBatch, OperatorError> {
        let own = UInt32Array::from_iter_values(pairs.iter().map(|(row, _)| *row));
        let places = pairs.iter().map(|(_, partner)| (partner.batch, partner.row));
        let other = Places::of(places, |number| self.sides[1 - port].batch(number));
        let column = |side: usize, index: usize| match side == port {
            true => take(batch.column(index), &own, None).map_err(broken),
            false => other.column(index),
        };
        let here = Metadata::of(batch);
        let others: Vec<Metadata<'_>> = other.batches.iter().map(|batch| Metadata::of(batch)).collect();
        let n = pairs.len();
        let (mut ids, mut times, mut intended) =
            (Vec::with_capacity(16 * n), Vec::with_capacity(n), Vec::with_capacity(n));
        let (mut sources, mut sequences, mut classes) =
            (Vec::with_capacity(n), Vec::with_capacity(n), Vec::with_capacity(n));
        for ((row, partner), (number, at)) in pairs.iter().zip(&other.rows) {
            let (row, there, at) = (*row as usize, &others[*number], *at);
            // Where a stream is joined with itself, (a, b) and (b, a) are two results of the same two inputs.
            let (left_id, right_id) =
                if port == 0 { (here.id(row), partner.id) } else { (partner.id, here.id(row)) };
            let swapped = u32::from(left_id > right_id);
            ids.extend(derive_id(self.setup.operator, &[left_id, right_id], swapped));
            times.push(here.times.value(row).max(partner.time));
            intended.push(here.intended.value(row).max(there.intended.value(at)));
            let (left, at) = if port == 0 { (&here, row) } else { (there, at) };
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

/// Writes a snapshot of these rows.
fn write(setup: &Setup, watermark: EventTime, sides: [Rows; 2]) -> Result<Vec<u8>, OperatorError> {
    let [left, right] = sides;
    let sections = [left.into_batches(&setup.inputs[0])?, right.into_batches(&setup.inputs[1])?];
    snapshot::write(TAG, &watermark, &sections)
}

impl Stateful for Running {
    fn apply(&mut self, port: usize, batch: &RecordBatch, output: &mut Output) -> Result<(), OperatorError> {
        let setup = Arc::clone(&self.setup);
        let metadata = Metadata::of(batch);
        let keys = Keys::of(batch, &setup.keys[port]);
        let (mut late, mut keyless, mut live) = (0, 0, 0);
        let mut pairs: Vec<(u32, Row)> = Vec::new();
        let (mut key, mut found) = (Vec::new(), Vec::new());
        let sizes = Sizes::of(batch);
        let mut bytes = 0;
        for row in 0..batch.num_rows() {
            let time = metadata.times.value(row);
            if time < self.watermark {
                late += 1;
                continue;
            }
            key.clear();
            if !keys.encode(row, &mut key) {
                keyless += 1;
                continue;
            }
            let hash = xxh3_64_with_seed(&key, self.seed);
            let (from, to) = (time.saturating_sub(setup.within), time.saturating_add(setup.within));
            if let Some(partners) = self.sides[1 - port].rows_mut(hash, &key) {
                let first = partners.partition_point(|partner| partner.time < from);
                for partner in partners.range_mut(first..).take_while(|partner| partner.time <= to) {
                    partner.matched = true;
                    found.push(*partner);
                }
            }
            let stored = Row {
                time,
                id: metadata.id(row),
                batch: self.sides[port].next(),
                row: row as u32,
                bytes: sizes.of_row(row),
                matched: !found.is_empty(),
            };
            self.sides[port].insert(hash, &key, stored);
            live += 1;
            for partner in found.drain(..) {
                pairs.push((row as u32, partner));
                bytes += stored.bytes as usize + partner.bytes as usize;
                if pairs.len() >= CHUNK_ROWS || bytes >= CHUNK_BYTES {
                    output.push(self.emit(port, batch, &pairs)?);
                    pairs.clear();
                    bytes = 0;
                }
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

    /// A pair depends on its two rows alone, and lateness on the watermark alone, which is constant within an epoch.
    fn takes_rows_early(&self) -> bool {
        true
    }

    fn snapshot(&self) -> Result<Vec<u8>, OperatorError> {
        write(&self.setup, self.watermark, self.sides.each_ref().map(Side::rows))
    }

    fn capture(&mut self) -> Result<WriteSnapshot, OperatorError> {
        let (setup, watermark) = (Arc::clone(&self.setup), self.watermark);
        let sides = self.sides.each_ref().map(Side::rows);
        Ok(Box::new(move || write(&setup, watermark, sides)))
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), OperatorError> {
        let schemas = self.setup.inputs.each_ref().map(flagged);
        let (watermark, sections) = snapshot::read(TAG, &schemas, bytes)?;
        let mut restored = Self { seed: self.seed, ..Self::new(Arc::clone(&self.setup)) };
        restored.watermark = watermark;
        for (port, batches) in sections.iter().enumerate() {
            batches.iter().try_for_each(|batch| restored.add(port, batch))?;
        }
        *self = restored;
        Ok(())
    }

    fn is_divisible(&self) -> bool {
        true
    }

    fn take_in(&mut self, bytes: &[u8], takes: &TakesKeys<'_>) -> Result<(), OperatorError> {
        let schemas = self.setup.inputs.each_ref().map(flagged);
        let (watermark, sections) = snapshot::read(TAG, &schemas, bytes)?;
        let is_empty = self.sides.iter().all(|side| side.bytes() == 0);
        if self.watermark == EventTime::MIN && is_empty {
            self.watermark = watermark;
        } else if self.watermark != watermark {
            return Err(OperatorError::new(
                "join: the stages with the state are at different epochs, so other stages cannot take it \
                 over now: run the old plan briefly, then try again",
            ));
        }
        for (port, batches) in sections.into_iter().enumerate() {
            for batch in batches {
                let taken = takes(&StateKeys { classes: Metadata::of(&batch).classes, first: None });
                self.add(port, &filter_record_batch(&batch, &taken).map_err(broken)?)?;
            }
        }
        Ok(())
    }

    fn state_bytes(&self) -> usize {
        self.sides.iter().map(Side::bytes).sum()
    }
}

impl Running {
    /// Adds rows of a snapshot to a side.
    fn add(&mut self, port: usize, batch: &RecordBatch) -> Result<(), OperatorError> {
        let side = &mut self.sides[port];
        let mut columns = batch.columns().to_vec();
        let matched = columns.pop();
        let matched = matched.as_ref().and_then(|a| a.as_any().downcast_ref::<BooleanArray>());
        let Some(matched) = matched else {
            return Err(OperatorError::new("join: the snapshot has no partner flags"));
        };
        let batch = RecordBatch::try_new(Arc::clone(&self.setup.inputs[port]), columns).map_err(broken)?;
        let (metadata, keys) = (Metadata::of(&batch), Keys::of(&batch, &self.setup.keys[port]));
        let sizes = Sizes::of(&batch);
        let mut key = Vec::new();
        for row in 0..batch.num_rows() {
            key.clear();
            // Rows in state have keys.
            keys.encode(row, &mut key);
            let stored = Row {
                time: metadata.times.value(row),
                id: metadata.id(row),
                batch: side.next(),
                row: row as u32,
                bytes: sizes.of_row(row),
                matched: matched.value(row),
            };
            side.insert(xxh3_64_with_seed(&key, self.seed), &key, stored);
        }
        let live = batch.num_rows();
        side.store(batch, live);
        Ok(())
    }
}
