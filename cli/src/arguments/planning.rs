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
  tidemill plan workflow.yaml --infra i.yaml --profiles p.yaml --trace day.csv --out levels/
  tidemill plan workflow.yaml --infra i.yaml --profiles p.yaml --trace day.csv --planner accuracy-scaling
  tidemill plan diff old.yaml new.yaml         what another plan would change

With `--trace` it plans for few levels of a load that changes, and says what switching between their plans saves against
one plan for the peak; a trace is a table `time,factor` or `time,rate`, as `tidemill simulate` reads it.

Exit codes: 0 there is a plan; 1 no plan keeps the service levels (then it says what has to give way, and how much);
78 a file is wrong, or too little is known for any plan.")]
pub(crate) struct PlanArguments {
    /// Something else to do with plans.
    #[command(subcommand)]
    pub(crate) verb: Option<PlanVerb>,
    /// The workflow.
    #[arg(value_name = "WORKFLOW", required = true)]
    pub(crate) workflow: Option<PathBuf>,
    /// What to plan with.
    #[command(flatten)]
    pub(crate) planning: PlanningArguments,
    /// Who plans.
    #[arg(long, value_name = "PLANNER", default_value = "exact")]
    pub(crate) planner: PlannerChoice,
    /// By what the service level on latency is kept: by a bound that adds up what each stage keeps (`guaranteed`), or as a
    /// simulation of the plan expects (`expected`), which is often much less and so much cheaper, and no guarantee.
    #[arg(long, value_name = "BASIS", default_value = "guaranteed", conflicts_with_all = ["pareto", "trace"])]
    pub(crate) latency: LatencyChoice,
    /// Write the plan to this file, for `tidemill run --plan`; with `--trace`, a plan for each level into this folder.
    #[arg(long, value_name = "PATH")]
    pub(crate) out: Option<PathBuf>,
    /// Form of the answer on stdout; `yaml` is the plan itself, with `--trace` or `--pareto` what `json` says.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: PlanOutput,
    /// Print the best plans for all accuracies instead, or for all accuracies and latencies: those that no other beats in
    /// all of these.
    #[arg(long, value_name = "LEVELS", conflicts_with = "out")]
    pub(crate) pareto: Option<Front>,
    /// Draw them into this file.
    #[arg(long, value_name = "FILE", requires = "pareto")]
    pub(crate) svg: Option<PathBuf>,
    /// Plan for this load, which changes.
    #[command(flatten)]
    pub(crate) load: LoadArguments,
}

/// A load that changes, and how it is followed.
#[derive(Debug, Args)]
pub(crate) struct LoadArguments {
    /// Plan for levels of the load in this table: lines such as `10s,1.5`, headed `time,factor` or `time,rate`.
    #[arg(long, value_name = "FILE", conflicts_with = "pareto")]
    pub(crate) trace: Option<PathBuf>,
    /// Levels of the load, at most; fewer where more save nothing.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=24), requires = "trace")]
    pub(crate) levels: u8,
    /// Time between two switches at least; the load has to have fitted into a lower level for as long before that is taken.
    #[arg(long, value_name = "TIME", default_value = "5min", value_parser = parse_span, requires = "trace")]
    pub(crate) dwell: TimeSpan,
    /// Time from a change of the load until another plan serves: seeing it, starting workers, loading models.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_span, requires = "trace")]
    pub(crate) reaction: TimeSpan,
    /// Workers that `accuracy-scaling` has: those of the cheapest plan for the mean of the load (`mean`), for a rate such as
    /// `60/s`, or for as much load as workers for a price such as `'2 $/h'` carry. Default: mean.
    #[arg(long, value_name = "LOAD", value_parser = parse_fleet, requires = "trace")]
    pub(crate) fleet: Option<FleetSetting>,
    /// What `accuracy-scaling` aims at: as much accuracy as the workers carry (`most`), or no more than the service level asks
    /// for, and then the least traffic cost (`level`). Default: most.
    #[arg(long, value_name = "GOAL", requires = "trace")]
    pub(crate) goal: Option<GoalChoice>,
}

/// `--latency`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LatencyChoice {
    /// By the bound.
    Guaranteed,
    /// By a simulation of each plan, with several seeds.
    Expected,
}

/// `--goal`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum GoalChoice {
    /// As much as the workers carry.
    Most,
    /// No more than the service level.
    Level,
}

/// `--fleet`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum FleetSetting {
    /// Workers for the mean of the load.
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
        /// A plan.
        #[arg(value_name = "PLAN")]
        old: PathBuf,
        /// Another plan.
        #[arg(value_name = "PLAN")]
        new: PathBuf,
        /// Form of the answer on stdout.
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
  tidemill explain workflow.yaml plan.yaml --infra i.yaml --profiles p.yaml     a plan that is there already
  tidemill explain workflow.yaml --infra i.yaml --profiles p.yaml --output json

Plans anew with one thing changed at a time, so it takes some ten times as long as `tidemill plan`. Exit code 1 if the given plan does
not keep the service levels; without one, if none is found that does.")]
pub(crate) struct ExplainArguments {
    /// The workflow.
    #[arg(value_name = "WORKFLOW")]
    pub(crate) workflow: PathBuf,
    /// Explain this plan; without one, the best.
    #[arg(value_name = "PLAN")]
    pub(crate) plan: Option<PathBuf>,
    /// What to plan with.
    #[command(flatten)]
    pub(crate) planning: PlanningArguments,
    /// Form of the answer on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// Files and limits of a planning problem.
#[derive(Debug, Args)]
pub(crate) struct PlanningArguments {
    /// Machines, links and prices.
    #[arg(long = "infra", value_name = "FILE", required = true)]
    pub(crate) infrastructure: Option<PathBuf>,
    /// Profiles, or folders with a `profile.yaml`; of two figures of the same thing the later counts.
    #[arg(long, value_name = "PATH", num_args = 1.., required = true)]
    pub(crate) profiles: Vec<PathBuf>,
    /// A service level instead of the workflow's: `rate=40/s`, `accuracy=56.0`, `latency=p99:800ms`; `=none` drops it.
    #[arg(long, value_name = "LEVEL=VALUE", value_parser = parse_level)]
    pub(crate) slo: Vec<LevelSetting>,
    /// Largest part of its time that a worker may be busy; at 1 the waiting time has no bound.
    #[arg(long, value_name = "PART", default_value_t = 0.85, value_parser = parse_part)]
    pub(crate) max_utilization: f64,
    /// Whether records may go to a lower tier: at the price of the link, or never.
    #[arg(long, value_name = "RULE", default_value = "priced")]
    pub(crate) return_traffic: ReturnTrafficChoice,
    /// Let a worker run one operator only.
    #[arg(long)]
    pub(crate) one_operator_per_worker: bool,
    /// Leave idle time of workers to bursts, instead of more accurate models at the same cost.
    #[arg(long)]
    pub(crate) keep_idle: bool,
    /// Percentile of service times that the plan is guaranteed for.
    #[arg(long, value_name = "PERCENTILE", default_value = "p75", value_parser = parse_percentile)]
    pub(crate) percentile: Percentile,
    /// Stop at a plan that is proven to cost at most this part more than any other.
    #[arg(long, value_name = "PART", default_value_t = 1e-6, value_parser = parse_gap)]
    pub(crate) gap: f64,
    /// Stop searching after so much time.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_span)]
    pub(crate) time_limit: TimeSpan,
    /// What solves the programs of the exact planner.
    #[arg(long, value_name = "SOLVER", default_value = "auto")]
    pub(crate) solver: SolverChoice,
}

/// What solves linear and integer programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SolverChoice {
    /// HiGHS too where its library is found, otherwise the built-in one alone.
    Auto,
    /// The built-in one alone.
    Microlp,
    /// HiGHS for what the built-in one does not settle quickly: proves more where memory or latency binds. Needs its library,
    /// which `doctor --fix` fetches.
    Highs,
}

/// Form of a plan on stdout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PlanOutput {
    /// For people.
    Table,
    /// For programs.
    Json,
    /// The plan file.
    Yaml,
}

/// A planner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PlannerChoice {
    /// The cheapest plan, with a proof or a bound.
    Exact,
    /// Beam search over variants, greedy assignment of workers (JellyBean).
    Beam,
    /// Each operator on the worker that it fills best.
    BestFit,
    /// Each operator on the first worker that takes it.
    FirstFit,
    /// Everything in the highest tier.
    CloudOnly,
    /// Everything in the lowest tier.
    EdgeOnly,
    /// All plans of a small problem, one after the other.
    Exhaustive,
    /// The most accurate plan on workers that are there already, for a load that changes (after Loki and IPA): needs
    /// `--trace`.
    AccuracyScaling,
}

/// Whether records may go to a lower tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReturnTrafficChoice {
    /// Never.
    Forbid,
    /// Where a link leads, at its price.
    Priced,
}

/// What is weighed against what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Front {
    /// Cost against accuracy.
    #[value(name = "cost,accuracy")]
    CostAccuracy,
    /// Cost against accuracy and the bound on latency.
    #[value(name = "cost,accuracy,latency")]
    CostAccuracyLatency,
}

pub(super) fn parse_level(text: &str) -> Result<LevelSetting, String> {
    text.parse().map_err(|error: LevelError| error.to_string())
}

pub(super) fn parse_part(text: &str) -> Result<f64, String> {
    let part: f64 =
        text.parse().map_err(|_| format!("`{text}` is no number; write a part such as `0.85`"))?;
    if part > 0.0 && part <= 1.0 { Ok(part) } else { Err("a part is above 0 and at most 1".to_owned()) }
}

fn parse_gap(text: &str) -> Result<f64, String> {
    let part: f64 =
        text.parse().map_err(|_| format!("`{text}` is no number; write a part such as `0.01`"))?;
    if (0.0..1.0).contains(&part) { Ok(part) } else { Err("a gap is at least 0 and below 1".to_owned()) }
}

fn parse_percentile(text: &str) -> Result<Percentile, String> {
    text.parse().map_err(|error: UnitError| super::explained(&error))
}

pub(super) fn parse_span(text: &str) -> Result<TimeSpan, String> {
    text.parse().map_err(|error: UnitError| super::explained(&error))
}

impl PlanningArguments {
    /// What the planning problem is made of.
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
    /// The planner of that name.
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
                let message = "accuracy-scaling chooses variants for a load that changes, on workers that are there already";
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
    fn fleets_are_read() {
        assert_eq!(parse_fleet("mean"), Ok(FleetSetting::Mean));
        assert_eq!(parse_fleet("60/s"), Ok(FleetSetting::Rate(Rate(60.0))));
        assert_eq!(parse_fleet("2 $/h"), Ok(FleetSetting::Budget(HourlyPrice(2.0))));
        for wrong in ["much", "0/s", "-1 $/h", ""] {
            assert!(parse_fleet(wrong).is_err(), "{wrong}");
        }
    }
}
