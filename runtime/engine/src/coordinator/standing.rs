//! Hosts that continue without a coordinator: a new one takes them over as they are, and one that was silent for a while
//! returns, without a restart of a slot.
use super::lives::Phase;
use super::{Coordinator, stepped_down};
use crate::cut::{Alone, FENCE};
use crate::failure::RunError;
use crate::protocol::{End, Order, Standing};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl Coordinator {
    /// Returns whether a host that continued by itself is accepted: one that is awaited, or that reconnected before
    /// its silence was noticed. A host that was given up is not: others have been ordered to restart from where it
    /// was lost.
    pub(super) fn may_stand(&self, host: usize) -> bool {
        let life = &self.hosts[host];
        match life.phase {
            Phase::Away => !self.is_running || life.missing_since.is_some(),
            Phase::Open => self.is_running,
            Phase::Joined | Phase::Opening(_) => false,
        }
    }

    /// Handles the return of a host that continued by itself.
    pub(super) fn comes_back(&mut self, host: usize, standing: Box<Standing>) {
        if self.is_running {
            self.hosts[host].phase = Phase::Open;
            if self.is_closing {
                self.cancel_checkpoint();
                match standing.closed {
                    Some(closed) => drop(self.closed.insert(host, closed)),
                    None => self.order_close(host),
                }
                return;
            }
            tracing::info!("worker '{}' is back and has gone on meanwhile", self.hosts[host].name);
            return self.resume(host, &standing);
        }
        if standing.closed.is_some() {
            let life = &mut self.hosts[host];
            life.order(Order::Leave);
            (life.phase, life.orders, life.is_leaving) = (Phase::Away, None, true);
            return;
        }
        if let Some(clock) = self.clock.take() {
            clock.set(standing.now);
            self.facts.started.store(standing.started, Ordering::Release);
            self.facts.elapsed_before.store(standing.elapsed_before, Ordering::Release);
            if let Some((_, beginning)) = &mut self.remote {
                (beginning.started, beginning.elapsed_before) = (standing.started, standing.elapsed_before);
            }
        }
        self.hosts[host].standing = Some(standing);
        // It was lost again before the run continued.
        if self.hosts[host].has_stood {
            self.stand();
        }
    }

    /// Takes over the hosts that have continued.
    pub(super) fn stand(&mut self) {
        let addresses = self.hosts.iter().filter(|life| life.standing.is_some());
        let addresses = addresses.filter_map(|life| Some((life.name.clone(), life.address.clone()?)));
        let known: BTreeMap<_, _> = addresses.collect();
        for host in 0..self.hosts.len() {
            let Some(standing) = &self.hosts[host].standing else { continue };
            for (slot, of) in &standing.slots {
                if let Some(life) = self.slots.get_mut(*slot).filter(|life| life.host == host) {
                    life.stand(of);
                }
            }
            // A lost slot restarts with an unused number.
            for (channel, incarnation) in &standing.met {
                let Some((from, to)) = self.channels.get(*channel).copied() else { continue };
                let peer = if self.slots[from].host == host { to } else { from };
                let life = &mut self.slots[peer];
                life.number = life.number.max(*incarnation);
            }
            let life = &mut self.hosts[host];
            (life.phase, life.has_stood, life.peers) = (Phase::Open, true, known.clone());
        }
        if known.is_empty() && !self.hosts.iter().any(|life| life.has_stood) {
            return;
        }
        tracing::info!("the run is taken over");
        let others = self.hosts.iter().filter(|life| !life.has_stood);
        let others = others.filter_map(|life| Some((life.name.clone(), life.address.clone()?)));
        let others: Vec<_> = others.collect();
        (0..self.hosts.len())
            .filter(|host| self.hosts[*host].has_stood)
            .for_each(|host| self.tell_identities_to(host));
        for life in self.hosts.iter_mut().filter(|life| life.has_stood) {
            others.iter().for_each(|(name, address)| life.tell_peer(name, address));
        }
    }

    /// Starts all slots except the running ones.
    pub(super) fn start_all(&mut self) {
        let somebody_is_new = self.hosts.iter().any(|life| !life.has_stood);
        let somebody_stands = self.hosts.iter().any(|life| life.has_stood);
        let mut ends = Vec::new();
        for slot in 0..self.slots.len() {
            let standing = self.hosts[self.slots[slot].host].standing.as_ref();
            match standing.and_then(|standing| standing.slots.get(&slot)) {
                // Output of a finished slot is only in downstream slots, which may be lost.
                Some(of) if of.end != Some(End::Finished) || !somebody_is_new => {
                    ends.extend(of.end.clone().map(|end| (slot, end)));
                }
                _ => {
                    let resume_at = vec![self.begin_at; self.slots[slot].durable.len()];
                    if somebody_stands {
                        // Its acknowledged data is gone: upstream slots are needed, or needed again.
                        self.moment += 1;
                        self.slots[slot].lost_at = self.moment;
                    }
                    self.start(slot, resume_at, None);
                }
            }
        }
        self.kept_from.1 = self.begin_at;
        if somebody_stands {
            self.keep_from_checkpoint();
        } else {
            self.kept_from.0 = self.begin_at;
        }
        for (slot, end) in ends {
            self.ended_unheard(slot, end);
        }
        self.hosts.iter_mut().for_each(|life| life.standing = None);
    }

    /// Handles an end of a slot that was not received. An aborted one had its order from a coordinator that is gone.
    fn ended_unheard(&mut self, slot: usize, end: End) {
        match end {
            End::Aborted if !self.aborting => self.restart(slot, None),
            end => self.slot_ended(slot, end, &BTreeMap::new()),
        }
    }

    /// Brings a silent host up to date: orders to it were lost, and so were its notices.
    fn resume(&mut self, host: usize, standing: &Standing) {
        self.cancel_checkpoint();
        for slot in 0..self.slots.len() {
            let life = &self.slots[slot];
            if life.host != host || !life.alive {
                continue;
            }
            match standing.slots.get(&slot) {
                Some(of) if of.incarnation == life.number => {
                    self.slots[slot].durable.clone_from(&of.durable);
                    if let Some(end) = &of.end {
                        self.ended_unheard(slot, end.clone());
                    }
                }
                _ => {
                    let (incarnation, resume_at) = (life.number, life.durable.clone());
                    self.order(host, Order::Start { slot, incarnation, resume_at, new_executor: None });
                }
            }
        }
        for channel in 0..self.channels.len() {
            let (from, to) = self.channels[channel];
            if self.slots[from].host == host && self.slots[to].has_finished() {
                self.order(host, Order::ReceiverFinished { channel });
            }
        }
        let others = self.hosts.iter().filter_map(|life| Some((life.name.clone(), life.address.clone()?)));
        let others: Vec<_> = others.filter(|(name, _)| *name != self.hosts[host].name).collect();
        others.iter().for_each(|(name, address)| self.hosts[host].tell_peer(name, address));
        self.tell_identities_to(host);
        if self.checkpoints.is_some() {
            self.order(host, Order::KeepFrom(self.kept_from.0));
        }
        if self.is_stopping {
            self.order(host, Order::Stop);
        }
        if self.aborting {
            self.order(host, Order::Abort);
        }
    }

    /// Returns whether a host whose connection is lost may return as it is; it is then awaited.
    pub(super) fn may_return(&mut self, host: usize) -> bool {
        let Some((remote, _)) = &self.remote else { return false };
        let may = self.is_running && self.checkpoints.is_some() && remote.grace() > Duration::ZERO;
        if may {
            self.hosts[host].missing_since = Some(self.facts.clock.now());
            self.cancel_checkpoint();
        }
        may
    }

    /// Declares hosts dead that have been silent for too long.
    pub(super) fn give_up_silent_hosts(&mut self) {
        let Some((remote, _)) = &self.remote else { return };
        let (now, grace) = (self.facts.clock.now(), remote.grace());
        for host in 0..self.hosts.len() {
            let Some(since) = self.hosts[host].missing_since else { continue };
            let silent = Duration::from_nanos(u64::try_from(now - since).unwrap_or(0));
            // A run that is ending does not wait.
            let alone = match self.aborting {
                true => None,
                false => self.facts.program.alone(&self.hosts[host].name),
            };
            match alone {
                Some(Alone::Stops(after)) if silent >= after => {
                    let name = &self.hosts[host].name;
                    let text = format!(
                        "worker '{name}' was silent for {:.0} s, and `when_cut: stop` ends the run",
                        silent.as_secs_f64()
                    );
                    self.fail(RunError::Cut(text));
                }
                Some(Alone::GoesOn(time)) if silent < time + FENCE => {}
                None if silent < grace => {}
                Some(Alone::Stops(_)) => {}
                _ => self.process_gone(host, "it was silent for too long"),
            }
        }
    }

    /// Leaves the hosts to another coordinator.
    pub(super) fn step_down(mut self) -> Result<bool, RunError> {
        if let Some((remote, _)) = self.remote.take() {
            remote.forsake();
        }
        if let Some(checkpoints) = self.checkpoints.take() {
            checkpoints.end();
        }
        Err(stepped_down())
    }
}
