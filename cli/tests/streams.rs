//! Sources that can be read only once: standard input, pipes, devices.
use crate::command::{Outcome, Place, command, tidemill};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};

/// A workflow that copies the column `n` of a source to `out.jsonl`.
fn place(kind: &str, path: &str) -> Place {
    let place = Place::empty("stream");
    place.write(
        "workflow.yaml",
        format!(
            "version: 1
name: stream
sources: [{{id: rows, kind: {kind}, options: {{path: '{path}', columns: {{n: int64}}}}}}]
sinks: [{{id: out, kind: jsonl, input: rows, options: {{path: out.jsonl}}}}]
"
        ),
    );
    place
}

/// More than all buffers on the path hold.
const ROWS: i64 = 100_000;

fn text(kind: &str) -> String {
    let row = |n: i64| if kind == "csv" { format!("{n}\n") } else { format!("{{\"n\":{n}}}\n") };
    let header = if kind == "csv" { "n\n" } else { "" };
    format!("{header}{}", (0..ROWS).map(row).collect::<String>())
}

fn outcome(child: Child) -> Outcome {
    let output = child.wait_with_output().unwrap();
    Outcome {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

fn numbers(place: &Place) -> Vec<i64> {
    place.rows("out.jsonl").iter().map(|row| row["n"].as_i64().unwrap()).collect()
}

#[test]
fn every_row_of_standard_input_arrives() {
    for kind in ["csv", "jsonl"] {
        for path in ["-", "/dev/stdin"] {
            let place = place(kind, path);
            let mut child =
                command(&["run", &place.argument("workflow.yaml")]).stdin(Stdio::piped()).spawn().unwrap();
            child.stdin.take().unwrap().write_all(text(kind).as_bytes()).unwrap();
            let outcome = outcome(child).expect(0);
            assert!(
                outcome.stderr.contains("source `rows` reads standard input until its end"),
                "{}",
                outcome.stderr
            );
            assert!(numbers(&place).into_iter().eq(0..ROWS), "{kind} {path}");
        }
    }
}

#[test]
fn a_file_behind_standard_input_is_a_file() {
    let place = place("csv", "-");
    place.write("rows.csv", "n\n1\n2\n");
    let file = std::fs::File::open(place.path("rows.csv")).unwrap();
    let outcome = outcome(command(&["run", &place.argument("workflow.yaml")]).stdin(file).spawn().unwrap());
    assert_eq!(outcome.expect(0).stderr, "");
    assert_eq!(numbers(&place), [1, 2]);
}

#[test]
fn validate_takes_nothing_from_a_stream() {
    let place = place("csv", "-");
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(b"n\n1\n").unwrap();
    let stdin = Stdio::from(reader.try_clone().unwrap());
    // The writer stays open: waiting for the end would take for ever.
    let child = command(&["validate", &place.argument("workflow.yaml")]).stdin(stdin).spawn().unwrap();
    let outcome = outcome(child).expect(0);
    assert!(
        outcome
            .stderr
            .contains("source `rows` reads standard input: its content is checked when the run starts"),
        "{}",
        outcome.stderr
    );
    drop(writer);
    assert_eq!(std::io::read_to_string(&mut reader).unwrap(), "n\n1\n");
}

#[test]
fn what_is_wrong_with_a_stream_is_told_by_the_run() {
    let place = place("csv", "-");
    let mut child =
        command(&["run", &place.argument("workflow.yaml")]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"N\n1\n").unwrap();
    let outcome = outcome(child).expect(69);
    for part in ["standard input: the first line does not name the declared column `n`", "did you mean `N`?"]
    {
        assert!(outcome.stderr.contains(part), "{}", outcome.stderr);
    }
}

/// A run that reads the pipe `pipe`, once it reports that.
fn run_of_pipe(place: &Place) -> Child {
    let pipe = place.path("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let mut child = command(&["run", &place.argument("workflow.yaml")]).spawn().unwrap();
    let mut told = BufReader::new(child.stderr.as_mut().unwrap());
    let mut line = String::new();
    told.read_line(&mut line).unwrap();
    let real = pipe.canonicalize().unwrap();
    assert_eq!(line, format!("source `rows` reads the pipe `{}` until its end\n", real.display()));
    child
}

#[test]
fn every_row_of_a_pipe_arrives() {
    let place = place("csv", "pipe");
    let child = run_of_pipe(&place);
    OpenOptions::new()
        .write(true)
        .open(place.path("pipe"))
        .unwrap()
        .write_all(text("csv").as_bytes())
        .unwrap();
    outcome(child).expect(0);
    assert!(numbers(&place).into_iter().eq(0..ROWS));
}

#[test]
fn a_run_that_waits_for_a_pipe_ends_at_the_first_signal() {
    for signal in [Signal::INT, Signal::TERM] {
        let place = place("csv", "pipe");
        let child = run_of_pipe(&place);
        kill_process(Pid::from_child(&child), signal).unwrap();
        outcome(child).expect(130);
    }
}

#[test]
fn a_line_without_end_ends_the_run() {
    let place = place("jsonl", "/dev/zero");
    tidemill(&["validate", &place.argument("workflow.yaml")]).expect(0);
    let outcome = tidemill(&["run", &place.argument("workflow.yaml")]).expect(69);
    let told = "cannot read the device `/dev/zero`: line 1 has no end within 1GiB";
    assert!(outcome.stderr.contains(told), "{}", outcome.stderr);
}

#[test]
fn a_stream_is_not_taken_to_measure_with() {
    let place = place("jsonl", "/dev/zero");
    place.change(
        "workflow.yaml",
        "sinks:",
        "operators: [{id: all, kind: filter, input: rows, options: {where: n > 0}}]\nsinks:",
    );
    place.change("workflow.yaml", "input: rows, options: {path", "input: all, options: {path");
    let profile = place.argument("profile.yaml");
    let outcome = tidemill(&[
        "profile",
        &place.argument("workflow.yaml"),
        "--infra",
        "examples/vqa/infrastructure.yaml",
        "--out",
        &profile,
    ])
    .expect(78);
    let told =
        "`rows` reads the device `/dev/zero`, which can be read only once: save a part of it as a file";
    assert!(outcome.stderr.contains(told), "{}", outcome.stderr);
}

#[test]
fn a_source_of_dead_letters_only_is_told() {
    let place = place("csv", "rows.csv");
    place.write("rows.csv", "n\nx\ny\n");
    let workflow = place.read("workflow.yaml");
    let more = workflow
        .replace(
            "sources: [",
            "sources: [{id: more, kind: csv, options: {path: more.csv, columns: {n: int64}}}, ",
        )
        .replace("sinks: [", "sinks: [{id: screen, kind: stdout, input: more}, ");
    place.write("workflow.yaml", more);
    place.write("more.csv", "n\n1\n");
    let told = tidemill(&["run", &place.argument("workflow.yaml"), "--quiet"]).expect(0).stderr;
    assert_eq!(
        told,
        "warning: all records of source `rows` are dead letters, 2 of them, mostly for the reason \
         `bad_value`: do its columns and their types match the data?\n"
    );
}
