//! Tables that change while a workflow runs, or between two of its processes.
use crate::command::{Place, command, tidemill};
use crate::journals::checkpoint;
use std::fs::File;
use std::io::Write;
use std::process::{Child, ChildStdin, Stdio};
use std::time::Duration;

const WORKFLOW: &str = "version: 1
name: zones
sources:
  - SOURCE
operators:
  - id: named
    kind: lookup
    input: seen
    options: {path: cameras.csv, key: camera, columns: {zone: text}, reload: 10ms}
sinks:
  - {id: out, kind: jsonl, input: named, options: {path: out.jsonl}}
run: {tick: 10ms, checkpoint_every: 1}
";

fn place(source: &str) -> Place {
    let place = Place::empty("zones");
    place.write("workflow.yaml", WORKFLOW.replace("SOURCE", source));
    place.write("cameras.csv", table("gate"));
    place
}

fn table(zone: &str) -> String {
    format!("camera,zone\nnorth,{zone}\nsouth,yard\n")
}

fn replace(place: &Place, content: &str) {
    place.write("new.csv", content);
    std::fs::rename(place.path("new.csv"), place.path("cameras.csv")).unwrap();
}

/// The complete rows so far: number and zone.
fn zones(place: &Place) -> Vec<(i64, String)> {
    let Ok(text) = std::fs::read_to_string(place.path("out.jsonl")) else { return Vec::new() };
    let complete = &text[..text.rfind('\n').map_or(0, |end| end + 1)];
    let rows = crate::command::rows(complete);
    rows.iter()
        .map(|row| (row["n"].as_i64().unwrap(), row["zone"].as_str().unwrap_or("").to_owned()))
        .collect()
}

/// Waits for a condition; fails if the process ends before.
#[track_caller]
fn until(child: &mut Child, holds: impl Fn() -> bool) {
    while !holds() {
        assert!(child.try_wait().unwrap().is_none(), "the run has ended");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A run whose records come from this test.
struct Fed<'a> {
    place: &'a Place,
    child: Child,
    input: ChildStdin,
    given: i64,
}

impl Fed<'_> {
    /// Gives a record, and returns the zone that it got.
    fn zone(&mut self) -> String {
        writeln!(self.input, "{{\"camera\":\"north\",\"n\":{}}}", self.given).unwrap();
        self.given += 1;
        let (place, given) = (self.place, self.given as usize);
        until(&mut self.child, || zones(place).len() == given);
        zones(place).pop().unwrap().1
    }

    #[track_caller]
    fn becomes(&mut self, zone: &str) {
        while self.zone() != zone {}
    }
}

#[test]
fn a_table_is_replaced_while_records_come() {
    let place = place("{id: seen, kind: jsonl, options: {path: '-', columns: {camera: text, n: int64}}}");
    let mut child = command(&["run", &place.argument("workflow.yaml")])
        .stdin(Stdio::piped())
        .stderr(File::create(place.path("stderr.txt")).unwrap())
        .spawn()
        .unwrap();
    let input = child.stdin.take().unwrap();
    let mut fed = Fed { place: &place, child, input, given: 0 };
    assert_eq!(fed.zone(), "gate");
    replace(&place, &table("door"));
    fed.becomes("door");
    place.write("cameras.csv", table("in place"));
    fed.becomes("in place");
    replace(&place, "camera,zone\nnorth,a\nnorth,b\n");
    let told = "`named`: the table has changed and cannot be used, so the one before stays: `cameras.csv`, line 3: the key \
                `camera` = \"north\" is that of line 2";
    until(&mut fed.child, || place.read("stderr.txt").contains(told));
    assert_eq!(fed.zone(), "in place");
    replace(&place, &table("right again"));
    fed.becomes("right again");
    let Fed { child, input, given, .. } = fed;
    drop(input);
    let output = child.wait_with_output().unwrap();
    let report = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", place.read("stderr.txt"));
    let told =
        "named: records with the last good table, because its file is not right now (outdated_table): ";
    assert!(report.contains(told), "{report}");
    assert!(zones(&place).into_iter().map(|(n, _)| n).eq(0..given));
}

/// Each record has one row, with the table from before the kill or that from after it.
#[test]
fn a_run_that_is_killed_continues_with_another_table() {
    const ROWS: i64 = 600;
    let place = place(
        "{id: seen, kind: csv, rate: 300/s, options: {path: seen.csv, columns: {camera: text, n: int64}}}",
    );
    let rows: String = (0..ROWS).map(|n| format!("north,{n}\n")).collect();
    place.write("seen.csv", format!("camera,n\n{rows}"));
    let [workflow, state] = ["workflow.yaml", "state"].map(|name| place.argument(name));
    let arguments = ["run", &workflow, "--state", &state, "--checkpoint-interval", "20ms"];
    let mut killed = command(&arguments).spawn().unwrap();
    until(&mut killed, || zones(&place).len() > 50 && checkpoint(&place) > 10);
    killed.kill().unwrap();
    killed.wait().unwrap();
    let before = zones(&place);
    assert!(before.len() < ROWS as usize && before.iter().all(|(_, zone)| zone == "gate"));
    replace(&place, &table("door"));
    tidemill(&arguments).expect(0);
    let found = zones(&place);
    assert!(found.iter().map(|(n, _)| *n).eq(0..ROWS), "{found:?}");
    let first = found.iter().position(|(_, zone)| zone == "door").unwrap();
    assert!((1..=before.len()).contains(&first), "{first} of {}", before.len());
    assert!(found[first..].iter().all(|(_, zone)| zone == "door"));
}

#[test]
fn a_test_of_a_workflow_has_its_table() {
    let place = place("{id: seen, kind: csv, options: {path: seen.csv, columns: {camera: text, n: int64}}}");
    place.write("seen.csv", "camera,n\nnorth,1\n");
    place.write(
        "workflow.test.yaml",
        "version: 1
workflow: workflow.yaml
tests:
  - name: zones
    sources: {seen: [{camera: south, n: 1}, {camera: west, n: 2}]}
    expect: {out: [{n: 1, zone: yard}, {n: 2, zone: null}]}
  - name: only those that are known
    sources: {seen: [{camera: south, n: 1}, {camera: west, n: 2}]}
    options: {named: {missing: drop}}
    expect: {out: [{n: 1, zone: yard}]}
    drops: {named: {unmatched: 1}}
  - name: none is lost
    sources: {seen: [{camera: south, n: 1}, {camera: west, n: 2}]}
    options: {named: {missing: dead_letter}}
    expect: {out: [{n: 1, zone: yard}]}
    dead_letters: {named: {unmatched: 1}}
",
    );
    let passed = tidemill(&["test", &place.argument("workflow.test.yaml")]).expect(0);
    assert!(passed.stdout.ends_with("3 passed\n"), "{}", passed.stdout);
}
