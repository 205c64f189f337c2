//! The operator kind `ml`, from encoded records to result rows and dead letters.
use arrow_array::cast::AsArray;
use arrow_array::{ArrayRef, BinaryArray, FixedSizeListArray, Float32Array, RecordBatch, StringArray};
use arrow_array::{FixedSizeBinaryArray, Int8Array, Int64Array, UInt32Array, UInt64Array};
use arrow_schema::{DataType, Field};
use std::io::Cursor;
use std::path::Path;
use std::sync::Arc;
use tidemill_inference::MlKind;
use tidemill_operators::api::{BoundOperator, Instance, Output};
use tidemill_operators::kind::{InputPort, OperatorContext, OperatorKind};
use tidemill_operators::model::ModelSpec;
use tidemill_operators::record::{
    METADATA_COLUMNS, Metadata, derive_id, operator_number, record_schema, source_id, tensor_f32, text,
};
use tidemill_spec::diagnostic::Diagnostics;
use tidemill_spec::span::{SourceFile, Span};
use tidemill_spec::types::{Column, ColumnType, ElementType, StreamType};
use tidemill_spec::value::{Node, Value};
use tidemill_spec::yaml;

fn tensor_type(width: usize) -> ColumnType {
    ColumnType::Tensor { element: ElementType::Float32, shape: vec![width] }
}

fn bind(manifest: &str, columns: Vec<Column>) -> Result<BoundOperator, Diagnostics> {
    bind_with(manifest, columns, &Value::from(Node::Null))
}

fn bind_with(manifest: &str, columns: Vec<Column>, options: &Value) -> Result<BoundOperator, Diagnostics> {
    let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    let (id, variants) = ("model".into(), [manifest.into()]);
    let context =
        OperatorContext { variants: &variants, backend: Some("rten"), ..OperatorContext::new(&id, &base) };
    let port = InputPort { from: "records".into(), stream: StreamType::new(columns), span: Span::nowhere() };
    MlKind::default().bind(&context, &[port], options)
}

/// Record i has the identity of number i of source 0 and event time i seconds.
fn batch(columns: Vec<Column>, values: Vec<ArrayRef>) -> RecordBatch {
    let rows = values[0].len();
    let ids: Vec<u8> = (0..rows).flat_map(|i| source_id(0, i as u64)).collect();
    let mut arrays: Vec<ArrayRef> = vec![
        Arc::new(FixedSizeBinaryArray::new(16, ids.into(), None)),
        Arc::new(UInt32Array::from(vec![0; rows])),
        Arc::new(UInt64Array::from_iter_values(0..rows as u64)),
        Arc::new(Int64Array::from_iter_values((0..rows as i64).map(|i| i * 1_000_000))),
        Arc::new(Int64Array::from(vec![0; rows])),
        Arc::new(UInt32Array::from(vec![0; rows])),
        Arc::new(Int8Array::from(vec![1; rows])),
    ];
    arrays.extend(values);
    RecordBatch::try_new(record_schema(&StreamType::new(columns)), arrays).unwrap()
}

fn run(operator: &BoundOperator, batch: &RecordBatch) -> Output {
    let Instance::Inference(mut instance) = (operator.make)().unwrap() else { panic!("ml is inference") };
    let mut output = Output::default();
    instance.infer(batch, &mut output).unwrap();
    output
}

fn floats(width: i32, values: Vec<f32>) -> ArrayRef {
    let field = Arc::new(Field::new("item", DataType::Float32, false));
    Arc::new(FixedSizeListArray::new(field, width, Arc::new(Float32Array::from(values)), None))
}

fn png(red: u8) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    let image = image::RgbImage::from_pixel(16, 12, image::Rgb([red, 0, 255]));
    image.write_to(&mut bytes, image::ImageFormat::Png).unwrap();
    bytes.into_inner()
}

fn texts(batch: &RecordBatch, name: &str) -> Vec<String> {
    text(batch.column_by_name(name).unwrap()).unwrap().iter().map(|t| t.unwrap().to_owned()).collect()
}

#[test]
fn bad_images_become_dead_letters_and_the_others_go_on() {
    let columns = vec![Column::new("key", ColumnType::Text), Column::new("image", ColumnType::Image)];
    let operator = bind("image_means.yaml", columns.clone()).unwrap();
    assert_eq!(operator.output.to_string(), "{key: text, features: tensor<float32>[3]}");
    let whole = png(0);
    let images: Vec<Option<&[u8]>> =
        vec![Some(b"no image"), Some(&whole), None, Some(&whole[..whole.len() / 2]), Some(&whole)];
    let keys = StringArray::from(vec!["a", "b", "c", "d", "e"]);
    let input = batch(columns, vec![Arc::new(keys), Arc::new(BinaryArray::from(images))]);
    let output = run(&operator, &input);
    let reasons: Vec<&str> = output.dead_letters.iter().map(|letter| &*letter.reason).collect();
    assert_eq!(reasons, ["image_invalid", "missing_value", "image_truncated"]);
    assert_eq!(output.dead_letters[2].id, Some(source_id(0, 3)));
    assert_eq!(output.dead_letters[2].time, Some(3_000_000));
    let [result] = output.batches.as_slice() else { panic!("one batch in, one out") };
    assert_eq!(result.schema(), record_schema(&operator.output));
    assert_eq!(texts(result, "key"), ["b", "e"]);
    let metadata = Metadata::of(result);
    assert_eq!(metadata.id(1), derive_id(operator_number("model"), &[source_id(0, 4)], 0));
    assert_eq!(metadata.times.value(1), 4_000_000);
    let (values, width) = tensor_f32(result.column_by_name("features").unwrap()).unwrap();
    assert_eq!(width, 3);
    // 0 becomes (0 - 0.5) / 0.25, 255 becomes (1 - 0.5) / 0.25.
    assert!(values.values().iter().zip([-2.0, -2.0, 2.0].iter().cycle()).all(|(a, b)| (a - b).abs() < 1e-5));
}

#[test]
fn a_picture_stays_where_it_is_kept() {
    let columns = vec![Column::new("image", ColumnType::Image)];
    let options = |yaml: &str| yaml::parse(&SourceFile::new("workflow.yaml", yaml)).unwrap();
    let operator = bind_with("image_means.yaml", columns.clone(), &options("keep: [image]")).unwrap();
    assert_eq!(operator.output.to_string(), "{image: image, features: tensor<float32>[3]}");
    let input = batch(columns.clone(), vec![Arc::new(BinaryArray::from(vec![&png(0)[..], &png(9)]))]);
    let output = run(&operator, &input);
    let pictures =
        |batch: &RecordBatch| batch.column_by_name("image").unwrap().as_binary::<i32>().value_data().as_ptr();
    assert_eq!(pictures(&output.batches[0]), pictures(&input), "it is not copied");
    let error = bind_with("image_means.yaml", columns, &options("keep: [imag]")).err().unwrap();
    let error = error.iter().next().unwrap();
    assert_eq!((error.code, error.line(), error.column()), ("E0559", Some(1), Some(8)));
    assert_eq!(error.help.as_deref(), Some("did you mean `image`?"));
}

#[test]
fn a_batch_without_good_rows_gives_dead_letters_only() {
    let columns = vec![Column::new("image", ColumnType::Image)];
    let operator = bind("image_means.yaml", columns.clone()).unwrap();
    let output = run(&operator, &batch(columns, vec![Arc::new(BinaryArray::from(vec![&b"x"[..], b"y"]))]));
    assert_eq!((output.batches.len(), output.dead_letters.len()), (0, 2));
}

#[test]
fn text_stays_and_tensors_are_consumed() {
    let columns = vec![
        Column::new("extra", tensor_type(2)),
        Column::new("question", ColumnType::Text),
        Column::new("n", ColumnType::Int64),
    ];
    let operator = bind("text_sum.yaml", columns.clone()).unwrap();
    assert_eq!(operator.output.to_string(), "{question: text, n: int64, features: tensor<float32>[5]}");
    let values: Vec<ArrayRef> = vec![
        floats(2, vec![1.0, 2.0, 3.0, 4.0]),
        Arc::new(StringArray::from(vec!["", "ab"])),
        Arc::new(Int64Array::from(vec![7, 8])),
    ];
    // A slice, because batches on edges often are slices of larger ones.
    let output = run(&operator, &batch(columns, values).slice(1, 1));
    let result = &output.batches[0];
    assert_eq!(texts(result, "question"), ["ab"]);
    let (values, _) = tensor_f32(result.column_by_name("features").unwrap()).unwrap();
    assert_eq!(&values.values()[3..], [3.0, 4.0]);
}

#[test]
fn labels_and_probabilities_come_from_scores() {
    let columns = vec![Column::new("x", tensor_type(4))];
    let input = batch(columns.clone(), vec![floats(4, vec![5.0, 0.0, 0.0, 0.0, 0.0, 0.0, 9.0, 0.0])]);
    let output = run(&bind("linear.yaml", columns.clone()).unwrap(), &input);
    assert_eq!(texts(&output.batches[0], "label"), ["left", "right"]);
    let output = run(&bind("probabilities.yaml", columns).unwrap(), &input);
    let (values, _) = tensor_f32(output.batches[0].column_by_name("probabilities").unwrap()).unwrap();
    for row in values.values().chunks(3) {
        assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-6);
    }
}

#[test]
fn scores_that_are_not_numbers_choose_no_label() {
    let columns = vec![Column::new("x", tensor_type(4))];
    let operator = bind("linear.yaml", columns.clone()).unwrap();
    let values = [[5.0, 0.0, 0.0, 0.0], [0.0, f32::NAN, 0.0, 0.0], [0.0, 0.0, 9.0, 0.0]].concat();
    let output = run(&operator, &batch(columns, vec![floats(4, values)]));
    let labels: Vec<_> = output.batches.iter().flat_map(|rows| texts(rows, "label")).collect();
    assert_eq!(labels, ["left", "right"]);
    let letters: Vec<_> = output.dead_letters.iter().map(|letter| (&*letter.reason, letter.id)).collect();
    assert_eq!(letters, [("not_a_number", Some(source_id(0, 1)))]);
}

#[test]
fn a_model_with_a_fixed_batch_runs_row_by_row() {
    let columns = vec![Column::new("x", tensor_type(4))];
    let operator = bind("fixed_batch.yaml", columns.clone()).unwrap();
    let values: Vec<f32> = (0..12).map(|v| v as f32).collect();
    let output = run(&operator, &batch(columns, vec![floats(4, values.clone())]));
    let (doubled, _) = tensor_f32(output.batches[0].column_by_name("y").unwrap()).unwrap();
    assert!(doubled.values().iter().zip(&values).all(|(a, b)| *a == 2.0 * b));
}

#[test]
fn a_loop_ends_each_record_by_itself() {
    let columns = vec![Column::new("first", tensor_type(1))];
    let operator = bind("counter.yaml", columns.clone()).unwrap();
    let output = run(&operator, &batch(columns.clone(), vec![floats(1, vec![0.0, 2.0, 5.0, -40.0])]));
    let result = &output.batches[0];
    // The last one never reaches the end within the step limit.
    assert_eq!(texts(result, "counted"), ["three four five", "five", "", &"start".repeat(8)]);
    let (steps, _) = tensor_f32(result.column_by_name("steps").unwrap()).unwrap();
    assert_eq!(steps.values(), &[4.0, 2.0, 1.0, 8.0]);
    // A score that is no number is never the largest.
    let nowhere = run(&operator, &batch(columns.clone(), vec![floats(1, vec![2.0, f32::NAN])]));
    assert_eq!(texts(&nowhere.batches[0], "counted"), ["five"]);
    assert_eq!(
        nowhere.dead_letters.iter().map(|letter| &*letter.reason).collect::<Vec<_>>(),
        ["not_a_number"]
    );
    // A record alone gives the result that it has in a batch.
    let alone = run(&operator, &batch(columns, vec![floats(1, vec![2.0])]));
    assert_eq!(texts(&alone.batches[0], "counted"), ["five"]);
}

#[test]
fn sound_is_recognised() {
    let columns = vec![Column::new("audio", ColumnType::Audio)];
    let operator = bind("ctc.yaml", columns.clone()).unwrap();
    let tone = |hz: f32| {
        let spec = hound::WavSpec {
            channels: 1,
            sample_rate: 8000,
            bits_per_sample: 16,
            sample_format: hound::SampleFormat::Int,
        };
        let mut bytes = Cursor::new(Vec::new());
        let mut writer = hound::WavWriter::new(&mut bytes, spec).unwrap();
        for n in 0..600 {
            let value = (n as f32 * hz * std::f32::consts::TAU / 8000.0).sin() * 9000.0;
            writer.write_sample(value as i16).unwrap();
        }
        writer.finalize().unwrap();
        bytes.into_inner()
    };
    let (low, high) = (tone(500.0), tone(3000.0));
    let sounds = BinaryArray::from(vec![low.as_slice(), &high, &high[..30]]);
    let output = run(&operator, &batch(columns, vec![Arc::new(sounds)]));
    assert_eq!(texts(&output.batches[0], "heard"), ["l", "h"]);
    assert_eq!(output.dead_letters[0].reason, "audio_truncated");
}

#[test]
fn columns_that_do_not_fit_are_named() {
    let error = bind("image_means.yaml", vec![Column::new("picture", ColumnType::Image)]).err().unwrap();
    assert!(error.iter().any(|d| d.code == "E0605"), "{error:?}");
    let error = bind("image_means.yaml", vec![Column::new("image", ColumnType::Text)]).err().unwrap();
    let text = error.render(false);
    assert!(
        text.contains("column `image` is text, expected image (input `image` of the model `image-means`)"),
        "{text}"
    );
    let error = bind("linear.yaml", vec![Column::new("x", tensor_type(5))]).err().unwrap();
    let text = error.render(false);
    assert!(text.contains("expected tensor<float32>[4]") && text.contains("`stack` windows"), "{text}");
    let twice = vec![Column::new("x", tensor_type(4)), Column::new("label", ColumnType::Text)];
    let error = bind("linear.yaml", twice).err().unwrap();
    assert!(error.iter().any(|d| d.code == "E0559"), "{error:?}");
}

#[test]
fn variants_are_found_by_path_and_by_id() {
    let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    let id = "model".into();
    let variants = ["identity.yaml".into(), "linear.yaml".into()];
    let bind = |variant: Option<&str>, backend: Option<&str>, variants: &[_]| {
        let context = OperatorContext { variants, variant, backend, ..OperatorContext::new(&id, &base) };
        let stream = StreamType::new([Column::new("x", tensor_type(4))]);
        let port = InputPort { from: "records".into(), stream, span: Span::nowhere() };
        MlKind::default()
            .bind(&context, &[port], &Value::from(Node::Null))
            .map(|bound| bound.output.to_string())
    };
    let linear = "{label: text}";
    assert_eq!(bind(None, None, &variants).unwrap(), "{y: tensor<float32>[4]}");
    assert_eq!(bind(Some("linear.yaml"), None, &variants).unwrap(), linear);
    assert_eq!(bind(Some("linear"), None, &variants).unwrap(), linear);
    assert_eq!(bind(Some("large"), None, &variants).unwrap_err().iter().next().unwrap().code, "E0560");
    assert_eq!(bind(None, None, &[]).unwrap_err().iter().next().unwrap().code, "E0560");
    assert_eq!(bind(None, Some("tvm"), &variants).unwrap_err().iter().next().unwrap().code, "E0557");
}

#[test]
fn a_model_is_read_once_and_loads_elsewhere_from_its_data() {
    let testdata = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    let folder = tempfile::tempdir().unwrap();
    for name in ["linear.yaml", "linear.onnx"] {
        std::fs::copy(testdata.join(name), folder.path().join(name)).unwrap();
    }
    let kind = MlKind::default();
    let (id, variants) = ("model".into(), ["linear.yaml".into()]);
    let base = folder.path();
    let context =
        OperatorContext { variants: &variants, backend: Some("rten"), ..OperatorContext::new(&id, base) };
    let columns = vec![Column::new("x", tensor_type(4))];
    let stream = StreamType::new(columns.clone());
    let port = InputPort { from: "records".into(), stream, span: Span::nowhere() };
    let operator = kind.bind(&context, &[port], &Value::from(Node::Null)).unwrap();
    let records = batch(columns, vec![floats(4, vec![5.0, 0.0, 0.0, 0.0])]);
    let output = run(&operator, &records);
    assert_eq!(texts(&output.batches[0], "label"), ["left"]);

    let sent = serde_json::to_vec(&operator.model).unwrap();
    let spec: ModelSpec = serde_json::from_slice(&sent).unwrap();
    assert_eq!((spec.variant.as_str(), spec.backend.as_str()), ("linear", "rten"));
    let mut there = MlKind::default().instance(&spec).unwrap();
    assert_eq!(there.backend().unwrap().name, "rten");
    let mut again = Output::default();
    there.infer(&records, &mut again).unwrap();
    assert_eq!(again.batches, output.batches);

    std::fs::remove_file(folder.path().join("linear.onnx")).unwrap();
    assert!((operator.make)().is_err(), "another one needs the file");
    assert!(MlKind::default().instance(&spec).is_err());
}

#[test]
fn metadata_columns_lead() {
    let columns = vec![Column::new("x", tensor_type(4))];
    let operator = bind("identity.yaml", columns.clone()).unwrap();
    let output = run(&operator, &batch(columns, vec![floats(4, vec![3.0, 0.0, 4.0, 0.0])]));
    let result = &output.batches[0];
    assert_eq!(result.num_columns(), METADATA_COLUMNS + 1);
    let (values, _) = tensor_f32(result.column_by_name("y").unwrap()).unwrap();
    assert_eq!(values.values(), &[0.6, 0.0, 0.8, 0.0]);
}
