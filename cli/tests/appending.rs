//! Sinks that continue the file of earlier runs; through the built binary.
use crate::command::{Place, command, tidemill};
use std::process::Child;
use std::time::Duration;

const WORKFLOW: &str = "version: 1
name: appended
sources:
  - {id: rows, kind: csv, rate: 4000/s, options: {path: rows.csv, columns: {n: int64, key: text}}}
operators:
  - {id: counted, kind: window, input: rows, options: {size: 100ms, group_by: [key], aggregates: [{function: count, as: c}]}}
sinks:
  - {id: lines, kind: jsonl, input: rows, options: {path: out/rows.jsonl, mode: append}}
  - {id: table, kind: csv, input: counted, options: {path: out/counted.csv, mode: append}}
run: {tick: 10ms, checkpoint_every: 5}
";

fn place() -> Place {
    let place = Place::empty("appended");
    place.write("workflow.yaml", WORKFLOW);
    place
}

/// The rows that a run reads.
fn rows(place: &Place, run: usize) {
    let rows: String = (0..4000).map(|i| format!("{},k{}\n", run * 10_000 + i, i % 7)).collect();
    place.write("rows.csv", format!("n,key\n{rows}"));
}

fn outputs(place: &Place) -> [String; 2] {
    ["out/rows.jsonl", "out/counted.csv"].map(|file| std::fs::read_to_string(place.path(file)).unwrap())
}

fn start(place: &Place) -> Child {
    let [workflow, state] = ["workflow.yaml", "state"].map(|name| place.argument(name));
    command(&["run", &workflow, "--state", &state, "--checkpoint-interval", "30ms", "--quiet"])
        .spawn()
        .unwrap()
}

#[test]
#[ignore = "long: make test-long"]
fn runs_that_are_killed_append_each_row_once() {
    let (killed, whole) = (place(), place());
    let mut kills = 0;
    for run in 0..3 {
        rows(&whole, run);
        tidemill(&["run", &whole.argument("workflow.yaml"), "--quiet"]).expect(0);
        rows(&killed, run);
        for pause in [60, 250, 500] {
            let mut child = start(&killed);
            std::thread::sleep(Duration::from_millis(pause));
            kills += u32::from(child.try_wait().unwrap().is_none());
            // An ended process is not killed.
            let _ = child.kill();
            child.wait().unwrap();
        }
        let output = start(&killed).wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(killed.files("out"), ["counted.csv", "rows.jsonl"]);
        // The next run is a new one.
        tidemill(&["state", "reset", &killed.argument("state")]).expect(0);
    }
    assert!(kills >= 3, "{kills} kills");
    let (found, expected) = (outputs(&killed), outputs(&whole));
    assert_eq!(expected[0].lines().count(), 12_000);
    assert_eq!(expected[1].matches("key,").count(), 1, "one header");
    assert!(
        found == expected,
        "{} and {} bytes, not {} and {}",
        found[0].len(),
        found[1].len(),
        expected[0].len(),
        expected[1].len()
    );
}

#[test]
fn a_file_that_does_not_fit_is_refused() {
    let place = place();
    rows(&place, 0);
    place.write("out/rows.jsonl", "{\"n\":1,\"key\":\"k\"}\n{\"n\":2");
    let printed = tidemill(&["run", &place.argument("workflow.yaml")]).expect(78).stderr;
    assert!(
        printed.contains("out/rows.jsonl") && printed.contains("last row is incomplete: `{\"n\":2`"),
        "{printed}"
    );
    std::fs::remove_file(place.path("out/rows.jsonl")).unwrap();
    place.write("out/counted.csv", "c,key\n1,k\n");
    let printed = tidemill(&["run", &place.argument("workflow.yaml")]).expect(78).stderr;
    assert!(printed.contains("`c,key`") && printed.contains("writes `"), "{printed}");
}

/// Continuing beyond a limit returns to the checkpoint before it: rows that another run has appended since would be cut
/// off.
#[test]
fn what_others_appended_behind_a_run_that_ended_is_not_cut_off() {
    let place = place();
    rows(&place, 0);
    let [workflow, state] = ["workflow.yaml", "state"].map(|name| place.argument(name));
    let go_on = |records: &str| tidemill(&["run", &workflow, "--state", &state, "--records", records]);
    go_on("100").expect(0);
    let of_first = outputs(&place);
    assert_eq!(of_first[0].lines().count(), 100);
    tidemill(&["run", &workflow, "--records", "50", "--quiet"]).expect(0);
    let of_both = outputs(&place);
    assert_eq!(of_both[0].lines().count(), 150);
    let printed = go_on("200").expect(78).stderr;
    let way_out = format!("truncate -s {} ", of_first[0].len());
    assert!(
        printed.contains("out/rows.jsonl`: the run had ended at byte") && printed.contains(&way_out),
        "{printed}"
    );
    assert_eq!(outputs(&place), of_both, "it is left alone");
    for (file, content) in ["out/rows.jsonl", "out/counted.csv"].iter().zip(of_first) {
        place.write(file, content);
    }
    go_on("200").expect(0);
    assert_eq!(outputs(&place)[0].lines().count(), 200);
}
