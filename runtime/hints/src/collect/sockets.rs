//! Counters of all TCP sockets of this host, from the kernel (`INET_DIAG`). It needs no privileges.
use super::{Counter, Source};
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;

/// A question for TCP sockets, in its older form: the newer one has an answer for each family, and goes through all sockets for each.
/// Figures are from the headers of Linux.
const TCP_SOCKETS: u16 = 18;
/// A question, for all that match.
const ASK_ALL: u16 = 0x301;
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// The extension with `tcp_info`, and its bit.
const INFO: u16 = 2;
const INFO_BIT: u8 = 1 << (INFO - 1);
/// Established, or closing while data may still be on its way: states 1, 4, 5, 8, 9 and 11.
const STATES: u32 = 1 << 1 | 1 << 4 | 1 << 5 | 1 << 8 | 1 << 9 | 1 << 11;
const HEADER: usize = 16;
const QUESTION: usize = 76;
/// Bytes of a socket before its extensions.
const SOCKET: usize = 72;
/// Place of the number of a socket in the file descriptors of processes.
const INODE: usize = 68;
/// Places of the bytes that were acknowledged and received, in `tcp_info`.
const ACKNOWLEDGED: usize = 120;
const RECEIVED: usize = 128;

/// The TCP sockets of the network namespace of this process.
#[derive(Debug)]
pub struct Sockets {
    socket: OwnedFd,
    number: u32,
    buffer: Vec<u8>,
}

/// A reason why the kernel did not tell.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// It does not answer such questions, or not this process.
    #[error("the kernel does not tell its sockets: {0}")]
    Refused(#[from] io::Error),
    /// The answer is not understood.
    #[error("the kernel tells its sockets in a way that is not understood")]
    Malformed,
}

impl From<rustix::io::Errno> for SocketError {
    fn from(error: rustix::io::Errno) -> Self {
        Self::Refused(error.into())
    }
}

impl Sockets {
    /// Prepares to ask.
    pub fn open() -> Result<Self, SocketError> {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(netlink::SOCK_DIAG))?;
        Ok(Self { socket, number: 0, buffer: vec![0; 64 << 10] })
    }
}

/// Counters of a socket, and who has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnedCounter {
    /// Its counters.
    pub counter: Counter,
    /// Its number in the file descriptors of processes (`/proc/PID/fd`); 0: no process has it any more.
    pub inode: u64,
}

impl Source for Sockets {
    type Error = SocketError;

    fn counters(&mut self) -> Result<Vec<Counter>, SocketError> {
        Ok(self.owned()?.into_iter().map(|socket| socket.counter).collect())
    }
}

impl Sockets {
    /// Returns the counters of the sockets of this moment, with their numbers.
    pub fn owned(&mut self) -> Result<Vec<OwnedCounter>, SocketError> {
        self.number = self.number.wrapping_add(1);
        sendto(&self.socket, &question(self.number), SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        let mut found = Vec::new();
        loop {
            let (length, whole) = recv(&self.socket, &mut self.buffer[..], RecvFlags::TRUNC)?;
            if whole > length {
                return Err(SocketError::Malformed);
            }
            if read(&self.buffer[..length], self.number, &mut found)? {
                return Ok(found);
            }
        }
    }
}

fn question(number: u32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(QUESTION);
    bytes.extend((QUESTION as u32).to_ne_bytes());
    bytes.extend(TCP_SOCKETS.to_ne_bytes());
    bytes.extend(ASK_ALL.to_ne_bytes());
    bytes.extend(number.to_ne_bytes());
    bytes.extend(0_u32.to_ne_bytes()); // the kernel knows who asks
    bytes.extend([0, 0, 0, INFO_BIT]); // of any family
    bytes.extend([0; 48]); // any addresses and ports
    bytes.extend(STATES.to_ne_bytes());
    bytes.resize(QUESTION, 0);
    bytes
}

/// Reads a packet of the answer. Returns whether it was the last one.
fn read(mut packet: &[u8], number: u32, found: &mut Vec<OwnedCounter>) -> Result<bool, SocketError> {
    while packet.len() >= HEADER {
        let length = u32_at(packet, 0)? as usize;
        let (kind, answers) = (u16_at(packet, 4)?, u32_at(packet, 8)?);
        let message = packet.get(HEADER..length).ok_or(SocketError::Malformed)?;
        match kind {
            _ if answers != number => {} // to an earlier question
            DONE => return Ok(true),
            ERROR => {
                let code = i32::from_ne_bytes(array(message, 0)?);
                return Err(io::Error::from_raw_os_error(code.wrapping_neg()).into());
            }
            TCP_SOCKETS => found.extend(counter(message)?),
            _ => {}
        }
        packet = packet.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

/// Reads a socket; none without counters.
fn counter(message: &[u8]) -> Result<Option<OwnedCounter>, SocketError> {
    let family = message.first().copied().ok_or(SocketError::Malformed)?;
    let address = |place: usize| -> Result<IpAddr, SocketError> {
        Ok(if u16::from(family) == AddressFamily::INET.as_raw() {
            Ipv4Addr::from(array::<4>(message, place)?).into()
        } else {
            IpAddr::from(Ipv6Addr::from(array::<16>(message, place)?)).to_canonical()
        })
    };
    let (local, peer) = (address(8)?, address(24)?);
    let id = u64::from_ne_bytes(array(message, 44)?);
    let inode = u64::from(u32_at(message, INODE)?);
    let mut rest = message.get(SOCKET..).ok_or(SocketError::Malformed)?;
    while rest.len() >= 4 {
        let length = usize::from(u16_at(rest, 0)?);
        let value = rest.get(4..length).ok_or(SocketError::Malformed)?;
        if u16_at(rest, 2)? == INFO && value.len() >= RECEIVED + 8 {
            let figure = |place| Ok::<_, SocketError>(u64::from_ne_bytes(array(value, place)?));
            let (sent, received) = (figure(ACKNOWLEDGED)?, figure(RECEIVED)?);
            return Ok(Some(OwnedCounter { counter: Counter { id, local, peer, sent, received }, inode }));
        }
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(None)
}

fn array<const N: usize>(bytes: &[u8], place: usize) -> Result<[u8; N], SocketError> {
    let found = bytes.get(place..).and_then(|rest| rest.first_chunk::<N>());
    found.copied().ok_or(SocketError::Malformed)
}

fn u16_at(bytes: &[u8], place: usize) -> Result<u16, SocketError> {
    Ok(u16::from_ne_bytes(array(bytes, place)?))
}

fn u32_at(bytes: &[u8], place: usize) -> Result<u32, SocketError> {
    Ok(u32::from_ne_bytes(array(bytes, place)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_answer_is_read_or_rejected(bytes in prop::collection::vec(any::<u8>(), 0..400), kind in 0..30_u16, length in 0..400_u32) {
            let mut packet = bytes;
            if packet.len() >= HEADER {
                packet[0..4].copy_from_slice(&length.to_ne_bytes());
                packet[4..6].copy_from_slice(&kind.to_ne_bytes());
                packet[8..12].copy_from_slice(&1_u32.to_ne_bytes());
            }
            let _ = read(&packet, 1, &mut Vec::new());
        }
    }

    /// A socket as the kernel tells it, with the counters of this extension.
    fn told(family: AddressFamily, peer: &[u8], info: usize) -> Vec<u8> {
        let mut message = vec![0; SOCKET];
        message[0] = family.as_raw() as u8;
        message[24..24 + peer.len()].copy_from_slice(peer);
        message[44..52].copy_from_slice(&77_u64.to_ne_bytes());
        message[68..72].copy_from_slice(&88_u32.to_ne_bytes());
        let mut value = vec![0; info];
        if info >= RECEIVED + 8 {
            value[ACKNOWLEDGED..ACKNOWLEDGED + 8].copy_from_slice(&5_u64.to_ne_bytes());
            value[RECEIVED..RECEIVED + 8].copy_from_slice(&6_u64.to_ne_bytes());
        }
        // Another extension comes first, of a length that is no multiple of 4.
        message.extend([5, 0, 9, 0, 1, 0, 0, 0]);
        message.extend((4 + info as u16).to_ne_bytes());
        message.extend(INFO.to_ne_bytes());
        message.extend(value);
        message
    }

    #[test]
    fn sockets_of_both_families_are_read() {
        let found = counter(&told(AddressFamily::INET, &[10, 1, 2, 3], 232)).expect("it is a socket");
        let OwnedCounter { counter: found, inode } = found.expect("it has counters");
        assert_eq!(inode, 88);
        assert_eq!((found.id, found.peer, found.sent, found.received), (77, [10, 1, 2, 3].into(), 5, 6));
        let address: Ipv6Addr = "fd00::9".parse().expect("it is an address");
        let found = counter(&told(AddressFamily::INET6, &address.octets(), 232)).expect("it is a socket");
        assert_eq!(found.map(|found| found.counter.peer), Some(address.into()));
        let within = Ipv4Addr::new(10, 1, 2, 3).to_ipv6_mapped().octets();
        let found = counter(&told(AddressFamily::INET6, &within, 232)).expect("it is a socket");
        assert_eq!(found.map(|found| found.counter.peer), Some([10, 1, 2, 3].into()));
        let old = counter(&told(AddressFamily::INET, &[10, 1, 2, 3], 104));
        assert!(matches!(old, Ok(None)), "a kernel without these counters");
    }

    #[test]
    fn errors_of_the_kernel_have_their_reason() {
        let mut packet = Vec::from(36_u32.to_ne_bytes());
        packet.extend(ERROR.to_ne_bytes());
        packet.extend([0, 0]);
        packet.extend(1_u32.to_ne_bytes());
        packet.extend([0; 4]);
        packet.extend((-1_i32).to_ne_bytes());
        packet.extend([0; 16]);
        let error = read(&packet, 1, &mut Vec::new()).expect_err("it is an error");
        assert!(
            matches!(&error, SocketError::Refused(reason) if reason.raw_os_error() == Some(1)),
            "{error}"
        );
        assert!(matches!(read(&packet, 2, &mut Vec::new()), Ok(false)), "an answer to another question");
    }
}
