//! Backends: what runs an ONNX file. One file each; all behave the same behind [`Backend`] and [`Session`].
pub mod library;
pub mod onnxruntime;
pub mod rten;

use crate::facts::ModelFacts;
use crate::tensor::Tensor;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// A way to run ONNX files.
pub trait Backend: Send + Sync {
    /// Name in manifests, workflows and plans: `rten`, `ort`.
    fn name(&self) -> &'static str;
    /// Version of what runs the models, for reports and for keys of cached measurements.
    fn version(&self) -> String;
    /// Loads a model. The session uses one thread to compute.
    ///
    /// # Errors
    /// [`BackendError::Load`] if the backend refuses the model, for instance for an operator it does not know.
    fn load(&self, facts: &ModelFacts) -> Result<Box<dyn Session>, BackendError>;
}

/// One loaded model. It takes and gives tensors in the order of [`ModelFacts::inputs`] and
/// [`ModelFacts::outputs`].
pub trait Session: Send {
    /// Runs the model once. `outputs`: positions of the outputs that are wanted; the result has the
    /// same order.
    ///
    /// # Errors
    /// [`BackendError::Run`] if the inputs do not fit the model or a computation fails.
    fn run(&mut self, inputs: &[Tensor], outputs: &[usize]) -> Result<Vec<Tensor>, BackendError>;

    /// Processor time so far of threads other than the one that calls [`Session::run`], where there are any.
    fn processor_time_elsewhere(&self) -> Duration {
        Duration::ZERO
    }
}

/// What can go wrong with a backend.
#[derive(Debug, Clone, thiserror::Error)]
pub enum BackendError {
    /// The backend cannot be used on this machine.
    #[error("the backend {backend} is not available: {reason}; {mend}")]
    Unavailable {
        /// Which.
        backend: &'static str,
        /// Why.
        reason: String,
        /// What to do.
        mend: String,
    },
    /// There is no backend of this name.
    #[error("there is no backend called {name:?}; there are: rten, ort")]
    Unknown {
        /// The name.
        name: String,
    },
    /// The backend refuses the model.
    #[error(
        "the backend {backend} cannot load {path}: {reason}; try another backend that the manifest allows"
    )]
    Load {
        /// Which.
        backend: &'static str,
        /// The model file.
        path: String,
        /// What it says.
        reason: String,
    },
    /// A run failed.
    #[error("the backend {backend} failed to run {model}: {reason}")]
    Run {
        /// Which.
        backend: &'static str,
        /// The model file.
        model: String,
        /// What it says.
        reason: String,
    },
}

/// Names of all backends, in the order in which they are tried.
pub const NAMES: [&str; 2] = [onnxruntime::NAME, rten::NAME];

/// The backend of that name. `directory`: where the search for libraries starts (the folder of the
/// workflow); see [`library::find`].
///
/// # Errors
/// [`BackendError::Unavailable`] with what to do, or [`BackendError::Unknown`].
pub fn backend(name: &str, directory: &Path) -> Result<Arc<dyn Backend>, BackendError> {
    match name {
        rten::NAME => Ok(Arc::new(rten::Rten)),
        onnxruntime::NAME => Ok(Arc::new(onnxruntime::OnnxRuntime::open(directory)?)),
        other => Err(BackendError::Unknown { name: other.to_owned() }),
    }
}

/// The file name of a model, for messages.
fn model_name(path: &Path) -> String {
    path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
}
