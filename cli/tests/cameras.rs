//! Live sources of a running workflow from outside: `tidemill source`, and no secret in anything that is shown.
use crate::command::{Outcome, Place, command, tidemill};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::Read;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Stdio};

const SECRETS: [&str; 4] = ["viewer", "S3cretOne", "operator", "S3cretTwo"];

/// A workflow of one camera at a port without a listener.
fn place(port: u16) -> Place {
    let place = Place::empty("cameras");
    place.write(
        "workflow.yaml",
        format!(
            "version: 1
name: gates
sources:
  - id: cameras
    kind: rtsp
    key: camera
    options: {{cameras: {{gate: 'rtsp://viewer:S3cretOne@127.0.0.1:{port}/one'}}}}
operators:
  - {{id: counted, kind: map, input: cameras, options: {{columns: {{camera: camera, frame: frame}}}}}}
sinks: [{{id: out, kind: jsonl, input: counted, options: {{path: out.jsonl}}}}]
"
        ),
    );
    place
}

struct Running(Child);

impl Running {
    fn start(place: &Place) -> Self {
        let mut command = command(&["run", &place.argument("workflow.yaml"), "--log-level", "debug"]);
        Self(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    fn process(&self) -> String {
        self.0.id().to_string()
    }

    /// The feeds of its source.
    fn feeds(&self) -> Option<Vec<Value>> {
        let listed = tidemill(&["source", "ls", "--output", "json"]).expect(0);
        let listed: Value = serde_json::from_str(&listed.stdout).unwrap();
        assert_holds_no_secret(&listed.to_string());
        let runs = listed["runs"].as_array().unwrap();
        let run = runs.iter().find(|run| run["run"] == self.process())?;
        assert_eq!(run["workflow"], "gates");
        Some(run["sources"]["cameras"].as_array()?.clone())
    }

    fn state_of(&self, feed: &str) -> Option<String> {
        let feeds = self.feeds()?;
        let feed = feeds.iter().find(|known| known["feed"] == feed)?;
        Some(feed["state"].as_str().unwrap().to_owned())
    }

    fn order(&self, verb: &str, arguments: &[&str]) -> Outcome {
        let process = self.process();
        let all = [&["source", verb, "cameras"], arguments, &["--process", &process]].concat();
        tidemill(&all)
    }

    /// Interrupts it; returns its exit code and all that it has printed.
    fn interrupted(mut self) -> (Option<i32>, String) {
        let process = Pid::from_raw(self.0.id() as i32).unwrap();
        kill_process(process, Signal::INT).unwrap();
        let mut text = String::new();
        self.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        self.0.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        (self.0.wait().unwrap().code(), text)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn until(what: impl Fn() -> bool) {
    for _ in 0..600 {
        if what() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    panic!("it does not come to pass");
}

fn assert_holds_no_secret(text: &str) {
    for secret in SECRETS {
        assert!(!text.contains(secret), "`{secret}` in {text}");
    }
}

#[test]
fn cameras_are_added_paused_and_removed_while_a_workflow_runs() {
    // Nobody listens there once it is dropped.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let place = place(port);
    let run = Running::start(&place);
    until(|| run.state_of("gate").as_deref() == Some("connecting"));
    let address = format!("rtsp://operator:S3cretTwo@127.0.0.1:{port}/two");
    let added = run.order("add", &["dock", &address]).expect(0);
    assert_holds_no_secret(&(added.stdout.clone() + &added.stderr));
    assert!(added.stdout.contains("dock") && added.stdout.contains("gate"), "{}", added.stdout);
    assert_eq!(run.state_of("dock").as_deref(), Some("connecting"));
    run.order("pause", &["dock"]).expect(0);
    until(|| run.state_of("dock").as_deref() == Some("paused"));
    run.order("resume", &["dock"]).expect(0);
    until(|| run.state_of("dock").as_deref() == Some("connecting"));
    run.order("remove", &["dock"]).expect(0);
    until(|| run.state_of("dock").is_none());

    let refused = run.order("add", &["gate", &address]).expect(1);
    assert!(refused.stderr.contains("gate"), "{}", refused.stderr);
    assert_holds_no_secret(&refused.stderr);
    let refused = run.order("pause", &["nobody"]).expect(1);
    assert!(refused.stderr.contains("nobody"), "{}", refused.stderr);
    let refused = run.order("add", &["yard", "rtsp://operator:S3cretTwo@[::1/two"]).expect(1);
    assert_holds_no_secret(&refused.stderr);

    let (code, printed) = run.interrupted();
    assert_eq!(code, Some(130), "{printed}");
    assert_holds_no_secret(&printed);
}

/// Each frame that a run has read is in the results once, whenever its process is killed.
#[test]
fn a_journal_keeps_the_frames_of_a_camera_over_kills() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let Ok(real) = tidemill_operators::video::program::find(&root) else {
        eprintln!("skipped: there is no ffmpeg");
        return;
    };
    let place = Place::empty("camera-journal");
    let (device, script) = (place.path("video0"), place.path("device.sh"));
    place.write("device.sh", include_str!("../../operators/live/tests/device.sh"));
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    place.write("video0", "");
    place.write(
        "workflow.yaml",
        format!(
            "version: 1
name: desks
sources:
  - {{id: desk, kind: v4l2, journal: {{}}, options: {{device: {}, scale: 64x48, idle: 100ms}}}}
operators:
  - {{id: counted, kind: map, input: desk, options: {{columns: {{camera: camera, frame: frame}}}}}}
sinks: [{{id: out, kind: jsonl, input: counted, options: {{path: out.jsonl}}}}]
",
            device.display()
        ),
    );
    let frames = || {
        let text = std::fs::read_to_string(place.path("out.jsonl")).unwrap_or_default();
        let whole = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        whole.map(|row| row["frame"].as_i64().unwrap()).collect::<Vec<_>>()
    };
    let start = || {
        let (workflow, state) = (place.argument("workflow.yaml"), place.argument("state"));
        let mut command = command(&["run", &workflow, "--state", &state]);
        command.env("TIDEMILL_FFMPEG", &script).env("REAL", &real);
        Running(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    };
    for _ in 0..2 {
        let run = start();
        let before = frames().len();
        until(|| frames().len() >= before + 20);
        // It is killed: `drop` sends SIGKILL.
        drop(run);
    }
    let run = start();
    let before = frames().len();
    until(|| frames().len() >= before + 20);
    let (code, printed) = run.interrupted();
    assert_eq!(code, Some(130), "{printed}");
    let frames = frames();
    // Numbers begin again with each process: what is written twice would be another beginning.
    let begins = frames.windows(2).filter(|two| two[1] <= two[0]).count();
    assert_eq!(begins, 2, "{frames:?}");
    assert!(frames.len() >= 60);
}

#[test]
fn a_source_that_no_run_has_is_named() {
    let refused = tidemill(&["source", "pause", "no_such_source", "gate"]).expect(66);
    assert!(
        refused.stderr.contains("no run of this machine has a live source `no_such_source`"),
        "{}",
        refused.stderr
    );
    let refused = tidemill(&["source", "pause", "cameras", "gate", "--process", "1"]).expect(66);
    assert!(refused.stderr.contains("tidemill source ls"), "{}", refused.stderr);
}
