//! The transport service of a machine under running workflows: policies, its death, its upgrade.
use crate::cluster::{Cluster, slow_down, undisturbed};
use crate::command::{Place, command, tidemill};
use crate::processes::{outputs, place, same};
use serde_json::json;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::Duration;
use tidemill_net::edge_name::EdgePattern;
use tidemill_net::protocol::{Answer, EdgeView, Listing, PolicySpec, Request, Route, Side};
use tidemill_net::{Client, ClientError};

/// Looks after which a test gives up, about half a minute.
const LOOKS: usize = 1500;

/// `tidemill net serve`, which ends with this.
struct Served {
    folder: tempfile::TempDir,
    process: Child,
}

impl Served {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("net.sock");
        let process = command(&["net", "serve", "--socket", socket.to_str().unwrap()]).spawn().unwrap();
        let served = Self { folder, process };
        served.until("it serves", |_| true);
        served
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("net.sock")
    }

    fn ask(&self, request: &Request) -> Result<Answer, ClientError> {
        Client::connect(&self.socket(), 0)?.ask(request)
    }

    fn listing(&self) -> Option<Listing> {
        match self.ask(&Request::List).ok()? {
            Answer::Listing(listing) => Some(*listing),
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn until(&self, what: &str, is_so: impl Fn(&Listing) -> bool) -> Listing {
        let mut last = None;
        for _ in 0..LOOKS {
            last = self.listing();
            if let Some(listing) = last.take_if(|listing| is_so(listing)) {
                return listing;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("{what}: {last:?}");
    }

    fn attach(&self, id: &str, edges: &str, kind: &str, options: serde_json::Value) {
        let edges = EdgePattern::parse(edges).unwrap();
        let spec = PolicySpec { id: id.into(), edges, side: Side::Sender, kind: kind.into(), options };
        self.ask(&Request::Attach(Box::new(spec))).unwrap();
    }

    /// The process that serves now.
    fn child(&self) -> u32 {
        self.until("it serves", |_| true).process
    }

    fn run(&self, place: &Place) -> Running {
        let mut run = command(&[
            "run",
            &place.argument("workflow.yaml"),
            "--processes",
            "--quiet",
            "--plan",
            &place.argument("plan.yaml"),
        ]);
        Running(Some(run.env(tidemill_net::client::SOCKET_VARIABLE, self.socket()).spawn().unwrap()))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let child = self.listing().map(|listing| listing.process);
        Command::new("kill").args(["-TERM", &self.process.id().to_string()]).status().unwrap();
        let ended = self.process.wait().unwrap();
        if !std::thread::panicking() {
            assert_eq!(ended.code(), Some(130), "it ends in order");
            if let Some(process) = child {
                assert!(!PathBuf::from(format!("/proc/{process}")).exists(), "its process is left behind");
            }
            assert!(!self.socket().exists(), "its socket is left behind");
        }
    }
}

fn write_program(path: &std::path::Path, text: &str) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// Edges between slots all go through the service.
fn all_through(listing: &Listing) -> bool {
    let outer = |edge: &&EdgeView| edge.route != Route::Inner;
    let mut edges = listing.edges.iter().filter(outer);
    listing.edges.len() > 3 && edges.all(|edge| edge.route == Route::Service)
}

/// A run, which a test that fails does not leave behind.
struct Running(Option<Child>);

impl Running {
    fn ends_well(mut self) {
        let output = self.0.take().unwrap().wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(run) = &mut self.0 {
            let _ = run.kill();
            let _ = run.wait();
        }
    }
}

#[test]
fn policies_of_the_workflow_hold_in_one_process_and_in_several() {
    let expected = {
        let place = place();
        place.change("workflow.yaml", "value % 7 != 3", "value % 7 != 3 && key != 'k03'");
        tidemill(&["run", &place.argument("workflow.yaml"), "--rate", "max", "--quiet"]).expect(0);
        outputs(&place)
    };
    let with_policies = || {
        let place = place();
        let policies = "policies:\n  - {edge: left -> some, acl: {deny_if: \"key == 'k03'\"}}\n  \
                        - {edge: \"* -> pair\", side: receiver, compress: {}}\nrun:";
        place.change("workflow.yaml", "run:", policies);
        place
    };
    let one = with_policies();
    tidemill(&["run", &one.argument("workflow.yaml"), "--rate", "max", "--quiet"]).expect(0);
    // Rows that are denied have no letters either.
    let compare = |found: &Place| same(&outputs(found)[..2], &expected[..2]);
    compare(&one);
    let several = with_policies();
    let plan = several.argument("plan.yaml");
    tidemill(&["run", &several.argument("workflow.yaml"), "--processes", "--quiet", "--plan", &plan])
        .expect(0);
    compare(&several);
}

#[test]
fn a_policy_that_is_wrong_is_reported_before_the_run() {
    let place = place();
    let policies = "policies:\n  - {edge: left -> some, acl: {deny_if: \"kye == 'k03'\"}}\nrun:";
    place.change("workflow.yaml", "run:", policies);
    let outcome = tidemill(&["validate", &place.argument("workflow.yaml")]).expect(78);
    assert!(outcome.stderr.contains("E0217") && outcome.stderr.contains("kye"), "{}", outcome.stderr);
    place.change("workflow.yaml", "acl: {deny_if: \"kye == 'k03'\"}", "acls: {}");
    let outcome = tidemill(&["run", &place.argument("workflow.yaml")]).expect(78);
    assert!(outcome.stderr.contains("there is no policy `acls`"), "{}", outcome.stderr);
}

#[test]
fn edges_move_while_the_service_dies_and_is_replaced_and_the_output_is_the_same() {
    let served = Served::start();
    let place = place();
    slow_down(&place);
    place.change("workflow.yaml", "1000/s", "200/s");
    place.change("workflow.yaml", "500/s", "100/s");
    let run = served.run(&place);
    served.until("all processes register", |listing| listing.programs == 3);
    served.attach("all", "*", "none", json!({}));
    served.until("all edges go through it", all_through);
    let first = served.child();
    Command::new("kill").args(["-KILL", &first.to_string()]).status().unwrap();
    served.until("all edges go through the next one", |listing| {
        listing.process != first && listing.policies.len() == 1 && all_through(listing)
    });
    // Versions that do not serve change nothing, also one that has taken over already.
    let second = served.child();
    let dies_soon = served.folder.path().join("dies-soon");
    let own = env!("CARGO_BIN_EXE_tidemill");
    write_program(&dies_soon, &format!("#!/bin/sh\nexec timeout -s KILL 1.5 {own} \"$@\"\n"));
    for program in ["/bin/false".into(), dies_soon] {
        let failed = served.ask(&Request::Upgrade { program: program.clone() });
        let name = program.display().to_string();
        assert!(matches!(&failed, Err(ClientError::Refused(reason)) if reason.contains(&name)), "{failed:?}");
        let listing = served.until("the version before serves", all_through);
        assert_eq!(listing.process, second);
    }
    served.ask(&Request::Upgrade { program: env!("CARGO_BIN_EXE_tidemill").into() }).unwrap();
    let listing = served.until("all edges go through the new version", all_through);
    assert_ne!(listing.process, second);
    for _ in 0..5 {
        served.ask(&Request::Detach { id: "all".into() }).unwrap();
        served.until("all are direct", |listing| {
            listing.edges.iter().all(|edge| matches!(edge.route, Route::Direct | Route::Inner))
        });
        served.attach("all", "*", "rate_limit", json!({"rps": 1e6}));
        served.until("all go through it again", all_through);
    }
    served.until("records go through it", |listing| {
        listing.edges.iter().any(|edge| edge.records > 0) && listing.policies[0].counts.frames > 0
    });
    run.ends_well();
    same(&sorted(outputs(&place)), &sorted(undisturbed()));
}

/// Outputs with the letters in one order: those of two sources come as these are read, and here they are read slowly.
fn sorted(mut outputs: Vec<(&'static str, Vec<u8>)>) -> Vec<(&'static str, Vec<u8>)> {
    let letters = &mut outputs[2].1;
    let mut lines: Vec<&[u8]> = letters.split_inclusive(|byte| *byte == b'\n').collect();
    lines.sort_unstable();
    *letters = lines.concat();
    outputs
}

/// The routes of edges between threads, as all workers report them.
fn routes(cluster: &Cluster) -> Vec<String> {
    let found = cluster.ask(&["net", "ls", "--all-workers", "--output", "json"]).expect(0).json();
    let workers = found["workers"].as_array().unwrap().clone();
    let of = |worker: &serde_json::Value| worker["report"]["listing"]["edges"].as_array().cloned();
    let edges: Vec<_> = workers.iter().filter_map(of).flatten().collect();
    let routes = edges.iter().map(|edge| edge["route"].as_str().unwrap().to_owned());
    routes.filter(|route| route != "inner").collect()
}

/// The processes of the workers' services.
fn services(cluster: &Cluster) -> Vec<u32> {
    let agents: Vec<u32> = cluster.workers.iter().map(|(_, agent)| agent.id()).collect();
    let of_agent = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1)?.parse().ok());
        let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        parent.is_some_and(|parent| agents.contains(&parent)) && line.contains("net-process")
    };
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(of_agent).collect()
}

#[test]
fn edges_between_workers_go_through_their_services_and_back() {
    let place = place();
    slow_down(&place);
    place.change("workflow.yaml", "1000/s", "200/s");
    place.change("workflow.yaml", "500/s", "100/s");
    let mut cluster = Cluster::without_workers(place, &[]);
    cluster.start_worker("edge");
    // One that others do not reach: its service dials in its name.
    cluster.start_worker_with("hub", &["--tier", "hub", "--only-dials"]);
    cluster.start_worker("cloud");
    cluster.until_joined(3);
    cluster.submit().expect(0);
    cluster.until_arrived(100);
    cluster.until("all edges are direct", |cluster| {
        let routes = routes(cluster);
        routes.len() == 6 && routes.iter().all(|route| route == "direct")
    });
    let through = |cluster: &Cluster| {
        let routes = routes(cluster);
        routes.len() == 6 && routes.iter().filter(|route| *route == "service").count() >= 3
    };
    cluster.ask(&["net", "policy", "attach", "*", "compress", "--id", "small", "--all-workers"]).expect(0);
    cluster.until("senders use their services", through);
    let before = services(&cluster);
    assert_eq!(before.len(), 3, "{before:?}");
    for process in &before {
        Command::new("kill").args(["-KILL", &process.to_string()]).status().unwrap();
    }
    cluster.until("other services serve", |cluster| {
        let now = services(cluster);
        now.len() == 3 && now.iter().all(|process| !before.contains(process)) && through(cluster)
    });
    cluster.ask(&["net", "policy", "detach", "small", "--all-workers"]).expect(0);
    cluster
        .until("all edges are direct again", |cluster| routes(cluster).iter().all(|route| route == "direct"));
    cluster.until("it is complete", |cluster| cluster.run()["state"] == "complete");
    assert_eq!(cluster.run()["restarts"], serde_json::Value::from(0));
    same(&sorted(cluster.outputs()), &sorted(undisturbed()));
}
