//! Peers that vanish without a word: whole hosts, and processes of this one. The tests count the signs of life that
//! were missed until the loss is reported, not a time. The network of the first test is its own (`unshare`), so that
//! it can be taken down.
use crate::parts::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tidemill_link::link::LinkError;
use tidemill_link::remote::*;

/// Set in the process that has a network of its own.
const OWN: &str = "TIDEMILL_TEST_OWN_NETWORK";
/// Set in the process that dials, and is killed: where.
const DIALS: &str = "TIDEMILL_TEST_DIALS";
/// Probes that a silent host may leave without an answer: one each 3 s, as long as [`PEER_TIMEOUT`] lasts.
const PROBES: u64 = PEER_TIMEOUT.as_secs() / 3;
/// Times that what a host does not confirm is sent again: after 0.2 s at first, each time after twice as long, within
/// [`PEER_TIMEOUT`]; two more where the clock of the system is late.
const REPETITIONS: u64 = 8;

fn network(up: bool) -> bool {
    let state = if up { "up" } else { "down" };
    Command::new("ip").args(["link", "set", "lo", state]).status().is_ok_and(|status| status.success())
}

#[test]
fn a_host_that_vanishes_is_told_as_lost() {
    if std::env::var_os(OWN).is_some() {
        return vanish();
    }
    let may = Command::new("unshare").args(["-rn", "ip", "link", "set", "lo", "up"]).status();
    if !may.is_ok_and(|status| status.success()) {
        eprintln!("skipped: this system lets nobody have a network of his own");
        return;
    }
    let own = std::env::current_exe().unwrap();
    let status = Command::new("unshare")
        .arg("-rn")
        .arg(own)
        .args(["--exact", "half_open::a_host_that_vanishes_is_told_as_lost", "--nocapture"])
        .env(OWN, "1")
        .status();
    assert!(status.unwrap().success());
}

/// Of each connected socket of this network, by its ends: how often it has sent again what was not confirmed, and how many probes were
/// not answered.
fn missed() -> BTreeMap<String, (u64, u64)> {
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let of = |line: &str| {
        let parts: Vec<&str> = line.split_whitespace().collect();
        let is_connected = parts.get(3) == Some(&"01");
        let repeated = u64::from_str_radix(parts.get(6)?, 16).ok()?;
        let unanswered = parts.get(8)?.parse().ok()?;
        is_connected.then(|| (format!("{} {}", parts[1], parts[2]), (repeated, unanswered)))
    };
    table.lines().skip(1).filter_map(of).collect()
}

/// Returns whether no data of this network is unacknowledged.
fn all_is_confirmed() -> bool {
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let waits = |line: &str| line.split_whitespace().nth(4).map(|queues| queues.starts_with("00000000:"));
    table.lines().skip(1).filter_map(waits).all(|is_empty| is_empty)
}

/// Reads [`missed`] until it is stopped: the largest value of each socket.
struct Watch(Arc<AtomicBool>, std::thread::JoinHandle<BTreeMap<String, (u64, u64)>>);

impl Watch {
    fn begin() -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&ended);
        let look = move || {
            let mut most: BTreeMap<String, (u64, u64)> = BTreeMap::new();
            while !until.load(Ordering::Acquire) {
                for (socket, (repeated, unanswered)) in missed() {
                    let known = most.entry(socket).or_default();
                    *known = (known.0.max(repeated), known.1.max(unanswered));
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            most
        };
        Self(ended, std::thread::spawn(look))
    }

    fn end(self) -> BTreeMap<String, (u64, u64)> {
        self.0.store(true, Ordering::Release);
        self.1.join().unwrap()
    }
}

fn vanish() {
    assert!(network(true));
    let links: Vec<_> = [true, false]
        .map(|busy| {
            let (mut sender, mut receiver) = connect(&tcp(), true);
            sender.send(data(0, 1, 10)).unwrap();
            assert!(receive(Some(sender.as_mut()), receiver.as_mut()).is_ok());
            (busy, sender, receiver)
        })
        .into_iter()
        .collect();
    assert_eq!(missed().len(), 4, "two connections with two ends each");
    while !all_is_confirmed() {
        std::thread::yield_now();
    }
    assert!(network(false));
    let watch = Watch::begin();
    let told = Arc::new(Mutex::new(0));
    let threads = links.into_iter().map(|(busy, mut sender, mut receiver)| {
        let told = Arc::clone(&told);
        std::thread::spawn(move || {
            if busy {
                // In transit when the host vanishes.
                sender.send(data(1, 1, 10)).unwrap();
            }
            let waiting = std::thread::spawn(move || {
                assert!(matches!(receive(None, receiver.as_mut()), Err(LinkError::Lost)));
            });
            assert!(matches!(hear(sender.as_mut()), Err(LinkError::Lost)));
            waiting.join().unwrap();
            *told.lock().unwrap() += 2;
        })
    });
    let threads: Vec<_> = threads.collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let most = watch.end();
    println!("sent again, and probes that were not answered, by socket: {most:?}");
    assert_eq!((*told.lock().unwrap(), most.len()), (4, 4));
    assert_eq!(missed().len(), 0, "the system has given all of them up");
    let (busy, silent): (Vec<_>, Vec<_>) = most.values().partition(|(repeated, _)| *repeated > 0);
    assert_eq!((busy.len(), silent.len()), (1, 3), "one end has something under way");
    for (repeated, unanswered) in busy {
        assert!((1..=REPETITIONS).contains(&repeated), "sent again {repeated} times, {unanswered} probes");
    }
    for (_, unanswered) in silent {
        assert!((1..=PROBES).contains(&unanswered), "{unanswered} probes were not answered");
    }
}

/// Over a socket of this host nothing has to be missed: when a process is gone, its peers know.
#[test]
fn a_process_that_is_killed_is_told_as_lost_at_once() {
    if let Ok(address) = std::env::var(DIALS) {
        let dialed = dial(&address.parse().unwrap(), &Security::none(), &greeting(Role::Receiver), PATIENCE);
        let mut receiver = dialed.unwrap().into_receiver(schema()).unwrap();
        assert!(receive(None, receiver.as_mut()).is_ok());
        println!("it is there");
        loop {
            std::thread::park();
        }
    }
    for kind in [unix(), named()] {
        let (serving, incoming) = serve(&kind);
        let own = std::env::current_exe().unwrap();
        let mut child = Command::new(own)
            .args(["--exact", "half_open::a_process_that_is_killed_is_told_as_lost_at_once", "--nocapture"])
            .env(DIALS, serving.address().to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut sender = accept(&incoming, &greeting(Role::Sender)).into_sender(schema()).unwrap();
        sender.send(data(0, 1, 100_000)).unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(said.any(|line| line.unwrap().ends_with("it is there")));
        // The number that it took of the ring is reported; then there is nothing, as long as it lives.
        assert_eq!(sender.receive_control().unwrap(), None);
        child.kill().unwrap();
        child.wait().unwrap();
        let mut descriptors = [PollFd::from_borrowed_fd(sender.descriptor(), PollFlags::IN)];
        let ready = poll(&mut descriptors, Some(&Timespec::default())).unwrap();
        assert_eq!(ready, 1, "{:?}: nobody has told it", kind.address);
        assert!(sender.clear());
        assert!(matches!(sender.receive_control(), Err(LinkError::Lost)));
        assert!(matches!(sender.send(data(1, 1, 10)), Err(LinkError::Lost)));
    }
}
