//! Who speaks with whom: pods of the deployment with each other, people with the controller, Prometheus with the ports of metrics.
use super::{metadata, selector};
use crate::layout::{Layout, SERVICE};
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
    vec![
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
    ]
}
