//! State of running windows: the aggregates of every group in every pane that an open window still needs (see
//! `panes.rs`). Panes are merged when a window closes and dropped with the last window that contains them.
use super::keys::{Key, Keys};
use super::panes::Windows;
use super::snapshot;
use super::window_pane::{Group, Groups, Pane};
use super::window_rows::{CHUNK_ROWS, Closed, EPOCH_ROWS, Origin, Setup, broken, group_bytes};
use crate::api::{OperatorError, Output, StateKeys, Stateful, TakesKeys, WriteSnapshot};
use crate::record::{EventTime, Metadata};
use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::UInt32Type;
use arrow_select::filter::filter_record_batch;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Format of the snapshots.
const TAG: [u8; 8] = *b"WINDOW02";

/// Running windows.
pub(super) struct Running {
    setup: Arc<Setup>,
    windows: Windows,
    /// Panes by start.
    panes: BTreeMap<EventTime, Pane>,
    watermark: EventTime,
    /// Start of the first closed window that did not fit into the epochs so far.
    waiting: Option<EventTime>,
    bytes: usize,
}

impl Running {
    pub(super) fn new(setup: Arc<Setup>, windows: Windows) -> Self {
        Self { setup, windows, panes: BTreeMap::new(), watermark: EventTime::MIN, waiting: None, bytes: 0 }
    }

    /// Emits the results of the closed windows that start at `next` or later; after `most` rows the others wait.
    fn give(&mut self, mut next: EventTime, most: usize, output: &mut Output) -> Result<(), OperatorError> {
        let windows = self.windows;
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
            let times = start..start + windows.size;
            rows.extend(groups.into_iter().map(|(key, group)| Closed { times: times.clone(), key, group }));
            if rows.len() >= CHUNK_ROWS {
                for chunk in rows.chunks(CHUNK_ROWS) {
                    self.setup.emit(chunk, output)?;
                }
                rows.clear();
            }
        }
        self.setup.emit(&rows, output)
    }

    /// Returns the groups of a closing window by key; all earlier windows are closed. Removes panes that no later
    /// window needs.
    fn close(&mut self, start: EventTime) -> Vec<(Key, Group)> {
        let Windows { size, slide, .. } = self.windows;
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
}

/// Writes a snapshot of these panes. `place`: watermark, and the first window that waits.
fn write<'a>(
    setup: &Setup,
    place: (EventTime, Option<EventTime>),
    panes: impl Iterator<Item = (EventTime, &'a Groups)>,
) -> Result<Vec<u8>, OperatorError> {
    let all: Vec<(EventTime, &Key, &Group)> =
        panes.flat_map(|(s, groups)| groups.sorted().into_iter().map(move |(k, g)| (s, k, g))).collect();
    snapshot::write(TAG, &place, &[(setup.snapshot_schema(), setup.write(&all)?)])
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
                let Some(pane) = self.windows.pane(time) else {
                    let detail = format!("the event time {time} us is out of range");
                    output.dead_letters.push(super::dead_row(batch, row, "bad_time", detail));
                    continue;
                };
                // The row counts as long as one of its windows is open.
                let is_closed = self.windows.is_closed(self.windows.last(pane.start), self.watermark);
                current = (pane, is_closed);
            }
            let (pane, is_closed) = (current.0.start, current.1);
            if is_closed {
                late += 1;
                continue;
            }
            // A closed window must not get rows that arrive after its close, so its results are emitted now.
            if let Some(waiting) = self.waiting
                && self.windows.first(pane) < self.windows.first_open(self.watermark)
            {
                self.give(waiting, usize::MAX, output)?;
            }
            let first = (time, metadata.id(row));
            let origin = Origin::of(&metadata, row);
            let make = || (keys.get(row), setup.group(first, origin));
            let groups = self.panes.entry(pane).or_default().groups_mut();
            let (key, group, is_new) = groups.find(keys.hash(row), |key| keys.is_at(row, key), make);
            if is_new {
                self.bytes += group_bytes(key, group);
            }
            setup.add(group, first, origin, (batch, row));
        }
        setup.late.count(late, output);
        Ok(())
    }

    fn advance(&mut self, watermark: EventTime, output: &mut Output) -> Result<(), OperatorError> {
        // Windows closed earlier gave their results then; rows that came later are in other windows only.
        let next = self.waiting.unwrap_or_else(|| self.windows.first_open(self.watermark));
        self.watermark = self.watermark.max(watermark);
        self.give(next, EPOCH_ROWS, output)
    }

    fn has_more(&self) -> bool {
        self.waiting.is_some()
    }

    fn output_watermark(&self, watermark: EventTime) -> EventTime {
        let windows = self.windows;
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
        let mut restored = Self::new(Arc::clone(&self.setup), self.windows);
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
        let setup = Arc::clone(&self.setup);
        setup.read(batch, |start, hash, key, group| {
            self.bytes += group_bytes(&key, &group);
            let groups = self.panes.entry(start).or_default().groups_mut();
            groups.find(hash, |it| *it == key, || (Arc::clone(&key), group));
        })
    }
}
