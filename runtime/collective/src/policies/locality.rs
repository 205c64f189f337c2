//! Rings that enter and leave each rack once: ranks of a host together, hosts of a rack together, racks of a pod together.
//!
//! A ring over r racks cannot cross between racks less often than r times. Of its two directions, it takes the one that the
//! traffic of others leaves faster.
//!
//! ```
//! use tidemill_collective::cost::Network;
//! use tidemill_collective::policies::locality;
//! use tidemill_collective::topology::{Group, Host};
//! let hosts = [("a", "x"), ("b", "y"), ("c", "x"), ("d", "y")]
//!     .map(|(name, rack)| Host { name: name.into(), rack: rack.into(), ..Host::default() });
//! let ranks = ["a", "b", "c", "d"].into_iter().map(str::to_owned);
//! let group = Group { ranks: (0..).zip(ranks).collect(), ..Group::default() };
//! assert_eq!(locality::ring(&Network { hosts: &hosts, ..Network::default() }, &group), [0, 2, 1, 3]);
//! ```
use super::{Cluster, one_ring};
use crate::cost::{Network, places, time};
use crate::element::Reduction;
use crate::operation::Operation;
use crate::strategy::Strategy;
use crate::topology::Group;
use std::collections::BTreeMap;

/// Makes the strategy of each group.
pub fn strategies(cluster: &Cluster<'_>, reversed: bool) -> BTreeMap<String, Strategy> {
    let network = &cluster.network;
    let of = |group| {
        let ring = if reversed { turned(chain(network, group)) } else { ring(network, group) };
        one_ring(network, group, ring)
    };
    cluster.groups.iter().map(|group| (group.name.clone(), of(group))).collect()
}

/// Returns the ring of a group, in the direction that takes less time.
pub fn ring(network: &Network<'_>, group: &Group) -> Vec<u32> {
    let forward = chain(network, group);
    if network.background.is_empty() && network.loads.is_none() {
        return forward;
    }
    let back = turned(forward.clone());
    let seconds = |ring: &[u32]| {
        let strategy = one_ring(network, group, ring.to_vec());
        time(network, group, &strategy, Operation::AllReduce { reduction: Reduction::Sum }, 1e9, &[]).seconds
    };
    if seconds(&back) < seconds(&forward) { back } else { forward }
}

/// Returns the ranks by pod, rack and host, each in the order of its lowest rank.
fn chain(network: &Network<'_>, group: &Group) -> Vec<u32> {
    let places = places(network, group);
    let (mut pods, mut racks, mut hosts) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    let mut pod_of_rack = BTreeMap::new();
    // Ranks come in ascending order, so what is inserted first is the lowest.
    for (rank, host) in &places {
        hosts.entry(host.name.as_str()).or_insert(*rank);
        racks.entry(host.rack.as_str()).or_insert(*rank);
        let pod = *pod_of_rack.entry(host.rack.as_str()).or_insert(host.pod.as_str());
        pods.entry(pod).or_insert(*rank);
    }
    let mut chain: Vec<u32> = places.keys().copied().collect();
    chain.sort_by_key(|rank| {
        let host = places[rank];
        let rack = host.rack.as_str();
        (pods[pod_of_rack[rack]], racks[rack], hosts[host.name.as_str()], *rank)
    });
    chain
}

/// Returns the same ring in the other direction, from the same rank on.
fn turned(mut ring: Vec<u32>) -> Vec<u32> {
    ring.reverse();
    ring.rotate_right(1);
    ring
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Background;
    use crate::policies::tests::{Lab, crossings};
    use crate::strategy::Strategy;
    use proptest::prelude::*;
    use tidemill_random::Random;

    #[test]
    fn racks_of_a_pod_are_neighbours() {
        let mut lab = Lab::racks(4, 1);
        for (number, host) in lab.hosts.iter_mut().enumerate() {
            host.pod = format!("pod{}", number % 2);
        }
        let lab = lab.group("one", 4);
        assert_eq!(ring(&lab.network(), &lab.groups[0]), [0, 2, 1, 3]);
    }

    #[test]
    fn a_loaded_way_turns_the_ring_around() {
        // Four racks in a ring of their own, of 100 Gbit/s; others send 75 Gbit/s from the second rack to the third one.
        let mut lab = Lab::racks(4, 1).group("one", 8);
        lab.facts.host_rate = 12.5e9;
        let all_reduce = Operation::AllReduce { reduction: Reduction::Sum };
        let bandwidth = |lab: &Lab, strategy: &Strategy| {
            1e9 / time(&lab.network(), &lab.groups[0], strategy, all_reduce, 1e9, &[]).on_slowest
        };
        let before = strategies(&lab.cluster(), false)["one"].clone();
        assert_eq!(before.channels[0].ring, [0, 4, 1, 5, 2, 6, 3, 7]);
        let free = bandwidth(&lab, &before);
        lab.background = vec![Background {
            from: Some("rack1".into()),
            to: Some("rack2".into()),
            path: None,
            rate: 9.375e9,
        }];
        let loaded = bandwidth(&lab, &before) / free;
        assert!((0.24..0.36).contains(&loaded), "{loaded} of the bandwidth is left");
        let after = strategies(&lab.cluster(), false)["one"].clone();
        assert_eq!(after.channels[0].ring, [0, 7, 3, 6, 2, 5, 1, 4]);
        assert!(bandwidth(&lab, &after) > 0.95 * free);
        assert_eq!(strategies(&lab.cluster(), true)["one"].channels, after.channels);
    }

    #[test]
    fn random_rings_cross_as_often_as_the_closed_form_says() {
        let mut random = Random::of_seed(43);
        for (per_rack, hosts) in [(2usize, 4usize), (2, 8), (2, 16), (4, 8), (4, 16), (4, 32)] {
            let lab = Lab::racks(hosts / per_rack, per_rack).group("one", hosts);
            let places = places(&lab.network(), &lab.groups[0]).into_values().collect::<Vec<_>>();
            let trials = 20_000;
            let mut crossed = 0;
            let mut ring: Vec<usize> = (0..hosts).collect();
            for _ in 0..trials {
                for at in (1..hosts).rev() {
                    ring.swap(at, random.below(at + 1));
                }
                crossed += (0..hosts)
                    .filter(|at| places[ring[*at]].rack != places[ring[(at + 1) % hosts]].rack)
                    .count();
            }
            let racks = (hosts / per_rack) as f64;
            let measured = f64::from(crossed as u32) / f64::from(trials) / racks;
            let h = per_rack as f64;
            let expected = h * (1.0 - (h - 1.0) / (hosts as f64 - 1.0));
            assert!(
                (measured / expected - 1.0).abs() < 0.01,
                "{per_rack} of {hosts}: {measured} for {expected}"
            );
        }
    }

    proptest! {
        #[test]
        fn a_ring_crosses_between_racks_once_per_rack(lab in Lab::any()) {
            for group in &lab.groups {
                let ring = ring(&lab.network(), group);
                let places = places(&lab.network(), group);
                let racks: std::collections::BTreeSet<_> = places.values().map(|host| &host.rack).collect();
                let expected = if racks.len() < 2 { 0 } else { racks.len() };
                prop_assert_eq!(crossings(&lab, group, &ring), expected);
                let turned = turned(ring.clone());
                prop_assert_eq!(crossings(&lab, group, &turned), expected);
                prop_assert_eq!(turned.first(), ring.first());
            }
        }
    }
}
