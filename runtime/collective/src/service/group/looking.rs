//! The part that depends on time: signs of life, silence, deadlines, and sleep.
use super::super::formation::Formation;
use super::super::local::{Local, Standing};
use super::super::now;
use super::super::own::Own;
use super::Work;
use crate::peers::{Between, ToConductor};
use crate::protocol::{Failure, FailureKind, Figures, ToProgram};
use crate::team::{Team, has_ended};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::time::{Duration, Instant};

/// Interval of signs of life between hosts.
const HELLO: Duration = Duration::from_millis(250);
/// Interval of figures for the conductor.
const FIGURES: Duration = Duration::from_secs(1);

impl Work {
    /// Looks at everything that depends on time.
    pub(super) fn look(&mut self) {
        let time = now();
        // A thread that stood still does not know who was silent.
        let stood_still = time.saturating_duration_since(self.looked) > self.own.silence / 3;
        self.looked = time;
        self.early.tidy(time);
        self.look_at_joins(time);
        self.look_at_retiring(time);
        self.say_figures(time);
        let says_hello = self.hello.is_none_or(|at| time >= at);
        if says_hello {
            self.hello = Some(time + HELLO);
        }
        let arrived = if says_hello { self.arrived() } else { Vec::new() };
        let Some(formation) = self.formation.as_mut().filter(|formation| formation.broken.is_none()) else {
            return;
        };
        if says_hello {
            let current = formation.current.map(|current| current.numbered);
            formation.tell(&Between::Hello { arrived, current });
        }
        if let Some((failure, _)) = formation.suspected.take_if(|(_, until)| time >= *until) {
            let known = formation.doomed.take().map(|(failure, _)| failure);
            return self.break_off(known.unwrap_or(failure), true);
        }
        if formation.building.as_ref().is_some_and(|building| time >= building.until) {
            let failure = formation.unbuilt();
            return self.break_off(failure, true);
        }
        let mut silent = None;
        for (host, peer) in formation.peers.iter_mut().filter(|(_, peer)| !peer.is_broken) {
            let Some(heard) = &mut peer.heard else {
                peer.heard = peer.outbox.is_some().then_some(time);
                continue;
            };
            if stood_still {
                *heard = time;
            } else if time.saturating_duration_since(*heard) >= self.own.silence {
                silent = Some(*host);
            }
        }
        if let Some(host) = silent {
            let silence = self.own.silence.as_secs_f64();
            let text = format!("host {} is silent for {silence} s", formation.name_of(host));
            return self.lose_host(host, text);
        }
        self.look_at_deadlines(time);
    }

    /// Operations that each rank of this host has called, as far as they may begin.
    fn arrived(&mut self) -> Vec<(u32, u64)> {
        let Some(formation) = &self.formation else { return Vec::new() };
        let ended = formation.ended();
        let ranks = formation.own_ranks().to_vec();
        let mut arrived = Vec::with_capacity(ranks.len());
        for rank in ranks {
            let Some(local) = self.locals.get_mut(&rank) else { continue };
            arrived.push((rank, ended + u64::from(local.has_arrived())));
        }
        arrived
    }

    /// Ends the group when the service does, after the operation that runs.
    fn look_at_retiring(&mut self, time: Instant) {
        let runs = self.formation.as_ref().is_some_and(|formation| formation.current.is_some());
        let Some((reason, _, _done)) = self.retires.take_if(|(_, until, _)| !runs || time >= *until) else {
            return;
        };
        let host = self.own.host.name.clone();
        let text = format!("the service of host {host} {reason}");
        self.break_off(Failure { kind: FailureKind::Lost, rank: None, host, text }, true);
        for (rank, mut local) in std::mem::take(&mut self.locals) {
            local.say(ToProgram::Bye { reason: reason.clone() }, None);
            self.up.send(ToConductor::Leave { key: self.key.clone(), rank });
        }
    }

    fn look_at_joins(&mut self, time: Instant) {
        let late = |local: &Local| match local.standing {
            Standing::Waits { until, again } if time >= until => Some(again),
            _ => None,
        };
        let late: Vec<(u32, bool)> =
            self.locals.iter().filter_map(|(rank, local)| Some((*rank, late(local)?))).collect();
        for (rank, again) in late {
            let listed = |ranks: &[u32]| ranks.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
            let name = &self.key.name;
            let reason = match &self.missing {
                Some(missing) => {
                    let (s, have) = if missing.len() == 1 { ("", "has") } else { ("s", "have") };
                    format!("rank{s} {} of group {name} {have} not come in time", listed(missing))
                }
                None if self.formation.is_some() => {
                    format!("the hosts of group {name} have not connected in time")
                }
                None => {
                    let Own { conductor, .. } = &*self.own;
                    format!("{conductor}, which introduces the ranks, has not answered{}", self.own.why())
                }
            };
            let Some(local) = self.locals.get_mut(&rank) else { continue };
            local.say(ToProgram::Refused { reason }, None);
            if again {
                local.standing = Standing::Member;
            } else {
                self.leave(rank, "it waited too long");
            }
        }
    }

    fn say_figures(&mut self, time: Instant) {
        let is_formed = self.formation.is_some();
        let is_due = |(figures, at): &(Figures, Instant)| *figures != self.figures && time >= *at + FIGURES;
        if is_formed && self.said.as_ref().is_none_or(is_due) {
            self.said = Some((self.figures, time));
            let trace = self.trace.iter().copied().collect();
            self.up.send(ToConductor::Figures { key: self.key.clone(), figures: self.figures, trace });
        }
    }

    fn look_at_deadlines(&mut self, time: Instant) {
        let Some(formation) = &self.formation else { return };
        let late = self.locals.iter().find_map(|(rank, local)| {
            let first = local.calls.front().filter(|call| time >= call.until && local.is_member())?;
            Some((*rank, first.call))
        });
        let Some((rank, call)) = late else { return };
        let number = formation.barrier.last() + u64::from(formation.current.is_none());
        let deadline = call.deadline_ms as f64 / 1e3;
        let begun = format!("operation {number} has not ended within {deadline} s");
        let seconds = |since: Instant| time.saturating_duration_since(since).as_secs_f64();
        let here = self.own.host.name.clone();
        // Those of this host are known now, those of others as of the last sign of life.
        let mut absent = None;
        for other in formation.own_ranks().to_vec() {
            if let Some(local) = self.locals.get_mut(&other)
                && !local.has_arrived()
            {
                absent = Some((other, here.clone(), seconds(local.called)));
            }
        }
        for (host, peer) in &formation.peers {
            for (other, (arrived, since)) in &peer.arrived {
                if *arrived < number && absent.is_none() {
                    absent = Some((*other, formation.name_of(*host), seconds(*since)));
                }
            }
        }
        let failure = match absent {
            Some((rank, host, silent)) => {
                let text = format!(
                    "{begun}: rank {rank} on host {host} has not called it; its last call was {silent:.1} s ago"
                );
                Failure { kind: FailureKind::Deadline, rank: Some(rank), host, text }
            }
            None if formation.building.is_some() || formation.barrier.waits_for().is_some() => {
                let text = format!("{begun}: the strategy of the group is being changed");
                Failure { kind: FailureKind::Deadline, rank: None, host: here, text }
            }
            None => {
                let text =
                    format!("{begun}: all ranks have called it, and rank {rank} still waits for bytes");
                Failure { kind: FailureKind::Deadline, rank: None, host: here, text }
            }
        };
        self.break_off(failure, true);
    }

    /// Sleeps until something happens.
    pub(super) fn wait(&mut self, is_busy: bool) {
        let time = now();
        let mut until = self.hello.unwrap_or(time + HELLO);
        until = self.retires.iter().map(|(_, at, _)| *at).fold(until, Instant::min);
        if let Some(formation) = self.formation.as_ref().filter(|formation| formation.broken.is_none()) {
            let speaking = formation.peers.values().filter(|peer| !peer.is_broken);
            let silent = speaking.filter_map(|peer| peer.heard?.checked_add(self.own.silence));
            until = silent.fold(until, Instant::min);
        }
        for local in self.locals.values() {
            if let Standing::Waits { until: of, .. } = local.standing {
                until = until.min(of);
            }
            if let Some(call) = local.calls.front().filter(|_| local.is_member()) {
                until = until.min(call.until);
            }
        }
        let mut waits = vec![PollFd::new(&*self.handle.waker, PollFlags::IN)];
        for local in self.locals.values() {
            waits.push(local.wanted());
            waits.extend(local.after().map(|after| PollFd::from_borrowed_fd(after, PollFlags::IN)));
        }
        if let Some(formation) = self.formation.as_ref().filter(|formation| formation.suspected.is_none())
            && let (Some(team), Some(_)) = (&formation.team, formation.current)
        {
            waits.extend(team.waits());
            if let Some(most) = team.wait_at_most() {
                until = until.min(time + most);
            }
        }
        let resting = self.formation.as_ref().and_then(Formation::resting).map(Team::at_rest);
        let (ranks, wires): (Vec<u32>, Vec<PollFd<'_>>) = resting.into_iter().flatten().unzip();
        let others = waits.len();
        waits.extend(wires);
        let left = if is_busy { Duration::ZERO } else { until.saturating_duration_since(time) };
        let timeout = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        // Ended early by a signal, everything is looked at again.
        let _ = poll(&mut waits, Some(&timeout));
        let mut wires = ranks.into_iter().zip(&waits[others..]);
        let lost = wires.find(|(_, wait)| has_ended(wait)).map(|(rank, _)| rank);
        if let (Some(rank), Some(formation)) = (lost, &mut self.formation) {
            formation.wire_ended(rank);
        }
    }
}
