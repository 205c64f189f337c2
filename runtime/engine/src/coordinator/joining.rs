//! Hosts that join a run, are lost and join again.
//!
//! A lost host loses its memory: its slots restart from the last checkpoint. All others keep what they sent since
//! then and drop what they have already, so only the lost slots restart.
use super::event::{Event, Joined};
use super::lives::{HostLife, Phase};
use super::{Checkpoints, Coordinator, STARTS_IN_TURN, stepped_down};
use crate::checkpoint::{Past, StagePast};
use crate::failure::RunError;
use crate::frame::{CLOSED, Epoch};
use crate::metrics::Own;
use crate::protocol::{Beginning, Order};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tidemill_link::remote::{Address, MAX_MESSAGE};

/// Number of losses of a host without a new checkpoint that count as a defect.
const LOSSES_OF_A_HOST: u32 = 5;

/// Bytes of state that fit into one message to a host, next to all else.
const MOST_STATE: usize = MAX_MESSAGE - (16 << 20);
const GIB: f64 = (1_u64 << 30) as f64;

/// Interval of checks of processes that have not joined.
const LOOK_AT_PROCESSES: Duration = Duration::from_millis(100);

impl Coordinator {
    /// Starts the processes of all hosts and waits until each has opened its files.
    pub(super) fn join_all(&mut self) -> Result<(), RunError> {
        let Some((remote, _)) = &mut self.remote else { return Ok(()) };
        for host in 0..self.hosts.len() {
            remote.launch_first(host)?;
        }
        self.wait_for_hosts(|phase| !matches!(phase, Phase::Away))?;
        self.stand();
        let past = self.remote.as_mut().and_then(|(_, beginning)| beginning.past.take());
        for host in 0..self.hosts.len() {
            if !self.hosts[host].has_stood {
                self.begin_host(host, past.as_ref());
            }
        }
        self.wait_for_hosts(|phase| matches!(phase, Phase::Open))?;
        self.begin_now();
        Ok(())
    }

    /// Begins the time of the run: until all hosts have opened their files, no source is late.
    fn begin_now(&mut self) {
        if self.hosts.iter().any(|host| host.has_stood) {
            return;
        }
        let Some((_, beginning)) = &mut self.remote else { return };
        let at = self.facts.clock.now();
        beginning.started = at;
        let elapsed_before = beginning.elapsed_before;
        self.facts.started.store(at, Ordering::Release);
        self.order_all(&Order::Started { at, elapsed_before });
    }

    fn wait_for_hosts(&mut self, are_so: impl Fn(&Phase) -> bool) -> Result<(), RunError> {
        while !self.hosts.iter().all(|host| are_so(&host.phase)) {
            self.show_opened();
            self.event_or_end();
            if let Some(failure) = self.failure.take() {
                return Err(failure);
            }
            if self.has_stepped_down {
                return Err(stepped_down());
            }
            if self.aborting {
                return Err(RunError::System(
                    "the run was ended before all of its workers had joined".into(),
                ));
            }
        }
        Ok(())
    }

    /// Waits for an event, or finds that a process has ended that had not joined, which no event reports.
    pub(super) fn event_or_end(&mut self) {
        let event = self.events.recv_timeout(LOOK_AT_PROCESSES);
        self.give_up_silent_hosts();
        if let Ok(event) = event {
            return self.follow(event);
        }
        let Some((remote, _)) = &mut self.remote else { return };
        for host in 0..self.hosts.len() {
            if self.hosts[host].is_leaving
                && let Err(error) = remote.launch(host)
            {
                tracing::warn!("{error}");
            }
        }
        for worker in remote.ended() {
            let is_away =
                |host: &HostLife| host.name == worker && host.phase == Phase::Away && !host.is_left_behind;
            if let Some(host) = self.hosts.iter().position(is_away) {
                self.process_gone(host, "it had not joined");
            }
        }
    }

    /// Sends a host that has joined the facts of the run.
    fn begin_host(&mut self, host: usize, past: Option<&Past>) {
        let Some((_, beginning)) = &self.remote else { return };
        let peers = self.hosts.iter().filter_map(|life| Some((life.name.clone(), life.address.clone()?)));
        let peers: BTreeMap<String, Address> = peers.collect();
        let mut past = past.map(|past| part_of(past, &self.hosts[host].own));
        if let Some(past) = &mut past {
            // Other hosts may have passed the end of a source that the checkpoint does not know.
            let own = &self.hosts[host].own.instances;
            for (source, end) in self.epochs.ends().into_iter().filter(|(source, _)| own.contains(source)) {
                past.sources.entry(source).or_default().end = Some(end);
            }
        }
        let begins_at = past.as_ref().map_or(0, |past| past.epoch);
        let identities = self.identities().collect();
        // The present time of the run: another run may have been taken over since this one began.
        let clock = &self.facts.clock;
        let traces = beginning.traces.map(|traces| traces.at(clock.now(), clock.dilation()));
        let beginning = Beginning { peers: peers.clone(), identities, past, traces, ..beginning.clone() };
        let bytes = beginning.past.as_ref().map_or(0, bytes_of);
        if bytes > MOST_STATE {
            let name = &self.hosts[host].name;
            let text = format!(
                "the state of worker '{name}' has {:.2} GiB, and a worker in a process of its own can be given {:.2} at most: give its \
                 stages to more workers, or run in one process",
                bytes as f64 / GIB,
                MOST_STATE as f64 / GIB
            );
            return self.fail(RunError::System(text));
        }
        let life = &mut self.hosts[host];
        life.peers = peers;
        life.phase = Phase::Opening(begins_at);
        life.order(Order::Begin(Box::new(beginning)));
    }

    pub(super) fn host_joined(&mut self, host: usize, joined: Joined) {
        let Joined { orders, hello, identity, process } = joined;
        let is_expected = match hello.standing {
            None => matches!(self.hosts[host].phase, Phase::Away),
            Some(_) => self.may_stand(host),
        };
        if self.hosts[host].is_left_behind {
            return orders(Order::Leave);
        }
        if !is_expected {
            tracing::warn!("a second process wants to be worker '{}'", self.hosts[host].name);
            return orders(Order::Leave);
        }
        if hello.graph != self.graph {
            let name = &self.hosts[host].name;
            let text = format!(
                "worker '{name}' makes something else of the plan than its coordinator: both need the same version of this \
                 program, the same workflow and the same plan"
            );
            orders(Order::Leave);
            return self.fail(RunError::Plan(text));
        }
        if hello.standing.is_none() && self.hosts[host].missing_since.is_some() {
            self.restart_host(host, "was started again", false);
        }
        let life = &mut self.hosts[host];
        life.orders = Some(orders);
        (life.process, life.phase, life.missing_since) = (process, Phase::Joined, None);
        life.is_leaving = false;
        life.address.clone_from(&hello.address);
        if let Some(address) = &hello.address {
            let mut places = self.facts.places.lock().unwrap_or_else(PoisonError::into_inner);
            places.insert(address.place().to_owned(), life.name.clone());
        }
        life.identity = identity;
        self.tell_identity(host);
        let life = &mut self.hosts[host];
        if let Some(standing) = hello.standing {
            return self.comes_back(host, standing);
        }
        if let Some(address) = hello.address {
            let name = life.name.clone();
            // Also hosts that open: they have its address from before the loss.
            let knows_where = |other: &&mut HostLife| matches!(other.phase, Phase::Open | Phase::Opening(_));
            for other in self.hosts.iter_mut().filter(knows_where) {
                other.tell_peer(&name, &address);
            }
        }
        self.read_past();
    }

    /// Returns the known identities of the hosts' certificates.
    pub(super) fn identities(&self) -> impl Iterator<Item = (String, String)> + '_ {
        self.hosts.iter().filter_map(|life| Some((life.name.clone(), life.identity.clone()?)))
    }

    /// Sends a host that has begun already the identities that belong to the certificates of the others.
    pub(super) fn tell_identities_to(&self, host: usize) {
        let own = &self.hosts[host].name;
        for (host_of, identity) in self.identities().filter(|(name, _)| name != own) {
            self.hosts[host].order(Order::Identity { host: host_of, identity });
        }
    }

    /// Sends the others the identity that belongs to the certificate of a host, before the host connects to them.
    fn tell_identity(&self, host: usize) {
        let life = &self.hosts[host];
        let begun = |phase: Phase| matches!(phase, Phase::Open | Phase::Opening(_));
        if let Some(identity) = &life.identity {
            for other in self.hosts.iter().filter(|other| begun(other.phase) && other.name != life.name) {
                other.order(Order::Identity { host: life.name.clone(), identity: identity.clone() });
            }
        }
    }

    /// Reads the last checkpoint for hosts that have joined again, once it is written.
    pub(super) fn read_past(&mut self) {
        let is_waited_for =
            self.is_running && self.hosts.iter().any(|host| matches!(host.phase, Phase::Joined));
        if let Some(checkpoints) = self.checkpoints.as_mut().filter(|_| is_waited_for) {
            checkpoints.read();
        }
    }

    pub(super) fn past_read(&mut self, past: Result<Past, String>) {
        if let Some(checkpoints) = &mut self.checkpoints {
            checkpoints.was_read();
        }
        match past {
            Ok(past) => {
                for host in 0..self.hosts.len() {
                    if matches!(self.hosts[host].phase, Phase::Joined) {
                        self.begin_host(host, Some(&past));
                    }
                }
            }
            Err(text) => {
                self.fail(RunError::System(format!("the last checkpoint cannot be read again: {text}")));
            }
        }
    }

    pub(super) fn host_opened(&mut self, host: usize, opened: Result<(), RunError>) {
        let Phase::Opening(epoch) = self.hosts[host].phase else { return };
        if let Err(error) = opened {
            return self.fail(error);
        }
        self.hosts[host].phase = Phase::Open;
        if self.is_running && !self.aborting {
            tracing::info!("worker '{}' continues from the last checkpoint", self.hosts[host].name);
            self.start_again(host, epoch);
        }
    }

    fn start_again(&mut self, host: usize, epoch: Epoch) {
        for slot in 0..self.slots.len() {
            if self.slots[slot].host == host && self.slots[slot].alive {
                self.facts.restarts.fetch_add(1, Ordering::Relaxed);
                let resume_at = vec![epoch; self.slots[slot].durable.len()];
                self.start(slot, resume_at, None);
            }
        }
        if self.is_stopping {
            self.order(host, Order::Stop);
        }
    }

    pub(super) fn host_lost(&mut self, host: usize, process: u64, why: &str) {
        let life = &mut self.hosts[host];
        if life.process != process || matches!(life.phase, Phase::Away) {
            return;
        }
        (life.phase, life.orders) = (Phase::Away, None);
        if let Some((remote, _)) = self.remote.as_mut().filter(|_| self.is_running && !self.aborting) {
            remote.missing(host);
        }
        let life = &mut self.hosts[host];
        if !self.is_running && life.standing.take().is_some() {
            return self.cancel_checkpoint(); // it dials again
        }
        if self.may_return(host) {
            return tracing::warn!("worker '{}' is silent ({why}); it may come back", self.hosts[host].name);
        }
        self.process_gone(host, why);
    }

    pub(super) fn process_gone(&mut self, host: usize, why: &str) {
        self.restart_host(host, why, true);
    }

    /// Handles the loss of a host's memory. `launches`: its process is lost too and is started again where the run
    /// can continue.
    fn restart_host(&mut self, host: usize, why: &str, launches: bool) {
        let name = self.hosts[host].name.clone();
        self.hosts[host].missing_since = None;
        let fate = self.remote.as_mut().and_then(|(remote, _)| remote.lost(host));
        let fate = fate.unwrap_or_else(|| format!("is lost ({why})"));
        let text = format!("the process of worker '{name}' {fate}");
        let error = RunError::System(text.clone());
        if self.is_closing {
            self.closed.insert(host, Err(error));
            return self.cancel_checkpoint();
        }
        self.cancel_checkpoint();
        if self.checkpoints.is_none() || self.aborting || !self.is_running {
            for slot in self.slots.iter_mut().filter(|slot| slot.host == host) {
                slot.alive = false;
            }
            let help = "; with `--state DIR` a run survives this";
            let help = if self.checkpoints.is_none() && self.is_running { help } else { "" };
            return self.fail(RunError::System(format!("{text}{help}")));
        }
        if self.checkpoints.as_ref().is_some_and(Checkpoints::is_of_the_end) {
            let text = format!("{text} before its outputs were closed; the same command closes them");
            return self.fail(RunError::System(text));
        }
        let epoch = self.checkpoints.as_ref().map_or(0, |checkpoints| checkpoints.epoch());
        let life = &mut self.hosts[host];
        if life.lost_at != Some(epoch) {
            (life.lost_at, life.losses) = (Some(epoch), 0);
        }
        life.losses += 1;
        if life.losses > LOSSES_OF_A_HOST {
            for slot in self.slots.iter_mut().filter(|slot| slot.host == host) {
                slot.alive = false;
            }
            let text = format!(
                "{text}, {} times before a new checkpoint could be written: see what it said before it ended",
                life.losses
            );
            return self.fail(RunError::System(text));
        }
        tracing::warn!("{text}; it is started again from the last checkpoint");
        self.moment += 1;
        self.lost += 1;
        for slot in self.slots.iter_mut().filter(|slot| slot.host == host) {
            slot.alive = true;
            slot.durable.fill(epoch);
            slot.lost_at = self.moment;
        }
        self.start_in_front_of(host);
        if let Some((remote, _)) = self.remote.as_mut().filter(|_| launches)
            && let Err(error) = remote.launch(host)
        {
            self.fail(error);
        }
    }

    /// Returns whether a finished slot had a receiver that was lost since it began, with the output that the receiver
    /// had acknowledged. Not where the present receiver has all of that output, as it reports here or has reported to
    /// the slot: otherwise two slots that send to each other would restart in turn for ever.
    pub(super) fn is_needed_again(&self, slot: usize, heard: &BTreeMap<usize, u32>) -> bool {
        let begun_at = self.slots[slot].begun_at;
        !self.aborting
            && self.channels.iter().zip(&self.takers).enumerate().any(|(channel, ((from, to), taker))| {
                let receiver = &self.slots[*to];
                // Until a lost receiver is restarted, it has the number of the lost incarnation.
                let is_there = receiver.begun_at > receiver.lost_at;
                let has_said = || is_there && heard.get(&channel) == Some(&receiver.number);
                let misses =
                    || receiver.durable.get(*taker).is_none_or(|durable| *durable != CLOSED) && !has_said();
                *from == slot && receiver.alive && receiver.lost_at > begun_at && misses()
            })
    }

    /// Restarts a slot from the last checkpoint, and the finished slots upstream of it. Each restart is a loss for
    /// the slots that feed it: where two feed each other and their reports cross, each would be restarted for the
    /// other for ever.
    pub(super) fn needed_again(&mut self, slot: usize) {
        if self.delays_needed(slot) {
            return;
        }
        if self.remote.is_some() {
            self.cancel_checkpoint();
        }
        let epoch = self.checkpoints.as_ref().map_or(self.begin_at, Checkpoints::epoch);
        let (lost, life) = (self.lost, &mut self.slots[slot]);
        if (life.needed.0, life.needed.1) != (lost, epoch) {
            life.needed = (lost, epoch, 0);
        }
        life.needed.2 += 1;
        if life.needed.2 > STARTS_IN_TURN {
            life.alive = false;
            let name = self.facts.slots[slot].name();
            let text = format!(
                "slot '{name}' and those that it feeds begin again in turn: {STARTS_IN_TURN} times it came to its end and was needed once \
                 more, and no checkpoint was written meanwhile; the same command goes on from the last one"
            );
            return self.fail(RunError::System(text));
        }
        let mut again = self.finished_in_front_of(vec![slot]);
        again.push(slot);
        self.start_from_checkpoint(again);
    }

    /// Returns the finished slots upstream of these, the furthest upstream first: the output of a finished slot
    /// exists only in the slots downstream of it.
    pub(super) fn finished_in_front_of(&self, mut slots: Vec<usize>) -> Vec<usize> {
        let given = slots.len();
        let mut next = 0;
        while let Some(slot) = slots.get(next).copied() {
            next += 1;
            for (from, to) in &self.channels {
                if *to == slot && self.slots[*from].has_finished() && !slots.contains(from) {
                    slots.push(*from);
                }
            }
        }
        slots.drain(..given);
        slots.reverse();
        slots
    }

    /// Restarts slots from the last checkpoint. Output that their former incarnations had acknowledged is lost: an
    /// upstream slot that began earlier, and finishes because of that, is needed again.
    pub(super) fn start_from_checkpoint(&mut self, slots: Vec<usize>) {
        let epoch = self.checkpoints.as_ref().map_or(self.begin_at, |checkpoints| checkpoints.epoch());
        self.moment += 1;
        for slot in &slots {
            self.slots[*slot].lost_at = self.moment;
        }
        for slot in slots {
            self.facts.restarts.fetch_add(1, Ordering::Relaxed);
            let resume_at = vec![epoch; self.slots[slot].durable.len()];
            self.start(slot, resume_at, None);
        }
    }

    pub(super) fn cancel_checkpoint(&mut self) {
        if let Some(checkpoints) = &mut self.checkpoints {
            checkpoints.cancel();
        }
    }

    /// Ends the processes of the hosts.
    pub(super) fn leave(&mut self) {
        if let Some((remote, _)) = &self.remote {
            remote.is_over();
        }
        self.order_all(&Order::Leave);
        while let Ok(event) = self.events.try_recv() {
            if let Event::HostJoined { joined, .. } = event {
                (joined.orders)(Order::Leave);
            }
        }
        if let Some((remote, _)) = &mut self.remote {
            remote.end();
        }
    }
}

/// Returns the size of the states in a checkpoint.
fn bytes_of(past: &Past) -> usize {
    let of = |stage: &StagePast| stage.snapshot.1.len() + stage.calls.iter().map(Vec::len).sum::<usize>();
    past.stages.values().map(of).sum()
}

/// Returns a host's part of a checkpoint.
fn part_of(past: &Past, own: &Own) -> Past {
    fn of<T: Clone>(all: &BTreeMap<String, T>, own: &BTreeSet<String>) -> BTreeMap<String, T> {
        let own = all.iter().filter(|(name, _)| own.contains(*name));
        own.map(|(name, value)| (name.clone(), value.clone())).collect()
    }
    Past {
        epoch: past.epoch,
        elapsed: past.elapsed,
        stages: of(&past.stages, &own.instances),
        sources: of(&past.sources, &own.instances),
        sinks: of(&past.sinks, &own.sinks),
        letters: past.letters.clone(),
    }
}
