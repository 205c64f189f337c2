use super::*;
use crate::client::Client;
use crate::controller::runs::{Job, LiveRun, LiveSet};
use crate::controller::{Controller, ControllerOptions, locked, placing};
use std::path::Path;
use tidemill_spec::plan::{Plan, PlanWorkflow};

fn plan(workflow: &str) -> Plan {
    Plan::new(PlanWorkflow { name: workflow.into(), digest: None })
}

fn started(folder: &Path) -> Controller {
    let names = vec!["127.0.0.1".into()];
    let options = ControllerOptions { names, ..ControllerOptions::of_test(folder) };
    Controller::start(&options).unwrap()
}

#[test]
fn assignments_are_told_when_they_are_new() {
    let folder = tempfile::tempdir().unwrap();
    let controller = started(folder.path());
    let shared = &controller.shared;
    let (none, empty, is_same) = shared.assigned("edge", None, &[]);
    assert!(!is_same && none.is_empty());
    assert!(shared.assigned("edge", Some(&empty), &[]).2);

    let run = serde_json::json!({
        "workflow": "w", "bundle": {"workflow": "w.yaml", "files": []}, "plan": plan("w"), "records": null, "digest": "d",
        "secret": "1", "submitted": "", "submitted_by": "", "state": "running", "reason": null, "last": null,
        "roles": {"edge": {"worker": "edge", "generation": 1, "is_bound": false}},
    });
    let run = serde_json::from_value(run).unwrap();
    shared.facts.change(|document| document.runs.insert("run".into(), run)).unwrap();
    let set = LiveSet {
        job: Some(Job::new(plan("w"), BTreeMap::new())),
        wanted: BTreeMap::from([("edge".into(), true)]),
        ..LiveSet::default()
    };
    let live = LiveRun { sets: BTreeMap::from([(1, set)]), ..LiveRun::default() };
    locked(&shared.runs).insert("run".into(), live);
    let (one, digest, is_same) = shared.assigned("edge", Some(&empty), &[]);
    assert!(!is_same && one.len() == 1 && one[0].generation == 1);
    let (same, _, is_same) = shared.assigned("edge", Some(&digest), &[]);
    assert!(is_same && same.is_empty());

    placing::place(shared, "run", 1, "edge", "edge");
    let (again, digest, is_same) = shared.assigned("edge", Some(&digest), &[]);
    assert!(!is_same && again[0].generation == 2);
    if let Some(set) = locked(&shared.runs).get_mut("run").unwrap().sets.get_mut(&1) {
        set.job = Some(Job::new(plan("another"), BTreeMap::new()));
    }
    // A run that is not settled any more, with the same processes, is news, too.
    assert!(!shared.assigned("edge", Some(&digest), &["run".to_owned()]).2);
    assert!(!shared.assigned("edge", Some(&digest), &[]).2);
    controller.end();
}

/// A worker of this tier sends a heartbeat with measured links and what its machine counts.
pub(crate) fn hears(
    shared: &Shared,
    worker: &str,
    tier: &str,
    ways: Vec<crate::api::LinkMeasurement>,
    traffic: Option<TrafficReport>,
) {
    let peer = VerifiedPeer {
        identity: PeerIdentity::Worker(worker.parse().unwrap()),
        location: None,
        tier: Some(tier.parse().unwrap()),
        serial: "4e".repeat(16).parse().unwrap(),
        expires: Timestamp::now(),
    };
    let heartbeat = Heartbeat { ways, traffic, ..Heartbeat::default() };
    shared.heard(&peer, worker, heartbeat, "127.0.0.1".into()).unwrap();
}

/// A heartbeat under way when its worker is revoked: its certificate was valid when it was checked.
#[test]
fn a_worker_that_is_revoked_does_not_come_back_by_a_late_heartbeat() {
    let folder = tempfile::tempdir().unwrap();
    let controller = started(folder.path());
    let shared = &controller.shared;
    let name: Name = "edge".parse().unwrap();
    let peer = VerifiedPeer {
        identity: PeerIdentity::Worker(name.clone()),
        location: None,
        tier: None,
        serial: "4f".repeat(16).parse().unwrap(),
        expires: Timestamp::now(),
    };
    let heard = || shared.heard(&peer, "edge", Heartbeat::default(), "127.0.0.1".into()).is_some();
    assert!(heard() && shared.remembers("edge"));
    shared.authority.revoked().add(peer.serial.as_bytes());
    shared.forget_worker(&name, "ada").unwrap();
    assert!(!heard());
    assert!(!shared.remembers("edge") && locked(&shared.workers).is_empty());
    controller.end();
}

/// It was revoked, and then the disk was full.
#[test]
fn a_worker_that_was_revoked_and_not_forgotten_is_forgotten_when_it_is_revoked_again() {
    let folder = tempfile::tempdir().unwrap();
    let controller = started(folder.path());
    let shared = &controller.shared;
    let client = Client::new(controller.address(), controller.first_admin(|_| Ok(())).unwrap()).unwrap();
    shared
        .facts
        .change(|document| document.workers.or_insert("edge", WorkerFacts::default()).is_lost)
        .unwrap();
    assert_eq!(client.delete::<u64>("/v1/workers/edge").unwrap(), 1);
    assert!(!shared.remembers("edge"));
    let message = client.delete::<u64>("/v1/workers/edge").unwrap_err().to_string();
    assert!(message.contains("there is no worker `edge`"), "{message}");
    controller.end();
}
