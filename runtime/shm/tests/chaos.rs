//! One of two processes is killed while the other works: nothing of it remains there. This is the only test of its program,
//! so that no other test opens or closes anything meanwhile.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod processes;

use processes::{Owner, Reader, check, socket, start};
use std::collections::VecDeque;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::Child;

const LENGTH: usize = 16 << 10;
/// Leases that a holder keeps.
const KEPT: usize = 8;

/// Possessions of a process: descriptors, threads, and mappings of regions.
fn possessions() -> (Vec<String>, usize, usize) {
    let entries = |folder| std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    // The one of the folder itself leads nowhere any more.
    let mut open: Vec<String> = entries("/proc/self/fd")
        .filter_map(|path| Some(std::fs::read_link(path).ok()?.display().to_string()))
        .collect();
    open.sort();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let maps = maps.lines().filter(|line| line.contains("tidemill-region")).count();
    (open, entries("/proc/self/task").count(), maps)
}

/// Kills a process that works, and waits for its end.
fn kill(mut child: Child, mut socket: UnixStream) {
    assert!(child.try_wait().unwrap().is_none(), "it works until it is killed");
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9), "the kill is what ended it");
    assert_eq!(socket.read(&mut [0]).unwrap(), 0, "the socket tells it, too");
}

/// The owner survives: it gets all its memory back.
fn kill_holder(moment: usize) {
    let (child, socket) = start("holder_to_be_killed");
    let mut owner = Owner::new(&socket);
    owner.fill(LENGTH);
    let mut returned = 0;
    while returned <= moment {
        returned += owner.take_returned().expect("the holder lives");
        owner.fill(LENGTH);
    }
    kill(child, socket);
    while owner.take_returned().is_some() {}
    // The holder kept that many from its first return on; it may have died between the return of one and the next.
    let lent = owner.lent();
    assert!(lent + 1 >= KEPT && owner.sent() > (KEPT + moment) as u64, "{lent} leases");
    assert_eq!(owner.forget(), lent);
    assert_eq!((owner.used(), owner.lent()), (0, 0), "all memory came back");
}

/// The holder survives: its leases stay readable, and it learns that no more comes.
fn kill_owner(moment: usize) {
    let (child, socket) = start("owner_to_be_killed");
    let mut reader = Reader::new(&socket);
    let mut kept = VecDeque::new();
    for _ in 0..=KEPT + moment {
        kept.push_back(reader.next().expect("the owner lives"));
        if kept.len() > KEPT {
            kept.pop_front();
        }
    }
    kill(child, socket);
    while let Some(lease) = reader.next() {
        kept.push_back(lease);
    }
    assert!(kept.len() >= KEPT);
    kept.iter().for_each(check);
}

#[test]
fn chaos_of_killed_processes_leaves_nothing_on_the_other_side() {
    let rounds = std::env::var("TIDEMILL_CHAOS_ROUNDS").ok().and_then(|text| text.parse().ok());
    let before = possessions();
    for round in 0..rounds.unwrap_or(50) {
        let moment = round * 7 % 41;
        if round % 2 == 0 {
            kill_holder(moment)
        } else {
            kill_owner(moment)
        }
        assert_eq!(possessions(), before, "round {round}");
    }
}

#[test]
#[ignore = "started by chaos_of_killed_processes_leaves_nothing_on_the_other_side"]
fn holder_to_be_killed() {
    let Some(socket) = socket() else { return };
    let mut reader = Reader::new(&socket);
    let mut kept = VecDeque::new();
    while let Some(lease) = reader.next() {
        check(&lease);
        kept.push_back(lease);
        if kept.len() > KEPT {
            kept.pop_front();
        }
    }
}

#[test]
#[ignore = "started by chaos_of_killed_processes_leaves_nothing_on_the_other_side"]
fn owner_to_be_killed() {
    let Some(socket) = socket() else { return };
    let mut owner = Owner::new(&socket);
    owner.fill(LENGTH);
    while owner.take_returned().is_some() {
        owner.fill(LENGTH);
    }
}
