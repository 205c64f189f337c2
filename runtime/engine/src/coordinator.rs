//! Coordinates a run: owns the lives of the slots and decides. The hosts start, restart and end their slots on its
//! orders. Notices and orders are plain data (`crate::protocol`).
mod checkpoints;
mod delayed;
mod ends;
mod event;
mod exchange;
mod feeds;
mod hosts;
mod joining;
mod keeping;
mod left_behind;
mod lives;
mod plausible;
mod reception;
mod remote;
mod samples;
mod standby;
mod standing;
mod workers;

pub(crate) use checkpoints::Checkpoints;
pub(crate) use event::{Event, Orders};
pub use exchange::Exchange;
pub use hosts::{HostLauncher, Hosts, Listen, Ready};
pub(crate) use remote::{RemoteHosts, Shown};
pub use standby::Standby;
pub(crate) use workers::Workers;

use crate::clock::AdjustedClock;
use crate::failure::{RunError, operator_error};
use crate::frame::{CLOSED, Epoch};
use crate::graph::Graph;
use crate::protocol::{Beginning, End, Notice, Order};
use crate::report::RunFacts;
use crate::store::EpochLogs;
use crossbeam_channel::{Receiver, RecvTimeoutError};
use delayed::Delayed;
use lives::{HostLife, Phase, SlotLife};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

/// The hosts that follow the orders.
pub(crate) enum Hands {
    /// A host in this process.
    Here(Orders),
    /// Hosts in processes of their own, and the first message to each.
    Remote(Box<(RemoteHosts, Beginning)>),
}

/// A batch that panics is narrowed down to its guilty records one restart at a time; more restarts than this
/// without progress are a defect of something else.
const RESTARTS_WITHOUT_PROGRESS: u32 = 64;

/// A slot that finishes and is needed again this often, without a loss or a new checkpoint in between, restarts in
/// turn with its receivers and would do so for ever.
const STARTS_IN_TURN: u32 = 32;

/// Largest number of losses of an executor without progress that still count as accidents.
const LOSSES_WITHOUT_PROGRESS: u32 = 3;

pub(crate) struct Coordinator {
    facts: Arc<RunFacts>,
    epochs: Arc<EpochLogs>,
    slots: Vec<SlotLife>,
    hosts: Vec<HostLife>,
    /// The slots at both ends, by channel.
    channels: Vec<(usize, usize)>,
    /// The instance of the receiving slot that takes from the channel.
    takers: Vec<usize>,
    events: Receiver<Event>,
    is_stopping: bool,
    aborting: bool,
    failure: Option<RunError>,
    /// Losses of an executor without progress of its slot, by instance.
    losses: BTreeMap<String, u32>,
    /// Checkpoints, from which another process can continue the run.
    checkpoints: Option<Checkpoints>,
    /// The first epoch of the run.
    begin_at: Epoch,
    /// Hosts were ordered to keep what was sent from the first epoch on. They are ordered to keep from the second one
    /// once every slot has reached it: a slot that restarted earlier asks for older epochs.
    kept_from: (Epoch, Epoch),
    /// Counts events of slots.
    moment: u64,
    /// Slots and hosts that were lost on their own, not because another one's data was lost.
    lost: u64,
    /// Restarts to make when the checkpoint being written is done.
    delayed: Delayed,
    /// Hosts whose sinks are closed.
    closed: BTreeMap<usize, Result<(), RunError>>,
    /// Hosts in processes of their own, and the first message to them.
    remote: Option<(RemoteHosts, Beginning)>,
    /// Digest of the graph.
    graph: u64,
    /// Letters of earlier epochs are durable at the hosts, too.
    letters_told: Epoch,
    /// The slots have been started.
    is_running: bool,
    is_closing: bool,
    /// Whether the run is complete, and whether another process will continue it.
    close_with: (bool, bool),
    has_stepped_down: bool,
    /// The clock of the run, until its time is known.
    clock: Option<Arc<AdjustedClock>>,
}

pub(super) fn stepped_down() -> RunError {
    RunError::System("this coordinator has stepped down; the hosts continue and wait for another one".into())
}

impl Coordinator {
    /// Makes the coordinator of this graph.
    pub(crate) fn new(
        graph: &Graph,
        facts: Arc<RunFacts>,
        epochs: Arc<EpochLogs>,
        hands: Hands,
        events: Receiver<Event>,
    ) -> Self {
        let slots = graph.slots.iter().map(|slot| SlotLife::new(0, slot.instances.len()));
        let mut coordinator = Self {
            facts,
            epochs,
            slots: slots.collect(),
            hosts: Vec::new(),
            channels: graph.channels.iter().map(|channel| (channel.from_slot, channel.to_slot)).collect(),
            takers: (0..graph.channels.len()).map(|channel| graph.taker(channel)).collect(),
            events,
            is_stopping: false,
            aborting: false,
            failure: None,
            losses: BTreeMap::new(),
            checkpoints: None,
            begin_at: 0,
            kept_from: (0, 0),
            moment: 0,
            lost: 0,
            delayed: Delayed::default(),
            closed: BTreeMap::new(),
            remote: None,
            graph: graph.digest(),
            letters_told: 0,
            is_running: false,
            is_closing: false,
            close_with: (false, false),
            has_stepped_down: false,
            clock: None,
        };
        match hands {
            Hands::Here(orders) => coordinator.hosts.push(HostLife::here(orders)),
            Hands::Remote(remote) => {
                let (remote, beginning) = *remote;
                remote.show_in(&coordinator.facts);
                let Workers { names, own, of_slots, .. } = remote.workers();
                let hosts = names.iter().zip(own);
                coordinator.hosts =
                    hosts.map(|(name, own)| HostLife::away(name.clone(), own.clone())).collect();
                coordinator.slots.iter_mut().zip(of_slots).for_each(|(slot, host)| slot.host = *host);
                coordinator.remote = Some((remote, beginning));
            }
        }
        coordinator
    }

    /// Sets the first epoch and the checkpoints.
    pub(crate) fn with_checkpoints(mut self, checkpoints: Option<Checkpoints>, begin_at: Epoch) -> Self {
        self.checkpoints = checkpoints;
        self.begin_at = begin_at;
        self
    }

    /// Sets the clock that takes the time of the run from hosts that have continued.
    pub(crate) fn with_clock(mut self, clock: Arc<AdjustedClock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Runs the slots to their end; `true`: everything is committed, `false`: aborted.
    pub(crate) fn coordinate(mut self) -> Result<bool, RunError> {
        let mut result = self.join_all().and_then(|()| match self.begin_at {
            // Another process reached the end, but did not close its sinks; the same is true of slots of running
            // hosts.
            CLOSED => {
                self.slots.iter_mut().for_each(|slot| slot.alive = false);
                Ok(true)
            }
            _ => self.first_checkpoint().and_then(|()| self.run_slots()),
        });
        let (complete, mut closing) = loop {
            if self.has_stepped_down {
                return self.step_down();
            }
            let complete = result.as_ref().is_ok_and(|complete| *complete);
            *self.facts.ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(self.facts.clock.now());
            let closing = self.last_checkpoint(if complete { CLOSED } else { self.durable() }, false);
            if let Some(failure) = self.failure.take().filter(|_| result.is_ok()) {
                result = Err(failure);
            } else if complete && closing.is_ok() && self.slots.iter().any(|slot| slot.alive) {
                // A host that had finished was lost meanwhile, with all that it had not closed.
                result = self.drive();
                continue;
            }
            break (result.as_ref().is_ok_and(|complete| *complete), closing);
        };
        let will_continue = !complete && self.checkpoints.is_some();
        if self.has_stepped_down {
            return self.step_down();
        }
        closing = closing.and(self.close_hosts(complete, will_continue));
        if self.remote.is_some() {
            self.epochs.finish();
        }
        let letters = match will_continue {
            true => self.facts.letters.suspend(),
            false => self.facts.letters.close(),
        };
        closing = closing.and(letters.map_err(|error| operator_error("dead letters", error)));
        if complete && closing.is_ok() {
            closing = self.last_checkpoint(CLOSED, true);
        }
        if let Some((remote, _)) = &self.remote {
            remote.wait_for_samples();
        }
        self.leave();
        // The caller that waits for the result may open the checkpoints.
        if let Some(checkpoints) = self.checkpoints.take() {
            checkpoints.end();
        }
        result.and_then(|complete| closing.map(|()| complete))
    }

    fn run_slots(&mut self) -> Result<bool, RunError> {
        // A host was lost, or the run was ended, before there was anything to continue from.
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        if self.aborting {
            return Ok(false);
        }
        self.is_running = true;
        self.start_all();
        self.drive()
    }

    /// Handles events until all slots have ended.
    fn drive(&mut self) -> Result<bool, RunError> {
        while self.slots.iter().any(|slot| slot.alive) {
            self.next_event()?;
            self.letters_durable();
            self.keep_from_checkpoint();
            self.begin_checkpoint();
            self.stop_without_readers();
        }
        match self.failure.take() {
            Some(failure) => Err(failure),
            None => Ok(!self.aborting),
        }
    }

    /// Waits for the next event and handles it; an error only if no event can come any more.
    fn next_event(&mut self) -> Result<(), RunError> {
        self.show_opened();
        let is_awaited =
            |host: &HostLife| host.phase == Phase::Away && (!self.is_closing || host.missing_since.is_some());
        if self.hosts.iter().any(is_awaited) {
            self.event_or_end();
            return if self.has_stepped_down { Err(stepped_down()) } else { Ok(()) };
        }
        let event = match self.next_checkpoint_in() {
            Some(wait) => self.events.recv_timeout(wait),
            None => self.events.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match event {
            Ok(event) => self.follow(event),
            Err(RecvTimeoutError::Timeout) => {} // a checkpoint is due
            Err(RecvTimeoutError::Disconnected) => {
                return Err(RunError::System("the hosts of the run are gone".into()));
            }
        }
        if self.has_stepped_down { Err(stepped_down()) } else { Ok(()) }
    }

    /// Shows in reports which hosts have opened their files.
    pub(super) fn show_opened(&self) {
        for (life, opened) in self.hosts.iter().zip(&self.facts.opened) {
            opened.store(life.phase == Phase::Open, Ordering::Relaxed);
        }
    }

    fn follow(&mut self, event: Event) {
        match event {
            Event::Notice { host, notice } => self.noticed(host, notice),
            Event::Written(result) => {
                let step = self.checkpoints.as_mut().map(|checkpoints| checkpoints.written(result));
                self.checkpoint_step(step);
                self.start_delayed();
                self.read_past();
            }
            Event::Journals(orders) => self.order_all(&Order::Journals(orders)),
            Event::Past(past) => self.past_read(past),
            Event::HostJoined { host, joined } => self.host_joined(host, joined),
            Event::HostLost { host, process, why } => self.host_lost(host, process, &why),
            // Ends of sources are ends of windows too; a process that continues wants neither.
            Event::Stop if self.checkpoints.is_some() => self.abort(),
            Event::Stop => self.stop(),
            Event::StopWithout(lost) => self.stop_without(&lost),
            Event::Abort => self.abort(),
            // A run that is closing finishes that first.
            Event::StepDown => self.has_stepped_down |= self.remote.is_some() && !self.is_closing,
        }
    }

    fn noticed(&mut self, host: usize, notice: Notice) {
        // Before the takeover, a notice updates the state that the host reported when it dialled. An exception is its
        // part of a checkpoint, which is written before the takeover if there was none.
        let standing = self.hosts[host].standing.as_mut();
        if let Some(standing) = standing.filter(|_| !matches!(notice, Notice::Part { .. })) {
            return standing.remember(&notice);
        }
        match notice {
            Notice::Durable { slot, incarnation, epochs } => {
                if let Some(slot) = self.slots.get_mut(slot).filter(|slot| slot.number == incarnation) {
                    slot.durable = epochs;
                }
            }
            Notice::Ended { slot, incarnation, durable, end, heard } => {
                if self.slots.get(slot).is_some_and(|slot| slot.number == incarnation) {
                    self.slots[slot].durable = durable;
                    self.slot_ended(slot, end, &heard);
                }
            }
            Notice::Part { number, part } => self.part(host, number, part),
            Notice::Closed(result) => drop(self.closed.insert(host, result)),
            Notice::Opened(opened) => self.host_opened(host, opened),
            // Notices of hosts in other processes: `remote` handles them.
            Notice::Hello(_)
            | Notice::Ping(_)
            | Notice::Prepared(_)
            | Notice::Letter { .. }
            | Notice::Epoch { .. }
            | Notice::Sample(_)
            | Notice::Spans(_)
            | Notice::LostNotices(_)
            | Notice::SourcesFound { .. }
            | Notice::FeedAnswered { .. }
            | Notice::Figures(_) => {}
        }
    }

    fn order(&self, host: usize, order: Order) {
        self.hosts[host].order(order);
    }

    fn order_all(&self, order: &Order) {
        self.hosts.iter().for_each(|host| host.order(order.clone()));
    }

    /// Returns the epoch before which everything is durable downstream of all slots.
    fn durable(&self) -> Epoch {
        self.slots.iter().map(SlotLife::durable).min().unwrap_or(self.begin_at).max(self.begin_at)
    }

    fn start(&mut self, slot: usize, resume_at: Vec<Epoch>, new_executor: Option<String>) {
        self.moment += 1;
        let life = &mut self.slots[slot];
        life.begin(resume_at.clone(), self.moment);
        let (host, incarnation) = (life.host, life.number);
        tracing::debug!(slot, incarnation, ?resume_at, host = self.hosts[host].name, "a slot is started");
        self.order(host, Order::Start { slot, incarnation, resume_at, new_executor });
        for channel in 0..self.channels.len() {
            let (from, to) = self.channels[channel];
            if from == slot && self.slots[to].has_finished() {
                self.order(host, Order::ReceiverFinished { channel });
            }
        }
    }

    /// Ends the sources.
    fn stop(&mut self) {
        self.is_stopping = true;
        self.order_all(&Order::Stop);
    }

    /// Ends the sources when the output of no sink has a reader any more.
    fn stop_without_readers(&mut self) {
        let mut sinks = self.facts.metrics.sinks.values().peekable();
        let has_sinks = sinks.peek().is_some();
        if has_sinks && !self.is_stopping && sinks.all(|sink| sink.closed.load(Ordering::Acquire)) {
            self.stop();
        }
    }

    fn letters_durable(&mut self) {
        let durable = self.durable();
        if let Err(error) = self.facts.letters.durable(durable) {
            self.fail(operator_error("dead letters", error));
        }
        if self.remote.is_some() && durable > self.letters_told {
            self.letters_told = durable;
            self.order_all(&Order::LettersDurable(durable));
        }
    }

    fn abort(&mut self) {
        if !self.aborting {
            self.aborting = true;
            self.forget_delayed();
            // Otherwise it has finished, and its outputs are being closed.
            if let Some(checkpoints) = &self.checkpoints
                && (self.failure.is_some() || self.slots.iter().any(|slot| slot.alive))
            {
                checkpoints.end_early();
            }
            // Slots of a host that was lost and has not come back cannot report an end and are not restarted.
            for slot in &mut self.slots {
                slot.alive &= self.hosts[slot.host].phase == Phase::Open;
            }
            self.order_all(&Order::Abort);
        }
    }

    fn fail(&mut self, error: RunError) {
        self.failure.get_or_insert(error);
        self.abort();
    }

    /// `heard`: as in [`Notice::Ended`].
    fn slot_ended(&mut self, slot: usize, end: End, heard: &BTreeMap<usize, u32>) {
        let incarnation = self.slots[slot].number;
        tracing::debug!(slot, incarnation, ?end, durable = ?self.slots[slot].durable, "a slot has ended");
        match end {
            End::Finished if self.is_needed_again(slot, heard) => self.needed_again(slot),
            End::Finished => {
                self.slots[slot].alive = false;
                // A new incarnation of the sender may have sent to this slot, which did not read any more.
                for channel in 0..self.channels.len() {
                    let (from, to) = self.channels[channel];
                    if to == slot {
                        self.order(self.slots[from].host, Order::ReceiverFinished { channel });
                    }
                }
            }
            End::Aborted => self.slots[slot].alive = false,
            End::Failed(error) => {
                self.slots[slot].alive = false;
                self.fail(error);
            }
            _ if self.aborting => self.slots[slot].alive = false,
            End::Killed => self.restart(slot, None),
            End::Panicked { operator, text, restarts, found_cause } => {
                if !restarts || self.slots[slot].tries() >= RESTARTS_WITHOUT_PROGRESS {
                    self.slots[slot].alive = false;
                    return self.fail(RunError::Panic { operator, text });
                }
                if found_cause {
                    self.slots[slot].restarts_without_progress = 0;
                }
                tracing::warn!(%operator, "an operator panicked and is restarted from the last checkpoint: {text}");
                self.restart(slot, None);
            }
            End::ExecutorLost { instance, operator, text, restarts, narrows, found_cause } => {
                if !restarts || !self.may_replace(slot, &instance, narrows) {
                    self.slots[slot].alive = false;
                    let text = format!("its executor is lost: {text}");
                    return self.fail(RunError::Operator { operator, text });
                }
                if found_cause {
                    self.slots[slot].restarts_without_progress = 0;
                }
                tracing::warn!(%operator, "the executor of a model is lost and started again: {text}");
                self.restart(slot, Some(instance));
            }
        }
    }

    /// Returns whether a lost executor is restarted. Where panics restart the operator, its records are narrowed
    /// down; elsewhere a few losses without progress are enough. Several models of a slot may die with one machine:
    /// each counts for itself.
    fn may_replace(&mut self, slot: usize, instance: &str, narrows: bool) -> bool {
        let losses = self.losses.entry(instance.to_owned()).or_default();
        if self.slots[slot].has_progressed() {
            *losses = 0;
        }
        let (tries, most) = match narrows {
            true => (self.slots[slot].tries(), RESTARTS_WITHOUT_PROGRESS),
            false => (*losses, LOSSES_WITHOUT_PROGRESS),
        };
        *losses += 1;
        tries < most
    }

    fn restart(&mut self, slot: usize, new_executor: Option<String>) {
        if self.delays_restart(slot, new_executor.as_ref()) {
            return;
        }
        if self.remote.is_some() {
            // A checkpoint that is being gathered would be newer than the state of the restarted slot.
            self.cancel_checkpoint();
        }
        // Other hosts may be lost and ask for everything since the last checkpoint again.
        let kept = self.checkpoints.as_ref().filter(|_| self.remote.is_some()).map(Checkpoints::epoch);
        let life = &self.slots[slot];
        let resume_at: Vec<Epoch> =
            life.durable.iter().map(|epoch| kept.map_or(*epoch, |kept| kept.min(*epoch))).collect();
        let tries = life.tries() + 1;
        if resume_at != life.durable {
            // Output that it had acknowledged beyond that is gone, and the slots that finished by it are needed
            // again.
            self.moment += 1;
            self.lost += 1;
            self.slots[slot].lost_at = self.moment;
            let again = self.finished_in_front_of(vec![slot]);
            self.start_from_checkpoint(again);
        }
        self.facts.restarts.fetch_add(1, Ordering::Relaxed);
        self.start(slot, resume_at, new_executor);
        self.slots[slot].restarts_without_progress = tries;
    }

    fn order_close(&self, host: usize) {
        let (complete, will_continue) = self.close_with;
        let cut_short = self.facts.cut_short.load(Ordering::Relaxed);
        self.order(host, Order::Close { complete, will_continue, cut_short });
    }

    /// Closes the sinks of all hosts.
    fn close_hosts(&mut self, complete: bool, will_continue: bool) -> Result<(), RunError> {
        self.is_closing = true;
        self.close_with = (complete, will_continue);
        let is_limited = self.epochs.ends().values().any(|end| end.limit);
        self.facts.cut_short.store(!complete || self.is_stopping || is_limited, Ordering::Relaxed);
        // A run that ends during a takeover takes notices as they come from here on; otherwise it would not know the
        // results of closing.
        for (number, life) in self.hosts.iter_mut().enumerate() {
            self.closed.extend(life.standing.take().and_then(|standing| Some((number, standing.closed?))));
        }
        for (number, host) in self.hosts.iter().enumerate() {
            if host.phase != Phase::Open && host.missing_since.is_none() {
                self.closed.insert(number, Ok(())); // it has opened nothing, or is lost with what it had
            }
        }
        (0..self.hosts.len()).for_each(|host| self.order_close(host));
        while self.closed.len() < self.hosts.len() {
            self.next_event()?;
        }
        std::mem::take(&mut self.closed).into_values().collect()
    }
}

#[cfg(test)]
mod tests;
