//! Models of tables and texts, exported by the converters of scikit-learn, LightGBM and XGBoost, give what these libraries
//! predict. `testdata/tables/make.py` says where the files come from.

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Float64Type, Int64Type};
use arrow_array::{ArrayRef, BooleanArray, FixedSizeBinaryArray, Float64Array, Int8Array, Int64Array};
use arrow_array::{RecordBatch, StringArray, UInt32Array, UInt64Array};
use serde_json::Value as Json;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidemill_inference::MlKind;
use tidemill_inference::backend::{BackendError, backend};
use tidemill_operators::api::{Instance, Output};
use tidemill_operators::kind::{InputPort, OperatorContext, OperatorKind};
use tidemill_operators::record::{record_schema, source_id};
use tidemill_spec::span::Span;
use tidemill_spec::types::{Column, ColumnType, StreamType};
use tidemill_spec::value::{Node, Value};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/tables")
}

fn json(name: &str) -> Json {
    serde_json::from_slice(&std::fs::read(folder().join(name)).unwrap()).unwrap()
}

/// The table of `rows.json`.
fn columns() -> Vec<Column> {
    [
        ("area", ColumnType::Float64),
        ("rooms", ColumnType::Int64),
        ("built", ColumnType::Int64),
        ("heating", ColumnType::Text),
        ("balcony", ColumnType::Bool),
        ("note", ColumnType::Text),
    ]
    .map(|(name, column_type)| Column::new(name, column_type))
    .to_vec()
}

fn table(rows: &[Json]) -> RecordBatch {
    let ids: Vec<u8> = (0..rows.len()).flat_map(|row| source_id(0, row as u64)).collect();
    let texts = |name: &str| StringArray::from_iter(rows.iter().map(|row| row[name].as_str()));
    let numbers = |name: &str| Int64Array::from_iter(rows.iter().map(|row| row[name].as_i64()));
    let arrays: Vec<ArrayRef> = vec![
        Arc::new(FixedSizeBinaryArray::new(16, ids.into(), None)),
        Arc::new(UInt32Array::from(vec![0; rows.len()])),
        Arc::new(UInt64Array::from_iter_values(0..rows.len() as u64)),
        Arc::new(Int64Array::from(vec![0; rows.len()])),
        Arc::new(Int64Array::from(vec![0; rows.len()])),
        Arc::new(UInt32Array::from(vec![0; rows.len()])),
        Arc::new(Int8Array::from(vec![1; rows.len()])),
        Arc::new(Float64Array::from_iter(rows.iter().map(|row| row["area"].as_f64()))),
        Arc::new(numbers("rooms")),
        Arc::new(numbers("built")),
        Arc::new(texts("heating")),
        Arc::new(BooleanArray::from_iter(rows.iter().map(|row| row["balcony"].as_bool()))),
        Arc::new(texts("note")),
    ];
    RecordBatch::try_new(record_schema(&StreamType::new(columns())), arrays).unwrap()
}

/// Whether ONNX Runtime is here, the only backend with the operators of these models.
fn is_here() -> bool {
    match backend("ort", Path::new(env!("CARGO_MANIFEST_DIR"))) {
        Err(error @ BackendError::Unavailable { .. }) if std::env::var("CI").as_deref() != Ok("true") => {
            eprintln!("left out: {error}");
            false
        }
        found => found.map(|_| true).unwrap_or_else(|error| panic!("{error}")),
    }
}

/// Outputs of the model of a manifest for a table.
fn run(manifest: &str, rows: &[Json]) -> Output {
    let (id, variants, base) = ("model".into(), [manifest.into()], folder());
    let context =
        OperatorContext { variants: &variants, backend: Some("ort"), ..OperatorContext::new(&id, &base) };
    let port = InputPort { from: "rows".into(), stream: StreamType::new(columns()), span: Span::nowhere() };
    let bound = MlKind::default().bind(&context, &[port], &Value::from(Node::Null));
    let bound = bound.unwrap_or_else(|errors| panic!("{manifest}: {}", errors.render(false)));
    let made = (bound.make)().unwrap_or_else(|error| panic!("{manifest}: {error}"));
    let Instance::Inference(mut instance) = made else { panic!("ml is inference") };
    let mut output = Output::default();
    instance.infer(&table(rows), &mut output).unwrap();
    output
}

/// The result of one row: each of its numbers, or its text, in the columns of these names.
fn found(batch: &RecordBatch, name: &str, row: usize) -> Json {
    let column = batch.column_by_name(name).unwrap();
    if let Some(texts) = column.as_string_opt::<i32>() {
        texts.value(row).into()
    } else if let Some(numbers) = column.as_primitive_opt::<Int64Type>() {
        numbers.value(row).into()
    } else if let Some(numbers) = column.as_primitive_opt::<Float64Type>() {
        vec![numbers.value(row)].into()
    } else {
        let row = column.as_fixed_size_list().value(row);
        let floats: Vec<f64> =
            row.as_primitive::<Float32Type>().values().iter().map(|v| f64::from(*v)).collect();
        floats.into()
    }
}

/// The largest difference of two results; infinite if they are not of the same form.
fn difference(found: &Json, wanted: &Json) -> f64 {
    match (found, wanted) {
        (Json::Array(found), Json::Array(wanted)) if found.len() == wanted.len() => {
            let numbers = |(found, wanted): (&Json, &Json)| Some((found.as_f64()? - wanted.as_f64()?).abs());
            found.iter().zip(wanted).map(|pair| numbers(pair).unwrap_or(f64::INFINITY)).fold(0.0, f64::max)
        }
        (found, wanted) if found == wanted => 0.0,
        _ => f64::INFINITY,
    }
}

/// Compares the columns `names` with `expected[model]`; returns the reasons for which rows are missing.
fn compare(manifest: &str, model: &str, names: &[&str]) -> Vec<String> {
    let rows = json("rows.json");
    let rows = rows.as_array().unwrap();
    let output = run(&format!("{manifest}.yaml"), rows);
    let expected = json("expected.json");
    let expected = expected[model].as_array().unwrap().iter().filter(|row| !row.is_null());
    let expected: Vec<&Json> = expected.collect();
    let [batch] = output.batches.as_slice() else { panic!("{manifest}: one batch") };
    assert_eq!(batch.num_rows(), expected.len(), "{manifest}");
    assert!(expected.len() >= 30, "{manifest}");
    for (row, expected) in expected.into_iter().enumerate() {
        for (at, name) in names.iter().enumerate() {
            let found = found(batch, name, row);
            let difference = difference(&found, &expected[at]);
            assert!(difference < 1e-5, "{manifest}: row {row}, {name}: {found} instead of {}", expected[at]);
        }
    }
    output.dead_letters.iter().map(|letter| format!("{}: {}", letter.reason, letter.detail)).collect()
}

#[test]
fn a_random_forest_reads_numbers_and_truth_values() {
    if !is_here() {
        return;
    }
    assert_eq!(compare("forest", "forest", &["label", "probabilities"]), [""; 0]);
}

#[test]
fn an_export_with_a_map_gives_label_and_probabilities() {
    if !is_here() {
        return;
    }
    assert_eq!(compare("forest_zipmap", "forest", &["label", "probabilities"]), [""; 0]);
    let rows = json("rows.json");
    let output = run("forest_zipmap.yaml", &rows.as_array().unwrap()[..5]);
    for row in 0..5 {
        let (label, best) = (found(&output.batches[0], "label", row), found(&output.batches[0], "best", row));
        assert_eq!(best.as_str().unwrap(), label.to_string());
    }
}

#[test]
fn a_pipeline_has_an_input_for_each_column_of_its_data_frame() {
    if !is_here() {
        return;
    }
    let missing = compare("pipeline", "pipeline", &["label", "probabilities"]);
    let rows = json("rows.json");
    let empty = rows.as_array().unwrap().iter().filter(|row| row["heating"].is_null()).count();
    assert!(empty > 0);
    assert_eq!(missing.len(), empty, "{missing:?}");
    assert!(missing.iter().all(|letter| letter.starts_with("missing_value: ")), "{missing:?}");
}

#[test]
fn trees_with_a_branch_for_missing_values_get_them() {
    if !is_here() {
        return;
    }
    assert_eq!(compare("lightgbm", "lightgbm", &["label", "probabilities"]), [""; 0]);
    assert_eq!(compare("xgboost", "xgboost", &["label", "probabilities"]), [""; 0]);
}

#[test]
fn a_regression_gives_one_number_for_each_record() {
    if !is_here() {
        return;
    }
    assert_eq!(compare("ridge", "ridge", &["price"]), [""; 0]);
}

#[test]
fn a_classifier_of_texts_reads_them_as_they_are() {
    if !is_here() {
        return;
    }
    assert_eq!(compare("tfidf", "tfidf", &["label", "probabilities"]), [""; 0]);
}

#[test]
fn an_unknown_category_is_a_dead_letter_that_names_it() {
    if !is_here() {
        return;
    }
    let mut rows = json("rows.json").as_array().unwrap()[..3].to_vec();
    rows[1]["heating"] = "coal".into();
    let output = run("ridge.yaml", &rows);
    let [letter] = output.dead_letters.as_slice() else { panic!("{:?}", output.dead_letters) };
    assert_eq!(&*letter.reason, "unknown_category");
    assert_eq!(letter.detail, "the column `heating` has \"coal\", which is none of its categories");
    assert_eq!(letter.id, Some(source_id(0, 1)));
    assert_eq!(output.batches[0].num_rows(), 2, "the others go on");
}
