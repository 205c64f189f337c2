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
    /// 64-bit signed integer.
    Int64,
    /// 8-bit unsigned integer.
    Uint8,
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            ElementType::Float32 => "float32",
            ElementType::Float16 => "float16",
            ElementType::Int64 => "int64",
            ElementType::Uint8 => "uint8",
        })
    }
}

/// Type of one column of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ColumnType {
    /// An image: JPEG or PNG, decoded where it is used, so that links carry the small form; or binary PPM, which is not
    /// compressed, as frames of videos are.
    Image,
    /// An encoded sound (WAV bytes).
    Audio,
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
