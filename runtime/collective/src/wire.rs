//! Wires between ranks of different hosts, and the frames on them.
//!
//! A wire carries bytes one way, from one rank to another one. It never blocks.
use crate::element::{Element, Reduction};
use crate::operation::{Numbered, Operation};
use crate::type_name::TypeName;
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
pub(crate) const HEAD: usize = 72;
/// The first bytes of a head.
const MARK: u16 = 0x4355;
/// Bytes of the call in a head.
const CALL: usize = 16;

/// The head of a frame: says what its bytes are, so that a peer that is elsewhere is an error and no wrong result. It has the whole call
/// of the operation, so that also types of elements are compared that are only moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    /// Of the strategy.
    pub(crate) epoch: u64,
    /// The operation, as the sender calls it.
    pub(crate) numbered: Numbered,
    /// Who sends.
    pub(crate) from: u32,
    /// Number of the frame on this wire in the operation, from 0 on.
    pub(crate) piece: u32,
    /// Bytes that follow.
    pub(crate) bytes: u32,
    /// The lane.
    pub(crate) lane: u16,
}

/// Why a frame is not the one that is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Mismatch {
    /// Its sender calls something else.
    Call(Numbered),
    /// Something that no call explains.
    Other(String),
}

/// A call as bytes: the element, the operation, its reduction, nothing, the root (4 bytes) and the length (8 bytes).
fn call_to_bytes(of: &Numbered) -> [u8; CALL] {
    let position = |found: Option<usize>| found.unwrap_or_default() as u8;
    let reduction = |of: Reduction| position(Reduction::ALL.iter().position(|one| *one == of));
    let (operation, reduction, root) = match of.operation {
        Operation::Broadcast { root } => (0, 0, root),
        Operation::AllReduce { reduction: of } => (1, reduction(of), 0),
        Operation::ReduceScatter { reduction: of } => (2, reduction(of), 0),
        Operation::AllGather => (3, 0, 0),
        Operation::AllToAll => (4, 0, 0),
    };
    let element = position(Element::ALL.iter().position(|one| *one == of.element));
    let mut bytes = [0; CALL];
    bytes[..4].copy_from_slice(&[element, operation, reduction, 0]);
    bytes[4..8].copy_from_slice(&root.to_le_bytes());
    bytes[8..].copy_from_slice(&of.length.to_le_bytes());
    bytes
}

/// Reads what [`call_to_bytes`] gives: the element, the operation and the length.
fn call_of_bytes(bytes: [u8; CALL]) -> Option<(Element, Operation, u64)> {
    let [element, operation, reduction, 0, root @ .., _, _, _, _, _, _, _, _] = bytes else { return None };
    let length = u64::from_le_bytes(*bytes.last_chunk()?);
    let reduction = *Reduction::ALL.get(usize::from(reduction))?;
    let operation = match operation {
        0 => Operation::Broadcast { root: u32::from_le_bytes(root) },
        1 => Operation::AllReduce { reduction },
        2 => Operation::ReduceScatter { reduction },
        3 => Operation::AllGather,
        4 => Operation::AllToAll,
        _ => return None,
    };
    Some((*Element::ALL.get(usize::from(element))?, operation, length))
}

impl Head {
    pub(crate) fn to_bytes(self) -> [u8; HEAD] {
        let mut bytes = [0; HEAD];
        bytes[..8].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.numbered.number.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.from.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.piece.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[28..30].copy_from_slice(&self.lane.to_le_bytes());
        bytes[30..32].copy_from_slice(&MARK.to_le_bytes());
        bytes[32..48].copy_from_slice(&call_to_bytes(&self.numbered));
        bytes[48..].copy_from_slice(&self.numbered.type_name.to_bytes());
        bytes
    }

    /// Reads one; none where it does not begin as heads do.
    pub(crate) fn of_bytes(bytes: &[u8; HEAD]) -> Option<Self> {
        let (frame, call) = bytes.split_first_chunk::<32>()?;
        let (call, type_name) = call.split_first_chunk::<CALL>()?;
        let (words, _) = frame.as_chunks::<4>();
        let [a, b, c, d, from, piece, length, last] = words else { return None };
        let long = |low: &[u8; 4], high: &[u8; 4]| {
            u64::from(u32::from_le_bytes(*low)) | u64::from(u32::from_le_bytes(*high)) << 32
        };
        let last = u32::from_le_bytes(*last);
        if (last >> 16) as u16 != MARK {
            return None;
        }
        let (element, operation, elements) = call_of_bytes(*call)?;
        let type_name = TypeName::of_bytes(type_name.first_chunk()?)?;
        Some(Self {
            epoch: long(a, b),
            numbered: Numbered { number: long(c, d), operation, element, length: elements, type_name },
            from: u32::from_le_bytes(*from),
            piece: u32::from_le_bytes(*piece),
            bytes: u32::from_le_bytes(*length),
            lane: last as u16,
        })
    }

    /// Returns why a frame with this head cannot be the one that is due.
    pub(crate) fn mismatch(&self, due: &Self) -> Option<Mismatch> {
        let number = self.numbered.number;
        let named = |what: &str, has: u64, due: u64| {
            let text = format!("it sent {what} {has} where {what} {due} was due, in operation {number}");
            Some(Mismatch::Other(text))
        };
        if self.from != due.from {
            return named("rank", self.from.into(), due.from.into());
        }
        if self.epoch != due.epoch {
            return named("epoch", self.epoch, due.epoch);
        }
        if number != due.numbered.number {
            return named("operation", number, due.numbered.number);
        }
        if self.numbered != due.numbered {
            return Some(Mismatch::Call(self.numbered));
        }
        if self.lane != due.lane {
            return named("lane", self.lane.into(), due.lane.into());
        }
        if self.piece != due.piece {
            return named("piece", self.piece.into(), due.piece.into());
        }
        (self.bytes != due.bytes).then(|| {
            Mismatch::Other(format!(
                "it sent a piece of {} bytes, {} were due in operation {number}",
                self.bytes, due.bytes
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due() -> Head {
        let numbered = Numbered::new(1 << 40, Operation::AllGather, Element::F32, 1 << 33);
        Head { epoch: 3, numbered, from: 7, piece: 9, bytes: 4096, lane: 2 }
    }

    #[test]
    fn heads_come_back_as_they_were() {
        let reductions = Reduction::ALL.into_iter().flat_map(|reduction| {
            [Operation::AllReduce { reduction }, Operation::ReduceScatter { reduction }]
        });
        let moves = [Operation::AllGather, Operation::AllToAll, Operation::Broadcast { root: 1 << 20 }];
        for operation in reductions.chain(moves) {
            for element in Element::ALL {
                for name in ["", "complex64"] {
                    let type_name = TypeName::new(name).unwrap();
                    let numbered = Numbered { operation, element, type_name, ..due().numbered };
                    let head = Head { numbered, ..due() };
                    assert_eq!(Head::of_bytes(&head.to_bytes()), Some(head));
                }
            }
        }
        // The mark, the element, the operation, the reduction, nothing, and a byte after the end of the name.
        for place in [31, 32, 33, 34, 35, HEAD - 1] {
            let mut bytes = due().to_bytes();
            bytes[place] ^= 0x40;
            assert_eq!(Head::of_bytes(&bytes), None, "{place}");
        }
    }

    #[test]
    fn what_differs_is_named() {
        let due = due();
        assert_eq!(due.mismatch(&due), None);
        for (head, word) in [
            (Head { epoch: 2, ..due }, "epoch 2 where epoch 3"),
            (Head { numbered: Numbered { number: 5, ..due.numbered }, ..due }, "operation 5"),
            (Head { from: 8, ..due }, "rank 8 where rank 7"),
            (Head { piece: 8, ..due }, "piece 8"),
            (Head { lane: 1, ..due }, "lane 1"),
            (Head { bytes: 4095, ..due }, "4095 bytes, 4096 were due"),
        ] {
            let Some(Mismatch::Other(text)) = head.mismatch(&due) else { panic!("{word}") };
            assert!(text.contains(word), "{text}");
        }
        let type_name = TypeName::new("float64").unwrap();
        for numbered in [
            Numbered { element: Element::I32, ..due.numbered },
            Numbered { length: 1, ..due.numbered },
            Numbered { operation: Operation::AllToAll, ..due.numbered },
            Numbered { type_name, ..due.numbered },
        ] {
            let head = Head { numbered, bytes: 1, lane: 0, ..due };
            assert_eq!(head.mismatch(&due), Some(Mismatch::Call(numbered)), "it explains the rest");
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
