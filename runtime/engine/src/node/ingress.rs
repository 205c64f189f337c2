//! The receiving ends of the channels into one input of a stage: fences off former incarnations of the senders, drops
//! what a replay repeats, and holds the meet of the senders' frontiers.
use super::{Emit, Node};
use crate::context::{Backpressure, CREDIT_WINDOW, Durable, QUOTA, SlotContext};
use crate::failure::RunError;
use crate::frame::{CLOSED, Content, Control, Epoch, Frame};
use crate::link::{LinkError, LinkReceiver};
use crate::metrics::EdgeMetrics;
use crate::watermark::Track;
use arrow_array::{Array, BooleanArray, FixedSizeBinaryArray, RecordBatch};
use arrow_select::filter::filter_record_batch;
use std::cell::RefCell;
use std::collections::{HashSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use tidemill_operators::record::{Metadata, RecordId, batch_bytes};

/// The receiving end of a channel.
pub(crate) struct Ingress {
    slot: Rc<SlotContext>,
    metrics: Arc<EdgeMetrics>,
    name: String,
    track: Track,
    link: Option<Box<dyn LinkReceiver>>,
    incarnation: u32,
    expected: u64,
    /// The sender's frontier as far as it is known; never goes back.
    frontier: Epoch,
    /// Ids taken in epochs that are still open: what a replay may repeat.
    open: VecDeque<(Epoch, FixedSizeBinaryArray)>,
    /// The ids of `open` when the sender was restarted, for comparison.
    repeated: Option<HashSet<(Epoch, RecordId)>>,
    /// Credit taken and not yet given back.
    owed: u64,
    /// Durable behind the receiving stage.
    durable: Durable,
    durable_announced: Epoch,
}

impl Ingress {
    pub(crate) fn new(
        slot: Rc<SlotContext>,
        metrics: Arc<EdgeMetrics>,
        name: String,
        track: Track,
        durable: Durable,
    ) -> Self {
        Self {
            slot,
            metrics,
            name,
            track,
            link: None,
            incarnation: 0,
            expected: 0,
            frontier: durable.get(),
            open: VecDeque::new(),
            repeated: None,
            owed: 0,
            durable,
            durable_announced: 0,
        }
    }

    /// Uses a new link, from a new or restarted sender.
    pub(crate) fn attach(&mut self, link: Box<dyn LinkReceiver>, incarnation: u32) {
        self.link = Some(link);
        self.expected = 0;
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
            // The sender is gone; whatever it sent before can still be taken.
            tracing::trace!("channel {} cannot answer its sender", self.name);
        }
    }

    /// Tells the sender what it may forget.
    pub(crate) fn announce_durable(&mut self) {
        let durable = self.durable.get();
        if durable > self.durable_announced {
            self.durable_announced = durable;
            self.control(Control::Durable(durable));
        }
    }

    /// The next data that is new; `None` when there is nothing now.
    fn take(&mut self) -> Option<(Epoch, RecordBatch, usize)> {
        loop {
            let link = self.link.as_mut()?;
            let frame = match link.receive() {
                Ok(Some(frame)) => frame,
                Ok(None) => return None,
                Err(LinkError::Lost) => {
                    // The capability stays held: the frontier waits for the sender's next incarnation.
                    self.link = None;
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
            Content::Frontier { epoch, steps } => {
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
            Content::Data { epoch, batch } => {
                let bytes = batch_bytes(&batch);
                self.owed += frame.header.cost;
                if self.owed >= CREDIT_WINDOW / 4 {
                    let owed = std::mem::take(&mut self.owed);
                    self.control(Control::Credit(owed));
                }
                if epoch < self.frontier {
                    return None;
                }
                let batch = self.without_repeated(epoch, batch)?;
                self.metrics.transfer.record(self.slot.now() - frame.header.sent_at, batch.num_rows() as u64);
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

/// The timely operator behind the channels of one input.
pub(crate) struct IngressNode {
    slot: Rc<SlotContext>,
    channels: Vec<Rc<RefCell<Ingress>>>,
    backpressure: Backpressure,
    /// Which channel comes first; rotates, so that none starves.
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
                    // Let the others of the slot run, then go on.
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
