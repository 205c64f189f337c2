//! The reported latency of a run is at least the one observed by a reader of its sink.
use crate::command::{Place, command, tidemill};
use serde_json::Value;
use std::io::{ErrorKind, Read};
use std::process::{Child, ChildStdout, Stdio};
use std::time::Duration;

const RATE: usize = 200;
const ROWS: usize = 400;

/// Numbered rows, one every 5 ms, to a sink.
fn place(sink: &str, run: &str, slo: &str) -> Place {
    let place = Place::empty("latency");
    let lines: String = (0..ROWS).map(|n| format!("{n}\n")).collect();
    place.write("numbers.csv", format!("n\n{lines}"));
    place.write(
        "workflow.yaml",
        format!(
            "version: 1
name: numbers
sources: [{{id: numbers, kind: csv, rate: {RATE}/s, options: {{path: numbers.csv, columns: {{n: int64}}}}}}]
sinks: [{{id: out, input: numbers, {sink}}}]
slo: {{{slo}}}
run: {{{run}}}
"
        ),
    );
    place
}

#[expect(clippy::disallowed_methods, reason = "a reader outside of the run has a clock of its own")]
fn clock() -> impl Fn() -> f64 {
    let begin = std::time::Instant::now();
    move || begin.elapsed().as_secs_f64() * 1e3
}

/// Polls the number of rows visible to a reader, and returns the least delay of each row when it appeared, in milliseconds,
/// sorted: a row that is absent at the start of a poll appears later.
///
/// The run's own zero is unknown; but no row appears before it is due, so it is before all `seen - due`.
fn delays(child: &mut Child, mut rows: impl FnMut(&mut Child) -> usize) -> Vec<f64> {
    let now = clock();
    // Start of the last poll without a row, and end of the first one with it.
    let mut shown: Vec<(f64, f64)> = Vec::new();
    let mut before = 0.0;
    while shown.len() < ROWS {
        let at = now();
        let count = rows(child);
        let after = now();
        shown.resize(count, (before, after));
        before = at;
        let ended = child.try_wait().unwrap();
        assert!(ended.is_none_or(|status| status.success()) || count == ROWS, "{ended:?}, {count} rows");
        std::thread::sleep(Duration::from_millis(2));
    }
    let due = |row: usize| row as f64 * 1e3 / RATE as f64;
    let zero =
        shown.iter().enumerate().map(|(row, (_, after))| after - due(row)).fold(f64::INFINITY, f64::min);
    let mut delays: Vec<f64> =
        shown.iter().enumerate().map(|(row, (before, _))| before - due(row) - zero).collect();
    delays.sort_by(f64::total_cmp);
    delays
}

/// Compares the reported figures with the reader's. Waiting times are exact to a thousandth of the longest wait.
#[track_caller]
fn agree(delays: &[f64], report: &Value) {
    let sink = &report["sinks"][0];
    let (latency, arrival) = (&sink["latency"], &sink["arrival"]);
    assert_eq!(latency["count"], ROWS, "{sink:#}");
    for (name, percentile) in [("p50_ms", 50), ("p95_ms", 95)] {
        let seen = delays[ROWS * percentile / 100 - 1];
        let reported = latency[name].as_f64().unwrap();
        assert!(reported >= seen - 2.0, "{name}: the reader waited {seen} ms or more: {sink:#}");
        // The reader did wait, so the assertion above is meaningful.
        assert!(seen > 50.0, "{name}: {seen} ms: {sink:#}");
    }
    assert!(arrival["p50_ms"].as_f64() < latency["p50_ms"].as_f64(), "{sink:#}");
}

#[test]
fn a_file_shows_rows_no_later_than_reported() {
    let place = place(
        "kind: jsonl, options: {path: out.jsonl}",
        "tick: 400ms, checkpoint_every: 20",
        "latency: {percentile: p99, below: 1us}",
    );
    let arguments = ["run", &place.argument("workflow.yaml"), "--output", "json"];
    let mut child = command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let path = place.path("out.jsonl");
    let rows = |_: &mut Child| {
        let bytes = std::fs::read(&path).unwrap_or_default();
        bytes.iter().filter(|byte| **byte == b'\n').count()
    };
    let delays = delays(&mut child, rows);
    let output = child.wait_with_output().unwrap();
    agree(&delays, &serde_json::from_slice(&output.stdout).unwrap());
}

#[test]
#[ignore = "long: make test-long"]
fn a_pipe_shows_rows_no_later_than_reported() {
    let place = place("kind: stdout", "tick: 400ms", "");
    let arguments = ["run", &place.argument("workflow.yaml"), "--output", "json"];
    let mut child = command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut pipe = child.stdout.take().unwrap();
    rustix::io::ioctl_fionbio(&pipe, true).unwrap();
    let mut count = 0;
    let rows = move |_: &mut Child| {
        count += lines(&mut pipe);
        count
    };
    let delays = delays(&mut child, rows);
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    let report = &stderr[stderr.find("{\n").unwrap()..];
    agree(&delays, &serde_json::from_str(report).unwrap());
}

/// Lines that are in the pipe now.
fn lines(pipe: &mut ChildStdout) -> usize {
    let mut bytes = vec![0; 1 << 16];
    let mut count = 0;
    loop {
        match pipe.read(&mut bytes) {
            Ok(0) => return count,
            Ok(read) => count += bytes[..read].iter().filter(|byte| **byte == b'\n').count(),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return count,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_level_that_the_tick_misses_names_the_setting() {
    let place = place(
        "kind: jsonl, options: {path: out.jsonl}",
        "tick: 400ms, checkpoint_every: 2",
        "latency: {percentile: p99, below: 300ms}",
    );
    let stdout = tidemill(&["run", &place.argument("workflow.yaml")]).expect(0).stdout;
    assert!(stdout.contains("latency  MISSED") && stdout.contains("out: at the sink after p50"), "{stdout}");
    let (before, after) = stdout.split_once("write `tick: ").expect(&stdout);
    assert!(before.contains("at the end of a tick of 400ms"), "{stdout}");
    let shorter: u32 = after.split_once("ms`").expect(&stdout).0.parse().unwrap();
    assert!((1..=300).contains(&shorter), "{stdout}");
}

#[test]
fn a_parquet_file_is_visible_when_the_run_ends() {
    let place = place(
        "kind: parquet, options: {path: out.parquet}",
        "tick: 50ms, checkpoint_every: 2",
        "latency: {percentile: p50, below: 500ms}",
    );
    let stdout = tidemill(&["run", &place.argument("workflow.yaml")]).expect(0).stdout;
    for text in ["latency  MISSED", "readers see the file when the run ends", "kind `jsonl` or `csv`"] {
        assert!(stdout.contains(text), "{text}: {stdout}");
    }
}
