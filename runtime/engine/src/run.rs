//! A run: a plan being executed in this process. Starts the slots, restarts those that die, ends them in order.
//!
//! ```no_run
//! use tidemill_engine::{Run, RunOptions};
//! # fn program() -> tidemill_engine::Program { unimplemented!() }
//! let run = Run::start(program(), RunOptions::default()).expect("the plan is sound");
//! let report = run.wait().expect("no operator failed");
//! println!("{} records", report.sinks[0].records);
//! ```
use crate::clock::{Clock, Nanoseconds, WallClock};
use crate::executor::{LocalExecutor, ModelExecutor};
use crate::failure::{OnPanic, RunError};
use crate::frame::{CLOSED, Epoch};
use crate::graph::{Channel, ChannelId, Graph, MetricsTable, Program, Work, build};
use crate::letters::{LetterWriter, Letters};
use crate::metrics::SinkMetrics;
use crate::node::inference::Batching;
use crate::node::sink::{SharedSink, SinkCell, lock};
use crate::node::source::Schedule;
use crate::report::{Observer, Progress, RunReport, report};
use crate::routing::{ClassTable, Selector};
use crate::slot::{Command, SlotEnd, SlotShared, SlotStart, run as run_slot};
use crate::store::{EpochLog, EpochLogs, SnapshotStore};
use crate::wake::Waker;
use crossbeam_channel::{Receiver, Sender, unbounded};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::Duration;
use tidemill_operators::api::{Computation, Instance, OperatorError};
use tidemill_spec::plan::Stage;

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
    /// Keep the whole epoch log, so that [`Run::epoch_log`] can give it for a replay.
    pub keep_epoch_log: bool,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self {
            clock: Arc::new(WallClock::new()),
            records: None,
            duration: None,
            letters: None,
            replay: None,
            keep_epoch_log: false,
        }
    }
}

/// A message to the run's own thread.
enum Event {
    SlotEnded { slot: usize, life: u32, end: SlotEnd },
    KillSlot(String),
    Stop,
    Abort,
}

/// State of a run that reports need.
pub(crate) struct RunFacts {
    pub(crate) metrics: MetricsTable,
    pub(crate) sinks: BTreeMap<String, SharedSink>,
    pub(crate) letters: Arc<Letters>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) started: Nanoseconds,
    pub(crate) ended: Mutex<Option<Nanoseconds>>,
    pub(crate) program: Program,
    pub(crate) restarts: AtomicU64,
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

struct Life {
    number: u32,
    commands: Sender<Command>,
    waker: Arc<Waker>,
    durable: Arc<Vec<AtomicU64>>,
    alive: bool,
    restarts_without_progress: u32,
    durable_at_restart: Epoch,
}

impl Life {
    /// Before it, everything is durable behind the whole slot.
    fn durable(&self) -> Epoch {
        self.durable.iter().map(|epoch| epoch.load(Ordering::Acquire)).min().unwrap_or(CLOSED)
    }
}

struct Supervisor {
    graph: Graph,
    channels: Arc<Vec<Channel>>,
    shared: Arc<SlotShared>,
    facts: Arc<RunFacts>,
    lives: Vec<Life>,
    event_sender: Sender<Event>,
    events: Receiver<Event>,
    aborting: bool,
    failure: Option<RunError>,
}

/// A batch that panics is narrowed down to its guilty records one restart at a time; more restarts than this
/// without progress are a defect of something else.
const RESTARTS_WITHOUT_PROGRESS: u32 = 64;

impl Run {
    /// Checks the program, loads its models, opens its sinks and starts it. Nothing is read before all of this
    /// has succeeded.
    ///
    /// # Errors
    /// When the plan is not sound, a model cannot be loaded or a sink not opened.
    pub fn start(program: Program, options: RunOptions) -> Result<Self, RunError> {
        quiet_slot_panics();
        let mut metrics = MetricsTable::default();
        let mut sinks = BTreeMap::new();
        let mut executors: BTreeMap<String, Arc<dyn ModelExecutor>> = BTreeMap::new();
        let clock = Arc::clone(&options.clock);
        let mut sink_metrics: BTreeMap<String, Arc<SinkMetrics>> = BTreeMap::new();
        let mut graph = build(&program, &mut metrics, |stage, instance, _| {
            if let Some(bound) = program.sinks.get(&stage.operator) {
                let cell = match sinks.get(&stage.operator) {
                    Some(cell) => Arc::clone(cell),
                    None => {
                        let sink = (bound.make)().map_err(|error| operator_error(&bound.id, error))?;
                        let cell: SharedSink = Arc::new(Mutex::new(SinkCell::new(sink)));
                        sinks.insert(stage.operator.clone(), Arc::clone(&cell));
                        cell
                    }
                };
                let metrics = Arc::clone(sink_metrics.entry(stage.operator.clone()).or_default());
                return Ok(Work::Sink { cell, metrics, truth: bound.ground_truth.clone() });
            }
            source_or_operator(&program, &options, &clock, &mut executors, stage, instance)
        })?;
        metrics.sinks = sink_metrics;
        one_stage_per_sink(&program)?;
        for slot in &mut graph.slots {
            slot.byte_budget = slot.byte_budget.max(1 << 12);
        }
        let letters = Arc::new(Letters::new(options.letters));
        let epochs = Arc::new(EpochLogs::default());
        let started = clock.now();
        let shared = Arc::new(SlotShared {
            clock: Arc::clone(&clock),
            schedule: Schedule {
                rate: None,
                start: started,
                tick: program.plan.tick.0 as Nanoseconds,
                records: options.records,
                duration: options.duration.map(|duration| duration.as_nanos() as Nanoseconds),
            },
            checkpoint_every: program.plan.checkpoint_every.max(1),
            snapshots: Arc::new(SnapshotStore::default()),
            epochs: Arc::clone(&epochs),
            letters: Arc::clone(&letters),
            stop: Arc::new(AtomicBool::new(false)),
            keep_epochs: options.keep_epoch_log,
        });
        let facts = Arc::new(RunFacts {
            metrics,
            sinks,
            letters,
            clock,
            started,
            ended: Mutex::new(None),
            program,
            restarts: AtomicU64::new(0),
        });
        let slots = graph.slots.iter().map(|slot| slot.name.clone()).collect();
        let (event_sender, events) = unbounded();
        let (result_sender, result) = unbounded();
        let supervisor = Supervisor {
            channels: Arc::new(graph.channels.clone()),
            graph,
            shared,
            facts: Arc::clone(&facts),
            lives: Vec::new(),
            event_sender: event_sender.clone(),
            events,
            aborting: false,
            failure: None,
        };
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

    /// Kills a slot as if its thread had died; it is restored from the last checkpoint. For tests of recovery.
    pub fn kill_slot(&self, name: &str) {
        let _ = self.events.send(Event::KillSlot(name.to_owned()));
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

fn operator_error(operator: &str, error: OperatorError) -> RunError {
    RunError::Operator { operator: operator.to_owned(), text: error.message }
}

/// A panic in a slot or a model is told by the run, with the operator's name; the default hook would print a
/// second, worse message.
fn quiet_slot_panics() {
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
    for sink in program.sinks.keys() {
        let stages = program.plan.stages.iter().filter(|stage| stage.operator == *sink);
        let copies: u32 = stages.map(|stage| stage.partitions.max(1)).sum();
        if copies != 1 {
            return Err(RunError::Plan(format!(
                "sink '{sink}' has {copies} stages or partitions; this version runs exactly one of each sink"
            )));
        }
    }
    Ok(())
}

fn source_or_operator(
    program: &Program,
    options: &RunOptions,
    clock: &Arc<dyn Clock>,
    executors: &mut BTreeMap<String, Arc<dyn ModelExecutor>>,
    stage: &Stage,
    instance: &str,
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
            bound: bound.clone(),
            number,
            classes: ClassTable::new(&shares),
            selector,
            replay,
        });
    }
    let bound = program.operators.get(&stage.id).ok_or_else(|| {
        RunError::Plan(format!("stage '{}' runs '{}', which is not bound", stage.id, stage.operator))
    })?;
    match bound.computation {
        Computation::Stateless => Ok(Work::Stateless(Arc::clone(&bound.make))),
        Computation::Stateful => Ok(Work::Stateful(Arc::clone(&bound.make))),
        Computation::Inference => {
            let made = (bound.make)().map_err(|error| operator_error(&bound.id, error))?;
            let Instance::Inference(model) = made else {
                return Err(RunError::Plan(format!("stage '{}' made another kind of operator", stage.id)));
            };
            let executor =
                LocalExecutor::start(&stage.operator, model, Arc::clone(&bound.make), Arc::clone(clock))
                    .map_err(|error| RunError::System(format!("no thread for a model: {error}")))?;
            let executor: Arc<dyn ModelExecutor> = Arc::new(executor);
            executors.insert(instance.to_owned(), Arc::clone(&executor));
            let budget = stage.batching_budget.0 as Nanoseconds;
            Ok(Work::Inference {
                executor,
                batching: Batching { max_batch: stage.max_batch.max(1) as usize, budget },
            })
        }
    }
}

impl Supervisor {
    fn supervise(mut self) -> Result<bool, RunError> {
        let result = self.start_all().and_then(|()| self.watch());
        let complete = result.as_ref().is_ok_and(|complete| *complete);
        *self.facts.ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(self.facts.clock.now());
        let mut closing = Ok(());
        for (id, cell) in &self.facts.sinks {
            let mut cell = lock(cell);
            let rolled_back = if complete { Ok(()) } else { cell.rollback() };
            let closed = cell.sink.close();
            closing = closing.and(rolled_back.and(closed).map_err(|error| operator_error(id, error)));
        }
        closing =
            closing.and(self.facts.letters.close().map_err(|error| operator_error("dead letters", error)));
        result.and_then(|complete| closing.map(|()| complete))
    }

    fn start_all(&mut self) -> Result<(), RunError> {
        let mut starts = Vec::new();
        for slot in 0..self.graph.slots.len() {
            let (life, start) = self.new_life(slot, 1, vec![0; self.graph.slots[slot].instances.len()])?;
            self.lives.push(life);
            starts.push(start);
        }
        for id in 0..self.channels.len() {
            self.connect(id)?;
        }
        for (slot, start) in starts.into_iter().enumerate() {
            self.spawn(slot, start)?;
        }
        Ok(())
    }

    fn new_life(
        &self,
        slot: usize,
        number: u32,
        resume_at: Vec<Epoch>,
    ) -> Result<(Life, SlotStart), RunError> {
        let waker =
            Arc::new(Waker::new().map_err(|error| RunError::System(format!("no descriptor left: {error}")))?);
        let (commands, command_receiver) = unbounded();
        let durable = Arc::new(resume_at.iter().map(|epoch| AtomicU64::new(*epoch)).collect::<Vec<_>>());
        let life = Life {
            number,
            commands,
            waker: Arc::clone(&waker),
            durable: Arc::clone(&durable),
            alive: true,
            restarts_without_progress: 0,
            durable_at_restart: resume_at.iter().copied().min().unwrap_or(0),
        };
        let start = SlotStart {
            plan: self.graph.slots[slot].clone(),
            channels: Arc::clone(&self.channels),
            incarnation: number,
            resume_at,
            commands: command_receiver,
            waker,
            durable,
            shared: Arc::clone(&self.shared),
        };
        Ok((life, start))
    }

    fn spawn(&self, slot: usize, start: SlotStart) -> Result<(), RunError> {
        let events = self.event_sender.clone();
        let life = start.incarnation;
        std::thread::Builder::new()
            .name(format!("tm-slot-{slot}"))
            .spawn(move || {
                let end = run_slot(start);
                let _ = events.send(Event::SlotEnded { slot, life, end });
            })
            .map(|_| ())
            .map_err(|error| RunError::System(format!("no thread for a slot: {error}")))
    }

    /// Gives both ends of a channel a new link.
    fn connect(&self, id: ChannelId) -> Result<(), RunError> {
        let channel = &self.channels[id];
        let (from, to) = (&self.lives[channel.from_slot], &self.lives[channel.to_slot]);
        if !to.alive {
            self.command(channel.from_slot, Command::ReceiverFinished(id));
            return Ok(());
        }
        let (sender, receiver) = channel
            .link
            .connect(Arc::clone(&channel.schema))
            .map_err(|error| RunError::System(format!("channel {}: {error}", channel.name)))?;
        let incarnation = from.number;
        self.command(channel.from_slot, Command::AttachSender(id, sender));
        self.command(channel.to_slot, Command::AttachReceiver(id, receiver, incarnation));
        Ok(())
    }

    fn command(&self, slot: usize, command: Command) {
        let life = &self.lives[slot];
        let _ = life.commands.send(command);
        life.waker.wake();
    }

    fn command_all(&self, make: impl Fn() -> Command) {
        (0..self.lives.len()).for_each(|slot| self.command(slot, make()));
    }

    /// `Ok(true)`: all slots finished; `Ok(false)`: aborted.
    fn watch(&mut self) -> Result<bool, RunError> {
        while self.lives.iter().any(|life| life.alive) {
            let Ok(event) = self.events.recv() else { break };
            match event {
                Event::SlotEnded { slot, life, end } if self.lives[slot].number == life => {
                    self.slot_ended(slot, end);
                }
                Event::SlotEnded { .. } => {}
                Event::KillSlot(name) => {
                    if let Some(slot) = self.graph.slots.iter().position(|slot| slot.name == name)
                        && self.lives[slot].alive
                    {
                        self.command(slot, Command::Kill);
                    }
                }
                Event::Stop => {
                    self.shared.stop.store(true, Ordering::Release);
                    self.command_all(|| Command::LookAtSources);
                }
                Event::Abort => self.abort(),
            }
            self.letters_durable();
        }
        match self.failure.take() {
            Some(failure) => Err(failure),
            None => Ok(!self.aborting),
        }
    }

    fn letters_durable(&mut self) {
        let durable = self.lives.iter().map(Life::durable).min().unwrap_or(CLOSED);
        if let Err(error) = self.shared.letters.durable(durable) {
            self.fail(operator_error("dead letters", error));
        }
    }

    fn abort(&mut self) {
        if !self.aborting {
            self.aborting = true;
            self.command_all(|| Command::Abort);
        }
    }

    fn fail(&mut self, error: RunError) {
        self.failure.get_or_insert(error);
        self.abort();
    }

    fn slot_ended(&mut self, slot: usize, end: SlotEnd) {
        match end {
            SlotEnd::Finished => {
                for epoch in self.lives[slot].durable.iter() {
                    epoch.store(CLOSED, Ordering::Release);
                }
                self.lives[slot].alive = false;
            }
            SlotEnd::Aborted => self.lives[slot].alive = false,
            SlotEnd::Failed(error) => {
                self.lives[slot].alive = false;
                self.fail(error);
            }
            _ if self.aborting => self.lives[slot].alive = false,
            SlotEnd::Killed => self.restart_or_fail(slot),
            SlotEnd::Panicked { text, stage, operator, batch } => {
                self.panicked(slot, text, stage, operator, batch)
            }
        }
    }

    fn panicked(
        &mut self,
        slot: usize,
        text: String,
        stage: Option<String>,
        operator: Option<String>,
        batch: Option<arrow_array::RecordBatch>,
    ) {
        let instances = &self.graph.slots[slot].instances;
        let context =
            instances.iter().map(|i| &i.context).find(|context| Some(&context.stage) == stage.as_ref());
        let operator = operator.unwrap_or_else(|| "the engine".to_owned());
        let restart = context.is_some_and(|context| context.on_panic == OnPanic::Restart);
        let tries = self.lives[slot].restarts_without_progress;
        if !restart || tries >= RESTARTS_WITHOUT_PROGRESS {
            self.lives[slot].alive = false;
            return self.fail(RunError::Panic { operator, text });
        }
        if let Some(context) = context {
            context.metrics.restarts.fetch_add(1, Ordering::Relaxed);
            if let Some(batch) = &batch {
                context.suspects.accuse(batch, &text);
            }
        }
        tracing::warn!(%operator, "an operator panicked and is restarted from the last checkpoint: {text}");
        self.restart_or_fail(slot);
    }

    fn restart_or_fail(&mut self, slot: usize) {
        if let Err(error) = self.restart(slot) {
            self.lives[slot].alive = false;
            self.fail(error);
        }
    }

    fn restart(&mut self, slot: usize) -> Result<(), RunError> {
        let old = &self.lives[slot];
        let resume_at = old.durable.iter().map(|epoch| epoch.load(Ordering::Acquire)).collect();
        let tries =
            if old.durable() > old.durable_at_restart { 1 } else { old.restarts_without_progress + 1 };
        let (mut life, start) = self.new_life(slot, old.number + 1, resume_at)?;
        life.restarts_without_progress = tries;
        self.lives[slot] = life;
        for instance in &self.graph.slots[slot].instances {
            if let Work::Sink { cell, .. } = &instance.work {
                let mut cell = lock(cell);
                cell.rollback().map_err(|error| operator_error(&instance.context.operator, error))?;
            }
        }
        for id in 0..self.channels.len() {
            if self.channels[id].from_slot == slot || self.channels[id].to_slot == slot {
                self.connect(id)?;
            }
        }
        self.facts.restarts.fetch_add(1, Ordering::Relaxed);
        self.spawn(slot, start)
    }
}
