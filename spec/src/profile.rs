//! Measured facts about operators, `profile.yaml` version 1: service times, message sizes, accuracy. Written by
//! `tidemill profile` or by hand from published figures; planners and simulators read it.
//!
//! ```
//! use std::collections::BTreeMap;
//! use tidemill_spec::profile::Profile;
//! use tidemill_spec::units::{Bytes, Percentile, TimeSpan};
//! let text = "
//! version: 1
//! workflow: {name: vqa}
//! machines: [{worker_type: small, how: published, source: a paper}]
//! services:
//!   - operator: speech
//!     variant: speech-small
//!     worker_type: small
//!     how: published
//!     batches: [{batch: 1, p50: 10ms, p75: 12ms, p90: 15ms}]
//! messages: [{from: questions, to: speech, bytes_per_record: 97KiB}]
//! ";
//! let profile = Profile::parse(text, "profile.yaml")?;
//! let service = profile.service("speech", Some("speech-small"), None, "small").expect("is in the file");
//! assert_eq!(service.batches[0].at(Percentile(75.0)), Some(TimeSpan(12_000_000)));
//! assert_eq!(profile.bytes_per_record(("questions", "speech", 0), &BTreeMap::new()), Some(Bytes(97 << 10)));
//! # Ok::<(), tidemill_spec::diagnostic::Diagnostics>(())
//! ```
use crate::overheads::Overheads;
use crate::units::{Bytes, Percent, TimeSpan};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

mod check;
mod file;
mod load;
mod lookup;
mod merge;

pub use file::ProfileFile;
pub use merge::{Merged, Note};

/// A profile: what is known about the operators of one workflow on types of machines.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Format version; 1.
    pub version: u32,
    /// The workflow of the profile.
    pub workflow: ProfileWorkflow,
    /// The types of machines that the services name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub machines: Vec<Machine>,
    /// Service times of operators on machines.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<Service>,
    /// Output records per input record; 1 for operators without an entry.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ratios: Vec<Ratio>,
    /// Bytes of a record on the edges of the workflow.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<MessageSize>,
    /// Accuracy of the answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<Accuracy>,
}

/// The workflow of a profile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProfileWorkflow {
    /// Name of the workflow.
    pub name: String,
    /// sha256 of the sources, operators and truths of the workflow when it was measured; absent in hand-written profiles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

/// Origin of figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// Measured on a machine of that type.
    Measured,
    /// Measured on a faster machine, with a limit on processor time or a stated factor.
    Limited,
    /// Taken from a publication.
    Published,
    /// Computed from other figures; never replaces one of the other kinds.
    Predicted,
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            How::Measured => "measured",
            How::Limited => "limited",
            How::Published => "published",
            How::Predicted => "predicted",
        })
    }
}

/// A type of machine, with its properties when the figures were measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Type of worker in the infrastructure.
    #[schemars(regex(pattern = r"^[a-z][a-z0-9_.-]*$"))]
    pub worker_type: String,
    /// Origin of its figures.
    pub how: How,
    /// Name of the processor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<String>,
    /// Processors that the operators could use, possibly a fraction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<f64>,
    /// Main memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Bytes>,
    /// Times were multiplied by this number because the type is slower than the machine that measured. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub factor: Option<f64>,
    /// The measurement in words: by whom, on which machine, with which limits; or the publication.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Overheads of the engine itself; none: unknown, and counted as 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overheads: Option<Overheads>,
}

/// Service times of an operator on a type of machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Service {
    /// Operator, source or sink id in the workflow.
    pub operator: String,
    /// Id of the model manifest; none for operators without models.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
    /// Backend that ran the model; none: not known, or no model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// Type of worker in the infrastructure.
    pub worker_type: String,
    /// Origin of the figures.
    pub how: How,
    /// sha256 of the model file that was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Time from nothing to the first batch: reading and preparing the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_time: Option<TimeSpan>,
    /// Peak memory of a worker with only this operator, including the program itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_memory: Option<Bytes>,
    /// Part of these times that the model itself takes, without the preparation of inputs and outputs; a stage whose model
    /// runs on a device keeps the rest. None: not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_part: Option<Percent>,
    /// Error of predicted times: each measured model, or type of worker, was predicted from the others, and nine in ten
    /// of its times (all, if there are fewer than nine) were within this factor, up or down. The largest factor of all
    /// batches. None if there was nothing to compare with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within: Option<f64>,
    /// Service times by size of the batch, the smallest first, including the preparation of inputs and outputs. Each
    /// batch follows the one before at once.
    pub batches: Vec<BatchTime>,
    /// Times of calls that come after a pause, by batch size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_pause: Option<AfterPause>,
}

/// Times of calls after a pause, in which the processor slept and its caches filled with other data: the times of a
/// worker that is not always busy with one operator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AfterPause {
    /// Length of the pause before each call.
    pub pause: TimeSpan,
    /// Times of the calls; larger batches take as much longer after a pause as these do.
    pub times: BatchTime,
}

/// Service times of batches of one size. A time is that of the whole batch, not of one record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BatchTime {
    /// Records in the batch.
    pub batch: u32,
    /// Number of measured batches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<u64>,
    /// Mean.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean: Option<TimeSpan>,
    /// Standard deviation: the square root of the variance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deviation: Option<TimeSpan>,
    /// Median.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p50: Option<TimeSpan>,
    /// 75th percentile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p75: Option<TimeSpan>,
    /// 90th percentile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p90: Option<TimeSpan>,
    /// 99th percentile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99: Option<TimeSpan>,
    /// Evenly spaced quantiles from the least to the largest: point i of n, counted from 0, is the quantile i/(n-1).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub points: Vec<TimeSpan>,
}

/// Output records per input record of an operator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Ratio {
    /// Operator id in the workflow.
    pub operator: String,
    /// Id of the model manifest of the operator itself, if the ratio depends only on it: the same as one entry of
    /// `variants`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
    /// Variants, by operator, for which the ratio is valid: its own or those of operators before it, because a better
    /// detector finds more. None: all. Of the valid entries, the one with the most variants counts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub variants: BTreeMap<String, String>,
    /// Output records per input record; of a join, per record of the input with the fewest records.
    pub output_per_input: f64,
    /// Number of counted input records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<u64>,
}

impl Ratio {
    /// Returns the variants by operator that it holds for, including its own.
    pub fn holds_for(&self) -> BTreeMap<String, String> {
        let mut all = self.variants.clone();
        if let Some(variant) = &self.variant {
            all.entry(self.operator.clone()).or_insert_with(|| variant.clone());
        }
        all
    }
}

/// Bytes of a record on an edge of the workflow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MessageSize {
    /// Sending operator or source.
    pub from: String,
    /// Receiving operator or sink.
    pub to: String,
    /// Input of the receiver, counted from 0. Default: 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub input: u32,
    /// Variants, by operator, for which the size is valid: those of the sender or of operators before it. None: all.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub variants: BTreeMap<String, String>,
    /// Mean bytes of one record in a message, with its share of the frame of the message. A record that is computed
    /// alone travels alone; records that a model computes together travel together, and need fewer bytes.
    pub bytes_per_record: Bytes,
    /// Number of measured records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<u64>,
}

/// Accuracy of the answers of the workflow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Accuracy {
    /// The measure, in words.
    pub metric: String,
    /// The sink with the ground truth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sink: Option<String>,
    /// Number of samples of rows that do not state it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<u64>,
    /// The samples in words, if they are not from the sources of the workflow, so that a run of the workflow judges
    /// other samples. None: the first ones of its sources.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scored_on: Option<String>,
    /// Accuracy of the whole workflow by its variants.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub end_to_end: Vec<AccuracyRow>,
    /// Accuracy of an operator's output by the accuracy of its inputs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub response: Vec<ResponseRow>,
    /// Quality of each model by itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<ModelMetric>,
}

/// Accuracy of the whole workflow with these variants.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AccuracyRow {
    /// Variant by operator, one for each operator with models.
    pub variants: BTreeMap<String, String>,
    /// The accuracy.
    pub accuracy: Percent,
    /// Its 95 % confidence interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<(Percent, Percent)>,
    /// Number of samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<u64>,
}

/// Accuracy of an operator's output, given that of its inputs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResponseRow {
    /// Operator id in the workflow.
    pub operator: String,
    /// Id of the model manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
    /// Accuracy of the inputs, by the nearest operator with models before it.
    pub inputs: BTreeMap<String, Percent>,
    /// Accuracy of the output.
    pub output: Percent,
}

/// Quality of a model by itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelMetric {
    /// Operator id in the workflow.
    pub operator: String,
    /// Id of the model manifest.
    pub variant: String,
    /// Name of the measure.
    pub name: String,
    /// The value.
    pub value: f64,
    /// Its confidence interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<(f64, f64)>,
    /// Number of samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<u64>,
    /// True if more is better.
    pub higher_is_better: bool,
    /// The value as an accuracy, as the inputs of `response` use it; none if it has no such form.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<Percent>,
}

fn is_zero(input: &u32) -> bool {
    *input == 0
}
