//! Plans of the example that follows vehicles, on its own machines and on the published ones. `UPDATE_GOLDEN=1` rewrites the golden
//! outputs.
use crate::command::{Outcome, root, tidemill};
use std::collections::BTreeSet;
use std::process::Command;

const WORKFLOW: &str = "examples/aicity/workflow.yaml";
const PROFILE: &str = "examples/aicity/profile.yaml";
const MACHINES: &str = "examples/aicity/machines.yaml";

fn plan(infrastructure: &str, more: &[&str]) -> Outcome {
    let infrastructure = format!("examples/aicity/{infrastructure}.yaml");
    let files = ["plan", WORKFLOW, "--infra", &infrastructure, "--profiles", PROFILE, MACHINES];
    tidemill(&[&files[..], more].concat())
}

#[track_caller]
fn compare(name: &str, outcome: &Outcome) {
    let path = root().join("cli/tests/golden").join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &outcome.stdout).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    let text = &outcome.stdout;
    assert!(golden == *text, "{} differs; UPDATE_GOLDEN=1 rewrites it. Now:\n{text}", path.display());
}

/// Published setups, each with the levels that it is planned for.
fn setups() -> [(&'static str, [&'static str; 6]); 2] {
    [("medium", "rate=800/s"), ("large", "rate=1100/s")]
        .map(|(setup, rate)| (setup, ["--slo", rate, "--slo", "accuracy=70", "--return-traffic", "forbid"]))
}

#[test]
fn plans_of_published_setups_are_shown() {
    for (setup, levels) in setups() {
        compare(&format!("aicity-{setup}.txt"), &plan(setup, &levels).expect(0));
    }
}

/// `associate` runs on one worker, although others could share its work for this number of cameras.
#[test]
#[ignore = "long: make test-long"]
fn published_setups_have_plans() {
    for (setup, levels) in setups() {
        let answer = plan(setup, &[&levels[..], &["--output", "json"]].concat()).expect(0).json();
        assert_eq!(answer["status"], "optimal", "{answer}");
        let workers = answer["workers"].as_array().unwrap();
        let runs = |operator: &str| {
            let parts = workers.iter().flat_map(|worker| worker["operators"].as_array().unwrap());
            parts.filter(|part| part["operator"] == operator).count()
        };
        assert_eq!(runs("across"), 1, "{answer}");
        let optimum = answer["cost"]["total"].as_f64().unwrap();
        for planner in ["beam", "best-fit", "first-fit"] {
            let other = plan(setup, &[&levels[..], &["--planner", planner, "--output", "json"]].concat());
            let other = other.expect(0).json();
            let cost = other["cost"]["total"].as_f64().unwrap();
            assert!(cost >= optimum * (1.0 - 1e-6), "{planner}: {cost} below {optimum}");
        }
    }
}

#[test]
fn the_example_has_a_proven_plan() {
    let answer = plan("infrastructure", &["--output", "json"]).expect(0).json();
    assert_eq!((&answer["status"], &answer["workflow"]), (&"optimal".into(), &"aicity".into()), "{answer}");
    assert_eq!(answer["expectation"]["sink"], "identified", "not the one that waits for windows: {answer}");
}

/// Frames of four cameras are due 25 ms after one another, and the tracker processes them when the last of a moment is
/// there: they wait 75, 50, 25 and 0 ms for it, less the detection time, and not 25 and 0 ms for their tick.
#[test]
#[ignore = "long: make test-long"]
fn frames_wait_for_the_last_camera_in_simulations() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plan.yaml").to_str().unwrap().to_owned();
    plan("infrastructure", &["--out", &file]).expect(0);
    let files = ["--infra", "examples/aicity/infrastructure.yaml", "--profiles", PROFILE];
    let simulate = ["simulate", &file, WORKFLOW, "--for", "60s", "--output", "json"];
    let answer = tidemill(&[&simulate[..], &files].concat());
    let answer = answer.json();
    let stages = answer["stages"].as_array().unwrap();
    let tracks = stages.iter().find(|stage| stage["stage"].as_str().unwrap().starts_with("tracks")).unwrap();
    let waits = tracks["mean_waiting_for_epochs_ms"].as_f64().unwrap();
    assert!((15.0..40.0).contains(&waits), "{tracks}");
    // Rare events are judged by the drawn ones.
    assert_eq!(answer["rate"]["met"], true, "{}", answer["rate"]);
    let sink = answer["sinks"].as_array().unwrap().iter().find(|sink| sink["sink"] == "identified").unwrap();
    assert!(sink["sampling"].as_f64().unwrap() > 0.05, "some hundred tracks at most: {sink}");
}

/// Cables lead to the hub, but the hub forwards nothing.
#[test]
fn a_planner_without_a_plan_says_what_is_in_its_way() {
    let only = ["--planner", "cloud-only"];
    let output = plan("infrastructure", &only).expect(1).stdout.replace('\n', " ");
    assert!(output.contains("cloud-only found no plan"), "{output}");
    assert!(
        output.contains("no link leads from edge, where the records of `cameras` are, to cloud"),
        "{output}"
    );
    let answer = plan("infrastructure", &[&only[..], &["--output", "json"]].concat()).expect(1).json();
    assert!(answer["obstacle"].as_str().unwrap().starts_with("no link leads from edge"), "{answer}");
    plan("medium", &only).expect(0);
}

#[test]
fn the_published_machines_follow_from_the_profile() {
    let script = root().join("scripts/aicity_machines.py");
    let made =
        Command::new("python3").arg(script).args([&root().join(PROFILE), std::path::Path::new("-")]).output();
    let made = made.expect("python3 runs");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let there = std::fs::read(root().join(MACHINES)).unwrap();
    assert!(made.stdout == there, "run scripts/aicity_machines.py after a new profile");
}

/// The result of `scripts/camera_ways.py` for the truth of the shipped minute is among the transitions of the example,
/// which are from other minutes.
#[test]
fn the_example_knows_the_ways_that_its_vehicles_go() {
    let script = Command::new("python3")
        .arg(root().join("scripts/camera_ways.py"))
        .args(["--picture", "480x288", "--least", "2"])
        .arg(root().join("examples/aicity/data"))
        .output()
        .expect("python3 runs");
    assert!(script.status.success(), "{}", String::from_utf8_lossy(&script.stderr));
    let ways = |text: &str| -> BTreeSet<(String, String)> {
        let lines = text.lines().filter(|line| line.contains("{from: "));
        let named = |line: &str, key: &str| {
            let (_, rest) = line.split_once(key)?;
            Some(rest.split([',', '}']).next()?.trim().to_owned())
        };
        lines.filter_map(|line| Some((named(line, "from: ")?, named(line, "to: ")?))).collect()
    };
    let gone = ways(&String::from_utf8_lossy(&script.stdout));
    let known = ways(&std::fs::read_to_string(root().join(WORKFLOW)).unwrap());
    assert!(gone.len() >= 4, "{gone:?}");
    assert!(gone.is_subset(&known), "{gone:?}\n{known:?}");
}
