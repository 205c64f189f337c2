//! The physical plan, `plan.yaml` version 1: the only contract between optimizer, engine, simulator, deployment and
//! cluster (`docs/architecture.md`).
//!
//! ```
//! use tidemill_spec::{plan::Plan, units::TimeSpan};
//! let text = "
//! version: 1
//! workflow: {name: copy}
//! workers: [{id: local, tier: edge, worker_type: small}]
//! stages:
//!   - {id: rows, operator: rows, worker: local}
//!   - {id: lines, operator: lines, worker: local}
//! classes: [{id: 0, share: 1, route: {rows: rows, lines: lines}}]
//! edges: [{from: rows, to: lines}]
//! ";
//! let plan = Plan::parse(text, "plan.yaml")?;
//! assert_eq!(plan.tick, TimeSpan(50_000_000));
//! # Ok::<(), tidemill_spec::diagnostic::Diagnostics>(())
//! ```
mod check;
mod devices;
mod file;
mod load;
mod losses;
mod policies;
mod stand_in;

pub use devices::{DEVICE_SCHEME, PlanDevice, RemoteRun, Sends, device_of};
pub use file::PlanFile;
pub use losses::{Fallback, LossError};
pub use policies::PlanPolicy;
pub use stand_in::StandInError;

use crate::units::{Bytes, HourlyPrice, Percent, Percentile, Rate, TimeSpan, TransferPrice};
use schemars::JsonSchema;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A plan: the worker of each stage, and the route of each record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Format version; 1.
    pub version: u32,
    /// The workflow this plan is for.
    pub workflow: PlanWorkflow,
    /// Counts the plans made for one run; the first is 1. Default: 1.
    #[serde(default = "first_plan")]
    pub plan_version: u64,
    /// Length of an epoch. Default: 50ms.
    #[serde(default = "default_tick")]
    pub tick: TimeSpan,
    /// Ticks between two checkpoints. Default: 20.
    #[serde(default = "default_checkpoint_every")]
    pub checkpoint_every: u64,
    /// The percentile of service time that the guarantee uses. Default: p75.
    #[serde(default = "default_percentile")]
    pub percentile: Percentile,
    /// Machines that the stages name.
    pub workers: Vec<PlanWorker>,
    /// Devices that run models of the stages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<PlanDevice>,
    /// Parts of operators (sources and sinks included) on workers.
    pub stages: Vec<Stage>,
    /// Shares of the key space, each with one stage per operator.
    pub classes: Vec<RouteClass>,
    /// Channels between stages.
    #[serde(default)]
    pub edges: Vec<PlanEdge>,
    /// Settings of the transport of edges. Default: those of the workflow.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<PlanPolicy>,
    /// Number of workers that may be lost at a time without a restart of the operators that ask for it. Default: 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub survive: u32,
    /// Routes after each loss of up to `survive` workers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fallbacks: Vec<Fallback>,
    /// Predictions of the planner; absent in hand-written plans.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted: Option<Predicted>,
    /// sha256 digests of the profiles that the plan was made from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub profiles: Vec<String>,
}

impl Plan {
    /// Creates an empty plan for a workflow, with defaults.
    pub fn new(workflow: PlanWorkflow) -> Self {
        Self {
            version: 1,
            workflow,
            plan_version: first_plan(),
            tick: default_tick(),
            checkpoint_every: default_checkpoint_every(),
            percentile: default_percentile(),
            workers: Vec::new(),
            devices: Vec::new(),
            stages: Vec::new(),
            classes: Vec::new(),
            edges: Vec::new(),
            policies: Vec::new(),
            survive: 0,
            fallbacks: Vec::new(),
            predicted: None,
            profiles: Vec::new(),
        }
    }
}

/// The workflow of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanWorkflow {
    /// Name of the workflow.
    pub name: String,
    /// sha256 of the canonical workflow; absent in hand-written plans (then it is not checked).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

/// One machine of the plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanWorker {
    /// Id, unique in the plan.
    pub id: String,
    /// Tier in the infrastructure.
    pub tier: String,
    /// Site of the tier; none: the tier has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub location: Option<String>,
    /// Worker type in the infrastructure; `source-device` for the devices that sources run on, which are no workers of
    /// the infrastructure and cost nothing.
    pub worker_type: String,
    /// Price of the machine, where the planner knew it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<HourlyPrice>,
}

/// Worker type of the devices that sources run on: cameras, microphones, gateways.
pub const SOURCE_DEVICE: &str = "source-device";

/// One operator's part of a plan on one worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Stage {
    /// Id, unique in the plan.
    pub id: String,
    /// Operator, source or sink id in the workflow.
    pub operator: String,
    /// Chosen model manifest id; none for operators without models.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
    /// Chosen backend; none: `auto` for operators with models.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// The device that computes the model: `cpu`, the processors of the worker in the process of the stage; `proxy` or
    /// `proxy:BACKEND`, the same processors in a process of its own; `device:ID`, a device of the plan; `device:tcp://HOST:PORT`,
    /// `device:tls://HOST:PORT`, `device:unix:///PATH` or `device:session://PLACES`, the device at that address;
    /// `oip:http://HOST:PORT` or `oip:grpc://HOST:PORT`, a server of the Open Inference Protocol. Default: cpu.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// What the planner expects of the device for a record; none without a device of the plan, or where a plan is hand-written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote_run: Option<RemoteRun>,
    /// What goes to the device. Default: tensors.
    #[serde(default, skip_serializing_if = "Sends::is_tensors")]
    pub sends: Sends,
    /// Worker id.
    pub worker: String,
    /// Stages of one worker with the same slot group share a thread. Default: `main`.
    #[serde(default = "default_slot_group")]
    pub slot_group: String,
    /// Number of copies of this stage on the worker, each in a slot of its own. Default: 1.
    #[serde(default = "one")]
    pub partitions: u32,
    /// Share of the operator's records that this stage takes, 0 < share <= 1. Default: 1.
    #[serde(default = "whole")]
    pub share: f64,
    /// Largest batch given to the model at once. Default: 1.
    #[serde(default = "one")]
    pub max_batch: u32,
    /// Longest time that the stage may wait to fill a batch. Default: 0ms.
    #[serde(default)]
    pub batching_budget: TimeSpan,
    /// Bytes that may wait in the stage's slot. Default: 64MiB.
    #[serde(default = "default_byte_budget")]
    pub byte_budget: Bytes,
    /// The stage for which it stands in while the link there is cut (`when_cut: degrade`). Not for files: a run adds such stages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stands_in_for: Option<String>,
}

impl Stage {
    /// Creates a stage with all of an operator on a worker, with defaults.
    pub fn new(id: impl Into<String>, operator: impl Into<String>, worker: impl Into<String>) -> Self {
        Self {
            id: id.into(),
            operator: operator.into(),
            variant: None,
            backend: None,
            device: None,
            remote_run: None,
            sends: Sends::Tensors,
            worker: worker.into(),
            slot_group: default_slot_group(),
            partitions: one(),
            share: whole(),
            max_batch: one(),
            batching_budget: TimeSpan::default(),
            byte_budget: default_byte_budget(),
            stands_in_for: None,
        }
    }

    /// Returns the stage whose classes it takes: its own, or the one that it replaces.
    pub fn answers_for(&self) -> &str {
        self.stands_in_for.as_deref().unwrap_or(&self.id)
    }
}

/// A share of the key space with one stage per operator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RouteClass {
    /// Id; classes are numbered from 0 without gaps.
    pub id: u16,
    /// Share of the keys; all shares add up to 1.
    pub share: f64,
    /// Stage id by operator id (sources and sinks included).
    pub route: BTreeMap<String, String>,
}

/// Losses that an edge permits when the receiver is slower than the sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Freshness {
    /// Nothing: the sender waits (default for files).
    Block,
    /// Drops and counts the oldest waiting records.
    DropOldest,
    /// Keeps only the newest waiting record of each source (default for live sources).
    Latest,
}

/// One channel of the plan between two stages.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanEdge {
    /// Sending stage id.
    pub from: String,
    /// Receiving stage id.
    pub to: String,
    /// Input of the receiving operator, counted from 0. Default: 0.
    #[serde(default)]
    pub input: u32,
    /// Ignored. Earlier versions wrote a carrier here (`in_process`, `memfd`).
    #[serde(default, skip_serializing)]
    #[schemars(skip)]
    #[doc(hidden)]
    pub link: IgnoredAny,
    /// Freshness policy; none: the workflow's, else by the kind of the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub freshness: Option<Freshness>,
    /// Expected bytes of one record, where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_record: Option<Bytes>,
    /// Expected records per second, where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// Price of its traffic, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<TransferPrice>,
}

impl PlanEdge {
    /// Creates an edge from a stage to an input of another, with defaults.
    pub fn new(from: impl Into<String>, to: impl Into<String>, input: u32) -> Self {
        Self {
            from: from.into(),
            to: to.into(),
            input,
            link: IgnoredAny,
            freshness: None,
            bytes_per_record: None,
            rate: None,
            price: None,
        }
    }
}

/// A predicted value and the range in which the plan stays valid.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PredictedValue<T> {
    /// The expectation.
    pub value: T,
    /// Lower end of the range in which the plan stays valid; of an expectation, lower end of its uncertainty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<T>,
    /// Upper end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<T>,
}

/// Estimate of latency by which a plan keeps the service level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LatencyBasis {
    /// A bound on the sum of all stages.
    #[default]
    Guaranteed,
    /// A simulation of the plan: not guaranteed.
    Expected,
}

impl LatencyBasis {
    /// Whether it is a bound.
    pub fn is_guaranteed(&self) -> bool {
        *self == Self::Guaranteed
    }
}

/// Predictions of the planner.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Predicted {
    /// Records per second at the sources.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<PredictedValue<Rate>>,
    /// Mean end-to-end latency.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean: Option<PredictedValue<TimeSpan>>,
    /// Median end-to-end latency; its range is that of the 45th to 55th percentile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p50: Option<PredictedValue<TimeSpan>>,
    /// 90th percentile of end-to-end latency.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p90: Option<PredictedValue<TimeSpan>>,
    /// 99th percentile of end-to-end latency.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99: Option<PredictedValue<TimeSpan>>,
    /// The sink where these latencies are expected; none: the only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_at: Option<String>,
    /// Estimate of latency by which the plan keeps the service level: a bound or a simulation. Default: guaranteed.
    #[serde(default, skip_serializing_if = "LatencyBasis::is_guaranteed")]
    pub latency_basis: LatencyBasis,
    /// Total cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<PredictedValue<HourlyPrice>>,
    /// End-to-end accuracy; its range is the confidence interval, where it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<PredictedValue<Percent>>,
    /// Part of the time that each worker is busy, by id.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub utilization: BTreeMap<String, Percent>,
}

fn first_plan() -> u64 {
    1
}

/// Returns the default tick of a plan: 50ms.
pub fn default_tick() -> TimeSpan {
    TimeSpan(50_000_000)
}

/// Returns the default number of ticks between checkpoints: 20.
pub fn default_checkpoint_every() -> u64 {
    20
}

/// Returns the default percentile of service time: p75.
pub fn default_percentile() -> Percentile {
    Percentile(75.0)
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn default_slot_group() -> String {
    "main".to_string()
}

fn one() -> u32 {
    1
}

fn whole() -> f64 {
    1.0
}

/// Returns the default limit on bytes waiting in a slot: 64MiB.
fn default_byte_budget() -> Bytes {
    Bytes(64 << 20)
}
