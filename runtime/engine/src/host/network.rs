//! The ends of channels whose other end is on another host: dialled or awaited, and redialled when they are cut.
//!
//! Each channel has a connection of its own, so a slow one holds up no other. The receiver dials where the sender's
//! host can be reached, otherwise the sender. After a cut the channel itself continues: its receiver requests the
//! epochs from one on, and drops records that it has.
use super::checked::{Controls, Frames};
use super::{HostEvent, Met};
use crate::channel::ChannelId;
use crate::clock::{Clock, Nanoseconds};
use crate::emulation::WireEnd;
use crate::frame::{Control, Frame};
use crate::link::{AroundReceiver, LinkError, LinkReceiver, LinkSender};
use crate::slot::Command;
use arrow_schema::SchemaRef;
use crossbeam_channel::Sender;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tidemill_link::remote::{
    Address, Connection, Greeting, Incoming, Purpose, RemoteError, Role, Security, dial_to, schema_hash,
};
use tidemill_net::MOVED;
use tidemill_net::protocol::Routes;

/// Why a channel is refused whose slot here has finished.
const FINISHED: &str = "its slot has finished";
/// Timeout of one try to connect.
const DIALING: Duration = Duration::from_secs(5);
/// Shortest pause before a channel that was cut is redialled; it doubles after each connection over which nothing
/// came.
const SHORTEST_PAUSE: Duration = Duration::from_millis(5);
/// Longest pause between tries.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Pause where the slot at the other end has finished: if it is needed, it restarts in a moment.
const PAUSE_WHERE_FINISHED: Duration = Duration::from_millis(100);

/// Events of the network, for the host's own thread.
pub(crate) enum NetworkEvent {
    /// Another host has dialled.
    Incoming(Incoming),
    /// A dialled channel is there.
    Dialled { channel: ChannelId, generation: u64, connection: Connection },
    /// A channel was cut.
    Cut { channel: ChannelId, generation: u64 },
    /// Other channels go through the transport service from now on.
    Routes(Routes),
    /// An end was joined by the transport service.
    ThroughDialled { end: (ChannelId, Role), generation: u64, connection: Connection },
    /// An end at the transport service was cut.
    ThroughCut { end: (ChannelId, Role), generation: u64 },
}

/// One end, of the present incarnation of its slot.
struct End {
    role: Role,
    incarnation: u32,
    peer: String,
    schema: SchemaRef,
    /// The emulated wire that its frames come over.
    wire: Option<WireEnd>,
    /// Counts its connections, so that events of an older one are recognised.
    generation: u64,
    /// Stops the thread that dials when another connection was made.
    superseded: Arc<AtomicBool>,
    /// Consecutive tries without success: the system had no thread to dial or no descriptor for the link, or nothing
    /// came over it.
    failures: u32,
    /// The reason was logged; once, until something comes.
    is_told: bool,
    /// Something has come over the present connection.
    has_heard: Arc<AtomicBool>,
    /// When to redial with a thread, after the system had none.
    again_at: Option<Nanoseconds>,
}

impl End {
    /// Returns the time before the next try.
    fn pause(&self) -> Duration {
        SHORTEST_PAUSE.saturating_mul(1 << self.failures.min(16)).min(LONGEST_PAUSE)
    }

    fn failed(&mut self) {
        self.failures = self.failures.saturating_add(1);
    }
}

/// Work for a thread of its own, and the function that starts it.
type Work = Box<dyn FnOnce() + Send>;
type Spawn = Box<dyn Fn(Work) -> io::Result<()> + Send>;

fn spawn(work: Work) -> io::Result<()> {
    std::thread::Builder::new().name("tm-dial".into()).spawn(work).map(drop)
}

pub(crate) struct Network {
    run: u128,
    plan_version: u64,
    security: Security,
    /// Whether other hosts reach this one.
    is_reachable: bool,
    peers: BTreeMap<String, Address>,
    /// The required identities of the certificates of other hosts, where they have one.
    identities: BTreeMap<String, String>,
    /// Number of channels of the plan.
    channels: usize,
    ends: BTreeMap<ChannelId, End>,
    /// Channels whose slots have finished.
    finished: BTreeSet<ChannelId>,
    /// Dialled by another host before the slot here was started.
    waiting: BTreeMap<ChannelId, Incoming>,
    /// Channels that go through the transport service here, and where other hosts reach it.
    through: (BTreeSet<ChannelId>, Option<Address>),
    met: Met,
    clock: Arc<dyn Clock>,
    spawn: Spawn,
    events: Sender<HostEvent>,
}

impl Network {
    pub(crate) fn new(
        (run, plan_version): (u128, u64),
        security: Security,
        is_reachable: bool,
        (peers, identities): (BTreeMap<String, Address>, BTreeMap<String, String>),
        channels: usize,
        (met, clock): (Met, Arc<dyn Clock>),
        events: Sender<HostEvent>,
    ) -> Self {
        let (ends, finished, waiting) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
        Self {
            run,
            plan_version,
            security,
            is_reachable,
            peers,
            identities,
            channels,
            ends,
            finished,
            waiting,
            through: Default::default(),
            met,
            clock,
            spawn: Box::new(spawn),
            events,
        }
    }

    /// Returns the next time to dial where there was no thread.
    pub(crate) fn next_try(&self) -> Option<Nanoseconds> {
        self.ends.values().filter_map(|end| end.again_at).min()
    }

    /// Dials the channels whose time has come.
    pub(crate) fn try_again(&mut self) {
        let now = self.clock.now();
        let is_due = |end: &mut End| end.again_at.take_if(|at| *at <= now).is_some();
        let due = self.ends.iter_mut().filter_map(|(channel, end)| is_due(end).then_some(*channel));
        let due: Vec<ChannelId> = due.collect();
        due.into_iter().for_each(|channel| self.dial(channel, Duration::ZERO));
    }

    /// Sets the address of another host.
    pub(crate) fn peer(&mut self, host: String, address: Address) {
        let to_it = self.channels_to(&host);
        self.peers.insert(host, address);
        // Threads that dial it use the old address.
        to_it.into_iter().for_each(|channel| self.dial(channel, Duration::ZERO));
    }

    /// Sets the identity in the certificate of another host.
    pub(crate) fn identity(&mut self, host: String, identity: String) {
        if self.identities.get(&host) == Some(&identity) {
            return;
        }
        let to_it = self.channels_to(&host);
        self.identities.insert(host, identity);
        // Threads that dial it expect the old identity.
        to_it.into_iter().for_each(|channel| self.dial(channel, Duration::ZERO));
    }

    /// Leaves these channels to the transport service of this machine, which other hosts reach at the address.
    pub(crate) fn leave(&mut self, channels: BTreeSet<ChannelId>, public: Option<Address>) {
        for channel in &channels {
            if let Some(end) = self.ends.remove(channel) {
                end.superseded.store(true, Ordering::Release);
            }
            if let Some(incoming) = self.waiting.remove(channel) {
                incoming.refuse(&moved(public.as_ref()));
            }
        }
        self.through = (channels, public);
    }

    /// Returns where the transport service dials the other end of a channel, if it is not dialled, and the identity of that end.
    pub(crate) fn beyond(&self, role: Role, peer: &str) -> (Option<Address>, Option<String>) {
        let is_dialled = role == Role::Sender && self.is_reachable && self.through.1.is_some();
        let address = self.peers.get(peer).filter(|_| !is_dialled).cloned();
        (address, self.identities.get(peer).cloned())
    }

    fn channels_to(&self, host: &str) -> Vec<ChannelId> {
        let to_it = self.ends.iter().filter(|(_, end)| end.peer == host);
        to_it.map(|(channel, _)| *channel).collect()
    }

    /// Adds an end of a channel of a started slot. Returns a link if it is connected at once.
    pub(crate) fn open(
        &mut self,
        channel: ChannelId,
        role: Role,
        incarnation: u32,
        peer: &str,
        (schema, wire): (&SchemaRef, Option<&WireEnd>),
    ) -> Option<Command> {
        self.finished.remove(&channel);
        let before = self.ends.remove(&channel);
        if let Some(before) = &before {
            before.superseded.store(true, Ordering::Release);
        }
        let generation = before.map_or(0, |before| before.generation) + 1;
        let end = End {
            role,
            incarnation,
            peer: peer.to_owned(),
            schema: Arc::clone(schema),
            wire: wire.cloned(),
            generation,
            superseded: Arc::default(),
            failures: 0,
            is_told: false,
            has_heard: Arc::default(),
            again_at: None,
        };
        self.ends.insert(channel, end);
        match self.waiting.remove(&channel).and_then(|incoming| self.without_strangers(channel, incoming)) {
            Some(incoming) => self.accept(channel, incoming),
            None => {
                self.dial(channel, Duration::ZERO);
                None
            }
        }
    }

    /// Closes a channel whose slot here has finished.
    pub(crate) fn finish(&mut self, channel: ChannelId) {
        if let Some(end) = self.ends.remove(&channel) {
            end.superseded.store(true, Ordering::Release);
        }
        self.finished.insert(channel);
    }

    /// Handles an event. Returns a new link for the slot of the channel, where there is one.
    pub(crate) fn follow(&mut self, event: NetworkEvent) -> Option<(ChannelId, Role, Command)> {
        let (channel, command) = match event {
            NetworkEvent::Incoming(incoming) => self.incoming(incoming)?,
            NetworkEvent::Dialled { channel, generation, connection } => {
                let is_current = self.ends.get(&channel).is_some_and(|end| end.generation == generation);
                (channel, is_current.then(|| self.attach(channel, connection))??)
            }
            // Those of the transport service are followed by the host.
            NetworkEvent::Routes(_)
            | NetworkEvent::ThroughDialled { .. }
            | NetworkEvent::ThroughCut { .. } => {
                return None;
            }
            NetworkEvent::Cut { channel, generation } => {
                let current = self.ends.get_mut(&channel).filter(|end| end.generation == generation)?;
                tracing::debug!(channel, "a channel to another host is cut");
                match current.has_heard.load(Ordering::Acquire) {
                    true => (current.failures, current.is_told) = (0, false),
                    false => current.failed(),
                }
                let pause = current.pause();
                self.dial(channel, pause);
                return None;
            }
        };
        self.ends.get(&channel).map(|end| (channel, end.role, command))
    }

    fn incoming(&mut self, incoming: Incoming) -> Option<(ChannelId, Command)> {
        let greeting = &incoming.greeting;
        if greeting.run != self.run || greeting.plan_version != self.plan_version {
            incoming.refuse("this host works for another run or plan");
            return None;
        }
        let Purpose::Channel { channel, role, schema, .. } = greeting.purpose else {
            incoming.refuse("this is a host, not a coordinator");
            return None;
        };
        let channel = usize::try_from(channel).unwrap_or(usize::MAX);
        if channel >= self.channels {
            incoming.refuse("the plan has no such channel");
            return None;
        }
        if self.finished.contains(&channel) {
            incoming.refuse(FINISHED);
            return None;
        }
        if self.through.0.contains(&channel) {
            incoming.refuse(&moved(self.through.1.as_ref()));
            return None;
        }
        let Some(end) = self.ends.get(&channel) else {
            // Its slot will be started here. A newer one replaces one that waits.
            self.waiting.insert(channel, incoming);
            return None;
        };
        let (own_role, own_schema) = (end.role, schema_hash(&end.schema));
        let incoming = self.without_strangers(channel, incoming)?;
        if own_role == role {
            incoming.refuse("both ends have the same role");
            return None;
        }
        if own_schema != schema {
            incoming.refuse("the schemas of the two ends differ");
            return None;
        }
        self.accept(channel, incoming).map(|command| (channel, command))
    }

    /// Returns a dialled connection if its certificate is of the host at the other end; otherwise refuses it.
    fn without_strangers(&self, channel: ChannelId, incoming: Incoming) -> Option<Incoming> {
        let Some(wanted) = self.identities.get(&self.ends.get(&channel)?.peer) else { return Some(incoming) };
        let found = incoming.peer_name();
        if found.as_ref() == Some(wanted) {
            return Some(incoming);
        }
        let found = found.unwrap_or_else(|| "somebody who does not say who it is".to_owned());
        tracing::warn!(channel, "{found} dials for a channel with {wanted}, and is refused");
        incoming.refuse(&format!("this channel is with {wanted}, and the certificate is of {found}"));
        None
    }

    fn accept(&mut self, channel: ChannelId, incoming: Incoming) -> Option<Command> {
        let own = self.greeting(channel)?;
        match incoming.accept(&own) {
            Ok(connection) => {
                // A thread that dials, too, is not needed any more.
                let end = self.ends.get_mut(&channel)?;
                end.superseded.store(true, Ordering::Release);
                (end.generation, end.again_at) = (end.generation + 1, None);
                self.attach(channel, connection)
            }
            Err(error) => {
                tracing::debug!(channel, "a channel from another host was lost at once: {error}");
                None
            }
        }
    }

    fn greeting(&self, channel: ChannelId) -> Option<Greeting> {
        let end = self.ends.get(&channel)?;
        let purpose = Purpose::Channel {
            channel: channel as u64,
            role: end.role,
            incarnation: end.incarnation,
            schema: schema_hash(&end.schema),
        };
        Some(Greeting { run: self.run, plan_version: self.plan_version, purpose })
    }

    /// Makes a link of a connection, which notifies this thread when it is cut.
    fn attach(&mut self, channel: ChannelId, connection: Connection) -> Option<Command> {
        let end = self.ends.get_mut(&channel)?;
        let Purpose::Channel { incarnation: of_peer, .. } = connection.peer().purpose else { return None };
        self.met.lock().unwrap_or_else(PoisonError::into_inner).insert(channel, of_peer);
        end.has_heard = Arc::default();
        let generation = end.generation;
        let tell = Watched {
            channel,
            through: None,
            generation,
            has_heard: Arc::clone(&end.has_heard),
            events: self.events.clone(),
        };
        let command = watched(connection, end.role, (&end.schema, end.wire.as_ref()), tell);
        command
            .inspect_err(|error| {
                if !std::mem::replace(&mut end.is_told, true) {
                    tracing::warn!(channel, "a channel to another host failed; connecting again: {error}");
                }
                // No slot has it that could report that.
                let cut = NetworkEvent::Cut { channel, generation };
                let _ = self.events.send(HostEvent::Network(cut));
            })
            .ok()
    }

    /// Dials on a thread of its own until there is an answer, if this side is the one that dials.
    fn dial(&mut self, channel: ChannelId, pause: Duration) {
        let Some(own) = self.greeting(channel) else { return };
        let Some(end) = self.ends.get_mut(&channel) else { return };
        let Some(address) = self.peers.get(&end.peer).cloned() else { return };
        if end.role == Role::Sender && self.is_reachable {
            return;
        }
        end.superseded.store(true, Ordering::Release);
        end.superseded = Arc::default();
        end.again_at = None;
        end.generation += 1;
        let (superseded, generation) = (Arc::clone(&end.superseded), end.generation);
        let (security, events) = (self.security.clone(), self.events.clone());
        let wanted = self.identities.get(&end.peer).cloned();
        let work = move || {
            let mut pause = pause;
            let mut served_at = None;
            while !superseded.load(Ordering::Acquire) {
                std::thread::sleep(pause);
                let place = served_at.take();
                let place = place.as_ref().unwrap_or(&address);
                match dial_to(place, &security, &own, DIALING, wanted.as_deref()) {
                    Ok(connection) => {
                        let dialled = NetworkEvent::Dialled { channel, generation, connection };
                        let _ = events.send(HostEvent::Network(dialled));
                        return;
                    }
                    // The slot may restart when a host is lost.
                    Err(RemoteError::Refused(reason)) if reason.contains(FINISHED) => {
                        pause = PAUSE_WHERE_FINISHED
                    }
                    // The transport service of the other machine has the same certificate.
                    Err(RemoteError::Refused(reason)) if reason.starts_with(MOVED) => {
                        served_at = reason[MOVED.len()..].parse().ok();
                        pause = SHORTEST_PAUSE;
                    }
                    Err(RemoteError::Refused(reason)) => {
                        tracing::warn!(channel, %address, "another host refuses a channel: {reason}");
                        pause = LONGEST_PAUSE;
                    }
                    Err(error @ RemoteError::Stranger { .. }) => {
                        tracing::warn!(channel, %address, "another host is not where it should be: {error}");
                        pause = LONGEST_PAUSE;
                    }
                    Err(error) => {
                        tracing::debug!(channel, %address, "another host cannot be reached: {error}");
                        pause = (pause * 2).clamp(Duration::from_millis(10), LONGEST_PAUSE);
                    }
                }
            }
        };
        if let Err(error) = (self.spawn)(Box::new(work)) {
            if !std::mem::replace(&mut end.is_told, true) {
                tracing::warn!(
                    channel,
                    "cannot start the thread that connects to another host; trying again: {error}"
                );
            }
            end.failed();
            end.again_at = Some(self.clock.now() + end.pause().as_nanos() as Nanoseconds);
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.ends.values().for_each(|end| end.superseded.store(true, Ordering::Release));
    }
}

/// The reason of a refusal of a channel that the transport service of this machine serves.
fn moved(public: Option<&Address>) -> String {
    match public {
        Some(address) => format!("{MOVED}{address}"),
        None => "this channel goes through the transport service of its machine, which dials".to_owned(),
    }
}

/// A link that notifies the host when it is cut.
pub(super) struct Watched {
    pub(super) channel: ChannelId,
    /// The role of an end at the transport service.
    pub(super) through: Option<Role>,
    pub(super) generation: u64,
    pub(super) has_heard: Arc<AtomicBool>,
    pub(super) events: Sender<HostEvent>,
}

/// Makes the end of a channel of a connection, and the command that gives it to the slot.
pub(super) fn watched(
    connection: Connection,
    role: Role,
    (schema, wire): (&SchemaRef, Option<&WireEnd>),
    tell: Watched,
) -> Result<Command, LinkError> {
    let Purpose::Channel { incarnation: of_peer, .. } = connection.peer().purpose else {
        return Err(LinkError::Lost);
    };
    let (channel, tell) = (tell.channel, CutReporter { of: tell, told: false });
    let schema = Arc::clone(schema);
    match role {
        Role::Sender => connection
            .into_sender(schema)
            .map(|inner| WatchedSender { inner, tell, controls: Controls::default() })
            .map(|sender| Command::AttachSender(channel, Box::new(sender), of_peer)),
        Role::Receiver => connection.into_receiver(schema).map(|inner| {
            let inner = match wire {
                Some(wire) => wire.held_back(inner),
                None => inner,
            };
            let receiver = WatchedReceiver { inner, tell, frames: Frames::of(of_peer) };
            Command::AttachReceiver(channel, Box::new(receiver), of_peer)
        }),
    }
}

/// Reports once that a link is cut.
struct CutReporter {
    of: Watched,
    told: bool,
}

impl CutReporter {
    /// Records that valid data has come.
    fn heard<T>(&self, came: &Result<Option<T>, LinkError>) {
        if matches!(came, Ok(Some(_))) && !self.of.has_heard.load(Ordering::Relaxed) {
            self.of.has_heard.store(true, Ordering::Release);
        }
    }

    /// Cuts a link with damaged data: the channel sends it again over the next connection.
    fn check<T>(&mut self, result: Result<T, LinkError>) -> Result<T, LinkError> {
        result.map_err(|error| {
            // It is as large over the next connection: the slot fails by it.
            if matches!(error, LinkError::TooLarge(_)) {
                return error;
            }
            if !std::mem::replace(&mut self.told, true) {
                if !matches!(error, LinkError::Lost) {
                    tracing::warn!(channel = self.of.channel, "a channel to another host is cut: {error}");
                }
                let Watched { channel, through, generation, .. } = self.of;
                let cut = match through {
                    None => NetworkEvent::Cut { channel, generation },
                    Some(role) => NetworkEvent::ThroughCut { end: (channel, role), generation },
                };
                let _ = self.of.events.send(HostEvent::Network(cut));
            }
            LinkError::Lost
        })
    }
}

struct WatchedSender {
    inner: Box<dyn LinkSender>,
    tell: CutReporter,
    controls: Controls,
}

impl LinkSender for WatchedSender {
    fn send(&mut self, frame: Frame) -> Result<u64, LinkError> {
        self.controls.sent(frame.header.cost);
        let sent = self.inner.send(frame);
        self.tell.check(sent)
    }

    fn receive_control(&mut self) -> Result<Option<Control>, LinkError> {
        let control = self.inner.receive_control();
        let control = control.and_then(|control| {
            control.map_or(Ok(()), |control| self.controls.check(control)).map(|()| control)
        });
        self.tell.heard(&control);
        self.tell.check(control)
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.inner.descriptor()
    }

    fn wants_writable(&self) -> bool {
        self.inner.wants_writable()
    }

    fn clear(&self) -> bool {
        self.inner.clear()
    }
}

struct WatchedReceiver {
    inner: Box<dyn LinkReceiver>,
    tell: CutReporter,
    frames: Frames,
}

impl AroundReceiver for WatchedReceiver {
    fn inner(&self) -> &dyn LinkReceiver {
        &*self.inner
    }

    fn inner_mut(&mut self) -> &mut dyn LinkReceiver {
        &mut *self.inner
    }

    fn receive_around(&mut self) -> Result<Option<Frame>, LinkError> {
        let frame = self.inner.receive();
        let frame = frame.and_then(|frame| {
            frame.as_ref().map_or(Ok(()), |frame| self.frames.check(frame)).map(|()| frame)
        });
        self.tell.heard(&frame);
        self.tell.check(frame)
    }

    fn send_control_around(&mut self, control: Control) -> Result<(), LinkError> {
        let sent = self.inner.send_control(control);
        self.tell.check(sent)
    }
}

#[cfg(test)]
mod tests;
