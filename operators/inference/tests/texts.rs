//! A model with the inputs of BERT gives for texts what it gives for the tokens of the library for Python.
//! `testdata/tokenizers/sentence.py` says where the files come from.

use arrow_array::UInt64Array;
use arrow_array::cast::AsArray;
use arrow_array::types::Float32Type;
use arrow_array::{
    ArrayRef, FixedSizeBinaryArray, Int8Array, Int64Array, RecordBatch, StringArray, UInt32Array,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidemill_inference::MlKind;
use tidemill_inference::blueprint::Blueprint;
use tidemill_inference::error::ModelError;
use tidemill_operators::api::{Instance, Output};
use tidemill_operators::kind::{InputPort, OperatorContext, OperatorKind};
use tidemill_operators::record::{record_schema, source_id};
use tidemill_spec::span::Span;
use tidemill_spec::types::{Column, ColumnType, StreamType};
use tidemill_spec::value::{Node, Value};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/tokenizers")
}

fn stream() -> StreamType {
    StreamType::new([Column::new("text", ColumnType::Text)])
}

fn batch(texts: &[&str]) -> RecordBatch {
    let rows = texts.len();
    let ids: Vec<u8> = (0..rows).flat_map(|row| source_id(0, row as u64)).collect();
    let arrays: Vec<ArrayRef> = vec![
        Arc::new(FixedSizeBinaryArray::new(16, ids.into(), None)),
        Arc::new(UInt32Array::from(vec![0; rows])),
        Arc::new(UInt64Array::from_iter_values(0..rows as u64)),
        Arc::new(Int64Array::from(vec![0; rows])),
        Arc::new(Int64Array::from(vec![0; rows])),
        Arc::new(UInt32Array::from(vec![0; rows])),
        Arc::new(Int8Array::from(vec![1; rows])),
        Arc::new(StringArray::from_iter_values(texts)),
    ];
    RecordBatch::try_new(record_schema(&stream()), arrays).unwrap()
}

/// Outputs of the model of a manifest for texts.
pub(crate) fn run(folder: &Path, manifest: &str, backend: &str, texts: &[&str]) -> Result<Output, String> {
    let (id, variants) = ("model".into(), [manifest.into()]);
    let context =
        OperatorContext { variants: &variants, backend: Some(backend), ..OperatorContext::new(&id, folder) };
    let port = InputPort { from: "texts".into(), stream: stream(), span: Span::nowhere() };
    let bound = MlKind::default().bind(&context, &[port], &Value::from(Node::Null));
    let bound = bound.map_err(|errors| errors.render(false))?;
    let made = (bound.make)().map_err(|error| error.to_string())?;
    let Instance::Inference(mut instance) = made else { panic!("ml is inference") };
    let mut output = Output::default();
    instance.infer(&batch(texts), &mut output).unwrap();
    Ok(output)
}

/// Names of the backends of this machine.
pub(crate) fn backends() -> Vec<&'static str> {
    crate::backends_here().map(|backend| backend.name).collect()
}

#[test]
fn sentences_have_the_vectors_of_the_reference() {
    let expected = std::fs::read_to_string(folder().join("sentence.json")).unwrap();
    let expected: Vec<(String, [f32; 4], [f32; 4])> = serde_json::from_str(&expected).unwrap();
    let texts: Vec<&str> = expected.iter().map(|row| row.0.as_str()).collect();
    let backends = backends();
    assert!(backends.contains(&"rten") && texts.len() > 20);
    for backend in backends {
        for manifest in ["sentence.yaml", "sentence_fixed.yaml"] {
            let output =
                run(&folder(), manifest, backend, &texts).unwrap_or_else(|errors| panic!("{errors}"));
            assert_eq!(output.dead_letters, [], "{backend}");
            // Texts of one batch have different lengths: those with padding come out as they do alone.
            let vectors = output.batches[0].column_by_name("vector").unwrap().as_fixed_size_list();
            let vectors = vectors.values().as_primitive::<Float32Type>().values();
            let (vectors, rest) = vectors.as_chunks::<4>();
            assert_eq!((vectors.len(), rest.len()), (texts.len(), 0), "{backend}");
            for (vector, (text, any, fixed)) in vectors.iter().zip(&expected) {
                let wanted = if manifest == "sentence.yaml" { any } else { fixed };
                let close = vector.iter().zip(wanted).all(|(found, wanted)| (found - wanted).abs() < 1e-5);
                assert!(close, "{backend}, {manifest}: {text:?}: {vector:?} instead of {wanted:?}");
            }
        }
    }
}

#[test]
fn a_text_that_is_too_long_is_a_dead_letter() {
    let long = "word ".repeat(220_000);
    let output = run(&folder(), "sentence.yaml", "rten", &["a text", &long, "another"]).unwrap();
    let [letter] = output.dead_letters.as_slice() else { panic!("{:?}", output.dead_letters) };
    assert_eq!((&*letter.reason, letter.id), ("text_too_long", Some(source_id(0, 1))));
    assert_eq!(output.batches[0].num_rows(), 2, "the others go on");
}

#[test]
fn a_tokenizer_that_cannot_be_read_is_an_error_with_its_path() {
    let there = tempfile::tempdir().unwrap();
    for name in ["sentence.onnx", "sentence.yaml"] {
        std::fs::copy(folder().join(name), there.path().join(name)).unwrap();
    }
    let error = run(there.path(), "sentence.yaml", "rten", &["a"]).err().unwrap();
    assert!(error.contains("wordpiece.json") && error.contains("folder of the manifest"), "{error}");
    std::fs::write(there.path().join("wordpiece.json"), "[PAD]\n[UNK]\n").unwrap();
    let error = run(there.path(), "sentence.yaml", "rten", &["a"]).err().unwrap();
    assert!(error.contains("is not a tokenizer.json") && error.contains("vocab.txt"), "{error}");
}

#[test]
fn a_damaged_tokenizer_is_found_with_the_manifest() {
    let there = tempfile::tempdir().unwrap();
    for name in ["sentence.onnx", "sentence.yaml"] {
        std::fs::copy(folder().join(name), there.path().join(name)).unwrap();
    }
    std::fs::write(there.path().join("wordpiece.json"), "{\n  \"version\": 1.0,\n").unwrap();
    let errors = Blueprint::read(&there.path().join("sentence.yaml")).unwrap_err();
    assert_eq!(errors.len(), 1, "one for each file: {errors:?}");
    let text = ModelError::collect(errors).render(false);
    assert!(text.contains("E0555") && text.contains("sentence.yaml:15"), "{text}");
    assert!(
        text.contains("wordpiece.json is not a tokenizer.json") && text.contains("line 3 column"),
        "{text}"
    );
}
