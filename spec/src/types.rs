//! Types of streams: named, typed columns.
//!
//! ```
//! use tidemill_spec::types::{Column, ColumnType, StreamType};
//! let images = StreamType::new([Column::new("key", ColumnType::Text), Column::new("image", ColumnType::Image)]);
//! assert_eq!(images.to_string(), "{key: text, image: image}");
//! ```
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Element type of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ElementType {
    /// 32-bit IEEE float.
    Float32,
    /// 16-bit IEEE float.
    Float16,
    /// 64-bit IEEE float.
    Float64,
    /// 64-bit signed integer.
    Int64,
    /// 32-bit signed integer.
    Int32,
    /// 8-bit signed integer.
    Int8,
    /// 8-bit unsigned integer.
    Uint8,
    /// True or false.
    Bool,
    /// UTF-8 text.
    Text,
}

impl ElementType {
    /// All element types.
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

    /// Name in manifests and types of columns.
    pub const fn name(self) -> &'static str {
        match self {
            ElementType::Float32 => "float32",
            ElementType::Float16 => "float16",
            ElementType::Float64 => "float64",
            ElementType::Int64 => "int64",
            ElementType::Int32 => "int32",
            ElementType::Int8 => "int8",
            ElementType::Uint8 => "uint8",
            ElementType::Bool => "bool",
            ElementType::Text => "text",
        }
    }

    /// Returns the element type with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|element| element.name() == name)
    }

    /// Returns the bytes of one value; none for texts.
    pub const fn bytes(self) -> Option<u64> {
        match self {
            Self::Float64 | Self::Int64 => Some(8),
            Self::Float32 | Self::Int32 => Some(4),
            Self::Float16 => Some(2),
            Self::Int8 | Self::Uint8 | Self::Bool => Some(1),
            Self::Text => None,
        }
    }

    /// Whether values are floats of any width.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::Float32 | Self::Float16 | Self::Float64)
    }

    /// Whether values are whole numbers of any width.
    pub const fn is_integer(self) -> bool {
        matches!(self, Self::Int64 | Self::Int32 | Self::Int8 | Self::Uint8)
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Type of one column of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ColumnType {
    /// An image: JPEG, PNG, WebP, TIFF, BMP or GIF, decoded where it is used, so that links carry the small form; or binary
    /// PPM, which is not compressed, as frames of videos are.
    Image,
    /// An encoded sound: WAV, FLAC, Ogg Vorbis or MP3.
    Audio,
    /// Bytes in any other form, such as those of a whole file.
    Bytes,
    /// UTF-8 text.
    Text,
    /// 64-bit signed integer.
    Int64,
    /// 64-bit float.
    Float64,
    /// True or false.
    Bool,
    /// A tensor of fixed shape; one per row, without the batch dimension.
    Tensor {
        /// Element type.
        element: ElementType,
        /// Shape without the batch dimension.
        shape: Vec<usize>,
    },
}

impl fmt::Display for ColumnType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ColumnType::Image => f.write_str("image"),
            ColumnType::Audio => f.write_str("audio"),
            ColumnType::Bytes => f.write_str("bytes"),
            ColumnType::Text => f.write_str("text"),
            ColumnType::Int64 => f.write_str("int64"),
            ColumnType::Float64 => f.write_str("float64"),
            ColumnType::Bool => f.write_str("bool"),
            ColumnType::Tensor { element, shape } => {
                let shape: Vec<String> = shape.iter().map(ToString::to_string).collect();
                write!(f, "tensor<{element}>[{}]", shape.join(", "))
            }
        }
    }
}

impl ColumnType {
    /// Returns the type of this name, as [`fmt::Display`] prints it; `None` if there is none, or if a tensor would have more
    /// values than 32 bits count.
    ///
    /// ```
    /// use tidemill_spec::types::ColumnType;
    /// let vector = ColumnType::named("tensor<float32>[2, 3]").unwrap();
    /// assert_eq!(vector.to_string(), "tensor<float32>[2, 3]");
    /// assert_eq!(ColumnType::named("tensor<float32>"), None);
    /// ```
    pub fn named(name: &str) -> Option<Self> {
        Some(match name.trim() {
            "text" => ColumnType::Text,
            "int64" => ColumnType::Int64,
            "float64" => ColumnType::Float64,
            "bool" => ColumnType::Bool,
            "image" => ColumnType::Image,
            "audio" => ColumnType::Audio,
            "bytes" => ColumnType::Bytes,
            tensor => {
                let (element, shape) = tensor.strip_prefix("tensor<")?.strip_suffix(']')?.split_once(">[")?;
                let element = ElementType::named(element)?;
                let sides = shape.split(',').map(str::trim).filter(|side| !side.is_empty());
                let shape = sides.map(|side| side.parse().ok()).collect::<Option<Vec<usize>>>()?;
                let size = shape.iter().try_fold(1usize, |size, side| size.checked_mul(*side))?;
                i32::try_from(size).ok()?;
                ColumnType::Tensor { element, shape }
            }
        })
    }
}

/// One named column.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Column {
    /// Name; unique in its stream; never starts with `_` (those are the engine's metadata columns).
    pub name: String,
    /// Type.
    #[serde(rename = "type")]
    pub column_type: ColumnType,
}

impl Column {
    /// Creates a column.
    pub fn new(name: impl Into<String>, column_type: ColumnType) -> Self {
        Self { name: name.into(), column_type }
    }
}

/// The payload columns of a stream, in order. Metadata columns are not listed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct StreamType {
    /// Columns in order.
    pub columns: Vec<Column>,
    /// Whether rows may be taken back: a row whose metadata column `_change` is -1 repeats the payload of one that was
    /// sent before and is not to be counted any more. Default: rows only come.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub revised: bool,
}

impl StreamType {
    /// Creates a stream type of these columns.
    pub fn new(columns: impl IntoIterator<Item = Column>) -> Self {
        Self { columns: columns.into_iter().collect(), revised: false }
    }

    /// Sets whether rows of the stream may be revised.
    #[must_use]
    pub fn with_revisions(self, revised: bool) -> Self {
        Self { revised, ..self }
    }

    /// Returns the column with this name.
    pub fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|c| c.name == name)
    }

    /// Returns the position of the column with this name.
    pub fn index_of(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|c| c.name == name)
    }
}

impl fmt::Display for StreamType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns: Vec<String> =
            self.columns.iter().map(|c| format!("{}: {}", c.name, c.column_type)).collect();
        write!(f, "{{{}}}", columns.join(", "))?;
        if self.revised { f.write_str(", rows can be retracted") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_read_as_they_are_printed() {
        let scalars = ["text", "int64", "float64", "bool", "image", "audio", "bytes"].map(str::to_owned);
        let tensors = ElementType::ALL.map(|element| format!("tensor<{element}>[2, 3]"));
        for name in scalars.into_iter().chain(tensors) {
            assert_eq!(ColumnType::named(&name).map(|found| found.to_string()), Some(name));
        }
        let wrong = [
            "float",
            "tensor<float32>",
            "tensor<double>[1]",
            "tensor<uint8>[x]",
            "tensor<uint8>[4000000000]",
        ];
        for wrong in wrong {
            assert_eq!(ColumnType::named(wrong), None, "{wrong}");
        }
    }
}
