//! Deliberate faults for tests of recovery: slots die at named points, channels run over links of the test's own.
use crate::frame::Epoch;
use crate::link::Link;
use std::sync::Arc;
use tidemill_spec::plan::PlanEdge;

/// A place in the work of a slot where its thread can die.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Point<'a> {
    /// A stage, or the receiving end before it (`into STAGE`), has passed records on.
    Emitted {
        /// Its name.
        node: &'a str,
        /// Their number since the last time.
        records: u64,
    },
    /// The rows of the epochs before `epoch` are written to a sink and not yet committed.
    Committing {
        /// Its name.
        sink: &'a str,
        /// The first epoch after the commit.
        epoch: Epoch,
    },
    /// The sink has committed them, unnoticed so far.
    Committed {
        /// Its name.
        sink: &'a str,
        /// The first epoch after the commit.
        epoch: Epoch,
    },
    /// A stateful stage has made a snapshot of the epochs before `epoch` that is not kept yet.
    Snapshot {
        /// Its name.
        stage: &'a str,
        /// The first epoch after it.
        epoch: Epoch,
    },
    /// A stateful stage is restored from its snapshot; the calls since are not repeated yet.
    Restoring {
        /// Its name.
        stage: &'a str,
        /// The first epoch after the restored ones.
        epoch: Epoch,
    },
    /// The slot has no work left and looks for more.
    Turn,
    /// All output of the slot is durable; it ends. Too late to die.
    Finished,
}

/// The faults of a run.
pub trait Faults: Send + Sync {
    /// Called on the thread of `slot` whenever it reaches a point. Returns whether it dies there, as a thread dies: nothing
    /// later is done, and the run restores the slot from its last checkpoint.
    fn dies(&self, slot: &str, incarnation: u32, point: Point<'_>) -> bool;

    /// Returns the carrier of an edge, if that is not `link` itself.
    fn carrier(&self, _edge: &PlanEdge, link: Arc<dyn Link>) -> Arc<dyn Link> {
        link
    }
}

/// Payload of the unwinding by which a slot dies.
pub(crate) struct Killed;

/// The faults for one incarnation of a slot.
pub(crate) struct SlotFaults {
    pub(crate) faults: Arc<dyn Faults>,
    pub(crate) slot: String,
    pub(crate) incarnation: u32,
}

impl SlotFaults {
    /// Does not return if the slot dies.
    pub(crate) fn reach(&self, point: Point<'_>) {
        if self.faults.dies(&self.slot, self.incarnation, point) && point != Point::Finished {
            // No panic, so that no hook is called.
            std::panic::resume_unwind(Box::new(Killed));
        }
    }
}
