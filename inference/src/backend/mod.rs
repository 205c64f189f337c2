//! Backends: what runs an ONNX file. One file and one line in the list of [`Registration`]s each; all behave the same
//! behind [`Backend`] and [`Session`].
mod graph;
mod known_faults;
pub mod library;
pub mod onnxruntime;
mod panic;
mod ranges;
pub mod rten;

use crate::facts::{self, FactsError, ModelFacts};
use crate::tensor::Tensor;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tidemill_spec::backend::BackendChoice;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics, suggestion};
use tidemill_spec::manifest::Manifest;
use tidemill_spec::span::Span;
use tidemill_spec::workflow::Workflow;

/// A way to run ONNX files.
pub trait Backend: Send + Sync {
    /// Name in manifests, workflows and plans.
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
    #[error("the backend {backend} is not available: {reason}; {fix}")]
    Unavailable {
        /// Name of the backend.
        backend: &'static str,
        /// Why.
        reason: String,
        /// What to do.
        fix: String,
    },
    /// There is no backend of this name.
    #[error("there is no backend called {name:?}; there are: {known}")]
    Unknown {
        /// The name.
        name: String,
        /// The names that there are.
        known: String,
    },
    /// The backend refuses the model.
    #[error(
        "the backend {backend} cannot load {path}: {reason}; try another backend that the manifest allows"
    )]
    Load {
        /// Name of the backend.
        backend: &'static str,
        /// The model file.
        path: String,
        /// What it says.
        reason: String,
    },
    /// An output has another shape or element type than the manifest says.
    #[error("the backend {backend} failed to run {model}: {reason}")]
    Shape {
        /// Name of the backend.
        backend: &'static str,
        /// The model.
        model: String,
        /// What was expected and what was found.
        reason: String,
        /// Whether the output has as many rows as the model found things, not as there are records.
        changes: bool,
    },
    /// A run failed.
    #[error("the backend {backend} failed to run {model}: {reason}")]
    Run {
        /// Name of the backend.
        backend: &'static str,
        /// The model file.
        model: String,
        /// What it says.
        reason: String,
    },
}

/// How a backend is found.
#[derive(Debug, Clone, Copy)]
pub struct Registration {
    /// Name in manifests, workflows and plans.
    pub name: &'static str,
    /// What it is, in a few words.
    pub summary: &'static str,
    /// Gives the backend, or what to do where it cannot be used. The search for libraries starts at the folder; see
    /// [`library::find`].
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

/// The backends of this crate, the one that is tried first first.
const BUILT_IN: &[Registration] = &[onnxruntime::REGISTRATION, rten::REGISTRATION];

/// Those of others.
static ADDED: RwLock<Vec<Registration>> = RwLock::new(Vec::new());

/// Adds a backend to this process, before any file is read that names it. Whether it did: a name that is there already
/// stays with the backend that has it, and `auto` is nobody's.
pub fn register(backend: Registration) -> bool {
    let mut added = ADDED.write().unwrap_or_else(PoisonError::into_inner);
    let is_new = backend.name != BackendChoice::AUTO
        && BUILT_IN.iter().chain(&*added).all(|other| other.name != backend.name);
    if is_new {
        added.push(backend);
    }
    is_new
}

/// All backends, in the order in which they are tried.
pub fn registered() -> impl Iterator<Item = Registration> {
    let added = ADDED.read().unwrap_or_else(PoisonError::into_inner).clone();
    BUILT_IN.iter().copied().chain(added)
}

/// All backends, in the order in which they are tried, each with whether it can be used here. `directory`: as for [`backend`].
pub fn usable(directory: &Path) -> Vec<(&'static str, bool)> {
    registered().map(|backend| (backend.name, backend.is_usable(directory))).collect()
}

fn names() -> Vec<&'static str> {
    registered().map(|backend| backend.name).collect()
}

/// The backend of that name. `directory`: where the search for libraries starts (the folder of the
/// workflow); see [`library::find`].
///
/// # Errors
/// [`BackendError::Unavailable`] with what to do, or [`BackendError::Unknown`].
pub fn backend(name: &str, directory: &Path) -> Result<Arc<dyn Backend>, BackendError> {
    match registered().find(|backend| backend.name == name) {
        Some(backend) => (backend.open)(directory),
        None => Err(unknown_name(name)),
    }
}

pub(crate) fn unknown_name(name: &str) -> BackendError {
    BackendError::Unknown { name: name.to_owned(), known: names().join(", ") }
}

/// What is wrong with the backends that a workflow names.
pub fn check_workflow(workflow: &Workflow) -> Diagnostics {
    let named = workflow.operators.iter().filter_map(|operator| operator.backend.as_ref());
    let named = named.filter_map(|choice| Some((choice.value.named()?, &choice.span)));
    let mut possible = vec![BackendChoice::AUTO];
    possible.extend(names());
    unknown(named, &possible)
}

/// What is wrong with the backends that a manifest names.
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
