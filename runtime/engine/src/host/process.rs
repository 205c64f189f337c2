//! A host that is a process of its own: joins the coordinator, opens what is its own of the plan, and serves until it may leave.
use super::{HostEvent, Network, NetworkEvent, Notices, Setup};
use crate::clock::{Clock, Nanoseconds, SharedClock, WallClock};
use crate::executor::{ExecutorFactory, LocalExecutors};
use crate::failure::RunError;
use crate::frame::Epoch;
use crate::graph::{Graph, MetricsTable, Program, build};
use crate::letters::{LetterWriter, Letters};
use crate::metrics::{Figures, Own};
use crate::protocol::{Beginning, Hello, Notice, Order};
use crate::report::SlotFacts;
use crate::store::{EpochEntry, EpochLogs, EpochWriter};
use crate::wire;
use crossbeam_channel::unbounded;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tidemill_link::remote::{
    Address, Greeting, Listener, MessageReader, MessageWriter, Purpose, Security, dial,
};
use tidemill_operators::api::{DeadLetter, OperatorError};

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
        }
    }
}

/// How long a host looks for its coordinator.
const JOINING: Duration = Duration::from_secs(10);
/// Pings with which a host finds the coordinator's time.
const PINGS: u64 = 16;
/// How often a host tells its figures.
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
    let HostOptions { name, run, coordinator, listen, announce, security, executors } = options;
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
    let (wall, anchor) = coordinators_time(&writer, &mut reader)?;
    say(&writer, &Notice::Hello(Hello { graph: graph.digest(), address }))?;
    let beginning = loop {
        match hear(&mut reader)? {
            Order::Begin(beginning) => break *beginning,
            Order::Leave => return Ok(()),
            _ => {}
        }
    };
    let shared_clock = Arc::new(SharedClock::new(wall, anchor, beginning.dilation));
    let network =
        Network::new((run, 0), security, is_reachable, beginning.peers.clone(), event_sender.clone());
    let host = Joined {
        program,
        graph: &graph,
        name: &name,
        executors,
        clock: shared_clock,
        writer: writer.clone(),
    };
    let result = host.serve(beginning, network, reader, (event_sender, events));
    writer.close();
    drop(serving);
    result
}

fn say(writer: &MessageWriter, notice: &Notice) -> Result<(), RunError> {
    let bytes = wire::encode(notice).map_err(RunError::System)?;
    writer.send(&bytes).map_err(lost)
}

fn hear(reader: &mut MessageReader) -> Result<Order, RunError> {
    let bytes = reader.receive().map_err(lost)?;
    wire::decode(&bytes).map_err(system("the coordinator speaks another language"))
}

/// A clock, and the same moment on it and on that of the coordinator, from the ping that took the shortest.
fn coordinators_time(
    writer: &MessageWriter,
    reader: &mut MessageReader,
) -> Result<(WallClock, (Nanoseconds, Nanoseconds)), RunError> {
    let clock = WallClock::new();
    let mut best = (Nanoseconds::MAX, (0, 0));
    for ping in 0..PINGS {
        let asked = clock.now();
        say(writer, &Notice::Ping(ping))?;
        let now = loop {
            match hear(reader)? {
                Order::Pong { number, now } if number == ping => break now,
                _ => {}
            }
        };
        let took = clock.now() - asked;
        best = best.min((took, (asked + took / 2, now)));
    }
    let (took, anchor) = best;
    tracing::debug!("the time of the coordinator is known to {} us", took / 2000);
    Ok((clock, anchor))
}

/// A host that has joined.
struct Joined<'a> {
    program: &'a Program,
    graph: &'a Graph,
    name: &'a str,
    executors: Arc<dyn ExecutorFactory>,
    clock: Arc<SharedClock>,
    writer: MessageWriter,
}

impl Joined<'_> {
    fn serve(
        &self,
        beginning: Beginning,
        network: Network,
        mut reader: MessageReader,
        (event_sender, events): (
            crossbeam_channel::Sender<HostEvent>,
            crossbeam_channel::Receiver<HostEvent>,
        ),
    ) -> Result<(), RunError> {
        let metrics = MetricsTable::of(self.program);
        let teller = Teller(self.writer.clone());
        let letters = Arc::new(Letters::new(Some(Box::new(teller.clone()))));
        let epochs = Arc::new(EpochLogs::new(Some(Box::new(teller.clone()))));
        let clock = Arc::clone(&self.clock) as Arc<dyn Clock>;
        let setup = Setup {
            program: self.program,
            graph: self.graph,
            metrics: &metrics,
            clock: &clock,
            letters: &letters,
            epochs: &epochs,
            sampler: None,
            executors: &self.executors,
            emulator: None,
            faults: None,
            keep_epochs: false,
            is_durable: beginning.is_durable,
        };
        let own = Own::of(self.program, self.graph, self.name);
        let figures = Arc::new(Mutex::new(None::<(MetricsTable, Vec<SlotFacts>, Own)>));
        let told = Arc::clone(&figures);
        let now = move || {
            let held = told.lock().unwrap_or_else(PoisonError::into_inner);
            held.as_ref().map(|(metrics, slots, own)| Figures::of(metrics, slots, own))
        };
        let (of_notices, last, said) = (teller.clone(), now.clone(), Arc::clone(&letters));
        let notices: Notices = Arc::new(move |notice| {
            // What is told of an epoch comes after its letters.
            said.flush();
            // The last figures come before the last word.
            if let (Notice::Closed(_), Some(figures)) = (&notice, last()) {
                of_notices.tell(&Notice::Figures(Box::new(figures)));
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
        let hearing = move || {
            loop {
                match hear(&mut reader) {
                    Ok(order) => drop(event_sender.send(HostEvent::Order(order))),
                    Err(_) => return drop(event_sender.send(HostEvent::CoordinatorLost)),
                }
            }
        };
        std::thread::Builder::new().name("tm-orders".into()).spawn(hearing).map_err(no_thread)?;
        let (ended, of_thread) = (Arc::new(AtomicBool::new(false)), teller);
        let (until, flushed) = (Arc::clone(&ended), Arc::clone(&letters));
        let telling = move || {
            while !until.load(Ordering::Acquire) {
                flushed.flush();
                if let Some(figures) = now() {
                    of_thread.tell(&Notice::Figures(Box::new(figures)));
                }
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

/// Tells the coordinator; a host that is deserted learns it from its reader.
#[derive(Clone)]
struct Teller(MessageWriter);

impl Teller {
    fn tell(&self, notice: &Notice) {
        if let Err(error) = say(&self.0, notice) {
            tracing::debug!("{error}");
        }
    }
}

impl LetterWriter for Teller {
    fn write(&mut self, operator: &str, letter: &DeadLetter, epoch: Epoch) -> Result<(), OperatorError> {
        self.tell(&Notice::Letter { operator: operator.to_owned(), epoch, letter: letter.clone() });
        Ok(())
    }

    fn commit(&mut self, _epoch: Epoch) -> Result<(), OperatorError> {
        Ok(())
    }

    fn close(&mut self) -> Result<(), OperatorError> {
        Ok(())
    }
}

impl EpochWriter for Teller {
    fn write(&mut self, source: &str, entry: &EpochEntry) {
        self.tell(&Notice::Epoch { source: source.to_owned(), entry: entry.clone() });
    }
}
