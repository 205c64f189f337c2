//! Streams with an occasional row: it is visible before the next one arrives; through the built binary.
use crate::command::{Place, command};
use rustix::fs::{CWD, FileType, OFlags, mknodat};
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, Stdio};
use std::time::Duration;

const WORKFLOW: &str = "version: 1
name: slow
sources:
  - {id: events, kind: jsonl, RATE options: {path: '-', columns: {n: int64}}}
operators:
  - {id: odd, kind: filter, input: events, options: {where: \"n % 2 == 1\"}}
sinks:
  - {id: out, kind: stdout, input: odd}
";

fn start(rate: &str, state: bool) -> (Place, Child) {
    let place = Place::empty("slow");
    let rate = if state { format!("{rate} journal: {{}},") } else { rate.to_owned() };
    place.write("workflow.yaml", WORKFLOW.replace("RATE", &rate));
    let (workflow, folder) = (place.argument("workflow.yaml"), place.argument("state"));
    let mut arguments = vec!["run", &workflow, "--quiet"];
    if state {
        arguments.extend(["--state", &folder]);
    }
    let child = command(&arguments).stdin(Stdio::piped()).spawn().unwrap();
    (place, child)
}

/// A producer that waits for the answer to each row would wait for ever.
fn each_row_is_answered(rate: &str, state: bool) {
    let (_place, mut child) = start(rate, state);
    let (mut rows, mut answers) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
    for n in [1, 3, 5, 7] {
        writeln!(rows, "{{\"n\": {n}}}").unwrap();
        let mut answer = String::new();
        answers.read_line(&mut answer).unwrap();
        assert_eq!(answer, format!("{{\"n\":{n}}}\n"));
    }
    drop(rows);
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_row_of_standard_input_is_answered_before_the_next_one() {
    each_row_is_answered("", false);
}

#[test]
fn so_it_is_where_the_stream_is_slower_than_its_rate() {
    each_row_is_answered("rate: 1000/s,", false);
}

#[test]
fn so_it_is_where_the_stream_has_a_journal() {
    each_row_is_answered("", true);
}

/// Rows that were visible are visible again though no other comes: a continued run reads them in the journal, which also
/// has the end of their epoch.
#[test]
fn rows_that_were_seen_are_seen_again_though_no_other_comes() {
    let place = Place::empty("silent");
    place.write(
        "workflow.yaml",
        WORKFLOW
            .replace("RATE", "journal: {},")
            .replace("'-'", "events.pipe")
            .replace("kind: stdout, input: odd", "kind: jsonl, input: odd, options: {path: out.jsonl}"),
    );
    let pipe = place.path("events.pipe");
    mknodat(CWD, &pipe, FileType::Fifo, 0o600.into(), 0).unwrap();
    let flags = OFlags::NONBLOCK.bits() as i32;
    // Held open, so that its content stays.
    let mut rows = OpenOptions::new().read(true).write(true).custom_flags(flags).open(&pipe).unwrap();
    let (workflow, state) = (place.argument("workflow.yaml"), place.argument("state"));
    let start = || command(&["run", &workflow, "--state", &state, "--quiet"]).spawn().unwrap();
    let seen = |expected: &str| {
        let found = || std::fs::read_to_string(place.path("out.jsonl")).unwrap_or_default();
        for _ in 0..3000 {
            if found() == expected {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("{:?} instead of {expected:?}", found());
    };
    let mut all = String::new();
    for kill in 0..4 {
        let mut child = start();
        // Nothing new comes before the earlier rows are visible again.
        seen(&all);
        for n in [1, 3, 5] {
            writeln!(rows, "{{\"n\": {}}}", 6 * kill + n).unwrap();
            all += &format!("{{\"n\":{}}}\n", 6 * kill + n);
            seen(&all);
        }
        child.kill().unwrap();
        assert!(!child.wait().unwrap().success());
        // Shows that the next process has cut the file back.
        OpenOptions::new()
            .append(true)
            .open(place.path("out.jsonl"))
            .unwrap()
            .write_all(b"not ours")
            .unwrap();
    }
    let mut last = start();
    seen(&all);
    last.kill().unwrap();
    last.wait().unwrap();
}
