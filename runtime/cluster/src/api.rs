//! What the controller is asked and answers, as JSON over HTTPS. People show an access token, workers their certificates.
//!
//! | request | who | what |
//! |---|---|---|
//! | `POST /v1/join` | with a join token | [`tidemill_identity::JoinRequest`] to [`tidemill_identity::Issued`] |
//! | `POST /v1/renew` | worker | [`RenewRequest`] to [`tidemill_identity::Issued`] |
//! | `POST /v1/heartbeat` | worker | [`Heartbeat`] to [`Duties`] |
//! | `GET /v1/blobs/DIGEST?offset=N` | worker, viewer | bytes, at most [`CHUNK`] |
//! | `PUT /v1/blobs/DIGEST` | operator | bytes |
//! | `POST /v1/blobs/missing` | operator | list of digests to those that are not there |
//! | `POST /v1/runs` | operator | [`Submission`] to [`RunView`] |
//! | `GET /v1/runs`, `GET /v1/runs/NAME` | viewer | [`RunView`] |
//! | `DELETE /v1/runs/NAME` | operator | cancels, [`RunView`] |
//! | `GET /v1/runs/NAME/logs?after=N` | viewer | [`LogLine`]s |
//! | `GET /v1/workers` | viewer | [`WorkerView`]s |
//! | `POST /v1/workers/NAME/drain`, `/v1/workers/NAME/resume` | operator | [`WorkerView`] |
//! | `DELETE /v1/workers/NAME` | admin | revokes its certificates |
//! | `GET /v1/events?after=N&wait=SECONDS` | viewer | [`Event`]s |
//! | `POST /v1/join-tokens` | admin | [`TokenRequest`] to [`TokenAnswer`] |
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tidemill_spec::plan::Plan;

/// Bytes of a blob in one answer.
pub const CHUNK: u64 = 3 << 20;
/// How often a worker tells that it lives, milliseconds.
pub const HEARTBEAT_MILLISECONDS: u64 = 500;
/// After so long a silence a worker counts as lost, milliseconds.
pub const DETECTION_MILLISECONDS: u64 = 2_000;

/// What is wrong with a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// For people: what was found and what to do.
    pub error: String,
}

/// A worker asks for a new certificate.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RenewRequest {
    /// The request for a certificate, as PEM.
    pub request_pem: String,
}

/// What a machine has.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
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
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Heartbeat {
    /// Version of its program.
    pub version: String,
    /// The operating system's name of the machine.
    pub machine: String,
    /// Type of machine, as in profiles and infrastructures.
    #[serde(default)]
    pub worker_type: Option<String>,
    /// What it has.
    pub capacity: Capacity,
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
}

/// A process of a run on a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostStatus {
    /// The run.
    pub run: String,
    /// The worker of the run's plan.
    pub role: String,
    /// Counts the processes of this role.
    pub generation: u64,
    /// How it ended, in words; none: it runs.
    pub ended: Option<String>,
}

/// A line of a log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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
    /// The line.
    pub line: String,
}

/// What a worker has to do.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Duties {
    /// Processes of runs that it must have; all others are ended.
    pub assignments: Vec<Assignment>,
    /// Serial numbers of certificates that count no more.
    #[serde(default)]
    pub revoked: Vec<String>,
}

/// A process of a run that a worker must have.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Assignment {
    /// The run.
    pub run: String,
    /// The worker of the run's plan whose stages it has.
    pub role: String,
    /// A process of an older generation is ended first.
    pub generation: u64,
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
}

/// Files of a workflow, by digest.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bundle {
    /// Path of the workflow's file among them.
    pub workflow: String,
    /// All files: paths with `/`, without `..`.
    pub files: Vec<BundleFile>,
}

/// A file of a bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BundleFile {
    /// Where it lies.
    pub path: String,
    /// SHA-256 of its bytes, hexadecimal.
    pub digest: String,
    /// Its size.
    pub bytes: u64,
}

/// A workflow to run.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Submission {
    /// What the run is to be called; it is the same submission if it is the same in everything.
    pub name: String,
    /// The files.
    pub bundle: Bundle,
    /// The plan; none: every stage runs on one worker.
    #[serde(default)]
    pub plan: Option<Plan>,
    /// Sources end after so many records.
    #[serde(default)]
    pub records: Option<u64>,
}

/// How far a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// It waits for workers or is being started.
    Starting,
    /// It runs.
    Running,
    /// It has come to its end.
    Complete,
    /// It has ended for a reason that would end it again.
    Failed,
    /// Somebody cancelled it.
    Cancelled,
}

impl RunState {
    /// Nothing more happens.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Complete | Self::Failed | Self::Cancelled)
    }
}

impl std::fmt::Display for RunState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Complete => "complete",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        })
    }
}

/// A run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RunView {
    /// Its name.
    pub name: String,
    /// The workflow's name.
    pub workflow: String,
    /// How far it is.
    pub state: RunState,
    /// Why it is so, where there is something to say.
    pub reason: Option<String>,
    /// When it was submitted.
    pub submitted: String,
    /// Where the workers of its plan are: by worker of the plan, the worker of the cluster.
    pub placement: BTreeMap<String, Option<String>>,
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
}

/// A file that a sink writes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputView {
    /// The sink.
    pub sink: String,
    /// The worker of the cluster.
    pub worker: Option<String>,
    /// The path on it.
    pub path: String,
}

/// A worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
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
    /// What it has.
    pub capacity: Capacity,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its address, as the controller sees it.
    pub address: Option<String>,
    /// Processes of runs: run and worker of the plan.
    pub hosts: Vec<(String, String)>,
    /// Version of its program.
    pub version: String,
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
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
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TokenAnswer {
    /// Its text, which is told this once.
    pub token: String,
    /// Where the worker joins.
    pub address: String,
}
