//! A connection as a stream of bytes, for protocols that are not of channels.
use super::carrier::Carrier;
use crate::transport::Line;
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Bytes in both directions, whole and in order, verified and encrypted as the connection is. Nothing blocks.
pub struct ByteStream(Carrier);

impl ByteStream {
    pub(super) fn new(carrier: Carrier) -> Self {
        Self(carrier)
    }

    /// Reads into the slice; 0 at the end.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when nothing is there; others when the connection broke.
    pub fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into)
    }

    /// Writes as much as goes now. [`ByteStream::flush`] follows until nothing is held back.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when that is nothing; others when the other side is gone.
    pub fn write(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.write(parts)
    }

    /// Writes what encryption holds back.
    ///
    /// # Errors
    /// As [`ByteStream::write`].
    pub fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }

    /// Returns whether a read that fills less than its slice has emptied the stream.
    pub fn is_plain(&self) -> bool {
        !self.0.is_secured()
    }

    /// Becomes the socket that carries the bytes as they are, for another process or for reads that block; otherwise stays what it is:
    /// with TLS, or over a transport that has no socket of the system for each connection.
    ///
    /// # Errors
    /// The stream itself, where there is no such socket. The inner result: the system has no descriptor left.
    pub fn into_socket(self) -> Result<io::Result<OwnedFd>, Self> {
        if self.0.is_secured() {
            return Err(self);
        }
        let Some(socket) = self.line().socket().map(|socket| socket.try_clone_to_owned()) else {
            return Err(self);
        };
        Ok(socket.and_then(|socket| {
            rustix::io::ioctl_fionbio(&socket, false)?;
            Ok(socket)
        }))
    }

    /// The part that is waited for.
    pub fn line(&self) -> Arc<dyn Line> {
        self.0.line()
    }
}

impl Drop for ByteStream {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl std::fmt::Debug for ByteStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ByteStream").finish_non_exhaustive()
    }
}
