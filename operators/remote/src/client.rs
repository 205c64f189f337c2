//! A device as a back end: models load and run in its proxy.
use crate::tensors::{bytes_of, to_tensor};
use std::collections::HashMap;
use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use tidemill_device::device::{Artifact, DeviceError, ModelFile, ModelId, TensorId};
use tidemill_device::session::{CallError, Lane, Pending, Session as DeviceSession};
use tidemill_device::store::hash_of_file;
use tidemill_inference::backend::{Backend, BackendError, Feedback, Session};
use tidemill_inference::external;
use tidemill_inference::facts::ModelFacts;
use tidemill_inference::tensor::Tensor;
use tidemill_operators::api::{DeviceTimes, OperatorError};

/// A back end that computes by a session with a device. Clones share the session and its models.
#[derive(Clone)]
pub struct DeviceBackend {
    /// The back end of the device.
    name: &'static str,
    version: String,
    session: Arc<DeviceSession>,
    /// Models that are loaded, by the digest of their file.
    loaded: Arc<Mutex<HashMap<String, ModelId>>>,
    times: Arc<Mutex<DeviceTimes>>,
}

impl DeviceBackend {
    /// Computes with one of the device's back ends, which it must have.
    pub fn new(session: Arc<DeviceSession>, name: &str) -> Self {
        let version = session.snapshot().backends.iter().find(|(known, _)| known == name);
        let version = version.map(|(_, version)| version.clone()).unwrap_or_default();
        Self { name: kept(name), version, session, loaded: Arc::default(), times: Arc::default() }
    }

    /// A clone that adds up in `times` where the time of its runs goes.
    pub fn timed(&self, times: Arc<Mutex<DeviceTimes>>) -> Self {
        Self { times, ..self.clone() }
    }

    /// Its session with the device.
    pub(crate) fn session(&self) -> &Arc<DeviceSession> {
        &self.session
    }

    /// A model that all clones share, which the first of them loads.
    pub(crate) fn once<E>(
        &self,
        name: &str,
        load: impl FnOnce() -> Result<ModelId, E>,
    ) -> Result<ModelId, E> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(model) = loaded.get(name) {
            return Ok(*model);
        }
        let model = load()?;
        loaded.insert(name.to_owned(), model);
        Ok(model)
    }

    fn failed(&self, model: &str, error: CallError) -> BackendError {
        let (backend, model) = (self.name, model.to_owned());
        match error {
            error if can_be_repeated(&error) => {
                BackendError::Lost { backend, model, reason: error.to_string() }
            }
            CallError::Failed(failure) => {
                BackendError::Run { backend, model, reason: failure.error.to_string() }
            }
            other => BackendError::Run { backend, model, reason: other.to_string() },
        }
    }
}

/// Whether the device has no memory left for the call.
fn is_full(error: &DeviceError) -> bool {
    matches!(error, DeviceError::OutOfMemory { .. })
}

/// Whether the call may succeed elsewhere: the device is lost, refuses, or has no memory left.
fn can_be_repeated(error: &CallError) -> bool {
    match error {
        CallError::Lost { .. } | CallError::Refused(_) => true,
        CallError::Failed(failure) => is_full(&failure.error),
        CallError::File { .. } | CallError::Value(_) => false,
    }
}

/// The error of a call, for the engine: a lost one may be repeated elsewhere.
pub(crate) fn kept_error(device: &str, error: CallError) -> OperatorError {
    match error {
        error if can_be_repeated(&error) => OperatorError::lost(format!("{device}: {error}")),
        CallError::Failed(failure) => OperatorError::new(format!("{device}: {}", failure.error)),
        other => OperatorError::new(format!("{device}: {other}")),
    }
}

/// A name for as long as the process lives; there are few.
fn kept(name: &str) -> &'static str {
    static NAMES: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = names.iter().find(|known| **known == name) {
        return known;
    }
    let new: &'static str = Box::leak(name.to_owned().into_boxed_str());
    names.push(new);
    new
}

/// Describes a model by its file and those beside it.
fn artifact(facts: &ModelFacts, backend: &str) -> std::io::Result<Artifact> {
    let name =
        |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let mut files =
        vec![ModelFile { name: name(&facts.path), hash: facts.sha256.clone(), bytes: facts.file_bytes }];
    let folder = facts.path.parent().unwrap_or(Path::new(""));
    for beside in external::files(&std::fs::read(&facts.path)?) {
        let (hash, bytes) = hash_of_file(&folder.join(&beside))?;
        files.push(ModelFile { name: beside, hash, bytes });
    }
    Ok(Artifact {
        name: name(&facts.path),
        backend: backend.to_owned(),
        files,
        inputs: facts.inputs.iter().map(|port| port.name.clone()).collect(),
        outputs: facts.outputs.iter().map(|port| port.name.clone()).collect(),
        options: serde_json::Value::Null,
    })
}

impl Backend for DeviceBackend {
    fn name(&self) -> &'static str {
        self.name
    }

    fn version(&self) -> String {
        self.version.clone()
    }

    fn load(&self, facts: &ModelFacts) -> Result<Box<dyn Session>, BackendError> {
        let path = facts.path.display().to_string();
        let refused = |reason: String| BackendError::Load { backend: self.name, path: path.clone(), reason };
        let model = self.once(&facts.sha256, || {
            let artifact = artifact(facts, self.name).map_err(|error| refused(error.to_string()))?;
            let folder = facts.path.parent().unwrap_or(Path::new("")).to_owned();
            let open = |at: usize| {
                let file = File::open(folder.join(&artifact.files[at].name))?;
                Ok(Box::new(file) as Box<dyn std::io::Read>)
            };
            let model = self.session.load(&artifact, open);
            let model = model.and_then(|model| self.session.flush().map(|()| model));
            model.map_err(|error| match error {
                // Others, such as a cache that is full, are no fault of the back end.
                CallError::Failed(failure) if matches!(failure.error, DeviceError::Load { .. }) => {
                    refused(failure.error.to_string())
                }
                other => self.failed(&path, other),
            })
        })?;
        let name = facts.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        Ok(Box::new(RemoteModel { backend: self.clone(), model, name, resident: HashMap::new() }))
    }
}

struct RemoteModel {
    backend: DeviceBackend,
    model: ModelId,
    name: String,
    /// Inputs of the next step of a loop that the last one computed.
    resident: HashMap<usize, TensorId>,
}

/// Tensors that were posted, and answers that come.
struct Posted {
    pending: Vec<Pending>,
    sent: u64,
}

impl RemoteModel {
    fn upload(lane: &mut Lane<'_>, tensor: &Tensor, sent: &mut u64) -> Result<TensorId, CallError> {
        let (element, bytes) = bytes_of(tensor);
        *sent += bytes.len() as u64;
        lane.upload(element, tensor.shape(), &bytes)
    }

    fn answers(&self, posted: Posted) -> Result<Vec<Tensor>, CallError> {
        let Posted { pending, sent } = posted;
        let mut times = DeviceTimes { sent, round_trips: 1, ..DeviceTimes::default() };
        let mut results = Ok(Vec::with_capacity(pending.len()));
        for (at, pending) in pending.into_iter().enumerate() {
            let answer = match pending.wait() {
                Ok(answer) => answer,
                // The first error is the reason of those after it.
                Err(error) => {
                    results = results.and(Err(error));
                    continue;
                }
            };
            times.received += answer.bytes() as u64;
            // All were posted together: the time on the way of the first one is that of all.
            times.compute += answer.times.computed;
            if at == 0 {
                times.network = answer.times.network();
                times.queue = answer.times.queue();
            }
            let tensor = answer
                .value()
                .and_then(|value| to_tensor(&value).map_err(|error| CallError::Value(error.to_string())));
            results = results.and_then(|mut all| {
                all.push(tensor?);
                Ok(all)
            });
        }
        self.backend.times.lock().unwrap_or_else(PoisonError::into_inner).add(&times);
        results
    }

    fn post(&self, inputs: &[Tensor], outputs: &[usize]) -> Result<Posted, CallError> {
        let mut lane = self.backend.session.lane();
        let mut sent = 0;
        let uploaded = inputs.iter().map(|tensor| Self::upload(&mut lane, tensor, &mut sent));
        let mut tensors = uploaded.collect::<Result<Vec<_>, _>>()?;
        let wanted: Vec<u32> = outputs.iter().map(|output| *output as u32).collect();
        let results = lane.run(self.model, &tensors, &wanted)?;
        let pending = results.iter().map(|result| lane.read(*result)).collect::<Result<_, _>>()?;
        tensors.extend(results);
        lane.free(&tensors)?;
        Ok(Posted { pending, sent })
    }

    fn post_step(
        &mut self,
        inputs: &[Tensor],
        outputs: &[usize],
        feedback: &[Feedback],
        is_first: bool,
    ) -> Result<Posted, CallError> {
        let mut lane = self.backend.session.lane();
        let (mut sent, mut unneeded) = (0, Vec::new());
        if is_first {
            unneeded.extend(self.resident.drain().map(|(_, tensor)| tensor));
        }
        let mut tensors = Vec::with_capacity(inputs.len());
        for (at, tensor) in inputs.iter().enumerate() {
            let id = match self.resident.remove(&at) {
                Some(id) => id,
                None => Self::upload(&mut lane, tensor, &mut sent)?,
            };
            unneeded.push(id);
            tensors.push(id);
        }
        let kept = feedback.iter().map(|feedback| feedback.output);
        let wanted: Vec<u32> = outputs.iter().copied().chain(kept).map(|output| output as u32).collect();
        let results = lane.run(self.model, &tensors, &wanted)?;
        let (read, kept) = results.split_at(outputs.len());
        let pending = read.iter().map(|result| lane.read(*result)).collect::<Result<_, _>>()?;
        unneeded.extend(read);
        self.resident.extend(feedback.iter().zip(kept).map(|(feedback, tensor)| (feedback.input, *tensor)));
        lane.free(&unneeded)?;
        if outputs.is_empty() {
            // Its error belongs to this step.
            let flush = lane.flush()?;
            drop(lane);
            flush.wait()?;
        }
        Ok(Posted { pending, sent })
    }
}

impl Session for RemoteModel {
    fn run(&mut self, inputs: &[Tensor], outputs: &[usize]) -> Result<Vec<Tensor>, BackendError> {
        let posted = self.post(inputs, outputs);
        posted.and_then(|posted| self.answers(posted)).map_err(|error| self.backend.failed(&self.name, error))
    }

    fn step(
        &mut self,
        inputs: &mut [Tensor],
        outputs: &[usize],
        feedback: &[Feedback],
        is_first: bool,
    ) -> Result<Vec<Tensor>, BackendError> {
        let posted = self.post_step(inputs, outputs, feedback, is_first);
        posted.and_then(|posted| self.answers(posted)).map_err(|error| self.backend.failed(&self.name, error))
    }
}

impl Drop for RemoteModel {
    fn drop(&mut self) {
        let resident: Vec<TensorId> = self.resident.drain().map(|(_, tensor)| tensor).collect();
        if !resident.is_empty() {
            // A session that is lost holds nothing.
            let _ = self.backend.session.lane().free(&resident);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backends::Backends;
    use std::os::unix::net::UnixStream;
    use tidemill_device::carrier::Carrier;
    use tidemill_device::device::Limits;
    use tidemill_device::proxy::{Everybody, serve};
    use tidemill_device::store::Store;
    use tidemill_inference::inspect;
    use tidemill_inference::tensor::TensorData;

    /// Loads and runs a model on a device that has so many bytes beside it.
    fn run_with(memory_beside: i64) -> (Result<Vec<Tensor>, BackendError>, Option<String>) {
        let testdata = Path::new(env!("CARGO_MANIFEST_DIR")).join("../inference/testdata");
        let facts = inspect(&testdata.join("linear.onnx")).unwrap();
        let memory = Some(facts.file_bytes.saturating_add_signed(memory_beside));
        let (ours, theirs) = UnixStream::pair().unwrap();
        let device = std::thread::spawn(move || {
            let folder = tempfile::tempdir().unwrap();
            let mut store = Store::open(&folder.path().join("models"), 1 << 20).unwrap();
            let opener = Backends::open(&["rten".to_owned()], &testdata).unwrap();
            let mut everybody = Everybody(Limits { memory, ..Limits::default() });
            let carrier = Carrier::of_socket(theirs).unwrap();
            serve(carrier, &opener, &mut everybody, &mut store, &folder.path().join("session")).unwrap();
        });
        let session = DeviceSession::open(Carrier::of_socket(ours).unwrap(), "tests", "client").unwrap();
        let session = Arc::new(session);
        let backend = DeviceBackend::new(Arc::clone(&session), "rten");
        let input = Tensor::new(vec![2, 4], TensorData::Float32(vec![0.5; 8])).unwrap();
        let answer = backend.load(&facts).and_then(|mut model| model.run(&[input], &[0]));
        let lost = session.lost();
        drop((backend, session));
        device.join().unwrap();
        (answer, lost)
    }

    #[test]
    fn what_finds_no_memory_on_the_device_may_be_computed_elsewhere() {
        assert!(run_with(1000).0.is_ok());
        for memory_beside in [-1, 8, 40] {
            let (answer, lost) = run_with(memory_beside);
            assert!(matches!(answer, Err(BackendError::Lost { .. })), "{memory_beside}: {answer:?}");
            assert_eq!(lost, None, "the session continues");
        }
    }
}
