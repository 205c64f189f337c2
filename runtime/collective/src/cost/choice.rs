//! Sizes that follow from the model, and why a strategy was chosen, in words.
use super::{Link, Network, add, bytes, edges, places, step, time};
use crate::element::Reduction;
use crate::operation::Operation;
use crate::strategy::Strategy;
use crate::topology::Group;
use std::collections::{BTreeMap, BTreeSet};

const ALL_REDUCE: Operation = Operation::AllReduce { reduction: Reduction::Sum };
/// The buffer of which reasons speak.
const EXAMPLE: f64 = (64 << 20) as f64;
/// Bounds of a piece: below, headers and calls count; above, it no longer fits into the cache of a core.
const PIECES: (f64, f64) = ((16 << 10) as f64, (1 << 20) as f64);
/// Most bytes of a small operation: it has no pieces that overlap.
const MOST_SMALL: f64 = (1 << 20) as f64;

/// Returns the bytes of a piece: a twentieth of its time on the slowest link of the rings is overhead, in steps of 4 KiB.
pub fn piece(network: &Network<'_>, group: &Group, strategy: &Strategy) -> u32 {
    let links = bytes(network, group, strategy, ALL_REDUCE);
    let Some(rate) = links.keys().map(|link| network.left(*link)).reduce(f64::min) else {
        return crate::strategy::PIECE;
    };
    let bytes = (20.0 * network.facts.piece * rate).clamp(PIECES.0, PIECES.1);
    (bytes as u32) & !0xFFF
}

/// Returns the bytes up to which doubling takes no longer than the rings; 1 MiB at most.
pub fn small(network: &Network<'_>, group: &Group, strategy: &Strategy) -> u64 {
    let slope = |links: &BTreeMap<Link<'_>, f64>| {
        links.iter().map(|(link, bytes)| bytes / network.left(*link)).fold(0.0, f64::max)
    };
    let (doubling, steps) = doubling(network, group, strategy);
    let rings = f64::from(2 * strategy.members.len().saturating_sub(1) as u32);
    let saved = (rings - f64::from(steps)) * step(network, group);
    let dearer = slope(&doubling) - slope(&bytes(network, group, strategy, ALL_REDUCE));
    if saved <= 0.0 {
        return 0;
    }
    if dearer <= 0.0 { MOST_SMALL as u64 } else { (saved / dearer).min(MOST_SMALL) as u64 }
}

/// Returns the bytes over each link and the steps of an all-reduce by doubling in the order of the first ring, for each byte of
/// the buffer.
fn doubling<'a>(network: &Network<'a>, group: &Group, strategy: &Strategy) -> (BTreeMap<Link<'a>, f64>, u32) {
    let places = places(network, group);
    let members = strategy.channels.first().map_or(&strategy.members, |channel| &channel.ring);
    let mut links = BTreeMap::new();
    // Ranks beyond a power of two hand theirs to a neighbour before, and get the result after.
    let power = 1 << members.len().max(1).ilog2();
    let folded = 2 * (members.len() - power.min(members.len()));
    let at = |number: usize| if number < folded / 2 { 2 * number + 1 } else { number + folded / 2 };
    let mut both = |one: usize, other: usize| {
        for (from, to) in [(one, other), (other, one)] {
            add(network, &places, &mut links, (members[from], members[to], None), 1.0);
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
            duration(took.seconds),
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

fn duration(seconds: f64) -> String {
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
