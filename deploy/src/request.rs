//! Input of a deployment.
use crate::deployment::FormerLocation;
use tidemill_service::Needs;
use tidemill_spec::infrastructure::Infrastructure;
use tidemill_spec::kinds::KindTable;
use tidemill_spec::plan::PlanFile;
use tidemill_spec::workflow::Workflow;

/// Path of the copy of the plan.
pub(crate) const PLAN: &str = "plan.yaml";
/// Path of the copy of the infrastructure.
pub(crate) const INFRASTRUCTURE: &str = "infrastructure.yaml";

/// Platform of the deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Target {
    /// Docker or Podman, through Compose.
    #[default]
    Compose,
    /// A Kubernetes cluster.
    Kubernetes,
    /// Services of the machines themselves.
    Systemd,
}

impl Target {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Compose => "compose",
            Self::Kubernetes => "kubernetes",
            Self::Systemd => "systemd",
        }
    }
}

/// Network of the containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetworkMode {
    /// A network of the container engine: all locations are on one machine.
    Bridge,
    /// The machines' own networks.
    Host,
}

/// Input of a deployment.
#[derive(Debug, Clone)]
pub struct Request<'a> {
    /// The plan.
    pub plan: &'a PlanFile,
    /// Its text, for an exact copy.
    pub plan_text: &'a str,
    /// The infrastructure that the plan was made for, and its text.
    pub infrastructure: Option<(&'a Infrastructure, &'a str)>,
    /// The workflow: workers get the absolute paths that its sources read.
    pub workflow: Option<&'a Workflow>,
    /// Facts about the kinds of its sources and sinks.
    pub kinds: KindTable,
    /// Path of the workflow, relative to the folder of the deployment.
    pub workflow_path: Option<String>,
    /// Paths of profiles, relative to the folder of the deployment.
    pub profiles: Vec<String>,
    /// Platform.
    pub target: Target,
    /// Location or tier of the controller; `None`: the highest tier.
    pub controller: Option<String>,
    /// Image of all containers.
    pub image: String,
    /// Network of the containers; `None`: depends on whether the infrastructure names hosts.
    pub network: Option<NetworkMode>,
    /// The first port of a deployment on the networks of its machines. The others follow: the controller's for people, for
    /// processes of runs, for metrics, then those of the workers' metrics. On a bridge it is the published one. `None`:
    /// 7420, 7421 and from 9464.
    pub first_port: Option<u16>,
    /// Distinguishes deployments of one workflow in the names of everything in an engine: small letters and digits. `None`:
    /// they share these names.
    pub id: Option<String>,
    /// Whether a container moves limits between the workers of a machine, if the workflow has elastic limits.
    pub elastic: bool,
    /// Needs of the services that run beside the agent of each worker.
    pub services: Vec<Needs>,
    /// Earlier locations of the deployment with this id.
    pub former: Vec<FormerLocation>,
}

impl<'a> Request<'a> {
    /// Creates a request for a plan alone, for Compose, with the image of this version; no kind is known.
    pub fn new(plan: &'a PlanFile, plan_text: &'a str) -> Self {
        Self {
            plan,
            plan_text,
            infrastructure: None,
            workflow: None,
            kinds: KindTable::default(),
            workflow_path: None,
            profiles: Vec::new(),
            target: Target::default(),
            controller: None,
            image: concat!("tidemill:", env!("CARGO_PKG_VERSION")).to_owned(),
            network: None,
            first_port: None,
            id: None,
            elastic: true,
            services: Vec::new(),
            former: Vec::new(),
        }
    }
}
