//! A host that is a process of its own: joins the coordinator, opens its part of the plan, and serves until it may
//! leave.
use super::coordinator_address::CoordinatorAddress;
use super::coordinator_sender::{CoordinatorSender, Facts, Met, say};
use super::entry::{Entered, Entry};
use super::orders::HostPlan;
use super::{HostEvent, Network, NetworkEvent, Notices, PreparedModels, ServedBy, Setup, Through};
use crate::checkpoint::FollowJournals;
use crate::clock::{Clock, ClockError, Nanoseconds, SharedClock, WallClock};
use crate::cut::{Alone, Cuts};
use crate::failure::RunError;
use crate::feeds::FeedsHere;
use crate::graph::{Graph, MetricsTable, Program, build};
use crate::letters::Letters;
use crate::metrics::{Figures, Own};
use crate::protocol::{Beginning, LostNotices, Notice, Order};
use crate::report::SlotFacts;
use crate::samples::Sampler;
use crate::store::EpochLogs;
use crate::traces::Tracer;
use crate::wire;
use crossbeam_channel::unbounded;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tidemill_link::remote::{
    Address, Greeting, Listener, MessageReader, MessageWriter, Purpose, Security, dial_to,
};

/// Options of a process that joins a run as a host.
pub struct HostOptions {
    /// The worker of the plan whose slots it runs.
    pub name: String,
    /// Secret number of the run, the same for all its hosts.
    pub run: u128,
    /// Counts the plans of the run: hosts of different plans do not connect.
    pub plan_version: u64,
    /// Where the coordinator listens, which may change.
    pub coordinator: CoordinatorAddress,
    /// Where this host listens for the others; none: it dials.
    pub listen: Option<Address>,
    /// Where the others reach it, if that is not where it listens: with a router that forwards, or in a container.
    pub announce: Option<Address>,
    /// Protection of connections.
    pub security: Security,
    /// The required identity of the coordinator's certificate (`tidemill:controller`): only this peer learns the
    /// number of the run. None: any peer is accepted.
    pub coordinator_identity: Option<String>,
    /// How long it continues without its coordinator, and looks for it; zero: it ends at once. Only where the run
    /// keeps checkpoints.
    pub patience: Duration,
    /// Folder for data that exceeds memory while edges to other hosts are cut; nothing in it outlives the process.
    pub keep_in: PathBuf,
    /// Follows the orders of checkpoints for the journals of the sources that it reads; none: it has none.
    pub journals: Option<FollowJournals>,
    /// The transport service of this machine, if it has one.
    pub served_by: Option<ServedBy>,
    /// Error of this host's clock, for tests.
    #[doc(hidden)]
    pub clock_error: ClockError,
}

impl HostOptions {
    /// A host on the same machine as its coordinator. It connects to the coordinator and to other hosts over the
    /// coordinator's transport.
    pub fn local(name: &str, run: u128, coordinator: Address) -> Self {
        let listen = coordinator.beside();
        Self {
            name: name.to_owned(),
            run,
            plan_version: 0,
            coordinator: coordinator.into(),
            listen: Some(listen),
            announce: None,
            security: Security::none(),
            coordinator_identity: None,
            patience: Duration::ZERO,
            keep_in: std::env::temp_dir(),
            journals: None,
            served_by: None,
            clock_error: ClockError::default(),
        }
    }
}

/// Time that a host looks for its coordinator.
pub(super) const JOINING: Duration = Duration::from_secs(10);
/// Timeout for an answer at the coordinator's last address: by then it may be elsewhere.
const FINDING: Duration = Duration::from_secs(3);
/// Pings with which a host finds the coordinator's time.
const PINGS: u64 = 16;
/// Interval at which a host without a coordinator looks for one.
pub(super) const LOOKING: Duration = Duration::from_millis(200);
/// Interval of the host's figures and of its requests for the time.
const FIGURES: Duration = Duration::from_millis(200);

fn system(what: &str) -> impl Fn(String) -> RunError {
    move |error| RunError::System(format!("{what}: {error}"))
}

pub(super) fn lost(error: impl std::fmt::Display) -> RunError {
    RunError::System(format!("the coordinator of the run is gone: {error}"))
}

/// Reports to the coordinator of a run why the host of a worker cannot take part, which ends the run with that
/// reason. `program`: the host's view of workflow and plan, where nothing need be opened.
///
/// # Errors
/// The coordinator cannot be reached, is lost meanwhile, or has another plan.
pub fn decline(program: &Program, options: &HostOptions, why: &RunError) -> Result<(), RunError> {
    let graph = build(program)?;
    let purpose = Purpose::Control { host: options.name.clone() };
    let entry = Entry {
        program,
        graph: &graph,
        metrics: &MetricsTable::of(program),
        name: &options.name,
        coordinator: &options.coordinator,
        security: &options.security,
        coordinator_identity: options.coordinator_identity.as_deref(),
        greeting: &Greeting { run: options.run, plan_version: options.plan_version, purpose },
        address: None,
        patience: Duration::ZERO,
        clock_error: options.clock_error,
    };
    entry.decline(why)
}

/// Joins a run as the host of a worker and returns when the coordinator lets it leave.
///
/// # Errors
/// The coordinator cannot be reached or is lost, the host cannot open its part, or the coordinator has another plan.
pub fn serve(program: &Program, options: HostOptions) -> Result<(), RunError> {
    let HostOptions {
        name,
        run,
        plan_version,
        coordinator,
        listen,
        announce,
        security,
        coordinator_identity,
        patience,
        keep_in,
        journals,
        served_by,
        clock_error,
    } = options;
    // A host that may continue by itself for a time must have ended when another one gets its work.
    let patience = match program.alone(&name) {
        Some(alone) if patience > Duration::ZERO => alone.patience(),
        _ => patience,
    };
    let is_held = matches!(program.alone(&name), Some(Alone::GoesOn(_)));
    let cuts = (!program.when_cut.is_empty()).then(|| Arc::new(Cuts::new(keep_in, is_held)));
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
                // Checked here, so that only peers of the run wait for the host's own thread.
                if connection.greeting.run != run || connection.greeting.plan_version != plan_version {
                    return connection.refuse("this host works for another run or plan");
                }
                let _ = incoming.send(HostEvent::Network(NetworkEvent::Incoming(connection)));
            });
            Some(serving.map_err(failed)?)
        }
    };
    let greeting = Greeting { run, plan_version, purpose: Purpose::Control { host: name.clone() } };
    let metrics = MetricsTable::of(program);
    let is_reachable = address.is_some();
    let entry = Entry {
        program,
        graph: &graph,
        metrics: &metrics,
        name: &name,
        coordinator: &coordinator,
        security: &security,
        coordinator_identity: coordinator_identity.as_deref(),
        greeting: &greeting,
        address: address.as_ref(),
        patience,
        clock_error,
    };
    let Some(Entered { writer, mut reader, beginning, clock, prepared }) = entry.enter()? else {
        return Ok(());
    };
    // Only now: a coordinator that takes over learns the time of the run from hosts that have continued.
    let later = |order| drop(event_sender.send(HostEvent::Order(order)));
    if !learn_time(&clock, &writer, (&mut reader, &HostPlan::of(&graph, &name)), later)? {
        return Ok(());
    }
    let shared_clock = clock;
    let met = Met::default();
    let network = Network::new(
        (run, plan_version),
        security.clone(),
        is_reachable,
        (beginning.peers.clone(), beginning.identities.clone()),
        graph.channels.len(),
        (Arc::clone(&met), Arc::clone(&shared_clock) as Arc<dyn Clock>),
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
    let way_back = CoordinatorSearch {
        coordinator,
        security,
        coordinator_identity,
        greeting,
        patience,
        ended: Arc::clone(&ended),
        facts,
    };
    let host = Joined {
        program,
        graph: &graph,
        name: &name,
        metrics: metrics.clone(),
        prepared,
        clock: shared_clock,
        teller: CoordinatorSender::new(writer, keeps)?,
        cuts,
        journals,
        served_by: served_by.map(|served_by| (served_by, (run, plan_version))),
    };
    let teller = host.teller.clone();
    let result = host.serve(beginning, network, (reader, way_back), (event_sender, events));
    ended.store(true, Ordering::Release);
    teller.finish();
    drop(serving);
    result
}

pub(super) fn hear(reader: &mut MessageReader, known: &HostPlan) -> Result<Order, RunError> {
    let bytes = reader.receive().map_err(lost)?;
    let order = wire::decode(&bytes).map_err(system("the coordinator speaks another language"))?;
    known.check(&order).map_err(system("the coordinator has another plan"))?;
    Ok(order)
}

/// Sets the clock after the first requests for the time; false: the host leaves. Orders between the answers are for
/// later, such as a new address of another host.
fn learn_time(
    clock: &SharedClock,
    writer: &MessageWriter,
    (reader, known): (&mut MessageReader, &HostPlan),
    later: impl Fn(Order),
) -> Result<bool, RunError> {
    for _ in 0..PINGS {
        let asked = clock.ask();
        say(writer, &Notice::Ping(asked))?;
        loop {
            match hear(reader, known)? {
                Order::Pong { number, now } => {
                    clock.heard(number, now);
                    if number == asked {
                        break;
                    }
                }
                Order::Leave => return Ok(false),
                order => later(order),
            }
        }
    }
    clock.set();
    Ok(true)
}

/// Sends the new records, spans and figures.
fn tell_news(
    teller: &CoordinatorSender,
    (sampler, tracer): (Option<&Sampler>, Option<&Tracer>),
    (figures, now): (Option<Figures>, Nanoseconds),
) {
    // Without a listener they wait where they are, as far as there is room.
    if let Some(tracer) = tracer.filter(|_| teller.is_heard()) {
        tracer.give_on(|spans| teller.tell(&Notice::Spans(spans)));
        let spans = tracer.take_dropped();
        if spans > 0 {
            teller.tell(&Notice::LostNotices(LostNotices { letters: 0, spans }));
        }
    }
    let shown = sampler.filter(|sampler| sampler.is_shown(now));
    for sample in shown.iter().flat_map(|sampler| sampler.news()) {
        teller.tell(&Notice::Sample(Box::new(sample)));
    }
    if let Some(figures) = figures {
        teller.tell(&Notice::Figures(Box::new(figures)));
    }
}

/// Chooses which figures of a host to send: those that have changed, and less often where there are many.
struct Changes {
    /// Ticks between two sendings.
    every: usize,
    times: usize,
    /// The figures sent last, and their listener.
    told: Option<(u64, Figures)>,
}

/// A host with more stages sends its figures less often, down to once a second.
const STAGES_AT_ONCE: usize = 20;
/// Most ticks between two sendings.
const SELDOM: usize = 5;
/// Sendings between two that are complete, ten seconds: they correct a listener that has missed something.
const WHOLE: usize = 50;

impl Changes {
    fn of(stages: usize) -> Self {
        Self { every: stages.div_ceil(STAGES_AT_ONCE).clamp(1, SELDOM), times: 0, told: None }
    }

    /// Returns the figures to send now, if any; `listener`: the one that has taken all figures sent so far, if any.
    fn next(&mut self, listener: Option<u64>, now: impl Fn() -> Option<Figures>) -> Option<Figures> {
        self.times += 1;
        let is_new = self.told.as_ref().map(|(to, _)| *to) != listener;
        if !is_new && !self.times.is_multiple_of(self.every) {
            return None;
        }
        let (listener, now) = (listener?, now()?);
        let told = self.told.replace((listener, now.clone()));
        let is_whole = (self.times / self.every).is_multiple_of(WHOLE);
        Some(match told {
            Some((to, before)) if to == listener && !is_whole => now.since(&before),
            _ => now,
        })
    }
}

/// A host that has joined.
struct Joined<'a> {
    program: &'a Program,
    graph: &'a Graph,
    name: &'a str,
    metrics: MetricsTable,
    /// Models that are loaded already.
    prepared: Option<PreparedModels>,
    clock: Arc<SharedClock>,
    teller: CoordinatorSender,
    cuts: Option<Arc<Cuts>>,
    journals: Option<FollowJournals>,
    /// The transport service of this machine, with the run and the version of its plan.
    served_by: Option<(ServedBy, (u128, u64))>,
}

/// The search of a host for its coordinator.
struct CoordinatorSearch {
    coordinator: CoordinatorAddress,
    security: Security,
    coordinator_identity: Option<String>,
    greeting: Greeting,
    patience: Duration,
    /// The host has ended.
    ended: Arc<AtomicBool>,
    facts: Facts,
}

impl CoordinatorSearch {
    /// Looks for the coordinator. Returns the reader of its orders.
    fn find(&self, teller: &CoordinatorSender) -> Option<MessageReader> {
        let clock = WallClock::new();
        let patience = self.patience.as_nanos() as Nanoseconds;
        while clock.now() < patience && teller.can_stand() && !self.ended.load(Ordering::Acquire) {
            let wanted = self.coordinator_identity.as_deref();
            let address = self.coordinator.address();
            let dialled = dial_to(&address, &self.security, &self.greeting, FINDING, wanted);
            let messages = dialled
                .map_err(|error| error.to_string())
                .and_then(|connection| connection.into_messages().map_err(|error| error.to_string()));
            match messages {
                Ok((writer, _)) if !self.coordinator.connected(&address, &writer) => {}
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
    /// Registers at the transport service of this machine, if it has one.
    fn through(
        &self,
        metrics: &MetricsTable,
        events: &crossbeam_channel::Sender<HostEvent>,
    ) -> Result<Option<Through>, RunError> {
        let Some((served_by, run)) = self.served_by.clone() else { return Ok(None) };
        let of = (self.program, self.graph, metrics);
        Through::register(served_by, run, of, Some(self.name), events.clone()).map(Some)
    }

    fn serve(
        &self,
        beginning: Beginning,
        network: Network,
        (mut reader, way_back): (MessageReader, CoordinatorSearch),
        (event_sender, events): (
            crossbeam_channel::Sender<HostEvent>,
            crossbeam_channel::Receiver<HostEvent>,
        ),
    ) -> Result<(), RunError> {
        let metrics = self.metrics.clone();
        let teller = self.teller.clone();
        let letters = Arc::new(Letters::new(Some(Box::new(teller.clone()))));
        letters.tell_requests(self.program);
        let epochs = Arc::new(EpochLogs::new(Some(Box::new(teller.clone()))));
        let clock = Arc::clone(&self.clock) as Arc<dyn Clock>;
        let sampler = beginning.samples.clone().map(|samples| Arc::new(Sampler::new(samples)));
        let tracer = beginning
            .traces
            .map(|traces| Arc::new(Tracer::new(traces, beginning.dilation, self.program, self.graph)));
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
            tracer: tracer.as_ref(),
            emulator: emulator.as_ref(),
            faults: None,
            keep_epochs: false,
            is_durable: beginning.is_durable,
            prepared: self.prepared.as_ref(),
            cuts: self.cuts.clone(),
        };
        let own = Own::of(self.program, self.graph, self.name);
        let figures = Arc::new(Mutex::new(None::<(MetricsTable, Vec<SlotFacts>, Own)>));
        let (told, emulated, program) = (Arc::clone(&figures), emulator.clone(), self.program.clone());
        let shown_clock = Arc::clone(&self.clock);
        let feeds = FeedsHere::of(self.program, self.graph, Some(self.name));
        let shown_feeds = feeds.clone();
        let now = move || {
            let held = told.lock().unwrap_or_else(PoisonError::into_inner);
            let (metrics, slots, own) = held.as_ref()?;
            let emulation = emulated.as_ref().map(|emulator| emulator.report_of(&program));
            let figures = Figures::of(metrics, slots, own).with(emulation, shown_clock.figures());
            Some(figures.with_feeds(shown_feeds.status()))
        };
        let (of_notices, last, said) = (teller.clone(), now.clone(), Arc::clone(&letters));
        let (last_samples, last_spans) = (sampler.clone(), tracer.clone());
        let last_clock = Arc::clone(&self.clock);
        let notices: Notices = Arc::new(move |notice| {
            // Notices about an epoch come after its letters.
            said.flush();
            // The last figures and records come before the last notice.
            if let Notice::Closed(_) = &notice {
                let news = (last_samples.as_deref(), last_spans.as_deref());
                tell_news(&of_notices, news, (last(), last_clock.now()));
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
        let through = self.through(&metrics, &event_sender).inspect_err(|error| {
            teller.tell(&Notice::Opened(Err(error.clone())));
        })?;
        let slots = slots.into_iter().zip(&self.graph.slots).filter(|(_, slot)| slot.worker == self.name);
        let slots = slots.map(|(facts, _)| facts).collect();
        *figures.lock().unwrap_or_else(PoisonError::into_inner) = Some((metrics, slots, own));
        let host =
            host.with_network(network, self.graph.slots.iter().map(|slot| slot.worker.clone()).collect());
        let host = host.with_service(through);
        teller.tell(&Notice::Opened(Ok(())));
        let no_thread = |error| RunError::System(format!("no thread for a host: {error}"));
        let (of_hearing, clock, heard_samples) = (teller.clone(), Arc::clone(&self.clock), sampler.clone());
        let known = HostPlan::of(self.graph, self.name);
        let journals = self.journals.clone();
        let shown_to = Arc::clone(&self.clock);
        let ordered_feeds = feeds.clone();
        let hearing = move || {
            loop {
                let why = loop {
                    match hear(&mut reader, &known) {
                        Ok(Order::Pong { number, now }) => clock.heard(number, now),
                        Ok(Order::ShowSamples) => heard_samples.iter().for_each(|sampler| {
                            sampler.show_from(shown_to.now());
                        }),
                        Ok(Order::Feed { number, source, order }) => {
                            let answer = ordered_feeds.order(&source, &order);
                            of_hearing.tell(&Notice::FeedAnswered { number, answer });
                        }
                        Ok(Order::Journals(orders)) => journals.iter().for_each(|follow| follow(&orders)),
                        Ok(order) => {
                            of_hearing.heard(&order);
                            let _ = event_sender.send(HostEvent::Order(order));
                        }
                        Err(error) => break error,
                    }
                };
                tracing::debug!("{why}");
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
        let stages = self.graph.slots.iter().filter(|slot| slot.worker == self.name);
        let mut changes = Changes::of(stages.map(|slot| slot.instances.len()).sum());
        let telling = move || {
            while !until.load(Ordering::Acquire) {
                flushed.flush();
                asking.follow();
                of_thread.tell(&Notice::Ping(asking.ask()));
                let news = (sampler.as_deref(), tracer.as_deref());
                let figures = changes.next(of_thread.listener_of_figures(), &now);
                tell_news(&of_thread, news, (figures, asking.now()));
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
