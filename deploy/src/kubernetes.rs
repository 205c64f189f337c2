//! Plain manifests for a Kubernetes cluster: a namespace, a stateful set for the controller and for each worker, and
//! network policies.
mod pods;
mod policies;

use crate::error::DeployError;
use crate::files::Files;
use crate::layout::{Layout, SERVICE, Site, Unit};
use crate::{HOSTS_PORT, PORT};
use serde_json::{Value, json};

/// Folder of the manifests.
const FOLDER: &str = "kubernetes";
/// Size of the controller's claim.
const CONTROLLER_SPACE: &str = "10Gi";
/// Size of a worker's claim: files of runs and the cache of `tidemill worker --cache`.
const WORKER_SPACE: &str = "20Gi";

/// Label of nodes with their tier.
pub(crate) const TIER_LABEL: &str = "tidemill/tier";
/// Label of nodes with their location.
pub(crate) const LOCATION_LABEL: &str = "tidemill/location";

pub(crate) fn write(layout: &Layout, files: &mut Files) -> Result<(), DeployError> {
    let path = |name: &str| format!("{FOLDER}/{name}.yaml");
    let of = |what: &str| {
        format!("{what} of {}; made by `tidemill deploy`, which overwrites changes.", layout.workflow)
    };
    files.add_yaml(path("00-namespace"), &of("Namespace"), &[namespace(layout)])?;
    files.add_yaml(path("10-network-policies"), &of("Permitted connections"), &policies::all(layout))?;
    let controller = [service(layout), headless(layout, SERVICE), controller(layout)];
    files.add_yaml(path("20-controller"), &of("The controller"), &controller)?;
    let workers = [headless(layout, "workers")];
    files.add_yaml(path("30-workers"), &of("Names of the workers"), &workers)?;
    for (site, unit) in layout.units() {
        let comment = of(&format!("Worker {} ({})", unit.name, site.name))
            + &format!("\nJoins with the secret {}; it waits until that is there.", unit.join());
        let documents: Vec<Value> =
            streams(layout, unit).into_iter().chain([worker(layout, site, unit)]).collect();
        files.add_yaml(path(&format!("40-{}", unit.service())), &comment, &documents)?;
    }
    Ok(())
}

/// Returns the common labels.
fn labels(layout: &Layout, role: &str) -> Value {
    json!({
        "app.kubernetes.io/name": "tidemill",
        "app.kubernetes.io/instance": layout.project,
        "app.kubernetes.io/component": role,
    })
}

/// Returns the selector of the pods of a role.
fn selector(layout: &Layout, name: &str) -> Value {
    json!({"app.kubernetes.io/instance": layout.project, "tidemill/service": name})
}

fn metadata(layout: &Layout, name: &str, role: &str) -> Value {
    json!({"name": name, "namespace": layout.project, "labels": labels(layout, role)})
}

fn namespace(layout: &Layout) -> Value {
    // Restricted pods may not mount folders of a node.
    let reads = layout.units().any(|(_, unit)| !unit.reads.is_empty());
    let level = if reads { "privileged" } else { "restricted" };
    json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": layout.project,
            "labels": {
                "app.kubernetes.io/name": "tidemill",
                "app.kubernetes.io/instance": layout.project,
                "pod-security.kubernetes.io/enforce": level,
            },
        },
    })
}

/// The controller for people and workers.
fn service(layout: &Layout) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(layout, SERVICE, "controller"),
        "spec": {
            "selector": selector(layout, SERVICE),
            "ports": [
                {"name": "people", "port": PORT, "targetPort": "people"},
                {"name": "processes", "port": HOSTS_PORT, "targetPort": "processes"},
            ],
        },
    })
}

/// Returns the service of a worker whose sources listen.
fn streams(layout: &Layout, unit: &Unit) -> Option<Value> {
    let port = |port: &u16| json!({"name": format!("stream-{port}"), "port": port, "targetPort": port});
    let ports: Vec<Value> = unit.streams.listens.iter().map(port).collect();
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(layout, &unit.streams_service(), "worker"),
        // A worker without its controller continues, though it is not ready.
        "spec": {"publishNotReadyAddresses": true, "selector": selector(layout, &unit.service()), "ports": ports},
    });
    (!ports.is_empty()).then_some(service)
}

/// Returns the headless service that a stateful set needs for names of pods.
fn headless(layout: &Layout, of: &str) -> Value {
    let (name, selected, role) = match of {
        SERVICE => ("controller-pods", selector(layout, SERVICE), "controller"),
        other => (
            other,
            json!({"app.kubernetes.io/instance": layout.project, "app.kubernetes.io/component": "worker"}),
            "worker",
        ),
    };
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(layout, name, role),
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": true, "selector": selected},
    })
}

fn stateful_set(layout: &Layout, set: StatefulSet<'_>) -> Value {
    let mut labels = labels(layout, set.role);
    labels["tidemill/service"] = json!(set.name);
    json!({
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": metadata(layout, set.name, set.role),
        "spec": {
            "serviceName": set.pods,
            "replicas": 1,
            "revisionHistoryLimit": 3,
            "selector": {"matchLabels": selector(layout, set.name)},
            "template": {"metadata": {"labels": labels}, "spec": set.pod},
            "volumeClaimTemplates": set.claims,
        },
    })
}

/// Differences between stateful sets.
struct StatefulSet<'a> {
    name: &'a str,
    role: &'a str,
    /// The service that names its pods.
    pods: &'a str,
    pod: Value,
    claims: Vec<Value>,
}

/// Returns a volume claim of a pod.
fn claim(name: &str, space: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": space}}},
    })
}

fn controller(layout: &Layout) -> Value {
    let set = StatefulSet {
        name: SERVICE,
        role: "controller",
        pods: "controller-pods",
        pod: pods::controller(layout),
        claims: vec![claim("state", CONTROLLER_SPACE)],
    };
    stateful_set(layout, set)
}

fn worker(layout: &Layout, site: &Site, unit: &Unit) -> Value {
    let mut claims = vec![claim("state", WORKER_SPACE)];
    if unit.writes {
        claims.push(claim("results", WORKER_SPACE));
    }
    let name = unit.service();
    let pod = pods::worker(layout, site, unit);
    stateful_set(layout, StatefulSet { name: &name, role: "worker", pods: "workers", pod, claims })
}
