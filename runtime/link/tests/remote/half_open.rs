//! A host that vanishes without a word. The network of this test is its own (`unshare`), so that it can be taken down.
use crate::parts::*;
use std::process::Command;
use std::time::Instant;
use tidemill_link::link::LinkError;

/// Set in the process that has a network of its own.
const OWN: &str = "TIDEMILL_TEST_OWN_NETWORK";

fn network(up: bool) -> bool {
    let state = if up { "up" } else { "down" };
    Command::new("ip").args(["link", "set", "lo", state]).status().is_ok_and(|status| status.success())
}

#[expect(clippy::disallowed_methods, reason = "only printed")]
fn now() -> Instant {
    Instant::now()
}

#[test]
fn a_host_that_vanishes_is_told_as_lost() {
    if std::env::var_os(OWN).is_some() {
        return vanish();
    }
    let may = Command::new("unshare").args(["-rn", "ip", "link", "set", "lo", "up"]).status();
    if !may.is_ok_and(|status| status.success()) {
        eprintln!("NOT TESTED: this system lets nobody have a network of his own");
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

fn vanish() {
    assert!(network(true));
    let threads: Vec<_> = [true, false]
        .map(|busy| {
            let (mut sender, mut receiver) = connect(&tcp(), true);
            sender.send(data(0, 1, 10)).unwrap();
            assert!(receive(Some(sender.as_mut()), receiver.as_mut()).is_ok());
            (busy, sender, receiver)
        })
        .into_iter()
        .collect();
    assert!(network(false));
    let begin = now();
    let threads = threads.into_iter().map(|(busy, mut sender, mut receiver)| {
        std::thread::spawn(move || {
            if busy {
                // Under way when the host vanishes.
                sender.send(data(1, 1, 10)).unwrap();
            }
            let waiting = std::thread::spawn(move || {
                let told = receive(None, receiver.as_mut());
                assert!(matches!(told, Err(LinkError::Lost)));
                eprintln!("the receiver was told after {:?} (busy: {busy})", begin.elapsed());
            });
            assert!(matches!(hear(sender.as_mut()), Err(LinkError::Lost)));
            eprintln!("the sender was told after {:?} (busy: {busy})", begin.elapsed());
            waiting.join().unwrap();
        })
    });
    let threads: Vec<_> = threads.collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}
