//! The thread of a group on this host: its programs, its wires, and its operations.
mod counting;
mod differing;
mod early;
mod ending;
mod looking;

use super::counted::{Shared, micros};
use super::formation::{Formation, doubt, order};
use super::local::{Local, Standing, Wish};
use super::own::Own;
use super::{Up, now};
use crate::barrier::Action;
use crate::memory::Memory;
use crate::operation::Numbered;
use crate::peers::{Between, Formed, FromConductor, Key, ToConductor};
use crate::policies::ts::Span;
use crate::protocol::{Failure, FailureKind, Figures, ToProgram};
use crate::strategy::Strategy;
use crate::team::{Failed, Progress};
use crate::topology::Priority;
use crossbeam_channel::{Receiver, Sender};
use differing::differs;
use early::Early;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tidemill_link::remote::{Connection, GroupLane, Incoming, RemoteError};
use tidemill_link::wake::Waker;
use tidemill_rpc::packets;

/// Time in which a host that knows the cause of a failure says so.
const GRACE: Duration = Duration::from_millis(400);
/// Time for which another host waits that greets before this one knows the formation.
const EARLY: Duration = Duration::from_secs(15);
/// Packets of one program before others have their turn.
const QUOTA: usize = 32;
/// Time in which operations are moved on before programs and other hosts have their turn.
const TURN: Duration = Duration::from_millis(20);

/// An event for the thread of a group.
pub(super) enum Event {
    /// A program wants to be a rank.
    Join { rank: u32, size: u32, socket: OwnedFd, deadline: Duration },
    /// The conductor says something about the group.
    Conductor(FromConductor),
    /// Another host greets.
    Incoming(Box<Incoming>),
    /// This host has dialled another one.
    Dialled { run: u128, host: u32, lane: GroupLane, outcome: Result<Connection, RemoteError> },
    /// Another host says something; none: its connection ended.
    Heard { run: u128, host: u32, message: Option<Between> },
    /// The service ends for this reason. Operations that run may end until then; the sender is dropped after that.
    Retires { reason: String, until: Instant, done: Sender<()> },
}

/// The way to the thread of a group.
#[derive(Clone)]
pub(super) struct Handle {
    events: Sender<Event>,
    waker: Arc<Waker>,
    stop: Arc<AtomicBool>,
}

impl Handle {
    pub(super) fn new(events: Sender<Event>) -> std::io::Result<Self> {
        Ok(Self { events, waker: Arc::new(Waker::new()?), stop: Arc::new(AtomicBool::new(false)) })
    }

    pub(super) fn post(&self, event: Event) {
        let _ = self.events.send(event);
        self.waker.wake();
    }

    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
    }

    pub(super) fn is_wanted(&self) -> bool {
        !self.stop.load(Ordering::Acquire)
    }
}

/// The thread of a group.
pub(super) struct Work {
    key: Key,
    size: u32,
    priority: Priority,
    own: Arc<Own>,
    handle: Handle,
    received: Receiver<Event>,
    up: Up,
    locals: BTreeMap<u32, Local>,
    /// Programs that have come, which tells whether one is on its way when the last one has gone.
    joins: u64,
    formation: Option<Formation>,
    early: Early<Incoming>,
    /// Ranks that are missing; none: the conductor has not answered.
    missing: Option<Vec<u32>>,
    figures: Figures,
    shared: Arc<Shared>,
    /// Since when the strategy is being changed, and no operation runs.
    changes: Option<Instant>,
    trace: VecDeque<Span>,
    said: Option<(Figures, Instant)>,
    hello: Option<Instant>,
    looked: Instant,
    /// The service ends: why, when at the latest, and who waits for it.
    retires: Option<(String, Instant, Sender<()>)>,
}

impl Work {
    pub(super) fn new(
        key: Key,
        (size, priority): (u32, Priority),
        own: Arc<Own>,
        (handle, received): (Handle, Receiver<Event>),
        up: Up,
    ) -> Self {
        Self {
            shared: own.groups.begin(&key),
            changes: None,
            key,
            size,
            priority,
            own,
            handle,
            received,
            up,
            locals: BTreeMap::new(),
            joins: 0,
            formation: None,
            early: Early::default(),
            missing: None,
            figures: Figures::default(),
            trace: VecDeque::new(),
            said: None,
            hello: None,
            looked: now(),
            retires: None,
        }
    }

    pub(super) fn run(mut self) {
        while self.handle.is_wanted() {
            self.handle.waker.clear();
            while let Ok(event) = self.received.try_recv() {
                self.follow(event);
            }
            self.read_programs();
            let is_busy = self.work();
            self.look();
            self.wait(is_busy);
        }
        self.own.groups.end(&self.key, &self.shared);
    }

    fn follow(&mut self, event: Event) {
        let time = now();
        match event {
            Event::Join { rank, size, socket, deadline } => self.join((rank, size), socket, deadline),
            Event::Retires { reason, until, done } => self.retires = Some((reason, until, done)),
            Event::Conductor(message) => self.hear_conductor(message),
            Event::Incoming(incoming) => match &mut self.formation {
                Some(formation) if formation.run == incoming.greeting.run => {
                    formation.come(*incoming, &self.own, &self.handle);
                }
                _ => {
                    let from = incoming.peer_address();
                    let refused = self.early.keep(*incoming, from, time + EARLY);
                    refused.into_iter().for_each(|one| one.refuse("too many connections wait for the group"));
                }
            },
            Event::Dialled { run, host, lane, outcome } => {
                if let Some(formation) = self.formation.as_mut().filter(|formation| formation.run == run) {
                    formation.dialled(host, lane, outcome, &self.handle);
                }
            }
            Event::Heard { run, host, message } => {
                if self.formation.as_ref().is_some_and(|formation| formation.run == run) {
                    self.hear(host, message, time);
                }
            }
        }
    }

    fn join(&mut self, (rank, size): (u32, u32), socket: OwnedFd, deadline: Duration) {
        let time = now();
        if self.locals.contains_key(&rank) {
            // One that has ended may not have been noticed yet. This one does not count before, so that the group stays.
            self.read_programs();
        }
        self.joins += 1;
        let until = time.checked_add(deadline).unwrap_or(time + Duration::from_secs(86_400 * 365));
        let share = match self.own.budget.enter(self.key.user) {
            Ok(share) => share,
            Err(reason) => {
                let _ = packets::send(&socket, &ToProgram::Refused { reason }, &[]);
                return self.rest();
            }
        };
        let mut local = Local::new(socket, share, until, time);
        if self.locals.contains_key(&rank) {
            let reason = format!("another program of this host is rank {rank} of group {}", self.key.name);
            local.say(ToProgram::Refused { reason }, None);
            return;
        }
        if size != self.size {
            let reason =
                format!("group {} has {} ranks, and rank {rank} says {size}", self.key.name, self.size);
            local.say(ToProgram::Refused { reason }, None);
            return;
        }
        self.locals.insert(rank, local);
        let (key, priority) = (self.key.clone(), self.priority);
        self.up.send(ToConductor::Join { key, rank, size, priority });
    }

    fn hear_conductor(&mut self, message: FromConductor) {
        let strategy = match &message {
            FromConductor::Formed(formed) => Some(&formed.strategy),
            FromConductor::Order { strategy, .. } => Some(strategy),
            _ => None,
        };
        if let Some(Err(reason)) = strategy.map(Strategy::check) {
            return tracing::error!("the strategy of group {} is none: {reason}", self.key);
        }
        match message {
            FromConductor::Refused { rank, reason, .. } => {
                if let Some(mut local) = self.locals.remove(&rank) {
                    local.say(ToProgram::Refused { reason }, None);
                    self.rest();
                }
            }
            FromConductor::Missing { ranks, .. } => self.missing = Some(ranks),
            FromConductor::Formed(formed) => self.form(*formed),
            FromConductor::Order { strategy, .. } => self.order(strategy),
            FromConductor::Broken { token, failure, last, .. } => {
                if self.formation.as_ref().is_some_and(|formation| formation.formed.token == token) {
                    self.doom(failure.shortened(), last, None);
                }
            }
            FromConductor::Turned { .. }
            | FromConductor::Answer { .. }
            | FromConductor::Bench { .. }
            | FromConductor::Hints(_) => {}
        }
    }

    /// All ranks are there.
    fn form(&mut self, formed: Formed) {
        if let Some(before) = &self.formation {
            if before.formed.token == formed.token {
                return;
            }
            let text = "the group was formed anew".to_owned();
            self.break_off(Failure { kind: FailureKind::Lost, rank: None, host: String::new(), text }, false);
        }
        self.missing = None;
        self.said = None;
        self.figures.epoch = 0;
        self.formation = Formation::begin(formed, &self.own, &self.handle, now());
        let Some(formation) = &mut self.formation else { return };
        let run = formation.run;
        for incoming in self.early.take(|incoming| incoming.greeting.run == run) {
            formation.come(incoming, &self.own, &self.handle);
        }
        let gone = formation.own_ranks().iter().find(|rank| !self.locals.contains_key(rank)).copied();
        if let Some(rank) = gone {
            self.lose_rank(rank, "its program has ended");
        }
    }

    fn order(&mut self, strategy: Strategy) {
        let Some(formation) = self.formation.as_mut().filter(|formation| formation.broken.is_none()) else {
            return;
        };
        let order = order(&formation.formed, strategy);
        let actions = formation.barrier.order(order);
        self.act(actions);
    }

    /// Does what the barrier wants.
    fn act(&mut self, actions: Vec<Action>) {
        for action in actions {
            let formation = self.formation.as_mut().filter(|formation| formation.broken.is_none());
            let Some(formation) = formation else { return };
            match action {
                Action::Tell(message) => {
                    self.figures.control_messages += formation.peers.len() as u64;
                    formation.tell(&Between::Barrier(*message));
                }
                // The operation can end nowhere: a host has said that it was past it.
                Action::Switch(order) if formation.current.is_some() => {
                    let text = format!("strategy {} would begin within an operation", order.strategy.epoch);
                    let failure = Failure { kind: FailureKind::Lost, rank: None, host: String::new(), text };
                    return self.break_off(failure, true);
                }
                Action::Switch(order) => {
                    self.changes = Some(now());
                    formation.build(order.strategy.clone(), &self.own, &self.handle, now());
                }
                Action::Abandon { epoch, reason } => {
                    let text = format!("strategy {epoch} came to nothing: {reason}");
                    let failure = Failure { kind: FailureKind::Lost, rank: None, host: String::new(), text };
                    return self.break_off(failure, true);
                }
            }
        }
    }

    /// Another host said something.
    fn hear(&mut self, host: u32, message: Option<Between>, time: Instant) {
        let Some(formation) = &mut self.formation else { return };
        let name = formation.name_of(host);
        let Some(peer) = formation.peers.get_mut(&host) else { return };
        peer.heard = Some(time);
        match message {
            None if formation.broken.is_some() || formation.doomed.is_some() => {}
            None => {
                let text = format!("the service of host {name} is gone");
                self.lose_host(host, text);
            }
            Some(Between::Hello { arrived, current }) => {
                let of_host = &formation.formed.hosts[host as usize].ranks;
                for (rank, number) in arrived.into_iter().filter(|(rank, _)| of_host.contains(rank)) {
                    let entry = peer.arrived.entry(rank).or_insert((0, time));
                    if entry.0 != number {
                        *entry = (number, time);
                    }
                }
                let of_number = |theirs: Numbered| {
                    formation.history.iter().find(|mine| mine.number == theirs.number).copied()
                };
                // A host that only sends may be ahead of one that calls something else.
                if let Some(theirs) = current
                    && let Some(mine) = of_number(theirs).filter(|mine| *mine != theirs)
                {
                    let rank = formation.formed.hosts[host as usize].ranks.first().copied();
                    let own = formation.own_ranks().first().copied().unwrap_or_default();
                    let failure = differs((own, &mine), (rank.unwrap_or_default(), &theirs), &name);
                    self.break_off(failure, true);
                } else if let Some(failure) = formation.sign_of_life(host) {
                    self.break_off(failure, true);
                }
            }
            Some(Between::Broken { failure, last }) => {
                peer.is_broken = true;
                self.doom(failure.shortened(), last, Some(host));
            }
            Some(Between::Barrier(message)) => {
                if let Some(reason) = doubt(&formation.formed, host, &message) {
                    return self.lose_host(host, format!("host {name} says what cannot be: {reason}"));
                }
                let actions = formation.barrier.receive(message);
                self.act(actions);
            }
        }
    }

    /// Reads what programs want.
    fn read_programs(&mut self) {
        let time = now();
        let ranks: Vec<u32> = self.locals.keys().copied().collect();
        for rank in ranks {
            for _ in 0..QUOTA {
                let Some(local) = self.locals.get_mut(&rank) else { break };
                local.write();
                match local.read(time) {
                    Ok(None) => break,
                    Ok(Some(Wish::Nothing)) => {}
                    Ok(Some(Wish::Called)) => {
                        let broken = self.formation.as_ref().and_then(|formation| formation.broken.clone());
                        if let Some(failure) = broken.filter(|_| local.is_member()) {
                            local.fail(&failure);
                        }
                    }
                    Ok(Some(Wish::Shrink { deadline, whole })) => self.shrink(rank, deadline, whole),
                    Err(error) => {
                        self.leave(rank, &error.to_string());
                        break;
                    }
                }
            }
        }
    }

    fn leave(&mut self, rank: u32, why: &str) {
        self.locals.remove(&rank);
        let is_member = self
            .formation
            .as_ref()
            .is_some_and(|formation| formation.broken.is_none() && formation.own_ranks().contains(&rank));
        if is_member {
            self.lose_rank(rank, why);
        }
        self.up.send(ToConductor::Leave { key: self.key.clone(), rank });
        self.rest();
    }

    /// Ends when no program is left.
    fn rest(&self) {
        if self.locals.is_empty() {
            self.up.idle(&self.key, self.joins);
        }
    }

    fn shrink(&mut self, rank: u32, deadline: Duration, whole: bool) {
        let Some(local) = self.locals.get_mut(&rank) else { return };
        if !local.calls.is_empty() || !local.is_member() {
            let reason = "the program waits for operations: continue after they have ended".to_owned();
            return local.say(ToProgram::Refused { reason }, None);
        }
        let time = now();
        let until = time.checked_add(deadline).unwrap_or(time + Duration::from_secs(86_400 * 365));
        local.standing = Standing::Waits { until, again: true };
        local.failure = None;
        self.up.send(ToConductor::Shrink { key: self.key.clone(), rank, whole });
    }

    /// Moves operations on. Returns whether there is more to do at once.
    fn work(&mut self) -> bool {
        self.begin_formation();
        let until = now() + TURN;
        loop {
            let Some(formation) = self.formation.as_mut().filter(|formation| formation.broken.is_none())
            else {
                return false;
            };
            if formation.suspected.is_some() {
                return false;
            }
            let Some(current) = formation.current else {
                match self.begin_operation() {
                    true => continue,
                    false => {
                        self.end_if_stuck();
                        return false;
                    }
                }
            };
            let Some(team) = &mut formation.team else { return false };
            let (moved, held) = (team.moved(), team.counters().held);
            let progress = team.advance();
            if team.moved() > moved {
                self.own.groups.moved(&self.shared);
            }
            let held = team.counters().held - held;
            match progress {
                Ok(Progress::Done) => {
                    let number = current.numbered.number;
                    formation.current = None;
                    self.has_ended(&current, held);
                    let Some(formation) = &mut self.formation else { return false };
                    let actions = formation.barrier.finished(number);
                    let doomed = formation.doomed.take_if(|(_, last)| number >= *last);
                    for rank in formation.own_ranks().to_vec() {
                        self.locals.get_mut(&rank).into_iter().for_each(|local| local.end(None));
                    }
                    if let Some((failure, _)) = doomed {
                        self.break_off(failure, false);
                    }
                    self.act(actions);
                    self.begin_formation();
                }
                Ok(Progress::Working) => {
                    let is_ready = team.wait_at_most() == Some(Duration::ZERO);
                    self.was_held(held);
                    if !is_ready {
                        return false;
                    }
                }
                // Both sides learn it so, or one from the other.
                Err(Failed { rank, called: Some(theirs), .. }) => {
                    let own = formation.own_ranks().first().copied().unwrap_or_default();
                    let host =
                        formation.host_of(rank).map(|host| formation.name_of(host)).unwrap_or_default();
                    let failure = differs((own, &current.numbered), (rank, &theirs), &host);
                    self.break_off(failure, true);
                    return false;
                }
                Err(failed) => {
                    let failure = formation.failure_of_wire(failed.rank, &failed.reason);
                    formation.suspected = Some((failure, now() + GRACE));
                }
            }
            if now() >= until {
                return true;
            }
        }
    }

    /// Goes on when all wires are there.
    fn begin_formation(&mut self) {
        let Some(formation) = self.formation.as_mut().filter(|formation| formation.broken.is_none()) else {
            return;
        };
        match formation.is_built() {
            Ok(false) => {}
            Ok(true) => {
                self.figures.epoch = formation.barrier.current().strategy.epoch;
                self.said = None;
                if let Some(since) = self.changes.take() {
                    let stalled = now().saturating_duration_since(since);
                    self.figures.changes += 1;
                    self.shared.count(|counts| {
                        counts.changes += 1;
                        counts.stalled_us += micros(stalled);
                    });
                }
                let actions = formation.barrier.switched();
                if !std::mem::replace(&mut formation.has_begun, true) {
                    let strategy = &formation.formed.strategy;
                    let joined =
                        ToProgram::Joined { members: strategy.members.clone(), epoch: strategy.epoch };
                    for rank in formation.own_ranks().to_vec() {
                        let Some(local) = self.locals.get_mut(&rank) else { continue };
                        local.standing = Standing::Member;
                        local.say(joined.clone(), None);
                    }
                }
                self.act(actions);
            }
            Err(error) => {
                let text = format!("host {}: {error}", self.own.host.name);
                let host = self.own.host.name.clone();
                self.break_off(Failure { kind: FailureKind::Lost, rank: None, host, text }, true);
            }
        }
    }

    /// Begins the next operation if all ranks of this host have called it.
    fn begin_operation(&mut self) -> bool {
        let Some(formation) = &mut self.formation else { return false };
        let number = formation.barrier.last() + 1;
        if formation.team.is_none() || self.retires.is_some() || !formation.barrier.may_launch(number) {
            return false;
        }
        let mut memories: BTreeMap<u32, Arc<dyn Memory>> = BTreeMap::new();
        let mut agreed: Option<(u32, Numbered)> = None;
        let own = self.own.host.name.clone();
        for rank in formation.own_ranks().to_vec() {
            let Some(local) = self.locals.get_mut(&rank).filter(|local| local.is_member()) else {
                return false;
            };
            if !local.has_arrived() {
                return false;
            }
            let Some((numbered, memory)) = local.next(number) else { return false };
            match &agreed {
                Some((other, before)) if *before != numbered => {
                    let failure = differs((*other, before), (rank, &numbered), &own);
                    self.break_off(failure, true);
                    return false;
                }
                _ => agreed = Some((rank, numbered)),
            }
            memories.insert(rank, Arc::new(memory));
        }
        let (Some((rank, numbered)), Some(team)) = (agreed, &mut formation.team) else { return false };
        formation.barrier.launched(number);
        if let Err(error) = team.begin(numbered, memories) {
            // It is the same at all hosts, and nothing was sent.
            let failure =
                Failure { kind: FailureKind::Wrong, rank: Some(rank), host: own, text: error.to_string() };
            let actions = formation.barrier.finished(number);
            for rank in formation.own_ranks().to_vec() {
                let local = self.locals.get_mut(&rank);
                local.into_iter().for_each(|local| local.end(Some(failure.clone())));
            }
            self.act(actions);
            return true;
        }
        formation.begins(numbered, now());
        self.own.groups.moved(&self.shared);
        true
    }
}
