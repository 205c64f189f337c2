//! A Compose file per location, in the common syntax of Compose 1.29 and 2: no `name`, no `configs`, no `include`, limits
//! as keys of the service, ports in their short form.
mod document;
mod services;

use crate::deployment::ID_LABEL;
use crate::error::DeployError;
use crate::files::Files;
use crate::layout::{ELASTIC, Layout, Site};
use crate::request::NetworkMode;
use document::{ComposeFile, ExternalNetwork, FileSecret, GpuFile, Volume};
use services::{controller, device, elastic, gpus, worker};
use std::collections::BTreeMap;

/// The network of the containers in the files.
pub(crate) const NETWORK: &str = "cluster";
/// The Compose file of a location.
const FILE: &str = "compose.yaml";
/// The Compose file that reserves its accelerators.
const GPU_FILE: &str = "compose.gpu.yaml";

const SECRETS_README: &str = "# Join material

A file for each worker, `join-WORKER`, and for each device, `join-device-DEVICE`, with two lines: the controller's whole address, and a
join token for this name. Both come from the controller; the README of the deployment says how. The user of the containers has to be able
to read the files. A token is used up by the first worker or device that joins with it.
";

pub(crate) fn write(layout: &Layout, files: &mut Files) -> Result<(), DeployError> {
    for (index, site) in layout.sites.iter().enumerate() {
        let is_controller = index == layout.controller;
        let path = |name: &str| format!("{}/{name}", site.name);
        files.add_yaml(path(FILE), &comment(layout, site), &[file(layout, site, is_controller)])?;
        if let Some(gpus) = gpu_file(site) {
            let text = "Reserves accelerators: `docker compose --file compose.yaml --file compose.gpu.yaml up --detach`.\n\
                 Needs the container toolkit of their vendor on the machine.";
            files.add_yaml(path(GPU_FILE), text, &[gpus])?;
        }
        files.add(path("env.example"), environment(layout, site, is_controller));
        files.add(path("secrets/README.md"), SECRETS_README);
        files.add(path("secrets/.gitignore"), "*\n!.gitignore\n!README.md\n");
    }
    Ok(())
}

fn comment(layout: &Layout, site: &Site) -> String {
    let of = format!(
        "Location {} of {}; made by `tidemill deploy`, which overwrites changes.",
        site.name, layout.workflow
    );
    let project = format!("\nCompose project: {}-{}", layout.project, site.name);
    let network = match layout.network {
        NetworkMode::Bridge => {
            format!("\nBefore the first location starts: docker network create {}", network_words(layout))
        }
        NetworkMode::Host => String::new(),
    };
    of + &project + &network
}

/// Returns the options that create the network.
pub(crate) fn network_words(layout: &Layout) -> String {
    let label = layout.id.as_ref().map_or_else(String::new, |id| format!("--label {ID_LABEL}={id} "));
    format!("{label}{}", layout.project)
}

fn volume(layout: &Layout) -> Volume {
    Volume { labels: layout.id.iter().map(|id| (ID_LABEL, id.clone())).collect() }
}

fn file(layout: &Layout, site: &Site, is_controller: bool) -> ComposeFile {
    let mut file = ComposeFile::default();
    if is_controller {
        file.services.insert(crate::layout::SERVICE.to_owned(), controller(layout, site));
        file.volumes.insert(crate::layout::SERVICE.to_owned(), volume(layout));
    }
    for unit in &site.workers {
        file.services.insert(unit.service(), worker(layout, site, unit));
        file.volumes.insert(unit.service(), volume(layout));
        if unit.writes {
            file.volumes.insert(services::results(unit), volume(layout));
        }
        let secret = FileSecret { file: format!("./secrets/{}", unit.join()) };
        file.secrets.insert(unit.join(), secret);
    }
    for served in &site.served {
        file.services.insert(served.service(), device(layout, site, served));
        file.volumes.insert(served.service(), volume(layout));
        let secret = FileSecret { file: format!("./secrets/{}", served.join()) };
        file.secrets.insert(served.join(), secret);
    }
    if let Some(of) = &site.elastic {
        file.services.insert(ELASTIC.to_owned(), elastic(layout, site, of));
        file.volumes.insert(ELASTIC.to_owned(), volume(layout));
    }
    if layout.network == NetworkMode::Bridge {
        let network = ExternalNetwork { name: layout.project.clone(), external: true };
        file.networks.insert(NETWORK.to_owned(), network);
    }
    file
}

fn gpu_file(site: &Site) -> Option<GpuFile> {
    let workers = site.workers.iter().filter(|unit| unit.accelerators > 0);
    let workers = workers.map(|unit| (unit.service(), gpus(unit.accelerator_numbers())));
    let devices = site
        .served
        .iter()
        .filter_map(|served| Some((served.service(), gpus(vec![served.accelerator?.to_string()]))));
    let services: BTreeMap<_, _> = workers.chain(devices).collect();
    (!services.is_empty()).then_some(GpuFile { services })
}

fn environment(layout: &Layout, site: &Site, is_controller: bool) -> String {
    let mut lines = vec![
        "# Copy to `.env` beside compose.yaml and change what differs here.".to_owned(),
        format!("#{}={}", services::IMAGE_VARIABLE, layout.image),
    ];
    if is_controller {
        let from = match layout.network {
            NetworkMode::Bridge => "from this machine",
            NetworkMode::Host => "by people and workers",
        };
        lines.push(format!("# Port of this machine at which the controller is reached {from}."));
        lines.push(format!("#{}={}", services::PORT_VARIABLE, layout.ports.published));
    }
    if is_controller && layout.network == NetworkMode::Host {
        lines.push("# Port of this machine at which it is reached by the processes of runs.".to_owned());
        lines.push(format!("#{}={}", services::HOSTS_PORT_VARIABLE, layout.ports.processes));
    }
    if !(site.workers.is_empty() && site.served.is_empty()) && layout.network == NetworkMode::Host {
        lines.push(
            "# Address at which workers and devices serve metrics, without a token: one that only Prometheus reaches."
                .to_owned(),
        );
        lines.push(format!("#{}=127.0.0.1", services::METRICS_VARIABLE));
    }
    if site.elastic.is_some() {
        lines.push(
            "# Socket of the container engine, for the container that moves limits between workers."
                .to_owned(),
        );
        lines.push(format!("#{}={}", services::SOCKET_VARIABLE, services::SOCKET));
    }
    lines.join("\n") + "\n"
}
