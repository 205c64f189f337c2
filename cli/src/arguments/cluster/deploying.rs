//! Arguments of `tidemill deploy` and `tidemill health`.
use super::OutputForm;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// `tidemill deploy`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill deploy plan.yaml --out deployment
  tidemill deploy plan.yaml --out deployment --infra infrastructure.yaml --workflow workflow.yaml
  tidemill deploy plan.yaml --out deployment --controller hub    the controller beside the hub's workers
  tidemill deploy plan.yaml --out live --id live                 containers are called tidemill-WORKFLOW-live-...
  tidemill deploy plan.yaml --out live --first-port 7520         beside another one that has the machines' own networks
  tidemill deploy plan.yaml --out manifests --target kubernetes
  tidemill deploy plan.yaml --out units --target systemd         for machines without Docker

Writes files and starts nothing: a Compose file for each location that stands on its own, what Prometheus and Grafana need, and a
README that says what to copy where. No secrets are made. The same files in give the same files out, but for a name that is drawn once for the
folder (`--id`): containers, volumes and networks of other deployments, also of the same workflow, are never touched. The infrastructure and the workflow are
`infrastructure.yaml` and `workflow.yaml` beside the plan, if they are there and nothing else is named.")]
pub(crate) struct DeployArguments {
    /// The plan.
    #[arg(value_name = "PLAN")]
    pub(crate) plan: PathBuf,
    /// The folder to write to; it is made if it is not there.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Machines and places that the plan was made for: limits of processors and memory, hosts, accelerators.
    #[arg(long = "infra", value_name = "FILE")]
    pub(crate) infrastructure: Option<PathBuf>,
    /// The workflow that the plan is for.
    #[arg(long, value_name = "FILE")]
    pub(crate) workflow: Option<PathBuf>,
    /// Profiles that the plan was made with; they are named for `submit`.
    #[arg(long, value_name = "PATH", num_args = 1..)]
    pub(crate) profiles: Vec<PathBuf>,
    /// What is to run it.
    #[arg(long, value_name = "WHAT", default_value = "compose")]
    pub(crate) target: TargetChoice,
    /// Location or tier of the controller. Default: that of the highest tier which the others reach.
    #[arg(long, value_name = "LOCATION")]
    pub(crate) controller: Option<String>,
    /// Image of the containers. Default: tidemill:VERSION, with the version of this program.
    #[arg(long, value_name = "NAME")]
    pub(crate) image: Option<String>,
    /// How containers reach each other; not in Kubernetes. Default: host if the infrastructure names hosts, else bridge.
    #[arg(long, value_name = "MODE")]
    pub(crate) network: Option<NetworkChoice>,
    /// First of the ports that it has on the networks of its machines; the others follow: the controller's for people, for processes of runs,
    /// for metrics, then one for the metrics of each worker. On a bridge it is the only one. Default: 7420, 7421 and from 9464.
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) first_port: Option<u16>,
    /// What tells the deployment from others in a container engine, for Compose. Default: that of the deployment in the folder, else one that is drawn.
    #[arg(long, value_name = "NAME", value_parser = crate::deploy::parse_id)]
    pub(crate) id: Option<String>,
    /// Limits stay as they are although the workflow wants them to follow the load: no container has the socket of the engine.
    #[arg(long)]
    pub(crate) no_elastic: bool,
    /// Write although the folder has other files in it; of these, those of the same names are replaced.
    #[arg(long)]
    pub(crate) force: bool,
    /// Form of the answer on stdout.
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
    /// Services of the machines themselves.
    Systemd,
}

/// `--network`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum NetworkChoice {
    /// A network of the container engine: all locations on one machine.
    Bridge,
    /// The machines' own networks: a machine for each location.
    Host,
}

/// `tidemill health`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill health 127.0.0.1:9464
  tidemill health 127.0.0.1:9465 --ready    an agent, and its controller answers it

For health checks of containers: asks a controller or an agent at the address of its `--metrics`. Exit code 0 when it is well, 1 when it
is not or does not answer.")]
pub(crate) struct HealthArguments {
    /// Where it serves metrics; of several one has to be well.
    #[arg(value_name = "HOST:PORT", required = true, num_args = 1..)]
    pub(crate) addresses: Vec<String>,
    /// Of an agent: its controller must have answered its last heartbeat.
    #[arg(long)]
    pub(crate) ready: bool,
    /// How long it may take to answer.
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = super::parse_time)]
    pub(crate) timeout: std::time::Duration,
    /// Form of the answer on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}
