//! A running `associate`: the tracks that may still change, and their last results.
use super::object_ages::ObjectAges;
use super::track_path::{Step, steps};
use crate::api::{DeadLetter, OperatorError, Output, Stateful};
use crate::record::{EventTime, METADATA_COLUMNS, Metadata, batch_bytes, derive_id, int64, tensor_f32, text};
use crate::relational::snapshot;
use arrow_array::{Array, ArrayRef, FixedSizeBinaryArray, Int8Array, Int64Array, RecordBatch, StringArray};
use arrow_schema::SchemaRef;
use arrow_select::concat::concat_batches;
use arrow_select::take::take_record_batch;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tidemill_incremental::chains::{self, Item, Membership, Place, Rules};
use tidemill_incremental::view::{Change, View, ViewError};

/// Format of the snapshots.
const TAG: [u8; 8] = *b"ASSO0001";

/// Settings that all copies of one `associate` share.
pub(super) struct Setup {
    pub(super) operator: u64,
    /// Milliseconds.
    pub(super) keep: i64,
    /// In milliseconds and hundredths of a pixel.
    pub(super) rules: Rules,
    /// Track, camera, start, end, embedding; payload positions.
    pub(super) columns: [usize; 5],
    /// Column of boxes, if their position matters.
    pub(super) boxes: Option<usize>,
    pub(super) input: SchemaRef,
    pub(super) output: SchemaRef,
}

/// A track that may still change.
#[derive(Debug, Clone)]
struct Kept {
    item: Item,
    /// Its row, alone in a batch of its own.
    row: RecordBatch,
    /// Number of rows sent for this name so far; each has its own identity.
    sent: u32,
    /// It arrived too late to be linked; its item resembles no other.
    alone: bool,
}

/// Header of a snapshot: the watermark, and `sent` and `alone` of each row. Snapshots of earlier versions lack `alone`.
#[derive(Debug, Serialize, Deserialize)]
struct Header(EventTime, Vec<u32>, #[serde(default)] Vec<bool>);

/// A running `associate`.
pub(super) struct Running {
    setup: Arc<Setup>,
    watermark: EventTime,
    tracks: BTreeMap<Arc<str>, Kept>,
    /// The last result for each track.
    objects: ObjectAges,
    /// `None` until the first track arrives.
    view: Option<View<Item, Membership>>,
    bytes: usize,
}

/// A row to send: its track, whether it retracts, its object.
struct ObjectRow {
    row: RecordBatch,
    change: i8,
    object: Arc<str>,
    number: u32,
    /// Intended time of the track that caused it; `None` for that of the row itself.
    cause: Option<i64>,
}

/// Rounds to whole numbers, which have a total order.
pub(super) fn hundredths(pixels: f64) -> i64 {
    (pixels * 100.0).round() as i64
}

/// Returns the centre of a box.
fn middle((_, [left, top, width, height]): Step) -> Place {
    (hundredths(left + width / 2.0), hundredths(top + height / 2.0))
}

/// Returns the centres of the first and the last box. The boxes in between are not read.
fn ends(path: &str) -> (Option<Place>, Option<Place>) {
    let last = path.rsplit(';').find_map(|text| steps(text).next());
    (steps(path).next().map(middle), last.map(middle))
}

/// Returns the item with features that resemble nothing, so that it is linked with nothing.
fn unlike(item: &Item) -> Item {
    Item::new(item.key.clone(), item.group.clone(), item.start, item.end, &[])
}

fn broken(error: arrow_schema::ArrowError) -> OperatorError {
    OperatorError::new(format!("associate: {error}"))
}

fn ended(error: ViewError) -> OperatorError {
    OperatorError::new(format!("associate: {error}"))
}

impl Running {
    pub(super) fn new(setup: Arc<Setup>) -> Self {
        let (tracks, objects) = (BTreeMap::new(), ObjectAges::default());
        Self { setup, watermark: EventTime::MIN, tracks, objects, view: None, bytes: 0 }
    }

    /// The item of a row.
    fn item(&self, batch: &RecordBatch, row: usize) -> Result<Item, (&'static str, String)> {
        let [track, camera, start, end, embedding] = self.setup.columns;
        let missing = |index: usize| {
            let name = batch.schema_ref().field(METADATA_COLUMNS + index).name().clone();
            ("missing_value", format!("the column `{name}` is empty"))
        };
        let column = |index: usize| {
            let array = batch.column(METADATA_COLUMNS + index);
            array.is_valid(row).then_some(array).ok_or_else(|| missing(index))
        };
        let name =
            |index| column(index).and_then(|array| Ok(text(array).ok_or_else(|| missing(index))?.value(row)));
        let time = |index| {
            column(index).and_then(|array| Ok(int64(array).ok_or_else(|| missing(index))?.value(row)))
        };
        let (start, end) = (time(start)?, time(end)?);
        if end < start {
            return Err(("bad_time", format!("the track ends at {end} ms, before it starts at {start} ms")));
        }
        // A track without a picture has no successor, but it is an object.
        let looks = batch.column(METADATA_COLUMNS + embedding);
        let looks = match tensor_f32(looks).filter(|_| looks.is_valid(row)) {
            Some((values, length)) => &values.values()[row * length..(row + 1) * length],
            None => &[],
        };
        let item = Item::new(name(track)?, name(camera)?, start, end, looks);
        let Some(boxes) = self.setup.boxes else { return Ok(item) };
        // A track without boxes matches only if no area is required.
        let boxes = batch.column(METADATA_COLUMNS + boxes);
        let path = text(boxes).filter(|_| boxes.is_valid(row)).map_or("", |paths| paths.value(row));
        let (first, last) = ends(path);
        Ok(item.with_places(first, last))
    }

    fn update(&mut self, changes: Vec<Change<Item>>) -> Result<Vec<Change<Membership>>, OperatorError> {
        if changes.is_empty() {
            return Ok(Vec::new());
        }
        let view = match &mut self.view {
            Some(view) => view,
            None => self.view.insert(chains::view(self.setup.rules.clone()).map_err(ended)?),
        };
        view.update(changes).map_err(ended)
    }

    /// Start in milliseconds before which a track is not linked.
    fn first_taken(&self) -> i64 {
        self.watermark.div_euclid(1000).saturating_sub(self.setup.keep)
    }

    fn insert(&mut self, item: Item, row: RecordBatch, alone: bool) -> Option<Kept> {
        self.bytes += batch_bytes(&row) + size_of::<Kept>();
        let sent = self.tracks.get(&item.key).map_or(0, |kept| kept.sent);
        let before = self.tracks.insert(item.key.clone(), Kept { item, row, sent, alone });
        self.bytes -= before.as_ref().map_or(0, |kept| batch_bytes(&kept.row) + size_of::<Kept>());
        before
    }

    fn remove(&mut self, key: &str) -> Option<Kept> {
        let kept = self.tracks.remove(key)?;
        self.bytes -= batch_bytes(&kept.row) + size_of::<Kept>();
        Some(kept)
    }

    /// Sends rows, retractions first.
    fn tell(&self, mut told: Vec<ObjectRow>, output: &mut Output) -> Result<(), OperatorError> {
        if told.is_empty() {
            return Ok(());
        }
        told.sort_by_key(|told| told.change);
        let rows: Vec<&RecordBatch> = told.iter().map(|told| &told.row).collect();
        let rows = concat_batches(&self.setup.input, rows).map_err(broken)?;
        let metadata = Metadata::of(&rows);
        let id = |(row, told): (usize, &ObjectRow)| {
            derive_id(self.setup.operator, &[metadata.id(row)], told.number)
        };
        let ids: Vec<u8> = told.iter().enumerate().flat_map(id).collect();
        let times = metadata.times.values().iter().map(|time| (*time).max(self.watermark));
        let due = metadata.intended.values().iter().zip(&told);
        let due = due.map(|(due, told)| told.cause.map_or(*due, |cause| cause.max(*due)));
        let mut columns: Vec<ArrayRef> = vec![Arc::new(FixedSizeBinaryArray::new(16, ids.into(), None))];
        columns.extend(rows.columns()[1..METADATA_COLUMNS].iter().cloned());
        columns[crate::record::TIME] = Arc::new(Int64Array::from_iter_values(times));
        columns[crate::record::INTENDED] = Arc::new(Int64Array::from_iter_values(due));
        columns[crate::record::CHANGE] =
            Arc::new(Int8Array::from_iter_values(told.iter().map(|told| told.change)));
        columns.extend(rows.columns()[METADATA_COLUMNS..].iter().cloned());
        columns.push(Arc::new(StringArray::from_iter_values(told.iter().map(|told| &*told.object))));
        output.push(RecordBatch::try_new(Arc::clone(&self.setup.output), columns).map_err(broken)?);
        Ok(())
    }

    /// Removes objects whose tracks can no longer be linked with any acceptable track. Their results stay, and nothing
    /// changes for the others, since an object is removed as a whole (see [`chains`]). Only those objects are visited.
    fn forget(&mut self) -> Result<(), OperatorError> {
        if self.watermark == EventTime::MAX {
            (self.tracks, self.objects, self.view) = (BTreeMap::new(), ObjectAges::default(), None);
            self.bytes = 0;
            return Ok(());
        }
        let gaps = self.setup.rules.widest_gaps();
        let horizon = self.first_taken().saturating_sub(gaps.1.max(0)).saturating_add(gaps.0.min(0));
        let mut changes = Vec::new();
        while let Some(gone) = self.objects.take_before(horizon) {
            for key in &gone {
                changes.extend(self.remove(key).map(|kept| (kept.item, -1)));
            }
        }
        self.update(changes)?;
        if self.tracks.is_empty() {
            self.view = None;
        }
        Ok(())
    }
}

impl Stateful for Running {
    fn apply(&mut self, _port: usize, batch: &RecordBatch, output: &mut Output) -> Result<(), OperatorError> {
        let Metadata { changes, intended, .. } = Metadata::of(batch);
        // A correction is not late by itself: its latency counts from the track that caused it.
        let cause = intended.values().iter().max().copied();
        let (mut late, mut unlinked, mut updates) = (0, 0, Vec::new());
        // The results of the tracks in this batch before it changed them.
        let mut before: BTreeMap<Arc<str>, Option<Kept>> = BTreeMap::new();
        for row in 0..batch.num_rows() {
            let mut item = match self.item(batch, row) {
                Ok(item) => item,
                Err((reason, detail)) => {
                    output.dead_letters.push(DeadLetter::of_row(batch, row, reason, detail));
                    continue;
                }
            };
            let comes = changes.value(row) > 0;
            let alone = item.start < self.first_taken();
            if alone {
                // Its predecessor may have been removed, and so may the effects of its former link. So it is linked with
                // nothing, and replaces nothing that may be linked.
                let is_free = self.tracks.get(&item.key).map_or(comes, |kept| kept.alone);
                if item.end < self.first_taken() || !is_free {
                    late += 1;
                    continue;
                }
                item = unlike(&item);
                unlinked += u64::from(comes);
            }
            let key = item.key.clone();
            let old = if comes {
                // A copy, because a slice would keep the whole batch in memory.
                let own = take_record_batch(batch, &arrow_array::UInt32Array::from(vec![row as u32]))
                    .map_err(broken)?;
                updates.push((item.clone(), 1));
                self.insert(item, own, alone)
            } else {
                // An item that was replaced is no longer there.
                let is_there = self.tracks.get(&key).is_some_and(|kept| kept.item == item);
                if !is_there {
                    continue;
                }
                self.remove(&key)
            };
            updates.extend(old.as_ref().map(|old| (old.item.clone(), -1)));
            before.entry(key).or_insert(old);
        }
        output.drop_rows("late", late);
        output.note_rows("unlinked", unlinked);
        let mut objects: BTreeMap<Arc<str>, Option<Arc<str>>> = BTreeMap::new();
        for (Membership { key, chain }, count) in self.update(updates)? {
            let object = objects.entry(key).or_insert(None);
            if count > 0 {
                *object = Some(chain);
            }
        }
        let touched: BTreeSet<Arc<str>> = before.keys().chain(objects.keys()).cloned().collect();
        let mut told = Vec::new();
        for key in touched {
            let said = self.objects.object(&key).cloned();
            let object = objects.remove(&key).unwrap_or_else(|| said.clone());
            let (old, came) = match before.remove(&key) {
                Some(old) => (old, true),
                None => (self.tracks.get(&key).cloned(), false),
            };
            let sent = |kept: &Kept| kept.sent;
            let mut number = self.tracks.get(&key).map_or(0, sent).max(old.as_ref().map_or(0, sent));
            if let (Some(old), Some(said)) = (old, &said) {
                told.push(ObjectRow { row: old.row, change: -1, object: said.clone(), number, cause });
                number += 1;
            }
            match (self.tracks.get_mut(&key), object) {
                (Some(kept), Some(object)) => {
                    let (row, cause) = (kept.row.clone(), cause.filter(|_| !came));
                    told.push(ObjectRow { row, change: 1, object: object.clone(), number, cause });
                    kept.sent = number + 1;
                    let end = kept.item.end;
                    self.objects.set(key, object, end);
                }
                _ => self.objects.remove(&key),
            }
        }
        self.tell(told, output)
    }

    fn advance(&mut self, watermark: EventTime, _output: &mut Output) -> Result<(), OperatorError> {
        self.watermark = self.watermark.max(watermark);
        self.forget()
    }

    fn snapshot(&self) -> Result<Vec<u8>, OperatorError> {
        let rows: Vec<&RecordBatch> = self.tracks.values().map(|kept| &kept.row).collect();
        let batches = match rows.is_empty() {
            true => Vec::new(),
            false => vec![concat_batches(&self.setup.input, rows).map_err(broken)?],
        };
        let sent: Vec<u32> = self.tracks.values().map(|kept| kept.sent).collect();
        let alone: Vec<bool> = self.tracks.values().map(|kept| kept.alone).collect();
        let header = Header(self.watermark, sent, alone);
        snapshot::write(TAG, &header, &[(Arc::clone(&self.setup.input), batches)])
    }

    /// The rows suffice: the results follow from them.
    fn restore(&mut self, bytes: &[u8]) -> Result<(), OperatorError> {
        let damaged =
            || OperatorError::new("associate: the snapshot is damaged: start the run from the beginning");
        let (Header(watermark, sent, alone), sections) =
            snapshot::read(TAG, &[Arc::clone(&self.setup.input)], bytes)?;
        let mut restored = Self::new(Arc::clone(&self.setup));
        restored.watermark = watermark;
        let (mut numbers, mut alone) = (sent.into_iter(), alone.into_iter());
        for batch in sections.iter().flatten() {
            for row in 0..batch.num_rows() {
                let mut item = restored.item(batch, row).map_err(|_| damaged())?;
                let alone = alone.next().unwrap_or(false);
                if alone {
                    item = unlike(&item);
                }
                let own = take_record_batch(batch, &arrow_array::UInt32Array::from(vec![row as u32]))
                    .map_err(broken)?;
                let key = item.key.clone();
                restored.insert(item, own, alone);
                if let Some(kept) = restored.tracks.get_mut(&key) {
                    kept.sent = numbers.next().ok_or_else(damaged)?;
                }
            }
        }
        let items = restored.tracks.values().map(|kept| (kept.item.clone(), 1)).collect();
        for (Membership { key, chain }, _) in restored.update(items)? {
            let end = restored.tracks.get(&key).ok_or_else(damaged)?.item.end;
            restored.objects.set(key, chain, end);
        }
        *self = restored;
        Ok(())
    }

    fn state_bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
#[path = "associate_tests.rs"]
mod tests;
