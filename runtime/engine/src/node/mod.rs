//! The parts of a slot's dataflow. Every part is one timely operator around a [`Node`]; only this file uses timely's
//! operator builder.
pub(crate) mod egress;
pub(crate) mod inference;
pub(crate) mod ingress;
pub(crate) mod ledger;
pub(crate) mod sink;
pub(crate) mod source;
pub(crate) mod stand_in;
pub(crate) mod stateful;
pub(crate) mod stateless;

use self::ledger::{Ledger, Taker};
use crate::context::SlotContext;
use crate::faults::Point;
use crate::frame::{CLOSED, Epoch};
use crate::metrics::StageMetrics;
use crate::routing::Selector;
use arrow_array::RecordBatch;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use timely::container::{Accountable, CapacityContainerBuilder, PushInto, SizableContainer};
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::generic::OutputBuilder;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::{Scope, Stream};
use timely::progress::Antichain;
use timely::scheduling::Activator;

/// timely's container: one batch per message. It counts rows, not batches: a container that counts batches breaks frontiers
/// once a batch is split.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rows(Option<RecordBatch>);

impl Accountable for Rows {
    fn record_count(&self) -> i64 {
        self.0.as_ref().map_or(0, |batch| batch.num_rows() as i64)
    }
}

impl SizableContainer for Rows {
    fn at_capacity(&self) -> bool {
        self.0.is_some()
    }

    fn ensure_capacity(&mut self, _stash: &mut Option<Self>) {}
}

impl PushInto<RecordBatch> for Rows {
    fn push_into(&mut self, item: RecordBatch) {
        self.0 = Some(item);
    }
}

/// The stream between two nodes of a slot.
pub(crate) type Rowstream<'scope> = Stream<'scope, Epoch, Rows>;

/// Batches emitted by a node.
#[derive(Debug, Default)]
pub(crate) struct Emit {
    items: Vec<(Epoch, RecordBatch)>,
}

impl Emit {
    /// Emits a batch at an epoch that the node still holds.
    pub(crate) fn give(&mut self, epoch: Epoch, batch: RecordBatch) {
        if batch.num_rows() > 0 {
            self.items.push((epoch, batch));
        }
    }

    /// Takes the batches emitted so far.
    #[cfg(test)]
    pub(crate) fn take(&mut self) -> Vec<(Epoch, RecordBatch)> {
        std::mem::take(&mut self.items)
    }
}

/// The computation of a node, read after a panic.
pub(crate) struct Processing {
    /// Stage id.
    pub(crate) stage: String,
    /// Operator id.
    pub(crate) operator: String,
    /// The rows, if known.
    pub(crate) batch: Option<RecordBatch>,
}

/// The logic of one timely operator.
pub(crate) trait Node {
    /// Data arrived at a port.
    fn receive(&mut self, port: usize, epoch: Epoch, batch: RecordBatch, out: &mut Emit);
    /// Called after the data of each scheduling; `frontier` is the meet of all inputs ([`CLOSED`] when all ended
    /// or there are none).
    fn run(&mut self, frontier: Epoch, out: &mut Emit);
    /// The first epoch that may still come at a port; called before [`Node::run`] if the node does not wait for all of its
    /// ports.
    fn advanced(&mut self, _port: usize, _frontier: Epoch) {}
    /// Returns whether data at a port can hold back the node's output.
    fn waits_for(&self, _port: usize) -> bool {
        true
    }
    /// The first epoch that the node may still emit at.
    fn hold(&self, frontier: Epoch) -> Epoch {
        frontier
    }
    /// The current computation.
    fn processing(&self) -> Option<Processing> {
        None
    }
}

/// One input stream of a node.
pub(crate) struct Input<'scope> {
    pub(crate) stream: Rowstream<'scope>,
    pub(crate) port: usize,
    pub(crate) selector: Selector,
    /// Counts the taken rows, if needed.
    pub(crate) taker: Option<Taker>,
}

/// What sees the output of a node on its way.
#[derive(Default)]
pub(crate) struct Outlet {
    /// Counters of the output.
    pub(crate) ledgers: Vec<Rc<RefCell<Ledger>>>,
    /// Of the stage, with its taps; none: it is the node of a channel.
    pub(crate) metrics: Option<Arc<StageMetrics>>,
}

/// Installs a node and returns its output and the handle that schedules it. Data of epochs before `resume_at` is known
/// downstream already and is dropped: other stages of a restarted slot may repeat it.
pub(crate) fn install<'scope>(
    slot: &Rc<SlotContext>,
    scope: Scope<'scope, Epoch>,
    name: &str,
    inputs: Vec<Input<'scope>>,
    resume_at: Epoch,
    node: Rc<RefCell<dyn Node>>,
    outlet: Outlet,
) -> (Rowstream<'scope>, Activator) {
    let mut builder = OperatorBuilder::new(name.to_owned(), scope);
    let activator = scope.activator_for(builder.operator_info().address);
    let mut ports = Vec::with_capacity(inputs.len());
    let waits: Vec<(usize, bool)> =
        inputs.iter().map(|input| (input.port, node.borrow().waits_for(input.port))).collect();
    for input in inputs {
        ports.push((builder.new_input(input.stream, Pipeline), input.port, input.selector, input.taker));
    }
    let connected = waits.iter().enumerate().filter(|(_, (_, waits))| *waits);
    let connected: Vec<_> = connected.map(|(at, _)| (at, Antichain::from_elem(0))).collect();
    let has_own_pace = connected.len() < waits.len();
    let (output, stream) = builder.new_output_connection::<Rows, _>(connected);
    let mut output = OutputBuilder::<Epoch, CapacityContainerBuilder<Rows>>::from(output);
    let (slot, name) = (Rc::clone(slot), name.to_owned());
    builder.build(move |mut capabilities| {
        let mut capability = capabilities.pop();
        let mut emit = Emit::default();
        move |frontiers| {
            let mut node = node.borrow_mut();
            for (input, port, selector, taker) in &mut ports {
                input.for_each(|time, data| {
                    let selected = match (std::mem::take(data).0, &*selector) {
                        (Some(batch), Selector::All) => Some(batch),
                        (Some(batch), selector) => selector.select(&batch),
                        (None, _) => None,
                    };
                    let Some(batch) = selected else { return };
                    if let Some(taker) = taker {
                        taker.taken(*time.time(), batch.num_rows());
                    }
                    if *time.time() >= resume_at {
                        node.receive(*port, *time.time(), batch, &mut emit);
                    }
                });
            }
            let of = |at: usize| frontiers[at].frontier().first().copied().unwrap_or(CLOSED);
            for (at, (.., taker)) in ports.iter().enumerate() {
                if let Some(Err(error)) = taker.as_ref().map(|taker| taker.passed(of(at))) {
                    slot.fail(error);
                }
            }
            let inputs = || waits.iter().enumerate();
            if has_own_pace {
                for (port, _) in &waits {
                    let same = inputs().filter(|(_, (other, _))| other == port);
                    node.advanced(*port, same.map(|(at, _)| of(at)).min().unwrap_or(CLOSED));
                }
            }
            let awaited = inputs().filter(|(_, (_, waits))| *waits);
            let frontier = awaited.map(|(at, _)| of(at)).min().unwrap_or(CLOSED);
            node.run(frontier, &mut emit);
            if !emit.items.is_empty() {
                let capability = capability.as_ref().expect("a node emits only while it holds an epoch");
                let mut output = output.activate();
                let mut records = 0;
                for (epoch, batch) in emit.items.drain(..) {
                    let at = capability.delayed(&epoch);
                    records += batch.num_rows() as u64;
                    let ledgers = outlet.ledgers.iter();
                    ledgers.for_each(|ledger| ledger.borrow_mut().given(epoch, batch.num_rows()));
                    if let Some(metrics) = &outlet.metrics {
                        metrics.tapped.pass(&batch);
                    }
                    output.session_with_builder(&at).give_container(&mut Rows(Some(batch)));
                }
                drop(output);
                slot.reach(Point::Emitted { node: &name, records });
            }
            match node.hold(frontier) {
                CLOSED => capability = None,
                epoch => {
                    if let Some(capability) = &mut capability
                        && *capability.time() < epoch
                    {
                        capability.downgrade(&epoch);
                    }
                }
            }
        }
    });
    (stream, activator)
}
