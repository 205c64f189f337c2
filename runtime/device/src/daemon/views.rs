//! What a device says of itself.
use serde::{Deserialize, Serialize};

/// A device that serves.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Listing {
    /// Its name.
    pub device: String,
    /// Its kind, where it was given.
    pub kind: Option<String>,
    /// Its process.
    pub process: u32,
    /// Where clients reach it.
    pub addresses: Vec<String>,
    /// Since when it serves.
    pub seconds: f64,
    /// Runs that it computes at once.
    pub slots: u64,
    /// Bytes that all sessions may hold together; none: not limited.
    pub memory_limit: Option<u64>,
    /// It admits nobody any more.
    pub drains: bool,
    /// Sessions that wait for a turn now.
    pub queue: u64,
    /// Runs of all sessions, also of those that have ended.
    pub runs: u64,
    /// Those that failed.
    pub failed: u64,
    /// Batches that processes of several sessions computed, each of one run or more.
    #[serde(default)]
    pub batches: u64,
    /// Time that it computed.
    pub computed_seconds: f64,
    /// Time that runs waited for their turns.
    pub waited_seconds: f64,
    /// Tenants with their limits.
    pub tenants: Vec<TenantView>,
    /// Sessions.
    pub sessions: Vec<SessionView>,
}

/// A tenant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TenantView {
    /// Its name.
    pub tenant: String,
    /// Part of the time of the device while others want it.
    pub share: f64,
    /// Bytes that its sessions may hold together; none: not limited.
    pub memory_limit: Option<u64>,
    /// Bytes that they hold, each and together.
    pub memory: u64,
    /// Its sessions.
    pub sessions: u64,
    /// Models of its process whose runs are computed one by one, because they failed together.
    #[serde(default)]
    pub apart: u64,
}

/// A session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionView {
    /// Its number.
    pub session: u64,
    /// Its tenant; empty: it has not greeted.
    pub tenant: String,
    /// Name of the client, such as `workflow/operator`.
    pub client: String,
    /// Who it is, as far as the connection shows.
    pub peer: String,
    /// The process that serves it.
    pub process: u32,
    /// Its age.
    pub seconds: f64,
    /// What it does now.
    pub state: SessionState,
    /// Models that are loaded.
    pub models: u64,
    /// Bytes that it holds.
    pub memory: u64,
    /// Its runs.
    pub runs: u64,
    /// Those that failed.
    pub failed: u64,
    /// Time that the device computed for it.
    pub computed_seconds: f64,
    /// Time that its runs waited for their turns.
    pub waited_seconds: f64,
}

/// What a session does now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionState {
    /// Its client has not greeted.
    Greeting,
    /// It has no turn and wants none.
    Idle,
    /// It waits for a turn.
    Waiting,
    /// It has a turn.
    Running,
}

impl SessionState {
    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Greeting => "greeting",
            Self::Idle => "idle",
            Self::Waiting => "waiting",
            Self::Running => "running",
        }
    }
}
