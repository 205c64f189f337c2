//! Memory that two processes of one host share: large payloads go through it instead of the socket.
//!
//! The sender makes a memory file and passes its descriptor with the first header. Payloads lie one after another in
//! it, as in a ring. The receiver reads them into memory of its own, checks that, and reports how many it has taken.
//! It never maps the file, so the other process can neither stop it nor change its copy.
use crate::link::LinkError;
use arrow_buffer::Buffer;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Bytes of the ring: the credit window with space to spare, so that only frames of unusual size find none.
const RING_BYTES: u64 = 8 << 20;

/// Its size cannot change any more.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Returns where this number of bytes can lie in one piece, counted since the ring was empty, if there is space now.
fn place(written: u64, released: u64, length: u64) -> Option<u64> {
    let start_in_ring = written % RING_BYTES;
    let start =
        if start_in_ring + length > RING_BYTES { written + RING_BYTES - start_in_ring } else { written };
    let used = start + length - released;
    (length <= RING_BYTES && used <= RING_BYTES).then_some(start)
}

/// Writes the parts one after another from this place on.
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

/// The end that writes.
pub(super) struct RingSender {
    file: OwnedFd,
    written: u64,
    released: u64,
    /// For each payload that was not taken yet: the end of the space that is free when it is.
    kept: VecDeque<u64>,
    /// Number of payloads that were taken.
    taken: u64,
}

impl RingSender {
    pub(super) fn new() -> io::Result<Self> {
        let file = memfd_create("tidemill-ring", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, RING_BYTES)?;
        fcntl_add_seals(&file, SEALS)?;
        Ok(Self { file, written: 0, released: 0, kept: VecDeque::new(), taken: 0 })
    }

    /// Writes a payload of this length and returns its place; `None` when there is no space now.
    pub(super) fn write(&mut self, payload: &[Buffer], length: u64) -> Result<Option<u32>, LinkError> {
        let Some(start) = place(self.written, self.released, length) else { return Ok(None) };
        let parts: Vec<&[u8]> =
            payload.iter().map(Buffer::as_slice).filter(|part| !part.is_empty()).collect();
        write_all(&self.file, &parts, start % RING_BYTES)?;
        self.written = (start + length).next_multiple_of(64);
        self.kept.push_back(self.written);
        // The ring is smaller than 4 GiB.
        Ok(Some((start % RING_BYTES) as u32))
    }

    /// Frees space up to the number of payloads that the receiver has taken in all.
    pub(super) fn release(&mut self, taken: u64) -> Result<(), LinkError> {
        while self.taken < taken {
            let Some(released) = self.kept.pop_front() else {
                return Err(LinkError::Damaged("more payloads taken than sent".into()));
            };
            self.released = released;
            self.taken += 1;
        }
        Ok(())
    }
}

impl AsFd for RingSender {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// The end that reads.
pub(super) struct RingReceiver(OwnedFd);

impl RingReceiver {
    /// Takes the descriptor of a peer, if it is what a [`RingSender`] makes: reading anything else might block.
    pub(super) fn adopt(file: OwnedFd) -> Result<Self, LinkError> {
        let sealed = fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SEALS));
        if !sealed || fstat(&file).is_ok_and(|stat| stat.st_size as u64 != RING_BYTES) {
            return Err(LinkError::Damaged("a descriptor that is no ring".into()));
        }
        Ok(Self(file))
    }

    /// Fills the slice with what lies at this place.
    pub(super) fn read(&self, into: &mut [u8], offset: u64) -> Result<(), LinkError> {
        if offset + into.len() as u64 > RING_BYTES {
            return Err(LinkError::Damaged("a payload beyond the ring".into()));
        }
        let mut done = 0;
        while done < into.len() {
            let n = rustix::io::pread(&self.0, &mut into[done..], offset + done as u64)
                .map_err(io::Error::from)?;
            if n == 0 {
                return Err(LinkError::Damaged("the ring ends".into()));
            }
            done += n;
        }
        Ok(())
    }
}
