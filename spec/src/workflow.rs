//! The logical workflow, `workflow.yaml` version 1: sources, operators, sinks, service levels, run options.
//!
//! ```
//! use tidemill_spec::{units::Rate, workflow::Workflow};
//! let text = "
//! version: 1
//! name: warm
//! sources: [{id: readings, kind: csv, rate: 40/s, options: {path: readings.csv}}]
//! operators: [{id: warm, kind: filter, input: readings, options: {where: temperature > 20.0}}]
//! sinks: [{id: out, kind: stdout, input: warm}]
//! ";
//! let workflow = Workflow::parse(text, "workflow.yaml")?;
//! assert_eq!(workflow.sources[0].rate, Some(Rate(40.0).into()));
//! assert_eq!(workflow.operators[0].inputs[0].from, "readings");
//!
//! let wrong = text.replace("input: warm", "input: wram");
//! let errors = Workflow::parse(&wrong, "workflow.yaml").unwrap_err();
//! assert!(errors.to_string().contains("did you mean `warm`?"));
//! # Ok::<(), tidemill_spec::diagnostic::Diagnostics>(())
//! ```
use crate::backend::BackendChoice;
use crate::plan::{default_checkpoint_every, default_tick};
use crate::policies::Policy;
use crate::span::Located;
use crate::units::{Bytes, Percent, Percentile, Rate, TimeSpan};
use crate::value::Value;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

mod check;
mod device;
mod input;
mod late;
mod load;
mod policies;
mod resources;
mod when_cut;

pub use device::DeviceChoice;
pub use input::Input;
pub use resources::{ResourceMode, Resources};
pub use when_cut::{CutBuffer, CutDegrade, CutStop, WhenCut};

/// A workflow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Workflow {
    /// Format version; 1.
    pub version: Located<u32>,
    /// Name of the workflow.
    pub name: Located<String>,
    /// Sources of records.
    pub sources: Vec<Source>,
    /// Operators on the records.
    #[serde(default)]
    pub operators: Vec<Operator>,
    /// Sinks for the results.
    pub sinks: Vec<Sink>,
    /// Service levels to keep.
    #[serde(default, skip_serializing_if = "Slo::is_empty")]
    pub slo: Slo,
    /// Options of a run without a plan.
    #[serde(default)]
    pub run: RunOptions,
    /// State that the run keeps, so that another process can continue it.
    #[serde(default, skip_serializing_if = "CheckpointOptions::is_empty")]
    pub checkpoint: CheckpointOptions,
    /// Limits on its processes, for each worker of a cluster. None: no limit, and the same weight as other runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// Settings of the transport of edges. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<Policy>,
    /// Folder of the workflow file: relative paths in the workflow start there. Not part of the file.
    #[serde(skip)]
    #[schemars(skip)]
    pub directory: WorkflowDirectory,
}

/// The folder of a workflow file. Two are always equal: the location of a workflow does not change its meaning.
#[derive(Debug, Clone, Default)]
pub struct WorkflowDirectory(pub PathBuf);

impl PartialEq for WorkflowDirectory {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// A source of records.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// Id, unique in the workflow.
    #[schemars(regex(pattern = r"^[a-z][a-z0-9_-]*$"))]
    pub id: Located<String>,
    /// Source kind.
    pub kind: Located<String>,
    /// Column that decides the route class; none: the record id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Located<String>>,
    /// Records per second of an open loop; none: as fast as downstream takes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Located<Rate>>,
    /// Start again at the end. Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub repeat: bool,
    /// Keep the input of a stream (standard input, a pipe, a device) in the folder of the state until a checkpoint
    /// contains it, so that the run can continue later; `{}` for the defaults. None: a run that reads a stream keeps no
    /// state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub journal: Option<Journal>,
    /// Settings by kind.
    #[serde(default = "Value::empty_map", skip_serializing_if = "Value::is_empty_map")]
    pub options: Value,
}

/// Storage for the input of a stream until a checkpoint contains it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Journal {
    /// Limit on its bytes on the disk, at least 64MiB; while it is full, the stream waits. Default: 1GiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Located<Bytes>>,
    /// Time for which the run continues to read the stream while no checkpoint can be written. Default: 10min.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep: Option<Located<TimeSpan>>,
}

impl Journal {
    /// The least `size`.
    pub const LEAST_SIZE: Bytes = Bytes(64 << 20);

    /// Returns the limit on bytes on the disk.
    pub fn size(&self) -> Bytes {
        self.size.as_ref().map_or(Bytes(1 << 30), |size| size.value)
    }

    /// Returns how long the stream is read while no checkpoint can be written.
    pub fn keep(&self) -> TimeSpan {
        self.keep.as_ref().map_or(TimeSpan(600_000_000_000), |keep| keep.value)
    }
}

/// A computation on records.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "input::OperatorForm")]
pub struct Operator {
    /// Id, unique in the workflow.
    pub id: Located<String>,
    /// Operator kind.
    pub kind: Located<String>,
    /// Inputs, in order of its ports.
    pub inputs: Vec<Input>,
    /// Candidate model manifests, relative to the workflow file; only for kind `ml`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub variants: Vec<Located<String>>,
    /// Inference backend; none: auto.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<Located<BackendChoice>>,
    /// Where the model runs; none: the plan decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<Located<DeviceChoice>>,
    /// Batches for the model; none: the plan decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batching: Option<Batching>,
    /// Reaction to a panic.
    pub on_panic: OnPanic,
    /// Workers whose loss the operator survives without a restart; none: the number of the service levels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub survive: Option<Located<u32>>,
    /// Settings by kind.
    #[serde(skip_serializing_if = "Value::is_empty_map")]
    pub options: Value,
}

impl Operator {
    /// Returns the number of workers whose loss it survives without a restart, with these service levels.
    pub fn survives(&self, slo: &Slo) -> u32 {
        self.survive.as_ref().or(slo.survive.as_ref()).map_or(0, |losses| losses.value)
    }

    /// Returns the inference backend, where one is named.
    pub fn named_backend(&self) -> Option<&str> {
        self.backend.as_ref()?.value.named()
    }
}

/// Batches for a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Batching {
    /// Largest batch, at least 1. Default: 1.
    #[serde(default = "one")]
    pub max_batch: Located<u32>,
    /// Longest wait to fill a batch. Default: 0s.
    #[serde(default)]
    pub budget: TimeSpan,
}

fn one() -> Located<u32> {
    Located::from(1)
}

/// Reaction to the panic of an operator.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnPanic {
    /// The run stops with exit code 70.
    #[default]
    Stop,
    /// The operator restarts from its last checkpoint.
    Restart,
}

/// A sink for results.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Sink {
    /// Id, unique in the workflow.
    #[schemars(regex(pattern = r"^[a-z][a-z0-9_-]*$"))]
    pub id: Located<String>,
    /// Sink kind.
    pub kind: Located<String>,
    /// Its input.
    pub input: Input,
    /// Settings by kind.
    #[serde(default = "Value::empty_map", skip_serializing_if = "Value::is_empty_map")]
    pub options: Value,
    /// Right answers, for the accuracy in the report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ground_truth: Option<GroundTruth>,
}

/// Right answers in a file: CSV with a header line, or JSONL. With `boxes`, the right tracks of objects instead.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GroundTruth {
    /// Path of the file, relative to the workflow file; with `boxes`, a folder with a file `CAMERA.txt` for each
    /// camera, in the text format of MOTChallenge.
    pub path: Located<String>,
    /// Column that both the stream and the file have; with `boxes` the column of the camera.
    pub key: Located<String>,
    /// Column of the stream with the answer; with `boxes`, the column with the name of the object.
    pub prediction: Located<String>,
    /// Column of the file with the right answer. Needed, except with `boxes`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub truth: Option<Located<String>>,
    /// Column of the stream with the boxes of a track, as `track` sends it with `path: true`: then the accuracy is IDF1
    /// over all cameras.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boxes: Option<Located<String>>,
    /// Measure of the accuracy. Default: equal.
    #[serde(default, skip_serializing_if = "Compare::is_default")]
    pub compare: Compare,
    /// The prediction is a tensor of texts or whole numbers with the best answer first: an answer is right if the truth is among
    /// the first of this number. Default: the prediction is one answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_k: Option<Located<u64>>,
    /// Int64 column of the stream: with `compare: characters` or `words`, the texts of a key are joined in its order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<Located<String>>,
}

/// Comparison of an answer with the right one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Compare {
    /// An answer is right or wrong: the accuracy is the share of right ones.
    #[default]
    Equal,
    /// Character by character: the accuracy is 1 less the character error rate, that is the characters to insert, delete
    /// or replace to get the right text, divided by those of the right text, over all keys of the file. Keys without any text count
    /// as empty; any white space is one space. At least 0.
    Characters,
    /// Word by word: the accuracy is 1 less the word error rate, which is computed as that of characters.
    Words,
    /// An answer is right or wrong, as with `equal`; the report has precision, recall and F1 of each class, too.
    Classes,
    /// Numbers: the report has the mean absolute error and the root mean square error. There is no accuracy.
    AbsoluteError,
    /// The prediction is a score, the truth is true or false (`true`, `false`, `1`, `0`): the accuracy is the area under the ROC
    /// curve, the share of pairs of a true and a false row in which the true one has the higher score; a tie counts half.
    Auc,
    /// The prediction is a tensor `[most, 6]` of boxes, as `decode_boxes` gives it; the truth is a field of a JSONL file with a
    /// list of boxes `[left, top, width, height, class]`: the accuracy is the mean average precision by the definition of COCO, the
    /// mean over the overlaps (IoU) 0.5 to 0.95.
    AveragePrecision,
}

impl Compare {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Whether it gives an accuracy, a share that a service level can ask for.
    pub fn has_accuracy(self) -> bool {
        self != Self::AbsoluteError
    }
}

/// Service levels to keep.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Slo {
    /// Records per second at the sources.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Located<Rate>>,
    /// Least end-to-end accuracy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<Located<Percent>>,
    /// Largest end-to-end latency.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<LatencySlo>,
    /// Number of workers that may be lost at a time: any 1 to 3 of the plan. The other workers then keep all levels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub survive: Option<Located<u32>>,
}

impl Slo {
    /// The most losses at a time that a plan can be made for: each set of workers is planned for by itself.
    pub const MOST_LOSSES: u32 = 3;

    /// Whether no level is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A bound on end-to-end latency.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LatencySlo {
    /// The percentile that is bounded.
    pub percentile: Located<Percentile>,
    /// The bound.
    pub below: Located<TimeSpan>,
}

/// Options of a run without a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RunOptions {
    /// Length of an epoch. Default: 50ms.
    pub tick: Located<TimeSpan>,
    /// Ticks between two checkpoints. Default: 20.
    pub checkpoint_every: Located<u64>,
    /// File for records that could not be processed, relative to the workflow file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead_letters: Option<Located<String>>,
    /// Whether the page of a cluster can show a few of the newest records of each sink, with their pictures and sounds;
    /// they leave the workers for that. Default: on.
    #[serde(skip_serializing_if = "Samples::is_default")]
    pub samples: Samples,
}

/// Whether the page of a cluster can show records of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Samples {
    /// Some of them.
    #[default]
    On,
    /// None: records go only from stage to stage and to the sinks.
    Off,
}

impl Samples {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl Default for RunOptions {
    fn default() -> Self {
        Self {
            tick: default_tick().into(),
            checkpoint_every: default_checkpoint_every().into(),
            dead_letters: None,
            samples: Samples::default(),
        }
    }
}

/// State that a run keeps, so that another process can continue it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckpointOptions {
    /// Shortest time between two checkpoints of the state; `--checkpoint-interval` overrides it. Default: 1s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<Located<TimeSpan>>,
    /// Place of the state: a folder, relative to the workflow file, or `s3://BUCKET/PREFIX`; `--state` overrides it.
    /// None: no state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<Located<String>>,
    /// Number of checkpoints to keep, 1 to 1000, so that a run can return to an older one (`tidemill state reset --to`). Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep: Option<Located<u32>>,
}

impl CheckpointOptions {
    /// Whether nothing is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
