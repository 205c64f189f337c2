//! Lines of JSON over a Unix socket, with a descriptor beside one of them.
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// Longest line.
const MOST: usize = 1 << 20;

/// Writes one line.
///
/// # Errors
/// If the other side is gone.
pub fn send(mut socket: &UnixStream, message: &impl Serialize) -> io::Result<()> {
    socket.write_all(&line(message)?)
}

/// Writes one line, and passes a descriptor with it.
pub(crate) fn send_with(
    socket: &UnixStream,
    message: &impl Serialize,
    passed: BorrowedFd<'_>,
) -> io::Result<()> {
    let line = line(message)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    let passed = [passed];
    beside.push(SendAncillaryMessage::ScmRights(&passed));
    let sent = sendmsg(socket, &[IoSlice::new(&line)], &mut beside, SendFlags::NOSIGNAL)?;
    let mut socket = socket;
    socket.write_all(&line[sent..])
}

fn line(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(line)
}

/// Reads lines.
#[derive(Debug)]
pub struct Lines {
    socket: UnixStream,
    read: Vec<u8>,
    descriptors: VecDeque<OwnedFd>,
}

impl Lines {
    /// Of a socket whose reads block.
    pub fn new(socket: UnixStream) -> Self {
        Self { socket, read: Vec::new(), descriptors: VecDeque::new() }
    }

    /// The next message; none at the end.
    ///
    /// # Errors
    /// If a line is too long or no message, or the socket fails.
    pub fn receive<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        loop {
            if let Some(message) = self.ready()? {
                return Ok(Some(message));
            }
            if !self.fill()? {
                return Ok(None);
            }
        }
    }

    /// The next message that was read already.
    pub(super) fn ready<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        let Some(end) = self.read.iter().position(|byte| *byte == b'\n') else { return Ok(None) };
        let message = serde_json::from_slice(&self.read[..end])?;
        self.read.drain(..=end);
        Ok(Some(message))
    }

    /// Reads once; false at the end.
    pub(super) fn fill(&mut self) -> io::Result<bool> {
        if self.read.len() > MOST {
            return Err(io::Error::new(ErrorKind::InvalidData, "a line of more than 1 MiB"));
        }
        let mut bytes = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let read = match recvmsg(&self.socket, &mut parts, &mut beside, RecvFlags::CMSG_CLOEXEC) {
            Ok(read) => read.bytes,
            Err(rustix::io::Errno::INTR) => return Ok(true),
            // The other process ended while it had not read everything.
            Err(rustix::io::Errno::CONNRESET) => 0,
            Err(error) => return Err(error.into()),
        };
        for message in beside.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                self.descriptors.extend(descriptors);
            }
        }
        self.read.extend_from_slice(&bytes[..read]);
        Ok(read > 0)
    }

    /// Takes the first descriptor that came with a line and was not taken.
    pub fn descriptor(&mut self) -> Option<OwnedFd> {
        self.descriptors.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::AsFd;

    #[test]
    fn lines_and_descriptors_arrive_in_pieces_and_together() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (passed, mut kept) = UnixStream::pair().unwrap();
        (&ours).write_all(b"[1").unwrap();
        (&ours).write_all(b",2]\n[3]\n").unwrap();
        send_with(&ours, &[4], passed.as_fd()).unwrap();
        drop(ours);
        let mut lines = Lines::new(theirs);
        let mut read = || lines.receive::<Vec<u8>>().unwrap();
        assert_eq!((read(), read(), read(), read()), (Some(vec![1, 2]), Some(vec![3]), Some(vec![4]), None));
        UnixStream::from(lines.descriptor().unwrap()).write_all(b"x").unwrap();
        drop(passed);
        let mut text = String::new();
        kept.read_to_string(&mut text).unwrap();
        assert_eq!(text, "x");
    }

    #[test]
    fn a_line_without_an_end_and_other_text_are_refused() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let writer = std::thread::spawn(move || {
            // It is refused before the end.
            let _ = ours.write_all(&vec![b'1'; MOST + 8192]);
        });
        let mut lines = Lines::new(theirs);
        assert!(lines.receive::<u64>().is_err());
        drop(lines);
        writer.join().unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        (&ours).write_all(b"{nothing}\n").unwrap();
        assert!(Lines::new(theirs).receive::<u64>().is_err());
    }
}
