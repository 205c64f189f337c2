//! Two controllers that share a PostgreSQL server: one leads, the other takes over; through the built binary.
#[path = "../../cluster/postgres/tests/server/mod.rs"]
mod server;

use crate::cluster::{slow_down, undisturbed};
use crate::command::{Outcome, Place, command, free_port};
use crate::processes::{children, place, same};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use server::Server;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::process::{Child, Output};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

type Lines = Arc<Mutex<Vec<String>>>;

/// A controller, and its output.
struct One {
    name: &'static str,
    ports: [String; 2],
    process: Option<Child>,
    lines: Lines,
}

impl One {
    fn new(name: &'static str) -> Self {
        let free = || format!("127.0.0.1:{}", free_port());
        Self { name, ports: [free(), free()], process: None, lines: Lines::default() }
    }

    fn start(&mut self, place: &Place, server: &Server) {
        let (state, [listen, hosts]) = (place.argument(self.name), &self.ports);
        let options = [
            "controller",
            "--state",
            &state,
            "--listen",
            listen,
            "--listen-hosts",
            hosts,
            "--name",
            "localhost",
            // No worker is lost here, not even one whose heartbeats a busy machine delays.
            "--detection",
            "30s",
        ];
        let mut child = command(&options).env("TIDEMILL_STORE", server.address()).spawn().unwrap();
        let (errors, lines) = (child.stderr.take().unwrap(), Arc::clone(&self.lines));
        std::thread::spawn(move || {
            for line in BufReader::new(errors).lines().map_while(Result::ok) {
                lines.lock().unwrap().push(line);
            }
        });
        self.process = Some(child);
    }

    fn said(&self) -> String {
        self.lines.lock().unwrap().join("\n")
    }

    /// Waits until it has printed this text `times` times.
    #[track_caller]
    fn until_said(&self, text: &str, times: usize) {
        for _ in 0..600 {
            if self.said().matches(text).count() >= times {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        panic!("{} did not say `{text}` {times} times within a minute:\n{}", self.name, self.said());
    }

    fn signal(&self, signal: Signal) {
        let process = self.process.as_ref().unwrap().id();
        kill_process(Pid::from_raw(process.try_into().unwrap()).unwrap(), signal).unwrap();
    }

    fn kill(&mut self) {
        let mut process = self.process.take().unwrap();
        process.kill().unwrap();
        process.wait().unwrap();
    }

    fn port(&self) -> &str {
        self.ports[0].rsplit_once(':').unwrap().1
    }
}

/// Files of sinks by their names.
type Files = Vec<(&'static str, Vec<u8>)>;

struct Controllers {
    place: Place,
    server: Server,
    a: One,
    b: One,
    address: String,
    workers: Vec<Child>,
    /// Outputs of one process, computed meanwhile.
    undisturbed: Option<JoinHandle<Files>>,
}

impl Drop for Controllers {
    fn drop(&mut self) {
        let controllers = [self.a.process.take(), self.b.process.take()];
        for mut child in self.workers.drain(..).chain(controllers.into_iter().flatten()) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Controllers {
    /// `a` leads, `b` stands by, and three workers have joined.
    fn start() -> Option<Self> {
        let server = Server::start()?;
        let place = place();
        slow_down(&place);
        let (mut a, mut b) = (One::new("a"), One::new("b"));
        a.start(&place, &server);
        a.until_said("controller at ", 1);
        // Without the authority's key the other one is not accepted.
        b.start(&place, &server);
        b.until_said("copy `identities/authority.pem`", 1);
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(place.path("b/identities")).unwrap();
        std::fs::copy(place.path("a/identities/authority.pem"), place.path("b/identities/authority.pem"))
            .unwrap();
        let private = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(place.path("b/identities/authority.pem"), private).unwrap();
        b.until_said("stands by at ", 1);
        let first = std::fs::read_to_string(place.path("a/address")).unwrap();
        let (_, fingerprint) = first.trim().rsplit_once('/').unwrap();
        let address = format!("tidemill://localhost:{},localhost:{}/{fingerprint}", a.port(), b.port());
        let undisturbed = Some(std::thread::spawn(undisturbed));
        let mut all = Self { place, server, a, b, address, workers: Vec::new(), undisturbed };
        let token = all.ask(&["token", "--uses", "3"]).expect(0).stdout;
        all.place.write("join.token", token);
        for name in ["edge", "hub", "cloud"] {
            let (state, token) = (all.place.argument(&format!("w-{name}")), all.place.argument("join.token"));
            let options = [
                "worker",
                "--join",
                &all.address,
                "--state",
                &state,
                "--token-file",
                &token,
                "--name",
                name,
                "--tier",
                name,
                "--quiet",
            ];
            all.workers.push(command(&options).spawn().unwrap());
        }
        all.until("three workers are there", |all| {
            let found = all.ask(&["workers", "--output", "json"]).expect(0).json();
            found["workers"].as_array().unwrap().len() == 3
        });
        Some(all)
    }

    fn ask(&self, arguments: &[&str]) -> Outcome {
        self.ask_at(&self.address, arguments)
    }

    fn ask_at(&self, address: &str, arguments: &[&str]) -> Outcome {
        let token = std::fs::read_to_string(self.place.path("a/admin.token")).unwrap();
        let mut command = command(arguments);
        command.env("TIDEMILL_CONTROLLER", address).env("TIDEMILL_TOKEN", token.trim());
        let Output { status, stdout, stderr } = command.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Outcome { code: status.code(), stdout: text(stdout), stderr: text(stderr) }
    }

    fn run(&self) -> Value {
        let answer = self.ask(&["status", "spread", "--output", "json"]);
        if answer.code == Some(0) { answer.json()["run"].clone() } else { Value::Null }
    }

    #[track_caller]
    fn until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        for _ in 0..600 {
            if is_so(self) {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        panic!("{what}: not within a minute\n{}", self.told());
    }

    /// Output of the controllers, for the message of a failed test.
    fn told(&self) -> String {
        let told = self.ask(&["events"]).stdout + &self.ask(&["logs", "spread"]).stdout;
        format!("{told}\na:\n{}\nb:\n{}", self.a.said(), self.b.said())
    }

    #[track_caller]
    fn submit(&self) {
        let (workflow, plan) = (self.place.argument("workflow.yaml"), self.place.argument("plan.yaml"));
        self.ask(&["submit", &workflow, "--plan", &plan]).expect(0);
    }

    #[track_caller]
    fn until_arrived(&self, records: u64) {
        self.until(&format!("{records} records"), |all| {
            let run = all.run();
            run["arrived"].as_u64().is_some_and(|arrived| arrived >= records) || run["state"] == "complete"
        });
    }

    fn hosts(&self) -> Vec<u32> {
        self.workers.iter().flat_map(|agent| children(agent.id())).collect()
    }

    /// The run ends, and its outputs are those of one undisturbed process.
    #[track_caller]
    fn ends_well(&mut self, leader: &str) {
        self.until("it is complete", |all| all.run()["state"] == "complete");
        let files = [
            ("out/pairs.jsonl", "w-hub/runs/spread/hub".to_owned()),
            ("out/counted.csv", "w-cloud/runs/spread/cloud".to_owned()),
            ("out/dead.jsonl", format!("{leader}/runs/spread/files")),
        ];
        let read = |folder: &str, file: &str| {
            let path = self.place.path(folder).join(file);
            std::fs::read(&path)
                .unwrap_or_else(|error| panic!("{}: {error}\n{}", path.display(), self.told()))
        };
        let found: Vec<_> = files.iter().map(|(file, folder)| (*file, read(folder, file))).collect();
        same(&found, &self.undisturbed.take().unwrap().join().unwrap());
    }
}

/// A run whose leading controller was killed, and continues under the other one; its processes stay.
fn taken_over() -> Option<Controllers> {
    let mut all = Controllers::start()?;
    // The standby redirects requests to the leader.
    let of_b = std::fs::read_to_string(all.place.path("b/address")).unwrap();
    all.ask_at(of_b.trim(), &["workers"]).expect(0);
    let health = all.ask(&["doctor", "--cluster"]).stdout;
    let status = all.ask(&["status"]).expect(0).stdout;
    assert!(status.contains("leads, in term 1") && status.contains("3 of 3 workers are alive"), "{status}");
    assert!(health.contains("term 1") && health.contains("1 stands by"), "{health}");
    all.submit();
    all.until_arrived(900);
    let before = all.hosts();
    assert_eq!(before.len(), 3);
    all.a.kill();
    all.b.until_said("leads, in term 2", 1);
    all.until_arrived(1800);
    assert!(
        all.run()["state"] == "complete" || all.hosts() == before,
        "the processes of the run were started again\n{}",
        all.told()
    );
    Some(all)
}

#[test]
fn another_controller_takes_over_when_the_one_that_leads_is_killed() {
    let Some(mut all) = taken_over() else { return };
    all.ends_well("b");
    let told = all.ask(&["events"]).expect(0).stdout;
    assert!(told.contains("run spread is complete") && told.contains("worker edge has joined"), "{told}");
}

/// Back again, to one that starts with its old folder.
#[test]
#[ignore = "long: make test-long"]
fn a_controller_that_was_killed_takes_over_again() {
    let Some(mut all) = taken_over() else { return };
    let mut a = std::mem::replace(&mut all.a, One::new("a"));
    a.start(&all.place, &all.server);
    a.until_said("stands by at ", 1);
    all.b.kill();
    a.until_said("leads, in term 3", 1);
    all.a = a;
    all.until("it is complete", |all| all.run()["state"] == "complete");
    // On a slow machine the run may have ended before the second kill.
    let has_ended_here = all.place.path("a/runs/spread/files/out/dead.jsonl").exists();
    all.ends_well(if has_ended_here { "a" } else { "b" });
    let told = all.ask(&["events"]).expect(0).stdout;
    assert!(told.contains("run spread is complete") && told.contains("worker edge has joined"), "{told}");
    let logs = all.ask(&["logs", "spread"]).expect(0).stdout;
    assert!(logs.contains("submits run spread"), "what was said under the first leader is gone: {logs}");
    all.ask(&["remove", "spread", "--yes"]);
}

#[test]
#[ignore = "long: make test-long"]
fn a_controller_that_stood_still_does_not_lead_any_more() {
    let Some(mut all) = Controllers::start() else { return };
    all.submit();
    all.until_arrived(900);
    all.a.signal(Signal::STOP);
    all.b.until_said("leads, in term 2", 1);
    all.until_arrived(1800);
    // It wakes up, assumes that it leads, and notices that it does not.
    all.a.signal(Signal::CONT);
    all.a.until_said("no longer leads", 1);
    all.a.until_said("stands by at ", 1);
    all.ends_well("b");
    assert!(
        !all.a.said().contains("term 3") && !all.b.said().contains("no longer leads"),
        "{}",
        all.b.said()
    );
    all.b.kill();
    all.a.until_said("leads, in term 3", 1);
    all.until("it knows what the other one did", |all| all.run()["state"] == "complete");
}

#[test]
#[ignore = "long: make test-long"]
fn a_restart_of_the_server_is_survived() {
    let Some(mut all) = Controllers::start() else { return };
    all.submit();
    all.until_arrived(900);
    all.server.down();
    all.a.until_said("no longer leads", 1);
    all.server.up();
    all.until("somebody leads again", |all| {
        all.a.said().matches("leads, in term").count() + all.b.said().matches("leads, in term").count() >= 2
    });
    let leader = if all.b.said().contains("leads, in term") { "b" } else { "a" };
    all.ends_well(leader);
}

#[test]
fn what_cannot_be_shared_is_told() {
    let place = Place::empty("spread");
    let state = place.argument("controller");
    let told = command(&["controller", "--state", &state, "--store", "postgres://tidemill@db/tidemill"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&told.stderr);
    assert!(told.status.code() == Some(2) && text.contains("not declared safe"), "{:?} {text}", told.status);
    place.write("store", "postgres://tidemill@127.0.0.1:9/tidemill\n");
    let options =
        ["controller", "--state", &state, "--listen", "127.0.0.1:0", "--listen-hosts", "127.0.0.1:0"];
    let told =
        command(&[&options[..], &["--store-file", &place.argument("store")]].concat()).output().unwrap();
    let text = String::from_utf8_lossy(&told.stderr);
    assert!(told.status.code() == Some(69) && text.contains("onnection refused"), "{:?} {text}", told.status);
}
