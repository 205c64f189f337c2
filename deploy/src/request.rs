//! What is to be deployed, and how.
use crate::deployment::FormerLocation;
use tidemill_spec::infrastructure::Infrastructure;
use tidemill_spec::plan::PlanFile;
use tidemill_spec::workflow::Workflow;

/// Where the copy of the plan is.
pub(crate) const PLAN: &str = "plan.yaml";
/// Where the copy of the infrastructure is.
pub(crate) const INFRASTRUCTURE: &str = "infrastructure.yaml";

/// What runs the deployment.
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

/// How containers reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetworkMode {
    /// A network of the container engine: all locations are on one machine.
    Bridge,
    /// The machines' own networks.
    Host,
}

/// What is to be deployed, and how.
#[derive(Debug, Clone)]
pub struct Request<'a> {
    /// The plan.
    pub plan: &'a PlanFile,
    /// Its text: it is copied as it is.
    pub plan_text: &'a str,
    /// The infrastructure that the plan was made for, and its text.
    pub infrastructure: Option<(&'a Infrastructure, &'a str)>,
    /// The workflow: what its sources read by absolute paths is given to their workers.
    pub workflow: Option<&'a Workflow>,
    /// Where the workflow lies, from the folder of the deployment.
    pub workflow_path: Option<String>,
    /// Where profiles lie, from the folder of the deployment.
    pub profiles: Vec<String>,
    /// What runs it.
    pub target: Target,
    /// Location or tier of the controller; none: the highest tier.
    pub controller: Option<String>,
    /// Image of all containers.
    pub image: String,
    /// How containers reach each other; none: by whether the infrastructure names hosts.
    pub network: Option<NetworkMode>,
    /// The first of the ports that a deployment has on the networks of its machines; the others follow: the controller's for people, for
    /// processes of runs, for metrics, then those of the workers' metrics. On a bridge it is the one that is published. None: 7420, 7421
    /// and from 9464.
    pub first_port: Option<u16>,
    /// Tells deployments of the same workflow apart, in the names of everything that an engine has of it: small letters and digits.
    /// None: they share these names.
    pub id: Option<String>,
    /// Whether a container moves limits between the workers of a machine, where the workflow wants limits that follow the load.
    pub elastic: bool,
    /// Where the deployment was before, of the same id.
    pub former: Vec<FormerLocation>,
}

impl<'a> Request<'a> {
    /// A plan alone, for Compose, with the image of this version.
    pub fn new(plan: &'a PlanFile, plan_text: &'a str) -> Self {
        Self {
            plan,
            plan_text,
            infrastructure: None,
            workflow: None,
            workflow_path: None,
            profiles: Vec::new(),
            target: Target::default(),
            controller: None,
            image: concat!("tidemill:", env!("CARGO_PKG_VERSION")).to_owned(),
            network: None,
            first_port: None,
            id: None,
            elastic: true,
            former: Vec::new(),
        }
    }
}
