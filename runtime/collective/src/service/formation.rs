//! A group with all its ranks, as one of its hosts sees it: the other hosts, the wires, and the change of strategies.
use super::dialing::dial;
use super::group::{Event, Handle, Own};
use super::outbox::{Outbox, converse};
use crate::barrier::{Barrier, Order};
use crate::operation::Numbered;
use crate::peers::{Between, Formed};
use crate::protocol::{Failure, FailureKind};
use crate::strategy::Strategy;
use crate::team::{NoTeam, Team, WireName, host_clock};
use crate::wire::{Linked, Socket, Wire};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::thread::Builder;
use std::time::{Duration, Instant};
use tidemill_link::remote::{Connection, Greeting, GroupLane, Incoming, Purpose, RemoteError};

/// Time in which the hosts of a group must have connected to each other.
const BUILDING: Duration = Duration::from_secs(15);
/// Pause before a host is dialled again.
const PAUSE: Duration = Duration::from_millis(50);
/// Operations that are compared with those of hosts that are behind.
const MOST_HISTORY: usize = 64;
/// Wires of later strategies that wait, at most, for each host.
const MOST_EARLY: usize = 4096;

/// A host of the group.
#[derive(Debug, Default)]
pub(super) struct Peer {
    pub(super) outbox: Option<Outbox>,
    /// When it gave a sign of life.
    pub(super) heard: Option<Instant>,
    /// Operations that each rank has called, and when that changed.
    pub(super) arrived: BTreeMap<u32, (u64, Instant)>,
}

/// An operation that is carried out.
#[derive(Debug, Clone, Copy)]
pub(super) struct Current {
    pub(super) numbered: Numbered,
    pub(super) since: Instant,
}

/// Wires that are being connected.
pub(super) struct Building {
    pub(super) strategy: Strategy,
    needed: Vec<WireName>,
    have: BTreeMap<(u32, u32, u16), Box<dyn Wire>>,
    pub(super) until: Instant,
    problem: Option<String>,
}

/// A formation.
pub(super) struct Formation {
    pub(super) formed: Formed,
    pub(super) run: u128,
    /// The number of this host.
    pub(super) me: u32,
    pub(super) peers: BTreeMap<u32, Peer>,
    pub(super) building: Option<Building>,
    pub(super) team: Option<Team>,
    pub(super) barrier: Barrier,
    /// Wires of strategies that this host has not come to yet, by epoch, sender, receiver and channel.
    early: BTreeMap<(u64, u32, u32, u16), Connection>,
    pub(super) current: Option<Current>,
    /// The operations that began last, to compare with those of hosts that are behind.
    pub(super) history: VecDeque<Numbered>,
    pub(super) broken: Option<Failure>,
    /// Another host is broken: this one only carries out operations up to this number, whose bytes are on their way.
    pub(super) doomed: Option<(Failure, u64)>,
    /// A failure whose cause another host may know better, until then.
    pub(super) suspected: Option<(Failure, Instant)>,
    pub(super) has_begun: bool,
}

/// The hosts of the members of a strategy.
pub(super) fn order(formed: &Formed, strategy: Strategy) -> Order {
    let host_of = |rank: &u32| {
        let position = formed.hosts.iter().position(|place| place.ranks.contains(rank));
        position.map_or(u32::MAX, |position| position as u32)
    };
    let hosts = strategy.members.iter().map(host_of).collect();
    Order { strategy, hosts }
}

fn is_needed_for(name: &WireName, from: u32, to: u32, channel: u16) -> bool {
    (name.from, name.to, name.channel) == (from, to, channel)
}

impl Formation {
    /// Begins to connect to the other hosts. None: this host is none of the group.
    pub(super) fn begin(formed: Formed, own: &Arc<Own>, handle: &Handle, now: Instant) -> Option<Self> {
        let me = formed.hosts.iter().position(|place| place.host.name == own.host.name)? as u32;
        let run = u128::from_str_radix(&formed.token, 16).ok()?;
        let peers = (0..formed.hosts.len() as u32).filter(|host| *host != me);
        let peers = peers.map(|host| (host, Peer::default())).collect();
        let strategy = formed.strategy.clone();
        let mut formation = Self {
            run,
            me,
            peers,
            building: None,
            team: None,
            barrier: Barrier::new(me, order(&formed, strategy.clone())),
            early: BTreeMap::new(),
            current: None,
            history: VecDeque::new(),
            broken: None,
            doomed: None,
            suspected: None,
            has_begun: false,
            formed,
        };
        for host in me + 1..formation.formed.hosts.len() as u32 {
            formation.dial(host, GroupLane::Control, None, own, handle);
        }
        formation.build(strategy, own, handle, now);
        Some(formation)
    }

    pub(super) fn own_ranks(&self) -> &[u32] {
        &self.formed.hosts[self.me as usize].ranks
    }

    /// The number of the last operation that was carried out.
    pub(super) fn ended(&self) -> u64 {
        self.barrier.last() - u64::from(self.current.is_some())
    }

    /// The host of a rank.
    pub(super) fn host_of(&self, rank: u32) -> Option<u32> {
        let position = self.formed.hosts.iter().position(|place| place.ranks.contains(&rank))?;
        Some(position as u32)
    }

    /// The name of a host.
    pub(super) fn name_of(&self, host: u32) -> String {
        self.formed.hosts.get(host as usize).map(|place| place.host.name.clone()).unwrap_or_default()
    }

    fn greeting(&self, own: &Own, lane: GroupLane) -> Greeting {
        let purpose =
            Purpose::Group { host: own.host.name.clone(), group: self.formed.key.to_string(), lane };
        Greeting { run: self.run, plan_version: 0, purpose }
    }

    /// Dials another host on a thread of its own, until it answers or time is up.
    fn dial(&self, host: u32, lane: GroupLane, path: Option<&str>, own: &Arc<Own>, handle: &Handle) {
        let place = &self.formed.hosts[host as usize];
        let path = path.and_then(|name| own.host.paths.iter().find(|path| path.name == name)).cloned();
        let (address, greeting) = (place.address.clone(), self.greeting(own, lane));
        let (own, tell, run) = (Arc::clone(own), handle.clone(), self.run);
        let work = move || {
            let Some(address) = address else { return };
            let until = super::now() + BUILDING;
            let outcome = loop {
                match dial(&address, &own.security, &greeting, path.as_ref()) {
                    // Its service may be a little behind.
                    Err(_) if super::now() < until && tell.is_wanted() => std::thread::sleep(PAUSE),
                    outcome => break outcome,
                }
            };
            tell.post(Event::Dialled { run, host, lane, outcome });
        };
        if let Err(error) = Builder::new().name("tm-group-dial".into()).spawn(work) {
            handle.post(Event::Dialled { run: self.run, host, lane, outcome: Err(RemoteError::Io(error)) });
        }
    }

    /// Begins to connect the wires of a strategy.
    pub(super) fn build(&mut self, strategy: Strategy, own: &Arc<Own>, handle: &Handle, now: Instant) {
        self.team = None;
        let epoch = strategy.epoch;
        let needed = Team::needed(&strategy, self.own_ranks());
        for name in needed.iter().filter(|name| self.own_ranks().contains(&name.from)) {
            let Some(host) = self.host_of(name.to).filter(|host| *host != self.me) else { continue };
            let lane = GroupLane::Wire { epoch, from: name.from, to: name.to, channel: name.channel };
            self.dial(host, lane, name.path.as_deref(), own, handle);
        }
        let mut building =
            Building { strategy, needed, have: BTreeMap::new(), until: now + BUILDING, problem: None };
        self.early.retain(|(of, ..), _| *of >= epoch);
        let later = self.early.split_off(&(epoch + 1, 0, 0, 0));
        for ((_, from, to, channel), connection) in std::mem::replace(&mut self.early, later) {
            building.add(from, to, channel, connection);
        }
        self.building = Some(building);
    }

    /// A connection that this host dialled.
    pub(super) fn dialled(
        &mut self,
        host: u32,
        lane: GroupLane,
        outcome: Result<Connection, RemoteError>,
        handle: &Handle,
    ) {
        match outcome {
            Ok(connection) => self.connected(host, lane, connection, handle),
            Err(error) => {
                let problem = format!("host {} cannot be reached: {error}", self.name_of(host));
                if let Some(building) = &mut self.building {
                    building.problem = Some(problem);
                }
            }
        }
    }

    /// Another host that greeted.
    pub(super) fn come(&mut self, incoming: Incoming, own: &Own, handle: &Handle) {
        let Purpose::Group { host: name, lane, .. } = incoming.greeting.purpose.clone() else { return };
        let position = self.formed.hosts.iter().position(|place| place.host.name == name);
        let Some(host) = position.map(|host| host as u32).filter(|host| *host != self.me) else {
            return incoming.refuse("the group has no such host");
        };
        match incoming.accept(&self.greeting(own, lane)) {
            Ok(connection) => self.connected(host, lane, connection, handle),
            Err(error) => tracing::debug!("a host of a group was lost at once: {error}"),
        }
    }

    fn connected(&mut self, host: u32, lane: GroupLane, connection: Connection, handle: &Handle) {
        match lane {
            GroupLane::Registration => {}
            GroupLane::Control => {
                let (tell, run) = (handle.clone(), self.run);
                let heard = move |message| tell.post(Event::Heard { run, host, message });
                match converse::<Between>(connection, heard) {
                    Ok(outbox) => {
                        if let Some(peer) = self.peers.get_mut(&host) {
                            peer.outbox = Some(outbox);
                        }
                    }
                    Err(error) => tracing::error!("a group has no thread for host {host}: {error}"),
                }
            }
            GroupLane::Wire { epoch, from, to, channel } => match &mut self.building {
                Some(building) if building.strategy.epoch == epoch => {
                    building.add(from, to, channel, connection);
                }
                _ if epoch > self.barrier.current().strategy.epoch && self.early.len() < MOST_EARLY => {
                    self.early.insert((epoch, from, to, channel), connection);
                }
                _ => {}
            },
        }
    }

    /// Returns whether all other hosts and all wires are there; makes the team then.
    pub(super) fn is_built(&mut self) -> Result<bool, NoTeam> {
        let are_there = self.peers.values().all(|peer| peer.outbox.is_some());
        if !are_there || !self.building.as_ref().is_some_and(Building::is_complete) {
            return Ok(false);
        }
        let Some(building) = self.building.take() else { return Ok(false) };
        let Building { strategy, needed, mut have, .. } = building;
        let wires = needed.into_iter().filter_map(|name| {
            let wire = have.remove(&(name.from, name.to, name.channel))?;
            Some((name, wire))
        });
        let wires = wires.collect();
        self.team = Some(Team::new(strategy, self.own_ranks(), wires, host_clock())?);
        Ok(true)
    }

    /// Why the wires are not there in time.
    pub(super) fn unbuilt(&self) -> Failure {
        let missing = self.peers.iter().find(|(_, peer)| peer.outbox.is_none()).map(|(host, _)| *host);
        let building = self.building.as_ref();
        let wire = building
            .and_then(|building| building.missing())
            .map(|name| if self.own_ranks().contains(&name.from) { name.to } else { name.from });
        let host = missing.or_else(|| wire.and_then(|rank| self.host_of(rank)));
        let host = host.map(|host| self.name_of(host)).unwrap_or_default();
        let problem = building.and_then(|building| building.problem.clone());
        let text = problem.unwrap_or_else(|| format!("host {host} did not connect in time"));
        Failure { kind: FailureKind::Lost, rank: None, host, text }
    }

    /// An operation begins.
    pub(super) fn begins(&mut self, numbered: Numbered, since: Instant) {
        self.current = Some(Current { numbered, since });
        self.history.push_back(numbered);
        if self.history.len() > MOST_HISTORY {
            self.history.pop_front();
        }
    }

    /// Tells all other hosts.
    pub(super) fn tell(&self, message: &Between) {
        for outbox in self.peers.values().filter_map(|peer| peer.outbox.as_ref()) {
            outbox.send(message);
        }
    }
}

impl Building {
    fn add(&mut self, from: u32, to: u32, channel: u16, connection: Connection) {
        if !self.needed.iter().any(|name| is_needed_for(name, from, to, channel)) {
            return;
        }
        let wire: Box<dyn Wire> = match connection.into_bytes().into_socket() {
            Ok(Ok(socket)) => Box::new(Socket::new(socket)),
            Ok(Err(error)) => return self.problem = Some(error.to_string()),
            Err(stream) => Box::new(Linked::new(stream)),
        };
        self.have.insert((from, to, channel), wire);
    }

    fn missing(&self) -> Option<&WireName> {
        self.needed.iter().find(|name| !self.have.contains_key(&(name.from, name.to, name.channel)))
    }

    fn is_complete(&self) -> bool {
        self.missing().is_none()
    }
}
