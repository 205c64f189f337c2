//! Runs that keep their state and read streams: killed, and continued from their journals; through the built binary.
use crate::command::{Place, command, tidemill};
use crate::journals_of_workers::PLAN;
use crate::states::parquet_rows;
use rustix::fs::{CWD, FileType, OFlags, mknodat};
use serde_json::Value;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tidemill_random::Random;

const WORKFLOW: &str = "version: 1
name: streamed
sources:
  - id: events
    kind: KIND
    JOURNAL
    options: {path: PATH, columns: {key: text, at: int64, value: int64}, event_time: at, out_of_order: 1s}
operators:
  - {id: some, kind: filter, input: events, options: {where: \"value % 7 != 3\"}}
  - {id: counted, kind: window, input: some, options: {size: 1s, group_by: [key], aggregates: [{function: count, as: n}]}}
sinks:
  - {id: rows, kind: jsonl, input: some, options: {path: out/rows.jsonl, metadata: true}}
  - {id: table, kind: csv, input: counted, options: {path: out/counted.csv}}
  - {id: columns, kind: parquet, input: counted, options: {path: out/counted.parquet}}
run: {tick: 10ms, checkpoint_every: 1, dead_letters: out/dead.jsonl}
";

pub(crate) fn place(kind: &str, path: &str, journal: &str) -> Place {
    let place = Place::empty("streamed");
    let workflow = WORKFLOW.replace("KIND", kind).replace("PATH", path).replace("JOURNAL", journal);
    place.write("workflow.yaml", workflow);
    place
}

const ROWS: usize = 40_000;

/// Lines of irregular length, out of order within the bound, some of them unreadable.
pub(crate) fn text(kind: &str) -> String {
    let mut random = Random::of_seed(11);
    let mut all = if kind == "csv" { "key,at,value\n".to_owned() } else { String::new() };
    for i in 0..ROWS {
        let (key, at) = (i % 13, 1_700_000_000_000 + 3 * i - random.below(300));
        let key = format!("k{key}{}", "y".repeat(random.below(12) * usize::from(i % 5 == 0)));
        let value = if i % 1000 == 998 { "none".to_owned() } else { i.to_string() };
        all += &match kind {
            "csv" => format!("{key},{at},{value}\n"),
            _ => format!("{{\"key\":\"{key}\",\"at\":{at},\"value\":{value},\"more\":[{i}]}}\n"),
        };
    }
    all
}

fn start(place: &Place, stdin: Stdio) -> Child {
    let arguments = [&place.argument("workflow.yaml"), "--state", &place.argument("state")];
    let [workflow, state, folder] = arguments;
    let mut command = command(&["run", workflow, state, folder, "--checkpoint-interval", "20ms", "--quiet"]);
    command.stdin(stdin).spawn().unwrap()
}

/// The clock ends epochs of streams, and rows have an order only within each.
pub(crate) fn sorted_lines(text: &[u8]) -> Vec<u8> {
    let mut lines: Vec<_> = text.split_inclusive(|byte| *byte == b'\n').collect();
    lines.sort_unstable();
    lines.concat()
}

pub(crate) fn outputs(place: &Place) -> Vec<(&'static str, Vec<u8>)> {
    let files = ["out/rows.jsonl", "out/counted.csv", "out/dead.jsonl"];
    let mut all: Vec<_> =
        files.iter().map(|file| (*file, std::fs::read(place.path(file)).unwrap())).collect();
    for index in [0, 2] {
        all[index].1 = sorted_lines(&all[index].1);
    }
    all.push(("out/counted.parquet", parquet_rows(&place.path("out/counted.parquet"))));
    all
}

#[track_caller]
pub(crate) fn same(found: &[(&str, Vec<u8>)], expected: &[(&str, Vec<u8>)]) {
    for ((file, found), (_, expected)) in found.iter().zip(expected) {
        let at = found.iter().zip(expected).position(|(found, expected)| found != expected);
        assert!(
            found == expected,
            "{file}: {} bytes, {} expected, different at {at:?}: {}",
            found.len(),
            expected.len(),
            String::from_utf8_lossy(&found[at.unwrap_or(0)..(at.unwrap_or(0) + 200).min(found.len())])
        );
    }
}

#[track_caller]
pub(crate) fn succeeds(child: Child) -> String {
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{stderr}");
    stderr
}

/// Outputs of an undisturbed run without a journal.
pub(crate) fn undisturbed(kind: &str, text: &str) -> Vec<(&'static str, Vec<u8>)> {
    let place = place(kind, "'-'", "");
    let mut child = command(&["run", &place.argument("workflow.yaml"), "--quiet"]);
    let mut child = child.stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    succeeds(child);
    let outputs = outputs(&place);
    assert!(outputs.iter().all(|(file, content)| content.len() > 500 || panic!("{file} is nearly empty")));
    outputs
}

pub(crate) fn checkpoint(place: &Place) -> u64 {
    let Ok(text) = std::fs::read_to_string(place.path("state/manifest.json")) else { return 0 };
    let manifest: Value = serde_json::from_str(&text).unwrap();
    manifest["manifest"]["checkpoint"].as_u64().unwrap()
}

/// Bytes of the journal on disk.
fn journal_bytes(place: &Place) -> u64 {
    let Ok(entries) = std::fs::read_dir(place.path("state/journals/events")) else { return 0 };
    entries.filter_map(|entry| Some(entry.ok()?.metadata().ok()?.len())).sum()
}

/// End of the journal: its last segment, and the length of that.
pub(crate) fn journal_end(place: &Place) -> Option<(String, u64)> {
    let entries = std::fs::read_dir(place.path("state/journals/events")).ok()?;
    let segment = |entry: std::fs::DirEntry| {
        let name = entry.file_name().into_string().unwrap();
        let is_segment = name.ends_with(".journal");
        is_segment.then_some((name, entry.metadata().ok()?.len()))
    };
    entries.flatten().filter_map(segment).max()
}

/// Waits for a condition; fails if the process ends before.
#[track_caller]
pub(crate) fn until(child: &mut Child, what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..20_000 {
        if is_so() {
            return;
        }
        if child.try_wait().unwrap().is_some() {
            let told = child.stderr.take().map(std::io::read_to_string);
            panic!("it ended before {what}: {told:?}");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    panic!("{what} does not come");
}

/// Whether a process has a file open.
pub(crate) fn has_open(process: u32, path: &Path) -> bool {
    let path = path.canonicalize().unwrap();
    let Ok(entries) = std::fs::read_dir(format!("/proc/{process}/fd")) else { return false };
    entries.flatten().any(|entry| std::fs::read_link(entry.path()).is_ok_and(|found| found == path))
}

/// Feeds a part of the stream to the run bit by bit, at least until it has written a checkpoint or has all of it.
pub(crate) fn feed(place: &Place, mut writer: impl Write, part: &[u8]) {
    let before = checkpoint(place);
    for few in part.chunks(997) {
        writer.write_all(few).unwrap();
        if checkpoint(place) == before {
            std::thread::sleep(Duration::from_micros(500));
        }
    }
}

/// The whole rows that a follower of the file has seen.
fn seen(place: &Place) -> String {
    let mut rows = std::fs::read_to_string(place.path("out/rows.jsonl")).unwrap_or_default();
    rows.truncate(rows.rfind('\n').map_or(0, |end| end + 1));
    rows
}

/// Kills the run repeatedly while `writer` gets the text, in parts that end anywhere. Records the rows seen by then.
fn killed_again_and_again(
    place: &Place,
    text: &str,
    mut writer: impl Write,
    stdin: impl Fn() -> Stdio,
) -> Vec<String> {
    let (mut random, mut rest, mut all_seen) = (Random::of_seed(5), text.as_bytes(), Vec::new());
    while !rest.is_empty() {
        let mut child = start(place, stdin());
        let (part, more) = rest.split_at((20_000 + random.below(150_000)).min(rest.len()));
        rest = more;
        let had = journal_end(place);
        match all_seen.len() % 3 {
            // While it starts: the process finds it in the pipe.
            0 => writer.write_all(part).unwrap(),
            1 => {
                writer.write_all(part).unwrap();
                until(&mut child, "bytes in the journal", || journal_end(place) > had);
            }
            _ => feed(place, &mut writer, part),
        }
        std::thread::sleep(Duration::from_millis(random.below(30) as u64));
        child.kill().unwrap();
        child.wait().unwrap();
        all_seen.push(seen(place));
    }
    all_seen
}

/// No row is removed after it was seen, and none is inserted before it.
#[track_caller]
fn stays(place: &Place, all_seen: &[String]) {
    let rows = seen(place);
    assert!(all_seen.len() >= 6 && all_seen.iter().any(|seen| !seen.is_empty()), "{} kills", all_seen.len());
    for (kill, seen) in all_seen.iter().enumerate() {
        let same = rows.bytes().zip(seen.bytes()).take_while(|(one, other)| one == other).count();
        assert!(same == seen.len(), "kill {kill}: of {} bytes that were seen {same} stayed", seen.len());
    }
}

/// The process is killed repeatedly; the outputs must not show it.
fn is_continued(kind: &str) {
    let (place, text) = (place(kind, "'-'", "journal: {}"), text(kind));
    let (reader, writer) = std::io::pipe().unwrap();
    let seen = killed_again_and_again(&place, &text, &writer, || Stdio::from(reader.try_clone().unwrap()));
    assert!(checkpoint(&place) > 0);
    assert!(journal_bytes(&place) > 0);
    drop(writer);
    succeeds(start(&place, Stdio::from(reader)));
    stays(&place, &seen);
    same(&outputs(&place), &undisturbed(kind, &text));
    assert!(!place.path("state/journals").exists(), "nobody needs it any more");
}

#[test]
fn a_run_of_standard_input_that_is_killed_is_continued() {
    is_continued("csv");
}

#[test]
#[ignore = "long: make test-long"]
fn a_run_of_json_lines_that_is_killed_is_continued() {
    is_continued("jsonl");
}

#[test]
#[ignore = "long: make test-long"]
fn a_run_of_a_pipe_that_is_killed_is_continued() {
    let (place, text) = (place("jsonl", "events.pipe", "journal: {size: 64MiB, keep: 1min}"), text("jsonl"));
    let pipe = place.path("events.pipe");
    mknodat(CWD, &pipe, FileType::Fifo, 0o600.into(), 0).unwrap();
    let flags = OFlags::NONBLOCK.bits() as i32;
    // Held open, so that its content stays.
    let held = OpenOptions::new().read(true).write(true).custom_flags(flags).open(&pipe).unwrap();
    let writer = OpenOptions::new().write(true).open(&pipe).unwrap();
    let seen = killed_again_and_again(&place, &text, &writer, Stdio::null);
    let mut child = start(&place, Stdio::null());
    let process = child.id();
    until(&mut child, "the pipe", || has_open(process, &pipe));
    drop((writer, held));
    succeeds(child);
    stays(&place, &seen);
    let mut found = outputs(&place);
    let dead = String::from_utf8(std::mem::take(&mut found[2].1)).unwrap();
    found[2].1 = dead.replace("events.pipe,", "standard input,").into_bytes();
    same(&found, &undisturbed("jsonl", &text));
}

/// `producer | tidemill run`: both are killed, and the next producer starts with a new line.
#[test]
#[ignore = "long: make test-long"]
fn half_a_line_of_a_producer_that_is_gone_is_left_out() {
    let (place, text) = (place("csv", "'-'", "journal: {}"), text("csv"));
    let half = text.match_indices('\n').nth(ROWS / 2).unwrap().0 + 1;
    let (reader, mut writer) = std::io::pipe().unwrap();
    let mut child = start(&place, Stdio::from(reader));
    writer.write_all(&text.as_bytes()[..half + 9]).unwrap();
    until(&mut child, "all of it in the journal", || journal_bytes(&place) > half as u64);
    child.kill().unwrap();
    child.wait().unwrap();
    drop(writer);
    let show = |form| tidemill(&["state", "show", &place.argument("state"), "--output", form]).expect(0);
    let journal = show("json").json()["journals"]["events"].clone();
    assert_eq!(
        [&journal["end_byte"], &journal["end_of_lines"]].map(|byte| byte.as_u64().unwrap() as usize),
        [half + 9, half]
    );
    assert!(show("table").stdout.contains("the last 9 are half a line"));
    let mut child = command(&["run", &place.argument("workflow.yaml"), "--state", &place.argument("state")]);
    let mut child = child.stdin(Stdio::piped()).spawn().unwrap();
    // A producer that continues from the reported position.
    child.stdin.take().unwrap().write_all(&text.as_bytes()[half..]).unwrap();
    let told = succeeds(child);
    let line = &text[half..half + 9];
    let behind = format!("in its journal, and continues with its stream after byte {half}, ");
    let cut = format!("another stream follows, which continues after byte {half}: {line}");
    for part in [&behind, &cut] {
        assert!(told.contains(part), "{part}: {told}");
    }
    same(&outputs(&place), &undisturbed("csv", &text));
}

/// The producer dies, then the process before all rows have passed through: the end of the stream was not final.
#[test]
#[ignore = "long: make test-long"]
fn a_stream_whose_producer_died_first_is_read_on() {
    let (place, text) = (place("jsonl", "'-'", "journal: {}"), text("jsonl"));
    let slow =
        "  - {id: slow, kind: jsonl, input: some, options: {path: slow.pipe, metadata: true}}\nrun: {tick";
    place.change("workflow.yaml", "run: {tick", slow);
    let plan = PLAN
        .replace("classes:\n", "  - {id: slow, operator: slow, worker: hub}\nclasses:\n")
        .replace("columns: columns}", "columns: columns, slow: slow}");
    place.write("plan.yaml", plan + "  - {from: some, to: slow}\n");
    let pipe = place.path("slow.pipe");
    mknodat(CWD, &pipe, FileType::Fifo, 0o600.into(), 0).unwrap();
    let flags = OFlags::NONBLOCK.bits() as i32;
    let taken = OpenOptions::new().read(true).write(true).custom_flags(flags).open(&pipe).unwrap();
    let take = || (&taken).read(&mut [0; 1 << 14]).unwrap_or(0);
    let start = || {
        let [workflow, plan, state] =
            ["workflow.yaml", "plan.yaml", "state"].map(|name| place.argument(name));
        let arguments = ["run", &workflow, "--plan", &plan, "--state", &state, "--quiet"];
        let mut command = command(&[&arguments[..], &["--checkpoint-interval", "20ms"]].concat());
        command.stdin(Stdio::piped()).spawn().unwrap()
    };
    let end = text.match_indices('\n').nth(ROWS / 2).unwrap().0 + 1;
    let first = text[..end].to_owned();
    let rows = (0..=ROWS / 2).filter(|i| i % 1000 != 998 && i % 7 != 3).count();
    let mut child = start();
    let mut stdin = child.stdin.take().unwrap();
    let producer = std::thread::spawn(move || stdin.write_all(first.as_bytes()).unwrap());
    // The rows of the last epoch come when no more can.
    until(&mut child, "the end of the stream", || {
        take();
        std::fs::read(place.path("out/rows.jsonl"))
            .is_ok_and(|all| all.split(|byte| *byte == b'\n').count() > rows)
    });
    producer.join().unwrap();
    // Rows passing through now, but not all, make checkpoints due.
    for _ in 0..3 {
        take();
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    if crate::states::checkpoint(&place).1 {
        // All rows had passed through before the kill, as on a busy machine: then nothing more is to be read.
        return a_stream_whose_producer_died_first_is_read_on();
    }
    assert!(checkpoint(&place) > 1);
    // Consumed until the test ends.
    std::thread::spawn(move || {
        for _ in 0..1_000_000 {
            if (&taken).read(&mut [0; 1 << 16]).is_err() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    });
    let mut child = start();
    // An ended process has the reason.
    let written = child.stdin.take().unwrap().write_all(&text.as_bytes()[end..]);
    succeeds(child);
    written.unwrap();
    same(&outputs(&place), &undisturbed("jsonl", &text));
}

/// A process was killed before it had written all of a record, and there is no space for the others.
#[test]
#[ignore = "long: make test-long"]
fn bytes_that_cannot_be_taken_over_are_not_lost() {
    let (place, text) = (place("jsonl", "'-'", "journal: {}"), text("jsonl"));
    let (first, rest) = text.as_bytes().split_at(50_000);
    let (reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(first).unwrap();
    let mut child = start(&place, Stdio::from(reader.try_clone().unwrap()));
    until(&mut child, "a whole record", || journal_bytes(&place) >= first.len() as u64 + 112);
    child.kill().unwrap();
    child.wait().unwrap();
    let (segment, bytes) = journal_end(&place).unwrap();
    let segment = place.path("state/journals/events").join(segment);
    OpenOptions::new().write(true).open(segment).unwrap().set_len(bytes - 4).unwrap();
    for _ in 0..2 {
        let [workflow, state] = ["workflow.yaml", "state"].map(|name| place.argument(name));
        let run = command(&["run", &workflow, "--state", &state, "--quiet"]);
        // Files of a few KiB can be written, and none larger; the system would kill the process at once (SIGXFSZ).
        let limit = "trap '' 25; ulimit -f 16; exec \"$@\"";
        let mut limited = Command::new("sh");
        limited.args(["-c", limit, "sh"]).arg(run.get_program()).args(run.get_args());
        let output = limited.stdin(Stdio::from(reader.try_clone().unwrap())).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(69), "{told}");
        assert!(told.contains("journals/events"), "{told}");
    }
    let child = start(&place, Stdio::from(reader));
    writer.write_all(rest).unwrap();
    drop(writer);
    succeeds(child);
    same(&outputs(&place), &undisturbed("jsonl", &text));
}

#[test]
fn journals_are_shown_and_forgotten() {
    let (place, text) = (place("csv", "'-'", "journal: {}"), text("csv"));
    let (reader, mut writer) = std::io::pipe().unwrap();
    let mut child = start(&place, Stdio::from(reader.try_clone().unwrap()));
    writer.write_all(text.as_bytes()).unwrap();
    until(&mut child, "all of it in the journal", || journal_bytes(&place) > text.len() as u64);
    until(&mut child, "a checkpoint", || checkpoint(&place) > 0);
    let show = |form| tidemill(&["state", "show", &place.argument("state"), "--output", form]).expect(0);
    let shown = show("table").stdout;
    assert!(shown.contains("journal  events") && shown.contains("of its stream, in"), "{shown}");
    let journal = shown.lines().find(|line| line.starts_with("journal")).unwrap();
    assert!(journal.contains(" reads"), "what was read at once is no record: {journal}");
    child.kill().unwrap();
    child.wait().unwrap();
    let journal = show("json").json()["journals"]["events"].clone();
    assert!(journal["end_byte"].as_u64().unwrap() > 0 && journal["reads"].as_u64().unwrap() > 0, "{journal}");
    // Another size keeps the journal.
    let workflow = std::fs::read_to_string(place.path("workflow.yaml")).unwrap();
    place.write("workflow.yaml", workflow.replace("journal: {}", "journal: {size: 2GiB}"));
    let diff = ["state", "diff", &place.argument("state"), &place.argument("workflow.yaml")];
    tidemill(&diff).expect(0);
    tidemill(&["state", "reset", &place.argument("state")]).expect(0);
    assert!(!place.path("state/journals").exists());
    // A new run, of a stream that repeats everything.
    drop(writer);
    let (reader, mut writer) = std::io::pipe().unwrap();
    let child = start(&place, Stdio::from(reader));
    writer.write_all(text.as_bytes()).unwrap();
    drop(writer);
    succeeds(child);
    same(&outputs(&place), &undisturbed("csv", &text));
}

#[test]
fn a_stream_without_a_journal_is_refused_with_what_to_write() {
    let place = place("csv", "'-'", "");
    let child = start(&place, Stdio::piped());
    let output = child.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(
        told.contains("source `events` reads standard input") && told.contains("`journal: {}`"),
        "{told}"
    );
}

#[test]
fn a_bucket_cannot_have_a_journal() {
    let place = place("csv", "'-'", "journal: {}");
    let mut child = command(&["run", &place.argument("workflow.yaml"), "--state", "s3://bucket/state"]);
    let child = child.stdin(Stdio::piped()).spawn().unwrap();
    let output = child.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(78), "{told}");
    assert!(told.contains("s3://bucket/state") && told.contains("`--state state`"), "{told}");
}

#[test]
fn a_journal_that_is_too_small_for_the_plan_is_refused() {
    let place = place("csv", "'-'", "journal: {size: 64MiB}");
    let workflow = std::fs::read_to_string(place.path("workflow.yaml")).unwrap();
    place.write("workflow.yaml", workflow.replace("checkpoint_every: 1", "checkpoint_every: 500"));
    let output = start(&place, Stdio::piped()).wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("too small for source `events`") && told.contains("journal: {size: "), "{told}");
}

#[test]
fn compressed_data_are_refused_in_front_of_a_journal() {
    let place = place("csv", "'-'", "journal: {}");
    let mut child = start(&place, Stdio::piped());
    child.stdin.take().unwrap().write_all(b"\x1f\x8b\x08\x00\x00").unwrap();
    let output = child.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(69), "{told}");
    assert!(told.contains("gzip -dc"), "{told}");
}

#[test]
fn the_report_says_what_is_promised() {
    let (place, text) = (place("csv", "'-'", "journal: {}"), "key,at,value\na,1,1\nb,2,2\n");
    let mut file = File::create(place.path("text.csv")).unwrap();
    file.write_all(text.as_bytes()).unwrap();
    let run = |more: &[&str]| {
        let workflow = place.argument("workflow.yaml");
        let mut child = command(&[&["run", &workflow], more].concat());
        let mut child = child.stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
    };
    let told = run(&["--report", &place.argument("report.html")]);
    assert!(told.contains("columns, rows, table: exactly once within this process\n"), "{told}");
    let page = std::fs::read_to_string(place.path("report.html")).unwrap();
    assert!(page.contains("exactly once within this process"), "{page}");
    let told = run(&["--output", "json", "--state", &place.argument("state")]);
    let told: Value = serde_json::from_str(&told).unwrap();
    for sink in told["sinks"].as_array().unwrap() {
        assert_eq!(
            sink["promise"],
            serde_json::json!({"guarantee": "exactly_once", "scope": "run"}),
            "{sink}"
        );
    }
    // A sink that cannot undo.
    let workflow = std::fs::read_to_string(place.path("workflow.yaml")).unwrap();
    place.write("workflow.yaml", workflow.replace("path: out/rows.jsonl", "path: '-'"));
    let mut child = start(&place, Stdio::piped());
    child.stdin.take();
    let _ = child.wait();
    let output = tidemill(&["state", "reset", &place.argument("state")]).expect(0);
    assert!(output.stderr.contains("deleted the state"));
    let mut child = command(&["run", &place.argument("workflow.yaml"), "--state", &place.argument("state")]);
    let mut child = child.stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let told = String::from_utf8(child.wait_with_output().unwrap().stderr).unwrap();
    let line = "rows: at least once: sink `rows` writes to standard output, which takes nothing back";
    assert_eq!(told.matches(line).count(), 2, "when it begins and in the report: {told}");
}

/// A producer that restarts and sends everything again would be counted twice.
#[test]
fn a_stream_that_begins_again_is_refused() {
    let (place, text) = (place("jsonl", "'-'", "journal: {}"), text("jsonl"));
    let (reader, mut writer) = std::io::pipe().unwrap();
    let mut child = start(&place, Stdio::from(reader));
    writer.write_all(&text.as_bytes()[..300_007]).unwrap();
    until(&mut child, "all of it in the journal", || journal_bytes(&place) > 300_007);
    until(&mut child, "a checkpoint", || checkpoint(&place) > 0);
    child.kill().unwrap();
    child.wait().unwrap();
    drop(writer);
    let write = |mut child: Child, from: usize| {
        let (mut stdin, text) = (child.stdin.take().unwrap(), text.clone());
        let producer = std::thread::spawn(move || drop(stdin.write_all(&text.as_bytes()[from..])));
        let output = child.wait_with_output().unwrap();
        producer.join().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, told) = write(start(&place, Stdio::piped()), 0);
    assert_eq!(code, Some(65), "{told}");
    assert!(told.contains("sends everything again") && told.contains("state reset"), "{told}");
    let show = ["state", "show", &place.argument("state"), "--output", "json"];
    let end = tidemill(&show).expect(0).json()["journals"]["events"]["end_byte"].as_u64().unwrap();
    assert!(told.contains(&format!("continue after byte {end}")), "{end}: {told}");
    // A producer that follows the message.
    let (code, told) = write(start(&place, Stdio::piped()), end as usize);
    assert_eq!(code, Some(0), "{told}");
    same(&outputs(&place), &undisturbed("jsonl", &text));
}
