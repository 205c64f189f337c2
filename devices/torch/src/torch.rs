//! The library: loads TorchScript files and compiled packages, and runs their `forward`.
use crate::package::Package;
use crate::tensors::{bytes_of, reason, to_tensor, to_value};
use std::ffi::OsStr;
use std::path::Path;
use tch::{CModule, IValue, Tensor};
use tidemill_device::device::{Artifact, Device, DeviceError, Limits, Opener, Snapshot};
use tidemill_device::processor::{Library, Processor, snapshot};
use tidemill_device::value::Value;

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
        snapshot(Self::NAME, VERSION, limits)
    }

    fn open(&self, _limits: &Limits) -> Result<Box<dyn Device>, DeviceError> {
        // One thread for each session, as with the other back ends: the engine runs many operators.
        tch::set_num_threads(1);
        Ok(Box::new(Processor::new(*self)))
    }
}

impl Library for Torch {
    const NAME: &'static str = "torch";
    type Tensor = Tensor;
    type Model = Module;

    fn tensor(&self, value: Value) -> Result<Tensor, String> {
        to_tensor(value.element(), value.shape(), value.bytes())
    }

    fn value(&self, tensor: &Tensor) -> Result<Value, String> {
        to_value(tensor)
    }

    fn share(&self, tensor: &Tensor) -> Tensor {
        tensor.shallow_clone()
    }

    fn bytes(&self, tensor: &Tensor) -> u64 {
        bytes_of(tensor)
    }

    fn load(&self, path: &Path, _artifact: &Artifact) -> Result<Module, String> {
        Module::load(path, self.loads_packages)
    }

    fn run(&self, model: &mut Module, inputs: &[&Tensor], outputs: usize) -> Result<Vec<Tensor>, String> {
        match model {
            Module::Package(package) => tch::no_grad(|| package.run(inputs, outputs)),
            Module::Script(module) => {
                let inputs = inputs.iter().map(|input| IValue::Tensor(input.shallow_clone()));
                let inputs: Vec<IValue> = inputs.collect();
                tensors_of(tch::no_grad(|| module.forward_is(&inputs)).map_err(|error| reason(&error))?)
            }
        }
    }
}

/// Content of a file.
pub enum Module {
    /// TorchScript.
    Script(CModule),
    /// A compiled package.
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
