//! Groups over connections of `tidemill-link`: plain, with TLS, and in memory, each host in a thread of its own.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::{JoinHandle, spawn};
use std::time::Duration;
use tidemill_collective::element::{Element, Reduction};
use tidemill_collective::memory::{Memory, Plain};
use tidemill_collective::operation::{Numbered, Operation};
use tidemill_collective::strategy::{Strategy, Tree, Trees, Windows};
use tidemill_collective::team::{Counters, Failed, Team, WireName, has_ended, host_clock};
use tidemill_collective::wire::{Linked, Wire};
use tidemill_link::remote::{Address, Certificates, Greeting, Listener, Purpose, Security, dial};

type Wires = BTreeMap<WireName, Box<dyn Wire>>;

/// A host's certificate and its trusted authority.
fn certificates() -> Certificates {
    use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
    let mut parameters = CertificateParams::new(Vec::new()).unwrap();
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let authority_pem = parameters.self_signed(&key).unwrap().pem().into_bytes();
    let issuer = Issuer::new(parameters, key);
    let mut parameters = CertificateParams::new(vec!["tidemill".to_owned()]).unwrap();
    parameters.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate().unwrap();
    let chain_pem = parameters.signed_by(&key, &issuer).unwrap().pem().into_bytes();
    Certificates { chain_pem, key_pem: key.serialize_pem().into_bytes(), authority_pem }
}

fn kinds() -> [(Address, Security); 3] {
    let tcp = || Address::tcp("127.0.0.1:0");
    [
        (tcp(), Security::none()),
        (tcp(), Security::mutual(&certificates()).unwrap()),
        (Address::new("memory", ""), Security::none()),
    ]
}

/// Connects the wires of all hosts.
fn connected(strategy: &Strategy, hosts: &[&[u32]], (address, security): &(Address, Security)) -> Vec<Wires> {
    let purpose = Purpose::Control { host: "tests".to_owned() };
    let greeting = Greeting { run: 1, plan_version: 1, purpose };
    let (to, accepted) = channel();
    let answer = greeting.clone();
    let listener = Listener::bind(address, security).unwrap();
    let serving =
        listener.serve(move |incoming| to.send(incoming.accept(&answer).unwrap()).unwrap()).unwrap();
    let mut wires: Vec<Wires> = hosts.iter().map(|_| Wires::new()).collect();
    for (number, host) in hosts.iter().enumerate() {
        for name in Team::needed(strategy, host).into_iter().filter(|name| host.contains(&name.from)) {
            let one = dial(serving.address(), security, &greeting, Duration::from_secs(60)).unwrap();
            let receiver = hosts.iter().position(|host| host.contains(&name.to)).unwrap();
            wires[number].insert(name.clone(), Box::new(Linked::new(one.into_bytes())));
            let other = accepted.recv().unwrap().into_bytes();
            wires[receiver].insert(name, Box::new(Linked::new(other)));
        }
    }
    wires
}

const HOSTS: [&[u32]; 3] = [&[0, 3], &[1], &[2]];
const RANKS: u32 = 4;

fn sum(number: u64, length: u64) -> Numbered {
    let operation = Operation::AllReduce { reduction: Reduction::Sum };
    Numbered::new(number, operation, Element::I64, length)
}

/// Carries out sums of these lengths at one host, and checks each.
fn summing(
    strategy: &Strategy,
    host: &'static [u32],
    wires: Wires,
    lengths: &'static [u64],
) -> JoinHandle<Result<Counters, Failed>> {
    let strategy = strategy.clone();
    spawn(move || {
        let mut team = Team::new(strategy, host, wires, host_clock()).unwrap();
        for (number, length) in (1..).zip(lengths) {
            let value = |rank: u32, n: i64| n * i64::from(rank + 1) + number as i64;
            let bytes = |rank| (0..*length as i64).flat_map(|n| value(rank, n).to_le_bytes()).collect();
            let buffers: Vec<_> =
                host.iter().map(|rank| (*rank, Arc::new(Plain::new(bytes(*rank))))).collect();
            let dynamic = buffers.iter().map(|(rank, buffer)| (*rank, buffer.clone() as Arc<dyn Memory>));
            team.begin(sum(number, *length), dynamic.collect()).unwrap();
            team.finish()?;
            let sum = |n| (0..RANKS).map(|rank| value(rank, n)).sum::<i64>();
            let sums: Vec<u8> = (0..*length as i64).flat_map(|n| sum(n).to_le_bytes()).collect();
            assert!(buffers.iter().all(|(_, buffer)| buffer.to_vec() == sums), "{number} of {host:?}");
        }
        Ok(team.counters().clone())
    })
}

#[test]
fn sums_are_right_over_each_kind_of_connection() {
    let mut strategy = Strategy::rank_order(4, (0..RANKS).collect());
    strategy.channels.push(strategy.channels[0].clone());
    strategy.channels[1].ring.reverse();
    for kind in kinds() {
        let wires = connected(&strategy, &HOSTS, &kind);
        // Small ones by the mesh between large ones by the rings.
        let lengths = &[1, 600_000, 0, 7, 3000, 100, 250_001];
        let hosts: Vec<_> =
            HOSTS.iter().zip(wires).map(|(host, wires)| summing(&strategy, host, wires, lengths)).collect();
        for host in hosts {
            let counters = host.join().unwrap().unwrap();
            assert_eq!(counters.operations, 7);
            assert!(counters.sent.values().sum::<u64>() > 600_000 * 8 && !counters.busy.is_zero());
        }
    }
}

#[test]
fn sums_by_trees_are_right_over_each_kind_of_connection() {
    let tree = |edges: &[(u32, u32)], weight| Tree { edges: edges.to_vec(), weight };
    let trees = vec![
        tree(&[(0, 1), (1, 2), (2, 3)], 200_000),
        tree(&[(2, 0), (2, 1), (2, 3)], 700_000),
        tree(&[(3, 0), (0, 2), (0, 1)], 100_000),
    ];
    let all_reduce = Some(Trees { trees, most: None });
    let strategy = Strategy { all_reduce, ..Strategy::rank_order(4, (0..RANKS).collect()) };
    for kind in kinds() {
        let wires = connected(&strategy, &HOSTS, &kind);
        let lengths = &[1, 600_000, 0, 7, 3000, 100, 250_001];
        let hosts: Vec<_> =
            HOSTS.iter().zip(wires).map(|(host, wires)| summing(&strategy, host, wires, lengths)).collect();
        for host in hosts {
            assert_eq!(host.join().unwrap().unwrap().operations, 7);
        }
    }
}

#[test]
fn a_host_that_ends_in_the_middle_is_named_at_its_neighbours() {
    let strategy = Strategy::rank_order(1, (0..RANKS).collect());
    for kind in kinds() {
        let mut wires = connected(&strategy, &HOSTS, &kind);
        // It begins the operation, and is gone when bytes of it have come.
        let mut ending = Team::new(strategy.clone(), HOSTS[2], wires.pop().unwrap(), host_clock()).unwrap();
        let hosts: Vec<_> = HOSTS[..2]
            .iter()
            .zip(wires)
            .map(|(host, wires)| summing(&strategy, host, wires, &[4_000_000]))
            .collect();
        let buffer: Arc<dyn Memory> = Arc::new(Plain::new(vec![0; 32_000_000]));
        ending.begin(sum(1, 4_000_000), BTreeMap::from([(2, buffer)])).unwrap();
        while ending.counters().received.is_empty() {
            ending.advance().unwrap();
        }
        drop(ending);
        let failures: Vec<Failed> = hosts.into_iter().map(|host| host.join().unwrap().unwrap_err()).collect();
        // Whoever is its neighbour sees it; others may see that one end.
        assert!(failures.iter().any(|failed| failed.rank == 2), "{failures:?}");
    }
}

#[test]
fn wires_that_rest_report_their_end_and_not_their_bytes() {
    use rustix::event::{Timespec, poll};
    let strategy = Strategy::rank_order(1, vec![0, 1]);
    for (kind, has_sockets) in kinds().iter().zip([true, true, false]) {
        let wires = connected(&strategy, &[&[0], &[1]], kind);
        let mut teams: Vec<Team> = wires
            .into_iter()
            .zip([[0], [1]])
            .map(|(wires, host)| Team::new(strategy.clone(), &host, wires, host_clock()).unwrap())
            .collect();
        let mut first = teams.remove(0);
        // Bytes of an operation that the other one has not begun.
        let buffer: Arc<dyn Memory> = Arc::new(Plain::new(vec![1; 800]));
        first.begin(sum(1, 100), BTreeMap::from([(0, buffer)])).unwrap();
        first.advance().unwrap();
        assert!(!first.counters().sent.is_empty());
        let ended_at = |team: &Team, timeout: Timespec| {
            let (ranks, mut waits): (Vec<u32>, Vec<_>) = team.at_rest().into_iter().unzip();
            poll(&mut waits, Some(&timeout)).unwrap();
            let mut all = ranks.into_iter().zip(&waits);
            all.find(|(_, wait)| has_ended(wait)).map(|(rank, _)| rank)
        };
        assert_eq!(teams[0].at_rest().is_empty(), !has_sockets);
        assert_eq!(ended_at(&teams[0], Timespec { tv_sec: 0, tv_nsec: 50_000_000 }), None);
        drop(first);
        if has_sockets {
            assert_eq!(ended_at(&teams[0], Timespec { tv_sec: 60, tv_nsec: 0 }), Some(0));
        }
    }
}

#[test]
fn windows_by_the_clock_of_the_host_delay_and_change_nothing() {
    let mut strategy = Strategy::rank_order(1, (0..RANKS).collect());
    strategy.windows =
        Some(Windows { period_us: 2000, open_us: vec![(0, 300), (1000, 1500)], also: Vec::new() });
    let wires = connected(&strategy, &HOSTS, &kinds()[0]);
    let hosts: Vec<_> = HOSTS
        .iter()
        .zip(wires)
        .map(|(host, wires)| summing(&strategy, host, wires, &[300_000, 5, 300_000]))
        .collect();
    for host in hosts {
        assert_eq!(host.join().unwrap().unwrap().operations, 3);
    }
}
