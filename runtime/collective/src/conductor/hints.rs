//! The table of links, as leaders of racks report them: who leads, what links carry, and what groups could get.
mod planning;
#[cfg(test)]
mod tests;
mod view;

use super::{Conductor, Link, Messages};
use crate::cost;
use crate::hints::{Export, Facts, Origin, Part, Way};
use crate::peers::{FromConductor, Key};
use crate::topology::Host;
use planning::Followed;
use std::collections::BTreeMap;
use std::time::Duration;
use tidemill_hints::changes::Changes;
use tidemill_hints::estimate::Load;
use tidemill_hints::leader::{self, Leader, Network};
use tidemill_hints::message::{Aggregate, Entry};
use tidemill_hints::peak::Peak;
use tidemill_link::remote::Address;

/// The rack of an observer: it is of none.
const NO_RACK: u64 = u64::MAX;

/// A host that counts.
struct Machine {
    host: String,
    /// Its connection; none: it is lost.
    link: Option<Link>,
    address: Option<Address>,
    facts: Facts,
    peaks: [Peak; 2],
}

/// A rack.
struct Rack {
    name: String,
    /// Hosts by number. A host keeps its number.
    machines: Vec<Machine>,
    peaks: [Peak; 2],
    leader: Option<Link>,
}

/// Everything that is known of links.
pub(super) struct Hints {
    /// By number. A rack keeps its number.
    racks: Vec<Rack>,
    observer: Leader,
    changes: Changes,
    followed: BTreeMap<Key, Followed>,
    /// Mean time that plans take.
    planning: Duration,
    has_planned: bool,
    /// Mean time from an order of another strategy until all hosts have it; none: it was not measured.
    switching: Option<Duration>,
    pub(super) export: Export,
}

impl Default for Hints {
    fn default() -> Self {
        Self {
            racks: Vec::new(),
            observer: Leader::new(NO_RACK, Network::default()),
            changes: Changes::default(),
            followed: BTreeMap::new(),
            planning: Duration::ZERO,
            has_planned: false,
            switching: None,
            export: Export::default(),
        }
    }
}

/// A sum of what entries of one direction use.
fn used(entries: &[Entry], side: usize, use_of: fn(&Entry) -> f64) -> f64 {
    entries.iter().filter(|entry| entry.link % 2 == side as u64).map(use_of).sum()
}

impl Rack {
    /// The host that others report to: of those that can be reached, the first one by name.
    fn elected(&self) -> Option<&Machine> {
        let there = || self.machines.iter().filter(|machine| machine.link.is_some());
        let first = |reached: bool| {
            there()
                .filter(|machine| !reached || machine.address.is_some())
                .min_by_key(|machine| &machine.host)
        };
        first(true).or_else(|| first(false))
    }

    fn machine_rate(machine: &Machine, side: usize) -> (f64, Origin) {
        match (machine.facts.rate, machine.peaks[side].learned()) {
            (Some(rate), _) if machine.facts.by_interface => (rate[side], Origin::Interface),
            (Some(rate), _) => (rate[side], Origin::Stated),
            (None, Some(learned)) => (learned, Origin::Learned),
            (None, None) => (cost::Facts::default().host_rate, Origin::Assumed),
        }
    }

    /// The rate between the rack and others. Without anything known, it is that of all its hosts.
    fn rate(&self, side: usize) -> (f64, Origin) {
        let stated = self.machines.iter().filter(|machine| machine.link.is_some());
        let stated = stated.filter_map(|machine| machine.facts.rack_rate).map(|rate| rate[side]);
        match (stated.reduce(f64::max), self.peaks[side].learned()) {
            (Some(rate), _) => (rate, Origin::Stated),
            (None, Some(learned)) => (learned, Origin::Learned),
            (None, None) => {
                let all = self.machines.iter().filter(|machine| machine.link.is_some());
                (all.map(|machine| Self::machine_rate(machine, side).0).sum(), Origin::Assumed)
            }
        }
    }
}

impl Hints {
    /// A host counts from now on, or counts otherwise.
    pub(super) fn come(
        &mut self,
        link: Link,
        (host, address): (&Host, Option<&Address>),
        facts: Facts,
    ) -> Messages {
        for machine in self.racks.iter_mut().flat_map(|rack| &mut rack.machines) {
            // It was in another rack before.
            machine.link = machine.link.filter(|of| *of != link);
        }
        let number = self.racks.iter().position(|rack| rack.name == host.rack).unwrap_or_else(|| {
            let (name, peaks) = (host.rack.clone(), <[Peak; 2]>::default());
            self.racks.push(Rack { name, machines: Vec::new(), peaks, leader: None });
            self.racks.len() - 1
        });
        let Some(rack) = self.racks.get_mut(number) else { return Messages::new() };
        let known = rack.machines.iter().position(|machine| machine.host == host.name);
        let address = address.cloned();
        let peaks = known.map(|at| rack.machines[at].peaks.clone()).unwrap_or_default();
        let machine = Machine { host: host.name.clone(), link: Some(link), address, facts, peaks };
        match known {
            Some(at) => rack.machines[at] = machine,
            None => rack.machines.push(machine),
        }
        self.observer.set_network(network(&self.racks));
        self.parts(number)
    }

    /// A connection of a service ended.
    pub(super) fn lost(&mut self, link: Link) -> Messages {
        let mut out = Messages::new();
        for number in 0..self.racks.len() {
            let of_link = self.racks[number].machines.iter_mut().find(|machine| machine.link == Some(link));
            if let Some(machine) = of_link {
                machine.link = None;
                out.extend(self.parts(number));
            }
        }
        out
    }

    /// Tells the hosts of a rack who is in it, and who leads it.
    fn parts(&mut self, number: usize) -> Messages {
        let Some(rack) = self.racks.get_mut(number) else { return Messages::new() };
        let leader = rack.elected();
        let part = Part {
            rack: number as u64,
            leader: leader.map(|machine| machine.host.clone()),
            address: leader.and_then(|machine| machine.address.clone()),
            machines: (rack.machines.iter().enumerate())
                .filter(|(_, machine)| machine.link.is_some())
                .map(|(number, machine)| (machine.host.clone(), number as u64))
                .collect(),
            near: rack
                .machines
                .iter()
                .filter(|machine| machine.link.is_some())
                .filter_map(|of| of.address.clone())
                .collect(),
        };
        let leader = leader.and_then(|machine| machine.link);
        if std::mem::replace(&mut rack.leader, leader) != leader {
            self.observer.succeeded(number as u64);
        }
        let tell = |link| (link, FromConductor::Hints(Box::new(part.clone())));
        rack.machines.iter().filter_map(|machine| machine.link).map(tell).collect()
    }

    /// The leader of a rack says what its links carry.
    pub(super) fn hear(&mut self, from: Link, aggregate: Aggregate, now: Duration) {
        let number = usize::try_from(aggregate.rack).unwrap_or(usize::MAX);
        let Some(rack) = self.racks.get(number).filter(|rack| rack.leader == Some(from)) else { return };
        let is_figure = |figure: f64| figure.is_finite() && figure >= 0.0;
        let are_figures = |entry: &Entry| {
            [entry.sharers, entry.used, entry.crossing_sharers, entry.crossing_used]
                .into_iter()
                .all(is_figure)
        };
        if !aggregate.entries.iter().all(are_figures) {
            return tracing::warn!("the leader of rack {:?} says figures that are none", rack.name);
        }
        let entries = aggregate.entries.clone();
        match self.observer.hear(aggregate, now) {
            Ok(true) => {}
            Ok(false) => return,
            Err(refusal) => return tracing::warn!("the leader of a rack is not believed: {refusal}"),
        }
        let Some(rack) = self.racks.get_mut(number) else { return };
        for side in 0..2 {
            rack.peaks[side].observe(used(&entries, side, |entry| entry.crossing_used), now);
            for (number, machine) in rack.machines.iter_mut().enumerate() {
                let here: Vec<Entry> =
                    entries.iter().filter(|entry| entry.link / 2 == number as u64).copied().collect();
                if !here.is_empty() {
                    machine.peaks[side].observe(used(&here, side, |entry| entry.used), now);
                }
            }
        }
    }

    /// All hosts of a group have changed to a strategy that was ordered this long ago.
    pub(super) fn switched(&mut self, took: Duration) {
        self.switching = Some(self.switching.map_or(took, |known| (known * 7 + took) / 8));
    }

    /// A period is over.
    fn look(&mut self, now: Duration) {
        self.observer.set_network(network(&self.racks));
        let loads: Vec<Load> = self.links(now).into_iter().map(|link| link.load).collect();
        if !loads.is_empty() {
            self.changes.observe(&loads, now);
        }
    }

    /// The rack and the number of a host that counts.
    fn place(&self, host: &str) -> Option<(u64, u64)> {
        self.racks.iter().enumerate().find_map(|(rack, of)| {
            let is_meant = |machine: &Machine| machine.host == host && machine.link.is_some();
            let machine = of.machines.iter().position(is_meant)?;
            Some((rack as u64, machine as u64))
        })
    }

    /// The rates of links that are known: stated, of the interface, or learned.
    pub(super) fn totals(&self) -> cost::Totals {
        let known = |rate: &dyn Fn(usize) -> (f64, Origin)| {
            [0, 1].map(|side| {
                Some(rate(side)).filter(|(_, origin)| *origin != Origin::Assumed).map(|(rate, _)| rate)
            })
        };
        let mut totals = cost::Totals::default();
        for rack in &self.racks {
            totals.racks.insert(rack.name.clone(), known(&|side| rack.rate(side)));
            for machine in rack.machines.iter().filter(|machine| machine.link.is_some()) {
                totals.hosts.insert(machine.host.clone(), known(&|side| Rack::machine_rate(machine, side)));
            }
        }
        totals
    }

    /// All links whose state is known.
    fn links(&self, now: Duration) -> Vec<Known<'_>> {
        let mut links = Vec::new();
        for (number, rack) in self.racks.iter().enumerate() {
            let Some(state) = self.observer.state(number as u64, now) else { continue };
            if state.entries.is_empty() {
                continue;
            }
            for (side, way) in [Way::Up, Way::Down].into_iter().enumerate() {
                let of_side = || state.entries.iter().filter(|entry| entry.link % 2 == side as u64);
                let (total, total_from) = rack.rate(side);
                let sharers = of_side().map(|entry| entry.crossing_sharers).sum();
                let used = of_side().map(|entry| entry.crossing_used).sum::<f64>();
                let load = Load { total, residual: (total - used).max(0.0), sharers };
                links.push(Known { rack: &rack.name, host: None, way, load, total_from });
                for (number, machine) in rack.machines.iter().enumerate() {
                    let mut here = of_side().filter(|entry| entry.link / 2 == number as u64);
                    let Some(entry) = here.next().filter(|_| machine.link.is_some()) else { continue };
                    let (total, total_from) = Rack::machine_rate(machine, side);
                    let residual = (total - entry.used).max(0.0);
                    let load = Load { total, residual, sharers: entry.sharers };
                    links.push(Known { rack: &rack.name, host: Some(&machine.host), way, load, total_from });
                }
            }
        }
        links
    }
}

/// A link and its state.
struct Known<'a> {
    rack: &'a str,
    /// None: that between the rack and others.
    host: Option<&'a str>,
    way: Way,
    load: Load,
    total_from: Origin,
}

/// The rates of all racks.
fn network(racks: &[Rack]) -> Network {
    let sides = |rate: &dyn Fn(usize) -> f64| [rate(0), rate(1)];
    let rack = |rack: &Rack| leader::Rack {
        machines: (rack.machines.iter())
            .map(|machine| sides(&|side| Rack::machine_rate(machine, side).0))
            .collect(),
        uplink: sides(&|side| rack.rate(side).0),
    };
    Network { racks: racks.iter().map(rack).collect() }
}

impl Conductor {
    /// A service counts the traffic of its host.
    pub(super) fn counts(&mut self, from: Link, facts: Facts) -> Messages {
        let Some(registered) = self.hosts.get(&from) else { return Messages::new() };
        let is_rate = |rate: &[f64; 2]| rate.iter().all(|rate| rate.is_finite() && *rate > 0.0);
        let facts =
            Facts { rate: facts.rate.filter(is_rate), rack_rate: facts.rack_rate.filter(is_rate), ..facts };
        self.hints.come(from, (&registered.host, registered.address.as_ref()), facts)
    }
}
