//! Failures of a run, and the records that are suspected of them.
use crate::channel::ChannelId;
use crate::frame::Epoch;
use arrow_array::{BooleanArray, RecordBatch};
use arrow_select::filter::filter_record_batch;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use tidemill_operators::api::OperatorError;
use tidemill_operators::record::{Metadata, RecordId};

/// Why a run ended without its result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum RunError {
    /// An operator panicked and its `on_panic` is `stop` (or it was restarted too often).
    #[error("operator '{operator}' panicked: {text}")]
    Panic {
        /// Operator id.
        operator: String,
        /// Text of the panic.
        text: String,
    },
    /// An operator, source or sink failed as a whole.
    #[error("'{operator}' failed: {text}")]
    Operator {
        /// Operator, source or sink id.
        operator: String,
        /// The failure and how to fix it.
        text: String,
    },
    /// The plan cannot be executed as it is.
    #[error("the plan cannot be executed: {0}")]
    Plan(String),
    /// An edge between two workers was cut for the time that the workflow allows (`when_cut: stop`).
    #[error("{0}")]
    Cut(String),
    /// An edge lost rows of its sender, or delivered some twice.
    #[error(
        "edge {edge} does not add up: {sent} rows were sent up to {until} and {taken} were taken; results would be wrong, so the run \
         ends; please report this"
    )]
    Unbalanced {
        /// The stages on both sides.
        edge: String,
        /// Where the counts end.
        until: String,
        /// Rows that were sent.
        sent: u64,
        /// Rows that came.
        taken: u64,
    },
    /// The operating system refused a resource that the engine needs.
    #[error("{0}")]
    System(String),
    /// A worker cannot open its files of the workflow: they are not those that were checked before.
    #[error("worker '{worker}' cannot open what it has of the workflow: {text}")]
    NotOpened {
        /// The worker of the plan.
        worker: String,
        /// The finding and how to fix it.
        text: String,
    },
}

/// The reaction to a panic of an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum OnPanic {
    /// The run ends with [`RunError::Panic`].
    #[default]
    Stop,
    /// The slot is restored from its last checkpoint; a record that panics again and again goes to dead letters.
    Restart,
}

/// The failure of an operator, source or sink.
pub(crate) fn operator_error(operator: &str, error: OperatorError) -> RunError {
    RunError::Operator { operator: operator.to_owned(), text: error.message }
}

/// Text of a panic.
pub(crate) fn panic_text(payload: &(dyn std::any::Any + Send)) -> String {
    if let Some(text) = payload.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = payload.downcast_ref::<String>() {
        text.clone()
    } else {
        "(no text)".to_owned()
    }
}

/// The evidence of panicked batches against a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Suspicion {
    /// In this number of batches that panicked.
    Batches(u32),
    /// Panicked alone.
    Cause,
}

/// A part of a batch.
pub(crate) struct Portion {
    pub(crate) batch: RecordBatch,
    /// A record that is computed alone because its batch failed twice.
    pub(crate) alone: bool,
}

/// The evidence against a suspect.
#[derive(Debug)]
struct Suspect {
    suspicion: Suspicion,
    /// Text of its last panic.
    text: String,
    /// The last epoch that has it.
    epoch: Epoch,
}

/// The suspects of one instance of a stage; outlives its slots.
#[derive(Debug, Default)]
pub(crate) struct Suspects {
    any: AtomicBool,
    /// The newest epoch of a batch so far.
    newest: AtomicU64,
    records: Mutex<HashMap<RecordId, Suspect>>,
}

impl Suspects {
    /// Records that a batch panicked. Returns whether a record was found guilty.
    pub(crate) fn record_panic(&self, batch: &RecordBatch, text: &str) -> bool {
        self.record_panic_of(&[batch], text)
    }

    /// Records that a batch in parts panicked. Returns whether a record was found guilty.
    pub(crate) fn record_panic_of(&self, parts: &[&RecordBatch], text: &str) -> bool {
        let alone = parts.iter().map(|part| part.num_rows()).sum::<usize>() == 1;
        let mut found_cause = false;
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        let ids = parts.iter().flat_map(|part| {
            let metadata = Metadata::of(part);
            (0..part.num_rows()).map(move |row| metadata.id(row))
        });
        let epoch = self.newest.load(Ordering::Acquire);
        for id in ids {
            let entry = records.entry(id).or_insert_with(|| Suspect {
                suspicion: Suspicion::Batches(0),
                text: String::new(),
                epoch,
            });
            text.clone_into(&mut entry.text);
            if let Suspicion::Batches(times) = entry.suspicion {
                // A batch of one has been "split" already, but it too gets its second try.
                let guilty = alone && times >= 1;
                found_cause |= guilty;
                entry.suspicion = if guilty { Suspicion::Cause } else { Suspicion::Batches(times + 1) };
            }
        }
        self.any.store(true, Ordering::Release);
        found_cause
    }

    /// Splits a batch into rows that may be computed together and suspects that are computed alone; guilty rows are
    /// left out and returned, each by itself, with the text of their panic.
    pub(crate) fn split(
        &self,
        epoch: Epoch,
        batch: RecordBatch,
    ) -> (Vec<Portion>, Vec<(RecordBatch, String)>) {
        self.newest.fetch_max(epoch, Ordering::AcqRel);
        if !self.any.load(Ordering::Acquire) {
            return (vec![Portion { batch, alone: false }], Vec::new());
        }
        let records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        let metadata = Metadata::of(&batch);
        let mut together = Vec::with_capacity(batch.num_rows());
        let (mut portions, mut guilty) = (Vec::new(), Vec::new());
        for row in 0..batch.num_rows() {
            let id = metadata.id(row);
            let suspect = records.get(&id);
            together.push(suspect.is_none_or(|s| matches!(s.suspicion, Suspicion::Batches(0 | 1))));
            match suspect {
                Some(Suspect { suspicion: Suspicion::Cause, text, .. }) => {
                    guilty.push((batch.slice(row, 1), text.clone()));
                }
                Some(Suspect { suspicion: Suspicion::Batches(2..), .. }) => {
                    portions.push(Portion { batch: batch.slice(row, 1), alone: true });
                }
                _ => {}
            }
        }
        let rest = filter_record_batch(&batch, &BooleanArray::from(together)).expect("one flag a row");
        if rest.num_rows() > 0 {
            portions.insert(0, Portion { batch: rest, alone: false });
        }
        (portions, guilty)
    }

    /// Forgets records that no restart repeats: those of epochs before `durable`.
    pub(crate) fn prune(&self, durable: Epoch) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        records.retain(|_, suspect| suspect.epoch >= durable);
        self.any.store(!records.is_empty(), Ordering::Release);
    }
}

/// The end of a slot.
#[derive(Debug)]
pub(crate) enum SlotEnd {
    /// All its output is durable.
    Finished {
        /// By channel: the incarnation of the receiver that had reported everything as durable.
        heard: BTreeMap<ChannelId, u32>,
    },
    /// By order.
    Aborted,
    /// By a test; it is restarted.
    Killed,
    /// The run must end.
    Failed(RunError),
    /// The executor of a model died; the batches that it computed last.
    ExecutorLost { instance: String, text: String, parts: Vec<RecordBatch> },
    /// Something panicked; the operator and the batch, if known.
    Panicked { text: String, stage: Option<String>, operator: Option<String>, batch: Option<RecordBatch> },
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::{ArrayRef, FixedSizeBinaryArray, Int8Array, Int64Array, UInt32Array, UInt64Array};
    use std::sync::Arc;
    use tidemill_operators::record::{record_schema, source_id};
    use tidemill_spec::types::StreamType;

    /// Records without columns.
    fn batch(sequences: std::ops::Range<u64>) -> RecordBatch {
        let n = sequences.clone().count();
        let ids: Vec<u8> = sequences.clone().flat_map(|sequence| source_id(0, sequence)).collect();
        let columns: Vec<ArrayRef> = vec![
            Arc::new(FixedSizeBinaryArray::new(16, ids.into(), None)),
            Arc::new(UInt32Array::from(vec![0; n])),
            Arc::new(UInt64Array::from_iter_values(sequences)),
            Arc::new(Int64Array::from(vec![0; n])),
            Arc::new(Int64Array::from(vec![0; n])),
            Arc::new(UInt32Array::from(vec![0; n])),
            Arc::new(Int8Array::from(vec![1; n])),
        ];
        RecordBatch::try_new(record_schema(&StreamType::default()), columns)
            .expect("the columns of the schema")
    }

    #[test]
    fn suspects_are_forgotten_once_nothing_repeats_them() {
        let suspects = Suspects::default();
        suspects.split(4, batch(0..3));
        assert!(!suspects.record_panic(&batch(0..1), "no"));
        suspects.split(6, batch(3..6));
        suspects.record_panic(&batch(3..6), "neither");
        assert!(suspects.record_panic(&batch(0..1), "no"), "alone for the second time");
        let guilty = |sequences| suspects.split(6, batch(sequences)).1.len();
        suspects.prune(4);
        assert_eq!(guilty(0..3), 1, "epoch 4 may come again");
        suspects.prune(5);
        assert_eq!(guilty(0..3), 0);
        assert_eq!(suspects.records.lock().expect("not poisoned").len(), 3);
        suspects.prune(7);
        assert!(!suspects.any.load(Ordering::Acquire), "batches are no longer searched");
    }
}
