//! Tracks, objects across cameras and counts of them in runs that are killed and continued: the sum of rows and retractions
//! equals that of an undisturbed run, byte by byte.
use crate::command::{Place, command, tidemill};
use crate::states::{checkpoint, waits};
use crate::vehicles::small_city;
use serde_json::Value;

/// The example with its smallest models, one picture per call, so that results do not depend on the other pictures of a
/// call.
const WORKFLOW: &str = "version: 1
name: followed
sources:
  - {id: cameras, kind: video, rate: 80/s, key: camera, options: {path: city}}
operators:
  - {id: detect, kind: ml, input: cameras, variants: [../../models/aicity/vehicles-small.yaml], options: {keep: [image]}}
  - {id: vehicles, kind: crop, input: detect, options: {classes: [car, van, truck, bus]}}
  - {id: appearance, kind: ml, input: vehicles, variants: [../../models/aicity/appearance-tiny.yaml]}
  - {id: tracks, kind: track, input: appearance, options: {gives: tracks, path: true, patience: 2}}
  - {id: across, kind: associate, input: tracks, options: {likeness: -1, within: 30s, keep: 60s}}
  - {id: on_roads, kind: map, input: across, options: {keep: [vehicle, start, end], columns: {road: camera}}}
  - {id: counted, kind: distinct, input: on_roads, options: {of: vehicle, size: 4s, slide: 2s, group_by: [road], as: vehicles}}
sinks:
  - {id: identified, kind: jsonl, input: across, options: {path: out/vehicles.jsonl, columns: [camera, track, vehicle, start, end, path]},
     ground_truth: {path: city, key: camera, prediction: vehicle, boxes: path}}
  - {id: roads, kind: csv, input: counted, options: {path: out/roads.csv}}
run: {tick: 50ms, checkpoint_every: 2, dead_letters: out/dead.jsonl}
";

const OUTPUTS: [&str; 2] = ["out/vehicles.jsonl", "out/roads.csv"];

fn place() -> Place {
    let place = Place::empty("followed");
    place.write("workflow.yaml", WORKFLOW);
    small_city(&place, 20);
    place
}

/// The judged sink in the report, and the number of its rows that other processes wrote.
fn judged(place: &Place) -> (Value, u64) {
    let report: Value = serde_json::from_str(&place.read("report.json")).unwrap();
    let rows = |of: &str| report["state"][of]["records_out"]["identified"].as_u64().unwrap_or(0);
    let sink = report["sinks"].as_array().unwrap().iter().find(|sink| sink["sink"] == "identified").unwrap();
    (sink.clone(), rows("all_processes") - rows("this_process"))
}

#[test]
#[ignore = "long: make test-long"]
fn what_is_followed_survives_kills() {
    let whole = place();
    let report = whole.argument("report.json");
    tidemill(&["run", &whole.argument("workflow.yaml"), "--report-json", &report, "--quiet"]).expect(0);
    let idf1 = judged(&whole).0["accuracy_percent"].as_f64().unwrap();
    let expected = OUTPUTS.map(|file| whole.read(file));
    let change = |row: &Value| row["_change"].as_i64() == Some(-1);
    let corrected = whole.rows(OUTPUTS[0]).iter().filter(|row| change(row)).count();
    let counts_back = expected[1].lines().filter(|line| line.starts_with("-1,")).count();
    assert!(corrected > 0 && counts_back > 0, "nothing is taken back: {corrected}, {counts_back}");

    let place = place();
    let (workflow, state) = (place.argument("workflow.yaml"), place.argument("state"));
    let arguments = ["run", &workflow, "--state", &state, "--checkpoint-interval", "100ms", "--quiet"];
    let mut killed = 0;
    for _ in 0..3 {
        let mut child = command(&arguments).spawn().unwrap();
        killed += usize::from(waits(&place, &mut child, 8));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert!(killed > 0 && !checkpoint(&place).1, "it had come to its end before the first kill");
    let report = place.argument("report.json");
    let outcome = tidemill(&[&arguments[..], &["--report-json", &report]].concat()).expect(0);
    let (sink, before) = judged(&place);
    // A process with only a part of the rows does not compare it with the whole truth.
    match before {
        0 => assert_eq!(sink["accuracy_percent"].as_f64(), Some(idf1), "{sink}"),
        _ => {
            assert!(sink["accuracy_percent"].is_null() && sink["tracks"].is_null(), "{sink}");
            assert!(outcome.stdout.contains("identified: not judged"), "{}", outcome.stdout);
        }
    }
    assert!(checkpoint(&place).1, "the run is complete");
    for (file, expected) in OUTPUTS.iter().zip(expected) {
        let found = place.read(file);
        assert!(
            found == expected,
            "{file}: {} lines, {} expected",
            found.lines().count(),
            expected.lines().count()
        );
    }
}
