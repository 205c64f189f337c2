//! What the controller is asked and answers, as JSON over HTTPS. People show an access token, workers their certificates.
//!
//! | request | who | what |
//! |---|---|---|
//! | `POST /v1/join` | with a join token | [`tidemill_identity::JoinRequest`] to [`tidemill_identity::Issued`] |
//! | `POST /v1/renew` | worker | [`RenewRequest`] to [`tidemill_identity::Issued`] |
//! | `POST /v1/heartbeat` | worker | [`Heartbeat`] to [`Duties`] |
//! | `GET /v1/blobs/DIGEST` | worker, viewer | bytes, also from one of them on (`Range: bytes=N-`) |
//! | `PUT /v1/blobs/DIGEST` | operator | bytes |
//! | `POST /v1/blobs` | operator | many small files at once, as [`crate::parcel`] packs them, to their number |
//! | `POST /v1/blobs/missing` | operator | list of digests to those that are not there |
//! | `POST /v1/runs` | operator | [`Submission`] to [`RunView`] |
//! | `GET /v1/runs`, `GET /v1/runs/NAME` | viewer | [`RunView`] |
//! | `DELETE /v1/runs/NAME` | operator | cancels, [`RunView`] |
//! | `GET /v1/runs/NAME/plan` | viewer | [`PlanView`] |
//! | `POST /v1/runs/NAME/plan` | operator | [`ChangeRequest`] to [`PlanView`]: the change is begun, events tell what comes of it |
//! | `GET /v1/runs/NAME/logs?after=N` | viewer | [`LogLine`]s |
//! | `GET /v1/runs/NAME/replan` | viewer | [`ReplanView`] |
//! | `POST /v1/runs/NAME/replan` | operator | [`ReplanRequest`] to [`ReplanView`] |
//! | `GET /v1/runs/NAME/samples?after=N` | viewer | [`SamplesView`]: the newest records of each sink |
//! | `GET /v1/runs/NAME/figures` | viewer | [`RunFigures`] |
//! | `GET /v1/me` | viewer | [`Myself`] |
//! | `GET /metrics` | viewer | metrics, as Prometheus reads them |
//! | `GET /` | anybody | a page in a browser, which asks the above |
//! | `GET /v1/workers` | viewer | [`WorkerView`]s |
//! | `GET /v1/infrastructure` | viewer | [`InfrastructureView`] |
//! | `GET /v1/links` | viewer | [`WayView`]s |
//! | `POST /v1/workers/NAME/drain`, `/v1/workers/NAME/resume` | operator | [`WorkerView`] |
//! | `DELETE /v1/workers/NAME` | admin | revokes its certificates |
//! | `GET /v1/events?after=N&wait=SECONDS` | viewer | [`Event`]s |
//! | `POST /v1/join-tokens` | admin | [`TokenRequest`] to [`TokenAnswer`] |
//! | `GET /v1/people`, `POST /v1/people`, `DELETE /v1/people/NAME` | admin | [`PersonView`]s, [`PersonRequest`] to [`PersonAnswer`] |
//! | `POST /v1/runs/NAME/remove` | operator | removes an ended run and its files, [`RemovedView`] |
//! | `GET /v1/runs/NAME/results` | viewer | [`ResultView`]s |
//! | `GET /v1/runs/NAME/results/SINK` | viewer | committed bytes, also from one of them on (`Range: bytes=N-`) |
//! | `PUT`, `POST /v1/file-parts/NUMBER` | worker | bytes or [`FilePartRefused`] to the next [`FilePart`]s |
//! | `POST /v1/blobs/DIGEST/source` | worker | [`SourceRequest`] to [`Source`] |
//! | `GET /v1/controller` | viewer | [`ControllerView`] |
//! | `POST /v1/probes`, `GET /v1/probes` | viewer | workers dial each other, [`ProbeView`] |
//! | `GET /v1/openapi.json` | everybody | this table, for programs |
mod cuts;
mod files;
mod health;
mod people;
mod planning;
mod samples;

pub use cuts::{CutStage, CutView, StandInView};
pub use files::*;
pub use health::{
    ControllerView, Health, LinkView, Probe, ProbeView, Probed, ServiceHealth, SharedView, StandByView,
    WorkerHealth,
};
pub use people::{PersonAnswer, PersonRequest, PersonView};
pub use planning::{
    InfrastructureView, LevelView, ModelView, Planning, Proposal, Quota, RateSource, Replan, ReplanRequest,
    ReplanView, WayFigure, WayTarget, WayView,
};

pub use samples::{SampleMedium, SampleValue, SampleView, SamplesView, SinkSamples};

pub use tidemill_app::run_figures::{RunFigures, RunState};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tidemill_spec::plan::Plan;

/// How often a worker tells that it lives, milliseconds.
pub const HEARTBEAT_MILLISECONDS: u64 = 500;
/// After so long a silence a worker counts as lost, milliseconds.
pub const DETECTION_MILLISECONDS: u64 = 2_000;

/// The number of an answer to a worker whose certificate was revoked (410 in HTTP): it is not part of the cluster any more. All other
/// refusals may end, such as those of a clock that is wrong.
pub const REVOKED: u16 = 410;

/// What is wrong with a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Refused {
    /// For people: what was found and what to do.
    pub error: String,
}

/// A controller does not lead: the answer has the number 307 (and `Location`) where it knows who does, and 503 where it does not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NotLeading {
    /// For people.
    pub error: String,
    /// `HOST:PORT` of the one that leads; none: nobody does for the moment.
    pub leader: Option<String>,
}

impl NotLeading {
    /// What an answer with this number says, if it is this.
    pub fn read(status: u16, body: &[u8]) -> Option<Self> {
        #[derive(Deserialize)]
        struct Told {
            error: String,
            // It must be there, and may be null.
            #[serde(deserialize_with = "Option::deserialize")]
            leader: Option<String>,
        }
        if status != 307 && status != 503 {
            return None;
        }
        let Told { error, leader } = serde_json::from_slice(body).ok()?;
        Some(Self { error, leader })
    }
}

/// A worker asks for a new certificate.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RenewRequest {
    /// The request for a certificate, as PEM.
    pub request_pem: String,
}

/// What a machine has.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Capacity {
    /// Processors that it may use: less than it has where a control group limits them.
    pub processors: f64,
    /// Bytes of memory that it may use.
    pub memory_bytes: u64,
    /// Accelerators by name.
    #[serde(default)]
    pub accelerators: Vec<String>,
}

/// What a worker tells, twice a second.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub struct Heartbeat {
    /// Version of its program.
    pub version: String,
    /// The operating system's name of the machine.
    pub machine: String,
    /// Type of machine, as in profiles and infrastructures.
    #[serde(default)]
    pub worker_type: Option<String>,
    /// Its price in $/h; none: nothing was said.
    #[serde(default)]
    pub price: Option<f64>,
    /// What it has.
    pub capacity: Capacity,
    /// Inference backends that models can run on there; none: it does not say, as older programs.
    #[serde(default)]
    pub backends: Option<Vec<String>>,
    /// Labels that whoever started it gave it.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Other workers cannot dial it.
    #[serde(default)]
    pub only_dials: bool,
    /// Processes of runs that it has.
    pub hosts: Vec<HostStatus>,
    /// What they wrote to their logs since the last heartbeat.
    #[serde(default)]
    pub logs: Vec<LogLine>,
    /// How it is.
    #[serde(default)]
    pub health: Option<Health>,
    /// Digests of the files that it can give to others; none: as it told before.
    #[serde(default)]
    pub held: Option<Vec<String>>,
    /// Folders of runs that it has.
    #[serde(default)]
    pub folders: Vec<RunFolder>,
    /// What it found when it was last told to dial others.
    #[serde(default)]
    pub probed: Option<Probed>,
    /// Where it answers those who measure the way to it, `10.0.0.7:40123`; none: it does not.
    #[serde(default)]
    pub measured_at: Option<String>,
    /// What it has measured of the ways to others since the last heartbeat.
    #[serde(default)]
    pub ways: Vec<WayFigure>,
    /// Digest of the assignments that it follows: these are not told again.
    #[serde(default)]
    pub follows: Option<String>,
    /// Kept files that somebody removed since the last heartbeat.
    #[serde(default)]
    pub lost_files: u64,
}

/// A process of a run on a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HostStatus {
    /// The run.
    pub run: String,
    /// The worker of the run's plan.
    pub role: String,
    /// Counts the processes of this role.
    pub generation: u64,
    /// Which plan of the run it has.
    #[serde(default)]
    pub plan_version: u64,
    /// How it ended, in words; none: it runs.
    pub ended: Option<String>,
}

/// A line of a log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LogLine {
    /// Counts the lines of a run; given by the controller.
    #[serde(default)]
    pub number: u64,
    /// The run.
    pub run: String,
    /// The worker of the run's plan; none: the coordinator.
    #[serde(default)]
    pub role: Option<String>,
    /// The worker that it ran on.
    #[serde(default)]
    pub worker: Option<String>,
    /// The workflow of the run; given by the controller.
    #[serde(default)]
    pub workflow: Option<String>,
    /// The stage that it is about where it names one, else all stages of the process; the latter are given by the controller.
    #[serde(default)]
    pub stages: Vec<String>,
    /// When it was written, by the clock of the machine.
    #[serde(default)]
    pub time: Option<String>,
    /// Its importance, where it says so: `WARN`; `EVENT`: the controller tells it.
    #[serde(default)]
    pub level: Option<String>,
    /// The line.
    pub line: String,
}

/// What a worker has to do.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub struct Duties {
    /// Processes of runs that it must have; all others are ended.
    pub assignments: Vec<Assignment>,
    /// Runs that a controller that was started again has not taken over yet: their processes are left as they are.
    #[serde(default)]
    pub unsettled: Vec<String>,
    /// Serial numbers of certificates that count no more.
    #[serde(default)]
    pub revoked: Vec<String>,
    /// It is not known which files it holds: tell all of them.
    #[serde(default)]
    pub tell_held: bool,
    /// Folders of runs that are to be removed.
    #[serde(default)]
    pub remove: Vec<RunFolder>,
    /// Parts of files that are wanted.
    #[serde(default)]
    pub parts: Vec<FilePart>,
    /// Others that are to be dialled.
    #[serde(default)]
    pub probe: Option<Probe>,
    /// Others to measure the way to.
    #[serde(default)]
    pub measure: Vec<WayTarget>,
    /// Of the assignments; empty: they are told each time.
    #[serde(default)]
    pub digest: String,
    /// The assignments are those that the worker follows, and are not told again.
    #[serde(default)]
    pub is_same: bool,
    /// Counts the controllers that led, where there are several: what one says that led before is not followed any more.
    #[serde(default)]
    pub term: i64,
}

/// A process of a run that a worker must have.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Assignment {
    /// The run.
    pub run: String,
    /// The worker of the run's plan whose stages it has.
    pub role: String,
    /// A process of an older generation is ended first.
    pub generation: u64,
    /// Which plan of the run it has: while the plan is changed there are processes of two, side by side.
    #[serde(default)]
    pub plan_version: u64,
    /// Secret number of the run, hexadecimal.
    pub secret: String,
    /// Where its coordinator listens: a port of the controller, by whatever name this worker knows that.
    pub coordinator_port: u16,
    /// The files.
    pub bundle: Bundle,
    /// The plan as it is run.
    pub plan: Plan,
    /// Records per second of each source; none: as fast as they are taken.
    pub rates: BTreeMap<String, Option<f64>>,
    /// What the process may take of its worker: its part of what the run may take at most, as its plan divides that.
    #[serde(default)]
    pub quota: Quota,
}

/// A workflow to run.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Submission {
    /// What the run is to be called; it is the same submission if it is the same in everything.
    pub name: String,
    /// The files.
    pub bundle: Bundle,
    /// The plan; none: it is planned, or every stage runs on one worker.
    #[serde(default)]
    pub plan: Option<Plan>,
    /// What it is planned with, where there is no plan, and what plans that may follow are made with; none: it is not planned.
    #[serde(default)]
    pub planning: Option<Planning>,
    /// What becomes of a better plan while it runs.
    #[serde(default)]
    pub replan: Replan,
    /// What it may take.
    #[serde(default)]
    pub quota: Quota,
    /// Sources end after so many records.
    #[serde(default)]
    pub records: Option<u64>,
    /// The folder that the paths of the files begin in, at whoever submits: messages name the files there. It makes no other
    /// submission.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent_from: Option<String>,
    /// A run of this name that is over is removed for this one, as soon as this one is found to be fit. It makes no other submission.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub again: bool,
}

/// Who asks, and what that person may do.
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
    /// How far it is.
    pub state: RunState,
    /// Why it is so, where there is something to say.
    pub reason: Option<String>,
    /// What it waits for, in words; empty: nothing.
    #[serde(default)]
    pub waits_for: Vec<String>,
    /// When it was submitted.
    pub submitted: String,
    /// Counts its plans; the first is 1.
    #[serde(default)]
    pub plan_version: u64,
    /// Where the workers of its plan are: by worker of the plan, the worker of the cluster.
    pub placement: BTreeMap<String, Option<String>>,
    /// Workers of its plan whose processes do nothing at the moment: they are not there, or have not opened their models and files.
    #[serde(default)]
    pub opening: Vec<String>,
    /// Records that left the sources.
    pub emitted: u64,
    /// Records that reached the sinks.
    pub arrived: u64,
    /// Dead letters.
    pub dead_letters: u64,
    /// Slots that were started again.
    pub restarts: u64,
    /// Seconds since it began.
    pub seconds: f64,
    /// By sink: files that it writes, and the worker of the cluster that has them.
    pub outputs: Vec<OutputView>,
    /// Its service levels, and whether they are kept now.
    #[serde(default)]
    pub levels: Vec<LevelView>,
    /// What is promised of the rows of its sinks.
    #[serde(default)]
    pub promises: Vec<PromiseView>,
    /// Edges between workers that are cut, or deliver what was kept meanwhile: those of which the workflow says what happens then.
    #[serde(default)]
    pub cuts: Vec<CutView>,
    /// Stages that answer in place of others while the way there is cut, and how many records they have answered so far.
    #[serde(default)]
    pub stand_ins: Vec<StandInView>,
    /// Why another plan is proposed; none: none is.
    #[serde(default)]
    pub proposal: Option<String>,
}

/// What is promised of the rows of a sink, also after restarts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PromiseView {
    /// The sink.
    pub sink: String,
    /// How often a row comes: `exactly once`, `at least once`, `at most once`.
    pub guarantee: String,
    /// Why not exactly once, in words.
    pub because: Vec<String>,
}

/// Another plan is wanted for a run.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeRequest {
    /// The plan.
    pub plan: Plan,
    /// Why, in words.
    pub reason: String,
}

/// The plan of a run.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct PlanView {
    /// As it is run now.
    pub plan: Plan,
    /// Counts the plans of the run; the first is 1.
    pub version: u64,
    /// The version that is being made ready beside it.
    #[serde(default)]
    pub next: Option<u64>,
    /// Changes so far, the oldest first.
    #[serde(default)]
    pub changes: Vec<PlanChange>,
    /// By sink that writes files, and source that reads a stream: the worker of the plan that has them; another plan leaves it there.
    #[serde(default)]
    pub bound: BTreeMap<String, String>,
}

/// A change of the plan of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlanChange {
    /// The version that was wanted.
    pub version: u64,
    /// Why.
    pub reason: String,
    /// When it was asked for.
    pub time: String,
    /// What came of it; none: it is not known yet.
    #[serde(default)]
    pub outcome: Option<ChangeOutcome>,
}

/// What came of a change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum ChangeOutcome {
    /// The run goes on under the new plan.
    Changed {
        /// From the last record that came to a sink under the old plan to the first under the new one, milliseconds; of the sink where it
        /// was longest, of those that had got one in the 2 s before. None: none of them got records under both.
        pause_ms: Option<f64>,
        /// The same by sink. One whose records come in bursts, such as those of windows, has the gap between two of them in it.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        sinks_ms: BTreeMap<String, f64>,
        /// By how much the schedule of the sources is later than it was, milliseconds; none: the controller was started again meanwhile.
        gap_ms: Option<f64>,
        /// From the request until the new processes stood ready, milliseconds: the old plan ran on. None: as above.
        prepared_ms: Option<f64>,
    },
    /// The run goes on under the old plan.
    Failed {
        /// Why.
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
    /// The path on it.
    pub path: String,
}

/// A worker.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct WorkerView {
    /// Its name.
    pub name: String,
    /// Whether it was heard in time.
    pub is_alive: bool,
    /// Milliseconds since it was heard; none: not since the controller began.
    pub silent_milliseconds: Option<u64>,
    /// Nothing new is started there, and what ran there was moved.
    pub is_drained: bool,
    /// Where it is.
    pub location: Option<String>,
    /// Its tier.
    pub tier: Option<String>,
    /// Its type.
    pub worker_type: Option<String>,
    /// Its price in $/h, where it told one.
    #[serde(default)]
    pub price: Option<f64>,
    /// What it has.
    pub capacity: Capacity,
    /// Inference backends that models can run on there; none: it has not told.
    #[serde(default)]
    pub backends: Option<Vec<String>>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its address, as the controller sees it.
    pub address: Option<String>,
    /// Processes of runs: run and worker of the plan. None of a worker that is lost: nobody knows of them.
    pub hosts: Vec<(String, String)>,
    /// Version of its program.
    pub version: String,
    /// How it is; none: it was not heard.
    #[serde(default)]
    pub health: Option<WorkerHealth>,
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    /// Counts them.
    pub number: u64,
    /// When.
    pub time: String,
    /// What, as one word: `worker_lost`, `run_running`.
    pub kind: String,
    /// The run.
    pub run: Option<String>,
    /// The worker of the cluster.
    pub worker: Option<String>,
    /// For people.
    pub text: String,
}

/// A join token is wanted.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenRequest {
    /// How many workers can come in by it; default: 1.
    #[serde(default)]
    pub uses: Option<u32>,
    /// Seconds that it can be used; default: an hour.
    #[serde(default)]
    pub seconds: Option<u64>,
    /// The only name.
    #[serde(default)]
    pub name: Option<String>,
    /// The worker takes the place of the one that has this name.
    #[serde(default)]
    pub replaces: bool,
}

/// A join token.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
pub struct TokenAnswer {
    /// Its text, which is told this once.
    pub token: String,
    /// Where the worker joins.
    pub address: String,
}

impl std::fmt::Debug for TokenAnswer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the token.
        f.debug_struct("TokenAnswer").field("address", &self.address).finish_non_exhaustive()
    }
}
