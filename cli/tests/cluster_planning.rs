//! A controller that plans for the joined workers; through the built binary.
use crate::cluster::Cluster;
use crate::command::{Outcome, Place, root, tidemill};
use serde_json::Value;

/// Figures of the operators on gateways and servers.
const PROFILE: &str = "cli/tests/planning/profile.yaml";
/// Levels that they keep.
const LEVELS: [&str; 4] = ["--slo", "latency=none", "--slo", "accuracy=70"];

/// Two gateways at the edge and a server in the cloud.
fn cluster() -> Cluster {
    let mut cluster = Cluster::without_workers(Place::example("vqa"), &[]);
    for gateway in ["north", "south"] {
        cluster.start_worker_with(gateway, &["--tier", "edge", "--type", "gateway", "--price", "0.03 $/h"]);
    }
    cluster.start_worker_with("rack", &["--tier", "cloud", "--type", "server", "--price", "0.4 $/h"]);
    cluster.until_joined(3);
    cluster
}

fn profile() -> String {
    root().join(PROFILE).to_str().unwrap().to_owned()
}

fn submit(cluster: &Cluster, name: &str, more: &[&str]) -> Outcome {
    let (workflow, profile) = (cluster.place.argument("workflow.yaml"), profile());
    let own = ["submit", &workflow, "--profiles", &profile, "--as", name];
    cluster.ask(&[&own, &LEVELS[..], more].concat())
}

/// The plan of `tidemill plan` for the workers that the controller reports.
fn planned(cluster: &Cluster, more: &[&str]) -> (String, Value) {
    let infrastructure = cluster.ask(&["workers", "--infra"]).expect(0).stdout;
    cluster.place.write("workers.yaml", &infrastructure);
    let (workflow, workers) =
        (cluster.place.argument("workflow.yaml"), cluster.place.argument("workers.yaml"));
    let (profile, file) = (profile(), cluster.place.argument("planned.yaml"));
    let own =
        ["plan", &workflow, "--infra", &workers, "--profiles", &profile, "--out", &file, "--output", "json"];
    tidemill(&[&own, &LEVELS[..], more].concat()).expect(0);
    let text = cluster.place.read("planned.yaml");
    (
        infrastructure,
        serde_json::to_value(tidemill_spec::plan::Plan::parse(&text, "planned.yaml").unwrap()).unwrap(),
    )
}

/// The current plan of a run.
fn plan_of(cluster: &Cluster, name: &str) -> Value {
    cluster.ask(&["change", name, "--proposal", "--output", "json"]).expect(0).json()["replan"]["current"]
        .clone()
}

/// Stages with their workers, models and shares, and the promised cost and accuracy.
fn facts(plan: &Value) -> Value {
    let stages = plan["stages"].as_array().unwrap().iter().map(|stage| {
        serde_json::json!([stage["id"], stage["operator"], stage["worker"], stage["variant"], stage["share"]])
    });
    let predicted = &plan["predicted"];
    serde_json::json!([stages.collect::<Vec<_>>(), plan["classes"], predicted["cost"], predicted["accuracy"]])
}

fn workers_of(plan: &Value) -> Vec<String> {
    let workers = plan["workers"].as_array().unwrap().iter();
    workers.map(|worker| worker["id"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_workflow_is_planned_for_the_workers_that_have_joined() {
    let cluster = cluster();
    let (infrastructure, expected) = planned(&cluster, &[]);
    assert!(infrastructure.contains("north") && !infrastructure.contains("busy"), "{infrastructure}");
    let output = submit(&cluster, "vqa", &["--records", "40"]).expect(0).stderr;
    assert!(
        output.contains("planned vqa for joined-workers") && output.contains("no plan costs less"),
        "{output}"
    );
    let plan = plan_of(&cluster, "vqa");
    assert_eq!(facts(&plan), facts(&expected));
    let names = workers_of(&plan);
    assert!(names.iter().any(|name| ["north", "south", "rack"].contains(&name.as_str())), "{names:?}");
    cluster.until("it is complete", |cluster| cluster.run_of("vqa")["state"] == "complete");
    let run = cluster.run_of("vqa");
    assert_eq!((&run["arrived"], &run["dead_letters"]), (&40.into(), &0.into()), "{run}");
    // Each role has its joined worker, and sources are in their tier.
    for (role, worker) in run["placement"].as_object().unwrap() {
        let worker = worker.as_str().unwrap();
        match role.as_str() {
            "device-edge" => assert!(["north", "south"].contains(&worker), "{run}"),
            role => assert_eq!(role, worker, "{run}"),
        }
    }
    let events = cluster.ask(&["events"]).expect(0).stdout;
    assert!(events.contains("run vqa: planned vqa for joined-workers: "), "{events}");
}

#[test]
#[ignore = "long: make test-long"]
fn what_one_run_has_another_is_planned_around() {
    let cluster = cluster();
    let slow = ["--slo", "rate=5/s"];
    submit(&cluster, "first", &slow).expect(0);
    let (infrastructure, expected) = planned(&cluster, &slow);
    assert!(infrastructure.contains("busy: "), "the first run has something: {infrastructure}");
    let output = submit(&cluster, "second", &slow).expect(0).stderr;
    assert!(output.contains("is shared and costs nothing more: run first has "), "{output}");
    assert_eq!(facts(&plan_of(&cluster, "second")), facts(&expected));
    // An infeasible submission is refused, and leaves nothing.
    let refused = submit(&cluster, "third", &["--slo", "rate=2000/s"]).expect(78).stderr;
    assert!(
        refused.contains("no plan keeps the service levels") && refused.contains("run first has "),
        "{refused}"
    );
    assert!(refused.contains("rate: "), "what would have to give way: {refused}");
    let refused =
        submit(&cluster, "third", &["--slo", "rate=5/s", "--processors", "0.001"]).expect(78).stderr;
    assert!(refused.contains("the quota of this submission is 0.001"), "{refused}");
    assert!(!cluster.place.path("controller/runs/third").exists());
    cluster.ask(&["status", "third"]).expect(66);
    // A plan by current figures, beside the current one.
    let answer = cluster.ask(&["change", "first", "--dry-run", "--output", "json"]).expect(0).json();
    let decision = answer["replan"]["decision"].as_str().unwrap();
    assert!(decision.contains("$/h"), "{decision}");
    cluster.until("there are levels", |cluster| {
        let levels = cluster.run_of("first")["levels"].clone();
        let rate = levels.as_array().unwrap().iter().find(|level| level["level"] == "rate").cloned();
        rate.is_some_and(|rate| !rate["measured"].is_null())
    });
    for run in ["first", "second"] {
        cluster.ask(&["cancel", run]).expect(0);
    }
    cluster.until("both are over", |cluster| {
        ["first", "second"].iter().all(|run| cluster.run_of(run)["state"] == "cancelled")
    });
    let (infrastructure, _) = planned(&cluster, &slow);
    assert!(!infrastructure.contains("busy"), "nobody has anything: {infrastructure}");
}

#[test]
fn what_is_missing_is_told() {
    let mut cluster = Cluster::without_workers(Place::example("vqa"), &[]);
    let workflow = cluster.place.argument("workflow.yaml");
    let output = cluster.ask(&["submit", &workflow]).expect(2).stderr;
    assert!(output.contains("--profiles") && output.contains("--one-worker"), "{output}");
    let output = cluster.ask(&["submit", &workflow, "--profiles", "nowhere"]).expect(78).stderr;
    assert!(output.contains("there is no profile") && output.contains("tidemill profile"), "{output}");
    let output = submit(&cluster, "vqa", &[]).expect(78).stderr;
    assert!(output.contains("no worker to plan for"), "{output}");
    cluster.start_worker_with("plain", &["--tier", "edge"]);
    cluster.until_joined(1);
    let output = submit(&cluster, "vqa", &[]).expect(78).stderr;
    assert!(output.contains("worker plain is left out: it has no type"), "{output}");
}

#[test]
#[ignore = "long: make test-long"]
fn the_links_between_workers_are_measured() {
    let mut cluster = Cluster::without_workers(Place::example("vqa"), &[]);
    cluster.start_worker_with("plain", &["--tier", "edge"]);
    cluster.start_worker_with("far", &["--tier", "cloud", "--type", "server"]);
    cluster.until_joined(2);
    cluster.until("the link is measured", |cluster| {
        let links = cluster.ask(&["workers", "--links", "--output", "json"]).expect(0).json();
        links["links"].as_array().unwrap().iter().any(|link| {
            link["from"] == "plain" && link["to"] == "far" && link["delay_seconds"].as_f64().unwrap() > 0.0
        })
    });
    let table = cluster.ask(&["workers", "--links"]).expect(0).stdout;
    assert!(table.contains("probes take"), "{table}");
}

/// A given plan for a running job: its changes are shown, and impossible ones refused.
#[test]
#[ignore = "long: make test-long"]
fn another_plan_is_looked_at_before_it_is_taken() {
    let mut cluster = Cluster::without_workers(Place::example("vqa"), &[]);
    cluster.start_worker_with("rack", &["--tier", "cloud", "--type", "server", "--price", "0.4 $/h"]);
    cluster.until_joined(1);
    submit(&cluster, "vqa", &["--slo", "rate=4/s", "--replan", "off"]).expect(0);
    cluster.start_worker_with("north", &["--tier", "edge", "--type", "gateway", "--price", "0.03 $/h"]);
    cluster.until_joined(2);
    cluster.until("it runs", |cluster| cluster.run_of("vqa")["arrived"].as_u64().unwrap() > 0);
    // Sources stay, and the worker with the sink's files is paid for anyway.
    let answer =
        cluster.ask(&["change", "vqa", "--dry-run", "--output", "json"]).expect(0).json()["replan"].clone();
    let decision = answer["decision"].as_str().unwrap();
    assert!(decision.contains("the present plan is the best: 0.4000 $/h"), "{decision}");
    assert!(answer["proposal"].is_null(), "{answer}");
    let mut plan = plan_of(&cluster, "vqa");
    let north = serde_json::json!({"id": "north", "tier": "edge", "worker_type": "gateway"});
    plan["workers"].as_array_mut().unwrap().push(north);
    let set = |plan: &mut Value, operator: &str| {
        for stage in plan["stages"].as_array_mut().unwrap() {
            if stage["operator"] == operator {
                stage["worker"] = "north".into();
            }
        }
    };
    set(&mut plan, "speech");
    cluster.place.write("other.yaml", serde_json::to_string(&plan).unwrap());
    let file = cluster.place.argument("other.yaml");
    let output = cluster.ask(&["change", "vqa", "--dry-run", "--plan", &file]).expect(0).stdout;
    assert!(output.contains("1 stage moves") && output.contains("~ stage speech: on rack"), "{output}");
    let shown = cluster.ask(&["change", "vqa", "--proposal", "--output", "json"]).expect(0).json();
    assert_eq!(facts(&shown["replan"]["proposal"]["plan"]), facts(&plan));
    let output = cluster.ask(&["change", "vqa"]).expect(2).stderr;
    assert!(output.contains("--yes"), "{output}");
    set(&mut plan, "answers");
    cluster.place.write("other.yaml", serde_json::to_string(&plan).unwrap());
    let output = cluster.ask(&["change", "vqa", "--dry-run", "--plan", &file]).expect(78).stderr;
    assert!(output.contains("sink `answers` has written files on worker `rack`"), "{output}");
    cluster.ask(&["cancel", "vqa"]).expect(0);
    cluster.until("it is over", |cluster| cluster.run_of("vqa")["state"] == "cancelled");
    let output = cluster.ask(&["change", "vqa", "--dry-run"]).expect(78).stderr;
    assert!(output.contains("run `vqa` is over"), "{output}");
}
