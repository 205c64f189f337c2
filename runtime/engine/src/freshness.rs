//! Records that wait for a slower receiver, and what may be lost of them.
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

    /// Adds a batch. `congested`: the receiver is busy, so that what waits is not the next to go.
    /// Returns how many records were dropped for it.
    pub(crate) fn push(
        &mut self,
        epoch: Epoch,
        batch: RecordBatch,
        now: Nanoseconds,
        congested: bool,
    ) -> u64 {
        let mut dropped = 0;
        let mut batch = batch;
        if self.policy == Freshness::Latest && (congested || !self.items.is_empty()) {
            dropped += self.drop_sources_of(&batch);
            let (newest, older) = newest_of_each_source(batch);
            batch = newest;
            dropped += older;
        }
        let bytes = batch_bytes(&batch);
        self.bytes += bytes;
        self.items.push_back(Waiting { epoch, batch, bytes, arrived: now });
        if self.policy == Freshness::DropOldest {
            while self.bytes > self.limit && self.items.len() > 1 {
                if let Some(oldest) = self.items.pop_front() {
                    self.bytes -= oldest.bytes;
                    dropped += oldest.batch.num_rows() as u64;
                }
            }
        }
        dropped
    }

    fn drop_sources_of(&mut self, batch: &RecordBatch) -> u64 {
        let sources = Metadata::of(batch).sources;
        let mut dropped = 0;
        let bytes = &mut self.bytes;
        self.items.retain(|item| {
            let waiting = Metadata::of(&item.batch).sources;
            let superseded = waiting.values().iter().all(|source| sources.values().contains(source));
            if superseded {
                *bytes -= item.bytes;
                dropped += item.batch.num_rows() as u64;
            }
            !superseded
        });
        dropped
    }

    /// Whether nothing is ever dropped.
    pub(crate) fn keeps_all(&self) -> bool {
        self.policy == Freshness::Block
    }

    pub(crate) fn front(&self) -> Option<&Waiting> {
        self.items.front()
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
