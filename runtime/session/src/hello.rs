//! Signs of life that the two sides of a path send each other.
use crate::header::{BYTES, Header, Kind};
use std::time::Duration;
use tidemill_link::transport::Class;

/// Bytes after the header of a hello.
pub(crate) const BODY: usize = 32;
/// Bytes of a hello.
pub(crate) const HELLO: usize = BYTES + BODY;
/// Bytes of a hello in a packet, with the headers of TCP and IPv4.
pub const HELLO_IN_A_PACKET: u64 = HELLO as u64 + 52;

/// A sign of life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hello {
    /// Counts from 1.
    pub(crate) number: u64,
    /// Number of the newest hello that has come from the other side; 0: none.
    pub(crate) heard: u64,
    /// When this one leaves, nanoseconds on the sender's clock.
    pub(crate) sent: u64,
    /// `sent` of the newest one that has come, and how long ago that was: they give the round trip.
    pub(crate) echo: u64,
    pub(crate) held: u64,
    /// Time until the next one. In a header's field for deadlines: by then another one must have left.
    pub(crate) interval: Duration,
    /// The least time between two that this side wants; the longer one of both sides counts. In a header's field for
    /// lanes, milliseconds.
    pub(crate) wanted: Duration,
    /// Lanes are to leave this path. In a header's field for epochs.
    pub(crate) drains: bool,
}

impl Hello {
    pub(crate) fn to_bytes(self, route: u16) -> [u8; HELLO] {
        let header = Header {
            kind: Kind::Hello,
            class: Class::Control,
            route,
            length: BODY as u32,
            lane: u32::try_from(self.wanted.as_millis()).unwrap_or(u32::MAX),
            epoch: u32::from(self.drains),
            sequence: self.number,
            deadline: u64::try_from(self.interval.as_nanos()).unwrap_or(u64::MAX),
        };
        let mut bytes = [0; HELLO];
        bytes[..BYTES].copy_from_slice(&header.to_bytes());
        for (at, number) in [self.heard, self.sent, self.echo, self.held].into_iter().enumerate() {
            bytes[BYTES + 8 * at..BYTES + 8 * at + 8].copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// Reads a hello; none: it is something else.
    pub(crate) fn from_bytes(bytes: &[u8; HELLO]) -> Option<Self> {
        let header = Header::from_bytes(bytes.first_chunk()?).ok()?;
        if header.kind != Kind::Hello || header.length != BODY as u32 {
            return None;
        }
        let at = |index: usize| {
            let from = BYTES + 8 * index;
            Some(u64::from_le_bytes(*bytes.get(from..)?.first_chunk()?))
        };
        Some(Self {
            number: header.sequence,
            heard: at(0)?,
            sent: at(1)?,
            echo: at(2)?,
            held: at(3)?,
            interval: Duration::from_nanos(header.deadline),
            wanted: Duration::from_millis(u64::from(header.lane)),
            drains: header.epoch != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hellos_are_read_as_written() {
        let interval = Duration::from_millis(50);
        let wanted = Duration::from_millis(40);
        let hello = Hello { number: 3, heard: 2, sent: 9, echo: 8, held: 7, interval, wanted, drains: true };
        let mut bytes = hello.to_bytes(4);
        assert_eq!(Hello::from_bytes(&bytes), Some(hello));
        bytes[0] = Kind::Data as u8;
        assert_eq!(Hello::from_bytes(&bytes), None);
        assert_eq!(Hello::from_bytes(&[0; HELLO]), None);
    }
}
