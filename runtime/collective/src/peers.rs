//! Messages between services: with the one that introduces ranks (the conductor), and between the hosts of a group.
use crate::barrier::Message as BarrierMessage;
use crate::hints::{Facts, Part};
use crate::operation::Numbered;
use crate::policies::ts::Span;
use crate::protocol::{Answer, Bench, Failure, Figures, Measured, Question};
use crate::strategy::Strategy;
use crate::topology::{Host, Priority};
use serde::{Deserialize, Serialize};
use tidemill_hints::message::Aggregate;
use tidemill_link::remote::Address;

/// A group: the number of its user, and its name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Key {
    /// The number of the user.
    pub user: u32,
    /// The name.
    pub name: String,
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.user, self.name)
    }
}

/// A message of a service to the conductor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToConductor {
    /// The first one.
    Register {
        /// The host.
        host: Host,
        /// Where other hosts reach it.
        address: Option<Address>,
        /// Groups that run there, after a new start of the conductor.
        running: Vec<Running>,
    },
    /// A rank wants to join.
    Join {
        /// The group.
        key: Key,
        /// The rank.
        rank: u32,
        /// Ranks of the group.
        size: u32,
        /// Its priority.
        priority: Priority,
    },
    /// A rank is gone.
    Leave {
        /// The group.
        key: Key,
        /// The rank.
        rank: u32,
    },
    /// A group is broken.
    Broken {
        /// The group.
        key: Key,
        /// The formation that is broken.
        token: Token,
        /// Why.
        failure: Failure,
        /// The last operation that the host has carried out.
        last: u64,
    },
    /// A rank wants to continue with those that are left.
    Shrink {
        /// The group.
        key: Key,
        /// The rank.
        rank: u32,
        /// Whether it waits for the ranks that were lost, too.
        #[serde(default)]
        whole: bool,
    },
    /// Figures of a group on this host.
    Figures {
        /// The group.
        key: Key,
        /// The figures.
        figures: Figures,
        /// When its last operations ran there.
        trace: Vec<Span>,
    },
    /// A person asks.
    Ask {
        /// The number of the question.
        id: u64,
        /// The user; none: one that sees all.
        user: Option<u32>,
        /// The question.
        question: Question,
    },
    /// The service counts the traffic of its host, after it has registered and when it counts otherwise.
    Hints(Facts),
    /// The leader of a rack says what its links carry.
    Loads(Aggregate),
    /// Rank 0 of a benchmark has measured.
    Measured {
        /// The name of its group.
        group: String,
        /// The figures, or why there are none.
        outcome: Result<Measured, String>,
    },
}

/// A group that runs on a host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Running {
    /// The group.
    pub key: Key,
    /// Ranks of the group when it was made.
    pub size: u32,
    /// Its priority.
    pub priority: Priority,
    /// Ranks of this host.
    pub ranks: Vec<u32>,
    /// How it was made.
    pub formed: Option<Formed>,
}

/// A message of the conductor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromConductor {
    /// The registration is refused.
    Turned {
        /// Why.
        reason: String,
    },
    /// A rank cannot join.
    Refused {
        /// The group.
        key: Key,
        /// The rank.
        rank: u32,
        /// Why.
        reason: String,
    },
    /// Ranks that are missing in a group that forms.
    Missing {
        /// The group.
        key: Key,
        /// Those ranks.
        ranks: Vec<u32>,
    },
    /// All ranks are there.
    Formed(Box<Formed>),
    /// Another strategy.
    Order {
        /// The group.
        key: Key,
        /// The strategy.
        strategy: Strategy,
    },
    /// A group is broken.
    Broken {
        /// The group.
        key: Key,
        /// The formation that is broken.
        token: Token,
        /// Why.
        failure: Failure,
        /// The last operation that the host has carried out that says so.
        last: u64,
    },
    /// The answer to a question.
    Answer {
        /// The number of the question.
        id: u64,
        /// The answer.
        answer: Answer,
    },
    /// The part of the host in the exchange of hints.
    Hints(Box<Part>),
    /// Ranks of a benchmark that the service has.
    Bench {
        /// The name of its group.
        group: String,
        /// Those ranks.
        ranks: Vec<u32>,
        /// The benchmark.
        bench: Bench,
    },
}

/// The secret of a formation of a group, as hexadecimal digits: the hosts of the group greet each other with it.
pub type Token = String;

/// A group with all its ranks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Formed {
    /// The group.
    pub key: Key,
    /// The secret of this formation.
    pub token: Token,
    /// Its hosts. A host's number is its position.
    pub hosts: Vec<Place>,
    /// How it carries out operations.
    pub strategy: Strategy,
}

/// A host of a group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Place {
    /// Its facts.
    pub host: Host,
    /// Where other hosts reach it.
    pub address: Option<Address>,
    /// Ranks there.
    pub ranks: Vec<u32>,
}

/// A message between two hosts of a group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(clippy::large_enum_variant, reason = "few of them exist at a time")]
pub enum Between {
    /// A sign of life, each 250 ms.
    Hello {
        /// The number of operations that each rank of the host has called.
        arrived: Vec<(u32, u64)>,
        /// The operation that is carried out.
        current: Option<Numbered>,
    },
    /// The group is broken.
    Broken {
        /// Why.
        failure: Failure,
        /// The last operation that the host has carried out: the bytes of it are on their way.
        last: u64,
    },
    /// The change of a strategy.
    Barrier(BarrierMessage),
}
