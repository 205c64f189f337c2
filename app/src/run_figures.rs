//! Current figures of a run: computed here once, for `top`, the page of a controller, and the gauges of a monitoring system.
//!
//! Rates, times and shares cover the last [`RunFigures::window_seconds`]; counts cover the whole run.
mod change;
mod watched;

pub use watched::Watched;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tidemill_engine::transport::{Health, PathFigures};
use tidemill_operators::feeds::FeedStatus;
use tidemill_spec::plan::{Plan, PlanWorker, Stage};

/// State of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// It starts.
    Starting,
    /// It runs.
    Running,
    /// It waits for something, such as a worker: `waits_for` of the run lists it.
    Waiting,
    /// It is complete.
    Complete,
    /// It failed, and would fail again.
    Failed,
    /// A user cancelled it.
    Cancelled,
}

impl RunState {
    /// Whether the run has ended.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Complete | Self::Failed | Self::Cancelled)
    }
}

impl std::fmt::Display for RunState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Complete => "complete",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        })
    }
}

/// Places of a run, and facts that need no measurement.
#[derive(Debug, Clone)]
pub struct RunPlace {
    /// Its workflow.
    pub workflow: String,
    /// Its state.
    pub state: RunState,
    /// In a cluster: worker of the cluster, by worker of the plan.
    pub places: BTreeMap<String, String>,
    /// Processors of the present workers of the cluster.
    pub processors: BTreeMap<String, f64>,
}

impl RunPlace {
    /// A run of this process.
    pub fn here(workflow: &str) -> Self {
        let (places, processors) = (BTreeMap::new(), BTreeMap::new());
        Self { workflow: workflow.to_owned(), state: RunState::Running, places, processors }
    }
}

/// Current figures of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunFigures {
    /// The run.
    pub run: String,
    /// Its workflow.
    pub workflow: String,
    /// Its state.
    pub state: RunState,
    /// Time of these figures; none: the controller has no figures of this run.
    pub taken: Option<String>,
    /// Engine seconds since its start.
    pub seconds: f64,
    /// Window of rates and times, seconds; 0: nothing measured yet.
    pub window_seconds: f64,
    /// Version of its plan.
    pub plan_version: u64,
    /// Records that left the sources.
    pub emitted: u64,
    /// Records that reached the sinks.
    pub arrived: u64,
    /// Dead letters.
    pub dead_letters: u64,
    /// Restarts of slots.
    pub restarts: u64,
    /// The stage that limits the rate: the busiest one.
    pub limit: Option<String>,
    /// Stages in the order of the plan.
    pub stages: Vec<StageFigures>,
    /// Sources: a stage of each.
    pub sources: Vec<SourceFigures>,
    /// Sinks.
    pub sinks: Vec<SinkFigures>,
    /// Links between stages, in the order of the plan.
    pub links: Vec<LinkFigures>,
    /// Workers of the plan.
    pub workers: Vec<RoleFigures>,
    /// Paths between the processes of the run, each at the side that dialled.
    #[serde(default)]
    pub paths: Vec<PathState>,
    /// The feeds of live sources, such as cameras, by source.
    #[serde(default)]
    pub feeds: BTreeMap<String, Vec<FeedStatus>>,
    /// Workers that are lost and whose stages others replace, and how many more may be, in words.
    #[serde(default)]
    pub losses: Vec<String>,
    /// Service levels.
    pub levels: Vec<LevelFigures>,
    /// Its cost.
    pub cost: CostFigures,
}

/// Times of the records of a window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Times {
    /// Records.
    pub count: u64,
    /// Median, milliseconds.
    pub p50_ms: f64,
    /// 99th percentile, milliseconds.
    pub p99_ms: f64,
}

/// A stage.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StageFigures {
    /// Its id in the plan.
    pub stage: String,
    /// Operator, source or sink.
    pub operator: String,
    /// The chosen model.
    pub variant: Option<String>,
    /// The worker of the plan.
    pub worker: String,
    /// The worker of the cluster that has it.
    pub cluster_worker: Option<String>,
    /// Records in per second.
    pub in_per_second: f64,
    /// Records out per second.
    pub out_per_second: f64,
    /// Records in, including repeated ones after restarts.
    pub records_in: u64,
    /// Records out, including repeated ones after restarts.
    pub records_out: u64,
    /// Waiting in the stage before the computation.
    pub queue: Times,
    /// The computation of the batch.
    pub compute: Times,
    /// Transfer from the stage before, over the slowest link.
    pub transfer: Times,
    /// Of a model on a device: where the time of its batches goes. None: the processors of the worker compute.
    #[serde(default)]
    pub on_device: Option<DeviceFigures>,
    /// Part of its time that it computes, 0 to 1: of a model, the time of its batches; of others, the processor time of
    /// their slot's thread. None: not known yet.
    pub busy: Option<f64>,
    /// Records in its queue and at its senders.
    pub waiting: u64,
    /// Records lost on purpose, by reason.
    pub drops: BTreeMap<String, u64>,
    /// Records that could not be processed, by reason.
    pub dead_letters: BTreeMap<String, u64>,
    /// Restarts after a panic.
    pub restarts: u64,
    /// Bytes of state.
    pub state_bytes: u64,
}

/// A model on a device. The four times of a batch add up to its computation in the stage.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DeviceFigures {
    /// The device.
    pub device: String,
    /// In the process of the stage: pre-processing, post-processing, copies, runs that were lost.
    pub client: Times,
    /// On the way to the device and back.
    pub network: Times,
    /// Waiting at the device.
    pub queue: Times,
    /// The computation of the device.
    pub compute: Times,
    /// Waits for the device in a batch; none: it has computed none of late.
    pub round_trips_per_batch: Option<f64>,
    /// Bytes of tensors per second to the device.
    pub sent_bytes_per_second: f64,
    /// Bytes of tensors per second from the device.
    pub received_bytes_per_second: f64,
    /// Sessions that were lost; their batches were computed again.
    pub sessions_lost: u64,
}

/// State of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SourceState {
    /// It has sent no records yet.
    Starting,
    /// It sends at its rate.
    Running,
    /// It sends less than its rate, and lags behind its schedule.
    Behind,
    /// It sends no records, although its rate requires some.
    Silent,
    /// It has ended.
    Ended,
}

impl std::fmt::Display for SourceState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Behind => "behind",
            Self::Silent => "silent",
            Self::Ended => "ended",
        })
    }
}

/// A stage of a source.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SourceFigures {
    /// The source.
    pub source: String,
    /// Its stage.
    pub stage: String,
    /// Its state.
    pub state: SourceState,
    /// Required records per second; none: as many as possible.
    pub wanted_per_second: Option<f64>,
    /// Records per second.
    pub per_second: f64,
    /// Lag behind its schedule, seconds.
    pub behind_seconds: f64,
}

/// A sink.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SinkFigures {
    /// The sink.
    pub sink: String,
    /// Guarantee for each row, such as `exactly once`.
    pub promise: String,
    /// Records that it has committed, each once.
    pub records: u64,
    /// Records per second that arrive.
    pub per_second: f64,
    /// From the intended emission until readers can see the record.
    pub latency: Times,
    /// Share of exact matches in percent, of the whole run, where there is ground truth.
    pub accuracy_percent: Option<f64>,
    /// Records with ground truth.
    pub scored: u64,
}

/// A link between two stages.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LinkFigures {
    /// The sending stage.
    pub from: String,
    /// The receiving stage.
    pub to: String,
    /// Input of the receiver.
    pub input: u32,
    /// Sending worker of the plan.
    pub from_worker: String,
    /// Receiving worker of the plan.
    pub to_worker: String,
    /// Records sent between slots; 0 inside a slot.
    pub records: u64,
    /// Bytes sent between slots; 0 inside a slot.
    pub bytes: u64,
    /// Records sent per second.
    pub per_second: f64,
    /// Bytes sent per second.
    pub bytes_per_second: f64,
    /// Transfer times.
    pub transfer: Times,
    /// Records that wait at the sender.
    pub waiting: u64,
    /// Records lost on purpose, by reason.
    pub drops: BTreeMap<String, u64>,
}

/// A worker of the plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RoleFigures {
    /// Its id in the plan.
    pub worker: String,
    /// The worker of the cluster that runs its stages.
    pub cluster_worker: Option<String>,
    /// Its tier in the plan.
    pub tier: String,
    /// Its type in the plan.
    pub worker_type: String,
    /// Its price, dollars per hour.
    pub price: Option<f64>,
    /// Processors that its stages keep busy.
    pub processors: f64,
    /// Percent of the processors of the worker of the cluster that its stages keep busy; none: not known.
    pub busy_percent: Option<f64>,
    /// Percent of its time that the plan expects it to be busy.
    pub predicted_percent: Option<f64>,
}

/// A path from a worker of the plan to another process of the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PathState {
    /// The worker of the plan.
    pub worker: String,
    /// The worker of the plan at the other end, or `controller`.
    pub peer: String,
    /// Name of the path.
    pub path: String,
    /// The interface or address by which it leaves its machine; none: as the system chooses.
    pub from: Option<String>,
    /// The address at the other end.
    pub to: String,
    /// `up`, `silent`, or `unknown`.
    pub state: String,
    /// Channels leave it while another path works.
    pub is_drained: bool,
    /// Its price, dollars per GiB.
    pub price: f64,
    /// Smoothed round trip, milliseconds; none: not known yet.
    pub round_trip_ms: Option<f64>,
    /// Connections that it carries now.
    pub connections: u64,
    /// Bytes sent and received over it, without signs of life.
    pub bytes: u64,
    /// Bytes of signs of life.
    pub hello_bytes: u64,
    /// Dollars for all of them so far.
    pub cost: f64,
    /// Times that it fell silent.
    pub silences: u64,
    /// Connections that left it for another path.
    pub moves: u64,
}

impl PathState {
    fn of((worker, peer, path): (String, Option<String>, PathFigures)) -> Self {
        const GIB: f64 = (1u64 << 30) as f64;
        let bytes = path.sent_bytes + path.received_bytes;
        Self {
            worker,
            peer: peer.unwrap_or_else(|| "controller".to_owned()),
            path: path.path,
            from: path.from,
            to: path.to,
            state: match path.health {
                Health::Unknown => "unknown",
                Health::Up => "up",
                Health::Silent => "silent",
            }
            .to_owned(),
            is_drained: path.is_drained,
            price: path.price,
            round_trip_ms: path.round_trip_us.map(|time| time as f64 / 1e3),
            connections: path.lanes as u64,
            bytes,
            hello_bytes: path.hello_bytes,
            cost: (bytes + path.hello_bytes) as f64 / GIB * path.price,
            silences: path.silences,
            moves: path.moves,
        }
    }
}

/// A service level.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LevelFigures {
    /// `rate`, `accuracy` or `latency`.
    pub level: String,
    /// Required value: least records per second, least percent, or largest milliseconds.
    pub wanted: f64,
    /// Percentile of a latency.
    pub percentile: Option<f64>,
    /// Measured value, in the same unit: accuracy over the whole run, other levels over the window.
    pub measured: Option<f64>,
    /// Whether the last window missed it; none: not known yet.
    pub is_missed: Option<bool>,
    /// Checked windows.
    pub windows: u64,
    /// Checked windows that missed it.
    pub windows_missed: u64,
}

/// Cost of a run, dollars per hour.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CostFigures {
    /// Cost that the plan expects; none: it has no prices.
    pub predicted: Option<f64>,
    /// Present cost of workers and traffic; none: the plan has no prices.
    pub now: Option<f64>,
    /// Part of the workers.
    pub compute: Option<f64>,
    /// Part of the traffic.
    pub network: Option<f64>,
}

/// Records and batches that a stage computed recently.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Computed {
    /// Records.
    pub records: f64,
    /// Batches.
    pub batches: f64,
    /// Mean seconds of a batch.
    pub batch_seconds: f64,
}

impl RunFigures {
    /// Returns the figures of an unwatched run: it has not started, or ended before.
    pub fn unseen(name: &str, place: &RunPlace, plan: &Plan) -> Self {
        Self {
            run: name.to_owned(),
            workflow: place.workflow.clone(),
            state: place.state,
            taken: None,
            seconds: 0.0,
            window_seconds: 0.0,
            plan_version: plan.plan_version,
            emitted: 0,
            arrived: 0,
            dead_letters: 0,
            restarts: 0,
            limit: None,
            stages: plan.stages.iter().map(|stage| StageFigures::still(stage, place)).collect(),
            sources: Vec::new(),
            sinks: Vec::new(),
            links: Vec::new(),
            workers: plan.workers.iter().map(|worker| RoleFigures::of(worker, plan, place, 0.0)).collect(),
            paths: Vec::new(),
            feeds: BTreeMap::new(),
            losses: Vec::new(),
            levels: Vec::new(),
            cost: CostFigures { predicted: predicted_cost(plan), ..CostFigures::default() },
        }
    }
}

impl StageFigures {
    /// A stage that has counted nothing.
    fn still(stage: &Stage, place: &RunPlace) -> Self {
        Self {
            stage: stage.id.clone(),
            operator: stage.operator.clone(),
            variant: stage.variant.clone(),
            worker: stage.worker.clone(),
            cluster_worker: place.places.get(&stage.worker).cloned(),
            ..Self::default()
        }
    }
}

impl RoleFigures {
    /// A worker whose stages use `processors` processors.
    fn of(worker: &PlanWorker, plan: &Plan, place: &RunPlace, processors: f64) -> Self {
        let cluster_worker = place.places.get(&worker.id).cloned();
        let of = cluster_worker.as_ref().and_then(|name| place.processors.get(name)).filter(|of| **of > 0.0);
        let predicted = plan.predicted.as_ref().and_then(|predicted| predicted.utilization.get(&worker.id));
        Self {
            worker: worker.id.clone(),
            tier: worker.tier.clone(),
            worker_type: worker.worker_type.clone(),
            price: worker.price.map(|price| price.0),
            processors,
            busy_percent: of.map(|of| processors / of * 100.0),
            predicted_percent: predicted.map(|percent| percent.0),
            cluster_worker,
        }
    }
}

fn predicted_cost(plan: &Plan) -> Option<f64> {
    Some(plan.predicted.as_ref()?.cost.as_ref()?.value.0)
}

/// The stage that limits: the busiest, where one is busy for a tenth of its time at least.
fn limit(stages: &[StageFigures]) -> Option<String> {
    let busy = stages.iter().filter_map(|stage| Some((stage.busy.filter(|busy| *busy >= 0.1)?, stage)));
    busy.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, stage)| stage.stage.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stage(name: &str, busy: Option<f64>) -> StageFigures {
        StageFigures { stage: name.to_owned(), busy, ..StageFigures::default() }
    }

    #[test]
    fn the_busiest_stage_limits_where_one_is_busy() {
        let stages = [stage("a", Some(0.4)), stage("b", Some(0.9)), stage("c", None)];
        assert_eq!(limit(&stages).as_deref(), Some("b"));
        assert_eq!(limit(&[stage("a", Some(0.05)), stage("c", None)]), None);
    }
}
