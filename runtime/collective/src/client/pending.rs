//! Operations that have been called.
use super::connection::Connection;
use super::{Error, now};
use crate::protocol::Failure;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// An operation that has been called. Dropping it does not end it.
#[derive(Debug)]
pub struct Pending {
    connection: Arc<Connection>,
    number: u64,
    readable: Option<OwnedFd>,
    /// How it ended, once that is known.
    end: Option<Option<Failure>>,
}

impl Pending {
    pub(super) fn new(connection: Arc<Connection>, number: u64, readable: Option<OwnedFd>) -> Self {
        Self { connection, number, readable, end: None }
    }

    /// Becomes readable when the operation has ended, well or not; where [`readable`](super::CallOptions::readable) was wanted.
    pub fn readable(&self) -> Option<BorrowedFd<'_>> {
        self.readable.as_ref().map(AsFd::as_fd)
    }

    /// Waits until it has ended.
    ///
    /// # Errors
    /// [`Error::Failed`], with the rank and the host that caused it.
    pub fn wait(mut self) -> Result<(), Error> {
        self.wait_until(None).map(drop)
    }

    /// Waits until it has ended, for this time at most. Returns whether it has; the outcome stays the same then.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use tidemill_collective::client::{Error, Pending};
    /// # fn compute() {}
    /// # fn example(mut pending: Pending) -> Result<(), Error> {
    /// while !pending.wait_for(Duration::ZERO)? {
    ///     compute();
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Pending::wait`].
    pub fn wait_for(&mut self, time: Duration) -> Result<bool, Error> {
        self.wait_until(now().checked_add(time))
    }

    fn wait_until(&mut self, until: Option<Instant>) -> Result<bool, Error> {
        let number = self.number;
        if self.end.is_none() {
            self.end = self.connection.wait_until(until, |state| state.ended.remove(&number))?;
        }
        match &self.end {
            None => Ok(false),
            Some(None) => Ok(true),
            Some(Some(failure)) => Err(Error::Failed(failure.clone())),
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let mut state = self.connection.locked();
        if self.end.is_none() && state.ended.remove(&self.number).is_none() {
            state.forgotten.insert(self.number);
        }
    }
}
