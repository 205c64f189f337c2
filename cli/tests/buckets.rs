//! Runs that keep their state in a bucket: killed, in use, with a service that fails; through the built binary.
#[path = "../../storage/bucket/tests/server/mod.rs"]
pub(crate) mod server;

use crate::command::{Outcome, Place, command};
use crate::states::{outputs, place, same, slow_place, undisturbed};
use serde_json::Value;
use server::{Mood, Server};
use std::process::{Child, Command};
use std::time::Duration;
use tidemill_random::Random;

pub(crate) const STATE: &str = "s3://abc/runs/durable";

fn of_server(server: &Server, arguments: &[&str]) -> Command {
    let mut command = command(arguments);
    command.envs(server.variables());
    command
}

pub(crate) fn tidemill(server: &Server, arguments: &[&str]) -> Outcome {
    let output = of_server(server, arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let outcome =
        Outcome { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) };
    assert!(!outcome.stderr.contains("of-test"), "a secret: {}", outcome.stderr);
    outcome
}

pub(crate) fn start(server: &Server, place: &Place) -> Child {
    let workflow = place.argument("workflow.yaml");
    let arguments = ["run", &workflow, "--state", STATE, "--checkpoint-interval", "50ms", "--quiet"];
    of_server(server, &arguments).spawn().unwrap()
}

/// Number of the last checkpoint.
fn checkpoint(server: &Server) -> u64 {
    let document = server.object("runs/durable/manifest.json");
    let document: Value = document.map_or(Value::Null, |bytes| serde_json::from_slice(&bytes).unwrap());
    document["state"]["manifest"]["checkpoint"].as_u64().unwrap_or(0)
}

/// Waits for `further` checkpoints; false when the run was complete before.
pub(crate) fn waits(server: &Server, child: &mut Child, further: u64) -> bool {
    let (begun, mut looks) = (checkpoint(server), 0);
    while checkpoint(server) < begun + further {
        if child.try_wait().unwrap().is_some() {
            return false;
        }
        looks += 1;
        assert!(looks < 20_000, "no checkpoint comes");
        std::thread::sleep(Duration::from_millis(2));
    }
    true
}

pub(crate) fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_run_with_its_state_in_a_bucket_is_continued_after_kills_and_failures() {
    let (server, place, mut random, mut kills) = (Server::start(), place(), Random::of_seed(11), 0);
    loop {
        let mut child = start(&server, &place);
        let is_there = waits(&server, &mut child, random.below(5) as u64);
        // A short outage of the service has no effect.
        server.set(Mood::Fails(random.below(6)));
        std::thread::sleep(Duration::from_millis(random.below(60) as u64));
        if !is_there || child.try_wait().unwrap().is_some() {
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            break;
        }
        kill(child);
        kills += 1;
    }
    assert!(kills >= 3, "{kills} kills");
    same(&outputs(&place), &undisturbed());
    assert_eq!(server.names(), ["runs/durable/manifest.json"]);
    let printed =
        tidemill(&server, &["run", &place.argument("workflow.yaml"), "--state", STATE]).expect(0).stderr;
    assert!(printed.contains("complete") && printed.contains(&format!("state reset {STATE}")), "{printed}");
}

#[test]
fn two_runs_do_not_share_a_bucket() {
    let (server, place) = (Server::start(), slow_place());
    let workflow = place.argument("workflow.yaml");
    let none = tidemill(&server, &["state", "show", STATE]).expect(66).stderr;
    assert!(none.contains("no state"), "{none}");
    let mut child = start(&server, &place);
    assert!(waits(&server, &mut child, 2));
    let refused = tidemill(&server, &["run", &workflow, "--state", STATE]).expect(69).stderr;
    assert!(refused.contains(&format!("in use by process {}", child.id())), "{refused}");
    let refused = tidemill(&server, &["state", "reset", STATE]).expect(69).stderr;
    assert!(refused.contains("in use"), "{refused}");
    let shown = tidemill(&server, &["state", "show", STATE, "--output", "json"]).expect(0).json();
    assert_eq!(shown["state"]["complete"], false);
    kill(child);
    tidemill(&server, &["state", "diff", STATE, &workflow]).expect(0);
    // The lease of a killed process of this machine blocks no other.
    tidemill(&server, &["state", "reset", STATE]).expect(0);
    assert!(tidemill(&server, &["state", "show", STATE]).expect(66).stderr.contains("no state"));
}

#[test]
fn a_bucket_that_cannot_be_used_is_told_before_anything_is_touched() {
    let (server, place) = (Server::start(), place());
    let workflow = place.argument("workflow.yaml");
    server.set(Mood::Denies);
    let printed = tidemill(&server, &["run", &workflow, "--state", STATE]).expect(78).stderr;
    assert!(printed.contains("403 AccessDenied") && printed.contains("AWS_ACCESS_KEY_ID"), "{printed}");
    server.set(Mood::Serves);
    let printed = tidemill(&server, &["run", &workflow, "--state", "s3://missing/x"]).expect(78).stderr;
    assert!(printed.contains("NoSuchBucket"), "{printed}");
    let printed = tidemill(&server, &["run", &workflow, "--state", "s3://key:word@abc/x"]).expect(2).stderr;
    assert!(printed.contains("AWS_SECRET_ACCESS_KEY"), "{printed}");
    assert!(!place.path("out").exists());
}

#[test]
#[ignore = "long: make test-long"]
fn a_service_that_is_away_for_a_minute_fails_no_run() {
    let (server, place) = (Server::start(), place());
    let mut child = start(&server, &place);
    assert!(waits(&server, &mut child, 5));
    server.set(Mood::FailsAfter(0));
    std::thread::sleep(Duration::from_secs(60));
    assert!(child.try_wait().unwrap().is_none());
    server.set(Mood::Serves);
    let output = child.wait_with_output().unwrap();
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && printed.contains("serves requests again"), "{printed}");
    same(&outputs(&place), &undisturbed());
}
