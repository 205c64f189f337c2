//! Builds the dataflow of a slot: its stages, the channels into and out of it, and its backpressure.
use super::{Producer, Slot, timely_worker};
use crate::channel::Role;
use crate::context::{Account, Backpressure};
use crate::cut::unnoticed_epochs;
use crate::executor::Notifier;
use crate::failure::RunError;
use crate::faults::Point;
use crate::frame::Epoch;
use crate::freshness::FreshnessQueue;
use crate::graph::drop_limit;
use crate::host::{InstancePlan, Work};
use crate::node::egress::{Egress, EgressNode, Elsewhere};
use crate::node::inference::InferenceNode;
use crate::node::ingress::{Ingress, IngressNode};
use crate::node::ledger::{Ledger, Taker};
use crate::node::sink::SinkNode;
use crate::node::source::{Schedule, SourceNode, SourceSettings};
use crate::node::stand_in::{ANSWERS, StandInNode};
use crate::node::stateful::{self, StatefulNode};
use crate::node::stateless::StatelessNode;
use crate::node::{Input, Node, Outlet, Rowstream, install};
use crate::routing::Selector;
use crate::watermark::Track;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tidemill_operators::api::Instance;
use tidemill_spec::plan::Freshness;
use timely::dataflow::Scope;

/// The operator or sink that shares an instance's output among its stages, and its input.
type SharedBy = (String, usize);

impl InstancePlan {
    /// Returns the sharing operator at a port; `None` if a stand-in repeats the data.
    fn shared_by(&self, port: usize) -> Option<SharedBy> {
        self.stand_in.is_none().then(|| (self.context.operator.clone(), port))
    }
}

/// Ledger of an instance's output to one operator, and the number of takers so far.
type Counted = (Rc<RefCell<Ledger>>, usize);

/// Ledgers of the output of the slot's instances, for each operator whose stages or partitions share it.
struct Ledgers(BTreeMap<(usize, SharedBy), Counted>);

impl Ledgers {
    fn of(instances: &[InstancePlan]) -> Self {
        let mut takers: BTreeMap<(usize, SharedBy), (usize, bool)> = BTreeMap::new();
        let mut add = |from: usize, by: Option<SharedBy>, selector: &Selector| {
            let Some(by) = by else { return };
            let (number, is_divided) = takers.entry((from, by)).or_default();
            *number += 1;
            *is_divided |= *selector != Selector::All || *number > 1;
        };
        for (at, instance) in instances.iter().enumerate() {
            for (number, port) in instance.ports.iter().enumerate() {
                port.local
                    .iter()
                    .for_each(|(from, selector, _)| add(*from, instance.shared_by(number), selector));
            }
            instance.outputs.iter().for_each(|out| add(at, out.shared_by.clone(), &out.selector));
        }
        let divided = takers.into_iter().filter(|(_, (_, is_divided))| *is_divided);
        let ledger = |((from, by), (number, _)): ((usize, SharedBy), (usize, bool))| {
            let edge = format!("{}->{}", instances[from].context.instance, by.0);
            ((from, by), (Rc::new(RefCell::new(Ledger::new(edge, number))), 0))
        };
        Self(divided.map(ledger).collect())
    }

    /// Returns the next taker of an instance's output.
    fn taker(&mut self, from: usize, by: SharedBy) -> Option<Taker> {
        let (ledger, next) = self.0.get_mut(&(from, by))?;
        *next += 1;
        Some(Taker { ledger: Rc::clone(ledger), number: *next - 1 })
    }

    /// Returns the ledgers of an instance's output.
    fn from(&self, instance: usize) -> Vec<Rc<RefCell<Ledger>>> {
        let own = self.0.iter().filter(|((from, _), _)| *from == instance);
        own.map(|(_, (ledger, _))| Rc::clone(ledger)).collect()
    }
}

impl Slot {
    fn notifier(&mut self, node: usize) -> Notifier {
        let flag = Arc::new(AtomicBool::new(false));
        self.flags.push((Arc::clone(&flag), node));
        Notifier { flag, waker: Arc::clone(&self.start.waker) }
    }

    pub(super) fn build(&mut self) -> Result<(), RunError> {
        let mut worker = std::mem::replace(&mut self.worker, timely_worker());
        let built = worker.dataflow(|scope: Scope<'_, Epoch>| self.build_in(scope));
        self.worker = worker;
        self.share_accounts();
        built
    }

    fn build_in<'scope>(&mut self, scope: Scope<'scope, Epoch>) -> Result<(), RunError> {
        let instances = self.start.plan.instances.clone();
        let mut built: Vec<(Rowstream<'scope>, Track)> = Vec::with_capacity(instances.len());
        let mut ledgers = Ledgers::of(&instances);
        self.accounts = vec![Vec::new(); instances.len()];
        for (at, instance) in instances.into_iter().enumerate() {
            let resume_at = self.durable[at].get();
            let mut inputs = Vec::new();
            let mut tracks = Vec::new();
            let mut freshness = Freshness::Block;
            for (number, port) in instance.ports.iter().enumerate() {
                for (from, selector, policy) in &port.local {
                    let (stream, track) = &built[*from];
                    let shared_by = instance.shared_by(number);
                    inputs.push(Input {
                        stream: stream.clone(),
                        port: number,
                        selector: selector.clone(),
                        taker: shared_by.and_then(|by| ledgers.taker(*from, by)),
                    });
                    tracks.push(track.clone());
                    freshness = *policy;
                }
                if !port.remote.is_empty() {
                    let (stream, track) = self.build_ingress(scope, &instance, port, at);
                    inputs.push(Input { stream, port: number, selector: Selector::All, taker: None });
                    // Answers have the event times of the records, but may take a long time to arrive.
                    if instance.stand_in.is_none() || number != ANSWERS {
                        tracks.push(track);
                    }
                    freshness = port.remote[0].1;
                }
            }
            let input = Track::meet(tracks);
            let name = instance.context.instance.clone();
            let index = self.nodes.len();
            let (node, output) = self.build_node(&instance, input, freshness, index, at)?;
            let outlet =
                Outlet { ledgers: ledgers.from(at), metrics: Some(Arc::clone(&instance.context.metrics)) };
            let (stream, activator) =
                install(&self.context, scope, &name, inputs, resume_at, Rc::clone(&node), outlet);
            self.nodes.push((node, activator));
            for out in &instance.outputs {
                let channel = &self.start.channels[out.id];
                let limit = drop_limit(self.start.plan.byte_budget);
                let account = Account::default();
                let index = self.nodes.len();
                let elsewhere = match (channel.role, &channel.stand_in) {
                    (Role::Asks, Some(stand_in)) => Elsewhere::of(Arc::clone(stand_in), out.id),
                    (Role::Answers, _) => Elsewhere::Told(Rc::clone(&self.elsewhere[at])),
                    _ => Elsewhere::Nothing,
                };
                let egress = Rc::new(RefCell::new(Egress::new(
                    Rc::clone(&self.context),
                    Arc::clone(&channel.metrics),
                    channel.name.clone(),
                    output.clone(),
                    account.clone(),
                    self.start.incarnation,
                    FreshnessQueue::new(out.freshness, limit).with_keys(&self.start.plan.keyed),
                    resume_at,
                    (channel.when_cut.clone(), self.start.shared.cuts.clone()),
                    index,
                    elsewhere,
                )));
                let node: Rc<RefCell<dyn Node>> = Rc::new(RefCell::new(EgressNode(Rc::clone(&egress))));
                let input = Input {
                    stream: stream.clone(),
                    port: 0,
                    selector: out.selector.clone(),
                    taker: out.shared_by.clone().and_then(|by| ledgers.taker(at, by)),
                };
                let (name, inputs) = (&channel.name, vec![input]);
                let (_, activator) = install(
                    &self.context,
                    scope,
                    name,
                    inputs,
                    resume_at,
                    Rc::clone(&node),
                    Outlet::default(),
                );
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
        let backpressure = Backpressure::default();
        let mut tracks = Vec::new();
        let mut channels = Vec::new();
        for (id, _) in &port.remote {
            let channel = &self.start.channels[*id];
            let track = Track::own();
            let ingress = Rc::new(RefCell::new(Ingress::new(
                Rc::clone(&self.context),
                *id,
                Arc::clone(&channel.metrics),
                channel.name.clone(),
                track.clone(),
                Rc::clone(&self.durable[at]),
                Rc::clone(&self.holds[at]),
                (
                    Rc::clone(&self.elsewhere[at]),
                    channel.stand_in.clone().filter(|_| channel.role == Role::Answers),
                ),
            )));
            self.ingresses.insert(*id, (Rc::clone(&ingress), index));
            self.tracks.push((at, track.clone()));
            tracks.push(track);
            channels.push(ingress);
        }
        let node: Rc<RefCell<dyn Node>> = Rc::new(RefCell::new(IngressNode::new(
            Rc::clone(&self.context),
            channels,
            backpressure.clone(),
            index,
        )));
        let name = format!("into {}", instance.context.instance);
        let (stream, activator) =
            install(&self.context, scope, &name, Vec::new(), 0, Rc::clone(&node), Outlet::default());
        self.nodes.push((node, activator));
        self.producers.push(Producer { node: index, feeds: at, backpressure, is_source: false });
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
            Work::Source { bound, number, classes, selector, replay, seat } => {
                let track = Track::own();
                let notifier = self.notifier(index);
                let backpressure = Backpressure::default();
                self.producers.push(Producer {
                    node: index,
                    feeds: at,
                    backpressure: backpressure.clone(),
                    is_source: true,
                });
                self.sources.push(index);
                let start = shared.begins.load(std::sync::atomic::Ordering::Acquire);
                // Records of a live source come when they come; its rate is what planners count on.
                let rate = bound.rate_per_second.filter(|_| !bound.live);
                let base = shared.epochs.base(&stage.instance);
                let schedule = Schedule { rate, start, base, ..shared.schedule.clone() };
                backpressure.can_wait.set(!schedule.is_open_loop() && !bound.live);
                let mut lead = 2 * shared.checkpoint_every.max(1);
                if shared.cuts.as_ref().is_some_and(|cuts| cuts.is_held) && schedule.is_open_loop() {
                    lead += unnoticed_epochs(schedule.tick);
                }
                let settings = SourceSettings {
                    number: *number,
                    bound: (**bound).clone(),
                    schedule,
                    classes: classes.clone(),
                    selector: selector.clone(),
                    lead,
                    cuts: shared.cuts.clone(),
                    hold: Rc::clone(&self.holds[at]),
                    replay: replay.clone(),
                    readers: Arc::clone(&shared.readers),
                    seat: seat.clone(),
                };
                let node = SourceNode::new(
                    slot,
                    stage,
                    settings,
                    track.clone(),
                    notifier,
                    Arc::clone(&shared.stop),
                    durable,
                    backpressure,
                    index,
                );
                (Rc::new(RefCell::new(node)), track)
            }
            Work::Stateless(make) => {
                let Instance::Stateless(operator) = make().map_err(failed)? else { return Err(other_kind()) };
                (Rc::new(RefCell::new(StatelessNode { slot, stage, operator, processing: None })), input)
            }
            Work::Stateful(make, by_group) => {
                let Instance::Stateful(mut operator) = make().map_err(failed)? else {
                    return Err(other_kind());
                };
                let done = durable.get();
                let is_known = stateful::restore(operator.as_mut(), &shared.snapshots, &stage.instance, done)
                    .map_err(failed)?;
                if is_known {
                    slot.reach(Point::Restoring { stage: &stage.instance, epoch: done });
                } else if done > 0 {
                    let text = format!("no snapshot of '{}' for epoch {done}", stage.instance);
                    return Err(RunError::System(text));
                }
                let (output, backpressure) = (Track::own(), Backpressure::default());
                self.producers.push(Producer {
                    node: index,
                    feeds: at,
                    backpressure: backpressure.clone(),
                    is_source: false,
                });
                let is_recoverable = shared.recoverable || self.start.plan.may_restart();
                let node = StatefulNode::new(
                    slot,
                    stage,
                    (operator, by_group.clone()),
                    (input, output.clone()),
                    done,
                    backpressure,
                    index,
                    is_recoverable,
                )
                .map_err(failed)?;
                self.restorable.insert(at, node.restorable());
                (Rc::new(RefCell::new(node)), output)
            }
            Work::Inference { executor, batching, .. } => {
                let incarnation = self.start.incarnation;
                let account = Account::default();
                self.accounts[at].push(account.clone());
                executor.attach(self.notifier(index), incarnation);
                let limit = drop_limit(self.start.plan.byte_budget);
                let queue = FreshnessQueue::new(freshness, limit).with_keys(&self.start.plan.keyed);
                let node = InferenceNode::new(
                    Rc::clone(&slot),
                    stage,
                    Arc::clone(executor),
                    incarnation,
                    *batching,
                    queue,
                    account,
                    index,
                );
                let Some(stand_in) = &instance.stand_in else {
                    return Ok((Rc::new(RefCell::new(node)), input));
                };
                stand_in.tells(self.notifier(index));
                let (shared, elsewhere) = (Arc::clone(stand_in), Rc::clone(&self.elsewhere[at]));
                let node = StandInNode::new(slot, node, shared, elsewhere, durable.get(), index);
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

    /// Gives every producer the queues that its records can reach in this slot.
    fn share_accounts(&self) {
        for producer in &self.producers {
            let mut reached = vec![false; self.behind.len()];
            let mut open = vec![producer.feeds];
            let mut accounts = Vec::new();
            while let Some(at) = open.pop() {
                if !std::mem::replace(&mut reached[at], true) {
                    accounts.extend(self.accounts[at].iter().cloned());
                    open.extend(&self.behind[at]);
                }
            }
            *producer.backpressure.accounts.borrow_mut() = accounts;
        }
    }
}
