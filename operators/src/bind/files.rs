//! Checks that no two parts of a workflow write one file, and that none writes a file that the workflow reads.
use crate::api::BoundSink;
use std::collections::{BTreeMap, HashMap};
use std::path::{Component, Path, PathBuf};
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::manifest::Manifest;
use tidemill_spec::span::Span;
use tidemill_spec::workflow::Workflow;

/// A file and its user.
struct Use {
    file: PathBuf,
    /// Device and inode number, which hard links to one file share.
    number: Option<(u64, u64)>,
    who: String,
}

impl Use {
    fn of(path: &Path, who: String) -> Self {
        let file = real(path);
        Self { number: number(&file), file, who }
    }
}

/// Files in use; the first use of each is reported.
#[derive(Default)]
struct Uses {
    who: Vec<String>,
    files: HashMap<PathBuf, usize>,
    numbers: HashMap<(u64, u64), usize>,
    folders: HashMap<PathBuf, usize>,
}

impl Uses {
    fn add(&mut self, used: Use) {
        let place = self.who.len();
        self.who.push(used.who);
        if let Some(number) = used.number {
            self.numbers.entry(number).or_insert(place);
        }
        if used.file.is_dir() {
            self.folders.entry(used.file.clone()).or_insert(place);
        }
        self.files.entry(used.file).or_insert(place);
    }

    /// Returns the user of a file that writing `new` would change.
    fn hit_by(&self, new: &Use) -> Option<&str> {
        let same = self.files.get(&new.file);
        let linked = new.number.and_then(|number| self.numbers.get(&number));
        // Files in a source's folder are its input.
        let around = new.file.parent().and_then(|folder| self.folders.get(folder));
        let first = [same, linked, around].into_iter().flatten().min()?;
        Some(&self.who[*first])
    }
}

/// The files that a workflow reads and writes so far.
pub(super) struct Files {
    read: Uses,
    written: Uses,
}

impl Files {
    /// Collects everything that is read: the workflow itself, `path` of sources and operators, manifests and the files beside them,
    /// ground truth.
    pub(super) fn of(workflow: &Workflow) -> Self {
        let mut read = Uses::default();
        let mut add = |path: &Path, who: String| read.add(Use::of(path, who));
        if let Some(source) = workflow.name.span.source() {
            add(Path::new(source.name()), "it is the workflow itself".to_owned());
        }
        for source in &workflow.sources {
            if let Some(path) = source.options.get("path").and_then(|path| path.as_str()) {
                add(&workflow.resolve(path), format!("source `{}` reads it", source.id));
            }
        }
        for operator in &workflow.operators {
            if let Some(path) = operator.options.get("path").and_then(|path| path.as_str()) {
                add(&workflow.resolve(path), format!("operator `{}` reads it", operator.id));
            }
            for variant in &operator.variants {
                let manifest = workflow.resolve(&variant.value);
                add(&manifest, format!("it is a model of `{}`", operator.id));
                // Mistakes in a manifest are reported when the model is loaded.
                for file in Manifest::load(&manifest).iter().flat_map(Manifest::files) {
                    let file = manifest.with_file_name(file);
                    add(&file, format!("it belongs to a model of `{}`", operator.id));
                }
            }
        }
        for sink in &workflow.sinks {
            if let Some(truth) = &sink.ground_truth {
                add(&workflow.resolve(&truth.path.value), format!("it is the ground truth of `{}`", sink.id));
            }
        }
        Self { read, written: Uses::default() }
    }

    /// Records that `who` writes a file.
    pub(super) fn write(&mut self, path: &Path, who: &str, span: &Span, errors: &mut Diagnostics) {
        let new = Use::of(path, who.to_owned());
        // Writing to a device or a pipe replaces nothing.
        if std::fs::metadata(&new.file).is_ok_and(|file| !file.is_file()) {
            return;
        }
        let message = |why: &str| format!("{who} cannot write `{}`: {why}", path.display());
        let clash = if let Some(reader) = self.read.hit_by(&new) {
            Some((message(reader), "that would delete an input: write another file"))
        } else {
            let other = self.written.hit_by(&new);
            other.map(|who| (message(&format!("{who} writes it too")), "give each its own file"))
        };
        if let Some((message, help)) = clash {
            errors.push(Diagnostic::error("E0611", message).at(span.clone()).with_help(help));
        }
        self.written.add(new);
    }
}

/// Checks that files written beside those of a workflow (a report, a log) differ from those that it reads or writes, and
/// from the further files in `read` (a plan, a log).
///
/// # Errors
/// `E0611`, for each conflict.
pub fn check_written(
    workflow: &Workflow,
    sinks: &BTreeMap<String, BoundSink>,
    read: &[(&Path, &str)],
    beside: &[(&Path, &str)],
) -> Result<(), Diagnostics> {
    let (mut files, mut errors) = (Files::of(workflow), Diagnostics::new());
    for (path, who) in read {
        files.read.add(Use::of(path, format!("{who} reads it")));
    }
    let letters = workflow.run.dead_letters.as_ref().map(|path| workflow.resolve(&path.value));
    for sink in sinks.values() {
        for file in &sink.files {
            files.written.add(Use::of(file, format!("sink `{}`", sink.id)));
        }
    }
    if let Some(file) = letters {
        files.written.add(Use::of(&file, "`run: dead_letters`".to_owned()));
    }
    for (path, who) in beside {
        files.write(path, who, &Span::nowhere(), &mut errors);
    }
    errors.into_result(())
}

/// Device and inode number of an existing file.
#[cfg(unix)]
fn number(file: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    let metadata = std::fs::metadata(file).ok()?;
    metadata.is_file().then(|| (metadata.dev(), metadata.ino()))
}

#[cfg(not(unix))]
fn number(_: &Path) -> Option<(u64, u64)> {
    None
}

/// Resolves links in a path, also if the file does not exist yet.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_in_a_folder_that_is_read_is_part_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let pictures = folder.path().join("pictures");
        std::fs::create_dir(&pictures).unwrap();
        let used = |path: &Path| Use::of(path, path.display().to_string());
        let mut read = Uses::default();
        read.add(used(&pictures));
        assert!(read.hit_by(&used(&pictures.join("1.jpg"))).is_some());
        assert!(read.hit_by(&used(&pictures.join("../pictures/new.jsonl"))).is_some());
        assert!(read.hit_by(&used(&folder.path().join("out.jsonl"))).is_none());
        assert!(read.hit_by(&used(&pictures.join("out/new.jsonl"))).is_none(), "deeper is not read");
    }

    #[test]
    fn the_first_use_of_a_file_under_any_of_its_names_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let [first, second] = ["first.csv", "second.csv"].map(|name| folder.path().join(name));
        std::fs::write(&first, "").unwrap();
        std::fs::hard_link(&first, &second).unwrap();
        let mut read = Uses::default();
        read.add(Use::of(&first, "a".to_owned()));
        read.add(Use::of(&second, "b".to_owned()));
        read.add(Use::of(folder.path(), "c".to_owned()));
        assert_eq!(read.hit_by(&Use::of(&second, String::new())), Some("a"));
        assert_eq!(read.hit_by(&Use::of(&folder.path().join("new.csv"), String::new())), Some("c"));
    }
}
