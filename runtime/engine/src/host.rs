//! A host of a run: starts slots, connects links, opens and closes sinks, and reports to the coordinator.
mod checked;
mod coordinator_address;
mod coordinator_sender;
mod entry;
mod kept;
mod network;
mod orders;
mod outbox;
mod parts;
mod prepared;
mod process;
mod resources;
mod setup;
mod through;

pub(crate) use checked::TIMES;
pub use coordinator_address::CoordinatorAddress;
pub(crate) use coordinator_sender::Met;
pub(crate) use network::{Network, NetworkEvent};
pub(crate) use orders::HostPlan;
pub(crate) use prepared::PreparedModels;
pub use process::{HostOptions, decline, serve};
pub(crate) use resources::{Channel, InstancePlan, Opening, Resources, SlotPlan, Work};
pub(crate) use setup::Setup;
pub use through::ServedBy;
pub(crate) use through::Through;

use crate::channel::ChannelId;
use crate::clock::Nanoseconds;
use crate::emulation::Emulator;
use crate::executor::CPU;
use crate::failure::{OnPanic, RunError, SlotEnd, operator_error};
use crate::frame::{CLOSED, Epoch};
use crate::metrics::SinkMetrics;
use crate::node::sink::{SharedSink, lock};
use crate::protocol::{End, Notice, Order};
use crate::scaling::{Load, Look, Scaling, WINDOW};
use crate::slot::{Command, SlotShared, SlotStart, run as run_slot};
use crate::wake::Waker;
use arrow_array::RecordBatch;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use parts::Parts;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tidemill_link::remote::Role;
use tidemill_operators::api::CallOff;

/// Takes the notices of a host, on any thread.
pub(crate) type Notices = Arc<dyn Fn(Notice) + Send + Sync>;

/// A message to a host's own thread.
pub(crate) enum HostEvent {
    /// From the coordinator.
    Order(Order),
    /// A slot's thread has ended.
    SlotEnded { slot: usize, incarnation: u32, end: SlotEnd },
    /// More is durable downstream of a slot than before.
    Durable { slot: usize, incarnation: u32 },
    /// From other hosts.
    Network(NetworkEvent),
    /// The coordinator is gone.
    CoordinatorLost,
}

struct Incarnation {
    number: u32,
    commands: Sender<Command>,
    waker: Arc<Waker>,
    /// By instance.
    durable: Arc<Vec<AtomicU64>>,
    alive: bool,
}

impl Incarnation {
    fn durable(&self) -> Vec<Epoch> {
        self.durable.iter().map(|epoch| epoch.load(Ordering::Acquire)).collect()
    }

    fn command(&self, command: Command) {
        let _ = self.commands.send(command);
        self.waker.wake();
    }
}

pub(crate) struct Host {
    slots: Vec<Option<SlotPlan>>,
    channels: Arc<Vec<Channel>>,
    sinks: BTreeMap<String, SharedSink>,
    sink_metrics: BTreeMap<String, Arc<SinkMetrics>>,
    call_offs: Vec<CallOff>,
    shared: Arc<SlotShared>,
    emulator: Option<Arc<Emulator>>,
    /// By slot; none: not started here.
    incarnations: Vec<Option<Incarnation>>,
    event_sender: Sender<HostEvent>,
    events: Receiver<HostEvent>,
    notices: Notices,
    parts: Parts,
    scaling: Option<Scaling>,
    /// The other hosts, where there are any, and the host of each slot.
    network: Option<(Network, Vec<String>)>,
    /// The transport service of the machine, where there is one.
    through: Option<Through>,
    is_deserted: bool,
    is_closed: bool,
}

/// Processor time of this process, nanoseconds.
fn processor_time() -> Nanoseconds {
    tidemill_machine::process_time().as_nanos() as Nanoseconds
}

impl Host {
    /// Makes a host with the opened resources; orders come through `events`.
    pub(crate) fn new(
        resources: Resources,
        sink_metrics: BTreeMap<String, Arc<SinkMetrics>>,
        shared: Arc<SlotShared>,
        emulator: Option<Arc<Emulator>>,
        (event_sender, events): (Sender<HostEvent>, Receiver<HostEvent>),
        notices: Notices,
    ) -> Self {
        let Resources { slots, channels, sinks, call_offs, .. } = resources;
        let parts = Parts::new(&shared, &slots, &sinks, &notices);
        Self {
            incarnations: slots.iter().map(|_| None).collect(),
            slots,
            channels: Arc::new(channels),
            sinks,
            sink_metrics,
            call_offs,
            shared,
            emulator,
            event_sender,
            events,
            notices,
            parts,
            scaling: None,
            network: None,
            through: None,
            is_deserted: false,
            is_closed: false,
        }
    }

    /// Adds the slots on other hosts; `hosts`: the host of each slot.
    pub(crate) fn with_network(mut self, network: Network, hosts: Vec<String>) -> Self {
        self.network = Some((network, hosts));
        self
    }

    /// Adds the transport service of the machine.
    pub(crate) fn with_service(mut self, through: Option<Through>) -> Self {
        self.through = through;
        self.leave_channels();
        self
    }

    /// Sets the number of copies that each model may have.
    pub(crate) fn with_model_copies(mut self, most: usize) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        self.scaling = (most > 1 && processors > 1).then(|| Scaling::new(processors, most));
        self
    }

    /// Follows orders until it may leave. An error if the coordinator was lost: all slots have been ended then.
    pub(crate) fn run(mut self) -> Result<(), RunError> {
        loop {
            if let Some((network, _)) = &mut self.network {
                network.try_again();
            }
            let event = match self.next_look() {
                None => self.events.recv().ok(),
                Some(next) => match self.events.recv_timeout(next) {
                    Err(RecvTimeoutError::Timeout) => {
                        self.look_at_models();
                        continue;
                    }
                    event => event.ok(),
                },
            };
            let Some(event) = event else { return Ok(()) };
            self.look_at_models();
            match event {
                HostEvent::Order(Order::Leave) => return Ok(()),
                HostEvent::Order(order) => self.follow(order),
                HostEvent::SlotEnded { slot, incarnation, end } => {
                    if self.is_current(slot, incarnation) {
                        self.slot_ended(slot, end);
                    }
                }
                HostEvent::Durable { slot, incarnation } => {
                    if let Some(current) = &self.incarnations[slot]
                        && current.number == incarnation
                    {
                        (self.notices)(Notice::Durable { slot, incarnation, epochs: current.durable() });
                    }
                }
                HostEvent::Network(event) => self.follow_network(event),
                // Its work is done.
                HostEvent::CoordinatorLost if self.is_closed => return Ok(()),
                HostEvent::CoordinatorLost => {
                    self.is_deserted = true;
                    self.follow(Order::Abort);
                }
            }
            if self.is_deserted && !self.incarnations.iter().flatten().any(|incarnation| incarnation.alive) {
                let closed = self.close(false, self.shared.recoverable, true);
                let text = "the coordinator of the run is gone; this host ends, and the run can be continued where it has a state";
                return closed.and(Err(RunError::System(text.into())));
            }
        }
    }

    /// The network does not connect channels that go through the service.
    fn leave_channels(&mut self) {
        if let (Some(through), Some((network, _))) = (&self.through, &mut self.network) {
            network.leave(through.channels(), through.public().cloned());
        }
    }

    fn follow_service(&mut self, event: NetworkEvent) {
        let Some(through) = &mut self.through else { return };
        match event {
            NetworkEvent::Routes(routes) => {
                let changed = through.follow_routes(routes);
                self.leave_channels();
                for id in changed {
                    for (role, slot) in self.ends(id) {
                        if self.slots[slot].is_some() {
                            self.command(slot, Command::Detach(id, role));
                        }
                    }
                    if let Err(error) = self.connect(id) {
                        tracing::error!("{error}");
                    }
                }
            }
            NetworkEvent::ThroughDialled { end, generation, connection } => {
                if let Some(command) = through.dialled(end, generation, connection) {
                    let [(_, from), (_, to)] = self.ends(end.0);
                    self.command(if end.1 == Role::Sender { from } else { to }, command);
                }
            }
            NetworkEvent::ThroughCut { end, generation } => through.cut(end, generation),
            NetworkEvent::Incoming(_) | NetworkEvent::Dialled { .. } | NetworkEvent::Cut { .. } => {}
        }
    }

    /// The ends of a channel with their slots.
    fn ends(&self, id: ChannelId) -> [(Role, usize); 2] {
        let channel = &self.channels[id];
        [(Role::Sender, channel.from_slot), (Role::Receiver, channel.to_slot)]
    }

    /// Gives the ends of a channel that are here to the service.
    fn connect_through(&mut self, id: ChannelId) {
        let ends = self.ends(id);
        let Some(through) = &mut self.through else { return };
        for (at, (role, slot)) in ends.into_iter().enumerate() {
            let (Some(_), Some(incarnation)) = (&self.slots[slot], &self.incarnations[slot]) else {
                continue;
            };
            if !incarnation.alive || through.is_open(id, role, incarnation.number) {
                continue;
            }
            let (channel, (_, other)) = (&self.channels[id], ends[1 - at]);
            let beyond = match &self.network {
                Some((network, hosts)) if self.slots[other].is_none() => network.beyond(role, &hosts[other]),
                _ => (None, None),
            };
            let wire = channel.wire.as_ref().filter(|_| role == Role::Receiver);
            through.open((id, role), incarnation.number, (&channel.schema, wire), beyond);
        }
    }

    fn follow_network(&mut self, event: NetworkEvent) {
        if let NetworkEvent::Routes(_)
        | NetworkEvent::ThroughDialled { .. }
        | NetworkEvent::ThroughCut { .. } = event
        {
            return self.follow_service(event);
        }
        let Some((network, _)) = &mut self.network else { return };
        if let Some((channel, role, command)) = network.follow(event) {
            let channel = &self.channels[channel];
            let slot = if role == Role::Sender { channel.from_slot } else { channel.to_slot };
            self.command(slot, command);
        }
    }

    fn is_current(&self, slot: usize, incarnation: u32) -> bool {
        self.incarnations[slot].as_ref().is_some_and(|current| current.number == incarnation)
    }

    fn follow(&mut self, order: Order) {
        match order {
            Order::Start { slot, incarnation, resume_at, new_executor } => {
                if let Err(error) = self.start(slot, incarnation, resume_at.clone(), new_executor) {
                    if let Some(current) = &mut self.incarnations[slot] {
                        current.alive = false;
                    }
                    let end = End::Failed(error);
                    (self.notices)(Notice::Ended {
                        slot,
                        incarnation,
                        durable: resume_at,
                        end,
                        heard: BTreeMap::new(),
                    });
                }
            }
            Order::Started { at, elapsed_before } => {
                self.shared.begins.store(at - elapsed_before, Ordering::Release);
            }
            Order::ReceiverFinished { channel } => {
                self.command(self.channels[channel].from_slot, Command::ReceiverFinished(channel));
            }
            Order::Part(request) => self.parts.begin(request),
            Order::KeepFrom(epoch) => {
                if self.shared.kept.load(Ordering::Acquire) != CLOSED {
                    self.shared.kept.store(epoch, Ordering::Release);
                }
                self.shared.snapshots.keep_from(epoch);
                self.shared.epochs.keep_from(epoch);
            }
            Order::Stop => {
                self.shared.stop.store(true, Ordering::Release);
                self.command_all(|| Command::LookAtSources);
            }
            Order::Abort => {
                self.call_offs.iter().for_each(|call_off| call_off());
                self.command_all(|| Command::Abort);
            }
            Order::Close { complete, will_continue, cut_short } => {
                if std::mem::replace(&mut self.is_closed, true) {
                    return; // told again by a coordinator that has not heard the answer
                }
                let closed = self.close(complete, will_continue, cut_short);
                (self.notices)(Notice::Closed(closed));
            }
            Order::Peer { host, address } => {
                if let Some((network, _)) = &mut self.network {
                    network.peer(host, address);
                }
            }
            Order::Identity { host, identity } => {
                if let Some((network, _)) = &mut self.network {
                    network.identity(host, identity);
                }
            }
            Order::LettersDurable(epoch) => {
                // Passing it on to the coordinator writes nothing here that could fail.
                let _ = self.shared.letters.durable(epoch);
            }
            Order::FindSources { number, sink, record } => {
                let found = self.shared.sampler.as_ref().map(|sampler| sampler.find(&sink, &record));
                let sources = found.unwrap_or_default();
                (self.notices)(Notice::SourcesFound { number, sources });
            }
            // Journals of this process are where its checkpoints are written, and its records where they are shown.
            Order::Journals(_) | Order::ShowSamples | Order::Feed { .. } => {}
            Order::Prepare | Order::Begin(_) | Order::Leave | Order::Pong { .. } => {}
        }
    }

    /// Starts a slot, from what is durable downstream of each of its instances.
    fn start(
        &mut self,
        slot: usize,
        number: u32,
        resume_at: Vec<Epoch>,
        new_executor: Option<String>,
    ) -> Result<(), RunError> {
        let Some(plan) = &mut self.slots[slot] else {
            return Err(RunError::System(format!("slot {slot} is not on this host")));
        };
        if let Some(lost) = new_executor {
            let lost = plan.instances.iter_mut().find(|other| other.context.instance == lost);
            if let Some(InstancePlan {
                work: Work::Inference { executor, restart: Some(restart), .. }, ..
            }) = lost
            {
                *executor = restart()?;
            }
        }
        for instance in plan.instances.iter().filter(|_| number > 1) {
            if let Work::Sink { cell, .. } = &instance.work {
                lock(cell).rollback().map_err(|error| operator_error(&instance.context.operator, error))?;
            }
        }
        let plan = plan.clone();
        let waker =
            Arc::new(Waker::new().map_err(|error| RunError::System(format!("no descriptor left: {error}")))?);
        let (commands, command_receiver) = unbounded();
        let durable = Arc::new(resume_at.iter().map(|epoch| AtomicU64::new(*epoch)).collect::<Vec<_>>());
        self.incarnations[slot] = Some(Incarnation {
            number,
            commands,
            waker: Arc::clone(&waker),
            durable: Arc::clone(&durable),
            alive: true,
        });
        for id in 0..self.channels.len() {
            let channel = &self.channels[id];
            if channel.from_slot == slot || channel.to_slot == slot {
                self.connect(id)?;
            }
        }
        let events = self.event_sender.clone();
        self.spawn(
            slot,
            SlotStart {
                plan,
                channels: Arc::clone(&self.channels),
                incarnation: number,
                resume_at,
                commands: command_receiver,
                waker,
                durable,
                on_durable: Box::new(move || {
                    let _ = events.send(HostEvent::Durable { slot, incarnation: number });
                }),
                shared: Arc::clone(&self.shared),
            },
        )
    }

    fn spawn(&self, slot: usize, start: SlotStart) -> Result<(), RunError> {
        let events = self.event_sender.clone();
        let incarnation = start.incarnation;
        std::thread::Builder::new()
            .name(format!("tm-slot-{slot}"))
            .spawn(move || {
                let end = run_slot(start);
                let _ = events.send(HostEvent::SlotEnded { slot, incarnation, end });
            })
            .map(|_| ())
            .map_err(|error| RunError::System(format!("no thread for a slot: {error}")))
    }

    /// Gives both ends of a channel a new link once both slots have been started, or the end that is here.
    fn connect(&mut self, id: ChannelId) -> Result<(), RunError> {
        if self.through.as_ref().is_some_and(|through| through.has(id)) {
            self.connect_through(id);
            return Ok(());
        }
        let channel = &self.channels[id];
        if let Some((network, hosts)) = &mut self.network {
            let (role, own, peer) = match (&self.slots[channel.from_slot], &self.slots[channel.to_slot]) {
                (Some(_), None) => (Role::Sender, channel.from_slot, channel.to_slot),
                _ => (Role::Receiver, channel.to_slot, channel.from_slot),
            };
            if self.slots[peer].is_none() {
                let Some(incarnation) = &self.incarnations[own] else { return Ok(()) };
                let (number, peer) = (incarnation.number, hosts[peer].as_str());
                if let Some(command) =
                    network.open(id, role, number, peer, (&channel.schema, channel.wire.as_ref()))
                {
                    incarnation.command(command);
                }
                return Ok(());
            }
        }
        let (Some(from), Some(to)) =
            (&self.incarnations[channel.from_slot], &self.incarnations[channel.to_slot])
        else {
            return Ok(());
        };
        // The coordinator notifies the sender where the receiver has ended.
        if !to.alive {
            return Ok(());
        }
        let (sender, receiver) = channel
            .link
            .connect(Arc::clone(&channel.schema))
            .map_err(|error| RunError::System(format!("channel {}: {error}", channel.name)))?;
        from.command(Command::AttachSender(id, sender, to.number));
        to.command(Command::AttachReceiver(id, receiver, from.number));
        Ok(())
    }

    fn command(&self, slot: usize, command: Command) {
        if let Some(incarnation) = &self.incarnations[slot] {
            incarnation.command(command);
        }
    }

    fn command_all(&self, make: impl Fn() -> Command) {
        self.incarnations.iter().flatten().for_each(|incarnation| incarnation.command(make()));
    }

    fn slot_ended(&mut self, slot: usize, end: SlotEnd) {
        let mut heard = BTreeMap::new();
        let end = match end {
            SlotEnd::Finished { heard: by_channel } => {
                heard = by_channel;
                End::Finished
            }
            SlotEnd::Aborted => End::Aborted,
            SlotEnd::Failed(error) => End::Failed(error),
            SlotEnd::Killed => End::Killed,
            SlotEnd::ExecutorLost { instance, text, parts } => {
                self.executor_lost(slot, instance, text, &parts)
            }
            SlotEnd::Panicked { text, stage, operator, batch } => {
                self.panicked(slot, text, stage, operator, batch)
            }
        };
        if let (Some((network, _)), End::Finished) = (&mut self.network, &end) {
            let own = |channel: &Channel| channel.from_slot == slot || channel.to_slot == slot;
            let own = self.channels.iter().enumerate().filter(|(_, channel)| own(channel));
            own.for_each(|(id, _)| network.finish(id));
        }
        // A slot that has ended takes and sends nothing more.
        if let Some(through) = &mut self.through {
            for (id, channel) in self.channels.iter().enumerate() {
                if channel.from_slot == slot {
                    through.close_end(id, Role::Sender);
                }
                if channel.to_slot == slot {
                    through.close_end(id, Role::Receiver);
                }
            }
        }
        let Some(incarnation) = &mut self.incarnations[slot] else { return };
        incarnation.alive = false;
        let durable = match end {
            End::Finished => vec![CLOSED; incarnation.durable.len()],
            _ => incarnation.durable(),
        };
        (self.notices)(Notice::Ended { slot, incarnation: incarnation.number, durable, end, heard });
    }

    fn panicked(
        &self,
        slot: usize,
        text: String,
        stage: Option<String>,
        operator: Option<String>,
        batch: Option<RecordBatch>,
    ) -> End {
        let operator = operator.unwrap_or_else(|| "the engine".to_owned());
        let plan = self.slots[slot].as_ref();
        let context = plan.and_then(|plan| {
            plan.instances.iter().map(|i| &i.context).find(|context| Some(&context.stage) == stage.as_ref())
        });
        let keeps_past = self.shared.recoverable || plan.is_some_and(SlotPlan::may_restart);
        match context.filter(|context| context.on_panic == OnPanic::Restart && keeps_past) {
            None => End::Panicked { operator, text, restarts: false, found_cause: false },
            Some(context) => {
                context.metrics.restarts.fetch_add(1, Ordering::Relaxed);
                let found_cause = batch.is_some_and(|batch| context.suspects.record_panic(&batch, &text));
                End::Panicked { operator, text, restarts: true, found_cause }
            }
        }
    }

    /// Handles the loss of an executor. Where panics restart the operator, the records that it computed last are
    /// suspects.
    fn executor_lost(&self, slot: usize, instance: String, text: String, parts: &[RecordBatch]) -> End {
        let plans = self.slots[slot].as_ref().map_or(&[][..], |plan| &plan.instances);
        let Some(InstancePlan { context, work: Work::Inference { restart, .. }, .. }) =
            plans.iter().find(|other| other.context.instance == instance)
        else {
            return End::Failed(RunError::System(format!("the executor of '{instance}' is lost: {text}")));
        };
        let (narrows, restarts) = (context.on_panic == OnPanic::Restart, restart.is_some());
        let mut found_cause = false;
        if restarts {
            context.metrics.restarts.fetch_add(1, Ordering::Relaxed);
            let parts: Vec<&RecordBatch> = parts.iter().collect();
            let message = format!("its executor is lost: {text}");
            found_cause = narrows && context.suspects.record_panic_of(&parts, &message);
        }
        End::ExecutorLost {
            instance,
            operator: context.operator.clone(),
            text,
            restarts,
            narrows,
            found_cause,
        }
    }

    /// Returns the time until the models are checked, if they are here, or another host is dialled.
    fn next_look(&self) -> Option<Duration> {
        let clock = &self.shared.clock;
        let window = self.scaling.as_ref().map(|_| clock.now() + WINDOW);
        let dials = self.network.as_ref().and_then(|(network, _)| network.next_try());
        clock.real_time_until(window.into_iter().chain(dials).min()?)
    }

    /// Adds a copy of the model that delays the others.
    fn look_at_models(&mut self) {
        let Some(scaling) = &mut self.scaling else { return };
        let instances = self.slots.iter().flatten().flat_map(|slot| &slot.instances);
        let models: Vec<_> = instances
            .filter_map(|instance| match &instance.work {
                Work::Inference { executor, .. } => Some((&instance.context, executor)),
                _ => None,
            })
            .collect();
        let now = self.shared.clock.now();
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

    fn close(&self, complete: bool, will_continue: bool, cut_short: bool) -> Result<(), RunError> {
        self.shared.epochs.finish();
        self.through.iter().for_each(Through::exchange);
        if let Some(emulator) = &self.emulator {
            emulator.close();
        }
        let mut closing = Ok(());
        for (id, cell) in &self.sinks {
            let mut cell = lock(cell);
            let rolled_back = if complete { Ok(()) } else { cell.rollback() };
            let metrics = self.sink_metrics.get(id).map(AsRef::as_ref);
            let closed = match will_continue {
                true => cell.suspend(),
                false => cell.close(|| self.shared.clock.now(), metrics, cut_short),
            };
            closing = closing.and(rolled_back.and(closed).map_err(|error| operator_error(id, error)));
        }
        closing
    }
}
