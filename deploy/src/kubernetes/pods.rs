//! The pods of the controller and of workers.
use super::{LOCATION_LABEL, TIER_LABEL};
use crate::layout::{Layout, SERVICE, Site, Unit};
use crate::{
    CONTROLLER_MEMORY, CONTROLLER_METRICS_PORT, GRACE_SECONDS, HOSTS_PORT, PORT, RESULTS_FOLDER,
    STATE_FOLDER, USER, WORKER_METRICS_PORT,
};
use serde_json::{Map, Value, json};
use tidemill_spec::infrastructure::Architecture;

/// Folder of the secret.
const JOIN_FOLDER: &str = "/run/tidemill";

/// Differences between the pods.
struct Parts {
    command: Vec<String>,
    ports: Value,
    asked: String,
    resources: Value,
    mounts: Vec<Value>,
    volumes: Vec<Value>,
    nodes: Map<String, Value>,
}

/// Returns a pod with the least rights.
fn pod(layout: &Layout, name: &str, parts: Parts) -> Value {
    let probe = |more: &[&str], period: u32, failures: u32| {
        let mut command = vec!["tidemill", "health", &parts.asked];
        command.extend(more);
        json!({
            "exec": {"command": command},
            "periodSeconds": period,
            "timeoutSeconds": 5,
            "failureThreshold": failures,
        })
    };
    let mut mounts = vec![
        json!({"name": "state", "mountPath": STATE_FOLDER}),
        json!({"name": "scratch", "mountPath": "/tmp"}),
    ];
    mounts.extend(parts.mounts);
    let mut volumes = vec![json!({"name": "scratch", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}})];
    volumes.extend(parts.volumes);
    // A worker joins before it serves metrics, and waits for its controller meanwhile.
    let container = json!({
        "name": name,
        "image": layout.image,
        "command": ["tidemill"],
        "args": parts.command,
        "ports": parts.ports,
        "startupProbe": probe(&[], 2, 60),
        "livenessProbe": probe(&[], 10, 6),
        "readinessProbe": probe(&["--ready"], 5, 3),
        "resources": parts.resources,
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": mounts,
    });
    let mut pod = json!({
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "securityContext": {
            "runAsNonRoot": true,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": volumes,
    });
    if !parts.nodes.is_empty() {
        pod["nodeSelector"] = Value::Object(parts.nodes);
    }
    pod
}

/// Returns the node selector of a site.
fn nodes(site: &Site) -> Map<String, Value> {
    let mut nodes = Map::new();
    nodes.insert(TIER_LABEL.to_owned(), json!(site.tier));
    if let Some(location) = &site.location {
        nodes.insert(LOCATION_LABEL.to_owned(), json!(location));
    }
    if let Some(architecture) = site.architecture {
        nodes.insert("kubernetes.io/arch".to_owned(), json!(Architecture::name(architecture)));
    }
    nodes
}

pub(super) fn controller(layout: &Layout) -> Value {
    let asked = format!("127.0.0.1:{CONTROLLER_METRICS_PORT}");
    let within = format!("{SERVICE}.{}.svc", layout.project);
    let (listen, listen_hosts) = (format!("0.0.0.0:{PORT}"), format!("0.0.0.0:{HOSTS_PORT}"));
    let mut command =
        vec!["controller", "--state", STATE_FOLDER, "--listen", &listen, "--listen-hosts", &listen_hosts];
    for name in [SERVICE, &within, "localhost", "127.0.0.1"] {
        command.extend(["--name", name]);
    }
    command.extend(["--metrics", &asked]);
    let parts = Parts {
        command: command.into_iter().map(str::to_owned).collect(),
        ports: json!([
            {"name": "people", "containerPort": PORT},
            {"name": "processes", "containerPort": HOSTS_PORT},
        ]),
        asked: asked.clone(),
        resources: json!({"requests": {"cpu": "250m", "memory": "256Mi"}, "limits": {"memory": CONTROLLER_MEMORY.0.to_string()}}),
        mounts: Vec::new(),
        volumes: Vec::new(),
        nodes: nodes(layout.controller_site()),
    };
    pod(layout, SERVICE, parts)
}

/// Returns the limits of a machine, as requests and limits.
fn resources(unit: &Unit) -> Value {
    let mut limits = Map::new();
    if let Some(processors) = unit.processors {
        limits.insert("cpu".into(), json!(format!("{}m", (processors * 1000.0).round().max(1.0))));
    }
    if let Some(memory) = unit.memory {
        limits.insert("memory".into(), json!(memory.0.to_string()));
    }
    if unit.accelerators > 0 {
        limits.insert("nvidia.com/gpu".into(), json!(unit.accelerators.to_string()));
    }
    if limits.is_empty() { json!({}) } else { json!({"requests": limits.clone(), "limits": limits}) }
}

pub(super) fn worker(layout: &Layout, site: &Site, unit: &Unit) -> Value {
    let join = format!("{JOIN_FOLDER}/join");
    let mut command: Vec<String> =
        ["worker", "--join-file", &join, "--state", STATE_FOLDER].map(str::to_owned).into();
    command.extend(unit.facts(site));
    command.extend(["--metrics".to_owned(), format!("0.0.0.0:{WORKER_METRICS_PORT}")]);
    if unit.writes {
        command.extend(["--results".to_owned(), RESULTS_FOLDER.to_owned()]);
    }
    // Kubernetes substitutes variables after `$(`.
    let command = command.into_iter().map(|text| text.replace("$(", "$$(")).collect();
    let mut mounts = vec![json!({"name": "join", "mountPath": JOIN_FOLDER, "readOnly": true})];
    let mut volumes = vec![json!({
        "name": "join",
        "secret": {"secretName": unit.join(), "items": [{"key": "join", "path": "join"}]},
    })];
    if unit.writes {
        mounts.push(json!({"name": "results", "mountPath": RESULTS_FOLDER}));
    }
    for (number, path) in (1..).zip(&unit.reads) {
        let name = format!("source-{number}");
        mounts.push(json!({"name": name, "mountPath": path, "readOnly": true}));
        volumes.push(json!({"name": name, "hostPath": {"path": path}}));
    }
    let parts = Parts {
        command,
        ports: json!([{"name": "metrics", "containerPort": WORKER_METRICS_PORT}]),
        asked: format!("127.0.0.1:{WORKER_METRICS_PORT}"),
        resources: resources(unit),
        mounts,
        volumes,
        nodes: nodes(site),
    };
    pod(layout, "worker", parts)
}
