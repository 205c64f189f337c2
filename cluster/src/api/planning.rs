//! What is said of plans: what to plan with, what was planned and why, what another plan would be.
use super::BundleFile;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidemill_app::measured::MeasuredLevel;
use tidemill_spec::plan::Plan;
use tidemill_spec::profile::ModelMetric;

/// What a workflow is planned with, where no plan is submitted. The names are those of `tidemill plan`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Planning {
    /// Profiles; of two figures of the same thing the later counts. They are sent as files of a bundle are.
    pub profiles: Vec<BundleFile>,
    /// Prices, links and machines; none: the workers that have joined, as they tell.
    #[serde(default)]
    pub infrastructure: Option<BundleFile>,
    /// Service levels instead of the workflow's: `rate=40/s`, `accuracy=56.0`, `latency=p99:800ms`; `=none` drops one.
    #[serde(default)]
    pub slo: Vec<String>,
    /// Levels that may give way while it runs, each down to what, where no plan keeps all: `accuracy=70`, `latency=p99:2s`, `rate=20/s`;
    /// the first one first. Others never give way.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub degrade: Vec<String>,
    /// Largest part of its time that a worker may be busy, with what other runs take.
    pub max_utilization: f64,
    /// Whether idle time of workers is left to bursts instead of more accurate models.
    #[serde(default)]
    pub keep_idle: bool,
    /// Seconds after which the search ends.
    pub time_limit_seconds: f64,
}

/// What a run may take at most.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Quota {
    /// Processors, over all workers: the sum of the parts of their time that the plan takes, times their processors.
    #[serde(default)]
    pub processors: Option<f64>,
    /// Bytes of memory for models, over all workers.
    #[serde(default)]
    pub memory_bytes: Option<u64>,
}

/// What becomes of a better plan for a run that goes on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Replan {
    /// The run changes to it.
    Auto,
    /// It is proposed, and somebody decides.
    #[default]
    Ask,
    /// Nobody looks for one.
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

/// A service level of a run, as it has been since a short while ago.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LevelView {
    /// `rate`, `accuracy` or `latency`.
    pub level: String,
    /// What was asked for, with its unit.
    pub wanted: String,
    /// What was measured, with its unit; none: nothing could be measured yet.
    pub measured: Option<String>,
    /// Whether it is kept; none: nothing could be measured yet.
    pub is_kept: Option<bool>,
    /// What the plan expects of it, where that is less than what was asked for: it gave way.
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
    /// The file, as `tidemill plan --infra` takes it.
    pub yaml: String,
    /// What was left out or taken for granted, a line each.
    pub notes: Vec<String>,
}

/// What is known of the way from one worker to another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WayView {
    /// Sending worker.
    pub from: String,
    /// Receiving worker.
    pub to: String,
    /// Seconds that a byte takes one way: half of the shortest round trip of a probe.
    pub delay_seconds: f64,
    /// Bits per second that the way carries, what runs send over it included; none: a probe was too short to tell.
    pub bits_per_second: Option<f64>,
    /// How that is known.
    #[serde(default)]
    pub shown_by: Option<RateSource>,
    /// Bits per second that runs send now between the places of the two workers; between workers of one place: between these.
    #[serde(default)]
    pub sent_bits_per_second: f64,
    /// Seconds since the delay was measured.
    pub age_seconds: f64,
    /// Part of the time that probes take of the way.
    pub probing: f64,
}

/// How the rate of a way is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RateSource {
    /// By the bytes of a probe, and what runs sent at that time.
    Probe,
    /// By what runs send: no bytes are sent to measure it.
    Traffic,
}

impl std::fmt::Display for RateSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Probe => "probe",
            Self::Traffic => "traffic",
        })
    }
}

/// A plan that a run could change to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Proposal {
    /// The plan.
    pub plan: Plan,
    /// Why, with numbers.
    pub reason: String,
    /// When it was found.
    pub time: String,
    /// Whose plan it is; none: it was found. That of a person is not withdrawn when there is no reason for it.
    #[serde(default)]
    pub by: Option<String>,
    /// The version of the plan as which it is being made ready; none: it is not. It is a proposal until the run has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepted: Option<u64>,
}

/// What a run goes by, and what it could go by.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ReplanView {
    /// The plan of now.
    pub current: Plan,
    /// Why it is so, a line each; empty where it was submitted.
    pub explanation: Vec<String>,
    /// What becomes of a better plan.
    pub replan: Replan,
    /// A better plan that waits for somebody to decide.
    pub proposal: Option<Proposal>,
    /// What was decided just now, in words.
    pub decision: Option<String>,
    /// Whether the run is told to change.
    pub is_applied: bool,
    /// Its candidate models with what the profile says of how good they are; empty where it was submitted with a plan.
    #[serde(default)]
    pub models: Vec<ModelView>,
}

/// A model that an operator of a run may use.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ModelView {
    /// The operator.
    pub operator: String,
    /// The model.
    pub variant: String,
    /// What was measured of it, such as `word errors`.
    pub metric: String,
    /// The value of that.
    pub value: f64,
    /// The same as percent of what is right; none: it has no such form.
    pub accuracy_percent: Option<f64>,
    /// Samples that it was measured with.
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

/// Somebody wants to know whether another plan is better, or wants one.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplanRequest {
    /// This plan; none: the one that is proposed, else the best that is found now.
    #[serde(default)]
    pub plan: Option<Plan>,
    /// Change to it.
    #[serde(default)]
    pub apply: bool,
    /// Machines, prices, links and places of sources from now on, for this and all later plans of the run: a file that was sent. None: as
    /// they were.
    #[serde(default)]
    pub infrastructure: Option<BundleFile>,
}

/// What a worker has measured of the way to another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WayFigure {
    /// The other worker.
    pub to: String,
    /// Seconds of the shortest round trip.
    pub round_trip_seconds: f64,
    /// Bits per second of what it sent; none: that was too short to tell.
    #[serde(default)]
    pub bits_per_second: Option<f64>,
    /// Only the delay was measured: traffic of runs shows the rate.
    #[serde(default)]
    pub only_delay: bool,
    /// Part of the time that measuring takes of this way.
    pub probing: f64,
}

/// A worker to measure the way to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WayTarget {
    /// Its name.
    pub worker: String,
    /// Where: `10.0.0.7:40123`.
    pub address: String,
    /// Only the delay is measured: traffic of runs shows the rate.
    #[serde(default)]
    pub only_delay: bool,
}
