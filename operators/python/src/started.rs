//! Processes that were started to check a workflow: asked what they are once, and taken by the first instance.
use crate::caller::cannot_start;
use crate::launch::{Greeting, Launch};
use crate::options::Declared;
use crate::process::Process;
use crate::protocol::StartError;
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics, suggestion};
use tidemill_spec::span::{Located, SourceFile, Span};
use tidemill_spec::types::{Column, ColumnType, StreamType};

/// All that were started and are in use; clones share them.
#[derive(Clone, Default)]
pub(crate) struct Starts(Arc<Mutex<HashMap<String, Weak<Started>>>>);

/// A step, source or sink that was started once.
pub(crate) struct Started {
    pub(crate) greeting: Greeting,
    /// Its process, which the first instance takes.
    pub(crate) first: Arc<Mutex<Option<Process>>>,
}

impl Starts {
    /// Starts a step to ask what it is, unless that was done for a bound operator that still exists.
    pub(crate) fn start(&self, launch: &Launch) -> Result<Arc<Started>, StartError> {
        let key = format!("{launch:?}");
        let mut started = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = started.get(&key).and_then(Weak::upgrade) {
            return Ok(known);
        }
        let process = Process::start(launch)?;
        let greeting = process.greeting.clone();
        let new = Arc::new(Started { greeting, first: Arc::new(Mutex::new(Some(process))) });
        started.insert(key, Arc::downgrade(&new));
        Ok(new)
    }
}

/// The options that name the code of a user.
pub(crate) struct Names<'a> {
    pub(crate) module: &'a Located<String>,
    /// The function or class.
    pub(crate) target: &'a Located<String>,
    pub(crate) python: Option<&'a Located<String>>,
}

/// Checks that the further files of a module exist.
///
/// # Errors
/// Each that does not, at its place.
pub(crate) fn are_there(base: &Path, files: &[Located<String>]) -> Result<(), Diagnostics> {
    let mut errors = Diagnostics::new();
    for file in files.iter().filter(|file| !base.join(&file.value).exists()) {
        let text = format!("there is no file or folder `{file}`");
        let help = "write a path relative to the workflow file, or remove it";
        errors.push(Diagnostic::error("E0609", text).at(file.span.clone()).with_help(help));
    }
    errors.into_result(())
}

/// The error for code that cannot start: at its line of Python, if that is known.
pub(crate) fn not_started(id: &str, names: &Names<'_>, error: &StartError) -> Diagnostic {
    let first = cannot_start(id, error);
    if !error.names.is_empty() {
        let help = suggestion(names.target, error.names.iter().map(String::as_str), "names in the module");
        return Diagnostic::error("E0617", first.lines().next().unwrap_or_default())
            .at(names.target.span.clone())
            .with_help(help);
    }
    let place = &names.module.span;
    let (text, trace) = first.split_once('\n').unwrap_or((&first, ""));
    let mut found = Diagnostic::error("E0617", text);
    found = match error.file.as_deref().zip(error.line).and_then(|(file, line)| line_of(file, line)) {
        Some(span) => found.at(span).with_related(place.clone(), "the step is named here"),
        None => found.at(place.clone()),
    };
    if !trace.is_empty() {
        return found.with_help(trace.to_owned());
    }
    match names.python {
        None => found.with_help(
            "install Python 3.9 or newer as `python3`, or name an interpreter or virtual environment with `python`",
        ),
        Some(_) => found.with_help("name an interpreter, or the folder of a virtual environment, with `python`"),
    }
}

fn line_of(file: &str, line: u64) -> Option<Span> {
    let text = std::fs::read_to_string(file).ok()?;
    let before = usize::try_from(line).ok()?.checked_sub(1)?;
    let start: usize = text.split_inclusive('\n').take(before).map(str::len).sum();
    let length = text.get(start..)?.lines().next()?.len();
    let indent = text.get(start..start + length)?.len() - text.get(start..start + length)?.trim_start().len();
    Some(Span::new(&SourceFile::new(file, text), start + indent, start + length))
}

/// The columns of the output: of the workflow, or of the annotations; both must agree.
pub(crate) fn output_type(
    id: &str,
    names: &Names<'_>,
    (written, declared): (Option<&Declared>, Option<StreamType>),
    greeting: &Greeting,
) -> Result<StreamType, Diagnostic> {
    let annotated = greeting.output.as_ref().and_then(|columns| {
        let columns =
            columns.iter().map(|(name, written)| Some(Column::new(name, ColumnType::named(written)?)));
        columns.collect::<Option<Vec<_>>>().map(StreamType::new)
    });
    match (declared, annotated) {
        (Some(declared), Some(annotated)) if declared != annotated => {
            let text = format!(
                "the workflow says that `{id}` gives {declared}, and its annotation says {annotated}"
            );
            let place = written.and_then(|output| output.0.first());
            let place = place.map_or_else(|| names.target.span.clone(), |(name, _)| name.span.clone());
            let help = "change one of them, or remove `output`: the annotation is enough where Python can be started";
            Err(Diagnostic::error("E0617", text).at(place).with_help(help))
        }
        (Some(output), _) | (None, Some(output)) => Ok(output),
        (None, None) => {
            let text = format!("nothing says what columns `{id}` gives ({})", greeting.language);
            let help = "add `output: {camera: text, score: float64}`, or annotate the result of the function with a \
                        `typing.TypedDict`";
            Err(Diagnostic::error("E0617", text).at(names.target.span.clone()).with_help(help))
        }
    }
}
