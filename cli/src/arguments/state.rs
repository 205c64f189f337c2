//! Arguments of `tidemill state`.
use super::{OutputForm, state_place};
use clap::{Args, Subcommand};
use std::path::PathBuf;
use tidemill_app::state_place::StatePlace;

/// What to do with a state.
#[derive(Debug, Subcommand)]
pub(crate) enum StateVerb {
    /// Show whose state it is, how far it has come and how large it is; also while a run has it.
    Show(StateShowArguments),
    /// Say whether a run would go on from it; exit code 1 if not.
    Diff(StateDiffArguments),
    /// Forget it: the next run begins anew, and replaces the files of its sinks. Or go back to an older checkpoint.
    Reset(StateResetArguments),
}

/// `tidemill state show`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill state show state
  tidemill state show state --output json")]
pub(crate) struct StateShowArguments {
    /// The folder, or `s3://BUCKET/PREFIX`.
    #[arg(value_name = "STATE", value_parser = state_place())]
    pub(crate) place: StatePlace,
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
    /// The folder, or `s3://BUCKET/PREFIX`.
    #[arg(value_name = "STATE", value_parser = state_place())]
    pub(crate) place: StatePlace,
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
  tidemill state reset s3://runs/shop --to 1840     the next run goes on from an older checkpoint (`state show`)

Files that sinks have written stay until the next run replaces them, or cuts them back.")]
pub(crate) struct StateResetArguments {
    /// The folder, or `s3://BUCKET/PREFIX`.
    #[arg(value_name = "STATE", value_parser = state_place())]
    pub(crate) place: StatePlace,
    /// Go back to the checkpoint of this epoch, which is kept where the workflow says `checkpoint: {keep: N}`; later ones are
    /// forgotten.
    #[arg(long, value_name = "EPOCH")]
    pub(crate) to: Option<u64>,
}
