//! A script runs every test that `make test` leaves out.

use std::path::Path;

use crate::repository::{files_with_extension, text};

/// Beginnings of reasons, the script that runs the tests with such a reason, and its line that does so.
const REASONS: &[(&str, &str, &str)] = &[
    ("long: make test-long", "scripts/test-long.sh", "--ignored long"),
    ("scripts/test-backends.sh packages", "scripts/test-backends.sh", "cargo_torch --ignored"),
    ("models: tidemill models fetch ", "scripts/test-long.sh", "--ignored models"),
    ("standard: scripts/onnx_operator_tests.sh", "scripts/test-long.sh", "scripts/onnx_operator_tests.sh"),
];

/// Before the name of a test of the same file, which starts the ignored one as a process.
const STARTED_BY: &str = "started by ";

#[test]
fn a_script_runs_every_ignored_test() {
    let mut faults = Vec::new();
    for file in files_with_extension(&["rs"]) {
        let content = text(&file).expect("source files are text");
        for (number, reason) in ignored(&content) {
            let is_run = match reason.and_then(|reason| reason.strip_prefix(STARTED_BY)) {
                Some(test) => content.contains(&format!("fn {test}() {{")),
                None => {
                    REASONS.iter().any(|(begin, ..)| reason.is_some_and(|reason| reason.starts_with(begin)))
                }
            };
            if !is_run {
                faults.push(format!("{}:{number}: {}", file.display(), reason.unwrap_or("no reason")));
            }
        }
    }
    assert!(
        faults.is_empty(),
        "no script runs these, by the list REASONS in {}:\n  {}",
        file!(),
        faults.join("\n  ")
    );
}

#[test]
fn every_script_runs_the_tests_of_its_reason() {
    for (reason, script, line) in REASONS {
        let content = text(Path::new(script)).expect("a script is text");
        assert!(
            content.contains(line),
            "{script} has no `{line}`, and runs no tests with the reason `{reason}`"
        );
    }
}

/// The ignored tests of a file: the number of the line, and the reason.
fn ignored(content: &str) -> Vec<(usize, Option<&str>)> {
    let lines = content.lines().enumerate().filter(|(_, line)| line.trim_start().starts_with("#[ignore"));
    lines.map(|(index, line)| (index + 1, reason(line))).collect()
}

fn reason(line: &str) -> Option<&str> {
    line.trim().strip_prefix("#[ignore = \"")?.strip_suffix("\"]")
}

#[test]
fn reasons_are_found() {
    let content = "#[test]\n#[ignore = \"long: x\"]\nfn a() {}\n    #[ignore]\n// #[ignore]\n";
    assert_eq!(ignored(content), [(2, Some("long: x")), (4, None)]);
}
