//! Numbers that are elements of buffers.
use crate::element::Element;
use half::{bf16, f16};

mod sealed {
    pub trait Sealed {}
}

/// A number that is an element of a buffer.
pub trait Number: sealed::Sealed + Copy + Default + Send + Sync {
    /// Its type.
    const ELEMENT: Element;
    /// Writes numbers as bytes, as many as both have.
    fn to_bytes(from: &[Self], into: &mut [u8]);
    /// Reads numbers of bytes.
    fn from_bytes(from: &[u8], into: &mut [Self]);
}

macro_rules! numbers {
    ($($number:ty, $element:expr, $bytes:literal;)+) => {$(
        impl sealed::Sealed for $number {}

        impl Number for $number {
            const ELEMENT: Element = $element;

            fn to_bytes(from: &[Self], into: &mut [u8]) {
                for (number, bytes) in from.iter().zip(into.as_chunks_mut::<$bytes>().0) {
                    *bytes = number.to_ne_bytes();
                }
            }

            fn from_bytes(from: &[u8], into: &mut [Self]) {
                for (number, bytes) in into.iter_mut().zip(from.as_chunks::<$bytes>().0) {
                    *number = Self::from_ne_bytes(*bytes);
                }
            }
        }
    )+};
}

numbers! {
    f32, Element::F32, 4;
    f16, Element::F16, 2;
    bf16, Element::Bf16, 2;
    i32, Element::I32, 4;
    i64, Element::I64, 8;
}
