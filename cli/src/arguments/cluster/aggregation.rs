//! Arguments of `tidemill agg`.
use super::{OutputForm, parse_time};
use crate::arguments::parse_wait;
use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;
use tidemill_aggregation_service::bench::SHAPES;

/// Verbs of aggregation.
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  tidemill net serve &
  tidemill agg serve &
  tidemill agg bench --shape vgg19 --scale 100 --workers 2 --steps 50
  tidemill agg jobs

Training jobs push gradients to aggregators and get new parameters. Several jobs share few aggregators.")]
pub(crate) enum AggVerb {
    /// Serve aggregators on this machine, until Ctrl-C.
    Serve(ServeAggArguments),
    /// List the jobs: workers, steps, duration of an iteration, loss of speed.
    Jobs(ListAggArguments),
    /// List the aggregators, and which has which tensor.
    Map(ListAggArguments),
    /// Move a tensor of a job, or all of them, to another aggregator, while the job runs.
    Migrate(MigrateArguments),
    /// Remove a job and the states of its tensors.
    Remove(RemoveAggArguments),
    /// Compare aggregators with an all-reduce of the workers, for a model and a network.
    Explain(ExplainAggArguments),
    /// Run a job without data: durations of iterations, and whether its parameters are right.
    Bench(BenchAggArguments),
    /// Be an aggregator for `serve`, which starts this.
    #[command(hide = true)]
    Process(AggProcessArguments),
}

/// The transport service of this machine.
#[derive(Debug, Clone, Args)]
pub(crate) struct AggChoice {
    /// Socket of the transport service of this machine. Default: TIDEMILL_NET, or the usual one of this user.
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
}

/// The service that a command asks, and the form of the answer.
#[derive(Debug, Clone, Args)]
pub(crate) struct AggAsked {
    #[command(flatten)]
    pub(crate) choice: AggChoice,
    /// Format of the output on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill agg serve`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill agg serve
  tidemill agg serve --state /var/lib/tidemill/aggregation --job-memory 4GiB
  tidemill agg serve --aggregators 2      two aggregators, to which jobs are dealt; no moves by itself
  tidemill agg serve --loss-limit 0.05 --profile-iterations 20

A new job is measured on an aggregator of its own; then its tensors move to aggregators with room, where no job loses more of its speed than
the limit. Aggregators are added and ended as jobs come and end. After a crash start it again with the same --state: jobs continue.
It needs a transport service on this machine: `tidemill net serve`.")]
pub(crate) struct ServeAggArguments {
    #[command(flatten)]
    pub(crate) choice: AggChoice,
    /// Folder of the map of tensors, which outlives crashes; created if it does not exist. Default: `NAME.agg` beside the socket.
    #[arg(long, value_name = "DIR")]
    pub(crate) state: Option<PathBuf>,
    /// So many aggregators, to which the tensors of jobs are dealt. Default: as many as the jobs need.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) aggregators: Option<u32>,
    /// The most aggregators; a job that needs more is refused.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) most_aggregators: u32,
    /// Memory of one job on one aggregator.
    #[arg(long, value_name = "SIZE", default_value = "8GiB", value_parser = super::size)]
    pub(crate) job_memory: u64,
    /// The part of its speed that a job may lose beside others, above 0 and at most 0.5.
    #[arg(long, value_name = "PART", default_value_t = 0.1)]
    pub(crate) loss_limit: f64,
    /// Iterations in which a new job is measured alone.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) profile_iterations: u32,
    /// Iterations after which the speed of a job is compared with that; if it is too slow, it gets other aggregators.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) monitor_iterations: u32,
}

/// `tidemill agg process`.
#[derive(Debug, Args)]
pub(crate) struct AggProcessArguments {
    #[arg(long)]
    pub(crate) name: String,
    #[arg(long)]
    pub(crate) socket: PathBuf,
    #[arg(long)]
    pub(crate) state: PathBuf,
    /// How long it stays without a master.
    #[arg(long, default_value = "10min", value_parser = parse_time)]
    pub(crate) orphaned: Duration,
}

/// `tidemill agg jobs` and `tidemill agg map`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill agg jobs
  tidemill agg map --output json
  tidemill agg map finetune

Stages of a job: profiled (it is measured on an aggregator of its own), placed (by the service), fixed (it stays, for the reason shown).")]
pub(crate) struct ListAggArguments {
    /// One job only.
    #[arg(value_name = "JOB")]
    pub(crate) job: Option<String>,
    #[command(flatten)]
    pub(crate) asked: AggAsked,
}

/// `tidemill agg migrate`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill agg migrate finetune 3 a1      one tensor
  tidemill agg migrate finetune --all a1

A tensor moves after the next step of its job: workers compute meanwhile. The old aggregator keeps its copy until all workers have come to
the new one, so that no step is lost if either dies. Waits until the tensors have moved.")]
pub(crate) struct MigrateArguments {
    /// The job.
    #[arg(value_name = "JOB")]
    pub(crate) job: String,
    /// The tensor, as `tidemill agg map` numbers it, and the aggregator; with `--all` the aggregator only.
    #[arg(value_name = "TENSOR|TO", required = true, num_args = 1..=2)]
    pub(crate) places: Vec<String>,
    /// All tensors of the job.
    #[arg(long)]
    pub(crate) all: bool,
    /// Give up waiting after this time; the move continues.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_time)]
    pub(crate) within: Duration,
    #[command(flatten)]
    pub(crate) asked: AggAsked,
}

/// `tidemill agg remove`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill agg remove finetune

The workers of the job, if there are any, end with an error. States of tensors are lost: use it for jobs whose workers are gone.")]
pub(crate) struct RemoveAggArguments {
    /// The job.
    #[arg(value_name = "JOB")]
    pub(crate) job: String,
    #[command(flatten)]
    pub(crate) choice: AggChoice,
}

/// `tidemill agg explain`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill agg explain --bytes 548MB --workers 4 --bandwidth 10Gbps --aggregators 2
  tidemill agg explain --bytes 50MB --tensors 8 --workers 8 --bandwidth 1Gbps --aggregator-bandwidth 10Gbps -o json

Shows how long the exchange of an iteration takes by aggregators and by a ring of the workers, which one is quicker, and which part of
the exchange decides that. Links carry their rate in both directions at once.")]
pub(crate) struct ExplainAggArguments {
    /// Bytes of the gradients of a worker.
    #[arg(long, value_name = "SIZE", value_parser = super::size)]
    pub(crate) bytes: u64,
    /// Tensors of about equal size.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) tensors: u32,
    /// Workers.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) workers: u32,
    /// Rate of the link of a worker, such as `10Gbps`.
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub(crate) bandwidth: f64,
    /// Aggregators that share the tensors.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) aggregators: u32,
    /// Rate that the job has of the link of an aggregator. Default: that of a worker.
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub(crate) aggregator_bandwidth: Option<f64>,
    /// Processor time of the additions and updates of one step, on all aggregators together. Default: by the bytes, at 2 GB/s.
    #[arg(long, value_name = "TIME", value_parser = parse_wait)]
    pub(crate) work: Option<Duration>,
    /// Time of a message in one direction.
    #[arg(long, value_name = "TIME", default_value = "50us", value_parser = parse_wait)]
    pub(crate) latency: Duration,
    /// Format of the output on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// A form of numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum NumbersChoice {
    /// Whole numbers of 2^-32: the same bits for any number of workers.
    Fixed,
    /// 32-bit floats.
    F32,
    /// 16-bit floats for gradients and values, 32-bit ones on the aggregator.
    F16,
}

/// An update.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum UpdateChoice {
    /// Gradient descent.
    Sgd,
    /// Gradient descent with a momentum of 0.9.
    Momentum,
    /// Adam.
    Adam,
}

/// `tidemill agg bench`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill agg bench
  tidemill agg bench --shape vgg19 --scale 10 --workers 2 --steps 100 --compute 600ms
  tidemill agg bench --shape bert --scale 10 --migrate-every 10 --output json
  tidemill agg bench --pause-every 10     checkpoint, end and begin again, for comparison

Workers are threads of this process. Gradients follow from a formula, so that the parameters at the end are known: the digest is compared
with that of one process that adds up alone, and exit code 1 says that they differ.")]
pub(crate) struct BenchAggArguments {
    /// Name of the job.
    #[arg(long, value_name = "NAME", default_value = "bench")]
    pub(crate) job: String,
    /// The model whose tensors the job has.
    #[arg(long, value_name = "MODEL", default_value = "alexnet", value_parser = PossibleValuesParser::new(SHAPES.map(|(name, _)| name)))]
    pub(crate) shape: String,
    /// One of so many parts of its parameters.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) scale: u32,
    /// Numbers of the tensors.
    #[arg(long, value_name = "FORM", default_value = "f32")]
    pub(crate) numbers: NumbersChoice,
    /// Update of the parameters.
    #[arg(long, value_name = "RULE", default_value = "momentum")]
    pub(crate) rule: UpdateChoice,
    /// Workers.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) workers: u32,
    /// Steps.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) steps: u64,
    /// The least number of aggregators for the job.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) spread: u32,
    /// Time in which a worker computes a gradient: it sleeps.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = parse_wait)]
    pub(crate) compute: Duration,
    /// The last worker is so much later in each tenth step.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = parse_wait)]
    pub(crate) straggler: Duration,
    /// Move all tensors after each so many steps; 0: never.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) migrate_every: u64,
    /// Stop the job after each so many steps, and resume it from a checkpoint; 0: never.
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "migrate_every")]
    pub(crate) pause_every: u64,
    /// Aggregators of another machine, by the address of its transport service: tcp://HOST:PORT. Moves need those of this machine.
    #[arg(long, value_name = "ADDRESS", conflicts_with = "migrate_every")]
    pub(crate) at: Option<String>,
    /// Do not compute the expected parameters.
    #[arg(long)]
    pub(crate) no_check: bool,
    /// Time in which a lost aggregator or master has to be replaced.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_time)]
    pub(crate) patience: Duration,
    #[command(flatten)]
    pub(crate) asked: AggAsked,
}

/// Bytes per second.
fn rate(text: &str) -> Result<f64, String> {
    crate::arguments::is_value(text)?;
    let bandwidth: tidemill_spec::units::Bandwidth =
        text.parse().map_err(|error: tidemill_spec::units::UnitError| super::explained(&error))?;
    let bits = bandwidth.0 as f64;
    if bits > 0.0 { Ok(bits / 8.0) } else { Err("a rate is above 0; write for example `10Gbps`".to_owned()) }
}
