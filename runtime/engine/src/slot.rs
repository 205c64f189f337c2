//! A slot: one thread with one single-threaded timely worker, an epoll loop around it, and nothing that polls.
use crate::clock::{Clock, Nanoseconds};
use crate::context::{Account, Durable, Room, SlotContext};
use crate::executor::Notifier;
use crate::failure::{RunError, panic_text};
use crate::frame::{CLOSED, Epoch};
use crate::freshness::FreshnessQueue;
use crate::graph::{Channel, ChannelId, InstancePlan, SlotPlan, Work, drop_limit};
use crate::letters::Letters;
use crate::link::{LinkReceiver, LinkSender};
use crate::node::egress::{Egress, EgressNode};
use crate::node::inference::InferenceNode;
use crate::node::ingress::{Ingress, IngressNode};
use crate::node::sink::SinkNode;
use crate::node::source::{Schedule, SourceNode, SourceSettings};
use crate::node::stateful::StatefulNode;
use crate::node::stateless::StatelessNode;
use crate::node::{Input, Node, Processing, Rowstream, install};
use crate::routing::Selector;
use crate::store::{EpochLogs, SnapshotStore};
use crate::wake::Waker;
use crate::watermark::Track;
use crossbeam_channel::Receiver;
use rustix::event::{Timespec, epoll};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tidemill_operators::api::Instance;
use tidemill_spec::plan::Freshness;
use timely::communication::Allocator;
use timely::communication::allocator::Thread;
use timely::dataflow::Scope;
use timely::scheduling::Activator;
use timely::worker::{Config, Worker};

/// What the run tells a slot.
pub(crate) enum Command {
    /// The sending end of a channel has a new link.
    AttachSender(ChannelId, Box<dyn LinkSender>),
    /// The receiving end of a channel has a new link, from a sender in this life.
    AttachReceiver(ChannelId, Box<dyn LinkReceiver>, u32),
    /// The receiver of a channel has ended well: everything is durable there.
    ReceiverFinished(ChannelId),
    /// Look at the stop flag.
    LookAtSources,
    /// End at once; nothing more is committed.
    Abort,
    /// End at once as if the thread had died; for tests of recovery.
    Kill,
}

/// How a slot ended.
#[derive(Debug)]
pub(crate) enum SlotEnd {
    /// All its output is durable.
    Finished,
    /// As commanded.
    Aborted,
    /// As commanded; is restarted.
    Killed,
    /// The run must end.
    Failed(RunError),
    /// Something panicked; what it was, where that is known.
    Panicked {
        text: String,
        stage: Option<String>,
        operator: Option<String>,
        batch: Option<arrow_array::RecordBatch>,
    },
}

/// Everything that a slot's thread needs.
pub(crate) struct SlotStart {
    pub(crate) plan: SlotPlan,
    pub(crate) channels: Arc<Vec<Channel>>,
    pub(crate) incarnation: u32,
    /// Restart points by instance: all epochs before it are durable behind the instance.
    pub(crate) resume_at: Vec<Epoch>,
    pub(crate) commands: Receiver<Command>,
    pub(crate) waker: Arc<Waker>,
    /// The same, now; by instance.
    pub(crate) durable: Arc<Vec<AtomicU64>>,
    /// Called when more is durable than before.
    pub(crate) on_durable: Box<dyn Fn() + Send>,
    pub(crate) shared: Arc<SlotShared>,
}

/// What all slots of a run share.
pub(crate) struct SlotShared {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) schedule: Schedule,
    pub(crate) checkpoint_every: u64,
    pub(crate) snapshots: Arc<SnapshotStore>,
    pub(crate) epochs: Arc<EpochLogs>,
    pub(crate) letters: Arc<Letters>,
    pub(crate) stop: Arc<AtomicBool>,
    /// Keep the whole epoch log, for a later replay.
    pub(crate) keep_epochs: bool,
}

/// Steps of timely between two looks at commands and descriptors.
const STEPS: usize = 64;
/// Token of the slot's own waker in epoll.
const OWN: u64 = u64::MAX;

struct Slot {
    context: Rc<SlotContext>,
    start: SlotStart,
    worker: Worker,
    epoll: OwnedFd,
    nodes: Vec<(Rc<RefCell<dyn Node>>, Activator)>,
    flags: Vec<(Arc<AtomicBool>, usize)>,
    /// Sources and ingresses, with the instance that they feed.
    takers: Vec<(usize, usize, Room)>,
    /// Queues of each instance: of its channels, and its own where it is a model.
    accounts: Vec<Vec<Account>>,
    sources: Vec<usize>,
    egresses: BTreeMap<ChannelId, Rc<RefCell<Egress>>>,
    /// Receiving ends and the node that takes from them.
    ingresses: BTreeMap<ChannelId, (Rc<RefCell<Ingress>>, usize)>,
    sinks: BTreeMap<usize, Rc<RefCell<SinkNode>>>,
    /// Tracks with the instance that they feed or belong to.
    tracks: Vec<(usize, Track)>,
    durable: Vec<Durable>,
}

/// Runs a slot to its end on the calling thread.
pub(crate) fn run(start: SlotStart) -> SlotEnd {
    let mut slot = match Slot::new(start) {
        Ok(slot) => slot,
        Err(error) => return SlotEnd::Failed(error),
    };
    let result = catch_unwind(AssertUnwindSafe(|| {
        slot.build()?;
        slot.event_loop()
    }));
    match result {
        Ok(Ok(end)) => end,
        Ok(Err(error)) => SlotEnd::Failed(error),
        Err(payload) => {
            let text = panic_text(payload.as_ref());
            let found = slot.nodes.iter().find_map(|(node, _)| node.try_borrow().ok()?.processing());
            let Some(Processing { stage, operator, batch }) = found else {
                return SlotEnd::Panicked { text, stage: None, operator: None, batch: None };
            };
            SlotEnd::Panicked { text, stage: Some(stage), operator: Some(operator), batch }
        }
    }
}

fn system(error: impl std::fmt::Display) -> RunError {
    RunError::System(format!("the slot's event loop: {error}"))
}

#[expect(
    clippy::disallowed_methods,
    reason = "timely wants an Instant to schedule by; it never becomes engine time"
)]
fn timely_worker() -> Worker {
    Worker::new(Config::default(), Allocator::Thread(Thread::default()), Some(std::time::Instant::now()))
}

impl Slot {
    fn new(start: SlotStart) -> Result<Self, RunError> {
        let shared = &start.shared;
        let context = Rc::new(SlotContext {
            clock: Arc::clone(&shared.clock),
            checkpoint_every: shared.checkpoint_every.max(1),
            snapshots: Arc::clone(&shared.snapshots),
            epochs: Arc::clone(&shared.epochs),
            letters: Arc::clone(&shared.letters),
            budget: start.plan.byte_budget.max(1),
            ahead: Cell::new(false),
            deadlines: RefCell::new(BTreeSet::new()),
            failure: RefCell::new(None),
        });
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system)?;
        // Edge-triggered everywhere: the descriptor of a link that was replaced may live on in its peer.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, start.waker.as_fd(), epoll::EventData::new_u64(OWN), flags).map_err(system)?;
        shared.clock.on_jump(&start.waker);
        let durable = start.resume_at.iter().map(|epoch| Rc::new(Cell::new(*epoch))).collect();
        Ok(Self {
            context,
            start,
            worker: timely_worker(),
            epoll,
            nodes: Vec::new(),
            flags: Vec::new(),
            takers: Vec::new(),
            accounts: Vec::new(),
            sources: Vec::new(),
            egresses: BTreeMap::new(),
            ingresses: BTreeMap::new(),
            sinks: BTreeMap::new(),
            tracks: Vec::new(),
            durable,
        })
    }

    fn notifier(&mut self, node: usize) -> Notifier {
        let flag = Arc::new(AtomicBool::new(false));
        self.flags.push((Arc::clone(&flag), node));
        Notifier { flag, waker: Arc::clone(&self.start.waker) }
    }

    fn build(&mut self) -> Result<(), RunError> {
        let mut worker = std::mem::replace(&mut self.worker, timely_worker());
        let built = worker.dataflow(|scope: Scope<'_, Epoch>| self.build_in(scope));
        self.worker = worker;
        self.share_accounts();
        built
    }

    fn build_in<'scope>(&mut self, scope: Scope<'scope, Epoch>) -> Result<(), RunError> {
        let instances = self.start.plan.instances.clone();
        let mut built: Vec<(Rowstream<'scope>, Track)> = Vec::with_capacity(instances.len());
        self.accounts = vec![Vec::new(); instances.len()];
        for (at, instance) in instances.into_iter().enumerate() {
            let resume_at = self.durable[at].get();
            let mut inputs = Vec::new();
            let mut tracks = Vec::new();
            let mut freshness = Freshness::Block;
            for (number, port) in instance.ports.iter().enumerate() {
                for (from, selector, policy) in &port.local {
                    let (stream, track) = &built[*from];
                    inputs.push(Input { stream: stream.clone(), port: number, selector: selector.clone() });
                    tracks.push(track.clone());
                    freshness = *policy;
                }
                if !port.remote.is_empty() {
                    let (stream, track) = self.build_ingress(scope, &instance, port, at);
                    inputs.push(Input { stream, port: number, selector: Selector::All });
                    tracks.push(track);
                    freshness = port.remote[0].1;
                }
            }
            let input = Track::meet(tracks);
            let name = instance.context.instance.clone();
            let index = self.nodes.len();
            let (node, output) = self.build_node(&instance, input, freshness, index, at)?;
            let (stream, activator) = install(scope, &name, inputs, resume_at, Rc::clone(&node));
            self.nodes.push((node, activator));
            for out in &instance.outputs {
                let channel = &self.start.channels[out.id];
                let limit = drop_limit(self.start.plan.byte_budget);
                let account = Account::default();
                let egress = Rc::new(RefCell::new(Egress::new(
                    Rc::clone(&self.context),
                    Arc::clone(&channel.metrics),
                    channel.name.clone(),
                    output.clone(),
                    account.clone(),
                    self.start.incarnation,
                    FreshnessQueue::new(out.freshness, limit),
                    resume_at,
                )));
                let node: Rc<RefCell<dyn Node>> = Rc::new(RefCell::new(EgressNode(Rc::clone(&egress))));
                let input = Input { stream: stream.clone(), port: 0, selector: out.selector.clone() };
                let (_, activator) = install(scope, &channel.name, vec![input], resume_at, Rc::clone(&node));
                self.nodes.push((node, activator));
                self.egresses.insert(out.id, egress);
                self.accounts[at].push(account);
            }
            if let Track::Own(_) = &output {
                self.tracks.push((at, output.clone()));
            }
            built.push((stream, output));
        }
        Ok(())
    }

    fn build_ingress<'scope>(
        &mut self,
        scope: Scope<'scope, Epoch>,
        instance: &InstancePlan,
        port: &crate::graph::Port,
        at: usize,
    ) -> (Rowstream<'scope>, Track) {
        let index = self.nodes.len();
        let room = Room::default();
        let mut tracks = Vec::new();
        let mut channels = Vec::new();
        for (id, _) in &port.remote {
            let channel = &self.start.channels[*id];
            let track = Track::own();
            let ingress = Rc::new(RefCell::new(Ingress::new(
                Rc::clone(&self.context),
                Arc::clone(&channel.metrics),
                channel.name.clone(),
                track.clone(),
                Rc::clone(&self.durable[at]),
            )));
            self.ingresses.insert(*id, (Rc::clone(&ingress), index));
            self.tracks.push((at, track.clone()));
            tracks.push(track);
            channels.push(ingress);
        }
        let node: Rc<RefCell<dyn Node>> =
            Rc::new(RefCell::new(IngressNode::new(Rc::clone(&self.context), channels, room.clone(), index)));
        let name = format!("into {}", instance.context.instance);
        let (stream, activator) = install(scope, &name, Vec::new(), 0, Rc::clone(&node));
        self.nodes.push((node, activator));
        self.takers.push((index, at, room));
        (stream, Track::meet(tracks))
    }

    fn build_node(
        &mut self,
        instance: &InstancePlan,
        input: Track,
        freshness: Freshness,
        index: usize,
        at: usize,
    ) -> Result<(Rc<RefCell<dyn Node>>, Track), RunError> {
        let durable = Rc::clone(&self.durable[at]);
        let slot = Rc::clone(&self.context);
        let stage = instance.context.clone();
        let failed = |error: tidemill_operators::api::OperatorError| RunError::Operator {
            operator: instance.context.operator.clone(),
            text: error.message,
        };
        let other_kind = || RunError::Plan(format!("stage '{}' made another kind of operator", stage.stage));
        let shared = Arc::clone(&self.start.shared);
        Ok(match &instance.work {
            Work::Source { bound, number, classes, selector, replay } => {
                let track = Track::own();
                let notifier = self.notifier(index);
                let room = Room::default();
                self.takers.push((index, at, room.clone()));
                self.sources.push(index);
                let schedule = Schedule { rate: bound.rate_per_second, ..shared.schedule.clone() };
                let settings = SourceSettings {
                    number: *number,
                    bound: bound.clone(),
                    schedule,
                    classes: classes.clone(),
                    selector: selector.clone(),
                    lead: 2 * shared.checkpoint_every.max(1),
                    replay: replay.clone(),
                };
                let node = SourceNode::new(
                    slot,
                    stage,
                    settings,
                    track.clone(),
                    notifier,
                    Arc::clone(&shared.stop),
                    durable,
                    room,
                    index,
                );
                (Rc::new(RefCell::new(node)), track)
            }
            Work::Stateless(make) => {
                let Instance::Stateless(operator) = make().map_err(failed)? else { return Err(other_kind()) };
                (Rc::new(RefCell::new(StatelessNode { slot, stage, operator, processing: None })), input)
            }
            Work::Stateful(make) => {
                let Instance::Stateful(mut operator) = make().map_err(failed)? else {
                    return Err(other_kind());
                };
                let done = durable.get();
                if let Some(state) = shared.snapshots.at(&stage.instance, done) {
                    operator.restore(&state).map_err(failed)?;
                } else if done > 0 {
                    let text = format!("no snapshot of '{}' for epoch {done}", stage.instance);
                    return Err(RunError::System(text));
                }
                let output = Track::own();
                let node =
                    StatefulNode::new(slot, stage, operator, input, output.clone(), done).map_err(failed)?;
                (Rc::new(RefCell::new(node)), output)
            }
            Work::Inference { executor, batching } => {
                let generation = self.start.incarnation;
                let account = Account::default();
                self.accounts[at].push(account.clone());
                executor.attach(self.notifier(index), generation);
                let queue = FreshnessQueue::new(freshness, drop_limit(self.start.plan.byte_budget));
                let node = InferenceNode::new(
                    slot,
                    stage,
                    Arc::clone(executor),
                    generation,
                    *batching,
                    queue,
                    account,
                    index,
                );
                (Rc::new(RefCell::new(node)), input)
            }
            Work::Sink { cell, metrics, truth } => {
                let (cell, metrics) = (Arc::clone(cell), Arc::clone(metrics));
                let node = Rc::new(RefCell::new(SinkNode::new(slot, stage, cell, metrics, truth.clone())));
                self.sinks.insert(at, Rc::clone(&node));
                (node, input)
            }
        })
    }

    fn event_loop(&mut self) -> Result<SlotEnd, RunError> {
        loop {
            while let Ok(command) = self.start.commands.try_recv() {
                if let Some(end) = self.obey(command)? {
                    return Ok(end);
                }
            }
            self.activate_due();
            let idle = self.step();
            if let Some(error) = self.context.failure.borrow_mut().take() {
                return Err(error);
            }
            for egress in self.egresses.values() {
                egress.borrow_mut().pump();
            }
            let progressed = self.advance_durable()?;
            if self.durable.iter().all(|durable| durable.get() == CLOSED) {
                return Ok(SlotEnd::Finished);
            }
            if self.wake_takers(progressed) {
                continue;
            }
            if !idle {
                self.wait(Some(Duration::ZERO))?;
                continue;
            }
            let next = self.context.deadlines.borrow().first().map(|next| next.0);
            self.wait(next.and_then(|deadline| self.context.clock.real_time_until(deadline)))?;
        }
    }

    /// Schedules the sources and ingresses that stopped and may go on; `true` if there are any.
    fn wake_takers(&self, progressed: bool) -> bool {
        let mut any = false;
        let ahead = progressed && self.context.ahead.replace(false);
        for (node, _, room) in &self.takers {
            let fed = room.starved.get() && room.used() < (self.context.budget / 2).max(1);
            if fed || ahead && self.sources.contains(node) {
                room.starved.set(false);
                self.nodes[*node].1.activate();
                any = true;
            }
        }
        any
    }

    /// Tells every taker which queues its records can reach in this slot.
    fn share_accounts(&self) {
        let instances = &self.start.plan.instances;
        let mut reach: Vec<Vec<usize>> = vec![Vec::new(); instances.len()];
        // Backwards, so that what comes behind an instance is known before it.
        for at in (0..instances.len()).rev() {
            let mut reached = vec![at];
            for next in at + 1..instances.len() {
                if instances[next].ports.iter().any(|port| port.local.iter().any(|local| local.0 == at)) {
                    reached.extend(&reach[next]);
                }
            }
            reached.sort_unstable();
            reached.dedup();
            reach[at] = reached;
        }
        for (_, at, room) in &self.takers {
            let accounts = reach[*at].iter().flat_map(|instance| self.accounts[*instance].iter().cloned());
            *room.accounts.borrow_mut() = accounts.collect();
        }
    }

    /// Steps timely; `true` when it has nothing more to do.
    fn step(&mut self) -> bool {
        for _ in 0..STEPS {
            if self.worker.activations().borrow().empty_for().is_none() {
                return true;
            }
            self.worker.step();
            if self.context.failure.borrow().is_some() {
                return true;
            }
        }
        false
    }

    fn activate_due(&mut self) {
        for (flag, node) in &self.flags {
            if flag.swap(false, Ordering::AcqRel) {
                self.nodes[*node].1.activate();
            }
        }
        let mut deadlines = self.context.deadlines.borrow_mut();
        let Some(first) = deadlines.first().map(|next| next.0) else { return };
        let now: Nanoseconds = self.context.clock.now();
        if first > now {
            return;
        }
        while let Some((deadline, node)) = deadlines.first().copied() {
            if deadline > now {
                break;
            }
            deadlines.pop_first();
            self.nodes[node].1.activate();
        }
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<(), RunError> {
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: i64::from(timeout.subsec_nanos()),
        });
        let mut events: [std::mem::MaybeUninit<epoll::Event>; 32] = [std::mem::MaybeUninit::uninit(); 32];
        let events = match epoll::wait(&self.epoll, &mut events, timeout.as_ref()) {
            Ok((events, _)) => events,
            Err(rustix::io::Errno::INTR) => return Ok(()),
            Err(error) => return Err(system(error)),
        };
        for event in events {
            let token = event.data.u64();
            if token == OWN {
                self.start.waker.clear();
                continue;
            }
            let id = (token / 2) as ChannelId;
            if token % 2 == 0 {
                if let Some(egress) = self.egresses.get(&id) {
                    egress.borrow().link().map(LinkSender::clear);
                }
            } else if let Some((ingress, node)) = self.ingresses.get(&id) {
                ingress.borrow().link().map(LinkReceiver::clear);
                self.nodes[*node].1.activate();
            }
        }
        Ok(())
    }

    fn obey(&mut self, command: Command) -> Result<Option<SlotEnd>, RunError> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        match command {
            Command::AttachSender(id, link) => {
                let token = epoll::EventData::new_u64(id as u64 * 2);
                epoll::add(&self.epoll, link.descriptor(), token, flags).map_err(system)?;
                if let Some(egress) = self.egresses.get(&id) {
                    egress.borrow_mut().attach(link);
                }
            }
            Command::AttachReceiver(id, link, incarnation) => {
                let token = epoll::EventData::new_u64(id as u64 * 2 + 1);
                epoll::add(&self.epoll, link.descriptor(), token, flags).map_err(system)?;
                if let Some((ingress, node)) = self.ingresses.get(&id) {
                    ingress.borrow_mut().attach(link, incarnation);
                    self.nodes[*node].1.activate();
                }
            }
            Command::ReceiverFinished(id) => {
                if let Some(egress) = self.egresses.get(&id) {
                    egress.borrow_mut().receiver_finished();
                }
            }
            Command::LookAtSources => self.sources.iter().for_each(|node| self.nodes[*node].1.activate()),
            Command::Abort => return Ok(Some(SlotEnd::Aborted)),
            Command::Kill => return Ok(Some(SlotEnd::Killed)),
        }
        Ok(None)
    }

    /// Finds out how much is durable behind each stage and passes it on.
    fn advance_durable(&mut self) -> Result<bool, RunError> {
        let every = self.context.checkpoint_every;
        let mut progressed = false;
        let instances = &self.start.plan.instances;
        // Backwards, so that what comes behind an instance is known before it.
        for at in (0..instances.len()).rev() {
            let instance = &instances[at];
            let channels = instance.outputs.iter().filter_map(|out| self.egresses.get(&out.id));
            let sent = channels.map(|egress| egress.borrow().durable());
            let written = self.sinks.get(&at).map(|sink| sink.borrow().committed());
            let behind = (at + 1..instances.len())
                .filter(|next| instances[*next].ports.iter().any(|port| port.local.iter().any(|l| l.0 == at)))
                .map(|next| self.durable[next].get());
            let durable = match sent.chain(written).chain(behind).min().unwrap_or(CLOSED) {
                CLOSED => CLOSED,
                // A sink that commits more often than at checkpoints does not make others restartable there.
                epoch => epoch / every * every,
            };
            if durable <= self.durable[at].get() {
                continue;
            }
            progressed = true;
            self.durable[at].set(durable);
            self.start.durable[at].store(durable, Ordering::Release);
            match instance.work {
                Work::Stateful(_) => self.context.snapshots.prune(&instance.context.instance, durable),
                Work::Source { .. } if !self.start.shared.keep_epochs => {
                    self.context.epochs.prune(&instance.context.instance, durable);
                }
                _ => {}
            }
        }
        if progressed {
            self.ingresses.values().for_each(|(ingress, _)| ingress.borrow_mut().tell_durable());
            self.tracks.iter().for_each(|(at, track)| track.prune(self.durable[*at].get()));
            (self.start.on_durable)();
        }
        Ok(progressed)
    }
}
