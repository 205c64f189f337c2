//! The run's own thread: starts the slots, gives their channels links, restarts what dies, ends all in order.
use crate::checkpoint::Checkpoints;
use crate::clock::Nanoseconds;
use crate::executor::CPU;
use crate::failure::{OnPanic, RunError, SlotEnd, operator_error};
use crate::frame::{CLOSED, Epoch};
use crate::graph::{Channel, ChannelId, Graph, InstancePlan, Work};
use crate::node::sink::lock;
use crate::report::RunFacts;
use crate::scaling::{Load, Look, Scaling, WINDOW};
use crate::slot::{Command, SlotShared, SlotStart, run as run_slot};
use crate::wake::Waker;
use arrow_array::RecordBatch;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// A message to the run's own thread.
pub(crate) enum Event {
    SlotEnded {
        slot: usize,
        incarnation: u32,
        end: SlotEnd,
    },
    /// More is durable than before.
    Durable,
    Stop,
    Abort,
}

struct Incarnation {
    number: u32,
    commands: Sender<Command>,
    waker: Arc<Waker>,
    durable: Arc<Vec<AtomicU64>>,
    alive: bool,
    restarts_without_progress: u32,
    durable_at_restart: Epoch,
}

impl Incarnation {
    /// Before it, everything is durable behind the whole slot.
    fn durable(&self) -> Epoch {
        self.durable.iter().map(|epoch| epoch.load(Ordering::Acquire)).min().unwrap_or(CLOSED)
    }

    fn has_progressed(&self) -> bool {
        self.durable() > self.durable_at_restart
    }

    /// Restarts since the last progress.
    fn tries(&self) -> u32 {
        if self.has_progressed() { 0 } else { self.restarts_without_progress }
    }
}

pub(crate) struct Supervisor {
    graph: Graph,
    channels: Arc<Vec<Channel>>,
    shared: Arc<SlotShared>,
    facts: Arc<RunFacts>,
    incarnations: Vec<Incarnation>,
    event_sender: Sender<Event>,
    events: Receiver<Event>,
    aborting: bool,
    failure: Option<RunError>,
    scaling: Option<Scaling>,
    /// Losses of an executor without progress of its slot, by instance.
    losses: BTreeMap<String, u32>,
    /// Where another process can continue the run.
    checkpoints: Option<Checkpoints>,
    /// The epoch that everything begins with.
    begin_at: Epoch,
}

/// A batch that panics is narrowed down to its guilty records one restart at a time; more restarts than this
/// without progress are a defect of something else.
const RESTARTS_WITHOUT_PROGRESS: u32 = 64;

/// Losses of an executor without progress that are no accident any more.
const LOSSES_WITHOUT_PROGRESS: u32 = 3;

/// Processor time of this process, nanoseconds.
fn processor_time() -> Nanoseconds {
    tidemill_machine::process_time().as_nanos() as Nanoseconds
}

impl Supervisor {
    /// For this graph; events come from the slots and through `event_sender`.
    pub(crate) fn new(
        graph: Graph,
        shared: Arc<SlotShared>,
        facts: Arc<RunFacts>,
        event_sender: Sender<Event>,
        events: Receiver<Event>,
    ) -> Self {
        Self {
            channels: Arc::new(graph.channels.clone()),
            graph,
            shared,
            facts,
            incarnations: Vec::new(),
            event_sender,
            events,
            aborting: false,
            failure: None,
            scaling: None,
            losses: BTreeMap::new(),
            checkpoints: None,
            begin_at: 0,
        }
    }

    /// Begins with epoch `begin_at` and keeps checkpoints.
    pub(crate) fn with_checkpoints(mut self, checkpoints: Option<Checkpoints>, begin_at: Epoch) -> Self {
        self.checkpoints = checkpoints;
        self.begin_at = begin_at;
        self
    }

    /// Lets each model have so many copies.
    pub(crate) fn with_model_copies(mut self, most: usize) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        self.scaling = (most > 1 && processors > 1).then(|| Scaling::new(processors, most));
        self
    }

    /// Runs the slots to their end; `true`: everything is committed, `false`: aborted.
    pub(crate) fn supervise(mut self) -> Result<bool, RunError> {
        let result = match self.begin_at {
            // Another process came to the end, but not to closing its sinks.
            CLOSED => Ok(true),
            _ => self.first_checkpoint().and_then(|()| self.start_all()).and_then(|()| self.watch()),
        };
        let complete = result.as_ref().is_ok_and(|complete| *complete);
        *self.facts.ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(self.facts.clock.now());
        if let Some(emulator) = &self.facts.emulator {
            emulator.close();
        }
        self.shared.epochs.finish();
        let mut closing = self.last_checkpoint(if complete { CLOSED } else { self.durable() }, false);
        let will_continue = !complete && self.checkpoints.is_some();
        for (id, cell) in &self.facts.sinks {
            let mut cell = lock(cell);
            let rolled_back = if complete { Ok(()) } else { cell.rollback() };
            let metrics = self.facts.metrics.sinks.get(id).map(AsRef::as_ref);
            let closed = match will_continue {
                true => cell.suspend(),
                false => cell.close(|| self.facts.clock.now(), metrics),
            };
            closing = closing.and(rolled_back.and(closed).map_err(|error| operator_error(id, error)));
        }
        let letters = match will_continue {
            true => self.facts.letters.suspend(),
            false => self.facts.letters.close(),
        };
        closing = closing.and(letters.map_err(|error| operator_error("dead letters", error)));
        if complete && closing.is_ok() {
            closing = self.last_checkpoint(CLOSED, true);
        }
        result.and_then(|complete| closing.map(|()| complete))
    }

    fn first_checkpoint(&mut self) -> Result<(), RunError> {
        self.checkpoints.as_mut().map_or(Ok(()), Checkpoints::first)
    }

    fn last_checkpoint(&mut self, epoch: Epoch, is_complete: bool) -> Result<(), RunError> {
        self.checkpoints.as_mut().map_or(Ok(()), |checkpoints| checkpoints.finish(epoch, is_complete))
    }

    /// Before it, everything is durable behind all slots.
    fn durable(&self) -> Epoch {
        self.incarnations.iter().map(Incarnation::durable).min().unwrap_or(self.begin_at)
    }

    fn start_all(&mut self) -> Result<(), RunError> {
        let mut starts = Vec::new();
        for slot in 0..self.graph.slots.len() {
            let (incarnation, start) =
                self.new_incarnation(slot, 1, vec![self.begin_at; self.graph.slots[slot].instances.len()])?;
            self.incarnations.push(incarnation);
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

    fn new_incarnation(
        &self,
        slot: usize,
        number: u32,
        resume_at: Vec<Epoch>,
    ) -> Result<(Incarnation, SlotStart), RunError> {
        let waker =
            Arc::new(Waker::new().map_err(|error| RunError::System(format!("no descriptor left: {error}")))?);
        let (commands, command_receiver) = unbounded();
        let durable = Arc::new(resume_at.iter().map(|epoch| AtomicU64::new(*epoch)).collect::<Vec<_>>());
        let incarnation = Incarnation {
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
            on_durable: self.on_durable(),
            shared: Arc::clone(&self.shared),
        };
        Ok((incarnation, start))
    }

    fn on_durable(&self) -> Box<dyn Fn() + Send> {
        let events = self.event_sender.clone();
        Box::new(move || {
            let _ = events.send(Event::Durable);
        })
    }

    fn spawn(&self, slot: usize, start: SlotStart) -> Result<(), RunError> {
        let events = self.event_sender.clone();
        let incarnation = start.incarnation;
        std::thread::Builder::new()
            .name(format!("tm-slot-{slot}"))
            .spawn(move || {
                let end = run_slot(start);
                let _ = events.send(Event::SlotEnded { slot, incarnation, end });
            })
            .map(|_| ())
            .map_err(|error| RunError::System(format!("no thread for a slot: {error}")))
    }

    /// Gives both ends of a channel a new link.
    fn connect(&self, id: ChannelId) -> Result<(), RunError> {
        let channel = &self.channels[id];
        let (from, to) = (&self.incarnations[channel.from_slot], &self.incarnations[channel.to_slot]);
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
        let incarnation = &self.incarnations[slot];
        let _ = incarnation.commands.send(command);
        incarnation.waker.wake();
    }

    fn command_all(&self, make: impl Fn() -> Command) {
        (0..self.incarnations.len()).for_each(|slot| self.command(slot, make()));
    }

    /// `Ok(true)`: all slots finished; `Ok(false)`: aborted.
    fn watch(&mut self) -> Result<bool, RunError> {
        while self.incarnations.iter().any(|incarnation| incarnation.alive) {
            let event = match self.next_window() {
                None => self.events.recv().ok(),
                Some(window) => match self.events.recv_timeout(window) {
                    Err(RecvTimeoutError::Timeout) => {
                        self.look_at_models();
                        continue;
                    }
                    event => event.ok(),
                },
            };
            let Some(event) = event else { break };
            self.look_at_models();
            match event {
                Event::SlotEnded { slot, incarnation, end }
                    if self.incarnations[slot].number == incarnation =>
                {
                    self.slot_ended(slot, end);
                }
                Event::SlotEnded { .. } | Event::Durable => {}
                // Ends of sources are ends of windows too; who continues wants neither.
                Event::Stop if self.checkpoints.is_some() => self.abort(),
                Event::Stop => self.stop(),
                Event::Abort => self.abort(),
            }
            self.letters_durable();
            self.advance_checkpoints();
            self.stop_without_readers();
        }
        match self.failure.take() {
            Some(failure) => Err(failure),
            None => Ok(!self.aborting),
        }
    }

    /// How long to wait before the models are looked at, where they are.
    fn next_window(&self) -> Option<Duration> {
        self.scaling.as_ref()?;
        self.facts.clock.real_time_until(self.facts.clock.now() + WINDOW)
    }

    /// Adds a copy of the model that holds up the others.
    fn look_at_models(&mut self) {
        let Some(scaling) = &mut self.scaling else { return };
        let instances = self.graph.slots.iter().flat_map(|slot| &slot.instances);
        let models: Vec<_> = instances
            .filter_map(|instance| match &instance.work {
                Work::Inference { executor, .. } => Some((&instance.context, executor)),
                _ => None,
            })
            .collect();
        let now = self.facts.clock.now();
        let loads = models.iter().map(|(_, executor)| Load {
            busy: executor.busy(now),
            copies: executor.copies(),
            on_processors: executor.device() == CPU,
        });
        let look = Look { now, processor: processor_time(), models: loads.collect() };
        let Some((context, executor)) = scaling.advance(look).and_then(|model| models.get(model)) else {
            return;
        };
        if executor.add_copy() {
            let copies = executor.copies();
            tracing::info!(stage = %context.stage, copies, "a further copy of the model starts: it holds up the others");
            context.metrics.copies_added.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Ends the sources.
    fn stop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.command_all(|| Command::LookAtSources);
    }

    /// Ends the sources when nobody takes what the sinks write any more.
    fn stop_without_readers(&mut self) {
        let mut sinks = self.facts.metrics.sinks.values().peekable();
        if sinks.peek().is_some()
            && sinks.all(|sink| sink.closed.load(Ordering::Acquire))
            && !self.shared.stop.load(Ordering::Acquire)
        {
            self.stop();
        }
    }

    fn advance_checkpoints(&mut self) {
        let durable = self.durable();
        if let Some(checkpoints) = &mut self.checkpoints
            && let Err(error) = checkpoints.advance(durable)
        {
            self.fail(error);
        }
    }

    fn letters_durable(&mut self) {
        let durable = self.durable();
        if let Err(error) = self.shared.letters.durable(durable) {
            self.fail(operator_error("dead letters", error));
        }
    }

    fn abort(&mut self) {
        if !self.aborting {
            self.aborting = true;
            self.facts.call_offs.iter().for_each(|call_off| call_off());
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
                for epoch in self.incarnations[slot].durable.iter() {
                    epoch.store(CLOSED, Ordering::Release);
                }
                self.incarnations[slot].alive = false;
                // A sender in a new incarnation may have asked this slot, which did not look any more.
                for id in 0..self.channels.len() {
                    if self.channels[id].to_slot == slot {
                        self.command(self.channels[id].from_slot, Command::ReceiverFinished(id));
                    }
                }
            }
            SlotEnd::Aborted => self.incarnations[slot].alive = false,
            SlotEnd::Failed(error) => {
                self.incarnations[slot].alive = false;
                self.fail(error);
            }
            _ if self.aborting => self.incarnations[slot].alive = false,
            SlotEnd::Killed => self.restart_or_fail(slot),
            SlotEnd::ExecutorLost { instance, text, parts } => {
                self.executor_lost(slot, &instance, &text, &parts)
            }
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
        batch: Option<RecordBatch>,
    ) {
        let instances = &self.graph.slots[slot].instances;
        let context =
            instances.iter().map(|i| &i.context).find(|context| Some(&context.stage) == stage.as_ref());
        let operator = operator.unwrap_or_else(|| "the engine".to_owned());
        let restart = context.is_some_and(|context| context.on_panic == OnPanic::Restart)
            && (self.shared.recoverable || self.graph.slots[slot].may_restart());
        let tries = self.incarnations[slot].tries();
        if !restart || tries >= RESTARTS_WITHOUT_PROGRESS {
            self.incarnations[slot].alive = false;
            return self.fail(RunError::Panic { operator, text });
        }
        let mut found_cause = false;
        if let Some(context) = context {
            context.metrics.restarts.fetch_add(1, Ordering::Relaxed);
            found_cause = batch.is_some_and(|batch| context.suspects.record_panic(&batch, &text));
        }
        if found_cause {
            self.incarnations[slot].restarts_without_progress = 0;
        }
        tracing::warn!(%operator, "an operator panicked and is restarted from the last checkpoint: {text}");
        self.restart_or_fail(slot);
    }

    /// Starts another executor and the slot with it. The records that the dead one computed last are suspects where
    /// panics restart the operator; elsewhere a few losses without progress are enough.
    fn executor_lost(&mut self, slot: usize, instance: &str, text: &str, parts: &[RecordBatch]) {
        let instances = &mut self.graph.slots[slot].instances;
        let lost = instances.iter_mut().find(|other| other.context.instance == instance);
        let Some(InstancePlan { context, work: Work::Inference { executor, restart, .. }, .. }) = lost else {
            return;
        };
        let narrows_down = context.on_panic == OnPanic::Restart;
        // Several models of a slot may die with one machine: each counts for itself.
        let losses = self.losses.entry(instance.to_owned()).or_default();
        if self.incarnations[slot].has_progressed() {
            *losses = 0;
        }
        let (tries, most) = match narrows_down {
            true => (self.incarnations[slot].tries(), RESTARTS_WITHOUT_PROGRESS),
            false => (*losses, LOSSES_WITHOUT_PROGRESS),
        };
        *losses += 1;
        let again = match restart {
            Some(restart) if tries < most => restart(),
            _ => {
                let text = format!("its executor is lost: {text}");
                Err(RunError::Operator { operator: context.operator.clone(), text })
            }
        };
        match again {
            Ok(started) => *executor = started,
            Err(error) => {
                self.incarnations[slot].alive = false;
                return self.fail(error);
            }
        }
        tracing::warn!(operator = %context.operator, "the executor of a model is lost and started again: {text}");
        context.metrics.restarts.fetch_add(1, Ordering::Relaxed);
        let parts: Vec<&RecordBatch> = parts.iter().collect();
        if narrows_down && context.suspects.record_panic_of(&parts, &format!("its executor is lost: {text}"))
        {
            self.incarnations[slot].restarts_without_progress = 0;
        }
        self.restart_or_fail(slot);
    }

    fn restart_or_fail(&mut self, slot: usize) {
        if let Err(error) = self.restart(slot) {
            self.incarnations[slot].alive = false;
            self.fail(error);
        }
    }

    fn restart(&mut self, slot: usize) -> Result<(), RunError> {
        let old = &self.incarnations[slot];
        let resume_at = old.durable.iter().map(|epoch| epoch.load(Ordering::Acquire)).collect();
        let tries = old.tries() + 1;
        let (mut incarnation, start) = self.new_incarnation(slot, old.number + 1, resume_at)?;
        incarnation.restarts_without_progress = tries;
        self.incarnations[slot] = incarnation;
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
