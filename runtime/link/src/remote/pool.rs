//! Memory for large payloads, used again when their records are gone: new memory of this size from the system costs
//! as much as reading it from a socket.
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError};

/// Bytes of payloads that a receiving end takes from its stream ahead of its reader.
pub const READ_AHEAD: usize = 8 << 20;
/// From this size on a payload is read into its own memory and nowhere else.
pub(super) const LARGE: usize = 64 << 10;
/// Bytes that the process keeps for payloads to come, at most.
pub const POOL_BYTES: usize = 64 << 20;
/// Sizes are powers of two, from the first that holds a large payload to the first that holds what is given on trust.
const SMALLEST: u32 = LARGE.ilog2() + 1;
const LARGEST: u32 = READ_AHEAD.ilog2() + 1;
const SIZES: usize = (LARGEST - SMALLEST + 1) as usize;

struct Kept {
    sizes: [Vec<Vec<u8>>; SIZES],
    bytes: usize,
}

static POOL: Mutex<Kept> = Mutex::new(Kept { sizes: [const { Vec::new() }; SIZES], bytes: 0 });

/// Returns the index of the size, if memory of this size is kept.
fn size_of(bytes: usize) -> Option<usize> {
    let size = bytes.checked_next_power_of_two()?.ilog2();
    (bytes > LARGE && (SMALLEST..=LARGEST).contains(&size)).then(|| (size - SMALLEST) as usize)
}

/// Bytes that go back to the pool. What they are at first is anything.
pub(super) struct Memory(Vec<u8>);

impl Memory {
    /// Returns memory of at least this length.
    pub(super) fn of(length: usize) -> Self {
        let Some(size) = size_of(length) else { return Self(vec![0; length]) };
        let mut kept = POOL.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bytes) = kept.sizes[size].pop() {
            kept.bytes -= bytes.len();
            return Self(bytes);
        }
        drop(kept);
        Self(vec![0; length.next_power_of_two()])
    }

    /// Makes it longer, for what is too large to be kept.
    pub(super) fn grow(&mut self, length: usize) {
        self.0.resize(length, 0);
    }
}

impl Deref for Memory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl AsRef<[u8]> for Memory {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.0);
        // Only lengths that `of` makes: a larger one would be found under a size it is not.
        let Some(size) = size_of(bytes.len()).filter(|_| bytes.len().is_power_of_two()) else { return };
        let mut kept = POOL.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.bytes + bytes.len() <= POOL_BYTES {
            kept.bytes += bytes.len();
            kept.sizes[size].push(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_large_is_kept_and_not_too_much() {
        assert_eq!([1, LARGE, 2 * READ_AHEAD + 1].map(size_of), [None; 3]);
        assert_eq!(size_of(LARGE + 1), Some(0));
        assert_eq!(size_of(2 * READ_AHEAD), Some(SIZES - 1));
        let all: Vec<Memory> = (0..200).map(|_| Memory::of(1 << 20)).collect();
        assert!(all.iter().all(|memory| memory.len() == 1 << 20));
        drop(all);
        assert!(POOL.lock().unwrap().bytes <= POOL_BYTES);
        assert_eq!(Memory::of(100).len(), 100);
    }
}
