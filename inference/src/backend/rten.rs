//! The built-in backend: rten, pure Rust, always there.
//!
//! It computes with 32-bit integers where the model says int64: inputs beyond are refused, and what is computed beyond them wraps
//! or stops at the limits, unnoticed.
use super::{Backend, BackendError, Registration, Session, model_name};
use crate::facts::{ModelFacts, Port, PortElement};
use crate::tensor::{Tensor, TensorData};
use rten::{Model, NodeId, RunOptions, ThreadPool, Value, ValueOrView};
use rten_tensor::prelude::*;
use rten_tensor::{Tensor as RtenTensor, TensorView};
use std::sync::Arc;
use std::time::Duration;
use tidemill_spec::types::ElementType;

/// Name in manifests and plans.
pub const NAME: &str = "rten";
/// Pinned in the workspace's `Cargo.toml`.
const VERSION: &str = "0.27.0";

/// How it is found.
pub const REGISTRATION: Registration =
    Registration { name: NAME, summary: "RTen, pure Rust.", open: |_| Ok(Arc::new(Rten)) };

/// The backend.
#[derive(Debug, Clone, Copy)]
pub struct Rten;

impl Backend for Rten {
    fn name(&self) -> &'static str {
        NAME
    }

    fn version(&self) -> String {
        VERSION.to_owned()
    }

    fn load(&self, facts: &ModelFacts) -> Result<Box<dyn Session>, BackendError> {
        let refused = |reason: String| BackendError::Load {
            backend: NAME,
            path: facts.path.display().to_string(),
            reason,
        };
        let halves = |port: &&Port| port.element == PortElement::Known(ElementType::Float16);
        if let Some(port) = facts.inputs.iter().chain(&facts.outputs).find(halves) {
            return Err(refused(format!("{} is float16, which it does not compute with", port.name)));
        }
        let model = Model::load_file(&facts.path).map_err(|error| refused(error.to_string()))?;
        let ids = |ports: &[Port]| -> Result<Vec<NodeId>, BackendError> {
            ports
                .iter()
                .map(|port| {
                    model
                        .find_node(&port.name)
                        .ok_or_else(|| refused(format!("it dropped the input or output {:?}", port.name)))
                })
                .collect()
        };
        let (inputs, outputs) = (ids(&facts.inputs)?, ids(&facts.outputs)?);
        let threads = Arc::new(ThreadPool::with_num_threads(1));
        let name = model_name(&facts.path);
        Ok(Box::new(RtenSession { model, inputs, outputs, threads, used: Duration::ZERO, name }))
    }
}

struct RtenSession {
    model: Model,
    inputs: Vec<NodeId>,
    outputs: Vec<NodeId>,
    threads: Arc<ThreadPool>,
    /// Processor time of the pool's thread so far.
    used: Duration,
    name: String,
}

impl RtenSession {
    fn failed(&self, reason: impl Into<String>) -> BackendError {
        BackendError::Run { backend: NAME, model: self.name.clone(), reason: reason.into() }
    }

    fn value<'a>(&self, tensor: &'a Tensor) -> Result<ValueOrView<'a>, BackendError> {
        match tensor.data() {
            TensorData::Float32(values) => TensorView::try_from_data(tensor.shape(), values.as_slice())
                .map(ValueOrView::from)
                .map_err(|error| self.failed(error.to_string())),
            TensorData::Uint8(values) => TensorView::try_from_data(tensor.shape(), values.as_slice())
                .map(ValueOrView::from)
                .map_err(|error| self.failed(error.to_string())),
            TensorData::Float16(_) => Err(self.failed("an input is float16, which rten cannot take")),
            TensorData::Int64(values) => {
                let narrow =
                    values.iter().map(|v| i32::try_from(*v)).collect::<Result<Vec<i32>, _>>().map_err(
                        |_| self.failed("an integer input is beyond 32 bits, which rten cannot take"),
                    )?;
                RtenTensor::try_from_data(tensor.shape(), narrow)
                    .map(ValueOrView::from)
                    .map_err(|error| self.failed(error.to_string()))
            }
        }
    }

    fn tensor(&self, value: Value) -> Result<Tensor, BackendError> {
        let (shape, data) = match value {
            Value::FloatTensor(t) => (t.shape().to_vec(), TensorData::Float32(t.into_data())),
            Value::Int32Tensor(t) => {
                let shape = t.shape().to_vec();
                (shape, TensorData::Int64(t.into_data().into_iter().map(i64::from).collect()))
            }
            Value::UInt8Tensor(t) => (t.shape().to_vec(), TensorData::Uint8(t.into_data())),
            _ => return Err(self.failed("an output is neither float32, int64 nor uint8")),
        };
        Tensor::new(shape, data).map_err(|error| self.failed(error.to_string()))
    }
}

impl Session for RtenSession {
    fn run(&mut self, inputs: &[Tensor], outputs: &[usize]) -> Result<Vec<Tensor>, BackendError> {
        if inputs.len() != self.inputs.len() {
            return Err(self.failed(format!("{} inputs given, it has {}", inputs.len(), self.inputs.len())));
        }
        let values = self
            .inputs
            .iter()
            .zip(inputs)
            .map(|(id, tensor)| Ok((*id, self.value(tensor)?)))
            .collect::<Result<Vec<_>, BackendError>>()?;
        let wanted: Vec<NodeId> = outputs
            .iter()
            .map(|i| {
                self.outputs.get(*i).copied().ok_or_else(|| self.failed(format!("it has no output {i}")))
            })
            .collect::<Result<_, _>>()?;
        // rten refuses to give the same output twice.
        let mut once = wanted.clone();
        once.sort_unstable();
        once.dedup();
        let options = RunOptions::default().with_thread_pool(Some(self.threads.clone()));
        let caller = std::thread::current().id();
        let model = &self.model;
        let (results, used) = self.threads.run(|| {
            let begun = tidemill_machine::thread_time();
            let results = model.run(values, &once, Some(options));
            let used = tidemill_machine::thread_time().saturating_sub(begun);
            // Without a pool it is the caller's own time.
            (results, if std::thread::current().id() == caller { Duration::ZERO } else { used })
        });
        self.used += used;
        let results = results.map_err(|error| self.failed(error.to_string()))?;
        if once == wanted {
            return results.into_iter().map(|value| self.tensor(value)).collect();
        }
        let tensors = results.into_iter().map(|value| self.tensor(value)).collect::<Result<Vec<_>, _>>()?;
        let place = |id| once.iter().position(|other| *other == id);
        Ok(wanted.into_iter().filter_map(place).map(|i| tensors[i].clone()).collect())
    }

    fn processor_time_elsewhere(&self) -> Duration {
        self.used
    }
}
