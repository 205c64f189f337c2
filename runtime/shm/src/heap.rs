//! Heaps: blocks of memory in regions, for payloads.
//!
//! A block has a power of two bytes. A free block splits into halves, and halves that are free again join. The
//! list of free blocks is private memory of the owner, where no peer can damage it.
use crate::descriptor::Descriptor;
use crate::region::{GRANULE, Region, RegionError, SharedRegion};
use std::collections::BTreeSet;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of the smallest block.
pub const SMALLEST: u32 = 256;

/// Bounds of a heap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeapLimits {
    /// Bytes of the largest block: a power of two from 4 KiB on.
    pub largest: u32,
    /// Bytes of each region: a multiple of the largest block.
    pub region: u64,
    /// Most regions.
    pub regions: u32,
}

impl Default for HeapLimits {
    /// Blocks of up to 4 MiB, in 4 regions of 16 MiB.
    fn default() -> Self {
        Self { largest: 4 << 20, region: 16 << 20, regions: 4 }
    }
}

/// Limits with which there is no heap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0:?}: a block has a power of two bytes from 4096 on, a region a multiple of that")]
pub struct HeapError(HeapLimits);

/// Memory that a heap is made of.
pub trait Memory: Sized {
    /// Makes some of this many bytes.
    ///
    /// # Errors
    /// When the system has none left.
    fn create(bytes: u64) -> Result<Self, RegionError>;
}

impl Memory for Region {
    fn create(bytes: u64) -> Result<Self, RegionError> {
        Self::create(bytes)
    }
}

impl Memory for SharedRegion {
    fn create(bytes: u64) -> Result<Self, RegionError> {
        Self::create(bytes)
    }
}

/// Free blocks of a region.
#[derive(Debug)]
struct Space {
    /// Free blocks by class: class `n` has `SMALLEST << n` bytes. They are named by where they begin, in smallest blocks.
    free: Vec<BTreeSet<u32>>,
}

impl Space {
    fn new(limits: &HeapLimits) -> Self {
        let classes = class_of(limits.largest) + 1;
        let mut free = vec![BTreeSet::new(); classes];
        let (step, end) = (limits.largest / SMALLEST, limits.region / u64::from(SMALLEST));
        // `Heap::new` has seen to it that the end fits.
        free[classes - 1].extend((0..end as u32).step_by(step as usize));
        Self { free }
    }

    fn take(&mut self, class: usize) -> Option<u32> {
        let from = (class..self.free.len()).find(|class| !self.free[*class].is_empty())?;
        let block = self.free[from].pop_first()?;
        for half in class..from {
            self.free[half].insert(block + (1 << half));
        }
        Some(block)
    }

    fn give(&mut self, mut block: u32, mut class: usize) {
        let largest = self.free.len() - 1;
        while class < largest && self.free[class].remove(&(block ^ 1 << class)) {
            block &= !(1 << class);
            class += 1;
        }
        self.free[class].insert(block);
    }
}

/// Returns the class of the smallest blocks that hold this many bytes.
fn class_of(length: u32) -> usize {
    length.max(SMALLEST).div_ceil(SMALLEST).next_power_of_two().trailing_zeros() as usize
}

/// Memory for one payload. Who has it is the only one who may write there; [`Heap::free`] takes it back.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "its memory is not free again before Heap::free"]
pub struct Block {
    heap: u64,
    region: u32,
    offset: u64,
    length: u32,
}

impl Block {
    /// Number of its region within the heap.
    pub fn region(&self) -> u32 {
        self.region
    }

    /// Where it begins in its region, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Length in bytes, as it was asked for.
    pub fn length(&self) -> u32 {
        self.length
    }

    /// Returns a descriptor of this kind that says where it is.
    pub fn describe(&self, kind: u8) -> Descriptor {
        let Self { region, offset, length, .. } = *self;
        Descriptor { kind, region, offset, length, ..Descriptor::default() }
    }
}

/// Blocks in the regions of one owner.
#[derive(Debug)]
pub struct Heap<M> {
    id: u64,
    limits: HeapLimits,
    regions: Vec<(Arc<M>, Space)>,
    used: u64,
}

impl<M: Memory> Heap<M> {
    /// Makes one without regions: [`Heap::grow`] adds them.
    ///
    /// # Errors
    /// When the limits fit together in no heap.
    pub fn new(limits: HeapLimits) -> Result<Self, HeapError> {
        static HEAPS: AtomicU64 = AtomicU64::new(0);
        let largest = u64::from(limits.largest);
        let is_sound = limits.largest.is_power_of_two()
            && largest >= GRANULE
            && limits.region >= largest
            && limits.region.is_multiple_of(largest)
            && limits.region / u64::from(SMALLEST) <= u64::from(u32::MAX);
        let id = HEAPS.fetch_add(1, Ordering::Relaxed);
        is_sound.then(|| Self { id, limits, regions: Vec::new(), used: 0 }).ok_or(HeapError(limits))
    }

    /// Adds a region and returns its number, for the owner to announce it; none: it has as many as it may.
    ///
    /// # Errors
    /// When the system has no descriptors or addresses left. The heap stays as it is.
    pub fn grow(&mut self) -> Result<Option<u32>, RegionError> {
        let number = self.regions.len() as u32;
        if number >= self.limits.regions {
            return Ok(None);
        }
        self.regions.push((Arc::new(M::create(self.limits.region)?), Space::new(&self.limits)));
        Ok(Some(number))
    }

    /// The region of this number.
    pub fn region(&self, number: u32) -> Option<&M> {
        self.regions.get(usize::try_from(number).ok()?).map(|(region, _)| &**region)
    }

    /// Bytes that are in blocks now.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Takes memory for a payload of this many bytes. None: there is no piece as large now; more comes by
    /// [`Heap::free`] and [`Heap::grow`], though none ever for more than the largest block.
    pub fn alloc(&mut self, length: usize) -> Option<Block> {
        let length = u32::try_from(length).ok().filter(|length| *length <= self.limits.largest)?;
        let class = class_of(length);
        let spaces = self.regions.iter_mut().enumerate();
        let found = spaces.filter_map(|(region, (_, space))| Some((region, space.take(class)?))).next();
        let (region, begin) = found?;
        self.used += u64::from(SMALLEST) << class;
        let offset = u64::from(begin) * u64::from(SMALLEST);
        // There are at most `limits.regions`.
        Some(Block { heap: self.id, region: region as u32, offset, length })
    }

    /// Takes a block back.
    ///
    /// # Errors
    /// The block, when it is of another heap.
    pub fn free(&mut self, block: Block) -> Result<(), Block> {
        if block.heap != self.id {
            return Err(block);
        }
        let class = class_of(block.length);
        // Only `alloc` makes blocks, so the region exists and the place fits.
        self.regions[block.region as usize].1.give((block.offset / u64::from(SMALLEST)) as u32, class);
        self.used -= u64::from(SMALLEST) << class;
        Ok(())
    }

    /// The region of a block of this heap, if these bytes are in the block.
    fn region_of(&self, block: &Block, at: u32, length: usize) -> Option<&M> {
        let rest = (block.length as usize).checked_sub(at as usize)?;
        (block.heap == self.id && length <= rest).then(|| &*self.regions[block.region as usize].0)
    }
}

impl Heap<Region> {
    /// Takes a block together with its memory, as [`Heap::alloc`]: it is filled without the heap.
    pub fn buffer(&mut self, length: usize) -> Option<Buffer> {
        let block = self.alloc(length)?;
        let region = Arc::clone(&self.regions[block.region as usize].0);
        Some(Buffer { region, block })
    }

    /// Returns a descriptor of this kind for bytes that lie in a region of this heap, at a place where a payload may begin.
    /// None: they are elsewhere.
    pub fn describe(&self, bytes: &[u8], kind: u8) -> Option<Descriptor> {
        let found =
            |(number, (region, _)): (usize, &(Arc<Region>, Space))| Some((number, region.offset_of(bytes)?));
        let (number, offset) = self.regions.iter().enumerate().find_map(found)?;
        let length = u32::try_from(bytes.len()).ok()?;
        let descriptor = Descriptor { kind, region: number as u32, offset, length, ..Descriptor::default() };
        offset.is_multiple_of(crate::descriptor::ALIGNMENT).then_some(descriptor)
    }

    /// Returns the bytes of a block, to write a payload there. None: it is of another heap.
    pub fn bytes_mut<'a>(&'a self, block: &'a mut Block) -> Option<&'a mut [u8]> {
        let region = self.region_of(block, 0, 0)?;
        // SAFETY: blocks of a heap do not overlap and cannot be cloned, and this one is borrowed as long as the slice. Who
        // lends it to another process (`Leases`) gives it away meanwhile.
        unsafe { region.slice_mut(block.offset..block.offset + u64::from(block.length)) }.ok()
    }

    /// Copies bytes into a block from this place on; `false` when they are not all in it, or it is of another heap.
    #[must_use]
    pub fn write(&self, block: &mut Block, at: u32, bytes: &[u8]) -> bool {
        let region = self.region_of(block, at, bytes.len());
        region.is_some_and(|region| region.copy_in(block.offset + u64::from(at), bytes).is_ok())
    }
}

impl Heap<SharedRegion> {
    /// Copies bytes into a block from this place on; `false` when they are not all in it, or it is of another heap.
    #[must_use]
    pub fn write(&self, block: &mut Block, at: u32, bytes: &[u8]) -> bool {
        let region = self.region_of(block, at, bytes.len());
        region.is_some_and(|region| region.copy_in(block.offset + u64::from(at), bytes).is_ok())
    }
}

/// A block with its memory. Its heap takes the block back.
#[derive(Debug)]
#[must_use = "its memory is not free again before Heap::free"]
pub struct Buffer {
    region: Arc<Region>,
    block: Block,
}

impl Buffer {
    /// The block, for [`Heap::free`].
    pub fn into_block(self) -> Block {
        self.block
    }

    fn range(&self) -> std::ops::Range<u64> {
        self.block.offset..self.block.offset + u64::from(self.block.length)
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: as in `deref_mut`; shared borrows of the buffer only read.
        unsafe { self.region.slice_mut(self.range()) }.unwrap_or_default()
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: blocks of a heap do not overlap and cannot be cloned, and this one is borrowed with its buffer.
        unsafe { self.region.slice_mut(self.range()) }.unwrap_or_default()
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptor::Limits;
    use proptest::prelude::*;

    /// No memory: the list of free blocks is elsewhere.
    struct Nothing;

    impl Memory for Nothing {
        fn create(_: u64) -> Result<Self, RegionError> {
            Ok(Self)
        }
    }

    const LIMITS: HeapLimits = HeapLimits { largest: 4096, region: 3 * 4096, regions: 2 };

    fn heap() -> Heap<Nothing> {
        let mut heap = Heap::new(LIMITS).unwrap();
        while heap.grow().unwrap().is_some() {}
        heap
    }

    fn fill(heap: &mut Heap<Nothing>, length: usize) -> Vec<Block> {
        std::iter::from_fn(|| heap.alloc(length)).collect()
    }

    #[test]
    fn limits_that_fit_no_heap_are_refused() {
        let refused = |limits| Heap::<Nothing>::new(limits).is_err();
        assert!(!refused(LIMITS) && !refused(HeapLimits::default()));
        assert!(refused(HeapLimits { largest: 0, ..LIMITS }));
        assert!(refused(HeapLimits { largest: 256, ..LIMITS }), "a region has whole pages");
        assert!(refused(HeapLimits { largest: 5000, region: 50_000, ..LIMITS }));
        assert!(refused(HeapLimits { region: 0, ..LIMITS }));
        assert!(refused(HeapLimits { region: 4096 + 256, ..LIMITS }));
        assert!(refused(HeapLimits { region: 1 << 41, ..LIMITS }));
    }

    #[test]
    fn a_heap_without_memory_gives_nothing_until_it_grows() {
        let mut heap = Heap::<Nothing>::new(LIMITS).unwrap();
        assert_eq!(heap.alloc(1), None);
        assert_eq!(heap.grow().unwrap(), Some(0));
        assert_eq!(fill(&mut heap, 4096).len(), 3);
        assert_eq!(heap.grow().unwrap(), Some(1));
        assert_eq!(fill(&mut heap, 4096).iter().map(Block::region).collect::<Vec<_>>(), [1, 1, 1]);
        assert_eq!(heap.grow().unwrap(), None, "as many as it may");
        assert!(heap.region(1).is_some() && heap.region(2).is_none());
        assert_eq!(heap.used(), 6 * 4096);
    }

    #[test]
    fn blocks_are_as_large_as_the_next_power_of_two() {
        let mut heap = heap();
        for (length, count) in [(0, 96), (256, 96), (257, 48), (2048, 12), (2049, 6), (4096, 6), (4097, 0)] {
            let blocks = fill(&mut heap, length);
            assert_eq!(blocks.len(), count, "{length}");
            blocks.into_iter().for_each(|block| heap.free(block).unwrap());
        }
        assert_eq!(heap.alloc(usize::MAX), None);
    }

    #[test]
    fn a_block_of_another_heap_comes_back() {
        let (mut one, mut other) = (heap(), heap());
        let block = one.alloc(300).unwrap();
        let block = other.free(block).unwrap_err();
        assert_eq!((one.used(), other.used()), (512, 0));
        one.free(block).unwrap();
        assert_eq!(one.used(), 0);
    }

    #[test]
    #[cfg_attr(miri, ignore = "system calls")]
    fn a_payload_is_written_to_its_own_block_only() {
        let mut heap: Heap<Region> = Heap::new(LIMITS).unwrap();
        heap.grow().unwrap();
        let (mut one, mut two) = (heap.alloc(300).unwrap(), heap.alloc(300).unwrap());
        heap.bytes_mut(&mut one).unwrap().fill(1);
        heap.bytes_mut(&mut two).unwrap().fill(2);
        assert!(heap.write(&mut one, 298, &[3, 3]));
        assert!(!heap.write(&mut one, 299, &[4, 4]), "the payload ends before");
        assert!(!heap.write(&mut one, u32::MAX, &[]));
        assert_eq!(heap.bytes_mut(&mut one).unwrap()[297..], [1, 3, 3]);
        assert_eq!(*heap.bytes_mut(&mut two).unwrap(), [2; 300]);
        let mut other: Heap<Region> = Heap::new(LIMITS).unwrap();
        other.grow().unwrap();
        assert!(other.bytes_mut(&mut one).is_none() && !other.write(&mut one, 0, &[]));
    }

    /// As a program sends to a service, which believes it nothing.
    #[test]
    #[cfg_attr(miri, ignore = "system calls")]
    fn a_payload_in_shared_memory_is_copied_out_by_a_checked_descriptor() {
        let mut heap: Heap<SharedRegion> = Heap::new(LIMITS).unwrap();
        heap.grow().unwrap();
        let mut block = heap.alloc(1000).unwrap();
        assert!(heap.write(&mut block, 0, &[5; 1000]) && heap.write(&mut block, 997, b"end"));
        assert!(!heap.write(&mut block, 998, b"end") && !heap.write(&mut block, 1001, &[]));
        let service = rustix::io::dup(heap.region(0).unwrap()).unwrap();
        let service = SharedRegion::adopt(service, LIMITS.region).unwrap();
        let limits = Limits { kinds: 1, regions: vec![service.bytes()], longest: 4096 };
        let place = block.describe(0).check(&limits).unwrap();
        let mut into = vec![0; place.length()];
        service.copy_to(&place, &mut into).unwrap();
        assert_eq!((&into[..997], &into[997..]), (&[5; 997][..], &b"end"[..]));
        heap.free(block).unwrap();
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Steps: allocate that many bytes, or free one of the blocks.
        #[test]
        fn blocks_never_overlap_and_all_memory_comes_back(
            steps in proptest::collection::vec((any::<bool>(), 0usize..6000, any::<prop::sample::Index>()), 1..200)
        ) {
            let mut heap = heap();
            let mut blocks: Vec<Block> = Vec::new();
            for (is_taken, length, which) in steps {
                if is_taken {
                    match heap.alloc(length) {
                        Some(block) => {
                            prop_assert_eq!(block.length() as usize, length);
                            prop_assert!(block.offset() % 256 == 0);
                            prop_assert!(block.offset() + block.length() as u64 <= LIMITS.region);
                            let is_apart = |other: &Block| {
                                other.region() != block.region()
                                    || other.offset() >= block.offset() + u64::from(block.length())
                                    || block.offset() >= other.offset() + u64::from(other.length())
                            };
                            prop_assert!(blocks.iter().all(is_apart));
                            blocks.push(block);
                        }
                        None => prop_assert!(length > 4096 || heap.used() > 0),
                    }
                } else if !blocks.is_empty() {
                    let block = blocks.swap_remove(which.index(blocks.len()));
                    prop_assert!(heap.free(block).is_ok());
                }
            }
            for block in blocks {
                prop_assert!(heap.free(block).is_ok());
            }
            prop_assert_eq!(heap.used(), 0);
            prop_assert_eq!(fill(&mut heap, 4096).len(), 6, "all halves have joined");
        }
    }
}
