//! Files of a workflow that reach workers of two racks; through the built binary.
use crate::cluster::Cluster;
use crate::command::Place;
use std::fmt::Write;

const WORKFLOW: &str = "version: 1
name: chain
sources:
  - {id: rows, kind: csv, options: {path: rows.csv, columns: {n: int64, text: text}}}
operators:
  - {id: first, kind: filter, input: rows, options: {where: \"n >= 120\"}}
  - {id: second, kind: filter, input: first, options: {where: \"n >= 127\"}}
sinks:
  - {id: kept, kind: jsonl, input: second, options: {path: kept.jsonl}}
";

/// Each stage on a worker of its own.
const PLAN: &str = "version: 1
workflow: {name: chain}
workers:
  - {id: north-1, tier: edge, worker_type: small}
  - {id: north-2, tier: edge, worker_type: small}
  - {id: south-1, tier: edge, worker_type: small}
  - {id: south-2, tier: edge, worker_type: small}
stages:
  - {id: rows, operator: rows, worker: north-1}
  - {id: first, operator: first, worker: south-1}
  - {id: second, operator: second, worker: north-2}
  - {id: kept, operator: kept, worker: south-2}
classes:
  - {id: 0, share: 1, route: {rows: rows, first: first, second: second, kept: kept}}
edges:
  - {from: rows, to: first}
  - {from: first, to: second}
  - {from: second, to: kept}
";

#[test]
fn a_large_file_enters_each_rack_once() {
    let place = Place::empty("chain");
    let mut rows = "n,text\n".to_owned();
    for number in 0..128_u64 {
        let text: String = (0..8192).map(|at| format!("{:08x}", (number * 8192 + at) * 2_654_435)).collect();
        writeln!(rows, "{number},{text}").unwrap();
    }
    let size = rows.len() as u64;
    assert!(size > 8 << 20);
    place.write("rows.csv", &rows);
    place.write("workflow.yaml", WORKFLOW);
    place.write("plan.yaml", PLAN);
    // A busy machine loses no worker meanwhile.
    let mut cluster = Cluster::without_workers(place, &["--detection", "20s"]);
    for (name, rack) in
        [("north-1", "north"), ("north-2", "north"), ("south-1", "south"), ("south-2", "south")]
    {
        cluster.start_worker_with(name, &["--tier", "edge", "--label", &format!("rack={rack}")]);
    }
    cluster.until_joined(4);
    cluster.submit().expect(0);
    let told = |cluster: &Cluster| {
        let events = cluster.ask(&["events"]).expect(0).stdout;
        events
            .lines()
            .find(|line| line.contains("rows.csv") && line.contains("has reached"))
            .map(str::to_owned)
    };
    cluster.until("the file is everywhere", |cluster| told(cluster).is_some());
    let text = told(&cluster).unwrap();
    assert!(text.contains("has reached 4 workers of 2 racks"), "{text}");
    assert!(text.contains("2 copies came from outside the racks"), "{text}");
    let answer = cluster.call("GET", "/v1/controller", &cluster.admin());
    let controller: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
    let sent = controller["files_sent_bytes"].as_u64().unwrap();
    assert!(sent >= size && sent < size * 2 + size / 2, "the controller sent {sent} bytes of {size}");
    cluster.until("it is complete", |cluster| cluster.run_of("chain")["state"] == "complete");
    let kept = cluster.place.read("w-south-2/runs/chain/south-2/kept.jsonl");
    assert_eq!(kept.lines().count(), 1, "the last row, with all of its text");
    assert!(kept.len() > 65_536);
    assert_eq!(cluster.run_of("chain")["fetching"], serde_json::json!([]));
}
