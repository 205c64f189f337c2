//! Backends, which run ONNX files. Each is one file and one line in the list of [`Registration`]s; all are equivalent
//! as [`Backend`] and [`Session`].
mod graph;
mod known_faults;
pub mod library;
pub mod onnxruntime;
pub(crate) mod panic;
pub mod placement;
mod ranges;
pub mod resident;
pub mod rten;
mod timed;

use self::placement::Placed;
use self::resident::Resident;
pub(crate) use self::timed::Timed;
use crate::facts::{self, FactsError, ModelFacts};
use crate::tensor::Tensor;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tidemill_spec::backend::{BackendChoice, runtime};
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics, suggestion};
use tidemill_spec::manifest::Manifest;
use tidemill_spec::span::Span;
use tidemill_spec::workflow::Workflow;

/// A runtime for ONNX files.
pub trait Backend: Send + Sync {
    /// Name in manifests, workflows and plans.
    fn name(&self) -> &'static str;
    /// Version of the runtime, for reports and for keys of cached measurements.
    fn version(&self) -> String;
    /// Whether it loads a model only if the manifest names it under `backends`. One that has the model already needs no leave.
    fn is_named_by_manifests(&self) -> bool {
        true
    }
    /// Loads a model. The session uses one thread to compute.
    ///
    /// # Errors
    /// [`BackendError::Load`] if the backend refuses the model, for instance because of an unknown operator.
    fn load(&self, facts: &ModelFacts) -> Result<Box<dyn Session>, BackendError>;
}

/// One loaded model. It reads and returns tensors in the order of [`ModelFacts::inputs`] and [`ModelFacts::outputs`].
pub trait Session: Send {
    /// Runs the model once. `outputs`: positions of the requested outputs; the result has their order.
    ///
    /// # Errors
    /// [`BackendError::Run`] if the inputs do not fit the model or a computation fails.
    fn run(&mut self, inputs: &[Tensor], outputs: &[usize]) -> Result<Vec<Tensor>, BackendError>;

    /// Runs the model once in a loop, and keeps outputs as inputs of the next step. Tensors in `inputs` of which an earlier
    /// step kept another need not be up to date, unless this step `is_first`. The result has the `outputs` alone.
    ///
    /// # Errors
    /// As [`Session::run`].
    fn step(
        &mut self,
        inputs: &mut [Tensor],
        outputs: &[usize],
        feedback: &[Feedback],
        is_first: bool,
    ) -> Result<Vec<Tensor>, BackendError> {
        let _ = is_first; // here nothing is kept beside the inputs
        let wanted: Vec<usize> =
            outputs.iter().copied().chain(feedback.iter().map(|feedback| feedback.output)).collect();
        let mut results = self.run(inputs, &wanted)?;
        let kept = results.split_off(outputs.len().min(results.len()));
        for (feedback, tensor) in feedback.iter().zip(kept) {
            inputs[feedback.input] = tensor;
        }
        Ok(results)
    }

    /// Puts a tensor where the session computes.
    ///
    /// # Errors
    /// [`BackendError::Run`] if there is no memory for it.
    fn upload(&mut self, tensor: Tensor) -> Result<Resident, BackendError> {
        Ok(Resident::host(tensor))
    }

    /// Whether [`Session::run_resident`] saves copies: the session keeps values in a form or memory of its own.
    fn keeps_values(&self) -> bool {
        false
    }

    /// Runs the model once as [`Session::run`] does, on values that are where it computes, and leaves the outputs there: they are
    /// inputs of this or of another model without a copy. A session that has no own memory reads the inputs.
    ///
    /// # Errors
    /// As [`Session::run`].
    fn run_resident(
        &mut self,
        inputs: &[Resident],
        outputs: &[usize],
    ) -> Result<Vec<Resident>, BackendError> {
        let inputs = inputs.iter().map(Resident::read).collect::<Result<Vec<_>, _>>()?;
        Ok(self.run(&inputs, outputs)?.into_iter().map(Resident::host).collect())
    }

    /// Providers that compute the operators of the model, the processor last; nothing where the backend has one provider only.
    fn placement(&self) -> &[Placed] {
        &[]
    }

    /// Processor time so far of threads other than the caller of [`Session::run`], if there are any.
    fn processor_time_elsewhere(&self) -> Duration {
        Duration::ZERO
    }
}

/// An output that becomes an input of the next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Feedback {
    /// Position of the output.
    pub output: usize,
    /// Position of the input.
    pub input: usize,
}

/// Error of a backend.
#[derive(Debug, Clone, thiserror::Error)]
pub enum BackendError {
    /// The backend cannot be used on this machine.
    #[error("the backend {backend} is not available: {reason}; {fix}")]
    Unavailable {
        /// Name of the backend.
        backend: &'static str,
        /// Reason.
        reason: String,
        /// Advice.
        fix: String,
    },
    /// There is no backend of this name.
    #[error("there is no backend called {name:?}; there are: {known}")]
    Unknown {
        /// The name.
        name: String,
        /// The existing names.
        known: String,
    },
    /// The backend refuses the model.
    #[error("the backend {backend} cannot load {path}: {reason}; try another backend of the manifest")]
    Load {
        /// Name of the backend.
        backend: &'static str,
        /// The model file.
        path: String,
        /// Message of the backend.
        reason: String,
    },
    /// An output has another shape or element type than in the manifest.
    #[error("the backend {backend} failed to run {model}: {reason}")]
    Shape {
        /// Name of the backend.
        backend: &'static str,
        /// The model.
        model: String,
        /// Expected and found.
        reason: String,
        /// Whether the number of rows depends on the model's findings instead of the records.
        changes: bool,
    },
    /// The process or host that computed is gone; whether it computed is not known.
    #[error("the backend {backend} lost {model}: {reason}")]
    Lost {
        /// Name of the backend.
        backend: &'static str,
        /// The model.
        model: String,
        /// The reason.
        reason: String,
    },
    /// A run failed.
    #[error("the backend {backend} failed to run {model}: {reason}")]
    Run {
        /// Name of the backend.
        backend: &'static str,
        /// The model file.
        model: String,
        /// Message of the backend.
        reason: String,
    },
}

/// Registration of a backend.
#[derive(Debug, Clone, Copy)]
pub struct Registration {
    /// Name in manifests, workflows and plans.
    pub name: &'static str,
    /// Short description.
    pub summary: &'static str,
    /// Opens the backend; an error has advice. The search for libraries starts at the folder; see [`library::find`].
    pub open: fn(&Path) -> Result<Arc<dyn Backend>, BackendError>,
    /// Whether it can be used here, where that is known without taking a library into use; none: [`Self::open`] shows it.
    pub is_here: Option<fn(&Path) -> bool>,
    /// Reads what a file that it loads declares: the entry of a manifest's `artifacts`.
    pub inspect: fn(&Path) -> Result<ModelFacts, FactsError>,
}

impl Registration {
    /// A backend that loads ONNX files.
    pub const fn onnx(
        name: &'static str,
        summary: &'static str,
        open: fn(&Path) -> Result<Arc<dyn Backend>, BackendError>,
    ) -> Self {
        Self { name, summary, open, is_here: None, inspect: facts::inspect }
    }

    fn is_usable(&self, directory: &Path) -> bool {
        self.is_here.map_or_else(|| (self.open)(directory).is_ok(), |is_here| is_here(directory))
    }
}

/// The backends of this crate, in the order of preference, then those of providers.
fn built_in() -> impl Iterator<Item = Registration> {
    [onnxruntime::REGISTRATION, rten::REGISTRATION].into_iter().chain(onnxruntime::PROVIDERS)
}

/// Registered backends of other crates.
static ADDED: RwLock<Vec<Registration>> = RwLock::new(Vec::new());

/// Adds a backend to this process, before any file that names it is read. Returns false if the name is taken or is `auto`.
pub fn register(backend: Registration) -> bool {
    let mut added = ADDED.write().unwrap_or_else(PoisonError::into_inner);
    let is_new = backend.name != BackendChoice::AUTO
        && built_in().chain(added.iter().copied()).all(|other| other.name != backend.name);
    if is_new {
        added.push(backend);
    }
    is_new
}

/// Returns all backends, in the order of preference.
pub fn registered() -> impl Iterator<Item = Registration> {
    let added = ADDED.read().unwrap_or_else(PoisonError::into_inner).clone();
    built_in().chain(added)
}

/// Returns all backends, in the order of preference, each with whether it is usable here; of providers (`ort:cuda`) those that are
/// usable, because another library has others, which no installation adds to this one. A library without providers beside it is not
/// taken into use. `directory`: see [`backend`].
pub fn usable(directory: &Path) -> Vec<(&'static str, bool)> {
    let mut all: Vec<(&str, bool)> = Vec::new();
    for backend in registered() {
        let runtime = runtime(backend.name);
        let is_provider = runtime != backend.name;
        if is_provider && all.contains(&(runtime, false)) {
            continue;
        }
        // Opening a library takes it into use: one without the part of the provider beside it is not opened.
        if is_provider && !onnxruntime::may_have(backend.name, directory) {
            continue;
        }
        let is_usable = backend.is_usable(directory);
        if is_usable || !is_provider {
            all.push((backend.name, is_usable));
        }
    }
    all
}

fn names() -> Vec<&'static str> {
    registered().map(|backend| backend.name).collect()
}

/// Returns the backend of that name. `directory`: start of the search for libraries (the folder of the workflow); see
/// [`library::find`].
///
/// # Errors
/// [`BackendError::Unavailable`] with advice, or [`BackendError::Unknown`].
pub fn backend(name: &str, directory: &Path) -> Result<Arc<dyn Backend>, BackendError> {
    match registered().find(|backend| backend.name == name) {
        Some(backend) => (backend.open)(directory),
        None => Err(unknown_name(name)),
    }
}

pub(crate) fn unknown_name(name: &str) -> BackendError {
    BackendError::Unknown { name: name.to_owned(), known: names().join(", ") }
}

/// Checks the backends named in a workflow.
pub fn check_workflow(workflow: &Workflow) -> Diagnostics {
    let named = workflow.operators.iter().filter_map(|operator| operator.backend.as_ref());
    let named = named.filter_map(|choice| Some((choice.value.named()?, &choice.span)));
    let mut possible = vec![BackendChoice::AUTO];
    possible.extend(names());
    unknown(named, &possible)
}

/// Checks the backends named in a manifest.
pub fn check_manifest(manifest: &Manifest) -> Diagnostics {
    unknown(manifest.backends.iter().map(|backend| (backend.0.as_str(), &backend.span)), &names())
}

fn unknown<'a>(named: impl Iterator<Item = (&'a str, &'a Span)>, possible: &[&str]) -> Diagnostics {
    let unknown = named.filter(|(name, _)| !possible.contains(name));
    let finding = |(name, span): (&str, &Span)| {
        let mut help = suggestion(name, possible.iter().copied(), "possible values");
        if help.starts_with("did you mean") {
            let all: Vec<String> = possible.iter().map(|name| format!("`{name}`")).collect();
            help = format!("{help} possible values: {}", all.join(", "));
        }
        Diagnostic::error("E0114", format!("unknown value `{name}`")).at(span.clone()).with_help(help)
    };
    unknown.map(finding).collect()
}

/// The file name of a model, for messages.
fn model_name(path: &Path) -> String {
    path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_to_be_usable_is_what_can_be_opened() {
        let told = usable(Path::new("."));
        assert!(told.contains(&("rten", true)), "it is built in: {told:?}");
        for (name, is_usable) in told {
            assert_eq!(backend(name, Path::new(".")).is_ok(), is_usable, "{name}");
        }
    }
}
