//! A running `distinct`: per window that may still change, how many rows have each value, and the count that was
//! sent.
use super::distinct::MOST_WINDOWS;
use super::keys::{Key, KeyPart, Keys};
use super::snapshot;
use crate::api::{DeadLetter, OperatorError, Output, Stateful, WriteSnapshot};
use crate::columns::ScalarBuilder;
use crate::record::{EventTime, METADATA_COLUMNS, Metadata, RecordId, int64};
use arrow_array::{
    Array, ArrayRef, FixedSizeBinaryArray, Int8Array, Int64Array, RecordBatch, UInt32Array, UInt64Array,
};
use arrow_schema::SchemaRef;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tidemill_spec::types::ColumnType;
use xxhash_rust::xxh3::Xxh3;

/// Format of the snapshots.
const TAG: [u8; 8] = *b"DIST0001";
/// Rows after which an epoch gets no more counts; the rest waits for the next epochs. Few in the tests of this crate.
const EPOCH_ROWS: usize = if cfg!(test) { 5 } else { 8192 };

/// Settings that all copies of one `distinct` share.
pub(super) struct Setup {
    pub(super) operator: u64,
    /// Milliseconds, as all below.
    pub(super) size: i64,
    pub(super) slide: i64,
    pub(super) keep: i64,
    /// Payload positions.
    pub(super) of: usize,
    pub(super) times: [usize; 2],
    pub(super) group_by: Vec<usize>,
    pub(super) group_types: Vec<ColumnType>,
    pub(super) output: SchemaRef,
}

impl Setup {
    /// Identity of the `number`th row sent for a window and group.
    fn id(&self, start: i64, key: &Key, number: u32) -> RecordId {
        let mut bytes = b"distinct".to_vec();
        bytes.extend(self.operator.to_le_bytes());
        bytes.extend(start.to_le_bytes());
        bytes.extend(number.to_le_bytes());
        key.iter().for_each(|part| part.encode(&mut bytes));
        let mut hasher = Xxh3::new();
        hasher.update(&bytes);
        hasher.digest128().to_le_bytes()
    }

    /// Returns the starts of the windows that a row overlaps; an error says why there are none.
    fn windows(&self, from: i64, to: i64) -> Result<(i64, i64), String> {
        if to < from {
            return Err(format!("the row ends at {to} ms, before it starts at {from} ms"));
        }
        let out_of_range = || format!("{from} to {to} ms is out of range");
        if to.checked_sub(from).ok_or_else(out_of_range)? > self.slide.saturating_mul(MOST_WINDOWS) {
            return Err(format!(
                "{from} to {to} ms is more than {MOST_WINDOWS} times the slide of {} ms",
                self.slide
            ));
        }
        // The first window that ends after `from`.
        let first = from.checked_sub(self.size).ok_or_else(out_of_range)?.div_euclid(self.slide) + 1;
        let last = to.div_euclid(self.slide);
        let ends =
            last.checked_mul(self.slide).and_then(|start| start.checked_add(self.size)?.checked_mul(1000));
        let begins = first.checked_mul(self.slide).and_then(|start| start.checked_mul(1000));
        let (Some(_), Some(_)) = (ends, begins) else { return Err(out_of_range()) };
        Ok((first * self.slide, last * self.slide))
    }
}

/// One group of one window.
#[derive(Debug, Clone, PartialEq)]
struct Group {
    /// Time and id of the first row by (time, id): counts take their metadata from it.
    first: (EventTime, RecordId),
    source: u32,
    sequence: u64,
    class: u32,
    /// Latest intended time of all rows.
    intended: i64,
    /// Rows by value. A count is negative while a retraction has arrived before its row.
    values: BTreeMap<KeyPart, i64>,
    /// The count that was last sent.
    told: i64,
    /// Number of rows sent.
    sent: u32,
}

impl Group {
    fn count(&self) -> i64 {
        self.values.values().filter(|rows| **rows > 0).count() as i64
    }
}

fn value_bytes(value: &KeyPart) -> usize {
    size_of::<KeyPart>() + size_of::<i64>() + value.heap_bytes()
}

fn group_bytes(key: &Key) -> usize {
    size_of::<Group>() + key.iter().map(|part| size_of::<KeyPart>() + part.heap_bytes()).sum::<usize>()
}

/// A part of a key in a snapshot.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Part {
    Bool(bool),
    Int(i64),
    Text(String),
    Null(()),
}

impl From<&KeyPart> for Part {
    fn from(part: &KeyPart) -> Self {
        match part {
            KeyPart::Null => Self::Null(()),
            KeyPart::Bool(value) => Self::Bool(*value),
            KeyPart::Int(value) => Self::Int(*value),
            KeyPart::Text(text) => Self::Text(text.to_string()),
        }
    }
}

impl From<Part> for KeyPart {
    fn from(part: Part) -> Self {
        match part {
            Part::Null(()) => Self::Null,
            Part::Bool(value) => Self::Bool(value),
            Part::Int(value) => Self::Int(value),
            Part::Text(text) => Self::Text(text.into()),
        }
    }
}

/// A group in a snapshot.
#[derive(Serialize, Deserialize)]
struct Saved {
    start: i64,
    key: Vec<Part>,
    first: (EventTime, RecordId),
    source: u32,
    sequence: u64,
    class: u32,
    intended: i64,
    values: Vec<(Part, i64)>,
    told: i64,
    sent: u32,
}

/// A running `distinct`.
pub(super) struct Running {
    setup: Arc<Setup>,
    watermark: EventTime,
    /// The watermark up to which all counts were sent.
    told: EventTime,
    /// Groups by start of the window.
    windows: BTreeMap<i64, BTreeMap<Key, Group>>,
    /// Groups whose count may differ from the one that was sent.
    changed: BTreeSet<(i64, Key)>,
    bytes: usize,
}

/// A row to send.
struct CountRow {
    start: i64,
    key: Key,
    group: Group,
    id: RecordId,
    change: i8,
    count: i64,
}

fn broken(error: arrow_schema::ArrowError) -> OperatorError {
    OperatorError::new(format!("distinct: {error}"))
}

impl Running {
    pub(super) fn new(setup: Arc<Setup>) -> Self {
        let (windows, changed) = (BTreeMap::new(), BTreeSet::new());
        Self { setup, watermark: EventTime::MIN, told: EventTime::MIN, windows, changed, bytes: 0 }
    }

    /// Whether the window ended at least `ago` milliseconds before the watermark.
    fn is_over(&self, start: i64, ago: i64) -> bool {
        self.watermark == EventTime::MAX
            || start.saturating_add(self.setup.size).saturating_add(ago) <= self.watermark.div_euclid(1000)
    }

    /// Counts of ended windows that differ from those that were sent.
    fn corrections(&mut self) -> Vec<CountRow> {
        let mut rows = Vec::new();
        while rows.len() < EPOCH_ROWS {
            let Some((start, _)) = self.changed.first() else { break };
            if !self.is_over(*start, 0) {
                break;
            }
            let Some((start, key)) = self.changed.pop_first() else { break };
            let group = self.windows.get_mut(&start).and_then(|groups| groups.get_mut(&key));
            let Some(group) = group else { continue };
            let (before, count) = (group.told, group.count());
            if before == count {
                continue;
            }
            group.told = count;
            for (change, count) in [(-1, before), (1, count)].into_iter().filter(|(_, count)| *count > 0) {
                let id = self.setup.id(start, &key, group.sent);
                group.sent += 1;
                let group = Group { values: BTreeMap::new(), ..group.clone() };
                rows.push(CountRow { start, key: Arc::clone(&key), group, id, change, count });
            }
        }
        rows
    }

    fn send(&self, rows: &[CountRow], output: &mut Output) -> Result<(), OperatorError> {
        if rows.is_empty() {
            return Ok(());
        }
        let setup = &self.setup;
        let ids: Vec<u8> = rows.iter().flat_map(|told| told.id).collect();
        let each = |f: &dyn Fn(&CountRow) -> i64| -> ArrayRef {
            Arc::new(Int64Array::from_iter_values(rows.iter().map(f)))
        };
        let groups = || rows.iter().map(|told| &told.group);
        let mut columns: Vec<ArrayRef> = vec![
            Arc::new(FixedSizeBinaryArray::new(16, ids.into(), None)),
            Arc::new(UInt32Array::from_iter_values(groups().map(|group| group.source))),
            Arc::new(UInt64Array::from_iter_values(groups().map(|group| group.sequence))),
            each(&|told| ((told.start + setup.size) * 1000 - 1).max(self.told)),
            each(&|told| told.group.intended),
            Arc::new(UInt32Array::from_iter_values(groups().map(|group| group.class))),
            Arc::new(Int8Array::from_iter_values(rows.iter().map(|told| told.change))),
            each(&|told| told.start),
            each(&|told| told.start + setup.size),
        ];
        for (index, group_type) in setup.group_types.iter().enumerate() {
            let mut builder = ScalarBuilder::new(group_type, rows.len());
            rows.iter().for_each(|told| told.key[index].append_to(&mut builder));
            columns.push(builder.finish());
        }
        columns.push(each(&|told| told.count));
        output.push(RecordBatch::try_new(Arc::clone(&setup.output), columns).map_err(broken)?);
        Ok(())
    }

    /// Removes windows that no row can correct any more.
    fn forget(&mut self) {
        while let Some((start, _)) = self.windows.first_key_value() {
            if !self.is_over(*start, self.setup.keep) {
                break;
            }
            let Some((_, groups)) = self.windows.pop_first() else { break };
            for (key, group) in groups {
                self.bytes -= group_bytes(&key) + group.values.keys().map(value_bytes).sum::<usize>();
            }
        }
    }

    fn add(&mut self, start: i64, key: &Key, value: &KeyPart, change: i64, row: Group) {
        let groups = self.windows.entry(start).or_default();
        let group = groups.entry(Arc::clone(key)).or_insert_with(|| {
            self.bytes += group_bytes(key);
            row.clone()
        });
        if row.first < group.first {
            (group.first, group.source, group.sequence, group.class) =
                (row.first, row.source, row.sequence, row.class);
        }
        group.intended = group.intended.max(row.intended);
        let rows = group.values.entry(value.clone()).or_insert_with(|| {
            self.bytes += value_bytes(value);
            0
        });
        *rows += change;
        if *rows == 0 {
            group.values.remove(value);
            self.bytes -= value_bytes(value);
        }
        self.changed.insert((start, Arc::clone(key)));
    }
}

impl Running {
    /// Returns all groups in their snapshot form.
    fn saved(&self) -> Vec<Saved> {
        let parts = |key: &[KeyPart]| key.iter().map(Part::from).collect();
        let groups = self.windows.iter().flat_map(|(start, groups)| {
            groups.iter().map(move |(key, group)| Saved {
                start: *start,
                key: parts(key),
                first: group.first,
                source: group.source,
                sequence: group.sequence,
                class: group.class,
                intended: group.intended,
                values: group.values.iter().map(|(value, rows)| (value.into(), *rows)).collect(),
                told: group.told,
                sent: group.sent,
            })
        });
        groups.collect()
    }
}

impl Stateful for Running {
    fn apply(&mut self, _port: usize, batch: &RecordBatch, output: &mut Output) -> Result<(), OperatorError> {
        let setup = Arc::clone(&self.setup);
        let metadata = Metadata::of(batch);
        let keys = Keys::of(batch, &setup.group_by);
        let values = Keys::of(batch, &[setup.of]);
        let times = setup.times.map(|index| int64(batch.column(METADATA_COLUMNS + index)));
        let [Some(starts), Some(ends)] = times else {
            return Err(OperatorError::new("distinct: the columns of the times are not numbers"));
        };
        let mut late = 0;
        for row in 0..batch.num_rows() {
            if starts.is_null(row) || ends.is_null(row) {
                let detail = "the column of a time is empty".to_owned();
                output.dead_letters.push(DeadLetter::of_row(batch, row, "missing_value", detail));
                continue;
            }
            let (first, last) = match setup.windows(starts.value(row), ends.value(row)) {
                Ok(windows) => windows,
                Err(detail) => {
                    output.dead_letters.push(DeadLetter::of_row(batch, row, "bad_time", detail));
                    continue;
                }
            };
            let value = values.get(row);
            let Some(value) = value.first().filter(|value| **value != KeyPart::Null) else { continue };
            if self.is_over(last, setup.keep) {
                late += 1;
                continue;
            }
            let key = keys.get(row);
            let group = Group {
                first: (metadata.times.value(row), metadata.id(row)),
                source: metadata.sources.value(row),
                sequence: metadata.sequences.value(row),
                class: metadata.classes.value(row),
                intended: metadata.intended.value(row),
                values: BTreeMap::new(),
                told: 0,
                sent: 0,
            };
            let change = i64::from(metadata.changes.value(row));
            let mut start = first;
            while start <= last {
                if !self.is_over(start, setup.keep) {
                    self.add(start, &key, value, change, group.clone());
                }
                start += setup.slide;
            }
        }
        output.drop_rows("late", late);
        Ok(())
    }

    fn advance(&mut self, watermark: EventTime, output: &mut Output) -> Result<(), OperatorError> {
        self.watermark = self.watermark.max(watermark);
        let rows = self.corrections();
        self.send(&rows, output)?;
        if !self.has_more() {
            // Later rows do not precede the current output watermark.
            self.told = self.watermark;
            self.forget();
        }
        Ok(())
    }

    fn has_more(&self) -> bool {
        self.changed.first().is_some_and(|(start, _)| self.is_over(*start, 0))
    }

    fn output_watermark(&self, watermark: EventTime) -> EventTime {
        // Some windows may have to wait for the next epochs.
        if self.has_more() { self.told } else { watermark }
    }

    fn snapshot(&self) -> Result<Vec<u8>, OperatorError> {
        snapshot::write(TAG, &(self.watermark, self.told, self.saved()), &[])
    }

    fn capture(&mut self) -> Result<WriteSnapshot, OperatorError> {
        let header = (self.watermark, self.told, self.saved());
        Ok(Box::new(move || snapshot::write(TAG, &header, &[])))
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), OperatorError> {
        let ((watermark, told, groups), _): ((EventTime, EventTime, Vec<Saved>), _) =
            snapshot::read(TAG, &[], bytes)?;
        let mut restored = Self::new(Arc::clone(&self.setup));
        (restored.watermark, restored.told) = (watermark, told);
        for saved in groups {
            let key: Key = saved.key.into_iter().map(KeyPart::from).collect();
            if key.len() != self.setup.group_by.len() {
                return Err(OperatorError::new(
                    "distinct: the snapshot has other groups: start the run from the beginning",
                ));
            }
            let group = Group {
                first: saved.first,
                source: saved.source,
                sequence: saved.sequence,
                class: saved.class,
                intended: saved.intended,
                values: saved.values.into_iter().map(|(value, rows)| (value.into(), rows)).collect(),
                told: saved.told,
                sent: saved.sent,
            };
            restored.bytes += group_bytes(&key) + group.values.keys().map(value_bytes).sum::<usize>();
            if group.count() != group.told {
                restored.changed.insert((saved.start, Arc::clone(&key)));
            }
            restored.windows.entry(saved.start).or_default().insert(key, group);
        }
        *self = restored;
        Ok(())
    }

    fn state_bytes(&self) -> usize {
        self.bytes
    }
}
