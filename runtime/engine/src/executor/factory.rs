//! Executor factories, each registered under the scheme of the devices that it serves.
use super::{CPU, CallGate, EMULATED, ModelExecutor, cpu, emulated};
use crate::clock::Clock;
use crate::processor::ProcessorTime;
use serde::{Deserialize, Serialize};
use std::sync::{Arc, LazyLock, PoisonError, RwLock};
use tidemill_operators::api::{BoundOperator, Inference, MakeInstance, OperatorError};
use tidemill_operators::model::{ChosenBackend, ModelSpec};
use tidemill_spec::plan::{PlanDevice, Sends, Stage, device_of};

/// A stage with a model as plain data: another process can load the model from it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ExecutorSpec {
    /// The device as the plan names it: a scheme, and for some schemes `:` and an address (`cpu`, `device:tcp://hub:7440`).
    pub device: String,
    /// Id of the stage.
    pub stage: String,
    /// Largest batch that it submits.
    pub max_batch: u32,
    /// Name of the workflow: the tenant for which a shared device computes.
    pub workflow: String,
    /// Where the device listens, if the plan has a device of that name.
    pub address: Option<String>,
    /// Where else it may compute, in this order, when that device is lost.
    pub spares: Vec<String>,
    /// Whether rows go to the device as they are, to be prepared and finished there, instead of tensors.
    pub sends_rows: bool,
    /// The model; none: the operator belongs to this program, and no other process can load it.
    pub model: Option<ModelSpec>,
}

impl ExecutorSpec {
    /// The model of a stage on the device of the stage. `workflow`: its name; `devices`: those of the plan.
    pub fn of(stage: &Stage, operator: &BoundOperator, (workflow, devices): (&str, &[PlanDevice])) -> Self {
        let device = stage.device.clone().unwrap_or_else(|| CPU.to_owned());
        let planned = device_of(&device).and_then(|id| devices.iter().find(|device| device.id == id));
        Self {
            workflow: workflow.to_owned(),
            address: planned.and_then(|device| device.address.clone()),
            spares: planned.map(|device| device.spares.clone()).unwrap_or_default(),
            device,
            sends_rows: stage.sends == Sends::Rows,
            stage: stage.id.clone(),
            max_batch: stage.max_batch,
            model: operator.model.clone(),
        }
    }

    /// The factory of its device.
    ///
    /// # Errors
    /// [`UnknownDevice`].
    pub fn factory(&self) -> Result<Arc<dyn ExecutorFactory>, UnknownDevice> {
        factory_of(&self.device)
    }
}

/// The start of one executor.
pub struct ExecutorRequest {
    /// The stage and its model, as data.
    pub spec: ExecutorSpec,
    /// Operator id.
    pub operator: String,
    /// Loads the model in this process, if [`ExecutorFactory::loads_here`] is true.
    pub make: MakeInstance,
    /// Engine time, for the times of completions.
    pub clock: Arc<dyn Clock>,
    /// Counts the processor time that the model uses on this machine.
    pub processor: Arc<ProcessorTime>,
    /// Delays calls, if the worker is emulated. An executor that ignores it runs at its own speed.
    pub gate: Option<Arc<dyn CallGate>>,
    /// The run has begun before: an executor of the stage was lost, or the run is continued. A device that is away for a while must
    /// not end it.
    pub again: bool,
}

/// A model that was loaded before its run begins.
#[derive(Default)]
pub struct PreparedModel {
    /// The backend that computes it; none: the factory chooses when it starts the executor.
    pub backend: Option<ChosenBackend>,
    /// The loaded model, if it is in this process: the first executor of the stage takes it.
    pub instance: Option<Box<dyn Inference>>,
}

/// Starts the executors of all devices of one scheme: one executor for each partition of each stage with a model.
///
/// - [`ExecutorFactory::prepare`] and [`ExecutorFactory::start`] choose the backend and load the model, which may
///   take long. They are called before the run reads anything; an error then ends the start.
/// - An executor whose process, interpreter or machine died completes each unfinished and each later job as
///   [`JobResult::Lost`](super::JobResult::Lost): a slot that is restarted for another reason attaches to it again.
///   The run then drops it, starts another one here, [again](ExecutorRequest::again), and restarts the slot of the stage from the durable state:
///   nothing is lost or doubled. Consecutive losses without progress end the run, or, where the operator is restarted
///   on panics, lead to the record that causes them.
///
/// A factory of another crate is added by one call of [`register`] before the program starts.
pub trait ExecutorFactory: Send + Sync {
    /// The scheme of its devices: all of a device's name, or the part before the first `:`.
    fn scheme(&self) -> &str;

    /// Loads the model of a stage before its run begins, so that a wrong one is found early. The default leaves that
    /// to [`ExecutorFactory::start`].
    ///
    /// # Errors
    /// The model cannot be loaded; the text or the findings have a fix.
    fn prepare(&self, spec: &ExecutorSpec, make: &MakeInstance) -> Result<PreparedModel, OperatorError> {
        let _ = (spec, make);
        Ok(PreparedModel::default())
    }

    /// Starts an executor.
    ///
    /// # Errors
    /// The model cannot be loaded, or its runtime cannot be started; the text has a fix.
    fn start(&self, request: &ExecutorRequest) -> Result<Arc<dyn ModelExecutor>, OperatorError>;

    /// Returns whether it loads models in this process, by the `make` that it is given. For other factories this
    /// process opens nothing of the model: they have the [`ExecutorSpec`], and their `make` fails.
    fn loads_here(&self) -> bool {
        false
    }

    /// Returns whether its executors may be lost. Then the slots of the models keep what a restart needs.
    fn may_be_lost(&self) -> bool {
        true
    }
}

/// All factories, including those of this crate.
static FACTORIES: LazyLock<RwLock<Vec<Arc<dyn ExecutorFactory>>>> =
    LazyLock::new(|| RwLock::new(vec![Arc::new(cpu::LocalExecutors), Arc::new(emulated::EmulatedExecutors)]));

/// No factory is registered for a device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("nothing computes on the device '{device}': this program serves {known}")]
pub struct UnknownDevice {
    /// The device.
    pub device: String,
    /// The schemes that are registered.
    pub known: String,
}

/// Adds the factory of a scheme to this process. Returns whether it did: a scheme that has a factory keeps it.
pub fn register(factory: Arc<dyn ExecutorFactory>) -> bool {
    let mut all = FACTORIES.write().unwrap_or_else(PoisonError::into_inner);
    let is_new = all.iter().all(|other| other.scheme() != factory.scheme());
    if is_new {
        all.push(factory);
    }
    is_new
}

/// The factory of a device.
///
/// # Errors
/// [`UnknownDevice`] where nothing is registered for its scheme.
pub fn factory_of(device: &str) -> Result<Arc<dyn ExecutorFactory>, UnknownDevice> {
    let scheme = device.split_once(':').map_or(device, |(scheme, _)| scheme);
    let all = FACTORIES.read().unwrap_or_else(PoisonError::into_inner);
    let found = all.iter().find(|factory| factory.scheme() == scheme);
    found.cloned().ok_or_else(|| {
        // A plan names no emulated device: a run emulates those that it names.
        let served = all.iter().map(|factory| factory.scheme()).filter(|scheme| *scheme != EMULATED);
        let known: Vec<String> = served.map(|scheme| format!("'{scheme}'")).collect();
        UnknownDevice { device: device.to_owned(), known: known.join(", ") }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Odd;

    impl ExecutorFactory for Odd {
        fn scheme(&self) -> &str {
            "odd"
        }
        fn start(&self, _request: &ExecutorRequest) -> Result<Arc<dyn ModelExecutor>, OperatorError> {
            Err(OperatorError::new("it is odd"))
        }
    }

    #[test]
    fn a_scheme_has_one_factory() {
        assert!(factory_of(CPU).is_ok_and(|factory| factory.loads_here() && !factory.may_be_lost()));
        assert!(register(Arc::new(Odd)) && !register(Arc::new(Odd)));
        assert!(factory_of("odd").is_ok() && factory_of("odd:host/0").is_ok_and(|odd| !odd.loads_here()));
        let error = factory_of("remote:host/0").err().map(|error| error.to_string());
        let expected = "nothing computes on the device 'remote:host/0': this program serves 'cpu', 'odd'";
        assert_eq!(error.as_deref(), Some(expected));
    }

    #[test]
    fn a_spec_is_data() {
        let spec = ExecutorSpec {
            device: "odd:1".into(),
            workflow: "w".into(),
            address: None,
            spares: Vec::new(),
            sends_rows: true,
            stage: "s".into(),
            max_batch: 4,
            model: None,
        };
        let text = serde_json::to_string(&spec).expect("no map with odd keys");
        assert_eq!(serde_json::from_str::<ExecutorSpec>(&text).ok(), Some(spec));
    }
}
