//! Messages that wait for the coordinator.
//!
//! Senders put them here and continue: a coordinator that reads slowly, or that receives a large part of a checkpoint,
//! delays no source. The queue is bounded: of kinds where only the newest counts there is one message, and if the others
//! take too much memory, senders wait for room. A coordinator that reads nothing meanwhile counts as lost.
use crate::failure::RunError;
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tidemill_link::remote::{MessageWriter, PEER_TIMEOUT};

/// Kinds of messages of which only the newest counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Newest {
    Ping,
    Figures,
    /// Part of a checkpoint: the coordinator requests one at a time.
    Part,
    /// The durable epochs of a slot.
    Durable(usize),
}

/// Limits of the queue and of waiting.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// Bytes of all messages that are not [`Newest`]; one further message may exceed it.
    pub(super) bytes: usize,
    /// Time without progress after which a connection is given up, while a sender waits for room.
    pub(super) patience: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { bytes: 64 << 20, patience: PEER_TIMEOUT }
    }
}

struct Waiting {
    newest: Option<Newest>,
    message: Arc<Vec<u8>>,
}

#[derive(Default)]
struct Queue {
    /// In the order of sending.
    waiting: BTreeMap<u64, Waiting>,
    newest: BTreeMap<Newest, u64>,
    /// Number of the last message.
    last: u64,
    /// Bytes of messages that are not [`Newest`], including the one being sent.
    bytes: usize,
    is_sending: bool,
    /// Sending is no longer possible.
    is_gone: bool,
}

impl Queue {
    fn add(&mut self, newest: Option<Newest>, message: Arc<Vec<u8>>) {
        self.last += 1;
        match newest {
            // After later messages: it must not overtake them.
            Some(which) => {
                if let Some(older) = self.newest.insert(which, self.last) {
                    self.waiting.remove(&older);
                }
            }
            None => self.bytes += message.len(),
        }
        self.waiting.insert(self.last, Waiting { newest, message });
    }

    fn take(&mut self) -> Option<Waiting> {
        let (number, next) = self.waiting.pop_first()?;
        if let Some(which) = next.newest
            && self.newest.get(&which) == Some(&number)
        {
            self.newest.remove(&which);
        }
        self.is_sending = true;
        Some(next)
    }

    fn give_up(&mut self) {
        (self.is_gone, self.bytes) = (true, 0);
        self.waiting.clear();
        self.newest.clear();
    }
}

struct Shared {
    writer: MessageWriter,
    bounds: Bounds,
    queue: Mutex<Queue>,
    /// A message was added or sent, or sending is no longer possible.
    changed: Condvar,
}

/// See the module. Dropping it closes the connection.
pub(super) struct Outbox(Arc<Shared>);

impl Outbox {
    /// Sends over this connection on a thread of its own.
    ///
    /// # Errors
    /// The system has no thread left.
    pub(super) fn new(writer: MessageWriter, bounds: Bounds) -> Result<Self, RunError> {
        Self::beginning_with(writer, bounds, Vec::new())
    }

    /// Creates an outbox that sends any number of messages first.
    ///
    /// # Errors
    /// See [`Outbox::new`].
    pub(super) fn beginning_with(
        writer: MessageWriter,
        bounds: Bounds,
        first: Vec<Arc<Vec<u8>>>,
    ) -> Result<Self, RunError> {
        let mut queue = Queue::default();
        first.into_iter().for_each(|message| queue.add(None, message));
        let shared = Arc::new(Shared { writer, bounds, queue: Mutex::new(queue), changed: Condvar::new() });
        let of_thread = Arc::clone(&shared);
        let sending = move || of_thread.send_all();
        let thread = std::thread::Builder::new().name("tm-outbox".into()).spawn(sending);
        thread.map_err(|error| RunError::System(format!("no thread for what a host says: {error}")))?;
        Ok(Self(shared))
    }

    /// Returns whether a message of this kind is waiting.
    pub(super) fn waits(&self, which: Newest) -> bool {
        self.0.lock().newest.contains_key(&which)
    }

    /// Adds a message after all others. If only the newest counts, an older one that still waits is dropped. False if the
    /// coordinator is gone.
    pub(super) fn push(&self, newest: Option<Newest>, message: Arc<Vec<u8>>) -> bool {
        let shared = &self.0;
        let mut queue = shared.lock();
        if newest.is_none() {
            queue = shared.wait_while(queue, |queue| queue.bytes >= shared.bounds.bytes);
        }
        if queue.is_gone {
            return false;
        }
        queue.add(newest, message);
        shared.changed.notify_all();
        true
    }

    /// Waits until all is sent, or the coordinator takes nothing more.
    pub(super) fn flush(&self) {
        drop(self.0.wait_while(self.0.lock(), |queue| !queue.waiting.is_empty() || queue.is_sending));
    }

    /// Drops the waiting messages and closes the connection.
    pub(super) fn close(&self) {
        self.0.give_up(self.0.lock());
    }

    /// Number of messages whose transmission has not started.
    #[cfg(test)]
    fn waiting(&self) -> usize {
        self.0.lock().waiting.len()
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn give_up(&self, mut queue: MutexGuard<'_, Queue>) {
        queue.give_up();
        drop(queue);
        self.changed.notify_all();
        // Wakes senders and the reader.
        self.writer.close();
    }

    /// Waits for a condition while the connection takes bytes.
    fn wait_while<'a>(
        &'a self,
        mut queue: MutexGuard<'a, Queue>,
        is_so: impl Fn(&Queue) -> bool,
    ) -> MutexGuard<'a, Queue> {
        while !queue.is_gone && is_so(&queue) {
            let before = self.writer.sent_bytes();
            let waited = self.changed.wait_timeout(queue, self.bounds.patience);
            let timed_out;
            (queue, timed_out) = waited.unwrap_or_else(PoisonError::into_inner);
            if timed_out.timed_out() && self.writer.sent_bytes() == before && is_so(&queue) {
                tracing::warn!(
                    "the coordinator of the run has taken nothing for {} s: it is taken for gone",
                    self.bounds.patience.as_secs_f64()
                );
                self.give_up(queue);
                queue = self.lock();
            }
        }
        queue
    }

    fn send_all(&self) {
        loop {
            let mut queue = self.lock();
            let next = loop {
                if queue.is_gone {
                    return;
                }
                if let Some(next) = queue.take() {
                    break next;
                }
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            };
            drop(queue);
            let sent = self.writer.send(&next.message);
            let mut queue = self.lock();
            queue.is_sending = false;
            if next.newest.is_none() {
                queue.bytes = queue.bytes.saturating_sub(next.message.len());
            }
            if let Err(error) = sent {
                tracing::debug!("the coordinator of the run is gone: {error}");
                return self.give_up(queue);
            }
            drop(queue);
            self.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::coordinator_sender::tests::connection;

    fn message(number: u64, bytes: usize) -> Arc<Vec<u8>> {
        let mut message = number.to_le_bytes().to_vec();
        message.resize(bytes.max(8), 7);
        Arc::new(message)
    }

    fn number_of(message: &[u8]) -> u64 {
        u64::from_le_bytes(message[..8].try_into().expect("nothing fails here"))
    }

    /// More than the system buffers for a peer that reads nothing.
    const LARGE: usize = 64 << 20;

    #[test]
    fn what_is_said_while_nobody_reads_waits_and_arrives_in_order() {
        let (writer, mut reader) = connection();
        let outbox = Outbox::new(writer, Bounds::default()).expect("nothing fails here");
        outbox.push(Some(Newest::Part), message(0, LARGE));
        for number in 1..=10_000 {
            outbox.push(None, message(number, 100));
            // Each is after the previous one of its slot, and before no earlier message.
            outbox.push(Some(Newest::Durable(3)), message(number + 1_000_000, 30));
            outbox.push(Some(Newest::Ping), message(number + 2_000_000, 30));
        }
        // The fault: the peer has not read, so at most the first can have been sent.
        assert!(outbox.waiting() >= 10_002, "{}", outbox.waiting());
        let heard: Vec<u64> =
            (0..10_003).map(|_| number_of(&reader.receive().expect("nothing fails here"))).collect();
        let expected: Vec<u64> = (0..=10_000).chain([1_010_000, 2_010_000]).collect();
        assert_eq!(heard, expected);
        outbox.flush();
    }

    #[test]
    fn what_waits_is_bounded_and_a_coordinator_that_reads_nothing_is_given_up() {
        let (writer, mut reader) = connection();
        let bounds = Bounds { bytes: 1 << 20, patience: Duration::from_millis(300) };
        let outbox = Outbox::new(writer, bounds).expect("nothing fails here");
        outbox.push(Some(Newest::Part), message(0, LARGE));
        let mut most = 0;
        for number in 1..=100 {
            outbox.push(None, message(number, 100 << 10));
            most = most.max(outbox.0.lock().bytes);
        }
        assert!(most <= (1 << 20) + (100 << 10), "{most} bytes wait");
        assert!(outbox.0.lock().is_gone, "10 MB had room in 1 MiB");
        // A started message is torn, and nothing follows it.
        assert!(reader.receive().is_err());
        outbox.flush();
        outbox.push(None, message(0, 8));
    }

    /// A slow reader is waited for.
    #[test]
    fn a_coordinator_that_reads_slowly_gets_everything() {
        let (writer, mut reader) = connection();
        let bounds = Bounds { bytes: 1 << 20, patience: Duration::from_secs(50) };
        let outbox = Outbox::new(writer, bounds).expect("nothing fails here");
        let reading = std::thread::spawn(move || {
            (0..200)
                .map(|_| {
                    std::thread::sleep(Duration::from_millis(1));
                    number_of(&reader.receive().expect("nothing fails here"))
                })
                .collect::<Vec<u64>>()
        });
        (0..200).for_each(|number| assert!(outbox.push(None, message(number, 100 << 10))));
        outbox.flush();
        assert!(!outbox.0.lock().is_gone);
        drop(outbox);
        assert_eq!(reading.join().expect("nothing fails here"), (0..200).collect::<Vec<u64>>());
    }
}
