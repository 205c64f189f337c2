//! Sizes that follow from the model, and why a strategy was chosen, in words.
use super::{Link, Network, add, bytes, edges, expected, places, step, steps, time};
use crate::element::Reduction;
use crate::operation::Operation;
use crate::strategy::Strategy;
use crate::topology::Group;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

pub(crate) const ALL_REDUCE: Operation = Operation::AllReduce { reduction: Reduction::Sum };
/// The buffer of which reasons speak.
pub(crate) const EXAMPLE: f64 = (64 << 20) as f64;
/// Bounds of a piece: below, headers and calls count; above, it no longer fits into the cache of a core.
const PIECES: (f64, f64) = ((16 << 10) as f64, (1 << 20) as f64);
/// Most bytes of a small operation: it has no pieces that overlap.
const MOST_SMALL: f64 = (1 << 20) as f64;

/// Returns the bytes of a piece: a twentieth of its time on the slowest link of an all-reduce is overhead, in steps of 4 KiB.
pub fn piece(network: &Network<'_>, group: &Group, strategy: &Strategy) -> u32 {
    let links = bytes(network, group, strategy, ALL_REDUCE, EXAMPLE);
    let Some(rate) = links.keys().map(|link| network.left(*link)).reduce(f64::min) else {
        return crate::strategy::PIECE;
    };
    let bytes = (20.0 * network.facts.piece * rate).clamp(PIECES.0, PIECES.1);
    (bytes as u32) & !0xFFF
}

/// Returns the bytes up to which doubling takes no longer than the rings or trees; 1 MiB at most.
pub fn small(network: &Network<'_>, group: &Group, strategy: &Strategy) -> u64 {
    let slope = |links: &BTreeMap<Link<'_>, f64>| {
        links.iter().map(|(link, bytes)| bytes / network.left(*link)).fold(0.0, f64::max)
    };
    let (doubling, fewer) = doubling(network, group, strategy);
    let (rounds, lanes) = steps(strategy, ALL_REDUCE, EXAMPLE);
    let saved = (f64::from(rounds) - f64::from(fewer)) * step(network, group);
    // One piece takes all steps of a tree one after another.
    let passes = if lanes > 0 { f64::from(rounds) } else { 1.0 };
    let dearer = slope(&doubling) - passes * slope(&bytes(network, group, strategy, ALL_REDUCE, EXAMPLE));
    if saved <= 0.0 {
        return 0;
    }
    if dearer <= 0.0 { MOST_SMALL as u64 } else { (saved / dearer).min(MOST_SMALL) as u64 }
}

/// Returns the seconds of an all-reduce by doubling with a buffer of this many bytes.
pub(crate) fn doubled(network: &Network<'_>, group: &Group, strategy: &Strategy, length: f64) -> f64 {
    let (links, rounds) = doubling(network, group, strategy);
    let slope = links.iter().map(|(link, bytes)| bytes / network.left(*link)).fold(0.0, f64::max);
    slope * length + f64::from(rounds) * step(network, group)
}

/// Returns the bytes over each link and the steps of an all-reduce by doubling in the order of the first ring, for each byte of
/// the buffer.
fn doubling<'a>(
    network: &Network<'a>,
    group: &Group,
    strategy: &'a Strategy,
) -> (BTreeMap<Link<'a>, f64>, u32) {
    let places = places(network, group);
    let members = strategy.channels.first().map_or(&strategy.members, |channel| &channel.ring);
    let mut links = BTreeMap::new();
    // Ranks beyond a power of two hand theirs to a neighbour before, and get the result after.
    let power = 1 << members.len().max(1).ilog2();
    let folded = 2 * (members.len() - power.min(members.len()));
    let at = |number: usize| if number < folded / 2 { 2 * number + 1 } else { number + folded / 2 };
    let mut both = |one: usize, other: usize| {
        for (from, to) in [(one, other), (other, one)] {
            let (from, to) = (members[from], members[to]);
            add(network, &places, &mut links, (from, to, strategy.mesh_path(from, to)), 1.0);
        }
    };
    for pair in 0..folded / 2 {
        both(2 * pair, 2 * pair + 1);
    }
    let mut distance = 1;
    while distance < power && !members.is_empty() {
        for number in (0..power).filter(|number| number & distance == 0) {
            both(at(number), at(number + distance));
        }
        distance *= 2;
    }
    (links, power.ilog2() + if folded > 0 { 2 } else { 0 })
}

/// Returns sentences that say why the strategy suits the group and what limits it, for the provider.
pub fn reasons(
    network: &Network<'_>,
    group: &Group,
    strategy: &Strategy,
    others: &[(&Group, &Strategy)],
) -> Vec<String> {
    let places = places(network, group);
    let racks: BTreeSet<&str> = places.values().map(|host| host.rack.as_str()).collect();
    let mut reasons = Vec::new();
    let crossing = |strategy: &Strategy| {
        let rack = |rank| places.get(&rank).map(|host| host.rack.as_str());
        edges(strategy).filter(|(from, to, _)| rack(*from) != rack(*to)).count()
            / strategy.channels.len().max(1)
    };
    let rings = match strategy.channels.len() {
        1 => "1 ring".to_owned(),
        count => format!("{count} rings"),
    };
    if racks.len() < 2 {
        reasons.push(format!("{rings}: all ranks are in one rack"));
    } else {
        let least = if crossing(strategy) == racks.len() {
            "no ring does with fewer"
        } else {
            "a ring needs no more than one per rack"
        };
        let count = crossing(strategy);
        reasons
            .push(format!("{rings} over {} racks: {count} ways between racks in each; {least}", racks.len()));
    }
    for (what, trees) in [("all-reduces", &strategy.all_reduce), ("broadcasts", &strategy.broadcast)] {
        let Some(trees) = trees else { continue };
        let all: f64 = trees.trees.iter().map(|tree| f64::from(tree.weight)).sum();
        let largest = trees.trees.iter().map(|tree| tree.weight).max().unwrap_or(0);
        let count = match trees.trees.len() {
            1 => "1 tree".to_owned(),
            count => {
                format!("{count} trees of up to {:.0} % of the buffer", 100.0 * f64::from(largest) / all)
            }
        };
        let most = trees.most.map_or_else(String::new, |most| format!(" of at most {} KiB", most >> 10));
        reasons.push(format!("{what}{most} go by {count}"));
    }
    let mut by_path: BTreeMap<&str, usize> = BTreeMap::new();
    edges(strategy).filter_map(|(_, _, path)| path).for_each(|path| *by_path.entry(path).or_default() += 1);
    if !by_path.is_empty() {
        let paths: Vec<String> = by_path.iter().map(|(path, count)| format!("{count} by {path}")).collect();
        reasons.push(format!("paths between racks: {}", paths.join(", ")));
    }
    let took = time(network, group, strategy, ALL_REDUCE, EXAMPLE, others);
    if let Some(link) = took.slowest {
        let beside = match others.len() {
            0 => String::new(),
            1 => " beside 1 other group".to_owned(),
            count => format!(" beside {count} other groups"),
        };
        reasons.push(format!(
            "an all-reduce of 64 MiB takes about {}{beside}; {link} limits it, with {} left of {}",
            duration(expected(network, group, strategy, ALL_REDUCE, EXAMPLE, others)),
            rate(network.left(link)),
            rate(network.rate(link)),
        ));
        let order = Strategy::rank_order(strategy.epoch, strategy.members.clone());
        let compared = time(network, group, &order, ALL_REDUCE, EXAMPLE, others).seconds / took.seconds;
        if compared > 1.05 {
            reasons.push(format!("rings in the order of ranks would take {compared:.1} times as long"));
        }
    }
    if let Some(windows) = &strategy.windows {
        let open: u64 = windows.open_us.iter().map(|(from, to)| to - from).sum();
        let part = 100.0 * open as f64 / windows.period_us.max(1) as f64;
        reasons.push(format!(
            "it sends between hosts in {part:.0} % of each {}: the rest is for a group that goes first",
            duration(windows.period_us as f64 / 1e6)
        ));
    }
    reasons
}

/// A time that the model has for an operation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Predicted {
    /// The operation.
    pub operation: String,
    /// Bytes of the buffer of each rank.
    pub bytes: u64,
    /// Its time in microseconds.
    pub us: f64,
}

/// Returns how long each operation takes [by simulation](expected) with a buffer of this many bytes, or of 64 MiB where it is small or unknown. A broadcast
/// begins at the first member.
pub fn predicted(
    network: &Network<'_>,
    group: &Group,
    strategy: &Strategy,
    others: &[(&Group, &Strategy)],
    bytes: Option<u64>,
) -> Vec<Predicted> {
    let bytes = bytes.filter(|bytes| *bytes > strategy.small).unwrap_or(EXAMPLE as u64);
    let root = strategy.members.first().copied().unwrap_or_default();
    let operations = [
        ("all-reduce", ALL_REDUCE),
        ("broadcast", Operation::Broadcast { root }),
        ("reduce-scatter", Operation::ReduceScatter { reduction: Reduction::Sum }),
        ("all-gather", Operation::AllGather),
        ("all-to-all", Operation::AllToAll),
    ];
    let of = |(name, operation): (&str, Operation)| {
        let seconds = expected(network, group, strategy, operation, bytes as f64, others);
        Predicted { operation: name.to_owned(), bytes, us: seconds * 1e6 }
    };
    operations.into_iter().map(of).collect()
}

pub(crate) fn duration(seconds: f64) -> String {
    match seconds {
        s if s >= 1.0 => format!("{s:.1}s"),
        s if s >= 1e-3 => format!("{:.1}ms", s * 1e3),
        s => format!("{:.0}us", s * 1e6),
    }
}

fn rate(bytes: f64) -> String {
    match bytes * 8.0 {
        bits if bits >= 1e9 => format!("{:.1} Gbit/s", bits / 1e9),
        bits => format!("{:.0} Mbit/s", bits / 1e6),
    }
}
