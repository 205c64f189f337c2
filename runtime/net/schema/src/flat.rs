//! Limits of the flat form, and access to its words.

use bytes::{Bytes, BytesMut};

use crate::Invalid;

/// Number of structs within each other that a message may have, the root included.
pub const MAX_DEPTH: u32 = 64;
/// Length that a message may have in bytes, flat or as protobuf.
pub const MAX_MESSAGE: usize = 64 << 20;
/// Length in bytes from which on the value of a `bytes` field is a segment of its own.
pub const OWN_SEGMENT: usize = 4096;

/// Gives the next multiple of 8.
pub(crate) const fn align(length: usize) -> usize {
    length.next_multiple_of(8)
}

/// Gives the size in bytes of a struct with this number of fields.
pub(crate) const fn struct_size(fields: usize) -> usize {
    8 * (fields.div_ceil(64) + fields)
}

/// Reads the word at a place; none if it lies outside.
#[inline]
pub(crate) fn word(flat: &[u8], at: usize) -> Option<u64> {
    let bytes = flat.get(at..)?.first_chunk::<8>()?;
    Some(u64::from_le_bytes(*bytes))
}

/// Writes the word at a place, which has to be there.
#[inline]
pub(crate) fn put(flat: &mut [u8], at: usize, value: u64) {
    if let Some(bytes) = flat.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<8>()) {
        *bytes = value.to_le_bytes();
    }
}

/// Packs an offset and a length or count into a slot. What does not fit leads out of every message.
#[inline]
pub(crate) fn pair(offset: usize, length: usize) -> u64 {
    let offset = u32::try_from(offset).unwrap_or(u32::MAX);
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    u64::from(offset) | (u64::from(length) << 32)
}

/// Takes the offset and the length or count out of a slot.
#[inline]
pub(crate) const fn unpair(slot: u64) -> (usize, usize) {
    ((slot & 0xffff_ffff) as usize, (slot >> 32) as usize)
}

/// Appends zeros for a struct or an array and gives their place.
#[inline]
pub(crate) fn reserve(flat: &mut Vec<u8>, length: usize) -> usize {
    let at = align(flat.len());
    flat.resize(at + length, 0);
    at
}

/// Appends bytes and gives the slot that points at them.
#[inline]
pub(crate) fn append(flat: &mut Vec<u8>, bytes: &[u8]) -> u64 {
    if bytes.is_empty() {
        return 0;
    }
    let at = align(flat.len());
    flat.resize(at, 0);
    flat.extend_from_slice(bytes);
    pair(at, bytes.len())
}

/// Marks a field as present and sets its slot.
#[inline]
pub(crate) fn set(flat: &mut [u8], at: usize, words: usize, field: usize, slot: u64) {
    let presence = at + field / 64 * 8;
    let bits = word(flat, presence).unwrap_or_default();
    put(flat, presence, bits | 1 << (field % 64));
    put(flat, at + 8 * (words + field), slot);
}

/// Marks a field as absent.
pub(crate) fn clear(flat: &mut [u8], at: usize, words: usize, field: usize) {
    let presence = at + field / 64 * 8;
    let bits = word(flat, presence).unwrap_or_default();
    put(flat, presence, bits & !(1 << (field % 64)));
    put(flat, at + 8 * (words + field), 0);
}

/// Puts the long byte strings after the root and makes the slots point at them.
pub(crate) fn segments(mut root: Vec<u8>, outside: Vec<(usize, Bytes)>) -> Vec<Bytes> {
    root.resize(align(root.len()), 0);
    let mut at = root.len();
    for (slot, bytes) in &outside {
        put(&mut root, *slot, pair(at, bytes.len()));
        at = align(at + bytes.len());
    }
    let mut all = Vec::with_capacity(1 + outside.len());
    all.push(Bytes::from(root));
    all.extend(outside.into_iter().map(|(_, bytes)| bytes));
    all
}

/// Computes where each of these segments begins in the address space of their message.
pub fn starts(segments: &[Bytes]) -> impl Iterator<Item = usize> {
    segments.iter().scan(0, |next, segment| {
        let at = *next;
        *next = align(at + segment.len());
        Some(at)
    })
}

/// Joins the segments of a message into one address space. A single segment is not copied.
pub fn join(segments: &[Bytes]) -> Bytes {
    if let [only] = segments {
        return only.clone();
    }
    let mut flat = BytesMut::with_capacity(segments.iter().map(|segment| align(segment.len())).sum());
    for segment in segments {
        flat.resize(align(flat.len()), 0);
        flat.extend_from_slice(segment);
    }
    flat.freeze()
}

/// Work that reading a message may take, in bytes visited. A hostile message may point many times at the same place.
#[derive(Clone, Copy)]
pub(crate) struct Budget(u64);

impl Budget {
    /// Gives the budget of a message of this length.
    pub(crate) fn new(length: usize) -> Result<Self, Invalid> {
        if length > MAX_MESSAGE {
            return Err(Invalid::TooLarge);
        }
        Ok(Self(length as u64 * 16 + 4096))
    }

    /// Takes a number of bytes from the budget.
    #[inline]
    pub(crate) fn spend(&mut self, length: usize) -> Result<(), Invalid> {
        self.0 = self.0.checked_sub(length as u64).ok_or(Invalid::Repetitive)?;
        Ok(())
    }
}

/// Checks that a part lies within the message, at a multiple of 8.
#[inline]
pub(crate) fn within(flat: &[u8], offset: usize, length: usize) -> Result<(), Invalid> {
    if !offset.is_multiple_of(8) {
        return Err(Invalid::Unaligned);
    }
    match offset.checked_add(length) {
        Some(end) if end <= flat.len() => Ok(()),
        _ => Err(Invalid::Outside),
    }
}
