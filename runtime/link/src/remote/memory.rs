//! Memory that two processes of one host share: large payloads go through it instead of the socket.
//!
//! The sender makes a region and passes its sealed descriptor with the first header. It copies each payload into a block of the
//! region. The receiver maps the region and can only read it: the records lie there, and are never copied again. When
//! the last of them is dropped, on whatever thread, the receiver returns the block with its next words.
//!
//! The processes are of one user and one run, and trust each other as threads do: a sender that writes a block again
//! while it is lent would change records of the receiver.
use crate::link::LinkError;
use arrow_buffer::Buffer;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use tidemill_shm::descriptor::Descriptor;
use tidemill_shm::heap::{Heap, HeapLimits};
use tidemill_shm::lease::{Holder, Holdings, Leases, RETURNED, Returning};
use tidemill_shm::region::{ReadRegion, Region, RegionError};

/// A block may have this size: larger payloads go over the socket.
const LARGEST: u32 = 8 << 20;
/// Bytes of a region: four times the credit window, because blocks are powers of two, and records are kept for a while.
const REGION: u64 = 16 << 20;
/// Blocks that the receiver may have.
const MOST: usize = 1 << 10;
/// The receiver, the only one.
const RECEIVER: Holder = Holder(1);
/// Kind of the descriptors here, which never leave a process.
const PAYLOAD: u8 = 0;

fn failed(error: RegionError) -> LinkError {
    LinkError::System(io::Error::other(error))
}

/// The end that writes.
pub(super) struct SharedSender {
    heap: Heap<Region>,
    leases: Leases,
    /// Leases by where their blocks begin.
    lent: BTreeMap<u32, u64>,
}

impl SharedSender {
    /// Makes a region, and the descriptor with which another process can map it.
    pub(super) fn new() -> Result<(Self, OwnedFd), LinkError> {
        let limits = HeapLimits { largest: LARGEST, region: REGION, regions: 1 };
        let mut heap =
            Heap::<Region>::new(limits).map_err(|error| LinkError::System(io::Error::other(error)))?;
        heap.grow().map_err(failed)?;
        let sealed = heap.region(0).ok_or(LinkError::Lost)?.seal().map_err(failed)?;
        Ok((Self { heap, leases: Leases::new(MOST), lent: BTreeMap::new() }, sealed))
    }

    /// Writes a payload of this length and returns its place; `None` when there is no space now.
    pub(super) fn write(&mut self, payload: &[Buffer], length: u64) -> Option<u32> {
        let mut block = self.heap.alloc(usize::try_from(length).ok()?)?;
        let mut at = 0;
        let is_written = payload.iter().all(|part| {
            let is_written = self.heap.write(&mut block, at, part);
            at += part.len() as u32;
            is_written
        });
        // A region is smaller than 4 GiB.
        let offset = block.offset() as u32;
        if !is_written {
            let _ = self.heap.free(block);
            return None;
        }
        match self.leases.lend(block, RECEIVER) {
            Ok(lease) => {
                self.lent.insert(offset, lease);
                Some(offset)
            }
            Err((block, _)) => {
                let _ = self.heap.free(block);
                None
            }
        }
    }

    /// Frees the block at this place, which the receiver returns.
    pub(super) fn returned(&mut self, offset: u64) -> Result<(), LinkError> {
        let lease = u32::try_from(offset).ok().and_then(|offset| self.lent.remove(&offset));
        let lease = lease.ok_or_else(|| LinkError::Damaged("a block is returned that is not lent".into()))?;
        let message = Descriptor { kind: RETURNED, lease, ..Descriptor::default() };
        let block = self.leases.returned(RECEIVER, &message);
        let block = block.map_err(|error| LinkError::Damaged(error.to_string()))?;
        block.map_or(Ok(()), |block| self.heap.free(block)).map_err(|_| LinkError::Lost)
    }

    /// Bytes of blocks that the receiver has.
    #[cfg(test)]
    pub(super) fn used(&self) -> u64 {
        self.heap.used()
    }
}

/// Places of blocks that are not needed any more.
#[derive(Clone, Default)]
struct Dropped(Arc<Mutex<Vec<u64>>>);

impl Returning for Dropped {
    fn give(&mut self, message: Descriptor) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(message.offset);
    }
}

/// The end that reads.
pub(super) struct SharedReceiver {
    holdings: Holdings,
    dropped: Dropped,
}

impl SharedReceiver {
    /// Maps the region of a peer, if it is what a [`SharedSender`] makes.
    pub(super) fn adopt(file: OwnedFd) -> Result<Self, LinkError> {
        let region =
            ReadRegion::adopt(file, REGION).map_err(|error| LinkError::Damaged(error.to_string()))?;
        let dropped = Dropped::default();
        let mut holdings = Holdings::returning(PAYLOAD + 1, LARGEST, Box::new(dropped.clone()));
        holdings.add(region);
        Ok(Self { holdings, dropped })
    }

    /// Returns the payload at this place, where it lies.
    pub(super) fn take(&self, offset: u64, length: u64) -> Result<Buffer, LinkError> {
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        let place = Descriptor { kind: PAYLOAD, offset, length, ..Descriptor::default() };
        let lease = self.holdings.take(&place).map_err(|error| LinkError::Damaged(error.to_string()))?;
        Ok(Buffer::from(Bytes::from_owner(lease)))
    }

    /// Returns the places of blocks that were dropped since the last call.
    pub(super) fn dropped(&self) -> Vec<u64> {
        std::mem::take(&mut *self.dropped.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_read_where_it_lies_and_its_block_is_used_again() {
        let (mut sender, sealed) = SharedSender::new().unwrap();
        let receiver = SharedReceiver::adopt(sealed).unwrap();
        let parts = [Buffer::from_vec(vec![1u8; 100_000]), Buffer::from_vec(vec![2u8; 50_000])];
        let places: Vec<u32> = (0..200).map_while(|_| sender.write(&parts, 150_000)).collect();
        assert_eq!(places.len(), 64, "blocks of 256 KiB");
        let payload = receiver.take(u64::from(places[3]), 150_000).unwrap();
        assert!(payload[..100_000] == parts[0][..] && payload[100_000..] == parts[1][..]);
        assert_eq!(payload.as_ptr().align_offset(64), 0);
        let part = payload.slice_with_length(100_000, 10);
        drop(payload);
        assert!(receiver.dropped().is_empty(), "a part of it is still there");
        drop(part);
        assert_eq!(receiver.dropped(), [u64::from(places[3])]);
        sender.returned(u64::from(places[3])).unwrap();
        assert_eq!(sender.write(&parts, 150_000), Some(places[3]));
    }

    #[test]
    fn a_peer_that_returns_what_it_does_not_have_is_found_out() {
        let (mut sender, _sealed) = SharedSender::new().unwrap();
        let at = u64::from(sender.write(&[Buffer::from_vec(vec![0u8; 70_000])], 70_000).unwrap());
        for wrong in [at + 1, u64::MAX] {
            assert!(matches!(sender.returned(wrong), Err(LinkError::Damaged(_))));
        }
        sender.returned(at).unwrap();
        assert!(sender.returned(at).is_err(), "a second time");
    }

    #[test]
    fn places_outside_of_the_region_are_damage() {
        let (_sender, sealed) = SharedSender::new().unwrap();
        let receiver = SharedReceiver::adopt(sealed).unwrap();
        for (offset, length) in [(REGION, 1), (REGION - 64, 65), (1, 1), (u64::MAX, 8), (0, u64::MAX)] {
            assert!(matches!(receiver.take(offset, length), Err(LinkError::Damaged(_))), "{offset} {length}");
        }
    }
}
