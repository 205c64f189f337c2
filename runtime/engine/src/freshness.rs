//! Records that wait for a slower receiver, and the policy for dropping them.
use crate::clock::Nanoseconds;
use crate::frame::Epoch;
use arrow_array::{BooleanArray, RecordBatch};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use tidemill_operators::record::{Metadata, batch_bytes};
use tidemill_spec::plan::Freshness;

/// One waiting batch.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) epoch: Epoch,
    pub(crate) batch: RecordBatch,
    pub(crate) bytes: usize,
    pub(crate) arrived: Nanoseconds,
    /// Arrival of the batch, or of the first one that it replaced: a stream of replacements must not delay the receiver for
    /// ever.
    pub(crate) since: Nanoseconds,
}

/// A queue with a freshness policy.
#[derive(Debug)]
pub(crate) struct FreshnessQueue {
    policy: Freshness,
    limit: usize,
    /// Live sources with a key, of which `latest` keeps a record for each key.
    keyed: Arc<BTreeSet<u32>>,
    items: VecDeque<Waiting>,
    bytes: usize,
}

impl FreshnessQueue {
    /// `limit`: bytes beyond which the oldest are dropped.
    pub(crate) fn new(policy: Freshness, limit: usize) -> Self {
        Self { policy, limit, keyed: Arc::default(), items: VecDeque::new(), bytes: 0 }
    }

    /// Distinguishes the records of these sources by their keys: a newer frame of one camera does not replace that of another.
    pub(crate) fn with_keys(self, keyed: &Arc<BTreeSet<u32>>) -> Self {
        Self { keyed: Arc::clone(keyed), ..self }
    }

    /// Adds a batch. `congested`: the receiver is busy, so that waiting items are not sent next. Returns how many records
    /// were dropped for it.
    pub(crate) fn push(
        &mut self,
        epoch: Epoch,
        batch: RecordBatch,
        now: Nanoseconds,
        congested: bool,
    ) -> u64 {
        let mut dropped = 0;
        let mut batch = batch;
        let mut since = now;
        if self.policy == Freshness::Latest && (congested || !self.items.is_empty()) {
            let (removed, waited) = self.remove_superseded(&batch);
            since = waited.map_or(since, |waited| since.min(waited));
            let (newest, older) = newest_of_each(&self.keyed, batch);
            batch = newest;
            dropped += removed + older;
        }
        let bytes = batch_bytes(&batch);
        self.bytes += bytes;
        self.items.push_back(Waiting { epoch, batch, bytes, arrived: now, since });
        // Also under `latest`: a source may have any number of keys.
        if self.policy != Freshness::Block {
            while self.bytes > self.limit && self.items.len() > 1 {
                if let Some(oldest) = self.pop() {
                    dropped += oldest.batch.num_rows() as u64;
                    if let Some(next) = self.items.front_mut() {
                        next.since = next.since.min(oldest.since);
                    }
                }
            }
        }
        dropped
    }

    /// Removes the rows whose streams are in the batch too. Returns how many, and since when the oldest of them waited.
    fn remove_superseded(&mut self, batch: &RecordBatch) -> (u64, Option<Nanoseconds>) {
        let newer: BTreeSet<Stream> = streams(&self.keyed, batch).collect();
        let (mut removed, mut since) = (0, None::<Nanoseconds>);
        for mut item in std::mem::take(&mut self.items) {
            let kept: BooleanArray =
                streams(&self.keyed, &item.batch).map(|stream| Some(!newer.contains(&stream))).collect();
            let rows = kept.true_count();
            if rows < item.batch.num_rows() {
                removed += (item.batch.num_rows() - rows) as u64;
                since = Some(since.map_or(item.since, |since| since.min(item.since)));
                self.bytes -= item.bytes;
                item.batch = only(&item.batch, &kept);
                item.bytes = batch_bytes(&item.batch);
                self.bytes += item.bytes;
            }
            if rows > 0 {
                self.items.push_back(item);
            } else {
                self.bytes -= item.bytes;
            }
        }
        (removed, since)
    }

    /// Returns whether nothing is ever dropped.
    pub(crate) fn keeps_all(&self) -> bool {
        self.policy == Freshness::Block
    }

    /// Since when an item waits, including items that it replaced; `None` if the queue is empty.
    pub(crate) fn waits_since(&self) -> Option<Nanoseconds> {
        match self.policy {
            // In the order of arrival, also if the first ones were dropped.
            Freshness::Block | Freshness::DropOldest => self.items.front().map(|item| item.since),
            // A replaced item may be at the end.
            Freshness::Latest => self.items.iter().map(|item| item.since).min(),
        }
    }

    pub(crate) fn pop(&mut self) -> Option<Waiting> {
        let item = self.items.pop_front()?;
        self.bytes -= item.bytes;
        Some(item)
    }

    /// Puts back the rest of a batch that was taken in part.
    pub(crate) fn push_front(&mut self, item: Waiting) {
        self.bytes += item.bytes;
        self.items.push_front(item);
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn rows(&self) -> usize {
        self.items.iter().map(|item| item.batch.num_rows()).sum()
    }

    /// The lowest epoch that waits.
    pub(crate) fn first_epoch(&self) -> Option<Epoch> {
        self.items.iter().map(|item| item.epoch).min()
    }
}

/// A sequence of records of which a newer one replaces an older one: those of a source, or of one key of it.
type Stream = (u32, u32);

/// The stream of each row. A key is known by its place among all keys ([`crate::routing`]): of two keys at one place, one in
/// 65,536 pairs, the newer record wins.
fn streams<'a>(keyed: &'a BTreeSet<u32>, batch: &'a RecordBatch) -> impl Iterator<Item = Stream> + 'a {
    let Metadata { sources, classes, .. } = Metadata::of(batch);
    let (sources, classes) = (sources.values(), classes.values());
    // The classes of a source without a key follow its numbers.
    sources
        .iter()
        .zip(classes)
        .map(|(source, class)| (*source, if keyed.contains(source) { *class } else { 0 }))
}

/// The last row of each stream, in order, and how many rows were left out.
fn newest_of_each(keyed: &BTreeSet<u32>, batch: RecordBatch) -> (RecordBatch, u64) {
    let rows = batch.num_rows();
    let streams: Vec<Stream> = streams(keyed, &batch).collect();
    let newest: Vec<usize> = (0..rows).filter(|row| !streams[row + 1..].contains(&streams[*row])).collect();
    if newest.len() == rows {
        return (batch, 0);
    }
    let mask: BooleanArray = (0..rows).map(|row| Some(newest.contains(&row))).collect();
    (only(&batch, &mask), (rows - newest.len()) as u64)
}

fn only(batch: &RecordBatch, rows: &BooleanArray) -> RecordBatch {
    arrow_select::filter::filter_record_batch(batch, rows).expect("the mask is as long as the batch")
}
