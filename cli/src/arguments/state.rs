//! Arguments of `tidemill state`.
use super::run::{parse_rate, parse_setting};
use super::{OutputForm, state_place};
use clap::{Args, Subcommand};
use std::path::PathBuf;
use tidemill_app::choice::Setting;
use tidemill_app::levels::RateChoice;
use tidemill_app::state::place::StatePlace;

/// Verbs for the state of a run.
#[derive(Debug, Subcommand)]
pub(crate) enum StateVerb {
    /// Show the workflow, progress and size of a state, even while a run uses it.
    Show(StateShowArguments),
    /// Compare a state with a changed workflow: list the parts that continue, start empty or cannot continue; exit code
    /// 1 if a run needs `--accept-changes`.
    Diff(StateDiffArguments),
    /// Delete a state, so that the next run starts from the beginning and replaces the files of its sinks; or delete
    /// the state of one operator, or return to an older checkpoint.
    Reset(StateResetArguments),
}

/// `tidemill state show`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill state show state
  tidemill state show state --output json")]
pub(crate) struct StateShowArguments {
    /// Folder of the state, or `s3://BUCKET/PREFIX`.
    #[arg(value_name = "STATE", value_parser = state_place())]
    pub(crate) place: StatePlace,
    /// Format of the output on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill state diff`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill state diff state workflow.yaml
  tidemill state diff state workflow.yaml --rate 20/s
  tidemill state diff state workflow.yaml --plan plan.yaml --output json")]
pub(crate) struct StateDiffArguments {
    /// Folder of the state, or `s3://BUCKET/PREFIX`.
    #[arg(value_name = "STATE", value_parser = state_place())]
    pub(crate) place: StatePlace,
    /// Workflow to compare with.
    #[arg(value_name = "WORKFLOW")]
    pub(crate) workflow: PathBuf,
    /// Plan of the next run.
    #[arg(long, value_name = "FILE")]
    pub(crate) plan: Option<PathBuf>,
    /// Model of an operator, as for `run`.
    #[arg(long, value_name = "OPERATOR=VARIANT", value_parser = parse_setting, conflicts_with = "plan")]
    pub(crate) set: Vec<Setting>,
    /// Rate of every source, as for `run`.
    #[arg(long, value_name = "RATE", value_parser = parse_rate, allow_hyphen_values = true)]
    pub(crate) rate: Option<RateChoice>,
    /// Format of the output on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill state reset`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill state reset state
  tidemill state reset state counted                delete only the state of the operator `counted`
  tidemill state reset s3://runs/shop --to 1840     return to an older checkpoint (see `state show`)

The files of sinks stay until the next run replaces or truncates them.")]
pub(crate) struct StateResetArguments {
    /// Folder of the state, or `s3://BUCKET/PREFIX`.
    #[arg(value_name = "STATE", value_parser = state_place())]
    pub(crate) place: StatePlace,
    /// Operator whose state to delete: it starts empty at the last checkpoint. Sources do not read earlier records again. Default: the whole state.
    #[arg(value_name = "OPERATOR", conflicts_with = "to")]
    pub(crate) operator: Option<String>,
    /// Return to the checkpoint of this epoch, or `end`, and delete later ones. Needs `checkpoint: {keep: N}` in the
    /// workflow.
    #[arg(long, value_name = "EPOCH", value_parser = parse_epoch)]
    pub(crate) to: Option<u64>,
    /// Format of the output: `table` is a line on stderr, `json` is on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

fn parse_epoch(text: &str) -> Result<u64, String> {
    match text {
        "end" => Ok(u64::MAX),
        text => {
            text.parse().map_err(|_| "write the number of an epoch from `state show`, or `end`".to_owned())
        }
    }
}
