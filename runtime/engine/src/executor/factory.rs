//! Who starts the executors of a run.
use super::{CPU, LocalExecutor, ModelExecutor};
use crate::clock::Clock;
use crate::emulation::worker::StagePace;
use crate::processor::ProcessorTime;
use std::sync::Arc;
use tidemill_operators::api::{BoundOperator, Instance, OperatorError};
use tidemill_spec::plan::Stage;

/// What an executor is to run.
pub struct ExecutorRequest {
    /// The stage: its operator, variant, backend, device and worker.
    pub stage: Stage,
    /// The operator; its `make` loads the model in this process.
    pub operator: BoundOperator,
    /// Engine time, for the times of completions.
    pub clock: Arc<dyn Clock>,
    /// Takes the processor time that the model uses on this machine.
    pub processor: Arc<ProcessorTime>,
    /// How fast the worker is, where it is emulated.
    pub(crate) pace: Option<Arc<StagePace>>,
}

/// Starts what runs the models of a run: one executor for each partition of each stage with a model.
///
/// - [`ExecutorFactory::start`] may take as long as loading the model takes. It is called before the run reads
///   anything; an error then ends the start.
/// - An executor whose process, interpreter or machine died completes each job that it did not finish, and each that it is given
///   later, as [`JobResult::Lost`](super::JobResult::Lost): a slot that is restarted for another reason attaches to it again. The run then drops it, starts another one here and restarts the slot
///   of the stage from what is durable: nothing is lost or doubled. Losses one after another without progress end the
///   run, or, where the operator is restarted on panics, lead to the record that causes them.
/// - Workers that are emulated slow down [`LocalExecutor`] only.
pub trait ExecutorFactory: Send + Sync {
    /// Starts an executor.
    ///
    /// # Errors
    /// The model cannot be loaded, or what runs it cannot be started; the text says what to do.
    fn start(&self, request: &ExecutorRequest) -> Result<Arc<dyn ModelExecutor>, OperatorError>;

    /// Whether its executors may be lost. Then the slots of the models keep what a restart needs.
    fn may_be_lost(&self) -> bool {
        true
    }
}

/// Runs each model on a thread of this process.
#[derive(Debug, Clone, Copy, Default)]
pub struct LocalExecutors;

impl ExecutorFactory for LocalExecutors {
    fn start(&self, request: &ExecutorRequest) -> Result<Arc<dyn ModelExecutor>, OperatorError> {
        let ExecutorRequest { stage, operator, clock, processor, pace } = request;
        if let Some(device) = stage.device.as_deref().filter(|device| *device != CPU) {
            return Err(OperatorError::new(format!(
                "the plan has stage '{}' compute on '{device}'; this program computes on '{CPU}' only",
                stage.id
            )));
        }
        let Instance::Inference(model) = (operator.make)()? else {
            return Err(OperatorError::new(format!("stage '{}' made another kind of operator", stage.id)));
        };
        let (make, clock, processor) = (Arc::clone(&operator.make), Arc::clone(clock), Arc::clone(processor));
        let executor = LocalExecutor::start_on(&stage.operator, model, make, clock, processor, pace.clone())
            .map_err(|error| OperatorError::new(format!("no thread for a model: {error}")))?;
        Ok(Arc::new(executor))
    }

    fn may_be_lost(&self) -> bool {
        false
    }
}
