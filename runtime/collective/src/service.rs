//! The service of a host: it introduces programs to each other, and carries out the operations of their groups.
//!
//! One thread decides who joins what; each group has a thread of its own, which moves bytes. One service, the *conductor*, introduces
//! ranks of different hosts and chooses strategies. When it is gone, groups continue as they are.
mod bench;
mod budget;
mod congestion;
mod counted;
mod descriptors;
mod dialing;
mod door;
mod formation;
mod group;
mod hints;
mod local;
mod outbox;
mod own;
mod registration;

use crate::conductor::{Conductor, Link};
use crate::hints::{Given, Settings};
use crate::peers::{Formed, FromConductor, Key, Running, ToConductor, Token};
use crate::protocol::{Answer, Failure, Question, ToProgram};
use crate::topology::{Host, Priority};
use budget::Budget;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};
pub(crate) use formation::{doubt, order as order_of};
use group::{Event as GroupEvent, Handle};
use outbox::Outbox;
use own::Own;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};
use tidemill_link::remote::{Address, Incoming, RemoteError, Security, Serving};

/// Time after which a host that says nothing is lost, where nothing else is said.
pub const SILENCE: Duration = Duration::from_millis(1500);
/// Bytes of the buffers of all groups, where nothing else is said.
pub const MEMORY: u64 = 16 << 30;
/// Time between two looks at hints.
const TICK: Duration = Duration::from_millis(100);
/// The connection of this service with itself, where it is the conductor.
const OWN: Link = 0;
/// Time in which operations that run may end before an upgrade.
const RETIRING: Duration = Duration::from_secs(1);
/// Time in which groups end with the service. A program can hold up its group: its service does not wait for that.
const ENDING: Duration = Duration::from_secs(1);
/// Questions of people that wait for the conductor.
const MOST_QUESTIONS: usize = 1024;

#[expect(clippy::disallowed_methods, reason = "programs and hosts live in real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How a service is made.
#[derive(Clone)]
pub struct Options {
    /// The file of the socket of the transport service; that of groups is beside it.
    pub socket: PathBuf,
    /// This host.
    pub host: Host,
    /// Where it listens for services of other hosts; none: its groups are of this host only.
    pub listen: Option<Address>,
    /// Whether it listens as soon as the version before it does not any more.
    pub listen_later: bool,
    /// The service that introduces ranks; none: this one.
    pub conductor: Option<Address>,
    /// How it and other hosts prove who they are.
    pub security: Security,
    /// Time after which a host that says nothing is lost.
    pub silence: Duration,
    /// Bytes of the buffers of all groups, at most.
    pub memory: u64,
    /// The congestion control of connections between ranks; none: that of the system, or of the route.
    pub congestion: Option<String>,
    /// How it counts the traffic of its host, where it meets other hosts.
    pub hints: Settings,
    /// Counters of the host; none: those of the kernel.
    pub counters: Option<Given>,
}

impl Options {
    /// The usual ones, for programs of this host.
    pub fn new(socket: impl Into<PathBuf>, host: Host) -> Self {
        Self {
            socket: socket.into(),
            host,
            listen: None,
            listen_later: false,
            conductor: None,
            security: Security::none(),
            silence: SILENCE,
            memory: MEMORY,
            congestion: None,
            hints: Settings::default(),
            counters: None,
        }
    }
}

/// Why a service cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address cannot be listened on.
    #[error("{0}: {1}")]
    Listen(String, RemoteError),
    /// The system has no such congestion control, or not for this process.
    #[error("{0}")]
    Congestion(String),
    /// The system has no thread or descriptor, or the socket is taken.
    #[error("{0}")]
    System(#[from] io::Error),
}

/// An event for the thread of the service.
enum Event {
    /// A program has joined.
    Join { key: Key, rank: u32, size: u32, priority: Priority, deadline: Duration, socket: OwnedFd },
    /// A person asks.
    Ask { user: Option<u32>, question: Question, socket: OwnedFd },
    /// A group says something to the conductor.
    Up(ToConductor),
    /// A group has no program any more.
    Idle { key: Key, joins: u64 },
    /// The connection with the conductor is there; none: it ended.
    Conductor(Option<Outbox>),
    /// Other hosts reach it from now on.
    Listens,
    /// It is replaced: groups end, with this reason. The sender is dropped when they have.
    Retires { reason: String, done: Sender<()> },
    /// The conductor says something.
    Heard(FromConductor),
    /// A service has registered here.
    Registered { link: Link, outbox: Outbox },
    /// It says something; none: its connection ended.
    OfService { link: Link, message: Option<ToConductor> },
    /// It ends.
    Stop,
}

/// The way of a group to the thread of the service.
#[derive(Clone)]
pub(crate) struct Up(Sender<Event>);

impl Up {
    fn send(&self, message: ToConductor) {
        let _ = self.0.send(Event::Up(message));
    }

    fn idle(&self, key: &Key, joins: u64) {
        let _ = self.0.send(Event::Idle { key: key.clone(), joins });
    }
}

/// Groups that have a thread here.
type Handles = Arc<Mutex<BTreeMap<Key, Handle>>>;

/// The groups of a host. Programs lose the service when this is dropped.
pub struct Collectives {
    address: Arc<Mutex<Option<Address>>>,
    events: Sender<Event>,
    /// Dropped at the end.
    stop: Option<Sender<()>>,
    serving: Arc<Mutex<Option<Serving>>>,
    door: Option<door::Door>,
    threads: Vec<JoinHandle<()>>,
}

impl Collectives {
    /// Starts the service.
    ///
    /// # Errors
    /// Its socket or address is taken.
    pub fn start(options: Options) -> Result<Self, StartError> {
        congestion::check(&options).map_err(StartError::Congestion)?;
        let (events, received) = unbounded();
        let (stop, stopped) = bounded(0);
        let handles = Handles::default();
        let (address, serving) = (Arc::default(), Arc::default());
        let mut threads = Vec::new();
        let wires = Arc::<hints::Wires>::default();
        // A host that meets no others shares no links with them.
        let hints = (options.listen.is_some() || options.conductor.is_some())
            .then(|| hints::Hints::start(&options, Arc::clone(&wires), Up(events.clone())))
            .transpose()?;
        let reports = hints.as_ref().map(hints::Hints::reports);
        let incoming =
            registration::incoming(events.clone(), Arc::clone(&handles), options.conductor.clone(), reports);
        let listening = registration::listen(&options, incoming, (&address, &serving), (&stopped, &events))
            .map_err(|(at, error)| StartError::Listen(at.to_string(), error))?;
        threads.extend(listening);
        let problem = Arc::default();
        if let Some(conductor) = &options.conductor {
            let (events, problem) = (events.clone(), Arc::clone(&problem));
            threads.push(registration::follow(conductor.clone(), &options, events, (stopped, problem))?);
        }
        let own = Own {
            host: options.host.clone(),
            security: options.security.clone(),
            silence: options.silence,
            conductor: match &options.conductor {
                Some(address) => format!("the service at {address}"),
                None => "this service".to_owned(),
            },
            problem,
            budget: Budget::new(options.memory),
            congestion: options.congestion.clone(),
            wires,
            groups: Arc::default(),
        };
        let conductor = options.conductor.is_none().then(|| Conductor::new(secret));
        let work = Work {
            own: Arc::new(own),
            address: Arc::clone(&address),
            events: events.clone(),
            received,
            handles,
            known: BTreeMap::new(),
            conductor,
            hints,
            settings: options.hints.clone(),
            begun: now(),
            to_conductor: None,
            registered: BTreeMap::new(),
            questions: BTreeMap::new(),
            retires: None,
            next: 0,
            of_groups: bounded(0),
        };
        threads.push(Builder::new().name("tm-groups".into()).spawn(move || work.run())?);
        let door = door::Door::open(&options.socket, events.clone())?;
        Ok(Self { address, events, stop: Some(stop), serving, door: Some(door), threads })
    }

    /// Where services of other hosts reach it.
    pub fn address(&self) -> Option<Address> {
        locked(&self.address).clone()
    }

    /// Ends all groups, because another version takes over: operations that run end before, for a moment, and programs learn that they
    /// may join again.
    pub fn retire(self) {
        let (done, is_done) = bounded(0);
        let reason = "was upgraded: join again".to_owned();
        let _ = self.events.send(Event::Retires { reason, done });
        // Nothing is sent: it is over when all groups have dropped the sender.
        let _ = is_done.recv_timeout(2 * RETIRING);
    }
}

impl Drop for Collectives {
    fn drop(&mut self) {
        self.door = None;
        self.stop = None;
        locked(&self.serving).take();
        let _ = self.events.send(Event::Stop);
        for thread in self.threads.drain(..) {
            // A panic of it was reported by the hook.
            let _ = thread.join();
        }
    }
}

/// Makes a secret that hosts of a group know each other by.
fn secret(number: u64) -> Token {
    use std::io::Read;
    let mut bytes = [0; 16];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    if read.is_err() {
        // Without it, formations are told apart, and not protected.
        tracing::warn!("the system has no random numbers");
        bytes[..8].copy_from_slice(&number.to_le_bytes());
    }
    format!("{:032x}", u128::from_le_bytes(bytes))
}

/// The standing of a rank of this host, as the conductor is told again after it was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rank {
    Joins,
    IsMember,
    Shrinks { whole: bool },
}

/// A group, as the service knows it.
struct Known {
    size: u32,
    priority: Priority,
    joins: u64,
    ranks: BTreeMap<u32, Rank>,
    formed: Option<Formed>,
    broken: Option<(Token, Failure, u64)>,
}

/// The thread of the service.
struct Work {
    own: Arc<Own>,
    address: Arc<Mutex<Option<Address>>>,
    events: Sender<Event>,
    received: Receiver<Event>,
    handles: Handles,
    known: BTreeMap<Key, Known>,
    /// The state of the conductor, where this service is it.
    conductor: Option<Conductor>,
    /// The thread that counts the traffic of the host, where it meets other hosts.
    hints: Option<hints::Hints>,
    settings: Settings,
    begun: Instant,
    to_conductor: Option<Outbox>,
    /// Services that registered here.
    registered: BTreeMap<Link, Outbox>,
    questions: BTreeMap<u64, OwnedFd>,
    /// Why it takes no program any more: it is replaced.
    retires: Option<String>,
    next: u64,
    /// Each group has a sender, so that the receiver is disconnected when all have ended.
    of_groups: (Sender<()>, Receiver<()>),
}

impl Work {
    fn run(mut self) {
        if self.conductor.is_some() {
            self.register();
        }
        let mut tick = self.begun;
        loop {
            let looks = self.conductor.is_some() && self.hints.is_some();
            let event = if looks {
                self.received.recv_deadline(tick)
            } else {
                self.received.recv().map_err(|_| RecvTimeoutError::Disconnected)
            };
            if let Some(conductor) = &mut self.conductor {
                conductor.set(now().saturating_duration_since(self.begun), self.settings.export);
            }
            match event {
                Ok(Event::Stop) | Err(RecvTimeoutError::Disconnected) => break,
                Ok(event) => self.follow(event),
                Err(RecvTimeoutError::Timeout) => {}
            }
            let begun = now();
            if looks && begun >= tick {
                tick = begun + TICK;
                if let Some(conductor) = &mut self.conductor {
                    let messages = conductor.tick();
                    conductor.took(now().saturating_duration_since(begun));
                    self.deliver(messages);
                }
            }
        }
        self.hints = None;
        for (_, handle) in locked(&self.handles).iter() {
            handle.stop();
        }
        let (own, ends) = self.of_groups;
        drop(own);
        if ends.recv_timeout(ENDING) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("groups are held up by a program: the service ends without them");
        }
    }

    fn follow(&mut self, event: Event) {
        match event {
            Event::Join { socket, .. } if self.retires.is_some() => {
                let reason = format!("the transport service {}", self.retires.clone().unwrap_or_default());
                let _ = tidemill_rpc::packets::send(&socket, &ToProgram::Refused { reason }, &[]);
            }
            Event::Join { key, rank, size, priority, deadline, socket } => {
                match self.handle(&key, size, priority) {
                    Ok(handle) => handle.post(GroupEvent::Join { rank, size, socket, deadline }),
                    Err(error) => tracing::error!("group {key} has no thread: {error}"),
                }
            }
            Event::Ask { user, question: Question::Counts, socket } => {
                door::answer(socket, Answer::Counts(self.own.groups.counts(user)));
            }
            Event::Ask { user, question, socket } => {
                self.next += 1;
                let id = self.next;
                if self.conductor.is_none() && self.to_conductor.is_none() {
                    let reason = format!("{} is not reached now{}", self.own.conductor, self.own.why());
                    return door::answer(socket, Answer::Refused(reason));
                }
                if self.questions.len() >= MOST_QUESTIONS {
                    let reason = format!("{MOST_QUESTIONS} questions wait for an answer: ask again later");
                    return door::answer(socket, Answer::Refused(reason));
                }
                self.questions.insert(id, socket);
                self.send(ToConductor::Ask { id, user, question });
            }
            Event::Up(message) => {
                self.note(&message);
                self.send(message);
            }
            Event::Idle { key, joins } => self.forget(&key, joins),
            Event::Conductor(outbox) => {
                let is_there = outbox.is_some();
                self.to_conductor = outbox;
                if is_there {
                    self.register();
                } else {
                    for (_, socket) in std::mem::take(&mut self.questions) {
                        let reason = format!("{} is gone", self.own.conductor);
                        door::answer(socket, Answer::Refused(reason));
                    }
                }
            }
            Event::Listens => self.register(),
            Event::Retires { reason, done } => {
                self.retires = Some(reason.clone());
                let until = now() + RETIRING;
                for handle in locked(&self.handles).values() {
                    handle.post(GroupEvent::Retires { reason: reason.clone(), until, done: done.clone() });
                }
            }
            Event::Heard(message) => self.hear(message),
            Event::Registered { link, outbox } => {
                self.registered.insert(link, outbox);
            }
            Event::OfService { link, message } => {
                let Some(conductor) = &mut self.conductor else { return };
                let messages = match message {
                    Some(message) => conductor.hear(link, message),
                    None => {
                        self.registered.remove(&link);
                        conductor.lost(link)
                    }
                };
                self.deliver(messages);
            }
            Event::Stop => {}
        }
    }

    /// Registers at the conductor, with everything that it should know.
    fn register(&mut self) {
        let running = self.known.iter().filter(|(_, known)| known.formed.is_some());
        let running = running.map(|(key, known)| Running {
            key: key.clone(),
            size: known.size,
            priority: known.priority,
            ranks: known.ranks.iter().filter(|(_, of)| **of != Rank::Joins).map(|(rank, _)| *rank).collect(),
            formed: known.formed.clone(),
        });
        let running = running.collect();
        let (host, address) = (self.own.host.clone(), locked(&self.address).clone());
        self.send(ToConductor::Register { host, address, running });
        let mut again = Vec::new();
        for (key, known) in &self.known {
            let key = || key.clone();
            if let Some((token, failure, last)) = &known.broken {
                let (token, failure, last) = (token.clone(), failure.clone(), *last);
                again.push(ToConductor::Broken { key: key(), token, failure, last });
            }
            for (rank, standing) in &known.ranks {
                let (rank, size, priority) = (*rank, known.size, known.priority);
                match standing {
                    Rank::IsMember => {}
                    Rank::Joins => again.push(ToConductor::Join { key: key(), rank, size, priority }),
                    Rank::Shrinks { whole } => {
                        again.push(ToConductor::Shrink { key: key(), rank, whole: *whole });
                    }
                }
            }
        }
        again.into_iter().for_each(|message| self.send(message));
        self.hints.iter().for_each(hints::Hints::registered);
    }

    fn send(&mut self, message: ToConductor) {
        if let Some(conductor) = &mut self.conductor {
            let messages = conductor.hear(OWN, message);
            self.deliver(messages);
        } else if let Some(outbox) = &self.to_conductor
            && !outbox.send(&message)
        {
            // Its end is reported by the thread that reads.
            self.to_conductor = None;
        }
    }

    /// Sends what the conductor says, where this service is it.
    fn deliver(&mut self, messages: Vec<(Link, FromConductor)>) {
        for (link, message) in messages {
            if link == OWN {
                self.hear(message);
            } else if let Some(outbox) = self.registered.get(&link) {
                outbox.send(&message);
            }
        }
    }

    /// Notes what the conductor has to be told again.
    fn note(&mut self, message: &ToConductor) {
        match message {
            ToConductor::Join { key, rank, .. } => {
                if let Some(known) = self.known.get_mut(key) {
                    known.ranks.insert(*rank, Rank::Joins);
                }
            }
            ToConductor::Leave { key, rank } => {
                if let Some(known) = self.known.get_mut(key) {
                    known.ranks.remove(rank);
                }
            }
            ToConductor::Shrink { key, rank, whole } => {
                if let Some(known) = self.known.get_mut(key) {
                    known.ranks.insert(*rank, Rank::Shrinks { whole: *whole });
                }
            }
            ToConductor::Broken { key, token, failure, last } => {
                if let Some(known) = self.known.get_mut(key) {
                    known.broken = Some((token.clone(), failure.clone(), *last));
                }
            }
            _ => {}
        }
    }

    /// The conductor says something.
    fn hear(&mut self, message: FromConductor) {
        let key = match &message {
            FromConductor::Turned { reason } => {
                return tracing::error!("{} does not register this host: {reason}", self.own.conductor);
            }
            FromConductor::Answer { id, answer } => {
                if let Some(socket) = self.questions.remove(id) {
                    door::answer(socket, answer.clone());
                }
                return;
            }
            FromConductor::Hints(part) => {
                return self.hints.iter().for_each(|hints| hints.part((**part).clone()));
            }
            FromConductor::Bench { group, ranks, bench } => {
                return bench::run(group, ranks, bench, &Up(self.events.clone()));
            }
            FromConductor::Formed(formed) => {
                if let Some(known) = self.known.get_mut(&formed.key) {
                    let own = formed.hosts.iter().find(|place| place.host.name == self.own.host.name);
                    let ranks = own.map(|place| place.ranks.iter().copied().collect::<BTreeSet<_>>());
                    let is_in = |rank: &u32| ranks.as_ref().is_some_and(|ranks| ranks.contains(rank));
                    known.ranks.iter_mut().filter(|(rank, _)| is_in(rank)).for_each(|(_, standing)| {
                        *standing = Rank::IsMember;
                    });
                    (known.formed, known.broken) = (Some((**formed).clone()), None);
                }
                formed.key.clone()
            }
            FromConductor::Order { key, strategy } => {
                if let Some(formed) = self.known.get_mut(key).and_then(|known| known.formed.as_mut()) {
                    formed.strategy = strategy.clone();
                }
                key.clone()
            }
            FromConductor::Refused { key, rank, .. } => {
                if let Some(known) = self.known.get_mut(key) {
                    known.ranks.remove(rank);
                }
                key.clone()
            }
            FromConductor::Missing { key, .. } | FromConductor::Broken { key, .. } => key.clone(),
        };
        if let Some(handle) = locked(&self.handles).get(&key) {
            handle.post(GroupEvent::Conductor(message));
        }
    }

    /// The thread of a group, which is started where there is none.
    fn handle(&mut self, key: &Key, size: u32, priority: Priority) -> io::Result<Handle> {
        if let Some(known) = self.known.get_mut(key)
            && let Some(handle) = locked(&self.handles).get(key)
        {
            known.joins += 1;
            return Ok(handle.clone());
        }
        let (events, received) = unbounded();
        let handle = Handle::new(events)?;
        let (own, up) = (Arc::clone(&self.own), Up(self.events.clone()));
        let work = group::Work::new(key.clone(), (size, priority), own, (handle.clone(), received), up);
        let lives = self.of_groups.0.clone();
        Builder::new().name("tm-group".into()).spawn(move || {
            work.run();
            drop(lives);
        })?;
        locked(&self.handles).insert(key.clone(), handle.clone());
        let known = Known { size, priority, joins: 1, ranks: BTreeMap::new(), formed: None, broken: None };
        self.known.insert(key.clone(), known);
        Ok(handle)
    }

    /// A group has no program any more, unless one is on its way.
    fn forget(&mut self, key: &Key, joins: u64) {
        if self.known.get(key).is_some_and(|known| known.joins == joins) {
            self.known.remove(key);
            if let Some(handle) = locked(&self.handles).remove(key) {
                handle.stop();
            }
        }
    }
}

/// A connection that another host made.
type OnIncoming = Arc<dyn Fn(Incoming) + Send + Sync>;
