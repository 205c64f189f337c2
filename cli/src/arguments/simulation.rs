//! Arguments of `tidemill simulate`.
use super::planning::LevelSetting;
use super::planning::{parse_level, parse_span};
use clap::{Args, ValueEnum};
use std::path::PathBuf;
use tidemill_spec::units::TimeSpan;

/// `tidemill simulate`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill simulate plan.yaml                           with workflow.yaml, infrastructure.yaml and profile.yaml beside it
  tidemill simulate plan.yaml workflow.yaml --infra infrastructure.yaml --profiles profile.yaml
  tidemill simulate plan.yaml --for 24h --arrivals poisson --seed 7
  tidemill simulate plan.yaml --trace day.csv           with the rates of a day, for as long as the trace
  tidemill simulate plan.yaml --slo rate=80/s           at another rate
  tidemill simulate plan.yaml --lose edge-box-0         after the loss of a worker
  tidemill simulate plan.yaml --output json

A trace is a table `time,factor` or `time,rate`; scripts/bursty_trace.py of the repository creates some. Ctrl-C ends the
simulation and prints its figures until then. Exit codes: 0 the plan keeps its rate and latency; 1 it does not; 78 a file is
wrong; 130 interrupted.")]
pub(crate) struct SimulateArguments {
    /// Plan to simulate.
    #[arg(value_name = "PLAN")]
    pub(crate) plan: PathBuf,
    /// Workflow of the plan. Default: `workflow.yaml` beside the plan.
    #[arg(value_name = "WORKFLOW")]
    pub(crate) workflow: Option<PathBuf>,
    /// Infrastructure: machines, links and prices. Default: `infrastructure.yaml` beside the plan.
    #[arg(long = "infra", value_name = "FILE")]
    pub(crate) infrastructure: Option<PathBuf>,
    /// Profiles, or folders with a `profile.yaml`; a later profile overrides earlier ones. Default: `profile.yaml`,
    /// `profiles.yaml` or `profile/` beside the plan.
    #[arg(long, value_name = "PATH", num_args = 1..)]
    pub(crate) profiles: Vec<PathBuf>,
    /// Rates over time: a table with a header `time,factor` or `time,rate`, then lines such as `10s,1.5`.
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Distribution of the times between the records of a source.
    #[arg(long, value_name = "KIND", default_value = "constant")]
    pub(crate) arrivals: ArrivalsChoice,
    /// Length of the simulation, in the time of the plan. Default: the length of the trace, else 10min.
    #[arg(long = "for", value_name = "TIME", value_parser = parse_span)]
    pub(crate) duration: Option<TimeSpan>,
    /// Seed of all random numbers.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Simulate the plan without these workers of it: its routes after their loss, else classes spread over the other stages.
    #[arg(long, value_name = "WORKER", num_args = 1..)]
    pub(crate) lose: Vec<String>,
    /// Replace the rate of the plan or another service level of the workflow: `rate=40/s`, `latency=p99:800ms`; `=none`
    /// drops it.
    #[arg(long, value_name = "LEVEL=VALUE", value_parser = parse_level)]
    pub(crate) slo: Vec<LevelSetting>,
    /// Format of the output on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: SimulationOutput,
}

/// Distribution of the times between records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ArrivalsChoice {
    /// Equal times, as sources with a rate emit.
    Constant,
    /// Random times, at the same mean rate.
    Poisson,
}

/// Format of the result of a simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SimulationOutput {
    /// Tables for people.
    Table,
    /// JSON for programs.
    Json,
    /// The content of `json` as YAML.
    Yaml,
}
