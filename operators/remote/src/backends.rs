//! The back ends of this program as a device, for a proxy.
use crate::held::Held;
use crate::rows;
use crate::tensors::{placed_to_tensor, to_tensor, to_value};
use arrow_schema::SchemaRef;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidemill_device::device::{
    Artifact, Device, DeviceError, Limits, Loadable, ModelId, Opener, Run, Snapshot, TensorId,
};
use tidemill_device::memory::Placed;
use tidemill_device::value::{Element, Value};
use tidemill_inference::backend::{self, Backend, BackendError, Session};
use tidemill_inference::facts::{Dimension, ModelFacts, Port};
use tidemill_inference::tensor::{Tensor, TensorData};
use tidemill_inference::{MlKind, external, files_of};
use tidemill_operators::api::Inference;
use tidemill_spec::backend::runtime;

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
    has_rows: bool,
}

enum Model {
    /// Its tensors are prepared by the client.
    Tensors(Box<dyn Session>),
    /// Its rows are prepared and finished here.
    Rows(Box<dyn Inference>, SchemaRef),
}

impl Model {
    /// Runs on tensors of the client. Where the back end keeps values, inputs and outputs stay with it, and the next model reads
    /// them without a copy.
    fn run(&mut self, inputs: &mut [Held], outputs: &[usize]) -> Result<Vec<Held>, String> {
        if let Self::Tensors(session) = self
            && session.keeps_values()
        {
            let near = inputs.iter_mut().map(|input| input.near(session.as_mut()));
            let near = near.collect::<Result<Vec<_>, _>>().map_err(reason)?;
            let results = session.run_resident(&near, outputs).map_err(reason)?;
            return Ok(results.into_iter().map(Held::Near).collect());
        }
        let mut tensors = Vec::with_capacity(inputs.len());
        let mut fault = None;
        for input in &mut *inputs {
            match input.taken() {
                Ok(tensor) => tensors.push(tensor),
                Err(error) => {
                    fault = Some(reason(error));
                    break;
                }
            }
        }
        let results = fault.map_or_else(|| self.run_tensors(&tensors, outputs), Err);
        // Back ends read tensors beside each other: they were taken out and are put back, not copied.
        for (input, tensor) in inputs.iter_mut().zip(tensors) {
            *input = Held::Host(tensor);
        }
        Ok(results?.into_iter().map(Held::Host).collect())
    }

    fn run_tensors(&mut self, inputs: &[Tensor], outputs: &[usize]) -> Result<Vec<Tensor>, String> {
        match self {
            Self::Tensors(session) => session.run(inputs, outputs).map_err(reason),
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

/// Checks that a model reads only files that came with it: others of this host are not the client's.
fn all_came(names: &[String], artifact: &Artifact) -> Result<(), String> {
    let came = |name: &&String| artifact.files.iter().any(|file| file.name == **name);
    match names.iter().find(|name| !came(name)) {
        Some(name) => Err(format!("it reads `{name}`, which did not come with it; name files beside it")),
        None => Ok(()),
    }
}

/// Whether the first dimension of all inputs and outputs is free, and one and the same as far as the file names it.
fn has_rows(facts: &ModelFacts) -> bool {
    let first = |port: &Port| match port.shape.as_deref().and_then(<[_]>::first) {
        Some(Dimension::Free(name)) => Some(name.clone()),
        _ => None,
    };
    let names: Option<Vec<String>> = facts.inputs.iter().chain(&facts.outputs).map(first).collect();
    names.is_some_and(|mut names| {
        names.retain(|name| !name.is_empty());
        names.dedup();
        names.len() <= 1 && !facts.inputs.is_empty()
    })
}

/// The reason in an error of a run.
fn reason(error: BackendError) -> String {
    match error {
        BackendError::Run { reason, .. } => reason,
        other => other.to_string(),
    }
}

struct Processors {
    backends: Vec<Arc<dyn Backend>>,
    /// Manifests and files of models whose rows are prepared here.
    models: MlKind,
    loaded: HashMap<ModelId, Loaded>,
    tensors: HashMap<TensorId, Held>,
    /// Bytes of tensors.
    held: u64,
}

impl Processors {
    fn keep(&mut self, id: TensorId, held: Held) {
        self.held += held.bytes();
        if let Some(before) = self.tensors.insert(id, held) {
            self.held = self.held.saturating_sub(before.bytes());
        }
    }

    fn backend(&self, name: &str) -> Result<&Arc<dyn Backend>, String> {
        let wanted = match name {
            "auto" => self.backends.first(),
            // A client that names `ort` computes by the provider of the device, if that is all it has.
            name => {
                let mut of_runtime = self.backends.iter().filter(|backend| runtime(backend.name()) == name);
                let same = self.backends.iter().find(|backend| backend.name() == name);
                same.or_else(|| of_runtime.next())
            }
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
        self.keep(tensor, Held::Host(made));
        Ok(())
    }

    fn upload_placed(&mut self, tensor: TensorId, placed: &Placed) -> Result<(), DeviceError> {
        let made = placed_to_tensor(placed).map_err(|error| DeviceError::Value(error.to_string()))?;
        self.keep(tensor, Held::Host(made));
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
            let (folder, names) = files_of(&spec.manifest).map_err(|error| failed(error.message))?;
            if spec.manifest.parent() != Some(folder.as_path()) {
                return Err(failed("its files did not come with it".into()));
            }
            all_came(&names, artifact).map_err(failed)?;
            let instance = self.models.instance_on(&spec, backend.as_ref(), "by the client");
            let instance = instance.map_err(|error| failed(error.message))?;
            let loaded = Model::Rows(instance, rows::schema_of(&spec));
            let name = artifact.name.clone();
            let loaded = Loaded { name, model: loaded, inputs, outputs, bytes, has_rows: false };
            self.loaded.insert(model, loaded);
            return Ok(());
        }
        let weights = std::fs::read(&loadable.path).map(|model| external::files(&model));
        let weights = weights.map_err(|error| failed(error.to_string()))?;
        all_came(&weights, artifact).map_err(failed)?;
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
        let loaded = Loaded {
            name: artifact.name.clone(),
            model: Model::Tensors(session),
            inputs,
            outputs,
            bytes,
            has_rows: has_rows(&facts),
        };
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
        let mut inputs = Vec::with_capacity(run.inputs.len());
        for (at, id) in run.inputs.iter().enumerate() {
            let taken = match run.inputs[..at].iter().position(|other| other == id) {
                Some(same) => Some(Held::clone(&inputs[same])),
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
        let result = loaded.model.run(&mut inputs, &positions).map_err(failed);
        let computed = began.elapsed();
        self.tensors.extend(run.inputs.iter().copied().zip(inputs));
        for ((_, id), held) in run.outputs.iter().zip(result?) {
            self.keep(*id, held);
        }
        Ok(computed)
    }

    fn read(&mut self, tensor: TensorId) -> Result<Value, DeviceError> {
        let found = self.tensors.get(&tensor).ok_or(DeviceError::NoTensor(tensor.0))?;
        let value = found.read(to_value).map_err(|error| DeviceError::Value(error.to_string()))?;
        value.map_err(|error| DeviceError::Value(error.to_string()))
    }

    fn flush(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn free(&mut self, tensor: TensorId) {
        if let Some(freed) = self.tensors.remove(&tensor) {
            self.held = self.held.saturating_sub(freed.bytes());
        }
    }

    fn unload(&mut self, model: ModelId) {
        self.loaded.remove(&model);
    }

    fn has_rows(&self, model: ModelId) -> bool {
        self.loaded.get(&model).is_some_and(|loaded| loaded.has_rows)
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;
    use tidemill_device::batching::{Batching, Together};
    use tidemill_device::call::Hello;
    use tidemill_device::device::ModelFile;
    use tidemill_device::proxy::{Admission, Everybody};
    use tidemill_inference::inspect;
    use tidemill_operators::model::ModelSpec;

    fn folder() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../inference/testdata")
    }

    fn loadable(file: &str, backend: &str) -> Loadable {
        let path = folder().join(file);
        let facts = inspect(&path).unwrap();
        let names = |ports: &[tidemill_inference::facts::Port]| {
            ports.iter().map(|port| port.name.clone()).collect::<Vec<_>>()
        };
        let model = ModelFile { name: file.to_owned(), hash: facts.sha256.clone(), bytes: facts.file_bytes };
        let artifact = Artifact {
            name: file.to_owned(),
            backend: backend.to_owned(),
            files: vec![model],
            inputs: names(&facts.inputs),
            outputs: names(&facts.outputs),
            options: serde_json::Value::Null,
        };
        Loadable { artifact, path }
    }

    fn run(model: u64, input: u64, output: u64) -> Run {
        Run { model: ModelId(model), inputs: vec![TensorId(input)], outputs: vec![(0, TensorId(output))] }
    }

    #[test]
    fn runs_of_several_sessions_are_one_batch_where_the_file_has_free_rows() {
        /// Counts batches.
        struct Turns(u64);
        impl Admission for Turns {
            fn admit(&mut self, _: &Hello) -> Result<Limits, String> {
                Ok(Limits::default())
            }
            fn ran(&mut self, _: Option<Duration>) {
                self.0 += 1;
            }
        }
        let opener = Backends::open(&["rten".to_owned()], &folder()).unwrap();
        for (file, batches) in [("linear.onnx", 1), ("fixed_batch.onnx", 3)] {
            let loadable = loadable(file, "rten");
            let shape: Vec<usize> = inspect(&loadable.path).unwrap().inputs[0]
                .shape
                .iter()
                .flatten()
                .map(|size| if let Dimension::Fixed(size) = size { *size } else { 1 })
                .collect();
            let compute = |device: &mut dyn Device, fill: f32| {
                let bytes = fill.to_le_bytes().repeat(shape.iter().product());
                device.upload(TensorId(1), Value::new(Element::Float32, shape.clone(), bytes).unwrap())?;
                device.run(&run(1, 1, 2))?;
                device.read(TensorId(2))
            };
            let mut alone = opener.open(&Limits::default()).unwrap();
            alone.load(ModelId(1), &loadable).unwrap();
            // It is full with three rows, and would wait for a minute otherwise.
            let wait = Duration::from_secs(60);
            let (together, loads, computes) = Together::new(Batching { rows: 3, wait });
            let mut turns = Turns(0);
            std::thread::scope(|scope| {
                scope.spawn(|| loads.work(&opener, &mut Everybody::default()));
                scope.spawn(|| computes.work(&mut turns));
                let devices = [1.0, 2.0, 3.0].map(|fill| {
                    let mut device = together.open();
                    device.load(ModelId(1), &loadable).unwrap();
                    (device, fill)
                });
                drop(together);
                let compute = &compute;
                let threads = devices
                    .map(|(mut device, fill)| (scope.spawn(move || compute(device.as_mut(), fill)), fill));
                for (thread, fill) in threads {
                    let value = thread.join().unwrap().unwrap();
                    assert_eq!(value, compute(alone.as_mut(), fill).unwrap(), "{file}");
                }
            });
            assert_eq!(turns.0, batches, "{file}");
        }
    }

    #[test]
    fn a_chain_of_models_on_a_device_gives_what_their_sessions_give() {
        let usable = backend::usable(&folder());
        let here: Vec<String> =
            usable.into_iter().filter(|(_, is_usable)| *is_usable).map(|(name, _)| name.to_owned()).collect();
        let values = TensorData::Float32(vec![0.1, -2.0, 3.3, 0.7]);
        let input = Tensor::new(vec![1, 4], values).unwrap();
        for first in &here {
            for second in &here {
                let session = |file: &str, name: &str| {
                    backend::backend(name, &folder())
                        .unwrap()
                        .load(&inspect(&folder().join(file)).unwrap())
                        .unwrap()
                };
                let between =
                    session("fixed_batch.onnx", first).run(std::slice::from_ref(&input), &[0]).unwrap();
                let expected = session("linear.onnx", second).run(&between, &[0]).unwrap();

                let backends = Backends::open(&[first.clone(), second.clone()], &folder()).unwrap();
                let mut device = Opener::open(&backends, &Limits::default()).unwrap();
                device.load(ModelId(1), &loadable("fixed_batch.onnx", first)).unwrap();
                device.load(ModelId(2), &loadable("linear.onnx", second)).unwrap();
                let models = device.memory();
                device.upload(TensorId(1), to_value(&input).unwrap()).unwrap();
                for _ in 0..2 {
                    device.run(&run(1, 1, 2)).unwrap();
                    device.run(&run(2, 2, 3)).unwrap();
                }
                assert_eq!(device.memory(), models + 16 + 16 + 12, "two of 4 floats, one of 3");
                let mut read = |id| to_tensor(&device.read(TensorId(id)).unwrap()).unwrap();
                assert_eq!(
                    (read(1), read(2), read(3)),
                    (input.clone(), between[0].clone(), expected[0].clone())
                );
                assert_eq!(device.run(&run(2, 9, 3)).unwrap_err(), DeviceError::NoTensor(9));
                [1, 2, 3].into_iter().for_each(|id| device.free(TensorId(id)));
                assert_eq!(device.memory(), models);
            }
        }
    }

    #[test]
    fn a_name_without_a_provider_is_any_of_that_runtime() {
        let Ok(all) = Backends::open(&["ort".to_owned(), "rten".to_owned()], &folder()) else { return };
        let processors = |all: Vec<Arc<dyn Backend>>| Processors {
            backends: all,
            models: MlKind::default(),
            loaded: HashMap::new(),
            tensors: HashMap::new(),
            held: 0,
        };
        let device = processors(all.all);
        let name = |wanted: &str| device.backend(wanted).map(|backend| backend.name());
        assert_eq!((name("ort"), name("rten"), name("auto")), (Ok("ort"), Ok("rten"), Ok("ort")));
        assert_eq!(
            name("ort:cuda"),
            Err("this device has no back end ort:cuda; it has ort, rten".to_owned())
        );
        for (provider, is_usable) in backend::usable(&folder()) {
            if is_usable && provider.contains(':') {
                let device = processors(vec![backend::backend(provider, &folder()).unwrap()]);
                assert_eq!(device.backend("ort").map(|backend| backend.name()), Ok(provider));
            }
        }
    }

    #[test]
    fn a_model_reads_no_file_of_the_host() {
        let spec = |manifest: PathBuf| ModelSpec {
            operator: "read".into(),
            kind: "ml".into(),
            manifest,
            variant: "ctc".into(),
            backend: "auto".into(),
            libraries: ".".into(),
            input: Default::default(),
            output: Default::default(),
            layout: serde_json::Value::Null,
        };
        let own = tempfile::tempdir().unwrap();
        std::fs::copy(folder().join("ctc.onnx"), own.path().join("ctc.onnx")).unwrap();
        let manifest = std::fs::read_to_string(folder().join("ctc.yaml")).unwrap();
        let secret = own.path().join("secret.txt");
        let stolen = manifest.replace("alphabet: \"lh\"", &format!("alphabet_file: {}", secret.display()));
        let path = own.path().join("manifest.yaml");
        std::fs::write(&path, stolen).unwrap();
        let file = |name: &str| ModelFile { name: name.to_owned(), hash: String::new(), bytes: 1 };
        let artifact = Artifact {
            name: "ctc".into(),
            backend: "rten".into(),
            files: vec![file("manifest.yaml"), file("ctc.onnx")],
            inputs: vec!["rows".into()],
            outputs: vec!["rows".into(), "beside".into()],
            options: serde_json::json!({ rows::OPTION: spec(path.clone()) }),
        };
        let backends = Backends::open(&["rten".to_owned()], &folder()).unwrap();
        let mut device = Opener::open(&backends, &Limits::default()).unwrap();
        let refused = device.load(ModelId(1), &Loadable { artifact, path }).unwrap_err().to_string();
        assert!(refused.contains("secret.txt`, which did not come with it"), "{refused}");
    }
}
