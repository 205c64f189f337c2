//! The workflow under test: two sources, stages chosen by routes, a join and a window twice, and sinks of three kinds on
//! three workers.
use crate::command::{Place, tidemill};
use crate::states::parquet_rows;

const WORKFLOW: &str = "version: 1
name: chaos
sources:
  - id: left
    kind: csv
    key: key
    rate: 4000/s
    options: {path: left.csv, columns: {key: text, at: int64, value: int64}, event_time: at}
  - id: right
    kind: csv
    key: key
    rate: 2000/s
    options: {path: right.csv, columns: {key: text, at: int64, weight: int64}, event_time: at}
operators:
  - {id: some, kind: filter, input: left, options: {where: \"value % 7 != 3\"}}
  - {id: pair, kind: join, inputs: [some, right], options: {key: key, within: 2s, same_names: keep_first}}
  - {id: counted, kind: window, input: pair, options: {size: 5s, group_by: [key], aggregates: [{function: count, as: n}]}}
sinks:
  - {id: pairs, kind: jsonl, input: pair, options: {path: out/pairs.jsonl}}
  - {id: table, kind: csv, input: counted, options: {path: out/counted.csv}}
  - {id: columns, kind: parquet, input: counted, options: {path: out/counted.parquet}}
run: {tick: 10ms, checkpoint_every: 5, dead_letters: out/dead.jsonl}
";

/// Sources and the Parquet file on the edge, a route over the hub and one over the cloud, a sink on each of these.
const PLAN: &str = "version: 1
workflow: {name: chaos}
tick: 10ms
checkpoint_every: 5
workers:
  - {id: edge, tier: edge, worker_type: small}
  - {id: hub, tier: hub, worker_type: small}
  - {id: cloud, tier: cloud, worker_type: small}
stages:
  - {id: left, operator: left, worker: edge}
  - {id: right, operator: right, worker: edge, slot_group: second}
  - {id: some_edge, operator: some, worker: edge, share: 0.4}
  - {id: some_cloud, operator: some, worker: cloud, share: 0.6}
  - {id: pair_hub, operator: pair, worker: hub, share: 0.4}
  - {id: pair_cloud, operator: pair, worker: cloud, share: 0.6}
  - {id: counted_cloud, operator: counted, worker: cloud, share: 0.4}
  - {id: counted_hub, operator: counted, worker: hub, share: 0.6}
  - {id: pairs, operator: pairs, worker: hub}
  - {id: table, operator: table, worker: cloud}
  - {id: columns, operator: columns, worker: edge}
classes:
  - id: 0
    share: 0.4
    route: {left: left, right: right, some: some_edge, pair: pair_hub, counted: counted_cloud, pairs: pairs, table: table, columns: columns}
  - id: 1
    share: 0.6
    route: {left: left, right: right, some: some_cloud, pair: pair_cloud, counted: counted_hub, pairs: pairs, table: table, columns: columns}
edges:
  - {from: left, to: some_edge}
  - {from: left, to: some_cloud}
  - {from: some_edge, to: pair_hub}
  - {from: some_cloud, to: pair_cloud}
  - {from: right, to: pair_hub, input: 1}
  - {from: right, to: pair_cloud, input: 1}
  - {from: pair_hub, to: counted_cloud}
  - {from: pair_cloud, to: counted_hub}
  - {from: pair_hub, to: pairs}
  - {from: pair_cloud, to: pairs}
  - {from: counted_cloud, to: table}
  - {from: counted_hub, to: table}
  - {from: counted_cloud, to: columns}
  - {from: counted_hub, to: columns}
";

/// Workers of the plan.
pub(super) const WORKERS: usize = 3;

/// Rows of the left source; the right one has half as many. 4000 per second.
pub(super) fn place(rows: usize) -> Place {
    let place = Place::empty("chaos");
    place.write("workflow.yaml", WORKFLOW);
    place.write("plan.yaml", PLAN);
    std::fs::create_dir(place.path("temporary")).unwrap();
    let side = |rows: usize, step: usize, name: &str, times: usize| {
        let row = |i: usize| match i % 1000 {
            998 => format!("k{:03},{},none\n", i % 211, 1_700_000_000_000 + i * step),
            _ => format!("k{:03},{},{}\n", i % 211, 1_700_000_000_000 + i * step, i * times),
        };
        let rows: String = (0..rows).map(row).collect();
        format!("key,at,{name}\n{rows}")
    };
    place.write("left.csv", side(rows, 5, "value", 1));
    place.write("right.csv", side(rows / 2, 10, "weight", 3));
    place
}

/// Content of the sinks; Parquet by its rows, since the file names its run.
pub(super) fn outputs(place: &Place) -> Vec<(&'static str, Vec<u8>)> {
    let files = ["out/pairs.jsonl", "out/counted.csv", "out/dead.jsonl"];
    let mut all: Vec<_> =
        files.iter().map(|file| (*file, std::fs::read(place.path(file)).unwrap())).collect();
    all.push(("out/counted.parquet", parquet_rows(&place.path("out/counted.parquet"))));
    all
}

/// The outputs for this plan and these rows in one undisturbed process.
pub(super) fn undisturbed(rows: usize) -> Vec<(&'static str, Vec<u8>)> {
    let place = place(rows);
    let (workflow, plan) = (place.argument("workflow.yaml"), place.argument("plan.yaml"));
    tidemill(&["run", &workflow, "--plan", &plan, "--rate", "max", "--quiet"]).expect(0);
    let outputs = outputs(&place);
    assert!(outputs.iter().all(|(file, content)| content.len() > 500 || panic!("{file} is nearly empty")));
    outputs
}
