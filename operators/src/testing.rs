//! Batches for unit tests.
use crate::columns::tensor::{TensorBuilder, read_list};
use crate::record::{metadata_fields, record_schema, source_id};
use arrow_array::builder::{BinaryBuilder, BooleanBuilder, Float64Builder, Int64Builder, StringBuilder};
use arrow_array::*;
use serde_json::Value;
use std::sync::Arc;
use tidemill_spec::diagnostic::Diagnostics;
use tidemill_spec::span::Located;
use tidemill_spec::types::{ColumnType, StreamType};

/// One record: source, sequence, event time, payload.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Record {
    pub(crate) source: u32,
    pub(crate) sequence: u64,
    pub(crate) time: i64,
    pub(crate) payload: Value,
}

/// A payload array of one column of JSON objects.
pub(crate) fn array(column_type: &ColumnType, values: Vec<&Value>) -> ArrayRef {
    match column_type {
        ColumnType::Text => {
            let mut builder = StringBuilder::new();
            values.iter().for_each(|v| builder.append_option(v.as_str()));
            Arc::new(builder.finish())
        }
        ColumnType::Int64 => {
            let mut builder = Int64Builder::new();
            values.iter().for_each(|v| builder.append_option(v.as_i64()));
            Arc::new(builder.finish())
        }
        ColumnType::Float64 => {
            let mut builder = Float64Builder::new();
            values.iter().for_each(|v| builder.append_option(v.as_f64()));
            Arc::new(builder.finish())
        }
        ColumnType::Bool => {
            let mut builder = BooleanBuilder::new();
            values.iter().for_each(|v| builder.append_option(v.as_bool()));
            Arc::new(builder.finish())
        }
        ColumnType::Image | ColumnType::Audio | ColumnType::Bytes => {
            let mut builder = BinaryBuilder::new();
            values.iter().for_each(|v| builder.append_option(v.as_str()));
            Arc::new(builder.finish())
        }
        ColumnType::Tensor { element, shape } => {
            let mut builder = TensorBuilder::new(*element, shape, values.len());
            for value in values {
                let mut bytes = Vec::new();
                match value.is_array() {
                    true => {
                        read_list(&value.to_string(), *element, shape, &mut bytes)
                            .expect("a list of the shape");
                        builder.append(&bytes).expect("bytes of the type");
                    }
                    false => builder.append_null(),
                }
            }
            builder.finish()
        }
    }
}

/// A batch with metadata of records in this order.
pub(crate) fn records(stream: &StreamType, rows: &[Record]) -> RecordBatch {
    let ids: Vec<u8> = rows.iter().flat_map(|r| source_id(r.source, r.sequence)).collect();
    let mut columns: Vec<ArrayRef> = vec![
        Arc::new(FixedSizeBinaryArray::new(16, ids.into(), None)),
        Arc::new(UInt32Array::from_iter_values(rows.iter().map(|r| r.source))),
        Arc::new(UInt64Array::from_iter_values(rows.iter().map(|r| r.sequence))),
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|r| r.time))),
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|r| r.time.saturating_mul(10)))),
        Arc::new(UInt32Array::from_iter_values(rows.iter().map(|r| r.sequence as u32 % 3))),
        Arc::new(Int8Array::from_iter_values(rows.iter().map(|_| 1))),
    ];
    assert_eq!(columns.len(), metadata_fields().len());
    for column in &stream.columns {
        columns.push(array(&column.column_type, rows.iter().map(|r| &r.payload[&column.name]).collect()));
    }
    RecordBatch::try_new(record_schema(stream), columns).expect("test data fits its type")
}

/// A batch of payloads, with event times 0, 1, 2 ... microseconds.
pub(crate) fn batch(stream: &StreamType, rows: &[Value]) -> RecordBatch {
    let rows: Vec<Record> = rows
        .iter()
        .enumerate()
        .map(|(i, payload)| Record {
            source: 0,
            sequence: i as u64,
            time: i as i64,
            payload: payload.clone(),
        })
        .collect();
    records(stream, &rows)
}

/// Options as in a workflow file.
pub(crate) fn options(yaml: &str) -> tidemill_spec::value::Value {
    let source = tidemill_spec::span::SourceFile::new("workflow.yaml", yaml);
    tidemill_spec::yaml::parse(&source).unwrap_or_else(|e| panic!("{e}"))
}

/// An id as in an operator context.
pub(crate) fn id(text: &str) -> Located<String> {
    text.into()
}

/// The only finding.
pub(crate) fn only(diagnostics: Diagnostics) -> tidemill_spec::diagnostic::Diagnostic {
    assert_eq!(diagnostics.len(), 1, "{diagnostics}");
    diagnostics.into_iter().next().expect("one")
}
