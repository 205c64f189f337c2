//! Groups of programs through `tidemill net serve`: commands, several machines, another strategy under load.
use crate::command::command;
use serde_json::Value;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tidemill_collective::client::{Group, JoinOptions};
use tidemill_collective::element::{Element, Reduction};

/// Time after which a test gives up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// `tidemill net serve`, which ends with this.
pub(crate) struct Served {
    folder: tempfile::TempDir,
    process: Child,
}

impl Served {
    pub(crate) fn start(host: &str, more: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("net.sock").display().to_string();
        let mut arguments =
            vec!["net", "serve", "--socket", &socket, "--host", host, "--listen", "127.0.0.1:0"];
        arguments.extend(more);
        let log = std::fs::File::create(folder.path().join("log")).unwrap();
        let process = command(&arguments).stderr(log).spawn().unwrap();
        Self { folder, process }
    }

    /// The words of the service so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    /// Its address for other services, when it has one.
    pub(crate) fn address(&self) -> String {
        let listing = self.until("it serves", |listing| listing["hosts"][0]["address"].is_string());
        let address = listing["hosts"][0]["address"].as_str().unwrap();
        address.strip_prefix("tcp://").unwrap().to_owned()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("net.sock")
    }

    /// Ends it as the system does.
    pub(crate) fn end(&mut self) {
        let _ = Command::new("kill").args(["-TERM", &self.process.id().to_string()]).status();
        let _ = self.process.wait();
    }

    pub(crate) fn tidemill(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        let socket = self.socket().display().to_string();
        let output = command(&[&["net"], arguments, &["--socket", &socket]].concat()).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    }

    pub(crate) fn json(&self, arguments: &[&str]) -> Option<Value> {
        let (code, stdout, _) = self.tidemill(&[arguments, &["--output", "json"]].concat());
        (code == Some(0)).then(|| serde_json::from_str(&stdout).unwrap())
    }

    #[track_caller]
    #[expect(clippy::disallowed_methods, reason = "how long people wait is real time")]
    pub(crate) fn until(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let end = Instant::now() + PATIENCE;
        loop {
            let listing = self.json(&["collective", "ls"]).map(|all| all["listing"].clone());
            if let Some(listing) = listing.filter(&is_so) {
                return listing;
            }
            assert!(Instant::now() < end, "{what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn join(&self, group: &str, rank: u32, size: u32) -> Group {
        self.join_as(JoinOptions::new(group, rank, size))
    }

    pub(crate) fn join_as(&self, options: JoinOptions) -> Group {
        Group::join(&JoinOptions { service: self.socket(), deadline: PATIENCE, ..options }).unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // One that has ended is none any more.
        if matches!(self.process.try_wait(), Ok(None)) {
            self.end();
        }
    }
}

#[test]
fn programs_of_two_machines_compute_while_their_strategy_changes() {
    let hub = Served::start("hub", &[]);
    let listing = hub.until("it serves", |listing| listing["hosts"][0]["address"].is_string());
    let address = listing["hosts"][0]["address"].as_str().unwrap();
    let edge =
        Served::start("edge", &["--rack", "site", "--groups-at", address.strip_prefix("tcp://").unwrap()]);
    hub.until("both are registered", |listing| {
        listing["hosts"].as_array().is_some_and(|hosts| hosts.len() == 2)
    });

    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (rank, served) in [(0, &hub), (1, &edge), (2, &edge)] {
            let is_over = &is_over;
            scope.spawn(move || {
                let group = served.join("sums", rank, 3);
                let buffer = group.buffer(Element::I64, 5001).unwrap();
                loop {
                    buffer.write(0, &vec![i64::from(rank); 5000]).unwrap();
                    let last = i64::from(rank == 0 && is_over.load(Ordering::Acquire));
                    buffer.write(5000, &[last]).unwrap();
                    group.all_reduce(&buffer, Reduction::Sum).unwrap().wait().unwrap();
                    let result = buffer.to_vec::<i64>().unwrap();
                    assert!(result[..5000].iter().all(|value| *value == 3));
                    if result[5000] > 0 {
                        break;
                    }
                }
            });
        }
        let of_group = |listing: &Value, key: &str| listing["groups"][0][key].clone();
        edge.until("it runs", |listing| of_group(listing, "state") == "running");
        let (code, _, stderr) = edge.tidemill(&["collective", "strategy", "sums", "ring:2,0,1"]);
        assert_eq!(code, Some(0), "{stderr}");
        hub.until("it has changed", |listing| of_group(listing, "figures")["epoch"] == 2);
        let (code, shown, _) = hub.tidemill(&["collective", "show", "sums"]);
        assert_eq!(code, Some(0));
        assert!(shown.contains("ring 2 → 0 → 1") && shown.contains("host edge: ranks 1, 2"), "{shown}");
        let (code, _, stderr) = edge.tidemill(&["collective", "strategy", "sums", "tree:2-0,2-1"]);
        assert_eq!(code, Some(0), "{stderr}");
        hub.until("it goes by a tree", |listing| of_group(listing, "figures")["epoch"] == 3);
        let (_, shown, _) = hub.tidemill(&["collective", "show", "sums"]);
        assert!(shown.contains("all-reduces by trees\n    100 % 2-0 2-1\n"), "{shown}");
        assert!(shown.contains("this tree for all-reduces") && shown.contains("expected"), "{shown}");
        let (code, _, stderr) = edge.tidemill(&["collective", "strategy", "sums", "tree:2-0"]);
        assert!(code != Some(0) && stderr.contains("does not connect each member once"), "{stderr}");
        is_over.store(true, Ordering::Release);
    });
    hub.until("nothing is left", |listing| listing["groups"].as_array().is_some_and(Vec::is_empty));

    let (code, _, stderr) = hub.tidemill(&["collective", "show", "sums"]);
    assert_ne!(code, Some(0));
    assert!(stderr.contains("no group sums") && stderr.contains("collective ls"), "{stderr}");
    let measured = hub
        .json(&["bench", "allreduce", "--ranks", "3", "--bytes", "64KiB", "--seconds", "100ms"])
        .expect("it measures");
    let size = &measured["sizes"][0];
    assert_eq!((&size["hosts"], &size["bytes"]), (&2.into(), &65_536.into()));
    assert!(
        size["bus_bandwidth"].as_f64() > Some(0.0) && size["copy_bandwidth"].as_f64() > Some(0.0),
        "{size}"
    );
}

#[test]
fn an_address_that_others_cannot_dial_is_refused_with_the_fix() {
    for (arguments, text) in [
        (["--listen", "0.0.0.0:7470"], "10.0.0.1:7470"),
        (["--listen", "7470"], "HOST:PORT"),
        (["--group-path", "spine0=1-2"], "1Gbps"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("net.sock").display().to_string();
        let output =
            command(&[&["net", "serve", "--socket", &socket], &arguments[..]].concat()).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && stderr.contains(text), "{stderr}");
    }
}

#[test]
fn metrics_of_groups_are_served_and_the_last_minute_is_shown() {
    let served = Served::start("alone", &["--metrics", "127.0.0.1:0"]);
    served.until("it serves", |listing| listing["hosts"][0]["address"].is_string());
    let log = served.log();
    let address = log.split("metrics at http://").nth(1).and_then(|rest| rest.split("/metrics").next());
    let address = address.unwrap_or_else(|| panic!("{log}")).to_owned();
    let group = served.join("measured", 0, 1);
    let buffer = group.buffer(Element::I64, 100).unwrap();
    for _ in 0..3 {
        group.all_reduce(&buffer, Reduction::Sum).unwrap().wait().unwrap();
    }
    group.broadcast(&buffer, 0).unwrap().wait().unwrap();
    let answer = crate::live::get(&address, "/metrics");
    for expected in [
        ("tidemill_group_operations_total", "operation=\"all-reduce\"} 3"),
        ("tidemill_group_operations_total", "operation=\"broadcast\"} 1"),
        ("tidemill_group_bytes_total", "operation=\"all-reduce\"} 2400"),
        ("tidemill_group_lost_ranks_total{group=\"measured\"", "} 0"),
        ("tidemill_group_stalled_seconds_total", "} 0"),
    ] {
        let is_meant = |line: &str| line.starts_with(expected.0) && line.contains(expected.1);
        assert!(answer.lines().any(is_meant), "{expected:?} in {answer}");
    }
    let text = answer.split("\r\n\r\n").nth(1).unwrap();
    assert_eq!(crate::metrics_inventory::unknown(text), Vec::<String>::new());
    served.until("its figures have come", |listing| listing["groups"][0]["minute"]["operations"] == 4);
    let (_, shown, _) = served.tidemill(&["collective", "show", "measured"]);
    assert!(shown.contains("4 operations") && shown.contains("    in the last "), "{shown}");
}
