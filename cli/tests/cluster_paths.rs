//! Workers with several paths: what `tidemill net paths` says of them, and drains.
use crate::cluster::{Cluster, slow_down, undisturbed};
use crate::command::Place;
use crate::processes::{place, same};
use serde_json::Value;
use std::cell::Cell;

const WORKERS: [&str; 3] = ["edge", "hub", "cloud"];

fn slow() -> Place {
    let place = place();
    slow_down(&place);
    place
}

/// Connections of all processes over a path.
fn connections(cluster: &Cluster, path: &str) -> u64 {
    let found = cluster.ask(&["net", "paths", "ls", "spread", "--output", "json"]).expect(0).json();
    let paths = found["runs"][0]["paths"].as_array().cloned().unwrap_or_default();
    let of_path = paths.iter().filter(|known| known["path"] == path);
    of_path.map(|known| known["connections"].as_u64().unwrap()).sum()
}

/// Drains a path of all workers under the run. Returns false if the run has ended before that.
fn drains(cluster: &Cluster) -> bool {
    let use_only = |used: &str, other: &str| {
        let is_complete = Cell::new(false);
        cluster.until(&format!("all use {used}, or the run ends"), |cluster| {
            is_complete.set(cluster.run()["state"] == "complete");
            is_complete.get() || connections(cluster, used) > 0 && connections(cluster, other) == 0
        });
        !is_complete.get()
    };
    cluster.until_arrived(300);
    if !use_only("fibre", "lte") {
        return false;
    }
    for name in WORKERS {
        let told =
            cluster.ask(&["net", "paths", "drain", name, "fibre", "--output", "json"]).expect(0).json();
        assert_eq!(told["worker"]["drained_paths"], serde_json::json!(["fibre"]), "{told}");
    }
    use_only("lte", "fibre")
}

#[test]
fn a_path_is_drained_under_a_running_workflow_and_its_output_is_the_same() {
    let mut cluster = Cluster::without_workers(slow(), &[]);
    for name in WORKERS {
        let paths = ["--path", "fibre=127.0.0.1", "--path", "lte=127.0.0.2,4 $/GiB"];
        cluster.start_worker_with(name, &[&["--tier", name], &paths[..]].concat());
    }
    cluster.until_joined(3);
    let workflow = cluster.place.read("workflow.yaml");
    // The run must outlast the drain, however long a busy machine takes for it.
    let mut slower = 2;
    cluster.slow_down(slower);
    cluster.submit().expect(0);
    while !drains(&cluster) {
        for name in WORKERS {
            cluster.ask(&["net", "paths", "undrain", name, "fibre"]).expect(0);
        }
        slower *= 2;
        cluster.place.write("workflow.yaml", &workflow);
        cluster.slow_down(slower);
        cluster.submit_with(&["--again"]).expect(0);
    }
    let printed = cluster.ask(&["net", "paths", "ls"]).expect(0).stdout;
    assert!(printed.contains("drained") && printed.contains(" $"), "{printed}");
    cluster.ask(&["net", "paths", "undrain", "edge", "fibre"]).expect(0);
    let error = cluster.ask(&["net", "paths", "drain", "edge", "satellite"]);
    assert!(error.code == Some(66) && error.stderr.contains("satellite"), "{}", error.stderr);
    cluster.until("it is complete", |cluster| cluster.run()["state"] == "complete");
    assert_eq!(cluster.run()["restarts"], Value::from(0));
    // At another rate, dead letters of the two sources follow each other in another order.
    let in_order = |outputs: Vec<(&'static str, Vec<u8>)>| -> Vec<(&'static str, Vec<u8>)> {
        let sort = |(file, content): (&'static str, Vec<u8>)| {
            let mut lines: Vec<&[u8]> = content.split_inclusive(|byte| *byte == b'\n').collect();
            if file == "out/dead.jsonl" {
                lines.sort_unstable();
            }
            (file, lines.concat())
        };
        outputs.into_iter().map(sort).collect()
    };
    same(&in_order(cluster.outputs()), &in_order(undisturbed()));
}

#[test]
fn paths_are_tried_without_a_run() {
    let cluster = Cluster::without_workers(slow(), &[]);
    let hosts = cluster.hosts_address();
    let paths = ["--path", "fibre=127.0.0.1", "--path", "lte=127.0.0.2"];
    let test = |more: &[&str]| {
        let all = [&["net", "paths", "test", hosts, "--output", "json"], &paths[..], more].concat();
        cluster.ask(&all)
    };
    let found = test(&["--for", "1s"]).expect(0).json();
    let states: Vec<(&str, &str)> = found["paths"]
        .as_array()
        .unwrap()
        .iter()
        .map(|path| (path["path"].as_str().unwrap(), path["health"].as_str().unwrap()))
        .collect();
    assert_eq!(states, [("fibre", "up"), ("lte", "up")], "{found}");
    // An interface that there is not.
    let failed = test(&["--for", "300ms", "--path", "satellite=sat77"]);
    assert_eq!(failed.code, Some(1), "{}", failed.stderr);
    assert!(failed.stderr.contains("no answer over satellite"), "{}", failed.stderr);
}
