//! The back ends of this program as a device, for a proxy.
use crate::rows;
use crate::tensors::{to_tensor, to_value};
use arrow_schema::SchemaRef;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidemill_device::device::{
    Device, DeviceError, Limits, Loadable, ModelId, Opener, Run, Snapshot, TensorId,
};
use tidemill_device::value::{Element, Value};
use tidemill_inference::MlKind;
use tidemill_inference::backend::{self, Backend, BackendError, Session};
use tidemill_inference::tensor::{Tensor, TensorData};
use tidemill_operators::api::Inference;

/// The processors of a machine as a device, with the back ends that the machine has.
///
/// ```
/// use tidemill_device::device::{Limits, Opener};
/// let device = tidemill_remote::backends::Backends::open(&["rten".to_owned()], ".".as_ref())?;
/// assert_eq!(device.snapshot(&Limits::default()).backends[0].0, "rten");
/// # Ok::<(), tidemill_inference::backend::BackendError>(())
/// ```
pub struct Backends {
    kind: String,
    all: Vec<Arc<dyn Backend>>,
}

impl Backends {
    /// Opens back ends by name; without names all that are usable here. `libraries`: start of the search for their libraries.
    ///
    /// # Errors
    /// [`BackendError`] of a named one that is not usable, or if none is.
    pub fn open(names: &[String], libraries: &Path) -> Result<Self, BackendError> {
        let all: Vec<Arc<dyn Backend>> = if names.is_empty() {
            backend::registered().filter_map(|backend| (backend.open)(libraries).ok()).collect()
        } else {
            names.iter().map(|name| backend::backend(name, libraries)).collect::<Result<_, _>>()?
        };
        if all.is_empty() {
            // The reason of the first one.
            for registered in backend::registered() {
                (registered.open)(libraries)?;
            }
        }
        Ok(Self { kind: "cpu".to_owned(), all })
    }

    /// As a device of another kind, the name under which profiles have its times.
    #[must_use]
    pub fn of_kind(self, kind: impl Into<String>) -> Self {
        Self { kind: kind.into(), ..self }
    }
}

impl Opener for Backends {
    fn snapshot(&self, limits: &Limits) -> Snapshot {
        Snapshot {
            name: self.kind.clone(),
            kind: self.kind.clone(),
            backends: self.all.iter().map(|one| (one.name().to_owned(), one.version())).collect(),
            memory: limits.memory,
            share: limits.share,
            window: limits.window,
        }
    }

    fn open(&self, _limits: &Limits) -> Result<Box<dyn Device>, DeviceError> {
        Ok(Box::new(Processors {
            backends: self.all.clone(),
            models: MlKind::default(),
            loaded: HashMap::new(),
            tensors: HashMap::new(),
            held: 0,
        }))
    }
}

struct Loaded {
    name: String,
    model: Model,
    inputs: usize,
    outputs: usize,
    bytes: u64,
}

enum Model {
    /// Its tensors are prepared by the client.
    Tensors(Box<dyn Session>),
    /// Its rows are prepared and finished here.
    Rows(Box<dyn Inference>, SchemaRef),
}

impl Model {
    fn run(&mut self, inputs: &[Tensor], outputs: &[usize]) -> Result<Vec<Tensor>, String> {
        match self {
            Self::Tensors(session) => session.run(inputs, outputs).map_err(|error| match error {
                BackendError::Run { reason, .. } => reason,
                other => other.to_string(),
            }),
            Self::Rows(model, schema) => {
                let [rows] = inputs else { return Err("rows are one tensor".to_owned()) };
                let TensorData::Uint8(rows) = rows.data() else { return Err("rows are bytes".to_owned()) };
                let answers = rows::answer(model.as_mut(), schema, rows).map_err(|error| error.message)?;
                let tensor =
                    |bytes: &Vec<u8>| Tensor::new(vec![bytes.len()], TensorData::Uint8(bytes.clone()));
                let wanted = outputs.iter().map(|output| tensor(&answers[*output]));
                wanted.collect::<Result<_, _>>().map_err(|error| error.to_string())
            }
        }
    }
}

struct Processors {
    backends: Vec<Arc<dyn Backend>>,
    /// Manifests and files of models whose rows are prepared here.
    models: MlKind,
    loaded: HashMap<ModelId, Loaded>,
    tensors: HashMap<TensorId, Tensor>,
    /// Bytes of tensors.
    held: u64,
}

fn bytes(tensor: &Tensor) -> u64 {
    crate::tensors::bytes_of(tensor).1.len() as u64
}

impl Processors {
    fn keep(&mut self, id: TensorId, tensor: Tensor) {
        self.held += bytes(&tensor);
        if let Some(before) = self.tensors.insert(id, tensor) {
            self.held -= bytes(&before);
        }
    }

    fn backend(&self, name: &str) -> Result<&Arc<dyn Backend>, String> {
        let wanted = match name {
            "auto" => self.backends.first(),
            name => self.backends.iter().find(|backend| backend.name() == name),
        };
        wanted.ok_or_else(|| {
            let known: Vec<&str> = self.backends.iter().map(|backend| backend.name()).collect();
            format!("this device has no back end {name}; it has {}", known.join(", "))
        })
    }
}

impl Device for Processors {
    fn create(&mut self, tensor: TensorId, element: Element, shape: &[usize]) -> Result<(), DeviceError> {
        let zeros =
            Value::zeros(element, shape.to_vec()).map_err(|error| DeviceError::Value(error.to_string()))?;
        self.upload(tensor, zeros)
    }

    fn upload(&mut self, tensor: TensorId, value: Value) -> Result<(), DeviceError> {
        let made = to_tensor(&value).map_err(|error| DeviceError::Value(error.to_string()))?;
        self.keep(tensor, made);
        Ok(())
    }

    fn load(&mut self, model: ModelId, loadable: &Loadable) -> Result<(), DeviceError> {
        let artifact = &loadable.artifact;
        let failed = |reason: String| DeviceError::Load { model: artifact.name.clone(), reason };
        if self.loaded.contains_key(&model) {
            return Err(DeviceError::Taken(model.0));
        }
        let backend = Arc::clone(self.backend(&artifact.backend).map_err(failed)?);
        let bytes = artifact.files.iter().map(|file| file.bytes).sum();
        let (inputs, outputs) = (artifact.inputs.len(), artifact.outputs.len());
        if let Some(spec) = rows::spec_of(artifact, &loadable.path)? {
            if (inputs, outputs) != (1, 2) {
                return Err(failed("rows are one tensor".into()));
            }
            let instance = self.models.instance_on(&spec, backend.as_ref(), "by the client");
            let instance = instance.map_err(|error| failed(error.message))?;
            let loaded = Model::Rows(instance, rows::schema_of(&spec));
            let loaded = Loaded { name: artifact.name.clone(), model: loaded, inputs, outputs, bytes };
            self.loaded.insert(model, loaded);
            return Ok(());
        }
        let registered = backend::registered().find(|registered| registered.name == backend.name());
        let inspect = registered
            .map(|registered| registered.inspect)
            .ok_or_else(|| failed("its back end is gone".into()))?;
        let facts = inspect(&loadable.path).map_err(|error| failed(error.to_string()))?;
        let names = |ports: &[tidemill_inference::facts::Port]| {
            ports.iter().map(|port| port.name.clone()).collect::<Vec<_>>()
        };
        if names(&facts.inputs) != artifact.inputs || names(&facts.outputs) != artifact.outputs {
            return Err(failed("its inputs or outputs are other ones than the client's".into()));
        }
        let session = backend.load(&facts).map_err(|error| failed(error.to_string()))?;
        let loaded =
            Loaded { name: artifact.name.clone(), model: Model::Tensors(session), inputs, outputs, bytes };
        self.loaded.insert(model, loaded);
        Ok(())
    }

    fn run(&mut self, run: &Run) -> Result<Duration, DeviceError> {
        let loaded = self.loaded.get_mut(&run.model).ok_or(DeviceError::NoModel(run.model.0))?;
        let failed = |reason: String| DeviceError::Run { model: loaded.name.clone(), reason };
        let positions: Vec<usize> = run.outputs.iter().map(|(position, _)| *position as usize).collect();
        if run.inputs.len() != loaded.inputs || positions.iter().any(|position| *position >= loaded.outputs) {
            let (inputs, outputs) = (loaded.inputs, loaded.outputs);
            return Err(failed(format!("it has {inputs} inputs and {outputs} outputs")));
        }
        // Back ends read tensors beside each other: they are taken out and put back, not copied.
        let mut inputs = Vec::with_capacity(run.inputs.len());
        for (at, id) in run.inputs.iter().enumerate() {
            let taken = match run.inputs[..at].iter().position(|other| other == id) {
                Some(same) => Some(Tensor::clone(&inputs[same])),
                None => self.tensors.remove(id),
            };
            match taken {
                Some(tensor) => inputs.push(tensor),
                None => {
                    self.tensors.extend(run.inputs.iter().copied().zip(inputs));
                    return Err(DeviceError::NoTensor(id.0));
                }
            }
        }
        let began = now();
        let result = loaded.model.run(&inputs, &positions).map_err(failed);
        let computed = began.elapsed();
        self.tensors.extend(run.inputs.iter().copied().zip(inputs));
        for ((_, id), tensor) in run.outputs.iter().zip(result?) {
            self.keep(*id, tensor);
        }
        Ok(computed)
    }

    fn read(&mut self, tensor: TensorId) -> Result<Value, DeviceError> {
        let found = self.tensors.get(&tensor).ok_or(DeviceError::NoTensor(tensor.0))?;
        to_value(found).map_err(|error| DeviceError::Value(error.to_string()))
    }

    fn flush(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn free(&mut self, tensor: TensorId) {
        if let Some(freed) = self.tensors.remove(&tensor) {
            self.held -= bytes(&freed);
        }
    }

    fn unload(&mut self, model: ModelId) {
        self.loaded.remove(&model);
    }

    fn memory(&self) -> u64 {
        self.held + self.loaded.values().map(|model| model.bytes).sum::<u64>()
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the time of a computation is real time; no record depends on it"
)]
fn now() -> Instant {
    Instant::now()
}
