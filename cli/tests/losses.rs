//! Records that cannot be used never stop a run.
use crate::command::{Place, tidemill};

#[test]
fn bad_files_become_dead_letters() {
    let place = Place::empty("vqa");
    let data = |file: &str| std::fs::read(place.path("../..").join("data").join(file)).unwrap();
    std::os::unix::fs::symlink(crate::command::root().join("examples/vqa/data"), place.path("../../data"))
        .unwrap();
    let workflow =
        std::fs::read_to_string(crate::command::root().join("examples/vqa/workflow.yaml")).unwrap();
    place.write("workflow.yaml", workflow);
    place.write("data/truth.csv", data("truth.csv"));
    for key in ["000000", "000001", "000002", "000003"] {
        place.write(&format!("data/images/{key}.jpg"), data(&format!("images/{key}.jpg")));
        place.write(&format!("data/questions/{key}.wav"), data(&format!("questions/{key}.wav")));
    }
    let whole = data("images/000001.jpg");
    place.write("data/images/000001.jpg", &whole[..whole.len() / 2]);
    place.write("data/questions/000002.wav", "");
    let outcome = tidemill(&["run", &place.argument("workflow.yaml"), "--output", "json"]).expect(0);
    let report = outcome.json();
    assert_eq!(report["sinks"][0]["records"], 2, "{report}");
    assert_eq!(report["dead_letters"], 2, "{report}");
    let letters = place.rows("out/dead_letters.jsonl");
    let mut reasons: Vec<&str> = letters.iter().map(|letter| letter["reason"].as_str().unwrap()).collect();
    reasons.sort_unstable();
    assert_eq!(reasons, ["file_empty", "image_truncated"]);
    assert_eq!(place.files("out"), ["answers.jsonl", "dead_letters.jsonl"]);
    let table = tidemill(&["run", &place.argument("workflow.yaml")]).expect(0).stdout;
    assert!(table.contains("dead letter  image_truncated  scene_features"), "{table}");
    assert!(table.contains("dropped      unmatched"), "{table}");
}

#[test]
fn a_run_without_results_says_so_also_when_it_is_to_be_quiet() {
    let place = Place::empty("lost");
    place.write("rows.csv", "at,n\n1,9223372036854775807\n2,9223372036854775807\n");
    place.write(
        "workflow.yaml",
        "version: 1
name: lost
sources:
  - {id: rows, kind: csv, options: {path: rows.csv, columns: {at: int64, n: int64}, event_time: at}}
operators:
  - {id: more, kind: map, input: rows, options: {columns: {n: n + at}}}
sinks:
  - {id: out, kind: jsonl, input: more, options: {path: out.jsonl}}
",
    );
    let told = tidemill(&["run", &place.argument("workflow.yaml"), "--quiet"]).expect(0).stderr;
    assert_eq!(told, "warning: no record reached a sink: there are 2 dead letters and no results\n");
    place.change("rows.csv", "\n2,9223372036854775807", "\n2,5");
    assert_eq!(tidemill(&["run", &place.argument("workflow.yaml"), "--quiet"]).expect(0).stderr, "");
}
