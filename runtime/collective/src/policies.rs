//! Policies of the provider: strategies of all groups from hosts, paths and what others send.
//!
//! - [`rank_order`]: one ring in the order of ranks, the baseline.
//! - [`locality`]: rings that enter and leave each rack once.
//! - [`ffa`]: the same rings, and a path for each flow so that all groups get alike.
//! - [`pfa`]: the same, with paths that only groups of high priority use.
//! - [`ts`]: the same, and others send while a group that goes first computes.
//! - [`hints`]: weighted trees or rings by the loads of links, as far as hints of them are fresh.
//! - [`ring`]: a ring that somebody wrote down. [`tree`]: trees that somebody wrote down.
//!
//! A [`Policy`] is one of them by its name. Tenants see neither hosts nor paths.
//!
//! ```
//! use tidemill_collective::cost::Network;
//! use tidemill_collective::policies::{Cluster, Policy};
//! use tidemill_collective::topology::{Group, Host};
//! let racks = [("a", "left"), ("b", "right"), ("c", "left")];
//! let hosts = racks.map(|(name, rack)| Host { name: name.into(), rack: rack.into(), ..Host::default() });
//! let ranks = vec![(0, "a".to_owned()), (1, "b".to_owned()), (2, "c".to_owned())];
//! let groups = [Group { name: "training".into(), ranks, ..Group::default() }];
//! let cluster = Cluster { network: Network { hosts: &hosts, ..Network::default() }, groups: &groups, ..Cluster::default() };
//! let policy: Policy = "locality".parse()?;
//! assert_eq!(policy.strategies(&cluster)?["training"].channels[0].ring, [0, 2, 1]);
//! # Ok::<(), tidemill_collective::policies::PolicyError>(())
//! ```
use crate::cost::{Network, piece, small};
use crate::strategy::{Channel, Invalid, Strategy};
use crate::topology::{Group, Loads};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

mod broadcast;
pub mod ffa;
pub mod hints;
pub mod locality;
pub mod pfa;
pub mod rank_order;
mod reducing;
pub mod ring;
pub mod tree;
pub mod ts;

/// The knowledge of a provider.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cluster<'a> {
    /// Hosts, paths, and the traffic of others.
    pub network: Network<'a>,
    /// All groups of all tenants.
    pub groups: &'a [Group],
    /// When the operations of groups ran, by the name of the group; those that are missing were not traced.
    pub traces: &'a [(String, Vec<ts::Span>)],
    /// The loads of links; none: there are no hints of them.
    pub loads: Option<&'a Loads>,
}

/// A strategy, and the reason for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chosen {
    /// The strategy. Its epoch is 0: the caller numbers it.
    pub strategy: Strategy,
    /// Why, in one line, for the provider.
    pub why: String,
}

/// A policy by its name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Policy {
    /// [`rank_order`].
    RankOrder,
    /// [`locality`].
    Locality {
        /// In the other direction.
        reversed: bool,
    },
    /// [`ffa`].
    #[default]
    Ffa,
    /// [`pfa`].
    Pfa {
        /// Paths for groups of high priority; none: the preferred one.
        reserved: Vec<String>,
    },
    /// [`ts`].
    Ts {
        /// As of [`Self::Pfa`].
        reserved: Vec<String>,
    },
    /// [`hints`].
    Hints,
    /// [`ring`].
    Ring(Vec<u32>),
    /// [`tree`].
    Tree(Vec<Vec<(u32, u32)>>),
}

/// How policies are written, and what each does.
pub const POLICIES: [(&str, &str); 9] = [
    ("rank-order", "one ring in the order of ranks, routed by the system"),
    ("locality", "a ring that enters and leaves each rack once"),
    ("locality:reversed", "the same ring in the other direction"),
    ("ffa", "rings as of locality, and paths such that all groups get alike"),
    ("pfa[:PATH,...]", "the same; these paths (the preferred one) are only for groups of high priority"),
    ("ts[:PATH,...]", "the same; groups of lower priority send while those before them compute"),
    ("hints", "weighted trees or rings by the loads of links; as ffa where nobody has hints of them"),
    ("ring:RANK,...", "this ring, routed by the system"),
    (
        "tree:RANK-RANK,...",
        "this tree for all-reduces and broadcasts, and a ring as of locality; `/` between several trees",
    ),
];

/// Why a policy makes no strategies.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// No such policy.
    #[error("`{0}` is no policy; write one of {names}", names = names())]
    Unknown(String),
    /// A ring that is no list of ranks.
    #[error("`{0}` is no rank; write a ring as `ring:0,2,1,3`")]
    Rank(String),
    /// A tree that is no list of edges.
    #[error(
        "`{0}` is no edge of a tree; write a tree as `tree:0-1,0-2` with its root first, two as `tree:0-1,0-2/1-0,1-2`"
    )]
    Edge(String),
    /// Trees that do not connect the members of a group.
    #[error("the trees do not fit group {group} with the ranks {members:?}: {reason}")]
    Trees {
        /// The group.
        group: String,
        /// The ranks of the group.
        members: Vec<u32>,
        /// Why.
        reason: Invalid,
    },
    /// A ring that does not have each member of a group once.
    #[error("the ring {ring:?} does not have each rank of group {group} once; its ranks are {members:?}")]
    Ring {
        /// The group.
        group: String,
        /// The ring.
        ring: Vec<u32>,
        /// The ranks of the group.
        members: Vec<u32>,
    },
    /// A rank on a host that nobody knows.
    #[error(
        "rank {rank} of group {group} is on host {host}, which is not registered; start a service there with that name"
    )]
    Host {
        /// The group.
        group: String,
        /// The rank.
        rank: u32,
        /// The host.
        host: String,
    },
    /// Two ranks with one number, or no rank.
    #[error("group {0} has no ranks, or one twice")]
    Members(String),
}

fn names() -> String {
    POLICIES.map(|(name, _)| format!("`{name}`")).join(", ")
}

impl FromStr for Policy {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        let (name, rest) = text.split_once(':').map_or((text, None), |(name, rest)| (name, Some(rest)));
        let list = || -> Vec<String> {
            rest.iter().flat_map(|rest| rest.split(',')).map(|one| one.trim().to_owned()).collect()
        };
        match (name, rest) {
            ("rank-order", None) => Ok(Self::RankOrder),
            ("locality", None) => Ok(Self::Locality { reversed: false }),
            ("locality", Some("reversed")) => Ok(Self::Locality { reversed: true }),
            ("ffa", None) => Ok(Self::Ffa),
            ("pfa", _) => Ok(Self::Pfa { reserved: list() }),
            ("ts", _) => Ok(Self::Ts { reserved: list() }),
            ("hints", None) => Ok(Self::Hints),
            ("tree", Some(rest)) => tree::parse(rest).map(Self::Tree),
            ("ring", Some(_)) => {
                let rank = |one: String| one.parse().map_err(|_| PolicyError::Rank(one));
                list().into_iter().map(rank).collect::<Result<_, _>>().map(Self::Ring)
            }
            _ => Err(PolicyError::Unknown(text.to_owned())),
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let with = |name: &str, list: &[String]| {
            if list.is_empty() { name.to_owned() } else { format!("{name}:{}", list.join(",")) }
        };
        let text = match self {
            Self::RankOrder => "rank-order".to_owned(),
            Self::Locality { reversed: false } => "locality".to_owned(),
            Self::Locality { reversed: true } => "locality:reversed".to_owned(),
            Self::Ffa => "ffa".to_owned(),
            Self::Pfa { reserved } => with("pfa", reserved),
            Self::Ts { reserved } => with("ts", reserved),
            Self::Hints => "hints".to_owned(),
            Self::Tree(trees) => format!("tree:{}", tree::written(trees)),
            Self::Ring(ring) => with("ring", &ring.iter().map(u32::to_string).collect::<Vec<_>>()),
        };
        formatter.write_str(&text)
    }
}

impl Policy {
    /// Makes a strategy for each group, by its name. Their epoch is 0: the caller numbers them.
    ///
    /// # Errors
    /// [`PolicyError`]: a group that is none, a host that nobody knows, or a ring that does not fit.
    pub fn strategies(&self, cluster: &Cluster<'_>) -> Result<BTreeMap<String, Strategy>, PolicyError> {
        let chosen = self.choose(cluster)?;
        Ok(chosen.into_iter().map(|(name, chosen)| (name, chosen.strategy)).collect())
    }

    /// Makes a strategy for each group, by its name, and says why.
    ///
    /// # Errors
    /// As of [`Self::strategies`].
    pub fn choose(&self, cluster: &Cluster<'_>) -> Result<BTreeMap<String, Chosen>, PolicyError> {
        check(cluster)?;
        let strategies = match self {
            Self::Hints => return Ok(hints::choose(cluster)),
            Self::Ts { reserved } => return Ok(ts::choose(cluster, reserved)),
            Self::RankOrder => rank_order::strategies(cluster),
            Self::Locality { reversed } => locality::strategies(cluster, *reversed),
            Self::Ffa => ffa::strategies(cluster),
            Self::Pfa { reserved } => pfa::strategies(cluster, reserved),
            Self::Ring(ring) => ring::strategies(cluster, ring)?,
            Self::Tree(trees) => tree::strategies(cluster, trees)?,
        };
        let chosen = |strategy| Chosen { strategy, why: self.does().to_owned() };
        Ok(strategies.into_iter().map(|(name, strategy)| (name, chosen(strategy))).collect())
    }

    /// Returns the words of [`POLICIES`] for it.
    fn does(&self) -> &'static str {
        let text = self.to_string();
        let name = |written: &str| written.split([':', '[']).next().map(str::to_owned);
        let exact = POLICIES.iter().find(|(written, _)| *written == text);
        let known = exact.or_else(|| POLICIES.iter().find(|(written, _)| name(written) == name(&text)));
        known.map_or("", |(_, does)| does)
    }
}

fn check(cluster: &Cluster<'_>) -> Result<(), PolicyError> {
    let known: BTreeSet<&str> = cluster.network.hosts.iter().map(|host| host.name.as_str()).collect();
    for group in cluster.groups {
        if let Some((rank, host)) = group.ranks.iter().find(|(_, host)| !known.contains(host.as_str())) {
            return Err(PolicyError::Host { group: group.name.clone(), rank: *rank, host: host.clone() });
        }
        let distinct: BTreeSet<u32> = group.ranks.iter().map(|(rank, _)| *rank).collect();
        if distinct.is_empty() || distinct.len() != group.ranks.len() {
            return Err(PolicyError::Members(group.name.clone()));
        }
    }
    Ok(())
}

/// Returns groups in the order in which they get paths: of high priority first, then by name.
fn in_turn(groups: &[Group]) -> Vec<&Group> {
    let mut groups: Vec<&Group> = groups.iter().collect();
    groups.sort_by(|one, other| (other.priority, &one.name).cmp(&(one.priority, &other.name)));
    groups
}

/// Returns the members of a group, ascending.
fn members(group: &Group) -> Vec<u32> {
    let mut members: Vec<u32> = group.ranks.iter().map(|(rank, _)| *rank).collect();
    members.sort_unstable();
    members
}

/// Returns the strategy with these channels. Sizes follow from the model of costs.
fn strategy(network: &Network<'_>, group: &Group, channels: Vec<Channel>) -> Strategy {
    let mut strategy =
        sized(network, group, Strategy { channels, ..Strategy::rank_order(0, members(group)) });
    strategy.broadcast = broadcast::tree(network, group, &strategy);
    strategy
}

/// Returns the strategy with sizes that follow from the model of costs.
fn sized(network: &Network<'_>, group: &Group, mut strategy: Strategy) -> Strategy {
    strategy.piece = piece(network, group, &strategy);
    strategy.small = small(network, group, &strategy);
    strategy
}

/// Returns the strategy of one ring, routed by the system.
fn one_ring(network: &Network<'_>, group: &Group, ring: Vec<u32>) -> Strategy {
    strategy(network, group, vec![Channel { paths: vec![None; ring.len()], ring }])
}

#[cfg(test)]
pub(crate) mod tests;
