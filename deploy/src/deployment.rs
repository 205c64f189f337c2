//! What was deployed, for programs: `deployment.json`, written beside the files of the locations.
use serde::{Deserialize, Serialize};
use std::net::Ipv6Addr;

/// The format that is deployed. Those before are read, too.
pub const FORMAT: u32 = 3;
/// The format of one that was upgraded since: older programs, which would not see what its Compose files name, do not read it.
pub const UPGRADED_FORMAT: u32 = 4;
/// The label of everything that an engine has of a deployment: its id.
pub const ID_LABEL: &str = "tidemill.deployment";
/// The name of its file.
pub const FILE_NAME: &str = "deployment.json";

/// A deployment: its containers by location, and how they find each other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Deployment {
    /// Format version; [`FORMAT`] or [`UPGRADED_FORMAT`].
    pub format: u32,
    /// Name of the workflow.
    pub workflow: String,
    /// Tells it from other deployments, of the same workflow too; none: format 1 had none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Name of everything that belongs to it: `tidemill-WORKFLOW-ID`.
    pub project: String,
    /// Image of all containers: the one that an upgrade has given them, else the one that the files of the locations name.
    pub image: String,
    /// The image that the files of the locations name, where it is another one by now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_of_files: Option<String>,
    /// How containers reach each other.
    pub network: Network,
    /// The controller.
    pub controller: ControllerPlace,
    /// Locations, in the order of the tiers; the controller's is among them.
    pub locations: Vec<DeployedLocation>,
    /// Locations that an earlier plan of this deployment had, and this one has not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub former: Vec<FormerLocation>,
    /// What the run is made of.
    pub files: DeployedFiles,
}

/// A location that an earlier plan had: something may be left of it there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FormerLocation {
    /// What it was called.
    pub name: String,
    /// [`Deployment::project`] of then.
    pub within: String,
    /// Its folder beneath that of the deployment.
    pub folder: String,
    /// Its Compose project.
    pub project: String,
    /// The machine; none: this one.
    pub host: Option<String>,
}

/// How containers reach each other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "mode", rename_all = "snake_case")]
pub enum Network {
    /// All locations are on one machine and share a network of the container engine, which is made before the first one starts.
    Bridge {
        /// Its name.
        name: String,
    },
    /// Containers use the networks of their machines: locations are machines of their own.
    Host,
}

/// All addresses of a controller's machine, of the family of the address by which the others dial it.
pub fn all_addresses(address: &str) -> &'static str {
    if address.parse::<Ipv6Addr>().is_ok() { "[::]" } else { "0.0.0.0" }
}

/// Where the controller is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ControllerPlace {
    /// Name of its location.
    pub location: String,
    /// Name of its service.
    pub service: String,
    /// Port for people and workers (HTTPS).
    pub port: u16,
    /// Port for the processes of runs.
    pub hosts_port: u16,
    /// Name or address by which workers dial it, without port.
    pub address: String,
    /// The machine's port of people where the network is a bridge; it is open on the machine itself only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published: Option<u16>,
    /// Its folder in the container. It writes its whole address, `tidemill://HOST:PORT/FINGERPRINT`, to the file `address` there, and
    /// the token of the first admin to `admin.token`.
    pub folder: String,
}

/// Containers of one machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeployedLocation {
    /// Unique in the deployment.
    pub name: String,
    /// Its tier.
    pub tier: String,
    /// Its folder beneath that of the deployment.
    pub folder: String,
    /// Its Compose project.
    pub project: String,
    /// The machine: `ssh://USER@HOST`; none: this one.
    pub host: Option<String>,
    /// Processor architecture that the image is needed for: `amd64`, `arm64`; none: not known.
    pub architecture: Option<String>,
    /// Whether `compose.gpu.yaml` is to be added to `compose.yaml`, where the machine has the accelerators.
    pub has_gpu_overlay: bool,
    /// Its containers; the controller first.
    pub services: Vec<DeployedService>,
}

/// A container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeployedService {
    /// Name of the Compose service.
    pub service: String,
    /// What it does.
    pub role: ServiceRole,
    /// Name of the worker, as in the plan; none: the controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// Where the worker's join material is expected, beneath the folder of the location: a file with two lines, the controller's whole address and
    /// a join token for this name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub join: Option<String>,
    /// Port at which it serves metrics; none: it serves none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics_port: Option<u16>,
    /// Addresses of its machine at which sources of its worker are reached, as `HOST:PORT`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<String>,
}

/// What a container does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServiceRole {
    /// `tidemill controller`.
    Controller,
    /// `tidemill worker`.
    Worker,
    /// `tidemill elastic attach`, for the workers of its machine.
    Elastic,
}

/// What the run is made of; paths are relative to the folder of the deployment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeployedFiles {
    /// The workflow where it lies: its models and data are beside it. None: it was not given.
    pub workflow: Option<String>,
    /// A copy of the infrastructure, where one was given.
    pub infrastructure: Option<String>,
    /// A copy of the plan.
    pub plan: String,
    /// Profiles where they lie.
    #[serde(default)]
    pub profiles: Vec<String>,
}

impl Deployment {
    /// Name of the service of a worker.
    pub fn service_of(worker: &str) -> String {
        format!("worker-{worker}")
    }

    /// The image that the files of the locations name.
    pub fn image_of_files(&self) -> &str {
        self.image_of_files.as_deref().unwrap_or(&self.image)
    }

    /// The same where an upgrade has given all containers this image; none: they have the one that the files name.
    #[must_use]
    pub fn with_image(mut self, image: Option<&str>) -> Self {
        let of_files = self.image_of_files().to_owned();
        let other = image.filter(|image| *image != of_files);
        self.format = match (other, self.format) {
            (Some(_), _) => UPGRADED_FORMAT,
            (None, UPGRADED_FORMAT) => FORMAT,
            (None, format) => format,
        };
        self.image = other.unwrap_or(&of_files).to_owned();
        self.image_of_files = other.map(|_| of_files);
        self
    }

    /// What the next plan of this deployment has to know of the places of this one and of those before.
    pub fn places(&self) -> Vec<FormerLocation> {
        let own = self.locations.iter().map(|location| FormerLocation {
            name: location.name.clone(),
            within: self.project.clone(),
            folder: location.folder.clone(),
            project: location.project.clone(),
            host: location.host.clone(),
        });
        own.chain(self.former.iter().cloned()).collect()
    }

    /// As text of its file.
    ///
    /// # Errors
    /// None for anything that this type holds.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }
}
