//! One dimension of a model's tensor: `batch`, a number or `any`.
use crate::deserializer::coded;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;

/// One dimension of a model's tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dimension {
    /// The number of records in the batch.
    Batch,
    /// A fixed size.
    Fixed(u32),
    /// As many as the record has.
    Any,
}

impl Dimension {
    /// Position of the dimension that counts records; `None` if the tensor is that of one record.
    pub fn batch_axis(shape: &[Self]) -> Option<usize> {
        shape.iter().position(|dimension| *dimension == Self::Batch)
    }

    /// The shape of one record: without the dimension that counts records, or without a first one of 1.
    ///
    /// ```
    /// use tidemill_spec::manifest::Dimension::{self, Batch, Fixed};
    /// assert_eq!(Dimension::row(&[Fixed(20), Batch, Fixed(37)]), [Fixed(20), Fixed(37)]);
    /// assert_eq!(Dimension::row(&[Fixed(1), Fixed(37)]), [Fixed(37)]);
    /// assert_eq!(Dimension::row(&[Fixed(3), Fixed(37)]), [Fixed(3), Fixed(37)]);
    /// ```
    pub fn row(shape: &[Self]) -> Vec<Self> {
        let left_out = Self::batch_axis(shape).or((shape.first() == Some(&Self::Fixed(1))).then_some(0));
        let kept = shape.iter().enumerate().filter(|(at, _)| Some(*at) != left_out);
        kept.map(|(_, dimension)| *dimension).collect()
    }
}

impl fmt::Display for Dimension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dimension::Batch => f.write_str("batch"),
            Dimension::Fixed(size) => size.fmt(f),
            Dimension::Any => f.write_str("any"),
        }
    }
}

impl Serialize for Dimension {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Dimension::Batch => serializer.serialize_str("batch"),
            Dimension::Fixed(size) => serializer.serialize_u32(*size),
            Dimension::Any => serializer.serialize_str("any"),
        }
    }
}

impl<'de> Deserialize<'de> for Dimension {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct DimensionVisitor;
        impl Visitor<'_> for DimensionVisitor {
            type Value = Dimension;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`batch`, `any` or a whole number of 1 or more")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Dimension, E> {
                match text {
                    "batch" => Ok(Dimension::Batch),
                    "any" => Ok(Dimension::Any),
                    // Placeholder of `tidemill models inspect --manifest` for a size that the file leaves open.
                    blank if blank.starts_with("SIZE") => Err(E::custom(coded(
                        "E0105",
                        format!("`{blank}` is a placeholder"),
                        "the model file leaves this size open: write the size that your records have, 1 or more",
                    ))),
                    other => Err(E::invalid_value(Unexpected::Str(other), &self)),
                }
            }
            fn visit_u64<E: Error>(self, size: u64) -> Result<Dimension, E> {
                match u32::try_from(size) {
                    Ok(size) if size > 0 => Ok(Dimension::Fixed(size)),
                    _ => Err(E::invalid_value(Unexpected::Unsigned(size), &self)),
                }
            }
        }
        deserializer.deserialize_any(DimensionVisitor)
    }
}

impl JsonSchema for Dimension {
    fn schema_name() -> Cow<'static, str> {
        "Dimension".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "One dimension: `batch`, a whole number, or `any` (as many as the record has).",
            "anyOf": [{"enum": ["batch", "any"]}, {"type": "integer", "minimum": 1}]
        })
    }
}
