//! Arguments of the verb that changes the plan of a run.
use super::{ControllerChoice, OutputForm};
use clap::Args;
use std::path::PathBuf;

/// `tidemill change`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill change night-shift --plan plan.yaml  what it would change, and whether to do it
  tidemill change night-shift --plan plan.yaml --yes --reason hot-edge

The processes of the new plan load their models beside those of the old one, which go on until all stand ready; then the run goes on
under the new plan where the old one has ended. It waits for that and tells how long the sinks paused. Workers, models, batches and
shares may change; ticks, the shares of operators with a state, and the place of sinks that write files may not.

Exit code 1 if the plan is not changed: the run goes on under the one that it has.")]
pub(crate) struct ChangeArguments {
    #[command(flatten)]
    pub(crate) of: ControllerChoice,
    /// The run.
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
    /// The plan that it is to have.
    #[arg(long, value_name = "FILE")]
    pub(crate) plan: PathBuf,
    /// Why, for those who read the events.
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) reason: String,
    /// Do not ask.
    #[arg(long, short)]
    pub(crate) yes: bool,
    /// Form of the answer on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}
