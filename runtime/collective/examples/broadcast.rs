//! How long broadcasts take along a ring and by a tree: teams in threads, with TCP over the loopback interface between them, beside
//! what the model of costs says.
//!
//! ```text
//! cargo run --release -p tidemill-collective --example broadcast -- [RANKS] [MEGABITS PER SECOND]
//! ```
//!
//! Rank r has the address 127.0.1.(r + 1), so that each can have that rate of its own, in a network namespace. Packets are small and
//! the bucket is, too: otherwise a whole piece would pass at once, and steps would take no time.
//!
//! ```text
//! unshare --net bash -c 'ip link set lo mtu 1500 up; ip link set lo gso_max_size 2000; ip link set lo gso_max_segs 1
//!   tc qdisc add dev lo root handle 1: htb default 9999
//!   for r in $(seq 20); do tc class add dev lo parent 1: classid 1:$r htb rate 50mbit burst 3k cburst 3k
//!     tc filter add dev lo parent 1: protocol ip u32 match ip src 127.0.1.$r flowid 1:$r; done
//!   target/release/examples/broadcast 20 50'
//! ```
#![expect(clippy::disallowed_methods, reason = "it measures real time")]
use std::collections::BTreeMap;
use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};
use tidemill_collective::cost::{Facts, Network, time};
use tidemill_collective::element::Element;
use tidemill_collective::memory::Plain;
use tidemill_collective::operation::{Numbered, Operation};
use tidemill_collective::policies::{Cluster, locality};
use tidemill_collective::strategy::{Strategy, Trees};
use tidemill_collective::team::{Team, WireName, host_clock};
use tidemill_collective::topology::{Group, Host};
use tidemill_collective::wire::{Socket, Wire};

type Failure = Box<dyn Error + Send + Sync>;
type Wires = BTreeMap<WireName, Box<dyn Wire>>;

const ROOT: Operation = Operation::Broadcast { root: 0 };
const ROUNDS: u64 = 9;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: u32| arguments.get(at).map_or(Ok(default), |text| text.parse());
    let (ranks, megabits) = (number(0, 20)?, number(1, 10_000)?);
    // Two racks, and one rank for each host.
    let host = |rank: u32| Host {
        name: format!("host{rank}"),
        rack: format!("rack{}", 2 * rank / ranks),
        ..Host::default()
    };
    let hosts: Vec<Host> = (0..ranks).map(host).collect();
    let group = Group {
        name: "all".into(),
        ranks: (0..ranks).map(|rank| (rank, format!("host{rank}"))).collect(),
        ..Group::default()
    };
    let facts = Facts { host_rate: f64::from(megabits) * 1e6 / 8.0, ..Facts::default() };
    let network = Network { hosts: &hosts, facts, ..Network::default() };
    let cluster = Cluster { network, groups: std::slice::from_ref(&group), ..Cluster::default() };
    let mut made = locality::strategies(&cluster, false);
    let mut strategy = made.remove("all").ok_or("no strategy")?;
    let trees = strategy.broadcast.take().ok_or("a group this small needs no tree")?;
    println!("{ranks} ranks, pieces of {} KiB, a tree up to {:?} bytes", strategy.piece >> 10, trees.most);
    let by_tree = Strategy { broadcast: Some(Trees { most: None, ..trees }), ..strategy.clone() };
    let crossing = |pairs: &[(u32, u32)]| {
        pairs.iter().filter(|(one, other)| 2 * one / ranks != 2 * other / ranks).count()
    };
    if let Some(trees) = &by_tree.broadcast {
        println!("the tree crosses between the racks {} time(s)", crossing(&trees.trees[0].edges));
    }
    println!("{:>12} {:>12} {:>12} {:>14} {:>14}", "bytes", "ring", "tree", "ring, model", "tree, model");
    for size in (14..=24).map(|power| 1_u64 << power) {
        let model = |strategy| time(&network, &group, strategy, ROOT, size as f64, &[]).seconds * 1e3;
        let (ring, tree) = (measured(&strategy, size)?, measured(&by_tree, size)?);
        let (of_ring, of_tree) = (model(&strategy), model(&by_tree));
        println!(
            "{size:>12} {:>12} {:>12} {:>14} {:>14}",
            format!("{ring:.1?}"),
            format!("{tree:.1?}"),
            format!("{of_ring:.2}ms"),
            format!("{of_tree:.2}ms")
        );
    }
    Ok(())
}

/// Returns the median time until all ranks have the bytes.
fn measured(strategy: &Strategy, size: u64) -> Result<Duration, Failure> {
    let strategy = Strategy { small: 0, ..strategy.clone() };
    let together = Arc::new(Barrier::new(strategy.members.len()));
    let threads: Vec<_> = strategy
        .members
        .clone()
        .into_iter()
        .zip(wires(&strategy)?)
        .map(|(rank, wires)| {
            let (strategy, together) = (strategy.clone(), Arc::clone(&together));
            std::thread::spawn(move || -> Result<Vec<(Instant, Instant)>, Failure> {
                let mut team = Team::new(strategy, &[rank], wires, host_clock())?;
                let buffer = Arc::new(Plain::new(vec![1; size as usize]));
                let mut times = Vec::new();
                for number in 1..=ROUNDS {
                    let numbered = Numbered::new(number, ROOT, Element::F32, size / 4);
                    together.wait();
                    let begun = Instant::now();
                    team.begin(numbered, BTreeMap::from([(rank, buffer.clone() as _)]))?;
                    team.finish()?;
                    times.push((begun, Instant::now()));
                }
                Ok(times)
            })
        })
        .collect();
    let mut rounds: Vec<Option<(Instant, Instant)>> = vec![None; ROUNDS as usize];
    for thread in threads {
        let times = thread.join().map_err(|_| "a rank panicked")??;
        for (round, (begun, ended)) in rounds.iter_mut().zip(times) {
            let (first, last) = round.unwrap_or((begun, ended));
            *round = Some((first.min(begun), last.max(ended)));
        }
    }
    let mut times: Vec<Duration> =
        rounds.into_iter().flatten().map(|(first, last)| last.duration_since(first)).collect();
    times.sort();
    Ok(times[times.len() / 2])
}

/// Returns the wires of each rank. Members are numbered from 0 without gaps.
fn wires(strategy: &Strategy) -> Result<Vec<Wires>, Failure> {
    let at = |rank: u32| Ipv4Addr::new(127, 0, 1, rank as u8 + 1);
    let mut wires: Vec<Wires> = strategy.members.iter().map(|_| Wires::new()).collect();
    let listeners: Vec<TcpListener> =
        strategy.members.iter().map(|rank| TcpListener::bind((at(*rank), 0))).collect::<Result<_, _>>()?;
    for rank in &strategy.members {
        let own = Team::needed(strategy, &[*rank]).into_iter().filter(|name| name.from == *rank);
        // The mesh is for small operations, of which there are none here; it still has to be there.
        for name in own {
            let listener = &listeners[name.to as usize];
            let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
            socket.bind(&SocketAddr::from((at(*rank), 0)).into())?;
            socket.connect(&listener.local_addr()?.into())?;
            let sender = TcpStream::from(socket);
            let (receiver, _) = listener.accept()?;
            sender.set_nodelay(true)?;
            wires[name.from as usize].insert(name.clone(), Box::new(Socket::new(sender)));
            wires[name.to as usize].insert(name, Box::new(Socket::new(receiver)));
        }
    }
    Ok(wires)
}
