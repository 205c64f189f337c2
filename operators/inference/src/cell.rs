//! Values of records as models read them.
use half::f16;

/// One value of a record, as read from a column.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Cell<'a> {
    /// No value.
    Missing,
    /// An encoded image or sound, or other bytes.
    Bytes(&'a [u8]),
    /// Text.
    Text(&'a str),
    /// A float.
    Float(f64),
    /// A whole number.
    Integer(i64),
    /// A truth value.
    Truth(bool),
    /// The values of a tensor of 32-bit floats.
    Float32(&'a [f32]),
    /// The values of a tensor of 16-bit floats.
    Float16(&'a [f16]),
    /// The values of a tensor of 64-bit floats.
    Float64(&'a [f64]),
    /// The values of a tensor of 64-bit integers.
    Int64(&'a [i64]),
    /// The values of a tensor of 32-bit integers.
    Int32(&'a [i32]),
    /// The values of a tensor of 8-bit integers.
    Int8(&'a [i8]),
    /// The values of a tensor of bytes.
    Uint8(&'a [u8]),
    /// The values of a tensor of truth values.
    Bool(&'a [bool]),
    /// The values of a tensor of texts.
    Texts(&'a [String]),
}
