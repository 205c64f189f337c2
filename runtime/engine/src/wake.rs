//! Wake-ups between threads: an eventfd that is written at most once until its owner looks.
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// Wakes the thread that waits for its descriptor; many calls before it looks cost one system call.
#[derive(Debug)]
pub struct Waker {
    descriptor: OwnedFd,
    pending: AtomicBool,
}

impl Waker {
    /// A new eventfd.
    ///
    /// # Errors
    /// When the process has no descriptors left.
    pub fn new() -> std::io::Result<Self> {
        let descriptor = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { descriptor, pending: AtomicBool::new(false) })
    }

    /// Wakes the owner.
    pub fn wake(&self) {
        if !self.pending.swap(true, Ordering::AcqRel) {
            // The counter cannot overflow: it is at most 1. Nothing else can fail on an open eventfd.
            let _ = rustix::io::write(&self.descriptor, &1u64.to_ne_bytes());
        }
    }

    /// Called by the owner BEFORE it looks at what it was woken for, so that no wake-up is lost between.
    /// Tells whether there was one.
    pub fn clear(&self) -> bool {
        if !self.pending.load(Ordering::Acquire) {
            return false;
        }
        let _ = rustix::io::read(&self.descriptor, &mut [0u8; 8]);
        self.pending.swap(false, Ordering::AcqRel)
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wake_ups_coalesce_and_none_is_lost() {
        let waker = Waker::new().expect("eventfd");
        assert!(!waker.clear());
        waker.wake();
        waker.wake();
        assert!(waker.clear());
        assert!(!waker.clear());
        waker.wake();
        assert!(waker.clear());
    }
}
