//! Memory of calls: blocks of the own heap, and payloads of the service, until nobody reads them.
use super::{Endpoint, locked};
use bytes::Bytes;
use std::sync::{Arc, Mutex, Weak};
use tidemill_shm::descriptor::Descriptor;
use tidemill_shm::heap::{Block, Buffer};
use tidemill_shm::lease::Returning;
use tokio::sync::Notify;

/// Payloads that were read and are given back together, and their bytes: what is more is given back at once.
const RETURNS: usize = 32;
const RETURNED_BYTES: u64 = 1 << 20;

/// Blocks of the own heap that nobody reads any more.
#[derive(Default)]
pub(super) struct Freed {
    pub(super) blocks: Mutex<Vec<Block>>,
    pub(super) some: Notify,
}

/// A block of the own heap, as long as somebody reads it.
pub(super) struct Frozen {
    pub(super) buffer: Option<Buffer>,
    pub(super) freed: Arc<Freed>,
}

impl AsRef<[u8]> for Frozen {
    fn as_ref(&self) -> &[u8] {
        self.buffer.as_deref().unwrap_or_default()
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            locked(&self.freed.blocks).push(buffer.into_block());
            self.freed.some.notify_waiters();
        }
    }
}

/// Payloads of the service that nobody reads any more.
#[derive(Default)]
pub(super) struct Returns {
    pub(super) waiting: Mutex<(Vec<Descriptor>, u64)>,
    pub(super) endpoint: Mutex<Weak<Endpoint>>,
}

/// The part that leases have, which are dropped anywhere.
pub(super) struct ToReturns(pub(super) Arc<Returns>);

impl Returning for ToReturns {
    fn give(&mut self, message: Descriptor) {
        let is_enough = {
            let mut waiting = locked(&self.0.waiting);
            waiting.1 += u64::from(message.length);
            waiting.0.push(message);
            waiting.0.len() >= RETURNS || waiting.1 >= RETURNED_BYTES
        };
        let endpoint = is_enough.then(|| locked(&self.0.endpoint).upgrade()).flatten();
        if let Some(endpoint) = endpoint {
            match endpoint.state.try_lock() {
                Ok(mut state) => endpoint.flush(&mut state),
                // Who has it may be this thread.
                Err(_) => endpoint.look.notify_one(),
            }
        }
    }
}

/// Memory for the value of a `bytes` field, which reaches the other program without a copy in this one.
pub struct Room(pub(super) Frozen);

impl Room {
    /// Returns the bytes, to put them into messages. They are not written any more.
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self.0)
    }
}

impl std::ops::Deref for Room {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.as_ref()
    }
}

impl std::ops::DerefMut for Room {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.0.buffer.as_deref_mut().unwrap_or_default()
    }
}

impl std::fmt::Debug for Room {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Room").field("bytes", &self.len()).finish()
    }
}
