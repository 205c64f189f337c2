//! The built-in backend: rten, pure Rust, always available.
//!
//! It computes int64 in 32 bits: larger inputs are refused, and so are models and inputs whose integers may exceed 32 bits;
//! see [`super::ranges`].
use super::graph::{self, Graph};
use super::known_faults::{self, Doubtful};
use super::panic::caught;
use super::{Backend, BackendError, Registration, Session, model_name, ranges};
use crate::facts::{ModelFacts, Port, PortElement};
use crate::ort_format;
use crate::tensor::{Tensor, TensorData};
use crate::zip_map;
use rten::{Model, NodeId, RunOptions, ThreadPool, Value, ValueOrView};
use rten_tensor::prelude::*;
use rten_tensor::{Tensor as RtenTensor, TensorView};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tidemill_spec::types::ElementType;

/// Name in manifests and plans.
pub const NAME: &str = "rten";
/// Pinned in the workspace's `Cargo.toml`.
const VERSION: &str = "0.27.0";
/// The least and the largest byte.
const BYTES: (i64, i64) = (0, 255);
/// The least and the largest byte with a sign.
const SIGNED_BYTES: (i64, i64) = (-128, 127);

/// Its registration.
pub const REGISTRATION: Registration = Registration::onnx(NAME, "RTen, pure Rust.", |_| Ok(Arc::new(Rten)));

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
        let unknown = |port: &&Port| {
            use ElementType::{Float16, Float64, Text};
            matches!(port.element, PortElement::Known(Float16 | Float64 | Text))
        };
        if let Some(port) = facts.inputs.iter().chain(&facts.outputs).find(unknown) {
            return Err(refused(format!("{} is {}, which it does not support", port.name, port.element)));
        }
        let mut bytes = std::fs::read(&facts.path).map_err(|error| refused(error.to_string()))?;
        if ort_format::is_ort(&bytes) {
            return Err(refused("only the backend ort reads ONNX Runtime's own format (`.ort`)".to_owned()));
        }
        let mut changed = None;
        if !facts.maps.is_empty() {
            bytes = zip_map::as_tensors(&bytes).map_err(|error| refused(error.to_string()))?;
            changed = Some(bytes.clone());
        }
        let graph = graph::read(&bytes).map_err(|error| refused(error.to_string()))?;
        drop(bytes);
        let smallest = |port: &Port| match &port.element {
            PortElement::Known(ElementType::Int64 | ElementType::Int32) => Some((port.name.clone(), (0, 0))),
            PortElement::Known(ElementType::Uint8) => Some((port.name.clone(), BYTES)),
            PortElement::Known(ElementType::Int8) => Some((port.name.clone(), SIGNED_BYTES)),
            PortElement::Known(ElementType::Bool) => Some((port.name.clone(), (0, 1))),
            _ => None,
        };
        let smallest = facts.inputs.iter().filter_map(smallest).collect();
        if let Some(why) = known_faults::refused(NAME, &graph, &smallest) {
            return Err(refused(why));
        }
        let threads = Arc::new(ThreadPool::with_num_threads(1));
        // Within the pool, so that its panics are on the thread that catches them.
        let loaded = threads.run(|| {
            caught(|| match changed {
                Some(bytes) => Model::load(bytes),
                None => Model::load_file(&facts.path),
            })
        });
        let model = loaded.map_err(refused)?.map_err(|error| refused(error.to_string()))?;
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
        let doubtful = known_faults::doubtful(&graph)
            .into_iter()
            .map(|doubtful| match model.find_node(&doubtful.output) {
                Some(id) => Ok((id, doubtful)),
                None => Err(refused(format!("the shape of `{}` is not known", doubtful.output))),
            })
            .collect::<Result<_, _>>()?;
        Ok(Box::new(RtenSession {
            model,
            names: facts.inputs.iter().map(|port| port.name.clone()).collect(),
            inputs,
            outputs,
            elements: facts.outputs.iter().map(declared).collect(),
            graph,
            proven: HashMap::new(),
            doubtful,
            threads,
            used: Duration::ZERO,
            name: model_name(&facts.path),
        }))
    }
}

/// The element type of a port, int64 for one that has no name here: in this backend all of them are in 32 bits.
fn declared(port: &Port) -> ElementType {
    match port.element {
        PortElement::Known(element) => element,
        PortElement::Other(_) => ElementType::Int64,
    }
}

struct RtenSession {
    model: Model,
    inputs: Vec<NodeId>,
    names: Vec<String>,
    outputs: Vec<NodeId>,
    /// Element types of the outputs as the file declares them.
    elements: Vec<ElementType>,
    graph: Graph,
    /// Proven ranges of integer inputs, by name, for which all integers fit into 32 bits.
    proven: HashMap<String, (i64, i64)>,
    /// Operators whose ranks are known after the first run.
    doubtful: Vec<(NodeId, Doubtful)>,
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
            TensorData::Int8(values) => TensorView::try_from_data(tensor.shape(), values.as_slice())
                .map(ValueOrView::from)
                .map_err(|error| self.failed(error.to_string())),
            TensorData::Int32(values) => TensorView::try_from_data(tensor.shape(), values.as_slice())
                .map(ValueOrView::from)
                .map_err(|error| self.failed(error.to_string())),
            TensorData::Bool(values) => {
                let integers: Vec<i32> = values.iter().map(|value| i32::from(*value)).collect();
                RtenTensor::try_from_data(tensor.shape(), integers)
                    .map(ValueOrView::from)
                    .map_err(|error| self.failed(error.to_string()))
            }
            TensorData::Float16(_) | TensorData::Float64(_) | TensorData::Text(_) => {
                let element = tensor.data().element();
                Err(self.failed(format!("an input is {element}, which rten does not support")))
            }
            TensorData::Int64(values) => {
                let narrow = values
                    .iter()
                    .map(|v| i32::try_from(*v))
                    .collect::<Result<Vec<i32>, _>>()
                    .map_err(|_| {
                        self.failed("an integer input needs more than 32 bits, which rten does not support")
                    })?;
                RtenTensor::try_from_data(tensor.shape(), narrow)
                    .map(ValueOrView::from)
                    .map_err(|error| self.failed(error.to_string()))
            }
        }
    }

    /// `element`: type that the file declares; rten has all of its integers and truth values in 32 bits.
    fn tensor(&self, value: Value, element: ElementType) -> Result<Tensor, BackendError> {
        let (shape, data) = match value {
            Value::FloatTensor(t) => (t.shape().to_vec(), TensorData::Float32(t.into_data())),
            Value::Int32Tensor(t) if element == ElementType::Int32 => {
                (t.shape().to_vec(), TensorData::Int32(t.into_data()))
            }
            Value::Int32Tensor(t) if element == ElementType::Bool => {
                let shape = t.shape().to_vec();
                (shape, TensorData::Bool(t.into_data().into_iter().map(|value| value != 0).collect()))
            }
            Value::Int32Tensor(t) => {
                let shape = t.shape().to_vec();
                if t.iter().any(|value| matches!(*value, i32::MIN | i32::MAX)) {
                    return Err(self.failed(
                        "an int64 output is at the limit of the 32 bits in which it computes: the right value can be larger",
                    ));
                }
                (shape, TensorData::Int64(t.into_data().into_iter().map(i64::from).collect()))
            }
            Value::UInt8Tensor(t) => (t.shape().to_vec(), TensorData::Uint8(t.into_data())),
            Value::Int8Tensor(t) => (t.shape().to_vec(), TensorData::Int8(t.into_data())),
            _ => return Err(self.failed("an output is no tensor of floats, integers or truth values")),
        };
        Tensor::new(shape, data).map_err(|error| self.failed(error.to_string()))
    }
}

/// Returns the range up to the next power of two.
fn with_room(least: i64, most: i64) -> (i64, i64) {
    let room = |value: i64| {
        value.unsigned_abs().checked_next_power_of_two().and_then(|room| i64::try_from(room).ok())
    };
    (
        if least < 0 { room(least).map_or(least, |room| -room) } else { least },
        if most > 0 { room(most).unwrap_or(most) } else { most },
    )
}

impl RtenSession {
    /// Refuses integers for which the model may compute others that do not fit into 32 bits.
    fn prove(&mut self, inputs: &[Tensor]) -> Result<(), BackendError> {
        let mut now: HashMap<String, (i64, i64)> = HashMap::new();
        for (name, tensor) in self.names.iter().zip(inputs) {
            let range = match tensor.data() {
                TensorData::Int64(values) => values.iter().copied().min().zip(values.iter().copied().max()),
                TensorData::Int32(values) => values
                    .iter()
                    .copied()
                    .min()
                    .zip(values.iter().copied().max())
                    .map(|(least, most)| (i64::from(least), i64::from(most))),
                TensorData::Uint8(_) => Some(BYTES),
                TensorData::Int8(_) => Some(SIGNED_BYTES),
                TensorData::Bool(_) => Some((0, 1)),
                _ => None,
            };
            now.extend(range.map(|range| (name.clone(), range)));
        }
        let mut all = now.clone();
        for (name, (least, most)) in &self.proven {
            let range = all.entry(name.clone()).or_insert((*least, *most));
            *range = (range.0.min(*least), range.1.max(*most));
        }
        if all != self.proven {
            // Positions and numbers of tokens grow from run to run: a range with some room is proven once for many.
            let mut roomy = all.clone();
            roomy.values_mut().for_each(|(least, most)| (*least, *most) = with_room(*least, *most));
            if ranges::overflow(&self.graph, &roomy).is_none() {
                self.proven = roomy;
            } else if ranges::overflow(&self.graph, &all).is_none() {
                self.proven = all;
            } else if let Some(why) = ranges::overflow(&self.graph, &now) {
                return Err(self.failed(format!("with these integers as inputs, {why}")));
            }
        }
        Ok(())
    }
}

impl Session for RtenSession {
    fn run(&mut self, inputs: &[Tensor], outputs: &[usize]) -> Result<Vec<Tensor>, BackendError> {
        if inputs.len() != self.inputs.len() {
            return Err(self.failed(format!("{} inputs given, it has {}", inputs.len(), self.inputs.len())));
        }
        self.prove(inputs)?;
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
        // rten refuses to return one output twice.
        let mut once = wanted.clone();
        once.extend(self.doubtful.iter().map(|(id, _)| *id));
        once.sort_unstable();
        once.dedup();
        let options = RunOptions::default().with_thread_pool(Some(self.threads.clone()));
        let caller = std::thread::current().id();
        let model = &self.model;
        let (results, used) = self.threads.run(|| {
            let begun = tidemill_machine::thread_time();
            let results = caught(|| model.run(values, &once, Some(options)));
            let used = tidemill_machine::thread_time().saturating_sub(begun);
            // Without a pool it is the caller's own time.
            (results, if std::thread::current().id() == caller { Duration::ZERO } else { used })
        });
        self.used += used;
        let results =
            results.map_err(|why| self.failed(why))?.map_err(|error| self.failed(error.to_string()))?;
        let place = |id: NodeId| once.iter().position(|other| *other == id);
        for (id, doubtful) in &self.doubtful {
            let shape = place(*id).map(|i| results[i].shape().to_vec()).unwrap_or_default();
            if let Some(why) = doubtful.why(&shape) {
                return Err(self.failed(why));
            }
        }
        self.doubtful.clear();
        if once == wanted {
            return results
                .into_iter()
                .zip(outputs)
                .map(|(value, at)| self.tensor(value, self.elements[*at]))
                .collect();
        }
        let mut tensors = HashMap::new();
        for (id, value) in once.into_iter().zip(results) {
            if let Some(at) = wanted.iter().position(|other| *other == id) {
                tensors.insert(id, self.tensor(value, self.elements[outputs[at]])?);
            }
        }
        Ok(wanted.iter().filter_map(|id| tensors.get(id).cloned()).collect())
    }

    fn processor_time_elsewhere(&self) -> Duration {
        self.used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_have_room_up_to_the_next_power_of_two() {
        assert_eq!(with_room(0, 5), (0, 8));
        assert_eq!(with_room(-3, 0), (-4, 0));
        assert_eq!(with_room(7, 8), (7, 8));
        assert_eq!(with_room(i64::MIN, i64::MAX), (i64::MIN, i64::MAX));
    }
}
