//! Network policies: traffic between pods of the deployment, from people to the controller, and from Prometheus to the
//! ports of metrics.
use super::{metadata, selector};
use crate::layout::{Layout, SERVICE, Streams, Unit};
use crate::{PORT, WORKER_METRICS_PORT};
use serde_json::{Value, json};

fn policy(layout: &Layout, name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(layout, name, "network"),
        "spec": spec,
    })
}

pub(super) fn all(layout: &Layout) -> Vec<Value> {
    let own = json!({"matchLabels": {"app.kubernetes.io/instance": layout.project}});
    let workers = json!({
        "matchLabels": {
            "app.kubernetes.io/instance": layout.project,
            "app.kubernetes.io/component": "worker",
        },
    });
    let from_monitoring = json!([{
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}},
    }]);
    let mut policies = vec![
        policy(layout, "nobody", &json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]})),
        policy(
            layout,
            "each-other",
            &json!({
                "podSelector": own,
                "policyTypes": ["Ingress", "Egress"],
                "ingress": [{"from": [{"podSelector": own}]}],
                "egress": [
                    {"to": [{"podSelector": own}]},
                    {
                        "to": [{
                            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
                        }],
                        "ports": [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}],
                    },
                ],
            }),
        ),
        policy(
            layout,
            "people-to-controller",
            &json!({
                "podSelector": {"matchLabels": selector(layout, SERVICE)},
                "policyTypes": ["Ingress"],
                "ingress": [{"ports": [{"protocol": "TCP", "port": PORT}]}],
            }),
        ),
        policy(
            layout,
            "monitoring-to-workers",
            &json!({
                "podSelector": workers,
                "policyTypes": ["Ingress"],
                "ingress": [{
                    "from": from_monitoring,
                    "ports": [{"protocol": "TCP", "port": WORKER_METRICS_PORT}],
                }],
            }),
        ),
    ];
    policies.extend(layout.units().filter_map(|(_, unit)| streams(layout, unit)));
    policies
}

/// Returns the policy for senders and servers of a worker's sources; `None` if it has neither.
fn streams(layout: &Layout, unit: &Unit) -> Option<Value> {
    let Streams { listens, connects, .. } = &unit.streams;
    let rules = |ports: &[u16]| {
        let ports: Vec<Value> = ports.iter().map(|port| json!({"protocol": "TCP", "port": port})).collect();
        json!([{"ports": ports}])
    };
    let mut spec = json!({"podSelector": {"matchLabels": selector(layout, &unit.service())}});
    let mut types = Vec::new();
    for (kind, key, ports) in [("Ingress", "ingress", listens), ("Egress", "egress", connects)] {
        if !ports.is_empty() {
            types.push(kind);
            spec[key] = rules(ports);
        }
    }
    if types.is_empty() {
        return None;
    }
    spec["policyTypes"] = json!(types);
    Some(policy(layout, &unit.streams_service(), &spec))
}
