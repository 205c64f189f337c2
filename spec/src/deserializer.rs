//! Converts a [`Value`] to the types of the program, with every error at its place.
//!
//! Serde stops at the first error. `deserialize_recovering` records the error, leaves the offending node out and tries
//! again until no error is left, so one run reports all of them.
mod failure;
mod places;

pub use failure::coded;

use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::span::Located;
use crate::value::{Entry, Node, Text, Value};
use failure::Failure;
use places::{LOCATED, SPAN, TREE, VALUE};
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, EnumAccess, MapAccess, SeqAccess, VariantAccess, Visitor,
};
use std::collections::HashSet;

/// Errors after which the search stops: the file is of another kind.
const MOST_ERRORS: usize = 32;

/// Identity of a node while its tree is borrowed: its address.
type NodeId = usize;

fn id_of(value: &Value) -> NodeId {
    std::ptr::from_ref(value) as usize
}

/// Converts a tree; finds as many errors as it can.
pub(crate) fn deserialize_recovering<T: DeserializeOwned>(value: &Value) -> Result<T, Diagnostics> {
    match deserialize_partly(value) {
        (Some(result), found) if found.is_empty() => Ok(result),
        (_, found) => Err(found),
    }
}

/// Converts a tree and leaves out what is wrong in it; nothing if the rest does not make a whole.
pub(crate) fn deserialize_partly<T: DeserializeOwned>(value: &Value) -> (Option<T>, Diagnostics) {
    let mut left_out = LeftOut::default();
    let mut found = Diagnostics::new();
    for _ in 0..MOST_ERRORS {
        let failure = match T::deserialize(Reader { value, left_out: &left_out }) {
            Ok(result) => return (Some(result), found),
            Err(failure) => failure,
        };
        let (node, span) = failure.place.clone().unwrap_or_else(|| (id_of(value), value.span.clone()));
        if !left_out.explains(value, node, failure.missing) {
            let mut diagnostic = Diagnostic::error(failure.code, failure.message.as_str()).at(span);
            diagnostic.help = failure.help.clone();
            found.push(diagnostic);
        }
        if node == id_of(value) || !left_out.add(node, failure.code == "E0103") {
            break;
        }
    }
    (None, found)
}

/// Nodes with reported errors.
#[derive(Default)]
struct LeftOut {
    nodes: HashSet<NodeId>,
    unknown_keys: HashSet<NodeId>,
}

impl LeftOut {
    fn add(&mut self, node: NodeId, unknown_key: bool) -> bool {
        if unknown_key {
            self.unknown_keys.insert(node);
        }
        self.nodes.insert(node)
    }

    fn has(&self, value: &Value) -> bool {
        self.nodes.contains(&id_of(value))
    }

    /// Whether a failure at `node` only follows from nodes left out below it.
    fn explains(&self, root: &Value, node: NodeId, missing: Option<&str>) -> bool {
        if self.nodes.is_empty() {
            return false;
        }
        let Some(value) = find(root, node) else { return false };
        let bad = |child: &Value| self.has(child) && !self.unknown_keys.contains(&id_of(child));
        match (&value.node, missing) {
            (Node::Map(entries), Some(key)) => {
                entries.iter().any(|entry| entry.key.value == key && bad(&entry.value))
            }
            (Node::Map(entries), None) => entries.iter().any(|entry| bad(&entry.value)),
            (Node::List(items), _) => items.iter().any(bad),
            _ => false,
        }
    }
}

fn find(here: &Value, node: NodeId) -> Option<&Value> {
    if id_of(here) == node {
        return Some(here);
    }
    match &here.node {
        Node::List(items) => items.iter().find_map(|item| find(item, node)),
        Node::Map(entries) => entries.iter().find_map(|entry| find(&entry.value, node)),
        _ => None,
    }
}

/// The serde deserializer of one node.
#[derive(Clone, Copy)]
struct Reader<'a> {
    value: &'a Value,
    left_out: &'a LeftOut,
}

impl<'a> Reader<'a> {
    fn child(self, value: &'a Value) -> Self {
        Self { value, left_out: self.left_out }
    }

    fn place<T>(self, result: Result<T, Failure>) -> Result<T, Failure> {
        result.map_err(|failure| {
            let failure = match &self.value.node {
                Node::Text(Text { written: Some(written), .. }) if failure.place.is_none() => {
                    failure.without_value(written)
                }
                Node::Float(_) if failure.place.is_none() => failure.with_number(self.value.span.text()),
                _ => failure,
            };
            failure.at(id_of(self.value), &self.value.span)
        })
    }

    fn visit<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        match &self.value.node {
            Node::Null => visitor.visit_unit(),
            Node::Bool(b) => visitor.visit_bool(*b),
            Node::Integer(i) => match u64::try_from(*i) {
                Ok(natural) => visitor.visit_u64(natural),
                Err(_) => visitor.visit_i64(*i),
            },
            Node::Float(x) => visitor.visit_f64(*x),
            Node::Text(text) => visitor.visit_str(&text.value),
            Node::List(items) => visitor.visit_seq(Items { reader: self, rest: items.iter() }),
            Node::Map(entries) => {
                visitor.visit_map(Entries { reader: self, rest: entries.iter(), current: None })
            }
        }
    }
}

impl<'de> de::Deserializer<'de> for Reader<'_> {
    type Error = Failure;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        self.place(self.visit(visitor))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        match self.value.node {
            Node::Null => visitor.visit_none(),
            _ => self.place(visitor.visit_some(self)),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Failure> {
        match name {
            LOCATED => SPAN.set(Some(self.value.span.clone())),
            VALUE => TREE.set(Some(self.value.clone())),
            _ => {}
        }
        self.place(visitor.visit_newtype_struct(self))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Failure> {
        let result = match &self.value.node {
            Node::Text(_) => visitor.visit_enum(Choice { reader: self, entry: None }),
            Node::Map(entries) => {
                let mut present = entries.iter().filter(|entry| !self.left_out.has(&entry.value));
                match (present.next(), present.next()) {
                    (Some(entry), None) => visitor.visit_enum(Choice { reader: self, entry: Some(entry) }),
                    _ => Err(Failure::new(
                        "E0105",
                        format!("expected a map with exactly one key, found {} keys", entries.len()),
                        Some("write each as an item of its own, `- key: {...}`".to_string()),
                    )),
                }
            }
            _ => self.visit(visitor),
        };
        self.place(result)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        visitor.visit_unit()
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        seq tuple tuple_struct map struct identifier
    }
}

struct Items<'a> {
    reader: Reader<'a>,
    rest: std::slice::Iter<'a, Value>,
}

impl<'de> SeqAccess<'de> for Items<'_> {
    type Error = Failure;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Failure> {
        match self.rest.by_ref().find(|item| !self.reader.left_out.has(item)) {
            // Errors that a type raises after its fields were read belong to the item too.
            Some(item) => {
                let reader = self.reader.child(item);
                reader.place(seed.deserialize(reader).map(Some))
            }
            None => Ok(None),
        }
    }
}

struct Entries<'a> {
    reader: Reader<'a>,
    rest: std::slice::Iter<'a, Entry>,
    current: Option<&'a Entry>,
}

impl<'de> MapAccess<'de> for Entries<'_> {
    type Error = Failure;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Failure> {
        self.current = self.rest.by_ref().find(|entry| !self.reader.left_out.has(&entry.value));
        match self.current {
            Some(entry) => seed
                .deserialize(Key(&entry.key))
                .map(Some)
                .map_err(|failure| failure.at(id_of(&entry.value), &entry.key.span)),
            None => Ok(None),
        }
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Failure> {
        match self.current {
            Some(entry) => {
                let reader = self.reader.child(&entry.value);
                reader.place(seed.deserialize(reader))
            }
            None => Err(de::Error::custom("a value was requested before its key")),
        }
    }
}

struct Key<'a>(&'a Located<String>);

impl<'de> de::Deserializer<'de> for Key<'_> {
    type Error = Failure;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        visitor.visit_str(&self.0.value)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Failure> {
        if name == LOCATED {
            SPAN.set(Some(self.0.span.clone()));
        }
        visitor.visit_newtype_struct(self)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

/// A variant: a text, or a map with one key.
struct Choice<'a> {
    reader: Reader<'a>,
    entry: Option<&'a Entry>,
}

impl<'de, 'a> EnumAccess<'de> for Choice<'a> {
    type Error = Failure;
    type Variant = Choice<'a>;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), Failure> {
        let variant = match self.entry {
            Some(entry) => seed
                .deserialize(Key(&entry.key))
                .map_err(|failure| failure.at(id_of(self.reader.value), &entry.key.span))?,
            None => seed.deserialize(self.reader)?,
        };
        Ok((variant, self))
    }
}

impl Choice<'_> {
    fn content<T>(&self, read: impl FnOnce(Reader<'_>) -> Result<T, Failure>) -> Result<T, Failure> {
        match self.entry {
            Some(entry) => {
                let reader = self.reader.child(&entry.value);
                reader.place(read(reader))
            }
            None => Err(Failure::new(
                "E0105",
                "this needs a value of its own".to_string(),
                Some("write it as a map with one key, `name: {...}`".to_string()),
            )),
        }
    }
}

impl<'de> VariantAccess<'de> for Choice<'_> {
    type Error = Failure;

    fn unit_variant(self) -> Result<(), Failure> {
        match self.entry {
            None => Ok(()),
            Some(entry) if entry.value.is_null() => Ok(()),
            Some(entry) => Err(Failure::new(
                "E0105",
                format!("`{}` takes no value", entry.key),
                Some(format!("write `{}` alone", entry.key)),
            )
            .at(id_of(&entry.value), &entry.value.span)),
        }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Failure> {
        self.content(|reader| seed.deserialize(reader))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _len: usize, visitor: V) -> Result<V::Value, Failure> {
        self.content(|reader| de::Deserializer::deserialize_any(reader, visitor))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Failure> {
        self.content(|reader| de::Deserializer::deserialize_any(reader, visitor))
    }
}
