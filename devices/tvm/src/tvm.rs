//! The library: loads modules of TVM and runs their `main`.
use crate::module::Loaded;
use std::path::Path;
use tidemill_device::device::{Artifact, Device, DeviceError, Limits, Opener, Snapshot};
use tidemill_device::processor::{Library, Processor, snapshot};
use tidemill_device::value::Value;

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
        snapshot(Self::NAME, VERSION, limits)
    }

    fn open(&self, _limits: &Limits) -> Result<Box<dyn Device>, DeviceError> {
        if !self.trusts_client {
            return Err(DeviceError::Device(
                "a TVM module is code, which could do anything as the user of the daemon; set TIDEMILL_TVM_TRUST_CLIENTS=1 \
                 for `tidemill device serve` if all its clients are trusted"
                    .to_owned(),
            ));
        }
        Ok(Box::new(Processor::new(*self)))
    }
}

/// Keeps tensors as values: a run may take a part of them, see [`Loaded::run`].
impl Library for Tvm {
    const NAME: &'static str = "tvm";
    type Tensor = Value;
    type Model = Loaded;

    fn tensor(&self, value: Value) -> Result<Value, String> {
        Ok(value)
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

    fn load(&self, path: &Path, artifact: &Artifact) -> Result<Loaded, String> {
        if path.extension().is_none_or(|extension| extension != "so") {
            return Err("this device reads TVM modules (.so); write one with `tidemill models compile`, and name it under \
                 `artifacts: {tvm: ...}` of the manifest"
                .to_owned());
        }
        Loaded::load(path, &artifact.inputs, &artifact.outputs)
    }

    fn run(&self, model: &mut Loaded, inputs: &[&Value], _outputs: usize) -> Result<Vec<Value>, String> {
        model.run(inputs)
    }
}
