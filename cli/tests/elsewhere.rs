//! `validate --without-files`: workflows whose data and models are on other machines; through the built binary.
use crate::command::{Place, root, tidemill};

const WORKFLOW: &str = "version: 1
name: seen
sources:
  - {id: images, kind: image_directory, key: key, options: {path: PICTURES}}
  - {id: readings, kind: csv, key: key, options: {path: data/readings.csv, columns: {key: text, at: int64, value: float64}, event_time: at}}
operators:
  - {id: features, kind: ml, input: images, variants: [tiny.yaml], options: {keep: [image]}}
  - {id: high, kind: filter, input: readings, options: {where: value > 1}}
sinks:
  - {id: seen, kind: jsonl, input: features, options: {path: out/seen.jsonl, columns: [key]}}
  - {id: rows, kind: jsonl, input: high, options: {path: out/rows.jsonl}, \
     ground_truth: {path: truth.csv, key: key, prediction: at, truth: right}}
";

/// The workflow and a manifest, and nothing else.
fn place() -> Place {
    let place = Place::empty("seen");
    place.write("workflow.yaml", WORKFLOW.replace("PICTURES", "data/images"));
    place.write("tiny.yaml", std::fs::read(root().join("models/vqa/scene-features-tiny.yaml")).unwrap());
    place
}

#[test]
fn a_workflow_is_judged_without_its_files() {
    let place = place();
    let file = place.argument("workflow.yaml");
    let output = tidemill(&["validate", &file]).expect(78).stderr;
    for missing in ["data/images", "data/readings.csv"] {
        assert!(output.contains(missing), "{missing}: {output}");
    }
    let output = tidemill(&["validate", &file, "--without-files"]).expect(0);
    assert!(
        output.stdout.contains("(2 sources, 2 operators, 2 sinks; files not checked)"),
        "{}",
        output.stdout
    );
    for line in [
        "source `images`: `data/images` was not checked; the machine that reads it checks whether it is a folder with pictures",
        "source `readings`: `data/readings.csv` was not checked; the machine that reads it checks whether it is there, and its first line names the columns",
        "operator `features`: the model of `tiny.yaml` was not checked",
        "ground truth of `rows`: `truth.csv` was not checked",
    ] {
        assert!(output.stderr.contains(line), "{line}: {}", output.stderr);
    }
    let document = tidemill(&["validate", &file, "--without-files", "--output", "json"]).expect(0).json();
    let unopened = document["files"][0]["unopened"].as_array().unwrap();
    let ids: Vec<&str> = unopened.iter().map(|one| one["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["images", "readings", "features", "rows"], "{document}");
    assert!(unopened.iter().all(|one| one["hides_types"] == false), "{document}");

    place.change("workflow.yaml", "value > 1", "values > 1");
    place.change("workflow.yaml", "columns: [key]", "columns: [kee]");
    let output = tidemill(&["validate", &file, "--without-files"]).expect(78).stderr;
    assert!(output.contains("E0607") || output.contains("E0605"), "{output}");
    assert!(output.contains("`values`") && output.contains("`kee`"), "both: {output}");
}

#[test]
fn what_cannot_be_judged_without_a_manifest_is_told() {
    let place = place();
    let file = place.argument("workflow.yaml");
    std::fs::remove_file(place.path("tiny.yaml")).unwrap();
    let output = tidemill(&["validate", &file, "--without-files"]).expect(0);
    assert!(output.stdout.contains("; judged in part)"), "{}", output.stdout);
    for line in [
        "operator `features`: the manifest `tiny.yaml` is not on this machine; its output is not known",
        "`seen` was not checked: the output of `features` is not known",
    ] {
        assert!(output.stderr.contains(line), "{line}: {}", output.stderr);
    }
}
