//! Packets: the data of frames as files store them.
#![expect(unsafe_code, reason = "functions of a C library")]
use crate::layout::{AvPacket, NO_TIME, PACKET_CORRUPT, PACKET_DISCARD, PACKET_KEY};
use crate::{Error, Library};
use std::ffi::c_int;
use std::fmt;
use std::sync::Arc;

/// Data of one frame, mostly, of one stream of a file.
pub struct Packet {
    packet: *mut AvPacket,
    library: Arc<Library>,
}

// SAFETY: the packet belongs to one owner; its data are counted with atomics by ffmpeg and not written to.
unsafe impl Send for Packet {}
// SAFETY: shared packets are only read.
unsafe impl Sync for Packet {}

impl Drop for Packet {
    fn drop(&mut self) {
        // SAFETY: it was allocated by this library, and is freed once.
        unsafe { (self.library.codecs.free_packet)(&raw mut self.packet) };
    }
}

impl fmt::Debug for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Packet")
            .field("stream", &self.stream())
            .field("pts", &self.pts())
            .field("bytes", &self.data().len())
            .finish_non_exhaustive()
    }
}

impl Packet {
    /// Creates an empty packet.
    pub(crate) fn new(library: &Arc<Library>) -> Result<Self, Error> {
        // SAFETY: takes no arguments.
        let packet = unsafe { (library.codecs.new_packet)() };
        match packet.is_null() {
            true => Err(Error::Memory("a packet")),
            false => Ok(Self { packet, library: Arc::clone(library) }),
        }
    }

    /// Fills an empty packet with a copy of the data.
    pub(crate) fn fill(&mut self, data: &[u8], pts: i64) -> Result<(), Error> {
        let too_long = |_| Error::Damaged("a unit of more than 2 GiB");
        let length = c_int::try_from(data.len()).map_err(too_long)?;
        // SAFETY: the packet is alive and empty; the function allocates the length, and zeros behind it.
        let code = unsafe { (self.library.codecs.fill_packet)(self.packet, length) };
        self.library.checked(code, "memory for a unit")?;
        // SAFETY: it was filled with that many bytes, which nothing else refers to.
        unsafe {
            (*self.packet).data.copy_from_nonoverlapping(data.as_ptr(), data.len());
            (*self.packet).pts = pts;
        }
        Ok(())
    }

    /// Drops its data.
    pub(crate) fn clear(&mut self) {
        // SAFETY: the packet is alive.
        unsafe { (self.library.codecs.clear_packet)(self.packet) };
    }

    pub(crate) fn as_ptr(&self) -> *const AvPacket {
        self.packet
    }

    pub(crate) fn as_mut_ptr(&mut self) -> *mut AvPacket {
        self.packet
    }

    fn raw(&self) -> &AvPacket {
        // SAFETY: it was allocated by ffmpeg, so it is at least as long as its beginning.
        unsafe { &*self.packet }
    }

    /// Returns the number of its stream.
    pub fn stream(&self) -> usize {
        usize::try_from(self.raw().stream).unwrap_or(usize::MAX)
    }

    /// Returns the compressed data.
    pub fn data(&self) -> &[u8] {
        let raw = self.raw();
        match usize::try_from(raw.size) {
            // SAFETY: the packet has that many bytes there.
            Ok(size) if size > 0 && !raw.data.is_null() => unsafe {
                std::slice::from_raw_parts(raw.data, size)
            },
            _ => &[],
        }
    }

    /// Returns the time to show its frame, in units of the stream's time base.
    pub fn pts(&self) -> Option<i64> {
        Some(self.raw().pts).filter(|time| *time != NO_TIME)
    }

    /// Returns the time to decode it, in units of the stream's time base.
    pub fn dts(&self) -> Option<i64> {
        Some(self.raw().dts).filter(|time| *time != NO_TIME)
    }

    /// Returns the time its frame is shown for, in units of the stream's time base; 0 if unknown.
    pub fn duration(&self) -> i64 {
        self.raw().duration
    }

    /// Returns whether its frame is decoded without others.
    pub fn is_key(&self) -> bool {
        self.raw().flags & PACKET_KEY != 0
    }

    /// Returns whether the container found it damaged.
    pub fn is_corrupt(&self) -> bool {
        self.raw().flags & PACKET_CORRUPT != 0
    }

    /// Returns whether its frame is needed to decode others but is not shown.
    pub fn is_hidden(&self) -> bool {
        self.raw().flags & PACKET_DISCARD != 0
    }
}
