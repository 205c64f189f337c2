//! One lane: an ordered stream of bytes that continues over another carrier when its own is lost.
use crate::clock::now;
use crate::header::{BYTES, Header, Kind};
use crate::readiness::Readiness;
use crate::window::Window;
use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tidemill_link::transport::{Class, Line, PEER_TIMEOUT, Stream};
use tidemill_link::wake::Waker;

/// Bytes of a lane that are sent and not acknowledged, at most.
pub(crate) const WINDOW: usize = 8 << 20;
/// Bytes that are taken between two acknowledgements.
const ACKNOWLEDGED_EVERY: u64 = 256 << 10;
/// Bytes after one header, at most.
const CHUNK: usize = 64 << 10;
/// Bytes that are read at once while no length is known.
const STAGE: usize = 4 << 10;
/// Parts of one system call.
const PARTS: usize = 64;

/// Bytes over one path.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) sent: AtomicU64,
    pub(crate) received: AtomicU64,
}

/// How a lane looks for another carrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Search {
    /// It does not.
    No,
    /// It has none.
    Wanted,
    /// A thread dials.
    Dials,
    /// The other side knows nothing of the lane, or nothing listens there any more.
    Refused,
}

/// A carrier under a lane.
pub(crate) struct Under {
    pub(crate) stream: Box<dyn Stream>,
    /// Index of the path in its session.
    pub(crate) path: usize,
    pub(crate) traffic: Arc<Traffic>,
}

struct Inner {
    under: Option<Under>,
    /// Path of the newest carrier.
    path: usize,
    epoch: u32,
    /// The newest epoch that a search was for.
    tried: u32,
    class: Class,
    // The sending direction.
    window: Window,
    /// Number of the first byte that this carrier has not been given.
    given: u64,
    /// Bytes that the last header announced and that are still to come.
    announced: usize,
    /// A part of a header that the carrier did not take.
    held: Vec<u8>,
    has_sent_end: bool,
    /// This side ends the lane.
    is_ending: bool,
    /// Nobody reads it any more: what comes is only counted.
    is_left: bool,
    /// A write found no room in the window, or none in the carrier.
    is_full: bool,
    is_blocked: bool,
    unlooked: usize,
    // The receiving direction.
    stage: Vec<u8>,
    begin: usize,
    end: usize,
    taken: u64,
    acknowledged: u64,
    /// Bytes that the last header announced and that have not come, and how many of these are known already.
    coming: usize,
    known: usize,
    has_ended: bool,
    // Its life.
    failed: Option<ErrorKind>,
    search: Search,
    /// When it got its newest carrier.
    carried_since: Duration,
    lost_at: Duration,
    /// When nothing is left to do but to wait for the last acknowledgement.
    left_at: Duration,
}

/// A lane, shared by its stream, the threads that use its line, and the session.
pub(crate) struct Lane {
    pub(crate) number: u32,
    readiness: Readiness,
    inner: Mutex<Inner>,
    /// Wakes the thread of the sessions.
    waker: Arc<Waker>,
}

fn blocked<T>() -> io::Result<T> {
    Err(ErrorKind::WouldBlock.into())
}

fn is_block(error: &io::Error) -> bool {
    error.kind() == ErrorKind::WouldBlock
}

impl Lane {
    pub(crate) fn new(number: u32, under: Under, waker: Arc<Waker>) -> io::Result<Self> {
        let readiness = Readiness::new()?;
        readiness.over(&*under.stream.line())?;
        let inner = Inner {
            path: under.path,
            under: Some(under),
            epoch: 0,
            tried: 0,
            class: Class::Records,
            window: Window::default(),
            given: 0,
            announced: 0,
            held: Vec::new(),
            has_sent_end: false,
            is_ending: false,
            is_left: false,
            is_full: false,
            is_blocked: false,
            unlooked: 0,
            stage: vec![0; STAGE],
            begin: 0,
            end: 0,
            taken: 0,
            acknowledged: 0,
            coming: 0,
            known: 0,
            has_ended: false,
            failed: None,
            search: Search::No,
            carried_since: now(),
            lost_at: Duration::ZERO,
            left_at: Duration::ZERO,
        };
        Ok(Self { number, readiness, inner: Mutex::new(inner), waker })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the state of the lane for the session thread.
    pub(crate) fn look(&self) -> Look {
        let inner = self.inner();
        let is_done = inner.failed.is_some()
            || inner.has_sent_end && inner.window.is_empty() && (inner.is_left || inner.has_ended);
        Look {
            path: inner.under.as_ref().map(|under| under.path),
            last_path: inner.path,
            search: inner.search,
            carried_since: inner.carried_since,
            lost_at: inner.lost_at,
            hold: if inner.class == Class::Control { PEER_TIMEOUT } else { Duration::ZERO },
            epoch: inner.epoch,
            must_send: inner.given < inner.window.end()
                || !inner.held.is_empty()
                || inner.is_ending && !inner.has_sent_end,
            is_acknowledged: inner.window.begin() > 0,
            left_at: inner.is_left.then_some(inner.left_at),
            is_over: is_done && inner.is_left,
            has_failed: inner.failed.is_some(),
            is_ending: inner.is_ending,
        }
    }

    /// A thread dials for another carrier from now on. Returns the epoch of that carrier and what it must ask for.
    pub(crate) fn begin_search(&self) -> (u32, u64) {
        let mut inner = self.inner();
        inner.search = Search::Dials;
        inner.tried = inner.tried.max(inner.epoch) + 1;
        (inner.tried, inner.taken)
    }

    /// That thread found none. `is_refused`: the other side is gone.
    pub(crate) fn end_search(&self, is_refused: bool) {
        let mut inner = self.inner();
        inner.search = match (is_refused, &inner.under) {
            (_, Some(_)) => Search::No,
            (true, None) => Search::Refused,
            (false, None) => Search::Wanted,
        };
        self.waker.wake();
    }

    /// Gives up the carrier: it is silent.
    pub(crate) fn give_up_carrier(&self) {
        let mut inner = self.inner();
        self.lose(&mut inner);
    }

    /// The carrier of a lane that must send or that was left, for the thread of the sessions to wait for.
    pub(crate) fn line(&self) -> Option<Arc<dyn Line>> {
        self.inner().under.as_ref().map(|under| under.stream.line())
    }

    fn lose(&self, inner: &mut Inner) {
        let Some(under) = inner.under.take() else { return };
        self.readiness.off(&*under.stream.line());
        if inner.failed.is_some() || inner.has_ended && inner.window.is_empty() {
            return;
        }
        inner.lost_at = now();
        if inner.search == Search::No {
            inner.search = Search::Wanted;
        }
        self.waker.wake();
    }

    /// Ends the lane: no path leads to the other side.
    pub(crate) fn fail(&self, why: ErrorKind) {
        let mut inner = self.inner();
        inner.failed.get_or_insert(why);
        inner.search = Search::No;
        self.lose(&mut inner);
        self.readiness.raise();
    }

    /// Continues over another carrier. `taken`: what the other side has taken. Returns whether the lane can.
    pub(crate) fn adopt(&self, under: Under, epoch: u32, taken: u64) -> bool {
        let mut inner = self.inner();
        let can = inner.failed.is_none() && epoch > inner.epoch && taken >= inner.window.begin();
        if !can || !inner.window.acknowledged(taken) {
            return false;
        }
        if let Some(before) = inner.under.take() {
            self.readiness.off(&*before.stream.line());
        }
        if self.readiness.over(&*under.stream.line()).is_err() {
            return false;
        }
        (inner.path, inner.carried_since) = (under.path, now());
        (inner.under, inner.epoch, inner.given) = (Some(under), epoch, taken);
        (inner.announced, inner.has_sent_end) = (0, false);
        inner.held.clear();
        // Bytes that were read ahead from the old carrier are sent again.
        (inner.begin, inner.end, inner.coming, inner.known) = (0, 0, 0, 0);
        inner.acknowledged = inner.taken;
        inner.search = Search::No;
        (inner.is_blocked, inner.is_full) = (false, false);
        self.send_again(&mut inner);
        self.readiness.raise();
        // Whether more must be sent again is for the thread of the sessions.
        self.waker.wake();
        true
    }

    /// Returns what the other side must know before it can send again: how much was taken.
    pub(crate) fn taken(&self) -> u64 {
        self.inner().taken
    }

    pub(crate) fn acknowledged(&self) -> u64 {
        self.inner().window.begin()
    }

    /// Sends the bytes that must be sent again, as far as the carrier takes them. Reads and discards input of a dropped stream.
    pub(crate) fn work(&self) {
        let mut inner = self.inner();
        self.send_again(&mut inner);
        if inner.is_blocked && inner.given == inner.window.end() && inner.held.is_empty() {
            inner.is_blocked = false;
            let line = inner.under.as_ref().map(|under| under.stream.line());
            line.iter().for_each(|line| self.readiness.wants_space(&**line, false));
            self.readiness.raise();
        }
        if inner.is_left {
            let mut sink = [0; 16 << 10];
            let mut turns = 64;
            while turns > 0 && matches!(self.take(&mut inner, &mut sink), Ok(1..)) {
                turns -= 1;
            }
            if turns == 0 {
                self.waker.wake();
            }
            self.send_again(&mut inner);
        }
    }

    /// Writes parts to the carrier; a broken one is lost, and takes nothing now.
    fn put(&self, inner: &mut Inner, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let Some(under) = &mut inner.under else { return blocked() };
        match under.stream.write(parts) {
            Ok(count) => {
                under.traffic.sent.fetch_add(count as u64, Ordering::Relaxed);
                Ok(count)
            }
            Err(error) if is_block(&error) => {
                self.waits_for_space(inner);
                blocked()
            }
            Err(_) => {
                self.lose(inner);
                blocked()
            }
        }
    }

    fn header(&self, inner: &Inner, kind: Kind, length: usize, sequence: u64) -> [u8; BYTES] {
        let route = inner.under.as_ref().map_or(0, |under| under.path as u16);
        Header {
            kind,
            class: inner.class,
            route,
            length: length as u32,
            lane: self.number,
            epoch: inner.epoch,
            sequence,
            deadline: 0,
        }
        .to_bytes()
    }

    /// Writes the rest of a header.
    fn put_held(&self, inner: &mut Inner) -> io::Result<()> {
        while !inner.held.is_empty() {
            let held = std::mem::take(&mut inner.held);
            let put = self.put(inner, &[IoSlice::new(&held)]);
            let count = *put.as_ref().unwrap_or(&0);
            if inner.under.is_some() {
                inner.held = held;
                inner.held.drain(..count);
            }
            put?;
        }
        Ok(())
    }

    /// Writes a header without anything after it, between two chunks.
    fn put_word(&self, inner: &mut Inner, kind: Kind, sequence: u64) -> io::Result<()> {
        self.put_held(inner)?;
        inner.held = self.header(inner, kind, 0, sequence).to_vec();
        // The rest of the header precedes the next write.
        match self.put_held(inner) {
            Err(error) if !is_block(&error) => Err(error),
            _ if inner.under.is_none() => blocked(),
            _ => {
                if !inner.held.is_empty() {
                    self.waker.wake();
                }
                Ok(())
            }
        }
    }

    /// Sends what the window has and this carrier was not given, then the end where this side ends the lane.
    fn send_again(&self, inner: &mut Inner) {
        if inner.under.is_none() {
            return;
        }
        while inner.given < inner.window.end() {
            let count = match inner.announced {
                0 => ((inner.window.end() - inner.given) as usize).min(CHUNK),
                announced => announced,
            };
            let piece = inner.window.from(inner.given, count).to_vec();
            if piece.is_empty()
                || !matches!(self.put_chunk(inner, &[IoSlice::new(&piece)], piece.len()), Ok(1..))
            {
                return;
            }
        }
        if self.put_held(inner).is_err() {
            return;
        }
        self.put_end(inner);
        self.acknowledge(inner);
    }

    fn put_end(&self, inner: &mut Inner) {
        let is_whole = inner.announced == 0 && inner.given == inner.window.end();
        if inner.is_ending && !inner.has_sent_end && is_whole && inner.under.is_some() {
            let end = inner.window.end();
            inner.has_sent_end = self.put_word(inner, Kind::End, end).is_ok();
        }
    }

    /// Writes bytes from `given` on, after a header if none announced them. Returns how many bytes it took.
    fn put_chunk(&self, inner: &mut Inner, parts: &[IoSlice<'_>], total: usize) -> io::Result<usize> {
        self.put_held(inner)?;
        let header = match inner.announced {
            0 => Some(self.header(inner, Kind::Data, total, inner.given)),
            _ => None,
        };
        let mut all = Vec::with_capacity(parts.len() + 1);
        all.extend(header.iter().map(|header| IoSlice::new(header)));
        all.extend(parts.iter().map(|part| IoSlice::new(part)));
        let count = self.put(inner, &all)?;
        let of_header = header.map_or(0, |header| {
            inner.announced = total;
            let count = count.min(BYTES);
            inner.held.extend_from_slice(&header[count..]);
            count
        });
        let count = count - of_header;
        inner.announced -= count;
        inner.given += count as u64;
        Ok(count)
    }

    fn acknowledge(&self, inner: &mut Inner) {
        let is_due = inner.taken - inner.acknowledged >= ACKNOWLEDGED_EVERY
            || inner.has_ended && inner.taken > inner.acknowledged;
        if is_due && inner.announced == 0 && inner.under.is_some() {
            let taken = inner.taken;
            if self.put_word(inner, Kind::Ack, taken).is_ok() {
                inner.acknowledged = taken;
            }
        }
    }

    /// Whether this side can send nothing more, and why.
    fn is_closed(inner: &Inner) -> Option<ErrorKind> {
        match inner.failed {
            Some(why) => Some(why),
            None if inner.is_ending || inner.has_ended => Some(ErrorKind::BrokenPipe),
            None => None,
        }
    }

    fn write(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut inner = self.inner();
        let inner = &mut *inner;
        if inner.unlooked >= ACKNOWLEDGED_EVERY as usize || inner.window.len() >= WINDOW {
            inner.unlooked = 0;
            // Acknowledgements, and the end, come also to a side that only writes.
            self.look_ahead(inner);
        }
        if let Some(why) = Self::is_closed(inner) {
            return Err(why.into());
        }
        self.readiness.lower_space();
        self.send_again(inner);
        let room = WINDOW.saturating_sub(inner.window.len());
        let is_full = room == 0;
        if inner.is_full || is_full {
            inner.is_full = is_full;
            self.set_full(inner);
        }
        // The window may have more than one carrier was given.
        if is_full || inner.given < inner.window.end() || inner.under.is_none() {
            return blocked();
        }
        let most = room.min(if inner.announced > 0 { inner.announced } else { CHUNK });
        let mut chosen: Vec<IoSlice<'_>> = Vec::with_capacity(parts.len().min(PARTS));
        let mut total = 0;
        for part in parts.iter().filter(|part| !part.is_empty()).take(PARTS) {
            let count = part.len().min(most - total);
            chosen.push(IoSlice::new(&part[..count]));
            total += count;
            if total == most {
                break;
            }
        }
        if total == 0 {
            return Ok(0);
        }
        let count = self.put_chunk(inner, &chosen, total)?;
        let mut left = count;
        for part in &chosen {
            let own = part.len().min(left);
            inner.window.push(&part[..own]);
            left -= own;
        }
        inner.unlooked += count;
        if inner.is_blocked && count > 0 {
            inner.is_blocked = false;
            let line = inner.under.as_ref().map(|under| under.stream.line());
            line.iter().for_each(|line| self.readiness.wants_space(&**line, false));
        }
        self.acknowledge(inner);
        if count == 0 {
            // Only a part of a header went.
            self.waits_for_space(inner);
            return blocked();
        }
        Ok(count)
    }

    /// Makes waiters on the readable descriptor wait for space, too.
    fn waits_for_space(&self, inner: &mut Inner) {
        if !std::mem::replace(&mut inner.is_blocked, true) {
            let line = inner.under.as_ref().map(|under| under.stream.line());
            line.iter().for_each(|line| self.readiness.wants_space(&**line, true));
        }
    }

    /// While the window is full, space comes with what is read, unless records for the reader come before it.
    fn set_full(&self, inner: &Inner) {
        if let Some(under) = &inner.under {
            let reads = inner.is_full && inner.coming == 0;
            self.readiness.space_comes_from(&*under.stream.line(), inner.is_full, reads);
        }
    }

    fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        let mut inner = self.inner();
        let inner = &mut *inner;
        let is_over = inner.failed.is_some() || inner.is_ending || inner.has_ended;
        if !is_over {
            self.readiness.lower();
        }
        let taken = self.take(inner, into);
        if taken.is_ok() && !is_over && inner.begin < inner.end {
            self.readiness.raise_read();
        }
        match taken {
            Err(error) if is_block(&error) => match inner.failed {
                Some(why) => Err(why.into()),
                None if inner.is_ending => Ok(0),
                None => Err(error),
            },
            other => other,
        }
    }

    /// Reads from the carrier into the stage; false: nothing more is there.
    fn fill(&self, inner: &mut Inner) -> bool {
        inner.stage.copy_within(inner.begin..inner.end, 0);
        (inner.begin, inner.end) = (0, inner.end - inner.begin);
        let Some(under) = &mut inner.under else { return false };
        match under.stream.read(&mut inner.stage[inner.end..]) {
            Ok(0) => {
                self.lose(inner);
                false
            }
            Ok(count) => {
                under.traffic.received.fetch_add(count as u64, Ordering::Relaxed);
                inner.end += count;
                true
            }
            Err(error) if is_block(&error) => false,
            Err(_) => {
                self.lose(inner);
                false
            }
        }
    }

    /// Reads headers up to the next one with records, as far as they have come.
    fn next_header(&self, inner: &mut Inner) -> io::Result<()> {
        while inner.coming == 0 {
            let Some(bytes) = inner.stage[inner.begin..inner.end].first_chunk::<BYTES>() else {
                if !self.fill(inner) {
                    return if inner.has_ended { Ok(()) } else { blocked() };
                }
                continue;
            };
            let header = Header::from_bytes(bytes)?;
            inner.begin += BYTES;
            if header.lane != self.number || header.epoch != inner.epoch {
                return Err(ErrorKind::InvalidData.into());
            }
            match header.kind {
                Kind::Data if !inner.has_ended && header.sequence <= inner.taken => {
                    inner.coming = header.length as usize;
                    // Of a carrier before: it came while that one was given up.
                    inner.known = usize::try_from(inner.taken - header.sequence).unwrap_or(usize::MAX);
                    inner.known = inner.known.min(inner.coming);
                }
                Kind::Ack if inner.window.acknowledged(header.sequence) => self.has_room(inner),
                Kind::End if inner.has_ended && header.sequence == inner.taken => {}
                Kind::End if header.sequence == inner.taken => {
                    inner.has_ended = true;
                    self.acknowledge(inner);
                    self.readiness.raise();
                    self.waker.wake();
                }
                _ => return Err(ErrorKind::InvalidData.into()),
            }
        }
        Ok(())
    }

    fn has_room(&self, inner: &mut Inner) {
        if std::mem::take(&mut inner.is_full) {
            self.set_full(inner);
            self.readiness.raise();
        }
        if inner.is_left {
            inner.left_at = now();
            self.waker.wake();
        }
    }

    /// Reads acknowledgements, and the end, that came before any records.
    fn look_ahead(&self, inner: &mut Inner) {
        if let Err(error) = self.next_header(inner)
            && !is_block(&error)
        {
            self.damaged(inner);
        }
        if inner.coming > 0 {
            // Its carrier may have nothing more: those who wait to read do not see what is in the stage.
            self.readiness.raise_read();
        }
    }

    fn damaged(&self, inner: &mut Inner) {
        inner.failed.get_or_insert(ErrorKind::InvalidData);
        self.lose(inner);
        self.readiness.raise();
    }

    /// Reads bytes of the lane; 0 at the end.
    fn take(&self, inner: &mut Inner, into: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Err(error) = self.next_header(inner) {
                if !is_block(&error) {
                    self.damaged(inner);
                }
                return Err(error);
            }
            if inner.coming == 0 {
                return Ok(0);
            }
            let mut known = [0; 1 << 10];
            let is_known = inner.known > 0;
            let target = match inner.known {
                0 => &mut *into,
                count => &mut known[..count.min(1 << 10)],
            };
            let most = target.len().min(inner.coming);
            let staged = most.min(inner.end - inner.begin);
            let count = if staged > 0 {
                target[..staged].copy_from_slice(&inner.stage[inner.begin..inner.begin + staged]);
                inner.begin += staged;
                staged
            } else {
                let Some(under) = &mut inner.under else { return blocked() };
                match under.stream.read(&mut target[..most]) {
                    Ok(0) if most > 0 => {
                        self.lose(inner);
                        return blocked();
                    }
                    Ok(count) => {
                        under.traffic.received.fetch_add(count as u64, Ordering::Relaxed);
                        count
                    }
                    Err(error) if is_block(&error) => return blocked(),
                    Err(_) => {
                        self.lose(inner);
                        return blocked();
                    }
                }
            };
            inner.coming -= count;
            if is_known {
                inner.known -= count;
                continue;
            }
            inner.taken += count as u64;
            if inner.coming == 0 {
                self.acknowledge(inner);
            }
            return Ok(count);
        }
    }

    /// This side writes nothing more. `leaves`: it reads nothing more either.
    fn finish(&self, leaves: bool) {
        let mut inner = self.inner();
        inner.is_ending = true;
        if leaves {
            (inner.is_left, inner.left_at) = (true, now());
        }
        self.send_again(&mut inner);
        if inner.announced > 0 && inner.under.is_some() {
            // The rest of what was announced does not come: the end goes over another carrier.
            self.lose(&mut inner);
        }
        self.readiness.raise();
        self.waker.wake();
    }
}

/// The state of a lane for the session thread.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Look {
    pub(crate) path: Option<usize>,
    /// The path of its newest carrier, which may be lost.
    pub(crate) last_path: usize,
    pub(crate) search: Search,
    pub(crate) carried_since: Duration,
    pub(crate) lost_at: Duration,
    /// How long it waits for a path.
    pub(crate) hold: Duration,
    pub(crate) epoch: u32,
    pub(crate) must_send: bool,
    /// The other side has acknowledged something.
    pub(crate) is_acknowledged: bool,
    /// When its stream was dropped.
    pub(crate) left_at: Option<Duration>,
    /// Nothing is left to do.
    pub(crate) is_over: bool,
    /// It has ended, and its stream has not been dropped yet.
    pub(crate) has_failed: bool,
    pub(crate) is_ending: bool,
}

/// The stream of a lane.
pub(crate) struct LaneStream(pub(crate) Arc<Lane>);

/// Its part for other threads.
struct LaneLine(Arc<Lane>);

impl Stream for LaneStream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into)
    }

    fn write(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.write(parts)
    }

    fn line(&self) -> Arc<dyn Line> {
        Arc::new(LaneLine(Arc::clone(&self.0)))
    }

    fn classify(&mut self, class: Class) {
        self.0.inner().class = class;
    }
}

impl Drop for LaneStream {
    fn drop(&mut self) {
        self.0.finish(true);
    }
}

impl Line for LaneLine {
    fn readable(&self) -> BorrowedFd<'_> {
        self.0.readiness.readable()
    }

    fn writable(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.readiness.writable())
    }

    fn hang_up(&self) {
        self.0.finish(false);
    }
}
