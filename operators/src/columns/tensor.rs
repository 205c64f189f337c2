//! Tensors from JSON lists, and columns of them.
//!
//! A list has the shape of the type, as `[[1, 2], [3, 4]]` for `tensor<int64>[2, 2]`, or all values in one
//! list. While a record is read, its tensors are bytes: numbers in the order of bytes of this machine, bools
//! as one byte, texts with their length before them.
use crate::record::arrow_type;
use arrow_array::builder::StringBuilder;
use arrow_array::types::{
    ArrowPrimitiveType, Float16Type, Float32Type, Float64Type, Int8Type, Int32Type, Int64Type, UInt8Type,
};
use arrow_array::{ArrayRef, BooleanArray, FixedSizeListArray, PrimitiveArray};
use arrow_buffer::{BooleanBufferBuilder, Buffer, MutableBuffer, NullBufferBuilder, ScalarBuffer};
use arrow_schema::DataType;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use std::fmt;
use std::sync::Arc;
use tidemill_spec::types::{ColumnType, ElementType};

/// Most values of a tensor in a column that a source declares.
pub(crate) const MOST_VALUES: usize = 16 << 20;

/// Bytes of a number or bool; texts have no fixed width.
const fn width(element: ElementType) -> usize {
    match element {
        ElementType::Float64 | ElementType::Int64 => 8,
        ElementType::Float32 | ElementType::Int32 => 4,
        ElementType::Float16 => 2,
        ElementType::Int8 | ElementType::Uint8 | ElementType::Bool => 1,
        ElementType::Text => 0,
    }
}

/// Least bytes of memory that a row takes in a column of this type.
pub(crate) fn fixed_bytes(column_type: &ColumnType) -> usize {
    match column_type {
        ColumnType::Tensor { element, shape } => {
            // A text has an offset.
            shape.iter().product::<usize>().saturating_mul(width(*element).max(4))
        }
        _ => 0,
    }
}

/// Appends the bytes of a tensor that is written as a JSON list; an error is a message that follows the list,
/// and then nothing is appended.
pub(crate) fn read_list(
    json: &str,
    element: ElementType,
    shape: &[usize],
    bytes: &mut Vec<u8>,
) -> Result<(), String> {
    let start = bytes.len();
    let mut reader =
        Reader { element, shape, bytes: &mut *bytes, depth: 0, level: None, count: 0, wrong: None };
    let mut input = serde_json::Deserializer::from_str(json);
    let read = reader.by_ref().deserialize(&mut input).and_then(|()| input.end());
    let wrong = reader.wrong.take();
    let (count, level) = (reader.count, reader.level);
    let expected: usize = shape.iter().product();
    let written = || ColumnType::Tensor { element, shape: shape.to_vec() };
    let result = match (read, wrong) {
        (_, Some(wrong)) => Err(wrong),
        (Err(_), None) => Err(format!("is not {}", written())),
        (Ok(()), None) if level == Some(0) && !shape.is_empty() => Err(format!("is not {}", written())),
        (Ok(()), None) if count != expected => {
            Err(format!("has {count} values, {} needs {expected}", written()))
        }
        (Ok(()), None) if level.is_some_and(|level| level > 1 && level != shape.len()) => {
            Err(format!("has lists in lists {} deep, {} has {}", level.unwrap_or(0), written(), shape.len()))
        }
        (Ok(()), None) => Ok(()),
    };
    if result.is_err() {
        bytes.truncate(start);
    }
    result
}

/// Reads a list, or a value in it.
struct Reader<'a> {
    element: ElementType,
    shape: &'a [usize],
    bytes: &'a mut Vec<u8>,
    /// Lists around what is read next.
    depth: usize,
    /// Lists around each value.
    level: Option<usize>,
    /// Values so far.
    count: usize,
    wrong: Option<String>,
}

/// [`Reader`] for one value; serde takes its seeds by value.
struct Next<'b, 'a>(&'b mut Reader<'a>);

impl<'a> Reader<'a> {
    fn by_ref(&mut self) -> Next<'_, 'a> {
        Next(self)
    }

    /// Remembers what is wrong; the error of the parser only ends it.
    fn fail<E: Error>(&mut self, what: String) -> E {
        self.wrong.get_or_insert(what);
        E::custom("")
    }

    fn misfit<E: Error>(&mut self, value: &dyn fmt::Display) -> E {
        let what = format!("has {value} at position {}, which is not {}", self.count, self.element);
        self.fail(what)
    }

    fn too_large<E: Error>(&mut self, value: &dyn fmt::Display) -> E {
        let what =
            format!("has {value} at position {}, which does not fit into {}", self.count, self.element);
        self.fail(what)
    }

    /// Counts a value that was read.
    fn counted<E: Error>(&mut self) -> Result<(), E> {
        if *self.level.get_or_insert(self.depth) != self.depth {
            return Err(self.fail("has values and lists side by side".to_owned()));
        }
        self.count += 1;
        if self.count > self.shape.iter().product::<usize>() {
            let written = ColumnType::Tensor { element: self.element, shape: self.shape.to_vec() };
            let expected: usize = self.shape.iter().product();
            return Err(self.fail(format!("has more than {expected} values, {written} needs {expected}")));
        }
        Ok(())
    }

    fn whole<E: Error>(&mut self, value: i64) -> Result<(), E> {
        let fits = match self.element {
            ElementType::Int64 => {
                self.bytes.extend(value.to_ne_bytes());
                true
            }
            ElementType::Int32 => i32::try_from(value).map(|v| self.bytes.extend(v.to_ne_bytes())).is_ok(),
            ElementType::Int8 => i8::try_from(value).map(|v| self.bytes.extend(v.to_ne_bytes())).is_ok(),
            ElementType::Uint8 => u8::try_from(value).map(|v| self.bytes.push(v)).is_ok(),
            ElementType::Bool | ElementType::Text => return Err(self.misfit(&value)),
            _ => return self.float(value as f64),
        };
        if fits { self.counted() } else { Err(self.too_large(&value)) }
    }

    fn float<E: Error>(&mut self, value: f64) -> Result<(), E> {
        let fits = match self.element {
            ElementType::Float64 => {
                self.bytes.extend(value.to_ne_bytes());
                true
            }
            ElementType::Float32 => {
                self.bytes.extend((value as f32).to_ne_bytes());
                (value as f32).is_finite()
            }
            ElementType::Float16 => {
                let half = <Float16Type as ArrowPrimitiveType>::Native::from_f64(value);
                self.bytes.extend(half.to_ne_bytes());
                half.is_finite()
            }
            _ => return Err(self.misfit(&format_args!("{value:?}"))),
        };
        if fits { self.counted() } else { Err(self.too_large(&format_args!("{value:?}"))) }
    }
}

impl<'de> DeserializeSeed<'de> for Next<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Next<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let reader = self.0;
        let rank = reader.shape.len().max(1);
        if reader.depth >= rank {
            return Err(reader.fail(format!("has lists in lists more than {rank} deep")));
        }
        reader.depth += 1;
        let mut items = 0usize;
        while list.next_element_seed(reader.by_ref())?.is_some() {
            items += 1;
        }
        reader.depth -= 1;
        // Values in one list may have any shape; their number is checked at the end.
        let wanted = reader.shape.get(reader.depth).copied().unwrap_or(1);
        if items != wanted && reader.level.is_some_and(|level| level > 1) {
            let element = reader.element;
            let written = ColumnType::Tensor { element, shape: reader.shape.to_vec() };
            return Err(reader.fail(format!("has a list of {items}, {written} needs {wanted}")));
        }
        Ok(())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        self.0.whole(value)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        match i64::try_from(value) {
            Ok(value) => self.0.whole(value),
            Err(_) if self.0.element.is_float() => self.0.float(value as f64),
            Err(_) => Err(self.0.too_large(&value)),
        }
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
        self.0.float(value)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        if self.0.element != ElementType::Bool {
            return Err(self.0.misfit(&value));
        }
        self.0.bytes.push(u8::from(value));
        self.0.counted()
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<(), E> {
        if self.0.element != ElementType::Text {
            return Err(self.0.misfit(&"a text"));
        }
        self.0.bytes.extend((value.len() as u32).to_ne_bytes());
        self.0.bytes.extend(value.as_bytes());
        self.0.counted()
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        let position = self.0.count;
        Err(self.0.fail(format!("has an empty value (null) at position {position}, a tensor has none")))
    }

    fn visit_map<A: MapAccess<'de>>(self, _: A) -> Result<(), A::Error> {
        Err(self.0.misfit(&"an object"))
    }
}

/// Builds a column of tensors of one type.
pub(crate) struct TensorBuilder {
    column_type: ColumnType,
    element: ElementType,
    count: usize,
    values: Values,
    valid: NullBufferBuilder,
}

enum Values {
    Numbers(MutableBuffer),
    Bools(BooleanBufferBuilder),
    Texts(StringBuilder),
}

impl Values {
    fn of(element: ElementType) -> Self {
        match element {
            ElementType::Bool => Self::Bools(BooleanBufferBuilder::new(0)),
            ElementType::Text => Self::Texts(StringBuilder::new()),
            _ => Self::Numbers(MutableBuffer::new(0)),
        }
    }
}

impl TensorBuilder {
    pub(crate) fn new(element: ElementType, shape: &[usize], rows: usize) -> Self {
        let column_type = ColumnType::Tensor { element, shape: shape.to_vec() };
        let (count, valid) = (shape.iter().product(), NullBufferBuilder::new(rows));
        Self { column_type, element, count, values: Values::of(element), valid }
    }

    /// Appends the bytes of a tensor of this type; an error says that they are not.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<(), String> {
        let wrong = || format!("{} bytes are no {}", bytes.len(), self.column_type);
        match &mut self.values {
            Values::Texts(texts) => {
                let mut rest = bytes;
                let mut all = Vec::with_capacity(self.count);
                while let Some((length, behind)) = rest.split_first_chunk::<4>() {
                    let length = u32::from_ne_bytes(*length) as usize;
                    let (text, behind) = behind.split_at_checked(length).ok_or_else(wrong)?;
                    all.push(std::str::from_utf8(text).map_err(|_| wrong())?);
                    rest = behind;
                }
                if all.len() != self.count || !rest.is_empty() {
                    return Err(wrong());
                }
                all.into_iter().for_each(|text| texts.append_value(text));
            }
            _ if bytes.len() != self.count * width(self.element) => return Err(wrong()),
            Values::Numbers(numbers) => numbers.extend_from_slice(bytes),
            Values::Bools(bools) => bytes.iter().for_each(|byte| bools.append(*byte != 0)),
        }
        self.valid.append_non_null();
        Ok(())
    }

    pub(crate) fn append_null(&mut self) {
        match &mut self.values {
            Values::Texts(texts) => (0..self.count).for_each(|_| texts.append_value("")),
            Values::Numbers(numbers) => numbers.extend_zeros(self.count * width(self.element)),
            Values::Bools(bools) => bools.append_n(self.count, false),
        }
        self.valid.append_null();
    }

    /// The column; the next row is the first again.
    pub(crate) fn finish(&mut self) -> ArrayRef {
        fn numbers<T: ArrowPrimitiveType>(buffer: Buffer) -> ArrayRef {
            Arc::new(PrimitiveArray::<T>::new(ScalarBuffer::from(buffer), None))
        }
        let rows = self.valid.len();
        let values: ArrayRef = match std::mem::replace(&mut self.values, Values::of(self.element)) {
            Values::Texts(mut texts) => Arc::new(texts.finish()),
            Values::Bools(mut bools) => Arc::new(BooleanArray::new(bools.finish(), None)),
            Values::Numbers(bytes) => match self.element {
                ElementType::Float32 => numbers::<Float32Type>(bytes.into()),
                ElementType::Float16 => numbers::<Float16Type>(bytes.into()),
                ElementType::Float64 => numbers::<Float64Type>(bytes.into()),
                ElementType::Int64 => numbers::<Int64Type>(bytes.into()),
                ElementType::Int32 => numbers::<Int32Type>(bytes.into()),
                ElementType::Int8 => numbers::<Int8Type>(bytes.into()),
                _ => numbers::<UInt8Type>(bytes.into()),
            },
        };
        let valid = self.valid.finish();
        let DataType::FixedSizeList(field, count) = arrow_type(&self.column_type) else {
            return arrow_array::new_null_array(&arrow_type(&self.column_type), rows);
        };
        let lists = FixedSizeListArray::try_new_with_length(field, count, values, valid, rows);
        Arc::new(lists.expect("as many values as the rows need"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sinks::rows::tensor_text;
    use arrow_array::Array;

    fn read(column_type: &str, lists: &[&str]) -> (ArrayRef, Vec<String>) {
        let Some(ColumnType::Tensor { element, shape }) = ColumnType::named(column_type) else {
            panic!("{column_type} is a tensor")
        };
        let mut builder = TensorBuilder::new(element, &shape, 4);
        let (mut bytes, mut wrong) = (Vec::new(), Vec::new());
        for list in lists {
            bytes.clear();
            match read_list(list, element, &shape, &mut bytes) {
                Ok(()) => builder.append(&bytes).unwrap(),
                Err(why) => {
                    assert!(bytes.is_empty());
                    wrong.push(why);
                    builder.append_null();
                }
            }
        }
        let column = builder.finish();
        assert_eq!(*column.data_type(), arrow_type(&ColumnType::named(column_type).unwrap()));
        assert_eq!(column.null_count(), wrong.len());
        (column, wrong)
    }

    #[test]
    fn every_type_of_element_nested_and_flat() {
        for (element, values) in [
            ("float32", "[[0.1,-2.0],[3.5,1e30]]"),
            ("float16", "[[0.5,-2.0],[3.5,65504.0]]"),
            ("float64", "[[0.1,-2.0],[3.5,1e300]]"),
            ("int64", "[[0,-9223372036854775808],[7,9223372036854775807]]"),
            ("int32", "[[0,-2147483648],[7,2147483647]]"),
            ("int8", "[[0,-128],[7,127]]"),
            ("uint8", "[[0,1],[7,255]]"),
            ("bool", "[[true,false],[false,true]]"),
            ("text", "[[\"a\",\"\"],[\"é \\\"q\\\"\",\"long text\"]]"),
        ] {
            let flat = format!("[{}]", values.replace(['[', ']'], ""));
            let (column, wrong) = read(&format!("tensor<{element}>[2, 2]"), &[values, &flat, "null"]);
            assert_eq!(wrong.len(), 1, "{element}: {wrong:?}");
            for row in 0..2 {
                assert_eq!(
                    tensor_text(&column, row, &[2, 2]).replace("1e+30", "1e30").replace("1e+300", "1e300"),
                    values
                );
            }
            assert!(column.is_null(2));
        }
    }

    #[test]
    fn what_does_not_fit_is_said() {
        for (column_type, list, message) in [
            ("tensor<float32>[8]", "[1,2,3]", "has 3 values, tensor<float32>[8] needs 8"),
            ("tensor<float32>[2]", "[1,2,3]", "has more than 2 values, tensor<float32>[2] needs 2"),
            ("tensor<float32>[2]", "[1,null]", "has an empty value (null) at position 1, a tensor has none"),
            ("tensor<float32>[2]", "[1,\"2\"]", "has a text at position 1, which is not float32"),
            ("tensor<float32>[2]", "[1,1e40]", "has 1e40 at position 1, which does not fit into float32"),
            ("tensor<float16>[2]", "[1,70000]", "has 70000.0 at position 1, which does not fit into float16"),
            ("tensor<int64>[2]", "[1,2.0]", "has 2.0 at position 1, which is not int64"),
            ("tensor<uint8>[2]", "[-1,2]", "has -1 at position 0, which does not fit into uint8"),
            ("tensor<int8>[1]", "[128]", "has 128 at position 0, which does not fit into int8"),
            ("tensor<int64>[1]", "[9223372036854775808]", "does not fit into int64"),
            ("tensor<bool>[1]", "[1]", "has 1 at position 0, which is not bool"),
            ("tensor<text>[1]", "[true]", "has true at position 0, which is not text"),
            ("tensor<text>[1]", "[{}]", "has an object at position 0, which is not text"),
            ("tensor<int64>[2, 2]", "[[1,2,3],[4]]", "has a list of 3, tensor<int64>[2, 2] needs 2"),
            ("tensor<int64>[2, 2]", "[[1,2],3,4]", "has values and lists side by side"),
            ("tensor<int64>[2, 2]", "[[[1,2,3,4]]]", "has lists in lists more than 2 deep"),
            ("tensor<int64>[4]", "[[1,2],[3,4]]", "has lists in lists more than 1 deep"),
            ("tensor<int64>[2, 2]", "[[1,2]]", "has a list of 1, tensor<int64>[2, 2] needs 2"),
            ("tensor<int64>[2, 2, 1]", "[[1,2],[3,4]]", "has lists in lists 2 deep"),
            ("tensor<int64>[2]", "[1,2", "is not tensor<int64>[2]"),
        ] {
            let (_, wrong) = read(column_type, &[list]);
            assert!(
                wrong.first().is_some_and(|why| why.contains(message)),
                "{column_type} {list}: {wrong:?}"
            );
        }
        let (column, wrong) = read("tensor<int64>[0]", &["[]"]);
        assert_eq!((column.len(), wrong.len()), (1, 0));
    }
}
