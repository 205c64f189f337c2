//! The sending end of a channel: selects the receiver's rows, sends within its credit, keeps rows until the receiver has
//! acknowledged them as durable, and sends them again to a restarted receiver.
//!
//! The channel outlives its timely operator: a receiver may be restarted after this dataflow has ended.
mod connection;

use self::connection::{Connection, View};
use super::{Emit, Node};
use crate::channel::{CREDIT_WINDOW, ChannelId};
use crate::context::{Account, SlotContext};
use crate::cut::{Cuts, EpochRanges, Hold, KeptRecords, Next, StandIn};
use crate::failure::RunError;
use crate::frame::{CLOSED, Content, Control, Epoch, Frame, Header, WatermarkStep};
use crate::freshness::FreshnessQueue;
use crate::link::{LinkError, LinkSender};
use crate::metrics::{EdgeMetrics, count};
use crate::watermark::Track;
use arrow_array::RecordBatch;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tidemill_operators::record::batch_bytes;
use tidemill_spec::workflow::WhenCut;

/// Credit that every data frame costs beside its records: about the size of header, schema and padding.
const FRAME_COST: usize = 2 << 10;

/// The sending end of a channel.
pub(crate) struct Egress {
    slot: Rc<SlotContext>,
    metrics: Arc<EdgeMetrics>,
    name: String,
    track: Track,
    account: Account,
    incarnation: u32,
    link: Option<Box<dyn LinkSender>>,
    /// Whether the receiver has requested its start position.
    resumed: bool,
    /// Whether the receiver has ended well and was not replaced.
    has_finished: bool,
    queue: FreshnessQueue,
    /// Sent or to be sent again, not yet durable downstream.
    kept: KeptRecords,
    /// Present if the workflow says how to handle a cut connection to the receiver.
    connection: Option<Connection>,
    /// Hold reported by the receiver for downstream stages, and the total; see [`Hold`].
    told: Hold,
    hold: Hold,
    cuts: Option<Arc<Cuts>>,
    /// Schedules its timely operator.
    node: usize,
    resume_at: Epoch,
    credit: i64,
    sequence: u64,
    /// Records sent on this link since the last frontier announcement.
    sent: u64,
    /// Frontier of the stage's output.
    frontier: Epoch,
    /// The last frontier announced to the receiver, if any.
    announced: Option<Epoch>,
    durable: Epoch,
    /// Durable epoch reported by the receiver at the other end of this link; a restarted one may report less than the one
    /// before.
    heard: Epoch,
    /// Incarnation of that receiver, and of the last one that reported everything as durable.
    receiver: u32,
    complete_at: Option<u32>,
    /// Records in the queue, and the last reported number.
    waiting: (i64, i64),
    /// Epochs whose records the receiver no longer gets, because they are answered elsewhere.
    elsewhere: Elsewhere,
}

/// Source of the epochs that the receiver must not answer.
pub(crate) enum Elsewhere {
    /// There are none.
    Nothing,
    /// The stand-in of the receiver answers them. With the number of the channel, and the last known epochs.
    StandIn { stand_in: Arc<StandIn>, channel: ChannelId, known: EpochRanges, seen: u64 },
    /// Epochs reported to this stage.
    Told(Rc<RefCell<EpochRanges>>),
}

impl Elsewhere {
    pub(crate) fn of(stand_in: Arc<StandIn>, channel: ChannelId) -> Self {
        Self::StandIn { stand_in, channel, known: EpochRanges::default(), seen: 0 }
    }

    /// Returns its ranges within `from..until`.
    fn within(&self, from: Epoch, until: Epoch) -> Vec<(Epoch, Epoch)> {
        match self {
            Self::Nothing => Vec::new(),
            Self::StandIn { known, .. } => known.within(from, until).collect(),
            Self::Told(told) => told.borrow().within(from, until).collect(),
        }
    }

    /// Returns whether the records of an epoch are not to be sent.
    fn is_left_out(&self, epoch: Epoch) -> bool {
        matches!(self, Self::StandIn { known, .. } if known.contains(epoch))
    }
}

impl Drop for Egress {
    fn drop(&mut self) {
        if let Elsewhere::StandIn { stand_in, channel, .. } = &self.elsewhere {
            // The next incarnation reports again whether it is connected.
            stand_in.connected(*channel, None);
        }
        self.metrics.waiting.change(&mut self.waiting.1, 0);
        self.set_hold(Hold::None);
    }
}

impl Egress {
    #[expect(clippy::too_many_arguments, reason = "the parts of one channel, each of another kind")]
    pub(crate) fn new(
        slot: Rc<SlotContext>,
        metrics: Arc<EdgeMetrics>,
        name: String,
        track: Track,
        account: Account,
        incarnation: u32,
        queue: FreshnessQueue,
        start: Epoch,
        (when_cut, cuts): (Option<WhenCut>, Option<Arc<Cuts>>),
        node: usize,
        elsewhere: Elsewhere,
    ) -> Self {
        let connection = when_cut.map(|when| Connection::new(name.clone(), when, Arc::clone(&metrics)));
        Self {
            slot,
            metrics,
            name,
            track,
            account,
            incarnation,
            link: None,
            resumed: false,
            has_finished: false,
            queue,
            kept: KeptRecords::new(cuts.clone()),
            connection,
            told: Hold::None,
            hold: Hold::None,
            cuts,
            node,
            resume_at: 0,
            credit: 0,
            sequence: 0,
            sent: 0,
            frontier: start,
            announced: None,
            durable: start,
            heard: 0,
            receiver: 0,
            complete_at: None,
            waiting: (0, 0),
            elsewhere,
        }
    }

    /// Uses a new link, to a new or restarted receiver.
    pub(crate) fn attach(&mut self, link: Box<dyn LinkSender>, receiver: u32) {
        self.link = Some(link);
        self.resumed = false;
        self.has_finished = false;
        (self.sequence, self.sent) = (0, 0);
        (self.heard, self.receiver) = (0, receiver);
    }

    /// Drops the link: the next one continues.
    pub(crate) fn detach(&mut self) {
        if self.link.is_some() {
            self.lost(&LinkError::Lost);
        }
    }

    pub(crate) fn link(&self) -> Option<&dyn LinkSender> {
        self.link.as_deref()
    }

    /// All epochs before it are durable downstream and have been recomputed here. Output of a former incarnation may be
    /// durable, up to its end, while the dead letters of that incarnation are lost with its process.
    pub(crate) fn durable(&self) -> Epoch {
        let keeps_letters = self.slot.kept.load(Ordering::Acquire) == CLOSED;
        match self.durable {
            // Within one process they are not lost. And a stream would wait for new records, which the receiver does not
            // take.
            CLOSED if keeps_letters || self.slot.reads_stream => CLOSED,
            durable => durable.min(self.frontier),
        }
    }

    /// Returns whether a present receiver has not reported everything as durable: it may have restarted from an earlier epoch than
    /// its predecessor reached. The records that it lacks are kept only here, so a slot that ended now would have to
    /// restart for it. A lost receiver is not waited for: it may never return.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.link.is_some() && self.heard != CLOSED
    }

    /// Incarnation of the receiver that last reported everything as durable.
    pub(crate) fn complete_at(&self) -> Option<u32> {
        self.complete_at
    }

    /// The receiver has ended well. Data waiting for it would stop the producers for ever.
    pub(crate) fn receiver_finished(&mut self) {
        self.link = None;
        self.resumed = false;
        self.has_finished = true;
        while self.keep_next() {}
        self.on_control(Control::Durable(CLOSED));
        self.metrics.waiting.change(&mut self.waiting.1, self.waiting.0);
    }

    /// Earlier epochs are never requested again.
    fn forgotten(&self) -> Epoch {
        self.durable.min(self.slot.kept.load(Ordering::Acquire))
    }

    fn push(&mut self, epoch: Epoch, batch: RecordBatch) {
        if epoch < self.forgotten() || self.elsewhere.is_left_out(epoch) {
            return;
        }
        if self.has_finished {
            // Only a receiver that restarts from a checkpoint requests it.
            let bytes = batch_bytes(&batch);
            return self.kept.push(epoch, batch, bytes, self.slot.now());
        }
        let before = self.queue.bytes();
        let congested = self.credit <= 0 || !self.resumed;
        self.waiting.0 += batch.num_rows() as i64;
        let dropped = self.queue.push(epoch, batch, self.slot.now(), congested);
        self.waiting.0 -= dropped as i64;
        self.metrics.waiting.change(&mut self.waiting.1, self.waiting.0);
        self.metrics.drops.add("freshness", dropped);
        self.account.change(before, self.queue.bytes());
        self.keep_queue();
    }

    /// Keeps the data waiting for a disconnected receiver, so that upstream stages need not wait.
    fn keep_queue(&mut self) {
        if self.connection.as_ref().is_none_or(|connection| connection.hold() == Hold::None) {
            return;
        }
        while self.keep_next() {}
        self.metrics.waiting.change(&mut self.waiting.1, self.waiting.0);
    }

    /// Keeps the next waiting item for sending; false if there is none.
    fn keep_next(&mut self) -> bool {
        let Some(waiting) = self.queue.pop() else { return false };
        self.account.release(waiting.bytes);
        self.waiting.0 -= waiting.batch.num_rows() as i64;
        if self.elsewhere.is_left_out(waiting.epoch) {
            return true;
        }
        let bytes = batch_bytes(&waiting.batch);
        self.kept.push(waiting.epoch, waiting.batch, bytes, waiting.arrived);
        true
    }

    /// Checks whether the receiver is disconnected, and applies the workflow's policy.
    fn look_at_connection(&mut self) {
        let mut hold = self.told;
        if let Some(connection) = &mut self.connection {
            let every = self.slot.checkpoint_every;
            let view = View {
                now: self.slot.now(),
                is_connected: self.link.is_some() && self.resumed,
                is_sent: self.kept.next_epoch().is_none() && self.queue.first_epoch().is_none(),
                // Durable epochs are reported in whole checkpoints.
                frontier: if self.frontier == CLOSED { CLOSED } else { self.frontier / every * every },
                durable: self.durable,
                is_over: self.durable == CLOSED,
                bytes: self.kept.bytes(),
            };
            match connection.look(&view) {
                Ok(Some(at)) => self.slot.wake_at(at, self.node),
                Ok(None) => {}
                Err(error) => self.slot.fail(error),
            }
            hold = hold.max(connection.hold());
        }
        self.set_hold(hold);
        self.keep_queue();
    }

    fn set_hold(&mut self, hold: Hold) {
        if let Some(cuts) = &self.cuts {
            cuts.change(self.hold, hold);
        }
        self.hold = hold;
    }

    /// Additional data held here or downstream because an edge is cut.
    pub(crate) fn hold(&self) -> Hold {
        self.hold
    }

    /// Handles messages of the receiver and sends within its credit.
    pub(crate) fn pump(&mut self) {
        self.leave_out();
        self.talk();
        self.look_at_connection();
        self.tell_stand_in();
    }

    /// Drops epochs that are answered elsewhere by now. The drop and the report use one snapshot: the receiver learns of
    /// every missing epoch.
    fn leave_out(&mut self) {
        if let Elsewhere::StandIn { stand_in, known, seen, .. } = &mut self.elsewhere
            && let Some(news) = stand_in.news(seen)
        {
            self.kept.leave_out(|epoch| news.contains(epoch));
            *known = news;
        }
    }

    fn tell_stand_in(&self) {
        if let Elsewhere::StandIn { stand_in, channel, .. } = &self.elsewhere {
            let is_connected =
                self.has_finished || self.durable == CLOSED || self.link.is_some() && self.resumed;
            stand_in.connected(*channel, (!is_connected).then(|| self.slot.now()));
        }
    }

    fn talk(&mut self) {
        loop {
            let Some(link) = self.link.as_mut() else { return };
            match link.receive_control() {
                Ok(Some(control)) => self.on_control(control),
                Ok(None) => break,
                Err(error) => return self.lost(&error),
            }
        }
        if self.resumed
            && let Err(error) = self.send()
        {
            self.lost(&error);
        }
        self.metrics.waiting.change(&mut self.waiting.1, self.waiting.0);
    }

    fn lost(&mut self, error: &LinkError) {
        if !matches!(error, LinkError::Lost) {
            self.slot.fail(RunError::System(format!("channel {}: {error}", self.name)));
        } else if self.durable != CLOSED {
            tracing::debug!(channel = %self.name, "the receiver is gone");
        }
        self.link = None;
        self.resumed = false;
        self.told = Hold::None;
    }

    fn on_control(&mut self, control: Control) {
        match control {
            Control::Resume(epoch) => {
                self.resumed = true;
                self.resume_at = epoch;
                self.kept.rewind();
                self.credit = CREDIT_WINDOW as i64;
                self.announced = None;
            }
            // Capped, so that it cannot overflow for any credit of a receiver.
            Control::Credit(bytes) => {
                let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
                self.credit = self.credit.saturating_add(bytes).min(CREDIT_WINDOW as i64);
            }
            Control::Ahead(bytes) => self.told = Hold::of_ahead(bytes),
            Control::Delivers(bytes) => self.told = Hold::Delivers(bytes),
            Control::Durable(epoch) => {
                self.heard = self.heard.max(epoch);
                if epoch == CLOSED && self.link.is_some() {
                    self.complete_at = Some(self.receiver);
                }
                self.durable = self.durable.max(epoch);
                let forgotten = self.forgotten();
                self.kept.forget_before(forgotten);
            }
        }
    }

    fn send(&mut self) -> Result<(), LinkError> {
        if self.announced.is_none() {
            // The watermark at the receiver's start position.
            let epoch = self.resume_at.min(self.frontier);
            let steps = vec![WatermarkStep { epoch, watermark: self.track.at(epoch) }];
            self.announce(epoch, steps)?;
        }
        let mut begun = None;
        while self.credit > 0 {
            if self.kept.next_epoch().is_none() && !self.keep_next() {
                break;
            }
            // The item taken may have been left out.
            let Some(epoch) = self.kept.next_epoch() else { continue };
            // Each complete epoch is announced before the next one: a restored link continues from there, not from the
            // start of its credit.
            if begun.replace(epoch).is_some_and(|last| last != epoch) {
                self.announce_complete()?;
            }
            if epoch < self.resume_at {
                self.kept.passed();
                continue;
            }
            let Next { epoch, batch, bytes, since } = match self.kept.take_next() {
                Ok(Some(next)) => next,
                Ok(None) => break,
                Err(text) => {
                    // A restart from the last checkpoint computes it again.
                    self.slot.fail(RunError::System(format!("channel {}: {text}", self.name)));
                    return Ok(());
                }
            };
            let cost = bytes + FRAME_COST;
            self.credit -= cost as i64;
            count(&self.metrics.records, batch.num_rows() as u64);
            count(&self.metrics.bytes, bytes as u64);
            self.sent += batch.num_rows() as u64;
            self.frame(Content::Data { epoch, batch }, since, cost as u64)?;
        }
        self.announce_complete()
    }

    /// Announces the frontier after the sent data, if the receiver does not know it.
    fn announce_complete(&mut self) -> Result<(), LinkError> {
        let unsent = self.kept.first_unsent();
        let waiting = self.queue.first_epoch();
        let frontier =
            unsent.into_iter().chain(waiting).min().map_or(self.frontier, |e| e.min(self.frontier));
        if self.announced.is_none_or(|announced| announced < frontier) {
            let steps = self.track.steps(self.announced, frontier);
            self.announce(frontier, steps)?;
        }
        Ok(())
    }

    fn announce(&mut self, epoch: Epoch, steps: Vec<WatermarkStep>) -> Result<(), LinkError> {
        let now = self.slot.now();
        if let Some(from) = self.announced {
            for (from, until) in self.elsewhere.within(from, epoch) {
                self.frame(Content::Elsewhere { from, until }, now, 0)?;
            }
        }
        self.announced = Some(epoch);
        let rows = std::mem::take(&mut self.sent);
        self.frame(Content::Frontier { epoch, rows, steps }, now, 0)
    }

    fn frame(&mut self, content: Content, sent_at: i64, cost: u64) -> Result<(), LinkError> {
        let Some(link) = self.link.as_mut() else { return Err(LinkError::Lost) };
        let header = Header { incarnation: self.incarnation, sequence: self.sequence, sent_at, cost };
        self.sequence += 1;
        link.send(Frame { header, content }).map(drop)
    }
}

/// The timely operator before a channel.
pub(crate) struct EgressNode(pub(crate) Rc<RefCell<Egress>>);

impl Node for EgressNode {
    fn receive(&mut self, _port: usize, epoch: Epoch, batch: RecordBatch, _out: &mut Emit) {
        self.0.borrow_mut().push(epoch, batch);
    }

    fn run(&mut self, frontier: Epoch, _out: &mut Emit) {
        let mut egress = self.0.borrow_mut();
        egress.frontier = egress.frontier.max(frontier);
        egress.pump();
    }
}

#[cfg(test)]
mod tests;
