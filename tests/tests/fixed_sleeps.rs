//! A test waits for an event and not for a time: that is too short on a busy machine and too long on every other one.
//!
//! A sleep in a loop that looks for something (`for _ in`, `while`, `loop`, `any`) is part of waiting for an event.

use std::path::Path;

use crate::repository::{files_with_extension, text};

/// Files with other sleeps: (path, number of them, reason).
const SLEEPS: &[(&str, usize, &str)] = &[
    ("app/src/metrics/port.rs", 1, "a client that pauses is the subject"),
    ("cli/tests/appending.rs", 1, "the process is killed at another time in each round"),
    ("cli/tests/buckets.rs", 1, "the service is away for a minute"),
    ("cli/tests/changed_states.rs", 1, "the process is killed at a random time"),
    ("cli/tests/chaos/trial.rs", 1, "faults come at random times"),
    ("cli/tests/cluster_changes.rs", 1, "processes are killed at random times"),
    ("cli/tests/cluster_hostile.rs", 1, "a token ends by the clock of the controller"),
    ("cli/tests/cluster_page.rs", 3, "the browser moves what it draws, and draws curves of some seconds"),
    ("cli/tests/cluster_replanning.rs", 3, "no decision may come in this time"),
    ("cli/tests/cluster_workers.rs", 1, "the detector needs a number of heartbeats first"),
    ("cli/tests/journals.rs", 1, "the producer is slower than the reader"),
    ("cluster/postgres/tests/leading.rs", 1, "no controller may lead in this time"),
    ("cluster/tests/cluster/heartbeats.rs", 1, "the proxy ends connections without traffic"),
    ("operators/mqtt/tests/publishing.rs", 1, "without a broker it may not end in this time"),
    ("runtime/collective/src/service/counted.rs", 1, "figures of a minute need a time without change"),
    ("runtime/collective/tests/groups/giving_way.rs", 1, "a program that computes for some time"),
    ("runtime/collective/tests/groups/one_host.rs", 1, "the program waits before the service is there"),
    ("runtime/engine/src/host/outbox.rs", 1, "a slow reader is the subject"),
    ("runtime/engine/tests/engine/alone.rs", 2, "a slow model, and a start that is not measured"),
    ("runtime/engine/tests/engine/changes.rs", 1, "the pause is measured"),
    ("runtime/engine/tests/engine/cut.rs", 2, "a slow filter, and three times the grace of a host"),
    ("runtime/engine/tests/engine/emulation.rs", 1, "the bytes of a slow wire in this time are measured"),
    (
        "runtime/engine/tests/engine/endings.rs",
        8,
        "slow connections, and times in which a slot could end too early",
    ),
    ("runtime/engine/tests/engine/parts/host_threads.rs", 1, "the time that a process takes to start"),
    ("runtime/engine/tests/engine/resources.rs", 6, "slow models, and starts that are not measured"),
    ("runtime/http/src/server/connections.rs", 3, "the clock of these tests is paused"),
    ("runtime/http/src/server/writing.rs", 2, "the clock of these tests is paused"),
    ("storage/state/tests/folder.rs", 1, "the process is killed meanwhile"),
];

/// Written in two parts, so that this file has none.
const CALLS: &[&str] = &[
    concat!("thread::sle", "ep("),
    concat!("time::sle", "ep("),
    concat!("sle", "ep(Duration"),
    concat!("sle", "ep(std::time"),
];

/// Beginnings of loops that look for something.
const LOOPS: &[&str] = &["for _ in ", "while ", "loop {", ".any(|_|", ".find_map(|"];

#[test]
fn tests_wait_for_events() {
    let mut faults = Vec::new();
    for file in files_with_extension(&["rs"]) {
        let found = fixed_sleeps(&file, &text(&file).expect("source files are text"));
        let listed = SLEEPS.iter().find(|(path, ..)| Path::new(path) == file);
        let allowed = listed.map_or(0, |(_, number, _)| *number);
        if found.len() != allowed {
            faults.push(format!("{}: {allowed} in the list, and sleeps in lines {found:?}", file.display()));
        }
    }
    assert!(
        faults.is_empty(),
        "wait for an event, or say in SLEEPS of {} why it is a time:\n  {}",
        file!(),
        faults.join("\n  ")
    );
}

#[test]
fn every_exception_still_exists_and_has_a_reason() {
    for (path, number, reason) in SLEEPS {
        assert!(text(Path::new(path)).is_some() && *number > 0 && !reason.is_empty(), "{path}");
    }
}

/// Numbers of the lines of a file's tests that sleep, outside of loops that look for something.
fn fixed_sleeps(file: &Path, content: &str) -> Vec<usize> {
    let lines: Vec<&str> = content.lines().collect();
    let begin = if is_of_tests(file) { 0 } else { begin_of_tests(&lines) };
    let sleeps = |line: &str| CALLS.iter().any(|call| line.contains(call)) && !is_comment(line);
    (begin..lines.len())
        .filter(|index| sleeps(lines[*index]) && !is_in_a_loop(&lines[..=*index]))
        .map(|index| index + 1)
        .collect()
}

/// Whether all of a file is tests.
fn is_of_tests(file: &Path) -> bool {
    let name = file.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
    let is_below = file.parent().is_some_and(|folder| folder.iter().any(|part| part == "tests"));
    is_below || ["test", "tests"].contains(&name) || name.ends_with("_tests")
}

/// Index of the first line of the tests in a file with other code.
fn begin_of_tests(lines: &[&str]) -> usize {
    lines.iter().position(|line| line.trim() == "#[cfg(test)]").unwrap_or(lines.len())
}

fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with("//")
}

/// Whether the last of these lines is in a loop of its function, by their indents.
fn is_in_a_loop(lines: &[&str]) -> bool {
    let mut least = usize::MAX;
    for line in lines.iter().rev().filter(|line| !line.trim().is_empty() && !is_comment(line)) {
        let indent = line.len() - line.trim_start().len();
        if indent >= least {
            continue;
        }
        least = indent;
        if LOOPS.iter().any(|begin| line.contains(begin)) {
            return true;
        }
        if line.trim_start().starts_with("fn ") || line.contains(" fn ") {
            return false;
        }
    }
    false
}

#[test]
fn sleeps_outside_of_loops_are_found() {
    let call = format!("{}x);", CALLS[0]);
    let of = |name: &str, content: &str| fixed_sleeps(Path::new(name), &content.replace("CALL", &call));
    assert_eq!(of("a/tests/b.rs", "fn a() {\n    CALL\n}\n"), [2]);
    assert_eq!(of("a/src/b.rs", "fn a() {\n    CALL\n}\n"), Vec::<usize>::new());
    assert_eq!(of("a/src/b.rs", "#[cfg(test)]\nmod tests {\n    fn a() {\n        CALL\n    }\n}\n"), [4]);
    assert_eq!(
        of("a/tests/b.rs", "fn a() {\n    for _ in 0..9 {\n        CALL\n    }\n}\n"),
        Vec::<usize>::new()
    );
    assert_eq!(
        of("a/tests/b.rs", "fn a() {\n    for n in 0..9 {\n        // CALL\n        CALL\n    }\n}\n"),
        [4]
    );
    assert_eq!(of("a/tests/b.rs", "fn a() {\n    while b() {\n    }\n    CALL\n}\n"), [4]);
}
