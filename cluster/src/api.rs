//! The requests and answers of the controller, as JSON over HTTPS. People show an access token, workers their certificates.
//!
//! | request | client | request and answer |
//! |---|---|---|
//! | `POST /v1/join` | with a join token | [`tidemill_identity::JoinRequest`] to [`tidemill_identity::Issued`] |
//! | `POST /v1/renew` | worker | [`RenewRequest`] to [`tidemill_identity::Issued`] |
//! | `POST /v1/heartbeat` | worker | [`Heartbeat`] to [`Duties`] |
//! | `GET /v1/blobs/DIGEST` | worker, viewer | bytes, optionally from one of them on (`Range: bytes=N-`) |
//! | `PUT /v1/blobs/DIGEST` | operator | bytes |
//! | `POST /v1/blobs` | operator | many small files at once, packed by [`crate::parcel`], to their number |
//! | `POST /v1/blobs/missing` | operator | list of digests to the missing ones |
//! | `POST /v1/runs` | operator | [`Submission`] to [`RunView`] |
//! | `GET /v1/runs`, `GET /v1/runs/NAME` | viewer | [`RunView`] |
//! | `DELETE /v1/runs/NAME` | operator | cancels, [`RunView`] |
//! | `GET /v1/runs/NAME/plan` | viewer | [`PlanView`] |
//! | `POST /v1/runs/NAME/plan` | operator | [`ChangeRequest`] to [`PlanView`]: starts the change; events report its
//! outcome |
//! | `GET /v1/runs/NAME/logs?after=N` | viewer | [`LogLine`]s |
//! | `GET /v1/runs/NAME/replan` | viewer | [`ReplanView`] |
//! | `POST /v1/runs/NAME/replan` | operator | [`ReplanRequest`] to [`ReplanView`] |
//! | `GET /v1/runs/NAME/feeds` | viewer | [`FeedsView`] |
//! | `POST /v1/runs/NAME/feeds` | operator | [`FeedRequest`] to [`FeedsView`] |
//! | `GET /v1/runs/NAME/samples?after=N` | viewer | [`SamplesView`]: the newest records of each sink |
//! | `GET /v1/runs/NAME/figures` | viewer | [`RunFigures`] |
//! | `GET /v1/me` | viewer | [`Myself`] |
//! | `GET /metrics` | viewer | metrics, as Prometheus reads them |
//! | `GET /` | anybody | a page in a browser, which uses the requests above |
//! | `GET /v1/workers` | viewer | [`WorkerView`]s |
//! | `GET /v1/infrastructure` | viewer | [`InfrastructureView`] |
//! | `GET /v1/links` | viewer | [`MeasuredLinkView`]s |
//! | `POST /v1/workers/NAME/drain`, `/v1/workers/NAME/resume` | operator | [`WorkerView`] |
//! | `GET /v1/workers/NAME/net` | viewer | [`WorkerNetView`] |
//! | `GET /v1/net/policies` | viewer | [`NetPolicy`]s |
//! | `POST /v1/net/policies` | operator | attaches a [`NetPolicy`] |
//! | `POST /v1/net/policies/NAME` | operator | [`NetPolicyOptions`] to [`NetPolicy`] |
//! | `DELETE /v1/net/policies/NAME` | operator | detaches the [`NetPolicy`] |
//! | `DELETE /v1/workers/NAME` | admin | revokes its certificates |
//! | `GET /v1/events?after=N&wait=SECONDS` | viewer | [`Event`]s |
//! | `POST /v1/join-tokens` | admin | [`TokenRequest`] to [`TokenAnswer`] |
//! | `GET /v1/people`, `POST /v1/people`, `DELETE /v1/people/NAME` | admin | [`PersonView`]s, [`PersonRequest`] to [`PersonAnswer`] |
//! | `POST /v1/runs/NAME/remove` | operator | removes an ended run and its files, [`RemovedView`] |
//! | `GET /v1/runs/NAME/results` | viewer | [`ResultView`]s |
//! | `GET /v1/runs/NAME/results/SINK` | viewer | committed bytes, optionally from one of them on (`Range: bytes=N-`) |
//! | `POST /v1/jobs` | operator | [`JobSubmission`] to [`JobView`] |
//! | `POST /v1/jobs/remove` | operator | [`JobRemoval`] to [`JobsRemoved`] |
//! | `GET /v1/jobs`, `GET /v1/jobs/JOB` | viewer | [`JobView`] |
//! | `DELETE /v1/jobs/JOB` | operator | cancels, [`JobView`] |
//! | `GET /v1/jobs/JOB/explanation` | viewer | [`JobExplanation`] |
//! | `GET /v1/jobs/JOB/logs?after=N` | viewer | [`LogLine`]s |
//! | `POST /v1/jobs/JOB/tasks/RANK/INCARNATION/missing` | worker | list of digests to the missing ones |
//! | `PUT /v1/jobs/JOB/tasks/RANK/INCARNATION/files/DIGEST` | worker | bytes of a checkpoint or a result |
//! | `PUT`, `POST /v1/file-parts/NUMBER` | worker | bytes or [`FilePartRefused`] to the next [`FilePart`]s |
//! | `POST /v1/blobs/DIGEST/source` | worker | [`SourceRequest`] to [`Source`] |
//! | `GET /v1/controller` | viewer | [`ControllerView`] |
//! | `POST /v1/probes`, `GET /v1/probes` | viewer | workers connect to each other, [`ProbeView`] |
//! | `GET /v1/openapi.json` | anybody | this table, for programs |
mod cuts;
mod feeds;
mod files;
mod groups;
mod health;
mod jobs;
mod losses;
mod net;
mod people;
mod planning;
mod samples;
mod tokens;
mod traffic;

pub use cuts::{CutStage, CutView, StandInView};
pub use feeds::{FeedRequest, FeedsView};
pub use files::*;
pub use groups::GroupDuties;
pub use health::{
    ControllerView, Health, LinkView, Probe, ProbeView, Probed, ServiceHealth, SharedView, StandByView,
    WorkerHealth,
};
pub use jobs::*;
pub use losses::{LossView, covered_in_words};
pub use net::{NET_POLICY_PREFIX, NetPolicy, NetPolicyOptions, NetReport, WorkerNetView};
pub use people::{PersonAnswer, PersonRequest, PersonView};
pub use planning::{
    InfrastructureView, LevelView, LinkHint, LinkMeasurement, LinkTarget, MeasuredLinkView, ModelView,
    Planning, Proposal, Quota, RateSource, Replan, ReplanRequest, ReplanView,
};
pub use samples::{SampleMedium, SampleValue, SampleView, SamplesView, SinkSamples};
pub use tokens::{TokenAnswer, TokenRequest};
pub use traffic::{FlowRate, PeerTraffic, TrafficReport};

pub use tidemill_app::run_figures::{RunFigures, RunState};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tidemill_net::protocol::PolicySpec;
use tidemill_spec::plan::Plan;

/// Time between two heartbeats of a worker, milliseconds.
pub const HEARTBEAT_MILLISECONDS: u64 = 500;
/// Time without a heartbeat after which a worker is lost, milliseconds.
pub const DETECTION_MILLISECONDS: u64 = 2_000;

/// Status of an answer to a worker whose certificate is revoked (410 in HTTP): it has left the cluster. All other
/// rejections can be temporary, such as one because of a wrong clock.
pub const REVOKED: u16 = 410;

/// The reason why the controller rejected a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Refused {
    /// Error message and fix, for people.
    pub error: String,
}

/// Answer of a controller that does not lead: status 307 (and `Location`) if it knows the leader, else 503.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NotLeading {
    /// Error message, for people.
    pub error: String,
    /// `HOST:PORT` of the leader; none: there is no leader at the moment.
    pub leader: Option<String>,
}

impl NotLeading {
    /// Parses an answer with this status; `None` if it is another answer.
    pub fn read(status: u16, body: &[u8]) -> Option<Self> {
        #[derive(Deserialize)]
        struct Body {
            error: String,
            // It must be there, and may be null.
            #[serde(deserialize_with = "Option::deserialize")]
            leader: Option<String>,
        }
        if status != 307 && status != 503 {
            return None;
        }
        let Body { error, leader } = serde_json::from_slice(body).ok()?;
        Some(Self { error, leader })
    }
}

/// Request of a worker for a new certificate.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RenewRequest {
    /// The request for a certificate, as PEM.
    pub request_pem: String,
}

/// Capacity of a machine.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Capacity {
    /// Processors that runs can use: fewer than the machine has if a control group limits them.
    pub processors: f64,
    /// Bytes of memory that runs can use.
    pub memory_bytes: u64,
    /// Accelerators by name.
    #[serde(default)]
    pub accelerators: Vec<String>,
}

/// Report of a worker, twice a second.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub struct Heartbeat {
    /// Version of its program.
    pub version: String,
    /// Name of the machine in its operating system.
    pub machine: String,
    /// Type of machine, as in profiles and infrastructures.
    #[serde(default)]
    pub worker_type: Option<String>,
    /// Its price in $/h; none: unknown.
    #[serde(default)]
    pub price: Option<f64>,
    /// Its capacity.
    pub capacity: Capacity,
    /// Inference backends that can run models there; none: unknown, because the program is older.
    #[serde(default)]
    pub backends: Option<Vec<String>>,
    /// Labels from the command that started it.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Other workers cannot connect to it.
    #[serde(default)]
    pub only_dials: bool,
    /// Names of its paths; none: one, as its system chooses.
    #[serde(default)]
    pub paths: Vec<String>,
    /// Processes of runs that it has.
    pub hosts: Vec<HostStatus>,
    /// Lines of their logs since the last heartbeat.
    #[serde(default)]
    pub logs: Vec<LogLine>,
    /// Its health.
    #[serde(default)]
    pub health: Option<Health>,
    /// Digests of the files that it can send to others; none: unchanged.
    #[serde(default)]
    pub held: Option<Vec<String>>,
    /// Folders of runs that it has.
    #[serde(default)]
    pub folders: Vec<RunFolder>,
    /// Result of its last test of connections to others.
    #[serde(default)]
    pub probed: Option<Probed>,
    /// Address that answers measurements of links, `10.0.0.7:40123`; none: it does not answer them.
    #[serde(default)]
    pub measured_at: Option<String>,
    /// Measurements of links to others since the last heartbeat.
    #[serde(default)]
    pub ways: Vec<LinkMeasurement>,
    /// Traffic of the machine besides that of runs since the last heartbeat; none: it is not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traffic: Option<TrafficReport>,
    /// Digest of the assignments that it has: the controller does not send these again.
    #[serde(default)]
    pub follows: Option<String>,
    /// Number of kept files that another program removed since the last heartbeat.
    #[serde(default)]
    pub lost_files: u64,
    /// News of its transport service; none: there are none.
    #[serde(default)]
    pub net: Option<NetReport>,
    /// Files that it is fetching, which it already sends on; none: the program is older and sends only whole files.
    #[serde(default)]
    pub fetching: Option<Vec<Fetching>>,
    /// Where other workers reach its transport service for groups, `HOST:PORT`; none: nowhere.
    #[serde(default)]
    pub groups_at: Option<String>,
    /// Number of the process of the agent, drawn at its start: tasks of an earlier process have ended.
    #[serde(default)]
    pub session: u64,
    /// Tasks of jobs that it has.
    #[serde(default)]
    pub tasks: Vec<TaskStatus>,
}

/// A process of a run on a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HostStatus {
    /// The run.
    pub run: String,
    /// The worker of the run's plan.
    pub role: String,
    /// Number of the process, among those of this role.
    pub generation: u64,
    /// Version of the run's plan that it follows.
    #[serde(default)]
    pub plan_version: u64,
    /// Reason of its end, in words; none: it runs.
    pub ended: Option<String>,
}

/// A line of a log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LogLine {
    /// Number of the line in the run, set by the controller.
    #[serde(default)]
    pub number: u64,
    /// The run.
    pub run: String,
    /// The worker of the run's plan; none: the coordinator.
    #[serde(default)]
    pub role: Option<String>,
    /// The worker of the cluster.
    #[serde(default)]
    pub worker: Option<String>,
    /// The workflow of the run, set by the controller.
    #[serde(default)]
    pub workflow: Option<String>,
    /// The stage of the line if it names one, else all stages of the process, set by the controller.
    #[serde(default)]
    pub stages: Vec<String>,
    /// Time of the line, by the clock of the machine.
    #[serde(default)]
    pub time: Option<String>,
    /// Its level, if it has one, such as `WARN`; `EVENT`: a line of the controller.
    #[serde(default)]
    pub level: Option<String>,
    /// The line.
    pub line: String,
}

/// Duties of a worker.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub struct Duties {
    /// Processes of runs that it must have; it ends all others.
    pub assignments: Vec<Assignment>,
    /// Runs that a restarted controller has not taken over yet: the worker leaves their processes alone.
    #[serde(default)]
    pub unsettled: Vec<String>,
    /// Serial numbers of revoked certificates.
    #[serde(default)]
    pub revoked: Vec<String>,
    /// The controller does not know the files of the worker: the next heartbeat must list all of them.
    #[serde(default)]
    pub tell_held: bool,
    /// Folders of runs to remove.
    #[serde(default)]
    pub remove: Vec<RunFolder>,
    /// Parts of files to send.
    #[serde(default)]
    pub parts: Vec<FilePart>,
    /// Workers to test connections to.
    #[serde(default)]
    pub probe: Option<Probe>,
    /// Workers to measure links to.
    #[serde(default)]
    pub measure: Vec<LinkTarget>,
    /// Names of its paths that connections leave while another one works.
    #[serde(default)]
    pub drained_paths: Vec<String>,
    /// Policies to keep attached to edges there; none: the controller is older and has none to say.
    #[serde(default)]
    pub net_policies: Option<Vec<PolicySpec>>,
    /// How its transport service takes part in groups; none: as before.
    #[serde(default)]
    pub groups: Option<GroupDuties>,
    /// Digest of the assignments; empty: the controller sends them each time.
    #[serde(default)]
    pub digest: String,
    /// The assignments are unchanged, so they are not sent again.
    #[serde(default)]
    pub is_same: bool,
    /// Milliseconds until its next heartbeat; none: as usual.
    #[serde(default)]
    pub pause_milliseconds: Option<u64>,
    /// Number of the leader, if there are several controllers: a worker ignores the duties of earlier leaders.
    #[serde(default)]
    pub term: i64,
    /// Tasks of jobs; none: the controller is older.
    #[serde(default)]
    pub jobs: Option<JobDuties>,
}

/// A process of a run that a worker must have.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Assignment {
    /// The run.
    pub run: String,
    /// The worker of the run's plan whose stages it runs.
    pub role: String,
    /// Number of the process: the worker ends a process of an older generation first.
    pub generation: u64,
    /// Version of the run's plan that it follows: during a change of the plan there are processes of two versions side by side.
    #[serde(default)]
    pub plan_version: u64,
    /// Secret number of the run, hexadecimal.
    pub secret: String,
    /// Port of its coordinator, on the controller as this worker reaches it.
    pub coordinator_port: u16,
    /// The files.
    pub bundle: Bundle,
    /// The plan of the run.
    pub plan: Plan,
    /// Records per second of each source; none: as fast as possible.
    pub rates: BTreeMap<String, Option<f64>>,
    /// Limit of the process on its worker: its part, by the plan, of the limit of the run.
    #[serde(default)]
    pub quota: Quota,
}

/// A workflow to run.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Submission {
    /// Name of the run. Two submissions are the same if everything is equal.
    pub name: String,
    /// The files.
    pub bundle: Bundle,
    /// The plan; none: the controller plans the run, or every stage runs on one worker.
    #[serde(default)]
    pub plan: Option<Plan>,
    /// Files and limits for planning, if there is no plan, and for later plans; none: no planning.
    #[serde(default)]
    pub planning: Option<Planning>,
    /// Action on a better plan during the run.
    #[serde(default)]
    pub replan: Replan,
    /// Limits of the run.
    #[serde(default)]
    pub quota: Quota,
    /// Number of records after which each source ends.
    #[serde(default)]
    pub records: Option<u64>,
    /// Folder of the files on the submitting machine: messages name the files there. Not compared between submissions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent_from: Option<String>,
    /// Replace an ended run of this name, once this one is accepted. Not compared between submissions.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub again: bool,
}

/// The asking person and its role.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Myself {
    /// The name.
    pub name: String,
    /// `viewer`, `operator` or `admin`.
    pub role: String,
}

/// A run.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct RunView {
    /// Its name.
    pub name: String,
    /// The workflow's name.
    pub workflow: String,
    /// Its state.
    pub state: RunState,
    /// Reason of the state, if any.
    pub reason: Option<String>,
    /// The resources or files that it waits for, in words; empty: none.
    #[serde(default)]
    pub waits_for: Vec<String>,
    /// Time of the submission.
    pub submitted: String,
    /// Version of its plan; the first is 1.
    #[serde(default)]
    pub plan_version: u64,
    /// Worker of the cluster, by worker of its plan.
    pub placement: BTreeMap<String, Option<String>>,
    /// Workers of its plan whose processes do not work yet: they are missing, or have not opened their models and files.
    #[serde(default)]
    pub opening: Vec<String>,
    /// Files that its workers are fetching.
    #[serde(default)]
    pub fetching: Vec<FetchView>,
    /// Records that left the sources.
    pub emitted: u64,
    /// Records that reached the sinks.
    pub arrived: u64,
    /// Dead letters.
    pub dead_letters: u64,
    /// Restarts of slots.
    pub restarts: u64,
    /// Seconds since its start.
    pub seconds: f64,
    /// Files of each sink, and the worker of the cluster that has them.
    pub outputs: Vec<OutputView>,
    /// Its service levels, and whether the run keeps them now.
    #[serde(default)]
    pub levels: Vec<LevelView>,
    /// Guarantees for the rows of its sinks.
    #[serde(default)]
    pub promises: Vec<PromiseView>,
    /// Edges between workers that are cut or deliver kept records, if the workflow has `when_cut` for them.
    #[serde(default)]
    pub cuts: Vec<CutView>,
    /// Stages that stand in for others while the link there is cut, and the number of records that they have answered.
    #[serde(default)]
    pub stand_ins: Vec<StandInView>,
    /// Workers that were lost and whose stages other stages replace, the oldest first. Empty: its plan is whole.
    #[serde(default)]
    pub losses: Vec<LossView>,
    /// Number of further workers that may be lost without a pause for new stages; none: its plan covers no loss (`survive`).
    #[serde(default)]
    pub losses_covered: Option<u32>,
    /// Reason for a proposed plan; none: there is no proposal.
    #[serde(default)]
    pub proposal: Option<String>,
}

/// Guarantee for the rows of a sink, including restarts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PromiseView {
    /// The sink.
    pub sink: String,
    /// Number of times that each row arrives: `exactly once`, `at least once`, `at most once`.
    pub guarantee: String,
    /// Reasons why not exactly once, in words.
    pub because: Vec<String>,
}

/// Request to change the plan of a run.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeRequest {
    /// The plan.
    pub plan: Plan,
    /// Reason, in words.
    pub reason: String,
}

/// The plan of a run.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct PlanView {
    /// The present plan.
    pub plan: Plan,
    /// Version of the plan; the first is 1.
    pub version: u64,
    /// Version that is being prepared at the same time.
    #[serde(default)]
    pub next: Option<u64>,
    /// Changes so far, the oldest first.
    #[serde(default)]
    pub changes: Vec<PlanChange>,
    /// Worker of the plan, by sink that writes files and by source that reads a stream; another plan must leave them there.
    #[serde(default)]
    pub bound: BTreeMap<String, String>,
}

/// A change of the plan of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlanChange {
    /// The requested version.
    pub version: u64,
    /// Reason of the change.
    pub reason: String,
    /// Time of the request.
    pub time: String,
    /// Its outcome; none: not known yet.
    #[serde(default)]
    pub outcome: Option<ChangeOutcome>,
}

/// Outcome of a change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum ChangeOutcome {
    /// The run continues under the new plan.
    Changed {
        /// Time from the last record at a sink under the old plan to the first one under the new plan, milliseconds;
        /// the longest of the sinks with a record in the 2 s before. None: no such sink got records under both plans.
        pause_ms: Option<f64>,
        /// This time by sink. It includes the gap between two bursts of a sink whose records come in bursts, such as those of windows.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        sinks_ms: BTreeMap<String, f64>,
        /// Delay of the schedule of the sources by the change, milliseconds; none: the controller was restarted meanwhile.
        gap_ms: Option<f64>,
        /// Time from the request until the new processes were ready, milliseconds, during which the old plan ran. None: as above.
        prepared_ms: Option<f64>,
    },
    /// The run continues under the old plan.
    Failed {
        /// Reason.
        why: String,
    },
}

/// A file that a sink writes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OutputView {
    /// The sink.
    pub sink: String,
    /// The worker of the cluster.
    pub worker: Option<String>,
    /// Path on the worker.
    pub path: String,
}

/// A worker.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct WorkerView {
    /// Its name.
    pub name: String,
    /// Whether its heartbeats arrive in time.
    pub is_alive: bool,
    /// Milliseconds since its last heartbeat; none: no heartbeat since the start of the controller.
    pub silent_milliseconds: Option<u64>,
    /// It accepts no new work, and its work moved to others.
    pub is_drained: bool,
    /// Its location.
    pub location: Option<String>,
    /// Its tier.
    pub tier: Option<String>,
    /// Its type.
    pub worker_type: Option<String>,
    /// Its price in $/h, if known.
    #[serde(default)]
    pub price: Option<f64>,
    /// Its capacity.
    pub capacity: Capacity,
    /// Inference backends that can run models there; none: unknown.
    #[serde(default)]
    pub backends: Option<Vec<String>>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its address, as the controller sees it.
    pub address: Option<String>,
    /// Processes of runs: run and worker of the plan. Empty for a lost worker, whose processes are unknown.
    pub hosts: Vec<(String, String)>,
    /// Version of its program.
    pub version: String,
    /// Its health; none: no heartbeat yet.
    #[serde(default)]
    pub health: Option<WorkerHealth>,
    /// Names of its paths; none: one, as its system chooses.
    #[serde(default)]
    pub paths: Vec<String>,
    /// Those among them that connections leave while another one works.
    #[serde(default)]
    pub drained_paths: Vec<String>,
}

/// An event of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    /// Number of the event.
    pub number: u64,
    /// Time of the event.
    pub time: String,
    /// Kind of the event, as one word: `worker_lost`, `run_running`.
    pub kind: String,
    /// The run.
    pub run: Option<String>,
    /// The worker of the cluster.
    pub worker: Option<String>,
    /// Text for people.
    pub text: String,
}
