//! Hints as a service: what the services of hosts count, exchange and answer.
//!
//! Each service counts the traffic of its host and reports it to the leader of its rack, over a connection of their own. The leader
//! sends what its rack does to the conductor. The conductor has the table of all links: it plans the groups whose policy is `hints`
//! from it, shows it to the operator, and, where the operator wants that, tells a program the part between its own machines.
//!
//! Programs ask by [`Group::hints`](crate::client::Group::hints).
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tidemill_hints::collect::{Counter, SocketError, Source};
use tidemill_link::remote::Address;

pub use tidemill_hints::collect::Prefix;
pub use tidemill_hints::estimate::Load;
pub use tidemill_hints::leader::{LEAST, PERIOD};

/// The name of the policy that plans from hints.
pub const POLICY: &str = "hints";

/// How a service counts and reports.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// Time between two reports; not below [`LEAST`].
    pub period: Duration,
    /// The rates of the host's link, up and down, in bytes per second; none: that of its interface.
    pub rate: Option<[f64; 2]>,
    /// The rates between its rack and others; none: learned.
    pub rack_rate: Option<[f64; 2]>,
    /// Addresses within the rack, beside those of its services.
    pub rack_addresses: Vec<Prefix>,
    /// Who gets hints, where this service is the conductor.
    pub export: Export,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            period: PERIOD,
            rate: None,
            rack_rate: None,
            rack_addresses: Vec::new(),
            export: Export::default(),
        }
    }
}

/// Who gets hints.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Export {
    /// Only the operator, and the policies of the conductor.
    #[default]
    Operator,
    /// Also each program, about the links between the machines of its group.
    Tenant,
}

/// Counters that a function returns, in place of those of the kernel.
#[derive(Clone)]
pub struct Given(Arc<dyn Fn() -> Result<Vec<Counter>, SocketError> + Send + Sync>);

impl Given {
    /// Takes a function that returns the counters of the flows of this moment.
    pub fn new(counters: impl Fn() -> Result<Vec<Counter>, SocketError> + Send + Sync + 'static) -> Self {
        Self(Arc::new(counters))
    }
}

impl Source for Given {
    type Error = SocketError;

    fn counters(&mut self) -> Result<Vec<Counter>, SocketError> {
        (self.0)()
    }
}

/// The origin of the total of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// The operator said so.
    Stated,
    /// The interface of the host says so.
    Interface,
    /// The link has carried that much for a second.
    Learned,
    /// Nothing is known; it is assumed.
    Assumed,
}

impl fmt::Display for Origin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Stated => "stated",
            Self::Interface => "interface",
            Self::Learned => "learned",
            Self::Assumed => "assumed",
        })
    }
}

/// The counters that a service reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Counted {
    /// All TCP sockets of its network namespace, and the bytes of its interface where that is known.
    Sockets {
        /// The interface.
        interface: Option<String>,
    },
    /// The connections between ranks alone.
    Wires {
        /// Why the sockets are not read.
        reason: String,
    },
}

impl fmt::Display for Counted {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sockets { interface: Some(name) } => write!(formatter, "TCP sockets, interface {name}"),
            Self::Sockets { interface: None } => formatter.write_str("TCP sockets"),
            Self::Wires { reason } => write!(formatter, "connections between ranks only: {reason}"),
        }
    }
}

/// Facts about a host, for the conductor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// The rates of its link, up and down, in bytes per second; none: not known.
    pub rate: Option<[f64; 2]>,
    /// Whether its interface says so, and not the operator.
    #[serde(default)]
    pub by_interface: bool,
    /// The rates between its rack and others, as the operator said.
    #[serde(default)]
    pub rack_rate: Option<[f64; 2]>,
    /// The counters that it reads.
    pub counted: Counted,
}

/// The part of a host in the exchange of hints.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// The number of its rack.
    pub rack: u64,
    /// The host that leads the rack; none: no host of it can be reached by others.
    pub leader: Option<String>,
    /// Where the leader is reached.
    pub address: Option<Address>,
    /// The number of each host of the rack.
    pub machines: BTreeMap<String, u64>,
    /// Where the hosts of the rack are reached: traffic with them stays within it.
    pub near: Vec<Address>,
}

/// A direction of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// Out of the host or rack.
    Up,
    /// Into it.
    Down,
}

/// Everything that an operator may see of hints.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct View {
    /// Racks.
    pub racks: Vec<RackView>,
    /// Hosts.
    pub hosts: Vec<HostView>,
    /// Links whose state is known.
    pub links: Vec<LinkView>,
    /// Mean time between changes of these links, in milliseconds; none: not known yet.
    pub between_changes_ms: Option<u64>,
    /// Groups with ranks on several hosts, and what their plans are made from.
    pub groups: Vec<GroupView>,
}

/// A rack.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RackView {
    /// Its name.
    pub name: String,
    /// The host that leads it.
    pub leader: Option<String>,
    /// Age of its oldest figure, in milliseconds; none: nothing was heard of it.
    pub age_ms: Option<u64>,
}

/// A host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostView {
    /// Its name.
    pub name: String,
    /// Its rack.
    pub rack: String,
    /// The counters that it reads; none: it has not said so yet.
    pub counted: Option<Counted>,
    /// Whether its figures are there.
    pub reports: bool,
}

/// A link in one direction. Rates are in bytes per second.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LinkView {
    /// The rack.
    pub rack: String,
    /// The host; none: it is the link between the rack and others.
    pub host: Option<String>,
    /// The direction.
    pub way: Way,
    /// Its state.
    #[serde(flatten)]
    pub load: Load,
    /// The origin of the total.
    pub total_from: Origin,
    /// The rate that the flows get together that were asked for.
    pub estimate: f64,
}

/// The hints of a group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GroupView {
    /// Its name.
    pub name: String,
    /// The number of the user.
    pub user: u32,
    /// Its policy.
    pub policy: String,
    /// The knowledge that a plan is made from now, and why.
    pub decision: String,
    /// Why it has the strategy that it has; empty: its policy does not use hints.
    #[serde(default)]
    pub note: String,
    /// Changes of its strategy because of hints.
    #[serde(default)]
    pub replans: u64,
    /// Mean time between changes of its links, in milliseconds; none: not known yet.
    pub between_changes_ms: Option<u64>,
    /// Its machines, in the order of its ranks.
    pub hosts: Vec<String>,
}

/// The hints of a program: the links between the machines of its group, by number.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OwnHints {
    /// The rack of each machine.
    pub racks: Vec<usize>,
    /// The machine of each rank.
    pub machines: BTreeMap<u32, usize>,
    /// The state of each link, in bytes per second: machines first, then racks, up before down.
    pub links: Vec<Load>,
    /// Age of the oldest figure, in microseconds.
    pub age_us: u64,
    /// Mean time between changes of these links, in milliseconds; none: not known yet.
    pub between_changes_ms: Option<u64>,
}

impl OwnHints {
    /// Returns the hints as planners take them.
    pub fn hints(&self) -> Option<tidemill_hints::message::Hints> {
        let tree = tidemill_hints::tree::Tree::of(&self.racks);
        let age = Duration::from_micros(self.age_us);
        (tree.links() == self.links.len()).then(|| tidemill_hints::message::Hints {
            tree,
            loads: self.links.clone(),
            age,
        })
    }
}

/// Returns whole milliseconds.
pub(crate) fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
