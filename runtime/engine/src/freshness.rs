//! Records that wait for a slower receiver, and the policy for dropping them.
use crate::clock::Nanoseconds;
use crate::frame::Epoch;
use arrow_array::RecordBatch;
use std::collections::VecDeque;
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
    items: VecDeque<Waiting>,
    bytes: usize,
}

impl FreshnessQueue {
    /// `limit`: bytes beyond which `drop_oldest` drops.
    pub(crate) fn new(policy: Freshness, limit: usize) -> Self {
        Self { policy, limit, items: VecDeque::new(), bytes: 0 }
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
            for superseded in self.take_superseded(&batch) {
                dropped += superseded.batch.num_rows() as u64;
                since = since.min(superseded.since);
            }
            let (newest, older) = newest_of_each_source(batch);
            batch = newest;
            dropped += older;
        }
        let bytes = batch_bytes(&batch);
        self.bytes += bytes;
        self.items.push_back(Waiting { epoch, batch, bytes, arrived: now, since });
        if self.policy == Freshness::DropOldest {
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

    /// Removes items all of whose sources are in the batch too.
    fn take_superseded(&mut self, batch: &RecordBatch) -> VecDeque<Waiting> {
        let sources = Metadata::of(batch).sources;
        let is_superseded = |item: &Waiting| {
            let waiting = Metadata::of(&item.batch).sources;
            waiting.values().iter().all(|source| sources.values().contains(source))
        };
        let (superseded, kept): (VecDeque<_>, _) =
            std::mem::take(&mut self.items).into_iter().partition(is_superseded);
        self.items = kept;
        self.bytes -= superseded.iter().map(|item| item.bytes).sum::<usize>();
        superseded
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

/// The last row of each source, in order, and how many rows were left out.
fn newest_of_each_source(batch: RecordBatch) -> (RecordBatch, u64) {
    let rows = batch.num_rows();
    let sources = Metadata::of(&batch).sources.values();
    let newest: Vec<usize> = (0..rows).filter(|row| !sources[row + 1..].contains(&sources[*row])).collect();
    if newest.len() == rows {
        return (batch, 0);
    }
    let mask: arrow_array::BooleanArray = (0..rows).map(|row| Some(newest.contains(&row))).collect();
    let kept =
        arrow_select::filter::filter_record_batch(&batch, &mask).expect("the mask is as long as the batch");
    (kept, (rows - newest.len()) as u64)
}
