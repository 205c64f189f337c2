//! Arguments of `tidemill deploy` and `tidemill health`.
use super::OutputForm;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// `tidemill deploy`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill deploy plan.yaml --out deployment
  tidemill deploy plan.yaml --out deployment --infra infrastructure.yaml --workflow workflow.yaml
  tidemill deploy plan.yaml --out deployment --controller hub    the controller at the location `hub`
  tidemill deploy plan.yaml --out live --id live                 containers named tidemill-WORKFLOW-live-...
  tidemill deploy plan.yaml --out live --first-port 7520         beside another deployment on the networks of the machines
  tidemill deploy plan.yaml --out manifests --target kubernetes
  tidemill deploy plan.yaml --out units --target systemd         for machines without Docker

Writes files and starts nothing: a Compose file for each location, files for Prometheus and Grafana, and a README that says
which files to copy where. Creates no secrets. The same input gives the same output, except for a name that is drawn once per
folder (`--id`), so that deployments of the same workflow do not share containers, volumes and networks. Without --infra and
--workflow it reads `infrastructure.yaml` and `workflow.yaml` beside the plan, if they exist.")]
pub(crate) struct DeployArguments {
    /// Plan to deploy.
    #[arg(value_name = "PLAN")]
    pub(crate) plan: PathBuf,
    /// Folder to write to; created if it does not exist.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Infrastructure of the plan: limits of processors and memory, hosts, accelerators. Default: `infrastructure.yaml` beside the plan, if it exists.
    #[arg(long = "infra", value_name = "FILE")]
    pub(crate) infrastructure: Option<PathBuf>,
    /// Workflow of the plan. Default: `workflow.yaml` beside the plan, if it exists.
    #[arg(long, value_name = "FILE")]
    pub(crate) workflow: Option<PathBuf>,
    /// Profiles of the plan, for `submit` in the deployment.
    #[arg(long, value_name = "PATH", num_args = 1..)]
    pub(crate) profiles: Vec<PathBuf>,
    /// Program that runs the deployment.
    #[arg(long, value_name = "WHAT", default_value = "compose")]
    pub(crate) target: TargetChoice,
    /// Location or tier of the controller. Default: the location of the highest tier that the others reach.
    #[arg(long, value_name = "LOCATION")]
    pub(crate) controller: Option<String>,
    /// Image of the containers. Default: tidemill:VERSION, with the version of this program.
    #[arg(long, value_name = "NAME")]
    pub(crate) image: Option<String>,
    /// Network of the containers; not for Kubernetes. Default: `host` if the infrastructure names hosts, else `bridge`.
    #[arg(long, value_name = "MODE")]
    pub(crate) network: Option<NetworkChoice>,
    /// First port on the networks of the machines; the others follow: the controller's for people, for processes of
    /// runs and for metrics, then one for the metrics of each worker. On a bridge, the only port. Default: 7420, 7421
    /// and from 9464.
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) first_port: Option<u16>,
    /// Name that distinguishes the deployment from others in a container engine, for Compose. Default: the name in the folder, else a random one.
    #[arg(long, value_name = "NAME", value_parser = crate::deploy::parse_id)]
    pub(crate) id: Option<String>,
    /// Keep the limits of containers fixed even if the workflow has elastic limits: then no container gets the socket of the engine.
    #[arg(long)]
    pub(crate) no_elastic: bool,
    /// Write into a folder that contains other files, and replace files of the same names.
    #[arg(long)]
    pub(crate) force: bool,
    /// Format of the output on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `--target`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TargetChoice {
    /// Docker or Podman, through Compose.
    Compose,
    /// A Kubernetes cluster.
    Kubernetes,
    /// Services of systemd, on the machines themselves.
    Systemd,
}

/// `--network`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum NetworkChoice {
    /// A network of the container engine: for all locations on one machine.
    Bridge,
    /// The networks of the machines: for one machine per location.
    Host,
}

/// `tidemill health`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill health 127.0.0.1:9464
  tidemill health 127.0.0.1:9465 --ready    an agent that reaches its controller

For health checks of containers: asks a controller, an agent or a device at the address of its `--metrics`. Exit code 0 if it is
healthy, 1 if it is not or does not answer.")]
pub(crate) struct HealthArguments {
    /// Address of its metrics; of several addresses, one must be healthy.
    #[arg(value_name = "HOST:PORT", required = true, num_args = 1..)]
    pub(crate) addresses: Vec<String>,
    /// Require also that the controller answered the last heartbeat of the agent.
    #[arg(long)]
    pub(crate) ready: bool,
    /// Limit on the time to answer.
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = super::parse_time)]
    pub(crate) timeout: std::time::Duration,
    /// Format of the output on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}
