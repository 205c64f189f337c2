//! Opens workflows that another user has sent, laid out in a folder of this machine.
//!
//! A submitter may neither read nor write other files of the controller. So a controller opens files of that folder alone, writes there
//! alone, loads no library from there, and fills in nothing of its own environment. An absolute path in a source, a sink or a ground truth
//! lies on the worker that has it, and is not looked at.
use crate::choice::{self, Candidates};
use crate::listener::Listener;
use crate::preparation::{Scope, load, registry};
use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use tidemill_inference::location;
use tidemill_operators::bind::{self, BoundWorkflow, Choice, Part};
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::infrastructure::Infrastructure;
use tidemill_spec::manifest::Manifest;
use tidemill_spec::span::Span;
use tidemill_spec::value::Value;
use tidemill_spec::workflow::Workflow;

/// As a source writes that it reads standard input.
const STANDARD_INPUT: &str = "-";
/// Error of a path that leads out of the folder.
const OUTSIDE: &str = "is not one of the sent files";
/// Error of a pipe or a device.
const NO_FILE: &str = "is neither a file nor a folder";

/// A workflow that was sent.
#[derive(Debug, Clone, Copy)]
pub struct Sent<'a> {
    /// The folder with all files that came with it, and nothing else.
    pub folder: &'a Path,
    /// Its path in there.
    pub workflow: &'a str,
    /// The variables that came with it: there are no others.
    pub variables: &'a BTreeMap<String, String>,
}

impl Sent<'_> {
    /// Its file.
    pub fn file(&self) -> PathBuf {
        self.folder.join(self.workflow)
    }

    fn variable(&self, name: &str) -> Option<String> {
        self.variables.get(name).cloned()
    }

    /// Reads and checks the workflow, and what it wants to have opened or written here.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn load(&self, listener: &dyn Listener) -> Result<Workflow, Diagnostics> {
        if let Err(why) = self.look_at(self.folder, self.workflow) {
            let error = Diagnostic::error("E0102", format!("the workflow `{}` {why}", self.workflow));
            return Err(error.with_help("name one of the files that are sent with it").into());
        }
        let workflow = load(&self.file(), &|name| self.variable(name), Scope::Elsewhere(self), listener)
            .map_err(of_variables)?;
        self.check(&workflow)?;
        Ok(workflow)
    }

    /// Reads and checks an infrastructure that was sent with it.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn infrastructure(&self, file: &Path) -> Result<Infrastructure, Diagnostics> {
        Infrastructure::load_with(file, &|name| self.variable(name)).map_err(of_variables)
    }

    /// The models of its operators; see [`choice::candidates`].
    pub(crate) fn candidates(&self, workflow: &Workflow) -> Result<Candidates, Diagnostics> {
        // A library that was sent would be code of its sender.
        let above = self.folder.parent().unwrap_or(Path::new("/"));
        choice::candidates_of(workflow, above, |path, manifest| self.is_model_here(path, manifest))
    }

    /// Checks the types of the workflow with the files that were sent; no model is looked at.
    pub(crate) fn bound(&self, workflow: &Workflow) -> Result<BoundWorkflow, Diagnostics> {
        bind::bind(workflow, &registry(), |_| Choice::default(), opens).map(|(bound, _)| bound)
    }

    /// Whether the files of a model may be looked at: one with an absolute path lies on the worker that runs it.
    fn is_model_here(&self, path: &Path, manifest: &Manifest) -> Result<bool, Diagnostics> {
        let folder = path.parent().unwrap_or(Path::new(""));
        for file in manifest.files() {
            if Path::new(file).is_absolute() {
                return Ok(false);
            }
            // A file that is not beside the manifest is looked for in the cache, by the same name.
            let leaves_cache = location::obtained(manifest).is_some() && !is_plain(file);
            let why = if leaves_cache { Err(OUTSIDE) } else { self.look_at(folder, file) };
            if let Err(why) = why {
                let text = format!("the file `{file}` of the model `{}` {why}", manifest.id);
                let error = Diagnostic::error("E0609", text).at(manifest.file.span.clone());
                return Err(error
                    .with_help("put it beside the manifest, in the folder of the workflow")
                    .into());
            }
        }
        Ok(true)
    }

    /// Checks all paths that are opened or written here.
    pub(crate) fn check(&self, workflow: &Workflow) -> Result<(), Diagnostics> {
        let mut errors = Diagnostics::new();
        let base = &workflow.directory.0;
        let mut look = |what: String, path: &str, span: &Span, help: &str| {
            if let Err(why) = self.look_at(base, path) {
                let error = Diagnostic::error("E0609", format!("{what} `{path}` {why}"));
                errors.push(error.at(span.clone()).with_help(help));
            }
        };
        let data = "write a path relative to the workflow file, of a file on the submitting machine; or the \
                    absolute path of a file of the worker";
        for operator in &workflow.operators {
            for written in &operator.variants {
                let help =
                    "write the path of the manifest relative to the workflow file, with which it is sent";
                look(format!("operator `{}`: the manifest", operator.id), written, &written.span, help);
            }
        }
        for source in &workflow.sources {
            if let Some((path, span)) = named(&source.options, "path").filter(|(path, _)| is_here(path)) {
                look(format!("source `{}`:", source.id), path, span, data);
            }
        }
        for sink in &workflow.sinks {
            if let Some((path, span)) = named(&sink.options, "over").filter(|(path, _)| is_here(path)) {
                look(format!("sink `{}`:", sink.id), path, span, data);
            }
            let truth = sink.ground_truth.as_ref().map(|truth| &truth.path);
            if let Some(path) = truth.filter(|path| is_here(path)) {
                look(format!("ground truth of `{}`:", sink.id), path, &path.span, data);
            }
        }
        if let Some(path) = &workflow.run.dead_letters
            && (!is_plain(path) || self.look_at(base, path).is_err())
        {
            let text = format!(
                "`run: dead_letters` is `{path}`, but a controller writes this file only in the folder of the run"
            );
            let help = "write a relative path without `..`, such as `out/dead_letters.jsonl`";
            errors.push(Diagnostic::error("E0606", text).at(path.span.clone()).with_help(help));
        }
        errors.into_result(())
    }

    /// Whether a path leads to something of the folder, if to anything.
    fn look_at(&self, base: &Path, path: &str) -> Result<(), &'static str> {
        let place = base.join(path);
        let absolute = |path: &Path| std::path::absolute(path).map(|path| normal(&path));
        match (absolute(&place), absolute(self.folder)) {
            (Ok(place), Ok(folder)) if place.starts_with(&folder) => {}
            _ => return Err(OUTSIDE),
        }
        // A submission has no links, pipes or devices: one that lies there is not part of it.
        let real = place.ancestors().find_map(|place| place.canonicalize().ok());
        if let (Some(real), Ok(folder)) = (real, self.folder.canonicalize())
            && !real.starts_with(folder)
        {
            return Err(OUTSIDE);
        }
        match std::fs::metadata(&place) {
            Ok(found) if !found.is_file() && !found.is_dir() => Err(NO_FILE),
            _ => Ok(()),
        }
    }
}

/// Whether a part of a workflow that was sent is opened by who judges it: what has an absolute path is opened by the worker that has it.
pub(crate) fn opens(part: Part<'_>) -> bool {
    match part {
        Part::Source(source) => named(&source.options, "path").is_none_or(|(path, _)| is_here(path)),
        Part::Sink(sink) => named(&sink.options, "over").is_none_or(|(path, _)| is_here(path)),
        Part::GroundTruth(sink) => sink.ground_truth.as_ref().is_none_or(|truth| is_here(&truth.path)),
        Part::Operator(_) => false,
    }
}

/// A text of the options with its place.
fn named<'a>(options: &'a Value, key: &str) -> Option<(&'a str, &'a Span)> {
    let value = options.get(key)?;
    Some((value.as_str()?, &value.span))
}

/// Whether a path is one of a file that is sent.
fn is_here(path: &str) -> bool {
    Path::new(path).is_relative() && path != STANDARD_INPUT
}

/// Whether a path leads nowhere but into the folder that it begins in.
fn is_plain(path: &str) -> bool {
    let path = Path::new(path);
    path.file_name().is_some()
        && path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir))
}

/// A path without `.` and `..`, by its words alone: no link is looked at.
pub fn normal(path: &Path) -> PathBuf {
    let mut result = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => drop(result.pop()),
            part => result.push(part),
        }
    }
    result
}

/// Says whose variables there are.
fn of_variables(found: Diagnostics) -> Diagnostics {
    let told = |finding: Diagnostic| match finding.code {
        "E0110" => finding.with_help(
            "a controller does not use its own environment: `tidemill submit` sends the variables of the \
             file from its environment; set it there, or write the value",
        ),
        _ => finding,
    };
    found.into_iter().map(told).collect()
}

#[cfg(test)]
mod tests;
