//! Turns a [`Solution`] into a [`Plan`] that can run.
//!
//! - A worker in use has the name from the infrastructure, else `tier[-site]-type-number`, such as `edge-cpu-1-0`.
//! - Sources run on devices of their own, `device-tier[-site]` of the type [`SOURCE_DEVICE`]: cameras and microphones,
//!   which cost nothing.
//! - A weightless operator that is not fused runs on a worker in use at its location, else on the device there. A fused
//!   operator runs where its host does.
//! - A sink has one stage, on the worker that sends it most of its records.
//! - Each of several stages of an operator is named `operator@worker`.
mod devices;
mod fallbacks;
mod placement;
mod read;
#[cfg(test)]
mod tests;

pub use read::{ReadError, solution_of};

use crate::assemble::{Assembly, Inputs, outputs_of};
use crate::cost::{CostError, cost};
use crate::solution::{Hosting, Solution};
use crate::summary::headroom;
use placement::Placement;
use std::collections::{BTreeMap, BTreeSet};
use tidemill_spec::backend;
use tidemill_spec::plan::{
    LatencyBasis, Plan, PlanEdge, PlanWorkflow, Predicted, PredictedValue, RouteClass, SOURCE_DEVICE, Stage,
    default_percentile,
};
use tidemill_spec::policies::resolve;
use tidemill_spec::units::{HourlyPrice, Percent, Percentile, Rate, TimeSpan, TransferPrice};
use tidemill_spec::workflow::Workflow;

/// Shares below this are rounding errors.
const DUST: f64 = 1e-9;

/// Why a solution cannot become a plan.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PhysicalError {
    /// It has no cost.
    #[error(transparent)]
    Cost(#[from] CostError),
    /// More route classes than a plan can number.
    #[error("{0} route classes; a plan has at most 65536")]
    Classes(usize),
}

/// Returns the plan of a solution; `profiles` are the digests of the files with the figures.
///
/// # Errors
/// A solution that does not fit the problem.
pub fn physical(
    inputs: &Inputs<'_>,
    assembly: &Assembly,
    solution: &Solution,
    profiles: Vec<String>,
) -> Result<Plan, PhysicalError> {
    let cost = cost(&assembly.problem, solution)?;
    let mut placement = Placement::new(assembly, solution);
    let routes = routes(inputs, assembly, solution, &mut placement);
    let classes: Vec<RouteClass> = (0..=u16::MAX)
        .zip(&routes)
        .map(|(id, (route, share))| RouteClass { id, share: *share, route: route.clone() })
        .collect();
    if classes.len() < routes.len() {
        return Err(PhysicalError::Classes(routes.len()));
    }
    let variants = variants(inputs, assembly, solution);
    let stages = stages(inputs, assembly, solution, &placement, &classes, &variants);
    let edges = edges(inputs, assembly, &placement, &classes, &variants);
    let fallbacks = fallbacks::fallbacks(inputs, assembly, solution, &mut placement, &variants)?;
    let problem = &assembly.problem;
    let predicted = Predicted {
        rate: Some(PredictedValue {
            value: Rate(rounded(assembly.rate)),
            from: None,
            to: headroom(problem, solution).map(|factor| Rate(rounded(assembly.rate * factor))),
        }),
        mean: None,
        p50: None,
        p90: None,
        p99: None,
        latency_at: None,
        latency_basis: LatencyBasis::Guaranteed,
        cost: Some(PredictedValue { value: HourlyPrice(rounded(cost.total())), from: None, to: None }),
        accuracy: problem.accuracy_of(&solution.variants).map(|accuracy| {
            let measured = inputs.profile.accuracy_row(&variants).and_then(|row| row.interval);
            PredictedValue {
                value: Percent(accuracy),
                from: measured.map(|(low, _)| low),
                to: measured.map(|(_, high)| high),
            }
        }),
        utilization: BTreeMap::new(),
    };
    let workflow = inputs.workflow;
    let percentile = Percentile(problem.limits.percentile);
    Ok(Plan {
        tick: workflow.run.tick.value,
        checkpoint_every: assembly.checkpoint_every,
        percentile: if percentile.0 > 0.0 { percentile } else { default_percentile() },
        workers: placement.used_workers(&stages),
        devices: devices::devices(assembly, solution, placement.names()),
        stages,
        classes,
        edges,
        policies: resolve(workflow, Some(inputs.infrastructure)),
        survive: if fallbacks.is_empty() { 0 } else { problem.limits.survive },
        fallbacks,
        predicted: Some(predicted),
        profiles,
        ..Plan::new(PlanWorkflow { name: workflow.name.value.clone(), digest: Some(workflow.digest()) })
    })
}

/// Returns the ids of the workers in use in the plan, in the order of the solution.
pub fn worker_names(assembly: &Assembly, solution: &Solution) -> Vec<String> {
    Placement::new(assembly, solution).names().to_vec()
}

/// Returns the stage ids of the operators by hosting; none for a hosting that no class uses.
pub fn stage_names(assembly: &Assembly, solution: &Solution) -> Vec<Option<String>> {
    let mut placement = Placement::new(assembly, solution);
    let mut names = vec![None; solution.hostings.len()];
    for class in solution.classes.iter().filter(|class| class.share > DUST) {
        for (operator, host) in &assembly.hosts {
            let hosting = class.hostings[*host];
            let name = placement.operator(operator, hosting);
            if assembly.problem.operators[*host].id == *operator {
                names[hosting] = Some(name);
            }
        }
    }
    names
}

/// Rounds to six decimals, which removes rounding errors of sums.
fn rounded(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

type Route = BTreeMap<String, String>;

/// A stage for every part of the workflow, for each share of the keys. Classes with equal routes are merged.
fn routes(
    inputs: &Inputs<'_>,
    assembly: &Assembly,
    solution: &Solution,
    placement: &mut Placement<'_>,
) -> Vec<(Route, f64)> {
    let whole: f64 = solution.classes.iter().map(|class| class.share).filter(|share| *share > DUST).sum();
    let mut routes: Vec<(Route, f64)> = Vec::new();
    for class in solution.classes.iter().filter(|class| class.share > DUST) {
        let mut route = Route::new();
        for (index, source) in assembly.problem.sources.iter().enumerate() {
            route.insert(source.id.clone(), placement.source(&source.id, class.sources[index]));
        }
        for (operator, host) in &assembly.hosts {
            route.insert(operator.clone(), placement.operator(operator, class.hostings[*host]));
        }
        match routes.iter_mut().find(|(other, _)| *other == route) {
            Some((_, share)) => *share += class.share / whole,
            None => routes.push((route, class.share / whole)),
        }
    }
    for sink in &inputs.workflow.sinks {
        let mut shares: BTreeMap<&str, f64> = BTreeMap::new();
        for (route, share) in &routes {
            *shares.entry(&route[&sink.input.from.value]).or_default() += share;
        }
        let most = shares.iter().max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(a.0)));
        if let Some((stage, _)) = most {
            let stage = (*stage).to_owned();
            placement.sink(&sink.id.value, &stage);
        }
        for (route, _) in &mut routes {
            route.insert(sink.id.value.clone(), sink.id.value.clone());
        }
    }
    routes
}

/// Returns the records per second that leave each source and operator of the workflow, with the variants of a solution.
pub fn output_rates(inputs: &Inputs<'_>, assembly: &Assembly, solution: &Solution) -> BTreeMap<String, f64> {
    outputs_of(inputs, &assembly.problem.sources, &variants(inputs, assembly, solution))
}

/// Chosen variants by operator of the workflow, for operators with models.
fn variants(inputs: &Inputs<'_>, assembly: &Assembly, solution: &Solution) -> BTreeMap<String, String> {
    let chosen = assembly.problem.operators.iter().zip(&solution.variants);
    let with_models = chosen.filter(|(operator, _)| inputs.models.contains_key(&operator.id));
    with_models.map(|(operator, &m)| (operator.id.clone(), operator.variants[m].id.clone())).collect()
}

/// The device of an operator whose model stays on the processors of its worker, if it is to have a process of its own: by its back
/// end, or as the workflow says.
fn own_device(workflow: &Workflow, operator: &str, backend: Option<&str>) -> Option<String> {
    let as_written = || {
        let of = workflow.operators.iter().find(|of| of.id == *operator)?;
        of.device.as_ref()?.own()
    };
    backend.and_then(backend::own_device).or_else(as_written)
}

fn stages(
    inputs: &Inputs<'_>,
    assembly: &Assembly,
    solution: &Solution,
    placement: &Placement<'_>,
    classes: &[RouteClass],
    variants: &BTreeMap<String, String>,
) -> Vec<Stage> {
    let workflow = inputs.workflow;
    let sources = workflow.sources.iter().map(|source| &source.id.value);
    let operators = workflow.operators.iter().map(|operator| &operator.id.value);
    let all = sources.chain(operators).chain(workflow.sinks.iter().map(|sink| &sink.id.value));
    let mut stages = Vec::new();
    for operator in all {
        let mut shares: BTreeMap<&str, f64> = BTreeMap::new();
        let mut ids: Vec<&str> = Vec::new();
        for class in classes {
            let id = class.route[operator].as_str();
            *shares.entry(id).or_default() += class.share;
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
        for id in ids {
            let place = placement.of(id);
            let hosting = place.hosting.map(|hosting| &solution.hostings[hosting]);
            let own = Stage { share: shares[id].min(1.0), ..Stage::new(id, operator, &place.worker) };
            stages.push(stage(inputs, assembly, solution, (hosting, placement.names()), variants, own));
        }
    }
    stages
}

/// A stage with model, mode and device of its hosting.
fn stage(
    inputs: &Inputs<'_>,
    assembly: &Assembly,
    solution: &Solution,
    (hosting, names): (Option<&Hosting>, &[String]),
    variants: &BTreeMap<String, String>,
    own: Stage,
) -> Stage {
    let operator = &own.operator;
    // Only the operator itself has modes and a device, not those fused into it.
    let hosting = hosting.filter(|of| assembly.problem.operators[of.operator].id == *operator);
    let mode = hosting.and_then(|hosting| assembly.problem.mode_of(solution, hosting));
    let backend = mode.and_then(|mode| mode.backend.clone());
    Stage {
        variant: variants.get(operator).cloned(),
        device: hosting
            .and_then(|hosting| devices::named(hosting, names))
            .or_else(|| own_device(inputs.workflow, operator, backend.as_deref())),
        backend,
        remote_run: hosting.and_then(|hosting| devices::remote_run(assembly, solution, hosting)),
        sends: mode.and_then(|mode| mode.remote.as_ref()).map(|remote| remote.sends).unwrap_or_default(),
        max_batch: mode.map_or(1, |mode| mode.batch),
        batching_budget: mode.map_or(TimeSpan(0), |mode| nanoseconds(mode.fill_seconds)),
        ..own
    }
}

fn nanoseconds(seconds: f64) -> TimeSpan {
    TimeSpan((seconds * 1e9).round() as u64)
}

/// An edge wherever a class passes from one stage to another.
fn edges(
    inputs: &Inputs<'_>,
    assembly: &Assembly,
    placement: &Placement<'_>,
    classes: &[RouteClass],
    variants: &BTreeMap<String, String>,
) -> Vec<PlanEdge> {
    let workflow = inputs.workflow;
    let mut connections: Vec<(&str, &str, u32)> = Vec::new();
    for operator in &workflow.operators {
        let inputs = (0u32..).zip(&operator.inputs);
        connections.extend(
            inputs.map(|(port, input)| (input.from.value.as_str(), operator.id.value.as_str(), port)),
        );
    }
    connections.extend(workflow.sinks.iter().map(|s| (s.input.from.value.as_str(), s.id.value.as_str(), 0)));
    let outputs = outputs_of(inputs, &assembly.problem.sources, variants);
    let is_sink = |id: &str| workflow.sinks.iter().any(|sink| sink.id.value == id);
    let mut edges: Vec<PlanEdge> = Vec::new();
    for (from, to, input) in connections {
        // Records that stay with their host are not counted, so no similar size replaces theirs.
        let is_counted = !is_sink(to) && assembly.hosts.get(from) != assembly.hosts.get(to);
        let is_known = || inputs.profile.knows_bytes_per_record((from, to, input), variants);
        let bytes = inputs.profile.bytes_per_record((from, to, input), variants);
        let bytes = bytes.filter(|_| is_counted || is_known());
        let mut places: BTreeSet<(&str, &str)> = BTreeSet::new();
        for class in classes {
            let (sender, receiver) = (class.route[from].as_str(), class.route[to].as_str());
            if !places.insert((sender, receiver)) {
                continue;
            }
            let both = |class: &&RouteClass| class.route[from] == sender && class.route[to] == receiver;
            let share: f64 = classes.iter().filter(both).map(|class| class.share).sum();
            let (a, b) = (placement.of(sender), placement.of(receiver));
            // Records for a sink cost no traffic: results stay where they are made.
            let route = assembly.problem.route(a.location, b.location).filter(|_| !is_sink(to));
            let price = route.map_or(0.0, |route| route.price);
            edges.push(PlanEdge {
                bytes_per_record: bytes,
                rate: outputs.get(from).map(|rate| Rate(rounded(rate * share))),
                price: (price > 0.0).then_some(TransferPrice(price)),
                ..PlanEdge::new(sender, receiver, input)
            });
        }
    }
    edges
}
