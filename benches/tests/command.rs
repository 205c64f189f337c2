//! Tests of the benchmarks' built program.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
use std::process::Command;

fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidemill-benches"));
    command.args(arguments);
    command
}

#[test]
fn a_question_that_there_is_not_is_told() {
    let output = program(&["what-is-it-worth"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("no such benchmark: what-is-it-worth"), "{said}");
}

#[test]
fn questions_are_in_the_help() {
    let output = program(&["--help"]).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    for question in ["devices", "cluster-scale", "cluster-truth", "cluster-soak", "operator-overhead"] {
        assert!(said.contains(question), "{question}: {said}");
    }
}

#[test]
fn a_part_of_the_measurement_of_devices_runs() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = program(&["devices", "--devices-parts", "pipelining", "--devices-rounds", "1"]);
    let output = command.args(["--out", folder.path().to_str().unwrap()]).output().unwrap();
    let (said, wrong) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("534 posted calls and four that wait"), "{said}{wrong}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "results are of all parts");
}
