//! Builds a planning [`Problem`] from files: workflow, infrastructure, profile and facts of models, with notes for the
//! user about whatever was left out.
//!
//! | step | module |
//! |---|---|
//! | tiers, sites, machines, links | `machines` |
//! | records per second by the models chosen | `rates` |
//! | fused operators and streams | `streams` |
//! | bytes per record by the models chosen | `sizes` |
//! | operators that need all their records in one stage | `meeting` |
//! | service times of variants on machines | `services` |
//! | models that run on devices for stages | `devices`, `rows` |
//! | losses of workers to survive | `losses` |
//! | rows of accuracy | `accuracy` |
//! | operators that no link reaches | `reach` |
//! | when readers see results, checkpoints | `publication` |
//!
//! Nothing is guessed: a combination of variant and machine without figures is left out and named in
//! [`Assembly::notes`]. A workflow without enough figures for any plan is refused, with the command that measures them.
mod accuracy;
mod devices;
mod losses;
mod machines;
mod meeting;
mod publication;
mod rates;
mod reach;
mod rows;
mod services;
mod sizes;
mod streams;
#[cfg(test)]
pub(crate) mod tests;

pub use machines::DeviceFacts;
pub(crate) use rates::outputs_of;
pub use rows::{ROWS_OF_CALL, row_bytes};

use crate::problem::{LatencyLimit, Limits, Problem, ReturnTraffic};
use std::collections::{BTreeMap, BTreeSet};
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::infrastructure::{Infrastructure, numbered_machine};
use tidemill_spec::kinds::KindTable;
use tidemill_spec::plan::default_percentile;
use tidemill_spec::profile::Profile;
use tidemill_spec::units::{Percent, Percentile, Rate, TimeSpan};
use tidemill_spec::workflow::{LatencySlo, Workflow};

/// The command that measures, as notes name it: the caller knows its arguments.
pub const MEASURE: &str = "`tidemill profile`";

/// The files that a problem is made from.
#[derive(Debug, Clone, Copy)]
pub struct Inputs<'a> {
    /// The workflow.
    pub workflow: &'a Workflow,
    /// Machines, links and prices.
    pub infrastructure: &'a Infrastructure,
    /// Measured facts, all profiles merged.
    pub profile: &'a Profile,
    /// Facts of the models, by operator.
    pub models: &'a Models,
    /// Facts of the kinds of sources, operators and sinks.
    pub kinds: &'a KindTable,
}

/// Candidate models by operator, in the order of the workflow; only operators with models are in it.
pub type Models = BTreeMap<String, Vec<Model>>;

/// A candidate model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    /// Id of its manifest: the variant's name in plans and profiles.
    pub id: String,
    /// Backends that its manifest names; empty: not known.
    pub backends: Vec<String>,
    /// Bytes of a record's tensors; none: they do not go to a device.
    pub tensors: Option<TensorBytes>,
    /// None: its rows do not go to a device.
    pub rows: Option<Rows>,
    /// Why it cannot run here, for example because it was not fetched. A model with an obstacle is planned only where
    /// all models of its operator have one.
    pub obstacle: Option<String>,
}

/// Bytes of the tensors of one record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorBytes {
    /// Of the inputs.
    pub sent: u64,
    /// Of the outputs.
    pub received: u64,
}

/// Rows of a model that a device can prepare and finish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rows {
    /// Whether the operator gives on all columns of its input, so that its records are longer than those by the results.
    pub keeps_all: bool,
}

/// Choices of the user beyond the files. The default keeps those of the workflow.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Records per second of the slowest source; none: the workflow's.
    pub rate: Option<Rate>,
    /// Least end-to-end accuracy; none: the workflow's.
    pub accuracy: Option<Percent>,
    /// Bound on latency; none: the workflow's.
    pub latency: Option<LatencySlo>,
    /// Workers that may be lost at a time; none: the workflow's.
    pub survive: Option<u32>,
    /// Service levels of the workflow that do not count.
    pub without: BTreeSet<Level>,
    /// Largest share of its time that a worker may be busy.
    pub max_utilization: f64,
    /// Whether records may go to a lower tier.
    pub return_traffic: ReturnTraffic,
    /// Whether a worker may run one operator only.
    pub one_operator_per_worker: bool,
    /// Percentile of service times that the guarantee uses.
    pub percentile: Percentile,
    /// Ticks between checkpoints; none: the workflow's, or fewer where the bound on latency requires it.
    pub checkpoint_every: Option<u64>,
    /// Records with equal event time, by source, where a source declares more than 1.
    pub at_one_time: BTreeMap<String, u32>,
}

impl Default for Options {
    fn default() -> Self {
        let limits = Limits::default();
        Self {
            rate: None,
            accuracy: None,
            latency: None,
            survive: None,
            without: BTreeSet::new(),
            max_utilization: limits.max_utilization,
            return_traffic: limits.return_traffic,
            one_operator_per_worker: limits.one_operator_per_worker,
            percentile: default_percentile(),
            checkpoint_every: None,
            at_one_time: BTreeMap::new(),
        }
    }
}

/// A kind of service level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Level {
    /// Records per second at the sources.
    Rate,
    /// Least end-to-end accuracy.
    Accuracy,
    /// Largest end-to-end latency.
    Latency,
    /// Number of workers that may be lost at a time.
    Survive,
}

impl std::fmt::Display for Level {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Level::Rate => "rate",
            Level::Accuracy => "accuracy",
            Level::Latency => "latency",
            Level::Survive => "survive",
        })
    }
}

/// A problem and how its parts correspond to the files.
#[derive(Debug, Clone, PartialEq)]
pub struct Assembly {
    /// The problem.
    pub problem: Problem,
    /// Records per second of the slowest source, as the service level on the rate counts them.
    pub rate: f64,
    /// Operator of the problem by operator of the workflow: its own, or the one that it is fused into.
    pub hosts: BTreeMap<String, usize>,
    /// Ticks between checkpoints.
    pub checkpoint_every: u64,
    /// Sites, by position of the problem's locations.
    pub sites: Vec<Site>,
    /// Names of the machines, by worker class; empty: they are numbered.
    pub names: Vec<Vec<String>>,
    /// Share of each machine's time that other programs take, by worker class.
    pub busy: Vec<f64>,
    /// Facts of the classes of devices; none for workers.
    pub devices: Vec<Option<DeviceFacts>>,
    /// Omissions and assumptions, one per line.
    pub notes: Vec<String>,
}

impl Assembly {
    /// Factor by which everything is slower on machines of a class because other programs take part of their time.
    pub fn slowdown(&self, class: usize) -> f64 {
        let busy = self.busy.get(class).copied().unwrap_or(0.0);
        slowdown(busy, self.problem.limits.max_utilization).unwrap_or(1.0)
    }
}

/// Factor by which everything is slower on a shared machine. Work that fills what is left of `most`, the largest
/// allowed share, then fills the machine. None: nothing is left.
fn slowdown(busy: f64, most: f64) -> Option<f64> {
    (busy < most).then(|| most / (most - busy))
}

/// A location of the problem as the infrastructure names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Site {
    /// Tier.
    pub tier: String,
    /// Site of the tier; none: the tier has one site.
    pub location: Option<String>,
}

impl Site {
    /// Name of a machine that the infrastructure does not name.
    pub fn machine(&self, worker_type: &str, index: u32) -> String {
        numbered_machine(&self.tier, self.location.as_deref(), worker_type, index)
    }
}

/// Makes the problem.
///
/// # Errors
/// `E09xx`: a fact that every plan needs is missing; the help says how to supply it.
pub fn assemble(inputs: &Inputs<'_>, options: &Options) -> Result<Assembly, Diagnostics> {
    let mut found = inputs.profile.validate_against(inputs.workflow);
    if found.has_errors() {
        return Err(found);
    }
    let mut notes = Vec::new();
    found = Diagnostics::new();
    if inputs.workflow.operators.is_empty() {
        let nothing = Diagnostic::error("E0908", "the workflow has no operators: there is nothing to plan")
            .at(inputs.workflow.name.span.clone())
            .with_help("`tidemill run` runs it as it is");
        return Err(nothing.into());
    }
    let machines = machines::machines(inputs.infrastructure);
    devices::check(inputs, &mut found);
    if found.has_errors() {
        return Err(found);
    }
    let meeting = meeting::all_must_meet(inputs.workflow, inputs.kinds);
    let services = services::services(inputs, options, &machines, &meeting, &mut notes, &mut found);
    let streams =
        streams::streams(inputs, options, &machines, (services.as_ref(), &meeting), &mut notes, &mut found);
    let (Some(services), Some(streams)) = (services, streams) else {
        return Err(found);
    };
    let mut limits = limits(inputs.workflow, options);
    let operators = streams.operators(services);
    let operators = losses::survive(inputs, options, operators, &mut limits, &mut notes);
    let checkpoint_every = publication::checkpoint_every(inputs, options, &limits, &mut notes);
    limits.publication_seconds =
        publication::seconds(inputs, checkpoint_every, (&operators, &streams.edges, &streams.hosts));
    let accuracy = accuracy::model(inputs, &streams, &operators, limits.accuracy, &mut notes, &mut found);
    let problem = Problem {
        name: inputs.workflow.name.value.clone(),
        operators,
        edges: streams.edges,
        sources: streams.sources,
        locations: machines.locations,
        worker_classes: machines.classes,
        routes: machines.routes,
        rates: None,
        sizes: Vec::new(),
        accuracy,
        limits,
    }
    .with_variant_rates(streams.rates)
    .with_sizes(streams.sizes);
    notes.extend(devices::without_model_part(inputs, &problem));
    reach::check(inputs, &problem, &mut found);
    if !found.has_errors()
        && let Err(error) = problem.check()
    {
        found.push(Diagnostic::error(
            "E0909",
            format!("cannot make a planning problem of these files: {error}"),
        ));
    }
    found.into_result(())?;
    let rate = problem.sources.iter().map(|source| source.rate).fold(f64::INFINITY, f64::min);
    Ok(Assembly {
        problem,
        rate,
        hosts: streams.hosts,
        checkpoint_every,
        sites: machines.sites,
        names: machines.names,
        busy: machines.busy,
        devices: machines.devices,
        notes,
    })
}

fn limits(workflow: &Workflow, options: &Options) -> Limits {
    let counts = |level| !options.without.contains(&level);
    let accuracy = options.accuracy.or(workflow.slo.accuracy.as_ref().map(|accuracy| accuracy.value));
    let latency = options.latency.as_ref().or(workflow.slo.latency.as_ref());
    let latency = latency.filter(|_| counts(Level::Latency)).map(|slo| LatencyLimit {
        percentile: slo.percentile.0,
        seconds: seconds(slo.below.value),
        sink: None,
    });
    Limits {
        accuracy: accuracy.filter(|_| counts(Level::Accuracy)).map(|accuracy| accuracy.0),
        latency: latency.into_iter().collect(),
        max_utilization: options.max_utilization,
        one_operator_per_worker: options.one_operator_per_worker,
        return_traffic: options.return_traffic,
        percentile: options.percentile.0,
        tick_seconds: seconds(workflow.run.tick.value),
        ..Limits::default()
    }
}

/// Converts to seconds.
fn seconds(span: TimeSpan) -> f64 {
    span.0 as f64 / 1e9
}

/// Returns the command that measures missing figures.
fn profile_command(workflow: &Workflow) -> String {
    let file = workflow.name.span.source().map_or("workflow.yaml", |source| source.name());
    format!("measure it: `tidemill profile {file} --infra FILE`")
}

/// Names as a list: `a`, `b` and `c`.
fn listed<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<String> = names.into_iter().map(|name| format!("`{name}`")).collect();
    match names.split_last() {
        None => "nothing".to_owned(),
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} and {last}", rest.join(", ")),
    }
}
