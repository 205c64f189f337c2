//! Inputs that have the same value for every record.
use crate::span::Located;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt;

/// An input of the model that no column feeds, such as a sample rate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Constant {
    /// Name of the model's input. Its element type and shape are those of the file.
    pub name: Located<String>,
    /// One value for all elements, or one for each in the order of memory; whole numbers are kept exactly, and a number that
    /// the element type does not have is an error. A free dimension of the file is 1; the first is
    /// the number of records if the model runs several at once.
    pub value: Located<ConstantValue>,
}

/// Value of a constant; truth values are 0 and 1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum ConstantValue {
    /// One for all elements.
    One(Number),
    /// One for each element.
    Each(Vec<Number>),
}

impl ConstantValue {
    /// The values, one if it is for all elements.
    pub fn values(&self) -> &[Number] {
        match self {
            Self::One(value) => std::slice::from_ref(value),
            Self::Each(values) => values,
        }
    }
}

/// A number as it is written: whole ones are kept exactly.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Number {
    /// A whole number.
    Whole(i64),
    /// Any other.
    Real(f64),
}

impl Number {
    /// Returns whether it is neither infinite nor NaN.
    pub fn is_finite(self) -> bool {
        match self {
            Self::Whole(_) => true,
            Self::Real(value) => value.is_finite(),
        }
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(value) => value.fmt(f),
            Self::Real(value) => value.fmt(f),
        }
    }
}

impl JsonSchema for Number {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> Cow<'static, str> {
        "Number".into()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        f64::json_schema(generator)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_are_kept_exactly() {
        let source =
            crate::span::SourceFile::new("c.yaml", "{name: x, value: [9007199254740993, 1, 1.5, 2.0]}");
        let read = crate::yaml::parse(&source).and_then(|value| value.deserialize_into::<Constant>());
        let Ok(constant) = read else { panic!("it is a constant") };
        let expected =
            [Number::Whole(9_007_199_254_740_993), Number::Whole(1), Number::Real(1.5), Number::Real(2.0)];
        assert_eq!(constant.value.values(), expected);
    }
}
