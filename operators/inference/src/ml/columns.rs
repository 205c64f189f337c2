//! Conversion between Arrow columns and the model's inputs and outputs.
use crate::steps::{Cell, OutputColumn};
use crate::tensor::TensorData;
use arrow_array::cast::AsArray;
use arrow_array::{
    Array, ArrayRef, BinaryArray, BooleanArray, FixedSizeListArray, Float16Array, Float32Array, Float64Array,
    Int8Array, Int32Array, Int64Array, StringArray, UInt8Array,
};
use arrow_schema::DataType;
use half::f16;
use std::ops::Range;
use std::sync::Arc;
use tidemill_spec::types::ColumnType;

/// Whether a column has the values that a model reads: dimensions of 1 do not matter.
pub(super) fn is_alike(found: &ColumnType, expected: &ColumnType) -> bool {
    let (
        ColumnType::Tensor { element: found_element, shape: found_shape },
        ColumnType::Tensor { element, shape },
    ) = (found, expected)
    else {
        return found == expected;
    };
    let sides = |shape: &[usize]| shape.iter().copied().filter(|side| *side != 1).collect::<Vec<_>>();
    found_element == element && sides(found_shape) == sides(shape)
}

/// An output column as an Arrow array of this type.
pub(super) fn array(
    column: OutputColumn,
    data_type: &DataType,
) -> Result<ArrayRef, arrow_schema::ArrowError> {
    let values: ArrayRef = match column {
        OutputColumn::Text(texts) => return Ok(Arc::new(StringArray::from(texts))),
        OutputColumn::Float64(values) => return Ok(Arc::new(Float64Array::from(values))),
        OutputColumn::Int64(values) => return Ok(Arc::new(Int64Array::from(values))),
        OutputColumn::Bool(values) => return Ok(Arc::new(BooleanArray::from(values))),
        OutputColumn::Tensor(TensorData::Float32(values)) => Arc::new(Float32Array::from(values)),
        OutputColumn::Tensor(TensorData::Float16(values)) => Arc::new(Float16Array::from(values)),
        OutputColumn::Tensor(TensorData::Int64(values)) => Arc::new(Int64Array::from(values)),
        OutputColumn::Tensor(TensorData::Uint8(values)) => Arc::new(UInt8Array::from(values)),
        OutputColumn::Tensor(TensorData::Int8(values)) => Arc::new(Int8Array::from(values)),
        OutputColumn::Tensor(TensorData::Int32(values)) => Arc::new(Int32Array::from(values)),
        OutputColumn::Tensor(TensorData::Float64(values)) => Arc::new(Float64Array::from(values)),
        OutputColumn::Tensor(TensorData::Bool(values)) => Arc::new(BooleanArray::from(values)),
        OutputColumn::Tensor(TensorData::Text(values)) => Arc::new(StringArray::from(values)),
    };
    let DataType::FixedSizeList(field, size) = data_type else {
        return Err(arrow_schema::ArrowError::SchemaError(format!("{data_type} is not a tensor column")));
    };
    Ok(Arc::new(FixedSizeListArray::try_new(field.clone(), *size, values, None)?))
}

/// Reads the cells of one column.
pub struct CellReader<'a>(Cells<'a>);

enum Cells<'a> {
    Bytes(&'a BinaryArray),
    Text(&'a StringArray),
    Float(&'a Float64Array),
    Integer(&'a Int64Array),
    Truth(&'a BooleanArray),
    Tensor(&'a FixedSizeListArray, Values<'a>),
}

/// The values of all tensors of a column.
enum Values<'a> {
    Float32(&'a [f32]),
    Float16(&'a [f16]),
    Float64(&'a [f64]),
    Int64(&'a [i64]),
    Int32(&'a [i32]),
    Int8(&'a [i8]),
    Uint8(&'a [u8]),
    Bool(Vec<bool>),
    Text(Vec<String>),
}

impl<'a> Values<'a> {
    fn of(array: &'a ArrayRef) -> Option<Self> {
        use arrow_array::types::{
            Float16Type, Float32Type, Float64Type, Int8Type, Int32Type, Int64Type, UInt8Type,
        };
        Some(match array.data_type() {
            DataType::Float32 => Self::Float32(array.as_primitive_opt::<Float32Type>()?.values()),
            DataType::Float16 => Self::Float16(array.as_primitive_opt::<Float16Type>()?.values()),
            DataType::Float64 => Self::Float64(array.as_primitive_opt::<Float64Type>()?.values()),
            DataType::Int64 => Self::Int64(array.as_primitive_opt::<Int64Type>()?.values()),
            DataType::Int32 => Self::Int32(array.as_primitive_opt::<Int32Type>()?.values()),
            DataType::Int8 => Self::Int8(array.as_primitive_opt::<Int8Type>()?.values()),
            DataType::UInt8 => Self::Uint8(array.as_primitive_opt::<UInt8Type>()?.values()),
            DataType::Boolean => Self::Bool(array.as_boolean_opt()?.values().iter().collect()),
            DataType::Utf8 => {
                let texts = array.as_string_opt::<i32>()?;
                Self::Text(texts.iter().map(|text| text.unwrap_or_default().to_owned()).collect())
            }
            _ => return None,
        })
    }

    /// The values of one tensor.
    fn part(&self, range: Range<usize>) -> Option<Cell<'_>> {
        Some(match self {
            Self::Float32(values) => Cell::Float32(values.get(range)?),
            Self::Float16(values) => Cell::Float16(values.get(range)?),
            Self::Float64(values) => Cell::Float64(values.get(range)?),
            Self::Int64(values) => Cell::Int64(values.get(range)?),
            Self::Int32(values) => Cell::Int32(values.get(range)?),
            Self::Int8(values) => Cell::Int8(values.get(range)?),
            Self::Uint8(values) => Cell::Uint8(values.get(range)?),
            Self::Bool(values) => Cell::Bool(values.get(range)?),
            Self::Text(values) => Cell::Texts(values.get(range)?),
        })
    }
}

impl<'a> CellReader<'a> {
    /// Reads this column; `None` if a stream has no columns of its type.
    pub fn new(array: &'a ArrayRef) -> Option<Self> {
        let any = array.as_any();
        let bytes = || any.downcast_ref().map(Cells::Bytes);
        let text = || any.downcast_ref().map(Cells::Text);
        let float = || any.downcast_ref().map(Cells::Float);
        let integer = || any.downcast_ref().map(Cells::Integer);
        let truth = || any.downcast_ref().map(Cells::Truth);
        let tensor = || {
            let list: &FixedSizeListArray = any.downcast_ref()?;
            Some(Cells::Tensor(list, Values::of(list.values())?))
        };
        let cells = bytes().or_else(text).or_else(float).or_else(integer).or_else(truth).or_else(tensor);
        cells.map(Self)
    }

    /// The value of a row.
    pub fn cell(&self, row: usize) -> Cell<'_> {
        fn valid<'a>(array: &dyn Array, row: usize, cell: impl FnOnce() -> Cell<'a>) -> Cell<'a> {
            if array.is_valid(row) { cell() } else { Cell::Missing }
        }
        match &self.0 {
            Cells::Bytes(array) => valid(*array, row, || Cell::Bytes(array.value(row))),
            Cells::Text(array) => valid(*array, row, || Cell::Text(array.value(row))),
            Cells::Float(array) => valid(*array, row, || Cell::Float(array.value(row))),
            Cells::Integer(array) => valid(*array, row, || Cell::Integer(array.value(row))),
            Cells::Truth(array) => valid(*array, row, || Cell::Truth(array.value(row))),
            Cells::Tensor(list, values) => valid(*list, row, || {
                let start = list.value_offset_at(row);
                let length = list.value_length() as usize;
                values.part(start..start + length).unwrap_or(Cell::Missing)
            }),
        }
    }
}
