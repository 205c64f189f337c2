//! The ends of wires, with the one frame that each holds.
use crate::memory::Outside;
use crate::schedule::Receive;
use crate::wire::{HEAD, Head, Mismatch, Wire};
use std::io::ErrorKind;

/// The sending end. A frame is copied here, so that the buffer it came from can change.
pub(super) struct Outbound {
    pub(super) wire: Box<dyn Wire>,
    frame: Vec<u8>,
    /// Bytes of the frame, and those that the wire took. All, but not zero: the wire holds some back.
    length: usize,
    taken: usize,
    /// Frames of the operation.
    frames: u32,
}

impl Outbound {
    pub(super) fn new(wire: Box<dyn Wire>) -> Self {
        Self { wire, frame: Vec::new(), length: 0, taken: 0, frames: 0 }
    }

    /// Counts frames from 0 on.
    pub(super) fn begin(&mut self) {
        self.frames = 0;
    }

    /// Whether all has left.
    pub(super) fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Takes a frame of this many bytes.
    pub(super) fn fill(
        &mut self,
        head: Head,
        read: impl FnOnce(&mut [u8]) -> Result<(), Outside>,
    ) -> Result<(), Outside> {
        let length = HEAD + head.bytes as usize;
        if self.frame.len() < length {
            self.frame.resize(length, 0);
        }
        self.frame[..HEAD].copy_from_slice(&Head { piece: self.frames, ..head }.to_bytes());
        read(&mut self.frame[HEAD..length])?;
        (self.length, self.taken) = (length, 0);
        self.frames += 1;
        Ok(())
    }

    /// Sends what goes now; returns its bytes.
    pub(super) fn push(&mut self) -> Result<usize, String> {
        let before = self.taken;
        while self.taken < self.length {
            match self.wire.send(&self.frame[self.taken..self.length]) {
                Ok(0) => return Err("the connection takes no bytes any more".to_owned()),
                Ok(taken) => self.taken += taken,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(self.taken - before),
                Err(error) => return Err(format!("cannot send to it: {error}")),
            }
        }
        let sent = self.taken - before;
        match self.wire.flush() {
            Ok(()) => (self.length, self.taken) = (0, 0),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(format!("cannot send to it: {error}")),
        }
        Ok(sent)
    }
}

/// The receiving end. It reads no further than the frame that is due, so bytes of the next operation stay in the wire.
pub(super) struct Inbound {
    pub(super) wire: Box<dyn Wire>,
    frame: Vec<u8>,
    /// Bytes of the frame that is due, with its head; 0: none is. And those that have come.
    length: usize,
    filled: usize,
    /// Frames of the operation that were due, and the receives of the program that were looked at for them.
    frames: u32,
    looked_at: usize,
}

impl Inbound {
    pub(super) fn new(wire: Box<dyn Wire>) -> Self {
        Self { wire, frame: Vec::new(), length: 0, filled: 0, frames: 0, looked_at: 0 }
    }

    /// Counts frames from 0 on.
    pub(super) fn begin(&mut self) {
        (self.length, self.filled, self.frames, self.looked_at) = (0, 0, 0, 0);
    }

    /// Whether bytes are due that have not come.
    pub(super) fn is_waiting(&self) -> bool {
        self.filled < self.length
    }

    /// Reads what there is of the frame that is due; returns its bytes. `head`: of any frame of this wire in this operation.
    pub(super) fn pull(&mut self, receives: &[Receive], head: Head) -> Result<usize, Mismatch> {
        if self.length == 0 {
            let mut rest = receives.iter().enumerate().skip(self.looked_at);
            let Some((index, receive)) = rest.find(|(_, receive)| receive.from == head.from) else {
                self.looked_at = receives.len();
                return Ok(0);
            };
            self.looked_at = index + 1;
            self.length = HEAD + (receive.bytes.end - receive.bytes.start) as usize;
            if self.frame.len() < self.length {
                self.frame.resize(self.length, 0);
            }
            self.filled = 0;
            self.frames += 1;
        }
        let before = self.filled;
        while self.filled < self.length {
            let came = match self.wire.receive(&mut self.frame[self.filled..self.length]) {
                Ok(0) => return Err(Mismatch::Other("its connection has ended".to_owned())),
                Ok(came) => came,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(Mismatch::Other(format!("cannot receive from it: {error}"))),
            };
            let had = self.filled;
            self.filled += came;
            if had < HEAD
                && let Some(bytes) = self.frame[..self.filled].first_chunk::<HEAD>()
            {
                let bytes_due = (self.length - HEAD) as u32;
                let due = Head { piece: self.frames - 1, bytes: bytes_due, ..head };
                let none = || Mismatch::Other("it sent bytes that are no frame of a group".to_owned());
                if let Some(mismatch) = Head::of_bytes(bytes).ok_or_else(none)?.mismatch(&due) {
                    return Err(mismatch);
                }
            }
        }
        Ok(self.filled - before)
    }

    /// The bytes of the frame, when all have come.
    pub(super) fn bytes(&self) -> Option<&[u8]> {
        (self.length > 0 && self.filled == self.length).then(|| &self.frame[HEAD..self.length])
    }

    /// Makes room for the next frame.
    pub(super) fn clear(&mut self) {
        (self.length, self.filled) = (0, 0);
    }
}
