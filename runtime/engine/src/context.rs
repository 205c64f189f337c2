//! State that the nodes of one slot share.
use crate::clock::{Clock, Nanoseconds};
use crate::failure::{OnPanic, RunError, SlotEnd, Suspects};
use crate::faults::{Point, SlotFaults};
use crate::frame::Epoch;
use crate::letters::Letters;
use crate::metrics::{StageMetrics, count};
use crate::samples::Sampler;
use crate::store::{EpochLogs, SnapshotStore};
use crate::traces::{Happening, Tracer};
use arrow_array::RecordBatch;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tidemill_operators::api::{DeadLetter, Output};

/// Bytes that an ingress or a source lets in before the other nodes of the slot get their turn.
pub(crate) const QUOTA: usize = 1 << 20;

/// The epoch before which everything is durable downstream of a stage, in the sinks that its output reaches. Each
/// stage has its own, so that two slots may send to each other without waiting for each other.
pub(crate) type Durable = Rc<Cell<Epoch>>;

/// Bytes that wait in one queue: of an egress, or of a model with its jobs in flight.
#[derive(Clone, Default)]
pub(crate) struct Account {
    bytes: Rc<Cell<usize>>,
    full: Rc<Cell<bool>>,
}

impl Account {
    pub(crate) fn hold(&self, bytes: usize) {
        self.bytes.set(self.bytes.get() + bytes);
    }

    pub(crate) fn release(&self, bytes: usize) {
        self.bytes.set(self.bytes.get().saturating_sub(bytes));
    }

    /// Sets whether the receiver has its next batches, so that more would only take memory.
    pub(crate) fn set_full(&self, full: bool) {
        self.full.set(full);
    }

    /// Records that a queue went from `before` to `after` bytes.
    pub(crate) fn change(&self, before: usize, after: usize) {
        self.hold(after);
        self.release(before);
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes.get()
    }
}

/// The budget as one producer (a source or an ingress) sees it: the queues that its records can reach in this slot.
/// Others do not stop it, or two slots that send to each other could stop each other for ever.
#[derive(Clone, Default)]
pub(crate) struct Backpressure {
    pub(crate) accounts: Rc<RefCell<Vec<Account>>>,
    /// It stopped and wants to be scheduled when the queues take more.
    pub(crate) stopped: Rc<Cell<bool>>,
    /// It can wait at no cost (it is a file that is read as fast as possible), so it stops as soon as one of the
    /// queues has enough.
    pub(crate) can_wait: Rc<Cell<bool>>,
}

impl Backpressure {
    pub(crate) fn used(&self) -> usize {
        self.accounts.borrow().iter().map(Account::bytes).sum()
    }

    fn is_full(&self) -> bool {
        self.can_wait.get() && self.accounts.borrow().iter().any(|account| account.full.get())
    }

    /// Returns whether a stopped producer may continue.
    pub(crate) fn is_ready(&self, budget: usize) -> bool {
        self.stopped.get() && self.used() < (budget / 2).max(1) && !self.is_full()
    }

    /// Returns whether more may be let in; if not, the producer is scheduled again when the queues take more.
    pub(crate) fn may_take(&self, budget: usize) -> bool {
        let left = self.used() < budget && !self.is_full();
        if !left {
            self.stopped.set(true);
        }
        left
    }
}

/// Shared by the nodes of one slot.
pub(crate) struct SlotContext {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) checkpoint_every: u64,
    pub(crate) snapshots: Arc<SnapshotStore>,
    pub(crate) epochs: Arc<EpochLogs>,
    pub(crate) letters: Arc<Letters>,
    /// Keeps records for inspection, if requested.
    pub(crate) sampler: Option<Arc<Sampler>>,
    /// Traces a few records, if requested.
    pub(crate) tracer: Option<Arc<Tracer>>,
    /// Faults at which the slot dies, for tests.
    pub(crate) faults: Option<SlotFaults>,
    /// Bytes above which producers stop.
    pub(crate) budget: usize,
    /// See [`crate::slot::SlotShared`].
    pub(crate) kept: Arc<AtomicU64>,
    /// It reads a stream, whose end cannot be found again.
    pub(crate) reads_stream: bool,
    /// A source is at its limit ahead of what is durable.
    pub(crate) ahead: Cell<bool>,
    /// Nodes (by index) that want to be scheduled at a time.
    pub(crate) deadlines: RefCell<BTreeSet<(Nanoseconds, usize)>>,
    /// Why the slot cannot continue; the first reason counts.
    pub(crate) end: RefCell<Option<SlotEnd>>,
}

impl SlotContext {
    pub(crate) fn now(&self) -> Nanoseconds {
        self.clock.now()
    }

    /// Schedules node `node` at `deadline`.
    pub(crate) fn wake_at(&self, deadline: Nanoseconds, node: usize) {
        self.deadlines.borrow_mut().insert((deadline, node));
    }

    /// Records what happened to the traced records of a batch; see [`Tracer::happened`].
    pub(crate) fn trace(
        &self,
        stage: &StageContext,
        what: (Option<Happening>, Happening),
        batch: &RecordBatch,
        times: (Nanoseconds, Nanoseconds),
    ) {
        if let Some(tracer) = &self.tracer {
            tracer.happened(&stage.instance, what, batch, times);
        }
    }

    /// Names the traces of letters of a batch.
    pub(crate) fn mark(&self, stage: &StageContext, batch: &RecordBatch, letters: &mut [DeadLetter]) {
        if let Some(tracer) = &self.tracer {
            tracer.mark(&stage.operator, batch, letters);
        }
    }

    /// Passes a point where the slot may have to die.
    pub(crate) fn reach(&self, point: Point<'_>) {
        if let Some(faults) = &self.faults {
            faults.reach(point);
        }
    }

    pub(crate) fn fail(&self, error: RunError) {
        self.end_with(SlotEnd::Failed(error));
    }

    pub(crate) fn end_with(&self, end: SlotEnd) {
        self.end.borrow_mut().get_or_insert(end);
    }
}

/// A node's view of the stage that it runs.
#[derive(Clone)]
pub(crate) struct StageContext {
    /// Stage id.
    pub(crate) stage: String,
    /// Stage id with partition: the name of its state.
    pub(crate) instance: String,
    /// Operator, source or sink id.
    pub(crate) operator: String,
    pub(crate) metrics: Arc<StageMetrics>,
    pub(crate) suspects: Arc<Suspects>,
    pub(crate) on_panic: OnPanic,
}

impl StageContext {
    /// Counts the output of a call of the operator and passes on dead letters; the batches stay.
    pub(crate) fn account(&self, slot: &SlotContext, epoch: Epoch, output: &mut Output) {
        for batch in &output.batches {
            count(&self.metrics.records_out, batch.num_rows() as u64);
        }
        for (reason, rows) in output.drops.drain(..) {
            self.metrics.drops.add(reason, rows);
        }
        for (reason, rows) in output.notes.drain(..) {
            self.metrics.notes.add(reason, rows);
        }
        for letter in output.dead_letters.drain(..) {
            self.dead_letter(slot, epoch, letter);
        }
    }

    pub(crate) fn dead_letter(&self, slot: &SlotContext, epoch: Epoch, letter: DeadLetter) {
        let reason = letter.reason.clone();
        if slot.letters.add(&self.operator, epoch, letter) {
            self.metrics.dead_letters.add(reason, 1);
        }
    }

    pub(crate) fn operator_failed(&self, slot: &SlotContext, text: impl ToString) {
        slot.fail(RunError::Operator { operator: self.operator.clone(), text: text.to_string() });
    }
}
