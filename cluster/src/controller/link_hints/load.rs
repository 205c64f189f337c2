//! The load of a link by others than runs, from what the machines at one end of it count.
//!
//! Machines at the end that is nearer to the sources count, because its link out is the thin one: what a machine of the cloud exchanges with
//! the world says nothing about its link to one site. Of their traffic these parts are on the link: that with workers at the other end,
//! and that with machines unknown to the cluster which leaves the site. Traffic with workers elsewhere is on links of its own.
use crate::api::TrafficReport;
use crate::controller::measured_links::Place;
use crate::controller::planning::rank;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

/// A report that is older than this is not used: three heartbeats are missing.
const PATIENCE: Duration = Duration::from_secs(2);

/// Load of a link in one direction. Rates are in bits per second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct OtherLoad {
    /// TCP connections.
    pub(crate) flows: f64,
    /// Bits per second that these carry.
    pub(crate) yields: f64,
    /// Bits per second that do not give in to others, because they are not TCP.
    pub(crate) stays: f64,
}

impl OtherLoad {
    fn and(self, other: Self) -> Self {
        Self {
            flows: self.flows + other.flows,
            yields: self.yields + other.yields,
            stays: self.stays + other.stays,
        }
    }

    fn most(self, other: Self) -> Self {
        Self {
            flows: self.flows.max(other.flows),
            yields: self.yields.max(other.yields),
            stays: self.stays.max(other.stays),
        }
    }

    /// Returns the mean of loads.
    pub(crate) fn mean(all: impl Iterator<Item = Self>) -> Option<Self> {
        let (sum, count) = all.fold((Self::default(), 0.0), |(sum, count), one| (sum.and(one), count + 1.0));
        (count > 0.0).then(|| Self {
            flows: sum.flows / count,
            yields: sum.yields / count,
            stays: sum.stays / count,
        })
    }
}

/// A worker and its last report.
#[derive(Debug, Clone)]
pub(crate) struct Machine {
    pub(crate) name: String,
    pub(crate) place: Place,
    pub(crate) addresses: BTreeSet<IpAddr>,
    pub(crate) report: Option<TrafficReport>,
    /// Time since that.
    pub(crate) silent: Duration,
}

/// Machines of the cluster.
#[derive(Debug, Default)]
pub(crate) struct Machines {
    of: BTreeMap<Place, Vec<Machine>>,
    places: BTreeMap<IpAddr, BTreeSet<Place>>,
}

#[derive(Clone, Copy)]
enum Side {
    Sent,
    Received,
}

impl Machines {
    pub(crate) fn of(all: Vec<Machine>) -> Self {
        let mut found = Self::default();
        for machine in all {
            for address in &machine.addresses {
                found.places.entry(address.to_canonical()).or_default().insert(machine.place.clone());
            }
            found.of.entry(machine.place.clone()).or_default().push(machine);
        }
        found
    }

    /// Returns the load of the link from one place to another.
    ///
    /// # Errors
    /// The reason why it is not known, for people.
    pub(crate) fn load(&self, from: &Place, to: &Place) -> Result<OtherLoad, String> {
        let ranked = |place: &Place| rank(place.0.as_deref().unwrap_or_default());
        let (own, other) = (ranked(from), ranked(to));
        let sent = (own <= other).then(|| self.counted(from, to, Side::Sent)).transpose()?;
        let received = (other <= own).then(|| self.counted(to, from, Side::Received)).transpose()?;
        Ok(sent.unwrap_or_default().most(received.unwrap_or_default()))
    }

    fn counted(&self, here: &Place, there: &Place, side: Side) -> Result<OtherLoad, String> {
        let machines = self.of.get(here).filter(|all| !all.is_empty());
        let machines = machines.ok_or("no worker at its end reports")?;
        let mut sum = OtherLoad::default();
        for Machine { name, report, silent, .. } in machines {
            let Some(report) = report else {
                return Err(format!("worker {name} does not count its traffic"));
            };
            if let Some(problem) = &report.problem {
                return Err(format!("worker {name} cannot count its traffic: {problem}"));
            }
            if *silent > PATIENCE {
                return Err(format!("worker {name} last reported its traffic {} s ago", silent.as_secs()));
            }
            for of in &report.peers {
                let place = of.peer.and_then(|peer| self.places.get(&peer.to_canonical()));
                if place.map_or(!of.is_near, |places| places.contains(there)) {
                    let rate = match side {
                        Side::Sent => of.sent,
                        Side::Received => of.received,
                    };
                    let (flows, yields) = (rate.flows, rate.bytes_per_second as f64 * 8.0);
                    sum = sum.and(OtherLoad { flows, yields, stays: 0.0 });
                }
            }
            sum.stays += report.other[side as usize] as f64 * 8.0;
        }
        Ok(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{FlowRate, PeerTraffic};

    fn place(tier: &str, location: &str) -> Place {
        (Some(tier.to_owned()), Some(location.to_owned()))
    }

    fn with(peer: Option<[u8; 4]>, is_near: bool, sent: u64, received: u64) -> PeerTraffic {
        let rate = |bytes_per_second| FlowRate { flows: 1.0, bytes_per_second };
        PeerTraffic { peer: peer.map(Into::into), is_near, sent: rate(sent), received: rate(received) }
    }

    fn machine(name: &str, place: Place, address: [u8; 4], peers: Vec<PeerTraffic>) -> Machine {
        let report = TrafficReport { milliseconds: 500, peers, other: [10, 0], problem: None };
        let (name, addresses) = (name.to_owned(), [address.into()].into());
        Machine { name, place, addresses, report: Some(report), silent: Duration::ZERO }
    }

    #[test]
    fn traffic_is_on_the_link_that_it_takes() {
        let (north, south, cloud) = (place("edge", "north"), place("edge", "south"), place("cloud", "c"));
        let world = with(Some([8, 8, 8, 8]), false, 100, 1);
        let peers = vec![
            world.clone(),
            with(None, false, 1_000, 2),
            with(Some([10, 0, 0, 9]), true, 7, 7),
            with(Some([10, 9, 0, 1]), false, 10_000, 3),
            // It is reached without a router, but is a worker elsewhere.
            with(Some([10, 0, 0, 5]), true, 100_000, 4),
        ];
        let all = Machines::of(vec![
            machine("edge-1", north.clone(), [10, 0, 0, 1], peers),
            machine("edge-2", south.clone(), [10, 0, 0, 5], Vec::new()),
            machine("big", cloud.clone(), [10, 9, 0, 1], vec![with(None, false, 1 << 40, 1 << 40)]),
        ]);
        let up = all.load(&north, &cloud).unwrap();
        assert_eq!((up.flows, up.yields, up.stays), (3.0, 8.0 * 11_100.0, 80.0));
        let down = all.load(&cloud, &north).unwrap();
        assert_eq!((down.flows, down.yields, down.stays), (3.0, 8.0 * 6.0, 0.0), "the site's end counts");
        let across = all.load(&north, &south).unwrap();
        assert_eq!((across.flows, across.yields), (3.0, 8.0 * 101_100.0));
    }

    #[test]
    fn a_machine_that_does_not_count_leaves_its_link_unknown() {
        let (edge, hub) = (place("edge", "a"), place("hub", "b"));
        let one = || machine("one", edge.clone(), [10, 0, 0, 1], Vec::new());
        let load = |other: Machine| Machines::of(vec![one(), other]).load(&edge, &hub);
        let other = |name| machine(name, edge.clone(), [10, 0, 0, 2], Vec::new());
        assert!(load(other("two")).is_ok());
        let why = load(Machine { report: None, ..other("two") }).unwrap_err();
        assert_eq!(why, "worker two does not count its traffic");
        let why = load(Machine { silent: Duration::from_secs(7), ..other("two") }).unwrap_err();
        assert_eq!(why, "worker two last reported its traffic 7 s ago");
        let problem = Some("not permitted".to_owned());
        let report = Some(TrafficReport { problem, ..TrafficReport::default() });
        let why = load(Machine { report, ..other("two") }).unwrap_err();
        assert_eq!(why, "worker two cannot count its traffic: not permitted");
        assert!(Machines::default().load(&edge, &hub).is_err());
    }
}
