//! Runs a variant of a model in place of one on the other side of an edge that is cut (`when_cut: degrade`).
//!
//! It gets the records for the other side (port 0) and the answers of the other side (port 1), and emits the answers of
//! both: each epoch as a whole from one of them. While the connection works in both directions, an epoch belongs to the
//! other side and leaves when it is complete. After a long enough cut, missing epochs become its own: it computes them, and
//! drops answers of the other side to them. So each record leaves once, whatever was in transit when the link broke.
use super::inference::InferenceNode;
use super::{Emit, Node, Processing};
use crate::clock::Nanoseconds;
use crate::context::SlotContext;
use crate::cut::{EpochRanges, LetGo, StandIn};
use crate::frame::{CLOSED, Epoch};
use crate::metrics::count;
use arrow_array::RecordBatch;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

/// The port of the records.
pub(crate) const RECORDS: usize = 0;
/// The port of the other side's answers.
pub(crate) const ANSWERS: usize = 1;

pub(crate) struct StandInNode {
    slot: Rc<SlotContext>,
    model: InferenceNode,
    shared: Arc<StandIn>,
    /// Epochs that the other side was not asked for, as it reports: taken over by an earlier process.
    elsewhere: Rc<RefCell<EpochRanges>>,
    /// By port: the first epoch that may still come.
    frontiers: [Epoch; 2],
    /// The first epoch that has neither left as a whole nor been given to the model.
    next: Epoch,
    /// All earlier epochs have left an earlier incarnation: those of the other side are in `answers`, and remain its own.
    let_go: Epoch,
    /// Records of epochs that are not assigned yet.
    records: BTreeMap<Epoch, Vec<RecordBatch>>,
    /// The other side's answers to incomplete epochs.
    answers: BTreeMap<Epoch, Vec<RecordBatch>>,
    /// The epoch after the last one with records.
    seen: Epoch,
    /// Since when it answers, and from which epoch on.
    answering: Option<(Nanoseconds, Epoch)>,
    /// Rows answered since then.
    answered: u64,
    told: i64,
    index: usize,
}

impl Drop for StandInNode {
    fn drop(&mut self) {
        self.shared.metrics.degraded.change(&mut self.told, 0);
    }
}

impl StandInNode {
    /// `start`: the first epoch.
    pub(crate) fn new(
        slot: Rc<SlotContext>,
        model: InferenceNode,
        shared: Arc<StandIn>,
        elsewhere: Rc<RefCell<EpochRanges>>,
        start: Epoch,
        index: usize,
    ) -> Self {
        let LetGo { until, answers } = shared.has_let_go(start);
        Self {
            slot,
            model,
            shared,
            elsewhere,
            frontiers: [start, start.max(until)],
            next: start,
            let_go: until,
            records: BTreeMap::new(),
            answers,
            seen: start,
            answering: None,
            answered: 0,
            told: 0,
            index,
        }
    }

    /// Returns whether an epoch has left, or is permanently assigned to the model or the other side.
    fn is_own(&self, epoch: Epoch) -> bool {
        self.shared.stretch(epoch).0
    }

    fn compute(&mut self, epoch: Epoch, batch: RecordBatch, out: &mut Emit) {
        let rows = batch.num_rows() as u64;
        self.answered += rows;
        count(&self.shared.metrics.answered_here, rows);
        self.model.receive(RECORDS, epoch, batch, out);
    }

    /// Starts or stops answering, by the state of the connection.
    fn look_at_the_way(&mut self) {
        let now = self.slot.now();
        match (self.answering, self.shared.missing_since()) {
            (None, Some(since)) => {
                let due = since.saturating_add(self.shared.after);
                if now < due {
                    self.slot.wake_at(due, self.index);
                    return;
                }
                self.answering = Some((now, self.next));
                self.answered = 0;
                let (of, variant, next) = (&self.shared.of, &self.shared.variant, self.next);
                tracing::warn!("{of} is not reached: `{variant}` answers here, from epoch {next} on");
            }
            (Some((since, _)), None) => {
                self.take_what_came();
                self.answering = None;
                let (of, variant) = (&self.shared.of, &self.shared.variant);
                let seconds = (now - since) as f64 / 1e9;
                let answered = self.answered;
                tracing::info!(
                    "{of} is reached again: `{variant}` has answered {answered} records in {seconds:.1} s"
                );
            }
            _ => {}
        }
        self.shared.metrics.degraded.change(&mut self.told, i64::from(self.answering.is_some()));
    }

    /// While it answers, all new epochs are its own, except those that the other side answered completely before their
    /// records were repeated here.
    fn take_what_came(&self) {
        if let Some((_, from)) = self.answering {
            let from = from.max(self.next).max(self.let_go);
            self.shared.take(from, self.seen.max(self.frontiers[RECORDS]));
        }
    }

    /// The other side does not answer epochs that an earlier process took over.
    fn take_what_was_given_away(&self) {
        let elsewhere = self.elsewhere.borrow();
        elsewhere.within(self.next, CLOSED).for_each(|(from, until)| self.shared.take(from, until));
    }

    /// Computes its own epochs, and drops the other side's answers to them.
    fn compute_own(&mut self, out: &mut Emit) {
        let own = |epoch: &Epoch| self.shared.stretch(*epoch).0;
        let mut taken: Vec<(Epoch, Vec<RecordBatch>)> = Vec::new();
        let epochs: Vec<Epoch> = self.records.keys().copied().filter(own).collect();
        for epoch in epochs {
            taken.extend(self.records.remove_entry(&epoch));
        }
        for (epoch, batches) in taken {
            batches.into_iter().for_each(|batch| self.compute(epoch, batch, out));
        }
        let shared = Arc::clone(&self.shared);
        self.answers.retain(|epoch, _| !shared.stretch(*epoch).0);
    }

    /// Emits epochs that the other side has answered completely.
    fn pass_on(&mut self, out: &mut Emit) {
        loop {
            let (is_own, change) = self.shared.stretch(self.next);
            let known = if is_own { self.frontiers[RECORDS] } else { self.frontiers[ANSWERS] };
            let to = known.min(change);
            if to <= self.next {
                return;
            }
            let mut gone = BTreeMap::new();
            if !is_own {
                let later = self.answers.split_off(&to);
                gone = std::mem::replace(&mut self.answers, later);
                for (epoch, batches) in &gone {
                    for batch in batches {
                        count(&self.shared.metrics.answered_there, batch.num_rows() as u64);
                        out.give(*epoch, batch.clone());
                    }
                }
            }
            self.shared.let_go(to, gone);
            self.records = self.records.split_off(&to);
            self.next = to;
        }
    }
}

impl Node for StandInNode {
    fn receive(&mut self, port: usize, epoch: Epoch, batch: RecordBatch, out: &mut Emit) {
        if port == RECORDS {
            self.seen = self.seen.max(epoch.saturating_add(1));
            self.take_what_came();
        }
        match (port, self.is_own(epoch)) {
            (RECORDS, true) => self.compute(epoch, batch, out),
            // Its answers have left already.
            (RECORDS, false) if epoch < self.next => {}
            (RECORDS, false) => self.records.entry(epoch).or_default().push(batch),
            (_, true) => {}
            // It has left, or was restored from memory.
            (_, false) if epoch < self.next.max(self.let_go) => {}
            (_, false) => self.answers.entry(epoch).or_default().push(batch),
        }
    }

    fn advanced(&mut self, port: usize, frontier: Epoch) {
        if let Some(known) = self.frontiers.get_mut(port) {
            *known = (*known).max(frontier);
        }
    }

    fn run(&mut self, frontier: Epoch, out: &mut Emit) {
        self.take_what_was_given_away();
        self.look_at_the_way();
        self.take_what_came();
        self.compute_own(out);
        self.pass_on(out);
        self.model.run(frontier, out);
    }

    /// An input that holds nothing back: the other side may be away for a long time.
    fn waits_for(&self, port: usize) -> bool {
        port != ANSWERS
    }

    fn hold(&self, _frontier: Epoch) -> Epoch {
        self.next.min(self.model.hold(CLOSED))
    }

    fn processing(&self) -> Option<Processing> {
        self.model.processing()
    }
}

#[cfg(test)]
mod tests;
