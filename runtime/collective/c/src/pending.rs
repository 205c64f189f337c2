//! Operations that have been called.
use crate::handles::Table;
use crate::status::{Fault, TIMEOUT, guarded};
use std::ffi::c_int;
use std::os::fd::AsRawFd;
use std::sync::{Mutex, TryLockError};
use std::time::Duration;
use tidemill_collective::client::Pending;

/// An operation, with the number of its descriptor or -1.
struct Called {
    descriptor: c_int,
    /// Locked by the thread that waits.
    pending: Mutex<Pending>,
}

static PENDING: Table<Called> = Table::new("pending operation");

/// `tidemill_pending` of the header.
#[repr(C)]
pub struct PendingHandle {
    opaque: [u8; 0],
}

/// Returns the number of the handle of an operation.
pub(crate) fn add(pending: Pending) -> usize {
    let descriptor = pending.readable().map_or(-1, |descriptor| descriptor.as_raw_fd());
    PENDING.add(Called { descriptor, pending: Mutex::new(pending) })
}

/// Waits for the end of an operation.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
pub extern "C" fn tidemill_pending_wait(pending: *mut PendingHandle, timeout_ms: i64) -> c_int {
    guarded(|| {
        let called = PENDING.get(pending)?;
        let mut pending = match called.pending.try_lock() {
            Ok(pending) => pending,
            Err(TryLockError::Poisoned(pending)) => pending.into_inner(),
            Err(TryLockError::WouldBlock) => {
                return Err(Fault::invalid("another thread waits for this operation"));
            }
        };
        // A negative number: no limit.
        let time = u64::try_from(timeout_ms).map_or(Duration::MAX, Duration::from_millis);
        match pending.wait_for(time)? {
            true => Ok(()),
            false => Err(Fault::new(TIMEOUT, format!("the operation has not ended within {timeout_ms} ms"))),
        }
    })
}

/// Returns the descriptor that becomes readable at the end; -1: it was not wanted.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
pub extern "C" fn tidemill_pending_fd(pending: *mut PendingHandle) -> c_int {
    let mut descriptor = -1;
    guarded(|| {
        descriptor = PENDING.get(pending)?.descriptor;
        match descriptor {
            -1 => Err(Fault::invalid("the operation was called without TIDEMILL_READABLE")),
            _ => Ok(()),
        }
    });
    descriptor
}

/// Frees the handle of an operation, which continues.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
pub extern "C" fn tidemill_pending_free(pending: *mut PendingHandle) -> c_int {
    guarded(|| PENDING.free(pending).map(drop))
}
