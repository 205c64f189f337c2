//! `tidemill models try`.
use crate::command::{Place, root, tidemill};
use image::RgbImage;
use serde_json::{Value, json};
use std::path::PathBuf;

/// A manifest of a small model.
fn small(name: &str) -> String {
    format!("operators/inference/testdata/{name}")
}

/// A picture of one colour.
fn picture(place: &Place, name: &str, colour: [u8; 3]) -> PathBuf {
    let path = place.path(name);
    RgbImage::from_pixel(64, 32, image::Rgb(colour)).save(&path).unwrap();
    path
}

/// Values of a tensor in the answer as JSON.
fn values(record: &Value, column: &str) -> Vec<f64> {
    let values = record["outputs"][column]["values"].as_array();
    values.unwrap_or_else(|| panic!("{record}")).iter().map(|value| value.as_f64().unwrap()).collect()
}

#[test]
fn a_picture_gives_its_result_in_any_format() {
    let place = Place::empty("tried");
    let files: Vec<String> = ["a.png", "a.bmp", "a.gif", "a.webp", "a.tiff", "a.jpg"]
        .iter()
        .map(|name| picture(&place, name, [255, 0, 0]).to_str().unwrap().to_owned())
        .collect();
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    let manifest = small("image_means.yaml");
    let verb = ["models", "try", &manifest, "--backend", "rten"];
    let document = tidemill(&[&verb[..], &files, &["-o", "json"]].concat()).expect(0).json();
    assert_eq!((&document["id"], &document["backend"]["name"]), (&json!("image-means"), &json!("rten")));
    let records = document["records"].as_array().unwrap();
    assert_eq!(records.len(), files.len());
    for record in records {
        let means = values(record, "features");
        // Normalized by 0.5 and 0.25.
        let is_near = |found: f64, expected: f64| (found - expected).abs() < 0.1;
        assert!(is_near(means[0], 2.0) && is_near(means[1], -2.0) && is_near(means[2], -2.0), "{record}");
        assert!(record["milliseconds"].as_f64().unwrap() > 0.0, "{record}");
    }
    let text = tidemill(&[&verb[..], &files[..1]].concat()).expect(0).stdout;
    assert!(text.starts_with("image-means on rten "), "{text}");
    assert!(
        text.contains("a.png: ") && text.contains("float32 [3]: 2, -2, -2; min -2, max 2, mean -0.66667"),
        "{text}"
    );
}

#[test]
fn texts_and_rows_and_values_for_all() {
    let [answerer, linear] = ["models/vqa/answerer-small.yaml".to_owned(), small("linear.yaml")];
    let features: Vec<f64> = vec![0.5; 384];
    let set = format!("features={}", json!(features));
    let verb = ["models", "try", &answerer, "--set", &set, "--backend", "rten"];
    let texts = ["--text", "what color is the circle", "--text", "is there a circle"];
    let document = tidemill(&[&verb[..], &texts, &["-o", "json"]].concat()).expect(0).json();
    let records = document["records"].as_array().unwrap();
    assert_eq!(records[1]["input"], "\"is there a circle\"");
    assert!(records.iter().all(|record| record["outputs"]["answer"].is_string()), "{document}");

    let verb = ["models", "try", &linear, "--backend", "rten"];
    let text = tidemill(&[&verb[..], &["--set", "x=[1, 5, 2, 0]"]].concat()).expect(0).stdout;
    assert!(text.contains("label   \"middle\""), "{text}");
    let rows = ["--row", "{\"x\": [9, 0, 0, 0]}", "--row", "{\"x\": [[0, 0, 9, 0]]}"];
    let outcome = tidemill(&[&verb[..], &rows].concat()).expect(2);
    assert!(outcome.stderr.contains("row 2: the list does not fit `x`"), "{}", outcome.stderr);
    let document = tidemill(&[&verb[..], &rows[..2], &["-o", "json"]].concat()).expect(0).json();
    assert_eq!(document["records"][0]["outputs"]["label"], "left");

    let place = Place::empty("tried");
    place.write("lists.jsonl", "[9, 0, 0, 0]\n[0, 0, 9, 0]\n[0, 9, 0, 0]\n");
    let file = place.argument("lists.jsonl");
    let document = tidemill(&[&verb[..], &[&file, "--rows", "2", "-o", "json"]].concat()).expect(0).json();
    let labels: Vec<&Value> =
        document["records"].as_array().unwrap().iter().map(|record| &record["outputs"]["label"]).collect();
    assert_eq!(labels, ["left", "right"]);
}

/// The small model `linear` with other inputs and outputs.
fn linear_with(place: &Place, ports: &str) -> String {
    let manifest = std::fs::read_to_string(root().join(small("linear.yaml"))).unwrap();
    let (head, _) = manifest.split_once("inputs:").unwrap();
    let file = root().join(small("linear.onnx"));
    let head = head.replace("file: linear.onnx", &format!("file: {}", file.display()));
    place.write("linear.yaml", head + ports);
    place.argument("linear.yaml")
}

#[test]
fn tables_are_read_as_far_as_asked() {
    let place = Place::empty("tried");
    let manifest = linear_with(
        &place,
        "inputs:
  - name: x
    type: features
    columns: [area, rooms, balcony, {column: heating, categories: [gas, oil]}]
    dtype: float32
    shape: [batch, 4]
outputs:
  - {name: logits, column: most, type: int64, dtype: float32, shape: [batch, 3], postprocess: [argmax: {}]}
  - {name: logits, column: scores, type: tensor, dtype: float32, shape: [batch, 3]}
",
    );
    place.write("flats.csv", "heating,area,rooms,balcony\ngas,61.5,1,false\noil,2,30,True\ngas,1,2,false\n");
    let csv = place.argument("flats.csv");
    let verb = ["models", "try", &manifest, "--backend", "rten", "-o", "json"];
    let of = |arguments: &[&str], code| tidemill(&[&verb[..], arguments].concat()).expect(code).json();
    let document = of(&[&csv, "--rows", "2"], 0);
    let records = document["records"].as_array().unwrap();
    assert_eq!(records.len(), 2);
    assert!(records[1]["input"].as_str().unwrap().ends_with("flats.csv, row 2"), "{document}");
    assert_eq!(values(&records[0], "scores"), [61.5, 1.0, 0.25]);
    assert_eq!(values(&records[1], "scores"), [2.5, 30.5, 1.75]);
    assert_eq!((&records[0]["outputs"]["most"], &records[1]["outputs"]["most"]), (&json!(0), &json!(1)));
    // The same row as an object and as a list.
    let object = r#"{"heating": "gas", "area": 61.5, "rooms": 1, "balcony": false, "more": []}"#;
    let other = of(&["--row", object, "--row", r#"[61.5, 1, false, "gas"]"#], 0);
    for record in other["records"].as_array().unwrap() {
        assert_eq!(record["outputs"], records[0]["outputs"]);
    }
    // A value that the model needs and the row does not have, and one that is not known.
    place.write("flats.csv", "heating,area,rooms,balcony\ngas,61.5,,false\nwood,1,2,false\ngas,1,2,false\n");
    let document = of(&[&csv], 1);
    let reason = |record: usize| document["records"][record]["rejected"]["reason"].clone();
    assert_eq!((reason(0), reason(1)), (json!("missing_value"), json!("unknown_category")), "{document}");
    assert_eq!(document["records"][2]["outputs"]["most"], 1, "{document}");
}

#[test]
fn sounds_become_texts() {
    let speech = "models/vqa/speech-small.yaml";
    let sounds = root().join("examples/vqa/data/questions");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(sounds).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let sound = files[0].to_str().unwrap();
    let text = tidemill(&["models", "try", speech, sound, "--backend", "rten"]).expect(0).stdout;
    assert!(text.contains("question  \""), "{text}");
}

#[test]
fn boxes_are_listed_in_pixels_and_drawn() {
    let place = Place::empty("tried");
    let grey = picture(&place, "grey.png", [90, 90, 90]);
    let (grey, drawn) = (grey.to_str().unwrap(), place.argument("found.png"));
    let manifest = small("two_boxes.yaml");
    let verb = ["models", "try", &manifest, grey, "--backend", "rten"];
    let text = tidemill(&[&verb[..], &["--save", &drawn]].concat()).expect(0).stdout;
    let expected = [
        "boxes: 2 boxes in 64 x 32 pixels",
        "class  score  left  top  width  height",
        "dog    0.875    16   12     32       8",
        "cat    0.500     8    2     16       4",
    ];
    let lines: Vec<&str> = text.lines().collect();
    let at = lines.iter().position(|line| *line == expected[0]).unwrap_or_else(|| panic!("{text}"));
    assert_eq!(lines[at..at + 4], expected);
    assert!(text.contains(&format!("boxes drawn into {drawn}")), "{text}");
    let pixels = image::open(&drawn).unwrap().into_rgb8();
    assert_eq!(pixels.dimensions(), (64, 32));
    assert_ne!(pixels.get_pixel(47, 16).0, [90; 3], "the right side of the dog");
    assert_eq!(pixels.get_pixel(60, 30).0, [90; 3], "outside");

    let both = tidemill(&[&verb[..], &[grey, "--save", &drawn, "-o", "json"]].concat()).expect(0).json();
    assert_eq!(both["saved"], json!([place.argument("found-1.png"), place.argument("found-2.png")]));
    let boxes = &both["records"][1]["outputs"]["boxes"];
    assert_eq!(boxes["picture"], json!([64, 32]));
    assert_eq!(
        boxes["boxes"][0],
        json!({"class": 1, "label": "dog", "score": 0.875, "left": 16.0, "top": 12.0, "width": 32.0, "height": 8.0})
    );
}

#[test]
fn the_best_labels_have_their_scores() {
    let place = Place::empty("tried");
    let port = "name: logits, type: tensor, dtype: float32, shape: [batch, 3]";
    let manifest = linear_with(
        &place,
        &format!(
            "inputs: [{{name: x, column: x, type: tensor, dtype: float32, shape: [batch, 4]}}]
outputs:
  - {{{port}, column: best, postprocess: [top_k: {{k: 2, labels: [left, middle, right]}}]}}
  - {{{port}, column: scores, postprocess: [top_k: {{k: 2, give: values}}]}}
"
        ),
    );
    let verb = ["models", "try", &manifest, "--set", "x=[1, 5, 2, 0]", "--backend", "rten"];
    let text = tidemill(&verb).expect(0).stdout;
    let lines: Vec<&str> = text.lines().skip_while(|line| !line.starts_with("column")).collect();
    assert_eq!(
        lines,
        ["column  value     score", "best    \"middle\"      5", "        \"right\"    2.25"],
        "{text}"
    );
    let document = tidemill(&[&verb[..], &["-o", "json"]].concat()).expect(0).json();
    assert_eq!(
        document["records"][0]["outputs"],
        json!({"best": ["middle", "right"], "scores": [5.0, 2.25]})
    );
}

#[test]
fn records_of_a_model_with_states_follow_one_another() {
    let manifest = small("running_sum.yaml");
    let rows = ["--row", "{\"x\": [1, 10]}", "--row", "{\"x\": [2, 20]}", "--row", "{\"x\": [3, 30]}"];
    let verb = ["models", "try", &manifest, "--backend", "rten", "-o", "json"];
    let outcome = tidemill(&[&verb[..], &rows].concat()).expect(0);
    let document = outcome.json();
    let sums: Vec<Vec<f64>> =
        document["records"].as_array().unwrap().iter().map(|record| values(record, "sum")).collect();
    assert_eq!(sums, [[1.0, 10.0], [3.0, 30.0], [6.0, 60.0]], "the run before them leaves nothing");
    assert!(outcome.stderr.contains("keeps `before` from record to record"), "{}", outcome.stderr);
}

#[test]
fn backends_are_compared_on_the_same_records() {
    let manifest = small("linear.yaml");
    let verb = ["models", "try", &manifest, "--set", "x=[1, 5, 2, 0]", "--compare", "--backend", "rten"];
    let text = tidemill(&verb).expect(0).stdout;
    assert!(text.contains("compared with") && text.contains("\nort "), "{text}");
    let document = tidemill(&[&verb[..], &["-o", "json"]].concat()).expect(0).json();
    let other = &document["comparison"][0];
    assert_eq!(other["backend"], "ort");
    if other["here"] == true {
        let output = &other["outputs"][0];
        assert_eq!((&output["name"], &output["largest"]), (&json!("logits"), &json!(5.0)));
        assert!(output["difference"].as_f64().unwrap() < 1e-3, "{document}");
    }
    // A decoder writes texts, which are equal or not.
    let counter = small("counter.yaml");
    let verb = ["models", "try", &counter, "--set", "first=[0]", "--compare", "--backend", "rten"];
    let text = tidemill(&verb).expect(0).stdout;
    assert!(text.contains("counted  \"three four five\""), "{text}");
}

#[test]
fn an_onnx_file_is_tried_by_a_draft() {
    let place = Place::empty("tried");
    let picture = picture(&place, "a.png", [0, 0, 255]);
    let model = small("image_means.onnx");
    let outcome =
        tidemill(&["models", "try", &model, picture.to_str().unwrap(), "--backend", "rten"]).expect(0);
    assert!(outcome.stderr.contains("by a draft of the manifest"), "{}", outcome.stderr);
    assert!(
        outcome.stderr.contains(&format!("`tidemill models inspect {model} --manifest`")),
        "{}",
        outcome.stderr
    );
    assert!(outcome.stdout.contains("means"), "{}", outcome.stdout);
}

#[test]
fn mistakes_are_explained() {
    let place = Place::empty("tried");
    place.write("no.png", "no picture");
    place.write("lines.jsonl", "{\"x\": [1, 2, 3, 4]}\n{\"x\": 1,\n");
    let [no, lines] = [place.argument("no.png"), place.argument("lines.jsonl")];
    let [means, linear, sum] = [small("image_means.yaml"), small("linear.yaml"), small("text_sum.yaml")];
    let cases: &[(i32, &[&str], &[&str])] = &[
        (1, &[&means, &no], &[]),
        (78, &[&means, "none.png"], &["cannot read none.png"]),
        (78, &["none.yaml", "none.png"], &["none.yaml"]),
        (78, &["none.onnx", "none.png"], &["none.onnx"]),
        (78, &[&linear, &lines], &["lines.jsonl, line 2: no JSON", "write one JSON object in each line"]),
        (78, &[&linear, &no], &["`x` (tensor<float32>[4], a JSON list) is JSON"]),
        (2, &[&means], &["nothing to run the model on; it reads `image` (a picture)", "name a file"]),
        (2, &[&means, "--text", "x"], &["the model reads no text for `--text`, but `image` (a picture)"]),
        (2, &[&linear, "--set", "y=[1]"], &["the model reads no column `y`", "`x`"]),
        (2, &[&linear, "--set", "x=[1]"], &["the list does not fit `x`", "it has the shape [1]"]),
        (2, &[&linear, "--set", "x"], &["write `--set COLUMN=VALUE`"]),
        (2, &[&linear, "--row", "{x"], &["no JSON", "write a JSON object, such as"]),
        (2, &[&linear, "--set", "x=[1,2,3,4]", "--save", "a.png"], &["`linear` finds none in pictures"]),
        (2, &[&sum, "--text", "abc"], &["it reads `extra` (tensor<float32>[2], a JSON list)"]),
        (
            2,
            &[&sum, "--row", "{\"question\": \"a\"}"],
            &["row 1 has no value for `extra`", "add `--set extra=VALUE`"],
        ),
        (78, &[&linear, "--set", "x=[1,2,3,4]", "--backend", "tvm"], &["tvm", "linear.yaml:"]),
        (2, &[&linear, "--rows", "0"], &["--rows"]),
    ];
    for (code, arguments, expected) in cases {
        let outcome = tidemill(&[&["models", "try"][..], arguments].concat()).expect(*code);
        for text in *expected {
            assert!(outcome.stderr.contains(text), "{arguments:?}: {text}\n{}", outcome.stderr);
        }
    }
    let outcome = tidemill(&["models", "try", &means, &no]).expect(1);
    assert!(
        outcome.stdout.contains("no.png: no result, ") && outcome.stdout.contains("(image_invalid)"),
        "{}",
        outcome.stdout
    );
    let document = tidemill(&["models", "try", &means, "none.png", "-o", "json"]).expect(78).json();
    let message = document["findings"][0]["message"].as_str().unwrap();
    assert!(message.starts_with("cannot read none.png"), "{document}");
}
