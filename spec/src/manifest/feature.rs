//! Columns of a table that become parts of one tensor.
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;

/// A column of a table and its form in the tensor. Written as the column's name if nothing else is to be said.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Feature {
    /// Name of the column: int64, float64 or bool; text if there are `categories`.
    pub column: String,
    /// Value for an empty one. Default: the record becomes a dead letter (`missing_value`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<Missing>,
    /// Known values of a text or int64 column, in order: a value becomes its position.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub categories: Vec<String>,
    /// Whether a category becomes one value for each of the known ones, 1 at its position and 0 elsewhere.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub one_hot: bool,
    /// Value for texts or numbers that are none of the `categories`; all are 0 with `one_hot`. Default: the record becomes
    /// a dead letter (`unknown_category`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unknown: Option<f64>,
}

impl Feature {
    /// A column whose numbers are taken as they are.
    pub fn plain(column: &str) -> Self {
        Self {
            column: column.to_owned(),
            missing: None,
            categories: Vec::new(),
            one_hot: false,
            unknown: None,
        }
    }

    /// Number of values in the tensor.
    pub fn width(&self) -> usize {
        if self.one_hot { self.categories.len() } else { 1 }
    }
}

/// Value for an empty one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Missing {
    /// Not a number, which tree models have a branch for.
    Nan,
    /// This number.
    Number(f64),
}

impl Missing {
    /// The value.
    pub fn value(self) -> f64 {
        match self {
            Self::Nan => f64::NAN,
            Self::Number(value) => value,
        }
    }
}

impl Serialize for Missing {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Nan => serializer.serialize_str("nan"),
            Self::Number(value) => serializer.serialize_f64(*value),
        }
    }
}

impl<'de> Deserialize<'de> for Missing {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MissingVisitor;
        impl Visitor<'_> for MissingVisitor {
            type Value = Missing;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number or `nan`")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Missing, E> {
                match text {
                    "nan" => Ok(Missing::Nan),
                    other => Err(E::invalid_value(Unexpected::Str(other), &self)),
                }
            }
            fn visit_f64<E: Error>(self, value: f64) -> Result<Missing, E> {
                Ok(Missing::Number(value))
            }
            fn visit_i64<E: Error>(self, value: i64) -> Result<Missing, E> {
                Ok(Missing::Number(value as f64))
            }
            fn visit_u64<E: Error>(self, value: u64) -> Result<Missing, E> {
                Ok(Missing::Number(value as f64))
            }
        }
        deserializer.deserialize_any(MissingVisitor)
    }
}

/// The long form.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    column: String,
    #[serde(default)]
    missing: Option<Missing>,
    #[serde(default)]
    categories: Vec<String>,
    #[serde(default)]
    one_hot: bool,
    #[serde(default)]
    unknown: Option<f64>,
}

impl<'de> Deserialize<'de> for Feature {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FeatureVisitor;
        impl<'de> Visitor<'de> for FeatureVisitor {
            type Value = Feature;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a column, or `{column: NAME, ...}`")
            }
            fn visit_str<E: Error>(self, column: &str) -> Result<Feature, E> {
                Ok(Feature::plain(column))
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Feature, A::Error> {
                let Fields { column, missing, categories, one_hot, unknown } =
                    Fields::deserialize(MapAccessDeserializer::new(map))?;
                Ok(Feature { column, missing, categories, one_hot, unknown })
            }
        }
        deserializer.deserialize_any(FeatureVisitor)
    }
}

impl JsonSchema for Feature {
    fn schema_name() -> Cow<'static, str> {
        "Feature".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A column of a table and its form in the tensor: the name of a column of type int64, float64 or bool, or a mapping.",
            "anyOf": [
                {"type": "string"},
                {
                    "type": "object",
                    "additionalProperties": false,
                    "required": ["column"],
                    "properties": {
                        "column": {"type": "string", "description": "Name of the column: int64, float64 or bool; text if there are `categories`."},
                        "missing": {
                            "anyOf": [{"type": "number"}, {"enum": ["nan"]}],
                            "description": "Value for an empty one: a number or `nan`. Default: the record becomes a dead letter (`missing_value`)."
                        },
                        "categories": {
                            "type": "array", "items": {"type": "string"},
                            "description": "Known values of a text or int64 column, in order: a value becomes its position."
                        },
                        "one_hot": {
                            "type": "boolean",
                            "description": "Whether a category becomes one value for each of the known ones, 1 at its position and 0 elsewhere. Default: false."
                        },
                        "unknown": {
                            "type": "number",
                            "description": "Value for texts or numbers that are none of the `categories`; all are 0 with `one_hot`. Default: the record becomes a dead letter (`unknown_category`)."
                        }
                    }
                }
            ]
        })
    }
}
