//! Transports carry bytes between two sides, which may be threads, processes or hosts.
//!
//! A transport has a scheme, such as `tcp`, and reads the rest of an [`Address`] itself. It listens, dials, and makes
//! a [`Stream`] for each connection. The layers above are the same for all of them: TLS and credentials, greetings,
//! frames, checksums and credits ([`crate::remote`]).
//!
//! One more transport is one file that implements [`Transport`], and one call of [`register`] before addresses of its
//! scheme are read. [`conformance`] holds every transport to the same behaviour.
//!
//! # How threads wait
//! A stream never blocks. A thread that has to wait polls descriptors of its [`Line`]. A transport without
//! descriptors of its own raises [`Event`](crate::wake::Event)s instead, as the one in memory does.
mod address;
pub mod conformance;
mod memory;
mod paths;
mod socket;
mod tcp;
mod unix;

pub use address::{Address, AddressError};
pub use paths::{Health, PathFigures};
pub(crate) use socket::Socket;
#[cfg(test)]
pub(crate) use tcp::configure;
pub use tcp::{PEER_TIMEOUT, tcp_stream};
#[cfg(test)]
pub(crate) use unix::LocalSocket;

use std::io::{self, IoSlice};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

/// Connects sides whose addresses have its scheme.
pub trait Transport: Send + Sync {
    /// Begins its addresses: `SCHEME://PLACE`.
    fn scheme(&self) -> &'static str;
    /// Returns the form of its places, for messages: `HOST:PORT`.
    fn form(&self) -> &'static str;
    /// Returns whether a text is written as its places are.
    fn is_place(&self, place: &str) -> bool;
    /// A place of this host that the side that listens chooses: others of this host can dial where it listens then.
    fn anywhere(&self) -> &'static str;
    /// A place of this host that the side that listens chooses, for a process of the same run as the side at `place`. Default:
    /// [`Transport::anywhere`]. A transport whose places say more than where a side listens keeps that.
    fn beside(&self, place: &str) -> String {
        let _ = place;
        self.anywhere().to_owned()
    }
    /// Listens.
    ///
    /// # Errors
    /// When the place is taken or not of this host.
    fn listen(&self, place: &str) -> io::Result<Box<dyn Acceptor>>;
    /// Connects to a side that listens.
    ///
    /// # Errors
    /// When nothing listens there; [`io::ErrorKind::TimedOut`] when the other side takes longer than that.
    fn dial(&self, place: &str, timeout: Duration) -> io::Result<Box<dyn Stream>>;
    /// Returns the figures of the paths to the places that were dialled. Default: the transport has no paths.
    fn paths(&self) -> Vec<PathFigures> {
        Vec::new()
    }
}

/// A place where a side listens. Dropping it frees the place; connections that were made stay.
pub trait Acceptor: Send {
    /// The place that others dial, with everything that the transport chose.
    fn place(&self) -> String;
    /// The next connection that has been dialled.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when there is none; [`io::ErrorKind::PermissionDenied`] when the next one is turned away.
    fn accept(&self) -> io::Result<Box<dyn Stream>>;
    /// Becomes readable when there is something to accept.
    fn readable(&self) -> BorrowedFd<'_>;
}

/// One side of a connection: bytes in both directions, whole and in order. Dropping it ends the connection; the other
/// side can still read everything that was written before.
pub trait Stream: Send {
    /// Reads into the slice; 0 at the end.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when there is nothing yet; others when the connection broke.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize>;
    /// Writes as much as goes now.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when that is nothing; others when the other side is gone.
    fn write(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize>;
    /// The part that other threads use. The stream keeps it as long as it lives.
    fn line(&self) -> Arc<dyn Line>;
    /// Hands over descriptors, where both sides are processes of one host and the transport can.
    fn descriptors(&mut self) -> Option<&mut dyn Descriptors> {
        None
    }
    /// Returns the number of the user whose process the other side is, where the system knows it.
    fn peer_user(&self) -> Option<u32> {
        None
    }
    /// Says what it carries from now on; [`Class::Records`] until then. For transports that treat them differently.
    fn classify(&mut self, class: Class) {
        let _ = class;
    }
}

/// The kind of data on a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Frames of a channel, which resumes over another stream by itself: that nothing arrives is reported at once.
    Records,
    /// Messages whose loss is expensive: the stream waits [`PEER_TIMEOUT`] before it reports that nothing arrives.
    Control,
}

/// Waits for a stream, and ends it, from any thread.
pub trait Line: Send + Sync {
    /// Readable while there is something to read, or the end. May be readable for nothing: then a read that finds nothing ends that.
    fn readable(&self) -> BorrowedFd<'_>;
    /// Readable while the stream takes something. None: the descriptor of [`Line::readable`] becomes writable then, as that of a
    /// socket. One that is there has the other raised with it, for those who wait for both at once by edges.
    fn writable(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// Returns the socket of the system that carries this connection alone, with nothing around the bytes. None: there is none.
    fn socket(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// Ends the connection: both sides can read what was written before, and write nothing more.
    fn hang_up(&self);
}

/// Hands over descriptors, by which two processes share memory.
pub trait Descriptors {
    /// Writes bytes and passes a descriptor with the first of them.
    ///
    /// # Errors
    /// As [`Stream::write`].
    fn pass(&mut self, bytes: &[u8], descriptor: BorrowedFd<'_>) -> io::Result<usize>;
    /// From now on a descriptor may come with what is read.
    fn expect(&mut self);
    /// The descriptor that came. No other is taken from now on.
    fn take(&mut self) -> Option<OwnedFd>;
}

static BUILT_IN: [&dyn Transport; 3] = [&tcp::Tcp, &unix::Unix, &memory::Memory];
static ADDED: RwLock<Vec<&'static dyn Transport>> = RwLock::new(Vec::new());

/// Adds a transport; `false` where another one has its scheme already.
pub fn register(transport: impl Transport + 'static) -> bool {
    let mut added = ADDED.write().unwrap_or_else(PoisonError::into_inner);
    let is_new = BUILT_IN.iter().chain(&*added).all(|other| other.scheme() != transport.scheme());
    if is_new {
        // It is there as long as the process.
        added.push(Box::leak(Box::new(transport)));
    }
    is_new
}

/// All transports.
pub fn registered() -> impl Iterator<Item = &'static dyn Transport> {
    let added = ADDED.read().unwrap_or_else(PoisonError::into_inner).clone();
    BUILT_IN.into_iter().chain(added)
}
