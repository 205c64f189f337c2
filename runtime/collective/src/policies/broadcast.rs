//! The tree of broadcasts that are too large for the mesh and too small for a ring.
//!
//! Along a ring each piece takes as many steps as there are ranks, but each link takes it once. In a tree it takes few steps, and a
//! rank sends it to two others. So a tree is for sizes at which steps count more than bytes: the [model](crate::cost) says up to which.
//! The tree enters each rack once and each host once. Hosts of a rack have two others of it below them, and so have racks; a rack is
//! passed on to by its first host or by its last ones, whichever is quicker.
use crate::cost::{Network, places, time};
use crate::operation::Operation;
use crate::strategy::{Strategy, Tree, Trees};
use crate::topology::Group;
use std::collections::BTreeSet;

/// Sizes that are compared, as powers of two.
pub(super) const SIZES: std::ops::RangeInclusive<u32> = 12..=30;
/// The size by which trees are compared with each other.
pub(super) const TYPICAL: f64 = (1 << 20) as f64;
/// The part of the time of a ring that a tree may take at most: less is not worth its connections.
pub(super) const WORTH: f64 = 0.95;

/// Ranks of a host.
type Ranks = Vec<u32>;

/// Returns the tree, and up to which size it is quicker than the rings. None: it never is, or the paths between racks are chosen
/// for the rings.
pub(super) fn tree(network: &Network<'_>, group: &Group, strategy: &Strategy) -> Option<Trees> {
    let root = *strategy.members.first()?;
    let seconds = |strategy: &Strategy, bytes| {
        time(network, group, strategy, Operation::Broadcast { root }, bytes, &[]).seconds
    };
    let with =
        |tree| Strategy { broadcast: Some(Trees { trees: vec![tree], most: None }), ..strategy.clone() };
    let [first, last] = candidates(network, group, strategy)?.map(with);
    let best = if seconds(&last, TYPICAL) < seconds(&first, TYPICAL) { last } else { first };
    let pays = |bytes: f64| seconds(&best, bytes) < WORTH * seconds(strategy, bytes);
    let sizes: Vec<u64> = SIZES.map(|size| 1 << size).filter(|bytes| *bytes > strategy.small).collect();
    // A tree that pays for a size pays for those below it.
    let most = *sizes[..sizes.partition_point(|bytes| pays(*bytes as f64))].last()?;
    let trees = best.broadcast?.trees;
    Some(Trees { trees, most: (most < 1_u64 << SIZES.end()).then_some(most) })
}

/// Returns the trees that hang on the first member. None: the paths between racks are chosen for the rings, or there is one host.
pub(super) fn candidates(network: &Network<'_>, group: &Group, strategy: &Strategy) -> Option<[Tree; 2]> {
    let ring = &strategy.channels.first()?.ring;
    let root = *strategy.members.first()?;
    let has_paths = strategy.channels.iter().any(|channel| channel.paths.iter().any(Option::is_some));
    let hosts: BTreeSet<&str> = group.ranks.iter().map(|(_, host)| host.as_str()).collect();
    if has_paths || hosts.len() < 2 {
        return None;
    }
    let begin = ring.iter().position(|rank| *rank == root)?;
    let racks = racks(network, group, ring.iter().cycle().skip(begin).take(ring.len()))?;
    Some([false, true].map(|from_last| Tree { edges: edges(&racks, from_last), weight: 1 }))
}

/// Returns ranks by racks and hosts, each in the order of its first rank. None: a host is unknown.
fn racks<'r>(
    network: &Network<'_>,
    group: &Group,
    ranks: impl Iterator<Item = &'r u32>,
) -> Option<Vec<Vec<Ranks>>> {
    let places = places(network, group);
    let mut racks: Vec<(&str, Vec<(&str, Ranks)>)> = Vec::new();
    for rank in ranks {
        let host = *places.get(rank)?;
        let hosts = entry(&mut racks, &host.rack);
        entry(hosts, &host.name).push(*rank);
    }
    let ranks = |(_, hosts): (&str, Vec<(&str, Ranks)>)| hosts.into_iter().map(|(_, ranks)| ranks).collect();
    Some(racks.into_iter().map(ranks).collect())
}

/// The value of a key, in the order in which keys came.
fn entry<'e, 'k, T: Default>(list: &'e mut Vec<(&'k str, T)>, key: &'k str) -> &'e mut T {
    let at = list.iter().position(|(known, _)| *known == key).unwrap_or_else(|| {
        list.push((key, T::default()));
        list.len() - 1
    });
    &mut list[at].1
}

/// Returns the edges: those between racks first, since they have most below them. Each list has someone.
fn edges(racks: &[Vec<Ranks>], from_last: bool) -> Vec<(u32, u32)> {
    let above = |at: usize| (at - 1) / 2;
    let mut edges = Vec::new();
    for at in 1..racks.len() {
        let hosts = &racks[above(at)];
        let gate = if from_last { hosts.len().saturating_sub(1 + at % 2) } else { 0 };
        edges.push((hosts[gate][0], racks[at][0][0]));
    }
    for hosts in racks {
        edges.extend((1..hosts.len()).map(|at| (hosts[above(at)][0], hosts[at][0])));
    }
    for ranks in racks.iter().flatten() {
        edges.extend((1..ranks.len()).map(|at| (ranks[above(at)], ranks[at])));
    }
    edges
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Facts;
    use crate::policies::locality;
    use crate::policies::tests::Lab;

    fn made(lab: &Lab) -> Strategy {
        locality::strategies(&lab.cluster(), false)["one"].clone()
    }

    #[test]
    fn twenty_hosts_in_two_racks_cross_between_them_once() {
        let mut lab = Lab::racks(2, 10).group("one", 20);
        lab.facts = Facts::default();
        let strategy = made(&lab);
        let trees = strategy.broadcast.as_ref().unwrap();
        assert_eq!(strategy.check(), Ok(()));
        let rack = |rank: u32| rank / 10;
        let crossing = trees.trees[0].edges.iter().filter(|(one, other)| rack(*one) != rack(*other));
        assert_eq!(crossing.count(), 1);
        let most = trees.most.unwrap() as f64;
        let seconds = |strategy: &Strategy, bytes: f64| {
            let root = Operation::Broadcast { root: 0 };
            time(&lab.network(), &lab.groups[0], strategy, root, bytes, &[]).seconds
        };
        let ring = Strategy { broadcast: None, ..strategy.clone() };
        let tree = Strategy { broadcast: Some(Trees { most: None, ..trees.clone() }), ..strategy.clone() };
        assert!(seconds(&tree, most) < seconds(&ring, most));
        assert!(seconds(&tree, 4.0 * most) > WORTH * seconds(&ring, 4.0 * most), "beyond, bytes count");
        assert!(most > 1.0e6 && most < 64.0e6, "{most}");
        assert_eq!(seconds(&strategy, 2.0 * most), seconds(&ring, 2.0 * most));
    }

    #[test]
    fn few_ranks_and_ranks_of_one_host_have_none() {
        assert_eq!(made(&Lab::racks(2, 1).group("one", 2)).broadcast, None);
        assert_eq!(made(&Lab::racks(1, 1).group("one", 9)).broadcast, None);
    }

    #[test]
    fn a_ring_that_crosses_between_racks_often_is_for_no_broadcast() {
        let mut lab = Lab::racks(2, 8).group("one", 0);
        // Neighbouring ranks are in different racks.
        lab.groups[0].ranks =
            (0..16).map(|rank| (rank, format!("host{}", rank / 2 + rank % 2 * 8))).collect();
        let strategy = &crate::policies::rank_order::strategies(&lab.cluster())["one"];
        assert_eq!(strategy.broadcast.as_ref().map(|trees| trees.most), Some(None));
        assert!(made(&lab).broadcast.is_some_and(|trees| trees.most.is_some()));
    }

    #[test]
    fn racks_are_passed_on_to_by_hosts_that_have_time() {
        let racks = [vec![vec![0, 9], vec![1], vec![2]], vec![vec![3]], vec![vec![4]]];
        assert_eq!(edges(&racks, false), [(0, 3), (0, 4), (0, 1), (0, 2), (0, 9)]);
        assert_eq!(edges(&racks, true), [(1, 3), (2, 4), (0, 1), (0, 2), (0, 9)]);
    }
}
