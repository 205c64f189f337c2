//! Results of a cluster's runs: fetched, and removed; through the built binary.
use crate::cluster::{Cluster, undisturbed};
use crate::cluster_changes::spread;
use crate::command::{Outcome, command};
use std::io::Read;
use std::process::{Child, Stdio};

impl Cluster {
    /// A command that runs while others are called.
    fn begin(&self, arguments: &[&str]) -> Child {
        let token = std::fs::read_to_string(self.place.path("controller/admin.token")).unwrap();
        let mut command = command(arguments);
        command.env("TIDEMILL_CONTROLLER", &self.address).env("TIDEMILL_TOKEN", token.trim());
        command.stdout(Stdio::piped()).spawn().unwrap()
    }

    fn result(&self, sink: &str) -> Outcome {
        self.ask(&["results", "spread", "--sink", sink]).expect(0)
    }
}

fn content(outputs: &[(&str, Vec<u8>)], file: &str) -> String {
    let (_, bytes) = outputs.iter().find(|(name, _)| *name == file).unwrap();
    String::from_utf8(bytes.clone()).unwrap()
}

#[test]
#[ignore = "long: make test-long"]
fn results_are_what_is_committed_while_a_run_goes_on_and_all_at_its_end() {
    // Before the run starts, because it could end meanwhile.
    let expected = undisturbed();
    let mut cluster = Cluster::start(&["edge", "hub", "cloud"]);
    cluster.submit().expect(0);
    let follower = cluster.begin(&["results", "spread", "--sink", "pairs", "--follow"]);
    let pairs = content(&expected, "out/pairs.jsonl");
    let mut seen = Vec::new();
    while cluster.run()["state"] != "complete" {
        let found = cluster.result("pairs").stdout;
        assert!(pairs.starts_with(&found), "{} bytes are not the first ones", found.len());
        assert!(found.is_empty() || found.ends_with('\n'), "a row is cut off");
        seen.push(found.len());
    }
    assert!(seen.is_sorted(), "what is committed is not taken back: {seen:?}");
    assert!(seen.iter().any(|bytes| *bytes > 0 && *bytes < pairs.len()), "never in the middle: {seen:?}");
    let output = follower.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), pairs, "what a follower saw");
    assert_eq!(cluster.result("table").stdout, content(&expected, "out/counted.csv"));

    let folder = cluster.place.argument("fetched");
    cluster.ask(&["results", "spread", "--out", &folder]).expect(0);
    for file in ["out/pairs.jsonl", "out/counted.csv"] {
        assert_eq!(cluster.place.read(&format!("fetched/{file}")), content(&expected, file), "{file}");
    }
    assert_eq!(cluster.place.files("fetched/out"), ["counted.csv", "pairs.jsonl"]);
    let message = cluster.ask(&["results", "spread", "--out", &folder]).expect(78).stderr;
    assert!(message.contains("exists already"), "{message}");
    let listed = cluster.ask(&["results", "spread"]).expect(0).stdout;
    assert!(
        listed.contains("out/pairs.jsonl") && listed.contains("hub") && listed.contains("all"),
        "{listed}"
    );
    let message = cluster.ask(&["results", "spread", "--sink", "none"]).expect(66).stderr;
    assert!(message.contains("pairs, table"), "{message}");
    cluster.ask(&["results", "nothing"]).expect(66);

    // The worker with a file is away, and returns; the controller is another process meanwhile.
    let mut controller = cluster.controller.take().unwrap();
    controller.kill().unwrap();
    controller.wait().unwrap();
    cluster.start_controller();
    let hub = cluster.workers.iter().position(|(name, _)| name == "hub").unwrap();
    let (_, mut agent) = cluster.workers.remove(hub);
    agent.kill().unwrap();
    agent.wait().unwrap();
    cluster.until("hub is missed", |cluster| {
        cluster.ask(&["results", "spread", "--sink", "pairs"]).stderr.contains("restart it")
    });
    cluster.start_worker("hub");
    cluster.until("hub gives what it has", |cluster| {
        cluster.ask(&["results", "spread", "--sink", "pairs"]).stdout == pairs
    });
}

/// Control characters are hidden from terminals, but kept in files.
#[test]
fn bytes_of_a_result_are_not_changed_on_their_way() {
    let cluster = Cluster::start(&["edge"]);
    cluster.place.write("bells.csv", "n,text\n1,a\u{1b}[31mb\u{7}\n2,c\u{7f}\r\n");
    let workflow = "version: 1
name: spread
sources: [{id: bells, kind: csv, rate: 1000/s, options: {path: bells.csv, columns: {n: int64, text: text}}}]
sinks:
  - {id: table, kind: csv, input: bells, options: {path: out/table.csv}}
  - {id: columns, kind: parquet, input: bells, options: {path: out/columns.parquet}}
";
    cluster.place.write("bells.yaml", workflow);
    let workflow = cluster.place.argument("bells.yaml");
    cluster.ask(&["submit", &workflow, "--one-worker"]).expect(0);
    cluster.until("it is complete", |cluster| cluster.run()["state"] == "complete");
    let folder = cluster.place.argument("fetched");
    cluster.ask(&["results", "spread", "--out", &folder]).expect(0);
    for (sink, file) in [("table", "out/table.csv"), ("columns", "out/columns.parquet")] {
        let printed =
            cluster.begin(&["results", "spread", "--sink", sink]).wait_with_output().unwrap().stdout;
        let fetched = std::fs::read(cluster.place.path("fetched").join(file)).unwrap();
        assert!(
            printed == fetched && fetched.contains(&0x1b),
            "{sink}: {}",
            String::from_utf8_lossy(&printed)
        );
    }
}

#[test]
#[ignore = "long: make test-long"]
fn files_outside_of_a_run_are_not_given() {
    let cluster = Cluster::start(&["edge"]);
    let outside = cluster.place.argument("elsewhere/pairs.jsonl");
    cluster.place.change("workflow.yaml", "path: out/pairs.jsonl", &format!("path: {outside}"));
    let workflow = cluster.place.argument("workflow.yaml");
    cluster.ask(&["submit", &workflow, "--one-worker", "--records", "300"]).expect(0);
    cluster.until("it is complete", |cluster| cluster.run()["state"] == "complete");
    assert!(std::fs::metadata(&outside).unwrap().len() > 0, "it is written");
    let message = cluster.ask(&["results", "spread", "--sink", "pairs"]).expect(66);
    assert!(
        message.stderr.contains("is not in the folder of the run") && message.stdout.is_empty(),
        "{message:?}"
    );
    cluster.ask(&["results", "spread", "--sink", "table"]).expect(0);
}

#[test]
#[ignore = "long: make test-long"]
fn a_run_is_removed_everywhere_and_its_name_is_free() {
    let mut cluster = Cluster::start(&["edge", "hub", "cloud"]);
    cluster.submit().expect(0);
    cluster.until_arrived(300);
    let message = cluster.ask(&["remove", "spread"]).expect(78).stderr;
    assert!(message.contains("has not ended: cancel it first"), "{message}");
    let message = cluster.ask(&["cancel", "spread"]).expect(0).stderr;
    assert!(
        message.contains("tidemill results spread") && message.contains("tidemill remove spread"),
        "{message}"
    );
    cluster.until("it is cancelled", |cluster| cluster.run()["state"] == "cancelled");
    let before = cluster.result("pairs").stdout;
    assert!(content(&undisturbed(), "out/pairs.jsonl").starts_with(&before));
    // One of the workers is away during the removal.
    let (name, mut cloud) = cluster.workers.pop().unwrap();
    cloud.kill().unwrap();
    cloud.wait().unwrap();
    cluster.ask(&["remove", "spread"]).expect(0);
    let folder = |worker: &str| cluster.place.path(&format!("w-{worker}/runs/spread"));
    cluster
        .until("workers that are there remove it", |_| !folder("edge").exists() && !folder("hub").exists());
    assert!(folder("cloud").exists() && !cluster.place.path("controller/runs/spread").exists());
    let message = cluster.ask(&["status", "spread"]).expect(66).stderr;
    assert!(message.contains("there is no run `spread`"), "{message}");
    cluster.start_worker(&name);
    let folder = cluster.place.path("w-cloud/runs/spread");
    cluster.until("it is removed where it was away", |_| !folder.exists());
    for place in ["controller/runs", "w-edge/runs", "w-hub/runs", "w-cloud/runs"] {
        let left = cluster.place.path(place);
        cluster.until("nothing is left", |_| std::fs::read_dir(&left).unwrap().next().is_none());
    }
    // The name now belongs to another run.
    let workflow = cluster.place.argument("workflow.yaml");
    cluster.ask(&["submit", &workflow, "--one-worker", "--records", "300"]).expect(0);
    cluster.until("it is complete", |cluster| cluster.run()["state"] == "complete");
    assert!(cluster.run()["arrived"].as_u64().unwrap() > 0);
}

#[test]
#[ignore = "long: make test-long"]
fn runs_that_have_ended_go_by_the_rule() {
    let cluster = Cluster::start_with(&["edge"], &["--keep-ended", "4s"]);
    let workflow = cluster.place.argument("workflow.yaml");
    cluster.ask(&["submit", &workflow, "--one-worker", "--records", "200"]).expect(0);
    cluster.until("it is complete", |cluster| {
        let message = cluster.ask(&["events"]).stdout;
        message.contains("run spread is complete")
    });
    let folder = cluster.place.path("w-edge/runs/spread");
    cluster.until("it is gone", |cluster| {
        !folder.exists() && cluster.ask(&["list"]).stdout.starts_with("no runs yet")
    });
    let message = cluster.ask(&["events"]).expect(0).stdout;
    assert!(message.contains("the controller removes run spread: it ended at"), "{message}");
}

#[test]
fn a_follower_whose_reader_goes_away_ends() {
    // A run that lasts longer than any test: only the reader can end the follower.
    let cluster = Cluster::start_in(spread(120), &["edge", "hub", "cloud"]);
    cluster.submit().expect(0);
    let mut follower = cluster.begin(&["results", "spread", "--sink", "pairs", "--follow"]);
    let mut first = [0; 64];
    follower.stdout.take().unwrap().read_exact(&mut first).unwrap();
    assert_eq!(first[0], b'{');
    assert_eq!(follower.wait().unwrap().code(), Some(0));
}
