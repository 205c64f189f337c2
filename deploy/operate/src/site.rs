//! A deployment in its folder, and the machines of its locations.
use crate::cause::OperateError;
use crate::machine::Machine;
use std::fs;
use std::path::{Path, PathBuf};
use tidemill_deploy::deployment::{
    DeployedDevice, DeployedLocation, DeployedService, Deployment, FILE_NAME, FormerLocation, Network,
    ServiceRole, UPGRADED_FORMAT, all_addresses,
};

/// Overrides the image of all containers of a location.
const IMAGE: &str = "TIDEMILL_IMAGE";
/// Overrides the controller's port on its machine.
const PORT: &str = "TIDEMILL_PORT";
/// Overrides its port for the processes of runs on the machine's own network.
const HOSTS_PORT: &str = "TIDEMILL_HOSTS_PORT";
/// Overrides the address at which workers and devices serve metrics on the machine's own network.
const METRICS: &str = "TIDEMILL_METRICS_ADDRESS";
/// The folder of locations on other machines, below the user's own.
const REMOTE: &str = ".local/share/tidemill";

/// A deployment in its folder.
#[derive(Debug, Clone)]
pub struct Site {
    folder: PathBuf,
    deployment: Deployment,
    places: Vec<Place>,
    former: Vec<Former>,
}

/// A location of an earlier plan.
#[derive(Debug, Clone)]
pub(crate) struct Former {
    pub(crate) name: String,
    pub(crate) project: String,
    pub(crate) machine: Machine,
    /// Its folder on another machine.
    pub(crate) folder: Option<String>,
}

/// The folder of a location on another machine.
fn remote(deployment: &str, location: &str) -> String {
    format!("{REMOTE}/{deployment}/{location}")
}

/// Returns the value of a variable in a file `.env`, as Compose reads it: the last of several lines counts, and text after
/// ` #` is a comment.
fn variable_in(text: &str, name: &str) -> Option<String> {
    let value = |line: &str| {
        let line = line.trim();
        let line = line.strip_prefix("export ").map_or(line, str::trim_start);
        let value = line.strip_prefix(name)?.trim_start().strip_prefix('=')?.trim();
        let quoted = |quote: char| value.strip_prefix(quote)?.split(quote).next();
        let remark = value.char_indices().zip(std::iter::once(' ').chain(value.chars()));
        let mut remark = remark.filter(|((_, c), before)| *c == '#' && before.is_whitespace());
        let end = remark.next().map_or(value.len(), |((at, _), _)| at);
        let plain = || value[..end].trim_end();
        Some(quoted('"').or_else(|| quoted('\'')).unwrap_or_else(plain).to_owned())
    };
    text.lines().rev().find_map(value)
}

/// A location and its machine.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) location: DeployedLocation,
    pub(crate) machine: Machine,
    /// Its folder on this machine.
    pub(crate) own_folder: PathBuf,
    /// Its folder on its machine.
    pub(crate) folder: String,
}

impl Place {
    /// Returns a variable as Compose does: from the environment if it runs here, else from the file `.env` of the location.
    fn variable(&self, name: &str) -> Option<String> {
        let own = std::env::var(name).ok().filter(|_| self.machine.is_here());
        let in_file = || variable_in(&fs::read_to_string(self.own_folder.join(".env")).ok()?, name);
        own.or_else(in_file).filter(|value| !value.is_empty())
    }

    /// The container that moves limits between workers of its machine.
    pub(crate) fn elastic(&self) -> Option<&DeployedService> {
        self.location.services.iter().find(|service| service.role == ServiceRole::Elastic)
    }

    /// Services of devices, with what is known of these.
    pub(crate) fn devices(&self) -> impl Iterator<Item = (&DeployedService, &DeployedDevice)> {
        let devices = self.location.services.iter().filter(|service| service.role == ServiceRole::Device);
        devices.filter_map(|service| Some((service, service.device.as_ref()?)))
    }

    /// Services of workers, with the workers' names.
    pub(crate) fn workers(&self) -> impl Iterator<Item = (&DeployedService, &str)> {
        let workers = self.location.services.iter().filter(|service| service.role == ServiceRole::Worker);
        workers.filter_map(|service| Some((service, service.worker.as_deref()?)))
    }
}

impl Site {
    /// Reads the folder that `tidemill deploy` wrote.
    ///
    /// # Errors
    /// [`OperateError::Deployment`]: it has none, or one of another version.
    pub fn load(folder: &Path) -> Result<Self, OperateError> {
        let path = folder.join(FILE_NAME);
        let wrong = |text: String| OperateError::Deployment { path: path.clone(), text };
        let bytes = fs::read(&path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                wrong("there is no deployment; `tidemill deploy PLAN --out DIR` writes one".to_owned())
            }
            _ => wrong(error.to_string()),
        })?;
        let value: serde_json::Value =
            serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))?;
        let format = value.get("format").and_then(serde_json::Value::as_u64);
        if !format.is_some_and(|format| (1..=u64::from(UPGRADED_FORMAT)).contains(&format)) {
            let found = format.map_or_else(|| "none".to_owned(), |format| format.to_string());
            let text = format!(
                "its format is {found}, but this version reads 1 to {UPGRADED_FORMAT}; deploy the plan again"
            );
            return Err(wrong(text));
        }
        let deployment: Deployment =
            serde_json::from_value(value).map_err(|error| wrong(error.to_string()))?;
        let folder = fs::canonicalize(folder)
            .map_err(|source| OperateError::File { path: folder.to_owned(), source })?;
        let place = |location: &DeployedLocation| {
            let machine = Machine::parse(location.host.as_deref()).map_err(&wrong)?;
            let own_folder = folder.join(&location.folder);
            let there = match machine.is_here() {
                true => own_folder.display().to_string(),
                false => remote(&deployment.project, &location.folder),
            };
            Ok(Place { location: location.clone(), machine, own_folder, folder: there })
        };
        let places = deployment.locations.iter().map(place).collect::<Result<Vec<_>, OperateError>>()?;
        let former = |one: &FormerLocation| {
            let machine = Machine::parse(one.host.as_deref()).map_err(&wrong)?;
            let folder = (!machine.is_here()).then(|| remote(&one.within, &one.folder));
            Ok(Former { name: one.name.clone(), project: one.project.clone(), machine, folder })
        };
        let former = deployment.former.iter().map(former).collect::<Result<Vec<_>, OperateError>>()?;
        if !places.iter().any(|place| place.location.name == deployment.controller.location) {
            return Err(wrong(format!(
                "the controller is at {:?}, which is not a location",
                deployment.controller.location
            )));
        }
        Ok(Self { folder, deployment, places, former })
    }

    /// The deployment.
    pub fn deployment(&self) -> &Deployment {
        &self.deployment
    }

    /// Whether some of its locations are on other machines.
    pub fn is_far(&self) -> bool {
        self.places.iter().any(|place| !place.machine.is_here())
    }

    /// Its folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The file with the access token of the first admin, which exists while the deployment is up.
    pub fn admin_token(&self) -> PathBuf {
        self.folder.join("admin.token")
    }

    /// Resolves a path from `deployment.json` below the folder.
    pub fn path(&self, relative: &str) -> PathBuf {
        self.folder.join(relative)
    }

    /// The image of a location's containers, unless an upgrade changed it.
    pub(crate) fn image(&self, place: &Place) -> String {
        place.variable(IMAGE).unwrap_or_else(|| self.deployment.image_of_files().to_owned())
    }

    /// Records in `deployment.json` the image that an upgrade gave to all containers; `None`: the one in the files.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn keep_image(&self, image: Option<&str>) -> Result<(), OperateError> {
        let kept = self.deployment.clone().with_image(image);
        if kept == self.deployment {
            return Ok(());
        }
        let path = self.folder.join(FILE_NAME);
        let text = kept
            .to_json()
            .map_err(|error| OperateError::Deployment { path: path.clone(), text: error.to_string() })?;
        // An atomic replacement.
        let next = path.with_extension("json.next");
        let written = fs::write(&next, text).and_then(|()| fs::rename(&next, &path));
        written.map_err(|source| OperateError::File { path, source })
    }

    /// The controller's port for people and workers on its machine, if it has one there.
    pub(crate) fn port(&self) -> Option<u16> {
        let controller = &self.deployment.controller;
        let usual = match self.deployment.network {
            Network::Bridge { .. } => controller.published,
            Network::Host => Some(controller.port),
        };
        let own = self.controller().variable(PORT).and_then(|text| text.parse().ok());
        usual.map(|usual| own.unwrap_or(usual))
    }

    /// Its port for the processes of runs on its machine, if it has one there.
    pub(crate) fn hosts_port(&self) -> Option<u16> {
        let own = || self.controller().variable(HOSTS_PORT).and_then(|text| text.parse().ok());
        let is_host = matches!(self.deployment.network, Network::Host);
        is_host.then(|| own().unwrap_or(self.deployment.controller.hosts_port))
    }

    /// Ports of a container on its machine, with their addresses.
    pub(crate) fn wanted_ports(&self, place: &Place, service: &DeployedService) -> Vec<(String, u16)> {
        let is_host = matches!(self.deployment.network, Network::Host);
        let own = || "127.0.0.1".to_owned();
        let all = all_addresses(&self.deployment.controller.address);
        let everywhere = || if is_host { all.to_owned() } else { own() };
        match (service.role, is_host) {
            (ServiceRole::Controller, _) => {
                let reached =
                    self.port().into_iter().chain(self.hosts_port()).map(|port| (everywhere(), port));
                let metrics = service.metrics_port.filter(|_| is_host);
                reached.chain(metrics.map(|port| (own(), port))).collect()
            }
            (ServiceRole::Worker, _) => {
                let metrics = service.metrics_port.filter(|_| is_host);
                let metrics = metrics.map(|port| (place.variable(METRICS).unwrap_or_else(own), port));
                metrics.into_iter().chain(sources(service, is_host)).collect()
            }
            (ServiceRole::Device, true) => {
                let metrics =
                    service.metrics_port.map(|port| (place.variable(METRICS).unwrap_or_else(own), port));
                metrics.into_iter().chain(sources(service, true)).collect()
            }
            (ServiceRole::Device, false) | (ServiceRole::Elastic, _) => Vec::new(),
        }
    }

    /// The id that marks everything of it in an engine; `None` in a deployment of an older version.
    pub(crate) fn id(&self) -> Option<&str> {
        self.deployment.id.as_deref()
    }

    /// Path of the record that an upgrade reverts to.
    pub(crate) fn upgrade_record(&self) -> PathBuf {
        self.folder.join("upgrade.json")
    }

    /// Whether a Compose project with this deployment's id is its own: ids are chosen by users, so workflows of other names
    /// may have this id.
    pub(crate) fn is_own(&self, project: &str) -> bool {
        let known = self.places.iter().map(|place| &place.location.project);
        if known.chain(self.former.iter().map(|former| &former.project)).any(|one| one == project) {
            return true;
        }
        let Some(id) = self.id() else { return false };
        let within = self.deployment.former.iter().map(|former| former.within.as_str());
        std::iter::once(self.deployment.project.as_str()).chain(within).any(|within| {
            // `tidemill-a-ID-b-ID-edge` may belong to the workflow `a-ID-b`: in doubt it is foreign.
            let rest = project.strip_prefix(within).filter(|rest| rest.starts_with('-'));
            rest.is_some_and(|rest| !rest.contains(&format!("-{id}-")))
        })
    }

    pub(crate) fn former(&self) -> &[Former] {
        &self.former
    }

    /// The network that all locations share and that none of their files creates.
    pub(crate) fn shared_network(&self) -> Option<&str> {
        match &self.deployment.network {
            Network::Bridge { name } => Some(name),
            Network::Host => None,
        }
    }

    pub(crate) fn places(&self) -> &[Place] {
        &self.places
    }

    /// Location of the controller.
    pub(crate) fn controller(&self) -> &Place {
        let name = &self.deployment.controller.location;
        let found = self.places.iter().find(|place| place.location.name == *name);
        found.unwrap_or_else(|| unreachable!("looked at when it was loaded"))
    }

    /// Returns the named services, or all if none are named.
    ///
    /// # Errors
    /// [`OperateError::Unknown`]: there is none of a name.
    pub(crate) fn chosen(&self, names: &[String]) -> Result<Vec<(&Place, &DeployedService)>, OperateError> {
        let all: Vec<_> = self
            .places
            .iter()
            .flat_map(|place| place.location.services.iter().map(move |one| (place, one)))
            .collect();
        let fits = |service: &DeployedService, name: &str| {
            let device = service.device.as_ref().map(|device| device.id.as_str());
            service.service == name || service.worker.as_deref() == Some(name) || device == Some(name)
        };
        for name in names {
            if !all.iter().any(|(_, service)| fits(service, name)) {
                let known =
                    all.iter().map(|(_, service)| service.service.as_str()).collect::<Vec<_>>().join(", ");
                return Err(OperateError::Unknown { what: format!("service {name:?}"), known });
            }
        }
        let wanted =
            |service: &DeployedService| names.is_empty() || names.iter().any(|name| fits(service, name));
        Ok(all.into_iter().filter(|(_, service)| wanted(service)).collect())
    }
}

/// Addresses of the machine for sources of a worker, or for a device: those where they listen, or all on a bridge, where their ports are
/// published.
fn sources(service: &DeployedService, is_host: bool) -> impl Iterator<Item = (String, u16)> {
    service.sources.iter().filter_map(move |address| {
        let (host, port) = address.rsplit_once(':')?;
        let host = if is_host { host } else { "0.0.0.0" };
        Some((host.to_owned(), port.parse().ok()?))
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn variables_are_read_as_compose_reads_them() {
        let port = |text: &str| variable_in(text, "TIDEMILL_PORT");
        assert_eq!(port("TIDEMILL_PORT=7500  # mine").as_deref(), Some("7500"));
        assert_eq!(
            port("TIDEMILL_PORT=1\n export TIDEMILL_PORT = \"75 #00\" # x\nOTHER=2").as_deref(),
            Some("75 #00")
        );
        assert_eq!(port("TIDEMILL_PORT='a' b").as_deref(), Some("a"));
        assert_eq!(port("#TIDEMILL_PORT=1\nTIDEMILL_PORTS=2"), None);
        assert_eq!(port("TIDEMILL_PORT=t:1#2").as_deref(), Some("t:1#2"));
        assert_eq!(port("TIDEMILL_PORT= # none").as_deref(), Some(""));
        assert_eq!(port("TIDEMILL_PORT=7\t# a tab").as_deref(), Some("7"));
    }

    /// Writes a deployment with a controller at the hub and a worker at the edge.
    pub(crate) fn written(folder: &Path, edge: Option<&str>) {
        let service = |name: &str, role: &str| match role {
            "worker" => json!({"service": format!("worker-{name}"), "role": role, "worker": name,
                               "join": format!("secrets/join-{name}"), "metrics_port": 9465}),
            _ => json!({"service": name, "role": role, "metrics_port": 9464}),
        };
        let location = |name: &str, host: Option<&str>, services: Vec<serde_json::Value>| {
            json!({"name": name, "tier": name, "folder": name, "project": format!("tidemill-v-{name}"), "host": host,
                   "architecture": null, "has_gpu_overlay": false, "services": services})
        };
        let document = json!({
            "format": 1, "workflow": "v", "project": "tidemill-v", "image": "tidemill:1",
            "network": {"mode": "bridge", "name": "tidemill-v"},
            "controller": {"location": "hub", "service": "controller", "port": 7420, "hosts_port": 7421,
                           "address": "controller", "published": 7420, "folder": "/var/lib/tidemill/controller"},
            "locations": [location("edge", edge, vec![service("edge-1", "worker")]),
                          location("hub", None, vec![service("controller", "controller"), service("hub-1", "worker")])],
            "files": {"workflow": null, "infrastructure": null, "plan": "plan.yaml", "profiles": []},
        });
        fs::write(folder.join(FILE_NAME), document.to_string()).unwrap();
        for location in ["edge", "hub"] {
            fs::create_dir_all(folder.join(location).join("secrets")).unwrap();
            fs::write(folder.join(location).join("compose.yaml"), "services: {}\n").unwrap();
        }
    }

    impl Site {
        /// Replaces the machine of a location.
        pub(crate) fn on(mut self, location: &str, machine: &Machine) -> Self {
            for place in self.places.iter_mut().filter(|place| place.location.name == location) {
                place.machine = machine.clone();
                place.folder = remote(&self.deployment.project, &place.location.folder);
            }
            self
        }

        /// Replaces the machine of an earlier plan's location.
        pub(crate) fn formerly_on(mut self, location: &str, machine: &Machine) -> Self {
            for former in self.former.iter_mut().filter(|former| former.name == location) {
                former.machine = machine.clone();
            }
            self
        }
    }

    /// Changes the document of [`written`].
    pub(crate) fn changed(folder: &Path, change: impl FnOnce(&mut serde_json::Value)) {
        let path = folder.join(FILE_NAME);
        let mut document = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        change(&mut document);
        fs::write(&path, document.to_string()).unwrap();
    }

    #[test]
    fn an_id_alone_makes_no_project_its_own() {
        let folder = tempfile::tempdir().unwrap();
        written(folder.path(), None);
        changed(folder.path(), |document| {
            document["format"] = 3.into();
            document["id"] = "live".into();
            document["project"] = "tidemill-v-live".into();
            document["former"] = json!([{"name": "attic", "within": "tidemill-old-live", "folder": "attic",
                                         "project": "tidemill-old-live-attic", "host": null}]);
        });
        let site = Site::load(folder.path()).unwrap();
        for own in
            ["tidemill-v-live-edge", "tidemill-old-live-attic", "tidemill-old-live-x", "tidemill-v-hub"]
        {
            assert!(site.is_own(own), "{own}");
        }
        for other in [
            "tidemill-w-live-edge",
            "tidemill-v-live",
            "tidemill-v-livex-edge",
            "tidemill-v-live-x-live-edge",
        ] {
            assert!(!site.is_own(other), "{other}");
        }
    }

    #[test]
    fn ports_of_machines_can_be_others() {
        let folder = tempfile::tempdir().unwrap();
        written(folder.path(), None);
        changed(folder.path(), |document| {
            document["network"] = json!({"mode": "host"});
            document["format"] = 2.into();
            document["id"] = "live".into();
        });
        let site = Site::load(folder.path()).unwrap();
        assert_eq!((site.port(), site.hosts_port(), site.id()), (Some(7420), Some(7421), Some("live")));
        fs::write(folder.path().join("hub/.env"), "TIDEMILL_PORT=7500\nTIDEMILL_HOSTS_PORT=7501\n").unwrap();
        assert_eq!((site.port(), site.hosts_port()), (Some(7500), Some(7501)));
    }

    #[test]
    fn a_device_is_found_by_its_id_and_has_ports_on_the_networks_of_machines() {
        let folder = tempfile::tempdir().unwrap();
        written(folder.path(), None);
        changed(folder.path(), |document| {
            let device = json!({"service": "device-gpu", "role": "device", "join": "secrets/join-device-gpu",
                                "metrics_port": 9466, "sources": ["0.0.0.0:7440"],
                                "device": {"id": "hub-0/gpu", "name": "v-gpu", "address": "tls://hub:7440"}});
            document["locations"][1]["services"].as_array_mut().unwrap().push(device);
        });
        let ports =
            |site: &Site| site.wanted_ports(site.controller(), &site.controller().location.services[2]);
        let site = Site::load(folder.path()).unwrap();
        assert!(ports(&site).is_empty());
        let chosen = site.chosen(&["hub-0/gpu".to_owned()]).unwrap();
        assert_eq!(chosen.iter().map(|(_, one)| one.service.as_str()).collect::<Vec<_>>(), ["device-gpu"]);
        assert_eq!(site.controller().devices().count(), 1);
        let is_prepared = |role| crate::joining::is_prepared(site.controller(), role);
        assert!(!is_prepared(ServiceRole::Device) && !is_prepared(ServiceRole::Elastic));
        fs::write(folder.path().join("hub/secrets/join-device-gpu"), "").unwrap();
        assert!(is_prepared(ServiceRole::Device) && !is_prepared(ServiceRole::Worker));
        changed(folder.path(), |document| document["network"] = json!({"mode": "host"}));
        let found = ports(&Site::load(folder.path()).unwrap());
        assert_eq!(found, [("127.0.0.1".to_owned(), 9466), ("0.0.0.0".to_owned(), 7440)]);
    }

    #[test]
    fn a_folder_is_read_and_one_of_another_version_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let missing = Site::load(folder.path()).unwrap_err().to_string();
        assert!(missing.contains("tidemill deploy PLAN"), "{missing}");
        written(folder.path(), Some("ssh://ada@gate"));
        let site = Site::load(folder.path()).unwrap();
        assert_eq!(site.controller().location.name, "hub");
        let edge = &site.places()[0];
        assert_eq!(edge.folder, ".local/share/tidemill/tidemill-v/edge");
        assert_eq!(edge.workers().map(|(_, name)| name).collect::<Vec<_>>(), ["edge-1"]);
        assert_eq!((site.port(), site.shared_network()), (Some(7420), Some("tidemill-v")));
        fs::write(folder.path().join("hub/.env"), "# own\nTIDEMILL_PORT=7500\nTIDEMILL_IMAGE='t:2'\n")
            .unwrap();
        assert_eq!((site.port(), site.image(site.controller()).as_str()), (Some(7500), "t:2"));
        assert_eq!((site.hosts_port(), site.id()), (None, None));
        assert_eq!(site.image(edge), "tidemill:1");
        let chosen = site.chosen(&["hub-1".to_owned()]).unwrap();
        assert_eq!(chosen.iter().map(|(_, one)| one.service.as_str()).collect::<Vec<_>>(), ["worker-hub-1"]);
        let unknown = site.chosen(&["x".to_owned()]).unwrap_err().to_string();
        assert!(unknown.contains("controller") && unknown.contains("worker-edge-1"), "{unknown}");
        let text = fs::read_to_string(folder.path().join(FILE_NAME)).unwrap();
        fs::write(folder.path().join(FILE_NAME), text.replace("\"format\":1", "\"format\":9")).unwrap();
        let newer = Site::load(folder.path()).unwrap_err().to_string();
        assert!(newer.contains("format is 9"), "{newer}");
    }
}
