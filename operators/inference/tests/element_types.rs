//! Models that read and write bytes and 16-bit floats, on every backend of this machine.

use crate::onnx::{FLOAT, FLOAT16, Message, UINT8, cast, node, port};
use arrow_array::cast::AsArray;
use arrow_array::{ArrayRef, BinaryArray, FixedSizeBinaryArray, FixedSizeListArray, Float16Array, Int8Array};
use arrow_array::{Int64Array, RecordBatch, UInt8Array, UInt32Array, UInt64Array};
use arrow_schema::{DataType, Field};
use half::f16;
use std::io::Cursor;
use std::path::Path;
use std::sync::Arc;
use tidemill_inference::MlKind;
use tidemill_inference::blueprint::{Blueprint, Wanted};
use tidemill_inference::error::ModelError;
use tidemill_inference::model::Model;
use tidemill_inference::preprocess::mel::{LogMel, MelScale, MelSettings, Taper};
use tidemill_operators::api::{Instance, Output};
use tidemill_operators::kind::{InputPort, OperatorContext, OperatorKind};
use tidemill_operators::record::{record_schema, source_id};
use tidemill_spec::digest::sha256;
use tidemill_spec::span::Span;
use tidemill_spec::types::{Column, ColumnType, ElementType, StreamType};
use tidemill_spec::value::{Node, Value};

/// The mean of each channel.
fn means(from: &str, to: &str) -> Message {
    let axes = Message::default().text(1, "axes").number(8, 2).number(8, 3).number(20, 7);
    let keep = Message::default().text(1, "keepdims").number(3, 0).number(20, 2);
    node("ReduceMean", from, to, &[axes, keep])
}

fn model(nodes: &[Message], input: &Message, output: &Message) -> Vec<u8> {
    crate::onnx::model(17, nodes, &[], input, output)
}

/// A folder with a model and its manifest, whose inputs and outputs are these lines.
fn folder(model: &[u8], ports: &str) -> tempfile::TempDir {
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

/// A batch of two records with one column.
fn batch(column: &Column, values: ArrayRef) -> RecordBatch {
    let ids: Vec<u8> = (0..2).flat_map(|i| source_id(0, i)).collect();
    let columns: Vec<ArrayRef> = vec![
        Arc::new(FixedSizeBinaryArray::new(16, ids.into(), None)),
        Arc::new(UInt32Array::from(vec![0; 2])),
        Arc::new(UInt64Array::from(vec![0, 1])),
        Arc::new(Int64Array::from(vec![0; 2])),
        Arc::new(Int64Array::from(vec![0; 2])),
        Arc::new(UInt32Array::from(vec![0; 2])),
        Arc::new(Int8Array::from(vec![1; 2])),
        values,
    ];
    RecordBatch::try_new(record_schema(&StreamType::new([column.clone()])), columns).unwrap()
}

/// The last output column for a batch of two records, on each backend of this machine except `without`.
fn results(
    folder: &Path,
    column: &Column,
    values: &ArrayRef,
    without: &str,
) -> Vec<(&'static str, FixedSizeListArray)> {
    let list = |(backend, last): (_, ArrayRef)| (backend, last.as_fixed_size_list().clone());
    last_columns(folder, column, values, without).into_iter().map(list).collect()
}

/// The last output column of any type; see [`results`].
fn last_columns(
    folder: &Path,
    column: &Column,
    values: &ArrayRef,
    without: &str,
) -> Vec<(&'static str, ArrayRef)> {
    let (id, variants) = ("model".into(), ["m.yaml".into()]);
    let backends = crate::backends_here().filter(|backend| backend.name != without);
    let result = |name| {
        let context =
            OperatorContext { variants: &variants, backend: Some(name), ..OperatorContext::new(&id, folder) };
        let stream = StreamType::new([column.clone()]);
        let port = InputPort { from: "records".into(), stream, span: Span::nowhere() };
        let bound = MlKind::default().bind(&context, &[port], &Value::from(Node::Null));
        let bound = bound.unwrap_or_else(|errors| panic!("{name}: {}", errors.render(false)));
        let made = (bound.make)().unwrap_or_else(|error| panic!("{name}: {error}"));
        let Instance::Inference(mut instance) = made else { panic!("ml is inference") };
        let mut output = Output::default();
        instance.infer(&batch(column, Arc::clone(values)), &mut output).unwrap();
        assert_eq!(output.dead_letters, [], "{name}");
        (name, Arc::clone(output.batches[0].columns().last().unwrap()))
    };
    backends.map(|backend| result(backend.name)).collect()
}

fn list(item: DataType, width: i32, values: ArrayRef) -> ArrayRef {
    Arc::new(FixedSizeListArray::new(Arc::new(Field::new("item", item, false)), width, values, None))
}

fn picture(colour: [u8; 3]) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    let image = image::RgbImage::from_pixel(6, 6, image::Rgb(colour));
    image.write_to(&mut bytes, image::ImageFormat::Png).unwrap();
    bytes.into_inner()
}

fn pictures() -> (Column, ArrayRef) {
    let pictures = [picture([10, 200, 255]), picture([0, 1, 2])];
    let values = BinaryArray::from_iter_values(pictures);
    (Column::new("image", ColumnType::Image), Arc::new(values))
}

const PICTURE: &str = "inputs: [{name: image, column: image, type: image, dtype: DTYPE, shape: [batch, 3, 4, 4], \
                       preprocess: [STEPS]}]\n\
                       outputs: [{name: means, column: means, type: tensor, dtype: RESULT, shape: [batch, 3]}]\n";

fn ports(dtype: &str, steps: &str, result: &str) -> String {
    PICTURE.replace("DTYPE", dtype).replace("STEPS", steps).replace("RESULT", result)
}

fn means_of_bytes() -> Vec<u8> {
    let nodes = [cast("image", "floats", FLOAT), means("floats", "means")];
    model(&nodes, &port("image", UINT8, &[3, 4, 4]), &port("means", FLOAT, &[3]))
}

#[test]
fn the_bytes_of_a_picture_reach_the_model_as_they_are() {
    let (column, values) = pictures();
    for (steps, colours) in [
        ("resize: {width: 4, height: 4}", [10.0, 200.0, 255.0, 0.0, 1.0, 2.0]),
        ("resize: {width: 4, height: 4}, bgr: {}", [255.0, 200.0, 10.0, 2.0, 1.0, 0.0]),
    ] {
        let folder = folder(&means_of_bytes(), &ports("uint8", steps, "float32"));
        let results = results(folder.path(), &column, &values, "");
        assert!(!results.is_empty());
        for (backend, means) in results {
            let means: &arrow_array::Float32Array = means.values().as_any().downcast_ref().unwrap();
            assert_eq!(means.values(), &colours, "{backend}");
        }
    }
}

#[test]
fn bytes_are_not_normalized() {
    let steps = "resize: {width: 4, height: 4}, normalize: {mean: [0, 0, 0], std: [1, 1, 1]}";
    let folder = folder(&means_of_bytes(), &ports("uint8", steps, "float32"));
    let errors = Blueprint::read(&folder.path().join("m.yaml")).unwrap_err();
    let text = ModelError::collect(errors).render(false);
    assert!(text.contains("the output of `normalize` is not uint8") && text.contains("m.yaml:9:"), "{text}");
}

#[test]
fn tensors_of_bytes_come_and_go() {
    let model = model(&[node("Identity", "x", "y", &[])], &port("x", UINT8, &[3]), &port("y", UINT8, &[3]));
    let folder = folder(
        &model,
        "inputs: [{name: x, column: x, type: tensor, dtype: uint8, shape: [batch, 3]}]\n\
         outputs: [{name: y, column: y, type: tensor, dtype: uint8, shape: [batch, 3]}]\n",
    );
    let column = Column::new("x", ColumnType::Tensor { element: ElementType::Uint8, shape: vec![3] });
    assert_eq!(column.column_type.to_string(), "tensor<uint8>[3]");
    let values = list(DataType::UInt8, 3, Arc::new(UInt8Array::from(vec![1, 2, 3, 253, 254, 255])));
    for (backend, given) in results(folder.path(), &column, &values, "") {
        let given: &UInt8Array = given.values().as_any().downcast_ref().unwrap();
        assert_eq!(given.values(), &[1, 2, 3, 253, 254, 255], "{backend}");
    }
}

#[test]
fn half_floats_run_where_the_backend_has_them() {
    let nodes = [cast("image", "floats", FLOAT), means("floats", "wide"), cast("wide", "means", FLOAT16)];
    let model = model(&nodes, &port("image", FLOAT16, &[3, 4, 4]), &port("means", FLOAT16, &[3]));
    let steps = "resize: {width: 4, height: 4}, normalize: {mean: [0, 0, 0], std: [1, 1, 1]}";
    let folder = folder(&model, &ports("float16", steps, "float16"));
    let (column, values) = pictures();
    for (backend, given) in results(folder.path(), &column, &values, "rten") {
        let given: &Float16Array = given.values().as_any().downcast_ref().unwrap();
        let wanted = [10.0, 200.0, 255.0, 0.0, 1.0, 2.0].map(|colour: f32| f16::from_f32(colour / 255.0));
        assert_eq!(given.values(), &wanted, "{backend}");
    }
    let blueprint = Blueprint::read(&folder.path().join("m.yaml")).unwrap();
    let rten = tidemill_inference::backend::backend("rten", folder.path()).unwrap();
    let error = Model::load(blueprint, rten.as_ref()).err().unwrap().to_string();
    assert!(error.contains("image is float16, which it does not support"), "{error}");
}

/// A model that returns its input.
fn identity(row: &[u64]) -> Vec<u8> {
    model(&[node("Identity", "x", "y", &[])], &port("x", FLOAT, row), &port("y", FLOAT, row))
}

fn floats(shape: Vec<usize>, values: Vec<f32>) -> (Column, ArrayRef) {
    let width = shape.iter().product::<usize>() as i32;
    let column = Column::new("x", ColumnType::Tensor { element: ElementType::Float32, shape });
    (column, list(DataType::Float32, width, Arc::new(arrow_array::Float32Array::from(values))))
}

#[test]
fn square_matrices_are_transposed_too() {
    let folder = folder(
        &identity(&[2, 2]),
        "inputs: [{name: x, column: x, type: tensor, dtype: float32, shape: [batch, 2, 2], preprocess: [transpose: {}]}]\n\
         outputs: [{name: y, column: y, type: tensor, dtype: float32, shape: [batch, 2, 2]}]\n",
    );
    let (column, values) = floats(vec![2, 2], vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    for (backend, given) in results(folder.path(), &column, &values, "") {
        let given: &arrow_array::Float32Array = given.values().as_primitive();
        assert_eq!(given.values(), &[1.0, 3.0, 2.0, 4.0, 5.0, 7.0, 6.0, 8.0], "{backend}");
    }
}

/// A window of samples for a model that wants them one by one, with other numbers.
#[test]
fn tensors_get_a_gain_and_dimensions_of_1() {
    let folder = folder(
        &identity(&[3, 1]),
        "inputs: [{name: x, column: x, type: tensor, dtype: float32, shape: [batch, 3, 1], \
         preprocess: [gain: {factor: 0.5, add: 2}, gain: {factor: 4}]}]\n\
         outputs: [{name: y, column: y, type: tensor, dtype: float32, shape: [batch, 3, 1]}]\n",
    );
    let (column, values) = floats(vec![3], vec![1.0, -4.0, 0.0, 0.25, 2.0, 3.0]);
    for (backend, given) in results(folder.path(), &column, &values, "") {
        let given: &arrow_array::Float32Array = given.values().as_primitive();
        assert_eq!(given.values(), &[10.0, 0.0, 8.0, 8.5, 12.0, 14.0], "{backend}");
    }
}

/// A window of the operator `slices` instead of a whole sound.
#[test]
fn tensors_of_samples_become_spectrograms() {
    let mel = "log_mel: {sample_rate: 8000, window: 200, hop: 80, fft: 256, mels: 10, low: 60, high: 3900, floor: 1.0e-6, \
               scale: slaney, taper: hamming, log10: true, in_middle: true}";
    let folder = folder(
        &identity(&[4, 10]),
        &format!(
            "inputs: [{{name: x, column: x, type: tensor, dtype: float32, shape: [batch, 4, 10], \
             preprocess: [{mel}]}}]\n\
             outputs: [{{name: y, column: y, type: tensor, dtype: float32, shape: [batch, 4, 10]}}]\n"
        ),
    );
    let blueprint = Blueprint::read(&folder.path().join("m.yaml")).unwrap();
    let read = blueprint.read_columns();
    let shape = vec![3 * 80 + 256];
    let expected = ColumnType::Tensor { element: ElementType::Float32, shape: shape.clone() };
    assert!(matches!(&read[0].wanted, Wanted::Exactly(found) if *found == expected), "{read:?}");
    let samples: Vec<f32> = (0..2 * shape[0]).map(|at| (at as f32 * 0.3).sin() / 2.0).collect();
    let settings = MelSettings {
        sample_rate: 8000,
        window: 200,
        hop: 80,
        fft: 256,
        mels: 10,
        low: 60.0,
        high: 3900.0,
        floor: 1e-6,
        adds_floor: false,
        log10: true,
        scale: MelScale::Slaney,
        taper: Taper::Hamming,
        in_middle: true,
    };
    let mut mel = LogMel::new(settings).unwrap();
    let wanted: Vec<f32> = samples.chunks(shape[0]).flat_map(|sound| mel.compute(sound)).collect();
    let (column, values) = floats(shape, samples);
    for (backend, given) in results(folder.path(), &column, &values, "") {
        let given: &arrow_array::Float32Array = given.values().as_primitive();
        assert_eq!(given.values(), &wanted[..], "{backend}");
    }
}

#[test]
fn whole_numbers_get_no_gain() {
    let model = model(&[node("Identity", "x", "y", &[])], &port("x", UINT8, &[3]), &port("y", UINT8, &[3]));
    let folder = folder(
        &model,
        "inputs: [{name: x, column: x, type: tensor, dtype: uint8, shape: [batch, 3], preprocess: [gain: {factor: 2}]}]\n\
         outputs: [{name: y, column: y, type: tensor, dtype: uint8, shape: [batch, 3]}]\n",
    );
    let errors = Blueprint::read(&folder.path().join("m.yaml")).unwrap_err();
    let text = ModelError::collect(errors).render(false);
    assert!(text.contains("the output of `gain` is not uint8") && text.contains("m.yaml:9:"), "{text}");
}

#[test]
fn an_infinite_score_is_the_largest() {
    let folder = folder(
        &identity(&[3]),
        "inputs: [{name: x, column: x, type: tensor, dtype: float32, shape: [batch, 3]}]\n\
         outputs: [{name: y, column: label, type: text, dtype: float32, shape: [batch, 3], \
         postprocess: [softmax: {}, argmax: {labels: [a, b, c]}]}]\n",
    );
    let (column, values) = floats(vec![3], vec![1.0, f32::INFINITY, 0.0, 0.0, -1.0, 2.0]);
    for (backend, given) in last_columns(folder.path(), &column, &values, "") {
        let labels: Vec<_> = given.as_string::<i32>().iter().flatten().collect();
        assert_eq!(labels, ["b", "c"], "{backend}");
    }
}
