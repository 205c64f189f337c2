//! Waits of several threads for times of the run's clock, which all end with the run.
use crate::clock::{Clock, Nanoseconds};
use crate::wake::Waker;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Default)]
struct Wakers {
    /// Those of threads that wait, too.
    all: Vec<Arc<Waker>>,
    idle: Vec<Arc<Waker>>,
    is_closed: bool,
}

/// See the module.
pub(super) struct Sleepers {
    clock: Arc<dyn Clock>,
    wakers: Mutex<Wakers>,
}

impl Sleepers {
    pub(super) fn new(clock: &Arc<dyn Clock>) -> Self {
        Self { clock: Arc::clone(clock), wakers: Mutex::default() }
    }

    fn wakers(&self) -> MutexGuard<'_, Wakers> {
        self.wakers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until this time, or the end of the run.
    ///
    /// # Errors
    /// When the system has no descriptor left.
    pub(super) fn sleep_until(&self, deadline: Nanoseconds) -> io::Result<()> {
        if self.clock.now() >= deadline {
            return Ok(());
        }
        let idle = self.wakers().idle.pop();
        let waker = match idle {
            Some(waker) => waker,
            None => self.add()?,
        };
        while self.clock.now() < deadline && !self.wakers().is_closed {
            waker.wait(self.clock.real_time_until(deadline));
            waker.clear();
        }
        self.wakers().idle.push(waker);
        Ok(())
    }

    fn add(&self) -> io::Result<Arc<Waker>> {
        let waker = Arc::new(Waker::new()?);
        self.clock.on_jump(&waker);
        self.wakers().all.push(Arc::clone(&waker));
        Ok(waker)
    }

    /// Ends all waits, now and later.
    pub(super) fn close(&self) {
        let mut wakers = self.wakers();
        wakers.is_closed = true;
        wakers.all.iter().for_each(|waker| waker.wake());
    }

    /// Number of threads that wait now.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        let wakers = self.wakers();
        wakers.all.len() - wakers.idle.len()
    }
}
