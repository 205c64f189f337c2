//! Reading of flat messages by their schema, for policies and tools.

use crate::check::present;
use crate::descriptor::Schema;
use crate::flat::{unpair, word};
use crate::layout::{Kind, Layout};

/// Value of a field, borrowed from the message.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    /// Signed number of 32 or 64 bits, or an enum.
    I64(i64),
    /// Unsigned number of 32 or 64 bits.
    U64(u64),
    /// Float of 64 bits.
    F64(f64),
    /// Float of 32 bits.
    F32(f32),
    /// True or false.
    Bool(bool),
    /// Text.
    Str(&'a str),
    /// Bytes.
    Bytes(&'a [u8]),
    /// Message within this one.
    Message(MessageRef<'a>),
    /// List, or the entries of a map.
    List(List<'a>),
}

/// Message within a flat message.
#[derive(Clone, Copy, Debug)]
pub struct MessageRef<'a> {
    schema: &'a Schema,
    layout: &'a Layout,
    flat: &'a [u8],
    at: usize,
}

impl<'a> MessageRef<'a> {
    /// Gives its layout.
    pub fn layout(&self) -> &'a Layout {
        self.layout
    }

    /// Reads a field by its index; none if it is absent, or the bytes are no message.
    pub fn get(&self, field: usize) -> Option<Value<'a>> {
        let about = self.layout.fields.get(field)?;
        let slot = present(self.flat, self.at, self.layout.words, field)?;
        if !about.repeated {
            return value(self.schema, self.flat, about.kind, slot);
        }
        let (at, count) = unpair(slot);
        // An array that leads out of the message is as long as it can be within.
        let count = count.min(self.flat.len().saturating_sub(at) / 8);
        Some(Value::List(List { schema: self.schema, kind: about.kind, flat: self.flat, at, count }))
    }
}

/// List within a flat message.
#[derive(Clone, Copy, Debug)]
pub struct List<'a> {
    schema: &'a Schema,
    kind: Kind,
    flat: &'a [u8],
    at: usize,
    count: usize,
}

impl<'a> List<'a> {
    /// Gives the number of elements.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Says whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Reads an element; none after the end, or if the bytes are no message.
    pub fn get(&self, index: usize) -> Option<Value<'a>> {
        if index >= self.count {
            return None;
        }
        value(self.schema, self.flat, self.kind, word(self.flat, self.at + index * 8)?)
    }

    /// Reads the elements one after the other.
    pub fn iter(self) -> impl Iterator<Item = Value<'a>> {
        (0..self.count).map_while(move |index| self.get(index))
    }
}

fn value<'a>(schema: &'a Schema, flat: &'a [u8], kind: Kind, slot: u64) -> Option<Value<'a>> {
    let bytes = || {
        let (offset, length) = unpair(slot);
        flat.get(offset..offset.checked_add(length)?)
    };
    Some(match kind {
        Kind::Double => Value::F64(f64::from_bits(slot)),
        Kind::Float => Value::F32(f32::from_bits(slot as u32)),
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 | Kind::Enum => Value::I64(i64::from(slot as i32)),
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => Value::I64(slot as i64),
        Kind::Uint32 | Kind::Fixed32 => Value::U64(u64::from(slot as u32)),
        Kind::Uint64 | Kind::Fixed64 => Value::U64(slot),
        Kind::Bool => Value::Bool(slot != 0),
        Kind::String => Value::Str(std::str::from_utf8(bytes()?).ok()?),
        Kind::Bytes => Value::Bytes(bytes()?),
        Kind::Message(index) => {
            let layout = schema.layout(index)?;
            let (at, size) = unpair(slot);
            if size != layout.size || at.checked_add(size)? > flat.len() {
                return None;
            }
            Value::Message(MessageRef { schema, layout, flat, at })
        }
    })
}

impl Layout {
    /// Reads a field of a flat message by its index. None if it is absent; bytes that were not checked may give none, too,
    /// or a value that makes no sense.
    pub fn get<'a>(&'a self, schema: &'a Schema, flat: &'a [u8], field: usize) -> Option<Value<'a>> {
        self.view(schema, flat).get(field)
    }

    /// Views the root of a flat message.
    pub fn view<'a>(&'a self, schema: &'a Schema, flat: &'a [u8]) -> MessageRef<'a> {
        MessageRef { schema, layout: self, flat, at: 0 }
    }
}
