//! Rates, fused operators, and the streams between them.
use super::machines::Machines;
use super::rates::Flow;
use super::services::Services;
use super::sizes::Senders;
use super::{Inputs, Level, Options, listed};
use crate::problem::{Edge, Operator, Producer, Rates, Sizes, Source, Variant};
use std::collections::{BTreeMap, BTreeSet};
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::workflow::{self, Workflow};

/// The streams and the operators between them.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Streams {
    /// Operator of the problem by operator of the workflow.
    pub(super) hosts: BTreeMap<String, usize>,
    pub(super) sources: Vec<Source>,
    pub(super) edges: Vec<Edge>,
    /// Rates where they depend on variants.
    pub(super) rates: Option<Rates>,
    /// Sizes of the records of every edge.
    pub(super) sizes: Vec<Sizes>,
    heads: Vec<Head>,
}

/// Id of an operator of the problem, with the models that it may have; none: it has no models.
pub(super) type Models = (String, Option<Vec<String>>);

/// An operator of the problem.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Head {
    pub(super) id: String,
    rate: f64,
    stateful: bool,
    follows_event_time: bool,
    on_one_worker: bool,
    fused: Vec<String>,
}

impl Streams {
    /// The operators of the problem; those without service times are weightless.
    pub(super) fn operators(&self, mut services: Services) -> Vec<Operator> {
        let operator = |head: &Head| {
            let variants = services.remove(&head.id);
            Operator {
                id: head.id.clone(),
                rate: head.rate,
                weightless: variants.is_none(),
                variants: variants
                    .unwrap_or_else(|| vec![Variant { id: head.id.clone(), modes: Vec::new() }]),
                stateful: head.stateful,
                follows_event_time: head.follows_event_time,
                on_one_worker: head.on_one_worker,
                survive: 0, // follows from the service levels
                fused: head.fused.clone(),
            }
        };
        self.heads.iter().map(operator).collect()
    }

    /// Id of an operator of the problem.
    pub(super) fn id(&self, operator: usize) -> &str {
        &self.heads[operator].id
    }

    /// Position of an operator of the problem.
    pub(super) fn position(&self, id: &str) -> Option<usize> {
        self.heads.iter().position(|head| head.id == id)
    }
}

/// Returns the streams. None without services, without a rate or without the size of a message.
pub(super) fn streams(
    inputs: &Inputs<'_>,
    options: &Options,
    machines: &Machines,
    (services, meeting): (Option<&Services>, &BTreeSet<&str>),
    notes: &mut Vec<String>,
    found: &mut Diagnostics,
) -> Option<Streams> {
    let rates = source_rates(inputs.workflow, options, found);
    let (rates, services) = (rates?, services?);
    let order = topological(inputs.workflow);
    let flow = Flow::new(inputs, rates.clone());
    let hosts = hosts(inputs.workflow, services, &order);
    let mut heads: Vec<Head> = Vec::new();
    for operator in order.iter().filter(|operator| hosts[operator.id.value.as_str()] == operator.id.value) {
        let id = operator.id.value.clone();
        let members = order.iter().filter(|member| hosts[member.id.value.as_str()] == id);
        heads.push(Head {
            rate: 0.0, // follows from the models
            // They emit on ticks.
            stateful: members.clone().any(|member| inputs.kinds.operator_of(member).gives_by_epoch()),
            follows_event_time: members
                .clone()
                .any(|member| inputs.kinds.operator_of(member).follows_event_time),
            on_one_worker: members.clone().any(|member| meeting.contains(member.id.as_str())),
            fused: members.map(|member| member.id.value.clone()).filter(|member| *member != id).collect(),
            id,
        });
    }
    let position = |id: &str| heads.iter().position(|head| head.id == hosts[id]);
    let hosts: BTreeMap<String, usize> =
        hosts.keys().filter_map(|id| Some(((*id).to_owned(), position(id)?))).collect();
    let source = |source: &workflow::Source| Source {
        id: source.id.value.clone(),
        rate: rates[source.id.value.as_str()],
        locations: machines.source(inputs.infrastructure, &source.id.value),
        at_one_time: options.at_one_time.get(&source.id.value).map_or(1, |records| (*records).max(1)),
        replies: false,
    };
    let sources: Vec<Source> = inputs.workflow.sources.iter().map(source).collect();
    let models = models(inputs, &heads, services);
    let known = Senders { inputs, models: &models, is_free: machines.traffic_is_free() };
    let (mut edges, mut sizes): (Vec<Edge>, Vec<Sizes>) = Default::default();
    let mut senders: Vec<&str> = Vec::new();
    let mut next_input = vec![0usize; heads.len()];
    let mut complete = true;
    for operator in &order {
        let to = hosts[operator.id.value.as_str()];
        for (port, input) in (0u32..).zip(&operator.inputs) {
            let from_id = input.from.value.as_str();
            let from = match hosts.get(from_id) {
                Some(&host) if host == to => continue,
                Some(&host) => Producer::Operator(host),
                None => Producer::Source(sources.iter().position(|source| source.id == from_id)?),
            };
            let sender = match from {
                Producer::Source(_) => None,
                Producer::Operator(host) => Some(host),
            };
            let edge = (from_id, operator.id.value.as_str(), port);
            match known.sizes(edge, sender, edges.len(), notes) {
                Ok(own) => sizes.push(own),
                Err(error) => {
                    complete = false;
                    found.push(error.at(input.from.span.clone()));
                }
            }
            senders.push(from_id);
            edges.push(Edge {
                from,
                to,
                input: next_input[to],
                rate: 0.0,         // follows from the models
                bytes: Vec::new(), // follow from the sizes
            });
            next_input[to] += 1;
        }
    }
    let (first, rates) = flow.rates(&heads, &models, &senders, notes);
    heads.iter_mut().zip(first.operators).for_each(|(head, rate)| head.rate = rate);
    edges.iter_mut().zip(first.edges).for_each(|(edge, rate)| edge.rate = rate);
    complete.then_some(Streams { hosts, sources, edges, rates, sizes, heads })
}

/// Records per second of every source: the options', else the workflow's own rates, raised to its service level where
/// that is higher. Sources keep their proportions.
fn source_rates<'a>(
    workflow: &'a Workflow,
    options: &Options,
    found: &mut Diagnostics,
) -> Option<BTreeMap<&'a str, f64>> {
    let level = workflow.slo.rate.as_ref().filter(|_| !options.without.contains(&Level::Rate));
    let own = |source: &workflow::Source| source.rate.as_ref().map(|rate| rate.0);
    let slowest = workflow.sources.iter().filter_map(own).reduce(f64::min);
    let level = level.map(|rate| rate.0);
    let wanted = options.rate.map(|rate| rate.0).or_else(|| match (level, slowest) {
        (Some(level), Some(slowest)) => Some(level.max(slowest)),
        (level, slowest) => level.or(slowest),
    });
    let Some(wanted) = wanted.filter(|wanted| *wanted > 0.0) else {
        let first = workflow.sources.first();
        let mut missing = Diagnostic::error("E0901", "no rate: neither a source nor `slo` names one")
            .with_help("write `slo: {rate: 40/s}` in the workflow, or plan with `--slo rate=40/s`");
        if let Some(source) = first {
            missing = missing.at(source.id.span.clone());
        }
        found.push(missing);
        return None;
    };
    let factor = slowest.filter(|slowest| *slowest > 0.0).map_or(1.0, |slowest| wanted / slowest);
    let rate = |source: &'a workflow::Source| {
        (source.id.value.as_str(), own(source).map_or(wanted, |rate| rate * factor))
    };
    Some(workflow.sources.iter().map(rate).collect())
}

/// Operators in topological order, otherwise in the order of the file (Kahn's algorithm).
pub(super) fn topological(workflow: &Workflow) -> Vec<&workflow::Operator> {
    let mut order: Vec<&workflow::Operator> = Vec::new();
    let mut waiting: Vec<&workflow::Operator> = workflow.operators.iter().collect();
    while !waiting.is_empty() {
        let ready = |operator: &&workflow::Operator| {
            let mut inputs = operator.inputs.iter();
            inputs.all(|input| waiting.iter().all(|other| other.id.value != input.from.value))
        };
        // A loaded workflow has no cycles.
        let next = waiting.iter().position(ready).unwrap_or(0);
        order.push(waiting.remove(next));
    }
    order
}

/// Records per second that an operator takes; pairs, for a join.
pub(super) fn input_rate(
    inputs: &Inputs<'_>,
    operator: &workflow::Operator,
    outputs: &BTreeMap<&str, f64>,
) -> f64 {
    let rates = operator.inputs.iter().map(|input| outputs[input.from.value.as_str()]);
    match inputs.kinds.operator_of(operator).joins {
        true => rates.reduce(f64::min).unwrap_or(0.0),
        false => rates.sum(),
    }
}

/// The operator that each one is fused into: itself, or for weightless ones the only producer or only consumer (see
/// [`crate::problem`]).
fn hosts<'a>(
    workflow: &'a Workflow,
    services: &Services,
    order: &[&'a workflow::Operator],
) -> BTreeMap<&'a str, &'a str> {
    let consumers = |id: &str| {
        let operators = workflow.operators.iter().flat_map(move |operator| {
            let reads = operator.inputs.iter().any(|input| input.from.value == id);
            reads.then_some(operator.id.value.as_str())
        });
        let sinks = workflow.sinks.iter().filter(|sink| sink.input.from.value == id).count();
        (operators.collect::<Vec<_>>(), sinks)
    };
    let mut hosts: BTreeMap<&str, &str> = BTreeMap::new();
    // Forwards from the sources: operators with weight run by themselves, others with their only producer.
    for operator in order {
        let id = operator.id.value.as_str();
        let producer = match &operator.inputs[..] {
            [only] => workflow.operators.iter().find(|other| other.id.value == only.from.value),
            _ => None,
        };
        let host = match producer {
            _ if services.contains_key(id) => Some(id),
            Some(producer) => hosts.get(producer.id.value.as_str()).copied(),
            None => None,
        };
        let waits = matches!(consumers(id), (ref all, 0) if all.len() == 1);
        if let Some(host) = host.or((!waits).then_some(id)) {
            hosts.insert(id, host);
        }
    }
    // Backwards from the sinks: the remaining ones run with their only consumer.
    for operator in order.iter().rev() {
        let id = operator.id.value.as_str();
        if !hosts.contains_key(id) {
            let host = consumers(id).0.first().and_then(|consumer| hosts.get(consumer)).copied();
            hosts.insert(id, host.unwrap_or(id));
        }
    }
    hosts
}

/// Operators of the problem with the models that each may have; none: it has no models.
fn models(inputs: &Inputs<'_>, heads: &[Head], services: &Services) -> Vec<Models> {
    let models = |head: &Head| {
        let with = services.get(&head.id).filter(|_| inputs.models.contains_key(&head.id));
        let models = with.map(|variants| variants.iter().map(|variant| variant.id.clone()).collect());
        (head.id.clone(), models)
    };
    heads.iter().map(models).collect()
}

/// The nearest operators with models at or before an operator of the workflow.
pub(super) fn models_before(inputs: &Inputs<'_>, producer: &str) -> Vec<String> {
    if inputs.models.contains_key(producer) {
        return vec![producer.to_owned()];
    }
    let operator = inputs.workflow.operators.iter().find(|operator| operator.id.value == producer);
    let before = operator.into_iter().flat_map(|operator| &operator.inputs);
    let mut all: Vec<String> = before.flat_map(|input| models_before(inputs, &input.from.value)).collect();
    all.sort();
    all.dedup();
    all
}

/// A list of names that are no operators of the problem, for a message; none: all are.
pub(super) fn unknown_operators(streams: &Streams, names: impl Iterator<Item = String>) -> Option<String> {
    let unknown: Vec<String> = names.filter(|name| streams.position(name).is_none()).collect();
    (!unknown.is_empty()).then(|| listed(unknown.iter().map(String::as_str)))
}
