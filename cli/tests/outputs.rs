//! Outputs and their obstacles: pipes, readers that leave, full disks, signals.
use crate::command::{Outcome, Place, command, rows, tidemill};
use crate::live::{end, interrupt, until};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

/// Rows without a rate, and their output.
fn place(rows: u32, sink: &str) -> Place {
    let place = Place::empty("outputs");
    let lines: String = (0..rows).map(|n| format!("{n},some text of the row\n")).collect();
    place.write("rows.csv", format!("n,text\n{lines}"));
    place.write(
        "workflow.yaml",
        format!(
            "version: 1
name: outputs
sources: [{{id: rows, kind: csv, options: {{path: rows.csv, columns: {{n: int64, text: text}}}}}}]
sinks: [{{id: out, {sink}, input: rows}}]
run: {{tick: 10ms, checkpoint_every: 2}}
"
        ),
    );
    place
}

fn fifo(place: &Place, name: &str) {
    assert!(Command::new("mkfifo").arg(place.path(name)).status().unwrap().success());
}

/// One call of every verb with output, in these forms.
fn every_verb(place: &Place, forms: &[&str]) -> Vec<Vec<String>> {
    let workflow = place.argument("workflow.yaml");
    let vqa = "examples/vqa/workflow.yaml";
    let planning = crate::command::FILES;
    let mut calls: Vec<Vec<&str>> = vec![
        vec!["--help"],
        vec!["--version"],
        vec!["run", "--help"],
        vec!["schema"],
        vec!["man"],
        vec!["completions", "bash"],
        vec!["graph", &workflow],
        vec!["graph", &workflow, "--format", "svg"],
        vec!["profile", "show", "cli/tests/planning/profile.yaml"],
    ];
    for &form in forms {
        calls.push(vec!["validate", &workflow, "--output", form]);
        calls.push(vec!["doctor", "--output", form]);
        calls.push(vec!["version", "--output", form]);
        calls.push(vec!["models", "ls", "models/vqa", "--output", form]);
        calls.push(vec!["models", "inspect", "models/vqa/answerer-small.yaml", "--output", form]);
        calls.push(vec!["run", &workflow, "--output", form]);
        calls.push([&["plan", vqa], &planning[..], &["--output", form]].concat());
        calls.push([&["explain", vqa], &planning[..], &["--output", form]].concat());
        calls.push([&["requirements", vqa], &planning[2..4], &["--output", form]].concat());
    }
    calls.into_iter().map(|call| call.into_iter().map(str::to_owned).collect()).collect()
}

fn outcome(mut command: Command) -> Outcome {
    let output = command.output().unwrap();
    Outcome {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Checks calls whose reader is gone, and whose output is on a full disk.
fn check_obstacles(calls: Vec<Vec<String>>) {
    for call in calls {
        let arguments: Vec<&str> = call.iter().map(String::as_str).collect();
        let taken = tidemill(&arguments);
        assert!(!taken.stdout.is_empty(), "{call:?} answers nothing: {}", taken.stderr);
        // A pipe whose reader is gone before anything is written.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut left = command(&arguments);
        left.stdout(writer);
        let left = outcome(left);
        assert_eq!(
            (left.code, &left.stderr.contains("roken pipe")),
            (taken.code, &false),
            "{call:?}: {}",
            left.stderr
        );
        let mut full = command(&arguments);
        full.stdout(OpenOptions::new().write(true).open("/dev/full").unwrap());
        let full = outcome(full);
        assert_eq!(full.code, Some(69), "{call:?}: {}", full.stderr);
        let printed = full.stderr.matches("cannot write to standard output: No space left").count();
        assert_eq!(printed, 1, "{call:?}: {}", full.stderr);
    }
}

#[test]
fn a_run_is_quiet_about_a_reader_that_left_and_tells_a_full_disk() {
    let place = place(3, "kind: jsonl, options: {path: out.jsonl}");
    let mut calls = every_verb(&place, &["table"]);
    calls.retain(|call| ["run", "validate", "version"].contains(&call[0].as_str()));
    assert!(calls.len() >= 3);
    check_obstacles(calls);
}

#[test]
#[ignore = "long: make test-long"]
fn every_verb_is_quiet_about_a_reader_that_left_and_tells_a_full_disk() {
    let place = place(3, "kind: jsonl, options: {path: out.jsonl}");
    check_obstacles(every_verb(&place, &["table", "json"]));
}

#[test]
fn a_full_disk_for_the_answer_keeps_nothing_else_from_being_written() {
    let place = place(3, "kind: jsonl, options: {path: out.jsonl}");
    let (workflow, report) = (place.argument("workflow.yaml"), place.argument("report.json"));
    let mut run = command(&["run", &workflow, "--report-json", &report]);
    run.stdout(OpenOptions::new().write(true).open("/dev/full").unwrap());
    outcome(run).expect(69);
    assert!(place.read("report.json").contains("\"complete\": true"));
}

/// Checks sinks that write to standard output.
fn counts_rows_for_a_reader_that_leaves(sinks: &[&str]) {
    for sink in sinks {
        let place = place(200_000, sink);
        let mut child =
            command(&["run", &place.argument("workflow.yaml"), "--output", "json"]).spawn().unwrap();
        let mut first = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap();
        assert!(first.starts_with("{\"n\":0,") || first == "n,text\n", "{first}");
        let (code, _, stderr) = end(child);
        assert_eq!(code, Some(0), "{stderr}");
        let report = match sink.contains("/dev") {
            // The report follows the rows on stdout then, which has no reader any more.
            true => continue,
            false => serde_json::from_str::<serde_json::Value>(&stderr).unwrap(),
        };
        let written = report["sinks"][0]["records"].as_u64().unwrap();
        assert!((1..100_000).contains(&written), "{sink}: {written} of 200000");
        assert_eq!(report["sinks"][0]["reader_gone"], true, "{sink}");
    }
}

#[test]
fn rows_for_a_reader_that_leaves_are_counted() {
    counts_rows_for_a_reader_that_leaves(&["kind: stdout"]);
    let place = place(1000, "kind: stdout");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut run = command(&["run", &place.argument("workflow.yaml")]);
    run.stdout(writer);
    let printed = outcome(run).expect(0).stderr;
    assert!(printed.contains("out: its reader left; it wrote 0 records until then"), "{printed}");
}

#[test]
#[ignore = "long: make test-long"]
fn rows_of_files_for_a_reader_that_leaves_are_counted() {
    counts_rows_for_a_reader_that_leaves(&[
        "kind: jsonl, options: {path: '-'}",
        "kind: csv, options: {path: /dev/stdout}",
    ]);
}

#[test]
fn rows_go_into_a_named_pipe_as_they_come() {
    for (kind, lines) in [("jsonl", 300), ("csv", 301)] {
        let place = place(300, &format!("kind: {kind}, options: {{path: pipe}}"));
        fifo(&place, "pipe");
        let child = command(&["run", &place.argument("workflow.yaml")]).spawn().unwrap();
        let mut text = String::new();
        File::open(place.path("pipe")).unwrap().read_to_string(&mut text).unwrap();
        let (code, stdout, stderr) = end(child);
        assert_eq!(code, Some(0), "{stdout}{stderr}");
        assert_eq!(text.lines().count(), lines);
        assert!(text.ends_with('\n'));
    }
}

#[test]
fn a_minus_is_standard_output_and_the_report_makes_room() {
    let place = place(3, "kind: csv, options: {path: '-', columns: [n]}");
    let outcome = tidemill(&["run", &place.argument("workflow.yaml")]).expect(0);
    assert_eq!(outcome.stdout, "n\n0\n1\n2\n");
    assert!(outcome.stderr.contains("outputs: complete"), "{}", outcome.stderr);
    assert!(!place.path("-").exists());
}

#[test]
fn an_interrupt_ends_a_run_whose_reader_does_not_read() {
    let place = place(200_000, "kind: stdout");
    place.change(
        "workflow.yaml",
        "input: rows}]",
        "input: rows}, {id: kept, kind: parquet, input: rows, options: {path: kept.parquet}}]",
    );
    let mut child = command(&["run", &place.argument("workflow.yaml")]).spawn().unwrap();
    // One line is read, then nothing more; the pipe is full soon.
    let mut reader = BufReader::with_capacity(64, child.stdout.take().unwrap());
    reader.read_line(&mut String::new()).unwrap();
    until(|| waits_in_poll(child.id()));
    interrupt(&child);
    let (code, _, stderr) = end(child);
    assert_eq!(code, Some(130), "{stderr}");
    assert!(stderr.contains("outputs: interrupted"), "{stderr}");
    let kept = std::fs::read(place.path("kept.parquet")).unwrap();
    assert!(kept.ends_with(b"PAR1"), "the other sink got its end");
    drop(reader);
}

/// Whether a thread of a slot of the process waits in `poll`.
fn waits_in_poll(process: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    threads.flatten().any(|thread| {
        let read = |file: &str| std::fs::read_to_string(thread.path().join(file)).unwrap_or_default();
        let call = read("syscall");
        // 7 and 271 are poll and ppoll on x86-64, 73 is ppoll on AArch64.
        let polls = ["7 ", "271 ", "73 "].iter().any(|number| call.starts_with(number));
        read("comm").starts_with("tm-slot") && polls
    })
}

#[test]
fn an_interrupt_ends_a_run_that_waits_for_the_other_end_of_a_pipe() {
    // Neither the writer of the source nor the reader of the sink comes.
    for (from, to) in [("path: rows.csv", "path: pipe"), ("path: out.jsonl", "path: pipe")] {
        let place = place(3, "kind: jsonl, options: {path: out.jsonl}");
        place.change("workflow.yaml", from, to);
        fifo(&place, "pipe");
        let child =
            command(&["run", &place.argument("workflow.yaml")]).stdout(Stdio::piped()).spawn().unwrap();
        until(|| listens(child.id()));
        interrupt(&child);
        let (code, _, stderr) = end(child);
        assert_eq!(code, Some(130), "{from}: {stderr}");
    }
}

/// Whether the process has its thread for signals, so that it handles them.
fn listens(process: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    threads.flatten().any(|thread| {
        std::fs::read_to_string(thread.path().join("comm")).is_ok_and(|name| name.trim() == "signals")
    })
}

#[test]
fn a_killed_run_leaves_no_parquet_file_and_a_readable_epoch_log() {
    let place = place(200_000, "kind: parquet, options: {path: out.parquet}");
    place.change("workflow.yaml", "kind: csv, options", "kind: csv, rate: 2000/s, options");
    let (workflow, log) = (place.argument("workflow.yaml"), place.argument("epochs.jsonl"));
    let mut child = command(&["run", &workflow, "--epoch-log", &log]).spawn().unwrap();
    until(|| std::fs::read_to_string(place.path("epochs.jsonl")).is_ok_and(|log| log.lines().count() > 20));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!place.path("out.parquet").exists(), "nothing looks like a result");
    let mut text = place.read("epochs.jsonl");
    assert!(text.lines().count() > 20);
    // Truncated in its last line.
    text.truncate(text.trim_end().len() - 5);
    place.write("epochs.jsonl", text);
    place.change(
        "workflow.yaml",
        "kind: parquet, options: {path: out.parquet}",
        "kind: jsonl, options: {path: out.jsonl}",
    );
    let report =
        tidemill(&["run", &workflow, "--replay", &log, "--rate", "max", "--output", "json"]).expect(0).json();
    let replayed = report["sinks"][0]["records"].as_u64().unwrap();
    assert!((20..20_000).contains(&replayed), "{replayed}: the epochs that were logged, not the whole file");
    let left = [".out.parquet.lock", "epochs.jsonl", "out.jsonl", "rows.csv", "workflow.yaml"];
    assert_eq!(place.files(""), left);
}

#[test]
fn a_run_that_does_not_start_leaves_the_epoch_log_of_the_one_before() {
    let place = place(100, "kind: jsonl, options: {path: out.jsonl}");
    let (workflow, log) = (place.argument("workflow.yaml"), place.argument("epochs.jsonl"));
    let run = |more: &[&str]| tidemill(&[&["run", &workflow, "--epoch-log", &log], more].concat());
    run(&[]).expect(0);
    let before = place.read("epochs.jsonl");
    assert!(before.lines().count() > 1, "{before}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    run(&["--metrics", &taken.local_addr().unwrap().to_string()]).expect(69);
    run(&["--accept-changes"]).expect(2);
    assert_eq!(place.read("epochs.jsonl"), before);
}

#[test]
#[ignore = "long: make test-long"]
fn a_replay_stops_where_the_run_was_interrupted() {
    let place = place(100_000, "kind: jsonl, options: {path: out.jsonl}");
    place.change("workflow.yaml", "kind: csv, options", "kind: csv, rate: 2000/s, options");
    let (workflow, log) = (place.argument("workflow.yaml"), place.argument("epochs.jsonl"));
    let child = command(&["run", &workflow, "--epoch-log", &log, "--output", "json"]).spawn().unwrap();
    until(|| std::fs::metadata(place.path("out.jsonl")).is_ok_and(|file| file.len() > 0));
    interrupt(&child);
    let (code, stdout, stderr) = end(child);
    assert_eq!(code, Some(130), "{stderr}");
    let first = place.rows("out.jsonl");
    let report: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    let read = report["stages"][0]["records_out"].as_u64().unwrap();
    tidemill(&["run", &workflow, "--replay", &log, "--rate", "max"]).expect(0);
    let again = place.rows("out.jsonl");
    assert_eq!(again[..first.len()], first[..], "it begins with what was committed");
    assert_eq!(again.len() as u64, read, "and ends with the last record that was read");
}

#[test]
fn too_many_dead_letters_are_a_no() {
    let place = place(1000, "kind: jsonl, options: {path: out.jsonl}");
    let bad: String =
        (0..990).map(|n| format!("{n},x\n")).chain((0..10).map(|n| format!("bad{n},x\n"))).collect();
    place.write("rows.csv", format!("n,text\n{bad}"));
    let workflow = place.argument("workflow.yaml");
    let run = |limit: &str| tidemill(&["run", &workflow, "--max-dead-letters", limit, "--output", "json"]);
    for limit in ["10", "1%", "100%"] {
        let report = run(limit).expect(0).json();
        assert_eq!(report["max_dead_letters"]["passed"], false, "{limit}: {report}");
    }
    for limit in ["9", "0.9%", "0"] {
        let outcome = run(limit).expect(1);
        let verdict = &outcome.json()["max_dead_letters"];
        assert_eq!((&verdict["passed"], &verdict["dead_letters"]), (&true.into(), &10.into()), "{limit}");
        for part in ["`--max-dead-letters`", "rows: bad_value: 10, such as:", "bad0"] {
            assert!(outcome.stderr.contains(part), "{limit}: {}", outcome.stderr);
        }
    }
    let wrong = tidemill(&["run", &workflow, "--max-dead-letters", "many"]).expect(2);
    assert!(wrong.stderr.contains("neither a number such as `0` or `100` nor a share"), "{}", wrong.stderr);
}

#[test]
fn a_run_ends_as_soon_as_it_has_too_many_dead_letters() {
    let place = place(10, "kind: jsonl, options: {path: out.jsonl}");
    place.write("rows.csv", format!("n,text\n{}", "bad,x\n".repeat(10)));
    // It would run for ever.
    place.change("workflow.yaml", "kind: csv, options", "kind: csv, rate: 100/s, repeat: true, options");
    let child =
        command(&["run", &place.argument("workflow.yaml"), "--max-dead-letters", "20"]).spawn().unwrap();
    let (code, stdout, stderr) = end(child);
    assert_eq!(code, Some(1), "{stdout}{stderr}");
    assert!(stdout.contains("outputs: not complete"), "{stdout}");
    assert!(stdout.contains("rows: NO USABLE RECORD: all "), "{stdout}");
}

#[test]
fn too_few_open_files_name_the_limit_and_the_need() {
    let place = place(3, "kind: jsonl, options: {path: out.jsonl}");
    let script = "ulimit -n 12 && exec \"$0\" run workflow.yaml";
    let mut shell = Command::new("sh");
    shell.args(["-c", script, env!("CARGO_BIN_EXE_tidemill")]).current_dir(place.path(""));
    let printed = outcome(shell).stderr;
    assert!(printed.contains("this run opens up to about ") && printed.contains("`ulimit -n "), "{printed}");
    // A soft limit is raised.
    let script = "ulimit -Sn 12 && exec \"$0\" run workflow.yaml";
    let mut shell = Command::new("sh");
    shell.args(["-c", script, env!("CARGO_BIN_EXE_tidemill")]).current_dir(place.path(""));
    assert_eq!(outcome(shell).expect(0).stderr, "");
    assert_eq!(rows(&place.read("out.jsonl")).len(), 3);
}
