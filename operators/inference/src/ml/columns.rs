//! Conversion between Arrow columns and the model's inputs and outputs.
use crate::steps::{Cell, OutputColumn};
use crate::tensor::TensorData;
use arrow_array::{
    Array, ArrayRef, BinaryArray, FixedSizeListArray, Float16Array, Float32Array, Int64Array, StringArray,
    UInt8Array,
};
use arrow_schema::DataType;
use half::f16;
use std::sync::Arc;

/// An output column as an Arrow array of this type.
pub(super) fn array(
    column: OutputColumn,
    data_type: &DataType,
) -> Result<ArrayRef, arrow_schema::ArrowError> {
    let values: ArrayRef = match column {
        OutputColumn::Text(texts) => return Ok(Arc::new(StringArray::from(texts))),
        OutputColumn::Tensor(TensorData::Float32(values)) => Arc::new(Float32Array::from(values)),
        OutputColumn::Tensor(TensorData::Float16(values)) => Arc::new(Float16Array::from(values)),
        OutputColumn::Tensor(TensorData::Int64(values)) => Arc::new(Int64Array::from(values)),
        OutputColumn::Tensor(TensorData::Uint8(values)) => Arc::new(UInt8Array::from(values)),
    };
    let DataType::FixedSizeList(field, size) = data_type else {
        return Err(arrow_schema::ArrowError::SchemaError(format!("{data_type} is not a tensor column")));
    };
    Ok(Arc::new(FixedSizeListArray::try_new(field.clone(), *size, values, None)?))
}

/// Reads the cells of one column.
pub(super) enum CellReader<'a> {
    Bytes(&'a BinaryArray),
    Text(&'a StringArray),
    Float32(&'a FixedSizeListArray, &'a [f32]),
    Float16(&'a FixedSizeListArray, &'a [f16]),
    Int64(&'a FixedSizeListArray, &'a [i64]),
    Uint8(&'a FixedSizeListArray, &'a [u8]),
}

impl<'a> CellReader<'a> {
    pub(super) fn new(array: &'a ArrayRef) -> Option<Self> {
        let any = array.as_any();
        if let Some(bytes) = any.downcast_ref() {
            return Some(CellReader::Bytes(bytes));
        }
        if let Some(text) = any.downcast_ref() {
            return Some(CellReader::Text(text));
        }
        let list: &FixedSizeListArray = any.downcast_ref()?;
        let values = list.values().as_any();
        if let Some(values) = values.downcast_ref::<Float32Array>() {
            return Some(CellReader::Float32(list, values.values()));
        }
        if let Some(values) = values.downcast_ref::<Float16Array>() {
            return Some(CellReader::Float16(list, values.values()));
        }
        if let Some(values) = values.downcast_ref::<UInt8Array>() {
            return Some(CellReader::Uint8(list, values.values()));
        }
        Some(CellReader::Int64(list, values.downcast_ref::<Int64Array>()?.values()))
    }

    /// The value of a row; `None` if it is empty.
    pub(super) fn cell(&self, row: usize) -> Option<Cell<'a>> {
        fn part<'a, T>(list: &FixedSizeListArray, values: &'a [T], row: usize) -> Option<&'a [T]> {
            if list.is_null(row) {
                return None;
            }
            let start = list.value_offset_at(row);
            values.get(start..start + usize::try_from(list.value_length()).ok()?)
        }
        match self {
            CellReader::Bytes(array) => array.is_valid(row).then(|| Cell::Bytes(array.value(row))),
            CellReader::Text(array) => array.is_valid(row).then(|| Cell::Text(array.value(row))),
            CellReader::Float32(list, values) => part(list, values, row).map(Cell::Float32),
            CellReader::Float16(list, values) => part(list, values, row).map(Cell::Float16),
            CellReader::Int64(list, values) => part(list, values, row).map(Cell::Int64),
            CellReader::Uint8(list, values) => part(list, values, row).map(Cell::Uint8),
        }
    }
}
