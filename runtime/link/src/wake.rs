//! Wake-ups between threads: an eventfd that is written at most once until its owner looks.
//!
//! The protocol is generic over its flag and its signal, so that `loom` can check the very same code.
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A flag shared by two threads.
trait Flag {
    fn swap(&self, value: bool) -> bool;
    fn is_set(&self) -> bool;
}

/// The signal that wakes the owner.
trait Signal {
    fn raise(&self);
    fn take(&self);
}

/// Raises a signal at most once until it is cleared.
#[derive(Debug)]
struct Coalesced<F, S> {
    pending: F,
    signal: S,
}

impl<F: Flag, S: Signal> Coalesced<F, S> {
    fn wake(&self) {
        if !self.pending.swap(true) {
            self.signal.raise();
        }
    }

    fn clear(&self) -> bool {
        if !self.pending.is_set() {
            return false;
        }
        self.signal.take();
        // After the signal: who raises it again from here on finds the flag down and raises the signal too.
        self.pending.swap(false)
    }
}

impl Flag for AtomicBool {
    fn swap(&self, value: bool) -> bool {
        AtomicBool::swap(self, value, Ordering::AcqRel)
    }

    fn is_set(&self) -> bool {
        self.load(Ordering::Acquire)
    }
}

/// An eventfd: readable from when it is raised until it is lowered. Who waits by edges sees each raise.
#[derive(Debug)]
pub struct Event(OwnedFd);

impl Event {
    /// Makes a new one, lowered.
    ///
    /// # Errors
    /// When the process has no descriptors left.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Makes it readable.
    pub fn raise(&self) {
        // The counter cannot overflow: it is at most a few. Nothing else can fail on an open eventfd.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Makes it unreadable.
    pub fn lower(&self) {
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Signal for Event {
    fn raise(&self) {
        Self::raise(self);
    }

    fn take(&self) {
        self.lower();
    }
}

/// Wakes the thread that waits for its descriptor; many calls before it looks cost one system call.
#[derive(Debug)]
pub struct Waker(Coalesced<AtomicBool, Event>);

impl Waker {
    /// Makes a new eventfd.
    ///
    /// # Errors
    /// When the process has no descriptors left.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self(Coalesced { pending: AtomicBool::new(false), signal: Event::new()? }))
    }

    /// Wakes the owner.
    pub fn wake(&self) {
        self.0.wake();
    }

    /// Sleeps until a wake-up or the timeout; none: no timeout. A signal may end it earlier, so callers look at the
    /// time themselves.
    pub fn wait(&self, timeout: Option<Duration>) {
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(timeout.subsec_nanos()),
        });
        // An open eventfd can be polled; what else may fail, such as a signal, ends the sleep early.
        let rung = poll(&mut [PollFd::new(self, PollFlags::IN)], timeout.as_ref());
        // The signal may come after the flag it belongs to was cleared; left there it would end every later sleep at once.
        if rung.is_ok_and(|rung| rung > 0) {
            self.0.signal.take();
        }
    }

    /// Called by the owner BEFORE it looks at its work, so that no wake-up is lost between. Returns whether there was
    /// one.
    pub fn clear(&self) -> bool {
        self.0.clear()
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.signal.as_fd()
    }
}

/// A waker that loom understands.
#[cfg(test)]
pub(crate) mod on_loom {
    use super::{Coalesced, Flag, Ordering, Signal};

    impl Flag for loom::sync::atomic::AtomicBool {
        fn swap(&self, value: bool) -> bool {
            loom::sync::atomic::AtomicBool::swap(self, value, Ordering::AcqRel)
        }

        fn is_set(&self) -> bool {
            self.load(Ordering::Acquire)
        }
    }

    /// An eventfd that loom understands: a thread that waits for ever is a dead-lock it reports.
    #[derive(Default)]
    struct Bell {
        rung: loom::sync::Mutex<bool>,
        changed: loom::sync::Condvar,
    }

    impl Signal for Bell {
        fn raise(&self) {
            *self.rung.lock().expect("not poisoned") = true;
            self.changed.notify_one();
        }

        fn take(&self) {
            *self.rung.lock().expect("not poisoned") = false;
        }
    }

    pub(crate) struct LoomWaker(Coalesced<loom::sync::atomic::AtomicBool, Bell>);

    impl Default for LoomWaker {
        fn default() -> Self {
            let pending = loom::sync::atomic::AtomicBool::new(false);
            Self(Coalesced { pending, signal: Bell::default() })
        }
    }

    impl LoomWaker {
        pub(crate) fn wake(&self) {
            self.0.wake();
        }

        /// Waits for the signal.
        pub(crate) fn sleep(&self) {
            let mut rung = self.0.signal.rung.lock().expect("not poisoned");
            while !*rung {
                rung = self.0.signal.changed.wait(rung).expect("not poisoned");
            }
        }

        pub(crate) fn clear(&self) -> bool {
            self.0.clear()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::on_loom::LoomWaker;
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

    /// Every interleaving of a writer and a reader that sleeps between: all items arrive, none sleeps for ever.
    /// Three items: a lost wake-up shows only at the one after.
    #[test]
    fn loom_finds_no_interleaving_that_loses_a_wake_up() {
        const ITEMS: usize = 3;
        loom::model(|| {
            let waker = loom::sync::Arc::new(LoomWaker::default());
            let queue = loom::sync::Arc::new(loom::sync::Mutex::new(0));
            let writer = {
                let (waker, queue) = (waker.clone(), queue.clone());
                loom::thread::spawn(move || {
                    for _ in 0..ITEMS {
                        *queue.lock().expect("not poisoned") += 1;
                        waker.wake();
                    }
                })
            };
            let mut seen = 0;
            while seen < ITEMS {
                waker.sleep();
                waker.clear();
                seen += std::mem::take(&mut *queue.lock().expect("not poisoned"));
            }
            writer.join().expect("does not panic");
        });
    }
}
