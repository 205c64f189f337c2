//! Packets between a program and the service of its host, over a Unix socket.
use crate::cost::Predicted;
use crate::element::Element;
use crate::hints;
use crate::operation::Operation;
use crate::strategy::Strategy;
use crate::topology::{Host, Priority};
use crate::type_name::TypeName;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Version of the packets. A service refuses programs of another one.
pub const VERSION: u32 = 1;
/// Bytes of a buffer, at most.
pub const MOST_BYTES: u64 = 1 << 32;
/// Ranks of a group, at most.
pub const MOST_RANKS: u32 = 1024;
/// The user of groups whose ranks are in the service, for benchmarks.
pub const NO_USER: u32 = u32::MAX;
/// Characters of the name of a group, at most.
pub const MOST_NAME: usize = 128;
/// Groups of a user, at most.
pub const MOST_GROUPS: usize = 256;
/// Bytes of the words of a failure that comes from elsewhere.
const MOST_WORDS: usize = 1024;

/// Returns whether a group may have this name: letters, digits, `-`, `_` and `.`.
pub(crate) fn is_name(name: &str) -> bool {
    let is_letter = |letter: char| letter.is_alphanumeric() || "-_.".contains(letter);
    !name.is_empty() && name.len() <= MOST_NAME && name.chars().all(is_letter)
}

/// The socket of groups of a service, beside its own.
pub fn socket_of(service: &Path) -> PathBuf {
    service.with_extension("groups")
}

/// A packet of a program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToService {
    /// The first one of a rank.
    Join {
        /// [`VERSION`].
        version: u32,
        /// The name of the group, among those of the same user.
        group: String,
        /// The rank of the program.
        rank: u32,
        /// Ranks of the group.
        size: u32,
        /// Time until all ranks must have joined, in milliseconds.
        deadline_ms: u64,
        /// Which groups have paths first.
        #[serde(default)]
        priority: Priority,
    },
    /// The only one of a person.
    Ask {
        /// [`VERSION`].
        version: u32,
        /// The question.
        question: Question,
    },
    /// Wants memory. [`ToProgram::Buffer`] answers it.
    Buffer {
        /// The number of the buffer, which the program chooses.
        id: u64,
        /// Its size.
        bytes: u64,
    },
    /// Gives memory back.
    Free {
        /// The number of the buffer.
        id: u64,
    },
    /// Calls the next operation. Descriptors: `after`, then `ended`, where they are true.
    Call(Call),
    /// Wants to continue with the ranks that are left. [`ToProgram::Joined`] answers it.
    Shrink {
        /// Time until all that are left must have wanted it, in milliseconds.
        deadline_ms: u64,
        /// Whether to wait for the ranks that were lost, too.
        #[serde(default)]
        whole: bool,
    },
}

/// A call of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// Counts the calls of this program from 1.
    pub number: u64,
    /// The operation.
    pub operation: Operation,
    /// The type of the elements.
    pub element: Element,
    /// The type that they have in the program, where it is none of [`Element`].
    #[serde(default, skip_serializing_if = "TypeName::is_empty")]
    pub type_name: TypeName,
    /// Elements of the buffer of each rank.
    pub length: u64,
    /// The number of the buffer.
    pub buffer: u64,
    /// Where the elements begin in it, in bytes.
    pub offset: u64,
    /// Time until it must have ended, in milliseconds.
    pub deadline_ms: u64,
    /// Whether a descriptor comes along that becomes readable when the operation may begin.
    #[serde(default)]
    pub after: bool,
    /// Whether a descriptor comes along that the service closes when the operation has ended.
    #[serde(default)]
    pub ended: bool,
}

/// A packet of the service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToProgram {
    /// All ranks are there.
    Joined {
        /// Those that take part, ascending.
        members: Vec<u32>,
        /// The number of the strategy.
        epoch: u64,
    },
    /// The service does not do it.
    Refused {
        /// Why.
        reason: String,
    },
    /// Memory, with its descriptor.
    Buffer {
        /// The number of the buffer.
        id: u64,
    },
    /// No memory.
    NoBuffer {
        /// The number of the buffer.
        id: u64,
        /// Why.
        reason: String,
    },
    /// An operation has ended.
    Ended {
        /// The number of the call.
        number: u64,
        /// Why it failed; none: it did not.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failure: Option<Failure>,
    },
    /// The service ends now, and why. The program may join again.
    Bye {
        /// Why.
        reason: String,
    },
    /// A part of the answer to a question, as JSON of [`Answer`].
    Part {
        /// Its text.
        text: String,
        /// Whether more follows.
        more: bool,
    },
}

/// Why an operation failed, or a group is broken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{text}")]
pub struct Failure {
    /// The kind of the failure.
    pub kind: FailureKind,
    /// The rank that caused it, where it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// The host of the cause; empty: unknown.
    #[serde(default)]
    pub host: String,
    /// In words.
    pub text: String,
}

impl Failure {
    /// Returns the same with words that fit into a packet, whoever wrote them.
    pub(crate) fn shortened(&self) -> Self {
        let short = |text: &str| text[..text.floor_char_boundary(MOST_WORDS)].to_owned();
        Self { host: short(&self.host), text: short(&self.text), ..self.clone() }
    }
}

/// Kinds of failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// A program, a service or a host is gone.
    Lost,
    /// An operation did not end in time.
    Deadline,
    /// Ranks call different operations.
    Differs,
    /// The call is wrong.
    Wrong,
}

/// A question of a person.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Question {
    /// All groups and hosts.
    List,
    /// Another strategy for a group.
    Strategy {
        /// The group.
        group: String,
        /// The name of a policy, or `ring:0,2,1,3`.
        strategy: String,
    },
    /// Ranks of the services carry out operations for a while, and measure them.
    Bench(Bench),
    /// The state of links.
    Hints {
        /// The group whose links are meant; none: all.
        #[serde(default)]
        group: Option<String>,
        /// The number of further flows that estimates are for.
        flows: u32,
    },
    /// The counters of the groups that have programs on this host.
    Counts,
    /// The state of the links between the machines of a program's own group.
    OwnHints {
        /// The group, with its user.
        group: String,
        /// The rank of the program.
        rank: u32,
    },
}

/// A benchmark of operations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Bench {
    /// The number of ranks.
    pub ranks: u32,
    /// Bytes of the buffer of each rank.
    pub bytes: u64,
    /// Time, in milliseconds.
    pub time_ms: u64,
    /// The strategy; none: as for other groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<String>,
}

/// The answer to a question.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// To [`Question::List`].
    Listing(Listing),
    /// It is done: the group with its new strategy.
    Done(Box<GroupView>),
    /// To [`Question::Bench`].
    Measured(Measured),
    /// To [`Question::Hints`].
    Hints(Box<hints::View>),
    /// To [`Question::Counts`].
    Counts(Vec<GroupCounts>),
    /// To [`Question::OwnHints`].
    OwnHints(hints::OwnHints),
    /// It is not done, and why.
    Refused(String),
}

/// Figures of a benchmark, as rank 0 measured them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The number of ranks.
    pub ranks: u32,
    /// Hosts that they were on.
    pub hosts: u32,
    /// Bytes of the buffer of each rank.
    pub bytes: u64,
    /// Operations that were measured.
    pub operations: u64,
    /// Median time of an operation, microseconds.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// Time to copy as many bytes from one place in memory to another one, microseconds.
    pub copy_us: f64,
}

/// Everything that a person may see.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Listing {
    /// Hosts with a service.
    pub hosts: Vec<HostView>,
    /// Groups.
    pub groups: Vec<GroupView>,
}

/// A host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostView {
    /// Its facts.
    #[serde(flatten)]
    pub host: Host,
    /// Where other hosts reach it; none: nowhere.
    #[serde(default)]
    pub address: Option<String>,
}

/// A group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GroupView {
    /// Its name.
    pub name: String,
    /// The number of the user.
    pub user: u32,
    /// Its state.
    pub state: GroupState,
    /// Why it is broken, or what it waits for; empty: nothing.
    #[serde(default)]
    pub why: String,
    /// Ranks of the group when it was made.
    pub size: u32,
    /// Ranks that are there, and the host of each.
    pub ranks: Vec<(u32, String)>,
    /// Its priority.
    #[serde(default)]
    pub priority: Priority,
    /// How it carries out operations; none: not all ranks have been there.
    #[serde(default)]
    pub strategy: Option<Strategy>,
    /// Name of the policy that made the strategy.
    #[serde(default)]
    pub policy: String,
    /// Why it was chosen, and what limits it; empty where the service that chose it has started anew, and for tenants.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
    /// How long operations should take with it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub predicted: Vec<Predicted>,
    /// Figures since it was formed.
    #[serde(default)]
    pub figures: Figures,
    /// The same of the last minute.
    #[serde(default)]
    pub minute: Minute,
}

/// The state of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GroupState {
    /// Ranks are missing.
    Joining,
    /// Operations are carried out.
    Running,
    /// Another strategy is on its way.
    Switching,
    /// Ranks are lost.
    Broken,
}

/// Counters of a group on a host, since its first program came there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupCounts {
    /// Its name.
    pub name: String,
    /// The number of its user.
    pub user: u32,
    /// Operations that ended, by their names.
    pub ended: BTreeMap<String, Ended>,
    /// Changes of the strategy while the group ran.
    pub changes: u64,
    /// Time from the end of an old strategy to the beginning of the new one, in which no operation runs, microseconds.
    pub stalled_us: u64,
    /// Time in which bytes for other hosts waited for groups that go first, microseconds.
    pub held_us: u64,
    /// Ranks that were lost, wherever they were.
    pub lost_ranks: u64,
}

/// Operations of one kind that have ended on a host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// Their number.
    pub operations: u64,
    /// Bytes of their buffers.
    pub bytes: u64,
    /// Time in which they were carried out, microseconds.
    pub busy_us: u64,
}

/// Figures of a group in the last minute, or since it was formed if that is less ago.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Minute {
    /// The time that they are of, microseconds; 0: nothing is known yet.
    pub over_us: u64,
    /// Operations that have ended.
    pub operations: u64,
    /// Bytes of their buffers.
    pub bytes: u64,
    /// Time in which one was carried out, microseconds.
    pub busy_us: u64,
    /// Time in which bytes for other hosts waited for groups that go first, microseconds.
    pub held_us: u64,
}

/// Figures of a group on one host or on all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// Operations that have ended.
    pub operations: u64,
    /// Bytes of their buffers.
    pub bytes: u64,
    /// Time in which one was carried out, microseconds.
    pub busy_us: u64,
    /// The number of the strategy that is in use.
    pub epoch: u64,
    /// Messages to other hosts about changes of the strategy. None while no change is ordered.
    #[serde(default)]
    pub control_messages: u64,
    /// Time in which bytes for other hosts waited for groups that go first, microseconds.
    #[serde(default)]
    pub held_us: u64,
    /// Changes of the strategy.
    #[serde(default)]
    pub changes: u64,
}
