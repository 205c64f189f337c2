use super::*;
use crate::element::Reduction;
use crate::policies::tests::Lab;
use crate::policies::{Policy, ffa, rank_order};
use crate::strategy::Trees;

const ALL_REDUCE: Operation = Operation::AllReduce { reduction: Reduction::Sum };

#[test]
fn bytes_over_each_link_are_those_of_the_table() {
    let lab = Lab::racks(2, 2).group("one", 4);
    let strategy = &rank_order::strategies(&lab.cluster())["one"];
    let over = |operation| {
        let bytes = bytes(&lab.network(), &lab.groups[0], strategy, operation, 1e9);
        [
            Link::HostOut("host0"),
            Link::HostIn("host0"),
            Link::RackOut("rack0", ""),
            Link::Between("rack1", "rack0", ""),
        ]
        .map(|link| bytes.get(&link).copied().unwrap_or(0.0))
    };
    assert_eq!(over(ALL_REDUCE), [1.5, 1.5, 1.5, 1.5]);
    assert_eq!(over(Operation::AllGather), [0.75, 0.75, 0.75, 0.75]);
    // From rank 3 on around the ring, and not back to it.
    assert_eq!(over(Operation::Broadcast { root: 3 }), [1.0, 1.0, 1.0, 1.0]);
    assert_eq!(over(Operation::Broadcast { root: 0 }), [1.0, 0.0, 1.0, 0.0]);
    // Each of two hosts to each of two.
    assert_eq!(over(Operation::AllToAll), [0.75, 0.75, 1.0, 1.0]);
}

#[test]
fn a_path_that_the_system_chooses_is_counted_in_part() {
    let lab = Lab::racks(2, 1).spines(2).group("one", 2);
    let strategy = &rank_order::strategies(&lab.cluster())["one"];
    let bytes = bytes(&lab.network(), &lab.groups[0], strategy, ALL_REDUCE, 1e9);
    assert_eq!(bytes[&Link::RackOut("rack0", "spine0")], 0.5);
    assert_eq!(bytes[&Link::HostOut("host0")], 1.0);
}

#[test]
fn time_is_that_of_the_slowest_link_and_the_steps() {
    let lab = Lab::racks(2, 2).spines(2).group("one", 4).group("other", 4);
    let made = ffa::strategies(&lab.cluster());
    let (one, other) = (&lab.groups[0], &lab.groups[1]);
    let alone = time(&lab.network(), one, &made["one"], ALL_REDUCE, 1e9, &[]);
    assert!(matches!(
        alone.slowest,
        Some(Link::RackOut(_, "spine0") | Link::RackIn(_, "spine0") | Link::Between(_, _, "spine0"))
    ));
    assert_eq!((alone.steps, alone.on_slowest), (6, 1.5e9 / 6.25e9));
    assert!((alone.seconds - alone.on_slowest - 6.0 * 50e-6).abs() < 1e-12);
    // The other group has the other spine, and half of each link of a host, which is as much.
    let beside = time(&lab.network(), one, &made["one"], ALL_REDUCE, 1e9, &[(other, &made["other"])]);
    assert!((beside.on_slowest / alone.on_slowest - 1.0).abs() < 1e-9);
    let same = time(&lab.network(), one, &made["one"], ALL_REDUCE, 1e9, &[(other, &made["one"])]);
    assert!((same.on_slowest / alone.on_slowest - 2.0).abs() < 1e-9);
}

#[test]
fn locality_is_faster_than_the_order_of_ranks_by_as_much_as_it_crosses_less() {
    let mut lab = Lab::racks(2, 2).group("one", 0);
    // Neighbouring ranks are in different racks.
    lab.groups[0].ranks =
        [0, 2, 1, 3].into_iter().zip(0..).map(|(host, rank)| (rank, format!("host{host}"))).collect();
    let took = |policy: &str| {
        let strategies = policy.parse::<Policy>().unwrap().strategies(&lab.cluster()).unwrap();
        time(&lab.network(), &lab.groups[0], &strategies["one"], ALL_REDUCE, 1e9, &[]).on_slowest
    };
    assert!((took("rank-order") / took("locality") - 2.0).abs() < 1e-9);
}

#[test]
fn sizes_follow_from_links() {
    let sizes = |change: fn(&mut Lab)| {
        let mut lab = Lab::racks(1, 8).group("one", 8);
        lab.facts = Facts::default();
        change(&mut lab);
        let strategy = &rank_order::strategies(&lab.cluster())["one"];
        (strategy.piece, strategy.small)
    };
    let (piece, small) = sizes(|_| {});
    assert_eq!(piece, 249_856, "20 x 10 us x 1.25 GB/s, in steps of 4 KiB");
    // Rings take 14 steps and 7/4 of the bytes of a buffer, doubling 3 and 3 times the bytes.
    assert_eq!(small, (11.0 * 50e-6 / ((3.0 - 1.75) / 1.25e9)) as u64);
    let slow = sizes(|lab| lab.facts.host_rate /= 100.0);
    assert_eq!(slow, (16 << 10, small / 100), "a slow link has small pieces, and rings pay sooner");
    let far = sizes(|lab| lab.facts.step *= 10.0);
    assert_eq!(far, (piece, 1 << 20), "where steps are expensive, doubling is for more; it has a bound");
}

#[test]
fn trees_take_their_weights_and_their_depth() {
    let lab = Lab::racks(1, 4).group("one", 4);
    let tree = |edges: &[(u32, u32)], weight| Tree { edges: edges.to_vec(), weight };
    let trees = vec![tree(&[(0, 1), (0, 2), (0, 3)], 3), tree(&[(1, 0), (0, 2), (2, 3)], 1)];
    let trees = Some(Trees { trees, most: Some(2_000_000_000) });
    let ring = rank_order::strategies(&lab.cluster())["one"].clone();
    let strategy = Strategy { all_reduce: trees.clone(), broadcast: trees, piece: 1 << 20, ..ring.clone() };
    let (network, group) = (lab.network(), &lab.groups[0]);
    let out = |operation| bytes(&network, group, &strategy, operation, 1e9)[&Link::HostOut("host0")];
    assert_eq!(out(ALL_REDUCE), 0.75 * 3.0 + 0.25 * 2.0);
    assert_eq!(out(Operation::Broadcast { root: 0 }), 0.75 * 3.0 + 0.25 * 2.0);
    assert_eq!(out(Operation::Broadcast { root: 3 }), 0.75 * 2.0 + 0.25);
    let took = time(&network, group, &strategy, ALL_REDUCE, 1e9, &[]);
    assert_eq!(took.steps, 6, "up and down the second tree");
    // Two pieces wait at each of the five steps after the first one.
    let expected = took.on_slowest * (1.0 + 5.0 * 2.0 * f64::from(1 << 20) / 1e9) + 6.0 * network.facts.step;
    assert!((took.seconds / expected - 1.0).abs() < 1e-9);
    let beyond = time(&network, group, &strategy, ALL_REDUCE, 3e9, &[]);
    assert_eq!(beyond, time(&network, group, &ring, ALL_REDUCE, 3e9, &[]));
}

#[test]
fn hints_are_what_is_left_of_links() {
    let mut lab = Lab::racks(2, 1).spines(2).group("one", 2);
    lab.hosts.iter_mut().for_each(|host| host.paths[1].rate *= 3.0);
    let tree = lab.hosts.iter().map(|host| (host.name.clone(), host.rack.clone())).collect();
    let rates = vec![1e9, 2e9, 3e9, 4e9, 5e9, 6e9, 7e9, 8e9];
    let loads = Loads { tree, rates, ..Loads::default() };
    let network = Network { loads: Some(&loads), ..lab.network() };
    assert_eq!(network.left(Link::HostOut("host1")), 3e9);
    assert_eq!(network.left(Link::HostIn("host0")), 2e9);
    assert_eq!(network.left(Link::RackIn("rack1", "spine1")), 0.75 * 8e9);
    assert_eq!(network.left(Link::RackOut("rack0", "spine0")), 0.25 * 5e9);
    assert_eq!(network.left(Link::Between("rack1", "rack0", "spine0")), 0.25 * 6e9);
    assert_eq!(network.left(Link::HostOut("elsewhere")), 12.5e9, "nobody knows");
}

#[test]
fn reasons_name_the_limit() {
    let lab = Lab::racks(2, 2).spines(2).group("one", 4).group("other", 4);
    let made = ffa::strategies(&lab.cluster());
    let said = reasons(&lab.network(), &lab.groups[0], &made["one"], &[(&lab.groups[1], &made["other"])]);
    assert_eq!(said[0], "1 ring over 2 racks: 2 ways between racks in each; no ring does with fewer");
    assert_eq!(said[1], "paths between racks: 2 by spine0");
    assert!(
        said[2].starts_with("an all-reduce of 64 MiB takes about 16.9ms beside 1 other group; "),
        "{said:?}"
    );
    assert!(said[2].ends_with("limits it, with 50.0 Gbit/s left of 50.0 Gbit/s"), "{said:?}");
    let alone = Lab::racks(1, 2).group("one", 2);
    let made = rank_order::strategies(&alone.cluster());
    let said = reasons(&alone.network(), &alone.groups[0], &made["one"], &[]);
    assert_eq!(said[0], "1 ring: all ranks are in one rack");
}
