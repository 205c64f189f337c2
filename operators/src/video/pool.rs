//! Reused buffers for the pixels of frames.
//!
//! A frame is half a megabyte or more. Memory allocated and freed for each read costs a page fault per page. So a buffer
//! returns to the pool when the last record that refers to it is dropped, and is filled again. The pool keeps a limited
//! number, and none far larger than requested.
use arrow_buffer::Buffer;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Most free buffers; buffers in use are not counted.
const MOST: usize = 4;
/// A buffer larger than the request by more than this factor is freed.
const MOST_SPARE: usize = 4;

/// A pool of buffers, see the module.
#[derive(Debug, Default)]
pub struct FramePool {
    free: Mutex<Vec<Vec<u8>>>,
    made: AtomicU64,
    used_again: AtomicU64,
}

impl FramePool {
    /// Returns an empty buffer with room for `capacity` bytes.
    pub fn take(&self, capacity: usize) -> Vec<u8> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(mut buffer) = free.pop() {
            if buffer.capacity() >= capacity && buffer.capacity() / MOST_SPARE <= capacity.max(1) {
                drop(free);
                self.used_again.fetch_add(1, Ordering::Relaxed);
                buffer.clear();
                return buffer;
            }
        }
        drop(free);
        self.made.fetch_add(1, Ordering::Relaxed);
        Vec::with_capacity(capacity)
    }

    /// Shares a filled buffer without a copy; it returns to the pool when the last reference is dropped.
    pub fn share(self: &Arc<Self>, filled: Vec<u8>) -> Buffer {
        let owner = Lent { buffer: filled, pool: Arc::downgrade(self) };
        Buffer::from(bytes::Bytes::from_owner(owner))
    }

    /// Returns how many buffers were allocated, and how often one was reused.
    pub fn counts(&self) -> (u64, u64) {
        (self.made.load(Ordering::Relaxed), self.used_again.load(Ordering::Relaxed))
    }
}

/// A buffer that records refer to.
struct Lent {
    buffer: Vec<u8>,
    /// Gone with its source; then the buffer is freed.
    pool: Weak<FramePool>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let Some(pool) = self.pool.upgrade() else { return };
        let mut free = pool.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < MOST {
            free.push(std::mem::take(&mut self.buffer));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_comes_back_with_the_last_reference() {
        let pool = Arc::new(FramePool::default());
        let mut buffer = pool.take(1000);
        buffer.extend_from_slice(&[7; 900]);
        let place = buffer.as_ptr();
        let shared = pool.share(buffer);
        assert_eq!((shared.as_ptr(), shared.len()), (place, 900), "it is the same memory");
        let part = shared.slice_with_length(100, 10);
        drop(shared);
        let other = pool.take(1000);
        assert_ne!(other.as_ptr(), place, "somebody still reads it");
        assert_eq!(part.as_slice(), [7; 10]);
        drop(part);
        let again = pool.take(800);
        assert_eq!((again.as_ptr(), again.len()), (place, 0));
        assert_eq!(pool.counts(), (2, 1));
    }

    #[test]
    fn only_some_are_kept_and_none_that_is_far_too_large() {
        let pool = Arc::new(FramePool::default());
        let shared: Vec<Buffer> = (0..MOST + 3).map(|_| pool.share(pool.take(1000))).collect();
        drop(shared);
        assert_eq!(pool.free.lock().unwrap().len(), MOST);
        assert!(pool.take(10).capacity() < 1000);
        assert!(pool.free.lock().unwrap().is_empty(), "none of these fits");
        let outlives = pool.share(vec![1, 2, 3]);
        drop(pool);
        assert_eq!(outlives.as_slice(), [1, 2, 3]);
    }
}
