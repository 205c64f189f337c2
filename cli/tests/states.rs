//! Runs that keep their state: killed, stopped, changed, in use; through the built binary.
use crate::command::{Place, command, tidemill};
use parquet::file::reader::{FileReader, SerializedFileReader};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::path::Path;
use std::process::Child;
use std::time::Duration;
use tidemill_random::Random;

const WORKFLOW: &str = "version: 1
name: durable
sources:
  - id: left
    kind: csv
    rate: 4000/s
    options: {path: left.csv, columns: {key: text, at: int64, value: int64}, event_time: at}
  - id: right
    kind: csv
    rate: 2000/s
    options: {path: right.csv, columns: {key: text, at: int64, weight: int64}, event_time: at}
operators:
  - {id: some, kind: filter, input: left, options: {where: \"value % 7 != 3\"}}
  - {id: pair, kind: join, inputs: [some, right], options: {key: key, within: 2s, same_names: keep_first}}
  - {id: counted, kind: window, input: pair, options: {size: 5s, group_by: [key], aggregates: [{function: count, as: n}]}}
sinks:
  - {id: pairs, kind: jsonl, input: pair, options: {path: out/pairs.jsonl}}
  - {id: table, kind: csv, input: counted, options: {path: out/counted.csv}}
  - {id: columns, kind: parquet, input: counted, options: {path: out/counted.parquet}}
run: {tick: 10ms, checkpoint_every: 5, dead_letters: out/dead.jsonl}
";

/// Two sources, one of them with unreadable records, a filter, a join, a window and sinks of three kinds.
pub(crate) fn place() -> Place {
    let place = Place::empty("durable");
    place.write("workflow.yaml", WORKFLOW);
    let side = |rows: usize, step: usize, name: &str, times: usize| {
        let row = |i: usize| match i % 1000 {
            998 => format!("k{:02},{},none\n", i % 50, 1_700_000_000_000 + i * step),
            _ => format!("k{:02},{},{}\n", i % 50, 1_700_000_000_000 + i * step, i * times),
        };
        let rows: String = (0..rows).map(row).collect();
        format!("key,at,{name}\n{rows}")
    };
    place.write("left.csv", side(10_000, 5, "value", 1));
    place.write("right.csv", side(5_000, 10, "weight", 3));
    place
}

/// As [`place`], for a run that lasts until it is killed, on a busy machine too.
pub(crate) fn slow_place() -> Place {
    let place = place();
    place.change("workflow.yaml", "rate: 4000/s", "rate: 400/s");
    place.change("workflow.yaml", "rate: 2000/s", "rate: 200/s");
    place
}

pub(crate) fn start(place: &Place) -> Child {
    let arguments = [&place.argument("workflow.yaml"), "--state", &place.argument("state")];
    let [workflow, state, folder] = arguments;
    command(&["run", workflow, state, folder, "--checkpoint-interval", "50ms", "--quiet"]).spawn().unwrap()
}

/// Number of the last checkpoint, and whether it is final.
pub(crate) fn checkpoint(place: &Place) -> (u64, bool) {
    let Ok(text) = std::fs::read_to_string(place.path("state/manifest.json")) else { return (0, false) };
    let manifest: Value = serde_json::from_str(&text).unwrap();
    (
        manifest["manifest"]["checkpoint"].as_u64().unwrap(),
        manifest["manifest"]["complete"].as_bool().unwrap(),
    )
}

/// Waits for `further` checkpoints; false when the run was complete before.
pub(crate) fn waits(place: &Place, child: &mut Child, further: u64) -> bool {
    let (begun, mut looks) = (checkpoint(place).0, 0);
    while checkpoint(place).0 < begun + further {
        if child.try_wait().unwrap().is_some() {
            return false;
        }
        looks += 1;
        assert!(looks < 20_000, "no checkpoint comes");
        std::thread::sleep(Duration::from_millis(2));
    }
    true
}

/// Content of the sinks; Parquet by its rows, since the file names its run.
pub(crate) fn outputs(place: &Place) -> Vec<(&'static str, Vec<u8>)> {
    let files = ["out/pairs.jsonl", "out/counted.csv", "out/dead.jsonl"];
    let mut all: Vec<_> =
        files.iter().map(|file| (*file, std::fs::read(place.path(file)).unwrap())).collect();
    all.push(("out/counted.parquet", parquet_rows(&place.path("out/counted.parquet"))));
    all
}

/// Every row as text: how an array is shown leaves out its middle.
pub(crate) fn parquet_rows(path: &Path) -> Vec<u8> {
    let reader = SerializedFileReader::new(std::fs::File::open(path).unwrap()).unwrap();
    let rows = reader.get_row_iter(None).unwrap();
    rows.map(|row| format!("{}\n", row.unwrap())).collect::<String>().into_bytes()
}

/// Outputs of one undisturbed process at full speed: the sources have event times, so a rate changes none of them.
pub(crate) fn undisturbed() -> Vec<(&'static str, Vec<u8>)> {
    let place = place();
    tidemill(&["run", &place.argument("workflow.yaml"), "--rate", "max", "--quiet"]).expect(0);
    let outputs = outputs(&place);
    assert!(outputs.iter().all(|(file, content)| content.len() > 500 || panic!("{file} is nearly empty")));
    outputs
}

#[track_caller]
pub(crate) fn same(found: &[(&str, Vec<u8>)], expected: &[(&str, Vec<u8>)]) {
    for ((file, found), (_, expected)) in found.iter().zip(expected) {
        assert!(found == expected, "{file}: {} bytes, {} expected", found.len(), expected.len());
    }
}

/// The process is killed repeatedly; the outputs must not show it.
#[test]
fn a_run_that_is_killed_is_continued() {
    let (place, mut random, mut kills) = (place(), Random::of_seed(7), 0);
    loop {
        let mut child = start(&place);
        // Early, at a checkpoint, or after it.
        let is_there = waits(&place, &mut child, random.below(5) as u64);
        std::thread::sleep(Duration::from_millis(random.below(60) as u64));
        if !is_there || child.try_wait().unwrap().is_some() {
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            break;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        kills += 1;
        // In the middle of a visible row; a run that was complete at the kill has none.
        let files = [("out/pairs.jsonl", "{\"key\":\"k0"), ("out/counted.csv", "k01,\"1")];
        for (file, tail) in
            files.into_iter().filter(|_| kills % 2 == 0 && matches!(checkpoint(&place), (1.., false)))
        {
            let mut file = std::fs::OpenOptions::new().append(true).open(place.path(file)).unwrap();
            std::io::Write::write_all(&mut file, tail.as_bytes()).unwrap();
        }
    }
    assert!(kills >= 3 && checkpoint(&place).1, "{kills} kills");
    same(&outputs(&place), &undisturbed());
    assert_eq!(place.files("out"), ["counted.csv", "counted.parquet", "dead.jsonl", "pairs.jsonl"]);
    assert_eq!(place.files("state/objects"), Vec::<String>::new());
    // Repeating the command changes nothing.
    let before = outputs(&place);
    let arguments = ["run", &place.argument("workflow.yaml"), "--state", &place.argument("state")];
    let printed = tidemill(&arguments).expect(0).stderr;
    assert!(printed.contains("complete") && printed.contains("state reset"), "{printed}");
    same(&outputs(&place), &before);
}

/// Requirements on a run also apply if nothing is left to do.
#[test]
#[ignore = "long: make test-long"]
fn a_run_that_is_complete_is_judged_by_its_state() {
    let place = place();
    place.change("workflow.yaml", "run: {", "slo: {latency: {percentile: p99, below: 1h}}\nrun: {");
    let (workflow, state, report) =
        (place.argument("workflow.yaml"), place.argument("state"), place.argument("report.json"));
    let own = ["run", &workflow, "--state", &state, "--rate", "max"];
    let run = |more: &[&str]| tidemill(&[&own[..], more].concat());
    run(&["--require-slo"]).expect(0);
    // One record in a thousand is unreadable.
    let letters = place.rows("out/dead.jsonl").len();
    let (as_many, fewer) = (letters.to_string(), (letters - 1).to_string());
    for (limit, code) in [(as_many.as_str(), 0), ("1%", 0), (fewer.as_str(), 1), ("0.01%", 1)] {
        let outcome = run(&["--max-dead-letters", limit, "--output", "json"]).expect(code);
        let document = outcome.json();
        assert_eq!(document["ok"], code == 0, "{document}");
        assert_eq!(document["max_dead_letters"]["dead_letters"], letters, "{document}");
        assert_eq!(outcome.stderr.contains("more than the "), code == 1, "{}", outcome.stderr);
    }
    let printed = run(&["--require-slo", "--report-json", &report]).expect(1).stderr;
    assert!(printed.contains("`--require-slo`: this process measured nothing"), "{printed}");
    assert!(printed.contains("`--report-json` is not written"), "{printed}");
    assert!(!place.path("report.json").exists());
    run(&["--report-json", &report]).expect(0);
}

/// Ctrl-C keeps windows open; the next run fills them.
#[test]
#[ignore = "long: make test-long"]
fn a_run_that_is_interrupted_is_continued() {
    let (place, mut stops) = (place(), 0);
    loop {
        let mut child = start(&place);
        // Then the rest of it at once.
        if stops < 4 && waits(&place, &mut child, 3) {
            kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        }
        let output = child.wait_with_output().unwrap();
        let printed = String::from_utf8_lossy(&output.stderr);
        match output.status.code() {
            Some(130) => stops += 1,
            Some(0) => break,
            other => panic!("{other:?}: {printed}"),
        }
    }
    assert!(stops >= 2, "{stops} stops");
    same(&outputs(&place), &undisturbed());
}

#[test]
fn two_runs_do_not_share_a_state() {
    let place = slow_place();
    let mut child = start(&place);
    assert!(waits(&place, &mut child, 2));
    let (workflow, state) = (place.argument("workflow.yaml"), place.argument("state"));
    let refused = tidemill(&["run", &workflow, "--state", &state]).expect(69).stderr;
    assert!(refused.contains(&format!("in use by process {}", child.id())), "{refused}");
    let refused = tidemill(&["state", "reset", &state]).expect(69).stderr;
    assert!(refused.contains("in use"), "{refused}");
    let shown = tidemill(&["state", "show", &state, "--output", "json"]).expect(0).json();
    assert_eq!(shown["state"]["complete"], false);
    child.kill().unwrap();
    child.wait().unwrap();
    // Nothing is left of the lock.
    tidemill(&["state", "reset", &state]).expect(0);
    assert!(tidemill(&["state", "show", &state]).expect(66).stderr.contains("no state"));
}

#[test]
fn a_changed_workflow_is_refused_before_anything_is_touched() {
    let place = place();
    let mut child = start(&place);
    assert!(waits(&place, &mut child, 3));
    child.kill().unwrap();
    child.wait().unwrap();
    let (workflow, state) = (place.argument("workflow.yaml"), place.argument("state"));
    tidemill(&["state", "diff", &state, &workflow]).expect(0);
    place.change("workflow.yaml", "size: 5s", "size: 4s");
    let before = (std::fs::read(place.path("out/pairs.jsonl")).unwrap(), checkpoint(&place));
    let refused = tidemill(&["run", &workflow, "--state", &state]).expect(78).stderr;
    assert!(refused.contains("changed: counted") && refused.contains("state reset"), "{refused}");
    let printed = tidemill(&["state", "diff", &state, &workflow]).expect(1).stdout;
    assert!(printed.contains("options.size: 5s -> 4s") && printed.contains("restarts"), "{printed}");
    assert_eq!((std::fs::read(place.path("out/pairs.jsonl")).unwrap(), checkpoint(&place)), before);
    // Without a plan: differences that follow from the workflow are named.
    place.change("workflow.yaml", "size: 4s", "size: 5s");
    place.change("workflow.yaml", "tick: 10ms", "tick: 20ms");
    let refused = tidemill(&["run", &workflow, "--state", &state]).expect(78).stderr;
    assert!(refused.contains("tick: 10ms -> 20ms") && !refused.contains("another plan"), "{refused}");
    let printed = tidemill(&["state", "diff", &state, &workflow, "--output", "json"]).expect(1).json();
    assert_eq!(printed["difference"]["plan"], serde_json::json!(["tick: 10ms -> 20ms"]));
}

#[test]
fn an_output_that_lost_rows_is_not_continued() {
    let place = place();
    let mut child = start(&place);
    assert!(waits(&place, &mut child, 12));
    child.kill().unwrap();
    child.wait().unwrap();
    place.write("out/pairs.jsonl", "{}\n");
    let refused = tidemill(&["run", &place.argument("workflow.yaml"), "--state", &place.argument("state")]);
    let printed = refused.stderr.clone();
    assert!(
        refused.code == Some(65) && printed.contains("pairs.jsonl") && printed.contains("state reset"),
        "{printed}"
    );
    assert_eq!(place.read("out/pairs.jsonl"), "{}\n");
}

/// A busy output is reported before a state is created.
#[test]
fn a_run_whose_output_is_busy_makes_no_state() {
    let place = slow_place();
    let mut child = start(&place);
    assert!(waits(&place, &mut child, 2));
    let (workflow, state) = (place.argument("workflow.yaml"), place.argument("deep/other"));
    let refused = tidemill(&["run", &workflow, "--state", &state]).expect(78).stderr;
    assert!(refused.contains("is being written by process"), "{refused}");
    assert!(!refused.contains("keeps its state"), "{refused}");
    assert!(!place.path("deep").exists(), "a state is left");
    child.kill().unwrap();
    child.wait().unwrap();
    tidemill(&["run", &workflow, "--state", &state, "--records", "50"]).expect(0);
}

/// A limit that no longer applies makes the state return to the checkpoint before it, and a reset operator gets an empty
/// snapshot: neither is done for a run that a sink refuses.
#[test]
#[ignore = "long: make test-long"]
fn a_state_stays_as_it_was_where_a_sink_refuses() {
    let place = place();
    let (workflow, state) = (place.argument("workflow.yaml"), place.argument("state"));
    let run = |more: &[&str]| tidemill(&[&["run", &workflow, "--state", &state][..], more].concat());
    run(&["--records", "3000", "--checkpoint-interval", "50ms"]).expect(0);
    let manifest = || place.read("state/manifest.json");
    let refuses = || {
        let (before, lines) = (manifest(), place.read("out/pairs.jsonl"));
        let dead = place.read("out/dead.jsonl");
        place.write("out/pairs.jsonl", "{}\n");
        let refused = run(&[]).expect(65).stderr;
        assert!(refused.contains("pairs.jsonl") && refused.contains("the file has only 3"), "{refused}");
        assert!(!refused.contains("continues from the state"), "{refused}");
        place.write("out/pairs.jsonl", lines);
        place.write("out/dead.jsonl", "");
        let refused = run(&[]).expect(65).stderr;
        assert!(refused.contains("dead.jsonl"), "{refused}");
        place.write("out/dead.jsonl", dead);
        assert!(manifest() == before, "the state was changed");
    };
    refuses();
    tidemill(&["state", "reset", &state, "counted"]).expect(0);
    refuses();
    run(&[]).expect(0);
    same(&outputs(&place)[..1], &undisturbed()[..1]);
}

#[test]
fn what_is_read_only_once_has_no_state() {
    let place = place();
    place.change("workflow.yaml", "path: right.csv", "path: \"-\"");
    let refused = tidemill(&["run", &place.argument("workflow.yaml"), "--state", &place.argument("state")]);
    assert!(refused.stderr.contains("cannot be read again"), "{}", refused.stderr);
    assert_eq!(refused.code, Some(78));
    assert!(
        refused.stderr.contains("E0614") && refused.stderr.contains("`journal: {}`"),
        "{}",
        refused.stderr
    );
    assert!(!place.path("state").exists() && !place.path("out").exists(), "nothing is left");
    // If the workflow itself names the state, a check of it suffices.
    tidemill(&["validate", &place.argument("workflow.yaml")]).expect(0);
    place.change("workflow.yaml", "run: {tick", "checkpoint: {state: state}\nrun: {tick");
    let printed = tidemill(&["validate", &place.argument("workflow.yaml")]).expect(78).stderr;
    assert!(printed.contains("E0614") && printed.contains("path: \"-\""), "{printed}");
    assert!(!place.path("state").exists(), "nothing is left");
}
