//! No two things of a workflow write one file, and nothing writes a file that the workflow reads.
use crate::api::BoundSink;
use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::span::Span;
use tidemill_spec::workflow::Workflow;

/// A file and who uses it.
struct Use {
    file: PathBuf,
    who: String,
}

/// The files that a workflow reads and writes so far.
pub(super) struct Files {
    read: Vec<Use>,
    written: Vec<Use>,
}

impl Files {
    /// Everything that is read: the workflow itself, what sources name as `path`, manifests, ground truth.
    pub(super) fn of(workflow: &Workflow) -> Self {
        let mut read = Vec::new();
        let mut add = |path: &Path, who: String| read.push(Use { file: real(path), who });
        if let Some(source) = workflow.name.span.source() {
            add(Path::new(source.name()), "it is the workflow itself".to_owned());
        }
        for source in &workflow.sources {
            if let Some(path) = source.options.get("path").and_then(|path| path.as_str()) {
                add(&workflow.resolve(path), format!("source `{}` reads it", source.id));
            }
        }
        for operator in &workflow.operators {
            for variant in &operator.variants {
                add(&workflow.resolve(&variant.value), format!("it is a model of `{}`", operator.id));
            }
        }
        for sink in &workflow.sinks {
            if let Some(truth) = &sink.ground_truth {
                add(&workflow.resolve(&truth.path.value), format!("it is the ground truth of `{}`", sink.id));
            }
        }
        Self { read, written: Vec::new() }
    }

    /// Takes note that `who` writes a file.
    pub(super) fn write(&mut self, path: &Path, who: &str, span: &Span, errors: &mut Diagnostics) {
        let file = real(path);
        // A device or a pipe is no place where one thing replaces another.
        if std::fs::metadata(&file).is_ok_and(|file| !file.is_file()) {
            return;
        }
        let message = |why: &str| format!("{who} cannot write `{}`: {why}", path.display());
        let clash = if let Some(reader) = self.read.iter().find(|other| other.file == file) {
            Some((message(&reader.who), "that would delete what is read: write another file"))
        } else {
            let other = self.written.iter().find(|other| other.file == file);
            other.map(|o| (message(&format!("{} writes it too", o.who)), "give each a file of its own"))
        };
        if let Some((message, help)) = clash {
            errors.push(Diagnostic::error("E0611", message).at(span.clone()).with_help(help));
        }
        self.written.push(Use { file, who: who.to_owned() });
    }
}

/// Checks that files written beside those of a workflow (a report, a log) are none that it reads or writes.
///
/// # Errors
/// `E0611`, for each that is.
pub fn check_written(
    workflow: &Workflow,
    sinks: &BTreeMap<String, BoundSink>,
    beside: &[(&Path, &str)],
) -> Result<(), Diagnostics> {
    let (mut files, mut errors) = (Files::of(workflow), Diagnostics::new());
    let letters = workflow.run.dead_letters.as_ref().map(|path| workflow.resolve(&path.value));
    for sink in sinks.values() {
        for file in &sink.files {
            files.written.push(Use { file: real(file), who: format!("sink `{}`", sink.id) });
        }
    }
    files
        .written
        .extend(letters.map(|file| Use { file: real(&file), who: "`run: dead_letters`".to_owned() }));
    for (path, who) in beside {
        files.write(path, who, &Span::nowhere(), &mut errors);
    }
    errors.into_result(())
}

/// The file behind a path, links followed, also where it does not exist yet.
fn real(path: &Path) -> PathBuf {
    if let Ok(real) = path.canonicalize() {
        return real;
    }
    let mut folder = match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => std::env::current_dir().unwrap_or_default(),
        Some(parent) => real(parent),
        None => return path.to_owned(),
    };
    match path.components().next_back() {
        Some(Component::Normal(name)) => folder.push(name),
        Some(Component::ParentDir) => drop(folder.pop()),
        _ => {}
    }
    folder
}
