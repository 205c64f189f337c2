//! Tensors of TVM as bytes of a session, and back.
use tidemill_device::value::Element;
use tvm_ffi::dtype::AsDLDataType;
use tvm_ffi::{CPUNDAlloc, DLDataType, DLDataTypeCode, DLDevice, DLDeviceType, Tensor};

/// A number of a tensor.
trait Number: AsDLDataType + Default {
    /// Reads it from its bytes, of which there are as many as it has.
    fn read(bytes: &[u8]) -> Self;
    /// Appends its bytes.
    fn write(self, bytes: &mut Vec<u8>);
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl Number for $number {
            fn read(bytes: &[u8]) -> Self {
                bytes.try_into().map(Self::from_le_bytes).unwrap_or_default()
            }

            fn write(self, bytes: &mut Vec<u8>) {
                bytes.extend_from_slice(&self.to_le_bytes());
            }
        }
    )*};
}

numbers!(f32, f64, i64, i32, i8, u8);

/// Bits of a number that Rust has no type for.
macro_rules! bits {
    ($name:ident, $bits:ty, $code:expr, $count:literal) => {
        #[derive(Clone, Copy, Default)]
        #[repr(transparent)]
        struct $name($bits);

        impl AsDLDataType for $name {
            const DL_DATA_TYPE: DLDataType = DLDataType { code: $code as u8, bits: $count, lanes: 1 };
        }

        impl Number for $name {
            fn read(bytes: &[u8]) -> Self {
                Self(bytes.try_into().map(<$bits>::from_le_bytes).unwrap_or_default())
            }

            fn write(self, bytes: &mut Vec<u8>) {
                bytes.extend_from_slice(&self.0.to_le_bytes());
            }
        }
    };
}

bits!(Half, u16, DLDataTypeCode::kDLFloat, 16);
bits!(Truth, u8, DLDataTypeCode::kDLBool, 8);

/// Calls a generic function with the type of an element.
macro_rules! by_element {
    ($element:expr, $function:ident($($argument:expr),*)) => {
        match $element {
            Element::Float32 => $function::<f32>($($argument),*),
            Element::Float16 => $function::<Half>($($argument),*),
            Element::Float64 => $function::<f64>($($argument),*),
            Element::Int64 => $function::<i64>($($argument),*),
            Element::Int32 => $function::<i32>($($argument),*),
            Element::Int8 => $function::<i8>($($argument),*),
            Element::Uint8 => $function::<u8>($($argument),*),
            Element::Bool => $function::<Truth>($($argument),*),
            Element::Text => Err("TVM has no tensors of texts".to_owned()),
        }
    };
}

/// Copies bytes into a tensor. If there are fewer than it has, the rest is zero.
pub(crate) fn to_tensor(element: Element, shape: &[usize], bytes: &[u8]) -> Result<Tensor, String> {
    let shape: Result<Vec<i64>, _> = shape.iter().map(|size| i64::try_from(*size)).collect();
    let shape = shape.map_err(|error| error.to_string())?;
    if shape.contains(&0) {
        return Err("TVM computes no tensors without elements".to_owned());
    }
    by_element!(element, filled(&shape, bytes))
}

fn filled<T: Number>(shape: &[i64], bytes: &[u8]) -> Result<Tensor, String> {
    let device = DLDevice::new(DLDeviceType::kDLCPU, 0);
    let tensor = Tensor::from_nd_alloc(CPUNDAlloc {}, shape, T::DL_DATA_TYPE, device);
    let numbers = tensor.data_as_slice_mut::<T>().map_err(|error| reason(&error))?;
    let mut given = bytes.chunks_exact(size_of::<T>());
    for number in numbers {
        *number = given.next().map(T::read).unwrap_or_default();
    }
    Ok(tensor)
}

/// Element type of a tensor.
pub(crate) fn element_of(tensor: &Tensor) -> Result<Element, String> {
    let found = tensor.dtype();
    let types = Element::ALL.into_iter().find(|element| {
        let same = |known: DLDataType| {
            (known.code, known.bits, known.lanes) == (found.code, found.bits, found.lanes)
        };
        data_type(*element).is_ok_and(same)
    });
    types.ok_or_else(|| {
        format!(
            "it gave a tensor of type code {} with {} bits, which a session does not carry",
            found.code, found.bits
        )
    })
}

fn data_type(element: Element) -> Result<DLDataType, String> {
    #[expect(clippy::unnecessary_wraps, reason = "texts have none")]
    fn of<T: Number>() -> Result<DLDataType, String> {
        Ok(T::DL_DATA_TYPE)
    }
    by_element!(element, of())
}

/// Copies a tensor to the end of `bytes`.
pub(crate) fn append(tensor: &Tensor, bytes: &mut Vec<u8>) -> Result<(), String> {
    by_element!(element_of(tensor)?, append_all(tensor, bytes))
}

fn append_all<T: Number>(tensor: &Tensor, bytes: &mut Vec<u8>) -> Result<(), String> {
    let numbers = tensor.data_as_slice::<T>().map_err(|error| reason(&error))?;
    bytes.reserve(size_of_val(numbers));
    for number in numbers {
        number.write(bytes);
    }
    Ok(())
}

/// Shape of a tensor.
pub(crate) fn shape_of(tensor: &Tensor) -> Result<Vec<usize>, String> {
    let shape: Result<Vec<usize>, _> = tensor.shape().iter().map(|size| usize::try_from(*size)).collect();
    shape.map_err(|error| error.to_string())
}

/// The message of TVM, without the places in its source.
pub(crate) fn reason(error: &tvm_ffi::Error) -> String {
    error.message().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_back_as_they_went() {
        for element in Element::ALL.into_iter().filter(|element| *element != Element::Text) {
            let count = 6 * element.bytes().unwrap_or_default();
            // Truth values are 0 or 1.
            let bytes: Vec<u8> = (0..count).map(|at| (at % 2) as u8).collect();
            let tensor = to_tensor(element, &[2, 3], &bytes).expect("a tensor");
            assert_eq!((element_of(&tensor), shape_of(&tensor)), (Ok(element), Ok(vec![2, 3])));
            let mut back = Vec::new();
            append(&tensor, &mut back).expect("its bytes");
            assert_eq!(back, bytes);
        }
        assert!(to_tensor(Element::Text, &[1], &[]).is_err());
        assert!(to_tensor(Element::Uint8, &[2, 0], &[]).is_err());
    }

    #[test]
    fn records_that_are_missing_are_zero() {
        let tensor = to_tensor(Element::Int32, &[3], &[7, 0, 0, 0]).expect("a tensor");
        assert_eq!(tensor.data_as_slice::<i32>().expect("numbers"), [7, 0, 0]);
    }
}
