//! Messages between the service of a host, programs whose edges it serves, and people who ask it. JSON, one value a message.
use crate::edge_name::{EdgeName, EdgePattern};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeSet;
use tidemill_link::remote::{Address, Role};
use tidemill_spec::types::StreamType;

/// Version of these messages. A service and a program with different ones refuse each other.
pub const VERSION: u32 = 1;

/// The host on which a policy of an edge between two hosts is executed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// The host of the sender.
    #[default]
    Sender,
    /// The host of the receiver.
    Receiver,
}

impl Side {
    /// The role of the end on that host.
    pub fn role(self) -> Role {
        match self {
            Self::Sender => Role::Sender,
            Self::Receiver => Role::Receiver,
        }
    }
}

/// A policy as it is declared.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PolicySpec {
    /// Its name on this host.
    pub id: String,
    /// The edges that it is for.
    #[serde(flatten)]
    pub edges: EdgePattern,
    /// Where it is executed.
    #[serde(default)]
    pub side: Side,
    /// Its kind.
    pub kind: String,
    /// The options of that kind.
    #[serde(default)]
    pub options: Value,
}

/// A channel of a program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProgramChannel {
    /// Its number in the run.
    pub channel: u64,
    /// The edge that it belongs to.
    pub edge: EdgeName,
    /// The stages at its ends: `detect.0->track.1`.
    pub name: String,
    /// The ends that are in the program.
    pub roles: Vec<Role>,
    /// The columns of its records.
    pub columns: StreamType,
}

/// A program that takes part in a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// [`VERSION`].
    pub version: u32,
    /// Its name for people: the worker of the plan.
    pub worker: String,
    /// The workflow.
    pub workflow: String,
    /// Its process.
    pub process: u32,
    /// Its channels between threads, processes and hosts.
    pub channels: Vec<ProgramChannel>,
    /// Edges within a thread, which have no channel.
    pub inner: Vec<EdgeName>,
    /// Policies that its plan has.
    pub policies: Vec<PolicySpec>,
}

/// The other end of a channel, where the service is to reach it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// The channel.
    pub channel: u64,
    /// The end of the program.
    pub role: Role,
    /// Where the service dials the other end; none: the other end dials the service.
    pub dial: Option<Address>,
    /// The identity in the certificate of the other end, where it has one.
    pub identity: Option<String>,
}

/// Figures of an edge that a program counts, since it began.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EdgeCounts {
    /// The edge.
    pub edge: EdgeName,
    /// Records that were sent.
    pub records: u64,
    /// Bytes that were sent.
    pub bytes: u64,
    /// Records that wait at the sender.
    pub waiting: u64,
}

/// A message to the service.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// The program of this connection. Answered by [`Answer::Routes`], again with each change.
    Register(Box<Program>),
    /// Other ends of channels, before the program opens its own ends.
    Peers(Vec<Peer>),
    /// Figures of its edges. Answered by [`Answer::Rejected`].
    Counts(Vec<EdgeCounts>),
    /// Request for everything there is, for people.
    List,
    /// Attach a policy.
    Attach(Box<PolicySpec>),
    /// Give a policy other options. It keeps its state.
    Set {
        /// The policy.
        id: String,
        /// Its options.
        options: Value,
    },
    /// Take a policy away.
    Detach {
        /// The policy.
        id: String,
    },
    /// Replace the program that serves by another version; for the user of the service or root.
    Upgrade {
        /// The path of that program.
        program: std::path::PathBuf,
    },
}

/// A message of the service.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The channels that go through the service; the others go to their peers.
    Routes(Routes),
    /// Rows of the program's edges that policies took out, since it registered. Each row is in the answers to one program only.
    Rejected(Vec<(EdgeName, u64)>),
    /// Everything there is, as far as the user may see it.
    Listing(Box<Listing>),
    /// It is done.
    Done,
    /// It is not done, and why.
    Refused(String),
}

/// The channels of a program that go through the service.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Routes {
    /// Their numbers.
    pub through: BTreeSet<u64>,
    /// Where other hosts reach the service.
    pub public: Option<Address>,
}

/// Everything that a service has.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Listing {
    /// Version of the program that serves.
    pub version: String,
    /// Its process.
    pub process: u32,
    /// Seconds since it began.
    pub seconds: f64,
    /// Programs of all users that are registered.
    #[serde(default)]
    pub programs: usize,
    /// Edges of all programs.
    pub edges: Vec<EdgeView>,
    /// Policies.
    pub policies: Vec<PolicyView>,
    /// Calls of all programs, since the service began.
    #[serde(default)]
    pub calls: CallCounts,
    /// Programs that serve, and programs that call.
    #[serde(default)]
    pub services: Vec<ServiceView>,
}

/// Figures of calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CallCounts {
    /// Calls that were made, by programs here and by other hosts.
    pub calls: u64,
    /// Calls that ended with another status than `ok`.
    pub failed: u64,
    /// Steps of marshalling: messages that were taken from a program or given to one. A call with its reply takes four, at both hosts
    /// together.
    pub marshalled: u64,
    /// Bytes of messages that were copied so that a policy could judge them, or to bring them into another schema.
    pub copied: u64,
}

/// A program that serves a service, or calls one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ServiceView {
    /// The service.
    pub service: String,
    /// The program, as it calls itself.
    pub program: String,
    /// Its user.
    pub user: u32,
    /// Whether it serves; else it calls.
    pub serves: bool,
    /// Calls that it was given, or made.
    pub calls: u64,
    /// Calls that wait for their end.
    pub waiting: u64,
    /// The hosts that it calls; empty: this one.
    pub at: Vec<String>,
    /// The methods of a program that calls.
    pub methods: Vec<MethodView>,
}

/// A method that a program calls.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MethodView {
    /// Service and method.
    pub method: String,
    /// Calls, since it was bound.
    pub calls: u64,
    /// Calls that ended with another status than `ok`.
    pub failed: u64,
    /// Policies that look at its calls.
    pub policies: Vec<String>,
}

/// How an edge is carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Route {
    /// Within one thread: it has no channel.
    Inner,
    /// Its ends are connected with each other.
    Direct,
    /// Through the service.
    Service,
    /// It goes through the service, and not all of its channels are connected now.
    Waits,
}

/// An edge of a program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EdgeView {
    /// The edge.
    pub edge: EdgeName,
    /// The worker whose process has it, and the number of that process.
    pub worker: String,
    /// See [`Program::process`].
    pub process: u32,
    /// The user of the process.
    pub user: u32,
    /// How it is carried.
    pub route: Route,
    /// Records that its sender has sent, as the program counts them.
    pub records: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Records that wait at the sender.
    pub waiting: u64,
    /// Policies, in the order in which they look at frames.
    pub policies: Vec<String>,
    /// Frames that wait because of a policy, now.
    pub held: u64,
    /// Rows that policies took out.
    pub rejected: u64,
}

/// A policy that is attached.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PolicyView {
    /// The policy.
    #[serde(flatten)]
    pub spec: PolicySpec,
    /// Who attached it: `plan` or `user NUMBER`.
    pub by: String,
    /// Edges that it looks at now.
    pub edges: u64,
    /// Its counts.
    #[serde(flatten)]
    pub counts: PolicyCounts,
    /// Why it could not judge a frame, the last time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// Counts of a policy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PolicyCounts {
    /// Frames that passed it.
    pub frames: u64,
    /// Bytes of these.
    pub frame_bytes: u64,
    /// Rows that it took out.
    pub rejected: u64,
    /// Frames that it held.
    pub held: u64,
    /// Time for which it held them, milliseconds.
    pub held_ms: u64,
    /// Connections that it cut.
    pub cuts: u64,
    /// Bytes that were copied so that the sender cannot change what it judged.
    pub copied: u64,
    /// Bytes that it saved.
    pub saved: u64,
}
