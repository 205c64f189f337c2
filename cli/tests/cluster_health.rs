//! `tidemill doctor --cluster`; through the built binary.
use crate::cluster::Cluster;
use crate::command::{Outcome, command};
use serde_json::Value;

#[track_caller]
fn finding<'a>(document: &'a Value, name: &str) -> &'a Value {
    let findings = document["findings"].as_array().unwrap();
    findings.iter().find(|finding| finding["name"] == name).unwrap_or_else(|| panic!("{name}: {document}"))
}

fn look(cluster: &Cluster) -> Outcome {
    cluster.ask(&["doctor", "--cluster", "--output", "json"])
}

#[test]
fn a_cluster_is_looked_at_and_what_is_wrong_has_a_fix() {
    let mut cluster = Cluster::start(&["edge", "hub", "cloud"]);
    let found = look(&cluster);
    let document = found.json();
    assert_eq!(finding(&document, "controller")["state"], "ok", "{document}");
    assert_eq!(finding(&document, "edge: clock")["state"], "ok", "{document}");
    assert_eq!(finding(&document, "hub: certificate")["state"], "ok", "{document}");
    let links = finding(&document, "links");
    assert!(
        links["detail"].as_str().unwrap().starts_with("3 pairs of workers reach each other"),
        "{document}"
    );
    for finding in document["findings"].as_array().unwrap() {
        assert!(finding["state"] == "ok" || finding["fix"].is_string(), "{finding}");
    }
    let problems = document["problems"].as_u64().unwrap();
    assert_eq!(found.code, Some(i32::from(problems > 0)));

    // No controller, and no login.
    let mut controller = cluster.controller.take().unwrap();
    controller.kill().unwrap();
    controller.wait().unwrap();
    let document = look(&cluster).expect(1).json();
    assert!(finding(&document, "controller")["fix"].as_str().unwrap().contains("start it"), "{document}");
    let folder = tempfile::tempdir().unwrap();
    let output = command(&["doctor", "--cluster"])
        .env("XDG_CONFIG_HOME", folder.path())
        .env_remove("TIDEMILL_CONTROLLER")
        .env_remove("TIDEMILL_TOKEN")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(78), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
#[ignore = "long: make test-long"]
fn a_worker_that_is_lost_is_a_problem_with_a_fix() {
    let mut cluster = Cluster::start(&["edge", "hub"]);
    let (_, mut edge) = cluster.workers.remove(0);
    edge.kill().unwrap();
    edge.wait().unwrap();
    cluster.until("edge is lost", |cluster| finding(&look(cluster).json(), "edge")["state"] == "problem");
    let document = look(&cluster).expect(1).json();
    assert!(
        finding(&document, "edge")["fix"].as_str().unwrap().contains("tidemill revoke edge"),
        "{document}"
    );
    let text = cluster.ask(&["doctor", "--cluster"]).expect(1).stdout;
    assert!(text.contains("PROBLEM  edge"), "{text}");
}
