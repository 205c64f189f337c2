//! Reads and rewrites the records of frames that pass, for a side between a sender and a receiver.
use super::parcels::Parcel;
use crate::frame::{Content, Epoch, Frame, Header};
use crate::link::LinkError;
use crate::link::codec::{Decoder, Encoder};
use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;

/// Reads and rewrites frames of one connection.
///
/// The schema travels with the first records only. So the first records of a connection are always read, and a frame that is
/// rewritten has the schema only where the receiver does not have it yet.
#[derive(Default)]
pub struct Recoder {
    decoder: Decoder,
    schema: Option<SchemaRef>,
    encoder: Option<Encoder>,
    /// The receiver has the schema.
    is_known: bool,
}

impl Recoder {
    /// Returns whether the next records have to be read, because the schema comes with them.
    pub fn must_read(&self) -> bool {
        self.schema.is_none()
    }

    /// Reads the records of a frame.
    ///
    /// # Errors
    /// [`LinkError::Damaged`] where there are none.
    pub fn read(&mut self, parcel: &Parcel) -> Result<RecordBatch, LinkError> {
        match self.decoder.open(parcel.clone())?.content {
            Content::Data { batch, .. } => {
                self.schema.get_or_insert_with(|| batch.schema());
                Ok(batch)
            }
            _ => Err(LinkError::Damaged("records are expected".into())),
        }
    }

    /// Notes that a frame with records passes as it came.
    pub fn passes(&mut self) {
        self.is_known = true;
    }

    /// Returns whether the receiver has the schema: until then a frame without rows has to pass.
    pub fn has_passed(&self) -> bool {
        self.is_known
    }

    /// Makes a frame like `parcel` with these records, which are of the schema that was read.
    ///
    /// # Errors
    /// When Arrow cannot encode them.
    pub fn write(&mut self, parcel: &Parcel, batch: RecordBatch) -> Result<Parcel, LinkError> {
        self.encode(*parcel.header(), parcel.epoch(), batch)
    }

    /// Makes a frame with these records.
    ///
    /// # Errors
    /// When Arrow cannot encode them.
    pub fn encode(&mut self, header: Header, epoch: Epoch, batch: RecordBatch) -> Result<Parcel, LinkError> {
        let encoder = match &mut self.encoder {
            Some(encoder) => encoder,
            None => {
                let schema = batch.schema();
                let mut encoder = Encoder::new(&schema)?;
                if self.is_known {
                    let content = Content::Data { epoch, batch: RecordBatch::new_empty(schema) };
                    encoder.parcel(&Frame { header, content })?;
                }
                self.encoder.insert(encoder)
            }
        };
        self.is_known = true;
        encoder.parcel(&Frame { header, content: Content::Data { epoch, batch } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::Int64Array;
    use arrow_schema::{DataType, Field, Schema};
    use std::sync::Arc;

    fn batch(rows: std::ops::Range<i64>) -> RecordBatch {
        let schema = Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, false)]));
        RecordBatch::try_new(schema, vec![Arc::new(Int64Array::from_iter_values(rows))]).unwrap()
    }

    fn frame(sequence: u64, batch: RecordBatch) -> Frame {
        let header = Header { incarnation: 1, sequence, sent_at: 5, cost: 9 };
        Frame { header, content: Content::Data { epoch: sequence, batch } }
    }

    /// Any mixture of frames that pass and frames that are rewritten, compressed or not, is one stream to the receiver.
    #[test]
    fn a_receiver_reads_any_mixture() {
        for pattern in 0..1024_u32 {
            let mut sender = Encoder::new(&batch(0..1).schema()).unwrap();
            let (mut between, mut receiver) = (Recoder::default(), Decoder::default());
            for at in 0..5_u64 {
                let (rewrites, compresses) = (pattern >> at & 1 == 1, pattern >> (5 + at) & 1 == 1);
                let records = batch(at as i64..500);
                let parcel = sender.parcel(&frame(at, records.clone())).unwrap();
                let read = (between.must_read() || rewrites).then(|| between.read(&parcel).unwrap());
                let (mut sent, rows) = match read.filter(|_| rewrites) {
                    Some(batch) => {
                        assert_eq!(batch, records);
                        (between.write(&parcel, batch.slice(1, 200)).unwrap(), records.slice(1, 200))
                    }
                    None => {
                        between.passes();
                        (parcel, records)
                    }
                };
                let before = sent.bytes();
                assert_eq!(compresses && sent.compress(), compresses);
                assert_eq!(sent.bytes() < before, compresses);
                assert_eq!(receiver.open(sent).unwrap(), frame(at, rows), "{pattern:b} {at}");
            }
        }
    }

    #[test]
    fn a_payload_that_is_not_what_it_claims_is_damage() {
        let mut sender = Encoder::new(&batch(0..1).schema()).unwrap();
        let mut parcel = sender.parcel(&frame(0, batch(0..4000))).unwrap();
        assert!(parcel.compress() && !parcel.compress(), "once");
        let whole: Vec<u8> = parcel.payload.iter().flat_map(|part| part.as_slice()).copied().collect();
        let mut wrong: Vec<Vec<u8>> = (0..whole.len().min(400)).map(|to| whole[..to].to_vec()).collect();
        for length in [0_u64, 1, 1 << 20, 1 << 40, u64::MAX] {
            wrong.push([&length.to_le_bytes(), &whole[8..]].concat());
        }
        for bytes in wrong {
            let parcel = Parcel { payload: vec![arrow_buffer::Buffer::from_vec(bytes)], ..parcel.clone() };
            assert!(matches!(Decoder::default().open(parcel), Err(LinkError::Damaged(_))));
        }
    }
}
