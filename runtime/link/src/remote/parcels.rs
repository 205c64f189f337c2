//! The ends of a channel over a stream, below records: frames as they travel.
//!
//! A side that only passes frames on uses these ends, and decodes the frames that it has to read ([`Recoder`]).
use super::Connection;
use super::carrier::{Carrier, lost};
use super::inbound::{Inbound, MAX_PAYLOAD, new_region, seal};
use super::memory::SharedSender;
use super::outgoing::Outgoing;
use super::pool::{LARGE, READ_AHEAD};
use crate::frame::{Control, Epoch, Header};
use crate::link::LinkError;
use crate::link::codec::{DATA, FRONTIER, HEADER_BYTES, WireHeader, u32_at, u64_at};
use crate::transport::Line;
use arrow_buffer::Buffer;
use lz4_flex::block::{compress, decompress};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// Bytes of a control word: kind, three zeros, checksum of the others, value.
const WORD_BYTES: usize = 16;
/// Bytes that one compressed byte can stand for (LZ4).
const MOST_COMPRESSED: u64 = 256;
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

/// A frame as it travels.
#[derive(Clone)]
pub struct Parcel {
    pub(super) wire: WireHeader,
    pub(super) payload: Vec<Buffer>,
    /// The payload lies in memory that its sender can write.
    pub(super) is_shared: bool,
    /// The payload is compressed: eight bytes of its real length, then LZ4.
    pub(super) is_compressed: bool,
}

impl Parcel {
    /// Facts of the frame.
    pub fn header(&self) -> &Header {
        &self.wire.header
    }

    /// Changes the number of the frame, where frames before it were taken out.
    pub fn renumber(&mut self, sequence: u64) {
        self.wire.header.sequence = sequence;
    }

    /// Returns the epoch of its records, or the frontier.
    pub fn epoch(&self) -> Epoch {
        self.wire.epoch
    }

    /// Returns whether it has records.
    pub fn has_records(&self) -> bool {
        self.wire.kind == DATA
    }

    /// Returns whether it is a frontier.
    pub fn is_frontier(&self) -> bool {
        self.wire.kind == FRONTIER
    }

    /// Compresses the payload, if that makes it smaller. Returns whether it did.
    pub fn compress(&mut self) -> bool {
        if self.is_compressed || self.wire.length > MAX_PAYLOAD {
            return false;
        }
        let whole: Vec<u8> = self.payload.iter().flat_map(|part| part.as_slice()).copied().collect();
        let bytes = [&self.wire.length.to_le_bytes()[..], &compress(&whole)].concat();
        if bytes.len() as u64 >= self.wire.length {
            return false;
        }
        self.wire.length = bytes.len() as u64;
        self.payload = vec![Buffer::from_vec(bytes)];
        self.wire.checksum = checksum(&self.payload);
        (self.is_compressed, self.is_shared) = (true, false);
        true
    }

    /// The payload in one piece, as its sender encoded it.
    pub(super) fn whole(mut self) -> Result<(WireHeader, Buffer), LinkError> {
        let bytes = match self.payload.len() {
            1 => self.payload.swap_remove(0),
            _ => Buffer::from_vec(self.payload.iter().flat_map(|part| part.as_slice()).copied().collect()),
        };
        if !self.is_compressed {
            return Ok((self.wire, bytes));
        }
        let damaged = || LinkError::Damaged("a compressed payload is not what it claims to be".into());
        let (length, compressed) = bytes.as_slice().split_first_chunk().ok_or_else(damaged)?;
        let length = u64::from_le_bytes(*length);
        // No more memory than the bytes that came can fill.
        if length > MAX_PAYLOAD.min(compressed.len() as u64 * MOST_COMPRESSED) {
            return Err(damaged());
        }
        let whole = decompress(compressed, length as usize).map_err(|_| damaged())?;
        if whole.len() as u64 != length {
            return Err(damaged());
        }
        Ok((WireHeader { length, ..self.wire }, Buffer::from_vec(whole)))
    }

    /// Takes this number of records out of those that a frontier counts.
    ///
    /// # Errors
    /// [`LinkError::Damaged`] if it counts fewer.
    pub fn uncount(&mut self, records: u64) -> Result<(), LinkError> {
        if records == 0 {
            return Ok(());
        }
        let mut bytes: Vec<u8> = self.payload.iter().flat_map(|part| part.as_slice()).copied().collect();
        let less = bytes.first_chunk().and_then(|rows| u64::from_le_bytes(*rows).checked_sub(records));
        match less.filter(|_| self.is_frontier()) {
            Some(rows) => bytes[..8].copy_from_slice(&rows.to_le_bytes()),
            None => return Err(LinkError::Damaged("a frontier counts fewer records than came".into())),
        }
        self.payload = vec![Buffer::from_vec(bytes)];
        self.wire.checksum = checksum(&self.payload);
        Ok(())
    }

    /// Bytes that it takes on a stream.
    pub fn bytes(&self) -> u64 {
        HEADER_BYTES as u64 + self.wire.length
    }

    /// Returns whether its payload lies in memory that its sender can write.
    pub fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Copies a payload that its sender could still change into memory of this process. Returns the bytes that were copied.
    ///
    /// # Errors
    /// [`LinkError::Damaged`] if the sender has changed it.
    pub fn make_private(&mut self) -> Result<u64, LinkError> {
        if !std::mem::take(&mut self.is_shared) {
            return Ok(0);
        }
        self.payload =
            vec![Buffer::from_vec(self.payload.iter().flat_map(|part| part.as_slice()).copied().collect())];
        if checksum(&self.payload) != self.wire.checksum {
            return Err(LinkError::Damaged("the sender changed a frame after it was sent".into()));
        }
        Ok(self.wire.length)
    }
}

/// The checksum of a payload.
pub(super) fn checksum(payload: &[Buffer]) -> u64 {
    u64::from(payload.iter().fold(0, |checksum, part| crc32c::crc32c_append(checksum, part)))
}

impl Connection {
    /// Becomes the end of a channel that sends frames as they travel.
    ///
    /// # Errors
    /// When the system refuses what the link needs.
    pub fn into_parcel_sender(self) -> Result<ParcelSender, LinkError> {
        ParcelSender::new(self.carrier)
    }

    /// Becomes the end of a channel that receives frames as they travel.
    pub fn into_parcel_receiver(self) -> ParcelReceiver {
        ParcelReceiver::new(self.carrier)
    }
}

/// Sends frames as they travel.
pub struct ParcelSender {
    line: Arc<dyn Line>,
    wire: RefCell<Wire>,
    /// Bytes of control words that came and were not taken, and how many of them were taken since.
    words: Vec<u8>,
    taken: usize,
    shared: Option<SharedSender>,
}

impl ParcelSender {
    pub(super) fn new(mut carrier: Carrier) -> Result<Self, LinkError> {
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
            wire: RefCell::new(Wire::new(carrier)),
            words: Vec::new(),
            taken: 0,
            shared,
        })
    }
}

#[cfg(test)]
impl ParcelSender {
    /// Bytes of shared memory that the receiver has.
    pub(super) fn lent(&self) -> u64 {
        self.shared.as_ref().map_or(0, SharedSender::used)
    }
}

/// Refuses what the peer would take for damage, however often it is sent.
fn is_taken(length: u64) -> Result<(), LinkError> {
    if length > MAX_PAYLOAD { Err(LinkError::TooLarge(length)) } else { Ok(()) }
}

impl ParcelSender {
    /// Sends a frame. Returns its bytes.
    ///
    /// # Errors
    /// [`LinkError::Lost`] when the receiver is gone.
    pub fn send(&mut self, parcel: &Parcel) -> Result<u64, LinkError> {
        let Parcel { wire: header, payload, is_compressed, .. } = parcel;
        is_taken(header.length)?;
        let large = header.length >= LARGE as u64;
        let place = match &mut self.shared {
            Some(shared) if large => shared.write(payload, header.length),
            _ => None,
        };
        let inline = if place.is_some() { &[] } else { payload.as_slice() };
        self.wire.get_mut().send(&seal(header, place, *is_compressed), inline).map(|()| parcel.bytes())
    }

    /// Bytes that wait because the stream does not take them.
    pub fn waiting(&self) -> u64 {
        self.wire.borrow().outgoing.bytes()
    }

    /// See [`LinkSender::receive_control`](crate::link::LinkSender::receive_control).
    ///
    /// # Errors
    /// As there.
    pub fn receive_control(&mut self) -> Result<Option<Control>, LinkError> {
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

    /// See [`LinkSender::descriptor`](crate::link::LinkSender::descriptor).
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.line.readable()
    }

    /// See [`LinkSender::wants_writable`](crate::link::LinkSender::wants_writable).
    pub fn wants_writable(&self) -> bool {
        self.line.writable().is_none()
    }

    /// See [`LinkSender::clear`](crate::link::LinkSender::clear).
    pub fn clear(&self) -> bool {
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
    frames: VecDeque<Parcel>,
    bytes: usize,
}

/// Memory that a frame takes while it waits, about.
fn memory(parcel: &Parcel) -> usize {
    parcel.wire.length as usize + 256
}

impl Ahead {
    /// Returns the blocks of shared memory whose records are gone.
    fn give_back(&mut self) {
        for place in self.inbound.dropped() {
            // A sender that is gone needs no space; what it sent is still taken.
            let _ = self.wire.send(&write_word(Word::Returned(place)), &[]);
        }
    }

    fn next(&mut self) -> Option<Parcel> {
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

/// Receives frames as they travel.
pub struct ParcelReceiver {
    line: Arc<dyn Line>,
    ahead: RefCell<Ahead>,
}

impl ParcelReceiver {
    pub(super) fn new(mut carrier: Carrier) -> Self {
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
        Self { line, ahead: RefCell::new(ahead) }
    }

    /// Returns the next frame, if one has come.
    ///
    /// # Errors
    /// [`LinkError::Lost`] when the sender is gone and all it sent was taken; [`LinkError::Damaged`] at bytes that are no frame.
    pub fn receive(&mut self) -> Result<Option<Parcel>, LinkError> {
        let ahead = self.ahead.get_mut();
        let next = match ahead.frames.pop_front() {
            Some(parcel) => {
                ahead.bytes -= memory(&parcel);
                Some(parcel)
            }
            None => ahead.next(),
        };
        next.map_or_else(|| ahead.wire.told().map(|()| None), |parcel| Ok(Some(parcel)))
    }

    /// Takes nothing more, and reports this from now on.
    pub(super) fn end(&mut self, error: &LinkError) {
        let ahead = self.ahead.get_mut();
        ahead.frames.clear();
        ahead.bytes = 0;
        ahead.wire.end(error);
    }

    /// See [`LinkReceiver::send_control`](crate::link::LinkReceiver::send_control).
    ///
    /// # Errors
    /// As there.
    pub fn send_control(&mut self, control: Control) -> Result<(), LinkError> {
        let ahead = self.ahead.get_mut();
        ahead.give_back();
        ahead.wire.send(&write_word(Word::Control(control)), &[])
    }

    /// See [`LinkReceiver::descriptor`](crate::link::LinkReceiver::descriptor).
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.line.readable()
    }

    /// See [`LinkReceiver::wants_writable`](crate::link::LinkReceiver::wants_writable).
    pub fn wants_writable(&self) -> bool {
        self.line.writable().is_none()
    }

    /// Looks at the stream without reading frames: those that come wait there.
    pub fn look(&self) {
        let mut ahead = self.ahead.borrow_mut();
        if ahead.wire.ended.is_none() {
            ahead.wire.ready();
        }
        // A failure is kept and reported later.
        let _ = ahead.wire.flush();
        ahead.give_back();
    }

    /// See [`LinkReceiver::clear`](crate::link::LinkReceiver::clear).
    pub fn clear(&self) -> bool {
        self.look();
        let mut ahead = self.ahead.borrow_mut();
        // Also when no records are taken for a while: the kernel of the sender takes a full socket for a dead peer.
        while ahead.bytes < READ_AHEAD {
            let Some(parcel) = ahead.next() else { break };
            ahead.bytes += memory(&parcel);
            ahead.frames.push_back(parcel);
        }
        true
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
