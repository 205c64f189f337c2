//! The values of one record, shortened for display: long texts are cut, images and sounds become their size and digest,
//! tensors their type.
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
use arrow_array::types::{Float64Type, Int64Type};
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::{DataType, Field};
use serde_json::{Map, Value, json};
use tidemill_spec::digest::sha256;

/// Values by column, in the order of the columns.
pub type Values = Map<String, Value>;

/// Longest text, in characters.
const TEXT: usize = 240;
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
        // JSON has no NaN and infinities; they become texts.
        DataType::Float64 => match column.as_primitive::<Float64Type>().value(row) {
            finite if finite.is_finite() => json!(finite),
            other => json!(other.to_string()),
        },
        DataType::Boolean => json!(column.as_boolean().value(row)),
        DataType::Binary => {
            let bytes = column.as_binary::<i32>().value(row);
            json!({"bytes": bytes.len(), "sha256": sha256(bytes)})
        }
        _ => {
            let tensor = field.metadata().get("tidemill.type").cloned();
            json!({"tensor": tensor.unwrap_or_else(|| column.data_type().to_string())})
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::batch;
    use tidemill_spec::types::{Column, ColumnType, ElementType, StreamType};

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
        assert_eq!(values["x"], Value::Null, "the test's tensors are empty");
        let wide = StreamType::new((0..40).map(|n| Column::new(format!("c{n}"), ColumnType::Int64)));
        let values = row_values(&batch(&wide, &[json!({})]), 0);
        assert_eq!(values.len(), COLUMNS + 1);
        assert_eq!(values["…"], "and 8 more columns");
    }
}
