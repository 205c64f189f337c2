//! The ends of a channel over a stream.
use super::carrier::{Carrier, lost};
use super::inbound::{Inbound, MAX_PAYLOAD, new_region, seal};
use super::memory::SharedSender;
use super::outgoing::Outgoing;
use super::pool::{LARGE, READ_AHEAD};
use crate::frame::{Content, Control, Frame};
use crate::link::codec::{Decoder, Encoder, HEADER_BYTES, WireHeader, u32_at, u64_at};
use crate::link::{LinkError, LinkReceiver, LinkSender};
use crate::transport::Line;
use arrow_buffer::Buffer;
use arrow_schema::SchemaRef;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Bytes of a control word: kind, three zeros, checksum of the others, value.
const WORD_BYTES: usize = 16;
/// Words that are read at once.
const WORDS: usize = 256;
const RESUME: u8 = 1;
const CREDIT: u8 = 2;
const DURABLE: u8 = 3;
/// The place of a payload in shared memory that is not needed any more; not for the layer above.
const RETURNED: u8 = 4;
const AHEAD: u8 = 5;
const DELIVERS: u8 = 6;

/// Why an end cannot be used any more.
#[derive(Clone)]
enum End {
    Lost,
    Damaged(String),
}

impl From<&LinkError> for End {
    fn from(error: &LinkError) -> Self {
        match error {
            LinkError::Damaged(text) => Self::Damaged(text.clone()),
            _ => Self::Lost,
        }
    }
}

impl From<End> for LinkError {
    fn from(end: End) -> Self {
        match end {
            End::Lost => Self::Lost,
            End::Damaged(text) => Self::Damaged(text),
        }
    }
}

/// The common part of both ends.
struct Wire {
    carrier: Carrier,
    outgoing: Outgoing,
    /// The stream had something, as far as known.
    readable: bool,
    /// The stream takes something, as far as known.
    writable: bool,
    /// Nothing more can be read; reported when all that came before was taken.
    ended: Option<End>,
    /// Nothing more can be written.
    mute: bool,
}

impl Wire {
    fn new(carrier: Carrier) -> Self {
        // Look at the bytes that came before the first wait on the descriptor.
        Self {
            carrier,
            outgoing: Outgoing::default(),
            readable: true,
            writable: true,
            ended: None,
            mute: false,
        }
    }

    fn ready(&mut self) {
        (self.readable, self.writable) = (true, true);
    }

    /// Writes as much as the stream takes.
    fn flush(&mut self) -> Result<(), LinkError> {
        if self.mute {
            return Err(LinkError::Lost);
        }
        if !self.writable {
            return Ok(());
        }
        match self.outgoing.flush(&mut self.carrier) {
            Ok(all) => {
                self.writable = all;
                Ok(())
            }
            Err(_) => {
                self.mute = true;
                self.outgoing.clear();
                Err(LinkError::Lost)
            }
        }
    }

    /// Takes a message, and writes as much as the stream takes.
    fn send(&mut self, header: &[u8], payload: &[Buffer]) -> Result<(), LinkError> {
        self.told()?;
        if !self.mute {
            self.outgoing.push(header, payload);
        }
        self.flush()
    }

    /// Notes why nothing more can be read.
    fn end(&mut self, error: &LinkError) {
        self.ended = Some(End::from(error));
        self.readable = false;
    }

    fn told(&self) -> Result<(), LinkError> {
        self.ended.clone().map_or(Ok(()), |end| Err(end.into()))
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        // Bytes that the stream does not take now are lost; a side that must know that it arrived waits for an answer.
        let _ = self.flush();
        self.carrier.close();
    }
}

/// Sends frames.
pub(super) struct Sender {
    line: Arc<dyn Line>,
    encoder: Encoder,
    wire: RefCell<Wire>,
    /// Bytes of control words that came and were not taken, and how many of them were taken since.
    words: Vec<u8>,
    taken: usize,
    shared: Option<SharedSender>,
}

impl Sender {
    pub(super) fn new(mut carrier: Carrier, schema: &SchemaRef) -> Result<Self, LinkError> {
        let mut shared = None;
        if let Some(descriptors) = carrier.descriptors() {
            let (made, sealed) = SharedSender::new()?;
            match descriptors.pass(&new_region(), sealed.as_fd()) {
                Ok(HEADER_BYTES) => shared = Some(made),
                // Everything goes over the stream, as to another host.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Ok(_) | Err(_) => return Err(LinkError::Lost),
            }
        }
        Ok(Self {
            line: carrier.line(),
            encoder: Encoder::new(schema)?,
            wire: RefCell::new(Wire::new(carrier)),
            words: Vec::new(),
            taken: 0,
            shared,
        })
    }
}

#[cfg(test)]
impl Sender {
    /// Bytes of shared memory that the receiver has.
    pub(super) fn lent(&self) -> u64 {
        self.shared.as_ref().map_or(0, SharedSender::used)
    }
}

/// Refuses what the peer would take for damage, however often it is sent.
fn is_taken(length: u64) -> Result<(), LinkError> {
    if length > MAX_PAYLOAD { Err(LinkError::TooLarge(length)) } else { Ok(()) }
}

impl LinkSender for Sender {
    fn send(&mut self, frame: Frame) -> Result<u64, LinkError> {
        let (mut header, payload) = self.encoder.encode(&frame)?;
        is_taken(header.length)?;
        let checksum = payload.iter().fold(0, |checksum, part| crc32c::crc32c_append(checksum, part));
        header.checksum = u64::from(checksum);
        let large = header.length >= LARGE as u64;
        let place = match &mut self.shared {
            Some(shared) if large => shared.write(&payload, header.length),
            _ => None,
        };
        let inline = if place.is_some() { &[] } else { payload.as_slice() };
        self.wire.get_mut().send(&seal(&header, place), inline).map(|()| HEADER_BYTES as u64 + header.length)
    }

    fn receive_control(&mut self) -> Result<Option<Control>, LinkError> {
        let wire = self.wire.get_mut();
        // The loss of the peer is reported when all that it sent was taken.
        let _ = wire.flush();
        loop {
            if let Some(word) = self.words[self.taken..].first_chunk::<WORD_BYTES>() {
                self.taken += WORD_BYTES;
                let heard = read_word(word).and_then(|word| match (word, &mut self.shared) {
                    (Word::Control(control), _) => Ok(Some(control)),
                    (Word::Returned(place), Some(shared)) => shared.returned(place).map(|()| None),
                    (Word::Returned(_), None) => Err(LinkError::Damaged("no memory is shared".into())),
                });
                match heard {
                    Ok(None) => continue,
                    Ok(control) => return Ok(control),
                    Err(error) => {
                        wire.end(&error);
                        return Err(error);
                    }
                }
            }
            if !wire.readable {
                wire.told()?;
                return if wire.mute { Err(LinkError::Lost) } else { Ok(None) };
            }
            self.words.drain(..self.taken);
            self.taken = 0;
            let before = self.words.len();
            self.words.resize(WORDS * WORD_BYTES, 0);
            let read = wire.carrier.read(&mut self.words[before..]);
            self.words.truncate(before + *read.as_ref().unwrap_or(&0));
            match read {
                Ok(0) => wire.end(&LinkError::Lost),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => wire.readable = false,
                Err(error) => wire.end(&lost(&error)),
            }
        }
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.line.readable()
    }

    fn wants_writable(&self) -> bool {
        self.line.writable().is_none()
    }

    fn clear(&self) -> bool {
        let mut wire = self.wire.borrow_mut();
        wire.ready();
        // A failure is kept and reported later.
        let _ = wire.flush();
        true
    }
}

/// Messages from the receiver to the sender.
#[derive(Clone, Copy)]
enum Word {
    Control(Control),
    Returned(u64),
}

fn write_word(word: Word) -> [u8; WORD_BYTES] {
    let (kind, value) = match word {
        Word::Control(Control::Resume(epoch)) => (RESUME, epoch),
        Word::Control(Control::Credit(bytes)) => (CREDIT, bytes),
        Word::Control(Control::Durable(epoch)) => (DURABLE, epoch),
        Word::Control(Control::Ahead(bytes)) => (AHEAD, bytes),
        Word::Control(Control::Delivers(bytes)) => (DELIVERS, bytes),
        Word::Returned(place) => (RETURNED, place),
    };
    let mut word = [0; WORD_BYTES];
    word[0] = kind;
    word[8..].copy_from_slice(&value.to_le_bytes());
    let checksum = crc32c::crc32c(&word);
    word[4..8].copy_from_slice(&checksum.to_le_bytes());
    word
}

/// A word as it travels.
pub(super) fn word_of(control: Control) -> [u8; WORD_BYTES] {
    write_word(Word::Control(control))
}

/// Returns the words with correct checksums.
pub(super) fn words_anew(bytes: &[u8]) -> Vec<u8> {
    let mut sealed = bytes.to_vec();
    for word in sealed.as_chunks_mut::<WORD_BYTES>().0 {
        word[4..8].fill(0);
        let checksum = crc32c::crc32c(&word[..]);
        word[4..8].copy_from_slice(&checksum.to_le_bytes());
    }
    sealed
}

fn read_word(word: &[u8; WORD_BYTES]) -> Result<Word, LinkError> {
    let mut unsigned = *word;
    unsigned[4..8].fill(0);
    if crc32c::crc32c(&unsigned) != u32_at(word, 4) {
        return Err(LinkError::Damaged("the checksum of a control word differs".into()));
    }
    let value = u64_at(word, 8);
    match word[0] {
        RESUME => Ok(Word::Control(Control::Resume(value))),
        CREDIT => Ok(Word::Control(Control::Credit(value))),
        DURABLE => Ok(Word::Control(Control::Durable(value))),
        AHEAD => Ok(Word::Control(Control::Ahead(value))),
        DELIVERS => Ok(Word::Control(Control::Delivers(value))),
        RETURNED => Ok(Word::Returned(value)),
        other => Err(LinkError::Damaged(format!("unknown control word {other}"))),
    }
}

/// The part of the receiving end that moves when its descriptor is ready.
struct Ahead {
    wire: Wire,
    inbound: Inbound,
    /// Frames that came ahead of the reader, and the memory they take.
    frames: VecDeque<(WireHeader, Buffer)>,
    bytes: usize,
}

/// Memory that a frame takes while it waits, about.
fn memory(payload: &Buffer) -> usize {
    payload.len() + 256
}

impl Ahead {
    /// Returns the blocks of shared memory whose records are gone.
    fn give_back(&mut self) {
        for place in self.inbound.dropped() {
            // A sender that is gone needs no space; what it sent is still taken.
            let _ = self.wire.send(&write_word(Word::Returned(place)), &[]);
        }
    }

    fn next(&mut self) -> Option<(WireHeader, Buffer)> {
        if !self.wire.readable {
            return None;
        }
        self.give_back();
        let next = self.inbound.next(&mut self.wire.carrier);
        match next {
            Ok(frame) => {
                self.wire.readable = frame.is_some();
                frame
            }
            Err(error) => {
                self.wire.end(&error);
                None
            }
        }
    }
}

/// Receives frames.
pub(super) struct Receiver {
    line: Arc<dyn Line>,
    decoder: Decoder,
    schema: SchemaRef,
    /// The schema of the last records, which was compared with the one above.
    seen: Option<SchemaRef>,
    ahead: RefCell<Ahead>,
    /// Bytes of the last frame, as they would travel to another host.
    received: u64,
}

impl Receiver {
    pub(super) fn new(mut carrier: Carrier, schema: SchemaRef) -> Self {
        if let Some(descriptors) = carrier.descriptors() {
            descriptors.expect();
        }
        let line = carrier.line();
        let ahead = Ahead {
            wire: Wire::new(carrier),
            inbound: Inbound::default(),
            frames: VecDeque::new(),
            bytes: 0,
        };
        Self {
            line,
            decoder: Decoder::default(),
            schema,
            seen: None,
            ahead: RefCell::new(ahead),
            received: 0,
        }
    }

    fn compare(&mut self, frame: Frame) -> Result<Frame, LinkError> {
        if let Content::Data { batch, .. } = &frame.content
            && !self.seen.as_ref().is_some_and(|seen| Arc::ptr_eq(seen, batch.schema_ref()))
        {
            if batch.schema_ref().fields() != self.schema.fields() {
                return Err(LinkError::Damaged("records of another schema".into()));
            }
            self.seen = Some(batch.schema());
        }
        Ok(frame)
    }

    #[cfg(test)]
    pub(super) fn taken_from_memory(&self) -> u64 {
        self.ahead.borrow().inbound.taken()
    }

    #[cfg(test)]
    pub(super) fn copied(&self) -> u64 {
        self.ahead.borrow().inbound.copied()
    }
}

impl LinkReceiver for Receiver {
    fn receive(&mut self) -> Result<Option<Frame>, LinkError> {
        let ahead = self.ahead.get_mut();
        let next = match ahead.frames.pop_front() {
            Some((header, payload)) => {
                ahead.bytes -= memory(&payload);
                Some((header, payload))
            }
            None => ahead.next(),
        };
        let Some((header, payload)) = next else { return ahead.wire.told().map(|()| None) };
        self.received = HEADER_BYTES as u64 + header.length;
        // Arrow checks what it reads, but not everywhere: what it panics at is no record batch either.
        let decoded = catch_unwind(AssertUnwindSafe(|| self.decoder.decode(&header, payload)))
            .unwrap_or_else(|_| Err(LinkError::Damaged("Arrow cannot read a record batch".into())));
        decoded.and_then(|frame| self.compare(frame)).map(Some).inspect_err(|error| {
            let ahead = self.ahead.get_mut();
            ahead.frames.clear();
            ahead.bytes = 0;
            ahead.wire.end(error);
        })
    }

    fn received_bytes(&self) -> u64 {
        self.received
    }

    fn send_control(&mut self, control: Control) -> Result<(), LinkError> {
        let ahead = self.ahead.get_mut();
        ahead.give_back();
        ahead.wire.send(&write_word(Word::Control(control)), &[])
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.line.readable()
    }

    fn wants_writable(&self) -> bool {
        self.line.writable().is_none()
    }

    fn clear(&self) -> bool {
        let mut ahead = self.ahead.borrow_mut();
        if ahead.wire.ended.is_none() {
            ahead.wire.ready();
        }
        // A failure is kept and reported later.
        let _ = ahead.wire.flush();
        ahead.give_back();
        // Also when no records are taken for a while: the kernel of the sender takes a full socket for a dead peer.
        while ahead.bytes < READ_AHEAD {
            let Some(frame) = ahead.next() else { break };
            ahead.bytes += memory(&frame.1);
            ahead.frames.push_back(frame);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_peer_would_not_take_is_refused_with_its_size() {
        assert!(is_taken(MAX_PAYLOAD).is_ok());
        let error = is_taken(MAX_PAYLOAD + 1).unwrap_err().to_string();
        assert!(error.contains(&(MAX_PAYLOAD + 1).to_string()), "{error}");
    }
}
