//! Columns of record batches as buffers in Arrow's layout, and back. What a step gives is checked in full: lengths, offsets,
//! texts.
use crate::memory::Results;
use crate::protocol::{ColumnPlace, Place, codes};
use arrow_array::cast::AsArray;
use arrow_array::types::{Float16Type, Float32Type, Float64Type, Int8Type, Int32Type, Int64Type, UInt8Type};
use arrow_array::{
    Array, ArrayRef, ArrowPrimitiveType, BinaryArray, BooleanArray, FixedSizeListArray, PrimitiveArray,
    StringArray,
};
use arrow_buffer::{
    ArrowNativeType, BooleanBuffer, Buffer, NullBuffer, OffsetBuffer, ScalarBuffer, ToByteSlice,
};
use arrow_schema::Field;
use std::sync::Arc;
use tidemill_spec::types::{ColumnType, ElementType};

/// A column to send: its description, whose places are set when it is written, and its buffers.
pub(crate) struct Sent {
    pub(crate) place: ColumnPlace,
    pub(crate) buffers: [Buffer; 3],
}

fn none() -> Buffer {
    Buffer::from(&[] as &[u8])
}

/// Returns the buffers of a column, from its first row to its last; `None` if it has another type.
pub(crate) fn sent(array: &ArrayRef, column_type: &ColumnType) -> Option<Sent> {
    let (first, second) = match column_type {
        ColumnType::Text => {
            let text = array.as_string_opt::<i32>()?;
            offsets(text.offsets(), text.values())
        }
        ColumnType::Image | ColumnType::Audio | ColumnType::Bytes => {
            let bytes = array.as_binary_opt::<i32>()?;
            offsets(bytes.offsets(), bytes.values())
        }
        ColumnType::Int64 => (values::<Int64Type>(array)?, none()),
        ColumnType::Float64 => (values::<Float64Type>(array)?, none()),
        ColumnType::Bool => (array.as_boolean_opt()?.values().sliced(), none()),
        ColumnType::Tensor { element, .. } => {
            let inner = array.as_fixed_size_list_opt()?.values();
            match element {
                ElementType::Float32 => (values::<Float32Type>(inner)?, none()),
                ElementType::Float16 => (values::<Float16Type>(inner)?, none()),
                ElementType::Float64 => (values::<Float64Type>(inner)?, none()),
                ElementType::Int64 => (values::<Int64Type>(inner)?, none()),
                ElementType::Int32 => (values::<Int32Type>(inner)?, none()),
                ElementType::Int8 => (values::<Int8Type>(inner)?, none()),
                ElementType::Uint8 => (values::<UInt8Type>(inner)?, none()),
                ElementType::Bool => (inner.as_boolean_opt()?.values().sliced(), none()),
                ElementType::Text => {
                    let text = inner.as_string_opt::<i32>()?;
                    offsets(text.offsets(), text.values())
                }
            }
        }
    };
    let nulls = array.nulls().filter(|nulls| nulls.null_count() > 0);
    let validity = nulls.map_or_else(none, |nulls| nulls.inner().sliced());
    let (code, element) = codes(column_type);
    let place = ColumnPlace {
        code,
        element,
        rows: array.len() as u64,
        nulls: nulls.map_or(0, |nulls| nulls.null_count() as u64),
        ..ColumnPlace::default()
    };
    Some(Sent { place, buffers: [validity, first, second] })
}

fn values<T: ArrowPrimitiveType>(array: &ArrayRef) -> Option<Buffer> {
    array.as_primitive_opt::<T>().map(|array| array.values().inner().clone())
}

/// Returns offsets from 0 on, with the data that they cover.
fn offsets(offsets: &OffsetBuffer<i32>, data: &Buffer) -> (Buffer, Buffer) {
    let [first, .., last] = offsets[..] else { return (Buffer::from_vec(vec![0i32]), none()) };
    let covered = data.slice_with_length(first as usize, (last - first) as usize);
    let own = match first {
        0 => offsets.inner().inner().clone(),
        first => Buffer::from_vec(offsets.iter().map(|offset| offset - first).collect::<Vec<i32>>()),
    };
    (own, covered)
}

/// Copies a column from the file of results.
///
/// # Errors
/// The finding in words, if it is not a column of this type.
pub(crate) fn received(
    results: &Results,
    column: &ColumnPlace,
    column_type: &ColumnType,
) -> Result<ArrayRef, String> {
    let (code, element) = codes(column_type);
    if (column.code, column.element) != (code, element) {
        return Err(format!("expected {column_type}, found a column of type {}", column.code));
    }
    let rows = usize::try_from(column.rows).map_err(|_| "it has too many rows".to_owned())?;
    let read = |place: Place| results.read(place).ok_or("a buffer lies outside of the results");
    let [validity, first, second] = column.buffers;
    let nulls = match column.nulls {
        0 => None,
        _ => Some(NullBuffer::new(bits(read(validity)?, rows)?)),
    };
    let first = read(first)?;
    Ok(match column_type {
        ColumnType::Text => {
            let data = read(second)?;
            let ends = ends(first, rows, data.len())?;
            Arc::new(StringArray::try_new(ends, data, nulls).map_err(words)?)
        }
        ColumnType::Image | ColumnType::Audio | ColumnType::Bytes => {
            let data = read(second)?;
            let ends = ends(first, rows, data.len())?;
            Arc::new(BinaryArray::try_new(ends, data, nulls).map_err(words)?)
        }
        ColumnType::Int64 => {
            Arc::new(PrimitiveArray::<Int64Type>::try_new(numbers(first, rows)?, nulls).map_err(words)?)
        }
        ColumnType::Float64 => {
            Arc::new(PrimitiveArray::<Float64Type>::try_new(numbers(first, rows)?, nulls).map_err(words)?)
        }
        ColumnType::Bool => Arc::new(BooleanArray::new(bits(first, rows)?, nulls)),
        ColumnType::Tensor { element, shape } => {
            let size = shape.iter().product::<usize>();
            let count = rows.checked_mul(size).ok_or("it has too many values")?;
            let values: ArrayRef = match element {
                ElementType::Float32 => primitive::<Float32Type>(first, count)?,
                ElementType::Float16 => primitive::<Float16Type>(first, count)?,
                ElementType::Int64 => primitive::<Int64Type>(first, count)?,
                ElementType::Uint8 => primitive::<UInt8Type>(first, count)?,
                ElementType::Float64 => primitive::<Float64Type>(first, count)?,
                ElementType::Int32 => primitive::<Int32Type>(first, count)?,
                ElementType::Int8 => primitive::<Int8Type>(first, count)?,
                ElementType::Bool => Arc::new(BooleanArray::new(bits(first, count)?, None)),
                ElementType::Text => {
                    let data = read(second)?;
                    let ends = ends(first, count, data.len())?;
                    Arc::new(StringArray::try_new(ends, data, None).map_err(words)?)
                }
            };
            let field = Arc::new(Field::new("item", values.data_type().clone(), false));
            Arc::new(
                FixedSizeListArray::try_new_with_length(field, size as i32, values, nulls, rows)
                    .map_err(words)?,
            )
        }
    })
}

/// Copies numbers of input rows.
pub(crate) fn origins(results: &Results, place: Place, rows: usize) -> Result<Vec<u32>, String> {
    let buffer = results.read(place).ok_or("the rows of origin lie outside of the results")?;
    Ok(numbers::<u32>(buffer, rows)?.to_vec())
}

fn words(error: arrow_schema::ArrowError) -> String {
    error.to_string()
}

fn too_short(found: usize, expected: usize) -> String {
    format!("a buffer has {found} bytes, expected {expected}")
}

fn bits(buffer: Buffer, rows: usize) -> Result<BooleanBuffer, String> {
    let expected = rows.div_ceil(8);
    if buffer.len() < expected {
        return Err(too_short(buffer.len(), expected));
    }
    Ok(BooleanBuffer::new(buffer, 0, rows))
}

fn numbers<T: ArrowNativeType + ToByteSlice>(
    buffer: Buffer,
    count: usize,
) -> Result<ScalarBuffer<T>, String> {
    let expected = count.checked_mul(size_of::<T>()).ok_or("it has too many values")?;
    if buffer.len() < expected {
        return Err(too_short(buffer.len(), expected));
    }
    // What was copied begins at a multiple of 16.
    Ok(ScalarBuffer::new(buffer, 0, count))
}

fn primitive<T: ArrowPrimitiveType>(buffer: Buffer, count: usize) -> Result<ArrayRef, String> {
    Ok(Arc::new(PrimitiveArray::<T>::try_new(numbers(buffer, count)?, None).map_err(words)?))
}

fn ends(buffer: Buffer, rows: usize, data: usize) -> Result<OffsetBuffer<i32>, String> {
    let ends = numbers::<i32>(buffer, rows.checked_add(1).ok_or("it has too many rows")?)?;
    let grow = ends.windows(2).all(|pair| pair[0] <= pair[1]);
    let (first, last) = (ends.first().copied().unwrap_or(0), ends.last().copied().unwrap_or(0));
    if !grow || first != 0 || last as usize > data {
        return Err(format!("its offsets go from {first} to {last} in {data} bytes, or decrease"));
    }
    Ok(OffsetBuffer::new(ends))
}
