//! The configuration for Prometheus and every query of the dashboard, in a real Prometheus that scrapes a real run.
use crate::cluster::Cluster;
use crate::cluster_watching::agent;
use crate::command::{Place, are_there, tidemill};
use crate::deploying::queries;
use crate::monitoring::{Prometheus, encoded};
use serde_json::Value;

#[test]
#[ignore = "long: make test-long"]
fn every_query_of_the_dashboard_finds_something() {
    if !are_there(&["prometheus"], "prometheus") {
        return;
    }
    let place = Place::example("vqa");
    place.change("workflow.yaml", "rate: 40/s\n    options", "rate: 8/s\n    repeat: true\n    options");
    place.change("plan-two-workers.yaml", "id: edge, tier: local", "id: edge, price: 0.006 $/h, tier: edge");
    place.change("plan-two-workers.yaml", "id: hub, tier: local", "id: hub, price: 0.083 $/h, tier: hub");
    let plan = place.read("plan-two-workers.yaml");
    place.write("plan.yaml", format!("{plan}predicted: {{cost: {{value: 0.09 $/h}}}}\n"));
    let cluster = Cluster::start_in(place, &["edge"]);
    let (mut hub, of_hub) = agent(&cluster, "hub");
    cluster.until_joined(2);
    let place = &cluster.place;
    let (workflow, plan) = (place.argument("workflow.yaml"), place.argument("plan.yaml"));
    cluster.ask(&["submit", &workflow, "--plan", &plan, "--output", "json"]).expect(0);

    std::fs::remove_file(place.path("infrastructure.yaml")).unwrap();
    tidemill(&["deploy", &plan, "--out", &place.argument("out"), "--controller", "hub"]).expect(0);
    // As in the README of the deployment.
    let token = cluster.ask(&["people", "add", "prometheus", "--role", "viewer"]).expect(0).stdout;
    place.write("out/monitoring/secrets/viewer.token", token.lines().next().unwrap());
    place.write("out/monitoring/secrets/authority.pem", cluster.call("GET", "/authority.pem", "").body);
    let (of_controller, _) = cluster.address.trim_start_matches("tidemill://").split_once('/').unwrap();
    let config = "out/monitoring/prometheus.yaml";
    place.change(config, "controller:7420", of_controller);
    place.change(config, "worker-hub:9465", &of_hub);
    place.change(config, "scrape_interval: 5s", "scrape_interval: 1s");
    place.change(config, "worker-edge:9465", "127.0.0.1:1");
    let prometheus = Prometheus::start(place, config);

    let dashboard: Value =
        serde_json::from_str(&place.read("out/monitoring/grafana-dashboard.json")).unwrap();
    let queries = queries(&dashboard);
    assert!(queries.len() >= 20, "{queries:?}");
    let filled = |query: &str| {
        query.replace("$__rate_interval", "10s").replace("$workflow", "vqa").replace("$run", "vqa")
    };
    let empty = || -> Vec<String> {
        let is_empty = |query: &&String| prometheus.query(&encoded(&filled(query))).is_empty();
        queries.iter().filter(is_empty).cloned().collect()
    };
    let mut left = empty();
    for _ in 0..40 {
        if left.is_empty() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_secs(1));
        left = empty();
    }
    assert!(left.is_empty(), "these find nothing:\n{}", left.join("\n"));
    // The variables above the panels.
    for variable in ["tidemill_run_seconds", "tidemill_run_seconds{workflow=~\"vqa\"}"] {
        let found = prometheus.query(&encoded(variable));
        assert_eq!(found[0]["metric"]["run"], "vqa", "{found:?}");
    }
    assert_eq!(prometheus.query(&encoded("up{job=\"controller\"} == 1")).len(), 1);
    let agents = prometheus.query(&encoded("up{job=\"agents\",cluster_worker=\"hub\"} == 1"));
    assert_eq!(agents.len(), 1, "{agents:?}");
    hub.kill().unwrap();
    hub.wait().unwrap();
}
