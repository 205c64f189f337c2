//! A run: a plan being executed in this process. Starts the slots, restarts those that die, ends them in order.
//!
//! ```no_run
//! use tidemill_engine::{Run, RunOptions};
//! # fn program() -> tidemill_engine::Program { unimplemented!() }
//! let run = Run::start(program(), RunOptions::default()).expect("the plan is sound");
//! let report = run.wait().expect("no operator failed");
//! println!("{} records", report.sinks[0].records);
//! ```
use crate::alignment::Groups;
use crate::checkpoint::{Durability, Past};
use crate::clock::{AdjustedClock, Clock, Nanoseconds, WallClock};
use crate::coordinator::{
    Checkpoints, Coordinator, Event, Hands, Hosts, Orders, RemoteHosts, Shown, Workers,
};
use crate::emulation::{Emulated, Emulation};
use crate::failure::RunError;
use crate::faults::Faults;
use crate::feeds::{FeedsHere, RunFeeds};
use crate::graph::{MetricsTable, Program, build_checked};
use crate::host::{HostEvent, Notices, ServedBy, Setup, Through};
use crate::letters::{LetterWriter, Letters};
use crate::promise::promises;
use crate::protocol::Beginning;
use crate::report::{Observer, Progress, RunFacts, RunReport, SlotFacts, report};
use crate::samples::{SampleOptions, Sampler};
use crate::store::{EpochLog, EpochLogs, EpochWriter};
use crate::traces::{TraceOptions, Tracer};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::Duration;
use tidemill_operators::api::{BoundSource, SourcePromise};

/// Options of a run.
pub struct RunOptions {
    /// Source of time; default: the wall clock.
    pub clock: Arc<dyn Clock>,
    /// Number of records after which each source ends.
    pub records: Option<u64>,
    /// Engine time after which sources end.
    pub duration: Option<Duration>,
    /// Store of dead letters; default: they are only counted, and the report shows the first ones.
    pub letters: Option<Box<dyn LetterWriter>>,
    /// Epochs of a former run to repeat, by source stage id.
    pub replay: Option<BTreeMap<String, EpochLog>>,
    /// Receives the epoch log while it grows.
    pub epochs: Option<Box<dyn EpochWriter>>,
    /// Keeps the whole epoch log, which [`Run::epoch_log`] returns for a replay.
    pub keep_epoch_log: bool,
    /// Keeps records for inspection, which [`Observer::samples`] returns.
    pub samples: Option<SampleOptions>,
    /// Traces a few records through the run; [`Observer::traces`] returns their events.
    pub traces: Option<TraceOptions>,
    /// Copies of one model that may run at once. The run starts a further one when a model delays the others and
    /// processors are idle; it takes its memory once more. Default: 1.
    pub model_copies: usize,
    /// Workers and wires between places to emulate. An emulated worker makes one call at a time, so further copies of
    /// its models are useless.
    pub emulation: Option<Emulation>,
    /// Keeps checkpoints from which another process continues, or continues from one. Every slot then keeps what a
    /// restart needs; see `faults`. When stopped, such a run ends as if it were aborted: another process continues
    /// it.
    pub durability: Option<Durability>,
    /// Runs each worker of the plan in a process of its own. The other options apply to all of them.
    pub hosts: Option<Hosts>,
    /// The transport service of this machine, for a run in one process; the processes of others have it in
    /// [`HostOptions`](crate::HostOptions).
    pub served_by: Option<ServedBy>,
    /// Deliberate faults. Every slot then keeps the data for a restart, which takes several times the memory of
    /// windows and joins; otherwise only slots with an operator that is restarted after panics do.
    #[doc(hidden)]
    pub faults: Option<Arc<dyn Faults>>,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self {
            clock: Arc::new(WallClock::new()),
            records: None,
            duration: None,
            letters: None,
            replay: None,
            epochs: None,
            keep_epoch_log: false,
            samples: None,
            traces: None,
            model_copies: 1,
            emulation: None,
            durability: None,
            hosts: None,
            served_by: None,
            faults: None,
        }
    }
}

/// A plan being executed.
pub struct Run {
    facts: Arc<RunFacts>,
    epochs: Arc<EpochLogs>,
    events: Sender<Event>,
    result: Receiver<Result<bool, RunError>>,
    slots: Vec<String>,
}

/// A handle to stop a run from another thread (a signal handler, a server).
#[derive(Clone)]
pub struct Stopper(Sender<Event>);

impl Stopper {
    /// Ends the sources, finishes all records that they have sent, and ends the run as usual.
    pub fn stop(&self) {
        let _ = self.0.send(Event::Stop);
    }

    /// Ends the run at its last checkpoint although these workers are lost: neither are they waited for, nor is their work given
    /// to others. For a run whose next plan continues from that checkpoint without them. The workers that remain close their
    /// outputs as they do before any other plan. Without checkpoints it is [`Stopper::abort`].
    pub fn stop_without(&self, lost: &[String]) {
        let _ = self.0.send(Event::StopWithout(lost.to_vec()));
    }

    /// Ends at once: inference in flight is abandoned; commits of the last complete checkpoint stay.
    pub fn abort(&self) {
        let _ = self.0.send(Event::Abort);
    }

    /// Ends this coordinator and nothing else, where the workers are processes of their own: those with patience
    /// ([`crate::HostOptions::patience`]) continue, and another run with the same secret number, address and
    /// checkpoints takes them over. A run that is closing its outputs already does that first.
    pub fn step_down(&self) {
        let _ = self.0.send(Event::StepDown);
    }
}

impl Run {
    /// Checks the program, loads its models, opens its sinks and starts it. Nothing is read before all of this
    /// has succeeded.
    ///
    /// # Errors
    /// When the plan is not sound, a model cannot be loaded or a sink not opened.
    pub fn start(program: Program, mut options: RunOptions) -> Result<Self, RunError> {
        let graph = build_checked(&program)?;
        let durability = options.durability.take();
        if durability.is_some() {
            can_be_read_again(&program)?;
        }
        let (mut past, keeper) = match durability {
            Some(Durability { writer, past, interval }) => (past, Some((writer, interval))),
            None => (None, None),
        };
        let promises = promises(&program, keeper.is_some());
        let metrics = MetricsTable::of(&program);
        let adjusted =
            options.hosts.is_some().then(|| Arc::new(AdjustedClock::new(Arc::clone(&options.clock))));
        let clock = match &adjusted {
            Some(adjusted) => Arc::clone(adjusted) as Arc<dyn Clock>,
            None => Arc::clone(&options.clock),
        };
        let emulated = options.emulation.map(|spec| Emulated::new(spec, &clock, options.hosts.is_some()));
        let emulated = emulated.transpose()?;
        let letters = Arc::new(Letters::new(options.letters));
        letters.tell_requests(&program);
        let epochs = Arc::new(EpochLogs::new(options.epochs));
        if options.keep_epoch_log {
            epochs.keep_all();
        }
        let of_hosts = options.samples.clone().filter(|_| options.hosts.is_some());
        let sampler = options.samples.map(|samples| Arc::new(Sampler::new(samples)));
        let begin_at = past.as_ref().map_or(0, |past| past.epoch);
        if let Some(past) = &past {
            letters.begin_with(&past.letters);
        }
        let known = past.iter().flat_map(|past| &past.stages);
        let known = known.map(|(stage, of)| (stage.clone(), of.snapshot.0)).collect();
        let rows_before = past.iter().flat_map(|past| &past.sinks);
        let beginning = Beginning {
            started: clock.now(),
            elapsed_before: past.as_ref().map_or(0, |past| elapsed_of(&program, past)),
            rows_before: rows_before.map(|(sink, past)| (sink.clone(), past.rows)).collect(),
            past: past.take(),
            records: options.records,
            duration: options.duration.map(|duration| duration.as_nanos() as Nanoseconds),
            model_copies: options.model_copies,
            replay: options.replay,
            recoverable: options.faults.is_some() || keeper.is_some(),
            keeps_for_checkpoints: options.hosts.is_some() && keeper.is_some(),
            is_durable: keeper.is_some(),
            dilation: clock.dilation(),
            peers: BTreeMap::new(),
            identities: BTreeMap::new(),
            emulation: emulated.as_ref().and_then(Emulated::of_hosts),
            samples: of_hosts,
            traces: options.traces.map(|traces| traces.at(clock.now(), clock.dilation())),
        };
        let tracer = beginning.traces;
        let tracer = tracer.map(|traces| Arc::new(Tracer::new(traces, clock.dilation(), &program, &graph)));
        let mut facts = RunFacts {
            metrics,
            letters: Arc::clone(&letters),
            sampler,
            tracer,
            started: AtomicI64::new(beginning.started),
            elapsed_before: AtomicI64::new(beginning.elapsed_before),
            clock,
            ended: Mutex::new(None),
            cut_short: AtomicBool::new(false),
            program,
            slots: graph.slots.iter().map(|slot| SlotFacts::of(slot, Arc::default())).collect(),
            emulated,
            clocks: Mutex::default(),
            paths: Mutex::default(),
            places: Mutex::default(),
            feeds: RunFeeds::default(),
            heard: Mutex::default(),
            hosts: Vec::new(),
            opened: Vec::new(),
            restarts: AtomicU64::new(0),
            promises,
        };
        let slots = graph.slots.iter().map(|slot| slot.name.clone()).collect();
        let (event_sender, events) = unbounded();
        let hands = match options.hosts {
            None => {
                let setup = Setup {
                    program: &facts.program,
                    graph: &graph,
                    metrics: &facts.metrics,
                    clock: &facts.clock,
                    letters: &letters,
                    epochs: &epochs,
                    sampler: facts.sampler.as_ref(),
                    tracer: facts.tracer.as_ref(),
                    emulator: facts.emulated.as_ref().and_then(Emulated::here),
                    faults: options.faults.as_ref(),
                    keep_epochs: options.keep_epoch_log,
                    is_durable: keeper.is_some(),
                    prepared: None,
                    cuts: None,
                };
                let served_by = options.served_by.take();
                let (orders, slots) = host_here(&setup, beginning, served_by, &event_sender)?;
                facts.slots = slots;
                facts.feeds.set_here(FeedsHere::of(&facts.program, &graph, None));
                Hands::Here(orders)
            }
            Some(hosts) => {
                let clock = Arc::clone(&facts.clock);
                let shown = Shown { clock, letters, epochs: Arc::clone(&epochs) };
                let workers = Workers::of(&facts.program, &graph)?;
                facts.hosts.clone_from(&workers.names);
                facts.opened = workers.names.iter().map(|_| AtomicBool::new(false)).collect();
                let remote = RemoteHosts::listen(hosts, workers, shown, event_sender.clone())?;
                Hands::Remote(Box::new((remote, beginning)))
            }
        };
        let facts = Arc::new(facts);
        let checkpoints = keeper.map(|(writer, interval)| {
            Checkpoints::start(&facts, writer, interval, (begin_at, known), &epochs, event_sender.clone())
        });
        let (of_run, of_epochs) = (Arc::clone(&facts), Arc::clone(&epochs));
        let coordinator = Coordinator::new(&graph, of_run, of_epochs, hands, events)
            .with_checkpoints(checkpoints.transpose()?, begin_at);
        let coordinator = match adjusted {
            Some(clock) => coordinator.with_clock(clock),
            None => coordinator,
        };
        let (result_sender, result) = unbounded();
        let run = move || {
            let _ = result_sender.send(coordinator.coordinate());
        };
        std::thread::Builder::new()
            .name("tm-run".into())
            .spawn(run)
            .map_err(|error| RunError::System(format!("no thread for the run: {error}")))?;
        Ok(Self { facts, epochs, events: event_sender, result, slots })
    }

    /// Returns the names of the slots.
    pub fn slots(&self) -> &[String] {
        &self.slots
    }

    /// Returns whether all slots have ended and the outputs are being closed.
    pub fn is_closing(&self) -> bool {
        self.facts.ended.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Returns a handle to stop the run.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.events.clone())
    }

    /// Returns the progress so far.
    pub fn progress(&self) -> Progress {
        Progress::of(&self.facts)
    }

    /// Returns the present report.
    pub fn report(&self) -> RunReport {
        report(&self.facts, false)
    }

    /// Returns a handle for reports while another thread waits for the run.
    pub fn observer(&self) -> Observer {
        Observer(Arc::clone(&self.facts))
    }

    /// Returns the epochs of all sources so far; complete only with [`RunOptions::keep_epoch_log`].
    pub fn epoch_log(&self) -> BTreeMap<String, EpochLog> {
        self.epochs.all()
    }

    /// Waits up to `timeout` for the end; `None` when the run continues.
    pub fn wait_for(&self, timeout: Duration) -> Option<Result<RunReport, RunError>> {
        match self.result.recv_timeout(timeout) {
            Ok(result) => Some(result.map(|complete| report(&self.facts, complete))),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Err(Self::died())),
        }
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// When an operator, source or sink failed, or panicked under `on_panic: stop`.
    pub fn wait(&self) -> Result<RunReport, RunError> {
        match self.result.recv() {
            Ok(result) => result.map(|complete| report(&self.facts, complete)),
            Err(_) => Err(Self::died()),
        }
    }

    fn died() -> RunError {
        RunError::System("the run's own thread died".into())
    }
}

/// Suppresses printed panics of engine threads, unless `RUST_BACKTRACE` is set: the run reports them, with the
/// operator's name, and the message of the default hook would be a second, worse one. It changes the panic hook of
/// the whole process, so it is for programs to call, at their start; libraries leave it alone.
pub fn quiet_engine_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let ours = std::thread::current().name().is_some_and(|name| name.starts_with("tm-"));
            if !ours || std::env::var_os("RUST_BACKTRACE").is_some() {
                before(info);
            }
        }));
    });
}

/// Opens everything in this process and starts a host in it that follows the orders.
/// Returns a number that no other run of this machine has.
fn number() -> u128 {
    let half = || u128::from(RandomState::new().build_hasher().finish());
    half() << 64 | half()
}

fn host_here(
    setup: &Setup<'_>,
    beginning: Beginning,
    served_by: Option<ServedBy>,
    events: &Sender<Event>,
) -> Result<(Orders, Vec<SlotFacts>), RunError> {
    let (orders, of_host) = unbounded();
    let of_coordinator = events.clone();
    let notices: Notices = Arc::new(move |notice| {
        let _ = of_coordinator.send(Event::Notice { host: 0, notice });
    });
    let (host, slots) = setup.host(beginning, |_| true, (orders.clone(), of_host), notices)?;
    let through = served_by.map(|served_by| {
        let of = (setup.program, setup.graph, setup.metrics);
        Through::register(served_by, (number(), 0), of, None, orders.clone())
    });
    let host = host.with_service(through.transpose()?);
    let run = move || drop(host.run());
    std::thread::Builder::new()
        .name("tm-host".into())
        .spawn(run)
        .map_err(|error| RunError::System(format!("no thread for the run: {error}")))?;
    let orders: Orders = Arc::new(move |order| {
        let _ = orders.send(HostEvent::Order(order));
    });
    Ok((orders, slots))
}

impl Program {
    /// Returns the sources of each group that is read side by side by event time; see [`crate::EpochLog`] for the
    /// consequences.
    pub fn read_together(&self) -> Vec<Vec<String>> {
        Groups::members(self)
    }

    /// Checks whether this version can run it.
    ///
    /// # Errors
    /// [`RunError::Plan`] with the error in its plan.
    pub fn check(&self) -> Result<(), RunError> {
        build_checked(self).map(drop)
    }
}

/// Checks that records that are read again from a checkpoint on are the same again.
fn can_be_read_again(program: &Program) -> Result<(), RunError> {
    // Live sources continue with what comes then; the promises of the sinks say so.
    let lost = |source: &&BoundSource| !source.live && source.promise() == SourcePromise::AtMostOnce;
    let Some(source) = program.sources.values().find(lost) else { return Ok(()) };
    let what = source.stream.as_deref().unwrap_or("a stream");
    let journal = if source.journalled.is_some() { "give the source a `journal: {}`, " } else { "" };
    Err(RunError::Plan(format!(
        "source '{}' reads {what}, which cannot be read again: a run with such a source cannot be continued; {journal}write \
         it to a file first, or run without a state",
        source.id
    )))
}

/// Returns the engine time from the beginning of a run to its checkpoint: by the schedule if a source has one, so
/// that later records are due as before.
fn elapsed_of(program: &Program, past: &Past) -> Nanoseconds {
    let is_paced = program.sources.values().any(|source| source.rate_per_second.is_some() || source.live);
    match Nanoseconds::try_from(past.epoch) {
        Ok(epoch) if is_paced => epoch.saturating_mul(program.plan.tick.0 as Nanoseconds),
        _ => past.elapsed,
    }
}
