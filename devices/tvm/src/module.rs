//! A module of TVM with its virtual machine.
use crate::about::About;
use crate::rows;
use crate::tensors::{append, element_of, reason, shape_of, to_tensor};
use std::path::Path;
use tidemill_device::processor::check_outputs;
use tidemill_device::value::{Element, Value};
use tvm_ffi::{Any, AnyView, Array, DLDeviceType, Function, Module, Tensor};

/// Allocator of the virtual machine that keeps memory for the next run.
const POOLED: i32 = 2;

/// A module that is ready to run.
pub struct Loaded {
    main: Function,
    /// None of a module that `tidemill models compile` did not write: it takes tensors as they are.
    about: Option<About>,
    outputs: usize,
    /// Owns the code of `main`.
    _machine: Module,
    _library: Module,
}

impl Loaded {
    /// Loads a module for a client that knows its inputs and outputs by these names.
    pub(crate) fn load(path: &Path, inputs: &[String], outputs: &[String]) -> Result<Self, String> {
        let name = path.to_str().ok_or("its path is not UTF-8")?;
        let library = Module::load_from_file(name).map_err(|error| reason(&error))?;
        let machine = library.get_function("vm_load_executable").and_then(|load| load.call_packed(&[]));
        let machine = machine.and_then(Module::try_from).map_err(|error| {
            format!("it is no module that `tvm.compile(...).export_library` wrote: {}", reason(&error))
        })?;
        let device = (DLDeviceType::kDLCPU as i32, 0, POOLED);
        let started = machine.get_function("vm_initialization").and_then(|start| start.call_tuple(device));
        started.map_err(|error| reason(&error))?;
        let main = machine.get_function("main").map_err(|error| reason(&error))?;
        let about = description(&machine)?;
        if let Some(about) = &about {
            about.check(inputs, outputs)?;
        }
        Ok(Self { main, about, outputs: outputs.len(), _machine: machine, _library: library })
    }

    /// Computes all outputs.
    pub(crate) fn run(&self, inputs: &[&Value]) -> Result<Vec<Value>, String> {
        let Some(about) = &self.about else { return self.as_they_are(inputs) };
        match (rows::records(about, inputs)?, about.batch) {
            (Some(records), Some(batch)) if records != batch => {
                self.in_batches(about, inputs, records, batch)
            }
            _ => self.as_they_are(inputs),
        }
    }

    fn as_they_are(&self, inputs: &[&Value]) -> Result<Vec<Value>, String> {
        let tensors = inputs.iter().map(|value| to_tensor(value.element(), value.shape(), value.bytes()));
        let results = self.call(&tensors.collect::<Result<Vec<_>, _>>()?)?;
        let values = results.iter().map(|tensor| {
            let mut bytes = Vec::new();
            append(tensor, &mut bytes)?;
            value(element_of(tensor)?, shape_of(tensor)?, bytes)
        });
        values.collect()
    }

    /// Runs once for each `batch` of the records; the last run may have zeros after them.
    fn in_batches(
        &self,
        about: &About,
        inputs: &[&Value],
        records: usize,
        batch: usize,
    ) -> Result<Vec<Value>, String> {
        let mut collected: Vec<Vec<u8>> = about.outputs.iter().map(|_| Vec::new()).collect();
        for range in rows::runs(records, batch) {
            let tensors = about.inputs.iter().zip(inputs).map(|(port, value)| {
                let bytes = value.bytes();
                to_tensor(port.element, &port.shape, &bytes[rows::of(bytes, records, &range)])
            });
            let results = self.call(&tensors.collect::<Result<Vec<_>, _>>()?)?;
            for (bytes, tensor) in collected.iter_mut().zip(&results) {
                let before = bytes.len();
                append(tensor, bytes)?;
                bytes.truncate(before + (bytes.len() - before) / batch * range.len());
            }
        }
        let values = about.outputs.iter().zip(collected).map(|(port, bytes)| {
            let rest = port.shape.iter().skip(1).copied();
            value(port.element, std::iter::once(records).chain(rest).collect(), bytes)
        });
        values.collect()
    }

    fn call(&self, tensors: &[Tensor]) -> Result<Vec<Tensor>, String> {
        let arguments: Vec<AnyView<'_>> = tensors.iter().map(AnyView::from).collect();
        let result = self.main.call_packed(&arguments).map_err(|error| reason(&error))?;
        let tensors = tensors_of(result)?;
        check_outputs(tensors.len(), self.outputs)?;
        Ok(tensors)
    }
}

/// The description of a module that `tidemill models compile` wrote.
fn description(machine: &Module) -> Result<Option<About>, String> {
    let Ok(describe) = machine.get_function("describe") else { return Ok(None) };
    let text =
        describe.call_packed(&[]).and_then(tvm_ffi::String::try_from).map_err(|error| reason(&error))?;
    let processor =
        std::fs::read_to_string("/proc/cpuinfo").map_err(|error| format!("/proc/cpuinfo: {error}"))?;
    About::read(text.as_str(), &processor).map(Some)
}

/// The tensors of a result: one, or a tuple of them.
fn tensors_of(result: Any) -> Result<Vec<Tensor>, String> {
    if let Some(tensor) = result.try_as::<Tensor>() {
        return Ok(vec![tensor]);
    }
    let several =
        Array::<Tensor>::try_from(result).map_err(|_| "its `main` returns no tensors".to_owned())?;
    let each = (0..several.len()).map(|at| several.get(at).map_err(|error| reason(&error)));
    each.collect()
}

fn value(element: Element, shape: Vec<usize>, bytes: Vec<u8>) -> Result<Value, String> {
    Value::new(element, shape, bytes).map_err(|error| error.to_string())
}
