//! Messages that leave: they are placed in the own heap, and described in the ring.
use super::memory::{Frozen, Room};
use super::{Endpoint, State, Waiting, locked, lost};
use crate::message::MOST_METADATA;
use crate::protocol::{MOST_BYTES, MOST_PARTS, ToService, kind};
use crate::{Code, Metadata, Status, packets};
use bytes::Bytes;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use tidemill_shm::descriptor::Descriptor;
use tidemill_shm::heap::{Buffer, Heap};
use tidemill_shm::region::Region;

impl Endpoint {
    /// Sends what is waiting, as far as there are places.
    pub(super) fn flush(&self, state: &mut State) {
        if state.outbox.is_empty() {
            let mut waiting = locked(&self.returns.waiting);
            if waiting.0.is_empty() {
                return;
            }
            waiting.1 = 0;
            let returns = waiting.0.drain(..).filter(|message| message.lease != 0);
            state.outbox.extend(returns);
        }
        while let Some(descriptor) = state.outbox.front() {
            match state.to.send(descriptor) {
                Ok(true) => drop(state.outbox.pop_front()),
                Ok(false) => return self.look.notify_one(),
                // The ring is damaged: the service is left by who receives.
                Err(_) => return state.outbox.clear(),
            }
        }
    }

    /// Sends a message: its metadata, its parts, and the descriptor that says what it is.
    pub(super) fn post(
        &self,
        state: &mut State,
        last: Descriptor,
        metadata: Option<&Bytes>,
        parts: &[Bytes],
    ) {
        // Payloads that were read go with it, before it.
        let mut waiting = locked(&self.returns.waiting);
        waiting.1 = 0;
        state.outbox.extend(waiting.0.drain(..).filter(|message| message.lease != 0));
        drop(waiting);
        let describe = |heap: &Heap<Region>, bytes: &Bytes, kind| {
            if bytes.is_empty() { Some(Descriptor { kind, ..last }) } else { heap.describe(bytes, kind) }
        };
        if let Some(metadata) = metadata {
            state.outbox.extend(describe(&state.heap, metadata, kind::METADATA));
        }
        let Some((root, rest)) = parts.split_first() else {
            state.outbox.push_back(last);
            return self.flush(state);
        };
        for part in rest {
            state.outbox.extend(describe(&state.heap, part, kind::PART));
        }
        let at = describe(&state.heap, root, last.kind).unwrap_or_default();
        state.outbox.push_back(Descriptor {
            region: at.region,
            offset: at.offset,
            length: at.length,
            ..last
        });
        self.flush(state);
    }

    /// Makes memory in the own heap; waits where all is in use.
    pub(crate) async fn room(&self, length: usize) -> Result<Room, Status> {
        if length > MOST_BYTES as usize {
            let text = format!("{length} bytes, where a message has at most {MOST_BYTES}");
            return Err(Status::new(Code::ResourceExhausted, text));
        }
        loop {
            let freed = self.freed.some.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            if self.is_gone() {
                return Err(lost());
            }
            {
                let mut state = self.lock();
                if let Some(buffer) = self.alloc(&mut state, length) {
                    return Ok(self.frozen(buffer));
                }
            }
            tokio::select! {
                () = freed => {}
                () = self.gone() => {}
            }
        }
    }

    pub(super) fn frozen(&self, buffer: Buffer) -> Room {
        Room(Frozen { buffer: Some(buffer), freed: Arc::clone(&self.freed) })
    }

    pub(super) fn alloc(&self, state: &mut State, length: usize) -> Option<Buffer> {
        let freed = std::mem::take(&mut *locked(&self.freed.blocks));
        for block in freed {
            // Blocks of this heap only are in the list.
            let _ = state.heap.free(block);
        }
        if let Some(buffer) = state.heap.buffer(length) {
            return Some(buffer);
        }
        match self.grow(state) {
            Ok(true) => state.heap.buffer(length),
            Ok(false) => None,
            Err(error) => {
                tracing::warn!("no more memory for calls: {error}");
                // The service knows regions by their order, which is lost.
                let _ = rustix::net::shutdown(&self.setup, rustix::net::Shutdown::Both);
                None
            }
        }
    }

    /// Adds a region to the own heap and shows it to the service.
    pub(super) fn grow(&self, state: &mut State) -> io::Result<bool> {
        let Some(number) = state.heap.grow().map_err(io::Error::other)? else { return Ok(false) };
        let Some(region) = state.heap.region(number) else { return Ok(false) };
        let file = region.seal().map_err(io::Error::other)?;
        packets::send(&self.setup, &ToService::Region, &[file.as_fd()])?;
        Ok(true)
    }

    /// Puts bytes into the own heap, where they are not there already.
    pub(crate) async fn place(&self, bytes: Bytes) -> Result<Bytes, Status> {
        if self.is_placed(&bytes) {
            return Ok(bytes);
        }
        let mut room = self.room(bytes.len()).await?;
        room.copy_from_slice(&bytes);
        Ok(room.freeze())
    }

    /// Puts all parts of a message there.
    async fn place_all(&self, mut parts: Vec<Bytes>) -> Result<Vec<Bytes>, Status> {
        let ends = |at: usize, part: &Bytes| at.next_multiple_of(8) + part.len();
        let length = parts.iter().fold(0, ends);
        if length > MOST_BYTES as usize {
            let text = format!("a message of {length} bytes, {MOST_BYTES} are the most");
            return Err(Status::new(Code::ResourceExhausted, text));
        }
        // More than one piece of memory at once would be waited for with another one in hand.
        let to_place = parts.iter().filter(|part| !self.is_placed(part)).count();
        if parts.len() > MOST_PARTS || to_place > 1 {
            let mut whole = self.room(length).await?;
            let mut at: usize = 0;
            for part in &parts {
                let begin = at.next_multiple_of(8);
                whole[at..begin].fill(0);
                at = begin + part.len();
                whole[begin..at].copy_from_slice(part);
            }
            return Ok(vec![whole.freeze()]);
        }
        for part in &mut parts {
            *part = self.place(std::mem::take(part)).await?;
        }
        Ok(parts)
    }

    /// Returns whether bytes lie in the own heap.
    pub(super) fn is_placed(&self, bytes: &Bytes) -> bool {
        bytes.is_empty() || self.lock().heap.describe(bytes, kind::PART).is_some()
    }

    async fn place_metadata(&self, metadata: &Metadata) -> Result<Option<Bytes>, Status> {
        if metadata.is_empty() {
            return Ok(None);
        }
        let bytes = metadata.to_bytes();
        if bytes.len() > MOST_METADATA {
            return Err(Status::new(Code::ResourceExhausted, format!("metadata of {} bytes", bytes.len())));
        }
        self.place(bytes.into()).await.map(Some)
    }

    /// Makes a call. Returns its number.
    pub(crate) async fn call(
        &self,
        (lane, method): (u32, u32),
        (metadata, parts): (&Metadata, Vec<Bytes>),
        deadline: u64,
        waiting: Waiting,
    ) -> Result<u64, Status> {
        let metadata = self.place_metadata(metadata).await?;
        let mut parts = self.place_all(parts).await?;
        let mut state = self.lock();
        if self.is_gone() {
            return Err(lost());
        }
        let tag = state.next;
        state.next += 1;
        let last = Descriptor {
            kind: kind::CALL,
            lane,
            sequence: u64::from(method),
            tag,
            deadline,
            ..Descriptor::default()
        };
        self.post(&mut state, last, metadata.as_ref(), &parts);
        parts.extend(metadata);
        state.calls.insert(tag, (waiting, parts));
        Ok(tag)
    }

    /// Nobody waits for a call any more.
    pub(crate) fn cancel(&self, tag: u64) {
        let mut state = self.lock();
        let Some(call) = state.calls.remove(&tag) else { return };
        // The service may still read the payload: it is kept as a reply that is not taken yet.
        let number = state.next;
        state.next += 1;
        let last = Descriptor { kind: kind::CANCEL, tag, lease: number, ..Descriptor::default() };
        self.post(&mut state, last, None, &[]);
        state.replies.insert(number, call.1);
        drop(state);
        drop(call.0);
    }

    /// More replies of a stream may come.
    pub(crate) fn more(&self, tag: u64, count: u32) {
        let last = Descriptor { kind: kind::MORE, tag, sequence: u64::from(count), ..Descriptor::default() };
        self.post(&mut self.lock(), last, None, &[]);
    }

    /// Sends a reply to a call; `is_last`: it is the only one.
    pub(crate) async fn reply(
        &self,
        tag: u64,
        (metadata, parts): (&Metadata, Vec<Bytes>),
        is_last: bool,
    ) -> Result<(), Status> {
        let metadata = self.place_metadata(metadata).await?;
        let mut parts = self.place_all(parts).await?;
        let mut state = self.lock();
        if !state.working.contains_key(&tag) {
            return Err(Status::new(Code::Cancelled, "nobody waits for this call any more"));
        }
        if is_last {
            state.working.remove(&tag);
        }
        let number = state.next;
        state.next += 1;
        let kind = if is_last { kind::REPLY } else { kind::ITEM };
        let last = Descriptor { kind, tag, lease: number, ..Descriptor::default() };
        self.post(&mut state, last, metadata.as_ref(), &parts);
        parts.extend(metadata);
        state.replies.insert(number, parts);
        Ok(())
    }

    /// Ends a call. Its text goes as far as there is room at once.
    pub(crate) fn end(&self, tag: u64, status: &Status) {
        let mut state = self.lock();
        state.working.remove(&tag);
        let number = state.next;
        state.next += 1;
        let mut keep = |bytes: &[u8]| {
            let mut buffer = self.alloc(&mut state, bytes.len())?;
            buffer.copy_from_slice(bytes);
            Some(self.frozen(buffer).freeze())
        };
        let mut text = status.message.as_str();
        if text.len() > MOST_METADATA {
            text = &text[..text.floor_char_boundary(MOST_METADATA)];
        }
        let text = if text.is_empty() { None } else { keep(text.as_bytes()) };
        let metadata = if status.metadata.is_empty() { None } else { keep(&status.metadata.to_bytes()) };
        let last = Descriptor {
            kind: kind::END,
            class: status.code as u8,
            tag,
            lease: number,
            ..Descriptor::default()
        };
        let parts: Vec<Bytes> = text.into_iter().collect();
        self.post(&mut state, last, metadata.as_ref(), &parts);
        state.replies.insert(number, parts.into_iter().chain(metadata).collect());
    }
}
