//! The thread that counts the traffic of the host, reports it to the leader of the rack, and leads the rack where the conductor wants
//! that.
mod counting;
mod interface;
mod sending;
mod wires;

pub(super) use wires::Wires;

use super::{Options, Up, now};
use crate::hints::{Facts, LEAST, Part};
use crate::peers::ToConductor;
use counting::Counting;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};
use tidemill_hints::collect::LOOK;
use tidemill_hints::leader::{Leader, Network, Rack, Refusal};
use tidemill_hints::message::{entries, read_entries};
use tidemill_link::remote::{Incoming, MessageWriter, Purpose, Security};

/// Events that wait. What does not find room is as old as the next one at most.
const MOST: usize = 4096;
/// Reports among them: the conductor always finds room.
const MOST_REPORTS: usize = MOST / 2;
/// Racks, and hosts of a rack, that a leader keeps room for.
const MOST_LINKS: usize = 1 << 16;
/// Counting takes at most one in so many parts of the time, except that it is done each period.
const RARELY: u32 = 100;

/// An event for the thread.
enum Event {
    /// The service has registered at the conductor.
    Registered,
    /// The conductor says who leads the rack.
    Part(Box<Part>),
    /// A host of the rack has connected.
    Come(String, MessageWriter),
    /// It reports.
    Report(String, Vec<u8>),
    /// It ends.
    Stop,
}

/// The channel to the thread, which ends when this is dropped.
pub(super) struct Hints {
    events: Sender<Event>,
    thread: Option<JoinHandle<()>>,
}

/// The channel from hosts of the rack to the thread.
#[derive(Clone)]
pub(super) struct Reports(Sender<Event>);

impl Hints {
    /// Starts to count as soon as the conductor says for whom.
    pub(super) fn start(options: &Options, wires: Arc<Wires>, up: Up) -> io::Result<Self> {
        let (events, received) = bounded(MOST);
        let address = options.listen.as_ref().and_then(|listen| {
            listen.place().rsplit_once(':').and_then(|(host, _)| host.trim_matches(['[', ']']).parse().ok())
        });
        let counting = Counting::new(options.counters.clone(), wires, address.and_then(interface::of));
        let work = Work {
            host: options.host.name.clone(),
            security: options.security.clone(),
            facts: facts(options, &counting),
            period: options.hints.period.max(LEAST),
            counting,
            settings: options.hints.clone(),
            up,
            begun: now(),
            part: None,
            leader: None,
            to_leader: None,
            came: BTreeMap::new(),
        };
        let thread = Builder::new().name("tm-hints".into()).spawn(move || work.run(&received))?;
        Ok(Self { events, thread: Some(thread) })
    }

    pub(super) fn registered(&self) {
        let _ = self.events.try_send(Event::Registered);
    }

    pub(super) fn part(&self, part: Part) {
        let _ = self.events.try_send(Event::Part(Box::new(part)));
    }

    pub(super) fn reports(&self) -> Reports {
        Reports(self.events.clone())
    }
}

impl Drop for Hints {
    fn drop(&mut self) {
        let _ = self.events.send(Event::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Reports {
    /// A host of the rack connects.
    pub(super) fn take(&self, incoming: Incoming) {
        let Purpose::Group { host, .. } = incoming.greeting.purpose.clone() else { return };
        let (events, name) = (self.0.clone(), host.clone());
        // Only a thread that is gone takes none.
        let heard = move |report| {
            if events.len() >= MOST_REPORTS {
                return true;
            }
            let sent = events.try_send(Event::Report(name.clone(), report));
            !sent.is_err_and(|error| error.is_disconnected())
        };
        match sending::from(incoming, heard) {
            Ok(writer) => {
                if self.0.try_send(Event::Come(host, writer.clone())).is_err() {
                    writer.close();
                }
            }
            Err(error) => tracing::debug!("a host that reports was lost at once: {error}"),
        }
    }
}

fn facts(options: &Options, counting: &Counting) -> Facts {
    let measured = counting.interface().and_then(interface::rate).map(|rate| [rate; 2]);
    Facts {
        rate: options.hints.rate.or(measured),
        by_interface: options.hints.rate.is_none(),
        rack_rate: options.hints.rack_rate,
        counted: counting.counted(),
    }
}

struct Work {
    host: String,
    security: Security,
    facts: Facts,
    period: Duration,
    counting: Counting,
    settings: crate::hints::Settings,
    up: Up,
    begun: Instant,
    part: Option<Part>,
    /// The state of the leader, where this host is it, and the number of its rack.
    leader: Option<(u64, Leader)>,
    to_leader: Option<Sender<Vec<u8>>>,
    /// Hosts that report here.
    came: BTreeMap<String, MessageWriter>,
}

impl Work {
    fn run(mut self, received: &Receiver<Event>) {
        let (mut look, mut report) = (self.begun, self.begun + self.period);
        loop {
            let event = match self.part {
                Some(_) => received.recv_deadline(look.min(report)),
                None => received.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match event {
                Ok(Event::Stop) | Err(RecvTimeoutError::Disconnected) => break,
                Ok(event) => self.follow(event),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if self.part.is_none() {
                continue;
            }
            let begun = now();
            if begun >= look {
                self.look();
                let took = now().saturating_duration_since(begun);
                look = begun + took.saturating_mul(RARELY).clamp(LOOK, self.period.max(LOOK));
            }
            if begun >= report {
                self.report();
                report = begun + self.period;
            }
        }
        self.came.values().for_each(MessageWriter::close);
    }

    fn follow(&mut self, event: Event) {
        match event {
            Event::Registered => self.up.send(ToConductor::Hints(self.facts.clone())),
            Event::Part(part) => self.take(*part),
            Event::Come(host, writer) => {
                let is_mine = self.leader.is_some() && self.machine(&host).is_some();
                // One that comes too early dials again.
                match is_mine {
                    true => self.came.insert(host, writer).iter().for_each(MessageWriter::close),
                    false => writer.close(),
                }
            }
            Event::Report(host, report) => {
                let now = self.time();
                let (Some(machine), Some((_, leader))) = (self.machine(&host), &mut self.leader) else {
                    return;
                };
                let taken = read_entries(&report).map_err(|error| error.to_string()).and_then(|entries| {
                    if entries.iter().any(|entry| entry.link / 2 != machine) {
                        return Err("it is not about the links of the host".to_owned());
                    }
                    leader.report(machine, entries, now).map_err(|refusal| refusal.to_string())
                });
                if let Err(reason) = taken {
                    tracing::debug!("a report of host {host} is not taken: {reason}");
                }
            }
            Event::Stop => {}
        }
    }

    /// The number of a host in the rack.
    fn machine(&self, host: &str) -> Option<u64> {
        self.part.as_ref()?.machines.get(host).copied()
    }

    /// Time since the thread began.
    fn time(&self) -> Duration {
        now().saturating_duration_since(self.begun)
    }

    /// Takes who leads, and who is in the rack.
    fn take(&mut self, part: Part) {
        let leads = part.leader.as_ref() == Some(&self.host);
        let before = self.part.as_ref();
        if before.is_none_or(|before| before.near != part.near) {
            self.counting.set_racks(&part.near, &self.settings.rack_addresses);
        }
        if !leads && before.is_none_or(|before| before.address != part.address || self.to_leader.is_none()) {
            let way = part
                .address
                .clone()
                .map(|leader| sending::to(leader, self.host.clone(), self.security.clone()));
            self.to_leader = way.and_then(|way| way.map_err(|error| tracing::error!("hints: {error}")).ok());
        }
        if leads {
            self.to_leader = None;
            let count = part.machines.values().max().map_or(0, |most| most + 1);
            let mut racks =
                vec![Rack::default(); usize::try_from(part.rack).unwrap_or_default().min(MOST_LINKS)];
            // What the links can carry is known to the conductor.
            let count = usize::try_from(count).unwrap_or_default().min(MOST_LINKS);
            racks.push(Rack { machines: vec![[0.0; 2]; count], uplink: [0.0; 2] });
            match &mut self.leader {
                Some((rack, leader)) if *rack == part.rack => leader.set_network(Network { racks }),
                _ => self.leader = Some((part.rack, Leader::new(part.rack, Network { racks }))),
            }
            self.came.retain(|host, writer| {
                let stays = part.machines.contains_key(host);
                if !stays {
                    writer.close();
                }
                stays
            });
        } else {
            self.leader = None;
            std::mem::take(&mut self.came).values().for_each(MessageWriter::close);
        }
        self.part = Some(part);
    }

    fn look(&mut self) {
        let now = self.time();
        if let Some(problem) = self.counting.look(now) {
            tracing::warn!("hints count only the connections between ranks of this host: {problem}");
            self.facts.counted = self.counting.counted();
            self.up.send(ToConductor::Hints(self.facts.clone()));
        }
    }

    /// Reports to the leader; as the leader, to the conductor.
    fn report(&mut self) {
        let now = self.time();
        let Some(machine) = self.machine(&self.host) else { return };
        let entries_now = self.counting.report(machine, now);
        if let Some((_, leader)) = &mut self.leader {
            match leader.report(machine, entries_now.to_vec(), now) {
                Ok(()) | Err(Refusal::TooSoon { .. }) => {}
                Err(refusal) => tracing::debug!("the own report is not taken: {refusal}"),
            }
            let aggregate = leader.aggregate(now);
            self.up.send(ToConductor::Loads(aggregate));
        } else if let Some(leader) = &self.to_leader {
            // One that is not reached gets the next one.
            let _ = leader.try_send(entries(&entries_now));
        }
    }
}
