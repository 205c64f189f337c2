//! Typed values to flat messages and back, for generated code.

use std::cell::Cell;
use std::collections::BTreeMap;

use bytes::Bytes;

use crate::Invalid;
use crate::check::present;
use crate::flat::{self, Budget, MAX_DEPTH, OWN_SEGMENT, pair, reserve, struct_size, unpair, within, word};

/// Message as a Rust type. Generated code implements it; slots are the indices of the fields by their numbers.
pub trait Message: Sized + Send + Sync + 'static {
    /// Full name of the message.
    const NAME: &'static str;
    /// Number of fields.
    const FIELDS: usize;

    /// Writes the fields.
    fn write(&self, to: &mut FlatWriter<'_>);

    /// Reads the fields.
    ///
    /// # Errors
    ///
    /// Bytes that are no message.
    fn read(from: &FlatReader<'_>) -> Result<Self, Invalid>;
}

/// Value that a slot holds or points at. Generated code implements it for enums.
pub trait FlatValue: Sized {
    /// Writes the slot at this place, and what it points at.
    fn write_at(&self, to: &mut FlatWriter<'_>, place: usize);

    /// Reads the value of a slot.
    ///
    /// # Errors
    ///
    /// A slot that holds no such value.
    fn read_slot(slot: u64, from: &FlatReader<'_>) -> Result<Self, Invalid>;

    /// Says whether it is the default, which fields without explicit presence leave out.
    fn is_default(&self) -> bool;
}

/// Turns a message into segments, the root first. Long bytes are segments of their own and are not copied.
///
/// A message that is nested too deep or too large gives segments that every check refuses.
pub fn to_segments<M: Message>(message: &M) -> Vec<Bytes> {
    let size = struct_size(M::FIELDS);
    let mut root = Vec::with_capacity(size + 64);
    let mut outside = Vec::new();
    root.resize(size, 0);
    let words = M::FIELDS.div_ceil(64);
    message.write(&mut FlatWriter { flat: &mut root, outside: &mut outside, at: 0, words, depth: 1 });
    flat::segments(root, outside)
}

/// Reads a message out of its address space. Fields of bytes are slices of it, without a copy. Bytes from a stranger give
/// an error or some message, and never panic.
///
/// # Errors
///
/// Bytes that are no message.
pub fn from_flat<M: Message>(flat: &Bytes) -> Result<M, Invalid> {
    let budget = Cell::new(Budget::new(flat.len())?);
    within(flat, 0, struct_size(M::FIELDS))?;
    M::read(&FlatReader { whole: flat, budget: &budget, at: 0, words: M::FIELDS.div_ceil(64), depth: 1 })
}

/// Writer of one struct.
pub struct FlatWriter<'a> {
    flat: &'a mut Vec<u8>,
    outside: &'a mut Vec<(usize, Bytes)>,
    at: usize,
    words: usize,
    depth: u32,
}

impl FlatWriter<'_> {
    /// Writes a field that is present.
    #[inline]
    pub fn set<T: FlatValue>(&mut self, slot: usize, value: &T) {
        flat::set(self.flat, self.at, self.words, slot, 0);
        let place = self.at + 8 * (self.words + slot);
        value.write_at(self, place);
    }

    /// Writes a field that is present if it is not the default.
    #[inline]
    pub fn implicit<T: FlatValue>(&mut self, slot: usize, value: &T) {
        if !value.is_default() {
            self.set(slot, value);
        }
    }

    /// Writes a field that is present if there is a value.
    #[inline]
    pub fn optional<T: FlatValue>(&mut self, slot: usize, value: Option<&T>) {
        if let Some(value) = value {
            self.set(slot, value);
        }
    }

    /// Writes a list.
    pub fn repeated<T: FlatValue>(&mut self, slot: usize, values: &[T]) {
        if values.is_empty() {
            return;
        }
        let array = reserve(self.flat, 8 * values.len());
        flat::set(self.flat, self.at, self.words, slot, pair(array, values.len()));
        for (index, value) in values.iter().enumerate() {
            value.write_at(self, array + 8 * index);
        }
    }

    /// Writes a map.
    pub fn map<K: FlatValue, V: FlatValue>(&mut self, slot: usize, map: &BTreeMap<K, V>) {
        if map.is_empty() {
            return;
        }
        let array = reserve(self.flat, 8 * map.len());
        flat::set(self.flat, self.at, self.words, slot, pair(array, map.len()));
        for (index, (key, value)) in map.iter().enumerate() {
            self.nested(2, array + 8 * index, |entry| {
                entry.implicit(0, key);
                entry.implicit(1, value);
            });
        }
    }

    /// Writes a struct within this one. Structs that are too deep stay empty; the first of them makes checks fail.
    fn nested(&mut self, fields: usize, place: usize, write: impl FnOnce(&mut FlatWriter<'_>)) {
        let size = struct_size(fields);
        let at = if size == 0 { 0 } else { reserve(self.flat, size) };
        flat::put(self.flat, place, pair(at, size));
        if self.depth <= MAX_DEPTH {
            write(&mut FlatWriter {
                flat: self.flat,
                outside: self.outside,
                at,
                words: fields.div_ceil(64),
                depth: self.depth + 1,
            });
        }
    }
}

/// Reader of one struct.
pub struct FlatReader<'a> {
    whole: &'a Bytes,
    budget: &'a Cell<Budget>,
    at: usize,
    words: usize,
    depth: u32,
}

impl FlatReader<'_> {
    /// Reads a field that is present if it is not the default.
    ///
    /// # Errors
    ///
    /// A slot that holds no such value.
    #[inline]
    pub fn implicit<T: FlatValue + Default>(&self, slot: usize) -> Result<T, Invalid> {
        Ok(self.optional(slot)?.unwrap_or_default())
    }

    /// Reads a field that is present if there is a value.
    ///
    /// # Errors
    ///
    /// A slot that holds no such value.
    #[inline]
    pub fn optional<T: FlatValue>(&self, slot: usize) -> Result<Option<T>, Invalid> {
        present(self.whole, self.at, self.words, slot).map(|slot| T::read_slot(slot, self)).transpose()
    }

    /// Reads a list.
    ///
    /// # Errors
    ///
    /// A slot that holds no such list.
    pub fn repeated<T: FlatValue>(&self, slot: usize) -> Result<Vec<T>, Invalid> {
        let (array, count) = self.array(slot)?;
        // Many slots may point at one struct: memory is for what is read, not for what is announced.
        let at_once = self.whole.len() / size_of::<T>().max(1);
        let mut values = Vec::with_capacity(count.min(at_once));
        for index in 0..count {
            values.push(T::read_slot(self.word(array + 8 * index)?, self)?);
        }
        Ok(values)
    }

    /// Reads a map. If a key comes twice, the last one counts.
    ///
    /// # Errors
    ///
    /// A slot that holds no such map.
    pub fn map<K, V>(&self, slot: usize) -> Result<BTreeMap<K, V>, Invalid>
    where
        K: FlatValue + Ord + Default,
        V: FlatValue + Default,
    {
        let (array, count) = self.array(slot)?;
        let mut map = BTreeMap::new();
        for index in 0..count {
            let entry = self.nested(2, self.word(array + 8 * index)?)?;
            map.insert(entry.implicit(0)?, entry.implicit(1)?);
        }
        Ok(map)
    }

    fn word(&self, at: usize) -> Result<u64, Invalid> {
        word(self.whole, at).ok_or(Invalid::Outside)
    }

    fn spend(&self, length: usize) -> Result<(), Invalid> {
        let mut budget = self.budget.get();
        budget.spend(length)?;
        self.budget.set(budget);
        Ok(())
    }

    fn array(&self, slot: usize) -> Result<(usize, usize), Invalid> {
        let (array, count) = unpair(present(self.whole, self.at, self.words, slot).unwrap_or_default());
        let size = count.checked_mul(8).ok_or(Invalid::Outside)?;
        within(self.whole, array, size)?;
        self.spend(size)?;
        Ok((array, count))
    }

    fn nested(&self, fields: usize, slot: u64) -> Result<FlatReader<'_>, Invalid> {
        let (at, size) = unpair(slot);
        if size != struct_size(fields) {
            return Err(Invalid::Size);
        }
        if self.depth >= MAX_DEPTH {
            return Err(Invalid::TooDeep);
        }
        within(self.whole, at, size)?;
        self.spend(size)?;
        Ok(FlatReader {
            whole: self.whole,
            budget: self.budget,
            at,
            words: fields.div_ceil(64),
            depth: self.depth + 1,
        })
    }

    fn range(&self, slot: u64) -> Result<std::ops::Range<usize>, Invalid> {
        let (offset, length) = unpair(slot);
        within(self.whole, offset, length)?;
        self.spend(length)?;
        Ok(offset..offset + length)
    }
}

impl<M: Message> FlatValue for M {
    fn write_at(&self, to: &mut FlatWriter<'_>, place: usize) {
        to.nested(M::FIELDS, place, |inner| self.write(inner));
    }

    fn read_slot(slot: u64, from: &FlatReader<'_>) -> Result<Self, Invalid> {
        M::read(&from.nested(M::FIELDS, slot)?)
    }

    fn is_default(&self) -> bool {
        false
    }
}

impl FlatValue for String {
    fn write_at(&self, to: &mut FlatWriter<'_>, place: usize) {
        let slot = flat::append(to.flat, self.as_bytes());
        flat::put(to.flat, place, slot);
    }

    fn read_slot(slot: u64, from: &FlatReader<'_>) -> Result<Self, Invalid> {
        let bytes = from.whole.get(from.range(slot)?).unwrap_or_default();
        Ok(std::str::from_utf8(bytes).map_err(|_| Invalid::Text)?.to_owned())
    }

    fn is_default(&self) -> bool {
        self.is_empty()
    }
}

impl FlatValue for Bytes {
    fn write_at(&self, to: &mut FlatWriter<'_>, place: usize) {
        if self.len() >= OWN_SEGMENT {
            to.outside.push((place, self.clone()));
            return;
        }
        let slot = flat::append(to.flat, self);
        flat::put(to.flat, place, slot);
    }

    fn read_slot(slot: u64, from: &FlatReader<'_>) -> Result<Self, Invalid> {
        Ok(from.whole.slice(from.range(slot)?))
    }

    fn is_default(&self) -> bool {
        self.is_empty()
    }
}

/// Implements [`FlatValue`] for a number: how it becomes a slot, and how a slot becomes it.
macro_rules! number {
    ($type:ty, $to:expr, $from:expr) => {
        impl FlatValue for $type {
            #[inline]
            fn write_at(&self, to: &mut FlatWriter<'_>, place: usize) {
                let slot: fn($type) -> u64 = $to;
                flat::put(to.flat, place, slot(*self));
            }

            #[inline]
            fn read_slot(slot: u64, _: &FlatReader<'_>) -> Result<Self, Invalid> {
                let value: fn(u64) -> Option<$type> = $from;
                value(slot).ok_or(Invalid::Value)
            }

            #[inline]
            fn is_default(&self) -> bool {
                let slot: fn($type) -> u64 = $to;
                slot(*self) == 0
            }
        }
    };
}

number!(i32, |value| i64::from(value) as u64, |slot| i32::try_from(slot as i64).ok());
number!(i64, |value| value as u64, |slot| Some(slot as i64));
number!(u32, u64::from, |slot| u32::try_from(slot).ok());
number!(u64, |value| value, Some);
number!(f32, |value| u64::from(value.to_bits()), |slot| u32::try_from(slot).ok().map(f32::from_bits));
number!(f64, f64::to_bits, |slot| Some(f64::from_bits(slot)));
number!(bool, u64::from, |slot| match slot {
    0 => Some(false),
    1 => Some(true),
    _ => None,
});
