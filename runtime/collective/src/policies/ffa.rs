//! Fair assignment of flows to paths: all groups get alike, whatever they send at once.
//!
//! Each group has the rings of [`locality`](super::locality). Their flows between racks take turns, one of each group after
//! another; each gets the path on which what is wanted exceeds the rate least, as a part of the rate. That is the greedy rule of
//! Hedera (Al-Fares and others, 2010) with two changes: it goes around the groups, and it compares parts, so that a slow path is
//! no way out of a fast one.
//!
//! **Channels.** The parts of a buffer are even, so k paths together carry k times the slowest of them: the group uses the k
//! fastest ones for which that is the most. With g groups on k paths, k / gcd(k, g) channels each are the fewest with which each
//! path has the same number of flows.
//!
//! **Trees.** Where no path is chosen, all-reduces of middle sizes go by a tree if that is quicker than the rings and than doubling, as
//! the model of costs has it.
//!
//! ```
//! use tidemill_collective::cost::Network;
//! use tidemill_collective::policies::{Cluster, ffa};
//! use tidemill_collective::topology::{Group, Host, Path};
//! let spine = |name: &str| Path { name: name.into(), rate: 6.25e9, ..Path::default() };
//! let hosts = [("a", "left"), ("b", "right")].map(|(name, rack)| {
//!     Host { name: name.into(), rack: rack.into(), paths: vec![spine("spine0"), spine("spine1")], ..Host::default() }
//! });
//! let group = |name: &str| Group { name: name.into(), ranks: vec![(0, "a".into()), (1, "b".into())], ..Group::default() };
//! let groups = [group("one"), group("other")];
//! let cluster = Cluster { network: Network { hosts: &hosts, ..Network::default() }, groups: &groups, ..Cluster::default() };
//! let strategies = ffa::strategies(&cluster);
//! assert_eq!(strategies["one"].channels[0].paths, [Some("spine0".into()), Some("spine0".into())]);
//! assert_eq!(strategies["other"].channels[0].paths, [Some("spine1".into()), Some("spine1".into())]);
//! ```
use super::{Cluster, locality, reducing, strategy};
use crate::cost::{Link, Network, places};
use crate::strategy::{Channel, Strategy};
use crate::topology::{Group, Host, Path};
use std::collections::{BTreeMap, BTreeSet};

/// Most channels of a group.
const MOST_CHANNELS: usize = 16;

/// Makes the strategy of each group.
pub fn strategies(cluster: &Cluster<'_>) -> BTreeMap<String, Strategy> {
    let mut assignment = Assignment::new(cluster.network);
    assignment.assign(&super::in_turn(cluster.groups), &|_| true);
    assignment.strategies
}

/// Paths as they are given away.
#[derive(Clone)]
pub(super) struct Assignment<'a> {
    network: Network<'a>,
    /// Demand of flows on each link, bytes per second, and their number.
    wanted: BTreeMap<Link<'a>, (f64, usize)>,
    pub(super) strategies: BTreeMap<String, Strategy>,
}

/// A flow of a ring between two racks.
struct Flow<'a> {
    channel: usize,
    /// Its place in the ring.
    at: usize,
    from: &'a Host,
    to: &'a Host,
}

/// A group while its flows get paths.
struct Ringed<'a, 'g> {
    group: &'g Group,
    channels: Vec<Channel>,
    flows: Vec<Flow<'a>>,
    /// Places in the ring at which it leaves a rack, with both hosts.
    crossings: Vec<(usize, &'a Host, &'a Host)>,
}

/// Returns the flows of as many rings as channels.
fn flows<'a>(crossings: &[(usize, &'a Host, &'a Host)], count: usize) -> Vec<Flow<'a>> {
    let of = |channel| crossings.iter().map(move |&(at, from, to)| Flow { channel, at, from, to });
    (0..count).flat_map(of).collect()
}

impl Ringed<'_, '_> {
    /// Returns the same with as many rings, none of which has a path yet.
    fn with_channels(&self, count: usize) -> Self {
        let crossings = self.crossings.clone();
        // One without crossings has one ring.
        let count = if crossings.is_empty() { 1 } else { count };
        let channel = self
            .channels
            .first()
            .map(|first| Channel { paths: vec![None; first.ring.len()], ring: first.ring.clone() });
        let channels = channel.into_iter().cycle().take(count).collect();
        Self { group: self.group, channels, flows: flows(&crossings, count), crossings }
    }
}

impl<'a> Assignment<'a> {
    pub(super) fn new(network: Network<'a>) -> Self {
        Self { network, wanted: BTreeMap::new(), strategies: BTreeMap::new() }
    }

    /// Gives the flows of these groups paths that are allowed, beside what was given away before.
    pub(super) fn assign(&mut self, groups: &[&Group], is_allowed: &dyn Fn(&Path) -> bool) {
        let racks: Vec<BTreeSet<&str>> = groups.iter().map(|group| racks(&self.network, group)).collect();
        let mut ringed = Vec::with_capacity(groups.len());
        for (group, mine) in groups.iter().zip(&racks) {
            let sharing = racks.iter().filter(|other| other.len() > 1 && !mine.is_disjoint(other)).count();
            ringed.push(self.ringed(group, sharing, is_allowed));
        }
        self.give(&mut ringed, is_allowed);
        self.keep(ringed);
    }

    /// Gives the flows of these groups, one after the other, all paths: each gets as many rings, up to two for each path, as give it
    /// most if links are divided evenly among flows.
    pub(super) fn assign_most(&mut self, groups: &[&Group]) {
        for group in groups {
            let ringed = self.ringed(group, 1, &|_| true);
            let paths = ringed.flows.first().map_or(1, |flow| candidates(flow.from, &|_| true).len());
            // On the only path all groups get alike.
            let most = if paths > 1 { (2 * paths).min(MOST_CHANNELS) } else { 1 };
            let mut best: Option<(f64, Self, Ringed<'a, '_>)> = None;
            for count in 1..=most {
                let (mut tried, mut made) = (self.clone(), [ringed.with_channels(count)]);
                tried.give(&mut made, &|_| true);
                let [made] = made;
                let rate = tried.rate(&made);
                // One more ring is worth a gain that can be seen.
                if best.as_ref().is_none_or(|(before, ..)| rate > 1.01 * before) {
                    best = Some((rate, tried, made));
                }
            }
            let Some((_, tried, made)) = best else { continue };
            *self = tried;
            self.keep(vec![made]);
        }
    }

    /// The rate of a group whose flows have paths, if links are divided evenly among flows; its parts of a buffer are even.
    fn rate(&self, made: &Ringed<'a, '_>) -> f64 {
        let of_flow = |flow: &Flow<'a>| {
            let path = made.channels[flow.channel].paths[flow.at].as_deref();
            let path = flow.from.paths.iter().map(|path| path.name.as_str()).find(|name| Some(*name) == path);
            let links = self.network.rack_links(flow.from, flow.to, path);
            let part =
                |link| self.network.left(link) / self.wanted.get(&link).map_or(1, |(_, flows)| *flows) as f64;
            links.into_iter().map(part).fold(f64::MAX, f64::min)
        };
        made.flows.iter().map(of_flow).fold(f64::MAX, f64::min) * made.channels.len() as f64
    }

    /// Gives flows paths, one of each group after another.
    fn give(&mut self, ringed: &mut [Ringed<'a, '_>], is_allowed: &dyn Fn(&Path) -> bool) {
        let most = ringed.iter().map(|one| one.flows.len()).max().unwrap_or(0);
        for turn in 0..most {
            for one in &mut *ringed {
                let Some(flow) = one.flows.get(turn) else { continue };
                if let Some(path) = self.best(flow, is_allowed) {
                    one.channels[flow.channel].paths[flow.at] = Some(path.to_owned());
                }
            }
        }
    }

    /// Keeps the strategies of groups whose flows have paths.
    fn keep(&mut self, ringed: Vec<Ringed<'a, '_>>) {
        for one in ringed {
            let made = strategy(&self.network, one.group, one.channels);
            let made = reducing::with_tree(&self.network, one.group, made);
            self.strategies.insert(one.group.name.clone(), made);
        }
    }

    /// Returns a group with the rings that it needs beside others in its racks, and their flows.
    fn ringed<'g>(
        &self,
        group: &'g Group,
        sharing: usize,
        is_allowed: &dyn Fn(&Path) -> bool,
    ) -> Ringed<'a, 'g> {
        let places = places(&self.network, group);
        let ring = locality::ring(&self.network, group);
        let crossings: Vec<(usize, &Host, &Host)> = (0..ring.len())
            .map(|at| (at, places[&ring[at]], places[&ring[(at + 1) % ring.len()]]))
            .filter(|(_, from, to)| from.rack != to.rack)
            .collect();
        let usable = self.usable(&crossings, is_allowed);
        let count = usable / greatest_divisor(usable, sharing.max(1));
        let channel = Channel { paths: vec![None; ring.len()], ring };
        Ringed { group, channels: vec![channel], flows: flows(&crossings, 1), crossings }.with_channels(count)
    }

    /// Returns how many paths together carry most, if each carries the same part.
    fn usable(&self, crossings: &[(usize, &'a Host, &'a Host)], is_allowed: &dyn Fn(&Path) -> bool) -> usize {
        let Some((_, first, _)) = crossings.first() else { return 1 };
        let mut rates: Vec<f64> = candidates(first, is_allowed)
            .iter()
            .map(|path| {
                let links = crossings
                    .iter()
                    .flat_map(|(_, from, to)| self.network.rack_links(from, to, Some(&path.name)));
                links.map(|link| self.network.left(link)).fold(f64::MAX, f64::min)
            })
            .collect();
        rates.sort_by(|one, other| other.total_cmp(one));
        let mut best = (1, 0.0);
        for (count, rate) in (1..=MOST_CHANNELS).zip(&rates) {
            // One more ring is worth a gain that can be seen.
            if count as f64 * rate > 1.01 * best.1 {
                best = (count, count as f64 * rate);
            }
        }
        best.0
    }

    /// Returns the path on which demand exceeds the rate least, and gives it to the flow.
    fn best(&mut self, flow: &Flow<'a>, is_allowed: &dyn Fn(&Path) -> bool) -> Option<&'a str> {
        let candidates = candidates(flow.from, is_allowed);
        // A flow takes what it gets: it wants as much as its fastest path has.
        let demand = candidates.iter().map(|path| path.rate).fold(0.0, f64::max);
        let excess = |link: Link<'a>| {
            let others = self.wanted.get(&link).map_or(0.0, |(wanted, _)| *wanted) + self.network.load(link);
            (others + demand) / self.network.rate(link).max(1.0)
        };
        let worst = |path: &'a Path| {
            let links = self.network.rack_links(flow.from, flow.to, Some(&path.name));
            links.into_iter().map(excess).fold(0.0, f64::max)
        };
        // The first of those that are equal: paths are in the order of preference.
        let (_, path) = candidates
            .into_iter()
            .map(|path| (worst(path), path))
            .reduce(|best, next| if next.0 < best.0 - 1e-9 { next } else { best })?;
        for link in self.network.rack_links(flow.from, flow.to, Some(&path.name)) {
            let (wanted, flows) = self.wanted.entry(link).or_default();
            *wanted += demand;
            *flows += 1;
        }
        Some(&path.name)
    }
}

/// Returns the paths of a host that are allowed; all where none is.
fn candidates<'a>(host: &'a Host, is_allowed: &dyn Fn(&Path) -> bool) -> Vec<&'a Path> {
    let allowed: Vec<&Path> = host.paths.iter().filter(|path| is_allowed(path)).collect();
    if allowed.is_empty() { host.paths.iter().collect() } else { allowed }
}

/// Returns the racks of a group.
fn racks<'a>(network: &Network<'a>, group: &Group) -> BTreeSet<&'a str> {
    places(network, group).into_values().map(|host| host.rack.as_str()).collect()
}

fn greatest_divisor(one: usize, other: usize) -> usize {
    if other == 0 { one } else { greatest_divisor(other, one % other) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Background;
    use crate::policies::tests::{Lab, check, rates};
    use crate::strategy::Strategy;
    use proptest::prelude::*;

    fn paths(strategy: &Strategy) -> Vec<BTreeSet<&str>> {
        strategy
            .channels
            .iter()
            .map(|channel| channel.paths.iter().flatten().map(String::as_str).collect())
            .collect()
    }

    #[test]
    fn two_groups_on_two_racks_have_a_spine_each() {
        let lab = Lab::racks(2, 2).spines(2).group("one", 4).group("other", 4);
        let made = strategies(&lab.cluster());
        assert_eq!(paths(&made["one"]), [BTreeSet::from(["spine0"])]);
        assert_eq!(paths(&made["other"]), [BTreeSet::from(["spine1"])]);
    }

    #[test]
    fn one_group_has_a_ring_on_each_spine_and_three_share_both() {
        let lab = Lab::racks(2, 2).spines(2).group("one", 8);
        assert_eq!(
            paths(&strategies(&lab.cluster())["one"]),
            [BTreeSet::from(["spine0"]), BTreeSet::from(["spine1"])]
        );
        let lab = Lab::racks(2, 2).spines(2).group("a", 4).group("b", 4).group("c", 4);
        let made = strategies(&lab.cluster());
        assert!(
            made.values().all(|strategy| strategy.channels.len() == 2),
            "with one ring each, two would share a spine"
        );
        let rates = rates(&lab, &made);
        assert!(rates.values().all(|rate| (rate / rates["a"] - 1.0).abs() < 1e-9), "{rates:?}");
    }

    #[test]
    fn a_group_within_a_rack_has_one_ring_without_paths() {
        let lab = Lab::racks(1, 4).spines(2).group("one", 4);
        let made = &strategies(&lab.cluster())["one"];
        assert_eq!((made.channels.len(), paths(made)), (1, vec![BTreeSet::new()]));
    }

    #[test]
    fn a_loaded_path_is_left() {
        let mut lab = Lab::racks(2, 2).spines(2).group("one", 4);
        let load = |rack: &str| Background {
            from: Some(rack.into()),
            path: Some("spine0".into()),
            rate: 0.75 * 6.25e9,
            ..Background::default()
        };
        lab.background = vec![load("rack0"), load("rack1")];
        assert_eq!(paths(&strategies(&lab.cluster())["one"]), [BTreeSet::from(["spine1"])]);
    }

    #[test]
    fn a_slow_path_is_no_way_out_of_a_fast_one() {
        let mut lab = Lab::racks(2, 1).spines(2).group("a", 2).group("b", 2);
        lab.hosts.iter_mut().for_each(|host| host.paths[1].rate = 0.05 * host.paths[0].rate);
        let made = strategies(&lab.cluster());
        assert!(made.values().all(|strategy| paths(strategy) == [BTreeSet::from(["spine0"])]), "{made:?}");
    }

    proptest! {
        #[test]
        fn strategies_are_valid_and_the_same_each_time(lab in Lab::any()) {
            let made = strategies(&lab.cluster());
            prop_assert_eq!(made.len(), lab.groups.len());
            check(&lab, &made)?;
            let mut turned = lab.clone();
            turned.groups.reverse();
            prop_assert_eq!(&strategies(&turned.cluster()), &made);
        }

        /// Equal groups on the same hosts get within 5 % of each other, and none less than an even part of all paths.
        #[test]
        fn equal_groups_get_alike(spines in 1usize..=4, groups in 1usize..=6, racks in 2usize..=4) {
            let lab = (0..groups).fold(Lab::racks(racks, 2).spines(spines), |lab, number| {
                lab.group(&format!("group{number}"), 2 * racks)
            });
            let rates = rates(&lab, &strategies(&lab.cluster()));
            let least = rates.values().copied().fold(f64::MAX, f64::min);
            let most = rates.values().copied().fold(0.0, f64::max);
            prop_assert!(most <= 1.05 * least, "{rates:?}");
            let even = 6.25e9 * spines as f64 / groups as f64;
            prop_assert!((least / even - 1.0).abs() < 1e-6, "{least} of {even}");
        }
    }
}
