//! A YAML document as a tree in which every node has its place.
//!
//! ```
//! use serde::Deserialize;
//! use tidemill_spec::{span::SourceFile, yaml};
//! #[derive(Deserialize, Debug, PartialEq)]
//! #[serde(deny_unknown_fields)]
//! struct Options { path: String }
//!
//! let value = yaml::parse(&SourceFile::new("a.yaml", "path: data\n")).unwrap();
//! assert_eq!(value.deserialize_into::<Options>().unwrap(), Options { path: "data".into() });
//!
//! let value = yaml::parse(&SourceFile::new("a.yaml", "path: data\npaht: x\n")).unwrap();
//! let errors = value.deserialize_into::<Options>().unwrap_err();
//! assert_eq!(errors.iter().next().unwrap().line(), Some(2));
//! ```
use crate::diagnostic::Diagnostic;
use crate::span::{Located, Span};
use std::fmt;

/// One node of a document.
#[derive(Clone, Default, PartialEq)]
pub struct Value {
    /// Its content.
    pub node: Node,
    /// Its place.
    pub span: Span,
}

/// The content of a [`Value`].
#[derive(Clone, Default, PartialEq)]
pub enum Node {
    /// An empty value (`null`, `~`).
    #[default]
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Integer(i64),
    /// Any other number.
    Float(f64),
    /// Text.
    Text(Text),
    /// A list.
    List(Vec<Value>),
    /// Keys and values in the order of the file; keys are unique.
    Map(Vec<Entry>),
}

/// Text, possibly with environment variables filled in.
#[derive(Clone)]
pub struct Text {
    /// The text to use, with variables filled in.
    pub value: String,
    /// The text as written, where it differs (`${VAR}`), for printing and logging, so that credentials stay out.
    pub written: Option<String>,
}

impl PartialEq for Text {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

/// One key and value of a map.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The key.
    pub key: Located<String>,
    /// The value.
    pub value: Value,
}

impl Value {
    /// Returns a map without entries: the default of `options`.
    pub fn empty_map() -> Self {
        Node::Map(Vec::new()).into()
    }

    /// Whether this is a map without entries.
    pub(crate) fn is_empty_map(&self) -> bool {
        matches!(&self.node, Node::Map(entries) if entries.is_empty())
    }

    /// Returns the entry with this key, if this is a map that has it.
    pub fn entry(&self, key: &str) -> Option<&Entry> {
        match &self.node {
            Node::Map(entries) => entries.iter().find(|entry| entry.key.value == key),
            _ => None,
        }
    }

    /// Returns the value with this key, if this is a map that has it.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.entry(key).map(|entry| &entry.value)
    }

    /// Returns the item at this position, if this is a list that has it.
    pub fn item(&self, index: usize) -> Option<&Value> {
        self.as_list()?.get(index)
    }

    /// Returns the items, if this is a list.
    pub fn as_list(&self) -> Option<&[Value]> {
        match &self.node {
            Node::List(items) => Some(items),
            _ => None,
        }
    }

    /// Returns the text, if this is text.
    pub fn as_str(&self) -> Option<&str> {
        match &self.node {
            Node::Text(text) => Some(&text.value),
            _ => None,
        }
    }

    /// Whether the value is empty.
    pub fn is_null(&self) -> bool {
        self.node == Node::Null
    }

    /// Returns its type in words: `a list`, `text`, ...
    pub fn kind(&self) -> &'static str {
        match &self.node {
            Node::Null => "nothing",
            Node::Bool(_) => "true or false",
            Node::Integer(_) => "a whole number",
            Node::Float(_) => "a number",
            Node::Text(_) => "text",
            Node::List(_) => "a list",
            Node::Map(_) => "a map",
        }
    }

    /// Returns the span of the value at this path (see [`Value::at`]), else of its deepest existing ancestor.
    pub fn span_at(&self, path: &[Step<'_>]) -> Span {
        self.at(path).span.clone()
    }

    /// Returns the value at this path, else its deepest existing ancestor.
    pub fn at(&self, path: &[Step<'_>]) -> &Value {
        let mut here = self;
        for step in path {
            let next = match step {
                Step::Key(key) => here.get(key),
                Step::Index(index) => here.item(*index),
            };
            match next {
                Some(next) => here = next,
                None => break,
            }
        }
        here
    }

    /// Creates an error at this value's place.
    pub fn error(&self, code: &'static str, message: impl Into<String>) -> Diagnostic {
        Diagnostic::error(code, message).at(self.span.clone())
    }
}

/// One step of a path into a [`Value`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step<'a> {
    /// Into a map.
    Key(&'a str),
    /// Into a list.
    Index(usize),
}

impl From<Node> for Value {
    fn from(node: Node) -> Self {
        Self { node, span: Span::nowhere() }
    }
}

impl From<&str> for Text {
    fn from(value: &str) -> Self {
        Self { value: value.to_string(), written: None }
    }
}

/// A value without places.
impl From<&serde_json::Value> for Value {
    fn from(json: &serde_json::Value) -> Self {
        let node = match json {
            serde_json::Value::Null => Node::Null,
            serde_json::Value::Bool(b) => Node::Bool(*b),
            serde_json::Value::Number(n) => match n.as_i64() {
                Some(i) => Node::Integer(i),
                None => Node::Float(n.as_f64().unwrap_or(f64::NAN)),
            },
            serde_json::Value::String(s) => Node::Text(s.as_str().into()),
            serde_json::Value::Array(items) => Node::List(items.iter().map(Value::from).collect()),
            serde_json::Value::Object(map) => Node::Map(
                map.iter().map(|(k, v)| Entry { key: k.as_str().into(), value: v.into() }).collect(),
            ),
        };
        node.into()
    }
}

/// Prints as JSON-like text; variables as written.
impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.node.fmt(f)
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Node::Null => f.write_str("null"),
            Node::Bool(b) => b.fmt(f),
            Node::Integer(i) => i.fmt(f),
            Node::Float(x) => x.fmt(f),
            Node::Text(text) => text.fmt(f),
            Node::List(items) => f.debug_list().entries(items).finish(),
            Node::Map(entries) => {
                f.debug_map().entries(entries.iter().map(|e| (&e.key.value, &e.value))).finish()
            }
        }
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.written.as_ref().unwrap_or(&self.value).fmt(f)
    }
}

/// Any value.
impl schemars::JsonSchema for Value {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Value".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        true.into()
    }
}
