//! The backend `ort`: ONNX Runtime, loaded at the first use.
//!
//! A process loads the library once, from the first folder that has a usable one.
//!
//! A session computes on the CPU, or on the provider that the name of its backend has: `ort:cuda`.
mod assignment;
mod provider;
mod session;
mod values;

use self::provider::Provider;
use self::session::OnnxRuntimeSession;
use super::library::{self, Found};
use super::placement::Placed;
use super::{Backend, BackendError, Registration, Session, model_name};
use crate::facts::{ModelFacts, Port, PortElement};
use crate::zip_map;
use ort::environment::Environment;
use ort::logging::LogLevel;
use ort::session::Session as OrtSession;
use ort::session::builder::GraphOptimizationLevel;
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

pub use self::provider::REGISTRATIONS as PROVIDERS;
pub(super) use self::provider::may_have;

/// The backend.
#[derive(Debug, Clone)]
pub struct OnnxRuntime {
    environment: Environment,
    library: PathBuf,
    version: String,
    /// None: the CPU computes.
    provider: Option<&'static Provider>,
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

    /// Returns the providers that the library was built with, besides the CPU, each with why it does not start here, if it does
    /// not. Looks at each, which may take a second.
    pub fn providers(&self) -> Vec<(&'static str, Option<String>)> {
        provider::of(self)
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
        Ok(Self { environment, library: path, version, provider: None })
    }
}

impl Backend for OnnxRuntime {
    fn name(&self) -> &'static str {
        self.provider.map_or(NAME, |provider| provider.backend)
    }

    fn version(&self) -> String {
        self.version.clone()
    }

    fn load(&self, facts: &ModelFacts) -> Result<Box<dyn Session>, BackendError> {
        Ok(Box::new(self.open_session(facts)?))
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

impl OnnxRuntime {
    fn open_session(&self, facts: &ModelFacts) -> Result<OnnxRuntimeSession, BackendError> {
        let (session, placement) = self.session(facts).map_err(|reason| BackendError::Load {
            backend: self.name(),
            path: facts.path.display().to_string(),
            reason,
        })?;
        let names = |ports: &[Port]| ports.iter().map(|port| port.name.clone()).collect();
        let is_bool = |port: &Port| port.element == PortElement::Known(ElementType::Bool);
        Ok(OnnxRuntimeSession {
            session,
            backend: self.name(),
            placement,
            memory: self.provider.and_then(|provider| provider.memory.clone()),
            truth: facts.inputs.iter().map(is_bool).collect(),
            inputs: names(&facts.inputs),
            outputs: names(&facts.outputs),
            kept: HashMap::new(),
            name: model_name(&facts.path),
        })
    }

    /// Loads a model, and reads what its provider computes of it. One thread and no spinning: the engine decides about parallelism,
    /// and idle sessions use no time.
    fn session(&self, facts: &ModelFacts) -> Result<(OrtSession, Vec<Placed>), String> {
        let text = |error: ort::Error<ort::session::builder::SessionBuilder>| error.to_string();
        let mut builder = OrtSession::builder(&self.environment)
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
        if let Some(provider) = self.provider {
            builder = provider.append(builder)?.with_config_entry(assignment::RECORD, "1").map_err(text)?;
        }
        let session = if facts.maps.is_empty() {
            builder.commit_from_file(&facts.path)
        } else {
            let file = std::fs::read(&facts.path).map_err(|error| error.to_string())?;
            let file = zip_map::as_tensors(&file).map_err(|error| error.to_string())?;
            builder.commit_from_memory(&file)
        };
        let session = session.map_err(|error| error.to_string())?;
        let Some(provider) = self.provider else { return Ok((session, Vec::new())) };
        let placement = assignment::read(&session).map_err(|error| error.to_string())?;
        provider.computes(&placement)?;
        Ok((session, placement))
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
