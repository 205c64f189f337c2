//! The device: loads modules of TVM and runs their `main`.
use crate::module::Loaded;
use std::collections::HashMap;
use std::time::{Duration, Instant};
use tidemill_device::device::{
    Device, DeviceError, Limits, Loadable, ModelId, Opener, Run, Snapshot, TensorId,
};
use tidemill_device::value::{Element, Value};

/// Name of the back end in manifests and plans.
pub const NAME: &str = "tvm";
/// The TVM whose libraries `scripts/backends.sh tvm` fetches.
const VERSION: &str = "0.27.0";

/// Opens the processor as a device of TVM.
#[derive(Debug, Clone, Copy)]
pub struct Tvm {
    /// Whether clients may run code of theirs: a module is a library of the processor's instructions.
    pub trusts_client: bool,
}

impl Opener for Tvm {
    fn snapshot(&self, limits: &Limits) -> Snapshot {
        Snapshot {
            name: "cpu".to_owned(),
            kind: "cpu".to_owned(),
            backends: vec![(NAME.to_owned(), VERSION.to_owned())],
            memory: limits.memory,
            share: limits.share,
            window: limits.window,
        }
    }

    fn open(&self, _limits: &Limits) -> Result<Box<dyn Device>, DeviceError> {
        if !self.trusts_client {
            return Err(DeviceError::Device(
                "a TVM module is code, which could do anything as the user of the daemon; set TIDEMILL_TVM_TRUST_CLIENTS=1 \
                 for `tidemill device serve` if all its clients are trusted"
                    .to_owned(),
            ));
        }
        Ok(Box::new(Processor::default()))
    }
}

struct Model {
    name: String,
    loaded: Loaded,
    inputs: usize,
    outputs: usize,
    bytes: u64,
}

#[derive(Default)]
struct Processor {
    models: HashMap<ModelId, Model>,
    tensors: HashMap<TensorId, Value>,
    /// Bytes of tensors.
    held: u64,
}

impl Processor {
    fn keep(&mut self, id: TensorId, value: Value) {
        self.held += value.bytes().len() as u64;
        self.free_if_there(id);
        self.tensors.insert(id, value);
    }

    fn free_if_there(&mut self, id: TensorId) {
        if let Some(freed) = self.tensors.remove(&id) {
            self.held = self.held.saturating_sub(freed.bytes().len() as u64);
        }
    }
}

impl Device for Processor {
    fn create(&mut self, tensor: TensorId, element: Element, shape: &[usize]) -> Result<(), DeviceError> {
        let zeros = Value::zeros(element, shape.to_vec());
        self.upload(tensor, zeros.map_err(|error| DeviceError::Value(error.to_string()))?)
    }

    fn upload(&mut self, tensor: TensorId, value: Value) -> Result<(), DeviceError> {
        self.keep(tensor, value);
        Ok(())
    }

    fn load(&mut self, model: ModelId, loadable: &Loadable) -> Result<(), DeviceError> {
        let artifact = &loadable.artifact;
        let failed = |reason: String| DeviceError::Load { model: artifact.name.clone(), reason };
        if self.models.contains_key(&model) {
            return Err(DeviceError::Taken(model.0));
        }
        if ![NAME, "auto"].contains(&artifact.backend.as_str()) {
            return Err(failed(format!("this device has no back end {}; it has {NAME}", artifact.backend)));
        }
        if loadable.path.extension().is_none_or(|extension| extension != "so") {
            return Err(failed(
                "this device reads TVM modules (.so); write one with `tidemill models compile`, and name it under `artifacts: \
                 {tvm: ...}` of the manifest"
                    .to_owned(),
            ));
        }
        let loaded = Loaded::load(&loadable.path, &artifact.inputs, &artifact.outputs).map_err(failed)?;
        let loaded = Model {
            name: artifact.name.clone(),
            loaded,
            inputs: artifact.inputs.len(),
            outputs: artifact.outputs.len(),
            bytes: artifact.files.iter().map(|file| file.bytes).sum(),
        };
        self.models.insert(model, loaded);
        Ok(())
    }

    fn run(&mut self, run: &Run) -> Result<Duration, DeviceError> {
        let model = self.models.get(&run.model).ok_or(DeviceError::NoModel(run.model.0))?;
        let failed = |reason: String| DeviceError::Run { model: model.name.clone(), reason };
        let is_wrong = |(position, _): &(u32, TensorId)| *position as usize >= model.outputs;
        if run.inputs.len() != model.inputs || run.outputs.iter().any(is_wrong) {
            let (inputs, outputs) = (model.inputs, model.outputs);
            return Err(failed(format!("it has {inputs} inputs and {outputs} outputs")));
        }
        let inputs =
            run.inputs.iter().map(|id| self.tensors.get(id).cloned().ok_or(DeviceError::NoTensor(id.0)));
        let inputs = inputs.collect::<Result<Vec<_>, _>>()?;
        let began = now();
        let results = model.loaded.run(&inputs).map_err(failed)?;
        let computed = began.elapsed();
        for (position, id) in &run.outputs {
            self.keep(*id, results[*position as usize].clone());
        }
        Ok(computed)
    }

    fn read(&mut self, tensor: TensorId) -> Result<Value, DeviceError> {
        self.tensors.get(&tensor).cloned().ok_or(DeviceError::NoTensor(tensor.0))
    }

    fn flush(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn free(&mut self, tensor: TensorId) {
        self.free_if_there(tensor);
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
