//! Workflows of a cluster whose data and models are on the workers alone: checked by the controller, opened by the stage's
//! worker; through the built binary.
use crate::cluster::Cluster;
use crate::command::{Place, root, tidemill};
use rustix::fs::{CWD, FileType, mknodat};
use serde_json::Value;

const WORKFLOW: &str = "version: 1
name: elsewhere
sources:
  - {id: rows, kind: csv, key: key, options: {path: FOLDER/rows.csv, columns: {key: text, value: int64}}}
operators:
  - {id: some, kind: filter, input: rows, options: {where: \"value % 3 != 1\"}}
sinks:
  - {id: out, kind: jsonl, input: some, options: {path: out/rows.jsonl}, \
     ground_truth: {path: FOLDER/truth.csv, key: key, prediction: value, truth: right}}
checkpoint: {interval: 100ms}
";

const PLAN: &str = "version: 1
workflow: {name: elsewhere}
workers:
  - {id: edge, tier: edge, worker_type: small}
  - {id: hub, tier: hub, worker_type: small}
stages:
  - {id: rows, operator: rows, worker: edge}
  - {id: some, operator: some, worker: hub}
  - {id: out, operator: out, worker: hub}
classes:
  - {id: 0, share: 1, route: {rows: rows, some: some, out: out}}
edges:
  - {from: rows, to: some}
  - {from: some, to: out}
";

const ROWS: usize = 3000;

/// The workflow and its plan; the folder that it names does not exist yet.
fn place() -> Place {
    let place = Place::empty("elsewhere");
    let folder = place.argument("of-workers");
    place.write("workflow.yaml", WORKFLOW.replace("FOLDER", &folder));
    place.write("plan.yaml", PLAN);
    place
}

fn fill(place: &Place, header: &str) {
    let rows: String = (0..ROWS).map(|n| format!("k{n},{n}\n")).collect();
    place.write("of-workers/rows.csv", format!("{header}\n{rows}"));
    place.write("of-workers/truth.csv", format!("key,right\n{}", rows.replace(",7\n", ",8\n")));
}

fn run_of(cluster: &Cluster) -> Value {
    cluster.run_of("elsewhere")
}

fn until_over(cluster: &Cluster) -> Value {
    cluster.until("it is over", |cluster| {
        ["complete", "failed"].contains(&run_of(cluster)["state"].as_str().unwrap())
    });
    run_of(cluster)
}

/// The controller accepts a workflow with data that it cannot read; the reading worker has them.
#[test]
fn data_that_only_workers_have_are_opened_by_them() {
    let mut cluster = Cluster::without_workers(place(), &[]);
    assert!(!cluster.place.path("of-workers").exists());
    cluster.submit().expect(0);
    cluster.until("it waits for workers", |cluster| run_of(cluster)["state"] == "waiting");
    fill(&cluster.place, "key,value");
    cluster.start_worker("edge");
    cluster.start_worker("hub");
    let run = until_over(&cluster);
    assert_eq!(run["state"], "complete", "{run}");
    // The first worker that joins may get both roles.
    let worker = run["placement"]["hub"].as_str().unwrap();
    let written = format!("w-{worker}/runs/elsewhere/hub/out/rows.jsonl");
    let found = std::fs::read(cluster.place.path(&written)).unwrap();
    tidemill(&["run", &cluster.place.argument("workflow.yaml"), "--quiet"]).expect(0);
    let expected = std::fs::read(cluster.place.path("out/rows.jsonl")).unwrap();
    assert!(found.len() > 10_000 && found == expected, "{} bytes of {}", found.len(), expected.len());
    let sent = cluster.place.path("controller/runs/elsewhere/files");
    assert!(!sent.join("rows.csv").exists() && sent.join("workflow.yaml").exists(), "nothing else was sent");
}

/// The worker's findings contradict the controller's check: the run fails, and the message has the worker, the file, the
/// finding and advice.
#[test]
#[ignore = "long: make test-long"]
fn what_a_worker_finds_is_told() {
    let cluster = Cluster::start_in(place(), &["edge", "hub"]);
    let rows = cluster.place.argument("of-workers/rows.csv");
    let (workflow, plan) = (cluster.place.argument("workflow.yaml"), cluster.place.argument("plan.yaml"));
    let fails = |name: &str, words: &[&str]| {
        // Exit code 1: the answer is "no".
        let output = cluster.ask(&["submit", &workflow, "--plan", &plan, "--as", name, "--follow"]).expect(1);
        let run = cluster.run_of(name);
        let reason = run["reason"].as_str().unwrap_or_default().to_owned();
        assert_eq!(run["state"], "failed", "{run}\n{}", output.stderr);
        for word in words {
            assert!(reason.contains(word), "{word}: {reason}");
        }
    };
    // The hub's files are correct: the first report is the one that the run fails with.
    fill(&cluster.place, "key,value");
    std::fs::remove_file(&rows).unwrap();
    fails("missing", &["worker 'edge'", "source `rows`", &rows, "does not exist", "write a path"]);
    fill(&cluster.place, "key,valve");
    fails(
        "renamed",
        &["worker 'edge'", &rows, "does not name the declared column `value`", "did you mean `valve`?"],
    );
    fill(&cluster.place, "key,value");
    std::fs::remove_file(cluster.place.path("of-workers/truth.csv")).unwrap();
    fails("untrue", &["worker 'hub'", "ground truth of `out`", "truth.csv"]);
    fill(&cluster.place, "key,value");
    std::fs::remove_file(&rows).unwrap();
    mknodat(CWD, &rows, FileType::Fifo, 0o600.into(), 0).unwrap();
    fails(
        "piped",
        &["worker 'edge'", "was checked as a file", "reads the pipe", &rows, "`stream: until_end`"],
    );
    // Files of the submission are checked at once, as always.
    cluster.place.change("workflow.yaml", &rows, "rows.csv");
    let output = cluster.ask(&["submit", &workflow, "--plan", &plan, "--as", "sent"]).expect(78).stderr;
    assert!(output.contains("source `rows`") && output.contains("does not exist"), "{output}");
}

/// Pictures and their model are on a worker; the controller has the manifest.
#[test]
#[ignore = "long: make test-long"]
fn models_that_only_workers_have_are_opened_by_them() {
    let place = Place::empty("elsewhere");
    let models = root().join("models/vqa");
    let manifest = std::fs::read_to_string(models.join("scene-features-tiny.yaml")).unwrap();
    let (before, origin) = manifest.split_once("origin:\n").unwrap();
    let (_, after) = origin.split_once("parameters:").unwrap();
    let origin = "origin: {kind: fetched, package: p, package_version: '1'}\nparameters:";
    place.write("tiny.yaml", format!("{before}{origin}{after}"));
    let pictures = place.argument("of-workers/pictures");
    place.write(
        "workflow.yaml",
        format!(
            "version: 1
name: elsewhere
sources:
  - {{id: rows, kind: image_directory, key: key, options: {{path: {pictures}}}}}
operators:
  - {{id: some, kind: ml, input: rows, variants: [tiny.yaml]}}
sinks:
  - {{id: out, kind: jsonl, input: some, options: {{path: out/rows.jsonl, columns: [key]}}}}
checkpoint: {{interval: 100ms}}
"
        ),
    );
    place
        .write("plan.yaml", PLAN.replace("operator: some,", "operator: some, variant: scene-features-tiny,"));
    let mut cluster = Cluster::without_workers(place, &[]);
    cluster.submit().expect(0);
    cluster.until("it waits for workers", |cluster| run_of(cluster)["state"] == "waiting");
    for number in 0..8 {
        let name = format!("{number:06}.jpg");
        let picture = std::fs::read(root().join("examples/vqa/data/images").join(&name)).unwrap();
        cluster.place.write(&format!("of-workers/pictures/{name}"), picture);
    }
    let file = "cache/tidemill/models/scene-features-tiny/scene-features-tiny.onnx";
    cluster.place.write(file, std::fs::read(models.join("scene-features-tiny.onnx")).unwrap());
    let cache = cluster.place.argument("cache");
    // The worker without the model comes second: alone, it would get the role of the other one.
    cluster.start_worker_where("hub", &["--tier", "hub"], &[("XDG_CACHE_HOME", &cache)]);
    cluster.until_joined(1);
    cluster.start_worker("edge");
    let run = until_over(&cluster);
    assert_eq!(run["state"], "complete", "{run}");
    let rows = cluster.place.rows("w-hub/runs/elsewhere/hub/out/rows.jsonl");
    let keys: Vec<&str> = rows.iter().map(|row| row["key"].as_str().unwrap()).collect();
    let expected: Vec<String> = (0..8).map(|number| format!("{number:06}")).collect();
    assert_eq!(keys, expected);
}
