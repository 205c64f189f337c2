//! The time until which a wire or a device is busy: of one process, or of all processes of a run.
use super::times::SharedTimes;
use crate::clock::Nanoseconds;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

/// See the module.
#[derive(Debug)]
pub(super) enum FreeAt {
    /// Used by this process only.
    Own(Mutex<Nanoseconds>),
    /// Shared with other processes; its number among all.
    Shared(Arc<SharedTimes>, usize),
}

impl FreeAt {
    /// Idle since ever, for this process only.
    pub(super) fn own() -> Self {
        Self::Own(Mutex::new(Nanoseconds::MIN))
    }

    /// The shared time of this number.
    pub(super) fn shared(times: &Arc<SharedTimes>, number: usize) -> Self {
        Self::Shared(Arc::clone(times), number)
    }

    /// Changes the time exclusively; returns the new one.
    ///
    /// # Errors
    /// The shared times cannot be read or written.
    pub(super) fn change(&self, change: impl FnOnce(Nanoseconds) -> Nanoseconds) -> io::Result<Nanoseconds> {
        match self {
            Self::Own(time) => {
                let mut time = time.lock().unwrap_or_else(PoisonError::into_inner);
                *time = change(*time);
                Ok(*time)
            }
            Self::Shared(times, number) => times.change(*number, change),
        }
    }
}
