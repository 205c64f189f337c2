//! The sending end of a channel: selects the receiver's rows, sends within its credit, keeps what the receiver
//! has not acknowledged as durable, and sends it again to a restarted receiver.
//!
//! The channel outlives its timely operator: a receiver may be restarted after this dataflow has ended.
use super::{Emit, Node};
use crate::context::{Account, CREDIT_WINDOW, SlotContext};
use crate::failure::RunError;
use crate::frame::{CLOSED, Content, Control, Epoch, Frame, Header, WatermarkStep};
use crate::freshness::FreshnessQueue;
use crate::link::{LinkError, LinkSender};
use crate::metrics::{EdgeMetrics, count};
use crate::watermark::Track;
use arrow_array::RecordBatch;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tidemill_operators::record::batch_bytes;

/// Credit that every data frame costs beside its records: about what its header, schema and padding take.
const FRAME_COST: usize = 2 << 10;

struct Kept {
    epoch: Epoch,
    batch: RecordBatch,
    bytes: usize,
    since: i64,
}

/// The sending end of a channel.
pub(crate) struct Egress {
    slot: Rc<SlotContext>,
    metrics: Arc<EdgeMetrics>,
    name: String,
    track: Track,
    account: Account,
    incarnation: u32,
    link: Option<Box<dyn LinkSender>>,
    /// The receiver has said from where it wants data.
    resumed: bool,
    queue: FreshnessQueue,
    /// Sent or about to be sent again, not yet durable behind the receiver.
    kept: VecDeque<Kept>,
    /// Next of `kept` to send; its length when all are sent.
    cursor: usize,
    resume_at: Epoch,
    credit: i64,
    sequence: u64,
    /// Frontier of the stage's output.
    frontier: Epoch,
    /// Frontier that the receiver was announced; none yet: nothing.
    announced: Option<Epoch>,
    durable: Epoch,
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
    ) -> Self {
        Self {
            slot,
            metrics,
            name,
            track,
            account,
            incarnation,
            link: None,
            resumed: false,
            queue,
            kept: VecDeque::new(),
            cursor: 0,
            resume_at: 0,
            credit: 0,
            sequence: 0,
            frontier: start,
            announced: None,
            durable: start,
        }
    }

    /// Uses a new link, to a new or restarted receiver.
    pub(crate) fn attach(&mut self, link: Box<dyn LinkSender>) {
        self.link = Some(link);
        self.resumed = false;
        self.sequence = 0;
    }

    pub(crate) fn link(&self) -> Option<&dyn LinkSender> {
        self.link.as_deref()
    }

    /// All epochs before it are durable behind the receiver, and have come as far as here again: what a former incarnation
    /// sent may be durable while the dead letters it had with that are lost with its process.
    pub(crate) fn durable(&self) -> Epoch {
        if self.durable == CLOSED { CLOSED } else { self.durable.min(self.frontier) }
    }

    /// The receiver has ended well.
    pub(crate) fn receiver_finished(&mut self) {
        self.on_control(Control::Durable(CLOSED));
        self.link = None;
        self.resumed = false;
    }

    /// Nobody asks for anything of an earlier epoch again.
    fn forgotten(&self) -> Epoch {
        self.durable.min(self.slot.kept.load(Ordering::Acquire))
    }

    fn push(&mut self, epoch: Epoch, batch: RecordBatch) {
        if epoch < self.forgotten() {
            return;
        }
        let before = self.queue.bytes();
        let congested = self.credit <= 0 || !self.resumed;
        let dropped = self.queue.push(epoch, batch, self.slot.now(), congested);
        self.metrics.drops.add("freshness", dropped);
        self.account.change(before, self.queue.bytes());
    }

    /// Listens to the receiver and sends what it may get.
    pub(crate) fn pump(&mut self) {
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
    }

    fn lost(&mut self, error: &LinkError) {
        if !matches!(error, LinkError::Lost) {
            self.slot.fail(RunError::System(format!("channel {}: {error}", self.name)));
        } else if self.durable != CLOSED {
            tracing::debug!(channel = %self.name, "the receiver is gone");
        }
        self.link = None;
        self.resumed = false;
    }

    fn on_control(&mut self, control: Control) {
        match control {
            Control::Resume(epoch) => {
                self.resumed = true;
                self.resume_at = epoch;
                self.cursor = 0;
                self.credit = CREDIT_WINDOW as i64;
                self.announced = None;
            }
            Control::Credit(bytes) => self.credit += bytes as i64,
            Control::Durable(epoch) => {
                self.durable = self.durable.max(epoch);
                let forgotten = self.forgotten();
                let (mut kept_before, mut position) = (0, 0);
                let cursor = self.cursor;
                self.kept.retain(|kept| {
                    let keep = kept.epoch >= forgotten;
                    kept_before += usize::from(keep && position < cursor);
                    position += 1;
                    keep
                });
                self.cursor = kept_before;
            }
        }
    }

    fn send(&mut self) -> Result<(), LinkError> {
        if self.announced.is_none() {
            // What the watermark was at the place where the receiver goes on.
            let epoch = self.resume_at.min(self.frontier);
            let steps = vec![WatermarkStep { epoch, watermark: self.track.at(epoch) }];
            self.announce(epoch, steps)?;
        }
        let mut begun = None;
        while self.credit > 0 {
            if self.cursor == self.kept.len() {
                let Some(waiting) = self.queue.pop() else { break };
                self.account.release(waiting.bytes);
                let bytes = batch_bytes(&waiting.batch);
                self.kept.push_back(Kept {
                    epoch: waiting.epoch,
                    batch: waiting.batch,
                    bytes,
                    since: waiting.arrived,
                });
            }
            // Each complete epoch is told before the next one: a link that is cut goes on from there, not from where its credit
            // began.
            if begun
                .replace(self.kept[self.cursor].epoch)
                .is_some_and(|last| last != self.kept[self.cursor].epoch)
            {
                self.announce_complete()?;
            }
            let kept = &self.kept[self.cursor];
            self.cursor += 1;
            if kept.epoch < self.resume_at {
                continue;
            }
            let (epoch, batch, bytes, since) = (kept.epoch, kept.batch.clone(), kept.bytes, kept.since);
            let cost = bytes + FRAME_COST;
            self.credit -= cost as i64;
            count(&self.metrics.records, batch.num_rows() as u64);
            count(&self.metrics.bytes, bytes as u64);
            self.frame(Content::Data { epoch, batch }, since, cost as u64)?;
        }
        self.announce_complete()
    }

    /// Tells the frontier behind what is sent, if the receiver does not know it.
    fn announce_complete(&mut self) -> Result<(), LinkError> {
        let unsent = self.kept.range(self.cursor..).map(|kept| kept.epoch).min();
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
        self.announced = Some(epoch);
        let now = self.slot.now();
        self.frame(Content::Frontier { epoch, steps }, now, 0)
    }

    fn frame(&mut self, content: Content, sent_at: i64, cost: u64) -> Result<(), LinkError> {
        let Some(link) = self.link.as_mut() else { return Err(LinkError::Lost) };
        let header = Header { incarnation: self.incarnation, sequence: self.sequence, sent_at, cost };
        self.sequence += 1;
        link.send(Frame { header, content }).map(drop)
    }
}

/// The timely operator in front of a channel.
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
