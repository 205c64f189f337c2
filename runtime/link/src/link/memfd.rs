//! A link inside one process through a memory file: every frame is bytes (Arrow IPC), so nothing relies on
//! pointer identity and the receiver trusts nothing but lengths it checks.
//!
//! Frames (see `codec.rs`; their checksum is xxh3) lie one after another in a ring of 8 MiB; one that finds no space gets a
//! memory file of its own, so sending never blocks.
use super::codec::{Decoder, Encoder, HEADER_BYTES, WireHeader};
use super::pipe::{Reader, Writer, pipe};
use super::{Link, LinkEnds, LinkError, LinkReceiver, LinkSender};
use crate::frame::{Control, Frame};
use arrow_buffer::Buffer;
use arrow_schema::SchemaRef;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use xxhash_rust::xxh3::Xxh3;

/// Bytes of the ring: the credit window with space to spare, so that only frames of unusual size find none.
pub(crate) const RING_BYTES: u64 = 8 << 20;

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
    encoder: Encoder,
    descriptors: Writer<Descriptor>,
    control: Reader<Control>,
}

struct Receiver {
    ring: Arc<Ring>,
    decoder: Decoder,
    descriptors: Reader<Descriptor>,
    control: Writer<Control>,
    /// Bytes of the last frame.
    received: u64,
}

impl Link for Memfd {
    fn connect(&self, schema: SchemaRef) -> Result<LinkEnds, LinkError> {
        let file = memfd_create("tidemill-link", MemfdFlags::CLOEXEC).map_err(std::io::Error::from)?;
        ftruncate(&file, RING_BYTES).map_err(std::io::Error::from)?;
        let ring = Arc::new(Ring { file, released: AtomicU64::new(0) });
        let (descriptor_writer, descriptor_reader) = pipe()?;
        let (control_writer, control_reader) = pipe()?;
        let encoder = Encoder::new(&schema)?;
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
                decoder: Decoder::default(),
                descriptors: descriptor_reader,
                control: control_writer,
                received: 0,
            }),
        ))
    }
}

/// Where so many bytes can lie in one piece, counted since the ring was empty, if there is space now.
pub(crate) fn place(written: u64, released: u64, length: u64) -> Option<u64> {
    let start_in_ring = written % RING_BYTES;
    let start =
        if start_in_ring + length > RING_BYTES { written + RING_BYTES - start_in_ring } else { written };
    let used = start + length - released;
    (length <= RING_BYTES && used <= RING_BYTES).then_some(start)
}

/// Writes the parts one after another from this place on.
pub(crate) fn write_all(file: &OwnedFd, parts: &[&[u8]], mut offset: u64) -> Result<(), LinkError> {
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
        let (mut wire, payload) = self.encoder.encode(&frame)?;
        let mut hasher = Xxh3::new();
        payload.iter().for_each(|part| hasher.update(part));
        wire.checksum = hasher.digest();
        let header = wire.to_bytes();
        let mut parts: Vec<&[u8]> = Vec::with_capacity(payload.len() + 1);
        parts.push(&header);
        parts.extend(payload.iter().map(Buffer::as_slice).filter(|part| !part.is_empty()));
        let length = HEADER_BYTES + wire.length as usize;
        let place = match place(self.written, self.ring.released.load(Ordering::Acquire), length as u64) {
            Some(start) => {
                // Frames start at multiples of 64, so that Arrow's alignment survives.
                self.written = (start + length as u64).next_multiple_of(64);
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
        let Some(header) = bytes.first_chunk() else {
            return Err(LinkError::Damaged(format!("{} bytes are too few for a header", bytes.len())));
        };
        let wire = WireHeader::from_bytes(header);
        let payload = Buffer::from_vec(bytes).slice(HEADER_BYTES);
        if payload.len() as u64 != wire.length {
            let text = format!("payload of {} bytes, {} announced", payload.len(), wire.length);
            return Err(LinkError::Damaged(text));
        }
        let mut hasher = Xxh3::new();
        hasher.update(&payload);
        if hasher.digest() != wire.checksum {
            return Err(LinkError::Damaged(format!("checksum of frame {} differs", wire.header.sequence)));
        }
        self.decoder.decode(&wire, payload)
    }
}

impl LinkReceiver for Receiver {
    fn receive(&mut self) -> Result<Option<Frame>, LinkError> {
        let Some(descriptor) = self.descriptors.pop()? else { return Ok(None) };
        self.received = descriptor.length as u64;
        let bytes = match &descriptor.place {
            Place::Ring { offset, .. } => read_exactly(&self.ring.file, descriptor.length, *offset)?,
            Place::Own(file) => read_exactly(file, descriptor.length, 0)?,
        };
        if let Place::Ring { release_to, .. } = descriptor.place {
            self.ring.released.store(release_to, Ordering::Release);
        }
        self.decode(bytes).map(Some)
    }

    fn received_bytes(&self) -> u64 {
        self.received
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
