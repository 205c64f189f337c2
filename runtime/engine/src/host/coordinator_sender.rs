//! Sends notices to the coordinator of a host, and repeats some to one that comes back.
//!
//! A host continues while no coordinator listens. It keeps what a new coordinator must know: the newest state of each
//! slot, and the letters and cuts of epochs since the last checkpoint, within the bounds of [`Kept`].
use super::kept::Kept;
use super::outbox::{Bounds, Newest, Outbox};
use crate::channel::ChannelId;
use crate::clock::{Clock, Nanoseconds};
use crate::failure::RunError;
use crate::letters::LetterWriter;
use crate::protocol::{Hello, LostNotices, Notice, Order, Standing, StandingSlot, remember};
use crate::store::{EpochEntry, EpochWriter};
use crate::wire;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidemill_link::remote::{Address, MAX_MESSAGE, MessageWriter};
use tidemill_operators::api::{DeadLetter, OperatorError};

/// Rounds in which kept notices are sent, each with the notices that came during the one before. A thread that sends
/// more than a connection takes is not waited for any longer.
const ROUNDS: usize = 8;

/// Newest incarnations met at the other ends of channels.
pub(crate) type Met = Arc<Mutex<BTreeMap<ChannelId, u32>>>;

/// Facts that do not change while a host runs.
pub(super) struct Facts {
    /// Digest of the graph.
    pub(super) graph: u64,
    pub(super) address: Option<Address>,
    pub(super) started: Nanoseconds,
    pub(super) elapsed_before: Nanoseconds,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) met: Met,
}

struct State {
    /// To a coordinator that listens.
    outbox: Option<Arc<Outbox>>,
    /// Of runs that can be taken over: the notices to repeat.
    kept: Option<Kept>,
    /// Spans of traced records that were not sent.
    lost_spans: u64,
    slots: BTreeMap<usize, StandingSlot>,
    /// When the run began, where that came after the host had joined.
    started: Option<Nanoseconds>,
    /// Result of closing the sinks.
    closed: Option<Result<(), RunError>>,
    /// Counts the coordinators that have listened.
    listeners: u64,
}

/// Sends to the coordinator from any thread. No thread waits for the coordinator to read, unless very much waits
/// already ([`Outbox`]).
#[derive(Clone)]
pub(super) struct CoordinatorSender(Arc<Mutex<State>>);

/// Returns a notice as the bytes of one message.
fn message(notice: &Notice) -> Result<Vec<u8>, RunError> {
    let bytes = wire::encode(notice).map_err(RunError::System)?;
    if bytes.len() > MAX_MESSAGE {
        return Err(RunError::System(format!(
            "what a worker says has {} bytes, and {MAX_MESSAGE} are the most: its state is too large for a process of its own; give its \
             stages to more workers, or run in one process",
            bytes.len()
        )));
    }
    Ok(bytes)
}

fn send(writer: &MessageWriter, bytes: &[u8]) -> Result<(), RunError> {
    let lost = |error| RunError::System(format!("the coordinator of the run is gone: {error}"));
    writer.send(bytes).map_err(lost)
}

/// Sends a notice and waits until the system has taken it: for a host that has not begun.
pub(super) fn say(writer: &MessageWriter, notice: &Notice) -> Result<(), RunError> {
    send(writer, &message(notice)?)
}

/// Returns the key of a notice of which only the newest counts.
fn newest(notice: &Notice) -> Option<Newest> {
    match notice {
        Notice::Ping(_) => Some(Newest::Ping),
        Notice::Figures(_) => Some(Newest::Figures),
        Notice::Part { .. } => Some(Newest::Part),
        Notice::Durable { slot, .. } => Some(Newest::Durable(*slot)),
        _ => None,
    }
}

impl CoordinatorSender {
    /// Keeps the notices to repeat if `keeps`.
    ///
    /// # Errors
    /// The system has no thread left.
    pub(super) fn new(writer: MessageWriter, keeps: bool) -> Result<Self, RunError> {
        let kept = keeps.then(Kept::default);
        let outbox = Some(Arc::new(Outbox::new(writer, Bounds::default())?));
        let (slots, lost_spans) = (BTreeMap::new(), 0);
        let state = State { outbox, kept, lost_spans, slots, started: None, closed: None, listeners: 1 };
        Ok(Self(Arc::new(Mutex::new(state))))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a notice, and remembers the parts that count. The reader finds that no coordinator listens.
    pub(super) fn tell(&self, notice: &Notice) {
        let bytes = match (message(notice), notice) {
            (Ok(bytes), _) => bytes,
            // The receiver that waits for it must know that it does not come.
            (Err(error), Notice::Part { number, part: Ok(_) }) => {
                return self.tell(&Notice::Part { number: *number, part: Err(error.to_string()) });
            }
            (Err(error), _) => return tracing::error!("{error}"),
        };
        let bytes = Arc::new(bytes);
        let outbox = {
            let mut state = self.lock();
            state.remember(notice, &bytes);
            state.outbox.clone()
        };
        // Not under the lock: it may have to wait.
        let is_taken = outbox.is_some_and(|outbox| outbox.push(newest(notice), bytes));
        match notice {
            Notice::Spans(spans) if !is_taken => self.lock().lost_spans += spans.len() as u64,
            Notice::LostNotices(not_told) if !is_taken => self.lock().lost_spans += not_told.spans,
            _ => {}
        }
    }

    /// Returns whether a coordinator listens.
    pub(super) fn is_heard(&self) -> bool {
        self.lock().outbox.is_some()
    }

    /// Returns the listener if it has taken all figures that were sent; none: there is no listener, or figures still
    /// wait.
    pub(super) fn listener_of_figures(&self) -> Option<u64> {
        let state = self.lock();
        let outbox = state.outbox.as_ref().filter(|outbox| !outbox.waits(Newest::Figures));
        outbox.map(|_| state.listeners)
    }

    /// Records an order that was received.
    pub(super) fn heard(&self, order: &Order) {
        let mut state = self.lock();
        match order {
            Order::Start { slot, incarnation, resume_at, .. } => {
                let slot_now =
                    StandingSlot { incarnation: *incarnation, durable: resume_at.clone(), end: None };
                state.slots.insert(*slot, slot_now);
            }
            Order::Started { at, .. } => state.started = Some(*at),
            Order::KeepFrom(epoch) => {
                if let Some(kept) = &mut state.kept {
                    kept.forget_before(*epoch);
                }
            }
            _ => {}
        }
    }

    /// Returns whether this host may continue by itself.
    pub(super) fn can_stand(&self) -> bool {
        self.lock().kept.is_some()
    }

    /// Records that no coordinator listens.
    pub(super) fn deserted(&self) {
        let outbox = self.lock().outbox.take();
        if let Some(outbox) = outbox {
            outbox.close();
        }
    }

    /// Waits until all notices have left; none may follow.
    pub(super) fn finish(&self) {
        let outbox = self.lock().outbox.take();
        if let Some(outbox) = outbox {
            outbox.flush();
            outbox.close();
        }
    }

    /// Continues with a coordinator that listens again: sends the events since the last checkpoint, then who this is
    /// and its state.
    ///
    /// # Errors
    /// The connection is lost.
    pub(super) fn stand(&self, writer: MessageWriter, facts: &Facts) -> Result<(), RunError> {
        let mut told = 0;
        for round in 1.. {
            let state = self.lock();
            let more = state.kept.as_ref().map(|kept| kept.after(told)).unwrap_or_default();
            if more.is_empty() || round == ROUNDS {
                let rest = more.into_iter().map(|(_, message)| message);
                return self.listened_to(state, writer, rest.collect(), facts);
            }
            drop(state);
            // Senders do not wait meanwhile: their notices are kept, and sent in the next round.
            for (number, message) in more {
                send(&writer, &message)?;
                told = number;
            }
        }
        Ok(())
    }

    /// Sends the rest of the kept notices and the state of this host, and continues from there.
    fn listened_to(
        &self,
        mut state: MutexGuard<'_, State>,
        writer: MessageWriter,
        mut rest: Vec<Arc<Vec<u8>>>,
        facts: &Facts,
    ) -> Result<(), RunError> {
        let met = facts.met.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let standing = Standing {
            started: state.started.unwrap_or(facts.started),
            elapsed_before: facts.elapsed_before,
            now: facts.clock.now(),
            slots: state.slots.clone(),
            met,
            closed: state.closed.clone(),
        };
        let hello =
            Hello { graph: facts.graph, address: facts.address.clone(), standing: Some(Box::new(standing)) };
        let letters = state.kept.as_mut().map_or(0, Kept::take_lost);
        let not_told = LostNotices { letters, spans: std::mem::take(&mut state.lost_spans) };
        if not_told != LostNotices::default() {
            rest.push(Arc::new(message(&Notice::LostNotices(not_told))?));
        }
        rest.push(Arc::new(message(&Notice::Hello(hello))?));
        state.outbox = Some(Arc::new(Outbox::beginning_with(writer, Bounds::default(), rest)?));
        state.listeners += 1;
        Ok(())
    }
}

impl State {
    fn remember(&mut self, notice: &Notice, message: &Arc<Vec<u8>>) {
        remember(&mut self.slots, notice);
        let is_heard = self.outbox.is_some();
        match (notice, &mut self.kept) {
            (Notice::Closed(closed), _) => self.closed = Some(closed.clone()),
            (Notice::Letter { epoch, .. }, Some(kept)) => kept.letter(*epoch, message, is_heard),
            (Notice::Epoch { source, entry }, Some(kept)) => kept.epoch(source, entry, message),
            _ => {}
        }
    }
}

impl LetterWriter for CoordinatorSender {
    fn write(&mut self, operator: &str, letter: &DeadLetter, epoch: u64) -> Result<(), OperatorError> {
        self.tell(&Notice::Letter { operator: operator.to_owned(), epoch, letter: letter.clone() });
        Ok(())
    }

    fn commit(&mut self, _epoch: u64) -> Result<(), OperatorError> {
        Ok(())
    }

    fn close(&mut self) -> Result<(), OperatorError> {
        Ok(())
    }
}

impl EpochWriter for CoordinatorSender {
    fn write(&mut self, source: &str, entry: &EpochEntry) {
        self.tell(&Notice::Epoch { source: source.to_owned(), entry: entry.clone() });
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::clock::WallClock;
    use crate::frame::Epoch;
    use crate::protocol::Part;
    use crate::store::Cut;
    use std::sync::mpsc::channel;
    use tidemill_link::remote::{Greeting, Listener, MessageReader, Purpose, Security, dial};
    use tidemill_operators::api::SourcePosition;

    /// A host's writer and its coordinator's reader.
    pub(in crate::host) fn connection() -> (MessageWriter, MessageReader) {
        let security = Security::none();
        let greeting =
            Greeting { run: 7, plan_version: 0, purpose: Purpose::Control { host: "edge".to_owned() } };
        let listener = Listener::bind(&Address::tcp("127.0.0.1:0"), &security).expect("nothing fails here");
        let (sender, incoming) = channel();
        let own = greeting.clone();
        let accept = move |incoming: tidemill_link::remote::Incoming| {
            let _ = sender.send(
                incoming
                    .accept(&own)
                    .map(|connection| connection.into_messages().expect("nothing fails here").1),
            );
        };
        let serving = listener.serve(accept).expect("nothing fails here");
        let patience = std::time::Duration::from_secs(50);
        let (writer, _) = dial(serving.address(), &security, &greeting, patience)
            .expect("nothing fails here")
            .into_messages()
            .expect("works");
        (writer, incoming.recv_timeout(patience).expect("nothing fails here").expect("works"))
    }

    fn cut(epoch: Epoch) -> EpochEntry {
        let position = SourcePosition(format!("{{\"row\": {epoch}}}"));
        EpochEntry::Cut { epoch, cut: Cut { position, skip: 0, sequence: epoch, newest: 0, watermark: 0 } }
    }

    fn facts() -> Facts {
        Facts {
            graph: 5,
            address: None,
            started: 1,
            elapsed_before: 0,
            clock: Arc::new(WallClock::new()),
            met: Met::default(),
        }
    }

    fn hear(reader: &mut MessageReader) -> Notice {
        wire::decode(&reader.receive().expect("nothing fails here")).expect("works")
    }

    /// A part of a checkpoint that is more than the system takes of a peer who reads nothing: sources continue.
    #[test]
    fn a_coordinator_that_does_not_read_a_part_holds_up_no_source() {
        let (writer, mut reader) = connection();
        let mut teller = CoordinatorSender::new(writer, true).expect("nothing fails here");
        let mut part = Part::default();
        let change = crate::checkpoint::StageChange {
            snapshot: Some((3, Arc::new(vec![9; 64 << 20]))),
            calls: Vec::new(),
            from: 3,
            upto: 3,
        };
        part.stages.insert("join".into(), change);
        teller.tell(&Notice::Part { number: 1, part: Ok(Some(part)) });
        for epoch in 0..5000 {
            EpochWriter::write(&mut teller, "s", &cut(epoch));
        }
        // All of them came back, and not a byte has been read.
        assert_eq!(teller.lock().kept.as_ref().map(Kept::len), Some(5000));
        assert!(matches!(hear(&mut reader), Notice::Part { number: 1, part: Ok(Some(_)) }));
        for expected in 0..5000 {
            let heard = hear(&mut reader);
            assert!(
                matches!(&heard, Notice::Epoch { entry: EpochEntry::Cut { epoch, .. }, .. } if *epoch == expected),
                "{heard:?}"
            );
        }
        teller.finish();
    }

    /// Another coordinator receives all that was kept, in order, then the state of the host, then new notices.
    #[test]
    fn another_coordinator_is_told_everything_again_while_sources_go_on() {
        let (writer, reader) = connection();
        let teller = CoordinatorSender::new(writer, true).expect("nothing fails here");
        drop(reader);
        teller.deserted();
        let mut source = teller.clone();
        let writing = std::thread::spawn(move || {
            (0..20_000).for_each(|epoch| EpochWriter::write(&mut source, "s", &cut(epoch)));
        });
        let (writer, mut reader) = connection();
        let (standing, of_thread) = (teller.clone(), facts());
        let standing = std::thread::spawn(move || standing.stand(writer, &of_thread));
        let (mut epochs, mut hellos) = (Vec::new(), 0);
        while epochs.len() < 20_000 || hellos == 0 {
            match hear(&mut reader) {
                Notice::Epoch { entry: EpochEntry::Cut { epoch, .. }, .. } => epochs.push(epoch),
                Notice::Hello(hello) if hello.standing.is_some() => hellos += 1,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(epochs, (0..20_000).collect::<Vec<_>>());
        assert_eq!(hellos, 1);
        standing.join().expect("nothing fails here").expect("works");
        writing.join().expect("nothing fails here");
    }

    /// While no coordinator listens, more letters come than are kept, and spans, which are not kept at all.
    #[test]
    fn another_coordinator_is_told_how_much_it_is_not_told() {
        let (writer, reader) = connection();
        let mut teller = CoordinatorSender::new(writer, true).expect("nothing fails here");
        drop(reader);
        teller.deserted();
        let letter = DeadLetter {
            id: None,
            time: None,
            reason: "bad_value".into(),
            detail: "x".repeat(1 << 20),
            values: tidemill_operators::values::Values::new(),
        };
        for _ in 0..20 {
            LetterWriter::write(&mut teller, "f", &letter, 3).expect("nothing fails here");
        }
        let spans = crate::protocol::examples::notices()
            .into_iter()
            .find(|notice| matches!(notice, Notice::Spans(_)));
        teller.tell(&spans.expect("is among them"));
        let (mut told, mut letters) = (Vec::new(), 0);
        let (writer, mut reader) = connection();
        let (standing, of_thread) = (teller.clone(), facts());
        let standing = std::thread::spawn(move || standing.stand(writer, &of_thread));
        loop {
            match hear(&mut reader) {
                Notice::Letter { .. } => letters += 1,
                Notice::LostNotices(not_told) => told.push(not_told),
                Notice::Hello(_) => break,
                other => panic!("{other:?}"),
            }
        }
        standing.join().expect("no panic").expect("nothing fails here");
        let lost = 20 - letters;
        assert!((1..20).contains(&lost), "{letters} came");
        assert_eq!(told, [LostNotices { letters: lost, spans: 1 }]);
        teller.finish();
    }
}
