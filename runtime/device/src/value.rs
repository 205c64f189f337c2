//! Tensors as bytes.
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Type of the elements of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Element {
    /// 32-bit floats.
    Float32 = 1,
    /// 16-bit floats.
    Float16 = 2,
    /// 64-bit floats.
    Float64 = 3,
    /// 64-bit integers.
    Int64 = 4,
    /// 32-bit integers.
    Int32 = 5,
    /// 8-bit integers with a sign.
    Int8 = 6,
    /// Bytes.
    Uint8 = 7,
    /// Truth values, one byte each: 0 or 1.
    Bool = 8,
    /// Texts: for each its length in bytes (`u32`), then UTF-8.
    Text = 9,
}

impl Element {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Float32,
        Self::Float16,
        Self::Float64,
        Self::Int64,
        Self::Int32,
        Self::Int8,
        Self::Uint8,
        Self::Bool,
        Self::Text,
    ];

    /// Returns the bytes of one element; none for texts.
    pub const fn bytes(self) -> Option<usize> {
        match self {
            Self::Float64 | Self::Int64 => Some(8),
            Self::Float32 | Self::Int32 => Some(4),
            Self::Float16 => Some(2),
            Self::Int8 | Self::Uint8 | Self::Bool => Some(1),
            Self::Text => None,
        }
    }

    fn of(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|element| *element as u8 == number)
    }
}

/// Largest number of dimensions.
pub const MOST_DIMENSIONS: usize = 16;

/// A dense tensor: element type, dimensions, and the values as bytes, little-endian, last dimension fastest.
///
/// ```
/// use tidemill_device::value::{Element, Value};
/// let value = Value::new(Element::Int32, vec![2], vec![1, 0, 0, 0, 2, 0, 0, 0])?;
/// assert_eq!(value.to_string(), "int32 [2]");
/// assert!(Value::new(Element::Int32, vec![3], vec![0; 8]).is_err());
/// # Ok::<(), tidemill_device::value::ValueError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Value {
    element: Element,
    shape: Vec<usize>,
    bytes: Bytes,
}

/// Bytes that are no tensor.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ValueError(String);

impl Value {
    /// A tensor of these bytes.
    ///
    /// # Errors
    /// [`ValueError`] if the number of bytes is not that of the shape.
    pub fn new(element: Element, shape: Vec<usize>, bytes: impl Into<Bytes>) -> Result<Self, ValueError> {
        let bytes = bytes.into();
        let count = check_length(element, &shape, bytes.len())?;
        if element == Element::Text {
            check_texts(&bytes, count)?;
        }
        Ok(Self { element, shape, bytes })
    }

    /// A tensor of zeros, or of empty texts.
    ///
    /// # Errors
    /// [`ValueError`] if this machine has not so much memory.
    pub fn zeros(element: Element, shape: Vec<usize>) -> Result<Self, ValueError> {
        let each = element.bytes().unwrap_or(4);
        let length = shape.iter().try_fold(each, |product, size| product.checked_mul(*size));
        let length = length.filter(|length| *length <= isize::MAX as usize);
        let length = length.ok_or_else(|| ValueError(format!("the shape {shape:?} is too large")))?;
        Self::new(element, shape, zeroed(length)?)
    }

    /// The element type.
    pub fn element(&self) -> Element {
        self.element
    }

    /// The dimensions.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The values.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Appends element type and dimensions as bytes, at most 130.
    pub(crate) fn write_head(&self, into: &mut Vec<u8>) {
        write_head(self.element, &self.shape, into);
    }

    /// Reads a head that [`Self::write_head`] wrote, and takes the rest as the values, or others that were placed elsewhere.
    pub(crate) fn read(payload: &Bytes, placed: Option<Bytes>) -> Result<Self, ValueError> {
        let (element, shape, at) = read_head(payload)?;
        match placed {
            Some(values) if payload.len() == at => Self::new(element, shape, values),
            Some(_) => Err(ValueError("a tensor has values at two places".to_owned())),
            None => Self::new(element, shape, payload.slice(at..)),
        }
    }
}

/// From this length on the memory of the machine is looked at before it is used: a system that promises more than it has would kill the
/// process.
const LONG: usize = 64 << 20;

fn zeroed(length: usize) -> Result<Vec<u8>, ValueError> {
    let refused = || ValueError(format!("this machine has no {length} bytes of memory left for a tensor"));
    if length > LONG && available().is_some_and(|available| length as u64 > available) {
        return Err(refused());
    }
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(length).map_err(|_| refused())?;
    bytes.resize(length, 0);
    Ok(bytes)
}

/// Bytes that processes of this machine can still use; none: the system does not say.
fn available() -> Option<u64> {
    let facts = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = facts.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    kibibytes.checked_mul(1 << 10)
}

/// Appends element type and dimensions as bytes.
pub(crate) fn write_head(element: Element, shape: &[usize], into: &mut Vec<u8>) {
    into.push(element as u8);
    into.push(shape.len() as u8);
    shape.iter().for_each(|size| into.extend_from_slice(&(*size as u64).to_le_bytes()));
}

/// Reads element type and dimensions; returns them and the number of bytes read.
pub(crate) fn read_head(bytes: &[u8]) -> Result<(Element, Vec<usize>, usize), ValueError> {
    let cut = || ValueError("a tensor is cut off".to_owned());
    let (number, dimensions) = (*bytes.first().ok_or_else(cut)?, *bytes.get(1).ok_or_else(cut)?);
    let element =
        Element::of(number).ok_or_else(|| ValueError(format!("no element type has the number {number}")))?;
    let dimensions = usize::from(dimensions);
    if dimensions > MOST_DIMENSIONS {
        return Err(ValueError(format!("{dimensions} dimensions, at most {MOST_DIMENSIONS} are allowed")));
    }
    let end = 2 + 8 * dimensions;
    let sizes = bytes.get(2..end).ok_or_else(cut)?.chunks_exact(8);
    let sizes = sizes.map(|size| {
        let size = size.iter().rev().fold(0u64, |number, byte| number << 8 | u64::from(*byte));
        usize::try_from(size).map_err(|_| ValueError(format!("a dimension of {size} is too large")))
    });
    Ok((element, sizes.collect::<Result<_, _>>()?, end))
}

/// Checks that this number of bytes is that of the shape, and returns the number of elements.
pub(crate) fn check_length(element: Element, shape: &[usize], bytes: usize) -> Result<usize, ValueError> {
    if shape.len() > MOST_DIMENSIONS {
        return Err(ValueError(format!("{} dimensions, at most {MOST_DIMENSIONS} are allowed", shape.len())));
    }
    let count = shape.iter().try_fold(1usize, |product, size| product.checked_mul(*size));
    let count = count.ok_or_else(|| ValueError(format!("the shape {shape:?} is too large")))?;
    match element.bytes() {
        Some(each) if count.checked_mul(each) != Some(bytes) => Err(ValueError(format!(
            "the shape {shape:?} of {element} needs {count} x {each} bytes, found {bytes}"
        ))),
        _ => Ok(count),
    }
}

fn check_texts(bytes: &[u8], count: usize) -> Result<(), ValueError> {
    let mut rest = bytes;
    let mut found = 0;
    while !rest.is_empty() {
        let cut = || ValueError("a text is cut off".to_owned());
        let (length, after) = rest.split_first_chunk::<4>().ok_or_else(cut)?;
        let length = u32::from_le_bytes(*length) as usize;
        let text = after.get(..length).ok_or_else(cut)?;
        std::str::from_utf8(text).map_err(|error| ValueError(format!("a text is not UTF-8: {error}")))?;
        rest = &after[length..];
        found += 1;
    }
    if found == count { Ok(()) } else { Err(ValueError(format!("{count} texts are needed, found {found}"))) }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Float32 => "float32",
            Self::Float16 => "float16",
            Self::Float64 => "float64",
            Self::Int64 => "int64",
            Self::Int32 => "int32",
            Self::Int8 => "int8",
            Self::Uint8 => "uint8",
            Self::Bool => "bool",
            Self::Text => "text",
        })
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.element, self.shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn texts_are_counted_and_checked() {
        let texts = |parts: &[&[u8]]| {
            let each = parts.iter().flat_map(|part| [&(part.len() as u32).to_le_bytes()[..], part].concat());
            each.collect::<Vec<u8>>()
        };
        assert!(Value::new(Element::Text, vec![2], texts(&[b"a", b""])).is_ok());
        assert!(Value::new(Element::Text, vec![1], texts(&[b"a", b""])).is_err());
        assert!(Value::new(Element::Text, vec![1], texts(&[&[0xff]])).is_err());
        assert!(Value::new(Element::Text, vec![1], vec![9, 0, 0, 0, b'a']).is_err());
        assert_eq!(Value::zeros(Element::Text, vec![3]).map(|value| value.bytes().len()), Ok(12));
    }

    #[test]
    fn a_size_that_overflows_is_refused() {
        assert!(Value::zeros(Element::Float64, vec![usize::MAX, 2]).is_err());
        // More than any machine has, but not more than an address can name.
        let told = Value::zeros(Element::Uint8, vec![1 << 60]).unwrap_err().to_string();
        assert!(told.contains("1152921504606846976 bytes of memory"), "{told}");
        assert!(Value::new(Element::Uint8, vec![usize::MAX, 2], Bytes::new()).is_err());
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(element in 0usize..9, shape in proptest::collection::vec(0usize..4, 0..5)) {
            let value = Value::zeros(Element::ALL[element], shape).expect("small");
            let mut bytes = Vec::new();
            value.write_head(&mut bytes);
            bytes.extend_from_slice(value.bytes());
            prop_assert_eq!(Value::read(&bytes.into(), None), Ok(value));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = Value::read(&bytes.into(), None);
        }
    }
}
