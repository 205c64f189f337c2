//! Runs a [`Stateful`] operator: epochs are applied when they are complete, in order, with the watermark of each; so the
//! state is always "all of the epochs before e". An operator with more results than fit into one epoch emits the rest in
//! the next ones: while it has more, there is no empty epoch.
//!
//! An operator that is independent of the order of rows within an epoch ([`Stateful::takes_rows_early`]) gets those of the
//! first open epoch on arrival. Its state is then between two epochs: no snapshot is taken, and the store gets the calls
//! when the epoch is complete, so a restart starts before all of them and repeats their output.
//!
//! An operator whose state follows from outside of the streams ([`Stateful::follows_news`]) is asked for news where an epoch
//! begins. The store keeps them by epoch before any output of the epoch leaves, so a restart gives them to the same rows.
use super::stateless::panic_letter;
use super::{Emit, Node, Processing};
use crate::checkpoint;
use crate::clock::Nanoseconds;
use crate::context::{Backpressure, Durable, SlotContext, StageContext};
use crate::faults::Point;
use crate::frame::{Epoch, WatermarkStep};
use crate::metrics::count;
use crate::order;
use crate::routing::ByGroup;
use crate::store::{Call, SnapshotStore};
use crate::traces::Happening;
use crate::watermark::{Track, UNKNOWN};
use arrow_array::RecordBatch;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use tidemill_operators::api::{NEWS, OperatorError, Output, Stateful};
use tidemill_operators::record::EventTime;

/// A smaller state is written on the slot's thread: that is faster than starting another one. Tiny in the tests of this
/// crate.
const AT_ONCE: usize = if cfg!(test) { 1 } else { 64 << 10 };

pub(crate) struct StatefulNode {
    slot: Rc<SlotContext>,
    stage: StageContext,
    operator: Box<dyn Stateful>,
    by_group: Option<ByGroup>,
    input: Track,
    output: Track,
    pending: BTreeMap<Epoch, Vec<(usize, RecordBatch)>>,
    arrived: BTreeMap<Epoch, i64>,
    /// All epochs before it are applied.
    done: Epoch,
    /// The epoch with applied rows that is not complete yet.
    begun: Option<Epoch>,
    /// Calls of that epoch for a restart.
    calls: Vec<Call>,
    watermark: EventTime,
    /// Whether the slot can be restarted: only then is the data for it kept.
    is_recoverable: bool,
    /// Whether rows and watermarks are part of that data.
    keeps_rows: bool,
    /// Enough has changed since the newest snapshot.
    is_snapshot_due: bool,
    processing: Option<Option<RecordBatch>>,
    /// The backpressure of its output, checked only when the operator has more than fits into one epoch.
    backpressure: Backpressure,
    index: usize,
    /// A restart can start at any checkpoint up to here.
    restorable: Durable,
}

/// Restores an operator to the state "all of the epochs before `done`"; false if that stage is unknown.
pub(crate) fn restore(
    operator: &mut dyn Stateful,
    snapshots: &SnapshotStore,
    instance: &str,
    done: Epoch,
) -> Result<bool, OperatorError> {
    let Some((state, calls)) = snapshots.resume(instance, done) else { return Ok(false) };
    checkpoint::restore(operator, &state)?;
    // Their output left the stage in a former incarnation.
    for call in calls {
        let mut output = Output::default();
        match call {
            Call::Apply(port, batch) => operator.apply(port, &batch, &mut output)?,
            Call::Advance(watermark) => operator.advance(watermark, &mut output)?,
        }
    }
    Ok(true)
}

impl StatefulNode {
    /// A node whose operator holds the state "all of the epochs before `done`".
    #[expect(clippy::too_many_arguments, reason = "the parts of one stage, each of another kind")]
    pub(crate) fn new(
        slot: Rc<SlotContext>,
        stage: StageContext,
        (operator, by_group): (Box<dyn Stateful>, Option<ByGroup>),
        (input, output): (Track, Track),
        done: Epoch,
        backpressure: Backpressure,
        index: usize,
        is_recoverable: bool,
    ) -> Result<Self, OperatorError> {
        if done == 0 && is_recoverable {
            slot.snapshots.put(&stage.instance, 0, operator.snapshot()?);
        }
        let keeps_rows = is_recoverable && !operator.follows_news();
        Ok(Self {
            slot,
            stage,
            operator,
            by_group,
            input,
            output,
            pending: BTreeMap::new(),
            arrived: BTreeMap::new(),
            done,
            begun: None,
            calls: Vec::new(),
            watermark: UNKNOWN,
            is_recoverable,
            keeps_rows,
            is_snapshot_due: false,
            processing: None,
            backpressure,
            index,
            restorable: Rc::new(Cell::new(done)),
        })
    }

    /// Progress of this incarnation's state: downstream stages may have kept more of a former incarnation, but upstream
    /// ones must repeat everything from here on.
    pub(crate) fn restorable(&self) -> Durable {
        Rc::clone(&self.restorable)
    }

    /// Takes a snapshot if a checkpoint lies in `done ..= upto` and enough has changed.
    fn checkpoint(&mut self, upto: Epoch) -> Result<(), OperatorError> {
        let every = self.slot.checkpoint_every;
        if self.is_snapshot_due && self.begun.is_none() && upto / every * every >= self.done {
            let point = Point::Snapshot { stage: &self.stage.instance, epoch: self.done };
            if self.operator.state_bytes() < AT_ONCE {
                let state = self.operator.snapshot()?;
                self.slot.reach(point);
                self.slot.snapshots.put(&self.stage.instance, self.done, state);
            } else {
                let write = self.operator.capture()?;
                self.slot.reach(point);
                self.slot.snapshots.write(&self.stage.instance, self.done, write);
            }
            self.is_snapshot_due = false;
        }
        Ok(())
    }

    /// Applies what has come from outside, before the first rows of an epoch.
    fn apply_news(&mut self, epoch: Epoch, output: &mut Output) -> Result<(), OperatorError> {
        if self.begun.is_some() || !self.operator.follows_news() {
            return Ok(());
        }
        let news = match self.is_recoverable {
            true => {
                let snapshots = &self.slot.snapshots;
                snapshots.news(&self.stage.instance, epoch, || self.operator.take_news())
            }
            false => self.operator.take_news(),
        };
        let Some(news) = news else { return Ok(()) };
        self.operator.apply(NEWS, &news, output)?;
        self.calls.extend(self.is_recoverable.then_some(Call::Apply(NEWS, news)));
        Ok(())
    }

    /// Applies the available rows of an epoch. `arrived`: arrival of the first of them.
    fn apply_rows(
        &mut self,
        (epoch, arrived): (Epoch, Nanoseconds),
        output: &mut Output,
    ) -> Result<u64, OperatorError> {
        let mut ports: BTreeMap<usize, Vec<RecordBatch>> = BTreeMap::new();
        for (port, batch) in self.pending.remove(&epoch).unwrap_or_default() {
            ports.entry(port).or_default().push(batch);
        }
        let mut rows = 0;
        for (port, batches) in ports {
            let Some(batch) = order::join(batches).map(order::by_time) else { continue };
            rows += batch.num_rows() as u64;
            self.slot.trace(&self.stage, (None, Happening::Queue), &batch, (arrived, self.slot.now()));
            let (portions, guilty) = self.stage.suspects.split(epoch, batch);
            for (record, text) in guilty {
                self.stage.dead_letter(&self.slot, epoch, panic_letter(&record, &text));
            }
            for portion in portions {
                let batch = self.processing.insert(Some(portion.batch)).as_ref();
                let Some(batch) = batch else { unreachable!("inserted above") };
                let started = self.slot.now();
                let given = output.dead_letters.len();
                self.operator.apply(port, batch, output)?;
                let what = (Some(Happening::Queue), Happening::Compute);
                self.slot.trace(&self.stage, what, batch, (started, self.slot.now()));
                self.slot.mark(&self.stage, batch, &mut output.dead_letters[given..]);
                self.calls.extend(self.keeps_rows.then(|| Call::Apply(port, batch.clone())));
                self.processing = None;
            }
        }
        Ok(rows)
    }

    /// All rows of an epoch were applied.
    fn complete(&mut self, epoch: Epoch, output: &mut Output) -> Result<(), OperatorError> {
        let watermark = self.input.at(epoch + 1).max(self.watermark);
        if watermark > self.watermark || self.operator.has_more() {
            self.watermark = watermark;
            self.processing = Some(None);
            self.operator.advance(watermark, output)?;
            self.processing = None;
            self.calls.extend(self.keeps_rows.then_some(Call::Advance(watermark)));
            let watermark = self.operator.output_watermark(watermark);
            self.output.record(WatermarkStep { epoch: epoch + 1, watermark });
        }
        let calls = std::mem::take(&mut self.calls);
        if !calls.is_empty() {
            self.is_snapshot_due = self.slot.snapshots.record(&self.stage.instance, epoch, calls)?;
        }
        self.begun = None;
        self.done = epoch + 1;
        Ok(())
    }

    fn apply(&mut self, epoch: Epoch, is_complete: bool, out: &mut Emit) -> Result<(), OperatorError> {
        let started = self.slot.now();
        let arrived = self.arrived.remove(&epoch).unwrap_or(started);
        let waited = started - arrived;
        let mut output = Output::default();
        self.apply_news(epoch, &mut output)?;
        let rows = self.apply_rows((epoch, arrived), &mut output)?;
        match is_complete {
            true => self.complete(epoch, &mut output)?,
            false => self.begun = Some(epoch),
        }
        if rows > 0 {
            self.stage.metrics.queue.record(waited, rows);
            self.stage.metrics.computed(self.slot.now() - started, rows);
        }
        self.stage.account(&self.slot, epoch, &mut output);
        for batch in output.batches {
            out.give(
                epoch,
                match &self.by_group {
                    Some(by_group) => by_group.classed(batch),
                    None => batch,
                },
            );
        }
        Ok(())
    }

    fn apply_all(&mut self, frontier: Epoch, out: &mut Emit) -> Result<(), OperatorError> {
        loop {
            let data =
                self.begun.or_else(|| self.pending.keys().next().copied()).filter(|epoch| *epoch < frontier);
            let step = self.input.next_step(self.done, frontier).map(|epoch| epoch - 1);
            let more = (self.operator.has_more() && self.done < frontier).then_some(self.done);
            let Some(epoch) = data.into_iter().chain(step).chain(more).min() else { break };
            if more.is_some() && !self.backpressure.may_take(self.slot.budget) {
                return Ok(());
            }
            debug_assert!(
                self.begun.is_none_or(|begun| epoch >= begun),
                "{epoch} comes after {:?}",
                self.begun
            );
            self.checkpoint(epoch)?;
            self.apply(epoch, true, out)?;
            if self.operator.has_more() {
                // Downstream nodes take it first, and the slot handles its commands.
                self.slot.wake_at(self.slot.now(), self.index);
                break;
            }
        }
        // Also at the end: downstream stages may be durable up to any later epoch.
        let upto = self.hold(frontier);
        self.checkpoint(upto)?;
        self.restorable.set(upto);
        // Here the state is "all of the epochs before the frontier", which decides lateness in the next one.
        if self.operator.takes_rows_early()
            && !self.operator.has_more()
            && self.pending.contains_key(&frontier)
        {
            self.apply(frontier, false, out)?;
        }
        self.stage.metrics.state_bytes.store(self.operator.state_bytes() as u64, Ordering::Relaxed);
        Ok(())
    }
}

impl Node for StatefulNode {
    fn receive(&mut self, port: usize, epoch: Epoch, batch: RecordBatch, _out: &mut Emit) {
        count(&self.stage.metrics.records_in, batch.num_rows() as u64);
        let now = self.slot.now();
        self.arrived.entry(epoch).or_insert(now);
        self.pending.entry(epoch).or_default().push((port, batch));
    }

    fn run(&mut self, frontier: Epoch, out: &mut Emit) {
        if let Err(error) = self.apply_all(frontier, out) {
            self.stage.operator_failed(&self.slot, error);
        }
    }

    fn hold(&self, frontier: Epoch) -> Epoch {
        if self.operator.has_more() { self.done.min(frontier) } else { frontier }
    }

    fn processing(&self) -> Option<Processing> {
        let batch = self.processing.clone()?;
        Some(Processing { stage: self.stage.stage.clone(), operator: self.stage.operator.clone(), batch })
    }
}

#[cfg(test)]
mod tests;
