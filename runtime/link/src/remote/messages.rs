//! Messages between two hosts, in both directions: whole, in order, with threads that wait.
//!
//! A message is 24 bytes of header (little endian), then its bytes. Header: `TMSG`, crc32c of the message, its length
//! (8 bytes), crc32c of these 16 bytes, four zeros.
#[cfg(doc)]
use super::PEER_TIMEOUT;
use super::carrier::{Carrier, lost};
use super::waiting::{wait_to_read, wait_to_write};
use crate::link::LinkError;
use crate::link::codec::{u32_at, u64_at};
use crate::transport::{Class, Line};
use std::io::{ErrorKind, IoSlice};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes that a message may have.
pub const MAX_MESSAGE: usize = 1 << 30;
const MAGIC: &[u8; 4] = b"TMSG";
pub(super) const HEADER: usize = 24;
/// Memory that a header gets for its claimed length; the rest comes as the message does.
const ON_TRUST: usize = 1 << 20;

struct Shared {
    line: Arc<dyn Line>,
    /// Held for one step at a time: reading and writing do not wait for each other.
    carrier: Mutex<Carrier>,
    /// Held for a whole message. `true`: half a message was sent, nothing can follow.
    broken: Mutex<bool>,
    /// Bytes that the system has taken.
    sent: AtomicU64,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sends messages. May be shared by threads; each message is whole.
#[derive(Clone)]
pub struct MessageWriter(Arc<Shared>);

/// Receives messages. Some thread must do so all the time: a host that takes nothing for [`PEER_TIMEOUT`] while more is sent
/// than its system keeps is taken for dead.
pub struct MessageReader(Arc<Shared>);

pub(super) fn over(mut carrier: Carrier) -> (MessageWriter, MessageReader) {
    carrier.classify(Class::Control);
    let shared = Arc::new(Shared {
        line: carrier.line(),
        carrier: Mutex::new(carrier),
        broken: Mutex::new(false),
        sent: AtomicU64::new(0),
    });
    (MessageWriter(Arc::clone(&shared)), MessageReader(shared))
}

/// Returns the messages with correct checksums; a message that claims more than there is ends with the bytes.
pub(super) fn sealed_anew(bytes: &[u8]) -> Vec<u8> {
    let mut sealed = bytes.to_vec();
    let mut at = 0;
    while let Some((header, rest)) = sealed.get_mut(at..).and_then(|rest| rest.split_at_mut_checked(HEADER)) {
        let length = usize::try_from(u64_at(header, 8)).unwrap_or(usize::MAX).min(rest.len());
        header[..4].copy_from_slice(MAGIC);
        header[4..8].copy_from_slice(&crc32c::crc32c(&rest[..length]).to_le_bytes());
        let checksum = crc32c::crc32c(&header[..16]);
        header[16..20].copy_from_slice(&checksum.to_le_bytes());
        at += HEADER + length;
    }
    sealed
}

impl Shared {
    fn write(&self, parts: [&[u8]; 2]) -> Result<(), LinkError> {
        let total = parts[0].len() + parts[1].len();
        let mut done = 0;
        loop {
            let slices = [
                IoSlice::new(&parts[0][done.min(parts[0].len())..]),
                IoSlice::new(&parts[1][done.saturating_sub(parts[0].len())..]),
            ];
            let mut carrier = locked(&self.carrier);
            let written = if done < total { carrier.write(&slices) } else { carrier.flush().map(|()| 0) };
            drop(carrier);
            match written {
                Ok(_) if done == total => return Ok(()),
                Ok(n) => {
                    done += n;
                    self.sent.fetch_add(n as u64, Ordering::Relaxed);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    wait_to_write(&*self.line, None, None);
                }
                Err(error) => return Err(lost(&error)),
            }
        }
    }
}

impl MessageWriter {
    /// Sends a message of at most [`MAX_MESSAGE`] bytes; returns when the system has taken it. Threads that send at once wait for
    /// each other.
    ///
    /// # Errors
    /// [`LinkError::Lost`] when the peer is gone or the connection was closed.
    pub fn send(&self, message: &[u8]) -> Result<(), LinkError> {
        if message.len() > MAX_MESSAGE {
            let text = format!("a message of {} bytes, {MAX_MESSAGE} are the most", message.len());
            return Err(LinkError::System(std::io::Error::new(ErrorKind::InvalidInput, text)));
        }
        let mut header = [0; HEADER];
        header[..4].copy_from_slice(MAGIC);
        header[4..8].copy_from_slice(&crc32c::crc32c(message).to_le_bytes());
        header[8..16].copy_from_slice(&(message.len() as u64).to_le_bytes());
        let checksum = crc32c::crc32c(&header[..16]);
        header[16..20].copy_from_slice(&checksum.to_le_bytes());
        let mut broken = locked(&self.0.broken);
        if *broken {
            return Err(LinkError::Lost);
        }
        self.0.write([&header, message]).inspect_err(|_| *broken = true)
    }

    /// Bytes that the system has taken so far: what does not grow while something is sent is a peer that reads nothing.
    pub fn sent_bytes(&self) -> u64 {
        self.0.sent.load(Ordering::Relaxed)
    }

    /// Ends the connection: wakes the waiting threads of both sides; bytes that were sent before can still be
    /// received.
    pub fn close(&self) {
        locked(&self.0.carrier).close();
        self.0.line.hang_up();
    }
}

impl MessageReader {
    fn read(&self, into: &mut Vec<u8>, until: usize) -> Result<(), LinkError> {
        while into.len() < until {
            let before = into.len();
            // Memory for as much again as has come, so that a claim alone takes no memory.
            let end = until.min(before + before.max(ON_TRUST));
            into.resize(end, 0);
            let mut done = before;
            let result = loop {
                let read = locked(&self.0.carrier).read(&mut into[done..end]);
                match read {
                    Ok(0) => break Err(LinkError::Lost),
                    Ok(n) => done += n,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        wait_to_read(&*self.0.line, None, None);
                    }
                    Err(error) => break Err(lost(&error)),
                }
                if done == end {
                    break Ok(());
                }
            };
            result?;
        }
        Ok(())
    }

    /// The next message; waits for it.
    ///
    /// # Errors
    /// [`LinkError::Lost`] when the peer is gone or either side closed the connection; [`LinkError::Damaged`] when something else
    /// came. After an error nothing more can be received.
    pub fn receive(&mut self) -> Result<Vec<u8>, LinkError> {
        self.receive_at_most(MAX_MESSAGE)
    }

    /// As [`MessageReader::receive`], of a peer whose messages have no more bytes: longer ones are damaged.
    ///
    /// # Errors
    /// As [`MessageReader::receive`].
    pub fn receive_at_most(&mut self, most: usize) -> Result<Vec<u8>, LinkError> {
        let mut header = Vec::with_capacity(HEADER);
        self.read(&mut header, HEADER)?;
        if !header.starts_with(MAGIC) || u32_at(&header, 16) != crc32c::crc32c(&header[..16]) {
            return Err(LinkError::Damaged("this is not how a message begins".into()));
        }
        let length = u64_at(&header, 8);
        if length > most as u64 {
            return Err(LinkError::Damaged(format!("a message of {length} bytes, {most} are the most")));
        }
        let mut message = Vec::new();
        self.read(&mut message, length as usize)?;
        if crc32c::crc32c(&message) != u32_at(&header, 4) {
            return Err(LinkError::Damaged("the checksum of a message differs".into()));
        }
        Ok(message)
    }
}

impl std::fmt::Debug for MessageWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MessageWriter").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for MessageReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MessageReader").finish_non_exhaustive()
    }
}
