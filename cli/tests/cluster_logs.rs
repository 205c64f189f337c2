//! Log lines of a cluster's processes, with the names of their subjects; through the built binary.
use crate::cluster::{Cluster, slow_down};
use crate::processes::{children, gone, kill, place};
use serde_json::Value;
use std::collections::BTreeSet;

fn logged(cluster: &Cluster) -> Vec<Value> {
    let output = cluster.ask(&["logs", "spread", "--output", "json"]).expect(0).stdout;
    output.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Every line of every process, in any log format and at any end, has its workflow, run, worker and stages.
#[test]
#[ignore = "long: make test-long"]
fn every_line_of_every_process_names_workflow_run_worker_and_stages() {
    let place = place();
    slow_down(&place);
    let mut cluster = Cluster::without_workers(place, &[]);
    // It lasts until it is cancelled, on a busy machine too.
    cluster.slow_down(2);
    cluster.start_worker_with("edge", &["--tier", "edge", "--log-format", "json", "--log-level", "debug"]);
    cluster.start_worker_with("hub", &["--tier", "hub", "--log-level", "debug"]);
    cluster.start_worker("cloud");
    cluster.until_joined(3);
    cluster.submit().expect(0);
    cluster.until_arrived(300);
    let of_hub = children(cluster.workers[1].1.id());
    assert!(of_hub.len() == 1 && kill(of_hub[0]) && gone(of_hub[0]), "{of_hub:?}");
    cluster.until_arrived(1500);
    let roles = |lines: &[Value]| -> BTreeSet<String> {
        lines.iter().filter_map(|line| line["role"].as_str().map(str::to_owned)).collect()
    };
    cluster.until("all have said something", |cluster| roles(&logged(cluster)).len() == 3);
    cluster.until("the end of the process is told", |cluster| {
        logged(cluster).iter().any(|line| line["line"].as_str().unwrap().contains("was killed by signal 9"))
    });
    let lines = logged(&cluster);
    let mut levels = BTreeSet::new();
    for line in &lines {
        assert_eq!((&line["run"], &line["workflow"]), (&"spread".into(), &"spread".into()), "{line}");
        assert!(line["time"].as_str().is_some_and(|time| time.len() >= 19), "{line}");
        // Lines of the controller belong to the run.
        let Some(role) = line["role"].as_str() else { continue };
        assert_eq!(line["worker"], role, "each is on the worker of its name: {line}");
        let stages = line["stages"].as_array().unwrap();
        assert!(!stages.is_empty(), "{line}");
        let own: &[&str] = match role {
            "edge" => &["left", "right", "some"],
            "hub" => &["pair", "pairs"],
            _ => &["counted", "table"],
        };
        assert!(stages.iter().all(|stage| own.contains(&stage.as_str().unwrap())), "{line}");
        if role == "edge" {
            // Written as JSON, and parsed.
            assert!(!line["line"].as_str().unwrap().starts_with('{'), "{line}");
        }
        levels.extend(line["level"].as_str().map(|level| (role.to_owned(), level.to_owned())));
    }
    for role in ["edge", "hub", "cloud"] {
        assert!(levels.contains(&(role.to_owned(), "INFO".to_owned())), "{role}: {levels:?}");
    }
    cluster.ask(&["cancel", "spread"]).expect(0);
}
