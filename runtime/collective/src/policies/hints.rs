//! Weighted trees or rings by hints of the loads of links.
//!
//! | hints | strategy |
//! |---|---|
//! | none that are fresh | as of [`ffa`] |
//! | older when they are used than the network stays as it is | by hosts, racks and the rates of their paths |
//! | otherwise | by what one more flow would get on each link |
//!
//! Which row applies is [decided](Loads::decision) by who keeps the hints, with the delays that it has measured.
//!
//! All-reduces go by the quickest of the rings of [`ffa`] and others that cross each rack once, in both directions, or by the weighted trees of
//! [`tidemill_hints::schedule`] where those are quicker, as [`cost`](crate::cost) has it. Broadcasts go by weighted trees from the
//! lowest rank where those are quicker than the ring; from other ranks they go by the same trees. All other operations go by the ring.
//!
//! ```
//! use tidemill_collective::cost::Network;
//! use tidemill_collective::policies::{Cluster, hints};
//! use tidemill_collective::topology::{Group, Host, Loads};
//! use tidemill_hints::staleness::{Choice, Decision};
//! let names = ["a", "b", "c", "d"];
//! let hosts = names.map(|name| Host { name: name.into(), ..Host::default() });
//! let ranks = (0..).zip(names.map(String::from)).collect();
//! let groups = [Group { name: "training".into(), ranks, ..Group::default() }];
//! // Others fill most of the link of c in both directions.
//! let mut rates = vec![1.25e9; 10];
//! (rates[4], rates[5]) = (2e8, 2e8);
//! let tree = names.map(|name| (name.to_owned(), String::new())).to_vec();
//! let decision = Decision { choice: Choice::Loads, reason: "the network does not change".to_owned() };
//! let loads = Loads { tree, rates, decision };
//! let network = Network { hosts: &hosts, ..Network::default() };
//! let chosen = hints::choose(&Cluster { network, groups: &groups, loads: Some(&loads), ..Cluster::default() });
//! let trees = chosen["training"].strategy.all_reduce.as_ref().expect("a ring would load c as much as the others");
//! let serves = |rank| trees.trees.iter().flat_map(|tree| &tree.edges).filter(|(one, other)| [*one, *other].contains(&rank)).count();
//! assert_eq!(serves(2), trees.trees.len(), "c is a leaf of each tree");
//! ```
use super::{Chosen, Cluster, ffa, locality, one_ring, sized};
use crate::cost::{ALL_REDUCE, EXAMPLE, Link, Network, places, time};
use crate::operation::Operation;
use crate::strategy::{Strategy, Tree, Trees};
use crate::topology::{Group, Loads};
use std::collections::BTreeMap;
use tidemill_hints::schedule::{self, Goal, Part, Schedule};
use tidemill_hints::staleness::Choice;
use tidemill_hints::tree::{Direction, Link as Hinted, Tree as Racks};

/// Most trees of one kind, which fit beside the channels of ffa. Each has connections of its own.
const MOST_TREES: usize = 24;
/// The part of the time of a ring that trees may take at most.
const WORTH: f64 = 0.95;

/// Makes the strategy of each group, and says why.
pub fn choose(cluster: &Cluster<'_>) -> BTreeMap<String, Chosen> {
    let mut usual = ffa::strategies(cluster);
    let mut chosen = BTreeMap::new();
    for group in cluster.groups {
        let Some(strategy) = usual.remove(&group.name) else { continue };
        let hinted = hinted(cluster, group, &strategy);
        let made = hinted.unwrap_or_else(|why| Chosen { strategy, why: format!("as ffa: {why}") });
        chosen.insert(group.name.clone(), made);
    }
    chosen
}

/// Returns whether loads tell how long operations take now.
pub(crate) fn are_fresh(loads: &Loads) -> bool {
    loads.decision.choice == Choice::Loads
}

/// Returns the strategy of a group by hints, or why there is none.
fn hinted(cluster: &Cluster<'_>, group: &Group, usual: &Strategy) -> Result<Chosen, String> {
    let loads = cluster.loads.ok_or("nobody has hints of loads")?;
    let decision = &loads.decision;
    if decision.choice == Choice::Defaults {
        return Err(decision.reason.clone());
    }
    let hosts = Hosts::of(&cluster.network, group);
    if hosts.ranks.len() < 2 {
        return Err("all ranks are on one host".to_owned());
    }
    let is_loaded = decision.choice == Choice::Loads;
    let rates = if is_loaded { hosts.hinted(loads)? } else { hosts.idle(&cluster.network) };
    let network = Network { loads: is_loaded.then_some(loads), ..cluster.network };
    let seconds =
        |strategy: &Strategy, operation| time(&network, group, strategy, operation, EXAMPLE, &[]).seconds;
    let root = Operation::Broadcast { root: hosts.ranks[0][0] };
    let failed = |error: schedule::ScheduleError| error.to_string();
    let mut rings = vec![locality::ring(&network, group)];
    let ring = schedule::ring(&hosts.racks, &rates, 0).map_err(failed)?.order;
    rings.push(ring.iter().flat_map(|host| &hosts.ranks[*host]).copied().collect());
    rings.push(rings[1].iter().rev().copied().collect());
    // The first of those that are equal: only that of ffa has paths.
    let rings = rings.into_iter().map(|ring| one_ring(&network, group, ring));
    let timed = std::iter::once(usual.clone())
        .chain(rings)
        .map(|strategy| (seconds(&strategy, ALL_REDUCE), strategy));
    let (around, mut strategy) = timed
        .reduce(|best, next| if next.0 < best.0 { next } else { best })
        .ok_or("the group has no ring")?;

    let planned = |goal| schedule::schedule(&hosts.racks, &rates, goal).map_err(failed);
    let reducing = hosts.trees(planned(Goal::AllReduce)?);
    let count = reducing.trees.len();
    let by_trees = Strategy { all_reduce: Some(reducing), ..strategy.clone() };
    let up_and_down = seconds(&by_trees, ALL_REDUCE);
    let how = if up_and_down < WORTH * around {
        strategy = by_trees;
        format!("all-reduces by {count} trees, {:.1} times as quick as the best ring", around / up_and_down)
    } else {
        format!("all-reduces by a ring, {:.1} times as quick as {count} trees", up_and_down / around)
    };
    let spreading = hosts.trees(planned(Goal::Broadcast { root: 0 })?);
    let spread = Strategy { broadcast: Some(spreading), ..strategy.clone() };
    let along = Strategy { broadcast: None, ..strategy.clone() };
    if seconds(&spread, root) < WORTH * seconds(&along, root) {
        strategy = spread;
    }
    let strategy = sized(&network, group, strategy);
    Ok(Chosen { strategy, why: format!("{decision}; {how}") })
}

/// The hosts of a group, in the order of their lowest ranks.
struct Hosts<'a> {
    names: Vec<(&'a str, &'a str)>,
    /// The ranks of each, ascending.
    ranks: Vec<Vec<u32>>,
    racks: Racks,
}

impl<'a> Hosts<'a> {
    fn of(network: &Network<'a>, group: &Group) -> Self {
        let (mut names, mut ranks) = (Vec::new(), Vec::<Vec<u32>>::new());
        for (rank, host) in places(network, group) {
            let name = (host.name.as_str(), host.rack.as_str());
            match names.iter().position(|known| *known == name) {
                Some(at) => ranks[at].push(rank),
                None => {
                    names.push(name);
                    ranks.push(vec![rank]);
                }
            }
        }
        let racks: Vec<&str> = names.iter().map(|(_, rack)| *rack).collect();
        Self { racks: Racks::of(&racks), names, ranks }
    }

    /// The rates of the links between them, by the tree of these hosts.
    fn rates(&self, of: impl Fn(Hinted) -> Option<f64>) -> Option<Vec<f64>> {
        (0..self.racks.links()).map(|id| of(self.racks.link(id)?)).collect()
    }

    /// The first host of a rack.
    fn first(&self, rack: usize) -> Option<usize> {
        self.racks.racks().get(rack)?.first().copied()
    }

    /// Rates that one more flow would get.
    fn hinted(&self, loads: &Loads) -> Result<Vec<f64>, String> {
        let known: Vec<&str> = loads.tree.iter().map(|(_, rack)| rack.as_str()).collect();
        let tree = Racks::of(&known);
        let place = |name: &str| loads.tree.iter().position(|(host, _)| host == name);
        if let Some((name, _)) = self.names.iter().find(|(name, _)| place(name).is_none()) {
            return Err(format!("there are no hints of host {name}"));
        }
        let rates = self.rates(|link| {
            let link = match link {
                Hinted::Machine(host, way) => Hinted::Machine(place(self.names.get(host)?.0)?, way),
                Hinted::Rack(rack, way) => {
                    Hinted::Rack(tree.rack_of(place(self.names.get(self.first(rack)?)?.0)?), way)
                }
            };
            loads.rates.get(tree.id(link)).copied()
        });
        rates.ok_or_else(|| "the hints have too few rates".to_owned())
    }

    /// Rates of links without other users.
    fn idle(&self, network: &Network<'_>) -> Vec<f64> {
        let network = Network { loads: None, background: &[], ..*network };
        let rates = self.rates(|link| match link {
            Hinted::Machine(host, way) => {
                let (name, _) = *self.names.get(host)?;
                Some(network.rate(match way {
                    Direction::Up => Link::HostOut(name),
                    Direction::Down => Link::HostIn(name),
                }))
            }
            Hinted::Rack(rack, way) => {
                let (_, rack) = *self.names.get(self.first(rack)?)?;
                let link = |path| match way {
                    Direction::Up => Link::RackOut(rack, path),
                    Direction::Down => Link::RackIn(rack, path),
                };
                let mut paths: BTreeMap<&str, f64> = BTreeMap::new();
                for host in network.hosts.iter().filter(|host| host.rack == rack) {
                    for path in &host.paths {
                        paths.insert(&path.name, network.rate(link(&path.name)));
                    }
                }
                Some(if paths.is_empty() { network.rate(link("")) } else { paths.values().sum() })
            }
        });
        rates.unwrap_or_default()
    }

    /// The trees of ranks: the lowest rank of a host speaks for it, and the others hang on that one. The heaviest ones, if there are
    /// too many.
    fn trees(&self, schedule: Schedule) -> Trees {
        let mut parts = schedule.parts;
        parts.sort_by(|one, other| other.weight.total_cmp(&one.weight));
        parts.truncate(MOST_TREES);
        let tree = |part: Part| {
            let mut edges: Vec<(u32, u32)> =
                part.edges.iter().map(|(one, other)| (self.ranks[*one][0], self.ranks[*other][0])).collect();
            for ranks in &self.ranks {
                edges.extend(ranks[1..].iter().map(|rank| (ranks[0], *rank)));
            }
            Tree { edges, weight: (part.weight * 1e6).round().max(1.0) as u32 }
        };
        Trees { trees: parts.into_iter().map(tree).collect(), most: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::tests::Lab;
    use crate::strategy::Strategy;
    use proptest::prelude::*;
    use tidemill_hints::staleness::Decision;
    use tidemill_random::Random;

    /// Loads of all hosts of a lab.
    fn loads(lab: &Lab, rate: impl FnMut(usize) -> f64) -> Loads {
        let tree: Vec<(String, String)> =
            lab.hosts.iter().map(|host| (host.name.clone(), host.rack.clone())).collect();
        let racks: Vec<&String> = tree.iter().map(|(_, rack)| rack).collect();
        let rates = (0..Racks::of(&racks).links()).map(rate).collect();
        Loads { tree, rates, decision: decision(Choice::Loads) }
    }

    fn decision(choice: Choice) -> Decision {
        Decision { choice, reason: "somebody has looked".to_owned() }
    }

    fn chosen(lab: &Lab) -> Chosen {
        choose(&lab.cluster())["one"].clone()
    }

    #[test]
    fn without_hints_it_is_ffa_and_says_so() {
        let mut lab = Lab::racks(2, 2).spines(2).group("one", 4);
        let usual = ffa::strategies(&lab.cluster())["one"].clone();
        let as_usual = |lab: &Lab, why: &str| {
            let chosen = chosen(lab);
            assert_eq!(chosen.strategy, usual);
            assert!(chosen.why.starts_with("as ffa: ") && chosen.why.contains(why), "{}", chosen.why);
        };
        as_usual(&lab, "nobody has hints");
        let known = loads(&lab, |_| 1e9);
        lab.loads = Some(Loads { decision: Decision::defaults("the leader is gone"), ..known.clone() });
        as_usual(&lab, "the leader is gone");
        lab.loads = Some(Loads { tree: known.tree[..3].to_vec(), ..known.clone() });
        as_usual(&lab, "no hints of host host3");
        lab.loads = Some(Loads { rates: known.rates[..3].to_vec(), ..known.clone() });
        as_usual(&lab, "too few rates");
        lab.loads = Some(Loads { rates: vec![f64::NAN; known.rates.len()], ..known });
        as_usual(&lab, "rates must be numbers");
        let alone = Lab::racks(1, 1).group("one", 4);
        let loads = Some(loads(&alone, |_| 1e9));
        assert!(chosen(&Lab { loads, ..alone }).why.contains("one host"));
    }

    #[test]
    fn stale_hints_are_not_used() {
        let mut lab = Lab::racks(2, 2).group("one", 4);
        // Up of host 3.
        let loaded = loads(&lab, |id| if id == 6 { 1e8 } else { 12.5e9 });
        lab.loads = Some(Loads { decision: decision(Choice::Topology), ..loaded.clone() });
        let stale = chosen(&lab);
        assert!(stale.why.starts_with("topology only: somebody has looked; "), "{}", stale.why);
        lab.loads = Some(Loads { rates: vec![12.5e9; loaded.rates.len()], ..lab.loads.unwrap() });
        assert_eq!(chosen(&lab).strategy, stale.strategy, "loads do not matter");
        lab.loads = Some(loaded);
        let fresh = chosen(&lab);
        assert!(fresh.why.starts_with("topology and loads: "), "{}", fresh.why);
        assert_ne!(fresh.strategy.all_reduce, stale.strategy.all_reduce);
    }

    #[test]
    fn a_slow_host_combines_nothing() {
        let mut lab = Lab::racks(2, 3).group("one", 6);
        // Both directions of host 4.
        lab.loads = Some(loads(&lab, |id| if id == 8 || id == 9 { 1e9 } else { 12.5e9 }));
        let chosen = chosen(&lab);
        let trees = chosen.strategy.all_reduce.as_ref().unwrap();
        for tree in &trees.trees {
            let at = tree.edges.iter().filter(|(one, other)| [*one, *other].contains(&4)).count();
            assert_eq!(at, 1, "{tree:?}");
        }
        assert!(chosen.why.contains("times as quick as the best ring"), "{}", chosen.why);
        let network = Network { loads: lab.loads.as_ref(), ..lab.network() };
        let seconds = |strategy: &Strategy| {
            time(&network, &lab.groups[0], strategy, ALL_REDUCE, EXAMPLE, &[]).on_slowest
        };
        let ring = Strategy { all_reduce: None, ..chosen.strategy.clone() };
        // Its link takes the buffer once each way by trees, and 2 (n - 1) / n times by a ring.
        assert!((seconds(&ring) / seconds(&chosen.strategy) - 10.0 / 6.0).abs() < 0.01);
    }

    #[test]
    fn an_even_network_keeps_its_ring() {
        let mut lab = Lab::racks(1, 4).group("one", 4);
        lab.loads = Some(loads(&lab, |_| 12.5e9));
        let chosen = chosen(&lab);
        assert_eq!(chosen.strategy.all_reduce, None, "{}", chosen.why);
        assert!(chosen.why.contains("all-reduces by a ring"), "{}", chosen.why);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Of any loads strategies are valid, and no slower than those of ffa by the same loads.
        #[test]
        fn strategies_are_valid_and_no_slower(lab in Lab::any(), seed in any::<u64>(), is_used in any::<bool>()) {
            let random = &mut Random::of_seed(seed);
            let mut loaded = loads(&lab, |_| 1e8 + random.below(1000) as f64 * 1e7);
            loaded.decision = decision(if is_used { Choice::Loads } else { Choice::Topology });
            let lab = Lab { loads: Some(loaded), ..lab };
            let chosen = choose(&lab.cluster());
            let network = Network { loads: lab.loads.as_ref(), ..lab.network() };
            let usual = ffa::strategies(&lab.cluster());
            for group in &lab.groups {
                let made = &chosen[&group.name].strategy;
                prop_assert_eq!(made.check(), Ok(()));
                let seconds = |strategy| time(&network, group, strategy, ALL_REDUCE, EXAMPLE, &[]).seconds;
                prop_assert!(!is_used || seconds(made) <= 1.0001 * seconds(&usual[&group.name]));
            }
        }
    }
}
