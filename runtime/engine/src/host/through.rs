//! Channels that go through the transport service of this machine: their ends dial the service, which joins them.
//!
//! Which channels do so may change at any time. An end that moves is cut first: the channel continues over the next connection, as
//! after any loss. A service that is gone is dialled until it is back; what goes through it waits, because its policies must hold.
use super::HostEvent;
use super::network::{NetworkEvent, Watched, watched};
use crate::channel::ChannelId;
use crate::emulation::WireEnd;
use crate::failure::RunError;
use crate::graph::{Graph, MetricsTable, Program};
use crate::metrics::EdgeMetrics;
use crate::slot::Command;
use arrow_schema::SchemaRef;
use crossbeam_channel::Sender;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tidemill_link::remote::{Address, Connection, Greeting, Purpose, Role, Security, dial, schema_hash};
use tidemill_net::edge_name::EdgeName;
use tidemill_net::program::{Callbacks, Registration, register};
use tidemill_net::protocol::{self, EdgeCounts, Peer, PolicySpec, ProgramChannel, Routes};

/// Time for an answer: the service waits almost as long for the other end.
const DIALING: Duration = Duration::from_secs(5);
/// Shortest and longest pause between tries.
const PAUSES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(500));

/// The transport service of the machine, for a run or a host of one.
#[derive(Debug, Clone)]
pub struct ServedBy {
    /// The file of its socket.
    pub socket: PathBuf,
    /// The policies of the plan.
    pub policies: Vec<PolicySpec>,
    /// The name of the workflow.
    pub workflow: String,
}

struct End {
    incarnation: u32,
    schema: SchemaRef,
    wire: Option<WireEnd>,
    generation: u64,
    superseded: Arc<AtomicBool>,
    /// Something has come over the present connection.
    has_heard: Arc<AtomicBool>,
    /// Connections in a row over which nothing came.
    failures: u32,
}

/// Ends of this host that go through the service.
pub(crate) struct Through {
    registration: Registration,
    run: u128,
    plan_version: u64,
    routes: Routes,
    ends: BTreeMap<(ChannelId, Role), End>,
    events: Sender<HostEvent>,
}

impl Through {
    /// Registers the channels of this host. `worker`: the one whose slots are here; none: all are.
    pub(crate) fn register(
        served_by: ServedBy,
        (run, plan_version): (u128, u64),
        (program, graph, metrics): (&Program, &Graph, &MetricsTable),
        worker: Option<&str>,
        events: Sender<HostEvent>,
    ) -> Result<Self, RunError> {
        let ServedBy { socket, policies, workflow } = served_by;
        let stages: BTreeMap<&str, _> =
            program.plan.stages.iter().map(|stage| (stage.id.as_str(), stage)).collect();
        let operator =
            |stage: &str| stages.get(stage).map_or(stage, |stage| stage.operator.as_str()).to_owned();
        let name = |edge: &tidemill_spec::plan::PlanEdge| EdgeName {
            workflow: workflow.clone(),
            from: operator(&edge.from),
            to: operator(&edge.to),
        };
        let is_here = |slot: usize| worker.is_none_or(|worker| graph.slots[slot].worker == worker);
        let mut channels = Vec::new();
        for (id, channel) in graph.channels.iter().enumerate() {
            let edge = &program.plan.edges[channel.edge];
            let ends = [(Role::Sender, channel.from_slot), (Role::Receiver, channel.to_slot)];
            let roles: Vec<Role> =
                ends.into_iter().filter(|(_, slot)| is_here(*slot)).map(|(role, _)| role).collect();
            let columns = stages.get(edge.from.as_str()).and_then(|stage| program.output_of(stage));
            if !roles.is_empty() {
                channels.push(ProgramChannel {
                    channel: id as u64,
                    edge: name(edge),
                    name: channel.name.clone(),
                    roles,
                    columns: columns.cloned().unwrap_or_default(),
                });
            }
        }
        let with_channel: BTreeSet<usize> = graph.channels.iter().map(|channel| channel.edge).collect();
        let inner = program.plan.edges.iter().enumerate().filter(|(at, edge)| {
            let of_worker = stages.get(edge.from.as_str()).map(|stage| stage.worker.as_str());
            !with_channel.contains(at) && worker.is_none_or(|worker| of_worker == Some(worker))
        });
        let registered = protocol::Program {
            version: protocol::VERSION,
            worker: worker.unwrap_or("here").to_owned(),
            workflow: workflow.clone(),
            process: std::process::id(),
            inner: inner.map(|(_, edge)| name(edge)).collect(),
            channels,
            policies,
        };
        let edges: Vec<(EdgeName, Arc<EdgeMetrics>, bool)> = (graph.channels.iter())
            .map(|channel| (channel.edge, is_here(channel.from_slot)))
            .collect::<BTreeSet<(usize, bool)>>()
            .into_iter()
            .map(|(at, sends)| {
                let edge = &program.plan.edges[at];
                (name(edge), metrics.edge(edge), sends)
            })
            .collect();
        let sends: Vec<(EdgeName, Arc<EdgeMetrics>)> = (edges.iter())
            .filter(|(_, _, sends)| *sends)
            .map(|(edge, of, _)| (edge.clone(), Arc::clone(of)))
            .collect();
        let rejected = move |edge: &EdgeName, rows: u64| {
            if let Some((_, of, _)) = edges.iter().find(|(known, ..)| known == edge) {
                of.drops.add("policy", rows);
            }
        };
        let counts = move || {
            let count = |(edge, of): &(EdgeName, Arc<EdgeMetrics>)| EdgeCounts {
                edge: edge.clone(),
                records: of.records.load(Ordering::Relaxed),
                bytes: of.bytes.load(Ordering::Relaxed),
                waiting: of.waiting.get(),
            };
            // Two stages of one operator are one edge for people.
            let mut all: BTreeMap<EdgeName, EdgeCounts> = BTreeMap::new();
            for counts in sends.iter().map(count) {
                let sum = all.entry(counts.edge.clone()).or_default();
                *sum = EdgeCounts {
                    records: sum.records + counts.records,
                    bytes: sum.bytes + counts.bytes,
                    waiting: sum.waiting + counts.waiting,
                    edge: counts.edge,
                };
            }
            all.into_values().collect()
        };
        let news = events.clone();
        let on_routes = move |routes| drop(news.send(HostEvent::Network(NetworkEvent::Routes(routes))));
        let callbacks =
            Callbacks { routes: Box::new(on_routes), counts: Box::new(counts), rejected: Box::new(rejected) };
        let (registration, routes) = register(&socket, run, registered, callbacks)
            .map_err(|error| RunError::System(error.to_string()))?;
        Ok(Self { registration, run, plan_version, routes, ends: BTreeMap::new(), events })
    }

    /// Has the figures of the service be complete.
    pub(crate) fn exchange(&self) {
        self.registration.exchange();
    }

    /// Returns whether a channel goes through the service.
    pub(crate) fn has(&self, channel: ChannelId) -> bool {
        self.routes.through.contains(&(channel as u64))
    }

    /// Where other hosts reach the service.
    pub(crate) fn public(&self) -> Option<&Address> {
        self.routes.public.as_ref()
    }

    /// Channels that go through the service.
    pub(crate) fn channels(&self) -> BTreeSet<ChannelId> {
        self.routes.through.iter().map(|channel| *channel as ChannelId).collect()
    }

    /// Follows new routes. Returns the channels whose route has changed.
    pub(crate) fn follow_routes(&mut self, routes: Routes) -> Vec<ChannelId> {
        let changed: Vec<ChannelId> =
            self.routes.through.symmetric_difference(&routes.through).map(|id| *id as ChannelId).collect();
        self.routes = routes;
        changed.iter().for_each(|channel| self.close(*channel));
        changed
    }

    /// Opens the end of a started slot. `dial`: where the service dials the other end; `identity`: that in its certificate.
    pub(crate) fn open(
        &mut self,
        (channel, role): (ChannelId, Role),
        incarnation: u32,
        (schema, wire): (&SchemaRef, Option<&WireEnd>),
        (dial, identity): (Option<Address>, Option<String>),
    ) {
        self.registration.peer(Peer { channel: channel as u64, role, dial, identity });
        let before = self.ends.remove(&(channel, role));
        if let Some(before) = &before {
            before.superseded.store(true, Ordering::Release);
        }
        let end = End {
            incarnation,
            schema: Arc::clone(schema),
            wire: wire.cloned(),
            generation: before.map_or(0, |before| before.generation),
            superseded: Arc::default(),
            has_heard: Arc::default(),
            failures: 0,
        };
        self.ends.insert((channel, role), end);
        self.dial(channel, role);
    }

    /// Returns whether an end of a slot of this incarnation is open.
    pub(crate) fn is_open(&self, channel: ChannelId, role: Role, incarnation: u32) -> bool {
        self.ends.get(&(channel, role)).is_some_and(|end| end.incarnation == incarnation)
    }

    /// Closes the ends of a channel: it goes elsewhere, or its slot has ended.
    pub(crate) fn close(&mut self, channel: ChannelId) {
        for role in [Role::Sender, Role::Receiver] {
            self.close_end(channel, role);
        }
    }

    /// Closes an end whose slot has ended.
    pub(crate) fn close_end(&mut self, channel: ChannelId, role: Role) {
        if let Some(end) = self.ends.remove(&(channel, role)) {
            end.superseded.store(true, Ordering::Release);
        }
    }

    /// An end was cut: it dials again.
    pub(crate) fn cut(&mut self, (channel, role): (ChannelId, Role), generation: u64) {
        let Some(end) = self.ends.get_mut(&(channel, role)).filter(|end| end.generation == generation) else {
            return;
        };
        end.failures = if end.has_heard.load(Ordering::Acquire) { 0 } else { end.failures.saturating_add(1) };
        self.dial(channel, role);
    }

    /// An end was dialled. Returns its new link for the slot.
    pub(crate) fn dialled(
        &mut self,
        (channel, role): (ChannelId, Role),
        generation: u64,
        connection: Connection,
    ) -> Option<Command> {
        let end = self.ends.get_mut(&(channel, role)).filter(|end| end.generation == generation)?;
        end.has_heard = Arc::default();
        let tell = Watched {
            channel,
            through: Some(role),
            generation,
            has_heard: Arc::clone(&end.has_heard),
            events: self.events.clone(),
        };
        watched(connection, role, (&end.schema, end.wire.as_ref()), tell)
            .inspect_err(|error| tracing::warn!(channel, "an end at the transport service failed: {error}"))
            .ok()
    }

    fn dial(&mut self, channel: ChannelId, role: Role) {
        let Some(end) = self.ends.get_mut(&(channel, role)) else { return };
        end.superseded.store(true, Ordering::Release);
        end.superseded = Arc::default();
        end.generation += 1;
        let purpose = Purpose::Channel {
            channel: channel as u64,
            role,
            incarnation: end.incarnation,
            schema: schema_hash(&end.schema),
        };
        let own = Greeting { run: self.run, plan_version: self.plan_version, purpose };
        let (superseded, generation) = (Arc::clone(&end.superseded), end.generation);
        let (events, address) = (self.events.clone(), self.registration.address().clone());
        let after = |failures: u32| PAUSES.0.saturating_mul(1 << failures.min(10)).min(PAUSES.1);
        let mut pause = if end.failures == 0 { Duration::ZERO } else { after(end.failures) };
        let work = move || {
            while !superseded.load(Ordering::Acquire) {
                std::thread::sleep(pause);
                match dial(&address, &Security::none(), &own, DIALING) {
                    Ok(connection) => {
                        let dialled =
                            NetworkEvent::ThroughDialled { end: (channel, role), generation, connection };
                        let _ = events.send(HostEvent::Network(dialled));
                        return;
                    }
                    Err(error) => {
                        tracing::debug!(
                            channel,
                            "the transport service does not join this channel yet: {error}"
                        );
                        pause = (pause * 2).clamp(PAUSES.0, PAUSES.1);
                    }
                }
            }
        };
        // Without a thread, the end is cut and dials again with the next event of the host.
        if let Err(error) = std::thread::Builder::new().name("tm-dial".into()).spawn(work) {
            tracing::warn!(channel, "cannot start the thread that dials the transport service: {error}");
            end.failures = end.failures.saturating_add(1);
            let cut = NetworkEvent::ThroughCut { end: (channel, role), generation: end.generation };
            let _ = self.events.send(HostEvent::Network(cut));
        }
    }
}

impl Drop for Through {
    fn drop(&mut self) {
        self.ends.values().for_each(|end| end.superseded.store(true, Ordering::Release));
    }
}
