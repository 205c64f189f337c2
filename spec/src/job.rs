//! Job files, version 1: work that ends, for the queue of a cluster.
//!
//! ```
//! use tidemill_spec::job::{JobFile, JobKind};
//! let text = "
//! version: 1
//! job:
//!   name: train
//!   command: [./train.sh, --epochs, '20']
//!   gang: 2
//!   resources: {cores: 1, memory: 512MB}
//!   checkpoint_within: 30s
//!   files: [train.sh]
//! ";
//! let job = JobFile::parse(text, "job.yaml")?.job;
//! assert_eq!((job.kind, job.gang.value, job.command.len()), (JobKind::Command, 2, 3));
//!
//! let errors = JobFile::parse(&text.replace("gang", "gangs"), "job.yaml").unwrap_err();
//! assert!(errors.to_string().contains("did you mean `gang`?"), "{errors}");
//! # Ok::<(), tidemill_spec::diagnostic::Diagnostics>(())
//! ```
pub mod aggregation;
mod limits;
pub mod train;

use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::document;
use crate::span::{Located, SourceFile};
use crate::units::{Bytes, TimeSpan};
use crate::variables::{self, Lookup};
use crate::yaml;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Component, Path};
use std::sync::Arc;
use train::TrainSpec;

pub use limits::{LEAST_MEMORY, LONGEST_CHECKPOINT, refusal};

/// Largest number of tasks of a gang.
pub const MOST_TASKS: u32 = 4096;
/// Longest name of a job: a number is appended to it.
const NAME_LENGTH: usize = 40;

/// A file with one job.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JobFile {
    /// Format version; 1.
    pub version: Located<u32>,
    /// The job.
    pub job: JobSpec,
}

/// A job: tasks that start together, do something, and end.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JobSpec {
    /// Name of the job; the queue appends a number to it.
    pub name: Located<String>,
    /// The kind of work. Default: `command`.
    #[serde(default)]
    pub kind: JobKind,
    /// Program and arguments of a `command`. A program with `/` is a file of the job; `tidemill` is the program of the worker.
    #[serde(default)]
    pub command: Vec<Located<String>>,
    /// Workflow of a `profile` or a `backfill`, relative to this file.
    #[serde(default)]
    pub workflow: Option<Located<String>>,
    /// More arguments of `tidemill profile` or `tidemill run`, for a `profile` or a `backfill`.
    #[serde(default)]
    pub arguments: Vec<Located<String>>,
    /// Dataset, model and options of a `train`.
    #[serde(default)]
    pub train: Option<TrainSpec>,
    /// Number of tasks, which start together or not at all; the ranks of a `train`. Default: 1.
    #[serde(default = "one_task")]
    pub gang: Located<u32>,
    /// Resources of each task.
    #[serde(default)]
    pub resources: JobResources,
    /// The queue may end the tasks early and start them again later, from their checkpoints. Default: true.
    #[serde(default = "yes")]
    pub preemptible: bool,
    /// Time between the signal to a task and its end, in which it writes a checkpoint; at most 1h, and 0s ends it at once. Default: 30s.
    #[serde(default = "half_a_minute")]
    pub checkpoint_within: Located<TimeSpan>,
    /// The signal that asks a task for a checkpoint and its end. Default: TERM.
    #[serde(default)]
    pub signal: StopSignal,
    /// Variables in the environment of the tasks.
    #[serde(default)]
    pub environment: BTreeMap<String, Located<String>>,
    /// Files and folders that the tasks find in their folder, relative to this file.
    #[serde(default)]
    pub files: Vec<Located<String>>,
    /// Files and folders that tasks write into their folder, and that `tidemill job fetch` fetches after the end.
    #[serde(default)]
    pub results: Vec<Located<String>>,
}

/// Kind of work of a job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobKind {
    /// Runs a program.
    #[default]
    Command,
    /// Profiles a workflow on a worker: `tidemill profile`. The result is `profile.yaml`.
    Profile,
    /// Runs a workflow over files that end: `tidemill run`. The results are the files of its sinks.
    Backfill,
    /// Trains a model on several workers: `tidemill train`. The results are the model and `report.json`.
    Train,
}

impl JobKind {
    /// Whether all files in the folder of a task are its checkpoint: so for those whose program continues from the files that it wrote.
    pub fn keeps_folder(self) -> bool {
        matches!(self, Self::Profile | Self::Backfill)
    }
}

impl fmt::Display for JobKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Command => "command",
            Self::Profile => "profile",
            Self::Backfill => "backfill",
            Self::Train => "train",
        })
    }
}

/// Signal that asks a task to end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum StopSignal {
    /// SIGTERM.
    #[default]
    Term,
    /// SIGINT.
    Int,
    /// SIGHUP.
    Hup,
    /// SIGUSR1.
    Usr1,
    /// SIGUSR2.
    Usr2,
}

/// Resources of one task; its worker limits it to them.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JobResources {
    /// Processors. Default: 1.
    #[serde(default = "one_core")]
    pub cores: Located<f64>,
    /// Memory, at least 16MB. Default: 512MB.
    #[serde(default = "some_memory")]
    pub memory: Located<Bytes>,
    /// An accelerator of this type, such as `h100`. Default: none.
    #[serde(default)]
    pub device: Option<Located<String>>,
}

fn one_task() -> Located<u32> {
    1.into()
}

fn yes() -> bool {
    true
}

fn half_a_minute() -> Located<TimeSpan> {
    TimeSpan(30_000_000_000).into()
}

fn one_core() -> Located<f64> {
    1.0.into()
}

fn some_memory() -> Located<Bytes> {
    Bytes(512_000_000).into()
}

impl Default for JobResources {
    fn default() -> Self {
        Self { cores: one_core(), memory: some_memory(), device: None }
    }
}

impl JobSpec {
    /// Returns a job that runs a command, with the defaults of a file.
    pub fn of_command(name: &str, command: impl IntoIterator<Item = String>) -> Self {
        Self {
            name: name.into(),
            kind: JobKind::Command,
            command: command.into_iter().map(Located::from).collect(),
            workflow: None,
            arguments: Vec::new(),
            train: None,
            gang: one_task(),
            resources: JobResources::default(),
            preemptible: true,
            checkpoint_within: half_a_minute(),
            signal: StopSignal::default(),
            environment: BTreeMap::new(),
            files: Vec::new(),
            results: Vec::new(),
        }
    }
}

impl JobFile {
    /// Reads and checks a file with a job.
    ///
    /// # Errors
    /// All findings, `E01xx` and `E0761`.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, Diagnostics> {
        Self::from_source(&yaml::read(path.as_ref())?, &variables::environment)
    }

    /// Parses and checks a text with a job; `file_name` is shown in errors.
    ///
    /// # Errors
    /// As [`JobFile::load`].
    pub fn parse(text: &str, file_name: &str) -> Result<Self, Diagnostics> {
        Self::from_source(&SourceFile::new(file_name, text), &variables::environment)
    }

    fn from_source(source: &Arc<SourceFile>, lookup: Lookup<'_>) -> Result<Self, Diagnostics> {
        let mut tree = document::tree(source, "job file")?;
        variables::fill_in(&mut tree, lookup)?;
        document::convert(&tree, |file: &Self| file.job.check())
    }
}

impl JobSpec {
    /// Checks the job by itself.
    pub fn check(&self) -> Diagnostics {
        let mut found = Diagnostics::new();
        let wrong = |text: String| Diagnostic::error("E0761", text);
        let whole = self.name.span.clone();
        if !is_name(&self.name.value) {
            let text = format!("`{}` is not a name for a job", self.name);
            let help =
                format!("write up to {NAME_LENGTH} lower-case letters, digits and `-`, with a letter first");
            found.push(wrong(text).at(self.name.span.clone()).with_help(help));
        }
        let is_command = self.kind == JobKind::Command;
        match (is_command, self.command.first(), &self.workflow) {
            (true, None, _) => found.push(
                wrong("the job has no command".to_owned())
                    .at(whole)
                    .with_help("write `command: [PROGRAM, ARGUMENT]`"),
            ),
            (true, _, Some(workflow)) => found.push(
                wrong("a job of kind `command` has no workflow".to_owned())
                    .at(workflow.span.clone())
                    .with_help("write `kind: profile` or `kind: backfill`, or leave the workflow out"),
            ),
            (false, Some(command), _) => found.push(
                wrong(format!("a job of kind `{}` has no command", self.kind))
                    .at(command.span.clone())
                    .with_help("write more options of the program under `arguments`"),
            ),
            (false, None, Some(workflow)) if self.kind == JobKind::Train => found.push(
                wrong("a job of kind `train` has no workflow".to_owned())
                    .at(workflow.span.clone())
                    .with_help("write `dataset: FILE` under `train`"),
            ),
            (false, None, None) if self.kind != JobKind::Train => found.push(
                wrong(format!("a job of kind `{}` needs a workflow", self.kind))
                    .at(whole)
                    .with_help("write `workflow: FILE`"),
            ),
            _ => {}
        }
        if let Some(first) = self.arguments.first().filter(|_| !self.kind.keeps_folder()) {
            found.push(
                wrong("`arguments` belong to a job of kind `profile` or `backfill`".to_owned())
                    .at(first.span.clone())
                    .with_help("write them after the program in `command`, or leave them out"),
            );
        }
        match (&self.train, self.kind == JobKind::Train) {
            (Some(train), true) => found.extend(train.check(self.gang.value)),
            (None, true) => found.push(
                wrong("a job of kind `train` needs a training".to_owned())
                    .at(self.name.span.clone())
                    .with_help("write `train: {dataset: FILE, inputs: [COLUMN], label: COLUMN, ...}`"),
            ),
            (Some(train), false) => found.push(
                wrong(format!("a job of kind `{}` has no `train`", self.kind))
                    .at(train.dataset.span.clone())
                    .with_help("write `kind: train`, or leave it out"),
            ),
            (None, false) => {}
        }
        let most = if self.kind.keeps_folder() { 1 } else { MOST_TASKS };
        if self.gang.value == 0 || self.gang.value > most {
            found.push(
                wrong(format!("a gang of {} tasks is not possible", self.gang))
                    .at(self.gang.span.clone())
                    .with_help(format!("write a number from 1 to {most}")),
            );
        }
        let cores = self.resources.cores.value;
        if !(cores > 0.0 && cores.is_finite()) {
            found.push(
                wrong(format!("{cores} processors are not possible"))
                    .at(self.resources.cores.span.clone())
                    .with_help("write a number above 0, such as 0.5"),
            );
        }
        found.append(self.check_limits());
        let of_train = self.train.iter().flat_map(|train| std::iter::once(&train.dataset).chain(&train.from));
        for path in self.files.iter().chain(&self.results).chain(of_train) {
            if !is_inside(&path.value) {
                found.push(
                    wrong(format!("`{path}` is not within the folder of the job"))
                        .at(path.span.clone())
                        .with_help("write a relative path without `..`"),
                );
            }
        }
        found
    }
}

/// Whether a text is a name for a job.
pub fn is_name(text: &str) -> bool {
    let follows = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let is_short = (1..=NAME_LENGTH).contains(&text.len());
    is_short && text.starts_with(|c: char| c.is_ascii_lowercase()) && text.chars().all(follows)
}

/// Whether a path stays in the folder that it is relative to.
fn is_inside(path: &str) -> bool {
    let mut parts = Path::new(path).components().peekable();
    parts.peek().is_some() && parts.all(|part| matches!(part, Component::Normal(_) | Component::CurDir))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn errors(job: &str) -> String {
        JobFile::parse(&format!("version: 1\njob: {job}\n"), "job.yaml").unwrap_err().to_string()
    }

    #[test]
    fn what_is_left_out_has_a_default() {
        let text = "version: 1\njob: {name: one, command: [sleep, '1']}\n";
        let job = JobFile::parse(text, "job.yaml").unwrap().job;
        assert_eq!(job, JobSpec::of_command("one", ["sleep".to_owned(), "1".to_owned()]));
        assert_eq!(job.resources.memory.value.to_string(), "512MB");
    }

    #[test]
    fn each_mistake_has_its_place_and_its_fix() {
        for (job, words) in [
            ("{name: Train, command: [a]}", "1:13"),
            ("{name: a}", "write `command: [PROGRAM, ARGUMENT]`"),
            ("{name: a, kind: profile}", "write `workflow: FILE`"),
            ("{name: a, kind: profile, workflow: w.yaml, command: [a]}", "under `arguments`"),
            ("{name: a, command: [a], gang: 0}", "write a number from 1 to 4096"),
            ("{name: a, kind: train}", "write `train: {dataset: FILE"),
            ("{name: a, kind: train, workflow: w.yaml}", "under `train`"),
            ("{name: a, kind: train, command: [a]}", "no command"),
            ("{name: a, kind: backfill, workflow: w.yaml, gang: 2}", "from 1 to 1"),
            ("{name: a, command: [a], resources: {cores: 0}}", "such as 0.5"),
            ("{name: a, command: [a], files: [../b]}", "without `..`"),
            ("{name: a, command: [a], results: [/etc/hosts]}", "without `..`"),
            ("{name: a, command: [a], checkpoint_within: 30}", "unit"),
            ("{name: a, command: [a], signal: KILL}", "TERM"),
        ] {
            let found = errors(job);
            let words = words.replace("1:13", "2:13");
            assert!(found.contains(&words), "`{words}` is not in\n{found}");
        }
    }
}
