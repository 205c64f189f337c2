//! When readers of the sinks see results, and the interval of checkpoints.
//!
//! A sink publishes the epochs between two boundaries together, once all their records have arrived: with each epoch
//! or, where it cannot take anything back, with each checkpoint (`runtime/engine/src/node/sink.rs`). Let `K` ticks of
//! length `t` lie between two boundaries and let no record of these epochs take longer than `L`, time on ticks
//! excluded. A record that is due at `d`, after the boundary `b <= d`, is visible at `b + K t + L` at the latest, as
//! the last record with it is due before `b + K t`: its latency is at most `K t + L`. A stateful operator emits an
//! epoch when that is complete, which lies within the same `K t`, so the ticks that every path counts for its stateful
//! operators are subtracted. As with the ticks of stateful operators, `L` is that of the slowest record.
use super::{Inputs, Options, seconds as in_seconds};
use crate::problem::{Edge, Limits, Operator, Producer};
use std::collections::BTreeMap;
use tidemill_spec::publication::Publication;
use tidemill_spec::units::TimeSpan;
use tidemill_spec::workflow::Sink;

/// Share of a latency bound that the checkpoint interval may take before it is shortened.
const SHARE: f64 = 0.5;

fn publication(inputs: &Inputs<'_>, sink: &Sink) -> Publication {
    inputs.kinds.sink(&sink.kind).publication
}

/// Ticks between checkpoints: the workflow's. Where sinks publish with checkpoints and latency is bounded, at most as
/// many as leave half of the bound.
pub(super) fn checkpoint_every(
    inputs: &Inputs<'_>,
    options: &Options,
    limits: &Limits,
    notes: &mut Vec<String>,
) -> u64 {
    let asked = options.checkpoint_every.unwrap_or(inputs.workflow.run.checkpoint_every.value);
    let Some(bound) = limits.latency.iter().map(|limit| limit.seconds).reduce(f64::min) else {
        return asked;
    };
    for sink in inputs.workflow.sinks.iter().filter(|sink| publication(inputs, sink) == Publication::AtEnd) {
        notes.push(format!(
            "{}: the output of `{}` sinks becomes visible when the run ends, so no plan can keep the \
             latency level there; the plan bounds the time until records reach the sink. The output of a \
             `jsonl` or `csv` sink becomes visible at the end of each tick",
            sink.id, sink.kind
        ));
    }
    if options.checkpoint_every.is_some() {
        return asked;
    }
    let tick = inputs.workflow.run.tick.value;
    let waiting =
        inputs.workflow.sinks.iter().find(|sink| publication(inputs, sink) == Publication::EachCheckpoint);
    let every = match waiting {
        None => asked,
        Some(_) => asked.min((SHARE * bound / in_seconds(tick)) as u64).max(1),
    };
    if let Some(sink) = waiting.filter(|_| every < asked) {
        notes.push(format!(
            "checkpoints come every {} of {tick} instead of {asked}: the output of `{}` becomes visible \
             with the next checkpoint, and {asked} ticks are {} of the {} that the latency level allows",
            if every == 1 { "tick".to_owned() } else { format!("{every} ticks") },
            sink.id,
            TimeSpan(tick.0.saturating_mul(asked)),
            TimeSpan((bound * 1e9) as u64)
        ));
    }
    every
}

/// Seconds from the end of a path until readers see the record at the latest, over all sinks that publish before the
/// run ends.
pub(super) fn seconds(
    inputs: &Inputs<'_>,
    checkpoint_every: u64,
    (operators, edges, hosts): (&[Operator], &[Edge], &BTreeMap<String, usize>),
) -> f64 {
    let tick = inputs.workflow.run.tick.value;
    // Stateful operators on every path to the end of an operator.
    let mut counted: Vec<u32> = Vec::new();
    for (index, operator) in operators.iter().enumerate() {
        let before = edges.iter().filter(|edge| edge.to == index).map(|edge| match edge.from {
            Producer::Source(_) => 0,
            Producer::Operator(producer) => counted[producer],
        });
        let least = before.min().unwrap_or(0);
        counted.push(least + u32::from(operator.stateful));
    }
    let waits = inputs.workflow.sinks.iter().filter_map(|sink| {
        let operator = hosts.get(&sink.input.from.value)?;
        let longest = in_seconds(publication(inputs, sink).longest_wait(tick, checkpoint_every)?);
        Some(longest - f64::from(counted[*operator]) * in_seconds(tick))
    });
    waits.fold(0.0, f64::max)
}
