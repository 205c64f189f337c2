//! From a plan to slots and channels: which stage instance runs on which thread, and how they are connected.
use crate::channel::{CREDIT_WINDOW, ChannelId, Role};
use crate::executor::{CPU, factory_of};
use crate::failure::{OnPanic, RunError};
use crate::metrics::{EdgeMetrics, SinkMetrics, StageMetrics};
use crate::routing::Selector;
use arrow_schema::SchemaRef;
use std::collections::BTreeMap;
use std::sync::Arc;
use tidemill_operators::api::{BoundOperator, BoundSink, BoundSource};
use tidemill_operators::record::{METADATA_COLUMNS, record_schema};
use tidemill_spec::plan::{Freshness, Plan, PlanEdge, Stage};
use tidemill_spec::types::StreamType;
use tidemill_spec::workflow::WhenCut;
use xxhash_rust::xxh3::xxh3_64;

/// A plan with bindings for all names in it.
#[derive(Clone)]
pub struct Program {
    /// The plan.
    pub plan: Plan,
    /// Sources by id.
    pub sources: BTreeMap<String, BoundSource>,
    /// Operators by STAGE id: two stages of one operator may run different variants.
    pub operators: BTreeMap<String, BoundOperator>,
    /// Sinks by id.
    pub sinks: BTreeMap<String, BoundSink>,
    /// The reaction to panics, by operator id; `stop` where not given.
    pub on_panic: BTreeMap<String, OnPanic>,
    /// Policies of edges between workers while the link between these is cut, by the operator or sink that receives
    /// and the number of its input; without one, the sources upstream of the edge wait.
    pub when_cut: BTreeMap<(String, u32), WhenCut>,
}

/// One channel between two slots.
#[derive(Debug, Clone)]
pub(crate) struct ChannelSpec {
    pub(crate) name: String,
    pub(crate) from_slot: usize,
    pub(crate) to_slot: usize,
    pub(crate) schema: SchemaRef,
    /// The edge of the plan, by its position there.
    pub(crate) edge: usize,
    /// Its role beside a stand-in.
    pub(crate) role: Role,
}

impl Graph {
    /// The instance of the receiving slot that takes from a channel.
    pub(crate) fn taker(&self, channel: ChannelId) -> usize {
        let takes = |instance: &InstanceSpec| {
            instance.ports.iter().any(|port| port.remote.iter().any(|(id, _)| *id == channel))
        };
        let instances = &self.slots[self.channels[channel].to_slot].instances;
        instances.iter().position(takes).expect("every channel leads into an instance")
    }
}

/// The sending side of a channel, in its slot.
#[derive(Debug, Clone)]
pub(crate) struct ChannelOut {
    pub(crate) id: ChannelId,
    pub(crate) selector: Selector,
    pub(crate) freshness: Freshness,
    /// The operator or sink and its input that share the rows of the sender among their stages; none: a stand-in
    /// repeats them.
    pub(crate) shared_by: Option<(String, usize)>,
}

/// The sources of one input of an instance.
#[derive(Debug, Clone, Default)]
pub(crate) struct Port {
    /// Instances of the same slot, by index.
    pub(crate) local: Vec<(usize, Selector, Freshness)>,
    /// Channels from other slots.
    pub(crate) remote: Vec<(ChannelId, Freshness)>,
}

/// One stage instance: a stage, or one partition of it.
#[derive(Debug, Clone)]
pub(crate) struct InstanceSpec {
    /// Stage id.
    pub(crate) stage: String,
    /// Stage id with partition: the name of its state.
    pub(crate) instance: String,
    /// Operator, source or sink id.
    pub(crate) operator: String,
    pub(crate) ports: Vec<Port>,
    pub(crate) outputs: Vec<ChannelOut>,
}

/// One slot: a thread with a timely worker.
#[derive(Debug, Clone, Default)]
pub(crate) struct SlotSpec {
    pub(crate) name: String,
    /// The worker of the plan that has it.
    pub(crate) worker: String,
    /// In topological order.
    pub(crate) instances: Vec<InstanceSpec>,
    pub(crate) byte_budget: usize,
}

/// The plan as threads and channels: plain data, the same on every host.
#[derive(Debug, Clone, Default)]
pub(crate) struct Graph {
    pub(crate) slots: Vec<SlotSpec>,
    pub(crate) channels: Vec<ChannelSpec>,
}

impl Graph {
    /// Returns a digest that is equal for the same plan of the same workflow.
    pub(crate) fn digest(&self) -> u64 {
        xxh3_64(format!("{self:?}").as_bytes())
    }
}

/// Metrics by name; shared by all instances and incarnations.
#[derive(Default, Clone)]
pub(crate) struct MetricsTable {
    pub(crate) stages: BTreeMap<String, Arc<StageMetrics>>,
    /// By (sending stage, receiving stage, input).
    pub(crate) edges: BTreeMap<(String, String, u32), Arc<EdgeMetrics>>,
    pub(crate) sinks: BTreeMap<String, Arc<SinkMetrics>>,
}

pub(crate) fn plan_error(text: impl Into<String>) -> RunError {
    RunError::Plan(text.into())
}

impl MetricsTable {
    /// Makes an entry for each part of a program.
    pub(crate) fn of(program: &Program) -> Self {
        let (stages, edges) = (&program.plan.stages, &program.plan.edges);
        let key = |edge: &PlanEdge| (edge.from.clone(), edge.to.clone(), edge.input);
        Self {
            stages: stages.iter().map(|stage| (stage.id.clone(), Arc::default())).collect(),
            edges: edges.iter().map(|edge| (key(edge), Arc::default())).collect(),
            sinks: program.sinks.keys().map(|sink| (sink.clone(), Arc::default())).collect(),
        }
    }

    pub(crate) fn edge(&self, edge: &PlanEdge) -> Arc<EdgeMetrics> {
        let key = (edge.from.clone(), edge.to.clone(), edge.input);
        self.edges.get(&key).cloned().unwrap_or_default()
    }
}

impl Program {
    /// Returns the type of a stage's output; none for sinks.
    pub fn output(&self, stage: &Stage) -> Option<&StreamType> {
        self.output_of(stage)
    }

    /// Returns the type of a stage's output; none for sinks.
    pub(crate) fn output_of(&self, stage: &Stage) -> Option<&StreamType> {
        match self.sources.get(&stage.operator) {
            Some(source) => Some(&source.output),
            None => self.operators.get(&stage.id).map(|operator| &operator.output),
        }
    }

    pub(crate) fn classes_of(&self, stage: &Stage) -> Vec<bool> {
        self.plan
            .classes
            .iter()
            .map(|class| class.route.get(&stage.operator).is_some_and(|routed| routed == stage.answers_for()))
            .collect()
    }

    /// The stage that stands in for another one, if one does.
    pub(crate) fn stand_in_for(&self, stage: &str) -> Option<&Stage> {
        self.plan.stages.iter().find(|other| other.stands_in_for.as_deref() == Some(stage))
    }

    fn role_of(&self, edge: &PlanEdge, from: &Stage, to: &Stage) -> Role {
        let asks = || matches!(self.when_cut(edge), Some(WhenCut::Degrade(_)));
        if to.stands_in_for.as_deref() == Some(from.id.as_str()) {
            Role::Answers
        } else if self.stand_in_for(&to.id).is_some() && asks() {
            Role::Asks
        } else {
            Role::None
        }
    }

    /// Stages and partitions of each source, operator and sink.
    pub(crate) fn copies(&self) -> BTreeMap<&str, u32> {
        let mut copies = BTreeMap::new();
        for stage in &self.plan.stages {
            *copies.entry(stage.operator.as_str()).or_default() += stage.partitions.max(1);
        }
        copies
    }

    /// Stages by id.
    fn stages(&self) -> BTreeMap<&str, &Stage> {
        self.plan.stages.iter().map(|stage| (stage.id.as_str(), stage)).collect()
    }

    /// Returns the selector of the rows of `from` that go to partition `partition` of the stage that `edge` leads to.
    fn selector(&self, from: &Stage, to: &Stage, partition: u32) -> Result<Selector, RunError> {
        let partitions = to.partitions.max(1);
        let classes = self.classes_of(to);
        if let Some(group) = self.group_of(to).filter(|_| self.copies()[to.operator.as_str()] > 1) {
            let index = self.output_of(from).and_then(|output| output.index_of(&group.input));
            let index = index
                .ok_or_else(|| plan_error(format!("stage '{}' has no column '{}'", from.id, group.input)))?;
            let (index, table) = (METADATA_COLUMNS + index, self.class_table());
            return Ok(Selector::Group { index, table, classes, partition, partitions });
        }
        let sender = self.classes_of(from);
        let all = sender.iter().zip(&classes).all(|(sent, taken)| !sent || *taken);
        Ok(match partitions {
            1 if all => Selector::All,
            partitions => Selector::Class { classes, partition, partitions },
        })
    }

    /// Returns the stages in an order in which each comes after its senders: first those without senders, then those
    /// that only receive from these, and so on, each time in the order of the plan.
    fn topological(&self) -> Result<Vec<&Stage>, RunError> {
        let stages = &self.plan.stages;
        let places: BTreeMap<&str, usize> =
            stages.iter().enumerate().map(|(at, stage)| (stage.id.as_str(), at)).collect();
        let mut behind = vec![Vec::new(); stages.len()];
        let mut missing = vec![0usize; stages.len()];
        for edge in &self.plan.edges {
            let Some(to) = places.get(edge.to.as_str()) else { continue };
            missing[*to] += 1;
            if let Some(from) = places.get(edge.from.as_str()) {
                behind[*from].push(*to);
            }
        }
        let mut ready: Vec<usize> = (0..stages.len()).filter(|at| missing[*at] == 0).collect();
        let mut order = Vec::with_capacity(stages.len());
        while !ready.is_empty() {
            let mut next = Vec::new();
            for to in ready.iter().flat_map(|at| &behind[*at]) {
                missing[*to] -= 1;
                if missing[*to] == 0 {
                    next.push(*to);
                }
            }
            next.sort_unstable();
            order.append(&mut ready);
            ready = next;
        }
        match missing.iter().position(|missing| *missing > 0) {
            Some(waiting) => {
                Err(plan_error(format!("its edges form a cycle through stage '{}'", stages[waiting].id)))
            }
            None => Ok(order.into_iter().map(|at| &stages[at]).collect()),
        }
    }

    fn freshness_of(&self, edge: &PlanEdge, from: &Stage) -> Freshness {
        let live =
            || self.sources.get(&from.operator).is_some_and(|source| source.live && !source.waits_for_all);
        let is_kept = self.when_cut(edge).is_some_and(|when_cut| when_cut.kept().is_some());
        if is_kept {
            return Freshness::Block;
        }
        edge.freshness.unwrap_or_else(|| if live() { Freshness::Latest } else { Freshness::Block })
    }
}

fn slot_name(stage: &Stage, partition: u32, apart: usize) -> String {
    let group = match apart {
        0 => stage.slot_group.clone(),
        n => format!("{}+{n}", stage.slot_group),
    };
    match partition {
        0 => format!("{}/{group}", stage.worker),
        n => format!("{}/{group}/{n}", stage.worker),
    }
}

/// Returns, by stage, how many edges with policies lie before it within its slot group: these edges need channels, so what is after
/// one is in another slot.
fn apart<'a>(program: &'a Program, order: &[&'a Stage]) -> BTreeMap<&'a str, usize> {
    let mut apart: BTreeMap<&str, usize> = BTreeMap::new();
    for stage in order {
        let before = program.plan.edges.iter().filter(|edge| edge.to == stage.id);
        let before = before.filter_map(|edge| order.iter().find(|from| from.id == edge.from));
        let level = before
            .filter(|from| from.worker == stage.worker && from.slot_group == stage.slot_group)
            .map(|from| {
                let policies = &program.plan.policies;
                let has = policies.iter().any(|policy| policy.applies_to(&from.operator, &stage.operator));
                apart.get(from.id.as_str()).copied().unwrap_or(0) + usize::from(has)
            })
            .max();
        apart.insert(&stage.id, level.unwrap_or(0));
    }
    apart
}

/// The name of the state of a partition of a stage.
pub fn instance_name(stage: &Stage, partition: u32) -> String {
    match stage.partitions {
        0 | 1 => stage.id.clone(),
        _ => format!("{}#{partition}", stage.id),
    }
}

/// The graph of a program that this version can run.
pub(crate) fn build_checked(program: &Program) -> Result<Graph, RunError> {
    if program.plan.classes.is_empty() {
        return Err(RunError::Plan("it has no route classes; one class with share 1.0 is the least".into()));
    }
    one_stage_per_sink(program)?;
    no_partitions_of_sources(program)?;
    one_stage_per_live_source(program)?;
    build(program)
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

/// Rejects partitions of sources: each would read everything.
fn no_partitions_of_sources(program: &Program) -> Result<(), RunError> {
    match program.plan.stages.iter().find(|s| s.partitions > 1 && program.sources.contains_key(&s.operator)) {
        Some(stage) => Err(RunError::Plan(format!(
            "stage '{}' of source '{}' has {} partitions; a source has one, or several stages with classes",
            stage.id, stage.operator, stage.partitions
        ))),
        None => Ok(()),
    }
}

/// Rejects several stages of a source with feeds: each would connect to every camera.
fn one_stage_per_live_source(program: &Program) -> Result<(), RunError> {
    for (id, source) in program.sources.iter().filter(|(_, source)| source.feeds.is_some()) {
        let stages = program.plan.stages.iter().filter(|stage| stage.operator == *id).count();
        if stages > 1 {
            return Err(RunError::Plan(format!(
                "source '{id}' ({}) has {stages} stages, and each would connect to all of its feeds; it needs one",
                source.kind
            )));
        }
    }
    Ok(())
}

/// Builds slots and channels.
pub(crate) fn build(program: &Program) -> Result<Graph, RunError> {
    program.check_spread()?;
    program.check_edges()?;
    for stage in &program.plan.stages {
        let device = stage.device.as_deref().unwrap_or(CPU);
        factory_of(device).map_err(|error| RunError::Plan(format!("stage '{}': {error}", stage.id)))?;
    }
    let mut graph = Graph::default();
    let order = program.topological()?;
    let stages = program.stages();
    let mut inputs: BTreeMap<&str, usize> = BTreeMap::new();
    for edge in &program.plan.edges {
        let number = inputs.entry(edge.to.as_str()).or_default();
        *number = (*number).max(edge.input as usize + 1);
    }
    let apart = apart(program, &order);
    let mut slots: BTreeMap<String, usize> = BTreeMap::new();
    // Slot of each instance, and index in it.
    let mut places: BTreeMap<(String, u32), (usize, usize)> = BTreeMap::new();
    for stage in &order {
        for partition in 0..stage.partitions.max(1) {
            let name = slot_name(stage, partition, apart[stage.id.as_str()]);
            let slot = *slots.entry(name).or_insert_with_key(|name| {
                let (name, worker) = (name.clone(), stage.worker.clone());
                graph.slots.push(SlotSpec { name, worker, byte_budget: 1 << 12, ..SlotSpec::default() });
                graph.slots.len() - 1
            });
            let spec = InstanceSpec {
                stage: stage.id.clone(),
                instance: instance_name(stage, partition),
                operator: stage.operator.clone(),
                ports: vec![Port::default(); inputs.get(stage.id.as_str()).copied().unwrap_or(0)],
                outputs: Vec::new(),
            };
            let slot_spec = &mut graph.slots[slot];
            slot_spec.byte_budget = slot_spec.byte_budget.max(stage.byte_budget.0 as usize);
            places.insert((stage.id.clone(), partition), (slot, slot_spec.instances.len()));
            slot_spec.instances.push(spec);
        }
    }
    for edge in 0..program.plan.edges.len() {
        connect(program, &mut graph, &stages, &places, edge)?;
    }
    for slot in &graph.slots {
        let ends = slot
            .instances
            .iter()
            .any(|instance| !instance.outputs.is_empty() || program.sinks.contains_key(&instance.operator));
        if !ends {
            let stage = &slot.instances[0].stage;
            return Err(plan_error(format!(
                "nothing receives what slot '{}' (stage '{stage}') gives",
                slot.name
            )));
        }
    }
    Ok(graph)
}

fn connect(
    program: &Program,
    graph: &mut Graph,
    stages: &BTreeMap<&str, &Stage>,
    places: &BTreeMap<(String, u32), (usize, usize)>,
    number: usize,
) -> Result<(), RunError> {
    let edge = &program.plan.edges[number];
    let find = |id: &str| {
        let stage = stages.get(id).copied();
        stage.ok_or_else(|| plan_error(format!("an edge names the stage '{id}', which is not there")))
    };
    let (from, to) = (find(&edge.from)?, find(&edge.to)?);
    let freshness = program.freshness_of(edge, from);
    let output = program.output_of(from).ok_or_else(|| {
        plan_error(format!("stage '{}' gives nothing, yet an edge leads out of it", from.id))
    })?;
    let schema = record_schema(output);
    let role = program.role_of(edge, from, to);
    for from_partition in 0..from.partitions.max(1) {
        for to_partition in 0..to.partitions.max(1) {
            let selector = program.selector(from, to, to_partition)?;
            let (from_slot, from_at) = places[&(from.id.clone(), from_partition)];
            let (to_slot, to_at) = places[&(to.id.clone(), to_partition)];
            let port = edge.input as usize;
            if from_slot == to_slot {
                let ports = &mut graph.slots[to_slot].instances[to_at].ports;
                ports[port].local.push((from_at, selector, freshness));
                continue;
            }
            let id = graph.channels.len();
            graph.channels.push(ChannelSpec {
                name: format!("{}->{}", instance_name(from, from_partition), instance_name(to, to_partition)),
                from_slot,
                to_slot,
                schema: Arc::clone(&schema),
                edge: number,
                role,
            });
            let shared_by = to.stands_in_for.is_none().then(|| (to.operator.clone(), port));
            let out = ChannelOut { id, selector, freshness, shared_by };
            graph.slots[from_slot].instances[from_at].outputs.push(out);
            graph.slots[to_slot].instances[to_at].ports[port].remote.push((id, freshness));
        }
    }
    Ok(())
}

/// Bytes beyond which `drop_oldest` drops on an edge.
pub(crate) fn drop_limit(byte_budget: usize) -> usize {
    (byte_budget / 4).min(CREDIT_WINDOW as usize)
}
