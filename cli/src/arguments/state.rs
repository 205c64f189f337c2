//! Arguments of `tidemill state`.
use super::run::{parse_rate, parse_setting};
use super::{OutputForm, state_place};
use clap::{Args, Subcommand};
use std::path::PathBuf;
use tidemill_app::choice::Setting;
use tidemill_app::levels::RateChoice;
use tidemill_app::state::place::StatePlace;

/// What to do with a state.
#[derive(Debug, Subcommand)]
pub(crate) enum StateVerb {
    /// Show whose state it is, how far it has come and how large it is; also while a run has it.
    Show(StateShowArguments),
    /// Say what a workflow that has changed would make of it, part by part: what goes on, what begins anew, what cannot be; exit code 1
    /// if a run would not go on without `--accept-changes`.
    Diff(StateDiffArguments),
    /// Forget it: the next run begins anew, and replaces the files of its sinks. Or forget the state of one operator. Or go back to an
    /// older checkpoint.
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
  tidemill state diff state workflow.yaml --rate 20/s
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
    /// Model of an operator, as of `run`.
    #[arg(long, value_name = "OPERATOR=VARIANT", value_parser = parse_setting, conflicts_with = "plan")]
    pub(crate) set: Vec<Setting>,
    /// Rate of every source, as of `run`.
    #[arg(long, value_name = "RATE", value_parser = parse_rate, allow_hyphen_values = true)]
    pub(crate) rate: Option<RateChoice>,
    /// Form of the answer on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill state reset`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill state reset state
  tidemill state reset state counted                the operator `counted` forgets what it keeps, all others go on
  tidemill state reset s3://runs/shop --to 1840     the next run goes on from an older checkpoint (`state show`)

Files that sinks have written stay until the next run replaces them, or cuts them back.")]
pub(crate) struct StateResetArguments {
    /// The folder, or `s3://BUCKET/PREFIX`.
    #[arg(value_name = "STATE", value_parser = state_place())]
    pub(crate) place: StatePlace,
    /// Forget only what this operator keeps: it begins anew at the last checkpoint. Sources are not read again.
    #[arg(value_name = "OPERATOR", conflicts_with = "to")]
    pub(crate) operator: Option<String>,
    /// Go back to the checkpoint of this epoch, or `end`, which is kept where the workflow says `checkpoint: {keep: N}`; later ones
    /// are forgotten.
    #[arg(long, value_name = "EPOCH", value_parser = parse_epoch)]
    pub(crate) to: Option<u64>,
    /// Form of the answer on stdout; as a table it is a line on stderr.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

fn parse_epoch(text: &str) -> Result<u64, String> {
    match text {
        "end" => Ok(u64::MAX),
        text => text
            .parse()
            .map_err(|_| "write the number of an epoch as `state show` tells it, or `end`".to_owned()),
    }
}
