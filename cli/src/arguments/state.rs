//! Arguments of `tidemill state`.
use super::OutputForm;
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// What to do with a state.
#[derive(Debug, Subcommand)]
pub(crate) enum StateVerb {
    /// Show whose state it is, how far it has come and how large it is; also while a run has it.
    Show(StateShowArguments),
    /// Say whether a run would go on from it; exit code 1 if not.
    Diff(StateDiffArguments),
    /// Forget it: the next run begins anew, and replaces the files of its sinks.
    Reset(StateResetArguments),
}

/// `tidemill state show`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill state show state
  tidemill state show state --output json")]
pub(crate) struct StateShowArguments {
    /// The folder.
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// Form of the answer on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill state diff`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill state diff state workflow.yaml
  tidemill state diff state workflow.yaml --plan plan.yaml --output json")]
pub(crate) struct StateDiffArguments {
    /// The folder.
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// The workflow.
    #[arg(value_name = "WORKFLOW")]
    pub(crate) workflow: PathBuf,
    /// The plan that it would run.
    #[arg(long, value_name = "FILE")]
    pub(crate) plan: Option<PathBuf>,
    /// Form of the answer on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill state reset`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill state reset state

Files that sinks have written stay until the next run replaces them.")]
pub(crate) struct StateResetArguments {
    /// The folder.
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
}
