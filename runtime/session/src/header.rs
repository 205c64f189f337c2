//! The bytes of a session on a carrier: one preamble when it is dialled, then headers with what belongs to them.
use crate::place::is_path_name;
use std::io::{Error, ErrorKind, Result};
use tidemill_link::transport::Class;

/// Bytes of a header.
pub(crate) const BYTES: usize = 32;
/// Bytes of a preamble.
pub(crate) const PREAMBLE: usize = 104;
/// Bytes that a path's name may have.
pub(crate) const NAME: usize = 63;
const MAGIC: &[u8; 7] = b"TMSESSN";
const VERSION: u8 = 1;

/// The content of what follows a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Bytes of the lane; `sequence` is the number of the first one.
    Data = 1,
    /// Everything before `sequence` has been taken.
    Ack = 2,
    /// The lane ends before `sequence`.
    End = 3,
    /// Sign of life of a path; [`crate::hello::Hello`] follows.
    Hello = 4,
    /// Answer to [`Asks::Resume`]: everything before `sequence` has been taken.
    Resumed = 5,
    /// Answer to [`Asks::Resume`]: this side does not know the lane.
    Refused = 6,
}

/// The header of everything on a carrier, little endian.
///
/// | bytes | field |
/// |---|---|
/// | 0 | kind |
/// | 1 | class: 0 records, 1 control |
/// | 2..4 | route: number of the path at the side that dials |
/// | 4..8 | length of what follows |
/// | 8..12 | lane |
/// | 12..16 | epoch: number of carriers that the lane had before this one |
/// | 16..24 | sequence |
/// | 24..32 | deadline: nanoseconds that are left, 0 for none; streams of bytes have none |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) class: Class,
    pub(crate) route: u16,
    pub(crate) length: u32,
    pub(crate) lane: u32,
    pub(crate) epoch: u32,
    pub(crate) sequence: u64,
    pub(crate) deadline: u64,
}

fn damaged(text: &str) -> Error {
    Error::new(ErrorKind::InvalidData, text.to_owned())
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

impl Header {
    pub(crate) fn to_bytes(self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[0] = self.kind as u8;
        bytes[1] = u8::from(self.class == Class::Control);
        bytes[2..4].copy_from_slice(&self.route.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.length.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.lane.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[24..].copy_from_slice(&self.deadline.to_le_bytes());
        bytes
    }

    /// Reads a header.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidData`] when it is none.
    pub(crate) fn from_bytes(bytes: &[u8; BYTES]) -> Result<Self> {
        let kind = match bytes[0] {
            1 => Kind::Data,
            2 => Kind::Ack,
            3 => Kind::End,
            4 => Kind::Hello,
            5 => Kind::Resumed,
            6 => Kind::Refused,
            _ => return Err(damaged("unknown kind of header")),
        };
        let class = match bytes[1] {
            0 => Class::Records,
            1 => Class::Control,
            _ => return Err(damaged("unknown class of a header")),
        };
        Ok(Self {
            kind,
            class,
            route: u16::from_le_bytes([bytes[2], bytes[3]]),
            length: u32_at(bytes, 4),
            lane: u32_at(bytes, 8),
            epoch: u32_at(bytes, 12),
            sequence: u64_at(bytes, 16),
            deadline: u64_at(bytes, 24),
        })
    }
}

/// The purpose of a carrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asks {
    /// Hellos of a path.
    Hello,
    /// A new lane.
    New,
    /// The lane continues here; everything before `sequence` has been taken.
    Resume,
}

/// The first bytes of a carrier, of the side that dialled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Preamble {
    pub(crate) asks: Asks,
    /// Random: who does not know it cannot resume a lane.
    pub(crate) session: u128,
    pub(crate) lane: u32,
    pub(crate) epoch: u32,
    pub(crate) sequence: u64,
    /// Name of the path.
    pub(crate) path: String,
}

impl Preamble {
    pub(crate) fn to_bytes(&self) -> [u8; PREAMBLE] {
        let mut bytes = [0; PREAMBLE];
        bytes[..7].copy_from_slice(MAGIC);
        bytes[7] = VERSION << 4 | self.asks as u8;
        bytes[8..24].copy_from_slice(&self.session.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.lane.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.sequence.to_le_bytes());
        let name = self.path.as_bytes();
        let length = name.len().min(NAME);
        bytes[40] = length as u8;
        bytes[41..41 + length].copy_from_slice(&name[..length]);
        bytes
    }

    /// Reads a preamble.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidData`] when it is none, or of another version.
    pub(crate) fn from_bytes(bytes: &[u8; PREAMBLE]) -> Result<Self> {
        if !bytes.starts_with(MAGIC) {
            return Err(damaged("this is not how a session begins"));
        }
        if bytes[7] >> 4 != VERSION {
            return Err(damaged("a session of another version"));
        }
        let asks = match bytes[7] & 15 {
            0 => Asks::Hello,
            1 => Asks::New,
            2 => Asks::Resume,
            _ => return Err(damaged("unknown purpose of a carrier")),
        };
        let name =
            bytes.get(41..41 + usize::from(bytes[40])).ok_or_else(|| damaged("a long name of a path"))?;
        let path = std::str::from_utf8(name).ok().filter(|name| is_path_name(name));
        let path = path.ok_or_else(|| damaged("the name of a path is none"))?;
        Ok(Self {
            asks,
            session: u128::from(u64_at(bytes, 8)) | u128::from(u64_at(bytes, 16)) << 64,
            lane: u32_at(bytes, 24),
            epoch: u32_at(bytes, 28),
            sequence: u64_at(bytes, 32),
            path: path.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn headers_are_read_as_written(
            (kind, control, route, length) in (1u8..=6, any::<bool>(), any::<u16>(), any::<u32>()),
            (lane, epoch, sequence, deadline) in (any::<u32>(), any::<u32>(), any::<u64>(), any::<u64>()),
        ) {
            let mut bytes = [0; BYTES];
            (bytes[0], bytes[1]) = (kind, u8::from(control));
            let known = Header::from_bytes(&bytes).unwrap();
            let header = Header { route, length, lane, epoch, sequence, deadline, ..known };
            prop_assert_eq!(Header::from_bytes(&header.to_bytes()).unwrap(), header);
        }

        #[test]
        fn any_bytes_are_a_header_or_damage(bytes in any::<[u8; BYTES]>()) {
            match Header::from_bytes(&bytes) {
                Ok(header) => prop_assert_eq!(header.to_bytes(), bytes),
                Err(error) => prop_assert_eq!(error.kind(), ErrorKind::InvalidData),
            }
        }

        #[test]
        fn preambles_are_read_as_written(
            (asks, session, lane, epoch) in (0u8..3, any::<u128>(), any::<u32>(), any::<u32>()),
            (sequence, path) in (any::<u64>(), "[a-z0-9-]{1,63}"),
        ) {
            let asks = [Asks::Hello, Asks::New, Asks::Resume][usize::from(asks)];
            let preamble = Preamble { asks, session, lane, epoch, sequence, path };
            prop_assert_eq!(Preamble::from_bytes(&preamble.to_bytes()).unwrap(), preamble);
        }

        #[test]
        fn damaged_preambles_are_refused_without_a_panic(
            (at, byte) in (0..PREAMBLE, any::<u8>()),
        ) {
            let preamble =
                Preamble { asks: Asks::New, session: 7, lane: 1, epoch: 0, sequence: 0, path: "lte".into() };
            let mut bytes = preamble.to_bytes();
            bytes[at] = byte;
            let _ = Preamble::from_bytes(&bytes);
        }
    }
}
