//! Memory that processes of one host share, so that payloads reach another process without a copy.
//!
//! - [`region`]: memory files that are mapped, sealed so that a mapping is safe: [`region::Region`] is written by its owner
//!   and read by others, [`region::SharedRegion`] is written by both sides.
//! - [`heap`]: blocks in regions, for payloads.
//! - [`descriptor`]: 64 bytes that say where a payload lies; a checked one gives access.
//! - [`ring`]: descriptors from one process to another; [`wake`]: their reader sleeps while there are none.
//! - [`lease`]: others read a block where it lies, and its owner learns when they are done.
//!
//! Descriptors of files go over a Unix socket, which is the caller's. Whatever another process writes to shared memory is
//! believed only after it was copied and checked: the other process may be hostile.
//!
//! ```
//! # use std::sync::Arc;
//! # use tidemill_shm::{heap::*, lease::*, region::*, ring::*, wake::*};
//! const FRAME: u8 = 0;
//! const PLACES: u32 = 16;
//! /// The two rings are in one region, one after the other.
//! fn window(region: &Arc<SharedRegion>, number: usize) -> Option<Window> {
//!     region.window(number * words(PLACES), words(PLACES))
//! }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // The owner makes a heap, rings and a bell. It passes three descriptors to the holder.
//! let mut heap: Heap<Region> = Heap::new(HeapLimits::default())?;
//! heap.grow()?;
//! let rings = Arc::new(SharedRegion::create(4 * GRANULE)?);
//! let (bell, bell_of_holder) = Bell::pair()?;
//! let sealed = heap.region(0).ok_or("no region")?.seal()?;
//! let rings_of_holder = rustix::io::dup(&*rings)?;
//!
//! let bell = Arc::new(bell);
//! let mut frames = Sender::new(Producer::new(window(&rings, 0).ok_or("too small")?, PLACES)?, bell.clone());
//! let returned = Consumer::new(window(&rings, 1).ok_or("too small")?, PLACES)?;
//! let mut returned = Receiver::new(returned, bell, Spin::default());
//! let mut leases = Leases::new(PLACES as usize);
//!
//! // The holder maps them.
//! let rings = Arc::new(SharedRegion::adopt(rings_of_holder, 1 << 20)?);
//! let bell = Arc::new(Bell::adopt(bell_of_holder)?);
//! let incoming = Consumer::new(window(&rings, 0).ok_or("too small")?, PLACES)?;
//! let mut incoming = Receiver::new(incoming, bell.clone(), Spin::default());
//! let returns = Producer::new(window(&rings, 1).ok_or("too small")?, PLACES)?;
//! let mut holdings = Holdings::new(FRAME + 1, 1 << 20, Sender::new(returns, bell));
//! holdings.add(ReadRegion::adopt(sealed, 1 << 30)?);
//!
//! // The owner lends a block. None left would mean: wait until one comes back.
//! let mut block = heap.alloc(5).ok_or("no memory left")?;
//! heap.bytes_mut(&mut block).ok_or("of this heap")?.copy_from_slice(b"frame");
//! let mut message = block.describe(FRAME);
//! message.lease = leases.lend(block, Holder(1)).map_err(|(_, error)| error)?;
//! assert!(frames.send(&message)?);
//!
//! // The holder reads it where it lies.
//! assert_eq!(incoming.wait(None)?, Woken::Ready);
//! let frame = holdings.take(&incoming.receive()?.ok_or("nothing came")?)?;
//! assert_eq!(&*frame, b"frame");
//! drop(frame);
//!
//! // The owner learns it and frees the block.
//! assert_eq!(returned.wait(None)?, Woken::Ready);
//! let message = returned.receive()?.ok_or("nothing came back")?;
//! let block = leases.returned(Holder(1), &message)?.ok_or("somebody reads it")?;
//! assert!(heap.free(block).is_ok());
//! assert_eq!(heap.used(), 0);
//! # Ok(())
//! # }
//! ```
#![allow(
    unsafe_code,
    reason = "mapped memory is reached by pointers; `region` has nearly all of it, and each block says why it is sound"
)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

pub mod descriptor;
pub mod heap;
pub mod lease;
pub mod region;
pub mod ring;
pub mod wake;

#[cfg(test)]
mod mutations;
#[cfg(test)]
mod on_loom;
