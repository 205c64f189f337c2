//! Arguments of `tidemill train`.
use super::OutputForm;
use clap::Args;
use std::path::PathBuf;

/// `tidemill train`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill train job.yaml                          the ranks of the job, on this machine
  tidemill train job.yaml --ranks 4 --out model
  tidemill train job.yaml --checkpoint kept        continue there after Ctrl-C or a failure, also with other ranks
  tidemill job submit job.yaml                     the same on the workers of a cluster

The file is a job of kind `train`; `tidemill schema job` describes it. Each rank is a process. The parameters have the same bits for
any number of ranks, and after losses: where the job has `survive: N`, the others continue without up to N lost ranks. Writes the
model and report.json. In a task of a job this command is one rank. Exit code 130 after Ctrl-C.")]
pub(crate) struct TrainArguments {
    /// File with a job of kind `train`.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Number of ranks, at most 64; default: the `gang` of the job.
    #[arg(long, value_name = "N")]
    pub(crate) ranks: Option<u32>,
    /// Folder for checkpoints; a training continues from the newest one there. Default: no checkpoints.
    #[arg(long, value_name = "DIR")]
    pub(crate) checkpoint: Option<PathBuf>,
    /// Start a lost rank again, three times at most; it takes part from the next multiple of `rebalance_every` on.
    #[arg(long)]
    pub(crate) restart: bool,
    /// Folder for the model and report.json; default: one with the name of the job, or this folder in a task of a job.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Format of the output on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}
