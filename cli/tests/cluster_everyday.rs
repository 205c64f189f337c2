//! Everyday operation of a cluster: waiting runs, ended runs, logs, events, messages, sampled records; through the built
//! binary.
use crate::cluster::Cluster;
use crate::command::command;
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::time::Duration;

impl Cluster {
    fn events(&self) -> Vec<Value> {
        let output = self.ask(&["events", "--output", "json"]).expect(0).stdout;
        output.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn count(&self, kind: &str) -> usize {
        self.events().iter().filter(|event| event["kind"] == kind).count()
    }

    fn end_worker(&mut self, name: &str) {
        let at = self.workers.iter().position(|(worker, _)| worker == name).unwrap();
        let (_, mut agent) = self.workers.remove(at);
        agent.kill().unwrap();
        agent.wait().unwrap();
    }

    fn restart_controller(&mut self) {
        let mut controller = self.controller.take().unwrap();
        controller.kill().unwrap();
        controller.wait().unwrap();
        self.start_controller();
    }

    fn logged(&self, arguments: &[&str]) -> Vec<Value> {
        let output =
            self.ask(&[&["logs", "spread", "--output", "json"], arguments].concat()).expect(0).stdout;
        output.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

#[track_caller]
fn contains(text: &str, part: &str) {
    assert!(text.contains(part), "{part} is not in\n{text}");
}

/// A worker with files of a sink is lost and returns: the run reports the reason for waiting, and each event occurs once.
#[test]
#[ignore = "long: make test-long"]
fn a_run_that_waits_says_for_what() {
    let mut cluster = Cluster::start(&["edge", "hub", "cloud"]);
    cluster.slow_down(4);
    cluster.submit().expect(0);
    cluster.until_arrived(50);
    cluster.until("cloud runs its part", |cluster| {
        let found = cluster.ask(&["workers", "--output", "json"]).expect(0).json();
        let hosts =
            found["workers"].as_array().unwrap().iter().map(|one| one["hosts"].as_array().unwrap().len());
        hosts.sum::<usize>() == 3
    });
    cluster.end_worker("cloud");
    cluster.until("the run waits", |cluster| cluster.run()["state"] == "waiting");
    let run = cluster.run();
    assert_eq!(
        run["waits_for"],
        serde_json::json!(["worker cloud, the only one with some files of 'cloud'"]),
        "{run}"
    );
    let output = cluster.ask(&["status", "spread"]).expect(0).stdout;
    contains(&output, "spread (spread) is waiting");
    contains(&output, "waits for worker cloud, which has files");
    // The state of its processes is unknown.
    let found = cluster.ask(&["workers", "--output", "json"]).expect(0).json();
    let cloud = found["workers"].as_array().unwrap().iter().find(|one| one["name"] == "cloud").unwrap();
    assert_eq!((&cloud["is_alive"], cloud["hosts"].as_array().unwrap().len()), (&Value::Bool(false), 0));

    cluster.start_worker("cloud");
    cluster.until("it goes on", |cluster| cluster.run()["state"] == "running");
    cluster.until("that is told", |cluster| cluster.count("run_goes_on") == 1);
    assert_eq!((cluster.count("worker_lost"), cluster.count("worker_alive")), (1, 1));

    // The next controller finds everything unchanged, and repeats no event.
    let before = cluster.events();
    cluster.restart_controller();
    cluster.until_joined(3);
    let arrived = cluster.run()["arrived"].as_u64().unwrap();
    cluster.until_arrived(arrived + 50);
    let after = cluster.events();
    assert_eq!(after[..before.len()], before[..]);
    let numbers: BTreeSet<u64> = after.iter().map(|event| event["number"].as_u64().unwrap()).collect();
    assert_eq!((numbers.len(), numbers.last()), (after.len(), Some(&(after.len() as u64))));
    let new: Vec<&Value> = after[before.len()..].iter().collect();
    assert!(!new.iter().any(|event| event["kind"].as_str().unwrap().starts_with("worker_")), "{new:?}");
    cluster.ask(&["cancel", "spread"]).expect(0);
}

/// Repeating a submission gives that run; for an ended one the message explains how to start it again.
#[test]
#[ignore = "long: make test-long"]
fn a_run_that_was_cancelled_is_begun_again_only_if_that_is_said() {
    let cluster = Cluster::start(&["edge", "hub", "cloud"]);
    cluster.slow_down(4);
    let (workflow, plan) = (cluster.place.argument("workflow.yaml"), cluster.place.argument("plan.yaml"));
    let submit = |more: &[&str]| cluster.ask(&[&["submit", &workflow, "--plan", &plan], more].concat());
    submit(&[]).expect(0);
    contains(&submit(&[]).expect(0).stderr, "run spread is this submission, and continues");
    contains(&submit(&["--again"]).expect(78).stderr, "run spread has not ended");
    cluster.until_arrived(20);
    cluster.ask(&["cancel", "spread"]).expect(0);
    cluster.until("it is cancelled", |cluster| cluster.run()["state"] == "cancelled");
    let output = submit(&[]).expect(78).stderr;
    contains(&output, "it was cancelled: nothing to start");
    contains(&output, "`tidemill submit --again`");
    assert_eq!(cluster.run()["state"], "cancelled");
    // A refused submission removes nothing.
    let fit = cluster.place.read("workflow.yaml");
    cluster.place.change("workflow.yaml", "value % 7 != 3", "value % 7 !=");
    submit(&["--again"]).expect(78);
    assert_eq!((cluster.run()["state"].as_str(), cluster.count("run_removed")), (Some("cancelled"), 0));
    cluster.place.write("workflow.yaml", fit);
    let output = submit(&["--again"]).expect(0).stderr;
    contains(&output, "removed run spread, which was cancelled");
    cluster.until("another one runs", |cluster| cluster.run()["state"] == "running");
    cluster.until_arrived(20);
    assert_eq!(cluster.count("run_removed"), 1);
    cluster.ask(&["cancel", "spread"]).expect(0);
}

/// A run without workers has no metrics, and starts when a worker joins.
#[test]
#[ignore = "long: make test-long"]
fn a_run_without_workers_has_no_figures_and_begins_when_they_join() {
    let mut cluster = Cluster::start(&[]);
    cluster.submit().expect(0);
    cluster.until("it waits for workers", |cluster| cluster.run()["state"] == "waiting");
    let waits = cluster.run()["waits_for"].to_string();
    assert!(waits.contains("edge") && waits.contains("cloud"), "{waits}");
    let output = String::from_utf8(cluster.call("GET", "/metrics", &cluster.admin()).body).unwrap();
    assert!(output.contains("tidemill_") && !output.contains("tidemill_operator_records_total{"), "{output}");
    // The first one that joins may get everything.
    cluster.start_worker("edge");
    cluster.until("it is complete", |cluster| cluster.run()["state"] == "complete");
    assert!(cluster.run()["arrived"].as_u64() > Some(0), "{}", cluster.run());
}

/// `tidemill events --follow | head -1`: a reader that is gone is noticed without another event.
#[test]
fn events_are_followed_as_long_as_somebody_reads_them() {
    let cluster = Cluster::start(&[]);
    let token = cluster.place.read("controller/admin.token");
    let mut follows = command(&["events", "--follow"]);
    follows.env("TIDEMILL_CONTROLLER", &cluster.address).env("TIDEMILL_TOKEN", token.trim());
    let mut child = follows.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(!lines.next().unwrap().unwrap().is_empty(), "what has happened so far is told at once");
    drop(lines);
    let has_ended = (0..300).any(|_| {
        std::thread::sleep(Duration::from_millis(100));
        child.try_wait().unwrap().is_some()
    });
    if !has_ended {
        child.kill().unwrap();
    }
    let status = child.wait().unwrap();
    assert!(has_ended && status.success(), "{status}");
}

/// Mistakes in a submission are reported with the submitter's paths.
#[test]
fn messages_name_the_files_of_whoever_submits() {
    let cluster = Cluster::start(&["edge"]);
    cluster.place.change("workflow.yaml", "value % 7 != 3", "value % 7 !=");
    let output = cluster.submit().expect(78);
    let text = output.stdout + &output.stderr;
    contains(&text, "workflow.yaml:");
    contains(&text, &cluster.place.argument("workflow.yaml"));
    assert!(!text.contains("controller/runs"), "{text}");
}

/// Lines of all processes and events of the controller, also for the next controller; and a missed level.
#[test]
#[ignore = "long: make test-long"]
fn logs_say_what_every_part_of_a_run_does() {
    let mut cluster = Cluster::start(&["edge", "hub", "cloud"]);
    cluster.slow_down(10);
    let workflow = cluster.place.read("workflow.yaml");
    cluster.place.write(
        "workflow.yaml",
        workflow.replace("run:", "slo: {latency: {percentile: p99, below: 1ms}}\nrun:"),
    );
    cluster.submit().expect(0);
    let begins = |lines: &[Value]| {
        let of =
            lines.iter().filter(|line| line["line"].as_str().unwrap().contains("starts with the stages"));
        of.map(|line| line["role"].as_str().unwrap().to_owned()).collect::<BTreeSet<String>>()
    };
    cluster.until("all have said something", |cluster| begins(&cluster.logged(&[])).len() == 3);
    let lines = cluster.logged(&[]);
    let hub = lines.iter().find(|line| line["role"] == "hub").unwrap();
    assert_eq!(
        (&hub["workflow"], &hub["worker"], &hub["stages"]),
        (&"spread".into(), &"hub".into(), &serde_json::json!(["pair", "pairs"])),
        "{hub}"
    );
    assert!(lines.iter().any(|line| line["level"] == "EVENT" && line["role"].is_null()), "{lines:?}");
    let of_stage = cluster.logged(&["--stage", "pair"]);
    assert!(!of_stage.is_empty() && of_stage.iter().all(|line| line["role"] == "hub"), "{of_stage:?}");
    let of_worker = cluster.logged(&["--worker", "edge"]);
    assert!(!of_worker.is_empty() && of_worker.iter().all(|line| line["worker"] == "edge"), "{of_worker:?}");
    contains(&cluster.ask(&["logs", "spread", "--stage", "pears"]).expect(78).stderr, "has no stage `pears`");
    contains(&cluster.ask(&["logs", "spread", "--worker", "moon"]).expect(78).stderr, "has no worker `moon`");

    cluster.until("the level is missed", |cluster| cluster.count("level_missed") == 1);
    let output = cluster.ask(&["events"]).expect(0).stdout;
    contains(&output, "run spread misses its level on latency");

    let before = cluster.logged(&[]);
    cluster.restart_controller();
    cluster.until_joined(3);
    let after = cluster.logged(&[]);
    assert!(after.len() >= before.len() && begins(&after) == begins(&before), "{after:?}");
    assert_eq!(after[0], before[0]);
    let arrived = cluster.run()["arrived"].as_u64().unwrap();
    cluster.until_arrived(arrived + 10);
    assert_eq!(cluster.count("level_missed"), 1, "it is told once");

    // Following ends with the run.
    cluster.ask(&["cancel", "spread"]).expect(0);
    let output = cluster.ask(&["logs", "spread", "--follow"]).expect(0).stdout;
    contains(&output, "run spread is cancelled");
}

/// A few of the newest records, for authorised users; none if the workflow forbids it.
#[test]
#[ignore = "long: make test-long"]
fn records_can_be_looked_at_unless_the_workflow_says_no() {
    let cluster = Cluster::start(&["edge", "hub", "cloud"]);
    cluster.slow_down(4);
    let people =
        cluster.ask(&["people", "add", "Ada", "--role", "viewer", "--output", "json"]).expect(0).json();
    let token = people["person"]["token"].as_str().unwrap_or_else(|| panic!("{people}")).to_owned();
    let samples = |run: &str, after: u64, token: &str| -> (u16, Value) {
        let answer = cluster.call("GET", &format!("/v1/runs/{run}/samples?after={after}"), token);
        (answer.status, serde_json::from_slice(&answer.body).unwrap())
    };
    cluster.submit().expect(0);
    let of_sink = |document: &Value, sink: &str| -> Vec<Value> {
        let sinks = document["sinks"].as_array().unwrap();
        let found = sinks.iter().find(|one| one["sink"] == sink);
        found.map_or_else(Vec::new, |one| one["samples"].as_array().unwrap().clone())
    };
    cluster.until("two records of a sink are there", |_| {
        of_sink(&samples("spread", 0, &token).1, "pairs").len() >= 2
    });
    let (status, document) = samples("spread", 0, &token);
    assert_eq!((status, &document["is_off"]), (200, &Value::Bool(false)));
    let pairs = of_sink(&document, "pairs");
    let number = |sample: &Value| sample["number"].as_u64().unwrap();
    assert!(pairs.windows(2).all(|two| number(&two[0]) > number(&two[1])), "the newest first: {document}");
    let names: Vec<&str> =
        pairs[0]["values"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"key") && names.contains(&"weight"), "{document}");
    let later = of_sink(&samples("spread", number(&pairs[0]), &token).1, "pairs");
    assert!(later.iter().all(|sample| number(sample) > number(&pairs[0])), "{later:?}");
    assert_eq!(samples("spread", 0, "").0, 401);
    assert_eq!(samples("none", 0, &token).0, 404);
    cluster.ask(&["cancel", "spread"]).expect(0);

    cluster.place.change("workflow.yaml", "run: {", "run: {samples: off, ");
    let (workflow, plan) = (cluster.place.argument("workflow.yaml"), cluster.place.argument("plan.yaml"));
    cluster.ask(&["submit", &workflow, "--plan", &plan, "--as", "quiet"]).expect(0);
    cluster.until("it runs", |cluster| cluster.run_of("quiet")["arrived"].as_u64() > Some(20));
    let (_, document) = samples("quiet", 0, &token);
    assert_eq!(document["is_off"], true, "{document}");
    assert!(of_sink(&document, "pairs").is_empty(), "{document}");
    cluster.ask(&["cancel", "quiet"]).expect(0);
}
