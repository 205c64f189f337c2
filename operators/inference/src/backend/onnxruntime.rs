//! The backend `ort`: ONNX Runtime, loaded at the first use.
//!
//! A process loads the library once, from the first folder that has a usable one.
use super::library::{self, Found};
use super::{Backend, BackendError, Feedback, Registration, Session, model_name};
use crate::facts::{ModelFacts, PortElement};
use crate::tensor::{Tensor, TensorData};
use crate::zip_map;
use ort::environment::Environment;
use ort::logging::LogLevel;
use ort::session::Session as OrtSession;
use ort::session::builder::GraphOptimizationLevel;
use ort::value::{
    DynValue, PrimitiveTensorElementType, Tensor as OrtTensor, TensorElementType, TensorRef, ValueType,
};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tidemill_spec::types::ElementType;

/// Name in manifests and plans.
pub const NAME: &str = "ort";
/// Oldest ONNX Runtime 1.N that the bindings accept.
const OLDEST: u32 = ort::MINOR_VERSION;
const FIX: &str = "run `tidemill doctor --fix` (needs network and python3), or set TIDEMILL_ONNXRUNTIME to the \
                    library file; a container needs an image with it (`scripts/image.sh --onnxruntime`); models also run on the \
                    backend rten";

/// Its registration.
pub const REGISTRATION: Registration = Registration {
    is_here: Some(is_here),
    ..Registration::onnx(NAME, "ONNX Runtime.", |directory| Ok(Arc::new(OnnxRuntime::open(directory)?)))
};

/// The backend.
#[derive(Debug, Clone)]
pub struct OnnxRuntime {
    environment: Environment,
    library: PathBuf,
    version: String,
}

static LOADED: Mutex<Option<OnnxRuntime>> = Mutex::new(None);

/// Returns whether a usable library is found, see [`library::find`]. Its version is checked by loading it, which may take a while
/// and runs its initialisers, but it is not used.
pub fn is_here(directory: &Path) -> bool {
    match library::find(&library::ONNXRUNTIME, directory) {
        Found::Named { path, .. } => accepted(&path).is_ok(),
        Found::Searched { candidates, .. } => candidates.iter().any(|path| accepted(path).is_ok()),
    }
}

/// Returns the file of a library that the bindings accept, and its minor version 1.x; else the reason.
fn accepted(path: &Path) -> Result<(PathBuf, u32), String> {
    let path = std::fs::canonicalize(path).map_err(|error| error.to_string())?;
    if !path.is_file() {
        return Err("it is not a file".to_owned());
    }
    let minor = ort::util::probe(&path).ok_or("it is not an ONNX Runtime 1.x library for this machine")?;
    if minor < OLDEST {
        return Err(format!("it is version 1.{minor}, but 1.{OLDEST} or newer is needed"));
    }
    Ok((path, minor))
}

impl OnnxRuntime {
    /// Finds and loads the library, see [`library::find`].
    ///
    /// # Errors
    /// [`BackendError::Unavailable`] with the attempts and advice.
    pub fn open(directory: &Path) -> Result<Self, BackendError> {
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(runtime) = &*loaded {
            return Ok(runtime.clone());
        }
        let runtime = Self::load_first(library::find(&library::ONNXRUNTIME, directory))
            .map_err(|reason| BackendError::Unavailable { backend: NAME, reason, fix: FIX.to_owned() })?;
        tracing::debug!(library = %runtime.library.display(), version = runtime.version, "ONNX Runtime loaded");
        Ok(loaded.insert(runtime).clone())
    }

    /// The library file in use.
    pub fn library(&self) -> &Path {
        &self.library
    }

    fn load_first(found: Found) -> Result<Self, String> {
        match found {
            Found::Named { variable, path } => Self::load_library(&path)
                .map_err(|reason| format!("{variable} names {}: {reason}", path.display())),
            Found::Searched { candidates, folders } => {
                let mut refused = Vec::new();
                for path in candidates {
                    match Self::load_library(&path) {
                        Ok(runtime) => return Ok(runtime),
                        Err(reason) => refused.push(format!("{}: {reason}", path.display())),
                    }
                }
                if refused.is_empty() {
                    let first = folders.first().map(|f| f.display().to_string()).unwrap_or_default();
                    return Err(format!(
                        "no libonnxruntime.so in {first} and {} other folders",
                        folders.len().saturating_sub(1)
                    ));
                }
                Err(refused.join("; "))
            }
        }
    }

    /// Checks everything before the first call into the bindings, which panic when they load a library lazily and it is
    /// missing or too old.
    fn load_library(path: &Path) -> Result<Self, String> {
        let (path, minor) = accepted(path)?;
        let environment = ort::init_from(&path)
            .map_err(|error| error.to_string())?
            .with_name("tidemill")
            .with_telemetry(false)
            .with_logger(Arc::new(|level, category, _, place, message| log(level, category, place, message)))
            .build()
            .map_err(|error| error.to_string())?;
        environment.set_log_level(LogLevel::Error);
        let version = path
            .file_name()
            .and_then(|name| name.to_str())
            .and_then(|name| name.strip_prefix("libonnxruntime.so."))
            .map_or_else(|| format!("1.{minor}"), str::to_owned);
        Ok(Self { environment, library: path, version })
    }
}

impl Backend for OnnxRuntime {
    fn name(&self) -> &'static str {
        NAME
    }

    fn version(&self) -> String {
        self.version.clone()
    }

    fn load(&self, facts: &ModelFacts) -> Result<Box<dyn Session>, BackendError> {
        let session = build(&self.environment, facts).map_err(|reason| BackendError::Load {
            backend: NAME,
            path: facts.path.display().to_string(),
            reason,
        })?;
        let names = |ports: &[crate::facts::Port]| ports.iter().map(|port| port.name.clone()).collect();
        Ok(Box::new(OnnxRuntimeSession {
            session,
            truth: facts
                .inputs
                .iter()
                .map(|port| port.element == PortElement::Known(ElementType::Bool))
                .collect(),
            inputs: names(&facts.inputs),
            outputs: names(&facts.outputs),
            kept: HashMap::new(),
            name: model_name(&facts.path),
        }))
    }
}

/// Forwards ONNX Runtime's messages to our log, one level lower: the failed call returns its errors too.
fn log(level: LogLevel, category: &str, place: &str, message: &str) {
    match level {
        LogLevel::Fatal => tracing::error!(target: "ort", category, place, "{message}"),
        LogLevel::Error => tracing::warn!(target: "ort", category, place, "{message}"),
        LogLevel::Warning => tracing::info!(target: "ort", category, place, "{message}"),
        LogLevel::Info => tracing::debug!(target: "ort", category, place, "{message}"),
        LogLevel::Verbose => tracing::trace!(target: "ort", category, place, "{message}"),
    }
}

/// One thread and no spinning: the engine decides about parallelism, and idle sessions use no time.
fn build(environment: &Environment, facts: &ModelFacts) -> Result<OrtSession, String> {
    let text = |error: ort::Error<ort::session::builder::SessionBuilder>| error.to_string();
    let mut builder = OrtSession::builder(environment)
        .map_err(|error| error.to_string())?
        .with_optimization_level(GraphOptimizationLevel::All)
        .map_err(text)?
        .with_intra_threads(1)
        .map_err(text)?
        .with_inter_threads(1)
        .map_err(text)?
        .with_intra_op_spinning(false)
        .map_err(text)?
        .with_inter_op_spinning(false)
        .map_err(text)?;
    let session = if facts.maps.is_empty() {
        builder.commit_from_file(&facts.path)
    } else {
        let file = std::fs::read(&facts.path).map_err(|error| error.to_string())?;
        let file = zip_map::as_tensors(&file).map_err(|error| error.to_string())?;
        builder.commit_from_memory(&file)
    };
    session.map_err(|error| error.to_string())
}

struct OnnxRuntimeSession {
    session: OrtSession,
    inputs: Vec<String>,
    /// Whether each of them is bool; those get integers, with 0 as false.
    truth: Vec<bool>,
    outputs: Vec<String>,
    /// Values of inputs that the last step of a loop computed, by position.
    kept: HashMap<usize, DynValue>,
    name: String,
}

fn failed(model: &str, reason: impl ToString) -> BackendError {
    BackendError::Run { backend: NAME, model: model.to_owned(), reason: reason.to_string() }
}

fn value(tensor: &Tensor, truth: bool) -> ort::Result<ort::session::SessionInputValue<'_>> {
    let shape = tensor.shape().to_vec();
    Ok(match tensor.data() {
        TensorData::Int64(values) if truth => {
            let values: Vec<bool> = values.iter().map(|value| *value != 0).collect();
            OrtTensor::from_array((shape, values))?.into()
        }
        TensorData::Float32(values) => TensorRef::from_array_view((shape, values.as_slice()))?.into(),
        TensorData::Float16(values) => TensorRef::from_array_view((shape, values.as_slice()))?.into(),
        TensorData::Int64(values) => TensorRef::from_array_view((shape, values.as_slice()))?.into(),
        TensorData::Uint8(values) => TensorRef::from_array_view((shape, values.as_slice()))?.into(),
        TensorData::Int8(values) => TensorRef::from_array_view((shape, values.as_slice()))?.into(),
        TensorData::Int32(values) => TensorRef::from_array_view((shape, values.as_slice()))?.into(),
        TensorData::Float64(values) => TensorRef::from_array_view((shape, values.as_slice()))?.into(),
        TensorData::Bool(values) => TensorRef::from_array_view((shape, values.as_slice()))?.into(),
        TensorData::Text(values) => OrtTensor::from_string_array((shape, values.as_slice()))?.into(),
    })
}

fn tensor(value: &DynValue) -> Result<Tensor, String> {
    let ValueType::Tensor { ty, .. } = value.dtype() else {
        return Err("an output is not a tensor".to_owned());
    };
    match ty {
        TensorElementType::Float32 => extracted(value, TensorData::Float32),
        TensorElementType::Float16 => extracted(value, TensorData::Float16),
        TensorElementType::Int64 => extracted(value, TensorData::Int64),
        TensorElementType::Uint8 => extracted(value, TensorData::Uint8),
        TensorElementType::Int8 => extracted(value, TensorData::Int8),
        TensorElementType::Int32 => extracted(value, TensorData::Int32),
        TensorElementType::Float64 => extracted(value, TensorData::Float64),
        TensorElementType::Bool => extracted(value, TensorData::Bool),
        TensorElementType::String => {
            let (shape, values) = value.try_extract_strings().map_err(|error| error.to_string())?;
            let shape = shape.iter().map(|size| usize::try_from(*size).unwrap_or(0)).collect();
            Tensor::new(shape, TensorData::Text(values)).map_err(|error| error.to_string())
        }
        other => Err(format!("an output is {other}, which is no element type of a column")),
    }
}

fn extracted<T: PrimitiveTensorElementType + Clone>(
    value: &DynValue,
    data: fn(Vec<T>) -> TensorData,
) -> Result<Tensor, String> {
    let (shape, values) = value.try_extract_tensor::<T>().map_err(|error| error.to_string())?;
    let shape = shape.iter().map(|size| usize::try_from(*size).unwrap_or(0)).collect();
    Tensor::new(shape, data(values.to_vec())).map_err(|error| error.to_string())
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
}

impl OnnxRuntimeSession {
    fn compute(
        &mut self,
        inputs: &[Tensor],
        outputs: &[usize],
        feedback: &[Feedback],
    ) -> Result<Vec<Tensor>, BackendError> {
        let name = self.name.as_str();
        if inputs.len() != self.inputs.len() {
            return Err(failed(name, format!("{} inputs given, it has {}", inputs.len(), self.inputs.len())));
        }
        let values = self
            .inputs
            .iter()
            .zip(inputs)
            .zip(&self.truth)
            .enumerate()
            .map(|(at, ((port, tensor), truth))| {
                let value = match self.kept.get(&at) {
                    Some(kept) => kept.into(),
                    None => value(tensor, *truth).map_err(|error| failed(name, error))?,
                };
                Ok((port.as_str(), value))
            })
            .collect::<Result<Vec<_>, BackendError>>()?;
        let mut results = self.session.run(values).map_err(|error| failed(name, error))?;
        let port =
            |at: usize| self.outputs.get(at).ok_or_else(|| failed(name, format!("it has no output {at}")));
        let found = outputs
            .iter()
            .map(|at| {
                let port = port(*at)?;
                let value =
                    results.get(port).ok_or_else(|| failed(name, format!("it returned no {port}")))?;
                tensor(value).map_err(|reason| failed(name, reason))
            })
            .collect::<Result<_, _>>()?;
        for Feedback { output, input } in feedback {
            let port = port(*output)?;
            let value = results.remove(port).ok_or_else(|| failed(name, format!("it returned no {port}")))?;
            self.kept.insert(*input, value);
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_or_wrong_library_is_a_reason_not_a_panic() {
        let folder = tempfile::tempdir().unwrap();
        let wrong = folder.path().join("libonnxruntime.so");
        std::fs::write(&wrong, "not a library").unwrap();
        for path in [folder.path().join("missing.so"), folder.path().to_owned(), wrong.clone()] {
            assert!(OnnxRuntime::load_library(&path).is_err(), "{}", path.display());
            assert!(accepted(&path).is_err(), "{}", path.display());
        }
        let found = Found::Searched { candidates: vec![wrong], folders: vec![folder.path().to_owned()] };
        assert!(OnnxRuntime::load_first(found).unwrap_err().contains("libonnxruntime.so"));
        let found = Found::Named { variable: "TIDEMILL_ONNXRUNTIME", path: "/missing.so".into() };
        assert!(OnnxRuntime::load_first(found).unwrap_err().starts_with("TIDEMILL_ONNXRUNTIME names"));
    }
}
