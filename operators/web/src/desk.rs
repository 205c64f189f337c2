//! The requests of a source that wait: to be read by the run, and for the rows of their record.
//!
//! A request becomes the record with the next sequence number of its source when the run reads it. Rows keep the source and
//! the sequence number of their first input, so a row finds its request through operators of any kind. When the sink has
//! everything of an epoch, requests of that epoch without a row have none.
use crate::content::Content;
use crate::server::Port;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tidemill_operators::api::{DeadLetter, Requests};
use tidemill_operators::feeds::{FeedOrder, FeedState, FeedStatus, Feeds};
use tidemill_operators::record::{EventTime, source_id};
use tokio::sync::oneshot;

/// The end of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The rows of its record, each a JSON object.
    Rows(Vec<Vec<u8>>),
    /// Its record became a dead letter: reason and detail.
    Dead(String, String),
    /// The run ends.
    Ended,
}

/// A request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// As many requests wait as may.
    Busy,
    /// The run ends.
    Ended,
}

/// A record that was not read yet.
struct Waiting {
    content: Content,
    time: EventTime,
    reply: Option<oneshot::Sender<Outcome>>,
}

/// A record on its way through the workflow.
struct Open {
    reply: oneshot::Sender<Outcome>,
    rows: Vec<Vec<u8>>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Waiting>,
    /// Bytes of those.
    bytes: usize,
    /// Bytes of bodies that still arrive.
    arriving: usize,
    open: BTreeMap<u64, Open>,
    /// Number of the source in the workflow.
    source: u32,
    /// Sequence number of the next record that is read.
    next: u64,
    /// The first record of each epoch that is not complete.
    begun: BTreeMap<u64, u64>,
    is_open: bool,
    /// Somebody answers.
    answers: bool,
    newest: EventTime,
    received: u64,
    emitted: u64,
    refused: u64,
    /// Requests that were not read before their client was gone.
    gone: u64,
}

impl Waiting {
    /// Whether nobody waits for its answer any more: it came too late, or the client is gone.
    fn is_gone(&self) -> bool {
        self.reply.as_ref().is_some_and(oneshot::Sender::is_closed)
    }
}

impl State {
    /// Drops the records and replies that nobody waits for any more.
    fn forget_gone(&mut self) {
        let (before, bytes) = (self.waiting.len(), &mut self.bytes);
        self.waiting.retain(|waiting| {
            let is_gone = waiting.is_gone();
            if is_gone {
                *bytes = bytes.saturating_sub(waiting.content.bytes());
            }
            !is_gone
        });
        self.gone += (before - self.waiting.len()) as u64;
        self.open.retain(|_, open| !open.reply.is_closed());
    }

    fn is_full(&self, (most, most_bytes): (usize, usize)) -> bool {
        let wait = self.waiting.len() + self.open.len();
        wait >= most || (self.bytes >= most_bytes && wait > 0)
    }

    fn has_bytes(&self, more: usize, most: usize) -> bool {
        self.bytes.saturating_add(self.arriving).saturating_add(more) <= most
    }
}

/// The bytes of a body that arrives, which are taken from those that may wait until this is dropped.
pub(crate) struct Room {
    desk: Arc<Desk>,
    bytes: usize,
    most: usize,
}

impl Room {
    /// Of `most` bytes of records that wait and bodies that arrive.
    pub(crate) fn new(desk: &Arc<Desk>, most: usize) -> Self {
        Self { desk: Arc::clone(desk), bytes: 0, most }
    }

    /// Refuses a body of so many bytes for which there is no room now. A promise takes no bytes from others.
    pub(crate) fn expect(&mut self, bytes: usize) -> Result<(), Refused> {
        self.ask(bytes, false)
    }

    /// Takes the bytes of a part that has arrived.
    pub(crate) fn take(&mut self, bytes: usize) -> Result<(), Refused> {
        self.ask(bytes, true)
    }

    fn ask(&mut self, bytes: usize, are_here: bool) -> Result<(), Refused> {
        let mut state = self.desk.lock();
        if !state.is_open {
            return Err(Refused::Ended);
        }
        if !state.has_bytes(bytes, self.most) {
            state.forget_gone();
        }
        if !state.has_bytes(bytes, self.most) {
            state.received += 1;
            state.refused += 1;
            return Err(Refused::Busy);
        }
        if are_here {
            state.arriving += bytes;
            self.bytes += bytes;
        }
        Ok(())
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let mut state = self.desk.lock();
        state.arriving = state.arriving.saturating_sub(self.bytes);
    }
}

/// See the module.
#[derive(Default)]
pub struct Desk {
    id: String,
    state: Mutex<State>,
    ready: Condvar,
    /// Where its requests come, while they are read.
    port: Mutex<Option<Port>>,
}

type Desks = HashMap<(PathBuf, String), Weak<Desk>>;

/// The desks of this process: a source and the sink that answers its requests are bound one after the other.
static DESKS: LazyLock<Mutex<Desks>> = LazyLock::new(Mutex::default);

impl Desk {
    /// Returns the desk of a source of the workflow in this folder.
    pub fn of(base: &Path, source: &str) -> Arc<Self> {
        let mut desks = DESKS.lock().unwrap_or_else(PoisonError::into_inner);
        desks.retain(|_, desk| desk.strong_count() > 0);
        let place = desks.entry((base.to_owned(), source.to_owned())).or_default();
        if let Some(desk) = place.upgrade() {
            return desk;
        }
        let desk = Arc::new(Self { id: source.to_owned(), ..Self::default() });
        *place = Arc::downgrade(&desk);
        desk
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the port until the end of reading.
    pub(crate) fn keep(&self, port: Port) {
        *self.port.lock().unwrap_or_else(PoisonError::into_inner) = Some(port);
    }

    /// Takes requests from now on.
    pub(crate) fn open(&self) {
        self.lock().is_open = true;
    }

    /// Refuses requests from now on; those that wait are told.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.is_open = false;
        let waiting = std::mem::take(&mut state.waiting);
        let open = std::mem::take(&mut state.open);
        (state.bytes, state.begun) = (0, BTreeMap::new());
        drop(state);
        self.ready.notify_all();
        let replies = waiting.into_iter().filter_map(|waiting| waiting.reply);
        for reply in replies.chain(open.into_values().map(|open| open.reply)) {
            let _ = reply.send(Outcome::Ended); // the client may be gone
        }
    }

    /// Adds a request, unless `most` requests wait, or records of so many bytes; with its outcome, if there are answers.
    /// Those that nobody waits for any more do not count.
    pub(crate) fn add(
        &self,
        content: Content,
        time: EventTime,
        most: (usize, usize),
    ) -> Result<Option<oneshot::Receiver<Outcome>>, Refused> {
        let mut state = self.lock();
        if !state.is_open {
            return Err(Refused::Ended);
        }
        state.received += 1;
        if state.is_full(most) {
            state.forget_gone();
        }
        if state.is_full(most) {
            state.refused += 1;
            return Err(Refused::Busy);
        }
        let (reply, outcome) = state.answers.then(oneshot::channel).unzip();
        // The clock of the machine may be set back.
        state.newest = state.newest.max(time);
        let time = state.newest;
        state.bytes += content.bytes();
        state.waiting.push_back(Waiting { content, time, reply });
        drop(state);
        self.ready.notify_one();
        Ok(outcome)
    }

    /// Takes requests as records, without those whose client is gone; none after so long. The last: whether none is left.
    pub(crate) fn take(
        &self,
        (rows, bytes): (usize, usize),
        patience: Duration,
    ) -> (Vec<Content>, Vec<EventTime>, bool) {
        let state = self.lock();
        let is_silent = |state: &mut State| state.waiting.is_empty() && state.is_open;
        let waited = self.ready.wait_timeout_while(state, patience, is_silent);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let (mut contents, mut times, mut size) = (Vec::new(), Vec::new(), 0);
        while contents.len() < rows && size < bytes {
            let Some(waiting) = state.waiting.pop_front() else { break };
            if waiting.is_gone() {
                state.bytes = state.bytes.saturating_sub(waiting.content.bytes());
                state.gone += 1;
                continue;
            }
            let Waiting { content, time, reply } = waiting;
            size += content.bytes();
            let sequence = state.next;
            state.next += 1;
            if let Some(reply) = reply {
                state.open.insert(sequence, Open { reply, rows: Vec::new() });
            }
            contents.push(content);
            times.push(time);
        }
        state.bytes = state.bytes.saturating_sub(size);
        state.emitted += contents.len() as u64;
        let is_last = state.waiting.is_empty();
        (contents, times, is_last)
    }

    /// A row of the record `sequence` of `source` has arrived. `is_whole`: there are no others, or they do not count.
    /// Returns false for a row that nobody waits for.
    pub(crate) fn answer(&self, source: u32, sequence: u64, row: &[u8], is_whole: bool) -> bool {
        let mut state = self.lock();
        if state.source != source {
            return false;
        }
        if !is_whole {
            let Some(open) = state.open.get_mut(&sequence) else { return false };
            open.rows.push(row.to_owned());
            return true;
        }
        let Some(open) = state.open.remove(&sequence) else { return false };
        drop(state);
        let _ = open.reply.send(Outcome::Rows(vec![row.to_owned()])); // the client may be gone
        true
    }

    /// All rows of epochs before `epoch` have arrived.
    pub(crate) fn complete(&self, epoch: u64) {
        let mut state = self.lock();
        let until = match epoch {
            u64::MAX => state.next,
            epoch => {
                let begun = state.begun.range(..=epoch).next_back();
                begun.map_or(0, |(_, first)| *first)
            }
        };
        state.begun.retain(|begun, _| *begun >= epoch);
        let later = state.open.split_off(&until);
        let complete = std::mem::replace(&mut state.open, later);
        drop(state);
        for open in complete.into_values() {
            let _ = open.reply.send(Outcome::Rows(open.rows)); // the client may be gone
        }
    }

    /// Whether requests come to this process.
    pub(crate) fn is_here(&self) -> bool {
        self.lock().is_open
    }
}

impl Requests for Desk {
    fn begin_reading(&self, source: u32, sequence: u64) {
        let mut state = self.lock();
        (state.source, state.next) = (source, sequence);
        state.begun.clear();
    }

    fn begin_epoch(&self, epoch: u64, sequence: u64) {
        let mut state = self.lock();
        if state.answers {
            state.begun.insert(epoch, sequence);
        }
    }

    fn bury(&self, letter: &DeadLetter) {
        let Some(id) = letter.id else { return };
        let mut state = self.lock();
        let source = state.source;
        let found = state.open.keys().copied().find(|sequence| source_id(source, *sequence) == id);
        let Some(open) = found.and_then(|sequence| state.open.remove(&sequence)) else { return };
        drop(state);
        let _ = open.reply.send(Outcome::Dead(letter.reason.to_string(), letter.detail.clone()));
    }

    fn expect_answers(&self) {
        self.lock().answers = true;
    }

    fn end_reading(&self) {
        let port = self.port.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(port); // closes the desk, and waits until the last answers are sent
    }
}

impl Feeds for Desk {
    fn status(&self) -> Vec<FeedStatus> {
        let mut state = self.lock();
        state.forget_gone();
        vec![FeedStatus {
            feed: self.id.clone(),
            state: if state.is_open { FeedState::Live } else { FeedState::Connecting },
            seconds: 0.0,
            detail: String::new(),
            connects: 0,
            received: state.received,
            emitted: state.emitted,
            drops: [("busy", state.refused), ("gone", state.gone)]
                .into_iter()
                .filter(|(_, count)| *count > 0)
                .map(|(reason, count)| (reason.to_owned(), count))
                .collect(),
            waiting: state.waiting.len() as u64,
        }]
    }

    fn order(&self, _: &FeedOrder) -> Result<(), String> {
        Err(format!("source `{}` listens at one address, which cannot be changed while it runs", self.id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_http::server::Bytes;

    const ROOM: (usize, usize) = (3, 1000);
    const ALL: (usize, usize) = (100, 1000);

    fn file(key: &str) -> Content {
        Content::File(key.to_owned(), Bytes::from_static(b"bytes"))
    }

    fn desk() -> Desk {
        let desk = Desk::default();
        desk.expect_answers();
        desk.begin_reading(4, 10);
        desk.open();
        desk
    }

    fn add(desk: &Desk) -> oneshot::Receiver<Outcome> {
        desk.add(file("a"), 7, ROOM).unwrap().unwrap()
    }

    #[test]
    fn rows_find_their_requests_by_sequence_number() {
        let desk = desk();
        let mut outcomes = [add(&desk), add(&desk), add(&desk)];
        assert_eq!(desk.add(file("a"), 7, ROOM).err(), Some(Refused::Busy));
        assert!(outcomes[0].try_recv().is_err());
        let (contents, times, is_last) = desk.take((2, 1000), Duration::ZERO);
        assert_eq!((contents.len(), times.as_slice(), is_last), (2, &[7, 7][..], false));
        assert!(!desk.answer(4, 12, b"{}", true), "it was not read yet");
        assert!(!desk.answer(3, 11, b"{}", true), "of another source");
        assert!(desk.answer(4, 11, b"{}", true));
        assert!(!desk.answer(4, 11, b"{}", true), "it was answered");
        assert_eq!(outcomes[1].try_recv(), Ok(Outcome::Rows(vec![b"{}".to_vec()])));
        assert!(desk.add(file("a"), 7, ROOM).is_ok(), "there is room again");
    }

    #[test]
    fn what_has_no_row_when_its_epoch_is_complete_has_none() {
        let desk = desk();
        let mut outcomes = [add(&desk), add(&desk), add(&desk)];
        desk.take(ALL, Duration::ZERO);
        desk.begin_epoch(1, 12);
        desk.answer(4, 10, b"1", false);
        desk.answer(4, 10, b"2", false);
        desk.complete(0);
        assert!(outcomes[0].try_recv().is_err());
        desk.complete(1);
        assert_eq!(outcomes[0].try_recv(), Ok(Outcome::Rows(vec![b"1".to_vec(), b"2".to_vec()])));
        assert_eq!(outcomes[1].try_recv(), Ok(Outcome::Rows(Vec::new())));
        assert!(outcomes[2].try_recv().is_err(), "of a later epoch");
        desk.complete(u64::MAX);
        assert_eq!(outcomes[2].try_recv(), Ok(Outcome::Rows(Vec::new())));
    }

    #[test]
    fn dead_letters_and_the_end_are_told() {
        let desk = desk();
        let mut outcomes = [add(&desk), add(&desk)];
        desk.take((1, 1000), Duration::ZERO);
        let letter = DeadLetter {
            id: Some(source_id(4, 10)),
            time: None,
            reason: "image_truncated".into(),
            detail: "half".into(),
            values: tidemill_operators::values::Values::default(),
        };
        desk.bury(&letter);
        assert_eq!(outcomes[0].try_recv(), Ok(Outcome::Dead("image_truncated".into(), "half".into())));
        desk.close();
        assert_eq!(outcomes[1].try_recv(), Ok(Outcome::Ended));
        assert_eq!(desk.add(file("a"), 7, ROOM).err(), Some(Refused::Ended));
        assert_eq!(desk.status()[0].received, 2);
    }

    #[test]
    fn requests_that_nobody_waits_for_do_not_count() {
        let desk = desk();
        let outcomes = [add(&desk), add(&desk)];
        desk.take((1, 1000), Duration::ZERO);
        let mut last = add(&desk);
        assert_eq!(desk.add(file("a"), 7, ROOM).err(), Some(Refused::Busy));
        drop(outcomes);
        let mut next = [add(&desk), add(&desk)];
        assert_eq!(desk.add(file("a"), 7, ROOM).err(), Some(Refused::Busy), "three wait");
        assert!(!desk.answer(4, 10, b"{}", true), "its reply is forgotten");
        let (contents, _, is_last) = desk.take(ALL, Duration::ZERO);
        assert_eq!((contents.len(), is_last), (3, true));
        assert!(desk.answer(4, 11, b"{}", true), "the record that was dropped has no number");
        assert_eq!(last.try_recv(), Ok(Outcome::Rows(vec![b"{}".to_vec()])));
        assert!(next[0].try_recv().is_err());
        let status = &desk.status()[0];
        assert_eq!((status.received, status.emitted, status.waiting), (7, 4, 0));
        assert_eq!((status.drops["busy"], status.drops["gone"]), (2, 1));
        drop(next);
        let gone = add(&desk);
        drop(gone);
        assert_eq!(desk.take(ALL, Duration::ZERO).0.len(), 0, "it is not read");
        assert_eq!(desk.lock().bytes, 0);
    }

    #[test]
    fn bodies_that_arrive_share_the_bytes_with_records_that_wait() {
        let desk = Arc::new(desk());
        let _outcome = add(&desk);
        assert_eq!(desk.lock().bytes, 6);
        let room = || Room::new(&desk, 100);
        let (mut first, mut second) = (room(), room());
        assert_eq!(first.expect(94), Ok(()));
        assert_eq!(first.expect(95), Err(Refused::Busy));
        assert_eq!(second.take(60), Ok(()), "what was expected is not taken");
        assert_eq!(first.take(30), Ok(()));
        assert_eq!(first.take(5), Err(Refused::Busy));
        assert_eq!(first.take(4), Ok(()));
        drop(second);
        assert_eq!(first.take(60), Ok(()));
        drop(first);
        assert_eq!(desk.lock().arriving, 0);
        let status = &desk.status()[0];
        assert_eq!((status.received, status.drops["busy"]), (3, 2));
        desk.close();
        assert_eq!(room().take(1), Err(Refused::Ended));
    }

    #[test]
    fn pushed_records_leave_nothing_behind() {
        let desk = Desk::default();
        desk.open();
        assert!(desk.add(file("a"), 7, ROOM).unwrap().is_none());
        desk.begin_epoch(1, 1);
        assert_eq!(desk.take(ALL, Duration::ZERO).0.len(), 1);
        let state = desk.lock();
        assert!(state.open.is_empty() && state.begun.is_empty() && state.bytes == 0);
    }
}
