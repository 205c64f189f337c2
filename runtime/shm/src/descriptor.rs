//! Descriptors: 64 bytes that say where a payload lies, and its kind.
//!
//! They come out of memory that a hostile process may change at any time. So each is copied once, into memory of this
//! process, and only the copy is looked at; only a [`Checked`] one gives access to a payload.
use crate::ring::Words;
use std::sync::atomic::Ordering;

/// Bytes of a descriptor: a cache line.
pub const BYTES: usize = 64;
/// Words of a descriptor.
pub(crate) const WORDS: usize = BYTES / 8;
/// Payloads begin at multiples of this, in bytes, as columns of Arrow must.
pub const ALIGNMENT: u64 = 64;

/// A message of a ring. Numbers are little-endian in memory; fields that a kind does not use are 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Descriptor {
    /// Its kind; the two sides agree on the numbers. The last one, [`crate::lease::RETURNED`], is taken.
    pub kind: u8,
    /// Class of service.
    pub class: u8,
    /// Path that it shall take.
    pub route: u16,
    /// Number of the region that the payload is in.
    pub region: u32,
    /// Where the payload begins in it, in bytes.
    pub offset: u64,
    /// Length of the payload in bytes.
    pub length: u32,
    /// Lane that it belongs to.
    pub lane: u32,
    /// Number within its lane.
    pub sequence: u64,
    /// Epoch that it belongs to.
    pub epoch: u64,
    /// When it is too late, by the clock that the two sides agreed on; 0: never.
    pub deadline: u64,
    /// Whatever the sender wants back with the answer.
    pub tag: u64,
    /// Number of the lease on the payload; 0: none.
    pub lease: u64,
}

/// Why a descriptor gives access to nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DescriptorError {
    /// A kind that the sides did not agree on.
    #[error("no descriptor has the kind {0}")]
    Kind(u8),
    /// A region that was never announced.
    #[error("there is no region {0}")]
    Region(u32),
    /// A payload that is too long: its length and the longest one, in bytes.
    #[error("a payload of {0} bytes, where the longest has {1}")]
    Length(u32, u32),
    /// An offset that is not a multiple of [`ALIGNMENT`].
    #[error("a payload begins at {0}, which is no multiple of {ALIGNMENT}")]
    Alignment(u64),
    /// A payload that ends after its region: its offset, its length and the size of the region, in bytes.
    #[error("a payload of {1} bytes at {0}, in a region of {2}")]
    Outside(u64, u32, u64),
}

/// Bounds of a descriptor's fields.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Limits {
    /// Kinds are below this number.
    pub kinds: u8,
    /// Size of each region in bytes, by its number.
    pub regions: Vec<u64>,
    /// The longest payload, in bytes.
    pub longest: u32,
}

/// A descriptor whose payload is within its region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checked(Descriptor);

impl Checked {
    /// The whole descriptor.
    pub fn descriptor(&self) -> &Descriptor {
        &self.0
    }

    /// Number of the region that the payload is in.
    pub fn region(&self) -> u32 {
        self.0.region
    }

    /// Where the payload begins in it, in bytes.
    pub fn offset(&self) -> u64 {
        self.0.offset
    }

    /// Length of the payload in bytes.
    pub fn length(&self) -> usize {
        self.0.length as usize
    }
}

impl Descriptor {
    /// Returns it as it lies in memory.
    pub fn to_bytes(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        let (words, _) = bytes.as_chunks_mut::<8>();
        for (bytes, word) in words.iter_mut().zip(self.to_words()) {
            *bytes = word.to_ne_bytes();
        }
        bytes
    }

    /// Reads the bytes of [`Descriptor::to_bytes`]. All bytes are a descriptor; [`Descriptor::check`] finds the wrong ones.
    pub fn from_bytes(bytes: &[u8; BYTES]) -> Self {
        let mut words = [0; WORDS];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
        Self::from_words(words)
    }

    /// Copies one out of memory that another process may change meanwhile: each word is read exactly once.
    pub(crate) fn copy_from(slot: &impl Words, first: usize) -> Self {
        let mut words = [0; WORDS];
        for (at, word) in words.iter_mut().enumerate() {
            *word = slot.load(first + at, Ordering::Relaxed);
        }
        Self::from_words(words)
    }

    /// Writes it to shared memory.
    pub(crate) fn copy_to(&self, slot: &impl Words, first: usize) {
        for (at, word) in self.to_words().into_iter().enumerate() {
            slot.store(first + at, word, Ordering::Relaxed);
        }
    }

    /// The words of memory that hold it.
    fn to_words(self) -> [u64; WORDS] {
        let small = u64::from(self.kind) | u64::from(self.class) << 8 | u64::from(self.route) << 16;
        let first = small | u64::from(self.region) << 32;
        let third = u64::from(self.length) | u64::from(self.lane) << 32;
        let words =
            [first, self.offset, third, self.sequence, self.epoch, self.deadline, self.tag, self.lease];
        words.map(u64::to_le)
    }

    #[expect(clippy::cast_possible_truncation, reason = "the bits of each field are taken apart")]
    fn from_words(words: [u64; WORDS]) -> Self {
        let [first, offset, third, sequence, epoch, deadline, tag, lease] = words.map(u64::from_le);
        Self {
            kind: first as u8,
            class: (first >> 8) as u8,
            route: (first >> 16) as u16,
            region: (first >> 32) as u32,
            offset,
            length: third as u32,
            lane: (third >> 32) as u32,
            sequence,
            epoch,
            deadline,
            tag,
            lease,
        }
    }

    /// Checks that its payload is in a region, whole and aligned.
    ///
    /// # Errors
    /// The first field that is wrong.
    pub fn check(&self, limits: &Limits) -> Result<Checked, DescriptorError> {
        if self.kind >= limits.kinds {
            return Err(DescriptorError::Kind(self.kind));
        }
        let size = usize::try_from(self.region).ok().and_then(|region| limits.regions.get(region));
        let size = *size.ok_or(DescriptorError::Region(self.region))?;
        if self.length > limits.longest {
            return Err(DescriptorError::Length(self.length, limits.longest));
        }
        if !self.offset.is_multiple_of(ALIGNMENT) {
            return Err(DescriptorError::Alignment(self.offset));
        }
        match self.offset.checked_add(u64::from(self.length)) {
            Some(end) if end <= size => Ok(Checked(*self)),
            _ => Err(DescriptorError::Outside(self.offset, self.length, size)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn descriptors() -> impl Strategy<Value = Descriptor> {
        let small = (any::<u8>(), any::<u8>(), any::<u16>(), any::<u32>(), any::<u32>(), any::<u32>());
        (small, any::<[u64; 6]>()).prop_map(|((kind, class, route, region, length, lane), large)| {
            let [offset, sequence, epoch, deadline, tag, lease] = large;
            Descriptor {
                kind,
                class,
                route,
                region,
                offset,
                length,
                lane,
                sequence,
                epoch,
                deadline,
                tag,
                lease,
            }
        })
    }

    #[test]
    fn the_form_in_memory_stays_as_it_is() {
        let descriptor = Descriptor {
            kind: 1,
            class: 2,
            route: 0x0403,
            region: 0x0807_0605,
            offset: 0x100F_0E0D_0C0B_0A09,
            length: 0x1413_1211,
            lane: 0x1817_1615,
            sequence: 0x201F_1E1D_1C1B_1A19,
            epoch: 0x2827_2625_2423_2221,
            deadline: 0x302F_2E2D_2C2B_2A29,
            tag: 0x3837_3635_3433_3231,
            lease: 0x403F_3E3D_3C3B_3A39,
        };
        assert!(descriptor.to_bytes().iter().zip(1..).all(|(byte, number)| *byte == number));
    }

    #[test]
    fn a_payload_may_end_where_its_region_ends() {
        let limits = Limits { kinds: 1, regions: vec![4096], longest: 4096 };
        let check = |offset, length| Descriptor { offset, length, ..Descriptor::default() }.check(&limits);
        assert_eq!(check(4032, 64).map(|place| (place.offset(), place.length())), Ok((4032, 64)));
        assert!(check(0, 4096).is_ok() && check(4096, 0).is_ok());
        assert_eq!(check(4032, 65), Err(DescriptorError::Outside(4032, 65, 4096)));
        assert_eq!(check(u64::MAX - 63, 64), Err(DescriptorError::Outside(u64::MAX - 63, 64, 4096)));
        assert_eq!(check(8, 8), Err(DescriptorError::Alignment(8)));
        assert_eq!(check(0, 4097), Err(DescriptorError::Length(4097, 4096)));
        let other = Descriptor { region: 1, ..Descriptor::default() };
        assert_eq!(other.check(&limits), Err(DescriptorError::Region(1)));
        assert_eq!(other.check(&Limits::default()), Err(DescriptorError::Kind(0)));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn bytes_and_shared_words_hold_all_fields(descriptor in descriptors()) {
            prop_assert_eq!(Descriptor::from_bytes(&descriptor.to_bytes()), descriptor);
            let words: Vec<_> = (0..10).map(std::sync::atomic::AtomicU64::new).collect();
            descriptor.copy_to(&words, 1);
            prop_assert_eq!(Descriptor::copy_from(&words, 1), descriptor);
            prop_assert_eq!((words[0].load(Ordering::Relaxed), words[9].load(Ordering::Relaxed)), (0, 9));
        }
    }
}
