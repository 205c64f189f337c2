//! How the parts of a cluster are: what `tidemill doctor --cluster` looks at.
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A controller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ControllerView {
    /// Version of its program.
    pub version: String,
    /// Its clock: milliseconds since the beginning of 1970.
    pub time_milliseconds: u64,
    /// Where it is.
    pub address: String,
    /// The port on which it hears the processes of runs.
    pub hosts_port: u16,
    /// When its certificate ends: seconds since the beginning of 1970.
    pub certificate_ends: u64,
    /// Bytes that are free on the disk of its folder.
    pub disk_free_bytes: u64,
    /// Bytes of files of workflows that it keeps.
    pub files_bytes: u64,
    /// Bytes of such files that it sent since it began.
    pub files_sent_bytes: u64,
    /// Seconds that the files of an ended run are kept; none: until they are removed.
    pub keep_ended_seconds: Option<u64>,
    /// Bytes of files that ended runs may have together; none: any number.
    pub keep_bytes: Option<u64>,
    /// What several controllers share; none: it is the only one, and has all in its folder.
    #[serde(default)]
    pub shared: Option<SharedView>,
}

/// A controller that leads others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SharedView {
    /// Where they keep what they must not forget.
    pub store: String,
    /// Counts the controllers that led.
    pub term: i64,
    /// Those that stand by.
    pub stand_by: Vec<StandByView>,
}

/// A controller that stands by.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StandByView {
    /// `HOST:PORT` by which it is reached.
    pub place: String,
    /// How long ago it was seen, milliseconds.
    pub silent_milliseconds: u64,
}

/// What a worker tells of itself that is no capacity.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Health {
    /// Its clock: milliseconds since the beginning of 1970.
    pub time_milliseconds: u64,
    /// Bytes that are free on the disk of its folder.
    pub disk_free_bytes: u64,
    /// Why it cannot limit processes by control groups; none: it can.
    #[serde(default)]
    pub no_control_groups: Option<String>,
    /// Files that a process of it may have open; none: any number.
    #[serde(default)]
    pub open_files: Option<u64>,
    /// Where other workers fetch files from it; none: nowhere.
    #[serde(default)]
    pub files_at: Option<String>,
    /// Services that run beside its agent.
    #[serde(default)]
    pub services: Vec<ServiceHealth>,
}

/// A service that runs beside the agent of a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ServiceHealth {
    /// Its name.
    pub name: String,
    /// Why it does not work; none: it does.
    pub problem: Option<String>,
    /// How often it was restarted after a failure.
    pub restarts: u64,
}

/// How a worker is, as the controller sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WorkerHealth {
    /// What it tells.
    pub told: Health,
    /// Its clock less that of the controller, milliseconds, wrong by the time that a heartbeat is under way.
    pub clock_offset_milliseconds: i64,
    /// When its certificate ends: seconds since the beginning of 1970.
    pub certificate_ends: u64,
}

/// A worker is to try whether it reaches others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Probe {
    /// Names the request.
    pub number: u64,
    /// Names of workers and where they hear others.
    pub targets: Vec<(String, String)>,
}

/// What a worker found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Probed {
    /// The request.
    pub number: u64,
    /// By worker: see [`LinkView`].
    pub found: Vec<(String, Option<u64>, Option<String>)>,
}

/// Whether one worker reaches another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LinkView {
    /// Who dials.
    pub from: String,
    /// Who is dialled.
    pub to: String,
    /// Microseconds of a connection with both certificates shown.
    pub microseconds: Option<u64>,
    /// Why there is none.
    pub error: Option<String>,
}

/// What became of a request to probe.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProbeView {
    /// The request.
    pub number: u64,
    /// What was found so far.
    pub links: Vec<LinkView>,
    /// Workers that have not answered yet.
    pub waiting: Vec<String>,
    /// Workers that others cannot dial, by their own word.
    pub only_dial: Vec<String>,
}
