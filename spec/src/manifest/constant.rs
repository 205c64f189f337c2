//! Inputs that have the same value for every record.
use crate::span::Located;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An input of the model that no column feeds, such as a sample rate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Constant {
    /// Name of the model's input. Its element type and shape are those of the file.
    pub name: Located<String>,
    /// One value for all elements, or one for each in the order of memory. A free dimension of the file is 1; the first is
    /// the number of records if the model runs several at once.
    pub value: Located<ConstantValue>,
}

/// Value of a constant; truth values are 0 and 1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum ConstantValue {
    /// One for all elements.
    One(f64),
    /// One for each element.
    Each(Vec<f64>),
}

impl ConstantValue {
    /// The values, one if it is for all elements.
    pub fn values(&self) -> &[f64] {
        match self {
            Self::One(value) => std::slice::from_ref(value),
            Self::Each(values) => values,
        }
    }
}
