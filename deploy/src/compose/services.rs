//! The containers of a location.
use super::NETWORK;
use super::document::{
    Deploy, Device, GpuService, HealthCheck, Logging, Mount, Reservations, Resources, Service, ServiceSecret,
};
use crate::deployment::ID_LABEL;
use crate::layout::{ELASTIC, Elastic, Layout, SERVICE, Served, Site, Unit, has_a_plain_name};
use crate::request::NetworkMode;
use crate::{CONTROLLER_MEMORY, GRACE_SECONDS, MOST_PROCESSES, RESULTS_FOLDER, STATE_FOLDER, USER};
use std::collections::BTreeMap;
use tidemill_spec::infrastructure::Architecture;
use tidemill_spec::units::Bytes;

/// Overrides the deployment's image.
pub(super) const IMAGE_VARIABLE: &str = "TIDEMILL_IMAGE";
/// Sets the controller's port on its machine.
pub(super) const PORT_VARIABLE: &str = "TIDEMILL_PORT";
/// Sets the controller's port for the processes of runs, on the machine's network.
pub(super) const HOSTS_PORT_VARIABLE: &str = "TIDEMILL_HOSTS_PORT";
/// Sets the address at which workers and devices serve metrics.
pub(super) const METRICS_VARIABLE: &str = "TIDEMILL_METRICS_ADDRESS";
/// Sets the path of the engine's socket, for the elastic agent.
pub(super) const SOCKET_VARIABLE: &str = "TIDEMILL_DOCKER_SOCKET";
/// Usual path of the engine's socket.
pub(super) const SOCKET: &str = "/var/run/docker.sock";
/// Path of control groups.
const CONTROL_GROUPS: &str = "/sys/fs/cgroup";
/// Folder for the original limits.
const ELASTIC_FOLDER: &str = "/run/tidemill/elastic";
/// Label of workers with elastic limits; its value names their agent.
const ELASTIC_LABEL: &str = "tidemill.elastic";
/// Path of the secret in the container.
const JOIN: &str = "/run/secrets/join";

/// Escapes dollar signs, after which Compose substitutes variables.
fn literal(text: &str) -> String {
    text.replace('$', "$$")
}

fn literals<'a>(texts: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    texts.into_iter().map(literal).collect()
}

/// Formats a size for both versions of Compose.
fn size(bytes: Bytes) -> String {
    match bytes.0 {
        bytes if bytes % (1 << 30) == 0 => format!("{}g", bytes >> 30),
        bytes if bytes % (1 << 20) == 0 => format!("{}m", bytes >> 20),
        bytes => format!("{bytes}b"),
    }
}

/// Returns the common part of all containers.
fn service(layout: &Layout, site: &Site, (volume, target): (String, &str), asked: &[&str]) -> Service {
    let is_bridge = layout.network == NetworkMode::Bridge;
    let test = ["CMD", "tidemill"].iter().chain(asked).map(|word| (*word).to_owned()).collect();
    let labels = [("tidemill.project", &layout.project), ("tidemill.location", &site.name)];
    let labels = labels.into_iter().chain(layout.id.as_ref().map(|id| (ID_LABEL, id)));
    Service {
        image: format!("${{{IMAGE_VARIABLE}:-{}}}", layout.image),
        entrypoint: vec!["tidemill".into()],
        command: Vec::new(),
        hostname: None,
        platform: site.architecture.map(Architecture::name).map(|name| format!("linux/{name}")),
        network_mode: (!is_bridge).then_some("host"),
        pid: None,
        networks: if is_bridge { vec![NETWORK.to_owned()] } else { Vec::new() },
        ports: Vec::new(),
        volumes: vec![Mount { kind: "volume", source: volume, target: target.to_owned(), read_only: false }],
        devices: Vec::new(),
        secrets: Vec::new(),
        cpus: None,
        mem_limit: None,
        pids_limit: MOST_PROCESSES,
        user: format!("{USER}:{USER}"),
        read_only: true,
        tmpfs: vec!["/tmp".into()],
        cap_drop: vec!["ALL".into()],
        security_opt: vec!["no-new-privileges:true".into()],
        init: true,
        restart: "unless-stopped",
        stop_grace_period: format!("{GRACE_SECONDS}s"),
        healthcheck: HealthCheck { test, interval: "5s", timeout: "5s", retries: 3, start_period: "30s" },
        logging: Logging {
            driver: "json-file",
            options: BTreeMap::from([("max-file", "3"), ("max-size", "10m")]),
        },
        labels: labels.map(|(name, value)| (name.to_owned(), literal(value))).collect(),
    }
}

pub(super) fn controller(layout: &Layout, site: &Site) -> Service {
    let ports = layout.ports;
    let metrics = format!("127.0.0.1:{}", ports.metrics);
    let mut command = vec!["controller", "--state", STATE_FOLDER];
    command.extend(["--name", &layout.address]);
    for name in [SERVICE, "localhost", "127.0.0.1"].iter().filter(|name| **name != layout.address) {
        command.extend(["--name", name]);
    }
    command.extend(["--metrics", &metrics]);
    let mut service = service(layout, site, (SERVICE.to_owned(), STATE_FOLDER), &["health", &metrics]);
    service.mem_limit = Some(size(CONTROLLER_MEMORY));
    service.command = literals(command);
    // On the machine's own network its ports are the machine's; on a bridge only the published one is.
    let port = |variable: &str, port: u16| match layout.network {
        NetworkMode::Bridge => format!("0.0.0.0:{port}"),
        NetworkMode::Host => format!("{}:${{{variable}:-{port}}}", layout.everywhere()),
    };
    for (option, address) in [
        ("--listen", port(PORT_VARIABLE, ports.people)),
        ("--listen-hosts", port(HOSTS_PORT_VARIABLE, ports.processes)),
    ] {
        service.command.extend([option.to_owned(), address]);
    }
    if layout.network == NetworkMode::Bridge {
        service.hostname = Some(SERVICE.to_owned());
        let (published, people) = (ports.published, ports.people);
        service.ports = vec![format!("127.0.0.1:${{{PORT_VARIABLE}:-{published}}}:{people}")];
    }
    service
}

pub(super) fn worker(layout: &Layout, site: &Site, unit: &Unit) -> Service {
    let (metrics, asked) = metrics(layout, unit.metrics_port);
    let mut service = service(layout, site, (unit.service(), STATE_FOLDER), &["health", &asked, "--ready"]);
    let facts = unit.facts(site);
    let command = ["worker", "--join-file", JOIN, "--state", STATE_FOLDER];
    service.command = literals(command.into_iter().chain(facts.iter().map(String::as_str)));
    service.command.extend(["--metrics".to_owned(), metrics]);
    if unit.writes {
        service.command.extend(["--results".to_owned(), RESULTS_FOLDER.to_owned()]);
    }
    if layout.network == NetworkMode::Bridge {
        service.hostname = Some(unit.short.clone());
        // Senders of records are outside.
        service.ports = unit.streams.listens.iter().map(|port| format!("{port}:{port}")).collect();
    }
    if unit.writes {
        let source = results(unit);
        let target = RESULTS_FOLDER.to_owned();
        service.volumes.push(Mount { kind: "volume", source, target, read_only: false });
    }
    service.volumes.extend(unit.reads.iter().map(|path| Mount {
        kind: "bind",
        source: literal(path),
        target: literal(path),
        read_only: true,
    }));
    let devices = unit.devices.iter().filter(|path| has_a_plain_name(path));
    service.devices = devices.map(|path| literal(&format!("{path}:{path}:rw"))).collect();
    service.secrets = vec![ServiceSecret { source: unit.join(), target: "join".into() }];
    service.cpus = unit.processors;
    service.mem_limit = unit.memory.map(size);
    service.labels.insert("tidemill.worker".into(), literal(&unit.name));
    if let Some(name) = &unit.elastic {
        service.labels.insert(ELASTIC_LABEL.into(), name.clone());
    }
    service
}

/// Returns the container of a device. It joins the cluster, and its certificate is that of TLS with stages.
pub(super) fn device(layout: &Layout, site: &Site, served: &Served) -> Service {
    let (metrics, asked) = metrics(layout, served.metrics_port);
    let mut service = service(layout, site, (served.service(), STATE_FOLDER), &["health", &asked]);
    let (listen, cache) = (format!("tcp://{}", served.listens), format!("{STATE_FOLDER}/models"));
    let limit = served.memory.map_or_else(String::new, |memory| format!(",{memory}"));
    let tenant = format!("{}={}{limit}", layout.workflow, served.share);
    let memory = served.memory.map(|memory| memory.to_string());
    let mut command = vec!["device", "serve", "--listen", &listen, "--device", &served.name];
    command.extend(["--kind", &served.kind, "--tenant", &tenant]);
    command.extend(memory.iter().flat_map(|memory| ["--memory", memory.as_str()]));
    command.extend(["--cache", &cache, "--join-file", JOIN, "--state", STATE_FOLDER]);
    service.command = literals(command);
    service.command.extend(["--metrics".to_owned(), metrics]);
    if layout.network == NetworkMode::Bridge {
        service.hostname = Some(served.service());
    }
    service.secrets = vec![ServiceSecret { source: served.join(), target: "join".into() }];
    service.cpus = served.processors;
    service.mem_limit = served.machine_memory.map(size);
    service.labels.insert("tidemill.device".into(), literal(&served.id));
    service
}

/// Where a worker or a device serves metrics, and where its health check asks.
fn metrics(layout: &Layout, port: u16) -> (String, String) {
    match layout.network {
        // Only containers of the deployment are in the network.
        NetworkMode::Bridge => (format!("0.0.0.0:{port}"), format!("127.0.0.1:{port}")),
        NetworkMode::Host => {
            let address = format!("${{{METRICS_VARIABLE}:-127.0.0.1}}:{port}");
            (address.clone(), address)
        }
    }
}

/// Returns the container that moves limits between the workers of its machine. It needs access to the engine's containers,
/// their processes and their control groups, which equals root. So it is a separate container that runs no part of a
/// workflow and that no network reaches.
pub(super) fn elastic(layout: &Layout, site: &Site, elastic: &Elastic) -> Service {
    let label = format!("{ELASTIC_LABEL}={}", elastic.name);
    let mut service =
        service(layout, site, (ELASTIC.to_owned(), ELASTIC_FOLDER), &["elastic", "show", &label]);
    let (processors, memory) = (elastic.processors.to_string(), elastic.memory.to_string());
    let period = format!("{}ms", elastic.period.as_millis());
    service.command = literals([
        "elastic",
        "attach",
        &label,
        "--wait",
        "--cpus",
        &processors,
        "--memory",
        &memory,
        "--period",
        &period,
        "--every",
        "1min",
        "--output",
        "json",
    ]);
    let bind = |source: String, target: &str| Mount {
        kind: "bind",
        source,
        target: target.to_owned(),
        read_only: false,
    };
    service.volumes.push(bind(CONTROL_GROUPS.to_owned(), CONTROL_GROUPS));
    service.volumes.push(bind(format!("${{{SOCKET_VARIABLE}:-{SOCKET}}}"), SOCKET));
    (service.network_mode, service.networks, service.pid) = (Some("none"), Vec::new(), Some("host"));
    // Control groups and the socket belong to root. Without capabilities it has no other rights of root.
    service.user = "0:0".to_owned();
    // Its first process is the machine's own.
    service.init = false;
    service.mem_limit = Some("128m".to_owned());
    service
}

/// Name of the volume for sinks that write absolute paths.
pub(super) fn results(unit: &Unit) -> String {
    format!("results-{}", unit.short)
}

pub(super) fn gpus(numbers: Vec<String>) -> GpuService {
    let device = Device { driver: "nvidia", device_ids: numbers, capabilities: vec!["gpu"] };
    GpuService {
        deploy: Deploy { resources: Resources { reservations: Reservations { devices: vec![device] } } },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_exact() {
        let of = |bytes| size(Bytes(bytes));
        assert_eq!([of(1 << 30), of(512 << 20), of(3_000_000_001)], ["1g", "512m", "3000000001b"]);
    }

    #[test]
    fn prices_are_not_filled_in() {
        assert_eq!(literal("0.02 $/h"), "0.02 $$/h");
    }
}
