//! Groups of programs, and hints about the use of links.
use std::time::Duration;
use tidemill_hints::estimate::Load;
use tidemill_hints::message::{Aggregate, Entry, Hints, entries, read_entries};
use tidemill_hints::tree::Tree;

/// Words of messages of groups.
pub(super) const WORDS: &[&str] = &[
    "join",
    "shrink",
    "register",
    "running",
    "formed",
    "strategy",
    "ring",
    "epoch",
    "members",
    "barrier",
    "18446744073709551615",
    "4294967295",
    "null",
];

fn of(name: &str) -> Vec<Vec<u8>> {
    let samples = tidemill_collective::fuzz_entry::samples().into_iter();
    samples.filter(|(of, _)| *of == name).map(|(_, bytes)| bytes).collect()
}

pub(super) fn packets() -> Vec<Vec<u8>> {
    of("packet")
}

pub(super) fn services() -> Vec<Vec<u8>> {
    of("services")
}

pub(super) fn hosts() -> Vec<Vec<u8>> {
    of("hosts")
}

pub(super) fn policies() -> Vec<Vec<u8>> {
    of("policy")
}

/// Two machines in two racks, which are used a little.
fn known() -> Hints {
    let tree = Tree::of(&[0, 1]);
    let load = |id: usize| Load { total: 1e9, residual: 5e8, sharers: id as f64 };
    Hints { loads: (0..tree.links()).map(load).collect(), tree, age: Duration::from_millis(100) }
}

/// Reads the report of a host, that of a leader, and both messages to a tenant.
pub(super) fn hint(bytes: &[u8]) -> bool {
    let reported = read_entries(bytes).is_ok_and(|read| {
        assert_eq!(entries(&read), bytes);
        true
    });
    let told = Aggregate::read(bytes).is_ok_and(|read| {
        assert_eq!(read.bytes(), bytes);
        true
    });
    let known_is_updated = known().update(bytes, Duration::ZERO).is_ok();
    let drawn = Hints::read_topology(bytes).is_ok_and(|read| {
        assert_eq!(read.topology(), bytes);
        true
    });
    reported | told | known_is_updated | drawn
}

pub(super) fn hints() -> Vec<Vec<u8>> {
    let entry = |link| Entry { link, sharers: 1.5, used: 1e6, ..Entry::default() };
    let reported: Vec<Entry> = (0..4).map(entry).collect();
    let told = Aggregate { rack: 1, number: 7, age: Duration::from_millis(80), entries: reported.clone() };
    vec![entries(&reported), told.bytes(), known().links(), known().topology()]
}
