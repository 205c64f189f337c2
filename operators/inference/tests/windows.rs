//! A sound in windows, through a model, and windows of what the model gives, through another one: the chain of wake words.

use crate::onnx::{FLOAT, model, node, port};
use arrow_array::{
    ArrayRef, BinaryArray, FixedSizeBinaryArray, Int8Array, Int64Array, RecordBatch, StringArray,
    UInt32Array, UInt64Array,
};
use std::path::Path;
use std::sync::Arc;
use tidemill_inference::MlKind;
use tidemill_operators::api::{Instance, Output};
use tidemill_operators::kind::{InputPort, OperatorContext};
use tidemill_operators::record::{METADATA_COLUMNS, float64, record_schema, source_id, tensor_f32};
use tidemill_operators::registry::Registry;
use tidemill_spec::digest::sha256;
use tidemill_spec::span::{SourceFile, Span};
use tidemill_spec::types::{Column, ColumnType, StreamType};
use tidemill_spec::yaml;

/// Writes a model that returns its input, with its manifest.
fn identity(folder: &Path, name: &str, row: &[u64], steps: &str, columns: [&str; 2]) {
    let bytes =
        model(17, &[node("Identity", "x", "y", &[])], &[], &port("x", FLOAT, row), &port("y", FLOAT, row));
    let shape = row.iter().map(|size| format!(", {size}")).collect::<String>();
    let manifest = format!(
        "version: 1\nid: {name}\ndescription: x\nfile: {name}.onnx\nsha256: {}\nlicence: MIT\n\
         origin: {{kind: external, note: made by the test}}\nbackends: [ort, rten]\n\
         inputs: [{{name: x, column: {}, type: tensor, dtype: float32, shape: [batch{shape}], preprocess: [{steps}]}}]\n\
         outputs: [{{name: y, column: {}, type: tensor, dtype: float32, shape: [batch{shape}]}}]\n",
        sha256(&bytes),
        columns[0],
        columns[1],
    );
    std::fs::write(folder.join(format!("{name}.onnx")), bytes).unwrap();
    std::fs::write(folder.join(format!("{name}.yaml")), manifest).unwrap();
}

/// A sound of 16-bit samples, 8000 a second.
fn wav(samples: &[i16]) -> Vec<u8> {
    let length = samples.len() as u32 * 2;
    let mut bytes =
        b"RIFF    WAVEfmt \x10\0\0\0\x01\0\x01\0\x40\x1f\0\0\x80\x3e\0\0\x02\0\x10\0data".to_vec();
    bytes[4..8].copy_from_slice(&(length + 36).to_le_bytes());
    bytes.extend(length.to_le_bytes());
    bytes.extend(samples.iter().flat_map(|sample| sample.to_le_bytes()));
    bytes
}

/// Two sounds.
fn sounds(stream: &StreamType, sounds: [&[i16]; 2]) -> RecordBatch {
    let ids: Vec<u8> = (0..2).flat_map(|i| source_id(0, i)).collect();
    let columns: Vec<ArrayRef> = vec![
        Arc::new(FixedSizeBinaryArray::new(16, ids.into(), None)),
        Arc::new(UInt32Array::from(vec![0; 2])),
        Arc::new(UInt64Array::from(vec![0, 1])),
        Arc::new(Int64Array::from(vec![0, 1_000_000])),
        Arc::new(Int64Array::from(vec![0; 2])),
        Arc::new(UInt32Array::from(vec![0; 2])),
        Arc::new(Int8Array::from(vec![1; 2])),
        Arc::new(StringArray::from(vec!["a", "b"])),
        Arc::new(BinaryArray::from_iter_values(sounds.map(wav))),
    ];
    RecordBatch::try_new(record_schema(stream), columns).unwrap()
}

/// Runs an operator on all records of a stream.
fn run(
    folder: &Path,
    kind: &str,
    options: &str,
    (stream, batches): (StreamType, Vec<RecordBatch>),
) -> (StreamType, Vec<RecordBatch>) {
    let mut registry = Registry::builtin();
    registry.register_operator(MlKind::default());
    let (id, variants) = (kind.into(), [options.into()]);
    let is_model = kind == "ml";
    let context = OperatorContext {
        variants: if is_model { &variants } else { &[] },
        backend: is_model.then_some("rten"),
        ..OperatorContext::new(&id, folder)
    };
    let options =
        yaml::parse(&SourceFile::new("workflow.yaml", if is_model { "{}" } else { options })).unwrap();
    let port = InputPort { from: "before".into(), stream, span: Span::nowhere() };
    let bound = registry.operator(kind).unwrap().bind(&context, &[port], &options);
    let bound = bound.unwrap_or_else(|errors| panic!("{}", errors.render(false)));
    let mut output = Output::default();
    match (bound.make)().unwrap_or_else(|error| panic!("{error}")) {
        Instance::Stateful(mut instance) => {
            for batch in &batches {
                instance.apply(0, batch, &mut output).unwrap();
            }
            instance.advance(i64::MAX, &mut output).unwrap();
            assert!(!instance.has_more());
        }
        Instance::Inference(mut instance) => {
            for batch in &batches {
                instance.infer(batch, &mut output).unwrap();
            }
        }
        Instance::Stateless(_) => panic!("none of these"),
    }
    assert_eq!((output.dead_letters, output.drops, output.notes), (vec![], vec![], vec![]), "{kind}");
    (bound.output, output.batches)
}

#[test]
fn a_chain_of_models_reads_windows_of_a_sound() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    // 16-bit numbers for the first model, other numbers and a dimension more for the second.
    identity(folder, "first", &[6], "gain: {factor: 32768}", ["samples", "mel"]);
    identity(folder, "second", &[4, 2, 1], "gain: {factor: 0.5, add: 1}", ["frames", "found"]);
    let stream =
        StreamType::new([Column::new("key", ColumnType::Text), Column::new("audio", ColumnType::Audio)]);
    let (a, b): (Vec<i16>, Vec<i16>) = ((1..=9).collect(), (101..=104).collect());
    let sounds = (stream.clone(), vec![sounds(&stream, [&a, &b])]);
    let slices = "{length: 6 samples, every: 4 samples, before: 2 samples, last: pad, sample_rate: 8000}";
    let windows = run(folder, "slices", slices, sounds);
    let mel = run(folder, "ml", "first.yaml", windows);
    let stack = "{column: mel, shape: [4, 2], every: 3, before: 1, fill: -2, key: key, as: frames}";
    let (stream, found) = run(folder, "ml", "second.yaml", run(folder, "stack", stack, mel));
    assert_eq!(stream.to_string(), "{key: text, start: float64, found: tensor<float32>[4, 2, 1]}");
    let batch = arrow_select::concat::concat_batches(&found[0].schema(), &found).unwrap();
    let starts = float64(batch.column(METADATA_COLUMNS + 1)).unwrap();
    assert_eq!(starts.values(), &[-2.0 / 8000.0, 2.0 / 8000.0, 6.0 / 8000.0, -2.0 / 8000.0]);
    // The windows of `a` are 0 0 1 2 3 4, 3 4 5 6 7 8 and 7 8 9 0 0 0; each is three rows.
    let frames = [
        [-2.0, -2.0, 0.0, 0.0, 1.0, 2.0, 3.0, 4.0],
        [3.0, 4.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0],
        [7.0, 8.0, 7.0, 8.0, 9.0, 0.0, 0.0, 0.0],
        [-2.0, -2.0, 0.0, 0.0, 101.0, 102.0, 103.0, 104.0],
    ];
    let (values, _) = tensor_f32(batch.column(METADATA_COLUMNS + 2)).unwrap();
    let expected: Vec<f32> = frames.concat().into_iter().map(|value: f32| value * 0.5 + 1.0).collect();
    assert_eq!(values.values(), &expected[..]);
}
