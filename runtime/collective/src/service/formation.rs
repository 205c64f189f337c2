//! A group with all its ranks, as one of its hosts sees it: the other hosts, the wires, and the change of strategies.
use super::dialing::dial;
use super::group::{Event, Handle};
use super::outbox::{Outbox, converse};
use super::own::Own;
use crate::barrier::{Barrier, Message, Order};
use crate::operation::Numbered;
use crate::peers::{Between, Formed};
use crate::protocol::{Failure, FailureKind};
use crate::strategy::{MAX_EPOCH, Strategy};
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
/// Signs of life after which a host would have said that it closed a wire: earlier ones may have been on their way.
const SIGNS: u32 = 3;
/// Wires of later strategies that wait, at most, for each host.
const MOST_EARLY: usize = 4096;

/// Operations of a group, at most: no group comes near it.
const MOST_OPERATIONS: u64 = 1 << 62;

/// A host of the group.
#[derive(Debug, Default)]
pub(super) struct Peer {
    pub(super) outbox: Option<Outbox>,
    /// Words for it from before it was connected. Changes of the strategy may come that early.
    unsaid: Vec<Between>,
    /// It has said that the group is broken: nothing follows.
    pub(super) is_broken: bool,
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
    /// The congestion control of wires; none: that of the system.
    congestion: Option<String>,
    have: BTreeMap<(u32, u32, u16), Box<dyn Wire>>,
    pub(super) until: Instant,
    problem: Option<String>,
}

/// A wire that ended while no operation ran.
struct EndedWire {
    host: u32,
    failure: Failure,
    /// Signs of life of that host since then.
    signs: u32,
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
    ended_wire: Option<EndedWire>,
    /// The strategy was exchanged, and its wires are those of the one before.
    is_retimed: bool,
    pub(super) has_begun: bool,
    own: Arc<Own>,
}

/// The hosts of the members of a strategy.
pub(crate) fn order(formed: &Formed, strategy: Strategy) -> Order {
    let host_of = |rank: &u32| {
        let position = formed.hosts.iter().position(|place| place.ranks.contains(rank));
        position.map_or(u32::MAX, |position| position as u32)
    };
    let hosts = strategy.members.iter().map(host_of).collect();
    Order { strategy, hosts }
}

/// Returns why a message of a host about a change of the strategy cannot be believed, if so.
pub(crate) fn doubt(formed: &Formed, host: u32, message: &Message) -> Option<String> {
    let Message { host: speaker, position, order: ordered } = message;
    if *speaker != host {
        return Some(format!("it speaks for host {speaker}"));
    }
    // A host whose group is broken says that, and forms it anew: it changes no strategy.
    if position.broken {
        return Some("it is broken, and goes on".to_owned());
    }
    if position.launched > MOST_OPERATIONS || position.under > MAX_EPOCH {
        return Some(format!("it is at operation {} under strategy {}", position.launched, position.under));
    }
    if let Err(reason) = ordered.strategy.check() {
        return Some(reason.to_string());
    }
    let own = order(formed, ordered.strategy.clone());
    (own != *ordered || own.hosts.contains(&u32::MAX)).then(|| "its ranks are on other hosts".to_owned())
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
            ended_wire: None,
            is_retimed: false,
            has_begun: false,
            own: Arc::clone(own),
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
        self.barrier.last().saturating_sub(u64::from(self.current.is_some()))
    }

    /// The host of a rank.
    pub(super) fn host_of(&self, rank: u32) -> Option<u32> {
        let position = self.formed.hosts.iter().position(|place| place.ranks.contains(&rank))?;
        Some(position as u32)
    }

    fn rack_of(&self, rank: u32) -> Option<&str> {
        Some(&self.formed.hosts[self.host_of(rank)? as usize].host.rack)
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

    /// Begins to connect the wires of a strategy. Where only the times differ at which it sends, they stay as they are.
    pub(super) fn build(&mut self, strategy: Strategy, own: &Arc<Own>, handle: &Handle, now: Instant) {
        if let Some(team) = &mut self.team
            && team.retime(&strategy)
        {
            team.set_gate(own.groups.gate(&strategy.yields));
            self.early.retain(|(of, ..), _| *of > strategy.epoch);
            self.is_retimed = true;
            return;
        }
        self.team = None;
        self.ended_wire = None;
        let epoch = strategy.epoch;
        let needed = Team::needed(&strategy, self.own_ranks());
        for name in needed.iter().filter(|name| self.own_ranks().contains(&name.from)) {
            let Some(host) = self.host_of(name.to).filter(|host| *host != self.me) else { continue };
            let lane = GroupLane::Wire { epoch, from: name.from, to: name.to, channel: name.channel };
            self.dial(host, lane, name.path.as_deref(), own, handle);
        }
        let (congestion, until) = (own.congestion.clone(), now + BUILDING);
        let mut building =
            Building { strategy, needed, congestion, have: BTreeMap::new(), until, problem: None };
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
                            for message in peer.unsaid.drain(..) {
                                outbox.send(&message);
                            }
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
        if std::mem::take(&mut self.is_retimed) {
            return Ok(true);
        }
        let are_there = self.peers.values().all(|peer| peer.outbox.is_some());
        if !are_there || !self.building.as_ref().is_some_and(Building::is_complete) {
            return Ok(false);
        }
        let Some(building) = self.building.take() else { return Ok(false) };
        let Building { strategy, needed, mut have, .. } = building;
        let wires = needed.into_iter().filter_map(|name| {
            let wire = have.remove(&(name.from, name.to, name.channel))?;
            let leaves_rack = self.rack_of(name.from) != self.rack_of(name.to);
            Some((name, self.own.wires.count(wire, leaves_rack)))
        });
        let wires = wires.collect();
        let gate = self.own.groups.gate(&strategy.yields);
        let mut team = Team::new(strategy, self.own_ranks(), wires, host_clock())?;
        team.set_gate(gate);
        self.team = Some(team);
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

    /// Returns the failure of a wire whose other end is this rank.
    pub(super) fn failure_of_wire(&self, rank: u32, reason: &str) -> Failure {
        let host = self.host_of(rank).map(|host| self.name_of(host)).unwrap_or_default();
        let text = format!("the connection with rank {rank} on host {host}: {reason}");
        Failure { kind: FailureKind::Lost, rank: Some(rank), host, text }
    }

    /// Returns the team whose wires are to be watched, because no operation runs that would notice their end.
    pub(super) fn resting(&self) -> Option<&Team> {
        let is_sound = self.broken.is_none() && self.doomed.is_none() && self.suspected.is_none();
        let is_resting = self.current.is_none() && self.barrier.is_at_rest() && self.ended_wire.is_none();
        self.team.as_ref().filter(|_| is_sound && is_resting)
    }

    /// A wire to this rank has ended while no operation ran. A host that is broken closes its wires, and has said so: its message may
    /// be on its way.
    pub(super) fn wire_ended(&mut self, rank: u32) {
        let Some(host) = self.host_of(rank) else { return };
        let failure = self.failure_of_wire(rank, "it has ended while no operation ran");
        self.ended_wire = Some(EndedWire { host, failure, signs: 0 });
    }

    /// Another host gave a sign of life. Returns the failure of its wire that ended, if it has said nothing of that by now.
    pub(super) fn sign_of_life(&mut self, host: u32) -> Option<Failure> {
        let ended = self.ended_wire.as_mut().filter(|ended| ended.host == host)?;
        ended.signs += 1;
        (ended.signs >= SIGNS).then(|| ended.failure.clone())
    }

    /// Sends it to all other hosts: to one that is not connected yet, later, unless it is a sign of life.
    pub(super) fn tell(&mut self, message: &Between) {
        for peer in self.peers.values_mut() {
            match &peer.outbox {
                Some(outbox) => {
                    outbox.send(message);
                }
                None if matches!(message, Between::Hello { .. }) => {}
                None => peer.unsaid.push(message.clone()),
            }
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
        if let Some(name) = &self.congestion
            && let Err(error) = super::congestion::set(wire.readable(), name)
        {
            return self.problem = Some(format!("congestion control {name}: {error}"));
        }
        self.have.insert((from, to, channel), wire);
    }

    fn missing(&self) -> Option<&WireName> {
        self.needed.iter().find(|name| !self.have.contains_key(&(name.from, name.to, name.channel)))
    }

    fn is_complete(&self) -> bool {
        self.missing().is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::barrier::Position;
    use crate::peers::{Key, Place};
    use crate::topology::Host;

    fn formed() -> Formed {
        let place = |number: u32| Place {
            host: Host { name: format!("h{number}"), ..Host::default() },
            address: None,
            ranks: vec![number],
        };
        let key = Key { user: 1, name: "g".to_owned() };
        let strategy = Strategy::rank_order(1, vec![0, 1]);
        Formed { key, token: "1".to_owned(), hosts: vec![place(0), place(1)], strategy }
    }

    #[test]
    fn what_another_host_cannot_mean_is_doubted() {
        let formed = formed();
        let said = |change: &dyn Fn(&mut Message)| {
            let position = Position { launched: 3, under: 1, broken: false };
            let order = order(&formed, Strategy::rank_order(2, vec![0, 1]));
            let mut message = Message { host: 1, position, order };
            change(&mut message);
            doubt(&formed, 1, &message)
        };
        assert_eq!(said(&|_| {}), None);
        for (change, word) in [
            (&(|message: &mut Message| message.host = 0) as &dyn Fn(&mut Message), "host 0"),
            (&|message| message.position.launched = u64::MAX, "operation"),
            (&|message| message.position.under = u64::MAX, "operation"),
            (&|message| message.position.broken = true, "broken"),
            (&|message| message.order.strategy.epoch = u64::MAX, "highest"),
            (&|message| message.order.strategy.channels.clear(), "channels"),
            (&|message| message.order.strategy.channels[0].ring = vec![7; 1_000_000], "ring"),
            (&|message| message.order.strategy = Strategy::rank_order(2, vec![0, 9]), "other hosts"),
            (&|message| message.order.hosts = vec![0, 0], "other hosts"),
            (&|message| message.order.hosts.clear(), "other hosts"),
        ] {
            let reason = said(change);
            assert!(reason.as_ref().is_some_and(|reason| reason.contains(word)), "{word}: {reason:?}");
        }
    }
}
