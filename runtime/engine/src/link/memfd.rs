//! A link inside one process through a memory file: every frame is bytes (Arrow IPC), so nothing relies on
//! pointer identity and the receiver trusts nothing but lengths it checks.
//!
//! Layout of a frame: 64 bytes of header (little endian), then the payload. Frames lie one after another in
//! a ring of 8 MiB; one that finds no space gets a memory file of its own, so sending never blocks.
use super::pipe::{Reader, Writer, pipe};
use super::{Link, LinkEnds, LinkError, LinkReceiver, LinkSender};
use crate::frame::{Content, Control, Frame, Header, WatermarkStep};
use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_ipc::reader::StreamDecoder;
use arrow_ipc::writer::StreamEncoder;
use arrow_schema::{ArrowError, SchemaRef};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use xxhash_rust::xxh3::Xxh3;

/// Bytes of the ring: the credit window with space to spare, so that only frames of unusual size find none.
const RING_BYTES: u64 = 8 << 20;
const HEADER_BYTES: usize = 64;
const DATA: u8 = 0;
const FRONTIER: u8 = 1;

/// Connects two slots of one process through a memory file.
#[derive(Debug, Clone, Copy, Default)]
pub struct Memfd;

enum Place {
    Ring { offset: u64, release_to: u64 },
    Own(OwnedFd),
}

struct Descriptor {
    place: Place,
    length: usize,
}

struct Ring {
    file: OwnedFd,
    released: AtomicU64,
}

struct Sender {
    ring: Arc<Ring>,
    written: u64,
    encoder: StreamEncoder,
    descriptors: Writer<Descriptor>,
    control: Reader<Control>,
}

struct Receiver {
    ring: Arc<Ring>,
    decoder: StreamDecoder,
    descriptors: Reader<Descriptor>,
    control: Writer<Control>,
}

impl Link for Memfd {
    fn connect(&self, schema: SchemaRef) -> Result<LinkEnds, LinkError> {
        let file = memfd_create("tidemill-link", MemfdFlags::CLOEXEC).map_err(std::io::Error::from)?;
        ftruncate(&file, RING_BYTES).map_err(std::io::Error::from)?;
        let ring = Arc::new(Ring { file, released: AtomicU64::new(0) });
        let (descriptor_writer, descriptor_reader) = pipe()?;
        let (control_writer, control_reader) = pipe()?;
        let encoder = StreamEncoder::try_new(&schema).map_err(damaged)?;
        Ok((
            Box::new(Sender {
                ring: Arc::clone(&ring),
                written: 0,
                encoder,
                descriptors: descriptor_writer,
                control: control_reader,
            }),
            Box::new(Receiver {
                ring,
                decoder: StreamDecoder::new(),
                descriptors: descriptor_reader,
                control: control_writer,
            }),
        ))
    }
}

/// Bytes that the frames of a stream take as they travel: what links count, and what planners count with. The schema, which
/// travels with the first frame of an incarnation, is not in them.
pub struct FrameBytes(StreamEncoder);

impl FrameBytes {
    /// Of frames with this schema.
    ///
    /// # Errors
    /// When Arrow cannot encode it.
    pub fn new(schema: &SchemaRef) -> Result<Self, LinkError> {
        let mut encoder = StreamEncoder::try_new(schema).map_err(damaged)?;
        encoder.encode(&RecordBatch::new_empty(Arc::clone(schema))).map_err(damaged)?;
        Ok(Self(encoder))
    }

    /// Of a frame with these records.
    ///
    /// # Errors
    /// When Arrow cannot encode them.
    pub fn of(&mut self, batch: &RecordBatch) -> Result<usize, LinkError> {
        Ok(HEADER_BYTES + payload_bytes(&self.0.encode(batch).map_err(damaged)?))
    }
}

fn payload_bytes(payload: &[Buffer]) -> usize {
    payload.iter().map(Buffer::len).sum()
}

fn damaged(error: ArrowError) -> LinkError {
    LinkError::Damaged(error.to_string())
}

fn encode_header(header: &Header, kind: u8, epoch: u64, payload: u64, checksum: u64) -> [u8; HEADER_BYTES] {
    let mut bytes = [0u8; HEADER_BYTES];
    bytes[0] = kind;
    bytes[4..8].copy_from_slice(&header.incarnation.to_le_bytes());
    bytes[8..16].copy_from_slice(&header.sequence.to_le_bytes());
    bytes[16..24].copy_from_slice(&header.sent_at.to_le_bytes());
    bytes[24..32].copy_from_slice(&epoch.to_le_bytes());
    bytes[32..40].copy_from_slice(&payload.to_le_bytes());
    bytes[40..48].copy_from_slice(&checksum.to_le_bytes());
    bytes[48..56].copy_from_slice(&header.cost.to_le_bytes());
    bytes
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut value = [0u8; 8];
    value.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(value)
}

impl Sender {
    fn place(&mut self, length: u64) -> Result<Option<u64>, LinkError> {
        let start_in_ring = self.written % RING_BYTES;
        let start = if start_in_ring + length > RING_BYTES {
            self.written + RING_BYTES - start_in_ring
        } else {
            self.written
        };
        let used = start + length - self.ring.released.load(Ordering::Acquire);
        if length > RING_BYTES || used > RING_BYTES {
            return Ok(None);
        }
        // Frames start at multiples of 64, so that Arrow's alignment survives.
        self.written = (start + length).next_multiple_of(64);
        Ok(Some(start))
    }
}

fn write_all(file: &OwnedFd, parts: &[&[u8]], mut offset: u64) -> Result<(), LinkError> {
    // One system call for the common case; a short write continues part by part.
    let slices: Vec<IoSlice<'_>> = parts.iter().take(1000).map(|part| IoSlice::new(part)).collect();
    let mut done = rustix::io::pwritev(file, &slices, offset).map_err(std::io::Error::from)?;
    for part in parts {
        if done >= part.len() {
            done -= part.len();
            offset += part.len() as u64;
            continue;
        }
        let mut rest = &part[done..];
        offset += done as u64;
        done = 0;
        while !rest.is_empty() {
            let n = rustix::io::pwrite(file, rest, offset).map_err(std::io::Error::from)?;
            rest = &rest[n..];
            offset += n as u64;
        }
    }
    Ok(())
}

impl LinkSender for Sender {
    fn send(&mut self, frame: Frame) -> Result<u64, LinkError> {
        let (kind, epoch, payload) = match &frame.content {
            Content::Data { epoch, batch } => (DATA, *epoch, self.encoder.encode(batch).map_err(damaged)?),
            Content::Frontier { epoch, steps } => {
                let mut bytes = Vec::with_capacity(steps.len() * 16);
                for step in steps {
                    bytes.extend_from_slice(&step.epoch.to_le_bytes());
                    bytes.extend_from_slice(&step.watermark.to_le_bytes());
                }
                (FRONTIER, *epoch, vec![Buffer::from_vec(bytes)])
            }
        };
        let mut hasher = Xxh3::new();
        payload.iter().for_each(|part| hasher.update(part));
        let length = payload_bytes(&payload);
        let header = encode_header(&frame.header, kind, epoch, length as u64, hasher.digest());
        let mut parts: Vec<&[u8]> = Vec::with_capacity(payload.len() + 1);
        parts.push(&header);
        parts.extend(payload.iter().map(Buffer::as_slice).filter(|part| !part.is_empty()));
        let length = HEADER_BYTES + length;
        let place = match self.place(length as u64)? {
            Some(start) => {
                write_all(&self.ring.file, &parts, start % RING_BYTES)?;
                Place::Ring { offset: start % RING_BYTES, release_to: self.written }
            }
            None => {
                let own =
                    memfd_create("tidemill-frame", MemfdFlags::CLOEXEC).map_err(std::io::Error::from)?;
                write_all(&own, &parts, 0)?;
                Place::Own(own)
            }
        };
        self.descriptors.push(Descriptor { place, length }).map(|()| length as u64)
    }

    fn receive_control(&mut self) -> Result<Option<Control>, LinkError> {
        self.control.pop()
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.control.waker().as_fd()
    }

    fn clear(&self) -> bool {
        self.control.waker().clear()
    }
}

fn read_exactly(file: &OwnedFd, length: usize, offset: u64) -> Result<Vec<u8>, LinkError> {
    let mut bytes = Vec::with_capacity(length);
    while bytes.len() < length {
        let at = offset + bytes.len() as u64;
        let mut rest = Vec::new();
        // The first read fills everything; `rest` exists only for the rare short one.
        let into = if bytes.is_empty() { &mut bytes } else { &mut rest };
        into.reserve_exact(length - into.len());
        let n = rustix::io::pread(file, rustix::buffer::spare_capacity(into), at)
            .map_err(std::io::Error::from)?;
        if n == 0 {
            return Err(LinkError::Damaged(format!("{length} bytes announced, {} there", bytes.len())));
        }
        bytes.extend_from_slice(&rest);
    }
    bytes.truncate(length);
    Ok(bytes)
}

impl Receiver {
    fn decode(&mut self, bytes: Vec<u8>) -> Result<Frame, LinkError> {
        if bytes.len() < HEADER_BYTES {
            return Err(LinkError::Damaged(format!("{} bytes are too few for a header", bytes.len())));
        }
        let kind = bytes[0];
        let mut incarnation = [0u8; 4];
        incarnation.copy_from_slice(&bytes[4..8]);
        let header = Header {
            incarnation: u32::from_le_bytes(incarnation),
            sequence: u64_at(&bytes, 8),
            sent_at: u64_at(&bytes, 16) as i64,
            cost: u64_at(&bytes, 48),
        };
        let (epoch, length, checksum) = (u64_at(&bytes, 24), u64_at(&bytes, 32), u64_at(&bytes, 40));
        let payload = Buffer::from_vec(bytes).slice(HEADER_BYTES);
        if payload.len() as u64 != length {
            return Err(LinkError::Damaged(format!(
                "payload of {} bytes, {length} announced",
                payload.len()
            )));
        }
        let mut hasher = Xxh3::new();
        hasher.update(&payload);
        if hasher.digest() != checksum {
            return Err(LinkError::Damaged(format!("checksum of frame {} differs", header.sequence)));
        }
        let content = match kind {
            DATA => {
                let mut rest = payload;
                let batch = self
                    .decoder
                    .decode(&mut rest)
                    .map_err(damaged)?
                    .ok_or_else(|| LinkError::Damaged("incomplete record batch".into()))?;
                Content::Data { epoch, batch }
            }
            FRONTIER => {
                let steps = payload
                    .as_slice()
                    .chunks_exact(16)
                    .map(|step| WatermarkStep { epoch: u64_at(step, 0), watermark: u64_at(step, 8) as i64 })
                    .collect();
                Content::Frontier { epoch, steps }
            }
            other => return Err(LinkError::Damaged(format!("unknown frame kind {other}"))),
        };
        Ok(Frame { header, content })
    }
}

impl LinkReceiver for Receiver {
    fn receive(&mut self) -> Result<Option<Frame>, LinkError> {
        let Some(descriptor) = self.descriptors.pop()? else { return Ok(None) };
        let bytes = match &descriptor.place {
            Place::Ring { offset, .. } => read_exactly(&self.ring.file, descriptor.length, *offset)?,
            Place::Own(file) => read_exactly(file, descriptor.length, 0)?,
        };
        if let Place::Ring { release_to, .. } = descriptor.place {
            self.ring.released.store(release_to, Ordering::Release);
        }
        self.decode(bytes).map(Some)
    }

    fn send_control(&mut self, control: Control) -> Result<(), LinkError> {
        self.control.push(control)
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptors.waker().as_fd()
    }

    fn clear(&self) -> bool {
        self.descriptors.waker().clear()
    }
}
