//! Runs a [`Stateless`] operator: batches pass at once.
use super::{Emit, Node, Processing};
use crate::context::{SlotContext, StageContext};
use crate::frame::Epoch;
use crate::metrics::count;
use crate::traces::Happening;
use arrow_array::RecordBatch;
use std::rc::Rc;
use tidemill_operators::api::{DeadLetter, Output, Stateless};

pub(crate) struct StatelessNode {
    pub(crate) slot: Rc<SlotContext>,
    pub(crate) stage: StageContext,
    pub(crate) operator: Box<dyn Stateless>,
    pub(crate) processing: Option<RecordBatch>,
}

/// The dead letter of a record that panicked alone.
pub(crate) fn panic_letter(record: &RecordBatch, text: &str) -> DeadLetter {
    DeadLetter::of_row(record, 0, "panic", format!("the operator panicked: {text}"))
}

impl Node for StatelessNode {
    fn receive(&mut self, _port: usize, epoch: Epoch, batch: RecordBatch, out: &mut Emit) {
        let metrics = &self.stage.metrics;
        count(&metrics.records_in, batch.num_rows() as u64);
        let (portions, guilty) = self.stage.suspects.split(epoch, batch);
        for (record, text) in guilty {
            let mut letter = panic_letter(&record, &text);
            self.slot.mark(&self.stage, &record, std::slice::from_mut(&mut letter));
            self.stage.dead_letter(&self.slot, epoch, letter);
        }
        for portion in portions {
            let rows = portion.batch.num_rows() as u64;
            let batch = self.processing.insert(portion.batch);
            let mut output = Output::default();
            let started = self.slot.clock.now();
            let result = self.operator.process(batch, &mut output);
            let ended = self.slot.clock.now();
            metrics.computed(ended - started, rows);
            self.slot.trace(&self.stage, (None, Happening::Compute), batch, (started, ended));
            self.slot.mark(&self.stage, batch, &mut output.dead_letters);
            self.processing = None;
            if let Err(error) = result {
                self.stage.operator_failed(&self.slot, error);
                return;
            }
            self.stage.account(&self.slot, epoch, &mut output);
            for batch in output.batches {
                out.give(epoch, batch);
            }
        }
    }

    fn run(&mut self, _frontier: Epoch, _out: &mut Emit) {}

    fn processing(&self) -> Option<Processing> {
        let batch = self.processing.clone()?;
        Some(Processing {
            stage: self.stage.stage.clone(),
            operator: self.stage.operator.clone(),
            batch: Some(batch),
        })
    }
}
