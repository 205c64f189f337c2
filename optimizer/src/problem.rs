//! A planning problem in plain numbers, without files or names to resolve.
//!
//! Positions identify everything: operator 2 is `problem.operators[2]`. Units: seconds, bytes, records, dollars; prices
//! of workers in $/h; accuracies in percent.
//!
//! **Weightless operators.** Relational operators without a measured service time cost nothing. The caller fuses one
//! with a single input into its producer (into its consumer where the producer is a source), and a join into its only
//! consumer. The others (a join with several consumers or none) have [`Operator::weightless`]: such an operator runs at
//! a location, needs no worker of its own, and does not count for [`Limits::one_operator_per_worker`]. Sinks run where
//! their input is produced and are not part of a problem.
//!
//! **Devices.** A device that runs models for stages is a worker class on which no operator has modes of its own: modes
//! of other classes name it in [`ServiceMode::remote`]. Such a mode is that of the stage, and [`Remote::run`] that of the
//! model on the device.
//!
//! **Locations of sources.** Records with equal keys come from one location at all sources of one tier: sources with
//! equal [`Source::locations`] are one origin (see [`Problem::origins`]).
mod accuracy;
mod check;
mod rates;
mod remote;
mod sizes;

pub use accuracy::{ACCURACY_TOLERANCE, AccuracyModel, AccuracyRow, ResponseRow};
pub use check::ProblemError;
pub use rates::{Case, RateCase, Rates};
pub use remote::Way;
pub use sizes::Sizes;
use std::collections::BTreeSet;
pub use tidemill_spec::plan::Sends;

/// A planning problem. Call [`Problem::check`] once after creating it.
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    /// Name in reports.
    pub name: String,
    /// Operators in topological order: an edge never leads to an earlier one.
    pub operators: Vec<Operator>,
    /// Streams between sources and operators and between operators.
    pub edges: Vec<Edge>,
    /// Origins of records.
    pub sources: Vec<Source>,
    /// Sites of tiers.
    pub locations: Vec<Location>,
    /// Identical machines at one location.
    pub worker_classes: Vec<WorkerClass>,
    /// `routes[from][to]`: the route of traffic between locations; none: unreachable. From a location to itself it is
    /// usually free. [`Problem::route`] also considers [`ReturnTraffic`].
    pub routes: Vec<Vec<Option<Route>>>,
    /// Rates of operators and edges where they depend on variants; none: they do not. See [`Rates`].
    pub rates: Option<Rates>,
    /// Sizes of records on edges where they depend on more variants than the sender's, by edge. See [`Sizes`].
    pub sizes: Vec<Sizes>,
    /// Accuracy by variants.
    pub accuracy: AccuracyModel,
    /// Limits of a plan.
    pub limits: Limits,
}

/// Work done on records.
#[derive(Debug, Clone, PartialEq)]
pub struct Operator {
    /// Id in the workflow.
    pub id: String,
    /// Records per second to serve (pairs, for a join); the most of any joint variants, see [`Problem::rates`].
    pub rate: f64,
    /// Candidate models, at least one; an operator without models has one variant.
    pub variants: Vec<Variant>,
    /// Costs nothing and needs no worker of its own (see the module's text); its variants have no modes.
    pub weightless: bool,
    /// Emits on ticks: a record waits up to one tick more.
    pub stateful: bool,
    /// Takes records once all of their event time have arrived: they wait for the last record of that event time, see
    /// [`Source::at_one_time`].
    pub follows_event_time: bool,
    /// All its records must meet, so one worker runs it; a weightless one runs where its input is.
    pub on_one_worker: bool,
    /// Number of workers, at most [`Limits::survive`], whose loss it survives without a restart: its stages on the other workers
    /// then take over. After more losses, it may start again on any worker that is left.
    pub survive: u32,
    /// Ids of weightless operators that run in the same stage, in order of the stream.
    pub fused: Vec<String>,
}

/// One candidate model of an operator.
#[derive(Debug, Clone, PartialEq)]
pub struct Variant {
    /// Id of the model manifest; the operator's id where there is no model.
    pub id: String,
    /// `modes[class]`: modes on a worker of that class; empty: it does not run there.
    pub modes: Vec<Vec<ServiceMode>>,
}

/// A mode of running a variant on a worker.
#[derive(Debug, Clone, PartialEq)]
pub struct ServiceMode {
    /// Inference backend; none: no model, or the only one.
    pub backend: Option<String>,
    /// Records per call, at least 1.
    pub batch: u32,
    /// Seconds of the worker per record: the guaranteed percentile of a call, or its mean where that is more, divided by `batch`.
    pub seconds_per_record: f64,
    /// Seconds of a call from start to end, at the guaranteed percentile.
    pub call_seconds: f64,
    /// Seconds that a record may wait for its batch to fill (the batching budget); 0 with `batch` 1.
    pub fill_seconds: f64,
    /// Mean seconds of a call.
    pub mean_call_seconds: f64,
    /// Variance of the seconds of a call, in seconds squared.
    pub variance_call_seconds: f64,
    /// Memory that the loaded model needs, in bytes.
    pub memory_bytes: f64,
    /// Measured seconds of single calls; may be empty.
    pub samples: Vec<f64>,
    /// The run of the model on a device; none: the worker itself runs it. The times of the mode then are those of the
    /// stage alone.
    pub remote: Option<Remote>,
}

/// The model of a stage on a device. All records of an operator run on devices of one class, in one mode, or none do.
#[derive(Debug, Clone, PartialEq)]
pub struct Remote {
    /// Worker class of the device.
    pub class: usize,
    /// Times and memory of the model there; has no remote itself. Its batches are those of the stage.
    pub run: Box<ServiceMode>,
    /// The form of the records.
    pub sends: Sends,
    /// Bytes of a record to the device.
    pub sent_bytes: f64,
    /// Bytes of a record back from the device.
    pub received_bytes: f64,
}

impl ServiceMode {
    /// One record per call in exactly this time, without memory.
    pub fn constant(seconds: f64) -> Self {
        Self {
            backend: None,
            batch: 1,
            seconds_per_record: seconds,
            call_seconds: seconds,
            fill_seconds: 0.0,
            mean_call_seconds: seconds,
            variance_call_seconds: 0.0,
            memory_bytes: 0.0,
            samples: Vec::new(),
            remote: None,
        }
    }
}

/// Producer of an edge's records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Producer {
    /// A source.
    Source(usize),
    /// An operator.
    Operator(usize),
}

/// A stream.
#[derive(Debug, Clone, PartialEq)]
pub struct Edge {
    /// Producer of its records.
    pub from: Producer,
    /// Operator that takes them.
    pub to: usize,
    /// Input of that operator, from 0.
    pub input: usize,
    /// Records per second; the most of any joint variants, see [`Problem::rates`].
    pub rate: f64,
    /// Bytes of one record by variant of the producing operator; one value for a source. The most of any joint variants, see
    /// [`Problem::sizes`].
    pub bytes: Vec<f64>,
}

/// A source of records.
#[derive(Debug, Clone, PartialEq)]
pub struct Source {
    /// Id in the workflow.
    pub id: String,
    /// Records per second, over all locations.
    pub rate: f64,
    /// Locations with their share of the records; the shares add up to 1.
    pub locations: Vec<(usize, f64)>,
    /// Consecutive records with equal event time, at least 1: the frames of several cameras.
    pub at_one_time: u32,
    /// Whether these are the replies of a device, which a planner adds to a problem: they have traffic, and no latency.
    pub replies: bool,
}

/// A site of a tier.
#[derive(Debug, Clone, PartialEq)]
pub struct Location {
    /// Name in reports: the tier's, with the site's where there are several (`edge/north`).
    pub name: String,
    /// Position of the tier, 0 for the lowest.
    pub tier: usize,
}

/// Identical machines at one location.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerClass {
    /// Their location.
    pub location: usize,
    /// Worker type in the infrastructure.
    pub worker_type: String,
    /// Number of machines.
    pub count: u32,
    /// Price of one, in $/h.
    pub price: f64,
    /// Memory for models of one, in bytes; none: not limited.
    pub memory_bytes: Option<f64>,
}

/// A connection from one location to another.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Route {
    /// Price in $/byte.
    pub price: f64,
    /// Bytes per second; none: not limited.
    pub bandwidth: Option<f64>,
    /// One-way delay in seconds.
    pub delay: f64,
}

/// Whether records may go to a lower tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReturnTraffic {
    /// Never, even where there is a route.
    Forbid,
    /// Where there is a route, at its price.
    #[default]
    Priced,
}

/// Limits of a plan.
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    /// Least end-to-end accuracy in percent.
    pub accuracy: Option<f64>,
    /// Bounds on latency.
    pub latency: Vec<LatencyLimit>,
    /// Largest share of its time that a worker may be busy, by `seconds_per_record`; 0 < value <= 1. Default: 0.85,
    /// because a worker at 1 has no bounded latency.
    pub max_utilization: f64,
    /// Whether a worker may run one operator only. Default: false.
    pub one_operator_per_worker: bool,
    /// Whether records may go to a lower tier. Default: at the price of the route.
    pub return_traffic: ReturnTraffic,
    /// Percentile of `seconds_per_record` and `call_seconds` of the modes, in percent. Default: 75.
    pub percentile: f64,
    /// Seconds of a tick, which a stateful operator adds to a path. Default: 0.05.
    pub tick_seconds: f64,
    /// Most seconds from the end of a path until readers of the sink see the record, which a sink adds to a path.
    /// Default: 0.
    pub publication_seconds: f64,
    /// Number of workers in use that may be lost at a time: for each such loss a plan has a [`crate::solution::Fallback`] that
    /// keeps all limits. Default: 0.
    pub survive: u32,
    /// Waits at a worker, in seconds, that a planner may choose from under a latency limit, ascending. Default: empty,
    /// and [`Limits::waits`] derives them from the limit.
    pub wait_levels: Vec<f64>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            accuracy: None,
            latency: Vec::new(),
            max_utilization: 0.85,
            one_operator_per_worker: false,
            return_traffic: ReturnTraffic::Priced,
            percentile: 75.0,
            tick_seconds: 0.05,
            publication_seconds: 0.0,
            survive: 0,
            wait_levels: Vec::new(),
        }
    }
}

/// Default waits as parts of the time that a limit leaves for a path.
const WAITS: [f64; 4] = [1.0 / 40.0, 1.0 / 16.0, 1.0 / 8.0, 1.0 / 4.0];

impl Limits {
    /// Waits at a worker, in seconds, that a planner may choose from, ascending; none without a latency limit.
    pub fn waits(&self) -> Vec<f64> {
        if self.latency.is_empty() || !self.wait_levels.is_empty() {
            return self.wait_levels.clone();
        }
        let mut left: Vec<f64> = self.latency.iter().map(|limit| self.path_seconds(limit)).collect();
        left.sort_by(f64::total_cmp);
        left.dedup();
        // Without time left, no wait is short enough.
        let parts = left.iter().flat_map(|seconds| WAITS.iter().map(|part| part * seconds.max(1e-6)));
        let mut waits: Vec<f64> = parts.collect();
        waits.sort_by(f64::total_cmp);
        waits.dedup();
        waits
    }

    /// Seconds that a limit leaves for a path; below 0 where publication alone takes longer.
    pub fn path_seconds(&self, limit: &LatencyLimit) -> f64 {
        limit.seconds - self.publication_seconds
    }
}

/// Least part that a stage takes before a loss of what it takes after it, by operator, mode and class of workers: no stage waits idle, so
/// that every one is known to work when it is needed.
pub const STANDBY_SHARE: f64 = 0.01;

/// A bound on the sum of stage percentiles along every path from a source to a sink, plus the time until readers of the
/// sink see the record.
#[derive(Debug, Clone, PartialEq)]
pub struct LatencyLimit {
    /// Bounded percentile of the waiting time, in percent; service times are at [`Limits::percentile`].
    pub percentile: f64,
    /// The bound in seconds.
    pub seconds: f64,
    /// Operator that feeds the sink; none: every operator without a consumer.
    pub sink: Option<usize>,
}

/// Sources with equal locations: records with equal keys come from one location.
#[derive(Debug, Clone, PartialEq)]
pub struct Origin {
    /// The sources.
    pub sources: Vec<usize>,
    /// Locations with their share of the keys.
    pub locations: Vec<(usize, f64)>,
}

impl Problem {
    /// The route between two locations, unless it leads down where that is forbidden.
    pub fn route(&self, from: usize, to: usize) -> Option<&Route> {
        let down = self.locations[to].tier < self.locations[from].tier;
        if down && self.limits.return_traffic == ReturnTraffic::Forbid {
            return None;
        }
        self.routes[from][to].as_ref()
    }

    /// Whether the records of an edge are replies of a device, see [`Source::replies`].
    pub(crate) fn is_reply(&self, edge: &Edge) -> bool {
        matches!(edge.from, Producer::Source(source) if self.sources[source].replies)
    }

    /// Sources grouped by their lists of locations, in order of the first source of each group.
    pub fn origins(&self) -> Vec<Origin> {
        let mut origins: Vec<Origin> = Vec::new();
        for (index, source) in self.sources.iter().enumerate() {
            match origins.iter_mut().find(|origin| origin.locations == source.locations) {
                Some(origin) => origin.sources.push(index),
                None => {
                    origins.push(Origin { sources: vec![index], locations: source.locations.clone() });
                }
            }
        }
        origins
    }

    /// Edges that lead to an operator, in order of its inputs.
    pub fn inputs_of(&self, operator: usize) -> Vec<usize> {
        let mut edges: Vec<usize> = (0..self.edges.len()).filter(|&e| self.edges[e].to == operator).collect();
        edges.sort_by_key(|&e| self.edges[e].input);
        edges
    }

    /// Edges that leave an operator.
    pub fn outputs_of(&self, operator: usize) -> Vec<usize> {
        (0..self.edges.len()).filter(|&e| self.edges[e].from == Producer::Operator(operator)).collect()
    }

    /// Operators without a consumer: they feed sinks.
    pub fn last_operators(&self) -> Vec<usize> {
        (0..self.operators.len()).filter(|&v| self.outputs_of(v).is_empty()).collect()
    }

    /// Bytes per second that an edge carries with these variants (one per operator).
    pub fn edge_bytes_per_second(&self, edge: usize, variants: &[usize]) -> f64 {
        self.edge_rate(edge, variants) * self.edge_bytes(edge, variants)
    }

    /// Most seconds that a record waits in an operator until it is taken: a tick where it is stateful, and until the
    /// last record of its event time is due where it follows event time.
    pub fn held_seconds(&self, operator: usize) -> f64 {
        let until_last = |source: usize| {
            let source = &self.sources[source];
            f64::from(source.at_one_time.max(1) - 1) / source.rate
        };
        let together = match self.operators[operator].follows_event_time {
            true => self.sources_of(operator).into_iter().map(until_last).fold(0.0, f64::max),
            false => 0.0,
        };
        together + if self.operators[operator].stateful { self.limits.tick_seconds } else { 0.0 }
    }

    /// Whether some operator waits for the records of one event time from several cameras.
    pub(crate) fn waits_for_a_moment(&self) -> bool {
        let waits = |operator: &Operator| operator.follows_event_time;
        self.operators.iter().any(waits) && self.sources.iter().any(|source| source.at_one_time > 1)
    }

    /// Sources whose records reach an operator, directly or through others.
    fn sources_of(&self, operator: usize) -> BTreeSet<usize> {
        let (mut sources, mut seen, mut open) = (BTreeSet::new(), BTreeSet::new(), vec![operator]);
        while let Some(operator) = open.pop() {
            for edge in self.edges.iter().filter(|edge| edge.to == operator) {
                match edge.from {
                    Producer::Source(source) => drop(sources.insert(source)),
                    Producer::Operator(before) if seen.insert(before) => open.push(before),
                    Producer::Operator(_) => {}
                }
            }
        }
        sources
    }

    /// Number of joint variants: the product of the numbers of variants, saturating.
    pub fn joint_variants(&self) -> u64 {
        self.operators
            .iter()
            .fold(1u64, |product, operator| product.saturating_mul(operator.variants.len() as u64))
    }
}
