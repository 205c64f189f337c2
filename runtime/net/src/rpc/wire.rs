//! The connection of a binding with the service of another host.
//!
//! A frame is a descriptor of 64 bytes, its metadata, and the message in flat form. Fields of the descriptor: `offset` is the length of
//! the metadata, `length` that of the message, `deadline` the nanoseconds that are left, `lease` a checksum of the others.
use super::letter::Letter;
use rustix::event::epoll;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use tidemill_link::remote::ByteStream;
use tidemill_rpc::MOST_METADATA;
use tidemill_rpc::protocol::MOST_BYTES;
use tidemill_shm::descriptor::{BYTES, Descriptor};
use tidemill_shm::heap::Buffer;

/// Kinds of frames beside those of the rings.
pub(crate) mod frame {
    /// The client's service says what it wants: [`super::Hello`].
    pub(crate) const BIND: u8 = 32;
    /// The schema is not known.
    pub(crate) const UNKNOWN: u8 = 33;
    /// A schema.
    pub(crate) const SCHEMA: u8 = 34;
    /// Calls may come.
    pub(crate) const BOUND: u8 = 35;
    /// They may not: `class` is the code, the message says why.
    pub(crate) const REFUSED: u8 = 36;
}

/// Bytes that are read at once.
const READ: usize = 64 << 10;
/// Parts that are written at once.
const SLICES: usize = 64;
/// Bytes that wait to be written, before nothing more is taken from whoever answers.
pub(crate) const WAITING: usize = 32 << 20;

/// The first words of the service of a client.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Hello {
    pub(crate) service: String,
    pub(crate) schema: String,
    pub(crate) program: String,
}

struct Out {
    head: Vec<u8>,
    letter: Letter,
    length: usize,
    call: u64,
    /// The program and the number of its payload, once it is written.
    taken: Option<(u64, u64)>,
}

/// Memory for a message that comes.
pub(crate) enum Body {
    /// Of the service.
    Own(Vec<u8>),
    /// That a program can read.
    Room(u64, Buffer),
}

impl Body {
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Room(_, buffer) => buffer,
        }
    }
}

/// A frame that came.
pub(crate) struct Frame {
    pub(crate) head: Descriptor,
    pub(crate) metadata: Vec<u8>,
    pub(crate) body: Body,
}

/// The connection of a binding with the service of another host.
pub(crate) struct Wire {
    stream: ByteStream,
    out: VecDeque<Out>,
    /// Bytes of the first one that are written.
    written: usize,
    pub(crate) waiting: usize,
    read: Vec<u8>,
    /// The part of `read` that is not looked at yet.
    unread: std::ops::Range<usize>,
    /// A frame whose message has come up to here.
    coming: Option<(Frame, usize)>,
    is_drained: bool,
}

fn damaged(text: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, text.to_owned())
}

fn checksum(head: &Descriptor) -> u64 {
    u64::from(crc32c::crc32c(&Descriptor { lease: 0, ..*head }.to_bytes()))
}

impl Wire {
    pub(crate) fn new(stream: ByteStream) -> Self {
        Self {
            stream,
            out: VecDeque::new(),
            written: 0,
            waiting: 0,
            read: vec![0; READ],
            unread: 0..0,
            coming: None,
            is_drained: false,
        }
    }

    pub(crate) fn watch(&self, epoll: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        let line = self.stream.line();
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        match line.writable() {
            Some(writable) => {
                epoll::add(epoll, line.readable(), epoll::EventData::new_u64(token), flags)?;
                let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
                epoll::add(epoll, writable, epoll::EventData::new_u64(token), flags)?;
            }
            None => {
                let flags = flags | epoll::EventFlags::OUT;
                epoll::add(epoll, line.readable(), epoll::EventData::new_u64(token), flags)?;
            }
        }
        Ok(())
    }

    pub(crate) fn unwatch(&self, epoll: impl AsFd) {
        let line = self.stream.line();
        let _ = epoll::delete(epoll.as_fd(), line.readable());
        if let Some(writable) = line.writable() {
            let _ = epoll::delete(epoll.as_fd(), writable);
        }
    }

    /// It was ready.
    pub(crate) fn ready(&mut self) {
        self.is_drained = false;
    }

    /// Adds a frame to what is written next.
    pub(crate) fn post(&mut self, head: Descriptor, letter: Letter, call: u64, taken: Option<(u64, u64)>) {
        let length = letter.length();
        let head = Descriptor {
            region: 0,
            offset: letter.metadata.len() as u64,
            length: length as u32,
            lease: 0,
            ..head
        };
        let head = Descriptor { lease: checksum(&head), ..head };
        let mut bytes = Vec::with_capacity(BYTES + letter.metadata.len());
        bytes.extend_from_slice(&head.to_bytes());
        bytes.extend_from_slice(&letter.metadata);
        self.waiting += bytes.len() + length;
        self.out.push_back(Out { head: bytes, letter, length, call, taken });
    }

    /// A call is cancelled: its message is not written, or from memory that stays as it is.
    pub(crate) fn forget(&mut self, call: u64) {
        let is_begun = self.written > 0;
        let mut at = 0;
        while let Some(out) = self.out.get_mut(at) {
            if out.call != call {
                at += 1;
            } else if at == 0 && is_begun {
                if let Ok((bytes, _)) = out.letter.private() {
                    out.letter = Letter::own(bytes);
                }
                at += 1;
            } else if let Some(out) = self.out.remove(at) {
                self.waiting -= out.head.len() + out.length;
            }
        }
    }

    /// Writes what goes. Returns the payloads that were written.
    pub(crate) fn flush(&mut self) -> io::Result<Vec<(u64, u64, usize)>> {
        let mut taken = Vec::new();
        while !self.out.is_empty() {
            let mut slices = Vec::with_capacity(SLICES);
            let mut skip = self.written;
            for out in &self.out {
                if slices.len() + 2 > SLICES {
                    break;
                }
                if skip < out.head.len() {
                    slices.push(IoSlice::new(&out.head[skip..]));
                    skip = 0;
                } else {
                    skip -= out.head.len();
                }
                out.letter.slices(skip, &mut slices).map_err(io::Error::other)?;
                skip = 0;
            }
            let mut written = match self.stream.write(&slices[..slices.len().min(1000)]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => written,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(taken),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            self.waiting -= written;
            written += self.written;
            while let Some(out) = self.out.front() {
                let length = out.head.len() + out.length;
                if written < length {
                    break;
                }
                written -= length;
                if let Some(out) = self.out.pop_front()
                    && let Some((token, number)) = out.taken
                {
                    taken.push((token, number, out.length));
                }
            }
            self.written = written;
        }
        match self.stream.flush() {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
            _ => Ok(taken),
        }
    }

    /// The next frame that has come. `place` finds memory for its message.
    pub(crate) fn receive(
        &mut self,
        place: &mut dyn FnMut(&Descriptor) -> Body,
    ) -> io::Result<Option<Frame>> {
        loop {
            if let Some((frame, mut at)) = self.coming.take() {
                let mut frame = frame;
                let length = frame.head.length as usize;
                let rest = &mut frame.body.bytes_mut()[at..length];
                let buffered = rest.len().min(self.unread.len());
                rest[..buffered].copy_from_slice(&self.read[self.unread.start..self.unread.start + buffered]);
                self.unread.start += buffered;
                at += buffered;
                if at == length {
                    return Ok(Some(frame));
                }
                // Nothing is left in between: the rest goes where it stays.
                let into = &mut frame.body.bytes_mut()[at..length];
                match self.stream.read(into) {
                    Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                    Ok(read) => at += read,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        self.coming = Some((frame, at));
                        return Ok(None);
                    }
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
                if at == length {
                    return Ok(Some(frame));
                }
                self.coming = Some((frame, at));
                continue;
            }
            if let Some(head) = self.head()? {
                let wanted = BYTES + head.offset as usize;
                if self.unread.len() >= wanted {
                    let from = self.unread.start + BYTES;
                    let metadata = self.read[from..self.unread.start + wanted].to_vec();
                    self.unread.start += wanted;
                    let body = place(&head);
                    self.coming = Some((Frame { head, metadata, body }, 0));
                    continue;
                }
            }
            if self.is_drained {
                return Ok(None);
            }
            self.read.copy_within(self.unread.clone(), 0);
            self.unread = 0..self.unread.len();
            let into = &mut self.read[self.unread.end..];
            let room = into.len();
            match self.stream.read(into) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(read) => {
                    self.unread.end += read;
                    self.is_drained = read < room && self.stream.is_plain();
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn head(&self) -> io::Result<Option<Descriptor>> {
        let Some(bytes) = self.read[self.unread.clone()].first_chunk::<BYTES>() else { return Ok(None) };
        let head = Descriptor::from_bytes(bytes);
        if head.lease != checksum(&head) {
            return Err(damaged("this is not how a frame begins"));
        }
        if head.length > MOST_BYTES || head.offset > MOST_METADATA as u64 {
            return Err(damaged("a frame is too long"));
        }
        Ok(Some(head))
    }
}
