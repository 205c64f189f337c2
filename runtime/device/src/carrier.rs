//! Connections that carry the calls of a session.
use crate::call::{HEAD, Head};
use bytes::{Bytes, BytesMut};
use rustix::event::{PollFd, PollFlags, poll};
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidemill_link::remote::ByteStream;
use tidemill_link::transport::Line;

/// Writes whole parts, in order; blocks.
pub(crate) trait Outgoing: Send {
    fn send(&mut self, parts: &mut [IoSlice<'_>]) -> io::Result<()>;
}

/// Reads some bytes; blocks. 0: the other side has ended.
pub(crate) trait Arriving: Send {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize>;
}

/// Ends the connection, from any thread.
pub(crate) type HangUp = Box<dyn Fn() + Send + Sync>;

/// Both directions of a connection.
pub struct Carrier {
    pub(crate) outgoing: Box<dyn Outgoing>,
    pub(crate) arriving: Box<dyn Arriving>,
    pub(crate) hang_up: HangUp,
}

impl std::fmt::Debug for Carrier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Carrier").finish_non_exhaustive()
    }
}

impl Carrier {
    /// Of a socket to a process of this host.
    ///
    /// # Errors
    /// If the system has no descriptor left.
    pub fn of_socket(socket: UnixStream) -> io::Result<Self> {
        let (outgoing, ends) = (socket.try_clone()?, socket.try_clone()?);
        let hang_up = Box::new(move || {
            // It may have ended already.
            let _ = ends.shutdown(Shutdown::Both);
        });
        Ok(Self { outgoing: Box::new(outgoing), arriving: Box::new(socket), hang_up })
    }

    /// Of a connected socket of any kind, whose reads block.
    ///
    /// # Errors
    /// If the system has no descriptor left.
    pub fn of_descriptor(socket: OwnedFd) -> io::Result<Self> {
        // Reads, writes and ends of a stream socket are the same for all families.
        Self::of_socket(socket.into())
    }

    /// Of a connection between two hosts: TCP, TLS on it, or a session over several paths.
    pub fn of_stream(stream: ByteStream) -> Self {
        let line = stream.line();
        let (plain, ends) = (stream.is_plain(), Arc::clone(&line));
        let stream = Arc::new(Mutex::new(stream));
        let other = Half { stream: Arc::clone(&stream), line: Arc::clone(&line), plain };
        let hang_up = Box::new(move || ends.hang_up());
        Self { outgoing: Box::new(Half { stream, line, plain }), arriving: Box::new(other), hang_up }
    }
}

impl Outgoing for UnixStream {
    fn send(&mut self, mut parts: &mut [IoSlice<'_>]) -> io::Result<()> {
        IoSlice::advance_slices(&mut parts, 0);
        while !parts.is_empty() {
            match self.write_vectored(parts) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => IoSlice::advance_slices(&mut parts, written),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Arriving for UnixStream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            match Read::read(self, into) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // The other process ended while it had not read everything.
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(0),
                other => return other,
            }
        }
    }
}

/// One direction of a stream that never blocks; both share it, and wait outside its lock.
struct Half {
    stream: Arc<Mutex<ByteStream>>,
    line: Arc<dyn Line>,
    plain: bool,
}

impl Half {
    fn stream(&self) -> MutexGuard<'_, ByteStream> {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self, to_write: bool) {
        let mut descriptors = [match (to_write, self.line.writable()) {
            (true, Some(writable)) => PollFd::from_borrowed_fd(writable, PollFlags::IN),
            (true, None) => PollFd::from_borrowed_fd(self.line.readable(), PollFlags::OUT),
            (false, _) => PollFd::from_borrowed_fd(self.line.readable(), PollFlags::IN),
        }];
        // A signal ends it early: the caller tries again.
        let _ = poll(&mut descriptors, None);
    }
}

impl Outgoing for Half {
    fn send(&mut self, mut parts: &mut [IoSlice<'_>]) -> io::Result<()> {
        IoSlice::advance_slices(&mut parts, 0);
        while !parts.is_empty() {
            let written = self.stream().write(parts);
            match written {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => IoSlice::advance_slices(&mut parts, written),
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.wait(true),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        while !self.plain {
            let flushed = self.stream().flush();
            match flushed {
                Ok(()) => break,
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.wait(true),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Arriving for Half {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = self.stream().read(into);
            match read {
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.wait(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // The other side ended while it had not read everything, or without a last word of TLS. A message that is cut is
                // noticed.
                Err(error)
                    if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof) =>
                {
                    return Ok(0);
                }
                other => return other,
            }
        }
    }
}

/// Bytes that are read at once where no long payload is under way.
const READ: usize = 64 << 10;

/// Reads messages.
pub(crate) struct Messages {
    arriving: Box<dyn Arriving>,
    buffer: Vec<u8>,
    unread: std::ops::Range<usize>,
}

impl Messages {
    pub(crate) fn new(arriving: Box<dyn Arriving>) -> Self {
        Self { arriving, buffer: vec![0; READ], unread: 0..0 }
    }

    /// The next message; none at the end between two messages.
    pub(crate) fn next(&mut self) -> io::Result<Option<(Head, Bytes)>> {
        let mut head = [0; HEAD];
        if !self.fill(&mut head)? {
            return Ok(None);
        }
        let head = Head::from_bytes(&head).map_err(|text| io::Error::new(ErrorKind::InvalidData, text))?;
        let mut payload = BytesMut::zeroed(head.payload as usize);
        if !self.fill(&mut payload)? && !payload.is_empty() {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        Ok(Some((head, payload.freeze())))
    }

    /// Fills the slice; false: the end came before its first byte.
    fn fill(&mut self, into: &mut [u8]) -> io::Result<bool> {
        let mut filled = 0;
        while filled < into.len() {
            let buffered = &self.buffer[self.unread.clone()];
            if !buffered.is_empty() {
                let taken = buffered.len().min(into.len() - filled);
                into[filled..filled + taken].copy_from_slice(&buffered[..taken]);
                (filled, self.unread.start) = (filled + taken, self.unread.start + taken);
                continue;
            }
            let read = if into.len() - filled >= READ {
                let read = self.arriving.read(&mut into[filled..])?;
                filled += read;
                read
            } else {
                let read = self.arriving.read(&mut self.buffer)?;
                self.unread = 0..read;
                read
            };
            match (read, filled) {
                (0, 0) => return Ok(false),
                (0, _) => return Err(ErrorKind::UnexpectedEof.into()),
                _ => {}
            }
        }
        Ok(true)
    }
}
