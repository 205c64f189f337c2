//! Records: Arrow record batches whose first columns are the engine's metadata.
//!
//! Every batch on an edge has the seven metadata columns of [`metadata_fields`] followed by the
//! payload columns of its [`StreamType`].
//!
//! ```
//! use tidemill_operators::record::{RecordId, derive_id, source_id};
//! let a = source_id(0, 7);
//! assert_eq!(derive_id(42, &[a], 0), derive_id(42, &[a], 0)); // the same after every replay
//! assert_ne!(derive_id(42, &[a], 0), derive_id(42, &[a], 1));
//! ```
use arrow_array::{
    Array, ArrayRef, BinaryArray, BooleanArray, FixedSizeBinaryArray, FixedSizeListArray, Float32Array,
    Float64Array, Int8Array, Int64Array, RecordBatch, StringArray, UInt32Array, UInt64Array,
};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use std::collections::HashMap;
use std::sync::Arc;
use tidemill_spec::types::{ColumnType, ElementType, StreamType};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

/// Stable identity of a record: equal after every replay of the same input.
pub type RecordId = [u8; 16];

/// Number of metadata columns before the payload.
pub const METADATA_COLUMNS: usize = 7;
/// Index of `_id` (16 bytes): hash of (operator, sorted input ids, output index).
pub const ID: usize = 0;
/// Index of `_source` (u32): the source of the record (or of its first input).
pub const SOURCE: usize = 1;
/// Index of `_sequence` (u64): position in that source's stream.
pub const SEQUENCE: usize = 2;
/// Index of `_time` (i64): event time, microseconds.
pub const TIME: usize = 3;
/// Index of `_intended` (i64): engine-clock nanoseconds at which the (latest) source record was due.
pub const INTENDED: usize = 4;
/// Index of `_class` (u32): route class in the low 16 bits, partition lane in the high 16 bits.
pub const CLASS: usize = 5;
/// Index of `_change` (i8): +1 or -1; append-only streams never have -1.
pub const CHANGE: usize = 6;

/// Event time in microseconds.
pub type EventTime = i64;

/// The metadata fields, in order.
pub fn metadata_fields() -> [Field; METADATA_COLUMNS] {
    [
        Field::new("_id", DataType::FixedSizeBinary(16), false),
        Field::new("_source", DataType::UInt32, false),
        Field::new("_sequence", DataType::UInt64, false),
        Field::new("_time", DataType::Int64, false),
        Field::new("_intended", DataType::Int64, false),
        Field::new("_class", DataType::UInt32, false),
        Field::new("_change", DataType::Int8, false),
    ]
}

/// Arrow type of a payload column.
pub fn arrow_type(column_type: &ColumnType) -> DataType {
    match column_type {
        ColumnType::Image | ColumnType::Audio | ColumnType::Bytes => DataType::Binary,
        ColumnType::Text => DataType::Utf8,
        ColumnType::Int64 => DataType::Int64,
        ColumnType::Float64 => DataType::Float64,
        ColumnType::Bool => DataType::Boolean,
        ColumnType::Tensor { element, shape } => {
            let item = match element {
                ElementType::Float32 => DataType::Float32,
                ElementType::Float16 => DataType::Float16,
                ElementType::Float64 => DataType::Float64,
                ElementType::Int64 => DataType::Int64,
                ElementType::Int32 => DataType::Int32,
                ElementType::Int8 => DataType::Int8,
                ElementType::Uint8 => DataType::UInt8,
                ElementType::Bool => DataType::Boolean,
                ElementType::Text => DataType::Utf8,
            };
            let length = shape.iter().product::<usize>();
            DataType::FixedSizeList(Arc::new(Field::new("item", item, false)), length as i32)
        }
    }
}

/// Element type of tensors whose values have this Arrow type.
pub fn element_type(item: &DataType) -> Option<ElementType> {
    Some(match item {
        DataType::Float32 => ElementType::Float32,
        DataType::Float16 => ElementType::Float16,
        DataType::Float64 => ElementType::Float64,
        DataType::Int64 => ElementType::Int64,
        DataType::Int32 => ElementType::Int32,
        DataType::Int8 => ElementType::Int8,
        DataType::UInt8 => ElementType::Uint8,
        DataType::Boolean => ElementType::Bool,
        DataType::Utf8 => ElementType::Text,
        _ => return None,
    })
}

/// Payload schema (no metadata) of a stream. Payload columns are nullable; the exact column type is in
/// the field metadata under `tidemill.type`.
pub fn payload_schema(stream: &StreamType) -> SchemaRef {
    Arc::new(Schema::new(stream.columns.iter().map(payload_field).collect::<Vec<_>>()))
}

/// The field of one payload column.
pub(crate) fn payload_field(column: &tidemill_spec::types::Column) -> Field {
    Field::new(&column.name, arrow_type(&column.column_type), true)
        .with_metadata(HashMap::from([("tidemill.type".to_owned(), column.column_type.to_string())]))
}

/// Full schema, metadata first.
pub fn record_schema(stream: &StreamType) -> SchemaRef {
    let mut fields = metadata_fields().to_vec();
    fields.extend(stream.columns.iter().map(payload_field));
    Arc::new(Schema::new(fields))
}

/// The stream whose records have this schema, as far as expressions can name its columns: images and sounds look the same here.
pub fn stream_type(schema: &Schema) -> StreamType {
    StreamType::new(schema.fields().iter().skip(METADATA_COLUMNS).map(|field| {
        let written = field.metadata().get("tidemill.type").and_then(|name| ColumnType::named(name));
        if let Some(written) = written {
            return tidemill_spec::types::Column::new(field.name(), written);
        }
        let column_type = match field.data_type() {
            DataType::Utf8 => ColumnType::Text,
            DataType::Int64 => ColumnType::Int64,
            DataType::Float64 => ColumnType::Float64,
            DataType::Boolean => ColumnType::Bool,
            DataType::FixedSizeList(item, length) => match element_type(item.data_type()) {
                Some(element) => ColumnType::Tensor { element, shape: vec![*length as usize] },
                None => ColumnType::Image,
            },
            _ => ColumnType::Image,
        };
        tidemill_spec::types::Column::new(field.name(), column_type)
    }))
}

/// Identity of a record emitted by a source.
pub fn source_id(source: u32, sequence: u64) -> RecordId {
    let mut bytes = [0; 18];
    bytes[..6].copy_from_slice(b"source");
    bytes[6..10].copy_from_slice(&source.to_le_bytes());
    bytes[10..].copy_from_slice(&sequence.to_le_bytes());
    xxh3_128(&bytes).to_le_bytes()
}

/// Number of an operator in identities: a hash of its id.
pub fn operator_number(operator_id: &str) -> u64 {
    xxh3_64(operator_id.as_bytes())
}

/// Identity of output `index` that operator `operator` (see [`operator_number`]) made from `inputs`, in any order of
/// arrival.
pub fn derive_id(operator: u64, inputs: &[RecordId], index: u32) -> RecordId {
    // Usually there are few inputs, which are hashed in one piece: feeding a hasher piece by piece costs more in setup than
    // in hashing.
    let mut few = [0; 8 + 2 * size_of::<RecordId>() + 4];
    let (operator, index) = (operator.to_le_bytes(), index.to_le_bytes());
    let pieces: [&[u8]; 4] = match inputs {
        [one] => [&operator, one, &[], &index],
        [a, b] => [&operator, a.min(b), a.max(b), &index],
        many => {
            let mut sorted = many.to_vec();
            sorted.sort_unstable();
            return xxh3_128(&[&operator[..], sorted.as_flattened(), &index].concat()).to_le_bytes();
        }
    };
    let mut length = 0;
    for piece in pieces {
        few[length..length + piece.len()].copy_from_slice(piece);
        length += piece.len();
    }
    xxh3_128(&few[..length]).to_le_bytes()
}

/// Typed views of the metadata columns of a batch.
#[derive(Debug, Clone, Copy)]
pub struct Metadata<'a> {
    /// Identities.
    pub ids: &'a FixedSizeBinaryArray,
    /// Sources.
    pub sources: &'a UInt32Array,
    /// Sequence numbers.
    pub sequences: &'a UInt64Array,
    /// Event times, microseconds.
    pub times: &'a Int64Array,
    /// Intended emission times, engine-clock nanoseconds.
    pub intended: &'a Int64Array,
    /// Classes and lanes.
    pub classes: &'a UInt32Array,
    /// Changes.
    pub changes: &'a Int8Array,
}

impl<'a> Metadata<'a> {
    /// Returns views of a batch from an edge.
    ///
    /// # Panics
    /// If the batch was not built with [`record_schema`]; the engine never passes such a batch.
    pub fn of(batch: &'a RecordBatch) -> Self {
        fn cast<T: 'static>(batch: &RecordBatch, index: usize) -> &T {
            batch.column(index).as_any().downcast_ref().expect("metadata columns lead every batch on an edge")
        }
        Self {
            ids: cast(batch, ID),
            sources: cast(batch, SOURCE),
            sequences: cast(batch, SEQUENCE),
            times: cast(batch, TIME),
            intended: cast(batch, INTENDED),
            classes: cast(batch, CLASS),
            changes: cast(batch, CHANGE),
        }
    }

    /// Identity of a row.
    pub fn id(&self, row: usize) -> RecordId {
        self.ids.value(row).try_into().expect("ids are 16 bytes wide")
    }
}

/// Returns the first records of source 0 with a payload of [`payload_schema`]: sequence numbers and event times count from 0. For tests of
/// operators and sinks.
///
/// ```
/// use std::sync::Arc;
/// use tidemill_operators::record::{first_records, payload_schema, record_schema};
/// use tidemill_spec::types::{Column, ColumnType, StreamType};
/// let stream = StreamType::new([Column::new("n", ColumnType::Int64)]);
/// let numbers = Arc::new(arrow_array::Int64Array::from(vec![7, 8]));
/// let payload = arrow_array::RecordBatch::try_new(payload_schema(&stream), vec![numbers])?;
/// assert_eq!(first_records(&payload)?.schema(), record_schema(&stream));
/// # Ok::<(), arrow_schema::ArrowError>(())
/// ```
///
/// # Errors
/// More than 2^31 bytes of identities.
pub fn first_records(payload: &RecordBatch) -> Result<RecordBatch, arrow_schema::ArrowError> {
    let rows = payload.num_rows();
    let ids: Vec<u8> = (0..rows as u64).flat_map(|sequence| source_id(0, sequence)).collect();
    let mut columns: Vec<ArrayRef> = vec![
        Arc::new(FixedSizeBinaryArray::try_new(16, ids.into(), None)?),
        Arc::new(UInt32Array::from(vec![0; rows])),
        Arc::new(UInt64Array::from_iter_values(0..rows as u64)),
        Arc::new(Int64Array::from_iter_values(0..rows as i64)),
        Arc::new(Int64Array::from(vec![0; rows])),
        Arc::new(UInt32Array::from(vec![0; rows])),
        Arc::new(Int8Array::from(vec![1; rows])),
    ];
    columns.extend(payload.columns().iter().cloned());
    let schema = payload.schema();
    let fields = metadata_fields().into_iter().map(Arc::new).chain(schema.fields().iter().cloned());
    RecordBatch::try_new(Arc::new(Schema::new(fields.collect::<Vec<_>>())), columns)
}

/// Returns the bytes of memory that a batch keeps alive; shared buffers count by their slice.
pub fn batch_bytes(batch: &RecordBatch) -> usize {
    batch
        .columns()
        .iter()
        .map(|column| {
            column.to_data().get_slice_memory_size().unwrap_or_else(|_| column.get_array_memory_size())
        })
        .sum()
}

/// Returns the seven metadata arrays of the `rows` of `batch` with new ids: row i of the result has the metadata of row
/// `rows[i]` and the id `derive_id(operator, [old id], index)`. For operators that emit one row per row.
pub fn derive_metadata(batch: &RecordBatch, operator: u64) -> Vec<ArrayRef> {
    let metadata = Metadata::of(batch);
    let mut bytes = Vec::with_capacity(batch.num_rows() * 16);
    for row in 0..batch.num_rows() {
        bytes.extend_from_slice(&derive_id(operator, &[metadata.id(row)], 0));
    }
    let ids = FixedSizeBinaryArray::new(16, bytes.into(), None);
    let mut arrays: Vec<ArrayRef> = vec![Arc::new(ids)];
    arrays.extend(batch.columns()[1..METADATA_COLUMNS].iter().cloned());
    arrays
}

/// Returns the seven metadata arrays of an operator that emits any number of rows per row. Row i of the result comes from
/// row `rows[i]` of `batch` and is number `indices[i]` of its outputs, so its id is
/// `derive_id(operator, [old id], indices[i])`; everything else is copied. An index must follow from its row alone, and the
/// indices of one row must differ: then ids are stable across replays, however batches are cut.
///
/// ```
/// use tidemill_operators::record::{Metadata, derive_id, record_schema, unfold_metadata};
/// # use arrow_array::*;
/// # use std::sync::Arc;
/// # let schema = record_schema(&tidemill_spec::types::StreamType::default());
/// # let ids = FixedSizeBinaryArray::try_from_iter([[1u8; 16], [2; 16]].into_iter()).unwrap();
/// # let columns: Vec<ArrayRef> = vec![Arc::new(ids), Arc::new(UInt32Array::from(vec![0, 0])), Arc::new(UInt64Array::from(vec![8, 9])),
/// #     Arc::new(Int64Array::from(vec![80, 90])), Arc::new(Int64Array::from(vec![0, 0])), Arc::new(UInt32Array::from(vec![0, 0])), Arc::new(Int8Array::from(vec![1, 1]))];
/// # let frames = RecordBatch::try_new(schema.clone(), columns).unwrap();
/// // Two boxes in the second frame, none in the first.
/// let boxes = RecordBatch::try_new(schema, unfold_metadata(&frames, &[1, 1], &[0, 1], 42)?).unwrap();
/// let metadata = Metadata::of(&boxes);
/// assert_eq!((metadata.sequences.values(), metadata.times.values()), (&vec![9, 9].into(), &vec![90, 90].into()));
/// assert_eq!(metadata.id(1), derive_id(42, &[[2; 16]], 1));
/// # Ok::<(), arrow_schema::ArrowError>(())
/// ```
///
/// # Errors
/// A row that `batch` does not have.
pub fn unfold_metadata(
    batch: &RecordBatch,
    rows: &[u32],
    indices: &[u32],
    operator: u64,
) -> Result<Vec<ArrayRef>, arrow_schema::ArrowError> {
    let metadata = Metadata::of(batch);
    if let Some(row) = rows.iter().find(|row| **row as usize >= batch.num_rows()) {
        let message = format!("row {row} of a batch of {}", batch.num_rows());
        return Err(arrow_schema::ArrowError::InvalidArgumentError(message));
    }
    let mut bytes = Vec::with_capacity(rows.len() * size_of::<RecordId>());
    for (row, index) in rows.iter().zip(indices) {
        bytes.extend_from_slice(&derive_id(operator, &[metadata.id(*row as usize)], *index));
    }
    let ids = FixedSizeBinaryArray::try_new(16, bytes.into(), None)?;
    let mut arrays: Vec<ArrayRef> = vec![Arc::new(ids)];
    let rows = UInt32Array::from(rows.to_vec());
    for column in &batch.columns()[1..METADATA_COLUMNS] {
        arrays.push(arrow_select::take::take(column, &rows, None)?);
    }
    Ok(arrays)
}

/// Casts to a text column; `None` if the column has another type.
pub fn text(array: &ArrayRef) -> Option<&StringArray> {
    array.as_any().downcast_ref()
}

/// An image or audio column (encoded bytes).
pub fn binary(array: &ArrayRef) -> Option<&BinaryArray> {
    array.as_any().downcast_ref()
}

/// A bool column.
pub fn boolean(array: &ArrayRef) -> Option<&BooleanArray> {
    array.as_any().downcast_ref()
}

/// An int64 column.
pub fn int64(array: &ArrayRef) -> Option<&Int64Array> {
    array.as_any().downcast_ref()
}

/// A float64 column.
pub fn float64(array: &ArrayRef) -> Option<&Float64Array> {
    array.as_any().downcast_ref()
}

/// A float32 tensor column as (values of all rows, elements a row).
pub fn tensor_f32(array: &ArrayRef) -> Option<(&Float32Array, usize)> {
    let list: &FixedSizeListArray = array.as_any().downcast_ref()?;
    Some((list.values().as_any().downcast_ref()?, list.value_length() as usize))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use xxhash_rust::xxh3::Xxh3;

    proptest! {
        /// Identities are written to files, so they must never change.
        #[test]
        fn identities_are_hashes_of_the_parts_in_a_row(
            operator in any::<u64>(), mut inputs in proptest::collection::vec(any::<RecordId>(), 0..5),
            index in any::<u32>(), source in any::<u32>(), sequence in any::<u64>(),
        ) {
            let found = derive_id(operator, &inputs, index);
            inputs.sort_unstable();
            let mut hasher = Xxh3::new();
            hasher.update(&operator.to_le_bytes());
            inputs.iter().for_each(|input| hasher.update(input));
            hasher.update(&index.to_le_bytes());
            prop_assert_eq!(found, hasher.digest128().to_le_bytes());
            let mut hasher = Xxh3::new();
            hasher.update(b"source");
            hasher.update(&source.to_le_bytes());
            hasher.update(&sequence.to_le_bytes());
            prop_assert_eq!(source_id(source, sequence), hasher.digest128().to_le_bytes());
        }
    }
}
