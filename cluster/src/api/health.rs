//! Health of the parts of a cluster, for `tidemill doctor --cluster`.
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A controller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ControllerView {
    /// Version of its program.
    pub version: String,
    /// Its clock: milliseconds since the beginning of 1970.
    pub time_milliseconds: u64,
    /// Its address.
    pub address: String,
    /// Port for the processes of runs.
    pub hosts_port: u16,
    /// End of its certificate: seconds since the start of 1970.
    pub certificate_ends: u64,
    /// Free bytes on the disk of its folder.
    pub disk_free_bytes: u64,
    /// Bytes of the files of workflows that it keeps.
    pub files_bytes: u64,
    /// Bytes of such files that it has sent since its start.
    pub files_sent_bytes: u64,
    /// Seconds for which it keeps the files of an ended run; none: until a user removes them.
    pub keep_ended_seconds: Option<u64>,
    /// Limit on the bytes of files of all ended runs; none: no limit.
    pub keep_bytes: Option<u64>,
    /// Store that several controllers share; none: it is the only controller.
    #[serde(default)]
    pub shared: Option<SharedView>,
}

/// The store of several controllers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SharedView {
    /// Address of the store.
    pub store: String,
    /// Number of the leader, which grows with each change of the leader.
    pub term: i64,
    /// Standby controllers.
    pub stand_by: Vec<StandByView>,
}

/// A standby controller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StandByView {
    /// Its address, `HOST:PORT`.
    pub place: String,
    /// Milliseconds since its last sign of life.
    pub silent_milliseconds: u64,
}

/// Health of a worker, as it reports it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Health {
    /// Its clock: milliseconds since the beginning of 1970.
    pub time_milliseconds: u64,
    /// Free bytes on the disk of its folder.
    pub disk_free_bytes: u64,
    /// Reason why it cannot limit processes by control groups; none: it can.
    #[serde(default)]
    pub no_control_groups: Option<String>,
    /// Limit on the open files of a process; none: no limit.
    #[serde(default)]
    pub open_files: Option<u64>,
    /// Address at which other workers fetch files; none: it does not serve files.
    #[serde(default)]
    pub files_at: Option<String>,
    /// Services beside its agent.
    #[serde(default)]
    pub services: Vec<ServiceHealth>,
}

/// A service that runs beside the agent of a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ServiceHealth {
    /// Its name.
    pub name: String,
    /// Reason why it does not work; none: it works.
    pub problem: Option<String>,
    /// Number of restarts after a failure.
    pub restarts: u64,
}

/// Health of a worker, as the controller sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WorkerHealth {
    /// Report of the worker.
    pub told: Health,
    /// Its clock less that of the controller, milliseconds, with an error of the transfer time of a heartbeat.
    pub clock_offset_milliseconds: i64,
    /// End of its certificate: seconds since the start of 1970.
    pub certificate_ends: u64,
}

/// Request to test connections to other workers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Probe {
    /// Number of the request.
    pub number: u64,
    /// Names and addresses of workers.
    pub targets: Vec<(String, String)>,
}

/// Results of a worker's tests.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Probed {
    /// The request.
    pub number: u64,
    /// Result by worker: see [`LinkView`].
    pub found: Vec<(String, Option<u64>, Option<String>)>,
}

/// A connection from one worker to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LinkView {
    /// Connecting worker.
    pub from: String,
    /// Other worker.
    pub to: String,
    /// Microseconds to connect, including both certificates.
    pub microseconds: Option<u64>,
    /// Reason why it failed.
    pub error: Option<String>,
}

/// State of a request to test connections.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProbeView {
    /// The request.
    pub number: u64,
    /// Results so far.
    pub links: Vec<LinkView>,
    /// Workers that have not answered yet.
    pub waiting: Vec<String>,
    /// Workers that report that others cannot connect to them.
    pub only_dial: Vec<String>,
}
