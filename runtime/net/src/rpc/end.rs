//! The service's end of a program: its rings and both heaps.
use super::letter::{Letter, Part};
use rustix::io::Errno;
use std::collections::{HashMap, VecDeque};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use tidemill_rpc::protocol::{self, HEAP, MOST_BYTES, MOST_PARTS, PLACES, RING, ToProgram, ToService, kind};
use tidemill_rpc::{MOST_METADATA, Metadata, packets};
use tidemill_shm::descriptor::{Checked, Descriptor, Limits};
use tidemill_shm::heap::{Block, Buffer, Heap};
use tidemill_shm::lease::RETURNED;
use tidemill_shm::region::{ReadRegion, Region, SharedRegion};
use tidemill_shm::ring::{Consumer, Producer};
use tidemill_shm::wake::{Bell, Receiver, Sender, Spin, Woken};

/// Payloads that were taken and are reported together, and their bytes: more are reported at once.
const TAKEN: usize = 16;
const TAKEN_BYTES: u64 = 1 << 20;
/// Packets that are read before their turn.
const MOST_PACKETS: usize = 64;
/// Bytes of messages that wait until the program gives memory back.
const MOST_BLOCKED: usize = 256 << 20;
/// Descriptors that wait until the program reads its ring.
const MOST_OUT: usize = 4 * PLACES as usize;

/// A message for the program that found no room yet.
struct Blocked {
    last: Descriptor,
    letter: Letter,
}

/// Gift of the program: a message, or memory.
pub(crate) enum Given {
    /// A descriptor that means something, with its message.
    Letter(Descriptor, Letter),
    /// Memory came back.
    Room,
}

/// The service's end of a program.
pub(crate) struct End {
    setup: OwnedFd,
    pub(crate) user: u32,
    pub(crate) program: String,
    /// Memory for the program, until it has said what it is.
    for_program: Option<(OwnedFd, Arc<SharedRegion>)>,
    bell: Arc<Bell>,
    to: Sender,
    from: Receiver,
    regions: Vec<Arc<ReadRegion>>,
    limits: Limits,
    heap: Heap<Region>,
    lent: HashMap<u64, Block>,
    lease: u64,
    outbox: VecDeque<Descriptor>,
    taken: Vec<u64>,
    taken_bytes: u64,
    metadata: Option<Checked>,
    parts: Vec<Part>,
    blocked: VecDeque<Blocked>,
    blocked_bytes: usize,
    /// Packets that were read before their turn.
    packets: VecDeque<(ToService, Vec<OwnedFd>)>,
    pub(crate) next_lane: u32,
}

fn damaged(text: impl Into<String>) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, text.into())
}

impl End {
    /// Makes the end of a program that has connected.
    pub(crate) fn new(setup: OwnedFd, user: u32) -> io::Result<Self> {
        let rings = Arc::new(SharedRegion::create(protocol::rings_bytes()).map_err(io::Error::other)?);
        let (bell, of_program) = Bell::pair()?;
        let bell = Arc::new(bell);
        let window = |number: usize| rings.window(number * RING, RING).ok_or_else(|| damaged("too small"));
        let from = Consumer::new(window(0)?, PLACES).map_err(io::Error::other)?;
        let to = Producer::new(window(1)?, PLACES).map_err(io::Error::other)?;
        Ok(Self {
            setup,
            user,
            program: String::new(),
            for_program: Some((of_program, rings)),
            to: Sender::new(to, Arc::clone(&bell)),
            from: Receiver::new(from, Arc::clone(&bell), Spin::up_to(0)),
            bell,
            regions: Vec::new(),
            limits: Limits { kinds: kind::COUNT, regions: Vec::new(), longest: MOST_BYTES },
            heap: Heap::new(HEAP).map_err(io::Error::other)?,
            lent: HashMap::new(),
            lease: 0,
            outbox: VecDeque::new(),
            taken: Vec::new(),
            taken_bytes: 0,
            metadata: None,
            parts: Vec::new(),
            blocked: VecDeque::new(),
            blocked_bytes: 0,
            packets: VecDeque::new(),
            next_lane: 0,
        })
    }

    /// Welcomes it: passes it the rings and a first region.
    pub(crate) fn welcome(&mut self, age: Duration) -> io::Result<()> {
        if let Some((bell, rings)) = self.for_program.take() {
            let age_ms = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
            let packet = ToProgram::Welcome { version: protocol::VERSION, age_ms };
            packets::send(&self.setup, &packet, &[rings.as_fd(), bell.as_fd()])?;
        }
        self.grow().map(drop)
    }

    /// Returns whether it has said what it is.
    pub(crate) fn is_welcome(&self) -> bool {
        self.for_program.is_none()
    }

    pub(crate) fn setup(&self) -> BorrowedFd<'_> {
        self.setup.as_fd()
    }

    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// The next packet; none: there is none now.
    pub(crate) fn packet(&mut self) -> io::Result<Option<(ToService, Vec<OwnedFd>)>> {
        match self.packets.pop_front() {
            Some(packet) => Ok(Some(packet)),
            None => self.receive(),
        }
    }

    /// Finds the region of a descriptor: its packet may come after what lies there.
    fn place(&mut self, descriptor: &Descriptor) -> io::Result<Checked> {
        if descriptor.region as usize >= self.regions.len() {
            while let Some((packet, files)) = self.receive()? {
                if self.packets.len() >= MOST_PACKETS {
                    return Err(damaged("too many packets"));
                }
                match packet {
                    ToService::Region => self.add_region(files)?,
                    // Nothing else brings descriptors.
                    other => self.packets.push_back((other, Vec::new())),
                }
            }
        }
        descriptor.check(&self.limits).map_err(|error| damaged(error.to_string()))
    }

    fn receive(&self) -> io::Result<Option<(ToService, Vec<OwnedFd>)>> {
        match packets::receive(&self.setup) {
            Ok(Some(packet)) => Ok(Some(packet)),
            Ok(None) => Err(ErrorKind::ConnectionReset.into()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn answer(&self, packet: &ToProgram) -> io::Result<()> {
        packets::send(&self.setup, packet, &[])
    }

    /// Takes a region of its heap.
    pub(crate) fn add_region(&mut self, files: Vec<OwnedFd>) -> io::Result<()> {
        if self.regions.len() >= HEAP.regions as usize {
            return Err(damaged("too many regions"));
        }
        let file = files.into_iter().next().ok_or_else(|| damaged("a region without memory"))?;
        let region = ReadRegion::adopt(file, HEAP.region).map_err(io::Error::other)?;
        self.limits.regions.push(region.bytes());
        self.regions.push(Arc::new(region));
        Ok(())
    }

    /// Copies bytes of its heap.
    pub(crate) fn copy(&mut self, region: u32, offset: u64, length: u32) -> io::Result<Vec<u8>> {
        let descriptor = Descriptor { region, offset, length, ..Descriptor::default() };
        let place = self.place(&descriptor)?;
        let mut bytes = vec![0; place.length()];
        self.regions[place.region() as usize].copy_to(&place, &mut bytes).map_err(io::Error::other)?;
        Ok(bytes)
    }

    fn grow(&mut self) -> io::Result<bool> {
        let Some(number) = self.heap.grow().map_err(io::Error::other)? else { return Ok(false) };
        let Some(region) = self.heap.region(number) else { return Ok(false) };
        let file = region.seal().map_err(io::Error::other)?;
        packets::send(&self.setup, &ToProgram::Region, &[file.as_fd()])?;
        Ok(true)
    }

    /// Its bell rang. Returns whether the program is still there.
    pub(crate) fn woke(&mut self) -> bool {
        matches!(self.from.woke(), Ok(Woken::Ready | Woken::Idle))
    }

    /// Returns whether it may be waited for; `false`: there is something to take first.
    pub(crate) fn may_sleep(&mut self) -> io::Result<bool> {
        self.from.may_sleep().map_err(io::Error::other)
    }

    /// Takes the next thing that the program gave.
    pub(crate) fn take(&mut self) -> io::Result<Option<Given>> {
        while let Some(descriptor) = self.from.receive().map_err(io::Error::other)? {
            if descriptor.kind == RETURNED {
                let block = self.lent.remove(&descriptor.lease);
                let block = block.ok_or_else(|| damaged("memory is given back that it does not have"))?;
                // Blocks of this heap only are lent.
                let _ = self.heap.free(block);
                return Ok(Some(Given::Room));
            }
            let place = self.place(&descriptor)?;
            let region = Arc::clone(&self.regions[place.region() as usize]);
            match descriptor.kind {
                kind::METADATA if self.metadata.is_none() && place.length() <= MOST_METADATA => {
                    self.metadata = Some(place);
                }
                kind::PART if self.parts.len() < MOST_PARTS => self.parts.push(Part::Shared(region, place)),
                kind::METADATA | kind::PART => return Err(damaged("too many parts, or too much metadata")),
                kind => {
                    let mut letter = Letter::default();
                    if matches!(kind, kind::CALL | kind::ITEM | kind::REPLY | kind::END) {
                        if let Some(metadata) = self.metadata.take() {
                            let mut bytes = vec![0; metadata.length()];
                            let of = &self.regions[metadata.region() as usize];
                            of.copy_to(&metadata, &mut bytes).map_err(io::Error::other)?;
                            if Metadata::from_bytes(&bytes).is_none() {
                                return Err(damaged("metadata that is none"));
                            }
                            letter.metadata = bytes;
                        }
                        letter.parts.push(Part::Shared(region, place));
                        letter.parts.append(&mut self.parts);
                    }
                    if letter.length() > MOST_BYTES as usize {
                        return Err(damaged("a message is too long"));
                    }
                    return Ok(Some(Given::Letter(descriptor, letter)));
                }
            }
        }
        Ok(None)
    }

    /// Takes memory that the program can read. None: all is in use.
    pub(crate) fn room(&mut self, length: usize) -> Option<Buffer> {
        if let Some(buffer) = self.heap.buffer(length) {
            return Some(buffer);
        }
        match self.grow() {
            Ok(true) => self.heap.buffer(length),
            Ok(false) => None,
            Err(error) => {
                tracing::warn!("no memory for {}: {error}", self.program);
                // Regions are known by their order, which is lost.
                let _ = rustix::net::shutdown(&self.setup, rustix::net::Shutdown::Both);
                None
            }
        }
    }

    /// Gives memory back that was not used.
    pub(crate) fn unused(&mut self, buffer: Buffer) {
        let _ = self.heap.free(buffer.into_block());
    }

    fn lend(&mut self, buffer: Buffer, last: Descriptor) -> Descriptor {
        let block = buffer.into_block();
        let at = block.describe(last.kind);
        self.lease += 1;
        self.lent.insert(self.lease, block);
        Descriptor { region: at.region, offset: at.offset, length: at.length, lease: self.lease, ..last }
    }

    /// Puts bytes into memory that the program can read.
    fn put(&mut self, bytes: &[u8], last: Descriptor) -> Option<Descriptor> {
        let mut buffer = self.room(bytes.len())?;
        buffer.copy_from_slice(bytes);
        Some(self.lend(buffer, last))
    }

    /// Puts bytes into memory that the program can read and gives back.
    pub(crate) fn show(&mut self, bytes: &[u8]) -> Option<Descriptor> {
        self.put(bytes, Descriptor::default())
    }

    /// Returns whether messages wait for room: later ones wait, too.
    pub(crate) fn is_blocked(&self) -> bool {
        !self.blocked.is_empty()
    }

    /// Delivers a message, or keeps it until there is room. `check` sees it where no program can change it.
    ///
    /// # Errors
    /// It is not what its schema says.
    pub(crate) fn deliver(
        &mut self,
        last: Descriptor,
        letter: Letter,
        check: impl FnOnce(&[u8]) -> Result<(), String>,
    ) -> Result<(), String> {
        let length = letter.length();
        let buffer = if self.is_blocked() { None } else { self.room(length.max(1)) };
        let Some(mut buffer) = buffer else {
            let (bytes, _) = letter.private().map_err(|error| error.to_string())?;
            check(&bytes)?;
            let size = bytes.len() + letter.metadata.len();
            if self.blocked_bytes + size > MOST_BLOCKED && last.kind != kind::END {
                return Err(format!("{} has no memory left for it", self.program));
            }
            self.blocked_bytes += size;
            let parts = vec![Part::Own(bytes)];
            self.blocked.push_back(Blocked { last, letter: Letter { metadata: letter.metadata, parts } });
            return Ok(());
        };
        let copied = letter.copy_to(&mut buffer[..length]).map_err(|error| error.to_string());
        if let Err(error) = copied.and_then(|()| check(&buffer[..length])) {
            self.unused(buffer);
            return Err(error);
        }
        self.hand_over(last, &letter.metadata, buffer, length);
        Ok(())
    }

    /// Hands over a message that lies in memory that the program can read. Returns false when it is kept, as there is no room for
    /// its metadata.
    pub(crate) fn hand_over(
        &mut self,
        last: Descriptor,
        metadata: &[u8],
        buffer: Buffer,
        length: usize,
    ) -> bool {
        if !metadata.is_empty() {
            let descriptor = Descriptor { kind: kind::METADATA, ..Descriptor::default() };
            let Some(descriptor) = self.put(metadata, descriptor) else {
                let letter = Letter { metadata: metadata.to_vec(), ..Letter::own(buffer[..length].to_vec()) };
                self.unused(buffer);
                self.blocked_bytes += length + metadata.len();
                self.blocked.push_front(Blocked { last, letter });
                return false;
            };
            self.outbox.push_back(descriptor);
        }
        let mut descriptor = self.lend(buffer, last);
        descriptor.length = length as u32;
        self.outbox.push_back(descriptor);
        self.flush();
        true
    }

    /// Tries messages that found no room again.
    pub(crate) fn unblock(&mut self) {
        while let Some(Blocked { letter, last }) = self.blocked.front() {
            let length = letter.length();
            if length == 0 && letter.metadata.is_empty() && last_has_no_payload(last) {
                self.outbox.push_back(*last);
                self.blocked.pop_front();
                continue;
            }
            let Some(mut buffer) = self.room(length.max(1)) else { break };
            let Some(Blocked { last, letter }) = self.blocked.pop_front() else { break };
            self.blocked_bytes -= length + letter.metadata.len();
            // It is memory of the service.
            let _ = letter.copy_to(&mut buffer[..length]);
            if !self.hand_over(last, &letter.metadata, buffer, length) {
                break;
            }
        }
        self.flush();
    }

    /// Sends a descriptor with a text, or without.
    pub(crate) fn notice(&mut self, last: Descriptor, metadata: &[u8], text: &[u8]) {
        if text.is_empty() && metadata.is_empty() && !self.is_blocked() {
            self.outbox.push_back(last);
            self.flush();
            return;
        }
        // Neither is checked, so nothing can be wrong.
        let letter = Letter { metadata: metadata.to_vec(), ..Letter::own(text.to_vec()) };
        let _ = self.deliver(last, letter, |_| Ok(()));
    }

    /// The payload of this number was taken: the program may use its memory again.
    pub(crate) fn took(&mut self, number: u64, bytes: usize) {
        self.taken.push(number);
        self.taken_bytes += bytes as u64;
        if self.taken.len() >= TAKEN || self.taken_bytes >= TAKEN_BYTES {
            self.flush();
        }
    }

    /// Sends what is waiting. Returns whether something is left.
    pub(crate) fn flush(&mut self) -> bool {
        self.taken_bytes = 0;
        for tag in self.taken.drain(..) {
            self.outbox.push_front(Descriptor { kind: kind::TAKEN, tag, ..Descriptor::default() });
        }
        while let Some(descriptor) = self.outbox.front() {
            match self.to.send(descriptor) {
                Ok(true) => drop(self.outbox.pop_front()),
                Ok(false) => return true,
                Err(_) => {
                    self.outbox.clear();
                    let _ = rustix::net::shutdown(&self.setup, rustix::net::Shutdown::Both);
                }
            }
        }
        false
    }

    /// Returns whether it does not read what it is sent.
    pub(crate) fn is_deaf(&self) -> bool {
        self.outbox.len() > MOST_OUT
    }

    /// Returns whether something waits to be sent.
    pub(crate) fn is_full(&self) -> bool {
        !self.outbox.is_empty() || !self.taken.is_empty()
    }
}

/// Returns whether a descriptor says everything itself.
fn last_has_no_payload(last: &Descriptor) -> bool {
    matches!(last.kind, kind::CANCEL | kind::MORE)
}

/// The user of the process at the other end of a socket.
pub(crate) fn user_of(socket: &OwnedFd) -> Result<u32, Errno> {
    rustix::net::sockopt::socket_peercred(socket).map(|of| of.uid.as_raw())
}
