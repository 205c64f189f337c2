//! A running job: signals, metrics, progress.
use crate::command::{Place, command, rows};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Child;
use std::time::Duration;

/// A run that would take minutes and writes continuously.
pub(crate) fn endless() -> Place {
    let place = Place::empty("live");
    let lines: String = (0..20_000).map(|n| format!("{n},{}\n", n % 7)).collect();
    place.write("numbers.csv", format!("n,rest\n{lines}"));
    place.write(
        "workflow.yaml",
        "version: 1
name: live
sources:
  - id: numbers
    kind: csv
    rate: 200/s
    options: {path: numbers.csv, columns: {n: int64, rest: int64}}
operators: [{id: some, kind: filter, input: numbers, options: {where: rest < 5}}]
sinks: [{id: out, kind: jsonl, input: some, options: {path: out/numbers.jsonl}}]
run: {tick: 20ms, checkpoint_every: 5, dead_letters: out/dead.jsonl}
",
    );
    place
}

pub(crate) fn interrupt(child: &Child) {
    kill_process(Pid::from_child(child), Signal::INT).unwrap();
}

/// Waits until something holds; the limit is only a watch-dog.
#[track_caller]
pub(crate) fn until(holds: impl Fn() -> bool) {
    for _ in 0..600 {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("that took too long");
}

/// Waits for the first committed line.
pub(crate) fn until_committed(place: &Place) {
    until(|| std::fs::metadata(place.path("out/numbers.jsonl")).is_ok_and(|file| file.len() > 0));
}

/// Waits for the end; the limit is only a watch-dog.
pub(crate) fn end(mut child: Child) -> (Option<i32>, String, String) {
    for _ in 0..200 {
        if child.try_wait().unwrap().is_some() {
            let output = child.wait_with_output().unwrap();
            let text = |bytes| String::from_utf8(bytes).unwrap();
            return (output.status.code(), text(output.stdout), text(output.stderr));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    child.kill().unwrap();
    panic!("it does not end");
}

#[test]
fn an_interrupt_keeps_what_was_committed() {
    let place = endless();
    let child = command(&["run", &place.argument("workflow.yaml")]).spawn().unwrap();
    until_committed(&place);
    interrupt(&child);
    let (code, stdout, stderr) = end(child);
    assert_eq!(code, Some(130), "{stdout}{stderr}");
    assert!(stdout.contains("live: interrupted; committed rows stay"), "{stdout}");
    assert!(place.files("out").iter().all(|name| name.ends_with(".jsonl")), "{:?}", place.files("out"));
    let rows = rows(&place.read("out/numbers.jsonl"));
    assert!(!rows.is_empty());
    let numbers: Vec<i64> = rows.iter().map(|row| row["n"].as_i64().unwrap()).collect();
    let expected: Vec<i64> = (0..20_000).filter(|n| n % 7 < 5).take(numbers.len()).collect();
    assert_eq!(numbers, expected, "whole, in order, from the start");
}

#[test]
#[ignore = "long: make test-long"]
fn an_interrupt_abandons_inference_and_a_second_one_waits_for_nothing() {
    let place = Place::example("vqa");
    place.change("workflow.yaml", "    rate: 40/s\n", "    rate: 40/s\n    repeat: true\n");
    for signals in [1, 2] {
        let child = command(&["run", &place.argument("workflow.yaml")]).spawn().unwrap();
        until(|| std::fs::metadata(place.path("out/answers.jsonl")).is_ok_and(|file| file.len() > 0));
        for _ in 0..signals {
            interrupt(&child);
        }
        let (code, stdout, stderr) = end(child);
        assert_eq!(code, Some(130), "{stdout}{stderr}");
        if signals == 1 {
            rows(&place.read("out/answers.jsonl"));
            assert_eq!(place.files("out"), ["answers.jsonl", "dead_letters.jsonl"]);
        }
        std::fs::remove_dir_all(place.path("out")).unwrap();
    }
}

#[test]
fn a_run_of_a_given_length_ends_by_itself() {
    let place = endless();
    let child = command(&["run", &place.argument("workflow.yaml"), "--for", "500ms"]).spawn().unwrap();
    let (code, stdout, stderr) = end(child);
    assert_eq!(code, Some(0), "{stdout}{stderr}");
    assert!(stdout.contains("live: complete"), "{stdout}");
}

#[test]
fn batch_sizes_and_missed_levels_are_metrics() {
    let place = Place::example("vqa");
    let levels = "slo: {rate: 40/s, accuracy: 1%, latency: {percentile: p50, below: 1us}}";
    let text = place.read("workflow.yaml");
    let (before, after) = text.split_once("slo:").unwrap();
    let (_, after) = after.split_once("\nrun:").unwrap();
    place.write("workflow.yaml", format!("{before}{levels}\nrun:{after}"));
    let expected = [
        "# TYPE tidemill_model_batch_size histogram",
        "tidemill_model_batch_size_bucket{le=\"256.0\",workflow=\"vqa\",operator=\"speech\",stage=\"speech\",worker=\"local\",variant=\"",
        "# TYPE tidemill_slo_violations counter",
        "tidemill_slo_violations_total{workflow=\"vqa\",slo=\"rate\"} ",
        "tidemill_slo_violations_total{workflow=\"vqa\",slo=\"accuracy\"} ",
    ];
    place.change("workflow.yaml", "    rate: 40/s\n", "    rate: 40/s\n    repeat: true\n");
    let (mut child, address) = serving(&place);
    // The level is infeasible, so its windows are missed.
    let missed = |answer: &str| {
        let line = answer
            .lines()
            .find(|line| line.starts_with("tidemill_slo_violations_total") && line.contains("latency"));
        line.is_some_and(|line| !line.ends_with(" 0"))
    };
    until(|| missed(&get(&address, "/metrics")));
    let answer = get(&address, "/metrics");
    for part in expected {
        assert!(answer.contains(part), "{part} is not in\n{answer}");
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

/// A run that serves metrics, and its address.
#[expect(
    clippy::zombie_processes,
    reason = "the caller waits for it; where the test fails, its end takes all along"
)]
pub(crate) fn serving(place: &Place) -> (Child, String) {
    let arguments = ["run", &place.argument("workflow.yaml"), "--metrics", "127.0.0.1:0"];
    let mut child = command(&arguments).spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    loop {
        let mut line = String::new();
        assert!(stderr.read_line(&mut line).unwrap() > 0, "it ended");
        let address = line.trim().strip_prefix("metrics at http://");
        if let Some(address) = address.and_then(|rest| rest.strip_suffix("/metrics")) {
            let address = address.to_owned();
            // Its later output must be consumed.
            std::thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::sink()));
            return (child, address);
        }
    }
}

pub(crate) fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn metrics_are_served_while_it_runs() {
    let place = endless();
    let (child, address) = serving(&place);
    until_committed(&place);
    let answer = get(&address, "/metrics");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\ncontent-type: application/openmetrics-text"), "{answer}");
    assert!(answer.ends_with("# EOF\n"), "{answer}");
    for expected in [
        "# TYPE tidemill_operator_records counter",
        "tidemill_operator_records_total{workflow=\"live\",operator=\"some\",stage=\"some\",worker=\"local\",direction=\"in\"} ",
        "# TYPE tidemill_operator_queue_seconds histogram",
        "tidemill_operator_compute_seconds_bucket{",
        "# TYPE tidemill_edge_transfer_seconds histogram",
        "# TYPE tidemill_edge_bytes counter",
        "tidemill_records_dropped_total{",
        "reason=\"filtered\"",
        "# TYPE tidemill_dead_letters counter",
        "tidemill_end_to_end_latency_seconds_bucket{le=\"+Inf\",workflow=\"live\",sink=\"out\"} ",
    ] {
        assert!(answer.contains(expected), "{expected} is not in\n{answer}");
    }
    assert!(get(&address, "/").starts_with("HTTP/1.1 404"));
    interrupt(&child);
    let (code, ..) = end(child);
    assert_eq!(code, Some(130));
}
