//! Packets beside the rings, with descriptors of files.
use crate::protocol::PACKET;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::{Serialize, de::DeserializeOwned};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Descriptors that come with a packet, at most.
const DESCRIPTORS: usize = 2;

/// Sends a packet.
///
/// # Errors
/// [`ErrorKind::WouldBlock`] when the other side does not read; others when it is gone.
pub fn send(socket: impl AsFd, packet: &impl Serialize, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let bytes = serde_json::to_vec(packet)?;
    if bytes.len() > PACKET {
        return Err(io::Error::new(ErrorKind::InvalidInput, "a name or an address is too long"));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::new(ErrorKind::InvalidInput, "too many descriptors"));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    loop {
        match sendmsg(&socket, &[IoSlice::new(&bytes)], &mut ancillary, flags) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Receives a packet; none: the other side is gone.
///
/// A side that closes its socket before it has read everything resets the connection: the system reports that once, before what that
/// side sent last. So its last words are read after the report.
///
/// # Errors
/// [`ErrorKind::WouldBlock`] when there is none now; [`ErrorKind::InvalidData`] for something else than a packet.
pub fn receive<T: DeserializeOwned>(socket: impl AsFd) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut bytes = vec![0; PACKET];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let mut was_reset = false;
    let received = loop {
        match recvmsg(&socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags) {
            Ok(received) => break received,
            Err(Errno::INTR) => {}
            Err(Errno::CONNRESET) if !was_reset => was_reset = true,
            Err(error) => return Err(error.into()),
        }
    };
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if received.bytes == 0 {
        return Ok(None);
    }
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(io::Error::new(ErrorKind::InvalidData, "a packet is too long"));
    }
    let packet = serde_json::from_slice(&bytes[..received.bytes])
        .map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
    Ok(Some((packet, descriptors)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    #[test]
    fn packets_come_whole_with_their_descriptors_and_others_are_refused() {
        let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .expect("a pair");
        send(&one, &"first", &[one.as_fd(), other.as_fd()]).expect("there is room");
        send(&one, &"second", &[]).expect("there is room");
        let (text, descriptors) = receive::<String>(&other).expect("a packet").expect("not the end");
        assert_eq!((text.as_str(), descriptors.len()), ("first", 2));
        drop(descriptors);
        assert_eq!(receive::<String>(&other).expect("a packet").expect("not the end").0, "second");
        assert_eq!(receive::<String>(&other).expect_err("none").kind(), ErrorKind::WouldBlock);
        send(&one, &7, &[]).expect("there is room");
        assert_eq!(receive::<String>(&other).expect_err("no text").kind(), ErrorKind::InvalidData);
        drop(one);
        assert!(receive::<String>(&other).expect("the end").is_none());
    }

    #[test]
    fn the_last_words_of_a_side_that_has_not_read_everything_arrive() {
        let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .expect("a pair");
        send(&other, &"unread", &[]).expect("there is room");
        send(&one, &"last", &[]).expect("there is room");
        drop(one);
        assert_eq!(receive::<String>(&other).expect("a packet").expect("not the end").0, "last");
        assert!(receive::<String>(&other).expect("the end").is_none());
    }
}
