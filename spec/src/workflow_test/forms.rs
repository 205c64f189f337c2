//! Parts of a test that are written in a short or a long form.
use super::Tolerance;
use crate::span::Located;
use crate::value::Value;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{MapAccess, SeqAccess};
use serde::{Deserialize, Deserializer};
use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

/// Values by id, in the order of the file, each id with its place.
#[derive(Debug, Clone, PartialEq)]
pub struct Named<T>(Vec<(Located<String>, T)>);

impl<T> Named<T> {
    /// Ids and values.
    pub fn iter(&self) -> impl Iterator<Item = (&Located<String>, &T)> {
        self.0.iter().map(|(id, value)| (id, value))
    }

    /// The value of an id.
    pub fn get(&self, id: &str) -> Option<&T> {
        self.0.iter().find(|(name, _)| name == id).map(|(_, value)| value)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<T> Default for Named<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Named<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> serde::de::Visitor<'de> for Visitor<T> {
            type Value = Named<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map by id")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Named<T>, A::Error> {
                let mut all = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    all.push(entry);
                }
                Ok(Named(all))
            }
        }
        deserializer.deserialize_map(Visitor(PhantomData))
    }
}

impl<T: JsonSchema> JsonSchema for Named<T> {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> Cow<'static, str> {
        format!("NamedOf{}", T::schema_name()).into()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let value = generator.subschema_for::<T>();
        json_schema!({"type": "object", "additionalProperties": value})
    }
}

/// Input of a source in a test.
#[derive(Debug, Clone, PartialEq)]
pub enum SourceInput {
    /// These rows.
    Rows(Vec<Value>),
    /// The rows of a file, JSONL or CSV by its name, relative to the file with the test.
    File(Located<String>),
    /// Another source: its kind and options.
    Source {
        /// The kind.
        kind: Located<String>,
        /// All of its options.
        options: Value,
    },
    /// Two of these, or none.
    Unclear,
}

/// The long form of an input: one of `rows`, `file`, `kind` with `options`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct LongInput {
    /// The rows.
    #[serde(default)]
    rows: Option<Vec<Value>>,
    /// A file with the rows, `.jsonl` or `.csv`, relative to the file with the test.
    #[serde(default)]
    file: Option<Located<String>>,
    /// The kind of another source to read instead.
    #[serde(default)]
    kind: Option<Located<String>>,
    /// All options of the other source; its paths are relative to the workflow.
    #[serde(default)]
    options: Option<Value>,
}

/// Expected rows of a sink or an operator.
#[derive(Debug, Clone, PartialEq)]
pub struct Expected {
    /// Where they are.
    pub from: ExpectedFrom,
    /// Whether they come in this order.
    pub ordered: bool,
    /// Difference between numbers that does not count; none: that of the file.
    pub tolerance: Option<Tolerance>,
    /// Differences by column.
    pub columns: Named<Tolerance>,
}

/// Place of expected rows.
#[derive(Debug, Clone, PartialEq)]
pub enum ExpectedFrom {
    /// In the test.
    Rows(Vec<Value>),
    /// In a JSONL file, relative to the file with the test.
    File(Located<String>),
    /// In both, or nowhere.
    Unclear,
}

impl Expected {
    /// The rows, if they are in the test.
    pub fn rows(&self) -> Option<&[Value]> {
        match &self.from {
            ExpectedFrom::Rows(rows) => Some(rows),
            _ => None,
        }
    }

    /// The tolerance of a column; `otherwise` is that of the file.
    pub fn tolerance(&self, column: &str, otherwise: Tolerance) -> Tolerance {
        self.columns.get(column).copied().or(self.tolerance).unwrap_or(otherwise)
    }
}

/// The long form of expected rows.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct LongExpected {
    /// The rows. Columns that none of them names are not compared.
    #[serde(default)]
    rows: Option<Vec<Value>>,
    /// A JSONL file with the rows, relative to the file with the test.
    #[serde(default)]
    file: Option<Located<String>>,
    /// Whether the order counts. Default: false.
    #[serde(default)]
    ordered: bool,
    /// Difference between numbers that does not count. Default: that of the file.
    #[serde(default)]
    tolerance: Option<Tolerance>,
    /// The same by column.
    #[serde(default)]
    columns: Named<Tolerance>,
}

/// Reads a list of rows, or a map in the long form.
struct Forms<S, L>(&'static str, S, L);

impl<'de, T, L, S, M> serde::de::Visitor<'de> for Forms<S, (M, PhantomData<L>)>
where
    L: Deserialize<'de>,
    S: FnOnce(Vec<Value>) -> T,
    M: FnOnce(L) -> T,
{
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, rows: A) -> Result<T, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(rows)).map(self.1)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        L::deserialize(MapAccessDeserializer::new(map)).map(self.2.0)
    }
}

impl<'de> Deserialize<'de> for SourceInput {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let long = |long: LongInput| match (long.rows, long.file, long.kind, long.options) {
            (Some(rows), None, None, None) => Self::Rows(rows),
            (None, Some(file), None, None) => Self::File(file),
            (None, None, Some(kind), options) => {
                Self::Source { kind, options: options.unwrap_or_else(Value::empty_map) }
            }
            _ => Self::Unclear,
        };
        deserializer.deserialize_any(Forms(
            "a list of rows, or a map with `rows`, `file`, or `kind` and `options`",
            Self::Rows,
            (long, PhantomData),
        ))
    }
}

impl<'de> Deserialize<'de> for Expected {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let short = |rows| Self {
            from: ExpectedFrom::Rows(rows),
            ordered: false,
            tolerance: None,
            columns: Named::default(),
        };
        let long = |long: LongExpected| Self {
            from: match (long.rows, long.file) {
                (Some(rows), None) => ExpectedFrom::Rows(rows),
                (None, Some(file)) => ExpectedFrom::File(file),
                _ => ExpectedFrom::Unclear,
            },
            ordered: long.ordered,
            tolerance: long.tolerance,
            columns: long.columns,
        };
        let expecting = "a list of rows, or a map with `rows` or `file`";
        deserializer.deserialize_any(Forms(expecting, short, (long, PhantomData)))
    }
}

/// A list of rows, or a map.
fn schema_of<L: JsonSchema>(generator: &mut SchemaGenerator, description: &str) -> Schema {
    let long = generator.subschema_for::<L>();
    json_schema!({
        "description": description,
        "anyOf": [{"type": "array", "items": {"type": "object"}}, long]
    })
}

impl JsonSchema for SourceInput {
    fn schema_name() -> Cow<'static, str> {
        "SourceInput".into()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        schema_of::<LongInput>(generator, "Rows, or a map with rows, a file or another source.")
    }
}

impl JsonSchema for Expected {
    fn schema_name() -> Cow<'static, str> {
        "Expected".into()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        schema_of::<LongExpected>(
            generator,
            "Expected rows, or a map with rows or a file and how to compare them.",
        )
    }
}
