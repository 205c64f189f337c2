//! Workflows with very many sources, operators and sinks.
use crate::command::root;
use std::fmt::Write;
use std::process::{Command, Output};
use tempfile::TempDir;

/// A workflow of `pairs` sources, each with its own sink.
fn workflow(pairs: usize) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("in.csv"), "n\n1\n2\n").unwrap();
    let (mut sources, mut sinks) = (String::new(), String::new());
    for n in 0..pairs {
        writeln!(sources, "  - {{id: s{n}, kind: csv, options: {{path: in.csv, columns: {{n: int64}}}}}}")
            .unwrap();
        writeln!(sinks, "  - {{id: o{n}, kind: csv, input: s{n}, options: {{path: out/{n}.csv}}}}").unwrap();
    }
    let text = format!("version: 1\nname: many\nsources:\n{sources}sinks:\n{sinks}");
    std::fs::write(folder.path().join("workflow.yaml"), text).unwrap();
    folder
}

/// Runs it in a shell that sets these limits first.
fn run_under(limits: &str, folder: &TempDir) -> Output {
    let file = folder.path().join("workflow.yaml");
    Command::new("sh")
        .args(["-c", &format!("{limits} && exec \"$0\" run \"$1\""), env!("CARGO_BIN_EXE_tidemill")])
        .arg(file)
        .current_dir(root())
        .output()
        .unwrap()
}

#[test]
fn too_few_open_files_are_told_before_the_run_starts() {
    let folder = workflow(60);
    let output = run_under("ulimit -n 100", &folder);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(69), "{said}");
    assert!(said.contains("needs at least 128 open files (60 sources, 60 files of sinks"), "{said}");
    assert!(said.contains("may have 100") && said.contains("`ulimit -n 128`"), "{said}");
    assert!(!folder.path().join("out/0.csv").exists());
}

#[test]
fn what_the_system_allows_is_taken() {
    let folder = workflow(60);
    let output = run_under("ulimit -Sn 100 && ulimit -Hn 400", &folder);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    for n in 0..60 {
        let file = folder.path().join(format!("out/{n}.csv"));
        assert_eq!(std::fs::read_to_string(file).unwrap().lines().count(), 3);
    }
}
