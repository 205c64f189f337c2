//! A loaded model.
use super::super::placement::Placed;
use super::super::resident::Resident;
use super::super::{BackendError, Feedback, Session};
use super::values::{self, Kept};
use crate::tensor::Tensor;
use ort::memory::{AllocationDevice, AllocatorType, MemoryInfo, MemoryType};
use ort::session::{Session as OrtSession, SessionInputValue};
use ort::value::DynValue;
use std::collections::{BTreeMap, HashMap};
use tidemill_spec::types::ElementType;

/// Where the value of an output is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    /// In the memory of the host.
    Host,
    /// In the memory of the provider, where that differs.
    Provider,
}

/// A session of the library, and what it is called with.
pub(super) struct OnnxRuntimeSession {
    pub(super) session: OrtSession,
    pub(super) backend: &'static str,
    pub(super) placement: Vec<Placed>,
    /// The memory of its tensors, if that is not the host's.
    pub(super) memory: Option<AllocationDevice<'static>>,
    pub(super) inputs: Vec<String>,
    /// Whether each of them is bool; those get integers, with 0 as false.
    pub(super) truth: Vec<bool>,
    pub(super) outputs: Vec<String>,
    /// Values of inputs that the last step of a loop computed, by position.
    pub(super) kept: HashMap<usize, DynValue>,
    pub(super) name: String,
}

impl Session for OnnxRuntimeSession {
    fn run(&mut self, inputs: &[Tensor], outputs: &[usize]) -> Result<Vec<Tensor>, BackendError> {
        self.kept.clear();
        self.compute(inputs, outputs, &[])
    }

    /// Keeps the values of the library: the tensors of a cache are not copied.
    fn step(
        &mut self,
        inputs: &mut [Tensor],
        outputs: &[usize],
        feedback: &[Feedback],
        is_first: bool,
    ) -> Result<Vec<Tensor>, BackendError> {
        if is_first {
            self.kept.clear();
        }
        self.compute(inputs, outputs, feedback)
    }

    fn placement(&self) -> &[Placed] {
        &self.placement
    }

    fn keeps_values(&self) -> bool {
        true
    }

    fn upload(&mut self, tensor: Tensor) -> Result<Resident, BackendError> {
        let is_text = tensor.data().element() == ElementType::Text;
        let uploaded = values::owned(tensor, false).and_then(|value| match &self.memory {
            Some(memory) if !is_text => values::moved(&value, memory.clone()),
            _ => Ok(value),
        });
        let uploaded = uploaded.map_err(|error| failed(self.backend, &self.name, error))?;
        Ok(Kept::new(uploaded, self.backend, &self.name)
            .map_err(|reason| failed(self.backend, &self.name, reason))?
            .into())
    }

    fn run_resident(
        &mut self,
        inputs: &[Resident],
        outputs: &[usize],
    ) -> Result<Vec<Resident>, BackendError> {
        self.kept.clear();
        self.has_ports(inputs.len(), outputs.iter().copied())?;
        let memory = self.memory()?;
        let inputs = self.inputs.iter().zip(inputs).zip(&self.truth).map(|((port, resident), truth)| {
            let near = resident.held::<Kept>().and_then(|kept| kept.input(memory.as_ref(), *truth));
            let value = match near {
                Some(value) => value.into(),
                None => values::owned(resident.read()?, *truth)
                    .map_err(|error| failed(self.backend, &self.name, error))?
                    .into(),
            };
            Ok((port.as_str(), value))
        });
        let inputs = inputs.collect::<Result<Vec<_>, BackendError>>()?;
        let wanted = outputs.iter().map(|at| (*at, Place::Provider)).collect();
        let results = run(&mut self.session, memory.as_ref(), inputs, &wanted, &self.outputs);
        let results = results.map_err(|reason| failed(self.backend, &self.name, reason))?;
        let kept = results.into_iter().map(|(at, value)| {
            let kept = Kept::new(value, self.backend, &self.name)
                .map_err(|reason| failed(self.backend, &self.name, reason))?;
            Ok((at, Resident::from(kept)))
        });
        let kept = kept.collect::<Result<BTreeMap<usize, Resident>, BackendError>>()?;
        Ok(outputs.iter().filter_map(|at| kept.get(at).cloned()).collect())
    }
}

fn failed(backend: &'static str, model: &str, reason: impl ToString) -> BackendError {
    BackendError::Run { backend, model: model.to_owned(), reason: reason.to_string() }
}

impl OnnxRuntimeSession {
    /// Checks the number of inputs and the positions of outputs.
    fn has_ports(&self, inputs: usize, mut outputs: impl Iterator<Item = usize>) -> Result<(), BackendError> {
        if inputs != self.inputs.len() {
            return Err(failed(
                self.backend,
                &self.name,
                format!("{inputs} inputs given, it has {}", self.inputs.len()),
            ));
        }
        match outputs.find(|at| *at >= self.outputs.len()) {
            Some(at) => Err(failed(self.backend, &self.name, format!("it has no output {at}"))),
            None => Ok(()),
        }
    }

    /// The memory of the provider, if that is not the host's.
    fn memory(&self) -> Result<Option<MemoryInfo<'static>>, BackendError> {
        let memory = self.memory.as_ref().map(|device| memory(device.clone())).transpose();
        memory.map_err(|error| failed(self.backend, &self.name, error))
    }

    fn compute(
        &mut self,
        inputs: &[Tensor],
        outputs: &[usize],
        feedback: &[Feedback],
    ) -> Result<Vec<Tensor>, BackendError> {
        self.has_ports(inputs.len(), outputs.iter().copied().chain(feedback.iter().map(|fed| fed.output)))?;
        let memory = self.memory()?;
        let values = self.inputs.iter().zip(inputs).zip(&self.truth).enumerate();
        let values = values.map(|(at, ((port, tensor), truth))| {
            let value = match self.kept.get(&at) {
                Some(kept) => Ok(kept.into()),
                // Bound values must own their tensors: the bindings wait for their own lock where they copy a borrowed one.
                None if memory.is_some() => values::owned(tensor.clone(), *truth).map(Into::into),
                None => values::borrowed(tensor, *truth),
            };
            let value = value.map_err(|error| failed(self.backend, &self.name, error))?;
            Ok((port.as_str(), value))
        });
        let values = values.collect::<Result<Vec<_>, BackendError>>()?;
        let mut wanted: BTreeMap<usize, Place> =
            feedback.iter().map(|fed| (fed.output, Place::Provider)).collect();
        // One that is read and fed back is fed back from the host.
        wanted.extend(outputs.iter().map(|at| (*at, Place::Host)));
        let results = run(&mut self.session, memory.as_ref(), values, &wanted, &self.outputs);
        let mut results = results.map_err(|reason| failed(self.backend, &self.name, reason))?;
        let found = outputs.iter().map(|at| match results.get(at) {
            Some(value) => values::tensor(value).map_err(|reason| failed(self.backend, &self.name, reason)),
            None => Err(failed(self.backend, &self.name, format!("it has no output {at}"))),
        });
        let found = found.collect::<Result<_, _>>()?;
        for Feedback { output, input } in feedback {
            if let Some(value) = results.remove(output) {
                self.kept.insert(*input, value);
            }
        }
        Ok(found)
    }
}

fn memory(device: AllocationDevice<'static>) -> ort::Result<MemoryInfo<'static>> {
    MemoryInfo::new(device, 0, AllocatorType::Device, MemoryType::Default)
}

/// Runs a session and returns the outputs that are wanted, by position. Where the provider has its own memory, inputs and
/// outputs are bound to it: those that stay there are not copied.
fn run(
    session: &mut OrtSession,
    device: Option<&MemoryInfo<'_>>,
    inputs: Vec<(&str, SessionInputValue<'_>)>,
    wanted: &BTreeMap<usize, Place>,
    names: &[String],
) -> Result<BTreeMap<usize, DynValue>, String> {
    let text = |error: ort::Error| error.to_string();
    let binding = match device {
        None => None,
        Some(device) => {
            let host = memory(AllocationDevice::CPU).map_err(text)?;
            let mut binding = session.create_binding().map_err(text)?;
            for (name, value) in &inputs {
                binding.bind_input(*name, &**value).map_err(text)?;
            }
            for (at, place) in wanted {
                let memory = if *place == Place::Host { &host } else { device };
                binding.bind_output_to_device(names[*at].as_str(), memory).map_err(text)?;
            }
            binding.synchronize_inputs().map_err(text)?;
            Some(binding)
        }
    };
    let mut results = match &binding {
        Some(binding) => session.run_binding(binding),
        None => session.run(inputs),
    }
    .map_err(text)?;
    let of = |at: &usize| {
        let name = &names[*at];
        let value = results.remove(name).ok_or_else(|| format!("it returned no {name}"))?;
        Ok((*at, value))
    };
    wanted.keys().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::super::super::resident::Held as _;
    use super::super::OnnxRuntime;
    use super::*;
    use crate::facts::inspect;
    use crate::tensor::TensorData;
    use std::path::{Path, PathBuf};

    fn testdata(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name)
    }

    /// A session as it is, and one that binds its tensors as to the memory of a card, which here is that of the host; none where
    /// the library is not here.
    fn pair(file: &str) -> Option<[OnnxRuntimeSession; 2]> {
        let runtime = OnnxRuntime::open(&testdata("")).ok()?;
        let facts = inspect(&testdata(file)).unwrap();
        let (plain, mut bound) =
            (runtime.open_session(&facts).unwrap(), runtime.open_session(&facts).unwrap());
        assert_eq!(plain.memory, None);
        bound.memory = Some(AllocationDevice::CPU);
        Some([plain, bound])
    }

    fn tensor(shape: &[usize], from: u8) -> Tensor {
        let values = (from..).take(shape.iter().product()).map(|value| f32::from(value) * 0.3 - 1.0);
        Tensor::new(shape.to_vec(), TensorData::Float32(values.collect())).unwrap()
    }

    #[test]
    fn bound_tensors_give_what_copied_ones_give() {
        let Some([mut plain, mut bound]) = pair("text_sum.onnx") else { return };
        let text = Tensor::new(vec![1, 6], TensorData::Int64(vec![0, 1, 1, 0, 1, 0])).unwrap();
        let inputs = [text, tensor(&[1, 2], 7)];
        let expected = plain.run(&inputs, &[0]).unwrap();
        for _ in 0..3 {
            assert_eq!(bound.run(&inputs, &[0]).unwrap(), expected);
        }
        let uploaded: Vec<Resident> =
            inputs.iter().map(|tensor| bound.upload(tensor.clone()).unwrap()).collect();
        let first = bound.run_resident(&uploaded, &[0]).unwrap();
        let second = bound.run_resident(&uploaded, &[0, 0]).unwrap();
        assert_eq!(first[0].read().unwrap(), expected[0], "a later run leaves it as it was");
        assert_eq!(second.len(), 2);
        assert_eq!(second[1].read().unwrap(), expected[0]);
        assert!(bound.run_resident(&uploaded, &[1]).is_err(), "it has one output");
        assert!(bound.run(&inputs[..1], &[0]).is_err(), "it has two inputs");
    }

    #[test]
    fn a_loop_keeps_bound_tensors_as_it_keeps_others() {
        let Some([mut plain, mut bound]) = pair("running_sum.onnx") else { return };
        let at = |names: &[String], name: &str| names.iter().position(|other| other == name).unwrap();
        let feedback = [Feedback { output: at(&plain.outputs, "after"), input: at(&plain.inputs, "before") }];
        let sum = at(&plain.outputs, "sum");
        let mut last = None;
        for step in 0..4 {
            let mut inputs = vec![tensor(&[1, 2], step); 2];
            inputs[feedback[0].input] = Tensor::zeros(ElementType::Float32, vec![1, 2]);
            let mut same = inputs.clone();
            let expected = plain.step(&mut inputs, &[sum], &feedback, step == 0).unwrap();
            assert_eq!(bound.step(&mut same, &[sum], &feedback, step == 0).unwrap(), expected);
            assert_ne!(last.replace(expected.clone()), Some(expected), "the sum grows");
        }
        // An output that is fed back can be read as well.
        let mut inputs = vec![tensor(&[1, 2], 1); 2];
        let outputs = [sum, feedback[0].output];
        let expected = plain.step(&mut inputs.clone(), &outputs, &feedback, false).unwrap();
        assert_eq!(bound.step(&mut inputs, &outputs, &feedback, false).unwrap(), expected);
    }

    #[test]
    fn integers_that_were_uploaded_are_truth_values_where_the_model_reads_those() {
        if OnnxRuntime::open(&testdata("")).is_err() {
            return;
        }
        let tensor = Tensor::new(vec![2], TensorData::Int64(vec![0, 2])).unwrap();
        let kept = Kept::new(values::owned(tensor.clone(), false).unwrap(), "ort", "x").unwrap();
        assert!(kept.input(None, false).is_some() && kept.input(None, true).is_none());
        let truths = values::tensor(&values::owned(kept.read().unwrap(), true).unwrap()).unwrap();
        assert_eq!(truths.data(), &TensorData::Bool(vec![false, true]));
    }
}
