//! Connections that carry the calls of a session.
use crate::call::{HEAD, Head, MEMORY};
use crate::memory::{Borrowed, Lent, Place};
use bytes::{Bytes, BytesMut};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::net::sockopt::socket_domain;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tidemill_link::remote::ByteStream;
use tidemill_link::transport::Line;
use tidemill_shm::descriptor::BYTES;

/// Writes whole parts, in order.
pub(crate) trait Outgoing: Send {
    /// Writes some bytes; blocks until there is room for them. `WouldBlock`: there was none within the [limit](Self::limit).
    fn write(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Writes what the connection still holds back, as [`Self::write`].
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Limits how long a write blocks. Default: without an end.
    fn limit(&mut self, wait: Duration) -> io::Result<()> {
        let _ = wait;
        Ok(())
    }

    /// Writes whole parts.
    fn send(&mut self, parts: &mut [IoSlice<'_>]) -> io::Result<()> {
        self.send_watched(parts, &mut |_| Ok(()))
    }

    /// As [`Self::send`]. `watch` gets the bytes of each write, 0 where there was no room, and ends it by an error.
    fn send_watched(
        &mut self,
        mut parts: &mut [IoSlice<'_>],
        watch: &mut dyn FnMut(usize) -> io::Result<()>,
    ) -> io::Result<()> {
        IoSlice::advance_slices(&mut parts, 0);
        while !parts.is_empty() {
            match self.write(parts) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => {
                    watch(written)?;
                    IoSlice::advance_slices(&mut parts, written);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => watch(0)?,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        loop {
            match self.flush() {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => watch(0)?,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Writes one part, and passes the descriptor of a file with it.
    fn send_file(&mut self, part: &[u8], file: BorrowedFd<'_>) -> io::Result<()> {
        let _ = (part, file);
        Err(ErrorKind::Unsupported.into())
    }
}

/// Reads some bytes; blocks. 0: the other side has ended.
pub(crate) trait Arriving: Send {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize>;

    /// Takes the first descriptor of a file that came with the bytes that were read.
    fn file(&mut self) -> Option<OwnedFd> {
        None
    }
}

/// Ends the connection, from any thread.
pub(crate) type HangUp = Box<dyn Fn() + Send + Sync>;

/// Both directions of a connection.
pub struct Carrier {
    pub(crate) outgoing: Box<dyn Outgoing>,
    pub(crate) arriving: Box<dyn Arriving>,
    pub(crate) hang_up: HangUp,
    /// Whether memory is offered to the other side.
    pub(crate) shares: bool,
}

impl std::fmt::Debug for Carrier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Carrier").finish_non_exhaustive()
    }
}

impl Carrier {
    /// Of a socket to a process of this host. The two share memory, if the other side wants it too.
    ///
    /// # Errors
    /// If the system has no descriptor left.
    pub fn of_socket(socket: UnixStream) -> io::Result<Self> {
        let (outgoing, ends) = (socket.try_clone()?, socket.try_clone()?);
        let hang_up = Box::new(move || {
            // It may have ended already.
            let _ = ends.shutdown(Shutdown::Both);
        });
        // One of another host carries no descriptors.
        let shares = socket_domain(&socket) == Ok(AddressFamily::UNIX);
        let arriving = Box::new(Socket { socket, files: VecDeque::new() });
        Ok(Self { outgoing: Box::new(outgoing), arriving, hang_up, shares })
    }

    /// The same without shared memory: all tensors go over the connection.
    #[must_use]
    pub fn without_memory(self) -> Self {
        Self { shares: false, ..self }
    }

    /// As [`Self::of_socket`], of a connected socket of any kind, whose reads block.
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
        let other = Half { stream: Arc::clone(&stream), line: Arc::clone(&line), plain, limit: None };
        let hang_up = Box::new(move || ends.hang_up());
        Self {
            outgoing: Box::new(Half { stream, line, plain, limit: None }),
            arriving: Box::new(other),
            hang_up,
            shares: false,
        }
    }
}

impl Outgoing for UnixStream {
    fn write(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.write_vectored(parts)
    }

    fn limit(&mut self, wait: Duration) -> io::Result<()> {
        self.set_write_timeout(Some(wait))
    }

    fn send_file(&mut self, part: &[u8], file: BorrowedFd<'_>) -> io::Result<()> {
        let (files, mut space) = ([file], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))]);
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !ancillary.push(SendAncillaryMessage::ScmRights(&files)) {
            return Err(ErrorKind::InvalidInput.into());
        }
        let mut send =
            || retry_on_intr(|| sendmsg(&*self, &[IoSlice::new(part)], &mut ancillary, SendFlags::NOSIGNAL));
        let mut sent = send();
        // A peer that is slow, unless it stands still.
        for _ in 1..TRIES {
            if sent == Err(rustix::io::Errno::AGAIN) {
                sent = send();
            }
        }
        let sent = sent?;
        // The descriptor goes with the first byte.
        self.send(&mut [IoSlice::new(&part[sent..])])
    }
}

/// Writes of a descriptor that may find no room within the limit of a connection.
const TRIES: usize = 5;
/// Descriptors that one read takes; the system closes what is more.
const FILES: usize = 4;

/// The direction of a socket by which messages come, some with the descriptor of a file.
struct Socket {
    socket: UnixStream,
    files: VecDeque<OwnedFd>,
}

impl Arriving for Socket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(into)];
        let received =
            retry_on_intr(|| recvmsg(&self.socket, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC));
        let received = match received {
            // The other process ended while it had not read everything.
            Err(rustix::io::Errno::CONNRESET) => return Ok(0),
            other => other?,
        };
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(files) = message {
                self.files.extend(files);
            }
        }
        if received.flags.contains(ReturnFlags::CTRUNC) || self.files.len() > FILES {
            return Err(io::Error::new(ErrorKind::InvalidData, "descriptors of too many files came"));
        }
        Ok(received.bytes)
    }

    fn file(&mut self) -> Option<OwnedFd> {
        self.files.pop_front()
    }
}

/// One direction of a stream that never blocks; both share it, and wait outside its lock.
struct Half {
    stream: Arc<Mutex<ByteStream>>,
    line: Arc<dyn Line>,
    plain: bool,
    /// The longest that a write waits; none: without an end.
    limit: Option<Timespec>,
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
        let _ = poll(&mut descriptors, self.limit.as_ref());
    }
}

impl Half {
    fn wait_if(&self, error: &io::Error) {
        if error.kind() == ErrorKind::WouldBlock {
            self.wait(true);
        }
    }
}

impl Outgoing for Half {
    fn write(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let written = self.stream().write(parts);
        written.inspect_err(|error| self.wait_if(error))
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.plain {
            return Ok(());
        }
        let flushed = self.stream().flush();
        flushed.inspect_err(|error| self.wait_if(error))
    }

    fn limit(&mut self, wait: Duration) -> io::Result<()> {
        self.limit = Timespec::try_from(wait).ok();
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

/// Shares the first region of memory with the other side. None: the system has none.
pub(crate) fn share(outgoing: &mut dyn Outgoing) -> Option<Lent> {
    let mut lent = Lent::new()?;
    share_more(&mut lent, outgoing).then_some(lent)
}

/// Shares one more region; `false`: there are enough. Where the connection has ended, the next call reports it.
pub(crate) fn share_more(lent: &mut Lent, outgoing: &mut dyn Outgoing) -> bool {
    let head = Head { kind: MEMORY, ..Head::default() }.to_bytes();
    lent.grow().is_some_and(|file| outgoing.send_file(&head, file.as_fd()).is_ok())
}

/// Bytes that are read at once where no long payload is under way.
const READ: usize = 64 << 10;

/// Reads messages.
pub(crate) struct Messages {
    arriving: Box<dyn Arriving>,
    buffer: Vec<u8>,
    unread: std::ops::Range<usize>,
    /// Memory of the other side; none: this side wants none.
    memory: Option<Borrowed>,
    moved: Moved,
}

/// Counts the bytes that came and went. While it grows, the other side lives.
pub(crate) type Moved = Arc<AtomicU64>;

/// Fate of a payload, by the head of its message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Read,
    /// Its bytes are dropped as they come.
    Dropped,
}

/// A message as it arrived.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) head: Head,
    pub(crate) payload: Bytes,
    /// Where the rest of the payload is, if that is in shared memory.
    pub(crate) placed: Option<Place>,
    /// Fate of the payload.
    pub(crate) fate: Fate,
}

impl Message {
    /// Bytes of its head and its whole payload.
    pub(crate) fn bytes(&self) -> u64 {
        (HEAD + self.head.payload as usize + self.placed.as_ref().map_or(0, Place::bytes)) as u64
    }
}

impl Messages {
    pub(crate) fn new(arriving: Box<dyn Arriving>, shares: bool) -> Self {
        let memory = shares.then(Borrowed::default);
        Self { arriving, buffer: vec![0; READ], unread: 0..0, memory, moved: Moved::default() }
    }

    /// Counts bytes that came.
    pub(crate) fn moved(&self) -> Moved {
        Arc::clone(&self.moved)
    }

    /// The next message; none at the end between two messages.
    pub(crate) fn next(&mut self) -> io::Result<Option<Message>> {
        self.next_by(&mut |_| Ok(Fate::Read))
    }

    /// As [`Self::next`]. `decide` sees each head before there is memory for its payload.
    pub(crate) fn next_by(
        &mut self,
        decide: &mut dyn FnMut(&Head) -> io::Result<Fate>,
    ) -> io::Result<Option<Message>> {
        let invalid = |text: String| io::Error::new(ErrorKind::InvalidData, text);
        loop {
            let mut head = [0; HEAD];
            if !self.fill(&mut head)? {
                return Ok(None);
            }
            let head = Head::from_bytes(&head).map_err(invalid)?;
            if decide(&head)? == Fate::Dropped {
                self.drop_payload(head.payload as usize)?;
                return Ok(Some(Message { head, payload: Bytes::new(), placed: None, fate: Fate::Dropped }));
            }
            let mut payload = BytesMut::zeroed(head.payload as usize);
            if !self.fill(&mut payload)? && !payload.is_empty() {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            let payload = payload.freeze();
            if head.kind == MEMORY {
                // Something between the two may have lost the file: then nothing is shared.
                if let (Some(memory), Some(file)) = (&mut self.memory, self.arriving.file()) {
                    memory.add(file).map_err(invalid)?;
                }
                continue;
            }
            if !head.placed {
                return Ok(Some(Message { head, payload, placed: None, fate: Fate::Read }));
            }
            let memory = self.memory.as_ref().ok_or_else(|| invalid("no memory is shared".to_owned()))?;
            let placed = Some(memory.find(&payload).map_err(invalid)?);
            let payload = payload.slice(BYTES..);
            return Ok(Some(Message { head, payload, placed, fate: Fate::Read }));
        }
    }

    fn drop_payload(&mut self, mut left: usize) -> io::Result<()> {
        let mut dropped = vec![0; READ.min(left)];
        while left > 0 {
            let piece = left.min(READ);
            if !self.fill(&mut dropped[..piece])? {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            left -= piece;
        }
        Ok(())
    }

    /// Whether the other side has shared memory.
    pub(crate) fn has_memory(&self) -> bool {
        self.memory.as_ref().is_some_and(|memory| memory.regions() > 0)
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
            self.moved.fetch_add(read as u64, Ordering::Relaxed);
            match (read, filled) {
                (0, 0) => return Ok(false),
                (0, _) => return Err(ErrorKind::UnexpectedEof.into()),
                _ => {}
            }
        }
        Ok(true)
    }
}
