//! Rows of sinks: the columns to write, and the form of each value as text or in typed formats.
use crate::api::OperatorError;
use crate::kind::{EndContext, InputPort};
use crate::record::{METADATA_COLUMNS, Metadata, payload_field};
use crate::values::Values;
use arrow_array::cast::AsArray;
use arrow_array::types::{Float16Type, Float32Type, Float64Type, Int8Type, Int32Type, Int64Type, UInt8Type};
use arrow_array::{
    Array, ArrayRef, FixedSizeListArray, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray,
};
use arrow_schema::{DataType, Field, Schema, SchemaRef, TimeUnit};
use std::io::Write;
use std::sync::Arc;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::span::Located;
use tidemill_spec::types::{Column, ColumnType, StreamType};

/// One column to write.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Written {
    /// The record's identity, in hexadecimal.
    Id,
    /// The event time in microseconds.
    Time,
    /// 1, or -1 for a retraction.
    Change,
    /// A payload column.
    Payload(usize, ColumnType),
}

/// The columns that a sink writes.
#[derive(Debug, Clone)]
pub struct Rows {
    columns: Vec<(String, Written)>,
}

impl Rows {
    /// Returns the chosen columns (all if none are named), preceded by `_id` and `_time` with `metadata`, and always by
    /// `_change` if rows may be retracted. At least one: no format can represent rows without columns.
    ///
    /// # Errors
    /// Columns that there are not, named twice, or none at all.
    pub fn choose(
        context: &EndContext<'_>,
        input: &InputPort,
        chosen: Option<&[Located<String>]>,
        metadata: bool,
    ) -> Result<Self, Diagnostics> {
        let mut errors = Diagnostics::new();
        let mut columns = Vec::new();
        if metadata {
            columns.push(("_id".to_owned(), Written::Id));
            columns.push(("_time".to_owned(), Written::Time));
        }
        if input.stream.revised {
            columns.push(("_change".to_owned(), Written::Change));
        }
        match chosen {
            None => columns.extend(all(&input.stream)),
            Some(names) => {
                for name in names {
                    match input.column(context.id, 0, name, "any type", |_| true) {
                        Ok(_) if columns.iter().any(|(n, _)| *n == name.value) => {
                            let message = format!("column `{name}` is listed twice");
                            errors.push(Diagnostic::error("E0606", message).at(name.span.clone()));
                        }
                        Ok((index, c)) => {
                            columns.push((c.name.clone(), Written::Payload(index, c.column_type.clone())));
                        }
                        Err(error) => errors.push(error),
                    }
                }
            }
        }
        if columns.is_empty() && !errors.has_errors() {
            let (message, help) = match chosen {
                Some(_) => (
                    format!("`columns` of sink `{}` names none, so there is nothing to write", context.id),
                    "name the columns to write, or leave `columns` out to write all",
                ),
                None => (
                    format!("sink `{}` has nothing to write: `{}` sends no columns", context.id, input.from),
                    "let the operator before it send a column, or write `metadata: true`",
                ),
            };
            // An empty list has no name to point at.
            let place = if chosen.is_some() { &context.id.span } else { &input.span };
            errors.push(Diagnostic::error("E0606", message).at(place.clone()).with_help(help));
        }
        errors.into_result(Self { columns })
    }

    /// All columns of a stream after the event time, and after the change if rows may be retracted.
    fn whole(stream: &StreamType) -> Self {
        let mut columns = vec![("_time".to_owned(), Written::Time)];
        if stream.revised {
            columns.push(("_change".to_owned(), Written::Change));
        }
        columns.extend(all(stream));
        Self { columns }
    }

    /// Names and contents, in order.
    pub(super) fn columns(&self) -> &[(String, Written)] {
        &self.columns
    }

    /// The columns as Arrow fields, for typed formats.
    pub(super) fn arrow_schema(&self) -> SchemaRef {
        let fields = self.columns.iter().map(|(name, written)| match written {
            Written::Id => Field::new(name, DataType::Utf8, false),
            Written::Time => {
                Field::new(name, DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())), false)
            }
            Written::Change => Field::new(name, DataType::Int64, false),
            Written::Payload(_, column_type) => exported_field(name, column_type),
        });
        Arc::new(Schema::new(fields.collect::<Vec<_>>()))
    }

    /// Returns the columns of a batch in the form of [`Rows::arrow_schema`].
    pub(super) fn arrays(&self, batch: &RecordBatch) -> Vec<ArrayRef> {
        let metadata = Metadata::of(batch);
        let array = |written: &Written| -> ArrayRef {
            match written {
                Written::Id => Arc::new(StringArray::from_iter_values((0..batch.num_rows()).map(|row| {
                    let mut text = Vec::with_capacity(32);
                    hexadecimal(&metadata.id(row), &mut text);
                    String::from_utf8(text).expect("digits are UTF-8")
                }))),
                Written::Time => {
                    let times = TimestampMicrosecondArray::new(metadata.times.values().clone(), None);
                    Arc::new(times.with_timezone("UTC"))
                }
                Written::Change => Arc::new(Int64Array::from_iter_values(
                    metadata.changes.values().iter().map(|change| i64::from(*change)),
                )),
                Written::Payload(index, ColumnType::Tensor { .. }) => {
                    let tensors = batch.column(METADATA_COLUMNS + index).as_fixed_size_list();
                    let (item, size, values, empty) = tensors.clone().into_parts();
                    Arc::new(FixedSizeListArray::new(nullable(&item), size, values, empty))
                }
                Written::Payload(index, _) => Arc::clone(batch.column(METADATA_COLUMNS + index)),
            }
        };
        self.columns.iter().map(|(_, written)| array(written)).collect()
    }

    /// Names in order.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.columns.iter().map(|(name, _)| name.as_str())
    }

    /// Appends every row of a batch as one JSON object and a line break.
    ///
    /// # Errors
    /// A column has no form in JSON.
    pub fn json(&self, batch: &RecordBatch, out: &mut Vec<u8>) -> Result<(), OperatorError> {
        for row in 0..batch.num_rows() {
            out.push(b'{');
            self.members(batch, row, out)?;
            out.extend_from_slice(b"}\n");
        }
        Ok(())
    }

    /// Appends the columns of a row as members of a JSON object, without braces.
    ///
    /// # Errors
    /// A column has no form in JSON.
    pub(super) fn members(
        &self,
        batch: &RecordBatch,
        row: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), OperatorError> {
        for (index, (name, written)) in self.columns.iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            json_text(name, out);
            out.push(b':');
            value(batch, row, written, out)?;
        }
        Ok(())
    }

    /// The values of a row as fields of a table: texts without quotes, empty values as nothing, the rest as in JSON.
    pub(super) fn fields(
        &self,
        batch: &RecordBatch,
        row: usize,
        mut each: impl FnMut(&[u8]) -> Result<(), OperatorError>,
    ) -> Result<(), OperatorError> {
        let mut buffer = Vec::new();
        for (_, written) in &self.columns {
            buffer.clear();
            match written {
                Written::Payload(index, ColumnType::Text) => {
                    let column = batch.column(METADATA_COLUMNS + index).as_string::<i32>();
                    if column.is_valid(row) {
                        buffer.extend_from_slice(column.value(row).as_bytes());
                    }
                }
                Written::Payload(index, _) if batch.column(METADATA_COLUMNS + index).is_null(row) => {}
                // Values that JSON cannot represent are empty fields, as null is.
                Written::Payload(index, ColumnType::Float64)
                    if !batch
                        .column(METADATA_COLUMNS + index)
                        .as_primitive::<Float64Type>()
                        .value(row)
                        .is_finite() => {}
                Written::Id => hexadecimal(&Metadata::of(batch).id(row), &mut buffer),
                other => value(batch, row, other, &mut buffer)?,
            }
            each(&buffer)?;
        }
        Ok(())
    }
}

/// Returns the rows of a batch with metadata as sink `jsonl` writes them: `_time`, `_change` if rows may be retracted, and all
/// columns of the stream.
///
/// # Errors
/// A value that is no JSON.
pub fn json_rows(stream: &StreamType, batch: &RecordBatch) -> Result<Vec<Values>, OperatorError> {
    let mut lines = Vec::new();
    Rows::whole(stream).json(batch, &mut lines)?;
    let rows = serde_json::Deserializer::from_slice(&lines).into_iter();
    rows.collect::<Result<_, _>>().map_err(|error| OperatorError::new(error.to_string()))
}

/// Returns the field of a payload column. Other programs know the shape of a tensor by Arrow's own extension type.
fn exported_field(name: &str, column_type: &ColumnType) -> Field {
    let field = payload_field(&Column::new(name, column_type.clone()));
    let (ColumnType::Tensor { shape, .. }, DataType::FixedSizeList(item, size)) =
        (column_type, field.data_type())
    else {
        return field;
    };
    let storage = DataType::FixedSizeList(nullable(item), *size);
    let mut metadata = field.metadata().clone();
    metadata.insert("ARROW:extension:name".to_owned(), "arrow.fixed_shape_tensor".to_owned());
    metadata.insert("ARROW:extension:metadata".to_owned(), serde_json::json!({"shape": shape}).to_string());
    field.with_data_type(storage).with_metadata(metadata)
}

/// The extension type is declared by its storage, whose elements others expect to be nullable.
fn nullable(item: &Field) -> Arc<Field> {
    Arc::new(item.clone().with_nullable(true))
}

fn all(stream: &StreamType) -> impl Iterator<Item = (String, Written)> {
    let columns = stream.columns.iter().enumerate();
    columns.map(|(index, c)| (c.name.clone(), Written::Payload(index, c.column_type.clone())))
}

/// Appends the 32 hexadecimal digits of an id.
pub(crate) fn hexadecimal(id: &[u8; 16], out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for byte in id {
        out.extend([DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
    }
}

/// Appends a text in quotes.
pub(super) fn json_text(text: &str, out: &mut Vec<u8>) {
    serde_json::to_writer(out, text).expect("a text is always JSON");
}

fn float(value: f64, out: &mut Vec<u8>) {
    // JSON has no NaN and no infinities; they become null.
    serde_json::to_writer(out, &value).expect("a float or null is always JSON");
}

fn value(batch: &RecordBatch, row: usize, written: &Written, out: &mut Vec<u8>) -> Result<(), OperatorError> {
    let (index, column_type) = match written {
        Written::Id => {
            out.push(b'"');
            hexadecimal(&Metadata::of(batch).id(row), out);
            out.push(b'"');
            return Ok(());
        }
        Written::Time => {
            let _ = write!(out, "{}", Metadata::of(batch).times.value(row));
            return Ok(());
        }
        Written::Change => {
            let _ = write!(out, "{}", Metadata::of(batch).changes.value(row));
            return Ok(());
        }
        Written::Payload(index, column_type) => (index, column_type),
    };
    let column = batch.column(METADATA_COLUMNS + index);
    if column.is_null(row) {
        out.extend_from_slice(b"null");
        return Ok(());
    }
    match column_type {
        ColumnType::Text => json_text(column.as_string::<i32>().value(row), out),
        ColumnType::Int64 => drop(write!(out, "{}", column.as_primitive::<Int64Type>().value(row))),
        ColumnType::Float64 => float(column.as_primitive::<Float64Type>().value(row), out),
        ColumnType::Bool => drop(write!(out, "{}", column.as_boolean().value(row))),
        ColumnType::Image | ColumnType::Audio | ColumnType::Bytes => {
            drop(write!(out, "{{\"bytes\":{}}}", column.as_binary::<i32>().value(row).len()));
        }
        ColumnType::Tensor { shape, .. } => tensor(&column.as_fixed_size_list().value(row), shape, 0, out),
    }
    Ok(())
}

/// A tensor as nested lists, as it is written.
#[cfg(test)]
pub(crate) fn tensor_text(column: &ArrayRef, row: usize, shape: &[usize]) -> String {
    let mut out = Vec::new();
    tensor(&column.as_fixed_size_list().value(row), shape, 0, &mut out);
    String::from_utf8(out).expect("JSON is UTF-8")
}

/// Appends nested arrays of the tensor's shape; `start` is the first element of this part.
fn tensor(elements: &dyn Array, shape: &[usize], start: usize, out: &mut Vec<u8>) {
    let Some((first, inner)) = shape.split_first() else {
        return element(elements, start, out);
    };
    let step: usize = inner.iter().product();
    out.push(b'[');
    for index in 0..*first {
        if index > 0 {
            out.push(b',');
        }
        tensor(elements, inner, start + index * step, out);
    }
    out.push(b']');
}

fn element(elements: &dyn Array, index: usize, out: &mut Vec<u8>) {
    if let Some(floats) = elements.as_primitive_opt::<Float32Type>() {
        // As f32, so that 0.1 stays 0.1.
        serde_json::to_writer(out, &floats.value(index)).expect("a float or null is always JSON");
    } else if let Some(ints) = elements.as_primitive_opt::<Int64Type>() {
        let _ = write!(out, "{}", ints.value(index));
    } else if let Some(bytes) = elements.as_primitive_opt::<UInt8Type>() {
        let _ = write!(out, "{}", bytes.value(index));
    } else if let Some(floats) = elements.as_primitive_opt::<Float16Type>() {
        serde_json::to_writer(out, &floats.value(index).to_f32()).expect("a float or null is always JSON");
    } else if let Some(floats) = elements.as_primitive_opt::<Float64Type>() {
        float(floats.value(index), out);
    } else if let Some(ints) = elements.as_primitive_opt::<Int32Type>() {
        let _ = write!(out, "{}", ints.value(index));
    } else if let Some(ints) = elements.as_primitive_opt::<Int8Type>() {
        let _ = write!(out, "{}", ints.value(index));
    } else if let Some(truths) = elements.as_boolean_opt() {
        let _ = write!(out, "{}", truths.value(index));
    } else if let Some(texts) = elements.as_string_opt::<i32>() {
        json_text(texts.value(index), out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::record_schema;
    use crate::testing::{batch, id, only};
    use arrow_array::Float32Array;
    use serde_json::json;
    use std::path::Path;
    use tidemill_spec::span::Span;
    use tidemill_spec::types::ElementType;

    #[test]
    fn tensors_of_bytes_and_half_floats_are_numbers() {
        let mut out = Vec::new();
        tensor(&arrow_array::UInt8Array::from(vec![0, 7, 255]), &[3], 0, &mut out);
        type Half = <Float16Type as arrow_array::types::ArrowPrimitiveType>::Native;
        let halves = [0.5, -2.0, f32::NAN].map(Half::from_f32);
        tensor(&arrow_array::Float16Array::from(halves.to_vec()), &[3], 0, &mut out);
        assert_eq!(String::from_utf8(out).unwrap(), "[0,7,255][0.5,-2.0,null]");
    }

    #[test]
    fn every_type_in_json_and_in_tables() {
        let stream = StreamType::new([
            Column::new("t", ColumnType::Text),
            Column::new("i", ColumnType::Int64),
            Column::new("f", ColumnType::Float64),
            Column::new("b", ColumnType::Bool),
            Column::new("p", ColumnType::Image),
            Column::new("x", ColumnType::Tensor { element: ElementType::Float32, shape: vec![2, 2] }),
        ]);
        let rows =
            [json!({"t": "a\"\n\u{1}é", "i": -1, "f": 0.1, "b": true, "p": "JPEG"}), json!({"f": 2.0})];
        let plain = batch(&stream, &rows);
        let item = Arc::new(Field::new("item", DataType::Float32, false));
        let values = Float32Array::from_iter_values((0..8).map(|i| i as f32 + 0.1));
        let tensors: ArrayRef = Arc::new(FixedSizeListArray::new(item, 4, Arc::new(values), None));
        let mut columns = plain.columns().to_vec();
        columns[12] = tensors;
        let batch = RecordBatch::try_new(record_schema(&stream), columns).unwrap();
        let port = InputPort { from: "a".into(), stream, span: Span::nowhere() };
        let id = id("out");
        let context = EndContext::new(&id, Path::new("."));
        let written = Rows::choose(&context, &port, None, false).unwrap();
        let mut out = Vec::new();
        written.json(&batch, &mut out).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "{\"t\":\"a\\\"\\n\\u0001é\",\"i\":-1,\"f\":0.1,\"b\":true,\"p\":{\"bytes\":4},\"x\":[[0.1,1.1],[2.1,3.1]]}\n\
             {\"t\":null,\"i\":null,\"f\":2.0,\"b\":null,\"p\":null,\"x\":[[4.1,5.1],[6.1,7.1]]}\n"
        );
        let chosen = [Located::from("i"), "t".into()];
        let two = Rows::choose(&context, &port, Some(&chosen), true).unwrap();
        assert_eq!(two.names().collect::<Vec<_>>(), ["_id", "_time", "i", "t"]);
        let mut fields = Vec::new();
        two.fields(&batch, 0, |field| {
            fields.push(String::from_utf8(field.to_vec()).unwrap());
            Ok(())
        })
        .unwrap();
        assert_eq!(fields[0].len(), 32);
        assert_eq!(fields[1..], ["0", "-1", "a\"\n\u{1}é"]);
        let wrong = [Located::from("ii"), "t".into(), "t".into()];
        assert_eq!(Rows::choose(&context, &port, Some(&wrong), false).unwrap_err().len(), 2);
    }

    #[test]
    fn at_least_one_column_is_written() {
        let some = StreamType::new([Column::new("t", ColumnType::Text)]);
        let id = id("out");
        let context = EndContext::new(&id, Path::new("."));
        let none: [Located<String>; 0] = [];
        for (stream, chosen, message) in [
            (some, Some(&none[..]), "`columns` of sink `out` names none"),
            (StreamType::new([]), None, "`a` sends no columns"),
        ] {
            let port = InputPort { from: "a".into(), stream, span: Span::nowhere() };
            let error = only(Rows::choose(&context, &port, chosen, false).unwrap_err());
            assert!(error.code == "E0606" && error.message.contains(message), "{error}");
            assert_eq!(Rows::choose(&context, &port, chosen, true).unwrap().columns().len(), 2);
            // Only their changes are written for rows that may be retracted.
            let port = InputPort { stream: port.stream.with_revisions(true), ..port };
            assert_eq!(Rows::choose(&context, &port, chosen, false).unwrap().columns().len(), 1);
        }
    }
}
