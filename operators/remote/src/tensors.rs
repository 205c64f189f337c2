//! Tensors of back ends as values of devices.
use half::f16;
use half::slice::HalfFloatSliceExt;
use std::borrow::Cow;
use tidemill_device::memory::Placed;
use tidemill_device::value::{Element, Value, ValueError};
use tidemill_inference::tensor::{ShapeError, Tensor, TensorData};

/// Bytes on this machine are in the order of the protocol.
const _: () = assert!(cfg!(target_endian = "little"), "tensors are sent as they lie in memory");

/// A value that is no tensor of a back end.
#[derive(Debug, thiserror::Error)]
pub enum TensorError {
    /// Its shape does not fit.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// It is no value.
    #[error(transparent)]
    Value(#[from] ValueError),
    /// A text is none.
    #[error("a text is cut off or not UTF-8")]
    Text,
}

/// Returns the element type and the bytes of a tensor; they are copied only for texts and truth values.
pub fn bytes_of(tensor: &Tensor) -> (Element, Cow<'_, [u8]>) {
    match tensor.data() {
        TensorData::Float32(values) => (Element::Float32, Cow::Borrowed(bytemuck::cast_slice(values))),
        TensorData::Float16(values) => {
            (Element::Float16, Cow::Borrowed(bytemuck::cast_slice(values.reinterpret_cast())))
        }
        TensorData::Float64(values) => (Element::Float64, Cow::Borrowed(bytemuck::cast_slice(values))),
        TensorData::Int64(values) => (Element::Int64, Cow::Borrowed(bytemuck::cast_slice(values))),
        TensorData::Int32(values) => (Element::Int32, Cow::Borrowed(bytemuck::cast_slice(values))),
        TensorData::Int8(values) => (Element::Int8, Cow::Borrowed(bytemuck::cast_slice(values))),
        TensorData::Uint8(values) => (Element::Uint8, Cow::Borrowed(values)),
        TensorData::Bool(values) => (Element::Bool, values.iter().map(|value| u8::from(*value)).collect()),
        TensorData::Text(values) => {
            let mut bytes = Vec::new();
            for text in values {
                // A text of 4 GiB is longer than a call may be.
                bytes.extend_from_slice(&(text.len() as u32).to_le_bytes());
                bytes.extend_from_slice(text.as_bytes());
            }
            (Element::Text, Cow::Owned(bytes))
        }
    }
}

/// Converts a tensor to a value.
///
/// # Errors
/// [`ValueError`] if it has more dimensions than a value may have.
pub fn to_value(tensor: &Tensor) -> Result<Value, ValueError> {
    let (element, bytes) = bytes_of(tensor);
    Value::new(element, tensor.shape().to_vec(), bytes.into_owned())
}

/// Numbers of these many bytes, as `fill` sets them.
fn numbers<T: bytemuck::Pod>(bytes: usize, fill: impl FnOnce(&mut [u8])) -> Vec<T> {
    let mut numbers = vec![T::zeroed(); bytes / size_of::<T>()];
    fill(bytemuck::cast_slice_mut(&mut numbers));
    numbers
}

/// The numbers of a tensor of this type; none: its elements are no numbers of back ends as they lie in memory.
fn data(element: Element, bytes: usize, fill: impl FnOnce(&mut [u8])) -> Option<TensorData> {
    Some(match element {
        Element::Float32 => TensorData::Float32(numbers(bytes, fill)),
        Element::Float16 => {
            let mut halves = vec![f16::ZERO; bytes / 2];
            fill(bytemuck::cast_slice_mut(halves.reinterpret_cast_mut()));
            TensorData::Float16(halves)
        }
        Element::Float64 => TensorData::Float64(numbers(bytes, fill)),
        Element::Int64 => TensorData::Int64(numbers(bytes, fill)),
        Element::Int32 => TensorData::Int32(numbers(bytes, fill)),
        Element::Int8 => TensorData::Int8(numbers(bytes, fill)),
        Element::Uint8 => TensorData::Uint8(numbers(bytes, fill)),
        Element::Bool | Element::Text => return None,
    })
}

/// Copies a value out of shared memory, once.
///
/// # Errors
/// [`TensorError`].
pub fn placed_to_tensor(placed: &Placed) -> Result<Tensor, TensorError> {
    match data(placed.element(), placed.bytes(), |into| placed.copy_to(into)) {
        Some(data) => Ok(Tensor::new(placed.shape().to_vec(), data)?),
        None => to_tensor(&placed.to_value()?),
    }
}

/// Converts a value to a tensor.
///
/// # Errors
/// [`TensorError`].
pub fn to_tensor(value: &Value) -> Result<Tensor, TensorError> {
    let bytes = &value.bytes()[..];
    let data = match data(value.element(), bytes.len(), |into| into.copy_from_slice(bytes)) {
        Some(data) => data,
        None if value.element() == Element::Bool => {
            TensorData::Bool(bytes.iter().map(|byte| *byte != 0).collect())
        }
        None => TensorData::Text(texts(bytes)?),
    };
    Ok(Tensor::new(value.shape().to_vec(), data)?)
}

fn texts(mut bytes: &[u8]) -> Result<Vec<String>, TensorError> {
    let mut texts = Vec::new();
    while !bytes.is_empty() {
        let (length, rest) = bytes.split_first_chunk::<4>().ok_or(TensorError::Text)?;
        let (text, rest) =
            rest.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or(TensorError::Text)?;
        texts.push(String::from_utf8(text.to_vec()).map_err(|_| TensorError::Text)?);
        bytes = rest;
    }
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_element_types_survive() {
        let all = [
            TensorData::Float32(vec![1.5, f32::NAN.copysign(-1.0)]),
            TensorData::Float16(vec![f16::from_f32(0.5), f16::NEG_INFINITY]),
            TensorData::Float64(vec![f64::MIN, 3.0]),
            TensorData::Int64(vec![i64::MIN, 7]),
            TensorData::Int32(vec![-1, 7]),
            TensorData::Int8(vec![-1, 7]),
            TensorData::Uint8(vec![255, 7]),
            TensorData::Bool(vec![true, false]),
            TensorData::Text(vec!["é".into(), String::new()]),
        ];
        for data in all {
            let tensor = Tensor::new(vec![2, 1], data).expect("two values");
            let back = to_tensor(&to_value(&tensor).expect("few dimensions")).expect("it is one");
            // NaN differs from itself.
            assert_eq!(bytes_of(&back), bytes_of(&tensor));
            assert_eq!(back.shape(), [2, 1]);
        }
    }
}
