//! A frame of records on its way through the service.
use crate::edge_name::EdgeName;
use arrow_array::{BooleanArray, RecordBatch};
use arrow_select::filter::filter_record_batch;
use std::time::Instant;
use tidemill_link::link::LinkError;
use tidemill_link::remote::{Parcel, Recoder};

/// A frame of records on its way through the service, and what a policy may do with it.
pub struct Passage<'a> {
    /// The edge that it is on.
    pub edge: &'a EdgeName,
    /// The channel of the edge.
    pub channel: u64,
    /// The time at which it is looked at.
    pub now: Instant,
    /// A number that changes with each frame of the channel and repeats where the frame does: for decisions by chance.
    pub number: u64,
    /// Bytes of the channel that wait because the stream to its receiver takes nothing now.
    pub waiting: u64,
    pub(crate) parcel: &'a mut Parcel,
    pub(crate) recoder: &'a mut Recoder,
    pub(crate) batch: &'a mut Option<RecordBatch>,
    pub(crate) effects: &'a mut Effects,
    /// State of the whole service that policies share.
    pub(crate) urgent: &'a mut crate::urgency::Urgency,
}

/// What policies did to a frame.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    /// Rows that were taken out.
    pub(crate) rejected: u64,
    /// The batch is not what the parcel has any more.
    pub(crate) is_changed: bool,
    /// Bytes that were copied so that the sender cannot change them any more.
    pub(crate) copied: u64,
}

impl Passage<'_> {
    /// Returns its records, in memory that no other process can write.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn records(&mut self) -> Result<&RecordBatch, String> {
        if self.batch.is_none() || self.parcel.is_shared() {
            self.effects.copied += self.parcel.make_private().map_err(text)?;
            *self.batch = None;
        }
        self.read()
    }

    fn read(&mut self) -> Result<&RecordBatch, String> {
        if self.batch.is_none() {
            *self.batch = Some(self.recoder.read(self.parcel).map_err(text)?);
        }
        self.batch.as_ref().ok_or_else(|| "no records".to_owned())
    }

    /// Returns the number of its records.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn rows(&mut self) -> Result<usize, String> {
        self.read().map(RecordBatch::num_rows)
    }

    /// Bytes that it takes on a stream.
    pub fn bytes(&self) -> u64 {
        self.parcel.bytes()
    }

    /// Its epoch.
    pub fn epoch(&self) -> u64 {
        self.parcel.epoch()
    }

    /// Takes out the rows that are not marked.
    ///
    /// # Errors
    /// The records cannot be read, or their number is another one.
    pub fn keep(&mut self, rows: &BooleanArray) -> Result<(), String> {
        let before = self.records()?;
        if before.num_rows() != rows.len() {
            // The sender can change them until they are copied.
            return Err(format!("{} rows are marked of {}", rows.len(), before.num_rows()));
        }
        let removed = before.num_rows() - rows.true_count();
        if removed == 0 {
            return Ok(());
        }
        let kept = filter_record_batch(before, rows).map_err(|error| error.to_string())?;
        self.effects.rejected += removed as u64;
        self.effects.is_changed = true;
        *self.batch = Some(kept);
        Ok(())
    }

    /// Takes out all rows.
    ///
    /// # Errors
    /// The records cannot be read.
    pub fn reject(&mut self) -> Result<(), String> {
        let rows = self.rows()?;
        self.keep(&BooleanArray::from(vec![false; rows]))
    }

    /// Compresses what is sent, if that makes it smaller. Rows that are taken out later are too: it is compressed at the end.
    pub(crate) fn compress(&mut self) -> bool {
        if self.effects.is_changed {
            // It is encoded again anyway.
            if let Some(batch) = self.batch.take()
                && let Ok(parcel) = self.recoder.write(self.parcel, batch.clone())
            {
                (*self.parcel, *self.batch, self.effects.is_changed) = (parcel, Some(batch), false);
            }
        }
        self.parcel.compress()
    }
}

fn text(error: LinkError) -> String {
    error.to_string()
}
