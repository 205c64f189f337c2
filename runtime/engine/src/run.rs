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
use crate::checkpoint::{Checkpoints, Durability, Past, StagePast, decode};
use crate::clock::{Clock, Nanoseconds, WallClock};
use crate::emulation::worker::StagePace;
use crate::emulation::{Emulation, Emulator};
use crate::executor::{ExecutorFactory, ExecutorRequest, LocalExecutors};
use crate::failure::{RunError, operator_error};
use crate::faults::Faults;
use crate::graph::{MetricsTable, Program, StartExecutor, Work, build};
use crate::letters::{LetterWriter, Letters};
use crate::link;
use crate::metrics::{SinkMetrics, StageMetrics};
use crate::node::sink::{SharedSink, SinkCell};
use crate::node::source::{ReaderPool, Schedule};
use crate::report::{Observer, Progress, RunFacts, RunReport, SlotFacts, report};
use crate::routing::Selector;
use crate::samples::{SampleOptions, Sampler};
use crate::slot::SlotShared;
use crate::store::{EpochLog, EpochLogs, EpochWriter, SnapshotStore};
use crate::supervisor::{Event, Supervisor};
use crossbeam_channel::{Receiver, Sender, unbounded};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::Duration;
use tidemill_operators::api::Computation;
use tidemill_spec::batching::Batching;
use tidemill_spec::plan::{PlanEdge, Stage};
use tidemill_spec::routing::ClassTable;

/// How a run is to be done.
pub struct RunOptions {
    /// Where time comes from; default: the wall clock.
    pub clock: Arc<dyn Clock>,
    /// Each source ends after so many records.
    pub records: Option<u64>,
    /// Sources end after so much engine time.
    pub duration: Option<Duration>,
    /// Where dead letters are kept; default: they are only counted, and the first ones shown in the report.
    pub letters: Option<Box<dyn LetterWriter>>,
    /// Epochs of a former run to repeat, by source stage id.
    pub replay: Option<BTreeMap<String, EpochLog>>,
    /// Takes the epoch log while it grows.
    pub epochs: Option<Box<dyn EpochWriter>>,
    /// Keep the whole epoch log, so that [`Run::epoch_log`] can give it for a replay.
    pub keep_epoch_log: bool,
    /// Keep records to be looked at, so that [`Observer::samples`] can give them.
    pub samples: Option<SampleOptions>,
    /// Copies of one model that may run at once. A further one is started while the run goes on when a model holds up
    /// the others and processors are idle; it takes its memory once more. Default: 1.
    pub model_copies: usize,
    /// Starts what runs the models; default: a thread of this process each.
    pub executors: Arc<dyn ExecutorFactory>,
    /// Workers and wires between places to emulate. A worker that is emulated makes one call at a time, so further
    /// copies of its models serve nothing.
    pub emulation: Option<Emulation>,
    /// Keeps checkpoints from which another process continues, or continues from one. Every slot then keeps what a restart
    /// needs; see `faults`. Told to stop, such a run ends as if it were aborted: another process continues it.
    pub durability: Option<Durability>,
    /// Faults on purpose. Every slot then keeps what a restart needs, which takes some times the memory of windows and
    /// joins; else only slots with an operator that is restarted after panics do.
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
            model_copies: 1,
            executors: Arc::new(LocalExecutors),
            emulation: None,
            durability: None,
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
    /// Ends the sources; what is under way is finished. The run then ends as usual.
    pub fn stop(&self) {
        let _ = self.0.send(Event::Stop);
    }

    /// Ends at once: inference in flight is abandoned, what the last complete checkpoint committed stays.
    pub fn abort(&self) {
        let _ = self.0.send(Event::Abort);
    }
}

impl Run {
    /// Checks the program, loads its models, opens its sinks and starts it. Nothing is read before all of this
    /// has succeeded.
    ///
    /// # Errors
    /// When the plan is not sound, a model cannot be loaded or a sink not opened.
    pub fn start(program: Program, mut options: RunOptions) -> Result<Self, RunError> {
        if program.plan.classes.is_empty() {
            return Err(RunError::Plan(
                "it has no route classes; one class with share 1.0 is the least".into(),
            ));
        }
        let durability = options.durability.take();
        if durability.is_some() {
            can_be_read_again(&program)?;
        }
        let past = durability.as_ref().and_then(|durability| durability.past.as_ref());
        let mut metrics = MetricsTable::default();
        let (mut sinks, mut call_offs) = (BTreeMap::new(), Vec::new());
        let clock = Arc::clone(&options.clock);
        let mut sink_metrics: BTreeMap<String, Arc<SinkMetrics>> = BTreeMap::new();
        let emulator = options.emulation.as_ref().map(|spec| Emulator::new(spec, &clock)).transpose()?;
        let carrier = |edge: &PlanEdge| {
            let emulated = emulator.as_ref().and_then(|emulator| emulator.link(edge));
            let link = emulated.unwrap_or_else(|| link::of(edge.link));
            match &options.faults {
                Some(faults) => faults.carrier(edge, link),
                None => link,
            }
        };
        let groups = Groups::of(&program, options.replay.as_ref(), past);
        let mut graph = build(&program, &mut metrics, &carrier, |stage, instance, stage_metrics| {
            if let Some(bound) = program.sinks.get(&stage.operator) {
                let cell = match sinks.get(&stage.operator) {
                    Some(cell) => Arc::clone(cell),
                    None => {
                        let past = past.and_then(|past| past.sinks.get(&bound.id));
                        let sink = match bound.durable.as_ref().filter(|_| durability.is_some()) {
                            Some(make) => make(past.and_then(|past| past.token.as_deref())),
                            None => (bound.make)(),
                        };
                        let sink = sink.map_err(|error| operator_error(&bound.id, error))?;
                        call_offs.extend(sink.call_off());
                        let cell = match past {
                            Some(past) => SinkCell::continued(sink, past),
                            None => SinkCell::new(sink),
                        };
                        let cell: SharedSink = Arc::new(Mutex::new(cell));
                        sinks.insert(stage.operator.clone(), Arc::clone(&cell));
                        cell
                    }
                };
                let metrics = Arc::clone(sink_metrics.entry(stage.operator.clone()).or_default());
                return Ok(Work::Sink { cell, metrics, truth: bound.ground_truth.clone() });
            }
            let pace = || emulator.as_ref().and_then(|emulator| emulator.pace(stage));
            source_or_operator(&program, &options, &groups, &clock, &pace, stage, instance, stage_metrics)
        })?;
        metrics.sinks = sink_metrics;
        one_stage_per_sink(&program)?;
        no_partitions_of_sources(&program)?;
        for slot in &mut graph.slots {
            slot.byte_budget = slot.byte_budget.max(1 << 12);
        }
        let letters = Arc::new(Letters::new(options.letters));
        let epochs = Arc::new(EpochLogs::new(options.epochs));
        let sampler = options.samples.map(|samples| Arc::new(Sampler::new(samples)));
        let started = clock.now();
        let begin_at = past.map_or(0, |past| past.epoch);
        let elapsed_before = past.map_or(0, |past| elapsed_of(&program, past));
        let snapshots = SnapshotStore::default();
        let mut known = BTreeMap::new();
        if let Some(past) = past {
            for (stage, StagePast { snapshot: (epoch, state), calls }) in &past.stages {
                let calls: Result<Vec<_>, String> = calls.iter().map(|calls| decode(calls)).collect();
                let calls = calls.map_err(|text| RunError::System(format!("stage '{stage}': {text}")))?;
                snapshots.begin_with(stage, *epoch, state.clone(), calls.concat());
                known.insert(stage.clone(), *epoch);
            }
            epochs.begin_with(past.sources.clone());
            letters.begin_at(past.letters.epoch);
        }
        let shared = Arc::new(SlotShared {
            clock: Arc::clone(&clock),
            schedule: Schedule {
                rate: None,
                start: started - elapsed_before,
                tick: program.plan.tick.0 as Nanoseconds,
                records: options.records,
                duration: options.duration.map(|duration| duration.as_nanos() as Nanoseconds),
            },
            checkpoint_every: program.plan.checkpoint_every.max(1),
            snapshots: Arc::new(snapshots),
            epochs: Arc::clone(&epochs),
            letters: Arc::clone(&letters),
            sampler: sampler.clone(),
            stop: Arc::new(AtomicBool::new(false)),
            readers: Arc::new(ReaderPool::new()),
            keep_epochs: options.keep_epoch_log,
            recoverable: options.faults.is_some() || durability.is_some(),
            faults: options.faults.clone(),
        });
        let facts = Arc::new(RunFacts {
            metrics,
            sinks,
            call_offs,
            letters,
            sampler,
            clock,
            started,
            elapsed_before,
            ended: Mutex::new(None),
            program,
            slots: graph.slots.iter().map(SlotFacts::of).collect(),
            emulator,
            restarts: AtomicU64::new(0),
        });
        let slots = graph.slots.iter().map(|slot| slot.name.clone()).collect();
        let (event_sender, events) = unbounded();
        let (result_sender, result) = unbounded();
        let instances = graph.slots.iter().flat_map(|slot| &slot.instances);
        let seated = instances.filter(|instance| matches!(instance.work, Work::Source { seat: Some(_), .. }));
        let seated = seated.map(|instance| instance.context.instance.clone()).collect();
        let checkpoints = durability.map(|Durability { writer, interval, .. }| {
            let (past, events) = ((begin_at, known), event_sender.clone());
            Checkpoints::start(&facts, &shared, writer, interval, past, seated, events)
        });
        let checkpoints = checkpoints.transpose()?;
        let supervisor = Supervisor::new(graph, shared, Arc::clone(&facts), event_sender.clone(), events)
            .with_model_copies(options.model_copies)
            .with_checkpoints(checkpoints, begin_at);
        let spawned = std::thread::Builder::new().name("tm-run".into()).spawn(move || {
            let _ = result_sender.send(supervisor.supervise());
        });
        spawned.map_err(|error| RunError::System(format!("no thread for the run: {error}")))?;
        Ok(Self { facts, epochs, events: event_sender, result, slots })
    }

    /// Names of the slots.
    pub fn slots(&self) -> &[String] {
        &self.slots
    }

    /// Whether all slots have ended and the outputs are being closed.
    pub fn is_closing(&self) -> bool {
        self.facts.ended.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// A handle to stop the run.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.events.clone())
    }

    /// What has happened so far.
    pub fn progress(&self) -> Progress {
        Progress::of(&self.facts)
    }

    /// The report as of now.
    pub fn report(&self) -> RunReport {
        report(&self.facts, false)
    }

    /// A handle that gives reports while another thread waits for the run.
    pub fn observer(&self) -> Observer {
        Observer(Arc::clone(&self.facts))
    }

    /// The epochs of all sources so far; whole only with [`RunOptions::keep_epoch_log`].
    pub fn epoch_log(&self) -> BTreeMap<String, EpochLog> {
        self.epochs.all()
    }

    /// Waits up to `timeout` for the end; `None` when the run goes on.
    pub fn wait_for(&self, timeout: Duration) -> Option<Result<RunReport, RunError>> {
        let result = self.result.recv_timeout(timeout).ok()?;
        Some(result.map(|complete| report(&self.facts, complete)))
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// When an operator, source or sink failed, or panicked under `on_panic: stop`.
    pub fn wait(&self) -> Result<RunReport, RunError> {
        match self.result.recv() {
            Ok(result) => result.map(|complete| report(&self.facts, complete)),
            Err(_) => Err(RunError::System("the run's own thread died".into())),
        }
    }
}

/// Has the process print no panic of an engine thread, unless `RUST_BACKTRACE` is set: the run tells it, with the
/// operator's name, and the message of the default hook would be a second, worse one. It changes the panic hook of the
/// whole process, so it is for programs to call, at their start; libraries leave it alone.
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

fn one_stage_per_sink(program: &Program) -> Result<(), RunError> {
    let copies = program.copies();
    for sink in program.sinks.keys() {
        let copies = copies.get(sink.as_str()).copied().unwrap_or(0);
        if copies != 1 {
            return Err(RunError::Plan(format!(
                "sink '{sink}' has {copies} stages or partitions; this version runs exactly one of each sink"
            )));
        }
    }
    Ok(())
}

/// What is read again from a checkpoint on must be the same again.
fn can_be_read_again(program: &Program) -> Result<(), RunError> {
    for source in program.sources.values() {
        let what = match &source.stream {
            Some(stream) => stream.clone(),
            None if source.live => "a live source".to_owned(),
            None => continue,
        };
        return Err(RunError::Plan(format!(
            "source '{}' reads {what}, which cannot be read again: a run with such a source cannot be continued; write it \
             to a file first, or run without a state",
            source.id
        )));
    }
    Ok(())
}

/// Engine time from the beginning of a run to its checkpoint: by the schedule where a source has one, so that what follows is
/// due as it was.
fn elapsed_of(program: &Program, past: &Past) -> Nanoseconds {
    let is_paced = program.sources.values().any(|source| source.rate_per_second.is_some());
    match Nanoseconds::try_from(past.epoch) {
        Ok(epoch) if is_paced => epoch.saturating_mul(program.plan.tick.0 as Nanoseconds),
        _ => past.elapsed,
    }
}

/// Each partition would read everything.
fn no_partitions_of_sources(program: &Program) -> Result<(), RunError> {
    match program.plan.stages.iter().find(|s| s.partitions > 1 && program.sources.contains_key(&s.operator)) {
        Some(stage) => Err(RunError::Plan(format!(
            "stage '{}' of source '{}' has {} partitions; a source has one, or several stages with classes",
            stage.id, stage.operator, stage.partitions
        ))),
        None => Ok(()),
    }
}

#[expect(clippy::too_many_arguments, reason = "what a run knows, each of another kind")]
fn source_or_operator(
    program: &Program,
    options: &RunOptions,
    groups: &Groups,
    clock: &Arc<dyn Clock>,
    pace: &dyn Fn() -> Option<Arc<StagePace>>,
    stage: &Stage,
    instance: &str,
    metrics: &StageMetrics,
) -> Result<Work, RunError> {
    if let Some(bound) = program.sources.get(&stage.operator) {
        let number = program.sources.keys().position(|id| *id == stage.operator).unwrap_or(0) as u32;
        let shares: Vec<f64> = program.plan.classes.iter().map(|class| class.share).collect();
        let classes: Vec<bool> = program
            .plan
            .classes
            .iter()
            .map(|class| class.route.get(&stage.operator).is_some_and(|routed| *routed == stage.id))
            .collect();
        let selector = match classes.iter().all(|own| *own) {
            true => Selector::All,
            false => Selector::Class { classes, partition: 0, partitions: 1 },
        };
        let replay = options.replay.as_ref().and_then(|logs| logs.get(instance).cloned());
        return Ok(Work::Source {
            bound: Box::new(bound.clone()),
            number,
            classes: ClassTable::new(&shares),
            selector,
            replay,
            seat: groups.seat(&bound.id, instance),
        });
    }
    let bound = program.operators.get(&stage.id).ok_or_else(|| {
        RunError::Plan(format!("stage '{}' runs '{}', which is not bound", stage.id, stage.operator))
    })?;
    match bound.computation {
        Computation::Stateless => Ok(Work::Stateless(Arc::clone(&bound.make))),
        Computation::Stateful => Ok(Work::Stateful(Arc::clone(&bound.make))),
        Computation::Inference => {
            let request = ExecutorRequest {
                stage: stage.clone(),
                operator: bound.clone(),
                clock: Arc::clone(clock),
                processor: Arc::clone(&metrics.processor),
                pace: pace(),
            };
            let factory = Arc::clone(&options.executors);
            let start: StartExecutor = Arc::new(move || {
                factory.start(&request).map_err(|error| operator_error(&request.operator.id, error))
            });
            let budget = stage.batching_budget.0 as Nanoseconds;
            let executor = start()?;
            metrics.device.get_or_init(|| executor.device().to_owned());
            Ok(Work::Inference {
                executor,
                batching: Batching::new(stage.max_batch as usize, budget),
                restart: options.executors.may_be_lost().then_some(start),
            })
        }
    }
}
