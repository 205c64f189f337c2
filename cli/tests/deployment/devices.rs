//! A device of a plan in a container of its own, at a location without a worker.
use super::engine::{Deployed, Image, docker, is_there};
use crate::devices;

const INFRASTRUCTURE: &str = "version: 1
name: edge-and-device
tiers:
  - {id: edge, workers: [{type: small, vcpu: 1, memory: 1GiB, price: 0.01 $/h}]}
  - id: hub
    workers:
      - {type: large, vcpu: 1, memory: 1GiB, price: 0.1 $/h, devices: [{kind: processors, memory: 512MiB, share: 50%}]}
links: [{from: edge, to: hub, bandwidth: 1Gbps, delay: 1ms, direction: both}]
";

const DEVICE: &str = "devices: [{id: hub-large-0/processors, kind: processors, worker: hub-large-0, memory: 512MiB, share: 50%}]\nstages:";

#[test]
fn a_device_is_started_used_and_removed_with_its_deployment() {
    if !is_there() {
        return;
    }
    let place = devices::place(40);
    let (expected, _) = devices::run(&place, "cpu");
    let plan = devices::plan("device:hub-large-0/processors");
    let plan = plan.replace("here", "edge").replace("worker_type: any", "worker_type: small");
    place.write("plan.yaml", plan.replace("stages:", DEVICE).replace("name: seen", "name: spread"));
    place.change("workflow.yaml", "name: seen", "name: spread");
    place.write("infrastructure.yaml", INFRASTRUCTURE);
    let deployed = Deployed::written_at(place, Image::of_program("devices"), "devices", &[]);
    let up = deployed.call(&["up"]).expect(0);
    let told = up.stdout + &up.stderr;
    assert!(
        told.contains("hub-large-0/processors serves at tls://device-hub-large-0-processors:7440"),
        "{told}"
    );
    let device = deployed.service("device-hub-large-0-processors");
    assert_eq!(device["state"], "healthy", "{device}");
    deployed.until_complete();
    let [(_, rows)] = deployed.fetched(["seen.jsonl"]);
    assert!(rows == expected.as_bytes(), "the rows differ");
    let container = device["container"].as_str().unwrap();
    let listed = docker(&["exec", container, "tidemill", "device", "ls", "--output", "json"]);
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    let listed = &listed["devices"][0];
    assert!(listed["runs"].as_u64() >= Some(10), "{listed}");
    let tenants: Vec<&str> =
        listed["tenants"].as_array().unwrap().iter().map(|one| one["tenant"].as_str().unwrap()).collect();
    assert!(tenants.contains(&deployed.name()), "{listed}");
    let logs = deployed.call(&["logs", "hub-large-0/processors"]).expect(0).stdout;
    assert!(logs.contains("serves at tls://0.0.0.0:7440"), "{logs}");
    // The certificate is in the volume: another container of it serves at once.
    docker(&["kill", container]);
    deployed.call(&["up"]).expect(0);
    assert_eq!(deployed.service("device-hub-large-0-processors")["state"], "healthy");
    let output = deployed.call(&["down"]).expect(0).stdout;
    assert!(output.contains("device-hub-large-0-processors"), "{output}");
    assert_eq!(deployed.left(), "");
    let join = deployed.place.path("deployment/hub/secrets/join-device-hub-large-0-processors");
    assert!(!join.exists());
}
