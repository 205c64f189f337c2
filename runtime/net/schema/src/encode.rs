//! Flat messages to protobuf.

use crate::Invalid;
use crate::check::{measure, present};
use crate::descriptor::Schema;
use crate::flat::{unpair, word};
use crate::layout::{Kind, Layout};
use crate::wire::{LENGTH, put_varint, slot_to_varint, wire_type};

impl Layout {
    /// Appends a flat message as protobuf, with the fields in the order of their numbers. It checks the message as
    /// [`Layout::check`] does, so bytes from a stranger need no other check.
    ///
    /// # Errors
    ///
    /// Bytes that are no message, with nothing appended.
    pub fn encode(&self, schema: &Schema, flat: &[u8], into: &mut Vec<u8>) -> Result<(), Invalid> {
        let (length, sizes) = measure(self, schema, flat)?;
        into.reserve(length);
        let start = into.len();
        let mut writer = Writer { schema, flat, into, sizes: sizes.into_iter() };
        let written = writer.message(self, 0);
        if written.is_none() {
            into.truncate(start);
            return Err(Invalid::Outside);
        }
        debug_assert_eq!(into.len(), start + length, "the walk measures what is written");
        Ok(())
    }

    /// Computes the length of a flat message as protobuf, and checks it.
    ///
    /// # Errors
    ///
    /// Bytes that are no message.
    pub fn encoded_len(&self, schema: &Schema, flat: &[u8]) -> Result<usize, Invalid> {
        measure(self, schema, flat).map(|(length, _)| length)
    }
}

struct Writer<'a> {
    schema: &'a Schema,
    flat: &'a [u8],
    into: &'a mut Vec<u8>,
    sizes: std::vec::IntoIter<usize>,
}

impl Writer<'_> {
    /// Writes the fields of a struct. None if it is not as it was when it was measured.
    fn message(&mut self, layout: &Layout, at: usize) -> Option<()> {
        for (index, field) in layout.fields.iter().enumerate() {
            let Some(slot) = present(self.flat, at, layout.words, index) else { continue };
            let tag = |wire_type: u32| u64::from(field.number << 3 | wire_type);
            if !field.repeated {
                put_varint(self.into, tag(wire_type(field.kind)));
                self.value(field.kind, slot)?;
                continue;
            }
            let (offset, count) = unpair(slot);
            if field.packed {
                put_varint(self.into, tag(LENGTH));
                put_varint(self.into, self.sizes.next()? as u64);
            }
            for element in 0..count {
                if !field.packed {
                    put_varint(self.into, tag(wire_type(field.kind)));
                }
                let slot = word(self.flat, offset + element * 8)?;
                self.value(field.kind, slot)?;
            }
        }
        Some(())
    }

    #[inline]
    fn value(&mut self, kind: Kind, slot: u64) -> Option<()> {
        match kind {
            Kind::Double | Kind::Fixed64 | Kind::Sfixed64 => self.into.extend_from_slice(&slot.to_le_bytes()),
            Kind::Float | Kind::Fixed32 | Kind::Sfixed32 => {
                self.into.extend_from_slice(&(slot as u32).to_le_bytes());
            }
            Kind::String | Kind::Bytes => {
                let (offset, length) = unpair(slot);
                put_varint(self.into, length as u64);
                self.into.extend_from_slice(self.flat.get(offset..offset + length)?);
            }
            Kind::Message(index) => {
                put_varint(self.into, self.sizes.next()? as u64);
                let schema = self.schema;
                self.message(schema.layout(index)?, unpair(slot).0)?;
            }
            _ => put_varint(self.into, slot_to_varint(kind, slot)),
        }
        Some(())
    }
}
