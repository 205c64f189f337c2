//! `checkpoint:` in a workflow: location of the state, interval, and retention.
use crate::command::{Place, command, tidemill};
use crate::states::{outputs, place, same, undisturbed};
use serde_json::Value;
use std::process::Child;
use std::time::Duration;

fn with(options: &str) -> Place {
    let place = place();
    place.change("workflow.yaml", "run: {", &format!("checkpoint: {{{options}}}\nrun: {{"));
    place
}

fn start(place: &Place) -> Child {
    command(&["run", &place.argument("workflow.yaml"), "--quiet"]).spawn().unwrap()
}

fn show(place: &Place) -> Value {
    let shown = tidemill(&["state", "show", &place.argument("kept"), "--output", "json"]);
    if shown.code == Some(0) { shown.json()["state"].clone() } else { Value::Null }
}

/// Starts the workflow, and kills it after `checkpoints` checkpoints; false when it ended before.
fn killed_after(place: &Place, checkpoints: u64) -> bool {
    let mut child = start(place);
    for _ in 0..2000 {
        if show(place)["checkpoint"].as_u64().unwrap_or(0) >= checkpoints {
            break;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    child.kill().unwrap();
    !child.wait().unwrap().success()
}

fn epochs_kept(place: &Place) -> Vec<u64> {
    let shown = show(place);
    let older = shown["older"].as_array().cloned().unwrap_or_default();
    older.iter().map(|older| older["epoch"].as_u64().unwrap()).collect()
}

#[test]
fn a_workflow_says_where_its_state_is() {
    let place = with("interval: 20ms, state: kept");
    assert!(killed_after(&place, 5));
    assert_eq!(epochs_kept(&place), Vec::<u64>::new());
    // The flag takes precedence over the file, and so does its interval.
    let other = place.argument("other");
    let workflow = place.argument("workflow.yaml");
    let slow = ["run", &workflow, "--state", &other, "--checkpoint-interval", "1h", "--for", "1s"];
    let told = tidemill(&slow).expect(0).stderr;
    assert!(told.contains("keeps its state in") && told.contains("other"), "{told}");
    let shown = tidemill(&["state", "show", &other, "--output", "json"]).expect(0).json();
    assert!(shown["state"]["checkpoint"].as_u64().unwrap() <= 3, "{shown}");
    // The first state is still there, but its outputs do not match it.
    assert!(show(&place)["checkpoint"].as_u64().unwrap() >= 5);
}

#[test]
fn a_run_goes_on_from_an_older_checkpoint() {
    let place = with("interval: 20ms, state: kept, keep: 4");
    assert!(killed_after(&place, 9));
    let kept = epochs_kept(&place);
    assert!(kept.len() == 3 && kept.is_sorted_by(|newer, older| newer > older), "{kept:?}");
    let state = place.argument("kept");
    let shown = tidemill(&["state", "show", &state]).expect(0).stdout;
    assert!(
        shown.contains("also kept: checkpoint") && shown.contains(&format!("epoch {}\n", kept[2])),
        "{shown}"
    );
    let refused = tidemill(&["state", "reset", &state, "--to", "7777777"]).expect(66).stderr;
    assert!(refused.contains(&format!("those of {}, {}, {}", kept[0], kept[1], kept[2])), "{refused}");
    let told = tidemill(&["state", "reset", &state, "--to", &kept[1].to_string()]).expect(0).stderr;
    assert!(told.contains(&format!("epoch {}", kept[1])), "{told}");
    assert_eq!(show(&place)["epoch"].as_u64(), Some(kept[1]));
    assert_eq!(epochs_kept(&place), kept[2..]);
    let told = tidemill(&["run", &place.argument("workflow.yaml")]).expect(0).stderr;
    assert!(told.contains("continues from the state"), "{told}");
    same(&outputs(&place), &undisturbed());
    // For a complete run the end is a word and no number.
    let text = |more: &[&str]| {
        let refused =
            tidemill(&[&["state", "reset", &state, "--to", "7777777"][..], more].concat()).expect(66);
        refused.stdout + &refused.stderr
    };
    let shown = tidemill(&["state", "show", &state, "--output", "json"]).expect(0).stdout;
    for told in [text(&[]), text(&["--output", "json"]), shown] {
        assert!(!told.contains(&u64::MAX.to_string()), "{told}");
    }
}

#[test]
fn options_without_a_state_say_so() {
    let place = place();
    let workflow = place.argument("workflow.yaml");
    let told = tidemill(&["run", &workflow, "--checkpoint-interval", "1s"]).expect(2).stderr;
    assert!(told.contains("checkpoint: {state: DIR}"), "{told}");
    let place = with("state: kept");
    let log = place.argument("epochs.log");
    let told = tidemill(&["run", &place.argument("workflow.yaml"), "--epoch-log", &log]).expect(0).stderr;
    assert!(told.contains("does not use the state in") && told.contains("--epoch-log"), "{told}");
    assert!(!place.path("kept").exists());
}

/// Epochs come every 50 ms there: 5 ticks of 10 ms.
#[test]
fn an_interval_that_has_no_effect_is_told() {
    let place = with("state: kept, interval: 20ms");
    let workflow = place.argument("workflow.yaml");
    let run = |more: &[&str]| {
        let _ = std::fs::remove_dir_all(place.path("kept"));
        tidemill(&[&["run", &workflow, "--records", "200"][..], more].concat()).expect(0).stderr
    };
    let told = run(&[]);
    for part in
        ["the interval of 20ms has no effect", "each 50ms at most", "`checkpoint_every: 2`", "`tick: 10ms`"]
    {
        assert!(told.contains(part), "{part}: {told}");
    }
    let told = run(&["--checkpoint-interval", "1ms"]);
    assert!(
        told.contains("the interval of 1ms has no effect") && told.contains("`checkpoint_every: 1`"),
        "{told}"
    );
    for long in ["50ms", "1s"] {
        let told = run(&["--checkpoint-interval", long]);
        assert!(!told.contains("no effect"), "{told}");
    }
    // Without a rate epochs do not come by time.
    let told = run(&["--rate", "max"]);
    assert!(!told.contains("no effect"), "{told}");
}

#[test]
fn what_is_wrong_is_told_with_its_place() {
    for (options, place_in_line, code) in [
        ("interval: 0s", "20:24", "E0211"),
        ("keep: 0", "20:20", "E0211"),
        ("keep: 1001", "20:20", "E0211"),
        ("state: \"\"", "20:21", "E0214"),
        ("state: \"s3://A b/c\"", "20:21", "E0214"),
        ("intervall: 1s", "20:14", "E0103"),
        ("interval: 1", "20:24", "E0106"),
    ] {
        let place = with(options);
        let told = tidemill(&["validate", &place.argument("workflow.yaml")]).expect(78).stderr;
        assert!(told.contains(code) && told.contains(&format!("workflow.yaml:{place_in_line}")), "{told}");
    }
}
