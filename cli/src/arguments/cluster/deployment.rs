//! Arguments of the verbs that operate a deployment.
use super::{OutputForm, ReplanChoice};
use clap::{Args, Subcommand};
use std::path::PathBuf;
use std::time::Duration;

/// `tidemill deployment ...`.
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  tidemill deploy plan.yaml --out deployment     writes the folder
  tidemill deployment up deployment              the same as `tidemill up deployment`
  tidemill deployment logs deployment --follow
  tidemill deployment upgrade deployment --image tidemill:0.2.0
  tidemill deployment down deployment")]
pub(crate) enum DeploymentVerb {
    /// Start a deployment, and submit its plan.
    Up(UpArguments),
    /// Remove a deployment: containers, networks, volumes, secrets.
    Down(DownArguments),
    /// Show the state of its containers and runs.
    Ps(PsArguments),
    /// Print the logs of its containers.
    Logs(DeploymentLogsArguments),
    /// Change the image of its containers, one after the other; restore the old image if a container does not start.
    Upgrade(UpgradeArguments),
}

/// `tidemill up`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill up deployment
  tidemill up deployment --as night-shift
  tidemill up deployment --replan auto         the plan follows load, links and machines
  tidemill up deployment --again               start a failed or cancelled run again
  tidemill up deployment --no-submit           only the containers
  tidemill up deployment --output json

Needs a container engine and a Compose program (`docker compose` or `docker-compose`) on each machine; reaches machines whose
location has a `host: ssh://USER@HOST` by ssh, without questions. Starts the controller, then the workers, each with its own
join token, and submits the plan when all have joined. An error says how to fix it; the same command then continues.")]
pub(crate) struct UpArguments {
    /// Folder that `tidemill deploy` wrote.
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// Name of the run; default: the name of the workflow.
    #[arg(long = "as", value_name = "NAME", conflicts_with = "no_submit")]
    pub(crate) name: Option<String>,
    /// End each source after this number of records.
    #[arg(long, value_name = "N", conflicts_with = "no_submit")]
    pub(crate) records: Option<u64>,
    /// Action on a better plan during the run, if the deployment was written with `--profiles`; default: ask.
    #[arg(long, value_name = "WHAT", conflicts_with = "no_submit")]
    pub(crate) replan: Option<ReplanChoice>,
    /// Replace the ended run of this name: remove it and the output of its sinks, then start this one.
    #[arg(long, conflicts_with = "no_submit")]
    pub(crate) again: bool,
    /// Start the containers and submit nothing.
    #[arg(long)]
    pub(crate) no_submit: bool,
    /// Limit on the time until a container is healthy and until a worker has joined.
    #[arg(long, value_name = "TIME", default_value = "90s", value_parser = super::parse_time)]
    pub(crate) wait: Duration,
    /// Format of the output on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill down`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill down deployment
  tidemill down deployment --keep-state        keep volumes and identities: `up` continues later

Without --keep-state it also removes what sinks wrote into volumes: fetch it first (`tidemill results RUN --out DIR`). It
removes containers of earlier plans of this deployment too, and nothing of other deployments.")]
pub(crate) struct DownArguments {
    /// Folder that `tidemill deploy` wrote.
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// Keep volumes, secrets and the files on other machines.
    #[arg(long)]
    pub(crate) keep_state: bool,
    /// Format of the output on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill ps`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill ps deployment
  tidemill ps deployment --output json

Exit code 1 if a container is not healthy, the controller does not answer, or a worker is not part of the cluster.")]
pub(crate) struct PsArguments {
    /// Folder that `tidemill deploy` wrote.
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// Format of the output on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill deployment logs`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill deployment logs deployment
  tidemill deployment logs deployment controller edge-1 --tail 100
  tidemill deployment logs deployment --follow

`tidemill logs RUN` shows more about the processes of a run.")]
pub(crate) struct DeploymentLogsArguments {
    /// Folder that `tidemill deploy` wrote.
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// Services or workers to print; default: all.
    #[arg(value_name = "SERVICE")]
    pub(crate) services: Vec<String>,
    /// Number of last lines to print of each.
    #[arg(long, value_name = "N", default_value = "30")]
    pub(crate) tail: u32,
    /// Print new lines until Ctrl-C.
    #[arg(long, short)]
    pub(crate) follow: bool,
}

/// `tidemill deployment upgrade`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill deployment upgrade deployment --image tidemill:0.2.0
  tidemill deployment upgrade deployment --image tidemill:0.2.0 --output json

Upgrades the workers one after the other, then the controller. The next container follows when the last one is healthy, sends
heartbeats and runs its stages again. Runs continue from their last checkpoints: no record is lost or doubled. If a container
does not start with the image, or a run fails, it restores the old image of all containers and exits with code 1. After
Ctrl-C the same command continues, and can still restore the old image.")]
pub(crate) struct UpgradeArguments {
    /// Folder that `tidemill deploy` wrote.
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// Image to use; copied to machines that lack it.
    #[arg(long, value_name = "IMAGE")]
    pub(crate) image: String,
    /// Limit on the time until a container runs its stages again.
    #[arg(long, value_name = "TIME", default_value = "90s", value_parser = super::parse_time)]
    pub(crate) wait: Duration,
    /// Format of the output on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}
