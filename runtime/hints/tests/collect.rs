//! Counters of real sockets: bytes within 2 %, the split of a rack, and the number of flows.
//!
//! Addresses of 127.0.0.0/8 that nobody else uses stand for hosts, so other traffic of this machine does not count.
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread::{JoinHandle, spawn};
use std::time::{Duration, Instant};
use tidemill_hints::collect::{Counter, Meter, Racks, Sockets, Source, interface_bytes};

/// The event comes long before.
const PATIENCE: Duration = Duration::from_secs(60);

/// The second and third byte of the addresses of a test: no two tests, of any process, share them.
fn network(test: u8) -> [u8; 2] {
    let process = std::process::id();
    [64 + test * 64 + (process >> 8) as u8 % 64, process as u8]
}

/// Addresses below 128 are in the rack, the others in another one.
fn racks([a, b]: [u8; 2]) -> Racks {
    let prefix = |text: String| text.parse().expect("it is a prefix");
    Racks {
        own: vec![prefix(format!("127.{a}.{b}.0/25"))],
        others: vec![prefix(format!("127.{a}.{b}.128/25"))],
    }
}

fn address([a, b]: [u8; 2], host: u8) -> IpAddr {
    Ipv4Addr::new(127, a, b, host).into()
}

/// A connection between two addresses: what is sent from `from`, and what `to` gets.
fn connected(from: IpAddr, to: IpAddr) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(SocketAddr::new(to, 0)).expect("the address is free");
    let target = listener.local_addr().expect("it has an address");
    let family = rustix::net::AddressFamily::INET;
    let socket = rustix::net::socket(family, rustix::net::SocketType::STREAM, None).expect("a socket");
    rustix::net::bind(&socket, &SocketAddr::new(from, 0)).expect("the address is free");
    rustix::net::connect(&socket, &target).expect("it listens");
    let (accepted, peer) = listener.accept().expect("it was connected");
    assert_eq!(peer.ip(), from);
    (TcpStream::from(socket), accepted)
}

/// Sends this many bytes and takes them in. Both ends stay open.
fn transfer(pair: &mut (TcpStream, TcpStream), bytes: usize) {
    let mut sender = pair.0.try_clone().expect("a handle");
    let writing: JoinHandle<()> = spawn(move || {
        let block = vec![7; 64 << 10];
        let mut left = bytes;
        while left > 0 {
            let part = left.min(block.len());
            sender.write_all(&block[..part]).expect("the other end takes it");
            left -= part;
        }
    });
    let taken = std::io::copy(&mut (&mut pair.1).take(bytes as u64), &mut std::io::sink());
    assert_eq!(taken.expect("it arrives"), bytes as u64);
    writing.join().expect("it was sent");
}

#[expect(clippy::disallowed_methods, reason = "patience with the kernel is real time")]
fn now() -> Instant {
    Instant::now()
}

/// Counters of the sockets of a test, once they say that this much was sent.
fn settled(sockets: &mut Sockets, network: [u8; 2], sent: u64) -> Vec<Counter> {
    let begun = now();
    loop {
        let all = sockets.counters().expect("the kernel tells");
        let racks = racks(network);
        let ours: Vec<Counter> =
            all.into_iter().filter(|one| racks.place(one.local, one.peer).is_some()).collect();
        if ours.iter().map(|one| one.sent).sum::<u64>() >= sent {
            return ours;
        }
        assert!(begun.elapsed() < PATIENCE, "only {ours:?}");
        std::thread::yield_now();
    }
}

#[test]
fn bytes_are_counted_within_two_percent_and_split_by_rack() {
    let network = network(0);
    let (here, near, far) = (address(network, 1), address(network, 2), address(network, 200));
    let mut pairs = [connected(here, near), connected(here, far)];
    let mut sockets = Sockets::open().expect("the kernel answers");
    // Only what this host sends: the other ends of the sockets are on it, too.
    let ours = |counters: Vec<Counter>| -> Vec<Counter> {
        counters.into_iter().filter(|counter| counter.local == here).collect()
    };
    let mut meter = Meter::new(racks(network));
    let loopback = interface_bytes("lo").expect("every host has it");
    transfer(&mut pairs[0], 1 << 20);
    let before = ours(settled(&mut sockets, network, 1 << 20));
    assert_eq!(before.len(), 2);
    meter.read(&before, Duration::ZERO);
    transfer(&mut pairs[0], 20 << 20);
    transfer(&mut pairs[1], 10 << 20);
    let after = ours(settled(&mut sockets, network, 31 << 20));
    meter.read(&after, Duration::from_secs(1));
    let [up, down] = meter.report(0, Duration::from_secs(1));
    let within = |measured: f64, true_bytes: usize| {
        let ratio = measured / true_bytes as f64;
        assert!((0.98..=1.02).contains(&ratio), "{measured} instead of {true_bytes}");
    };
    within(up.used, 30 << 20);
    within(up.crossing_used, 10 << 20);
    assert_eq!((down.used, down.sharers), (0.0, 0.0), "nothing came back");
    let passed = interface_bytes("lo").expect("every host has it")[0] - loopback[0];
    assert!(passed >= 31 << 20, "the interface counts at least as much: {passed}");
    // The other ends see it as received.
    let mut meter = Meter::new(racks(network));
    meter.read(&[], Duration::ZERO);
    let all = settled(&mut sockets, network, 31 << 20);
    let theirs: Vec<Counter> = all.into_iter().filter(|counter| counter.local != here).collect();
    meter.read(&theirs, Duration::from_secs(1));
    within(meter.report(0, Duration::from_secs(1))[1].used, 31 << 20);
}

#[test]
fn the_number_of_flows_follows_those_that_send() {
    let network = network(1);
    let (here, far) = (address(network, 1), address(network, 200));
    let mut pairs: Vec<(TcpStream, TcpStream)> = (0..7).map(|_| connected(here, far)).collect();
    let mut sockets = Sockets::open().expect("the kernel answers");
    let mut meter = Meter::new(racks(network));
    let (mut sent, mut tick) = (0, 0);
    for flows in [1, 7, 3] {
        // 60 looks, 600 ms: what is left of the count before is below 0.1 % of it.
        for _ in 0..60 {
            for pair in &mut pairs[..flows] {
                transfer(pair, 1_000);
                sent += 1_000;
            }
            let counters = settled(&mut sockets, network, sent);
            meter.read(&counters, tick * Duration::from_millis(10));
            tick += 1;
        }
        let [up, down] = meter.report(0, tick * Duration::from_millis(10));
        // Both ends are on this host: what one sends out of its rack, the other one receives from its own.
        for measured in [up.sharers, up.crossing_sharers, down.sharers] {
            assert!((measured - flows as f64).abs() < 0.05, "{measured} instead of {flows}: {up:?} {down:?}");
        }
        assert_eq!(down.crossing_sharers, 0.0);
    }
}
