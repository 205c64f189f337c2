//! Dense row-major tensors of the element types that models read and write.
//!
//! ```
//! use tidemill_inference::tensor::{Tensor, TensorData};
//! let t = Tensor::new(vec![2, 3], TensorData::Float32(vec![0.0; 6])).unwrap();
//! assert_eq!(t.to_string(), "float32 [2, 3]");
//! assert!(Tensor::new(vec![2, 3], TensorData::Float32(vec![0.0; 5])).is_err());
//! ```
use crate::postprocess::scores;
use half::f16;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use tidemill_spec::types::ElementType;

/// The values of a tensor, last dimension fastest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum TensorData {
    /// 32-bit floats.
    Float32(Vec<f32>),
    /// 16-bit floats.
    #[serde(with = "bits")]
    Float16(Vec<f16>),
    /// 64-bit floats.
    Float64(Vec<f64>),
    /// 64-bit integers.
    Int64(Vec<i64>),
    /// 32-bit integers.
    Int32(Vec<i32>),
    /// 8-bit integers with a sign.
    Int8(Vec<i8>),
    /// Bytes.
    Uint8(Vec<u8>),
    /// Truth values.
    Bool(Vec<bool>),
    /// Texts.
    Text(Vec<String>),
}

/// 16-bit floats as their bits.
mod bits {
    use half::f16;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(values: &[f16], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(values.iter().map(|value| value.to_bits()))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<f16>, D::Error> {
        let bits = Vec::<u16>::deserialize(from)?;
        Ok(bits.into_iter().map(f16::from_bits).collect())
    }
}

/// Applies an expression to the values, of any element type.
macro_rules! with_values {
    ($data:expr, $values:ident => $what:expr) => {
        match $data {
            TensorData::Float32($values) => $what,
            TensorData::Float16($values) => $what,
            TensorData::Float64($values) => $what,
            TensorData::Int64($values) => $what,
            TensorData::Int32($values) => $what,
            TensorData::Int8($values) => $what,
            TensorData::Uint8($values) => $what,
            TensorData::Bool($values) => $what,
            TensorData::Text($values) => $what,
        }
    };
}

impl TensorData {
    /// Number of values.
    pub fn len(&self) -> usize {
        with_values!(self, values => values.len())
    }

    /// Returns whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Type of the values.
    pub fn element(&self) -> ElementType {
        match self {
            TensorData::Float32(_) => ElementType::Float32,
            TensorData::Float16(_) => ElementType::Float16,
            TensorData::Float64(_) => ElementType::Float64,
            TensorData::Int64(_) => ElementType::Int64,
            TensorData::Int32(_) => ElementType::Int32,
            TensorData::Int8(_) => ElementType::Int8,
            TensorData::Uint8(_) => ElementType::Uint8,
            TensorData::Bool(_) => ElementType::Bool,
            TensorData::Text(_) => ElementType::Text,
        }
    }

    /// `length` zeros of a type.
    pub fn zeros(element: ElementType, length: usize) -> Self {
        Self::filled(element, length, 0.0)
    }

    /// `length` copies of a value, rounded to the type. Texts are empty.
    pub fn filled(element: ElementType, length: usize, value: f64) -> Self {
        match element {
            ElementType::Float32 => TensorData::Float32(vec![value as f32; length]),
            ElementType::Float16 => TensorData::Float16(vec![f16::from_f64(value); length]),
            ElementType::Float64 => TensorData::Float64(vec![value; length]),
            ElementType::Int64 => TensorData::Int64(vec![value as i64; length]),
            ElementType::Int32 => TensorData::Int32(vec![value as i32; length]),
            ElementType::Int8 => TensorData::Int8(vec![value as i8; length]),
            ElementType::Uint8 => TensorData::Uint8(vec![value as u8; length]),
            ElementType::Bool => TensorData::Bool(vec![value != 0.0; length]),
            ElementType::Text => TensorData::Text(vec![String::new(); length]),
        }
    }

    /// Copies a part of the values.
    ///
    /// # Panics
    /// If the range exceeds them.
    pub fn part(&self, range: std::ops::Range<usize>) -> Self {
        match self {
            TensorData::Float32(values) => TensorData::Float32(values[range].to_vec()),
            TensorData::Float16(values) => TensorData::Float16(values[range].to_vec()),
            TensorData::Float64(values) => TensorData::Float64(values[range].to_vec()),
            TensorData::Int64(values) => TensorData::Int64(values[range].to_vec()),
            TensorData::Int32(values) => TensorData::Int32(values[range].to_vec()),
            TensorData::Int8(values) => TensorData::Int8(values[range].to_vec()),
            TensorData::Uint8(values) => TensorData::Uint8(values[range].to_vec()),
            TensorData::Bool(values) => TensorData::Bool(values[range].to_vec()),
            TensorData::Text(values) => TensorData::Text(values[range].to_vec()),
        }
    }

    /// Copies the values at these places.
    ///
    /// # Panics
    /// If there is no such place.
    #[must_use]
    pub fn picked(&self, places: &[usize]) -> Self {
        fn all<T: Clone>(values: &[T], places: &[usize]) -> Vec<T> {
            places.iter().map(|place| values[*place].clone()).collect()
        }
        match self {
            TensorData::Float32(values) => TensorData::Float32(all(values, places)),
            TensorData::Float16(values) => TensorData::Float16(all(values, places)),
            TensorData::Float64(values) => TensorData::Float64(all(values, places)),
            TensorData::Int64(values) => TensorData::Int64(all(values, places)),
            TensorData::Int32(values) => TensorData::Int32(all(values, places)),
            TensorData::Int8(values) => TensorData::Int8(all(values, places)),
            TensorData::Uint8(values) => TensorData::Uint8(all(values, places)),
            TensorData::Bool(values) => TensorData::Bool(all(values, places)),
            TensorData::Text(values) => TensorData::Text(all(values, places)),
        }
    }

    /// Keeps the first `length` values.
    pub fn truncate(&mut self, length: usize) {
        with_values!(self, values => values.truncate(length));
    }

    /// Appends the values of another of the same type.
    ///
    /// # Errors
    /// [`ShapeError`] if the types differ.
    pub fn append(&mut self, more: TensorData) -> Result<(), ShapeError> {
        match (self, more) {
            (TensorData::Float32(all), TensorData::Float32(more)) => all.extend(more),
            (TensorData::Float16(all), TensorData::Float16(more)) => all.extend(more),
            (TensorData::Float64(all), TensorData::Float64(more)) => all.extend(more),
            (TensorData::Int64(all), TensorData::Int64(more)) => all.extend(more),
            (TensorData::Int32(all), TensorData::Int32(more)) => all.extend(more),
            (TensorData::Int8(all), TensorData::Int8(more)) => all.extend(more),
            (TensorData::Uint8(all), TensorData::Uint8(more)) => all.extend(more),
            (TensorData::Bool(all), TensorData::Bool(more)) => all.extend(more),
            (TensorData::Text(all), TensorData::Text(more)) => all.extend(more),
            (all, more) => {
                return Err(ShapeError {
                    message: format!("{} values cannot follow {} values", more.element(), all.element()),
                });
            }
        }
        Ok(())
    }

    /// Converts numbers and truth values to 32-bit floats, as steps compute with them; texts stay.
    #[must_use]
    pub fn into_f32(self) -> Self {
        fn floats<T>(values: Vec<T>, float: impl Fn(T) -> f32) -> TensorData {
            TensorData::Float32(values.into_iter().map(float).collect())
        }
        match self {
            TensorData::Float16(values) => floats(values, f16::to_f32),
            TensorData::Float64(values) => floats(values, |value| value as f32),
            TensorData::Int64(values) => floats(values, |value| value as f32),
            TensorData::Int32(values) => floats(values, |value| value as f32),
            TensorData::Int8(values) => floats(values, f32::from),
            TensorData::Uint8(values) => floats(values, f32::from),
            TensorData::Bool(values) => floats(values, |value| f32::from(u8::from(value))),
            same @ (TensorData::Float32(_) | TensorData::Text(_)) => same,
        }
    }

    /// Converts numbers and truth values to the floats in which steps compute: 64 bits if 32 cannot hold each of them, else
    /// 32; texts stay.
    #[must_use]
    pub fn computable(self) -> Self {
        match self {
            same @ TensorData::Float64(_) => same,
            wide @ (TensorData::Int64(_) | TensorData::Int32(_)) => TensorData::Float64(wide.to_f64()),
            other => other.into_f32(),
        }
    }

    /// Converts 32-bit floats to 16 bits if they were computed from values of that type; other values stay.
    #[must_use]
    pub fn narrowed(self, from: ElementType) -> Self {
        match self {
            TensorData::Float32(values) if from == ElementType::Float16 => {
                TensorData::Float16(values.into_iter().map(f16::from_f32).collect())
            }
            same => same,
        }
    }

    /// Positions of the largest of each `width` values, see [`scores::argmax`].
    pub(crate) fn largest(&self, width: usize) -> Vec<usize> {
        with_values!(self, values => values.chunks_exact(width.max(1)).map(scores::argmax).collect())
    }

    /// Positions of the `k` largest of each `width` values, see [`scores::top`].
    pub(crate) fn tops(&self, width: usize, k: usize) -> Vec<Vec<usize>> {
        with_values!(self, values => values.chunks_exact(width.max(1)).map(|row| scores::top(row, k)).collect())
    }

    /// The values as 64-bit floats. Texts become numbers that differ if they differ, to be compared only.
    pub fn to_f64(&self) -> Vec<f64> {
        match self {
            TensorData::Float32(values) => values.iter().map(|value| f64::from(*value)).collect(),
            TensorData::Float16(values) => values.iter().map(|value| value.to_f64()).collect(),
            TensorData::Float64(values) => values.clone(),
            TensorData::Int64(values) => values.iter().map(|value| *value as f64).collect(),
            TensorData::Int32(values) => values.iter().map(|value| f64::from(*value)).collect(),
            TensorData::Int8(values) => values.iter().map(|value| f64::from(*value)).collect(),
            TensorData::Uint8(values) => values.iter().map(|value| f64::from(*value)).collect(),
            TensorData::Bool(values) => values.iter().map(|value| f64::from(u8::from(*value))).collect(),
            TensorData::Text(values) => {
                let number = |text: &String| {
                    let mut hasher = DefaultHasher::new();
                    text.hash(&mut hasher);
                    hasher.finish() as f64
                };
                values.iter().map(number).collect()
            }
        }
    }

    /// Appends a number, converted to the type: floats are rounded, whole numbers saturate. Texts get its digits.
    pub fn push(&mut self, value: f64) {
        match self {
            TensorData::Float32(values) => values.push(value as f32),
            TensorData::Float16(values) => values.push(f16::from_f64(value)),
            TensorData::Float64(values) => values.push(value),
            TensorData::Int64(values) => values.push(value as i64),
            TensorData::Int32(values) => values.push(value as i32),
            TensorData::Int8(values) => values.push(value as i8),
            TensorData::Uint8(values) => values.push(value as u8),
            TensorData::Bool(values) => values.push(value != 0.0),
            TensorData::Text(values) => values.push(value.to_string()),
        }
    }
}

/// Values that do not fit a shape.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ShapeError {
    /// Expected and found.
    pub message: String,
}

/// A tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    shape: Vec<usize>,
    data: TensorData,
}

impl Tensor {
    /// A tensor of this shape and these values.
    ///
    /// # Errors
    /// [`ShapeError`] if the number of values is not the product of the shape.
    pub fn new(shape: Vec<usize>, data: TensorData) -> Result<Self, ShapeError> {
        let wanted =
            shape.iter().try_fold(1usize, |product, size| product.checked_mul(*size)).unwrap_or(usize::MAX);
        if wanted != data.len() {
            return Err(ShapeError {
                message: format!("shape {shape:?} needs {wanted} values, found {}", data.len()),
            });
        }
        Ok(Self { shape, data })
    }

    /// A tensor of zeros.
    pub fn zeros(element: ElementType, shape: Vec<usize>) -> Self {
        let length = shape.iter().product();
        Self { shape, data: TensorData::zeros(element, length) }
    }

    /// The dimensions; the first is the batch.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The values.
    pub fn data(&self) -> &TensorData {
        &self.data
    }

    /// Returns the values.
    pub fn into_data(self) -> TensorData {
        self.data
    }

    /// The values, if they are floats.
    pub fn as_f32(&self) -> Option<&[f32]> {
        match &self.data {
            TensorData::Float32(values) => Some(values),
            _ => None,
        }
    }

    /// The values, if they are integers.
    pub fn as_i64(&self) -> Option<&[i64]> {
        match &self.data {
            TensorData::Int64(values) => Some(values),
            _ => None,
        }
    }

    /// Size of the first dimension; 1 for a scalar.
    pub fn rows(&self) -> usize {
        self.shape.first().copied().unwrap_or(1)
    }

    /// Row `row` of the first dimension as a tensor with a first dimension of 1.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&self, row: usize) -> Tensor {
        let width = self.data.len() / self.rows().max(1);
        let range = row * width..(row + 1) * width;
        let data = self.data.part(range);
        let mut shape = self.shape.clone();
        if let Some(first) = shape.first_mut() {
            *first = 1;
        }
        Tensor { shape, data }
    }

    /// Puts tensors one after another along the first dimension.
    ///
    /// # Errors
    /// [`ShapeError`] if there is none, or their types or other dimensions differ.
    pub fn concatenate(parts: Vec<Tensor>) -> Result<Tensor, ShapeError> {
        let mut parts = parts.into_iter();
        let Some(mut all) = parts.next() else {
            return Err(ShapeError { message: "there is nothing to concatenate".to_owned() });
        };
        for part in parts {
            if part.shape.is_empty() || part.shape.get(1..) != all.shape.get(1..) {
                return Err(ShapeError {
                    message: format!("rows of shape {:?} cannot follow {:?}", part.shape, all.shape),
                });
            }
            all.shape[0] += part.shape[0];
            all.data.append(part.data)?;
        }
        Ok(all)
    }
}

impl Tensor {
    /// The same values with another shape.
    ///
    /// # Errors
    /// [`ShapeError`] if it has another number of values.
    pub fn reshaped(self, shape: Vec<usize>) -> Result<Self, ShapeError> {
        Self::new(shape, self.data)
    }

    /// Moves dimension `from` to the place `to`; the order of the others stays.
    ///
    /// # Panics
    /// If there are no such dimensions.
    #[must_use]
    pub fn moved(self, from: usize, to: usize) -> Self {
        if from == to {
            return self;
        }
        let mut order: Vec<usize> = (0..self.shape.len()).collect();
        let axis = order.remove(from);
        order.insert(to, axis);
        let shape: Vec<usize> = order.iter().map(|axis| self.shape[*axis]).collect();
        let mut strides = vec![1; self.shape.len()];
        for axis in (0..self.shape.len().saturating_sub(1)).rev() {
            strides[axis] = strides[axis + 1] * self.shape[axis + 1];
        }
        let strides: Vec<usize> = order.iter().map(|axis| strides[*axis]).collect();
        let mut places = Vec::with_capacity(self.data.len());
        let mut index = vec![0; shape.len()];
        for _ in 0..self.data.len() {
            places.push(index.iter().zip(&strides).map(|(index, stride)| index * stride).sum());
            for axis in (0..shape.len()).rev() {
                index[axis] += 1;
                if index[axis] < shape[axis] {
                    break;
                }
                index[axis] = 0;
            }
        }
        Self { shape, data: self.data.picked(&places) }
    }
}

impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.data.element(), self.shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_apart_and_together_again() {
        let t = Tensor::new(vec![2, 2], TensorData::Int64(vec![1, 2, 3, 4])).unwrap();
        assert_eq!(t.row(1).as_i64(), Some([3, 4].as_slice()));
        assert_eq!(t.row(1).shape(), [1, 2]);
        assert_eq!(Tensor::concatenate(vec![t.row(0), t.row(1)]).unwrap(), t);
    }

    #[test]
    fn dimensions_are_moved() {
        let values = TensorData::Int64((0..24).collect());
        let t = Tensor::new(vec![2, 3, 4], values).unwrap();
        let moved = t.clone().moved(1, 0);
        assert_eq!(moved.shape(), [3, 2, 4]);
        assert_eq!(moved.as_i64().unwrap()[..8], [0, 1, 2, 3, 12, 13, 14, 15]);
        assert_eq!(moved.moved(0, 1), t);
        assert_eq!(t.clone().moved(2, 0).as_i64().unwrap()[..6], [0, 4, 8, 12, 16, 20]);
    }

    #[test]
    fn rows_that_differ_are_refused() {
        let ints = Tensor::zeros(ElementType::Int64, vec![1, 2]);
        let floats = Tensor::zeros(ElementType::Float32, vec![1, 2]);
        let wide = Tensor::zeros(ElementType::Int64, vec![1, 3]);
        assert!(Tensor::concatenate(vec![ints.clone(), floats]).is_err());
        assert!(Tensor::concatenate(vec![ints, wide]).is_err());
        assert!(Tensor::concatenate(vec![]).is_err());
    }
}
