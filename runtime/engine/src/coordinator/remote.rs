//! Hosts that are processes of their own: how they join, what they say, and how they are started again.
use super::exchange::{Exchange, Routed};
use super::samples::Questions;
use super::{Event, Orders};
use crate::alignment::Groups;
use crate::clock::Clock;
use crate::failure::RunError;
use crate::graph::{Graph, Program};
use crate::letters::Letters;
use crate::metrics::{Figures, Own};
use crate::protocol::{Hello, Notice, Order};
use crate::report::RunFacts;
use crate::samples::SampleMessage;
use crate::store::EpochLogs;
use crate::wire;
use crossbeam_channel::Sender;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tidemill_link::remote::{
    Address, Greeting, Incoming, Listener, MessageReader, MessageWriter, Purpose, Security, Serving,
};

/// Starts the processes of a run's hosts.
pub trait HostLauncher: Send {
    /// Starts the process of a worker, which joins the coordinator at `coordinator` (see [`crate::HostOptions`]). Called again
    /// when the process died and the run goes on without it.
    ///
    /// # Errors
    /// Why it cannot be started, and what to do.
    fn launch(&mut self, worker: &str, coordinator: &Address) -> Result<(), String>;
    /// Workers whose processes have ended: asked now and then for those that end before they have joined.
    fn ended(&mut self) -> Vec<String>;
    /// How long a worker whose connection is lost may be silent until it is taken for dead; it goes on meanwhile
    /// ([`crate::HostOptions::patience`]). Zero, the default, where a lost connection is a process that died.
    fn grace(&self) -> Duration {
        Duration::ZERO
    }
    /// What became of the process of a worker whose connection was lost, in words: `was killed by signal 9`.
    fn fate(&mut self, worker: &str) -> Option<String>;
    /// The run is over: waits for all processes that were told to leave, and ends those that do not.
    fn end(&mut self);
}

/// Where the slots of a run are processes of their own, one for each worker of the plan.
pub struct Hosts {
    /// Starts them.
    pub launcher: Box<dyn HostLauncher>,
    /// Secret number of the run; who does not know it is refused.
    pub run: u128,
    /// Where the coordinator hears them.
    pub listen: Listen,
}

/// Where a coordinator hears its hosts.
pub enum Listen {
    /// At an address of its own, with connections protected so.
    At(Address, Security),
    /// At an address that it shares with others.
    With(Arc<Exchange>),
}

/// What keeps the address open.
enum Door {
    Own { _serving: Serving },
    Shared { _routed: Routed },
}

/// The workers of a plan.
pub(crate) struct Workers {
    pub(crate) names: Vec<String>,
    /// What each has of the plan.
    pub(crate) own: Vec<Own>,
    /// Number of the worker, by slot.
    pub(crate) of_slots: Vec<usize>,
}

impl Workers {
    /// Those of a plan.
    ///
    /// # Errors
    /// Sources of several workers would have to be read side by side.
    pub(crate) fn of(program: &Program, graph: &Graph) -> Result<Self, RunError> {
        let mut names: Vec<String> = Vec::new();
        let mut of_slots = Vec::new();
        for slot in &graph.slots {
            let known = names.iter().position(|name| *name == slot.worker);
            of_slots.push(known.unwrap_or_else(|| {
                names.push(slot.worker.clone());
                names.len() - 1
            }));
        }
        let own: Vec<Own> = names.iter().map(|name| Own::of(program, graph, name)).collect();
        for group in Groups::members(program) {
            let worker_of = |source: &String| {
                let stage = program.plan.stages.iter().find(|stage| stage.operator == *source);
                stage.map(|stage| stage.worker.as_str())
            };
            let workers: BTreeSet<_> = group.iter().filter_map(worker_of).collect();
            if workers.len() > 1 {
                let group =
                    group.iter().map(|source| format!("'{source}'")).collect::<Vec<_>>().join(" and ");
                return Err(RunError::Plan(format!(
                    "sources {group} meet in a stateful operator and have no rate, so they are read side by side by event \
                     time, which this version does within one process only: give each a `rate`, or put them on one worker"
                )));
            }
        }
        Ok(Self { names, own, of_slots })
    }
}

/// A host that has joined.
pub(crate) struct Joined {
    pub(crate) orders: Orders,
    pub(crate) hello: Hello,
    /// Numbers the processes of one host, so that what is said of an older one is known as such.
    pub(crate) process: u64,
}

/// What the readers of all hosts share.
struct Shared {
    workers: Workers,
    run: u128,
    events: Sender<Event>,
    clock: Arc<dyn Clock>,
    letters: Arc<Letters>,
    epochs: Arc<EpochLogs>,
    /// By host: of processes that are gone, and of the present one.
    figures: Vec<Mutex<(Figures, Figures)>>,
    facts: OnceLock<Arc<RunFacts>>,
    questions: Questions,
    processes: Mutex<BTreeMap<usize, u64>>,
    /// Hosts that join now may leave at once.
    is_over: AtomicBool,
    /// Connections to hosts; none: they are left to another coordinator.
    writers: Mutex<Option<BTreeMap<(usize, u64), MessageWriter>>>,
}

/// The side of the coordinator.
pub(crate) struct RemoteHosts {
    shared: Arc<Shared>,
    launcher: Box<dyn HostLauncher>,
    address: Address,
    door: Option<Door>,
    is_forsaken: bool,
}

/// What the hosts of a run tell that is not for the coordinator's own thread.
pub(crate) struct Shown {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) letters: Arc<Letters>,
    pub(crate) epochs: Arc<EpochLogs>,
}

impl RemoteHosts {
    /// Listens for the processes of these workers.
    pub(crate) fn listen(
        hosts: Hosts,
        workers: Workers,
        shown: Shown,
        events: Sender<Event>,
    ) -> Result<Self, RunError> {
        let Hosts { launcher, run, listen } = hosts;
        let Shown { clock, letters, epochs } = shown;
        let figures = workers.names.iter().map(|_| Mutex::default()).collect();
        let shared = Arc::new(Shared {
            workers,
            run,
            events,
            clock,
            letters,
            epochs,
            figures,
            facts: OnceLock::new(),
            questions: Questions::default(),
            processes: Mutex::default(),
            is_over: AtomicBool::new(false),
            writers: Mutex::new(Some(BTreeMap::new())),
        });
        let of_listener = Arc::clone(&shared);
        let admit = move |incoming| admit(&of_listener, incoming);
        let (address, door) = match listen {
            Listen::At(address, security) => {
                let failed = |error: tidemill_link::remote::RemoteError| {
                    RunError::System(format!("the coordinator cannot listen on {address}: {error}"))
                };
                let listener = Listener::bind(&address, &security).map_err(failed)?;
                let bound = listener.address().clone();
                (bound, Door::Own { _serving: listener.serve(admit).map_err(failed)? })
            }
            Listen::With(exchange) => {
                (exchange.address().clone(), Door::Shared { _routed: exchange.route(run, admit)? })
            }
        };
        Ok(Self { shared, launcher, address, door: Some(door), is_forsaken: false })
    }

    /// Shows the figures of the hosts there.
    pub(crate) fn show_in(&self, facts: &Arc<RunFacts>) {
        let _ = self.shared.facts.set(Arc::clone(facts));
    }

    pub(crate) fn workers(&self) -> &Workers {
        &self.shared.workers
    }

    pub(crate) fn launch(&mut self, host: usize) -> Result<(), RunError> {
        let name = &self.shared.workers.names[host];
        let launched = self.launcher.launch(name, &self.address);
        launched.map_err(|text| {
            RunError::System(format!("the process of worker '{name}' cannot be started: {text}"))
        })
    }

    /// The connection to a host is lost: what it has counted stays counted. In words, what became of it.
    pub(crate) fn lost(&mut self, host: usize) -> Option<String> {
        let mut figures = self.shared.figures[host].lock().unwrap_or_else(PoisonError::into_inner);
        let (before, last) = &mut *figures;
        let last = std::mem::take(last);
        before.add(&last);
        self.launcher.fate(&self.shared.workers.names[host])
    }

    /// Workers whose processes have ended.
    pub(crate) fn ended(&mut self) -> Vec<String> {
        self.launcher.ended()
    }

    /// Hosts that join from now on may leave at once.
    pub(crate) fn is_over(&self) {
        self.shared.is_over.store(true, Ordering::Release);
    }

    /// Leaves the hosts to another coordinator: nobody is told anything.
    pub(crate) fn forsake(mut self) {
        self.is_forsaken = true;
        let writers = self.shared.writers.lock().unwrap_or_else(PoisonError::into_inner).take();
        writers.iter().flatten().for_each(|(_, writer)| writer.close());
        self.door = None;
    }

    /// Waits until what was asked about records is answered.
    pub(crate) fn wait_for_samples(&self) {
        self.shared.questions.wait();
    }

    /// How long a host that is silent may come back.
    pub(crate) fn grace(&self) -> Duration {
        self.launcher.grace()
    }

    pub(crate) fn end(&mut self) {
        self.door = None;
        self.launcher.end();
    }
}

impl Drop for RemoteHosts {
    fn drop(&mut self) {
        if !self.is_forsaken {
            self.end();
        }
    }
}

/// A process has dialled.
fn admit(shared: &Arc<Shared>, incoming: Incoming) {
    let Purpose::Control { host } = &incoming.greeting.purpose else {
        return incoming.refuse("this is a coordinator, not a host");
    };
    if incoming.greeting.run != shared.run {
        return incoming.refuse("this coordinator has another run");
    }
    let Some(number) = shared.workers.names.iter().position(|name| name == host) else {
        let text = format!("the plan has no worker '{host}'");
        return incoming.refuse(&text);
    };
    let own = Greeting { run: shared.run, ..incoming.greeting.clone() };
    let Ok((writer, reader)) =
        incoming.accept(&own).map_err(drop).and_then(|c| c.into_messages().map_err(drop))
    else {
        return;
    };
    let shared = Arc::clone(shared);
    let listening = move || listen_to(&shared, number, &writer, reader);
    // No thread: the connection is dropped, and the host says that the coordinator is gone.
    let _ = std::thread::Builder::new().name("tm-notices".into()).spawn(listening);
}

fn listen_to(shared: &Shared, host: usize, writer: &MessageWriter, mut reader: MessageReader) {
    let process = {
        let mut processes = shared.processes.lock().unwrap_or_else(PoisonError::into_inner);
        let process = processes.entry(host).or_default();
        *process += 1;
        *process
    };
    match shared.writers.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
        Some(writers) => drop(writers.insert((host, process), writer.clone())),
        None => return writer.close(),
    }
    let order = {
        let writer = writer.clone();
        move |order: &Order| {
            let sent = wire::encode(order).map(|bytes| writer.send(&bytes));
            if !matches!(sent, Ok(Ok(()))) {
                tracing::debug!("an order cannot be sent"); // the reader tells that the host is gone
            }
        }
    };
    let orders: Orders = {
        let order = order.clone();
        Arc::new(move |given: Order| order(&given))
    };
    let why = loop {
        let notice = match reader.receive().map(|bytes| wire::decode(&bytes)) {
            Ok(Ok(notice)) => notice,
            Ok(Err(error)) => break error,
            Err(error) => break error.to_string(),
        };
        match notice {
            Notice::Ping(number) => order(&Order::Pong { number, now: shared.clock.now() }),
            Notice::Hello(hello) => {
                let joined = Joined { orders: Arc::clone(&orders), hello, process };
                let _ = shared.events.send(Event::HostJoined { host, joined });
                // Nobody looks at it any more, or did not look in time.
                if shared.is_over.load(Ordering::Acquire) {
                    order(&Order::Leave);
                }
            }
            Notice::Letter { operator, epoch, letter } => drop(shared.letters.add(&operator, epoch, letter)),
            Notice::Epoch { source, entry } => shared.epochs.add(&source, entry),
            Notice::Figures(figures) => show(shared, host, *figures),
            Notice::Sample(message) => sample(shared, host, *message),
            Notice::SourcesFound { number, sources } => {
                if let Some(sampler) = shared.facts.get().and_then(|facts| facts.sampler.as_ref()) {
                    shared.questions.found(sampler, host, number, &sources);
                }
            }
            notice => drop(shared.events.send(Event::Notice { host, notice })),
        }
    };
    writer.close();
    if let Some(writers) = shared.writers.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
        writers.remove(&(host, process));
    }
    shared.questions.lost(host);
    let _ = shared.events.send(Event::HostLost { host, process, why });
}

fn show(shared: &Shared, host: usize, figures: Figures) {
    let Some(facts) = shared.facts.get() else { return };
    let mut held = shared.figures[host].lock().unwrap_or_else(PoisonError::into_inner);
    let mut all = figures.clone();
    held.1 = figures;
    all.add(&held.0);
    if let (Some(emulated), Some(report)) = (&facts.emulated, all.emulation.take()) {
        emulated.show(host, report);
    }
    if let Some(clock) = all.clock.take() {
        facts.clocks.lock().unwrap_or_else(PoisonError::into_inner).insert(host, clock);
    }
    all.show(&facts.metrics, &facts.slots, &shared.workers.own[host]);
}

/// A host has kept a record: so does the coordinator, and asks others for what it came from.
fn sample(shared: &Shared, host: usize, message: SampleMessage) {
    let Some(facts) = shared.facts.get() else { return };
    let Some(sampler) = &facts.sampler else { return };
    let hosts = (host, &shared.workers.names[..]);
    for (host, order) in shared.questions.heard(sampler, hosts, &facts.program, message) {
        let writer = {
            let writers = shared.writers.lock().unwrap_or_else(PoisonError::into_inner);
            let of_host =
                writers.as_ref().and_then(|all| all.range((host, 0)..=(host, u64::MAX)).next_back());
            of_host.map(|(_, writer)| writer.clone())
        };
        let sent = writer.and_then(|writer| writer.send(&wire::encode(&order).ok()?).ok());
        if sent.is_none() {
            shared.questions.lost(host);
        }
    }
}
