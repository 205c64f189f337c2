//! Resources that a host opens for its own slots: readers, models and sinks, with their counters.
use super::PreparedModels;
use crate::alignment::{Groups, Seat};
use crate::away::batches_away;
use crate::channel::Role;
use crate::checkpoint::Past;
use crate::clock::{Clock, Nanoseconds};
use crate::context::StageContext;
use crate::cut::StandIn;
use crate::emulation::{Emulator, WireEnd};
use crate::executor::{CallGate, ExecutorRequest, ExecutorSpec, ModelExecutor};
use crate::failure::{OnPanic, RunError, Suspects, operator_error};
use crate::faults::Faults;
use crate::graph::{ChannelOut, Graph, InstanceSpec, MetricsTable, Port, Program, SlotSpec};
use crate::link::{AsBytes, InProcess, Link};
use crate::metrics::{EdgeMetrics, SinkMetrics, StageMetrics};
use crate::node::sink::{SharedSink, SinkCell};
use crate::processor::ProcessorTime;
use crate::routing::{ByGroup, Selector};
use crate::store::EpochLog;
use arrow_schema::SchemaRef;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use tidemill_operators::api::{
    BoundOperator, BoundSink, BoundSource, CallOff, Computation, GroundTruth, MakeInstance,
};
use tidemill_spec::batching::Batching;
use tidemill_spec::plan::{Plan, PlanEdge, Stage};
use tidemill_spec::routing::ClassTable;
use tidemill_spec::workflow::WhenCut;

/// A channel with its carrier.
#[derive(Clone)]
pub(crate) struct Channel {
    pub(crate) name: String,
    pub(crate) from_slot: usize,
    pub(crate) to_slot: usize,
    pub(crate) schema: SchemaRef,
    /// Connects its ends where both are on this host.
    pub(crate) link: Arc<dyn Link>,
    /// The emulated wire that its frames come over, if its sender is on another host.
    pub(crate) wire: Option<WireEnd>,
    pub(crate) metrics: Arc<EdgeMetrics>,
    /// Policy while the path between its two hosts is cut; none where the plan has none, or both ends are here.
    pub(crate) when_cut: Option<WhenCut>,
    /// Its role beside a stand-in, and the stand-in, where that is on this host.
    pub(crate) role: Role,
    pub(crate) stand_in: Option<Arc<StandIn>>,
}

/// Starts an executor again.
pub(crate) type StartExecutor = Arc<dyn Fn() -> Result<Arc<dyn ModelExecutor>, RunError> + Send + Sync>;

/// The work of an instance.
#[derive(Clone)]
pub(crate) enum Work {
    Source {
        bound: Box<BoundSource>,
        number: u32,
        classes: ClassTable,
        selector: Selector,
        replay: Option<EpochLog>,
        /// Its place among the sources that are read together by event time.
        seat: Option<Seat>,
    },
    Stateless(MakeInstance),
    Stateful(MakeInstance, Option<ByGroup>),
    Inference {
        executor: Arc<dyn ModelExecutor>,
        batching: Batching,
        /// Starts another one, if this one may be lost.
        restart: Option<StartExecutor>,
    },
    Sink {
        cell: SharedSink,
        metrics: Arc<SinkMetrics>,
        truth: Option<GroundTruth>,
    },
}

/// One stage instance with its work.
#[derive(Clone)]
pub(crate) struct InstancePlan {
    pub(crate) context: StageContext,
    pub(crate) work: Work,
    /// State of a stage that answers in place of one on the other side of an edge.
    pub(crate) stand_in: Option<Arc<StandIn>>,
    pub(crate) ports: Vec<Port>,
    pub(crate) outputs: Vec<ChannelOut>,
}

/// One slot with the work of its thread.
#[derive(Clone)]
pub(crate) struct SlotPlan {
    pub(crate) name: String,
    /// In topological order.
    pub(crate) instances: Vec<InstancePlan>,
    pub(crate) byte_budget: usize,
    /// Numbers of the live sources with a key.
    pub(crate) keyed: Arc<BTreeSet<u32>>,
    /// Processor time of its thread, of all incarnations together.
    pub(crate) processor: Arc<ProcessorTime>,
}

impl SlotPlan {
    /// Returns, for each instance, those that receive its output without leaving the slot.
    pub(crate) fn behind(&self) -> Vec<Vec<usize>> {
        let mut behind = vec![Vec::new(); self.instances.len()];
        for (at, instance) in self.instances.iter().enumerate() {
            for (from, ..) in instance.ports.iter().flat_map(|port| &port.local) {
                behind[*from].push(at);
            }
        }
        behind.iter_mut().for_each(Vec::dedup);
        behind
    }

    /// Returns whether the run may have to restart it: after a panic, or the loss of an executor. Models have threads of their
    /// own, so their panics do not.
    pub(crate) fn may_restart(&self) -> bool {
        let restarts = |instance: &InstancePlan| match &instance.work {
            Work::Inference { restart, .. } => restart.is_some(),
            _ => instance.context.on_panic == OnPanic::Restart,
        };
        self.instances.iter().any(restarts)
    }

    /// Returns whether one of its sources is a stream.
    pub(crate) fn reads_stream(&self) -> bool {
        let is_stream = |instance: &InstancePlan| matches!(&instance.work, Work::Source { bound, .. } if bound.is_stream());
        self.instances.iter().any(is_stream)
    }
}

/// Inputs of opening.
pub(crate) struct Opening<'a> {
    pub(crate) program: &'a Program,
    pub(crate) graph: &'a Graph,
    pub(crate) metrics: &'a MetricsTable,
    pub(crate) clock: &'a Arc<dyn Clock>,
    pub(crate) emulator: Option<&'a Emulator>,
    pub(crate) faults: Option<&'a Arc<dyn Faults>>,
    pub(crate) replay: Option<&'a BTreeMap<String, EpochLog>>,
    /// The state from which it continues; none: it begins.
    pub(crate) past: Option<&'a Past>,
    /// Rows by sink that were committed before the run was continued.
    pub(crate) rows_before: &'a BTreeMap<String, u64>,
    /// Opens sinks so that another process can continue them, if they can.
    pub(crate) is_durable: bool,
    /// Models that are loaded already.
    pub(crate) prepared: Option<&'a PreparedModels>,
}

/// Makes the request to start the executor of a stage.
pub(super) fn executor_request(
    (stage, plan): (&Stage, &Plan),
    operator: &BoundOperator,
    clock: &Arc<dyn Clock>,
    metrics: &StageMetrics,
    gate: Option<Arc<dyn CallGate>>,
) -> ExecutorRequest {
    ExecutorRequest {
        spec: ExecutorSpec::of(stage, operator, (&plan.workflow.name, &plan.devices)),
        operator: operator.id.clone(),
        make: Arc::clone(&operator.make),
        clock: Arc::clone(clock),
        processor: Arc::clone(&metrics.processor),
        gate,
        again: false,
    }
}

/// Starts the executor of a stage.
pub(super) fn start_executor(request: &ExecutorRequest) -> Result<Arc<dyn ModelExecutor>, RunError> {
    let factory = request.spec.factory().map_err(|error| RunError::Plan(error.to_string()))?;
    factory.start(request).map_err(|error| operator_error(&request.operator, error))
}

/// The opened resources of a host.
#[derive(Default)]
pub(crate) struct Resources {
    /// By slot; none: on another host.
    pub(crate) slots: Vec<Option<SlotPlan>>,
    pub(crate) channels: Vec<Channel>,
    pub(crate) sinks: BTreeMap<String, SharedSink>,
    /// End writes of sinks that wait for a reader.
    pub(crate) call_offs: Vec<CallOff>,
    /// Stand-ins by the stage that they stand in for.
    pub(crate) stand_ins: BTreeMap<String, Arc<StandIn>>,
}

impl Opening<'_> {
    /// Opens the resources of the slots that `is_own` selects.
    pub(crate) fn open(&self, is_own: impl Fn(&SlotSpec) -> bool) -> Result<Resources, RunError> {
        let mut opened = Resources::default();
        let groups = Groups::of(self.program, self.replay, self.past);
        for slot in &self.graph.slots {
            let plan = is_own(slot).then(|| self.slot(slot, &groups, &mut opened)).transpose()?;
            opened.slots.push(plan);
        }
        for channel in &self.graph.channels {
            let edge = &self.program.plan.edges[channel.edge];
            let is_here = |slot: usize| opened.slots[slot].is_some();
            let is_between_hosts = is_here(channel.from_slot) != is_here(channel.to_slot);
            let when_cut = self.program.when_cut(edge).filter(|_| is_between_hosts).cloned();
            let stands_for = match channel.role {
                Role::None => None,
                Role::Asks => Some(&edge.to),
                Role::Answers => Some(&edge.from),
            };
            opened.channels.push(Channel {
                name: channel.name.clone(),
                from_slot: channel.from_slot,
                to_slot: channel.to_slot,
                schema: Arc::clone(&channel.schema),
                link: self.carrier(edge),
                wire: self.emulator.and_then(|emulator| emulator.wire_end(edge)),
                metrics: self.metrics.edge(edge),
                when_cut,
                role: channel.role,
                stand_in: stands_for.and_then(|stage| opened.stand_ins.get(stage)).cloned(),
            });
        }
        Ok(opened)
    }

    fn carrier(&self, edge: &PlanEdge) -> Arc<dyn Link> {
        let emulated = self.emulator.and_then(|emulator| emulator.link(edge));
        let worker = |id: &String| {
            let stage = self.program.plan.stages.iter().find(|stage| stage.id == *id);
            stage.map(|stage| &stage.worker)
        };
        let link = emulated.unwrap_or_else(|| match worker(&edge.from) == worker(&edge.to) {
            true => Arc::new(InProcess) as Arc<dyn Link>,
            false => Arc::new(AsBytes),
        });
        match self.faults {
            Some(faults) => faults.carrier(edge, link),
            None => link,
        }
    }

    fn slot(&self, slot: &SlotSpec, groups: &Groups, opened: &mut Resources) -> Result<SlotPlan, RunError> {
        let instances = slot.instances.iter().map(|instance| self.instance(instance, groups, opened));
        Ok(SlotPlan {
            name: slot.name.clone(),
            instances: instances.collect::<Result<_, _>>()?,
            byte_budget: slot.byte_budget,
            keyed: self.keyed(),
            processor: Arc::default(),
        })
    }

    fn instance(
        &self,
        spec: &InstanceSpec,
        groups: &Groups,
        opened: &mut Resources,
    ) -> Result<InstancePlan, RunError> {
        let metrics = self.metrics.stages.get(&spec.stage).cloned().unwrap_or_default();
        let stage = self.program.plan.stages.iter().find(|stage| stage.id == spec.stage);
        let stage = stage.ok_or_else(|| RunError::Plan(format!("it has no stage '{}'", spec.stage)))?;
        let work = match self.program.sinks.get(&spec.operator) {
            Some(bound) => self.sink(bound, opened)?,
            None => self.source_or_operator(stage, &spec.instance, groups, &metrics)?,
        };
        let context = StageContext {
            stage: spec.stage.clone(),
            instance: spec.instance.clone(),
            operator: spec.operator.clone(),
            metrics,
            suspects: Arc::new(Suspects::default()),
            on_panic: self.program.on_panic.get(&spec.operator).copied().unwrap_or_default(),
        };
        let stand_in = self.stand_in(stage, opened);
        Ok(InstancePlan { context, work, stand_in, ports: spec.ports.clone(), outputs: spec.outputs.clone() })
    }

    /// Returns the state that a stage shares with the channels around it where it stands in for another one.
    fn stand_in(&self, stage: &Stage, opened: &mut Resources) -> Option<Arc<StandIn>> {
        let of = stage.stands_in_for.as_ref()?;
        let asks = self.program.plan.edges.iter().filter(|edge| edge.to == *of);
        let (edge, degrade) = asks.into_iter().find_map(|edge| match self.program.when_cut(edge) {
            Some(WhenCut::Degrade(degrade)) => Some((edge, degrade)),
            _ => None,
        })?;
        let after = Nanoseconds::try_from(degrade.after().0).unwrap_or(Nanoseconds::MAX);
        let variant = stage.variant.clone().unwrap_or_default();
        let stand_in = StandIn::new(after, of.clone(), variant, self.metrics.edge(edge));
        opened.stand_ins.insert(of.clone(), Arc::clone(&stand_in));
        Some(stand_in)
    }

    fn sink(&self, bound: &BoundSink, opened: &mut Resources) -> Result<Work, RunError> {
        let past = self.past.and_then(|past| past.sinks.get(&bound.id));
        let sink = match bound.durable.as_ref().filter(|_| self.is_durable) {
            Some(make) => make(past.and_then(|past| past.token.as_deref())),
            None => (bound.make)(),
        };
        let sink = sink.map_err(|error| operator_error(&bound.id, error))?;
        opened.call_offs.extend(sink.call_off());
        let cell = match past {
            Some(past) => {
                let before = self.rows_before.get(&bound.id).copied().unwrap_or(past.rows);
                SinkCell::continued(sink, past, before)
            }
            None => SinkCell::new(sink),
        };
        let cell = match self.is_durable && bound.durable.is_some() {
            true => cell.with_marks().map_err(|error| operator_error(&bound.id, error))?,
            false => cell,
        };
        let rows = cell.rows;
        let cell: SharedSink = Arc::new(Mutex::new(cell));
        opened.sinks.insert(bound.id.clone(), Arc::clone(&cell));
        let metrics = self.metrics.sinks.get(&bound.id).cloned().unwrap_or_default();
        metrics.committed.store(rows, Ordering::Relaxed);
        Ok(Work::Sink { cell, metrics, truth: bound.ground_truth.clone() })
    }

    fn source_or_operator(
        &self,
        stage: &Stage,
        instance: &str,
        groups: &Groups,
        metrics: &StageMetrics,
    ) -> Result<Work, RunError> {
        let program = self.program;
        if let Some(bound) = program.sources.get(&stage.operator) {
            return Ok(self.source(bound, stage, instance, groups));
        }
        let bound = program.operators.get(&stage.id).ok_or_else(|| {
            RunError::Plan(format!("stage '{}' runs '{}', which is not bound", stage.id, stage.operator))
        })?;
        match bound.computation {
            Computation::Stateless => Ok(Work::Stateless(Arc::clone(&bound.make))),
            Computation::Stateful => Ok(Work::Stateful(Arc::clone(&bound.make), program.by_group(stage))),
            Computation::Inference => {
                let gate = self.emulator.and_then(|emulator| emulator.gate(stage));
                // Models loaded earlier know no emulation.
                let prepared = self.prepared.filter(|_| gate.is_none());
                let request = executor_request((stage, &self.program.plan), bound, self.clock, metrics, gate);
                let request = ExecutorRequest { again: self.past.is_some(), ..request };
                let may_be_lost = request.spec.factory().is_ok_and(|factory| factory.may_be_lost());
                let budget = stage.batching_budget.0 as Nanoseconds;
                let executor = match prepared.and_then(|prepared| prepared.take(instance)) {
                    Some(executor) => executor,
                    None => start_executor(&request)?,
                };
                let away = batches_away(stage, &program.plan.devices) as usize;
                let send = move |executor: &Arc<dyn ModelExecutor>| {
                    while executor.copies() < away && executor.add_copy() {}
                };
                send(&executor);
                let request = ExecutorRequest { again: true, ..request };
                let start: StartExecutor = Arc::new(move || start_executor(&request).inspect(send));
                metrics.device.get_or_init(|| executor.device().to_owned());
                Ok(Work::Inference {
                    executor,
                    batching: Batching::new(stage.max_batch as usize, budget),
                    restart: may_be_lost.then_some(start),
                })
            }
        }
    }

    /// The numbers of the live sources with a key: each key is a camera or another feed.
    fn keyed(&self) -> Arc<BTreeSet<u32>> {
        let sources = (0..).zip(self.program.sources.values());
        Arc::new(
            sources
                .filter(|(_, source)| source.live && source.key.is_some())
                .map(|(number, _)| number)
                .collect(),
        )
    }

    fn source(&self, bound: &BoundSource, stage: &Stage, instance: &str, groups: &Groups) -> Work {
        let program = self.program;
        let number = program.sources.keys().position(|id| *id == stage.operator).unwrap_or(0) as u32;
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
        Work::Source {
            bound: Box::new(bound.clone()),
            number,
            classes: program.class_table(),
            selector,
            replay: self.replay.and_then(|logs| logs.get(instance).cloned()),
            seat: groups.seat(&bound.id, instance),
        }
    }
}
