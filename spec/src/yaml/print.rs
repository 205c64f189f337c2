//! Program types to text. Texts of a [`Value`] are printed with their variables as written, so that credentials stay out.
use super::rows;
use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::value::{Node, Value};
use crate::variables;
use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Serialize, Serializer};
use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;

thread_local! {
    // Texts of a `Value` come with their variables as written, all others must be escaped. Serde cannot distinguish the
    // two, so the former are marked while a document is printed.
    static PRINTING: Cell<bool> = const { Cell::new(false) };
}

/// Mark of texts that need no escaping; a private-use character, removed before output.
const MARK: char = '\u{F8FE}';

/// The text as in the file, marked if a document is being printed.
fn as_written(text: &str) -> Cow<'_, str> {
    if PRINTING.get() { format!("{MARK}{text}").into() } else { text.into() }
}

/// Prints as YAML; [`parse`](super::parse) restores the value.
///
/// # Errors
/// `E0101` if the value has no form in YAML (a map with keys that are not text).
pub fn print<T: Serialize>(value: &T) -> Result<String, Diagnostics> {
    let tree = serde_json::to_value(value).map_err(|error| unprintable(&error))?;
    serde_saphyr::to_string(&tree).map_err(|error| unprintable(&error))
}

/// Prints as YAML with everything on one line that fits, for files that are tables; [`parse`](super::parse) restores
/// the value.
///
/// # Errors
/// As [`print`].
pub fn print_in_rows<T: Serialize>(value: &T) -> Result<String, Diagnostics> {
    let tree = serde_json::to_value(value).map_err(|error| unprintable(&error))?;
    Ok(rows::print(&tree))
}

/// Prints a document in which variables are filled in: `${` is escaped unless it was in the file.
///
/// # Errors
/// As [`print`].
pub(crate) fn print_with_variables<T: Serialize>(value: &T) -> Result<String, Diagnostics> {
    PRINTING.set(true);
    let tree = serde_json::to_value(value);
    PRINTING.set(false);
    let mut tree = tree.map_err(|error| unprintable(&error))?;
    escape(&mut tree);
    print(&tree)
}

fn unprintable(error: &dyn fmt::Display) -> Diagnostics {
    Diagnostic::error("E0101", format!("cannot be printed: {error}")).into()
}

fn escape(tree: &mut serde_json::Value) {
    match tree {
        serde_json::Value::String(text) => {
            *text = match text.strip_prefix(MARK) {
                Some(written) => written.to_string(),
                None => variables::escaped(text),
            };
        }
        serde_json::Value::Array(items) => items.iter_mut().for_each(escape),
        serde_json::Value::Object(map) => map.values_mut().for_each(escape),
        _ => {}
    }
}

/// Variables are written as in the file, so that credentials stay out.
impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.node {
            Node::Null => serializer.serialize_unit(),
            Node::Bool(b) => serializer.serialize_bool(*b),
            Node::Integer(i) => serializer.serialize_i64(*i),
            Node::Float(x) => serializer.serialize_f64(*x),
            Node::Text(text) => match &text.written {
                Some(written) => serializer.serialize_str(&as_written(written)),
                None => serializer.serialize_str(&text.value),
            },
            Node::List(items) => {
                let mut out = serializer.serialize_seq(Some(items.len()))?;
                for item in items {
                    out.serialize_element(item)?;
                }
                out.end()
            }
            Node::Map(entries) => {
                let mut out = serializer.serialize_map(Some(entries.len()))?;
                for entry in entries {
                    out.serialize_entry(&entry.key.value, &entry.value)?;
                }
                out.end()
            }
        }
    }
}
