//! Arguments of `tidemill simulate`.
use super::planning::LevelSetting;
use super::planning::{parse_level, parse_span};
use clap::{Args, ValueEnum};
use std::path::PathBuf;
use tidemill_spec::units::TimeSpan;

/// `tidemill simulate`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill simulate plan.yaml                           workflow.yaml, infrastructure.yaml, profile.yaml beside it
  tidemill simulate plan.yaml workflow.yaml --infra infrastructure.yaml --profiles profile.yaml
  tidemill simulate plan.yaml --for 24h --arrivals poisson --seed 7
  tidemill simulate plan.yaml --trace day.csv           rates of a day; the day's length, but for `--for`
  tidemill simulate plan.yaml --slo rate=80/s           what would happen at another rate
  tidemill simulate plan.yaml --output json

A trace is a table `time,factor` or `time,rate`; scripts/bursty_trace.py of the repository makes some. Ctrl-C ends the
simulation; what was seen until then is told. Exit codes: 0 the plan keeps its rate and latency; 1 it does not; 78 a file
is wrong; 130 interrupted.")]
pub(crate) struct SimulateArguments {
    /// The plan.
    #[arg(value_name = "PLAN")]
    pub(crate) plan: PathBuf,
    /// The workflow. Default: `workflow.yaml` beside the plan.
    #[arg(value_name = "WORKFLOW")]
    pub(crate) workflow: Option<PathBuf>,
    /// Machines, links and prices. Default: `infrastructure.yaml` beside the plan.
    #[arg(long = "infra", value_name = "FILE")]
    pub(crate) infrastructure: Option<PathBuf>,
    /// Profiles, or folders with a `profile.yaml`; of two figures of the same thing the later counts. Default:
    /// `profile.yaml`, `profiles.yaml` or `profile/` beside the plan.
    #[arg(long, value_name = "PATH", num_args = 1..)]
    pub(crate) profiles: Vec<PathBuf>,
    /// Rates over time: a table with lines such as `10s,1.5`, headed `time,factor` or `time,rate`.
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// How the records of a source follow one another.
    #[arg(long, value_name = "KIND", default_value = "constant")]
    pub(crate) arrivals: ArrivalsChoice,
    /// How long, in the time of the plan. Default: the length of the trace, else 10min.
    #[arg(long = "for", value_name = "TIME", value_parser = parse_span)]
    pub(crate) duration: Option<TimeSpan>,
    /// All random numbers follow from it.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// A service level instead of the plan's rate and the workflow's others: `rate=40/s`, `latency=p99:800ms`; `=none`
    /// drops it.
    #[arg(long, value_name = "LEVEL=VALUE", value_parser = parse_level)]
    pub(crate) slo: Vec<LevelSetting>,
    /// Form of the answer on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: SimulationOutput,
}

/// How records follow one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ArrivalsChoice {
    /// Evenly, as sources with a rate emit.
    Constant,
    /// At random, at the same rate.
    Poisson,
}

/// Form of what a simulation found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SimulationOutput {
    /// For people.
    Table,
    /// For programs.
    Json,
    /// The same as YAML.
    Yaml,
}
