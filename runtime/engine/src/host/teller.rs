//! What a host tells its coordinator, and what it must be able to tell again to one that comes back.
//!
//! A host goes on while nobody listens. What a new coordinator must know is kept: the newest word on each slot, and the
//! letters and cuts of epochs since the last checkpoint, which nothing else has.
use crate::clock::{Clock, Nanoseconds};
use crate::failure::RunError;
use crate::frame::Epoch;
use crate::graph::ChannelId;
use crate::letters::LetterWriter;
use crate::protocol::{Hello, Notice, Order, Standing, StandingSlot, remember};
use crate::store::{EpochEntry, EpochWriter};
use crate::wire;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidemill_link::remote::{Address, MessageWriter};
use tidemill_operators::api::{DeadLetter, OperatorError};

/// Newest incarnations met at the other ends of channels.
pub(crate) type Met = Arc<Mutex<BTreeMap<ChannelId, u32>>>;

/// What stays the same while a host runs.
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
    writer: Option<MessageWriter>,
    /// Of runs that can be taken over; by epoch, `None`: needed to the end.
    kept: Option<Vec<(Option<Epoch>, Notice)>>,
    slots: BTreeMap<usize, StandingSlot>,
    /// When the run began, where that was told after the host had joined.
    started: Option<Nanoseconds>,
    /// What came of closing the sinks.
    closed: Option<Result<(), RunError>>,
}

/// Tells the coordinator; any thread may.
#[derive(Clone)]
pub(super) struct Teller(Arc<Mutex<State>>);

pub(super) fn say(writer: &MessageWriter, notice: &Notice) -> Result<(), RunError> {
    let bytes = wire::encode(notice).map_err(RunError::System)?;
    let lost = |error| RunError::System(format!("the coordinator of the run is gone: {error}"));
    writer.send(&bytes).map_err(lost)
}

impl Teller {
    /// Keeps what must be told again if `keeps`.
    pub(super) fn new(writer: MessageWriter, keeps: bool) -> Self {
        let kept = keeps.then(Vec::new);
        let state = State { writer: Some(writer), kept, slots: BTreeMap::new(), started: None, closed: None };
        Self(Arc::new(Mutex::new(state)))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells, and remembers what counts. That nobody listens is found by who hears.
    pub(super) fn tell(&self, notice: &Notice) {
        let mut state = self.lock();
        state.remember(notice);
        if let Some(writer) = &state.writer
            && let Err(error) = say(writer, notice)
        {
            tracing::debug!("{error}");
        }
    }

    /// An order was heard.
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
                    kept.retain(|(of, _)| of.is_none_or(|of| of >= *epoch));
                }
            }
            _ => {}
        }
    }

    /// Whether this host may go on by itself.
    pub(super) fn can_stand(&self) -> bool {
        self.lock().kept.is_some()
    }

    /// Nobody listens.
    pub(super) fn deserted(&self) {
        if let Some(writer) = self.lock().writer.take() {
            writer.close();
        }
    }

    /// Somebody listens again: is told what happened since the last checkpoint, then who this is and how it stands.
    ///
    /// # Errors
    /// The connection is lost.
    pub(super) fn stand(&self, writer: MessageWriter, facts: &Facts) -> Result<(), RunError> {
        let mut state = self.lock();
        for (_, notice) in state.kept.iter().flatten() {
            say(&writer, notice)?;
        }
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
        say(&writer, &Notice::Hello(hello))?;
        state.writer = Some(writer);
        Ok(())
    }
}

impl State {
    fn remember(&mut self, notice: &Notice) {
        remember(&mut self.slots, notice);
        match notice {
            Notice::Closed(closed) => self.closed = Some(closed.clone()),
            Notice::Letter { epoch, .. } => self.keep(Some(*epoch), notice),
            Notice::Epoch { entry: EpochEntry::Cut { epoch, .. }, .. } => self.keep(Some(*epoch), notice),
            Notice::Epoch { .. } => self.keep(None, notice),
            _ => {}
        }
    }

    fn keep(&mut self, epoch: Option<Epoch>, notice: &Notice) {
        if let Some(kept) = &mut self.kept {
            kept.push((epoch, notice.clone()));
        }
    }
}

impl LetterWriter for Teller {
    fn write(&mut self, operator: &str, letter: &DeadLetter, epoch: Epoch) -> Result<(), OperatorError> {
        self.tell(&Notice::Letter { operator: operator.to_owned(), epoch, letter: letter.clone() });
        Ok(())
    }

    fn commit(&mut self, _epoch: Epoch) -> Result<(), OperatorError> {
        Ok(())
    }

    fn close(&mut self) -> Result<(), OperatorError> {
        Ok(())
    }
}

impl EpochWriter for Teller {
    fn write(&mut self, source: &str, entry: &EpochEntry) {
        self.tell(&Notice::Epoch { source: source.to_owned(), entry: entry.clone() });
    }
}
