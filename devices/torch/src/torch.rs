//! The device: loads TorchScript files and compiled packages, and runs their `forward`.
use crate::package::Package;
use crate::tensors::{bytes_of, reason, to_tensor, to_value};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::Path;
use std::time::{Duration, Instant};
use tch::{CModule, IValue, Tensor};
use tidemill_device::device::{
    Device, DeviceError, Limits, Loadable, ModelId, Opener, Run, Snapshot, TensorId,
};
use tidemill_device::memory::Placed;
use tidemill_device::value::{Element, Value};

/// Name of the back end in manifests and plans.
pub const NAME: &str = "torch";
/// The libtorch that the crate `tch` is made for.
const VERSION: &str = "2.13.0";

/// Opens the processor as a device of libtorch.
#[derive(Debug, Clone, Copy)]
pub struct Torch {
    /// Whether it loads packages (.pt2). They are programs, so only a client that could start programs itself may bring one.
    pub loads_packages: bool,
}

impl Opener for Torch {
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
        // One thread for each session, as with the other back ends: the engine runs many operators.
        tch::set_num_threads(1);
        let loads_packages = self.loads_packages;
        Ok(Box::new(Processor { loads_packages, models: HashMap::new(), tensors: HashMap::new(), held: 0 }))
    }
}

/// Content of a file.
enum Module {
    Script(CModule),
    Package(Package),
}

impl Module {
    fn load(path: &Path, loads_packages: bool) -> Result<Self, String> {
        match path.extension().and_then(OsStr::to_str) {
            Some("pt") | None => {
                let mut module = CModule::load(path).map_err(|error| reason(&error))?;
                module.f_set_eval().map_err(|error| reason(&error))?;
                Ok(Self::Script(module))
            }
            Some("pt2") if loads_packages => Package::load(path).map(Self::Package),
            Some("pt2") => Err("a package (.pt2) is a program, and a device runs none of its clients'; name a TorchScript file \
                 (.pt) in the manifest, or write `device: proxy:torch`"
                .to_owned()),
            Some(_) => Err("this device reads TorchScript files (.pt) and packages (.pt2); name one under \
                 `artifacts: {torch: ...}` of the manifest"
                .to_owned()),
        }
    }
}

struct Loaded {
    name: String,
    module: Module,
    inputs: usize,
    outputs: usize,
    bytes: u64,
}

impl Loaded {
    fn run(&mut self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, String> {
        let module = match &mut self.module {
            Module::Package(package) => return tch::no_grad(|| package.run(inputs, self.outputs)),
            Module::Script(module) => module,
        };
        let inputs: Vec<IValue> = inputs.iter().map(|input| IValue::Tensor(input.shallow_clone())).collect();
        let result = tch::no_grad(|| module.forward_is(&inputs)).map_err(|error| reason(&error))?;
        let tensors = tensors_of(result)?;
        if tensors.len() != self.outputs {
            let found = tensors.len();
            return Err(format!("it gives {found} tensors, but its manifest has {} outputs", self.outputs));
        }
        Ok(tensors)
    }
}

/// The tensors of a result: one, or a tuple or list of them.
fn tensors_of(result: IValue) -> Result<Vec<Tensor>, String> {
    let several = match result {
        IValue::Tensor(tensor) => return Ok(vec![tensor]),
        IValue::TensorList(tensors) => return Ok(tensors),
        IValue::Tuple(values) | IValue::GenericList(values) => values,
        _ => return Err("its `forward` returns no tensors".to_owned()),
    };
    let each = several.into_iter().map(|value| match value {
        IValue::Tensor(tensor) => Ok(tensor),
        _ => Err("its `forward` returns something else beside tensors".to_owned()),
    });
    each.collect()
}

struct Processor {
    loads_packages: bool,
    models: HashMap<ModelId, Loaded>,
    tensors: HashMap<TensorId, Tensor>,
    /// Bytes of tensors.
    held: u64,
}

impl Processor {
    fn keep(&mut self, id: TensorId, tensor: Tensor) {
        self.held += bytes_of(&tensor);
        self.free_if_there(id);
        self.tensors.insert(id, tensor);
    }

    fn free_if_there(&mut self, id: TensorId) {
        if let Some(freed) = self.tensors.remove(&id) {
            self.held = self.held.saturating_sub(bytes_of(&freed));
        }
    }
}

impl Device for Processor {
    fn create(&mut self, tensor: TensorId, element: Element, shape: &[usize]) -> Result<(), DeviceError> {
        let zeros = Value::zeros(element, shape.to_vec());
        self.upload(tensor, zeros.map_err(|error| DeviceError::Value(error.to_string()))?)
    }

    fn upload(&mut self, tensor: TensorId, value: Value) -> Result<(), DeviceError> {
        let made = to_tensor(value.element(), value.shape(), value.bytes()).map_err(DeviceError::Value)?;
        self.keep(tensor, made);
        Ok(())
    }

    fn upload_placed(&mut self, tensor: TensorId, placed: &Placed) -> Result<(), DeviceError> {
        self.upload(tensor, placed.to_value().map_err(|error| DeviceError::Value(error.to_string()))?)
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
        let module = Module::load(&loadable.path, self.loads_packages).map_err(failed)?;
        let loaded = Loaded {
            name: artifact.name.clone(),
            module,
            inputs: artifact.inputs.len(),
            outputs: artifact.outputs.len(),
            bytes: artifact.files.iter().map(|file| file.bytes).sum(),
        };
        self.models.insert(model, loaded);
        Ok(())
    }

    fn run(&mut self, run: &Run) -> Result<Duration, DeviceError> {
        let loaded = self.models.get_mut(&run.model).ok_or(DeviceError::NoModel(run.model.0))?;
        let name = loaded.name.clone();
        let failed = |reason: String| DeviceError::Run { model: name, reason };
        let is_wrong = |(position, _): &(u32, TensorId)| *position as usize >= loaded.outputs;
        if run.inputs.len() != loaded.inputs || run.outputs.iter().any(is_wrong) {
            let (inputs, outputs) = (loaded.inputs, loaded.outputs);
            return Err(failed(format!("it has {inputs} inputs and {outputs} outputs")));
        }
        let inputs = run.inputs.iter().map(|id| self.tensors.get(id).ok_or(DeviceError::NoTensor(id.0)));
        let inputs = inputs.collect::<Result<Vec<_>, DeviceError>>()?;
        let began = Instant::now();
        let results = loaded.run(&inputs).map_err(failed)?;
        let computed = began.elapsed();
        for (position, id) in &run.outputs {
            self.keep(*id, results[*position as usize].shallow_clone());
        }
        Ok(computed)
    }

    fn read(&mut self, tensor: TensorId) -> Result<Value, DeviceError> {
        to_value(self.tensors.get(&tensor).ok_or(DeviceError::NoTensor(tensor.0))?)
            .map_err(DeviceError::Value)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_is_refused_where_clients_may_be_anybody() {
        let told =
            |loads_packages| Module::load(Path::new("no-file.pt2"), loads_packages).err().unwrap_or_default();
        assert!(told(false).contains("is a program"), "{}", told(false));
        assert!(told(true).contains("cannot be unpacked"), "{}", told(true));
        let other = Module::load(Path::new("m.onnx"), true).err().unwrap_or_default();
        assert!(other.contains(".pt2"), "{other}");
    }
}
