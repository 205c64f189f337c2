//! Rates of edges, from what their services counted a few seconds ago.
use super::asking::Host;
use std::collections::{BTreeMap, VecDeque};
use tidemill_net::edge_name::EdgeName;
use tidemill_net::protocol::{EdgeView, Listing};

/// Seconds over which a rate is the mean: programs count once per second, so that shorter ones would jump.
const WINDOW: f64 = 3.0;

/// An edge of a process; several runs of one workflow are told apart by their order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    edge: EdgeName,
    worker: String,
    process: u32,
    user: u32,
    number: usize,
}

/// Counts of a service at a time.
struct Look {
    /// Seconds since the service began: its own clock, whenever its answer comes.
    at: f64,
    process: u32,
    counts: BTreeMap<Key, (u64, u64)>,
}

impl Look {
    fn of(listing: &Listing) -> Self {
        let mut counts = BTreeMap::new();
        for edge in &listing.edges {
            let mut key = key(edge);
            while counts.contains_key(&key) {
                key.number += 1;
            }
            counts.insert(key, (edge.records, edge.bytes));
        }
        Self { at: listing.seconds, process: listing.process, counts }
    }
}

fn key(edge: &EdgeView) -> Key {
    let EdgeView { edge, worker, process, user, .. } = edge.clone();
    Key { edge, worker, process, user, number: 0 }
}

/// Records and bytes per second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Rate {
    pub(super) records: f64,
    pub(super) bytes: f64,
}

/// An edge with its rate, if it is known already.
pub(super) struct Rated {
    pub(super) worker: Option<String>,
    pub(super) edge: EdgeView,
    pub(super) rate: Option<Rate>,
}

/// The counts of the last seconds.
#[derive(Default)]
pub(super) struct Rates {
    looks: BTreeMap<Option<String>, VecDeque<Look>>,
}

impl Rates {
    /// Takes what was found, and returns all edges with their rates.
    pub(super) fn follow(&mut self, hosts: &[Host]) -> Vec<Rated> {
        let mut all = Vec::new();
        for host in hosts {
            let Some(listing) = &host.listing else {
                self.looks.remove(&host.worker);
                continue;
            };
            let looks = self.looks.entry(host.worker.clone()).or_default();
            let look = Look::of(listing);
            // A new service counts from its own beginning.
            if looks.back().is_some_and(|last| last.process != look.process || last.at > look.at) {
                looks.clear();
            }
            if looks.back().is_none_or(|last| last.at < look.at) {
                looks.push_back(look);
            }
            let now = listing.seconds;
            while looks.get(1).is_some_and(|second| now - second.at >= WINDOW) {
                looks.pop_front();
            }
            let mut numbers: BTreeMap<Key, usize> = BTreeMap::new();
            for edge in &listing.edges {
                let mut key = key(edge);
                let number = numbers.entry(key.clone()).or_default();
                key.number = *number;
                *number += 1;
                let rate = rate(looks, &key, (edge.records, edge.bytes), now);
                all.push(Rated { worker: host.worker.clone(), edge: edge.clone(), rate });
            }
        }
        all
    }
}

fn rate(looks: &VecDeque<Look>, key: &Key, (records, bytes): (u64, u64), now: f64) -> Option<Rate> {
    let first = looks.front()?;
    let (before_records, before_bytes) = *first.counts.get(key)?;
    let passed = now - first.at;
    if passed <= 0.0 {
        return None;
    }
    let of = |now: u64, before: u64| now.checked_sub(before).map(|more| more as f64 / passed);
    Some(Rate { records: of(records, before_records)?, bytes: of(bytes, before_bytes)? })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use tidemill_net::protocol::Route;

    pub(in crate::net) fn edge(to: &str, records: u64) -> EdgeView {
        EdgeView {
            edge: EdgeName { workflow: "city".into(), from: "cameras".into(), to: to.into() },
            worker: "local".into(),
            process: 7,
            user: 1000,
            route: Route::Direct,
            records,
            bytes: records * 1_000_000,
            waiting: 0,
            policies: Vec::new(),
            held: 0,
            rejected: 0,
        }
    }

    pub(in crate::net) fn host(seconds: f64, edges: Vec<EdgeView>) -> Host {
        Host {
            worker: None,
            listing: Some(Listing { process: 3, seconds, edges, ..Listing::default() }),
            left_out: 0,
            problem: None,
            wanted: Vec::new(),
            problems: BTreeMap::new(),
        }
    }

    fn records(rated: &[Rated]) -> Vec<Option<f64>> {
        rated.iter().map(|one| one.rate.map(|rate| rate.records)).collect()
    }

    #[test]
    fn rates_are_means_of_the_last_seconds_by_the_clock_of_the_service() {
        let mut rates = Rates::default();
        let mut look = |at: f64, count: u64| records(&rates.follow(&[host(at, vec![edge("detect", count)])]));
        assert_eq!(look(10.0, 100), [None]);
        assert_eq!(look(11.0, 105), [Some(5.0)]);
        // The same report again, as an agent that has not asked since.
        assert_eq!(look(11.0, 105), [Some(5.0)]);
        assert_eq!(look(12.0, 105), [Some(2.5)]);
        // The first ones are forgotten.
        assert_eq!(look(14.0, 135), [Some(10.0)]);
        assert_eq!(look(15.0, 135), [Some(10.0)]);
    }

    #[test]
    fn a_service_or_a_process_that_began_again_has_no_rate_yet() {
        let mut rates = Rates::default();
        let mut look = |at: f64, counts: &[u64]| {
            let edges = counts.iter().map(|count| edge("detect", *count)).collect();
            records(&rates.follow(&[host(at, edges)]))
        };
        look(10.0, &[100]);
        assert_eq!(look(1.0, &[100]), [None]);
        assert_eq!(look(2.0, &[3]), [None]);
        // Two runs of one workflow.
        assert_eq!(look(3.0, &[7, 1000]), [None, None]);
    }
}
