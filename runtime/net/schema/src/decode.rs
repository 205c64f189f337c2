//! Protobuf to flat messages.

use bytes::{Bytes, BytesMut};

use crate::Invalid;
use crate::descriptor::Schema;
use crate::flat::{self, MAX_DEPTH, MAX_MESSAGE, OWN_SEGMENT, align, pair, reserve};
use crate::layout::{Field, Kind, Layout, Presence};
use crate::wire::{LENGTH, Wire, wire_type};

impl Layout {
    /// Reads a message out of protobuf bytes, by the rules of proto3: elements packed or not, the last value of a field
    /// wins, messages that come twice are merged, unknown fields and fields of another type are left out. Gives the
    /// segments of the flat message; long `bytes` fields are slices of `proto`, without a copy.
    ///
    /// # Errors
    ///
    /// Malformed bytes, groups, strings that are not UTF-8, and messages that are too large or too deep.
    pub fn decode(&self, schema: &Schema, proto: &Bytes) -> Result<Vec<Bytes>, Invalid> {
        if proto.len() > MAX_MESSAGE {
            return Err(Invalid::TooLarge);
        }
        let mut decoder = Decoder {
            schema,
            flat: Vec::with_capacity(self.size + 2 * proto.len().min(OWN_SEGMENT)),
            outside: Vec::new(),
            outside_length: 0,
            states: Vec::new(),
            merged: 0,
        };
        let at = decoder.reserve(self.size)?;
        decoder.message(self, proto, at, 1)?;
        let Decoder { flat, outside, .. } = decoder;
        Ok(flat::segments(flat, outside))
    }
}

/// State of a field while its message is read.
#[derive(Clone, Copy, Default)]
struct State {
    /// Number of elements, or of times that it came.
    count: usize,
    /// Range of the value that came last, of a field with a length.
    range: (usize, usize),
    /// Place of its first value since it was last unset by another member of its oneof.
    since: usize,
    /// Place of the next element of a repeated field.
    next: usize,
}

struct Decoder<'s> {
    schema: &'s Schema,
    flat: Vec<u8>,
    outside: Vec<(usize, Bytes)>,
    outside_length: usize,
    /// States of the fields, then of the oneofs, of all messages that are open.
    states: Vec<State>,
    /// Number of bytes copied to merge messages.
    merged: usize,
}

impl Decoder<'_> {
    fn reserve(&mut self, length: usize) -> Result<usize, Invalid> {
        if align(self.flat.len()) + length + self.outside_length > MAX_MESSAGE {
            return Err(Invalid::TooLarge);
        }
        Ok(reserve(&mut self.flat, length))
    }

    /// Reads a message into the struct at a place.
    fn message(&mut self, layout: &Layout, proto: &Bytes, at: usize, depth: u32) -> Result<(), Invalid> {
        if depth > MAX_DEPTH {
            return Err(Invalid::TooDeep);
        }
        let base = self.states.len();
        let states = layout.fields.len() + layout.oneofs.len();
        self.states.resize(base + states, State::default());
        let (lists, pointers) = self.first_pass(layout, proto, at, base)?;
        if lists {
            for (index, field) in layout.fields.iter().enumerate() {
                let count = self.states[base + index].count;
                if field.repeated && count > 0 {
                    let array = self.reserve(count.checked_mul(8).ok_or(Invalid::TooLarge)?)?;
                    self.states[base + index].next = array;
                    flat::set(&mut self.flat, at, layout.words, index, pair(array, count));
                }
            }
            self.second_pass(layout, proto, base, depth)?;
        }
        if pointers {
            for (index, field) in layout.fields.iter().enumerate() {
                let state = self.states[base + index];
                let skip = field.presence == Presence::Implicit && state.range.0 == state.range.1;
                if field.repeated || !field.kind.is_pointer() || state.count == 0 || skip {
                    continue;
                }
                let place = at + 8 * (layout.words + index);
                flat::set(&mut self.flat, at, layout.words, index, 0);
                if state.count > 1 && matches!(field.kind, Kind::Message(_)) {
                    let whole = self.merge(field, proto, state.since)?;
                    self.pointer(field.kind, &whole, (0, whole.len()), place, depth)?;
                } else {
                    self.pointer(field.kind, proto, state.range, place, depth)?;
                }
            }
        }
        self.states.truncate(base);
        Ok(())
    }

    /// Sets numbers, counts elements, and notes where values with a length are. Says whether there are repeated fields,
    /// and single ones with a length.
    fn first_pass(
        &mut self,
        layout: &Layout,
        proto: &Bytes,
        at: usize,
        base: usize,
    ) -> Result<(bool, bool), Invalid> {
        let (mut lists, mut pointers) = (false, false);
        let mut wire = Wire::new(proto, 0);
        while !wire.is_done() {
            let start = wire.at();
            let (number, found) = wire.tag()?;
            let known =
                layout.field_numbered(number).and_then(|index| Some((index, layout.fields.get(index)?)));
            let Some((index, field)) = known else {
                wire.skip(found)?;
                continue;
            };
            let expected = wire_type(field.kind);
            if field.repeated {
                lists = true;
                let count = if found == expected {
                    wire.skip(found)?;
                    1
                } else if found == LENGTH {
                    count(field.kind, proto, wire.chunk()?)?
                } else {
                    wire.skip(found)?;
                    0
                };
                self.states[base + index].count += count;
                continue;
            }
            if found != expected {
                wire.skip(found)?;
                continue;
            }
            if let Some(oneof) = field.oneof {
                // Its state has the member that came last, counted from 1.
                let last =
                    std::mem::replace(&mut self.states[base + layout.fields.len() + oneof].count, index + 1);
                if last != 0 && last != index + 1 {
                    self.states[base + last - 1].count = 0;
                    flat::clear(&mut self.flat, at, layout.words, last - 1);
                }
            }
            if field.kind.is_pointer() {
                pointers = true;
                let range = wire.chunk()?;
                let state = &mut self.states[base + index];
                if state.count == 0 {
                    state.since = start;
                }
                state.count += 1;
                state.range = range;
                continue;
            }
            let slot = wire.slot(field.kind)?;
            if slot == 0 && field.presence == Presence::Implicit {
                flat::clear(&mut self.flat, at, layout.words, index);
            } else {
                flat::set(&mut self.flat, at, layout.words, index, slot);
            }
        }
        Ok((lists, pointers))
    }

    /// Fills the arrays of repeated fields.
    fn second_pass(
        &mut self,
        layout: &Layout,
        proto: &Bytes,
        base: usize,
        depth: u32,
    ) -> Result<(), Invalid> {
        let mut wire = Wire::new(proto, 0);
        while !wire.is_done() {
            let (number, found) = wire.tag()?;
            let known =
                layout.field_numbered(number).and_then(|index| Some((index, layout.fields.get(index)?)));
            let Some((index, field)) = known.filter(|(_, field)| field.repeated) else {
                wire.skip(found)?;
                continue;
            };
            let place = self.states[base + index].next;
            if found == wire_type(field.kind) {
                self.states[base + index].next += 8;
                if field.kind.is_pointer() {
                    let range = wire.chunk()?;
                    self.pointer(field.kind, proto, range, place, depth)?;
                } else {
                    flat::put(&mut self.flat, place, wire.slot(field.kind)?);
                }
            } else if found == LENGTH {
                let (start, end) = wire.chunk()?;
                let mut packed = Wire::new(proto.get(..end).unwrap_or_default(), start);
                let mut place = place;
                while !packed.is_done() {
                    flat::put(&mut self.flat, place, packed.slot(field.kind)?);
                    place += 8;
                }
                self.states[base + index].next = place;
            } else {
                wire.skip(found)?;
            }
        }
        Ok(())
    }

    /// Reads a value with a length and sets the slot at a place.
    fn pointer(
        &mut self,
        kind: Kind,
        proto: &Bytes,
        range: (usize, usize),
        place: usize,
        depth: u32,
    ) -> Result<(), Invalid> {
        let bytes = proto.get(range.0..range.1).ok_or(Invalid::Wire)?;
        match kind {
            Kind::Message(index) => {
                let schema = self.schema;
                let layout = schema.layout(index).ok_or(Invalid::Size)?;
                if layout.size > 0 {
                    let at = self.reserve(layout.size)?;
                    flat::put(&mut self.flat, place, pair(at, layout.size));
                    self.message(layout, &proto.slice(range.0..range.1), at, depth + 1)
                } else {
                    self.message(layout, &proto.slice(range.0..range.1), place, depth + 1)
                }
            }
            Kind::Bytes if bytes.len() >= OWN_SEGMENT => {
                self.outside_length += align(bytes.len());
                self.reserve(0)?;
                self.outside.push((place, proto.slice(range.0..range.1)));
                Ok(())
            }
            _ => {
                if kind == Kind::String {
                    std::str::from_utf8(bytes).map_err(|_| Invalid::Text)?;
                }
                if align(self.flat.len()) + bytes.len() + self.outside_length > MAX_MESSAGE {
                    return Err(Invalid::TooLarge);
                }
                let slot = flat::append(&mut self.flat, bytes);
                flat::put(&mut self.flat, place, slot);
                Ok(())
            }
        }
    }

    /// Joins the parts of a message that came in several: protobuf says that this merges them.
    fn merge(&mut self, field: &Field, proto: &Bytes, since: usize) -> Result<Bytes, Invalid> {
        let mut whole = BytesMut::new();
        let mut wire = Wire::new(proto, since);
        while !wire.is_done() {
            let (number, found) = wire.tag()?;
            if number == field.number && found == LENGTH {
                let (start, end) = wire.chunk()?;
                self.merged += end - start;
                if self.merged > MAX_MESSAGE {
                    return Err(Invalid::TooLarge);
                }
                whole.extend_from_slice(proto.get(start..end).ok_or(Invalid::Wire)?);
            } else {
                wire.skip(found)?;
            }
        }
        Ok(whole.freeze())
    }
}

/// Counts the elements in the bytes of a packed field.
fn count(kind: Kind, proto: &Bytes, range: (usize, usize)) -> Result<usize, Invalid> {
    let bytes = proto.get(range.0..range.1).ok_or(Invalid::Wire)?;
    let width = match wire_type(kind) {
        crate::wire::FIXED64 => 8,
        crate::wire::FIXED32 => 4,
        _ => {
            let ends = bytes.iter().filter(|byte| **byte & 0x80 == 0).count();
            return match bytes.last() {
                Some(last) if last & 0x80 != 0 => Err(Invalid::Wire),
                _ => Ok(ends),
            };
        }
    };
    if bytes.len().is_multiple_of(width) { Ok(bytes.len() / width) } else { Err(Invalid::Wire) }
}
