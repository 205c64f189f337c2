//! Arguments of the verbs that use the queue of a cluster.
use crate::arguments::cluster::{Asked, ControllerChoice, size};
use crate::arguments::{OutputForm, parse_wait};
use clap::Args;
use std::path::PathBuf;

/// `tidemill job submit`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill job submit train.yaml
  tidemill job submit train.yaml --follow
  tidemill job submit --gang 2 --cores 1 --memory 2GiB --file train.py -- python3 train.py --epochs 20
  tidemill job submit -- sleep 60

Prints the name of the job, which is that of the file, the program or the script with a number. A task runs in a folder of its own, with
the files of the job, and knows TIDEMILL_JOB, TIDEMILL_RANK, TIDEMILL_SIZE, TIDEMILL_CHECKPOINT (a folder), and TIDEMILL_FIRST
(host and port for the first task of the gang). Before it is preempted it gets a signal and some time: it writes its files into
the folder for checkpoints, creates RESUME there, and exits with 0. `tidemill schema job` describes the file.")]
pub(crate) struct SubmitJobArguments {
    /// File with the job.
    #[arg(value_name = "FILE", required_unless_present = "command", conflicts_with = "command")]
    pub(crate) file: Option<PathBuf>,
    /// Name of the job; default: that of the file, or of the program or script of the command.
    #[arg(long = "as", value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Number of tasks, which start together or not at all; default: 1.
    #[arg(long, value_name = "N")]
    pub(crate) gang: Option<u32>,
    /// Processors of each task; default: 1.
    #[arg(long, value_name = "N")]
    pub(crate) cores: Option<f64>,
    /// Memory of each task, at least 16MB; default: 512MB.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) memory: Option<u64>,
    /// Type of the accelerator of each task; default: none.
    #[arg(long, value_name = "TYPE")]
    pub(crate) device: Option<String>,
    /// Never end the job early for other jobs. Streams still take back what they need.
    #[arg(long)]
    pub(crate) not_preemptible: bool,
    /// Time that a task has for a checkpoint before it is ended, at most 1h; 0s ends it at once. Default: 30s.
    #[arg(long, value_name = "TIME", value_parser = parse_wait)]
    pub(crate) checkpoint_within: Option<std::time::Duration>,
    /// File or folder that tasks find in their folder, below the current folder; repeat for several.
    #[arg(long = "file", value_name = "PATH")]
    pub(crate) files: Vec<String>,
    /// File or folder that tasks write, for `tidemill job fetch`; repeat for several.
    #[arg(long = "result", value_name = "PATH")]
    pub(crate) results: Vec<String>,
    /// Print the output of the tasks until the job ends. Exit code 1 if it does not complete.
    #[arg(long, short)]
    pub(crate) follow: bool,
    #[command(flatten)]
    pub(crate) asked: Asked,
    /// Program and arguments, after `--`.
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

/// `tidemill job queue`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill job queue                 jobs that wait or run, and the last 10 that ended
  tidemill job queue --open          without jobs that have ended
  tidemill job queue --all           with all that have ended
  tidemill job ls --output json")]
pub(crate) struct QueueArguments {
    /// Leave out jobs that have ended.
    #[arg(long)]
    pub(crate) open: bool,
    /// List all jobs that have ended, not only the last 10.
    #[arg(long, conflicts_with = "open")]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) asked: Asked,
}

/// `tidemill job remove`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill job remove train-7
  tidemill job remove train-7 train-8
  tidemill job remove --ended        all jobs that have ended

The controller deletes the results and the logs of the jobs. A job that waits or runs must be cancelled first. The services of
removed jobs still count as history for the policy `2d-gittins`.")]
pub(crate) struct RemoveJobsArguments {
    /// Jobs that have ended, such as `train-7`.
    #[arg(value_name = "JOB", required_unless_present = "ended", conflicts_with = "ended")]
    pub(crate) jobs: Vec<String>,
    /// Remove all jobs that have ended.
    #[arg(long)]
    pub(crate) ended: bool,
    #[command(flatten)]
    pub(crate) asked: Asked,
}

/// A job.
#[derive(Debug, Args)]
pub(crate) struct JobChoice {
    /// The job, such as `train-7`.
    #[arg(value_name = "JOB")]
    pub(crate) job: String,
    #[command(flatten)]
    pub(crate) asked: Asked,
}

/// `tidemill job logs`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill job logs train-7
  tidemill job logs train-7 --follow     until the job ends

Each line has the time, the number of the task and its worker; `EVENT` marks lines of the controller.")]
pub(crate) struct JobLogsArguments {
    #[command(flatten)]
    pub(crate) of: ControllerChoice,
    /// The job, such as `train-7`.
    #[arg(value_name = "JOB")]
    pub(crate) job: String,
    /// Print new lines until the job ends.
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// Format of the output on stdout; `json` prints one object per line.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill job fetch`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill job fetch profile-3                       all files, into the current folder
  tidemill job fetch profile-3 profile.yaml --out here
  tidemill job fetch train-7 --task 1                of one task of a gang")]
pub(crate) struct FetchJobArguments {
    /// The job, such as `train-7`.
    #[arg(value_name = "JOB")]
    pub(crate) job: String,
    /// One file; default: all.
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<String>,
    /// Folder for the files; created if it does not exist.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(crate) out: PathBuf,
    /// Fetch only files of this task; default: of all, each in a folder of its number if there are several.
    #[arg(long, value_name = "RANK")]
    pub(crate) task: Option<u32>,
    #[command(flatten)]
    pub(crate) asked: Asked,
}
