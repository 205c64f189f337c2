//! Tensors that a model keeps from record to record.
use super::{Dimension, Initial};
use crate::span::Located;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// A tensor that the model gives with one record and reads with the next: the memory of a recurrent network. The option
/// `state` of the operator `ml` decides which records follow each other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// Input of the model. Its element type is that of the file.
    pub input: Located<String>,
    /// Output of the model that becomes the input with the next record.
    pub output: Located<String>,
    /// Shape of both: numbers, and `batch` as the dimension that counts records. Without it, records are run one by one.
    /// `any` is not possible, since a state has one size.
    #[schemars(schema_with = "shape")]
    pub shape: Located<Vec<Dimension>>,
    /// The first record's input. Default: zeros.
    #[serde(default = "zeros")]
    pub initial: Initial,
}

fn shape(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "items": {"anyOf": [{"enum": ["batch"]}, {"type": "integer", "minimum": 1}]}
    })
}

fn zeros() -> Initial {
    Initial::Zeros
}
