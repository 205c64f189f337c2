//! The buffer of a rank.
//!
//! The program of the rank may write its buffer while the service works with it, against all rules. So bytes are copied out and
//! in, each range is checked, and no reference into the buffer exists; the result of such a program is its own affair.
use crate::element::{Element, Reduction, combine};
use std::fmt::Debug;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use tidemill_shm::region::{RegionError, SharedRegion};

/// Bytes that go through the cache of the processor at once.
const BLOCK: usize = 16 << 10;

/// A range that is not in a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("bytes {from} to {to} are not in a buffer of {bytes} bytes")]
pub struct Outside {
    /// Where the range begins.
    pub from: u64,
    /// Where it ends.
    pub to: u64,
    /// Bytes of the buffer.
    pub bytes: u64,
}

/// The buffer of a rank. Offsets are in bytes.
pub trait Memory: Debug + Send + Sync {
    /// Its size in bytes.
    fn bytes(&self) -> u64;
    /// Copies bytes out of it, as many as the slice has room for.
    ///
    /// # Errors
    /// [`Outside`]
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Outside>;
    /// Copies bytes into it.
    ///
    /// # Errors
    /// [`Outside`]
    fn write(&self, offset: u64, from: &[u8]) -> Result<(), Outside>;
    /// Combines elements with those that begin at this offset.
    ///
    /// # Errors
    /// [`Outside`]
    fn combine(
        &self,
        element: Element,
        reduction: Reduction,
        offset: u64,
        from: &[u8],
    ) -> Result<(), Outside> {
        // All of it is checked before the first block changes.
        checked(offset, from.len(), self.bytes())?;
        let mut block = [0; BLOCK];
        let mut at = offset;
        for from in from.chunks(BLOCK) {
            let block = &mut block[..from.len()];
            self.read(at, block)?;
            combine(element, reduction, block, from);
            self.write(at, block)?;
            at += from.len() as u64;
        }
        Ok(())
    }
}

/// Copies or combines a range of one buffer into as many bytes of another one from `offset` on: one pass over memory, block by block.
pub(crate) fn transfer(
    from: &dyn Memory,
    range: Range<u64>,
    into: &dyn Memory,
    offset: u64,
    combined: Option<(Element, Reduction)>,
) -> Result<(), Outside> {
    let mut block = [0; BLOCK];
    let mut at = range.start;
    while at < range.end {
        let length = (range.end - at).min(BLOCK as u64) as usize;
        let (block, to) = (&mut block[..length], offset + (at - range.start));
        from.read(at, block)?;
        match combined {
            Some((element, reduction)) => into.combine(element, reduction, to, block)?,
            None => into.write(to, block)?,
        }
        at += length as u64;
    }
    Ok(())
}

fn checked(offset: u64, length: usize, bytes: u64) -> Result<usize, Outside> {
    let to = offset.saturating_add(length as u64);
    if to > bytes {
        return Err(Outside { from: offset, to, bytes });
    }
    Ok(offset as usize)
}

/// A part of memory that the service shares with a program.
#[derive(Debug, Clone)]
pub struct Shared {
    region: Arc<SharedRegion>,
    offset: u64,
    bytes: u64,
}

impl Shared {
    /// Makes one of the bytes of a region from this offset on.
    ///
    /// # Errors
    /// [`Outside`] where the region has not as many.
    pub fn new(region: Arc<SharedRegion>, offset: u64, bytes: u64) -> Result<Self, Outside> {
        let end = offset.checked_add(bytes).filter(|end| *end <= region.bytes());
        end.ok_or(Outside { from: offset, to: offset.saturating_add(bytes), bytes: region.bytes() })?;
        Ok(Self { region, offset, bytes })
    }

    fn checked(&self, offset: u64, length: usize) -> Result<u64, Outside> {
        checked(offset, length, self.bytes).map(|at| self.offset + at as u64)
    }

    fn outside(&self, error: &RegionError) -> Outside {
        let (from, to) = match error {
            RegionError::Outside(from, to) => (*from, *to),
            _ => (0, 0),
        };
        Outside { from, to, bytes: self.region.bytes() }
    }
}

impl Memory for Shared {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Outside> {
        let at = self.checked(offset, into.len())?;
        self.region.copy_out(at, into).map_err(|error| self.outside(&error))
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), Outside> {
        let at = self.checked(offset, from.len())?;
        self.region.copy_in(at, from).map_err(|error| self.outside(&error))
    }
}

/// Memory of the process itself, for ranks inside the service.
#[derive(Debug, Default)]
pub struct Plain(Mutex<Vec<u8>>);

impl Plain {
    /// Makes one of bytes.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(Mutex::new(bytes))
    }

    /// Copies all of it.
    pub fn to_vec(&self) -> Vec<u8> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Does something with a range of its bytes.
    fn with<T>(&self, offset: u64, length: usize, act: impl FnOnce(&mut [u8]) -> T) -> Result<T, Outside> {
        let mut bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = checked(offset, length, bytes.len() as u64)?;
        Ok(act(&mut bytes[at..at + length]))
    }
}

impl Memory for Plain {
    fn bytes(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len() as u64
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Outside> {
        self.with(offset, into.len(), |bytes| into.copy_from_slice(bytes))
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), Outside> {
        self.with(offset, from.len(), |bytes| bytes.copy_from_slice(from))
    }

    fn combine(
        &self,
        element: Element,
        reduction: Reduction,
        offset: u64,
        from: &[u8],
    ) -> Result<(), Outside> {
        self.with(offset, from.len(), |bytes| combine(element, reduction, bytes, from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shared(offset: u64, bytes: u64) -> Shared {
        Shared::new(Arc::new(SharedRegion::create(256 << 10).unwrap()), offset, bytes).unwrap()
    }

    #[test]
    fn nothing_outside_is_reached() {
        let region = Arc::new(SharedRegion::create(8192).unwrap());
        for (offset, bytes) in [(0, 8193), (8192, 1), (u64::MAX, 2), (1, u64::MAX)] {
            assert!(Shared::new(region.clone(), offset, bytes).is_err(), "{offset} {bytes}");
        }
        let neighbours = [Shared::new(region.clone(), 0, 1000), Shared::new(region.clone(), 1100, 1000)];
        let memories: [Box<dyn Memory>; 2] =
            [Box::new(Shared::new(region, 1000, 100).unwrap()), Box::new(Plain::new(vec![0; 100]))];
        for memory in memories {
            for (offset, length) in [(0, 101), (100, 1), (u64::MAX, 1), (u64::MAX - 7, 16), (1 << 40, 4)] {
                let mut bytes = vec![7; length];
                let error = memory.read(offset, &mut bytes).unwrap_err();
                assert_eq!((error.from, error.bytes), (offset, 100));
                assert!(memory.write(offset, &bytes).is_err());
                assert!(memory.combine(Element::I32, Reduction::Sum, offset, &bytes).is_err());
            }
            memory.write(0, &[9; 100]).unwrap();
            memory.combine(Element::I32, Reduction::Sum, 0, &[9; 100]).unwrap();
        }
        for neighbour in neighbours {
            let mut bytes = [1; 1000];
            neighbour.unwrap().read(0, &mut bytes).unwrap();
            assert_eq!(bytes, [0; 1000], "parts of one region do not touch each other");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn shared_memory_does_what_plain_memory_does(
            start in 0u64..100, offset in 0u64..100, length in 0usize..50_000, seed in any::<u8>(),
        ) {
            let from: Vec<u8> = (0..length).map(|n| (n as u8).wrapping_mul(31) ^ seed).collect();
            let (one, other) = (shared(start, 60_000), Plain::new(vec![3; 60_000]));
            one.write(0, &[3; 60_000]).unwrap();
            for memory in [&one as &dyn Memory, &other] {
                memory.write(offset + 200, &from).unwrap();
                memory.combine(Element::I64, Reduction::Sum, offset, &from).unwrap();
            }
            let mut bytes = vec![0; 60_000];
            one.read(0, &mut bytes).unwrap();
            prop_assert_eq!(&bytes, &other.to_vec());

            // From one to another place of the other one.
            let (into, range) = (Plain::new(vec![1; 60_000]), offset..offset + length as u64);
            transfer(&one, range.clone(), &into, 300, None).unwrap();
            prop_assert_eq!(&into.to_vec()[300..][..length], &bytes[offset as usize..][..length]);
            prop_assert!(transfer(&one, range.start..60_001, &into, 0, None).is_err());
            prop_assert!(transfer(&one, 0..1000, &into, 59_001, None).is_err());
        }
    }
}
