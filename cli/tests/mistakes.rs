//! Common mistakes of new users, and the messages for them. A case is a folder of `tests/mistakes/` with their files and
//! `session.txt`: their commands and the output. `UPDATE_MISTAKES=1` rewrites the sessions; review the diff: does the
//! message have the position, the finding, and advice?
use crate::command::root;
use crate::session;
use std::net::TcpListener;
use std::path::{Path, PathBuf};

fn cases() -> Vec<PathBuf> {
    let folder = root().join("cli/tests/mistakes");
    let mut all: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    all.sort();
    all
}

/// Runs a case in a folder of its own; returns the session.
fn played(case: &Path) -> (String, String) {
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(case).unwrap().flatten() {
        if entry.file_name() != "session.txt" {
            std::fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
        }
    }
    std::os::unix::fs::symlink(root().join("operators/inference/testdata"), folder.path().join("models"))
        .unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let expected = std::fs::read_to_string(case.join("session.txt")).unwrap();
    let mut steps = session::parse(&expected);
    let commands: Vec<&str> = steps.iter().map(|step| step.command.as_str()).collect();
    let results = session::run(folder.path(), &commands, &[("TAKEN", &address)]);
    for (step, (output, code)) in steps.iter_mut().zip(results) {
        (step.output, step.code) = (output.replace(&address, "$TAKEN"), code);
    }
    (expected, session::print(&steps))
}

#[test]
fn every_mistake_gets_its_answer() {
    let mut faults = Vec::new();
    let cases = cases();
    assert!(cases.len() >= 12, "the cases are gone");
    for case in cases {
        let (expected, found) = played(&case);
        if expected == found {
            continue;
        }
        if std::env::var_os("UPDATE_MISTAKES").is_some() {
            std::fs::write(case.join("session.txt"), &found).unwrap();
            continue;
        }
        faults.push(format!("== {}\nexpected:\n{expected}\nfound:\n{found}", case.display()));
    }
    assert!(
        faults.is_empty(),
        "UPDATE_MISTAKES=1 writes the sessions anew, if this is as it should be\n{}",
        faults.join("\n")
    );
}
