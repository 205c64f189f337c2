//! A slot: one thread with one single-threaded timely worker, an epoll loop around it, and nothing that polls.
mod build;

use crate::channel::ChannelId;
use crate::clock::{Clock, Nanoseconds};
use crate::context::{Account, Backpressure, Durable, SlotContext};
use crate::cut::{Cuts, EpochRanges, Hold};
use crate::failure::{RunError, SlotEnd, panic_text};
use crate::faults::{Faults, Killed, Point, SlotFaults};
use crate::frame::{CLOSED, Epoch};
use crate::host::{Channel, SlotPlan, Work};
use crate::letters::Letters;
use crate::link::{LinkReceiver, LinkSender};
use crate::node::egress::Egress;
use crate::node::ingress::Ingress;
use crate::node::sink::SinkNode;
use crate::node::source::{ReaderPool, Schedule};
use crate::node::{Node, Processing};
use crate::processor::ThreadMeter;
use crate::samples::Sampler;
use crate::store::{EpochLogs, SnapshotStore};
use crate::traces::Tracer;
use crate::wake::Waker;
use crate::watermark::Track;
use crossbeam_channel::Receiver;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;
use tidemill_link::remote::Role;
use timely::communication::Allocator;
use timely::communication::allocator::Thread;
use timely::scheduling::Activator;
use timely::worker::{Config, Worker};

/// A command of the run to a slot.
pub(crate) enum Command {
    /// The sending end of a channel has a new link, to a receiver of this incarnation.
    AttachSender(ChannelId, Box<dyn LinkSender>, u32),
    /// The receiving end of a channel has a new link, from a sender of this incarnation.
    AttachReceiver(ChannelId, Box<dyn LinkReceiver>, u32),
    /// The link of an end of a channel is to be dropped: another one follows.
    Detach(ChannelId, Role),
    /// The receiver of a channel has finished: everything is durable there.
    ReceiverFinished(ChannelId),
    /// Check the stop flag.
    LookAtSources,
    /// End at once; nothing more is committed.
    Abort,
}

/// Start parameters of a slot's thread.
pub(crate) struct SlotStart {
    pub(crate) plan: SlotPlan,
    pub(crate) channels: Arc<Vec<Channel>>,
    pub(crate) incarnation: u32,
    /// Restart points by instance: all earlier epochs are durable downstream of the instance.
    pub(crate) resume_at: Vec<Epoch>,
    pub(crate) commands: Receiver<Command>,
    pub(crate) waker: Arc<Waker>,
    /// Current durable epochs by instance.
    pub(crate) durable: Arc<Vec<AtomicU64>>,
    /// Called when the durable epoch advances.
    pub(crate) on_durable: Box<dyn Fn() + Send>,
    pub(crate) shared: Arc<SlotShared>,
}

/// Data shared by all slots of a run.
pub(crate) struct SlotShared {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) schedule: Schedule,
    /// Start of the schedules, engine time.
    pub(crate) begins: AtomicI64,
    pub(crate) checkpoint_every: u64,
    pub(crate) snapshots: Arc<SnapshotStore>,
    pub(crate) epochs: Arc<EpochLogs>,
    pub(crate) letters: Arc<Letters>,
    pub(crate) sampler: Option<Arc<Sampler>>,
    pub(crate) tracer: Option<Arc<Tracer>>,
    pub(crate) stop: Arc<AtomicBool>,
    /// Reads the files of all sources.
    pub(crate) readers: Arc<ReaderPool>,
    /// Whether to keep the whole epoch log, for a later replay.
    pub(crate) keep_epochs: bool,
    /// Whether any slot may be restarted, not only one whose operator requires it.
    pub(crate) recoverable: bool,
    /// Kills slots in tests.
    pub(crate) faults: Option<Arc<dyn Faults>>,
    /// Sent data of this epoch and later is kept, even if durable: other hosts restart there when they are lost.
    /// [`CLOSED`]: nothing is kept.
    pub(crate) kept: Arc<AtomicU64>,
    /// Allows the host to keep more while its edges are cut.
    pub(crate) cuts: Option<Arc<Cuts>>,
}

/// Steps of timely between two checks of commands and descriptors.
const STEPS: usize = 64;
/// Token of the slot's own waker in epoll.
const OWN: u64 = u64::MAX;

/// A node that stops when the queues are full: a source, an ingress or a stateful stage.
struct Producer {
    node: usize,
    /// The instance that it feeds.
    feeds: usize,
    backpressure: Backpressure,
    is_source: bool,
}

struct Slot {
    context: Rc<SlotContext>,
    start: SlotStart,
    worker: Worker,
    epoll: OwnedFd,
    nodes: Vec<(Rc<RefCell<dyn Node>>, Activator)>,
    flags: Vec<(Arc<AtomicBool>, usize)>,
    producers: Vec<Producer>,
    /// The receiving instances of this slot, by instance.
    behind: Vec<Vec<usize>>,
    /// Queues of each instance: of its channels, and its own if it is a model.
    accounts: Vec<Vec<Account>>,
    sources: Vec<usize>,
    egresses: BTreeMap<ChannelId, Rc<RefCell<Egress>>>,
    /// Receiving ends and the node that takes from them.
    ingresses: BTreeMap<ChannelId, (Rc<RefCell<Ingress>>, usize)>,
    sinks: BTreeMap<usize, Rc<RefCell<SinkNode>>>,
    /// Progress of the states of stateful stages, by instance.
    restorable: BTreeMap<usize, Durable>,
    /// Tracks with the instance that they feed or belong to.
    tracks: Vec<(usize, Track)>,
    durable: Vec<Durable>,
    /// By instance: hold of downstream stages because an edge is cut.
    holds: Vec<Rc<Cell<Hold>>>,
    /// By instance: epochs that others answer, as reported by its senders.
    elsewhere: Vec<Rc<RefCell<EpochRanges>>>,
    /// Durable epochs downstream of the slot at the last check; see [`Slot::durable_behind`].
    seen: Vec<Epoch>,
    /// Dropped last, so that the end of everything else counts.
    processor: ThreadMeter,
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
        Err(payload) if payload.is::<Killed>() => SlotEnd::Killed,
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
        let processor = ThreadMeter::begin(Arc::clone(&start.plan.processor));
        let shared = &start.shared;
        let context = Rc::new(SlotContext {
            clock: Arc::clone(&shared.clock),
            checkpoint_every: shared.checkpoint_every.max(1),
            snapshots: Arc::clone(&shared.snapshots),
            epochs: Arc::clone(&shared.epochs),
            letters: Arc::clone(&shared.letters),
            sampler: shared.sampler.clone(),
            tracer: shared.tracer.clone(),
            faults: shared.faults.as_ref().map(|faults| SlotFaults {
                faults: Arc::clone(faults),
                slot: start.plan.name.clone(),
                incarnation: start.incarnation,
            }),
            budget: start.plan.byte_budget.max(1),
            kept: Arc::clone(&shared.kept),
            reads_stream: start.plan.reads_stream(),
            ahead: Cell::new(false),
            deadlines: RefCell::new(BTreeSet::new()),
            end: RefCell::new(None),
        });
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system)?;
        // Edge-triggered everywhere: the descriptor of a replaced link may stay open in its peer.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, start.waker.as_fd(), epoll::EventData::new_u64(OWN), flags).map_err(system)?;
        shared.clock.on_jump(&start.waker);
        let durable = start.resume_at.iter().map(|epoch| Rc::new(Cell::new(*epoch))).collect();
        let behind = start.plan.behind();
        let holds = behind.iter().map(|_| Rc::default()).collect();
        let elsewhere = behind.iter().map(|_| Rc::default()).collect();
        Ok(Self {
            context,
            start,
            worker: timely_worker(),
            epoll,
            nodes: Vec::new(),
            flags: Vec::new(),
            producers: Vec::new(),
            behind,
            accounts: Vec::new(),
            sources: Vec::new(),
            egresses: BTreeMap::new(),
            ingresses: BTreeMap::new(),
            sinks: BTreeMap::new(),
            restorable: BTreeMap::new(),
            tracks: Vec::new(),
            durable,
            holds,
            elsewhere,
            seen: Vec::new(),
            processor,
        })
    }

    fn event_loop(&mut self) -> Result<SlotEnd, RunError> {
        loop {
            while let Ok(command) = self.start.commands.try_recv() {
                if let Some(end) = self.execute(command)? {
                    return Ok(end);
                }
            }
            self.activate_due();
            let idle = self.step();
            if let Some(end) = self.context.end.borrow_mut().take() {
                return Ok(end);
            }
            for egress in self.egresses.values() {
                egress.borrow_mut().pump();
            }
            if let Some(end) = self.context.end.borrow_mut().take() {
                return Ok(end);
            }
            let may_be_ahead = self.advance_holds();
            let progressed = self.advance_durable()?;
            let is_waited_for = |egress: &Rc<RefCell<Egress>>| egress.borrow().is_waited_for();
            if self.durable.iter().all(|durable| durable.get() == CLOSED)
                && !self.egresses.values().any(is_waited_for)
            {
                self.context.reach(Point::Finished);
                let complete = |(id, egress): (&ChannelId, &Rc<RefCell<Egress>>)| {
                    Some((*id, egress.borrow().complete_at()?))
                };
                return Ok(SlotEnd::Finished { heard: self.egresses.iter().filter_map(complete).collect() });
            }
            self.context.reach(Point::Turn);
            if self.wake_producers(progressed) || may_be_ahead {
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

    /// Schedules producers that backpressure had stopped and that may continue; `true` if there are any.
    fn wake_producers(&self, progressed: bool) -> bool {
        let mut any = false;
        let ahead = progressed && self.context.ahead.replace(false);
        for producer in &self.producers {
            let fed = producer.backpressure.is_ready(self.context.budget);
            if fed || ahead && producer.is_source {
                producer.backpressure.stopped.set(false);
                self.nodes[producer.node].1.activate();
                any = true;
            }
        }
        any
    }

    /// Steps timely; `true` when it has nothing more to do.
    fn step(&mut self) -> bool {
        for _ in 0..STEPS {
            if self.worker.activations().borrow().empty_for().is_none() {
                return true;
            }
            self.worker.step();
            if self.context.end.borrow().is_some() {
                return true;
            }
        }
        false
    }

    fn activate_due(&mut self) {
        for (flag, node) in &self.flags {
            // Few of many sources have news: reading the flag is cheaper than taking it.
            if flag.load(Ordering::Acquire) && flag.swap(false, Ordering::AcqRel) {
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
        self.processor.look();
        let mut timeout = timeout.map(|timeout| Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: i64::from(timeout.subsec_nanos()),
        });
        // `epoll_wait` rounds up to milliseconds, by which every record of a paced source would be late. `ppoll` does not,
        // and works on kernels before 5.11, which have no `epoll_pwait2`.
        if let Some(until) = timeout.filter(|until| until.tv_sec > 0 || until.tv_nsec > 0) {
            let mut descriptor = [PollFd::new(&self.epoll, PollFlags::IN)];
            match poll(&mut descriptor, Some(&until)) {
                Ok(_) => timeout = Some(Timespec { tv_sec: 0, tv_nsec: 0 }),
                Err(rustix::io::Errno::INTR) => return Ok(()),
                Err(error) => return Err(system(error)),
            }
        }
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
                ingress.borrow_mut().look_when_complete();
                self.nodes[*node].1.activate();
            }
        }
        Ok(())
    }

    fn execute(&mut self, command: Command) -> Result<Option<SlotEnd>, RunError> {
        let flags = |writable: bool| match writable {
            true => epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET,
            false => epoll::EventFlags::IN | epoll::EventFlags::ET,
        };
        match command {
            Command::AttachSender(id, link, incarnation) => {
                let token = epoll::EventData::new_u64(id as u64 * 2);
                epoll::add(&self.epoll, link.descriptor(), token, flags(link.wants_writable()))
                    .map_err(system)?;
                if let Some(egress) = self.egresses.get(&id) {
                    egress.borrow_mut().attach(link, incarnation);
                }
            }
            Command::AttachReceiver(id, link, incarnation) => {
                let token = epoll::EventData::new_u64(id as u64 * 2 + 1);
                epoll::add(&self.epoll, link.descriptor(), token, flags(link.wants_writable()))
                    .map_err(system)?;
                if let Some((ingress, node)) = self.ingresses.get(&id) {
                    ingress.borrow_mut().attach(link, incarnation);
                    self.nodes[*node].1.activate();
                }
            }
            Command::Detach(id, Role::Sender) => {
                if let Some(egress) = self.egresses.get(&id) {
                    egress.borrow_mut().detach();
                }
            }
            Command::Detach(id, Role::Receiver) => {
                if let Some((ingress, _)) = self.ingresses.get(&id) {
                    ingress.borrow_mut().detach();
                }
            }
            Command::ReceiverFinished(id) => {
                if let Some(egress) = self.egresses.get(&id) {
                    egress.borrow_mut().receiver_finished();
                }
            }
            Command::LookAtSources => self.sources.iter().for_each(|node| self.nodes[*node].1.activate()),
            Command::Abort => return Ok(Some(SlotEnd::Aborted)),
        }
        Ok(None)
    }

    /// Reports to the stages before cut channels that they may run ahead; `true` if that has changed, and sources are
    /// scheduled.
    fn advance_holds(&mut self) -> bool {
        if self.start.shared.cuts.is_none() {
            return false;
        }
        let instances = &self.start.plan.instances;
        let mut has_changed = false;
        // Backwards, so that downstream instances are known first.
        for at in (0..instances.len()).rev() {
            let channels = instances[at].outputs.iter().filter_map(|out| self.egresses.get(&out.id));
            let sent = channels.map(|egress| egress.borrow().hold());
            let behind = self.behind[at].iter().map(|next| self.holds[*next].get());
            let hold = sent.chain(behind).max().unwrap_or_default();
            has_changed |= self.holds[at].replace(hold) != hold;
        }
        if has_changed {
            self.ingresses.values().for_each(|(ingress, _)| ingress.borrow_mut().announce_hold());
            self.sources.iter().for_each(|node| self.nodes[*node].1.activate());
        }
        has_changed
    }

    /// Durable epochs of the channels, sinks and states, which determine all upstream stages.
    fn durable_behind(&self) -> impl Iterator<Item = Epoch> {
        let sent = self.egresses.values().map(|egress| egress.borrow().durable());
        let written = self.sinks.values().map(|sink| sink.borrow().durable());
        sent.chain(written).chain(self.restorable.values().map(|epoch| epoch.get()))
    }

    /// Computes the durable epoch downstream of each stage and passes it on.
    fn advance_durable(&mut self) -> Result<bool, RunError> {
        if !self.seen.is_empty() && self.durable_behind().eq(self.seen.iter().copied()) {
            return Ok(false);
        }
        self.seen = self.durable_behind().collect();
        let every = self.context.checkpoint_every;
        let mut progressed = false;
        let instances = &self.start.plan.instances;
        // Backwards, so that downstream instances are known first.
        for at in (0..instances.len()).rev() {
            let instance = &instances[at];
            let channels = instance.outputs.iter().filter_map(|out| self.egresses.get(&out.id));
            let sent = channels.map(|egress| egress.borrow().durable());
            let written = self.sinks.get(&at).map(|sink| sink.borrow().durable());
            let behind = self.behind[at].iter().map(|next| self.durable[*next].get());
            let durable = match sent.chain(written).chain(behind).min().unwrap_or(CLOSED) {
                CLOSED => CLOSED,
                epoch => {
                    // Output of a former incarnation may be durable downstream of a state that has not progressed as far
                    // again.
                    let own = self.restorable.get(&at).map_or(CLOSED, |restorable| restorable.get());
                    // A sink that commits more often than at checkpoints does not make others restartable there.
                    epoch.min(own) / every * every
                }
            };
            if durable <= self.durable[at].get() {
                continue;
            }
            progressed = true;
            self.durable[at].set(durable);
            self.start.durable[at].store(durable, Ordering::Release);
            instance.context.suspects.prune(durable);
            // Another process restarts from the last checkpoint.
            let forgotten = durable.min(self.context.kept.load(Ordering::Acquire));
            self.elsewhere[at].borrow_mut().prune(forgotten);
            if let Some(stand_in) = &instance.stand_in {
                stand_in.prune(forgotten);
            }
            match &instance.work {
                Work::Stateful(..) => self.context.snapshots.prune(&instance.context.instance, durable),
                Work::Source { seat, .. } => {
                    if let Some(seat) = seat {
                        seat.durable(forgotten);
                    }
                    if !self.start.shared.keep_epochs {
                        self.context.epochs.prune(&instance.context.instance, durable);
                    }
                }
                _ => {}
            }
        }
        if progressed {
            // Report it to the run before upstream stages end because of it.
            (self.start.on_durable)();
            self.ingresses.values().for_each(|(ingress, _)| ingress.borrow_mut().announce_durable());
            let kept = self.context.kept.load(Ordering::Acquire);
            self.tracks.iter().for_each(|(at, track)| track.prune(self.durable[*at].get().min(kept)));
        }
        Ok(progressed)
    }
}
