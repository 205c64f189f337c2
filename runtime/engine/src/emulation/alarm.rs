//! Wakes the receivers of emulated links when a frame arrives: one thread for all wires of a run.
use crate::clock::{Clock, Nanoseconds};
use crate::wake::Waker;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// A time, and the waker for it.
struct Due {
    at: Nanoseconds,
    waker: Arc<Waker>,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.at.cmp(&other.at)
    }
}

struct Shared {
    clock: Arc<dyn Clock>,
    due: Mutex<BinaryHeap<Reverse<Due>>>,
    /// Wakes the thread: there is an earlier time, time jumped, or it is over.
    waker: Arc<Waker>,
    closed: AtomicBool,
}

/// The thread; it ends with this.
pub(crate) struct Alarm {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Alarm {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system has no thread or descriptor left.
    pub(crate) fn start(clock: &Arc<dyn Clock>) -> std::io::Result<Self> {
        let waker = Arc::new(Waker::new()?);
        clock.on_jump(&waker);
        let shared = Arc::new(Shared {
            clock: Arc::clone(clock),
            due: Mutex::default(),
            waker,
            closed: AtomicBool::new(false),
        });
        let own = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("tm-wires".into()).spawn(move || own.ring())?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Ends the thread: no receiver is woken any more.
    pub(super) fn close(&self) {
        self.shared.closed.store(true, Ordering::Release);
        self.shared.waker.wake();
    }

    /// Wakes `waker` at `at`, or now if that is past.
    pub(super) fn set(&self, at: Nanoseconds, waker: &Arc<Waker>) {
        if at <= self.shared.clock.now() {
            waker.wake();
            return;
        }
        let earlier = {
            let mut due = self.shared.due.lock().unwrap_or_else(PoisonError::into_inner);
            let earlier = due.peek().is_none_or(|Reverse(first)| at < first.at);
            due.push(Reverse(Due { at, waker: Arc::clone(waker) }));
            earlier
        };
        if earlier {
            self.shared.waker.wake();
        }
    }
}

impl Shared {
    fn ring(&self) {
        loop {
            // Before the check for work: later changes wake it again.
            self.waker.clear();
            if self.closed.load(Ordering::Acquire) {
                return;
            }
            let next = {
                let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
                let now = self.clock.now();
                while let Some(Reverse(first)) = due.peek()
                    && first.at <= now
                {
                    first.waker.wake();
                    due.pop();
                }
                due.peek().map(|Reverse(first)| first.at)
            };
            self.waker.wait(next.and_then(|at| self.clock.real_time_until(at)));
        }
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        self.close();
        if let Some(thread) = self.thread.take() {
            // It panics nowhere, and if it did there would be nothing left to do.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    #[test]
    fn wakes_at_the_time_and_not_before() {
        let clock = Arc::new(ManualClock::new());
        let alarm = Alarm::start(&(Arc::clone(&clock) as Arc<dyn Clock>)).expect("a thread");
        let [early, late, now] = [(); 3].map(|()| Arc::new(Waker::new().expect("eventfd")));
        alarm.set(20, &late);
        alarm.set(10, &early);
        alarm.set(0, &now);
        assert!(now.clear(), "at once");
        clock.advance(10);
        early.wait(None);
        assert!(early.clear() && !late.clear());
        clock.advance(10);
        late.wait(None);
        assert!(late.clear());
    }
}
