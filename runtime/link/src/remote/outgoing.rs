//! Bytes that wait for a stream to take them.
use super::carrier::Carrier;
use arrow_buffer::Buffer;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice};

/// Parts below this size are put together: a copy of so little costs less than a part of its own.
const SMALL: usize = 1 << 10;
/// Parts of one system call; the limit of Linux is 1024.
const AT_ONCE: usize = 256;

/// Bytes that wait for the stream, in the memory they came from.
#[derive(Default)]
pub(super) struct Outgoing {
    parts: VecDeque<Buffer>,
    /// Bytes of the first part that are gone.
    offset: usize,
    /// TLS may hold back something that is in no part.
    held: bool,
}

impl Outgoing {
    /// Takes a header and what follows it.
    pub(super) fn push(&mut self, header: &[u8], payload: &[Buffer]) {
        let mut small = header.to_vec();
        for part in payload.iter().filter(|part| !part.is_empty()) {
            if part.len() < SMALL {
                small.extend_from_slice(part);
                continue;
            }
            if !small.is_empty() {
                self.parts.push_back(Buffer::from_vec(std::mem::take(&mut small)));
            }
            self.parts.push_back(part.clone());
        }
        if !small.is_empty() {
            self.parts.push_back(Buffer::from_vec(small));
        }
    }

    /// Writes as much as the stream takes; `true` when nothing is left.
    pub(super) fn flush(&mut self, carrier: &mut Carrier) -> io::Result<bool> {
        loop {
            let done = match self.parts.is_empty() {
                true if !self.held => return Ok(true),
                true => carrier.flush().map(|()| self.held = false),
                false => self.write(carrier),
            };
            match done {
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                other => other?,
            }
        }
    }

    fn write(&mut self, carrier: &mut Carrier) -> io::Result<()> {
        let mut slices = Vec::with_capacity(self.parts.len().min(AT_ONCE));
        let parts = self.parts.iter().take(AT_ONCE).enumerate();
        slices.extend(parts.map(|(at, part)| IoSlice::new(&part[if at == 0 { self.offset } else { 0 }..])));
        let mut written = carrier.write(&slices)?;
        self.held = carrier.is_secured();
        while let Some(first) = self.parts.front() {
            let left = first.len() - self.offset;
            if written < left {
                self.offset += written;
                break;
            }
            written -= left;
            self.offset = 0;
            self.parts.pop_front();
        }
        Ok(())
    }

    /// Bytes that wait.
    pub(super) fn bytes(&self) -> u64 {
        (self.parts.iter().map(Buffer::len).sum::<usize>() - self.offset) as u64
    }

    /// The waiting parts.
    #[cfg(test)]
    pub(super) fn parts(&self) -> impl Iterator<Item = &Buffer> {
        self.parts.iter()
    }

    /// Forgets everything, when nothing reads it any more.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}
