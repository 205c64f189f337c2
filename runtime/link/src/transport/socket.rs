//! Sockets of the system as streams.
use super::{Line, Stream};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, recv, sendmsg, shutdown};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// A connected socket that never blocks.
pub(crate) struct Socket(Arc<SocketLine>);

/// The descriptor of a socket.
struct SocketLine(OwnedFd);

impl Socket {
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(Self(Arc::new(SocketLine(socket))))
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.0.as_fd()
    }
}

/// Tries again when a signal came between.
pub(super) fn again<T>(mut act: impl FnMut() -> rustix::io::Result<T>) -> io::Result<T> {
    loop {
        match act() {
            Err(rustix::io::Errno::INTR) => {}
            result => return result.map_err(io::Error::from),
        }
    }
}

impl Stream for Socket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        again(|| recv(&*self, &mut *into, RecvFlags::empty()).map(|(_, n)| n))
    }

    fn write(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        // Not `writev`: a peer that is gone must not be a signal, whatever the process does with those.
        again(|| sendmsg(&*self, parts, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL))
    }

    fn line(&self) -> Arc<dyn Line> {
        Arc::<SocketLine>::clone(&self.0)
    }
}

impl Line for SocketLine {
    fn readable(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd())
    }

    fn hang_up(&self) {
        // It may be closed already.
        let _ = shutdown(&self.0, Shutdown::Both);
    }
}
