//! Frames as bytes: the common part of all links that carry bytes.
//!
//! A frame is 64 bytes of header (little endian), then its payload: Arrow IPC for records, 16 bytes a step for a
//! frontier, the end of the epochs that are answered elsewhere.
//! Bytes of the header: 0 kind, 4..8 incarnation, 8..16 sequence, 16..24 sent at, 24..32 epoch, 32..40 length of the
//! payload, 40..48 checksum, 48..56 cost. The link decides which checksum, and the content of the rest.
use super::LinkError;
use crate::frame::{Content, Frame, Header, WatermarkStep};
use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_ipc::reader::StreamDecoder;
use arrow_ipc::writer::StreamEncoder;
use arrow_schema::{ArrowError, SchemaRef};
use std::sync::Arc;

/// Bytes of a header.
pub(crate) const HEADER_BYTES: usize = 64;
pub(crate) const DATA: u8 = 0;
pub(crate) const FRONTIER: u8 = 1;
const ELSEWHERE: u8 = 2;
/// Bytes of a step of a watermark.
const STEP_BYTES: usize = 16;

/// Bytes that the frames of a stream take as they travel: what links count, and what planners count with. The schema, which
/// travels with the first frame of an incarnation, is not in them.
pub struct FrameBytes(StreamEncoder);

impl FrameBytes {
    /// Makes a counter of frames with this schema.
    ///
    /// # Errors
    /// When Arrow cannot encode it.
    pub fn new(schema: &SchemaRef) -> Result<Self, LinkError> {
        let mut encoder = StreamEncoder::try_new(schema).map_err(damaged)?;
        encoder.encode(&RecordBatch::new_empty(Arc::clone(schema))).map_err(damaged)?;
        Ok(Self(encoder))
    }

    /// Returns the bytes of a frame with these records.
    ///
    /// # Errors
    /// When Arrow cannot encode them.
    pub fn of(&mut self, batch: &RecordBatch) -> Result<usize, LinkError> {
        Ok(HEADER_BYTES + payload_bytes(&self.0.encode(batch).map_err(damaged)?))
    }
}

/// Bytes of all parts.
pub(crate) fn payload_bytes(payload: &[Buffer]) -> usize {
    payload.iter().map(Buffer::len).sum()
}

/// Bytes that Arrow cannot read differ from those that were sent.
fn damaged(error: ArrowError) -> LinkError {
    LinkError::Damaged(error.to_string())
}

/// The number at this place.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut value = [0u8; 8];
    value.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(value)
}

/// The number at this place.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut value = [0u8; 4];
    value.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(value)
}

/// A header as it travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WireHeader {
    /// The kind of the payload.
    pub(crate) kind: u8,
    /// Facts of the frame.
    pub(crate) header: Header,
    /// Its epoch.
    pub(crate) epoch: u64,
    /// Bytes of the payload.
    pub(crate) length: u64,
    /// Of the payload, as the link computes it.
    pub(crate) checksum: u64,
}

impl WireHeader {
    /// Returns the header as bytes; those from 56 on are zero.
    pub(crate) fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0u8; HEADER_BYTES];
        bytes[0] = self.kind;
        bytes[4..8].copy_from_slice(&self.header.incarnation.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.header.sequence.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.header.sent_at.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.length.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.checksum.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.header.cost.to_le_bytes());
        bytes
    }

    /// From bytes that [`Self::to_bytes`] made.
    pub(crate) fn from_bytes(bytes: &[u8; HEADER_BYTES]) -> Self {
        Self {
            kind: bytes[0],
            header: Header {
                incarnation: u32_at(bytes, 4),
                sequence: u64_at(bytes, 8),
                sent_at: u64_at(bytes, 16) as i64,
                cost: u64_at(bytes, 48),
            },
            epoch: u64_at(bytes, 24),
            length: u64_at(bytes, 32),
            checksum: u64_at(bytes, 40),
        }
    }

    /// Returns whether there is such a kind of frame.
    pub(crate) fn is_known(&self) -> bool {
        matches!(self.kind, DATA | FRONTIER | ELSEWHERE)
    }
}

/// Makes frames to bytes. Remembers the schema that the other side has: one encoder per link.
pub(crate) struct Encoder(StreamEncoder);

impl Encoder {
    /// Makes an encoder of frames with this schema.
    pub(crate) fn new(schema: &SchemaRef) -> Result<Self, LinkError> {
        StreamEncoder::try_new(schema).map(Self).map_err(damaged)
    }

    /// The header, its checksum left open, and the parts of the payload, which share the memory of the records.
    pub(crate) fn encode(&mut self, frame: &Frame) -> Result<(WireHeader, Vec<Buffer>), LinkError> {
        let (kind, epoch, payload) = match &frame.content {
            Content::Data { epoch, batch } => (DATA, *epoch, self.0.encode(batch).map_err(damaged)?),
            Content::Frontier { epoch, rows, steps } => {
                let mut bytes = Vec::with_capacity(8 + steps.len() * STEP_BYTES);
                bytes.extend_from_slice(&rows.to_le_bytes());
                for step in steps {
                    bytes.extend_from_slice(&step.epoch.to_le_bytes());
                    bytes.extend_from_slice(&step.watermark.to_le_bytes());
                }
                (FRONTIER, *epoch, vec![Buffer::from_vec(bytes)])
            }
            Content::Elsewhere { from, until } => {
                (ELSEWHERE, *from, vec![Buffer::from_vec(until.to_le_bytes().to_vec())])
            }
        };
        let length = payload_bytes(&payload) as u64;
        Ok((WireHeader { kind, header: frame.header, epoch, length, checksum: 0 }, payload))
    }
}

/// Makes bytes to frames: the counterpart of [`Encoder`], for the same frames.
#[derive(Default)]
pub(crate) struct Decoder(StreamDecoder);

impl Decoder {
    /// The frame with this payload, whose length and checksum the link has compared with the header.
    pub(crate) fn decode(&mut self, wire: &WireHeader, payload: Buffer) -> Result<Frame, LinkError> {
        let content = match wire.kind {
            DATA => {
                let mut rest = payload;
                let batch = self
                    .0
                    .decode(&mut rest)
                    .map_err(damaged)?
                    .ok_or_else(|| LinkError::Damaged("incomplete record batch".into()))?;
                Content::Data { epoch: wire.epoch, batch }
            }
            FRONTIER => {
                let (rows, steps) = payload.as_slice().split_at_checked(8).unwrap_or_default();
                let (steps, rest) = steps.as_chunks::<STEP_BYTES>();
                if rows.is_empty() || !rest.is_empty() {
                    let text =
                        format!("{} bytes are no number of rows and steps of {STEP_BYTES}", payload.len());
                    return Err(LinkError::Damaged(text));
                }
                let steps = steps
                    .iter()
                    .map(|step| WatermarkStep { epoch: u64_at(step, 0), watermark: u64_at(step, 8) as i64 })
                    .collect();
                Content::Frontier { epoch: wire.epoch, rows: u64_at(rows, 0), steps }
            }
            ELSEWHERE => match payload.as_slice() {
                until if until.len() == 8 => Content::Elsewhere { from: wire.epoch, until: u64_at(until, 0) },
                other => {
                    return Err(LinkError::Damaged(format!("{} bytes are no epoch", other.len())));
                }
            },
            other => return Err(LinkError::Damaged(format!("unknown frame kind {other}"))),
        };
        Ok(Frame { header: wire.header, content })
    }
}
