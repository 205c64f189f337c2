//! Edges of a program that a transport service serves: `tidemill net ls`, `top` and `policy`.
use crate::cluster::Cluster;
use crate::command::{Outcome, command, tidemill};
use crate::processes::place;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;
use tempfile::TempDir;
use tidemill_net::Client;
use tidemill_net::edge_name::EdgeName;
use tidemill_net::program::{Callbacks, Registration, register};
use tidemill_net::protocol::{EdgeCounts, Program, ProgramChannel, Side, VERSION};
use tidemill_spec::types::{Column, ColumnType, StreamType};

/// A service with a program of two edges: `cameras -> detect` has a channel, `detect -> count` is within a thread.
struct Host {
    folder: TempDir,
    service: Child,
    _program: Registration,
}

fn edge(from: &str, to: &str) -> EdgeName {
    EdgeName { workflow: "city".into(), from: from.into(), to: to.into() }
}

fn start(socket: &Path) -> Child {
    let service = command(&["net", "serve", "--socket", socket.to_str().unwrap()]).spawn().unwrap();
    let is_there = (0..3_000).any(|_| {
        let is_there = Client::connect(socket, 0).is_ok();
        if !is_there {
            std::thread::sleep(Duration::from_millis(20));
        }
        is_there
    });
    assert!(is_there, "it does not serve");
    service
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-TERM", &self.service.id().to_string()]).status();
        let _ = self.service.wait();
    }
}

impl Host {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("net.sock");
        let service = start(&socket);
        let channel = ProgramChannel {
            channel: 1,
            edge: edge("cameras", "detect"),
            name: "cameras.0->detect.0".into(),
            roles: vec![Side::Sender.role(), Side::Receiver.role()],
            columns: StreamType::new([Column::new("camera", ColumnType::Text)]),
        };
        let program = Program {
            version: VERSION,
            worker: "local".into(),
            workflow: "city".into(),
            process: std::process::id(),
            channels: vec![channel],
            inner: vec![edge("detect", "count")],
            policies: Vec::new(),
        };
        let counts = || {
            let counts = EdgeCounts { records: 1_234, bytes: 5_000_000, ..EdgeCounts::default() };
            vec![EdgeCounts { edge: edge("cameras", "detect"), ..counts }]
        };
        let callbacks =
            Callbacks { routes: Box::new(|_| ()), counts: Box::new(counts), rejected: Box::new(|_, _| ()) };
        let (program, _) = register(&socket, 7, program, callbacks).unwrap();
        Self { folder, service, _program: program }
    }

    fn ask(&self, words: &[&str]) -> Outcome {
        let socket = self.folder.path().join("net.sock");
        tidemill(&[&["net"], words, &["--socket", socket.to_str().unwrap()]].concat())
    }

    fn json(&self, words: &[&str]) -> Value {
        self.ask(&[words, &["--output", "json"]].concat()).expect(0).json()
    }
}

#[test]
fn policies_come_change_and_go_and_edges_say_how_they_are_carried() {
    let host = Host::new();
    let shown = host.ask(&["ls"]).expect(0).stdout;
    assert!(shown.contains("cameras -> detect") && shown.contains("direct"), "{shown}");
    assert!(shown.contains("within a thread") && !shown.contains("policies"), "{shown}");
    let none = host.ask(&["policy", "ls"]).expect(0);
    assert!(none.stdout.is_empty() && none.stderr.contains("net policy attach"), "{}", none.stderr);

    let attach = ["policy", "attach", "cameras -> detect", "rate_limit", "{rps: 5, burst: 10}"];
    let said = host.ask(&attach).expect(0).stderr;
    assert!(said.contains("rate_limit-1"), "{said}");
    let receiver = ["--id", "look", "--side", "receiver", "--workflow", "city"];
    let attached = host.json(&[&["policy", "attach", "* -> detect", "none"], &receiver[..]].concat());
    assert_eq!(
        (&attached["policy"]["id"], &attached["policy"]["workflow"]),
        (&json!("look"), &json!("city"))
    );

    let listing = &host.json(&["ls"])["listing"];
    assert_eq!(listing["edges"][1]["policies"], json!(["rate_limit-1", "look"]), "{listing}");
    assert_eq!(listing["edges"][1]["route"], "waits", "no end has come: {listing}");
    let changed = host.json(&["policy", "set", "rate_limit-1", r#"{"rps": 8}"#]);
    assert_eq!(changed["policy"]["options"], json!({"rps": 8}));
    let shown = host.ask(&["policy", "ls"]).expect(0).stdout;
    assert!(shown.contains(r#"{"rps":8}"#) && shown.contains("receiver"), "{shown}");
    host.ask(&["policy", "detach", "look"]).expect(0);
    let left = host.json(&["policy", "ls"]);
    assert_eq!(left["policies"].as_array().unwrap().len(), 1, "{left}");
}

#[test]
fn mistakes_are_told_with_what_to_write() {
    let host = Host::new();
    let said = |words: &[&str], code: i32| host.ask(words).expect(code).stderr;
    let error = said(&["policy", "attach", "cameras", "log"], 2);
    assert!(error.contains("FROM -> TO"), "{error}");
    let error = said(&["policy", "attach", "*", "rate_limit", "{rsp: 5}"], 78);
    assert!(error.contains("rsp") && error.contains("for example"), "{error}");
    let error = said(&["policy", "attach", "*", "limit"], 78);
    assert!(error.contains("rate_limit"), "{error}");
    let error = said(&["policy", "attach", "*", "log", "{size"], 78);
    assert!(error.contains("OPTIONS:1"), "{error}");
    let error = said(&["policy", "attach", "detect -> count", "log"], 78);
    assert!(error.contains("within one thread"), "{error}");
    let error = said(&["policy", "detach", "cap"], 66);
    assert!(error.contains("no policy cap"), "{error}");
    let nowhere = host.folder.path().join("none.sock");
    for words in [&["ls"][..], &["top", "--once"], &["policy", "ls"], &["policy", "set", "a", "{}"]] {
        let words = [&["net"], words, &["--socket", nowhere.to_str().unwrap()]].concat();
        let error = tidemill(&words).expect(69).stderr;
        assert!(error.contains("`tidemill net serve`"), "{error}");
    }
    // Nothing of this machine is meant when a worker is.
    tidemill(&["net", "ls", "--worker", "edge", "--socket", "net.sock"]).expect(2);
}

#[test]
fn rates_are_shown_once_or_line_by_line() {
    let host = Host::new();
    let shown = host.ask(&["top", "--once"]).expect(0).stdout;
    assert!(
        shown.contains("cameras -> detect") && shown.contains("1 234") && shown.contains(" /s"),
        "{shown}"
    );
    let error = host.ask(&["top"]).expect(2).stderr;
    assert!(error.contains("`--once`"), "{error}");
    let socket = host.folder.path().join("net.sock");
    let words = ["net", "top", "--output", "json", "--socket", socket.to_str().unwrap()];
    let mut child = command(&words).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for number in 0..2 {
        let line: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        let edges = line["edges"].as_array().unwrap();
        let found = edges.iter().find(|edge| edge["edge"]["to"] == "detect").unwrap();
        assert_eq!(found["records_per_second"].is_number(), number > 0, "{line}");
    }
    drop(lines);
    // Without a reader it ends by itself.
    assert!(child.wait().unwrap().success());
}

#[test]
fn kinds_are_listed_with_examples() {
    let kinds = tidemill(&["net", "policy", "kinds", "--output", "json"]).expect(0).json();
    let names: Vec<&str> =
        kinds["kinds"].as_array().unwrap().iter().map(|kind| kind["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"rate_limit") && names.contains(&"acl"), "{names:?}");
    assert_eq!(kinds["kinds"][0]["example"]["rps"], 5);
    let text = tidemill(&["net", "policy", "kinds"]).expect(0).stdout;
    assert!(text.contains("at most so many records per second"), "{text}");
}

#[test]
fn policies_for_workers_are_kept_by_the_controller_and_attached_by_agents() {
    let mut cluster = Cluster::without_workers(place(), &[]);
    cluster.start_worker("edge");
    cluster.until_joined(1);
    let ask = |words: &[&str]| cluster.ask(&[&["net"], words].concat());
    let has = |options: Value| {
        cluster.until("the service of the worker has it", |cluster| {
            let told = cluster.ask(&["net", "policy", "ls", "--worker", "edge", "--output", "json"]);
            let policies = &told.expect(0).json()["workers"][0]["report"]["listing"]["policies"];
            policies[0]["id"] == "cluster-rate_limit-1" && policies[0]["options"] == options
        });
    };
    let attach = ["policy", "attach", "cameras -> *", "rate_limit", "{rps: 5}", "--all-workers"];
    let attached = ask(&[&attach[..], &["--output", "json"]].concat()).expect(0).json();
    assert_eq!(attached["policy"]["policy"]["id"], "rate_limit-1", "{attached}");
    let shown = ask(&["policy", "ls", "--all-workers"]).expect(0).stdout;
    assert!(shown.contains("cluster-rate_limit-1"), "{shown}");
    has(json!({"rps": 5}));
    let error = ask(&["policy", "set", "rate_limit-1", "{rps: 8}", "--worker", "edge"]).expect(2).stderr;
    assert!(error.contains("all workers") && error.contains("`--all-workers`"), "{error}");
    let set = ask(&["policy", "set", "cluster-rate_limit-1", "{rps: 8}", "--all-workers"]).expect(0).stderr;
    assert!(set.contains("rate_limit-1 has other options"), "{set}");
    has(json!({"rps": 8}));
    ask(&["ls", "--worker", "edge"]).expect(0);
    ask(&["ls", "--worker", "hub"]).expect(66);
    ask(&["policy", "detach", "rate_limit-1", "--all-workers"]).expect(0);
    cluster.until("it is detached", |cluster| {
        cluster.ask(&["net", "policy", "ls", "--worker", "edge"]).expect(0).stdout.is_empty()
    });
    ask(&["policy", "detach", "rate_limit-1", "--all-workers"]).expect(66);
    let events = cluster.ask(&["events"]).expect(0).stdout;
    for what in ["attaches policy", "changes policy", "detaches policy"] {
        assert!(events.contains(what), "{events}");
    }
}
