//! The ends of a channel over a stream.
use super::carrier::Carrier;
use super::parcels::{Parcel, ParcelReceiver, ParcelSender, checksum};
use crate::frame::{Content, Control, Frame};
use crate::link::codec::{Decoder, Encoder};
use crate::link::{LinkError, LinkReceiver, LinkSender};
use arrow_schema::SchemaRef;
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

impl Encoder {
    /// Makes a frame to what travels.
    pub(super) fn parcel(&mut self, frame: &Frame) -> Result<Parcel, LinkError> {
        let (mut wire, payload) = self.encode(frame)?;
        wire.checksum = checksum(&payload);
        Ok(Parcel { wire, payload, is_shared: false, is_compressed: false })
    }
}

impl Decoder {
    /// Reads a frame.
    pub(super) fn open(&mut self, parcel: Parcel) -> Result<Frame, LinkError> {
        let (wire, whole) = parcel.whole()?;
        // Arrow checks what it reads, but not everywhere: what it panics at is no record batch either.
        catch_unwind(AssertUnwindSafe(|| self.decode(&wire, whole)))
            .unwrap_or_else(|_| Err(LinkError::Damaged("Arrow cannot read a record batch".into())))
    }
}

/// Sends frames.
pub(super) struct Sender {
    encoder: Encoder,
    parcels: ParcelSender,
}

impl Sender {
    pub(super) fn new(carrier: Carrier, schema: &SchemaRef) -> Result<Self, LinkError> {
        Ok(Self { encoder: Encoder::new(schema)?, parcels: ParcelSender::new(carrier)? })
    }

    /// Bytes of shared memory that the receiver has.
    #[cfg(test)]
    pub(super) fn lent(&self) -> u64 {
        self.parcels.lent()
    }
}

impl LinkSender for Sender {
    fn send(&mut self, frame: Frame) -> Result<u64, LinkError> {
        self.parcels.send(&self.encoder.parcel(&frame)?)
    }

    fn receive_control(&mut self) -> Result<Option<Control>, LinkError> {
        self.parcels.receive_control()
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.parcels.descriptor()
    }

    fn wants_writable(&self) -> bool {
        self.parcels.wants_writable()
    }

    fn clear(&self) -> bool {
        self.parcels.clear()
    }
}

/// Receives frames.
pub(super) struct Receiver {
    decoder: Decoder,
    schema: SchemaRef,
    /// The schema of the last records, which was compared with the one above.
    seen: Option<SchemaRef>,
    parcels: ParcelReceiver,
    /// Bytes of the last frame, as they would travel to another host.
    received: u64,
}

impl Receiver {
    pub(super) fn new(carrier: Carrier, schema: SchemaRef) -> Self {
        let parcels = ParcelReceiver::new(carrier);
        Self { decoder: Decoder::default(), schema, seen: None, parcels, received: 0 }
    }

    fn compare(&mut self, frame: Frame) -> Result<Frame, LinkError> {
        if let Content::Data { batch, .. } = &frame.content
            && !self.seen.as_ref().is_some_and(|seen| Arc::ptr_eq(seen, batch.schema_ref()))
        {
            if batch.schema_ref().fields() != self.schema.fields() {
                return Err(LinkError::Damaged("records of another schema".into()));
            }
            self.seen = Some(batch.schema());
        }
        Ok(frame)
    }

    #[cfg(test)]
    pub(super) fn taken_from_memory(&self) -> u64 {
        self.parcels.taken_from_memory()
    }

    #[cfg(test)]
    pub(super) fn copied(&self) -> u64 {
        self.parcels.copied()
    }
}

impl LinkReceiver for Receiver {
    fn receive(&mut self) -> Result<Option<Frame>, LinkError> {
        let Some(parcel) = self.parcels.receive()? else { return Ok(None) };
        self.received = parcel.bytes();
        let decoded = self.decoder.open(parcel);
        decoded.and_then(|frame| self.compare(frame)).map(Some).inspect_err(|error| self.parcels.end(error))
    }

    fn received_bytes(&self) -> u64 {
        self.received
    }

    fn send_control(&mut self, control: Control) -> Result<(), LinkError> {
        self.parcels.send_control(control)
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.parcels.descriptor()
    }

    fn wants_writable(&self) -> bool {
        self.parcels.wants_writable()
    }

    fn clear(&self) -> bool {
        self.parcels.clear()
    }
}
