//! Positions in a file: [`SourceFile`], [`Span`] and [`Located`].
//!
//! ```
//! use tidemill_spec::span::{Located, SourceFile, Span};
//! let source = SourceFile::new("workflow.yaml", "version: 1\nname: vqa\n");
//! let name = Located::new("vqa".to_string(), Span::new(&source, 17, 20));
//! assert_eq!((name.span.line(), name.span.column()), (Some(2), Some(7)));
//! assert_eq!(name, Located::from("vqa".to_string())); // positions do not take part in comparisons
//! ```
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// A file's name and text, shared by everything read from it.
#[derive(Debug, PartialEq, Eq)]
pub struct SourceFile {
    name: String,
    text: String,
}

impl SourceFile {
    /// Creates a source; `name` is shown to users (usually the path as they gave it).
    pub fn new(name: impl Into<String>, text: impl Into<String>) -> Arc<Self> {
        Arc::new(Self { name: name.into(), text: text.into() })
    }

    /// Returns the name shown in diagnostics.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the whole text.
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// A range of bytes of a [`SourceFile`], or "nowhere" for values made by a program.
///
/// Two spans are always equal: positions never affect the equality of specifications.
#[derive(Clone, Default)]
pub struct Span {
    source: Option<Arc<SourceFile>>,
    start: usize,
    end: usize,
}

impl Span {
    /// Creates the span `start..end` of a source; clamped to the text and to character borders.
    pub fn new(source: &Arc<SourceFile>, start: usize, end: usize) -> Self {
        let start = source.text.floor_char_boundary(start);
        let end = source.text.floor_char_boundary(end).max(start);
        Self { source: Some(Arc::clone(source)), start, end }
    }

    /// Creates a span without a file.
    pub fn nowhere() -> Self {
        Self::default()
    }

    /// Returns the source, unless the span is nowhere.
    pub fn source(&self) -> Option<&Arc<SourceFile>> {
        self.source.as_ref()
    }

    /// Returns the byte offsets in the source.
    pub fn range(&self) -> std::ops::Range<usize> {
        self.start..self.end
    }

    /// Returns the covered text.
    pub fn text(&self) -> Option<&str> {
        self.source.as_ref()?.text.get(self.start..self.end)
    }

    /// Returns the line, counted from 1.
    pub fn line(&self) -> Option<usize> {
        let before = self.source.as_ref()?.text.get(..self.start)?;
        Some(before.matches('\n').count() + 1)
    }

    /// Returns the column in characters, counted from 1.
    pub fn column(&self) -> Option<usize> {
        let before = self.source.as_ref()?.text.get(..self.start)?;
        let line = before.rfind('\n').map_or(before, |newline| &before[newline + 1..]);
        Some(line.chars().count() + 1)
    }

    /// Returns the whole line on which the span starts, without the line break.
    pub fn line_text(&self) -> Option<&str> {
        let text = self.source.as_ref()?.text.as_str();
        let start = text.get(..self.start)?.rfind('\n').map_or(0, |newline| newline + 1);
        let end = text[self.start..].find('\n').map_or(text.len(), |newline| self.start + newline);
        Some(text[start..end].trim_end_matches('\r'))
    }
}

impl PartialEq for Span {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Span {}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.source, self.line(), self.column()) {
            (Some(source), Some(line), Some(column)) => write!(f, "{}:{line}:{column}", source.name),
            _ => f.write_str("nowhere"),
        }
    }
}

/// A value with its position. Behaves like the value (`Deref`, `Display`, comparison, serde).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Located<T> {
    /// The value.
    pub value: T,
    /// Its position.
    pub span: Span,
}

impl<T> Located<T> {
    /// Creates a value with its position.
    pub fn new(value: T, span: Span) -> Self {
        Self { value, span }
    }
}

impl<T> From<T> for Located<T> {
    fn from(value: T) -> Self {
        Self { value, span: Span::nowhere() }
    }
}

impl From<&str> for Located<String> {
    fn from(value: &str) -> Self {
        Self::from(value.to_string())
    }
}

impl<T> Deref for Located<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: fmt::Display> fmt::Display for Located<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

impl PartialEq<str> for Located<String> {
    fn eq(&self, other: &str) -> bool {
        self.value == other
    }
}

impl PartialEq<&str> for Located<String> {
    fn eq(&self, other: &&str) -> bool {
        self.value == *other
    }
}

impl<T: Serialize> Serialize for Located<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.value.serialize(serializer)
    }
}

impl<T: JsonSchema> JsonSchema for Located<T> {
    fn inline_schema() -> bool {
        T::inline_schema()
    }
    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }
    fn schema_id() -> Cow<'static, str> {
        T::schema_id()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        T::json_schema(generator)
    }
}
