//! A host that is a process of its own: joins the coordinator, opens what is its own of the plan, and serves until it may leave.
use super::teller::{Facts, Met, Teller, say};
use super::{HostEvent, Network, NetworkEvent, Notices, Setup};
use crate::clock::{Clock, ClockError, Nanoseconds, SharedClock, WallClock};
use crate::executor::{ExecutorFactory, LocalExecutors};
use crate::failure::RunError;
use crate::graph::{Graph, MetricsTable, Program, build};
use crate::letters::Letters;
use crate::metrics::{Figures, Own};
use crate::protocol::{Beginning, Hello, Notice, Order};
use crate::report::SlotFacts;
use crate::samples::Sampler;
use crate::store::EpochLogs;
use crate::wire;
use crossbeam_channel::unbounded;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tidemill_link::remote::{
    Address, Greeting, Listener, MessageReader, MessageWriter, Purpose, Security, dial,
};

/// How a process joins a run as a host.
pub struct HostOptions {
    /// The worker of the plan whose slots it runs.
    pub name: String,
    /// Secret number of the run, the same for all its hosts.
    pub run: u128,
    /// Where the coordinator listens.
    pub coordinator: Address,
    /// Where this host listens for the others; none: it dials.
    pub listen: Option<Address>,
    /// Where the others reach it, where that is not where it listens: behind a router that forwards, in a container.
    pub announce: Option<Address>,
    /// How connections are protected.
    pub security: Security,
    /// Starts what runs the models.
    pub executors: Arc<dyn ExecutorFactory>,
    /// How long it goes on when its coordinator is gone, and looks for it; zero: it ends at once. Only where the run keeps
    /// checkpoints.
    pub patience: Duration,
    /// By how much the clock of this host is wrong; for tests.
    #[doc(hidden)]
    pub clock_error: ClockError,
}

impl HostOptions {
    /// A host on the same machine as its coordinator.
    pub fn local(name: &str, run: u128, coordinator: Address) -> Self {
        Self {
            name: name.to_owned(),
            run,
            coordinator,
            listen: Some(Address::Tcp("127.0.0.1:0".to_owned())),
            announce: None,
            security: Security::none(),
            executors: Arc::new(LocalExecutors),
            patience: Duration::ZERO,
            clock_error: ClockError::default(),
        }
    }
}

/// How long a host looks for its coordinator.
const JOINING: Duration = Duration::from_secs(10);
/// Pings with which a host finds the coordinator's time.
const PINGS: u64 = 16;
/// How often a host that was left alone looks for its coordinator.
const LOOKING: Duration = Duration::from_millis(200);
/// How often a host tells its figures, and asks for the time.
const FIGURES: Duration = Duration::from_millis(200);

fn system(what: &str) -> impl Fn(String) -> RunError {
    move |error| RunError::System(format!("{what}: {error}"))
}

fn lost(error: impl std::fmt::Display) -> RunError {
    RunError::System(format!("the coordinator of the run is gone: {error}"))
}

/// Joins a run as the host of a worker and returns when the coordinator lets it leave.
///
/// # Errors
/// The coordinator cannot be reached or is lost, the host cannot open what is its own, or the plan is another one there.
pub fn serve(program: &Program, options: HostOptions) -> Result<(), RunError> {
    let HostOptions { name, run, coordinator, listen, announce, security, executors, patience, clock_error } =
        options;
    let graph = build(program)?;
    let (event_sender, events) = unbounded();
    let mut address = None;
    let serving = match listen {
        None => None,
        Some(listen) => {
            let failed = |error: tidemill_link::remote::RemoteError| {
                RunError::System(format!("host '{name}' cannot listen on {listen}: {error}"))
            };
            let listener = Listener::bind(&listen, &security).map_err(failed)?;
            address = Some(announce.unwrap_or_else(|| listener.address().clone()));
            let incoming = event_sender.clone();
            let serving = listener.serve(move |connection| {
                let _ = incoming.send(HostEvent::Network(NetworkEvent::Incoming(connection)));
            });
            Some(serving.map_err(failed)?)
        }
    };
    let greeting = Greeting { run, plan_version: 0, purpose: Purpose::Control { host: name.clone() } };
    let connection = dial(&coordinator, &security, &greeting, JOINING)
        .map_err(|error| RunError::System(format!("the coordinator at {coordinator}: {error}")))?;
    let (writer, mut reader) = connection.into_messages().map_err(lost)?;
    let is_reachable = address.is_some();
    let hello = Hello { graph: graph.digest(), address: address.clone(), standing: None };
    say(&writer, &Notice::Hello(hello))?;
    let beginning = loop {
        match hear(&mut reader)? {
            Order::Begin(beginning) => break *beginning,
            Order::Leave => return Ok(()),
            _ => {}
        }
    };
    // Only now: a coordinator that takes over learns the time of the run from hosts that have gone on.
    let clock = SharedClock::new(WallClock::wrong(clock_error), beginning.dilation);
    let later = |order| drop(event_sender.send(HostEvent::Order(order)));
    let Some(shared_clock) = clock_of_run(clock, &writer, &mut reader, later)? else { return Ok(()) };
    let shared_clock = Arc::new(shared_clock);
    let met = Met::default();
    let network = Network::new(
        (run, 0),
        security.clone(),
        is_reachable,
        beginning.peers.clone(),
        Arc::clone(&met),
        event_sender.clone(),
    );
    let keeps = beginning.is_durable && patience > Duration::ZERO;
    let facts = Facts {
        graph: graph.digest(),
        address,
        started: beginning.started,
        elapsed_before: beginning.elapsed_before,
        clock: Arc::clone(&shared_clock) as Arc<dyn Clock>,
        met,
    };
    let ended = Arc::new(AtomicBool::new(false));
    let way_back = WayBack { coordinator, security, greeting, patience, ended: Arc::clone(&ended), facts };
    let host = Joined {
        program,
        graph: &graph,
        name: &name,
        executors,
        clock: shared_clock,
        teller: Teller::new(writer, keeps),
    };
    let teller = host.teller.clone();
    let result = host.serve(beginning, network, (reader, way_back), (event_sender, events));
    ended.store(true, Ordering::Release);
    teller.deserted();
    drop(serving);
    result
}

fn hear(reader: &mut MessageReader) -> Result<Order, RunError> {
    let bytes = reader.receive().map_err(lost)?;
    wire::decode(&bytes).map_err(system("the coordinator speaks another language"))
}

/// The clock of the run, after the first questions to the coordinator; none: the host is to leave. Orders between the answers are
/// for later: where another host is reached now, for instance.
fn clock_of_run(
    clock: SharedClock,
    writer: &MessageWriter,
    reader: &mut MessageReader,
    later: impl Fn(Order),
) -> Result<Option<SharedClock>, RunError> {
    for _ in 0..PINGS {
        let asked = clock.ask();
        say(writer, &Notice::Ping(asked))?;
        loop {
            match hear(reader)? {
                Order::Pong { number, now } => {
                    clock.heard(number, now);
                    if number == asked {
                        break;
                    }
                }
                Order::Leave => return Ok(None),
                order => later(order),
            }
        }
    }
    clock.set();
    Ok(Some(clock))
}

/// Tells what is new to be shown.
fn tell_news(teller: &Teller, sampler: Option<&Sampler>, figures: Option<Figures>) {
    for sample in sampler.iter().flat_map(|sampler| sampler.news()) {
        teller.tell(&Notice::Sample(Box::new(sample)));
    }
    if let Some(figures) = figures {
        teller.tell(&Notice::Figures(Box::new(figures)));
    }
}

/// A host that has joined.
struct Joined<'a> {
    program: &'a Program,
    graph: &'a Graph,
    name: &'a str,
    executors: Arc<dyn ExecutorFactory>,
    clock: Arc<SharedClock>,
    teller: Teller,
}

/// How a host finds its coordinator again.
struct WayBack {
    coordinator: Address,
    security: Security,
    greeting: Greeting,
    patience: Duration,
    /// The host has ended.
    ended: Arc<AtomicBool>,
    facts: Facts,
}

impl WayBack {
    /// Looks for the coordinator; its orders.
    fn find(&self, teller: &Teller) -> Option<MessageReader> {
        let clock = WallClock::new();
        let patience = self.patience.as_nanos() as Nanoseconds;
        while clock.now() < patience && teller.can_stand() && !self.ended.load(Ordering::Acquire) {
            let dialled = dial(&self.coordinator, &self.security, &self.greeting, JOINING);
            let messages = dialled
                .map_err(|error| error.to_string())
                .and_then(|connection| connection.into_messages().map_err(|error| error.to_string()));
            match messages {
                Ok((writer, reader)) => match teller.stand(writer, &self.facts) {
                    Ok(()) => return Some(reader),
                    Err(error) => tracing::debug!("{error}"),
                },
                Err(error) => tracing::debug!("the coordinator is still gone: {error}"),
            }
            std::thread::sleep(LOOKING);
        }
        None
    }
}

impl Joined<'_> {
    fn serve(
        &self,
        beginning: Beginning,
        network: Network,
        (mut reader, way_back): (MessageReader, WayBack),
        (event_sender, events): (
            crossbeam_channel::Sender<HostEvent>,
            crossbeam_channel::Receiver<HostEvent>,
        ),
    ) -> Result<(), RunError> {
        let metrics = MetricsTable::of(self.program);
        let teller = self.teller.clone();
        let letters = Arc::new(Letters::new(Some(Box::new(teller.clone()))));
        let epochs = Arc::new(EpochLogs::new(Some(Box::new(teller.clone()))));
        let clock = Arc::clone(&self.clock) as Arc<dyn Clock>;
        let sampler = beginning.samples.clone().map(|samples| Arc::new(Sampler::new(samples)));
        let emulator = match &beginning.emulation {
            None => None,
            Some(emulation) => match emulation.emulator(self.name, &clock) {
                Ok(emulator) => Some(Arc::new(emulator)),
                Err(error) => {
                    teller.tell(&Notice::Opened(Err(error.clone())));
                    return Err(error);
                }
            },
        };
        let setup = Setup {
            program: self.program,
            graph: self.graph,
            metrics: &metrics,
            clock: &clock,
            letters: &letters,
            epochs: &epochs,
            sampler: sampler.as_ref(),
            executors: &self.executors,
            emulator: emulator.as_ref(),
            faults: None,
            keep_epochs: false,
            is_durable: beginning.is_durable,
        };
        let own = Own::of(self.program, self.graph, self.name);
        let figures = Arc::new(Mutex::new(None::<(MetricsTable, Vec<SlotFacts>, Own)>));
        let (told, emulated, program) = (Arc::clone(&figures), emulator.clone(), self.program.clone());
        let shown_clock = Arc::clone(&self.clock);
        let now = move || {
            let held = told.lock().unwrap_or_else(PoisonError::into_inner);
            let (metrics, slots, own) = held.as_ref()?;
            let emulation = emulated.as_ref().map(|emulator| emulator.report_of(&program));
            Some(Figures::of(metrics, slots, own).with(emulation, shown_clock.figures()))
        };
        let (of_notices, last, said) = (teller.clone(), now.clone(), Arc::clone(&letters));
        let last_samples = sampler.clone();
        let notices: Notices = Arc::new(move |notice| {
            // What is told of an epoch comes after its letters.
            said.flush();
            // The last figures and records come before the last word.
            if let Notice::Closed(_) = &notice {
                tell_news(&of_notices, last_samples.as_deref(), last());
            }
            of_notices.tell(&notice);
        });
        let own_events = (event_sender.clone(), events);
        let host = setup.host(beginning, |slot| slot.worker == self.name, own_events, notices);
        let (host, slots) = match host {
            Ok(host) => host,
            Err(error) => {
                teller.tell(&Notice::Opened(Err(error.clone())));
                return Err(error);
            }
        };
        let slots = slots.into_iter().zip(&self.graph.slots).filter(|(_, slot)| slot.worker == self.name);
        let slots = slots.map(|(facts, _)| facts).collect();
        *figures.lock().unwrap_or_else(PoisonError::into_inner) = Some((metrics, slots, own));
        let host =
            host.with_network(network, self.graph.slots.iter().map(|slot| slot.worker.clone()).collect());
        teller.tell(&Notice::Opened(Ok(())));
        let no_thread = |error| RunError::System(format!("no thread for a host: {error}"));
        let (of_hearing, clock, heard_samples) = (teller.clone(), Arc::clone(&self.clock), sampler.clone());
        let hearing = move || {
            loop {
                while let Ok(order) = hear(&mut reader) {
                    if let Order::Pong { number, now } = order {
                        clock.heard(number, now);
                        continue;
                    }
                    of_hearing.heard(&order);
                    let _ = event_sender.send(HostEvent::Order(order));
                }
                of_hearing.deserted();
                // Another coordinator has another clock, and knows no records.
                clock.forget();
                if let Some(sampler) = &heard_samples {
                    sampler.forget_told();
                }
                match way_back.find(&of_hearing) {
                    Some(found) => reader = found,
                    None => return drop(event_sender.send(HostEvent::CoordinatorLost)),
                }
            }
        };
        std::thread::Builder::new().name("tm-orders".into()).spawn(hearing).map_err(no_thread)?;
        let (ended, of_thread) = (Arc::new(AtomicBool::new(false)), teller);
        let (until, flushed, asking) = (Arc::clone(&ended), Arc::clone(&letters), Arc::clone(&self.clock));
        let telling = move || {
            while !until.load(Ordering::Acquire) {
                flushed.flush();
                asking.follow();
                of_thread.tell(&Notice::Ping(asking.ask()));
                tell_news(&of_thread, sampler.as_deref(), now());
                std::thread::park_timeout(FIGURES);
            }
        };
        let telling =
            std::thread::Builder::new().name("tm-figures".into()).spawn(telling).map_err(no_thread)?;
        let result = host.run();
        ended.store(true, Ordering::Release);
        telling.thread().unpark();
        let _ = telling.join();
        result
    }
}
