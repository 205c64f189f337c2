//! Requests and answers of the controller.
use serde_json::{Value, json};
use tidemill_cluster::blobs::digest;
use tidemill_cluster::parcel::{pack, unpack};
use tidemill_spec::plan::PlanFile;

pub(super) const WORDS: &[&str] = &[
    "join\n",
    "renew\n",
    "heartbeat\n",
    "submit\n",
    "change\n",
    "replan\n",
    "token\n",
    "person\n",
    "part-refused\n",
    "source\n",
    "missing\n",
    "issued\n",
    "duties\n",
    "from\n",
    "\"name\":",
    "\"path\":\"../x\"",
    "\"admin\"",
    "\"plan\":null",
];

/// A plan in JSON.
fn plan() -> Value {
    let text = include_str!("../../../../spec/tests/golden/plan-two-workers.yaml");
    let file = PlanFile::parse(text, "plan.yaml").expect("the golden plan");
    serde_json::to_value(&file.plan).expect("plain data")
}

fn digest_of(text: &str) -> String {
    digest(text.as_bytes())
}

fn bundle() -> Value {
    let file = |path: &str| json!({"path": path, "digest": digest_of(path), "bytes": path.len()});
    json!({"workflow": "workflow.yaml", "files": [file("workflow.yaml"), file("models/small/model.yaml")]})
}

pub(super) fn bodies() -> Vec<Vec<u8>> {
    let heartbeat = json!({
        "version": "0.1.0", "machine": "edge", "worker_type": "small", "price": 0.096,
        "capacity": {"processors": 2.0, "memory_bytes": 1_073_741_824_u64, "accelerators": ["gpu"]},
        "labels": {"site": "north"}, "only_dials": true,
        "hosts": [{"run": "shop", "role": "edge", "generation": 3, "plan_version": 1, "ended": null}],
        "logs": [{"run": "shop", "line": "text", "level": "WARN"}],
        "health": {"time_milliseconds": 17, "disk_free_bytes": 1000, "open_files": 1024},
        "held": [digest_of("a")], "folders": [], "measured_at": "10.0.0.7:40123",
        "ways": [{"to": "hub", "round_trip_seconds": 0.001, "bits_per_second": 1e9, "probing": 0.01}],
    });
    let submission = json!({
        "name": "shop", "bundle": bundle(), "plan": plan(), "records": 100, "sent_from": "examples",
        "planning": {"profiles": [], "slo": ["rate=40/s"], "max_utilization": 0.85, "time_limit_seconds": 10.0},
        "quota": {"processors": 1.5},
    });
    let assignment = json!({
        "run": "shop", "role": "edge", "generation": 3, "secret": "00ff", "coordinator_port": 7421, "bundle": bundle(), "plan": plan(),
        "rates": {"camera": 5.0, "file": null},
    });
    let duties =
        json!({"assignments": [assignment], "revoked": ["00112233445566778899aabbccddeeff"], "digest": "d"});
    let token = "tmj_0000000000000000000000000000000000000000000000000000";
    let named = [
        (
            "join",
            json!({"token": token, "request_pem": "-----BEGIN", "name": "edge-1", "location": "north", "tier": "edge"}),
        ),
        ("renew", json!({"request_pem": "-----BEGIN"})),
        ("heartbeat", heartbeat),
        ("submit", submission),
        ("change", json!({"plan": plan(), "reason": "more cameras"})),
        ("replan", json!({"plan": null, "apply": true})),
        ("token", json!({"uses": 2, "seconds": 60, "name": "edge-1", "replaces": true})),
        ("person", json!({"name": "someone", "role": "operator", "days": 30})),
        ("part-refused", json!({"error": "gone"})),
        ("source", json!({"failed": ["edge-2"]})),
        ("missing", json!([digest_of("a"), digest_of("b")])),
        ("duties", duties),
    ];
    named.into_iter().map(|(name, body)| format!("{name}\n{body}").into_bytes()).collect()
}

pub(super) fn queries() -> Vec<Vec<u8>> {
    [&b"after=17&wait=20"[..], b"offset=3145728", b"offset=0&path=out%2Fpart-1.jsonl"]
        .map(<[u8]>::to_vec)
        .into()
}

pub(super) fn parcel(bytes: &[u8]) -> bool {
    let Ok(files) = unpack(bytes) else { return false };
    let mut again = Vec::new();
    for (name, content) in &files {
        assert!(pack(&mut again, name, content));
    }
    assert_eq!(again, bytes);
    true
}

pub(super) fn parcels() -> Vec<Vec<u8>> {
    let mut bytes = Vec::new();
    for text in ["one", "", "three words here"] {
        assert!(pack(&mut bytes, &digest_of(text), text.as_bytes()));
    }
    vec![bytes]
}

pub(super) fn facts() -> Vec<Vec<u8>> {
    let run = json!({
        "workflow": "shop", "bundle": bundle(), "plan": plan(), "records": null, "digest": digest_of("run"), "secret": "00ff",
        "submitted": "2026-11-23 08:30:00 UTC", "submitted_by": "admin", "state": "running", "reason": null,
        "roles": {"edge": {"worker": "edge-1", "generation": 2, "is_bound": true}}, "last": null, "outputs": [{"sink": "out", "role": "edge", "path": "out.jsonl"}],
        "rates": null,
    });
    let event = json!({"number": 1, "time": "t", "kind": "run_running", "run": "shop", "worker": null, "text": "run shop runs"});
    let worker = json!({"is_drained": false, "location": "north", "tier": "edge"});
    let document = json!({
        "version": 2, "change": 3, "runs": {"shop": run}, "workers": {"edge-1": worker}, "events": [event], "event_number": 1,
    });
    vec![document.to_string().into_bytes()]
}

pub(super) fn facts_logs() -> Vec<Vec<u8>> {
    let event = json!({"number": 1, "time": "t", "kind": "worker_lost", "run": null, "worker": "edge-1", "text": "it is lost"});
    let worker = json!({"is_drained": true, "location": null, "tier": "edge"});
    let lines = [
        json!({"change": 1, "parts": [{"kind": "worker", "name": "edge-1", "value": worker}]}),
        json!({"change": 2, "parts": [{"kind": "event", "name": "1", "value": event}, {"kind": "worker", "name": "edge-1", "value": null}]}),
    ];
    vec![lines.map(|line| tidemill_cluster::fuzz_entry::facts_line(&line.to_string())).concat().into_bytes()]
}

pub(super) fn log_lines() -> Vec<Vec<u8>> {
    let line = json!({
        "number": 3, "run": "shop", "role": "edge", "worker": "edge-1", "workflow": "shop", "stages": ["detect/0"], "time": "t",
        "level": "WARN", "line": "text",
    });
    vec![line.to_string().into_bytes()]
}
