//! The leader of a rack: it takes the reports of its hosts, exchanges them with other leaders, and answers tenants.
//!
//! It has no thread, clock or socket. Callers bring messages and the time, which is a duration since any moment.
//!
//! ```
//! use std::time::Duration;
//! use tidemill_hints::leader::{Leader, Network, Rack};
//! use tidemill_hints::message::Entry;
//! // One rack of two machines with 10 Gbit/s each.
//! let rack = Rack { machines: vec![[1.25e9; 2]; 2], uplink: [2.5e9; 2] };
//! let mut leader = Leader::new(0, Network { racks: vec![rack] });
//! let second = Duration::from_secs(1);
//! for host in [0, 1] {
//!     let entry = |link| Entry { link, used: 1e9, sharers: 1.0, ..Entry::default() };
//!     leader.report(host, vec![entry(2 * host), entry(2 * host + 1)], second)?;
//! }
//! let hints = leader.hints("job", &[(0, 0), (0, 1)], second)?;
//! assert_eq!(hints.loads[0].residual, 0.25e9);
//! // No more often than each 50 ms.
//! assert!(leader.hints("job", &[(0, 0), (0, 1)], second + Duration::from_millis(49)).is_err());
//! # Ok::<(), tidemill_hints::leader::Refusal>(())
//! ```
use crate::estimate::Load;
use crate::message::{Aggregate, Entry, Hints};
use crate::tree::{Direction, Link, Tree};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// Time between two reports of a host, and between two aggregates of a leader.
pub const PERIOD: Duration = Duration::from_millis(100);
/// Whoever reports or asks sooner than this after the last time is refused.
pub const LEAST: Duration = Duration::from_millis(50);
/// Reports that are older than this count as not known.
pub const PATIENCE: Duration = Duration::from_secs(1);

/// The rates of a network, as its operator has them. Up comes before down.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Network {
    /// Its racks, by number.
    pub racks: Vec<Rack>,
}

/// A rack.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Rack {
    /// The rates of its machines, by number.
    pub machines: Vec<[f64; 2]>,
    /// The rates between it and other racks.
    pub uplink: [f64; 2],
}

/// A reason why a leader does not take or give something.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It comes too soon after the last time.
    #[error("{who} was here {after:?} ago; at least {LEAST:?} must pass, as figures change each {PERIOD:?}")]
    TooSoon {
        /// Whoever came.
        who: String,
        /// Time since the last time.
        after: Duration,
    },
    /// A number names no link, machine or rack.
    #[error("the network has no {0}")]
    Unknown(String),
    /// The leader of a rack has not been heard of, or never.
    #[error("nothing was heard of rack {rack} for {silent:?}")]
    Silent {
        /// The rack, in the order of the tenant's own racks.
        rack: usize,
        /// For how long; without end where it never said anything.
        silent: Duration,
    },
    /// A machine has not been heard of, or never.
    #[error("machine {machine} of the tenant does not report")]
    NoReport {
        /// The machine, in the order of the tenant.
        machine: usize,
    },
}

/// The last report of a host.
#[derive(Debug, Clone)]
struct Report {
    at: Duration,
    entries: Vec<Entry>,
}

/// The last message of another leader.
#[derive(Debug, Clone)]
struct Heard {
    at: Duration,
    aggregate: Aggregate,
}

/// The leader of a rack.
#[derive(Debug, Clone)]
pub struct Leader {
    rack: u64,
    network: Network,
    number: u64,
    reports: BTreeMap<u64, Report>,
    others: BTreeMap<u64, Heard>,
    asked: BTreeMap<String, Duration>,
}

impl Leader {
    /// Creates the leader of a rack. It knows nothing yet.
    pub fn new(rack: u64, network: Network) -> Self {
        let (reports, others, asked) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { rack, network, number: 0, reports, others, asked }
    }

    /// Takes other rates, and racks and machines that have come: the numbers of those that were there stay.
    pub fn set_network(&mut self, network: Network) {
        self.network = network;
    }

    /// Notes that another leader leads a rack from now on: it counts its messages from the start.
    pub fn succeeded(&mut self, rack: u64) {
        if let Some(heard) = self.others.get_mut(&rack) {
            heard.aggregate.number = 0;
        }
    }

    /// Returns the last state of a rack, with the age that it has now; none: nothing was heard of it for [`PATIENCE`].
    pub fn state(&self, rack: u64, now: Duration) -> Option<Aggregate> {
        self.known(rack, 0, now).ok()
    }

    /// Takes the report of a host: the links of its machines.
    pub fn report(&mut self, host: u64, entries: Vec<Entry>, now: Duration) -> Result<(), Refusal> {
        if let Some(last) = self.reports.get(&host) {
            paced(|| format!("host {host}"), last.at, now)?;
        }
        let machines = facts(&self.network, self.rack)?.machines.len() as u64;
        if let Some(entry) = entries.iter().find(|entry| entry.link / 2 >= machines) {
            return Err(Refusal::Unknown(format!("link {} in rack {}", entry.link, self.rack)));
        }
        self.reports.insert(host, Report { at: now, entries });
        Ok(())
    }

    /// Returns what other leaders get, each period. Hosts that went silent are left out.
    pub fn aggregate(&mut self, now: Duration) -> Aggregate {
        self.number += 1;
        self.own(now)
    }

    fn own(&self, now: Duration) -> Aggregate {
        let fresh = || self.reports.values().filter(|report| is_fresh(report.at, now));
        Aggregate {
            rack: self.rack,
            number: self.number,
            age: fresh().map(|report| now.saturating_sub(report.at)).max().unwrap_or_default(),
            entries: fresh().flat_map(|report| report.entries.iter().copied()).collect(),
        }
    }

    /// Takes what another leader said. Returns false where something newer is known; a leader that begins anew counts from the start
    /// again, and is believed once its last word is old.
    pub fn hear(&mut self, aggregate: Aggregate, now: Duration) -> Result<bool, Refusal> {
        let machines = facts(&self.network, aggregate.rack)?.machines.len() as u64;
        if let Some(entry) = aggregate.entries.iter().find(|entry| entry.link / 2 >= machines) {
            return Err(Refusal::Unknown(format!("link {} in rack {}", entry.link, aggregate.rack)));
        }
        let known = self.others.get(&aggregate.rack).filter(|heard| is_fresh(heard.at, now));
        if aggregate.rack == self.rack
            || known.is_some_and(|heard| heard.aggregate.number >= aggregate.number)
        {
            return Ok(false);
        }
        self.others.insert(aggregate.rack, Heard { at: now, aggregate });
        Ok(true)
    }

    /// Answers a tenant that has these machines, each by its rack and its number there. Nothing in the answer depends on racks that it
    /// does not use, nor on where its own are.
    pub fn hints(&mut self, tenant: &str, machines: &[(u64, u64)], now: Duration) -> Result<Hints, Refusal> {
        if let Some(last) = self.asked.get(tenant) {
            paced(|| format!("tenant {tenant}"), *last, now)?;
        }
        self.asked.retain(|_, last| now.saturating_sub(*last) < LEAST);
        self.asked.insert(tenant.to_owned(), now);
        let racks: Vec<u64> = machines.iter().map(|(rack, _)| *rack).collect();
        let tree = Tree::of(&racks);
        let (mut loads, mut age) = (vec![Load::default(); tree.links()], Duration::ZERO);
        for (number, members) in tree.racks().iter().enumerate() {
            let rack = racks[members[0]];
            let facts = facts(&self.network, rack)?;
            let known = self.known(rack, number, now)?;
            age = age.max(known.age);
            for direction in [Direction::Up, Direction::Down] {
                let side = usize::from(direction == Direction::Down);
                let of_side = || known.entries.iter().filter(|entry| entry.link % 2 == side as u64);
                let crossing = of_side().map(|entry| (entry.crossing_sharers, entry.crossing_used));
                loads[tree.id(Link::Rack(number, direction))] = load(facts.uplink[side], crossing);
                for machine in members {
                    let place = machines[*machine].1;
                    let total = usize::try_from(place).ok().and_then(|place| facts.machines.get(place));
                    let total =
                        total.ok_or_else(|| Refusal::Unknown(format!("machine {machine} of the tenant")))?;
                    let mut here = of_side().filter(|entry| entry.link / 2 == place).peekable();
                    if here.peek().is_none() {
                        return Err(Refusal::NoReport { machine: *machine });
                    }
                    loads[tree.id(Link::Machine(*machine, direction))] =
                        load(total[side], here.map(|entry| (entry.sharers, entry.used)));
                }
            }
        }
        Ok(Hints { tree, loads, age })
    }

    /// The state of a rack, with the age that it has now. `number` is its number for the tenant.
    fn known(&self, rack: u64, number: usize, now: Duration) -> Result<Aggregate, Refusal> {
        if rack == self.rack {
            return Ok(self.own(now));
        }
        let Some(heard) = self.others.get(&rack) else {
            return Err(Refusal::Silent { rack: number, silent: Duration::MAX });
        };
        let silent = now.saturating_sub(heard.at);
        if silent > PATIENCE {
            return Err(Refusal::Silent { rack: number, silent });
        }
        Ok(Aggregate { age: heard.aggregate.age.saturating_add(silent), ..heard.aggregate.clone() })
    }
}

fn facts(network: &Network, rack: u64) -> Result<&Rack, Refusal> {
    let found = usize::try_from(rack).ok().and_then(|rack| network.racks.get(rack));
    found.ok_or_else(|| Refusal::Unknown(format!("rack {rack}")))
}

fn is_fresh(at: Duration, now: Duration) -> bool {
    now.saturating_sub(at) <= PATIENCE
}

fn paced(who: impl Fn() -> String, last: Duration, now: Duration) -> Result<(), Refusal> {
    let after = now.saturating_sub(last);
    if after < LEAST { Err(Refusal::TooSoon { who: who(), after }) } else { Ok(()) }
}

/// Adds up the use of a link.
fn load(total: f64, uses: impl Iterator<Item = (f64, f64)>) -> Load {
    let (sharers, used) =
        uses.fold((0.0, 0.0), |(sharers, used), (more, rate)| (sharers + more, used + rate));
    Load { total, residual: (total - used).max(0.0), sharers }
}

#[cfg(test)]
mod tests;
