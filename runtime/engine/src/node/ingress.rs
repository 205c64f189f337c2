//! The receiving ends of the channels into one input of a stage: rejects former incarnations of the senders, drops repeated
//! rows of a replay, and holds the meet of the senders' frontiers.
use super::{Emit, Node};
use crate::channel::{CREDIT_WINDOW, ChannelId};
use crate::context::{Backpressure, Durable, QUOTA, SlotContext};
use crate::cut::{EpochRanges, Hold, StandIn};
use crate::failure::RunError;
use crate::frame::{CLOSED, Content, Control, Epoch, Frame};
use crate::link::{LinkError, LinkReceiver};
use crate::metrics::EdgeMetrics;
use crate::watermark::Track;
use arrow_array::{Array, BooleanArray, FixedSizeBinaryArray, RecordBatch};
use arrow_select::filter::filter_record_batch;
use std::cell::{Cell, RefCell};
use std::collections::{HashSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use tidemill_operators::record::{Metadata, RecordId, batch_bytes};

/// The receiving end of a channel.
pub(crate) struct Ingress {
    slot: Rc<SlotContext>,
    channel: ChannelId,
    metrics: Arc<EdgeMetrics>,
    name: String,
    track: Track,
    link: Option<Box<dyn LinkReceiver>>,
    incarnation: u32,
    expected: u64,
    /// Records received on this link since the sender's last frontier announcement.
    came: u64,
    /// The sender's frontier as far as it is known; never goes back.
    frontier: Epoch,
    /// Received ids of open epochs, which a replay may repeat.
    open: VecDeque<(Epoch, FixedSizeBinaryArray)>,
    /// The ids of `open` when the sender was restarted, for comparison.
    repeated: Option<HashSet<(Epoch, RecordId)>>,
    /// Credit used and not yet returned.
    owed: u64,
    /// Durable downstream of the receiving stage.
    durable: Durable,
    durable_announced: Epoch,
    /// Hold of downstream stages because an edge is cut, and its last report to the sender.
    hold: Rc<Cell<Hold>>,
    told: Hold,
    /// Epochs that others answer, as reported by the sender.
    elsewhere: Rc<RefCell<EpochRanges>>,
    /// The stand-in that answers while this connection is cut, if it carries answers.
    stand_in: Option<Arc<StandIn>>,
}

impl Drop for Ingress {
    fn drop(&mut self) {
        // The next incarnation reports again whether it is connected.
        self.tell_stand_in(true);
    }
}

impl Ingress {
    #[expect(clippy::too_many_arguments, reason = "the parts of one channel, each of another kind")]
    pub(crate) fn new(
        slot: Rc<SlotContext>,
        channel: ChannelId,
        metrics: Arc<EdgeMetrics>,
        name: String,
        track: Track,
        durable: Durable,
        hold: Rc<Cell<Hold>>,
        (elsewhere, stand_in): (Rc<RefCell<EpochRanges>>, Option<Arc<StandIn>>),
    ) -> Self {
        let ingress = Self {
            slot,
            channel,
            metrics,
            name,
            track,
            link: None,
            incarnation: 0,
            expected: 0,
            came: 0,
            frontier: durable.get(),
            open: VecDeque::new(),
            repeated: None,
            owed: 0,
            durable,
            durable_announced: 0,
            hold,
            told: Hold::None,
            elsewhere,
            stand_in,
        };
        ingress.tell_stand_in(false);
        ingress
    }

    fn tell_stand_in(&self, is_connected: bool) {
        if let Some(stand_in) = &self.stand_in {
            let is_missing = !is_connected && self.frontier != CLOSED;
            stand_in.connected(self.channel, is_missing.then(|| self.slot.now()));
        }
    }

    /// Uses a new link, from a new or restarted sender.
    pub(crate) fn attach(&mut self, link: Box<dyn LinkReceiver>, incarnation: u32) {
        self.link = Some(link);
        self.tell_stand_in(true);
        (self.expected, self.came) = (0, 0);
        self.owed = 0;
        self.durable_announced = 0;
        if incarnation > self.incarnation || !self.open.is_empty() {
            let open = self.open.iter().flat_map(|(epoch, ids)| {
                (0..ids.len()).map(|row| (*epoch, ids.value(row).try_into().expect("ids are 16 bytes wide")))
            });
            self.repeated = Some(open.collect());
        }
        self.incarnation = incarnation;
        self.control(Control::Resume(self.frontier));
        self.announce_durable();
        self.told = Hold::None;
        self.announce_hold();
    }

    /// Drops the link: the next one continues.
    pub(crate) fn detach(&mut self) {
        if self.link.take().is_some() {
            self.tell_stand_in(false);
        }
    }

    /// Everything was received, and no stage takes more: further data is a repetition, or shows that the sender is lost.
    /// The next sender must learn this, so the connection is made again.
    pub(crate) fn look_when_complete(&mut self) {
        if self.frontier == CLOSED {
            self.look();
            while self.take().is_some() {}
        }
    }

    fn look(&mut self) {
        if let Some(link) = &mut self.link {
            link.look();
        }
    }

    pub(crate) fn link(&self) -> Option<&dyn LinkReceiver> {
        self.link.as_deref()
    }

    fn control(&mut self, control: Control) {
        if let Some(link) = self.link.as_mut()
            && link.send_control(control).is_err()
        {
            // The sender is gone; its sent data can still be taken.
            tracing::trace!("channel {} cannot answer its sender", self.name);
        }
    }

    /// Reports the durable epoch to the sender, which then drops earlier data.
    pub(crate) fn announce_durable(&mut self) {
        let durable = self.durable.get();
        if durable > self.durable_announced {
            self.durable_announced = durable;
            self.control(Control::Durable(durable));
        }
    }

    /// Reports to the sender whether it may run ahead.
    pub(crate) fn announce_hold(&mut self) {
        let hold = self.hold.get();
        if hold != self.told {
            self.told = hold;
            self.control(hold.told());
        }
    }

    /// Returns the next new data; `None` if there is none now.
    fn take(&mut self) -> Option<(Epoch, RecordBatch, usize)> {
        loop {
            let link = self.link.as_mut()?;
            let frame = match link.receive() {
                Ok(Some(frame)) => frame,
                Ok(None) => return None,
                Err(LinkError::Lost) => {
                    // The capability stays held: the frontier waits for the sender's next incarnation.
                    self.link = None;
                    self.tell_stand_in(false);
                    return None;
                }
                Err(error) => {
                    self.slot.fail(RunError::System(format!("channel {}: {error}", self.name)));
                    self.link = None;
                    return None;
                }
            };
            if let Some(data) = self.admit(frame) {
                return Some(data);
            }
        }
    }

    fn admit(&mut self, frame: Frame) -> Option<(Epoch, RecordBatch, usize)> {
        if frame.header.incarnation < self.incarnation {
            return None;
        }
        if frame.header.sequence != self.expected {
            let text = format!(
                "channel {}: frame {} came instead of {}",
                self.name, frame.header.sequence, self.expected
            );
            self.slot.fail(RunError::System(text));
            return None;
        }
        self.expected += 1;
        match frame.content {
            Content::Frontier { epoch, rows, steps } => {
                let came = std::mem::take(&mut self.came);
                if came != rows {
                    let until = if epoch == CLOSED { "its end".to_owned() } else { format!("epoch {epoch}") };
                    let edge = self.name.clone();
                    self.slot.fail(RunError::Unbalanced { edge, until, sent: rows, taken: came });
                    return None;
                }
                for step in steps {
                    self.track.record(step);
                }
                if epoch > self.frontier {
                    self.frontier = epoch;
                    self.open.retain(|(open, _)| *open >= epoch);
                    if let Some(repeated) = &mut self.repeated {
                        repeated.retain(|(open, _)| *open >= epoch);
                        if repeated.is_empty() {
                            self.repeated = None;
                        }
                    }
                }
                None
            }
            Content::Elsewhere { from, until } => {
                self.elsewhere.borrow_mut().insert(from, until);
                None
            }
            Content::Data { epoch, batch } => {
                let bytes = batch_bytes(&batch);
                self.owed += frame.header.cost;
                if self.owed >= CREDIT_WINDOW / 4 {
                    let owed = std::mem::take(&mut self.owed);
                    self.control(Control::Credit(owed));
                }
                self.came += batch.num_rows() as u64;
                if epoch < self.frontier {
                    // A sender starts at the requested position, and sends nothing for epochs that it announced as
                    // complete.
                    let text = format!("channel {}: rows of epoch {epoch} came after its end", self.name);
                    self.slot.fail(RunError::System(text));
                    return None;
                }
                let batch = self.without_repeated(epoch, batch)?;
                let (sent, now) = (frame.header.sent_at, self.slot.now());
                self.metrics.transfer.record(now - sent, batch.num_rows() as u64);
                if let Some(tracer) = &self.slot.tracer {
                    tracer.came(self.channel, &batch, sent, now);
                }
                self.open.push_back((epoch, Metadata::of(&batch).ids.clone()));
                Some((epoch, batch, bytes))
            }
        }
    }

    fn without_repeated(&self, epoch: Epoch, batch: RecordBatch) -> Option<RecordBatch> {
        let Some(repeated) = &self.repeated else { return Some(batch) };
        let metadata = Metadata::of(&batch);
        let fresh: BooleanArray =
            (0..batch.num_rows()).map(|row| Some(!repeated.contains(&(epoch, metadata.id(row))))).collect();
        let batch = filter_record_batch(&batch, &fresh).expect("one flag a row");
        (batch.num_rows() > 0).then_some(batch)
    }
}

/// The timely operator after the channels of one input.
pub(crate) struct IngressNode {
    slot: Rc<SlotContext>,
    channels: Vec<Rc<RefCell<Ingress>>>,
    backpressure: Backpressure,
    /// The first channel of the next turn; rotates, so that none starves.
    turn: usize,
    index: usize,
}

impl IngressNode {
    pub(crate) fn new(
        slot: Rc<SlotContext>,
        channels: Vec<Rc<RefCell<Ingress>>>,
        backpressure: Backpressure,
        index: usize,
    ) -> Self {
        Self { slot, channels, backpressure, turn: 0, index }
    }
}

impl Node for IngressNode {
    fn receive(&mut self, _port: usize, _epoch: Epoch, _batch: RecordBatch, _out: &mut Emit) {}

    fn run(&mut self, _frontier: Epoch, out: &mut Emit) {
        let mut quota = QUOTA;
        let n = self.channels.len();
        self.turn = (self.turn + 1) % n.max(1);
        self.channels.iter().for_each(|channel| channel.borrow_mut().look());
        for at in 0..n {
            let mut channel = self.channels[(self.turn + at) % n].borrow_mut();
            loop {
                if !self.backpressure.may_take(self.slot.budget) {
                    return;
                }
                let Some((epoch, batch, bytes)) = channel.take() else {
                    if let Some(arrival) = channel.link().and_then(LinkReceiver::held_until) {
                        self.slot.wake_at(arrival, self.index);
                    }
                    break;
                };
                out.give(epoch, batch);
                quota = quota.saturating_sub(bytes.max(1));
                if quota == 0 {
                    // Lets other nodes of the slot run first.
                    self.slot.wake_at(self.slot.now(), self.index);
                    return;
                }
            }
        }
    }

    fn hold(&self, _frontier: Epoch) -> Epoch {
        self.channels.iter().map(|channel| channel.borrow().frontier).min().unwrap_or(CLOSED)
    }
}
