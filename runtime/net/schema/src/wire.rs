//! Protobuf's wire format: varints, zigzag and tags.

use crate::{Invalid, Kind};

/// Kinds of encoding in a tag.
pub(crate) const VARINT: u32 = 0;
pub(crate) const FIXED64: u32 = 1;
pub(crate) const LENGTH: u32 = 2;
pub(crate) const FIXED32: u32 = 5;

/// Gives the kind of encoding of a value that is not packed.
pub(crate) const fn wire_type(kind: Kind) -> u32 {
    match kind {
        Kind::Double | Kind::Fixed64 | Kind::Sfixed64 => FIXED64,
        Kind::Float | Kind::Fixed32 | Kind::Sfixed32 => FIXED32,
        Kind::String | Kind::Bytes | Kind::Message(_) => LENGTH,
        _ => VARINT,
    }
}

/// Gives the length of a varint in bytes.
#[inline]
pub(crate) const fn varint_len(value: u64) -> usize {
    ((70 - (value | 1).leading_zeros()) / 7) as usize
}

/// Appends a varint.
#[inline]
pub(crate) fn put_varint(into: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        into.push(value as u8 | 0x80);
        value >>= 7;
    }
    into.push(value as u8);
}

/// Turns a signed number into an unsigned one that is small if it is near 0.
pub(crate) const fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// Turns it back.
pub(crate) const fn unzigzag(value: u64) -> i64 {
    ((value >> 1) as i64) ^ -((value & 1) as i64)
}

/// Gives the varint of a slot, whose kind is encoded as one.
#[inline]
pub(crate) const fn slot_to_varint(kind: Kind, slot: u64) -> u64 {
    match kind {
        Kind::Sint32 | Kind::Sint64 => zigzag(slot as i64),
        _ => slot,
    }
}

/// Gives the slot of a varint: what is too large for the kind loses its high bits.
#[inline]
pub(crate) const fn varint_to_slot(kind: Kind, value: u64) -> u64 {
    match kind {
        Kind::Int32 | Kind::Enum => value as i32 as i64 as u64,
        Kind::Uint32 => value as u32 as u64,
        Kind::Sint32 => unzigzag(value as u32 as u64) as i32 as i64 as u64,
        Kind::Sint64 => unzigzag(value) as u64,
        Kind::Bool => (value != 0) as u64,
        _ => value,
    }
}

/// Reader of protobuf bytes.
pub(crate) struct Wire<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Wire<'a> {
    /// Reads these bytes from a place on.
    pub(crate) fn new(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at }
    }

    /// Gives the place where it reads next.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// Says whether nothing is left.
    pub(crate) fn is_done(&self) -> bool {
        self.at >= self.bytes.len()
    }

    #[inline]
    pub(crate) fn varint(&mut self) -> Result<u64, Invalid> {
        let mut value = 0;
        for (index, byte) in self.bytes.get(self.at..).unwrap_or_default().iter().take(10).enumerate() {
            if index == 9 && *byte > 1 {
                break;
            }
            value |= u64::from(byte & 0x7f) << (7 * index);
            if byte & 0x80 == 0 {
                self.at += index + 1;
                return Ok(value);
            }
        }
        Err(Invalid::Wire)
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Invalid> {
        let bytes =
            self.bytes.get(self.at..).and_then(|rest| rest.first_chunk::<N>()).ok_or(Invalid::Wire)?;
        self.at += N;
        Ok(*bytes)
    }

    /// Reads the number of a field and its kind of encoding.
    #[inline]
    pub(crate) fn tag(&mut self) -> Result<(u32, u32), Invalid> {
        let tag = u32::try_from(self.varint()?).map_err(|_| Invalid::Wire)?;
        match (tag >> 3, tag & 7) {
            (0, _) => Err(Invalid::Wire),
            (_, 3 | 4) => Err(Invalid::Group),
            (_, 6 | 7) => Err(Invalid::Wire),
            parts => Ok(parts),
        }
    }

    /// Reads a length and steps over as many bytes; gives their range.
    #[inline]
    pub(crate) fn chunk(&mut self) -> Result<(usize, usize), Invalid> {
        let length = usize::try_from(self.varint()?).map_err(|_| Invalid::Wire)?;
        let start = self.at;
        match start.checked_add(length) {
            Some(end) if end <= self.bytes.len() => {
                self.at = end;
                Ok((start, end))
            }
            _ => Err(Invalid::Wire),
        }
    }

    /// Reads a value as its slot; its kind is encoded without a length.
    #[inline]
    pub(crate) fn slot(&mut self, kind: Kind) -> Result<u64, Invalid> {
        Ok(match kind {
            Kind::Double | Kind::Fixed64 | Kind::Sfixed64 => u64::from_le_bytes(self.take()?),
            Kind::Float | Kind::Fixed32 => u64::from(u32::from_le_bytes(self.take()?)),
            Kind::Sfixed32 => i64::from(i32::from_le_bytes(self.take()?)) as u64,
            _ => varint_to_slot(kind, self.varint()?),
        })
    }

    /// Steps over a value.
    pub(crate) fn skip(&mut self, wire_type: u32) -> Result<(), Invalid> {
        match wire_type {
            VARINT => self.varint().map(drop),
            FIXED64 => self.take::<8>().map(drop),
            FIXED32 => self.take::<4>().map(drop),
            _ => self.chunk().map(drop),
        }
    }
}
