//! Forms of numbers, and their bytes.
use half::f16;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// Parts of 1 in which [`Numbers::Fixed`] gradients are added up, as [`tidemill_training::Trainer`] has them.
pub const PARTS: f64 = 4_294_967_296.0;

/// The form of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Numbers {
    /// Gradients are whole numbers of 2^-32, values are `f64`: the bits do not depend on the number of workers.
    Fixed,
    /// Gradients and values are `f32`, added in the order of the workers.
    F32,
    /// Gradients and values travel as `f16`; the aggregator has `f32`.
    F16,
}

impl Numbers {
    /// Returns the bytes of a number of a gradient.
    pub fn of_gradient(self) -> usize {
        match self {
            Self::Fixed => 8,
            Self::F32 => 4,
            Self::F16 => 2,
        }
    }

    /// Returns the bytes of a number of the state.
    pub fn of_state(self) -> usize {
        match self {
            Self::Fixed => 8,
            Self::F32 | Self::F16 => 4,
        }
    }
}

/// A number that an update computes with.
pub trait Real:
    Copy
    + bytemuck::Pod
    + std::ops::Add<Output = Self>
    + std::ops::Sub<Output = Self>
    + std::ops::Mul<Output = Self>
    + std::ops::Div<Output = Self>
{
    /// The nearest number.
    fn of(value: f64) -> Self;
    /// The square root.
    fn root(self) -> Self;
    /// The value.
    fn wide(self) -> f64;
}

impl Real for f64 {
    fn of(value: f64) -> Self {
        value
    }
    fn root(self) -> Self {
        self.sqrt()
    }
    fn wide(self) -> f64 {
        self
    }
}

impl Real for f32 {
    fn of(value: f64) -> Self {
        value as f32
    }
    fn root(self) -> Self {
        self.sqrt()
    }
    fn wide(self) -> f64 {
        f64::from(self)
    }
}

/// Reads numbers; copies them only where they do not lie at a multiple of their size. Bytes beyond the last whole number are left out.
///
/// ```
/// use tidemill_aggregation_service::number::{bytes_of, numbers_of};
/// assert_eq!(*numbers_of::<f32>(&bytes_of(&[1.5f32, -2.0])), [1.5, -2.0]);
/// ```
pub fn numbers_of<T: bytemuck::Pod>(bytes: &[u8]) -> Cow<'_, [T]> {
    let whole = &bytes[..bytes.len() - bytes.len() % size_of::<T>().max(1)];
    match bytemuck::try_cast_slice(whole) {
        Ok(numbers) => Cow::Borrowed(numbers),
        Err(_) => Cow::Owned(bytemuck::pod_collect_to_vec(whole)),
    }
}

/// Returns the bytes of numbers.
pub fn bytes_of<T: bytemuck::Pod>(numbers: &[T]) -> Vec<u8> {
    bytemuck::cast_slice(numbers).to_vec()
}

/// Returns the bytes of `f16` numbers.
pub fn halves(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| f16::from_f32(*number).to_le_bytes()).collect()
}

/// Reads `f16` numbers.
///
/// ```
/// use tidemill_aggregation_service::number::{from_halves, halves};
/// assert_eq!(from_halves(&halves(&[0.5, -3.0])), [0.5, -3.0]);
/// ```
pub fn from_halves(bytes: &[u8]) -> Vec<f32> {
    let number = |bytes: &[u8]| match bytes {
        [low, high] => f16::from_le_bytes([*low, *high]).to_f32(),
        _ => 0.0,
    };
    bytes.chunks_exact(2).map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_at_every_place() {
        let bytes = bytes_of(&[1.0f64, 2.5, -7.0]);
        for shift in 0..8 {
            let mut moved = vec![0; shift];
            moved.extend(&bytes);
            assert_eq!(*numbers_of::<f64>(&moved[shift..]), [1.0, 2.5, -7.0]);
        }
    }
}
