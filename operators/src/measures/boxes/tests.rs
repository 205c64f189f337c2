use super::*;
use crate::testing::array;
use serde_json::{Value, json};
use tidemill_spec::types::ColumnType;

fn load(text: &str) -> Result<BoxTruth, GroundTruthError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.jsonl");
    std::fs::write(&path, text).unwrap();
    BoxTruth::load(&path, "key", "boxes")
}

fn column(boxes: &Value) -> ArrayRef {
    let rows = boxes.as_array().map_or(0, Vec::len);
    array(&ColumnType::named(&format!("tensor<float32>[{rows}, 6]")).unwrap(), vec![boxes])
}

/// `operators/testdata/make_measures.py` says how the file was made; it has forty pictures with four classes.
#[test]
fn as_pycocotools() {
    let parts: Value = serde_json::from_str(include_str!("../../../testdata/measures.json")).unwrap();
    let part = &parts["boxes"];
    let lines: Vec<String> =
        part["pictures"].as_array().unwrap().iter().map(|picture| picture.to_string()).collect();
    let truth = Arc::new(load(&lines.join("\n")).unwrap());
    let mut tallies = [BoxTally::new(&truth), BoxTally::new(&truth), BoxTally::new(&truth)];
    for (number, picture) in part["pictures"].as_array().unwrap().iter().enumerate() {
        if !picture["found"].is_null() {
            tallies[number % 3].read(picture["key"].as_str().unwrap(), &column(&picture["found"]), 0);
        }
    }
    let [mut all, second, third] = tallies;
    all.add(second);
    all.add(third);
    let measures = all.measures().unwrap();
    let near = |found: f64, expected: &Value| {
        let expected = expected.as_f64().unwrap();
        assert!((found - expected).abs() < 1e-9, "{found}, expected {expected}");
    };
    near(measures.map_percent, &part["map_percent"]);
    near(measures.map_50_percent, &part["map_50_percent"]);
    for (row, expected) in measures.classes.iter().zip(part["classes"].as_array().unwrap()) {
        assert_eq!(Some(row.class), expected[0].as_i64());
        near(row.average_precision_percent, &expected[1]);
        near(row.average_precision_50_percent, &expected[2]);
    }
    assert_eq!(measures.classes.len(), part["classes"].as_array().unwrap().len());
    assert_eq!(measures.pictures, 40);
    all.end_with_rows();
    assert_eq!(all.measures().unwrap().pictures, 39);
}

#[test]
fn what_counts_as_a_box() {
    let truth = Arc::new(
        load("{\"key\": 1, \"boxes\": [[0.1, 0.1, 0.2, 0.2, 3]]}\n{\"key\": 2, \"boxes\": []}").unwrap(),
    );
    let measured = |rows: &[(&str, Value)]| {
        let mut tally = BoxTally::new(&truth);
        rows.iter().for_each(|(key, boxes)| tally.read(key, &column(boxes), 0));
        tally.measures().unwrap().map_percent
    };
    let right = [0.1, 0.1, 0.2, 0.2, 0.9, 3.0];
    assert_eq!(measured(&[]), 0.0);
    assert_eq!(measured(&[("1", json!([right]))]), 100.0);
    assert_eq!(
        measured(&[("1", json!([right, [0, 0, 0, 0, 0, 0]]))]),
        100.0,
        "rows without a score are none"
    );
    assert_eq!(measured(&[("1", json!([right])), ("2", json!([[0.5, 0.5, 0.1, 0.1, 0.95, 3]]))]), 50.0);
    assert_eq!(measured(&[("2", json!([right]))]), 0.0, "another picture");
    assert_eq!(measured(&[("1", json!([[0.1, 0.1, 0.2, 0.2, 0.9, 4]]))]), 0.0, "another class");
    let tally = BoxTally::new(&truth);
    assert!(tally.knows("1") && !tally.knows("3"));
}

#[test]
fn wrong_truths_are_refused_with_their_line() {
    for (text, message) in [
        ("{\"key\": \"a\", \"boxes\": []}", "has no rows"),
        (
            "{\"key\": \"a\", \"boxes\": [[0, 0, 1, 1, 0]]}\n{\"boxes\": []}",
            "line 2: there is no field `key`",
        ),
        ("{\"key\": \"a\"}", "line 1: there is no field `boxes`"),
        ("{\"key\": \"a\", \"boxes\": 1}", "line 1: field `boxes` is not a list of boxes"),
        (
            "{\"key\": \"a\", \"boxes\": [[1, 2]]}",
            "line 1: box 0 of field `boxes` is not `[left, top, width, height, class]`: [1,2]",
        ),
        ("{\"key\": \"a\", \"boxes\": [[0, 0, 0, 1, 0]]}", "box 0 of field `boxes` has no area"),
        ("{\"key\": \"a\", \"boxes\": [[0, 0, 1, 1, 0.5]]}", "has a class that is not a whole number"),
        ("[", "line 1: not a JSON object"),
    ] {
        let error = load(text).unwrap_err();
        assert!(error.to_string().contains(message), "{text}: {error}");
    }
}
