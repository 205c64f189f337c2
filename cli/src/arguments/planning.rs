//! Arguments of the verbs that plan.
use super::OutputForm;
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::planning::{PlanningOptions, SolverName};
use tidemill_app::service_level::LevelError;
pub(crate) use tidemill_app::service_level::LevelSetting;
use tidemill_optimizer::assemble::Options;
use tidemill_optimizer::planner::Planner;
use tidemill_optimizer::planners::beam::Beam;
use tidemill_optimizer::planners::best_fit::BestFit;
use tidemill_optimizer::planners::cloud_only::CloudOnly;
use tidemill_optimizer::planners::edge_only::EdgeOnly;
use tidemill_optimizer::planners::exact::Exact;
use tidemill_optimizer::planners::exhaustive::Exhaustive;
use tidemill_optimizer::planners::first_fit::FirstFit;
use tidemill_optimizer::problem::ReturnTraffic;
use tidemill_spec::units::{HourlyPrice, Percentile, Rate, TimeSpan, UnitError};

/// `tidemill plan`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = "Examples:
  tidemill plan workflow.yaml --infra infrastructure.yaml --profiles profile.yaml
  tidemill plan workflow.yaml --infra infrastructure.yaml --profiles profile.yaml --out plan.yaml
  tidemill plan workflow.yaml --infra i.yaml --profiles p.yaml --slo rate=40/s --slo accuracy=56.0
  tidemill plan workflow.yaml --infra i.yaml --profiles p.yaml --slo latency=p99:800ms --output json
  tidemill plan workflow.yaml --infra i.yaml --profiles edge.yaml cloud.yaml --planner beam
  tidemill plan workflow.yaml --infra i.yaml --profiles p.yaml --pareto cost,accuracy --svg front.svg
  tidemill plan workflow.yaml --infra i.yaml --profiles p.yaml --pareto cost,accuracy,latency --svg front.svg
  tidemill plan workflow.yaml --infra i.yaml --profiles p.yaml --slo survive=1 --what-if lose=2
  tidemill plan workflow.yaml --infra i.yaml --profiles p.yaml --trace day.csv --out levels/
  tidemill plan workflow.yaml --infra i.yaml --profiles p.yaml --trace day.csv --planner accuracy-scaling
  tidemill plan diff old.yaml new.yaml         compare two plans

With `--trace` it plans for a few levels of a changing load, and prints how much switching between their plans saves
compared with one plan for the peak. A trace is a table `time,factor` or `time,rate`, as for `tidemill simulate`.

Exit codes: 0 there is a plan; 1 no plan keeps the service levels (then it prints which levels to relax, and how far);
78 a file is wrong, or the profiles lack figures that every plan needs.")]
pub(crate) struct PlanArguments {
    /// Verb for existing plans.
    #[command(subcommand)]
    pub(crate) verb: Option<PlanVerb>,
    /// Workflow to plan.
    #[arg(value_name = "WORKFLOW", required = true)]
    pub(crate) workflow: Option<PathBuf>,
    /// Files and limits.
    #[command(flatten)]
    pub(crate) planning: PlanningArguments,
    /// Planner to use.
    #[arg(long, value_name = "PLANNER", default_value = "exact")]
    pub(crate) planner: PlannerChoice,
    /// Estimate of latency that must keep the service level: the sum of the bounds of all stages (`guaranteed`), or a
    /// simulation of the plan (`expected`), which is often much lower, so plans are cheaper, but gives no guarantee.
    #[arg(long, value_name = "BASIS", default_value = "guaranteed", conflicts_with_all = ["pareto", "trace"])]
    pub(crate) latency: LatencyChoice,
    /// Write the plan to this file, for `tidemill run --plan`; with `--trace`, write one plan per level into this folder.
    #[arg(long, value_name = "PATH")]
    pub(crate) out: Option<PathBuf>,
    /// Format of the output on stdout; `yaml` is the plan itself, or with `--trace` or `--pareto` the content of `json`.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: PlanOutput,
    /// Print the Pareto front instead: the plans that no other plan beats in cost and accuracy, or in cost, accuracy
    /// and latency.
    #[arg(long, value_name = "LEVELS", conflicts_with = "out")]
    pub(crate) pareto: Option<Front>,
    /// Draw the Pareto front into this file.
    #[arg(long, value_name = "FILE", requires = "pareto")]
    pub(crate) svg: Option<PathBuf>,
    /// Print what would be left of the plan after losses of up to this number of workers at a time: `lose=2`.
    #[arg(long, value_name = "EVENT", value_parser = parse_losses, conflicts_with_all = ["pareto", "trace"])]
    pub(crate) what_if: Option<Losses>,
    /// The changing load to plan for.
    #[command(flatten)]
    pub(crate) load: LoadArguments,
}

/// A changing load, and options for following it.
#[derive(Debug, Args)]
pub(crate) struct LoadArguments {
    /// Plan for the load in this table: a header `time,factor` or `time,rate`, then lines such as `10s,1.5`.
    #[arg(long, value_name = "FILE", conflicts_with = "pareto")]
    pub(crate) trace: Option<PathBuf>,
    /// Largest number of levels of the load; fewer if more save nothing.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=24), requires = "trace")]
    pub(crate) levels: u8,
    /// Shortest time between two switches, and time that the load must fit into a lower level before a switch to it.
    #[arg(long, value_name = "TIME", default_value = "5min", value_parser = parse_span, requires = "trace")]
    pub(crate) dwell: TimeSpan,
    /// Time from a change of the load until another plan serves: to notice it, start workers and load models.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_span, requires = "trace")]
    pub(crate) reaction: TimeSpan,
    /// Workers for `accuracy-scaling`: those of the cheapest plan for the mean load (`mean`), for a rate such as
    /// `60/s`, or for the highest load that workers at a price such as `'2 $/h'` carry. Default: mean.
    #[arg(long, value_name = "LOAD", value_parser = parse_fleet, requires = "trace")]
    pub(crate) fleet: Option<FleetSetting>,
    /// Goal of `accuracy-scaling`: the highest accuracy that the workers carry (`most`), or the accuracy of the service
    /// level at the least traffic cost (`level`). Default: most.
    #[arg(long, value_name = "GOAL", requires = "trace")]
    pub(crate) goal: Option<GoalChoice>,
}

/// `--what-if lose=N`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Losses(pub(crate) u32);

fn parse_losses(text: &str) -> Result<Losses, String> {
    let count = text.strip_prefix("lose=").and_then(|count| count.parse::<u32>().ok());
    count
        .filter(|count| (1..=8).contains(count))
        .map(Losses)
        .ok_or_else(|| "write `lose=1`, at most `lose=8`".to_owned())
}

/// `--latency`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LatencyChoice {
    /// The sum of the bounds of all stages.
    Guaranteed,
    /// A simulation of each plan, with several seeds.
    Expected,
}

/// `--goal`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum GoalChoice {
    /// The highest accuracy that the workers carry.
    Most,
    /// The accuracy of the service level, at the least traffic cost.
    Level,
}

/// `--fleet`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum FleetSetting {
    /// Workers for the mean load.
    Mean,
    /// Workers for a rate.
    Rate(Rate),
    /// Workers for a price.
    Budget(HourlyPrice),
}

fn parse_fleet(text: &str) -> Result<FleetSetting, String> {
    if text == "mean" {
        return Ok(FleetSetting::Mean);
    }
    if let Ok(rate) = text.parse::<Rate>()
        && rate.0 > 0.0
    {
        return Ok(FleetSetting::Rate(rate));
    }
    match text.parse::<HourlyPrice>() {
        Ok(price) if price.0 > 0.0 => Ok(FleetSetting::Budget(price)),
        _ => Err("write `mean`, a rate such as `60/s` or a price such as `'2 $/h'`".to_owned()),
    }
}

/// `tidemill plan ...`.
#[derive(Debug, Subcommand)]
pub(crate) enum PlanVerb {
    /// Compare two plans.
    #[command(after_help = "Examples:
  tidemill plan diff old.yaml new.yaml
  tidemill plan diff old.yaml new.yaml --output json

Exit code 1 if they differ.")]
    Diff {
        /// First plan.
        #[arg(value_name = "PLAN")]
        old: PathBuf,
        /// Second plan.
        #[arg(value_name = "PLAN")]
        new: PathBuf,
        /// Format of the output on stdout.
        #[arg(long, short, value_name = "FORM", default_value = "table")]
        output: OutputForm,
    },
    /// Change a run of a cluster to another plan: the old spelling of `tidemill change`.
    #[cfg(feature = "cluster")]
    #[command(hide = true)]
    Apply(super::PlanApplyArguments),
}

/// `tidemill explain`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill explain workflow.yaml --infra infrastructure.yaml --profiles profile.yaml
  tidemill explain workflow.yaml plan.yaml --infra i.yaml --profiles p.yaml     an existing plan
  tidemill explain workflow.yaml --infra i.yaml --profiles p.yaml --output json

Plans as `tidemill plan` does, then again with one change at a time. `--time-limit` ends the search for the plan, and half of it
all further searches together; what is not proven then, the answer says. Ctrl-C shows the answers so far.

Exit codes: 0; 1 the given plan does not keep the service levels, or without a given plan, no plan does; 130 after Ctrl-C.")]
pub(crate) struct ExplainArguments {
    /// Workflow of the plan.
    #[arg(value_name = "WORKFLOW")]
    pub(crate) workflow: PathBuf,
    /// Plan to explain; default: the best plan.
    #[arg(value_name = "PLAN")]
    pub(crate) plan: Option<PathBuf>,
    /// Files and limits.
    #[command(flatten)]
    pub(crate) planning: PlanningArguments,
    /// Format of the output on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// Files and limits of a planning problem.
#[derive(Debug, Args)]
pub(crate) struct PlanningArguments {
    /// Infrastructure: machines, links and prices.
    #[arg(long = "infra", value_name = "FILE", required = true)]
    pub(crate) infrastructure: Option<PathBuf>,
    /// Profiles, or folders with a `profile.yaml`; a later profile overrides earlier ones.
    #[arg(long, value_name = "PATH", num_args = 1.., required = true)]
    pub(crate) profiles: Vec<PathBuf>,
    /// Replace a service level of the workflow: `rate=40/s`, `accuracy=56.0`, `latency=p99:800ms`, `survive=1`; `=none`
    /// drops it.
    #[arg(long, value_name = "LEVEL=VALUE", value_parser = parse_level)]
    pub(crate) slo: Vec<LevelSetting>,
    /// Limit on the part of its time that a worker is busy, from 0 to 1; at 1 the waiting time has no bound.
    #[arg(long, value_name = "PART", default_value_t = 0.85, value_parser = parse_part)]
    pub(crate) max_utilization: f64,
    /// Rule for records that go to a lower tier: at the price of the link, or never.
    #[arg(long, value_name = "RULE", default_value = "priced")]
    pub(crate) return_traffic: ReturnTrafficChoice,
    /// Place at most one operator on each worker.
    #[arg(long)]
    pub(crate) one_operator_per_worker: bool,
    /// Keep idle time of workers for bursts, instead of choosing more accurate models at the same cost.
    #[arg(long)]
    pub(crate) keep_idle: bool,
    /// Percentile of service times for which the plan guarantees its levels.
    #[arg(long, value_name = "PERCENTILE", default_value = "p75", value_parser = parse_percentile)]
    pub(crate) percentile: Percentile,
    /// Stop at a plan that costs at most this part more than the cheapest one, such as `0.01` for 1%.
    #[arg(long, value_name = "PART", default_value_t = 1e-6, value_parser = parse_gap)]
    pub(crate) gap: f64,
    /// Stop the search for a plan after this time.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_span)]
    pub(crate) time_limit: TimeSpan,
    /// Solver for the programs of the exact planner.
    #[arg(long, value_name = "SOLVER", default_value = "auto")]
    pub(crate) solver: SolverChoice,
}

/// Solver for linear and integer programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SolverChoice {
    /// HiGHS too if its library is installed, otherwise only the built-in solver.
    Auto,
    /// Only the built-in solver.
    Microlp,
    /// HiGHS for programs that the built-in solver does not solve quickly: finds more proofs if memory or latency is
    /// scarce. Needs its library, which `doctor --fix` fetches.
    Highs,
}

/// Format of a plan on stdout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PlanOutput {
    /// Tables for people.
    Table,
    /// JSON for programs.
    Json,
    /// The plan file.
    Yaml,
}

/// A planner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PlannerChoice {
    /// Finds the cheapest plan, with a proof or a bound.
    Exact,
    /// Beam search over variants, greedy assignment of workers (JellyBean).
    Beam,
    /// Places each operator on the worker that it fills best.
    BestFit,
    /// Places each operator on the first worker with room.
    FirstFit,
    /// Places everything in the highest tier.
    CloudOnly,
    /// Places everything in the lowest tier.
    EdgeOnly,
    /// Tries all plans of a small problem.
    Exhaustive,
    /// Chooses the most accurate variants on given workers, for a changing load (after Loki and IPA): needs `--trace`.
    AccuracyScaling,
}

/// Rule for records that go to a lower tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReturnTrafficChoice {
    /// Never.
    Forbid,
    /// Over links, at their price.
    Priced,
}

/// Quantities of a Pareto front.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Front {
    /// Cost and accuracy.
    #[value(name = "cost,accuracy")]
    CostAccuracy,
    /// Cost, accuracy and the bound on latency.
    #[value(name = "cost,accuracy,latency")]
    CostAccuracyLatency,
}

pub(super) fn parse_level(text: &str) -> Result<LevelSetting, String> {
    text.parse().map_err(|error: LevelError| error.to_string())
}

pub(super) fn parse_part(text: &str) -> Result<f64, String> {
    let part: f64 =
        text.parse().map_err(|_| format!("`{text}` is not a number; write a part such as `0.85`"))?;
    if part > 0.0 && part <= 1.0 { Ok(part) } else { Err("a part must be above 0 and at most 1".to_owned()) }
}

fn parse_gap(text: &str) -> Result<f64, String> {
    let part: f64 =
        text.parse().map_err(|_| format!("`{text}` is not a number; write a part such as `0.01`"))?;
    if (0.0..1.0).contains(&part) { Ok(part) } else { Err("a gap must be at least 0 and below 1".to_owned()) }
}

fn parse_percentile(text: &str) -> Result<Percentile, String> {
    text.parse().map_err(|error: UnitError| super::explained(&error))
}

pub(super) fn parse_span(text: &str) -> Result<TimeSpan, String> {
    text.parse().map_err(|error: UnitError| super::explained(&error))
}

impl PlanningArguments {
    /// Returns the files and limits of the planning problem.
    pub(crate) fn options(&self) -> PlanningOptions {
        PlanningOptions {
            infrastructure: self.infrastructure.clone(),
            profiles: self.profiles.clone(),
            problem: self.problem(),
            gap: self.gap,
            time_limit: self.time_limit,
            keep_idle: self.keep_idle,
            solver: match self.solver {
                SolverChoice::Auto => SolverName::Auto,
                SolverChoice::Microlp => SolverName::Microlp,
                SolverChoice::Highs => SolverName::Highs,
            },
        }
    }

    /// Service levels and rules that differ from the workflow's.
    fn problem(&self) -> Options {
        let mut options = Options {
            max_utilization: self.max_utilization,
            return_traffic: match self.return_traffic {
                ReturnTrafficChoice::Forbid => ReturnTraffic::Forbid,
                ReturnTrafficChoice::Priced => ReturnTraffic::Priced,
            },
            one_operator_per_worker: self.one_operator_per_worker,
            percentile: self.percentile,
            ..Options::default()
        };
        self.slo.iter().for_each(|setting| setting.set(&mut options));
        options
    }
}

impl PlannerChoice {
    /// Returns the planner of that name.
    ///
    /// # Errors
    /// The one that needs workers that are there already.
    pub(crate) fn planner(self) -> Result<Box<dyn Planner>, Failure> {
        Ok(match self {
            PlannerChoice::Exact => Box::new(Exact),
            PlannerChoice::Beam => Box::new(Beam::default()),
            PlannerChoice::BestFit => Box::new(BestFit),
            PlannerChoice::FirstFit => Box::new(FirstFit),
            PlannerChoice::CloudOnly => Box::new(CloudOnly),
            PlannerChoice::EdgeOnly => Box::new(EdgeOnly),
            PlannerChoice::Exhaustive => Box::new(Exhaustive),
            PlannerChoice::AccuracyScaling => {
                let message = "accuracy-scaling chooses variants for a changing load on given workers";
                return Err(Failure::new(Kind::Usage, message)
                    .with_help("give the load with `--trace FILE`, and the workers with `--fleet`"));
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_read() {
        assert_eq!(parse_losses("lose=2"), Ok(Losses(2)));
        assert!(["2", "lose=0", "lose=9", "lose=two"].into_iter().all(|wrong| parse_losses(wrong).is_err()));
    }

    #[test]
    fn fleets_are_read() {
        assert_eq!(parse_fleet("mean"), Ok(FleetSetting::Mean));
        assert_eq!(parse_fleet("60/s"), Ok(FleetSetting::Rate(Rate(60.0))));
        assert_eq!(parse_fleet("2 $/h"), Ok(FleetSetting::Budget(HourlyPrice(2.0))));
        for wrong in ["much", "0/s", "-1 $/h", ""] {
            assert!(parse_fleet(wrong).is_err(), "{wrong}");
        }
    }
}
