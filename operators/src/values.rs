//! The values of one record, shortened for display: long texts are cut, images and sounds become their size and digest,
//! tensors of at most 16 values lists, larger ones their type.
//!
//! ```
//! use arrow_array::{ArrayRef, RecordBatch, StringArray};
//! use std::sync::Arc;
//! use tidemill_operators::record::METADATA_COLUMNS;
//! use tidemill_operators::values::{payload_values, shortened};
//! let site: ArrayRef = Arc::new(StringArray::from(vec!["hall"]));
//! let payload = RecordBatch::try_from_iter([("site", site)]).unwrap();
//! assert_eq!(payload_values(&payload, 0)["site"], "hall");
//! assert_eq!(shortened("abcdef", 4), "abc…");
//! ```
use crate::record::METADATA_COLUMNS;
use arrow_array::cast::AsArray;
use arrow_array::types::{Float16Type, Float32Type, Float64Type, Int8Type, Int32Type, Int64Type, UInt8Type};
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::{DataType, Field};
use serde_json::{Map, Value, json};
use tidemill_spec::digest::sha256;
use tidemill_spec::types::ColumnType;

/// Values by column, in the order of the columns.
pub type Values = Map<String, Value>;

/// Longest text, in characters.
const TEXT: usize = 240;
/// Most values of a tensor that are shown.
const TENSOR: usize = 16;
/// Most columns shown.
const COLUMNS: usize = 32;

/// Returns the payload of a row of a batch from an edge.
pub fn row_values(batch: &RecordBatch, row: usize) -> Values {
    let fields = batch.schema_ref().fields();
    values(fields.iter().zip(batch.columns()).skip(METADATA_COLUMNS), row)
}

/// Returns the values of one row of a batch without metadata columns.
pub fn payload_values(payload: &RecordBatch, row: usize) -> Values {
    values(payload.schema_ref().fields().iter().zip(payload.columns()), row)
}

/// Shortens a text to at most `most` characters; one that is cut ends in `…`.
pub fn shortened(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some(_) => text.chars().take(most.saturating_sub(1)).chain(['…']).collect(),
        None => text.to_owned(),
    }
}

/// Shortens a text as in the values of a record.
pub(crate) fn shortened_text(text: &str) -> String {
    shortened(text, TEXT)
}

fn values<'a>(
    columns: impl ExactSizeIterator<Item = (&'a std::sync::Arc<Field>, &'a ArrayRef)>,
    row: usize,
) -> Values {
    let more = columns.len().saturating_sub(COLUMNS);
    let mut all: Values = columns
        .take(COLUMNS)
        .map(|(field, column)| (field.name().clone(), value(field, column, row)))
        .collect();
    if more > 0 {
        all.insert("…".to_owned(), json!(format!("and {more} more columns")));
    }
    all
}

fn value(field: &Field, column: &ArrayRef, row: usize) -> Value {
    if column.is_null(row) {
        return Value::Null;
    }
    match column.data_type() {
        DataType::Utf8 => json!(shortened(column.as_string::<i32>().value(row), TEXT)),
        DataType::Int64 => json!(column.as_primitive::<Int64Type>().value(row)),
        DataType::Float64 => float(column.as_primitive::<Float64Type>().value(row)),
        DataType::Boolean => json!(column.as_boolean().value(row)),
        DataType::Binary => {
            let bytes = column.as_binary::<i32>().value(row);
            json!({"bytes": bytes.len(), "sha256": sha256(bytes)})
        }
        _ => {
            let tensor = field.metadata().get("tidemill.type").cloned();
            if let Some(list) = column.as_fixed_size_list_opt()
                && list.value_length() as usize <= TENSOR
            {
                let shape = match tensor.as_deref().and_then(ColumnType::named) {
                    Some(ColumnType::Tensor { shape, .. }) => shape,
                    _ => vec![list.value_length() as usize],
                };
                return small_tensor(&list.value(row), &shape, 0);
            }
            json!({"tensor": tensor.unwrap_or_else(|| column.data_type().to_string())})
        }
    }
}

/// JSON has no NaN and infinities; they become texts.
fn float(value: f64) -> Value {
    if value.is_finite() { json!(value) } else { json!(value.to_string()) }
}

/// The part of a tensor that starts at this value, as nested lists.
fn small_tensor(values: &ArrayRef, shape: &[usize], start: usize) -> Value {
    let Some((first, inner)) = shape.split_first() else { return element(values, start) };
    let step: usize = inner.iter().product();
    (0..*first).map(|part| small_tensor(values, inner, start + part * step)).collect()
}

fn element(values: &ArrayRef, at: usize) -> Value {
    match values.data_type() {
        // As f32 it is shorter: 0.1 stays 0.1.
        DataType::Float32 => match values.as_primitive::<Float32Type>().value(at) {
            finite if finite.is_finite() => finite.to_string().parse().map_or(Value::Null, |x: f64| json!(x)),
            other => json!(other.to_string()),
        },
        DataType::Float16 => float(values.as_primitive::<Float16Type>().value(at).to_f64()),
        DataType::Float64 => float(values.as_primitive::<Float64Type>().value(at)),
        DataType::Int64 => json!(values.as_primitive::<Int64Type>().value(at)),
        DataType::Int32 => json!(values.as_primitive::<Int32Type>().value(at)),
        DataType::Int8 => json!(values.as_primitive::<Int8Type>().value(at)),
        DataType::UInt8 => json!(values.as_primitive::<UInt8Type>().value(at)),
        DataType::Boolean => json!(values.as_boolean().value(at)),
        DataType::Utf8 => json!(shortened(values.as_string::<i32>().value(at), TEXT)),
        other => json!(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::batch;
    use tidemill_spec::types::{Column, ElementType, StreamType};

    #[test]
    fn every_type_is_shown_and_none_is_long() {
        let stream = StreamType::new([
            Column::new("t", ColumnType::Text),
            Column::new("i", ColumnType::Int64),
            Column::new("f", ColumnType::Float64),
            Column::new("b", ColumnType::Bool),
            Column::new("p", ColumnType::Image),
            Column::new("x", ColumnType::Tensor { element: ElementType::Float32, shape: vec![2, 2] }),
        ]);
        let row = json!({"t": "ä".repeat(5000), "i": -1, "f": 0.5, "b": true, "p": "JPEG"});
        let values = row_values(&batch(&stream, &[row, json!({})]), 0);
        assert_eq!(values["t"].as_str().unwrap().chars().count(), TEXT);
        assert_eq!(values["i"], -1);
        assert_eq!(values["f"], 0.5);
        assert_eq!(values["b"], true);
        assert_eq!(values["p"]["bytes"], 4);
        // printf JPEG | sha256sum
        assert_eq!(values["p"]["sha256"], sha256(b"JPEG"));
        assert_eq!(values["x"], Value::Null);
        let tensors = [
            ("tensor<float32>[2, 2]", json!([[0.1, 2.0], [3.0, 4.5]])),
            ("tensor<float16>[2]", json!([0.5, -2.0])),
            ("tensor<float64>[1]", json!([1e300])),
            ("tensor<int64>[2]", json!([1, i64::MIN])),
            ("tensor<int32>[1]", json!([-7])),
            ("tensor<int8>[1]", json!([-7])),
            ("tensor<uint8>[1]", json!([255])),
            ("tensor<bool>[2]", json!([true, false])),
            ("tensor<text>[2]", json!(["cat", "dog"])),
        ];
        for (name, list) in tensors {
            let stream = StreamType::new([Column::new("x", ColumnType::named(name).unwrap())]);
            assert_eq!(row_values(&batch(&stream, &[json!({"x": list})]), 0)["x"], list, "{name}");
        }
        let large = StreamType::new([Column::new("x", ColumnType::named("tensor<int8>[17]").unwrap())]);
        let values = row_values(&batch(&large, &[json!({"x": vec![0; 17]})]), 0);
        assert_eq!(values["x"], json!({"tensor": "tensor<int8>[17]"}));
        let wide = StreamType::new((0..40).map(|n| Column::new(format!("c{n}"), ColumnType::Int64)));
        let values = row_values(&batch(&wide, &[json!({})]), 0);
        assert_eq!(values.len(), COLUMNS + 1);
        assert_eq!(values["…"], "and 8 more columns");
    }
}
