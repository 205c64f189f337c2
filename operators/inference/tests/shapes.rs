//! Models whose tensors count records elsewhere or not at all, with constants, several outputs of a head, and states from
//! record to record.

use crate::onnx::{FLOAT, INT64, Message, cast, joining, node};
use arrow_array::cast::AsArray;
use arrow_array::types::Float32Type;
use arrow_array::{
    ArrayRef, FixedSizeBinaryArray, FixedSizeListArray, Float32Array, Int8Array, Int64Array, RecordBatch,
    StringArray, UInt32Array, UInt64Array,
};
use arrow_schema::{DataType, Field};
use std::path::Path;
use std::sync::Arc;
use tidemill_inference::MlKind;
use tidemill_inference::blueprint::Blueprint;
use tidemill_inference::error::ModelError;
use tidemill_inference::model::Model;
use tidemill_inference::steps::{Cell, OutputColumn};
use tidemill_inference::tensor::TensorData;
use tidemill_operators::api::{Instance, Output, Stateful};
use tidemill_operators::kind::{InputPort, OperatorContext, OperatorKind};
use tidemill_operators::record::{record_schema, source_id};
use tidemill_spec::digest::sha256;
use tidemill_spec::span::{SourceFile, Span};
use tidemill_spec::types::{Column, ColumnType, ElementType, StreamType};
use tidemill_spec::value::Value;

/// A tensor whose sizes are numbers or names.
pub(crate) fn port(name: &str, element: u64, sizes: &str) -> Message {
    let shape = sizes.split_whitespace().fold(Message::default(), |shape, size| {
        let side = match size.parse() {
            Ok(number) => Message::default().number(1, number),
            Err(_) => Message::default().text(2, size),
        };
        shape.message(1, &side)
    });
    let tensor = Message::default().number(1, element).message(2, &shape);
    Message::default().text(1, name).message(2, &Message::default().message(1, &tensor))
}

pub(crate) fn model(nodes: &[Message], inputs: &[Message], outputs: &[Message]) -> Vec<u8> {
    let graph = nodes.iter().fold(Message::default().text(2, "graph"), |graph, node| graph.message(1, node));
    let graph = inputs.iter().fold(graph, |graph, input| graph.message(11, input));
    let graph = outputs.iter().fold(graph, |graph, output| graph.message(12, output));
    let opset = Message::default().text(1, "").number(2, 17);
    Message::default().number(1, 8).message(7, &graph).message(8, &opset).0
}

pub(crate) fn integers(name: &str, values: &[u64]) -> Message {
    let all = Message::default().text(1, name).number(20, 7);
    values.iter().fold(all, |all, value| all.number(8, *value))
}

/// A folder with a model and its manifest, whose inputs and outputs are these lines.
pub(crate) fn folder(model: &[u8], ports: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("m.onnx"), model).unwrap();
    let manifest = format!(
        "version: 1\nid: m\ndescription: x\nfile: m.onnx\nsha256: {}\nlicence: MIT\n\
         origin: {{kind: external, note: made by the test}}\nbackends: [ort, rten]\n{ports}",
        sha256(model)
    );
    std::fs::write(folder.path().join("m.yaml"), manifest).unwrap();
    folder
}

/// The model of a folder on each backend of this machine.
pub(crate) fn loaded(folder: &Path) -> Vec<Model> {
    let blueprint = Blueprint::read(&folder.join("m.yaml"))
        .unwrap_or_else(|errors| panic!("{}", ModelError::collect(errors).render(false)));
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let backends = crate::backends_here().filter_map(|backend| (backend.open)(here).ok());
    let load = |backend: Arc<dyn tidemill_inference::backend::Backend>| {
        Model::load(Arc::clone(&blueprint), backend.as_ref())
            .unwrap_or_else(|error| panic!("{}: {error}", backend.name()))
    };
    backends.map(load).collect()
}

pub(crate) fn floats(column: &OutputColumn) -> &[f32] {
    let OutputColumn::Tensor(TensorData::Float32(values)) = column else { panic!("floats: {column:?}") };
    values
}

const RECORDS: [[f32; 6]; 2] = [[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [7.0, 8.0, 9.0, 10.0, 11.0, 12.0]];

/// The first column for [`RECORDS`], on each backend.
fn results(model: &[u8], ports: &str) -> Vec<Vec<f32>> {
    let folder = folder(model, ports);
    let run = |mut model: Model| {
        let rows: Vec<_> =
            RECORDS.iter().map(|record| model.prepare(&[Cell::Float32(record)]).unwrap()).collect();
        let raw = model.run(&rows).unwrap();
        floats(&model.finish(raw)[0]).to_vec()
    };
    loaded(folder.path()).into_iter().map(run).collect()
}

fn turned(from: &str, to: &str) -> Message {
    node("Transpose", from, to, &[integers("perm", &[1, 0, 2])])
}

#[test]
fn records_are_counted_in_any_dimension() {
    let first = "type: tensor, dtype: float32, shape: [batch, 2, 3]";
    let second = "type: tensor, dtype: float32, shape: [2, batch, 3]";
    let whole = RECORDS.concat();
    let out = model(&[turned("x", "y")], &[port("x", FLOAT, "batch 2 3")], &[port("y", FLOAT, "2 batch 3")]);
    let ports =
        format!("inputs: [{{name: x, column: x, {first}}}]\noutputs: [{{name: y, column: y, {second}}}]\n");
    for values in results(&out, &ports) {
        assert_eq!(values, whole);
    }
    let into = model(&[turned("x", "y")], &[port("x", FLOAT, "2 batch 3")], &[port("y", FLOAT, "batch 2 3")]);
    let ports =
        format!("inputs: [{{name: x, column: x, {second}}}]\noutputs: [{{name: y, column: y, {first}}}]\n");
    for values in results(&into, &ports) {
        assert_eq!(values, whole);
    }
}

#[test]
fn tensors_of_one_record_need_no_dimension_for_it() {
    let same =
        model(&[node("Identity", "x", "y", &[])], &[port("x", FLOAT, "2 3")], &[port("y", FLOAT, "2 3")]);
    let ports = "inputs: [{name: x, column: x, type: tensor, dtype: float32, shape: [2, 3]}]\n\
                 outputs: [{name: y, column: y, type: tensor, dtype: float32, shape: [2, 3]}]\n";
    for values in results(&same, ports) {
        assert_eq!(values, RECORDS.concat());
    }
    let wrong = folder(&same, &ports.replace("shape: [2, 3]}]\n", "shape: [3, 2]}]\n"));
    assert!(Blueprint::read(&wrong.path().join("m.yaml")).is_err());
}

#[test]
fn constants_fill_inputs_that_no_column_feeds() {
    let nodes = [cast("rate", "float", FLOAT), joining("Div", &["x", "float"], "y", &[])];
    let divided = model(
        &nodes,
        &[port("x", FLOAT, "batch 6"), port("rate", INT64, "")],
        &[port("y", FLOAT, "batch 6")],
    );
    let ports = "inputs: [{name: x, column: x, type: tensor, dtype: float32, shape: [batch, 6]}]\n\
                 constants: [{name: rate, value: 2}]\n\
                 outputs: [{name: y, column: y, type: tensor, dtype: float32, shape: [batch, 6]}]\n";
    for values in results(&divided, ports) {
        assert_eq!(values, RECORDS.concat().iter().map(|value| value / 2.0).collect::<Vec<_>>());
    }
    for (value, message) in [
        ("[1, 2]", "2 values do not fill"),
        (".inf", "not a finite number"),
        ("1.5", "1.5 does not fit into int64; write a whole number"),
        ("1.0e+19", "does not fit into int64"),
    ] {
        let folder = folder(&divided, &ports.replace("value: 2", &format!("value: {value}")));
        let errors = Blueprint::read(&folder.path().join("m.yaml")).unwrap_err();
        let text = ModelError::collect(errors).render(false);
        assert!(text.contains(message), "{text}");
    }
    let unfed = folder(&divided, &ports.replace("constants: [{name: rate, value: 2}]\n", ""));
    let errors = Blueprint::read(&unfed.path().join("m.yaml")).unwrap_err();
    let text = ModelError::collect(errors).render(false);
    assert!(
        text.contains("reads `rate`") && text.contains("`constants`: `{name: rate, value: ...}`"),
        "{text}"
    );
}

#[test]
fn boxes_and_scores_may_come_from_two_outputs() {
    let nodes = [node("Identity", "x", "boxes", &[]), node("Identity", "z", "logits", &[])];
    let head = model(
        &nodes,
        &[port("x", FLOAT, "batch 2 4"), port("z", FLOAT, "batch 2 2")],
        &[port("boxes", FLOAT, "batch 2 4"), port("logits", FLOAT, "batch 2 2")],
    );
    let ports = "inputs:\n\
                 - {name: x, column: x, type: tensor, dtype: float32, shape: [batch, 2, 4]}\n\
                 - {name: z, column: z, type: tensor, dtype: float32, shape: [batch, 2, 2]}\n\
                 outputs:\n\
                 - name: boxes\n  column: boxes\n  type: tensor\n  dtype: float32\n  shape: [batch, 2, 4]\n  \
                 postprocess: [decode_boxes: {form: corners, scores_from: logits, activation: sigmoid, \
                 threshold: 0.4, iou: 0.5, most: 2}]\n";
    let found = folder(&head, ports);
    for mut model in loaded(found.path()) {
        let boxes = [0.1, 0.1, 0.3, 0.5, 0.5, 0.5, 0.7, 0.9];
        let cells = [Cell::Float32(&boxes), Cell::Float32(&[0.0, -3.0, -3.0, -3.0])];
        let other = [Cell::Float32(&boxes), Cell::Float32(&[-3.0, -3.0, -3.0, 0.0])];
        let rows = [model.prepare(&cells).unwrap(), model.prepare(&other).unwrap()];
        let raw = model.run(&rows).unwrap();
        let columns = model.finish(raw);
        let values = floats(&columns[0]);
        let expected = [[0.1, 0.1, 0.2, 0.4, 0.5, 0.0], [0.5, 0.5, 0.2, 0.4, 0.5, 1.0]];
        for (row, expected) in values.chunks(12).zip(expected) {
            let is_near = row.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6);
            assert!(is_near && row[6..] == [0.0; 6], "{row:?}");
        }
    }
    let missing = folder(&head, &ports.replace("scores_from: logits", "scores_from: scores"));
    let errors = Blueprint::read(&missing.path().join("m.yaml")).unwrap_err();
    assert!(ModelError::collect(errors).render(false).contains("no output `scores`"));
}

/// A model that adds what it reads to its state, and gives the sum.
fn counter() -> tempfile::TempDir {
    let nodes = [joining("Add", &["x", "before"], "after", &[]), node("Identity", "after", "sum", &[])];
    let model = model(
        &nodes,
        &[port("x", FLOAT, "batch 1"), port("before", FLOAT, "batch 1")],
        &[port("sum", FLOAT, "batch 1"), port("after", FLOAT, "batch 1")],
    );
    folder(
        &model,
        "inputs: [{name: x, column: x, type: tensor, dtype: float32, shape: [batch, 1]}]\n\
         states: [{input: before, output: after, shape: [batch, 1]}]\n\
         outputs: [{name: sum, column: sum, type: tensor, dtype: float32, shape: [batch, 1]}]\n",
    )
}

fn stream() -> StreamType {
    let x = ColumnType::Tensor { element: ElementType::Float32, shape: vec![1] };
    StreamType::new([Column::new("who", ColumnType::Text), Column::new("x", x)])
}

/// Records of a key, a value and a time in seconds.
fn batch(rows: &[(&str, f32, i64)]) -> RecordBatch {
    let ids: Vec<u8> = (0..rows.len()).flat_map(|row| source_id(0, row as u64)).collect();
    let times = || Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.2 * 1_000_000)));
    let item = Arc::new(Field::new("item", DataType::Float32, false));
    let values = Arc::new(Float32Array::from_iter_values(rows.iter().map(|row| row.1)));
    let arrays: Vec<ArrayRef> = vec![
        Arc::new(FixedSizeBinaryArray::new(16, ids.into(), None)),
        Arc::new(UInt32Array::from(vec![0; rows.len()])),
        Arc::new(UInt64Array::from_iter_values(0..rows.len() as u64)),
        times(),
        times(),
        Arc::new(UInt32Array::from(vec![0; rows.len()])),
        Arc::new(Int8Array::from(vec![1; rows.len()])),
        Arc::new(StringArray::from_iter_values(rows.iter().map(|row| row.0))),
        Arc::new(FixedSizeListArray::new(item, 1, values, None)),
    ];
    RecordBatch::try_new(record_schema(&stream()), arrays).unwrap()
}

fn bound(folder: &Path, options: &str, backend: &str) -> Result<Box<dyn Stateful>, String> {
    let (id, variants) = ("model".into(), ["m.yaml".into()]);
    let context =
        OperatorContext { variants: &variants, backend: Some(backend), ..OperatorContext::new(&id, folder) };
    let port = InputPort { from: "records".into(), stream: stream(), span: Span::nowhere() };
    let options: Value = tidemill_spec::yaml::parse(&SourceFile::new("options.yaml", options)).unwrap();
    let bound = MlKind::default().bind(&context, &[port], &options).map_err(|error| error.render(false))?;
    match (bound.make)().map_err(|error| error.to_string())? {
        Instance::Stateful(stateful) => Ok(stateful),
        _ => Err("it keeps no state".to_owned()),
    }
}

fn sums(stateful: &mut dyn Stateful, rows: &[(&str, f32, i64)]) -> Vec<f32> {
    let mut output = Output::default();
    stateful.apply(0, &batch(rows), &mut output).unwrap();
    assert_eq!(output.dead_letters, []);
    let last = |batch: &RecordBatch| {
        let list = batch.columns().last().unwrap().as_fixed_size_list().clone();
        list.values().as_primitive::<Float32Type>().values().to_vec()
    };
    output.batches.iter().flat_map(last).collect()
}

const ROWS: [(&str, f32, i64); 5] =
    [("a", 1.0, 0), ("b", 10.0, 0), ("a", 2.0, 1), ("a", 3.0, 2), ("b", 20.0, 30)];

#[test]
fn states_follow_the_records_of_a_key() {
    let folder = counter();
    let mut by_key = bound(folder.path(), "{state: {key: who}}", "rten").unwrap();
    assert_eq!(sums(by_key.as_mut(), &ROWS), [1.0, 10.0, 3.0, 6.0, 30.0]);
    let mut all = bound(folder.path(), "{state: {}}", "rten").unwrap();
    assert_eq!(sums(all.as_mut(), &ROWS), [1.0, 11.0, 13.0, 16.0, 36.0]);
}

#[test]
fn states_start_anew_by_rule() {
    let folder = counter();
    let mut by_gap = bound(folder.path(), "{state: {key: who, reset_after: 10s}}", "rten").unwrap();
    assert_eq!(sums(by_gap.as_mut(), &ROWS), [1.0, 10.0, 3.0, 6.0, 20.0]);
    // States older than the gap are dropped and take no memory.
    assert!(by_gap.state_bytes() > 0);
    by_gap.advance(100_000_000, &mut Output::default()).unwrap();
    assert_eq!(by_gap.state_bytes(), 0);
    let rule = "{state: {key: who, reset_when: \"who == 'a'\"}}";
    let mut by_rule = bound(folder.path(), rule, "rten").unwrap();
    assert_eq!(sums(by_rule.as_mut(), &ROWS), [1.0, 10.0, 2.0, 3.0, 30.0]);
}

#[test]
fn states_survive_a_restart() {
    let folder = counter();
    for cut in 0..ROWS.len() {
        let mut first = bound(folder.path(), "{state: {key: who}}", "rten").unwrap();
        let mut found = sums(first.as_mut(), &ROWS[..cut]);
        let snapshot = first.snapshot().unwrap();
        let mut second = bound(folder.path(), "{state: {key: who}}", "rten").unwrap();
        second.restore(&snapshot).unwrap();
        found.extend(sums(second.as_mut(), &ROWS[cut..]));
        assert_eq!(found, [1.0, 10.0, 3.0, 6.0, 30.0], "cut at {cut}");
        assert!(second.restore(&snapshot[..snapshot.len() / 2]).is_err());
    }
}

#[test]
fn the_first_value_of_a_state_fits_its_type() {
    let folder = counter();
    let path = folder.path().join("m.yaml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("output: after,", "output: after, initial: {constant: 1.0e+300},"))
        .unwrap();
    let errors = ModelError::collect(Blueprint::read(&path).unwrap_err()).render(false);
    assert!(errors.contains("does not fit into float32"), "{errors}");
}

#[test]
fn a_model_with_states_says_whose_they_are() {
    let folder = counter();
    let without = bound(folder.path(), "{}", "rten").err().unwrap();
    assert!(without.contains("keeps `before` from record to record"), "{without}");
    let wrong = bound(folder.path(), "{state: {key: whom}}", "rten").err().unwrap();
    assert!(wrong.contains("did you mean `who`?"), "{wrong}");
    let condition = bound(folder.path(), "{state: {reset_when: who}}", "rten").err().unwrap();
    assert!(condition.contains("is no condition"), "{condition}");
}
