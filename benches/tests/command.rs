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
fn questions_about_a_cluster_are_in_the_help() {
    let output = program(&["--help"]).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    for question in ["cluster-scale", "cluster-truth", "cluster-soak", "operator-overhead"] {
        assert!(said.contains(question), "{question}: {said}");
    }
}
