//! Arguments of the verb that changes the plan of a run.
use super::{ControllerChoice, OutputForm, ReplanArguments};
use clap::Args;
use std::path::{Path, PathBuf};

/// `tidemill change`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill change vqa                        find a better plan, show the difference, ask before changing
  tidemill change vqa --dry-run              only show the difference
  tidemill change vqa --plan plan.yaml       change to this plan
  tidemill change vqa --plan plan.yaml --yes --reason hot-edge
  tidemill change vqa --infra prices.yaml    a link has become more expensive: the best plan at these prices

Without --plan the controller plans with the service times, links and workers that it measures now. The processes of the new plan load their
models while those of the old one run; then the run continues under the new plan where the old one ended. Workers, models,
batches and shares can change; ticks, the shares of operators with a state, and the workers of sinks that write files cannot.

Exit code 1 if the plan does not change: the run continues under its present plan.")]
pub(crate) struct ChangeArguments {
    #[command(flatten)]
    pub(crate) of: ControllerChoice,
    /// Run to change.
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
    /// Change to this plan instead of the best one.
    #[arg(long, value_name = "FILE")]
    pub(crate) plan: Option<PathBuf>,
    /// Machines, prices, links and places of sources, for this and all later plans of the run.
    #[arg(long = "infra", value_name = "FILE")]
    pub(crate) infrastructure: Option<PathBuf>,
    /// Show the difference and change nothing.
    #[arg(long, conflicts_with_all = ["yes", "reason"])]
    pub(crate) dry_run: bool,
    /// Show the last plan that the controller proposed, instead of planning.
    #[arg(long, conflicts_with_all = ["plan", "infrastructure", "yes", "reason"])]
    pub(crate) proposal: bool,
    /// Write the proposed plan to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Reason for the change, for readers of the events.
    #[arg(long, value_name = "TEXT", requires = "plan")]
    pub(crate) reason: Option<String>,
    /// Change without asking.
    #[arg(long, short)]
    pub(crate) yes: bool,
    /// Format of the output on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// The plan that a run is to change to.
pub(crate) enum NextPlan<'a> {
    /// The plan in a file, as it is.
    Given(&'a Path),
    /// The plan that the controller finds or judges.
    Planned(Box<ReplanArguments>),
}

impl ChangeArguments {
    /// Returns the plan to change to.
    pub(crate) fn next(&self) -> NextPlan<'_> {
        match &self.plan {
            Some(file) if self.infrastructure.is_none() && !self.dry_run => NextPlan::Given(file),
            _ => NextPlan::Planned(Box::new(ReplanArguments {
                of: self.of.clone(),
                run: self.run.clone(),
                plan: self.plan.clone(),
                infrastructure: self.infrastructure.clone(),
                show: self.proposal,
                apply: !self.dry_run && !self.proposal,
                yes: self.yes,
                out: self.out.clone(),
                output: self.output,
            })),
        }
    }
}

/// `tidemill plan apply`.
#[derive(Debug, Args)]
pub(crate) struct PlanApplyArguments {
    #[command(flatten)]
    pub(crate) of: ControllerChoice,
    /// The run.
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
    /// Change to this plan instead of the proposed one.
    #[arg(long, value_name = "FILE")]
    pub(crate) plan: Option<PathBuf>,
    /// Change without asking.
    #[arg(long, short)]
    pub(crate) yes: bool,
    /// Format of the output on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

impl PlanApplyArguments {
    /// Returns the arguments as `replan` takes them.
    pub(crate) fn as_replan(&self) -> ReplanArguments {
        ReplanArguments {
            of: self.of.clone(),
            run: self.run.clone(),
            plan: self.plan.clone(),
            infrastructure: None,
            show: false,
            apply: true,
            yes: self.yes,
            out: None,
            output: self.output,
        }
    }
}
