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
    /// Start it, and submit its plan.
    Up(UpArguments),
    /// Remove it: containers, networks, volumes, secrets.
    Down(DownArguments),
    /// Show how its containers and its runs are.
    Ps(PsArguments),
    /// Print what its containers write.
    Logs(DeploymentLogsArguments),
    /// Give its containers another image, one after the other; go back where one does not come up with it.
    Upgrade(UpgradeArguments),
}

/// `tidemill up`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill up deployment
  tidemill up deployment --as night-shift
  tidemill up deployment --replan auto         the plan follows load, links and machines by itself
  tidemill up deployment --again               the run has failed or was cancelled: anew
  tidemill up deployment --no-submit           only the containers
  tidemill up deployment --output json

Needs a container engine and a Compose program (`docker compose` or `docker-compose`) on each machine; machines whose location has a
`host: ssh://USER@HOST` are reached by ssh, without questions. The controller comes first, each worker joins with a token of its own,
and the plan is submitted when all are there. What is in the way is told with what to do; calling it again goes on.")]
pub(crate) struct UpArguments {
    /// The folder that `tidemill deploy` wrote.
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// What the run is called; default: the workflow's name.
    #[arg(long = "as", value_name = "NAME", conflicts_with = "no_submit")]
    pub(crate) name: Option<String>,
    /// Sources end after so many records.
    #[arg(long, value_name = "N", conflicts_with = "no_submit")]
    pub(crate) records: Option<u64>,
    /// Action on a better plan during the run, if the deployment was written with `--profiles`; default: ask.
    #[arg(long, value_name = "WHAT", conflicts_with = "no_submit")]
    pub(crate) replan: Option<ReplanChoice>,
    /// Remove the run of this name that has ended, with what its sinks wrote, and begin this one in its place.
    #[arg(long, conflicts_with = "no_submit")]
    pub(crate) again: bool,
    /// Start the containers and submit nothing.
    #[arg(long)]
    pub(crate) no_submit: bool,
    /// How long a container may take to be healthy, and a worker to join.
    #[arg(long, value_name = "TIME", default_value = "90s", value_parser = super::parse_time)]
    pub(crate) wait: Duration,
    /// Form of the answer on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill down`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill down deployment
  tidemill down deployment --keep-state        volumes and identities stay: `up` goes on where it was

Without --keep-state what sinks wrote into volumes is gone too: fetch it before (`tidemill results RUN --out DIR`). What earlier plans of
this deployment left on its machines is removed as well; what is of another deployment is not touched.")]
pub(crate) struct DownArguments {
    /// The folder that `tidemill deploy` wrote.
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// Keep volumes, secrets and the files on other machines.
    #[arg(long)]
    pub(crate) keep_state: bool,
    /// Form of the answer on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill ps`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill ps deployment
  tidemill ps deployment --output json

Exit code 1 if a container is not well, the controller does not answer, or a worker is not part of the cluster.")]
pub(crate) struct PsArguments {
    /// The folder that `tidemill deploy` wrote.
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// Form of the answer on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill deployment logs`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill deployment logs deployment
  tidemill deployment logs deployment controller edge-1 --tail 100
  tidemill deployment logs deployment --follow

Of a run's processes `tidemill logs RUN` tells more.")]
pub(crate) struct DeploymentLogsArguments {
    /// The folder that `tidemill deploy` wrote.
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// Services or workers; default: all.
    #[arg(value_name = "SERVICE")]
    pub(crate) services: Vec<String>,
    /// The last lines of each.
    #[arg(long, value_name = "N", default_value = "30")]
    pub(crate) tail: u32,
    /// Stay, and print what comes.
    #[arg(long, short)]
    pub(crate) follow: bool,
}

/// `tidemill deployment upgrade`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill deployment upgrade deployment --image tidemill:0.2.0
  tidemill deployment upgrade deployment --image tidemill:0.2.0 --output json

Workers first, one after the other, the controller last. Each must be healthy, be heard, and do again what runs did there before the
next one follows. Runs go on from their last checkpoints: no record is lost or doubled. Where a container does not come up with
the image, or a run fails meanwhile, all get their old one back, and the exit code is 1. After Ctrl-C the same command goes on, and still
knows what there was before.")]
pub(crate) struct UpgradeArguments {
    /// The folder that `tidemill deploy` wrote.
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// The image; it is sent to other machines where they lack it.
    #[arg(long, value_name = "IMAGE")]
    pub(crate) image: String,
    /// How long a container may take to do again what it did.
    #[arg(long, value_name = "TIME", default_value = "90s", value_parser = super::parse_time)]
    pub(crate) wait: Duration,
    /// Form of the answer on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}
