//! Planning: files and limits, plans and their reasons, proposals.
use super::BundleFile;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidemill_app::measured::MeasuredLevel;
use tidemill_spec::plan::Plan;
use tidemill_spec::profile::ModelMetric;

/// Files and limits for planning a workflow. The names are those of `tidemill plan`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Planning {
    /// Profiles; a later profile overrides earlier ones. They are sent like the files of a bundle.
    pub profiles: Vec<BundleFile>,
    /// Prices, links and machines; none: the workers that have joined, as they report themselves.
    #[serde(default)]
    pub infrastructure: Option<BundleFile>,
    /// Service levels that replace those of the workflow: `rate=40/s`, `accuracy=56.0`, `latency=p99:800ms`; `=none` drops one.
    #[serde(default)]
    pub slo: Vec<String>,
    /// Service levels to relax during the run if no plan keeps all of them, each with its limit, in this order:
    /// `accuracy=70`, `latency=p99:2s`, `rate=20/s`. Others are never relaxed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub degrade: Vec<String>,
    /// Limit on the part of its time that a worker is busy, including other runs.
    pub max_utilization: f64,
    /// Whether to keep idle time of workers for bursts, instead of choosing more accurate models.
    #[serde(default)]
    pub keep_idle: bool,
    /// Limit on the time of the search, seconds.
    pub time_limit_seconds: f64,
}

/// Limits of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Quota {
    /// Processors, over all workers: the sum of the busy parts of their time, times their processors.
    #[serde(default)]
    pub processors: Option<f64>,
    /// Bytes of memory for models, over all workers.
    #[serde(default)]
    pub memory_bytes: Option<u64>,
}

/// Action on a better plan during a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Replan {
    /// Change to the better plan.
    Auto,
    /// Propose the better plan, for a user to decide.
    #[default]
    Ask,
    /// Look for no better plan.
    Off,
}

impl std::fmt::Display for Replan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Ask => "ask",
            Self::Off => "off",
        })
    }
}

/// A service level of a run, over a recent window.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LevelView {
    /// `rate`, `accuracy` or `latency`.
    pub level: String,
    /// Required value, with its unit.
    pub wanted: String,
    /// Measured value, with its unit; none: not measured yet.
    pub measured: Option<String>,
    /// Whether the run keeps it; none: not measured yet.
    pub is_kept: Option<bool>,
    /// Expected value, if the plan relaxes the level.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gives_way: Option<String>,
}

impl From<MeasuredLevel> for LevelView {
    fn from(found: MeasuredLevel) -> Self {
        Self {
            level: found.level.to_owned(),
            wanted: found.wanted,
            measured: found.text,
            is_kept: found.missed_by.map(|by| by <= 0.0),
            gives_way: found.planned,
        }
    }
}

/// The workers that have joined, as an infrastructure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct InfrastructureView {
    /// Text of the file for `tidemill plan --infra`.
    pub yaml: String,
    /// Omissions and assumptions, one per line.
    pub notes: Vec<String>,
}

/// Measurements of the link from one worker to another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MeasuredLinkView {
    /// Sending worker.
    pub from: String,
    /// Receiving worker.
    pub to: String,
    /// One-way delay in seconds: half of the shortest round trip of a probe.
    pub delay_seconds: f64,
    /// Bits per second that the link carries, including the traffic of runs; none: the probe was too short.
    pub bits_per_second: Option<f64>,
    /// Origin of the rate.
    #[serde(default)]
    pub shown_by: Option<RateSource>,
    /// Bits per second that runs send now between the locations of the two workers, or between the workers if they share a location.
    #[serde(default)]
    pub sent_bits_per_second: f64,
    /// Seconds since the delay was measured.
    pub age_seconds: f64,
    /// Part of the time of the link that probes use.
    pub probing: f64,
    /// Records of runs wait because earlier ones have not arrived.
    #[serde(default)]
    pub is_waited_for: bool,
    /// Bits per second by the files of machines that active runs were submitted with: the least; none: there is none.
    #[serde(default)]
    pub nominal_bits_per_second: Option<f64>,
    /// Hint that follows from the traffic of machines; none: none follows.
    #[serde(default)]
    pub hint: Option<LinkHint>,
    /// Bits per second with which plans are made, before the traffic of other runs is taken out; none: nothing is known.
    #[serde(default)]
    pub planned_bits_per_second: Option<f64>,
    /// Origin of that.
    #[serde(default)]
    pub planned_by: Option<RateSource>,
    /// The reason for it.
    #[serde(default)]
    pub planned_because: String,
}

/// The rate of a link that follows from the traffic of machines.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LinkHint {
    /// Bits per second that the streams of runs would get, all together.
    pub bits_per_second: f64,
    /// Bits per second that others than runs leave.
    pub residual_bits_per_second: f64,
    /// Bits per second that they use.
    pub others_bits_per_second: f64,
    /// Their TCP connections, an average.
    pub other_flows: f64,
    /// Mean age of these figures, seconds.
    pub age_seconds: f64,
    /// Mean seconds between changes of the load by more than a tenth of the nominal rate.
    pub between_changes_seconds: f64,
}

/// Origin of the rate of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RateSource {
    /// The bytes of a probe, and the traffic of runs at that time.
    Probe,
    /// The traffic of runs: no bytes are sent to measure it.
    Traffic,
    /// The nominal rate, and the traffic of machines: no bytes are sent to measure it.
    Hint,
    /// The file of machines.
    Nominal,
}

impl std::fmt::Display for RateSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Probe => "probe",
            Self::Traffic => "traffic",
            Self::Hint => "hint",
            Self::Nominal => "nominal",
        })
    }
}

/// A plan that a run could change to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Proposal {
    /// The plan.
    pub plan: Plan,
    /// Reason, with numbers.
    pub reason: String,
    /// Time of the proposal.
    pub time: String,
    /// Author of the plan; none: the controller. The plan of a person is not withdrawn when its reason disappears.
    #[serde(default)]
    pub by: Option<String>,
    /// Version of the plan that is being prepared; none: not accepted. It remains a proposal until the run follows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepted: Option<u64>,
}

/// The present plan of a run, and its alternatives.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ReplanView {
    /// The present plan.
    pub current: Plan,
    /// Reasons for the plan, one per line; empty if it was submitted.
    pub explanation: Vec<String>,
    /// Action on a better plan.
    pub replan: Replan,
    /// A better plan that waits for a decision.
    pub proposal: Option<Proposal>,
    /// Decision of this request, in words.
    pub decision: Option<String>,
    /// Whether the run changes to the plan.
    pub is_applied: bool,
    /// Its candidate models with their quality in the profile; empty if the run was submitted with a plan.
    #[serde(default)]
    pub models: Vec<ModelView>,
}

/// A candidate model of an operator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ModelView {
    /// The operator.
    pub operator: String,
    /// The model.
    pub variant: String,
    /// Measure of its quality, such as `word errors`.
    pub metric: String,
    /// Value of the measure.
    pub value: f64,
    /// The value as accuracy in percent; none: it has no such form.
    pub accuracy_percent: Option<f64>,
    /// Number of samples.
    pub samples: Option<u64>,
}

impl From<&ModelMetric> for ModelView {
    fn from(of: &ModelMetric) -> Self {
        Self {
            operator: of.operator.clone(),
            variant: of.variant.clone(),
            metric: of.name.clone(),
            value: of.value,
            accuracy_percent: of.accuracy.map(|accuracy| accuracy.0),
            samples: of.samples,
        }
    }
}

/// Request for a better plan.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplanRequest {
    /// This plan; none: the proposed one, else the best plan now.
    #[serde(default)]
    pub plan: Option<Plan>,
    /// Change to the plan.
    #[serde(default)]
    pub apply: bool,
    /// File with machines, prices, links and places of sources, for this and all later plans of the run. None:
    /// unchanged.
    #[serde(default)]
    pub infrastructure: Option<BundleFile>,
}

/// Measurements of a worker's link to another worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LinkMeasurement {
    /// The other worker.
    pub to: String,
    /// Seconds of the shortest round trip.
    pub round_trip_seconds: f64,
    /// Bits per second of the probe; none: it was too short.
    #[serde(default)]
    pub bits_per_second: Option<f64>,
    /// Only the delay was measured: traffic of runs shows the rate.
    #[serde(default)]
    pub only_delay: bool,
    /// Part of the time of the link that measurements use.
    pub probing: f64,
}

/// A worker to measure the link to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LinkTarget {
    /// Its name.
    pub worker: String,
    /// Address: `10.0.0.7:40123`.
    pub address: String,
    /// Measure only the delay: traffic of runs shows the rate.
    #[serde(default)]
    pub only_delay: bool,
}
