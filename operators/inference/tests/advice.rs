//! Errors of manifests point at the list where a line is missing, and contain that line.
use crate::onnx::{FLOAT, INT64, Message, cast, integer, joining, node};
use crate::shapes::{folder, model, port};
use std::path::Path;
use std::sync::Arc;
use tidemill_inference::blueprint::Blueprint;
use tidemill_inference::error::ModelError;
use tidemill_inference::model::Model;

/// The message of a manifest that is wrong.
fn message(model: &[u8], ports: &str) -> String {
    let folder = folder(model, ports);
    let errors = Blueprint::read(&folder.path().join("m.yaml")).unwrap_err();
    ModelError::collect(errors).render(false)
}

#[test]
fn what_is_missing_is_shown_in_the_list_where_it_belongs() {
    let nodes = [
        cast("rate", "float", FLOAT),
        joining("Div", &["x", "float"], "divided", &[]),
        joining("Add", &["divided", "memory"], "y", &[]),
        node("Identity", "y", "memoryN", &[]),
    ];
    let inputs = [port("x", FLOAT, "batch 6"), port("rate", INT64, "1"), port("memory", FLOAT, "batch 6")];
    let outputs = [port("y", FLOAT, "batch 6"), port("memoryN", FLOAT, "batch 6")];
    let file = model(&nodes, &inputs, &outputs);
    let ports = "inputs: [{name: x, column: x, type: tensor, dtype: float32, shape: [batch, 6]}]\n\
                 constants: [{name: rate, value: 2}]\n\
                 states: [{input: memory, output: memoryN, shape: [batch, 6]}]\n\
                 outputs: [{name: y, column: y, type: tensor, dtype: float32, shape: [batch, 6]}]\n";
    assert!(Blueprint::read(&folder(&file, ports).path().join("m.yaml")).is_ok());
    let text =
        message(&file, &ports.replace("states: [{input: memory, output: memoryN, shape: [batch, 6]}]\n", ""));
    assert!(text.contains("E0553") && text.contains("reads `memory`"), "{text}");
    assert!(text.contains("under `states`: `{input: memory, output: memoryN, shape: [...]}`"), "{text}");
    let text = message(&file, &ports.replace("name: rate", "name: speed"));
    assert!(text.contains("no input `speed`; it has: x, rate, memory"), "{text}");
    assert!(text.contains("reads `rate`") && text.contains("under `constants`"), "{text}");
    assert_eq!(text.matches("m.yaml:10").count(), 2, "both at the constants: {text}");
    let text = message(&file, &ports.replace("input: memory,", "input: past,"));
    assert!(text.contains("no input `past`"), "{text}");
}

#[test]
fn a_dimension_of_one_that_counts_records_is_named() {
    let file = model(
        &[node("Identity", "x", "y", &[])],
        &[port("x", FLOAT, "steps batch 4")],
        &[port("y", FLOAT, "steps batch 4")],
    );
    let ports = "inputs: [{name: x, column: x, type: tensor, dtype: float32, shape: [5, batch, 4]}]\n\
                 outputs: [{name: y, column: y, type: text, dtype: float32, shape: [any, 1, 4], \
                 postprocess: [ctc_decode: {alphabet: abc, blank: 0}]}]\n";
    let text = message(&file, ports);
    assert!(text.contains("if the 1 counts records, write `batch` there: [any, batch, 4]"), "{text}");
    let right = folder(&file, &ports.replace("[any, 1, 4]", "[any, batch, 4]"));
    assert!(Blueprint::read(&right.path().join("m.yaml")).is_ok());
}

#[test]
fn strides_are_compared_without_a_backend() {
    let picture = port("x", FLOAT, "batch 3 64 64");
    let nodes = [joining("Reshape", &["x", "shape"], "y", &[])];
    let shape = Message::default()
        .number(1, 3)
        .number(2, INT64)
        .text(8, "shape")
        .bytes(9, &[-1i64, 1536, 8].iter().flat_map(|side| side.to_le_bytes()).collect::<Vec<u8>>());
    let graph = Message::default()
        .message(1, &nodes[0])
        .text(2, "graph")
        .message(5, &shape)
        .message(11, &picture)
        .message(12, &port("y", FLOAT, "batch 1536 8"));
    let opset = Message::default().text(1, "").number(2, 17);
    let file = Message::default().number(1, 8).message(7, &graph).message(8, &opset).0;
    let ports = "inputs:\n- {name: x, column: x, type: image, dtype: float32, shape: [batch, 3, 64, 64], \
                 preprocess: [resize: {width: 64, height: 64}]}\noutputs:\n- name: y\n  column: boxes\n  type: tensor\n  \
                 dtype: float32\n  shape: [batch, 1536, 8]\n  postprocess: [decode_boxes: {scores: objectness, threshold: 0.5, \
                 iou: 0.5, grid: {form: yolox, strides: [8, 16]}}]\n";
    let text = message(&file, ports);
    assert!(text.contains("E0555") && !text.contains("loop"), "{text}");
    assert!(text.contains("output `y`") && text.contains("make 80 places"), "{text}");
}

#[test]
fn a_model_of_pictures_of_any_width_is_tried_on_a_line() {
    let sides = |name| Message::default().text(1, name).number(20, 7).number(8, 4).number(8, 16);
    let pool = [sides("kernel_shape"), sides("strides")];
    let nodes = [
        node("MaxPool", "x", "pooled", &pool),
        node("GlobalAveragePool", "pooled", "means", &[]),
        node("Flatten", "means", "y", &[integer("axis", 1)]),
    ];
    let file = model(&nodes, &[port("x", FLOAT, "batch 3 4 width")], &[port("y", FLOAT, "batch 3")]);
    let ports = "inputs:\n- {name: x, column: x, type: image, dtype: float32, shape: [batch, 3, 4, any], \
                 preprocess: [fit_height: {height: 4, least: 20}]}\noutputs:\n\
                 - {name: y, column: y, type: tensor, dtype: float32, shape: [batch, 3]}\n";
    let folder = folder(&file, ports);
    let Ok(blueprint) = Blueprint::read(&folder.path().join("m.yaml")) else { panic!("it agrees") };
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    for backend in crate::backends_here().filter_map(|backend| (backend.open)(here).ok()) {
        let loaded = Model::load(Arc::clone(&blueprint), backend.as_ref());
        assert!(
            loaded.is_ok(),
            "{}: {}",
            backend.name(),
            loaded.err().map(|error| error.to_string()).unwrap_or_default()
        );
    }
}
