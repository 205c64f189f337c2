//! Description of a deployment for programs: `deployment.json`, written beside the files of the locations.
use serde::{Deserialize, Serialize};
use std::net::Ipv6Addr;

/// The current format. Earlier ones can be read, too.
pub const FORMAT: u32 = 3;
/// The format after an upgrade: older programs, which would not see the images in its Compose files, refuse it.
pub const UPGRADED_FORMAT: u32 = 4;
/// Label with the deployment's id on everything that belongs to it in an engine.
pub const ID_LABEL: &str = "tidemill.deployment";
/// The name of its file.
pub const FILE_NAME: &str = "deployment.json";

/// A deployment: its containers by location, and their addresses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Deployment {
    /// Format version; [`FORMAT`] or [`UPGRADED_FORMAT`].
    pub format: u32,
    /// Name of the workflow.
    pub workflow: String,
    /// Distinguishes it from other deployments, also of this workflow; `None` in format 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Name prefix of everything that belongs to it: `tidemill-WORKFLOW-ID`.
    pub project: String,
    /// Image of all containers: that of an upgrade, else the one in the files of the locations.
    pub image: String,
    /// The image in the files of the locations, if it differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_of_files: Option<String>,
    /// Network of the containers.
    pub network: Network,
    /// The controller.
    pub controller: ControllerPlace,
    /// Locations, in the order of the tiers; the controller's is among them.
    pub locations: Vec<DeployedLocation>,
    /// Locations of earlier plans of this deployment that the present one lacks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub former: Vec<FormerLocation>,
    /// Files of the run.
    pub files: DeployedFiles,
}

/// A location of an earlier plan, where remains may exist.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FormerLocation {
    /// Its name.
    pub name: String,
    /// [`Deployment::project`] at that time.
    pub within: String,
    /// Its folder below that of the deployment.
    pub folder: String,
    /// Its Compose project.
    pub project: String,
    /// The machine; `None`: this one.
    pub host: Option<String>,
}

/// Network of the containers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "mode", rename_all = "snake_case")]
pub enum Network {
    /// All locations are on one machine and share a network of the container engine, which is created before the first one
    /// starts.
    Bridge {
        /// Its name.
        name: String,
    },
    /// Containers use the networks of their machines: locations are machines of their own.
    Host,
}

/// Wildcard address of a controller's machine, of the family by which the others dial it.
pub fn all_addresses(address: &str) -> &'static str {
    if address.parse::<Ipv6Addr>().is_ok() { "[::]" } else { "0.0.0.0" }
}

/// Location of the controller.
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
    /// The machine's port for people if the network is a bridge; it is open on the machine itself only.
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
    /// Its folder below that of the deployment.
    pub folder: String,
    /// Its Compose project.
    pub project: String,
    /// The machine: `ssh://USER@HOST`; `None`: this one.
    pub host: Option<String>,
    /// Processor architecture of the image: `amd64`, `arm64`; `None`: unknown.
    pub architecture: Option<String>,
    /// Whether `compose.gpu.yaml` is to be added to `compose.yaml`, if the machine has the accelerators.
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
    /// Role of the container.
    pub role: ServiceRole,
    /// Name of the worker, as in the plan; `None`: the controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// Path of the join material of the worker or the device, below the folder of the location: a file with two lines, the controller's whole
    /// address and a join token for this name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub join: Option<String>,
    /// Port at which it serves metrics, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics_port: Option<u16>,
    /// Addresses of the machine for sources of its worker, or for its device, as `HOST:PORT`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<String>,
    /// The device of the plan that it serves, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<DeployedDevice>,
}

/// A device that the deployment serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeployedDevice {
    /// Id in the plan.
    pub id: String,
    /// Name under which it joins the cluster, and on its machine.
    pub name: String,
    /// Where stages reach it: `tls://HOST:PORT`.
    pub address: String,
}

/// Role of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServiceRole {
    /// `tidemill controller`.
    Controller,
    /// `tidemill worker`.
    Worker,
    /// `tidemill elastic attach`, for the workers of its machine.
    Elastic,
    /// `tidemill device serve`.
    Device,
}

/// Files of the run; paths are relative to the folder of the deployment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeployedFiles {
    /// Original path of the workflow: its models and data are beside it. `None` if it was not given.
    pub workflow: Option<String>,
    /// A copy of the infrastructure, if one was given.
    pub infrastructure: Option<String>,
    /// A copy of the plan.
    pub plan: String,
    /// Original paths of profiles.
    #[serde(default)]
    pub profiles: Vec<String>,
}

impl Deployment {
    /// Name of the service of a worker.
    pub fn service_of(worker: &str) -> String {
        format!("worker-{worker}")
    }

    /// The image in the files of the locations.
    pub fn image_of_files(&self) -> &str {
        self.image_of_files.as_deref().unwrap_or(&self.image)
    }

    /// Returns the deployment after an upgrade of all containers to this image; `None`: to the one in the files.
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

    /// Returns the locations of this deployment and of earlier ones, for its next plan.
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

    /// Formats as JSON.
    ///
    /// # Errors
    /// None for any value of this type.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }
}
