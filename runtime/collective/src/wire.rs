//! Wires between ranks of different hosts, and the frames on them.
//!
//! A wire carries bytes one way, from one rank to another one. It never blocks.
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use tidemill_link::remote::ByteStream;
use tidemill_link::transport::Line;

/// One end of a wire.
pub trait Wire: Send {
    /// Takes as many of these bytes as go now.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when that is none; others when the other end is gone.
    fn send(&mut self, bytes: &[u8]) -> io::Result<usize>;
    /// Sends what was taken and is held back, such as by encryption.
    ///
    /// # Errors
    /// As [`Wire::send`].
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
    /// Receives into the slice; 0 at the end.
    ///
    /// # Errors
    /// As [`Wire::send`].
    fn receive(&mut self, into: &mut [u8]) -> io::Result<usize>;
    /// Readable while there is something to receive.
    fn readable(&self) -> BorrowedFd<'_>;
    /// Readable while the wire takes bytes. None: the descriptor of [`Wire::readable`] is writable then.
    fn writable(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// A connected socket of the system.
#[derive(Debug)]
pub struct Socket(OwnedFd);

impl Socket {
    /// Makes one that does not block, however the socket was.
    pub fn new(socket: impl Into<OwnedFd>) -> Self {
        Self(socket.into())
    }
}

fn again<T>(mut act: impl FnMut() -> rustix::io::Result<T>) -> io::Result<T> {
    loop {
        match act() {
            Err(Errno::INTR) => {}
            result => return result.map_err(io::Error::from),
        }
    }
}

impl Wire for Socket {
    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        again(|| send(&self.0, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL))
    }

    fn receive(&mut self, into: &mut [u8]) -> io::Result<usize> {
        again(|| recv(&self.0, &mut *into, RecvFlags::DONTWAIT).map(|(_, n)| n))
    }

    fn readable(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A connection of links, with or without encryption.
pub struct Linked {
    stream: ByteStream,
    line: Arc<dyn Line>,
}

impl Linked {
    /// Makes one of a connection. Where nothing is around its bytes, the socket below it would be a [`Socket`] with less between.
    pub fn new(stream: ByteStream) -> Self {
        let line = stream.line();
        Self { stream, line }
    }
}

impl Wire for Linked {
    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(&[io::IoSlice::new(bytes)])
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }

    fn receive(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.stream.read(into)
    }

    fn readable(&self) -> BorrowedFd<'_> {
        self.line.readable()
    }

    fn writable(&self) -> Option<BorrowedFd<'_>> {
        self.line.writable()
    }
}

/// Bytes of the head of a frame.
pub(crate) const HEAD: usize = 32;
/// The first bytes of a head.
const MARK: u16 = 0x4354;

/// The head of a frame: says what its bytes are, so that a peer that is elsewhere is an error and no wrong result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    /// Of the strategy.
    pub(crate) epoch: u64,
    /// Of the operation.
    pub(crate) number: u64,
    /// Who sends.
    pub(crate) from: u32,
    /// Number of the frame on this wire in the operation, from 0 on.
    pub(crate) piece: u32,
    /// Bytes that follow.
    pub(crate) bytes: u32,
    /// The lane.
    pub(crate) lane: u16,
}

impl Head {
    pub(crate) fn to_bytes(self) -> [u8; HEAD] {
        let mut bytes = [0; HEAD];
        bytes[..8].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.number.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.from.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.piece.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[28..30].copy_from_slice(&self.lane.to_le_bytes());
        bytes[30..].copy_from_slice(&MARK.to_le_bytes());
        bytes
    }

    /// Reads one; none where it does not begin as heads do.
    pub(crate) fn of_bytes(bytes: &[u8; HEAD]) -> Option<Self> {
        let (words, _) = bytes.as_chunks::<4>();
        let [a, b, c, d, from, piece, length, last] = words else { return None };
        let long = |low: &[u8; 4], high: &[u8; 4]| {
            u64::from(u32::from_le_bytes(*low)) | u64::from(u32::from_le_bytes(*high)) << 32
        };
        let last = u32::from_le_bytes(*last);
        if (last >> 16) as u16 != MARK {
            return None;
        }
        Some(Self {
            epoch: long(a, b),
            number: long(c, d),
            from: u32::from_le_bytes(*from),
            piece: u32::from_le_bytes(*piece),
            bytes: u32::from_le_bytes(*length),
            lane: last as u16,
        })
    }

    /// Returns why a frame with this head cannot be the one that is due.
    pub(crate) fn mismatch(&self, due: &Self) -> Option<String> {
        let named = |what: &str, has: u64, due: u64| {
            Some(format!("it sent {what} {has} where {what} {due} was due, in operation {}", self.number))
        };
        if self.from != due.from {
            return named("rank", self.from.into(), due.from.into());
        }
        if self.epoch != due.epoch {
            return named("epoch", self.epoch, due.epoch);
        }
        if self.number != due.number {
            return named("operation", self.number, due.number);
        }
        if self.lane != due.lane {
            return named("lane", self.lane.into(), due.lane.into());
        }
        if self.piece != due.piece {
            return named("piece", self.piece.into(), due.piece.into());
        }
        (self.bytes != due.bytes).then(|| {
            format!(
                "it sent a piece of {} bytes, {} were due in operation {}",
                self.bytes, due.bytes, due.number
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DUE: Head = Head { epoch: 3, number: 1 << 40, from: 7, piece: 9, bytes: 4096, lane: 2 };

    #[test]
    fn heads_come_back_as_they_were() {
        assert_eq!(Head::of_bytes(&DUE.to_bytes()), Some(DUE));
        let mut bytes = DUE.to_bytes();
        bytes[31] ^= 1;
        assert_eq!(Head::of_bytes(&bytes), None);
    }

    #[test]
    fn what_differs_is_named() {
        assert_eq!(DUE.mismatch(&DUE), None);
        for (head, word) in [
            (Head { epoch: 2, ..DUE }, "epoch 2 where epoch 3"),
            (Head { number: 5, ..DUE }, "operation 5"),
            (Head { from: 8, ..DUE }, "rank 8 where rank 7"),
            (Head { piece: 8, ..DUE }, "piece 8"),
            (Head { lane: 1, ..DUE }, "lane 1"),
            (Head { bytes: 4095, ..DUE }, "4095 bytes, 4096 were due"),
        ] {
            let text = head.mismatch(&DUE).unwrap();
            assert!(text.contains(word), "{text}");
        }
    }

    #[test]
    fn sockets_do_not_block_and_know_when_the_other_end_is_gone() {
        let (one, other) = std::os::unix::net::UnixStream::pair().unwrap();
        let (mut one, mut other) = (Socket::new(one), Socket::new(other));
        let blocks = |error: io::Error| error.kind() == io::ErrorKind::WouldBlock;
        assert!(blocks(other.receive(&mut [0]).unwrap_err()));
        let full = loop {
            if let Err(error) = one.send(&[1; 4096]) {
                break error;
            }
        };
        assert!(blocks(full));
        drop(one);
        while other.receive(&mut [0; 4096]).unwrap() > 0 {}
        assert_eq!(other.send(&[1]).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
