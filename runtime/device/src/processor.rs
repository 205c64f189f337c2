//! Devices of libraries that compute on the processor, for the programs of [`crate::own`].
use crate::device::{Artifact, Device, DeviceError, Limits, Loadable, ModelId, Run, Snapshot, TensorId};
use crate::value::{Element, Value};
use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// A library that loads models and runs them.
pub trait Library: Send {
    /// Name of the back end in manifests and plans.
    const NAME: &'static str;
    /// A tensor, as the library computes it.
    type Tensor: Send;
    /// A loaded model.
    type Model: Send;

    /// Converts a value to a tensor.
    ///
    /// # Errors
    /// The reason why it is none of this library.
    fn tensor(&self, value: Value) -> Result<Self::Tensor, String>;
    /// Converts a tensor to a value.
    ///
    /// # Errors
    /// The reason why a session does not carry it.
    fn value(&self, tensor: &Self::Tensor) -> Result<Value, String>;
    /// Returns the same tensor once more, by another handle.
    fn share(&self, tensor: &Self::Tensor) -> Self::Tensor;
    /// Returns the bytes of a tensor.
    fn bytes(&self, tensor: &Self::Tensor) -> u64;
    /// Loads the first file of a model.
    ///
    /// # Errors
    /// The reason, with a fix.
    fn load(&self, path: &Path, artifact: &Artifact) -> Result<Self::Model, String>;
    /// Computes all outputs. There are as many inputs as the model has; `outputs`: the number of outputs in its manifest.
    ///
    /// # Errors
    /// The reason.
    fn run(
        &self,
        model: &mut Self::Model,
        inputs: &[&Self::Tensor],
        outputs: usize,
    ) -> Result<Vec<Self::Tensor>, String>;
}

/// Facts of the processor as a device of one back end.
pub fn snapshot(backend: &str, version: &str, limits: &Limits) -> Snapshot {
    Snapshot {
        name: "cpu".to_owned(),
        kind: "cpu".to_owned(),
        backends: vec![(backend.to_owned(), version.to_owned())],
        memory: limits.memory,
        share: limits.share,
        window: limits.window,
    }
}

/// Checks that a model has given as many tensors as its manifest has outputs.
///
/// # Errors
/// Both numbers.
pub fn check_outputs(found: usize, outputs: usize) -> Result<(), String> {
    if found == outputs {
        return Ok(());
    }
    Err(format!("it gives {found} tensors, but its manifest has {outputs} outputs"))
}

/// A loaded model, and what its manifest says of it.
struct Loaded<M> {
    name: String,
    model: M,
    inputs: usize,
    outputs: usize,
    bytes: u64,
}

/// A device that computes by a library, each run when it is called.
pub struct Processor<L: Library> {
    library: L,
    models: HashMap<ModelId, Loaded<L::Model>>,
    tensors: HashMap<TensorId, L::Tensor>,
    /// Bytes of tensors.
    held: u64,
}

impl<L: Library> Processor<L> {
    /// A device without models and tensors.
    pub fn new(library: L) -> Self {
        Self { library, models: HashMap::new(), tensors: HashMap::new(), held: 0 }
    }

    fn keep(&mut self, id: TensorId, tensor: L::Tensor) {
        self.held += self.library.bytes(&tensor);
        self.free(id);
        self.tensors.insert(id, tensor);
    }
}

impl<L: Library> Device for Processor<L> {
    fn create(&mut self, tensor: TensorId, element: Element, shape: &[usize]) -> Result<(), DeviceError> {
        let zeros = Value::zeros(element, shape.to_vec());
        self.upload(tensor, zeros.map_err(|error| DeviceError::Value(error.to_string()))?)
    }

    fn upload(&mut self, tensor: TensorId, value: Value) -> Result<(), DeviceError> {
        let made = self.library.tensor(value).map_err(DeviceError::Value)?;
        self.keep(tensor, made);
        Ok(())
    }

    fn load(&mut self, model: ModelId, loadable: &Loadable) -> Result<(), DeviceError> {
        let artifact = &loadable.artifact;
        let failed = |reason: String| DeviceError::Load { model: artifact.name.clone(), reason };
        if self.models.contains_key(&model) {
            return Err(DeviceError::Taken(model.0));
        }
        if ![L::NAME, "auto"].contains(&artifact.backend.as_str()) {
            return Err(failed(format!(
                "this device has no back end {}; it has {}",
                artifact.backend,
                L::NAME
            )));
        }
        let loaded = Loaded {
            name: artifact.name.clone(),
            model: self.library.load(&loadable.path, artifact).map_err(failed)?,
            inputs: artifact.inputs.len(),
            outputs: artifact.outputs.len(),
            bytes: artifact.files.iter().map(|file| file.bytes).sum(),
        };
        self.models.insert(model, loaded);
        Ok(())
    }

    fn run(&mut self, run: &Run) -> Result<Duration, DeviceError> {
        let loaded = self.models.get_mut(&run.model).ok_or(DeviceError::NoModel(run.model.0))?;
        let Loaded { name, model, inputs, outputs, .. } = loaded;
        let failed = |reason: String| DeviceError::Run { model: name.clone(), reason };
        let is_wrong = |(position, _): &(u32, TensorId)| *position as usize >= *outputs;
        if run.inputs.len() != *inputs || run.outputs.iter().any(is_wrong) {
            return Err(failed(format!("it has {inputs} inputs and {outputs} outputs")));
        }
        let given = run.inputs.iter().map(|id| self.tensors.get(id).ok_or(DeviceError::NoTensor(id.0)));
        let given = given.collect::<Result<Vec<_>, _>>()?;
        let began = now();
        let results = self.library.run(model, &given, *outputs).map_err(failed)?;
        let computed = began.elapsed();
        check_outputs(results.len(), *outputs).map_err(failed)?;
        for (position, id) in &run.outputs {
            self.keep(*id, self.library.share(&results[*position as usize]));
        }
        Ok(computed)
    }

    fn read(&mut self, tensor: TensorId) -> Result<Value, DeviceError> {
        let found = self.tensors.get(&tensor).ok_or(DeviceError::NoTensor(tensor.0))?;
        self.library.value(found).map_err(DeviceError::Value)
    }

    fn flush(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn free(&mut self, tensor: TensorId) {
        if let Some(freed) = self.tensors.remove(&tensor) {
            self.held = self.held.saturating_sub(self.library.bytes(&freed));
        }
    }

    fn unload(&mut self, model: ModelId) {
        self.models.remove(&model);
    }

    fn memory(&self) -> u64 {
        self.held + self.models.values().map(|model| model.bytes).sum::<u64>()
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the time of a computation is real time; no record depends on it"
)]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::ModelFile;

    /// Gives back its inputs; those of a model named `lossy` but the last.
    struct Echo;

    impl Library for Echo {
        const NAME: &'static str = "echo";
        type Tensor = Value;
        type Model = bool;

        fn tensor(&self, value: Value) -> Result<Value, String> {
            match value.element() {
                Element::Text => Err("it has no texts".to_owned()),
                _ => Ok(value),
            }
        }

        fn value(&self, tensor: &Value) -> Result<Value, String> {
            Ok(tensor.clone())
        }

        fn share(&self, tensor: &Value) -> Value {
            tensor.clone()
        }

        fn bytes(&self, tensor: &Value) -> u64 {
            tensor.bytes().len() as u64
        }

        fn load(&self, path: &Path, artifact: &Artifact) -> Result<bool, String> {
            match path.extension() {
                Some(_) => Ok(artifact.name == "lossy"),
                None => Err("it has no name that ends".to_owned()),
            }
        }

        fn run(&self, model: &mut bool, inputs: &[&Value], outputs: usize) -> Result<Vec<Value>, String> {
            Ok(inputs[..outputs - usize::from(*model)].iter().map(|input| (*input).clone()).collect())
        }
    }

    fn loadable(name: &str, backend: &str, path: &str) -> Loadable {
        let ports = vec!["a".to_owned(), "b".to_owned()];
        let file = ModelFile { name: "m".to_owned(), hash: String::new(), bytes: 100 };
        let artifact = Artifact {
            name: name.to_owned(),
            backend: backend.to_owned(),
            files: vec![file],
            inputs: ports.clone(),
            outputs: ports,
            options: serde_json::Value::Null,
        };
        Loadable { artifact, path: path.into() }
    }

    fn device() -> Processor<Echo> {
        let mut device = Processor::new(Echo);
        for (id, name) in [(1, "whole"), (2, "lossy")] {
            device.load(ModelId(id), &loadable(name, "auto", "m.e")).expect("a model");
        }
        device
    }

    fn run(model: u64, inputs: &[u64], outputs: &[(u32, u64)]) -> Run {
        let inputs = inputs.iter().copied().map(TensorId).collect();
        let outputs = outputs.iter().map(|(position, id)| (*position, TensorId(*id))).collect();
        Run { model: ModelId(model), inputs, outputs }
    }

    #[test]
    fn outputs_are_kept_by_their_positions_and_counted_until_they_are_freed() {
        let mut device = device();
        device.create(TensorId(1), Element::Int32, &[3]).expect("a tensor");
        let value = Value::new(Element::Uint8, vec![2], vec![7, 8]).expect("a value");
        device.upload(TensorId(2), value.clone()).expect("a tensor");
        assert_eq!(device.memory(), 2 * 100 + 12 + 2);
        // One output twice, and one in the place of an input.
        device.run(&run(1, &[1, 2], &[(1, 3), (1, 4), (1, 1)])).expect("a run");
        for id in [1, 2, 3, 4] {
            assert_eq!(device.read(TensorId(id)), Ok(value.clone()), "{id}");
        }
        assert_eq!(device.memory(), 2 * 100 + 4 * 2);
        [1, 2, 3, 4, 4].into_iter().for_each(|id| device.free(TensorId(id)));
        [1, 2].into_iter().for_each(|id| device.unload(ModelId(id)));
        assert_eq!(device.memory(), 0);
        assert_eq!(device.read(TensorId(4)), Err(DeviceError::NoTensor(4)));
    }

    #[test]
    fn a_call_that_does_not_fit_is_told_and_changes_nothing() {
        let mut device = device();
        for id in [1, 2] {
            device.create(TensorId(id), Element::Uint8, &[1]).expect("a tensor");
        }
        let before = device.memory();
        let told = |device: &mut Processor<Echo>, run: Run| {
            device.run(&run).expect_err("it does not fit").to_string()
        };
        assert_eq!(told(&mut device, run(9, &[1, 2], &[])), DeviceError::NoModel(9).to_string());
        assert_eq!(told(&mut device, run(1, &[1, 9], &[])), DeviceError::NoTensor(9).to_string());
        let counts = "whole failed to run: it has 2 inputs and 2 outputs";
        assert_eq!(told(&mut device, run(1, &[1], &[])), counts);
        assert_eq!(told(&mut device, run(1, &[1, 2], &[(2, 3)])), counts);
        let lossy = "lossy failed to run: it gives 1 tensors, but its manifest has 2 outputs";
        assert_eq!(told(&mut device, run(2, &[1, 2], &[(0, 3)])), lossy);
        let texts = device.create(TensorId(3), Element::Text, &[1]);
        assert_eq!(texts, Err(DeviceError::Value("it has no texts".to_owned())));
        assert_eq!(device.memory(), before);
    }

    #[test]
    fn a_model_is_loaded_once_by_its_own_back_end() {
        let mut device = device();
        let mut told = |id, backend, path| {
            device.load(ModelId(id), &loadable("m", backend, path)).map_err(|error| error.to_string())
        };
        assert_eq!(told(1, "echo", "m.e"), Err(DeviceError::Taken(1).to_string()));
        let other = told(3, "torch", "m.e").expect_err("another back end");
        assert_eq!(other, "m cannot be loaded: this device has no back end torch; it has echo");
        let refused = told(3, "echo", "m").expect_err("no ending");
        assert_eq!(refused, "m cannot be loaded: it has no name that ends");
        assert_eq!(told(3, "echo", "m.e"), Ok(()));
    }
}
