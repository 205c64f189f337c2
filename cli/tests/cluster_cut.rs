//! An edge site that is cut off a cluster in network namespaces: `benches/experiments/cluster_cut.py` cuts it, and compares the outputs
//! with those of an undisturbed run; `benches/experiments/cluster_degrade.py` cuts one off the models that answer it.
use crate::command::root;
use serde_json::Value;
use std::process::Command;

/// Exit code of the script if namespaces are not available.
const NOT_PERMITTED: i32 = 77;

/// Result of the script; `None` without namespaces.
fn cut(seconds: &str, more: &[&str]) -> Option<Value> {
    found("cluster_cut.py", seconds, more)
}

fn found(script: &str, seconds: &str, more: &[&str]) -> Option<Value> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("result.json");
    let output = Command::new("python3")
        .arg(root().join("benches/experiments").join(script))
        .args(["--binary", env!("CARGO_BIN_EXE_tidemill"), "--seconds", seconds, "--json"])
        .arg(&path)
        .args(more)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .current_dir(root())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(NOT_PERMITTED) {
        println!("skipped: sites that are cut off. There are no network namespaces here: {said}");
        return None;
    }
    let printed = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{printed}\n{said}");
    Some(serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap())
}

fn events<'a>(printed: &'a Value, kind: &str) -> Vec<&'a str> {
    let all = printed["events"].as_array().unwrap().iter().map(|event| event.as_str().unwrap());
    all.filter(|event| event.starts_with(&format!("{kind}: "))).collect()
}

/// The controller counts its workers as lost, but does not reassign their work: the site continues.
#[test]
fn a_site_that_is_cut_off_goes_on_by_itself() {
    let Some(printed) = cut("5", &["--more", "6"]) else { return };
    assert_eq!((&printed["state"], &printed["restarts"]), (&"complete".into(), &0.into()), "{printed}");
    assert_eq!(events(&printed, "worker_lost").len(), 2, "{printed}");
    assert!(events(&printed, "role_moved").is_empty(), "{printed}");
    // A busy machine may have been silent for a moment before.
    let mut cuts = events(&printed, "edge_cut").into_iter();
    assert!(cuts.any(|event| event.contains("continues by itself for 600 s")), "{printed}");
    let shown = printed["shown_while_cut"].as_array().unwrap();
    assert!(shown[0].as_str().unwrap().starts_with("edge some -> counted cut since"), "{printed}");
    assert!(printed["grown_at_the_edge"].as_u64().unwrap() > 10_000, "{printed}");
    assert!(printed["left"].as_array().unwrap().is_empty());
}

#[test]
#[ignore = "long: make test-long"]
fn a_run_that_is_to_stop_when_it_is_cut_stops() {
    let Some(printed) = cut("14", &["--more", "30", "--stop"]) else { return };
    assert_eq!(printed["state"], "failed");
    let reason = printed["reason"].as_str().unwrap();
    assert!(reason.contains("`when_cut: stop` ends the run then"), "{reason}");
}

#[test]
#[ignore = "long: make test-long"]
fn a_site_that_is_cut_off_its_models_is_answered_by_smaller_ones() {
    let Some(printed) = found("cluster_degrade.py", "16", &["--more", "10"]) else { return };
    let by = |what: &str, variant: &str| printed[what][variant].as_u64().unwrap_or(0);
    assert_eq!((&printed["state"], &printed["restarts"]), (&"complete".into(), &0.into()), "{printed}");
    assert!(by("answered_while_cut", "speech-small") > 0, "{printed}");
    let (here, there) = (by("answered_by", "speech-small"), by("answered_by", "speech-large"));
    assert!(there > 0 && Some(here + there) == printed["questions"].as_u64(), "{printed}");
    let restored = events(&printed, "restored");
    assert!(restored.iter().any(|event| event.contains("`speech-small` has answered")), "{printed}");
    assert!(printed["left"].as_array().unwrap().is_empty());
}
