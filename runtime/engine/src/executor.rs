//! Execution of models: a slot submits a batch and is notified when it is done. Inference never blocks a timely
//! thread.
mod cpu;
mod emulated;
mod factory;
mod local_model;

use crate::clock::Nanoseconds;
use crate::wake::Waker;
use arrow_array::RecordBatch;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tidemill_operators::api::{Concurrency, DeviceTimes, OperatorError, Output};

pub use cpu::start_local;
pub use emulated::EMULATED;
pub use factory::{
    ExecutorFactory, ExecutorRequest, ExecutorSpec, PreparedModel, UnknownDevice, factory_of, register,
};
pub use local_model::LocalModel;

/// Notifies a slot that one of its nodes has work.
#[derive(Debug, Clone)]
pub struct Notifier {
    pub(crate) flag: Arc<AtomicBool>,
    pub(crate) waker: Arc<Waker>,
}

impl Notifier {
    /// Notifies the slot.
    pub fn notify(&self) {
        self.flag.store(true, Ordering::Release);
        self.waker.wake();
    }
}

/// One batch to compute.
#[derive(Debug)]
pub struct Job {
    /// Number chosen by the submitter.
    pub id: u64,
    /// The incarnation of the stage that submitted it.
    pub incarnation: u32,
    /// The rows: one batch in parts of one schema, in order.
    pub parts: Vec<RecordBatch>,
    /// Bytes of the rows, for accounting.
    pub bytes: usize,
}

/// Result of a job.
#[derive(Debug)]
pub enum JobResult {
    /// The model's output.
    Done(Output),
    /// A later incarnation of the stage was attached before the computation began, so the result is not needed.
    Cancelled,
    /// The model failed as a whole.
    Failed(OperatorError),
    /// The model panicked with this text.
    Panicked(String),
    /// The executor died, with this reason, and serves no more: whether the model computed the job is not known. See
    /// [`ExecutorFactory`] for the consequences.
    Lost(String),
}

/// A finished job.
#[derive(Debug)]
pub struct Completion {
    /// The submitter's number.
    pub id: u64,
    /// The submitter's incarnation.
    pub incarnation: u32,
    /// Its result.
    pub result: JobResult,
    /// Engine time at which the computation began.
    pub started: Nanoseconds,
    /// Engine time at which it ended.
    pub finished: Nanoseconds,
}

/// The device of models that compute on the processors of this machine.
pub const CPU: &str = "cpu";

/// Begin and end of a call, in engine time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Begin.
    pub started: Nanoseconds,
    /// End.
    pub finished: Nanoseconds,
}

/// A call that a gate has let through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GatedCall {
    /// Begin and end of the call.
    pub span: Span,
    /// Where its time went, if the gate stands for a device. Real time, as from other devices.
    pub device: Option<DeviceTimes>,
}

impl From<Span> for GatedCall {
    fn from(span: Span) -> Self {
        Self { span, device: None }
    }
}

/// Decides when the calls of a model begin and how long they last: an emulated worker, for instance.
pub trait CallGate: Send + Sync {
    /// Makes a call of this number of records that were submitted at this time. `compute` returns the processor time
    /// that it used, or none if there was nothing to compute. None: the run ended before the call began.
    fn call(
        &self,
        records: usize,
        submitted: Nanoseconds,
        compute: &mut dyn FnMut() -> Option<Duration>,
    ) -> Option<GatedCall>;
}

/// Runs batches of one model. Another process or a remote accelerator is one more implementation, which an
/// [`ExecutorFactory`] starts.
pub trait ModelExecutor: Send + Sync {
    /// Queues a job; never blocks.
    fn submit(&self, job: Job);
    /// The next finished job.
    fn completion(&self) -> Option<Completion>;
    /// Sets the notifier of finished jobs from now on. Jobs of earlier incarnations are cancelled.
    fn attach(&self, notifier: Notifier, incarnation: u32);
    /// Returns the device that computes, for reports: [`CPU`] for the processors of this machine.
    fn device(&self) -> &str;
    /// Bytes submitted and not completed.
    fn bytes_in_flight(&self) -> usize;
    /// Returns the number of jobs that it computes at once.
    fn copies(&self) -> usize {
        1
    }
    /// Returns the engine time that all copies together have spent computing until `now`, nanoseconds.
    fn busy(&self, _now: Nanoseconds) -> Nanoseconds {
        0
    }
    /// Returns the settings of a model that has its own; `None`: the engine chooses.
    fn concurrency(&self) -> Option<Concurrency> {
        None
    }
    /// Starts a further copy of the model; `false` if that is impossible.
    fn add_copy(&self) -> bool {
        false
    }
}
