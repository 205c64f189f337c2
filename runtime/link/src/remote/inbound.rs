//! Puts frames together from what a stream gives.
use super::carrier::{Carrier, lost};
use super::memory::SharedReceiver;
use super::parcels::Parcel;
use super::pool::{LARGE, Memory, READ_AHEAD};
use crate::frame::Header;
use crate::link::LinkError;
use crate::link::codec::{HEADER_BYTES, WireHeader, u32_at};
use crate::transport::Descriptors;
use arrow_buffer::Buffer;
use bytes::Bytes;
use std::io::ErrorKind;

/// Bytes that a payload may have.
pub const MAX_PAYLOAD: u64 = 1 << 30;
/// Bytes that small frames are read with at once.
const STAGE: usize = 16 << 10;
/// Memory that a header gets for its claimed length, as much as a connection may take unasked; the rest comes as the
/// payload does.
const ON_TRUST: usize = READ_AHEAD;
/// Alignment that Arrow wants for its buffers.
const ALIGNMENT: usize = 64;
/// Offset of the header's own checksum.
const HEADER_CHECKSUM: usize = 56;

/// Offset of the payload's carrier in the header.
const TRAVEL: usize = 1;
/// The payload follows the header; it lies in shared memory, whose offset is in the upper half of the checksum; there is
/// none, and the descriptor of a region came with the header.
const INLINE: u8 = 0;
const SHARED: u8 = 1;
const NEW_REGION: u8 = 2;
/// Added to one of the first two: the payload is compressed.
const COMPRESSED: u8 = 0x80;
const INLINE_COMPRESSED: u8 = INLINE | COMPRESSED;
const SHARED_COMPRESSED: u8 = SHARED | COMPRESSED;

/// The header of a frame with its checksum; `place`: where in shared memory its payload lies.
pub(super) fn seal(wire: &WireHeader, place: Option<u32>, is_compressed: bool) -> [u8; HEADER_BYTES] {
    let checksum = wire.checksum | u64::from(place.unwrap_or(0)) << 32;
    let travel = if place.is_some() { SHARED } else { INLINE };
    finish(WireHeader { checksum, ..*wire }, if is_compressed { travel | COMPRESSED } else { travel })
}

/// The header that the descriptor of a region travels with.
pub(super) fn new_region() -> [u8; HEADER_BYTES] {
    let header = Header { incarnation: 0, sequence: 0, sent_at: 0, cost: 0 };
    finish(WireHeader { kind: 0, header, epoch: 0, length: 0, checksum: 0 }, NEW_REGION)
}

fn finish(wire: WireHeader, travel: u8) -> [u8; HEADER_BYTES] {
    let mut bytes = wire.to_bytes();
    bytes[TRAVEL] = travel;
    let checksum = crc32c::crc32c(&bytes[..HEADER_CHECKSUM]);
    bytes[HEADER_CHECKSUM..HEADER_CHECKSUM + 4].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// The header in these bytes, if one was sent.
fn open(bytes: &[u8; HEADER_BYTES]) -> Result<(WireHeader, u8), LinkError> {
    let damaged = |text: String| Err(LinkError::Damaged(text));
    if u32_at(bytes, HEADER_CHECKSUM) != crc32c::crc32c(&bytes[..HEADER_CHECKSUM]) {
        return damaged("the checksum of a header differs".into());
    }
    let wire = WireHeader::from_bytes(bytes);
    if !wire.is_known() {
        return damaged(format!("unknown frame kind {}", wire.kind));
    }
    if wire.length > MAX_PAYLOAD {
        return damaged(format!("{} bytes of payload, {MAX_PAYLOAD} are the most", wire.length));
    }
    Ok((wire, bytes[TRAVEL]))
}

/// Returns the frames with correct checksums; a frame that claims more than there is ends with the bytes.
pub(super) fn sealed_anew(bytes: &[u8]) -> Vec<u8> {
    let mut sealed = bytes.to_vec();
    let mut at = 0;
    while let Some((header, rest)) = sealed.get_mut(at..).and_then(|rest| rest.split_first_chunk_mut()) {
        let wire = WireHeader::from_bytes(header);
        let length = usize::try_from(wire.length).unwrap_or(usize::MAX).min(rest.len());
        let checksum = u64::from(crc32c::crc32c(&rest[..length]));
        *header = finish(WireHeader { checksum, ..wire }, header[TRAVEL]);
        at += HEADER_BYTES + length;
    }
    sealed
}

/// A payload of which a part has come.
struct Partial {
    wire: WireHeader,
    is_compressed: bool,
    /// `pad` bytes that make the payload begin at a multiple of [`ALIGNMENT`], the payload, and space for the header that
    /// comes next, which then needs no system call of its own.
    memory: Memory,
    pad: usize,
    /// Bytes of the payload that have come.
    come: usize,
    /// Checksum of the bytes that have come.
    checksum: u32,
}

impl Partial {
    fn new(wire: WireHeader, is_compressed: bool) -> Self {
        let memory = Memory::of((wire.length as usize).min(ON_TRUST) + ALIGNMENT + HEADER_BYTES);
        let pad = memory.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
        Self { wire, is_compressed, memory, pad, come: 0, checksum: 0 }
    }

    fn length(&self) -> usize {
        self.wire.length as usize
    }

    /// Returns the memory for the rest of the payload, if there is any yet, and then the next header. Memory that
    /// moves as it grows may begin elsewhere between two multiples of [`ALIGNMENT`], but at a multiple of 16, as
    /// allocators do: enough for everything in Arrow, which aligns the rest itself.
    fn rest(&mut self) -> &mut [u8] {
        let begin = self.pad + self.come;
        if begin + HEADER_BYTES >= self.memory.len() {
            let more = self.come.min(self.length() - self.come);
            self.memory.grow(begin + more + HEADER_BYTES);
        }
        let end = (self.pad + self.length() + HEADER_BYTES).min(self.memory.len());
        &mut self.memory[begin..end]
    }

    /// Records that `bytes` more have come. Returns how many of them are after the payload.
    fn came(&mut self, bytes: usize) -> usize {
        let own = bytes.min(self.length() - self.come);
        let begin = self.pad + self.come;
        self.checksum = crc32c::crc32c_append(self.checksum, &self.memory[begin..begin + own]);
        self.come += own;
        bytes - own
    }

    fn finish(self) -> Result<Parcel, LinkError> {
        if self.checksum != self.wire.checksum as u32 {
            let text = format!("checksum of frame {} differs", self.wire.header.sequence);
            return Err(LinkError::Damaged(text));
        }
        let place = self.pad..self.pad + self.length();
        let Self { wire, is_compressed, memory, .. } = self;
        let payload = vec![Buffer::from(Bytes::from_owner(memory).slice(place))];
        Ok(Parcel { wire, payload, is_shared: false, is_compressed })
    }
}

/// Puts frames together.
pub(super) struct Inbound {
    stage: Vec<u8>,
    /// The rest of the stage that is not taken yet.
    begin: usize,
    end: usize,
    /// The last payload was large: of what comes next only the header goes to the stage.
    large: bool,
    partial: Option<Partial>,
    copied: u64,
    shared: Option<SharedReceiver>,
    /// Payloads taken where they lie.
    taken: u64,
}

impl Default for Inbound {
    fn default() -> Self {
        Self {
            stage: vec![0; STAGE],
            begin: 0,
            end: 0,
            large: false,
            partial: None,
            copied: 0,
            shared: None,
            taken: 0,
        }
    }
}

impl Inbound {
    /// Returns the next whole frame; `None` when the stream has no more now.
    ///
    /// # Errors
    /// [`LinkError::Lost`] at the end of the peer's bytes, [`LinkError::Damaged`] at bytes that are no frame. After
    /// an error nothing more can be read.
    pub(super) fn next(&mut self, carrier: &mut Carrier) -> Result<Option<Parcel>, LinkError> {
        loop {
            let read = match &mut self.partial {
                Some(partial) => {
                    let missing = partial.length() - partial.come;
                    let staged = missing.min(self.end - self.begin);
                    if staged > 0 {
                        partial.rest()[..staged]
                            .copy_from_slice(&self.stage[self.begin..self.begin + staged]);
                        partial.came(staged);
                        self.begin += staged;
                        self.copied += if self.large { staged as u64 } else { 0 };
                    }
                    if missing == staged {
                        return self.partial.take().map(Partial::finish).transpose();
                    }
                    let read = carrier.read(partial.rest());
                    let beyond = partial.came(*read.as_ref().unwrap_or(&0));
                    if beyond > 0 {
                        // The stage was empty, or the payload would not have been read from the stream.
                        let begin = partial.pad + partial.length();
                        self.stage[..beyond].copy_from_slice(&partial.memory[begin..begin + beyond]);
                        (self.begin, self.end) = (0, beyond);
                    }
                    read
                }
                None => {
                    if let Some(header) = self.stage[self.begin..self.end].first_chunk() {
                        let (wire, travel) = open(header)?;
                        self.begin += HEADER_BYTES;
                        let is_compressed = travel & COMPRESSED != 0;
                        match travel {
                            INLINE | INLINE_COMPRESSED => {}
                            SHARED | SHARED_COMPRESSED => {
                                return self.take_from_memory(wire, is_compressed).map(Some);
                            }
                            NEW_REGION => {
                                let descriptor = carrier.descriptors().and_then(Descriptors::take);
                                let missing = || LinkError::Damaged("a region without a descriptor".into());
                                self.shared = Some(SharedReceiver::adopt(descriptor.ok_or_else(missing)?)?);
                                continue;
                            }
                            other => {
                                return Err(LinkError::Damaged(format!("unknown way to travel: {other}")));
                            }
                        }
                        self.large = wire.length as usize >= LARGE;
                        self.partial = Some(Partial::new(wire, is_compressed));
                        continue;
                    }
                    self.stage.copy_within(self.begin..self.end, 0);
                    (self.begin, self.end) = (0, self.end - self.begin);
                    let until = if self.large { HEADER_BYTES } else { STAGE };
                    let read = carrier.read(&mut self.stage[self.end..until]);
                    self.end += *read.as_ref().unwrap_or(&0);
                    read
                }
            };
            match read {
                // A part of a frame is nothing.
                Ok(0) => return Err(LinkError::Lost),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(lost(&error)),
            }
        }
    }

    fn take_from_memory(&mut self, wire: WireHeader, is_compressed: bool) -> Result<Parcel, LinkError> {
        let none = || LinkError::Damaged("a payload in memory that is not shared".into());
        let shared = self.shared.as_ref().ok_or_else(none)?;
        let payload = shared.take(wire.checksum >> 32, wire.length)?;
        if crc32c::crc32c(&payload) != wire.checksum as u32 {
            let text = format!("checksum of frame {} differs", wire.header.sequence);
            return Err(LinkError::Damaged(text));
        }
        self.taken += 1;
        Ok(Parcel {
            wire: WireHeader { checksum: wire.checksum & u64::from(u32::MAX), ..wire },
            payload: vec![payload],
            is_shared: true,
            is_compressed,
        })
    }

    /// Returns the places in shared memory of payloads whose records are gone.
    pub(super) fn dropped(&self) -> Vec<u64> {
        self.shared.as_ref().map(SharedReceiver::dropped).unwrap_or_default()
    }

    /// Returns the number of payloads taken where they lie.
    #[cfg(test)]
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    /// Bytes of large payloads that were copied once more than needed: beginnings of those that came after a small
    /// one.
    #[cfg(test)]
    pub(super) fn copied(&self) -> u64 {
        self.copied
    }
}
