//! Workers that are lost to a run whose plan covers that (`survive`): stages that remain take over; through the built binary.
use crate::cluster::Cluster;
use crate::cluster_replanning::{FAST, events, until_event};
use crate::command::{Place, root, rows};
use crate::processes::{children, gone};
use serde_json::Value;
use tidemill_random::Random;

const WORKFLOW: &str = r#"version: 1
name: spread
sources: [{id: rows, kind: jsonl, rate: 100/s, options: {path: rows.jsonl, columns: {n: int64, x: "tensor<float32>[4]"}}}]
operators: [{id: norm, kind: ml, input: rows, variants: [identity.yaml]}]
sinks: [{id: norms, kind: jsonl, input: norm, options: {path: out/norms.jsonl, columns: [n, y]}}]
run: {tick: 20ms, checkpoint_every: 5}
checkpoint: {interval: 200ms}
"#;

const BOXES: [&str; 3] = ["box-1", "box-2", "box-3"];

/// More rows than a test reads: it is cancelled.
const ROWS: usize = 100_000;

/// A source and a sink on the hub, and the stages of a model on three boxes.
fn plan() -> String {
    let mut text = "version: 1
workflow: {name: spread}
tick: 20ms
checkpoint_every: 5
survive: 1
workers:
  - {id: hub, tier: hub, worker_type: small}
"
    .to_owned();
    for name in BOXES {
        text += &format!("  - {{id: {name}, tier: edge, worker_type: small}}\n");
    }
    text += "stages:\n  - {id: rows, operator: rows, worker: hub}\n  - {id: norms, operator: norms, worker: hub}\n";
    let shares = [0.34, 0.33, 0.33];
    for (name, share) in BOXES.iter().zip(shares) {
        text += &format!(
            "  - {{id: norm@{name}, operator: norm, variant: identity, backend: rten, worker: {name}, share: {share}}}\n"
        );
    }
    text += "classes:\n";
    for (id, (name, share)) in BOXES.iter().zip(shares).enumerate() {
        text += &format!(
            "  - {{id: {id}, share: {share}, route: {{rows: rows, norm: norm@{name}, norms: norms}}}}\n"
        );
    }
    text += "edges:\n";
    for name in BOXES {
        text += &format!("  - {{from: rows, to: norm@{name}}}\n  - {{from: norm@{name}, to: norms}}\n");
    }
    text
}

fn cluster() -> Cluster {
    let place = Place::empty("spread");
    for file in ["identity.yaml", "identity.onnx"] {
        place.write(file, std::fs::read(root().join("operators/inference/testdata").join(file)).unwrap());
    }
    let row = |n: usize| format!("{{\"n\": {n}, \"x\": [{n}, 1, 2, 3]}}\n");
    place.write("rows.jsonl", (0..ROWS).map(row).collect::<String>());
    place.write("workflow.yaml", WORKFLOW);
    place.write("plan.yaml", plan());
    let mut cluster = Cluster::without_workers(place, &FAST);
    cluster.start_worker("hub");
    for name in BOXES {
        cluster.start_worker_with(name, &["--tier", "edge"]);
    }
    cluster.until_joined(1 + BOXES.len());
    cluster.submit().expect(0);
    cluster.until_arrived(100);
    cluster
}

/// Kills the agent of a worker and with it its process of the run.
fn lose(cluster: &mut Cluster, worker: &str) {
    let at = cluster.workers.iter().position(|(name, _)| name == worker).unwrap();
    let (_, mut agent) = cluster.workers.remove(at);
    let processes = children(agent.id());
    assert_eq!(processes.len(), 1, "{worker} has a process of the run");
    agent.kill().unwrap();
    agent.wait().unwrap();
    assert!(processes.iter().all(|pid| gone(*pid)), "a process outlives its agent");
}

fn survived(cluster: &Cluster) -> usize {
    events(cluster, "loss_survived").len()
}

fn get_on(cluster: &Cluster, records: u64) {
    let arrived = || cluster.run()["arrived"].as_u64().unwrap();
    let before = arrived();
    cluster.until("more records arrive", |_| arrived() >= before + records);
}

/// The rows so far are those of the first records, each once.
fn ends_with_each_row_once(cluster: &Cluster) {
    let arrived = usize::try_from(cluster.run()["arrived"].as_u64().unwrap()).unwrap();
    cluster.ask(&["cancel", "spread"]).expect(0);
    cluster.until("it is cancelled", |cluster| cluster.run()["state"] == "cancelled");
    let found = rows(&cluster.place.read("w-hub/runs/spread/hub/out/norms.jsonl"));
    let mut numbers: Vec<u64> = found.iter().map(|row| row["n"].as_u64().unwrap()).collect();
    numbers.sort_unstable();
    assert!(numbers.len() > arrived / 2, "{} rows of {arrived}", numbers.len());
    let expected: Vec<u64> = (0..numbers.len() as u64).collect();
    assert!(numbers == expected, "rows are missing or doubled among the first {}", numbers.len());
    for row in found {
        let (n, y) = (row["n"].as_f64().unwrap(), row["y"][0].as_f64().unwrap());
        assert!((y - n / (n * n + 14.0).sqrt()).abs() < 1e-5, "another model has computed {row}");
    }
}

#[test]
fn stages_that_remain_take_over_from_a_lost_worker() {
    let mut cluster = cluster();
    let run = cluster.run();
    assert_eq!(
        (&run["losses_covered"], run["losses"].as_array().unwrap().len()),
        (&Value::from(1), 0),
        "{run}"
    );
    lose(&mut cluster, "box-2");
    let told = until_event(&cluster, "loss_survived");
    assert!(
        told.contains("worker box-2 lost ") && told.contains("its classes moved to box-1, box-3 after "),
        "{told}"
    );
    get_on(&cluster, 100);
    let run = cluster.run();
    assert_eq!((&run["plan_version"], &run["losses_covered"]), (&Value::from(2), &Value::from(0)), "{run}");
    assert!(run["losses"][0]["seconds"].as_f64().unwrap() > 0.0, "{run}");
    let shown = cluster.ask(&["status", "spread"]).expect(0).stdout;
    assert!(shown.contains("another loss is not covered until worker box-2 is back"), "{shown}");
    let changes = cluster.ask(&["events"]).expect(0).stdout;
    for kind in ["role_moved", "replan_accepted", "replan_proposed", "loss_not_survived"] {
        assert_eq!(
            events(&cluster, kind),
            Vec::<String>::new(),
            "the plan that was there is enough\n{changes}"
        );
    }
    assert!(run["placement"].get("box-2").is_none(), "{run}");
    cluster.start_worker_with("box-2", &["--tier", "edge"]);
    cluster.until("its plan is whole", |cluster| cluster.run()["losses_covered"] == 1);
    cluster.until("box-2 has work again", |cluster| cluster.run()["placement"]["box-2"] == "box-2");
    get_on(&cluster, 50);
    ends_with_each_row_once(&cluster);
}

/// A process that dies while its agent lives is survived the same way.
#[test]
fn a_process_that_dies_alone_is_replaced_by_stages_that_remain() {
    let cluster = cluster();
    let of_box =
        cluster.workers.iter().find(|(name, _)| name == "box-3").map(|(_, agent)| children(agent.id()));
    let of_box = of_box.unwrap();
    assert!(of_box.len() == 1 && crate::processes::kill(of_box[0]));
    let told = until_event(&cluster, "loss_survived");
    assert!(told.contains("its classes moved to box-1, box-2 after "), "{told}");
    cluster.until("its plan is whole", |cluster| cluster.run()["losses_covered"] == 1);
    get_on(&cluster, 50);
    ends_with_each_row_once(&cluster);
}

/// Boxes are killed in turn, at random moments.
#[test]
#[ignore = "long: make test-long"]
fn boxes_that_are_lost_in_turn_lose_no_row() {
    const ROUNDS: usize = 10;
    let mut random = Random::of_seed(5);
    let mut cluster = cluster();
    for round in 1..=ROUNDS {
        get_on(&cluster, random.below(200) as u64);
        let worker = BOXES[random.below(BOXES.len())];
        lose(&mut cluster, worker);
        cluster.until(&format!("round {round}: the loss of {worker} is survived"), |cluster| {
            survived(cluster) == round
        });
        get_on(&cluster, random.below(200) as u64);
        cluster.start_worker_with(worker, &["--tier", "edge"]);
        cluster.until(&format!("round {round}: the plan is whole"), |cluster| {
            cluster.run()["losses_covered"] == 1
        });
        cluster.until(&format!("round {round}: {worker} has work"), |cluster| {
            cluster.run()["placement"][worker] == worker
        });
    }
    assert_eq!(events(&cluster, "loss_not_survived"), Vec::<String>::new());
    ends_with_each_row_once(&cluster);
}
