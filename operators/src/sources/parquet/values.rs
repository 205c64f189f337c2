//! Values of Arrow columns as values of declared columns, and which types fit.
use crate::record::element_type;
use crate::relational::expression::Cell;
use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef};
use arrow_schema::DataType;
use std::ops::Range;
use tidemill_spec::types::{ColumnType, ElementType};

/// Whether a column of the file can be read as a declared type; an error is the declaration that would fit,
/// if there is one.
pub(super) fn fits(found: &DataType, declared: &ColumnType) -> Result<(), Option<String>> {
    let fits = match declared {
        ColumnType::Int64 => whole_bits(found).is_some(),
        ColumnType::Float64 => {
            float_bits(found).is_some() || whole_bits(found).is_some_and(|bits| bits <= 54)
        }
        ColumnType::Bool => *found == DataType::Boolean,
        ColumnType::Text => is_text(found),
        ColumnType::Tensor { element, shape } => {
            let (mut item, mut depth) = (found, 0);
            while let Some(inner) = item_of(item) {
                (item, depth) = (inner, depth + 1);
            }
            // A list of all values in their order, as the sink writes it, has any shape.
            (depth == shape.len().max(1) || depth == 1) && holds(*element, item)
        }
        _ => false,
    };
    if fits { Ok(()) } else { Err(declaration(found)) }
}

/// Type of the items of a list.
fn item_of(list: &DataType) -> Option<&DataType> {
    match list {
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            Some(item.data_type())
        }
        _ => None,
    }
}

/// The type with which a column can be declared.
fn declaration(found: &DataType) -> Option<String> {
    match found {
        DataType::Boolean => Some("bool".into()),
        found if is_text(found) => Some("text".into()),
        found if whole_bits(found).is_some() => Some("int64".into()),
        found if float_bits(found).is_some() => Some("float64".into()),
        found => {
            let item = item_of(found)?;
            let wider = [ElementType::Int32, ElementType::Int64, ElementType::Float64];
            let element =
                element_type(item).or_else(|| wider.into_iter().find(|element| holds(*element, item)))?;
            let length = match found {
                DataType::FixedSizeList(_, length) => length.to_string(),
                _ => "LENGTH".into(),
            };
            Some(format!("tensor<{element}>[{length}]"))
        }
    }
}

fn is_text(found: &DataType) -> bool {
    matches!(found, DataType::Utf8 | DataType::LargeUtf8)
}

/// Bits of whole numbers; one more without a sign, which a signed type needs for them.
fn whole_bits(found: &DataType) -> Option<u32> {
    Some(match found {
        DataType::Int8 => 8,
        DataType::UInt8 => 9,
        DataType::Int16 => 16,
        DataType::UInt16 => 17,
        DataType::Int32 => 32,
        DataType::UInt32 => 33,
        DataType::Int64 | DataType::UInt64 => 64,
        _ => return None,
    })
}

fn float_bits(found: &DataType) -> Option<u32> {
    Some(match found {
        DataType::Float16 => 16,
        DataType::Float32 => 32,
        DataType::Float64 => 64,
        _ => return None,
    })
}

/// Whether each value of a type is one of tensors with these elements.
fn holds(element: ElementType, found: &DataType) -> bool {
    let whole = |most: u32| whole_bits(found).is_some_and(|bits| bits <= most && *found != DataType::UInt64);
    // A float holds whole numbers of the bits of its fraction, and of one more with a sign.
    let float = |most: u32, exact: u32| float_bits(found).is_some_and(|bits| bits <= most) || whole(exact);
    match element {
        ElementType::Float64 => float(64, 54),
        ElementType::Float32 => float(32, 25),
        ElementType::Float16 => float(16, 12),
        ElementType::Int64 => whole(64),
        ElementType::Int32 => whole(32),
        ElementType::Int8 => whole(8),
        ElementType::Uint8 => *found == DataType::UInt8,
        ElementType::Bool => *found == DataType::Boolean,
        ElementType::Text => is_text(found),
    }
}

/// The value of a row; `bytes` holds that of a tensor. An error is a message that follows the name of the
/// column.
pub(super) fn cell<'a>(
    array: &'a ArrayRef,
    row: usize,
    declared: &ColumnType,
    bytes: &'a mut Vec<u8>,
) -> Result<Cell<'a>, String> {
    if array.is_null(row) {
        return Ok(Cell::Null);
    }
    Ok(match declared {
        ColumnType::Int64 => match array.as_primitive_opt::<UInt64Type>() {
            Some(large) => Cell::Int(
                i64::try_from(large.value(row))
                    .map_err(|_| format!("{} does not fit into int64", large.value(row)))?,
            ),
            None => Cell::Int(whole(array, row)),
        },
        ColumnType::Float64 => Cell::Float(float(array, row)),
        ColumnType::Bool => Cell::Bool(array.as_boolean().value(row)),
        ColumnType::Tensor { element, shape } => {
            let all = [shape.iter().product::<usize>()];
            let is_flat = item_of(array.data_type()).is_some_and(|item| item_of(item).is_none());
            let shape_of_lists = if is_flat { &all[..] } else { shape.as_slice() };
            let (values, range) = span(array, row..row + 1, shape_of_lists)?;
            bytes.clear();
            for place in range {
                encode(&values, place, *element, bytes);
            }
            Cell::Tensor(bytes)
        }
        _ => Cell::Text(text(array, row)),
    })
}

/// The values of lists of one shape that follow each other.
fn span(lists: &ArrayRef, rows: Range<usize>, shape: &[usize]) -> Result<(ArrayRef, Range<usize>), String> {
    let Some((length, inner)) = shape.split_first() else {
        if let Some(place) = rows.clone().find(|place| lists.is_null(*place)) {
            return Err(format!(
                "has an empty value (null) at position {}, a tensor has none",
                place - rows.start
            ));
        }
        return Ok((ArrayRef::clone(lists), rows));
    };
    let (mut from, mut to) = (None, 0);
    for row in rows {
        if lists.is_null(row) {
            return Err("has an empty value (null) in place of a list, a tensor has none".into());
        }
        let part = if let Some(lists) = lists.as_list_opt::<i32>() {
            lists.value_offsets()[row] as usize..lists.value_offsets()[row + 1] as usize
        } else if let Some(lists) = lists.as_list_opt::<i64>() {
            lists.value_offsets()[row] as usize..lists.value_offsets()[row + 1] as usize
        } else {
            let lists = lists.as_fixed_size_list();
            lists.value_offset_at(row)..lists.value_offset_at(row) + lists.value_length() as usize
        };
        if part.len() != *length {
            return Err(format!("has a list of length {} in place of {length}", part.len()));
        }
        from.get_or_insert(part.start);
        to = part.end;
    }
    let values = if let Some(lists) = lists.as_list_opt::<i32>() {
        lists.values()
    } else if let Some(lists) = lists.as_list_opt::<i64>() {
        lists.values()
    } else {
        lists.as_fixed_size_list().values()
    };
    let range = from.unwrap_or(0)..to.max(from.unwrap_or(0));
    span(values, range, inner)
}

/// Appends a value as the bytes of an element.
fn encode(values: &ArrayRef, place: usize, element: ElementType, bytes: &mut Vec<u8>) {
    match element {
        ElementType::Float64 => bytes.extend(float(values, place).to_ne_bytes()),
        ElementType::Float32 => bytes.extend((float(values, place) as f32).to_ne_bytes()),
        ElementType::Float16 => {
            let half = <Float16Type as ArrowPrimitiveType>::Native::from_f64(float(values, place));
            bytes.extend(half.to_ne_bytes());
        }
        ElementType::Int64 => bytes.extend(whole(values, place).to_ne_bytes()),
        ElementType::Int32 => bytes.extend((whole(values, place) as i32).to_ne_bytes()),
        ElementType::Int8 => bytes.extend((whole(values, place) as i8).to_ne_bytes()),
        ElementType::Uint8 => bytes.push(whole(values, place) as u8),
        ElementType::Bool => bytes.push(u8::from(values.as_boolean().value(place))),
        ElementType::Text => {
            let text = text(values, place);
            bytes.extend((text.len() as u32).to_ne_bytes());
            bytes.extend(text.as_bytes());
        }
    }
}

fn text(values: &ArrayRef, place: usize) -> &str {
    match values.as_string_opt::<i32>() {
        Some(texts) => texts.value(place),
        None => values.as_string::<i64>().value(place),
    }
}

/// A whole number of any width that int64 holds.
fn whole(values: &ArrayRef, place: usize) -> i64 {
    match values.data_type() {
        DataType::Int8 => values.as_primitive::<Int8Type>().value(place).into(),
        DataType::UInt8 => values.as_primitive::<UInt8Type>().value(place).into(),
        DataType::Int16 => values.as_primitive::<Int16Type>().value(place).into(),
        DataType::UInt16 => values.as_primitive::<UInt16Type>().value(place).into(),
        DataType::Int32 => values.as_primitive::<Int32Type>().value(place).into(),
        DataType::UInt32 => values.as_primitive::<UInt32Type>().value(place).into(),
        _ => values.as_primitive::<Int64Type>().value(place),
    }
}

/// A number that float64 holds.
fn float(values: &ArrayRef, place: usize) -> f64 {
    match values.data_type() {
        DataType::Float16 => values.as_primitive::<Float16Type>().value(place).to_f64(),
        DataType::Float32 => values.as_primitive::<Float32Type>().value(place).into(),
        DataType::Float64 => values.as_primitive::<Float64Type>().value(place),
        _ => whole(values, place) as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::builder::{LargeListBuilder, ListBuilder, StringBuilder, UInt8Builder};
    use arrow_schema::Field;
    use std::sync::Arc;

    #[test]
    fn types_that_hold_all_values_fit() {
        let list = |item: DataType| DataType::List(Arc::new(Field::new("item", item, true)));
        let named = |name: &str| ColumnType::named(name).unwrap();
        for (found, declared, expected) in [
            (DataType::UInt32, "int64", Ok(())),
            (DataType::Int64, "float64", Err(Some("int64"))),
            (DataType::Float16, "float64", Ok(())),
            (DataType::Float64, "int64", Err(Some("float64"))),
            (DataType::LargeUtf8, "text", Ok(())),
            (DataType::Binary, "text", Err(None)),
            (list(DataType::Float16), "tensor<float32>[3]", Ok(())),
            (list(DataType::Float64), "tensor<float32>[3]", Err(Some("tensor<float64>[LENGTH]"))),
            (list(DataType::UInt8), "tensor<int8>[3]", Err(Some("tensor<uint8>[LENGTH]"))),
            (list(DataType::UInt8), "tensor<float16>[3]", Ok(())),
            (list(DataType::Int16), "tensor<float16>[3]", Err(Some("tensor<int32>[LENGTH]"))),
            (list(DataType::Int16), "tensor<float32>[3]", Ok(())),
            (list(DataType::Int32), "tensor<float32>[3]", Err(Some("tensor<int32>[LENGTH]"))),
            (list(DataType::UInt64), "tensor<int64>[3]", Err(None)),
            (list(list(DataType::Int8)), "tensor<int32>[2, 3]", Ok(())),
            (list(list(DataType::Int8)), "tensor<int32>[6]", Err(None)),
            (list(DataType::Utf8), "tensor<text>[2]", Ok(())),
        ] {
            let expected = expected.map_err(|help| help.map(str::to_owned));
            assert_eq!(fits(&found, &named(declared)), expected, "{found} as {declared}");
        }
    }

    #[test]
    fn lists_of_every_kind() {
        let mut large = LargeListBuilder::new(ListBuilder::new(UInt8Builder::new()));
        for outer in [&[[1u8, 2], [3, 4]][..], &[[5, 6]]] {
            outer
                .iter()
                .for_each(|inner| large.values().append_value(inner.iter().map(|value| Some(*value))));
            large.append(true);
        }
        large.append(false);
        let large: ArrayRef = Arc::new(large.finish());
        let declared = ColumnType::named("tensor<int64>[2, 2]").unwrap();
        let mut bytes = Vec::new();
        let expected: Vec<u8> = [1i64, 2, 3, 4].iter().flat_map(|value| value.to_ne_bytes()).collect();
        assert_eq!(cell(&large, 0, &declared, &mut bytes), Ok(Cell::Tensor(&expected)));
        let why = cell(&large, 1, &declared, &mut bytes).unwrap_err();
        assert_eq!(why, "has a list of length 1 in place of 2");
        assert_eq!(cell(&large, 2, &declared, &mut bytes), Ok(Cell::Null));
        let mut texts = ListBuilder::new(StringBuilder::new());
        texts.append_value([Some("a"), None]);
        let texts: ArrayRef = Arc::new(texts.finish());
        let why = cell(&texts, 0, &ColumnType::named("tensor<text>[2]").unwrap(), &mut bytes).unwrap_err();
        assert_eq!(why, "has an empty value (null) at position 1, a tensor has none");
    }
}
