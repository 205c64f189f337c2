//! Columns that sources and operators build: their declared types, builders and names.
pub(crate) mod tensor;

use crate::relational::expression::Cell;
use arrow_array::ArrayRef;
use arrow_array::builder::{ArrayBuilder, BooleanBuilder, Float64Builder, Int64Builder, StringBuilder};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tensor::TensorBuilder;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::span::Located;
use tidemill_spec::types::ColumnType;
use tidemill_spec::value::Value;

/// Type of a column of plain values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScalarType {
    /// 64-bit signed integer.
    Int64,
    /// 64-bit float.
    Float64,
    /// UTF-8 text.
    Text,
    /// True or false.
    Bool,
}

impl From<ScalarType> for ColumnType {
    fn from(scalar: ScalarType) -> Self {
        match scalar {
            ScalarType::Int64 => ColumnType::Int64,
            ScalarType::Float64 => ColumnType::Float64,
            ScalarType::Text => ColumnType::Text,
            ScalarType::Bool => ColumnType::Bool,
        }
    }
}

/// Type of a column that a source reads: a plain value, or a tensor such as `tensor<float32>[8]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeclaredType(pub(crate) ColumnType);

impl DeclaredType {
    /// Reads the type of a column.
    ///
    /// # Errors
    /// Another type, with its place.
    pub(crate) fn of(value: &Value) -> Result<Self, Diagnostics> {
        let wrong = |message: String, help: &str| {
            Diagnostics::from(value.error("E0606", message).with_help(help.to_owned()))
        };
        let Some(written) = value.as_str().filter(|text| text.trim_start().starts_with("tensor")) else {
            return value.deserialize_into::<ScalarType>().map(|scalar| Self(scalar.into()));
        };
        match ColumnType::named(written) {
            Some(ColumnType::Tensor { shape, .. })
                if shape.iter().product::<usize>() > tensor::MOST_VALUES =>
            {
                let message = format!("`{written}` has more than {} values", tensor::MOST_VALUES);
                Err(wrong(message, "declare a smaller tensor"))
            }
            Some(column_type) => Ok(Self(column_type)),
            None => Err(wrong(
                format!("`{written}` is not the type of a tensor"),
                "write the type of its values and its shape, as in \"tensor<float32>[8]\" or \"tensor<int64>[2, 3]\"; \
                 values are float32, float16, float64, int64, int32, int8, uint8, bool or text",
            )),
        }
    }
}

impl JsonSchema for DeclaredType {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "DeclaredType".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "Type of a column: a plain value, or a tensor with the type of its values and its shape.",
            "anyOf": [
                {"enum": ["int64", "float64", "text", "bool"]},
                {
                    "type": "string",
                    "pattern": "^tensor<(float32|float16|float64|int64|int32|int8|uint8|bool|text)>\\[[0-9, ]*\\]$",
                    "examples": ["tensor<float32>[8]"]
                }
            ]
        })
    }
}

/// Refuses names that a new column cannot have.
pub(crate) fn declared_name(name: &Located<String>) -> Result<(), Diagnostic> {
    let wrong = if name.is_empty() {
        "a column needs a name".to_owned()
    } else if name.starts_with('_') {
        format!("the column name `{name}` starts with `_`, which is reserved for metadata")
    } else {
        return Ok(());
    };
    Err(Diagnostic::error("E0606", wrong).at(name.span.clone()).with_help("choose a name such as `value`"))
}

/// Builds a column of plain values or tensors.
pub(crate) enum ScalarBuilder {
    Int64(Int64Builder),
    Float64(Float64Builder),
    Text(StringBuilder),
    Bool(BooleanBuilder),
    Tensor(Box<TensorBuilder>),
}

impl ScalarBuilder {
    /// Creates a builder for `rows` rows; types that are neither plain nor tensors are taken as text.
    pub(crate) fn new(column_type: &ColumnType, rows: usize) -> Self {
        match column_type {
            ColumnType::Int64 => Self::Int64(Int64Builder::with_capacity(rows)),
            ColumnType::Float64 => Self::Float64(Float64Builder::with_capacity(rows)),
            ColumnType::Bool => Self::Bool(BooleanBuilder::with_capacity(rows)),
            ColumnType::Tensor { element, shape } => {
                Self::Tensor(Box::new(TensorBuilder::new(*element, shape, rows)))
            }
            _ => Self::Text(StringBuilder::with_capacity(rows, rows * 16)),
        }
    }

    pub(crate) fn append_null(&mut self) {
        match self {
            Self::Int64(builder) => builder.append_null(),
            Self::Float64(builder) => builder.append_null(),
            Self::Text(builder) => builder.append_null(),
            Self::Bool(builder) => builder.append_null(),
            Self::Tensor(builder) => builder.append_null(),
        }
    }

    /// Appends a value; an error says why it does not fit, then nothing is appended.
    pub(crate) fn append_cell(&mut self, cell: Cell<'_>) -> Result<(), String> {
        match (self, cell) {
            (builder, Cell::Null) => builder.append_null(),
            (Self::Int64(builder), Cell::Int(value)) => builder.append_value(value),
            (Self::Float64(builder), Cell::Float(value)) => builder.append_value(value),
            (Self::Float64(builder), Cell::Int(value)) => builder.append_value(value as f64),
            (Self::Text(builder), Cell::Text(value)) => builder.append_value(value),
            (Self::Bool(builder), Cell::Bool(value)) => builder.append_value(value),
            (Self::Tensor(builder), Cell::Tensor(bytes)) => return builder.append(bytes),
            (_, other) => return Err(format!("the type of {other:?} is not that of the column")),
        }
        Ok(())
    }

    pub(crate) fn finish(&mut self) -> ArrayRef {
        match self {
            Self::Int64(builder) => ArrayBuilder::finish(builder),
            Self::Float64(builder) => ArrayBuilder::finish(builder),
            Self::Text(builder) => ArrayBuilder::finish(builder),
            Self::Bool(builder) => ArrayBuilder::finish(builder),
            Self::Tensor(builder) => builder.finish(),
        }
    }
}

/// A column name, or a list of them.
#[derive(Debug, Clone, Default)]
pub(crate) struct OneOrMany(pub(crate) Vec<Located<String>>);

impl<'de> Deserialize<'de> for OneOrMany {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let name = |value: &Value| match value.as_str() {
            Some(text) => Ok(Located::new(text.to_owned(), value.span.clone())),
            None => Err(serde::de::Error::custom(format!(
                "found {}, expected the name of a column",
                value.kind()
            ))),
        };
        match value.as_list() {
            Some(items) => items.iter().map(name).collect::<Result<_, _>>().map(Self),
            None => Ok(Self(vec![name(&value)?])),
        }
    }
}

impl JsonSchema for OneOrMany {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "OneOrMany".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]})
    }
}
