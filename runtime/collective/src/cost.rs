//! A model of how long an operation takes under a strategy, from facts of links alone.
//!
//! **Formula.** An operation of B bytes takes *steps x latency + max over links of (bytes over the link / share of the link)*.
//! Links are counted by direction: out of a host and into it, out of a rack by a path and into it, and the way between two
//! racks. The share is what others leave of the rate, in proportion to the flows of the group among those that are known; where
//! there are [hints](Network::loads), it is what they say. What goes through ranks one after another, a broadcast or a tree, also
//! waits at each but the first step for the slowest link to take a piece of each channel or tree.
//!
//! | n ranks, B bytes, k channels | bytes from a rank to the next one of each ring | steps |
//! |---|---|---|
//! | all-reduce | 2 (n-1)/n B/k | 2 (n-1) |
//! | reduce-scatter, all-gather | (n-1)/n B/k | n-1 |
//! | broadcast | B/k, none to the root | n-1 |
//! | all-to-all, between all pairs | B/n | n-1 |
//! | all-reduce by trees of parts w | w B in both directions along each edge | 2 x depth |
//! | broadcast by trees of parts w | w B away from the root | depth |
//! | small all-reduce, by doubling | B to each of log n partners | log n |
//! | small broadcast, by a tree | B to each child | log n |
//!
//! [`small`] is the B at which doubling takes as long as the rings: both are lines in B, so it is (steps of rings - steps of
//! doubling) x latency / (seconds per byte of doubling - seconds per byte of rings). [`piece`] is as large as the overhead of a
//! piece may be a twentieth of its time: 20 x overhead x rate. Nothing is tuned to a benchmark.
//!
//! The formula is for choices, which compare many strategies. Expected times for operators are of [`expected`], a simulation.
//!
//! ```
//! use tidemill_collective::cost::{Network, time};
//! use tidemill_collective::operation::Operation;
//! use tidemill_collective::strategy::Strategy;
//! use tidemill_collective::topology::{Group, Host};
//! let hosts = ["a", "b"].map(|name| Host { name: name.into(), ..Host::default() });
//! let group = Group { ranks: vec![(0, "a".into()), (1, "b".into())], ..Group::default() };
//! let network = Network { hosts: &hosts, ..Network::default() };
//! let strategy = Strategy::rank_order(1, vec![0, 1]);
//! let took = time(&network, &group, &strategy, Operation::AllGather, 1e9, &[]);
//! assert!((took.seconds - (0.5e9 / network.facts.host_rate + network.facts.step)).abs() < 1e-9);
//! ```
use crate::operation::Operation;
use crate::strategy::{Branch, Strategy, Tree};
use crate::topology::{Group, Host, Loads};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

mod choice;
mod expected;
mod loads;
pub(crate) use choice::{ALL_REDUCE, EXAMPLE, doubled, duration};
pub use choice::{Predicted, piece, predicted, reasons, small};
pub use expected::{PAYLOAD, expected};

/// Facts about the network.
#[derive(Debug, Clone, Copy, Default)]
pub struct Network<'a> {
    /// The hosts.
    pub hosts: &'a [Host],
    /// Traffic of others, who have no group.
    pub background: &'a [Background],
    /// Loads of links from hints; they count instead of the background and of other groups, whose traffic they contain.
    pub loads: Option<&'a Loads>,
    /// Rates of links that are known; none: no rate is.
    pub totals: Option<&'a Totals>,
    /// Rates and times.
    pub facts: Facts,
}

/// Rates of links that are known, out and in, bytes per second.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Totals {
    /// Of hosts, by name.
    pub hosts: BTreeMap<String, [Option<f64>; 2]>,
    /// Of racks, by name.
    pub racks: BTreeMap<String, [Option<f64>; 2]>,
}

/// Traffic of others between racks.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Background {
    /// The rack out of which it goes; none: out of anywhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The rack into which it goes; none: to anywhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Its path; none: each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Bytes per second.
    pub rate: f64,
}

/// Rates and times of hosts, as measured or assumed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// The highest rate of a host, in each direction, bytes per second. Also between two racks without paths.
    pub host_rate: f64,
    /// The rate between ranks of one host, bytes per second.
    pub memory_rate: f64,
    /// Time of a step between hosts without its bytes, seconds.
    pub step: f64,
    /// Time of a step within a host, seconds.
    pub local_step: f64,
    /// Time of a piece at a host beside its bytes, seconds.
    pub piece: f64,
}

impl Default for Facts {
    /// A network of 10 Gbit/s and a round trip of 100 µs.
    fn default() -> Self {
        Self { host_rate: 1.25e9, memory_rate: 5e9, step: 50e-6, local_step: 5e-6, piece: 10e-6 }
    }
}

/// A link in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Link<'a> {
    /// Memory of a host.
    Memory(&'a str),
    /// Out of a host.
    HostOut(&'a str),
    /// Into a host.
    HostIn(&'a str),
    /// Out of a rack, by a path.
    RackOut(&'a str, &'a str),
    /// Into a rack, by a path.
    RackIn(&'a str, &'a str),
    /// From a rack to another one, by a path.
    Between(&'a str, &'a str, &'a str),
}

impl fmt::Display for Link<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = |path: &str| if path.is_empty() { String::new() } else { format!(" by {path}") };
        let rack = |name: &str| {
            if name.is_empty() { "the rack without a name".to_owned() } else { format!("rack {name}") }
        };
        match *self {
            Self::Memory(host) => write!(formatter, "the memory of {host}"),
            Self::HostOut(host) => write!(formatter, "the link out of {host}"),
            Self::HostIn(host) => write!(formatter, "the link into {host}"),
            Self::RackOut(name, path) => write!(formatter, "the link out of {}{}", rack(name), by(path)),
            Self::RackIn(name, path) => write!(formatter, "the link into {}{}", rack(name), by(path)),
            Self::Between(from, to, path) => {
                write!(formatter, "the way from {} to {}{}", rack(from), rack(to), by(path))
            }
        }
    }
}

impl<'a> Network<'a> {
    /// Returns the host of this name.
    pub fn host(&self, name: &str) -> Option<&'a Host> {
        self.hosts.iter().find(|host| host.name == name)
    }

    /// Returns the links of the racks that bytes from a host to another one cross, by this path.
    pub fn rack_links(&self, from: &'a Host, to: &'a Host, path: Option<&'a str>) -> Vec<Link<'a>> {
        let (out, into, path) = (from.rack.as_str(), to.rack.as_str(), path.unwrap_or(""));
        if out == into {
            return Vec::new();
        }
        vec![Link::RackOut(out, path), Link::Between(out, into, path), Link::RackIn(into, path)]
    }

    /// Returns what a link carries when nobody else uses it, bytes per second.
    pub fn rate(&self, link: Link<'_>) -> f64 {
        match link {
            Link::Memory(_) => self.facts.memory_rate,
            Link::HostOut(host) | Link::HostIn(host) => {
                let known = self.totals.and_then(|totals| totals.hosts.get(host));
                let side = usize::from(matches!(link, Link::HostIn(_)));
                known.and_then(|sides| sides[side]).unwrap_or(self.facts.host_rate)
            }
            Link::RackOut(rack, path) | Link::RackIn(rack, path) => {
                let paths = self.hosts.iter().filter(|host| host.rack == rack).flat_map(|host| &host.paths);
                let rates = paths.filter(|known| known.name == path).map(|known| known.rate);
                let known = self.totals.and_then(|totals| totals.racks.get(rack));
                let side = usize::from(matches!(link, Link::RackIn(..)));
                let known = || known.and_then(|sides| sides[side]);
                rates.reduce(f64::max).or_else(known).unwrap_or(self.facts.host_rate)
            }
            Link::Between(from, to, path) => {
                self.rate(Link::RackOut(from, path)).min(self.rate(Link::RackIn(to, path)))
            }
        }
    }

    /// Returns what the background sends over a link, bytes per second.
    pub fn load(&self, link: Link<'_>) -> f64 {
        let of = |known: &Background, out: Option<&str>, into: Option<&str>, path: &str| {
            known.from.as_deref() == out
                && known.to.as_deref() == into
                && known.path.as_deref().is_none_or(|name| name == path)
        };
        let loads = self.background.iter().filter(|known| match link {
            Link::RackOut(rack, path) => of(known, Some(rack), None, path),
            Link::RackIn(rack, path) => of(known, None, Some(rack), path),
            Link::Between(from, to, path) => of(known, Some(from), Some(to), path),
            Link::Memory(_) | Link::HostOut(_) | Link::HostIn(_) => false,
        });
        loads.map(|known| known.rate).sum()
    }

    /// Returns what hints or the background leave of a link: a hundredth at least, since flows of others yield.
    pub fn left(&self, link: Link<'_>) -> f64 {
        let rate = self.rate(link);
        let hinted = self.loads.and_then(|loads| loads::left(self, loads, link));
        // What is assumed of a link says nothing about one that is known.
        hinted.map_or_else(|| (rate - self.load(link)).max(rate / 100.0), |left| left.max(1.0))
    }
}

/// The hosts of the ranks of a group.
pub(crate) type Places<'a> = BTreeMap<u32, &'a Host>;

/// Returns the host of each rank whose host is known.
pub(crate) fn places<'a>(network: &Network<'a>, group: &Group) -> Places<'a> {
    let known: BTreeMap<&str, &'a Host> =
        network.hosts.iter().map(|host| (host.name.as_str(), host)).collect();
    group.ranks.iter().filter_map(|(rank, host)| Some((*rank, *known.get(host.as_str())?))).collect()
}

/// How long an operation takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Time<'a> {
    /// Seconds in all.
    pub seconds: f64,
    /// The link that takes longest; none: no bytes move.
    pub slowest: Option<Link<'a>>,
    /// Seconds that it takes.
    pub on_slowest: f64,
    /// Steps one after another.
    pub steps: u32,
}

/// Returns the bytes over each link for each byte of a buffer of `length` bytes, which is no small one.
///
/// Where the system chooses one of several paths, each is counted with an even part: what it really chooses is not known.
pub fn bytes<'a>(
    network: &Network<'a>,
    group: &Group,
    strategy: &'a Strategy,
    operation: Operation,
    length: f64,
) -> BTreeMap<Link<'a>, f64> {
    let places = places(network, group);
    let mut links = BTreeMap::new();
    if let Some((_, trees)) = strategy.trees_of(operation, length as u64) {
        let all: f64 = trees.iter().map(|tree| f64::from(tree.weight)).sum();
        for tree in trees {
            let part = f64::from(tree.weight) / all;
            for Branch { above, below, .. } in hanging(tree, operation) {
                add(network, &places, &mut links, (above, below, None), part);
                if matches!(operation, Operation::AllReduce { .. }) {
                    add(network, &places, &mut links, (below, above, None), part);
                }
            }
        }
        return links;
    }
    let count = strategy.members.len();
    let n = count as f64;
    let part = match operation {
        Operation::AllReduce { .. } => 2.0 * (n - 1.0) / n,
        Operation::ReduceScatter { .. } | Operation::AllGather => (n - 1.0) / n,
        Operation::Broadcast { .. } => 1.0,
        Operation::AllToAll => {
            for &from in &strategy.members {
                for &to in strategy.members.iter().filter(|to| **to != from) {
                    add(network, &places, &mut links, (from, to, None), 1.0 / n);
                }
            }
            return links;
        }
    };
    let root = if let Operation::Broadcast { root } = operation { Some(root) } else { None };
    let share = part / strategy.channels.len() as f64;
    for (from, to, path) in edges(strategy) {
        if root != Some(to) {
            add(network, &places, &mut links, (from, to, path), share);
        }
    }
    links
}

/// Returns the edges of a tree as an operation uses it.
fn hanging(tree: &Tree, operation: Operation) -> Vec<Branch> {
    let root = if let Operation::Broadcast { root } = operation { Some(root) } else { tree.root() };
    root.map_or_else(Vec::new, |root| tree.from(root))
}

/// Returns the edges of all rings.
pub(crate) fn edges(strategy: &Strategy) -> impl Iterator<Item = (u32, u32, Option<&str>)> {
    strategy.channels.iter().filter(|channel| channel.ring.len() > 1).flat_map(|channel| {
        let next = channel.ring.iter().cycle().skip(1);
        let ring = channel.ring.iter().zip(next);
        ring.enumerate()
            .map(|(at, (from, to))| (*from, *to, channel.paths.get(at).and_then(Option::as_deref)))
    })
}

/// Adds bytes from a rank to another one.
fn add<'a>(
    network: &Network<'a>,
    places: &Places<'a>,
    links: &mut BTreeMap<Link<'a>, f64>,
    (from, to, path): (u32, u32, Option<&'a str>),
    bytes: f64,
) {
    let (Some(&from), Some(&to)) = (places.get(&from), places.get(&to)) else { return };
    if from.name == to.name {
        *links.entry(Link::Memory(&from.name)).or_default() += bytes;
        return;
    }
    *links.entry(Link::HostOut(&from.name)).or_default() += bytes;
    *links.entry(Link::HostIn(&to.name)).or_default() += bytes;
    let by_system: Vec<Option<&str>> = match path {
        None if !from.paths.is_empty() => from.paths.iter().map(|path| Some(path.name.as_str())).collect(),
        path => vec![path],
    };
    for path in &by_system {
        for link in network.rack_links(from, to, *path) {
            *links.entry(link).or_default() += bytes / by_system.len() as f64;
        }
    }
}

/// Returns how many flows of a group cross each link in an operation of `length` bytes.
fn flows<'a>(
    network: &Network<'a>,
    group: &Group,
    strategy: &'a Strategy,
    (operation, length): (Operation, f64),
) -> BTreeMap<Link<'a>, f64> {
    let places = places(network, group);
    let mut links = BTreeMap::new();
    match strategy.trees_of(operation, length as u64) {
        None => edges(strategy).for_each(|edge| add(network, &places, &mut links, edge, 1.0)),
        Some((_, trees)) => {
            let both = |(one, other): &(u32, u32)| [(*one, *other, None), (*other, *one, None)];
            let edges = trees.iter().flat_map(|tree| &tree.edges).flat_map(both);
            edges.for_each(|edge| add(network, &places, &mut links, edge, 1.0));
        }
    }
    links
}

/// Returns how long an operation takes with a buffer of this many bytes, beside the rings of other groups.
pub fn time<'a>(
    network: &Network<'a>,
    group: &Group,
    strategy: &'a Strategy,
    operation: Operation,
    length: f64,
    others: &[(&Group, &'a Strategy)],
) -> Time<'a> {
    let mine = flows(network, group, strategy, (operation, length));
    let mut all = mine.clone();
    for (other, strategy) in others.iter().filter(|_| network.loads.is_none()) {
        for (link, count) in flows(network, other, strategy, (operation, length)) {
            *all.entry(link).or_default() += count;
        }
    }
    let part = |link| match (mine.get(&link), all.get(&link)) {
        (Some(mine), Some(all)) if *all > 0.0 => mine / all,
        _ => 1.0,
    };
    let bytes = bytes(network, group, strategy, operation, length);
    let times =
        bytes.iter().map(|(link, bytes)| (*link, bytes * length / (network.left(*link) * part(*link))));
    let slowest = times.max_by(|(_, one), (_, other)| one.total_cmp(other));
    let (steps, lanes) = steps(strategy, operation, length);
    let on_slowest = slowest.map_or(0.0, |(_, seconds)| seconds);
    // The last piece of each lane waits at each step but the first one until the link has taken the others.
    let pieces = (f64::from(strategy.piece) * lanes as f64).min(length);
    let waits = if length > 0.0 && lanes > 0 {
        on_slowest * pieces / length * f64::from(steps.saturating_sub(1))
    } else {
        0.0
    };
    let step = step(network, group);
    Time {
        seconds: on_slowest + waits + f64::from(steps) * step,
        slowest: slowest.map(|(link, _)| link),
        on_slowest,
        steps,
    }
}

/// Returns how many steps an operation has one after another, and the channels or trees whose pieces wait at each step; 0: each rank
/// has something of its own to send at the beginning.
fn steps(strategy: &Strategy, operation: Operation, length: f64) -> (u32, usize) {
    let rounds = strategy.members.len().saturating_sub(1) as u32;
    let is_all_reduce = matches!(operation, Operation::AllReduce { .. });
    let twice = if is_all_reduce { 2 } else { 1 };
    if let Some((_, trees)) = strategy.trees_of(operation, length as u64) {
        let branches = trees.iter().flat_map(|tree| hanging(tree, operation));
        let depth = branches.map(|branch| branch.depth).max().unwrap_or(0);
        return (twice * depth as u32, trees.len());
    }
    match operation {
        Operation::Broadcast { .. } => (rounds, strategy.channels.len()),
        _ => (twice * rounds, 0),
    }
}

/// Returns the time of a step of the group without its bytes.
fn step(network: &Network<'_>, group: &Group) -> f64 {
    let is_local =
        group.ranks.iter().all(|(_, host)| Some(host) == group.ranks.first().map(|(_, host)| host));
    if is_local { network.facts.local_step } else { network.facts.step }
}

#[cfg(test)]
mod tests;
