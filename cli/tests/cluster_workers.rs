//! Workers that are drained or lost while events are followed, and the reported facts of a worker; through the built
//! binary.
use crate::cluster::{Cluster, undisturbed};
use crate::command::{Place, command, root, tidemill};
use crate::processes::{children, gone, same};
use std::io::{BufRead, BufReader};
use std::sync::mpsc::channel;
use std::time::Duration;

/// Its stages continue elsewhere, with nothing lost or doubled; a follower of the events sees it live.
#[test]
#[ignore = "long: make test-long"]
fn what_a_drained_worker_had_goes_elsewhere() {
    let cluster = Cluster::start(&["edge", "hub", "cloud", "spare"]);
    cluster.submit().expect(0);
    cluster.until_arrived(100);
    let mut follows = command(&["events", "--follow", "--output", "json"]);
    follows.env("TIDEMILL_CONTROLLER", &cluster.address).env("TIDEMILL_TOKEN", cluster.admin());
    let mut follower = follows.spawn().unwrap();
    let lines = BufReader::new(follower.stdout.take().unwrap()).lines();
    let (sender, told) = channel();
    std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| drop(sender.send(line))));
    let mut events: Vec<serde_json::Value> = Vec::new();
    let mut until = |kind: &str| {
        while events.last().is_none_or(|event| event["kind"] != kind) {
            let line = told
                .recv_timeout(Duration::from_secs(40))
                .unwrap_or_else(|_| panic!("no {kind}: {events:?}"));
            events.push(serde_json::from_str(&line).unwrap());
        }
        events.last().unwrap().clone()
    };
    // Earlier events come first.
    until("run_running");
    let of_edge = children(cluster.workers[0].1.id());
    assert_eq!(of_edge.len(), 1, "{of_edge:?}");
    let told = cluster.ask(&["drain", "edge"]).expect(0).stderr;
    assert!(told.contains("worker edge accepts no new work"), "{told}");
    assert_eq!(until("worker_drained")["worker"], "edge");
    let moved = until("role_moved");
    assert_eq!((&moved["run"], &moved["worker"]), (&"spread".into(), &"spare".into()), "{moved}");
    assert!(of_edge.iter().all(|pid| gone(*pid)), "it goes on on a worker that is drained");
    assert_eq!(cluster.run()["placement"]["edge"], "spare");
    let workers = cluster.ask(&["workers"]).expect(0).stdout;
    assert!(workers.lines().any(|line| line.contains("edge") && line.contains("drained")), "{workers}");
    assert!(children(cluster.workers[0].1.id()).is_empty(), "nothing new is started there");
    until("run_complete");
    assert!(follower.try_wait().unwrap().is_none(), "it follows until somebody ends it");
    follower.kill().unwrap();
    follower.wait().unwrap();
    same(&cluster.outputs(), &undisturbed());
    let told = cluster.ask(&["drain", "edge", "--end"]).expect(0).stderr;
    assert!(told.contains("`tidemill drain --end` is now `tidemill undrain WORKER`"), "{told}");
    cluster.ask(&["undrain", "edge"]).expect(0);
}

/// Facts given at the start of a worker take precedence.
#[test]
fn a_worker_has_what_it_is_said_to_have() {
    let mut cluster = Cluster::start(&[]);
    let more = [
        "--processors",
        "1.5",
        "--memory",
        "3GiB",
        "--accelerators",
        "h100=2,npu",
        "--type",
        "large",
        "--label",
        "camera=north",
    ];
    cluster.start_worker_with("cloud", &more);
    cluster.until_joined(1);
    let found =
        cluster.ask(&["workers", "--output", "json"]).expect(0).json()["workers"][0]["capacity"].clone();
    assert_eq!(
        (&found["processors"], &found["memory_bytes"]),
        (&1.5.into(), &(3_u64 << 30).into()),
        "{found}"
    );
    assert_eq!(found["accelerators"], serde_json::json!(["h100", "h100", "npu"]));
    let told = cluster.ask(&["workers"]).expect(0).stdout;
    for part in ["1.5", "3.0 GiB", "h100 x 2, npu", "camera=north"] {
        assert!(told.contains(part) || told.contains(&part.replace(".0", "")), "`{part}` is not in\n{told}");
    }
    let told = cluster.ask(&["workers", "--infra"]).expect(0).stdout;
    assert!(told.contains("type: h100") && told.contains("count: 2"), "{told}");
}

/// A run that would fail on its worker does not start.
#[test]
fn nothing_is_planned_on_a_backend_that_a_worker_lacks() {
    let mut cluster = Cluster::without_workers(Place::example("vqa"), &[]);
    let told = ["--tier", "cloud", "--type", "server", "--price", "0.4 $/h"];
    let variables = [("TIDEMILL_ONNXRUNTIME", "/no/such/libonnxruntime.so")];
    cluster.start_worker_where("rack", &told, &variables);
    cluster.until_joined(1);
    let found = cluster.ask(&["workers", "--output", "json"]).expect(0).json();
    assert_eq!(found["workers"][0]["backends"], serde_json::json!(["rten"]), "{found}");
    let table = cluster.ask(&["workers"]).expect(0).stdout;
    assert!(table.contains("backends") && table.contains("rten"), "{table}");

    let profile = std::fs::read_to_string(root().join("cli/tests/planning/profile.yaml")).unwrap();
    cluster.place.write("ort.yaml", profile.replace("backend: rten", "backend: ort"));
    let (workflow, profile) = (cluster.place.argument("workflow.yaml"), cluster.place.argument("ort.yaml"));
    let levels = ["--slo", "latency=none", "--slo", "accuracy=70"];
    let planned = [&["submit", &workflow, "--profiles", &profile, "--as", "vqa"], &levels[..]].concat();
    let refused = cluster.ask(&planned).expect(78).stderr;
    assert!(refused.contains("plans do not use `ort` on `server`: rack cannot"), "{refused}");

    let speech = "  - id: speech\n    kind: ml\n";
    cluster.place.change("workflow.yaml", speech, &format!("{speech}    backend: ort\n"));
    let refused = cluster.ask(&["submit", &workflow, "--one-worker", "--as", "vqa"]).expect(78).stderr;
    for words in ["`speech` needs the backend `ort`", "worker rack does not", "`backend: rten`"] {
        assert!(refused.contains(words), "`{words}` is not in\n{refused}");
    }
    cluster.ask(&["status", "vqa"]).expect(66);
}

/// The time of detection is the configured one; with phi it follows the heartbeats.
#[test]
#[ignore = "long: make test-long"]
fn silence_is_judged_as_the_controller_is_told() {
    for (options, words) in [
        (&["--detection", "3s"][..], "worker edge sent no heartbeat for 3 s and is lost"),
        (&["--detector", "phi", "--phi", "6"], "worker edge sent no heartbeat for "),
    ] {
        let mut cluster = Cluster::start_with(&["edge"], options);
        // Phi needs ten heartbeats.
        std::thread::sleep(Duration::from_secs(7));
        let (_, mut agent) = cluster.workers.remove(0);
        agent.kill().unwrap();
        agent.wait().unwrap();
        let events = || cluster.ask(&["events"]).expect(0).stdout;
        cluster.until("it is lost", |_| events().contains("and is lost"));
        let told = events();
        assert!(told.contains(words), "{told}");
        assert_eq!(told.contains("(phi "), options.contains(&"phi"), "{told}");
    }
}

#[test]
fn a_time_of_detection_that_is_too_short_is_refused() {
    let told = tidemill(&["controller", "--state", "x", "--detection", "300ms"]).expect(2).stderr;
    assert!(told.contains("write 1 s or more"), "{told}");
}
