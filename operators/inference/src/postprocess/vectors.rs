//! Steps on each vector of a tensor, and those that move or choose values.
//!
//! ```
//! use tidemill_inference::postprocess::vectors::VectorStep;
//! use tidemill_inference::tensor::TensorData;
//! let mut shape = vec![3];
//! let values = TensorData::Int64(vec![1, 2, 3, 4, 5, 6]);
//! assert_eq!(VectorStep::Pick(1).apply(values, &mut shape), TensorData::Int64(vec![2, 5]));
//! assert!(shape.is_empty());
//! ```
use super::scores::{Real, l2_norm, sigmoid, softmax};
use crate::tensor::TensorData;

/// A step on each vector of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VectorStep {
    /// Probabilities over the last dimension.
    Softmax,
    /// The logistic function of each value.
    Sigmoid,
    /// Division by the Euclidean length.
    L2Norm,
    /// Exchange of the last two dimensions.
    Transpose,
    /// One place of the first dimension, which must have it.
    Pick(usize),
}

impl VectorStep {
    /// Whether the step computes, and does not only move or choose values.
    pub fn computes(self) -> bool {
        matches!(self, Self::Softmax | Self::Sigmoid | Self::L2Norm)
    }

    /// Applies the step to all rows of this shape, and changes the shape. Steps that compute give floats, see
    /// [`TensorData::computable`].
    pub fn apply(self, data: TensorData, shape: &mut Vec<usize>) -> TensorData {
        let width = shape.last().copied().unwrap_or(1);
        match self {
            Self::Transpose => match shape.as_mut_slice() {
                [.., a, b] => {
                    let (rows, columns) = (*a, *b);
                    std::mem::swap(a, b);
                    transposed(&data, rows, columns)
                }
                _ => data,
            },
            Self::Pick(at) => {
                let size: usize = shape.iter().product();
                let count = data.len().checked_div(size).unwrap_or(0);
                if !shape.is_empty() {
                    shape.remove(0);
                }
                let width: usize = shape.iter().product();
                let start = |row: usize| row * size + at * width;
                let places: Vec<usize> = (0..count).flat_map(|row| start(row)..start(row) + width).collect();
                data.picked(&places)
            }
            _ => match data.computable() {
                TensorData::Float32(mut values) => {
                    self.compute(&mut values, width);
                    TensorData::Float32(values)
                }
                TensorData::Float64(mut values) => {
                    self.compute(&mut values, width);
                    TensorData::Float64(values)
                }
                other => other,
            },
        }
    }

    fn compute<T: Real>(self, values: &mut [T], width: usize) {
        match self {
            Self::Softmax => softmax(values, width),
            Self::Sigmoid => values.iter_mut().for_each(|value| *value = sigmoid(*value)),
            Self::L2Norm => l2_norm(values, width),
            Self::Transpose | Self::Pick(_) => {}
        }
    }
}

fn transposed(data: &TensorData, rows: usize, columns: usize) -> TensorData {
    let size = rows * columns;
    let matrices = data.len().checked_div(size).unwrap_or(0);
    let mut places = Vec::with_capacity(data.len());
    for matrix in 0..matrices {
        for column in 0..columns {
            places.extend((0..rows).map(|row| matrix * size + row * columns + column));
        }
    }
    data.picked(&places)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_keep_their_type_unless_they_are_computed() {
        let mut shape = vec![2, 3];
        let turned = VectorStep::Transpose.apply(TensorData::Int64((0..12).collect()), &mut shape);
        assert_eq!(turned, TensorData::Int64(vec![0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]));
        assert_eq!(shape, [3, 2]);
        let row = VectorStep::Pick(2).apply(turned, &mut shape);
        assert_eq!((row, shape), (TensorData::Int64(vec![2, 5, 8, 11]), vec![2]));
    }

    #[test]
    fn wide_values_are_computed_with_64_bits() {
        let half = VectorStep::Sigmoid.apply(TensorData::Float64(vec![0.0, 30.0]), &mut vec![2]);
        let TensorData::Float64(half) = half else { panic!("{half:?}") };
        assert!(half[0] == 0.5 && half[1] < 1.0, "float32 would give 1: {half:?}");
        let narrow = VectorStep::Softmax.apply(TensorData::Float32(vec![1.0, 1.0]), &mut vec![2]);
        assert_eq!(narrow, TensorData::Float32(vec![0.5, 0.5]));
    }
}
