//! Descriptors that programs send: the thread of a group closes only those whose end takes no time.
//!
//! A socket of TCP with `SO_LINGER` is closed when the other side has its bytes, a terminal when it has written them, a file of a network
//! when its server has answered. Whoever sends such a one would stop the thread.
use rustix::fs::{FileType, fstat};
use rustix::net::{AddressFamily, sockopt::socket_domain};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::Builder;

/// Threads that close, at most.
const MOST: usize = 64;

static CLOSING: AtomicUsize = AtomicUsize::new(0);

/// Returns whether the descriptor is a pipe, a Unix socket, or one of the kernel's own, such as an eventfd.
pub(super) fn ends_at_once(descriptor: impl AsFd) -> bool {
    match fstat(&descriptor).map(|stat| FileType::from_raw_mode(stat.st_mode)) {
        Ok(FileType::Fifo | FileType::Unknown) => true,
        Ok(FileType::Socket) => socket_domain(&descriptor) == Ok(AddressFamily::UNIX),
        _ => false,
    }
}

/// Closes descriptors on a thread of their own. Where too many do that, the caller waits.
pub(super) fn close(descriptors: Vec<OwnedFd>) {
    let more = |count| (count < MOST).then_some(count + 1);
    if CLOSING.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_err() {
        return;
    }
    let close = move || {
        drop(descriptors);
        CLOSING.fetch_sub(1, Ordering::Relaxed);
    };
    if Builder::new().name("tm-group-close".into()).spawn(close).is_err() {
        CLOSING.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_take_long_is_told_from_what_does_not() {
        let (one, other) = std::os::unix::net::UnixStream::pair().unwrap();
        let (reads, writes) = rustix::pipe::pipe().unwrap();
        let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        assert!(ends_at_once(&one) && ends_at_once(&other) && ends_at_once(&event));
        assert!(ends_at_once(&reads) && ends_at_once(&writes));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let file = tempfile::tempfile().unwrap();
        let device = std::fs::File::open("/dev/null").unwrap();
        assert!(!ends_at_once(&listener) && !ends_at_once(&file) && !ends_at_once(&device));
    }
}
