//! Waits for streams and descriptors.
use crate::deadline::Deadline;
use crate::transport::Line;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::BorrowedFd;

/// The end of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waited {
    /// The descriptor is ready, or a signal came.
    Ready,
    /// It took too long.
    TimedOut,
    /// The other descriptor became readable.
    Stopped,
}

/// Waits for a descriptor; without a deadline as long as it takes.
pub(super) fn wait(
    descriptor: BorrowedFd<'_>,
    flags: PollFlags,
    deadline: Option<Deadline>,
    stop: Option<BorrowedFd<'_>>,
) -> Waited {
    let left = deadline.map(Deadline::left);
    if left.is_some_and(|left| left.is_zero()) {
        return Waited::TimedOut;
    }
    let timeout = left.map(|left| Timespec {
        tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(left.subsec_nanos()),
    });
    let mut descriptors = vec![PollFd::from_borrowed_fd(descriptor, flags)];
    descriptors.extend(stop.map(|stop| PollFd::from_borrowed_fd(stop, PollFlags::IN)));
    // A failure on open descriptors, such as a signal, ends the wait early; callers try and come back.
    let _ = poll(&mut descriptors, timeout.as_ref());
    match descriptors.get(1) {
        Some(stop) if !stop.revents().is_empty() => Waited::Stopped,
        _ => Waited::Ready,
    }
}

/// Waits until a stream can be read, as [`wait`].
pub(super) fn wait_to_read(
    line: &dyn Line,
    deadline: Option<Deadline>,
    stop: Option<BorrowedFd<'_>>,
) -> Waited {
    wait(line.readable(), PollFlags::IN, deadline, stop)
}

/// Waits until a stream can be written, as [`wait`].
pub(super) fn wait_to_write(
    line: &dyn Line,
    deadline: Option<Deadline>,
    stop: Option<BorrowedFd<'_>>,
) -> Waited {
    match line.writable() {
        Some(writable) => wait(writable, PollFlags::IN, deadline, stop),
        None => wait(line.readable(), PollFlags::OUT, deadline, stop),
    }
}
