//! Checks of flat messages; the same walk measures them for protobuf.

use crate::Invalid;
use crate::descriptor::Schema;
use crate::flat::{Budget, MAX_DEPTH, MAX_MESSAGE, unpair, within, word};
use crate::layout::{Kind, Layout, Presence};
use crate::wire::{slot_to_varint, varint_len};

impl Layout {
    /// Checks bytes from a stranger: all that they point at lies within them, at multiples of 8; counts, depth and sizes
    /// are right; strings are UTF-8; values fit their types and their presence. Values of enums may be unknown. The
    /// work is bounded by a multiple of the length.
    ///
    /// # Errors
    ///
    /// The first thing that is wrong.
    pub fn check(&self, schema: &Schema, bytes: &[u8]) -> Result<(), Invalid> {
        let budget = Budget::new(bytes.len())?;
        Walk::<false> { schema, flat: bytes, budget, sizes: Vec::new() }.root(self).map(drop)
    }
}

/// Walk over all that a flat message reaches.
pub(crate) struct Walk<'a, const MEASURE: bool> {
    schema: &'a Schema,
    flat: &'a [u8],
    budget: Budget,
    /// Lengths in protobuf of nested messages and packed fields, in the order in which they are written.
    sizes: Vec<usize>,
}

/// Checks a flat message and gives its length in protobuf, and those of its parts in the order in which they are written.
pub(crate) fn measure(layout: &Layout, schema: &Schema, flat: &[u8]) -> Result<(usize, Vec<usize>), Invalid> {
    let budget = Budget::new(flat.len())?;
    let mut walk = Walk::<true> { schema, flat, budget, sizes: Vec::new() };
    let length = walk.root(layout)?;
    if length > MAX_MESSAGE {
        return Err(Invalid::TooLarge);
    }
    Ok((length, walk.sizes))
}

impl<const MEASURE: bool> Walk<'_, MEASURE> {
    fn root(&mut self, layout: &Layout) -> Result<usize, Invalid> {
        within(self.flat, 0, layout.size)?;
        self.budget.spend(layout.size)?;
        self.message(layout, 0, 1)
    }

    /// Checks the struct at a place that lies within the message. Gives its length in protobuf.
    fn message(&mut self, layout: &Layout, at: usize, depth: u32) -> Result<usize, Invalid> {
        if depth > MAX_DEPTH {
            return Err(Invalid::TooDeep);
        }
        let flat = self.flat;
        let part = flat.get(at..at + layout.size).ok_or(Invalid::Outside)?;
        let (presence, slots) = part.split_at(layout.words * 8);
        let mut length = 0;
        for (fields, (bits, slots)) in
            layout.fields.chunks(64).zip(presence.as_chunks::<8>().0.iter().zip(slots.chunks(512)))
        {
            let mut bits = u64::from_le_bytes(*bits);
            for (field, slot) in fields.iter().zip(slots.as_chunks::<8>().0) {
                let slot = u64::from_le_bytes(*slot);
                if bits & 1 == 0 {
                    if slot != 0 {
                        return Err(Invalid::Presence);
                    }
                    bits >>= 1;
                    continue;
                }
                bits >>= 1;
                let tag = if MEASURE { varint_len(u64::from(field.number) << 3) } else { 0 };
                if field.repeated {
                    length += self.repeated(field.kind, slot, depth, tag, field.packed)?;
                    continue;
                }
                length += tag + self.value(field.kind, slot, depth)?;
                if field.presence == Presence::Implicit {
                    let is_default = if field.kind.is_pointer() { unpair(slot).1 == 0 } else { slot == 0 };
                    if is_default {
                        return Err(Invalid::Presence);
                    }
                }
            }
            if bits != 0 {
                return Err(Invalid::Presence);
            }
        }
        for members in &layout.oneofs {
            let there = |member: &&usize| {
                presence.get(**member / 8).is_some_and(|byte| byte >> (**member % 8) & 1 == 1)
            };
            if members.iter().filter(there).nth(1).is_some() {
                return Err(Invalid::Oneof);
            }
        }
        Ok(length)
    }

    fn repeated(
        &mut self,
        kind: Kind,
        slot: u64,
        depth: u32,
        tag: usize,
        packed: bool,
    ) -> Result<usize, Invalid> {
        let (offset, count) = unpair(slot);
        let size = count.checked_mul(8).ok_or(Invalid::Outside)?;
        if count == 0 {
            return Err(Invalid::Presence);
        }
        within(self.flat, offset, size)?;
        self.budget.spend(size)?;
        let place = self.sizes.len();
        if MEASURE && packed {
            self.sizes.push(0);
        }
        let mut length = 0;
        let flat = self.flat;
        for element in flat.get(offset..offset + size).unwrap_or_default().as_chunks::<8>().0 {
            length += self.value(kind, u64::from_le_bytes(*element), depth)?;
        }
        if !MEASURE {
            return Ok(0);
        }
        Ok(if packed {
            if let Some(size) = self.sizes.get_mut(place) {
                *size = length;
            }
            tag + varint_len(length as u64) + length
        } else {
            tag * count + length
        })
    }

    /// Checks a slot. Gives the length of the value in protobuf, with that of its length.
    #[inline]
    fn value(&mut self, kind: Kind, slot: u64, depth: u32) -> Result<usize, Invalid> {
        let fits = match kind {
            Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 | Kind::Enum => i32::try_from(slot as i64).is_ok(),
            Kind::Uint32 | Kind::Fixed32 | Kind::Float => u32::try_from(slot).is_ok(),
            Kind::Bool => slot <= 1,
            Kind::String | Kind::Bytes => {
                let (offset, length) = unpair(slot);
                within(self.flat, offset, length)?;
                self.budget.spend(length)?;
                if kind == Kind::String {
                    let text = self.flat.get(offset..offset + length).unwrap_or_default();
                    std::str::from_utf8(text).map_err(|_| Invalid::Text)?;
                }
                return Ok(varint_len(length as u64) + length);
            }
            Kind::Message(index) => return self.nested(index, slot, depth),
            _ => true,
        };
        if !fits {
            return Err(Invalid::Value);
        }
        Ok(match kind {
            _ if !MEASURE => 0,
            Kind::Double | Kind::Fixed64 | Kind::Sfixed64 => 8,
            Kind::Float | Kind::Fixed32 | Kind::Sfixed32 => 4,
            _ => varint_len(slot_to_varint(kind, slot)),
        })
    }

    fn nested(&mut self, index: usize, slot: u64, depth: u32) -> Result<usize, Invalid> {
        let schema = self.schema;
        let layout = schema.layout(index).ok_or(Invalid::Size)?;
        let (offset, size) = unpair(slot);
        if size != layout.size {
            return Err(Invalid::Size);
        }
        within(self.flat, offset, size)?;
        self.budget.spend(size)?;
        let place = self.sizes.len();
        if MEASURE {
            self.sizes.push(0);
        }
        let length = self.message(layout, offset, depth + 1)?;
        if let Some(size) = self.sizes.get_mut(place) {
            *size = length;
        }
        Ok(varint_len(length as u64) + length)
    }
}

/// Reads a slot of a struct that a check has passed; none if the field is absent.
#[inline]
pub(crate) fn present(flat: &[u8], at: usize, words: usize, field: usize) -> Option<u64> {
    let bits = word(flat, at + field / 64 * 8)?;
    if bits >> (field % 64) & 1 == 0 {
        return None;
    }
    word(flat, at + 8 * (words + field))
}
