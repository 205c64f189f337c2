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
    pub(crate) carried: Carried<'a>,
    pub(crate) batch: &'a mut Option<RecordBatch>,
    pub(crate) effects: &'a mut Effects,
    /// State of the whole service that policies share.
    pub(crate) urgent: &'a mut crate::urgency::Urgency,
}

/// The form in which it travels.
pub(crate) enum Carried<'a> {
    /// A frame of a channel.
    Frame(&'a mut Parcel, &'a mut Recoder),
    /// A call, which is one record.
    Call(&'a mut dyn CallRecord),
}

/// The request of a call as a record.
pub(crate) trait CallRecord {
    /// Its bytes.
    fn bytes(&self) -> u64;
    /// Returns it as a record of its simple fields, and the bytes that were copied so that the program cannot change them any more.
    fn record(&mut self) -> Result<(RecordBatch, u64), String>;
}

/// The results of policies for a frame.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    /// How the server of a call is chosen.
    pub(crate) balance: Option<crate::policies::balance::By>,
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
        if let Carried::Frame(parcel, _) = &mut self.carried
            && (self.batch.is_none() || parcel.is_shared())
        {
            self.effects.copied += parcel.make_private().map_err(text)?;
            *self.batch = None;
        }
        self.read()
    }

    fn read(&mut self) -> Result<&RecordBatch, String> {
        if self.batch.is_none() {
            *self.batch = Some(match &mut self.carried {
                Carried::Frame(parcel, recoder) => recoder.read(parcel).map_err(text)?,
                Carried::Call(call) => {
                    let (record, copied) = call.record()?;
                    self.effects.copied += copied;
                    record
                }
            });
        }
        self.batch.as_ref().ok_or_else(|| "no records".to_owned())
    }

    /// Returns the number of its records.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn rows(&mut self) -> Result<usize, String> {
        match self.carried {
            Carried::Call(_) => Ok(1),
            Carried::Frame(..) => self.read().map(RecordBatch::num_rows),
        }
    }

    /// Bytes that it takes on a stream.
    pub fn bytes(&self) -> u64 {
        match &self.carried {
            Carried::Frame(parcel, _) => parcel.bytes(),
            Carried::Call(call) => call.bytes(),
        }
    }

    /// Its epoch; 0 for a call.
    pub fn epoch(&self) -> u64 {
        match &self.carried {
            Carried::Frame(parcel, _) => parcel.epoch(),
            Carried::Call(_) => 0,
        }
    }

    /// Takes out the rows that are not marked.
    ///
    /// # Errors
    /// The records cannot be read, or their number is another one.
    pub fn keep(&mut self, rows: &BooleanArray) -> Result<(), String> {
        if let (Carried::Call(_), 1) = (&self.carried, rows.len()) {
            self.effects.rejected += u64::from(rows.true_count() == 0);
            return Ok(());
        }
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
        let Carried::Frame(parcel, recoder) = &mut self.carried else { return false };
        if self.effects.is_changed {
            // It is encoded again anyway.
            if let Some(batch) = self.batch.take()
                && let Ok(written) = recoder.write(parcel, batch.clone())
            {
                (**parcel, *self.batch, self.effects.is_changed) = (written, Some(batch), false);
            }
        }
        parcel.compress()
    }
}

fn text(error: LinkError) -> String {
    error.to_string()
}
